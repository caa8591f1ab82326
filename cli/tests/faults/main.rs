//! Faults of the machine: a call that fails, a full disk, no memory, no thread, signals, a process that is killed.
//!
//! Whatever fails, the last checkpoint is whole, the message names file and cause, nothing temporary stays, and a resumed run ends
//! with the bytes of one that never stopped. `shim.c` makes the calls fail; without a C compiler these tests say that they are
//! skipped. `KERNFUSION_FAULTS=all` tries every error at every call, and `KERNFUSION_KILLS` says how often a run is killed (20).

#![cfg(target_os = "linux")]

mod files;
mod killed;
mod resources;
mod shim;
mod signals;
#[path = "../cli/workplace.rs"]
#[allow(dead_code, reason = "the tests of commands use all of it")]
mod workplace;
