//! What a training run is: the settings that fix its numbers, and the record of them in a checkpoint.

mod adaptation;
pub(crate) mod parameters;

pub use adaptation::{Adaptation, attach, merge};
pub use parameters::use_averages;

use crate::checkpoint::Meta;
use crate::text::{Corpus, Order, Tokenizer};
use crate::{Error, Result};
use kernfusion::models::ModelConfig;
use kernfusion::optim::{Optimizer, Schedule};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The settings of a run beside the model's shape and the text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Steps in all, those before a resume included.
    pub steps: u64,
    /// Windows in a batch.
    pub batch: usize,
    /// Microbatches in which a batch is computed, one after another; 0: as few as memory allows, and then their number. Sums
    /// over the batch are rounded otherwise in other microbatches. Older checkpoints call them slices.
    #[serde(default = "whole_batch", alias = "slices")]
    pub microbatches: usize,
    /// All random numbers are functions of it and of the step: first parameters, windows, dropout, samples.
    pub seed: u64,
    /// The update rule with its learning rate.
    pub optimizer: Optimizer,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// The largest norm of all gradients together, if they are clipped.
    pub clip: Option<f64>,
    /// Which parameters are trained.
    #[serde(default)]
    pub adaptation: Adaptation,
    /// As what several ranks exchange gradients.
    #[serde(default)]
    pub exchange: ExchangeType,
    /// Which windows of the text a step takes.
    #[serde(with = "OrderForm")]
    pub order: Order,
    /// Steps between measurements of the validation loss; 0: only at the end.
    pub validate_every: u64,
    /// Batches in a measurement of the validation loss, always the same; 0: it is not measured.
    pub validation_batches: usize,
    /// Steps between samples; 0: only at the end.
    pub sample_every: u64,
    /// Tokens in a sample; 0: no samples.
    pub sample_tokens: usize,
    /// What a decoder's samples go on from, one sample for each; an empty one stands for a line break.
    #[serde(default = "one_empty_prompt")]
    pub sample_prompts: Vec<String>,
    /// How many of the likeliest tokens a sample picks among; none: all.
    #[serde(default)]
    pub sample_top_k: Option<usize>,
    /// Steps between checkpoints; 0: only at the end.
    pub checkpoint_every: u64,
}

/// As what several ranks exchange gradients; of a process alone, nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeType {
    /// As they are.
    #[default]
    F32,
    /// Rounded: [`Target::bf16_exchange`](kernfusion::compile::Target::bf16_exchange).
    Bf16,
}

/// The form of [`Order`] in JSON.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Order", rename_all = "lowercase")]
enum OrderForm {
    Random,
    Sequential,
    Streams,
}

/// Checkpoints that do not say it are of runs whose batch was not divided.
fn whole_batch() -> usize {
    1
}

fn one_empty_prompt() -> Vec<String> {
    vec![String::new()]
}

/// Settings that a resumed run may change: they have no influence on any loss.
const FREE: [&str; 8] = [
    "steps",
    "validate_every",
    "validation_batches",
    "sample_every",
    "sample_tokens",
    "sample_prompts",
    "sample_top_k",
    "checkpoint_every",
];

impl Default for Settings {
    fn default() -> Self {
        Settings {
            steps: 1000,
            batch: 12,
            microbatches: 0,
            seed: 1,
            optimizer: Optimizer::adamw(1e-3),
            schedule: Schedule::Constant,
            clip: Some(1.0),
            adaptation: Adaptation::default(),
            exchange: ExchangeType::F32,
            order: Order::Random,
            validate_every: 100,
            validation_batches: 8,
            sample_every: 0,
            sample_tokens: 300,
            sample_prompts: one_empty_prompt(),
            sample_top_k: None,
            checkpoint_every: 100,
        }
    }
}

/// A text as a checkpoint knows it: enough to find it again and to notice another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextRecord {
    /// What the text is called.
    pub name: String,
    /// The file it was read from; none for the default text.
    pub file: Option<String>,
    /// SHA-256 of its UTF-8 bytes, in hexadecimal.
    pub sha256: String,
}

impl TextRecord {
    /// The record of a corpus that was read from `file`, if from any.
    pub fn new(corpus: &Corpus, file: Option<String>) -> Self {
        let hash = Sha256::digest(corpus.text());
        let sha256 = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        TextRecord { name: corpus.name().into(), file, sha256 }
    }

    /// How another text differs, if it does.
    fn difference(&self, asked: &TextRecord) -> Option<String> {
        let place = |text: &TextRecord| text.file.clone().unwrap_or_else(|| text.name.clone());
        match self.sha256 != asked.sha256 {
            true if place(self) == place(asked) => {
                Some(format!("the text in {} has changed since the run began", self.name))
            }
            true if self.name == asked.name => {
                Some(format!("the text is {}, not {}", place(self), place(asked)))
            }
            true => Some(format!("the text is {}, not {}", self.name, asked.name)),
            false => None,
        }
    }
}

/// All that a run is made from. With the step and the tensors it is a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The model's shape.
    pub config: ModelConfig,
    /// The settings.
    pub settings: Settings,
    /// The tokens.
    pub tokenizer: Tokenizer,
    /// The text.
    pub text: TextRecord,
    /// What products of matrices multiply, as [`Target::products`](kernfusion::compile::Target::products) says it; older checkpoints do
    /// not say it. A run may go on with others, since another machine may not have them.
    pub products: Option<String>,
}

/// What a checkpoint keeps under `training`.
#[derive(Serialize, Deserialize)]
struct Training {
    settings: Settings,
    text: TextRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    products: Option<String>,
}

impl Record {
    /// Reads the metadata of a checkpoint.
    ///
    /// # Errors
    /// If an entry cannot be understood; names it.
    pub fn read(meta: &Meta) -> Result<Self> {
        let Training { settings, text, products } = Record::entry("training", &meta.training)?;
        let (config, tokenizer) = Record::model(meta)?;
        Ok(Record { config, settings, tokenizer, text, products })
    }

    /// The model and the tokens of a checkpoint, whatever has made it.
    ///
    /// # Errors
    /// If an entry cannot be understood; names it.
    pub fn model(meta: &Meta) -> Result<(ModelConfig, Tokenizer)> {
        let config: ModelConfig = Record::entry("config", &meta.config)?;
        config.validate()?;
        Ok((config, Record::entry("tokenizer", &meta.tokenizer)?))
    }

    /// An entry of a checkpoint, or a part of it.
    pub(crate) fn entry<T: serde::de::DeserializeOwned>(name: &str, value: &Value) -> Result<T> {
        let invalid = |e| Error::Configuration(format!("the checkpoint's entry \"{name}\": {e}"));
        serde_json::from_value(value.clone()).map_err(invalid)
    }

    /// The metadata of a checkpoint after `step` steps.
    pub fn meta(&self, step: u64) -> Meta {
        Meta {
            config: json!(self.config),
            step,
            seed: self.settings.seed,
            tokenizer: json!(self.tokenizer),
            training: json!(Training {
                settings: self.settings.clone(),
                text: self.text.clone(),
                products: self.products.clone(),
            }),
        }
    }

    /// Checks that a run with this record can go on as `asked`.
    ///
    /// # Errors
    /// Names every field that would change the run's numbers, with both values.
    pub fn allows(&self, asked: &Record) -> Result<()> {
        let mut differing = Vec::new();
        compare("", &json!(self.config), &json!(asked.config), &mut differing);
        let settings = [&self.settings, &asked.settings].map(|settings| {
            let mut fields = json!(settings);
            FREE.iter().for_each(|name| fields[name] = Value::Null);
            fields
        });
        compare("", &settings[0], &settings[1], &mut differing);
        differing.extend(self.text.difference(&asked.text));
        if differing.is_empty() {
            return Ok(());
        }
        let reason = format!("the run to resume has other settings: {}", differing.join("; "));
        Err(Error::Configuration(reason))
    }
}

/// Lists the leaves that differ between two JSON values.
pub fn compare(path: &str, ours: &Value, asked: &Value, differing: &mut Vec<String>) {
    match (ours, asked) {
        (Value::Object(a), Value::Object(b)) => {
            let only_asked = b.keys().filter(|name| !a.contains_key(*name));
            for name in a.keys().chain(only_asked) {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                compare(&path, &ours[name], &asked[name], differing);
            }
        }
        _ if ours != asked => differing.push(format!("{path} is {ours}, not {asked}")),
        _ => {}
    }
}
