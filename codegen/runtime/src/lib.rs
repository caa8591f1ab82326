//! What compiled kernels of Kernfusion need when they run, and nothing that compiles: instruction sets ([`isa`]), threads
//! ([`pool`]), memory ([`memory`], and [`guard`] for tests), functions on rows of numbers ([`math`]), matrix products ([`gemm`]), alone ([`product`]) and one
//! after another on the same rows ([`chain`]), and the launching of all this ([`launch`]). What was compiled ahead of
//! time is an [`Artefact`] in an object file that a program links, with its parameters in a file beside it: a [`Model`] that reads a
//! text, or a [`TensorFunction`]; [`c`] is the same for programs in C.

mod amx;
#[cfg(feature = "artefact")]
pub mod artefact;
#[cfg(feature = "artefact")]
pub mod c;
mod cache;
pub mod chain;
#[cfg(feature = "artefact")]
mod error;
#[cfg(feature = "artefact")]
mod function;
pub mod functions;
pub mod gemm;
pub mod guard;
pub mod isa;
pub mod launch;
#[cfg(feature = "artefact")]
mod loaded;
pub mod math;
pub mod memory;
#[cfg(feature = "artefact")]
mod model;
pub mod parts;
pub mod pool;
pub mod product;
mod sync;
#[cfg(test)]
mod testing;
#[cfg(feature = "artefact")]
mod weights;

#[cfg(feature = "artefact")]
pub use artefact::Artefact;
#[cfg(feature = "artefact")]
pub use error::ModelError;
#[cfg(feature = "artefact")]
pub use function::{Number, TensorFunction, bytes_of, bytes_of_mut};
#[cfg(feature = "artefact")]
pub use model::Model;
