//! The CUDA back end: kernel IR as CUDA C++.
//!
//! ```text
//! Plan ──Renderer──► Function (source), Launches         ──NVRTC──► PTX, cubin
//!                                    └── host compiler + emulator ──► results without a GPU
//! ```
//!
//! A function is one kernel's work or a part of it: a map (`map`), rows (`rows`), a tile of products
//! (`contraction`) or products with what follows them (`chain`). All of them render the same regions (`body`), and
//! whatever no function does in one go is several kernels (`rewrite`). So nothing here knows of softmax or attention.
//!
//! Generated source uses, beyond plain C++, only what the headers in `headers/` define. `seam.cuh` has two bodies: inline
//! PTX, and an emulator on fibers, so that the very source that NVRTC compiles runs on the CPU in tests ([`emulator`]).
//!
//! Results are deterministic: every sum has one order, which depends on shapes alone, and there are no atomics.

mod accepts;
#[cfg(feature = "driver")]
mod backend;
mod body;
#[cfg(feature = "driver")]
mod cache;
mod chain;
mod collective;
#[cfg(feature = "driver")]
mod compiler;
mod contraction;
#[cfg(feature = "driver")]
mod cublaslt;
#[cfg(feature = "driver")]
mod device;
pub mod emulator;
mod error;
#[cfg(feature = "driver")]
mod executable;
mod gemv;
mod grid;
mod group;
mod invariants;
mod kept;
mod launches;
#[cfg(feature = "driver")]
mod layout;
#[cfg(feature = "driver")]
mod loaded;
mod lower;
mod map;
mod matrices;
#[cfg(feature = "driver")]
pub mod model;
#[cfg(feature = "driver")]
mod nccl;
#[cfg(feature = "driver")]
pub mod nvrtc;
#[cfg(feature = "driver")]
mod parallel;
#[cfg(feature = "driver")]
mod peaks;
#[cfg(feature = "driver")]
mod pending;
mod prefetch;
mod rewrite;
mod rows;
mod running;
mod scatter;
mod source;
mod strength;
mod strip;
mod strip_layout;
mod sweeps;
mod through_memory;
mod tiles;
#[cfg(feature = "driver")]
mod tune;

pub use accepts::accepts;
#[cfg(feature = "driver")]
pub use backend::CudaBackend;
#[cfg(feature = "driver")]
pub use cache::Cache;
#[cfg(feature = "driver")]
pub use cublaslt::LibraryUse;
#[cfg(feature = "driver")]
pub use device::{Device, DeviceMemory};
pub use error::CudaError;
#[cfg(feature = "driver")]
pub use executable::CudaExecutable;
pub use grid::MOST_BLOCKS;
pub use kernfusion_codegen::Candidates;
use kernfusion_codegen::{Collectives, Communicator};
pub use launches::{Argument, Function, Launch, Launches, LibraryProduct, Parameter, StreamOp};
pub use lower::Renderer;
pub use matrices::{Algorithm, Matrix, MatrixProduct};
#[cfg(feature = "driver")]
use parallel::in_parallel;
#[cfg(feature = "driver")]
pub use peaks::peaks;
use std::sync::Arc;

/// The headers that generated source includes, by name.
pub const HEADERS: [(&str, &str); 8] = [
    ("seam.cuh", include_str!("headers/seam.cuh")),
    ("numbers.cuh", include_str!("headers/numbers.cuh")),
    ("reduce.cuh", include_str!("headers/reduce.cuh")),
    ("tile.cuh", include_str!("headers/tile.cuh")),
    ("warpgroup.cuh", include_str!("headers/warpgroup.cuh")),
    ("chain.cuh", include_str!("headers/chain.cuh")),
    ("warpgroup_chain.cuh", include_str!("headers/warpgroup_chain.cuh")),
    ("gemv.cuh", include_str!("headers/gemv.cuh")),
];

/// The emulator's header, which the seam includes where there is no CUDA compiler.
const EMULATOR: (&str, &str) = ("emulator.hpp", include_str!("headers/emulator.hpp"));

/// How kernels are rendered.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether products of `f32` run on tensor cores, with operands rounded to 10 bits of fraction (TF32).
    pub tf32: bool,
    /// Whether warpgroups compute products of `bf16` and `f16`, which takes an architecture that has them ([`has_warpgroups`]).
    pub warpgroups: bool,
    /// The most bytes of shared memory that a launch asks for, for each block, beside that of a function's arrays ([`Options::of`]).
    pub shared_bytes: usize,
    /// Where values of products must be in memory, they are computed in slices of this many bytes, in sixteen at most, and their entries in pieces
    /// of as many, in four of a slice at most.
    pub slice_bytes: usize,
    /// Whether maps that stand next to each other, and do not need each other, run as one launch.
    pub groups: bool,
    /// The tile of products (64 or 128 rows, 64 or 128 columns, or 128 rows and 256 columns for warpgroups) where several fit, instead of one chosen by their size.
    pub tile: Option<[usize; 2]>,
    /// Who takes part when a device measures, before it runs a program, who does each product best.
    pub candidates: Candidates,
    /// The way to the other ranks of programs that exchange.
    pub communicator: Option<Arc<dyn Communicator>>,
    /// Who sums what they exchange.
    pub collectives: Collectives,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            tf32: false,
            warpgroups: false,
            shared_bytes: grid::shared_bytes("sm_80"),
            slice_bytes: 64 << 20,
            groups: true,
            tile: None,
            candidates: Candidates::None,
            communicator: None,
            collectives: Collectives::Ordered,
        }
    }
}

impl Options {
    /// As by default, for an architecture such as `sm_90a` or `compute_80`: what its cards multiply with, and what shared memory they have.
    pub fn of(architecture: &str) -> Self {
        let (warpgroups, shared_bytes) = (has_warpgroups(architecture), grid::shared_bytes(architecture));
        Options { warpgroups, shared_bytes, ..Options::default() }
    }
}

/// Whether code for an architecture may have products of warpgroups: `sm_90a` and its virtual one, `compute_90a`. No card before and none
/// after Hopper has them.
pub fn has_warpgroups(architecture: &str) -> bool {
    matches!(architecture, "sm_90a" | "compute_90a")
}

/// The PTX of a function for an architecture such as `compute_90`.
///
/// # Errors
/// NVRTC is not installed, or refuses the architecture.
#[cfg(feature = "driver")]
pub fn ptx(function: &Function, architecture: &str) -> Result<String, CudaError> {
    let binary = nvrtc::compile(function, architecture, nvrtc::Form::Ptx)?;
    Ok(String::from_utf8_lossy(&binary.code).into_owned())
}

/// The PTX of a function, which takes a build with the feature `driver`.
///
/// # Errors
/// Always.
#[cfg(not(feature = "driver"))]
pub fn ptx(_: &Function, _: &str) -> Result<String, CudaError> {
    Err(CudaError::NotBuilt)
}
