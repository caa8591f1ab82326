//! Values of a program as numbers that formulas compute with: what `kernfusion_runtime::math::elementary` has for vectors becomes
//! instructions.

use super::super::predicate;
use super::{Constant, FLOATS, LaneProgram, Lanes, Masking, SIGN, float};
use iced_x86::Code;
use kernfusion_runtime::math::vector::{Table, Vector};
use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Sub};

/// A rounding mode of `vrndscaleps`, without exceptions: to nearest, ties to even.
const NEAREST: u8 = 8;
/// Of `vgetmantps`: from 1 to 2, without the sign.
const MANTISSA: u8 = 4;

/// A value of a program under construction, to be computed with as if it were a register.
#[derive(Clone, Copy)]
pub(super) struct Symbol<'p> {
    pub(super) lanes: Lanes,
    pub(super) program: &'p RefCell<LaneProgram>,
}

impl Symbol<'_> {
    fn with(self, record: impl FnOnce(&mut LaneProgram) -> Lanes) -> Self {
        let lanes = record(&mut self.program.borrow_mut());
        Symbol { lanes, ..self }
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $code:ident),*) => {$(
        impl $trait for Symbol<'_> {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                self.with(|program| program.op(Code::$code, &[self.lanes, other.lanes]))
            }
        }
    )*};
}
operators!(
    Add add EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er,
    Sub sub EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er,
    Mul mul EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er,
    Div div EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er
);

impl Vector for Symbol<'_> {
    fn all(self, value: f32) -> Self {
        Symbol { lanes: float(value), ..self }
    }

    fn fma(a: Self, b: Self, c: Self) -> Self {
        a.with(|program| program.fused(a.lanes, b.lanes, c.lanes))
    }

    fn min(a: Self, b: Self) -> Self {
        a.with(|program| program.op(Code::EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae, &[a.lanes, b.lanes]))
    }

    fn max(a: Self, b: Self) -> Self {
        a.with(|program| program.op(Code::EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae, &[a.lanes, b.lanes]))
    }

    fn round(x: Self) -> Self {
        let code = Code::EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae;
        x.with(|program| program.op_by(code, &[x.lanes], Some(NEAREST)))
    }

    fn abs(x: Self) -> Self {
        x.with(|program| program.and(x.lanes, Constant(!SIGN)))
    }

    fn with_sign(x: Self, sign: Self) -> Self {
        x.with(|program| {
            let sign = program.and(sign.lanes, Constant(SIGN));
            program.or(x.lanes, sign)
        })
    }

    fn where_less(a: Self, b: Self, yes: Self, no: Self) -> Self {
        a.with(|program| {
            // The choice must follow the comparison at once.
            let no = program.register(no.lanes);
            program.test(FLOATS, a.lanes, b.lanes, Some(predicate::LT));
            program.blend(no, yes.lanes)
        })
    }

    fn scale_unless_less(x: Self, n: Self, a: Self, b: Self) -> Self {
        x.with(|program| {
            let operands = program.all_but_last_in_registers(&[x.lanes, n.lanes]);
            program.test(FLOATS, a.lanes, b.lanes, Some(predicate::NOT_LESS));
            let (result, target) = program.fresh();
            let step = program.push(Code::EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er, target, &operands);
            step.masking = Some(Masking::Zero);
            result
        })
    }

    fn lookup(index: Self, table: &'static Table) -> Self {
        let code = Code::EVEX_Vpermps_zmm_k1z_zmm_zmmm512b32;
        index.with(|program| program.op(code, &[index.lanes, Lanes::Table(table)]))
    }

    fn split(self) -> (Self, Self) {
        let e = self.with(|program| program.op(Code::EVEX_Vgetexpps_zmm_k1z_zmmm512b32_sae, &[self.lanes]));
        let code = Code::EVEX_Vgetmantps_zmm_k1z_zmmm512b32_imm8_sae;
        let m = self.with(|program| program.op_by(code, &[self.lanes], Some(MANTISSA)));
        // From [1, 2) to [√½, √2).
        let limit = self.all(std::f32::consts::SQRT_2);
        let (half, next) = (m * self.all(0.5), e + self.all(1.0));
        (Self::where_less(limit, m, half, m), Self::where_less(limit, m, next, e))
    }
}
