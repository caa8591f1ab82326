//! The CPU back end: kernel IR to machine code, and executables.
//!
//! ```text
//! ProgramPlan ──CpuBackend──► CpuExecutable: a PlanExecutable for each plan, over the same states, threads and arena
//! ```
//!
//! Below, free of any IR and in a crate of its own: instruction sets ([`isa`]), threads ([`pool`]), memory ([`memory`]), tile
//! primitives ([`math`]), matrix products ([`gemm`]), and the launching of programs. [`peaks()`] measures what bounds them.

mod backend;
mod collective;
mod executable;
mod loops;
mod lower;
#[cfg(feature = "object")]
pub mod object;
mod peaks;
mod plan;
mod preparation;
mod resident;

pub use backend::CpuBackend;
pub use executable::CpuExecutable;
pub use lower::Products;
pub use lower::accepts;
pub use peaks::{Meter, peaks};
pub use plan::{Options, PlanExecutable};
pub use resident::resident_bytes;

pub use kernfusion_runtime::memory::SharedArena;
pub use kernfusion_runtime::{gemm, guard, isa, math, memory, pool};
