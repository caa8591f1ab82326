//! Tokens with a meaning of their own, as `generation_config.json` and `config.json` name them.

use super::fields::Fields;
use crate::checkpoint::Meta;
use crate::error::HuggingFaceError;
use crate::text::Tokenizer;
use kernfusion::models::ModelConfig;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file that has the last word.
const GENERATION: &str = "generation_config.json";

/// What masks are called in vocabularies.
const MASKS: [&str; 2] = ["[MASK]", "<mask>"];

/// Tokens with a meaning of their own, by their ids; none that is not named.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SpecialTokens {
    /// What stands before a text.
    pub beginning: Option<i32>,
    /// Each of these ends a text that is written.
    pub ends: Vec<i32>,
    /// What fills up shorter texts.
    pub padding: Option<i32>,
    /// What stands before a text that a decoder writes after an encoder has read one.
    pub decoder_start: Option<i32>,
}

/// One token or several.
#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum Tokens {
    One(i32),
    Several(Vec<i32>),
}

impl SpecialTokens {
    /// Reads them for the model in a folder, whose `config.json` has these fields.
    pub(super) fn read(directory: &Path, config: &Fields) -> Result<Self, HuggingFaceError> {
        let path = directory.join(GENERATION);
        let generation = match path.exists() {
            true => Fields::parse(&super::read(&path)?)
                .map_err(|reason| HuggingFaceError::Content { path: path.clone(), reason })?,
            false => Fields::default(),
        };
        let find = |name: &str| {
            let found = generation.look::<Tokens>(name).or_else(|| config.look(name));
            match found {
                None => vec![],
                Some(Tokens::One(token)) => vec![token],
                Some(Tokens::Several(tokens)) => tokens,
            }
        };
        Ok(SpecialTokens {
            beginning: find("bos_token_id").first().copied(),
            ends: find("eos_token_id"),
            padding: find("pad_token_id").first().copied(),
            decoder_start: find("decoder_start_token_id").first().copied(),
        })
    }

    /// Those of a checkpoint: as an imported model had them, else the end of a text that its tokenizer knows.
    pub fn of_checkpoint(meta: &Meta, tokenizer: Option<&Tokenizer>) -> Self {
        SpecialTokens::imported(meta).unwrap_or_else(|| SpecialTokens {
            ends: tokenizer.and_then(Tokenizer::end).into_iter().collect(),
            ..SpecialTokens::default()
        })
    }

    /// Those of a checkpoint that was imported.
    pub(crate) fn imported(meta: &Meta) -> Option<Self> {
        serde_json::from_value(meta.training["special"].clone()).ok()
    }

    /// Tells the model which tokens are its own: the mask of a BERT, which only the tokenizer names, and what an encoder-decoder
    /// writes first and last.
    pub(super) fn enter(&self, config: &mut ModelConfig, tokenizer: Option<&Tokenizer>) {
        let id = |token: &i32| usize::try_from(*token).ok();
        match config {
            ModelConfig::Bert(config) => {
                let mask = MASKS.iter().find_map(|mask| tokenizer?.id(mask));
                config.mask_token = mask.as_ref().and_then(id);
            }
            ModelConfig::EncoderDecoder(config) => {
                config.beginning = self.decoder_start.as_ref().and_then(id).or(config.beginning);
                config.end = self.ends.first().and_then(id).or(config.end);
            }
            ModelConfig::Gpt(_) | ModelConfig::Recurrent(_) => {}
        }
    }
}
