//! What a function has on the stack.

use super::super::codes::Vectors;
use super::super::program::{LaneInstruction, Lanes, Operand, ResultPlace};
use super::Assembler;
use super::encode::Place;
use super::registers::Body;
use iced_x86::{Code, Register};

/// Where the stack was before the frame.
const STACK: Register = Register::RBP;
/// A narrow element on its way through the stack, and its lane.
const ELEMENT: Register = Register::R14;
pub(super) const LANE: Register = Register::R15;
/// Where narrow elements are on their way.
pub(super) const ROOM: Place = Place::Memory(Register::RSP, None, 0);

/// Vectors on the stack: room for narrow elements, if there are such; scalars that no register keeps, in all lanes; values that wait.
pub(super) struct Frame {
    vectors: Vectors,
    has_room: bool,
    scalars: Vec<Lanes>,
    slots: u32,
}

impl Frame {
    /// Of a body, and what it reads from memory though it is the same everywhere. With sixteen lanes, instructions broadcast scalars, and read narrow
    /// elements under masks.
    pub(super) fn of<'l>(body: &Body, read: impl Iterator<Item = &'l Lanes>) -> Frame {
        let (vectors, slots) = (body.program.vectors, body.slots);
        if vectors != Vectors::Eight {
            return Frame { vectors, has_room: false, scalars: vec![], slots };
        }
        let is_narrow = |step: &LaneInstruction| {
            let reads = |operand: &Operand| match operand {
                Operand::Elements { size, .. } | Operand::Alternate { size, .. } => *size < 4,
                _ => false,
            };
            step.operands.iter().any(reads)
                || matches!(step.target, ResultPlace::Elements { size, .. } if size < 4)
        };
        let is_scalar = |lanes: &&Lanes| matches!(lanes, Lanes::Scalar(_) | Lanes::Same { .. });
        let (has_room, scalars) =
            (body.program.steps.iter().any(is_narrow), read.filter(is_scalar).copied().collect());
        Frame { vectors, has_room, scalars, slots }
    }

    /// Registers that are needed for it, which are the caller's.
    pub(super) fn registers(&self) -> Vec<Register> {
        let stack = (!self.is_empty()).then_some(STACK);
        let way = if self.has_room { vec![ELEMENT, LANE] } else { vec![] };
        stack.into_iter().chain(way).collect()
    }

    fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Scalars in it and where they are.
    pub(super) fn scalars(&self) -> impl Iterator<Item = (Lanes, Place)> {
        self.scalars.iter().enumerate().map(|(at, &lanes)| (lanes, self.place(at)))
    }

    /// Where a value that waits is.
    pub(super) fn slot(&self, slot: u32) -> Place {
        self.place(self.scalars.len() + slot as usize)
    }

    /// Where a scalar is, if it is there.
    pub(super) fn scalar(&self, lanes: Lanes) -> Option<Place> {
        self.scalars().find(|(known, _)| *known == lanes).map(|(_, place)| place)
    }

    /// A vector behind the room; scalars are the first ones.
    fn place(&self, number: usize) -> Place {
        Place::Memory(Register::RSP, None, self.offset(number))
    }

    fn offset(&self, number: usize) -> i32 {
        self.vectors.bytes() as i32 * (number as i32 + i32::from(self.has_room))
    }

    fn bytes(&self) -> i32 {
        self.offset(self.scalars.len() + self.slots as usize)
    }
}

impl Assembler<'_> {
    /// Makes room for the frame, aligned to vectors.
    pub(super) fn open_frame(&mut self) {
        if !self.frame.is_empty() {
            let (stack, bytes) = (Place::Register(Register::RSP), self.frame.bytes());
            self.emit(Code::Mov_r64_rm64, &[Place::Register(STACK), stack]);
            self.emit(Code::Sub_rm64_imm32, &[stack, Place::Wide(bytes)]);
            self.emit(Code::And_rm64_imm32, &[stack, Place::Wide(-(self.vectors.bytes() as i32))]);
        }
    }

    pub(super) fn close_frame(&mut self) {
        if !self.frame.is_empty() {
            self.emit(Code::Mov_r64_rm64, &[Register::RSP, STACK].map(Place::Register));
        }
    }
}
