//! Losses that another program has made of the same run.
//!
//! JSON lines: `{"run": {…}, "library": "PyTorch 2.13", "place": "2 threads"}`, then `{"step": 1, "loss": 4.2, "seconds": 0.1}`
//! for each step, then `{"peak_mib": 3246}` if it is known.

use kernfusion_lm::jsonl::{RowsError, read_rows};
use kernfusion_lm::record::compare;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What can be wrong with a reference.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// A row is missing or cannot be understood.
    #[error("{}: row {row} {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        row: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// It is no file of rows.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// It is of another run.
    #[error("{} is of another run: {}", path.display(), differing.join("; "))]
    OtherRun {
        /// The file.
        path: PathBuf,
        /// Its fields, with the value there and the one that is asked for.
        differing: Vec<String>,
    },
    /// It ends before the run does.
    #[error("{} has {has} steps, but {needs} are asked for: fewer --steps, or a longer reference", path.display())]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Its steps.
        has: usize,
        /// Those that are asked for.
        needs: usize,
    },
}

/// What another program has made of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reference {
    /// Its name and version.
    pub library: String,
    /// What it ran on.
    pub place: String,
    /// Loss of each step in nats per token, beginning with the first.
    pub losses: Vec<f64>,
    /// Duration of each step.
    pub seconds: Vec<f64>,
    /// The most memory it has taken.
    pub peak_mib: Option<f64>,
}

impl Reference {
    /// Reads the first `steps` steps of a file that must be of `run`.
    ///
    /// # Errors
    /// If it cannot be read, is of another run, or too short; says which row or field is at fault.
    pub fn read(path: &Path, run: &Value, steps: usize) -> Result<Self, ReferenceError> {
        let rows: Vec<Value> = read_rows(path)?;
        let bad =
            |row: usize, reason: &str| ReferenceError::Row { path: path.into(), row, reason: reason.into() };
        let (head, rows) = rows.split_first().ok_or_else(|| bad(1, "is missing"))?;
        if !head["run"].is_object() {
            return Err(bad(1, "does not say which run this is of (\"run\")"));
        }
        let mut differing = Vec::new();
        compare("", &head["run"], run, &mut differing);
        if !differing.is_empty() {
            return Err(ReferenceError::OtherRun { path: path.into(), differing });
        }
        let text = |name: &str| head[name].as_str().unwrap_or("unknown").to_string();
        let (library, place) = (text("library"), text("place"));
        let mut reference = Reference { library, place, losses: vec![], seconds: vec![], peak_mib: None };
        for (number, row) in rows.iter().enumerate() {
            reference.take(row).map_err(|reason| bad(number + 2, &reason))?;
        }
        let has = reference.losses.len();
        if has < steps {
            return Err(ReferenceError::TooShort { path: path.into(), has, needs: steps });
        }
        reference.losses.truncate(steps);
        reference.seconds.truncate(steps);
        Ok(reference)
    }

    fn take(&mut self, row: &Value) -> Result<(), String> {
        if let Some(peak) = row.get("peak_mib") {
            self.peak_mib = peak.as_f64();
            return Ok(());
        }
        let expected = self.losses.len() as u64 + 1;
        let (Some(step), Some(loss), Some(seconds)) =
            (row["step"].as_u64(), row["loss"].as_f64(), row["seconds"].as_f64())
        else {
            return Err("has not all of \"step\", \"loss\" and \"seconds\" as numbers".into());
        };
        if step != expected {
            return Err(format!("is of step {step}, but that of step {expected} is due"));
        }
        self.losses.push(loss);
        self.seconds.push(seconds);
        Ok(())
    }
}
