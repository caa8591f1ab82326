//! Operators that read at places which are known only at run time. Indices are `i32`, clamped into what they index.

use super::{Operator, one, row};
use crate::call::{Built, Call, as_dtype};
use kernfusion::trace::{Sorted, Tensor};
use kernfusion_ir::DType;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.embedding.default",    "the rows of weight at indices; no gradient for that of padding_idx", embedding),
    row("aten.index_select.default", "the parts at index along dim",                   index_select),
    row("aten.gather.default",       "out[i][j] = self[index[i][j]][j], along dim",     gathered),
    row("aten.index.Tensor",         "the elements at indices, which broadcast, one for each axis", indexed),
    row("aten.tril.default",         "matrices with zeros above the diagonal",         |call| one(call.tensor("self")?.tril(diagonal(call)?))),
    row("aten.triu.default",         "matrices with zeros below the diagonal",         |call| one(call.tensor("self")?.triu(diagonal(call)?))),
    row("aten.topk.default",         "the k largest along dim, and their indices",     largest),
    row("aten.sort.default",         "the elements along dim in order, and their indices", sorted),
];

fn embedding(call: &Call<'_>) -> Built {
    let rows = call.tensor("weight")?.gather(0, &call.tensor("indices")?);
    let padding = call.int_or("padding_idx", -1)?;
    if padding < 0 {
        return one(rows);
    }
    let is_padding = call.tensor("indices")?.eq(padding as f64).unsqueeze(-1);
    one(is_padding.select(rows.stop_gradient(), rows))
}

fn index_select(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    one(x.gather(axis, &call.tensor("index")?))
}

fn gathered(call: &Call<'_>) -> Built {
    let (mut x, index) = (call.tensor("self")?, call.tensor("index")?);
    if x.rank() != index.rank() || x.rank() == 0 {
        return Err("self and index have other numbers of axes".into());
    }
    let axis = call.axis("dim", 0, x.rank())?;
    for other in (0..x.rank() as isize).filter(|&other| other != axis) {
        x = x.slice(other, 0..index.dim(other));
    }
    one(x.transpose(axis, -1).pick_in_rows(&index.transpose(axis, -1)).transpose(axis, -1))
}

/// The indexed axes become one, in front; indices of several axes become one as well.
fn indexed(call: &Call<'_>) -> Built {
    let (x, indices) = (call.tensor("self")?, call.optional_tensors("indices")?);
    let axes: Vec<usize> = (0..indices.len()).filter(|&axis| indices[axis].is_some()).collect();
    let (Some(&first), Some(&last)) = (axes.first(), axes.last()) else { return one(x) };
    if indices.len() > x.rank() {
        return Err(format!("{} indices for {} axes", indices.len(), x.rank()));
    }
    let all: Vec<_> = indices.into_iter().flatten().collect();
    if all.iter().any(|index| !index.dtype().is_integer()) {
        return Err("a mask chooses elements, so that the shape is known only at run time".into());
    }
    let mut place: Option<Tensor> = None;
    for (&axis, index) in axes.iter().zip(&all) {
        let extent = x.shape()[axis] as f64;
        // Counted from the end, if negative.
        let index = index.lt(0).select(index + extent, index);
        place = Some(match place {
            None => index,
            Some(place) => place * extent + index,
        });
    }
    let place = place.ok_or("there is no index")?;
    // Indices of neighbouring axes stay where they are; others come first.
    let neighbours = last - first + 1 == axes.len();
    let before: Vec<usize> = if neighbours { (0..first).collect() } else { vec![] };
    let after = (0..x.rank()).filter(|axis| !axes.contains(axis) && !before.contains(axis));
    let order: Vec<usize> = before.iter().copied().chain(axes.iter().copied()).chain(after).collect();
    let shape = x.shape();
    let flat: usize = axes.iter().map(|&axis| shape[axis]).product();
    let kept =
        |range: std::ops::Range<usize>| order[range].iter().map(|&axis| shape[axis]).collect::<Vec<_>>();
    let flattened =
        [kept(0..before.len()), vec![flat], kept(before.len() + axes.len()..order.len())].concat();
    let is_ordered = order.is_sorted();
    let x = if is_ordered { x } else { x.permute(&order) };
    let x = if axes.len() == 1 { x } else { x.reshape(flattened) };
    one(x.gather(before.len() as isize, &place))
}

fn diagonal(call: &Call<'_>) -> Result<i32, String> {
    let diagonal = call.int_or("diagonal", 0)?;
    i32::try_from(diagonal).map_err(|_| format!("there is no diagonal {diagonal}"))
}

fn order(call: &Call<'_>, name: &str, default: bool) -> Result<Sorted, String> {
    Ok(if call.flag_or(name, default)? { Sorted::Descending } else { Sorted::Ascending })
}

fn largest(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let (axis, k) = (call.axis("dim", -1, x.rank())?, call.int("k")?);
    let count = usize::try_from(k).map_err(|_| format!("there are no {k} largest"))?;
    let indices = x.argsort(axis, order(call, "largest", true)?).narrow(axis, 0, count);
    let rows = x.transpose(axis, -1);
    let picked = rows.pick_in_rows(&indices.transpose(axis, -1)).transpose(axis, -1);
    Ok(vec![picked, as_dtype(&indices, DType::I32)])
}

fn sorted(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", -1, x.rank())?;
    let order = order(call, "descending", false)?;
    Ok(vec![x.sort(axis, order), x.argsort(axis, order)])
}
