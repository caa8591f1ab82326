//! Normalisation over a batch (Ioffe, Szegedy, 2015), with the conventions of PyTorch.

use crate::init::Init;
use crate::trace::{Tensor, Trace};
use std::sync::Arc;

/// (x − mean) / √(var + ε) · weight + bias for each channel. In training, mean and biased variance are those of the batch,
/// and the running ones follow: r ← (1 − momentum)·r + momentum·new, with the unbiased variance. When evaluating, the
/// running ones are used and stay.
pub struct BatchNorm {
    path: Arc<str>,
    /// `[channels]`, from one.
    pub weight: Tensor,
    /// `[channels]`, from zero.
    pub bias: Tensor,
    /// `[channels]`, a state from zero.
    pub running_mean: Tensor,
    /// `[channels]`, a state from one.
    pub running_var: Tensor,
    /// The share of the batch in the running statistics.
    pub momentum: f64,
    /// ε, inside the root.
    pub epsilon: f64,
}

impl BatchNorm {
    /// Declares `name.weight`, `name.bias`, `name.running_mean` and `name.running_var`; momentum is 0.1, ε 10⁻⁵.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, channels: usize) -> Self {
        let _scope = trace.scope(name);
        BatchNorm {
            path: trace.path(),
            weight: trace.parameter("weight", [channels], Init::Ones),
            bias: trace.parameter("bias", [channels], Init::Zeros),
            running_mean: trace.buffer("running_mean", [channels], Init::Zeros),
            running_var: trace.buffer("running_var", [channels], Init::Ones),
            momentum: 0.1,
            epsilon: 1e-5,
        }
    }

    /// `[batch, channels, ..]` to the same shape. In training it may be called once, for it says what the running
    /// statistics become.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let trace = x.trace();
        let _scope = trace.at(self.path.clone());
        let shape = x.shape();
        let training = trace.is_training();
        let count = shape.iter().product::<usize>() / shape.get(1).copied().unwrap_or(1).max(1);
        x.expect("batch_norm", |ty| match ty.rank() {
            0 | 1 => Some("takes [batch, channels, ..]".into()),
            _ if training && count < 2 => Some("one value for each channel has no variance".into()),
            _ => None,
        });
        if shape.len() < 2 {
            return x.clone();
        }
        let axes: Vec<_> = (0..shape.len() as isize).filter(|&axis| axis != 1).collect();
        let (mean, variance) = match training {
            true => (x.mean(&axes), x.var(&axes)),
            false => (self.running_mean.clone(), self.running_var.clone()),
        };
        if training {
            let unbiased = &variance * (count as f64 / (count as f64 - 1.0));
            trace.update(&self.running_mean, &self.followed(&self.running_mean, &mean));
            trace.update(&self.running_var, &self.followed(&self.running_var, &unbiased));
        }
        let scale = &self.weight * (variance + self.epsilon).sqrt().recip();
        let channels = channel_shape(shape.len());
        (x - mean.reshape(&channels)) * scale.reshape(&channels) + self.bias.reshape(&channels)
    }

    #[track_caller]
    fn followed(&self, running: &Tensor, new: &Tensor) -> Tensor {
        running * (1.0 - self.momentum) + new * self.momentum
    }
}

/// `[channels, 1, ..]`, which broadcasts against `[batch, channels, ..]`.
fn channel_shape(rank: usize) -> Vec<isize> {
    let ones = rank.saturating_sub(2);
    [&[-1], vec![1; ones].as_slice()].concat()
}
