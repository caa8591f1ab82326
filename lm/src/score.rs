//! The probability of a given text: what a model that continues texts would have said to each of its tokens.
//!
//! The text is read in windows of `context` tokens, each of which begins half a context after the one before:
//!
//! ```text
//! context 4, tokens   t0 t1 t2 t3 t4 t5 t6 t7
//! first window        t0 t1 t2 t3             judges t1 t2 t3 t4
//! second window             t2 t3 t4 t5       judges             t5 t6
//! third window                    t4 t5 t6    judges                   t7
//! ```
//!
//! So a token is judged given all tokens before it, or at least half a context of them. The first token has none before it,
//! and is not judged.

use crate::checkpoint::Checkpoint;
use crate::hugging_face::Published;
use crate::record::{Record, parameters};
use crate::text::Tokenizer;
use crate::{Error, Result};
use kernfusion::HostTensor;
use kernfusion::compile::{Compiled, Target, compile};
use kernfusion::loss::token_losses;
use kernfusion::models::ModelConfig;
use kernfusion::trace::{Program, Trace};
use kernfusion_codegen::States;
use kernfusion_ir::DType;

/// A model that says how likely texts are.
pub struct TextScorer {
    program: Compiled,
    tokenizer: Option<Tokenizer>,
    /// Tokens that are possible.
    vocabulary: usize,
    context: usize,
}

/// How likely a text is.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The text.
    pub tokens: Vec<i32>,
    /// ln p of each token but the first, given those before it.
    pub log_probabilities: Vec<f64>,
}

impl Score {
    /// ln p of the text, given its first token.
    pub fn sum(&self) -> f64 {
        self.log_probabilities.iter().sum()
    }

    /// The mean of −ln p.
    pub fn nats_per_token(&self) -> f64 {
        -self.sum() / self.log_probabilities.len() as f64
    }

    /// e^(nats per token): the number of equally likely tokens that would be as hard to guess.
    pub fn perplexity(&self) -> f64 {
        self.nats_per_token().exp()
    }
}

impl TextScorer {
    /// A scorer on the parameters in `states`, as they are whenever it runs.
    ///
    /// # Errors
    /// If the shape is not valid or not that of a model that continues a text, or the program cannot be compiled.
    pub fn new(config: &ModelConfig, tokenizer: Tokenizer, states: &States, target: &Target) -> Result<Self> {
        let vocabulary = tokenizer.vocabulary_size();
        let program = compile(&losses(&Trace::new(), config, vocabulary)?.graph, states, target)?;
        Ok(TextScorer { program, tokenizer: Some(tokenizer), vocabulary, context: config.context() })
    }

    /// A published model, which thinks all of its vocabulary possible, whatever its tokenizer has, if there is one. Its matrices
    /// are kept as [`Target::weights`] says.
    ///
    /// # Errors
    /// As [`TextScorer::new`].
    pub fn from_published(model: &Published, target: &Target) -> Result<Self> {
        let (config, vocabulary) = (model.config(), model.config().vocabulary());
        let restore = |program: &Program| model.states(program, target);
        TextScorer::restored(config, (model.tokenizer().cloned(), vocabulary), target, restore)
    }

    /// The model of a checkpoint, with its adapters merged and its matrices kept as [`Target::weights`] says.
    ///
    /// # Errors
    /// As [`TextScorer::new`]; if the checkpoint's tensors are not those of its model.
    pub fn from_checkpoint(checkpoint: Checkpoint, target: &Target) -> Result<Self> {
        let (config, tokenizer) = Record::model(&checkpoint.meta)?;
        let vocabulary = tokenizer.vocabulary_size();
        let restore = |program: &Program| parameters::restored(checkpoint, program, target);
        TextScorer::restored(&config, (Some(tokenizer), vocabulary), target, restore)
    }

    fn restored(
        config: &ModelConfig,
        (tokenizer, vocabulary): (Option<Tokenizer>, usize),
        target: &Target,
        restore: impl FnOnce(&Program) -> Result<States>,
    ) -> Result<Self> {
        let trace = Trace::new();
        trace.store_matrices(target.stored());
        let program = losses(&trace, config, vocabulary)?;
        let program = compile(&program.graph, &restore(&program)?, target)?;
        Ok(TextScorer { program, tokenizer, vocabulary, context: config.context() })
    }

    /// The tokens of its texts; none of a published model without a tokenizer.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// How likely a text is.
    ///
    /// # Errors
    /// If there is no tokenizer, or it has a character that the model does not know, or as [`TextScorer::score`].
    pub fn score_text(&mut self, text: &str) -> Result<Score> {
        let missing = || Error::Configuration("the model has no tokenizer.json, which texts need".into());
        let tokens = self.tokenizer.as_ref().ok_or_else(missing)?.encode(text)?;
        self.score(&tokens)
    }

    /// How likely the tokens of a text are.
    ///
    /// # Errors
    /// If there are fewer than two, one is not in the vocabulary, memory is short, or the model's numbers have overflowed.
    pub fn score(&mut self, tokens: &[i32]) -> Result<Score> {
        self.check(tokens)?;
        let mut log_probabilities = Vec::with_capacity(tokens.len() - 1);
        let mut start = 0;
        while log_probabilities.len() + 1 < tokens.len() {
            let judged = self.window(&tokens[start..])?;
            log_probabilities.extend_from_slice(&judged[log_probabilities.len() - start..]);
            start += (self.context / 2).max(1);
        }
        if let Some(place) = log_probabilities.iter().position(|p| !p.is_finite()) {
            let (token, p) = (place + 1, log_probabilities[place]);
            let reason =
                format!("the log-probability of token {token} is {p}: the model's numbers have overflowed");
            return Err(Error::Configuration(reason));
        }
        Ok(Score { tokens: tokens.to_vec(), log_probabilities })
    }

    fn check(&self, tokens: &[i32]) -> Result<()> {
        let size = self.vocabulary;
        let unknown = tokens.iter().position(|&token| token < 0 || token as usize >= size);
        let reason = match (tokens.len(), unknown) {
            (0, _) => "the text is empty".into(),
            (_, Some(place)) => {
                format!("id {} at position {place} is not in the vocabulary of {size} tokens", tokens[place])
            }
            (1, _) => "the text has one token: only what follows a token can be judged".into(),
            _ => return Ok(()),
        };
        Err(Error::Configuration(reason))
    }

    /// ln p of each token after the first, within one window.
    fn window(&mut self, tokens: &[i32]) -> Result<Vec<f64>> {
        let length = (tokens.len() - 1).min(self.context);
        let padded = |part: &[i32]| {
            let mut part = part.to_vec();
            part.resize(self.context, 0);
            HostTensor::new([1, self.context], part)
        };
        // What follows on the right is not seen by what stands before.
        let (x, y) = (padded(&tokens[..length]), padded(&tokens[1..=length]));
        let outputs = self.program.run(&[("x", &x), ("y", &y)])?;
        let losses = outputs.get("losses")?.as_f32().expect("losses are f32");
        Ok(losses[..length].iter().map(|&loss| -f64::from(loss)).collect())
    }
}

/// From `x` and the tokens `y` that follow, both `i32[1, context]`, to `losses`, −ln p of each. A vocabulary may be padded; only
/// real tokens are possible.
fn losses(trace: &Trace, config: &ModelConfig, vocabulary: usize) -> Result<Program> {
    let [x, y] = ["x", "y"].map(|name| trace.input(name, [1, config.context()], DType::I32));
    let unfit =
        || Error::Configuration("only a decoder and a recurrent model say how likely a text is".into());
    let logits = config.next_tokens(&x)?.ok_or_else(unfit)?;
    Ok(trace.finish(&[("losses", &token_losses(&logits.narrow(-1, 0, vocabulary), &y))])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::CharTokenizer;
    use kernfusion::models::{BertConfig, GptConfig, RecurrentLmConfig, samples};
    use kernfusion_ir::evaluate::{Precision, evaluate};
    use std::collections::BTreeMap;

    const TEXT: [i32; 15] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9];

    /// Ten tokens; models below have more.
    fn tokenizer() -> Tokenizer {
        Tokenizer::Characters(CharTokenizer::from_text("abcdefghij"))
    }

    fn scorer(config: &ModelConfig, states: &States) -> TextScorer {
        TextScorer::new(config, tokenizer(), states, &Target::cpu().threads(1)).unwrap()
    }

    /// The parameters of a model after `change`.
    fn states(config: &ModelConfig, change: impl Fn(&str, usize, f64) -> f64) -> States {
        let states = States::new();
        for (name, tensor) in losses(&Trace::new(), config, 10).unwrap().initial_parameters(4) {
            let values = tensor.to_f64();
            let values: Vec<_> = values.iter().enumerate().map(|(i, &x)| change(&name, i, x)).collect();
            states.set(&name, &HostTensor::from_f64(&tensor.ty(), &values)).unwrap();
        }
        states
    }

    /// ln p of the last of these tokens given the others, by the reference evaluator on just as many positions.
    fn expected(config: &ModelConfig, states: &States, tokens: &[i32]) -> f64 {
        let (last, before) = tokens.split_last().unwrap();
        let trace = Trace::new();
        let x = trace.input("x", [1, before.len()], DType::I32);
        let logits = config.next_tokens(&x).unwrap().unwrap();
        let program = trace.finish(&[("logits", &logits)]).unwrap();
        let mut inputs: BTreeMap<_, _> =
            states.names().into_iter().map(|name| (name.clone(), states.get(&name).unwrap())).collect();
        inputs.insert("x".into(), HostTensor::new([1, before.len()], before.to_vec()));
        let logits =
            evaluate(&program.graph, &inputs, Precision::Declared).unwrap().remove("logits").unwrap();
        let row = &logits.values[logits.values.len() - config.vocabulary()..][..10];
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row[*last as usize] - sum.ln()
    }

    #[test]
    fn every_kind_of_decoder_agrees_with_the_reference_evaluator() {
        let kinds = samples()
            .into_iter()
            .filter(|(_, config)| matches!(config, ModelConfig::Gpt(_) | ModelConfig::Recurrent(_)));
        let mut seen = 0;
        for (name, config) in kinds {
            assert_eq!(config.context(), 6, "{name}");
            // Larger than a new model's, so that probabilities differ visibly.
            let states = states(&config, |_, _, x| 5.0 * x);
            let score = scorer(&config, &states).score(&TEXT).unwrap();
            assert_eq!(score.log_probabilities.len(), TEXT.len() - 1);
            for (place, &got) in (1..TEXT.len()).zip(&score.log_probabilities) {
                // Windows begin at 0, 3, 6, …; the first that reaches a token judges it.
                let start = place.saturating_sub(6).div_ceil(3) * 3;
                let wanted = expected(&config, &states, &TEXT[start..=place]);
                assert!((got - wanted).abs() < 1e-4, "{name}, token {place}: {got} {wanted}");
            }
            seen += 1;
        }
        assert!(seen >= 6, "{seen}");
    }

    #[test]
    fn a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary() {
        let config =
            GptConfig { vocabulary: 12, context: 4, layers: 1, heads: 1, width: 4, ..GptConfig::default() };
        let config = config.into();
        let mut scorer = scorer(&config, &states(&config, |_, _, _| 0.0));
        let score = scorer.score_text("abcabcjj").unwrap();
        assert!(score.log_probabilities.iter().all(|p| (p + 10f64.ln()).abs() < 1e-6), "{score:?}");
        assert!((score.perplexity() - 10.0).abs() < 1e-5 && (score.sum() + 7.0 * 10f64.ln()).abs() < 1e-5);
    }

    #[test]
    fn a_model_that_only_counts_gives_its_frequencies() {
        let config =
            RecurrentLmConfig { vocabulary: 12, context: 4, width: 4, hidden: 4, ..Default::default() };
        let config = config.into();
        // Token i is as likely as i + 1, of 55.
        let counts =
            states(&config, |name, i, _| if name == "head.bias" { (i as f64 + 1.0).ln() } else { 0.0 });
        let score = scorer(&config, &counts).score(&[0, 9, 4, 0]).unwrap();
        for (got, count) in score.log_probabilities.iter().zip([10.0, 5.0, 1.0]) {
            assert!((got - f64::ln(count / 55.0)).abs() < 1e-6, "{got} {count}");
        }
    }

    #[test]
    fn what_cannot_be_judged_is_refused() {
        let config =
            GptConfig { vocabulary: 12, context: 4, layers: 1, heads: 1, width: 4, ..GptConfig::default() };
        let config = config.into();
        let mut one = scorer(&config, &states(&config, |_, _, x| x));
        let cases: [(&[i32], &str); 4] = [
            (&[], "the text is empty"),
            (&[3], "the text has one token"),
            (&[3, 10], "id 10 at position 1 is not in the vocabulary of 10 tokens"),
            (&[-1, 3], "id -1 at position 0 is not in the vocabulary"),
        ];
        for (tokens, expected) in cases {
            let error = one.score(tokens).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(one.score_text("abz").unwrap_err().to_string().contains("unknown character 'z'"));
        let mut broken = scorer(&config, &states(&config, |_, _, _| f64::NAN));
        assert!(broken.score(&[1, 2]).unwrap_err().to_string().contains("have overflowed"));
        let bert = BertConfig::default().into();
        let states = States::new();
        let error = TextScorer::new(&bert, tokenizer(), &states, &Target::cpu()).err().unwrap();
        assert!(error.to_string().contains("only a decoder and a recurrent model"));
    }
}
