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

/// A number, or a tensor of numbers, which are for all elements of that shape, or for each index of an axis.
enum Common {
    Number(f64),
    Tensor(Tensor),
}

impl Common {
    fn of(call: &Call<'_>, name: &str, shape: &[usize]) -> Result<Self, Fault> {
        // Those of channels have names in the plural.
        let name = if call.has(name) { name.to_string() } else { format!("{name}s") };
        if !call.is_tensor(&name) {
            return Ok(Common::Number(call.number(&name)?));
        }
        let value = as_dtype(&call.tensor(&name)?, DType::F32);
        let own = value.shape();
        let mut spread = vec![1; if call.has("axis") { shape.len() } else { 0 }];
        if call.has("axis") {
            let place = axis(call.int("axis")?, shape.len())?.unsigned_abs();
            spread[place] = own.iter().product();
            if shape.get(place) != spread.get(place) {
                return Err(format!("{name} of shape {own:?} is not along axis {place} of {shape:?}"));
            }
        } else if own.iter().product::<usize>() != 1 {
            return Err(format!("{name} of shape {own:?} is no number"));
        }
        Ok(Common::Tensor(value.reshape(spread)))
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
    let shape = x.shape();
    let scaled = match Common::of(call, "scale", &shape)? {
        Common::Number(scale) => &x * (1.0 / scale),
        Common::Tensor(scale) => &x * scale.recip(),
    };
    let shift = shift(call)?;
    let whole = match Common::of(call, "zero_point", &shape)? {
        Common::Number(zero) => scaled.round() + (zero - shift),
        Common::Tensor(zero) => scaled.round() + (zero - shift),
    };
    let (least, most) = (call.number("quant_min")? - shift, call.number("quant_max")? - shift);
    // Bytes have bounds themselves.
    let bounded = if (least, most) == (-128.0, 127.0) { whole } else { whole.clamp(least, most) };
    one(bounded.cast(DType::I8))
}

fn dequantized(call: &Call<'_>) -> Built {
    let x = call.tensor("input")?;
    let (shape, shift) = (x.shape(), shift(call)?);
    let wide = x.cast(DType::F32);
    let centred = match Common::of(call, "zero_point", &shape)? {
        Common::Number(zero) if zero == shift => wide,
        Common::Number(zero) => wide - (zero - shift),
        Common::Tensor(zero) if shift == 0.0 => wide - zero,
        Common::Tensor(zero) => wide - (zero - shift),
    };
    let real = match Common::of(call, "scale", &shape)? {
        Common::Number(scale) => centred * scale,
        Common::Tensor(scale) => centred * scale,
    };
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
