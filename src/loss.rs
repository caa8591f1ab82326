//! Losses: scalars to be made small.

use crate::trace::Tensor;

/// The mean cross-entropy in nats of logits `[.., classes]` against target classes `[..]` of `i32`.
#[track_caller]
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Tensor {
    token_losses(logits, targets).mean_all()
}

/// The cross-entropy in nats of each row of logits `[.., classes]` against its target class, as `[..]`: the negative
/// log-probability `−(x[target] − ln Σ eˣ)`. A target that is no class picks nothing and leaves ln Σ eˣ.
#[track_caller]
pub fn token_losses(logits: &Tensor, targets: &Tensor) -> Tensor {
    // A sum over one chosen place instead of a gather: its gradient is a select as well, and fuses with softmax.
    let chosen = targets.class_mask(logits.dim(-1)).select(logits, 0.0).sum(&[-1]);
    logits.logsumexp(-1) - chosen
}

/// The mean squared error.
#[track_caller]
pub fn mse(prediction: &Tensor, target: &Tensor) -> Tensor {
    (prediction - target).square().mean_all()
}

/// The mean binary cross-entropy in nats of logits against targets between 0 and 1: max(x, 0) − x·t + ln(1 + e^−|x|).
#[track_caller]
pub fn bce_with_logits(logits: &Tensor, targets: &Tensor) -> Tensor {
    (logits.softplus() - logits * targets).mean_all()
}

/// The mean binary cross-entropy in nats of probabilities against targets between 0 and 1. Logarithms are bounded below
/// by that of the smallest normal `f32`, −87.3, so that certainty in error has a finite loss.
#[track_caller]
pub fn bce(probabilities: &Tensor, targets: &Tensor) -> Tensor {
    let smallest = f64::from(f32::MIN_POSITIVE);
    let log = probabilities.maximum(smallest).log();
    let log_other = (1.0 - probabilities).maximum(smallest).log();
    -(targets * log + (1.0 - targets) * log_other).mean_all()
}
