//! The loop-level language between the graph and the back ends: forms and scalar regions.
//!
//! A kernel runs over a [`Domain`] of three groups of axes, outer × rows × columns. What it computes at a point is
//! a [`Region`]: a small SSA program over scalars that loads through [`Index`] maps. Views of the graph (reshape,
//! permute, broadcast, slice) do not exist here; they have become strides.
//!
//! * [`Form::Map`]: every point alone.
//! * [`Form::Reduce`]: [`InstrKind::Reduce`] appears. A reduction over *columns* gives a value of the row, which
//!   later instructions may use: `softmax` is one region with two of them. A reduction over *rows* (a bias
//!   gradient) can only be stored.
//! * [`Form::Loop`]: a plan of its own that runs several times.
//! * [`Form::Collective`]: an exchange of whole buffers between ranks.
//! * [`Form::Contraction`]: [`InstrKind::Producer`] is an entry of a product over further axes, known before the
//!   region runs on it. [`Consumer`]s multiply values of the region again, along the columns or across the rows, so
//!   that what lies between two products is never in memory. Reductions over columns may stand in between.
//!
//! ```text
//! reduce softmax over rows [98304] columns [256]
//!   %0 = load scores[256·r0 + c0] : f32
//!   %1 = reduce.columns max %0 : f32
//!   %2 = sub %0 %1 : f32
//!   %3 = exp %2 : f32
//!   %4 = reduce.columns sum %3 : f32
//!   %5 = div %3 %4 : f32
//!   store %5 → weights[256·r0 + c0]
//! ```
//!
//! Invariants, checked by [`verify`]: operands come before their users and have the types that these expect; every
//! buffer and domain axis exists; a store, and a load that no bound guards, stays inside its buffer (indirect terms
//! are clamped, so that this is known); row reductions are only stored; operands of a product keep to their side; a
//! temporary is written before it is read; kernel names are unique.

mod bucket;
mod collective;
mod cost;
mod index;
mod interpret;
mod loops;
mod plan;
mod print;
mod program_plan;
mod verify;
mod writer;

pub use bucket::Bucket;
pub use collective::CollectiveCall;
pub use index::{Bound, Index, Indirect};
pub use interpret::{Interpreter, interpret};
pub use loops::{BufferOffset, Carried, Iteration, Loop, Transfer, Window};
pub use plan::{Place, Plan};
pub use program_plan::{Accepts, Microbatches, ProgramPlan, Shard, any_kernel};
pub use verify::verify;
pub use writer::{Entered, KernelWriter, Refusal, reshaped};

use crate::{Binary, Compare, DType, Literal, Origin, ReduceOp, TensorType, Unary, ValueId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A buffer of a [`KernelGraph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct BufferId(pub u32);

impl From<BufferId> for usize {
    /// Its place among the graph's buffers.
    fn from(buffer: BufferId) -> usize {
        buffer.0 as usize
    }
}

/// The result of an instruction of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Scalar(pub u32);

/// What a buffer holds over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferRole {
    /// Given by the caller for each run.
    Input,
    /// Kept from run to run: parameters, optimizer state.
    State,
    /// Lives within one run; the plan gives it a place in the arena.
    Temporary,
}

/// A dense row-major tensor in memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Buffer {
    /// Name of the input, or one made from scope and op.
    pub name: String,
    /// Element type and shape.
    pub ty: TensorType,
    /// What it holds over time.
    pub role: BufferRole,
    /// The state that it is the next value of, in the same memory: its kernel writes what changes, and the rest is what the
    /// state holds. Nothing else reads the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continues: Option<BufferId>,
}

/// The program after fusion: kernels in execution order over buffers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KernelGraph {
    /// The graph's name.
    pub name: String,
    /// All buffers.
    pub buffers: Vec<Buffer>,
    /// In execution order.
    pub kernels: Vec<Kernel>,
    /// Named results: buffer and the shape to show it in.
    pub outputs: Vec<(String, BufferId, TensorType)>,
    /// After a run, the state buffer takes the value of the other one (which may be the same buffer).
    pub updates: Vec<(BufferId, BufferId)>,
    /// Fusions that were considered and not made.
    pub refusals: Vec<RefusedFusion>,
    /// The nodes that kernels cover and the inputs, by id.
    #[serde(skip)]
    pub nodes: BTreeMap<ValueId, CoveredNode>,
    /// The node whose value each buffer holds. Memory that loops need for themselves holds none.
    #[serde(skip)]
    pub values: BTreeMap<BufferId, ValueId>,
}

/// A node of the graph that fusion cut.
#[derive(Debug, Clone, PartialEq)]
pub struct CoveredNode {
    /// The op's name.
    pub op: &'static str,
    /// Where it comes from.
    pub origin: Origin,
}

/// An edge that stayed a memory access, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RefusedFusion {
    /// The value that is written to memory.
    pub producer: String,
    /// The op that reads it back.
    pub consumer: String,
    /// Bytes that fusing would have saved.
    pub bytes: usize,
    /// The planner's reason.
    pub reason: String,
    /// Both as nodes of the graph that fusion cut.
    #[serde(skip)]
    pub edge: (ValueId, ValueId),
}

impl fmt::Display for RefusedFusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}: {}", self.producer, self.consumer, self.reason)
    }
}

/// One launch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kernel {
    /// Unique within its graph; made from the scope and the ops it covers.
    pub name: String,
    /// The loop structure.
    pub form: Form,
    /// The points it runs over.
    pub domain: Domain,
    /// What happens at a point.
    pub region: Region,
    /// What is written.
    pub stores: Vec<Store>,
    /// The nodes that this kernel computes, of the graph that fusion cut (in which values that are computed again have
    /// clones).
    pub covers: Vec<ValueId>,
}

/// A loop structure.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Every point alone.
    Map,
    /// Rows or columns are reduced.
    Reduce,
    /// Points are entries of products.
    Contraction(Contraction),
    /// Kernels of its own that run several times; it has neither region nor stores.
    Loop(Loop),
    /// What ranks exchange; it has neither region nor stores.
    Collective(CollectiveCall),
}

impl Form {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Form::Map => "map",
            Form::Reduce => "reduce",
            Form::Contraction(_) => "contraction",
            Form::Loop(_) => "loop",
            Form::Collective(_) => "collective",
        }
    }

    fn operands_mut(&mut self) -> impl Iterator<Item = &mut Operand> {
        let (products, consumers) = match self {
            Form::Contraction(contraction) => (&mut contraction.products[..], &mut contraction.consumers[..]),
            Form::Map | Form::Reduce | Form::Loop(_) | Form::Collective(_) => (&mut [][..], &mut [][..]),
        };
        let products = products.iter_mut().flat_map(|product| [&mut product.a, &mut product.b]);
        products.chain(consumers.iter_mut().map(|consumer| &mut consumer.with))
    }
}

/// Products over one domain, and what becomes of the region's values beside stores.
///
/// ```text
/// contraction attention over outer [384] rows [256] columns [256], columns ≤ row
///   product 0 = q · kᵀ
///   %0 = product 0 … %9 = div %7 %8            (scale, mask, softmax of the row)
///   contract.columns %9 · v → out
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Contraction {
    /// One or more.
    pub products: Vec<Product>,
    /// Second products, of values of the region.
    pub consumers: Vec<Consumer>,
    /// Columns that matter, if not all do.
    pub band: Option<Band>,
    /// Conditions of the region that hold wherever `column ≤ row + upper` of the band, so that a back end need not
    /// compute them where a whole block lies there.
    pub inside: Vec<Scalar>,
}

impl From<Vec<Product>> for Contraction {
    fn from(products: Vec<Product>) -> Self {
        Contraction { products, ..Contraction::default() }
    }
}

/// `O[outer, row, p] = Σ_column R[outer, row, column] · W[outer, p, column]` along the columns, or
/// `O[outer, column, p] = Σ_row R[outer, row, column] · W[outer, p, row]` across the rows; accumulated as products are.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Consumer {
    /// R.
    pub value: Scalar,
    /// What is summed over.
    pub along: Direction,
    /// Extents of the axes p.
    pub p: Vec<usize>,
    /// W. Coordinates: the kernel's axes, then those of p. Does not depend on rows (along columns) or on columns (across
    /// rows).
    pub with: Operand,
    /// The type of an entry of O.
    pub dtype: DType,
    /// Where O is stored.
    pub buffer: BufferId,
    /// Offset in elements over the kernel's axes, then those of p; does not depend on what is summed over.
    pub index: Index,
}

/// In a domain of one row axis and one column axis: the columns c of row r with `r + lower ≤ c ≤ r + upper`. Outside of
/// it, every reduction over columns reduces its neutral element and every consumer multiplies zeros, so that a back end
/// need not go there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Band {
    /// `None`: from the first column on.
    pub lower: Option<i64>,
    /// `None`: to the last column.
    pub upper: Option<i64>,
}

impl Band {
    /// The columns, of `columns`, that some of these rows need.
    pub fn columns(&self, rows: std::ops::Range<usize>, columns: usize) -> std::ops::Range<usize> {
        let clamp = |column: i64| column.clamp(0, columns as i64) as usize;
        let first = self.lower.map_or(0, |lower| clamp(rows.start as i64 + lower));
        let end = self.upper.map_or(columns, |upper| clamp(rows.end as i64 + upper));
        first.min(end)..end
    }
}

/// `S[outer, row, column] = Σ_k A[outer, row, k] · B[outer, column, k]`, accumulated in `f32` at least (integers: in
/// themselves).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Product {
    /// Extents of the summed axes.
    pub k: Vec<usize>,
    /// Coordinates: the kernel's axes, then those of k. Does not depend on columns.
    pub a: Operand,
    /// Coordinates: the kernel's axes, then those of k. Does not depend on rows.
    pub b: Operand,
    /// The type of an entry of S.
    pub dtype: DType,
}

/// One side of a product: a prologue over the domain extended by the axes of k.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Operand {
    /// The prologue.
    pub region: Region,
    /// Its result.
    pub value: Scalar,
}

impl Product {
    /// Whether it multiplies bytes in memory, which are read as wider numbers.
    pub fn is_of_bytes(&self) -> bool {
        [&self.a, &self.b].iter().all(|operand| operand.plain().is_some_and(|load| load.dtype == DType::I8))
    }
}

impl Operand {
    /// The load that this operand is, perhaps converted; none if it is computed from more.
    pub fn plain(&self) -> Option<&Instr> {
        let value = match self.region.instr(self.value).kind {
            InstrKind::Cast(kept) => kept,
            _ => self.value,
        };
        Some(self.region.instr(value)).filter(|instr| matches!(instr.kind, InstrKind::Load { .. }))
    }
}

/// Extents of the kernel's axes, in three consecutive groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Domain {
    /// Extents, outer axes first, then rows, then columns.
    pub axes: Vec<usize>,
    /// How many axes are outer (batch) axes.
    pub outer: usize,
    /// How many axes are row axes.
    pub rows: usize,
}

impl Domain {
    /// A domain whose axes are all columns, as a map's.
    pub fn flat(axes: impl Into<Vec<usize>>) -> Self {
        Domain { axes: axes.into(), outer: 0, rows: 0 }
    }

    /// The axes that belong to the outer group.
    pub fn outer_axes(&self) -> std::ops::Range<usize> {
        0..self.outer
    }

    /// The axes that belong to the rows.
    pub fn row_axes(&self) -> std::ops::Range<usize> {
        self.outer..self.outer + self.rows
    }

    /// The axes that belong to the columns.
    pub fn column_axes(&self) -> std::ops::Range<usize> {
        self.outer + self.rows..self.axes.len()
    }

    /// The number of points.
    pub fn points(&self) -> usize {
        self.axes.iter().product()
    }

    /// The number of points along some of the axes.
    pub fn extent(&self, axes: std::ops::Range<usize>) -> usize {
        self.axes[axes].iter().product()
    }
}

/// A straight-line program over scalars; [`Scalar`] `i` is the result of instruction `i`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Region {
    /// The instructions, operands before users.
    pub instrs: Vec<Instr>,
}

impl Region {
    /// Whether a value is a byte that was widened.
    pub fn is_widened_byte(&self, scalar: Scalar) -> bool {
        matches!(self.instr(scalar).kind, InstrKind::Cast(from) if self.instr(from).dtype == DType::I8)
    }

    /// The instruction that computes `scalar`.
    pub fn instr(&self, scalar: Scalar) -> &Instr {
        &self.instrs[scalar.0 as usize]
    }

    /// Appends an instruction, or finds an equal one that is already there, or another one that has its value.
    pub fn push(&mut self, kind: InstrKind, dtype: DType) -> Scalar {
        if let Some(loaded) = self.loaded_or_zero(&kind) {
            return loaded;
        }
        let instr = Instr { kind, dtype };
        let found = self.instrs.iter().position(|other| *other == instr);
        Scalar(found.unwrap_or_else(|| {
            self.instrs.push(instr);
            self.instrs.len() - 1
        }) as u32)
    }

    /// The load that a choice between it and zero is: outside of its guard it is zero itself.
    fn loaded_or_zero(&self, kind: &InstrKind) -> Option<Scalar> {
        let InstrKind::Select(condition, x, otherwise) = kind else { return None };
        let kinds = [condition, x, otherwise].map(|&value| &self.instr(value).kind);
        let [InstrKind::InRange(bounds), InstrKind::Load { guard, .. }, InstrKind::Constant(zero)] = kinds
        else {
            return None;
        };
        let is_zero = zero.value() == 0.0 && zero.value().is_sign_positive();
        (is_zero && bounds.iter().all(|bound| guard.contains(bound))).then_some(*x)
    }

    /// The roots, and the values that are needed to compute them, except those that are known.
    pub fn needed(
        &self,
        roots: impl IntoIterator<Item = Scalar>,
        is_known: impl Fn(Scalar) -> bool,
    ) -> BTreeSet<Scalar> {
        let mut found = BTreeSet::new();
        let mut open: Vec<_> = roots.into_iter().collect();
        while let Some(value) = open.pop() {
            if !is_known(value) && found.insert(value) {
                open.extend(self.instr(value).kind.operands());
            }
        }
        found
    }

    /// Whether a value differs between points that differ along these axes of the domain only. A reduction does not
    /// vary along what it reduces.
    pub fn varies(&self, scalar: Scalar, axes: std::ops::Range<usize>, domain: &Domain) -> bool {
        let mut varies: Vec<bool> = Vec::with_capacity(scalar.0 as usize + 1);
        for instr in &self.instrs[..=scalar.0 as usize] {
            let direct = match &instr.kind {
                InstrKind::Coordinate(index) => index.varies(axes.clone()),
                InstrKind::Random { element, .. } => element.varies(axes.clone()),
                InstrKind::Load { index, guard, .. } => {
                    index.varies(axes.clone())
                        || guard.iter().any(|bound| bound.coordinate.varies(axes.clone()))
                }
                InstrKind::InRange(bounds) => {
                    bounds.iter().any(|bound| bound.coordinate.varies(axes.clone()))
                }
                InstrKind::Producer(_) => true,
                InstrKind::Constant(_)
                | InstrKind::Unary(..)
                | InstrKind::Binary(..)
                | InstrKind::Compare(..)
                | InstrKind::Select(..)
                | InstrKind::Cast(_)
                | InstrKind::Reduce(..) => false,
            };
            let inherited = || instr.kind.operands().iter().any(|operand| varies[operand.0 as usize]);
            let reduced = match instr.kind {
                InstrKind::Reduce(_, Direction::Columns, _) => domain.column_axes(),
                InstrKind::Reduce(_, Direction::Rows, _) => domain.row_axes(),
                _ => 0..0,
            };
            let constant = axes.start >= reduced.start && axes.end <= reduced.end;
            varies.push(!constant && (direct || inherited()));
        }
        varies[scalar.0 as usize]
    }
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Instr {
    /// What it does.
    pub kind: InstrKind,
    /// The type of its result. Arithmetic on `bf16` and `f16` is done in `f32` and rounded after every instruction.
    pub dtype: DType,
}

/// The direction of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Along the row: one result a row.
    Columns,
    /// Across the rows: one result for each outer and column coordinate.
    Rows,
}

/// What an instruction does.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InstrKind {
    /// A number.
    Constant(Literal),
    /// An affine function of the point's coordinates, as a number.
    Coordinate(Index),
    /// The element of a buffer at a linear offset; zero where a bound is not met.
    Load {
        /// The buffer.
        buffer: BufferId,
        /// Offset in elements.
        index: Index,
        /// All must hold, else the result is 0 and memory is not touched.
        guard: Vec<Bound>,
    },
    /// Philox bits of one element.
    Random {
        /// Seed (`u32`).
        seed: Scalar,
        /// Step (`u32`).
        step: Scalar,
        /// Identity of the random node.
        node: u32,
        /// Which element.
        element: Index,
    },
    /// The entry of product `i` of a contraction.
    Producer(usize),
    /// An elementwise op of one operand.
    Unary(Unary, Scalar),
    /// An elementwise op of two operands of one type.
    Binary(Binary, Scalar, Scalar),
    /// A comparison of two operands of one type.
    Compare(Compare, Scalar, Scalar),
    /// `if condition { a } else { b }`.
    Select(Scalar, Scalar, Scalar),
    /// A conversion.
    Cast(Scalar),
    /// Whether all bounds hold.
    InRange(Vec<Bound>),
    /// A reduction over all columns or all rows.
    Reduce(ReduceOp, Direction, Scalar),
}

impl InstrKind {
    /// The operands, those inside index maps included.
    pub fn operands(&self) -> Vec<Scalar> {
        let indirect = |index: &Index| index.indirect.iter().map(|term| term.value).collect::<Vec<_>>();
        let bounds =
            |bounds: &[Bound]| bounds.iter().flat_map(|b| indirect(&b.coordinate)).collect::<Vec<_>>();
        match self {
            InstrKind::Constant(_) | InstrKind::Producer(_) => vec![],
            InstrKind::Coordinate(index) => indirect(index),
            InstrKind::Load { index, guard, .. } => [indirect(index), bounds(guard)].concat(),
            InstrKind::Random { seed, step, element, .. } => [vec![*seed, *step], indirect(element)].concat(),
            InstrKind::Unary(_, x) | InstrKind::Cast(x) | InstrKind::Reduce(_, _, x) => vec![*x],
            InstrKind::Binary(_, x, y) | InstrKind::Compare(_, x, y) => vec![*x, *y],
            InstrKind::Select(c, x, y) => vec![*c, *x, *y],
            InstrKind::InRange(b) => bounds(b),
        }
    }
}

/// How a store treats what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreMode {
    /// Overwrites.
    Set,
    /// Adds, in the order of the points (scatter-add). The buffer is cleared before the kernel runs. Along axes
    /// on which the index is indirect the back end keeps that order, whatever the number of threads.
    Add,
}

/// A write of a region's value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Store {
    /// What is written: at every point, or once a row where neither value nor index vary along columns.
    pub value: Scalar,
    /// Where.
    pub buffer: BufferId,
    /// Offset in elements.
    pub index: Index,
    /// Overwriting or adding.
    pub mode: StoreMode,
}

impl Kernel {
    /// The products of a contraction; none of the other forms.
    pub fn products(&self) -> &[Product] {
        match &self.form {
            Form::Contraction(contraction) => &contraction.products,
            Form::Map | Form::Reduce | Form::Loop(_) | Form::Collective(_) => &[],
        }
    }

    /// The loop that this kernel is, if it is one.
    pub fn repeated(&self) -> Option<&Loop> {
        match &self.form {
            Form::Loop(repeated) => Some(repeated),
            Form::Map | Form::Reduce | Form::Contraction(_) | Form::Collective(_) => None,
        }
    }

    /// The exchange that this kernel is, if it is one.
    pub fn collective(&self) -> Option<&CollectiveCall> {
        match &self.form {
            Form::Collective(call) => Some(call),
            Form::Map | Form::Reduce | Form::Contraction(_) | Form::Loop(_) => None,
        }
    }

    /// The consumers of a contraction; none of the other forms.
    pub fn consumers(&self) -> &[Consumer] {
        match &self.form {
            Form::Contraction(contraction) => &contraction.consumers,
            Form::Map | Form::Reduce | Form::Loop(_) | Form::Collective(_) => &[],
        }
    }

    /// The operands of products and consumers, each with the extents of the axes that follow the kernel's.
    pub fn operands(&self) -> impl Iterator<Item = (&Operand, &[usize])> {
        let products = self.products().iter();
        let products = products.flat_map(|product| [&product.a, &product.b].map(|o| (o, &product.k[..])));
        products.chain(self.consumers().iter().map(|consumer| (&consumer.with, &consumer.p[..])))
    }

    /// As [`operands`](Self::operands), to be changed.
    pub fn operands_mut(&mut self) -> impl Iterator<Item = &mut Operand> {
        self.form.operands_mut()
    }

    /// The regions of its points and of its operands.
    pub fn regions_mut(&mut self) -> impl Iterator<Item = &mut Region> {
        let operands = self.form.operands_mut();
        std::iter::once(&mut self.region).chain(operands.map(|operand| &mut operand.region))
    }

    /// Gives each buffer another number: those of loads first, then those of what is written.
    pub fn renumber(&mut self, mut number: impl FnMut(BufferId) -> BufferId) {
        for instr in self.regions_mut().flat_map(|region| &mut region.instrs) {
            if let InstrKind::Load { buffer, .. } = &mut instr.kind {
                *buffer = number(*buffer);
            }
        }
        match &mut self.form {
            Form::Contraction(contraction) => {
                contraction
                    .consumers
                    .iter_mut()
                    .for_each(|consumer| consumer.buffer = number(consumer.buffer));
            }
            Form::Loop(repeated) => repeated.outer_mut().for_each(|buffer| *buffer = number(*buffer)),
            Form::Collective(call) => call.buffers_mut().for_each(|buffer| *buffer = number(*buffer)),
            Form::Map | Form::Reduce => {}
        }
        self.stores.iter_mut().for_each(|store| store.buffer = number(store.buffer));
    }

    /// Every buffer that the kernel reads, each once.
    pub fn reads(&self) -> Vec<BufferId> {
        let regions = self.operands().map(|(operand, _)| &operand.region).chain([&self.region]);
        let loads = regions.flat_map(|region| &region.instrs).filter_map(|instr| match &instr.kind {
            InstrKind::Load { buffer, .. } => Some(*buffer),
            InstrKind::Constant(_)
            | InstrKind::Coordinate(_)
            | InstrKind::Random { .. }
            | InstrKind::Producer(_)
            | InstrKind::Unary(..)
            | InstrKind::Binary(..)
            | InstrKind::Compare(..)
            | InstrKind::Select(..)
            | InstrKind::Cast(_)
            | InstrKind::InRange(_)
            | InstrKind::Reduce(..) => None,
        });
        let looped = self.repeated().into_iter().flat_map(Loop::reads);
        let exchanged = self.collective().map(|call| call.from);
        let mut buffers: Vec<_> = loads.chain(looped).chain(exchanged).collect();
        buffers.sort();
        buffers.dedup();
        buffers
    }

    /// Every buffer that the kernel writes, each once.
    pub fn writes(&self) -> Vec<BufferId> {
        let stored = self.stores.iter().map(|store| store.buffer);
        let contracted = self.consumers().iter().map(|consumer| consumer.buffer);
        let looped = self.repeated().into_iter().flat_map(Loop::writes);
        let exchanged = self.collective().into_iter().flat_map(CollectiveCall::writes);
        let mut buffers: Vec<_> = stored.chain(contracted).chain(looped).chain(exchanged).collect();
        buffers.sort();
        buffers.dedup();
        buffers
    }
}

impl KernelGraph {
    /// How many kernels run when this does: those of a loop once for each iteration.
    pub fn launches(&self) -> usize {
        let launches = |kernel: &Kernel| kernel.repeated().map_or(1, |l| l.iterations * l.graph().launches());
        self.kernels.iter().map(launches).sum()
    }

    /// A buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }
}
