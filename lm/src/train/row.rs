//! The rows of a run: what each step did, what was measured, what the model wrote.
//!
//! One stream of them goes to all who watch a run: its logs, the screen, TensorBoard's event files. A report is made of the
//! rows that a log has kept.

use super::StepReport;
use crate::jsonl::RowsError;
use crate::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::Path;

/// Something that happened in a run; in a log it is one line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Row {
    /// A step was done.
    Step(StepReport),
    /// The validation loss was measured.
    Validation {
        /// Steps done.
        step: u64,
        /// Mean loss in nats per token.
        #[serde(deserialize_with = "number")]
        val_loss: f64,
    },
    /// The model has written a text.
    Sample {
        /// Steps done.
        step: u64,
        /// What it was given to go on from.
        prompt: String,
        /// The text.
        sample: String,
    },
}

/// Takes the rows of a run as they come.
pub trait Watcher {
    /// Takes the next row.
    ///
    /// # Errors
    /// If it cannot be kept; this ends the run.
    fn row(&mut self, row: &Row) -> Result<()>;
}

impl Row {
    /// Steps done.
    pub fn step(&self) -> u64 {
        match self {
            Row::Step(report) => report.step,
            Row::Validation { step, .. } | Row::Sample { step, .. } => *step,
        }
    }

    /// All rows of a log. The run may be under way: a last line without its end is left out.
    ///
    /// # Errors
    /// If the file cannot be read or a line of it is no row; says which.
    pub fn read_all(log: &Path) -> Result<Vec<Row>> {
        let read = kernfusion::input_file::read_text(log);
        let text = read.map_err(|cause| RowsError::Read { path: log.into(), cause })?;
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        let lines = text[..complete].lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let row = |(number, line): (usize, &str)| {
            let reason =
                "this is no row of a training run: one has \"step\" and \"loss\", \"val_loss\" or \"sample\"";
            let invalid = |_| RowsError::Row { path: log.into(), line: number + 1, reason: reason.into() };
            Ok(serde_json::from_str(line).map_err(invalid)?)
        };
        let rows = lines.map(row).collect::<Result<Vec<_>>>()?;
        match rows.is_empty() {
            true => Err(Error::Rows(RowsError::Empty { path: log.into() })),
            false => Ok(rows),
        }
    }
}

/// JSON has no NaN and no infinity: `null` stands for them.
pub(super) fn number<'a, D: Deserializer<'a>, X: From<f32> + Deserialize<'a>>(
    from: D,
) -> std::result::Result<X, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_else(|| X::from(f32::NAN)))
}

/// What a log leaves out is not known.
pub(super) fn unknown() -> f64 {
    f64::NAN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log.jsonl");
        let step = StepReport {
            step: 1,
            loss: 4.25,
            gradient_norm: Some(0.5),
            learning_rate: 1e-3,
            seconds: 0.25,
            tokens_per_s: 64.0,
            usage: Default::default(),
        };
        let sample = Row::Sample { step: 1, prompt: "a".into(), sample: "b\n\"c\"".into() };
        let rows = [Row::Step(step), Row::Validation { step: 1, val_loss: 4.5 }, sample];
        let lines: Vec<_> = rows.iter().map(|row| serde_json::to_string(row).unwrap()).collect();
        // The run is writing its next line.
        std::fs::write(&log, format!("{}\n{{\"step\":2,\"lo", lines.join("\n"))).unwrap();
        assert_eq!(Row::read_all(&log).unwrap(), rows);
    }

    #[test]
    fn rows_of_other_writers_and_what_is_no_row() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log.jsonl");
        let read = |text: &str| {
            std::fs::write(&log, text).unwrap();
            Row::read_all(&log)
        };
        let rows = read("{\"step\": 3, \"loss\": null}\n\n{\"step\": 3, \"val_loss\": null}\n").unwrap();
        assert!(
            matches!(rows[0], Row::Step(StepReport { step: 3, loss, seconds, .. }) if loss.is_nan() && seconds.is_nan())
        );
        assert!(matches!(rows[1], Row::Validation { step: 3, val_loss } if val_loss.is_nan()));
        let message = read("{\"step\": 1, \"loss\": 2}\n{\"x\": 1}\n").unwrap_err().to_string();
        assert!(message.contains("log.jsonl, line 2: this is no row of a training run"), "{message}");
        assert!(read("").unwrap_err().to_string().ends_with("has no rows"));
    }
}
