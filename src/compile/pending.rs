//! Runs that were started and may be under way.

use crate::error::Result;
use kernfusion_codegen::Outputs;

/// A run that was started by [`Compiled::enqueue`](super::Compiled::enqueue). Dropping it does not stop the run.
#[derive(Debug)]
pub enum Pending {
    /// It is over.
    Done(Outputs),
    /// It may be under way.
    #[cfg(feature = "cuda")]
    Gpu(kernfusion_codegen::cuda::Pending),
}

impl Pending {
    /// Whether the run is over.
    ///
    /// # Errors
    /// The GPU's driver reports one.
    pub fn is_ready(&self) -> Result<bool> {
        match self {
            Pending::Done(_) => Ok(true),
            #[cfg(feature = "cuda")]
            Pending::Gpu(run) => Ok(run.is_ready()?),
        }
    }

    /// Waits until the run is over: outputs by name.
    ///
    /// # Errors
    /// The GPU's driver reports one.
    pub fn wait(self) -> Result<Outputs> {
        match self {
            Pending::Done(outputs) => Ok(outputs),
            #[cfg(feature = "cuda")]
            Pending::Gpu(run) => Ok(run.wait()?),
        }
    }
}
