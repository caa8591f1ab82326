//! Kernfusion: a compiler for Transformers.
//!
//! A model is ordinary Rust code over [`Tensor`](trace::Tensor) handles. Calling it builds a graph, which is
//! differentiated, simplified, fused and lowered to native kernels.
//!
//! The whole of a small program, `examples/quick_start.rs`:
//!
#![doc = concat!("```\n", include_str!("../examples/quick_start.rs"), "```")]
//!
//! [The guide](guide) goes on from here: a GPT, a model and a layer of your own, the IR, models without the compiler. What there is:
//!
//! * [`trace`]: the handles and their operations; [`nn`], [`models`], [`loss`], [`optim`], [`init`]: what is made of them.
//! * [`compile`]: programs become executables.
//! * [`ir`], [`passes`]: the graph, kernels and plans, and what makes one of the other.
//! * [`roofline`], [`scaling`]: what kernels take at least, and steps of several ranks on paper.
//! * [`bisect`]: which step of compilation changes a result; [`fuzz`]: random programs and their judges.
//! * [`tensor_file`], [`atomic_file`], [`input_file`]: what is kept on disk.
//!
//! Texts, checkpoints, training runs and published models are in the crate `kernfusion-lm`, the command in `kernfusion-cli`.

#[cfg(feature = "files")]
pub mod atomic_file;
pub mod bisect;
pub mod compile;
mod error;
pub mod fuzz;
pub mod guide;
pub mod init;
pub mod input_file;
pub mod loss;
pub mod models;
pub mod nn;
pub mod optim;
pub mod roofline;
pub mod scaling;
#[cfg(feature = "files")]
mod state_file;
#[cfg(feature = "files")]
pub mod tensor_file;
#[cfg(test)]
mod testing;
pub mod trace;

pub use error::{Error, Result};
pub use kernfusion_ir as ir;
pub use kernfusion_ir::Tensor as HostTensor;
pub use kernfusion_passes as passes;
pub use kernfusion_passes::WeightType;

/// What most programs use.
pub mod prelude {
    pub use crate::compile::{Outputs, States, Target, planned_memory};
    pub use crate::init::Init;
    pub use crate::loss::{
        activation_regularization, bce, bce_with_logits, counted_mean, cross_entropy, masked_cross_entropy,
        masked_mean, mse, pairwise_loss, ppo_loss, smoothed_token_losses, temporal_activation_regularization,
        token_losses, value_loss,
    };
    pub use crate::models::{
        Bert, BertConfig, EncoderDecoder, EncoderDecoderConfig, Gpt, GptConfig, Mlp, ModelConfig, Preset,
        preset, presets,
    };
    pub use crate::nn::{
        Activation, AttentionConfig, AttentionMask, BatchNorm, Block, BlockConfig, BlockInputs, Convolution,
        CrossAttention, DropConnect, Dropout, Embedding, FeedForward, FeedForwardConfig, Gelu,
        LatentAttention, LatentAttentionConfig, LayerNorm, Linear, Lora, MultiHeadAttention, Norm, NormPlace,
        Normalization, Pairing, RmsNorm, Rope, SelfAttention, SelfAttentionConfig, TransposedConvolution,
        Window,
    };
    pub use crate::optim::{Averaging, Moments, Optimizer, Schedule, Session, TrainStep};
    pub use crate::trace::{Operand, Parameter, Program, Tensor, Trace};
    pub use crate::{Error, HostTensor};
    pub use kernfusion_ir::DType;
}

/// The program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
