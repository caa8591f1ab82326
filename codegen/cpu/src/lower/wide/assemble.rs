//! Programs as machine code: registers by linear scan, a loop over whole vectors, a masked last iteration.
//!
//! ```text
//! function(parameters, first, end):            rdi, rsi, rdx by the System V convention
//!   while first + 64 ≤ end: steps of four vectors by turns; first += 64         (or of two, or no such loop)
//!   while first + 16 ≤ end: steps; first += 16
//!   if first < end: a mask of the lanes that are left; steps, with memory under it
//! ```
//!
//! That is with sixteen lanes; with eight, 64 is 32 and 16 is 8. Parameters are the pointers, eight bytes each, and after them the scalars, four bytes
//! each. A function that walks several runs takes their number, too (rcx): it does all of this for each of them, and then moves its parameters to the
//! next one.

mod apart;
mod eight;
mod encode;
mod frame;
mod registers;
mod sixteen;
mod windows;

use super::codes::{BROADCAST, COPY, LOAD, Vectors};
use super::program::{Apart, Half, LaneInstruction, LaneProgram, Lanes, Operand, ResultPlace, RunSteps};
use encode::{Label, Line, Place};
use frame::Frame;
use iced_x86::{Code, Instruction, OpKind, Register};
use registers::{Body, registers, spare, the_same_everywhere};
use std::collections::{BTreeMap, HashMap};

/// Registers that hold the first pointers.
const POINTERS: [Register; 4] = [Register::R8, Register::R9, Register::R10, Register::R11];
const PARAMETERS: Register = Register::RDI;
const COUNTER: Register = Register::RSI;
/// In the last iteration: how many lanes are left.
const END: Register = Register::RDX;
const SCRATCH: Register = Register::RAX;
/// Bits of the lanes that a step reads or writes one by one.
const BITS: Register = Register::ECX;
/// Where a function that walks several runs gets their number; after that, a second scratch register.
const RUNS: Register = Register::RCX;
/// What it keeps there: how many runs are left, and where each one begins and ends. The caller's values are on the stack.
const LEFT: Register = Register::RBX;
const FIRST: Register = Register::R12;
const LAST: Register = Register::R13;
/// Where a function that has patterns keeps where they are.
const PATTERNS: Register = Register::R14;

/// Machine code, and the same as text.
pub(super) struct Assembled {
    pub(super) bytes: Vec<u8>,
    pub(super) text: String,
}

/// Whether there are enough registers for a program.
pub(super) fn fits(program: &LaneProgram) -> bool {
    Body::single(program).is_some()
}

/// The program as a function.
///
/// # Panics
/// There are not enough registers, which [`fits`] tells.
pub(super) fn assemble(program: &LaneProgram) -> Assembled {
    let single = Body::single(program).expect("a program that fits into the registers");
    let same = the_same_everywhere(program);
    // As many vectors as leave room for all that is the same everywhere; with eight lanes that is read from memory as well.
    let registers = registers(program);
    let is_all_kept = matches!(program.vectors, Vectors::Sixteen(_));
    let fits = |body: &Body| !is_all_kept || body.used as usize + same.len() <= registers as usize;
    let several = [4, 2].into_iter().filter_map(|count| Body::several(program, count)).find(fits);
    let used = several.iter().map(|body| body.used).fold(single.used, u32::max);
    let frame = Frame::of(&single, same.iter().skip((registers - used) as usize));
    let kept = same.into_iter().zip(used..registers).collect();
    let mut assembler = Assembler {
        body: &single,
        vectors: program.vectors,
        frame,
        kept,
        lines: vec![],
        data: BTreeMap::new(),
        labels: 0,
        is_tail: false,
    };
    assembler.function(&single, several.as_ref());
    assembler.encoded()
}

impl LaneProgram {
    /// Whether a value, which is the same throughout a run, is another one in the next run.
    fn moves(&self, lanes: Lanes) -> bool {
        let Some(steps) = &self.runs else { return false };
        match lanes {
            Lanes::Scalar(scalar) => steps.scalars[scalar as usize] != 0,
            Lanes::Same { pointer, .. } | Lanes::Entries { pointer, .. } => {
                steps.pointers[pointer as usize] != 0
            }
            Lanes::Register(_) | Lanes::Constant(_) | Lanes::Table(_) => false,
        }
    }
}

struct Assembler<'p> {
    body: &'p Body,
    vectors: Vectors,
    frame: Frame,
    /// Registers of what is the same in every iteration.
    kept: HashMap<Lanes, u32>,
    lines: Vec<Line>,
    /// What lies behind the code.
    data: BTreeMap<Label, Vec<u8>>,
    /// How many labels there are within steps.
    labels: u32,
    is_tail: bool,
}

impl<'p> Assembler<'p> {
    /// First the loop over several vectors at a time, if there is one.
    fn function(&mut self, single: &'p Body, several: Option<&'p Body>) {
        let saved = self.enter(&single.program);
        for (at, &register) in POINTERS.iter().enumerate().take(single.program.pointers as usize) {
            self.load_pointer(register, at as u32);
        }
        let mut kept: Vec<_> = std::mem::take(&mut self.kept).into_iter().collect();
        kept.sort_unstable_by_key(|&(_, register)| register);
        let (moving, same): (Vec<_>, Vec<_>) =
            kept.iter().partition(|(lanes, _)| single.program.moves(*lanes));
        let (moving_scalars, same_scalars): (Vec<_>, Vec<_>) =
            self.frame.scalars().partition(|(lanes, _)| single.program.moves(*lanes));
        self.load_all(&same);
        self.fill_frame(&same_scalars);
        if single.program.runs.is_some() {
            self.begin_runs();
            self.load_all(&moving);
            self.fill_frame(&moving_scalars);
        }
        self.kept = kept.into_iter().collect();
        if let Some(body) = several {
            self.repeat(body, Label::Several, Label::AfterSeveral);
        }
        self.repeat(single, Label::Loop, Label::Tail);
        self.emit(Code::Sub_r64_rm64, &[END, COUNTER].map(Place::Register));
        self.jump(Code::Jle_rel32_64, Label::End);
        match self.vectors {
            Vectors::Sixteen(_) => self.rest_into_mask_register(),
            Vectors::Eight => self.rest_into_spare(),
        }
        self.is_tail = true;
        self.steps(single);
        self.lines.push(Line::Place(Label::End));
        if let Some(steps) = &single.program.runs {
            self.next_run(steps);
        }
        self.leave(&saved);
    }

    /// Puts the caller's registers on the stack that this function uses, and makes room for its frame.
    fn enter(&mut self, program: &LaneProgram) -> Vec<Register> {
        let mut saved = if program.runs.is_some() { vec![LEFT, FIRST, LAST] } else { vec![] };
        saved.extend(self.frame.registers());
        saved.extend((!program.patterns.is_empty()).then_some(PATTERNS));
        for &register in &saved {
            self.emit(Code::Push_r64, &[Place::Register(register)]);
        }
        self.open_frame();
        if !program.patterns.is_empty() {
            self.place_patterns(&program.patterns);
        }
        saved
    }

    fn leave(&mut self, saved: &[Register]) {
        self.close_frame();
        for &register in saved.iter().rev() {
            self.emit(Code::Pop_r64, &[Place::Register(register)]);
        }
        self.emit(Code::VEX_Vzeroupper, &[]);
        self.emit(Code::Retnq, &[]);
    }

    /// The head of the loop over runs.
    fn begin_runs(&mut self) {
        for (to, from) in [(LEFT, RUNS), (FIRST, COUNTER), (LAST, END)] {
            self.emit(Code::Mov_r64_rm64, &[to, from].map(Place::Register));
        }
        self.lines.push(Line::Place(Label::Run));
        for (to, from) in [(COUNTER, FIRST), (END, LAST)] {
            self.emit(Code::Mov_r64_rm64, &[to, from].map(Place::Register));
        }
    }

    /// The end of the loop over runs: parameters move to the next one.
    fn next_run(&mut self, steps: &RunSteps) {
        for (pointer, &step) in steps.pointers.iter().enumerate().filter(|(_, step)| **step != 0) {
            self.emit(Code::Add_rm64_imm32, &[pointer_place(pointer as u32), Place::Wide(step)]);
        }
        for (scalar, &step) in steps.scalars.iter().enumerate().filter(|(_, step)| **step != 0) {
            let place = Place::Memory(PARAMETERS, None, (steps.pointers.len() * 8 + scalar * 4) as i32);
            self.emit(Code::Add_rm32_imm32, &[place, Place::Wide(step)]);
        }
        let program = &self.body.program;
        if program.pattern_runs > 1 {
            let step = sixteen::pattern_bytes(program) / program.pattern_runs;
            self.emit(Code::Add_rm64_imm32, &[Place::Register(PATTERNS), Place::Wide(step as i32)]);
        }
        self.emit(Code::Dec_rm64, &[Place::Register(LEFT)]);
        self.jump(Code::Jne_rel32_64, Label::Run);
    }

    /// A loop, as long as the lanes of its vectors are left.
    fn repeat(&mut self, body: &'p Body, start: Label, end: Label) {
        let lanes = body.count * self.vectors.lanes();
        self.check(lanes, Code::Ja_rel32_64, end);
        self.lines.push(Line::Place(start));
        self.steps(body);
        self.emit(Code::Add_rm64_imm8, &[Place::Register(COUNTER), Place::Immediate(lanes)]);
        self.check(lanes, Code::Jbe_rel32_64, start);
        self.lines.push(Line::Place(end));
    }

    /// Jumps depending on how `first + lanes` compares with the end.
    fn check(&mut self, lanes: u8, jump: Code, to: Label) {
        let next = Place::Memory(COUNTER, None, i32::from(lanes));
        self.emit(Code::Lea_r64_m, &[Place::Register(SCRATCH), next]);
        self.emit(Code::Cmp_r64_rm64, &[Place::Register(SCRATCH), Place::Register(END)]);
        self.jump(jump, to);
    }

    fn jump(&mut self, code: Code, to: Label) {
        let mut instruction = Instruction::default();
        instruction.set_code(code);
        instruction.set_op_kind(0, OpKind::NearBranch64);
        self.lines.push(Line::Instruction(instruction, Some(to)));
    }

    /// A label of its own.
    fn label(&mut self) -> Label {
        self.labels += 1;
        Label::Inner(self.labels)
    }

    fn load_pointer(&mut self, register: Register, pointer: u32) {
        let parameter = Place::Memory(PARAMETERS, None, (pointer * 8) as i32);
        self.emit(Code::Mov_r64_rm64, &[Place::Register(register), parameter]);
    }

    /// Loads what is the same in every iteration.
    fn load_all(&mut self, kept: &[(Lanes, u32)]) {
        for &(lanes, register) in kept {
            let from = self.source(lanes);
            let is_vector = matches!(from, Place::Label(_)) && self.vectors == Vectors::Eight
                || matches!(lanes, Lanes::Table(_) | Lanes::Entries { .. });
            let operation = if is_vector { LOAD } else { BROADCAST };
            self.emit(self.vectors.code(operation), &[self.vector(register), from]);
        }
    }

    fn steps(&mut self, body: &'p Body) {
        self.body = body;
        self.fetch_later_runs(body);
        for step in &body.program.steps {
            match self.vectors {
                Vectors::Sixteen(_) => self.step_of_sixteen(step),
                Vectors::Eight => self.step_of_eight(step),
            }
        }
    }

    /// All operands of a step's instruction, the result first. A first operand that it overwrites is copied to where the result shall be.
    fn places(&mut self, step: &LaneInstruction) -> Vec<Place> {
        let operands: Vec<Place> = step.operands.iter().map(|operand| self.operand(step, operand)).collect();
        let target = self.target(step);
        let mut all = vec![target];
        if step.in_place {
            self.copy(operands[0], target);
            all.extend(&operands[1..]);
        } else {
            all.extend(&operands);
        }
        all.extend(step.immediate.map(Place::Immediate));
        all
    }

    fn target(&mut self, step: &LaneInstruction) -> Place {
        match step.target {
            ResultPlace::Register(register) => self.register(register),
            ResultPlace::Mask => Place::Register(sixteen::mask_of(step)),
            ResultPlace::Elements { pointer, size, offset } => self.elements(pointer, size, offset),
            // From there they are written one by one.
            ResultPlace::Apart(Apart { size: 1..4, .. }) => Place::Register(spare(self.vectors)),
            ResultPlace::Apart(_) => unreachable!("lanes are written one by one"),
            ResultPlace::Kept { pointer, offset } => Place::Memory(self.base(pointer), None, offset),
            ResultPlace::Slot(slot) => self.frame.slot(slot),
        }
    }

    /// Whether this is a load of what is in a register, and then copies it.
    fn is_copy(&mut self, code: Code, places: &[Place]) -> bool {
        let loads = [LOAD, BROADCAST].map(|operation| self.vectors.code(operation));
        match *places {
            [target, from @ Place::Register(_)] if loads.contains(&code) => {
                self.copy(from, target);
                true
            }
            _ => false,
        }
    }

    fn copy(&mut self, from: Place, to: Place) {
        match (from, to) {
            (Place::Register(from), Place::Register(to)) if from == to => {}
            _ => {
                self.emit(self.vectors.code(COPY), &[to, from]);
            }
        }
    }

    fn operand(&mut self, step: &LaneInstruction, operand: &Operand) -> Place {
        match *operand {
            Operand::Lanes(lanes) => self.value(lanes),
            Operand::Elements { pointer, size, offset } => self.elements(pointer, size, offset),
            Operand::Alternate { pointer, size, offset, half, .. } => {
                let skipped = if half == Half::Upper { i32::from(self.vectors.lanes() - 1) } else { 0 };
                self.elements(pointer, 2 * size, offset + skipped * size as i32)
            }
            Operand::Kept { pointer, offset } => Place::Memory(self.base(pointer), None, offset),
            Operand::Slot(slot) => self.frame.slot(slot),
            Operand::Mask => {
                debug_assert_eq!(step.code, Code::EVEX_Vpmovm2d_zmm_kr);
                Place::Register(sixteen::mask_of(step))
            }
            Operand::Apart(_) | Operand::Listed { .. } => {
                unreachable!("a gather reads its memory itself")
            }
            Operand::Counter => Place::Register(Register::ESI),
            Operand::Pattern { number, vector } => self.pattern(number, vector),
            Operand::LaneNumbers { first } => {
                let numbers = (first..first + self.vectors.lanes()).collect();
                self.data.insert(Label::LaneNumbers(first), numbers);
                Place::Label(Label::LaneNumbers(first))
            }
        }
    }

    /// Where a value is.
    fn value(&mut self, lanes: Lanes) -> Place {
        if let Some(&register) = self.kept.get(&lanes) {
            return self.vector(register);
        }
        self.frame.scalar(lanes).unwrap_or_else(|| self.source(lanes))
    }

    /// Where a value comes from.
    fn source(&mut self, lanes: Lanes) -> Place {
        match lanes {
            Lanes::Register(register) => self.register(register),
            Lanes::Scalar(scalar) => {
                Place::Memory(PARAMETERS, None, (self.body.program.pointers * 8 + scalar * 4) as i32)
            }
            Lanes::Same { pointer, offset } | Lanes::Entries { pointer, offset } => {
                Place::Memory(self.base(pointer), None, offset)
            }
            // One number, which an instruction of sixteen lanes broadcasts; or all eight.
            Lanes::Constant(bits) => match self.vectors {
                Vectors::Sixteen(_) => self.datum(Label::Constant(bits), &[bits]),
                Vectors::Eight => self.datum(Label::Constant(bits), &[bits; 8]),
            },
            Lanes::Table(table) => self.datum(Label::Table(table), table),
        }
    }

    /// Something that lies behind the code.
    fn datum(&mut self, label: Label, words: &[u32]) -> Place {
        self.data.insert(label, words.iter().flat_map(|word| word.to_le_bytes()).collect());
        Place::Label(label)
    }

    /// The register of a register of the program.
    fn register(&self, register: u32) -> Place {
        self.vector(self.body.registers[register as usize])
    }

    /// A register of the machine by its number.
    fn vector(&self, number: u32) -> Place {
        Place::Register(self.vectors.first_register() + number)
    }

    /// Elements at the current position.
    fn elements(&mut self, pointer: u32, size: u32, offset: i32) -> Place {
        Place::Memory(self.base(pointer), Some((COUNTER, size)), offset)
    }

    /// A register with a pointer, until another one is asked for.
    fn base(&mut self, pointer: u32) -> Register {
        POINTERS.get(pointer as usize).copied().unwrap_or_else(|| {
            self.load_pointer(SCRATCH, pointer);
            SCRATCH
        })
    }
}

/// Where a pointer is: in its register, or among the parameters.
fn pointer_place(pointer: u32) -> Place {
    match POINTERS.get(pointer as usize) {
        Some(&register) => Place::Register(register),
        None => Place::Memory(PARAMETERS, None, (pointer * 8) as i32),
    }
}
