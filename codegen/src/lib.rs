//! Back ends of Kernfusion: from kernel IR to code that runs.

pub mod cpu;
pub mod cuda;
mod error;
mod peaks;
mod states;

pub use cpu::executable::{Executable, Memory, Options, Outputs, See};
pub use cpu::peaks::MemoryMeter;
pub use cpu::tiled::{Slicing, TiledExecutable};
pub use error::CodegenError;
pub use kernfusion_runtime::memory::SharedArena;
pub use peaks::Peaks;
pub use states::States;
