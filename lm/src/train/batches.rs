//! What a model of each kind makes of windows of a text: the inputs of its training step.
//!
//! * A decoder reads a window and learns the tokens that follow.
//! * A BERT learns hidden tokens: of each window 15 % are chosen; of these 80 % are replaced by the mask, 10 % by any token,
//!   and 10 % stay (Devlin et al., 2018, section 3.1). The choice is a pure function of (seed, number of the window).
//! * An encoder-decoder learns to write a window, or its beginning, in reverse order: a task that needs every position of the
//!   source and has one right answer.

use crate::text::Batch;
use crate::{Error, Result};
use kernfusion::HostTensor;
use kernfusion::models::{BertConfig, EncoderDecoderConfig, ModelConfig};
use kernfusion_ir::random::philox4x32;

/// Keeps the numbers drawn here apart from all others that are drawn with the same seed: the last word of the Philox
/// counter, which is 0 inside programs, 1 for windows, 2 for sampling and 3 for first values.
const STREAM: u32 = 4;

/// The share of tokens that are to be guessed.
const HIDDEN: f64 = 0.15;

/// The inputs of a training step by name.
pub type Inputs = Vec<(&'static str, HostTensor)>;

/// Checks that a model can learn from windows of its context.
///
/// # Errors
/// If an encoder-decoder cannot write as much as it reads, and the mark of the end.
pub fn check(model: &ModelConfig) -> Result<()> {
    match model {
        ModelConfig::EncoderDecoder(config) if config.target_length <= config.source_length => {
            let (source, target) = (config.source_length, config.target_length);
            let reason = format!(
                "target_length {target} is too short to write {source} tokens and the mark of the end"
            );
            Err(Error::Configuration(reason))
        }
        _ => Ok(()),
    }
}

/// The inputs of a step on `rows` windows, of which `first` is the number of the first one in the run.
pub fn inputs(model: &ModelConfig, (x, y): Batch, rows: usize, seed: u64, first: u64) -> Inputs {
    let shape = [rows, model.context()];
    match model {
        ModelConfig::Gpt(_) | ModelConfig::Recurrent(_) => {
            vec![("x", HostTensor::new(shape, x)), ("y", HostTensor::new(shape, y))]
        }
        ModelConfig::Bert(config) => {
            let (mut hidden, mut mask) = (x.clone(), vec![0f32; x.len()]);
            let windows = hidden.chunks_mut(config.context).zip(mask.chunks_mut(config.context));
            for (row, (tokens, mask)) in windows.enumerate() {
                hide(config, tokens, mask, seed, first.wrapping_add(row as u64));
            }
            let count: f32 = mask.iter().sum();
            let tensors = [("x", hidden), ("y", x)].map(|(name, x)| (name, HostTensor::new(shape, x)));
            let mask = [("mask", HostTensor::new(shape, mask)), ("count", HostTensor::new([], vec![count]))];
            tensors.into_iter().chain(mask).collect()
        }
        ModelConfig::EncoderDecoder(config) => reversal(config, x, rows, seed, first),
    }
}

/// Hides some tokens of a window, and puts 1 into `mask` where one is to be guessed.
fn hide(config: &BertConfig, tokens: &mut [i32], mask: &mut [f32], seed: u64, window: u64) {
    let hidden = ((tokens.len() as f64 * HIDDEN).round() as usize).max(1);
    let mut places: Vec<usize> = (0..tokens.len()).collect();
    for draw in 0..hidden {
        let counter = [draw as u32, window as u32, (window >> 32) as u32, STREAM];
        let [place, fate, token, _] = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
        // One of those that are left (Fisher and Yates).
        places.swap(draw, draw + below(place, tokens.len() - draw));
        let place = places[draw];
        mask[place] = 1.0;
        match below(fate, 10) {
            0..8 => tokens[place] = config.mask_token() as i32,
            8 => tokens[place] = below(token, config.vocabulary) as i32,
            _ => {}
        }
    }
}

/// A number in `0..choices`, from a random word.
fn below(word: u32, choices: usize) -> usize {
    ((u64::from(word) * choices as u64) >> 32) as usize
}

/// Beginnings of windows, and the same in reverse order with the mark of the end. Half of them are whole windows, the others
/// have any length, so that lengths matter.
fn reversal(config: &EncoderDecoderConfig, mut x: Vec<i32>, rows: usize, seed: u64, first: u64) -> Inputs {
    let (source, target) = (config.source_length, config.target_length);
    let (mut y, mut lengths) = (vec![0; rows * target], Vec::with_capacity(rows));
    for (row, (window, written)) in x.chunks_mut(source).zip(y.chunks_mut(target)).enumerate() {
        let number = first.wrapping_add(row as u64);
        let counter = [0, number as u32, (number >> 32) as u32, STREAM];
        let [whole, length, ..] = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
        let length = if below(whole, 2) == 0 { source } else { 1 + below(length, source) };
        let reversed = window[..length].iter().rev().copied().chain([config.end()]);
        written.iter_mut().zip(reversed).for_each(|(place, token)| *place = token);
        window[length..].fill(0);
        lengths.push(length as i32);
    }
    let written: Vec<i32> = lengths.iter().map(|length| length + 1).collect();
    let count = written.iter().sum::<i32>() as f32;
    vec![
        ("x", HostTensor::new([rows, source], x)),
        ("x_lengths", HostTensor::new([rows], lengths)),
        ("y", HostTensor::new([rows, target], y)),
        ("y_lengths", HostTensor::new([rows], written)),
        ("count", HostTensor::new([], vec![count])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(tensor: &HostTensor) -> Vec<i32> {
        tensor.to_f64().iter().map(|&x| x as i32).collect()
    }

    #[test]
    fn tokens_are_hidden_as_in_the_paper() {
        let config = BertConfig { vocabulary: 1001, context: 200, ..BertConfig::default() };
        let rows = 200;
        // Never the mask, so that every replacement shows.
        let text: Vec<i32> = (0..rows as i32 * 200).map(|i| i % 1000).collect();
        let model = config.clone().into();
        let given = inputs(&model, (text.clone(), text.clone()), rows, 7, 0);
        let [x, y] = [ints(&given[0].1), ints(&given[1].1)];
        let mask = given[2].1.to_f64();
        assert_eq!((y.as_slice(), given[3].1.to_f64()), (text.as_slice(), vec![200.0 * 30.0]));
        assert!(mask.chunks(200).all(|row| row.iter().sum::<f64>() == 30.0), "15 % of each window");
        let chosen = mask.iter().filter(|&&mask| mask == 1.0).count() as f64;
        let count =
            |hit: fn(i32, i32) -> bool| x.iter().zip(&y).filter(|(x, y)| hit(**x, **y)).count() as f64;
        let masked = count(|x, _| x == 1000) / chosen;
        let replaced = count(|x, y| x != y && x != 1000) / chosen;
        assert!((masked - 0.8).abs() < 0.02 && (replaced - 0.1).abs() < 0.02, "{masked} {replaced}");
        let unchosen = x.iter().zip(&y).zip(&mask).filter(|(_, mask)| **mask == 0.0);
        assert!(unchosen.into_iter().all(|((x, y), _)| x == y));
        // Window 3 of a run is the same, whatever batch it is in.
        let window = text[600..800].to_vec();
        let alone = inputs(&model, (window.clone(), window), 1, 7, 3);
        assert_eq!(ints(&alone[0].1), x[600..800]);
    }

    #[test]
    fn windows_are_written_in_reverse_with_an_end() {
        let config =
            EncoderDecoderConfig { vocabulary: 12, source_length: 3, target_length: 5, ..Default::default() };
        let windows: Vec<i32> = (0..600).map(|i| 1 + i % 9).collect();
        let given = inputs(&config.clone().into(), (windows.clone(), vec![]), 200, 0, 0);
        let [x, lengths, y, written] = [0, 1, 2, 3].map(|i| ints(&given[i].1));
        for row in 0..200 {
            let length = lengths[row] as usize;
            let text = &windows[3 * row..][..length];
            assert_eq!(&x[3 * row..][..length], text);
            assert!(y[5 * row..][..length].iter().eq(text.iter().rev()));
            assert_eq!((y[5 * row + length], written[row] as usize), (11, length + 1));
        }
        assert_eq!(given[4].1.to_f64(), [f64::from(written.iter().sum::<i32>())]);
        let share = |length| lengths.iter().filter(|&&other| other == length).count() as f64 / 200.0;
        assert!((share(3) - 2.0 / 3.0).abs() < 0.1 && (share(1) - 1.0 / 6.0).abs() < 0.1);
        check(&config.clone().into()).unwrap();
        let short = EncoderDecoderConfig { target_length: 3, ..config };
        assert!(check(&short.into()).unwrap_err().to_string().contains("target_length 3 is too short"));
    }
}
