//! Samples of reductions.

use super::{Operand, Table, Values, summation};
use crate::{DType, Reduce, ReduceOp};

pub(super) fn add(table: &mut Table) {
    for op in ReduceOp::ALL {
        for subset in 0..8 {
            let axes: Vec<_> = (0..3).filter(|axis| subset >> axis & 1 == 1).collect();
            reduce(table, op, &[3, 5, 4], &axes, DType::F32);
        }
        // Rows and columns longer than a vector, a cache line and a chunk; extents of 1; every element.
        let others: [(&[usize], &[usize]); 7] = [
            (&[33, 257], &[1]),
            (&[257, 33], &[0]),
            (&[1027], &[0]),
            (&[7, 1], &[1]),
            (&[1, 7], &[0]),
            (&[2, 3, 4, 5], &[1, 3]),
            (&[2, 3, 4, 5], &[0, 1, 2, 3]),
        ];
        for (shape, axes) in others {
            reduce(table, op, shape, axes, DType::F32);
        }
        for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::F32 && dtype.is_number()) {
            reduce(table, op, &[7, 13], &[1], dtype);
            reduce(table, op, &[7, 13], &[0], dtype);
        }
    }
}

fn reduce(table: &mut Table, op: ReduceOp, shape: &[usize], axes: &[usize], dtype: DType) {
    let values = if dtype.is_integer() { Values::Bits } else { Values::Between(-2.0, 2.0) };
    let operand = Operand::new(dtype, shape, values);
    let case = format!("{}.{shape:?}.{axes:?}", op.name());
    let tolerance = if op == ReduceOp::Sum { summation(dtype) } else { 0.0 };
    table.op(&case, Reduce { op, axes: axes.to_vec() }, &[operand]).tolerance = tolerance;
}
