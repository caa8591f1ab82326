//! Random bad input for everything that Kernfusion reads.
//!
//! A case is a good file, or a folder of such, changed in a way that its format suggests. Whatever it says, a reader gives a result or
//! one error: no panic, no end of the process, no more memory than the input justifies. Cases are functions of a seed, a reader and a
//! number, so that a finding can be seen again.

pub mod allocator;
mod case;
mod command;
mod mutate;
mod readers;
mod seeds;

pub use case::{Finding, Outcome, run};
pub use command::run_commands;
pub use mutate::Folder;
pub use readers::{READERS, Reader};
