//! Packing: strided operands into the words that the register tiles read.
//!
//! The fast functions take blocks of `f32` and of bf16 with one axis of unit stride, also columns of B and values of k in runs, as what a window sees of an image lies; everything else is first copied to such a block (`stage`). Two loaders (a vector of words
//! along k, and one across it) and one transpose of as many vectors serve both operands, both layouts and all kinds of words: with AVX-512 vectors of
//! 16, with AVX2 of 8, whose words are `f32`.

/// The functions of both operands for one kind of memory, where these features are.
#[cfg(target_arch = "x86_64")]
macro_rules! packers {
    ($features:literal $stored:ident: $a:ident as $pack_a:expr, $b:ident as $pack_b:expr) => {
        /// # Safety
        /// As `PackA`; the block covers its elements.
        #[target_feature(enable = $features)]
        pub(in crate::gemm) unsafe fn $a(
            block: &Block<'_, $stored>,
            rows: usize,
            depth: usize,
            out: *mut u32,
        ) {
            // SAFETY: the caller's contract.
            unsafe { $pack_a(block, rows, depth, out) }
        }

        /// # Safety
        /// As `PackB`; the block covers its elements.
        #[target_feature(enable = $features)]
        pub(in crate::gemm) unsafe fn $b(
            block: &Block<'_, $stored>,
            columns: usize,
            depth: usize,
            out: *mut u32,
            panels: PanelSize,
        ) {
            // SAFETY: the caller's contract.
            unsafe { $pack_b(block, columns, depth, out, panels) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

#[cfg(target_arch = "x86_64")]
pub(super) mod fixed;

use super::half_bytes::HalfBytes;
use super::microkernel::{LDA, Load};
use std::ops::Range;

/// Where the elements of one axis lie, from the start of a block, in elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum Offsets<'a> {
    Strided(isize),
    Table(&'a [isize]),
}

impl Offsets<'_> {
    #[inline(always)]
    pub(super) fn at(self, i: usize) -> isize {
        match self {
            Offsets::Strided(stride) => (i as isize).wrapping_mul(stride),
            Offsets::Table(table) => table[i],
        }
    }

    pub(super) fn unit(self) -> bool {
        matches!(self, Offsets::Strided(1))
    }

    /// How many of the first `count` elements lie side by side at most, as far as [`LOOKED_AT`] of them tell: the first run may be the end
    /// of one that another thread has begun.
    pub(super) fn run(self, count: usize) -> usize {
        self.run_by(1, count)
    }

    /// The same for elements that lie `step` apart.
    pub(super) fn run_by(self, step: isize, count: usize) -> usize {
        match self {
            Offsets::Strided(stride) if stride == step => count,
            Offsets::Strided(_) => 1,
            Offsets::Table(table) => {
                runs(&table[..count.min(LOOKED_AT)], step).map(|run| run.len()).max().unwrap_or(0)
            }
        }
    }

    /// The distance between the first `count` elements, if it is the same for all of them.
    fn stride_of(self, count: usize) -> Option<isize> {
        match self {
            Offsets::Strided(stride) => Some(stride),
            Offsets::Table(table) => {
                let mut distances = table[..count].windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
                let first = distances.next()?;
                distances.all(|distance| distance == first).then_some(first)
            }
        }
    }

    /// How far apart columns in a table lie, one or two, in runs that are long enough to be packed as they lie.
    pub(super) fn step_of_runs(self, count: usize) -> Option<isize> {
        match self {
            Offsets::Strided(_) => None,
            Offsets::Table(_) => [1, 2].into_iter().find(|&step| self.run_by(step, count) >= RUN),
        }
    }
}

/// Elements side by side from which on runs are packed as they lie.
pub(super) const RUN: usize = 4;
/// Entries of a table that tell how long its runs are.
const LOOKED_AT: usize = 32;

/// The parts of a table whose elements lie `step` apart.
fn runs(table: &[isize], step: isize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = &table[start..];
        let breaks = rest.windows(2).position(|pair| pair[1] != pair[0] + step);
        let run = start..start + breaks.map_or(rest.len(), |last| last + 1);
        start = run.end;
        (!run.is_empty()).then_some(run)
    })
}

/// A block of an operand, one of whose axes has unit stride or lies in runs. `outer` is m or n.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, T = f32> {
    pub base: *const T,
    pub outer: Offsets<'a>,
    pub k: Offsets<'a>,
}

impl<T> Block<'_, T> {
    #[inline(always)]
    fn row(&self, i: usize) -> *const T {
        self.base.wrapping_offset(self.outer.at(i))
    }

    #[inline(always)]
    fn depth(&self, k: usize) -> *const T {
        self.base.wrapping_offset(self.k.at(k))
    }
}

impl<'a, T> Block<'a, T> {
    /// Where columns lie, and how far apart, if they lie in runs that are long enough to be packed as they are.
    fn columns_in_runs(&self, columns: usize) -> Option<(&'a [isize], isize)> {
        match self.outer {
            Offsets::Table(table) if !self.k.unit() => {
                self.outer.step_of_runs(columns).map(|step| (table, step))
            }
            _ => None,
        }
    }

    /// Where values of k lie, if they lie in runs and nothing has unit stride.
    fn k_in_runs(&self) -> Option<&'a [isize]> {
        match self.k {
            Offsets::Table(table) if !self.outer.unit() => Some(table),
            _ => None,
        }
    }
}

/// `(block, rows, depth, out)`: rows of words at stride `LDA`, zero beyond the end of k up to a multiple of 16 words where words are
/// pairs. `out` holds `rows` rounded up to 16 rows; what lies beyond the block in them is undefined.
pub(super) type PackA = unsafe fn(&Block<'_>, usize, usize, *mut u32);
/// `(block, columns, depth, out, panels)`: words `[k][NR]`, zero beyond the last column and beyond the end of k. `out` holds
/// `columns` rounded up to NR.
pub(super) type PackB = unsafe fn(&Block<'_>, usize, usize, *mut u32, PanelSize);

/// Sizes of the panels that are packed.
#[derive(Clone, Copy)]
pub(super) struct PanelSize {
    /// Words of k that are written: at least those of the values.
    pub words: usize,
    /// Words from one panel to the next.
    pub stride: usize,
}

/// Packing of blocks of bf16: as pairs, whose halves these are, as `f32`, or in fixed point.
#[derive(Clone, Copy)]
pub(super) struct Narrow {
    /// As `PackA`.
    pub a: unsafe fn(&Block<'_, u16>, usize, usize, *mut u32),
    /// As `PackB`.
    pub b: unsafe fn(&Block<'_, u16>, usize, usize, *mut u32, PanelSize),
}

/// Packs A without conversion.
///
/// # Safety
/// As `PackA`; the block covers its elements.
pub(super) unsafe fn pack_a(block: &Block<'_>, rows: usize, depth: usize, out: *mut u32) {
    let out = out.cast::<f32>();
    // SAFETY: as promised.
    unsafe {
        if block.k.unit() {
            for i in 0..rows {
                block.row(i).copy_to_nonoverlapping(out.add(i * LDA), depth);
            }
        } else if let Some(table) = block.k_in_runs() {
            for run in runs(&table[..depth], 1) {
                for i in 0..rows {
                    let from = block.row(i).wrapping_offset(table[run.start]);
                    from.copy_to_nonoverlapping(out.add(i * LDA + run.start), run.len());
                }
            }
        } else {
            // In squares, so that the lines of both sides stay in L1.
            for i in (0..rows).step_by(16) {
                for k in 0..depth {
                    let from = block.depth(k).wrapping_add(i);
                    (0..16.min(rows - i)).for_each(|r| *out.add((i + r) * LDA + k) = *from.add(r));
                }
            }
        }
    }
}

/// Packs B without conversion.
///
/// # Safety
/// As `PackB`; the block covers its elements.
pub(super) unsafe fn pack_b<const NR: usize>(
    block: &Block<'_>,
    columns: usize,
    depth: usize,
    out: *mut u32,
    panels: PanelSize,
) {
    debug_assert_eq!(panels.words, depth, "words are numbers");
    let out = out.cast::<f32>();
    for (j, out) in (0..columns).step_by(NR).map(|j| (j, out.wrapping_add(j / NR * panels.stride))) {
        let count = NR.min(columns - j);
        // SAFETY: as promised.
        unsafe {
            if count < NR {
                out.write_bytes(0, depth * NR);
            }
            if block.outer.unit() {
                for k in 0..depth {
                    let from = block.depth(k).wrapping_add(j);
                    if count == NR {
                        from.copy_to_nonoverlapping(out.add(k * NR), NR);
                    } else {
                        from.copy_to_nonoverlapping(out.add(k * NR), count);
                    }
                }
            } else if let Some((table, 1)) = block.columns_in_runs(columns) {
                for run in runs(&table[j..j + count], 1) {
                    for k in 0..depth {
                        let from = block.depth(k).wrapping_offset(table[j + run.start]);
                        from.copy_to_nonoverlapping(out.add(k * NR + run.start), run.len());
                    }
                }
            } else {
                for c in 0..count {
                    let from = block.row(j + c);
                    (0..depth).for_each(|k| *out.add(k * NR + c) = *from.wrapping_offset(block.k.at(k)));
                }
            }
        }
    }
}

/// Part of an operand of any layout and element type.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub base: *const u8,
    /// Bytes per element.
    pub size: usize,
    pub load: Load,
    /// What unpacks rows of half bytes, instead.
    pub packed: Option<HalfBytes>,
    pub outer: Offsets<'a>,
    pub k: Offsets<'a>,
}

impl<'a> Source<'a> {
    /// The part that starts at `outer` and `k`.
    pub(super) fn from(&self, outer: usize, k: usize) -> Source<'a> {
        let start = |offsets: Offsets<'a>, i: usize| match offsets {
            Offsets::Strided(_) => (offsets.at(i), offsets),
            Offsets::Table(table) => (0, Offsets::Table(&table[i..])),
        };
        self.starting(start(self.outer, outer), start(self.k, k))
    }

    /// The first `count` × `depth` elements of this part, with a stride in place of a table for each axis where they lie evenly.
    pub(super) fn part(&self, count: usize, depth: usize) -> Source<'a> {
        let even = |offsets: Offsets<'a>, count: usize| match offsets.stride_of(count) {
            Some(stride) => (offsets.at(0), Offsets::Strided(stride)),
            None => (0, offsets),
        };
        self.starting(even(self.outer, count), even(self.k, depth))
    }

    /// The part that begins at an offset, in elements, along each axis, with the offsets of its own elements from there.
    fn starting(&self, outer: (isize, Offsets<'a>), k: (isize, Offsets<'a>)) -> Source<'a> {
        let bytes = self.bytes(outer.0, k.0);
        let packed = self.packed.map(|packed| packed.after(bytes));
        Source { base: self.base.wrapping_offset(bytes), packed, outer: outer.1, k: k.1, ..*self }
    }

    /// The offset of an element in bytes, from those along both axes.
    fn bytes(&self, outer: isize, k: isize) -> isize {
        match self.packed {
            None => outer.wrapping_add(k).wrapping_mul(self.size as isize),
            Some(_) => outer.wrapping_add(k / 2),
        }
    }

    /// Where one element lies.
    pub(super) fn at(&self, outer: usize, k: usize) -> *const u8 {
        self.base.wrapping_offset(self.bytes(self.outer.at(outer), self.k.at(k)))
    }

    /// Values along k of one row, widened.
    ///
    /// # Safety
    /// The operand has them; `out` holds `depth` values.
    pub(super) unsafe fn row(&self, outer: usize, depth: usize, out: *mut f32) {
        // SAFETY: as promised.
        unsafe {
            match self.packed {
                None => self.line(self.outer.at(outer), self.k, depth, out),
                Some(packed) => packed.after(self.outer.at(outer)).unpack(self.at(outer, 0), depth, out),
            }
        }
    }

    /// Values across k, widened.
    ///
    /// # Safety
    /// The operand has them; `out` holds `count` values.
    pub(super) unsafe fn column(&self, k: usize, count: usize, out: *mut f32) {
        // SAFETY: as promised.
        unsafe { self.line(self.k.at(k), self.outer, count, out) }
    }

    unsafe fn line(&self, start: isize, along: Offsets<'_>, count: usize, out: *mut f32) {
        let at = |offset: isize| self.base.wrapping_offset(offset.wrapping_mul(self.size as isize));
        // SAFETY: every offset is inside the operand.
        unsafe {
            match along {
                Offsets::Strided(stride) => (self.load)(out, at(start), stride, count),
                Offsets::Table(table) => {
                    for run in runs(&table[..count], 1) {
                        (self.load)(out.add(run.start), at(start + table[run.start]), 1, run.len());
                    }
                }
            }
        }
    }

    /// The same part as a block, which an operand of such elements with an axis of unit stride is as it lies.
    pub(super) fn block<T>(&self) -> Block<'a, T> {
        Block { base: self.base.cast(), outer: self.outer, k: self.k }
    }

    /// `count` × `depth` elements of this part, widened into `stage`, as a block.
    ///
    /// # Safety
    /// The operand has them; `stage` holds `count · LDA` values, and `depth` is at most `LDA`.
    pub(super) unsafe fn staged(&self, count: usize, depth: usize, stage: *mut f32) -> Block<'a> {
        let unit = Offsets::Strided(1);
        // SAFETY: as promised.
        unsafe {
            if self.outer.run(count) > self.k.run(depth) {
                (0..depth).for_each(|k| self.column(k, count, stage.add(k * count)));
                Block { base: stage, outer: unit, k: Offsets::Strided(count as isize) }
            } else {
                (0..count).for_each(|i| self.row(i, depth, stage.add(i * LDA)));
                Block { base: stage, outer: Offsets::Strided(LDA as isize), k: unit }
            }
        }
    }
}

/// Words of pairs, and of parts, in portable code, for the emulated tile unit.
#[cfg(target_arch = "x86_64")]
pub(super) mod pairs {
    use super::{Block, LDA, PanelSize};
    use crate::gemm::tiles::{HALF, SIDE, STEP, flushed, rounds, split_places};
    use crate::math::element::{Bf16, Element as _};

    /// A value as a sum of `PARTS` numbers of bf16: each is the rest of the value, rounded.
    trait Split<const PARTS: usize>: Copy {
        fn split(self) -> [u16; PARTS];
    }

    impl Split<1> for u16 {
        fn split(self) -> [u16; 1] {
            [self]
        }
    }

    impl<const PARTS: usize> Split<PARTS> for f32 {
        /// A single part as the processors that have tiles: subnormal numbers count as zero.
        fn split(self) -> [u16; PARTS] {
            if PARTS == 1 {
                return [Bf16::narrow(flushed(self)); PARTS];
            }
            let mut rest = self;
            std::array::from_fn(|part| {
                let is_rounded = rounds(part, PARTS) && !(rest.is_nan() && part + 1 == PARTS);
                let half = if is_rounded { HALF } else { 0 };
                let part = (rest.to_bits().wrapping_add_signed(half) >> 16) as u16;
                rest -= Bf16::widen(part);
                part
            })
        }
    }

    /// Words of each part, number `w`: of two neighbours along k, or of [these](split_places).
    unsafe fn words<T: Split<PARTS>, const PARTS: usize>(
        block: &Block<'_, T>,
        outer: usize,
        w: usize,
        depth: usize,
    ) -> [u32; PARTS] {
        let value = |k: usize| {
            if k >= depth {
                return [0; PARTS];
            }
            // SAFETY: the caller's contract.
            unsafe { block.row(outer).wrapping_offset(block.k.at(k)).read_unaligned() }.split()
        };
        let places = if PARTS == 1 { [2 * w, 2 * w + 1] } else { split_places(w) };
        let [lower, upper] = places.map(value);
        std::array::from_fn(|part| u32::from(lower[part]) | u32::from(upper[part]) << 16)
    }

    unsafe fn rows<T: Split<PARTS>, const PARTS: usize>(
        block: &Block<'_, T>,
        rows: usize,
        depth: usize,
        out: *mut u32,
    ) {
        let all = depth.div_ceil(2).next_multiple_of(STEP);
        for (i, w) in (0..rows).flat_map(|i| (0..all).map(move |w| (i, w))) {
            // SAFETY: the caller's contract.
            let words = unsafe { words::<T, PARTS>(block, i, w, depth) };
            for (part, word) in words.into_iter().enumerate() {
                // SAFETY: as above.
                unsafe { *out.add(i * LDA + (w / STEP * PARTS + part) * STEP + w % STEP) = word };
            }
        }
    }

    unsafe fn columns<T: Split<PARTS>, const PARTS: usize>(
        block: &Block<'_, T>,
        columns: usize,
        depth: usize,
        out: *mut u32,
        panels: PanelSize,
    ) {
        let all = panels.words / PARTS;
        for (j, w) in (0..columns.next_multiple_of(SIDE)).flat_map(|j| (0..all).map(move |w| (j, w))) {
            let line = out.wrapping_add(j / SIDE * panels.stride + j % SIDE);
            let beyond = j >= columns;
            // SAFETY: the caller's contract.
            let words = if beyond { [0; PARTS] } else { unsafe { words::<T, PARTS>(block, j, w, depth) } };
            for (part, word) in words.into_iter().enumerate() {
                // SAFETY: as above.
                unsafe { *line.add(((w / STEP * PARTS + part) * STEP + w % STEP) * SIDE) = word };
            }
        }
    }

    macro_rules! instances {
        ($stored:ident $parts:literal $a:ident $b:ident) => {
            /// # Safety
            /// As `PackA`; the block covers its elements.
            pub(in super::super) unsafe fn $a(
                block: &Block<'_, $stored>,
                count: usize,
                depth: usize,
                out: *mut u32,
            ) {
                // SAFETY: the caller's contract.
                unsafe { rows::<$stored, $parts>(block, count, depth, out) }
            }

            /// # Safety
            /// As `PackB`; the block covers its elements.
            pub(in super::super) unsafe fn $b(
                block: &Block<'_, $stored>,
                count: usize,
                depth: usize,
                out: *mut u32,
                panels: PanelSize,
            ) {
                // SAFETY: the caller's contract.
                unsafe { columns::<$stored, $parts>(block, count, depth, out, panels) }
            }
        };
    }
    instances!(f32 1 pack_a_bf16 pack_b_bf16);
    instances!(f32 2 pack_a_two pack_b_two);
    instances!(f32 3 pack_a_three pack_b_three);
    instances!(u16 1 pack_a_pairs pack_b_pairs);
}
