//! Packing: strided operands into the words that the register tiles read.
//!
//! The fast functions take `f32` blocks with one axis of unit stride (where words are pairs of bf16, blocks of bf16,
//! too), also columns of B and values of k in runs, as what a window sees of an image lies; everything else is first copied to such a block (`stage`). With AVX-512, two loaders (16 words
//! along k, 16 words across it) and one 16×16 transpose serve both operands, both layouts and all kinds of words.

use super::microkernel::{LDA, Load};
use std::ops::Range;

/// Where the elements of one axis lie, from the start of a block, in elements.
#[derive(Clone, Copy)]
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
        match self {
            Offsets::Strided(1) => count,
            Offsets::Strided(_) => 1,
            Offsets::Table(table) => {
                runs(&table[..count.min(LOOKED_AT)]).map(|run| run.len()).max().unwrap_or(0)
            }
        }
    }
}

/// Elements side by side from which on runs are packed as they lie.
pub(super) const RUN: usize = 4;
/// Entries of a table that tell how long its runs are.
const LOOKED_AT: usize = 32;

/// The parts of a table whose elements lie side by side.
fn runs(table: &[isize]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = &table[start..];
        let breaks = rest.windows(2).position(|pair| pair[1] != pair[0] + 1);
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
    /// Where columns lie, if they lie in runs that are long enough to be packed as they are.
    fn columns_in_runs(&self, columns: usize) -> Option<&'a [isize]> {
        match self.outer {
            Offsets::Table(table) if !self.k.unit() && self.outer.run(columns) >= RUN => Some(table),
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

/// Packing of blocks that hold the halves of words already.
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
            for run in runs(&table[..depth]) {
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
            } else if let Some(table) = block.columns_in_runs(columns) {
                for run in runs(&table[j..j + count]) {
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
        let ((outer_start, outer), (k_start, k)) = (start(self.outer, outer), start(self.k, k));
        let bytes = outer_start.wrapping_add(k_start).wrapping_mul(self.size as isize);
        Source { base: self.base.wrapping_offset(bytes), outer, k, ..*self }
    }

    /// Where one element lies.
    pub(super) fn at(&self, outer: usize, k: usize) -> *const u8 {
        let offset = self.outer.at(outer).wrapping_add(self.k.at(k));
        self.base.wrapping_offset(offset.wrapping_mul(self.size as isize))
    }

    /// Values along k of one row, widened.
    ///
    /// # Safety
    /// The operand has them; `out` holds `depth` values.
    pub(super) unsafe fn row(&self, outer: usize, depth: usize, out: *mut f32) {
        // SAFETY: as promised.
        unsafe { self.line(self.outer.at(outer), self.k, depth, out) }
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
                    for run in runs(&table[..count]) {
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
    use crate::gemm::tiles::{SIDE, STEP, flushed};
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
        /// As the processors that have tiles: subnormal numbers count as zero.
        fn split(self) -> [u16; PARTS] {
            let mut rest = self;
            std::array::from_fn(|_| {
                let part = Bf16::narrow(flushed(rest));
                rest -= Bf16::widen(part);
                part
            })
        }
    }

    /// Words of each part, of the values at places 2 · `w` and after it along k.
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
        let (even, odd) = (value(2 * w), value(2 * w + 1));
        std::array::from_fn(|part| u32::from(even[part]) | u32::from(odd[part]) << 16)
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

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::{Block, LDA, PanelSize, runs};
    use std::arch::x86_64::*;

    /// Columns of a panel.
    const NR: usize = 32;

    /// How 32-bit words are made of values, each of which has `PARTS` words of its own, that follow each other by 16 along k. The
    /// loaders are inlined into functions with the features: alone they would be calls.
    trait Word<const PARTS: usize> {
        /// What memory holds.
        type Stored;
        /// Values of k in one word.
        const K: usize;
        /// 16 words of each part from values contiguous along k, of which `left` are there; the rest are zero.
        unsafe fn along_k(p: *const Self::Stored, left: usize) -> [__m512i; PARTS];
        /// One word of each part for each of 16 columns (those in `mask`): `p` at this k and, for pairs, `next` at the
        /// following one, where there is one.
        unsafe fn across_k(
            p: *const Self::Stored,
            next: Option<*const Self::Stored>,
            mask: u16,
        ) -> [__m512i; PARTS];
    }

    /// Words are `f32`, as memory.
    struct F32;
    /// Words are pairs of bf16, rounded from `f32`. Of several parts, each is what those before it left of the value.
    struct Bf16;
    /// Words are pairs of bf16, as memory.
    struct Pair;

    fn first(n: usize) -> u16 {
        if n >= 16 { !0 } else { (1u16 << n) - 1 }
    }

    impl Word<1> for F32 {
        type Stored = f32;
        const K: usize = 1;
        #[inline(always)]
        unsafe fn along_k(p: *const f32, left: usize) -> [__m512i; 1] {
            // SAFETY: masked values are not read.
            unsafe { [_mm512_castps_si512(_mm512_maskz_loadu_ps(first(left), p))] }
        }
        #[inline(always)]
        unsafe fn across_k(p: *const f32, _next: Option<*const f32>, mask: u16) -> [__m512i; 1] {
            // SAFETY: masked values are not read.
            unsafe { [_mm512_castps_si512(_mm512_maskz_loadu_ps(mask, p))] }
        }
    }

    impl<const PARTS: usize> Word<PARTS> for Bf16 {
        type Stored = f32;
        const K: usize = 2;
        #[inline(always)]
        unsafe fn along_k(p: *const f32, left: usize) -> [__m512i; PARTS] {
            let mut parts = [zeros(); PARTS];
            // SAFETY: masked values are not read; the same 512 bits.
            unsafe {
                let mut low = _mm512_maskz_loadu_ps(first(left), p);
                let mut high = _mm512_maskz_loadu_ps(first(left.saturating_sub(16)), p.wrapping_add(16));
                for (number, part) in parts.iter_mut().enumerate() {
                    *part = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
                    if number + 1 < PARTS {
                        low = _mm512_sub_ps(low, as_f32(_mm512_castsi512_si256(*part)));
                        high = _mm512_sub_ps(high, as_f32(_mm512_extracti64x4_epi64::<1>(*part)));
                    }
                }
            }
            parts
        }
        #[inline(always)]
        unsafe fn across_k(p: *const f32, next: Option<*const f32>, mask: u16) -> [__m512i; PARTS] {
            let mut parts = [zeros(); PARTS];
            // SAFETY: masked values are not read; the same 256 bits.
            unsafe {
                let bf16 = |x| std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x));
                let mut even = _mm512_maskz_loadu_ps(mask, p);
                let mut odd = match next {
                    Some(next) => _mm512_maskz_loadu_ps(mask, next),
                    None => _mm512_setzero_ps(),
                };
                for (number, part) in parts.iter_mut().enumerate() {
                    let (low, high) = (bf16(even), bf16(odd));
                    let upper = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(high));
                    *part = _mm512_or_si512(_mm512_cvtepu16_epi32(low), upper);
                    if number + 1 < PARTS {
                        even = _mm512_sub_ps(even, as_f32(low));
                        odd = _mm512_sub_ps(odd, as_f32(high));
                    }
                }
            }
            parts
        }
    }

    impl Word<1> for Pair {
        type Stored = u16;
        const K: usize = 2;
        #[inline(always)]
        unsafe fn along_k(p: *const u16, left: usize) -> [__m512i; 1] {
            let mask = if left >= 32 { !0 } else { (1u32 << left) - 1 };
            // SAFETY: masked values are not read.
            unsafe { [_mm512_maskz_loadu_epi16(mask, p.cast())] }
        }
        #[inline(always)]
        unsafe fn across_k(p: *const u16, next: Option<*const u16>, mask: u16) -> [__m512i; 1] {
            // SAFETY: masked values are not read.
            unsafe {
                let line = |p: *const u16| _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p.cast()));
                let odd = next.map_or(_mm512_setzero_si512(), |next| _mm512_slli_epi32::<16>(line(next)));
                [_mm512_or_si512(line(p), odd)]
            }
        }
    }

    #[inline(always)]
    fn zeros() -> __m512i {
        // SAFETY: inlined into functions with AVX-512.
        unsafe { _mm512_setzero_si512() }
    }

    /// 16 numbers of bf16 as `f32`.
    #[inline(always)]
    unsafe fn as_f32(numbers: __m256i) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(numbers))) }
    }

    /// One word of each part for each of 16 places from `start` on the outer axis, at word `w` of k.
    #[inline(always)]
    unsafe fn across<const PARTS: usize, W: Word<PARTS>>(
        block: &Block<'_, W::Stored>,
        start: usize,
        w: usize,
        depth: usize,
        mask: u16,
    ) -> [__m512i; PARTS] {
        let at = |k: usize| block.depth(k).wrapping_add(start);
        let next = (W::K == 2 && w * 2 + 1 < depth).then(|| at(w * 2 + 1));
        // SAFETY: the caller's contract.
        unsafe { W::across_k(at(w * W::K), next, mask) }
    }

    /// Sixteen places or fewer, in runs that lie side by side.
    struct Pieces {
        /// Where the first lane of a vector would lie if the run went on to both sides, and the lanes that belong to it.
        pieces: [(isize, u16); 16],
        count: usize,
    }

    impl Pieces {
        /// The places of a table of sixteen entries at most.
        fn of(table: &[isize]) -> Pieces {
            let mut all = Pieces { pieces: [(0, 0); 16], count: 0 };
            for run in runs(table) {
                all.pieces[all.count] =
                    (table[run.start] - run.start as isize, first(run.end) & !first(run.start));
                all.count += 1;
            }
            all
        }

        /// Words of all runs, each from where [`Word::across_k`] reads it, given the run's offset.
        #[inline(always)]
        unsafe fn joined<const PARTS: usize, W: Word<PARTS>>(
            &self,
            at: impl Fn(isize) -> (*const W::Stored, Option<*const W::Stored>),
        ) -> [__m512i; PARTS] {
            let mut lines = [zeros(); PARTS];
            for &(offset, mask) in &self.pieces[..self.count] {
                let (p, next) = at(offset);
                // SAFETY: the caller's contract; places of other runs are masked.
                let piece = unsafe { W::across_k(p, next, mask) };
                for (line, piece) in lines.iter_mut().zip(piece) {
                    // SAFETY: registers only.
                    *line = unsafe { _mm512_or_si512(*line, piece) };
                }
            }
            lines
        }

        /// As [`across`](self::across) for these places; zeros at a word behind the last.
        #[inline(always)]
        unsafe fn across<const PARTS: usize, W: Word<PARTS>>(
            &self,
            block: &Block<'_, W::Stored>,
            w: usize,
            depth: usize,
        ) -> [__m512i; PARTS] {
            if w * W::K >= depth {
                return [zeros(); PARTS];
            }
            let at = |k: usize, offset: isize| block.depth(k).wrapping_offset(offset);
            let next = |offset| (W::K == 2 && w * 2 + 1 < depth).then(|| at(w * 2 + 1, offset));
            // SAFETY: the caller's contract.
            unsafe { self.joined::<PARTS, W>(|offset| (at(w * W::K, offset), next(offset))) }
        }

        /// Sixteen words of these places of k in a row (or column), where each word is one value.
        #[inline(always)]
        unsafe fn along_k<const PARTS: usize, W: Word<PARTS>>(
            &self,
            row: *const W::Stored,
        ) -> [__m512i; PARTS] {
            debug_assert_eq!(W::K, 1, "words of one value");
            // SAFETY: the caller's contract.
            unsafe { self.joined::<PARTS, W>(|offset| (row.wrapping_offset(offset), None)) }
        }
    }

    /// The first word of a part of the 16 that begin at `w`.
    fn at_part<const PARTS: usize>(w: usize, part: usize) -> usize {
        w * PARTS + part * 16
    }

    #[inline(always)]
    unsafe fn pack_a<const PARTS: usize, W: Word<PARTS>>(
        block: &Block<'_, W::Stored>,
        rows: usize,
        depth: usize,
        out: *mut u32,
    ) {
        // SAFETY: the caller's contract; rows and values beyond the block are masked.
        unsafe {
            let words = depth.div_ceil(W::K);
            if block.k.unit() {
                for i in 0..rows {
                    let (from, out) = (block.row(i), out.add(i * LDA));
                    for w in (0..words).step_by(16) {
                        let k = w * W::K;
                        for (part, line) in W::along_k(from.add(k), depth - k).into_iter().enumerate() {
                            _mm512_storeu_si512(out.add(at_part::<PARTS>(w, part)).cast(), line);
                        }
                    }
                }
                return;
            }
            if let Some(table) = block.k_in_runs() {
                for w in (0..words).step_by(16) {
                    let pieces = Pieces::of(&table[w..depth.min(w + 16)]);
                    for i in 0..rows {
                        for (part, line) in pieces.along_k::<PARTS, W>(block.row(i)).into_iter().enumerate() {
                            _mm512_storeu_si512(out.add(i * LDA + at_part::<PARTS>(w, part)).cast(), line);
                        }
                    }
                }
                return;
            }
            for i in (0..rows).step_by(16) {
                let mask = first(rows - i);
                for w in (0..words).step_by(16) {
                    let mut squares = [[zeros(); 16]; PARTS];
                    for p in 0..16.min(words - w) {
                        let lines = across::<PARTS, W>(block, i, w + p, depth, mask);
                        squares.iter_mut().zip(lines).for_each(|(square, line)| square[p] = line);
                    }
                    for (part, square) in squares.into_iter().enumerate() {
                        for (r, line) in transpose(square).into_iter().enumerate() {
                            let out = out.add((i + r) * LDA + at_part::<PARTS>(w, part));
                            _mm512_storeu_si512(out.cast(), line);
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn pack_b<const PARTS: usize, W: Word<PARTS>>(
        block: &Block<'_, W::Stored>,
        columns: usize,
        depth: usize,
        out: *mut u32,
        panels: PanelSize,
    ) {
        let (words, all) = (depth.div_ceil(W::K), panels.words / PARTS);
        // Word `w` of a part in the half panel, 16 columns wide, that starts at column j.
        let at = |j: usize, w: usize, part: usize| {
            let line = at_part::<PARTS>(w / 16 * 16, part) + w % 16;
            out.wrapping_add(j / NR * panels.stride + j % NR + line * NR).cast()
        };
        let halves = || (0..columns.next_multiple_of(NR)).step_by(16);
        // SAFETY: the caller's contract; columns beyond the block are masked.
        unsafe {
            if block.outer.unit() {
                // Along rows of memory, since this may come from far.
                for w in 0..all {
                    for j in halves() {
                        let mask = first(columns.saturating_sub(j));
                        let lines = if w < words {
                            across::<PARTS, W>(block, j, w, depth, mask)
                        } else {
                            [zeros(); PARTS]
                        };
                        for (part, line) in lines.into_iter().enumerate() {
                            _mm512_storeu_si512(at(j, w, part), line);
                        }
                    }
                }
                return;
            }
            if let Some(table) = block.columns_in_runs(columns) {
                for j in halves() {
                    let pieces = Pieces::of(&table[j.min(columns)..columns.min(j + 16)]);
                    for w in 0..all {
                        let lines = pieces.across::<PARTS, W>(block, w, depth);
                        for (part, line) in lines.into_iter().enumerate() {
                            _mm512_storeu_si512(at(j, w, part), line);
                        }
                    }
                }
                return;
            }
            match block.k_in_runs() {
                Some(table) => {
                    for w in (0..all).step_by(16) {
                        let pieces = Pieces::of(&table[w.min(depth)..depth.min(w + 16)]);
                        for j in halves() {
                            square::<PARTS, W>(block, (j, columns), (w, all, depth), Some(&pieces), at);
                        }
                    }
                }
                None => {
                    for j in halves() {
                        for w in (0..all).step_by(16) {
                            square::<PARTS, W>(block, (j, columns), (w, all, depth), None, at);
                        }
                    }
                }
            }
        }
    }

    /// Packs 16 words of the 16 columns from `j` on, which lie along k, perhaps in pieces, to where `at` says.
    #[inline(always)]
    unsafe fn square<const PARTS: usize, W: Word<PARTS>>(
        block: &Block<'_, W::Stored>,
        (j, columns): (usize, usize),
        (w, all, depth): (usize, usize, usize),
        pieces: Option<&Pieces>,
        at: impl Fn(usize, usize, usize) -> *mut __m512i,
    ) {
        let mut squares = [[zeros(); 16]; PARTS];
        // SAFETY: the caller's contract; columns and values beyond the block are masked.
        unsafe {
            for c in 0..16.min(columns.saturating_sub(j)) {
                let k = w * W::K;
                let lines = match pieces {
                    Some(pieces) => pieces.along_k::<PARTS, W>(block.row(j + c)),
                    None => W::along_k(block.row(j + c).wrapping_add(k), depth.saturating_sub(k)),
                };
                squares.iter_mut().zip(lines).for_each(|(square, line)| square[c] = line);
            }
            for (part, square) in squares.into_iter().enumerate() {
                for (r, line) in transpose(square).into_iter().enumerate().take(all - w) {
                    _mm512_storeu_si512(at(j, w + r, part), line);
                }
            }
        }
    }

    macro_rules! instances {
        ($features:literal $word:ident<$parts:literal> $stored:ident $a:ident $b:ident) => {
            /// # Safety
            /// As `PackA`; the block covers its elements.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn $a(
                block: &Block<'_, $stored>,
                rows: usize,
                depth: usize,
                out: *mut u32,
            ) {
                // SAFETY: the caller's contract.
                unsafe { pack_a::<$parts, $word>(block, rows, depth, out) }
            }

            /// # Safety
            /// As `PackB`; the block covers its elements.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn $b(
                block: &Block<'_, $stored>,
                columns: usize,
                depth: usize,
                out: *mut u32,
                panels: PanelSize,
            ) {
                // SAFETY: the caller's contract.
                unsafe { pack_b::<$parts, $word>(block, columns, depth, out, panels) }
            }
        };
    }
    instances!("avx512f,avx512bw" F32<1> f32 pack_a_f32 pack_b_f32);
    instances!("avx512f,avx512bw,avx512bf16" Bf16<1> f32 pack_a_bf16 pack_b_bf16);
    instances!("avx512f,avx512bw,avx512bf16" Bf16<2> f32 pack_a_two pack_b_two);
    instances!("avx512f,avx512bw,avx512bf16" Bf16<3> f32 pack_a_three pack_b_three);
    instances!("avx512f,avx512bw,avx512vl" Pair<1> u16 pack_a_pairs pack_b_pairs);

    /// 16×16 words: pairs, then quadruples within 128-bit lanes, then the lanes.
    #[inline(always)]
    unsafe fn transpose(r: [__m512i; 16]) -> [__m512i; 16] {
        // SAFETY: registers only.
        unsafe {
            let mut t = r;
            for i in 0..8 {
                t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
            }
            let mut q = t;
            for i in (0..16).step_by(4) {
                for h in 0..2 {
                    q[i + 2 * h] = _mm512_unpacklo_epi64(t[i + h], t[i + 2 + h]);
                    q[i + 2 * h + 1] = _mm512_unpackhi_epi64(t[i + h], t[i + 2 + h]);
                }
            }
            let mut out = q;
            for c in 0..4 {
                let even_top = _mm512_shuffle_i32x4::<0x88>(q[c], q[4 + c]);
                let odd_top = _mm512_shuffle_i32x4::<0xdd>(q[c], q[4 + c]);
                let even_low = _mm512_shuffle_i32x4::<0x88>(q[8 + c], q[12 + c]);
                let odd_low = _mm512_shuffle_i32x4::<0xdd>(q[8 + c], q[12 + c]);
                out[c] = _mm512_shuffle_i32x4::<0x88>(even_top, even_low);
                out[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd_top, odd_low);
                out[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even_top, even_low);
                out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd_top, odd_low);
            }
            out
        }
    }
}
