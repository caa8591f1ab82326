//! From a program to something that runs: the whole pipeline in one function.
//!
//! A program whose batch is computed slice by slice has two of everything from simplification on: a body and a tail
//! ([`kernfusion_passes::tile`]). A memory limit chooses the number of slices.

mod execute;
mod finite;
mod limit;
mod lower;
mod pending;
mod process;
mod target;

pub use execute::{Tensors, execute, execute_on};
pub use lower::{Lowered, lower};
pub use pending::Pending;
pub use target::{Mode, Precision, Target, passes};

use crate::error::{Error, Result};
pub use crate::error::{LimitError, Maker, NonFinite};
use crate::trace::Program;
use finite::FiniteCheck;
pub use kernfusion_codegen::cpu::isa::Isa;
use kernfusion_codegen::cpu::pool::Pool;
pub use kernfusion_codegen::cuda::Candidates;
#[cfg(feature = "cuda")]
use kernfusion_codegen::cuda::{Cache, CudaExecutable};
use kernfusion_codegen::{Executable, Memory, Options, Outputs, Slicing, States, TiledExecutable};
use kernfusion_ir::kernel::{KernelGraph, Plan};
use kernfusion_ir::{Graph, InputRole, Tensor};
pub use kernfusion_passes::MemoryStrategy;
use kernfusion_passes::PassReport;
use kernfusion_passes::tile::PART;
use std::sync::Arc;
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
    /// Kernels launched in one run, in all slices together.
    pub kernels: usize,
    /// Bytes that they move at least.
    pub bytes_moved: usize,
    /// Size of the arena that all temporaries share.
    pub arena_bytes: usize,
    /// Size of all states, accumulators of slices among them.
    pub state_bytes: usize,
    /// The most memory that the process is expected to have when the program runs; 0 where the system does not tell what
    /// it has now, and for a program on a GPU.
    pub process_bytes: usize,
    /// Memory of a GPU that the program takes, states included; 0 on the CPU.
    pub device_bytes: usize,
    /// What became of cublasLt, in words, if tuning was allowed to try it.
    pub library: Option<String>,
}

/// A compiled program.
pub struct Compiled {
    code: Code,
    report: CompileReport,
    check: Option<Box<FiniteCheck>>,
}

enum Code {
    Whole(Box<Executable>),
    Tiled(Box<TiledExecutable>),
    #[cfg(feature = "cuda")]
    Gpu(Box<CudaExecutable>),
}

/// Compiles a graph whose states live in `states`, shared with every other executable compiled with them.
///
/// # Errors
/// If a pass fails (it is named), an op has no kernel (its line is named), memory is short, or the target's limit cannot
/// be met.
pub fn compile(graph: &Graph, states: &States, target: &Target) -> Result<Compiled> {
    let start = Instant::now();
    check_mode(target)?;
    if target.is_on_gpu() {
        let lowered = lower(graph, target, MemoryStrategy { slices: 1, recomputes: target.recomputes })?;
        return generate(graph, lowered, states, target, start);
    }
    let lowered = |memory| lower(graph, target, memory);
    let compiled = |lowered: Lowered| generate(graph, lowered, states, target, start);
    if let Some(lowered) = limit::within_arena(graph, target, lowered)? {
        return compiled(lowered);
    }
    match target.memory_limit {
        None => compiled(limit::unlimited(graph, target, lowered)?),
        Some(limit) => limit::within(limit, graph, states, target, lowered, compiled),
    }
}

/// How thrifty [`compile`] would be, found by planning alone.
///
/// # Errors
/// As [`compile`].
pub fn planned_memory(graph: &Graph, states: &States, target: &Target) -> Result<MemoryStrategy> {
    check_mode(target)?;
    let lowered = |memory| lower(graph, target, memory);
    match (target.memory_limit, target.slices) {
        (Some(limit), _) => {
            limit::within(limit, graph, states, target, lowered, |lowered| Ok(lowered.memory))
        }
        (None, Some(slices)) => Ok(MemoryStrategy { slices, recomputes: target.recomputes }),
        (None, None) => Ok(limit::unlimited(graph, target, lowered)?.memory),
    }
}

fn check_mode(target: &Target) -> Result<()> {
    if target.is_on_gpu() && (target.memory_limit.is_some() || target.slices.unwrap_or(1) != 1) {
        let reason = "on a GPU the batch is computed at once: memory limits and slices are for the CPU";
        return Err(Error::Configuration(reason.into()));
    }
    if target.is_on_gpu() && target.check_finite {
        let reason = "checks for numbers that are not finite are for the CPU";
        return Err(Error::Configuration(reason.into()));
    }
    if target.tf32 && !target.is_on_gpu() {
        return Err(Error::Configuration("TF32 is a number type of GPUs: the CPU's products are f32".into()));
    }
    if target.candidates != Candidates::None && !target.is_on_gpu() {
        return Err(Error::Configuration("tuning measures products on GPUs: there is none here".into()));
    }
    let saves = target.memory_limit.is_some() || target.slices.unwrap_or(1) != 1 || target.recomputes;
    if target.mode == Mode::Eager && saves {
        let reason = "eager mode computes every op once, on the whole batch: memory limits, slices and recomputing need mode \
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
    start: Instant,
) -> Result<Compiled> {
    let code_start = Instant::now();
    let options = Options {
        threads: target.threads,
        isa: target.isa,
        memory: if target.mode == Mode::Eager { Memory::Fresh } else { Memory::Arena },
        keep_code: target.keep_code,
        pool: target.pool.clone(),
        arena: target.arena.clone(),
    };
    let expected = limit::process_bytes(&lowered, states, target);
    let mut report = CompileReport {
        memory: lowered.memory,
        kernels: lowered.kernels(),
        bytes_moved: lowered.bytes_moved(),
        arena_bytes: lowered.arena_bytes(),
        state_bytes: lowered.state_bytes(),
        process_bytes: expected,
        device_bytes: 0,
        library: None,
        passes: lowered.passes,
        fuse: lowered.fuse,
        plan: lowered.plan,
        codegen: Duration::ZERO,
        total: Duration::ZERO,
    };
    let code = match lowered.tail {
        #[cfg(feature = "cuda")]
        None if target.device.is_some() => {
            let device = target.device.as_ref().expect("just seen");
            let (options, cache) = (target.cuda_options(), Cache::of_user());
            let executable = CudaExecutable::compile(lowered.body, states, device, options, &cache)?;
            (report.process_bytes, report.device_bytes) = (0, executable.memory_bytes());
            report.library = executable.library().map(ToString::to_string);
            Code::Gpu(Box::new(executable))
        }
        None => Code::Whole(Box::new(Executable::compile(lowered.body, states, &options)?)),
        Some(tail) => {
            let data = graph.inputs().filter(|(_, _, role)| *role == InputRole::Data);
            let inputs = data.map(|(id, name, _)| (name.to_string(), graph[id].ty.clone())).collect();
            let axis =
                |name: &str| lowered.joined.iter().find(|(other, _)| other == name).map(|(_, axis)| *axis);
            let results = graph.outputs().iter().filter(|output| !output.updates_state);
            let outputs = results.map(|output| (output.name.clone(), axis(&output.name))).collect();
            let slicing = Slicing { slices: lowered.memory.slices, part: PART.into(), inputs, outputs };
            Code::Tiled(Box::new(TiledExecutable::compile(lowered.body, tail, slicing, states, &options)?))
        }
    };
    report.codegen = code_start.elapsed();
    report.total = start.elapsed();
    let check = target.check_finite.then(|| Box::new(FiniteCheck::new(graph, states, target)));
    Ok(Compiled { code, report, check })
}

impl Compiled {
    /// Runs it once: outputs by name. States are updated in place.
    ///
    /// # Errors
    /// If an input is missing, unknown or of another type than declared; nothing has run then. With
    /// [`Target::check_finite`], if a result or a new state is not finite.
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Outputs> {
        let run = |code: &mut Code| {
            let outputs = match code {
                Code::Whole(executable) => executable.run(inputs)?,
                Code::Tiled(executable) => executable.run(inputs)?,
                #[cfg(feature = "cuda")]
                Code::Gpu(executable) => executable.run(inputs)?,
            };
            Ok((outputs, ()))
        };
        Ok(self.checked(inputs, run)?.0)
    }

    /// Changes the number of threads; results stay the same, bit for bit. It has no effect on a GPU.
    ///
    /// # Errors
    /// If memory is short.
    pub fn set_threads(&mut self, threads: usize) -> Result<()> {
        let pool = || Arc::new(Pool::new(threads));
        match &mut self.code {
            Code::Whole(executable) => executable.set_pool(pool())?,
            Code::Tiled(executable) => executable.set_pool(&pool())?,
            #[cfg(feature = "cuda")]
            Code::Gpu(_) => {}
        }
        Ok(())
    }

    /// A run with whatever it measures, and the check of what it gives, if one is wanted.
    fn checked<M>(
        &mut self,
        inputs: &[(&str, &Tensor)],
        run: impl FnOnce(&mut Code) -> Result<(Outputs, M)>,
    ) -> Result<(Outputs, M)> {
        let saved = self.check.as_ref().map(|check| check.save());
        let (outputs, measured) = run(&mut self.code)?;
        if let (Some(check), Some(saved)) = (&self.check, saved) {
            check.check(&outputs, &saved, inputs)?;
        }
        Ok((outputs, measured))
    }

    /// Starts a run and, on a GPU, does not wait for it: its inputs are copied while the run before is under way. Runs of
    /// all programs over the same states happen in the order in which they were started. On the CPU it is over at once.
    ///
    /// # Errors
    /// As `run`; what goes wrong on a GPU is reported by [`Pending::wait`].
    pub fn enqueue(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Pending> {
        #[cfg(feature = "cuda")]
        if let Code::Gpu(executable) = &mut self.code {
            return Ok(Pending::Gpu(executable.enqueue(inputs)?));
        }
        Ok(Pending::Done(self.run(inputs)?))
    }

    /// As `run`, with the time of each kernel: those of each of [`Compiled::plans`] in order, a body's over all slices.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_timed(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(Outputs, Vec<Duration>)> {
        self.checked(inputs, |code| {
            Ok(match code {
                Code::Whole(executable) => executable.run_timed(inputs)?,
                Code::Tiled(executable) => executable.run_timed(inputs)?,
                #[cfg(feature = "cuda")]
                Code::Gpu(executable) => executable.run_timed(inputs)?,
            })
        })
    }

    /// What compiling did.
    pub fn report(&self) -> &CompileReport {
        &self.report
    }

    /// The kernels; of a program in slices, those that run for each slice.
    pub fn kernels(&self) -> &KernelGraph {
        &self.plan().graph
    }

    /// The kernels with their memory; of a program in slices, what runs for each slice.
    pub fn plan(&self) -> &Plan {
        self.plans()[0]
    }

    /// All plans: one, or that of a slice and that of what follows the last one.
    pub fn plans(&self) -> Vec<&Plan> {
        #[cfg(feature = "cuda")]
        if let Code::Gpu(executable) = &self.code {
            return vec![executable.plan()];
        }
        self.executables().into_iter().map(Executable::plan).collect()
    }

    /// All executables of the CPU: one, or that of a slice and that of what follows the last one; none on a GPU.
    pub fn executables(&self) -> Vec<&Executable> {
        match &self.code {
            Code::Whole(executable) => vec![executable],
            Code::Tiled(executable) => vec![executable.body(), executable.tail()],
            #[cfg(feature = "cuda")]
            Code::Gpu(_) => vec![],
        }
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

    /// Compiles the program over `states`; see [`compile`].
    ///
    /// # Errors
    /// As [`compile`].
    pub fn compile(&self, states: &States, target: &Target) -> Result<Compiled> {
        compile(&self.graph, states, target)
    }
}
