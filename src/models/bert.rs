//! BERT: an encoder that learns by filling gaps (Devlin et al., "BERT: pre-training of deep bidirectional transformers",
//! 2018). Some tokens of a text are hidden, and every position may look at all others to guess them.
//!
//! Parameters: `wte.weight` [V, d], `wpe.weight` [T, d], `wse.weight` [segments, d] for the parts of a text,
//! `ln_e.{weight,bias}`; blocks as a decoder's, with biases everywhere, after whose branches norms stand;
//! `head.dense.{weight,bias}` [d, d], `head.norm.{weight,bias}` and `head.bias` [V]. The output layer has the matrix of `wte`.

use super::gpt::INITIAL_STD;
use super::{MOST_LAYERS, MOST_TOKENS, WIDEST};
use crate::init::Init;
use crate::loss::{counted_mean, token_losses};
use crate::nn::{
    Activation, AttentionMask, Block, BlockConfig, BlockInputs, Dropout, Embedding, Gelu, LayerNorm, Linear,
};
use crate::optim::{Optimizer, TrainStep};
use crate::trace::{Program, Tensor, Trace};
use crate::{Error, Result};
use kernfusion_ir::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The shape of a BERT; in JSON, fields left out take their defaults, which are those of the preset `bert-tiny`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BertConfig {
    /// V, the number of tokens, that of the mask included.
    pub vocabulary: usize,
    /// T, the most positions it can see.
    pub context: usize,
    /// L, the number of blocks.
    pub layers: usize,
    /// Attention heads in each block.
    pub heads: usize,
    /// d, a multiple of `heads`.
    pub width: usize,
    /// The width inside feed-forward networks; none: 4·d.
    pub hidden: Option<usize>,
    /// Dropout probability of embeddings, attention weights and branches.
    pub dropout: f64,
    /// ε of the norms.
    pub epsilon: f64,
    /// Parts of a text that have an embedding of their own.
    pub segments: usize,
    /// The form of GELU: `erf` (exact) or `tanh`.
    pub gelu: Gelu,
    /// The token that stands for a hidden one; none: the last one.
    pub mask_token: Option<usize>,
}

impl Default for BertConfig {
    fn default() -> Self {
        BertConfig {
            vocabulary: 66,
            context: 64,
            layers: 4,
            heads: 4,
            width: 128,
            hidden: None,
            dropout: 0.0,
            epsilon: 1e-12,
            segments: 2,
            gelu: Gelu::Erf,
            mask_token: None,
        }
    }
}

impl BertConfig {
    /// Checks that such a model exists.
    ///
    /// # Errors
    /// If an extent is zero, the width no multiple of the heads, the dropout probability outside [0, 1), or the mask no
    /// token.
    pub fn validate(&self) -> Result<()> {
        super::check_extents(&[
            ("vocabulary", self.vocabulary, MOST_TOKENS),
            ("context", self.context, MOST_TOKENS),
            ("layers", self.layers, MOST_LAYERS),
            ("heads", self.heads, WIDEST),
            ("width", self.width, WIDEST),
            ("hidden", self.hidden(), WIDEST),
            ("segments", self.segments, WIDEST),
        ])?;
        super::check_heads(self.width, self.heads, None)?;
        super::check_dropout(self.dropout)?;
        if self.mask_token() >= self.vocabulary {
            let (mask, vocabulary) = (self.mask_token(), self.vocabulary);
            return Err(Error::Configuration(format!("mask_token {mask} is no token of {vocabulary}")));
        }
        Ok(())
    }

    /// The width inside feed-forward networks.
    pub fn hidden(&self) -> usize {
        self.hidden.unwrap_or(self.width.saturating_mul(4))
    }

    /// The token that stands for a hidden one.
    pub fn mask_token(&self) -> usize {
        self.mask_token.unwrap_or(self.vocabulary.saturating_sub(1))
    }

    /// The number of trained numbers. Each block has 4·d² + 2·d·hidden in its matrices, 5·d + hidden biases and 4·d in
    /// its norms; the head d² + d, 2·d and V.
    pub fn parameters(&self) -> usize {
        let (v, d, inner) = (self.vocabulary, self.width, self.hidden());
        let embeddings = (v + self.context + self.segments) * d + 2 * d;
        let block = 4 * d * d + 2 * d * inner + 5 * d + inner + 4 * d;
        embeddings + self.layers * block + d * d + 3 * d + v
    }

    /// One training step on inputs `x` and `y` of `i32[batch, context]`, the text with and without hidden tokens, and
    /// `mask` of `f32[batch, context]`, which is 1 where a token is to be guessed; the scalar `count` of `f32` says how many
    /// these are, at least one.
    ///
    /// # Errors
    /// If the shape or the optimizer is not valid.
    pub fn train_step(&self, batch: usize, optimizer: &Optimizer, clip: Option<f64>) -> Result<TrainStep> {
        TrainStep::new(&self.loss(&Trace::training(), batch)?, optimizer, clip)
    }

    /// The output `loss` in evaluating mode, on the inputs of [`BertConfig::train_step`].
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
        let logits = Bert::new(&trace, self)?.forward(&x, None, None);
        trace.finish(&[("logits", &logits)])
    }

    /// The loss on the inputs of a training step, which it declares, in the mode of the trace.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn loss(&self, trace: &Trace, batch: usize) -> Result<Tensor> {
        let shape = [batch, self.context];
        let (x, y) = (trace.input("x", shape, DType::I32), trace.input("y", shape, DType::I32));
        let (mask, count) = (trace.input("mask", shape, DType::F32), trace.input("count", [], DType::F32));
        let logits = Bert::new(trace, self)?.forward(&x, None, None);
        let _scope = trace.scope("loss");
        Ok(counted_mean(&token_losses(&logits, &y), &mask, &count))
    }

    /// Standard deviation of the first weights: the paper's 0.02 at its width of 768, and so that matrices change variances as
    /// much at any other one.
    fn std(&self) -> f64 {
        INITIAL_STD * (768.0 / self.width as f64).sqrt()
    }

    fn block(&self) -> BlockConfig {
        let block = BlockConfig::classic(self.width, self.heads, self.hidden(), AttentionMask::Full);
        BlockConfig { epsilon: self.epsilon, ..block }
            .with_activation(self.gelu.into())
            .with_dropout(self.dropout)
    }
}

/// A BERT on a trace.
pub struct Bert {
    path: Arc<str>,
    context: usize,
    gelu: Activation,
    dropout: Dropout,
    /// Token embedding.
    pub wte: Embedding,
    /// Position embedding.
    pub wpe: Embedding,
    /// Embedding of the parts of a text.
    pub wse: Embedding,
    /// The norm of their sum.
    pub ln_e: LayerNorm,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// What guesses tokens.
    pub head: MaskedHead,
}

/// norm(gelu(dense x)) · wteᵀ + bias.
pub struct MaskedHead {
    /// `[width, width]`.
    pub dense: Linear,
    /// The norm after it.
    pub norm: LayerNorm,
    /// `[vocabulary]`.
    pub bias: Tensor,
}

impl Bert {
    /// Declares the parameters under the open module path.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn new(trace: &Trace, config: &BertConfig) -> Result<Self> {
        config.validate()?;
        let (width, init) = (config.width, Init::Normal { std: config.std() });
        let table = |name, count| Embedding::builder(count, width).init(init).build(trace, name);
        let norm = |name| LayerNorm::new(trace, name, width).with_epsilon(config.epsilon);
        let (wte, wpe) = (table("wte", config.vocabulary), table("wpe", config.context));
        let (wse, ln_e) = (table("wse", config.segments), norm("ln_e"));
        let shape = config.block();
        let blocks = (0..config.layers).map(|i| Block::new(trace, &format!("blocks.{i}"), &shape)).collect();
        let scope = trace.scope("head");
        let head = MaskedHead {
            dense: Linear::builder(width, width).init(init).build(trace, "dense"),
            norm: norm("norm"),
            bias: trace.parameter("bias", [config.vocabulary], Init::Zeros),
        };
        drop(scope);
        let dropout = Dropout { probability: config.dropout };
        let (context, gelu) = (config.context, config.gelu.into());
        Ok(Bert { path: trace.path(), context, gelu, dropout, wte, wpe, wse, ln_e, blocks, head })
    }

    /// Logits `[batch, length, vocabulary]` of the token at each position of `tokens`, `i32[batch, length]`, with a length
    /// of at most `context`. `segments`, `i32[batch, length]`, says which part of the text a token belongs to; without it
    /// all do to the first. Nothing looks at positions where `real`, `bool[batch, length]`, does not hold.
    #[track_caller]
    pub fn forward(
        &self,
        tokens: &Tensor,
        segments: Option<&Tensor>,
        key_padding_mask: Option<&Tensor>,
    ) -> Tensor {
        super::expect_tokens("bert", tokens, self.context);
        self.logits(tokens, segments, key_padding_mask)
    }

    /// Not `track_caller`: the nodes of the model carry the lines below.
    fn logits(
        &self,
        tokens: &Tensor,
        segments: Option<&Tensor>,
        key_padding_mask: Option<&Tensor>,
    ) -> Tensor {
        let trace = tokens.trace();
        let _scope = trace.at(self.path.clone());
        let length = tokens.shape().get(1).copied().unwrap_or(1);
        let segment = match segments {
            Some(segments) => self.wse.forward(segments),
            None => self.wse.first(1),
        };
        let embedded = self.wte.forward(tokens) + self.wpe.first(length) + segment;
        let mut x = self.dropout.forward(&self.ln_e.forward(&embedded));
        for block in &self.blocks {
            x = block.forward_with(&x, BlockInputs { key_padding_mask, ..BlockInputs::default() });
        }
        let _head = trace.scope("head");
        let x = self.head.norm.forward(&self.head.dense.forward(&x).activate(self.gelu));
        self.wte.logits(&x) + &self.head.bias
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_traced_parameters_are_as_many_as_the_formula_says() {
        let config = BertConfig { layers: 2, width: 8, heads: 2, hidden: Some(12), ..BertConfig::default() };
        for config in [BertConfig { segments: 3, gelu: Gelu::Tanh, ..config.clone() }, config] {
            assert_eq!(config.forward(1, 3).expect("valid").parameter_count(), config.parameters());
        }
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let refused = |config: BertConfig| config.forward(1, 1).expect_err("refused").to_string();
        let small = BertConfig::default;
        assert!(refused(BertConfig { heads: 3, ..small() }).contains("not a multiple of heads 3"));
        assert!(
            refused(BertConfig { mask_token: Some(66), ..small() }).contains("mask_token 66 is no token")
        );
        assert!(refused(BertConfig { hidden: Some(0), ..small() }).contains("hidden is 0"));
        assert!(refused(BertConfig { segments: 0, ..small() }).contains("segments is 0"));
    }
}
