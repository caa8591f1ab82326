//! Windows: what a later run reads is fetched while this one is computed. Rows of an image are read in an order in which no processor finds the next
//! ones: those that a window has not seen yet are the last that it reads.

use super::super::program::{Half, LaneProgram, Operand};
use super::Assembler;
use super::registers::Body;
use iced_x86::Code;

/// How many runs ahead: one takes less time than memory does.
const RUNS_AHEAD: i32 = 2;

/// Bytes of a cache line.
const LINE: i32 = 64;

/// Memory that an iteration reads around a pointer: bytes from `start` to `end`, which move on by `scale` with each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stretch {
    pointer: u32,
    scale: u32,
    start: i32,
    end: i32,
}

impl Stretch {
    fn of(operand: &Operand, lanes: u8) -> Option<Stretch> {
        let (pointer, scale, start) = match *operand {
            Operand::Elements { pointer, size, offset } => (pointer, size, offset),
            Operand::Alternate { pointer, size, offset, half: Half::Lower, .. } => {
                (pointer, 2 * size, offset)
            }
            _ => return None,
        };
        Some(Stretch { pointer, scale, start, end: start + i32::from(lanes) * scale as i32 })
    }

    fn is_beside(&self, other: &Stretch) -> bool {
        (self.pointer, self.scale) == (other.pointer, other.scale)
    }
}

impl Assembler<'_> {
    /// If the program's loads are those of a window, asks for what they read some runs later and no other one reads until then.
    pub(super) fn fetch_later_runs(&mut self, body: &Body) {
        let Some(runs) = &body.program.runs else { return };
        let all = stretches(&body.program);
        if !all.windows(2).any(|pair| pair[0].is_beside(&pair[1])) {
            return;
        }
        for stretch in &all {
            let step = runs.pointers[stretch.pointer as usize];
            let is_next = |other: &Stretch| {
                other.is_beside(stretch)
                    && other.start.abs_diff(stretch.start.saturating_add(step)) < LINE as u32
            };
            let distance = step.checked_mul(RUNS_AHEAD).filter(|_| !all.iter().any(is_next));
            let Some(distance) = distance else { continue };
            for at in (stretch.start..stretch.end).step_by(LINE as usize) {
                let Some(offset) = at.checked_add(distance) else { continue };
                let place = self.elements(stretch.pointer, stretch.scale, offset);
                self.emit(Code::Prefetcht0_m8, &[place]);
            }
        }
    }
}

/// What an iteration reads, in order; what lies within a line of each other is one stretch.
fn stretches(program: &LaneProgram) -> Vec<Stretch> {
    let lanes = program.vectors.lanes();
    let operands = program.steps.iter().flat_map(|step| &step.operands);
    let mut all: Vec<Stretch> = operands.filter_map(|operand| Stretch::of(operand, lanes)).collect();
    all.sort_unstable();
    all.dedup_by(|next, before| {
        let joins = before.is_beside(next) && next.start <= before.end + LINE;
        if joins {
            before.end = before.end.max(next.end);
        }
        joins
    });
    all
}
