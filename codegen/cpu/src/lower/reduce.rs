//! Reductions over rows: chunks of rows keep running results side by side, which a second launch combines.
//!
//! The number of chunks depends on the shape alone, and both steps add in a fixed order, so that results are the
//! same bits for any number of threads.
//!
//! ```text
//! reduce.rows sum over rows [R], columns [C]
//!   →  for each chunk: partial[chunk, c] = Σ of its rows, in order
//!   →  map [C]: out[c] = partial[0, c] + partial[1, c] + …
//! ```

use super::Lowering;
use super::row::{Target, Write, WriteMode};
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::analysis::{indices_mut, reduces};
use kernfusion_ir::kernel::{
    BufferId, Direction, Domain, Form, Index, InstrKind, Kernel, Region, Scalar, Store, StoreMode,
};
use kernfusion_ir::{Binary, DType, ReduceOp};

/// Units of work wanted, enough to divide evenly among the threads of a large machine.
const UNITS: usize = 32;
/// Fewer rows than this are not worth a chunk.
const FEWEST_ROWS: usize = 8;

/// A reduction over rows and the store of its result.
struct RowReduction {
    op: ReduceOp,
    /// What is reduced.
    value: Scalar,
    /// The type in which running results are kept.
    dtype: DType,
    store: Store,
}

/// A kernel whose row reductions are running results, each for a chunk of rows.
pub(super) struct Accumulated {
    /// With one more outer axis, which counts chunks.
    pub(super) kernel: Kernel,
    pub(super) writes: Vec<Write>,
    /// Where the running results are.
    partials: Vec<(RowReduction, usize)>,
    chunks: usize,
}

impl Lowering<'_> {
    /// A normalised kernel in which rows are reduced.
    pub(super) fn row_reduction(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        let domain = &kernel.domain;
        let outer = domain.extent(domain.outer_axes());
        let rows = domain.extent(domain.row_axes());
        let wanted = UNITS.div_ceil(outer.max(1)).min(rows.div_ceil(FEWEST_ROWS)).max(1);
        let chunk = rows.div_ceil(wanted).max(1);
        let chunks = rows.div_ceil(chunk).max(1);

        let accumulated = self.accumulated(kernel, chunks)?;
        let Accumulated { kernel: chunked, writes, .. } = &accumulated;
        self.nest(chunked, writes.clone(), Some(chunk), reduces(&kernel.region, Direction::Columns))?;
        self.combine(kernel, &accumulated)
    }

    /// The kernel with running results for each chunk of its rows.
    pub(super) fn accumulated(
        &mut self,
        kernel: &Kernel,
        chunks: usize,
    ) -> Result<Accumulated, CodegenError> {
        let domain = &kernel.domain;
        let chunked = with_chunk_axis(kernel, chunks);
        let (reductions, stores) = self.split_stores(kernel)?;
        let mut writes: Vec<_> = stores.into_iter().map(|store| self.write(&store)).collect();
        for write in &mut writes {
            write.index.strides.insert(domain.outer, 0);
        }
        let mut partials = vec![];
        for reduction in reductions {
            let points = chunked.domain.points() / domain.extent(domain.row_axes()).max(1);
            let slot = self.temporary(reduction.dtype, points);
            let (target, index) = (Target::Slot(slot), partial_index(&chunked.domain));
            let mode = WriteMode::Accumulate(reduction.op);
            writes.push(Write { value: reduction.value, target, dtype: reduction.dtype, index, mode });
            partials.push((reduction, slot));
        }
        Ok(Accumulated { kernel: chunked, writes, partials, chunks })
    }

    /// Combines running results, in the order of chunks.
    pub(super) fn combine(&mut self, kernel: &Kernel, accumulated: &Accumulated) -> Result<(), CodegenError> {
        for (reduction, slot) in &accumulated.partials {
            let combination = match accumulated.chunks {
                0..=UNITS => combination(kernel, reduction, *slot, accumulated.chunks),
                _ => long_combination(kernel, reduction, *slot, accumulated.chunks),
            };
            self.rows(&combination)?;
        }
        Ok(())
    }

    /// The stores of row reductions, and the others.
    fn split_stores(&self, kernel: &Kernel) -> Result<(Vec<RowReduction>, Vec<Store>), CodegenError> {
        let (mut reductions, mut others) = (vec![], vec![]);
        for store in &kernel.stores {
            let instr = kernel.region.instr(store.value);
            let InstrKind::Reduce(op, Direction::Rows, value) = instr.kind else {
                others.push(store.clone());
                continue;
            };
            if !store.index.indirect.is_empty() {
                return Err(self.unsupported("a row reduction stored through an index"));
            }
            let dtype = match instr.dtype {
                DType::BF16 | DType::F16 => DType::F32,
                DType::Bool => return Err(self.unsupported("a reduction of bool")),
                dtype => dtype,
            };
            reductions.push(RowReduction { op, value, dtype, store: store.clone() });
        }
        Ok((reductions, others))
    }
}

/// The kernel with one more outer axis, which counts chunks of rows; nothing depends on it.
fn with_chunk_axis(kernel: &Kernel, chunks: usize) -> Kernel {
    let mut kernel = kernel.clone();
    let at = kernel.domain.outer;
    kernel.domain.axes.insert(at, chunks);
    kernel.domain.outer += 1;
    let instrs = kernel.region.instrs.iter_mut();
    for index in instrs.flat_map(|instr| indices_mut(&mut instr.kind)) {
        index.strides.insert(at, 0);
    }
    kernel
}

/// Row-major over the outer axes (chunks are the last of them) and the columns.
fn partial_index(domain: &Domain) -> Index {
    let mut index = Index::constant(domain.axes.len(), 0);
    let mut stride = 1;
    for axis in domain.outer_axes().chain(domain.column_axes()).rev() {
        index.strides[axis] = stride;
        stride *= domain.axes[axis] as i64;
    }
    index
}

/// The reduction that combines partial results of many chunks.
fn long_combination(kernel: &Kernel, reduction: &RowReduction, slot: usize, chunks: usize) -> Kernel {
    let mut domain = kernel.domain.clone();
    let rows = domain.row_axes();
    domain.axes.splice(rows.clone(), [chunks]);
    domain.rows = 1;
    let strides = kernfusion_ir::strides(&domain.axes).into_iter().map(|stride| stride as i64).collect();
    let index = Index { strides, ..Index::default() };
    let mut region = Region::default();
    let load = InstrKind::Load { buffer: BufferId(slot as u32), index, guard: vec![] };
    let value = region.push(load, reduction.dtype);
    let dtype = kernel.region.instr(reduction.store.value).dtype;
    let value = region.push(InstrKind::Reduce(reduction.op, Direction::Rows, value), dtype);
    let mut store = Store { value, ..reduction.store.clone() };
    store.index.strides.splice(rows, [0]);
    Kernel { name: String::new(), form: Form::Reduce, domain, region, stores: vec![store], covers: vec![] }
}

/// The map that combines partial results in the order of chunks.
fn combination(kernel: &Kernel, reduction: &RowReduction, slot: usize, chunks: usize) -> Kernel {
    let domain = &kernel.domain;
    let kept: Vec<_> = domain.outer_axes().chain(domain.column_axes()).collect();
    let axes: Vec<_> = kept.iter().map(|&axis| domain.axes[axis]).collect();
    let columns = domain.extent(domain.column_axes()) as i64;
    let mut index = Index::constant(axes.len(), 0);
    let mut stride = 1;
    for axis in (0..axes.len()).rev() {
        if axis + 1 == domain.outer {
            stride = columns * chunks as i64;
        }
        index.strides[axis] = stride;
        stride *= axes[axis] as i64;
    }
    let combine = match reduction.op {
        ReduceOp::Sum => Binary::Add,
        ReduceOp::Max => Binary::Max,
        ReduceOp::Min => Binary::Min,
    };
    let mut region = Region::default();
    let load = |region: &mut Region, chunk: usize| {
        let index = index.clone().shifted(chunk as i64 * columns);
        let buffer = BufferId(slot as u32);
        region.push(InstrKind::Load { buffer, index, guard: vec![] }, reduction.dtype)
    };
    let mut value = load(&mut region, 0);
    for chunk in 1..chunks {
        let next = load(&mut region, chunk);
        value = region.push(InstrKind::Binary(combine, value, next), reduction.dtype);
    }
    let dtype = kernel.region.instr(reduction.store.value).dtype;
    if dtype != reduction.dtype {
        value = region.push(InstrKind::Cast(value), dtype);
    }
    let strides = kept.iter().map(|&axis| reduction.store.index.strides[axis]).collect();
    let index = Index { strides, ..reduction.store.index.clone() };
    let store = Store { value, buffer: reduction.store.buffer, index, mode: StoreMode::Set };
    Kernel {
        name: String::new(),
        form: Form::Map,
        domain: Domain::flat(axes),
        region,
        stores: vec![store],
        covers: vec![],
    }
}
