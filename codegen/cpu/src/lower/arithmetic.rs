//! The scalar instructions of kernel IR in Cranelift, one arm each.

use super::builder::{Code, lane};
use cranelift::prelude::*;
use kernfusion_ir::{Binary, Compare, DType, ReduceOp, Unary};

impl Code<'_, '_> {
    /// An elementwise op of one operand that is an instruction; of `dtype`.
    pub(super) fn unary(&mut self, op: Unary, dtype: DType, x: Value) -> Value {
        let ty = self.ty(x);
        let float = dtype.is_float();
        match op {
            Unary::Neg if float => self.b.ins().fneg(x),
            Unary::Neg => self.b.ins().ineg(x),
            Unary::Abs if float => self.b.ins().fabs(x),
            Unary::Abs => self.b.ins().iabs(x),
            Unary::Sign if float => {
                let [zero, one, minus] = [0.0, 1.0, -1.0].map(|value| self.constant(value, dtype, ty));
                let positive = self.fcmp(FloatCC::GreaterThan, x, zero);
                let negative = self.fcmp(FloatCC::LessThan, x, zero);
                // Zeros keep their sign, and NaN stays NaN.
                let rest = self.choose(negative, minus, x);
                self.choose(positive, one, rest)
            }
            Unary::Sign => {
                let [one, minus] = [1.0, -1.0].map(|value| self.constant(value, DType::I32, ty));
                let low = self.b.ins().smax(x, minus);
                self.b.ins().smin(low, one)
            }
            Unary::Floor => self.b.ins().floor(x),
            Unary::Round => self.b.ins().nearest(x),
            Unary::Sqrt => {
                let root = self.b.ins().sqrt(x);
                self.rounded(root, dtype)
            }
            Unary::Not => self.b.ins().bnot(x),
            Unary::Exp | Unary::Log | Unary::Tanh | Unary::Sigmoid | Unary::Erf | Unary::Sin | Unary::Cos => {
                unreachable!("a primitive computes it")
            }
        }
    }

    /// An elementwise op of two operands of `dtype` that is an instruction.
    pub(super) fn binary(&mut self, op: Binary, dtype: DType, x: Value, y: Value) -> Value {
        let float = dtype.is_float();
        let result = match op {
            Binary::Add if float => self.b.ins().fadd(x, y),
            Binary::Add => self.b.ins().iadd(x, y),
            Binary::Sub if float => self.b.ins().fsub(x, y),
            Binary::Sub => self.b.ins().isub(x, y),
            Binary::Mul if float => self.b.ins().fmul(x, y),
            Binary::Mul => self.b.ins().imul(x, y),
            Binary::Div => self.b.ins().fdiv(x, y),
            Binary::Max => return self.extremum(FloatCC::GreaterThan, dtype, x, y),
            Binary::Min => return self.extremum(FloatCC::LessThan, dtype, x, y),
            Binary::And => self.b.ins().band(x, y),
            Binary::Or => self.b.ins().bor(x, y),
            Binary::Xor => self.b.ins().bxor(x, y),
            // Vectors shift by one amount for all lanes only.
            Binary::Shl => self.by_lanes(&[x, y], |code, v| code.shift(v, |b, x, y| b.ins().ishl(x, y))),
            Binary::Shr => self.by_lanes(&[x, y], |code, v| code.shift(v, |b, x, y| b.ins().ushr(x, y))),
            Binary::Pow => unreachable!("a primitive computes it"),
        };
        self.rounded(result, dtype)
    }

    /// A shift whose result is 0 from 32 bits on; the machine's would start again.
    fn shift(
        &mut self,
        operands: &[Value],
        shift: impl Fn(&mut FunctionBuilder<'_>, Value, Value) -> Value,
    ) -> Value {
        let shifted = shift(&mut self.b, operands[0], operands[1]);
        let inside = self.b.ins().icmp_imm_s(IntCC::UnsignedLessThan, operands[1], 32);
        let zero = self.b.ins().iconst(types::I32, 0);
        self.b.ins().select(inside, shifted, zero)
    }

    /// The operand that wins the comparison; NaN if either is.
    fn extremum(&mut self, wins: FloatCC, dtype: DType, x: Value, y: Value) -> Value {
        let largest = wins == FloatCC::GreaterThan;
        match dtype {
            DType::U32 | DType::Bool if largest => self.b.ins().umax(x, y),
            DType::U32 | DType::Bool => self.b.ins().umin(x, y),
            DType::I32 | DType::I8 if largest => self.b.ins().smax(x, y),
            DType::I32 | DType::I8 => self.b.ins().smin(x, y),
            DType::F32 | DType::BF16 | DType::F16 | DType::F64 => {
                // A comparison with a NaN is false, so that y is chosen: right if y is the NaN.
                let won = self.fcmp(wins, x, y);
                let nan = self.fcmp(FloatCC::Unordered, x, x);
                let first = self.b.ins().bor(won, nan);
                self.choose(first, x, y)
            }
        }
    }

    /// Combines two partial results of a reduction over values of `dtype`.
    pub(super) fn combine(&mut self, op: ReduceOp, dtype: DType, x: Value, y: Value) -> Value {
        // Partial results of 16-bit floats stay in `f32`.
        let dtype = if matches!(dtype, DType::BF16 | DType::F16) { DType::F32 } else { dtype };
        match op {
            ReduceOp::Sum => self.binary(Binary::Add, dtype, x, y),
            ReduceOp::Max => self.binary(Binary::Max, dtype, x, y),
            ReduceOp::Min => self.binary(Binary::Min, dtype, x, y),
        }
    }

    /// A comparison of two operands of `dtype`; with NaN only `ne` holds.
    pub(super) fn compare(&mut self, op: Compare, dtype: DType, x: Value, y: Value) -> Value {
        if dtype.is_float() {
            let condition = match op {
                Compare::Eq => FloatCC::Equal,
                Compare::Ne => FloatCC::NotEqual,
                Compare::Lt => FloatCC::LessThan,
                Compare::Le => FloatCC::LessThanOrEqual,
                Compare::Gt => FloatCC::GreaterThan,
                Compare::Ge => FloatCC::GreaterThanOrEqual,
            };
            return self.fcmp(condition, x, y);
        }
        let signed = match op {
            Compare::Eq => IntCC::Equal,
            Compare::Ne => IntCC::NotEqual,
            Compare::Lt => IntCC::SignedLessThan,
            Compare::Le => IntCC::SignedLessThanOrEqual,
            Compare::Gt => IntCC::SignedGreaterThan,
            Compare::Ge => IntCC::SignedGreaterThanOrEqual,
        };
        // Masks compare as unsigned numbers, too: true is all ones.
        self.icmp(if matches!(dtype, DType::I32 | DType::I8) { signed } else { signed.unsigned() }, x, y)
    }

    /// A conversion between dtypes. Floats to integers saturate, NaN becomes 0; all saturate to `i8`; anything but zero is true.
    pub(super) fn convert(&mut self, x: Value, from: DType, to: DType) -> Value {
        let ty = self.wide(lane(to), self.ty(x).lane_count() as usize);
        let mask = self.mask_type(x);
        let converted = match (from, to) {
            _ if from == to => return x,
            (DType::F64, DType::F32 | DType::BF16 | DType::F16) => self.b.ins().fdemote(ty, x),
            (DType::F32 | DType::BF16 | DType::F16, DType::F64) => self.b.ins().fpromote(ty, x),
            (DType::F32 | DType::BF16 | DType::F16, DType::F32 | DType::BF16 | DType::F16) => x,
            (DType::F32 | DType::BF16 | DType::F16 | DType::F64, DType::I32) => {
                self.b.ins().fcvt_to_sint_sat(ty, x)
            }
            (DType::F32 | DType::BF16 | DType::F16 | DType::F64, DType::U32) => {
                self.b.ins().fcvt_to_uint_sat(ty, x)
            }
            (_, DType::I8) => {
                let whole = match from {
                    DType::U32 => {
                        let most = self.bits(i8::MAX as u32, mask);
                        self.b.ins().umin(x, most)
                    }
                    _ => self.convert(x, from, DType::I32),
                };
                let [least, most] = [i8::MIN, i8::MAX].map(|bound| self.bits(bound as u32, mask));
                let bounded = self.b.ins().smax(whole, least);
                self.b.ins().smin(bounded, most)
            }
            (DType::F32 | DType::BF16 | DType::F16 | DType::F64, DType::Bool) => {
                let zero = self.constant(0.0, from, self.ty(x));
                self.fcmp(FloatCC::NotEqual, x, zero)
            }
            (DType::I32 | DType::U32 | DType::I8, DType::I32 | DType::U32) => x,
            (DType::I32 | DType::U32 | DType::I8, DType::Bool) => {
                let zero = self.bits(0, mask);
                self.icmp(IntCC::NotEqual, x, zero)
            }
            (DType::I32 | DType::I8, _) => self.b.ins().fcvt_from_sint(ty, x),
            (DType::U32, _) => self.b.ins().fcvt_from_uint(ty, x),
            (DType::Bool, DType::I32 | DType::U32) => {
                let one = self.bits(1, mask);
                self.b.ins().band(x, one)
            }
            (DType::Bool, DType::F64) => {
                let truth = self.b.ins().ineg(x);
                self.b.ins().fcvt_from_sint(ty, truth)
            }
            (DType::Bool, DType::F32 | DType::BF16 | DType::F16 | DType::Bool) => {
                let one = self.bits(1.0f32.to_bits(), mask);
                let bits = self.b.ins().band(x, one);
                self.cast_bits(bits, ty)
            }
            (DType::F64, DType::F64) => x,
        };
        self.rounded(converted, to)
    }
}
