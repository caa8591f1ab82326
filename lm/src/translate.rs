//! Turning a sequence into another one with an encoder-decoder: greedily, or by beam search.
//!
//! The host extends hypotheses by one token after another; a program of fixed shape gives the probabilities of the next token for
//! all hypotheses of all sources at once. Where no parameter belongs to a position, there are several programs, for texts of a power
//! of two of tokens each, so that a short text does not pay for the longest one.

use crate::checkpoint::Checkpoint;
use crate::hugging_face::Published;
use crate::record::{Record, parameters};
use crate::text::Tokenizer;
use crate::{Error, Result};
use kernfusion::HostTensor;
use kernfusion::compile::{Compiled, Target, compile};
use kernfusion::models::{EncoderDecoderConfig, ModelConfig, Positions};
use kernfusion_codegen::States;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Fewer positions save no time.
const LEAST_LENGTH: usize = 16;

/// A model that turns sequences into others.
pub struct Translator {
    /// By the lengths of source and target.
    programs: BTreeMap<[usize; 2], Compiled>,
    states: States,
    target: Target,
    config: EncoderDecoderConfig,
    sources: usize,
    beams: usize,
    /// Tokens that are written at most.
    longest: usize,
}

/// A beginning of what may be written.
#[derive(Debug, Clone, PartialEq)]
struct Hypothesis {
    tokens: Vec<i32>,
    /// ln of the probability of all its tokens together.
    log_probability: f64,
}

impl Translator {
    /// A translator of up to `sources` sequences at once, on the parameters in `states` as they are whenever it runs. For
    /// each source it keeps the `beams` likeliest hypotheses; with one, it always takes the likeliest token.
    ///
    /// # Errors
    /// If the shape is not valid, either number is 0, or the program cannot be compiled.
    pub fn new(
        config: &EncoderDecoderConfig,
        states: &States,
        target: &Target,
        sources: usize,
        beams: usize,
    ) -> Result<Self> {
        if sources == 0 || beams == 0 {
            let reason = format!("nothing to do for {sources} sources with {beams} beams");
            return Err(Error::Configuration(reason));
        }
        let (programs, states, target) = (BTreeMap::new(), states.fork(), target.clone().start());
        let mut translator = Translator {
            programs,
            states,
            target,
            longest: config.target_length,
            config: config.clone(),
            sources,
            beams,
        };
        // What every text needs, and so whatever is wrong with the model is known now.
        translator.program(translator.lengths(1, 1))?;
        Ok(translator)
    }

    /// Writes at most `tokens` tokens.
    pub fn at_most(mut self, tokens: usize) -> Self {
        self.longest = self.longest.min(tokens);
        self
    }

    /// The model of a checkpoint for one source at a time, and the tokens of its text.
    ///
    /// # Errors
    /// As [`Translator::new`]; if the model is no encoder-decoder, or the checkpoint's tensors are not those of its model.
    pub fn from_checkpoint(
        checkpoint: Checkpoint,
        target: &Target,
        beams: usize,
    ) -> Result<(Self, Tokenizer)> {
        let (config, tokenizer) = Record::model(&checkpoint.meta)?;
        let config = encoder_decoder(config)?;
        let states = parameters::restored(checkpoint, &config.next_token(1)?, target)?;
        Ok((Translator::new(&config, &states, target, 1, beams)?, tokenizer))
    }

    /// A published model for one source at a time, and the tokens of its text.
    ///
    /// # Errors
    /// As [`Translator::new`]; if the model is no encoder-decoder, or has no tokenizer.
    pub fn from_published(model: &Published, target: &Target, beams: usize) -> Result<(Self, Tokenizer)> {
        let config = encoder_decoder(model.config().clone())?;
        let tokenizer = model.needed_tokenizer()?.clone();
        let states = model.states(&config.next_token(1)?, target)?;
        Ok((Translator::new(&config, &states, target, 1, beams)?, tokenizer))
    }

    /// The likeliest sequence found for each source, without the mark of the end: that with the largest product of
    /// probabilities, the mark's included.
    ///
    /// # Errors
    /// If there are more sources than asked for, one is empty or too long, or memory is short.
    pub fn translate(&mut self, sources: &[Vec<i32>]) -> Result<Vec<Vec<i32>>> {
        self.check(sources)?;
        let first = Hypothesis { tokens: vec![], log_probability: 0.0 };
        let mut beams = vec![vec![first]; sources.len()];
        for position in 0..self.longest {
            if beams.iter().flatten().all(|hypothesis| self.is_finished(hypothesis)) {
                break;
            }
            let next = self.next(sources, &beams, position)?;
            for (source, hypotheses) in beams.iter_mut().enumerate() {
                let first = source * self.beams * self.config.vocabulary;
                *hypotheses = self.extended(hypotheses, &next[first..]);
            }
        }
        let best = |hypotheses: Vec<Hypothesis>| hypotheses.into_iter().next().map(|best| best.tokens);
        let end = self.config.end();
        let text = |tokens: Vec<i32>| tokens.into_iter().take_while(|&token| token != end).collect();
        Ok(beams.into_iter().filter_map(best).map(text).collect())
    }

    fn check(&self, sources: &[Vec<i32>]) -> Result<()> {
        let longest = self.config.source_length;
        let unfit = sources.iter().find(|source| source.is_empty() || source.len() > longest);
        let reason = match unfit {
            _ if sources.len() > self.sources => {
                format!("{} sources at once, but the program is for {}", sources.len(), self.sources)
            }
            Some(source) => format!("a source of {} tokens: the model reads 1 to {longest}", source.len()),
            None => return Ok(()),
        };
        Err(Error::Configuration(reason))
    }

    fn is_finished(&self, hypothesis: &Hypothesis) -> bool {
        hypothesis.tokens.last() == Some(&self.config.end())
    }

    /// ln of the probabilities of the next token, `[sources, beams, vocabulary]`; rows without a hypothesis hold anything.
    fn next(&mut self, sources: &[Vec<i32>], beams: &[Vec<Hypothesis>], position: usize) -> Result<Vec<f32>> {
        let longest = sources.iter().map(Vec::len).max().unwrap_or(1);
        let extents = self.lengths(longest, position + 1);
        let [source_length, target_length] = extents;
        let rows = self.sources * self.beams;
        // A row of no source reads one token, so that no softmax is over nothing.
        let (mut x, mut lengths) = (vec![0; rows * source_length], vec![1; rows]);
        let mut written = vec![0; rows * target_length];
        for row in 0..sources.len() * self.beams {
            let source = &sources[row / self.beams];
            x[row * source_length..][..source.len()].copy_from_slice(source);
            lengths[row] = source.len() as i32;
            if let Some(hypothesis) = beams[row / self.beams].get(row % self.beams) {
                let tokens = &hypothesis.tokens[..hypothesis.tokens.len().min(position)];
                written[row * target_length..][..tokens.len()].copy_from_slice(tokens);
            }
        }
        let inputs = [
            ("x", HostTensor::new([rows, source_length], x)),
            ("x_lengths", HostTensor::new([rows], lengths)),
            ("written", HostTensor::new([rows, target_length], written)),
            ("position", HostTensor::new([], vec![position as i32])),
        ];
        let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let outputs = self.program(extents)?.run(&inputs)?;
        let next = outputs.get("log_probabilities")?.as_f32();
        Ok(next.expect("log-probabilities are f32").to_vec())
    }

    /// The lengths of a program that reads `source` tokens and writes `written`.
    fn lengths(&self, source: usize, written: usize) -> [usize; 2] {
        let EncoderDecoderConfig { source_length, target_length, positions, .. } = self.config;
        let least = |tokens: usize, most: usize| match positions {
            Positions::Learned => most,
            _ => tokens.next_power_of_two().max(LEAST_LENGTH).min(most),
        };
        [least(source, source_length), least(written, target_length)]
    }

    fn program(&mut self, lengths: [usize; 2]) -> Result<&mut Compiled> {
        match self.programs.entry(lengths) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let [source_length, target_length] = lengths;
                let config = EncoderDecoderConfig { source_length, target_length, ..self.config.clone() };
                let program = config.next_token(self.sources * self.beams)?;
                Ok(entry.insert(compile(&program.graph, &self.states, &self.target)?))
            }
        }
    }

    /// The likeliest hypotheses of a source after one more token; finished ones stay as they are.
    fn extended(&self, hypotheses: &[Hypothesis], next: &[f32]) -> Vec<Hypothesis> {
        let mut candidates = Vec::new();
        for (hypothesis, row) in hypotheses.iter().zip(next.chunks(self.config.vocabulary)) {
            if self.is_finished(hypothesis) {
                candidates.push(hypothesis.clone());
                continue;
            }
            candidates.extend(row.iter().enumerate().map(|(token, &more)| Hypothesis {
                tokens: [hypothesis.tokens.as_slice(), &[token as i32]].concat(),
                log_probability: hypothesis.log_probability + f64::from(more),
            }));
        }
        // A stable order: of equal ones the first token of the first hypothesis.
        candidates.sort_by(|a, b| order(b.log_probability, a.log_probability));
        candidates.truncate(self.beams);
        candidates
    }
}

fn encoder_decoder(config: ModelConfig) -> Result<EncoderDecoderConfig> {
    match config {
        ModelConfig::EncoderDecoder(config) => Ok(config),
        _ => Err(Error::Configuration("only an encoder-decoder turns a text into another one".into())),
    }
}

/// NaN is below everything.
fn order(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn config() -> EncoderDecoderConfig {
        EncoderDecoderConfig {
            vocabulary: 6,
            source_length: 3,
            target_length: 4,
            layers: 1,
            heads: 2,
            width: 8,
            ..EncoderDecoderConfig::default()
        }
    }

    fn states() -> States {
        let states = States::new();
        for (name, tensor) in config().next_token(1).unwrap().initial_parameters(3) {
            // Larger than a new model's, so that probabilities differ visibly.
            let values: Vec<_> = tensor.to_f64().iter().map(|x| 3.0 * x).collect();
            states.set(&name, &HostTensor::from_f64(&tensor.ty(), &values)).unwrap();
        }
        states
    }

    /// Every sequence that may be written, with ln of its probability by the evaluating program, the likeliest first.
    fn all(source: &[i32]) -> Vec<(Vec<i32>, f64)> {
        let states = states();
        let target = Target::cpu().threads(1);
        let mut program = compile(&config().evaluation(1).unwrap().graph, &states, &target).unwrap();
        let mut found = BTreeMap::new();
        for code in 0..6usize.pow(4) {
            let digits = (0..4).map(|place| (code / 6usize.pow(place) % 6) as i32);
            let tokens: Vec<_> = digits.collect();
            let length = tokens.iter().position(|&token| token == 5).map_or(4, |at| at + 1);
            let mut x = source.to_vec();
            x.resize(3, 0);
            let inputs = [
                ("x", HostTensor::new([1, 3], x)),
                ("x_lengths", HostTensor::new([1], vec![source.len() as i32])),
                ("y", HostTensor::new([1, 4], tokens.clone())),
                ("y_lengths", HostTensor::new([1], vec![length as i32])),
                ("count", HostTensor::new([], vec![length as f32])),
            ];
            let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
            if !found.contains_key(&tokens[..length]) {
                let loss = program.run(&inputs).unwrap().scalar("loss").unwrap();
                found.insert(tokens[..length].to_vec(), -f64::from(loss) * length as f64);
            }
        }
        let total: f64 = found.values().map(|x| x.exp()).sum();
        assert!((total - 1.0).abs() < 1e-4, "probabilities of everything that may be written: {total}");
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        found
    }

    #[test]
    fn wide_beams_find_the_likeliest_sequence_and_a_narrow_one_is_greedy() {
        let states = states();
        let target = Target::cpu().threads(1);
        let sources = [vec![1, 2, 3], vec![2]];
        let mut wide = Translator::new(&config(), &states, &target, 2, 216).unwrap();
        let mut greedy = Translator::new(&config(), &states, &target, 3, 1).unwrap();
        let found = wide.translate(&sources).unwrap();
        let first = greedy.translate(&sources).unwrap();
        for (source, (found, first)) in sources.iter().zip(found.iter().zip(&first)) {
            let all = all(source);
            let without_end =
                |tokens: &[i32]| tokens.iter().copied().take_while(|&token| token != 5).collect::<Vec<_>>();
            assert_eq!(*found, without_end(&all[0].0), "source {source:?}");
            // The first token of the greedy one has the largest share of all sequences.
            let share = |token: i32| -> f64 {
                let begins = |(tokens, _): &&(Vec<i32>, f64)| tokens[0] == token;
                all.iter().filter(begins).map(|(_, x)| x.exp()).sum()
            };
            let likeliest = (0..6).max_by(|&a, &b| share(a).total_cmp(&share(b))).unwrap();
            assert_eq!(first.first().copied().unwrap_or(5), likeliest);
        }
    }

    #[test]
    fn sources_that_do_not_fit_are_refused() {
        let states = states();
        let target = Target::cpu().threads(1);
        let mut translator = Translator::new(&config(), &states, &target, 1, 1).unwrap();
        let mut refused = |sources: &[Vec<i32>]| translator.translate(sources).unwrap_err().to_string();
        assert!(refused(&[vec![1; 4]]).contains("a source of 4 tokens: the model reads 1 to 3"));
        assert!(refused(&[vec![]]).contains("a source of 0 tokens"));
        assert!(refused(&[vec![1], vec![1]]).contains("2 sources at once"));
    }
}
