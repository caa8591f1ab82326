//! What fusing saves and costs, in seconds of a nominal machine; only ratios matter.

use kernfusion_ir::kernel::{InstrKind, Region};
use kernfusion_ir::{Binary, Op, Unary};

/// Bytes a second from memory.
const BANDWIDTH: f64 = 30e9;
/// Multiplications of a product a second, with their additions.
const PRODUCTS: f64 = 100e9;
/// Cheap scalar operations a second: sixteen lanes a cycle on two cores.
const OPERATIONS: f64 = 100e9;
/// How many cheap operations `exp` and its kin take.
const COSTLY: f64 = 12.0;
/// How many cheap operations a division takes.
const DIVISION: f64 = 10.0;

/// Whether an op is `exp` or its kin.
pub(super) fn is_costly_unary(op: Unary) -> bool {
    match op {
        Unary::Exp | Unary::Log | Unary::Tanh | Unary::Sigmoid | Unary::Erf | Unary::Sin | Unary::Cos => true,
        Unary::Neg | Unary::Abs | Unary::Sign | Unary::Floor | Unary::Round | Unary::Sqrt | Unary::Not => {
            false
        }
    }
}

/// Seconds to move `bytes` bytes.
pub(crate) fn moving(bytes: usize) -> f64 {
    bytes as f64 / BANDWIDTH
}

/// How many cheap operations one element of an elementwise op or reduction takes.
pub(crate) fn operations(op: &Op) -> f64 {
    match op {
        Op::Unary(op) if is_costly_unary(*op) => COSTLY,
        Op::Binary(Binary::Pow) => COSTLY,
        Op::Binary(Binary::Div) => DIVISION,
        _ => 1.0,
    }
}

/// Seconds to compute one element of an elementwise op or reduction.
pub(crate) fn computing_element(op: &Op) -> f64 {
    operations(op) / OPERATIONS
}

/// Seconds to compute a region for `points` points.
pub(super) fn computing(region: &Region, points: usize) -> f64 {
    let operations: f64 = region.instrs.iter().map(|instr| cost(&instr.kind)).sum();
    operations * points as f64 / OPERATIONS
}

/// Seconds for `count` multiplications of a product, with their additions.
pub(crate) fn multiplying(count: usize) -> f64 {
    count as f64 / PRODUCTS
}

/// Seconds to compute one op again for `elements` elements.
pub(super) fn recomputing(elements: usize, costly: bool) -> f64 {
    elements as f64 * if costly { COSTLY } else { 1.0 } / OPERATIONS
}

fn cost(kind: &InstrKind) -> f64 {
    match kind {
        InstrKind::Constant(_) | InstrKind::Coordinate(_) | InstrKind::Producer(_) => 0.0,
        InstrKind::Random { .. } => COSTLY,
        InstrKind::Unary(op, _) => {
            if is_costly_unary(*op) {
                COSTLY
            } else {
                1.0
            }
        }
        InstrKind::Binary(Binary::Pow, ..) => COSTLY,
        InstrKind::Load { .. }
        | InstrKind::Binary(..)
        | InstrKind::Compare(..)
        | InstrKind::Select(..)
        | InstrKind::Cast(_)
        | InstrKind::InRange(_)
        | InstrKind::Reduce(..) => 1.0,
    }
}
