//! Instructions with labels, and their encoding.

use super::{Assembled, Assembler};
use iced_x86::{Code, Encoder, Formatter, Instruction, IntelFormatter, OpCodeOperandKind, OpKind, Register};
use std::collections::BTreeMap;

/// Places that instructions refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Label {
    Several,
    AfterSeveral,
    Run,
    Loop,
    Tail,
    End,
    /// Within a step.
    Inner(u32),
    Constant(u32),
    Table(&'static [u32]),
    LaneNumbers(u8),
    /// Ones for each lane of a vector, then zeros.
    Rest,
    Patterns,
}

/// A line of the function.
pub(super) enum Line {
    Place(Label),
    /// An instruction, and where it jumps or reads.
    Instruction(Instruction, Option<Label>),
}

/// An operand of a machine instruction.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Place {
    Register(Register),
    Immediate(u8),
    /// One of 32 bits, which is sign-extended.
    Wide(i32),
    /// Base, index with scale, offset.
    Memory(Register, Option<(Register, u32)>, i32),
    Label(Label),
}

impl Assembler<'_> {
    pub(super) fn emit(&mut self, code: Code, places: &[Place]) -> &mut Instruction {
        let mut instruction = Instruction::default();
        instruction.set_code(code);
        let mut label = None;
        for (at, place) in (0..).zip(places) {
            match *place {
                Place::Register(register) => {
                    instruction.set_op_kind(at, OpKind::Register);
                    instruction.set_op_register(at, sized(register, code, at));
                }
                Place::Immediate(value) => {
                    let to_64 = code == Code::Add_rm64_imm8;
                    let kind = if to_64 { OpKind::Immediate8to64 } else { OpKind::Immediate8 };
                    instruction.set_op_kind(at, kind);
                    instruction.set_immediate8(value);
                }
                Place::Wide(value) if is_extended(code) => {
                    instruction.set_op_kind(at, OpKind::Immediate32to64);
                    instruction.set_immediate32to64(i64::from(value));
                }
                Place::Wide(value) => {
                    instruction.set_op_kind(at, OpKind::Immediate32);
                    instruction.set_immediate32(value as u32);
                }
                Place::Memory(base, index, offset) => {
                    instruction.set_op_kind(at, OpKind::Memory);
                    instruction.set_memory_base(base);
                    instruction.set_memory_displacement64(i64::from(offset) as u64);
                    instruction.set_memory_displ_size(u32::from(offset != 0));
                    if let Some((register, scale)) = index {
                        instruction.set_memory_index(register);
                        instruction.set_memory_index_scale(scale);
                    }
                }
                Place::Label(to) => {
                    instruction.set_op_kind(at, OpKind::Memory);
                    instruction.set_memory_base(Register::RIP);
                    instruction.set_memory_displ_size(8);
                    label = Some(to);
                }
            }
        }
        self.lines.push(Line::Instruction(instruction, label));
        match self.lines.last_mut() {
            Some(Line::Instruction(instruction, _)) => instruction,
            _ => unreachable!("just pushed"),
        }
    }

    /// Bytes and text. Lengths of instructions do not depend on where labels are, so the first of two passes finds those.
    pub(super) fn encoded(mut self) -> Assembled {
        let mut labels = BTreeMap::new();
        let code = self.pass(&mut labels);
        // Vectors do not lie across lines of a cache.
        let start = code.len().next_multiple_of(self.vectors.bytes() as usize);
        let mut end = start;
        for (&label, bytes) in &self.data {
            labels.insert(label, end as u64);
            end += bytes.len();
        }
        let mut bytes = self.pass(&mut labels);
        debug_assert_eq!(bytes.len(), code.len());
        bytes.resize(start, 0);
        self.data.values().for_each(|data| bytes.extend(data));
        let text = self.text(&labels);
        Assembled { bytes, text }
    }

    /// Encodes with what is known of labels, and notes where those in the code are.
    fn pass(&mut self, labels: &mut BTreeMap<Label, u64>) -> Vec<u8> {
        let mut encoder = Encoder::new(64);
        let mut at = 0;
        for line in &mut self.lines {
            match line {
                Line::Place(label) => {
                    labels.insert(*label, at);
                }
                Line::Instruction(instruction, label) => {
                    if let Some(label) = label {
                        let to = labels.get(label).copied().unwrap_or(0);
                        match instruction.op_kind(0) {
                            OpKind::NearBranch64 => instruction.set_near_branch64(to),
                            _ => instruction.set_memory_displacement64(to),
                        }
                    }
                    let size =
                        encoder.encode(instruction, at).expect("the assembler emits valid instructions");
                    instruction.set_ip(at);
                    at += size as u64;
                }
            }
        }
        encoder.take_buffer()
    }

    fn text(&self, labels: &BTreeMap<Label, u64>) -> String {
        let mut formatter = IntelFormatter::new();
        let mut text = String::new();
        for line in &self.lines {
            match line {
                Line::Place(label) => text += &format!("{:#x}:\n", labels[label]),
                Line::Instruction(instruction, _) => {
                    text += "  ";
                    formatter.format(instruction, &mut text);
                    text.push('\n');
                }
            }
        }
        for (label, data) in &self.data {
            text += &format!("{:#x}: {data:02x?}\n", labels[label]);
        }
        text
    }
}

/// Whether an instruction extends its operand of 32 bits to 64.
fn is_extended(code: Code) -> bool {
    matches!(
        code,
        Code::Add_rm64_imm32 | Code::Sub_rm64_imm32 | Code::And_rm64_imm32 | Code::Imul_r64_rm64_imm32
    )
}

/// A register as wide as the instruction has it: one of vectors may be named in any width.
fn sized(register: Register, code: Code, operand: u32) -> Register {
    let families = [Register::XMM0, Register::YMM0, Register::ZMM0];
    let number = families
        .iter()
        .find_map(|&first| (register as u32).checked_sub(first as u32).filter(|&number| number < 32));
    let first = match code.op_code().op_kind(operand) {
        OpCodeOperandKind::xmm_or_mem
        | OpCodeOperandKind::xmm_reg
        | OpCodeOperandKind::xmm_rm
        | OpCodeOperandKind::xmm_vvvv => Register::XMM0,
        OpCodeOperandKind::ymm_or_mem
        | OpCodeOperandKind::ymm_reg
        | OpCodeOperandKind::ymm_rm
        | OpCodeOperandKind::ymm_vvvv
        | OpCodeOperandKind::ymm_is4 => Register::YMM0,
        OpCodeOperandKind::zmm_or_mem
        | OpCodeOperandKind::zmm_reg
        | OpCodeOperandKind::zmm_rm
        | OpCodeOperandKind::zmm_vvvv => Register::ZMM0,
        _ => return register,
    };
    number.map_or(register, |number| first + number)
}
