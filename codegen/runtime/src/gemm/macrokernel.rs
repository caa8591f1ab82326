//! One thread's part of one matrix of C: what is packed when, and where tiles go.
//!
//! A block of A (`mc` rows, `kc` words) stays in L2 and its strips in L1, while panels of B stream by. What comes
//! from memory meanwhile is prefetched a little with every tile: C, what the epilogue reads, the block of A
//! or B that is packed next.

use super::ahead::{Ahead, Streams};
use super::blocking::{GemmCall, STAGED, Space, chunks};
use super::later::{Later, Lines};
use super::microkernel::{KC, LDA, Strip, TileOutput};
use super::pack::{Block, Offsets, PanelSize, Source};
use super::{Buffers, Output, Prologue, TILE_COLUMNS, Tiles, Touched, transposed};
use crate::pool::share;
use std::ops::Range;

/// What identifies a packed B: the address of its matrix and its columns.
pub(super) type Packed = (usize, Range<usize>);

/// A part of one matrix of C.
pub(super) struct Macrokernel<'r, 'a> {
    gemm: &'r GemmCall<'a>,
    space: Space,
    batch: usize,
    a: Source<'a>,
    b: Source<'a>,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<'r, 'a> Macrokernel<'r, 'a> {
    pub(super) fn new(
        gemm: &'r GemmCall<'a>,
        space: Space,
        batch: usize,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Self {
        let a = gemm.source(&gemm.job.a, gemm.buffers.a, batch);
        let b = gemm.source(&gemm.job.b, gemm.buffers.b, batch);
        Macrokernel { gemm, space, batch, a, b, rows, columns }
    }

    /// Parts of these rows of at most `most`: where an epilogue takes any tile, of about the same length, since a tile of few rows waits for B.
    fn parts(&self, rows: &Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let evenly = self.gemm.job.tiles == Tiles::Any && !self.gemm.kernels.is_tiled;
        let (start, all, count) = (rows.start, rows.len(), rows.len().div_ceil(most));
        (0..count).map(move |number| {
            let part = match evenly {
                true => share(all, count, number),
                false => number * most..all.min((number + 1) * most),
            };
            start + part.start..start + part.end
        })
    }

    /// Values of k per block.
    fn block(&self) -> usize {
        self.gemm.kernels.block()
    }

    fn depth(&self, k: usize) -> usize {
        self.block().min(self.gemm.job.k - k)
    }

    fn words(&self, k: usize) -> usize {
        self.gemm.kernels.words(self.depth(k))
    }

    /// The packed block of B that starts at k; `outer` is where the packed ones start. Each block before it has
    /// `kc` words a column.
    fn b_block(&self, outer: usize, k: usize) -> *mut u32 {
        let width = self.columns.len().next_multiple_of(self.gemm.kernels.nr);
        self.space.b.wrapping_add(self.gemm.kernels.words(k - outer) * width)
    }

    /// Computes the part; `packed` says which B the buffer holds, before and after.
    ///
    /// # Safety
    /// As `Contraction::run`; the space is as large as the blocking says.
    pub(super) unsafe fn run(&self, packed: &mut Option<Packed>) {
        let (k, whole) = (self.gemm.job.k, self.gemm.blocking.whole);
        let step = if whole { k.max(1) } else { self.block() };
        // Sums of nothing are computed too, as zeros.
        for outer in (0..k.max(1)).step_by(step) {
            let end = k.min(outer + step);
            let ks = || (outer..end.max(outer + 1)).step_by(self.block());
            let key = whole.then(|| (self.b.base as usize, self.columns.clone()));
            if key.is_none() || *packed != key {
                for k in ks() {
                    // SAFETY: the buffer was sized for the packed blocks.
                    unsafe { self.pack_b(k, self.b_block(outer, k)) };
                }
                *packed = key;
            }
            for rows in self.parts(&self.rows, self.gemm.kernels.mc) {
                for k in ks() {
                    let mut next = self.next_a(&rows, k, outer..end);
                    // SAFETY: as above; rows and columns stay inside this part.
                    unsafe {
                        self.pack_a(rows.clone(), k);
                        self.multiply(rows.clone(), k, self.b_block(outer, k), self.next_b(end), &mut next);
                    }
                }
                if let Some(asked) = self.gemm.asked {
                    // SAFETY: all blocks of k were added up, so these rows are finished.
                    unsafe { transposed::finish(self.gemm, asked, &self.space, self.batch, rows) };
                }
            }
        }
    }

    /// Multiplies the packed block of A with one of B; `next_b` is what is packed of B after it.
    unsafe fn multiply(
        &self,
        rows: Range<usize>,
        k: usize,
        b: *const u32,
        next_b: Option<Touched>,
        next: &mut Later<'_>,
    ) {
        let (job, kernels, words) = (self.gemm.job, self.gemm.kernels, self.words(k));
        let is_last = k + self.depth(k) == job.k;
        for n in chunks(self.columns.clone(), job.tile_columns()) {
            for i in self.parts(&rows, kernels.mr) {
                let a = self.space.a.wrapping_add((i.start - rows.start) * LDA);
                let (c, ldc) = self.strip(rows.start, i.start, n.start);
                let accumulate = k > 0 || self.adds();
                let sums = Ahead { ptr: c.cast(), stride: 4 * ldc, size: 4 };
                let (writes, reads) = self.ahead(sums, (i.start, n.start), is_last, next_b);
                let (nothing, known) = (Ahead { stride: 0, ..sums }, reads.count);
                let mut target = TileOutput { c, ldc, accumulate, is_last, writes, reads, later: nothing };
                for j in chunks(n.clone(), kernels.nr) {
                    let b = b.wrapping_add((j.start - self.columns.start) * words);
                    // Of a long tile the sums that the next one stores are fetched, where no epilogue writes.
                    if kernels.takes_apart() && target.writes.count == 1 {
                        let next = match j.end < n.end {
                            true => target.c.wrapping_add(kernels.nr),
                            false => self.strip(rows.start, i.end.min(rows.end - 1), n.start).0,
                        };
                        target.writes.first_mut().ptr = next.cast();
                    }
                    kernels.prefetch_later(next, (i.len(), words), &mut target);
                    // SAFETY: packed above; the strip has these rows and columns.
                    unsafe {
                        if j.len() == kernels.nr {
                            (kernels.tile)(i.len(), words, a, b, &target);
                        } else {
                            kernels.multiply((i.len(), j.len()), words, Strip::Packed(a), b, &target);
                        }
                    }
                    target.reads.truncate(known);
                    target.later = nothing;
                    target.advance(kernels.nr);
                }
                if let Some(hook) = job.epilogue.filter(|_| is_last) {
                    let (at, size) = ((i.start, n.start), (i.len(), n.len()));
                    // SAFETY: the strip is finished.
                    unsafe { self.gemm.call(hook, c, ldc, at, size, self.batch) };
                }
            }
        }
    }

    fn adds(&self) -> bool {
        matches!(self.gemm.job.output, Output::Direct { adds: true, .. })
    }

    /// Where the sums of row i go, from column n on, and their row stride; `block` is the first row of the block
    /// of A.
    fn strip(&self, block: usize, i: usize, n: usize) -> (*mut f32, usize) {
        let blocking = &self.gemm.blocking;
        let sums = |row: usize, column: usize| {
            (self.space.sums.wrapping_add(row * blocking.sum_stride + column), blocking.sum_stride)
        };
        match &self.gemm.job.output {
            Output::Direct { batch, ldc, .. } => {
                let matrix = self.gemm.buffers.c.wrapping_offset(batch.at(self.batch));
                (matrix.wrapping_add(i * ldc + n), *ldc)
            }
            Output::Tile if self.gemm.job.k <= self.block() && self.gemm.asked.is_none() => sums(0, 0),
            Output::Tile if blocking.whole => sums(i - block, n - self.columns.start),
            Output::Tile => sums(i - self.rows.start, n - self.columns.start),
        }
    }

    /// What is prefetched to be written and to be read while the tile at (i, j) multiplies, last of what is written its sums at `c`. While the last
    /// block of k is added, what the epilogue writes and reads there; before that, the block of B that is packed next.
    fn ahead(
        &self,
        c: Ahead,
        (i, j): (usize, usize),
        is_last: bool,
        next_b: Option<Touched>,
    ) -> (Streams, Streams) {
        let at = |touched: Touched, row: usize| {
            let start = touched.start.wrapping_offset(touched.batch.wrapping_mul(self.batch as isize));
            Ahead { ptr: start, stride: touched.row, size: touched.size }.at(row, j)
        };
        if is_last {
            let all =
                |touched: &'r [Option<Touched>]| touched.iter().flatten().map(move |&touched| at(touched, i));
            let Buffers { writes, reads, .. } = self.gemm.buffers;
            return (Streams::new(all(writes).chain([c]), c), Streams::new(all(reads), c));
        }
        // With the last rows, so that it is not there long before it is needed.
        let row = |next: Touched| (i + self.block()).checked_sub(self.rows.end).map(|row| at(next, row));
        (Streams::new([c], c), Streams::new(next_b.and_then(row), c))
    }

    /// The block of B that is packed next, from `end` on, if it is packed row by row.
    fn next_b(&self, end: usize) -> Option<Touched> {
        let element = self.gemm.job.b.element;
        match self.b.k {
            Offsets::Strided(stride) if end < self.gemm.job.k && self.b.outer.unit() => {
                let (size, row) = (element.size(), (stride as usize).wrapping_mul(element.size()));
                Some(Touched { start: self.b.at(0, end), size, row, batch: 0 })
            }
            _ => None,
        }
    }

    unsafe fn pack_b(&self, k: usize, out: *mut u32) {
        let packer = self.gemm.packer();
        let (size, stage) = ((self.columns.len(), self.depth(k)), self.space.stage);
        // SAFETY: the buffer holds the block; the stage holds `STAGED` lines of `LDA` values.
        unsafe {
            match self.gemm.job.prologues[1] {
                Some(prologue) => {
                    let block = |j, inner| self.computed(prologue, (self.columns.start, k), (j, inner));
                    packer.columns_from(size, self.most(prologue), out, block);
                }
                None => {
                    let block = self.b.from(self.columns.start, k).part(size.0, size.1);
                    if let Some(bytes) = self.gemm.kernels.bytes {
                        let words = self.words(k);
                        let panels = PanelSize { words, stride: words * self.gemm.kernels.nr };
                        return (bytes.pack_b)(&block, size.0, size.1, out, panels);
                    }
                    packer.columns((&block, self.gemm.job.b.element), size, out, stage);
                }
            }
        }
    }

    unsafe fn pack_a(&self, rows: Range<usize>, k: usize) {
        let (packer, out) = (self.gemm.packer(), self.space.a);
        let (size, stage) = ((rows.len(), self.depth(k)), self.space.stage);
        // SAFETY: the buffers hold these rows.
        unsafe {
            match self.gemm.job.prologues[0] {
                Some(prologue) => {
                    let block = |i, inner| self.computed(prologue, (rows.start, k), (i, inner));
                    packer.rows_from(size, self.most(prologue), out, block);
                }
                None => {
                    // Rows in runs lie evenly in most blocks.
                    let block = self.a.from(rows.start, k).part(size.0, size.1);
                    if let Some(bytes) = self.gemm.kernels.bytes {
                        return (bytes.pack_a)(&block, size.0, size.1, out);
                    }
                    packer.rows((&block, self.gemm.job.a.element), size, out, stage);
                }
            }
        }
    }

    /// Rows (or columns) and values of k that are computed at a time: whole steps, for which the stage has room.
    fn most(&self, prologue: Prologue) -> (usize, usize) {
        if prologue.along_k { (STAGED, KC) } else { (TILE_COLUMNS * STAGED / self.step(), self.step()) }
    }

    /// Lines across k that are computed at a time.
    fn step(&self) -> usize {
        self.gemm.kernels.step.values.max(STAGED)
    }

    /// The block of an operand with these rows (or columns) and values of k, counted from `first`, computed into the stage.
    ///
    /// # Safety
    /// The block is at most as large as [`most`](Self::most) says.
    unsafe fn computed(
        &self,
        prologue: Prologue,
        first: (usize, usize),
        (outer, k): (Range<usize>, Range<usize>),
    ) -> Block<'a> {
        let (at, size) = ((first.0 + outer.start, first.1 + k.start), (outer.len(), k.len()));
        let turn = |(outer, k): (usize, usize)| if prologue.along_k { (outer, k) } else { (k, outer) };
        let base = self.space.stage;
        let ld = if prologue.along_k { LDA } else { STAGED * LDA / self.step() };
        // SAFETY: the stage has room for the block.
        unsafe { self.gemm.call(prologue.function, base, ld, turn(at), turn(size), self.batch) };
        let (line, unit) = (Offsets::Strided(ld as isize), Offsets::Strided(1));
        match prologue.along_k {
            true => Block { base, outer: line, k: unit },
            false => Block { base, outer: unit, k: line },
        }
    }

    /// The block of A that is packed after the one of `rows` and k, in the loops of `run`, if it lies in lines.
    fn next_a(&self, rows: &Range<usize>, k: usize, packed: Range<usize>) -> Later<'a> {
        let (job, kernels) = (self.gemm.job, self.gemm.kernels);
        let (row, k) = match (k + self.block() < packed.end, rows.end < self.rows.end) {
            (true, _) => (rows.start, k + self.block()),
            (_, true) => (rows.end, packed.start),
            _ => (self.rows.start, packed.end),
        };
        if k >= job.k {
            return Later::default();
        }
        let (count, depth) = (kernels.mc.min(self.rows.end - row), self.depth(k));
        let source = self.a.from(row, k).part(count, depth);
        if !source.k.unit() && !source.outer.unit() {
            return Later::default();
        }
        let (offsets, lines, values) = match source.k.unit() {
            true => (source.outer, count, depth),
            false => (source.k, depth, count),
        };
        let size = (lines, job.a.element.bytes(values));
        let lines = Lines::new(source.base, offsets, source.size, size);
        Later::lines(vec![lines], kernels.tiles(rows.len(), self.columns.len()))
    }
}
