//! What an object file says of the model in it: how its chunks are launched, as the compiler wrote it down.

use crate::isa::Isa;
use crate::launch::KernelProgram;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The first bytes of an [`Artefact`].
pub const MAGIC: [u8; 8] = *b"kernfus\x01";
/// The version of descriptions. It changes with everything in a [`Description`].
pub const FORMAT: u32 = 4;
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

/// A model that reads a text chunk by chunk.
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
    /// Rows of a chunk.
    pub batch: usize,
    /// The number of tokens there are.
    pub vocabulary: usize,
    /// The most tokens of a text.
    pub context: usize,
    /// Parameters and caches, which chunks share.
    pub states: Vec<StateDescription>,
    /// The programs, which chunks share.
    pub programs: Vec<Arc<KernelProgram>>,
    /// The kinds of chunks that it reads: one of one token at least.
    #[serde(rename = "parts")]
    pub chunks: Vec<ChunkProgram>,
}

impl Description {
    /// The first contradiction in it, given the number of functions: an index of something that is not there, or no chunk that reads
    /// one token of the whole context. Without one, computing with these numbers stays in bounds.
    pub(crate) fn fault(&self, functions: usize) -> Option<&'static str> {
        let longest = self.chunks.iter().map(|chunk| chunk.length).max().unwrap_or(0);
        let reads_any = |chunk: &ChunkProgram| chunk.length == 1 && chunk.visible >= self.context;
        let is_there = |storage: &Storage, chunk: &ChunkProgram| match *storage {
            Storage::State(state) => state < self.states.len(),
            Storage::Arena(offset) => offset <= chunk.arena_bytes,
            Storage::Input(_) | Storage::Nowhere => true,
        };
        let runs = |chunk: &ChunkProgram, launch: &Launch| {
            launch.program < self.programs.len()
                && launch.slots.iter().all(|slot| *slot < chunk.buffers.len())
        };
        let fits = |chunk: &ChunkProgram| {
            let moved = chunk.moves.iter().flat_map(|step| [step.from, step.to]);
            chunk.buffers.iter().all(|storage| is_there(storage, chunk))
                && chunk.launches.iter().all(|launch| runs(chunk, launch))
                && moved.chain([chunk.logits]).all(|buffer| buffer < chunk.buffers.len())
        };
        let numbers = [self.batch, self.vocabulary, self.context, longest];
        match () {
            () if !numbers.iter().all(|extent| (1..=i32::MAX as usize).contains(extent)) => {
                Some("an extent is out of range")
            }
            () if self.batch.checked_mul(longest.max(self.vocabulary)).is_none() => {
                Some("an extent is out of range")
            }
            () if !self.chunks.iter().any(reads_any) => Some("no chunk reads one token of the whole context"),
            () if !self.chunks.iter().all(fits) => {
                Some("a chunk needs a buffer or a program that is not there")
            }
            () if self.programs.iter().flat_map(|program| program.functions()).any(|it| it >= functions) => {
                Some("a program calls a function that is not there")
            }
            () => None,
        }
    }

    /// As bytes in an object file.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and names can be written")
    }
}

/// A parameter or a cache.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StateDescription {
    /// Its module path.
    pub name: String,
    /// Its element type, as safetensors spells it.
    pub dtype: String,
    /// Its extents.
    pub shape: Vec<usize>,
    /// Its size.
    pub bytes: usize,
    /// Whether it is read from a file and never written; a cache begins as zeros.
    pub is_parameter: bool,
}

/// How a chunk of a text is read.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChunkProgram {
    /// How many tokens it has.
    pub length: usize,
    /// How many positions it sees.
    pub visible: usize,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// Where each buffer is.
    pub buffers: Vec<Storage>,
    /// The kernels in order.
    pub launches: Vec<Launch>,
    /// What states take when the kernels have run.
    pub moves: Vec<Move>,
    /// The buffer of the logits.
    pub logits: usize,
}

/// Where a buffer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Storage {
    /// A state: its number.
    State(usize),
    /// An input.
    Input(Input),
    /// In the arena, this many bytes from its start.
    Arena(usize),
    /// No kernel touches it.
    Nowhere,
}

/// What a chunk is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// `i32[batch, length]`.
    Tokens,
    /// `i32[]`: the position of its first token.
    Position,
    /// `i32[]`: the place in the chunk of the token after which logits are wanted.
    Last,
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
