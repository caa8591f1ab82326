//! Threads and blocking: which part of C a thread computes, and how it divides that.
//!
//! B is packed whole, for as many columns as fit into `B_WORDS`; where k is so long that these would be few
//! (weight gradients), one block of k at a time.

use super::kernel::{KC, Kernels, LDA};
use super::pack::Source;
use super::packer::Packer;
use super::part::Part;
use super::{Buffers, Contraction, Operand, Output, TILE_COLUMNS, TileFn, thin};
use crate::cpu::memory::Arena;
use crate::cpu::pool::share;
use crate::cpu::tiles::zero_upper;
use std::ops::Range;

/// Packed words of B per thread: 12 MiB, in the last cache.
const B_WORDS: usize = 3 << 20;
/// B is packed whole if at least so many columns fit: else packing A again for every few columns costs more than
/// going over C once per block of k.
const FEWEST_COLUMNS: usize = 768;
/// Accumulators of `Output::Tile` per thread, where k is packed in blocks: 4 MiB.
const SUM_WORDS: usize = 1 << 20;
/// Rows or columns of an operand that are staged at a time, a multiple of every panel width.
pub(super) const STAGED: usize = 32;

/// One run of a contraction.
pub(super) struct Run<'a> {
    pub job: &'a Contraction,
    pub kernels: &'static Kernels,
    pub buffers: &'a Buffers,
    pub plan: Plan,
}

/// Sizes of blocks and buffers; the latter in words.
pub(super) struct Plan {
    thin: bool,
    /// Whether the packed B holds all of k.
    pub whole: bool,
    /// Columns and rows of C that are computed together.
    columns: usize,
    rows: usize,
    /// Row stride of the accumulators, if there are any.
    pub sum_stride: usize,
    a: usize,
    b: usize,
    stage: usize,
    sums: usize,
}

/// A thread's buffers.
#[derive(Clone, Copy)]
pub(super) struct Space {
    pub a: *mut u32,
    pub b: *mut u32,
    /// Two of them: widened elements, and rows for the prologue.
    pub stage: [*mut f32; 2],
    pub sums: *mut f32,
}

impl<'a> Run<'a> {
    pub(super) fn new(job: &'a Contraction, buffers: &'a Buffers, threads: usize) -> Self {
        let kernels = Kernels::of(job.isa, job.precision);
        let plan = if thin::suits(job) { Plan::thin(job) } else { Plan::new(job, kernels, threads) };
        Run { job, kernels, buffers, plan }
    }

    /// Memory that every thread needs.
    pub(super) fn bytes(&self) -> usize {
        let plan = &self.plan;
        (plan.a + plan.b + 2 * plan.stage + plan.sums) * 4
    }

    /// Thread `t`'s part: consecutive strips (or panels) of consecutive matrices.
    ///
    /// # Safety
    /// As `Contraction::run`; the arena has `bytes()` bytes.
    pub(super) unsafe fn part(&self, t: usize, threads: usize, memory: &Arena) {
        let (job, space) = (self.job, self.plan.divide(memory));
        let by_rows = job.m >= job.n && !self.plan.thin;
        let (length, unit) = if by_rows { (job.m, self.kernels.mr) } else { (job.n, self.kernels.nr) };
        let units = length.div_ceil(unit);
        if matches!(job.output, Output::Direct { adds: true, .. }) {
            let part = share(units, threads, t);
            let range = (part.start * unit).min(length)..(part.end * unit).min(length);
            // SAFETY: the caller's contract.
            return unsafe { self.added(if by_rows { (range, 0..job.n) } else { (0..job.m, range) }, space) };
        }
        let mut left = share(job.batch * units, threads, t);
        let mut packed = None;
        while !left.is_empty() {
            let (batch, first) = (left.start / units, left.start % units);
            let last = units.min(first + left.len());
            left.start += last - first;
            let range = first * unit..length.min(last * unit);
            let (rows, columns) = if by_rows { (range, 0..job.n) } else { (0..job.m, range) };
            // SAFETY: pieces of C are disjoint, between threads too.
            unsafe {
                if self.plan.thin {
                    thin::piece(self, batch, columns, &space);
                    continue;
                }
                for columns in chunks(columns, self.plan.columns) {
                    for rows in chunks(rows.clone(), self.plan.rows) {
                        Part::new(self, space, batch, rows, columns.clone()).run(&mut packed);
                    }
                }
            }
        }
    }

    /// These rows and columns of all matrices: a thread adds up what goes to its part of C, a few columns at a time, so that
    /// they stay in cache from product to product.
    ///
    /// # Safety
    /// As `part`.
    unsafe fn added(&self, (rows, columns): (Range<usize>, Range<usize>), space: Space) {
        let width = self.plan.columns.min(TILE_COLUMNS);
        for columns in chunks(columns, width) {
            for rows in chunks(rows.clone(), self.plan.rows) {
                let mut packed = None;
                for batch in 0..self.job.batch {
                    // SAFETY: the caller's contract; no other thread has these rows and columns.
                    unsafe {
                        Part::new(self, space, batch, rows.clone(), columns.clone()).run(&mut packed);
                    }
                }
            }
        }
    }

    /// One matrix of A or B.
    pub(super) fn source(&self, operand: &'a Operand, base: *const u8, batch: usize) -> Source<'a> {
        let size = operand.element.size();
        let base = base.wrapping_offset(operand.batch.at(batch).wrapping_mul(size as isize));
        let load = self.kernels.load(operand.element);
        Source { base, size, load, outer: operand.outer.offsets(), k: operand.k.offsets() }
    }

    /// Packs this run's operands.
    pub(super) fn packer(&self) -> Packer {
        Packer::new(self.kernels, self.job.precision)
    }

    /// Calls a prologue or an epilogue on `size` rows and columns at `tile`, whose first element is `at`.
    ///
    /// # Safety
    /// The hook's contract.
    pub(super) unsafe fn call(
        &self,
        hook: TileFn,
        tile: *mut f32,
        ld: usize,
        at: (usize, usize),
        size: (usize, usize),
        batch: usize,
    ) {
        // Compiled hooks use 128-bit registers, and live upper halves would slow them four times.
        zero_upper();
        // SAFETY: the caller's contract.
        unsafe { hook(tile, ld, at.0, at.1, size.0, size.1, batch, self.buffers.context) };
    }
}

impl Plan {
    fn new(job: &Contraction, kernels: &Kernels, threads: usize) -> Self {
        let words = job.k.div_ceil(kernels.pair).max(1);
        // The largest part of C that one thread gets of a matrix.
        let most = |length: usize, unit: usize| match job.batch {
            1 => (length.div_ceil(unit).div_ceil(threads) * unit).min(length),
            _ => length,
        };
        let by_rows = job.m >= job.n;
        let (rows, columns) =
            if by_rows { (most(job.m, kernels.mr), job.n) } else { (job.m, most(job.n, kernels.nr)) };
        let fitting = |words: usize| (B_WORDS / words / TILE_COLUMNS).max(1) * TILE_COLUMNS;
        let whole = words * columns.min(FEWEST_COLUMNS) <= B_WORDS;
        let depth = if whole { words } else { KC };
        let columns = columns.min(fitting(depth));
        let width = columns.next_multiple_of(kernels.nr);
        // A tile that is finished in one go only needs a strip; others collect their sums.
        let sum_stride = if words <= KC { TILE_COLUMNS } else { width + 16 };
        let (rows, sum_rows) = match job.output {
            Output::Direct { .. } => (rows, 0),
            Output::Tile if words <= KC => (rows, kernels.mr),
            Output::Tile if whole => (rows, kernels.mc),
            Output::Tile => {
                let fit = (SUM_WORDS / sum_stride / kernels.mc).max(1) * kernels.mc;
                (rows.min(fit), rows.min(fit))
            }
        };
        Plan {
            thin: false,
            whole,
            columns,
            rows,
            sum_stride,
            a: kernels.mc.next_multiple_of(STAGED) * LDA,
            b: depth.next_multiple_of(16) * width,
            stage: STAGED * LDA,
            sums: (sum_rows * sum_stride).next_multiple_of(16),
        }
    }

    fn thin(job: &Contraction) -> Self {
        let (a, stage, sums) = thin::words(job);
        Plan { thin: true, whole: true, columns: 0, rows: 0, sum_stride: 0, a, b: 0, stage, sums }
    }

    fn divide(&self, memory: &Arena) -> Space {
        let start = memory.as_ptr().cast::<u32>();
        let at = |words: usize| start.wrapping_add(words);
        let (b, stage) = (self.a, self.a + self.b);
        let stages = [at(stage).cast(), at(stage + self.stage).cast()];
        Space { a: start, b: at(b), stage: stages, sums: at(stage + 2 * self.stage).cast() }
    }
}

/// Consecutive ranges of at most `length`.
pub(super) fn chunks(range: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(length).map(move |start| start..end.min(start + length))
}
