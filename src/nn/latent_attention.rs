//! Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1): keys and values of all heads are made from
//! one narrow vector, which is all that a cache needs to keep.
//!
//! ```text
//! c = norm(x W_DKV)      k_C = c W_UK      v = c W_UV      k_R = rope(x W_KR), one for all heads
//! c' = norm(x W_DQ)      q_C = c' W_UQ     q_R = rope(c' W_QR)
//! softmax((q_C · k_Cᵀ + q_R · k_Rᵀ) / √(d_head + d_rope)) · v
//! ```

use super::attention::{is_sequence, joined, rotated};
use super::{AttentionMask, Dropout, KvCache, Linear, RmsNorm, Rope};
use crate::init::Init;
use crate::trace::{Tensor, Trace};
use std::sync::Arc;

/// The shape of a latent attention layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentAttentionConfig {
    /// d, the width of inputs and results.
    pub width: usize,
    /// Heads.
    pub heads: usize,
    /// Width of the latent vector that queries are made from; without it they are made from the input.
    pub query_rank: Option<usize>,
    /// Width of the latent vector that keys and values are made from.
    pub kv_rank: usize,
    /// The width of a head's query and key without the rotated part.
    pub head_width: usize,
    /// The width of the rotated part, even.
    pub rope_width: usize,
    /// The width of a head's value.
    pub value_width: usize,
    /// The rotation.
    pub rope: Rope,
    /// What a query sees.
    pub mask: AttentionMask,
    /// Dropout probability of the weights.
    pub dropout: f64,
    /// ε of the norms of latent vectors.
    pub epsilon: f64,
    /// Standard deviation of the first weights.
    pub std: f64,
    /// That of the last projection, whose results are added to the residual stream.
    pub residual_std: f64,
}

/// Attention whose keys and values come from a narrow vector. No projection has a bias.
pub struct LatentAttention {
    path: Arc<str>,
    config: LatentAttentionConfig,
    /// `[query rank, width]` and its norm, if queries have a latent vector.
    pub q_down: Option<(Linear, RmsNorm)>,
    /// `[heads · (head width + rope width), query rank or width]`: for each head the plain part, then the rotated one.
    pub q_up: Linear,
    /// `[kv rank + rope width, width]`: rows for the latent vector, then for the rotated key.
    pub kv_down: Linear,
    /// The norm of the latent vector.
    pub kv_norm: RmsNorm,
    /// `[heads · (head width + value width), kv rank]`: for each head the key, then the value.
    pub kv_up: Linear,
    /// `[width, heads · value width]`.
    pub proj: Linear,
}

impl LatentAttention {
    /// Declares `name.q_down`, `name.q_norm` (both if queries have a latent vector), `name.q_up`, `name.kv_down`,
    /// `name.kv_norm`, `name.kv_up` and `name.proj`.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, config: &LatentAttentionConfig) -> Self {
        let _scope = trace.scope(name);
        let LatentAttentionConfig { width, heads, kv_rank, head_width, rope_width, value_width, .. } =
            *config;
        let init = Init::Normal { std: config.std };
        let norm = |name, width| RmsNorm::new(trace, name, width).with_epsilon(config.epsilon);
        let linear = |name, inputs, outputs| {
            Linear::builder(inputs, outputs).bias(false).init(init).build(trace, name)
        };
        let q_down = config.query_rank.map(|rank| (linear("q_down", width, rank), norm("q_norm", rank)));
        let q_inputs = config.query_rank.unwrap_or(width);
        let q_up = linear("q_up", q_inputs, heads * (head_width + rope_width));
        let kv_down = linear("kv_down", width, kv_rank + rope_width);
        let kv_norm = norm("kv_norm", kv_rank);
        let kv_up = linear("kv_up", kv_rank, heads * (head_width + value_width));
        let residual = Init::Normal { std: config.residual_std };
        let proj =
            Linear::builder(heads * value_width, width).bias(false).init(residual).build(trace, "proj");
        LatentAttention {
            path: trace.path(),
            config: config.clone(),
            q_down,
            q_up,
            kv_down,
            kv_norm,
            kv_up,
            proj,
        }
    }

    /// `[batch, length, width]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        self.forward_after(x, None)
    }

    /// As [`LatentAttention::forward`]; of a part of a text with its past, whose caches are `cache.latent` of
    /// `[batch, capacity, kv rank]` and `cache.rope` of `[batch, capacity, rope width]`.
    #[track_caller]
    pub fn forward_after(&self, x: &Tensor, cache: Option<&KvCache>) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        if !is_sequence("latent attention", x) {
            return x.clone();
        }
        let LatentAttentionConfig { heads, kv_rank, head_width, rope_width, .. } = self.config;
        let q = match &self.q_down {
            Some((down, norm)) => self.q_up.forward(&norm.forward(&down.forward(x))),
            None => self.q_up.forward(x),
        };
        let q = by_heads(&q, heads, head_width + rope_width);
        let (q, q_rope) = (q.narrow(-1, 0, head_width), q.narrow(-1, head_width, rope_width));
        let q_rope = rotated(&self.config.rope, &q_rope, cache);
        let down = self.kv_down.forward(x);
        let k_rope = rotated(&self.config.rope, &down.narrow(-1, kv_rank, rope_width), cache);
        let latent = self.kv_norm.forward(&down.narrow(-1, 0, kv_rank));
        let mixed = match cache {
            None => self.attend([&q, &q_rope], [&latent, &k_rope]),
            Some(cache) => {
                let kept = [cache.with("cache.latent", &latent), cache.with("cache.rope", &k_rope)];
                self.attend_to_latents([&q, &q_rope], [&kept[0], &kept[1]], cache)
            }
        };
        self.proj.forward(&joined(&mixed))
    }

    /// Keys and values of all heads are made from the latent vectors `[batch, length, kv rank]`; one rotated key
    /// `[batch, length, rope width]` is for all heads. The result is `[batch, heads, length, value width]`.
    #[track_caller]
    fn attend(&self, [q, q_rope]: [&Tensor; 2], [latent, k_rope]: [&Tensor; 2]) -> Tensor {
        let LatentAttentionConfig { heads, head_width, value_width, .. } = self.config;
        let kv = by_heads(&self.kv_up.forward(latent), heads, head_width + value_width);
        let (k, v) = (kv.narrow(-1, 0, head_width), kv.narrow(-1, head_width, value_width));
        let scores = q.matmul_transposed(&k) + q_rope.matmul_transposed(&k_rope.unsqueeze(1));
        self.weights(&scores, None).matmul(&v)
    }

    /// The same without making keys and values: q · (c W_UK)ᵀ is (q W_UKᵀ) · cᵀ, and w · (c W_UV) is (w · c) W_UV. So all heads
    /// read one latent vector for each position, `[batch, visible, kv rank]`, which is what the cache is for.
    #[track_caller]
    fn attend_to_latents(
        &self,
        [q, q_rope]: [&Tensor; 2],
        [latent, k_rope]: [&Tensor; 2],
        cache: &KvCache,
    ) -> Tensor {
        let LatentAttentionConfig { heads, kv_rank, head_width, value_width, .. } = self.config;
        let up = self.kv_up.adapted_weight().reshape([heads, head_width + value_width, kv_rank]);
        let (up_k, up_v) = (up.narrow(1, 0, head_width), up.narrow(1, head_width, value_width));
        let (q, latent) = (q.matmul(&up_k.unsqueeze(0)), latent.unsqueeze(1));
        let scores = q.matmul_transposed(&latent) + q_rope.matmul_transposed(&k_rope.unsqueeze(1));
        let mixed = self.weights(&scores, Some(cache)).matmul(&latent);
        mixed.matmul_transposed(&up_v.unsqueeze(0))
    }

    #[track_caller]
    fn weights(&self, scores: &Tensor, cache: Option<&KvCache>) -> Tensor {
        let dropout = Dropout { probability: self.config.dropout };
        self.config.mask.weights(&(scores * self.scale()), None, cache, dropout)
    }

    /// 1/√(width of query and key).
    fn scale(&self) -> f64 {
        1.0 / ((self.config.head_width + self.config.rope_width) as f64).sqrt()
    }
}

/// `[batch, length, heads · width]` as `[batch, heads, length, width]`.
#[track_caller]
fn by_heads(projected: &Tensor, heads: usize, width: usize) -> Tensor {
    let [batch, length] = [projected.dim(0), projected.dim(1)];
    projected.reshape([batch, length, heads, width]).permute(&[0, 2, 1, 3])
}
