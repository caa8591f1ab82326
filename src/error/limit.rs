//! Memory limits that cannot be met.

use kernfusion_passes::MemoryStrategy;
use kernfusion_passes::microbatch::MicrobatchError;

/// A memory limit that cannot be met.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// No number of microbatches fits.
    #[error(
        "the memory limit of {} is {} too small: {} are needed at least ({memory}), of which {} are in use already",
        mebibytes(*limit), mebibytes(needed - limit), mebibytes(*needed), mebibytes(*in_use)
    )]
    TooSmall {
        /// The limit in bytes.
        limit: usize,
        /// The least number of bytes that would do.
        needed: usize,
        /// What was in use before the program was compiled: the rest of the process, or of the GPU's memory.
        in_use: usize,
        /// The way in which it would.
        memory: MemoryStrategy,
    },
    /// It does not fit at once, and not in microbatches for another reason.
    #[error("the memory limit of {} is {} too small, and the program {cause}", mebibytes(*limit), mebibytes(needed - limit))]
    Whole {
        /// The limit in bytes.
        limit: usize,
        /// The least number of bytes that the program takes at once.
        needed: usize,
        /// Why it cannot be computed in microbatches.
        cause: Box<MicrobatchError>,
    },
}

fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}
