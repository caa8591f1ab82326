//! Immediate operands of comparisons; those of floats are quiet, and the same for all vectors.

use kernfusion_ir::Compare;

pub(super) const LT: u8 = 0x11;
pub(super) const GT: u8 = 0x1e;
pub(super) const UNORDERED: u8 = 0x03;
pub(super) const ORDERED: u8 = 0x07;
/// Also where an operand is NaN.
pub(super) const NOT_LESS: u8 = 0x15;

pub(super) fn of_floats(op: Compare) -> u8 {
    match op {
        Compare::Eq => 0x00,
        Compare::Ne => 0x04,
        Compare::Lt => LT,
        Compare::Le => 0x12,
        Compare::Gt => GT,
        Compare::Ge => 0x1d,
    }
}

/// Of AVX-512.
pub(super) fn of_integers(op: Compare) -> u8 {
    match op {
        Compare::Eq => 0,
        Compare::Ne => 4,
        Compare::Lt => 1,
        Compare::Le => 2,
        Compare::Gt => 6,
        Compare::Ge => 5,
    }
}
