//! Index maps as addresses.

use super::emit::Emitter;
use cranelift::prelude::*;
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{Bound, Index, Indirect};

/// An index map along the inner axis of one row or run: `base + stride·i + Σ clamp(lane of a value)·stride`.
#[derive(Debug, Clone)]
pub(super) struct Walk {
    /// Where the loop's first point lies, in elements.
    pub(super) base: Value,
    /// What one step adds.
    pub(super) stride: i64,
    /// Terms whose values vary along the row.
    pub(super) terms: Vec<Indirect>,
}

/// A point of a loop: lanes from `i + extra` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    /// The loop's counter.
    pub(super) i: Value,
    /// What an unrolled copy adds.
    pub(super) extra: usize,
    /// The number of lanes.
    pub(super) width: usize,
}

impl Emitter<'_, '_, '_> {
    /// The part of an index that is the same for the whole row, at the loop's first point.
    pub(super) fn walk(&mut self, index: &Index) -> Walk {
        let mut base = self.code.int(index.offset);
        let coordinates = self.at.coordinates.clone();
        for (&stride, coordinate) in index.strides.iter().zip(coordinates) {
            if stride != 0 {
                let term = self.code.times(coordinate, stride);
                base = self.code.b.ins().iadd(base, term);
            }
        }
        let (terms, fixed): (Vec<Indirect>, Vec<Indirect>) =
            index.indirect.iter().partition(|term| self.row.varies(term.value));
        for term in fixed {
            let value = self.uniform(term.value);
            let steps = self.clamped(value, &term);
            base = self.code.b.ins().iadd(base, steps);
        }
        Walk { base, stride: index.strides[self.row.inner()], terms }
    }

    /// The element index of one lane.
    pub(super) fn step(&mut self, walk: &Walk, at: Position, lane: usize) -> Value {
        let mut offset = walk.base;
        if walk.stride != 0 {
            let point = self.code.b.ins().iadd_imm_s(at.i, (at.extra + lane) as i64);
            let moved = self.code.times(point, walk.stride);
            offset = self.code.b.ins().iadd(offset, moved);
        }
        for term in &walk.terms {
            let value = self.lane(term.value, at, lane);
            let steps = self.clamped(value, term);
            offset = self.code.b.ins().iadd(offset, steps);
        }
        offset
    }

    /// The address of one lane's element, as a value and a constant part.
    pub(super) fn lane_address(
        &mut self,
        memory: Value,
        walk: &Walk,
        dtype: DType,
        at: Position,
        lane: usize,
    ) -> (Value, i32) {
        let constant = (at.extra + lane) as i64 * walk.stride * dtype.size() as i64;
        match i32::try_from(constant) {
            // All lanes of all copies share the variable part.
            Ok(constant) if walk.terms.is_empty() => {
                let index = self.step(walk, Position { extra: 0, ..at }, 0);
                (self.code.element(memory, index, dtype), constant)
            }
            _ => {
                let index = self.step(walk, at, lane);
                (self.code.element(memory, index, dtype), 0)
            }
        }
    }

    /// The index as a 32-bit integer in each lane; it is a coordinate, so it fits.
    pub(super) fn coordinates(&mut self, walk: &Walk, at: Position) -> Value {
        if !walk.terms.is_empty() {
            let mut result = None;
            for lane in 0..at.width {
                let index = self.step(walk, at, lane);
                let index = self.code.b.ins().ireduce(types::I32, index);
                if at.width == 1 {
                    return index;
                }
                result = Some(self.code.with_lane(result, index, lane as u8));
            }
            return result.expect("there are lanes");
        }
        let plain = Walk { terms: vec![], ..walk.clone() };
        let first = self.step(&plain, at, 0);
        let first = self.code.b.ins().ireduce(types::I32, first);
        if at.width == 1 {
            return first;
        }
        let first = self.code.widened(first, at.width);
        let steps = std::array::from_fn(|lane| (walk.stride * lane as i64) as u32);
        let steps = self.code.lanes_of(steps, types::I32X4);
        self.code.b.ins().iadd(first, steps)
    }

    /// `clamp(value, 0, limit − 1)·stride` of a scalar, as a 64-bit integer.
    fn clamped(&mut self, value: Value, term: &Indirect) -> Value {
        let signed = self.row.region.instr(term.value).dtype != DType::U32;
        let zero = self.code.int(0);
        let largest = self.code.int(term.limit as i64 - 1);
        let ins = self.code.b.ins();
        let value = if signed { ins.sextend(types::I64, value) } else { ins.uextend(types::I64, value) };
        let value = self.code.b.ins().smin(value, largest);
        let value = self.code.b.ins().smax(value, zero);
        self.code.times(value, term.stride)
    }

    /// Whether all bounds hold at a point, as a condition; `None` if there are none.
    pub(super) fn holds(&mut self, guard: &[(Walk, usize)], at: Option<(Position, usize)>) -> Option<Value> {
        let mut all = None;
        for (walk, extent) in guard {
            let coordinate = match at {
                Some((at, lane)) => self.step(walk, at, lane),
                None => walk.base,
            };
            let inside = self.code.b.ins().icmp_imm_s(IntCC::UnsignedLessThan, coordinate, *extent as i64);
            all = Some(match all {
                Some(all) => self.code.b.ins().band(all, inside),
                None => inside,
            });
        }
        all
    }

    /// The walks of the coordinates of bounds.
    pub(super) fn bounds(&mut self, guard: &[Bound]) -> Vec<(Walk, usize)> {
        guard.iter().map(|bound| (self.walk(&bound.coordinate), bound.extent)).collect()
    }

    /// As [`bounds`](Self::bounds), of those that are the same throughout a run.
    pub(super) fn fixed_bounds(&mut self, guard: &[Bound]) -> Vec<(Walk, usize)> {
        let fixed: Vec<_> = guard.iter().filter(|bound| !self.row.moves(bound)).cloned().collect();
        self.bounds(&fixed)
    }

    /// The address if the condition holds, else that of zeros.
    pub(super) fn or_zeros(&mut self, holds: Option<Value>, address: Value) -> Value {
        match holds {
            Some(holds) => self.code.b.ins().select(holds, address, self.memory.zeros),
            None => address,
        }
    }
}
