//! What every back end offers.

use crate::{CodegenError, Outputs, Peaks, States};
use kernfusion_ir::Tensor;
use kernfusion_ir::kernel::{Accepts, BufferId, ProgramPlan};
use kernfusion_runtime::memory::SharedArena;
use std::fmt::Debug;
use std::time::Duration;

/// A place where programs run, with how they are compiled for it.
pub trait Backend: Debug {
    /// Which kernels it has code for.
    fn accepts(&self) -> Accepts;

    /// No states, and those to come where programs of this back end find them.
    fn states(&self) -> States;

    /// Compiles a program over `states`. Those that it names and that do not exist are made and filled with zeros.
    ///
    /// # Errors
    /// A kernel cannot be run here, a state has another type or lies elsewhere, or memory is short.
    fn compile(
        &self,
        program: ProgramPlan,
        states: &States,
        temporaries: Temporaries,
    ) -> Result<Box<dyn Executable>, CodegenError>;

    /// Bytes of its memory that this process has; 0 where that is not known.
    fn bytes_in_use(&self) -> usize;

    /// Bytes of its memory that a program takes beside what this process has already.
    ///
    /// # Errors
    /// A kernel cannot be run here.
    fn bytes_needed(&self, program: &ProgramPlan, states: &States) -> Result<usize, CodegenError>;

    /// What it can do at most, measured in less than a second.
    ///
    /// # Errors
    /// It does not work, or memory is short.
    fn peaks(&self) -> Result<Peaks, CodegenError>;

    /// Whether programs can still run.
    ///
    /// # Errors
    /// Why they cannot.
    fn check(&self) -> Result<(), CodegenError>;

    /// What the device is called, if programs do not run on the CPU.
    fn device_name(&self) -> Option<String>;
}

/// Where temporaries live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Temporaries {
    /// At the plan's places in one arena, kept from run to run.
    #[default]
    Arena,
    /// Each in an allocation that is made when its kernel runs and freed after its last reader.
    Fresh,
}

/// Who takes part when a device measures who does each product best. Choices are kept on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Candidates {
    /// Nobody: a rule about sizes chooses tiles.
    #[default]
    None,
    /// Our own tiles. Results are the same bits whatever is chosen.
    Tiles,
    /// Our own tiles, and cublasLt where a kernel is nothing but a product of matrices. Its sums have other bits than ours,
    /// which on one machine, with one version of the library, are the same from run to run.
    Library,
}

/// Looks at a run after each of its kernels.
pub type See<'a> = &'a mut dyn FnMut(&Moment<'_>) -> Result<(), CodegenError>;

/// A moment of a run: a kernel has written its results, and no later one has taken the place of anything that it reads or writes.
pub struct Moment<'a> {
    /// The number of the kernel's plan: 0 for a body, 1 for a tail.
    pub plan: usize,
    /// The kernel's number in its plan.
    pub kernel: usize,
    /// What a buffer of the plan holds.
    pub look: &'a dyn Fn(BufferId) -> Result<Tensor, CodegenError>,
}

/// A compiled program with its memory. It may be handed from thread to thread; only one runs it at a time.
pub trait Executable: Debug + Send {
    /// Runs it once: inputs by name, outputs by name. States are updated.
    ///
    /// # Errors
    /// An input is missing, unknown or not of its type (nothing has happened then), memory is short, or a kernel fails
    /// (states may be anything between before and after).
    fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Outputs, CodegenError>;

    /// As [`run`](Self::run), with the time of each kernel: those of each plan in order, a body's over all microbatches.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn run_timed(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(Outputs, Vec<Duration>), CodegenError>;

    /// As [`run`](Self::run), with a look at it after each kernel of each plan, in order. An error of `see` ends the run.
    ///
    /// # Errors
    /// As [`run`](Self::run), and those of `see`.
    fn run_seen(&mut self, inputs: &[(&str, &Tensor)], see: See<'_>) -> Result<Outputs, CodegenError>;

    /// Starts a run, and does not wait for it where the back end can go on by itself.
    ///
    /// # Errors
    /// As [`run`](Self::run); what goes wrong later is reported by [`Pending::wait`].
    fn enqueue(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Pending, CodegenError> {
        Ok(Pending::Done(self.run(inputs)?))
    }

    /// What runs.
    fn program(&self) -> &ProgramPlan;

    /// Changes the number of threads of the CPU that it runs on, with the same results.
    ///
    /// # Errors
    /// Memory is short.
    fn set_threads(&mut self, threads: usize) -> Result<(), CodegenError>;

    /// Bytes of a device's memory that it takes, states included; 0 on the CPU.
    fn device_bytes(&self) -> usize {
        0
    }

    /// The arena of its temporaries in the memory of the CPU, which other executables may share.
    fn arena(&self) -> Option<&SharedArena> {
        None
    }

    /// What became of a kernel of the plan of this number, if code was kept and there is such a kernel.
    fn listing(&self, _plan: usize, _kernel: &str) -> Option<Listing> {
        None
    }

    /// What became of the library that tuning was allowed to try, in words.
    fn library(&self) -> Option<String> {
        None
    }
}

/// The code of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// What each stage of a row computes, as the code generator has it.
    pub schedule: String,
    /// The IR of the code generator; Cranelift's on the CPU.
    pub ir: String,
    /// The machine code, disassembled.
    pub assembly: String,
}

/// A run that was started. Dropping it does not stop the run.
#[derive(Debug)]
pub enum Pending {
    /// It is over.
    Done(Outputs),
    /// It may be under way.
    Running(Box<dyn Running>),
}

/// A run that a device goes on with by itself.
pub trait Running: Debug + Send {
    /// Whether the run is over, so that waiting for it returns at once.
    ///
    /// # Errors
    /// The device reports one.
    fn is_ready(&self) -> Result<bool, CodegenError>;

    /// Waits for the run: its outputs by name.
    ///
    /// # Errors
    /// The device reports one.
    fn wait(self: Box<Self>) -> Result<Outputs, CodegenError>;
}

impl Pending {
    /// Whether the run is over.
    ///
    /// # Errors
    /// The device reports one.
    pub fn is_ready(&self) -> Result<bool, CodegenError> {
        match self {
            Pending::Done(_) => Ok(true),
            Pending::Running(run) => run.is_ready(),
        }
    }

    /// Waits until the run is over: outputs by name.
    ///
    /// # Errors
    /// The device reports one.
    pub fn wait(self) -> Result<Outputs, CodegenError> {
        match self {
            Pending::Done(outputs) => Ok(outputs),
            Pending::Running(run) => run.wait(),
        }
    }
}
