//! Operators that onnxruntime puts in the place of several others (`com.microsoft`): its optimizer, and its quantization tools.
//!
//! They are what its `docs/ContribOperators.md` says.

use super::quantization::{IN_GROUPS, PACKED, PACKED_ZEROS, TRIPLES, along, dynamic_bytes, nearest, real};
use crate::call::{Built, Call, Fault, as_dtype};
use crate::operators::normalization::{affine, working};
use crate::operators::{one, product};
use kernfusion::passes::{GROUP, HALF_BYTE_OFFSET};
use kernfusion::trace::Tensor;
use kernfusion_ir::DType;

/// The operator whose matrix is half bytes.
pub(crate) const MATRIX_OF_HALF_BYTES: &str = "com.microsoft::MatMulNBits";

/// A value plus an operand, if there is one.
fn plus(call: &Call<'_>, x: Tensor, name: &str) -> Result<Tensor, Fault> {
    Ok(match call.optional_tensor(name)? {
        Some(bias) => &x + as_dtype(&bias, x.dtype()),
        None => x,
    })
}

/// A function of an operand plus its bias.
pub(super) fn biased(call: &Call<'_>, f: impl Fn(&Tensor) -> Tensor) -> Built {
    one(f(&plus(call, call.tensor("input")?, "bias")?))
}

/// A normalised sum; what it was divided by, and the sum itself.
pub(super) fn skip_norm(call: &Call<'_>, is_centred: bool) -> Built {
    let sum = call.tensor("input")? + call.tensor("skip")?;
    let (sum, epsilon) = (plus(call, sum, "added")?, call.number("eps")?);
    let x = working(&sum);
    let width = [x.shape().last().copied().ok_or("a scalar is not normalised")?];
    let square = if is_centred { x.var_keep(&[-1]) } else { x.square().mean_keep(&[-1]) };
    let deviation = (square + epsilon).sqrt().recip();
    let normal = if is_centred { x.normalize(&[-1], epsilon) } else { &x * &deviation };
    Ok(vec![affine(call, normal, &width)?, x.mean_keep(&[-1]), deviation, sum])
}

pub(super) fn fused_product(call: &Call<'_>) -> Built {
    let side = |name: &str, is_transposed| {
        let x = call.tensor(name)?;
        Ok::<_, Fault>(match call.flag_or(is_transposed, false)? && x.rank() > 1 {
            true => x.transpose(-1, -2),
            false => x,
        })
    };
    let product = product::multiplied(&side("self", "transA")?, &side("other", "transB")?);
    let alpha = call.number_or("alpha", 1.0)?;
    one(if alpha == 1.0 { product } else { product * alpha })
}

/// A product with bytes of what is rounded to bytes in each run.
pub(super) fn dynamic_product(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let (bytes, scale, zero) = dynamic_bytes(call, &x);
    let x = (bytes.cast(x.dtype()) - zero) * scale;
    one(plus(call, product::multiplied(&x, &real(call, "other", -1)?), "bias")?)
}

pub(super) fn product_of_bytes(call: &Call<'_>) -> Built {
    let [x, y] = [("self", -2), ("other", -1)].map(|(name, at)| real(call, name, at));
    one(plus(call, product::multiplied(&x?, &y?), "bias")?)
}

/// A product with the transpose of a matrix of half bytes: of each row blocks of numbers with a scale and a zero point, which is 8 if there is none.
pub(super) fn product_of_half_bytes(call: &Call<'_>) -> Built {
    let [rows, columns, block] = ["N", "K", "block_size"]
        .map(|name| usize::try_from(call.int(name)?).map_err(|_| format!("{name} is negative")));
    let (rows, columns, block) = (rows?, columns?, block?);
    let (x, scales) = (call.tensor("self")?, call.tensor("scales")?);
    if block < 16 || !block.is_power_of_two() || call.has("g_idx") {
        return Err("blocks are of 16, 32, 64, … numbers in their order".into());
    }
    if rows == 0 {
        return Err("its matrix has no rows".into());
    }
    let blocks = columns.div_ceil(block);
    let zeros = match call.optional_tensor(PACKED_ZEROS)? {
        None => None,
        Some(zeros) if zeros.dtype().is_float() => Some(reshaped(&zeros, &[rows, blocks])?),
        Some(_) => {
            let padded = blocks.next_multiple_of(2);
            Some(halves(call, PACKED_ZEROS, scales.dtype(), &[rows, padded])?.slice(1, 0..blocks))
        }
    };
    if call.flag_or(IN_GROUPS, false)? {
        let y = product_of_groups(&as_dtype(&x, DType::F32), &call.tensor(PACKED)?, &scales, zeros)?;
        return one(plus(call, as_dtype(&y, x.dtype()), "bias")?);
    }
    let numbers = halves(call, PACKED, scales.dtype(), &[rows, blocks, block])?;
    let zeros = zeros.unwrap_or_else(|| call.trace.full([rows, blocks], OFFSET, scales.dtype()));
    let weight = (numbers - zeros.unsqueeze(-1)) * reshaped(&scales, &[rows, blocks, 1])?;
    let weight = weight.reshape([rows, blocks * block]).slice(1, 0..columns);
    one(plus(call, x.linear(&as_dtype(&weight, x.dtype())), "bias")?)
}

/// What is taken from half bytes that have no zero point.
const OFFSET: f64 = HALF_BYTE_OFFSET as f64;

/// x · wᵀ, where w is half bytes in groups, each with a scale, and in blocks of groups with a zero point. What zero points are less than the 8 that is taken
/// from all half bytes is multiplied with the sums of x over blocks.
fn product_of_groups(
    x: &Tensor,
    bytes: &Tensor,
    scales: &Tensor,
    zeros: Option<Tensor>,
) -> Result<Tensor, Fault> {
    let y = x.linear(&bytes.half_bytes(scales));
    let Some(zeros) = zeros else { return Ok(y) };
    let [rows, blocks, groups] = [zeros.dim(0), zeros.dim(1), scales.dim(1)];
    let of_blocks = scales.reshape([rows, blocks, groups / blocks]).slice(2, 0..1).squeeze(2);
    let missing = (-as_dtype(&zeros, DType::F32) + OFFSET) * of_blocks;
    let [outer @ .., columns] = &x.shape()[..] else { return Err("a scalar is no row".into()) };
    if *columns != groups * GROUP {
        return Err(format!("rows have {columns} numbers, and those of the matrix {}", groups * GROUP));
    }
    let sums = x.reshape([outer, &[blocks, columns / blocks]].concat()).sum(&[-1]);
    Ok(y + sums.linear(&missing))
}

/// A tensor in another shape, if it has as many elements.
fn reshaped(x: &Tensor, shape: &[usize]) -> Result<Tensor, Fault> {
    let elements = shape.iter().try_fold(1_usize, |elements, &extent| elements.checked_mul(extent));
    match elements == Some(x.ty().elements()) {
        true => Ok(x.reshape(shape)),
        false => Err(format!("a tensor of the shape {:?} is not of the shape {shape:?}", x.shape())),
    }
}

/// The numbers of half bytes, the lower half of each byte first, which is `uint8` and so kept less 128.
fn halves(call: &Call<'_>, name: &str, dtype: DType, shape: &[usize]) -> Result<Tensor, Fault> {
    let [outer @ .., last] = shape else { return Err("a scalar is no half bytes".into()) };
    let bytes = reshaped(&call.tensor(name)?, &[outer, &[last / 2, 1]].concat())?.cast(dtype) + 128.0;
    let upper = (&bytes * (1.0 / 16.0)).floor();
    let lower = bytes - &upper * 16.0;
    Ok(call.trace.concat(&[&lower, &upper], -1).reshape(shape))
}

/// As bytes, if there is a scale for them. The bias has whole numbers, of which each is a product of both scales.
pub(super) fn quantized_gemm(call: &Call<'_>) -> Built {
    let is_transposed = |name: &str| call.flag_or(name, false);
    let side = |name: &str, transposed: &str, columns: i64| {
        let is_transposed = is_transposed(transposed)?;
        let x = real(call, name, if is_transposed { 1 - columns } else { columns })?;
        Ok::<_, Fault>(if is_transposed { x.transpose(0, 1) } else { x })
    };
    let mut y = product::multiplied(&side("mat1", "transA", 0)?, &side("mat2", "transB", 1)?);
    if let Some(bias) = call.optional_tensor("self")? {
        let [left, right] = ["mat1_scale", "mat2_scale"].map(|name| along(call, name, &bias.shape(), -1));
        y = &y + as_dtype(&bias, DType::F32) * (left? * right?);
    }
    let alpha = call.number_or("alpha", 1.0)?;
    let y = if alpha == 1.0 { y } else { y * alpha };
    one(if call.has("y_scale") { nearest(call, &y, -1)? } else { y })
}

/// A function of what bytes stand for, as bytes.
pub(super) fn of_bytes(call: &Call<'_>, f: impl Fn(&Tensor) -> Result<Tensor, Fault>) -> Built {
    one(nearest(call, &f(&real(call, "self", -1)?)?, -1)?)
}

pub(super) fn of_two_bytes(call: &Call<'_>, f: impl Fn(&Tensor, Tensor) -> Tensor) -> Built {
    of_bytes(call, |x| Ok(f(x, real(call, "other", -1)?)))
}

pub(super) fn quantized_choice(call: &Call<'_>) -> Built {
    let condition = call.tensor("condition")?;
    of_two_bytes(call, |x, y| condition.select(x, y))
}

pub(super) fn quantized_leaky_relu(call: &Call<'_>) -> Built {
    let alpha = call.number("alpha")?;
    of_bytes(call, |x| Ok(x.ge(0.0).select(x, x * alpha)))
}

pub(super) fn quantized_softmax(call: &Call<'_>) -> Built {
    of_bytes(call, |x| {
        let axis = call.axis("dim", -1, x.rank())?;
        // In older versions over all axes from that one on.
        match call.int_or("opset", 13)? < 13 && axis + 1 != x.rank() as isize {
            true => Err("over several axes, as before version 13, it is not known".into()),
            false => Ok(x.softmax(axis)),
        }
    })
}

/// The mean of each channel.
pub(super) fn quantized_mean(call: &Call<'_>) -> Built {
    of_bytes(call, |x| Ok(x.mean_keep(&(2..x.rank() as isize).collect::<Vec<_>>())))
}

/// Bytes, each with a scale and a zero point, side by side.
pub(super) fn quantized_concat(call: &Call<'_>) -> Built {
    let all = call.tensors(TRIPLES)?;
    let part = |part: &[Tensor]| match part {
        [bytes, scale, zero] => {
            let [scale, zero] = [scale, zero].map(|number| number.reshape(Vec::<usize>::new()));
            Ok((bytes.cast(scale.dtype()) - zero.cast(scale.dtype())) * scale)
        }
        _ => Err("bytes have a scale and a zero point each".to_string()),
    };
    let parts = all.chunks(3).map(part).collect::<Result<Vec<_>, _>>()?;
    let first = parts.first().ok_or("there are no bytes")?;
    let axis = call.axis("dim", 0, first.rank())?;
    let joined = call.trace.concat(&parts.iter().collect::<Vec<_>>(), axis);
    one(nearest(call, &joined, -1)?)
}
