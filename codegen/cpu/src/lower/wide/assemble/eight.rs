//! Steps of eight lanes: masks are vectors, and only elements of four bytes can be read and written under one. In the last iteration, narrower ones go
//! through the stack one by one.

use super::super::codes::{BROADCAST, GATHER, STORE};
use super::super::program::{Apart, Half, LaneInstruction, Lanes, Operand, ResultPlace};
use super::encode::{Label, Line, Place};
use super::frame::{LANE, ROOM};
use super::{Assembler, BITS, RUNS, SCRATCH, spare};
use iced_x86::{Code, Register};

impl Assembler<'_> {
    /// Scalars to their places in the frame.
    pub(super) fn fill_frame(&mut self, slots: &[(Lanes, Place)]) {
        let all = Place::Register(spare(self.vectors));
        for &(lanes, place) in slots {
            let from = self.source(lanes);
            self.emit(self.vectors.code(BROADCAST), &[all, from]);
            self.emit(self.vectors.code(STORE), &[place, all]);
        }
    }

    /// The mask of the lanes that are left, in the spare register.
    pub(super) fn rest_into_spare(&mut self) {
        let ones_and_zeros: Vec<u32> = (0..16).map(|lane| if lane < 8 { !0 } else { 0 }).collect();
        let table = self.datum(Label::Rest, &ones_and_zeros);
        let skipped = Place::Register(Register::ECX);
        self.emit(Code::Lea_r64_m, &[Place::Register(SCRATCH), table]);
        self.emit(Code::Mov_r32_imm32, &[skipped, Place::Wide(8)]);
        self.emit(Code::Sub_r32_rm32, &[skipped, Place::Register(Register::EDX)]);
        let from = Place::Memory(SCRATCH, Some((RUNS, 4)), 0);
        self.emit(Code::VEX_Vmovups_ymm_ymmm256, &[self.rest(), from]);
    }

    /// Where the mask of the lanes that are left is.
    fn rest(&self) -> Place {
        Place::Register(spare(self.vectors))
    }

    pub(super) fn step_of_eight(&mut self, step: &LaneInstruction) {
        if step.code == self.vectors.code(GATHER) {
            return self.gather_of_eight(step);
        }
        match (step.operands.last(), step.target) {
            (Some(Operand::Elements { .. } | Operand::Alternate { .. } | Operand::Apart(_)), _) => {
                self.load(step);
            }
            (_, ResultPlace::Apart(apart)) => {
                if self.is_tail {
                    self.emit(Code::VEX_Vmovmskps_r32_ymm, &[Place::Register(BITS), self.rest()]);
                }
                self.store_apart(step, apart);
                if self.is_tail {
                    self.rest_into_spare();
                }
            }
            (_, ResultPlace::Elements { size, .. }) if self.is_tail => self.store_rest(step, size),
            (_, ResultPlace::Kept { .. }) if self.is_tail => self.keep_rest(step),
            _ => {
                let all = self.places(step);
                if !self.is_copy(step.code, &all) {
                    self.emit(step.code, &all);
                }
            }
        }
    }

    /// A load, of which the mask before its memory says which lanes there are, if there is one.
    fn load(&mut self, step: &LaneInstruction) {
        let target = self.target(step);
        let (mask, from) = match &step.operands[..] {
            [from] => (None, from),
            [Operand::Lanes(mask), from] => (Some(self.value(*mask)), from),
            _ => unreachable!("memory, and a mask perhaps"),
        };
        let mask = match (mask, self.is_tail) {
            (None, false) => None,
            (None, true) => Some(self.rest()),
            (Some(mask), false) => Some(mask),
            (Some(mask), true) => {
                self.emit(Code::VEX_Vandps_ymm_ymm_ymmm256, &[target, mask, self.rest()]);
                Some(target)
            }
        };
        if let Operand::Apart(apart) = *from {
            if let Some(mask) = mask {
                self.emit(Code::VEX_Vmovmskps_r32_ymm, &[Place::Register(BITS), mask]);
            }
            self.narrow_elements_apart(target, apart, mask.is_some());
            // As many of them as there are lanes are the lower part of the vector.
            self.emit(step.code, &[target, target]);
            return;
        }
        let Some(mut mask) = mask else {
            let from = self.operand(step, from);
            self.emit(step.code, &[target, from]);
            return;
        };
        match *from {
            Operand::Elements { size: size @ 1..4, .. } => return self.load_narrow(step, size, mask, None),
            Operand::Alternate { size: size @ 1..4, half, .. } => {
                return self.load_narrow(step, size, mask, Some(half));
            }
            Operand::Alternate { half, .. } => mask = self.spread_lanes(mask, half, target),
            _ => {}
        }
        let from = self.operand(step, from);
        self.emit(Code::VEX_Vmaskmovps_ymm_ymm_m256, &[target, mask, from]);
    }

    /// The mask of the elements of half of the lanes, in this register.
    fn spread_lanes(&mut self, mask: Place, half: Half, to: Place) -> Place {
        let double = Code::VEX_Vpmovzxdq_ymm_xmmm128;
        match half {
            Half::Lower => {
                self.emit(double, &[to, mask]);
            }
            Half::Upper => {
                self.emit(Code::VEX_Vextracti128_xmmm128_ymm_imm8, &[to, mask, Place::Immediate(1)]);
                self.emit(double, &[to, to]);
                self.emit(Code::VEX_Vpsllq_ymm_ymm_imm8, &[to, to, Place::Immediate(32)]);
            }
        }
        to
    }

    /// A store of the lanes that are left.
    fn store_rest(&mut self, step: &LaneInstruction, size: u32) {
        let all = self.places(step);
        if size == 4 {
            self.emit(Code::VEX_Vmaskmovps_m256_ymm_ymm, &[all[0], self.rest(), all[1]]);
            return;
        }
        self.emit(step.code, &[&[ROOM], &all[1..]].concat());
        self.emit(Code::VEX_Vmovmskps_r32_ymm, &[Place::Register(BITS), self.rest()]);
        self.copy_lanes(size, ROOM, all[0]);
    }

    /// A store to lanes that are kept, all of which are written, the same to those that are not left: a masked store takes some processors long.
    fn keep_rest(&mut self, step: &LaneInstruction) {
        let all = self.places(step);
        let [memory, lanes] = all[..] else { unreachable!("a store") };
        for (code, with) in [
            (Code::VEX_Vxorps_ymm_ymm_ymmm256, memory),
            (Code::VEX_Vandps_ymm_ymm_ymmm256, self.rest()),
            (Code::VEX_Vxorps_ymm_ymm_ymmm256, memory),
        ] {
            self.emit(code, &[lanes, lanes, with]);
        }
        self.emit(step.code, &all);
    }

    /// A load of narrow elements under a mask of lanes, of all of them or of every other element of this half; at once where all lanes are read.
    fn load_narrow(&mut self, step: &LaneInstruction, size: u32, mask: Place, half: Option<Half>) {
        let (target, from) = (self.target(step), step.operands.last().expect("memory"));
        let [some, done] = [self.label(), self.label()];
        let bits = Place::Register(BITS);
        self.emit(Code::VEX_Vmovmskps_r32_ymm, &[bits, mask]);
        self.emit(Code::Cmp_rm32_imm32, &[bits, Place::Wide(0xff)]);
        self.jump(Code::Jne_rel32_64, some);
        let all = self.operand(step, from);
        self.emit(step.code, &[target, all]);
        self.jump(Code::Jmp_rel32_64, done);
        self.lines.push(Line::Place(some));
        if let Some(half) = half {
            let mask = self.spread_lanes(mask, half, target);
            self.emit(Code::VEX_Vmovmskps_r32_ymm, &[bits, mask]);
        }
        self.emit(Code::VEX_Vxorps_ymm_ymm_ymmm256, &[target; 3]);
        self.emit(Code::VEX_Vmovups_ymmm256_ymm, &[ROOM, target]);
        let from = self.operand(step, from);
        self.copy_lanes(size, from, ROOM);
        self.emit(step.code, &[target, ROOM]);
        self.lines.push(Line::Place(done));
    }

    /// Copies the elements of the lanes whose bits are set, one by one.
    fn copy_lanes(&mut self, size: u32, from: Place, to: Place) {
        // One of them is on the stack, the other one at the current position.
        let elsewhere = if from == ROOM { to } else { from };
        let (read, write, element) = match size {
            1 => (Code::Movzx_r32_rm8, Code::Mov_rm8_r8, Register::R14L),
            _ => (Code::Movzx_r32_rm16, Code::Mov_rm16_r16, Register::R14W),
        };
        let at = |place| {
            let base = if place == ROOM { Register::RSP } else { SCRATCH };
            Place::Memory(base, Some((LANE, size)), 0)
        };
        let [bits, lane] = [BITS, Register::R15D].map(Place::Register);
        let [start, done] = [self.label(), self.label()];
        self.emit(Code::Lea_r64_m, &[Place::Register(SCRATCH), elsewhere]);
        self.lines.push(Line::Place(start));
        self.emit(Code::Bsf_r32_rm32, &[lane, bits]);
        self.jump(Code::Je_rel32_64, done);
        self.emit(Code::Btr_rm32_r32, &[bits, lane]);
        self.emit(read, &[Place::Register(Register::R14D), at(from)]);
        self.emit(write, &[at(to), Place::Register(element)]);
        self.jump(Code::Jmp_rel32_64, start);
        self.lines.push(Line::Place(done));
    }

    /// Elements that lie apart: one by one where all lanes are read, else a gather of those that are.
    fn gather_of_eight(&mut self, step: &LaneInstruction) {
        let (none, places, mask, from) = match &step.operands[..] {
            [none, places, from] => (none, places, None, from),
            [none, places, mask, from] => (none, places, Some(mask), from),
            _ => unreachable!("three or four operands"),
        };
        let ([none, places], target) = ([none, places].map(|x| self.operand(step, x)), self.target(step));
        let Place::Register(places) = places else { unreachable!("places are in a register") };
        let mask = mask.map(|mask| self.operand(step, mask));
        let pointer = match *from {
            Operand::Apart(apart) if mask.is_none() && !self.is_tail => {
                return self.elements_apart(target, apart);
            }
            Operand::Apart(Apart { pointer, .. }) | Operand::Listed { pointer } => pointer,
            _ => unreachable!("elements apart"),
        };
        // The gather clears its mask.
        let rest = self.rest();
        match mask {
            _ if matches!(from, Operand::Listed { .. }) => {
                self.emit(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, &[rest; 3]);
            }
            Some(mask) if self.is_tail => {
                self.emit(Code::VEX_Vandps_ymm_ymm_ymmm256, &[rest, mask, rest]);
            }
            Some(mask) => self.copy(mask, rest),
            None => {}
        }
        self.copy(none, target);
        let from = Place::Memory(self.base(pointer), Some((places, 4)), 0);
        self.emit(step.code, &[target, from, rest]);
        if self.is_tail {
            self.rest_into_spare();
        }
    }
}
