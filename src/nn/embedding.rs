//! A table of vectors.

use crate::init::Init;
use crate::trace::{Tensor, Trace};
use std::sync::Arc;

/// One vector for each index.
pub struct Embedding {
    path: Arc<str>,
    /// `[count, width]`.
    pub weight: Tensor,
}

/// How an [`Embedding`] is declared.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddingBuilder {
    count: usize,
    width: usize,
    init: Init,
}

impl EmbeddingBuilder {
    /// With these first vectors instead of normal ones of standard deviation 1.
    pub fn init(self, init: Init) -> Self {
        EmbeddingBuilder { init, ..self }
    }

    /// Declares `name.weight`.
    #[track_caller]
    pub fn build(self, trace: &Trace, name: &str) -> Embedding {
        let EmbeddingBuilder { count, width, init } = self;
        let _scope = trace.scope(name);
        Embedding { path: trace.path(), weight: trace.parameter("weight", [count, width], init) }
    }
}

impl Embedding {
    /// Declares `name.weight`, normal with mean 0 and standard deviation 1 as that of `torch.nn.Embedding`. Language models begin with
    /// smaller ones, GPT-2 with 0.02: [`Embedding::builder`] has other choices.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, count: usize, width: usize) -> Self {
        Embedding::builder(count, width).build(trace, name)
    }

    /// A table of `count` vectors of `width` numbers, to be [built](EmbeddingBuilder::build).
    pub fn builder(count: usize, width: usize) -> EmbeddingBuilder {
        EmbeddingBuilder { count, width, init: Init::Normal { std: 1.0 } }
    }

    /// The vectors of `i32` indices: `[..]` to `[.., width]`. An index outside of the table is no error: one below 0 counts as 0, one
    /// above the last as the last. Check tokens before they are given to a program, if they may be out of range.
    #[track_caller]
    pub fn forward(&self, indices: &Tensor) -> Tensor {
        let _scope = indices.trace().at(self.path.clone());
        self.weight.gather(0, indices)
    }

    /// The first `count` vectors, `[count, width]`: the embedding of 0, 1, …, count − 1.
    #[track_caller]
    pub fn first(&self, count: usize) -> Tensor {
        let _scope = self.weight.trace().at(self.path.clone());
        self.weight.slice(0, 0..count)
    }

    /// The scalar product of x with each vector: `[.., width]` to `[.., count]`. This is an output layer that shares
    /// its matrix with the embedding.
    #[track_caller]
    pub fn logits(&self, x: &Tensor) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        x.linear(&self.weight)
    }
}
