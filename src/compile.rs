//! From a program to something that runs: the whole pipeline in one function.

use crate::error::Result;
use crate::trace::Program;
use kernfusion_codegen::cpu::isa::Isa;
use kernfusion_codegen::cpu::pool::Pool;
use kernfusion_codegen::{Executable, Memory, Options, Outputs, States};
use kernfusion_ir::kernel::{KernelGraph, Plan};
use kernfusion_ir::{Graph, Tensor};
use kernfusion_passes::fuse::{Fusion, fuse};
use kernfusion_passes::plan::plan;
use kernfusion_passes::{MIXED_PRECISION, PIPELINE, Pass, PassReport, run};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a program is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Simplified, fused, and planned ahead into one arena.
    Compiled,
    /// The honest baseline: the traced graph as it is, one kernel for each op, every result in fresh memory that is
    /// freed after its last use; the same threads and the same matrix micro-kernels.
    Eager,
}

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "compiled" => Ok(Mode::Compiled),
            "eager" => Ok(Mode::Eager),
            _ => Err(format!("unknown mode `{text}`: compiled or eager")),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Compiled => "compiled",
            Mode::Eager => "eager",
        })
    }
}

/// The number type of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// `f32`.
    #[default]
    F32,
    /// Products take `bf16` operands and sum in `f32`; compiled programs also keep activations for backward as `bf16`.
    /// Parameters, statistics, losses and the optimizer stay `f32`.
    Bf16,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        })
    }
}

/// The graph passes of a mode, in order. Eager mode only has the conversions that mixed precision needs.
pub fn passes(mode: Mode, precision: Precision) -> Vec<Pass> {
    let (simplify, narrow) = (mode == Mode::Compiled, precision == Precision::Bf16);
    let eager = |pass: &&Pass| simplify || pass.name != "narrow-kept";
    let pipeline = PIPELINE.iter().filter(|_| simplify);
    pipeline.chain(MIXED_PRECISION.iter().filter(|_| narrow).filter(eager)).copied().collect()
}

/// What to compile for: the CPU, how many threads, which mode. Executables of one target share its threads.
#[derive(Clone)]
pub struct Target {
    mode: Mode,
    precision: Precision,
    threads: usize,
    isa: Option<Isa>,
    keep_code: bool,
    pool: Option<Arc<Pool>>,
}

impl Target {
    /// This machine's CPU with a thread for each core, compiled mode.
    pub fn cpu() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Target {
            mode: Mode::Compiled,
            precision: Precision::F32,
            threads,
            isa: None,
            keep_code: false,
            pool: None,
        }
    }

    /// With so many threads, at least one. Results do not depend on it.
    pub fn threads(self, threads: usize) -> Self {
        Target { threads: threads.max(1), pool: None, ..self }
    }

    /// In this mode.
    pub fn mode(self, mode: Mode) -> Self {
        Target { mode, ..self }
    }

    /// With matrix products of this number type.
    pub fn precision(self, precision: Precision) -> Self {
        Target { precision, ..self }
    }

    /// With the tile primitives of this instruction set instead of the best that the CPU has.
    pub fn isa(self, isa: Isa) -> Self {
        Target { isa: Some(isa), ..self }
    }

    /// Keeps Cranelift IR and disassembly of each kernel, for dumps.
    pub fn keep_code(self, keep_code: bool) -> Self {
        Target { keep_code, ..self }
    }

    /// Starts the threads now, so that all clones of the result share them.
    pub fn start(mut self) -> Self {
        self.pool.get_or_insert_with(|| Arc::new(Pool::new(self.threads)));
        self
    }

    /// The number type of products.
    pub fn product_type(&self) -> Precision {
        self.precision
    }

    /// The graph passes that compiling for this target runs, in order.
    pub fn passes(&self) -> Vec<Pass> {
        passes(self.mode, self.precision)
    }

    /// The number of threads.
    pub fn thread_count(&self) -> usize {
        self.threads
    }
}

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
    /// Kernels launched in one run.
    pub kernels: usize,
    /// Bytes that they move at least.
    pub bytes_moved: usize,
    /// Size of the arena that all temporaries share.
    pub arena_bytes: usize,
    /// Size of all states.
    pub state_bytes: usize,
}

/// A compiled program.
pub struct Compiled {
    executable: Executable,
    report: CompileReport,
}

/// Compiles a graph whose states live in `states`, shared with every other executable compiled with them.
///
/// # Errors
/// If a pass fails (it is named), an op has no kernel (its line is named), or memory is short.
pub fn compile(graph: &Graph, states: &States, target: &Target) -> Result<Compiled> {
    let start = Instant::now();
    let mut graph = graph.clone();
    let passes = run(&mut graph, &target.passes(), None, &mut |_, _| {})?;
    let (fusion, memory) = match target.mode {
        Mode::Compiled => (Fusion::Full, Memory::Arena),
        Mode::Eager => (Fusion::None, Memory::Fresh),
    };
    let fuse_start = Instant::now();
    let kernels = fuse(&graph, fusion)?;
    let plan_start = Instant::now();
    let plan = plan(kernels);
    let code_start = Instant::now();
    let options = Options {
        threads: target.threads,
        isa: target.isa,
        memory,
        keep_code: target.keep_code,
        pool: target.pool.clone(),
    };
    let executable = Executable::compile(plan, states, &options)?;
    let plan = executable.plan();
    let report = CompileReport {
        passes,
        fuse: plan_start - fuse_start,
        plan: code_start - plan_start,
        codegen: code_start.elapsed(),
        total: start.elapsed(),
        kernels: plan.graph.kernels.len(),
        bytes_moved: plan.bytes_moved(),
        arena_bytes: plan.arena_bytes,
        state_bytes: plan.state_bytes(),
    };
    Ok(Compiled { executable, report })
}

impl Compiled {
    /// Runs it once: outputs by name. States are updated in place.
    ///
    /// # Errors
    /// If an input is missing, unknown or of another type than declared; nothing has run then.
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Outputs> {
        Ok(self.executable.run(inputs)?)
    }

    /// As `run`, with the time of each kernel in the order of [`Compiled::kernels`].
    ///
    /// # Errors
    /// As `run`.
    pub fn run_timed(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(Outputs, Vec<Duration>)> {
        Ok(self.executable.run_timed(inputs)?)
    }

    /// What compiling did.
    pub fn report(&self) -> &CompileReport {
        &self.report
    }

    /// The kernels.
    pub fn kernels(&self) -> &KernelGraph {
        &self.executable.plan().graph
    }

    /// The kernels with their memory.
    pub fn plan(&self) -> &Plan {
        self.executable.plan()
    }

    /// The executable itself.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }
}

impl Program {
    /// Fresh states for this program: its parameters at their first values, everything else at zero.
    ///
    /// # Errors
    /// If memory is short.
    pub fn initial_states(&self, seed: u64) -> Result<States> {
        let states = States::new();
        for (name, value) in self.initial_parameters(seed) {
            states.set(name, &value)?;
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
