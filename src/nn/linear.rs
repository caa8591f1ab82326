//! The affine map x ↦ x · Wᵀ + b, and what an adapter adds to it.

use super::low_rank::Adapter;
use crate::init::Init;
use crate::trace::{Tensor, Trace};
use std::sync::Arc;

/// An affine map of the last axis.
pub struct Linear {
    path: Arc<str>,
    /// `[outputs, inputs]`.
    pub weight: Tensor,
    /// `[outputs]`, if there is one.
    pub bias: Option<Tensor>,
    adapter: Option<Adapter>,
}

/// How a [`Linear`] is declared.
#[derive(Debug, Clone, Copy)]
pub struct LinearBuilder {
    inputs: usize,
    outputs: usize,
    bias: bool,
    init: Init,
}

impl LinearBuilder {
    /// With these first weights instead of uniform ones within 1/√inputs.
    pub fn init(self, init: Init) -> Self {
        LinearBuilder { init, ..self }
    }

    /// With a bias, which starts from zero, or without one.
    pub fn bias(self, bias: bool) -> Self {
        LinearBuilder { bias, ..self }
    }

    /// Declares `name.weight` and, unless there is none, `name.bias`.
    #[track_caller]
    pub fn build(self, trace: &Trace, name: &str) -> Linear {
        let LinearBuilder { inputs, outputs, bias, init } = self;
        let _scope = trace.scope(name);
        let weight = trace.parameter("weight", [outputs, inputs], init);
        let adapter = Adapter::new(trace, inputs, outputs);
        // A closure would have a line of its own.
        let bias = if bias { Some(trace.parameter("bias", [outputs], Init::Zeros)) } else { None };
        Linear { path: trace.path(), weight, bias, adapter }
    }
}

impl Linear {
    /// Declares `name.weight`, uniform within 1/√inputs as the weights of `torch.nn.Linear`, and `name.bias`, which starts from zero.
    /// [`Linear::builder`] has other choices.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, inputs: usize, outputs: usize) -> Self {
        Linear::builder(inputs, outputs).build(trace, name)
    }

    /// A map from `inputs` numbers to `outputs`, to be [built](LinearBuilder::build).
    pub fn builder(inputs: usize, outputs: usize) -> LinearBuilder {
        let bound = 1.0 / (inputs.max(1) as f64).sqrt();
        LinearBuilder { inputs, outputs, bias: true, init: Init::Uniform { bound } }
    }

    /// `[outputs, inputs]`: the weight with what an adapter adds to it.
    #[track_caller]
    pub(super) fn adapted_weight(&self) -> Tensor {
        let _scope = self.weight.trace().at(self.path.clone());
        match &self.adapter {
            Some(adapter) => &self.weight + adapter.change(),
            None => self.weight.clone(),
        }
    }

    /// `[.., inputs]` to `[.., outputs]`.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        let mut y = x.linear(&self.weight);
        if let Some(bias) = &self.bias {
            y = y + bias;
        }
        match &self.adapter {
            Some(adapter) => y + adapter.forward(x),
            None => y,
        }
    }
}
