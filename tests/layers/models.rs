//! Small models of all kinds, with the weights of transformers' own.

use super::judge::check;
use kernfusion::models::{Experts, FeedForwardKind, LatentShape, Positions};
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

#[test]
fn mixtral() {
    let experts = Some(Experts { count: 4, active: 2, noise: 0.0, balance: 0.0 });
    let shape =
        GptConfig { heads: 4, kv_heads: Some(2), hidden: Some(6), experts, ..modern(Pairing::Halves) };
    check_decoder("mixtral", shape);
}

#[test]
fn bert() {
    let config = BertConfig {
        vocabulary: 13,
        context: 8,
        layers: 2,
        heads: 2,
        width: 8,
        hidden: Some(12),
        ..BertConfig::default()
    };
    check("bert", TOLERANCE, |trace, inputs| {
        let (tokens, segments) = (inputs.get("tokens"), inputs.get("segments"));
        let key_padding_mask = inputs.get("real").ne(0);
        Ok(Bert::new(trace, &config)?.forward(&tokens, Some(&segments), Some(&key_padding_mask)))
    });
    check("bert_loss", TOLERANCE, |trace, inputs| {
        let (x, y) = (inputs.get("x"), inputs.get("y"));
        let logits = Bert::new(trace, &config)?.forward(&x, None, None);
        Ok(masked_cross_entropy(&logits, &y, &y.ne(-100)))
    });
}

#[test]
fn encoder_decoder() {
    for (case, norm) in [("encoder_decoder", NormPlace::Post), ("encoder_decoder_pre_norm", NormPlace::Pre)] {
        let config = EncoderDecoderConfig {
            vocabulary: 13,
            source_length: 6,
            target_length: 5,
            layers: 2,
            heads: 2,
            width: 8,
            hidden: Some(12),
            norm,
            ..EncoderDecoderConfig::default()
        };
        check(case, TOLERANCE, |trace, inputs| {
            let (x, lengths, y) = (inputs.get("x"), inputs.get("x_lengths"), inputs.get("y"));
            Ok(EncoderDecoder::new(trace, &config)?.forward(&x, Some(&lengths), &y))
        });
    }
}
