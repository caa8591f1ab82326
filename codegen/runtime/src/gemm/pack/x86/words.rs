//! Vectors of 32-bit words, of AVX-512 and AVX2 under one name.

use super::spread;
use crate::math::array;
use std::arch::x86_64::*;

/// A vector of words. Everything is inlined into functions that have the instruction set.
pub(super) trait Words: Copy {
    /// How many words there are: at most 16.
    const LANES: usize;

    /// # Safety
    /// The instruction set is there, as for all that follows.
    unsafe fn zeros() -> Self;

    /// Words in the mask from memory, and zeros.
    ///
    /// # Safety
    /// Words in the mask are there.
    unsafe fn load(p: *const u32, mask: u16) -> Self;

    /// All words.
    ///
    /// # Safety
    /// There is room for them.
    unsafe fn store(self, p: *mut u32);

    /// Words in the mask; the others stay as they are.
    ///
    /// # Safety
    /// There is room for all.
    unsafe fn store_some(self, p: *mut u32, mask: u16);

    /// Numbers of 16 bits in the lower halves of words, those in the mask, which lie `STEP` apart, one or two; zeros beside.
    ///
    /// # Safety
    /// Numbers in the mask are there.
    unsafe fn halves<const STEP: usize>(p: *const u16, mask: u16) -> Self;

    /// Lower halves as upper ones, above zeros.
    unsafe fn raised(self) -> Self;

    unsafe fn or(self, other: Self) -> Self;

    /// Every other word of two vectors, one after the other, from the first on.
    unsafe fn even(low: Self, high: Self) -> Self;

    /// As many words of one part of as many lines as there are lanes, transposed.
    unsafe fn transposed<const PARTS: usize>(lines: &[[Self; PARTS]; 16], part: usize) -> [Self; 16];
}

impl Words for __m512i {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn zeros() -> Self {
        // SAFETY: the caller's contract, as in all functions here.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn load(p: *const u32, mask: u16) -> Self {
        // SAFETY: masked words are not read.
        unsafe { _mm512_maskz_loadu_epi32(mask, p.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u32) {
        // SAFETY: the caller's contract.
        unsafe { _mm512_storeu_si512(p.cast(), self) }
    }

    #[inline(always)]
    unsafe fn store_some(self, p: *mut u32, mask: u16) {
        // SAFETY: the caller's contract.
        unsafe { _mm512_mask_storeu_epi32(p.cast(), mask, self) }
    }

    #[inline(always)]
    unsafe fn halves<const STEP: usize>(p: *const u16, mask: u16) -> Self {
        // SAFETY: masked numbers are not read.
        unsafe {
            match STEP {
                1 => _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p.cast())),
                _ => _mm512_maskz_loadu_epi16(spread(mask), p.cast()),
            }
        }
    }

    #[inline(always)]
    unsafe fn raised(self) -> Self {
        // SAFETY: registers only.
        unsafe { _mm512_slli_epi32::<16>(self) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: registers only.
        unsafe { _mm512_or_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn even(low: Self, high: Self) -> Self {
        // SAFETY: registers only.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            _mm512_permutex2var_epi32(low, even, high)
        }
    }

    /// Pairs, then quadruples within 128-bit lanes, then the lanes.
    #[inline(always)]
    unsafe fn transposed<const PARTS: usize>(lines: &[[Self; PARTS]; 16], part: usize) -> [Self; 16] {
        let r = array::<_, 16>(|i| lines[i][part]);
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

/// The mask of a vector of eight words: their sign bits count.
#[inline(always)]
unsafe fn signs(mask: u16) -> __m256i {
    // SAFETY: registers only.
    unsafe {
        let lanes = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
        _mm256_sllv_epi32(_mm256_set1_epi32(i32::from(mask)), lanes)
    }
}

impl Words for __m256i {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn zeros() -> Self {
        // SAFETY: the caller's contract, as in all functions here.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn load(p: *const u32, mask: u16) -> Self {
        // SAFETY: masked words are not read.
        unsafe {
            if mask & 0xff == 0xff {
                return _mm256_loadu_si256(p.cast());
            }
            _mm256_maskload_epi32(p.cast(), signs(mask))
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u32) {
        // SAFETY: the caller's contract.
        unsafe { _mm256_storeu_si256(p.cast(), self) }
    }

    /// Not a masked store, which takes some processors twenty times as long.
    #[inline(always)]
    unsafe fn store_some(self, p: *mut u32, mask: u16) {
        // SAFETY: the caller's contract.
        unsafe {
            let before = _mm256_castsi256_ps(_mm256_loadu_si256(p.cast()));
            let after = _mm256_blendv_ps(before, _mm256_castsi256_ps(self), _mm256_castsi256_ps(signs(mask)));
            _mm256_storeu_si256(p.cast(), _mm256_castps_si256(after));
        }
    }

    #[inline(always)]
    unsafe fn halves<const STEP: usize>(p: *const u16, mask: u16) -> Self {
        // SAFETY: masked numbers are not read.
        unsafe {
            if mask & 0xff != 0xff {
                let number = |lane: usize| match mask >> lane & 1 {
                    1 => u32::from(p.wrapping_add(lane * STEP).read_unaligned()),
                    _ => 0,
                };
                let words = array::<_, 8>(number);
                return _mm256_loadu_si256(words.as_ptr().cast());
            }
            let eight = |p: *const u16| _mm_loadu_si128(p.cast());
            if STEP == 1 {
                return _mm256_cvtepu16_epi32(eight(p));
            }
            // The last one has nothing behind it, so the second load begins a number earlier.
            let low = _mm_blend_epi16::<0xaa>(eight(p), _mm_setzero_si128());
            _mm256_set_m128i(_mm_srli_epi32::<16>(eight(p.add(7))), low)
        }
    }

    #[inline(always)]
    unsafe fn raised(self) -> Self {
        // SAFETY: registers only.
        unsafe { _mm256_slli_epi32::<16>(self) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: registers only.
        unsafe { _mm256_or_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn even(low: Self, high: Self) -> Self {
        // SAFETY: registers only.
        unsafe {
            let by_halves = _mm256_shuffle_ps::<0x88>(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high));
            _mm256_permute4x64_epi64::<0xd8>(_mm256_castps_si256(by_halves))
        }
    }

    /// Pairs, then quadruples within 128-bit lanes, then the lanes.
    #[inline(always)]
    unsafe fn transposed<const PARTS: usize>(lines: &[[Self; PARTS]; 16], part: usize) -> [Self; 16] {
        // SAFETY: registers only.
        unsafe {
            let r = array::<_, 8>(|i| lines[i][part]);
            let mut t = r;
            for i in 0..4 {
                t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
            }
            let mut out = [Self::zeros(); 16];
            for h in 0..2 {
                let even = [_mm256_unpacklo_epi64(t[h], t[2 + h]), _mm256_unpacklo_epi64(t[4 + h], t[6 + h])];
                let odd = [_mm256_unpackhi_epi64(t[h], t[2 + h]), _mm256_unpackhi_epi64(t[4 + h], t[6 + h])];
                out[2 * h] = _mm256_permute2x128_si256::<0x20>(even[0], even[1]);
                out[2 * h + 1] = _mm256_permute2x128_si256::<0x20>(odd[0], odd[1]);
                out[2 * h + 4] = _mm256_permute2x128_si256::<0x31>(even[0], even[1]);
                out[2 * h + 5] = _mm256_permute2x128_si256::<0x31>(odd[0], odd[1]);
            }
            out
        }
    }
}
