//! The decoder: embedding, identical causal blocks, a last norm, an output layer. GPT-2 is one (Radford et al., "Language
//! models are unsupervised multitask learners", 2019), Llama is one with RMSNorm, rotary positions, grouped heads, SwiGLU
//! and no biases (Touvron et al., 2023), DeepSeek is one with latent attention (DeepSeek-AI, 2024), Qwen3 a Llama that normalises
//! queries and keys (Qwen Team, 2025), Gemma 3 one whose blocks see a window, but for every sixth one (Gemma Team, 2025).
//!
//! Parameters: `wte.weight` [V, d]; `wpe.weight` [T, d] if positions are learned; for each block `blocks.i.` with
//! `ln1.{weight,bias}`, `attn.qkv.weight` [3d, d] (`.bias` if asked for), `attn.proj.{weight,bias}`, `ln2.{weight,bias}`,
//! `mlp.up.{weight,bias}` [4d, d], `mlp.down.{weight,bias}` [d, 4d] and, with a gate, `mlp.gate`; `ln_f.{weight,bias}`;
//! `head.weight` [V, d] unless the head shares the matrix of `wte`. RMSNorm has no bias; norms of queries and keys are
//! `attn.q_norm.weight` and `attn.k_norm.weight`, second norms of branches `ln1_after` and `ln2_after`;
//! [`LatentAttention`](crate::nn::LatentAttention) has other names under `attn`.

use super::{MOST_LAYERS, MOST_TOKENS, WIDEST};
use crate::init::Init;
use crate::loss::cross_entropy;
use crate::nn::{
    Activation, AttentionConfig, AttentionMask, Block, BlockConfig, BlockInputs, Dropout, Embedding,
    FeedForwardConfig, Gelu, KvCache, LatentAttentionConfig, Linear, MixtureConfig, Norm, NormPlace,
    Normalization, QkNorm, QkNormConfig, RelativeShape, Rope, SelfAttentionConfig,
};
use crate::optim::{Optimizer, TrainStep};
use crate::trace::{Program, Tensor, Trace};
use crate::{Error, Result};
use kernfusion_ir::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Standard deviation of GPT-2's first weights.
pub(super) const INITIAL_STD: f64 = 0.02;

/// The shape of a decoder; in JSON, fields left out take their defaults, which are those of the preset `tiny`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GptConfig {
    /// V, the number of tokens.
    pub vocabulary: usize,
    /// T, the most positions it can see.
    pub context: usize,
    /// L, the number of blocks.
    pub layers: usize,
    /// Attention heads in each block.
    pub heads: usize,
    /// Heads of keys and values, a divisor of `heads`; none: as many as `heads`.
    pub kv_heads: Option<usize>,
    /// d, a multiple of `heads` unless `head_width` is given.
    pub width: usize,
    /// The width of a head; none: d / heads.
    pub head_width: Option<usize>,
    /// The width inside feed-forward networks; none: 4·d.
    pub hidden: Option<usize>,
    /// Dropout probability of embeddings, attention weights and branches.
    pub dropout: f64,
    /// Whether the projections to q, k and v have a bias.
    pub qkv_bias: bool,
    /// Whether all other projections in blocks have one.
    pub bias: bool,
    /// Whether the head shares its matrix with the token embedding.
    pub tied: bool,
    /// The feed-forward networks: `gelu`, `swiglu`, `relu` or `geglu`.
    pub feed_forward: FeedForwardKind,
    /// The form of GELU: `erf` (exact) or `tanh`.
    pub gelu: Gelu,
    /// Where norms stand: `pre`, `post`, `branch` or `both`.
    pub norm: NormPlace,
    /// Which norms: `layer`, `rms` or `rms_plus_one`.
    pub normalization: Normalization,
    /// Norms of queries and keys over each `head`, or over all heads of a `position`; none: there are none.
    pub qk_norm: Option<QkNorm>,
    /// ε of the norms.
    pub epsilon: f64,
    /// Numbers by which embeddings, scores, branches and logits are multiplied.
    pub scales: Scales,
    /// c of scores of attention that are c·tanh(score / c); none: they are as they are.
    pub attention_softcap: Option<f64>,
    /// The same of logits.
    pub logit_softcap: Option<f64>,
    /// How positions are known: `learned`, `sinusoidal`, or `{"rope": {"base": B, "pairing": "adjacent" | "halves",
    /// "scaling": {"kind": "linear", "factor": F} | {"kind": "llama3", "factor": F, "low": L, "high": H, "context": C}}}`.
    pub positions: Positions,
    /// How many positions each one sees, itself included; none: all before it.
    pub window: Option<usize>,
    /// Blocks that see all positions, whatever the window is; none: all blocks are alike.
    pub global: Option<GlobalBlocks>,
    /// Latent attention in place of heads with their own keys and values.
    pub latent: Option<LatentShape>,
    /// Mixtures of experts in place of feed-forward networks, with SwiGLU of the width `hidden` in each expert.
    pub experts: Option<Experts>,
}

/// Numbers by which a decoder multiplies; 1 where a model has no such number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scales {
    /// Token embeddings: √d in Gemma.
    pub embedding: f64,
    /// Scores of attention; none: 1/√d_head.
    pub attention: Option<f64>,
    /// Results of branches, before they are added.
    pub branch: f64,
    /// Logits.
    pub logits: f64,
}

impl Scales {
    /// 1 of all, and 1/√d_head of scores.
    pub const NONE: Scales = Scales { embedding: 1.0, attention: None, branch: 1.0, logits: 1.0 };
}

impl Default for Scales {
    fn default() -> Self {
        Scales::NONE
    }
}

/// Blocks of a decoder that see all positions before them, beside others that see a window or rotate otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobalBlocks {
    /// The period: blocks number `every`, 2 · `every`, … are global, counted from one.
    pub every: usize,
    /// How they rotate queries and keys; none: not at all.
    #[serde(default)]
    pub rope: Option<Rope>,
}

/// The experts of a decoder's blocks; see [`MixtureConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many work on a token.
    pub active: usize,
    /// Standard deviation of the noise on the router's logits in training.
    #[serde(default)]
    pub noise: f64,
    /// Weight of the balancing loss; 0.01 if it is left out.
    #[serde(default = "Experts::balance")]
    pub balance: f64,
}

impl Experts {
    fn balance() -> f64 {
        0.01
    }
}

/// The feed-forward networks of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForwardKind {
    /// down(gelu(up x))
    #[default]
    Gelu,
    /// down(swish(gate x) ⊙ up x)
    Swiglu,
    /// down(max(up x, 0))
    Relu,
    /// down(gelu(gate x) ⊙ up x)
    Geglu,
}

impl FeedForwardKind {
    /// Whether the activation's result is multiplied by a second projection.
    pub fn is_gated(self) -> bool {
        matches!(self, FeedForwardKind::Swiglu | FeedForwardKind::Geglu)
    }

    /// The activation, with this form of GELU.
    pub(super) fn activation(self, gelu: Gelu) -> Activation {
        match self {
            FeedForwardKind::Gelu | FeedForwardKind::Geglu => gelu.into(),
            FeedForwardKind::Swiglu => Activation::Swish,
            FeedForwardKind::Relu => Activation::Relu,
        }
    }
}

/// How a model knows positions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// A trained vector for each is added to the embedding.
    #[default]
    Learned,
    /// Sines and cosines are added.
    Sinusoidal,
    /// Queries and keys are rotated.
    Rope(Rope),
    /// Scores have a bias by distance, the same in all blocks of an encoder or decoder; only an encoder-decoder has them.
    Relative(RelativeShape),
}

/// The widths of latent attention; see [`LatentAttentionConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentShape {
    /// Width of the vector that queries are made from; none: the input.
    #[serde(default)]
    pub query_rank: Option<usize>,
    /// Width of the vector that keys and values are made from.
    pub kv_rank: usize,
    /// Width of a head's query and key without the rotated part.
    pub head_width: usize,
    /// Width of the rotated part, even.
    pub rope_width: usize,
    /// Width of a head's value.
    pub value_width: usize,
}

impl GptConfig {
    /// The shape of the preset `tiny`.
    pub const TINY: GptConfig = GptConfig {
        vocabulary: 65,
        context: 64,
        layers: 4,
        heads: 4,
        kv_heads: None,
        width: 128,
        head_width: None,
        hidden: None,
        dropout: 0.0,
        qkv_bias: false,
        bias: true,
        tied: false,
        feed_forward: FeedForwardKind::Gelu,
        gelu: Gelu::Erf,
        norm: NormPlace::Pre,
        normalization: Normalization::Layer,
        qk_norm: None,
        epsilon: 1e-5,
        scales: Scales::NONE,
        attention_softcap: None,
        logit_softcap: None,
        positions: Positions::Learned,
        window: None,
        global: None,
        latent: None,
        experts: None,
    };
}

impl Default for GptConfig {
    fn default() -> Self {
        GptConfig::TINY
    }
}

impl GptConfig {
    /// Checks that such a model exists.
    ///
    /// # Errors
    /// If an extent is zero, the width no multiple of the heads, which have no width of their own, heads cannot share keys and
    /// values as asked, the dropout probability outside [0, 1), or the parts do not go together.
    pub fn validate(&self) -> Result<()> {
        let refuse = |reason: String| Err(Error::Configuration(reason));
        super::check_extents(&[
            ("vocabulary", self.vocabulary, MOST_TOKENS),
            ("context", self.context, MOST_TOKENS),
            ("layers", self.layers, MOST_LAYERS),
            ("heads", self.heads, WIDEST),
            ("width", self.width, WIDEST),
            ("kv_heads", self.kv_heads(), WIDEST),
            ("hidden", self.hidden(), WIDEST),
            ("window", self.window.unwrap_or(1), MOST_TOKENS),
            ("every of global", self.global.map_or(1, |global| global.every), MOST_LAYERS),
        ])?;
        self.validate_latent()?;
        super::check_heads(self.width, self.heads, self.head_width)?;
        if !self.heads.is_multiple_of(self.kv_heads()) {
            return refuse(format!("heads {} is not a multiple of kv_heads {}", self.heads, self.kv_heads()));
        }
        super::check_dropout(self.dropout)?;
        if !(self.epsilon.is_finite() && self.epsilon >= 0.0) {
            return refuse(format!("epsilon {} is not a number of at least 0", self.epsilon));
        }
        self.validate_scales()?;
        self.validate_experts()?;
        self.validate_positions()
    }

    fn validate_scales(&self) -> Result<()> {
        let Scales { embedding, attention, branch, logits } = self.scales;
        let factors = [
            ("scales.embedding", Some(embedding)),
            ("scales.attention", attention),
            ("scales.branch", Some(branch)),
            ("scales.logits", Some(logits)),
            ("attention_softcap", self.attention_softcap),
            ("logit_softcap", self.logit_softcap),
        ];
        let wrong = factors.into_iter().find_map(|(name, factor)| {
            factor.filter(|factor| !(factor.is_finite() && *factor > 0.0)).map(|factor| (name, factor))
        });
        wrong.map_or(Ok(()), |(name, factor)| {
            Err(Error::Configuration(format!("{name} {factor} is not a number above 0")))
        })
    }

    fn validate_latent(&self) -> Result<()> {
        let Some(l) = self.latent else { return Ok(()) };
        let all = |width: usize| self.heads.saturating_mul(width);
        super::check_extents(&[
            ("kv_rank", l.kv_rank, WIDEST),
            ("query_rank", l.query_rank.unwrap_or(1), WIDEST),
            ("head_width", l.head_width, WIDEST),
            ("rope_width", l.rope_width, WIDEST),
            ("value_width", l.value_width, WIDEST),
            ("head_width of all heads", all(l.head_width), WIDEST),
            ("rope_width of all heads", all(l.rope_width), WIDEST),
            ("value_width of all heads", all(l.value_width), WIDEST),
        ])
    }

    fn validate_experts(&self) -> Result<()> {
        let refuse = |reason: String| Err(Error::Configuration(reason));
        let Some(Experts { count, active, noise, balance }) = self.experts else { return Ok(()) };
        if active == 0 || active > count {
            return refuse(format!("{active} of {count} experts cannot work on a token"));
        }
        super::check_extents(&[("hidden of all experts", self.hidden().saturating_mul(count), MOST_TOKENS)])?;
        if self.feed_forward != FeedForwardKind::Swiglu || self.bias {
            return refuse("experts need feed_forward swiglu and no bias".into());
        }
        match [noise, balance].into_iter().find(|x| !(x.is_finite() && *x >= 0.0)) {
            Some(x) => refuse(format!("noise and balance of experts are numbers of at least 0, not {x}")),
            None => Ok(()),
        }
    }

    fn mixture(&self, residual_std: f64) -> Option<MixtureConfig> {
        self.experts.map(|Experts { count, active, noise, balance }| MixtureConfig {
            width: self.width,
            hidden: self.hidden(),
            experts: count,
            active,
            noise,
            balance,
            std: INITIAL_STD,
            residual_std,
        })
    }

    fn validate_positions(&self) -> Result<()> {
        let refuse = |reason: String| Err(Error::Configuration(reason));
        if self.latent.is_some() {
            self.validate_latent_attention()?;
        }
        let rotated = self.latent.map_or(self.head_width(), |latent| latent.rope_width);
        let rope = match self.positions {
            Positions::Rope(rope) => Some(rope),
            Positions::Learned | Positions::Sinusoidal => None,
            Positions::Relative(_) => {
                return refuse("positions of the kind relative are those of an encoder-decoder".into());
            }
        };
        let of_global = self.global.and_then(|global| global.rope);
        for rope in [rope, of_global].into_iter().flatten() {
            if !rotated.is_multiple_of(2) {
                return refuse(format!("rope turns pairs, but the width to be rotated is {rotated}"));
            }
            if !(rope.base.is_finite() && rope.base > 0.0) {
                return refuse(format!("the base {} of rope is not a number above 0", rope.base));
            }
            if let Some(fault) = rope.scaling.and_then(|scaling| scaling.fault()) {
                return refuse(fault);
            }
        }
        Ok(())
    }

    /// What latent attention does not go together with.
    fn validate_latent_attention(&self) -> Result<()> {
        let conflicts = [
            (self.kv_heads.is_some(), "has no kv_heads: its heads share one vector"),
            (self.head_width.is_some(), "says the widths of its heads itself: head_width must be left out"),
            (self.qkv_bias, "has no qkv_bias"),
            (self.bias, "has no bias: bias must be false"),
            (self.qk_norm.is_some(), "has no qk_norm: it has norms of its own"),
            (self.scales.attention.is_some(), "has no scales.attention"),
            (self.attention_softcap.is_some(), "has no attention_softcap"),
            (self.global.is_some(), "has no global blocks"),
            (!matches!(self.positions, Positions::Rope(_)), "needs positions of the kind rope"),
        ];
        match conflicts.into_iter().find(|(conflict, _)| *conflict) {
            Some((_, reason)) => Err(Error::Configuration(format!("latent attention {reason}"))),
            None => Ok(()),
        }
    }

    /// Heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads.unwrap_or(self.heads)
    }

    /// The width of a head.
    pub fn head_width(&self) -> usize {
        self.head_width.unwrap_or(self.width / self.heads)
    }

    /// The width inside feed-forward networks.
    pub fn hidden(&self) -> usize {
        self.hidden.unwrap_or(self.width.saturating_mul(4))
    }

    /// This shape with the fields of a JSON object put in.
    ///
    /// # Errors
    /// If it is no JSON object, a field is unknown or of another type, or the result is no valid shape.
    pub fn with_json(&self, json: &str) -> Result<Self> {
        let config = super::merged(self, json)?;
        GptConfig::validate(&config)?;
        Ok(config)
    }

    /// The number of trained numbers.
    pub fn parameters(&self) -> usize {
        let (v, d) = (self.vocabulary, self.width);
        let positions = if self.positions == Positions::Learned { self.context * d } else { 0 };
        let norm = self.normalization.parameters(d);
        let norms = 2 * self.norm.norms() * norm;
        let block = self.attention_parameters() + self.feed_forward_parameters() + norms;
        v * d + positions + self.layers * block + norm + if self.tied { 0 } else { v * d }
    }

    /// A projection from `inputs` to `outputs` has inputs·outputs weights and, if asked for, `outputs` biases.
    fn attention_parameters(&self) -> usize {
        let (d, h) = (self.width, self.heads);
        if let Some(l) = self.latent {
            let query = l.query_rank.map_or(0, |rank| d * rank + rank);
            let up = l.query_rank.unwrap_or(d) * h * (l.head_width + l.rope_width);
            let down = d * (l.kv_rank + l.rope_width) + l.kv_rank;
            let pairs = l.kv_rank * h * (l.head_width + l.value_width);
            return query + up + down + pairs + h * l.value_width * d;
        }
        let inner = h * self.head_width();
        let rows = inner + 2 * self.kv_heads() * self.head_width();
        let norms = self.qk_norm.map_or(0, |over| {
            let [queries, keys] = match over {
                QkNorm::Head => [1, 1],
                QkNorm::Position => [h, self.kv_heads()],
            };
            [queries, keys].map(|heads| self.normalization.parameters(heads * self.head_width())).iter().sum()
        });
        let biases = if self.qkv_bias { rows } else { 0 } + if self.bias { d } else { 0 };
        rows * d + inner * d + norms + biases
    }

    fn feed_forward_parameters(&self) -> usize {
        let (d, inner) = (self.width, self.hidden());
        if let Some(mixture) = self.mixture(0.0) {
            return mixture.parameters();
        }
        let inward = if self.feed_forward.is_gated() { 2 } else { 1 };
        (inward + 1) * d * inner + if self.bias { inward * inner + d } else { 0 }
    }

    /// One training step on inputs `x` and `y` of `i32[batch, context]`.
    ///
    /// # Errors
    /// If the shape or the optimizer is not valid.
    pub fn train_step(&self, batch: usize, optimizer: &Optimizer, clip: Option<f64>) -> Result<TrainStep> {
        TrainStep::new(&self.loss(&Trace::training(), batch)?, optimizer, clip)
    }

    /// The output `loss` in evaluating mode on inputs `x` and `y` of `i32[batch, context]`.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn evaluation(&self, batch: usize) -> Result<Program> {
        let trace = Trace::new();
        let loss = self.loss(&trace, batch)?;
        trace.finish(&[("loss", &loss)])
    }

    /// The output `logits` of `f32[batch, length, vocabulary]` in evaluating mode on the input `x` of
    /// `i32[batch, length]`.
    ///
    /// # Errors
    /// If the shape is not valid, or the length above the context.
    pub fn forward(&self, batch: usize, length: usize) -> Result<Program> {
        let trace = Trace::new();
        let x = trace.input("x", [batch, length], DType::I32);
        let logits = Gpt::new(&trace, self)?.forward(&x);
        trace.finish(&[("logits", &logits)])
    }

    /// A chunk of a text after what was read before: the output `logits` of `f32[batch, 1, vocabulary]` of the token that
    /// follows the one at place `last` (`i32[]`) of the chunk `x`, `i32[batch, length]`, which begins at `position` (`i32[]`).
    /// Keys and values go into caches for `capacity` positions, of which the first `visible` are read.
    ///
    /// # Errors
    /// If the shape is not valid, or the chunk longer than what is visible, or that larger than the capacity.
    pub fn continuation(&self, trace: &Trace, batch: usize, chunk: Chunk) -> Result<Program> {
        self.continued(trace, batch, chunk, false)
    }

    /// As [`GptConfig::continuation`], of texts of several lengths, which end together: their rows are padded on the left, and
    /// `begins` (`i32[batch]`) are the positions of their first tokens.
    ///
    /// # Errors
    /// As [`GptConfig::continuation`].
    pub fn ragged_continuation(&self, trace: &Trace, batch: usize, chunk: Chunk) -> Result<Program> {
        self.continued(trace, batch, chunk, true)
    }

    fn continued(&self, trace: &Trace, batch: usize, chunk: Chunk, ragged: bool) -> Result<Program> {
        let Chunk { length, visible, capacity } = chunk;
        if length == 0 || length > visible || visible > capacity {
            return Err(Error::Configuration(format!(
                "a chunk of {length} tokens that sees {visible} of {capacity} positions is not possible"
            )));
        }
        let x = trace.input("x", [batch, length], DType::I32);
        let [position, last] = ["position", "last"].map(|name| trace.input(name, [], DType::I32));
        let begins = ragged.then(|| trace.input("begins", [batch], DType::I32));
        let gpt = Gpt::new(trace, self)?;
        let hidden = gpt.hidden_after(&x, Some(&KvCache { position, capacity, visible, begins }));
        let zero = trace.full([], 0.0, DType::I32);
        let hidden = hidden.dynamic_slice(&[&zero, &last, &zero], [batch, 1, self.width]);
        trace.finish(&[("logits", &gpt.head_of(&hidden))])
    }

    /// The loss on the inputs of a training step, which it declares, in the mode of the trace.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn loss(&self, trace: &Trace, batch: usize) -> Result<Tensor> {
        let shape = [batch, self.context];
        let (x, y) = (trace.input("x", shape, DType::I32), trace.input("y", shape, DType::I32));
        let logits = Gpt::new(trace, self)?.forward(&x);
        let _scope = trace.scope("loss");
        let loss = cross_entropy(&logits, &y);
        Ok(trace.penalty().map_or(loss.clone(), |penalty| loss + penalty))
    }

    /// The shape of the block of this number.
    fn block(&self, number: usize) -> BlockConfig {
        let residual_std = self.residual_std();
        BlockConfig {
            width: self.width,
            dropout: self.dropout,
            norm: self.norm,
            normalization: self.normalization,
            epsilon: self.epsilon,
            residual_scale: self.scales.branch,
            attention: self.attention(number),
            cross: None,
            feed_forward: FeedForwardConfig {
                width: self.width,
                hidden: self.hidden(),
                activation: self.feed_forward.activation(self.gelu),
                gated: self.feed_forward.is_gated(),
                bias: self.bias,
                std: INITIAL_STD,
                residual_std,
            },
            experts: self.mixture(residual_std),
        }
    }

    fn attention(&self, number: usize) -> SelfAttentionConfig {
        let rope = match self.positions {
            Positions::Rope(rope) => Some(rope),
            Positions::Learned | Positions::Sinusoidal | Positions::Relative(_) => None,
        };
        let (window, rope) = match self.global {
            Some(global) if (number + 1).is_multiple_of(global.every) => (None, global.rope),
            _ => (self.window, rope),
        };
        let mask = window.map_or(AttentionMask::Causal, AttentionMask::Window);
        match self.latent {
            None => SelfAttentionConfig::Heads(AttentionConfig {
                kv_heads: self.kv_heads(),
                head_width: self.head_width(),
                mask,
                rope,
                scale: self.scales.attention,
                softcap: self.attention_softcap,
                qk_norm: self.qk_norm.map(|over| QkNormConfig {
                    over,
                    normalization: self.normalization,
                    epsilon: self.epsilon,
                }),
                dropout: self.dropout,
                qkv_bias: self.qkv_bias,
                bias: self.bias,
                std: INITIAL_STD,
                residual_std: self.residual_std(),
                ..AttentionConfig::causal(self.width, self.heads)
            }),
            Some(latent) => SelfAttentionConfig::Latent(LatentAttentionConfig {
                width: self.width,
                heads: self.heads,
                query_rank: latent.query_rank,
                kv_rank: latent.kv_rank,
                head_width: latent.head_width,
                rope_width: latent.rope_width,
                value_width: latent.value_width,
                rope: rope.unwrap_or_default(),
                mask,
                dropout: self.dropout,
                epsilon: self.epsilon,
                std: INITIAL_STD,
                residual_std: self.residual_std(),
            }),
        }
    }

    /// 2·L branches add to the residual stream; so scaled, its variance does not grow with their number.
    fn residual_std(&self) -> f64 {
        INITIAL_STD / (2.0 * self.layers as f64).sqrt()
    }
}

/// How a chunk of a text is read after the text before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chunk {
    /// Its tokens.
    pub length: usize,
    /// Positions that it sees at most, its own included.
    pub visible: usize,
    /// Positions that caches have room for.
    pub capacity: usize,
}

/// A decoder on a trace.
pub struct Gpt {
    path: Arc<str>,
    context: usize,
    positions: Positions,
    scales: Scales,
    logit_softcap: Option<f64>,
    dropout: Dropout,
    /// Token embedding.
    pub wte: Embedding,
    /// Position embedding, if positions are learned.
    pub wpe: Option<Embedding>,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// The last norm.
    pub ln_f: Norm,
    /// The output layer, unless it shares the matrix of `wte`.
    pub head: Option<Linear>,
}

impl Gpt {
    /// Declares the parameters under the open module path.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn new(trace: &Trace, config: &GptConfig) -> Result<Self> {
        config.validate()?;
        let (width, init) = (config.width, Init::Normal { std: INITIAL_STD });
        let wte = Embedding::builder(config.vocabulary, width).init(init).build(trace, "wte");
        let learned = config.positions == Positions::Learned;
        let wpe = learned.then(|| Embedding::builder(config.context, width).init(init).build(trace, "wpe"));
        let block = |i: usize| Block::new(trace, &format!("blocks.{i}"), &config.block(i));
        let blocks = (0..config.layers).map(block).collect();
        let ln_f = Norm::new(trace, "ln_f", width, config.normalization, config.epsilon);
        let own_head =
            || Linear::builder(width, config.vocabulary).bias(false).init(init).build(trace, "head");
        let head = (!config.tied).then(own_head);
        let dropout = Dropout { probability: config.dropout };
        let GptConfig { context, positions, scales, logit_softcap, .. } = *config;
        let path = trace.path();
        Ok(Gpt { path, context, positions, scales, logit_softcap, dropout, wte, wpe, blocks, ln_f, head })
    }

    /// Logits `[batch, length, vocabulary]` of the next token at each position of tokens `i32[batch, length]`, with
    /// a length of at most `context`.
    #[track_caller]
    pub fn forward(&self, tokens: &Tensor) -> Tensor {
        super::expect_tokens("gpt", tokens, self.context);
        self.logits(tokens)
    }

    /// Not `track_caller`: the nodes of the model carry the lines below.
    fn logits(&self, tokens: &Tensor) -> Tensor {
        self.head_of(&self.hidden(tokens))
    }

    /// Logits `[.., vocabulary]` of what [`Gpt::hidden`] gives.
    pub fn head_of(&self, hidden: &Tensor) -> Tensor {
        let _scope = hidden.trace().at(self.path.clone());
        let logits = match &self.head {
            Some(head) => head.forward(hidden),
            None => self.wte.logits(hidden),
        };
        let logits = scaled(logits, self.scales.logits);
        self.logit_softcap.map_or(logits.clone(), |most| logits.softcap(most))
    }

    /// What the head reads: `[batch, length, width]`, after the last norm.
    pub fn hidden(&self, tokens: &Tensor) -> Tensor {
        self.hidden_after(tokens, None)
    }

    /// As [`Gpt::hidden`], of a chunk of a text that follows what was read before.
    pub fn hidden_after(&self, tokens: &Tensor, cache: Option<&KvCache>) -> Tensor {
        let _scope = tokens.trace().at(self.path.clone());
        let length = tokens.shape().get(1).copied().unwrap_or(1);
        let mut x = self.dropout.forward(&self.embedded(tokens, length, cache));
        for block in &self.blocks {
            x = block.forward_with(&x, BlockInputs { cache, ..BlockInputs::default() });
        }
        self.ln_f.forward(&x)
    }

    fn embedded(&self, tokens: &Tensor, length: usize, cache: Option<&KvCache>) -> Tensor {
        let vectors = scaled(self.wte.forward(tokens), self.scales.embedding);
        let width = vectors.dim(-1);
        match (&self.wpe, self.positions, cache) {
            (Some(wpe), _, None) => vectors + wpe.first(length),
            (Some(wpe), _, Some(cache)) => vectors + wpe.forward(&cache.positions(length)),
            (None, Positions::Sinusoidal, None) => {
                vectors + tokens.trace().sinusoidal_positions(length, width)
            }
            (None, Positions::Sinusoidal, Some(cache)) => {
                vectors + tokens.trace().sinusoids(&cache.positions(length), width)
            }
            (None, Positions::Learned | Positions::Rope(_) | Positions::Relative(_), _) => vectors,
        }
    }
}

/// x times a factor that is 1 in most models.
#[track_caller]
fn scaled(x: Tensor, factor: f64) -> Tensor {
    if factor == 1.0 { x } else { x * factor }
}

#[cfg(test)]
mod tests;
