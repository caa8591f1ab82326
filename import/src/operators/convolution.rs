//! Convolution.

use super::{Operator, one, row};
use crate::call::{Built, Call, Fault, as_dtype};
use kernfusion::nn::Window;
use kernfusion::trace::Tensor;
use kernfusion_ir::DType;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.convolution.default", "windows of input times weight, plus bias, or the transpose of that", convolution),
    row("aten.conv1d.default",      "windows of input times weight, plus bias",     convolution),
    row("aten.conv1d.padding",      "conv1d, with as many results as positions, or without padding", convolution),
    row("aten.conv2d.default",      "windows of input times weight, plus bias",     convolution),
    row("aten.conv2d.padding",      "conv2d, with as many results as positions, or without padding", convolution),
    row("aten.conv3d.default",      "windows of input times weight, plus bias",     convolution),
    row("aten.conv3d.padding",      "conv3d, with as many results as positions, or without padding", convolution),
    row("aten.im2col.default",      "each window as a column of all its places in all channels", unfolded),
    row("aten.col2im.default",      "the sum of what windows have at each position: the transpose of im2col", folded),
    row("aten.conv_transpose1d.default", "the transpose of conv1d, plus bias",      convolution),
    row("aten.conv_transpose2d.input", "the transpose of conv2d, plus bias",        convolution),
];

/// The most that a window may move, be apart or be padded, and the most places that it may have: each is a view.
pub(super) const MOST: usize = 1 << 12;

/// One number for each of N axes; one alone is for all of them.
pub(super) fn each<const N: usize>(call: &Call<'_>, name: &str, default: usize) -> Result<[usize; N], Fault> {
    let given = call.optional_ints(name)?.unwrap_or_default();
    let number = |at: usize| match given.as_slice() {
        [] => Ok(default),
        [one] => usize::try_from(*one),
        several => usize::try_from(several.get(at).copied().unwrap_or(-1)),
    };
    let mut numbers = [0; N];
    for (at, place) in numbers.iter_mut().enumerate() {
        let number = number(at).ok().filter(|&number| number <= MOST);
        *place = number.ok_or_else(|| format!("{name} is not {N} numbers of at most {MOST}"))?;
    }
    Ok(numbers)
}

pub(super) fn window<const N: usize>(
    call: &Call<'_>,
    kernel: [usize; N],
    stride: [usize; N],
    padding: [usize; N],
) -> Result<Window<N>, Fault> {
    bounded(Window { kernel, stride, padding, dilation: each(call, "dilation", 1)? })
}

/// A window that has not too many places.
pub(super) fn bounded<const N: usize>(window: Window<N>) -> Result<Window<N>, Fault> {
    let kernel = window.kernel;
    let places = kernel.iter().try_fold(1, |places: usize, &extent| places.checked_mul(extent));
    match places.is_some_and(|places| places <= MOST) {
        true => Ok(window),
        false => Err(format!("a window of {kernel:?} has more than {MOST} places")),
    }
}

/// The window of im2col and col2im, whose places times channels are the rows of a matrix of columns.
fn window_of_columns(call: &Call<'_>) -> Result<Window<2>, Fault> {
    window(call, each(call, "kernel_size", 1)?, each(call, "stride", 1)?, each(call, "padding", 0)?)
}

/// A kernel for each place of a window, which has 1 there and else 0: `[places, 1, rows, columns]`.
fn unit_kernels(call: &Call<'_>, window: Window<2>, dtype: DType) -> Tensor {
    let [rows, columns] = window.kernel;
    let units = call.trace.eye(rows * columns).reshape([rows * columns, 1, rows, columns]);
    as_dtype(&units, dtype)
}

/// Each channel by itself, as `[batch · channels, 1, rows, columns]`, so that all have the same kernels.
fn unfolded(call: &Call<'_>) -> Built {
    let (x, window) = (call.tensor("self")?, window_of_columns(call)?);
    let [batch, channels, rows, columns] = x.shape()[..] else {
        return Err("it takes [batch, channels, rows, columns]".into());
    };
    let alone = x.reshape([batch * channels, 1, rows, columns]);
    call.in_shape(&alone.convolution(&unit_kernels(call, window, x.dtype()), None, window, 1))
}

fn folded(call: &Call<'_>) -> Built {
    let (x, window) = (call.tensor("self")?, window_of_columns(call)?);
    let size: [usize; 2] = each(call, "output_size", 0)?;
    let places = window.kernel[0] * window.kernel[1];
    let mut counts = [0; 2];
    let mut left = [0; 2];
    for axis in 0..2 {
        let reach = window.dilation[axis] * window.kernel[axis].saturating_sub(1) + 1;
        let whole = size[axis] + 2 * window.padding[axis];
        let steps = whole.checked_sub(reach).ok_or("a window is larger than the result")?;
        let stride = window.stride[axis].max(1);
        counts[axis] = steps / stride + 1;
        left[axis] = steps % stride;
    }
    match x.shape()[..] {
        [batch, rows, columns] if rows.is_multiple_of(places.max(1)) && columns == counts[0] * counts[1] => {
            let channels = rows / places.max(1);
            let alone = x.reshape([batch * channels, places, counts[0], counts[1]]);
            let units = unit_kernels(call, window, x.dtype());
            call.in_shape(&alone.transposed_convolution(&units, None, window, left, 1))
        }
        ref shape => Err(format!("{shape:?} are no columns of windows {:?}", window.kernel)),
    }
}

fn convolution(call: &Call<'_>) -> Built {
    match call.tensor("weight")?.rank() {
        3 => convolved::<1>(call),
        4 => convolved::<2>(call),
        5 => convolved::<3>(call),
        rank => Err(format!("a window over {} axes is not known", rank.saturating_sub(2))),
    }
}

fn convolved<const N: usize>(call: &Call<'_>) -> Built {
    let (mut x, weight, bias) =
        (call.tensor("input")?, call.tensor("weight")?, call.optional_tensor("bias")?);
    let kernel: [usize; N] = weight.shape()[2..].try_into().map_err(|_| "the weight has other axes")?;
    let padding = match call.is_word("padding") {
        false => each(call, "padding", 0)?,
        true => {
            if call.word_or("padding", "valid")? == "same" {
                x = around(&x, kernel, each(call, "dilation", 1)?)?;
            }
            [0; N]
        }
    };
    let window = window(call, kernel, each(call, "stride", 1)?, padding)?;
    let groups = usize::try_from(call.int_or("groups", 1)?).unwrap_or(0);
    let is_transposed = call.flag_or("transposed", false)? || call.node.target.contains("conv_transpose");
    one(match is_transposed {
        true => {
            x.transposed_convolution(&weight, bias.as_ref(), window, each(call, "output_padding", 0)?, groups)
        }
        false => x.convolution(&weight, bias.as_ref(), window, groups),
    })
}

/// Zeros around positions, so that a window that moves by one has as many results; the odd one stands behind.
fn around<const N: usize>(x: &Tensor, kernel: [usize; N], dilation: [usize; N]) -> Result<Tensor, Fault> {
    if x.rank() != N + 2 {
        return Err(format!("it takes [batch, channels] and {N} axes"));
    }
    let mut around = vec![(0, 0); 2];
    for axis in 0..N {
        let total = kernel[axis].saturating_sub(1).saturating_mul(dilation[axis]);
        around.push((total / 2, total - total / 2));
    }
    Ok(x.pad(&around, 0.0))
}
