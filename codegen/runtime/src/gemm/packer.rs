//! Packing whole blocks of an operand of any layout and element type, as it lies where that can be.

use super::blocking::{STAGED, chunks};
use super::microkernel::{KC, Kernels, LDA, Step, Strip};
use super::pack::{Block, Narrow, Offsets, PanelSize, RUN, Source};
use super::{Element, Precision};
use std::ops::Range;

/// From row to row of packed rows, in values of `f32` and of bf16.
const ROW: isize = LDA as isize;
const ROW_OF_PAIRS: isize = 2 * LDA as isize;

/// Lines of memory that are widened into one panel before the next one, since panels may share sets of L1.
const TOGETHER: usize = 16;

/// Packs the operands of one precision.
#[derive(Clone, Copy)]
pub(super) struct Packer {
    pub kernels: &'static Kernels,
    /// Whether operands must be rounded to bf16 in their `f32` words.
    pub rounds: bool,
}

/// How blocks of an operand are packed.
#[derive(Clone, Copy)]
enum Packing {
    /// From `f32` as it lies.
    Wide,
    /// From bf16 as it lies.
    Narrow(Narrow),
    /// Widened to `f32` where it belongs.
    Widened,
    /// By way of a stage of `f32`.
    Staged,
}

impl Packer {
    /// With these kernels. Where words are `f32`, bf16 precision rounds in them.
    pub(super) fn new(kernels: &'static Kernels, precision: Precision) -> Self {
        Packer { kernels, rounds: precision.rounds_to_bf16() && kernels.step == Step::F32 }
    }

    /// How blocks of an operand of these elements are packed, whose lines `along` (k for rows of A, columns for B) are copied, or
    /// [runs](Self::lies_in_runs).
    fn packing(self, source: &Source<'_>, element: Element, along: Offsets<'_>, in_runs: bool) -> Packing {
        let as_it_lies = in_runs || source.outer.unit() || source.k.unit();
        match (element, self.kernels.narrow) {
            (Element::F32, _) if as_it_lies => Packing::Wide,
            (Element::Bf16, Some(narrow)) if as_it_lies => Packing::Narrow(narrow),
            _ if along.unit() && self.kernels.step == Step::F32 => Packing::Widened,
            _ => Packing::Staged,
        }
    }

    /// The same, where memory has nothing but numbers of bf16 or smaller ones, which need no rounding.
    fn of(self, element: Element) -> Packer {
        if matches!(element, Element::Bf16 | Element::I8) { self.of_rounded() } else { self }
    }

    /// The same, for operands that are rounded already.
    pub(super) fn of_rounded(self) -> Packer {
        Packer { rounds: false, ..self }
    }

    /// Whether columns of B, or values of k in words of one value, lie in runs that are long enough to be packed as they lie.
    fn lies_in_runs(self, source: &Source<'_>, columns: usize, depth: usize) -> bool {
        !self.kernels.is_fixed() && source.outer.step_of_runs(columns).is_some()
            || self.k_lies_in_runs(source, depth)
    }

    /// Whether values of k lie in such runs, in words of one value.
    pub(super) fn k_lies_in_runs(self, source: &Source<'_>, depth: usize) -> bool {
        self.kernels.step == Step::F32 && source.k.run(depth) >= RUN
    }

    /// Packs the first `columns` columns of B, `depth` values of k deep, into panels.
    ///
    /// # Safety
    /// The source has these elements, `out` room for them; the stage holds `STAGED` lines of `LDA` values.
    pub(super) unsafe fn columns(
        self,
        (source, element): (&Source<'_>, Element),
        (columns, depth): (usize, usize),
        out: *mut u32,
        stage: *mut f32,
    ) {
        let (kernels, packer) = (self.kernels, self.of(element));
        let words = kernels.words(depth);
        let panels = PanelSize { words, stride: words * kernels.nr };
        // SAFETY: the caller's contract.
        unsafe {
            let in_runs = self.lies_in_runs(source, columns, depth);
            match self.packing(source, element, source.outer, in_runs) {
                Packing::Wide => (kernels.pack_b)(&source.block(), columns, depth, out, panels),
                Packing::Narrow(narrow) => (narrow.b)(&source.block(), columns, depth, out, panels),
                Packing::Widened => self.widen_columns(source, columns, depth, out),
                Packing::Staged => {
                    let stage = |j: Range<usize>, k: Range<usize>| {
                        source.from(j.start, k.start).staged(j.len(), k.len(), stage)
                    };
                    return packer.columns_from((columns, depth), (STAGED, KC), out, stage);
                }
            }
            packer.round_columns(columns, words, out);
        }
    }

    /// Packs columns of B that lie side by side, of another type than `f32`, into words of `f32`.
    ///
    /// # Safety
    /// As `columns`, without a stage.
    unsafe fn widen_columns(self, source: &Source<'_>, columns: usize, depth: usize, out: *mut u32) {
        let nr = self.kernels.nr;
        for ks in chunks(0..depth, TOGETHER) {
            for j in chunks(0..columns, nr) {
                let panel = source.from(j.start, 0);
                for k in ks.clone() {
                    let word = out.wrapping_add(j.start * depth + k * nr);
                    // SAFETY: the caller's contract.
                    unsafe {
                        panel.column(k, j.len(), word.cast());
                        word.add(j.len()).write_bytes(0, nr - j.len());
                    }
                }
            }
        }
    }

    /// As `columns`, of blocks of at most `most` columns and values of k that somebody provides.
    ///
    /// # Safety
    /// The blocks have what they are asked for, `out` has room for all of it.
    pub(super) unsafe fn columns_from<'b>(
        self,
        (columns, depth): (usize, usize),
        most: (usize, usize),
        out: *mut u32,
        mut block: impl FnMut(Range<usize>, Range<usize>) -> Block<'b>,
    ) {
        let kernels = self.kernels;
        let words = kernels.words(depth);
        let stride = words * kernels.nr;
        for j in chunks(0..columns, most.0) {
            for k in chunks(0..depth, most.1) {
                let block = block(j.clone(), k.clone());
                let out =
                    out.wrapping_add(j.start / kernels.nr * stride + kernels.words(k.start) * kernels.nr);
                let panels = PanelSize { words: kernels.words(k.len()), stride };
                // SAFETY: the caller's contract.
                unsafe { (kernels.pack_b)(&block, j.len(), k.len(), out, panels) };
            }
        }
        // SAFETY: packed above.
        unsafe { self.round_columns(columns, words, out) };
    }

    /// Rounds packed columns of B where that is needed.
    unsafe fn round_columns(self, columns: usize, words: usize, out: *mut u32) {
        if self.rounds {
            let count = words * columns.next_multiple_of(self.kernels.nr);
            // SAFETY: packed by the caller.
            unsafe { (self.kernels.round)(out.cast(), out.cast(), count) };
        }
    }

    /// Rows of A that a tile reads as they lie: at the distance of packed ones, or side by side. Beyond the end of k they have zeros as packed
    /// ones have.
    pub(super) fn as_it_lies(self, source: &Source<'_>, element: Element) -> Option<Strip> {
        match (element, source.outer, source.k) {
            (Element::F32, ..) if self.rounds || self.kernels.across.is_none() => None,
            (Element::F32, Offsets::Strided(ROW), Offsets::Strided(1)) => {
                Some(Strip::Packed(source.base.cast()))
            }
            (Element::F32, Offsets::Strided(1), Offsets::Strided(stride)) => {
                Some(Strip::Across(source.base.cast(), usize::try_from(stride).ok()?))
            }
            (Element::Bf16, Offsets::Strided(ROW_OF_PAIRS), Offsets::Strided(1))
                if self.kernels.multiplies_pairs() =>
            {
                Some(Strip::Packed(source.base.cast()))
            }
            _ => None,
        }
    }

    /// Packs the first `rows` rows of A, `depth` values of k deep, at stride `LDA`.
    ///
    /// # Safety
    /// As `columns`.
    pub(super) unsafe fn rows(
        self,
        (source, element): (&Source<'_>, Element),
        (rows, depth): (usize, usize),
        out: *mut u32,
        stage: *mut f32,
    ) {
        let (kernels, packer) = (self.kernels, self.of(element));
        // SAFETY: the caller's contract.
        unsafe {
            let in_runs = self.k_lies_in_runs(source, depth);
            match self.packing(source, element, source.k, in_runs) {
                Packing::Wide => (kernels.pack_a)(&source.block(), rows, depth, out),
                Packing::Narrow(narrow) => (narrow.a)(&source.block(), rows, depth, out),
                Packing::Widened => (0..rows).for_each(|i| source.row(i, depth, out.add(i * LDA).cast())),
                Packing::Staged => {
                    let stage = |i: Range<usize>, k: Range<usize>| {
                        source.from(i.start, k.start).staged(i.len(), k.len(), stage)
                    };
                    return packer.rows_from((rows, depth), (STAGED, KC), out, stage);
                }
            }
            packer.round_rows(rows, depth, out);
        }
    }

    /// As `rows`, of blocks of at most `most` rows and values of k that somebody provides.
    ///
    /// # Safety
    /// As `columns_from`.
    pub(super) unsafe fn rows_from<'b>(
        self,
        (rows, depth): (usize, usize),
        most: (usize, usize),
        out: *mut u32,
        mut block: impl FnMut(Range<usize>, Range<usize>) -> Block<'b>,
    ) {
        let kernels = self.kernels;
        for i in chunks(0..rows, most.0) {
            for k in chunks(0..depth, most.1) {
                let block = block(i.clone(), k.clone());
                let out = out.wrapping_add(i.start * LDA + kernels.words(k.start));
                // SAFETY: the caller's contract.
                unsafe { (kernels.pack_a)(&block, i.len(), k.len(), out) };
            }
        }
        // SAFETY: packed above.
        unsafe { self.round_rows(rows, depth, out) };
    }

    /// Rounds packed rows of A where that is needed.
    ///
    /// # Safety
    /// The rows have been packed.
    unsafe fn round_rows(self, rows: usize, depth: usize, out: *mut u32) {
        if self.rounds {
            for row in 0..rows {
                let line = out.wrapping_add(row * LDA).cast::<f32>();
                // SAFETY: packed by the caller.
                unsafe { (self.kernels.round)(line, line, depth) };
            }
        }
    }
}
