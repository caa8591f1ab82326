//! Samples of ops that read or write at positions known only at run time, some of them outside.

use super::{Operand, Table, Values, summation};
use crate::{DType, DynamicSlice, DynamicUpdate, Gather, ScatterAdd};

pub(super) fn add(table: &mut Table) {
    // The table's shape, the shape of the indices, the axis.
    let gathers: [(&[usize], &[usize], usize); 6] = [
        (&[9, 5], &[2, 3], 0),
        (&[9, 5], &[], 0),
        (&[9], &[4], 0),
        (&[3, 6, 4], &[5], 1),
        (&[3, 6], &[2, 1, 2], 1),
        (&[1, 8], &[7], 0),
    ];
    for (number, (shape, indices, axis)) in gathers.into_iter().enumerate() {
        let dtypes = if number == 0 { &DType::ALL[..] } else { &DType::ALL[..1] };
        for &dtype in dtypes {
            gather(table, dtype, shape, indices, axis);
            if dtype.is_number() {
                scatter(table, dtype, shape, indices, axis);
            }
        }
    }
    for dtype in DType::ALL {
        parts(table, "inside", dtype, &[7, 13], &[3, 4], &[2.0, 5.0]);
    }
    parts(table, "clamped", DType::F32, &[7, 13], &[3, 4], &[-3.0, 100.0]);
    parts(table, "row", DType::F32, &[3, 6, 4], &[3, 1, 4], &[0.0, 4.0, 0.0]);
    parts(table, "whole", DType::F32, &[7, 13], &[7, 13], &[1.0, 1.0]);
    parts(table, "vector", DType::F32, &[7], &[2], &[6.0]);
    parts(table, "scalar", DType::F32, &[], &[], &[]);
    parts(table, "four", DType::F32, &[2, 3, 4, 5], &[1, 2, 4, 3], &[1.0, 0.0, 2.0, 2.0]);
}

/// Indices reach beyond both ends of the axis.
fn indices(shape: &[usize], extent: usize) -> Operand {
    Operand::new(DType::I32, shape, Values::Between(-3.0, extent as f64 + 3.0))
}

fn gather(table: &mut Table, dtype: DType, shape: &[usize], at: &[usize], axis: usize) {
    let rows = Operand::new(dtype, shape, Values::Between(-9.0, 9.0));
    let case = format!("{shape:?}.{at:?}.{axis}");
    table.op(&case, Gather { axis }, &[rows, indices(at, shape[axis])]).tolerance = 0.0;
}

/// The opposite of the gather: its updates have the shape of that result.
fn scatter(table: &mut Table, dtype: DType, shape: &[usize], at: &[usize], axis: usize) {
    let extent = shape[axis];
    let updates = [&shape[..axis], at, &shape[axis + 1..]].concat();
    let values = if dtype.is_integer() { Values::Bits } else { Values::Between(-2.0, 2.0) };
    let operands = [indices(at, extent), Operand::new(dtype, &updates, values)];
    let case = format!("{shape:?}.{at:?}.{axis}.{dtype}");
    table.op(&case, ScatterAdd { axis, extent }, &operands).tolerance = summation(dtype);
}

/// A dynamic slice and a dynamic update of the same part.
fn parts(
    table: &mut Table,
    case: &str,
    dtype: DType,
    shape: &[usize],
    sizes: &[usize],
    starts: &'static [f64],
) {
    let x = Operand::new(dtype, shape, Values::Between(-9.0, 9.0));
    let part = Operand::new(dtype, sizes, Values::Between(-9.0, 9.0));
    let start = |axis: usize| Operand::new(DType::I32, &[], Values::Listed(&starts[axis..=axis]));
    let starts: Vec<_> = (0..starts.len()).map(start).collect();
    let with_starts = |operands: &[Operand]| [operands, &starts[..]].concat();
    let slice = DynamicSlice { sizes: sizes.to_vec() };
    table.op(case, slice, &with_starts(std::slice::from_ref(&x))).tolerance = 0.0;
    table.op(case, DynamicUpdate, &with_starts(&[x, part])).tolerance = 0.0;
}
