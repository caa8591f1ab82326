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

impl Linear {
    /// Declares `name.weight` and `name.bias`; the bias starts from zero.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, inputs: usize, outputs: usize, init: Init) -> Self {
        let mut linear = Linear::without_bias(trace, name, inputs, outputs, init);
        let _scope = trace.at(linear.path.clone());
        linear.bias = Some(trace.parameter("bias", [outputs], Init::Zeros));
        linear
    }

    /// Declares `name.weight` only.
    #[track_caller]
    pub fn without_bias(trace: &Trace, name: &str, inputs: usize, outputs: usize, init: Init) -> Self {
        let _scope = trace.scope(name);
        let weight = trace.parameter("weight", [outputs, inputs], init);
        Linear { path: trace.path(), weight, bias: None, adapter: Adapter::new(trace, inputs, outputs) }
    }

    /// Declares `name.weight` and, if asked for, `name.bias`.
    #[track_caller]
    pub fn with(trace: &Trace, name: &str, [inputs, outputs]: [usize; 2], bias: bool, init: Init) -> Self {
        match bias {
            true => Linear::new(trace, name, inputs, outputs, init),
            false => Linear::without_bias(trace, name, inputs, outputs, init),
        }
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
