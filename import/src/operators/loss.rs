//! Losses, each the mean over its elements, their sum, or all of them.

use super::normalization::working;
use super::{Operator, one, row};
use crate::call::{Built, Call, Fault};
use kernfusion::trace::Tensor;
use kernfusion_ir::DType;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.cross_entropy_loss.default", "−ln softmax(self) at the class target; no loss where that is ignore_index", cross_entropy),
    row("aten.nll_loss_nd.default",      "−self at the class target; no loss where that is ignore_index", |call| one(of_classes(call, &working(&call.tensor("self")?))?.0)),
    row("aten.nll_loss_forward.default", "nll_loss_nd, and the sum of the classes' weights", |call| { let (loss, weight) = of_classes(call, &working(&call.tensor("self")?))?; Ok(vec![loss, weight]) }),
    row("aten.mse_loss.default",         "(self − target)²",                  |call| compared(call, |x, y| (x - y).square())),
    row("aten.l1_loss.default",          "|self − target|",                   |call| compared(call, |x, y| (x - y).abs())),
    row("aten.smooth_l1_loss.default",   "½(self − target)²/beta within beta, else |self − target| − ½ beta", |call| { let beta = call.number_or("beta", 1.0)?; near(call, beta, beta.recip()) }),
    row("aten.huber_loss.default",       "½(self − target)² within delta, else delta · (|self − target| − ½ delta)", |call| near(call, call.number_or("delta", 1.0)?, 1.0)),
    row("aten.kl_div.default",           "target · (ln target − self), of e to the power of target if log_target", divergence),
    row("aten.binary_cross_entropy.default", "−target · ln self − (1 − target) · ln(1 − self), logarithms at least −100", entropy),
    row("aten.binary_cross_entropy_with_logits.default", "−target · ln sigmoid(self) − (1 − target) · ln(1 − sigmoid(self))", binary_cross_entropy),
];

/// How losses become a result, as PyTorch numbers it and ONNX says it.
#[derive(PartialEq)]
enum Reduction {
    None,
    Mean,
    Sum,
}

fn reduction(call: &Call<'_>) -> Result<Reduction, Fault> {
    if call.is_word("reduction") {
        return match call.word_or("reduction", "mean")? {
            "none" => Ok(Reduction::None),
            "mean" => Ok(Reduction::Mean),
            "sum" => Ok(Reduction::Sum),
            other => Err(format!("there is no reduction {other}")),
        };
    }
    match call.int_or("reduction", 1)? {
        0 => Ok(Reduction::None),
        1 => Ok(Reduction::Mean),
        2 => Ok(Reduction::Sum),
        other => Err(format!("there is no reduction {other}")),
    }
}

fn reduced(call: &Call<'_>, losses: Tensor) -> Built {
    one(match reduction(call)? {
        Reduction::None => losses,
        Reduction::Mean => losses.mean_all(),
        Reduction::Sum => losses.sum_all(),
    })
}

fn compared(call: &Call<'_>, f: fn(&Tensor, &Tensor) -> Tensor) -> Built {
    reduced(call, f(&call.as_result("self")?, &call.as_result("target")?))
}

/// Squares within a distance, with lines where they end, all times a scale.
fn near(call: &Call<'_>, within: f64, scale: f64) -> Built {
    let distance = (call.as_result("self")? - call.as_result("target")?).abs();
    if within == 0.0 {
        return reduced(call, distance);
    }
    let inside = distance.square() * (0.5 * scale);
    let outside = (&distance - 0.5 * within) * (within * scale);
    reduced(call, distance.lt(within).select(inside, outside))
}

fn divergence(call: &Call<'_>) -> Built {
    let (x, y) = (call.as_result("self")?, call.as_result("target")?);
    let losses = match call.flag_or("log_target", false)? {
        true => y.exp() * (&y - x),
        false => {
            let is_positive = y.gt(0.0);
            let logarithm = is_positive.select(&y, 1.0).log();
            is_positive.select(&y * logarithm, 0.0) - y * x
        }
    };
    reduced(call, losses)
}

fn entropy(call: &Call<'_>) -> Built {
    let (x, y) = (call.as_result("self")?, call.as_result("target")?);
    let logarithm = |x: &Tensor| x.log().maximum(-100.0);
    weighted(call, -(&y * logarithm(&x)) - (1.0 - &y) * logarithm(&(1.0 - &x)))
}

fn binary_cross_entropy(call: &Call<'_>) -> Built {
    let (x, y) = (call.as_result("self")?, call.as_result("target")?);
    // −ln sigmoid(x) = softplus(−x), and −ln(1 − sigmoid(x)) = x more.
    let mut positive = (-&x).softplus();
    if let Some(weight) = call.optional_tensor("pos_weight")? {
        let losses = &y * weight * &positive + (1.0 - &y) * (&x + positive);
        return weighted(call, losses);
    }
    positive = positive + (1.0 - y) * x;
    weighted(call, positive)
}

fn weighted(call: &Call<'_>, losses: Tensor) -> Built {
    let weight = call.optional_tensor("weight")?;
    reduced(call, weight.map_or_else(|| losses.clone(), |weight| &losses * weight))
}

fn cross_entropy(call: &Call<'_>) -> Built {
    let x = working(&call.tensor("self")?);
    let logarithms = x.log_softmax(if x.rank() > 1 { 1 } else { 0 });
    let smoothing = call.number_or("label_smoothing", 0.0)?;
    if smoothing == 0.0 {
        return one(of_classes(call, &logarithms)?.0);
    }
    if call.optional_tensor("weight")?.is_some() || x.rank() < 2 {
        return Err("smoothed labels with weights, or of one row alone, are not known".into());
    }
    // Every class has a share of the target.
    let (loss, count) = of_classes(call, &logarithms)?;
    let shared = -logarithms.mean(&[1]);
    let shared = is_counted(call)?.select(shared, 0.0);
    let shared = match reduction(call)? {
        Reduction::None => shared,
        Reduction::Mean => shared.sum_all() / count,
        Reduction::Sum => shared.sum_all(),
    };
    one(loss * (1.0 - smoothing) + shared * smoothing)
}

/// Which targets are not ignored.
fn is_counted(call: &Call<'_>) -> Result<Tensor, Fault> {
    Ok(call.tensor("target")?.ne(call.int_or("ignore_index", -100)? as f64))
}

/// The losses −x at the classes, times the classes' weights; and the sum of the weights of those that count. Classes are axis 1, or the
/// only one.
fn of_classes(call: &Call<'_>, x: &Tensor) -> Result<(Tensor, Tensor), Fault> {
    let (target, counted) = (call.tensor("target")?, is_counted(call)?);
    if target.dtype() != DType::I32 || target.rank() + 1 != x.rank() {
        return Err("targets are numbers of classes, one for each row".into());
    }
    let class = counted.select(&target, 0);
    let rows = if x.rank() > 1 { x.unsqueeze(-1).transpose(1, -1).squeeze(1) } else { x.clone() };
    let picked = -rows.pick_in_rows(&class.unsqueeze(-1)).squeeze(-1);
    let weight = match call.optional_tensor("weight")? {
        Some(weight) => weight.gather(0, &class),
        None => call.trace.full(class.shape(), 1.0, x.dtype()),
    };
    let weight = counted.select(weight, 0.0);
    let (losses, total) = (picked * &weight, weight.sum_all());
    let loss = match reduction(call)? {
        Reduction::None => losses,
        Reduction::Mean => losses.sum_all() / &total,
        Reduction::Sum => losses.sum_all(),
    };
    Ok((loss, total))
}
