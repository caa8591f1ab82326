//! How fast the register tiles are when nothing holds them up.

use super::Precision;
use super::ahead::{Ahead, Streams};
use super::microkernel::{Kernels, LDA, Step, TileOutput};
use crate::isa::Isa;
use crate::pool::Pool;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// A line of a cache: where packed operands begin.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "read by the kernels")] [u32; LINE_WORDS]);
const LINE_WORDS: usize = 16;

/// Words of k at most: both operands of a tile stay in L1.
const MOST_WORDS: usize = 144;

/// Tiles between two looks at the clock.
const TILES: usize = 200;

/// Operations a second (a multiplication and an addition are two) of all threads together: the register tile of
/// this precision on random operands in L1, the best of several repetitions in so much time.
///
/// # Safety
/// The machine has `isa`.
pub unsafe fn peak(isa: Isa, precision: Precision, pool: &Pool, time: Duration) -> f64 {
    let kernels = Kernels::of(isa, precision);
    let steps = MOST_WORDS / kernels.step.words;
    let (words, values) = (steps * kernels.step.words, steps * kernels.step.values);
    let operations = 2 * kernels.mr * kernels.nr * values * TILES * pool.threads();
    let operands = [kernels.mr * LDA, kernels.nr * words].map(|words| random(kernels, words));
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while best.is_infinite() || start.elapsed() < time {
        let round = Instant::now();
        // SAFETY: the caller's contract.
        pool.run(&|_| unsafe { tiles(kernels, words, &operands) });
        best = best.min(round.elapsed().as_secs_f64());
    }
    operations as f64 / best
}

/// Words of numbers between 1 and 2 of either sign, all bits of their fractions drawn: of one `f32`, or of a pair of bf16.
fn random(kernels: &Kernels, words: usize) -> Vec<Line> {
    let (one, drawn) = match kernels.step == Step::F32 {
        true => (0x3f80_0000, 0x807f_ffff),
        false => (0x3f80_3f80, 0x807f_807f),
    };
    // Numerical Recipes, 3rd edition, section 7.1.
    let mut state = 1_u64;
    let mut word = || {
        state = state.wrapping_mul(3_935_559_000_370_003_845).wrapping_add(2_691_343_689_449_507_681);
        (state >> 32) as u32 & drawn | one
    };
    (0..words.div_ceil(LINE_WORDS)).map(|_| Line(std::array::from_fn(|_| word()))).collect()
}

/// # Safety
/// The machine has the kernels' instruction set; the operands are those of a whole tile.
unsafe fn tiles(kernels: &Kernels, words: usize, [a, b]: &[Vec<Line>; 2]) {
    let mut c = vec![Line([0; LINE_WORDS]); (kernels.mr * kernels.nr).div_ceil(LINE_WORDS)];
    // SAFETY: the caller's contract.
    let _tiles = unsafe { kernels.configured() };
    for _ in 0..TILES {
        let (c, ldc) = (c.as_mut_ptr().cast::<f32>(), kernels.nr);
        let here = Ahead { ptr: c.cast(), stride: 4 * ldc, size: 4 };
        let (writes, reads) = (Streams::new([here], here), Streams::new([], here));
        let later = Ahead { stride: 0, ..here };
        let target = TileOutput { c, ldc, accumulate: false, is_last: true, writes, reads, later };
        // SAFETY: the buffers hold a whole tile and its operands; the caller has the instruction set.
        unsafe { (kernels.tile)(kernels.mr, words, a.as_ptr().cast(), b.as_ptr().cast(), &target) };
        black_box(&c);
    }
}
