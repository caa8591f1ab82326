//! The model of a checkpoint, whatever made it.

use crate::checkpoint::{Checkpoint, Meta, Tensor32};
use crate::record::{Record, parameters};
use crate::text::Tokenizer;
use crate::{Error, Result};
use kernfusion::models::{GptConfig, ModelConfig};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A decoder, its tokens and its parameters. Adapters are merged, and optimizer state is left behind.
#[derive(Debug, Clone)]
pub struct Pretrained {
    /// The shape.
    pub config: GptConfig,
    /// The tokens.
    pub tokenizer: Tokenizer,
    /// The parameters by name.
    pub tensors: BTreeMap<String, Tensor32>,
}

impl Pretrained {
    /// The model of a checkpoint.
    ///
    /// # Errors
    /// If an entry of the checkpoint cannot be understood, its adapters do not fit, or it is no decoder.
    pub fn new(checkpoint: Checkpoint) -> Result<Self> {
        let (config, tokenizer) = Record::model(&checkpoint.meta)?;
        let ModelConfig::Gpt(config) = config else {
            return Err(Error::Configuration("only decoders can be tuned".into()));
        };
        Ok(Pretrained { config, tokenizer, tensors: parameters::merged(checkpoint)? })
    }

    /// The metadata of a checkpoint of this model after `step` steps of tuning, about which `training` says everything.
    pub(super) fn meta(&self, training: Value, step: u64, seed: u64) -> Meta {
        let config = json!(ModelConfig::from(self.config.clone()));
        let tokenizer = json!(self.tokenizer);
        Meta { config, step, seed, tokenizer, training }
    }
}
