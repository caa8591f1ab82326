//! The intermediate representations of Kernfusion, and what judges them.
//!
//! * [`Graph`]: the tensor program that users trace, in SSA form over a petgraph stable graph.
//! * [`Op`]: the closed set of primitives, one stanza each: name, type rule, reference evaluation, VJP and
//!   how it enters a kernel.
//! * [`evaluate`](mod@evaluate): the slow, obvious evaluator in `f64` that every other execution is compared with.
//! * [`running_error`]: how far an execution may be off, for each element; [`dual`]: how each element changes with the inputs.
//! * [`kernel`]: the loop-level language between fusion and the back ends.
//! * [`text`]: the textual form (`.kir`), which parses back; [`draw`]: DOT, Mermaid and JSON.
//! * [`samples`]: small and random programs with inputs, which drive every back end.
//!
//! This crate knows nothing of passes, back ends or models.
#![forbid(unsafe_code)]

pub mod build;
pub mod draw;
pub mod dual;
pub mod evaluate;
mod graph;
mod iterations;
pub mod kernel;
mod op;
pub mod origin;
pub mod random;
pub mod running_error;
pub mod samples;
mod tensor;
pub mod text;
mod types;
mod verify;

pub use build::{Builder, broadcast_shape};
pub use graph::{Graph, Node, Output, ValueId};
pub use op::{
    Attribute, Attributes, Binary, Body, Broadcast, Cast, Collective, Compare, Concat, Constant, DotGeneral,
    DynamicSlice, DynamicUpdate, Exchange, Gather, Input, InputRole, Iota, KernelEntry, Op, Pad, Permute,
    RandomBits, Reduce, ReduceOp, Reshape, Scan, ScatterAdd, Select, Slice, Unary, Vjp, Windows,
};
pub use origin::{Lineage, Location, Origin};
pub use tensor::{Data, Tensor};
pub use text::ParseError;
pub use types::{DType, Literal, TensorType, strides};
pub use verify::{Invariant, Place, VerifyError};

/// What can go wrong while a graph is built, read or evaluated; each is the fault of the caller's program or data.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum IrError {
    /// An op does not accept its operands. Names the op, the operand types and the user's line.
    #[error("{op}({operands}): {reason}{origin}")]
    Type {
        /// The op's name.
        op: &'static str,
        /// The operand types, separated by commas.
        operands: String,
        /// What the op's type rule demands.
        reason: String,
        /// Where the user wrote it; prints as lines `at file:line:column` and `in scope`, or as nothing.
        origin: Origin,
    },
    /// A name of an op or dtype that does not exist, or attributes that do not fit.
    #[error("{0}")]
    Attribute(String),
    /// An input that is missing, unknown, or of another type than declared.
    #[error("input \"{name}\": {reason}")]
    Input {
        /// The input's name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A program of several ranks is evaluated with another number of them.
    #[error("the program is for {ranks} ranks side by side, and {given} would be there")]
    Ranks {
        /// How many the program says.
        ranks: usize,
        /// How many there are.
        given: usize,
    },
    /// What is to be computed needs more memory than the system gives.
    #[error("the system has no {bytes} bytes ({} MiB) of memory to give", bytes >> 20)]
    Memory {
        /// How many bytes.
        bytes: usize,
    },
    /// Gradients were asked for that do not exist.
    #[error("gradient of {op}: {reason}{origin}")]
    Gradient {
        /// The op's name.
        op: &'static str,
        /// Why there is none.
        reason: String,
        /// Where the user wrote it.
        origin: Origin,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, IrError>;
