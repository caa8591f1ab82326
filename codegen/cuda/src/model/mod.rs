//! What a step takes on a card that is not here: a model of time from machine code.
//!
//! ```text
//! Plan ──Renderer──► functions, launches ──NVRTC──► cubins ──nvdisasm──► instructions
//!                         │ blocks, bytes             │ registers, memory     │ executed by some warps (`warp`)
//!                         └──────────────┬────────────┴───────────────────────┘
//!                                     `bounds`: the longest of what each part of the card needs
//! ```
//!
//! A warp's whole numbers are computed, so that trip counts, addresses, bank conflicts and pieces of memory are those of a card, not
//! guesses; a few warps stand for all ([`SAMPLES`]). What is assumed of cards stands in one table ([`CARDS`]). It is a model: clocks, caches
//! between kernels, and whatever else is not in it, are not on a card as they are here.

mod access;
mod arithmetic;
mod bounds;
mod card;
mod cubin;
mod disassembler;
mod estimate;
mod lanes;
mod occupancy;
mod pipe;
#[cfg(test)]
mod published;
mod sass;
mod warp;

pub use bounds::{Bound, Work};
pub use card::{CARDS, Card, LAUNCH_GAP, MEMORY_SHARE};
pub use disassembler::is_present;
pub use estimate::{Estimate, Model, SAMPLES, Step};
pub use occupancy::{Resources, resident_blocks};
pub use sass::Sass;

use super::CudaError;
use std::path::PathBuf;

/// What can go wrong on the way to a time.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// NVRTC.
    #[error(transparent)]
    Compiler(#[from] CudaError),
    /// The disassembler is not installed.
    #[error(
        "{}, which reads machine code, cannot be run ({cause}): install it with `pip install nvidia-cuda-nvdisasm`, and set \
         KERNFUSION_NVDISASM to the file nvdisasm of that package (in nvidia/cu13/bin)", program.display()
    )]
    NoDisassembler {
        /// What was tried.
        program: PathBuf,
        /// Why not.
        cause: String,
    },
    /// The disassembler refuses a file.
    #[error("nvdisasm: {message}")]
    Refused {
        /// Its first line.
        message: String,
    },
    /// The disassembler prints something that is not understood.
    #[error("nvdisasm prints a line that is not understood: {line}")]
    Listing {
        /// The line.
        line: String,
    },
    /// A cubin is not as NVRTC makes them.
    #[error("a cubin cannot be read: {what}")]
    Cubin {
        /// What is the matter with it.
        what: String,
    },
    /// A step that the model does not know.
    #[error("the model of a card knows no {what}")]
    Unknown {
        /// What it is.
        what: &'static str,
    },
}
