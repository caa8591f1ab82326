//! The first Transformer: an encoder reads a sequence, a decoder writes another one and looks at the encoder's result
//! (Vaswani et al., "Attention is all you need", 2017).
//!
//! Both share the token embedding, whose vectors are scaled by √d before positions are added, and which is the matrix of
//! the output layer unless that has its own. The last two tokens of the vocabulary mark the beginning and the end of what
//! is written: the decoder reads its own text one place later, with the beginning in front.
//!
//! Parameters: `wte.weight` [V, d]; `wpe_source.weight` and `wpe_target.weight` if positions are learned; blocks
//! `encoder.i` and `decoder.i`, the latter with `ln_cross`, `cross.q`, `cross.kv` and `cross.proj`; `ln_encoder`,
//! `ln_decoder`; `head.weight` if it is not tied.

use super::Positions;
use crate::init::Init;
use crate::loss::{counted_mean, smoothed_token_losses, token_losses};
use crate::nn::{
    Block, BlockConfig, Dropout, Embedding, LayerNorm, Linear, NormPlace, SelfAttentionConfig, Sight,
    Surroundings,
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
    /// Blocks of the encoder, and as many of the decoder.
    pub layers: usize,
    /// Attention heads in each block.
    pub heads: usize,
    /// d, a multiple of `heads`.
    pub width: usize,
    /// The width inside feed-forward networks; none: 4·d.
    pub hidden: Option<usize>,
    /// Dropout probability of embeddings, attention weights and branches.
    pub dropout: f64,
    /// Where norms stand: `post`, as in the paper, or `pre`.
    pub norm: NormPlace,
    /// How positions are known: `sinusoidal`, as in the paper, `learned`, or `rope` as in a decoder.
    pub positions: Positions,
    /// Whether the output layer has the matrix of the embedding.
    pub tied: bool,
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
            heads: 4,
            width: 128,
            hidden: None,
            dropout: 0.0,
            norm: NormPlace::Post,
            positions: Positions::Sinusoidal,
            tied: true,
            smoothing: 0.1,
        }
    }
}

impl EncoderDecoderConfig {
    /// Checks that such a model exists.
    ///
    /// # Errors
    /// If an extent is zero, there is no token beside the marks, the width no multiple of the heads, or a share outside
    /// [0, 1).
    pub fn validate(&self) -> Result<()> {
        super::check_extents(&[
            ("source_length", self.source_length),
            ("target_length", self.target_length),
            ("layers", self.layers),
            ("heads", self.heads),
            ("width", self.width),
            ("hidden", self.hidden()),
        ])?;
        super::check_heads(self.width, self.heads)?;
        super::check_dropout(self.dropout)?;
        let refuse = |reason: String| Err(Error::Configuration(reason));
        if self.vocabulary < 3 {
            let given = self.vocabulary;
            return refuse(format!("vocabulary {given} has no token beside the marks of beginning and end"));
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return refuse(format!("smoothing {} is not in the range from 0 to below 1", self.smoothing));
        }
        match self.positions {
            Positions::Rope(_) if !(self.width / self.heads).is_multiple_of(2) => {
                refuse(format!("rope turns pairs, but the width of a head is {}", self.width / self.heads))
            }
            _ => Ok(()),
        }
    }

    /// The width inside feed-forward networks.
    pub fn hidden(&self) -> usize {
        self.hidden.unwrap_or(4 * self.width)
    }

    /// The token in front of everything that is written.
    pub fn beginning(&self) -> i32 {
        self.vocabulary as i32 - 2
    }

    /// The token after it.
    pub fn end(&self) -> i32 {
        self.vocabulary as i32 - 1
    }

    /// The number of trained numbers. A block of the encoder has 4·d² + 2·d·hidden in its matrices, 9·d + hidden in biases
    /// and norms, one of the decoder another 4·d² + 6·d for looking at the encoder.
    pub fn parameters(&self) -> usize {
        let (v, d, inner) = (self.vocabulary, self.width, self.hidden());
        let learned = self.positions == Positions::Learned;
        let positions = if learned { (self.source_length + self.target_length) * d } else { 0 };
        let block = 4 * d * d + 2 * d * inner + 9 * d + inner;
        let cross = 4 * d * d + 6 * d;
        let head = if self.tied { 0 } else { v * d };
        v * d + positions + self.layers * (2 * block + cross) + 4 * d + head
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

    fn blocks(&self, trace: &Trace, name: &str, shape: &BlockConfig) -> Vec<Block> {
        (0..self.layers).map(|i| Block::new(trace, &format!("{name}.{i}"), shape)).collect()
    }

    fn block(&self, sight: Sight) -> BlockConfig {
        let mut block = BlockConfig::classic(self.width, self.heads, self.hidden(), sight);
        block.norm = self.norm;
        if let (Positions::Rope(rope), SelfAttentionConfig::Heads(heads)) =
            (self.positions, &mut block.attention)
        {
            heads.rope = Some(rope);
        }
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
    /// The encoder's blocks.
    pub encoder: Vec<Block>,
    /// The decoder's blocks.
    pub decoder: Vec<Block>,
    /// The last norms of encoder and decoder.
    pub norms: [LayerNorm; 2],
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
        let table = |name, count| Embedding::new(trace, name, count, width, init);
        let wte = table("wte", config.vocabulary);
        let lengths = [("wpe_source", config.source_length), ("wpe_target", config.target_length)];
        let learned = config.positions == Positions::Learned;
        let wpe = learned.then(|| lengths.map(|(name, length)| table(name, length)));
        let encoder = config.block(Sight::Full);
        let decoder = config.block(Sight::Causal).with_cross_attention();
        let encoder = config.blocks(trace, "encoder", &encoder);
        let decoder = config.blocks(trace, "decoder", &decoder);
        let norms = ["ln_encoder", "ln_decoder"].map(|name| LayerNorm::new(trace, name, width));
        let own_head = || Linear::without_bias(trace, "head", width, config.vocabulary, init);
        let head = (!config.tied).then(own_head);
        let dropout = Dropout { probability: config.dropout };
        let config = config.clone();
        Ok(EncoderDecoder { path: trace.path(), config, dropout, wte, wpe, encoder, decoder, norms, head })
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
        let real = lengths.map(|lengths| counted(lengths, source.dim(1)));
        let mut memory = self.embedded(source, 0);
        for block in &self.encoder {
            let around = Surroundings { real: real.as_ref(), ..Surroundings::default() };
            memory = block.forward_among(&memory, around);
        }
        let memory = self.norms[0].forward(&memory);
        let mut x = self.embedded(&self.shifted(target), 1);
        for block in &self.decoder {
            let around =
                Surroundings { memory: Some(&memory), memory_real: real.as_ref(), ..Surroundings::default() };
            x = block.forward_among(&x, around);
        }
        let x = self.norms[1].forward(&x);
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
        let vectors = self.wte.forward(tokens) * (width as f64).sqrt();
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
    use crate::nn::Rope;

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
        let rope = Positions::Rope(Rope::default());
        assert!(
            refused(EncoderDecoderConfig { width: 12, positions: rope, ..small() }).contains("head is 3")
        );
    }
}
