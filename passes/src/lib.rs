//! The passes of Kernfusion: free functions over graphs, in a commented list, run by one runner.
//!
//! ```text
//! Graph ──grad──► Graph ──PIPELINE──► Graph ──fuse──► KernelGraph ──plan──► Plan
//! ```
//!
//! * [`grad`]: symbolic reverse-mode differentiation.
//! * [`PIPELINE`] and [`run`]: simplification; times, verifies and dumps each pass, and names the one that fails.
//! * [`GraphDiff`]: what a pass changed.
//! * [`simplify`](simplify::simplify): equal and cheaper, in e-graphs.
//! * [`MIXED_PRECISION`]: products of `bf16`, and `bf16` activations kept for backward.
//! * [`INT8_PRODUCTS`]: products of bytes, where a matrix is only read.
//! * [`DEQUANTIZED_PRODUCTS`]: products of bytes, where a quantized model has them.
//! * [`OF_CPUS`], [`OF_CPUS_OF_F32`]: fewer multiplications than a convolution has by itself.
//! * [`OF_GPUS`]: what kernels of two products would otherwise compute or keep twice there.
//! * [`quantize_weights`]: parameters kept as `bf16`, `f16`, bytes or half bytes, for programs that only read them.
//! * [`fuse`](fuse::fuse): from a graph to kernels, recording every refusal.
//! * [`plan`](plan::plan): memory for all buffers, before anything runs.
//! * [`divide`](microbatch::divide): from a program to one of a microbatch and one of the rest, before simplification.
//!
//! Passes rebuild a graph in execution order; they never edit it in place. This crate knows nothing of back ends.
#![forbid(unsafe_code)]

mod autodiff;
mod bf16_activations;
mod byte_tables;
mod closed_form;
mod cse;
mod dce;
mod dequantized_products;
mod fold;
mod forward_set;
pub mod fuse;
mod graph_diff;
mod int8_products;
mod loops;
mod memory_strategy;
pub mod microbatch;
mod mixed_precision;
mod parameters;
pub mod plan;
mod product_operands;
mod quantize_weights;
mod rebuild;
mod reuse_products;
mod runner;
mod scale_products;
pub mod simplify;
mod sort_rows;
mod split_reductions;
mod window_sums;
mod winograd;

pub use autodiff::grad;
pub use closed_form::ClosedForm;
pub use graph_diff::GraphDiff;
pub use int8_products::has_int8_products;
pub use memory_strategy::MemoryStrategy;
pub use quantize_weights::{GROUP, HALF_BYTE_OFFSET, WeightType, quantize_weights, scale_of, scaled_groups};
pub use rebuild::Rebuild;
pub use runner::{
    DEQUANTIZED_PRODUCTS, INT8_PRODUCTS, MIXED_PRECISION, OF_CPUS, OF_CPUS_OF_F32, OF_GPUS, OTHERS, Observer,
    PIPELINE, Pass, PassError, PassReport, all, find, run,
};
