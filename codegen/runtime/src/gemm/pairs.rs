//! Products of few rows of bf16: lines of B are multiplied as they lie, two values at a time, by an instruction that adds both products.
//!
//! Rows of A are staged as pairs, too, so that nothing is widened: a register has 32 values of each, where it has sixteen of `f32`.

use super::line::Line;
use crate::math::vector::Lanes;

/// Lines of bf16, in words of two.
pub(super) struct Pair;

impl Line for Pair {
    type Stored = f32;
    #[inline(always)]
    unsafe fn multiply_add<L: Lanes>(row: L, line: L, sum: L) -> L {
        // SAFETY: the caller's contract.
        unsafe { L::add_pairs(row, line, sum) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::Pair;
    use crate::gemm::gemv::{self, DOT_ROWS, Dot, Lines};
    use crate::math::vector::x86::Avx512;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]
    unsafe fn dot<const R: usize>(
        a: *const f32,
        lda: usize,
        b: &Lines,
        k: usize,
        c: *mut f32,
        ldc: usize,
        adds: bool,
    ) {
        // SAFETY: the caller's contract.
        unsafe { gemv::dot::<Avx512, R, Pair>(a, lda, b, k, c, ldc, adds) }
    }

    /// By rows.
    pub(in crate::gemm) const DOTS: [Dot; DOT_ROWS] =
        [dot::<1>, dot::<2>, dot::<3>, dot::<4>, dot::<5>, dot::<6>];
}
