//! Packing for products in [fixed point](super::super::fixed) in loops that the compiler makes vectors of, for vectors of eight lanes: the words
//! are those of [`x86::fixed`](super::x86::fixed), which does the same for sixteen with instructions of AVX-512.

use super::{Block, LDA, PanelSize};
use crate::gemm::blocking::chunks;
use crate::gemm::fixed::{LARGEST_INVERSE, MOST, PAIRS, VALUES, WORDS};
use crate::math::element::{Bf16, Element as _};
use std::ops::Range;

/// Columns of a panel, and rows that are packed together where they lie side by side.
const WIDTH: usize = 16;

/// What memory holds.
trait Stored: Copy {
    fn widened(self) -> f32;
}

impl Stored for f32 {
    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }
}

/// Numbers of bf16.
impl Stored for u16 {
    #[inline(always)]
    fn widened(self) -> f32 {
        Bf16::widen(self)
    }
}

/// Bits of the magnitude: those of what is not finite are largest.
#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & i32::MAX as u32
}

/// What values are multiplied by to be whole numbers, and these to be values, in a block with such a largest magnitude. What is not finite
/// has such a scale.
#[inline(always)]
fn scales(most: u32) -> (f32, f32) {
    let most = f32::from_bits(most);
    let inverse = MOST / most;
    if inverse > LARGEST_INVERSE { (LARGEST_INVERSE, f32::MIN_POSITIVE) } else { (inverse, most / MOST) }
}

/// The lower 16 bits of a value as a whole number: rounded to an even one of two, as the sum with a number whose last digit is a one.
#[inline(always)]
fn whole(value: f32, inverse: f32) -> u32 {
    const ONES: f32 = 12_582_912.0;
    (value * inverse + ONES).to_bits() & 0xffff
}

/// Blocks of up to sixteen rows (or columns), with words and scales as they are packed: `[word][row]`.
struct Square {
    words: [[u32; WIDTH]; WORDS],
}

impl Square {
    /// `count` rows from `outer` on, values `k`.
    #[inline(always)]
    unsafe fn of<T: Stored>(block: &Block<'_, T>, outer: usize, count: usize, k: &Range<usize>) -> Self {
        let mut values = [[0.0_f32; WIDTH]; VALUES];
        // SAFETY: the caller's contract.
        unsafe {
            match (block.k.unit(), count == WIDTH) {
                (true, _) => {
                    for r in 0..count {
                        let row = block.row(outer + r).wrapping_add(k.start);
                        for (p, values) in values.iter_mut().enumerate().take(k.len()) {
                            values[r] = row.add(p).read_unaligned().widened();
                        }
                    }
                }
                (false, true) => {
                    for (k, values) in k.clone().zip(&mut values) {
                        let line = block.depth(k).wrapping_add(outer).cast::<[T; WIDTH]>().read_unaligned();
                        *values = line.map(T::widened);
                    }
                }
                (false, false) => {
                    for (k, values) in k.clone().zip(&mut values) {
                        let line = block.depth(k).wrapping_add(outer);
                        for (r, value) in values.iter_mut().enumerate().take(count) {
                            *value = line.add(r).read_unaligned().widened();
                        }
                    }
                }
            }
        }
        let mut most = [0; WIDTH];
        for values in &values {
            for (most, value) in most.iter_mut().zip(values) {
                *most = magnitude(*value).max(*most);
            }
        }
        let (mut inverse, mut words) = ([0.0; WIDTH], [[0; WIDTH]; WORDS]);
        for r in 0..WIDTH {
            let (of_values, scale) = scales(most[r]);
            (inverse[r], words[PAIRS][r]) = (of_values, scale.to_bits());
        }
        for (words, pair) in words.iter_mut().zip(values.chunks_exact(2)) {
            for r in 0..WIDTH {
                words[r] = whole(pair[0][r], inverse[r]) | whole(pair[1][r], inverse[r]) << 16;
            }
        }
        Square { words }
    }
}

/// Packs a block of a row whose values lie side by side.
#[inline(always)]
unsafe fn pack_row<T: Stored>(from: *const T, count: usize, out: *mut u32) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut values = [0.0_f32; VALUES];
        match count == VALUES {
            true => values = from.cast::<[T; VALUES]>().read_unaligned().map(T::widened),
            false => {
                for (p, value) in values.iter_mut().enumerate().take(count) {
                    *value = from.add(p).read_unaligned().widened();
                }
            }
        }
        let mut most = [0; 8];
        for values in values.chunks_exact(8) {
            for (most, value) in most.iter_mut().zip(values) {
                *most = magnitude(*value).max(*most);
            }
        }
        let (inverse, scale) = scales(most.into_iter().max().unwrap_or(0));
        let mut words = [scale.to_bits(); WORDS];
        for (word, pair) in words.iter_mut().zip(values.chunks_exact(2)) {
            *word = whole(pair[0], inverse) | whole(pair[1], inverse) << 16;
        }
        out.cast::<[u32; WORDS]>().write(words);
    }
}

#[inline(always)]
unsafe fn pack_rows<T: Stored>(block: &Block<'_, T>, rows: usize, depth: usize, out: *mut u32) {
    let out = |row: usize, number: usize| out.wrapping_add(row * LDA + number * WORDS);
    for (number, k) in chunks(0..depth, VALUES).enumerate() {
        if block.k.unit() {
            for i in 0..rows {
                // SAFETY: the caller's contract.
                unsafe { pack_row(block.row(i).wrapping_add(k.start), k.len(), out(i, number)) };
            }
            continue;
        }
        for i in (0..rows).step_by(WIDTH) {
            let count = WIDTH.min(rows - i);
            // SAFETY: the caller's contract.
            unsafe {
                let square = Square::of(block, i, count, &k);
                for r in 0..count {
                    let out = out(i + r, number);
                    for (w, words) in square.words.iter().enumerate() {
                        out.add(w).write(words[r]);
                    }
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
    for (number, k) in chunks(0..depth, VALUES).enumerate() {
        for j in (0..columns).step_by(WIDTH) {
            // SAFETY: the caller's contract.
            unsafe {
                let square = Square::of(block, j, WIDTH.min(columns - j), &k);
                let out = out.add(j / WIDTH * panels.stride + number * WORDS * WIDTH);
                out.cast::<[[u32; WIDTH]; WORDS]>().write(square.words);
            }
        }
    }
}

packers!("avx2,fma" f32: pack_a as pack_rows, pack_b as pack_columns);
packers!("avx2,fma" u16: pack_a_narrow as pack_rows, pack_b_narrow as pack_columns);
