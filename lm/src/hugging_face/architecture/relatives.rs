//! Relatives of Llama with one idea of their own: OLMo 2, whose norms stand after the branches, Granite, which multiplies by four
//! numbers, and SmolLM3, of which every fourth block does not rotate.

use super::llama::{Absent, LLAMA, TABLE, biases, common, period, with, without_window, written};
use super::qwen::NORMS_OF_QUERIES_AND_KEYS;
use super::{Architecture, decoder};
use crate::hugging_face::fields::Fields;
use crate::hugging_face::layout::{Row, rows};
use kernfusion::models::{GlobalBlocks, GptConfig, Scales};
use kernfusion::nn::{NormPlace, QkNorm};
use serde_json::json;

const NORMS_AFTER_BRANCHES: &[Row] = &[
    rows("blocks.{}.ln1", &["model.layers.{}.post_attention_layernorm"]),
    rows("blocks.{}.ln2", &["model.layers.{}.post_feedforward_layernorm"]),
];

pub(super) const OLMO2: Architecture = Architecture {
    model_type: "olmo2",
    class: "Olmo2ForCausalLM",
    tables: &[NORMS_AFTER_BRANCHES, NORMS_OF_QUERIES_AND_KEYS, TABLE],
    read: |fields| {
        fields.demand("attention_bias", false)?;
        let config = common(fields, &Absent { epsilon: 1e-5, ..Absent::LLAMA })?;
        Ok(GptConfig { norm: NormPlace::Branch, qk_norm: Some(QkNorm::Position), ..config }.into())
    },
    write: |config| with(written(decoder(config)?)?, json!({"attention_bias": false})),
    ..LLAMA
};

pub(super) const GRANITE: Architecture = Architecture {
    model_type: "granite",
    class: "GraniteForCausalLM",
    read: |fields| {
        let mut number = |name| fields.or(name, 1.0);
        let scales = Scales {
            embedding: number("embedding_multiplier")?,
            attention: Some(number("attention_multiplier")?),
            branch: number("residual_multiplier")?,
            logits: 1.0 / number("logits_scaling")?,
        };
        let biases = biases(fields)?;
        Ok(GptConfig { scales, qkv_bias: biases, bias: biases, ..common(fields, &Absent::LLAMA)? }.into())
    },
    write: |config| {
        let config = decoder(config)?;
        let Scales { embedding, attention, branch, logits } = config.scales;
        let more = json!({
            "embedding_multiplier": embedding,
            "attention_multiplier": attention.unwrap_or_else(|| 1.0 / (config.head_width() as f64).sqrt()),
            "residual_multiplier": branch,
            "logits_scaling": 1.0 / logits,
            "attention_bias": config.bias,
            "mlp_bias": config.bias,
        });
        with(written(config)?, more)
    },
    ..LLAMA
};

pub(super) const SMOLLM3: Architecture = Architecture {
    model_type: "smollm3",
    class: "SmolLM3ForCausalLM",
    read: |fields| {
        without_window(fields)?;
        let biases = biases(fields)?;
        let every = unrotated_every(fields)?;
        let absent = Absent { kv_heads: Some(4), base: 2e6, tied: true, ..Absent::LLAMA };
        let global = Some(GlobalBlocks { every, rope: None });
        Ok(GptConfig { global, qkv_bias: biases, bias: biases, ..common(fields, &absent)? }.into())
    },
    write: |config| {
        let config = decoder(config)?;
        let every = config.global.ok_or("all its blocks are alike")?.every;
        let rotates = |number: usize| u8::from(!number.is_multiple_of(every));
        let more = json!({
            "no_rope_layers": (1..=config.layers).map(rotates).collect::<Vec<_>>(),
            "no_rope_layer_interval": every,
            "use_sliding_window": false,
            "attention_bias": config.bias,
            "mlp_bias": config.bias,
        });
        with(written(config)?, more)
    },
    ..LLAMA
};

/// Every how many blocks one does not rotate.
fn unrotated_every(fields: &mut Fields) -> Result<usize, String> {
    let every: usize = fields.or("no_rope_layer_interval", 4)?;
    let Some(rotates) = fields.option::<Vec<u8>>("no_rope_layers")? else { return Ok(every) };
    let is_still: Vec<_> = rotates.iter().map(|rotates| *rotates == 0).collect();
    period(&is_still).map_err(|place| format!("no_rope_layers does not repeat itself: see place {place}"))
}
