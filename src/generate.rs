//! Continuing a text: the model gives logits for the next token, the sampler picks one, and so on.
//!
//! The model sees the last `context` tokens. It is one program of the fixed shape `[1, context]`: a shorter text is
//! padded on the right, where no earlier position looks, and the logits of its last token are read.

use crate::checkpoint::Checkpoint;
use crate::compile::{Compiled, Target, compile};
use crate::models::ModelConfig;
use crate::sample::Sampler;
use crate::text::{Tokenizer, Unfolding};
use crate::trace::{Program, Trace};
use crate::train::{Record, parameters};
use crate::{Error, HostTensor, Result};
use kernfusion_codegen::States;
use kernfusion_ir::DType;

/// A model that writes.
pub struct Generator {
    program: Compiled,
    tokenizer: Tokenizer,
    context: usize,
}

impl Generator {
    /// A generator on the parameters in `states`, as they are whenever it writes.
    ///
    /// # Errors
    /// If the shape is not valid or not that of a model that continues a text, or the program cannot be compiled.
    pub fn new(config: &ModelConfig, tokenizer: Tokenizer, states: &States, target: &Target) -> Result<Self> {
        Generator::on(&Trace::new(), config, tokenizer, states, target)
    }

    /// As [`Generator::new`], on a trace that says more about the model, such as its adapters.
    ///
    /// # Errors
    /// As [`Generator::new`].
    pub fn on(
        trace: &Trace,
        config: &ModelConfig,
        tokenizer: Tokenizer,
        states: &States,
        target: &Target,
    ) -> Result<Self> {
        let program = compile(&next_logits(trace, config)?.graph, states, target)?;
        Ok(Generator { program, tokenizer, context: config.context() })
    }

    /// The model of a checkpoint, with its adapters merged.
    ///
    /// # Errors
    /// As [`Generator::new`]; if the checkpoint's tensors are not those of its model.
    pub fn from_checkpoint(checkpoint: Checkpoint, target: &Target) -> Result<Self> {
        let (config, tokenizer) = Record::model(&checkpoint.meta)?;
        let states = parameters::restored(checkpoint, &next_logits(&Trace::new(), &config)?, target)?;
        Generator::new(&config, tokenizer, &states, target)
    }

    /// The logits of the token that follows `tokens`, of which there is at least one.
    ///
    /// # Errors
    /// If memory is short.
    pub fn logits(&mut self, tokens: &[i32]) -> Result<Vec<f32>> {
        let mut window = tokens[tokens.len().saturating_sub(self.context)..].to_vec();
        let last = window.len().checked_sub(1).expect("there is a token to continue");
        window.resize(self.context, 0);
        let x = HostTensor::new([1, self.context], window);
        let position = HostTensor::new([], vec![last as i32]);
        let outputs = self.program.run(&[("x", &x), ("position", &position)])?;
        let logits = outputs.get("logits").and_then(HostTensor::as_f32).expect("logits are f32");
        // A vocabulary may be padded; only real tokens can be picked.
        Ok(logits[..self.tokenizer.vocabulary_size()].to_vec())
    }

    /// Whether a prompt can be continued.
    ///
    /// # Errors
    /// Names the first character that the model does not know.
    pub fn check(&self, prompt: &str) -> Result<()> {
        self.tokens(prompt).map(|_| ())
    }

    /// Continues `prompt` by `tokens` tokens and returns them as text; `each` sees each one as it comes. An empty prompt
    /// stands for a line break, or for the first token if the model knows none.
    ///
    /// # Errors
    /// If the prompt has a character that the model does not know, or the model's numbers have overflowed.
    pub fn generate(
        &mut self,
        prompt: &str,
        tokens: usize,
        sampler: &Sampler,
        each: &mut dyn FnMut(&str),
    ) -> Result<String> {
        let mut unfolding = Unfolding::new(&self.tokens(prompt)?);
        let mut text = String::new();
        let mut show = |piece: String| {
            each(&piece);
            text.push_str(&piece);
        };
        for _ in 0..tokens {
            let logits = self.logits(unfolding.tokens())?;
            let id = sampler.pick(&logits, unfolding.tokens().len() as u64)?;
            show(unfolding.push(&self.tokenizer, id)?);
        }
        show(unfolding.finish(&self.tokenizer)?);
        Ok(text)
    }

    fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        let tokens = match prompt {
            "" => self.tokenizer.encode("\n").unwrap_or_default(),
            prompt => self.tokenizer.encode(prompt)?,
        };
        // Not every vocabulary knows line breaks and blanks.
        Ok(if tokens.is_empty() { vec![0] } else { tokens })
    }
}

/// From `x` of `i32[1, context]` and a `position` to the `logits` of `f32[1, 1, vocabulary]` there.
fn next_logits(trace: &Trace, config: &ModelConfig) -> Result<Program> {
    let x = trace.input("x", [1, config.context()], DType::I32);
    let position = trace.input("position", [], DType::I32);
    let unfit = || Error::Configuration("only a decoder and a recurrent model continue a text".into());
    let logits = config.next_tokens(&x)?.ok_or_else(unfit)?;
    let start = trace.full([], 0.0, DType::I32);
    let last = logits.dynamic_slice(&[&start, &position, &start], [1, 1, config.vocabulary()]);
    trace.finish(&[("logits", &last)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::GptConfig;
    use crate::text::CharTokenizer;
    use kernfusion_ir::evaluate::{Precision, evaluate};

    fn config() -> GptConfig {
        // A vocabulary of more tokens than the tokenizer has, as one that was padded.
        GptConfig { vocabulary: 12, context: 6, layers: 1, heads: 2, width: 8, ..GptConfig::default() }
    }

    fn states() -> States {
        let states = States::new();
        for (name, tensor) in config().forward(1, 1).unwrap().initial_parameters(4) {
            // Larger than a new model's, so that logits differ visibly.
            let values: Vec<_> = tensor.to_f64().iter().map(|x| 20.0 * x).collect();
            states.set(name, &HostTensor::from_f64(&tensor.ty(), &values)).unwrap();
        }
        states
    }

    fn generator(states: &States) -> Generator {
        let tokenizer = Tokenizer::Characters(CharTokenizer::from_text("abcdefghi\n"));
        Generator::new(&config().into(), tokenizer, states, &Target::cpu().threads(1)).unwrap()
    }

    /// The logits of the last of so many tokens, from a program of exactly that length.
    fn expected(states: &States, tokens: &[i32]) -> Vec<f64> {
        let program = config().forward(1, tokens.len()).unwrap();
        let mut inputs: std::collections::BTreeMap<_, _> =
            states.names().into_iter().map(|name| (name.clone(), states.get(&name).unwrap())).collect();
        inputs.insert("x".into(), HostTensor::new([1, tokens.len()], tokens.to_vec()));
        let logits =
            evaluate(&program.graph, &inputs, Precision::Declared).unwrap().remove("logits").unwrap();
        logits.values[12 * (tokens.len() - 1)..][..10].to_vec()
    }

    #[test]
    fn padding_is_not_seen_and_the_window_slides() {
        let states = states();
        let mut generator = generator(&states);
        let text = [3, 1, 4, 1, 5, 9, 2, 6, 5];
        for length in 1..=text.len() {
            let logits = generator.logits(&text[..length]).unwrap();
            let seen = &text[length.saturating_sub(6)..length];
            for (a, b) in logits.iter().zip(expected(&states, seen)) {
                assert!((f64::from(*a) - b).abs() < 1e-4 * b.abs().max(1.0), "length {length}: {a} {b}");
            }
        }
    }

    #[test]
    fn a_text_is_a_function_of_the_seed_and_streams() {
        let mut generator = generator(&states());
        let sampler = Sampler::new(20.0, None, None, 7).unwrap();
        let mut streamed = String::new();
        let text = generator.generate("abc", 40, &sampler, &mut |piece| streamed.push_str(piece)).unwrap();
        assert_eq!((text.chars().count(), &streamed), (40, &text));
        assert_eq!(generator.generate("abc", 40, &sampler, &mut |_| {}).unwrap(), text);
        let other = Sampler::new(20.0, None, None, 8).unwrap();
        assert_ne!(generator.generate("abc", 40, &other, &mut |_| {}).unwrap(), text);
        let from_a_line_break = generator.generate("\n", 9, &sampler, &mut |_| {}).unwrap();
        assert_eq!(generator.generate("", 9, &sampler, &mut |_| {}).unwrap(), from_a_line_break);
    }

    #[test]
    fn unknown_characters_are_refused() {
        let mut generator = generator(&states());
        let sampler = Sampler::new(0.0, None, None, 0).unwrap();
        for error in [
            generator.generate("abz", 1, &sampler, &mut |_| {}).unwrap_err(),
            generator.check("abz").unwrap_err(),
        ] {
            assert!(error.to_string().contains("unknown character 'z' at position 2"), "{error}");
        }
    }
}
