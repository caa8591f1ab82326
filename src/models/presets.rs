//! The model shapes that the command line knows by name.

use super::GptConfig;
use crate::nn::Gelu;
use crate::{Error, Result};

/// A named model shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Preset {
    /// The name, as the command line takes it.
    pub name: &'static str,
    /// One line on what it is.
    pub description: &'static str,
    /// The shape. A tokenizer trained on a text gives `vocabulary` its own size.
    pub config: GptConfig,
    /// Windows in a training batch.
    pub batch: usize,
}

/// Every preset.
pub fn presets() -> Vec<Preset> {
    vec![
        Preset {
            name: "tiny",
            description: "trains on characters within a minute",
            config: GptConfig::default(),
            batch: 12,
        },
        Preset {
            name: "thesis",
            description: "the 10.8 M parameters of the thesis, on characters",
            config: GptConfig { context: 256, layers: 6, heads: 6, width: 384, ..GptConfig::default() },
            batch: 64,
        },
        Preset {
            name: "gpt2-small",
            description: "GPT-2 with 124 M parameters, on byte pairs",
            config: GptConfig {
                vocabulary: 50_257,
                context: 1024,
                layers: 12,
                heads: 12,
                width: 768,
                qkv_bias: true,
                tied: true,
                gelu: Gelu::Tanh,
                ..GptConfig::default()
            },
            batch: 1,
        },
    ]
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
        assert_eq!(GptConfig { tied: true, ..count("thesis") }.parameters(), 10_763_904);
        assert_eq!(count("gpt2-small").parameters(), 124_439_808);
    }

    #[test]
    fn presets_are_valid_and_unknown_names_are_refused() {
        for preset in presets() {
            preset.config.validate().expect(preset.name);
        }
        let error = preset("huge").expect_err("no such preset").to_string();
        assert_eq!(error, "configuration: there is no preset \"huge\"; there are tiny, thesis, gpt2-small");
    }
}
