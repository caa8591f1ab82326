//! Sums, products, maxima and minima: of a row, and of rows element by element.
//!
//! A row is reduced in 64 lanes, element i in lane i % 64, and the lanes are folded in halves: the result
//! is a function of the data and its length only, the same on every instruction set. NaN wins over any number.

use super::array;

/// Numbers, or registers of them lane by lane, that can be reduced.
pub(super) trait Number: Copy {
    /// Integers wrap.
    fn plus(self, other: Self) -> Self;
    /// Integers wrap.
    fn times(self, other: Self) -> Self;
    fn maximum(self, other: Self) -> Self;
    fn minimum(self, other: Self) -> Self;
}

/// Methods of [`Number`] that operators give.
macro_rules! plus_and_times {
    () => {
        #[inline(always)]
        fn plus(self, other: Self) -> Self {
            self + other
        }
        #[inline(always)]
        fn times(self, other: Self) -> Self {
            self * other
        }
    };
}

macro_rules! floats {
    ($($type:ident)*) => {$(
        impl Number for $type {
            plus_and_times!();
            // Comparisons with a NaN in `other` are false, so it is chosen. In two steps, each of which is one
            // instruction per register.
            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                let larger = if self > other { self } else { other };
                if self.is_nan() { self } else { larger }
            }
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                let smaller = if self < other { self } else { other };
                if self.is_nan() { self } else { smaller }
            }
        }
    )*};
}
floats!(f32 f64);

macro_rules! integers {
    ($($type:ident)*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                if self > other { self } else { other }
            }
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                if self < other { self } else { other }
            }
        }
    )*};
}
integers!(i32 u32);

/// How two numbers become one. A type, since a closure might remain [a call](array()).
pub(super) trait Fold {
    fn of<N: Number>(a: N, b: N) -> N;
}

macro_rules! folds {
    ($($(#[$doc:meta])* $fold:ident $method:ident;)*) => {$(
        $(#[$doc])*
        pub(super) struct $fold;
        impl Fold for $fold {
            #[inline(always)]
            fn of<N: Number>(a: N, b: N) -> N {
                a.$method(b)
            }
        }
    )*};
}
folds! {
    /// The sum.
    Sum plus;
    /// The product.
    Product times;
    /// The largest.
    Max maximum;
    /// The smallest.
    Min minimum;
}

/// Lanes of what a row is reduced in.
const GROUP: usize = 16;
/// Groups of lanes: enough to hide the latency of an addition.
const GROUPS: usize = 4;

/// Sixteen lanes: a register of AVX-512, two of AVX2, or an array.
pub(super) trait Sixteen: Number {
    /// What a lane holds.
    type Value: Copy;

    /// `value` in every lane.
    ///
    /// # Safety
    /// The instruction set is there.
    unsafe fn splat(value: Self::Value) -> Self;
    /// From memory, of any alignment.
    ///
    /// # Safety
    /// The instruction set is there, and sixteen values at `source`.
    unsafe fn load(source: *const Self::Value) -> Self;
    /// The first `count` lanes from memory, fewer than sixteen; the others as they are.
    ///
    /// # Safety
    /// `count` values at `source`.
    unsafe fn load_first(self, source: *const Self::Value, count: usize) -> Self;
    /// Lane `by + i` in lane i, for i below `by` (8, 4, 2 or 1); the other lanes may hold anything.
    fn moved(self, by: usize) -> Self;
    /// The first lane.
    fn first(self) -> Self::Value;
}

/// Reduces n values, to `identity` if there are none.
///
/// # Safety
/// The instruction set is there; `src` covers n values.
#[inline(always)]
pub(super) unsafe fn reduce<L: Sixteen, F: Fold>(
    src: *const L::Value,
    n: usize,
    identity: L::Value,
) -> L::Value {
    let whole = n - n % (GROUPS * GROUP);
    // SAFETY: only values before `n` are read.
    unsafe {
        let none = L::splat(identity);
        let mut groups = [none; GROUPS];
        for i in (0..whole).step_by(GROUPS * GROUP) {
            for (at, group) in groups.iter_mut().enumerate() {
                *group = F::of(*group, L::load(src.add(i + at * GROUP)));
            }
        }
        for (at, group) in groups.iter_mut().enumerate() {
            let start = whole + at * GROUP;
            let rest = src.wrapping_add(start);
            if start + GROUP <= n {
                *group = F::of(*group, L::load(rest));
            } else if start < n {
                *group = F::of(*group, none.load_first(rest, n - start));
            }
        }
        let [a, b, c, d] = groups;
        let mut lanes = F::of(F::of(a, c), F::of(b, d));
        for by in [8, 4, 2, 1] {
            lanes = F::of(lanes, lanes.moved(by));
        }
        lanes.first()
    }
}

/// Folds `src[i]` into `acc[i]`, for n values.
///
/// # Safety
/// Both pointers cover n values and do not overlap.
#[inline(always)]
pub(super) unsafe fn accumulate<N: Number, F: Fold>(acc: *mut N, src: *const N, n: usize) {
    for i in 0..n {
        // SAFETY: the caller's contract; memory of any alignment.
        unsafe {
            let value = F::of(acc.add(i).read_unaligned(), src.add(i).read_unaligned());
            acc.add(i).write_unaligned(value);
        }
    }
}

impl<N: Number, const K: usize> Number for [N; K] {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        array(|i| self[i].plus(other[i]))
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        array(|i| self[i].times(other[i]))
    }
    #[inline(always)]
    fn maximum(self, other: Self) -> Self {
        array(|i| self[i].maximum(other[i]))
    }
    #[inline(always)]
    fn minimum(self, other: Self) -> Self {
        array(|i| self[i].minimum(other[i]))
    }
}

impl<N: Number> Sixteen for [N; GROUP] {
    type Value = N;

    #[inline(always)]
    unsafe fn splat(value: N) -> Self {
        [value; GROUP]
    }
    #[inline(always)]
    unsafe fn load(source: *const N) -> Self {
        // SAFETY: the caller's contract.
        unsafe { source.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_first(mut self, source: *const N, count: usize) -> Self {
        // SAFETY: the caller's contract.
        unsafe {
            source.cast::<u8>().copy_to_nonoverlapping(self.as_mut_ptr().cast(), count * size_of::<N>());
        }
        self
    }
    #[inline(always)]
    fn moved(self, by: usize) -> Self {
        array(|i| self[(i + by) % GROUP])
    }
    #[inline(always)]
    fn first(self) -> N {
        self[0]
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Number, Sixteen};
    use crate::math::vector::x86::{Avx2, Avx512};
    use crate::math::vector::{Lanes, Vector};
    use std::arch::x86_64::*;

    /// Numbers from an expression that is `a` where it is NaN, else `b`.
    macro_rules! numbers {
        ($($type:ident: |$a:ident, $b:ident| $unless_nan:expr;)*) => {$(
            impl Number for $type {
                plus_and_times!();
                #[inline(always)]
                fn maximum(self, other: Self) -> Self {
                    let ($a, $b) = (self, Vector::max(self, other));
                    // SAFETY: a value of this type exists, so its instruction set does.
                    Self(unsafe { $unless_nan })
                }
                #[inline(always)]
                fn minimum(self, other: Self) -> Self {
                    let ($a, $b) = (self, Vector::min(self, other));
                    // SAFETY: a value of this type exists, so its instruction set does.
                    Self(unsafe { $unless_nan })
                }
            }
        )*};
    }
    numbers! {
        Avx512: |a, b|
            _mm512_mask_mov_ps(b.0, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a.0, a.0), a.0);
        Avx2: |a, b|
            _mm256_blendv_ps(b.0, a.0, _mm256_cmp_ps::<_CMP_UNORD_Q>(a.0, a.0));
    }

    impl Sixteen for Avx512 {
        type Value = f32;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller's contract.
            unsafe { <Self as Lanes>::splat(value) }
        }
        #[inline(always)]
        unsafe fn load(source: *const f32) -> Self {
            // SAFETY: the caller's contract.
            unsafe { <Self as Lanes>::load(source) }
        }
        #[inline(always)]
        unsafe fn load_first(self, source: *const f32, count: usize) -> Self {
            // SAFETY: masked lanes are not read.
            Self(unsafe { _mm512_mask_loadu_ps(self.0, (1 << count) - 1, source) })
        }
        #[inline(always)]
        fn moved(self, by: usize) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe {
                let lanes = _mm512_castps_si512(self.0);
                Self(_mm512_castsi512_ps(match by {
                    8 => _mm512_alignr_epi32::<8>(lanes, lanes),
                    4 => _mm512_alignr_epi32::<4>(lanes, lanes),
                    2 => _mm512_alignr_epi32::<2>(lanes, lanes),
                    _ => _mm512_alignr_epi32::<1>(lanes, lanes),
                }))
            }
        }
        #[inline(always)]
        fn first(self) -> f32 {
            // SAFETY: as above.
            unsafe { _mm512_cvtss_f32(self.0) }
        }
    }

    impl Sixteen for [Avx2; 2] {
        type Value = f32;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller's contract.
            unsafe { [<Avx2 as Lanes>::splat(value); 2] }
        }
        #[inline(always)]
        unsafe fn load(source: *const f32) -> Self {
            // SAFETY: the caller's contract.
            unsafe { [<Avx2 as Lanes>::load(source), <Avx2 as Lanes>::load(source.add(8))] }
        }
        #[inline(always)]
        unsafe fn load_first(self, source: *const f32, count: usize) -> Self {
            let [mut low, mut high] = self;
            // SAFETY: masked lanes are not read.
            unsafe {
                let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                for (half, start) in [(&mut low, 0), (&mut high, 8)] {
                    let lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32 - start), lane);
                    let values = _mm256_maskload_ps(source.wrapping_add(start as usize), lanes);
                    half.0 = _mm256_blendv_ps(half.0, values, _mm256_castsi256_ps(lanes));
                }
            }
            [low, high]
        }
        #[inline(always)]
        fn moved(self, by: usize) -> Self {
            let [low, high] = self;
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe {
                let low = match by {
                    8 => high,
                    4 => Avx2(_mm256_permute2f128_ps::<1>(low.0, low.0)),
                    2 => Avx2(_mm256_permute_ps::<0b01_00_11_10>(low.0)),
                    _ => Avx2(_mm256_permute_ps::<0b10_11_00_01>(low.0)),
                };
                [low, high]
            }
        }
        #[inline(always)]
        fn first(self) -> f32 {
            // SAFETY: as above.
            unsafe { _mm256_cvtss_f32(self[0].0) }
        }
    }
}
