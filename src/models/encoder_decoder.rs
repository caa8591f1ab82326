//! The first Transformer: an encoder reads a sequence, a decoder writes another one and looks at the encoder's result
//! (Vaswani et al., "Attention is all you need", 2017). T5 is one with RMSNorm before the branches, no biases, and positions known
//! by distance (Raffel et al., "Exploring the limits of transfer learning", 2020).
//!
//! Both share the token embedding, whose vectors are scaled by √d before positions are added, and which is the matrix of
//! the output layer unless that has its own. The last two tokens of the vocabulary, if no others are named, mark the beginning
//! and the end of what is written: the decoder reads its own text one place later, with the beginning in front.
//!
//! Parameters: `wte.weight` [V, d]; `wpe_source.weight` and `wpe_target.weight` if positions are learned, `relative_source.weight`
//! and `relative_target.weight` [buckets, heads] if they are known by distance; blocks `encoder.i` and `decoder.i`, the latter
//! with `ln_cross`, `cross.q`, `cross.kv` and `cross.proj`; `ln_encoder`, `ln_decoder`; `head.weight` if it is not tied.

use super::{FeedForwardKind, MOST_LAYERS, MOST_TOKENS, Positions, WIDEST};
use crate::init::Init;
use crate::loss::{counted_mean, smoothed_token_losses, token_losses};
use crate::nn::{
    AttentionConfig, AttentionMask, Block, BlockConfig, BlockInputs, Dropout, Embedding, FeedForwardConfig,
    Gelu, Linear, Norm, NormPlace, Normalization, RelativePositions, SelfAttentionConfig,
};
use crate::optim::{Optimizer, TrainStep};
use crate::trace::{Program, Tensor, Trace};
use crate::{Error, Result};
use kernfusion_ir::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The shape of an encoder-decoder; in JSON, fields left out take their defaults, which are those of the preset
/// `translate-tiny`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EncoderDecoderConfig {
    /// V, the number of tokens of both sides, the marks of beginning and end included.
    pub vocabulary: usize,
    /// The most positions that are read.
    pub source_length: usize,
    /// The most positions that are written, the mark of the end included.
    pub target_length: usize,
    /// Blocks of the encoder.
    pub layers: usize,
    /// Blocks of the decoder; none: as many as the encoder has.
    pub decoder_layers: Option<usize>,
    /// Attention heads in each block.
    pub heads: usize,
    /// d, a multiple of `heads` unless `head_width` is given.
    pub width: usize,
    /// The width of a head; none: d / heads.
    pub head_width: Option<usize>,
    /// The width inside feed-forward networks; none: 4·d.
    pub hidden: Option<usize>,
    /// Dropout probability of embeddings, attention weights and branches.
    pub dropout: f64,
    /// Whether projections have biases.
    pub bias: bool,
    /// The feed-forward networks: `relu`, as in the paper, `gelu`, `swiglu` or `geglu`.
    pub feed_forward: FeedForwardKind,
    /// The form of GELU: `erf` (exact) or `tanh`.
    pub gelu: Gelu,
    /// Where norms stand: `post`, as in the paper, or `pre`.
    pub norm: NormPlace,
    /// Which norms: `layer`, as in the paper, or `rms`.
    pub normalization: Normalization,
    /// ε of the norms.
    pub epsilon: f64,
    /// How positions are known: `sinusoidal`, as in the paper, `learned`, `rope` as in a decoder, or
    /// `{"relative": {"buckets": B, "distance": D}}`.
    pub positions: Positions,
    /// Whether scores are divided by √d_head.
    pub scaled_attention: bool,
    /// Whether vectors of tokens are multiplied by √d.
    pub scaled_embedding: bool,
    /// Whether what the output layer reads is divided by √d.
    pub scaled_head: bool,
    /// Whether the output layer has the matrix of the embedding.
    pub tied: bool,
    /// The token in front of what is written; none: the last but one.
    pub beginning: Option<usize>,
    /// The token after it; none: the last one.
    pub end: Option<usize>,
    /// The share of each target that training spreads over all tokens, 0.1 in the paper.
    pub smoothing: f64,
}

impl Default for EncoderDecoderConfig {
    fn default() -> Self {
        EncoderDecoderConfig {
            vocabulary: 28,
            source_length: 12,
            target_length: 13,
            layers: 2,
            decoder_layers: None,
            heads: 4,
            width: 128,
            head_width: None,
            hidden: None,
            dropout: 0.0,
            bias: true,
            feed_forward: FeedForwardKind::Relu,
            gelu: Gelu::Erf,
            norm: NormPlace::Post,
            normalization: Normalization::Layer,
            epsilon: 1e-5,
            positions: Positions::Sinusoidal,
            scaled_attention: true,
            scaled_embedding: true,
            scaled_head: false,
            tied: true,
            beginning: None,
            end: None,
            smoothing: 0.1,
        }
    }
}

impl EncoderDecoderConfig {
    /// Checks that such a model exists.
    ///
    /// # Errors
    /// If an extent is zero, there is no token beside the marks, the width no multiple of the heads, which have no width of their
    /// own, a share outside [0, 1), a mark no token, or there are too few buckets of distances.
    pub fn validate(&self) -> Result<()> {
        super::check_extents(&[
            ("vocabulary", self.vocabulary, MOST_TOKENS),
            ("source_length", self.source_length, MOST_TOKENS),
            ("target_length", self.target_length, MOST_TOKENS),
            ("layers", self.layers, MOST_LAYERS),
            ("decoder_layers", self.decoder_layers(), MOST_LAYERS),
            ("heads", self.heads, WIDEST),
            ("width", self.width, WIDEST),
            ("hidden", self.hidden(), WIDEST),
        ])?;
        super::check_heads(self.width, self.heads, self.head_width)?;
        super::check_dropout(self.dropout)?;
        let refuse = |reason: String| Err(Error::Configuration(reason));
        if self.vocabulary < 3 {
            let given = self.vocabulary;
            return refuse(format!("vocabulary {given} has no token beside the marks of beginning and end"));
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return refuse(format!("smoothing {} is not in the range from 0 to below 1", self.smoothing));
        }
        if !(self.epsilon.is_finite() && self.epsilon >= 0.0) {
            return refuse(format!("epsilon {} is not a number of at least 0", self.epsilon));
        }
        let (marks, vocabulary) = ([self.beginning, self.end], self.vocabulary);
        if let Some(mark) = marks.into_iter().flatten().find(|mark| *mark >= vocabulary) {
            return refuse(format!("the mark {mark} is no token of {vocabulary}"));
        }
        match self.positions {
            Positions::Rope(_) if !self.head_width().is_multiple_of(2) => {
                refuse(format!("rope turns pairs, but the width of a head is {}", self.head_width()))
            }
            Positions::Relative(shape) if shape.buckets > MOST_LAYERS || shape.distance > WIDEST => refuse(
                format!("{} buckets of distances up to {} are too many", shape.buckets, shape.distance),
            ),
            Positions::Relative(shape) if shape.buckets < 4 || shape.distance <= shape.buckets / 2 => {
                refuse(format!("{} buckets of distances up to {} cannot be", shape.buckets, shape.distance))
            }
            _ => Ok(()),
        }
    }

    /// Blocks of the decoder.
    pub fn decoder_layers(&self) -> usize {
        self.decoder_layers.unwrap_or(self.layers)
    }

    /// The width of a head.
    pub fn head_width(&self) -> usize {
        self.head_width.unwrap_or(self.width / self.heads)
    }

    /// The width inside feed-forward networks.
    pub fn hidden(&self) -> usize {
        self.hidden.unwrap_or(self.width.saturating_mul(4))
    }

    /// The token in front of everything that is written.
    pub fn beginning(&self) -> i32 {
        self.beginning.unwrap_or(self.vocabulary - 2) as i32
    }

    /// The token after it.
    pub fn end(&self) -> i32 {
        self.end.unwrap_or(self.vocabulary - 1) as i32
    }

    /// The number of trained numbers. With heads of d in all, a block of the encoder has 4·d² + 2·d·hidden in its matrices,
    /// 9·d + hidden in biases and norms, one of the decoder another 4·d² + 6·d for looking at the encoder.
    pub fn parameters(&self) -> usize {
        let (v, d, inner, heads) =
            (self.vocabulary, self.width, self.hidden(), self.heads * self.head_width());
        let positions = match self.positions {
            Positions::Learned => (self.source_length + self.target_length) * d,
            Positions::Relative(shape) => 2 * shape.buckets * self.heads,
            Positions::Sinusoidal | Positions::Rope(_) => 0,
        };
        let norm = self.normalization.parameters(d);
        let norms = self.norm.norms() * norm;
        let inward = if self.feed_forward.is_gated() { 2 } else { 1 };
        let biases = |count| if self.bias { count } else { 0 };
        let attention = 4 * d * heads + biases(3 * heads + d) + norms;
        let network = (inward + 1) * d * inner + biases(inward * inner + d) + norms;
        let blocks = self.layers * (attention + network) + self.decoder_layers() * (2 * attention + network);
        v * d + positions + blocks + 2 * norm + if self.tied { 0 } else { v * d }
    }

    /// One training step on inputs `x` of `i32[batch, source length]` and `y` of `i32[batch, target length]`, of which
    /// `x_lengths` and `y_lengths`, `i32[batch]`, tokens count; the scalar `count` of `f32` is the sum of `y_lengths`. Each y
    /// ends with the mark of the end. The loss is that of smoothed targets.
    ///
    /// # Errors
    /// If the shape or the optimizer is not valid.
    pub fn train_step(&self, batch: usize, optimizer: &Optimizer, clip: Option<f64>) -> Result<TrainStep> {
        TrainStep::new(&self.loss(&Trace::training(), batch)?, optimizer, clip)
    }

    /// The output `loss` in evaluating mode, of targets that are not smoothed, on the inputs of
    /// [`EncoderDecoderConfig::train_step`].
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn evaluation(&self, batch: usize) -> Result<Program> {
        let trace = Trace::new();
        let loss = self.loss(&trace, batch)?;
        trace.finish(&[("loss", &loss)])
    }

    /// The output `log_probabilities` of `f32[rows, vocabulary]` for what each row writes after `position` tokens:
    /// inputs are `x` and `x_lengths` as in training, `written` of `i32[rows, target length]`, of which later tokens are
    /// not seen, and the scalar `position` of `i32`.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn next_token(&self, rows: usize) -> Result<Program> {
        let trace = Trace::new();
        let (source, target) = ([rows, self.source_length], [rows, self.target_length]);
        let (x, written) = (trace.input("x", source, DType::I32), trace.input("written", target, DType::I32));
        let lengths = trace.input("x_lengths", [rows], DType::I32);
        let position = trace.input("position", [], DType::I32);
        let logits = EncoderDecoder::new(&trace, self)?.forward(&x, Some(&lengths), &written);
        let zero = trace.full([], 0.0, DType::I32);
        let next = logits.dynamic_slice(&[&zero, &position, &zero], [rows, 1, self.vocabulary]);
        trace.finish(&[("log_probabilities", &next.squeeze(1).log_softmax(-1))])
    }

    /// The loss on the inputs of a training step, which it declares, in the mode of the trace.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn loss(&self, trace: &Trace, batch: usize) -> Result<Tensor> {
        let (source, target) = ([batch, self.source_length], [batch, self.target_length]);
        let (x, y) = (trace.input("x", source, DType::I32), trace.input("y", target, DType::I32));
        let lengths = ["x_lengths", "y_lengths"].map(|name| trace.input(name, [batch], DType::I32));
        let count = trace.input("count", [], DType::F32);
        let logits = EncoderDecoder::new(trace, self)?.forward(&x, Some(&lengths[0]), &y);
        let _scope = trace.scope("loss");
        let losses = match trace.is_training() {
            true => smoothed_token_losses(&logits, &y, self.smoothing),
            false => token_losses(&logits, &y),
        };
        Ok(counted_mean(&losses, &counted(&lengths[1], self.target_length), &count))
    }

    fn blocks(&self, trace: &Trace, name: &str, count: usize, shape: &BlockConfig) -> Vec<Block> {
        (0..count).map(|i| Block::new(trace, &format!("{name}.{i}"), shape)).collect()
    }

    fn block(&self, mask: AttentionMask) -> BlockConfig {
        let block = BlockConfig::classic(self.width, self.heads, self.hidden(), mask);
        let rope = match self.positions {
            Positions::Rope(rope) => Some(rope),
            Positions::Learned | Positions::Sinusoidal | Positions::Relative(_) => None,
        };
        let attention = AttentionConfig {
            mask,
            rope,
            head_width: self.head_width(),
            scale: (!self.scaled_attention).then_some(1.0),
            qkv_bias: self.bias,
            bias: self.bias,
            ..AttentionConfig::causal(self.width, self.heads)
        };
        let block = BlockConfig {
            norm: self.norm,
            normalization: self.normalization,
            epsilon: self.epsilon,
            attention: SelfAttentionConfig::Heads(attention),
            feed_forward: FeedForwardConfig {
                activation: self.feed_forward.activation(self.gelu),
                gated: self.feed_forward.is_gated(),
                bias: self.bias,
                ..block.feed_forward
            },
            ..block
        };
        // Matrices keep the variance of what goes through them (Glorot, Bengio, 2010).
        let (width, inner) = (self.width as f64, self.hidden() as f64);
        let [even, uneven] = [2.0 * width, width + inner].map(|extents| (2.0 / extents).sqrt());
        block.with_first_weights(even, uneven.min(even)).with_dropout(self.dropout)
    }
}

/// `bool[batch, length]`: whether a position is among the first `lengths`, `i32[batch]`.
#[track_caller]
fn counted(lengths: &Tensor, length: usize) -> Tensor {
    lengths.trace().iota([lengths.dim(0), length], 1, DType::I32).lt(lengths.unsqueeze(-1))
}

/// An encoder-decoder on a trace.
pub struct EncoderDecoder {
    path: Arc<str>,
    config: EncoderDecoderConfig,
    dropout: Dropout,
    /// Token embedding of both sides.
    pub wte: Embedding,
    /// Position embeddings of source and target, if positions are learned.
    pub wpe: Option<[Embedding; 2]>,
    /// Biases of encoder and decoder, if positions are known by distance.
    pub relative: Option<[RelativePositions; 2]>,
    /// The encoder's blocks.
    pub encoder: Vec<Block>,
    /// The decoder's blocks.
    pub decoder: Vec<Block>,
    /// The last norms of encoder and decoder.
    pub norms: [Norm; 2],
    /// The output layer, unless it shares the matrix of `wte`.
    pub head: Option<Linear>,
}

impl EncoderDecoder {
    /// Declares the parameters under the open module path. Vectors of tokens have a variance of one after scaling.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn new(trace: &Trace, config: &EncoderDecoderConfig) -> Result<Self> {
        config.validate()?;
        let (width, init) = (config.width, Init::Normal { std: 1.0 / (config.width as f64).sqrt() });
        let table = |name, count| Embedding::builder(count, width).init(init).build(trace, name);
        let wte = table("wte", config.vocabulary);
        let lengths = [("wpe_source", config.source_length), ("wpe_target", config.target_length)];
        let learned = config.positions == Positions::Learned;
        let wpe = learned.then(|| lengths.map(|(name, length)| table(name, length)));
        let relative = match config.positions {
            Positions::Relative(shape) => Some(
                [("relative_source", true), ("relative_target", false)]
                    .map(|(name, both)| RelativePositions::new(trace, name, config.heads, shape, both, init)),
            ),
            Positions::Learned | Positions::Sinusoidal | Positions::Rope(_) => None,
        };
        let encoder = config.block(AttentionMask::Full);
        let decoder = config.block(AttentionMask::Causal).with_cross_attention();
        let encoder = config.blocks(trace, "encoder", config.layers, &encoder);
        let decoder = config.blocks(trace, "decoder", config.decoder_layers(), &decoder);
        let norm = |name| Norm::new(trace, name, width, config.normalization, config.epsilon);
        let norms = ["ln_encoder", "ln_decoder"].map(norm);
        let own_head =
            || Linear::builder(width, config.vocabulary).bias(false).init(init).build(trace, "head");
        let head = (!config.tied).then(own_head);
        let dropout = Dropout { probability: config.dropout };
        let config = config.clone();
        let path = trace.path();
        Ok(EncoderDecoder { path, config, dropout, wte, wpe, relative, encoder, decoder, norms, head })
    }

    /// Logits `[batch, target length, vocabulary]` of each token of `target`, `i32[batch, target length]`, given those
    /// before it and `source`, `i32[batch, source length]`, of which `lengths`, `i32[batch]`, tokens count.
    #[track_caller]
    pub fn forward(&self, source: &Tensor, lengths: Option<&Tensor>, target: &Tensor) -> Tensor {
        super::expect_tokens("encoder", source, self.config.source_length);
        super::expect_tokens("decoder", target, self.config.target_length);
        self.logits(source, lengths, target)
    }

    /// Not `track_caller`: the nodes of the model carry the lines below.
    fn logits(&self, source: &Tensor, lengths: Option<&Tensor>, target: &Tensor) -> Tensor {
        let trace = source.trace();
        let _scope = trace.at(self.path.clone());
        if source.rank() != 2 || target.rank() != 2 {
            return target.clone();
        }
        let key_padding_mask = lengths.map(|lengths| counted(lengths, source.dim(1)));
        let bias =
            |side: usize, length| self.relative.as_ref().map(|both| both[side].forward(length, length));
        let source_bias = bias(0, source.dim(1));
        let mut memory = self.embedded(source, 0);
        for block in &self.encoder {
            let around = BlockInputs {
                key_padding_mask: key_padding_mask.as_ref(),
                bias: source_bias.as_ref(),
                ..BlockInputs::default()
            };
            memory = block.forward_with(&memory, around);
        }
        let memory = self.norms[0].forward(&memory);
        let mut x = self.embedded(&self.shifted(target), 1);
        let target_bias = bias(1, target.dim(1));
        for block in &self.decoder {
            let around = BlockInputs {
                bias: target_bias.as_ref(),
                memory: Some(&memory),
                memory_padding_mask: key_padding_mask.as_ref(),
                ..BlockInputs::default()
            };
            x = block.forward_with(&x, around);
        }
        let mut x = self.norms[1].forward(&x);
        if self.config.scaled_head {
            x = x * (1.0 / (self.config.width as f64).sqrt());
        }
        match &self.head {
            Some(head) => head.forward(&x),
            None => self.wte.logits(&x),
        }
    }

    /// The mark of the beginning, then all tokens but the last.
    fn shifted(&self, target: &Tensor) -> Tensor {
        let (trace, [batch, length]) = (target.trace(), [target.dim(0), target.dim(1)]);
        let beginning = trace.full([batch, 1], f64::from(self.config.beginning()), DType::I32);
        trace.concat(&[&beginning, &target.slice(1, 0..length.saturating_sub(1))], 1)
    }

    /// Vectors of tokens with their positions; `side` is 0 for the source, 1 for the target.
    fn embedded(&self, tokens: &Tensor, side: usize) -> Tensor {
        let (width, length) = (self.config.width, tokens.dim(1));
        let mut vectors = self.wte.forward(tokens);
        if self.config.scaled_embedding {
            vectors = vectors * (width as f64).sqrt();
        }
        self.dropout.forward(&match (&self.wpe, self.config.positions) {
            (Some(tables), _) => vectors + tables[side].first(length),
            (None, Positions::Sinusoidal) => vectors + tokens.trace().sinusoidal_positions(length, width),
            (None, _) => vectors,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{RelativeShape, Rope};

    fn t5(small: EncoderDecoderConfig) -> EncoderDecoderConfig {
        EncoderDecoderConfig {
            decoder_layers: Some(1),
            head_width: Some(6),
            bias: false,
            feed_forward: FeedForwardKind::Geglu,
            norm: NormPlace::Pre,
            normalization: Normalization::Rms,
            positions: Positions::Relative(RelativeShape { buckets: 8, distance: 20 }),
            scaled_attention: false,
            scaled_embedding: false,
            scaled_head: true,
            beginning: Some(0),
            end: Some(1),
            ..small
        }
    }

    #[test]
    fn the_traced_parameters_are_as_many_as_the_formula_says() {
        let small = EncoderDecoderConfig { layers: 2, width: 8, heads: 2, ..EncoderDecoderConfig::default() };
        let others = [
            EncoderDecoderConfig { positions: Positions::Learned, hidden: Some(12), ..small.clone() },
            EncoderDecoderConfig {
                positions: Positions::Rope(Rope::default()),
                tied: false,
                ..small.clone()
            },
            t5(small.clone()),
            EncoderDecoderConfig { bias: true, normalization: Normalization::Layer, ..t5(small.clone()) },
        ];
        for config in [small].into_iter().chain(others) {
            assert_eq!(config.evaluation(2).expect("valid").parameter_count(), config.parameters());
        }
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let refused = |config: EncoderDecoderConfig| config.evaluation(1).expect_err("refused").to_string();
        let small = EncoderDecoderConfig::default;
        assert!(
            refused(EncoderDecoderConfig { vocabulary: 2, ..small() }).contains("no token beside the marks")
        );
        assert!(refused(EncoderDecoderConfig { smoothing: 1.0, ..small() }).contains("smoothing 1"));
        assert!(refused(EncoderDecoderConfig { end: Some(28), ..small() }).contains("28 is no token"));
        assert!(refused(EncoderDecoderConfig { decoder_layers: Some(0), ..small() }).contains("is 0"));
        let relative = Positions::Relative(RelativeShape { buckets: 32, distance: 16 });
        assert!(refused(EncoderDecoderConfig { positions: relative, ..small() }).contains("32 buckets"));
        let rope = Positions::Rope(Rope::default());
        assert!(
            refused(EncoderDecoderConfig { width: 12, positions: rope, ..small() }).contains("head is 3")
        );
    }
}
