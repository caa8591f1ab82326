//! The two-layer network of a block.

use super::block::BlockConfig;
use super::{Gelu, Linear};
use crate::init::Init;
use crate::trace::{Tensor, Trace};
use std::sync::Arc;

/// down(gelu(up x)), with four times the width inside.
pub struct FeedForward {
    path: Arc<str>,
    gelu: Gelu,
    /// `[4·width, width]`.
    pub up: Linear,
    /// `[width, 4·width]`.
    pub down: Linear,
}

impl FeedForward {
    /// Declares `name.up` and `name.down`, both with biases.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, config: &BlockConfig) -> Self {
        let _scope = trace.scope(name);
        let (width, inner) = (config.width, 4 * config.width);
        let up = Linear::new(trace, "up", width, inner, Init::Normal { std: config.std });
        let down = Linear::new(trace, "down", inner, width, Init::Normal { std: config.residual_std });
        FeedForward { path: trace.path(), gelu: config.gelu, up, down }
    }

    /// `[.., width]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        self.down.forward(&self.up.forward(x).gelu_as(self.gelu))
    }
}
