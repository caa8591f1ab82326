//! The two experiments of the thesis that this project began with, each as a run and a report.
//!
//! * *Verification*: without dropout, the same first parameters and the same windows in the same order as PyTorch. What
//!   PyTorch needs is a [`Handover`], what it gives back a [`Reference`]; a [`Deviation`] says how far two curves are apart.
//! * *Pre-training*: with dropout, and prompts continued while the model learns.
//!
//! A run's [`Curve`] is read from its log, so that one that was resumed is whole. Reports are pages of HTML that need
//! nothing else: plots are drawn into them.

mod curve;
mod deviation;
mod handover;
mod reference;
mod report;
mod thesis;

pub use curve::{Curve, Written};
pub use deviation::Deviation;
pub use handover::Handover;
pub use reference::{Reference, ReferenceError};
pub use report::{Measured, Report, pretraining_report, verification_report};
pub use thesis::{THESIS, Thesis, ThesisFigures};

use kernfusion::optim::{Optimizer, Schedule};
use kernfusion_lm::record::Settings;
use kernfusion_lm::text::{Order, Split, Tokenizer};
use kernfusion_lm::{Error, Result};

/// The learning rate of both experiments.
const LEARNING_RATE: f64 = 3e-4;

/// Steps of the thesis' verification.
pub const VERIFICATION_STEPS: u64 = 1000;

/// Steps of its pre-training.
pub const PRETRAINING_STEPS: u64 = 2500;

/// Its dropout probability there.
pub const PRETRAINING_DROPOUT: f64 = 0.3;

/// How many prompts are continued.
const PROMPTS: usize = 5;

/// The most characters of a prompt.
const PROMPT_CHARACTERS: usize = 24;

/// AdamW with β 0.9 and 0.999, ε 10⁻⁸ and decay 0.01, no clipping, no schedule.
fn settings(steps: u64, batch: usize, seed: u64) -> Settings {
    Settings {
        steps,
        batch,
        seed,
        optimizer: Optimizer::adamw(LEARNING_RATE),
        schedule: Schedule::Constant,
        clip: None,
        order: Order::Random,
        ..Settings::default()
    }
}

/// The settings of a verification: losses and nothing else.
pub fn verification_settings(steps: u64, batch: usize, seed: u64) -> Settings {
    Settings { validate_every: 0, validation_batches: 0, sample_tokens: 0, ..settings(steps, batch, seed) }
}

/// The settings of a pre-training: every 500 steps each prompt is continued by 100 tokens, always the likeliest.
pub fn pretraining_settings(steps: u64, batch: usize, seed: u64, prompts: Vec<String>) -> Settings {
    Settings {
        validate_every: 100,
        sample_every: 500,
        sample_tokens: 100,
        sample_prompts: prompts,
        sample_top_k: Some(1),
        ..settings(steps, batch, seed)
    }
}

/// Beginnings of five lines of the text that the model does not see, spread over it: whatever the text, the model knows
/// their characters.
///
/// # Errors
/// If the validation text has no line that is not empty.
pub fn prompts(split: &Split, tokenizer: &Tokenizer) -> Result<Vec<String>> {
    let text = tokenizer.decode(&split.validation)?;
    let lines: Vec<&str> = text.lines().skip(1).map(str::trim).filter(|line| !line.is_empty()).collect();
    let chosen = (0..PROMPTS.min(lines.len())).map(|prompt| lines[prompt * lines.len() / PROMPTS]);
    let prompts: Vec<_> = chosen.map(beginning).collect();
    match prompts.is_empty() {
        true => Err(Error::Configuration("the validation text has no line to take a prompt from".into())),
        false => Ok(prompts),
    }
}

/// As many whole words as are a prompt at most, or a part of the first one.
fn beginning(line: &str) -> String {
    let cut = line.char_indices().nth(PROMPT_CHARACTERS).map_or(line.len(), |(place, _)| place);
    let words = if cut < line.len() { line[..cut].rfind(' ').unwrap_or(cut) } else { cut };
    line[..words].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_lm::text::{CharTokenizer, Corpus};

    #[test]
    fn prompts_are_beginnings_of_unseen_lines() {
        let lines = (0..100).map(|i| format!("line {i} goes on and on and on\n\n"));
        let corpus = Corpus::from_text("lines", lines.collect::<String>()).unwrap();
        let tokenizer = Tokenizer::Characters(CharTokenizer::from_text(corpus.text()));
        let split = corpus.split(tokenizer.encode(corpus.text()).unwrap(), 8).unwrap();
        let prompts = prompts(&split, &tokenizer).unwrap();
        assert_eq!(prompts.len(), 5);
        assert!(
            prompts.iter().all(|prompt| prompt.starts_with("line 9") && prompt.ends_with("goes on and on"))
        );
        assert!(prompts.windows(2).all(|pair| pair[0] != pair[1]), "{prompts:?}");
        assert_eq!(beginning("short"), "short");
        assert_eq!(beginning(&"ä".repeat(30)), "ä".repeat(24));
    }

    #[test]
    fn the_optimizer_is_the_one_of_the_thesis() {
        let settings = verification_settings(7, 64, 3);
        let moments = kernfusion::optim::Moments {
            learning_rate: 3e-4,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            weight_decay: 0.01,
        };
        assert_eq!(settings.optimizer, Optimizer::AdamW(moments));
        assert_eq!((settings.clip, settings.schedule, settings.batch), (None, Schedule::Constant, 64));
    }
}
