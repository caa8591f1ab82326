//! GPT-2, whose linear layers are convolutions of width one, with matrices as [inputs, outputs].

use super::{Architecture, decoder, object};
use crate::hugging_face::fields::Fields;
use crate::hugging_face::layout::{rows, transposed};
use kernfusion::models::{FeedForwardKind, GptConfig, ModelConfig};
use kernfusion::nn::Gelu;
use serde_json::{Map, Value, json};

pub(super) const GPT2: Architecture = Architecture {
    model_type: "gpt2",
    class: "GPT2LMHeadModel",
    tables: &[&[
        rows("wte", &["transformer.wte"]),
        rows("wpe", &["transformer.wpe"]),
        rows("blocks.{}.ln1", &["transformer.h.{}.ln_1"]),
        transposed("blocks.{}.attn.qkv", &["transformer.h.{}.attn.c_attn"]),
        transposed("blocks.{}.attn.proj", &["transformer.h.{}.attn.c_proj"]),
        rows("blocks.{}.ln2", &["transformer.h.{}.ln_2"]),
        transposed("blocks.{}.mlp.up", &["transformer.h.{}.mlp.c_fc"]),
        transposed("blocks.{}.mlp.down", &["transformer.h.{}.mlp.c_proj"]),
        rows("ln_f", &["transformer.ln_f"]),
        rows("head", &["lm_head"]),
    ]],
    variants: [&[]; 2],
    base: "transformer.",
    ties: &[&["transformer.wte.weight", "lm_head.weight"]],
    extras: &[".attn.bias", ".attn.masked_bias"],
    rename: |name| name,
    halves: &[],
    read,
    write,
};

fn read(fields: &mut Fields) -> Result<ModelConfig, String> {
    fields.demand("scale_attn_weights", true)?;
    fields.demand("scale_attn_by_inverse_layer_idx", false)?;
    fields.demand("add_cross_attention", false)?;
    let (feed_forward, gelu) = activation(&fields.or("activation_function", "gelu_new".to_string())?)?;
    Ok(ModelConfig::Gpt(GptConfig {
        vocabulary: fields.or("vocab_size", 50_257)?,
        context: fields.or("n_positions", 1024)?,
        width: fields.or("n_embd", 768)?,
        layers: fields.or("n_layer", 12)?,
        heads: fields.or("n_head", 12)?,
        hidden: fields.option("n_inner")?,
        epsilon: fields.or("layer_norm_epsilon", 1e-5)?,
        tied: fields.or("tie_word_embeddings", true)?,
        qkv_bias: true,
        feed_forward,
        gelu,
        ..GptConfig::default()
    }))
}

fn activation(name: &str) -> Result<(FeedForwardKind, Gelu), String> {
    match name {
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok((FeedForwardKind::Gelu, Gelu::Tanh)),
        "gelu" => Ok((FeedForwardKind::Gelu, Gelu::Erf)),
        "relu" => Ok((FeedForwardKind::Relu, Gelu::Erf)),
        other => Err(format!("activation_function {other} is not known")),
    }
}

fn write(config: &ModelConfig) -> Result<Map<String, Value>, String> {
    let config = decoder(config)?;
    let activation = match (config.feed_forward, config.gelu) {
        (FeedForwardKind::Gelu, Gelu::Tanh) => "gelu_new",
        (FeedForwardKind::Gelu, Gelu::Erf) => "gelu",
        (FeedForwardKind::Relu, _) => "relu",
        _ => return Err("its feed-forward networks have gates".into()),
    };
    Ok(object(json!({
        "vocab_size": config.vocabulary,
        "n_positions": config.context,
        "n_ctx": config.context,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.hidden(),
        "activation_function": activation,
        "layer_norm_epsilon": config.epsilon,
        "tie_word_embeddings": config.tied,
        "attn_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
    })))
}
