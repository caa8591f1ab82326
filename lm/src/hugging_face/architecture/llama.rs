//! Llama, Mistral with its window, and Mixtral with experts; and what the decoders after it have in common with it.

use super::{Architecture, decoder, object, rope};
use crate::hugging_face::fields::Fields;
use crate::hugging_face::layout::{Row, rows};
use kernfusion::models::{Experts, FeedForwardKind, GptConfig, Positions};
use kernfusion::nn::Normalization;
use serde_json::{Map, Value, json};

pub(super) const TIES: &[&[&str]] = &[&["model.embed_tokens.weight", "lm_head.weight"]];

/// Of old files: the wavelengths of rotary positions.
pub(super) const EXTRAS: &[&str] = &["rotary_emb.inv_freq"];

/// All that these have in common stands first; the rows of a network that a model does not have are of no use to it.
pub(super) const TABLE: &[Row] = &[
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

/// What Llama's relatives take over.
pub(super) const LLAMA: Architecture = Architecture {
    model_type: "llama",
    class: "LlamaForCausalLM",
    tables: &[TABLE],
    variants: [&[]; 2],
    base: "model.",
    ties: TIES,
    extras: EXTRAS,
    rename: |name| name,
    halves: &[],
    read: |fields| {
        let biases = biases(fields)?;
        Ok(GptConfig { qkv_bias: biases, bias: biases, ..common(fields, &Absent::LLAMA)? }.into())
    },
    write: |config| {
        let config = decoder(config)?;
        with(written(config)?, json!({"attention_bias": config.bias, "mlp_bias": config.bias}))
    },
};

pub(super) const MISTRAL: Architecture = Architecture {
    model_type: "mistral",
    class: "MistralForCausalLM",
    read: |fields| {
        // What its class takes where nothing is said; null is a word.
        let window = if fields.has("sliding_window") { fields.option("sliding_window")? } else { Some(4096) };
        Ok(GptConfig { window, ..common(fields, &Absent { kv_heads: Some(8), ..Absent::LLAMA })? }.into())
    },
    write: |config| {
        let config = decoder(config)?;
        with(written(config)?, json!({"sliding_window": config.window}))
    },
    ..LLAMA
};

pub(super) const MIXTRAL: Architecture = Architecture {
    model_type: "mixtral",
    class: "MixtralForCausalLM",
    read: |fields| {
        let [count, active] = [fields.or("num_local_experts", 8)?, fields.or("num_experts_per_tok", 2)?];
        let balance = fields.or("router_aux_loss_coef", 0.001)?;
        let window = fields.option("sliding_window")?;
        let experts = Some(Experts { count, active, noise: 0.0, balance });
        let absent = Absent { kv_heads: Some(8), base: 1e6, epsilon: 1e-5, ..Absent::LLAMA };
        Ok(GptConfig { window, experts, ..common(fields, &absent)? }.into())
    },
    write: |config| {
        let config = decoder(config)?;
        let Some(experts) = config.experts else { return Err("it has no experts".into()) };
        let more = json!({
            "sliding_window": config.window,
            "num_local_experts": experts.count,
            "num_experts_per_tok": experts.active,
            "router_aux_loss_coef": experts.balance,
        });
        with(written(config)?, more)
    },
    ..LLAMA
};

/// What fields stand for that are left out. Files leave few of these out.
pub(super) struct Absent {
    /// None: as many as heads of queries.
    pub(super) kv_heads: Option<usize>,
    /// None: width / heads.
    pub(super) head_width: Option<usize>,
    pub(super) epsilon: f64,
    /// That of rotary positions.
    pub(super) base: f64,
    pub(super) tied: bool,
    /// The field with the width inside feed-forward networks, which is never left out.
    pub(super) hidden: &'static str,
}

impl Absent {
    pub(super) const LLAMA: Absent = Absent {
        kv_heads: None,
        head_width: None,
        epsilon: 1e-6,
        base: 1e4,
        tied: false,
        hidden: "intermediate_size",
    };
}

/// What the fields say that all of these have.
pub(super) fn common(fields: &mut Fields, absent: &Absent) -> Result<GptConfig, String> {
    match fields.or("hidden_act", "silu".to_string())?.as_str() {
        "silu" | "swish" => {}
        other => return Err(format!("hidden_act {other} is not known, only silu is")),
    }
    Ok(GptConfig {
        positions: Positions::Rope(rope::read(fields, absent.base)?),
        feed_forward: FeedForwardKind::Swiglu,
        normalization: Normalization::Rms,
        ..shape(fields, absent)?
    })
}

/// The extents, of a model without biases.
pub(super) fn shape(fields: &mut Fields, absent: &Absent) -> Result<GptConfig, String> {
    let (width, heads): (usize, usize) =
        (fields.needed("hidden_size")?, fields.needed("num_attention_heads")?);
    let head_width: Option<usize> = fields.option("head_dim")?.or(absent.head_width);
    let kv_heads = fields.option("num_key_value_heads")?.or(absent.kv_heads);
    Ok(GptConfig {
        vocabulary: fields.needed("vocab_size")?,
        width,
        heads,
        context: fields.needed("max_position_embeddings")?,
        hidden: Some(fields.needed(absent.hidden)?),
        layers: fields.needed("num_hidden_layers")?,
        kv_heads: kv_heads.filter(|kv_heads| *kv_heads != heads),
        head_width: head_width.filter(|head_width| head_width.saturating_mul(heads) != width),
        epsilon: fields.or("rms_norm_eps", absent.epsilon)?,
        tied: fields.or("tie_word_embeddings", absent.tied)?,
        bias: false,
        ..GptConfig::default()
    })
}

/// Whether projections have biases: all, or none.
pub(super) fn biases(fields: &mut Fields) -> Result<bool, String> {
    let [attention, network] = [fields.or("attention_bias", false)?, fields.or("mlp_bias", false)?];
    match attention == network {
        true => Ok(attention),
        false => Err("attention_bias and mlp_bias differ, which cannot be computed here".into()),
    }
}

/// Refuses blocks that see a window.
pub(super) fn without_window(fields: &mut Fields) -> Result<(), String> {
    fields.demand("use_sliding_window", false)?;
    // Of no effect without it.
    let _: Option<Value> = fields.option("sliding_window")?;
    let kinds: Vec<String> = fields.or("layer_types", vec![])?;
    match kinds.iter().find(|kind| *kind != FULL) {
        Some(kind) => Err(format!("layer_types has {kind}, but only {FULL} can be computed here")),
        None => Ok(()),
    }
}

/// What `layer_types` has for a block that sees all positions.
pub(super) const FULL: &str = "full_attention";

/// The period of marked blocks, if each period's last block is marked and no other one; else the first block that is not as it should be.
pub(super) fn period(marked: &[bool]) -> Result<usize, usize> {
    let period = marked.iter().position(|marked| *marked).unwrap_or(marked.len()) + 1;
    let wrong = |place: &usize| marked[*place] != (place + 1).is_multiple_of(period);
    (0..marked.len()).find(wrong).map_or(Ok(period), Err)
}

/// The fields that all of these have.
pub(super) fn written(config: &GptConfig) -> Result<Map<String, Value>, String> {
    let Positions::Rope(rope) = config.positions else { return Err("its positions do not rotate".into()) };
    let rotation = json!({
        "hidden_act": "silu",
        // Where older versions and newer ones look for it.
        "rope_theta": rope.base,
        "rope_parameters": rope::parameters(&rope),
    });
    with(written_shape(config), rotation)
}

/// The fields of the extents.
pub(super) fn written_shape(config: &GptConfig) -> Map<String, Value> {
    object(json!({
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "intermediate_size": config.hidden(),
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads(),
        "head_dim": config.head_width(),
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.epsilon,
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.dropout,
    }))
}

/// Fields and some more, which replace those of the same names.
pub(super) fn with(mut fields: Map<String, Value>, more: Value) -> Result<Map<String, Value>, String> {
    fields.extend(object(more));
    Ok(fields)
}
