//! From a program to something that runs: the whole pipeline in one function.
//!
//! A program whose batch is computed microbatch by microbatch has two of everything from simplification on: a body and a tail
//! ([`kernfusion_passes::microbatch`]). A memory limit chooses the number of microbatches.

mod execute;
mod finite;
mod lower;
mod memory;
mod shards;
mod stages;
mod target;

pub use execute::{Tensors, execute, execute_on};
pub use lower::{Lowered, lower};
pub use shards::Shards;
pub use stages::{Parts, Stages};
pub use target::{Bf16Products, F32Products, Mode, Precision, Target};

use crate::error::{Error, Result};
pub use crate::error::{LimitError, Maker, NonFinite};
#[cfg(feature = "files")]
use crate::state_file::{Differences, PLACE, is_optimizers};
use crate::trace::Program;
use finite::FiniteCheck;
use kernfusion_codegen::{Backend, Executable, SharedArena, Temporaries, listed};
pub use kernfusion_codegen::{
    Candidates, CodegenError, Collectives, CommunicationError, Communicator, DeviceError, LibraryCollectives,
    Listing, Outputs, Pending, States, planned as planned_ranks, threads as thread_ranks,
    threads_within as thread_ranks_within,
};
pub use kernfusion_cpu::isa::Isa;
use kernfusion_ir::kernel::{KernelGraph, Plan};
use kernfusion_ir::{Graph, Tensor};
pub use kernfusion_passes::MemoryStrategy;
use kernfusion_passes::PassReport;
use std::time::{Duration, Instant};

/// What compiling did and how long it took.
#[derive(Debug, Clone)]
pub struct CompileReport {
    /// The graph passes.
    pub passes: Vec<PassReport>,
    /// Fusion.
    pub fuse: Duration,
    /// Memory planning.
    pub plan: Duration,
    /// Code generation.
    pub codegen: Duration,
    /// All of it.
    pub total: Duration,
    /// How the program is kept small.
    pub memory: MemoryStrategy,
    /// Kernels launched in one run, in all microbatches together.
    pub kernels: usize,
    /// Bytes that they move at least.
    pub bytes_moved: usize,
    /// Size of the arena that all temporaries share.
    pub arena_bytes: usize,
    /// Size of all states, accumulators of microbatches among them.
    pub state_bytes: usize,
    /// The most memory that the process is expected to have when the program runs; 0 where the system does not tell what
    /// it has now, and for a program on a GPU.
    pub process_bytes: usize,
    /// Memory of a GPU that the program takes, states included; 0 on the CPU.
    pub device_bytes: usize,
    /// What became of cublasLt, in words, if tuning was allowed to try it.
    pub library: Option<String>,
}

/// A compiled program. It can be moved to another thread.
pub struct Compiled {
    executable: Box<dyn Executable>,
    report: CompileReport,
    shards: Shards,
    check: Option<Box<FiniteCheck>>,
}

/// Compiles a graph whose states live in `states`, shared with every other executable compiled with them.
///
/// # Errors
/// If a pass fails (it is named), an op has no kernel (its line is named), memory is short, or the target's limit cannot
/// be met.
pub fn compile(graph: &Graph, states: &States, target: &Target) -> Result<Compiled> {
    let start = Instant::now();
    check_mode(graph, target)?;
    let backend = target.backend();
    // Read once, so that possibilities are compared by what they take, whatever else the process does meanwhile.
    let in_use = backend.bytes_in_use();
    let lowered = memory::choose(graph, states, target, &*backend, in_use)?;
    generate(graph, lowered, states, target, &*backend, (start, in_use))
}

/// How [`compile`] would keep a program small, found by planning alone. `states` are those that it would be compiled over, such as
/// [`Program::initial_states`] or those of a [session](crate::optim::Session::states): what they have already takes no new memory.
///
/// # Errors
/// As [`compile`].
pub fn planned_memory(graph: &Graph, states: &States, target: &Target) -> Result<MemoryStrategy> {
    check_mode(graph, target)?;
    if let (None, Some(microbatches)) = (target.memory_limit, target.microbatches) {
        let memory = MemoryStrategy { microbatches, recompute: target.recompute };
        return Stages::new(target, memory).divide(graph).map(|_| memory);
    }
    let backend = target.backend();
    Ok(memory::choose(graph, states, target, &*backend, backend.bytes_in_use())?.memory)
}

fn check_mode(graph: &Graph, target: &Target) -> Result<()> {
    target.check_products(graph)?;
    match (target.f32_products, target.is_on_gpu()) {
        (F32Products::Tf32, false) => {
            let reason = "TF32 is a number type of GPUs: the CPU's products are f32";
            return Err(Error::Configuration(reason.into()));
        }
        (F32Products::X6 | F32Products::X3 | F32Products::Fixed, true) => {
            let reason = "x6, x3 and fixed are products of CPUs: those of a GPU are exact or TF32";
            return Err(Error::Configuration(reason.into()));
        }
        _ => {}
    }
    if target.bf16_products == Bf16Products::Fixed && target.is_on_gpu() {
        let reason = "fixed point is for products of bf16 on CPUs: those of a GPU are exact";
        return Err(Error::Configuration(reason.into()));
    }
    if target.rank_count() > 1 && target.check_finite {
        let reason = "several ranks run without looking for numbers that are not finite";
        return Err(Error::Configuration(reason.into()));
    }
    if target.rank_count() > 1 && target.collectives == Collectives::Library {
        let has_library =
            target.is_on_gpu() || target.communicator().is_some_and(|ranks| ranks.library().is_some());
        if !has_library {
            let reason = "these ranks have no library that sums: they add up in order";
            return Err(Error::Configuration(reason.into()));
        }
        if target.bf16_exchange {
            let reason = "what is exchanged as bf16 is added up in f32, as no library does it: that needs ordered sums";
            return Err(Error::Configuration(reason.into()));
        }
    }
    if target.candidates != Candidates::None && !target.is_on_gpu() {
        return Err(Error::Configuration("tuning measures products on GPUs: there is none here".into()));
    }
    let saves = target.memory_limit.is_some() || target.microbatches.unwrap_or(1) != 1 || target.recompute;
    if target.mode == Mode::Eager && saves {
        let reason = "eager mode computes every op once, on the whole batch: memory limits, microbatches and recomputing need mode \
                      compiled";
        return Err(Error::Configuration(reason.into()));
    }
    Ok(())
}

/// Code generation.
fn generate(
    graph: &Graph,
    lowered: Lowered,
    states: &States,
    target: &Target,
    backend: &dyn Backend,
    (start, in_use): (Instant, usize),
) -> Result<Compiled> {
    let code_start = Instant::now();
    let Lowered { memory, program, passes, fuse, plan, .. } = lowered;
    // On a device the executable says it, without rendering the program once more.
    let process_bytes = match target.is_on_gpu() {
        true => 0,
        false => in_use + backend.bytes_needed(&program, states)?,
    };
    let mut report = CompileReport {
        memory,
        kernels: program.kernels(),
        bytes_moved: program.bytes_moved(),
        arena_bytes: program.arena_bytes(),
        state_bytes: program.state_bytes(),
        process_bytes,
        device_bytes: 0,
        library: None,
        passes,
        fuse,
        plan,
        codegen: Duration::ZERO,
        total: Duration::ZERO,
    };
    let temporaries = if target.mode == Mode::Eager { Temporaries::Fresh } else { Temporaries::Arena };
    let shards = Shards::new(&program, target.communicator());
    let executable = backend.compile(program, states, temporaries)?;
    (report.device_bytes, report.library) = (executable.device_bytes(), executable.library());
    report.codegen = code_start.elapsed();
    report.total = start.elapsed();
    let check = target.check_finite.then(|| Box::new(FiniteCheck::new(graph, states, target)));
    Ok(Compiled { executable, report, shards, check })
}

impl Compiled {
    /// Runs it once: outputs by name. States are updated in place.
    ///
    /// # Errors
    /// If an input is missing, unknown or of another type than declared; nothing has run then. With
    /// [`Target::check_finite`], if a result or a new state is not finite.
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Outputs> {
        Ok(self.checked(inputs, |executable| Ok((executable.run(inputs)?, ())))?.0)
    }

    /// Changes the number of threads; results stay the same, bit for bit. It has no effect on a GPU.
    ///
    /// # Errors
    /// If memory is short.
    pub fn set_threads(&mut self, threads: usize) -> Result<()> {
        Ok(self.executable.set_threads(threads)?)
    }

    /// A run with whatever it measures, and the check of what it gives, if one is wanted.
    fn checked<M>(
        &mut self,
        inputs: &[(&str, &Tensor)],
        run: impl FnOnce(&mut dyn Executable) -> Result<(Outputs, M)>,
    ) -> Result<(Outputs, M)> {
        let saved = self.check.as_ref().map(|check| check.save());
        let (outputs, measured) = run(&mut *self.executable)?;
        if let (Some(check), Some(saved)) = (&self.check, saved) {
            check.check(&outputs, &saved, inputs)?;
        }
        Ok((outputs, measured))
    }

    /// Starts a run and, on a GPU, does not wait for it: its inputs are copied while the run before is under way. Runs of
    /// all programs over the same states happen in the order in which they were started. On the CPU, and with
    /// [`Target::check_finite`], it is over at once.
    ///
    /// # Errors
    /// As `run`; what goes wrong on a GPU is reported by [`Pending::wait`].
    pub fn enqueue(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Pending> {
        match &self.check {
            Some(_) => Ok(Pending::Done(self.run(inputs)?)),
            None => Ok(self.executable.enqueue(inputs)?),
        }
    }

    /// As `run`, with the time of each kernel: those of each of [`Compiled::plans`] in order, a body's over all microbatches.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_timed(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(Outputs, Vec<Duration>)> {
        self.checked(inputs, |executable| Ok(executable.run_timed(inputs)?))
    }

    /// What compiling did.
    pub fn report(&self) -> &CompileReport {
        &self.report
    }

    /// The states of which this rank keeps a part.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The kernels; of a program in microbatches, those that run for each microbatch.
    pub fn kernels(&self) -> &KernelGraph {
        &self.plan().graph
    }

    /// The kernels with their memory; of a program in microbatches, what runs for each microbatch.
    pub fn plan(&self) -> &Plan {
        &self.executable.program().body
    }

    /// All plans: one, or that of a microbatch and that of what follows the last one.
    pub fn plans(&self) -> Vec<&Plan> {
        self.executable.program().plans().map(|(plan, _)| plan).collect()
    }

    /// The arena of temporaries in the memory of the CPU.
    pub(crate) fn arena(&self) -> Option<&SharedArena> {
        self.executable.arena()
    }

    /// The code of a kernel of the plan of this number, if the target [keeps code](Target::keep_code) and there is such a kernel.
    pub fn listing(&self, plan: usize, kernel: &str) -> Option<Listing> {
        self.executable.listing(plan, kernel)
    }
}

impl Program {
    /// Fresh states for this program: its parameters at their first values, everything else at zero.
    ///
    /// # Errors
    /// If memory is short.
    pub fn initial_states(&self, seed: u64) -> Result<States> {
        self.ensure_memory()?;
        let states = States::new();
        for (name, value) in self.initial_parameters(seed) {
            states.set(&name, &value)?;
        }
        Ok(states)
    }

    /// States for this program from a file that [`Session::save`](crate::optim::Session::save) has written, to use a trained model
    /// without training it: its parameters and buffers have the values of the file, everything else is zero. What else is in the file,
    /// such as an optimizer's moments, is left out. Needs the feature `files`.
    ///
    /// # Errors
    /// The file cannot be read, lacks a parameter, or has one of another shape, or of whole numbers where the program has floats.
    #[cfg(feature = "files")]
    pub fn load_states(&self, path: impl AsRef<std::path::Path>) -> Result<States> {
        let path = path.as_ref();
        let mut tensors = crate::tensor_file::read(path)?;
        let mut differences = Differences::none(path);
        let states = States::new();
        for parameter in self.parameters.iter().chain(&self.buffers) {
            let Some(tensor) = tensors.remove(&parameter.name) else {
                differences.missing.push(parameter.name.clone());
                continue;
            };
            // What a file has in `f32` may be kept as `bf16`, or as whole numbers with scales; but these are nothing without their scales.
            let (kept, _) = parameter.states();
            let converts = tensor.ty() != kept;
            if converts && (tensor.shape() != parameter.shape || !tensor.ty().dtype.is_float()) {
                differences.types.push((parameter.name.clone(), tensor.ty(), kept));
                continue;
            }
            if converts {
                let values = tensor.to_f64().into_iter().map(|x| x as f32).collect();
                parameter.kept(values).iter().try_for_each(|(name, value)| states.set(name, value))?;
                continue;
            }
            states.set(&parameter.name, &tensor)?;
            match parameter.companion().map(|name| (tensors.remove(&name), name)) {
                Some((Some(scales), name)) => states.set(&name, &scales)?,
                Some((None, name)) => differences.missing.push(name),
                None => {}
            }
        }
        // What else is in the file is no mistake by itself, but may explain what is missing.
        if !differences.missing.is_empty() {
            let others = tensors.into_keys().filter(|name| name != PLACE && !is_optimizers(name));
            differences.extra = others.collect();
        }
        differences.check_model().map(|()| states)
    }

    /// Compiles the program over `states`; see [`compile`]. They must have its parameters and buffers, as those of
    /// [`initial_states`](Self::initial_states), [`load_states`](Self::load_states) and a [session](crate::optim::Session) do. Other
    /// states that they lack begin with zeros.
    ///
    /// # Errors
    /// The states lack a parameter or a buffer; or as [`compile`].
    pub fn compile(&self, states: &States, target: &Target) -> Result<Compiled> {
        /// How many names a message has, of those that are missing and of others.
        const MOST: usize = 8;
        let kept = self.parameters.iter().chain(&self.buffers).map(|parameter| &*parameter.name);
        let missing: Vec<_> = kept.filter(|name| states.ty(name).is_none()).collect();
        if !missing.is_empty() {
            let (missing, names) = (listed(&missing, MOST), listed(&states.names(), MOST));
            let reason = format!("the states lack parameters of the program: {missing} (there are: {names})");
            return Err(Error::Mismatch(reason));
        }
        compile(&self.graph, states, target)
    }
}
