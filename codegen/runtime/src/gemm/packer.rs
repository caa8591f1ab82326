//! Packing whole blocks of an operand of any layout and element type, as it lies where that can be.

use super::blocking::{STAGED, chunks};
use super::microkernel::{KC, Kernels, LDA, Step};
use super::pack::{Narrow, PanelSize, Source};
use super::{Element, Precision};

/// Packs the operands of one precision.
#[derive(Clone, Copy)]
pub(super) struct Packer {
    pub kernels: &'static Kernels,
    /// Whether operands must be rounded to bf16 in their `f32` words.
    rounds: bool,
}

/// How blocks of an operand are packed.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// From `f32` as it lies.
    Wide,
    /// From bf16 as it lies.
    Narrow(Narrow),
    /// By way of a stage of `f32`.
    Staged,
}

impl Packer {
    /// With these kernels. Where words are `f32`, bf16 precision rounds in them.
    pub(super) fn new(kernels: &'static Kernels, precision: Precision) -> Self {
        Packer { kernels, rounds: precision == Precision::Bf16 && kernels.step == Step::F32 }
    }

    /// How blocks of an operand of these elements are packed.
    pub(super) fn way(self, source: &Source<'_>, element: Element) -> Way {
        let unit = source.outer.unit() || source.k.unit();
        match (element, self.kernels.narrow) {
            (Element::F32, _) if unit => Way::Wide,
            (Element::Bf16, Some(narrow)) if unit => Way::Narrow(narrow),
            _ => Way::Staged,
        }
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
        let kernels = self.kernels;
        let words = kernels.words(depth);
        let panels = PanelSize { words, stride: words * kernels.nr };
        // SAFETY: the caller's contract.
        unsafe {
            match self.way(source, element) {
                Way::Wide => (kernels.pack_b)(&source.block(), columns, depth, out, panels),
                Way::Narrow(narrow) => (narrow.b)(&source.block(), columns, depth, out, panels),
                Way::Staged => {
                    for j in chunks(0..columns, STAGED) {
                        for k in chunks(0..depth, KC) {
                            let block = source.from(j.start, k.start).staged(j.len(), k.len(), stage);
                            let out = out.wrapping_add(j.start / kernels.nr * panels.stride);
                            let out = out.wrapping_add(kernels.words(k.start) * kernels.nr);
                            let panels = PanelSize { words: kernels.words(k.len()), ..panels };
                            (kernels.pack_b)(&block, j.len(), k.len(), out, panels);
                        }
                    }
                }
            }
            if self.rounds {
                (kernels.round)(out.cast(), out.cast(), words * columns.next_multiple_of(kernels.nr));
            }
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
        let kernels = self.kernels;
        // SAFETY: the caller's contract.
        unsafe {
            match self.way(source, element) {
                Way::Wide => (kernels.pack_a)(&source.block(), rows, depth, out),
                Way::Narrow(narrow) => (narrow.a)(&source.block(), rows, depth, out),
                Way::Staged => {
                    for i in chunks(0..rows, STAGED) {
                        for k in chunks(0..depth, KC) {
                            let block = source.from(i.start, k.start).staged(i.len(), k.len(), stage);
                            let out = out.wrapping_add(i.start * LDA + kernels.words(k.start));
                            (kernels.pack_a)(&block, i.len(), k.len(), out);
                        }
                    }
                }
            }
            self.round_rows(rows, depth, out);
        }
    }

    /// Rounds packed rows of A where that is needed.
    ///
    /// # Safety
    /// The rows have been packed.
    pub(super) unsafe fn round_rows(self, rows: usize, depth: usize, out: *mut u32) {
        if self.rounds {
            for row in 0..rows {
                let line = out.wrapping_add(row * LDA).cast::<f32>();
                // SAFETY: packed by the caller.
                unsafe { (self.kernels.round)(line, line, depth) };
            }
        }
    }
}
