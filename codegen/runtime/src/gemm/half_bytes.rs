//! Lines of B that are [half bytes](super::Element::HalfByte): unpacked in registers, and multiplied by the scale of their group there.
//!
//! Few rows are multiplied by half bytes, and the sum of a group by its scale. A register of a line has eight half bytes in each lane, as they
//! lie; the rows are put into that order once. So a shift and a permutation, which looks the numbers up in a table of −8 … 7, are all that unpacks
//! sixteen of them with AVX-512, for all rows. Many rows need the order of k: there a number is multiplied by its scale first, which is exact in
//! `f32`.

use super::gemv::{CACHE_LINE, Fetch, Start};
use super::line::Line;
use super::microkernel::prefetch;
use crate::math::element::{Bf16, F32};
use crate::math::vector::Lanes;
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;

/// Numbers of a group.
pub(super) const GROUP: usize = 32;

/// What the scale of a group is kept as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScaleType {
    /// The upper half of an `F32`.
    Bf16,
    /// IEEE single precision.
    F32,
}

/// A scale in memory.
pub(super) trait Scale {
    const SIZE: usize;

    /// In all lanes.
    ///
    /// # Safety
    /// The instruction set is there, and a scale at `source`.
    unsafe fn splat<L: Lanes>(source: *const u8) -> L;

    /// The first `groups` of those that follow each other, each in four lanes, for as many as there are lanes at most.
    ///
    /// # Safety
    /// The instruction set is there, and as many scales at `source`.
    unsafe fn of_fours<L: Lanes>(source: *const u8, groups: usize) -> L;
}

impl Scale for Bf16 {
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn splat<L: Lanes>(source: *const u8) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::splat_bf16(source.cast()) }
    }

    #[inline(always)]
    unsafe fn of_fours<L: Lanes>(source: *const u8, groups: usize) -> L {
        let mut numbers = 0_u64;
        // SAFETY: the caller's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(source, (&raw mut numbers).cast(), groups * Self::SIZE);
            L::of_fours(numbers)
        }
    }
}

impl Scale for F32 {
    const SIZE: usize = 4;

    #[inline(always)]
    unsafe fn splat<L: Lanes>(source: *const u8) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::splat(source.cast::<f32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn of_fours<L: Lanes>(source: *const u8, groups: usize) -> L {
        let mut numbers = [0.0_f32; 4];
        // SAFETY: the caller's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(source, (&raw mut numbers).cast(), groups * Self::SIZE);
            L::of_fours_f32(numbers)
        }
    }
}

/// Where the scales, of this size, of what lies at this byte of B are, in bytes.
#[inline(always)]
pub(super) const fn of_scales(byte: isize, size: usize) -> isize {
    byte / (GROUP / 2) as isize * size as isize
}

/// `(values, scales, count, out)`: writes `count` values, unpacked and scaled. They are whole groups.
pub(super) type Unpack = unsafe fn(*const u8, *const u8, usize, *mut f32);

/// The scales of half bytes, and what unpacks them.
#[derive(Clone, Copy)]
pub(super) struct HalfBytes {
    pub scales: *const u8,
    pub scale: ScaleType,
    pub unpack: Unpack,
}

impl HalfBytes {
    /// The scales of what begins that many bytes further on.
    pub(super) fn after(self, bytes: isize) -> Self {
        let size = match self.scale {
            ScaleType::Bf16 => Bf16::SIZE,
            ScaleType::F32 => F32::SIZE,
        };
        HalfBytes { scales: self.scales.wrapping_offset(of_scales(bytes, size)), ..self }
    }

    /// Unpacks the values whose scales these are.
    ///
    /// # Safety
    /// As [`Unpack`]; the instruction set is there.
    pub(super) unsafe fn unpack(self, values: *const u8, count: usize, out: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { (self.unpack)(values, self.scales, count, out) }
    }
}

/// # Safety
/// As [`Unpack`]; the instruction set is there.
#[inline(always)]
pub(super) unsafe fn unpack<L: Lanes, S: Scale>(
    values: *const u8,
    scales: *const u8,
    count: usize,
    out: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for group in 0..count / GROUP {
            for at in (0..GROUP).step_by(L::LANES) {
                let values = values.add(group * GROUP / 2 + at % (GROUP / 2));
                let scale = S::splat(scales.add(group * S::SIZE));
                let numbers = match at < GROUP / 2 {
                    true => L::half_bytes::<false>(values, scale),
                    false => L::half_bytes::<true>(values, scale),
                };
                numbers.store(out.add(group * GROUP + at));
            }
        }
    }
}

/// Half bytes of a register: eight in each lane.
const fn block(lanes: usize) -> usize {
    8 * lanes
}

/// Bytes of a line whose scales, of this size, fill a line of a cache.
const fn line_of_scales(size: usize) -> usize {
    CACHE_LINE / size * GROUP / 2
}

/// What every width's blocks divide.
pub(super) const WIDEST_BLOCK: usize = block(16);

/// Reorders a row of A to match the order in which half bytes are unpacked, and fills its last block with zeros.
///
/// A register of a line has whole groups, four lanes each. Half byte N of its lanes is a register, and meets a register of the row.
///
/// # Safety
/// The row has `count` values, in whole groups, and may be written up to a whole block.
#[inline(always)]
pub(super) unsafe fn arrange<L: Lanes>(row: *mut f32, count: usize) {
    for first in (0..count).step_by(block(L::LANES)) {
        let present = block(L::LANES).min(count - first);
        let mut block = [0.0; WIDEST_BLOCK];
        // SAFETY: the caller's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(row.add(first), block.as_mut_ptr(), present);
            for group in 0..L::LANES / 4 {
                for half_byte in 0..8 {
                    let (byte, half) = (half_byte / 2, half_byte % 2);
                    for lane in 0..4 {
                        let number = block[group * GROUP + half * GROUP / 2 + 4 * lane + byte];
                        *row.add(first + half_byte * L::LANES + 4 * group + lane) = number;
                    }
                }
            }
        }
    }
}

/// Lines of half bytes, with scales of a type.
pub(super) struct HalfByte<T>(PhantomData<T>);

impl<T: Scale> Line for HalfByte<T> {
    /// Words of eight.
    type Stored = f32;
    const SCALE: usize = T::SIZE;

    #[inline(always)]
    fn bytes(count: usize) -> usize {
        count / 2
    }

    /// Rows of A are [arranged](arrange).
    #[inline(always)]
    unsafe fn dots<L: Lanes, const R: usize, const S: usize>(
        a: *const f32,
        lda: usize,
        b: [Start; S],
        k: usize,
        fetch: Option<Fetch>,
    ) -> [[L; S]; R] {
        let width = block(L::LANES);
        // SAFETY: the instruction set is there.
        let mut sums = unsafe { [[L::splat(0.0); S]; R] };
        let mut wait = match fetch {
            Some(fetch) => fetch.turn.0,
            None => 0,
        };
        for first in (0..k - k % width).step_by(width) {
            let byte = first / 2;
            if let Some(Fetch { ahead, turn: (_, turns) }) = fetch
                && byte.is_multiple_of(CACHE_LINE)
            {
                if wait == 0 {
                    for b in b {
                        prefetch(b.values.wrapping_offset(byte as isize + ahead));
                    }
                    if byte.is_multiple_of(line_of_scales(T::SIZE)) {
                        for b in b {
                            prefetch(b.scales.wrapping_offset(of_scales(byte as isize + ahead, T::SIZE)));
                        }
                    }
                    wait = turns;
                }
                wait -= 1;
            }
            // SAFETY: rows and lines have the block.
            unsafe { add::<L, T, R, S>(&mut sums, (a.add(first), lda), (b, byte), L::LANES) };
        }
        if !k.is_multiple_of(width) {
            let whole = k - k % width;
            // SAFETY: rows and lines have these lanes.
            unsafe { add::<L, T, R, S>(&mut sums, (a.add(whole), lda), (b, whole / 2), k % width / 8) };
        }
        sums
    }
}

/// Adds the products of a block that begins at some byte of its lines, of which some lanes are there. Those of a group are added up before
/// they are scaled.
///
/// # Safety
/// As `Line::dots`, for these rows and lines.
#[inline(always)]
unsafe fn add<L: Lanes, T: Scale, const R: usize, const S: usize>(
    sums: &mut [[L; S]; R],
    a: (*const f32, usize),
    (b, byte): ([Start; S], usize),
    lanes: usize,
) {
    // SAFETY: the caller's contract; half bytes of lanes that are not there meet zeros.
    unsafe {
        let (mut words, mut scales) = ([L::splat(0.0); S], [L::splat(0.0); S]);
        for ((words, scale), b) in words.iter_mut().zip(&mut scales).zip(b) {
            let b = b.after(byte, T::SIZE);
            if lanes == L::LANES {
                *words = L::load(b.values.cast());
                *scale = T::of_fours(b.scales, L::LANES / 4);
            } else {
                *words = L::load_first(b.values.cast(), lanes);
                *scale = T::of_fours(b.scales, lanes / 4);
            }
        }
        let mut products = [[L::splat(0.0); S]; R];
        multiply::<L, R, S, 0>(&mut products, a, words);
        multiply::<L, R, S, 1>(&mut products, a, words);
        multiply::<L, R, S, 2>(&mut products, a, words);
        multiply::<L, R, S, 3>(&mut products, a, words);
        multiply::<L, R, S, 4>(&mut products, a, words);
        multiply::<L, R, S, 5>(&mut products, a, words);
        multiply::<L, R, S, 6>(&mut products, a, words);
        multiply::<L, R, S, 7>(&mut products, a, words);
        for (sums, products) in sums.iter_mut().zip(products) {
            for ((sum, product), scale) in sums.iter_mut().zip(products).zip(scales) {
                *sum = L::fma(product, scale, *sum);
            }
        }
    }
}

/// Adds the products of half byte N of each lane.
///
/// # Safety
/// As `add`.
#[inline(always)]
unsafe fn multiply<L: Lanes, const R: usize, const S: usize, const N: u32>(
    products: &mut [[L; S]; R],
    (a, lda): (*const f32, usize),
    words: [L; S],
) {
    // No closures: compiled without the instruction set's features, they would be calls.
    let mut numbers = words;
    for number in &mut numbers {
        *number = number.half_byte::<N>();
    }
    for (i, products) in products.iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        let row = unsafe { L::load(a.add(i * lda + N as usize * L::LANES)) };
        for (product, number) in products.iter_mut().zip(numbers) {
            *product = L::fma(row, number, *product);
        }
    }
}
