//! A GPU as a back end.

use super::{Cache, CudaExecutable, Device, Options, peaks};
use kernfusion_codegen::analysis::reduces;
use kernfusion_codegen::{Backend, CodegenError, Executable, Peaks, States, Temporaries};
use kernfusion_ir::kernel::{Accepts, Direction, Kernel, ProgramPlan};
use std::sync::atomic::Ordering;

/// A GPU, with how programs run there.
#[derive(Debug, Clone)]
pub struct CudaBackend {
    /// Which.
    pub device: Device,
    /// How kernels are rendered.
    pub options: Options,
}

/// Whether a kernel can be rendered, and if not, why.
///
/// # Errors
/// An operand is more than a load, since tiles of operands are copied from memory as they lie; or rows or columns of a product are
/// reduced, which needs tiles of several blocks of threads.
pub fn accepts(kernel: &Kernel) -> Result<(), &'static str> {
    if kernel.operands().any(|(operand, _)| operand.plain().is_none()) {
        return Err("on a GPU, a product reads its operands from memory");
    }
    let is_reduced = || [Direction::Rows, Direction::Columns].iter().any(|&d| reduces(&kernel.region, d));
    if !kernel.products().is_empty() && kernel.consumers().is_empty() && is_reduced() {
        return Err("on a GPU, a reduction of a product's rows needs all its tiles");
    }
    Ok(())
}

impl Backend for CudaBackend {
    fn accepts(&self) -> Accepts {
        accepts
    }

    fn states(&self) -> States {
        self.device.states()
    }

    fn compile(
        &self,
        program: ProgramPlan,
        states: &States,
        temporaries: Temporaries,
    ) -> Result<Box<dyn Executable>, CodegenError> {
        let (options, cache) = (self.options.clone(), Cache::of_user());
        Ok(Box::new(CudaExecutable::compile(program, states, &self.device, options, temporaries, &cache)?))
    }

    fn bytes_in_use(&self) -> usize {
        self.device.bytes_in_use.load(Ordering::Relaxed)
    }

    fn bytes_needed(&self, program: &ProgramPlan, states: &States) -> Result<usize, CodegenError> {
        CudaExecutable::bytes_needed(program, states, &self.options, Temporaries::Arena)
    }

    fn peaks(&self) -> Result<Peaks, CodegenError> {
        Ok(peaks(&self.device, &self.options, &Cache::of_user())?)
    }

    fn check(&self) -> Result<(), CodegenError> {
        Ok(self.device.check()?)
    }

    fn device_name(&self) -> Option<String> {
        self.device.name().ok()
    }
}
