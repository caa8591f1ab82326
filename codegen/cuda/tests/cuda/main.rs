//! The CUDA back end without a GPU: its generated source, compiled for the CPU, against the reference evaluator and the
//! interpreter of kernels, under every schedule of threads and copies.

mod angles;
mod banks;
mod collectives;
mod gemv;
mod grids;
mod groups;
mod judge;
mod mutations;
#[cfg(feature = "driver")]
mod nvrtc;
mod products;
mod rows;
mod samples;
mod snapshots;
mod splits;
mod strips;
#[allow(dead_code, reason = "kernels by hand need less of it than those of the CPU back end")]
#[path = "../../../cpu/tests/kernels/support.rs"]
mod support;
