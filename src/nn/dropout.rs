//! Dropout (Srivastava et al., 2014).

use crate::trace::Tensor;

/// Keeps each element with probability 1 − p, scaled by 1/(1 − p), and puts zero for the others. When evaluating it
/// does nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// p, the probability that an element is dropped: at least 0, below 1.
    pub probability: f64,
}

impl Dropout {
    /// The same shape. Every call draws a mask of its own, under the open module path; the mask is never stored, for
    /// the backward pass draws it again.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let trace = x.trace();
        if self.probability == 0.0 || !trace.is_training() {
            return x.clone();
        }
        let keep = trace.random_uniform(x.shape()).ge(self.probability);
        keep.select(x * (1.0 / (1.0 - self.probability)), 0.0)
    }
}
