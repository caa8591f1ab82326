//! Losses: scalars to be made small. Operands of different shapes are a mistake: nothing is broadcast.

use crate::trace::Tensor;
use kernfusion_ir::DType;

/// Records a mistake of a loss unless all its operands have the shape of the first.
#[track_caller]
fn expect_one_shape<const N: usize>(loss: &'static str, operands: [&Tensor; N]) {
    operands[0].expect_of(operands, loss, |types| {
        let differ = types.iter().any(|ty| ty.shape != types[0].shape);
        differ.then(|| "the operands must have one shape".into())
    });
}

/// The mean cross-entropy in nats of logits `[.., classes]` against target classes `[..]` of `i32`, from 0 to classes − 1. A target
/// outside of these is no error: it adds ln Σ eˣ, as if its logit were 0 ([`token_losses`]). Leave such places out with
/// [`masked_cross_entropy`].
#[track_caller]
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Tensor {
    expect_classes("cross_entropy", logits, targets);
    token_losses(logits, targets).mean_all()
}

/// Records a mistake of a loss unless there is a class for each row of logits.
#[track_caller]
fn expect_classes(loss: &'static str, logits: &Tensor, targets: &Tensor) {
    logits.expect_of([logits, targets], loss, |[logits, targets]| match logits.shape.split_last() {
        _ if targets.dtype != DType::I32 => Some(format!("target classes are i32, not {}", targets.dtype)),
        Some((_, rows)) if rows == targets.shape => None,
        _ => Some("takes logits [.., classes] and targets [..]".into()),
    });
}

/// The cross-entropy in nats of each row of logits `[.., classes]` against its target class, as `[..]`: the negative
/// log-probability `−(x[target] − ln Σ eˣ)`. A target that is no class picks nothing and leaves ln Σ eˣ.
#[track_caller]
pub fn token_losses(logits: &Tensor, targets: &Tensor) -> Tensor {
    expect_classes("token_losses", logits, targets);
    // A sum over one chosen place instead of a gather: its gradient is a select as well, and fuses with softmax.
    let chosen = targets.class_mask(logits.dim(-1)).select(logits, 0.0).sum(&[-1]);
    logits.logsumexp(-1) - chosen
}

/// The mean of losses `[..]` over the places where `mask`, of the same shape, is not zero: Σ mask·loss / Σ mask. A mask of
/// numbers weighs the places. There must be one that counts.
#[track_caller]
pub fn masked_mean(losses: &Tensor, mask: &Tensor) -> Tensor {
    expect_one_shape("masked_mean", [losses, mask]);
    let mask = if mask.dtype() == losses.dtype() { mask.clone() } else { mask.cast(losses.dtype()) };
    (losses * &mask).sum_all() / mask.sum_all()
}

/// As [`masked_mean`], where the caller knows the sum of the mask and gives it as the scalar `count`: then the loss is a
/// plain sum over the batch, which can be computed in slices.
#[track_caller]
pub fn counted_mean(losses: &Tensor, mask: &Tensor, count: &Tensor) -> Tensor {
    expect_one_shape("counted_mean", [losses, mask]);
    (losses * mask.cast(losses.dtype())).sum_all() / count
}

/// The mean cross-entropy in nats of logits `[.., classes]` against target classes `[..]`, over the places where `mask`
/// `[..]` is not zero.
#[track_caller]
pub fn masked_cross_entropy(logits: &Tensor, targets: &Tensor, mask: &Tensor) -> Tensor {
    masked_mean(&token_losses(logits, targets), mask)
}

/// As [`token_losses`], with targets of which a share is spread evenly over all classes (Szegedy et al., 2016, section 7):
/// (1 − s) · −ln p(target) + s/classes · Σ −ln p.
#[track_caller]
pub fn smoothed_token_losses(logits: &Tensor, targets: &Tensor, smoothing: f64) -> Tensor {
    let even = logits.logsumexp(-1) - logits.mean(&[-1]);
    token_losses(logits, targets) * (1.0 - smoothing) + even * smoothing
}

/// Activation regularisation α · mean a² of the dropped-out output of a recurrent layer (Merity, McCann, Socher, 2017,
/// section 3; the mean over all elements).
#[track_caller]
pub fn activation_regularization(output: &Tensor, alpha: f64) -> Tensor {
    output.square().mean_all() * alpha
}

/// Temporal activation regularisation β · mean (h_{t+1} − h_t)² of the raw output `[batch, length, width]` of a recurrent
/// layer, whose length is at least 2 (same paper).
#[track_caller]
pub fn temporal_activation_regularization(output: &Tensor, beta: f64) -> Tensor {
    let length = output.dim(1);
    let change = output.slice(1, 1..length) - output.slice(1, 0..length.saturating_sub(1));
    change.square().mean_all() * beta
}

/// The mean of −ln σ(chosen − rejected) in nats, of the rewards of the better and the worse one of each pair, in two tensors of one shape
/// (Ouyang et al., 2022, equation 1).
#[track_caller]
pub fn pairwise_loss(chosen: &Tensor, rejected: &Tensor) -> Tensor {
    expect_one_shape("pairwise_loss", [chosen, rejected]);
    (rejected - chosen).softplus().mean_all()
}

/// The loss of a policy (Schulman et al., "Proximal policy optimization algorithms", 2017, equation 7):
/// −min(ρA, clip(ρ, 1−ε, 1+ε)·A), the mean over the places where `mask` is not zero. `new` and `old` are log-probabilities of
/// what was done, ρ = e^(new − old), A the advantages, all of one shape.
#[track_caller]
pub fn ppo_loss(new: &Tensor, old: &Tensor, advantages: &Tensor, mask: &Tensor, clip: f64) -> Tensor {
    expect_one_shape("ppo_loss", [new, old, advantages, mask]);
    // Beyond the mask anything may stand, and its ratio could be infinite.
    let real = mask.ne(0.0);
    let ratio = real.select(&(new - old), 0.0).exp();
    let clipped = ratio.clamp(1.0 - clip, 1.0 + clip);
    -masked_mean(&(ratio * advantages).minimum(&(clipped * advantages)), mask)
}

/// Half the mean squared error of values against returns, over the places where `mask` is not zero; all of one shape.
#[track_caller]
pub fn value_loss(values: &Tensor, returns: &Tensor, mask: &Tensor) -> Tensor {
    expect_one_shape("value_loss", [values, returns, mask]);
    masked_mean(&(values - returns).square(), mask) * 0.5
}

/// The mean squared error of a prediction, of any shape, against a target of the same.
#[track_caller]
pub fn mse(prediction: &Tensor, target: &Tensor) -> Tensor {
    expect_one_shape("mse", [prediction, target]);
    (prediction - target).square().mean_all()
}

/// The mean binary cross-entropy in nats of logits, of any shape, against targets between 0 and 1, of the same:
/// max(x, 0) − x·t + ln(1 + e^−|x|).
#[track_caller]
pub fn bce_with_logits(logits: &Tensor, targets: &Tensor) -> Tensor {
    expect_one_shape("bce_with_logits", [logits, targets]);
    (logits.softplus() - logits * targets).mean_all()
}

/// The mean binary cross-entropy in nats of probabilities, of any shape, against targets between 0 and 1, of the same. Logarithms are
/// bounded below by that of the smallest normal `f32`, −87.3, so that certainty in error has a finite loss.
#[track_caller]
pub fn bce(probabilities: &Tensor, targets: &Tensor) -> Tensor {
    expect_one_shape("bce", [probabilities, targets]);
    let smallest = f64::from(f32::MIN_POSITIVE);
    let log = probabilities.maximum(smallest).log();
    let log_other = (1.0 - probabilities).maximum(smallest).log();
    -(targets * log + (1.0 - targets) * log_other).mean_all()
}
