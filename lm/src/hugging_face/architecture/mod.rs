//! The architectures that are known: how each names its parameters, and what its `config.json` says, in both directions.

mod bert;
mod gemma;
mod gpt2;
mod llama;
mod qwen;
mod relatives;
mod rope;
mod t5;

use super::fields::Fields;
use super::layout::{Heads, Row};
use kernfusion::models::{FeedForwardKind, GptConfig, ModelConfig};
use kernfusion::nn::Gelu;
use serde_json::{Map, Value, json};

/// An architecture of transformers.
pub(super) struct Architecture {
    /// `model_type` in `config.json`.
    pub(super) model_type: &'static str,
    /// What the class is called that has the model with its output layer.
    pub(super) class: &'static str,
    /// How parameters are named; of several rows that fit, the first counts.
    pub(super) tables: &'static [&'static [Row]],
    /// How those of feed-forward networks are named, without a gate and with one, where that is not the same.
    pub(super) variants: [&'static [Row]; 2],
    /// What all names begin with but those of an output layer; files of the model without one leave it out.
    pub(super) base: &'static str,
    /// Tensors that share their numbers: the first is the parameter, the others may be stored, too.
    pub(super) ties: &'static [&'static [&'static str]],
    /// How names of tensors end that may be stored, but are no parameters, or those of other tasks.
    pub(super) extras: &'static [&'static str],
    /// Today's name of a tensor.
    pub(super) rename: fn(String) -> String,
    /// Tensors of two parameters, one below the other: how their names end, and how those of their halves do here.
    pub(super) halves: &'static [(&'static str, [&'static str; 2])],
    /// Reads the shape from `config.json`.
    pub(super) read: fn(&mut Fields) -> Result<ModelConfig, String>,
    /// The fields that describe this model; an error if it is not of this architecture.
    pub(super) write: fn(&ModelConfig) -> Result<Map<String, Value>, String>,
}

/// All that are known. The first one that can express a model is what it is saved as.
pub(super) const ARCHITECTURES: [&Architecture; 16] = [
    &gpt2::GPT2,
    &llama::LLAMA,
    &llama::MISTRAL,
    &llama::MIXTRAL,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen::QWEN3_MOE,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &relatives::OLMO2,
    &relatives::GRANITE,
    &relatives::SMOLLM3,
    &relatives::PHI3,
    &bert::BERT,
    &t5::T5,
];

/// The architecture with this `model_type`.
pub(super) fn named(model_type: &str) -> Result<&'static Architecture, String> {
    let known = ARCHITECTURES.into_iter().find(|architecture| architecture.model_type == model_type);
    known.ok_or_else(|| {
        let names = ARCHITECTURES.map(|architecture| architecture.model_type);
        format!("model_type is \"{model_type}\", but only {} can be read", names.join(", "))
    })
}

/// A model as it is exported.
pub(super) struct Expressed {
    pub(super) architecture: &'static Architecture,
    /// Those of its `config.json`.
    pub(super) fields: Map<String, Value>,
    /// The shape that these say: it may have biases, which are then zero, where the model has none.
    pub(super) config: ModelConfig,
}

/// The model as the first architecture whose fields say all of it.
pub(super) fn of(config: &ModelConfig) -> Result<Expressed, String> {
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for architecture in ARCHITECTURES {
        match architecture.express(config) {
            Ok((fields, config)) => return Ok(Expressed { architecture, fields, config }),
            Err(reason) => match reasons.iter_mut().find(|(other, _)| *other == reason) {
                Some((_, names)) => names.push(architecture.model_type),
                None => reasons.push((reason, vec![architecture.model_type])),
            },
        }
    }
    let reasons: Vec<_> =
        reasons.iter().map(|(reason, names)| format!("no {}, since {reason}", names.join(", "))).collect();
    Err(format!("it is {}", reasons.join("; ")))
}

/// The field of a decoder's shape that says whether queries, keys and values have biases.
const QKV_BIAS: &str = "qkv_bias";

/// The heads by which projections are cut.
pub(super) fn heads(config: &ModelConfig) -> Heads {
    match config {
        ModelConfig::Gpt(config) => Heads { queries: config.heads, shared: config.kv_heads() },
        other => {
            let heads = other.heads().unwrap_or(1);
            Heads { queries: heads, shared: heads }
        }
    }
}

impl Architecture {
    /// The fields that describe this model, and the shape that they say; an error if that is another one.
    fn express(&self, config: &ModelConfig) -> Result<(Map<String, Value>, ModelConfig), String> {
        let fields = (self.write)(config)?;
        let said = (self.read)(&mut Fields::of(fields.clone()))?;
        let [ours, theirs] = [config, &said].map(|config| json!(spelt_out(config)));
        let is_lost = |name: &str, value: &Value| {
            theirs[name] != *value && !(name == QKV_BIAS && *value == json!(false))
        };
        match object(ours).iter().find(|(name, value)| is_lost(name, value)) {
            Some((name, value)) => Err(format!("its {name} is {value}, not {}", theirs[name.as_str()])),
            None => Ok((fields, said)),
        }
    }

    /// The name of the output layer's matrix that a model without one of its own shares, and that of its partner.
    pub(super) fn tied_head(&self) -> [&'static str; 2] {
        let tie = self.ties[0];
        [tie[0], tie[tie.len() - 1]]
    }
}

/// Whether the model's feed-forward networks have gates.
pub(super) fn is_gated(config: &ModelConfig) -> bool {
    match config {
        ModelConfig::Gpt(config) => config.feed_forward.is_gated(),
        ModelConfig::EncoderDecoder(config) => config.feed_forward.is_gated(),
        ModelConfig::Bert(_) | ModelConfig::Recurrent(_) => false,
    }
}

/// The fields of a JSON object that is given as a literal.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The shape of a decoder; an error of any other model.
fn decoder(config: &ModelConfig) -> Result<&GptConfig, String> {
    match config {
        ModelConfig::Gpt(config) => Ok(config),
        _ => Err("it is no decoder".into()),
    }
}

/// The shape with what it leaves out, without what has no effect and without what only training knows, so that equal ones are equal.
fn spelt_out(config: &ModelConfig) -> ModelConfig {
    let gelu = |feed_forward, gelu| match feed_forward {
        FeedForwardKind::Gelu | FeedForwardKind::Geglu => gelu,
        FeedForwardKind::Relu | FeedForwardKind::Swiglu => Gelu::default(),
    };
    let mut config = config.clone();
    config.set_dropout(0.0);
    match &mut config {
        ModelConfig::Gpt(config) => {
            config.kv_heads = Some(config.kv_heads());
            config.head_width = Some(config.head_width());
            config.hidden = Some(config.hidden());
            config.gelu = gelu(config.feed_forward, config.gelu);
            config.scales.attention.get_or_insert(1.0 / (config.head_width() as f64).sqrt());
            config.experts.iter_mut().for_each(|experts| experts.noise = 0.0);
        }
        ModelConfig::Bert(config) => {
            config.hidden = Some(config.hidden());
            config.mask_token = None;
        }
        ModelConfig::EncoderDecoder(config) => {
            config.head_width = Some(config.head_width());
            config.hidden = Some(config.hidden());
            config.gelu = gelu(config.feed_forward, config.gelu);
            config.decoder_layers = Some(config.decoder_layers());
            // Such a model knows no limit.
            config.target_length = config.source_length;
            (config.beginning, config.end) = (None, None);
        }
        ModelConfig::Recurrent(_) => {}
    }
    config
}
