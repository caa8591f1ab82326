//! The model shapes that the command line knows by name.

use super::{
    BertConfig, EncoderDecoderConfig, Experts, FeedForwardKind, GptConfig, LatentShape, ModelConfig,
    Positions, RecurrentLmConfig,
};
use crate::nn::{Cell, Gelu, Normalization, Pairing, Rope};
use crate::{Error, Result};

/// A named model shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Preset {
    /// The name, as the command line takes it.
    pub name: &'static str,
    /// One line on what it is.
    pub description: &'static str,
    /// The shape. A tokenizer trained on a text gives `vocabulary` its own size.
    pub config: ModelConfig,
    /// Windows in a training batch.
    pub batch: usize,
}

/// Every preset.
pub fn presets() -> Vec<Preset> {
    let tiny = GptConfig::default();
    let thesis = GptConfig { context: 256, layers: 6, heads: 6, width: 384, ..GptConfig::default() };
    let bert = BertConfig::default();
    let reverser = EncoderDecoderConfig::default();
    vec![
        named("tiny", "trains on characters within a minute", tiny, 12),
        named("thesis", "the 10.8 M parameters of the thesis, on characters", thesis, 64),
        named("gpt2-small", "GPT-2 with 124 M parameters, on byte pairs", gpt2(12, 768, 12), 1),
        named("gpt2-medium", "GPT-2 with 355 M parameters, on byte pairs", gpt2(24, 1024, 16), 1),
        named("gpt2-large", "GPT-2 with 774 M parameters, on byte pairs", gpt2(36, 1280, 20), 1),
        named("gpt2-xl", "GPT-2 with 1.6 G parameters, on byte pairs", gpt2(48, 1600, 25), 1),
        named(
            "llama-tiny",
            "a small Llama: RMSNorm, rotary positions, SwiGLU, heads in pairs",
            llama_tiny(),
            12,
        ),
        named("llama-1b", "a Llama with 1.1 G parameters, the shape of TinyLlama", llama_1b(), 1),
        named("deepseek-tiny", "a small DeepSeek: latent attention, RMSNorm, SwiGLU", deepseek_tiny(), 12),
        named("mixtral-tiny", "a small Mixtral: 8 experts, of which 2 work on a token", mixtral_tiny(), 12),
        named("rnn-tiny", "simple recurrent layers", recurrent(Cell::Rnn), 32),
        named("lstm-tiny", "two layers of LSTM, with states that are carried on", recurrent(Cell::Lstm), 32),
        named("gru-tiny", "two layers of GRU", recurrent(Cell::Gru), 32),
        named("awd-lstm-tiny", "LSTM with dropped weights and regularised activations", awd_lstm(), 32),
        named("bert-tiny", "a small BERT, which fills gaps of a text", bert, 32),
        named("bert-base", "BERT with 110 M parameters, on word pieces", bert_base(), 1),
        named("translate-tiny", "an encoder-decoder, which writes 12 symbols in reverse order", reverser, 64),
    ]
}

fn named(
    name: &'static str,
    description: &'static str,
    config: impl Into<ModelConfig>,
    batch: usize,
) -> Preset {
    Preset { name, description, config: config.into(), batch }
}

/// A GPT-2 with these layers, width and heads (Radford et al., 2019, table 2).
fn gpt2(layers: usize, width: usize, heads: usize) -> GptConfig {
    GptConfig {
        vocabulary: 50_257,
        context: 1024,
        layers,
        heads,
        width,
        qkv_bias: true,
        tied: true,
        gelu: Gelu::Tanh,
        ..GptConfig::default()
    }
}

fn llama_tiny() -> GptConfig {
    GptConfig { kv_heads: Some(2), hidden: Some(344), ..llama() }
}

/// TinyLlama (Zhang et al., 2024, table 1).
fn llama_1b() -> GptConfig {
    GptConfig {
        vocabulary: 32_000,
        context: 2048,
        layers: 22,
        heads: 32,
        kv_heads: Some(4),
        width: 2048,
        hidden: Some(5632),
        ..llama()
    }
}

fn recurrent(cell: Cell) -> RecurrentLmConfig {
    RecurrentLmConfig { cell, ..RecurrentLmConfig::default() }
}

fn awd_lstm() -> RecurrentLmConfig {
    RecurrentLmConfig {
        width: 256,
        dropout: 0.1,
        weight_drop: 0.2,
        activation_penalty: 2.0,
        change_penalty: 1.0,
        tied: true,
        ..RecurrentLmConfig::default()
    }
}

fn mixtral_tiny() -> GptConfig {
    let experts = Some(Experts { count: 8, active: 2, noise: 0.0, balance: 0.01 });
    GptConfig { hidden: Some(172), experts, ..llama_tiny() }
}

fn deepseek_tiny() -> GptConfig {
    let latent =
        LatentShape { query_rank: None, kv_rank: 32, head_width: 32, rope_width: 16, value_width: 32 };
    GptConfig {
        hidden: Some(344),
        latent: Some(latent),
        positions: Positions::Rope(Rope::default()),
        ..llama()
    }
}

/// BERT (Devlin et al., 2018, section 3), with the vocabulary of its English model in lower case.
fn bert_base() -> BertConfig {
    BertConfig {
        vocabulary: 30_522,
        context: 512,
        layers: 12,
        heads: 12,
        width: 768,
        mask_token: Some(103),
        ..BertConfig::default()
    }
}

/// What all of Llama's shapes have in common (Touvron et al., 2023), at the size of `tiny`.
fn llama() -> GptConfig {
    GptConfig {
        bias: false,
        feed_forward: FeedForwardKind::Swiglu,
        normalization: Normalization::Rms,
        positions: Positions::Rope(Rope { pairing: Pairing::Halves, ..Rope::default() }),
        ..GptConfig::default()
    }
}

/// The preset of a name.
///
/// # Errors
/// If there is none; names those that exist.
pub fn preset(name: &str) -> Result<Preset> {
    let known = presets();
    let names: Vec<_> = known.iter().map(|preset| preset.name).collect();
    let unknown =
        || Error::Configuration(format!("there is no preset \"{name}\"; there are {}", names.join(", ")));
    known.into_iter().find(|preset| preset.name == name).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_the_published_ones() {
        let count = |name: &str| preset(name).expect("preset").config;
        assert_eq!(count("thesis").parameters(), 10_788_864);
        let tied = count("thesis").with_json("{\"tied\": true}").expect("valid");
        assert_eq!(tied.parameters(), 10_763_904);
        assert_eq!(count("gpt2-small").parameters(), 124_439_808);
        assert_eq!(count("gpt2-medium").parameters(), 354_823_168);
        assert_eq!(count("gpt2-large").parameters(), 774_030_080);
        assert_eq!(count("gpt2-xl").parameters(), 1_557_611_200);
        assert_eq!(count("llama-1b").parameters(), 1_100_048_384);
        assert_eq!(count("bert-base").parameters(), 109_514_298);
    }

    #[test]
    fn presets_are_valid_and_unknown_names_are_refused() {
        for preset in presets() {
            preset.config.validate().expect(preset.name);
        }
        let error = preset("huge").expect_err("no such preset").to_string();
        let expected = "configuration: there is no preset \"huge\"; there are tiny, thesis, gpt2-small, ";
        assert!(error.starts_with(expected), "{error}");
    }
}
