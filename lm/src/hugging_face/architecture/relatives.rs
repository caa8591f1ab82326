//! Relatives of Llama with one idea of their own: OLMo 2, whose norms stand after the branches, Granite, which multiplies by four
//! numbers, SmolLM3, of which every fourth block does not rotate, and Phi-3, whose tensors hold several matrices.

use super::llama::{Absent, LLAMA, TABLE, biases, common, period, with, without_window, written};
use super::qwen::NORMS_OF_QUERIES_AND_KEYS;
use super::{Architecture, decoder};
use crate::hugging_face::fields::Fields;
use crate::hugging_face::layout::{Row, rows};
use kernfusion::models::{GlobalBlocks, GptConfig, Scales};
use kernfusion::nn::{NormPlace, QkNorm};
use serde_json::{Value, json};

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

const WHOLE_PROJECTIONS: &[Row] = &[
    rows("blocks.{}.attn.qkv", &["model.layers.{}.self_attn.qkv_proj"]),
    rows("blocks.{}.mlp.gate", &["model.layers.{}.mlp.gate_up_proj.gate"]),
    rows("blocks.{}.mlp.up", &["model.layers.{}.mlp.gate_up_proj.up"]),
];

pub(super) const PHI3: Architecture = Architecture {
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    tables: &[WHOLE_PROJECTIONS, TABLE],
    halves: &[("gate_up_proj.weight", ["gate_up_proj.gate.weight", "gate_up_proj.up.weight"])],
    read: |fields| {
        // Of no effect: dropout in training, and what scaled positions alone need.
        for name in ["resid_pdrop", "embd_pdrop", "original_max_position_embeddings"] {
            let _: Option<Value> = fields.option(name)?;
        }
        let window = fields.option("sliding_window")?;
        Ok(GptConfig { window, ..common(fields, &Absent { epsilon: 1e-5, ..Absent::LLAMA })? }.into())
    },
    write: |_| Err("it is written as a Llama or a Mistral, which compute the same".into()),
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
