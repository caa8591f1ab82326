//! Values of a program as numbers that formulas compute with: what `kernfusion_runtime::math::elementary` has for vectors becomes
//! instructions.

use super::super::codes::{
    ADD, ADD_INTEGERS, DIV, MAX, MIN, MUL, Operation, PERMUTE, ROUND, SHIFT_LEFT_BY, SIGNED_TO_FLOATS, SUB,
    SUB_INTEGERS, Vectors,
};
use super::super::predicate;
use super::{Constant, LaneProgram, Lanes, Masking, NEAREST, SIGN, Test, float};
use iced_x86::Code;
use kernfusion_runtime::math::vector::{Table, Vector};
use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Sub};

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

    fn op(self, operation: Operation, other: Self) -> Self {
        self.with(|program| program.op(operation, &[self.lanes, other.lanes]))
    }

    /// An instruction on one operand.
    fn by(self, code: Code, immediate: Option<u8>) -> Self {
        self.with(|program| program.instruction(code, &[self.lanes], immediate))
    }

    /// Of eight lanes, which have no instruction for it: x · 2ⁿ in two steps, since 2ⁿ itself need not be a normal number, and zero where the mask
    /// is set.
    fn scaled_by_halves(self, n: Self) -> Self {
        let less = self.with(LaneProgram::mask);
        let without = |x: Self| {
            let code = Code::VEX_Vandnps_ymm_ymm_ymmm256;
            less.with(|program| program.instruction(code, &[less.lanes, x.lanes], None))
        };
        let n = without(n).by(Code::VEX_Vcvtps2dq_ymm_ymmm256, None);
        let half = n.by(Code::VEX_Vpsrad_ymm_ymm_imm8, Some(1));
        let rest = n.op(SUB_INTEGERS, half);
        let power = |n: Self| {
            n.with(|program| {
                let field = program.symmetric(ADD_INTEGERS, n.lanes, Constant(127));
                program.op_by(SHIFT_LEFT_BY, &[field], 23)
            })
        };
        without(self * power(half) * power(rest))
    }

    /// Of eight lanes: [`split`](Vector::split) by the exponent's field.
    fn split_by_field(self) -> (Self, Self) {
        // Subnormal numbers are scaled by 2²³ first.
        let up = self * self.all(8_388_608.0);
        let (small, bits) = {
            let mut program = self.program.borrow_mut();
            program.test(Test::Floats(predicate::LT), self.lanes, float(f32::MIN_POSITIVE));
            (program.mask(), program.blend(self.lanes, up.lanes))
        };
        let bits = Symbol { lanes: bits, ..self };
        // The exponent field of x / √½ is floor(log2(x / √½)).
        let base = Symbol { lanes: Constant(std::f32::consts::FRAC_1_SQRT_2.to_bits()), ..self };
        let e = bits.op(SUB_INTEGERS, base).by(Code::VEX_Vpsrad_ymm_ymm_imm8, Some(23));
        let field = e.with(|program| program.op_by(SHIFT_LEFT_BY, &[e.lanes], 23));
        let m = bits.op(SUB_INTEGERS, field);
        let correction = self.with(|program| program.and(small, float(23.0)));
        (m, e.with(|program| program.op(SIGNED_TO_FLOATS, &[e.lanes])) - correction)
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $operation:ident),*) => {$(
        impl $trait for Symbol<'_> {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                self.op($operation, other)
            }
        }
    )*};
}
operators!(Add add ADD, Sub sub SUB, Mul mul MUL, Div div DIV);

impl Vector for Symbol<'_> {
    fn all(self, value: f32) -> Self {
        Symbol { lanes: float(value), ..self }
    }

    fn fma(a: Self, b: Self, c: Self) -> Self {
        a.with(|program| program.fused(a.lanes, b.lanes, c.lanes))
    }

    fn min(a: Self, b: Self) -> Self {
        a.op(MIN, b)
    }

    fn max(a: Self, b: Self) -> Self {
        a.op(MAX, b)
    }

    fn round(x: Self) -> Self {
        x.with(|program| program.op_by(ROUND, &[x.lanes], NEAREST))
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
            program.test(Test::Floats(predicate::LT), a.lanes, b.lanes);
            program.blend(no, yes.lanes)
        })
    }

    fn scale_unless_less(x: Self, n: Self, a: Self, b: Self) -> Self {
        let vectors = x.program.borrow().vectors;
        if vectors == Vectors::Eight {
            x.program.borrow_mut().test(Test::Floats(predicate::LT), a.lanes, b.lanes);
            return x.scaled_by_halves(n);
        }
        x.with(|program| {
            let operands = program.all_but_last_in_registers(&[x.lanes, n.lanes]);
            program.test(Test::Floats(predicate::NOT_LESS), a.lanes, b.lanes);
            let (result, target) = program.fresh();
            let step = program.push(Code::EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er, target, &operands);
            step.masking = Some(Masking::Zero);
            result
        })
    }

    fn lookup(index: Self, table: &'static Table) -> Self {
        index.with(|program| {
            let index = index.lanes;
            if let Vectors::Sixteen(_) = program.vectors {
                return program.op(PERMUTE, &[index, Lanes::Table(table)]);
            }
            let [lower, upper] =
                [&table[..8], &table[8..]].map(|half| program.op(PERMUTE, &[index, Lanes::Table(half)]));
            // The fourth bit chooses; the blend looks at the sign.
            let fourth = program.op_by(SHIFT_LEFT_BY, &[index], 28);
            program.blend_by(fourth, lower, upper)
        })
    }

    fn split(self) -> (Self, Self) {
        let vectors = self.program.borrow().vectors;
        if vectors == Vectors::Eight {
            return self.split_by_field();
        }
        let e = self.by(Code::EVEX_Vgetexpps_zmm_k1z_zmmm512b32_sae, None);
        let m = self.by(Code::EVEX_Vgetmantps_zmm_k1z_zmmm512b32_imm8_sae, Some(MANTISSA));
        // From [1, 2) to [√½, √2).
        let limit = self.all(std::f32::consts::SQRT_2);
        let (half, next) = (m * self.all(0.5), e + self.all(1.0));
        (Self::where_less(limit, m, half, m), Self::where_less(limit, m, next, e))
    }
}
