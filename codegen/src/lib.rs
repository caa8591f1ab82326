//! Back ends of Kernfusion: from kernel IR to code that runs.

pub mod cpu;
mod error;
pub mod interpret;

pub use cpu::executable::{Executable, Memory, Options, Outputs};
pub use cpu::states::States;
pub use error::CodegenError;
pub use interpret::interpret;
