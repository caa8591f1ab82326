//! What is put otherwise in ONNX than in PyTorch: arguments are brought into the form of the functions of PyTorch's operators, or of the
//! library.

use crate::call::{Built, Call, Fault, as_dtype};
use crate::operators::attention::attended;
use crate::operators::indexing::{Indexed, picked};
use crate::operators::movement::{every, padded_around};
use crate::operators::normalization::{self, of_batch};
use crate::operators::writing::{self, Rows};
use crate::operators::{elementwise, one};
use kernfusion::nn::{Cell, CellWeights};
use kernfusion::trace::{ScanOrder, Tensor};
use kernfusion_ir::DType;

/// An extent of a shape that a file has.
pub(super) fn extent(number: i64) -> Result<usize, Fault> {
    usize::try_from(number).map_err(|_| format!("there is no extent of {number}"))
}

/// The most parts of an axis.
const MOST_PARTS: usize = 1 << 12;

/// The lengths of parts of an axis: those that are said, or of one that is said, or as many equal ones as `num_outputs` or the results; the
/// last of equal ones may be shorter. Parts of a sequence have a length of 1 if nothing is said.
pub(super) fn splits(call: &Call<'_>, whole: usize) -> Result<Vec<usize>, Fault> {
    if let Some(sizes) = call.optional_ints("sizes")? {
        let is_one = call.optional_int("sizes").is_ok();
        if !is_one || call.node.target != "onnx.SplitToSequence" {
            return sizes.into_iter().map(extent).collect();
        }
        return equal_parts(whole, extent(sizes[0])?);
    }
    if call.node.target == "onnx.SplitToSequence" {
        return equal_parts(whole, 1);
    }
    let count = call.optional_int("num_outputs")?.map_or(Ok(call.node.outputs.len()), extent)?;
    if count == 0 || count > whole.max(1) {
        return Err(format!("{whole} is not divided into {count} parts"));
    }
    equal_parts(whole, whole.div_ceil(count))
}

fn equal_parts(whole: usize, length: usize) -> Result<Vec<usize>, Fault> {
    let count = whole.div_ceil(length.max(1));
    match count <= MOST_PARTS {
        true => Ok((0..count).map(|at| length.min(whole - at * length)).collect()),
        false => Err(format!("{count} parts are more than {MOST_PARTS}")),
    }
}

/// One tensor after another, by an operator on two.
pub(super) fn accumulated(call: &Call<'_>, f: fn(&Tensor, &Tensor) -> Tensor) -> Built {
    let tensors = call.tensors("tensors")?;
    let all = tensors.iter().cloned().reduce(|x, y| f(&x, &y));
    one(all.ok_or("it has no operands")?)
}

pub(super) fn mean(call: &Call<'_>) -> Built {
    let count = call.tensors("tensors")?.len() as f64;
    one(accumulated(call, |x, y| x + y)?.remove(0) / count)
}

/// The quotient; that of whole numbers without its fraction.
pub(super) fn divided(call: &Call<'_>) -> Built {
    elementwise::divided(call, if call.result()?.dtype.is_float() { "none" } else { "trunc" })
}

pub(super) fn rest(call: &Call<'_>) -> Built {
    elementwise::rest(call, !call.flag_or("fmod", false)?)
}

pub(super) fn power(call: &Call<'_>) -> Built {
    match call.is_tensor("exponent") {
        true => elementwise::power(call),
        false => one(call.tensor("self")?.powf(call.number("exponent")?)),
    }
}

pub(super) fn dropout(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let p = if call.number_or("train", 0.0)? == 0.0 { 0.0 } else { call.number_or("p", 0.5)? };
    if call.node.outputs.len() > 1 {
        return Err("which elements it leaves is not known".into());
    }
    one(elementwise::dropped(call, &x, p)?)
}

pub(super) fn hard_sigmoid(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    one((x * call.number("alpha")? + call.number("beta")?).clamp(0.0, 1.0))
}

pub(super) fn parametric(call: &Call<'_>) -> Built {
    let (x, slope) = (call.tensor("self")?, call.tensor("weight")?);
    one(x.gt(0.0).select(&x, &x * slope))
}

pub(super) fn swish(call: &Call<'_>) -> Built {
    let (x, alpha) = (call.tensor("self")?, call.number("alpha")?);
    one(&x * (&x * alpha).sigmoid())
}

/// `value`, a tensor of one element, in the shape `size`.
pub(super) fn filled(call: &Call<'_>) -> Built {
    let shape = call.ints("size")?.into_iter().map(extent).collect::<Result<Vec<_>, _>>()?;
    one(match call.optional_tensor("value")? {
        Some(value) => value.reshape(Vec::<usize>::new()).broadcast_to(shape),
        None => call.trace.zeros(shape),
    })
}

/// start, start + delta, … before limit; whole numbers, if these are.
pub(super) fn range(call: &Call<'_>) -> Built {
    let [start, limit, delta] = ["start", "limit", "delta"].map(|name| call.number(name));
    let (start, limit, delta) = (start?, limit?, delta?);
    let count = ((limit - start) / delta).ceil().max(0.0);
    if !count.is_finite() || count > f64::from(i32::MAX) {
        return Err(format!("there is no range from {start} to {limit} by {delta}"));
    }
    let dtype = if call.optional_int("start").is_ok() { DType::I32 } else { DType::F32 };
    let is_i32 = |number: f64| (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number);
    if dtype == DType::I32
        && count > 0.0
        && ![start, delta, start + (count - 1.0) * delta].into_iter().all(is_i32)
    {
        return Err(format!(
            "from {start} to {limit} by {delta} are numbers that are no i32, which int64 is read as"
        ));
    }
    one(call.trace.arange(count as usize, dtype) * delta + start)
}

/// The extents of axes from `start` to `end`, a vector.
pub(super) fn shape(call: &Call<'_>) -> Built {
    let shape = call.tensor("self")?.shape();
    let place = |at: i64| {
        let at = if at < 0 { at.saturating_add(shape.len() as i64) } else { at };
        usize::try_from(at).unwrap_or(0).min(shape.len())
    };
    let (start, end) = (place(call.int_or("start", 0)?), place(call.int_or("end", i64::MAX)?));
    let extents = shape.get(start..end).unwrap_or_default();
    let extents: Vec<_> =
        extents.iter().map(|&extent| call.trace.full([1], extent as f64, DType::I32)).collect();
    one(match extents.is_empty() {
        true => call.trace.arange(0, DType::I32),
        false => call.trace.concat(&extents.iter().collect::<Vec<_>>(), 0),
    })
}

pub(super) fn size(call: &Call<'_>) -> Built {
    one(call.trace.full([], call.tensor("self")?.ty().elements() as f64, DType::I32))
}

/// The axes in another order; in reverse, if none is named.
pub(super) fn transposed(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axes: Vec<_> = match call.has("dims") {
        true => call.axes("dims", x.rank())?.into_iter().map(isize::unsigned_abs).collect(),
        false => (0..x.rank()).rev().collect(),
    };
    one(x.permute(&axes))
}

pub(super) fn sliced(call: &Call<'_>) -> Built {
    let mut x = call.tensor("self")?;
    let (starts, ends) = (call.ints("starts")?, call.ints("ends")?);
    let axes = match call.has("axes") {
        true => call.ints("axes")?,
        false => (0..starts.len() as i64).collect(),
    };
    let steps = call.optional_ints("steps")?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err("each axis has a start, an end and a step".into());
    }
    for (((start, end), axis), step) in starts.into_iter().zip(ends).zip(axes).zip(steps) {
        let rank = x.rank();
        let axis = crate::call::axis(axis, rank)?;
        x = part(&x, axis, [start, end], step)?;
    }
    one(x)
}

/// Every step-th index of an axis from start to end, each counted from its end if negative. By a negative step, backward from start.
fn part(x: &Tensor, axis: isize, [start, end]: [i64; 2], step: i64) -> Result<Tensor, Fault> {
    let extent = *x.shape().get(axis.unsigned_abs()).ok_or("a scalar has no parts")? as i64;
    let from_end = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
    match step {
        0 => Err("there is no step of 0".into()),
        1.. => {
            let start = from_end(start).clamp(0, extent);
            let end = from_end(end).clamp(start, extent);
            let part = x.slice(axis, start as usize..end as usize);
            Ok(if step == 1 { part } else { every(&part, axis, step) })
        }
        _ => {
            let first = from_end(start).clamp(0.min(extent - 1), extent - 1);
            let last = from_end(end).clamp(-1, extent - 1);
            let count = (first - last).max(0).unsigned_abs().div_ceil(step.unsigned_abs());
            let places =
                x.trace().arange(count as usize, DType::I32) * step.max(-extent) as f64 + first as f64;
            Ok(x.gather(axis, &places))
        }
    }
}

pub(super) fn padded(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let pads = call.ints("pads")?;
    let axes = if call.has("axes") { call.axes("axes", x.rank())? } else { (0..x.rank() as isize).collect() };
    if pads.len() != 2 * axes.len() {
        return Err(format!("{} numbers of padding for {} axes", pads.len(), axes.len()));
    }
    let mut around = vec![[0; 2]; x.rank()];
    for (at, axis) in axes.iter().enumerate() {
        around[axis.unsigned_abs()] = [pads[at], pads[at + axes.len()]];
    }
    // PyTorch counts from the last axis on.
    let pad: Vec<_> = around.into_iter().rev().flatten().collect();
    let mode = match call.word_or("mode", "constant")? {
        "edge" => "replicate",
        mode => mode,
    };
    padded_around(&x, &pad, mode, call.number_or("value", 0.0)?)
}

pub(super) fn depth_to_space(call: &Call<'_>) -> Built {
    let (x, factor) = (call.tensor("self")?, extent(call.int("blocksize")?)?);
    let &[batch, channels, rows, columns] = &x.shape()[..] else {
        return Err("it takes [batch, channels, rows, columns]".into());
    };
    let Some(square @ 1..) =
        factor.checked_mul(factor).filter(|&square| channels.is_multiple_of(square.max(1)))
    else {
        return Err(format!("{channels} channels are no squares of {factor}"));
    };
    let (apart, order) = match call.word_or("mode", "DCR")? {
        "DCR" => ([batch, factor, factor, channels / square, rows, columns], [0, 3, 4, 1, 5, 2]),
        "CRD" => ([batch, channels / square, factor, factor, rows, columns], [0, 1, 4, 2, 5, 3]),
        other => return Err(format!("there is no mode {other}")),
    };
    one(x.reshape(apart).permute(&order).reshape([batch, channels / square, rows * factor, columns * factor]))
}

/// Indices of an axis of that extent, counted from its end where they are negative.
fn from_front(index: &Tensor, extent: usize) -> Tensor {
    index.lt(0).select(index + extent as f64, index)
}

pub(super) fn gathered(call: &Call<'_>) -> Built {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let axis = call.axis("dim", 0, x.rank())?;
    one(x.gather(axis, &from_front(&index, x.dim(axis))))
}

pub(super) fn gathered_elements(call: &Call<'_>) -> Built {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let axis = call.axis("dim", 0, x.rank())?;
    picked(&x, &from_front(&index, x.dim(axis)), axis)
}

/// The indices of each of the first axes: the last axis of a tensor of indices.
fn apart(x: &Tensor, index: &Tensor) -> Result<Vec<Option<Tensor>>, Fault> {
    let count = *index.shape().last().ok_or("a scalar is no index")?;
    if count > x.rank() {
        return Err(format!("{count} indices for {} axes", x.rank()));
    }
    Ok((0..count).map(|at| Some(index.index(-1, at))).collect())
}

pub(super) fn gathered_nd(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let indices = apart(&x, &call.tensor("index")?)?;
    one(Indexed::new(&x, indices)?.ok_or("there is no index")?.read(&x))
}

/// How values are put where there are some already.
fn is_added(call: &Call<'_>) -> Result<bool, Fault> {
    match call.word_or("reduction", "none")? {
        "none" => Ok(false),
        "add" => Ok(true),
        other => Err(format!("the reduction {other} is not known")),
    }
}

pub(super) fn scattered_nd(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let indices = apart(&x, &call.tensor("index")?)?;
    writing::put(&x, &call.tensor("src")?, indices, is_added(call)?)
}

pub(super) fn scattered_elements(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let index = from_front(&call.tensor("index")?, x.dim(axis));
    let (places, shape) = writing::places(&x, &index, axis.unsigned_abs())?;
    let src = call.tensor("src")?;
    if src.shape() != shape {
        return Err("an index for each element of the source".into());
    }
    match is_added(call)? {
        true => one(&x + writing::added(&src.reshape([-1]), &places, x.ty().elements()).reshape(x.shape())),
        false => {
            one(writing::written(&x.reshape([-1]), &places, Rows::Each(src.reshape([-1]))).reshape(x.shape()))
        }
    }
}

/// The second of two values at the class that `self` says along a new axis, else the first.
pub(super) fn one_hot(call: &Call<'_>) -> Built {
    let (x, classes) = (call.tensor("self")?, extent(call.int("depth")?)?);
    let values = call.tensor("values")?;
    if values.shape() != [2] {
        return Err("it takes two values".into());
    }
    let index = from_front(&as_dtype(&x, DType::I32), classes);
    let hot = index.one_hot(classes, DType::Bool);
    let chosen = hot.select(values.index(0, 1), values.index(0, 0));
    let axis = call.axis("dim", -1, x.rank() + 1)?.unsigned_abs();
    let mut axes: Vec<_> = (0..x.rank()).collect();
    axes.insert(axis, x.rank());
    one(chosen.permute(&axes))
}

pub(super) fn triangle(call: &Call<'_>) -> Built {
    let (x, diagonal) = (call.tensor("self")?, call.int_or("diagonal", 0)?);
    let diagonal = i32::try_from(diagonal).map_err(|_| format!("there is no diagonal {diagonal}"))?;
    one(if call.flag_or("upper", true)? { x.triu(diagonal) } else { x.tril(diagonal) })
}

/// What `f` gives over the axes, in the shape of the result.
pub(super) fn reduced(call: &Call<'_>, f: fn(&Tensor, &[isize]) -> Tensor) -> Built {
    let x = call.tensor("self")?;
    call.in_shape(&f(&x, &call.axes("dim", x.rank())?))
}

pub(super) fn gemm(call: &Call<'_>) -> Built {
    let side = |name, transposed| {
        let x = call.tensor(name)?;
        Ok::<_, Fault>(if call.flag_or(transposed, false)? { x.transpose(0, 1) } else { x })
    };
    let scaled = |x: Tensor, factor: f64| if factor == 1.0 { x } else { x * factor };
    let (left, right) = (side("mat1", "transA")?, call.tensor("mat2")?);
    let product = match call.flag_or("transB", false)? {
        true => left.linear(&right),
        false => left.matmul(&right),
    };
    let product = scaled(product, call.number_or("alpha", 1.0)?);
    one(match call.optional_tensor("self")? {
        Some(x) => product + scaled(x, call.number_or("beta", 1.0)?),
        None => product,
    })
}

/// The axes from `axis` on, counted from the end, and their shape.
fn normalized(call: &Call<'_>, x: &Tensor) -> Result<(Vec<isize>, Vec<usize>), Fault> {
    let first = call.axis("axis", -1, x.rank())?.unsigned_abs();
    let shape = x.shape().get(first..).ok_or("a scalar is not normalised")?.to_vec();
    Ok(((1..=shape.len() as isize).map(|from_end| -from_end).collect(), shape))
}

/// Of `[batch, heads, length, width]`, or of `[batch, length, heads · width]`, which the result is, too.
pub(super) fn attention(call: &Call<'_>) -> Built {
    let [query, key, value] = ["query", "key", "value"].map(|name| call.tensor(name));
    let (query, key, value) = (query?, key?, value?);
    let is_flat = query.rank() == 3;
    if call.node.outputs.len() > 1 || [&query, &key, &value].iter().any(|x| x.rank() != query.rank()) {
        return Err("past keys, scores as results and other numbers of axes are not known".into());
    }
    let (query, key, value) = match is_flat {
        true => (
            heads(call, &query, "q_num_heads")?,
            heads(call, &key, "kv_num_heads")?,
            heads(call, &value, "kv_num_heads")?,
        ),
        false => (query, key, value),
    };
    let is_shared = query.rank() > 2 && key.dim(-3) != query.dim(-3);
    let y = attended(call, &query, &key, &value, is_shared)?.remove(0);
    one(match is_flat {
        true => y.transpose(1, 2).reshape([y.dim(0), y.dim(2), y.dim(1) * y.dim(3)]),
        false => y,
    })
}

/// `[batch, length, heads · width]` as `[batch, heads, length, width]`.
fn heads(call: &Call<'_>, x: &Tensor, count: &str) -> Result<Tensor, Fault> {
    let (count, width) = (extent(call.int(count)?)?, x.dim(2));
    match count {
        1.. if width.is_multiple_of(count) => {
            Ok(x.reshape([x.dim(0), x.dim(1), count, width / count]).transpose(1, 2))
        }
        _ => Err(format!("{width} are not {count} heads")),
    }
}

pub(super) fn layer_norm(call: &Call<'_>) -> Built {
    let (axes, shape) = normalized(call, &call.tensor("input")?)?;
    normalization::layer_norm_over(call, &axes, &shape)
}

pub(super) fn rms_norm(call: &Call<'_>) -> Built {
    let (axes, shape) = normalized(call, &call.tensor("input")?)?;
    normalization::rms_norm_over(call, &axes, &shape)
}

/// In training by the batch's own statistics, and the running ones with those of the batch; momentum is the share of what was.
pub(super) fn batch_norm(call: &Call<'_>) -> Built {
    if !call.flag_or("training", false)? {
        return normalization::batch_norm(call);
    }
    let batch = of_batch(call)?;
    let momentum = call.number_or("momentum", 0.9)?;
    let followed = |running: Tensor, new: &Tensor| running * momentum + new * (1.0 - momentum);
    let mean = followed(call.tensor("running_mean")?, &batch.mean);
    let variance = followed(call.tensor("running_var")?, &batch.population_variance);
    Ok(vec![batch.y, mean, variance])
}

/// One layer in one or both directions. `gates` says where each gate of PyTorch stands in ONNX.
pub(super) fn recurrent(call: &Call<'_>, cell: Cell, gates: &[usize]) -> Built {
    let [x, weight, hidden] = ["input", "weight", "hidden"].map(|name| call.tensor(name));
    let (x, weight, hidden) = (x?, weight?, hidden?);
    if x.rank() != 3 || weight.rank() != 3 || hidden.rank() != 3 {
        return Err("its input and its weights have three axes".into());
    }
    if call.has("sequence_lens") {
        return Err("sequences of different lengths are not known".into());
    }
    let orders: &[_] = match call.word_or("direction", "forward")? {
        "forward" => &[ScanOrder::Forward],
        "reverse" => &[ScanOrder::Backward],
        "bidirectional" => &[ScanOrder::Forward, ScanOrder::Backward],
        other => return Err(format!("there is no direction {other}")),
    };
    let width = hidden.dim(2);
    if weight.dim(0) != orders.len() || hidden.shape() != [orders.len(), gates.len() * width, width] {
        return Err("its weights are not those of its gates and directions".into());
    }
    let bias = call.optional_tensor("bias")?;
    if bias.as_ref().is_some_and(|bias| bias.shape() != [orders.len(), 2 * gates.len() * width]) {
        return Err("its biases are not those of its gates and directions".into());
    }
    let first = ["initial_h", "initial_c"].into_iter().take(cell.states()).map(|name| {
        Ok(match call.optional_tensor(name)? {
            Some(state) => state,
            None => call.trace.zeros([orders.len(), x.dim(1), width]),
        })
    });
    let first = first.collect::<Result<Vec<Tensor>, Fault>>()?;
    if first.iter().any(|state| state.shape() != [orders.len(), x.dim(1), width]) {
        return Err("its first states have another shape".into());
    }
    let in_order = |rows: &Tensor, start: usize| {
        let parts: Vec<_> = gates.iter().map(|gate| rows.narrow(0, start + gate * width, width)).collect();
        call.trace.concat(&parts.iter().collect::<Vec<_>>(), 0)
    };
    let (mut outputs, mut last) = (vec![], vec![vec![]; first.len()]);
    for (direction, &order) in orders.iter().enumerate() {
        let biases = bias.as_ref().map(|bias| {
            let rows = bias.index(0, direction);
            [in_order(&rows, 0), in_order(&rows, gates.len() * width)]
        });
        let weights = CellWeights {
            inputs: in_order(&weight.index(0, direction), 0),
            hidden: in_order(&hidden.index(0, direction), 0),
            biases,
        };
        let states: Vec<_> = first.iter().map(|state| state.index(0, direction)).collect();
        let done = weights.scan(cell, order, &x, &states.iter().collect::<Vec<_>>());
        outputs.extend(done.each);
        last.iter_mut().zip(done.carried).for_each(|(all, state)| all.push(state));
    }
    let stacked = |parts: &[Tensor], axis| call.trace.stack(&parts.iter().collect::<Vec<_>>(), axis);
    let last: Vec<_> = last.iter().map(|states| stacked(states, 0)).collect();
    Ok([stacked(&outputs, 1)].into_iter().chain(last).collect())
}

pub(super) fn gated_recurrent(call: &Call<'_>) -> Built {
    // Else the reset gate would stand before the product.
    match call.flag_or("linear_before_reset", false)? {
        true => recurrent(call, Cell::Gru, &[1, 0, 2]),
        false => Err("only linear_before_reset is known".into()),
    }
}
