//! How a program is kept small.

/// What is done so that a program takes less memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryStrategy {
    /// Microbatches, computed one after another; 1 is all at once.
    pub microbatches: usize,
    /// Whether products that backward needs are computed again instead of kept.
    pub recompute: bool,
}

impl MemoryStrategy {
    /// The whole batch at once, and nothing twice.
    pub const NONE: MemoryStrategy = MemoryStrategy { microbatches: 1, recompute: false };
}

impl std::fmt::Display for MemoryStrategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let again = if self.recompute { ", products computed again" } else { "" };
        match self.microbatches {
            1 => write!(f, "the whole batch at once{again}"),
            microbatches => write!(f, "the batch in {microbatches} microbatches{again}"),
        }
    }
}
