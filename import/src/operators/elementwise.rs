//! Operators that compute each element by itself.

use super::{Operator, one, row};
use crate::call::{Built, Call, Fault, as_dtype};
use kernfusion::trace::{Operand, Tensor};
use kernfusion_ir::DType;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.abs.default",             "the absolute value",                      |call| unary(call, Tensor::abs)),
    row("aten.neg.default",             "−self",                                   |call| unary(call, |x| -x)),
    row("aten.sign.default",            "−1, 0 or 1",                              |call| unary(call, Tensor::sign)),
    row("aten.exp.default",             "e to the power of self",                  |call| unary(call, Tensor::exp)),
    row("aten.log.default",             "the natural logarithm",                   |call| unary(call, Tensor::log)),
    row("aten.sqrt.default",            "√self",                                   |call| unary(call, Tensor::sqrt)),
    row("aten.rsqrt.default",           "1/√self",                                 |call| unary(call, |x| x.sqrt().recip())),
    row("aten.reciprocal.default",      "1/self",                                  |call| unary(call, Tensor::recip)),
    row("aten.sin.default",             "the sine",                                |call| unary(call, Tensor::sin)),
    row("aten.cos.default",             "the cosine",                              |call| unary(call, Tensor::cos)),
    row("aten.erf.default",             "the error function",                      |call| unary(call, Tensor::erf)),
    row("aten.floor.default",           "⌊self⌋",                                  |call| unary(call, Tensor::floor)),
    row("aten.ceil.default",            "⌈self⌉",                                  |call| unary(call, |x| -(-x).floor())),
    row("aten.tanh.default",            "the hyperbolic tangent",                  |call| unary(call, Tensor::tanh)),
    row("aten.sigmoid.default",         "1/(1 + e to the power of −self)",         |call| unary(call, Tensor::sigmoid)),
    row("aten.relu.default",            "max(self, 0)",                            |call| unary(call, Tensor::relu)),
    row("aten.silu.default",            "self · sigmoid(self)",                    |call| unary(call, Tensor::swish)),
    row("aten.gelu.default",            "self · Φ(self), or its approximation by tanh", gelu),
    row("aten.softplus.default",        "ln(1 + e to the power of beta·self)/beta", softplus),
    row("aten.leaky_relu.default",      "self, or negative_slope · self below 0",  leaky_relu),
    row("aten.elu.default",             "self, or alpha · (eˢᵉˡᶠ − 1) below 0",    elu),
    row("aten.hardtanh.default",        "self between min_val and max_val",        |call| clamped(call, "min_val", "max_val", Some(-1.0), Some(1.0))),
    row("aten.clamp.default",           "self between min and max",                |call| clamped(call, "min", "max", None, None)),
    row("aten.clamp_min.default",       "max(self, min)",                          |call| clamped(call, "min", "max", None, None)),
    row("aten.clamp_max.default",       "min(self, max)",                          |call| clamped(call, "min", "max", None, None)),
    row("aten.add.Tensor",              "self + alpha · other",                    add),
    row("aten.add.Scalar",              "self + alpha · other",                    add),
    row("aten.sub.Tensor",              "self − alpha · other",                    subtract),
    row("aten.sub.Scalar",              "self − alpha · other",                    subtract),
    row("aten.rsub.Scalar",             "other − alpha · self",                    subtract_reversed),
    row("aten.mul.Tensor",              "self · other",                            multiply),
    row("aten.mul.Scalar",              "self · other",                            multiply),
    row("aten.div.Tensor",              "self / other",                            |call| arithmetic(call, |x, y| x / y)),
    row("aten.div.Scalar",              "self / other",                            |call| arithmetic(call, |x, y| x / y)),
    row("aten.pow.Tensor_Scalar",       "self to the power of exponent",           |call| one(call.as_result("self")?.powf(call.number("exponent")?))),
    row("aten.pow.Tensor_Tensor",       "self to the power of exponent",           power),
    row("aten.pow.Scalar",              "self to the power of exponent",           power),
    row("aten.maximum.default",         "the larger of both",                      |call| arithmetic(call, |x, y| x.maximum(y))),
    row("aten.minimum.default",         "the smaller of both",                     |call| arithmetic(call, |x, y| x.minimum(y))),
    row("aten.eq.Tensor",               "whether self = other",                    |call| compare(call, |x, y| x.eq(y))),
    row("aten.eq.Scalar",               "whether self = other",                    |call| compare(call, |x, y| x.eq(y))),
    row("aten.ne.Tensor",               "whether self ≠ other",                    |call| compare(call, |x, y| x.ne(y))),
    row("aten.ne.Scalar",               "whether self ≠ other",                    |call| compare(call, |x, y| x.ne(y))),
    row("aten.lt.Tensor",               "whether self < other",                    |call| compare(call, |x, y| x.lt(y))),
    row("aten.lt.Scalar",               "whether self < other",                    |call| compare(call, |x, y| x.lt(y))),
    row("aten.le.Tensor",               "whether self ≤ other",                    |call| compare(call, |x, y| x.le(y))),
    row("aten.le.Scalar",               "whether self ≤ other",                    |call| compare(call, |x, y| x.le(y))),
    row("aten.gt.Tensor",               "whether self > other",                    |call| compare(call, |x, y| x.gt(y))),
    row("aten.gt.Scalar",               "whether self > other",                    |call| compare(call, |x, y| x.gt(y))),
    row("aten.ge.Tensor",               "whether self ≥ other",                    |call| compare(call, |x, y| x.ge(y))),
    row("aten.ge.Scalar",               "whether self ≥ other",                    |call| compare(call, |x, y| x.ge(y))),
    row("aten.isinf.default",           "whether self is infinite",                |call| one(call.tensor("self")?.abs().eq(f64::INFINITY))),
    row("aten.isnan.default",           "whether self is NaN",                     |call| { let x = call.tensor("self")?; one(x.ne(&x)) }),
    row("aten.logical_not.default",     "not self",                                |call| one(truth(&call.tensor("self")?).not())),
    row("aten.logical_and.default",     "self and other",                          |call| logical(call, |x, y| x.and(y))),
    row("aten.logical_or.default",      "self or other",                           |call| logical(call, |x, y| x.or(y))),
    row("aten.logical_xor.default",     "self or other, but not both",             |call| logical(call, |x, y| x.xor(y))),
    row("aten.bitwise_not.default",     "the bits of self inverted",               |call| unary(call, Tensor::not)),
    row("aten.bitwise_and.Tensor",      "the bits that both have",                 |call| arithmetic(call, |x, y| x.and(y))),
    row("aten.__and__.Tensor",          "the bits that both have",                 |call| arithmetic(call, |x, y| x.and(y))),
    row("aten.bitwise_or.Tensor",       "the bits that either has",                |call| arithmetic(call, |x, y| x.or(y))),
    row("aten.bitwise_xor.Tensor",      "the bits that one of both has",           |call| arithmetic(call, |x, y| x.xor(y))),
    row("aten.where.self",              "self where condition holds, else other",  choose),
    row("aten.where.ScalarOther",       "self where condition holds, else other",  choose),
    row("aten.masked_fill.Scalar",      "value where mask holds, else self",       masked_fill),
    row("aten.masked_fill.Tensor",      "value where mask holds, else self",       masked_fill),
    row("aten._to_copy.default",        "self as dtype",                           |call| one(call.as_result("self")?)),
    row("aten.to.dtype",                "self as dtype",                           |call| one(call.as_result("self")?)),
    row("aten.to.dtype_layout",         "self as dtype",                           |call| one(call.as_result("self")?)),
    row("aten.to.device",               "self as dtype",                           |call| one(call.as_result("self")?)),
    row("aten.clone.default",           "self",                                    |call| one(call.tensor("self")?)),
    row("aten.alias.default",           "self",                                    |call| one(call.tensor("self")?)),
    row("aten.contiguous.default",      "self",                                    |call| one(call.tensor("self")?)),
    row("aten.lift_fresh_copy.default", "self",                                    |call| one(call.tensor("self")?)),
    row("aten.detach.default",          "self, through which no gradient flows",   |call| one(call.tensor("self")?.stop_gradient())),
    row("aten.dropout.default",         "input, in training with elements that are 0 with probability p and the others divided by 1 − p", dropout),
];

fn unary(call: &Call<'_>, f: fn(&Tensor) -> Tensor) -> Built {
    one(f(&call.as_result("self")?))
}

/// Both operands as the dtype of the result.
fn arithmetic(call: &Call<'_>, f: fn(&Tensor, &Tensor) -> Tensor) -> Built {
    let dtype = call.result()?.dtype;
    one(f(&call.operand("self", dtype)?, &call.operand("other", dtype)?))
}

/// `name` times alpha.
fn scaled(call: &Call<'_>, name: &str) -> Result<Tensor, Fault> {
    let x = call.operand(name, call.result()?.dtype)?;
    let alpha = call.number_or("alpha", 1.0)?;
    Ok(if alpha == 1.0 { x } else { x * alpha })
}

fn add(call: &Call<'_>) -> Built {
    let (x, y) = (call.as_result("self")?, scaled(call, "other")?);
    // The sum of truth values is their disjunction.
    one(if x.dtype() == DType::Bool { x.or(y) } else { x + y })
}

fn subtract(call: &Call<'_>) -> Built {
    one(call.as_result("self")? - scaled(call, "other")?)
}

fn subtract_reversed(call: &Call<'_>) -> Built {
    one(call.operand("other", call.result()?.dtype)? - scaled(call, "self")?)
}

fn multiply(call: &Call<'_>) -> Built {
    arithmetic(call, |x, y| if x.dtype() == DType::Bool { x.and(y) } else { x * y })
}

fn power(call: &Call<'_>) -> Built {
    let dtype = call.result()?.dtype;
    one(call.operand("self", dtype)?.pow(call.operand("exponent", dtype)?))
}

/// Both operands as the dtype in which PyTorch compares them.
fn compare(call: &Call<'_>, f: fn(&Tensor, &Tensor) -> Tensor) -> Built {
    let x = call.tensor("self")?;
    let dtype = match call.is_tensor("other") {
        true => common(&x, &call.tensor("other")?),
        false if call.number("other")?.fract() != 0.0 && !x.dtype().is_float() => DType::F32,
        false => common(&x, &x),
    };
    one(f(&as_dtype(&x, dtype), &call.operand("other", dtype)?))
}

/// The dtype of both: the wider one of the higher kind; a scalar counts only where its kind is higher. Truth values are compared as numbers.
fn common(x: &Tensor, y: &Tensor) -> DType {
    let order = |dtype: DType| match dtype {
        DType::Bool => (0, 0),
        DType::I8 => (1, 0),
        DType::I32 => (1, 1),
        DType::U32 => (1, 2),
        DType::F16 => (2, 0),
        DType::BF16 => (2, 1),
        DType::F32 => (2, 2),
        DType::F64 => (2, 3),
    };
    let (left, right) = (order(x.dtype()), order(y.dtype()));
    let dtype = match (x.rank() == 0, y.rank() == 0) {
        (true, false) if left.0 <= right.0 => y.dtype(),
        (false, true) if right.0 <= left.0 => x.dtype(),
        _ if left >= right => x.dtype(),
        _ => y.dtype(),
    };
    if matches!(dtype, DType::Bool | DType::I8) { DType::I32 } else { dtype }
}

/// Whether elements are not 0.
fn truth(x: &Tensor) -> Tensor {
    as_dtype(x, DType::Bool)
}

fn logical(call: &Call<'_>, f: fn(&Tensor, &Tensor) -> Tensor) -> Built {
    one(f(&truth(&call.tensor("self")?), &truth(&call.tensor("other")?)))
}

fn choose(call: &Call<'_>) -> Built {
    let dtype = call.result()?.dtype;
    one(truth(&call.tensor("condition")?).select(call.operand("self", dtype)?, call.operand("other", dtype)?))
}

fn masked_fill(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let value = call.operand("value", x.dtype())?;
    one(truth(&call.tensor("mask")?).select(value, x))
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
    // Above the threshold PyTorch gives x itself, which differs by less than the rounding.
    one(if beta == 1.0 { x.softplus() } else { (x * beta).softplus() / beta })
}

fn leaky_relu(call: &Call<'_>) -> Built {
    one(call.as_result("self")?.leaky_relu(call.number_or("negative_slope", 0.01)?))
}

fn elu(call: &Call<'_>) -> Built {
    let x = call.as_result("self")?;
    if call.number_or("scale", 1.0)? != 1.0 || call.number_or("input_scale", 1.0)? != 1.0 {
        return Err("only the scales 1 are known".into());
    }
    let below = (x.minimum(0.0).exp() - 1.0) * call.number_or("alpha", 1.0)?;
    one(x.gt(0.0).select(&x, below))
}

/// Between two bounds, each of which may be left out.
fn clamped(call: &Call<'_>, low: &str, high: &str, lowest: Option<f64>, highest: Option<f64>) -> Built {
    let mut x = call.as_result("self")?;
    if let Some(low) = call.optional_number(low)?.or(lowest) {
        x = x.maximum(Operand::Number(low));
    }
    if let Some(high) = call.optional_number(high)?.or(highest) {
        x = x.minimum(Operand::Number(high));
    }
    one(x)
}

fn dropout(call: &Call<'_>) -> Built {
    let (x, p) = (call.tensor("input")?, call.number("p")?);
    if !call.flag_or("train", false)? || p == 0.0 {
        return one(x);
    }
    if !(0.0..1.0).contains(&p) {
        return Err(format!("{p} is no probability below 1"));
    }
    let kept = call.trace.random_bernoulli(1.0 - p, x.shape());
    one(kept.select(x * (1.0 / (1.0 - p)), 0.0))
}
