//! Operators that compute each element by itself.

use super::views::View;
use super::{Operator, one, row, view};
use crate::call::{Built, Call, Fault, as_dtype};
use kernfusion::trace::Tensor;
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
    row("aten.exp2.default",            "2 to the power of self",                  |call| unary(call, |x| (x * std::f64::consts::LN_2).exp())),
    row("aten.expm1.default",           "e to the power of self, less 1",          |call| unary(call, |x| x.exp() - 1.0)),
    row("aten.log1p.default",           "the natural logarithm of 1 + self",       |call| unary(call, |x| (x + 1.0).log())),
    row("aten.log2.default",            "the logarithm to base 2",                 |call| unary(call, |x| x.log() * std::f64::consts::LOG2_E)),
    row("aten.square.default",          "self²",                                   |call| unary(call, Tensor::square)),
    row("aten.trunc.default",           "self without its fraction",               |call| unary(call, truncated)),
    row("aten.round.default",           "the nearest whole number, of two the even one", |call| unary(call, Tensor::round)),
    row("aten.log10.default",           "the logarithm to base 10",                |call| unary(call, |x| x.log() * std::f64::consts::LOG10_E)),
    row("aten.tan.default",             "the tangent",                             |call| unary(call, |x| x.sin() / x.cos())),
    row("aten.erf.default",             "the error function",                      |call| unary(call, Tensor::erf)),
    row("aten.erfc.default",            "1 − erf",                                 |call| unary(call, |x| 1.0 - x.erf())),
    row("aten.frac.default",            "the fraction of self",                    |call| unary(call, |x| x - truncated(x))),
    row("aten.sinh.default",            "the hyperbolic sine",                     |call| unary(call, |x| (x.exp() - (-x).exp()) * 0.5)),
    row("aten.cosh.default",            "the hyperbolic cosine",                   |call| unary(call, |x| (x.exp() + (-x).exp()) * 0.5)),
    row("aten.floor.default",           "⌊self⌋",                                  |call| unary(call, Tensor::floor)),
    row("aten.ceil.default",            "⌈self⌉",                                  |call| unary(call, |x| -(-x).floor())),
    row("aten.tanh.default",            "the hyperbolic tangent",                  |call| unary(call, Tensor::tanh)),
    row("aten.clamp.default",           "self between min and max",                clamped),
    row("aten.clamp.Tensor",            "self between min and max",                clamped),
    row("aten.clamp_min.default",       "max(self, min)",                          clamped),
    row("aten.clamp_max.default",       "min(self, max)",                          clamped),
    row("aten.add.Tensor",              "self + alpha · other",                    add),
    row("aten.add.Scalar",              "self + alpha · other",                    add),
    row("aten.sub.Tensor",              "self − alpha · other",                    subtract),
    row("aten.sub.Scalar",              "self − alpha · other",                    subtract),
    row("aten.rsub.Scalar",             "other − alpha · self",                    subtract_reversed),
    row("aten.rsub.Tensor",             "other − alpha · self",                    subtract_reversed),
    row("aten.mul.Tensor",              "self · other",                            multiply),
    row("aten.mul.Scalar",              "self · other",                            multiply),
    row("aten.div.Tensor",              "self / other",                            |call| arithmetic(call, |x, y| x / y)),
    row("aten.div.Scalar",              "self / other",                            |call| arithmetic(call, |x, y| x / y)),
    row("aten.div.Tensor_mode",         "self / other, rounded as rounding_mode says", |call| divided(call, call.word_or("rounding_mode", "none")?)),
    row("aten.div.Scalar_mode",         "self / other, rounded as rounding_mode says", |call| divided(call, call.word_or("rounding_mode", "none")?)),
    row("aten.floor_divide.default",    "⌊self / other⌋",                          |call| divided(call, "floor")),
    row("aten.remainder.Tensor",        "self − other · ⌊self / other⌋",           |call| rest(call, true)),
    row("aten.remainder.Scalar",        "self − other · ⌊self / other⌋",           |call| rest(call, true)),
    row("aten.fmod.Tensor",             "self − other · (self / other without its fraction)", |call| rest(call, false)),
    row("aten.fmod.Scalar",             "self − other · (self / other without its fraction)", |call| rest(call, false)),
    row("aten.addcmul.default",         "self + value · tensor1 · tensor2",        |call| three(call, |x, y| x * y)),
    row("aten.addcdiv.default",         "self + value · tensor1 / tensor2",        |call| three(call, |x, y| x / y)),
    row("aten.lerp.Scalar",             "self + weight · (end − self)",            between),
    row("aten.lerp.Tensor",             "self + weight · (end − self)",            between),
    row("aten.pow.Tensor_Scalar",       "self to the power of exponent",           |call| one(call.as_result("self")?.powf(call.number("exponent")?))),
    row("aten.pow.Tensor_Tensor",       "self to the power of exponent",           power),
    row("aten.pow.Scalar",              "self to the power of exponent",           power),
    row("aten.hypot.default",           "√(self² + other²)",                       |call| arithmetic(call, |x, y| (x.square() + y.square()).sqrt())),
    row("aten.logaddexp.default",       "ln(e to the power of self + e to the power of other)", log_of_sum),
    row("aten.maximum.default",         "the larger of both",                      |call| arithmetic(call, |x, y| x.maximum(y))),
    row("aten.max.other",               "the larger of both",                      |call| arithmetic(call, |x, y| x.maximum(y))),
    row("aten.min.other",               "the smaller of both",                     |call| arithmetic(call, |x, y| x.minimum(y))),
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
    row("aten.isfinite.default",        "whether self is neither infinite nor NaN", |call| one(call.tensor("self")?.abs().lt(f64::INFINITY))),
    row("aten.nan_to_num.default",      "self, but nan, posinf and neginf in place of what is no number", numbered),
    row("aten.logical_not.default",     "not self",                                |call| one(truth(&call.tensor("self")?).not())),
    row("aten.logical_and.default",     "self and other",                          |call| logical(call, |x, y| x.and(y))),
    row("aten.logical_or.default",      "self or other",                           |call| logical(call, |x, y| x.or(y))),
    row("aten.logical_xor.default",     "self or other, but not both",             |call| logical(call, |x, y| x.xor(y))),
    row("aten.bitwise_not.default",     "the bits of self inverted",               |call| unary(call, Tensor::not)),
    row("aten.bitwise_and.Tensor",      "the bits that both have",                 |call| arithmetic(call, |x, y| x.and(y))),
    row("aten.__and__.Tensor",          "the bits that both have",                 |call| arithmetic(call, |x, y| x.and(y))),
    row("aten.bitwise_and.Scalar",      "the bits that both have",                 |call| arithmetic(call, |x, y| x.and(y))),
    row("aten.__or__.Tensor",           "the bits that either has",                |call| arithmetic(call, |x, y| x.or(y))),
    row("aten.bitwise_or.Scalar",       "the bits that either has",                |call| arithmetic(call, |x, y| x.or(y))),
    row("aten.bitwise_xor.Scalar",      "the bits that one of both has",           |call| arithmetic(call, |x, y| x.xor(y))),
    row("aten.bitwise_or.Tensor",       "the bits that either has",                |call| arithmetic(call, |x, y| x.or(y))),
    row("aten.bitwise_xor.Tensor",      "the bits that one of both has",           |call| arithmetic(call, |x, y| x.xor(y))),
    row("aten.where.self",              "self where condition holds, else other",  choose),
    row("aten.where.ScalarOther",       "self where condition holds, else other",  choose),
    row("aten.where.ScalarSelf",        "self where condition holds, else other",  choose),
    row("aten.where.Scalar",            "self where condition holds, else other",  choose),
    row("aten.masked_fill.Scalar",      "value where mask holds, else self",       masked_fill),
    row("aten.masked_fill.Tensor",      "value where mask holds, else self",       masked_fill),
    row("aten._to_copy.default",        "self as dtype",                           converted),
    view("aten.to.dtype",                "self as dtype",                           converted, View::Whole),
    view("aten.to.dtype_layout",         "self as dtype",                           converted, View::Whole),
    view("aten.to.device",               "self as dtype",                           converted, View::Whole),
    view("aten.type_as.default",         "self in the dtype of other",              converted, View::Whole),
    row("aten.clone.default",           "self",                                    |call| one(call.tensor("self")?)),
    view("aten.alias.default",           "self",                                    |call| one(call.tensor("self")?), View::Whole),
    view("aten.contiguous.default",      "self",                                    |call| one(call.tensor("self")?), View::Whole),
    row("aten.lift_fresh_copy.default", "self",                                    |call| one(call.tensor("self")?)),
    view("aten.detach.default",          "self, through which no gradient flows",   |call| one(call.tensor("self")?.stop_gradient()), View::Whole),
    row("aten.native_dropout.default",  "dropout, and which elements it leaves",   native_dropout),
    view("aten.dropout.default",         "input, in training with elements that are 0 with probability p and the others divided by 1 − p", dropout, View::Whole),
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

/// Without the fraction.
fn truncated(x: &Tensor) -> Tensor {
    x.sign() * x.abs().floor()
}

/// The quotient of two operands of one dtype, rounded. What is rounded to whole numbers is taken in `f64`, which is on the right side of each where operands are of
/// fewer bits.
fn quotient(x: &Tensor, y: &Tensor, mode: &str) -> Result<Tensor, Fault> {
    let dtype = x.dtype();
    if mode == "none" && dtype.is_float() {
        return Ok(x / y);
    }
    let quotient = as_dtype(x, DType::F64) / as_dtype(y, DType::F64);
    let rounded = match mode {
        "none" => quotient,
        "floor" => quotient.floor(),
        "trunc" => truncated(&quotient),
        other => return Err(format!("there is no rounding by {other}")),
    };
    Ok(as_dtype(&rounded, dtype))
}

pub(super) fn divided(call: &Call<'_>, mode: &str) -> Built {
    let dtype = call.result()?.dtype;
    one(quotient(&call.operand("self", dtype)?, &call.operand("other", dtype)?, mode)?)
}

/// What division leaves, with the sign of the divisor, or of what is divided.
pub(super) fn rest(call: &Call<'_>, is_of_divisor: bool) -> Built {
    let dtype = call.result()?.dtype;
    let [x, y] =
        [call.operand("self", dtype)?, call.operand("other", dtype)?].map(|x| as_dtype(&x, DType::F64));
    let whole = truncated(&(&x / &y));
    // Of an infinite divisor nothing is taken.
    let rest = &x - whole.eq(0.0).select(0.0, &y * &whole);
    let rest = match is_of_divisor {
        true => (&rest * y.sign()).lt(0.0).select(&rest + &y, &rest),
        false => rest,
    };
    one(as_dtype(&rest, dtype))
}

/// As the dtype of the result; whole numbers beyond `i8` wrap.
fn converted(call: &Call<'_>) -> Built {
    let (x, dtype) = (call.tensor("self")?, call.result()?.dtype);
    let wraps = dtype == DType::I8 && matches!(x.dtype(), DType::I32 | DType::U32);
    one(if wraps { ((x.cast(DType::I32) + 128.0).and(255) - 128.0).cast(dtype) } else { as_dtype(&x, dtype) })
}

fn log_of_sum(call: &Call<'_>) -> Built {
    arithmetic(call, |x, y| {
        // Infinity less itself is no number.
        let apart = x.eq(y).select(0.0, x - y);
        x.maximum(y) + (1.0 + (-apart.abs()).exp()).log()
    })
}

fn three(call: &Call<'_>, f: fn(&Tensor, &Tensor) -> Tensor) -> Built {
    let term = f(&call.as_result("tensor1")?, &call.as_result("tensor2")?);
    let value = call.number_or("value", 1.0)?;
    one(call.as_result("self")? + if value == 1.0 { term } else { term * value })
}

fn between(call: &Call<'_>) -> Built {
    let (x, end) = (call.as_result("self")?, call.as_result("end")?);
    let weight = call.operand("weight", x.dtype())?;
    one(&x + weight * (end - &x))
}

fn numbered(call: &Call<'_>) -> Built {
    let x = call.as_result("self")?;
    let largest = match x.dtype() {
        DType::F16 => 65_504.0,
        // 2¹²⁸ less a step of 8 digits.
        DType::BF16 => f64::from(f32::from_bits(0x7f7f_0000)),
        DType::F64 => f64::MAX,
        _ => f64::from(f32::MAX),
    };
    let number = x.eq(&x).select(&x, call.number_or("nan", 0.0)?);
    let below = number.eq(f64::NEG_INFINITY).select(call.number_or("neginf", -largest)?, number);
    one(below.eq(f64::INFINITY).select(call.number_or("posinf", largest)?, below))
}

pub(super) fn power(call: &Call<'_>) -> Built {
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

/// Between two bounds, each of which may be left out; at a bound, the gradient is that of self.
fn clamped(call: &Call<'_>) -> Built {
    let mut x = call.as_result("self")?;
    let is_float = x.dtype().is_float();
    if call.has("min") {
        let low = call.operand("min", x.dtype())?;
        x = if is_float { x.lt(&low).select(low, x) } else { x.maximum(low) };
    }
    if call.has("max") {
        let high = call.operand("max", x.dtype())?;
        x = if is_float { x.gt(&high).select(high, x) } else { x.minimum(high) };
    }
    one(x)
}

fn dropout(call: &Call<'_>) -> Built {
    // In place its operand has another name.
    let x = call.tensor(if call.has("self") { "self" } else { "input" })?;
    one(match call.flag_or("train", false)? {
        true => dropped(call, &x, call.number("p")?)?,
        false => x,
    })
}

/// Elements that are 0 with a probability and else divided by that of being kept.
pub(super) fn dropped(call: &Call<'_>, x: &Tensor, p: f64) -> Result<Tensor, Fault> {
    if p == 0.0 {
        return Ok(x.clone());
    }
    let kept = kept(call, x, p)?;
    Ok(kept.select(x * (1.0 / (1.0 - p)), 0.0))
}

/// Which elements dropout leaves.
fn kept(call: &Call<'_>, x: &Tensor, p: f64) -> Result<Tensor, Fault> {
    if !(0.0..1.0).contains(&p) {
        return Err(format!("{p} is no probability below 1"));
    }
    Ok(call.trace.random_bernoulli(1.0 - p, x.shape()))
}

/// Dropout, and which elements it leaves.
fn native_dropout(call: &Call<'_>) -> Built {
    let (x, p) = (call.tensor("input")?, call.number("p")?);
    if !call.flag_or("train", true)? || p == 0.0 {
        return Ok(vec![x.clone(), call.trace.full(x.shape(), 1.0, DType::Bool)]);
    }
    let kept = kept(call, &x, p)?;
    Ok(vec![kept.select(x * (1.0 / (1.0 - p)), 0.0), kept])
}
