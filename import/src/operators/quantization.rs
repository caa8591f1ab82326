//! Numbers kept as bytes, as PyTorch's quantized models write them: `(byte − zero_point) · scale`, with a scale and a zero point for all elements, or one for
//! each index of an axis.
//!
//! `uint8` is `int8` less 128 here, and is given by these operators to these operators alone.

use super::{Operator, one, row};
use crate::call::{Built, Call, Fault, as_dtype, axis};
use crate::schema::{Graph, TensorMeta};
use kernfusion::trace::Tensor;
use kernfusion_ir::{DType, TensorType};
use std::collections::BTreeSet;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("quantized_decomposed.quantize_per_tensor.default",    "input / scale + zero_point as bytes from quant_min to quant_max", quantized),
    row("quantized_decomposed.quantize_per_tensor.tensor",     "input / scale + zero_point as bytes from quant_min to quant_max", quantized),
    row("quantized_decomposed.quantize_per_channel.default",   "input / scales + zero_points as bytes from quant_min to quant_max, along axis", quantized),
    row("quantized_decomposed.dequantize_per_tensor.default",  "(input − zero_point) · scale",                 dequantized),
    row("quantized_decomposed.dequantize_per_tensor.tensor",   "(input − zero_point) · scale",                 dequantized),
    row("quantized_decomposed.dequantize_per_channel.default", "(input − zero_points) · scales, along axis",   dequantized),
    row("quantized_decomposed.choose_qparams.tensor",          "scale, at least eps, and zero point of bytes of which 0 is one, from the least to the largest number", chosen),
];

/// The codes of `uint8` and of `int8`.
const UINT8: u64 = 1;
const INT8: u64 = 2;
/// What `uint8` is kept less.
const SHIFT: f64 = 128.0;

/// The names of values that are `uint8` and are given by these operators to these operators alone.
pub(crate) fn without_sign(graph: &Graph) -> BTreeSet<&str> {
    let is_of_quantization = |target: &str| target.contains("quantized_decomposed.");
    let (own, others): (Vec<_>, Vec<_>) =
        graph.nodes.iter().partition(|node| is_of_quantization(&node.target));
    let mut names: BTreeSet<&str> = own.iter().flat_map(|node| node.results()).collect();
    let read = others.iter().flat_map(|node| node.tensors()).map(|name| name.name.as_str());
    let results = graph.outputs.iter().flat_map(|output| output.tensors()).map(|name| name.name.as_str());
    read.chain(results).for_each(|name| {
        names.remove(name);
    });
    names.retain(|name| graph.tensor_values.get(*name).is_some_and(|meta| meta.dtype == UINT8));
    names
}

/// What such a value is here.
pub(crate) fn with_sign(meta: &TensorMeta) -> TensorMeta {
    TensorMeta { dtype: INT8, ..meta.clone() }
}

/// A number, or one for each index of an axis, as of that shape; less another one.
fn common(call: &Call<'_>, name: &str, shape: &[usize], less: f64) -> Result<Tensor, Fault> {
    // Those of channels have names in the plural.
    let name = if call.has(name) { name.to_string() } else { format!("{name}s") };
    if !call.is_tensor(&name) {
        return Ok(call.trace.full([], call.number(&name)? - less, DType::F32));
    }
    let value = as_dtype(&call.tensor(&name)?, DType::F32);
    let value = if less == 0.0 { value } else { value - less };
    let mut spread = vec![];
    if call.has("axis") {
        spread = vec![1; shape.len()];
        let place = axis(call.int("axis")?, shape.len())?.unsigned_abs();
        *spread.get_mut(place).ok_or("a scalar has no channels")? = shape[place];
    }
    let (own, whole) = (value.shape(), spread.iter().product::<usize>());
    match own.len() < 2 && own.iter().product::<usize>() == whole {
        true => Ok(value.reshape(spread)),
        false => Err(format!("{name} has the shape {own:?}, and {whole} are needed")),
    }
}

/// What bytes of the dtype of a node are kept less.
fn shift(call: &Call<'_>) -> Result<f64, Fault> {
    match call.scalar_type("dtype") {
        Some(UINT8) => Ok(SHIFT),
        Some(INT8) => Ok(0.0),
        _ => Err("it has numbers other than bytes".into()),
    }
}

fn quantized(call: &Call<'_>) -> Built {
    let x = as_dtype(&call.tensor("input")?, DType::F32);
    let (shape, shift) = (x.shape(), shift(call)?);
    let whole = (x * common(call, "scale", &shape, 0.0)?.recip()).round();
    let whole = whole + common(call, "zero_point", &shape, shift)?;
    let (least, most) = (call.number("quant_min")? - shift, call.number("quant_max")? - shift);
    // Bytes have bounds themselves.
    let bounded = if (least, most) == (-128.0, 127.0) { whole } else { whole.clamp(least, most) };
    one(bounded.cast(DType::I8))
}

fn dequantized(call: &Call<'_>) -> Built {
    let x = call.tensor("input")?;
    let shape = x.shape();
    let centred = x.cast(DType::F32) - common(call, "zero_point", &shape, shift(call)?)?;
    let real = centred * common(call, "scale", &shape, 0.0)?;
    one(as_dtype(&real, call.result()?.dtype))
}

fn chosen(call: &Call<'_>) -> Built {
    let x = as_dtype(&call.tensor("input")?, DType::F32);
    let axes: Vec<isize> = (0..x.rank() as isize).collect();
    let (least, most) = (call.number("quant_min")?, call.number("quant_max")?);
    let (smallest, largest) = (x.min(&axes).minimum(0.0), x.max(&axes).maximum(0.0));
    let scale = ((largest - &smallest) / (most - least)).maximum(call.number("eps")?);
    let zero = (least - (smallest / &scale).round()).clamp(least, most);
    let [of_scale, of_zero] = call.results else { return Err("it has two results".into()) };
    let typed = |x: &Tensor, ty: &TensorType| as_dtype(x, ty.dtype).reshape(ty.shape.clone());
    Ok(vec![typed(&scale, of_scale), typed(&zero, of_zero)])
}
