//! What a run has done so far, as its log says.

use crate::Result;
use crate::tune::read_rows;
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
    /// Reads a log.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        let rows: Vec<Value> = read_rows(path)?;
        let mut curve = Curve::default();
        for row in rows {
            let step = row["step"].as_u64().unwrap_or(0);
            let text = |name: &str| row[name].as_str().map(String::from);
            if let (Some(loss), Some(seconds)) = (row["loss"].as_f64(), row["seconds"].as_f64()) {
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
}
