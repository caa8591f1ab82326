//! Reading a text for the logits of its next token: by parts with caches, or as a window.
//!
//! A part is a program of fixed shapes, compiled when it is first needed: one token, or a tile of a prompt, padded on the right,
//! where nobody looks before it is overwritten. How many positions a part sees is a power of two, so that a long text costs a
//! few programs and a short one does not pay for the whole context.

use crate::compile::{Compiled, Target, compile};
use crate::models::{GptConfig, ModelConfig, Part};
use crate::trace::{Program, Trace};
use crate::train::Adaptation;
use crate::{Error, HostTensor, Result};
use kernfusion_codegen::{Outputs, States};
use kernfusion_ir::DType;
use std::collections::BTreeMap;

/// Tokens of a prompt that are read at once.
const TILE: usize = 128;
/// A prompt's last tile has at least so many, unless it is one token.
const SMALLEST_TILE: usize = 8;
/// Positions that every part may see: fewer save no time.
const LEAST_VISIBLE: usize = 64;

/// What gives the logits after a text.
pub(super) enum Reader {
    Parts(Box<Parts>),
    Window(Box<Window>),
}

impl Reader {
    pub(super) fn new(
        config: &ModelConfig,
        adaptation: &Adaptation,
        stored: DType,
        states: &States,
        target: &Target,
    ) -> Result<Self> {
        match config {
            ModelConfig::Gpt(config) => {
                let (config, adaptation) = (config.clone(), adaptation.clone());
                let parts = Parts::new(config, adaptation, stored, states, target.clone())?;
                Ok(Reader::Parts(Box::new(parts)))
            }
            config => Ok(Reader::Window(Box::new(Window::new(config, adaptation, states, target)?))),
        }
    }

    /// Forgets what was read.
    pub(super) fn restart(&mut self) {
        if let Reader::Parts(parts) = self {
            parts.read.clear();
        }
    }

    /// The logits of the token that follows `tokens`, of which there is at least one; what was read before need not be read again.
    pub(super) fn logits(&mut self, tokens: &[i32]) -> Result<Vec<f32>> {
        match self {
            Reader::Parts(parts) => parts.logits(tokens),
            Reader::Window(window) => window.logits(tokens),
        }
    }
}

/// A decoder that reads part by part.
pub(super) struct Parts {
    config: GptConfig,
    adaptation: Adaptation,
    /// What matrices are kept as.
    stored: DType,
    target: Target,
    /// Parameters, and caches of its own.
    states: States,
    programs: BTreeMap<Part, Compiled>,
    /// The tokens that caches hold, from some place of the text on.
    read: Vec<i32>,
    /// That place.
    first: usize,
}

impl Parts {
    fn new(
        config: GptConfig,
        adaptation: Adaptation,
        stored: DType,
        states: &States,
        target: Target,
    ) -> Result<Self> {
        let (target, states, programs) = (target.start(), states.fork(), BTreeMap::new());
        let mut parts =
            Parts { config, adaptation, stored, target, states, programs, read: vec![], first: 0 };
        // What every text needs, and so whatever is wrong with the model is known now.
        parts.program(parts.part(0, 1))?;
        Ok(parts)
    }

    fn capacity(&self) -> usize {
        self.config.context.next_multiple_of(TILE.min(self.config.context.next_power_of_two()))
    }

    /// How `length` tokens at a position are read.
    fn part(&self, position: usize, length: usize) -> Part {
        let capacity = self.capacity();
        let visible = (position + length).next_power_of_two().max(LEAST_VISIBLE).min(capacity);
        Part { length, visible, capacity }
    }

    fn program(&mut self, part: Part) -> Result<&mut Compiled> {
        match self.programs.entry(part) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let trace = self.adaptation.evaluating();
                trace.store_matrices(self.stored);
                let program = self.config.continuation(&trace, 1, part)?;
                Ok(entry.insert(compile(&program.graph, &self.states, &self.target)?))
            }
        }
    }

    fn logits(&mut self, tokens: &[i32]) -> Result<Vec<f32>> {
        let context = self.config.context;
        let goes_on = |read: &[i32], first: usize| {
            tokens.get(first..).is_some_and(|text| text.len() > read.len() && text.starts_with(read))
        };
        if self.read.is_empty() || !goes_on(&self.read, self.first) {
            self.read.clear();
            self.first = tokens.len().saturating_sub(context);
        } else if tokens.len() - self.first > context {
            // No place is left. Half of the context is read anew, which is rarely so, rather than all of it for each token.
            self.read.clear();
            self.first = tokens.len() - context.div_ceil(2);
        }
        let text = &tokens[self.first..];
        let mut logits = vec![];
        while self.read.len() < text.len() {
            let left = &text[self.read.len()..];
            let length = self.length(left.len());
            let (new, padding) = (left.len().min(length), length.saturating_sub(left.len()));
            let x = [&left[..new], &vec![0; padding]].concat();
            logits = self.run(x, new - 1)?;
            self.read.extend(&left[..new]);
        }
        Ok(logits)
    }

    /// The length of the next part of a text of which so many tokens are left.
    fn length(&self, left: usize) -> usize {
        let tile = TILE.min(self.capacity());
        let length = match left {
            1 => 1,
            left => left.next_power_of_two().clamp(SMALLEST_TILE.min(tile), tile),
        };
        if self.read.len() + length > self.capacity() { 1 } else { length }
    }

    fn run(&mut self, tokens: Vec<i32>, last: usize) -> Result<Vec<f32>> {
        let position = self.read.len();
        let part = self.part(position, tokens.len());
        let scalar = |value: usize| HostTensor::new([], vec![value as i32]);
        let (x, position, last) =
            (HostTensor::new([1, tokens.len()], tokens), scalar(position), scalar(last));
        let program = self.program(part)?;
        Ok(logits_of(&program.run(&[("x", &x), ("position", &position), ("last", &last)])?))
    }
}

/// A model that reads the last `context` tokens each time, in one program of the shape `[1, context]`; a shorter text is
/// padded on the right, where no earlier position looks.
pub(super) struct Window {
    program: Compiled,
    context: usize,
}

impl Window {
    fn new(config: &ModelConfig, adaptation: &Adaptation, states: &States, target: &Target) -> Result<Self> {
        let program = next_logits(&adaptation.evaluating(), config)?;
        Ok(Window { program: compile(&program.graph, states, target)?, context: config.context() })
    }

    fn logits(&mut self, tokens: &[i32]) -> Result<Vec<f32>> {
        let mut window = tokens[tokens.len().saturating_sub(self.context)..].to_vec();
        let last = window.len().checked_sub(1).expect("there is a token to continue");
        window.resize(self.context, 0);
        let x = HostTensor::new([1, self.context], window);
        let position = HostTensor::new([], vec![last as i32]);
        Ok(logits_of(&self.program.run(&[("x", &x), ("position", &position)])?))
    }
}

fn logits_of(outputs: &Outputs) -> Vec<f32> {
    outputs.get("logits").and_then(HostTensor::as_f32).expect("logits are f32").to_vec()
}

/// From `x` of `i32[1, context]` and a `position` to the `logits` of `f32[1, 1, vocabulary]` there.
pub(super) fn next_logits(trace: &Trace, config: &ModelConfig) -> Result<Program> {
    let x = trace.input("x", [1, config.context()], DType::I32);
    let position = trace.input("position", [], DType::I32);
    let unfit = || Error::Configuration("only a decoder and a recurrent model continue a text".into());
    let logits = config.next_tokens(&x)?.ok_or_else(unfit)?;
    let start = trace.full([], 0.0, DType::I32);
    let last = logits.dynamic_slice(&[&start, &position, &start], [1, 1, config.vocabulary()]);
    trace.finish(&[("logits", &last)])
}
