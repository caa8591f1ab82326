//! Llama, Mistral with its window, and Mixtral with experts.

use super::{Architecture, expect_all, object};
use crate::hugging_face::fields::Fields;
use crate::hugging_face::layout::{Row, rows};
use kernfusion::models::{Experts, FeedForwardKind, GptConfig, ModelConfig, Positions};
use kernfusion::nn::{NormPlace, Normalization, Pairing, Rope, RopeScaling};
use serde::Deserialize;
use serde_json::{Map, Value, json};

const TIES: &[&[&str]] = &[&["model.embed_tokens.weight", "lm_head.weight"]];

/// Of old files: the wavelengths of rotary positions.
const EXTRAS: &[&str] = &["rotary_emb.inv_freq"];

/// All that these have in common stands first; the rows of a network that a model does not have are of no use to it.
const TABLE: &[Row] = &[
    rows("wte", &["model.embed_tokens"]),
    rows("blocks.{}.ln1", &["model.layers.{}.input_layernorm"]),
    rows(
        "blocks.{}.attn.qkv",
        &[
            "model.layers.{}.self_attn.q_proj",
            "model.layers.{}.self_attn.k_proj",
            "model.layers.{}.self_attn.v_proj",
        ],
    ),
    rows("blocks.{}.attn.proj", &["model.layers.{}.self_attn.o_proj"]),
    rows("blocks.{}.ln2", &["model.layers.{}.post_attention_layernorm"]),
    rows("ln_f", &["model.norm"]),
    rows("head", &["lm_head"]),
    rows("blocks.{}.mlp.gate", &["model.layers.{}.mlp.gate_proj"]),
    rows("blocks.{}.mlp.up", &["model.layers.{}.mlp.up_proj"]),
    rows("blocks.{}.mlp.down", &["model.layers.{}.mlp.down_proj"]),
    rows("blocks.{}.mlp.router", &["model.layers.{}.block_sparse_moe.gate"]),
    rows(
        "blocks.{}.mlp.experts.gate_up",
        &[
            "model.layers.{}.block_sparse_moe.experts.{e}.w1",
            "model.layers.{}.block_sparse_moe.experts.{e}.w3",
        ],
    ),
    rows("blocks.{}.mlp.experts.down", &["model.layers.{}.block_sparse_moe.experts.{e}.w2"]),
];

pub(super) const LLAMA: Architecture = Architecture {
    model_type: "llama",
    class: "LlamaForCausalLM",
    table: TABLE,
    variants: [&[]; 2],
    base: "model.",
    ties: TIES,
    extras: EXTRAS,
    rename: |name| name,
    read: |fields| read(fields, Kind::Llama),
    write: |config| write(config, Kind::Llama),
};

pub(super) const MISTRAL: Architecture = Architecture {
    model_type: "mistral",
    class: "MistralForCausalLM",
    read: |fields| read(fields, Kind::Mistral),
    write: |config| write(config, Kind::Mistral),
    ..LLAMA
};

pub(super) const MIXTRAL: Architecture = Architecture {
    model_type: "mixtral",
    class: "MixtralForCausalLM",
    read: |fields| read(fields, Kind::Mixtral),
    write: |config| write(config, Kind::Mixtral),
    ..LLAMA
};

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Llama,
    Mistral,
    Mixtral,
}

/// How positions rotate; `type` is what older files say in place of `rope_type`.
#[derive(Default, Deserialize)]
struct RopeParameters {
    rope_theta: Option<f64>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
}

impl RopeParameters {
    fn scaling(&self) -> Result<Option<RopeScaling>, String> {
        let kind = self.rope_type.as_deref().unwrap_or("default");
        let without = |name: &str| format!("rope_type {kind} without a {name} cannot be computed");
        let needed = |name: &str, value: Option<f64>| value.ok_or_else(|| without(name));
        let factor = || needed("factor", self.factor);
        match kind {
            "default" => Ok(None),
            "linear" => Ok(Some(RopeScaling::Linear { factor: factor()? })),
            "llama3" => Ok(Some(RopeScaling::Llama3 {
                factor: factor()?,
                low: needed("low_freq_factor", self.low_freq_factor)?,
                high: needed("high_freq_factor", self.high_freq_factor)?,
                context: self
                    .original_max_position_embeddings
                    .ok_or_else(|| without("original_max_position_embeddings"))?,
            })),
            _ => Err(format!("rope_type {kind} is not known, only default, linear and llama3 are")),
        }
    }
}

/// The parameters of rotary positions, as they are written.
fn rope_parameters(rope: &Rope) -> Value {
    let base = rope.base;
    match rope.scaling {
        None => json!({"rope_type": "default", "rope_theta": base}),
        Some(RopeScaling::Linear { factor }) => {
            json!({"rope_type": "linear", "rope_theta": base, "factor": factor})
        }
        Some(RopeScaling::Llama3 { factor, low, high, context }) => json!({
            "rope_type": "llama3",
            "rope_theta": base,
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": context,
        }),
    }
}

fn read(fields: &mut Fields, kind: Kind) -> Result<ModelConfig, String> {
    let activation: String = fields.or("hidden_act", "silu".into())?;
    let feed_forward = match activation.as_str() {
        "silu" | "swish" => FeedForwardKind::Swiglu,
        other => return Err(format!("hidden_act {other} is not known, only silu is")),
    };
    // Only Llama has biases; the others' code does not look for these fields.
    let [attention, network] = match kind {
        Kind::Llama => [fields.or("attention_bias", false)?, fields.or("mlp_bias", false)?],
        Kind::Mistral | Kind::Mixtral => [false; 2],
    };
    if attention != network {
        return Err("attention_bias and mlp_bias differ, which cannot be computed here".into());
    }
    // Their defaults differ, but files leave none of these out.
    let (vocabulary, width) = (fields.needed("vocab_size")?, fields.needed("hidden_size")?);
    let heads: usize = fields.needed("num_attention_heads")?;
    let head_width: Option<usize> = fields.option("head_dim")?;
    let kv_heads = fields.or("num_key_value_heads", if kind == Kind::Llama { heads } else { 8 })?;
    Ok(ModelConfig::Gpt(GptConfig {
        vocabulary,
        width,
        heads,
        context: fields.needed("max_position_embeddings")?,
        hidden: Some(fields.needed("intermediate_size")?),
        layers: fields.needed("num_hidden_layers")?,
        kv_heads: (kv_heads != heads).then_some(kv_heads),
        head_width: head_width.filter(|head_width| head_width * heads != width),
        epsilon: fields.or("rms_norm_eps", if kind == Kind::Mixtral { 1e-5 } else { 1e-6 })?,
        tied: fields.or("tie_word_embeddings", false)?,
        positions: Positions::Rope(rope(fields, if kind == Kind::Mixtral { 1e6 } else { 1e4 })?),
        window: window(fields, kind)?,
        experts: experts(fields, kind)?,
        qkv_bias: attention,
        bias: attention,
        feed_forward,
        normalization: Normalization::Rms,
        ..GptConfig::default()
    }))
}

fn rope(fields: &mut Fields, otherwise: f64) -> Result<Rope, String> {
    let (parameters, scaling) = (fields.option("rope_parameters")?, fields.option("rope_scaling")?);
    let base: Option<f64> = fields.option("rope_theta")?;
    fields.demand("partial_rotary_factor", 1.0)?;
    let given: Option<RopeParameters> = if parameters.is_some() { parameters } else { scaling };
    let given = given.unwrap_or_default();
    if let Some(factor) = given.partial_rotary_factor.filter(|factor| *factor != 1.0) {
        return Err(format!("partial_rotary_factor is {factor}, but only whole heads can be rotated here"));
    }
    let base = given.rope_theta.or(base).unwrap_or(otherwise);
    Ok(Rope { base, pairing: Pairing::Halves, scaling: given.scaling()? })
}

fn window(fields: &mut Fields, kind: Kind) -> Result<Option<usize>, String> {
    match kind {
        // Its code does not look for it.
        Kind::Llama => Ok(None),
        // What Mistral's class takes where nothing is said; null is a word.
        Kind::Mistral if !fields.has("sliding_window") => Ok(Some(4096)),
        Kind::Mistral | Kind::Mixtral => fields.option("sliding_window"),
    }
}

fn experts(fields: &mut Fields, kind: Kind) -> Result<Option<Experts>, String> {
    if kind != Kind::Mixtral {
        return Ok(None);
    }
    let [count, active] = [fields.or("num_local_experts", 8)?, fields.or("num_experts_per_tok", 2)?];
    Ok(Some(Experts { count, active, noise: 0.0, balance: fields.or("router_aux_loss_coef", 0.001)? }))
}

fn write(config: &ModelConfig, kind: Kind) -> Result<Map<String, Value>, String> {
    let ModelConfig::Gpt(config) = config else { return Err("it is no decoder".into()) };
    let Positions::Rope(rope) = config.positions else { return Err("its positions do not rotate".into()) };
    expect_all(&[
        (config.latent.is_none(), "it has latent attention"),
        (config.feed_forward == FeedForwardKind::Swiglu, "its feed-forward networks are not SwiGLU"),
        (config.normalization == Normalization::Rms, "its norms are not RMSNorm"),
        (config.norm == NormPlace::Pre, "its norms stand after the branches"),
        (rope.pairing == Pairing::Halves, "its rotary positions turn adjacent pairs"),
        (config.qkv_bias == config.bias, "only some of its projections have biases"),
        (kind == Kind::Llama || !config.bias, "its projections have biases"),
        (kind != Kind::Llama || config.window.is_none(), "it has a window"),
        ((kind == Kind::Mixtral) == config.experts.is_some(), "it has experts, or lacks them"),
    ])?;
    let mut fields = object(json!({
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "intermediate_size": config.hidden(),
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads(),
        "head_dim": config.head_width(),
        "hidden_act": "silu",
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.epsilon,
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.dropout,
        // Where older versions and newer ones look for it.
        "rope_theta": rope.base,
        "rope_parameters": rope_parameters(&rope),
    }));
    let more = match (kind, config.experts) {
        (Kind::Llama, _) => json!({"attention_bias": config.bias, "mlp_bias": config.bias}),
        (_, None) => json!({"sliding_window": config.window}),
        (_, Some(experts)) => json!({
            "sliding_window": config.window,
            "num_local_experts": experts.count,
            "num_experts_per_tok": experts.active,
            "router_aux_loss_coef": experts.balance,
        }),
    };
    fields.extend(object(more));
    Ok(fields)
}
