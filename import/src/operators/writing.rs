//! Operators that write a part of a tensor: the result is a tensor of its own. Of several values for one place the last one counts, where
//! PyTorch leaves it open.

use super::indexing::Indexed;
use super::{Operator, one, row};
use crate::call::{Built, Call, Fault};
use kernfusion::trace::{Sorted, Tensor};
use kernfusion_ir::DType;
use std::ops::Range;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.index_put.default",      "self with values at indices, added if accumulate", index_put),
    row("aten.index_fill.int_Scalar",  "self with value at index along dim",          index_fill),
    row("aten.index_add.default",      "self plus alpha · source at index along dim",  index_add),
    row("aten.scatter.src",            "self with self[index[i][j]][j] = src[i][j], along dim", scatter),
    row("aten.scatter.value",          "self with self[index[i][j]][j] = value, along dim", scatter),
    row("aten.scatter_add.default",    "self with self[index[i][j]][j] += src[i][j], along dim", scatter_add),
    row("aten.select_scatter.default", "self with src at index along dim",            select_scatter),
    row("aten.slice_scatter.default",  "self with src from start to end along dim",   slice_scatter),
    row("aten.copy.default",           "src in the shape and dtype of self",          copied),
];

/// What is written to rows of a table.
pub(super) enum Rows {
    /// Each its own, `[rows, ..]`.
    Each(Tensor),
    /// The same number everywhere.
    Number(Tensor),
}

/// `[n, ..]` with rows at `places`, `i32[m]`.
pub(super) fn written(table: &Tensor, places: &Tensor, rows: Rows) -> Tensor {
    let extent = table.dim(0);
    let column = [vec![extent], vec![1; table.rank() - 1]].concat();
    let hit = |counted: &Tensor, places: &Tensor| {
        counted.scatter_add(0, extent, places).gt(0).reshape(column.clone())
    };
    match rows {
        Rows::Number(number) => {
            let ones = table.trace().full(places.shape(), 1.0, DType::I32);
            hit(&ones, places).select(number, table)
        }
        Rows::Each(rows) => {
            // In the order of places, in which equal ones keep their order: the last of them stays.
            let order = places.argsort(0, Sorted::Ascending);
            let sorted = places.gather(0, &order);
            let end = table.trace().full([1], -1.0, DType::I32);
            let next = table.trace().concat(&[&sorted.slice(0, 1..sorted.dim(0)), &end], 0);
            let is_last = sorted.ne(next);
            let own = is_last.reshape([vec![sorted.dim(0)], vec![1; table.rank() - 1]].concat());
            let sum = added(&own.select(rows.gather(0, &order), 0.0), &sorted, extent);
            hit(&is_last.cast(DType::I32), &sorted).select(sum, table)
        }
    }
}

/// The sums of rows at each of `extent` places.
pub(super) fn added(rows: &Tensor, places: &Tensor, extent: usize) -> Tensor {
    match rows.dtype() {
        DType::Bool => rows.cast(DType::I32).scatter_add(0, extent, places).cast(DType::Bool),
        _ => rows.scatter_add(0, extent, places),
    }
}

fn index_put(call: &Call<'_>) -> Built {
    let (x, values, indices) =
        (call.as_result("self")?, call.as_result("values")?, call.optional_tensors("indices")?);
    let is_added = call.flag_or("accumulate", false)?;
    if let [Some(mask)] = indices.as_slice()
        && mask.dtype() == DType::Bool
        && !is_added
    {
        return masked(&x, mask, &values);
    }
    put(&x, &values, indices, is_added)
}

/// `x` with values at indices, or with these added.
pub(super) fn put(x: &Tensor, values: &Tensor, indices: Vec<Option<Tensor>>, is_added: bool) -> Built {
    let Some(indexed) = Indexed::new(x, indices)? else { return Err("there is no index".into()) };
    let table = indexed.table(x);
    let places = indexed.place.reshape([-1]);
    let rows = || {
        let all = indexed.as_rows(&values.broadcast_to(indexed.result_shape()));
        all.reshape([&[places.dim(0)], &table.shape()[1..]].concat())
    };
    let result = match (is_added, values.rank()) {
        (true, _) => &table + added(&rows(), &places, table.dim(0)),
        (false, 0) => written(&table, &places, Rows::Number(values.clone())),
        (false, _) => written(&table, &places, Rows::Each(rows())),
    };
    one(indexed.restored(&result))
}

/// One value where a mask of the first axes holds.
fn masked(x: &Tensor, mask: &Tensor, value: &Tensor) -> Built {
    if value.ty().elements() != 1 || mask.rank() > x.rank() {
        return Err("a mask chooses elements, so that the number of values is known only at run time".into());
    }
    let wide = [mask.shape(), vec![1; x.rank() - mask.rank()]].concat();
    one(mask.reshape(wide).select(value.reshape(Vec::<usize>::new()), x))
}

fn index_fill(call: &Call<'_>) -> Built {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let axis = call.axis("dim", 0, x.rank())?.unsigned_abs();
    let mut indices = vec![None; axis];
    indices.push(Some(index));
    put(&x, &call.operand("value", x.dtype())?, indices, false)
}

fn index_add(call: &Call<'_>) -> Built {
    let (x, rows, index) = (call.tensor("self")?, call.as_result("source")?, call.tensor("index")?);
    let axis = call.axis("dim", 0, x.rank())?;
    let alpha = call.number_or("alpha", 1.0)?;
    let rows = if alpha == 1.0 { rows } else { rows * alpha };
    one(&x + rows.scatter_add(axis, x.dim(axis), &index))
}

fn indexed_places(call: &Call<'_>, x: &Tensor) -> Result<(Tensor, Vec<usize>), Fault> {
    places(x, &call.tensor("index")?, call.axis("dim", 0, x.rank())?.unsigned_abs())
}

/// Where `self[index[i][j]][j]` stands among all elements of self, for each element of the index.
pub(super) fn places(x: &Tensor, index: &Tensor, axis: usize) -> Result<(Tensor, Vec<usize>), Fault> {
    let (shape, extents) = (index.shape(), x.shape());
    let fits = shape.len() == extents.len()
        && !shape.is_empty()
        && (0..shape.len()).all(|at| at == axis || shape[at] <= extents[at]);
    if !fits {
        return Err(format!("an index {shape:?} for {extents:?}"));
    }
    let (mut place, mut stride) = (x.trace().full(shape.clone(), 0.0, DType::I32), 1);
    for at in (0..shape.len()).rev() {
        let along = if at == axis { index.clone() } else { x.trace().iota(shape.clone(), at, DType::I32) };
        place = place + if stride == 1 { along } else { along * stride as f64 };
        stride *= extents[at];
    }
    Ok((place.reshape([-1]), shape))
}

/// The elements of `src` that the index has, in its order.
fn sources(call: &Call<'_>, shape: &[usize]) -> Result<Tensor, Fault> {
    let mut src = call.as_result("src")?;
    if src.rank() != shape.len() {
        return Err("src and index have other numbers of axes".into());
    }
    for (axis, &extent) in shape.iter().enumerate() {
        src = src.slice(axis as isize, 0..extent);
    }
    Ok(src.reshape([-1]))
}

fn scatter(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let (places, shape) = indexed_places(call, &x)?;
    let rows = match call.optional_tensor("src")? {
        Some(_) => Rows::Each(sources(call, &shape)?),
        None => Rows::Number(call.operand("value", x.dtype())?),
    };
    call.in_shape(&written(&x.reshape([-1]), &places, rows))
}

fn scatter_add(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let (places, shape) = indexed_places(call, &x)?;
    let sums = added(&sources(call, &shape)?, &places, x.ty().elements());
    one(&x + sums.reshape(x.shape()))
}

fn select_scatter(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let (index, extent) = (call.int("index")?, x.dim(axis) as i64);
    let place = usize::try_from(if index < 0 { index.saturating_add(extent) } else { index });
    let place = place.map_err(|_| format!("there is no index {index} among {extent}"))?;
    one(with_part(&x, axis, place, &call.as_result("src")?.unsqueeze(axis)))
}

fn slice_scatter(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let Range { start, end } = super::movement::bounds(call, x.dim(axis))?;
    let part = call.as_result("src")?;
    match call.int_or("step", 1)? {
        1 => one(with_part(&x, axis, start, &part)),
        step @ 2.. => {
            let inside = x.slice(axis, start..end);
            one(with_part(&x, axis, start, &with_every(&inside, axis, step, &part)?))
        }
        step => Err(format!("there is no step of {step}")),
    }
}

/// `x` with the indices 0, step, 2·step, … of an axis in `part`.
fn with_every(x: &Tensor, axis: isize, step: i64, part: &Tensor) -> Result<Tensor, Fault> {
    let extent = x.dim(axis);
    let step = usize::try_from(step).unwrap_or(usize::MAX).min(extent.max(1));
    if part.dim(axis) != extent.div_ceil(step) {
        return Err(format!("{} parts for every {step} of {extent}", part.dim(axis)));
    }
    // Each part, and what lies behind it up to the next one.
    let mut around = vec![(0, 0); x.rank() + 1];
    around[axis.unsigned_abs() + 1].1 = step - 1;
    let mut shape = x.shape();
    shape[axis.unsigned_abs()] = part.dim(axis) * step;
    let apart = part.unsqueeze(axis + 1).pad(&around, 0.0).reshape(shape).slice(axis, 0..extent);
    let mut along = vec![1; x.rank()];
    along[axis.unsigned_abs()] = extent;
    let place = x.trace().arange(extent, DType::F32);
    let is_part = (&place - (&place / step as f64).floor() * step as f64).eq(0.0).reshape(along);
    Ok(is_part.broadcast_to(x.shape()).select(apart, x))
}

/// `x` with a part in place of what it has from `start` along an axis.
fn with_part(x: &Tensor, axis: isize, start: usize, part: &Tensor) -> Tensor {
    let (end, extent) = (start.saturating_add(part.dim(axis)), x.dim(axis));
    let around = [x.slice(axis, 0..start), part.clone(), x.slice(axis, end..extent.max(end))];
    let parts: Vec<_> = around.iter().filter(|part| part.dim(axis) > 0).collect();
    x.trace().concat(&parts, axis)
}

fn copied(call: &Call<'_>) -> Built {
    one(call.as_result("src")?.broadcast_to(call.result()?.shape.clone()))
}
