//! Normalisation.

use crate::init::Init;
use crate::trace::{Tensor, Trace};
use std::sync::Arc;

/// (x − mean) / √(var + ε) · weight + bias over the last axis, with the biased variance (Ba, Kiros, Hinton, 2016).
pub struct LayerNorm {
    path: Arc<str>,
    /// `[width]`, from one.
    pub weight: Tensor,
    /// `[width]`, from zero.
    pub bias: Tensor,
    /// ε, inside the root.
    pub epsilon: f64,
}

impl LayerNorm {
    /// Declares `name.weight` and `name.bias`; ε is 10⁻⁵.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, width: usize) -> Self {
        let _scope = trace.scope(name);
        LayerNorm {
            path: trace.path(),
            weight: trace.parameter("weight", [width], Init::Ones),
            bias: trace.parameter("bias", [width], Init::Zeros),
            epsilon: 1e-5,
        }
    }

    /// `[.., width]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        x.normalize(&[-1], self.epsilon) * &self.weight + &self.bias
    }
}
