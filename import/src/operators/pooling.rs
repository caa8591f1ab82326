//! Pooling with a window, and changes of the number of positions.

use super::convolution::{bounded, each};
use super::{Operator, one, row};
use crate::call::{Built, Call, Fault, as_dtype};
use kernfusion::nn::Window;
use kernfusion::trace::Tensor;
use kernfusion_ir::DType;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.max_pool1d.default",  "the largest in each window",                   pooled::<1, true>),
    row("aten.max_pool2d.default",  "the largest in each window",                   pooled::<2, true>),
    row("aten.max_pool2d_with_indices.default", "the largest in each window; not where it is", pooled::<2, true>),
    row("aten.avg_pool1d.default",  "the mean in each window",                      pooled::<1, false>),
    row("aten.avg_pool2d.default",  "the mean in each window",                      pooled::<2, false>),
    row("aten.max_pool3d.default",  "the largest in each window",                   pooled::<3, true>),
    row("aten.avg_pool3d.default",  "the mean in each window",                      pooled::<3, false>),
    row("aten.adaptive_avg_pool3d.default", "the means of output_size parts of the last three axes", |call| resized::<3>(call, "self", Resampling::Parts)),
    row("aten.upsample_nearest3d.vec", "the nearest position of the last three axes for each of the result", |call| resized::<3>(call, "input", Resampling::Nearest)),
    row("aten.upsample_linear1d.vec", "a mean of the two nearest positions of the last axis, by distance", |call| resized::<1>(call, "input", Resampling::Linear { aligned: is_aligned(call)? })),
    row("aten.upsample_trilinear3d.vec", "a mean of the two nearest positions of the last three axes, by distance", |call| resized::<3>(call, "input", Resampling::Linear { aligned: is_aligned(call)? })),
    row("aten.adaptive_avg_pool1d.default", "the means of output_size parts of the last axis", |call| resized::<1>(call, "self", Resampling::Parts)),
    row("aten.adaptive_avg_pool2d.default", "the means of output_size parts of the last two axes", |call| resized::<2>(call, "self", Resampling::Parts)),
    row("aten._adaptive_avg_pool2d.default", "the means of output_size parts of the last two axes", |call| resized::<2>(call, "self", Resampling::Parts)),
    row("aten.upsample_nearest1d.vec", "the nearest position of the last axis for each of the result", |call| resized::<1>(call, "input", Resampling::Nearest)),
    row("aten.upsample_nearest2d.vec", "the nearest position of the last two axes for each of the result", |call| resized::<2>(call, "input", Resampling::Nearest)),
    row("aten.upsample_bicubic2d.vec", "a sum over four positions each of the last two axes (cubic convolution with a = −3/4: Keys, 1981)", |call| resized::<2>(call, "input", Resampling::Cubic { aligned: is_aligned(call)?, a: CUBIC })),
    row("aten.upsample_bilinear2d.vec", "a mean of the two nearest positions of the last two axes, by distance", |call| resized::<2>(call, "input", Resampling::Linear { aligned: is_aligned(call)? })),
];

/// A window's largest elements, or the means.
fn pooled<const N: usize, const LARGEST: bool>(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    if x.rank() != N + 2 {
        return Err(format!("only [batch, channels] and {N} axes are known"));
    }
    let kernel = each(call, "kernel_size", 1)?;
    let stride = each::<N>(call, "stride", 0)?;
    let stride = if stride == [0; N] { kernel } else { stride };
    let window =
        Window { kernel, stride, padding: each(call, "padding", 0)?, dilation: each(call, "dilation", 1)? };
    pooled_in::<N, LARGEST>(call, &x, window, [0; N])
}

/// Over a tensor whose last positions along each axis, as many as `behind` says, are padding.
pub(super) fn pooled_in<const N: usize, const LARGEST: bool>(
    call: &Call<'_>,
    x: &Tensor,
    mut window: Window<N>,
    behind: [usize; N],
) -> Built {
    let divisor = call.optional_number("divisor_override")?;
    let counts_padding = call.flag_or("count_include_pad", true)?;
    let is_ceiled = call.flag_or("ceil_mode", false)?;
    let mut x = x.clone();
    // One window over all of some axes, in one reduction.
    let extent = |axis: usize| x.shape()[axis + 2];
    let whole: Vec<usize> =
        (0..N).filter(|&axis| is_over_all(extent(axis), &window, axis, is_ceiled)).collect();
    let counted: usize =
        whole.iter().map(|&axis| window.kernel[axis].min(extent(axis) + 2 * window.padding[axis])).product();
    if !whole.is_empty() {
        let along: Vec<isize> = whole.iter().map(|&axis| axis as isize + 2).collect();
        x = match (LARGEST, divisor) {
            (true, _) => x.max_keep(&along),
            (false, Some(_)) => x.sum_keep(&along),
            (false, None) if !counts_padding => x.mean_keep(&along),
            (false, None) => x.sum_keep(&along) * (1.0 / counted as f64),
        };
    }
    for axis in whole {
        (window.kernel[axis], window.stride[axis], window.padding[axis]) = (1, 1, 0);
    }
    let (x, window) = (&x, bounded(window)?);
    // A window that begins inside may reach beyond the end.
    let mut beyond = vec![(0, 0); N + 2];
    if is_ceiled {
        for axis in 0..N {
            beyond[axis + 2].1 = missing(
                x.shape()[axis + 2],
                window.dilation[axis] * window.kernel[axis].saturating_sub(1) + 1,
                window.stride[axis],
                (window.padding[axis], behind[axis]),
            );
        }
    }
    let is_whole = beyond.iter().all(|&around| around == (0, 0));
    let extended = |x: &Tensor, fill: f64| if is_whole { x.clone() } else { x.pad(&beyond, fill) };
    if LARGEST {
        return one(extended(x, f64::NEG_INFINITY).max_pool(window));
    }
    let mean = extended(x, 0.0).mean_pool(window);
    if let Some(divisor) = divisor {
        return one(mean * (window.kernel.iter().product::<usize>() as f64 / divisor));
    }
    if is_whole && (counts_padding || window.padding == [0; N]) {
        return one(mean);
    }
    // The share of each window that counts.
    let mut ones = call.trace.full([&[1, 1], &x.shape()[2..]].concat(), 1.0, x.dtype());
    let mut counted = window;
    if counts_padding {
        let around: Vec<_> = [(0, 0); 2].into_iter().chain(window.padding.map(|p| (p, p))).collect();
        (ones, counted.padding) = (ones.pad(&around, 1.0), [0; N]);
    }
    one(mean / extended(&ones, 0.0).mean_pool(counted))
}

/// Whether there is one window along an axis, over all its positions.
fn is_over_all<const N: usize>(extent: usize, window: &Window<N>, axis: usize, is_ceiled: bool) -> bool {
    let Window { kernel, stride, padding, dilation } = window;
    let (kernel, padding, stride) = (kernel[axis], padding[axis], stride[axis].max(1));
    let left = (extent + 2 * padding).saturating_sub(kernel);
    // A second one would begin before the end.
    let is_alone = left < stride && (!is_ceiled || left == 0 || stride >= extent + padding);
    extent > 0 && dilation[axis] == 1 && kernel >= extent + padding && is_alone
}

/// How many positions a last window lacks that begins inside, or in the padding before, of an axis whose last positions are padding, too.
fn missing(extent: usize, reach: usize, stride: usize, (padding, behind): (usize, usize)) -> usize {
    let (whole, stride) = (extent + 2 * padding, stride.max(1));
    let mut windows = whole.saturating_sub(reach).div_ceil(stride) + 1;
    if (windows - 1) * stride >= extent + padding - behind {
        windows -= 1;
    }
    (windows.saturating_sub(1) * stride + reach).saturating_sub(whole)
}

/// How positions of a result are made of those of an axis. Aligned: the first and the last ones are the same.
pub(super) enum Resampling {
    Parts,
    Nearest,
    Linear {
        aligned: bool,
    },
    /// By cubic convolution with the number a.
    Cubic {
        aligned: bool,
        a: f64,
    },
}

/// PyTorch's a.
pub(super) const CUBIC: f64 = -0.75;

fn is_aligned(call: &Call<'_>) -> Result<bool, Fault> {
    call.flag_or("align_corners", false)
}

/// The last N axes as long as the result has them.
fn resized<const N: usize>(call: &Call<'_>, name: &str, resampling: Resampling) -> Built {
    let (mut x, shape) = (call.tensor(name)?, call.result()?.shape.clone());
    if x.rank() != N + 2 || shape.len() != N + 2 || x.ty().elements() == 0 {
        return Err(format!("only [batch, channels] and {N} axes are known"));
    }
    if let Resampling::Parts = resampling {
        // All axes of which one part is asked, in one reduction.
        let whole: Vec<isize> =
            (2..N + 2).filter(|&axis| shape[axis] == 1).map(|axis| axis as isize).collect();
        x = if whole.is_empty() { x } else { x.mean_keep(&whole) };
    }
    let factors = call.optional_numbers("scale_factors")?;
    for at in 0..N {
        let (extent, count) = (x.shape()[at + 2], shape[at + 2]);
        let ratio = match factors.as_ref().and_then(|factors| factors.get(at)) {
            Some(factor) => factor.recip(),
            None => extent as f64 / count as f64,
        };
        // What is as long stays, but between positions of a cubic.
        let is_moved = matches!(resampling, Resampling::Cubic { aligned: false, .. }) && ratio != 1.0;
        if extent != count || is_moved {
            x = resampled(&x, at as isize + 2, count, ratio, &resampling);
        }
    }
    one(x)
}

/// An axis of the result with this many positions, each of which stands for `ratio` positions of the operand.
pub(super) fn resampled(
    x: &Tensor,
    axis: isize,
    count: usize,
    ratio: f64,
    resampling: &Resampling,
) -> Tensor {
    match *resampling {
        Resampling::Parts => parts(x, axis, count),
        Resampling::Nearest => nearest(x, axis, count, ratio),
        Resampling::Linear { aligned } => linear(x, axis, count, ratio, aligned),
        Resampling::Cubic { aligned, a } => cubic(x, axis, (count, ratio), aligned, a),
    }
}

/// An axis times a matrix `[count, extent]` of `f32`; whole numbers without what is behind the point.
fn mixed(x: &Tensor, axis: isize, matrix: &Tensor) -> Tensor {
    let dtype = if x.dtype().is_float() { x.dtype() } else { DType::F32 };
    let mixed = as_dtype(x, dtype).transpose(axis, -1).linear(&as_dtype(matrix, dtype)).transpose(axis, -1);
    as_dtype(&mixed, x.dtype())
}

/// The places 0, 1, … of the result down a matrix `[count, extent]`, and those of the operand across.
fn places(x: &Tensor, axis: isize, count: usize) -> [Tensor; 2] {
    let shape = [count, x.dim(axis)];
    [0, 1].map(|axis| x.trace().iota(shape, axis, DType::F32))
}

/// Part i reaches from ⌊i·extent/count⌋ to ⌈(i + 1)·extent/count⌉.
fn parts(x: &Tensor, axis: isize, count: usize) -> Tensor {
    let extent = x.dim(axis) as f64;
    let [part, place] = places(x, axis, count);
    let start = (&part * extent / count as f64).floor();
    let end = -(-((part + 1.0) * extent / count as f64)).floor();
    let is_inside = place.ge(&start).and(place.lt(&end));
    let matrix = is_inside.cast(DType::F32) / (end - start);
    mixed(x, axis, &matrix)
}

fn nearest(x: &Tensor, axis: isize, count: usize, ratio: f64) -> Tensor {
    let extent = x.dim(axis);
    if count.is_multiple_of(extent) && ratio == extent as f64 / count as f64 {
        let (mut wide, mut shape) = (x.shape(), x.shape());
        wide.insert(axis.unsigned_abs() + 1, count / extent);
        shape[axis.unsigned_abs()] = count;
        return x.unsqueeze(axis + 1).broadcast_to(wide).reshape(shape);
    }
    let place = (x.trace().arange(count, DType::F32) * ratio).floor().cast(DType::I32);
    x.gather(axis, &place)
}

fn linear(x: &Tensor, axis: isize, count: usize, ratio: f64, aligned: bool) -> Tensor {
    let (source, place) = sources(x, axis, count, ratio, aligned);
    let last = x.dim(axis) as f64 - 1.0;
    let matrix = (1.0 - (source.clamp(0.0, last) - place).abs()).maximum(0.0);
    mixed(x, axis, &matrix)
}

fn cubic(x: &Tensor, axis: isize, (count, ratio): (usize, f64), aligned: bool, a: f64) -> Tensor {
    let (source, place) = sources(x, axis, count, ratio, aligned);
    let (first, last) = (source.floor(), x.dim(axis) as f64 - 1.0);
    let after = &source - &first;
    // (a + 2)|t|³ − (a + 3)|t|² + 1 within a distance of 1, a|t|³ − 5a|t|² + 8a|t| − 4a within 2.
    let near = |t: &Tensor| (t * (a + 2.0) - (a + 3.0)) * t.square() + 1.0;
    let far = |t: &Tensor| ((t - 5.0) * t + 8.0) * t * a - 4.0 * a;
    let before = 1.0 - &after;
    let weights = [far(&(&after + 1.0)), near(&after), near(&before), far(&(before + 1.0))];
    let terms = weights.into_iter().enumerate().map(|(at, weight)| {
        // What lies outside is the edge.
        let position = (&first + (at as f64 - 1.0)).clamp(0.0, last);
        position.eq(&place).select(weight, 0.0)
    });
    let matrix = terms.reduce(|sum, term| sum + term).expect("four terms");
    mixed(x, axis, &matrix)
}

/// For each position of the result down a matrix the place in the operand, and the operand's places across.
fn sources(x: &Tensor, axis: isize, count: usize, ratio: f64, aligned: bool) -> (Tensor, Tensor) {
    let [result, place] = places(x, axis, count);
    let last = x.dim(axis) as f64 - 1.0;
    let source = match aligned {
        true => result * (last / (count as f64 - 1.0).max(1.0)),
        false => (result + 0.5) * ratio - 0.5,
    };
    (source, place)
}
