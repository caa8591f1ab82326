//! Small models of every kind, whose training steps each back end must compute: in `selftest`, on the CUDA emulator, and
//! wherever else a whole model is needed that takes no time.

use super::{
    BertConfig, EncoderDecoderConfig, Experts, FeedForwardKind, GlobalBlocks, GptConfig, LatentShape,
    ModelConfig, Positions, RecurrentLmConfig, Scales,
};
use crate::nn::{Cell, Gelu, NormPlace, Normalization, Pairing, QkNorm, RelativeShape, Rope};

/// One small model of each kind, for tests of back ends and of whatever else takes a model: names and shapes. Each has one or two
/// blocks, a width of 8 or 16 and 11 tokens.
pub fn samples() -> Vec<(&'static str, ModelConfig)> {
    let gpt = GptConfig { vocabulary: 11, context: 6, layers: 2, heads: 2, width: 8, ..GptConfig::default() };
    let dropped = GptConfig { dropout: 0.2, ..gpt.clone() };
    let gpt2 = GptConfig { tied: true, qkv_bias: true, gelu: Gelu::Tanh, ..gpt.clone() };
    let first = GptConfig { positions: Positions::Sinusoidal, norm: NormPlace::Post, ..gpt.clone() };
    let halves = Positions::Rope(Rope { pairing: Pairing::Halves, ..Rope::default() });
    let llama = GptConfig {
        layers: 1,
        heads: 4,
        kv_heads: Some(2),
        width: 16,
        hidden: Some(12),
        bias: false,
        feed_forward: FeedForwardKind::Swiglu,
        normalization: Normalization::Rms,
        positions: halves,
        window: Some(4),
        ..gpt.clone()
    };
    let latent =
        LatentShape { query_rank: Some(6), kv_rank: 4, head_width: 4, rope_width: 2, value_width: 4 };
    let deepseek = GptConfig {
        heads: 2,
        kv_heads: None,
        positions: Positions::Rope(Rope::default()),
        window: None,
        latent: Some(latent),
        ..llama.clone()
    };
    let experts = Some(Experts { count: 3, active: 2, noise: 0.1, balance: 0.1 });
    let mixtral = GptConfig { experts, window: None, ..llama.clone() };
    let qwen3 = GptConfig { qk_norm: Some(QkNorm::Head), window: None, ..llama.clone() };
    let olmo2 = GptConfig { norm: NormPlace::Branch, qk_norm: Some(QkNorm::Position), ..qwen3.clone() };
    let gemma = GptConfig {
        layers: 2,
        window: Some(3),
        global: Some(GlobalBlocks { every: 2, rope: Some(Rope { base: 100.0, ..Rope::default() }) }),
        feed_forward: FeedForwardKind::Geglu,
        gelu: Gelu::Tanh,
        norm: NormPlace::Both,
        normalization: Normalization::RmsPlusOne,
        scales: Scales { embedding: 4.0, attention: Some(0.4), ..Scales::NONE },
        attention_softcap: Some(2.0),
        logit_softcap: Some(3.0),
        tied: true,
        ..qwen3.clone()
    };
    let granite = GptConfig {
        qk_norm: None,
        global: Some(GlobalBlocks { every: 2, rope: None }),
        scales: Scales { branch: 0.5, logits: 0.25, ..Scales::NONE },
        layers: 2,
        ..qwen3.clone()
    };
    let lstm = RecurrentLmConfig {
        vocabulary: 11,
        context: 6,
        width: 8,
        hidden: 12,
        dropout: 0.1,
        weight_drop: 0.2,
        activation_penalty: 0.5,
        change_penalty: 0.5,
        tied: true,
        ..RecurrentLmConfig::default()
    };
    let gru = RecurrentLmConfig { cell: Cell::Gru, dropout: 0.0, tied: false, layers: 1, ..lstm.clone() };
    let bert = BertConfig {
        vocabulary: 11,
        context: 8,
        layers: 1,
        heads: 2,
        width: 8,
        dropout: 0.1,
        ..BertConfig::default()
    };
    let reverser = EncoderDecoderConfig {
        vocabulary: 11,
        source_length: 6,
        target_length: 7,
        layers: 1,
        heads: 2,
        width: 8,
        ..EncoderDecoderConfig::default()
    };
    let t5 = EncoderDecoderConfig {
        decoder_layers: Some(2),
        head_width: Some(6),
        bias: false,
        feed_forward: FeedForwardKind::Geglu,
        norm: NormPlace::Pre,
        normalization: Normalization::Rms,
        positions: Positions::Relative(RelativeShape { buckets: 8, distance: 6 }),
        scaled_attention: false,
        scaled_embedding: false,
        scaled_head: true,
        ..reverser.clone()
    };
    vec![
        ("gpt", gpt.into()),
        ("gpt with dropout", dropped.into()),
        ("gpt2", gpt2.into()),
        ("gpt with sinusoids and norms after branches", first.into()),
        ("llama", llama.into()),
        ("deepseek", deepseek.into()),
        ("mixtral", mixtral.into()),
        ("qwen3", qwen3.into()),
        ("olmo2", olmo2.into()),
        ("gemma", gemma.into()),
        ("granite, every other block without positions", granite.into()),
        ("awd-lstm", lstm.into()),
        ("gru", gru.into()),
        ("bert", bert.into()),
        ("encoder-decoder", reverser.into()),
        ("t5", t5.into()),
    ]
}

/// Decoders that are wide enough for `int4` weights. One has more experts than a few tokens choose, so that tokens are not sorted by expert.
pub fn wide_samples() -> Vec<(&'static str, ModelConfig)> {
    let llama = GptConfig {
        vocabulary: 11,
        context: 6,
        layers: 1,
        heads: 2,
        width: 64,
        hidden: Some(32),
        bias: false,
        feed_forward: FeedForwardKind::Swiglu,
        normalization: Normalization::Rms,
        positions: Positions::Rope(Rope::default()),
        ..GptConfig::default()
    };
    let experts = Some(Experts { count: 12, active: 2, noise: 0.0, balance: 0.0 });
    let mixtral = GptConfig { experts, ..llama.clone() };
    vec![("a wide llama", llama.into()), ("a wide mixtral", mixtral.into())]
}
