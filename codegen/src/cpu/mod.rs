//! The CPU back end.
//!
//! Below, free of any IR: instruction sets ([`isa`]), threads ([`pool`]), memory ([`memory`]), tile primitives
//! ([`tiles`]) and matrix products ([`contract`]). Above them the lowering of kernels to machine code, and
//! executables ([`executable`]); [`peaks`] measures what bounds them.

pub mod contract;
pub mod executable;
pub mod isa;
mod launch;
pub(crate) mod lower;
pub mod memory;
pub mod peaks;
pub mod pool;
#[cfg(test)]
mod testing;
pub mod tiled;
pub mod tiles;
mod turns;
