//! Kernels built by hand: every instruction, access and form of kernel IR against the interpreter.

mod accesses;
mod chains;
mod contractions;
mod executables;
mod images;
mod long_rows;
mod maps;
#[cfg(target_arch = "x86_64")]
mod primitives;
mod reductions;
mod runs;
mod snapshots;
mod support;
