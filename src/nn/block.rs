//! One block of a decoder: attention and a feed-forward network, each with a norm and a residual connection.

use super::{Dropout, FeedForward, Gelu, LayerNorm, MultiHeadAttention};
use crate::trace::{Tensor, Trace};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Where a block normalises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlace {
    /// x + branch(norm x), as in GPT-2.
    #[default]
    Pre,
    /// norm(x + branch x), as in the first Transformer.
    Post,
}

/// The shape of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockConfig {
    /// d, a multiple of `heads`.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Dropout probability of attention weights and branches.
    pub dropout: f64,
    /// Whether the projections to q, k and v have a bias.
    pub qkv_bias: bool,
    /// The activation.
    pub gelu: Gelu,
    /// Where norms stand.
    pub norm: NormPlace,
    /// Standard deviation of the first weights.
    pub std: f64,
    /// That of the two matrices whose results are added to the residual stream.
    pub residual_std: f64,
}

impl BlockConfig {
    pub(super) fn dropout(&self) -> Dropout {
        Dropout { probability: self.dropout }
    }
}

/// A block.
pub struct Block {
    path: Arc<str>,
    norm: NormPlace,
    dropout: Dropout,
    /// The norm of the attention branch.
    pub ln1: LayerNorm,
    /// Attention.
    pub attn: MultiHeadAttention,
    /// The norm of the feed-forward branch.
    pub ln2: LayerNorm,
    /// The feed-forward network.
    pub mlp: FeedForward,
}

impl Block {
    /// Declares `name.ln1`, `name.attn`, `name.ln2` and `name.mlp`.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, config: &BlockConfig) -> Self {
        let _scope = trace.scope(name);
        Block {
            path: trace.path(),
            norm: config.norm,
            dropout: config.dropout(),
            ln1: LayerNorm::new(trace, "ln1", config.width),
            attn: MultiHeadAttention::new(trace, "attn", config),
            ln2: LayerNorm::new(trace, "ln2", config.width),
            mlp: FeedForward::new(trace, "mlp", config),
        }
    }

    /// `[batch, length, width]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        match self.norm {
            NormPlace::Pre => {
                let x = x + self.dropout.forward(&self.attn.forward(&self.ln1.forward(x)));
                &x + self.dropout.forward(&self.mlp.forward(&self.ln2.forward(&x)))
            }
            NormPlace::Post => {
                let x = self.ln1.forward(&(x + self.dropout.forward(&self.attn.forward(x))));
                self.ln2.forward(&(&x + self.dropout.forward(&self.mlp.forward(&x))))
            }
        }
    }
}
