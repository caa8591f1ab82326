//! The CPU as a back end.

use crate::collective::bucket_bytes;
use crate::{CpuExecutable, Options, accepts, peaks, resident_bytes};
use kernfusion_codegen::{Backend, CodegenError, Executable, Peaks, States, Temporaries};
use kernfusion_ir::kernel::{Accepts, ProgramPlan};

/// Memory beside plans: machine code and what its generation leaves behind, batches.
const ALLOWANCE: usize = 24 << 20;

/// Memory of each thread: packed operands, rows, its stack.
const THREAD_ALLOWANCE: usize = 8 << 20;

/// This machine's CPU.
#[derive(Debug, Clone, Default)]
pub struct CpuBackend {
    /// How programs run there. Where temporaries live is said with each program.
    pub options: Options,
}

impl CpuBackend {
    fn threads(&self) -> usize {
        self.options.pool.as_ref().map_or(self.options.thread_count(), |pool| pool.threads())
    }
}

impl Backend for CpuBackend {
    fn accepts(&self) -> Accepts {
        accepts
    }

    fn states(&self) -> States {
        States::new()
    }

    fn compile(
        &self,
        program: ProgramPlan,
        states: &States,
        temporaries: Temporaries,
    ) -> Result<Box<dyn Executable>, CodegenError> {
        let options = Options { temporaries, ..self.options.clone() };
        Ok(Box::new(CpuExecutable::compile(program, states, &options)?))
    }

    fn bytes_in_use(&self) -> usize {
        resident_bytes()
    }

    fn bytes_needed(&self, program: &ProgramPlan, states: &States) -> Result<usize, CodegenError> {
        let new = program.states().into_iter().filter(|(name, _)| states.ty(name).is_none());
        let arena = program.arena_bytes();
        let shares = self.options.arena.as_ref().is_some_and(|shared| shared.len() >= arena);
        let own = new.map(|(_, bytes)| bytes).sum::<usize>() + if shares { 0 } else { arena };
        let prepared: usize = program.plans().map(|(plan, _)| plan.prepared_bytes()).sum();
        Ok(own + prepared + bucket_bytes(program) + ALLOWANCE + self.threads() * THREAD_ALLOWANCE)
    }

    fn peaks(&self) -> Result<Peaks, CodegenError> {
        peaks(self.threads(), self.options.products)
    }

    fn check(&self) -> Result<(), CodegenError> {
        Ok(())
    }

    fn device_name(&self) -> Option<String> {
        None
    }
}
