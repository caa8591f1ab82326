//! Operators that reduce axes, or run along them.

use super::normalization::working;
use super::{Operator, one, row};
use crate::call::{Built, Call, Fault, as_dtype};
use kernfusion::trace::Tensor;
use kernfusion_ir::DType;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.sum.default",         "the sum of all elements",            |call| reduced(call, Tensor::sum)),
    row("aten.sum.dim_IntList",     "the sum over dim",                   |call| reduced(call, Tensor::sum)),
    row("aten.mean.default",        "the mean of all elements",           mean),
    row("aten.mean.dim",            "the mean over dim",                  mean),
    row("aten.amax.default",        "the largest over dim",               |call| reduced(call, Tensor::max)),
    row("aten.amin.default",        "the smallest over dim",              |call| reduced(call, Tensor::min)),
    row("aten.max.default",         "the largest of all",                 |call| reduced(call, Tensor::max)),
    row("aten.min.default",         "the smallest of all",                |call| reduced(call, Tensor::min)),
    row("aten.logsumexp.default",   "ln Σ eˢᵉˡᶠ over dim",                log_sum),
    row("aten.linalg_vector_norm.default", "the root of the sum of squares over dim, or of other powers", norm),
    row("aten.all.default",         "whether no element is 0",            all),
    row("aten.all.dim",             "whether no element over dim is 0",   all),
    row("aten.argmin.default",      "the first index of the smallest along dim", |call| first_extreme(call, falling)),
    row("aten.std.correction",      "√var.correction",                    |call| call.in_shape(&variance(call)?.sqrt())),
    row("aten.any.default",         "whether any element is not 0",       |call| any(call, "dim")),
    row("aten.any.dim",             "whether any element over dim is not 0", |call| any(call, "dim")),
    row("aten.any.dims",            "whether any element over dim is not 0", |call| any(call, "dim")),
    row("aten.argmax.default",      "the first index of the largest along dim", |call| first_extreme(call, Clone::clone)),
    row("aten.max.dim",             "the largest along dim, and its first index", |call| extreme(call, Tensor::max, |x| x.clone())),
    row("aten.min.dim",             "the smallest along dim, and its first index", |call| extreme(call, Tensor::min, falling)),
    row("aten.var.correction",      "Σ (self − mean)² / (n − correction) over dim", |call| call.in_shape(&variance(call)?)),
    row("aten.var.dim",             "var.correction of 1 if unbiased",    |call| call.in_shape(&variance(call)?)),
    row("aten.var.default",         "var.correction of 1 if unbiased",    |call| call.in_shape(&variance(call)?)),
    row("aten.std.dim",             "√var.dim",                           |call| call.in_shape(&variance(call)?.sqrt())),
    row("aten.std.default",         "√var.default",                       |call| call.in_shape(&variance(call)?.sqrt())),
    row("aten.var_mean.dim",        "var.dim, and the mean over dim",     variance_and_mean),
    row("aten.var_mean.default",    "var.default, and the mean",          variance_and_mean),
    row("aten.var_mean.correction", "var.correction, and the mean over dim", variance_and_mean),
    row("aten.diff.default",        "each element along dim less the one before", difference),
    row("aten.cumsum.default",      "sums up to each index of dim",       running_sum),
];

/// Over `dim`, or everything; in the recorded shape, which says whether axes stay.
fn reduced(call: &Call<'_>, f: fn(&Tensor, &[isize]) -> Tensor) -> Built {
    let x = call.as_result("self")?;
    call.in_shape(&f(&x, &call.axes("dim", x.rank())?))
}

/// Of 16 bits by way of a sum of 32, which is not too large.
fn mean(call: &Call<'_>) -> Built {
    let x = call.as_result("self")?;
    let mean = working(&x).mean(&call.axes("dim", x.rank())?);
    call.in_shape(&as_dtype(&mean, x.dtype()))
}

fn any(call: &Call<'_>, dim: &str) -> Built {
    let x = as_dtype(&call.tensor("self")?, DType::Bool);
    let any = x.cast(DType::I32).max(&call.axes(dim, x.rank())?);
    call.in_shape(&any.cast(DType::Bool))
}

fn all(call: &Call<'_>) -> Built {
    let x = as_dtype(&call.tensor("self")?, DType::Bool);
    let all = x.cast(DType::I32).min(&call.axes("dim", x.rank())?);
    call.in_shape(&all.cast(DType::Bool))
}

fn log_sum(call: &Call<'_>) -> Built {
    let x = call.as_result("self")?;
    let axes = call.axes("dim", x.rank())?;
    let largest = x.max_keep(&axes).stop_gradient();
    // Infinity less itself is no number.
    let largest = largest.abs().eq(f64::INFINITY).select(0.0, largest);
    let sum = (&x - &largest).exp().sum_keep(&axes);
    call.in_shape(&(sum.log() + largest))
}

fn norm(call: &Call<'_>) -> Built {
    let (x, order) = (working(&call.as_result("self")?), call.number_or("ord", 2.0)?);
    let axes = call.axes("dim", x.rank())?;
    let size = x.abs();
    let norm = match order {
        2.0 => x.square().sum(&axes).sqrt(),
        1.0 => size.sum(&axes),
        f64::INFINITY => size.max(&axes),
        order if order.is_finite() && order != 0.0 => size.powf(order).sum(&axes).powf(order.recip()),
        order => return Err(format!("there is no norm of order {order}")),
    };
    call.in_shape(&as_dtype(&norm, call.result()?.dtype))
}

/// What is the largest where x is the smallest. The least `i32` has no opposite.
fn falling(x: &Tensor) -> Tensor {
    if x.dtype().is_float() { -x } else { x.not() }
}

/// The first index of the largest of what a function makes of the elements.
fn first_extreme(call: &Call<'_>, rising: fn(&Tensor) -> Tensor) -> Built {
    let x = call.tensor("self")?;
    let (x, axis) = match call.optional_int("dim")? {
        Some(_) => (x.clone(), call.axis("dim", 0, x.rank())?),
        None => (x.reshape([-1]), 0),
    };
    call.in_shape(&rising(&x).argmax(axis))
}

/// The extreme element along an axis and its index, that of the largest of `rising`.
fn extreme(call: &Call<'_>, f: fn(&Tensor, &[isize]) -> Tensor, rising: fn(&Tensor) -> Tensor) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let shape = call.result()?.shape.clone();
    Ok(vec![f(&x, &[axis]).reshape(&shape), rising(&x).argmax(axis).reshape(shape)])
}

/// Without the axes.
fn variance(call: &Call<'_>) -> Result<Tensor, Fault> {
    let x = call.as_result("self")?;
    let axes = call.axes("dim", x.rank())?;
    let count: usize = axes.iter().map(|&axis| x.dim(axis)).product();
    let correction = match call.flag_or("unbiased", true)? {
        true => call.number_or("correction", 1.0)?,
        false => 0.0,
    };
    let biased = x.var(&axes);
    let left = (count as f64 - correction).max(0.0);
    Ok(if correction == 0.0 { biased } else { biased * (count as f64 / left) })
}

fn variance_and_mean(call: &Call<'_>) -> Built {
    let x = call.as_result("self")?;
    let mean = x.mean(&call.axes("dim", x.rank())?);
    Ok([call.in_shape(&variance(call)?)?, call.in_shape(&mean)?].concat())
}

fn difference(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    if call.int_or("n", 1)? != 1 {
        return Err("only first differences are known".into());
    }
    let axis = call.axis("dim", -1, x.rank())?;
    let ends = [call.optional_tensor("prepend")?, Some(x), call.optional_tensor("append")?];
    let parts: Vec<_> = ends.iter().flatten().collect();
    let whole = call.trace.concat(&parts, axis);
    let later = whole.dim(axis).saturating_sub(1);
    one(whole.narrow(axis, whole.dim(axis) - later, later) - whole.narrow(axis, 0, later))
}

fn running_sum(call: &Call<'_>) -> Built {
    let (x, dtype) = (call.tensor("self")?, call.result()?.dtype);
    let axis = call.axis("dim", 0, x.rank())?;
    // Whole numbers by products of floats, which are exact: bytes and truth values have small sums.
    let is_small = matches!(x.dtype(), DType::Bool | DType::I8) && x.dim(axis) <= 1 << 17;
    let working = match dtype.is_float() {
        true => dtype,
        false if is_small => DType::F32,
        false => DType::F64,
    };
    one(as_dtype(&as_dtype(&x, working).running_sum(axis), dtype))
}
