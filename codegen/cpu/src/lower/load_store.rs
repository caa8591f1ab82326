//! Elements in memory to lanes and back: `bf16` and `f16` as integers, truth values as bytes.

use super::builder::{Code, flags, lane};
use cranelift::prelude::*;
use kernfusion_ir::DType;

/// Bits of an `f32` without its sign.
const MAGNITUDE: u32 = 0x7fff_ffff;
/// The quiet bit of a NaN.
const QUIET: u32 = 0x0040_0000;
/// What the exponents of `f32` and `f16` differ by, in an `f32`'s place.
const BIAS: u32 = 112 << 23;

impl Code<'_, '_> {
    /// The address of element `i` of memory at `base`; the constant part stays out, for the instruction's offset.
    pub(super) fn element(&mut self, base: Value, i: Value, dtype: DType) -> Value {
        let bytes = self.times(i, dtype.size() as i64);
        self.b.ins().iadd(base, bytes)
    }

    /// Reads `width` consecutive elements.
    pub(super) fn read(&mut self, dtype: DType, address: Value, offset: i32, width: usize) -> Value {
        let wide = self.wide(lane(dtype), width);
        match dtype {
            DType::F32 | DType::F64 | DType::I32 | DType::U32 => {
                self.b.ins().load(wide, flags(), address, offset)
            }
            DType::BF16 | DType::F16 => {
                let bits = match width {
                    1 => self.b.ins().uload16(types::I32, flags(), address, offset),
                    _ => self.b.ins().uload16x4(flags(), address, offset),
                };
                if dtype == DType::BF16 {
                    let high = self.b.ins().ishl_imm_u(bits, 16);
                    self.cast_bits(high, wide)
                } else {
                    self.widen_half(bits, wide)
                }
            }
            DType::I8 => match width {
                1 => self.b.ins().sload8(types::I32, flags(), address, offset),
                _ => {
                    let bytes = self.bytes(address, offset);
                    let halves = self.b.ins().swiden_low(bytes);
                    self.b.ins().swiden_low(halves)
                }
            },
            DType::Bool => {
                let bytes = match width {
                    1 => self.b.ins().uload8(types::I32, flags(), address, offset),
                    _ => {
                        let bytes = self.bytes(address, offset);
                        let halves = self.b.ins().uwiden_low(bytes);
                        self.b.ins().uwiden_low(halves)
                    }
                };
                let zero = self.bits(0, wide);
                self.icmp(IntCC::NotEqual, bytes, zero)
            }
        }
    }

    /// Four bytes, the first ones of a vector.
    fn bytes(&mut self, address: Value, offset: i32) -> Value {
        let word = self.b.ins().load(types::I32, flags(), address, offset);
        let words = self.b.ins().scalar_to_vector(types::I32X4, word);
        self.cast_bits(words, types::I8X16)
    }

    /// Writes lanes to consecutive elements. Values of 16-bit floats are already rounded.
    pub(super) fn write(&mut self, dtype: DType, value: Value, address: Value, offset: i32) {
        let wide = self.ty(value).is_vector();
        let stored = match dtype {
            DType::F32 | DType::F64 | DType::I32 | DType::U32 => value,
            DType::BF16 | DType::F16 => {
                let bits = self.cast_bits(value, self.mask_type(value));
                let bits = match dtype {
                    DType::BF16 => self.b.ins().ushr_imm_u(bits, 16),
                    _ => self.narrow_half(bits),
                };
                if wide {
                    let words = self.b.ins().unarrow(bits, bits);
                    let words = self.cast_bits(words, types::I64X2);
                    self.b.ins().extractlane(words, 0)
                } else {
                    self.b.ins().ireduce(types::I16, bits)
                }
            }
            DType::I8 | DType::Bool => {
                let number = if dtype == DType::Bool { self.b.ins().ineg(value) } else { value };
                if wide {
                    let words = self.b.ins().snarrow(number, number);
                    let bytes = self.b.ins().snarrow(words, words);
                    let bytes = self.cast_bits(bytes, types::I32X4);
                    self.b.ins().extractlane(bytes, 0)
                } else {
                    self.b.ins().ireduce(types::I8, number)
                }
            }
        };
        self.b.ins().store(flags(), stored, address, offset);
    }

    /// The nearest value of `dtype`, ties to even; only 16-bit floats need it.
    pub(super) fn rounded(&mut self, value: Value, dtype: DType) -> Value {
        match dtype {
            DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I8 | DType::Bool => value,
            DType::BF16 => {
                let (ty, bits_type) = (self.ty(value), self.mask_type(value));
                let bits = self.cast_bits(value, bits_type);
                let near = self.round_bits(bits, 16);
                let quiet = self.bits(QUIET, bits_type);
                let nan = self.b.ins().bor(bits, quiet);
                let is_nan = self.fcmp(FloatCC::Unordered, value, value);
                let either = self.choose(is_nan, nan, near);
                let high = self.bits(0xffff_0000, bits_type);
                let kept = self.b.ins().band(either, high);
                self.cast_bits(kept, ty)
            }
            DType::F16 => self.round_half(value),
        }
    }

    /// Adds just under half of the last place that stays, and the rest of it where that place is odd.
    fn round_bits(&mut self, bits: Value, dropped: u32) -> Value {
        let ty = self.ty(bits);
        let last = self.b.ins().ushr_imm_u(bits, i64::from(dropped));
        let one = self.bits(1, ty);
        let odd = self.b.ins().band(last, one);
        let half = self.bits((1 << (dropped - 1)) - 1, ty);
        let more = self.b.ins().iadd(odd, half);
        self.b.ins().iadd(bits, more)
    }

    /// An `f32` rounded to a value of `f16`.
    fn round_half(&mut self, value: Value) -> Value {
        let (ty, bits_type) = (self.ty(value), self.mask_type(value));
        let bits = self.cast_bits(value, bits_type);
        let mask = self.bits(MAGNITUDE, bits_type);
        let magnitude = self.b.ins().band(bits, mask);
        let normal = self.round_bits(magnitude, 13);
        let kept = self.bits(!0x1fff, bits_type);
        let normal = self.b.ins().band(normal, kept);
        // Beside ½ the last place of an f32 is 2⁻²⁴, the last place of subnormal numbers of f16.
        let half = self.bits(0.5f32.to_bits(), ty);
        let small = self.cast_bits(magnitude, ty);
        let small = self.b.ins().fadd(small, half);
        let small = self.b.ins().fsub(small, half);
        let small = self.cast_bits(small, bits_type);
        let least = self.bits(113 << 23, bits_type);
        let is_small = self.icmp(IntCC::UnsignedLessThan, magnitude, least);
        let finite = self.choose(is_small, small, normal);
        // From 65520 on the nearest value is infinity; NaN stays.
        let infinity = self.bits(f32::INFINITY.to_bits(), bits_type);
        let largest = self.b.ins().umax(magnitude, infinity);
        let limit = self.bits(0x477f_f000, bits_type);
        let is_large = self.icmp(IntCC::UnsignedGreaterThanOrEqual, magnitude, limit);
        let result = self.choose(is_large, largest, finite);
        let sign = self.b.ins().bxor(bits, magnitude);
        let result = self.b.ins().bor(result, sign);
        self.cast_bits(result, ty)
    }

    /// The bits of an `f16`, in an integer, as an `f32`.
    fn widen_half(&mut self, bits: Value, ty: Type) -> Value {
        let bits_type = self.ty(bits);
        let rest = self.bits(0x7fff, bits_type);
        let rest = self.b.ins().band(bits, rest);
        let sign = self.b.ins().bxor(bits, rest);
        let sign = self.b.ins().ishl_imm_u(sign, 16);
        let magnitude = self.b.ins().ishl_imm_u(rest, 13);
        // Moves the exponent; exact for subnormal numbers too.
        let scale = self.bits((127 + 112) << 23, ty);
        let finite = self.cast_bits(magnitude, ty);
        let finite = self.b.ins().fmul(finite, scale);
        let finite = self.cast_bits(finite, bits_type);
        let infinity = self.bits(f32::INFINITY.to_bits(), bits_type);
        let special = self.b.ins().bor(magnitude, infinity);
        let limit = self.bits(0x7c00, bits_type);
        let is_special = self.icmp(IntCC::UnsignedGreaterThanOrEqual, rest, limit);
        let result = self.choose(is_special, special, finite);
        let result = self.b.ins().bor(result, sign);
        self.cast_bits(result, ty)
    }

    /// The 16 bits of a value of `f16` from its bits as an `f32`.
    fn narrow_half(&mut self, bits: Value) -> Value {
        let ty = self.ty(bits);
        let float = if ty.is_vector() { types::F32X4 } else { types::F32 };
        let mask = self.bits(MAGNITUDE, ty);
        let magnitude = self.b.ins().band(bits, mask);
        let bias = self.bits(BIAS, ty);
        let normal = self.b.ins().isub(magnitude, bias);
        let normal = self.b.ins().ushr_imm_u(normal, 13);
        let half = self.bits(0.5f32.to_bits(), float);
        let small = self.cast_bits(magnitude, float);
        let small = self.b.ins().fadd(small, half);
        let small = self.cast_bits(small, ty);
        let half = self.cast_bits(half, ty);
        let small = self.b.ins().isub(small, half);
        let least = self.bits(113 << 23, ty);
        let is_small = self.icmp(IntCC::UnsignedLessThan, magnitude, least);
        let finite = self.choose(is_small, small, normal);
        // Infinity and NaN: the exponent's five ones, and the upper bits of the payload.
        let special = self.b.ins().ushr_imm_u(magnitude, 13);
        let low = self.bits(0x3ff, ty);
        let special = self.b.ins().band(special, low);
        let exponent = self.bits(0x7c00, ty);
        let special = self.b.ins().bor(special, exponent);
        let infinity = self.bits(f32::INFINITY.to_bits(), ty);
        let is_special = self.icmp(IntCC::UnsignedGreaterThanOrEqual, magnitude, infinity);
        let result = self.choose(is_special, special, finite);
        let sign = self.b.ins().bxor(bits, magnitude);
        let sign = self.b.ins().ushr_imm_u(sign, 16);
        self.b.ins().bor(result, sign)
    }
}
