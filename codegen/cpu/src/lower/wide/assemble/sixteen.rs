//! Steps of sixteen lanes: what mask registers choose.

use super::super::codes::GATHER;
use super::super::program::{
    Apart, Half, LaneInstruction, LaneProgram, Lanes, Masking, Operand, ResultPlace,
};
use super::encode::{Label, Place};
use super::{Assembler, BITS, COUNTER, PATTERNS};
use iced_x86::{Code, Register};

/// The lanes that are left in the last iteration.
const REST: Register = Register::K1;
/// The mask of a load of every other element.
const SPREAD: Register = Register::K7;

impl Assembler<'_> {
    /// The mask of the lanes that are left.
    pub(super) fn rest_into_mask_register(&mut self) {
        let [bits, rest] = [Register::EAX, Register::EDX].map(Place::Register);
        self.emit(Code::Xor_r32_rm32, &[bits, bits]);
        self.emit(Code::Bts_rm32_r32, &[bits, rest]);
        self.emit(Code::Dec_rm32, &[bits]);
        self.emit(Code::VEX_Kmovw_kr_r32, &[Place::Register(REST), bits]);
    }

    /// Puts patterns behind the code, those of a vector side by side, and their place into its register.
    pub(super) fn place_patterns(&mut self, patterns: &[Vec<u16>]) {
        let room = words_for(patterns.len());
        let vectors = patterns[0].len();
        let word = |at: usize| patterns.get(at % room).map_or(0, |pattern| pattern[at / room]);
        let bytes = (0..vectors * room).flat_map(|at| word(at).to_le_bytes()).collect();
        self.data.insert(Label::Patterns, bytes);
        self.emit(Code::Lea_r64_m, &[Place::Register(PATTERNS), Place::Label(Label::Patterns)]);
    }

    /// The word of a pattern for a vector.
    pub(super) fn pattern(&mut self, number: u32, vector: u8) -> Place {
        // A vector's words lie behind those of the sixteen lanes before it.
        let room = words_for(self.body.program.patterns.len());
        let offset = (usize::from(vector) * room + number as usize) * 2;
        Place::Memory(PATTERNS, Some((COUNTER, (room * 2 / 16) as u32)), offset as i32)
    }

    pub(super) fn step_of_sixteen(&mut self, step: &LaneInstruction) {
        if step.code == self.vectors.code(GATHER) {
            return self.gather_of_sixteen(step);
        }
        if let &[Operand::Apart(apart)] = &step.operands[..] {
            return self.load_apart_of_sixteen(step, apart);
        }
        if let ResultPlace::Apart(apart) = step.target {
            if self.is_tail {
                self.emit(Code::VEX_Kmovw_r32_kr, &[BITS, REST].map(Place::Register));
            }
            return self.store_apart(step, apart);
        }
        let all = self.places(step);
        if self.is_copy(step.code, &all) {
            return;
        }
        let reads = step.operands.iter().find_map(|operand| match operand {
            Operand::Elements { .. } => Some(None),
            Operand::Alternate { half, is_spread, .. } => Some((!is_spread).then_some(*half)),
            _ => None,
        });
        let writes = matches!(step.target, ResultPlace::Elements { .. } | ResultPlace::Kept { .. });
        // A pattern has no lanes behind the end, and one that is spread none in order.
        let is_of_pattern = |operand: &Operand| matches!(operand, Operand::Alternate { is_spread: true, .. });
        let in_tail = self.is_tail && (reads.is_some() || writes) && !step.operands.iter().any(is_of_pattern);
        if in_tail && step.masking.is_some() {
            let [rest, mask] = [REST, mask_of(step)].map(Place::Register);
            self.emit(Code::VEX_Kandw_kr_kr_kr, &[mask, mask, rest]);
        }
        let mut mask = match step.masking {
            Some(masking) => Some((mask_of(step), masking == Masking::Zero)),
            None => in_tail.then_some((REST, reads.is_some())),
        };
        if let (Some((mask, _)), Some(Some(half))) = (&mut mask, reads) {
            *mask = self.spread(*mask, half);
        }
        let is_broadcast = self.broadcasts(step);
        let instruction = self.emit(step.code, &all);
        instruction.set_is_broadcast(is_broadcast);
        if let Some((mask, is_zeroing)) = mask {
            instruction.set_op_mask(mask);
            instruction.set_zeroing_masking(is_zeroing);
        }
    }

    /// Whether a step reads one number from memory for all lanes, other than by an instruction that does nothing else.
    fn broadcasts(&self, step: &LaneInstruction) -> bool {
        let Some(Operand::Lanes(lanes)) = step.operands.last() else { return false };
        let is_number = matches!(lanes, Lanes::Scalar(_) | Lanes::Same { .. } | Lanes::Constant(_));
        is_number && !self.kept.contains_key(lanes) && step.code != self.vectors.code(super::BROADCAST)
    }

    /// Elements that lie apart: one by one where all lanes are read, else a gather of those that are.
    fn gather_of_sixteen(&mut self, step: &LaneInstruction) {
        let [none, places, from] = &step.operands[..] else { unreachable!("three operands") };
        let &Operand::Apart(apart) = from else { unreachable!("elements apart") };
        let ([none, places], target) = ([none, places].map(|x| self.operand(step, x)), self.target(step));
        let Place::Register(places) = places else { unreachable!("places are in a register") };
        if step.masking.is_none() && !self.is_tail {
            return self.elements_apart(target, apart);
        }
        self.copy(none, target);
        let [mask, rest] = [mask_of(step), REST].map(Place::Register);
        if step.masking.is_none() {
            self.emit(Code::VEX_Kmovw_kr_km16, &[mask, rest]);
        } else if self.is_tail {
            self.emit(Code::VEX_Kandw_kr_kr_kr, &[mask, mask, rest]);
        }
        let from = Place::Memory(self.base(apart.pointer), Some((places, 4)), 0);
        self.emit(step.code, &[target, from]).set_op_mask(mask_of(step));
    }

    /// Narrow elements that lie apart.
    fn load_apart_of_sixteen(&mut self, step: &LaneInstruction, apart: Apart) {
        let target = self.target(step);
        let mask = match step.masking {
            Some(_) => Some(mask_of(step)),
            None => self.is_tail.then_some(REST),
        };
        if self.is_tail && step.masking.is_some() {
            let [rest, mask] = [REST, mask_of(step)].map(Place::Register);
            self.emit(Code::VEX_Kandw_kr_kr_kr, &[mask, mask, rest]);
        }
        if let Some(mask) = mask {
            self.emit(Code::VEX_Kmovw_r32_kr, &[BITS, mask].map(Place::Register));
        }
        self.narrow_elements_apart(target, apart, mask.is_some());
        self.emit(step.code, &[target, target]);
    }

    /// The mask of the elements of half of the lanes, in a register that is free again after the next instruction.
    fn spread(&mut self, lanes: Register, half: Half) -> Register {
        let bits = Place::Register(BITS);
        self.emit(Code::VEX_Kmovw_r32_kr, &[bits, Place::Register(lanes)]);
        let places = match half {
            Half::Lower => 0x5555,
            Half::Upper => {
                self.emit(Code::Shr_rm32_imm8, &[bits, Place::Immediate(8)]);
                0xaaaa
            }
        };
        let places = self.datum(Label::Constant(places), &[places]);
        self.emit(Code::VEX_Pdep_r32_r32_rm32, &[bits, bits, places]);
        self.emit(Code::VEX_Kmovw_kr_r32, &[Place::Register(SPREAD), bits]);
        SPREAD
    }
}

/// The bytes of a program's patterns.
pub(super) fn pattern_bytes(program: &LaneProgram) -> usize {
    program.patterns.first().map_or(0, |pattern| pattern.len() * words_for(program.patterns.len()) * 2)
}

/// The words that a vector has for this many patterns, so that the counter times 1, 2, 4 or 8 is where they are.
fn words_for(patterns: usize) -> usize {
    patterns.next_power_of_two().max(8)
}

/// The mask register of an instruction's vector.
pub(super) fn mask_of(step: &LaneInstruction) -> Register {
    Register::K2 + u32::from(step.vector)
}
