//! Loops over whole vectors: machine code of AVX-512 or AVX2, of which Cranelift makes none.
//!
//! A loop whose memory lies evenly becomes a function of its own, which Cranelift's code calls once a run, or once for several
//! short ones. It is known from the row alone: the schedule [`record`]s a program for each stage, with `exp` and its kin in place where all of a row's
//! loops can be made so. Other loops, and loops on other machines, remain Cranelift's.

mod assemble;
mod codes;
mod pattern;
mod predicate;
mod program;

use super::builder::{Code, flags};
use super::emit::Emitter;
use super::nest::RUNNING_LANES;
use super::row::{Access, Row, Write, WriteMode};
use super::schedule::Loop;
use super::vector_loop::{Source, as_lanes};
use assemble::{assemble, fits};
pub(super) use codes::Vectors;
use cranelift::module::{FuncId, Linkage, Module};
use cranelift::prelude::*;
use kernfusion_ir::kernel::{Bound, Index, Indirect, Instr, InstrKind, Scalar};
use kernfusion_ir::{Binary, DType};
use program::{At, LaneProgram, Lanes, RunSteps, Tested};
use std::collections::{BTreeMap, HashMap};

/// Shorter rows are not worth a call.
const SHORTEST: usize = 6;

/// The entries of a table of bytes that is looked up.
const TABLE: usize = 256;

/// Parameters at most that move from run to run: more of them cost what a call does.
const MOST_MOVING: usize = 16;

/// The functions of a module, each made once.
#[derive(Default)]
pub(super) struct Wide {
    functions: HashMap<LaneProgram, FuncId>,
    texts: HashMap<FuncId, String>,
}

impl Wide {
    fn function(&mut self, module: &mut dyn Module, program: &LaneProgram) -> FuncId {
        if let Some(&known) = self.functions.get(program) {
            return known;
        }
        let assembled = assemble(program);
        let mut signature = module.make_signature();
        // What the assembler writes for, whatever the system's own convention is.
        signature.call_conv = isa::CallConv::SystemV;
        signature.params = vec![AbiParam::new(types::I64); 3 + usize::from(program.runs.is_some())];
        let name = format!("wide_{}", self.functions.len());
        let id = module.declare_function(&name, Linkage::Local, &signature).expect("a new name");
        module.define_function_bytes(id, 64, &assembled.bytes, &[]).expect("room for the code");
        self.texts.insert(id, assembled.text);
        self.functions.insert(program.clone(), id);
        id
    }

    /// Assembly of a function.
    pub(super) fn text(&self, id: FuncId) -> Option<&str> {
        self.texts.get(&id).map(String::as_str)
    }
}

/// A loop as a program, and what its parameters are.
#[derive(Debug, PartialEq)]
pub(super) struct Recording {
    program: LaneProgram,
    pointers: Vec<Pointer>,
    scalars: Vec<Parameter>,
}

/// What a pointer of a program points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pointer {
    /// The memory of a load, or the tile. Other loads may lie at a fixed offset from it.
    Load(Scalar),
    /// The element of a load that is the same throughout the run, and of others.
    Same(Scalar),
    /// The first entry of the table that a load looks up.
    Table(Scalar),
    /// The scratch row of a value.
    Row(Scalar),
    /// The lanes of the first of the loop's running results, which lie one after the other.
    Running,
    /// Where one of the row's writes goes.
    Write(usize),
}

/// What a scalar of a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parameter {
    /// A value that is the same throughout the row.
    Uniform(Scalar),
    /// A load that is the same throughout the run.
    Load(Scalar),
    /// A coordinate at the run's first point: which of its value's.
    First(Scalar, usize),
}

/// A stage's loop over a run. `inside` leaves out the conditions that hold there. `None` if it cannot be made of what there
/// is.
pub(super) fn record(row: &Row, steps: &Loop, inside: bool, vectors: Vectors) -> Option<Recording> {
    if row.axes[row.inner()] < SHORTEST && !reads_singly(row) {
        return None;
    }
    let recording = Recording { program: LaneProgram::new(vectors), pointers: vec![], scalars: vec![] };
    let recorder = Recorder { row, inside, recording, values: BTreeMap::new(), coordinates: vec![] };
    let mut recording = recorder.record(steps)?;
    if !recording.program.patterns.is_empty() {
        recording.program.pattern_runs = pattern::runs(row);
    }
    if let Some(axis) = row.run_within() {
        recording.program.runs = Some(recording.run_steps(row, axis)?);
    }
    fits(&recording.program).then_some(recording)
}

/// Whether Cranelift's code would read a load of the row element by element, which this code reads in vectors.
fn reads_singly(row: &Row) -> bool {
    row.region.instrs.iter().any(|instr| match &instr.kind {
        InstrKind::Load { index, guard, .. } => {
            matches!(row.access(index, guard), Access::Bounded | Access::Alternate)
        }
        _ => false,
    })
}

impl Recording {
    /// How far parameters move from one run to the next along this axis; `None` if one changes in another way, or many move.
    fn run_steps(&self, row: &Row, axis: usize) -> Option<RunSteps> {
        let bytes = |index: &Index, dtype: DType| {
            i32::try_from(index.strides[axis]).ok()?.checked_mul(dtype.size() as i32)
        };
        let load = |value: Scalar| match &row.region.instr(value).kind {
            InstrKind::Load { index, .. } => Some((index, row.region.instr(value).dtype)),
            _ => None,
        };
        let pointer = |pointer: &Pointer| match *pointer {
            Pointer::Load(value) | Pointer::Same(value) | Pointer::Table(value) => {
                load(value).and_then(|(index, dtype)| bytes(index, dtype))
            }
            Pointer::Running => Some(0),
            Pointer::Row(value) => {
                i32::try_from(row.axes[row.inner()] * as_lanes(row.region.instr(value).dtype).size()).ok()
            }
            Pointer::Write(at) => bytes(&row.writes[at].index, row.writes[at].dtype),
        };
        let scalar = |scalar: &Parameter| match *scalar {
            Parameter::Uniform(_) => Some(0),
            Parameter::Load(value) => load(value).filter(|(index, _)| index.strides[axis] == 0).map(|_| 0),
            Parameter::First(value, number) => match &row.region.instr(value).kind {
                InstrKind::Coordinate(index) => i32::try_from(index.strides[axis]).ok(),
                InstrKind::InRange(bounds) | InstrKind::Load { guard: bounds, .. } => {
                    i32::try_from(bounds[number].coordinate.strides[axis]).ok()
                }
                _ => None,
            },
        };
        let pointers = self.pointers.iter().map(pointer).collect::<Option<Vec<_>>>()?;
        let scalars = self.scalars.iter().map(scalar).collect::<Option<Vec<_>>>()?;
        let moving = pointers.iter().chain(&scalars).filter(|step| **step != 0).count();
        (moving <= MOST_MOVING).then_some(RunSteps { pointers, scalars })
    }
}

struct Recorder<'r> {
    row: &'r Row,
    inside: bool,
    recording: Recording,
    values: BTreeMap<Scalar, Lanes>,
    /// Indices in lanes.
    coordinates: Vec<(Index, Lanes)>,
}

/// The position of an item, which is added if it is new.
fn position<T: PartialEq>(items: &mut Vec<T>, item: T) -> u32 {
    let known = items.iter().position(|known| *known == item);
    known.unwrap_or_else(|| {
        items.push(item);
        items.len() - 1
    }) as u32
}

impl Recorder<'_> {
    fn record(mut self, steps: &Loop) -> Option<Recording> {
        for &value in steps.computes.union(&steps.reads) {
            let lanes = if steps.reads.contains(&value) {
                let at = At::start(self.pointer(Pointer::Row(value)));
                let dtype = as_lanes(self.instr(value).dtype);
                self.program().read(dtype, at)
            } else {
                self.computed(value)
            };
            self.values.insert(value, lanes?);
            // At once, so that no register waits for it.
            for (number, &reduction) in steps.running.iter().enumerate() {
                self.update_running(reduction, value, (number * RUNNING_LANES * 4) as i32)?;
            }
        }
        for &value in &steps.spills {
            let lanes = self.operand(value)?;
            let pointer = self.pointer(Pointer::Row(value));
            let dtype = as_lanes(self.instr(value).dtype);
            self.program().write(dtype, lanes, pointer, 1)?;
        }
        for &at in &steps.writes {
            self.write(at)?;
        }
        let Recording { program, pointers, scalars } = self.recording;
        Some(Recording { program: program.without_dead_steps(), pointers, scalars })
    }

    fn instr(&self, value: Scalar) -> &Instr {
        self.row.region.instr(value)
    }

    fn program(&mut self) -> &mut LaneProgram {
        &mut self.recording.program
    }

    fn pointer(&mut self, pointer: Pointer) -> u32 {
        let at = position(&mut self.recording.pointers, pointer);
        self.recording.program.pointers = self.recording.pointers.len() as u32;
        at
    }

    /// Whether a load's memory is always there, and nothing writes it meanwhile.
    fn is_fixed(&self, value: Scalar, guard: &[Bound]) -> bool {
        guard.is_empty() && !self.row.is_clobbered(value)
    }

    /// Where a load's elements are: at a pointer of its own, or at a fixed offset from that of another load, which walks the same buffer alike.
    fn place(&mut self, value: Scalar, kind: fn(Scalar) -> Pointer) -> At {
        let row = self.row;
        let load = |value: Scalar| match &row.region.instr(value).kind {
            // Where a bound that does not vary fails, a pointer is to zeros.
            InstrKind::Load { buffer, index, guard } if guard.iter().all(|bound| row.moves(bound)) => {
                Some((buffer, index))
            }
            _ => None,
        };
        let offset = |known: &Pointer| {
            let (Pointer::Load(other) | Pointer::Same(other)) = *known else { return None };
            let ((buffer, index), (of_other, from)) = (load(value)?, load(other)?);
            let alike = *known == kind(other)
                && buffer == of_other
                && index.strides == from.strides
                && index.indirect == from.indirect;
            let elements = i32::try_from(index.offset - from.offset).ok().filter(|_| alike)?;
            elements.checked_mul(row.region.instr(value).dtype.size() as i32)
        };
        let known = self.recording.pointers.iter().enumerate();
        let found = known.filter_map(|(at, known)| Some((at as u32, offset(known)?))).next();
        match found {
            Some((pointer, offset)) => At { pointer, offset },
            None => At::start(self.pointer(kind(value))),
        }
    }

    fn scalar(&mut self, scalar: Parameter) -> Lanes {
        Lanes::Scalar(position(&mut self.recording.scalars, scalar))
    }

    /// A value that is used at the current position.
    fn operand(&mut self, value: Scalar) -> Option<Lanes> {
        if let Some(&lanes) = self.values.get(&value) {
            return Some(lanes);
        }
        let instr = self.instr(value);
        let (kind, dtype) = (&instr.kind, instr.dtype);
        match kind {
            _ if dtype == DType::F64 => None,
            InstrKind::Constant(constant) => Some(Lanes::Constant(constant_bits(constant.value(), dtype))),
            _ => Some(self.scalar(Parameter::Uniform(value))),
        }
    }

    /// A value that the loop computes.
    fn computed(&mut self, value: Scalar) -> Option<Lanes> {
        let row = self.row;
        let instr = row.region.instr(value);
        match &instr.kind {
            _ if instr.dtype == DType::F64 => None,
            InstrKind::Load { index, guard, .. } => match row.access(index, guard) {
                Access::Scattered => self.gathered(value, index, guard),
                Access::Splat => match self.is_fixed(value, guard) && instr.dtype.size() == 4 {
                    true => {
                        let At { pointer, offset } = self.place(value, Pointer::Same);
                        Some(Lanes::Same { pointer, offset })
                    }
                    false => Some(self.scalar(Parameter::Load(value))),
                },
                Access::Contiguous => {
                    let at = self.place(value, Pointer::Load);
                    self.program().read(instr.dtype, at)
                }
                Access::Bounded => {
                    let (at, bounds) = self.bounded(value, guard)?;
                    self.program().read_within(&bounds, instr.dtype, at)
                }
                Access::Alternate => {
                    let (at, lower, upper) = self.bounded_by_halves(value, guard)?;
                    self.program().read_alternate([&lower, &upper], instr.dtype, at)
                }
            },
            InstrKind::Producer(_) => {
                let at = At::start(self.pointer(Pointer::Load(value)));
                let lanes = self.program().read(DType::F32, at)?;
                self.program().convert(lanes, DType::F32, instr.dtype)
            }
            InstrKind::Coordinate(index) => {
                let index = self.coordinate(value, 0, index)?;
                self.program().convert(index, DType::I32, instr.dtype)
            }
            InstrKind::InRange(bounds) => self.in_range(value, bounds),
            InstrKind::Select(..) if row.is_chosen_load(value) => {
                let at = At::start(self.pointer(Pointer::Load(value)));
                self.program().read(instr.dtype, at)
            }
            InstrKind::Select(condition, x, _) if self.inside && row.inside.contains(condition) => {
                self.operand(*x)
            }
            kind => {
                let operands: Option<Vec<_>> = kind.operands().iter().map(|&x| self.operand(x)).collect();
                self.elementwise(instr, &operands?)
            }
        }
    }

    /// An index of a value, the one with this number, in each lane.
    fn coordinate(&mut self, value: Scalar, number: usize, index: &Index) -> Option<Lanes> {
        if let Some((_, known)) = self.coordinates.iter().find(|(known, _)| known == index) {
            return Some(*known);
        }
        let row = self.row;
        let (varying, fixed): (Vec<Indirect>, Vec<Indirect>) =
            index.indirect.iter().partition(|term| row.varies(term.value));
        let first = match fixed.is_empty() && index.strides.iter().all(|&stride| stride == 0) {
            true => Lanes::Constant(index.offset as u32),
            false => self.scalar(Parameter::First(value, number)),
        };
        let stride = index.strides[row.inner()] as u32;
        let mut lanes = self.program().coordinates(first, stride);
        for term in &varying {
            let looked_up = self.clamped(term)?;
            lanes = match lanes {
                Lanes::Constant(0) => looked_up,
                lanes => self.program().binary(Binary::Add, DType::U32, looked_up, lanes)?,
            };
        }
        self.coordinates.push((index.clone(), lanes));
        Some(lanes)
    }

    /// `clamp(value, 0, limit − 1)·stride` of a value that varies.
    fn clamped(&mut self, term: &Indirect) -> Option<Lanes> {
        let (value, dtype) = (self.operand(term.value)?, self.instr(term.value).dtype);
        let last = Lanes::Constant((term.limit as u32).wrapping_sub(1));
        let program = self.program();
        let value = match dtype {
            DType::I32 => program.binary(Binary::Max, dtype, value, Lanes::Constant(0))?,
            _ => value,
        };
        let value = program.binary(Binary::Min, dtype, value, last)?;
        match term.stride {
            1 => Some(value),
            stride => program.binary(Binary::Mul, DType::U32, value, Lanes::Constant(stride as u32)),
        }
    }

    /// Elements that lie equally far apart.
    fn gathered(&mut self, value: Scalar, index: &Index, guard: &[Bound]) -> Option<Lanes> {
        let row = self.row;
        if index.indirect.iter().any(|term| row.varies(term.value)) {
            return self.looked_up(value, index, guard);
        }
        let stride = self.stride(index)?;
        let pointer = self.pointer(Pointer::Load(value));
        let bounds = self.tested(value, guard, |_| true)?;
        self.program().gather(&bounds, row.region.instr(value).dtype, pointer, stride)
    }

    /// How far apart the elements of a run are, if all of it lies within 31 bits.
    fn stride(&self, index: &Index) -> Option<i32> {
        let row = self.row;
        let (stride, count) = (index.strides[row.inner()], row.axes[row.inner()].next_multiple_of(64));
        let bytes = stride.checked_mul(4 * count as i64)?;
        i32::try_from(stride).ok().filter(|_| i32::try_from(bytes).is_ok())
    }

    /// Bytes of a table whose numbers are below 256 by themselves.
    fn looked_up(&mut self, value: Scalar, index: &Index, guard: &[Bound]) -> Option<Lanes> {
        let [Indirect { value: number, limit: TABLE, stride: 1 }] = index.indirect[..] else { return None };
        let InstrKind::Binary(Binary::And, x, y) = self.instr(number).kind else { return None };
        let is_mask = |value: Scalar| match &self.instr(value).kind {
            InstrKind::Constant(mask) => (0.0..TABLE as f64).contains(&mask.value()),
            _ => false,
        };
        let is_of_bytes = self.instr(value).dtype == DType::I8 && (is_mask(x) || is_mask(y));
        let is_fixed = self.is_fixed(value, guard) && index.strides.iter().all(|&stride| stride == 0);
        if !is_of_bytes || !is_fixed {
            return None;
        }
        let (numbers, pointer) = (self.operand(number)?, self.pointer(Pointer::Table(value)));
        Some(self.program().look_up(pointer, numbers))
    }

    /// Where a load begins, and its bounds that vary. Where one of the others fails, the pointer is to zeros.
    fn bounded(&mut self, value: Scalar, guard: &[Bound]) -> Option<(At, Tested)> {
        let (at, row) = (self.place(value, Pointer::Load), self.row);
        Some((at, self.tested(value, guard, |bound| row.moves(bound))?))
    }

    /// The same for every other element: bounds of both halves of the lanes, whose elements lie two apart if they are of patterns.
    fn bounded_by_halves(&mut self, value: Scalar, guard: &[Bound]) -> Option<(At, Tested, Tested)> {
        let (at, row) = (self.place(value, Pointer::Load), self.row);
        let spread =
            self.pattern(guard, |bound| row.moves(bound)).and_then(|bits| self.program().spread(&bits));
        if let Some([lower, upper]) = spread {
            return Some((at, lower, upper));
        }
        let tested = self.below(value, guard, |bound| row.moves(bound))?;
        Some((at, tested.clone(), tested))
    }

    /// How lanes test those of a value's bounds. One comparison takes no longer than a pattern.
    fn tested(&mut self, value: Scalar, bounds: &[Bound], are: impl Fn(&Bound) -> bool) -> Option<Tested> {
        let is_simple = bounds.iter().filter(|bound| are(bound)).count() == 1;
        let bits = if is_simple { None } else { self.pattern(bounds, &are) };
        let pattern = bits.and_then(|bits| self.program().pattern(bits));
        pattern.or_else(|| self.below(value, bounds, are))
    }

    /// Where those of some bounds hold, if that is known before the loop runs.
    fn pattern(&self, bounds: &[Bound], are: impl Fn(&Bound) -> bool) -> Option<Vec<u16>> {
        let is_known = self.row.is_uncut && self.recording.program.vectors != Vectors::Eight;
        let all: Vec<_> = bounds.iter().filter(|bound| are(bound)).collect();
        is_known.then(|| pattern::of(self.row, &all))?
    }

    /// Comparisons of the coordinates of those of a value's bounds.
    fn below(&mut self, value: Scalar, bounds: &[Bound], are: impl Fn(&Bound) -> bool) -> Option<Tested> {
        let bounds = bounds.iter().enumerate().filter(|(_, bound)| are(bound));
        let below = bounds.map(|(number, bound)| {
            Some((self.coordinate(value, number, &bound.coordinate)?, bound.extent as u32))
        });
        below.collect::<Option<_>>().map(Tested::Below)
    }

    fn in_range(&mut self, value: Scalar, bounds: &[Bound]) -> Option<Lanes> {
        let tested = self.tested(value, bounds, |_| true)?;
        (!bounds.is_empty()).then(|| self.program().within(&tested))
    }

    fn elementwise(&mut self, instr: &Instr, operands: &[Lanes]) -> Option<Lanes> {
        let row = self.row;
        let of = row.region.instr(*instr.kind.operands().first()?).dtype;
        let program = self.program();
        match (&instr.kind, operands) {
            (InstrKind::Unary(op, _), &[x]) => program.unary(*op, instr.dtype, x),
            (InstrKind::Binary(op, ..), &[x, y]) => program.binary(*op, instr.dtype, x, y),
            (InstrKind::Compare(op, ..), &[x, y]) => Some(program.compare(*op, of, x, y)),
            (InstrKind::Select(..), &[mask, x, y]) => Some(program.choose(mask, x, y)),
            (InstrKind::Cast(_), &[x]) => program.convert(x, of, instr.dtype),
            _ => None,
        }
    }

    /// If this value is what is reduced, combines it with what earlier positions left in the same lanes, which begin this many bytes behind those of the
    /// loop's first running result.
    fn update_running(&mut self, reduction: Scalar, value: Scalar, offset: i32) -> Option<()> {
        let InstrKind::Reduce(op, _, x) = self.instr(reduction).kind else { unreachable!("a reduction") };
        if x != value {
            return Some(());
        }
        let (value, dtype) = (self.operand(x)?, self.instr(x).dtype);
        let at = At { pointer: self.pointer(Pointer::Running), offset };
        let program = self.program();
        let old = program.read_lanes(at);
        let new = program.combine(op, dtype, old, value)?;
        program.write_lanes(new, at);
        Some(())
    }

    fn write(&mut self, at: usize) -> Option<()> {
        let row = self.row;
        let Write { value, dtype, index, mode, .. } = &row.writes[at];
        let is_scattered = index.indirect.iter().any(|term| row.varies(term.value));
        let stride = self.stride(index).filter(|&stride| stride != 0 && !is_scattered)?;
        let value = self.operand(*value)?;
        let pointer = self.pointer(Pointer::Write(at));
        let program = self.program();
        let read = |program: &mut LaneProgram| match stride {
            1 => program.read(*dtype, At::start(pointer)),
            _ => program.gather(&Tested::Below(vec![]), *dtype, pointer, stride),
        };
        let value = match mode {
            WriteMode::Set => value,
            WriteMode::Add => {
                let old = read(program)?;
                program.binary(Binary::Add, *dtype, old, value)?
            }
            // Running results of a row lie one after the other.
            WriteMode::Accumulate(op) => {
                let old = program.read(*dtype, At::start(pointer)).filter(|_| stride == 1)?;
                program.combine(*op, *dtype, old, value)?
            }
        };
        program.write(*dtype, value, pointer, stride)
    }
}

/// The bits that a constant has in a lane.
fn constant_bits(value: f64, dtype: DType) -> u32 {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 | DType::F64 => (value as f32).to_bits(),
        DType::I32 | DType::U32 | DType::I8 => value as i64 as u32,
        DType::Bool => u32::from(value == 0.0).wrapping_sub(1),
    }
}

/// Where a loop's values come from and go to.
pub(super) struct Ends<'l> {
    /// What computed values start from.
    pub(super) sources: &'l BTreeMap<Scalar, Source>,
    /// Scratch rows of values that are read or kept.
    pub(super) rows: &'l BTreeMap<Scalar, Value>,
    /// The first of the loop's running results.
    pub(super) running: Option<Value>,
    /// Writes and where they go.
    pub(super) targets: &'l [(usize, Source)],
}

/// A stage's loop: everywhere, and where the row's conditions hold.
#[derive(Debug)]
pub(super) struct WideLoop {
    pub(super) everywhere: Recording,
    pub(super) inside: Option<Recording>,
}

impl WideLoop {
    /// What it computes with.
    pub(super) fn vectors(&self) -> Vectors {
        self.everywhere.program.vectors
    }

    /// Whether it has patterns, which are of points from the first one on.
    pub(super) fn knows_points(&self) -> bool {
        let mut all = std::iter::once(&self.everywhere).chain(&self.inside);
        all.any(|recording| !recording.program.patterns.is_empty())
    }

    /// Whether a value's source is a parameter.
    pub(super) fn takes(&self, value: Scalar) -> bool {
        std::iter::once(&self.everywhere).chain(&self.inside).any(|recording| {
            recording.pointers.contains(&Pointer::Load(value))
                || recording.scalars.iter().any(|scalar| match *scalar {
                    Parameter::Load(other) | Parameter::First(other, _) => other == value,
                    Parameter::Uniform(_) => false,
                })
        })
    }
}

impl Emitter<'_, '_, '_> {
    /// Runs a recorded loop over one run.
    pub(super) fn wide_loop(&mut self, wide: &WideLoop, ends: &Ends<'_>) {
        let (mut start, end) = (self.code.int(0), self.inner_count());
        if let (Some(inside), Some(recording)) = (self.at.inside, &wide.inside) {
            self.call_wide(recording, ends, start, inside);
            start = inside;
        }
        self.call_wide(&wide.everywhere, ends, start, end);
    }

    /// Where the first element of a load is.
    fn load_address(&mut self, value: Scalar) -> Value {
        let instr = self.row.region.instr(value);
        let InstrKind::Load { buffer, index, .. } = &instr.kind else { unreachable!("a load") };
        self.address(buffer.0 as usize, instr.dtype, index)
    }

    fn call_wide(&mut self, recording: &Recording, ends: &Ends<'_>, start: Value, end: Value) {
        let pointers = recording.pointers.len();
        let bytes = pointers * 8 + recording.scalars.len() * 4;
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes as u32, 3);
        let slot = self.code.b.create_sized_stack_slot(data);
        let parameters = self.code.b.ins().stack_addr(types::I64, slot, 0);
        for (at, pointer) in recording.pointers.iter().enumerate() {
            let address = match pointer {
                Pointer::Load(value) => ends.sources[value].address(),
                Pointer::Same(value) | Pointer::Table(value) => self.load_address(*value),
                Pointer::Row(value) => ends.rows[value],
                Pointer::Running => ends.running.expect("a loop that reduces has lanes"),
                Pointer::Write(at) => {
                    let target = ends.targets.iter().find(|(write, _)| write == at);
                    target.expect("the loop does its writes").1.address()
                }
            };
            self.code.b.ins().store(flags(), address, parameters, (at * 8) as i32);
        }
        for (at, scalar) in recording.scalars.iter().enumerate() {
            let scalar = match (scalar, ends) {
                (Parameter::Uniform(value), _) => self.uniform(*value),
                (Parameter::Load(value), Ends { sources, .. }) => sources[value].splat(),
                (Parameter::First(value, number), Ends { sources, .. }) => {
                    let first = sources[value].first(*number);
                    self.code.b.ins().ireduce(types::I32, first)
                }
            };
            self.code.b.ins().store(flags(), scalar, parameters, (pointers * 8 + at * 4) as i32);
        }
        let runs = self.row.run_within().map(|axis| self.code.int(self.row.axes[axis] as i64));
        let operands: Vec<_> = [parameters, start, end].into_iter().chain(runs).collect();
        self.code.call_wide(&recording.program, &operands);
    }
}

impl Code<'_, '_> {
    fn call_wide(&mut self, program: &LaneProgram, operands: &[Value]) {
        let wide = self.wide.as_deref_mut().expect("loops are recorded where they can run");
        let function = wide.function(self.module, program);
        let reference = self.module.declare_func_in_func(function, self.b.func);
        // The code may lie farther away than a near call reaches.
        self.b.func.dfg.ext_funcs[reference].colocated = false;
        self.b.ins().call(reference, operands);
    }
}
