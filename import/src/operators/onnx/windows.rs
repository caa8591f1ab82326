//! Windows that slide over positions, and axes of another number of positions.

use super::functions::extent;
use crate::call::{Built, Call, Fault, as_dtype};
use crate::operators::convolution::{self, each};
use crate::operators::one;
use crate::operators::pooling::{self, Resampling};
use kernfusion::nn::Window;
use kernfusion::trace::Tensor;
use kernfusion_ir::{DType, TensorType};

/// The padding before and behind each axis: `pads`, or as `auto_pad` says.
fn pads<const N: usize>(call: &Call<'_>, x: &Tensor, window: &Window<N>) -> Result<[[usize; 2]; N], Fault> {
    if x.rank() != N + 2 {
        return Err(format!("it takes [batch, channels] and {N} axes"));
    }
    let pads = match call.word_or("auto_pad", "NOTSET")? {
        "NOTSET" => given_pads(&call.optional_ints("pads")?.unwrap_or_else(|| vec![0; 2 * N]))?,
        "VALID" => [[0; 2]; N],
        "SAME_UPPER" => same_pads(x, window),
        "SAME_LOWER" => same_pads(x, window).map(|[before, behind]| [behind, before]),
        other => return Err(format!("there is no padding {other}")),
    };
    match pads.iter().flatten().all(|&side| side <= convolution::MOST) {
        true => Ok(pads),
        false => Err(format!("more padding than {}", convolution::MOST)),
    }
}

/// Of N numbers of padding before each axis and N behind.
fn given_pads<const N: usize>(given: &[i64]) -> Result<[[usize; 2]; N], Fault> {
    if given.len() != 2 * N {
        return Err(format!("{} numbers of padding for {N} axes", given.len()));
    }
    let mut pads = [[0; 2]; N];
    for (axis, pad) in pads.iter_mut().enumerate() {
        *pad = [extent(given[axis])?, extent(given[axis + N])?];
    }
    Ok(pads)
}

/// So much that there is a result for each step through an axis; the odd one stands behind.
fn same_pads<const N: usize>(x: &Tensor, window: &Window<N>) -> [[usize; 2]; N] {
    let mut pads = [[0; 2]; N];
    for (axis, pad) in pads.iter_mut().enumerate() {
        let (extent, stride) = (x.shape()[axis + 2], window.stride[axis].max(1));
        let reach = window.dilation[axis] * window.kernel[axis].saturating_sub(1) + 1;
        let total = (extent.div_ceil(stride).saturating_sub(1) * stride + reach).saturating_sub(extent);
        *pad = [total / 2, total.div_ceil(2)];
    }
    pads
}

/// The tensor and the window where padding is the same on both sides; else the tensor is padded before.
fn evened<const N: usize>(
    x: &Tensor,
    mut window: Window<N>,
    pads: [[usize; 2]; N],
    fill: f64,
) -> (Tensor, Window<N>) {
    if pads.iter().all(|[before, behind]| before == behind) {
        window.padding = pads.map(|[before, _]| before);
        return (x.clone(), window);
    }
    let around: Vec<_> =
        [(0, 0); 2].into_iter().chain(pads.map(|[before, behind]| (before, behind))).collect();
    (x.pad(&around, fill), window)
}

fn window_of<const N: usize>(call: &Call<'_>, kernel: [usize; N]) -> Result<Window<N>, Fault> {
    convolution::window(call, kernel, each(call, "stride", 1)?, [0; N])
}

fn kernel_of<const N: usize>(weight: &Tensor) -> Result<[usize; N], Fault> {
    weight
        .shape()
        .get(2..)
        .and_then(|kernel| kernel.try_into().ok())
        .ok_or("the weight has other axes".into())
}

pub(super) fn convolution(call: &Call<'_>) -> Built {
    let (x, weight) = (call.tensor("input")?, call.tensor("weight")?);
    one(convolution_of(call, &x, &weight, call.optional_tensor("bias")?.as_ref())?)
}

/// The convolution that the attributes of a node describe.
pub(super) fn convolution_of(
    call: &Call<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor, Fault> {
    match weight.rank() {
        3 => convolved::<1>(call, x, weight, bias),
        4 => convolved::<2>(call, x, weight, bias),
        5 => convolved::<3>(call, x, weight, bias),
        rank => Err(format!("a window over {} axes is not known", rank.saturating_sub(2))),
    }
}

fn convolved<const N: usize>(
    call: &Call<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor, Fault> {
    let window = window_of(call, kernel_of::<N>(weight)?)?;
    let (x, window) = evened(x, window, pads(call, x, &window)?, 0.0);
    let groups = usize::try_from(call.int_or("groups", 1)?).unwrap_or(0);
    Ok(x.convolution(weight, bias, window, groups))
}

pub(super) fn transposed_convolution(call: &Call<'_>) -> Built {
    match call.tensor("weight")?.rank() {
        3 => transposed_window::<1>(call),
        4 => transposed_window::<2>(call),
        rank => Err(format!("a window over {} axes is not known", rank.saturating_sub(2))),
    }
}

fn transposed_window<const N: usize>(call: &Call<'_>) -> Built {
    let (x, weight) = (call.tensor("input")?, call.tensor("weight")?);
    let mut window = window_of(call, kernel_of::<N>(&weight)?)?;
    let pads = pads(call, &x, &window)?;
    if call.word_or("auto_pad", "NOTSET")? != "NOTSET" || pads.iter().any(|[before, behind]| before != behind)
    {
        return Err("only padding that is the same on both sides is known".into());
    }
    window.padding = pads.map(|[before, _]| before);
    let groups = usize::try_from(call.int_or("groups", 1)?).unwrap_or(0);
    let bias = call.optional_tensor("bias")?;
    one(x.transposed_convolution(&weight, bias.as_ref(), window, each(call, "output_padding", 0)?, groups))
}

/// The largest in each window, or the mean.
pub(super) fn pooled<const LARGEST: bool>(call: &Call<'_>) -> Built {
    match call.tensor("self")?.rank() {
        3 => pooled_over::<1, LARGEST>(call),
        4 => pooled_over::<2, LARGEST>(call),
        rank => Err(format!("a window over {} axes is not known", rank.saturating_sub(2))),
    }
}

fn pooled_over<const N: usize, const LARGEST: bool>(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    if call.node.outputs.len() > 1 {
        return Err("where the largest are is not known".into());
    }
    // Of bytes, too, the largest is found among floats.
    let dtype = x.dtype();
    let x = if dtype.is_float() { x } else { x.cast(DType::F32) };
    // How many places it may have is asked where windows over a whole axis are none any more.
    let (kernel, stride, dilation) =
        (each(call, "kernel_size", 1)?, each(call, "stride", 1)?, each(call, "dilation", 1)?);
    let window = Window { kernel, stride, padding: [0; N], dilation };
    let pads = pads(call, &x, &window)?;
    if !LARGEST && pads.iter().any(|[before, behind]| before != behind) {
        return Err("only padding that is the same on both sides is known".into());
    }
    let (x, window) = evened(&x, window, pads, f64::NEG_INFINITY);
    // What was put behind an axis is no place where a window may begin.
    let behind =
        std::array::from_fn(|axis| if window.padding[axis] == pads[axis][1] { 0 } else { pads[axis][1] });
    let pooled = pooling::pooled_in::<N, LARGEST>(call, &x, window, behind)?;
    Ok(pooled.iter().map(|pooled| as_dtype(pooled, dtype)).collect())
}

/// Over all axes behind batch and channels, which stay with an extent of 1.
pub(super) fn pooled_whole(call: &Call<'_>, f: fn(&Tensor, &[isize]) -> Tensor) -> Built {
    let x = call.tensor("self")?;
    let axes: Vec<_> = (2..x.rank() as isize).collect();
    match axes.is_empty() {
        true => Err("it takes [batch, channels, ..]".into()),
        false => one(f(&x, &axes)),
    }
}

/// Axes of another number of positions: `sizes` of them, or `scales` as many.
pub(super) fn resized(call: &Call<'_>) -> Built {
    let mut x = call.tensor("self")?;
    let shape = x.shape();
    let scales = call.optional_numbers("scales")?.filter(|scales| !scales.is_empty());
    let sizes = call.optional_ints("sizes")?.filter(|sizes| !sizes.is_empty());
    let counts: Vec<usize> = match (&scales, sizes) {
        (None, Some(sizes)) => sizes.into_iter().map(extent).collect::<Result<_, _>>()?,
        (Some(scales), None) => shape
            .iter()
            .zip(scales)
            .map(|(&extent, &scale)| (extent as f32 * scale as f32).floor() as usize)
            .collect(),
        _ => return Err("it takes either scales or sizes, known ones".into()),
    };
    if counts.len() != shape.len() {
        return Err(format!("{} extents for {} axes", counts.len(), shape.len()));
    }
    if call.word_or("keep_aspect_ratio_policy", "stretch")? != "stretch" {
        return Err("keeping the ratio of sides is not known".into());
    }
    let resampling = resampling(call)?;
    // There, the only position is the first of the operand.
    let begins_alone = call.word_or("coordinate_transformation_mode", "")? == "pytorch_half_pixel";
    for (axis, (&own, count)) in shape.iter().zip(counts).enumerate() {
        let ratio = match &scales {
            Some(scales) => scales[axis].recip(),
            None => own as f64 / count as f64,
        };
        if own != count && count == 1 && begins_alone {
            x = x.slice(axis as isize, 0..1);
        } else if own != count {
            let ty = TensorType::new(DType::F32, [count, own]);
            ty.fault().map_or(Ok(()), Err)?;
            x = pooling::resampled(&x, axis as isize, count, ratio, &resampling);
        }
    }
    one(x)
}

fn resampling(call: &Call<'_>) -> Result<Resampling, Fault> {
    let coordinates = call.word_or("coordinate_transformation_mode", "half_pixel")?;
    let cubic = call.number_or("cubic_coeff_a", pooling::CUBIC);
    match (call.word_or("mode", "nearest")?, coordinates, call.word_or("nearest_mode", "round_prefer_floor")?)
    {
        ("nearest", "asymmetric", "floor") => Ok(Resampling::Nearest),
        ("linear", "half_pixel" | "pytorch_half_pixel", _) => Ok(Resampling::Linear { aligned: false }),
        ("linear", "align_corners", _) => Ok(Resampling::Linear { aligned: true }),
        ("cubic", "half_pixel" | "pytorch_half_pixel", _) => {
            Ok(Resampling::Cubic { aligned: false, a: cubic? })
        }
        ("cubic", "align_corners", _) => Ok(Resampling::Cubic { aligned: true, a: cubic? }),
        (mode, coordinates, nearest) => {
            Err(format!("it resizes by {mode}, {coordinates}, {nearest}, which is not known"))
        }
    }
}
