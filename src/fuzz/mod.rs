//! Random programs and their judges: the compiler must be right about programs that no test's author thought of.
//!
//! ```text
//! seed ──program──► graph, inputs ──running errors──► value ± bound of each element
//!                        │                                   │
//!                        └── eager, compiled, bf16, slices, passes, kernels, text ──► within it?
//! ```
//!
//! A program that breaks a check is made smaller, and `bisect` is asked what makes it wrong. Everything is a function of the seed, so a finding is repeated by its number.

mod culprit;
mod idiom;
mod judge;
mod program;
mod shrink;

pub use culprit::culprit;
pub use judge::{Check, Judge, Violation, checks, judge};
pub use program::{Case, inputs, program};
pub use shrink::shrink;

use kernfusion_ir::samples::Draws;

/// The checks of a seed's program.
pub fn checks_of(seed: u64) -> Vec<Check> {
    checks(&mut Draws::new(seed ^ (1 << 63)))
}
