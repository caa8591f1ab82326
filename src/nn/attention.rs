//! Attention with several heads (Vaswani et al., "Attention is all you need", 2017, section 3.2): over the positions of
//! one input, or from one input to another.
//!
//! Heads of queries may share keys and values: one pair for all is multi-query attention (Shazeer, 2019), one for each
//! group is grouped-query attention (Ainslie et al., 2023). What a query sees is a matter of [`AttentionMask`], and of a mask of
//! keys where sequences are padded.

use super::{Dropout, KvCache, Linear, Norm, Normalization, Rope};
use crate::init::Init;
use crate::trace::{Tensor, Trace};
use kernfusion_ir::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Which keys a query sees. The last query stands at the position of the last key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionMask {
    /// All.
    Full,
    /// Those up to its own position.
    #[default]
    Causal,
    /// So many, the last of them at its own position (Beltagy, Peters, Cohan, 2020).
    Window(usize),
}

impl AttentionMask {
    /// `bool[queries, keys]`, unless everything is seen.
    #[track_caller]
    fn mask(self, trace: &Trace, queries: usize, keys: usize) -> Option<Tensor> {
        match self {
            AttentionMask::Full => None,
            AttentionMask::Causal => Some(trace.causal_mask(queries, keys)),
            AttentionMask::Window(width) => Some(trace.window_mask(queries, keys, width)),
        }
    }

    /// From scores `[batch, heads, queries, keys]` to weights of the same shape: −∞ for what is not seen, softmax, dropout.
    /// Of `real`, `bool[batch, keys]`, a query sees the keys that hold; it must see at least one, or its weights are NaN.
    /// With a past, keys are its visible positions.
    #[track_caller]
    pub(super) fn weights(
        self,
        scores: &Tensor,
        key_padding_mask: Option<&Tensor>,
        cache: Option<&KvCache>,
        dropout: Dropout,
    ) -> Tensor {
        let mut scores = scores.clone();
        if let Some(key_padding_mask) = key_padding_mask {
            // One mask after the other: what positions alone exclude is known before the program runs.
            scores = key_padding_mask.unsqueeze(1).unsqueeze(1).select(scores, f64::NEG_INFINITY);
        }
        let mask = match cache {
            Some(cache) => Some(cache.mask(self, scores.dim(-2))),
            None => self.mask(scores.trace(), scores.dim(-2), scores.dim(-1)),
        };
        if let Some(seen) = mask {
            scores = seen.select(scores, f64::NEG_INFINITY);
        }
        dropout.forward(&scores.softmax(-1))
    }
}

/// What queries and keys are normalised over (Dehghani et al., "Scaling vision transformers to 22 billion parameters", 2023, section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// Each head by itself; all heads share the weights, as in Qwen3.
    Head,
    /// All heads of a position together, as in OLMo 2.
    Position,
}

/// The norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNormConfig {
    /// What they are over.
    pub over: QkNorm,
    /// Which norms.
    pub normalization: Normalization,
    /// ε of the norms.
    pub epsilon: f64,
}

/// The shape of an attention layer.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// d, the width of inputs and results.
    pub width: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, a divisor of `heads`.
    pub kv_heads: usize,
    /// The width of a head.
    pub head_width: usize,
    /// What a query sees.
    pub mask: AttentionMask,
    /// Rotation of queries and keys by position, if any.
    pub rope: Option<Rope>,
    /// What scores are multiplied by; none: 1/√d_head.
    pub scale: Option<f64>,
    /// c of scores c·tanh(score / c), which stay between −c and c (Gemma Team, "Gemma 2", 2024, section 2); none: they are as they are.
    pub softcap: Option<f64>,
    /// RMSNorm of queries and keys before they are rotated.
    pub qk_norm: Option<QkNormConfig>,
    /// Dropout probability of the weights.
    pub dropout: f64,
    /// Whether the projections to q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the last projection has a bias.
    pub bias: bool,
    /// Standard deviation of the first weights.
    pub std: f64,
    /// That of the last projection, whose results are added to the residual stream.
    pub residual_std: f64,
}

impl AttentionConfig {
    /// Causal attention with `heads` heads of equal width, biases except for q, k and v, and GPT-2's first weights.
    pub fn causal(width: usize, heads: usize) -> Self {
        AttentionConfig {
            width,
            heads,
            kv_heads: heads,
            head_width: width / heads.max(1),
            mask: AttentionMask::Causal,
            rope: None,
            scale: None,
            softcap: None,
            qk_norm: None,
            dropout: 0.0,
            qkv_bias: false,
            bias: true,
            std: 0.02,
            residual_std: 0.02,
        }
    }

    #[track_caller]
    fn projection(&self, trace: &Trace, name: &str, heads: usize) -> Linear {
        let extents = [self.width, heads * self.head_width];
        let linear = Linear::builder(extents[0], extents[1])
            .bias(self.qkv_bias)
            .init(Init::Normal { std: self.std })
            .build(trace, name);
        let (heads, shared) = (self.heads, self.kv_heads);
        linear.weight.expect("attention", |_| {
            let even = shared > 0 && heads.is_multiple_of(shared);
            (!even)
                .then(|| format!("{heads} heads of queries do not share {shared} of keys and values evenly"))
        });
        linear
    }

    #[track_caller]
    fn output(&self, trace: &Trace) -> Linear {
        let extents = [self.heads * self.head_width, self.width];
        Linear::builder(extents[0], extents[1])
            .bias(self.bias)
            .init(Init::Normal { std: self.residual_std })
            .build(trace, "proj")
    }

    /// A projection's result `[batch, length, heads · head width]` as `[batch, heads, length, head width]`.
    #[track_caller]
    fn apart(&self, projected: &Tensor) -> Tensor {
        let [batch, length] = [projected.dim(0), projected.dim(1)];
        projected
            .reshape([batch as isize, length as isize, -1, self.head_width as isize])
            .permute(&[0, 2, 1, 3])
    }

    /// softmax(scores + bias + mask)·v with scores q·kᵀ/√d_head, scaled and capped as asked for, of queries `[batch, heads, queries, head width]` and keys and values
    /// `[batch, kv heads, keys, head width]`, as `[batch, queries, heads · head width]`. The bias is `[heads, queries, keys]`.
    #[track_caller]
    fn attend(
        &self,
        [q, k, v]: [&Tensor; 3],
        key_padding_mask: Option<&Tensor>,
        bias: Option<&Tensor>,
        cache: Option<&KvCache>,
    ) -> Tensor {
        let (q, mut k) = match &self.rope {
            Some(rope) => (rotated(rope, q, cache), rotated(rope, k, cache)),
            None => (q.clone(), k.clone()),
        };
        let mut v = v.clone();
        if let Some(cache) = cache {
            (k, v) = (cache.with("cache.k", &k), cache.with("cache.v", &v));
        }
        let (k, v) = (self.for_all_heads(&k), self.for_all_heads(&v));
        let scale = self.scale.unwrap_or_else(|| 1.0 / (self.head_width as f64).sqrt());
        let mut scores = q.matmul_transposed(&k);
        if scale != 1.0 {
            scores = scores * scale;
        }
        if let Some(most) = self.softcap {
            scores = scores.softcap(most);
        }
        if let Some(bias) = bias {
            scores = scores + bias;
        }
        let weights =
            self.mask.weights(&scores, key_padding_mask, cache, Dropout { probability: self.dropout });
        joined(&weights.matmul(&v))
    }

    /// Each head of keys or values once for each head of queries in its group.
    #[track_caller]
    fn for_all_heads(&self, x: &Tensor) -> Tensor {
        if self.kv_heads == self.heads {
            return x.clone();
        }
        let [batch, length] = [x.dim(0), x.dim(2)];
        let group = self.heads / self.kv_heads.max(1);
        let wide = x.unsqueeze(2).broadcast_to([batch, self.kv_heads, group, length, self.head_width]);
        wide.reshape([batch, self.heads, length, self.head_width])
    }
}

/// `[.., length, width]` rotated by the positions that follow the past, else 0, 1, ….
#[track_caller]
pub(super) fn rotated(rope: &Rope, x: &Tensor, cache: Option<&KvCache>) -> Tensor {
    let length = x.dim(-2);
    let mut positions =
        cache.map_or_else(|| x.trace().arange(length, DType::I32), |cache| cache.positions(length));
    if positions.rank() == 2 && x.rank() == 4 {
        // The same for all heads.
        positions = positions.unsqueeze(1);
    }
    rope.rotate(x, &positions)
}

/// The results of all heads `[batch, heads, length, width]` side by side, `[batch, length, heads · width]`.
#[track_caller]
pub(super) fn joined(mixed: &Tensor) -> Tensor {
    let [batch, length] = [mixed.dim(0) as isize, mixed.dim(2) as isize];
    mixed.permute(&[0, 2, 1, 3]).reshape([batch, length, -1])
}

/// Whether x is `[batch, length, width]`; if not, that is a mistake of `op`.
#[track_caller]
pub(super) fn is_sequence(op: &'static str, x: &Tensor) -> bool {
    let is = x.rank() == 3;
    x.expect(op, |_| (!is).then(|| "takes [batch, length, width]".into()));
    is
}

/// Attention of an input to itself.
pub struct MultiHeadAttention {
    path: Arc<str>,
    config: AttentionConfig,
    /// `[(heads + 2·kv heads) · head width, width]`: rows for q, then k, then v, head by head.
    pub qkv: Linear,
    /// The norms of queries and of keys, if there are some.
    pub qk_norm: Option<[Norm; 2]>,
    /// `[width, heads · head width]`.
    pub proj: Linear,
}

impl MultiHeadAttention {
    /// Declares `name.qkv`, `name.proj` and, if asked for, `name.q_norm` and `name.k_norm`.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, config: &AttentionConfig) -> Self {
        let _scope = trace.scope(name);
        let qkv = config.projection(trace, "qkv", config.heads + 2 * config.kv_heads);
        let qk_norm = config.qk_norm.map(|QkNormConfig { over, normalization, epsilon }| {
            [("q_norm", config.heads), ("k_norm", config.kv_heads)].map(|(name, heads)| {
                let heads = if over == QkNorm::Head { 1 } else { heads };
                Norm::new(trace, name, heads * config.head_width, normalization, epsilon)
            })
        });
        let proj = config.output(trace);
        MultiHeadAttention { path: trace.path(), config: config.clone(), qkv, qk_norm, proj }
    }

    /// `[batch, length, width]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        self.forward_with(x, None, None, None)
    }

    /// As [`MultiHeadAttention::forward`], of sequences that may be padded: `real` is `bool[batch, length]`, and no position
    /// sees those where it does not hold; or of a part of a text with its past, whose caches are `cache.k` and `cache.v` of
    /// `[batch, kv heads, capacity, head width]`; then `real` is about its visible positions. `bias`, `[heads, queries, keys]`,
    /// is added to the scores.
    #[track_caller]
    pub fn forward_with(
        &self,
        x: &Tensor,
        key_padding_mask: Option<&Tensor>,
        bias: Option<&Tensor>,
        cache: Option<&KvCache>,
    ) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        if !is_sequence("attention", x) {
            return x.clone();
        }
        let (heads, shared) = (self.config.heads, self.config.kv_heads);
        let parts = self.config.apart(&self.qkv.forward(x));
        let mut q = parts.narrow(1, 0, heads);
        let (mut k, v) = (parts.narrow(1, heads, shared), parts.narrow(1, heads + shared, shared));
        if let Some([of_queries, of_keys]) = &self.qk_norm {
            (q, k) = (self.normalized(of_queries, &q), self.normalized(of_keys, &k));
        }
        self.proj.forward(&self.config.attend([&q, &k, &v], key_padding_mask, bias, cache))
    }

    /// Queries or keys `[batch, heads, length, head width]`, normalised.
    #[track_caller]
    fn normalized(&self, norm: &Norm, x: &Tensor) -> Tensor {
        match self.config.qk_norm.map(|config| config.over) {
            Some(QkNorm::Position) => self.config.apart(&norm.forward(&joined(x))),
            Some(QkNorm::Head) | None => norm.forward(x),
        }
    }
}

/// Attention of an input, a decoder's, to another one, an encoder's: queries come from the first, keys and values from
/// the second.
pub struct CrossAttention {
    path: Arc<str>,
    config: AttentionConfig,
    /// `[heads · head width, width]`, applied to the first input.
    pub q: Linear,
    /// `[2 · kv heads · head width, width]`, applied to the second one: rows for k, then v.
    pub kv: Linear,
    /// `[width, heads · head width]`.
    pub proj: Linear,
}

impl CrossAttention {
    /// Declares `name.q`, `name.kv` and `name.proj`. Positions of two inputs do not compare, so everything is seen and
    /// nothing rotated or normalised, whatever `config` says.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, config: &AttentionConfig) -> Self {
        let _scope = trace.scope(name);
        let config =
            AttentionConfig { mask: AttentionMask::Full, rope: None, qk_norm: None, ..config.clone() };
        let q = config.projection(trace, "q", config.heads);
        let kv = config.projection(trace, "kv", 2 * config.kv_heads);
        CrossAttention { path: trace.path(), q, kv, proj: config.output(trace), config }
    }

    /// `[batch, queries, width]` to the same shape, looking at `memory`, `[batch, keys, width]`, where `real`,
    /// `bool[batch, keys]`, holds.
    #[track_caller]
    pub fn forward(&self, x: &Tensor, memory: &Tensor, key_padding_mask: Option<&Tensor>) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        if !is_sequence("attention", x) || !is_sequence("attention", memory) {
            return x.clone();
        }
        let shared = self.config.kv_heads;
        let q = self.config.apart(&self.q.forward(x));
        let parts = self.config.apart(&self.kv.forward(memory));
        let (k, v) = (parts.narrow(1, 0, shared), parts.narrow(1, shared, shared));
        self.proj.forward(&self.config.attend([&q, &k, &v], key_padding_mask, None, None))
    }
}
