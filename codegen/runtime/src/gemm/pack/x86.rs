//! Packing with AVX-512 and AVX2: two loaders, one for each layout, and a transpose of 16 × 16 or 8 × 8 words.

pub(in crate::gemm) mod bytes;
pub(in crate::gemm) mod fixed;
mod words;

use super::{Block, LDA, PanelSize};
use crate::gemm::blocking::chunks;
use crate::gemm::tiles;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;
use words::Words;

/// How many rows of memory are packed together, one panel after the other.
const ROWS_TOGETHER: usize = 16;
/// How many words of columns in runs are packed together, for one half of a panel after the other.
const RUNS_TOGETHER: usize = 64;

/// Of rows in runs, how many rows later a line is needed that is fetched now: more than a window has places, all of which see the same lines.
const ROWS_AHEAD: usize = 10;

/// Fetches a line that is packed soon. Lines of windows lie in many places, of which no processor finds the pattern.
#[inline(always)]
fn fetch<T>(line: *const T) {
    // SAFETY: prefetching reads nothing, wherever the line is.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

/// How 32-bit words are made of values, each of which has `PARTS` words of its own, that follow each other by 16 along k. Vectors have n lanes,
/// and panels two vectors of columns. The loaders are inlined into functions with the features: alone they would be calls.
trait Word<const PARTS: usize> {
    /// What memory holds.
    type Stored;
    /// A vector of words.
    type Vector: Words;
    /// Values of k in one word.
    const K: usize;
    /// Where the values of word `w` lie along k; there may be none at the second place.
    fn places(w: usize) -> (usize, Option<usize>);
    /// n words of each part from values contiguous along k, of which `left` are there; the rest are zero.
    unsafe fn along_k(p: *const Self::Stored, left: usize) -> [Self::Vector; PARTS];
    /// One word of each part for each of n columns (those in `mask`) that lie `STEP` apart, one or two: `p` at this k and, for pairs, `next` at
    /// the following one, where there is one.
    unsafe fn across_k<const STEP: usize>(
        p: *const Self::Stored,
        next: Option<*const Self::Stored>,
        mask: u16,
    ) -> [Self::Vector; PARTS];
}

/// Words are `f32`, as memory.
struct F32<V>(PhantomData<V>);
/// Words are `f32`, of bf16.
struct Widened<V>(PhantomData<V>);
/// Words are pairs of bf16, rounded from `f32`.
struct Bf16;
/// Words are pairs of bf16 too, of values of `f32` in several parts, each of which is what those before it left of the value
/// (`gemm/tiles.rs` says which pairs and how they are rounded).
struct Split;
/// Words are pairs of bf16, as memory.
struct Pair;

fn first(n: usize) -> u16 {
    if n >= 16 { !0 } else { (1u16 << n) - 1 }
}

impl<V: Words> Word<1> for F32<V> {
    type Stored = f32;
    type Vector = V;
    const K: usize = 1;
    fn places(w: usize) -> (usize, Option<usize>) {
        (w, None)
    }
    #[inline(always)]
    unsafe fn along_k(p: *const f32, left: usize) -> [V; 1] {
        // SAFETY: masked values are not read.
        unsafe { [V::load(p.cast(), first(left))] }
    }
    #[inline(always)]
    unsafe fn across_k<const STEP: usize>(p: *const f32, _next: Option<*const f32>, mask: u16) -> [V; 1] {
        // SAFETY: masked values are not read.
        unsafe { [lanes::<STEP, V>(p, mask)] }
    }
}

impl<V: Words> Word<1> for Widened<V> {
    type Stored = u16;
    type Vector = V;
    const K: usize = 1;
    fn places(w: usize) -> (usize, Option<usize>) {
        (w, None)
    }
    #[inline(always)]
    unsafe fn along_k(p: *const u16, left: usize) -> [V; 1] {
        // SAFETY: masked values are not read.
        unsafe { [V::halves::<1>(p, first(left)).raised()] }
    }
    #[inline(always)]
    unsafe fn across_k<const STEP: usize>(p: *const u16, _next: Option<*const u16>, mask: u16) -> [V; 1] {
        // SAFETY: masked values are not read.
        unsafe { [V::halves::<STEP>(p, mask).raised()] }
    }
}

impl Word<1> for Bf16 {
    type Stored = f32;
    type Vector = __m512i;
    const K: usize = 2;
    fn places(w: usize) -> (usize, Option<usize>) {
        neighbours(w)
    }
    #[inline(always)]
    unsafe fn along_k(p: *const f32, left: usize) -> [__m512i; 1] {
        // SAFETY: masked values are not read; the same 512 bits.
        unsafe {
            let [low, high] = two(p, left);
            [std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low))]
        }
    }
    #[inline(always)]
    unsafe fn across_k<const STEP: usize>(
        p: *const f32,
        next: Option<*const f32>,
        mask: u16,
    ) -> [__m512i; 1] {
        // SAFETY: masked values are not read; the same 256 bits.
        unsafe {
            let (even, odd) = (
                _mm512_cvtneps_pbh(line::<STEP>(Some(p), mask)),
                _mm512_cvtneps_pbh(line::<STEP>(next, mask)),
            );
            let words = |numbers| _mm512_cvtepu16_epi32(std::mem::transmute::<__m256bh, __m256i>(numbers));
            [_mm512_or_si512(words(even), _mm512_slli_epi32::<16>(words(odd)))]
        }
    }
}

impl<const PARTS: usize> Word<PARTS> for Split {
    type Stored = f32;
    type Vector = __m512i;
    const K: usize = 2;
    fn places(w: usize) -> (usize, Option<usize>) {
        let [lower, upper] = tiles::split_places(w);
        (lower, Some(upper))
    }
    #[inline(always)]
    unsafe fn along_k(p: *const f32, left: usize) -> [__m512i; PARTS] {
        // SAFETY: masked values are not read.
        unsafe { split(two(p, left)) }
    }
    #[inline(always)]
    unsafe fn across_k<const STEP: usize>(
        p: *const f32,
        next: Option<*const f32>,
        mask: u16,
    ) -> [__m512i; PARTS] {
        // SAFETY: masked values are not read.
        unsafe { split([line::<STEP>(Some(p), mask), line::<STEP>(next, mask)]) }
    }
}

/// The parts of values in the lower and in the upper halves of words, as `Split` of the portable packing. (Without closures, which would
/// be calls.)
#[inline(always)]
unsafe fn split<const PARTS: usize>([mut lower, mut upper]: [__m512; 2]) -> [__m512i; PARTS] {
    // SAFETY: registers only.
    unsafe {
        let mut parts = [__m512i::zeros(); PARTS];
        for (number, part) in parts.iter_mut().enumerate() {
            let (rounds, is_last) = (tiles::rounds(number, PARTS), number + 1 == PARTS);
            let (low, high) = (rounded(lower, rounds, is_last), rounded(upper, rounds, is_last));
            *part = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(low), high);
            if !is_last {
                lower = _mm512_sub_ps(lower, upper_half(low));
                upper = _mm512_sub_ps(upper, upper_half(high));
            }
        }
        parts
    }
}

/// Bits of `f32` whose upper halves are the values as bf16, [rounded](tiles::rounds) or not.
#[inline(always)]
unsafe fn rounded(values: __m512, rounds: bool, is_last: bool) -> __m512i {
    // SAFETY: registers only.
    unsafe {
        let (bits, half) = (_mm512_castps_si512(values), _mm512_set1_epi32(tiles::HALF));
        match (rounds, is_last) {
            (false, _) => bits,
            (true, false) => _mm512_add_epi32(bits, half),
            (true, true) => {
                let numbers = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(values, values);
                _mm512_mask_add_epi32(bits, numbers, bits, half)
            }
        }
    }
}

/// The upper halves of words, as `f32`.
#[inline(always)]
unsafe fn upper_half(words: __m512i) -> __m512 {
    // SAFETY: registers only.
    unsafe { _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(!0xffff))) }
}

/// Two words of one value each: `left` values from `p` on, and zeros.
#[inline(always)]
unsafe fn two(p: *const f32, left: usize) -> [__m512; 2] {
    // SAFETY: the caller's contract; masked values are not read.
    unsafe {
        [
            _mm512_maskz_loadu_ps(first(left), p),
            _mm512_maskz_loadu_ps(first(left.saturating_sub(16)), p.wrapping_add(16)),
        ]
    }
}

/// A vector of values that lie `STEP` apart, those in `mask`; the others are zero.
#[inline(always)]
unsafe fn lanes<const STEP: usize, V: Words>(p: *const f32, mask: u16) -> V {
    // SAFETY: the caller's contract; masked values are not read.
    unsafe {
        if STEP == 1 {
            return V::load(p.cast(), mask);
        }
        let spread = spread(mask);
        let low = V::load(p.cast(), spread as u16);
        V::even(low, V::load(p.wrapping_add(V::LANES).cast(), (spread >> V::LANES) as u16))
    }
}

/// Bit i as bit 2 · i.
fn spread(mask: u16) -> u32 {
    let bits = u32::from(mask);
    let bits = (bits | bits << 8) & 0x00ff_00ff;
    let bits = (bits | bits << 4) & 0x0f0f_0f0f;
    let bits = (bits | bits << 2) & 0x3333_3333;
    (bits | bits << 1) & 0x5555_5555
}

/// 16 values across k, as [`lanes`]; zeros, where there is no such place.
#[inline(always)]
unsafe fn line<const STEP: usize>(p: Option<*const f32>, mask: u16) -> __m512 {
    // SAFETY: the caller's contract; masked values are not read.
    unsafe {
        match p {
            Some(p) => _mm512_castsi512_ps(lanes::<STEP, __m512i>(p, mask)),
            None => _mm512_setzero_ps(),
        }
    }
}

/// The places of word `w` where words are pairs of neighbours.
fn neighbours(w: usize) -> (usize, Option<usize>) {
    (2 * w, Some(2 * w + 1))
}

impl Word<1> for Pair {
    type Stored = u16;
    type Vector = __m512i;
    const K: usize = 2;
    fn places(w: usize) -> (usize, Option<usize>) {
        neighbours(w)
    }
    #[inline(always)]
    unsafe fn along_k(p: *const u16, left: usize) -> [__m512i; 1] {
        let mask = if left >= 32 { !0 } else { (1u32 << left) - 1 };
        // SAFETY: masked values are not read.
        unsafe { [_mm512_maskz_loadu_epi16(mask, p.cast())] }
    }
    #[inline(always)]
    unsafe fn across_k<const STEP: usize>(
        p: *const u16,
        next: Option<*const u16>,
        mask: u16,
    ) -> [__m512i; 1] {
        // SAFETY: masked values are not read.
        unsafe {
            let even = __m512i::halves::<STEP>(p, mask);
            [match next {
                Some(next) => even.or(__m512i::halves::<STEP>(next, mask).raised()),
                None => even,
            }]
        }
    }
}

/// One word of each part for each of n places from `start` on the outer axis, `STEP` apart, at word `w` of k; zeros behind the last value.
#[inline(always)]
unsafe fn across<const PARTS: usize, const STEP: usize, W: Word<PARTS>>(
    block: &Block<'_, W::Stored>,
    start: usize,
    w: usize,
    depth: usize,
    mask: u16,
) -> [W::Vector; PARTS] {
    let at = |k: usize| block.depth(k).wrapping_add(start);
    let (k, next) = W::places(w);
    // SAFETY: the caller's contract.
    unsafe {
        if k >= depth {
            return [W::Vector::zeros(); PARTS];
        }
        W::across_k::<STEP>(at(k), next.filter(|&k| k < depth).map(at), mask)
    }
}

/// As many places as a vector has lanes, or fewer, in runs.
struct Pieces {
    /// Where the first lane of a vector would lie if the run went on to both sides, and the lanes that belong to it.
    pieces: [(isize, u16); 16],
    count: usize,
}

impl Pieces {
    /// None.
    const EMPTY: Pieces = Pieces { pieces: [(0, 0); 16], count: 0 };

    /// The places of a block's values of k, those of a vector of words of one value at a time.
    fn of_words(table: &[isize], lanes: usize) -> [Pieces; LDA / 8] {
        let mut all = [Pieces::EMPTY; LDA / 8];
        for (number, table) in table.chunks(lanes).enumerate() {
            all[number] = Pieces::of(table, 1);
        }
        all
    }

    /// The places of a table of a vector's entries at most, which lie `step` apart in a run.
    fn of(table: &[isize], step: isize) -> Pieces {
        let mut all = Pieces::EMPTY;
        // A bit for each place that a run starts at.
        let mut starts = u16::from(!table.is_empty());
        for (at, pair) in table.windows(2).enumerate() {
            starts |= u16::from(pair[1] != pair[0] + step) << (at + 1);
        }
        while starts != 0 {
            let start = starts.trailing_zeros() as usize;
            starts &= starts - 1;
            let end = table.len().min(starts.trailing_zeros() as usize);
            all.pieces[all.count] = (table[start] - start as isize * step, first(end) & !first(start));
            all.count += 1;
        }
        all
    }

    /// Packs words of these places to where `at` says: as [`across`], run after run.
    #[inline(always)]
    unsafe fn pack_across<const PARTS: usize, const STEP: usize, W: Word<PARTS>>(
        &self,
        block: &Block<'_, W::Stored>,
        words: Range<usize>,
        depth: usize,
        at: impl Fn(usize, usize) -> *mut u32,
    ) {
        let nothing = [(0, 0)];
        let pieces = if self.count == 0 { &nothing } else { &self.pieces[..self.count] };
        for (number, &(offset, mask)) in pieces.iter().enumerate() {
            let run = Block { base: block.base.wrapping_offset(offset), ..*block };
            for w in words.clone() {
                // SAFETY: the caller's contract; places of other runs are masked.
                unsafe {
                    // What the next panel has of this line of memory.
                    let (k, _) = W::places(w);
                    if k < depth {
                        fetch(run.depth(k).wrapping_add(2 * W::Vector::LANES * STEP));
                    }
                    for (part, line) in
                        across::<PARTS, STEP, W>(&run, 0, w, depth, mask).into_iter().enumerate()
                    {
                        // The first run's words have zeros in the lanes of those that follow.
                        match number {
                            0 => line.store(at(w, part)),
                            _ => line.store_some(at(w, part), mask),
                        }
                    }
                }
            }
        }
    }

    /// A vector of words of these places of k in a row (or column), where each word is one value.
    #[inline(always)]
    unsafe fn along_k<const PARTS: usize, W: Word<PARTS>>(
        &self,
        row: *const W::Stored,
    ) -> [W::Vector; PARTS] {
        debug_assert_eq!(W::K, 1, "words of one value");
        // SAFETY: the caller's contract; places of other runs are masked.
        unsafe {
            let mut lines = [W::Vector::zeros(); PARTS];
            for &(offset, mask) in &self.pieces[..self.count] {
                let piece = W::across_k::<1>(row.wrapping_offset(offset), None, mask);
                for (part, line) in lines.iter_mut().enumerate() {
                    *line = line.or(piece[part]);
                }
            }
            lines
        }
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
    let lanes = W::Vector::LANES;
    // SAFETY: the caller's contract; rows and values beyond the block are masked.
    unsafe {
        let words = depth.div_ceil(W::K);
        if block.k.unit() {
            for i in 0..rows {
                let (from, out) = (block.row(i), out.add(i * LDA));
                for w in (0..words).step_by(lanes) {
                    let k = w * W::K;
                    for (part, line) in W::along_k(from.add(k), depth - k).into_iter().enumerate() {
                        line.store(out.add(at_part::<PARTS>(w, part)));
                    }
                }
            }
            return;
        }
        if let Some(table) = block.k_in_runs() {
            let all = Pieces::of_words(&table[..depth], lanes);
            // Row by row, since neighbours of a row's values come from memory with them.
            for i in 0..rows {
                let ahead = block.row((i + ROWS_AHEAD).min(rows - 1));
                for w in (0..words).step_by(lanes) {
                    let pieces = &all[w / lanes];
                    fetch(ahead.wrapping_offset(pieces.pieces[0].0));
                    for (part, line) in pieces.along_k::<PARTS, W>(block.row(i)).into_iter().enumerate() {
                        line.store(out.add(i * LDA + at_part::<PARTS>(w, part)));
                    }
                }
            }
            return;
        }
        for i in (0..rows).step_by(lanes) {
            let mask = first(rows - i);
            for w in (0..words).step_by(lanes) {
                let mut lines = [[W::Vector::zeros(); PARTS]; 16];
                for (p, lines) in lines.iter_mut().enumerate().take(lanes) {
                    *lines = across::<PARTS, 1, W>(block, i, w + p, depth, mask);
                }
                for part in 0..PARTS {
                    let square = W::Vector::transposed(&lines, part);
                    for (r, line) in square.into_iter().enumerate().take(lanes) {
                        line.store(out.add((i + r) * LDA + at_part::<PARTS>(w, part)));
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
    let all = panels.words / PARTS;
    let (lanes, width) = (W::Vector::LANES, 2 * W::Vector::LANES);
    // Word `w` of a part in the half panel that starts at column j.
    let at = |j: usize, w: usize, part: usize| {
        let line = at_part::<PARTS>(w / 16 * 16, part) + w % 16;
        out.wrapping_add(j / width * panels.stride + j % width + line * width)
    };
    let halves = || (0..columns.next_multiple_of(width)).step_by(lanes);
    // SAFETY: the caller's contract; columns beyond the block are masked.
    unsafe {
        if block.outer.unit() {
            // Along rows of memory, since this may come from far; several together, since lines of different panels fall into the same
            // sets of L1.
            for together in chunks(0..all, ROWS_TOGETHER / W::K) {
                for panel in (0..columns).step_by(width) {
                    for w in together.clone() {
                        for j in [panel, panel + lanes] {
                            let mask = first(columns.saturating_sub(j));
                            let lines = across::<PARTS, 1, W>(block, j, w, depth, mask);
                            for (part, line) in lines.into_iter().enumerate() {
                                line.store(at(j, w, part));
                            }
                        }
                    }
                }
            }
            return;
        }
        if let Some((table, step)) = block.columns_in_runs(columns) {
            // A few words of all panels: windows of neighbouring columns, and of neighbouring places of k, see the same part of an image.
            for together in chunks(0..all, RUNS_TOGETHER) {
                for j in halves() {
                    let pieces = Pieces::of(&table[j.min(columns)..columns.min(j + lanes)], step);
                    let at = |w: usize, part: usize| at(j, w, part);
                    match step {
                        1 => pieces.pack_across::<PARTS, 1, W>(block, together.clone(), depth, at),
                        _ => pieces.pack_across::<PARTS, 2, W>(block, together.clone(), depth, at),
                    }
                }
            }
            return;
        }
        match block.k_in_runs() {
            Some(table) => {
                let pieces = Pieces::of_words(&table[..depth], lanes);
                for j in halves() {
                    for w in (0..all).step_by(lanes) {
                        let pieces = Some(&pieces[w / lanes]);
                        square::<PARTS, W>(block, (j, columns), (w, all, depth), pieces, at);
                    }
                }
            }
            None => {
                for j in halves() {
                    for w in (0..all).step_by(lanes) {
                        square::<PARTS, W>(block, (j, columns), (w, all, depth), None, at);
                    }
                }
            }
        }
    }
}

/// Packs n words of the n columns from `j` on, which lie along k, perhaps in pieces, to where `at` says.
#[inline(always)]
unsafe fn square<const PARTS: usize, W: Word<PARTS>>(
    block: &Block<'_, W::Stored>,
    (j, columns): (usize, usize),
    (w, all, depth): (usize, usize, usize),
    pieces: Option<&Pieces>,
    at: impl Fn(usize, usize, usize) -> *mut u32,
) {
    // SAFETY: the caller's contract; columns and values beyond the block are masked.
    unsafe {
        let mut lines = [[W::Vector::zeros(); PARTS]; 16];
        // A fixed number of turns, so that they are unrolled.
        for (c, lines) in lines.iter_mut().enumerate().take(W::Vector::LANES) {
            let k = w * W::K;
            *lines = match pieces {
                _ if j + c >= columns => [W::Vector::zeros(); PARTS],
                Some(pieces) => pieces.along_k::<PARTS, W>(block.row(j + c)),
                None => W::along_k(block.row(j + c).wrapping_add(k), depth.saturating_sub(k)),
            };
        }
        for part in 0..PARTS {
            let square = W::Vector::transposed(&lines, part);
            for (r, line) in square.into_iter().enumerate().take(W::Vector::LANES.min(all - w)) {
                line.store(at(j, w + r, part));
            }
        }
    }
}

packers!("avx512f,avx512bw" f32: pack_a_f32 as pack_a::<1, F32<__m512i>>, pack_b_f32 as pack_b::<1, F32<__m512i>>);
packers!("avx2" f32: pack_a_f32_of_8 as pack_a::<1, F32<__m256i>>, pack_b_f32_of_8 as pack_b::<1, F32<__m256i>>);
packers!("avx512f,avx512bw,avx512bf16" f32: pack_a_bf16 as pack_a::<1, Bf16>, pack_b_bf16 as pack_b::<1, Bf16>);
packers!("avx512f,avx512bw" f32: pack_a_two as pack_a::<2, Split>, pack_b_two as pack_b::<2, Split>);
packers!("avx512f,avx512bw" f32: pack_a_three as pack_a::<3, Split>, pack_b_three as pack_b::<3, Split>);
packers!("avx512f,avx512bw,avx512vl" u16: pack_a_pairs as pack_a::<1, Pair>, pack_b_pairs as pack_b::<1, Pair>);
packers!("avx512f,avx512bw,avx512vl" u16: pack_a_widened as pack_a::<1, Widened<__m512i>>, pack_b_widened as pack_b::<1, Widened<__m512i>>);
packers!("avx2" u16: pack_a_widened_of_8 as pack_a::<1, Widened<__m256i>>, pack_b_widened_of_8 as pack_b::<1, Widened<__m256i>>);
