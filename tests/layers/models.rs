//! Small models of all kinds, with the weights of transformers' own.

use crate::judge::check;
use kernfusion::models::{FeedForwardKind, LatentShape, Positions};
use kernfusion::prelude::*;

const TOLERANCE: f64 = 2e-5;

const SMALL: GptConfig =
    GptConfig { vocabulary: 13, context: 8, layers: 2, heads: 2, width: 8, ..GptConfig::TINY };

fn check_decoder(case: &'static str, config: GptConfig) {
    check(case, TOLERANCE, |trace, inputs| Ok(Gpt::new(trace, &config)?.forward(&inputs.get("tokens"))));
}

#[test]
fn gpt2() {
    check_decoder("gpt2", GptConfig { qkv_bias: true, tied: true, gelu: Gelu::Tanh, ..SMALL });
}

/// What Llama and DeepSeek have in common.
fn modern(pairing: Pairing) -> GptConfig {
    GptConfig {
        hidden: Some(12),
        bias: false,
        feed_forward: FeedForwardKind::Swiglu,
        normalization: Normalization::Rms,
        positions: Positions::Rope(Rope { pairing, ..Rope::default() }),
        ..SMALL
    }
}

#[test]
fn llama() {
    check_decoder("llama", GptConfig { heads: 4, kv_heads: Some(2), ..modern(Pairing::Halves) });
}

#[test]
fn deepseek() {
    let latent =
        LatentShape { query_rank: Some(6), kv_rank: 5, head_width: 4, rope_width: 2, value_width: 3 };
    check_decoder("deepseek", GptConfig { latent: Some(latent), epsilon: 1e-6, ..modern(Pairing::Adjacent) });
}
