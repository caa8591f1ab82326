//! The feed-forward network of a block.

use super::{Activation, Linear};
use crate::init::Init;
use crate::trace::{Tensor, Trace};
use std::sync::Arc;

/// The shape of a feed-forward network.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedForwardConfig {
    /// d, the width outside.
    pub width: usize,
    /// The width inside, 4·d in the first Transformer.
    pub hidden: usize,
    /// The activation.
    pub activation: Activation,
    /// Whether the activation's result is multiplied by a second projection of the input.
    pub gated: bool,
    /// Whether the projections have biases.
    pub bias: bool,
    /// Standard deviation of the first weights.
    pub std: f64,
    /// That of `down`, whose results are added to the residual stream.
    pub residual_std: f64,
}

/// down(f(up x)), or with a gate down(f(gate x) ⊙ up x); with f = Swish the latter is SwiGLU (Shazeer, "GLU variants
/// improve Transformer", 2020, equation 6).
pub struct FeedForward {
    path: Arc<str>,
    activation: Activation,
    /// `[hidden, width]`, if there is one.
    pub gate: Option<Linear>,
    /// `[hidden, width]`.
    pub up: Linear,
    /// `[width, hidden]`.
    pub down: Linear,
}

impl FeedForward {
    /// Declares `name.up`, `name.down` and, with a gate, `name.gate`.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, config: &FeedForwardConfig) -> Self {
        let _scope = trace.scope(name);
        let FeedForwardConfig { width, hidden, activation, gated, bias, .. } = *config;
        let inward = Init::Normal { std: config.std };
        let gate = if gated {
            Some(Linear::builder(width, hidden).bias(bias).init(inward).build(trace, "gate"))
        } else {
            None
        };
        let up = Linear::builder(width, hidden).bias(bias).init(inward).build(trace, "up");
        let down = Linear::builder(hidden, width)
            .bias(bias)
            .init(Init::Normal { std: config.residual_std })
            .build(trace, "down");
        FeedForward { path: trace.path(), activation, gate, up, down }
    }

    /// `[.., width]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        let inner = match &self.gate {
            Some(gate) => gate.forward(x).activate(self.activation) * self.up.forward(x),
            None => self.up.forward(x).activate(self.activation),
        };
        self.down.forward(&inner)
    }
}
