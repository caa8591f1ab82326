//! What another program needs to repeat a run: a folder to be copied to wherever it is.
//!
//! ```text
//! run.json            the model's shape, the optimizer, and fingerprints of text and first parameters
//! start.safetensors   param.<module path> f32; tokens i32 [N]; starts i32 [steps, batch]
//! verification.py     trains with PyTorch and writes losses as JSON lines
//! model.py            the same model in PyTorch
//! ```

use crate::text_file::save;
use kernfusion::HostTensor;
use kernfusion::models::{GptConfig, ModelConfig};
use kernfusion::tensor_file;
use kernfusion_lm::record::Record;
use kernfusion_lm::text::Windows;
use kernfusion_lm::{Error, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// The programs, which are part of this one, so that an installed binary has them.
const SCRIPTS: [(&str, &str); 2] = [
    ("verification.py", include_str!("pytorch/verification.py")),
    ("model.py", include_str!("pytorch/model.py")),
];

/// How the names of first parameters begin.
const PARAMETER: &str = "param.";

/// So many starts of windows are a quarter of a gibibyte.
const MOST_WINDOWS: u64 = 1 << 26;

/// A run as a peer sees it.
pub struct Handover {
    run: Value,
    tensors: BTreeMap<String, HostTensor>,
}

impl Handover {
    /// The run of a record on the tokens of its training text.
    ///
    /// # Errors
    /// If PyTorch's side does not have such a model, or there is no window of the text.
    pub fn new(record: &Record, tokens: &[i32]) -> Result<Self> {
        let (settings, model) = (&record.settings, shape(&record.config)?);
        if settings.steps.saturating_mul(settings.batch as u64) > MOST_WINDOWS {
            let (steps, batch) = (settings.steps, settings.batch);
            let reason = format!("{steps} steps of {batch} windows are too many to be handed over");
            return Err(Error::Configuration(reason));
        }
        let step = record.config.train_step(settings.batch, &settings.optimizer, settings.clip)?;
        step.program.ensure_memory()?;
        let parameters = step.program.initial_parameters(settings.seed);
        let mut tensors: BTreeMap<_, _> =
            parameters.into_iter().map(|(name, tensor)| (format!("{PARAMETER}{name}"), tensor)).collect();
        let mut hash = Sha256::new();
        tensors.values().for_each(|tensor| hash.update(tensor.bytes()));
        let fingerprint: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let context = record.config.context();
        let windows = Windows::new(tokens, settings.batch, context, settings.order, settings.seed)?;
        let starts = (0..settings.steps).flat_map(|step| windows.starts(step));
        let starts = HostTensor::new(
            [settings.steps as usize, settings.batch],
            starts.map(|start| start as i32).collect::<Vec<_>>(),
        );
        tensors.insert("starts".into(), starts);
        tensors.insert("tokens".into(), HostTensor::new([tokens.len()], tokens.to_vec()));
        let run = json!({
            "model": model,
            "batch": settings.batch,
            "seed": settings.seed,
            "optimizer": settings.optimizer,
            "text_sha256": record.text.sha256,
            "parameters_sha256": fingerprint,
        });
        Ok(Handover { run, tensors })
    }

    /// What a reference must say that it is of.
    pub fn run(&self) -> &Value {
        &self.run
    }

    /// Writes the folder; each file is there whole or not at all.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<()> {
        for (name, script) in SCRIPTS {
            save(&directory.join(name), script)?;
        }
        save(&directory.join("run.json"), &format!("{:#}\n", self.run))?;
        Ok(tensor_file::write(&directory.join("start.safetensors"), &self.tensors)?)
    }
}

/// The fields of PyTorch's model.
fn shape(config: &ModelConfig) -> Result<Value> {
    const FIELDS: [&str; 10] =
        ["vocabulary", "context", "layers", "heads", "width", "dropout", "qkv_bias", "tied", "gelu", "norm"];
    let all = json!(config);
    let fields: serde_json::Map<_, _> =
        FIELDS.iter().map(|&name| (name.to_string(), all[name].clone())).collect();
    let fields = Value::Object(fields);
    let known = GptConfig::default().with_json(&fields.to_string());
    let unfit =
        |reason: &str| Err(Error::Configuration(format!("PyTorch's side of a verification {reason}")));
    match config {
        ModelConfig::Gpt(_) if config.dropout() != 0.0 => unfit("has no dropout"),
        ModelConfig::Gpt(config) if known.is_ok_and(|known| known == *config) => Ok(fields),
        _ => unfit(
            "is a GPT-2: of its shape only layers, heads, width, context, biases of q, k and v, ties, the form of \
                    GELU and the place of norms can be chosen",
        ),
    }
}
