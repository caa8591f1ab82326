//! Continuing a text: the model gives logits for the next token, the sampler picks one, and so on.
//!
//! The model sees the last `context` tokens. It is one program of the fixed shape `[1, context]`: a shorter text is
//! padded on the right, where no earlier position looks, and the logits of its last token are read.

use crate::checkpoint::Checkpoint;
use crate::compile::{Compiled, Target, compile};
use crate::models::{Gpt, GptConfig};
use crate::sample::Sampler;
use crate::text::CharTokenizer;
use crate::trace::{Program, Trace};
use crate::train::{Record, parameters};
use crate::{HostTensor, Result};
use kernfusion_codegen::States;
use kernfusion_ir::DType;

/// A model that writes.
pub struct Generator {
    program: Compiled,
    tokenizer: CharTokenizer,
    context: usize,
}

impl Generator {
    /// A generator on the parameters in `states`, as they are whenever it writes.
    ///
    /// # Errors
    /// If the shape is not valid or the program cannot be compiled.
    pub fn new(config: &GptConfig, tokenizer: CharTokenizer, states: &States, target: &Target) -> Result<Self> {
        let program = compile(&next_logits(config)?.graph, states, target)?;
        Ok(Generator { program, tokenizer, context: config.context })
    }

    /// The model of a checkpoint.
    ///
    /// # Errors
    /// As [`Generator::new`]; if the checkpoint's tensors are not those of its model.
    pub fn from_checkpoint(checkpoint: Checkpoint, target: &Target) -> Result<Self> {
        let Record { config, tokenizer, .. } = Record::read(&checkpoint.meta)?;
        let states = States::new();
        let shapes = parameters::states_of(&next_logits(&config)?.graph);
        let mut tensors = checkpoint.tensors;
        tensors.retain(|name, _| !name.starts_with(parameters::OPTIMIZER));
        parameters::put(&states, &shapes, tensors, "the checkpoint")?;
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
        let mut ids = self.tokens(prompt)?;
        let mut text = String::new();
        for _ in 0..tokens {
            let logits = self.logits(&ids)?;
            let id = sampler.pick(&logits, ids.len() as u64)?;
            let piece = self.tokenizer.decode(&[id])?;
            each(&piece);
            text.push_str(&piece);
            ids.push(id);
        }
        Ok(text)
    }

    fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        Ok(match prompt {
            "" => self.tokenizer.encode("\n").unwrap_or_else(|_| vec![0]),
            prompt => self.tokenizer.encode(prompt)?,
        })
    }
}

/// From `x` of `i32[1, context]` and a `position` to the `logits` of `f32[1, 1, vocabulary]` there.
fn next_logits(config: &GptConfig) -> Result<Program> {
    let trace = Trace::new();
    let x = trace.input("x", [1, config.context], DType::I32);
    let position = trace.input("position", [], DType::I32);
    let logits = Gpt::new(&trace, config)?.forward(&x);
    let start = trace.full([], 0.0, DType::I32);
    let last = logits.dynamic_slice(&[&start, &position, &start], [1, 1, config.vocabulary]);
    trace.finish(&[("logits", &last)])
}
