//! The sum of parts that several ranks have computed.

use crate::math::element::{Bf16, Element, F32};

/// Elements that are summed at a time, so that they stay in cache from part to part.
const BLOCK: usize = 1 << 10;

/// The sum of `count` elements of `f32` in each of some parts, of which the next one begins `stride` bytes after the one before:
/// in ascending order, beginning with +0.
///
/// # Safety
/// The parts and `sum` have these elements, aligned, in memory that does not overlap.
pub unsafe fn sum_f32(parts: *const u8, stride: usize, number: usize, sum: *mut u8, count: usize) {
    // SAFETY: the caller's contract.
    unsafe { summed::<F32, F32>(parts, stride, number, sum.cast(), count) }
}

/// As [`sum_f32`], of `bf16`: added as `f32`, and rounded once.
///
/// # Safety
/// As [`sum_f32`].
pub unsafe fn sum_bf16(parts: *const u8, stride: usize, number: usize, sum: *mut u8, count: usize) {
    // SAFETY: the caller's contract.
    unsafe { summed::<Bf16, Bf16>(parts, stride, number, sum.cast(), count) }
}

/// As [`sum_bf16`], with the rounded sums written as `f32`.
///
/// # Safety
/// As [`sum_f32`].
pub unsafe fn sum_bf16_to_f32(parts: *const u8, stride: usize, number: usize, sum: *mut u8, count: usize) {
    // SAFETY: the caller's contract.
    unsafe { summed::<Bf16, F32>(parts, stride, number, sum.cast(), count) }
}

/// Writes `count` elements of `f32` as `bf16`.
///
/// # Safety
/// Both have these elements, aligned, in memory that does not overlap.
pub unsafe fn narrow_f32(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: the caller's contract.
    unsafe { summed::<F32, Bf16>(from, 0, 1, to.cast(), count) }
}

/// Sums are rounded to the parts' type, then to that of the result.
unsafe fn summed<E: Element<Lane = f32>, R: Element<Lane = f32>>(
    parts: *const u8,
    stride: usize,
    number: usize,
    sum: *mut R::Stored,
    count: usize,
) {
    let mut lanes = [0.0; BLOCK];
    for first in (0..count).step_by(BLOCK) {
        let lanes = &mut lanes[..BLOCK.min(count - first)];
        lanes.fill(0.0);
        for part in 0..number {
            let part = parts.wrapping_add(part * stride).cast::<E::Stored>().wrapping_add(first);
            for (i, lane) in lanes.iter_mut().enumerate() {
                // SAFETY: the caller's contract.
                *lane += E::widen(unsafe { *part.add(i) });
            }
        }
        for (i, &lane) in lanes.iter().enumerate() {
            // SAFETY: as above.
            unsafe { *sum.add(first + i) = R::narrow(E::widen(E::narrow(lane))) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_added_in_order_and_bf16_is_rounded_once() {
        // In this order 1 vanishes beside 2²⁴, in the other one it does not.
        let wide = [[1.0, -0.0], [16_777_216.0, -0.0], [-16_777_216.0, -0.0]];
        let mut sum = [5.0f32; 2];
        let parts: [[f32; 2]; 3] = wide;
        // SAFETY: three parts of two elements.
        unsafe { sum_f32(parts.as_ptr().cast(), 8, 3, sum.as_mut_ptr().cast(), 2) };
        assert_eq!(sum.map(f32::to_bits), [0.0f32.to_bits(); 2]);
        // 1 + 2⁻⁸ + 2⁻⁸ is a number of bf16; after each addition rounded, it would stay 1.
        let parts = [0x3f80u16, 0x3b80, 0x3b80];
        let mut sum = 0u16;
        // SAFETY: three parts of one element.
        unsafe { sum_bf16(parts.as_ptr().cast(), 2, 3, (&raw mut sum).cast(), 1) };
        assert_eq!(sum, 0x3f81);
        let mut wide = 0.0f32;
        // SAFETY: as above.
        unsafe { sum_bf16_to_f32(parts.as_ptr().cast(), 2, 3, (&raw mut wide).cast(), 1) };
        assert_eq!(wide, 1.0 + 2f32.powi(-7));
        // Halfway between two numbers of bf16 the even one is taken.
        let (given, mut narrow) = ([1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8)], [0u16; 2]);
        // SAFETY: two elements.
        unsafe { narrow_f32(given.as_ptr().cast(), narrow.as_mut_ptr().cast(), 2) };
        assert_eq!(narrow, [0x3f80, 0x3f82]);
    }
}
