//! How an axis passes through each op.
//!
//! An op iterates over axes. An *axis map* says of one of them which axis of each operand it is, and which axis of the
//! result, or that the op sums over it. If the operands are cut into slices along their axes, each slice of the result is
//! the op's result on the slices; where the op sums over the axis, a partial sum.
//!
//! ```text
//! dot_general a[b, m, k] · b[b, k, n]      b: (0, 0) → 0     m: (1, –) → 1     k: (2, 1) → summed     n: (–, 2) → 2
//! ```

use kernfusion_ir::{
    Broadcast, DotGeneral, DynamicSlice, Gather, Op, ReduceOp, Reshape, ScatterAdd, Slice, TensorType,
};

/// Where an axis is in the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultAxis {
    /// It is this axis.
    Axis(usize),
    /// It is not there: the op combines all elements along it so.
    Reduced(ReduceOp),
}

/// An axis of an op's iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AxisMap {
    /// The axis of each operand; `None` where an operand is read whole.
    pub(crate) operands: Vec<Option<usize>>,
    /// The axis of the result.
    pub(crate) result: ResultAxis,
}

/// Where axis `axis` of operand `slot` is in the other operands and the result, if it can be cut into `slices` parts of
/// equal extent; or why it cannot.
pub(crate) fn axis_map(
    op: &Op,
    operands: &[&TensorType],
    slot: usize,
    axis: usize,
    slices: usize,
) -> Result<AxisMap, &'static str> {
    let shape = &operands[slot].shape;
    let to = |axis| Ok(AxisMap { operands: vec![Some(axis)], result: ResultAxis::Axis(axis) });
    let moved = |result| Ok(AxisMap { operands: vec![Some(axis)], result: ResultAxis::Axis(result) });
    match op {
        Op::Input(_) | Op::Constant(_) | Op::Iota(_) | Op::RandomBits(_) => {
            unreachable!("no operand of such an op has axes")
        }
        Op::Unary(_) | Op::Cast(_) => to(axis),
        Op::Binary(_) | Op::Compare(_) | Op::Select(_) => {
            Ok(AxisMap { operands: vec![Some(axis); operands.len()], result: ResultAxis::Axis(axis) })
        }
        Op::Reduce(reduce) => {
            let result = match reduce.axes.contains(&axis) {
                true => ResultAxis::Reduced(reduce.op),
                false => ResultAxis::Axis(axis - reduce.axes.iter().filter(|&&gone| gone < axis).count()),
            };
            Ok(AxisMap { operands: vec![Some(axis)], result })
        }
        Op::Reshape(Reshape { shape: new }) => {
            moved(same_outer(shape, axis, new, slices).ok_or("the reshape mixes the batch with other axes")?)
        }
        Op::Permute(permute) => {
            moved(permute.axes.iter().position(|&from| from == axis).expect("a permutation has every axis"))
        }
        Op::Broadcast(Broadcast { axes, .. }) => moved(axes[axis]),
        Op::Windows(windows) => match axis + windows.places.len() < shape.len() {
            true => to(axis),
            false => Err("a window slides over the batch"),
        },
        Op::Slice(Slice { start, end }) => match start[axis] == 0 && end[axis] == shape[axis] {
            true => to(axis),
            false => Err("it takes a part of the batch"),
        },
        Op::Pad(pad) => match pad.low[axis] == 0 && pad.high[axis] == 0 {
            true => to(axis),
            false => Err("it pads the batch"),
        },
        Op::Concat(concat) => match concat.axis == axis {
            true => Err("it joins batches"),
            false => {
                Ok(AxisMap { operands: vec![Some(axis); operands.len()], result: ResultAxis::Axis(axis) })
            }
        },
        Op::DotGeneral(dot) => Ok(product_line(dot, operands, slot, axis)),
        Op::Gather(gather) => gather_line(gather, operands, slot, axis),
        Op::ScatterAdd(scatter) => Ok(scatter_line(scatter, operands, slot, axis)),
        Op::DynamicSlice(DynamicSlice { sizes }) => match sizes[axis] == shape[axis] {
            true => {
                Ok(AxisMap { operands: first(operands.len(), &[Some(axis)]), result: ResultAxis::Axis(axis) })
            }
            false => Err("it takes a part of the batch"),
        },
        Op::DynamicUpdate(_) => match operands[0].shape[axis] == operands[1].shape[axis] {
            true => Ok(AxisMap {
                operands: first(operands.len(), &[Some(axis), Some(axis)]),
                result: ResultAxis::Axis(axis),
            }),
            false => Err("it replaces a part of the batch"),
        },
        Op::Scan(_) => Err("a loop's axes are those of its body"),
        Op::Collective(_) => Err("ranks exchange the batch as a whole"),
    }
}

/// The op on slices: attributes that state extents state those of the slices. `result` is where the axis is in the result.
pub(crate) fn narrowed(op: &Op, result: ResultAxis, slices: usize) -> Op {
    let ResultAxis::Axis(axis) = result else { return op.clone() };
    let cut = |shape: &[usize]| {
        let mut shape = shape.to_vec();
        shape[axis] /= slices;
        shape
    };
    match op {
        Op::Reshape(Reshape { shape }) => Reshape { shape: cut(shape) }.into(),
        Op::Broadcast(Broadcast { shape, axes }) => {
            Broadcast { shape: cut(shape), axes: axes.clone() }.into()
        }
        Op::Slice(Slice { start, end }) => Slice { start: start.clone(), end: cut(end) }.into(),
        Op::DynamicSlice(DynamicSlice { sizes }) => DynamicSlice { sizes: cut(sizes) }.into(),
        Op::Input(_)
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::RandomBits(_)
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select(_)
        | Op::Cast(_)
        | Op::Reduce(_)
        | Op::Permute(_)
        | Op::Windows(_)
        | Op::Pad(_)
        | Op::Concat(_)
        | Op::DotGeneral(_)
        | Op::Gather(_)
        | Op::ScatterAdd(_)
        | Op::DynamicUpdate(_)
        | Op::Scan(_)
        | Op::Collective(_) => op.clone(),
    }
}

/// The axis of `to` whose slices hold the same elements as the slices of an axis of `from`: as many elements lie before
/// it, and it divides as well.
pub(crate) fn same_outer(from: &[usize], axis: usize, to: &[usize], slices: usize) -> Option<usize> {
    let before: usize = from[..axis].iter().product();
    let mut product = 1;
    for (axis, &extent) in to.iter().enumerate() {
        if product == before && extent > 1 {
            return (extent % slices == 0).then_some(axis);
        }
        product *= extent;
    }
    None
}

fn product_line(dot: &DotGeneral, operands: &[&TensorType], slot: usize, axis: usize) -> AxisMap {
    let sides = [
        (&dot.lhs_batch, &dot.lhs_contract, dot.lhs_free(operands[0].rank())),
        (&dot.rhs_batch, &dot.rhs_contract, dot.rhs_free(operands[1].rank())),
    ];
    let (batch, contract, free) = &sides[slot];
    let place = |axes: &[usize]| axes.iter().position(|&other| other == axis);
    if let Some(at) = place(batch) {
        let operands = vec![Some(dot.lhs_batch[at]), Some(dot.rhs_batch[at])];
        return AxisMap { operands, result: ResultAxis::Axis(at) };
    }
    if let Some(at) = place(contract) {
        let operands = vec![Some(dot.lhs_contract[at]), Some(dot.rhs_contract[at])];
        return AxisMap { operands, result: ResultAxis::Reduced(ReduceOp::Sum) };
    }
    let at = place(free).expect("an axis is of the batch, summed, or free");
    let before = batch.len() + if slot == 1 { sides[0].2.len() } else { 0 };
    let mut operands = vec![None; 2];
    operands[slot] = Some(axis);
    AxisMap { operands, result: ResultAxis::Axis(before + at) }
}

fn gather_line(
    gather: &Gather,
    operands: &[&TensorType],
    slot: usize,
    axis: usize,
) -> Result<AxisMap, &'static str> {
    if slot == 1 {
        return Ok(AxisMap {
            operands: vec![None, Some(axis)],
            result: ResultAxis::Axis(gather.axis + axis),
        });
    }
    let result = match axis.cmp(&gather.axis) {
        std::cmp::Ordering::Less => axis,
        std::cmp::Ordering::Equal => return Err("it looks up any place of the batch"),
        std::cmp::Ordering::Greater => axis - 1 + operands[1].rank(),
    };
    Ok(AxisMap { operands: vec![Some(axis), None], result: ResultAxis::Axis(result) })
}

fn scatter_line(scatter: &ScatterAdd, operands: &[&TensorType], slot: usize, axis: usize) -> AxisMap {
    let rank = operands[0].rank();
    let indexed = if slot == 0 { Some(axis) } else { axis.checked_sub(scatter.axis).filter(|&i| i < rank) };
    match indexed {
        Some(index) => AxisMap {
            operands: vec![Some(index), Some(scatter.axis + index)],
            result: ResultAxis::Reduced(ReduceOp::Sum),
        },
        None => {
            let result = if axis < scatter.axis { axis } else { axis + 1 - rank };
            AxisMap { operands: vec![None, Some(axis)], result: ResultAxis::Axis(result) }
        }
    }
}

/// `axes`, then `None` for the remaining operands.
fn first(count: usize, axes: &[Option<usize>]) -> Vec<Option<usize>> {
    let mut operands = axes.to_vec();
    operands.resize(count, None);
    operands
}

#[cfg(test)]
mod tests;
