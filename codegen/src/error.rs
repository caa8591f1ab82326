//! What can go wrong between a plan and its results.

use crate::CommunicationError;
use kernfusion_ir::TensorType;
use kernfusion_runtime::isa::IsaError;
use kernfusion_runtime::memory::OutOfMemory;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// An error of a back end. `Debug` shows the message, so that a `main` that returns one, and an `unwrap`, say what a person can read.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum CodegenError {
    /// The instruction set that was asked for cannot be used.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// The system refused memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// Ranks cannot go on together.
    #[error(transparent)]
    Communication(#[from] CommunicationError),
    /// A device, or what programs for it need.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The back end cannot run a kernel.
    #[error("kernel \"{kernel}\": {what} is not supported by this back end")]
    Unsupported {
        /// The kernel's name.
        kernel: String,
        /// What it asks for.
        what: String,
    },
    /// Cranelift refused a function: a mistake of this crate.
    #[error("kernel \"{kernel}\": {message}")]
    Backend {
        /// The kernel's name.
        kernel: String,
        /// What Cranelift said.
        message: String,
    },
    /// An input is missing, unknown, or not of its declared type.
    #[error("input \"{name}\": {reason}")]
    Input {
        /// The input's name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Several inputs are missing: their names and types.
    #[error("inputs {0} are missing")]
    MissingInputs(String),
    /// An output does not exist, or is not what was asked for.
    #[error("output \"{name}\" {reason}")]
    Output {
        /// The name that was asked for.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A state exists with another type than the plan's.
    #[error("state \"{name}\": is {found}, the program expects {expected}")]
    State {
        /// The state's name.
        name: String,
        /// The type the program declares.
        expected: TensorType,
        /// The type of the state that exists.
        found: TensorType,
    },
    /// A state was to take a value of another type.
    #[error("state \"{name}\" is {expected}, its new value {found}")]
    Value {
        /// The state's name.
        name: String,
        /// The state's type.
        expected: TensorType,
        /// The type of the value.
        found: TensorType,
    },
    /// There is no state of that name.
    #[error("there is no state \"{name}\" (there are: {others})")]
    NoState {
        /// The name that was asked for.
        name: String,
        /// Names that there are.
        others: String,
    },
    /// A state lies in the memory of another device than the program's.
    #[error("state \"{name}\" lies {place}, where this program does not run")]
    Elsewhere {
        /// The state's name.
        name: String,
        /// Where it lies.
        place: &'static str,
    },
    /// A thread panicked while it ran a kernel; the run's results are lost.
    #[error("kernel \"{kernel}\" failed: {message}")]
    Panic {
        /// The kernel's name.
        kernel: String,
        /// The panic's message.
        message: String,
    },
}

impl fmt::Debug for CodegenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An error of a back end for a device, in that back end's own type.
#[derive(Debug, Clone)]
pub struct DeviceError(Arc<dyn Error + Send + Sync>);

impl DeviceError {
    /// Of this error.
    pub fn new(error: impl Error + Send + Sync + 'static) -> Self {
        DeviceError(Arc::new(error))
    }

    /// The back end's error, if it is of this type.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for DeviceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl PartialEq for DeviceError {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}
