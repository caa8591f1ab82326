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

impl Embedding {
    /// Declares `name.weight`.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, count: usize, width: usize, init: Init) -> Self {
        let _scope = trace.scope(name);
        Embedding { path: trace.path(), weight: trace.parameter("weight", [count, width], init) }
    }

    /// The vectors of `i32` indices: `[..]` to `[.., width]`. Indices are clamped into the table.
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
