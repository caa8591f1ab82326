//! Straight-line programs on vectors, before registers are assigned.
//!
//! One instruction of a program is one instruction of the processor. Values are held as in [`super::super::builder`]: floats of at
//! most 32 bits as `f32`, truth values as masks of 32 bits. What is written for [sixteen lanes or eight](Vectors) differs where lanes are
//! chosen: AVX-512 compares into a mask register, AVX2 into a vector.

mod condition;
mod memory;
mod symbol;

use super::codes::{
    ABS_INTEGERS, ADD, ADD_INTEGERS, AND, BROADCAST, DIV, FLOATS_TO_SIGNED, FMA_132, FMA_213, LOAD,
    LOAD_16_BITS, LOAD_F16, MAX, MAX_SIGNED, MAX_UNSIGNED, MIN, MIN_SIGNED, MIN_UNSIGNED, MUL, MUL_INTEGERS,
    OR, Operation, ROUND, Rounding, SHIFT_LEFT, SHIFT_LEFT_BY, SHIFT_RIGHT, SHIFT_RIGHT_BY, SIGNED_TO_FLOATS,
    SQRT, SUB, SUB_INTEGERS, TO_F16, Vectors, XOR,
};
use super::predicate;
use condition::Test;
use iced_x86::Code;
use kernfusion_ir::{Binary, Compare, DType, ReduceOp, Unary};
use kernfusion_runtime::math::elementary::{Erf, Exp, Function, Log, Sigmoid, Tanh};
use std::cell::RefCell;
use symbol::Symbol;

/// The quiet bit of a NaN.
const QUIET: u32 = 0x0040_0000;
/// The sign bit.
const SIGN: u32 = 0x8000_0000;
/// Ways to round to an integer, without exceptions: down, and to the nearest, of two to the even one.
const DOWN: u8 = 9;
const NEAREST: u8 = 8;
/// Of `vfpclassps`.
const SUBNORMAL: u8 = 0x20;

/// A value in the lanes of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in super::super) enum Lanes {
    /// The result of an instruction.
    Register(u32),
    /// A parameter of the function, the same in every lane.
    Scalar(u32),
    /// The element of four bytes at an offset, in bytes, from where a pointer points, the same in every lane.
    Same { pointer: u32, offset: i32 },
    /// These bits in every lane.
    Constant(u32),
    /// The numbers of a table, one in each lane.
    Table(&'static [u32]),
    /// The vector at an offset, in bytes, from where a pointer points, the same in every iteration.
    Entries { pointer: u32, offset: i32 },
}

/// A place in memory: an offset in bytes from where a pointer points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At {
    pub(super) pointer: u32,
    pub(super) offset: i32,
}

impl At {
    /// Where the pointer points.
    pub(super) fn start(pointer: u32) -> At {
        At { pointer, offset: 0 }
    }
}

/// Elements of `size` bytes, `stride` of them apart, from where a pointer points; `first` is the number of the first lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Apart {
    pub(super) pointer: u32,
    pub(super) size: u32,
    pub(super) stride: i32,
    pub(super) first: u8,
}

impl Apart {
    /// The same for the vector that begins this many lanes later.
    fn behind(self, lanes: u8) -> Apart {
        Apart { first: self.first + lanes, ..self }
    }
}

/// Which lanes bounds hold for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in super::super) enum Tested {
    /// Those where each index is below its extent.
    Below(Vec<(Lanes, u32)>),
    /// Those of a pattern, by its number.
    Pattern(u32),
}

/// What an instruction reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Operand {
    /// A value; only the last operand of an instruction may be other than a register.
    Lanes(Lanes),
    /// Elements of `size` bytes at the current position, at an offset in bytes from where a pointer points.
    Elements { pointer: u32, size: u32, offset: i32 },
    /// As many elements of `size` bytes as there are lanes, among which every other one of half of the lanes is. The mask is of all lanes, or of these
    /// elements if it is spread.
    Alternate { pointer: u32, size: u32, offset: i32, half: Half, is_spread: bool },
    /// The last operand of a load, or, of four bytes, of a gather, before which is what absent elements are, how many elements away the others lie,
    /// counted from the pointer, and, of eight lanes under bounds, which are absent.
    Apart(Apart),
    /// The elements of four bytes whose numbers the lanes of the operand before have, counted from where a pointer points: what a gather of all lanes reads.
    Listed { pointer: u32 },
    /// A vector in memory that every iteration reads, at an offset in bytes from where a pointer points.
    Kept { pointer: u32, offset: i32 },
    /// A vector that was written to the stack.
    Slot(u32),
    /// The mask register (AVX-512).
    Mask,
    /// The loop's counter.
    Counter,
    /// The lane's number, as bytes, from that of the first lane on.
    LaneNumbers { first: u8 },
    /// The bits of a pattern, this many vectors behind the current position.
    Pattern { number: u32, vector: u8 },
}

/// Half of the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Half {
    /// Their elements are the even ones from the first on.
    Lower,
    /// Their elements are the odd ones, from the last but one of the lower half's vector on, so that none behind the last one is read.
    Upper,
}

/// Where an instruction leaves its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ResultPlace {
    /// A register of lanes.
    Register(u32),
    /// The mask register (AVX-512), which the next instruction reads.
    Mask,
    /// Elements of `size` bytes at the current position, at an offset in bytes from where a pointer points.
    Elements { pointer: u32, size: u32, offset: i32 },
    /// Elements that lie apart.
    Apart(Apart),
    /// A vector in memory that every iteration writes, at an offset in bytes from where a pointer points.
    Kept { pointer: u32, offset: i32 },
    /// A place on the stack.
    Slot(u32),
}

/// What becomes of lanes of a result that are not in the mask: the mask register, or of eight lanes the operand before the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Masking {
    /// They are those of the first operand: of one that is overwritten, or of a blend's.
    Chosen,
    /// They are zero.
    Zero,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LaneInstruction {
    pub(super) code: Code,
    pub(super) target: ResultPlace,
    pub(super) operands: Vec<Operand>,
    pub(super) immediate: Option<u8>,
    /// Whether the first operand is overwritten by the result.
    pub(super) in_place: bool,
    /// What the mask means to it, if anything.
    pub(super) masking: Option<Masking>,
    /// Which of the vectors [side by side](LaneProgram::side_by_side) it is for. Each has a mask register of its own.
    pub(super) vector: u8,
}

impl LaneInstruction {
    /// Of all lanes.
    pub(super) fn new(code: Code, target: ResultPlace, operands: &[Operand]) -> LaneInstruction {
        LaneInstruction {
            code,
            target,
            operands: operands.to_vec(),
            immediate: None,
            in_place: false,
            masking: None,
            vector: 0,
        }
    }
}

/// How far a program's parameters move from one run to the next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RunSteps {
    /// Bytes that each pointer moves.
    pub(super) pointers: Vec<i32>,
    /// What is added to each scalar, as an integer.
    pub(super) scalars: Vec<i32>,
}

/// A program under construction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in super::super) struct LaneProgram {
    pub(super) vectors: Vectors,
    pub(super) steps: Vec<LaneInstruction>,
    pub(super) registers: u32,
    /// How many pointers its function takes.
    pub(super) pointers: u32,
    /// If its function walks several runs.
    pub(super) runs: Option<RunSteps>,
    lane_numbers: Option<Lanes>,
    /// Coordinates so far: the first one, the stride, and all of them.
    coordinates: Vec<(Lanes, u32, Lanes)>,
    /// What was tested last, of eight lanes.
    mask: Option<Lanes>,
    /// What the mask has the lanes of, if it is of bounds.
    tested: Option<Tested>,
    /// Bits for places within a run, sixteen in each word.
    pub(super) patterns: Vec<Vec<u16>>,
    /// How many runs these are for.
    pub(super) pattern_runs: usize,
    /// Values that were rounded to bf16 or to bytes or looked up as such, and what a write needs of each.
    narrow: Vec<(Lanes, Narrow)>,
}

/// A number of bf16 or a byte in each lane, before it is widened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Narrow {
    /// Lanes of sixteen bits.
    Half(Lanes),
    /// The upper halves of lanes.
    Upper(Lanes),
    /// The lowest bytes of lanes.
    Byte(Lanes),
    /// The bytes nearest to integers.
    Whole(Lanes),
}

use Lanes::Constant;

/// The bits of a number.
fn float(value: f32) -> Lanes {
    Constant(value.to_bits())
}

impl LaneProgram {
    /// Without steps, for these vectors.
    pub(super) fn new(vectors: Vectors) -> LaneProgram {
        LaneProgram {
            vectors,
            steps: vec![],
            registers: 0,
            pointers: 0,
            runs: None,
            lane_numbers: None,
            coordinates: vec![],
            mask: None,
            tested: None,
            patterns: vec![],
            pattern_runs: 1,
            narrow: vec![],
        }
    }

    fn push(&mut self, code: Code, target: ResultPlace, operands: &[Operand]) -> &mut LaneInstruction {
        if target == ResultPlace::Mask {
            self.tested = None;
        }
        self.steps.push(LaneInstruction::new(code, target, operands));
        self.steps.last_mut().expect("just pushed")
    }

    fn fresh(&mut self) -> (Lanes, ResultPlace) {
        self.registers += 1;
        (Lanes::Register(self.registers - 1), ResultPlace::Register(self.registers - 1))
    }

    /// An operation on operands of which all but the last are registers.
    fn op(&mut self, operation: Operation, operands: &[Lanes]) -> Lanes {
        self.instruction(self.vectors.code(operation), operands, None)
    }

    fn op_by(&mut self, operation: Operation, operands: &[Lanes], immediate: u8) -> Lanes {
        self.instruction(self.vectors.code(operation), operands, Some(immediate))
    }

    /// The same for an instruction that only one kind of vectors has, or that is another one there.
    fn instruction(&mut self, code: Code, operands: &[Lanes], immediate: Option<u8>) -> Lanes {
        let operands = self.all_but_last_in_registers(operands);
        let (result, target) = self.fresh();
        self.push(code, target, &operands).immediate = immediate;
        result
    }

    fn all_but_last_in_registers(&mut self, operands: &[Lanes]) -> Vec<Operand> {
        let last = operands.len() - 1;
        let operands = operands.iter().enumerate();
        operands.map(|(at, &x)| Operand::Lanes(if at == last { x } else { self.register(x) })).collect()
    }

    /// An operation whose operands may change places.
    fn symmetric(&mut self, operation: Operation, x: Lanes, y: Lanes) -> Lanes {
        if matches!(x, Lanes::Register(_)) {
            self.op(operation, &[x, y])
        } else {
            self.op(operation, &[y, x])
        }
    }

    /// The value in a register.
    fn register(&mut self, x: Lanes) -> Lanes {
        match (x, self.vectors) {
            (Lanes::Register(_), _) => x,
            (Lanes::Table(_) | Lanes::Entries { .. }, _) | (_, Vectors::Eight) => self.op(LOAD, &[x]),
            (_, Vectors::Sixteen(_)) => self.op(BROADCAST, &[x]),
        }
    }

    fn xor(&mut self, x: Lanes, y: Lanes) -> Lanes {
        self.symmetric(XOR, x, y)
    }

    fn and(&mut self, x: Lanes, y: Lanes) -> Lanes {
        self.symmetric(AND, x, y)
    }

    fn or(&mut self, x: Lanes, y: Lanes) -> Lanes {
        self.symmetric(OR, x, y)
    }

    fn shifted_right(&mut self, x: Lanes, bits: u8) -> Lanes {
        let x = self.register(x);
        self.op_by(SHIFT_RIGHT_BY, &[x], bits)
    }

    /// An elementwise op of one operand of `dtype`; `None` if there is no code for it.
    pub(super) fn unary(&mut self, op: Unary, dtype: DType, x: Lanes) -> Option<Lanes> {
        let is_float = dtype.is_float();
        Some(match op {
            Unary::Neg if is_float => self.xor(x, Constant(SIGN)),
            Unary::Neg => self.op(SUB_INTEGERS, &[Constant(0), x]),
            Unary::Abs if is_float => self.and(x, Constant(!SIGN)),
            Unary::Abs => self.op(ABS_INTEGERS, &[x]),
            Unary::Sign if is_float => {
                // Zeros keep their sign, and NaN stays NaN.
                let x = self.register(x);
                self.test(Test::Floats(predicate::LT), x, float(0.0));
                let rest = self.blend(x, float(-1.0));
                self.test(Test::Floats(predicate::GT), x, float(0.0));
                self.blend(rest, float(1.0))
            }
            Unary::Sign => {
                let low = self.op(MAX_SIGNED, &[x, Constant(!0)]);
                self.op(MIN_SIGNED, &[low, Constant(1)])
            }
            Unary::Floor => self.op_by(ROUND, &[x], DOWN),
            Unary::Round => self.op_by(ROUND, &[x], NEAREST),
            Unary::Sqrt => {
                let root = self.op(SQRT, &[x]);
                self.rounded(root, dtype)
            }
            Unary::Not => self.xor(x, Constant(!0)),
            Unary::Exp => self.elementary::<Exp>(dtype, x)?,
            Unary::Log => self.elementary::<Log>(dtype, x)?,
            Unary::Tanh => self.elementary::<Tanh>(dtype, x)?,
            Unary::Sigmoid => self.elementary::<Sigmoid>(dtype, x)?,
            Unary::Erf => self.elementary::<Erf>(dtype, x)?,
            Unary::Sin | Unary::Cos => return None,
        })
    }

    /// An elementary function by the formula of `kernfusion_runtime::math::elementary`.
    fn elementary<F: Function>(&mut self, dtype: DType, x: Lanes) -> Option<Lanes> {
        if dtype == DType::F64 {
            return None;
        }
        let x = self.register(x);
        let program = RefCell::new(std::mem::replace(self, LaneProgram::new(self.vectors)));
        let result = F::of(Symbol { lanes: x, program: &program }).lanes;
        *self = program.into_inner();
        Some(self.rounded(result, dtype))
    }

    /// `a · b + c`, rounded once.
    fn fused(&mut self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        let is_register = |x| matches!(x, Lanes::Register(_));
        let (a, b) = if is_register(a) { (a, b) } else { (b, a) };
        // The last operand of each may be other than a register.
        let (operation, operands) = match is_register(b) {
            true => (FMA_213, [a, b, c]),
            false => (FMA_132, [a, c, b]),
        };
        let operands = self.all_but_last_in_registers(&operands);
        let (result, target) = self.fresh();
        self.push(self.vectors.code(operation), target, &operands).in_place = true;
        result
    }

    /// An elementwise op of two operands of `dtype`; `None` if there is no code for it.
    pub(super) fn binary(&mut self, op: Binary, dtype: DType, x: Lanes, y: Lanes) -> Option<Lanes> {
        let is_float = dtype.is_float();
        let result = match op {
            Binary::Add if is_float => self.symmetric(ADD, x, y),
            Binary::Add => self.symmetric(ADD_INTEGERS, x, y),
            Binary::Sub if is_float => self.op(SUB, &[x, y]),
            Binary::Sub => self.op(SUB_INTEGERS, &[x, y]),
            Binary::Mul if is_float => self.symmetric(MUL, x, y),
            Binary::Mul => self.symmetric(MUL_INTEGERS, x, y),
            Binary::Div => self.op(DIV, &[x, y]),
            Binary::Max => return Some(self.extremum(true, dtype, x, y)),
            Binary::Min => return Some(self.extremum(false, dtype, x, y)),
            Binary::And => self.and(x, y),
            Binary::Or => self.or(x, y),
            Binary::Xor => self.xor(x, y),
            // These give 0 from 32 bits on.
            Binary::Shl => self.op(SHIFT_LEFT, &[x, y]),
            Binary::Shr => self.op(SHIFT_RIGHT, &[x, y]),
            Binary::Pow => return None,
        };
        Some(self.rounded(result, dtype))
    }

    /// The larger or the smaller; NaN if either is.
    fn extremum(&mut self, largest: bool, dtype: DType, x: Lanes, y: Lanes) -> Lanes {
        let operation = match (dtype, largest) {
            (DType::U32 | DType::Bool, true) => MAX_UNSIGNED,
            (DType::U32 | DType::Bool, false) => MIN_UNSIGNED,
            (DType::I32 | DType::I8, true) => MAX_SIGNED,
            (DType::I32 | DType::I8, false) => MIN_SIGNED,
            (_, true) => MAX,
            (_, false) => MIN,
        };
        if !dtype.is_float() {
            return self.symmetric(operation, x, y);
        }
        // The instruction gives its second operand where either is NaN.
        let x = self.register(x);
        let won = self.op(operation, &[x, y]);
        self.test(Test::Floats(predicate::UNORDERED), x, x);
        self.blend(won, x)
    }

    /// Combines two partial results of a reduction over values of `dtype`.
    pub(super) fn combine(&mut self, op: ReduceOp, dtype: DType, x: Lanes, y: Lanes) -> Option<Lanes> {
        // Partial results of 16-bit floats stay in `f32`.
        let dtype = if matches!(dtype, DType::BF16 | DType::F16) { DType::F32 } else { dtype };
        match op {
            ReduceOp::Sum => self.binary(Binary::Add, dtype, x, y),
            ReduceOp::Max => self.binary(Binary::Max, dtype, x, y),
            ReduceOp::Min => self.binary(Binary::Min, dtype, x, y),
        }
    }

    /// A conversion between dtypes; `None` if there is no code for it.
    pub(super) fn convert(&mut self, x: Lanes, from: DType, to: DType) -> Option<Lanes> {
        let converted = match (from, to) {
            _ if from == to => return Some(x),
            (DType::F64, _) | (_, DType::F64) => return None,
            (DType::F32 | DType::BF16 | DType::F16, DType::F32 | DType::BF16 | DType::F16) => x,
            (DType::F32 | DType::BF16 | DType::F16, DType::Bool) => {
                self.compare(Compare::Ne, DType::F32, x, float(0.0))
            }
            (DType::F32 | DType::BF16 | DType::F16, DType::I8) => self.byte_of_float(x),
            (DType::I32, DType::I8) => self.byte_of_signed(x),
            (DType::U32, DType::I8) => self.symmetric(MIN_UNSIGNED, x, Constant(i8::MAX as u32)),
            (DType::Bool, DType::I8) => self.and(x, Constant(1)),
            // Saturating conversions to 32 bits take many instructions and are rare.
            (DType::F32 | DType::BF16 | DType::F16, DType::I32 | DType::U32) => return None,
            (DType::I32 | DType::U32 | DType::I8, DType::I32 | DType::U32) => x,
            (DType::I32 | DType::U32 | DType::I8, DType::Bool) => self.nonzero(x),
            (DType::I32 | DType::I8, _) => self.op(SIGNED_TO_FLOATS, &[x]),
            (DType::U32, _) => self.float_of_unsigned(x),
            (DType::Bool, DType::I32 | DType::U32) => self.and(x, Constant(1)),
            (DType::Bool, _) => self.and(x, float(1.0)),
        };
        Some(self.rounded(converted, to))
    }

    /// Towards zero, within the range of bytes; NaN is zero.
    fn byte_of_float(&mut self, x: Lanes) -> Lanes {
        const LEAST: Lanes = Constant(i8::MIN as i32 as u32);
        let x = self.register(x);
        // What is too small becomes the least integer by itself.
        let bounded = self.op(MIN, &[x, float(f32::from(i8::MAX))]);
        if self.vectors == Vectors::Eight {
            let whole = self.op(FLOATS_TO_SIGNED, &[bounded]);
            let byte = self.symmetric(MAX_SIGNED, whole, LEAST);
            self.test(Test::Floats(predicate::UNORDERED), x, x);
            return self.blend(byte, Constant(0));
        }
        self.test(Test::Floats(predicate::ORDERED), x, x);
        let (whole, target) = self.fresh();
        let code = self.vectors.code(FLOATS_TO_SIGNED);
        self.push(code, target, &[Operand::Lanes(bounded)]).masking = Some(Masking::Zero);
        let byte = self.symmetric(MAX_SIGNED, whole, LEAST);
        self.narrow.push((byte, Narrow::Whole(whole)));
        byte
    }

    /// The nearest byte of an integer.
    fn byte_of_signed(&mut self, x: Lanes) -> Lanes {
        let bounded = self.symmetric(MIN_SIGNED, x, Constant(i8::MAX as u32));
        self.symmetric(MAX_SIGNED, bounded, Constant(i32::from(i8::MIN) as u32))
    }

    /// The nearest value of `dtype`, ties to even.
    fn rounded(&mut self, x: Lanes, dtype: DType) -> Lanes {
        match dtype {
            DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I8 | DType::Bool => x,
            DType::BF16 => {
                let x = self.register(x);
                let (narrow, wide) = match self.vectors {
                    Vectors::Sixteen(Rounding::Instruction) => {
                        let half = self.instruction(Code::EVEX_Vcvtneps2bf16_ymm_k1z_zmmm512b32, &[x], None);
                        let wide = self.op(LOAD_16_BITS, &[half]);
                        (Narrow::Half(half), self.op_by(SHIFT_LEFT_BY, &[wide], 16))
                    }
                    Vectors::Sixteen(Rounding::Exact | Rounding::Emulated) | Vectors::Eight => {
                        let near = self.near_bf16(x);
                        (Narrow::Upper(near), self.and(near, Constant(0xffff_0000)))
                    }
                };
                self.narrow.push((wide, narrow));
                wide
            }
            DType::F16 => {
                let x = self.register(x);
                let half = self.op_by(TO_F16, &[x], 0);
                self.op(LOAD_F16, &[half])
            }
        }
    }

    /// Numbers whose upper halves are those of bf16 that are the nearest.
    fn near_bf16(&mut self, x: Lanes) -> Lanes {
        // Adds just under half of the last place that stays, and the rest of it where that place is odd.
        let near = self.symmetric(ADD_INTEGERS, x, Constant(0x7fff));
        let near = match self.vectors {
            Vectors::Sixteen(_) => {
                self.test(Test::AnyBit, x, Constant(0x1_0000));
                self.where_mask(near, ADD_INTEGERS, near, Constant(1))
            }
            Vectors::Eight => {
                let last = self.shifted_right(x, 16);
                let odd = self.and(last, Constant(1));
                self.symmetric(ADD_INTEGERS, near, odd)
            }
        };
        self.test(Test::Floats(predicate::UNORDERED), x, x);
        let near = self.where_mask(near, OR, x, Constant(QUIET));
        if self.vectors != Vectors::Sixteen(Rounding::Emulated) {
            return near;
        }
        let class = Code::EVEX_Vfpclassps_kr_k1_zmmm512b32_imm8;
        self.push(class, ResultPlace::Mask, &[Operand::Lanes(x)]).immediate = Some(SUBNORMAL);
        self.where_mask(near, AND, x, Constant(SIGN))
    }

    /// The nearest `f32`.
    fn float_of_unsigned(&mut self, x: Lanes) -> Lanes {
        if let Vectors::Sixteen(_) = self.vectors {
            return self.instruction(Code::EVEX_Vcvtudq2ps_zmm_k1z_zmmm512b32_er, &[x], None);
        }
        // Both halves are exact, so that their sum is rounded once.
        let x = self.register(x);
        let [upper, lower] = [self.shifted_right(x, 16), self.and(x, Constant(0xffff))];
        let [upper, lower] = [upper, lower].map(|half| self.op(SIGNED_TO_FLOATS, &[half]));
        self.fused(upper, float(65536.0), lower)
    }

    /// The same for this many vectors, each of which lies behind the one before it. Their steps alternate, so that a processor, which looks
    /// only so far ahead, finds steps that do not wait for each other.
    pub(super) fn side_by_side(&self, vectors: u8) -> LaneProgram {
        let alternating =
            self.steps.iter().flat_map(|step| (0..vectors).map(|vector| self.moved(step, vector)));
        let steps = alternating.collect();
        LaneProgram { steps, registers: self.registers * u32::from(vectors), ..self.clone() }
    }

    /// A step for another vector.
    fn moved(&self, step: &LaneInstruction, vector: u8) -> LaneInstruction {
        let renamed = |register: u32| register + u32::from(vector) * self.registers;
        let lanes = self.vectors.lanes();
        let behind = |offset: i32, size: u32| offset + i32::from(vector) * i32::from(lanes) * size as i32;
        let operand = |operand: &Operand| match *operand {
            Operand::Lanes(Lanes::Register(register)) => Operand::Lanes(Lanes::Register(renamed(register))),
            Operand::Elements { pointer, size, offset } => {
                Operand::Elements { pointer, size, offset: behind(offset, size) }
            }
            Operand::Alternate { pointer, size, offset, half, is_spread } => {
                Operand::Alternate { pointer, size, offset: behind(offset, 2 * size), half, is_spread }
            }
            Operand::Kept { pointer, offset } => Operand::Kept { pointer, offset: behind(offset, 4) },
            Operand::LaneNumbers { first } => Operand::LaneNumbers { first: first + vector * lanes },
            Operand::Apart(apart) => Operand::Apart(apart.behind(vector * lanes)),
            Operand::Pattern { number, .. } => Operand::Pattern { number, vector },
            other @ (Operand::Lanes(_)
            | Operand::Listed { .. }
            | Operand::Slot(_)
            | Operand::Mask
            | Operand::Counter) => other,
        };
        let target = match step.target {
            ResultPlace::Register(register) => ResultPlace::Register(renamed(register)),
            ResultPlace::Elements { pointer, size, offset } => {
                ResultPlace::Elements { pointer, size, offset: behind(offset, size) }
            }
            ResultPlace::Apart(apart) => ResultPlace::Apart(apart.behind(vector * lanes)),
            ResultPlace::Kept { pointer, offset } => ResultPlace::Kept { pointer, offset: behind(offset, 4) },
            other @ (ResultPlace::Mask | ResultPlace::Slot(_)) => other,
        };
        LaneInstruction {
            target,
            operands: step.operands.iter().map(operand).collect(),
            vector,
            ..step.clone()
        }
    }

    /// Drops what no write needs.
    pub(super) fn without_dead_steps(mut self) -> LaneProgram {
        let mut live = vec![false; self.registers as usize];
        let mut reads_mask = false;
        let mut kept = vec![];
        for step in self.steps.drain(..).rev() {
            let is_live = match step.target {
                ResultPlace::Register(register) => live[register as usize],
                ResultPlace::Mask => reads_mask,
                ResultPlace::Elements { .. }
                | ResultPlace::Apart(_)
                | ResultPlace::Kept { .. }
                | ResultPlace::Slot(_) => true,
            };
            if !is_live {
                continue;
            }
            if step.target == ResultPlace::Mask {
                reads_mask = false;
            }
            for operand in &step.operands {
                match operand {
                    Operand::Lanes(Lanes::Register(register)) => live[*register as usize] = true,
                    Operand::Mask => reads_mask = true,
                    _ => {}
                }
            }
            reads_mask |= step.masking.is_some();
            kept.push(step);
        }
        kept.reverse();
        LaneProgram { steps: kept, ..self }
    }
}
