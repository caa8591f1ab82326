//! A GPU as a back end.

use super::{Cache, CudaExecutable, Device, Options, accepts, peaks};
use kernfusion_codegen::{Backend, CodegenError, Executable, Peaks, States, Temporaries};
use kernfusion_ir::kernel::{Accepts, ProgramPlan};
use std::sync::atomic::Ordering;

/// A GPU, with how programs run there.
#[derive(Debug, Clone)]
pub struct CudaBackend {
    /// Which.
    pub device: Device,
    /// How kernels are rendered.
    pub options: Options,
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
        CudaExecutable::bytes_needed(program, states, &self.device, &self.options, Temporaries::Arena)
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
