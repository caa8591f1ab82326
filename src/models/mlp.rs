//! The multi-layer perceptron.

use crate::init::Init;
use crate::nn::{Activation, Linear};
use crate::trace::{Tensor, Trace};
use crate::{Error, Result};
use std::sync::Arc;

/// Affine maps with an activation between each two of them.
pub struct Mlp {
    path: Arc<str>,
    activation: Activation,
    /// The maps, `layers.0`, `layers.1`, ….
    pub layers: Vec<Linear>,
}

impl Mlp {
    /// Declares a map from each width to the next one, under the open module path. Weights are drawn between ±1/√inputs.
    ///
    /// # Errors
    /// If there are fewer than two widths, or one is zero.
    #[track_caller]
    pub fn new(trace: &Trace, widths: &[usize], activation: Activation) -> Result<Self> {
        if widths.len() < 2 || widths.contains(&0) {
            let reason = format!("a perceptron needs two widths or more, none of them 0, not {widths:?}");
            return Err(Error::Configuration(reason));
        }
        let mut layers = Vec::with_capacity(widths.len() - 1);
        for (i, pair) in widths.windows(2).enumerate() {
            let init = Init::Uniform { bound: 1.0 / (pair[0] as f64).sqrt() };
            layers.push(Linear::builder(pair[0], pair[1]).init(init).build(trace, &format!("layers.{i}")));
        }
        Ok(Mlp { path: trace.path(), activation, layers })
    }

    /// `[.., first width]` to `[.., last width]`.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        let mut x = x.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            let inner = if i == 0 { x } else { x.activate(self.activation) };
            x = layer.forward(&inner);
        }
        x
    }
}
