//! Products that one thread computes by itself, on operands that it packs once and uses several times.
//!
//! A chain of products multiplies one block of rows after the other with the same matrices, and only with those
//! columns (or that part of k) that the block needs: so panels of B are packed whole, and a product says which part of
//! them it takes. An element of C is the sum of its products in the order of k, as everywhere.

use super::ahead::{Ahead, Streams};
use super::blocking::{STAGED, chunks};
use super::later::Later;
use super::microkernel::{KC, Kernels, LDA, Strip, TileOutput};
use super::pack::Source;
use super::packer::Packer;
use super::{Element, Matrix, Precision};
use crate::amx::Tiles;
use crate::isa::Isa;
use std::ops::Range;

/// Parts of columns and of k start at multiples of this: of every panel's width and of every word's values.
pub(crate) const ALIGN: usize = 32;
/// Columns of C are computed in multiples of this, so that they can be read back in whole registers of any instruction set.
pub(crate) const LANES: usize = 16;

/// The row stride, in elements, at which tiles read rows of `columns` values without packing them, if there is one.
pub(crate) fn packed_stride(columns: usize, element: Element) -> Option<usize> {
    let elements = |words: usize| words * size_of::<u32>() / element.size();
    (columns <= elements(KC)).then_some(elements(LDA))
}

/// The register tiles of one precision, for one thread.
#[derive(Clone, Copy)]
pub(crate) struct SingleThread {
    packer: Packer,
}

/// Where results go: element (i, j) at `start + i · ld + j`.
#[derive(Clone, Copy)]
pub(crate) struct Results {
    pub(crate) start: *mut f32,
    pub(crate) ld: usize,
    /// Whether they are added to what is there.
    pub(crate) adds: bool,
}

/// Packed columns of B.
#[derive(Clone, Copy)]
pub(crate) struct Panels {
    /// As many words as [`SingleThread::panel_words`] says.
    pub(crate) words: *mut u32,
    /// How many columns there are.
    pub(crate) columns: usize,
    /// Length of the sums.
    pub(crate) k: usize,
}

/// What strips of rows leave out: beyond a diagonal. Rows count from the first of a product.
#[derive(Clone, Copy)]
pub(crate) enum Wedge {
    /// Nothing.
    None,
    /// Columns from this offset after a strip's end on, in runs of [`LANES`]; results there are undefined.
    Columns(isize),
    /// Values of k from this offset after a strip's end on.
    EndOfK(isize),
    /// Values of k further than this offset before a strip's start.
    StartOfK(isize),
}

impl Wedge {
    /// Of the values `k` that a strip of these rows sums, those that it needs.
    fn needed(self, k: &Range<usize>, rows: &Range<usize>) -> Range<usize> {
        let inside = |at: isize| (at.max(0) as usize).clamp(k.start, k.end);
        match self {
            Wedge::None | Wedge::Columns(_) => k.clone(),
            Wedge::EndOfK(beyond) => k.start..inside(rows.end as isize + beyond),
            Wedge::StartOfK(before) => inside(rows.start as isize - before)..k.end,
        }
    }

    /// How many of a panel's columns a strip of these rows needs, computed `unit` at a time.
    fn columns(self, panel: &Range<usize>, rows: &Range<usize>, unit: usize) -> usize {
        let Wedge::Columns(beyond) = self else { return panel.len() };
        let end = (rows.end as isize + beyond).max(0) as usize;
        let whole = end.next_multiple_of(LANES).saturating_sub(panel.start);
        // Units are powers of two.
        ((whole + unit - 1) & !(unit - 1)).min(panel.len())
    }
}

/// Room for what is packed on the way, [`SingleThread::SPACE`] words.
#[derive(Clone, Copy)]
pub(crate) struct Room(pub(crate) *mut u32);

impl Room {
    fn block(self) -> *mut u32 {
        self.0
    }

    fn stage(self) -> *mut f32 {
        self.0.wrapping_add(SingleThread::MOST_ROWS * LDA).cast()
    }
}

impl SingleThread {
    /// The most rows of A that are packed at a time.
    const MOST_ROWS: usize = 128;
    /// Words of a [`Room`].
    pub(crate) const SPACE: usize = (Self::MOST_ROWS + STAGED) * LDA;

    /// The kernels to use.
    pub(crate) fn new(isa: Isa, precision: Precision) -> Self {
        SingleThread { packer: Packer::new(Kernels::of(isa, precision), precision) }
    }

    /// The same, for values that are rounded already.
    pub(crate) fn of_rounded(self) -> Self {
        SingleThread { packer: self.packer.of_rounded() }
    }

    fn kernels(self) -> &'static Kernels {
        self.packer.kernels
    }

    /// What this thread must hold while it multiplies with any of these.
    ///
    /// # Safety
    /// The machine has their instruction set.
    pub(crate) unsafe fn configured(all: impl Iterator<Item = SingleThread>) -> Option<Tiles> {
        // SAFETY: the caller's contract.
        all.map(SingleThread::kernels)
            .find(|kernels| kernels.uses_tiles)
            .and_then(|it| unsafe { it.configured() })
    }

    /// The number of tiles that cover these rows and columns.
    pub(crate) fn count(self, rows: usize, columns: usize) -> usize {
        self.kernels().tiles(rows, columns)
    }

    /// How far beyond a [diagonal](Wedge) strips of rows reach at most, where they sum whole steps of k.
    pub(crate) fn reach(self) -> usize {
        self.kernels().mr + self.kernels().step.values
    }

    /// Words that packed columns take.
    pub(crate) fn panel_words(self, columns: usize, k: usize) -> usize {
        let kernels = self.kernels();
        columns.next_multiple_of(kernels.nr) * kernels.words(k).next_multiple_of(16)
    }

    /// Values of k in a block; packed blocks follow each other.
    fn block(self) -> usize {
        self.kernels().block()
    }

    fn source<'a>(self, matrix: &Matrix<'a>) -> Source<'a> {
        let (outer, k) = (matrix.outer.offsets(), matrix.k.offsets());
        let load = self.kernels().load(matrix.element);
        Source { base: matrix.start, size: matrix.element.size(), load, packed: None, outer, k }
    }

    /// Packs columns of B, from row `first` of the summed axis on.
    ///
    /// # Safety
    /// The matrix has these elements, the panels and the room their words; the machine has the instruction set.
    pub(crate) unsafe fn pack(self, matrix: &Matrix<'_>, first: usize, panels: &Panels, room: Room) {
        let (kernels, source) = (self.kernels(), self.source(matrix));
        let width = panels.columns.next_multiple_of(kernels.nr);
        for k in (0..panels.k).step_by(self.block()) {
            let depth = self.block().min(panels.k - k);
            let out = panels.words.wrapping_add(kernels.words(k) * width);
            let part = (&source.from(0, first + k), matrix.element);
            // SAFETY: the caller's contract.
            unsafe { self.packer.columns(part, (panels.columns, depth), out, room.stage()) };
        }
    }

    /// C = A · B for `rows` of A, part `k` of the sums and `columns` of B; results start at the first of these rows
    /// and columns.
    ///
    /// # Safety
    /// A has these rows and values of k, B these columns and values of k, counted from the panels' first; the results'
    /// memory is there and overlaps neither; `columns` and `k` start at multiples of [`ALIGN`].
    #[allow(clippy::too_many_arguments, reason = "the parts of a product")]
    pub(crate) unsafe fn multiply(
        self,
        a: &Matrix<'_>,
        rows: Range<usize>,
        k: Range<usize>,
        panels: &Panels,
        columns: Range<usize>,
        wedge: Wedge,
        results: &Results,
        room: Room,
        later: &mut Later<'_>,
    ) {
        debug_assert!(columns.start.is_multiple_of(ALIGN) && k.start.is_multiple_of(ALIGN));
        if k.is_empty() && !results.adds {
            // Sums of nothing.
            for row in 0..rows.len() {
                // SAFETY: the caller's contract.
                unsafe { results.start.wrapping_add(row * results.ld).write_bytes(0, columns.len()) };
            }
            return;
        }
        let (source, rows_first) = (self.source(a), rows.start);
        let block_rows = Self::MOST_ROWS / self.kernels().mr * self.kernels().mr;
        let first_block = k.start / self.block() * self.block();
        for block in (first_block..k.end).step_by(self.block()) {
            let part = k.start.max(block)..k.end.min(block + self.block());
            let adds = results.adds || part.start > k.start;
            for i in chunks(rows.clone(), block_rows) {
                let start = results.start.wrapping_add((i.start - rows.start) * results.ld);
                let results = Results { start, adds, ..*results };
                // SAFETY: the caller's contract.
                unsafe {
                    let here = source.from(i.start, part.start);
                    let strip = self.packer.as_it_lies(&here, a.element).unwrap_or_else(|| {
                        let size = (i.len(), part.len());
                        self.packer.rows((&here, a.element), size, room.block(), room.stage());
                        Strip::Packed(room.block())
                    });
                    let strips = i.start - rows_first..i.end - rows_first;
                    self.tiles(
                        strip,
                        strips,
                        part.clone(),
                        block,
                        panels,
                        columns.clone(),
                        wedge,
                        &results,
                        later,
                    );
                }
            }
        }
    }

    /// Multiplies rows of A, the first of which `a` has, with part of one block of the panels.
    #[allow(clippy::too_many_arguments, reason = "the parts of a product")]
    unsafe fn tiles(
        self,
        a: Strip,
        rows: Range<usize>,
        part: Range<usize>,
        block: usize,
        panels: &Panels,
        columns: Range<usize>,
        wedge: Wedge,
        results: &Results,
        later: &mut Later<'_>,
    ) {
        let kernels = self.kernels();
        let width = panels.columns.next_multiple_of(kernels.nr);
        let depth = kernels.words(self.block().min(panels.k - block));
        let inside = panels.words.wrapping_add(kernels.words(block) * width);
        let inside = inside.wrapping_add(kernels.words(part.start - block) * kernels.nr);
        let (first, unit) = (columns.start, kernels.column_unit());
        let here = Ahead { ptr: results.start.cast(), stride: 4 * results.ld, size: 4 };
        let mut target = TileOutput {
            c: results.start,
            ldc: results.ld,
            accumulate: results.adds,
            is_last: true,
            writes: Streams::new([here], here),
            reads: Streams::new([], here),
            later: here,
        };
        // A panel of B comes from a far cache and is used for all rows, which are near.
        for j in chunks(columns, kernels.nr) {
            let b = inside.wrapping_add(j.start * depth);
            for i in chunks(rows.clone(), kernels.mr) {
                let columns = wedge.columns(&j, &i, unit);
                if columns == 0 {
                    continue;
                }
                let needed = wedge.needed(&part, &i);
                // Whole steps: what is beside the needed values is zero in A.
                let skipped = kernels.step.words_within(needed.start - part.start);
                let words = kernels.words(needed.end - part.start) - skipped;
                let down = i.start - rows.start;
                let a = a.from(down, skipped);
                let b = b.wrapping_add(skipped * kernels.nr);
                target.restart(results.start.wrapping_add(down * results.ld + j.start - first));
                kernels.prefetch_later(later, (i.len(), words), &mut target);
                // SAFETY: the caller's contract.
                unsafe { kernels.multiply((i.len(), columns), words, a, b, &target) };
            }
        }
    }
}

impl std::fmt::Debug for SingleThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SingleThread").field("rows", &self.kernels().mr).finish_non_exhaustive()
    }
}
