//! What a run has done so far, as its log says.

use kernfusion_lm::jsonl::read_rows;
use kernfusion_lm::{Error, Result};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// The losses of a run by step, and what else it has measured and written.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Curve {
    /// Loss of each step in nats per token, beginning with the first.
    pub losses: Vec<f64>,
    /// Duration of each step.
    pub seconds: Vec<f64>,
    /// Steps and validation losses.
    pub validation: Vec<(u64, f64)>,
    /// Samples in their order.
    pub samples: Vec<Written>,
}

/// A sample that a run has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Written {
    /// Steps done.
    pub step: u64,
    /// What it goes on from.
    pub prompt: String,
    /// What the model has written.
    pub text: String,
}

impl Curve {
    /// Reads a log that begins with the first step.
    ///
    /// # Errors
    /// If it cannot be read, or a step is missing.
    pub fn read(path: &Path) -> Result<Self> {
        let rows: Vec<Value> = read_rows(path)?;
        let mut curve = Curve::default();
        for row in rows {
            let step = row["step"].as_u64().unwrap_or(0);
            let text = |name: &str| row[name].as_str().map(String::from);
            if let (Some(loss), Some(seconds)) = (row["loss"].as_f64(), row["seconds"].as_f64()) {
                curve.expect(step, path)?;
                curve.losses.push(loss);
                curve.seconds.push(seconds);
            } else if let Some(loss) = row["val_loss"].as_f64() {
                curve.validation.push((step, loss));
            } else if let (Some(prompt), Some(text)) = (text("prompt"), text("sample")) {
                curve.samples.push(Written { step, prompt, text });
            }
        }
        Ok(curve)
    }

    /// Checks that this step is the one that is due.
    fn expect(&self, step: u64, path: &Path) -> Result<()> {
        let due = self.losses.len() as u64 + 1;
        if step == due {
            return Ok(());
        }
        let reason = format!("{} is not the log of a whole run: step {due} is missing", path.display());
        Err(Error::Configuration(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_whole_or_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("losses.jsonl");
        let read = |rows: &[&str]| {
            std::fs::write(&path, rows.join("\n")).unwrap();
            Curve::read(&path)
        };
        let rows = [
            r#"{"step": 1, "loss": 4.5, "seconds": 0.5}"#,
            r#"{"step": 1, "val_loss": 4.25}"#,
            r#"{"step": 1, "prompt": "a", "sample": "bc"}"#,
            r#"{"step": 2, "loss": 4.0, "seconds": 0.25}"#,
        ];
        let sample = Written { step: 1, prompt: "a".into(), text: "bc".into() };
        let expected = Curve {
            losses: vec![4.5, 4.0],
            seconds: vec![0.5, 0.25],
            validation: vec![(1, 4.25)],
            samples: vec![sample],
        };
        assert_eq!(read(&rows).unwrap(), expected);
        let message = read(&rows[1..]).unwrap_err().to_string();
        assert!(
            message.ends_with("losses.jsonl is not the log of a whole run: step 1 is missing"),
            "{message}"
        );
    }
}
