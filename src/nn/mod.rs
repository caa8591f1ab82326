//! Layers: each declares its parameters when it is made, and appends its nodes when it is called.
//!
//! ```
//! use kernfusion::prelude::*;
//!
//! let trace = Trace::new();
//! let layer = Linear::builder(3, 12).init(Init::Normal { std: 0.02 }).build(&trace, "up");
//! let y = layer.forward(&trace.input("x", [5, 3], DType::F32)).gelu();
//! assert_eq!(y.shape(), [5, 12]);
//! assert_eq!(trace.parameters()[0].0.name, "up.weight");
//! ```
//!
//! Parameters have the shapes and, under the names given to the layers, the paths that PyTorch gives them: weights are
//! `[outputs, inputs]`. A layer opens its own module path again when it is called, so its nodes carry that path, and
//! the line of the caller.

mod activation;
mod attention;
mod batch_norm;
mod block;
mod convolution;
mod dropout;
mod embedding;
mod feed_forward;
mod kv_cache;
mod latent_attention;
mod linear;
mod low_rank;
mod mixture;
mod norm;
mod positions;
mod recurrent;
#[cfg(test)]
mod tests;

pub use activation::{Activation, Gelu};
pub use attention::{
    AttentionConfig, AttentionMask, CrossAttention, MultiHeadAttention, QkNorm, QkNormConfig,
};
pub use batch_norm::BatchNorm;
pub use block::{
    Block, BlockConfig, BlockInputs, BranchNorms, Network, NormPlace, SelfAttention, SelfAttentionConfig,
};
pub use convolution::{Convolution, TransposedConvolution, Window};
pub use dropout::{DropConnect, Dropout};
pub use embedding::{Embedding, EmbeddingBuilder};
pub use feed_forward::{FeedForward, FeedForwardConfig};
pub use kv_cache::KvCache;
pub use latent_attention::{LatentAttention, LatentAttentionConfig};
pub use linear::{Linear, LinearBuilder};
pub use low_rank::{Lora, is_adapter};
pub use mixture::{Mixture, MixtureConfig, balancing_loss};
pub use norm::{LayerNorm, Norm, Normalization, RmsNorm};
pub use positions::{BASE, Pairing, RelativePositions, RelativeShape, Rope, RopeScaling};
pub use recurrent::{Cell, CellWeights, Recurred, Recurrent, RecurrentConfig};
