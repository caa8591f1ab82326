//! A model that was compiled ahead of time, with its parameters: it reads a text and gives logits.

use crate::artefact::{Artefact, ChunkProgram, Input, Reading, Work};
use crate::error::ModelError;
use crate::launch::Pointers;
use crate::loaded::{Loaded, describe};
use std::path::Path;

/// A model with its parameters and caches.
pub struct Model {
    loaded: Loaded,
    reading: Reading,
    pointers: Vec<Pointers>,
    inputs: Inputs,
    /// Tokens that the caches hold.
    read: usize,
}

/// The memory of inputs.
struct Inputs {
    tokens: Vec<i32>,
    position: Box<i32>,
    last: Box<i32>,
}

impl Inputs {
    fn places(&mut self) -> [*mut u8; Input::COUNT] {
        let mut places = [std::ptr::null_mut(); Input::COUNT];
        places[Input::Tokens as usize] = self.tokens.as_mut_ptr().cast();
        places[Input::Position as usize] = (&raw mut *self.position).cast();
        places[Input::Last as usize] = (&raw mut *self.last).cast();
        places
    }
}

impl Model {
    /// A model of an object file with the parameters in this file, on `threads` threads; 0: one for each core. Results do not
    /// depend on the number of threads.
    ///
    /// # Errors
    /// The processor is not the one that it was compiled for, the file is not there or has not the model's parameters, or memory
    /// is short.
    pub fn open(artefact: &Artefact, weights: &Path, threads: usize) -> Result<Model, ModelError> {
        let (code, work) = describe(artefact)?;
        let Work::Reading(reading) = work else {
            return Err(ModelError::Artefact("it gives tensors for tensors, and reads no text".into()));
        };
        let arena = reading.chunks.iter().map(|chunk| chunk.plan.arena_bytes).max().unwrap_or(0);
        let mut loaded = Loaded::open(artefact, code, arena, weights, threads)?;
        let longest = reading.chunks.iter().map(|chunk| chunk.length).max().unwrap_or(0);
        let tokens = vec![0; reading.batch * longest];
        let mut inputs = Inputs { tokens, position: Box::default(), last: Box::default() };
        let places = inputs.places();
        let pointers = reading.chunks.iter().map(|chunk| loaded.prepare(&chunk.plan, &places));
        let pointers = pointers.collect::<Result<_, _>>()?;
        Ok(Model { loaded, reading, pointers, inputs, read: 0 })
    }

    /// Reads the tokens that stand at `position` of the text, as many of each of [`batch`](Model::batch) rows, one row after the
    /// other, and gives the logits of the token that follows the last one: [`vocabulary`](Model::vocabulary) numbers for each row.
    /// What stands before was read before; what was read from `position` on is forgotten.
    ///
    /// # Errors
    /// There is no token, one is not in the vocabulary, the text is longer than the context, a chunk of it was not read,
    /// `logits` has another length, or memory is short.
    pub fn read(&mut self, tokens: &[i32], position: usize, logits: &mut [f32]) -> Result<(), ModelError> {
        self.check(tokens, position, logits.len())?;
        let count = tokens.len() / self.reading.batch;
        self.read = position;
        let mut done = 0;
        while done < count {
            let at = self.chunk(position + done, count - done);
            let length = self.reading.chunks[at].length;
            let new = length.min(count - done);
            for (row, tokens) in tokens.chunks_exact(count).enumerate() {
                let row = &mut self.inputs.tokens[row * length..][..length];
                row.fill(0);
                row[..new].copy_from_slice(&tokens[done..done + new]);
            }
            (*self.inputs.position, *self.inputs.last) = ((position + done) as i32, new as i32 - 1);
            let (plan, pointers) = (&self.reading.chunks[at].plan, &self.pointers[at]);
            self.loaded.run(plan, pointers)?;
            self.loaded.update(plan, pointers);
            done += new;
            self.read = position + done;
            if done == count {
                self.take_logits(at, logits);
            }
        }
        Ok(())
    }

    /// The number of tokens there are.
    pub fn vocabulary(&self) -> usize {
        self.reading.vocabulary
    }

    /// The most tokens of a text.
    pub fn context(&self) -> usize {
        self.reading.context
    }

    /// The number of rows that are read at once.
    pub fn batch(&self) -> usize {
        self.reading.batch
    }

    fn check(&self, tokens: &[i32], position: usize, logits: usize) -> Result<(), ModelError> {
        let Reading { batch, vocabulary, context, .. } = self.reading;
        let refuse = |reason: String| Err(ModelError::Request(reason));
        if tokens.is_empty() || !tokens.len().is_multiple_of(batch) {
            return refuse(format!("{} tokens are not as many for each of {batch} rows", tokens.len()));
        }
        if let Some(token) = tokens.iter().find(|token| !(0..vocabulary as i64).contains(&i64::from(**token)))
        {
            return refuse(format!("{token} is not one of the {vocabulary} tokens"));
        }
        if position > self.read {
            return refuse(format!("position {position} is beyond the {} tokens that were read", self.read));
        }
        let end = position + tokens.len() / batch;
        if end > context {
            return refuse(format!("a text of {end} tokens is longer than the context, {context}"));
        }
        if logits != batch * vocabulary {
            return refuse(format!("there are {} logits, not {logits}", batch * vocabulary));
        }
        Ok(())
    }

    /// The chunk that reads from a position on, where `left` tokens are left: the shortest that takes them all, or else the longest;
    /// of those, the one that sees the fewest positions, but enough.
    fn chunk(&self, position: usize, left: usize) -> usize {
        let chunks = &self.reading.chunks;
        let capacity = chunks.iter().map(|chunk| chunk.visible).max().unwrap_or(0);
        let lengths = || chunks.iter().map(|chunk| chunk.length);
        let length = lengths().filter(|&length| length >= left).min().or(lengths().max()).unwrap_or(1);
        let length = if position + length > capacity { 1 } else { length };
        let fits = |chunk: &ChunkProgram| chunk.length == length && chunk.visible >= position + length;
        let fitting = chunks.iter().enumerate().filter(|(_, chunk)| fits(chunk));
        let least = fitting.min_by_key(|(_, chunk)| chunk.visible);
        least.expect("a chunk of one token sees the whole context").0
    }

    fn take_logits(&self, at: usize, logits: &mut [f32]) {
        let from = self.pointers[at].get(self.reading.chunks[at].logits).cast::<f32>();
        // SAFETY: the buffer has as many numbers, and no kernel runs.
        logits.copy_from_slice(unsafe { std::slice::from_raw_parts(from, logits.len()) });
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("name", &self.loaded.name()).finish_non_exhaustive()
    }
}
