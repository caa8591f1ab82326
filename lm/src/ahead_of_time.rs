//! Models compiled ahead of time: an object file that a program in C or Rust links, and runs without the compiler.
//!
//! [`AheadOfTime::write`], for decoders, and [`FunctionAheadOfTime::write`], for programs as functions of tensors, make a folder of
//!
//! | file | what it has |
//! |---|---|
//! | `NAME.o` | the code of all kernels, and how they are launched |
//! | `NAME.h`, `NAME.rs` | how C and Rust open the model, and what its functions do |
//! | `NAME.safetensors` | its parameters, which are used where they lie in the file |
//! | `libkernfusion_runtime.a` | for C: tile primitives, matrix products, threads; for Rust that is the crate `kernfusion-runtime` |
//!
//! Code and launches are those of [`Generator`](crate::generate::Generator), or of the compiled program, and so are results, bit by bit.

mod function;
mod weights;

pub use function::FunctionAheadOfTime;

use crate::checkpoint::Checkpoint;
use crate::folder::NewFolder;
use crate::generate::{chunks, next_logits};
use crate::hugging_face::Published;
use crate::record::{Record, parameters};
use crate::{Error, Result};
use kernfusion::WeightType;
use kernfusion::compile::{MemoryStrategy, Target, lower};
use kernfusion::models::{Chunk, GptConfig, ModelConfig};
use kernfusion::trace::{Program, Trace};
use kernfusion_codegen::States;
use kernfusion_cpu::object::{ObjectFile, Reading, ReadingChunk};
use std::path::Path;
use std::time::{Duration, Instant};

/// The runtime as C links it.
pub const RUNTIME: &str = "libkernfusion_runtime.a";

/// A decoder to be compiled ahead of time.
pub struct AheadOfTime {
    config: GptConfig,
    target: Target,
    states: States,
    name: String,
    batch: usize,
    prompts: bool,
}

/// What was written.
#[derive(Debug, Clone)]
pub struct Report {
    /// The names of the files, in the folder.
    pub files: Vec<String>,
    /// Bytes of the object file.
    pub object_bytes: usize,
    /// Bytes of the parameters.
    pub parameter_bytes: usize,
    /// Kinds of chunks that the model reads: numbers of tokens, and of positions that they see.
    pub chunks: usize,
    /// Kernels that differ in more than their buffers.
    pub programs: usize,
    /// How long compiling took.
    pub compile: Duration,
}

impl AheadOfTime {
    /// The model of a checkpoint, with its adapters merged, and its matrices kept as [`Target::weights`] says.
    ///
    /// # Errors
    /// If it is not a decoder's, or its tensors are not those of its model.
    pub fn from_checkpoint(checkpoint: Checkpoint, target: &Target) -> Result<Self> {
        let (config, _) = Record::model(&checkpoint.meta)?;
        let program = next_logits(&trace(target.stored()), &config)?;
        AheadOfTime::new(&config, parameters::restored(checkpoint, &program, target)?, target)
    }

    /// A published model, with its matrices kept as [`Target::weights`] says.
    ///
    /// # Errors
    /// If it is not a decoder, or its files do not have what they should.
    pub fn from_published(model: &Published, target: &Target) -> Result<Self> {
        let program = next_logits(&trace(target.stored()), model.config())?;
        AheadOfTime::new(model.config(), model.states(&program, target)?, target)
    }

    /// A model with the parameters that training would begin with.
    ///
    /// # Errors
    /// If it is not a decoder, or its shape is not valid.
    pub fn untrained(config: &ModelConfig, seed: u64, target: &Target) -> Result<Self> {
        let program = next_logits(&trace(target.stored()), config)?;
        AheadOfTime::new(config, program.initial_states(seed)?, target)
    }

    fn new(config: &ModelConfig, states: States, target: &Target) -> Result<Self> {
        let ModelConfig::Gpt(config) = config else {
            return Err(Error::Configuration("only a decoder is compiled ahead of time".into()));
        };
        let (config, target) = (config.clone(), target.clone());
        Ok(AheadOfTime { config, target, states, name: "model".into(), batch: 1, prompts: false })
    }

    /// Its name in file names and in code; `model` if none is given.
    ///
    /// # Errors
    /// If it is not made of letters, digits and underscores, or begins with a digit.
    pub fn named(self, name: &str) -> Result<Self> {
        Ok(AheadOfTime { name: checked_name(name)?, ..self })
    }

    /// Reads `batch` texts of the same length at once; 1 by default.
    pub fn batch(self, batch: usize) -> Self {
        AheadOfTime { batch: batch.max(1), ..self }
    }

    /// Whether chunks of several tokens are read at once, as prompts want it; otherwise each token takes a step.
    pub fn prompts(self, prompts: bool) -> Self {
        AheadOfTime { prompts, ..self }
    }

    /// Compiles the model and writes the folder, which is there whole or not at all. `runtime` is the archive for C, which goes
    /// into it. A folder that has files of this name is replaced in one step if `replaces` says so, and if it has nothing else.
    ///
    /// # Errors
    /// If the shape is not valid, a kernel cannot be compiled, the folder has files and is not to be replaced, or it cannot be
    /// written.
    pub fn write(&self, path: &Path, runtime: Option<&Path>, replaces: bool) -> Result<Report> {
        let folder = Folder::create(path, &self.name, replaces)?;
        let start = Instant::now();
        let chunks = chunks(&self.config, self.prompts).into_iter().map(|chunk| {
            let plan = self.planned(&self.program(chunk)?)?;
            Ok(ReadingChunk { plan, length: chunk.length, visible: chunk.visible })
        });
        let chunks = chunks.collect::<Result<Vec<_>>>()?;
        let (vocabulary, context) = (self.config.vocabulary, self.config.context);
        let reading = Reading { name: self.name.clone(), batch: self.batch, vocabulary, context };
        let object = ObjectFile::compile(&reading, &chunks, self.target.instruction_set()?)?;
        let compile = start.elapsed();
        let texts = [include_str!("ahead_of_time/model.h"), include_str!("ahead_of_time/model.rs.txt")];
        let texts = texts.map(|template| self.filled(template));
        let written = folder.write(&object, &texts, &self.states, runtime)?;
        Ok(Report { chunks: chunks.len(), compile, ..written })
    }

    /// The programs that read each kind of chunk, as a [`Generator`](crate::generate::Generator) compiles them.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn programs(&self) -> Result<Vec<Program>> {
        let program = |chunk| self.program(chunk);
        chunks(&self.config, self.prompts).into_iter().map(program).collect()
    }

    fn program(&self, chunk: Chunk) -> Result<Program> {
        Ok(self.config.continuation(&trace(self.target.stored()), self.batch, chunk)?)
    }

    fn planned(&self, program: &Program) -> Result<kernfusion_ir::kernel::Plan> {
        Ok(lower(&program.graph, &self.target, MemoryStrategy::NONE)?.program.body)
    }

    /// A template with this model's numbers in place of what stands between `@`.
    fn filled(&self, template: &str) -> String {
        let numbers = [self.config.vocabulary, self.config.context, self.batch].map(|n| n.to_string());
        let [vocabulary, context, batch] = &numbers;
        let values = [("@vocabulary@", vocabulary), ("@context@", context), ("@batch@", batch)];
        values.into_iter().fold(template.into(), |text, (key, value)| text.replace(key, value))
    }
}

/// The folder of what was compiled.
struct Folder<'a> {
    name: &'a str,
    /// The files of the code, for C, for Rust, and of the parameters.
    own: [String; 4],
    folder: NewFolder,
}

impl<'a> Folder<'a> {
    /// Begins a folder. One that has files of this name and nothing else is replaced if `replaces` says so.
    fn create(path: &Path, name: &'a str, replaces: bool) -> Result<Self> {
        let own = ["o", "h", "rs", "safetensors"].map(|ending| format!("{name}.{ending}"));
        let is_ours = |name: &str| name == RUNTIME || own.iter().any(|own| own == name);
        let folder = NewFolder::create(path, if replaces { Some(&is_ours) } else { None })?;
        Ok(Folder { name, own, folder })
    }

    /// Writes everything: `texts` are those for C and for Rust, but for the name. The report lacks what only the caller knows.
    fn write(
        self,
        object: &ObjectFile,
        texts: &[String; 2],
        states: &States,
        runtime: Option<&Path>,
    ) -> Result<Report> {
        let Folder { name, own: [code, header, rust, parameters], folder } = self;
        let named = |text: &str| text.replace("@name@", name).replace("@NAME@", &name.to_uppercase());
        folder.write(&code, &object.bytes)?;
        folder.write(&header, named(&texts[0]).as_bytes())?;
        folder.write(&rust, named(&texts[1]).as_bytes())?;
        let parameter_bytes = weights::write(&folder, &parameters, &object.states, states)?;
        if let Some(runtime) = runtime {
            folder.copy(runtime, RUNTIME)?;
        }
        let (files, object_bytes, programs) = (folder.commit()?, object.bytes.len(), object.programs);
        Ok(Report { files, object_bytes, parameter_bytes, chunks: 0, programs, compile: Duration::ZERO })
    }
}

/// A name, if it is one in C.
fn checked_name(name: &str) -> Result<String> {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if begins && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Ok(name.into());
    }
    Err(Error::Configuration(format!("\"{name}\" is not a name in C: letters, digits and underscores")))
}

/// Where programs are traced whose matrices are kept so.
fn trace(stored: WeightType) -> Trace {
    let trace = Trace::new();
    trace.store_matrices(stored);
    trace
}
