//! Patterns: where bounds hold, if that depends on the place within a run alone, or on which of the runs that a loop walks it is, as bits that are
//! known before the loop runs. Windows on [images](super::super::images) have one for each of their places.

use super::Row;
use kernfusion_ir::kernel::{Bound, Index, InstrKind, Scalar};
use kernfusion_ir::{Binary, DType};

/// Vectors at most of which a program has patterns, so that they stay in L1.
const VECTORS: usize = 256;

/// A word of sixteen bits for sixteen places of each run; `None` if the bounds depend on more than that.
pub(super) fn of(row: &Row, bounds: &[&Bound]) -> Option<Vec<u16>> {
    let (points, runs) = (row.axes[row.inner()], runs(row));
    let vectors = points.div_ceil(16);
    if vectors * runs > VECTORS || bounds.is_empty() {
        return None;
    }
    let mut words = vec![0; vectors * runs];
    for (run, point) in (0..runs).flat_map(|run| (0..points).map(move |point| (run, point))) {
        let place = [run as i64, point as i64];
        let holds = |bound: &&Bound| {
            Some((0..bound.extent as i64).contains(&index_at(row, &bound.coordinate, place)?))
        };
        if bounds.iter().map(holds).collect::<Option<Vec<_>>>()?.into_iter().all(|holds| holds) {
            words[run * vectors + point / 16] |= 1 << (point % 16);
        }
    }
    Some(words)
}

/// How many runs have patterns of their own: those that a loop walks, if bounds depend on which it is.
pub(super) fn runs(row: &Row) -> usize {
    let Some(axis) = row.run_within() else { return 1 };
    let depends = |bound: &Bound| bound.coordinate.strides[axis] != 0;
    let is_bounded = row.region.instrs.iter().any(|instr| match &instr.kind {
        InstrKind::Load { guard: bounds, .. } | InstrKind::InRange(bounds) => bounds.iter().any(depends),
        _ => false,
    });
    if is_bounded { row.axes[axis] } else { 1 }
}

/// An index at a point of a run, if that tells it.
fn index_at(row: &Row, index: &Index, [run, point]: [i64; 2]) -> Option<i64> {
    let (inner, walked) = (row.inner(), row.run_within());
    let elsewhere = (0..inner).filter(|&axis| Some(axis) != walked);
    if elsewhere.map(|axis| index.strides[axis]).any(|stride| stride != 0) {
        return None;
    }
    let term = |value, limit: usize| Some(value_at(row, value, [run, point])?.clamp(0, limit as i64 - 1));
    let terms = index.indirect.iter().map(|at| Some(term(at.value, at.limit)? * at.stride));
    let of_run = walked.map_or(0, |axis| index.strides[axis] * run);
    Some(index.offset + of_run + index.strides[inner] * point + terms.sum::<Option<i64>>()?)
}

/// A `u32` at a point of the run, as [images](super::super::images) compute them.
fn value_at(row: &Row, value: Scalar, place: [i64; 2]) -> Option<i64> {
    let instr = row.region.instr(value);
    if instr.dtype != DType::U32 {
        return None;
    }
    let number = match &instr.kind {
        InstrKind::Constant(number) => number.value() as i64,
        InstrKind::Coordinate(index) => index_at(row, index, place)?,
        InstrKind::Binary(op, x, y) => {
            let (x, y) = (value_at(row, *x, place)?, value_at(row, *y, place)?);
            match op {
                Binary::Mul => x.wrapping_mul(y),
                Binary::Sub => x - y,
                Binary::Shr if y < 32 => x >> y,
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(i64::from(number as u32))
}
