//! Products in fixed point, for processors whose instructions for pairs of bf16 are slow or missing, but that multiply pairs of whole numbers of 16
//! bits twice as fast as `f32` (`vpdpwssd` of AVX-512 VNNI and of AVX-VNNI).
//!
//! [`VALUES`] values of k of a row of A, or of a column of B, are a block with a scale: their largest magnitude, divided by [`MOST`]. They are packed
//! as multiples of it, rounded, two neighbours in a word; the scale is one more word behind them. The sum of a block is exact, since 128 products
//! of numbers up to 4,095 are less than 2³¹. Times both scales it is added to the sums of the blocks before, in `f32`.
//!
//! So a value is off by at most 1/8,190 of the largest beside it, where rounding to bf16 puts it off by up to 1/256 of itself: less, unless it is
//! less than a sixteenth of the largest. Blocks begin at multiples of 128, so what a sum of such a product is depends on nothing but its row and its
//! column, and is the same on all processors that compute it.

use super::ahead::{Fetched, LINE};
use super::microkernel::{Arithmetic, TileOutput, multiply_word};
use crate::math::vector::Lanes;
use std::marker::PhantomData;
use std::ops::Mul;

/// Values of k with one scale.
pub(super) const VALUES: usize = 128;
/// The largest whole number.
pub(super) const MOST: f32 = 4095.0;
/// What values are multiplied by at most to be whole numbers: 2¹²⁶, whose inverse is a normal number.
pub(super) const LARGEST_INVERSE: f32 = f32::from_bits(253 << 23);
/// Words of a block: pairs, and the scale.
pub(super) const WORDS: usize = PAIRS + 1;
/// Pairs of a block.
pub(super) const PAIRS: usize = VALUES / 2;

/// Pairs of whole numbers. Their sums are whole numbers in the lanes of `f32` until they are scaled.
pub(super) struct Fixed<L>(PhantomData<L>);

impl<L: Lanes + Mul<Output = L>> Arithmetic for Fixed<L> {
    type Sum = L;
    type Words = L;

    #[inline(always)]
    unsafe fn words(b: *const u32) -> L {
        // SAFETY: the caller's contract.
        unsafe { <L as Arithmetic>::words(b) }
    }

    #[inline(always)]
    unsafe fn broadcast(a: *const u32) -> L {
        // SAFETY: the caller's contract.
        unsafe { <L as Arithmetic>::broadcast(a) }
    }

    #[inline(always)]
    unsafe fn multiply_add(sum: L, a: L, b: L) -> L {
        // SAFETY: the caller has the instruction.
        unsafe { L::add_halves_at_once(a, b, sum) }
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
        let (lanes, nr) = (L::LANES, 2 * L::LANES);
        // SAFETY: the caller's contract; prefetches may point anywhere.
        unsafe {
            if words == 0 && !target.accumulate {
                for i in 0..R {
                    target.c.add(i * target.ldc).write_bytes(0, V * lanes);
                }
            }
            let mut fetched =
                Fetched::<R>::new([&target.writes, &target.reads], (V * lanes * 4).div_ceil(LINE));
            for block in (0..words).step_by(WORDS) {
                let (a, b) = (a.add(block), b.add(block * nr));
                let mut sums = [[L::splat(0.0); V]; R];
                for word in 0..PAIRS {
                    if !fetched.is_done() {
                        fetched.line();
                    }
                    multiply_word::<Self, R, V>(&mut sums, a.add(word), strides, b.add(word * nr));
                }
                for (i, sums) in sums.into_iter().enumerate() {
                    let row = L::splat(a.add(i * strides.0 + PAIRS).cast::<f32>().read());
                    for (v, sum) in sums.into_iter().enumerate() {
                        let column = L::load(b.add(PAIRS * nr + v * lanes).cast());
                        let c = target.c.add(i * target.ldc + v * lanes);
                        let before = match target.accumulate || block > 0 {
                            true => L::load(c),
                            false => L::splat(0.0),
                        };
                        L::fma(sum.whole_to_float(), row * column, before).store(c);
                    }
                }
            }
        }
    }
}
