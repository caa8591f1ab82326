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
//! * [`text`], [`sample`]: from text to batches, from logits to text; [`generate`], [`score`], [`fill`], [`translate`]: what
//!   trained models of each kind do.
//! * [`train`], [`tune`]: runs on a text, and what comes after them: responses, preferences, rewards.
//! * [`report`], [`tensorboard`]: what is shown of runs and measurements; [`experiment`]: the two experiments of the thesis.
//! * [`bisect`]: which step of compilation changes a result.
//! * [`checkpoint`], [`hugging_face`], [`jsonl`], [`fetch`]: what is kept on disk or comes from the network.
//! * [`ahead_of_time`]: models for programs without the compiler.

pub mod ahead_of_time;
mod atomic_file;
pub mod bisect;
pub mod checkpoint;
pub mod compile;
mod error;
pub mod experiment;
pub mod fetch;
pub mod fill;
pub mod floor;
mod folder;
pub mod fuzz;
pub mod generate;
pub mod guide;
pub mod hugging_face;
pub mod init;
pub mod input_file;
pub mod jsonl;
pub mod loss;
pub mod models;
pub mod nn;
pub mod optim;
pub mod report;
pub mod sample;
pub mod score;
pub mod tensor_file;
pub mod tensorboard;
#[cfg(test)]
mod testing;
pub mod text;
pub mod trace;
pub mod train;
pub mod translate;
pub mod tune;
pub mod viewer;

pub use error::{Error, Result};
pub use folder::FolderError;
pub use kernfusion_ir::Tensor as HostTensor;

/// What most programs use.
pub mod prelude {
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
        Activation, AttentionConfig, BatchNorm, Block, BlockConfig, Convolution, CrossAttention, DropConnect,
        Dropout, Embedding, FeedForward, FeedForwardConfig, Gelu, LatentAttention, LatentAttentionConfig,
        LayerNorm, Linear, Lora, MultiHeadAttention, Norm, NormPlace, Normalization, Pairing, RmsNorm, Rope,
        SelfAttention, SelfAttentionConfig, Sight, Surroundings, TransposedConvolution, Window,
    };
    pub use crate::optim::{Averaging, Moments, Optimizer, Schedule, TrainStep};
    pub use crate::trace::{Operand, Parameter, Program, Tensor, Trace};
    pub use crate::{Error, HostTensor};
    pub use kernfusion_ir::DType;
}
