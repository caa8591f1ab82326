//! Lines of B in products of few rows: what they hold, and how lanes of them are multiplied.

use super::gemv::{Fetch, Start, dots};
use crate::math::element::{Bf16, Byte, F32};
use crate::math::vector::Lanes;

/// What lines of B hold.
pub(super) trait Line {
    /// What a lane is loaded from.
    type Stored: Stored;
    /// Bytes of the scale of a group, where values are unpacked, and scaled by groups.
    const SCALE: usize = 0;
    /// Whether sums are whole numbers.
    const IS_WHOLE: bool = false;
    /// Bytes of a line of `count` values.
    #[inline(always)]
    fn bytes(count: usize) -> usize {
        count * size_of::<Self::Stored>()
    }
    /// The dot products of rows of A with S lines of B, by rows, before lanes are added up.
    ///
    /// # Safety
    /// As [`Dot`]; the instruction set is there.
    #[inline(always)]
    unsafe fn dots<L: Lanes, const R: usize, const S: usize>(
        a: *const f32,
        lda: usize,
        b: [Start; S],
        k: usize,
        fetch: Option<Fetch>,
    ) -> [[L; S]; R] {
        // SAFETY: the caller's contract.
        unsafe { dots::<L, R, Self, S>(a, lda, b, k, fetch) }
    }
    /// What the sums of a row of A begin with, which has `lda` words.
    ///
    /// # Safety
    /// The instruction set is there, and the row.
    #[inline(always)]
    unsafe fn start<L: Lanes>(_row: *const f32, _lda: usize) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::splat(0.0) }
    }
    /// Two sums as one.
    #[inline(always)]
    fn join<L: Lanes>(a: L, b: L) -> L {
        if Self::IS_WHOLE { a.add_whole(b) } else { a + b }
    }
    /// The lanes of each sum, added up; whole numbers are rounded once.
    #[inline(always)]
    fn totals<L: Lanes, const N: usize>(sums: [L; N]) -> [f32; N] {
        if !Self::IS_WHOLE {
            return L::sums(sums);
        }
        let mut rounded = [0.0; N];
        for (rounded, total) in rounded.iter_mut().zip(L::totals(sums)) {
            *rounded = total as f32;
        }
        rounded
    }
    /// `sum` with the products of a row's lanes and a line's.
    ///
    /// # Safety
    /// The instruction set is there.
    #[inline(always)]
    unsafe fn multiply_add<L: Lanes>(row: L, line: L, sum: L) -> L {
        L::fma(row, line, sum)
    }
}

/// Values as lines of B store them, which are widened in registers.
pub(super) trait Stored: Copy + Default {
    /// As many values as there are lanes.
    ///
    /// # Safety
    /// The instruction set is there, and a value for each lane at `source`.
    unsafe fn load<L: Lanes>(source: *const Self) -> L;
    /// The first `count` values, fewer than lanes; the others are zero.
    ///
    /// # Safety
    /// The instruction set is there, and `count` values at `source`.
    #[inline(always)]
    unsafe fn load_first<L: Lanes>(source: *const Self, count: usize) -> L {
        let mut padded = [Self::default(); 16];
        // SAFETY: only the first `count` values are read; there are as many places as lanes.
        unsafe {
            for (i, place) in padded.iter_mut().enumerate().take(count) {
                *place = source.add(i).read_unaligned();
            }
            Self::load(padded.as_ptr())
        }
    }
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(source: *const f32) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::load(source) }
    }
    #[inline(always)]
    unsafe fn load_first<L: Lanes>(source: *const f32, count: usize) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::load_first(source, count) }
    }
}

/// Numbers of `bf16`.
impl Stored for u16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(source: *const u16) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::widen(source) }
    }
}

/// A word of two.
impl Stored for [i8; 2] {
    #[inline(always)]
    unsafe fn load<L: Lanes>(source: *const [i8; 2]) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::widen_two_bytes(source.cast()) }
    }
}

impl Stored for i8 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(source: *const i8) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::widen_bytes(source) }
    }
}

impl Line for F32 {
    type Stored = f32;
}

impl Line for Bf16 {
    type Stored = u16;
}

impl Line for Byte {
    type Stored = i8;
}

/// Values of a line of B, from one of them on.
///
/// # Safety
/// The processor has the instruction set, and the line has this many values.
#[inline(always)]
pub(super) unsafe fn at<L: Lanes, B: Line + ?Sized>(line: *const u8, first: usize, lanes: usize) -> L {
    // SAFETY: the caller's contract.
    unsafe {
        let source = line.cast::<B::Stored>().add(first);
        if lanes == L::LANES { B::Stored::load(source) } else { B::Stored::load_first(source, lanes) }
    }
}
