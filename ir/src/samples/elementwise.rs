//! Samples of elementwise ops.

use super::{Operand, Table, Values};
use crate::{Binary, Cast, Compare, DType, Op, Select, TensorType, Unary};

const SHAPES: [&[usize]; 6] = [&[7, 13], &[], &[1], &[1027], &[1, 5, 1], &[2, 3, 4, 5]];

/// Numbers at which floats differ from real numbers.
const EDGES: [f64; 12] =
    [0.0, -0.0, 1.0, -1.5, 2.0, 2.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e30, -1e30, 100.0];
/// The same, in an order that lets many pairs meet.
const OTHER_EDGES: [f64; 7] = [f64::NAN, 0.0, f64::INFINITY, -1.5, f64::NEG_INFINITY, 1.0, -0.0];

pub(super) fn add(table: &mut Table) {
    for op in Unary::ALL {
        every_dtype(table, op.into(), 1, |_, dtype| unary_values(op, dtype));
        // The sine of infinity is left out: argument reduction of huge numbers is not worth its time in a kernel.
        if !matches!(op, Unary::Sin | Unary::Cos | Unary::Not) {
            let operand = Operand::new(DType::F32, &[EDGES.len()], Values::Listed(&EDGES));
            table.op("edges", op, &[operand]).gradient = false;
        }
    }
    for op in Binary::ALL {
        every_dtype(table, op.into(), 2, |slot, dtype| binary_values(op, dtype, slot));
    }
    for op in [Binary::Add, Binary::Mul, Binary::Div, Binary::Max, Binary::Min] {
        edges(table, op.into());
    }
    powers(table);
    for op in Compare::ALL {
        every_dtype(table, op.into(), 2, |_, _| Values::Few(&[0.0, 1.0, 2.0, 3.0]));
        edges(table, op.into());
    }
    selections(table);
    conversions(table);
}

/// The op on every dtype that it accepts, and on every shape with the first of them.
fn every_dtype(table: &mut Table, op: Op, operands: usize, values: impl Fn(usize, DType) -> Values) {
    let accepts = |dtype: &DType| op.infer(&vec![&TensorType::scalar(*dtype); operands]).is_ok();
    for (number, dtype) in DType::ALL.into_iter().filter(accepts).enumerate() {
        for shape in if number == 0 { &SHAPES[..] } else { &SHAPES[..1] } {
            let operand = |slot| Operand::new(dtype, shape, values(slot, dtype));
            let operands: Vec<_> = (0..operands).map(operand).collect();
            table.op(&format!("{shape:?}"), op.clone(), &operands);
        }
    }
}

fn edges(table: &mut Table, op: Op) {
    let pairs = [EDGES.len() * OTHER_EDGES.len()];
    let x = Operand::new(DType::F32, &pairs, Values::Listed(&EDGES));
    let y = Operand::new(DType::F32, &pairs, Values::Listed(&OTHER_EDGES));
    table.op("edges", op, &[x, y]).gradient = false;
}

fn unary_values(op: Unary, dtype: DType) -> Values {
    match op {
        _ if dtype.is_integer() => Values::Bits,
        Unary::Neg | Unary::Not | Unary::Tanh | Unary::Sigmoid | Unary::Erf => Values::Between(-3.0, 3.0),
        Unary::Abs | Unary::Sign | Unary::Floor => Values::OffWhole,
        Unary::Round => Values::Few(&[-2.6, -1.4, -0.7, 0.0, 0.4, 0.8, 2.3, 3.9]),
        Unary::Exp => Values::Between(-4.0, 4.0),
        Unary::Log | Unary::Sqrt => Values::Between(0.1, 4.0),
        Unary::Sin | Unary::Cos => Values::Between(-6.0, 6.0),
    }
}

fn binary_values(op: Binary, dtype: DType, slot: usize) -> Values {
    match (op, slot) {
        (Binary::Shl | Binary::Shr, 1) => Values::Between(0.0, 40.0),
        _ if dtype.is_integer() => Values::Bits,
        (Binary::Div, 1) | (Binary::Pow, 0) => Values::Between(0.5, 3.0),
        _ => Values::Between(-3.0, 3.0),
    }
}

/// Powers of negative numbers and of zero, where `exp(y·ln x)` is not enough.
fn powers(table: &mut Table) {
    const BASES: [f64; 8] = [-2.0, -2.0, -0.5, -3.0, 0.0, 0.0, 5.0, -2.0];
    const EXPONENTS: [f64; 8] = [3.0, 2.0, -1.0, 0.0, 2.0, 0.0, 1.0, 0.5];
    let base = Operand::new(DType::F32, &[8], Values::Listed(&BASES));
    let exponent = Operand::new(DType::F32, &[8], Values::Listed(&EXPONENTS));
    table.op("edges", Binary::Pow, &[base, exponent]).gradient = false;
}

fn selections(table: &mut Table) {
    for dtype in DType::ALL {
        for shape in if dtype == DType::F32 { &SHAPES[..] } else { &SHAPES[..1] } {
            let condition = Operand::tame(DType::Bool, shape);
            let choice = Operand::new(dtype, shape, Values::Between(-3.0, 3.0));
            let case = format!("{shape:?}.{dtype}");
            table.op(&case, Select, &[condition, choice.clone(), choice]).tolerance = 0.0;
        }
    }
}

/// Every pair of dtypes, and floats that no integer holds.
fn conversions(table: &mut Table) {
    for from in DType::ALL {
        for to in DType::ALL {
            let values = if from.is_integer() || from == DType::I8 {
                Values::Bits
            } else {
                Values::Between(-300.0, 300.0)
            };
            table.op(&format!("{to}"), Cast { dtype: to }, &[Operand::new(from, &[7, 13], values)]);
        }
    }
    for to in DType::ALL {
        let edges = Operand::new(DType::F32, &[EDGES.len()], Values::Listed(&EDGES));
        table.op(&format!("edges.{to}"), Cast { dtype: to }, &[edges]).gradient = false;
    }
}
