//! Kernfusion: a compiler for Transformers.
//!
//! A model is ordinary Rust code over [`Tensor`](trace::Tensor) handles. Calling it builds a graph, which is
//! differentiated, simplified, fused and lowered to native kernels.
//!
//! ```
//! use kernfusion::prelude::*;
//!
//! let trace = Trace::training();
//! let config = GptConfig { layers: 1, width: 32, ..GptConfig::default() };
//! let model = Gpt::new(&trace, &config)?; // declares its parameters under their module paths
//! let (x, y) = (trace.input("x", [2, 64], DType::I32), trace.input("y", [2, 64], DType::I32));
//! let loss = cross_entropy(&model.forward(&x), &y);
//! // Gradients and updates are traced too: one training step is one program.
//! let step = TrainStep::new(&loss, &Optimizer::adamw(3e-4), Some(1.0))?;
//! assert_eq!(step.program.parameter_count(), config.parameters());
//! # Ok::<(), kernfusion::Error>(())
//! ```
//!
//! * [`trace`]: the handles and their operations; [`nn`], [`models`], [`loss`], [`optim`], [`init`]: what is made of them.
//! * [`text`], [`sample`]: from text to batches, from logits to text; [`generate`], [`score`], [`fill`], [`translate`]: what
//!   trained models of each kind do.
//! * [`train`], [`tune`]: runs on a text, and what comes after them: responses, preferences, rewards.
//! * [`experiment`]: the two experiments of the thesis, and their reports.
//! * [`checkpoint`], [`jsonl`], [`fetch`]: what is kept on disk or comes from the network.

mod atomic_file;
pub mod checkpoint;
pub mod compile;
mod error;
pub mod experiment;
pub mod fetch;
pub mod fill;
pub mod floor;
pub mod generate;
pub mod init;
pub mod jsonl;
pub mod loss;
pub mod models;
pub mod nn;
pub mod optim;
pub mod sample;
pub mod score;
pub mod tensor_file;
#[cfg(test)]
mod testing;
pub mod text;
pub mod trace;
pub mod train;
pub mod translate;
pub mod tune;
pub mod viewer;

pub use error::{Error, Result};
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
