//! Samples of views, pad and concat. Nothing is computed, so results are exact.

use super::{Operand, Table, Values};
use crate::{Broadcast, Concat, DType, Literal, Op, Pad, Permute, Reshape, Slice, Windows};

/// The shapes of operands.
type Shapes = &'static [&'static [usize]];
/// A name, an op and the shapes of its operands.
type Case = (&'static str, Op, Shapes);

pub(super) fn add(table: &mut Table) {
    for (case, op, shapes) in cases() {
        moved(table, case, op, shapes, DType::F32);
    }
    // The first case of each op, on the other dtypes.
    let mut seen = vec![];
    for (case, op, shapes) in cases() {
        if seen.contains(&op.name()) {
            continue;
        }
        seen.push(op.name());
        for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::F32) {
            moved(table, case, op.clone(), shapes, dtype);
        }
    }
}

fn moved(table: &mut Table, case: &str, op: Op, shapes: &[&[usize]], dtype: DType) {
    let operand = |shape: &&[usize]| Operand::new(dtype, shape, Values::Between(-9.0, 9.0));
    let operands: Vec<_> = shapes.iter().map(operand).collect();
    // A sum over infinite padding is no number, so there are no differences of it.
    let infinite = matches!(&op, Op::Pad(pad) if pad.value.value().is_infinite());
    let sample = table.op(case, op, &operands);
    sample.tolerance = 0.0;
    sample.gradient &= !infinite;
}

fn cases() -> Vec<Case> {
    let reshape = |case, from: Shapes, to: &[usize]| (case, Reshape { shape: to.to_vec() }.into(), from);
    let permute = |case, from: Shapes, axes: &[usize]| (case, Permute { axes: axes.to_vec() }.into(), from);
    let broadcast = |case, from: Shapes, shape: &[usize], axes: &[usize]| {
        (case, Broadcast { shape: shape.to_vec(), axes: axes.to_vec() }.into(), from)
    };
    let slice = |case, from: Shapes, start: &[usize], end: &[usize]| {
        (case, Slice { start: start.to_vec(), end: end.to_vec() }.into(), from)
    };
    let pad = |case, from: Shapes, low: &[usize], high: &[usize], value| {
        let (low, high) = (low.to_vec(), high.to_vec());
        (case, Pad { low, high, value: Literal::new(value) }.into(), from)
    };
    let windows = |case, from: Shapes, places: &[usize], stride: &[usize], dilation: &[usize]| {
        let [places, stride, dilation] = [places, stride, dilation].map(<[usize]>::to_vec);
        (case, Windows { places, stride, dilation }.into(), from)
    };
    let concat = |case, axis, from: Shapes| (case, Concat { axis }.into(), from);
    vec![
        reshape("split", &[&[6, 10]], &[2, 3, 5, 2]),
        reshape("merge", &[&[2, 3, 4]], &[24]),
        reshape("regroup", &[&[4, 6]], &[3, 8]),
        reshape("ones", &[&[7]], &[1, 7, 1]),
        reshape("to_scalar", &[&[1, 1]], &[]),
        reshape("from_scalar", &[&[]], &[1, 1]),
        permute("021", &[&[3, 4, 5]], &[0, 2, 1]),
        permute("102", &[&[3, 4, 5]], &[1, 0, 2]),
        permute("120", &[&[3, 4, 5]], &[1, 2, 0]),
        permute("201", &[&[3, 4, 5]], &[2, 0, 1]),
        permute("210", &[&[3, 4, 5]], &[2, 1, 0]),
        permute("identity", &[&[3, 4, 5]], &[0, 1, 2]),
        permute("heads", &[&[2, 7, 3, 5]], &[0, 2, 1, 3]),
        permute("scalar", &[&[]], &[]),
        broadcast("rows", &[&[13]], &[7, 13], &[1]),
        broadcast("columns", &[&[7]], &[7, 13], &[0]),
        broadcast("scalar", &[&[]], &[3, 5], &[]),
        broadcast("around", &[&[3, 5]], &[2, 3, 4, 5], &[1, 3]),
        broadcast("nothing", &[&[3, 5]], &[3, 5], &[0, 1]),
        slice("middle", &[&[7, 13]], &[2, 3], &[5, 11]),
        slice("all", &[&[7, 13]], &[0, 0], &[7, 13]),
        slice("one", &[&[7, 13]], &[6, 12], &[7, 13]),
        slice("third", &[&[2, 3, 8]], &[0, 1, 0], &[2, 2, 8]),
        windows("sequence", &[&[3, 9]], &[3], &[1], &[1]),
        windows("image", &[&[2, 5, 6]], &[2, 3], &[1, 1], &[1, 1]),
        windows("stride", &[&[2, 7, 8]], &[3, 2], &[2, 3], &[1, 1]),
        windows("dilation", &[&[2, 7, 8]], &[3, 2], &[1, 2], &[2, 3]),
        windows("tiles", &[&[4, 6]], &[2, 3], &[2, 3], &[1, 1]),
        windows("one", &[&[3, 5]], &[5], &[1], &[1]),
        windows("apart", &[&[11]], &[2], &[4], &[1]),
        windows("long_rows", &[&[2, 50]], &[7], &[1], &[2]),
        windows("nothing", &[&[3, 5]], &[], &[], &[]),
        pad("around", &[&[3, 5]], &[1, 2], &[3, 0], 1.0),
        pad("infinite", &[&[3, 5]], &[0, 1], &[1, 1], f64::NEG_INFINITY),
        pad("nothing", &[&[3, 5]], &[0, 0], &[0, 0], 0.0),
        pad("vector", &[&[7]], &[2], &[2], -1.0),
        pad("long_rows", &[&[2, 40]], &[1, 3], &[0, 7], 0.0),
        pad("long_rows_of_ones", &[&[2, 40]], &[0, 17], &[1, 0], 1.0),
        pad("cube", &[&[2, 1, 3]], &[0, 1, 2], &[2, 1, 0], 0.0),
        concat("three", 1, &[&[3, 5], &[3, 1], &[3, 4]]),
        concat("rows", 0, &[&[2, 5], &[3, 5]]),
        concat("one", 0, &[&[7]]),
        concat("middle", 1, &[&[2, 1, 3], &[2, 2, 3], &[2, 3, 3], &[2, 1, 3]]),
    ]
}
