//! Attention of all kinds.

use super::judge::check;
use kernfusion::prelude::*;

const TOLERANCE: f64 = 5e-6;

fn check_heads(case: &'static str, config: AttentionConfig) {
    check(case, TOLERANCE, |trace, inputs| {
        Ok(MultiHeadAttention::new(trace, "attn", &config).forward(&inputs.get("x")))
    });
}

#[test]
fn of_an_input_to_itself() {
    let config = AttentionConfig::causal;
    check_heads("attention_causal", AttentionConfig { qkv_bias: true, ..config(12, 3) });
    check_heads(
        "attention_grouped_window",
        AttentionConfig { kv_heads: 2, mask: AttentionMask::Window(3), ..config(16, 4) },
    );
    check_heads("attention_multi_query", AttentionConfig { kv_heads: 1, qkv_bias: true, ..config(12, 3) });
    check_heads("attention_rope", AttentionConfig { rope: Some(Rope::default()), ..config(16, 2) });
    let halves = Rope { pairing: Pairing::Halves, ..Rope::default() };
    check_heads(
        "attention_rope_halves",
        AttentionConfig { rope: Some(halves), kv_heads: 2, ..config(16, 4) },
    );
}

#[test]
fn to_padded_sequences() {
    let config =
        AttentionConfig { mask: AttentionMask::Full, qkv_bias: true, ..AttentionConfig::causal(12, 3) };
    check("attention_padded", TOLERANCE, |trace, inputs| {
        let (x, key_padding_mask) = (inputs.get("x"), inputs.get("real").ne(0));
        Ok(MultiHeadAttention::new(trace, "attn", &config).forward_with(
            &x,
            Some(&key_padding_mask),
            None,
            None,
        ))
    });
    check("attention_cross", TOLERANCE, |trace, inputs| {
        let (x, memory, key_padding_mask) = (inputs.get("x"), inputs.get("memory"), inputs.get("real").ne(0));
        Ok(CrossAttention::new(trace, "attn", &config).forward(&x, &memory, Some(&key_padding_mask)))
    });
}

#[test]
fn with_latent_keys_and_values() {
    for (case, query_rank) in [("latent_attention", Some(10)), ("latent_attention_full_query", None)] {
        let config = LatentAttentionConfig {
            width: 12,
            heads: 3,
            query_rank,
            kv_rank: 6,
            head_width: 4,
            rope_width: 2,
            value_width: 5,
            rope: Rope::default(),
            mask: AttentionMask::Causal,
            dropout: 0.0,
            epsilon: 1e-6,
            std: 0.02,
            residual_std: 0.02,
        };
        check(case, TOLERANCE, |trace, inputs| {
            Ok(LatentAttention::new(trace, "attn", &config).forward(&inputs.get("x")))
        });
    }
}

#[test]
fn heads_that_do_not_share_evenly_are_refused() {
    let trace = Trace::new();
    let config = AttentionConfig { kv_heads: 2, ..AttentionConfig::causal(12, 3) };
    MultiHeadAttention::new(&trace, "attn", &config);
    let error = trace.finish(&[]).expect_err("3 over 2").to_string();
    assert!(error.contains("3 heads of queries do not share 2 of keys and values evenly"), "{error}");
}
