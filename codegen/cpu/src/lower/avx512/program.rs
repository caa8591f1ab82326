//! Straight-line programs on registers of sixteen lanes, before registers are assigned.
//!
//! One instruction of a program is one instruction of AVX-512. Values are held as in [`super::super::builder`]: floats of at
//! most 32 bits as `f32`, truth values as masks of 32 bits.

mod symbol;

use super::predicate;
use iced_x86::Code;
use kernfusion_ir::{Binary, Compare, DType, ReduceOp, Unary};
use kernfusion_runtime::math::elementary::{Erf, Exp, Function, Log, Tanh};
use kernfusion_runtime::math::vector::Table;
use std::cell::RefCell;
use symbol::Symbol;

/// Lanes of a vector.
pub(super) const WIDTH: u8 = 16;
/// The quiet bit of a NaN.
const QUIET: u32 = 0x0040_0000;
/// The sign bit.
const SIGN: u32 = 0x8000_0000;
/// `mask ? x : y` by bits, as a table of three variables.
const CHOOSE: u8 = 0xca;
/// A rounding mode of `vrndscaleps`, without exceptions: down.
const DOWN: u8 = 9;

/// Of `vfpclassps`.
const SUBNORMAL: u8 = 0x20;
/// One number from memory in all lanes.
pub(super) const BROADCAST: Code = Code::EVEX_Vbroadcastss_zmm_k1z_xmmm32;
/// Sixteen numbers of memory.
pub(super) const LOAD: Code = Code::EVEX_Vmovups_zmm_k1z_zmmm512;
/// Of two registers, one after the other, as [`Half`] reads them: the places of the elements of a load of every other one.
static ALTERNATE: Table = [0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31];
/// Elements that lie anywhere, of the lanes in the mask register, which it clears.
pub(super) const GATHER: Code = Code::EVEX_Vgatherdps_zmm_k1_vm32z;
/// The comparison of floats.
const FLOATS: Code = Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae;

/// A value in sixteen lanes.
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
    Table(&'static Table),
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

/// What an instruction reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Operand {
    /// A value; only the last operand of an instruction may be other than a register.
    Lanes(Lanes),
    /// Elements of `size` bytes at the current position, at an offset in bytes from where a pointer points.
    Elements { pointer: u32, size: u32, offset: i32 },
    /// Sixteen elements of four bytes, among which every other one of half of the lanes is.
    Alternate { pointer: u32, offset: i32, half: Half },
    /// Elements `stride` apart from where a pointer points: the last operand of a gather, before which is what absent elements are and how many
    /// elements away the others lie, counted from the pointer; `first` is the number of the first lane.
    Apart { pointer: u32, stride: i32, first: u8 },
    /// The first mask register for results.
    Mask,
    /// The loop's counter.
    Counter,
    /// The lane's number, as bytes, from that of the first lane on.
    LaneNumbers { first: u8 },
}

/// Half of the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Half {
    /// Their elements are the even ones from the first on.
    Lower,
    /// Their elements are the odd ones from the fifteenth on, so that none behind the last one is read.
    Upper,
}

/// Where an instruction leaves its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ResultPlace {
    /// A register of lanes.
    Register(u32),
    /// The mask register, which the next instruction reads.
    Mask,
    /// Elements of `size` bytes at the current position, at an offset in bytes from where a pointer points.
    Elements { pointer: u32, size: u32, offset: i32 },
}

/// What becomes of lanes of a result that are not in the mask register.
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
    /// What the mask register means to it, if anything.
    pub(super) masking: Option<Masking>,
    /// Which of the vectors [side by side](LaneProgram::side_by_side) it is for. Each has a mask register of its own.
    pub(super) vector: u8,
}

/// How numbers are rounded to bf16: to the nearest, ties to even.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(in super::super) enum Rounding {
    /// By integers.
    #[default]
    Exact,
    /// By an instruction, for which subnormal numbers are zeros.
    Instruction,
    /// By integers, with the bits of the instruction.
    Emulated,
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in super::super) struct LaneProgram {
    pub(super) steps: Vec<LaneInstruction>,
    pub(super) registers: u32,
    /// How many pointers its function takes.
    pub(super) pointers: u32,
    /// If its function walks several runs.
    pub(super) runs: Option<RunSteps>,
    lane_numbers: Option<Lanes>,
    /// Coordinates so far: the first one, the stride, and all of them.
    coordinates: Vec<(Lanes, u32, Lanes)>,
    /// The bounds whose lanes the mask register has, if it has those of bounds.
    tested: Vec<(Lanes, u32)>,
    rounding: Rounding,
    /// Values that were rounded to bf16, and what a write needs of each.
    narrow: Vec<(Lanes, Narrow)>,
}

/// A number of bf16 in each lane, before it is widened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Narrow {
    /// Lanes of sixteen bits.
    Half(Lanes),
    /// The upper halves of lanes.
    Upper(Lanes),
}

use Lanes::Constant;

/// The bits of a number.
fn float(value: f32) -> Lanes {
    Constant(value.to_bits())
}

impl LaneProgram {
    /// Without steps, for a machine where numbers are rounded like this.
    pub(super) fn new(rounding: Rounding) -> LaneProgram {
        LaneProgram { rounding, ..LaneProgram::default() }
    }

    fn push(&mut self, code: Code, target: ResultPlace, operands: &[Operand]) -> &mut LaneInstruction {
        if target == ResultPlace::Mask {
            self.tested.clear();
        }
        let step = LaneInstruction {
            code,
            target,
            operands: operands.to_vec(),
            immediate: None,
            in_place: false,
            masking: None,
            vector: 0,
        };
        self.steps.push(step);
        self.steps.last_mut().expect("just pushed")
    }

    fn fresh(&mut self) -> (Lanes, ResultPlace) {
        self.registers += 1;
        (Lanes::Register(self.registers - 1), ResultPlace::Register(self.registers - 1))
    }

    /// An instruction on operands of which all but the last are registers.
    fn op(&mut self, code: Code, operands: &[Lanes]) -> Lanes {
        self.op_by(code, operands, None)
    }

    fn op_by(&mut self, code: Code, operands: &[Lanes], immediate: Option<u8>) -> Lanes {
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

    /// An instruction whose operands may change places.
    fn symmetric(&mut self, code: Code, x: Lanes, y: Lanes) -> Lanes {
        if matches!(x, Lanes::Register(_)) { self.op(code, &[x, y]) } else { self.op(code, &[y, x]) }
    }

    /// The value in a register.
    fn register(&mut self, x: Lanes) -> Lanes {
        match x {
            Lanes::Register(_) => x,
            Lanes::Table(_) => self.op(LOAD, &[x]),
            _ => self.op(BROADCAST, &[x]),
        }
    }

    /// A comparison into the mask register.
    fn test(&mut self, code: Code, x: Lanes, y: Lanes, predicate: Option<u8>) -> &mut LaneInstruction {
        let operands = self.all_but_last_in_registers(&[x, y]);
        let step = self.push(code, ResultPlace::Mask, &operands);
        step.immediate = predicate;
        step
    }

    /// The mask register as a value.
    fn mask(&mut self) -> Lanes {
        let (result, target) = self.fresh();
        self.push(Code::EVEX_Vpmovm2d_zmm_kr, target, &[Operand::Mask]);
        result
    }

    /// `yes` where the mask register is set, else `no`, which is a register.
    fn blend(&mut self, no: Lanes, yes: Lanes) -> Lanes {
        let operands = self.all_but_last_in_registers(&[no, yes]);
        let (result, target) = self.fresh();
        self.push(Code::EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32, target, &operands).masking =
            Some(Masking::Chosen);
        result
    }

    /// An instruction on `x` and `y` where the mask register is set, else `no`, which is a register as `x` is.
    fn where_mask(&mut self, no: Lanes, code: Code, x: Lanes, y: Lanes) -> Lanes {
        let (result, target) = self.fresh();
        let step = self.push(code, target, &[no, x, y].map(Operand::Lanes));
        (step.in_place, step.masking) = (true, Some(Masking::Chosen));
        result
    }

    /// `mask ? x : y`.
    pub(super) fn choose(&mut self, mask: Lanes, x: Lanes, y: Lanes) -> Lanes {
        let operands = self.all_but_last_in_registers(&[mask, x, y]);
        let (result, target) = self.fresh();
        let step = self.push(Code::EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8, target, &operands);
        (step.immediate, step.in_place) = (Some(CHOOSE), true);
        result
    }

    fn xor(&mut self, x: Lanes, y: Lanes) -> Lanes {
        self.symmetric(Code::EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32, x, y)
    }

    fn and(&mut self, x: Lanes, y: Lanes) -> Lanes {
        self.symmetric(Code::EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32, x, y)
    }

    fn or(&mut self, x: Lanes, y: Lanes) -> Lanes {
        self.symmetric(Code::EVEX_Vpord_zmm_k1z_zmm_zmmm512b32, x, y)
    }

    fn shifted_right(&mut self, x: Lanes, bits: u8) -> Lanes {
        let x = self.register(x);
        self.op_by(Code::EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8, &[x], Some(bits))
    }

    /// An elementwise op of one operand of `dtype`; `None` if there is no code for it.
    pub(super) fn unary(&mut self, op: Unary, dtype: DType, x: Lanes) -> Option<Lanes> {
        let is_float = dtype.is_float();
        Some(match op {
            Unary::Neg if is_float => self.xor(x, Constant(SIGN)),
            Unary::Neg => self.op(Code::EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32, &[Constant(0), x]),
            Unary::Abs if is_float => self.and(x, Constant(!SIGN)),
            Unary::Abs => self.op(Code::EVEX_Vpabsd_zmm_k1z_zmmm512b32, &[x]),
            Unary::Sign if is_float => {
                // Zeros keep their sign, and NaN stays NaN.
                let x = self.register(x);
                self.test(FLOATS, x, float(0.0), Some(predicate::LT));
                let rest = self.blend(x, float(-1.0));
                self.test(FLOATS, x, float(0.0), Some(predicate::GT));
                self.blend(rest, float(1.0))
            }
            Unary::Sign => {
                let low = self.op(Code::EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32, &[x, Constant(!0)]);
                self.op(Code::EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32, &[low, Constant(1)])
            }
            Unary::Floor => self.op_by(Code::EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae, &[x], Some(DOWN)),
            Unary::Sqrt => {
                let root = self.op(Code::EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er, &[x]);
                self.rounded(root, dtype)
            }
            Unary::Not => self.xor(x, Constant(!0)),
            Unary::Exp => self.elementary::<Exp>(dtype, x)?,
            Unary::Log => self.elementary::<Log>(dtype, x)?,
            Unary::Tanh => self.elementary::<Tanh>(dtype, x)?,
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
        let program = RefCell::new(std::mem::take(self));
        let result = F::of(Symbol { lanes: x, program: &program }).lanes;
        *self = program.into_inner();
        Some(self.rounded(result, dtype))
    }

    /// `a · b + c`, rounded once.
    fn fused(&mut self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        let is_register = |x| matches!(x, Lanes::Register(_));
        let (a, b) = if is_register(a) { (a, b) } else { (b, a) };
        // The last operand of each may be other than a register.
        let (code, operands) = match is_register(b) {
            true => (Code::EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er, [a, b, c]),
            false => (Code::EVEX_Vfmadd132ps_zmm_k1z_zmm_zmmm512b32_er, [a, c, b]),
        };
        let operands = self.all_but_last_in_registers(&operands);
        let (result, target) = self.fresh();
        self.push(code, target, &operands).in_place = true;
        result
    }

    /// An elementwise op of two operands of `dtype`; `None` if there is no code for it.
    pub(super) fn binary(&mut self, op: Binary, dtype: DType, x: Lanes, y: Lanes) -> Option<Lanes> {
        let is_float = dtype.is_float();
        let result = match op {
            Binary::Add if is_float => self.symmetric(Code::EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er, x, y),
            Binary::Add => self.symmetric(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, x, y),
            Binary::Sub if is_float => self.op(Code::EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er, &[x, y]),
            Binary::Sub => self.op(Code::EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32, &[x, y]),
            Binary::Mul if is_float => self.symmetric(Code::EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er, x, y),
            Binary::Mul => self.symmetric(Code::EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32, x, y),
            Binary::Div => self.op(Code::EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er, &[x, y]),
            Binary::Max => return Some(self.extremum(true, dtype, x, y)),
            Binary::Min => return Some(self.extremum(false, dtype, x, y)),
            Binary::And => self.and(x, y),
            Binary::Or => self.or(x, y),
            Binary::Xor => self.xor(x, y),
            // These give 0 from 32 bits on.
            Binary::Shl => self.op(Code::EVEX_Vpsllvd_zmm_k1z_zmm_zmmm512b32, &[x, y]),
            Binary::Shr => self.op(Code::EVEX_Vpsrlvd_zmm_k1z_zmm_zmmm512b32, &[x, y]),
            Binary::Pow => return None,
        };
        Some(self.rounded(result, dtype))
    }

    /// The larger or the smaller; NaN if either is.
    fn extremum(&mut self, largest: bool, dtype: DType, x: Lanes, y: Lanes) -> Lanes {
        let code = match (dtype, largest) {
            (DType::U32 | DType::Bool, true) => Code::EVEX_Vpmaxud_zmm_k1z_zmm_zmmm512b32,
            (DType::U32 | DType::Bool, false) => Code::EVEX_Vpminud_zmm_k1z_zmm_zmmm512b32,
            (DType::I32 | DType::I8, true) => Code::EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32,
            (DType::I32 | DType::I8, false) => Code::EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32,
            (_, true) => Code::EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae,
            (_, false) => Code::EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae,
        };
        if !dtype.is_float() {
            return self.symmetric(code, x, y);
        }
        // The instruction gives its second operand where either is NaN.
        let x = self.register(x);
        let won = self.op(code, &[x, y]);
        self.test(FLOATS, x, x, Some(predicate::UNORDERED));
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

    /// A comparison of two operands of `dtype`, as a mask.
    pub(super) fn compare(&mut self, op: Compare, dtype: DType, x: Lanes, y: Lanes) -> Lanes {
        let (code, predicate) = match (dtype.is_float(), dtype) {
            (true, _) => (FLOATS, predicate::of_floats(op)),
            (_, DType::I32 | DType::I8) => {
                (Code::EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8, predicate::of_integers(op))
            }
            _ => (Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, predicate::of_integers(op)),
        };
        self.test(code, x, y, Some(predicate));
        self.mask()
    }

    /// A mask of the lanes whose bits are not all zero.
    fn nonzero(&mut self, x: Lanes) -> Lanes {
        let x = self.register(x);
        self.test(Code::EVEX_Vptestmd_kr_k1_zmm_zmmm512b32, x, x, None);
        self.mask()
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
            // Saturating conversions take many instructions and are rare.
            (_, DType::I8) | (DType::F32 | DType::BF16 | DType::F16, DType::I32 | DType::U32) => return None,
            (DType::I32 | DType::U32 | DType::I8, DType::I32 | DType::U32) => x,
            (DType::I32 | DType::U32 | DType::I8, DType::Bool) => self.nonzero(x),
            (DType::I32 | DType::I8, _) => self.op(Code::EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er, &[x]),
            (DType::U32, _) => self.op(Code::EVEX_Vcvtudq2ps_zmm_k1z_zmmm512b32_er, &[x]),
            (DType::Bool, DType::I32 | DType::U32) => self.and(x, Constant(1)),
            (DType::Bool, _) => self.and(x, float(1.0)),
        };
        Some(self.rounded(converted, to))
    }

    /// The nearest value of `dtype`, ties to even.
    fn rounded(&mut self, x: Lanes, dtype: DType) -> Lanes {
        match dtype {
            DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I8 | DType::Bool => x,
            DType::BF16 => {
                let x = self.register(x);
                let (narrow, wide) = match self.rounding {
                    Rounding::Instruction => {
                        let half = self.op(Code::EVEX_Vcvtneps2bf16_ymm_k1z_zmmm512b32, &[x]);
                        let wide = self.op(Code::EVEX_Vpmovzxwd_zmm_k1z_ymmm256, &[half]);
                        let code = Code::EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8;
                        (Narrow::Half(half), self.op_by(code, &[wide], Some(16)))
                    }
                    Rounding::Exact | Rounding::Emulated => {
                        let near = self.near_bf16(x);
                        (Narrow::Upper(near), self.and(near, Constant(0xffff_0000)))
                    }
                };
                self.narrow.push((wide, narrow));
                wide
            }
            DType::F16 => {
                let x = self.register(x);
                let half = self.op_by(Code::EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae, &[x], Some(0));
                self.op(Code::EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae, &[half])
            }
        }
    }

    /// Numbers whose upper halves are those of bf16 that are the nearest.
    fn near_bf16(&mut self, x: Lanes) -> Lanes {
        // Adds just under half of the last place that stays, and the rest of it where that place is odd.
        let add = Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32;
        let near = self.symmetric(add, x, Constant(0x7fff));
        self.test(Code::EVEX_Vptestmd_kr_k1_zmm_zmmm512b32, x, Constant(0x1_0000), None);
        let near = self.where_mask(near, add, near, Constant(1));
        self.test(FLOATS, x, x, Some(predicate::UNORDERED));
        let near = self.where_mask(near, Code::EVEX_Vpord_zmm_k1z_zmm_zmmm512b32, x, Constant(QUIET));
        if self.rounding != Rounding::Emulated {
            return near;
        }
        let class = Code::EVEX_Vfpclassps_kr_k1_zmmm512b32_imm8;
        self.push(class, ResultPlace::Mask, &[Operand::Lanes(x)]).immediate = Some(SUBNORMAL);
        self.where_mask(near, Code::EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32, x, Constant(SIGN))
    }

    /// Elements at the current position; `None` if there is no code for them.
    pub(super) fn read(&mut self, dtype: DType, at: At) -> Option<Lanes> {
        self.read_masked(dtype, at, None)
    }

    /// As [`read`](Self::read), where each index is below its extent; the memory of other lanes need not be there, and they are zero.
    pub(super) fn read_within(&mut self, bounds: &[(Lanes, u32)], dtype: DType, at: At) -> Option<Lanes> {
        let masking = self.test_within(bounds);
        self.read_masked(dtype, at, masking)
    }

    /// Every other element, under bounds as for [`read_within`](Self::read_within).
    pub(super) fn read_alternate(&mut self, bounds: &[(Lanes, u32)], dtype: DType, at: At) -> Option<Lanes> {
        if !matches!(dtype, DType::F32 | DType::I32 | DType::U32) {
            return None;
        }
        let table = self.register(Lanes::Table(&ALTERNATE));
        let masking = self.test_within(bounds);
        let [lower, upper] = [Half::Lower, Half::Upper].map(|half| {
            let (lanes, target) = self.fresh();
            let from = Operand::Alternate { pointer: at.pointer, offset: at.offset, half };
            self.push(LOAD, target, &[from]).masking = masking;
            Operand::Lanes(lanes)
        });
        let (result, target) = self.fresh();
        let operands = [lower, Operand::Lanes(table), upper];
        self.push(Code::EVEX_Vpermt2ps_zmm_k1z_zmm_zmmm512b32, target, &operands).in_place = true;
        Some(result)
    }

    /// Elements `stride` apart, under bounds as for [`read_within`](Self::read_within); `None` if there is no code for them.
    pub(super) fn gather(
        &mut self,
        bounds: &[(Lanes, u32)],
        dtype: DType,
        pointer: u32,
        stride: i32,
    ) -> Option<Lanes> {
        if !matches!(dtype, DType::F32 | DType::I32 | DType::U32) {
            return None;
        }
        let (none, places) = (self.register(Constant(0)), self.coordinates(Constant(0), stride as u32));
        let places = self.register(places);
        let masking = self.test_within(bounds);
        let (result, target) = self.fresh();
        let from = Operand::Apart { pointer, stride, first: 0 };
        let step = self.push(GATHER, target, &[Operand::Lanes(none), Operand::Lanes(places), from]);
        (step.in_place, step.masking) = (true, masking.map(|_| Masking::Chosen));
        self.tested.clear();
        Some(result)
    }

    /// Where each index is below its extent, into the mask register; the masking of a load of these lanes.
    fn test_within(&mut self, bounds: &[(Lanes, u32)]) -> Option<Masking> {
        if self.tested != bounds {
            for (number, &(index, extent)) in bounds.iter().enumerate() {
                // A comparison under a mask is false in lanes that are not in it.
                let masking = (number > 0).then_some(Masking::Chosen);
                self.test_below(index, extent).masking = masking;
            }
            self.tested = bounds.to_vec();
        }
        (!bounds.is_empty()).then_some(Masking::Zero)
    }

    /// Whether the index is below the extent, into the mask register.
    fn test_below(&mut self, index: Lanes, extent: u32) -> &mut LaneInstruction {
        let code = Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8;
        self.test(code, index, Constant(extent), Some(predicate::of_integers(Compare::Lt)))
    }

    fn read_masked(&mut self, dtype: DType, at: At, masking: Option<Masking>) -> Option<Lanes> {
        let code = match dtype {
            DType::F32 | DType::I32 | DType::U32 => LOAD,
            DType::BF16 => Code::EVEX_Vpmovzxwd_zmm_k1z_ymmm256,
            DType::F16 => Code::EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae,
            DType::I8 => Code::EVEX_Vpmovsxbd_zmm_k1z_xmmm128,
            DType::Bool => Code::EVEX_Vpmovzxbd_zmm_k1z_xmmm128,
            DType::F64 => return None,
        };
        let (bits, target) = self.fresh();
        let from = Operand::Elements { pointer: at.pointer, size: dtype.size() as u32, offset: at.offset };
        self.push(code, target, &[from]).masking = masking;
        Some(match dtype {
            DType::BF16 => self.op_by(Code::EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8, &[bits], Some(16)),
            DType::Bool => self.nonzero(bits),
            _ => bits,
        })
    }

    /// What a write needs of a value of bf16.
    fn narrowed(&self, value: Lanes) -> Narrow {
        let known = self.narrow.iter().find(|(wide, _)| *wide == value);
        known.map_or(Narrow::Upper(value), |&(_, narrow)| narrow)
    }

    /// Writes elements at the current position. Values of 16-bit floats are already rounded.
    pub(super) fn write(&mut self, dtype: DType, value: Lanes, pointer: u32) -> Option<()> {
        let value = self.register(value);
        let (code, value) = match dtype {
            DType::F32 | DType::I32 | DType::U32 => (Code::EVEX_Vmovups_zmmm512_k1z_zmm, value),
            DType::BF16 => match self.narrowed(value) {
                Narrow::Half(half) => (Code::EVEX_Vmovdqu16_ymmm256_k1z_ymm, half),
                Narrow::Upper(upper) => (Code::EVEX_Vpmovdw_ymmm256_k1z_zmm, self.shifted_right(upper, 16)),
            },
            DType::F16 => (Code::EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae, value),
            DType::I8 => (Code::EVEX_Vpmovdb_xmmm128_k1z_zmm, value),
            DType::Bool => (Code::EVEX_Vpmovdb_xmmm128_k1z_zmm, self.and(value, Constant(1))),
            DType::F64 => return None,
        };
        let target = ResultPlace::Elements { pointer, size: dtype.size() as u32, offset: 0 };
        let step = self.push(code, target, &[Operand::Lanes(value)]);
        step.immediate = (dtype == DType::F16).then_some(0);
        Some(())
    }

    /// `first + stride · position`, as 32-bit integers.
    pub(super) fn coordinates(&mut self, first: Lanes, stride: u32) -> Lanes {
        if stride == 0 {
            return first;
        }
        let known = self.coordinates.iter().find(|known| (known.0, known.1) == (first, stride));
        if let Some(&(_, _, known)) = known {
            return known;
        }
        let numbers = match self.lane_numbers {
            Some(numbers) => numbers,
            None => {
                let (lanes, target) = self.fresh();
                self.push(Code::EVEX_Vpmovzxbd_zmm_k1z_xmmm128, target, &[Operand::LaneNumbers { first: 0 }]);
                let (counter, target) = self.fresh();
                self.push(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, target, &[Operand::Counter]);
                let numbers = self.op(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, &[lanes, counter]);
                *self.lane_numbers.insert(numbers)
            }
        };
        let moved = match stride {
            1 => numbers,
            _ => self.op(Code::EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32, &[numbers, Constant(stride)]),
        };
        let all = self.op(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, &[moved, first]);
        self.coordinates.push((first, stride, all));
        all
    }

    /// A mask of the lanes where each index is below its extent, of one at least.
    pub(super) fn within(&mut self, bounds: &[(Lanes, u32)]) -> Lanes {
        self.test_within(bounds);
        self.mask()
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
        let behind = |offset: i32, size: u32| offset + i32::from(vector) * i32::from(WIDTH) * size as i32;
        let operand = |operand: &Operand| match *operand {
            Operand::Lanes(Lanes::Register(register)) => Operand::Lanes(Lanes::Register(renamed(register))),
            Operand::Elements { pointer, size, offset } => {
                Operand::Elements { pointer, size, offset: behind(offset, size) }
            }
            Operand::Alternate { pointer, offset, half } => {
                Operand::Alternate { pointer, offset: behind(offset, 2 * 4), half }
            }
            Operand::LaneNumbers { first } => Operand::LaneNumbers { first: first + vector * WIDTH },
            Operand::Apart { pointer, stride, first } => {
                Operand::Apart { pointer, stride, first: first + vector * WIDTH }
            }
            other @ (Operand::Lanes(_) | Operand::Mask | Operand::Counter) => other,
        };
        let target = match step.target {
            ResultPlace::Register(register) => ResultPlace::Register(renamed(register)),
            ResultPlace::Elements { pointer, size, offset } => {
                ResultPlace::Elements { pointer, size, offset: behind(offset, size) }
            }
            ResultPlace::Mask => ResultPlace::Mask,
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
                ResultPlace::Elements { .. } => true,
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
