//! Dropout (Srivastava et al., 2014), of values and of weights.

use crate::trace::Tensor;

/// Keeps each element with probability 1 − p, scaled by 1/(1 − p), and puts zero for the others. When evaluating it
/// does nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// p, the probability that an element is dropped: at least 0, below 1. Anything else is a mistake.
    pub probability: f64,
}

impl Dropout {
    /// The same shape. Every call draws a mask of its own, under the open module path; the mask is never stored, for
    /// the backward pass draws it again.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let trace = x.trace();
        x.expect("dropout", |_| {
            let p = self.probability;
            (!(0.0..1.0).contains(&p)).then(|| format!("the probability {p} is not at least 0 and below 1"))
        });
        if self.probability == 0.0 || !trace.is_training() {
            return x.clone();
        }
        let keep = trace.random_uniform(x.shape()).ge(self.probability);
        keep.select(x * (1.0 / (1.0 - self.probability)), 0.0)
    }
}

/// Dropout of a weight matrix (Wan et al., "Regularization of neural networks using DropConnect", 2013): single weights are
/// dropped, the same ones for the whole batch and for all positions. AWD-LSTM does so with its hidden-to-hidden matrices
/// (Merity, Keskar, Socher, 2017).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DropConnect {
    /// The probability that a weight is dropped: at least 0, below 1.
    pub probability: f64,
}

impl DropConnect {
    /// The matrix to be used in this step: kept weights are scaled by 1/(1 − p). Every call draws a mask of its own, so a
    /// recurrent layer asks once for all positions. When evaluating this is `weight` itself.
    #[track_caller]
    pub fn forward(&self, weight: &Tensor) -> Tensor {
        Dropout { probability: self.probability }.forward(weight)
    }
}
