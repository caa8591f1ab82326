//! Samples of products.

use super::{Operand, Table, Values, summation};
use crate::{DType, DotGeneral};

/// A name, both shapes, and the batch and contracted axes of both sides.
type Case = (&'static str, [&'static [usize]; 2], [&'static [usize]; 2], [&'static [usize]; 2]);

const CASES: [Case; 17] = [
    ("nn", [&[7, 13], &[13, 5]], [&[], &[]], [&[1], &[0]]),
    ("nt", [&[7, 13], &[5, 13]], [&[], &[]], [&[1], &[1]]),
    ("tn", [&[13, 7], &[13, 5]], [&[], &[]], [&[0], &[0]]),
    ("tt", [&[13, 7], &[5, 13]], [&[], &[]], [&[0], &[1]]),
    ("batch", [&[3, 4, 6], &[3, 6, 5]], [&[0], &[0]], [&[2], &[1]]),
    ("batch_inside", [&[4, 3, 6], &[5, 6, 3]], [&[1], &[2]], [&[2], &[1]]),
    ("two_batches", [&[2, 3, 4, 5], &[3, 6, 2, 5]], [&[0, 1], &[2, 0]], [&[3], &[3]]),
    ("heads", [&[2, 5, 3, 4], &[2, 6, 3, 4]], [&[0, 2], &[0, 2]], [&[3], &[3]]),
    ("two_contracted", [&[3, 4, 5], &[5, 6, 4]], [&[], &[]], [&[1, 2], &[2, 0]]),
    ("all_contracted", [&[3, 4], &[4, 3]], [&[], &[]], [&[0, 1], &[1, 0]]),
    ("outer_product", [&[7], &[5]], [&[], &[]], [&[], &[]]),
    ("vector", [&[7, 13], &[13]], [&[], &[]], [&[1], &[0]]),
    ("vectors", [&[13], &[13]], [&[], &[]], [&[0], &[0]]),
    ("scalars", [&[], &[]], [&[], &[]], [&[], &[]]),
    ("only_batch", [&[7, 3], &[3, 7]], [&[0, 1], &[1, 0]], [&[], &[]]),
    ("ones", [&[1, 1, 1], &[1, 1, 9]], [&[0], &[0]], [&[2], &[1]]),
    ("blocks", [&[70, 130], &[130, 67]], [&[], &[]], [&[1], &[0]]),
];

pub(super) fn add(table: &mut Table) {
    for case in CASES {
        product(table, case, DType::F32, DType::F32);
    }
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::F32 && dtype.is_number()) {
        // A plain product, one that transposes, one with batch axes.
        for case in [CASES[0], CASES[2], CASES[5]] {
            product(table, case, dtype, dtype);
            if matches!(dtype, DType::BF16 | DType::F16) {
                product(table, case, dtype, DType::F32);
            }
        }
    }
}

fn product(table: &mut Table, case: Case, from: DType, dtype: DType) {
    let (name, shapes, [lhs_batch, rhs_batch], [lhs_contract, rhs_contract]) = case;
    let values = if from.is_integer() { Values::Bits } else { Values::Between(-1.0, 1.0) };
    let operands = shapes.map(|shape| Operand::new(from, shape, values));
    let dot = DotGeneral {
        lhs_batch: lhs_batch.to_vec(),
        rhs_batch: rhs_batch.to_vec(),
        lhs_contract: lhs_contract.to_vec(),
        rhs_contract: rhs_contract.to_vec(),
        dtype,
    };
    table.op(&format!("{name}.{dtype}"), dot, &operands).tolerance = summation(dtype);
}
