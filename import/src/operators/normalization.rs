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
    row("aten.batch_norm.default",        "(input − running_mean) / √(running_var + eps) · weight + bias; in training by the batch's own", batch_norm),
    row("aten._native_batch_norm_legit_functional.default", "batch_norm by the batch's own mean and variance, these, and the running ones with momentum of them", batch_norm_in_training),
    row("aten._native_batch_norm_legit.no_stats", "batch_norm by the batch's own mean and variance, the mean and 1/√(variance + eps)", |call| { let OfBatch { y, mean, scale, .. } = of_batch(call)?; Ok(vec![y, mean, scale]) }),
    row("aten._weight_norm.default",      "g · v/‖v‖, the length of each part along dim", weight_norm),
    row("aten.instance_norm.default",     "layer_norm over the positions of each channel", instance_norm),
];

/// A float that is computed with.
pub(super) fn working(x: &Tensor) -> Tensor {
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
pub(super) fn affine(call: &Call<'_>, x: Tensor, shape: &[usize]) -> Result<Tensor, Fault> {
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
    layer_norm_over(call, &axes, &shape)
}

/// Over these axes, with a weight and a bias of this shape.
pub(super) fn layer_norm_over(call: &Call<'_>, axes: &[isize], shape: &[usize]) -> Built {
    let (x, epsilon) = (working(&call.tensor("input")?), call.number_or("eps", 1e-5)?);
    let y = affine(call, x.normalize(axes, epsilon), shape)?;
    if call.results.len() == 1 {
        return one(y);
    }
    let deviation = (x.var_keep(axes) + epsilon).sqrt().recip();
    Ok(vec![y, x.mean_keep(axes).stop_gradient(), deviation.stop_gradient()])
}

fn rms_norm(call: &Call<'_>) -> Built {
    let (axes, shape) = normalized(call)?;
    rms_norm_over(call, &axes, &shape)
}

/// Over these axes, with a weight of this shape.
pub(super) fn rms_norm_over(call: &Call<'_>, axes: &[isize], shape: &[usize]) -> Built {
    let x = working(&call.tensor("input")?);
    // Without a number PyTorch takes the distance from 1 to the next number.
    let smallest = if x.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let scale = (x.square().mean_keep(axes) + call.number_or("eps", smallest)?).sqrt().recip();
    let y = affine(call, &x * &scale, shape)?;
    Ok(if call.results.len() == 1 { vec![y] } else { vec![y, scale] })
}

fn group_norm(call: &Call<'_>) -> Built {
    let groups = call.optional_int("group")?.map_or_else(|| call.int("num_groups"), Ok)?;
    normalized_groups(call, usize::try_from(groups).unwrap_or(0))
}

fn weight_norm(call: &Call<'_>) -> Built {
    let (v, g) = (call.tensor("v")?, call.tensor("g")?);
    let others = match call.int_or("dim", 0)? {
        // All of it is one part.
        -1 => (0..v.rank() as isize).collect(),
        _ => {
            let own = call.axis("dim", 0, v.rank())?;
            (0..v.rank() as isize).filter(|&axis| axis != own).collect::<Vec<_>>()
        }
    };
    one(&v * (g / v.square().sum_keep(&others).sqrt()))
}

fn instance_norm(call: &Call<'_>) -> Built {
    if !call.flag_or("use_input_stats", true)? {
        return Err("running statistics of instances are not known".into());
    }
    let channels = call.tensor("input")?.shape().get(1).copied().unwrap_or(0);
    normalized_groups(call, channels)
}

fn normalized_groups(call: &Call<'_>, groups: usize) -> Built {
    let x = working(&call.tensor("input")?);
    let shape = x.shape();
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

pub(super) fn batch_norm(call: &Call<'_>) -> Built {
    // Where running statistics follow the batch's, the node has become another one when the archive was read.
    if call.flag_or("training", false)? {
        return one(of_batch(call)?.y);
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

/// What batch norm makes of a batch.
pub(super) struct OfBatch {
    pub(super) y: Tensor,
    pub(super) mean: Tensor,
    /// 1/√(var + eps).
    scale: Tensor,
    /// Of n − 1.
    variance: Tensor,
    /// Of n.
    pub(super) population_variance: Tensor,
}

pub(super) fn of_batch(call: &Call<'_>) -> Result<OfBatch, Fault> {
    let x = working(&call.tensor("input")?);
    let shape = x.shape();
    let count = match shape.as_slice() {
        &[_, channels, ..] if channels > 0 => x.ty().elements() / channels,
        _ => return Err("it takes [batch, channels, ..]".into()),
    };
    if count < 2 {
        return Err("one value for each channel has no variance".into());
    }
    let axes: Vec<_> = (0..shape.len() as isize).filter(|&axis| axis != 1).collect();
    let (mean, variance, channels) = (x.mean(&axes), x.var(&axes), channel_shape(&shape));
    let scale = (&variance + call.number_or("eps", 1e-5)?).sqrt().recip();
    let y = affine(call, (&x - mean.reshape(&channels)) * scale.reshape(&channels), &channels)?;
    let unbiased = &variance * (count as f64 / (count as f64 - 1.0));
    Ok(OfBatch {
        y,
        mean: mean.stop_gradient(),
        scale: scale.stop_gradient(),
        variance: unbiased.stop_gradient(),
        population_variance: variance.stop_gradient(),
    })
}

fn batch_norm_in_training(call: &Call<'_>) -> Built {
    if !call.flag_or("training", true)? {
        return Err("it is not in training".into());
    }
    let OfBatch { y, mean, scale, variance, .. } = of_batch(call)?;
    let momentum = call.number_or("momentum", 0.1)?;
    let followed = |running: Tensor, new: &Tensor| running * (1.0 - momentum) + new * momentum;
    let running =
        [followed(call.tensor("running_mean")?, &mean), followed(call.tensor("running_var")?, &variance)];
    Ok([y, mean, scale].into_iter().chain(running).collect())
}
