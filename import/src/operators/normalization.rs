//! Normalisations and softmax. Numbers of 16 bits are computed with as `f32`. Mean and deviation that layer norm gives beside its
//! values have no gradients, as in PyTorch, which keeps them for backward alone.

use super::{Operator, one, row};
use crate::call::{Built, Call, Fault, as_dtype};
use kernfusion::trace::Tensor;
use kernfusion_ir::DType;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten._softmax.default",          "eˢᵉˡᶠ / Σ eˢᵉˡᶠ along dim",               |call| softmax(call, Tensor::softmax)),
    row("aten.softmax.int",               "eˢᵉˡᶠ / Σ eˢᵉˡᶠ along dim",               |call| softmax(call, Tensor::softmax)),
    row("aten._safe_softmax.default",     "softmax, but 0 where all of a row is −∞", |call| softmax(call, safe_softmax)),
    row("aten._log_softmax.default",      "ln softmax along dim",                    |call| softmax(call, Tensor::log_softmax)),
    row("aten.log_softmax.int",           "ln softmax along dim",                    |call| softmax(call, Tensor::log_softmax)),
    row("aten.native_layer_norm.default", "(input − mean) / √(var + eps) · weight + bias over normalized_shape; the mean and 1/√(var + eps)", layer_norm),
    row("aten.layer_norm.default",        "(input − mean) / √(var + eps) · weight + bias over normalized_shape", layer_norm),
    row("aten.rms_norm.default",          "input / √(mean of squares + eps) · weight over normalized_shape", rms_norm),
    row("aten._fused_rms_norm.default",   "rms_norm, and 1/√(mean of squares + eps)", rms_norm),
    row("aten.native_group_norm.default", "layer_norm over each of group parts of the channels, and positions", group_norm),
    row("aten.group_norm.default",        "layer_norm over each of num_groups parts of the channels, and positions", group_norm),
    row("aten._native_batch_norm_legit_no_training.default", "(input − running_mean) / √(running_var + eps) · weight + bias", batch_norm),
    row("aten.batch_norm.default",        "(input − running_mean) / √(running_var + eps) · weight + bias; not in training", batch_norm),
];

/// A float that is computed with.
fn working(x: &Tensor) -> Tensor {
    if matches!(x.dtype(), DType::F16 | DType::BF16) { x.cast(DType::F32) } else { x.clone() }
}

fn softmax(call: &Call<'_>, f: fn(&Tensor, isize) -> Tensor) -> Built {
    let (x, dtype) = (call.tensor("self")?, call.result()?.dtype);
    let x = if dtype == DType::F64 { as_dtype(&x, dtype) } else { working(&x) };
    let axis = call.axis("dim", -1, x.rank())?;
    one(as_dtype(&f(&x, axis), dtype))
}

fn safe_softmax(x: &Tensor, axis: isize) -> Tensor {
    // Before softmax, too: its gradient of NaN would not vanish.
    let nothing = x.max_keep(&[axis]).eq(f64::NEG_INFINITY);
    nothing.select(0.0, nothing.select(0.0, x).softmax(axis))
}

/// `x` times the weight plus the bias, where there are such; they broadcast.
fn affine(call: &Call<'_>, x: Tensor, shape: &[usize]) -> Result<Tensor, Fault> {
    let mut y = x;
    if let Some(weight) = call.optional_tensor("weight")? {
        y = &y * working(&weight).reshape(shape);
    }
    if let Some(bias) = call.optional_tensor("bias")? {
        y = &y + working(&bias).reshape(shape);
    }
    Ok(as_dtype(&y, call.result()?.dtype))
}

/// The last axes, as many as `normalized_shape` has, and that shape.
fn normalized(call: &Call<'_>) -> Result<(Vec<isize>, Vec<usize>), Fault> {
    let shape: Result<Vec<_>, _> = call.ints("normalized_shape")?.into_iter().map(usize::try_from).collect();
    let shape = shape.map_err(|_| "normalized_shape has a negative extent")?;
    Ok(((1..=shape.len() as isize).map(|from_end| -from_end).collect(), shape))
}

fn layer_norm(call: &Call<'_>) -> Built {
    let (axes, shape) = normalized(call)?;
    let (x, epsilon) = (working(&call.tensor("input")?), call.number_or("eps", 1e-5)?);
    let y = affine(call, x.normalize(&axes, epsilon), &shape)?;
    if call.results.len() == 1 {
        return one(y);
    }
    let deviation = (x.var_keep(&axes) + epsilon).sqrt().recip();
    Ok(vec![y, x.mean_keep(&axes).stop_gradient(), deviation.stop_gradient()])
}

fn rms_norm(call: &Call<'_>) -> Built {
    let (axes, shape) = normalized(call)?;
    let x = working(&call.tensor("input")?);
    // Without a number PyTorch takes the distance from 1 to the next number.
    let smallest = if x.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let scale = (x.square().mean_keep(&axes) + call.number_or("eps", smallest)?).sqrt().recip();
    let y = affine(call, &x * &scale, &shape)?;
    Ok(if call.results.len() == 1 { vec![y] } else { vec![y, scale] })
}

fn group_norm(call: &Call<'_>) -> Built {
    let x = working(&call.tensor("input")?);
    let groups = call.optional_int("group")?.map_or_else(|| call.int("num_groups"), Ok)?;
    let (shape, groups) = (x.shape(), usize::try_from(groups).unwrap_or(0));
    let [batch, channels, ..] = shape[..] else { return Err("it takes [batch, channels, ..]".into()) };
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(format!("{channels} channels are not divided into {groups} groups"));
    }
    let (rows, epsilon) = (
        x.reshape([batch, groups, shape[1..].iter().product::<usize>() / groups]),
        call.number_or("eps", 1e-5)?,
    );
    let y = affine(call, rows.normalize(&[-1], epsilon).reshape(&shape), &channel_shape(&shape))?;
    if call.results.len() == 1 {
        return one(y);
    }
    let deviation = (rows.var(&[-1]) + epsilon).sqrt().recip();
    Ok(vec![y, rows.mean(&[-1]), deviation])
}

/// `[channels, 1, ..]`, which broadcasts against `[batch, channels, ..]`.
fn channel_shape(shape: &[usize]) -> Vec<usize> {
    [&shape[1..2], &vec![1; shape.len() - 2]].concat()
}

fn batch_norm(call: &Call<'_>) -> Built {
    if call.flag_or("training", false)? {
        return Err(
            "statistics of a batch that training keeps are not known: export the model after `.eval()`"
                .into(),
        );
    }
    let x = working(&call.tensor("input")?);
    if x.rank() < 2 {
        return Err("it takes [batch, channels, ..]".into());
    }
    let channels = channel_shape(&x.shape());
    let statistic = |name| Ok::<_, Fault>(working(&call.tensor(name)?).reshape(&channels));
    let scale = (statistic("running_var")? + call.number_or("eps", 1e-5)?).sqrt().recip();
    let y = affine(call, (&x - statistic("running_mean")?) * scale, &channels)?;
    // What follows is empty: the batch's own statistics.
    let empty = call.results.iter().skip(1).map(|ty| call.trace.full(ty.shape.clone(), 0.0, ty.dtype));
    Ok(std::iter::once(y).chain(empty).collect())
}
