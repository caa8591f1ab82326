//! Threads and cache blocking: which part of C a thread computes, and how it divides that.
//!
//! B is packed whole, for as many columns as fit into a cache (`b_words`); where k is so long that these would be few
//! (weight gradients), one block of k at a time. Blocks of A in L2 and L1: `macrokernel.rs`; their sizes `kc` and `mc`: `microkernel.rs`.

use super::half_bytes::HalfBytes;
use super::macrokernel::{Macrokernel, Packed};
use super::microkernel::{KC, Kernels, LDA};
use super::pack::Source;
use super::packer::Packer;
use super::trial::{WAYS, Way};
use super::{Buffers, Contraction, Element, Operand, Output, TILE_COLUMNS, TileFn, Tiles, gemv, transposed};
use crate::cache;
use crate::math::zero_upper;
use crate::memory::Arena;
use crate::pool::share;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most words of B that a thread packs at a time, for this many rows of C. Five eighths of L2, where those hold at least
/// [`FEWEST_COLUMNS`] columns, and for a tile unit, which is faster than the last cache. Otherwise packed B lies in the last cache: 12 MiB of it,
/// or, since other cores use it too, two blocks of `FEWEST_COLUMNS`; if all rows are one block of A, which is cheap to pack again, what L2 holds.
fn b_words(kernels: &Kernels, rows: usize, way: Way) -> usize {
    #[cfg(test)]
    if let Some(words) = B_WORDS.get() {
        return words;
    }
    let in_second = cache::second_level() / 4 / 8 * 5;
    match way {
        _ if kernels.is_tiled || in_second >= FEWEST_COLUMNS * KC => in_second,
        Way::First => 3 << 20,
        Way::Second if rows <= kernels.mc => in_second,
        Way::Second => 2 * FEWEST_COLUMNS * KC,
    }
}

/// Bytes of B from which a product of few rows waits for memory and not for the processor.
const LARGE: usize = 256 << 10;

/// Whether it makes a difference to this product which way it is computed.
pub(super) fn has_two_ways(job: &Contraction, threads: usize) -> bool {
    if gemv::suits(job) {
        return job.batch * job.n * job.b.element.bytes(job.k) >= LARGE;
    }
    let kernels = Kernels::of(job.isa, job.precision);
    let [first, second] = WAYS.map(|way| Blocking::new(job, kernels, threads, way).b);
    first != second
}

#[cfg(test)]
thread_local! {
    /// Instead of what fits into this machine's caches, for products that this thread asks for.
    pub(super) static B_WORDS: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

/// B is packed whole if at least this many columns fit: else packing A again for every few columns costs more than
/// going over C once per block of k.
const FEWEST_COLUMNS: usize = 768;
/// How many elements of C are added to in the time of packing a row or a column, for each value of k.
const PACKING: usize = 16;
/// Accumulators of `Output::Tile` per thread, where k is packed in blocks: 4 MiB.
const SUM_WORDS: usize = 1 << 20;
/// Rows or columns of an operand that are staged at a time, a multiple of every panel width.
pub(super) const STAGED: usize = 32;

/// Which side of C is divided among threads, and how many rows or columns a unit of it has.
#[derive(Clone, Copy)]
struct Division {
    by_rows: bool,
    unit: usize,
}

impl Division {
    /// By the side that gives the busiest thread less to do; if both give the same, by the longer one. Rows are shared out singly where the
    /// epilogue takes any tile and part of a strip takes less time; the unit of columns is the narrowest tile.
    fn of(job: &Contraction, kernels: &Kernels, threads: usize) -> Self {
        let shares_rows = job.tiles == Tiles::Any && !kernels.is_tiled;
        let rows = Division { by_rows: true, unit: if shares_rows { 1 } else { kernels.mr } };
        let columns = Division { by_rows: false, unit: kernels.column_unit() };
        let prefers_rows = match job.m >= job.n {
            true => rows.work(job, threads) <= columns.work(job, threads),
            false => rows.work(job, threads) < columns.work(job, threads),
        };
        if job.tiles == Tiles::Rows || prefers_rows { rows } else { columns }
    }

    /// What the thread with the largest share does for each value of k: the elements of C that it adds to, and the rows and columns that it
    /// packs for them.
    fn work(self, job: &Contraction, threads: usize) -> usize {
        let (length, other) = if self.by_rows { (job.m, job.n) } else { (job.n, job.m) };
        let units = (job.batch * length.div_ceil(self.unit)).div_ceil(threads);
        let share = (units * self.unit).min(job.batch * length);
        let matrices = share.div_ceil(length.max(1));
        share * other + PACKING * (share + matrices * other)
    }

    /// How many of the side's elements there are.
    fn length(self, job: &Contraction) -> usize {
        if self.by_rows { job.m } else { job.n }
    }
}

/// One call of a contraction.
pub(super) struct GemmCall<'a> {
    pub job: &'a Contraction,
    /// The job that was asked for, if its operands were exchanged.
    pub asked: Option<&'a Contraction>,
    pub kernels: &'static Kernels,
    pub buffers: &'a Buffers,
    pub blocking: Blocking,
    /// Which of two ways is taken, where there are two.
    pub way: Way,
    /// Units of the last part of the work that threads have taken, in a product of few rows.
    taken: AtomicUsize,
}

/// Sizes of blocks and buffers; the latter in words.
pub(super) struct Blocking {
    gemv: bool,
    division: Division,
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
    transposed: usize,
}

/// A thread's buffers.
#[derive(Clone, Copy)]
pub(super) struct Space {
    pub a: *mut u32,
    pub b: *mut u32,
    /// Widened or computed elements, before they are packed.
    pub stage: *mut f32,
    pub sums: *mut f32,
    /// Finished sums with rows and columns exchanged, if they must be.
    pub transposed: *mut f32,
}

impl<'a> GemmCall<'a> {
    pub(super) fn new(
        job: &'a Contraction,
        buffers: &'a Buffers,
        threads: usize,
        asked: Option<&'a Contraction>,
        way: Way,
    ) -> Self {
        let kernels = Kernels::of(job.isa, job.precision);
        let blocking = match asked {
            None if gemv::suits(job) => Blocking::gemv(job),
            None => Blocking::new(job, kernels, threads, way),
            Some(_) => Blocking::new(job, kernels, threads, way).with_transposed_output(job, kernels),
        };
        GemmCall { job, asked, kernels, buffers, blocking, way, taken: AtomicUsize::new(0) }
    }

    /// Whether a product of few rows reads several lines of B side by side, and fetches them ahead of their use.
    pub(super) fn reads_ahead(&self) -> bool {
        self.way == Way::Second
    }

    /// Memory that every thread needs.
    pub(super) fn bytes(&self) -> usize {
        let blocking = &self.blocking;
        (blocking.a + blocking.b + blocking.stage + blocking.sums + blocking.transposed) * 4
    }

    /// Thread `t`'s part: consecutive strips (or panels) of consecutive matrices. `packed` says which B the memory holds, before and after.
    ///
    /// # Safety
    /// As `Contraction::run`; the arena has `bytes()` bytes.
    pub(super) unsafe fn part(&self, t: usize, threads: usize, memory: &Arena, packed: &mut Option<Packed>) {
        let (job, space) = (self.job, self.blocking.divide(memory));
        // SAFETY: the machine has the instruction set.
        let _tiles = unsafe { self.kernels.configured() };
        let Division { by_rows, unit } = self.blocking.division;
        let length = self.blocking.division.length(job);
        let units = length.div_ceil(unit);
        if matches!(job.output, Output::Direct { adds: true, .. }) {
            let part = share(units, threads, t);
            let range = (part.start * unit).min(length)..(part.end * unit).min(length);
            // SAFETY: the caller's contract.
            return unsafe { self.added(if by_rows { (range, 0..job.n) } else { (0..job.m, range) }, space) };
        }
        let pieces = |units_of_all: Range<usize>| {
            matrices(units_of_all, units)
                .map(|(batch, part)| (batch, part.start * unit..length.min(part.end * unit)))
        };
        if self.blocking.gemv {
            let mut staged = None;
            for (batch, columns) in self.shares(job.batch * units, threads, t).flat_map(pieces) {
                // SAFETY: pieces of C are disjoint, between threads too.
                unsafe { gemv::piece(self, batch, columns, &space, &mut staged) };
            }
            return;
        }
        for (batch, range) in pieces(share(job.batch * units, threads, t)) {
            let (rows, columns) = if by_rows { (range, 0..job.n) } else { (0..job.m, range) };
            // SAFETY: pieces of C are disjoint, between threads too.
            unsafe {
                for columns in chunks(columns, self.blocking.columns) {
                    for rows in chunks(rows.clone(), self.blocking.rows) {
                        Macrokernel::new(self, space, batch, rows, columns.clone()).run(packed);
                    }
                }
            }
        }
    }

    /// The units of `units` that thread `t` computes: its share of the first seven eighths, and of the rest what it comes to
    /// before others do. One thread often gets more of the memory's bandwidth than another, and who is done early would wait. Who
    /// computes a column does not change it.
    fn shares(&self, units: usize, threads: usize, t: usize) -> impl Iterator<Item = Range<usize>> {
        let shared = if threads > 1 { units / 8 } else { 0 };
        let step = gemv::step(self.job, units);
        let fixed = units - shared;
        let rest = std::iter::from_fn(move || {
            let first = fixed + self.taken.fetch_add(step, Ordering::Relaxed);
            (first < units).then(|| first..units.min(first + step))
        });
        std::iter::once(share(fixed, threads, t)).chain(rest)
    }

    /// These rows and columns of all matrices: a thread adds up what goes to its part of C, a few columns at a time, so that
    /// they stay in cache from product to product.
    ///
    /// # Safety
    /// As `part`.
    unsafe fn added(&self, (rows, columns): (Range<usize>, Range<usize>), space: Space) {
        let width = self.blocking.columns.min(TILE_COLUMNS);
        for columns in chunks(columns, width) {
            for rows in chunks(rows.clone(), self.blocking.rows) {
                let mut packed = None;
                for batch in 0..self.job.batch {
                    // SAFETY: the caller's contract; no other thread has these rows and columns.
                    unsafe {
                        Macrokernel::new(self, space, batch, rows.clone(), columns.clone()).run(&mut packed);
                    }
                }
            }
        }
    }

    /// One matrix of A or B.
    pub(super) fn source(&self, operand: &'a Operand, base: *const u8, batch: usize) -> Source<'a> {
        let size = operand.element.size();
        let offset = operand.batch.at(batch).wrapping_mul(size as isize);
        let load = self.kernels.load(operand.element);
        let packed = match operand.element {
            Element::HalfByte(scale) => {
                let unpack = self.kernels.gemv.unpack[scale as usize];
                Some(HalfBytes { scales: self.buffers.scales, scale, unpack }.after(offset))
            }
            _ => None,
        };
        let (base, outer, k) = (base.wrapping_offset(offset), operand.outer.offsets(), operand.k.offsets());
        Source { base, size, load, packed, outer, k }
    }

    /// Packs its operands.
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

impl Blocking {
    fn new(job: &Contraction, kernels: &Kernels, threads: usize, way: Way) -> Self {
        let words = kernels.words(job.k).max(1);
        // The largest part of C that one thread gets of a matrix.
        let most = |length: usize, unit: usize| match job.batch {
            1 => (length.div_ceil(unit).div_ceil(threads) * unit).min(length),
            _ => length,
        };
        let division = Division::of(job, kernels, threads);
        let (rows, columns) = match division.by_rows {
            true => (most(job.m, division.unit), job.n),
            false => (job.m, most(job.n, division.unit)),
        };
        let b_words = b_words(kernels, rows, way);
        let fitting = |words: usize| (b_words / words / TILE_COLUMNS).max(1) * TILE_COLUMNS;
        let whole = match job.tiles {
            Tiles::Rows => columns <= fitting(words),
            Tiles::Any | Tiles::Strips => words * columns.min(FEWEST_COLUMNS) <= b_words,
        };
        let depth = if whole { words } else { kernels.kc };
        let columns = if job.tiles == Tiles::Rows { columns } else { columns.min(fitting(depth)) };
        let width = columns.next_multiple_of(kernels.nr);
        // A tile that is finished in one go only needs a strip; others collect their sums.
        let sum_stride =
            if words <= kernels.kc && job.tiles != Tiles::Rows { TILE_COLUMNS } else { width + 16 };
        let (rows, sum_rows) = match job.output {
            Output::Direct { .. } => (rows, 0),
            Output::Tile if words <= kernels.kc => (rows, kernels.mr),
            Output::Tile if whole => (rows, kernels.mc),
            Output::Tile => {
                let fit = (SUM_WORDS / sum_stride / kernels.mc).max(1) * kernels.mc;
                (rows.min(fit), rows.min(fit))
            }
        };
        Blocking {
            gemv: false,
            division,
            whole,
            columns,
            rows,
            sum_stride,
            a: kernels.mc.next_multiple_of(STAGED) * LDA,
            b: depth.next_multiple_of(16) * width,
            stage: STAGED * LDA,
            sums: (sum_rows * sum_stride).next_multiple_of(16),
            transposed: 0,
        }
    }

    /// With sums of a whole block of A, and room to exchange its rows and columns.
    fn with_transposed_output(self, job: &Contraction, kernels: &Kernels) -> Self {
        let sum_stride = job.n.next_multiple_of(kernels.nr) + 16;
        Blocking { sum_stride, sums: kernels.mc * sum_stride, transposed: transposed::words(job), ..self }
    }

    fn gemv(job: &Contraction) -> Self {
        let (a, stage, sums) = gemv::words(job);
        Blocking {
            gemv: true,
            division: Division { by_rows: false, unit: gemv::unit(job) },
            whole: true,
            columns: 0,
            rows: 0,
            sum_stride: 0,
            a,
            b: 0,
            stage,
            sums,
            transposed: 0,
        }
    }

    fn divide(&self, memory: &Arena) -> Space {
        let start = memory.as_ptr().cast::<u32>();
        let at = |words: usize| start.wrapping_add(words);
        let (b, stage) = (self.a, self.a + self.b);
        let sums = stage + self.stage;
        Space {
            a: start,
            b: at(b),
            stage: at(stage).cast(),
            sums: at(sums).cast(),
            transposed: at(sums + self.sums).cast(),
        }
    }
}

/// A range of the units of several matrices, of `units` each, as ranges of single ones.
fn matrices(mut left: Range<usize>, units: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    std::iter::from_fn(move || {
        let (batch, first) = (!left.is_empty()).then(|| (left.start / units, left.start % units))?;
        let last = units.min(first + left.len());
        left.start += last - first;
        Some((batch, first..last))
    })
}

/// Consecutive ranges of at most `length`.
pub(super) fn chunks(range: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(length).map(move |start| start..end.min(start + length))
}
