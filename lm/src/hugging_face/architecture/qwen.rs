//! Qwen2 (and 2.5), whose queries, keys and values alone have biases, Qwen3, which normalises queries and keys of each head, and Qwen3
//! with experts.

use super::llama::{Absent, LLAMA, TABLE, common, with, without_window, written};
use super::{Architecture, decoder};
use crate::hugging_face::fields::Fields;
use crate::hugging_face::layout::{Row, rows};
use kernfusion::models::{Experts, GptConfig};
use kernfusion::nn::QkNorm;
use serde_json::{Value, json};

/// Norms of queries and keys, of whatever they are over.
pub(super) const NORMS_OF_QUERIES_AND_KEYS: &[Row] = &[
    rows("blocks.{}.attn.q_norm", &["model.layers.{}.self_attn.q_norm"]),
    rows("blocks.{}.attn.k_norm", &["model.layers.{}.self_attn.k_norm"]),
];

const EXPERTS: &[Row] = &[
    rows("blocks.{}.mlp.router", &["model.layers.{}.mlp.gate"]),
    rows(
        "blocks.{}.mlp.experts.gate_up",
        &["model.layers.{}.mlp.experts.{e}.gate_proj", "model.layers.{}.mlp.experts.{e}.up_proj"],
    ),
    rows("blocks.{}.mlp.experts.down", &["model.layers.{}.mlp.experts.{e}.down_proj"]),
];

pub(super) const QWEN2: Architecture = Architecture {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    read: |fields| {
        without_window(fields)?;
        Ok(GptConfig { qkv_bias: true, ..common(fields, &Absent::LLAMA)? }.into())
    },
    write: |config| with(written(decoder(config)?)?, json!({"use_sliding_window": false})),
    ..LLAMA
};

pub(super) const QWEN3: Architecture = Architecture {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    tables: &[NORMS_OF_QUERIES_AND_KEYS, TABLE],
    read: |fields| Ok(qwen3(fields, "intermediate_size")?.into()),
    write: |config| {
        with(written(decoder(config)?)?, json!({"use_sliding_window": false, "attention_bias": false}))
    },
    ..LLAMA
};

pub(super) const QWEN3_MOE: Architecture = Architecture {
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    tables: &[NORMS_OF_QUERIES_AND_KEYS, EXPERTS, TABLE],
    read: |fields| {
        fields.demand("norm_topk_prob", true)?;
        fields.demand("decoder_sparse_step", 1)?;
        if fields.or("mlp_only_layers", vec![])?.first().is_some_and(|_: &usize| true) {
            return Err("mlp_only_layers names blocks without experts, which cannot be computed here".into());
        }
        // That of blocks without experts.
        let _: Option<Value> = fields.option("intermediate_size")?;
        // What newer versions write, and what older ones did.
        let [newer, older] = ["num_local_experts", "num_experts"].map(|name| fields.option(name));
        let count = newer?.or(older?).unwrap_or(128);
        let active = fields.or("num_experts_per_tok", 8)?;
        let balance = fields.or("router_aux_loss_coef", 0.001)?;
        let experts = Some(Experts { count, active, noise: 0.0, balance });
        Ok(GptConfig { experts, ..qwen3(fields, "moe_intermediate_size")? }.into())
    },
    write: |config| {
        let config = decoder(config)?;
        let Some(experts) = config.experts else { return Err("it has no experts".into()) };
        let more = json!({
            "use_sliding_window": false,
            "attention_bias": false,
            "moe_intermediate_size": config.hidden(),
            "num_experts": experts.count,
            "num_experts_per_tok": experts.active,
            "norm_topk_prob": true,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "router_aux_loss_coef": experts.balance,
        });
        with(written(config)?, more)
    },
    ..LLAMA
};

fn qwen3(fields: &mut Fields, hidden: &'static str) -> Result<GptConfig, String> {
    without_window(fields)?;
    fields.demand("attention_bias", false)?;
    let absent = Absent { head_width: Some(128), hidden, ..Absent::LLAMA };
    Ok(GptConfig { qk_norm: Some(QkNorm::Head), ..common(fields, &absent)? })
}
