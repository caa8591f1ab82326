//! Convolution and pooling.

use super::{Operator, one, row};
use crate::call::{Built, Call, Fault};
use kernfusion::nn::Window;
use kernfusion::trace::Tensor;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.convolution.default", "windows of input times weight, plus bias; not transposed", convolution),
    row("aten.conv1d.default",      "windows of input times weight, plus bias",     convolution),
    row("aten.conv2d.default",      "windows of input times weight, plus bias",     convolution),
    row("aten.max_pool2d.default",  "the largest in each window",                   |call| pooled(call, |x, window| x.max_pool(window))),
    row("aten.max_pool2d_with_indices.default", "the largest in each window; not where it is", |call| pooled(call, |x, window| x.max_pool(window))),
    row("aten.avg_pool2d.default",  "the mean in each window; padding counts",      |call| pooled(call, |x, window| x.mean_pool(window))),
];

/// The most that a window may move, be apart or be padded, and the most places that it may have: each is a view.
const MOST: usize = 1 << 12;

/// One number for each of N axes; one alone is for all of them.
fn each<const N: usize>(call: &Call<'_>, name: &str, default: usize) -> Result<[usize; N], Fault> {
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

fn window<const N: usize>(
    call: &Call<'_>,
    kernel: [usize; N],
    stride: [usize; N],
) -> Result<Window<N>, Fault> {
    if kernel
        .iter()
        .try_fold(1, |places: usize, &extent| places.checked_mul(extent))
        .is_none_or(|places| places > MOST)
    {
        return Err(format!("a window of {kernel:?} has more than {MOST} places"));
    }
    Ok(Window { kernel, stride, padding: each(call, "padding", 0)?, dilation: each(call, "dilation", 1)? })
}

fn convolution(call: &Call<'_>) -> Built {
    if call.flag_or("transposed", false)? {
        return Err("transposed convolution is not known".into());
    }
    match call.tensor("weight")?.rank() {
        3 => convolved::<1>(call),
        4 => convolved::<2>(call),
        rank => Err(format!("a window over {} axes is not known", rank.saturating_sub(2))),
    }
}

fn convolved<const N: usize>(call: &Call<'_>) -> Built {
    let (x, weight, bias) = (call.tensor("input")?, call.tensor("weight")?, call.optional_tensor("bias")?);
    let kernel: Result<[usize; N], _> = weight.shape()[2..].try_into();
    let window = window(call, kernel.map_err(|_| "the weight has other axes")?, each(call, "stride", 1)?)?;
    let groups = usize::try_from(call.int_or("groups", 1)?).unwrap_or(0);
    one(x.convolution(&weight, bias.as_ref(), window, groups))
}

fn pooled(call: &Call<'_>, f: fn(&Tensor, Window<2>) -> Tensor) -> Built {
    let x = call.tensor("self")?;
    let flags = call.flag_or("ceil_mode", false)?
        || !call.flag_or("count_include_pad", true)?
        || call.optional_int("divisor_override")?.is_some();
    if flags || x.rank() != 4 {
        return Err("only plain windows over [batch, channels, rows, columns] are known".into());
    }
    let kernel = each(call, "kernel_size", 1)?;
    let stride = each::<2>(call, "stride", 0)?;
    let stride = if stride == [0; 2] { kernel } else { stride };
    one(f(&x, window(call, kernel, stride)?))
}
