//! Packing for products in [fixed point](crate::gemm::fixed): blocks of 128 values of k are read twice, for their largest magnitude first.

use super::super::{Block, LDA, PanelSize};
use super::words::Words;
use super::{ROWS_TOGETHER, fetch, first};
use crate::gemm::ahead::LINE;
use crate::gemm::blocking::chunks;
use crate::gemm::fixed::{LARGEST_INVERSE, MOST, VALUES, WORDS};
use std::arch::x86_64::*;
use std::ops::Range;

/// Vectors of a block's values along k.
const VECTORS: usize = VALUES / LANES;
/// Lanes of a vector.
const LANES: usize = 16;
/// Columns of a panel.
const WIDTH: usize = 2 * LANES;
/// Of rows (or columns) that lie along k, how many later a block is needed that is fetched now: no processor finds the next one of such short pieces.
const ROWS_AHEAD: usize = 8;
/// Columns whose scales are found together, before any of them is packed.
const COLUMNS_TOGETHER: usize = 768;

/// What memory holds. Everything is inlined into functions that have AVX-512.
trait Stored: Copy {
    /// Sixteen neighbours, widened; those that are not in the mask are zero.
    ///
    /// # Safety
    /// Values in the mask are there.
    unsafe fn load(p: *const Self, mask: u16) -> __m512;
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load(p: *const f32, mask: u16) -> __m512 {
        // SAFETY: masked values are not read.
        unsafe { _mm512_maskz_loadu_ps(mask, p) }
    }
}

/// Numbers of bf16.
impl Stored for u16 {
    #[inline(always)]
    unsafe fn load(p: *const u16, mask: u16) -> __m512 {
        // SAFETY: masked values are not read.
        unsafe {
            let values = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(values))
        }
    }
}

/// Bits of the larger magnitude: those of what is not finite are largest.
#[inline(always)]
unsafe fn larger(most: __m512i, values: __m512) -> __m512i {
    // SAFETY: registers only.
    unsafe {
        let magnitudes = _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(i32::MAX));
        _mm512_max_epi32(most, magnitudes)
    }
}

/// What values are multiplied by to be whole numbers, and these to be values, for blocks with such largest magnitudes. What is not finite
/// has such a scale.
#[inline(always)]
unsafe fn scales(most: __m512i) -> (__m512, __m512) {
    // SAFETY: registers only.
    unsafe {
        let (limit, of_limit) = (_mm512_set1_ps(LARGEST_INVERSE), _mm512_set1_ps(f32::MIN_POSITIVE));
        let (most, numbers) = (_mm512_castsi512_ps(most), _mm512_set1_ps(MOST));
        let inverse = _mm512_div_ps(numbers, most);
        let is_tiny = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(inverse, limit);
        let scale = _mm512_mask_mov_ps(_mm512_div_ps(most, numbers), is_tiny, of_limit);
        (_mm512_min_ps(inverse, limit), scale)
    }
}

/// Values as whole numbers.
#[inline(always)]
unsafe fn whole(values: __m512, inverse: __m512) -> __m512i {
    // SAFETY: registers only.
    unsafe { _mm512_cvtps_epi32(_mm512_mul_ps(values, inverse)) }
}

/// Fetches the lines of a block's values.
#[inline(always)]
fn fetch_values<T>(from: *const T) {
    for line in (0..VALUES * size_of::<T>()).step_by(LINE) {
        fetch(from.wrapping_byte_add(line));
    }
}

/// Eight words of sixteen values along k.
#[inline(always)]
unsafe fn along_k(values: __m512, inverse: __m512) -> __m256i {
    // SAFETY: registers only.
    unsafe { _mm512_cvtepi32_epi16(whole(values, inverse)) }
}

/// A row (or a column) whose values lie along k.
#[derive(Clone, Copy)]
struct Row {
    values: [__m512; VECTORS],
    /// The same in all lanes.
    inverse: __m512,
    scale: u32,
}

impl Row {
    /// The block of `count` values from `p` on.
    #[inline(always)]
    unsafe fn load<T: Stored>(p: *const T, count: usize) -> Self {
        // SAFETY: the caller's contract; other values are masked.
        unsafe {
            let (mut values, mut most) = ([_mm512_setzero_ps(); VECTORS], _mm512_setzero_si512());
            for (number, values) in values.iter_mut().enumerate() {
                let at = number * LANES;
                *values = T::load(p.wrapping_add(at), first(count.saturating_sub(at)));
                most = larger(most, *values);
            }
            let (inverse, scale) = scales(_mm512_set1_epi32(_mm512_reduce_max_epi32(most)));
            Row { values, inverse, scale: _mm512_cvtss_f32(scale).to_bits() }
        }
    }

    /// Words `16 · number` and so on.
    #[inline(always)]
    unsafe fn words(&self, number: usize) -> __m512i {
        // SAFETY: registers only.
        unsafe {
            let [low, high] = [0, 1].map(|half| self.values[2 * number + half]);
            let low = _mm512_castsi256_si512(along_k(low, self.inverse));
            _mm512_inserti64x4::<1>(low, along_k(high, self.inverse))
        }
    }
}

/// Sixteen rows (or columns) that lie across k.
#[derive(Clone, Copy)]
struct Across {
    inverse: __m512,
    scale: __m512,
}

impl Across {
    /// Word `w` of each, of values from `k` on.
    #[inline(always)]
    unsafe fn word<T: Stored>(
        &self,
        block: &Block<'_, T>,
        outer: usize,
        (k, w): (&Range<usize>, usize),
        mask: u16,
    ) -> __m512i {
        // SAFETY: the caller's contract; other rows are masked.
        unsafe {
            let mut halves = [_mm512_setzero_si512(); 2];
            for (half, value) in halves.iter_mut().zip(k.start + 2 * w..) {
                if value < k.end {
                    *half = whole(T::load(block.depth(value).wrapping_add(outer), mask), self.inverse);
                }
            }
            _mm512_mask_blend_epi16(0xaaaa_aaaa, halves[0], _mm512_slli_epi32::<16>(halves[1]))
        }
    }
}

/// The blocks of `depth` values of k.
fn blocks(depth: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    chunks(0..depth, VALUES).enumerate()
}

#[inline(always)]
unsafe fn pack_rows<T: Stored>(block: &Block<'_, T>, rows: usize, depth: usize, out: *mut u32) {
    // SAFETY: the caller's contract; rows and values beyond the block are masked.
    unsafe {
        for (number, k) in blocks(depth) {
            let out = |row: usize| out.add(row * LDA + number * WORDS);
            if block.k.unit() {
                for i in 0..rows {
                    fetch_values(block.row((i + ROWS_AHEAD).min(rows - 1)).wrapping_add(k.start));
                    let row = Row::load(block.row(i).wrapping_add(k.start), k.len());
                    for number in 0..VECTORS / 2 {
                        row.words(number).store(out(i).add(number * LANES));
                    }
                    out(i).add(WORDS - 1).write(row.scale);
                }
                continue;
            }
            for i in (0..rows).step_by(LANES) {
                let (mask, mut most) = (first(rows - i), _mm512_setzero_si512());
                for k in k.clone() {
                    most = larger(most, T::load(block.depth(k).wrapping_add(i), mask));
                }
                let (inverse, scale) = scales(most);
                let across = Across { inverse, scale };
                for w in (0..WORDS - 1).step_by(LANES) {
                    let mut lines = [[_mm512_setzero_si512(); 1]; LANES];
                    for (p, line) in lines.iter_mut().enumerate() {
                        *line = [across.word(block, i, (&k, w + p), mask)];
                    }
                    for (r, line) in <__m512i as Words>::transposed(&lines, 0).into_iter().enumerate() {
                        line.store(out(i + r).add(w));
                    }
                }
                let mut scales = [0.0; LANES];
                _mm512_storeu_ps(scales.as_mut_ptr(), across.scale);
                for (r, scale) in scales.into_iter().enumerate() {
                    out(i + r).add(WORDS - 1).cast::<f32>().write(scale);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn pack_columns<T: Stored>(
    block: &Block<'_, T>,
    columns: usize,
    depth: usize,
    out: *mut u32,
    panels: PanelSize,
) {
    // SAFETY: the caller's contract; columns and values beyond the block are masked.
    unsafe {
        for (number, k) in blocks(depth) {
            // Word `w` of the half panel that starts at column j.
            let at = |j: usize, w: usize| {
                out.add(j / WIDTH * panels.stride + j % WIDTH + (number * WORDS + w) * WIDTH)
            };
            if block.k.unit() {
                for j in (0..columns.next_multiple_of(WIDTH)).step_by(LANES) {
                    pack_square(block, (j, columns), &k, |w| at(j, w));
                }
                continue;
            }
            for together in chunks(0..columns.next_multiple_of(WIDTH), COLUMNS_TOGETHER) {
                let halves = || together.clone().step_by(LANES);
                let mask = |j: usize| first(columns.saturating_sub(j));
                // Along rows of memory, since they may come from far.
                let mut most = [_mm512_setzero_si512(); COLUMNS_TOGETHER / LANES];
                for k in k.clone() {
                    for (j, most) in halves().zip(&mut most) {
                        *most = larger(*most, T::load(block.depth(k).wrapping_add(j), mask(j)));
                    }
                }
                let nothing = Across { inverse: _mm512_setzero_ps(), scale: _mm512_setzero_ps() };
                let mut all = [nothing; COLUMNS_TOGETHER / LANES];
                for ((j, most), across) in halves().zip(most).zip(&mut all) {
                    let (inverse, scale) = scales(most);
                    *across = Across { inverse, scale };
                    _mm512_storeu_ps(at(j, WORDS - 1).cast(), scale);
                }
                for words in chunks(0..WORDS - 1, ROWS_TOGETHER / 2) {
                    for (j, across) in halves().zip(&all) {
                        for w in words.clone() {
                            across.word(block, j, (&k, w), mask(j)).store(at(j, w));
                        }
                    }
                }
            }
        }
    }
}

/// Packs a block of the sixteen columns from `j` on, which lie along k, to where `at` says.
#[inline(always)]
unsafe fn pack_square<T: Stored>(
    block: &Block<'_, T>,
    (j, columns): (usize, usize),
    k: &Range<usize>,
    at: impl Fn(usize) -> *mut u32,
) {
    // SAFETY: the caller's contract; columns and values beyond the block are masked.
    unsafe {
        let mut lines = [[[_mm512_setzero_si512(); 1]; LANES]; VECTORS / 2];
        let mut scales = [0; LANES];
        for c in 0..LANES {
            if j + c < columns {
                fetch_values(block.row((j + c + ROWS_AHEAD).min(columns - 1)).wrapping_add(k.start));
                let row = Row::load(block.row(j + c).wrapping_add(k.start), k.len());
                for (number, lines) in lines.iter_mut().enumerate() {
                    lines[c] = [row.words(number)];
                }
                scales[c] = row.scale;
            }
        }
        for (number, lines) in lines.iter().enumerate() {
            for (r, line) in <__m512i as Words>::transposed(lines, 0).into_iter().enumerate() {
                line.store(at(number * LANES + r));
            }
        }
        at(WORDS - 1).cast::<[u32; LANES]>().write_unaligned(scales);
    }
}

packers!("avx512f,avx512bw,avx512vl,avx512dq" f32: pack_a as pack_rows, pack_b as pack_columns);
packers!("avx512f,avx512bw,avx512vl,avx512dq" u16: pack_a_narrow as pack_rows, pack_b_narrow as pack_columns);
