//! Any model by its shape: what the command line, training runs and checkpoints are about.

use super::{
    Bert, BertConfig, Chunk, EncoderDecoder, EncoderDecoderConfig, Gpt, GptConfig, RecurrentLm,
    RecurrentLmConfig,
};
use crate::optim::{Optimizer, TrainStep};
use crate::trace::{Parameter, Program, Tensor, Trace};
use crate::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// The shape of a model of any kind. In JSON the field `model` says which: `gpt`, and so without it, `recurrent`, `bert` or
/// `encoder-decoder`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "model", rename_all = "kebab-case")]
pub enum ModelConfig {
    /// A decoder, which continues a text.
    Gpt(GptConfig),
    /// Recurrent layers, which continue a text as well.
    Recurrent(RecurrentLmConfig),
    /// An encoder, which fills gaps of a text.
    Bert(BertConfig),
    /// Both, which turns a text into another one.
    EncoderDecoder(EncoderDecoderConfig),
}

/// The field that names the kind.
const KIND: &str = "model";

impl<'de> Deserialize<'de> for ModelConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        use serde::de::Error;
        let mut fields = Map::deserialize(deserializer)?;
        let kind = fields.remove(KIND).unwrap_or_else(|| "gpt".into());
        let fields = Value::Object(fields);
        let config = match kind.as_str() {
            Some("gpt") => serde_json::from_value(fields).map(ModelConfig::Gpt),
            Some("recurrent") => serde_json::from_value(fields).map(ModelConfig::Recurrent),
            Some("bert") => serde_json::from_value(fields).map(ModelConfig::Bert),
            Some("encoder-decoder") => serde_json::from_value(fields).map(ModelConfig::EncoderDecoder),
            _ => {
                return Err(Error::custom(format!(
                    "unknown model {kind}, expected gpt, recurrent, bert or encoder-decoder"
                )));
            }
        };
        config.map_err(Error::custom)
    }
}

impl From<GptConfig> for ModelConfig {
    fn from(config: GptConfig) -> Self {
        ModelConfig::Gpt(config)
    }
}

impl From<RecurrentLmConfig> for ModelConfig {
    fn from(config: RecurrentLmConfig) -> Self {
        ModelConfig::Recurrent(config)
    }
}

impl From<BertConfig> for ModelConfig {
    fn from(config: BertConfig) -> Self {
        ModelConfig::Bert(config)
    }
}

impl From<EncoderDecoderConfig> for ModelConfig {
    fn from(config: EncoderDecoderConfig) -> Self {
        ModelConfig::EncoderDecoder(config)
    }
}

/// Evaluates the same expression for the shape of any kind.
macro_rules! of_any {
    ($model:expr, $config:ident => $value:expr) => {
        match $model {
            ModelConfig::Gpt($config) => $value,
            ModelConfig::Recurrent($config) => $value,
            ModelConfig::Bert($config) => $value,
            ModelConfig::EncoderDecoder($config) => $value,
        }
    };
}

impl ModelConfig {
    /// Checks that such a model exists.
    ///
    /// # Errors
    /// Says what is wrong with the shape.
    pub fn validate(&self) -> Result<()> {
        of_any!(self, config => config.validate())
    }

    /// This shape with the fields of a JSON object put in; if that names another kind, the fields are put into its default
    /// shape.
    ///
    /// # Errors
    /// If it is no JSON object, a field is unknown or of another type, or the result is no valid shape.
    pub fn with_json(&self, json: &str) -> Result<Self> {
        let invalid = |error: serde_json::Error| Error::Configuration(error.to_string());
        let given: Map<String, Value> = serde_json::from_str(json).map_err(invalid)?;
        let own = serde_json::to_value(self).expect("a configuration is plain data");
        let same = given.get(KIND).is_none_or(|kind| *kind == own[KIND]);
        let config: ModelConfig = match same {
            true => super::merged(self, json)?,
            false => serde_json::from_value(Value::Object(given)).map_err(invalid)?,
        };
        config.validate()?;
        Ok(config)
    }

    /// The number of trained numbers.
    pub fn parameters(&self) -> usize {
        of_any!(self, config => config.parameters())
    }

    /// The trained tensors.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn parameter_list(&self) -> Result<Vec<Parameter>> {
        let trace = Trace::new();
        match self {
            ModelConfig::Gpt(config) => drop(Gpt::new(&trace, config)?),
            ModelConfig::Recurrent(config) => drop(RecurrentLm::new(&trace, config)?),
            ModelConfig::Bert(config) => drop(Bert::new(&trace, config)?),
            ModelConfig::EncoderDecoder(config) => drop(EncoderDecoder::new(&trace, config)?),
        }
        Ok(trace.parameters().into_iter().map(|(parameter, _)| parameter).collect())
    }

    /// One training step; its inputs are those of the kind.
    ///
    /// # Errors
    /// If the shape or the optimizer is not valid.
    pub fn train_step(&self, batch: usize, optimizer: &Optimizer, clip: Option<f64>) -> Result<TrainStep> {
        of_any!(self, config => config.train_step(batch, optimizer, clip))
    }

    /// The output `loss` in evaluating mode, on the inputs of a training step.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn evaluation(&self, batch: usize) -> Result<Program> {
        of_any!(self, config => config.evaluation(batch))
    }

    /// The loss on the inputs of a training step, which it declares, in the mode of the trace.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn loss(&self, trace: &Trace, batch: usize) -> Result<Tensor> {
        of_any!(self, config => config.loss(trace, batch))
    }

    /// The number of tokens, its own marks included.
    pub fn vocabulary(&self) -> usize {
        of_any!(self, config => config.vocabulary)
    }

    /// Sets the number of tokens, its own marks included.
    pub fn set_vocabulary(&mut self, vocabulary: usize) {
        of_any!(self, config => config.vocabulary = vocabulary);
    }

    /// How many tokens are the model's own and stand for nothing in a text: the mask of a BERT, beginning and end of what
    /// an encoder-decoder writes. They are the last ones, unless the shape says which tokens of the text's they are.
    pub fn marks(&self) -> usize {
        match self {
            ModelConfig::Gpt(_) | ModelConfig::Recurrent(_) => 0,
            ModelConfig::Bert(config) => usize::from(config.mask_token.is_none()),
            ModelConfig::EncoderDecoder(config) => {
                usize::from(config.beginning.is_none()) + usize::from(config.end.is_none())
            }
        }
    }

    /// Dropout probability.
    pub fn dropout(&self) -> f64 {
        of_any!(self, config => config.dropout)
    }

    /// Sets the dropout probability.
    pub fn set_dropout(&mut self, dropout: f64) {
        of_any!(self, config => config.dropout = dropout);
    }

    /// Blocks (of an encoder-decoder: on each side).
    pub fn layers(&self) -> usize {
        of_any!(self, config => config.layers)
    }

    /// d.
    pub fn width(&self) -> usize {
        of_any!(self, config => config.width)
    }

    /// Attention heads in each block; none without attention.
    pub fn heads(&self) -> Option<usize> {
        match self {
            ModelConfig::Gpt(config) => Some(config.heads),
            ModelConfig::Recurrent(_) => None,
            ModelConfig::Bert(config) => Some(config.heads),
            ModelConfig::EncoderDecoder(config) => Some(config.heads),
        }
    }

    /// Whether training hands states from step to step, so that a batch must go on where the one before ended.
    pub fn carries_states(&self) -> bool {
        matches!(self, ModelConfig::Recurrent(_))
    }

    /// Logits `[batch, length, vocabulary]` of the token that follows each position of tokens `i32[batch, length]`; none of a
    /// model that does not continue a text.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn next_tokens(&self, tokens: &Tensor) -> Result<Option<Tensor>> {
        Ok(match self {
            ModelConfig::Gpt(config) => Some(Gpt::new(tokens.trace(), config)?.forward(tokens)),
            ModelConfig::Recurrent(config) => Some(RecurrentLm::new(tokens.trace(), config)?.forward(tokens)),
            ModelConfig::Bert(_) | ModelConfig::EncoderDecoder(_) => None,
        })
    }

    /// A chunk of a text after what was read before, see [`GptConfig::continuation`]; none of a model without caches.
    ///
    /// # Errors
    /// If the shape is not valid, or no chunk can be so.
    pub fn continuation(&self, trace: &Trace, batch: usize, chunk: Chunk) -> Result<Option<Program>> {
        match self {
            ModelConfig::Gpt(config) => config.continuation(trace, batch, chunk).map(Some),
            ModelConfig::Recurrent(_) | ModelConfig::Bert(_) | ModelConfig::EncoderDecoder(_) => Ok(None),
        }
    }

    /// Tokens of a text that it reads at once.
    pub fn context(&self) -> usize {
        match self {
            ModelConfig::Gpt(config) => config.context,
            ModelConfig::Recurrent(config) => config.context,
            ModelConfig::Bert(config) => config.context,
            ModelConfig::EncoderDecoder(config) => config.source_length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_the_kind_and_without_it_a_decoder_is_meant() {
        let read = |json: &str| serde_json::from_str::<ModelConfig>(json).map_err(|error| error.to_string());
        let gpt = GptConfig { layers: 3, ..GptConfig::default() };
        assert_eq!(read(r#"{"layers": 3}"#), Ok(gpt.clone().into()));
        assert_eq!(read(r#"{"model": "gpt", "layers": 3}"#), Ok(gpt.clone().into()));
        let bert = BertConfig { layers: 3, ..BertConfig::default() };
        assert_eq!(read(r#"{"model": "bert", "layers": 3}"#), Ok(bert.clone().into()));
        // A number that is easily read as its neighbour.
        let odd = BertConfig { epsilon: 1e245, ..BertConfig::default() };
        for config in [gpt.into(), bert.into(), odd.into(), EncoderDecoderConfig::default().into()] {
            let config: ModelConfig = config;
            assert_eq!(read(&serde_json::to_string(&config).expect("plain data")), Ok(config));
        }
        assert!(read(r#"{"model": "rnn"}"#).is_err_and(|error| error.contains("unknown model \"rnn\"")));
        assert!(read(r#"{"model": "bert", "tied": true}"#).is_err_and(|error| error.contains("`tied`")));
    }

    #[test]
    fn another_kind_starts_from_its_own_default() {
        let tiny = ModelConfig::from(GptConfig { layers: 1, ..GptConfig::default() });
        let bert = tiny.with_json(r#"{"model": "bert", "width": 64}"#).expect("valid");
        assert_eq!(bert, BertConfig { width: 64, ..BertConfig::default() }.into());
        let same = tiny.with_json(r#"{"model": "gpt", "width": 64}"#).expect("valid");
        assert_eq!(same, GptConfig { layers: 1, width: 64, ..GptConfig::default() }.into());
    }
}
