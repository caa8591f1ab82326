//! Patterns: where bounds hold, if that depends on the place within a run alone, as bits that are known before the loop runs. Windows on
//! [images](super::super::images) have as many of them as places.

use super::Row;
use kernfusion_ir::Binary;
use kernfusion_ir::kernel::{Bound, Index, InstrKind, Scalar};

/// Points of a run at most, so that its patterns stay in L1.
const POINTS: usize = 4096;

/// A word of sixteen bits for sixteen places each; `None` if the bounds depend on more than that, or are worth no pattern.
pub(super) fn of(row: &Row, bounds: &[&Bound]) -> Option<Vec<u16>> {
    let points = row.axes[row.inner()];
    let looks_up = |bound: &&Bound| !bound.coordinate.indirect.is_empty();
    if points > POINTS || !bounds.iter().any(looks_up) {
        return None;
    }
    let mut words = vec![0; points.div_ceil(16)];
    for point in 0..points {
        let holds = |bound: &&Bound| {
            Some((0..bound.extent as i64).contains(&index_at(row, &bound.coordinate, point as i64)?))
        };
        if bounds.iter().map(holds).collect::<Option<Vec<_>>>()?.into_iter().all(|holds| holds) {
            words[point / 16] |= 1 << (point % 16);
        }
    }
    Some(words)
}

/// An index at a point of the run, if that tells it.
fn index_at(row: &Row, index: &Index, point: i64) -> Option<i64> {
    let inner = row.inner();
    if index.strides[..inner].iter().any(|&stride| stride != 0) {
        return None;
    }
    let term = |value, limit: usize| Some(value_at(row, value, point)?.clamp(0, limit as i64 - 1));
    let terms = index.indirect.iter().map(|at| Some(term(at.value, at.limit)? * at.stride));
    Some(index.offset + index.strides[inner] * point + terms.sum::<Option<i64>>()?)
}

/// A whole number at a point of the run, as [images](super::super::images) compute them.
fn value_at(row: &Row, value: Scalar, point: i64) -> Option<i64> {
    match &row.region.instr(value).kind {
        InstrKind::Constant(number) => Some(number.value() as i64),
        InstrKind::Coordinate(index) => index_at(row, index, point),
        InstrKind::Binary(op, x, y) => {
            let (x, y) = (value_at(row, *x, point)?, value_at(row, *y, point)?);
            match op {
                Binary::Mul => Some(x * y),
                Binary::Sub => Some(x - y),
                Binary::Shr => Some(x >> y),
                _ => None,
            }
        }
        _ => None,
    }
}
