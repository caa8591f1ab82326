//! The types of results where a function looks at them: an ONNX file need not have them.

use super::element_type;
use super::functions::{extent, splits};
use crate::call::{Call, Fault};
use kernfusion_ir::{DType, TensorType, broadcast_shape};

/// The types of results that a function looks at; none, if it looks at none.
pub(super) type Types = fn(&Call<'_>) -> Result<Vec<TensorType>, Fault>;

pub(super) fn unseen(_: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    Ok(vec![])
}

/// That of `self`.
pub(super) fn like_self(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    Ok(vec![call.tensor("self")?.ty()])
}

/// That of `input` for each result.
pub(super) fn like_input(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    Ok(vec![call.tensor("input")?.ty(); call.node.outputs.len()])
}

/// The dtype of `like` in the shape of `self`.
pub(super) fn like(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    Ok(vec![call.tensor("self")?.ty().with_dtype(call.tensor("like")?.dtype())])
}

/// The dtype that the attribute `to` says.
pub(super) fn cast(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    Ok(vec![call.tensor("self")?.ty().with_dtype(element_type(call.int("to")?)?.0)])
}

fn both(x: &TensorType, y: &TensorType) -> Result<TensorType, Fault> {
    let shape = broadcast_shape(&x.shape, &y.shape).ok_or_else(|| format!("{x} and {y} do not broadcast"))?;
    Ok(x.with_shape(shape))
}

/// What `self` and `other` broadcast to.
pub(super) fn broadcast(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    Ok(vec![both(&call.tensor("self")?.ty(), &call.tensor("other")?.ty())?])
}

/// What `condition`, `self` and `other` broadcast to.
pub(super) fn chosen(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let [own] = &broadcast(call)?[..] else { return Err("it has no operands".into()) };
    Ok(vec![both(own, &call.tensor("condition")?.ty())?])
}

/// `self` in another shape.
fn reshaped(call: &Call<'_>, shape: Vec<usize>) -> Result<Vec<TensorType>, Fault> {
    let ty = call.tensor("self")?.ty().with_shape(shape);
    ty.fault().map_or(Ok(vec![ty]), Err)
}

/// The shape `size`, in which 0 is the extent of `self` (unless `allowzero`), and −1 what is left.
pub(super) fn reshape(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let own = call.tensor("self")?.ty();
    let mut size = call.ints("size")?;
    if !call.flag_or("allowzero", false)? {
        for (at, size) in size.iter_mut().enumerate().filter(|(_, size)| **size == 0) {
            *size = *own.shape.get(at).ok_or_else(|| format!("{own} has no axis {at}"))? as i64;
        }
    }
    let fails = || format!("{own} has no shape {size:?}");
    let known = size.iter().filter(|&&size| size != -1).map(|&size| usize::try_from(size).ok());
    let product = known.into_iter().try_fold(1, |product: usize, size| product.checked_mul(size?));
    let product = product.ok_or_else(fails)?;
    let left = own.elements().checked_div(product).unwrap_or(0);
    let shape: Vec<_> = size.iter().map(|&size| usize::try_from(size).unwrap_or(left)).collect();
    let elements = shape.iter().try_fold(1, |product: usize, &extent| product.checked_mul(extent));
    if elements != Some(own.elements()) || size.iter().filter(|&&size| size == -1).count() > 1 {
        return Err(fails());
    }
    reshaped(call, shape)
}

/// Axes before `axis` as one, and those from it on.
pub(super) fn flatten(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let own = call.tensor("self")?.shape();
    let axis = call.int("axis")?;
    let axis = if axis < 0 { axis.saturating_add(own.len() as i64) } else { axis };
    let axis = usize::try_from(axis).ok().filter(|&axis| axis <= own.len());
    let (before, after) = own.split_at(axis.ok_or("it has no such axis")?);
    reshaped(call, vec![before.iter().product(), after.iter().product()])
}

/// Without the axes `dim`; without all of extent 1, if there are none.
pub(super) fn squeeze(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let own = call.tensor("self")?.shape();
    let axes = match call.optional_ints("dim")? {
        Some(axes) if axes.is_empty() => vec![],
        Some(_) => call.axes("dim", own.len())?,
        None => (0..own.len()).filter(|&axis| own[axis] == 1).map(|axis| axis as isize).collect(),
    };
    let kept = (0..own.len()).filter(|&axis| !axes.contains(&(axis as isize)));
    reshaped(call, kept.map(|axis| own[axis]).collect())
}

/// With axes of extent 1, which are `dim` of the result.
pub(super) fn unsqueeze(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let (own, dims) = (call.tensor("self")?.shape(), call.ints("dim")?);
    let rank = own.len() + dims.len();
    let new = if dims.is_empty() { vec![] } else { call.axes("dim", rank)? };
    let mut own = own.into_iter();
    let extent = |axis: usize| if new.contains(&(axis as isize)) { Some(1) } else { own.next() };
    let shape: Option<Vec<_>> = (0..rank).map(extent).collect();
    reshaped(call, shape.ok_or("an axis is named twice")?)
}

/// What `self` and the shape `size` broadcast to.
pub(super) fn expand(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let own = call.tensor("self")?.ty();
    let size = call.ints("size")?.into_iter().map(extent).collect::<Result<Vec<_>, _>>()?;
    let shape = broadcast_shape(&own.shape, &size);
    reshaped(call, shape.ok_or_else(|| format!("{own} does not broadcast to {size:?}"))?)
}

/// Each axis `repeats` times.
pub(super) fn tile(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let own = call.tensor("self")?.ty();
    let repeats = call.ints("repeats")?.into_iter().map(extent).collect::<Result<Vec<_>, _>>()?;
    if repeats.len() != own.rank() {
        return Err(format!("{} repeats for {own}", repeats.len()));
    }
    let shape = own.shape.iter().zip(repeats).map(|(&own, times)| own.saturating_mul(times));
    reshaped(call, shape.collect())
}

/// Parts one after another along `dim`.
pub(super) fn split(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let own = call.tensor("self")?.ty();
    let axis = call.axis("dim", 0, own.rank())?.unsigned_abs();
    let whole = *own.shape.get(axis).ok_or("a scalar has no parts")?;
    let part = |size: usize| {
        let mut shape = own.shape.clone();
        shape[axis] = size;
        own.with_shape(shape)
    };
    let sizes = splits(call, whole)?;
    match sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)) {
        Some(sum) if sum == whole => Ok(sizes.into_iter().map(part).collect()),
        _ => Err(format!("parts of {sizes:?} are not {whole}")),
    }
}

/// `tensors` one after another along `dim`.
pub(super) fn concat(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let types: Vec<_> = call.tensors("tensors")?.iter().map(|tensor| tensor.ty()).collect();
    let mut ty = types.first().ok_or("it has no operands")?.clone();
    let axis = call.axis("dim", 0, ty.rank())?.unsigned_abs();
    let extents = types.iter().map(|ty| ty.shape.get(axis).copied());
    let whole = extents.into_iter().try_fold(0, |sum: usize, extent| sum.checked_add(extent?));
    *ty.shape.get_mut(axis).ok_or("scalars are not concatenated")? =
        whole.ok_or("its operands do not fit")?;
    Ok(vec![ty])
}

/// Without the axes `dim`, or with 1 in their place.
pub(super) fn reduced(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let own = call.tensor("self")?.ty();
    let is_named = call.optional_ints("dim")?.is_some_and(|axes| !axes.is_empty());
    if !is_named && call.flag_or("noop_with_empty_axes", false)? {
        return Err("it reduces no axes".into());
    }
    let axes = call.axes("dim", own.rank())?;
    let keeps = call.flag_or("keepdim", true)?;
    let extent = |(axis, &extent): (usize, &usize)| match axes.contains(&(axis as isize)) {
        true => keeps.then_some(1),
        false => Some(extent),
    };
    Ok(vec![own.with_shape(own.shape.iter().enumerate().filter_map(extent).collect::<Vec<_>>())])
}

/// As `reduced`, of indices.
pub(super) fn index_of_extreme(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    Ok(reduced(call)?.into_iter().map(|ty| ty.with_dtype(DType::I32)).collect())
}

/// An axis for each letter of the result, whose extent some operand has.
pub(super) fn einsum(call: &Call<'_>) -> Result<Vec<TensorType>, Fault> {
    let equation = call.word_or("equation", "")?;
    let first = call.tensors("tensors")?.first().map(|tensor| tensor.dtype());
    let dtype = first.ok_or("it has no operands")?;
    if equation.contains('.') {
        return Err("an ellipsis is not known".into());
    }
    let letters = equation.split_once("->").map_or("", |(_, result)| result).trim();
    Ok(vec![TensorType::new(dtype, vec![1; letters.chars().filter(|c| !c.is_whitespace()).count()])])
}
