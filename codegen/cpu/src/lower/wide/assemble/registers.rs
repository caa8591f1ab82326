//! Registers: of a program's values by linear scan, and for what is the same in every iteration. Values that find none wait on the stack.

use super::super::codes::{LOAD, STORE, Vectors};
use super::super::program::{LaneInstruction, LaneProgram, Lanes, Operand, ResultPlace};
use iced_x86::Register;
use std::cmp::Reverse;

/// Values at most that wait on the stack: a program with more of them has been seen nowhere.
const MOST_WAITING: u32 = 64;

/// The body of a loop whose iterations compute one vector or several.
pub(super) struct Body {
    /// How many vectors an iteration computes.
    pub(super) count: u8,
    pub(super) program: LaneProgram,
    /// The machine's register of each of the program's.
    pub(super) registers: Vec<u32>,
    /// How many of the machine's registers these are.
    pub(super) used: u32,
    /// How many values wait on the stack.
    pub(super) slots: u32,
}

impl Body {
    /// Of one vector. `None` if values cannot be kept in registers for as long as an instruction needs them.
    pub(super) fn single(program: &LaneProgram) -> Option<Body> {
        let mut program = program.clone();
        let mut slots = 0;
        loop {
            match assign(&program) {
                Ok(registers) => return Some(Body::new(1, program, registers, slots)),
                Err(_) if slots == MOST_WAITING => return None,
                Err(full) => program = spilled(&program, full, slots)?,
            }
            slots += 1;
        }
    }

    /// Of several. `None` if there are not enough registers.
    pub(super) fn several(program: &LaneProgram, count: u8) -> Option<Body> {
        let program = program.side_by_side(count);
        let registers = assign(&program).ok()?;
        Some(Body::new(count, program, registers, 0))
    }

    fn new(count: u8, program: LaneProgram, registers: Vec<u32>, slots: u32) -> Body {
        let used = registers.iter().filter(|&&register| register != NONE).max().map_or(0, |&last| last + 1);
        Body { count, program, registers, used, slots }
    }
}

/// Where there are not enough registers: the step that finds none, and the values that have the others.
struct Full {
    step: usize,
    held: Vec<u32>,
}

/// The program with one value more that waits on the stack: of those that have registers, the one that is read next the latest. `None` if the step
/// reads them all.
fn spilled(program: &LaneProgram, full: Full, slot: u32) -> Option<LaneProgram> {
    let next_read = |value: u32| {
        let reads = |step: &LaneInstruction| step.reads().any(|register| register == value);
        program.steps[full.step..].iter().position(reads)
    };
    let candidates = full.held.iter().filter_map(|&value| Some((next_read(value)?, value)));
    let (distance, victim) = candidates.max()?;
    if distance == 0 {
        return None;
    }
    let [load, store] = [LOAD, STORE].map(|operation| program.vectors.code(operation));
    let mut result = program.clone();
    for mut step in std::mem::take(&mut result.steps) {
        if step.reads().any(|register| register == victim) {
            let again = result.registers;
            result.registers += 1;
            let target = ResultPlace::Register(again);
            result.steps.push(LaneInstruction::new(load, target, &[Operand::Slot(slot)]));
            for operand in &mut step.operands {
                if *operand == Operand::Lanes(Lanes::Register(victim)) {
                    *operand = Operand::Lanes(Lanes::Register(again));
                }
            }
        }
        let is_victim = step.target == ResultPlace::Register(victim);
        result.steps.push(step);
        if is_victim {
            let value = Operand::Lanes(Lanes::Register(victim));
            result.steps.push(LaneInstruction::new(store, ResultPlace::Slot(slot), &[value]));
        }
    }
    Some(result)
}

/// No register yet.
const NONE: u32 = u32::MAX;

/// How many registers a program has for its values: [the last one](spare) is needed where elements lie apart and, with eight lanes, in the last
/// iteration.
pub(super) fn registers(program: &LaneProgram) -> u32 {
    match program.vectors {
        Vectors::Sixteen(_) => {
            let is_apart = |step: &LaneInstruction| {
                matches!(step.operands.last(), Some(Operand::Apart(_)))
                    || matches!(step.target, ResultPlace::Apart(_))
            };
            32 - u32::from(program.steps.iter().any(is_apart))
        }
        Vectors::Eight => 15,
    }
}

/// The last register.
pub(super) fn spare(vectors: Vectors) -> Register {
    match vectors {
        Vectors::Sixteen(_) => Register::ZMM31,
        Vectors::Eight => Register::YMM15,
    }
}

/// The machine's register of each register of a program, by linear scan.
fn assign(program: &LaneProgram) -> Result<Vec<u32>, Full> {
    let mut last = vec![0; program.registers as usize];
    for (at, step) in program.steps.iter().enumerate() {
        step.reads().for_each(|register| last[register as usize] = at);
    }
    let mut free: Vec<u32> = (0..registers(program)).rev().collect();
    let mut assigned = vec![NONE; program.registers as usize];
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
                _ => match free.pop() {
                    Some(register) => register,
                    None => return Err(full(program, &assigned, &last, at)),
                },
            };
            assigned[target as usize] = register;
        }
        if copies {
            release(&mut free, &assigned);
        }
    }
    Ok(assigned)
}

/// What there is where a step finds no register.
fn full(program: &LaneProgram, assigned: &[u32], last: &[usize], step: usize) -> Full {
    let is_held = |&value: &u32| assigned[value as usize] != NONE && last[value as usize] >= step;
    Full { step, held: (0..program.registers).filter(is_held).collect() }
}

/// What is the same in every iteration, the most used first.
pub(super) fn the_same_everywhere(program: &LaneProgram) -> Vec<Lanes> {
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

impl LaneInstruction {
    /// The registers of lanes that it reads.
    pub(super) fn reads(&self) -> impl Iterator<Item = u32> {
        self.operands.iter().filter_map(|operand| match operand {
            Operand::Lanes(Lanes::Register(register)) => Some(*register),
            _ => None,
        })
    }
}
