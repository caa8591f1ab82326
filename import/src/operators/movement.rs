//! Operators that change shapes, and take tensors apart and together.

use super::views::{self, View};
use super::{Operator, one, row, view};
use crate::call::{Built, Call, Fault, as_dtype};
use kernfusion::trace::Tensor;
use kernfusion_ir::{DType, TensorType};
use std::ops::Range;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    view("aten.view.default",         "the same elements in the shape size",        reshaped, View::Whole),
    view("aten.reshape.default",      "the same elements in the shape shape",       reshaped, View::Whole),
    view("aten._unsafe_view.default", "the same elements in the shape size",        reshaped, View::Whole),
    view("aten.flatten.using_ints",   "axes start_dim to end_dim as one",           reshaped, View::Whole),
    view("aten.unsqueeze.default",    "an axis of extent 1 at dim",                 reshaped, View::Whole),
    view("aten.squeeze.dim",          "without the axis dim, if its extent is 1",   reshaped, View::Whole),
    view("aten.squeeze.dims",         "without the axes dim of extent 1",           reshaped, View::Whole),
    view("aten.squeeze.default",      "without the axes of extent 1",               reshaped, View::Whole),
    view("aten.unflatten.int",        "the axis dim as axes sizes",                 reshaped, View::Whole),
    view("aten.view_as.default",      "the same elements in the shape of other",    reshaped, View::Whole),
    view("aten.expand_as.default",    "axes of extent 1 repeated, to the shape of other", |call| one(call.tensor("self")?.broadcast_to(call.result()?.shape.clone())), View::Spread),
    view("aten.expand.default",       "axes of extent 1 repeated",                  |call| one(call.tensor("self")?.broadcast_to(call.result()?.shape.clone())), View::Spread),
    view("aten.permute.default",      "the axes in the order dims",                 permuted, views::PERMUTED),
    view("aten.transpose.int",        "axes dim0 and dim1 exchanged",               transposed, views::EXCHANGED),
    view("aten.swapaxes.default",    "axes axis0 and axis1 exchanged",             |call| { let x = call.tensor("self")?; one(x.transpose(call.axis("axis0", 0, x.rank())?, call.axis("axis1", 1, x.rank())?)) }, views::EXCHANGED),
    view("aten.unfold.default",      "windows of size along dimension, step apart, as a new last axis", unfolded, View::Spread),
    row("aten.pixel_shuffle.default", "groups of upscale_factor² channels as squares of positions", shuffled),
    view("aten.broadcast_tensors.default", "tensors, all in the shape to which they broadcast", spread, View::Spread),
    view("aten.meshgrid.indexing",    "each of the vectors along an axis of its own, all of one shape", meshed, View::Spread),
    view("aten.movedim.int",          "the axis source moved to destination",       moved, views::MOVED),
    view("aten.numpy_T.default",      "the axes in reverse",                        |call| { let x = call.tensor("self")?; one(x.permute(&(0..x.rank()).rev().collect::<Vec<_>>())) }, views::EXCHANGED),
    view("aten.t.default",            "a matrix transposed",                        |call| { let x = call.tensor("self")?; one(if x.rank() < 2 { x } else { x.transpose(0, 1) }) }, views::EXCHANGED),
    view("aten.slice.Tensor",         "every step-th index of dim from start to end", sliced, views::SLICE),
    view("aten.narrow.default",       "length indices of dim from start",           narrowed, views::NARROW),
    view("aten.select.int",           "the part at index along dim",                selected, views::PART_AT),
    view("aten.split.Tensor",         "parts of split_size along dim",              pieces, views::PIECE),
    view("aten.split_with_sizes.default", "parts of split_sizes along dim",         pieces, views::PIECE),
    view("aten.tensor_split.sections", "sections parts along dim",                pieces, views::PIECE),
    view("aten.tensor_split.indices", "the parts between indices along dim",      pieces, views::PIECE),
    view("aten.diagonal.default",     "the diagonal of the axes dim1 and dim2, offset above it, as a last axis", diagonal, View::Spread),
    view("aten.chunk.default",        "chunks parts along dim",                     pieces, views::PIECE),
    view("aten.unbind.int",           "the parts at each index along dim",          unbound, views::PART_OF_ALL),
    row("aten.cat.default",          "tensors one after another along dim",        joined),
    row("aten.hstack.default",       "tensors one after another along the second axis, vectors along theirs", |call| { let parts = call.tensors("tensors")?; side_by_side(call, &parts, usize::from(parts.iter().any(|part| part.rank() > 1))) }),
    row("aten.vstack.default",       "tensors one after another along the first axis, vectors as rows", |call| { let rows: Vec<_> = call.tensors("tensors")?.iter().map(as_rows).collect(); side_by_side(call, &rows, 0) }),
    row("aten.native_channel_shuffle.default", "channel g · n/groups + i at i · groups + g", mixed_channels),
    row("aten.stack.default",        "tensors side by side along a new axis dim",  stacked),
    row("aten.repeat.default",       "self repeats times along each axis",         repeated),
    row("aten.repeat_interleave.self_int", "each index of dim repeats times, one after another", interleaved),
    row("aten.roll.default",         "each index of dims moved by shifts, those beyond the end in front", rolled),
    row("aten.pad.default",          "as mode says around self: value, the edge, or a reflection", padded),
    row("aten.constant_pad_nd.default", "value around self, pad before and after from the last axis on", padded),
    row("aten.flip.default",         "the axes dims in reverse",                   flipped),
];

/// The recorded shape says it all.
fn reshaped(call: &Call<'_>) -> Built {
    call.in_shape(&call.tensor("self")?)
}

fn permuted(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axes = call.axes("dims", x.rank())?;
    one(x.permute(&axes.iter().map(|axis| axis.unsigned_abs()).collect::<Vec<_>>()))
}

fn transposed(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    one(x.transpose(call.axis("dim0", 0, x.rank())?, call.axis("dim1", 1, x.rank())?))
}

fn sliced(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let part = x.slice(axis, bounds(call, x.dim(axis))?);
    match call.int_or("step", 1)? {
        1 => one(part),
        step @ 2.. => one(every(&part, axis, step)),
        step => Err(format!("there is no step of {step}")),
    }
}

/// From start to end of an axis of that extent, each counted from its end if negative.
pub(super) fn bounds(call: &Call<'_>, extent: usize) -> Result<Range<usize>, Fault> {
    let extent = extent as i64;
    let place = |at: i64| if at < 0 { at.saturating_add(extent).max(0) } else { at.min(extent) };
    let start = place(call.int_or("start", 0)?);
    let end = place(call.int_or("end", i64::MAX)?).max(start);
    Ok(start as usize..end as usize)
}

/// The indices 0, step, 2·step, … of an axis.
pub(super) fn every(x: &Tensor, axis: isize, step: i64) -> Tensor {
    let (extent, step) = (x.dim(axis), usize::try_from(step).unwrap_or(usize::MAX));
    if step >= extent {
        return x.slice(axis, 0..extent.min(1));
    }
    let mut shape = x.shape();
    let mut around = vec![(0, 0); shape.len()];
    let axis = axis.unsigned_abs();
    let count = extent.div_ceil(step);
    around[axis].1 = count * step - extent;
    shape[axis] = count;
    shape.insert(axis + 1, step);
    let whole = if around[axis].1 == 0 { x.clone() } else { x.pad(&around, 0.0) };
    whole.reshape(shape).index(axis as isize + 1, 0)
}

fn selected(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let (index, extent) = (call.int("index")?, x.dim(axis) as i64);
    let place = if index < 0 { index.saturating_add(extent) } else { index };
    match usize::try_from(place) {
        Ok(place) => one(x.index(axis, place)),
        Err(_) => Err(format!("there is no index {index} among {extent}")),
    }
}

/// Parts one after another along an axis; the recorded types say how long they are.
pub(super) fn pieces(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let mut start = 0;
    let mut pieces = vec![];
    for ty in call.results {
        let length = *ty.shape.get(axis.unsigned_abs()).ok_or("a part has fewer axes")?;
        pieces.push(x.narrow(axis, start, length));
        start = usize::saturating_add(start, length);
    }
    Ok(pieces)
}

fn unbound(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    Ok((0..call.results.len()).map(|at| x.index(axis, at)).collect())
}

fn joined(call: &Call<'_>) -> Built {
    let dtype = call.result()?.dtype;
    let all = call.tensors("tensors")?;
    // A vector without elements fits everywhere, as it always has in PyTorch.
    let parts: Vec<_> =
        all.iter().filter(|part| part.shape() != [0]).map(|part| as_dtype(part, dtype)).collect();
    let Some(first) = parts.first().or(all.first()) else { return Err("there are no tensors".into()) };
    let axis = call.axis("dim", 0, first.rank())?;
    if parts.is_empty() {
        return one(as_dtype(first, dtype));
    }
    one(call.trace.concat(&parts.iter().collect::<Vec<_>>(), axis))
}

fn stacked(call: &Call<'_>) -> Built {
    let parts = call.tensors("tensors")?;
    let rank = parts.first().map_or(0, Tensor::rank);
    let axis = call.axis("dim", 0, rank + 1)?;
    one(call.trace.stack(&parts.iter().collect::<Vec<_>>(), axis))
}

/// A vector, or a number, as a row.
fn as_rows(x: &Tensor) -> Tensor {
    if x.rank() < 2 { x.reshape([1, -1]) } else { x.clone() }
}

fn side_by_side(call: &Call<'_>, parts: &[Tensor], axis: usize) -> Built {
    let dtype = call.result()?.dtype;
    let parts: Vec<_> = parts.iter().map(|part| as_dtype(part, dtype)).collect();
    one(call.trace.concat(&parts.iter().collect::<Vec<_>>(), axis as isize))
}

fn mixed_channels(call: &Call<'_>) -> Built {
    let (x, groups) = (call.tensor("self")?, usize::try_from(call.int("groups")?).unwrap_or(0));
    let shape = x.shape();
    match shape[..] {
        [batch, channels, ..] if groups > 0 && channels.is_multiple_of(groups) => {
            let apart = [&[batch, groups, channels / groups], &shape[2..]].concat();
            call.in_shape(&x.reshape(apart).transpose(1, 2))
        }
        _ => Err(format!("{shape:?} has no {groups} groups of channels")),
    }
}

/// Row i of the diagonal is self[i][i + offset].
fn diagonal(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axes = [call.axis("dim1", 0, x.rank())?, call.axis("dim2", 1, x.rank())?].map(isize::unsigned_abs);
    if axes[0] == axes[1] {
        return Err("dim1 and dim2 are one axis".into());
    }
    let offset = call.int_or("offset", 0)?;
    let [above, below] = [offset, offset.saturating_neg()].map(|by| usize::try_from(by).unwrap_or(0));
    let count = call.result()?.shape.last().copied().unwrap_or(0);
    // The last axis but one are the rows, the last one the columns.
    let others = (0..x.rank()).filter(|axis| !axes.contains(axis));
    let order: Vec<_> = others.chain(axes).collect();
    let square = x.permute(&order).slice(-2, below..below + count).slice(-1, above..above + count);
    let place = |axis| call.trace.iota([count, count], axis, DType::I32);
    one(place(0).eq(place(1)).select(square, 0.0).sum(&[-1]))
}

fn repeated(call: &Call<'_>) -> Built {
    let (x, shape) = (call.tensor("self")?, call.result()?.shape.clone());
    let Some(new) = shape.len().checked_sub(x.rank()) else {
        return Err("it has fewer axes than its operand".into());
    };
    let own = [vec![1; new], x.shape()].concat();
    // Each axis as two: the repetitions, and what is repeated.
    let mut wide = vec![];
    for (&repeated, &extent) in shape.iter().zip(&own) {
        let times = repeated.checked_div(extent).unwrap_or(1);
        wide.extend([times, extent]);
    }
    let narrow: Vec<_> = own.iter().flat_map(|&extent| [1, extent]).collect();
    one(x.reshape(narrow).broadcast_to(wide).reshape(shape))
}

fn moved(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let place = |name| Ok::<_, Fault>(call.axis(name, 0, x.rank())?.unsigned_abs());
    let mut axes: Vec<_> = (0..x.rank()).collect();
    if axes.is_empty() {
        return one(x);
    }
    let axis = axes.remove(place("source")?);
    axes.insert(place("destination")?, axis);
    one(x.permute(&axes))
}

fn unfolded(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dimension", 0, x.rank())?;
    let number = |name| usize::try_from(call.int(name)?).map_err(|_| format!("{name} is negative"));
    let (size, step, extent) = (number("size")?, number("step")?, x.dim(axis));
    if step == 0 || size > extent {
        return Err(format!("{extent} has no windows of {size}, {step} apart"));
    }
    let (windows, last) = ((extent - size) / step + 1, x.rank());
    let place = |axis| call.trace.iota([windows, size], axis, DType::I32);
    let places = place(0) * step as f64 + place(1);
    let rows = x.gather(axis, &places);
    let mut axes: Vec<_> = (0..=last).collect();
    let window = axes.remove(axis.unsigned_abs() + 1);
    axes.push(window);
    one(rows.permute(&axes))
}

fn shuffled(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let factor = usize::try_from(call.int("upscale_factor")?).unwrap_or(0);
    let shape = x.shape();
    let [.., channels, rows, columns] = shape[..] else {
        return Err("it takes [.., channels, rows, columns]".into());
    };
    match factor.checked_mul(factor) {
        Some(square @ 1..) if channels.is_multiple_of(square) => {
            let batch: usize = shape[..shape.len() - 3].iter().product();
            let apart = x.reshape([batch, channels / square, factor, factor, rows, columns]);
            call.in_shape(&apart.permute(&[0, 1, 4, 2, 5, 3]))
        }
        _ => Err(format!("{channels} channels are no squares of {factor}")),
    }
}

fn spread(call: &Call<'_>) -> Built {
    let tensors = call.tensors("tensors")?;
    Ok(tensors.iter().zip(call.results).map(|(x, ty)| x.broadcast_to(ty.shape.clone())).collect())
}

fn meshed(call: &Call<'_>) -> Built {
    let vectors = call.tensors("tensors")?;
    let is_xy = call.word_or("indexing", "ij")? == "xy";
    if call.results.len() != vectors.len() {
        return Err(format!("{} results for {} vectors", call.results.len(), vectors.len()));
    }
    let along = |(at, (x, ty)): (usize, (&Tensor, &TensorType))| {
        let axis = if is_xy && at < 2 && vectors.len() > 1 { 1 - at } else { at };
        let mut column = vec![1; ty.rank()];
        *column.get_mut(axis).ok_or("a result has fewer axes")? = x.ty().elements();
        Ok(x.reshape(column).broadcast_to(ty.shape.clone()))
    };
    vectors.iter().zip(call.results).enumerate().map(along).collect()
}

fn narrowed(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let (start, length) = (call.int("start")?, call.int("length")?);
    let start = if start < 0 { start.saturating_add(x.dim(axis) as i64) } else { start };
    match (usize::try_from(start), usize::try_from(length)) {
        (Ok(start), Ok(length)) => one(x.narrow(axis, start, length)),
        _ => Err(format!("there are no {length} indices from {start}")),
    }
}

fn interleaved(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let (x, axis) = match call.optional_int("dim")? {
        Some(_) => (x.clone(), call.axis("dim", 0, x.rank())?),
        None => (x.reshape([-1]), 0),
    };
    let times = usize::try_from(call.int("repeats")?).map_err(|_| "repeats is negative")?;
    let mut wide = x.shape();
    wide.insert(axis.unsigned_abs() + 1, times);
    call.in_shape(&x.unsqueeze(axis + 1).broadcast_to(wide))
}

fn rolled(call: &Call<'_>) -> Built {
    let mut x = call.tensor("self")?;
    let (shifts, axes) = (call.ints("shifts")?, call.optional_ints("dims")?.unwrap_or_default());
    if axes.len() != shifts.len() || axes.is_empty() {
        return Err("each shift has a dim".into());
    }
    for (axis, shift) in call.axes("dims", x.rank())?.into_iter().zip(shifts) {
        let extent = x.dim(axis);
        let back = shift.rem_euclid(extent.max(1) as i64) as usize;
        if back > 0 {
            let parts = [x.slice(axis, extent - back..extent), x.slice(axis, 0..extent - back)];
            x = call.trace.concat(&[&parts[0], &parts[1]], axis);
        }
    }
    one(x)
}

fn padded(call: &Call<'_>) -> Built {
    let (pad, value) = (call.ints("pad")?, call.number_or("value", 0.0)?);
    padded_around(&call.tensor("self")?, &pad, call.word_or("mode", "constant")?, value)
}

/// As the mode says, around each axis from the last one on: how much before, and how much behind.
pub(super) fn padded_around(x: &Tensor, pad: &[i64], mode: &str, value: f64) -> Built {
    let mut x = x.clone();
    match mode {
        "constant" => {}
        "replicate" | "reflect" => return continued(&x, pad, mode == "reflect"),
        other => return Err(format!("padding by {other} is not known")),
    }
    if !pad.len().is_multiple_of(2) || pad.len() / 2 > x.rank() {
        return Err(format!("{} numbers of padding around {} axes", pad.len(), x.rank()));
    }
    let mut around = vec![(0, 0); x.rank()];
    for (pair, axis) in pad.chunks(2).zip((0..x.rank()).rev()) {
        // Less than nothing takes away.
        let cut = |side: i64| usize::try_from(side.saturating_neg()).unwrap_or(0);
        let (start, end) = (cut(pair[0]), x.dim(axis as isize).saturating_sub(cut(pair[1])));
        x = x.slice(axis as isize, start..end.max(start));
        let added = |side: i64| usize::try_from(side).unwrap_or(0);
        around[axis] = (added(pair[0]), added(pair[1]));
    }
    one(x.pad(&around, value))
}

fn flipped(call: &Call<'_>) -> Built {
    let mut x = call.tensor("self")?;
    if call.ints("dims")?.is_empty() {
        return one(x);
    }
    for axis in call.axes("dims", x.rank())? {
        let extent = x.dim(axis);
        let backward = call.trace.arange(extent, DType::I32) * -1 + (extent as f64 - 1.0);
        x = x.gather(axis, &backward);
    }
    one(x)
}

/// Padding with the edge, or with what lies behind it in reverse.
fn continued(x: &Tensor, pad: &[i64], is_reflected: bool) -> Built {
    let mut x = x.clone();
    if !pad.len().is_multiple_of(2) || pad.len() / 2 > x.rank() {
        return Err(format!("{} numbers of padding around {} axes", pad.len(), x.rank()));
    }
    for (pair, axis) in pad.chunks(2).zip((0..x.rank()).rev()) {
        let extent = x.dim(axis as isize);
        let most = if is_reflected { extent.saturating_sub(1) } else { usize::MAX >> 1 };
        let side = |count: i64| usize::try_from(count).ok().filter(|&count| count <= most);
        let (Some(before), Some(after)) = (side(pair[0]), side(pair[1])) else {
            return Err(format!("there is no padding of {pair:?} around {extent}"));
        };
        let total = before.checked_add(extent).and_then(|sum| sum.checked_add(after));
        let Some(total) = total.filter(|&total| extent > 0 && i32::try_from(total).is_ok()) else {
            return Err(format!("there is no padding of {pair:?} around {extent}"));
        };
        if before + after == 0 {
            continue;
        }
        let (place, last) = (x.trace().arange(total, DType::I32) - before as f64, extent as f64 - 1.0);
        let place = match is_reflected {
            true => last - (last - place.abs()).abs(),
            false => place.maximum(0).minimum(last),
        };
        x = x.gather(axis as isize, &place);
    }
    one(x)
}
