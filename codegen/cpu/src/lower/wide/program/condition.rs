//! Conditions: which lanes something holds for, and what is chosen by that. AVX-512 compares into its mask register, of which a program uses one at
//! a time; AVX2 compares into a vector.

use super::super::codes::{AND, MAX_UNSIGNED, MIN_UNSIGNED, Operation, Vectors, XOR};
use super::super::predicate;
use super::{Constant, LaneInstruction, LaneProgram, Lanes, Masking, Operand, ResultPlace, Tested};
use iced_x86::Code;
use kernfusion_ir::{Compare, DType};

/// `mask ? x : y` by bits, as a table of three variables.
const CHOOSE: u8 = 0xca;

/// Patterns of a program at most: as many words for a vector as an address can step over.
pub(in super::super) const MOST_PATTERNS: usize = 64;

/// What is asked of two operands, lane by lane.
#[derive(Debug, Clone, Copy)]
pub(super) enum Test {
    /// A [`predicate`] of floats.
    Floats(u8),
    Signed(Compare),
    Unsigned(Compare),
    /// Whether there is a bit that both have.
    AnyBit,
}

impl Test {
    /// Of AVX-512, and its immediate operand.
    fn sixteen(self) -> (Code, Option<u8>) {
        match self {
            Test::Floats(predicate) => (Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae, Some(predicate)),
            Test::Signed(op) => {
                (Code::EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8, Some(predicate::of_integers(op)))
            }
            Test::Unsigned(op) => {
                (Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8, Some(predicate::of_integers(op)))
            }
            Test::AnyBit => (Code::EVEX_Vptestmd_kr_k1_zmm_zmmm512b32, None),
        }
    }
}

impl LaneProgram {
    /// A test, whose result is the mask.
    pub(super) fn test(&mut self, test: Test, x: Lanes, y: Lanes) {
        match self.vectors {
            Vectors::Sixteen(_) => {
                self.test_into_register(test, x, y);
            }
            Vectors::Eight => {
                let mask = self.tested_lanes(test, x, y);
                self.tested = None;
                self.mask = Some(mask);
            }
        }
    }

    /// Of sixteen lanes.
    fn test_into_register(&mut self, test: Test, x: Lanes, y: Lanes) -> &mut LaneInstruction {
        let operands = self.all_but_last_in_registers(&[x, y]);
        let (code, immediate) = test.sixteen();
        let step = self.push(code, ResultPlace::Mask, &operands);
        step.immediate = immediate;
        step
    }

    /// Of eight lanes: ones where the test holds. There are two comparisons of integers, for equal and for larger.
    fn tested_lanes(&mut self, test: Test, x: Lanes, y: Lanes) -> Lanes {
        const EQUAL: Code = Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256;
        const LARGER: Code = Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256;
        let extremum = |this: &mut Self, operation| {
            let x = this.register(x);
            let won = this.symmetric(operation, x, y);
            this.instruction(EQUAL, &[won, x], None)
        };
        let (lanes, holds) = match test {
            Test::Floats(predicate) => {
                (self.instruction(Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8, &[x, y], Some(predicate)), true)
            }
            Test::Signed(op @ (Compare::Eq | Compare::Ne))
            | Test::Unsigned(op @ (Compare::Eq | Compare::Ne)) => {
                (self.instruction(EQUAL, &[x, y], None), op == Compare::Eq)
            }
            Test::Signed(op @ (Compare::Gt | Compare::Le)) => {
                (self.instruction(LARGER, &[x, y], None), op == Compare::Gt)
            }
            Test::Signed(op) => (self.instruction(LARGER, &[y, x], None), op == Compare::Lt),
            Test::Unsigned(op @ (Compare::Le | Compare::Gt)) => {
                (extremum(self, MIN_UNSIGNED), op == Compare::Le)
            }
            Test::Unsigned(op) => (extremum(self, MAX_UNSIGNED), op == Compare::Ge),
            Test::AnyBit => {
                let common = if x == y { x } else { self.symmetric(AND, x, y) };
                (self.instruction(EQUAL, &[common, Constant(0)], None), false)
            }
        };
        if holds { lanes } else { self.symmetric(XOR, lanes, Constant(!0)) }
    }

    /// The mask as a value.
    pub(super) fn mask(&mut self) -> Lanes {
        match self.vectors {
            Vectors::Sixteen(_) => {
                let (result, target) = self.fresh();
                self.push(Code::EVEX_Vpmovm2d_zmm_kr, target, &[Operand::Mask]);
                result
            }
            Vectors::Eight => self.mask.expect("something was tested"),
        }
    }

    /// `yes` where the mask is set, else `no`, which is a register.
    pub(super) fn blend(&mut self, no: Lanes, yes: Lanes) -> Lanes {
        match self.vectors {
            Vectors::Sixteen(_) => {
                let operands = self.all_but_last_in_registers(&[no, yes]);
                let (result, target) = self.fresh();
                self.push(Code::EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32, target, &operands).masking =
                    Some(Masking::Chosen);
                result
            }
            Vectors::Eight => {
                let mask = self.mask();
                self.blend_by(mask, no, yes)
            }
        }
    }

    /// Of eight lanes: `yes` where the mask, a register, is set, else `no`.
    pub(super) fn blend_by(&mut self, mask: Lanes, no: Lanes, yes: Lanes) -> Lanes {
        // The second operand may be in memory.
        let operands = [self.register(no), yes, mask].map(Operand::Lanes);
        let (result, target) = self.fresh();
        self.push(Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm, target, &operands);
        result
    }

    /// An operation on `x` and `y` where the mask is set, else `no`, which is a register as `x` is.
    pub(super) fn where_mask(&mut self, no: Lanes, operation: Operation, x: Lanes, y: Lanes) -> Lanes {
        if self.vectors == Vectors::Eight {
            let yes = self.op(operation, &[x, y]);
            return self.blend(no, yes);
        }
        let (result, target) = self.fresh();
        let step = self.push(self.vectors.code(operation), target, &[no, x, y].map(Operand::Lanes));
        (step.in_place, step.masking) = (true, Some(Masking::Chosen));
        result
    }

    /// `mask ? x : y`.
    pub(in super::super) fn choose(&mut self, mask: Lanes, x: Lanes, y: Lanes) -> Lanes {
        if self.vectors == Vectors::Eight {
            let mask = self.register(mask);
            return self.blend_by(mask, y, x);
        }
        let operands = self.all_but_last_in_registers(&[mask, x, y]);
        let (result, target) = self.fresh();
        let step = self.push(Code::EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8, target, &operands);
        (step.immediate, step.in_place) = (Some(CHOOSE), true);
        result
    }

    /// A comparison of two operands of `dtype`, as a mask.
    pub(in super::super) fn compare(&mut self, op: Compare, dtype: DType, x: Lanes, y: Lanes) -> Lanes {
        let test = match dtype {
            _ if dtype.is_float() => Test::Floats(predicate::of_floats(op)),
            DType::I32 | DType::I8 => Test::Signed(op),
            _ => Test::Unsigned(op),
        };
        self.test(test, x, y);
        self.mask()
    }

    /// A mask of the lanes whose bits are not all zero.
    pub(super) fn nonzero(&mut self, x: Lanes) -> Lanes {
        let x = self.register(x);
        self.test(Test::AnyBit, x, x);
        self.mask()
    }

    /// A pattern of these bits; `None` if there are too many.
    pub(in super::super) fn pattern(&mut self, bits: Vec<u16>) -> Option<Tested> {
        let known = self.patterns.iter().position(|known| *known == bits);
        let number = known.or_else(|| {
            let is_room = self.patterns.len() < MOST_PATTERNS;
            is_room.then(|| {
                self.patterns.push(bits);
                self.patterns.len() - 1
            })
        });
        number.map(|number| Tested::Pattern(number as u32))
    }

    /// Patterns of the elements of both halves of the lanes, which lie two apart; `None` if there are too many.
    pub(in super::super) fn spread(&mut self, words: &[u16]) -> Option<[Tested; 2]> {
        let spread = |byte: u16| (0..8).map(|bit| (byte >> bit & 1) << (2 * bit)).sum::<u16>();
        let lower = words.iter().map(|word| spread(word & 0xff)).collect();
        let upper = words.iter().map(|word| spread(word >> 8) << 1).collect();
        Some([self.pattern(lower)?, self.pattern(upper)?])
    }

    /// Where bounds hold, into the mask; the masking of a load of these lanes.
    pub(super) fn test_bounds(&mut self, bounds: &Tested) -> Option<Masking> {
        if self.tested.as_ref() != Some(bounds) {
            match bounds {
                Tested::Below(bounds) => {
                    for (number, &bound) in bounds.iter().enumerate() {
                        self.test_below(bound, number > 0);
                    }
                }
                &Tested::Pattern(number) => {
                    let bits = Operand::Pattern { number, vector: 0 };
                    self.push(Code::VEX_Kmovw_kr_km16, ResultPlace::Mask, &[bits]);
                }
            }
            self.tested = Some(bounds.clone());
        }
        let is_all = matches!(bounds, Tested::Below(bounds) if bounds.is_empty());
        (!is_all).then_some(Masking::Zero)
    }

    /// Whether the index is below the extent, and, if asked, the mask was set before.
    fn test_below(&mut self, (index, extent): (Lanes, u32), and_before: bool) {
        match self.vectors {
            Vectors::Sixteen(_) => {
                let step = self.test_into_register(Test::Unsigned(Compare::Lt), index, Constant(extent));
                // A comparison under a mask is false in lanes that are not in it.
                step.masking = and_before.then_some(Masking::Chosen);
            }
            Vectors::Eight => {
                let before = self.mask.filter(|_| and_before);
                let test = match extent.checked_sub(1) {
                    // One operation less than below.
                    Some(last) => self.tested_lanes(Test::Unsigned(Compare::Le), index, Constant(last)),
                    None => self.register(Constant(0)),
                };
                self.mask = Some(before.map_or(test, |before| self.symmetric(AND, before, test)));
            }
        }
    }

    /// A mask of the lanes where bounds hold, of which there is one at least.
    pub(in super::super) fn within(&mut self, bounds: &Tested) -> Lanes {
        self.test_bounds(bounds);
        self.mask()
    }
}
