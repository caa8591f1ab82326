//! The code of one row: for each stage its scalars and calls, then a loop over runs, vectors and a scalar tail.

use super::code::{Code, LANES, lane, lane_name};
use super::row::{Access, Row, Write, WriteMode};
use super::schedule::{Schedule, is_call};
use super::walk::{Position, Walk};
use cranelift::prelude::*;
use kernfusion_ir::kernel::{Index, Indirect, Instr, InstrKind, Scalar};
use kernfusion_ir::{Binary, DType, ReduceOp, Unary};
use std::collections::BTreeMap;

/// Emits rows into a function.
pub(super) struct Emitter<'r, 'f, 'm> {
    pub(super) code: Code<'f, 'm>,
    pub(super) row: &'r Row,
    pub(super) memory: Memory,
    pub(super) at: At,
    schedule: &'r Schedule,
    /// Scalars of the row.
    scalars: Vec<Option<Value>>,
    /// Lanes at the current position.
    current: BTreeMap<Scalar, Value>,
}

/// Pointers that a function starts with.
pub(super) struct Memory {
    /// Each slot of the kernel's table.
    pub(super) slots: Vec<Value>,
    /// Zeros, as many as any guarded access may read.
    pub(super) zeros: Value,
    /// Scratch rows.
    pub(super) scratch: Value,
    /// Points that a scratch row holds.
    pub(super) capacity: usize,
}

/// Where a row is.
#[derive(Debug, Clone)]
pub(super) struct At {
    /// One coordinate for each axis; of the inner axis, the first one.
    pub(super) coordinates: Vec<Value>,
    /// The number of points along the inner axis.
    pub(super) count: Count,
    /// The address of the tile's element at the first point, where there is a tile.
    pub(super) tile: Option<Value>,
}

/// A number of points.
#[derive(Debug, Clone, Copy)]
pub(super) enum Count {
    /// Known when compiled.
    Fixed(usize),
    /// Known at run time.
    Dynamic(Value),
}

/// What a loop needs to know of a varying value before it starts.
enum Source {
    /// Elements one after the other, from an address on.
    Contiguous(Value),
    /// The same value throughout.
    Splat(Value),
    /// Elements anywhere, under bounds that may vary.
    Scattered { base: Value, walk: Walk, guard: Vec<(Walk, usize)> },
    /// Coordinates.
    Walks(Vec<(Walk, usize)>),
}

impl<'r, 'f, 'm> Emitter<'r, 'f, 'm> {
    pub(super) fn new(code: Code<'f, 'm>, row: &'r Row, schedule: &'r Schedule, memory: Memory) -> Self {
        let at = At { coordinates: vec![], count: Count::Fixed(0), tile: None };
        Emitter { code, row, memory, at, schedule, scalars: vec![], current: BTreeMap::new() }
    }

    /// Emits one row.
    pub(super) fn emit(&mut self, at: At) {
        self.at = at;
        self.scalars = vec![None; self.row.region.instrs.len()];
        for stage in 0..self.schedule.loops.len() {
            self.scalars_and_calls(stage);
            self.stage_loop(stage);
            for write in &self.row.writes {
                if !self.row.is_in_loop(write) && self.schedule.write_stage(write) == stage {
                    self.write_once(write);
                }
            }
        }
    }

    /// A value of the row.
    pub(super) fn uniform(&self, value: Scalar) -> Value {
        self.scalars[value.0 as usize].expect("scalars are computed before they are used")
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

    fn is_live(&self, value: Scalar) -> bool {
        self.schedule.live[value.0 as usize]
    }

    fn scalars_and_calls(&mut self, stage: usize) {
        for (at, instr) in self.row.region.instrs.iter().enumerate() {
            let value = Scalar(at as u32);
            if !self.is_live(value) || self.schedule.ready[at] != stage {
                continue;
            }
            if !self.row.varies(value) {
                self.scalars[at] = Some(self.scalar(instr));
            } else if is_call(&instr.kind) {
                self.call_on_row(value, instr);
            }
        }
    }

    /// A value that is computed once a row.
    fn scalar(&mut self, instr: &Instr) -> Value {
        match &instr.kind {
            InstrKind::Constant(value) => {
                self.code.constant(value.value(), instr.dtype, lane(instr.dtype))
            }
            InstrKind::Coordinate(index) => {
                let index = self.walk(index).base;
                let index = self.code.b.ins().ireduce(types::I32, index);
                self.code.convert(index, DType::I32, instr.dtype)
            }
            InstrKind::Load { buffer, index, guard } => {
                let address = self.address(buffer.0 as usize, instr.dtype, index);
                let guard = self.bounds(guard);
                let holds = self.holds(&guard, None);
                let address = self.or_zeros(holds, address);
                self.code.read(instr.dtype, address, 0, 1)
            }
            InstrKind::InRange(bounds) => {
                let bounds = self.bounds(bounds);
                let holds = self.holds(&bounds, None);
                let holds = holds.unwrap_or_else(|| self.code.b.ins().iconst(types::I8, 1));
                self.code.b.ins().bmask(types::I32, holds)
            }
            InstrKind::Random { seed, step, node, element } => {
                let (seed, step) = (self.uniform(*seed), self.uniform(*step));
                let start = self.walk(element).base;
                let (slot, one) = (self.cell(), self.code.int(1));
                self.philox(slot, one, [seed, step], *node, start, 1);
                self.code.b.ins().load(types::I32, super::code::flags(), slot, 0)
            }
            InstrKind::Reduce(op, _, x) => {
                let (row, points) = (self.row_address(*x), self.points());
                let name = format!("{}_{}", op.name(), lane_name(instr.dtype));
                let result = self.code.call(&name, &[row, points], Some(lane(instr.dtype)));
                self.code.rounded(result.expect("a reduction has a result"), instr.dtype)
            }
            kind if is_call(kind) => self.call_on_scalar(instr),
            kind => {
                let operands: Vec<_> = kind.operands().iter().map(|&x| self.uniform(x)).collect();
                self.elementwise(instr, &operands)
            }
        }
    }

    /// An instruction on operands of any width.
    fn elementwise(&mut self, instr: &Instr, operands: &[Value]) -> Value {
        let dtype_of = |value: &Scalar| self.row.region.instr(*value).dtype;
        match &instr.kind {
            InstrKind::Unary(op, _) => self.code.unary(*op, instr.dtype, operands[0]),
            InstrKind::Binary(op, ..) => self.code.binary(*op, instr.dtype, operands[0], operands[1]),
            InstrKind::Compare(op, x, _) => {
                let dtype = dtype_of(x);
                self.code.compare(*op, dtype, operands[0], operands[1])
            }
            InstrKind::Select(..) => self.code.choose(operands[0], operands[1], operands[2]),
            InstrKind::Cast(x) => {
                let dtype = dtype_of(x);
                self.code.convert(operands[0], dtype, instr.dtype)
            }
            InstrKind::Constant(_)
            | InstrKind::Coordinate(_)
            | InstrKind::Load { .. }
            | InstrKind::Random { .. }
            | InstrKind::Producer(_)
            | InstrKind::InRange(_)
            | InstrKind::Reduce(..) => unreachable!("not elementwise"),
        }
    }

    /// The address of the element of an index map at the row's (or run's) first point.
    fn address(&mut self, slot: usize, dtype: DType, index: &Index) -> Value {
        let walk = self.walk(index);
        self.code.element(self.memory.slots[slot], walk.base, dtype)
    }

    /// The address of a scratch row.
    fn scratch_row(&mut self, row: usize) -> Value {
        let lane = if self.row.is_double() { 8 } else { 4 };
        let offset = (row * self.memory.capacity * lane) as i64;
        self.code.b.ins().iadd_imm_s(self.memory.scratch, offset)
    }

    /// Where a primitive finds the lanes of a value: in scratch or in memory.
    fn row_address(&mut self, value: Scalar) -> Value {
        if let Some(row) = self.schedule.row[value.0 as usize] {
            return self.scratch_row(row);
        }
        let instr = self.row.region.instr(value);
        let InstrKind::Load { buffer, index, guard } = &instr.kind else {
            unreachable!("only loads lie in memory")
        };
        let address = self.address(buffer.0 as usize, instr.dtype, index);
        let guard = self.bounds(guard);
        let holds = self.holds(&guard, None);
        self.or_zeros(holds, address)
    }

    /// The number of points of the whole row.
    fn points(&mut self) -> Value {
        match self.at.count {
            Count::Fixed(inner) => {
                let runs: usize = self.row.axes[self.row.runs()].iter().product();
                self.code.int((runs * inner) as i64)
            }
            Count::Dynamic(count) => count,
        }
    }

    fn inner_count(&mut self) -> Value {
        match self.at.count {
            Count::Fixed(count) => self.code.int(count as i64),
            Count::Dynamic(count) => count,
        }
    }

    /// A primitive over the row.
    fn call_on_row(&mut self, value: Scalar, instr: &Instr) {
        let row = self.schedule.row[value.0 as usize].expect("a call has a row");
        let to = self.scratch_row(row);
        match &instr.kind {
            InstrKind::Random { seed, step, node, element } => {
                let keys = [self.uniform(*seed), self.uniform(*step)];
                self.random_row(to, keys, *node, element);
            }
            kind => {
                let operands: Vec<_> = kind.operands().iter().map(|&x| self.row_address(x)).collect();
                let points = self.points();
                let operands = [&[to], &operands[..], &[points]].concat();
                self.code.call(&primitive(instr), &operands, None);
                if let Some(round) = rounding(instr.dtype) {
                    self.code.call(round, &[to, to, points], None);
                }
            }
        }
    }

    /// A primitive on one value, by way of the stack.
    fn call_on_scalar(&mut self, instr: &Instr) -> Value {
        let flags = super::code::flags();
        let to = self.cell();
        let mut operands = vec![to];
        for x in instr.kind.operands() {
            let (value, cell) = (self.uniform(x), self.cell());
            self.code.b.ins().store(flags, value, cell, 0);
            operands.push(cell);
        }
        operands.push(self.code.int(1));
        self.code.call(&primitive(instr), &operands, None);
        let result = self.code.b.ins().load(lane(instr.dtype), flags, to, 0);
        self.code.rounded(result, instr.dtype)
    }

    /// Room for one value on the stack.
    fn cell(&mut self) -> Value {
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, 8, 3);
        let slot = self.code.b.create_sized_stack_slot(data);
        self.code.b.ins().stack_addr(types::I64, slot, 0)
    }

    fn philox(&mut self, to: Value, n: Value, keys: [Value; 2], node: u32, start: Value, stride: i64) {
        let node = self.code.b.ins().iconst(types::I32, i64::from(node));
        let stride = self.code.int(stride);
        self.code.call("philox", &[to, n, keys[0], node, keys[1], start, stride], None);
    }

    /// Random bits for a row: one call a run, or one a point where elements are looked up.
    fn random_row(&mut self, to: Value, keys: [Value; 2], node: u32, element: &Index) {
        let varying: Vec<Indirect> =
            element.indirect.iter().copied().filter(|term| self.row.varies(term.value)).collect();
        let rows: Vec<_> = varying.iter().map(|term| (term.value, self.row_address(term.value))).collect();
        let zero = self.code.int(0);
        self.each_run(self.row.fixed, zero, &mut |this, offset| {
            let walk = this.walk(element);
            let to = this.code.element(to, offset, DType::U32);
            let count = this.inner_count();
            if rows.is_empty() {
                this.philox(to, count, keys, node, walk.base, walk.stride);
                return;
            }
            let zero = this.code.int(0);
            let open = this.code.enter(zero, count, &[]);
            let at = Position { i: open.i, extra: 0, width: 1 };
            for &(value, row) in &rows {
                let point = this.code.b.ins().iadd(offset, open.i);
                let address = this.code.element(row, point, DType::I32);
                let index = this.code.read(DType::I32, address, 0, 1);
                this.current.insert(value, index);
            }
            let start = this.step(&walk, at, 0);
            let to = this.code.element(to, open.i, DType::U32);
            let one = this.code.int(1);
            this.philox(to, one, keys, node, start, 1);
            this.current.clear();
            this.code.leave(&open, 1, &[]);
        });
    }

    /// Runs over the columns before the inner axis; `body` gets the run's first point, counted within the row.
    fn each_run(&mut self, axis: usize, run: Value, body: &mut dyn FnMut(&mut Self, Value)) {
        let extent = self.row.axes[axis];
        if axis == self.row.inner() {
            let first = self.code.times(run, extent as i64);
            return body(self, first);
        }
        let (zero, end) = (self.code.int(0), self.code.int(extent as i64));
        let open = self.code.enter(zero, end, &[]);
        self.at.coordinates[axis] = open.i;
        let next = self.code.times(run, extent as i64);
        let next = self.code.b.ins().iadd(next, open.i);
        self.each_run(axis + 1, next, body);
        self.code.leave(&open, 1, &[]);
    }

    fn stage_loop(&mut self, stage: usize) {
        if self.schedule.loops[stage].is_empty() {
            return;
        }
        let zero = self.code.int(0);
        self.each_run(self.row.fixed, zero, &mut |this, offset| this.run_loop(stage, offset));
    }

    /// The loop of a stage over one run.
    fn run_loop(&mut self, stage: usize, offset: Value) {
        let steps = &self.schedule.loops[stage];
        let sources: BTreeMap<_, _> =
            steps.computes.iter().filter_map(|&value| Some((value, self.source(value)?))).collect();
        let rows: BTreeMap<_, _> = (steps.reads.union(&steps.spills))
            .map(|&value| {
                let row = self.schedule.row[value.0 as usize].expect("kept values have rows");
                let (row, dtype) = (self.scratch_row(row), self.row.region.instr(value).dtype);
                (value, self.code.element(row, offset, as_lanes(dtype)))
            })
            .collect();
        let targets: Vec<_> = steps.writes.iter().map(|&at| (at, self.target(at))).collect();
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
                let guard = self.bounds(guard);
                if access == Access::Scattered {
                    let (base, walk) = (self.memory.slots[slot], self.walk(index));
                    return Some(Source::Scattered { base, walk, guard });
                }
                let address = self.address(slot, instr.dtype, index);
                let holds = self.holds(&guard, None);
                let address = self.or_zeros(holds, address);
                if access == Access::Contiguous {
                    return Some(Source::Contiguous(address));
                }
                Some(Source::Splat(self.code.read(instr.dtype, address, 0, 1)))
            }
            InstrKind::Coordinate(index) => Some(Source::Walks(vec![(self.walk(index), 0)])),
            InstrKind::InRange(bounds) => Some(Source::Walks(self.bounds(bounds))),
            InstrKind::Producer(_) => {
                Some(Source::Contiguous(self.at.tile.expect("a contraction's region runs on tiles")))
            }
            _ => None,
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
            Some(Source::Scattered { base, walk, guard }) => {
                self.gather(instr.dtype, *base, walk, guard, at)
            }
            Some(Source::Walks(walks)) => match &instr.kind {
                InstrKind::Coordinate(_) => {
                    let index = self.coordinates(&walks[0].0, at);
                    self.code.convert(index, DType::I32, instr.dtype)
                }
                _ => self.in_range(walks, at),
            },
            None => {
                let operands: Vec<_> =
                    instr.kind.operands().iter().map(|&x| self.lanes(x, at)).collect();
                self.elementwise(instr, &operands)
            }
        }
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

    /// What the loop must know before it does a write.
    fn target(&mut self, write: usize) -> Source {
        let write = &self.row.writes[write];
        match self.row.access(&write.index, &[]) {
            Access::Contiguous => Source::Contiguous(self.address(write.slot, write.dtype, &write.index)),
            Access::Splat | Access::Scattered => {
                let (base, walk) = (self.memory.slots[write.slot], self.walk(&write.index));
                Source::Scattered { base, walk, guard: vec![] }
            }
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
    fn write_once(&mut self, write: &Write) {
        let address = self.address(write.slot, write.dtype, &write.index);
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
            let address = self.address(write.slot, write.dtype, &write.index);
            // Running results of a row lie one after the other.
            let points = self.points();
            let identity = identity(op, write.dtype);
            self.fill(address, points, identity, write.dtype);
        }
    }

    fn fill(&mut self, address: Value, points: Value, value: f64, dtype: DType) {
        let one = self.code.constant(value, dtype, lane(dtype));
        let zero = self.code.int(0);
        let open = self.code.enter(zero, points, &[]);
        let to = self.code.element(address, open.i, dtype);
        self.code.write(dtype, one, to, 0);
        self.code.leave(&open, 1, &[]);
    }
}

/// Where a reduction of this dtype starts.
fn identity(op: ReduceOp, dtype: DType) -> f64 {
    op.identity(dtype)
}

/// The dtype whose memory form is a value's lanes.
fn as_lanes(dtype: DType) -> DType {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => DType::F32,
        DType::F64 => DType::F64,
        DType::I32 | DType::U32 | DType::Bool => DType::I32,
    }
}

/// The primitive that computes an instruction.
fn primitive(instr: &Instr) -> String {
    let name = match &instr.kind {
        InstrKind::Unary(Unary::Exp, _) => "exp",
        InstrKind::Unary(Unary::Log, _) => "log",
        InstrKind::Unary(Unary::Tanh, _) => "tanh",
        InstrKind::Unary(Unary::Erf, _) => "erf",
        InstrKind::Unary(Unary::Sin, _) => "sin",
        InstrKind::Unary(Unary::Cos, _) => "cos",
        InstrKind::Binary(Binary::Pow, ..) => "pow",
        kind => unreachable!("{kind:?} is an instruction"),
    };
    format!("{name}_{}", lane_name(instr.dtype))
}

fn rounding(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::BF16 => Some("round_bf16"),
        DType::F16 => Some("round_f16"),
        DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::Bool => None,
    }
}
