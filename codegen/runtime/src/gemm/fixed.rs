//! Products in fixed point, for processors whose instructions for pairs of bf16 are slow or missing, but that multiply pairs of whole numbers of 16
//! bits twice as fast as `f32` (`vpdpwssd` of AVX-512 VNNI).
//!
//! [`VALUES`] values of k of a row of A, or of a column of B, are a block with a scale: their largest magnitude, divided by [`MOST`]. They are packed
//! as multiples of it, rounded, two neighbours in a word; the scale is one more word behind them. The sum of a block is exact, since 128 products
//! of numbers up to 4,095 are less than 2³¹. Times both scales it is added to the sums of the blocks before, in `f32`.
//!
//! So a value is off by at most 1/8,190 of the largest beside it, where rounding to bf16 puts it off by up to 1/512 of itself: less, unless it is
//! less than a sixteenth of the largest. Blocks begin at multiples of 128, so what a sum is depends on nothing but its row and its column.

use super::ahead::{Fetched, LINE};
use super::microkernel::{Arithmetic, Step, TileOutput, multiply_word};
use crate::math::vector::x86::Avx512;
use std::arch::x86_64::*;

/// Values of k with one scale.
pub(super) const VALUES: usize = 128;
/// The largest whole number.
pub(super) const MOST: f32 = 4095.0;
/// Words of a block: pairs, and the scale.
pub(super) const WORDS: usize = PAIRS + 1;
const PAIRS: usize = VALUES / 2;

impl Step {
    /// A block in fixed point.
    pub(super) const FIXED: Step = Step { values: VALUES, words: WORDS };
}

/// Pairs of whole numbers, whose sums are whole numbers in the lanes of `f32` until they are scaled.
pub(super) struct Fixed;

impl Arithmetic for Fixed {
    type Sum = Avx512;
    type Words = __m512i;

    #[inline(always)]
    unsafe fn words(b: *const u32) -> __m512i {
        // SAFETY: the caller's contract.
        unsafe { _mm512_loadu_si512(b.cast()) }
    }

    #[inline(always)]
    unsafe fn broadcast(a: *const u32) -> __m512i {
        // SAFETY: the caller's contract.
        unsafe { _mm512_set1_epi32(a.read() as i32) }
    }

    #[inline(always)]
    unsafe fn multiply_add(sum: Avx512, a: __m512i, b: __m512i) -> Avx512 {
        // SAFETY: the caller has AVX-512 VNNI.
        unsafe { Avx512(_mm512_castsi512_ps(_mm512_dpwssd_epi32(_mm512_castps_si512(sum.0), a, b))) }
    }

    /// Block after block, whose sums go to C.
    #[inline(always)]
    unsafe fn tile<const R: usize, const V: usize>(
        words: usize,
        a: *const u32,
        strides: (usize, usize),
        b: *const u32,
        target: &TileOutput,
    ) {
        const NR: usize = 32;
        // SAFETY: the caller's contract; prefetches may point anywhere.
        unsafe {
            if words == 0 && !target.accumulate {
                for i in 0..R {
                    target.c.add(i * target.ldc).write_bytes(0, V * 16);
                }
            }
            let mut fetched = Fetched::<R>::new([&target.writes, &target.reads], (V * 16 * 4).div_ceil(LINE));
            for block in (0..words).step_by(WORDS) {
                let (a, b) = (a.add(block), b.add(block * NR));
                let mut sums = [[Avx512(_mm512_setzero_ps()); V]; R];
                for word in 0..PAIRS {
                    if !fetched.is_done() {
                        fetched.line();
                    }
                    multiply_word::<Self, R, V>(&mut sums, a.add(word), strides, b.add(word * NR));
                }
                for (i, sums) in sums.into_iter().enumerate() {
                    let row = _mm512_set1_ps(a.add(i * strides.0 + PAIRS).cast::<f32>().read());
                    for (v, sum) in sums.into_iter().enumerate() {
                        let column = _mm512_loadu_ps(b.add(PAIRS * NR + v * 16).cast());
                        let sum = _mm512_cvtepi32_ps(_mm512_castps_si512(sum.0));
                        let c = target.c.add(i * target.ldc + v * 16);
                        let before = match target.accumulate || block > 0 {
                            true => _mm512_loadu_ps(c),
                            false => _mm512_setzero_ps(),
                        };
                        _mm512_storeu_ps(c, _mm512_fmadd_ps(sum, _mm512_mul_ps(row, column), before));
                    }
                }
            }
        }
    }
}
