//! The loops of a row: over runs of the inner axis, over vectors with a scalar tail, and what they do at each
//! position.

use super::addressing::{Position, Walk};
use super::builder::{LANES, lane};
use super::emit::{At, Count, Emitter};
use super::row::{Access, Target, Write, WriteMode};
use super::wide::Ends;
use cranelift::prelude::*;
use kernfusion_ir::kernel::{InstrKind, Scalar};
use kernfusion_ir::{Binary, DType};
use std::collections::BTreeMap;
use std::ops::Range;

/// What a loop needs to know of a varying value before it starts.
pub(super) enum Source {
    /// Elements one after the other, from an address on.
    Contiguous(Value),
    /// The same value throughout.
    Splat(Value),
    /// Elements anywhere, under bounds that may vary. `first` is the address of the first one; of bounded and alternate elements, that of
    /// zeros if a bound that does not vary fails.
    Scattered { base: Value, walk: Walk, guard: Vec<(Walk, usize)>, first: Value },
    /// Coordinates.
    Walks(Vec<(Walk, usize)>),
}

impl Source {
    /// Of contiguous elements, where they start.
    pub(super) fn address(&self) -> Value {
        match self {
            Source::Contiguous(address) | Source::Scattered { first: address, .. } => *address,
            Source::Splat(_) | Source::Walks(_) => unreachable!("not contiguous"),
        }
    }

    /// The value that is the same throughout.
    pub(super) fn splat(&self) -> Value {
        let Source::Splat(value) = self else { unreachable!("not the same throughout") };
        *value
    }

    /// The first of the coordinates, or of the bounds' ones, with this number.
    pub(super) fn first(&self, number: usize) -> Value {
        match self {
            Source::Walks(walks) | Source::Scattered { guard: walks, .. } => walks[number].0.base,
            Source::Contiguous(_) | Source::Splat(_) => unreachable!("not coordinates"),
        }
    }
}

impl Emitter<'_, '_, '_> {
    /// The loop of a stage.
    pub(super) fn stage_loop(&mut self, stage: usize) {
        if self.schedule.loops[stage].is_empty() {
            return;
        }
        let zero = self.code.int(0);
        if let Some(axis) = self.row.run_within() {
            self.at.coordinates[axis] = zero;
        }
        let end = self.row.run_within().unwrap_or(self.row.inner());
        self.each_run(self.row.fixed..end, zero, &mut |this, offset| this.run_loop(stage, offset));
    }

    /// The loop of a stage over one run.
    fn run_loop(&mut self, stage: usize, offset: Value) {
        let steps = &self.schedule.loops[stage];
        let wide = self.schedule.wide[stage].as_ref();
        let is_taken = |value: &&Scalar| wide.is_none_or(|wide| wide.takes(**value));
        let taken: Vec<_> = steps.computes.iter().filter(is_taken).copied().collect();
        let sources: BTreeMap<_, _> =
            taken.into_iter().filter_map(|value| Some((value, self.source(value)?))).collect();
        let rows: BTreeMap<_, _> = (steps.reads.union(&steps.spills))
            .map(|&value| {
                let row = self.schedule.row[value.0 as usize].expect("kept values have rows");
                let (row, dtype) = (self.scratch_row(row), self.row.region.instr(value).dtype);
                (value, self.code.element(row, offset, as_lanes(dtype)))
            })
            .collect();
        let targets: Vec<_> = steps.writes.iter().map(|&at| (at, self.target(at))).collect();
        if let Some(wide) = &self.schedule.wide[stage] {
            let running = steps.running.first().map(|&first| self.running_lanes(first));
            let ends = Ends { sources: &sources, rows: &rows, running, targets: &targets };
            return self.wide_loop(wide, &ends);
        }
        let unroll = match steps.computes.len() + steps.reads.len() {
            0..=16 => 4,
            17..=48 => 2,
            _ => 1,
        };
        self.each_position(unroll, &mut |this, at| {
            this.current.clear();
            for &value in steps.computes.union(&steps.reads) {
                let lanes = if steps.reads.contains(&value) {
                    this.read_row(value, rows[&value], at)
                } else {
                    this.compute(value, sources.get(&value), at)
                };
                this.current.insert(value, lanes);
            }
            for &value in &steps.spills {
                let lanes = this.lanes(value, at);
                let dtype = as_lanes(this.row.region.instr(value).dtype);
                let address = this.code.element(rows[&value], at.i, dtype);
                this.code.write(dtype, lanes, address, (at.extra * dtype.size()) as i32);
            }
            for (write, target) in &targets {
                this.write_lanes(*write, target, at);
            }
        });
        self.current.clear();
    }

    /// Loops over the inner axis: unrolled vectors, single vectors, then scalars.
    fn each_position(&mut self, unroll: usize, body: &mut dyn FnMut(&mut Self, Position)) {
        let mut i = self.code.int(0);
        let count = self.inner_count();
        let fixed = match self.at.count {
            Count::Fixed(count) => Some(count),
            Count::Dynamic(_) => None,
        };
        let passes: &[(usize, usize)] =
            if self.row.is_double() { &[(1, 1)] } else { &[(unroll, LANES), (1, LANES), (1, 1)] };
        if let Some(inside) = self.at.inside {
            let step = unroll * LANES;
            let end = self.code.b.ins().band_imm_s(inside, -(step as i64));
            let open = self.code.enter(i, end, &[]);
            self.is_inside = true;
            for copy in 0..unroll {
                body(self, Position { i: open.i, extra: copy * LANES, width: LANES });
            }
            self.is_inside = false;
            i = self.code.leave(&open, step as i64, &[]);
        }
        let mut before = None;
        for &(copies, width) in passes {
            let step = copies * width;
            // A pass does nothing if the one before left too little, or was the same.
            let rest = fixed.map(|count| before.map_or(count, |before| count % before));
            if before == Some(step) || rest.is_some_and(|rest| rest < step) {
                continue;
            }
            before = Some(step);
            let end = self.code.b.ins().band_imm_s(count, -(step as i64));
            let open = self.code.enter(i, end, &[]);
            for copy in 0..copies {
                body(self, Position { i: open.i, extra: copy * width, width });
            }
            i = self.code.leave(&open, step as i64, &[]);
        }
    }

    /// What the loop must know before it computes a value; elementwise values need nothing.
    fn source(&mut self, value: Scalar) -> Option<Source> {
        let instr = self.row.region.instr(value);
        match &instr.kind {
            InstrKind::Load { buffer, index, guard } => {
                let slot = buffer.0 as usize;
                let access = self.row.access(index, guard);
                let (fixed, all) = (self.fixed_bounds(guard), self.bounds(guard));
                let address = self.address(slot, instr.dtype, index);
                // Scattered elements test every bound: the zeros are a row, which their stride would leave.
                let holds = self.holds(&fixed, None).filter(|_| access != Access::Scattered);
                let address = self.or_zeros(holds, address);
                Some(match access {
                    Access::Contiguous => Source::Contiguous(address),
                    Access::Splat => Source::Splat(self.code.read(instr.dtype, address, 0, 1)),
                    Access::Bounded | Access::Alternate | Access::Scattered => {
                        let (base, walk) = (self.memory.slots[slot], self.walk(index));
                        Source::Scattered { base, walk, guard: all, first: address }
                    }
                })
            }
            InstrKind::Coordinate(index) => Some(Source::Walks(vec![(self.walk(index), 0)])),
            InstrKind::InRange(bounds) => Some(Source::Walks(self.bounds(bounds))),
            InstrKind::Select(..) if self.row.is_chosen_load(value) => {
                Some(Source::Contiguous(self.chosen_address(value)))
            }
            InstrKind::Producer(_) => {
                Some(Source::Contiguous(self.at.tile.expect("a contraction's region runs on tiles")))
            }
            _ => None,
        }
    }

    /// Where a load, or what is [chosen](super::row::Row::is_chosen_load) among loads, begins.
    fn chosen_address(&mut self, value: Scalar) -> Value {
        match &self.row.region.instr(value).kind {
            InstrKind::Select(condition, x, y) => {
                let holds = self.uniform(*condition);
                let [yes, no] = [*x, *y].map(|operand| self.chosen_address(operand));
                self.code.b.ins().select(holds, yes, no)
            }
            InstrKind::Load { buffer, index, guard } => {
                let dtype = self.row.region.instr(value).dtype;
                let (address, fixed) =
                    (self.address(buffer.0 as usize, dtype, index), self.fixed_bounds(guard));
                let holds = self.holds(&fixed, None);
                self.or_zeros(holds, address)
            }
            _ => unreachable!("a load"),
        }
    }

    /// A varying value at a position.
    fn compute(&mut self, value: Scalar, source: Option<&Source>, at: Position) -> Value {
        let instr = self.row.region.instr(value);
        match source {
            Some(Source::Splat(scalar)) => self.code.widened(*scalar, at.width),
            Some(Source::Contiguous(address)) => {
                let from_tile = matches!(instr.kind, InstrKind::Producer(_));
                let dtype = if from_tile { DType::F32 } else { instr.dtype };
                let address = self.code.element(*address, at.i, dtype);
                let lanes = self.code.read(dtype, address, (at.extra * dtype.size()) as i32, at.width);
                if from_tile { self.code.convert(lanes, DType::F32, instr.dtype) } else { lanes }
            }
            Some(Source::Scattered { base, walk, guard, .. }) => {
                self.gather(instr.dtype, *base, walk, guard, at)
            }
            Some(Source::Walks(walks)) => match &instr.kind {
                InstrKind::Coordinate(_) => {
                    let index = self.coordinates(&walks[0].0, at);
                    self.code.convert(index, DType::I32, instr.dtype)
                }
                _ => self.in_range(walks, at),
            },
            None if self.is_inside && self.holds_inside(&instr.kind) => {
                let InstrKind::Select(_, x, _) = &instr.kind else { unreachable!("a choice") };
                self.lanes(*x, at)
            }
            None => {
                let operands: Vec<_> = instr.kind.operands().iter().map(|&x| self.lanes(x, at)).collect();
                self.elementwise(instr, &operands)
            }
        }
    }

    /// Whether this is a choice whose condition holds inside.
    fn holds_inside(&self, kind: &InstrKind) -> bool {
        matches!(kind, InstrKind::Select(condition, ..) if self.row.inside.contains(condition))
    }

    /// A mask of the lanes where all bounds hold.
    fn in_range(&mut self, walks: &[(Walk, usize)], at: Position) -> Value {
        let mut all = None;
        for (walk, extent) in walks {
            let index = self.coordinates(walk, at);
            let limit = self.code.bits(*extent as u32, self.code.ty(index));
            let inside = self.code.icmp(IntCC::UnsignedLessThan, index, limit);
            all = Some(all.map_or(inside, |all| self.code.b.ins().band(all, inside)));
        }
        all.expect("a range that varies has a bound")
    }

    /// Reads lane by lane.
    fn gather(
        &mut self,
        dtype: DType,
        base: Value,
        walk: &Walk,
        guard: &[(Walk, usize)],
        at: Position,
    ) -> Value {
        let mut result = None;
        for lane in 0..at.width {
            let (mut address, mut offset) = self.lane_address(base, walk, dtype, at, lane);
            if let Some(holds) = self.holds(guard, Some((at, lane))) {
                let element = self.code.b.ins().iadd_imm_s(address, i64::from(offset));
                (address, offset) = (self.or_zeros(Some(holds), element), 0);
            }
            let value = self.code.read(dtype, address, offset, 1);
            if at.width == 1 {
                return value;
            }
            result = Some(self.code.with_lane(result, value, lane as u8));
        }
        result.expect("there are lanes")
    }

    fn read_row(&mut self, value: Scalar, row: Value, at: Position) -> Value {
        let dtype = as_lanes(self.row.region.instr(value).dtype);
        let address = self.code.element(row, at.i, dtype);
        self.code.read(dtype, address, (at.extra * dtype.size()) as i32, at.width)
    }

    /// Walks these columns, from the first one on; `body` gets the first point of what is left of them, counted within the row.
    pub(super) fn each_run(
        &mut self,
        axes: Range<usize>,
        run: Value,
        body: &mut dyn FnMut(&mut Self, Value),
    ) {
        if axes.is_empty() {
            let points: usize = self.row.axes[axes.end..].iter().product();
            let first = self.code.times(run, points as i64);
            return body(self, first);
        }
        let (axis, extent) = (axes.start, self.row.axes[axes.start]);
        let (zero, end) = (self.code.int(0), self.code.int(extent as i64));
        let open = self.code.enter(zero, end, &[]);
        self.at.coordinates[axis] = open.i;
        let next = self.code.times(run, extent as i64);
        let next = self.code.b.ins().iadd(next, open.i);
        self.each_run(axis + 1..axes.end, next, body);
        self.code.leave(&open, 1, &[]);
    }

    /// A value at the current position in as many lanes.
    fn lanes(&mut self, value: Scalar, at: Position) -> Value {
        match self.current.get(&value) {
            Some(lanes) => *lanes,
            None => {
                let scalar = self.uniform(value);
                self.code.widened(scalar, at.width)
            }
        }
    }

    /// One lane of a varying value at the current position.
    pub(super) fn lane(&mut self, value: Scalar, at: Position, lane: usize) -> Value {
        let lanes = self.current[&value];
        if at.width == 1 { lanes } else { self.code.b.ins().extractlane(lanes, lane as u8) }
    }

    /// What the loop must know before it does a write.
    fn target(&mut self, write: usize) -> Source {
        let write = &self.row.writes[write];
        match (write.target, self.row.access(&write.index, &[])) {
            (Target::Tile, _) | (_, Access::Contiguous) => Source::Contiguous(self.first_address(write)),
            (Target::Slot(slot), _) => {
                let (base, walk) = (self.memory.slots[slot], self.walk(&write.index));
                let first = self.code.element(base, walk.base, write.dtype);
                Source::Scattered { base, first, walk, guard: vec![] }
            }
        }
    }

    /// Where a write of the row's (or run's) first point goes.
    fn first_address(&mut self, write: &Write) -> Value {
        match write.target {
            Target::Slot(slot) => self.address(slot, write.dtype, &write.index),
            Target::Tile => self.at.tile.expect("what writes to a tile is given one"),
        }
    }

    fn write_lanes(&mut self, write: usize, target: &Source, at: Position) {
        let write = &self.row.writes[write];
        let lanes = self.lanes(write.value, at);
        match target {
            Source::Contiguous(address) => {
                let address = self.code.element(*address, at.i, write.dtype);
                let offset = (at.extra * write.dtype.size()) as i32;
                self.write_at(write, lanes, address, offset, at.width);
            }
            Source::Scattered { base, walk, .. } => {
                for lane in 0..at.width {
                    let (address, offset) = self.lane_address(*base, walk, write.dtype, at, lane);
                    let value = match at.width {
                        1 => lanes,
                        _ => self.code.b.ins().extractlane(lanes, lane as u8),
                    };
                    self.write_at(write, value, address, offset, 1);
                }
            }
            Source::Splat(_) | Source::Walks(_) => unreachable!("targets are addresses"),
        }
    }

    /// A write of a value of the row.
    pub(super) fn write_once(&mut self, write: &Write) {
        let address = self.first_address(write);
        let value = self.uniform(write.value);
        self.write_at(write, value, address, 0, 1);
    }

    fn write_at(&mut self, write: &Write, value: Value, address: Value, offset: i32, width: usize) {
        let value = match write.mode {
            WriteMode::Set => value,
            WriteMode::Add => {
                let old = self.code.read(write.dtype, address, offset, width);
                self.code.binary(Binary::Add, write.dtype, old, value)
            }
            WriteMode::Accumulate(op) => {
                let old = self.code.read(write.dtype, address, offset, width);
                self.code.combine(op, write.dtype, old, value)
            }
        };
        self.code.write(write.dtype, value, address, offset);
    }

    /// Sets the running results of a unit of rows to where they start.
    pub(super) fn clear_accumulators(&mut self, at: At) {
        self.at = at;
        for write in &self.row.writes {
            let WriteMode::Accumulate(op) = write.mode else { continue };
            let address = self.first_address(write);
            // Running results of a row lie one after the other.
            let points = self.points();
            let nothing = self.code.constant(op.identity(write.dtype), write.dtype, lane(write.dtype));
            self.fill(address, points, nothing, write.dtype, 1);
        }
    }

    /// Writes the same to all of these points, as many at once as `width` says, of which `points` is a multiple.
    pub(super) fn fill(&mut self, address: Value, points: Value, one: Value, dtype: DType, width: usize) {
        let (all, zero) = (self.code.widened(one, width), self.code.int(0));
        let open = self.code.enter(zero, points, &[]);
        let to = self.code.element(address, open.i, dtype);
        self.code.write(dtype, all, to, 0);
        self.code.leave(&open, width as i64, &[]);
    }
}

/// The dtype whose memory form is a value's lanes.
pub(super) fn as_lanes(dtype: DType) -> DType {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => DType::F32,
        DType::F64 => DType::F64,
        DType::I32 | DType::U32 | DType::I8 | DType::Bool => DType::I32,
    }
}
