//! Whole numbers: how large they can be.
//!
//! Quantized models take bytes apart from their zero points and put them together again, and convert sums of their products to
//! integers and back. None of that changes a whole number that its type has room for.

use super::language::Facts;
use kernfusion_ir::{Binary, DType, KernelEntry, Literal, Op, ReduceOp, TensorType, Unary};

/// All that is known of whole numbers that may be infinite or NaN, too.
const UNKNOWN: f64 = f64::INFINITY;

/// The largest magnitude of what an op makes, if all of it is whole: ⌊x⌋ = x.
pub(super) fn bound(op: &Op, operands: &[&Facts], ty: &TensorType) -> Option<Literal> {
    let bound = of_op(op, operands, ty);
    let dtype = ty.dtype;
    let bound = match dtype {
        _ if dtype.is_float() => bound?,
        // What is below 0 becomes the largest of them.
        DType::U32 => dtype.highest(),
        _ => bound.filter(|&bound| bound <= dtype.highest()).unwrap_or(dtype.highest().max(-dtype.lowest())),
    };
    Some(Literal::new(if bound.is_nan() { UNKNOWN } else { bound }))
}

/// The magnitude of a number, if it is whole.
pub(super) fn of_number(number: Literal) -> Option<Literal> {
    let number = number.value();
    (number.fract() == 0.0).then(|| Literal::new(number.abs()))
}

fn of_op(op: &Op, operands: &[&Facts], ty: &TensorType) -> Option<f64> {
    let whole = |place: usize| operands[place].whole.map(Literal::value);
    let both = || Some((whole(0)?, whole(1)?));
    let largest = |bounds: (f64, f64)| bounds.0.max(bounds.1);
    let terms = |axes: &[usize]| axes.iter().map(|&axis| operands[0].ty.shape[axis]).product::<usize>();
    match op {
        Op::Unary(Unary::Round | Unary::Floor) => Some(whole(0).unwrap_or(UNKNOWN)),
        Op::Unary(Unary::Neg | Unary::Abs) => whole(0),
        Op::Cast(_) => whole(0).map(|x| rounded(x, 1, ty.dtype)),
        Op::Binary(Binary::Add | Binary::Sub) => both().map(|(x, y)| rounded(x + y, 2, ty.dtype)),
        Op::Binary(Binary::Mul) => both().map(|(x, y)| rounded(x * y, 1, ty.dtype)),
        Op::Binary(Binary::Max | Binary::Min) => both().map(largest),
        Op::Select(_) => Some(largest((whole(1)?, whole(2)?))),
        Op::Concat(_) => {
            (0..operands.len()).try_fold(0.0, |bound, part| Some(largest((bound, whole(part)?))))
        }
        Op::Pad(pad) => Some(largest((whole(0)?, of_number(pad.value)?.value()))),
        Op::Reduce(reduce) => {
            let terms = terms(&reduce.axes);
            match reduce.op {
                ReduceOp::Sum => whole(0).map(|x| rounded(terms as f64 * x, terms, ty.dtype)),
                ReduceOp::Max | ReduceOp::Min if terms > 0 => whole(0),
                _ => None,
            }
        }
        Op::DotGeneral(dot) => {
            let terms = terms(&dot.lhs_contract);
            both().map(|(x, y)| rounded(terms as f64 * x * y, terms, ty.dtype))
        }
        op if op.entry() == KernelEntry::View => whole(0),
        _ => None,
    }
}

/// The bound of a sum that is rounded after each of its terms, where the bound of the exact one is known.
fn rounded(exact: f64, terms: usize, dtype: DType) -> f64 {
    let room = dtype.largest_whole();
    match exact <= room {
        true => exact,
        // Each rounding adds at most one of `room` parts: all of them together less than the sum itself.
        false if dtype.is_float() && terms as f64 <= room / 2.0 => dtype.round(2.0 * exact),
        false => UNKNOWN,
    }
}
