//! BERT with the output layer that guesses hidden tokens.

use super::{Architecture, object};
use crate::hugging_face::fields::Fields;
use crate::hugging_face::layout::rows;
use kernfusion::models::{BertConfig, ModelConfig};
use kernfusion::nn::Gelu;
use serde_json::{Map, Value, json};

pub(super) const BERT: Architecture = Architecture {
    model_type: "bert",
    class: "BertForMaskedLM",
    tables: &[&[
        rows("wte", &["bert.embeddings.word_embeddings"]),
        rows("wpe", &["bert.embeddings.position_embeddings"]),
        rows("wse", &["bert.embeddings.token_type_embeddings"]),
        rows("ln_e", &["bert.embeddings.LayerNorm"]),
        rows(
            "blocks.{}.attn.qkv",
            &[
                "bert.encoder.layer.{}.attention.self.query",
                "bert.encoder.layer.{}.attention.self.key",
                "bert.encoder.layer.{}.attention.self.value",
            ],
        ),
        rows("blocks.{}.attn.proj", &["bert.encoder.layer.{}.attention.output.dense"]),
        rows("blocks.{}.ln1", &["bert.encoder.layer.{}.attention.output.LayerNorm"]),
        rows("blocks.{}.mlp.up", &["bert.encoder.layer.{}.intermediate.dense"]),
        rows("blocks.{}.mlp.down", &["bert.encoder.layer.{}.output.dense"]),
        rows("blocks.{}.ln2", &["bert.encoder.layer.{}.output.LayerNorm"]),
        rows("head.dense", &["cls.predictions.transform.dense"]),
        rows("head.norm", &["cls.predictions.transform.LayerNorm"]),
        // The bias alone: the matrix is that of the embedding.
        rows("head", &["cls.predictions"]),
    ]],
    variants: [&[]; 2],
    base: "bert.",
    ties: &[
        &["bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"],
        &["cls.predictions.bias", "cls.predictions.decoder.bias"],
    ],
    extras: &[
        "embeddings.position_ids",
        "pooler.dense.weight",
        "pooler.dense.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    ],
    // As the first ones were written.
    rename: |name| {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    },
    halves: &[],
    read,
    write,
};

fn read(fields: &mut Fields) -> Result<ModelConfig, String> {
    fields.demand("is_decoder", false)?;
    fields.demand("add_cross_attention", false)?;
    fields.demand("tie_word_embeddings", true)?;
    fields.demand("position_embedding_type", "absolute".to_string())?;
    let gelu = match fields.or("hidden_act", "gelu".to_string())?.as_str() {
        "gelu" => Gelu::Erf,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Gelu::Tanh,
        other => return Err(format!("hidden_act {other} is not known, only forms of gelu are")),
    };
    Ok(ModelConfig::Bert(BertConfig {
        vocabulary: fields.or("vocab_size", 30_522)?,
        context: fields.or("max_position_embeddings", 512)?,
        layers: fields.or("num_hidden_layers", 12)?,
        heads: fields.or("num_attention_heads", 12)?,
        width: fields.or("hidden_size", 768)?,
        hidden: Some(fields.or("intermediate_size", 3072)?),
        epsilon: fields.or("layer_norm_eps", 1e-12)?,
        segments: fields.or("type_vocab_size", 2)?,
        gelu,
        ..BertConfig::default()
    }))
}

fn write(config: &ModelConfig) -> Result<Map<String, Value>, String> {
    let ModelConfig::Bert(config) = config else { return Err("it is no BERT".into()) };
    Ok(object(json!({
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_size": config.width,
        "intermediate_size": config.hidden(),
        "hidden_act": match config.gelu { Gelu::Erf => "gelu", Gelu::Tanh => "gelu_new" },
        "layer_norm_eps": config.epsilon,
        "type_vocab_size": config.segments,
        "position_embedding_type": "absolute",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
    })))
}
