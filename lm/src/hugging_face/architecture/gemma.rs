//! Gemma: embeddings that are multiplied by √d, gated GELU, norms that multiply by 1 + weight. Gemma 2 has norms before and after each
//! branch, and soft limits of scores and logits; every other block sees a window. Gemma 3 normalises queries and keys instead, and all
//! blocks but every sixth see a window, in which positions turn faster.

use super::llama::{Absent, FULL, LLAMA, TABLE, period, shape, with, written_shape};
use super::qwen::NORMS_OF_QUERIES_AND_KEYS;
use super::rope::{self, RopeParameters};
use super::{Architecture, decoder};
use crate::hugging_face::fields::Fields;
use crate::hugging_face::layout::{Row, rows};
use kernfusion::models::{FeedForwardKind, GlobalBlocks, GptConfig, Positions, Scales};
use kernfusion::nn::{Gelu, NormPlace, Normalization, QkNorm, Rope};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// What it calls the approximation of GELU by tanh.
const GELU: &str = "gelu_pytorch_tanh";

/// What `layer_types` has for a block that sees a window.
const SLIDING: &str = "sliding_attention";

const NORMS: &[Row] = &[
    rows("blocks.{}.ln1", &["model.layers.{}.input_layernorm"]),
    rows("blocks.{}.ln1_after", &["model.layers.{}.post_attention_layernorm"]),
    rows("blocks.{}.ln2", &["model.layers.{}.pre_feedforward_layernorm"]),
    rows("blocks.{}.ln2_after", &["model.layers.{}.post_feedforward_layernorm"]),
];

pub(super) const GEMMA: Architecture = Architecture {
    model_type: "gemma",
    class: "GemmaForCausalLM",
    read: |fields| {
        // Old files say `gelu` in the one field, and mean the approximation.
        let [named, older] = ["hidden_activation", "hidden_act"].map(|name| fields.option::<String>(name));
        match named?.or(older?).as_deref() {
            None | Some("gelu" | GELU) => {}
            Some(other) => return Err(format!("hidden_act {other} is not known, only {GELU} is")),
        }
        let rope = rope::read(fields, 1e4)?;
        Ok(GptConfig { positions: Positions::Rope(rope), ..common(fields)? }.into())
    },
    write: |config| {
        let config = decoder(config)?;
        let rope = rotation(config)?;
        let more = json!({
            "hidden_act": GELU,
            "hidden_activation": GELU,
            "rope_theta": rope.base,
            "rope_parameters": rope::parameters(&rope),
        });
        with(written_shape(config), more)
    },
    ..LLAMA
};

pub(super) const GEMMA2: Architecture = Architecture {
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    tables: &[NORMS, TABLE],
    read: |fields| {
        let rope = rope::read(fields, 1e4)?;
        let window = if fields.has("sliding_window") { fields.option("sliding_window")? } else { Some(4096) };
        let caps = ["attn_logit_softcapping", "final_logit_softcapping"];
        let [attention, logits] = caps.map(|name| match fields.has(name) {
            true => fields.option(name),
            false => Ok(Some(if name == caps[0] { 50.0 } else { 30.0 })),
        });
        let every = full_every(fields, 2)?;
        Ok(GptConfig {
            positions: Positions::Rope(rope),
            window,
            global: Some(GlobalBlocks { every, rope: Some(rope) }),
            attention_softcap: attention?,
            logit_softcap: logits?,
            ..later(fields)?
        }
        .into())
    },
    write: |config| {
        let config = decoder(config)?;
        let rope = rotation(config)?;
        let more = json!({"rope_theta": rope.base, "rope_parameters": rope::parameters(&rope)});
        with(written_later(config)?, more)
    },
    ..LLAMA
};

pub(super) const GEMMA3: Architecture = Architecture {
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    tables: &[NORMS, NORMS_OF_QUERIES_AND_KEYS, TABLE],
    read: |fields| {
        let window = if fields.has("sliding_window") { fields.option("sliding_window")? } else { Some(4096) };
        // Newer files have a mark before the name.
        let [named, marked] =
            ["sliding_window_pattern", "_sliding_window_pattern"].map(|name| fields.option(name));
        let every = named?.or(marked?).unwrap_or(6);
        let every = full_every(fields, every)?;
        let [local, global] = rotations(fields)?;
        Ok(GptConfig {
            positions: Positions::Rope(local),
            window,
            global: Some(GlobalBlocks { every, rope: Some(global) }),
            qk_norm: Some(QkNorm::Head),
            attention_softcap: fields.option("attn_logit_softcapping")?,
            logit_softcap: fields.option("final_logit_softcapping")?,
            ..later(fields)?
        }
        .into())
    },
    write: |config| {
        let config = decoder(config)?;
        let local = rotation(config)?;
        let global = config.global.and_then(|global| global.rope).ok_or("all its blocks are alike")?;
        let more = json!({
            "rope_parameters": {FULL: rope::parameters(&global), SLIDING: rope::parameters(&local)},
        });
        with(written_later(config)?, more)
    },
    ..LLAMA
};

/// What all three have.
fn common(fields: &mut Fields) -> Result<GptConfig, String> {
    fields.demand("attention_bias", false)?;
    fields.demand("use_bidirectional_attention", false)?;
    let config = shape(fields, &Absent { head_width: Some(256), tied: true, ..Absent::LLAMA })?;
    Ok(GptConfig {
        feed_forward: FeedForwardKind::Geglu,
        gelu: Gelu::Tanh,
        normalization: Normalization::RmsPlusOne,
        scales: Scales { embedding: (config.width as f64).sqrt(), ..Scales::NONE },
        ..config
    })
}

/// What the second and third have.
fn later(fields: &mut Fields) -> Result<GptConfig, String> {
    fields.demand("hidden_activation", GELU.to_string())?;
    // Of older files, and of no effect.
    let _: Option<Value> = fields.option("hidden_act")?;
    let wide: usize = fields.or("query_pre_attn_scalar", 256)?;
    let config = common(fields)?;
    let attention = (wide != config.head_width()).then(|| 1.0 / (wide as f64).sqrt());
    let scales = Scales { attention, ..config.scales };
    Ok(GptConfig { norm: NormPlace::Both, scales, ..config })
}

/// Every how many blocks one sees all positions: as `layer_types` says, or else this number.
fn full_every(fields: &mut Fields, otherwise: usize) -> Result<usize, String> {
    let Some(kinds) = fields.option::<Vec<String>>("layer_types")? else { return Ok(otherwise) };
    if let Some(other) = kinds.iter().find(|kind| ![FULL, SLIDING].contains(&kind.as_str())) {
        return Err(format!("layer_types has {other}, but only {FULL} and {SLIDING} can be computed here"));
    }
    let is_full: Vec<_> = kinds.iter().map(|kind| kind == FULL).collect();
    period(&is_full).map_err(|place| {
        let expected = if is_full[place] { SLIDING } else { FULL };
        format!("layer_types has {} at {place}, where {expected} is expected", kinds[place])
    })
}

/// The rotations of blocks with a window and of those without.
fn rotations(fields: &mut Fields) -> Result<[Rope; 2], String> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct OfKinds {
        full_attention: RopeParameters,
        sliding_attention: RopeParameters,
    }
    let [base, local_base] =
        [("rope_theta", 1e6), ("rope_local_base_freq", 1e4)].map(|(name, base)| fields.or(name, base));
    let mut kinds: OfKinds = fields.or("rope_parameters", OfKinds::default())?;
    if let Some(scaling) = fields.option("rope_scaling")? {
        kinds.full_attention = scaling;
    }
    Ok([kinds.sliding_attention.rope(local_base?)?, kinds.full_attention.rope(base?)?])
}

fn rotation(config: &GptConfig) -> Result<Rope, String> {
    match config.positions {
        Positions::Rope(rope) => Ok(rope),
        _ => Err("its positions do not rotate".into()),
    }
}

/// The fields that the second and third have, but for rotary positions.
fn written_later(config: &GptConfig) -> Result<Map<String, Value>, String> {
    let global = config.global.ok_or("all its blocks are alike")?;
    let kind = |number: usize| if number.is_multiple_of(global.every) { FULL } else { SLIDING };
    let wide = config.scales.attention.map_or(config.head_width(), |scale| scale.powi(-2).round() as usize);
    let more = json!({
        "hidden_activation": GELU,
        "query_pre_attn_scalar": wide,
        "sliding_window": config.window,
        "layer_types": (1..=config.layers).map(kind).collect::<Vec<_>>(),
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.logit_softcap,
    });
    with(written_shape(config), more)
}
