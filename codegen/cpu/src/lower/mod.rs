//! Kernels of the kernel IR as machine code, by Cranelift.
//!
//! All three forms share one *row program* ([`row`], [`schedule`], [`emit`]): a region over the points of a row, cut
//! into stages. Cheap arithmetic is a loop over whole vectors ([`wide`]), or Cranelift code on vectors of four; `exp` and its kin, reductions and random bits
//! are calls of tile primitives on rows that lie in L1. Around the row stand the loops of a map or a reduction
//! ([`nest`]), or the driver of matrix products, which calls the region on finished tiles ([`contraction`]).
//!
//! ```text
//! Kernel ─normalise─► Kernel ──► Row ─schedule─► RowSchedule ─emit─► CLIF ─Cranelift─► RowsFn | TileFn
//! ```
//!
//! Kernels that are equal but for their buffers share one program: its code finds buffers through a table.

mod addressing;
mod arithmetic;
mod builder;
mod chain;
mod contraction;
mod emit;
mod images;
mod jit;
mod load_store;
mod nest;
mod normalise;
#[cfg(feature = "object")]
mod object;
mod prologue;
mod reduce;
mod row;
mod schedule;
mod short_rows;
mod tile;
mod turned;
mod vector_loop;
mod wide;

pub(crate) use jit::{Machine, Text};

use jit::Functions;
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::analysis::{axes_without_collisions, number_slots, reduces, scatters};
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{
    BufferId, Direction, Domain, Form, Instr, InstrKind, Kernel, KernelGraph, Product, Scalar, StoreMode,
};
use kernfusion_runtime::gemm::Precision;
use kernfusion_runtime::isa::Isa;
use kernfusion_runtime::launch::{KernelProgram, LaunchKind};
use nest::Nest;
use normalise::normalise;
use row::{Access, Row, Target, Write, WriteMode};
use schedule::RowSchedule;
use std::collections::HashMap;
use std::sync::Arc;
use wide::Vectors;

/// Points of a run at most of which loops over whole vectors walk several: what comes before and after a longer one matters little.
const SHORT_RUN: usize = 64;
/// Units of work at least that are left of a map whose last outer axis becomes an axis of runs.
const FEWEST_UNITS: usize = 32;

/// Whether a kernel can be lowered, and if not, why. It is asked while kernels are made, so that what is refused becomes several.
///
/// # Errors
/// What this back end has no code for.
pub fn accepts(kernel: &Kernel) -> Result<(), &'static str> {
    let dtypes = kernel.products().iter().map(|product| product.dtype);
    let mut dtypes = dtypes.chain(kernel.consumers().iter().map(|consumer| consumer.dtype));
    if !kernel.consumers().is_empty() && !dtypes.all(chain::is_possible) {
        return Err("on the CPU, chains of products are of f32 and narrower types");
    }
    let multiplies_bytes = || {
        let consumed =
            kernel.consumers().iter().any(|consumer| kernel.region.is_widened_byte(consumer.value));
        consumed || kernel.products().iter().any(Product::is_of_bytes)
    };
    if !kernel.consumers().is_empty() && multiplies_bytes() {
        return Err("on the CPU, products of bytes are no chain");
    }
    if let Some(reason) = prologue::refusal(kernel).or_else(|| contraction::refused_reduction(kernel)) {
        return Err(reason);
    }
    if has_slow_rows(kernel) {
        return Err("on the CPU, functions of short rows are computed for many rows at once");
    }
    let rank = kernel.domain.axes.len();
    let varies = |value| kernel.region.varies(value, 0..rank, &kernel.domain);
    let moves = |instr: &Instr| match instr.kind {
        InstrKind::Random { seed, step, .. } => varies(seed) || varies(step),
        _ => false,
    };
    match kernel.region.instrs.iter().any(moves) {
        true => Err("on the CPU, all random bits of a kernel have one seed"),
        false => Ok(()),
    }
}

/// Elements of a row at most for which a function of the row takes long: of one number it takes as long as of a vector.
const SHORT_ROW: usize = 64;
/// Functions of rows from which on a kernel that computes vectors of them pays.
const MANY_FUNCTIONS: usize = 4096;

/// Whether a reduction computes many elementary functions once a row, of short rows.
fn has_slow_rows(kernel: &Kernel) -> bool {
    let Domain { axes, outer, rows, .. } = &kernel.domain;
    let columns = outer + rows..axes.len();
    let points: usize = axes[columns.clone()].iter().product();
    if kernel.form != Form::Reduce || points > SHORT_ROW {
        return false;
    }
    let is_once = |value: Scalar| !kernel.region.varies(value, columns.clone(), &kernel.domain);
    let functions = (0..).map(Scalar).zip(&kernel.region.instrs).filter(|(value, instr)| {
        let is_function = schedule::is_call(&instr.kind) && !matches!(instr.kind, InstrKind::Random { .. });
        is_function && is_once(*value)
    });
    functions.count() * axes[..columns.start].iter().product::<usize>() >= MANY_FUNCTIONS
}

/// How products are computed, by the number types of their operands: a product that is not faster in [fixed point](Precision::Fixed) is exact.
#[derive(Debug, Clone, Copy)]
pub struct Products {
    /// Of `f32`: exact, in fixed point, or in parts. [`Precision::X6`] and [`Precision::X3`] need a tile unit, and are exact without.
    pub f32: Precision,
    /// Of `bf16`: exact or in fixed point.
    pub bf16: Precision,
}

impl Default for Products {
    fn default() -> Self {
        Products { f32: Precision::F32, bf16: Precision::Bf16 }
    }
}

impl Products {
    /// How products of operands that are `bf16`, or else `f32`, are computed on this instruction set, if their size does not speak against it.
    pub(crate) fn on(self, isa: Isa, is_bf16: bool) -> Precision {
        let (asked, exact) = (if is_bf16 { self.bf16 } else { self.f32 }, exact(is_bf16));
        let is_exact = asked == Precision::Fixed && !exact.gains_by_fixed_point(isa);
        if is_exact { exact } else { asked }
    }
}

/// The precision of exact products of operands that are `bf16`, or else `f32`.
fn exact(is_bf16: bool) -> Precision {
    if is_bf16 { Precision::Bf16 } else { Precision::F32 }
}

/// Compiles kernels into one module.
pub(crate) struct Compiler {
    functions: Functions,
    isa: Isa,
    products: Products,
    programs: HashMap<String, Arc<KernelProgram>>,
}

impl Compiler {
    /// A compiler for a machine that has `isa`, with products of these precisions; `keep_code` keeps the text of every function.
    pub(crate) fn new(isa: Isa, products: Products, keep_code: bool) -> Result<Self, CodegenError> {
        let functions = Functions::new(isa, keep_code)?;
        Ok(Compiler { functions, isa, products, programs: HashMap::new() })
    }

    /// The program of a kernel and the buffers in its table. `shares` tells whether two buffers may share memory.
    pub(crate) fn kernel(
        &mut self,
        graph: &KernelGraph,
        kernel: &Kernel,
        shares: impl Fn(BufferId, BufferId) -> bool,
    ) -> Result<(Arc<KernelProgram>, Vec<BufferId>), CodegenError> {
        let (numbered, slots) = number_slots(kernel);
        let dtypes = slots.iter().map(|&slot| graph.buffer(slot).ty.dtype).collect();
        let sizes = slots.iter().map(|&slot| graph.buffer(slot).ty.bytes()).collect();
        let writes = kernel.writes();
        let clobbered = slots.iter().map(|&slot| writes.iter().any(|&write| shares(slot, write))).collect();
        let facts = Facts { name: kernel.name.clone(), dtypes, sizes, clobbered };
        let key = format!("{numbered:?} {:?} {:?} {:?}", facts.dtypes, facts.sizes, facts.clobbered);
        if let Some(program) = self.programs.get(&key) {
            return Ok((Arc::clone(program), slots));
        }
        let program = KernelProgram::default();
        let (isa, products) = (self.isa, self.products);
        let mut lowering = Lowering { functions: &mut self.functions, isa, products, facts, program };
        lowering.kernel(&numbered)?;
        let program = Arc::new(lowering.program);
        self.programs.insert(key, Arc::clone(&program));
        Ok((program, slots))
    }

    /// How many different programs there are.
    pub(crate) fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Makes everything executable.
    pub(crate) fn finish(self) -> Result<Machine, CodegenError> {
        self.functions.finish()
    }
}

/// What a kernel does not say itself.
#[derive(Debug)]
struct Facts {
    name: String,
    /// Of each slot.
    dtypes: Vec<DType>,
    /// Bytes of each slot.
    sizes: Vec<usize>,
    /// Whether the slot shares memory with something that the kernel writes.
    clobbered: Vec<bool>,
}

/// The lowering of one kernel.
struct Lowering<'c> {
    functions: &'c mut Functions,
    isa: Isa,
    products: Products,
    facts: Facts,
    program: KernelProgram,
}

impl Lowering<'_> {
    /// Of a product whose operands are both `bf16`, or else one of `f32`, if it is not in fixed point.
    fn precision(&self, is_bf16: bool) -> Precision {
        match self.products.on(self.isa, is_bf16) {
            Precision::Fixed => exact(is_bf16),
            precision => precision,
        }
    }

    fn kernel(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        self.check(kernel)?;
        // Loops run once at least, which is what a sum over nothing takes, and no map.
        if kernel.form == Form::Map && kernel.domain.points() == 0 {
            return Ok(());
        }
        match &kernel.form {
            Form::Map | Form::Reduce => self.rows(kernel),
            Form::Contraction(contraction) => self.contraction(kernel, contraction),
            Form::Loop(_) | Form::Collective(_) => unreachable!("it has work of its own"),
        }
    }

    fn unsupported(&self, what: &str) -> CodegenError {
        CodegenError::Unsupported { kernel: self.facts.name.clone(), what: what.into() }
    }

    fn check(&self, kernel: &Kernel) -> Result<(), CodegenError> {
        for store in &kernel.stores {
            let value = kernel.region.instr(store.value).dtype;
            let memory = self.facts.dtypes[store.buffer.0 as usize];
            if value != memory {
                return Err(self.unsupported(&format!("a store of {value} into a buffer of {memory}")));
            }
        }
        Ok(())
    }

    /// A new temporary; returns its slot.
    fn temporary(&mut self, dtype: DType, elements: usize) -> usize {
        let bytes = elements * dtype.size();
        self.program.temporaries.push(bytes);
        self.facts.dtypes.push(dtype);
        self.facts.sizes.push(bytes);
        self.facts.clobbered.push(false);
        self.facts.dtypes.len() - 1
    }

    /// A map or a reduction.
    fn rows(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        for store in kernel.stores.iter().filter(|store| store.mode == StoreMode::Add) {
            let slot = store.buffer.0 as usize;
            self.program.steps.push(LaunchKind::Clear { slot, bytes: self.facts.sizes[slot] });
        }
        let changed = short_rows::written_out(kernel).or_else(|| turned::turned(kernel));
        let kernel = normalise(changed.as_ref().unwrap_or(kernel));
        if reduces(&kernel.region, Direction::Rows) {
            return self.row_reduction(&kernel);
        }
        let inner = kernel.domain.axes.len() - 1;
        let in_order = scatters(&kernel) && !axes_without_collisions(&kernel)[inner];
        let whole = in_order || reduces(&kernel.region, Direction::Columns);
        if let Some(flat) = images::flattened(&kernel) {
            let units: usize = flat.domain.axes[..flat.domain.outer].iter().product();
            let (row, schedule) = self.scheduled(&flat, self.writes(&flat), !whole);
            if units >= FEWEST_UNITS && schedule.is_wide() {
                return self.nest_of(&flat, &row, &schedule, None, whole);
            }
        }
        self.nest(&kernel, self.writes(&kernel), None, whole)
    }

    fn writes(&self, kernel: &Kernel) -> Vec<Write> {
        kernel.stores.iter().map(|store| self.write(store)).collect()
    }

    fn write(&self, store: &kernfusion_ir::kernel::Store) -> Write {
        let slot = store.buffer.0 as usize;
        let mode = match store.mode {
            StoreMode::Set => WriteMode::Set,
            StoreMode::Add => WriteMode::Add,
        };
        let (target, dtype) = (Target::Slot(slot), self.facts.dtypes[slot]);
        Write { value: store.value, target, dtype, index: store.index.clone(), mode }
    }

    /// Emits a normalised kernel that writes like this.
    fn nest(
        &mut self,
        kernel: &Kernel,
        writes: Vec<Write>,
        chunk: Option<usize>,
        whole: bool,
    ) -> Result<(), CodegenError> {
        let (row, schedule) = self.scheduled(kernel, writes, chunk.is_none() && !whole);
        self.nest_of(kernel, &row, &schedule, chunk, whole)
    }

    /// The same of rows that have a schedule.
    fn nest_of(
        &mut self,
        kernel: &Kernel,
        row: &Row,
        schedule: &RowSchedule,
        chunk: Option<usize>,
        whole: bool,
    ) -> Result<(), CodegenError> {
        self.check_row(row)?;
        let outer = kernel.domain.outer.min(row.fixed);
        let nest = Nest::new(row, schedule, outer, chunk, whole || schedule.knows_points());
        let slots = self.facts.dtypes.len();
        let function = nest::build(self.functions, &self.facts.name, row, schedule, &nest, slots)?;
        let capacity = nest.capacity(row);
        self.program.scratch = self.program.scratch.max(nest::scratch_bytes(row, schedule, capacity));
        self.needs_zeros(row, capacity);
        let work = kernel.domain.points() * kernel.region.instrs.len();
        self.program.steps.push(LaunchKind::Rows { function, units: nest.units(row), work });
        Ok(())
    }

    /// The kernel's rows and their schedule. Loops over whole vectors walk short runs themselves where they can; where `is_map`, the last outer
    /// axis becomes one of the runs for it.
    fn scheduled(&self, kernel: &Kernel, writes: Vec<Write>, is_map: bool) -> (Row, RowSchedule) {
        let domain = &kernel.domain;
        let fixed = domain.outer + domain.rows;
        let vectors = Vectors::of(self.isa);
        let row = |fixed| {
            let (region, axes) = (kernel.region.clone(), domain.axes.clone());
            let mut row = Row::new(region, writes.clone(), axes, fixed, self.facts.clobbered.clone());
            // Transposed rows are cut into blocks.
            row.is_uncut = fixed == 0 || !row.is_transposed(fixed - 1);
            row
        };
        let plain = row(fixed);
        let takes_outer = is_map && plain.runs().is_empty() && domain.rows == 0 && domain.outer > 1;
        let fixed = if takes_outer { fixed - 1 } else { fixed };
        let is_short = plain.axes[plain.inner()] <= SHORT_RUN && fixed < plain.inner();
        let is_parallel = !takes_outer
            || plain.axes[..fixed].iter().product::<usize>() >= FEWEST_UNITS && !plain.is_transposed(fixed);
        if vectors.is_some() && is_short && is_parallel {
            let mut walking = row(fixed);
            walking.runs_within = true;
            let schedule = schedule::schedule(&walking, vectors);
            if schedule.is_wide() && !(takes_outer && schedule.rows > 0) {
                return (walking, schedule);
            }
        }
        let schedule = schedule::schedule(&plain, vectors);
        (plain, schedule)
    }

    fn check_row(&self, row: &Row) -> Result<(), CodegenError> {
        for instr in &row.region.instrs {
            if let InstrKind::Random { seed, step, .. } = &instr.kind
                && (row.varies(*seed) || row.varies(*step))
            {
                return Err(self.unsupported("a random seed that differs from point to point"));
            }
        }
        Ok(())
    }

    /// Makes sure that there are zeros for whatever guarded loads may read.
    fn needs_zeros(&mut self, row: &Row, capacity: usize) {
        for instr in &row.region.instrs {
            if let InstrKind::Load { index, guard, .. } = &instr.kind
                && !guard.is_empty()
            {
                let elements = match row.access(index, guard) {
                    Access::Contiguous | Access::Bounded => capacity,
                    Access::Alternate => 2 * capacity,
                    Access::Splat | Access::Scattered => 1,
                };
                self.program.zeros = self.program.zeros.max(elements * instr.dtype.size());
            }
        }
    }
}
