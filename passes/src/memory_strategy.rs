//! How a program is kept small.

/// What is done so that a program takes less memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryStrategy {
    /// Slices of the batch, computed one after another; 1 is all at once.
    pub slices: usize,
    /// Whether products that backward needs are computed again instead of kept.
    pub recomputes: bool,
}

impl MemoryStrategy {
    /// The whole batch at once, and nothing twice.
    pub const NONE: MemoryStrategy = MemoryStrategy { slices: 1, recomputes: false };
}

impl std::fmt::Display for MemoryStrategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let again = if self.recomputes { ", products computed again" } else { "" };
        match self.slices {
            1 => write!(f, "the whole batch at once{again}"),
            slices => write!(f, "the batch in {slices} slices{again}"),
        }
    }
}
