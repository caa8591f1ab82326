//! A model that was compiled ahead of time, with its parameters: it reads a text and gives logits.

use crate::artefact::{Artefact, ChunkProgram, Description, FORMAT, Input, StateDescription, Storage};
use crate::error::ModelError;
use crate::functions::Functions;
use crate::launch::{Launcher, Pointers};
use crate::math::Tiles;
use crate::memory::{Allocation, BumpAllocator};
use crate::pool::Pool;
use crate::weights::Weights;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// A model with its parameters and caches.
pub struct Model {
    description: Description,
    functions: Functions,
    launcher: Launcher,
    pointers: Vec<Pointers>,
    inputs: Inputs,
    /// Tokens that the caches hold.
    read: usize,
    /// Keeps the parameters.
    _weights: Weights,
    /// Keeps the caches, and temporaries.
    _memory: Vec<Allocation>,
}

/// The memory of inputs.
struct Inputs {
    tokens: Vec<i32>,
    position: Box<i32>,
    last: Box<i32>,
}

impl Inputs {
    fn place(&mut self, input: Input) -> *mut u8 {
        match input {
            Input::Tokens => self.tokens.as_mut_ptr().cast(),
            Input::Position => (&raw mut *self.position).cast(),
            Input::Last => (&raw mut *self.last).cast(),
        }
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
        let description = describe(artefact)?;
        check_processor(&description)?;
        // The object file names the primitives. Some linkers want to have heard of them before they come to it.
        std::hint::black_box(Tiles::of(description.isa));
        let weights = Weights::open(weights)?;
        let (mut allocator, mut memory) = (BumpAllocator::default(), vec![]);
        let states =
            description.states.iter().map(|state| place(state, &weights, &mut allocator, &mut memory));
        let states = states.collect::<Result<Vec<_>, _>>()?;
        let arena =
            allocator.take(description.chunks.iter().map(|chunk| chunk.arena_bytes).max().unwrap_or(0))?;
        let longest = description.chunks.iter().map(|chunk| chunk.length).max().unwrap_or(0);
        let tokens = vec![0; description.batch * longest];
        let mut inputs = Inputs { tokens, position: Box::default(), last: Box::default() };
        let mut located = |chunk: &ChunkProgram| {
            let mut pointers = Pointers::new(chunk.buffers.len());
            for (at, storage) in chunk.buffers.iter().enumerate() {
                match *storage {
                    Storage::State(state) => pointers.set(at, states[state]),
                    Storage::Input(input) => pointers.set(at, inputs.place(input)),
                    Storage::Arena(offset) => pointers.set(at, arena.as_ptr().wrapping_add(offset)),
                    Storage::Nowhere => {}
                }
            }
            pointers
        };
        let pointers = description.chunks.iter().map(&mut located).collect();
        memory.push(arena);
        let pool = Arc::new(Pool::new(match threads {
            0 => std::thread::available_parallelism().map_or(1, Into::into),
            threads => threads,
        }));
        let launcher = Launcher::new(pool, description.programs.iter().map(|program| &**program))?;
        let functions = Functions::new(artefact.functions().to_vec());
        Ok(Model {
            description,
            functions,
            launcher,
            pointers,
            inputs,
            read: 0,
            _weights: weights,
            _memory: memory,
        })
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
        let count = tokens.len() / self.description.batch;
        self.read = position;
        let mut done = 0;
        while done < count {
            let at = self.chunk(position + done, count - done);
            let length = self.description.chunks[at].length;
            let new = length.min(count - done);
            for (row, tokens) in tokens.chunks_exact(count).enumerate() {
                let row = &mut self.inputs.tokens[row * length..][..length];
                row.fill(0);
                row[..new].copy_from_slice(&tokens[done..done + new]);
            }
            (*self.inputs.position, *self.inputs.last) = ((position + done) as i32, new as i32 - 1);
            self.run(at)?;
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
        self.description.vocabulary
    }

    /// The most tokens of a text.
    pub fn context(&self) -> usize {
        self.description.context
    }

    /// The number of rows that are read at once.
    pub fn batch(&self) -> usize {
        self.description.batch
    }

    fn check(&self, tokens: &[i32], position: usize, logits: usize) -> Result<(), ModelError> {
        let Description { batch, vocabulary, context, .. } = self.description;
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
        let chunks = &self.description.chunks;
        let capacity = chunks.iter().map(|chunk| chunk.visible).max().unwrap_or(0);
        let lengths = || chunks.iter().map(|chunk| chunk.length);
        let length = lengths().filter(|&length| length >= left).min().or(lengths().max()).unwrap_or(1);
        let length = if position + length > capacity { 1 } else { length };
        let fits = |chunk: &ChunkProgram| chunk.length == length && chunk.visible >= position + length;
        let fitting = chunks.iter().enumerate().filter(|(_, chunk)| fits(chunk));
        let least = fitting.min_by_key(|(_, chunk)| chunk.visible);
        least.expect("a chunk of one token sees the whole context").0
    }

    fn run(&mut self, at: usize) -> Result<(), ModelError> {
        let (chunk, pointers) = (&self.description.chunks[at], &self.pointers[at]);
        for launch in &chunk.launches {
            let program = &self.description.programs[launch.program];
            let launcher = &mut self.launcher;
            // SAFETY: the compiler gave every buffer that the program touches memory of its size.
            let run = || unsafe { launcher.run(program, &self.functions, &launch.slots, pointers) };
            catch_unwind(AssertUnwindSafe(run))
                .map_err(|payload| ModelError::Panic(message(&*payload)))??;
        }
        for step in &chunk.moves {
            // SAFETY: both buffers have `step.bytes` bytes, and they do not overlap.
            unsafe { pointers.get(step.to).copy_from_nonoverlapping(pointers.get(step.from), step.bytes) };
        }
        Ok(())
    }

    fn take_logits(&self, at: usize, logits: &mut [f32]) {
        let from = self.pointers[at].get(self.description.chunks[at].logits).cast::<f32>();
        // SAFETY: the buffer has as many numbers, and no kernel runs.
        logits.copy_from_slice(unsafe { std::slice::from_raw_parts(from, logits.len()) });
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("name", &self.description.name).finish_non_exhaustive()
    }
}

/// The message of a panic.
pub(crate) fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic").into()
}

fn describe(artefact: &Artefact) -> Result<Description, ModelError> {
    let unfit = |reason: &str| ModelError::Artefact(reason.into());
    let bytes = artefact.description().ok_or_else(|| unfit("it does not begin as one"))?;
    let another = "it was compiled by another version of Kernfusion";
    let description: Description = serde_json::from_slice(bytes).map_err(|_| unfit(another))?;
    if description.format != FORMAT {
        return Err(unfit(another));
    }
    match description.fault(artefact.functions().len()) {
        None => Ok(description),
        Some(fault) => Err(unfit(fault)),
    }
}

fn check_processor(description: &Description) -> Result<(), ModelError> {
    let lacks = |feature: String| {
        let name = description.name.clone();
        Err(ModelError::Processor { name, feature })
    };
    if !description.isa.is_there() {
        return lacks(description.isa.to_string());
    }
    match description.features.iter().find(|feature| !has(feature)) {
        Some(feature) => lacks(feature.clone()),
        None => Ok(()),
    }
}

/// Whether the processor has a feature; an unknown one is taken for missing.
#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    macro_rules! detect {
        ($($name:tt)*) => {
            match feature { $($name => is_x86_feature_detected!($name),)* _ => false }
        };
    }
    detect!("sse3" "ssse3" "sse4.1" "sse4.2" "popcnt" "avx" "avx2" "fma" "bmi1" "bmi2" "lzcnt" "cmpxchg16b"
        "avxvnni" "avx512f" "avx512dq" "avx512vl" "avx512bitalg" "avx512vbmi" "avx512vnni")
}

/// Elsewhere compilers are not told of features that a processor of the kind may lack.
#[cfg(not(target_arch = "x86_64"))]
fn has(_: &str) -> bool {
    true
}

/// Where a state is: in the file, or in memory of its own.
fn place(
    state: &StateDescription,
    weights: &Weights,
    allocator: &mut BumpAllocator,
    memory: &mut Vec<Allocation>,
) -> Result<*mut u8, ModelError> {
    let mut own = || {
        memory.push(allocator.take(state.bytes)?);
        Ok(memory.last().expect("just pushed").as_ptr())
    };
    if !state.is_parameter {
        return own();
    }
    let stored = weights.find(state)?;
    let element = state.bytes / state.shape.iter().product::<usize>().max(1);
    if (stored as usize).is_multiple_of(element.max(1)) {
        // Nothing writes to parameters.
        return Ok(stored.cast_mut());
    }
    // A file that other programs wrote may have numbers anywhere.
    let copy = own()?;
    // SAFETY: both have `state.bytes` bytes.
    unsafe { copy.copy_from_nonoverlapping(stored, state.bytes) };
    Ok(copy)
}
