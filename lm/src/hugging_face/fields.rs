//! The fields of a `config.json`. Each that changes the mathematics is taken or demanded; none is left out of account silently.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fmt::Display;

/// Fields of a configuration that say nothing about what a trained model computes: names and versions, training, generation
/// defaults, heads for other tasks. Old files have all of those of transformers' generation.
const WITHOUT_EFFECT: &str = "
_attn_implementation_autoset _commit_hash _name_or_path _num_labels architectures attention_dropout
attention_probs_dropout_prob attn_pdrop bad_words_ids begin_suppress_tokens bos_token_id cache_implementation
classifier_dropout decoder_start_token_id diversity_penalty do_sample dropout_rate dtype early_stopping embd_pdrop
encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id
forced_eos_token_id gradient_checkpointing hidden_dropout_prob id2label initializer_factor initializer_range
is_encoder_decoder label2id length_penalty max_length max_window_layers min_length model_type n_ctx
no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states output_past
output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type remove_invalid_values
repetition_penalty reorder_and_upcast_attn resid_pdrop return_dict return_dict_in_generate router_aux_loss_coef
router_jitter_noise sep_token_id summary_activation summary_first_dropout summary_proj_to_labels summary_type
summary_use_proj suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p
torch_dtype torchscript transformers_version typical_p use_bfloat16 use_cache
";

/// The fields that nothing has asked for yet.
#[derive(Default)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// The fields of a JSON object.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map(Fields).map_err(|error| error.to_string())
    }

    /// Those of an object.
    pub(super) fn of(fields: Map<String, Value>) -> Self {
        Fields(fields)
    }

    /// A field, which stays to be asked for; none if it is left out, null or of another type.
    pub(super) fn look<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_value(self.0.get(name)?.clone()).ok()
    }

    /// Whether a field is given, be it as null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// A field; none if it is left out or null.
    pub(super) fn option<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, String> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                serde_json::from_value(value).map(Some).map_err(|error| format!("field {name}: {error}"))
            }
        }
    }

    /// A field, or what it is where it is left out.
    pub(super) fn or<T: DeserializeOwned>(&mut self, name: &str, otherwise: T) -> Result<T, String> {
        Ok(self.option(name)?.unwrap_or(otherwise))
    }

    /// A field that must be there.
    pub(super) fn needed<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, String> {
        self.option(name)?.ok_or_else(|| format!("there is no field {name}"))
    }

    /// Refuses any other value than `only`, which the field also has where it is left out.
    pub(super) fn demand<T>(&mut self, name: &str, only: T) -> Result<(), String>
    where
        T: DeserializeOwned + PartialEq + Display,
    {
        match self.option::<T>(name)? {
            Some(value) if value != only => {
                Err(format!("field {name} is {value}, but only {only} can be computed here"))
            }
            _ => Ok(()),
        }
    }

    /// The names of fields that were not read, that are set, and that may have an effect.
    pub(super) fn left(&self) -> Vec<String> {
        let set = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
        let left = self.0.iter().filter(|(name, value)| {
            set(value) && !WITHOUT_EFFECT.split_whitespace().any(|known| known == name.as_str())
        });
        left.map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_demanded_or_left() {
        let json =
            r#"{"a": 3, "b": null, "c": "x", "scale": false, "new": 1.5, "off": false, "use_cache": true}"#;
        let mut fields = Fields::parse(json).unwrap();
        assert_eq!(fields.needed::<usize>("a"), Ok(3));
        assert_eq!(fields.or("b", 7), Ok(7));
        assert_eq!(fields.needed::<usize>("b"), Err("there is no field b".into()));
        assert!(fields.option::<usize>("c").unwrap_err().starts_with("field c: invalid type"));
        let refused = "field scale is false, but only true can be computed here";
        assert_eq!(fields.demand("scale", true), Err(refused.into()));
        assert_eq!(fields.demand("other", true), Ok(()));
        assert_eq!(fields.left(), ["new"]);
        assert!(Fields::parse("[]").is_err());
    }
}
