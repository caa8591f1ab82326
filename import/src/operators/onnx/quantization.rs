//! Numbers kept as bytes: `(byte − zero point) · scale`, with a scale and a zero point for all elements, or one for each index of an axis.
//!
//! `uint8` is `int8` less 128 here, and so are its zero points: differences are the same.

use super::{element_type, windows};
use crate::call::{Built, Call, Fault, as_dtype, axis};
use crate::operators::{one, product};
use kernfusion::trace::Tensor;
use kernfusion_ir::DType;

/// What of the names of arguments says which is a scale, and which a zero point.
pub(crate) const SCALE: &str = "_scale";
pub(crate) const ZERO: &str = "_zero";
/// Arguments that are two numbers of four bits in each byte.
pub(crate) const PACKED: &str = "packed";
pub(crate) const PACKED_ZEROS: &str = "packed_zeros";
/// Says that the matrix and its scales were put into the order of products when the file was read.
pub(crate) const IN_GROUPS: &str = "in_groups";
/// The argument that is bytes, their scale, their zero point, and so on.
pub(crate) const TRIPLES: &str = "triples";

/// A vector as of a tensor of that shape, along one of its axes; a number as a scalar.
pub(super) fn along(call: &Call<'_>, name: &str, shape: &[usize], at: i64) -> Result<Tensor, Fault> {
    let value = call.tensor(name)?;
    let own = value.shape();
    if own.iter().product::<usize>() == 1 {
        return Ok(value.reshape(Vec::<usize>::new()));
    }
    let mut spread = vec![1; shape.len()];
    let place = axis(at, shape.len())?.unsigned_abs();
    match (&own[..], shape.get(place)) {
        ([count], Some(extent)) if count == extent => spread[place] = *count,
        _ => return Err(format!("{name} of shape {own:?} is not along axis {at} of {shape:?}")),
    }
    Ok(value.reshape(spread))
}

/// Without its zero point, as floats.
fn centred(call: &Call<'_>, name: &str, at: i64, dtype: DType) -> Result<Tensor, Fault> {
    let x = call.tensor(name)?;
    let zero = format!("{name}{ZERO}");
    let wide = as_dtype(&x, dtype);
    Ok(match call.is_tensor(&zero) {
        true => wide - as_dtype(&along(call, &zero, &x.shape(), at)?, dtype),
        false => match call.number_or(&zero, 0.0)? {
            0.0 => wide,
            zero => wide - zero,
        },
    })
}

/// What it stands for.
pub(super) fn real(call: &Call<'_>, name: &str, at: i64) -> Result<Tensor, Fault> {
    let scale = along(call, &format!("{name}{SCALE}"), &call.tensor(name)?.shape(), at)?;
    Ok(centred(call, name, at, scale.dtype())? * scale)
}

/// The nearest bytes, with the scale and the zero point of y.
pub(super) fn nearest(call: &Call<'_>, x: &Tensor, at: i64) -> Result<Tensor, Fault> {
    let scale = as_dtype(&along(call, "y_scale", &x.shape(), at)?, x.dtype());
    let whole = (x / scale).round();
    let zero = match call.is_tensor("y_zero") {
        true => as_dtype(&along(call, "y_zero", &x.shape(), at)?, x.dtype()),
        false => call.trace.full([], call.number_or("y_zero", 0.0)?, x.dtype()),
    };
    // Beyond the bytes, it is the nearest of them.
    Ok((whole + zero).cast(DType::I8))
}

pub(super) fn dequantized(call: &Call<'_>) -> Built {
    let real = real(call, "self", call.int_or("axis", 1)?)?;
    one(match call.int_or("output_dtype", 0)? {
        0 => real,
        code => as_dtype(&real, element_type(code)?.0),
    })
}

pub(super) fn quantized(call: &Call<'_>) -> Built {
    if !matches!(call.int_or("output_dtype", 0)?, 0 | 2 | 3) {
        return Err("it gives numbers other than bytes".into());
    }
    one(nearest(call, &call.tensor("self")?, call.int_or("axis", 1)?)?)
}

/// Bytes of which 0 is one, from the least to the largest number: these, their scale, and their zero point as a float.
pub(super) fn dynamic_bytes(call: &Call<'_>, x: &Tensor) -> (Tensor, Tensor, Tensor) {
    let axes: Vec<isize> = (0..x.rank() as isize).collect();
    let (least, largest) = (x.min(&axes).minimum(0.0), x.max(&axes).maximum(0.0));
    let range = largest - &least;
    let scale = range.gt(0.0).select(&range / 255.0, call.trace.full([], 1.0, x.dtype()));
    let zero = (-(least / &scale)).round().clamp(0.0, 255.0) - 128.0;
    let bytes = ((x / &scale).round() + &zero).cast(DType::I8);
    (bytes, scale, zero)
}

pub(super) fn dynamically_quantized(call: &Call<'_>) -> Built {
    let (bytes, scale, zero) = dynamic_bytes(call, &call.tensor("self")?);
    Ok(vec![bytes, scale, zero.cast(DType::I8)])
}

pub(super) fn integer_product(call: &Call<'_>) -> Built {
    let [x, y] = [("self", -2), ("other", -1)].map(|(name, at)| centred(call, name, at, DType::F32));
    one(product::multiplied(&x?, &y?).cast(DType::I32))
}

pub(super) fn integer_convolution(call: &Call<'_>) -> Built {
    let [x, weight] = ["input", "weight"].map(|name| centred(call, name, 0, DType::F32));
    one(windows::convolution_of(call, &x?, &weight?, None)?.cast(DType::I32))
}

pub(super) fn quantized_product(call: &Call<'_>) -> Built {
    let [x, y] = [("self", -2), ("other", -1)].map(|(name, at)| real(call, name, at));
    one(nearest(call, &product::multiplied(&x?, &y?), -1)?)
}

pub(super) fn quantized_convolution(call: &Call<'_>) -> Built {
    let [x, weight] = ["input", "weight"].map(|name| real(call, name, 0));
    // Whole numbers, of which each is a product of both scales.
    let bias = match call.optional_tensor("bias")? {
        None => None,
        Some(bias) => {
            let [x, weight] = ["input_scale", "weight_scale"].map(|name| along(call, name, &bias.shape(), 0));
            Some(as_dtype(&bias, DType::F32) * (x? * weight?))
        }
    };
    let y = windows::convolution_of(call, &x?, &weight?, bias.as_ref())?;
    one(nearest(call, &y, 1)?)
}
