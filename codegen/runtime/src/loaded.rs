//! The code of an object file with its states and threads, whatever it does.

use crate::artefact::{Artefact, Description, FORMAT, Launch, PlanProgram, StateDescription, Storage, Work};
use crate::error::ModelError;
use crate::functions::Functions;
use crate::isa::Isa;
use crate::launch::{KernelProgram, Launcher, Pointers};
use crate::math::Tiles;
use crate::memory::{Allocation, BumpAllocator};
use crate::pool::Pool;
use crate::weights::Weights;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// How code runs, as its description says.
pub(crate) struct Code {
    name: String,
    isa: Isa,
    states: Vec<StateDescription>,
    programs: Vec<Arc<KernelProgram>>,
}

/// Code with the memory that its plans share.
pub(crate) struct Loaded {
    code: Code,
    functions: Functions,
    launcher: Launcher,
    states: Pointers,
    arena: Allocation,
    /// Keeps the parameters.
    _weights: Weights,
    allocator: BumpAllocator,
    /// Keeps the other states, and what plans have prepared.
    memory: Vec<Allocation>,
}

impl Loaded {
    /// Code of an object file with the parameters in this file and an arena of `arena_bytes` bytes, run by `threads` threads (0: one for
    /// each core).
    ///
    /// # Errors
    /// The file is not there or has not the model's parameters, or memory is short.
    pub(crate) fn open(
        artefact: &Artefact,
        code: Code,
        arena_bytes: usize,
        weights: &Path,
        threads: usize,
    ) -> Result<Self, ModelError> {
        // The object file names the primitives. Some linkers want to have heard of them before they come to it.
        std::hint::black_box(Tiles::of(code.isa));
        let weights = Weights::open(weights)?;
        let (mut allocator, mut memory) = (BumpAllocator::default(), vec![]);
        let mut states = Pointers::new(code.states.len());
        for (at, state) in code.states.iter().enumerate() {
            states.set(at, place(state, &weights, &mut allocator, &mut memory)?);
        }
        let arena = allocator.take(arena_bytes)?;
        let pool = Arc::new(Pool::new(match threads {
            0 => std::thread::available_parallelism().map_or(1, Into::into),
            threads => threads,
        }));
        let launcher = Launcher::new(pool, code.programs.iter().map(|program| &**program))?;
        let functions = Functions::new(artefact.functions().to_vec());
        Ok(Loaded { code, functions, launcher, states, arena, _weights: weights, allocator, memory })
    }

    /// The model's name.
    pub(crate) fn name(&self) -> &str {
        &self.code.name
    }

    /// Where a plan finds its buffers, with inputs at these places; it prepares what it keeps from run to run.
    ///
    /// # Errors
    /// As [`Loaded::run`].
    pub(crate) fn prepare(&mut self, plan: &PlanProgram, inputs: &[*mut u8]) -> Result<Pointers, ModelError> {
        let mut pointers = Pointers::new(plan.buffers.len());
        for (at, storage) in plan.buffers.iter().enumerate() {
            match *storage {
                Storage::State(state) => pointers.set(at, self.states.get(state)),
                Storage::Input(input) => pointers.set(at, inputs[input]),
                Storage::Arena(offset) => pointers.set(at, self.arena.as_ptr().wrapping_add(offset)),
                Storage::Own(bytes) => {
                    self.memory.push(self.allocator.take(bytes)?);
                    pointers.set(at, self.memory.last().expect("just pushed").as_ptr());
                }
                Storage::Nowhere => {}
            }
        }
        self.launch(&plan.launches[..plan.preparation], &pointers)?;
        Ok(pointers)
    }

    /// Runs the kernels of a plan that has been [prepared](Loaded::prepare); [`Loaded::update`] then gives states their new values.
    ///
    /// # Errors
    /// Memory is short, or a kernel panicked.
    pub(crate) fn run(&mut self, plan: &PlanProgram, pointers: &Pointers) -> Result<(), ModelError> {
        self.launch(&plan.launches[plan.preparation..], pointers)
    }

    fn launch(&mut self, launches: &[Launch], pointers: &Pointers) -> Result<(), ModelError> {
        for launch in launches {
            let program = &self.code.programs[launch.program];
            let (launcher, functions) = (&mut self.launcher, &self.functions);
            // SAFETY: the compiler gave every buffer that the program touches memory of its size.
            let run = || unsafe { launcher.run(program, functions, &launch.slots, pointers, None) };
            catch_unwind(AssertUnwindSafe(run))
                .map_err(|payload| ModelError::Panic(message(&*payload)))??;
        }
        Ok(())
    }

    /// Gives states the values that kernels computed elsewhere.
    pub(crate) fn update(&mut self, plan: &PlanProgram, pointers: &Pointers) {
        for step in &plan.moves {
            // SAFETY: both buffers have `step.bytes` bytes, and they do not overlap.
            unsafe { pointers.get(step.to).copy_from_nonoverlapping(pointers.get(step.from), step.bytes) };
        }
    }
}

/// The message of a panic.
pub(crate) fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic").into()
}

/// What an object file says: how its code runs, and what it does.
///
/// # Errors
/// It is not of this version, contradicts itself, or is for another processor.
pub(crate) fn describe(artefact: &Artefact) -> Result<(Code, Work), ModelError> {
    let description = description(artefact)?;
    check_processor(&description)?;
    let Description { name, isa, states, programs, work, .. } = description;
    Ok((Code { name, isa, states, programs }, work))
}

fn description(artefact: &Artefact) -> Result<Description, ModelError> {
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
    let tensor = &state.tensor;
    let mut own = || {
        memory.push(allocator.take(tensor.bytes)?);
        Ok(memory.last().expect("just pushed").as_ptr())
    };
    if !state.is_stored {
        return own();
    }
    let stored = weights.find(tensor)?;
    let element = tensor.bytes / tensor.shape.iter().product::<usize>().max(1);
    // A file that other programs wrote may have numbers anywhere.
    if !state.is_written && (stored as usize).is_multiple_of(element.max(1)) {
        return Ok(stored.cast_mut());
    }
    let copy = own()?;
    // SAFETY: both have `tensor.bytes` bytes.
    unsafe { copy.copy_from_nonoverlapping(stored, tensor.bytes) };
    Ok(copy)
}
