//! What an object file says of the model in it: how its chunks are launched, as the compiler wrote it down.

use crate::isa::Isa;
use crate::launch::KernelProgram;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The first bytes of an [`Artefact`].
pub const MAGIC: [u8; 8] = *b"kernfus\x01";
/// The version of descriptions. It changes with everything in a [`Description`].
pub const FORMAT: u32 = 10;
/// How the names of artefacts begin that a linker knows them by.
pub const PREFIX: &str = "kernfusion_artefact_";

/// The name that a linker knows a model's artefact by.
pub fn symbol(model: &str) -> String {
    format!("{PREFIX}{model}")
}

/// A model as it lies in an object file, under the name [`symbol`].
#[repr(C)]
#[derive(Debug)]
pub struct Artefact {
    magic: [u8; 8],
    description: *const u8,
    description_bytes: u64,
    functions: *const *const u8,
    function_count: u64,
}

// SAFETY: read-only data, and addresses of such and of code.
unsafe impl Sync for Artefact {}

impl Artefact {
    /// The bytes of the description; `None` if this is no artefact of this version.
    pub(crate) fn description(&self) -> Option<&[u8]> {
        // SAFETY: the compiler wrote this many bytes there.
        let bytes =
            || unsafe { std::slice::from_raw_parts(self.description, self.description_bytes as usize) };
        (self.magic == MAGIC).then(bytes)
    }

    /// The addresses of its functions.
    pub(crate) fn functions(&self) -> &[*const u8] {
        // SAFETY: as above, addresses.
        unsafe { std::slice::from_raw_parts(self.functions, self.function_count as usize) }
    }
}

/// A model: its code, its states, and what it does with them.
#[derive(Debug, Serialize, Deserialize)]
pub struct Description {
    /// [`FORMAT`].
    pub format: u32,
    /// Its name.
    pub name: String,
    /// The instruction set of tile primitives and products.
    pub isa: Isa,
    /// What code takes of the processor beside that.
    pub features: Vec<String>,
    /// Parameters, caches and other states, which all plans share.
    pub states: Vec<StateDescription>,
    /// The programs, which all plans share.
    pub programs: Vec<Arc<KernelProgram>>,
    /// What it does.
    pub work: Work,
}

/// What a model does.
#[derive(Debug, Serialize, Deserialize)]
pub enum Work {
    /// It reads a text.
    Reading(Reading),
    /// It gives tensors for tensors.
    Function(Function),
}

/// A text is read chunk by chunk.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reading {
    /// Rows of a chunk.
    pub batch: usize,
    /// The number of tokens there are.
    pub vocabulary: usize,
    /// The most tokens of a text.
    pub context: usize,
    /// The kinds of chunks that it reads: one of one token at least.
    pub chunks: Vec<ChunkProgram>,
}

/// Tensors for tensors.
#[derive(Debug, Serialize, Deserialize)]
pub struct Function {
    /// What it is given. [`Storage::Input`] has their numbers.
    pub inputs: Vec<TensorDescription>,
    /// What it gives, and the buffer of each.
    pub outputs: Vec<(TensorDescription, usize)>,
    /// How.
    pub plan: PlanProgram,
}

impl Description {
    /// The first contradiction in it, given the number of functions: an index of something that is not there, or no chunk that reads
    /// one token of the whole context. Without one, computing with these numbers stays in bounds.
    pub(crate) fn fault(&self, functions: usize) -> Option<&'static str> {
        if self.programs.iter().flat_map(|program| program.functions()).any(|it| it >= functions) {
            return Some("a program calls a function that is not there");
        }
        match &self.work {
            Work::Reading(reading) => self.reading_fault(reading),
            Work::Function(Function { inputs, outputs, plan }) => {
                let is_there = |(_, buffer): &(_, usize)| plan.has_place(*buffer);
                let fits = self.fits(plan, inputs.len()) && outputs.iter().all(is_there);
                (!fits).then_some("the function needs a buffer or a program that is not there")
            }
        }
    }

    fn reading_fault(&self, reading: &Reading) -> Option<&'static str> {
        let Reading { batch, vocabulary, context, chunks } = reading;
        let longest = chunks.iter().map(|chunk| chunk.length).max().unwrap_or(0);
        let reads_any = |chunk: &ChunkProgram| chunk.length == 1 && chunk.visible >= *context;
        let fits =
            |chunk: &ChunkProgram| self.fits(&chunk.plan, Input::COUNT) && chunk.plan.has_place(chunk.logits);
        let numbers = [*batch, *vocabulary, *context, longest];
        match () {
            () if !numbers.iter().all(|extent| (1..=i32::MAX as usize).contains(extent)) => {
                Some("an extent is out of range")
            }
            () if batch.checked_mul(longest.max(*vocabulary)).is_none() => Some("an extent is out of range"),
            () if !chunks.iter().any(reads_any) => Some("no chunk reads one token of the whole context"),
            () if !chunks.iter().all(fits) => Some("a chunk needs a buffer or a program that is not there"),
            () => None,
        }
    }

    /// Whether all that a plan names is there.
    fn fits(&self, plan: &PlanProgram, inputs: usize) -> bool {
        let is_there = |storage: &Storage| match *storage {
            Storage::State(state) => state < self.states.len(),
            Storage::Arena(offset) => offset <= plan.arena_bytes,
            Storage::Input(input) => input < inputs,
            Storage::Own(_) | Storage::Nowhere => true,
        };
        let runs = |launch: &Launch| {
            launch.program < self.programs.len() && launch.slots.iter().all(|slot| *slot < plan.buffers.len())
        };
        plan.preparation <= plan.launches.len()
            && plan.buffers.iter().all(is_there)
            && plan.launches.iter().all(runs)
            && plan.moves.iter().flat_map(|step| [step.from, step.to]).all(|buffer| plan.has_place(buffer))
    }

    /// As bytes in an object file.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and names can be written")
    }
}

/// A tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorDescription {
    /// Its name; of a state, its module path.
    pub name: String,
    /// Its element type, as safetensors spells it.
    pub dtype: String,
    /// Its extents.
    pub shape: Vec<usize>,
    /// Its size.
    pub bytes: usize,
}

/// A parameter, a buffer or a cache.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StateDescription {
    /// Its name and type.
    pub tensor: TensorDescription,
    /// Whether the file has its first value; otherwise it begins as zeros.
    pub is_stored: bool,
    /// Whether kernels write it.
    pub is_written: bool,
}

/// How a chunk of a text is read.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChunkProgram {
    /// How many tokens it has.
    pub length: usize,
    /// How many positions it sees.
    pub visible: usize,
    /// How.
    pub plan: PlanProgram,
    /// The buffer of the logits.
    pub logits: usize,
}

/// How a plan runs.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlanProgram {
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// Where each buffer is.
    pub buffers: Vec<Storage>,
    /// The kernels in order.
    pub launches: Vec<Launch>,
    /// How many of them run once, before the first run: what they read stays as it is.
    pub preparation: usize,
    /// What states take when the kernels have run.
    pub moves: Vec<Move>,
}

impl PlanProgram {
    /// Whether there is such a buffer, and it has memory.
    fn has_place(&self, buffer: usize) -> bool {
        self.buffers.get(buffer).is_some_and(|storage| *storage != Storage::Nowhere)
    }
}

/// Where a buffer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Storage {
    /// A state: its number.
    State(usize),
    /// An input: its number; those of a chunk are the numbers of [`Input`].
    Input(usize),
    /// In the arena, this many bytes from its start.
    Arena(usize),
    /// In memory of its own, of this many bytes.
    Own(usize),
    /// No kernel touches it.
    Nowhere,
}

/// What a chunk is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// `i32[batch, length]`.
    Tokens,
    /// `i32[]`: the position of its first token.
    Position,
    /// `i32[]`: the place in the chunk of the token after which logits are wanted.
    Last,
}

impl Input {
    /// How many there are.
    pub const COUNT: usize = 3;
}

/// A kernel.
#[derive(Debug, Serialize, Deserialize)]
pub struct Launch {
    /// Its program.
    pub program: usize,
    /// Its buffers.
    pub slots: Vec<usize>,
}

/// A value that a state takes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Move {
    /// The buffer of the value.
    pub from: usize,
    /// The buffer of the state.
    pub to: usize,
    /// How many.
    pub bytes: usize,
}
