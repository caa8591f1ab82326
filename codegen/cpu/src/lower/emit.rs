//! The code of one row: for each stage its scalars and calls, then a loop ([`super::vector_loop`]).

use super::addressing::Position;
use super::builder::{Code, LANES, lane, lane_name};
use super::nest::{RUNNING_LANES, row_bytes, running_offset};
use super::row::Row;
use super::schedule::{RowSchedule, is_call};
use super::vector_loop::as_lanes;
use cranelift::prelude::*;
use kernfusion_ir::kernel::{Index, Indirect, Instr, InstrKind, Scalar};
use kernfusion_ir::{Binary, DType, Unary};
use std::collections::BTreeMap;

/// Emits rows into a function.
pub(super) struct Emitter<'r, 'f, 'm> {
    pub(super) code: Code<'f, 'm>,
    pub(super) row: &'r Row,
    pub(super) memory: Memory,
    pub(super) at: At,
    pub(super) schedule: &'r RowSchedule,
    /// Scalars of the row.
    scalars: Vec<Option<Value>>,
    /// Lanes at the current position.
    pub(super) current: BTreeMap<Scalar, Value>,
    /// Whether the current position meets the row's conditions.
    pub(super) is_inside: bool,
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
    /// How many points from the first one on certainly meet the row's conditions ([`Row::inside`]); none if not known.
    pub(super) inside: Option<Value>,
}

/// A number of points.
#[derive(Debug, Clone, Copy)]
pub(super) enum Count {
    /// Known when compiled.
    Fixed(usize),
    /// Known at run time.
    Dynamic(Value),
}

impl<'r, 'f, 'm> Emitter<'r, 'f, 'm> {
    pub(super) fn new(code: Code<'f, 'm>, row: &'r Row, schedule: &'r RowSchedule, memory: Memory) -> Self {
        let at = At { coordinates: vec![], count: Count::Fixed(0), tile: None, inside: None };
        Emitter {
            code,
            row,
            memory,
            at,
            schedule,
            scalars: vec![],
            current: BTreeMap::new(),
            is_inside: false,
        }
    }

    /// Emits one row.
    pub(super) fn emit(&mut self, at: At) {
        self.at = at;
        self.scalars = vec![None; self.row.region.instrs.len()];
        for stage in 0..self.schedule.loops.len() {
            self.scalars_and_calls(stage);
            self.clear_running(stage);
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
                self.scalars[at] = Some(self.scalar(value, instr));
            } else if self.schedule.is_call(&instr.kind) {
                self.call_on_row(value, instr);
            }
        }
    }

    /// A value that is computed once a row.
    fn scalar(&mut self, value: Scalar, instr: &Instr) -> Value {
        match &instr.kind {
            InstrKind::Constant(value) => self.code.constant(value.value(), instr.dtype, lane(instr.dtype)),
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
                self.code.b.ins().load(types::I32, super::builder::flags(), slot, 0)
            }
            InstrKind::Reduce(op, _, x) => {
                let (row, points) = match self.schedule.running.contains_key(&value) {
                    true => (self.running_lanes(value), self.code.int(RUNNING_LANES as i64)),
                    false => (self.row_address(*x), self.points()),
                };
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
    pub(super) fn elementwise(&mut self, instr: &Instr, operands: &[Value]) -> Value {
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
    pub(super) fn address(&mut self, slot: usize, dtype: DType, index: &Index) -> Value {
        let walk = self.walk(index);
        self.code.element(self.memory.slots[slot], walk.base, dtype)
    }

    /// The address of a scratch row.
    pub(super) fn scratch_row(&mut self, row: usize) -> Value {
        let offset = row * row_bytes(self.row, self.memory.capacity);
        self.code.b.ins().iadd_imm_s(self.memory.scratch, offset as i64)
    }

    /// Where the running result of a reduction is.
    pub(super) fn running_lanes(&mut self, reduction: Scalar) -> Value {
        let number = self.schedule.running[&reduction];
        let offset = running_offset(self.row, self.schedule.rows, self.memory.capacity, number);
        self.code.b.ins().iadd_imm_s(self.memory.scratch, offset as i64)
    }

    /// Sets the running results of a stage's loop to where they start.
    fn clear_running(&mut self, stage: usize) {
        for value in &self.schedule.loops[stage].running {
            let (instr, to) = (self.row.region.instr(*value), self.running_lanes(*value));
            let InstrKind::Reduce(op, ..) = instr.kind else { unreachable!("a reduction") };
            let nothing = self.code.constant(op.identity(instr.dtype), instr.dtype, lane(instr.dtype));
            let lanes = self.code.int(RUNNING_LANES as i64);
            self.fill(to, lanes, nothing, as_lanes(instr.dtype), LANES);
        }
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
    pub(super) fn points(&mut self) -> Value {
        match self.at.count {
            Count::Fixed(inner) => {
                let runs: usize = self.row.axes[self.row.runs()].iter().product();
                self.code.int((runs * inner) as i64)
            }
            Count::Dynamic(count) => count,
        }
    }

    pub(super) fn inner_count(&mut self) -> Value {
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

    /// A primitive on one value, passed on the stack.
    fn call_on_scalar(&mut self, instr: &Instr) -> Value {
        let flags = super::builder::flags();
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
        self.each_run(self.row.runs(), zero, &mut |this, offset| {
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
}

/// The primitive that computes an instruction.
fn primitive(instr: &Instr) -> String {
    let name = match &instr.kind {
        InstrKind::Unary(Unary::Exp, _) => "exp",
        InstrKind::Unary(Unary::Log, _) => "log",
        InstrKind::Unary(Unary::Tanh, _) => "tanh",
        InstrKind::Unary(Unary::Sigmoid, _) => "sigmoid",
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
        DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I8 | DType::Bool => None,
    }
}
