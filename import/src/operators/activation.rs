//! Activations: functions of one element between products.

use super::{Operator, one, row};
use crate::call::{Built, Call};
use kernfusion::trace::Tensor;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.sigmoid.default",     "1/(1 + e to the power of −self)",         |call| activated(call, Tensor::sigmoid)),
    row("aten.log_sigmoid.default", "−ln(1 + e to the power of −self)",        |call| activated(call, |x| -(-x).softplus())),
    row("aten.relu.default",        "max(self, 0)",                            |call| activated(call, Tensor::relu)),
    row("aten.relu6.default",       "self between 0 and 6",                    |call| activated(call, |x| between(x, 0.0, 6.0))),
    row("aten.silu.default",        "self · sigmoid(self)",                    |call| activated(call, Tensor::swish)),
    row("aten.mish.default",        "self · tanh(ln(1 + e to the power of self))", |call| activated(call, |x| x * x.softplus().tanh())),
    row("aten.hardsigmoid.default", "(self + 3)/6 between 0 and 1",            |call| activated(call, hard_sigmoid)),
    row("aten.hardswish.default",   "self · hardsigmoid(self)",                |call| activated(call, |x| x * hard_sigmoid(x))),
    row("aten.gelu.default",        "self · Φ(self), or its approximation by tanh", gelu),
    row("aten.softplus.default",    "ln(1 + e to the power of beta·self)/beta", softplus),
    row("aten.leaky_relu.default",  "self, or negative_slope · self below 0",  |call| one(call.as_result("self")?.leaky_relu(call.number_or("negative_slope", 0.01)?))),
    row("aten.prelu.default",       "self, or weight · self below 0; a weight for each channel", parametric),
    row("aten.elu.default",         "self, or alpha · (eˢᵉˡᶠ − 1) below 0",    |call| elu(call, call.number_or("alpha", 1.0)?, call.number_or("scale", 1.0)?)),
    row("aten.celu.default",        "self, or alpha · (e to the power of self/alpha − 1) below 0", celu),
    row("aten.selu.default",        "elu of the scale 1.0507… and the alpha 1.6733… (Klambauer et al., 2017)", |call| elu(call, 1.673_263_242_354_377_2, 1.050_700_987_355_480_5)),
    row("aten.hardtanh.default",    "self between min_val and max_val",        |call| one(between(&call.as_result("self")?, call.number_or("min_val", -1.0)?, call.number_or("max_val", 1.0)?))),
    row("aten.threshold.default",   "self where it is above threshold, else value", threshold),
    row("aten.glu.default",         "the first half along dim times the sigmoid of the second", gated),
];

fn activated(call: &Call<'_>, f: fn(&Tensor) -> Tensor) -> Built {
    one(f(&call.as_result("self")?))
}

/// x between two numbers, whose derivative there is 0.
fn between(x: &Tensor, low: f64, high: f64) -> Tensor {
    x.le(low).select(low, x.ge(high).select(high, x))
}

fn hard_sigmoid(x: &Tensor) -> Tensor {
    between(&(x + 3.0), 0.0, 6.0) * (1.0 / 6.0)
}

fn gelu(call: &Call<'_>) -> Built {
    let x = call.as_result("self")?;
    match call.word_or("approximate", "none")? {
        "none" => one(x.gelu()),
        "tanh" => one(x.gelu_tanh()),
        other => Err(format!("there is no approximation {other}")),
    }
}

fn softplus(call: &Call<'_>) -> Built {
    let (x, beta) = (call.as_result("self")?, call.number_or("beta", 1.0)?);
    let y = if beta == 1.0 { x.softplus() } else { (&x * beta).softplus() / beta };
    // Above the threshold PyTorch gives x itself, which differs by less than the rounding where that is 20.
    let threshold = call.number_or("threshold", 20.0)?;
    one(if threshold < 20.0 { (&x * beta).gt(threshold).select(x, y) } else { y })
}

fn parametric(call: &Call<'_>) -> Built {
    let (x, weight) = (call.as_result("self")?, call.as_result("weight")?);
    let weight = match (weight.ty().elements(), x.rank()) {
        (1, _) => weight.reshape(Vec::<usize>::new()),
        (channels, 2..) => weight.reshape([vec![channels], vec![1; x.rank() - 2]].concat()),
        (count, rank) => return Err(format!("{count} weights for {rank} axes")),
    };
    one(x.gt(0.0).select(&x, &x * weight))
}

fn elu(call: &Call<'_>, alpha: f64, scale: f64) -> Built {
    let x = call.as_result("self")?;
    if call.number_or("input_scale", 1.0)? != 1.0 {
        return Err("only the scale 1 of the input is known".into());
    }
    let below = (x.minimum(0.0).exp() - 1.0) * alpha;
    let y = x.gt(0.0).select(&x, below);
    one(if scale == 1.0 { y } else { y * scale })
}

fn celu(call: &Call<'_>) -> Built {
    let (x, alpha) = (call.as_result("self")?, call.number_or("alpha", 1.0)?);
    let below = ((x.minimum(0.0) / alpha).exp() - 1.0) * alpha;
    one(x.gt(0.0).select(&x, below))
}

fn threshold(call: &Call<'_>) -> Built {
    let x = call.as_result("self")?;
    one(x.le(call.number("threshold")?).select(call.number("value")?, &x))
}

fn gated(call: &Call<'_>) -> Built {
    let x = call.as_result("self")?;
    let axis = call.axis("dim", -1, x.rank())?;
    let halves = x.split(2, axis);
    match halves.as_slice() {
        [x, gate] => one(x * gate.sigmoid()),
        _ => Err("it has no halves".into()),
    }
}
