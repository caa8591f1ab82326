//! What a run is and where it ran, for readers of its figures.

use super::page::pairs;
use super::plot::{counted, number};
use kernfusion::models::ModelConfig;
use kernfusion_lm::record::{Settings, TextRecord};
use kernfusion_lm::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;

/// The model, the settings, the text, and the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// The model's shape.
    pub config: ModelConfig,
    /// The settings of the run.
    pub settings: Settings,
    /// The text.
    pub text: TextRecord,
    /// The machine, as JSON with the field `cpu` or `gpu`.
    pub machine: Value,
    /// What it ran on: threads, or a GPU.
    pub place: String,
    /// The number type of matrix products.
    pub products: String,
    /// How long compiling took.
    pub compile_s: f64,
    /// Slices of the batch, kernels and recomputing in words.
    pub step: String,
}

impl Description {
    /// What the description of a run is called in its directory.
    pub const FILE: &'static str = "run.json";

    /// Reads what [`Description::write`] has written.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |reason: String| Error::Configuration(format!("{}: {reason}", path.display()));
        let text = kernfusion::input_file::read_text(path).map_err(|error| failed(error.to_string()))?;
        let about: Self = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
        about.config.validate().map_err(|error| failed(error.reason()))?;
        Ok(about)
    }

    /// Writes it as JSON into a run's directory, whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, directory: &Path) -> Result<()> {
        crate::text_file::save(&directory.join(Self::FILE), &format!("{:#}\n", json!(self)))
    }

    /// Tokens of a step.
    pub(crate) fn tokens(&self) -> f64 {
        self.settings.batch as f64 * self.config.context() as f64
    }

    /// A list of names and values.
    pub(crate) fn list(&self) -> String {
        let Description { config, settings, text, .. } = self;
        let Settings { batch, seed, optimizer, .. } = settings;
        let machine = |name: &str| self.machine[name].as_str().unwrap_or_default().to_string();
        let heads = config.heads().map_or(String::new(), |heads| format!(", {}", counted(heads, "head")));
        pairs(&[
            (
                "model",
                format!(
                    "{} parameters: {}, width {}{heads}, context {}, vocabulary {}, dropout {}",
                    number(config.parameters() as f64),
                    counted(config.layers(), "layer"),
                    config.width(),
                    config.context(),
                    config.vocabulary(),
                    number(config.dropout())
                ),
            ),
            ("batch", format!("{batch} windows of {} tokens", config.context())),
            ("optimizer", rule(&json!(optimizer))),
            ("seed", seed.to_string()),
            ("text", text.name.clone()),
            ("products", self.products.clone()),
            ("step", format!("{}; compiled in {:.2} s", self.step, self.compile_s)),
            ("processor", machine("cpu")),
            ("graphics card", machine("gpu")),
            ("memory", memory(&machine("memory"))),
            ("system", format!("{} on {}", machine("os"), machine("arch"))),
            ("Kernfusion", machine("kernfusion")),
        ])
    }
}

/// Kibibytes, as Linux tells them, in GiB.
pub(super) fn memory(text: &str) -> String {
    let kibibytes = text.strip_suffix(" kB").and_then(|digits| digits.parse::<f64>().ok());
    kibibytes.map_or(text.into(), |kibibytes| format!("{:.1} GiB", kibibytes / f64::from(1 << 20)))
}

/// An optimizer and its numbers.
fn rule(optimizer: &Value) -> String {
    let numbers = optimizer.as_object().into_iter().flatten().filter(|(name, _)| *name != "rule");
    let numbers: Vec<_> =
        numbers.map(|(name, value)| format!("{} {value}", name.replace('_', " "))).collect();
    format!("{}: {}", optimizer["rule"].as_str().unwrap_or_default(), numbers.join(", "))
}
