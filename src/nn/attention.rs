//! Causal self-attention with several heads (Vaswani et al., "Attention is all you need", 2017, section 3.2).

use super::block::BlockConfig;
use super::{Dropout, Linear};
use crate::init::Init;
use crate::trace::{Tensor, Trace};
use std::sync::Arc;

/// softmax(q·kᵀ/√d_head + mask)·v for each head, on full-width projections of one input.
pub struct MultiHeadAttention {
    path: Arc<str>,
    width: usize,
    heads: usize,
    dropout: Dropout,
    /// `[3·width, width]`: rows for q, then k, then v; each `heads` times the width of a head.
    pub qkv: Linear,
    /// `[width, width]`, with a bias.
    pub proj: Linear,
}

impl MultiHeadAttention {
    /// Declares `name.qkv` and `name.proj`.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, config: &BlockConfig) -> Self {
        let _scope = trace.scope(name);
        let (width, init) = (config.width, Init::Normal { std: config.std });
        let qkv = match config.qkv_bias {
            true => Linear::new(trace, "qkv", width, 3 * width, init),
            false => Linear::without_bias(trace, "qkv", width, 3 * width, init),
        };
        let proj = Linear::new(trace, "proj", width, width, Init::Normal { std: config.residual_std });
        MultiHeadAttention {
            path: trace.path(),
            width,
            heads: config.heads,
            dropout: config.dropout(),
            qkv,
            proj,
        }
    }

    /// `[batch, length, width]` to the same shape; position t sees positions 0 ..= t.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let trace = x.trace();
        let _scope = trace.at(self.path.clone());
        let (width, head_width) = (self.width, self.width / self.heads);
        let [batch, length, _] = x.shape()[..] else {
            x.expect("attention", |_| Some("takes [batch, length, width]".into()));
            return x.clone();
        };
        // [3, batch, heads, length, head width]
        let parts = self.qkv.forward(x).reshape([batch, length, 3, self.heads, head_width]);
        let parts = parts.permute(&[2, 0, 3, 1, 4]);
        let (q, k, v) = (parts.index(0, 0), parts.index(0, 1), parts.index(0, 2));
        let scores = q.matmul_transposed(&k) * (1.0 / (head_width as f64).sqrt());
        let seen = trace.causal_mask(length, length);
        let weights = seen.select(scores, f64::NEG_INFINITY).softmax(-1);
        let mixed = self.dropout.forward(&weights).matmul(&v);
        self.proj.forward(&mixed.permute(&[0, 2, 1, 3]).reshape([batch, length, width]))
    }
}
