//! A function under construction: Cranelift's builder, and scalar instructions of kernel IR on scalars and vectors.
//!
//! How values are held: `f32`, `bf16` and `f16` as `f32`; `f64`, `i32` and `u32` as themselves; a truth value as a
//! mask, an `i32` that is 0 or −1. Vectors have four lanes, and every function here takes either width and tells it
//! from the operands. Arithmetic on `bf16` and `f16` is rounded after every instruction.

use super::wide::Wide;
use cranelift::codegen::ir::{BlockArg, ConstantData, FuncRef};
use cranelift::module::{Linkage, Module};
use cranelift::prelude::*;
use kernfusion_ir::DType;
use std::collections::HashMap;

/// Lanes of a vector.
pub(super) const LANES: usize = 4;

/// A function under construction.
pub(super) struct Code<'f, 'm> {
    pub(super) b: FunctionBuilder<'f>,
    pub(super) module: &'m mut dyn Module,
    /// How the names of tile primitives begin.
    prefix: &'static str,
    /// Loops over whole vectors, where the machine can run them.
    pub(super) wide: Option<&'m mut Wide>,
    imported: HashMap<String, FuncRef>,
}

/// The Cranelift type that holds a value of this dtype.
pub(super) fn lane(dtype: DType) -> Type {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => types::F32,
        DType::F64 => types::F64,
        DType::I32 | DType::U32 | DType::I8 | DType::Bool => types::I32,
    }
}

/// The lane type's name in the names of tile primitives; a reduction needs to know the sign.
pub(super) fn lane_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => "f32",
        DType::F64 => "f64",
        DType::I32 | DType::I8 | DType::Bool => "i32",
        DType::U32 => "u32",
    }
}

/// Memory of any alignment that is there.
pub(super) fn flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

impl<'f, 'm> Code<'f, 'm> {
    pub(super) fn new(
        b: FunctionBuilder<'f>,
        module: &'m mut dyn Module,
        prefix: &'static str,
        wide: Option<&'m mut Wide>,
    ) -> Self {
        Code { b, module, prefix, wide, imported: HashMap::new() }
    }

    /// Ends the function.
    pub(super) fn finish(mut self) {
        self.b.ins().return_(&[]);
        self.b.seal_all_blocks();
        self.b.finalize(self.module.target_config());
    }

    /// The type of a value.
    pub(super) fn ty(&self, value: Value) -> Type {
        self.b.func.dfg.value_type(value)
    }

    /// A 64-bit number.
    pub(super) fn int(&mut self, value: i64) -> Value {
        self.b.ins().iconst(types::I64, value)
    }

    /// `x · factor`, without a multiplication where there is nothing to multiply.
    pub(super) fn times(&mut self, x: Value, factor: i64) -> Value {
        match factor {
            1 => x,
            _ if factor > 1 && factor.count_ones() == 1 => {
                self.b.ins().ishl_imm_u(x, i64::from(factor.trailing_zeros()))
            }
            _ => self.b.ins().imul_imm_s(x, factor),
        }
    }

    /// The number `value` of dtype `dtype`, in the type `ty`.
    pub(super) fn constant(&mut self, value: f64, dtype: DType, ty: Type) -> Value {
        let bits = match dtype {
            DType::F64 => return self.b.ins().f64const(value),
            DType::F32 | DType::BF16 | DType::F16 => (value as f32).to_bits(),
            DType::I32 | DType::U32 | DType::I8 => value as i64 as u32,
            DType::Bool => u32::from(value == 0.0).wrapping_sub(1),
        };
        self.bits(bits, ty)
    }

    /// The same 32 bits in every lane of a value of type `ty`.
    pub(super) fn bits(&mut self, bits: u32, ty: Type) -> Value {
        match ty {
            types::F32 => self.b.ins().f32const(f32::from_bits(bits)),
            types::I32 => self.b.ins().iconst(types::I32, i64::from(bits)),
            _ => self.lanes_of([bits; LANES], ty),
        }
    }

    /// A vector of these lanes.
    pub(super) fn lanes_of(&mut self, lanes: [u32; LANES], ty: Type) -> Value {
        let bytes: Vec<u8> = lanes.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let constant = self.b.func.dfg.constants.insert(ConstantData::from(bytes.as_slice()));
        self.b.ins().vconst(ty, constant)
    }

    /// A scalar in as many lanes as wanted.
    pub(super) fn widened(&mut self, scalar: Value, width: usize) -> Value {
        if width == 1 {
            return scalar;
        }
        let ty = self.ty(scalar).by(LANES as u32).expect("lanes of 32 bits");
        self.b.ins().splat(ty, scalar)
    }

    /// The type of `width` lanes.
    pub(super) fn wide(&self, lane: Type, width: usize) -> Type {
        lane.by(width as u32).expect("one or four lanes")
    }

    /// The same bits as another type of equal size.
    pub(super) fn cast_bits(&mut self, value: Value, ty: Type) -> Value {
        if self.ty(value) == ty {
            return value;
        }
        let flags = MemFlagsData::new().with_endianness(codegen::ir::Endianness::Little);
        self.b.ins().bitcast(ty, flags, value)
    }

    /// The type with as many lanes of 32-bit integers.
    pub(super) fn mask_type(&self, value: Value) -> Type {
        if self.ty(value).is_vector() { types::I32X4 } else { types::I32 }
    }

    /// `if mask { x } else { y }`, by lanes.
    pub(super) fn choose(&mut self, mask: Value, x: Value, y: Value) -> Value {
        let ty = self.ty(x);
        if ty.is_vector() {
            let mask = self.cast_bits(mask, ty);
            self.b.ins().bitselect(mask, x, y)
        } else {
            self.b.ins().select(mask, x, y)
        }
    }

    /// A mask from a comparison of floats.
    pub(super) fn fcmp(&mut self, condition: FloatCC, x: Value, y: Value) -> Value {
        let truth = self.b.ins().fcmp(condition, x, y);
        self.mask(truth)
    }

    /// A mask from a comparison of integers.
    pub(super) fn icmp(&mut self, condition: IntCC, x: Value, y: Value) -> Value {
        let truth = self.b.ins().icmp(condition, x, y);
        self.mask(truth)
    }

    fn mask(&mut self, truth: Value) -> Value {
        if self.ty(truth).is_vector() { truth } else { self.b.ins().bmask(types::I32, truth) }
    }

    /// Computes a vector lane by lane from the lanes of the operands; a scalar at once.
    pub(super) fn by_lanes(
        &mut self,
        operands: &[Value],
        mut scalar: impl FnMut(&mut Self, &[Value]) -> Value,
    ) -> Value {
        if !self.ty(operands[0]).is_vector() {
            return scalar(self, operands);
        }
        let mut result = None;
        for at in 0..LANES as u8 {
            let lanes: Vec<_> =
                operands.iter().map(|&operand| self.b.ins().extractlane(operand, at)).collect();
            let value = scalar(self, &lanes);
            result = Some(self.with_lane(result, value, at));
        }
        result.expect("there are lanes")
    }

    /// The vector with one lane replaced; the first lane starts a vector.
    pub(super) fn with_lane(&mut self, vector: Option<Value>, value: Value, at: u8) -> Value {
        match vector {
            Some(vector) => self.b.ins().insertlane(vector, value, at),
            None => {
                let ty = self.ty(value).by(LANES as u32).expect("lanes of 32 bits");
                self.b.ins().scalar_to_vector(ty, value)
            }
        }
    }

    /// Calls a tile primitive.
    pub(super) fn call(&mut self, name: &str, operands: &[Value], result: Option<Type>) -> Option<Value> {
        let function = match self.imported.get(name) {
            Some(function) => *function,
            None => {
                let mut signature = self.module.make_signature();
                signature.params = operands.iter().map(|&operand| AbiParam::new(self.ty(operand))).collect();
                signature.returns = result.into_iter().map(AbiParam::new).collect();
                let symbol = format!("{}{name}", self.prefix);
                let id = self.module.declare_function(&symbol, Linkage::Import, &signature);
                let id = id.expect("a primitive has one signature");
                let function = self.module.declare_func_in_func(id, self.b.func);
                self.imported.insert(name.into(), function);
                function
            }
        };
        let call = self.b.ins().call(function, operands);
        self.b.inst_results(call).first().copied()
    }

    /// Starts `for i in (start..end).step_by(…)`, which carries further values from iteration to iteration.
    pub(super) fn enter(&mut self, start: Value, end: Value, carried: &[Value]) -> OpenLoop {
        let (inside, exit) = (self.b.create_block(), self.b.create_block());
        let i = self.b.append_block_param(inside, types::I64);
        let last = self.b.append_block_param(exit, types::I64);
        let types: Vec<_> = carried.iter().map(|&value| self.ty(value)).collect();
        let params = types.into_iter().map(|ty| self.b.append_block_param(inside, ty)).collect();
        let any = self.b.ins().icmp(IntCC::UnsignedLessThan, start, end);
        let first: Vec<_> = [start].iter().chain(carried).map(|&value| BlockArg::Value(value)).collect();
        self.b.ins().brif(any, inside, &first, exit, &[BlockArg::Value(start)]);
        self.b.switch_to_block(inside);
        OpenLoop { inside, exit, i, carried: params, end, last }
    }

    /// Ends the loop's body. Returns the first `i` that is not below the end.
    pub(super) fn leave(&mut self, open: &OpenLoop, step: i64, carried: &[Value]) -> Value {
        let next = self.b.ins().iadd_imm_s(open.i, step);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, next, open.end);
        let again: Vec<_> = [next].iter().chain(carried).map(|&value| BlockArg::Value(value)).collect();
        self.b.ins().brif(more, open.inside, &again, open.exit, &[BlockArg::Value(next)]);
        self.b.switch_to_block(open.exit);
        open.last
    }
}

/// A loop whose body is under construction.
pub(super) struct OpenLoop {
    /// The counter.
    pub(super) i: Value,
    /// The carried values.
    pub(super) carried: Vec<Value>,
    inside: Block,
    exit: Block,
    end: Value,
    last: Value,
}
