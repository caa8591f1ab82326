//! Samples while training: what a model of each kind shows of what it has learnt.

use super::{Record, Settings, batches};
use crate::Result;
use crate::fill::{Filler, GAP};
use crate::generate::Generator;
use crate::sample::Sampler;
use crate::text::validation_windows;
use crate::translate::Translator;
use kernfusion::HostTensor;
use kernfusion::compile::Target;
use kernfusion::models::{BertConfig, ModelConfig};
use kernfusion_codegen::States;

/// Below 1, so that a small model's samples are easier to read.
const TEMPERATURE: f64 = 0.8;

/// Windows that an encoder-decoder reverses, of which the first few are shown.
const REVERSED: usize = 256;
const SHOWN: usize = 4;

/// A text that a model has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// What it goes on from; empty where nothing was given.
    pub prompt: String,
    /// What the model has written.
    pub text: String,
}

/// A compiled program that writes.
pub(super) enum Writer {
    Next(Box<Generator>),
    Bert(Box<Filler>, BertConfig),
    EncoderDecoder(Box<Translator>),
}

impl Writer {
    pub(super) fn new(record: &Record, states: &States, target: &Target) -> Result<Self> {
        let tokenizer = &record.tokenizer;
        Ok(match &record.config {
            config @ (ModelConfig::Gpt(_) | ModelConfig::Recurrent(_)) => {
                let adaptation = &record.settings.adaptation;
                Writer::Next(Box::new(Generator::adapted(
                    adaptation,
                    config,
                    tokenizer.clone(),
                    states,
                    target,
                )?))
            }
            ModelConfig::Bert(config) => {
                let filler = Filler::new(config, tokenizer.vocabulary_size(), states, target)?;
                Writer::Bert(Box::new(filler), config.clone())
            }
            ModelConfig::EncoderDecoder(config) => {
                Writer::EncoderDecoder(Box::new(Translator::new(config, states, target, REVERSED, 1)?))
            }
        })
    }

    /// What it writes after `done` steps; `validation` is the text that it has not seen.
    pub(super) fn samples(&mut self, record: &Record, validation: &[i32], done: u64) -> Result<Vec<Sample>> {
        let context = record.config.context();
        let text = match self {
            Writer::Next(generator) => return continued(generator, record, done),
            Writer::Bert(filler, config) => {
                let windows = validation_windows(validation, 1, context, 1)?.remove(0);
                filled(filler, config, record, &batches::inputs(&record.config, windows, 1, done, 0))?
            }
            Writer::EncoderDecoder(translator) => {
                let (x, _) = validation_windows(validation, REVERSED, context, 1)?.remove(0);
                let sources: Vec<_> = x.chunks(context).map(<[i32]>::to_vec).collect();
                let written = translator.translate(&sources)?;
                reversed(record, &sources, &written)?
            }
        };
        Ok(vec![Sample { prompt: String::new(), text }])
    }
}

/// What follows each of the prompts.
fn continued(generator: &mut Generator, record: &Record, done: u64) -> Result<Vec<Sample>> {
    let Settings { seed, sample_prompts, sample_tokens, sample_top_k, .. } = &record.settings;
    let sampler = Sampler::new(TEMPERATURE, *sample_top_k, None, seed.wrapping_add(done))?;
    let continued = sample_prompts.iter().map(|prompt| {
        let text = generator.generate(prompt, *sample_tokens, &sampler, &mut |_| {})?;
        Ok(Sample { prompt: prompt.clone(), text })
    });
    continued.collect()
}

/// A window with gaps, and what the model makes of them.
fn filled(
    filler: &mut Filler,
    config: &BertConfig,
    record: &Record,
    inputs: &batches::Inputs,
) -> Result<String> {
    let tokens = |tensor: &HostTensor| tensor.to_f64().iter().map(|&x| x as i32).collect::<Vec<_>>();
    let mask = config.mask_token() as i32;
    let (x, y) = (tokens(&inputs[0].1), tokens(&inputs[1].1));
    // Only what is hidden, not what was replaced by another token.
    let x: Vec<_> = x.iter().zip(&y).map(|(&x, &y)| if x == mask { x } else { y }).collect();
    let guessed = filler.fill(&x)?;
    let hidden = x.iter().filter(|&&token| token == mask).count();
    let right = x.iter().zip(&y).zip(&guessed).filter(|((x, y), guess)| **x == mask && y == guess).count();
    let mut given = String::new();
    for token in x {
        match token == mask {
            true => given.push(GAP),
            false => given.push_str(&record.tokenizer.decode(&[token])?),
        }
    }
    let filled = record.tokenizer.decode(&guessed)?;
    Ok(format!("{given}\n--- {right} of {hidden} gaps filled as they were:\n{filled}"))
}

/// How many windows were reversed without a mistake, and the first few.
fn reversed(record: &Record, sources: &[Vec<i32>], written: &[Vec<i32>]) -> Result<String> {
    let right = |(source, written): &(&Vec<i32>, &Vec<i32>)| source.iter().rev().eq(written.iter());
    let exact = sources.iter().zip(written).filter(right).count();
    let mut text = format!("{exact} of {} windows reversed without a mistake", sources.len());
    for (source, written) in sources.iter().zip(written).take(SHOWN) {
        // The marks are no characters.
        let known = |token: &i32| (*token as usize) < record.tokenizer.vocabulary_size();
        let written: Vec<_> = written.iter().copied().filter(known).collect();
        let [source, written] = [record.tokenizer.decode(source)?, record.tokenizer.decode(&written)?];
        text.push_str(&format!("\n{source} → {written}"));
    }
    Ok(text)
}
