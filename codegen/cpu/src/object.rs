//! Plans as an object file, which runs where this crate is not: with the runtime alone.
//!
//! The code is that of an executable, and the launches are written down as the runtime would run them. So results have the same
//! bits.

use super::collective::Exchanging;
use super::loops::KernelCode;
use super::lower::Compiler;
use super::plan::share_memory;
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::Temporaries;
use kernfusion_ir::TensorType;
use kernfusion_ir::kernel::{BufferId, BufferRole, Kernel, Place, Plan};
use kernfusion_runtime::artefact::{
    self, ChunkProgram, Description, Function, Input, Launch, Move, PlanProgram, StateDescription, Storage,
    TensorDescription, Work,
};
use kernfusion_runtime::isa::Isa;
use kernfusion_runtime::launch::KernelProgram;
use std::collections::HashMap;
use std::sync::Arc;

/// A model that reads a text chunk by chunk.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Its name: letters, digits and underscores.
    pub name: String,
    /// The rows that each chunk has.
    pub batch: usize,
    /// The number of tokens there are.
    pub vocabulary: usize,
    /// The most tokens of a text.
    pub context: usize,
}

/// The program that reads a chunk: inputs `x` of `i32[batch, length]`, `position` and `last` of `i32[]`; the output `logits`
/// of `f32[batch, 1, vocabulary]`.
#[derive(Debug)]
pub struct ReadingChunk {
    /// Its kernels and their memory.
    pub plan: Plan,
    /// How many tokens it reads.
    pub length: usize,
    /// How many positions it sees.
    pub visible: usize,
}

/// An object file and what it wants to find beside it.
#[derive(Debug)]
pub struct ObjectFile {
    /// The file.
    pub bytes: Vec<u8>,
    /// The states that it reads from a file and those that it makes itself.
    pub states: Vec<StateDescription>,
    /// Different programs.
    pub programs: usize,
}

impl ObjectFile {
    /// Compiles the chunks of a model.
    ///
    /// # Errors
    /// A kernel cannot be run on this back end, or ahead of time: a loop, or states that take each other's values.
    pub fn compile(reading: &Reading, chunks: &[ReadingChunk], isa: Isa) -> Result<ObjectFile, CodegenError> {
        let mut compiler = Compiler::for_object(isa, &reading.name)?;
        let mut launches = Launches::default();
        let described = chunks.iter().map(|chunk| launches.chunk(chunk, &mut compiler));
        let chunks = described.collect::<Result<Vec<_>, _>>()?;
        // Caches begin as zeros.
        launches.states.iter_mut().for_each(|state| state.is_stored = !state.is_written);
        let &Reading { batch, vocabulary, context, .. } = reading;
        let work = Work::Reading(artefact::Reading { batch, vocabulary, context, chunks });
        launches.object(&reading.name, work, isa, compiler)
    }

    /// Compiles a plan as a function of its inputs, which its outputs are given for. All states begin with values of the file.
    ///
    /// # Errors
    /// As [`ObjectFile::compile`].
    pub fn compile_function(name: &str, plan: &Plan, isa: Isa) -> Result<ObjectFile, CodegenError> {
        let mut compiler = Compiler::for_object(isa, name)?;
        let mut launches = Launches::default();
        let inputs: Vec<_> = plan.inputs().map(|buffer| described(&buffer.name, &buffer.ty)).collect();
        let number = |name: &str| inputs.iter().position(|input| input.name == name);
        let program = launches.plan(plan, &number, &mut compiler)?;
        let output =
            |(name, buffer, ty): &(String, BufferId, TensorType)| (described(name, ty), buffer.0 as usize);
        let outputs = plan.graph.outputs.iter().map(output).collect();
        let work = Work::Function(Function { inputs, outputs, plan: program });
        launches.object(name, work, isa, compiler)
    }
}

/// What plans have in common.
#[derive(Default)]
struct Launches {
    states: Vec<StateDescription>,
    programs: Vec<Arc<KernelProgram>>,
    numbers: HashMap<*const KernelProgram, usize>,
}

impl Launches {
    fn object(
        self,
        name: &str,
        work: Work,
        isa: Isa,
        compiler: Compiler,
    ) -> Result<ObjectFile, CodegenError> {
        let programs = self.programs.len();
        let description = Description {
            format: artefact::FORMAT,
            name: name.into(),
            isa,
            features: compiler.features(),
            states: self.states,
            programs: self.programs,
            work,
        };
        let bytes = compiler.into_object(name, description.to_bytes())?;
        Ok(ObjectFile { bytes, states: description.states, programs })
    }

    fn chunk(&mut self, chunk: &ReadingChunk, compiler: &mut Compiler) -> Result<ChunkProgram, CodegenError> {
        let &ReadingChunk { ref plan, length, visible } = chunk;
        let number = |name: &str| match name {
            "x" => Some(Input::Tokens as usize),
            "position" => Some(Input::Position as usize),
            "last" => Some(Input::Last as usize),
            _ => None,
        };
        let program = self.plan(plan, &number, compiler)?;
        let (_, logits, _) =
            plan.graph.outputs.iter().find(|output| output.0 == "logits").expect("a reading chunk");
        Ok(ChunkProgram { length, visible, plan: program, logits: logits.0 as usize })
    }

    /// How a plan runs, whose inputs have these numbers.
    fn plan(
        &mut self,
        plan: &Plan,
        number: &dyn Fn(&str) -> Option<usize>,
        compiler: &mut Compiler,
    ) -> Result<PlanProgram, CodegenError> {
        let works = KernelCode::compile(plan, Temporaries::Arena, Exchanging::default(), compiler)?;
        let kernels = plan.graph.kernels.iter().zip(works);
        let launches = kernels.map(|(kernel, work)| self.launch(kernel, work)).collect::<Result<_, _>>()?;
        let places = 0..plan.places.len() as u32;
        let buffers = places.map(|at| self.storage(plan, BufferId(at), number)).collect();
        let &Plan { arena_bytes, preparation, .. } = plan;
        Ok(PlanProgram { arena_bytes, buffers, launches, preparation, moves: moves(plan)? })
    }

    fn launch(&mut self, kernel: &Kernel, work: KernelCode) -> Result<Launch, CodegenError> {
        let KernelCode::Program(program, slots) = work else {
            let (kernel, what) = (kernel.name.clone(), "a loop, ahead of time,".into());
            return Err(CodegenError::Unsupported { kernel, what });
        };
        let program = *self.numbers.entry(Arc::as_ptr(&program)).or_insert_with(|| {
            self.programs.push(program);
            self.programs.len() - 1
        });
        Ok(Launch { program, slots })
    }

    /// Where a buffer is when its plan runs.
    fn storage(&mut self, plan: &Plan, buffer: BufferId, number: &dyn Fn(&str) -> Option<usize>) -> Storage {
        let memory = plan.memory_of(buffer);
        let buffer = plan.graph.buffer(memory);
        match (buffer.role, plan.place(memory)) {
            (BufferRole::State, _) => Storage::State(self.state(plan, memory)),
            (BufferRole::Input, _) => {
                Storage::Input(number(&buffer.name).expect("the inputs of the plan have numbers"))
            }
            (BufferRole::Temporary, Place::Arena { offset }) => Storage::Arena(offset),
            (BufferRole::Temporary, Place::Own) => Storage::Own(buffer.ty.bytes()),
            (BufferRole::Temporary, _) => Storage::Nowhere,
        }
    }

    fn state(&mut self, plan: &Plan, id: BufferId) -> usize {
        let buffer = plan.graph.buffer(id);
        if let Some(known) = self.states.iter().position(|state| state.tensor.name == buffer.name) {
            return known;
        }
        let by_kernel = plan.graph.kernels.iter().flat_map(Kernel::writes).any(|to| plan.memory_of(to) == id);
        let is_written = by_kernel || plan.graph.updates.iter().any(|(state, _)| *state == id);
        let tensor = described(&buffer.name, &buffer.ty);
        self.states.push(StateDescription { tensor, is_stored: true, is_written });
        self.states.len() - 1
    }
}

fn described(name: &str, ty: &TensorType) -> TensorDescription {
    // As the file of parameters spells it.
    let dtype = ty.dtype.to_string().to_uppercase();
    TensorDescription { name: name.into(), dtype, shape: ty.shape.clone(), bytes: ty.bytes() }
}

/// The states that take values from elsewhere when a plan has run.
fn moves(plan: &Plan) -> Result<Vec<Move>, CodegenError> {
    let graph = &plan.graph;
    let moved =
        graph.updates.iter().filter(|(state, value)| plan.memory_of(*state) != plan.memory_of(*value));
    let moved: Vec<_> = moved.copied().collect();
    let clash = |value: BufferId| {
        moved.iter().any(|(state, _)| share_memory(plan, Temporaries::Arena, *state, value))
    };
    if let Some((state, _)) = moved.iter().find(|(_, value)| clash(*value)) {
        let (kernel, what) =
            (graph.buffer(*state).name.clone(), "a state that another one takes, ahead of time,".into());
        return Err(CodegenError::Unsupported { kernel, what });
    }
    let moved = moved.iter();
    Ok(moved
        .map(|&(to, from)| Move { from: from.into(), to: to.into(), bytes: graph.buffer(to).ty.bytes() })
        .collect())
}
