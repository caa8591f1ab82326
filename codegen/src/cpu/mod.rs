//! The CPU back end.
//!
//! Below, free of any IR and in a crate of its own: instruction sets ([`isa`]), threads ([`pool`]), memory ([`memory`]), tile
//! primitives ([`tiles`]), matrix products ([`contract`]), and the launching of programs. Above them the lowering of kernels
//! to machine code, and executables ([`executable`]); [`peaks`] measures what bounds them.

pub mod executable;
pub(crate) mod lower;
pub mod object;
pub mod peaks;
pub mod tiled;
mod turns;

pub use lower::accepts;

pub use kernfusion_runtime::{contract, guard, isa, memory, pool, tiles};
