//! Bytes that lie across k: lines of up to 32 of them, of which four are the bytes of 32 words.

use super::super::{Offsets, Source, runs};
use std::arch::x86_64::*;

/// The words of one place of k in 32 rows or columns.
pub(in crate::gemm) type Words = [u32; 32];

/// Where up to 32 bytes lie in each line.
pub(in crate::gemm) enum BytePlaces {
    /// In runs.
    Runs(Runs<1>),
    /// In runs of every other place.
    OtherRuns(Runs<2>),
}

/// Runs of bytes that are `STEP` apart, one or two.
pub(in crate::gemm) struct Runs<const STEP: usize> {
    /// Where the first byte would lie if the run went on to both sides, and which bytes from there on belong to it.
    runs: [(isize, u64); 32],
    count: usize,
}

impl BytePlaces {
    /// Those of the first `count` rows or columns; nothing where these are a distance apart.
    #[inline(always)]
    pub(in crate::gemm) fn of(outer: Offsets<'_>, count: usize) -> Option<Self> {
        let side_by_side: [isize; 32] = std::array::from_fn(|i| i as isize);
        let table = match outer {
            Offsets::Strided(1) => &side_by_side[..count],
            Offsets::Strided(_) => return None,
            Offsets::Table(table) => &table[..count],
        };
        Some(match outer.step_of_runs(count) {
            Some(2) => BytePlaces::OtherRuns(Runs::of(table)),
            _ => BytePlaces::Runs(Runs::of(table)),
        })
    }

    /// Writes the words of the first `depth` values of k, each with `flip` changed in it; beyond these values and places there are zeros, changed as
    /// well.
    ///
    /// # Safety
    /// The source has these elements, and the machine AVX-512.
    #[inline(always)]
    pub(in crate::gemm) unsafe fn pack(
        &self,
        source: &Source<'_>,
        depth: usize,
        flip: u32,
        words: &mut [Words],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                BytePlaces::Runs(runs) => runs.pack(source, depth, flip, words),
                BytePlaces::OtherRuns(runs) => runs.pack(source, depth, flip, words),
            }
        }
    }
}

impl<const STEP: usize> Runs<STEP> {
    /// Those of a table of 32 entries at most.
    fn of(table: &[isize]) -> Self {
        let mut all = Runs { runs: [(0, 0); 32], count: 0 };
        for run in runs(table, STEP as isize) {
            let before = |place: usize| 1u64.checked_shl((STEP * place) as u32).unwrap_or(0).wrapping_sub(1);
            let each = if STEP == 1 { !0 } else { 0x5555_5555_5555_5555 };
            let offset = table[run.start] - (run.start * STEP) as isize;
            all.runs[all.count] = (offset, before(run.end) & !before(run.start) & each);
            all.count += 1;
        }
        all
    }

    #[inline(always)]
    unsafe fn pack(&self, source: &Source<'_>, depth: usize, flip: u32, words: &mut [Words]) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.count {
                1 => self.pack_runs::<1>(source, depth, flip, words),
                2 => self.pack_runs::<2>(source, depth, flip, words),
                _ => self.pack_runs::<32>(source, depth, flip, words),
            }
        }
    }

    /// The same for `MOST` runs, or any number above two. Closures would be compiled without the instruction set, and slow it twofold.
    #[inline(always)]
    unsafe fn pack_runs<const MOST: usize>(
        &self,
        source: &Source<'_>,
        depth: usize,
        flip: u32,
        words: &mut [Words],
    ) {
        let base = source.base.cast::<i8>();
        let (whole, rest) = words.split_at_mut(depth / 4);
        // SAFETY: the caller's contract.
        unsafe {
            let (flip, nothing) = (_mm256_set1_epi32(flip as i32), _mm256_setzero_si256());
            let mut lines = [nothing; 4];
            match source.k {
                Offsets::Table(table) => {
                    for (words, offsets) in whole.iter_mut().zip(table.as_chunks::<4>().0) {
                        for (line, &offset) in lines.iter_mut().zip(offsets) {
                            *line = self.read::<MOST>(base.wrapping_offset(offset));
                        }
                        *words = interleaved(lines, flip);
                    }
                }
                Offsets::Strided(stride) => {
                    for (w, words) in whole.iter_mut().enumerate() {
                        for (i, line) in lines.iter_mut().enumerate() {
                            let offset = ((4 * w + i) as isize).wrapping_mul(stride);
                            *line = self.read::<MOST>(base.wrapping_offset(offset));
                        }
                        *words = interleaved(lines, flip);
                    }
                }
            }
            for (w, words) in rest.iter_mut().enumerate() {
                lines = [nothing; 4];
                let first = 4 * (depth / 4 + w);
                for (line, p) in lines.iter_mut().zip(first..depth) {
                    *line = self.read::<MOST>(base.wrapping_offset(source.k.at(p)));
                }
                *words = interleaved(lines, flip);
            }
        }
    }

    /// The bytes of a line in their places. They come in one register, since what is stored in parts cannot be loaded as a whole soon after.
    #[inline(always)]
    unsafe fn read<const MOST: usize>(&self, line: *const i8) -> __m256i {
        // SAFETY: the caller's contract; bytes of other runs are masked.
        unsafe {
            let mut all = _mm256_setzero_si256();
            let count = if MOST <= 2 { MOST } else { self.count };
            for &(offset, mask) in &self.runs[..count] {
                let p = line.wrapping_offset(offset);
                let run = match STEP {
                    1 => _mm256_maskz_loadu_epi8(mask as u32, p),
                    _ => _mm512_cvtepi16_epi8(_mm512_maskz_loadu_epi8(mask, p)),
                };
                all = _mm256_or_si256(all, run);
            }
            all
        }
    }
}

/// The words of which each line has one byte.
#[inline(always)]
unsafe fn interleaved([a, b, c, d]: [__m256i; 4], flip: __m256i) -> Words {
    // SAFETY: the machine has AVX2; the same 1,024 bits.
    unsafe {
        // In each half of 128 bits: pairs of bytes, then words.
        let (low, high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
        let (low_rest, high_rest) = (_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d));
        let first = _mm256_unpacklo_epi16(low, low_rest);
        let second = _mm256_unpackhi_epi16(low, low_rest);
        let third = _mm256_unpacklo_epi16(high, high_rest);
        let fourth = _mm256_unpackhi_epi16(high, high_rest);
        std::mem::transmute::<[__m256i; 4], Words>([
            _mm256_xor_si256(_mm256_permute2x128_si256::<0x20>(first, second), flip),
            _mm256_xor_si256(_mm256_permute2x128_si256::<0x20>(third, fourth), flip),
            _mm256_xor_si256(_mm256_permute2x128_si256::<0x31>(first, second), flip),
            _mm256_xor_si256(_mm256_permute2x128_si256::<0x31>(third, fourth), flip),
        ])
    }
}
