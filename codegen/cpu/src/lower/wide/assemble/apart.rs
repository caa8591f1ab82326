//! Elements that lie apart, one by one: read, all of a vector's, which is faster than a gather, or narrow ones of some lanes, which no gather reads; and
//! written.

use super::super::codes::Vectors;
use super::super::program::{Apart, LaneInstruction};
use super::encode::{Line, Place};
use super::{Assembler, BITS, COUNTER, SCRATCH, pointer_place, spare};
use iced_x86::Code;

/// Bytes of the registers that elements are put into.
const PART: u32 = 16;

impl Assembler<'_> {
    /// As many elements of four bytes as a vector has lanes.
    pub(super) fn elements_apart(&mut self, target: Place, apart: Apart) {
        let place = self.places_apart(apart);
        let (one, next) = match self.vectors {
            Vectors::Sixteen(_) => (Code::EVEX_Vmovss_xmm_k1z_m32, Code::EVEX_Vinsertps_xmm_xmm_xmmm32_imm8),
            Vectors::Eight => (Code::VEX_Vmovss_xmm_m32, Code::VEX_Vinsertps_xmm_xmm_xmmm32_imm8),
        };
        for four in 0..self.vectors.lanes() / 4 {
            let part = self.part(target, four);
            self.emit(one, &[part, place(four * 4)]);
            for lane in 1..4 {
                self.emit(next, &[part, part, place(four * 4 + lane), Place::Immediate(lane << 4)]);
            }
            self.join(target, part, four);
        }
    }

    /// Elements of one or two bytes, one behind the other: of all lanes, or of some, whose bits are set; others are zero.
    pub(super) fn narrow_elements_apart(&mut self, target: Place, apart: Apart, of_some: bool) {
        let place = self.places_apart(apart);
        let (zero, insert) = match (self.vectors, apart.size) {
            (Vectors::Sixteen(_), 1) => {
                (Code::EVEX_Vpxord_xmm_k1z_xmm_xmmm128b32, Code::EVEX_Vpinsrb_xmm_xmm_r32m8_imm8)
            }
            (Vectors::Sixteen(_), _) => {
                (Code::EVEX_Vpxord_xmm_k1z_xmm_xmmm128b32, Code::EVEX_Vpinsrw_xmm_xmm_r32m16_imm8)
            }
            (Vectors::Eight, 1) => (Code::VEX_Vpxor_xmm_xmm_xmmm128, Code::VEX_Vpinsrb_xmm_xmm_r32m8_imm8),
            (Vectors::Eight, _) => (Code::VEX_Vpxor_xmm_xmm_xmmm128, Code::VEX_Vpinsrw_xmm_xmm_r32m16_imm8),
        };
        let count = self.vectors.lanes();
        let of_part = count.min((PART / apart.size) as u8);
        for number in 0..count / of_part {
            let part = self.part(target, number);
            self.emit(zero, &[part; 3]);
            for inner in 0..of_part {
                let lane = number * of_part + inner;
                self.of_lane(lane, of_some, insert, &[part, part, place(lane), Place::Immediate(inner)]);
            }
            self.join(target, part, number);
        }
    }

    /// A store of all lanes, or in the last iteration of those whose bits are set. Narrow elements are put into the spare register first, one behind the
    /// other.
    pub(super) fn store_apart(&mut self, step: &LaneInstruction, apart: Apart) {
        let spare = Place::Register(spare(self.vectors));
        let mut part = match apart.size {
            4 => self.operand(step, &step.operands[0]),
            _ => {
                let all = self.places(step);
                self.emit(step.code, &all);
                spare
            }
        };
        let is_sixteen = matches!(self.vectors, Vectors::Sixteen(_));
        let extract = match (is_sixteen, apart.size) {
            (true, 4) => Code::EVEX_Vextractps_rm32_xmm_imm8,
            (true, 2) => Code::EVEX_Vpextrw_r32m16_xmm_imm8,
            (true, _) => Code::EVEX_Vpextrb_r32m8_xmm_imm8,
            (false, 4) => Code::VEX_Vextractps_rm32_xmm_imm8,
            (false, 2) => Code::VEX_Vpextrw_r32m16_xmm_imm8,
            (false, _) => Code::VEX_Vpextrb_r32m8_xmm_imm8,
        };
        let place = self.places_apart(apart);
        let (vector, count) = (part, self.vectors.lanes());
        let of_part = count.min((PART / apart.size) as u8);
        for number in 0..count / of_part {
            if number > 0 {
                let code = match is_sixteen {
                    true => Code::EVEX_Vextracti32x4_xmmm128_k1z_zmm_imm8,
                    false => Code::VEX_Vextracti128_xmmm128_ymm_imm8,
                };
                self.emit(code, &[spare, vector, Place::Immediate(number)]);
                part = spare;
            }
            for inner in 0..of_part {
                let lane = number * of_part + inner;
                self.of_lane(lane, self.is_tail, extract, &[place(lane), part, Place::Immediate(inner)]);
            }
        }
    }

    /// An instruction of one lane: if asked, only where its bit is set.
    fn of_lane(&mut self, lane: u8, of_some: bool, code: Code, places: &[Place]) {
        let skip = of_some.then(|| self.label());
        if let Some(skip) = skip {
            self.emit(Code::Bt_rm32_imm8, &[Place::Register(BITS), Place::Immediate(lane)]);
            self.jump(Code::Jae_rel32_64, skip);
        }
        self.emit(code, places);
        self.lines.extend(skip.map(Line::Place));
    }

    /// Where lanes' elements are, by way of the scratch register.
    fn places_apart(&mut self, apart: Apart) -> impl Fn(u8) -> Place + use<> {
        let (bytes, first) = (apart.stride * apart.size as i32, i32::from(apart.first));
        let position = [Place::Register(SCRATCH), Place::Register(COUNTER), Place::Wide(bytes)];
        self.emit(Code::Imul_r64_rm64_imm32, &position);
        self.emit(Code::Add_r64_rm64, &[Place::Register(SCRATCH), pointer_place(apart.pointer)]);
        move |lane| Place::Memory(SCRATCH, None, (first + i32::from(lane)) * bytes)
    }

    /// Where a part of a vector is put together: in its lowest one, or beside.
    fn part(&self, target: Place, number: u8) -> Place {
        if number == 0 { target } else { Place::Register(spare(self.vectors)) }
    }

    /// Moves a part to its place.
    fn join(&mut self, target: Place, part: Place, number: u8) {
        if number > 0 {
            let code = match self.vectors {
                Vectors::Sixteen(_) => Code::EVEX_Vinserti32x4_zmm_k1z_zmm_xmmm128_imm8,
                Vectors::Eight => Code::VEX_Vinsertf128_ymm_ymm_xmmm128_imm8,
            };
            self.emit(code, &[target, target, part, Place::Immediate(number)]);
        }
    }
}
