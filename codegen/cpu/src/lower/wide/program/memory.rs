//! What programs read and write: elements one after the other, every other one, and at equal distances; and where lanes are.

use super::super::codes::{
    ADD_INTEGERS, GATHER, LOAD, LOAD_16_BITS, LOAD_BYTES, LOAD_F16, LOAD_SIGNED_BYTES, MUL_INTEGERS,
    Operation, SHIFT_LEFT_BY, SHIFT_RIGHT, SHIFT_SIGNED_RIGHT_BY, STORE, TO_F16, Vectors,
};
use super::condition::Test;
use super::{Apart, At, Constant, Half, LaneProgram, Lanes, Masking, Narrow, Operand, ResultPlace, Tested};
use iced_x86::Code;
use kernfusion_ir::DType;

/// Of two vectors of sixteen, one after the other, as [`Half`] reads them: the places of the elements of a load of every other one.
static ALTERNATE: [u32; 16] = [0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31];
/// The even places of one vector and the odd ones of another one, by quarters; and quarters in the order that makes of these.
const EVEN_THEN_ODD: u8 = 0b11_01_10_00;

impl LaneProgram {
    /// Elements at the current position; `None` if there is no code for them.
    pub(in super::super) fn read(&mut self, dtype: DType, at: At) -> Option<Lanes> {
        self.read_masked(dtype, at, None)
    }

    /// As [`read`](Self::read), where bounds hold; the memory of other lanes need not be there, and they are zero.
    pub(in super::super) fn read_within(&mut self, bounds: &Tested, dtype: DType, at: At) -> Option<Lanes> {
        let masking = self.test_bounds(bounds);
        self.read_masked(dtype, at, masking)
    }

    /// Every other element, under bounds of both halves of the lanes: the same as for [`read_within`](Self::read_within), or patterns that are
    /// [spread](Self::spread).
    pub(in super::super) fn read_alternate(
        &mut self,
        bounds: [&Tested; 2],
        dtype: DType,
        at: At,
    ) -> Option<Lanes> {
        let operation = load_of(dtype)?;
        let table = match self.vectors {
            Vectors::Sixteen(_) => Some(self.register(Lanes::Table(&ALTERNATE))),
            Vectors::Eight => None,
        };
        let mut load = |half, bounds: &Tested| {
            let is_spread = matches!(bounds, Tested::Pattern(_));
            let masking = self.test_bounds(bounds);
            let (size, At { pointer, offset }) = (dtype.size() as u32, at);
            let from = Operand::Alternate { pointer, size, offset, half, is_spread };
            self.load(operation, from, masking)
        };
        let (lower, upper) = (load(Half::Lower, bounds[0]), load(Half::Upper, bounds[1]));
        let Some(table) = table else {
            let code = Code::VEX_Vshufps_ymm_ymm_ymmm256_imm8;
            let by_quarters = self.instruction(code, &[lower, upper], Some(EVEN_THEN_ODD));
            let code = Code::VEX_Vpermpd_ymm_ymmm256_imm8;
            let bits = self.instruction(code, &[by_quarters], Some(EVEN_THEN_ODD));
            return Some(self.of_bits(dtype, bits));
        };
        let (bits, target) = self.fresh();
        let operands = [lower, table, upper].map(Operand::Lanes);
        self.push(Code::EVEX_Vpermt2ps_zmm_k1z_zmm_zmmm512b32, target, &operands).in_place = true;
        Some(self.of_bits(dtype, bits))
    }

    /// Elements `stride` apart, under bounds as for [`read_within`](Self::read_within); `None` if there is no code for them.
    pub(in super::super) fn gather(
        &mut self,
        bounds: &Tested,
        dtype: DType,
        pointer: u32,
        stride: i32,
    ) -> Option<Lanes> {
        let size = dtype.size() as u32;
        let from = Operand::Apart(Apart { pointer, size, stride, first: 0 });
        if size < 4 {
            let masking = self.test_bounds(bounds);
            let bits = self.load(load_of(dtype)?, from, masking);
            return Some(self.of_bits(dtype, bits));
        }
        if dtype == DType::F64 {
            return None;
        }
        let (none, places) = (self.register(Constant(0)), self.coordinates(Constant(0), stride as u32));
        let places = self.register(places);
        let masking = self.test_bounds(bounds);
        let mut operands = [none, places].map(Operand::Lanes).to_vec();
        operands.extend(self.mask_operand(masking));
        operands.push(from);
        let (result, target) = self.fresh();
        let step = self.push(self.vectors.code(GATHER), target, &operands);
        (step.in_place, step.masking) = (true, masking.map(|_| Masking::Chosen));
        self.tested = None;
        Some(result)
    }

    /// The bytes of a table whose numbers, below 256, the lanes have.
    pub(in super::super) fn look_up(&mut self, pointer: u32, numbers: Lanes) -> Lanes {
        let numbers = self.register(numbers);
        let words = self.shifted_right(numbers, 2);
        let mut vectors =
            [0, 1, 2, 3].map(|vector| Lanes::Entries { pointer, offset: vector * 64 }).into_iter();
        let byte = match self.vectors {
            Vectors::Sixteen(_) => {
                let [lower, upper] =
                    [self.of_two_vectors(words, &mut vectors), self.of_two_vectors(words, &mut vectors)];
                self.test(Test::AnyBit, numbers, Constant(0x80));
                let word = self.blend(lower, upper);
                let bits = self.op_by(SHIFT_LEFT_BY, &[numbers], 3);
                // By bits modulo 32.
                self.instruction(Code::EVEX_Vprorvd_zmm_k1z_zmm_zmmm512b32, &[word, bits], None)
            }
            Vectors::Eight => {
                let (none, bits) = (self.register(Constant(0)), self.and(numbers, Constant(3)));
                let bits = self.op_by(SHIFT_LEFT_BY, &[bits], 3);
                let (word, target) = self.fresh();
                let operands = [Operand::Lanes(none), Operand::Lanes(words), Operand::Listed { pointer }];
                self.push(self.vectors.code(GATHER), target, &operands).in_place = true;
                self.op(SHIFT_RIGHT, &[word, bits])
            }
        };
        let upper = self.op_by(SHIFT_LEFT_BY, &[byte], 24);
        let signed = self.op_by(SHIFT_SIGNED_RIGHT_BY, &[upper], 24);
        self.narrow.push((signed, Narrow::Byte(byte)));
        signed
    }

    /// Of the next two vectors the words whose numbers, modulo 32, the lanes have.
    fn of_two_vectors(&mut self, numbers: Lanes, vectors: &mut impl Iterator<Item = Lanes>) -> Lanes {
        let [first, second] = [vectors.next(), vectors.next()].map(|vector| vector.expect("two vectors"));
        let operands = self.all_but_last_in_registers(&[numbers, first, second]);
        let (words, target) = self.fresh();
        self.push(Code::EVEX_Vpermi2d_zmm_k1z_zmm_zmmm512b32, target, &operands).in_place = true;
        words
    }

    /// The mask as an operand, of eight lanes; sixteen have a mask register.
    fn mask_operand(&self, masking: Option<Masking>) -> Option<Operand> {
        self.mask.filter(|_| masking.is_some()).map(Operand::Lanes)
    }

    /// A load of the lanes in the mask, or of all.
    fn load(&mut self, operation: Operation, from: Operand, masking: Option<Masking>) -> Lanes {
        let operands: Vec<_> = self.mask_operand(masking).into_iter().chain([from]).collect();
        let (result, target) = self.fresh();
        self.push(self.vectors.code(operation), target, &operands).masking = masking;
        result
    }

    fn read_masked(&mut self, dtype: DType, at: At, masking: Option<Masking>) -> Option<Lanes> {
        let from = Operand::Elements { pointer: at.pointer, size: dtype.size() as u32, offset: at.offset };
        let bits = self.load(load_of(dtype)?, from, masking);
        Some(self.of_bits(dtype, bits))
    }

    /// What [loads](load_of) leave in lanes, as values.
    fn of_bits(&mut self, dtype: DType, bits: Lanes) -> Lanes {
        match dtype {
            DType::BF16 => self.op_by(SHIFT_LEFT_BY, &[bits], 16),
            DType::Bool => self.nonzero(bits),
            _ => bits,
        }
    }

    /// What a write needs of a value that is known before it was widened.
    fn narrowed(&self, value: Lanes) -> Option<Narrow> {
        self.narrow.iter().find(|(wide, _)| *wide == value).map(|&(_, narrow)| narrow)
    }

    /// Writes elements at the current position, `stride` apart. Values of 16-bit floats are already rounded.
    pub(in super::super) fn write(
        &mut self,
        dtype: DType,
        value: Lanes,
        pointer: u32,
        stride: i32,
    ) -> Option<()> {
        let value = self.register(value);
        let is_sixteen = self.vectors != Vectors::Eight;
        let (code, value) = match dtype {
            DType::F32 | DType::I32 | DType::U32 => (self.vectors.code(STORE), value),
            DType::BF16 => match self.narrowed(value) {
                Some(Narrow::Half(half)) => (Code::EVEX_Vmovdqu16_ymmm256_k1z_ymm, half),
                narrow => {
                    let upper = if let Some(Narrow::Upper(upper)) = narrow { upper } else { value };
                    let low = self.shifted_right(upper, 16);
                    match is_sixteen {
                        true => (Code::EVEX_Vpmovdw_ymmm256_k1z_zmm, low),
                        false => (Code::VEX_Vmovdqu_xmmm128_xmm, self.halves_of(low)),
                    }
                }
            },
            DType::F16 => (self.vectors.code(TO_F16), value),
            DType::I8 | DType::Bool => {
                let narrow = self.narrowed(value);
                let value = match narrow {
                    Some(Narrow::Byte(lanes) | Narrow::Whole(lanes)) => lanes,
                    _ => value,
                };
                let value = match (dtype, self.vectors) {
                    (DType::Bool, _) => self.and(value, Constant(1)),
                    // What is packed must fit.
                    (_, Vectors::Eight) => self.and(value, Constant(0xff)),
                    (_, Vectors::Sixteen(_)) => value,
                };
                match is_sixteen {
                    true if matches!(narrow, Some(Narrow::Whole(_))) => {
                        (Code::EVEX_Vpmovsdb_xmmm128_k1z_zmm, value)
                    }
                    true => (Code::EVEX_Vpmovdb_xmmm128_k1z_zmm, value),
                    false => {
                        let halves = self.halves_of(value);
                        let code = Code::VEX_Vpackuswb_xmm_xmm_xmmm128;
                        (Code::VEX_Vmovq_xmmm64_xmm, self.instruction(code, &[halves, halves], None))
                    }
                }
            }
            DType::F64 => return None,
        };
        let size = dtype.size() as u32;
        let target = match stride {
            1 => ResultPlace::Elements { pointer, size, offset: 0 },
            _ => ResultPlace::Apart(Apart { pointer, size, stride, first: 0 }),
        };
        let step = self.push(code, target, &[Operand::Lanes(value)]);
        step.immediate = (dtype == DType::F16).then_some(0);
        Some(())
    }

    /// The vector at a place, which each vector of an iteration has behind the one before it.
    pub(in super::super) fn read_lanes(&mut self, at: At) -> Lanes {
        self.load(LOAD, Operand::Kept { pointer: at.pointer, offset: at.offset }, None)
    }

    /// Replaces [those lanes](Self::read_lanes); in the last iteration, those that are left.
    pub(in super::super) fn write_lanes(&mut self, lanes: Lanes, at: At) {
        let lanes = self.register(lanes);
        let target = ResultPlace::Kept { pointer: at.pointer, offset: at.offset };
        self.push(self.vectors.code(STORE), target, &[Operand::Lanes(lanes)]);
    }

    /// Of eight lanes, all below 2¹⁶: as numbers of sixteen bits, one after the other.
    fn halves_of(&mut self, lanes: Lanes) -> Lanes {
        let upper = self.instruction(Code::VEX_Vextracti128_xmmm128_ymm_imm8, &[lanes], Some(1));
        self.instruction(Code::VEX_Vpackusdw_xmm_xmm_xmmm128, &[lanes, upper], None)
    }

    /// `first + stride · position`, as 32-bit integers.
    pub(in super::super) fn coordinates(&mut self, first: Lanes, stride: u32) -> Lanes {
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
                self.push(self.vectors.code(LOAD_BYTES), target, &[Operand::LaneNumbers { first: 0 }]);
                let counter = self.counter();
                let numbers = self.op(ADD_INTEGERS, &[lanes, counter]);
                *self.lane_numbers.insert(numbers)
            }
        };
        let moved = match stride {
            1 => numbers,
            _ => self.op(MUL_INTEGERS, &[numbers, Constant(stride)]),
        };
        let all = self.op(ADD_INTEGERS, &[moved, first]);
        self.coordinates.push((first, stride, all));
        all
    }

    /// The loop's counter in every lane.
    fn counter(&mut self) -> Lanes {
        let (counter, target) = self.fresh();
        match self.vectors {
            Vectors::Sixteen(_) => {
                self.push(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, target, &[Operand::Counter]);
                counter
            }
            Vectors::Eight => {
                self.push(Code::VEX_Vmovd_xmm_rm32, target, &[Operand::Counter]);
                self.instruction(Code::VEX_Vpbroadcastd_ymm_xmmm32, &[counter], None)
            }
        }
    }
}

/// What loads a vector of elements.
fn load_of(dtype: DType) -> Option<Operation> {
    match dtype {
        DType::F32 | DType::I32 | DType::U32 => Some(LOAD),
        DType::BF16 => Some(LOAD_16_BITS),
        DType::F16 => Some(LOAD_F16),
        DType::I8 => Some(LOAD_SIGNED_BYTES),
        DType::Bool => Some(LOAD_BYTES),
        DType::F64 => None,
    }
}
