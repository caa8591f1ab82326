//! Programs as machine code: registers by linear scan, a loop over whole vectors, a masked last iteration.
//!
//! ```text
//! function(parameters, first, end):            rdi, rsi, rdx by the System V convention
//!   while first + 64 ≤ end: steps of four vectors by turns; first += 64         (or of two, or no such loop)
//!   while first + 16 ≤ end: steps; first += 16
//!   if first < end: k1 = the lanes that are left; steps, with memory masked by k1
//! ```
//!
//! Parameters are the pointers, eight bytes each, and after them the scalars, four bytes each. A function that walks several runs takes their
//! number, too (rcx): it does all of this for each of them, and then moves its parameters to the next one.

use super::program::{
    BROADCAST, GATHER, Half, LOAD, LaneInstruction, LaneProgram, Lanes, Masking, Operand, ResultPlace,
    RunSteps, WIDTH,
};
use iced_x86::{Code, Encoder, Formatter, Instruction, IntelFormatter, OpKind, Register};
use kernfusion_runtime::math::vector::Table;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Vector registers.
const REGISTERS: u32 = 32;
/// The last of them, where elements that lie apart come together, in programs that read such.
const APART: Register = Register::ZMM31;
/// Registers that hold the first pointers.
const POINTERS: [Register; 4] = [Register::R8, Register::R9, Register::R10, Register::R11];
const PARAMETERS: Register = Register::RDI;
const COUNTER: Register = Register::RSI;
const END: Register = Register::RDX;
const SCRATCH: Register = Register::RAX;
/// Where a function that walks several runs gets their number.
const RUNS: Register = Register::RCX;
/// What it keeps there: how many runs are left, and where each one begins and ends. The caller's values are on the stack.
const LEFT: Register = Register::RBX;
const FIRST: Register = Register::R12;
const LAST: Register = Register::R13;
/// The mask of a load of every other element.
const SPREAD: Register = Register::K7;

/// Machine code, and the same as text.
pub(super) struct Assembled {
    pub(super) bytes: Vec<u8>,
    pub(super) text: String,
}

/// The program as a function.
///
/// # Panics
/// There are not enough registers, which [`assign`] tells.
pub(super) fn assemble(program: &LaneProgram) -> Assembled {
    let single = Body::of(program, 1).expect("a program that fits into the registers");
    let same = the_same_everywhere(program);
    // As many vectors as leave room for all that is the same everywhere.
    let registers = registers(program);
    let fits = |body: &Body| body.used as usize + same.len() <= registers as usize;
    let several = [4, 2].into_iter().filter_map(|vectors| Body::of(program, vectors)).find(fits);
    let used = several.iter().map(|body| body.used).fold(single.used, u32::max);
    let kept = same.into_iter().zip(used..registers).collect();
    let mut assembler =
        Assembler { body: &single, kept, lines: vec![], data: BTreeMap::new(), is_tail: false };
    assembler.function(&single, several.as_ref());
    assembler.encoded()
}

/// The body of a loop whose iterations compute one vector or several.
struct Body {
    vectors: u8,
    program: LaneProgram,
    /// The machine's register of each of the program's.
    registers: Vec<u32>,
    /// How many of the machine's registers these are.
    used: u32,
}

impl Body {
    /// `None` if there are not enough registers.
    fn of(program: &LaneProgram, vectors: u8) -> Option<Body> {
        let program = program.side_by_side(vectors);
        let registers = assign(&program)?;
        let used =
            registers.iter().filter(|&&register| register < REGISTERS).max().map_or(0, |&last| last + 1);
        Some(Body { vectors, program, registers, used })
    }
}

/// How many registers a program has for its values.
fn registers(program: &LaneProgram) -> u32 {
    REGISTERS - u32::from(program.steps.iter().any(|step| step.code == GATHER))
}

/// The machine's register of each register of a program; `None` if it needs more than there are.
pub(super) fn assign(program: &LaneProgram) -> Option<Vec<u32>> {
    let mut last = vec![0; program.registers as usize];
    for (at, step) in program.steps.iter().enumerate() {
        step.reads().for_each(|register| last[register as usize] = at);
    }
    let mut free: Vec<u32> = (0..registers(program)).rev().collect();
    let mut assigned = vec![u32::MAX; program.registers as usize];
    for (at, step) in program.steps.iter().enumerate() {
        let mut dying: Vec<u32> = step.reads().filter(|&register| last[register as usize] == at).collect();
        dying.sort_unstable();
        dying.dedup();
        let first = step.reads().next().filter(|_| step.in_place);
        // A copy of the first operand is made before the other operands are read.
        let copies = first.is_some_and(|register| !dying.contains(&register));
        let release = |free: &mut Vec<u32>, assigned: &[u32]| {
            free.extend(dying.iter().map(|&register| assigned[register as usize]));
        };
        if !copies {
            release(&mut free, &assigned);
        }
        if let ResultPlace::Register(target) = step.target {
            let register = match first {
                Some(first) if !copies => {
                    let register = assigned[first as usize];
                    free.retain(|&other| other != register);
                    register
                }
                _ => free.pop()?,
            };
            assigned[target as usize] = register;
        }
        if copies {
            release(&mut free, &assigned);
        }
    }
    Some(assigned)
}

/// What is the same in every iteration, the most used first.
fn the_same_everywhere(program: &LaneProgram) -> Vec<Lanes> {
    let mut uses: Vec<(Lanes, usize)> = vec![];
    for operand in program.steps.iter().flat_map(|step| &step.operands) {
        let Operand::Lanes(lanes) = operand else { continue };
        match uses.iter_mut().find(|(known, _)| known == lanes) {
            _ if matches!(lanes, Lanes::Register(_)) => {}
            Some((_, count)) => *count += 1,
            None => uses.push((*lanes, 1)),
        }
    }
    uses.sort_by_key(|&(_, count)| Reverse(count));
    uses.into_iter().map(|(lanes, _)| lanes).collect()
}

impl LaneProgram {
    /// Whether a value, which is the same throughout a run, is another one in the next run.
    fn moves(&self, lanes: Lanes) -> bool {
        let Some(steps) = &self.runs else { return false };
        match lanes {
            Lanes::Scalar(scalar) => steps.scalars[scalar as usize] != 0,
            Lanes::Same { pointer, .. } => steps.pointers[pointer as usize] != 0,
            Lanes::Register(_) | Lanes::Constant(_) | Lanes::Table(_) => false,
        }
    }
}

impl LaneInstruction {
    /// The registers of lanes that it reads.
    fn reads(&self) -> impl Iterator<Item = u32> {
        self.operands.iter().filter_map(|operand| match operand {
            Operand::Lanes(Lanes::Register(register)) => Some(*register),
            _ => None,
        })
    }
}

/// Places that instructions refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Several,
    AfterSeveral,
    Run,
    Loop,
    Tail,
    End,
    Constant(u32),
    Table(&'static Table),
    LaneNumbers(u8),
}

/// A line of the function.
enum Line {
    Place(Label),
    /// An instruction, and where it jumps or reads.
    Instruction(Instruction, Option<Label>),
}

struct Assembler<'p> {
    body: &'p Body,
    /// Registers of what is the same in every iteration.
    kept: HashMap<Lanes, u32>,
    lines: Vec<Line>,
    /// What lies behind the code.
    data: BTreeMap<Label, Vec<u8>>,
    is_tail: bool,
}

/// An operand of a machine instruction.
#[derive(Clone, Copy)]
enum Place {
    Register(Register),
    Immediate(u8),
    /// One of 32 bits, which is sign-extended.
    Wide(i32),
    /// Base, index with scale, offset.
    Memory(Register, Option<(Register, u32)>, i32),
    Label(Label),
}

impl<'p> Assembler<'p> {
    /// First the loop over several vectors at a time, if there is one.
    fn function(&mut self, single: &'p Body, several: Option<&'p Body>) {
        for (at, &register) in POINTERS.iter().enumerate().take(single.program.pointers as usize) {
            self.load_pointer(register, at as u32);
        }
        let mut kept: Vec<_> = std::mem::take(&mut self.kept).into_iter().collect();
        kept.sort_unstable_by_key(|&(_, register)| register);
        let (moving, same): (Vec<_>, Vec<_>) =
            kept.iter().partition(|(lanes, _)| single.program.moves(*lanes));
        self.load_all(&same);
        if single.program.runs.is_some() {
            self.begin_runs();
            self.load_all(&moving);
        }
        self.kept = kept.into_iter().collect();
        if let Some(body) = several {
            self.repeat(body, Label::Several, Label::AfterSeveral);
        }
        self.repeat(single, Label::Loop, Label::Tail);
        self.mask_of_rest();
        self.is_tail = true;
        self.steps(single);
        self.lines.push(Line::Place(Label::End));
        if let Some(steps) = &single.program.runs {
            self.next_run(steps);
        }
        self.emit(Code::VEX_Vzeroupper, &[]);
        self.emit(Code::Retnq, &[]);
    }

    /// The head of the loop over runs.
    fn begin_runs(&mut self) {
        for register in [LEFT, FIRST, LAST] {
            self.emit(Code::Push_r64, &[Place::Register(register)]);
        }
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
        self.emit(Code::Dec_rm64, &[Place::Register(LEFT)]);
        self.jump(Code::Jne_rel32_64, Label::Run);
        for register in [LAST, FIRST, LEFT] {
            self.emit(Code::Pop_r64, &[Place::Register(register)]);
        }
    }

    /// A loop, as long as the lanes of its vectors are left.
    fn repeat(&mut self, body: &'p Body, start: Label, end: Label) {
        let lanes = body.vectors * WIDTH;
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

    /// Sets k1 to the lanes that are left, or jumps to the end.
    fn mask_of_rest(&mut self) {
        self.emit(Code::Sub_r64_rm64, &[Place::Register(END), Place::Register(COUNTER)]);
        self.jump(Code::Jle_rel32_64, Label::End);
        let [bits, rest] = [Register::EAX, Register::EDX].map(Place::Register);
        self.emit(Code::Xor_r32_rm32, &[bits, bits]);
        self.emit(Code::Bts_rm32_r32, &[bits, rest]);
        self.emit(Code::Dec_rm32, &[bits]);
        self.emit(Code::VEX_Kmovw_kr_r32, &[Place::Register(Register::K1), bits]);
    }

    fn jump(&mut self, code: Code, to: Label) {
        let mut instruction = Instruction::default();
        instruction.set_code(code);
        instruction.set_op_kind(0, OpKind::NearBranch64);
        self.lines.push(Line::Instruction(instruction, Some(to)));
    }

    fn load_pointer(&mut self, register: Register, pointer: u32) {
        let parameter = Place::Memory(PARAMETERS, None, (pointer * 8) as i32);
        self.emit(Code::Mov_r64_rm64, &[Place::Register(register), parameter]);
    }

    /// Loads what is the same in every iteration.
    fn load_all(&mut self, kept: &[(Lanes, u32)]) {
        for &(lanes, register) in kept {
            let code = match lanes {
                Lanes::Table(_) => LOAD,
                _ => BROADCAST,
            };
            let from = self.value(lanes);
            self.emit(code, &[Place::Register(Register::ZMM0 + register), from]);
        }
    }

    fn steps(&mut self, body: &'p Body) {
        self.body = body;
        for step in &body.program.steps {
            self.step(step);
        }
    }

    fn step(&mut self, step: &LaneInstruction) {
        if step.code == GATHER {
            return self.gather(step);
        }
        let operands: Vec<Place> = step.operands.iter().map(|operand| self.operand(step, operand)).collect();
        let target = match step.target {
            ResultPlace::Register(register) => self.vector(register),
            ResultPlace::Mask => Place::Register(mask_of(step)),
            ResultPlace::Elements { pointer, size, offset } => self.elements(pointer, size, offset),
        };
        let mut all = vec![target];
        if step.in_place {
            self.copy(operands[0], target);
            all.extend(&operands[1..]);
        } else {
            all.extend(&operands);
        }
        let in_half = match step.code {
            Code::EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae | Code::EVEX_Vcvtneps2bf16_ymm_k1z_zmmm512b32 => {
                Some(0)
            }
            Code::EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae
            | Code::EVEX_Vpmovzxwd_zmm_k1z_ymmm256
            | Code::EVEX_Vmovdqu16_ymmm256_k1z_ymm => Some(1),
            _ => None,
        };
        if let Some(Place::Register(register)) = in_half.map(|at| &mut all[at]) {
            *register = half(*register);
        }
        all.extend(step.immediate.map(Place::Immediate));
        // Of what is in memory, one number goes to all lanes.
        let is_broadcast = !matches!(operands.last(), Some(Place::Register(_)))
            && matches!(
                step.operands.last(),
                Some(Operand::Lanes(Lanes::Scalar(_) | Lanes::Same { .. } | Lanes::Constant(_)))
            )
            && step.code != BROADCAST;
        if let (BROADCAST | LOAD, Some(&from @ Place::Register(_))) = (step.code, operands.first()) {
            return self.copy(from, target);
        }
        let reads = step.operands.iter().find_map(|operand| match operand {
            Operand::Elements { .. } => Some(None),
            Operand::Alternate { half, .. } => Some(Some(*half)),
            _ => None,
        });
        let writes = matches!(step.target, ResultPlace::Elements { .. });
        let in_tail = self.is_tail && (reads.is_some() || writes);
        if in_tail && step.masking.is_some() {
            let [rest, mask] = [Register::K1, mask_of(step)].map(Place::Register);
            self.emit(Code::VEX_Kandw_kr_kr_kr, &[mask, mask, rest]);
        }
        let mut mask = match step.masking {
            Some(masking) => Some((mask_of(step), masking == Masking::Zero)),
            None => in_tail.then_some((Register::K1, reads.is_some())),
        };
        if let (Some((mask, _)), Some(Some(half))) = (&mut mask, reads) {
            *mask = self.spread(*mask, half);
        }
        let instruction = self.emit(step.code, &all);
        instruction.set_is_broadcast(is_broadcast);
        if let Some((mask, is_zeroing)) = mask {
            instruction.set_op_mask(mask);
            instruction.set_zeroing_masking(is_zeroing);
        }
    }

    /// Elements that lie apart: one by one where all lanes are read, else a gather of those that are.
    fn gather(&mut self, step: &LaneInstruction) {
        let [none, places, from] = &step.operands[..] else { unreachable!("three operands") };
        let &Operand::Apart { pointer, stride, first } = from else { unreachable!("elements apart") };
        let ResultPlace::Register(target) = step.target else { unreachable!("a gather has a result") };
        let ([none, places], target) = ([none, places].map(|x| self.operand(step, x)), self.vector(target));
        let Place::Register(places) = places else { unreachable!("places are in a register") };
        if step.masking.is_none() && !self.is_tail {
            return self.elements_apart(target, pointer, stride, first);
        }
        self.copy(none, target);
        let [mask, rest] = [mask_of(step), Register::K1].map(Place::Register);
        if step.masking.is_none() {
            self.emit(Code::VEX_Kmovw_kr_km16, &[mask, rest]);
        } else if self.is_tail {
            self.emit(Code::VEX_Kandw_kr_kr_kr, &[mask, mask, rest]);
        }
        let from = Place::Memory(self.base(pointer), Some((places, 4)), 0);
        self.emit(GATHER, &[target, from]).set_op_mask(mask_of(step));
    }

    /// Sixteen elements one by one, which is faster than a gather.
    fn elements_apart(&mut self, target: Place, pointer: u32, stride: i32, first: u8) {
        let Place::Register(target) = target else { unreachable!("a register") };
        let bytes = stride * 4;
        self.emit(
            Code::Imul_r64_rm64_imm32,
            &[Place::Register(SCRATCH), Place::Register(COUNTER), Place::Wide(bytes)],
        );
        self.emit(Code::Add_r64_rm64, &[Place::Register(SCRATCH), pointer_place(pointer)]);
        for quarter in 0..4 {
            let xmm = quarter_of(if quarter == 0 { target } else { APART });
            let place = |lane: u8| {
                Place::Memory(SCRATCH, None, (i32::from(first) + i32::from(quarter * 4 + lane)) * bytes)
            };
            self.emit(Code::EVEX_Vmovss_xmm_k1z_m32, &[Place::Register(xmm), place(0)]);
            for lane in 1..4 {
                let operands =
                    [Place::Register(xmm), Place::Register(xmm), place(lane), Place::Immediate(lane << 4)];
                self.emit(Code::EVEX_Vinsertps_xmm_xmm_xmmm32_imm8, &operands);
            }
            if quarter > 0 {
                let [all, part] = [target, xmm].map(Place::Register);
                let operands = [all, all, part, Place::Immediate(quarter)];
                self.emit(Code::EVEX_Vinserti32x4_zmm_k1z_zmm_xmmm128_imm8, &operands);
            }
        }
    }

    /// The mask of the elements of half of the lanes, in a register that is free again after the next instruction.
    fn spread(&mut self, lanes: Register, half: Half) -> Register {
        let bits = Place::Register(Register::ECX);
        self.emit(Code::VEX_Kmovw_r32_kr, &[bits, Place::Register(lanes)]);
        let places = match half {
            Half::Lower => 0x5555,
            Half::Upper => {
                self.emit(Code::Shr_rm32_imm8, &[bits, Place::Immediate(WIDTH / 2)]);
                0xaaaa
            }
        };
        let places = self.datum(Label::Constant(places), &[places]);
        self.emit(Code::VEX_Pdep_r32_r32_rm32, &[bits, bits, places]);
        self.emit(Code::VEX_Kmovw_kr_r32, &[Place::Register(SPREAD), bits]);
        SPREAD
    }

    fn copy(&mut self, from: Place, to: Place) {
        match (from, to) {
            (Place::Register(from), Place::Register(to)) if from == to => {}
            _ => {
                self.emit(Code::EVEX_Vmovaps_zmm_k1z_zmmm512, &[to, from]);
            }
        }
    }

    fn operand(&mut self, step: &LaneInstruction, operand: &Operand) -> Place {
        match *operand {
            Operand::Lanes(lanes) => self.value(lanes),
            Operand::Elements { pointer, size, offset } => self.elements(pointer, size, offset),
            Operand::Alternate { pointer, offset, half } => {
                let skipped = if half == Half::Upper { 15 * 4 } else { 0 };
                self.elements(pointer, 2 * 4, offset + skipped)
            }
            Operand::Mask => {
                debug_assert_eq!(step.code, Code::EVEX_Vpmovm2d_zmm_kr);
                Place::Register(mask_of(step))
            }
            Operand::Apart { .. } => unreachable!("a gather reads its memory itself"),
            Operand::Counter => Place::Register(Register::ESI),
            Operand::LaneNumbers { first } => {
                self.data.insert(Label::LaneNumbers(first), (first..first + WIDTH).collect());
                Place::Label(Label::LaneNumbers(first))
            }
        }
    }

    /// Where a value is.
    fn value(&mut self, lanes: Lanes) -> Place {
        if let Some(&register) = self.kept.get(&lanes) {
            return Place::Register(Register::ZMM0 + register);
        }
        match lanes {
            Lanes::Register(register) => self.vector(register),
            Lanes::Scalar(scalar) => {
                Place::Memory(PARAMETERS, None, (self.body.program.pointers * 8 + scalar * 4) as i32)
            }
            Lanes::Same { pointer, offset } => Place::Memory(self.base(pointer), None, offset),
            Lanes::Constant(bits) => self.datum(Label::Constant(bits), &[bits]),
            Lanes::Table(table) => self.datum(Label::Table(table), table),
        }
    }

    /// Something that lies behind the code.
    fn datum(&mut self, label: Label, words: &[u32]) -> Place {
        self.data.insert(label, words.iter().flat_map(|word| word.to_le_bytes()).collect());
        Place::Label(label)
    }

    fn vector(&self, register: u32) -> Place {
        Place::Register(Register::ZMM0 + self.body.registers[register as usize])
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

    fn emit(&mut self, code: Code, places: &[Place]) -> &mut Instruction {
        let mut instruction = Instruction::default();
        instruction.set_code(code);
        let mut label = None;
        for (at, place) in (0..).zip(places) {
            match *place {
                Place::Register(register) => {
                    instruction.set_op_kind(at, OpKind::Register);
                    instruction.set_op_register(at, register);
                }
                Place::Immediate(value) => {
                    let to_64 = code == Code::Add_rm64_imm8;
                    let kind = if to_64 { OpKind::Immediate8to64 } else { OpKind::Immediate8 };
                    instruction.set_op_kind(at, kind);
                    instruction.set_immediate8(value);
                }
                Place::Wide(value) if matches!(code, Code::Add_rm64_imm32 | Code::Imul_r64_rm64_imm32) => {
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
    fn encoded(mut self) -> Assembled {
        let mut labels = BTreeMap::new();
        let code = self.pass(&mut labels);
        let mut end = code.len();
        for (&label, bytes) in &self.data {
            labels.insert(label, end as u64);
            end += bytes.len();
        }
        let mut bytes = self.pass(&mut labels);
        debug_assert_eq!(bytes.len(), code.len());
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

/// The mask register of an instruction's vector.
fn mask_of(step: &LaneInstruction) -> Register {
    Register::K2 + u32::from(step.vector)
}

/// Where a pointer is: in its register, or among the parameters.
fn pointer_place(pointer: u32) -> Place {
    match POINTERS.get(pointer as usize) {
        Some(&register) => Place::Register(register),
        None => Place::Memory(PARAMETERS, None, (pointer * 8) as i32),
    }
}

/// The lowest quarter of a vector register.
fn quarter_of(register: Register) -> Register {
    let number = register as u32 - Register::ZMM0 as u32;
    Register::XMM0 + number
}

/// The lower half of a vector register.
fn half(register: Register) -> Register {
    let number = register as u32 - Register::ZMM0 as u32;
    Register::YMM0 + number
}
