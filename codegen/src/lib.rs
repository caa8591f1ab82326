//! What every back end of Kernfusion offers and needs: [`Backend`], [`Executable`], [`States`], and the analyses of kernel IR that
//! more than one of them uses. The back ends are crates of their own, `kernfusion-cpu` and `kernfusion-cuda`.

pub mod analysis;
pub mod axes;
mod backend;
mod communicator;
mod error;
mod half_bytes;
mod inputs;
mod names;
mod outputs;
mod peaks;
mod states;

pub use backend::{Backend, Candidates, Executable, Listing, Moment, Pending, Running, See, Temporaries};
pub use communicator::{
    Collectives, CommunicationError, Communicator, LibraryCollectives, part_of, planned, threads,
    threads_within,
};
pub use error::{CodegenError, DeviceError};
pub use half_bytes::{HalfBytes, half_bytes};
pub use inputs::check_inputs;
pub use kernfusion_runtime::memory::SharedArena;
pub use names::listed;
pub use outputs::Outputs;
pub use peaks::Peaks;
pub use states::{DeviceAllocator, DeviceMemory, Held, State, States};
