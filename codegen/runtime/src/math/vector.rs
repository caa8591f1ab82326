//! A register of `f32` lanes: what the elementary functions need of AVX-512 and AVX2, under one name.
//!
//! A value of an implementing type exists only where its instruction set does: `load` and `splat` are unsafe for
//! that reason, and everything that starts from an existing value is safe. All methods are inlined into
//! functions that carry `#[target_feature]`, without which they would be calls.

mod whole;

use super::array;
use super::elementary::Function;
use std::ops::{Add, Div, Mul, Sub};
pub(crate) use whole::WholeNumbers;

/// Lanes of `f32` that can be moved and multiplied: all that matrix products need.
pub(crate) trait Lanes: WholeNumbers + Add<Output = Self> {
    /// How many lanes there are.
    const LANES: usize;

    /// `value` in every lane.
    ///
    /// # Safety
    /// The instruction set is there.
    unsafe fn splat(value: f32) -> Self;

    /// Lanes from memory, of any alignment.
    ///
    /// # Safety
    /// The instruction set is there, and `LANES` values at `source`.
    unsafe fn load(source: *const f32) -> Self;

    /// The first `count` lanes from memory (fewer than `LANES`), the others zero.
    ///
    /// # Safety
    /// The instruction set is there, and `count` values at `source`.
    unsafe fn load_first(source: *const f32, count: usize) -> Self;

    /// Lanes from as many numbers of `bf16`, of any alignment.
    ///
    /// # Safety
    /// The instruction set is there, and `LANES` values at `source`.
    unsafe fn widen(source: *const u16) -> Self;

    /// All lanes from signed bytes.
    ///
    /// # Safety
    /// The instruction set is there, and `LANES` values at `source`.
    unsafe fn widen_bytes(source: *const i8) -> Self;

    /// One value of bf16 in all lanes.
    ///
    /// # Safety
    /// The instruction set is there, and a value at `source`.
    unsafe fn splat_bf16(source: *const u16) -> Self;

    /// The lower (or upper) halves of bytes, each less 8, times a number that all lanes hold.
    ///
    /// # Safety
    /// The instruction set is there, and `LANES` bytes at `source`.
    unsafe fn half_bytes<const UPPER: bool>(source: *const u8, scale: Self) -> Self;

    /// Half byte N of the four bytes that each lane holds, from the lowest on, less 8.
    fn half_byte<const N: u32>(self) -> Self;

    /// A number of bf16 for every four lanes, in each of them; the first one has the lowest bits.
    ///
    /// # Safety
    /// The instruction set is there.
    unsafe fn of_fours(numbers: u64) -> Self;

    /// As [`of_fours`](Self::of_fours), of numbers of f32.
    ///
    /// # Safety
    /// The instruction set is there.
    unsafe fn of_fours_f32(numbers: [f32; 4]) -> Self;

    /// `sum` with the products of both bf16 in each lane added.
    ///
    /// # Safety
    /// The processor has an instruction for it.
    unsafe fn add_pairs(_: Self, _: Self, _: Self) -> Self {
        unreachable!("these lanes have no instruction for pairs")
    }

    /// All lanes to memory.
    ///
    /// # Safety
    /// `LANES` values may be written at `target`.
    unsafe fn store(self, target: *mut f32);

    /// The first `count` lanes to memory (fewer than `LANES`).
    ///
    /// # Safety
    /// `count` values may be written at `target`.
    unsafe fn store_first(self, target: *mut f32, count: usize);

    /// `a · b + c`, rounded once where the instruction set fuses them.
    fn fma(a: Self, b: Self, c: Self) -> Self;
    /// The sum of the lanes, folded in halves.
    fn sum(self) -> f32;
    /// The same of several registers.
    #[inline(always)]
    fn sums<const N: usize>(registers: [Self; N]) -> [f32; N] {
        let mut sums = [0.0; N];
        for (sum, register) in sums.iter_mut().zip(registers) {
            *sum = register.sum();
        }
        sums
    }
}

/// Sixteen numbers of `f32`, as bits.
pub type Table = [u32; 16];

/// What elementary functions are made of: registers of lanes, or symbols that record what would be done with them.
/// Comparisons with NaN are false, as in the language.
pub trait Vector:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// `a · b + c`, rounded once.
    fn fma(a: Self, b: Self, c: Self) -> Self;
    /// A register like this one with `value` in every lane.
    fn all(self, value: f32) -> Self;
    /// The smaller; `b` where either is NaN.
    fn min(a: Self, b: Self) -> Self;
    /// The larger; `b` where either is NaN.
    fn max(a: Self, b: Self) -> Self;
    /// The nearest integer, ties to even.
    fn round(x: Self) -> Self;
    /// Without the sign.
    fn abs(x: Self) -> Self;
    /// `x`, which is not negative, with the sign of `sign`.
    fn with_sign(x: Self, sign: Self) -> Self;
    /// `yes` where `a < b`, else `no`.
    fn where_less(a: Self, b: Self, yes: Self, no: Self) -> Self;
    /// `x · 2ⁿ` for integers -150 ≤ n ≤ 128, through infinity above and subnormal numbers below; zero where `a < b`, whatever x and n
    /// are. There nothing is computed: a result that is subnormal, or underflows to zero, takes some processors 30 times as long as any other.
    fn scale_unless_less(x: Self, n: Self, a: Self, b: Self) -> Self;
    /// The number of a table that the lowest four bits of each lane name.
    fn lookup(index: Self, table: &'static Table) -> Self;
    /// `(m, e)` with `self = m · 2ᵉ` and √½ ≤ m ≤ √2, for positive finite values, subnormal ones too.
    fn split(self) -> (Self, Self);
}

/// The polynomial with the given coefficients, highest power first, by Horner's rule.
#[inline(always)]
pub(crate) fn polynomial<V: Vector, const N: usize>(x: V, coefficients: [f32; N]) -> V {
    let mut sum = x.all(coefficients[0]);
    for &coefficient in &coefficients[1..] {
        sum = V::fma(sum, x, x.all(coefficient));
    }
    sum
}

/// `dst[i] = F::of(src[i])` for n values; `dst` may be `src`.
///
/// # Safety
/// The instruction set of `V` is there, both pointers cover n values, and are equal or do not overlap.
#[inline(always)]
pub(super) unsafe fn map<V: Lanes + Vector, F: Function>(dst: *mut f32, src: *const f32, n: usize) {
    let whole = n - n % V::LANES;
    // SAFETY: the caller's contract; the last, partial register is masked.
    unsafe {
        for i in (0..whole).step_by(V::LANES) {
            F::of(V::load(src.add(i))).store(dst.add(i));
        }
        if whole < n {
            F::of(V::load_first(src.add(whole), n - whole)).store_first(dst.add(whole), n - whole);
        }
    }
}

/// Four lanes of plain code: a register of every processor's baseline.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 4]);

impl Add for Portable {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(array(|i| self.0[i] + other.0[i]))
    }
}

impl Lanes for Portable {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }
    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller's contract.
        Self(unsafe { source.cast::<[f32; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_first(source: *const f32, count: usize) -> Self {
        // SAFETY: only the first `count` values are read.
        Self(array(|i| if i < count { unsafe { source.add(i).read_unaligned() } } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn widen(source: *const u16) -> Self {
        // SAFETY: the caller's contract.
        let bits = unsafe { source.cast::<[u16; 4]>().read_unaligned() };
        Self(array(|i| f32::from_bits(u32::from(bits[i]) << 16)))
    }
    #[inline(always)]
    unsafe fn widen_bytes(source: *const i8) -> Self {
        // SAFETY: the caller's contract.
        let bytes = unsafe { source.cast::<[i8; 4]>().read_unaligned() };
        Self(array(|i| f32::from(bytes[i])))
    }
    #[inline(always)]
    unsafe fn splat_bf16(source: *const u16) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::splat(f32::from_bits(u32::from(source.read_unaligned()) << 16)) }
    }
    #[inline(always)]
    unsafe fn half_bytes<const UPPER: bool>(source: *const u8, scale: Self) -> Self {
        // SAFETY: the caller's contract.
        let bytes = unsafe { source.cast::<[u8; 4]>().read_unaligned() };
        Self(array(|i| {
            let half = if UPPER { bytes[i] >> 4 } else { bytes[i] & 15 };
            (f32::from(half) - 8.0) * scale.0[i]
        }))
    }
    #[inline(always)]
    fn half_byte<const N: u32>(self) -> Self {
        Self(array(|i| (self.0[i].to_bits() >> (4 * N) & 15) as f32 - 8.0))
    }
    #[inline(always)]
    unsafe fn of_fours(numbers: u64) -> Self {
        Self([f32::from_bits((numbers as u32) << 16); 4])
    }
    #[inline(always)]
    unsafe fn of_fours_f32(numbers: [f32; 4]) -> Self {
        Self([numbers[0]; 4])
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { target.cast::<[f32; 4]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, target: *mut f32, count: usize) {
        for (i, &lane) in self.0.iter().enumerate().take(count) {
            // SAFETY: only the first `count` values are written.
            unsafe { target.add(i).write_unaligned(lane) };
        }
    }
    // Not fused: without the instruction, `mul_add` is a call to a library.
    #[inline(always)]
    fn fma(a: Self, b: Self, c: Self) -> Self {
        Self(array(|i| a.0[i] * b.0[i] + c.0[i]))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        (a + c) + (b + d)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use super::{Lanes, Table, Vector};
    use std::arch::x86_64::*;
    use std::ops::{Add, Div, Mul, Sub};

    /// Sixteen lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(pub(crate) __m512);

    /// Eight lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(pub(crate) __m256);

    macro_rules! operators {
        ($type:ident: $($trait:ident $method:ident $intrinsic:ident),*) => {$(
            impl $trait for $type {
                type Output = Self;
                #[inline(always)]
                fn $method(self, other: Self) -> Self {
                    // SAFETY: a value of this type exists, so its instruction set does.
                    Self(unsafe { $intrinsic(self.0, other.0) })
                }
            }
        )*};
    }
    operators!(Avx512: Add add _mm512_add_ps, Sub sub _mm512_sub_ps, Mul mul _mm512_mul_ps, Div div _mm512_div_ps);
    operators!(Avx2: Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps);

    /// Methods that compute registers from registers.
    macro_rules! methods {
        ($($name:ident($($argument:ident),*) = $body:expr;)*) => {$(
            #[inline(always)]
            fn $name($($argument: Self),*) -> Self {
                // SAFETY: a value of this type exists, so its instruction set does.
                Self(unsafe { $body })
            }
        )*};
    }

    fn first(count: usize) -> __mmask16 {
        (1 << count) - 1
    }

    /// The halves of both added up, beside each other.
    ///
    /// # Safety
    /// The processor has AVX-512.
    #[inline(always)]
    unsafe fn halves(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe {
            let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
            _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
        }
    }

    /// What half bytes stand for, in their order: a permutation looks at the lowest four bits of each lane.
    ///
    /// # Safety
    /// The processor has AVX-512.
    #[inline(always)]
    unsafe fn numbers() -> __m512 {
        // SAFETY: the caller's contract.
        unsafe {
            _mm512_setr_ps(
                -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
            )
        }
    }

    impl Lanes for Avx512 {
        const LANES: usize = 16;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller's contract.
            Self(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn load(source: *const f32) -> Self {
            // SAFETY: the caller's contract.
            Self(unsafe { _mm512_loadu_ps(source) })
        }
        #[inline(always)]
        unsafe fn load_first(source: *const f32, count: usize) -> Self {
            // SAFETY: masked lanes are not read.
            Self(unsafe { _mm512_maskz_loadu_ps(first(count), source) })
        }
        #[inline(always)]
        unsafe fn widen(source: *const u16) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(source.cast()));
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
            }
        }
        #[inline(always)]
        unsafe fn widen_bytes(source: *const i8) -> Self {
            // SAFETY: the caller's contract.
            unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(source.cast())))) }
        }
        #[inline(always)]
        unsafe fn splat_bf16(source: *const u16) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let pairs = _mm512_set1_epi16(source.cast::<i16>().read_unaligned());
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)))
            }
        }
        #[inline(always)]
        unsafe fn half_bytes<const UPPER: bool>(source: *const u8, scale: Self) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let bytes = _mm_loadu_si128(source.cast());
                let halves = if UPPER { _mm_srli_epi16::<4>(bytes) } else { bytes };
                let table = _mm512_mul_ps(numbers(), scale.0);
                Self(_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(halves), table))
            }
        }
        #[inline(always)]
        fn half_byte<const N: u32>(self) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe {
                let lowest = _mm512_srl_epi32(_mm512_castps_si512(self.0), _mm_cvtsi32_si128(4 * N as i32));
                Self(_mm512_permutexvar_ps(lowest, numbers()))
            }
        }
        #[inline(always)]
        unsafe fn of_fours(numbers: u64) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let all = _mm512_set1_epi64(numbers as i64);
                // Bytes 6 and 7 of a four are those of its number, the others zero.
                let lane = |byte: i32| (byte | (byte + 1) << 8) << 16 | 0x8080;
                let [a, b, c, d] = [lane(0), lane(2), lane(4), lane(6)];
                let order = _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
                Self(_mm512_castsi512_ps(_mm512_shuffle_epi8(all, order)))
            }
        }
        #[inline(always)]
        unsafe fn of_fours_f32(numbers: [f32; 4]) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let all = _mm512_castps128_ps512(_mm_loadu_ps(numbers.as_ptr()));
                let order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
                Self(_mm512_permutexvar_ps(order, all))
            }
        }
        #[inline(always)]
        unsafe fn store(self, target: *mut f32) {
            // SAFETY: the caller's contract.
            unsafe { _mm512_storeu_ps(target, self.0) }
        }
        #[inline(always)]
        unsafe fn store_first(self, target: *mut f32, count: usize) {
            // SAFETY: masked lanes are not written.
            unsafe { _mm512_mask_storeu_ps(target, first(count), self.0) }
        }
        #[inline(always)]
        unsafe fn add_pairs(a: Self, b: Self, sum: Self) -> Self {
            // SAFETY: the caller has AVX-512 with bf16; the same 512 bits.
            unsafe {
                let [a, b] = std::mem::transmute::<[__m512; 2], [__m512bh; 2]>([a.0, b.0]);
                Self(_mm512_dpbf16_ps(sum.0, a, b))
            }
        }
        methods! {
            fma(a, b, c) = _mm512_fmadd_ps(a.0, b.0, c.0);
        }
        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe {
                let high = _mm512_extractf32x8_ps::<1>(self.0);
                Avx2(_mm256_add_ps(_mm512_castps512_ps256(self.0), high)).sum()
            }
        }
        /// Of four registers, halves and then quarters are folded side by side.
        #[inline(always)]
        fn sums<const N: usize>(registers: [Self; N]) -> [f32; N] {
            let mut sums = [0.0; N];
            let (fours, rest) = registers.as_chunks::<4>();
            for (place, [a, b, c, d]) in fours.iter().enumerate() {
                // SAFETY: a value of this type exists, so its instruction set does.
                unsafe {
                    let (ab, cd) = (halves(a.0, b.0), halves(c.0, d.0));
                    let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
                    // A quarter for each register.
                    let four = _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
                    let two = _mm512_add_ps(four, _mm512_shuffle_ps::<0b01_00_11_10>(four, four));
                    let one = _mm512_add_ps(two, _mm512_shuffle_ps::<0b10_11_00_01>(two, two));
                    let firsts = _mm512_maskz_compress_ps(0b0001_0001_0001_0001, one);
                    _mm_storeu_ps(sums.as_mut_ptr().add(4 * place), _mm512_castps512_ps128(firsts));
                }
            }
            for (sum, register) in sums[N - rest.len()..].iter_mut().zip(rest) {
                *sum = register.sum();
            }
            sums
        }
    }

    impl Vector for Avx512 {
        #[inline(always)]
        fn lookup(index: Self, table: &'static Table) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does; the table has sixteen numbers.
            unsafe {
                let table = _mm512_loadu_ps(table.as_ptr().cast());
                Self(_mm512_permutexvar_ps(_mm512_castps_si512(index.0), table))
            }
        }
        #[inline(always)]
        fn all(self, value: f32) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe { Self::splat(value) }
        }
        #[inline(always)]
        fn split(self) -> (Self, Self) {
            // SAFETY: as above.
            unsafe {
                let e = _mm512_getexp_ps(self.0);
                let m = _mm512_getmant_ps::<_MM_MANT_NORM_1_2, _MM_MANT_SIGN_ZERO>(self.0);
                // From [1, 2) to [√½, √2).
                let (half, one) = (_mm512_set1_ps(0.5), _mm512_set1_ps(1.0));
                let high = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(m, _mm512_set1_ps(std::f32::consts::SQRT_2));
                (Self(_mm512_mask_mul_ps(m, high, m, half)), Self(_mm512_mask_add_ps(e, high, e, one)))
            }
        }
        methods! {
            fma(a, b, c) = _mm512_fmadd_ps(a.0, b.0, c.0);
            min(a, b) = _mm512_min_ps(a.0, b.0);
            max(a, b) = _mm512_max_ps(a.0, b.0);
            round(x) = _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(x.0);
            abs(x) = _mm512_abs_ps(x.0);
            with_sign(x, sign) = _mm512_or_ps(x.0, _mm512_and_ps(sign.0, _mm512_set1_ps(-0.0)));
            where_less(a, b, yes, no) = _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a.0, b.0), no.0, yes.0);
            scale_unless_less(x, n, a, b) = {
                _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a.0, b.0), x.0, n.0)
            };
        }
    }

    /// All ones in the first `count` lanes.
    #[inline(always)]
    unsafe fn first_lanes(count: usize) -> __m256i {
        // SAFETY: AVX2 is the caller's promise.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lane)
        }
    }

    /// Half byte N of four as a number in the mantissa of `f32`: its bits, those of a power of two that becomes greater by that number when they
    /// are put there, and what is subtracted then so that the number is less 8. All of it is exact.
    const fn in_mantissa(n: u32) -> (u32, u32, f32) {
        let power = (1 << (23 - 4 * n)) as f32;
        (15 << (4 * n), power.to_bits(), power + 8.0)
    }

    /// 2ⁿ for integers -126 ≤ n ≤ 127, by its exponent bits.
    #[inline(always)]
    unsafe fn power_of_two(n: __m256i) -> __m256 {
        // SAFETY: AVX2 is the caller's promise.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127)))) }
    }

    impl Lanes for Avx2 {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller's contract.
            Self(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn load(source: *const f32) -> Self {
            // SAFETY: the caller's contract.
            Self(unsafe { _mm256_loadu_ps(source) })
        }
        #[inline(always)]
        unsafe fn load_first(source: *const f32, count: usize) -> Self {
            // SAFETY: masked lanes are not read.
            Self(unsafe { _mm256_maskload_ps(source, first_lanes(count)) })
        }
        #[inline(always)]
        unsafe fn widen(source: *const u16) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(source.cast()));
                Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)))
            }
        }
        #[inline(always)]
        unsafe fn widen_bytes(source: *const i8) -> Self {
            // SAFETY: the caller's contract.
            unsafe { Self(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(source.cast())))) }
        }
        #[inline(always)]
        unsafe fn splat_bf16(source: *const u16) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let pairs = _mm256_set1_epi16(source.cast::<i16>().read_unaligned());
                Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)))
            }
        }
        #[inline(always)]
        unsafe fn half_bytes<const UPPER: bool>(source: *const u8, scale: Self) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(source.cast()));
                let halves = if UPPER {
                    _mm256_srli_epi32::<4>(bytes)
                } else {
                    _mm256_and_si256(bytes, _mm256_set1_epi32(15))
                };
                let numbers = _mm256_cvtepi32_ps(_mm256_sub_epi32(halves, _mm256_set1_epi32(8)));
                Self(_mm256_mul_ps(numbers, scale.0))
            }
        }
        #[inline(always)]
        fn half_byte<const N: u32>(self) -> Self {
            let (bits, power, offset) = const { in_mantissa(N % 4) };
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe {
                let words = _mm256_castps_si256(self.0);
                let words = if N < 4 { words } else { _mm256_srli_epi32::<16>(words) };
                let number = _mm256_and_si256(words, _mm256_set1_epi32(bits as i32));
                let number = _mm256_or_si256(number, _mm256_set1_epi32(power as i32));
                Self(_mm256_sub_ps(_mm256_castsi256_ps(number), _mm256_set1_ps(offset)))
            }
        }
        #[inline(always)]
        unsafe fn of_fours(numbers: u64) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let all = _mm256_set1_epi64x(numbers as i64);
                let lane = |byte: i32| (byte | (byte + 1) << 8) << 16 | 0x8080;
                let [a, b] = [lane(0), lane(2)];
                let order = _mm256_setr_epi32(a, a, a, a, b, b, b, b);
                Self(_mm256_castsi256_ps(_mm256_shuffle_epi8(all, order)))
            }
        }
        #[inline(always)]
        unsafe fn of_fours_f32(numbers: [f32; 4]) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let all = _mm256_castps128_ps256(_mm_loadu_ps(numbers.as_ptr()));
                Self(_mm256_permutevar8x32_ps(all, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)))
            }
        }
        #[inline(always)]
        unsafe fn store(self, target: *mut f32) {
            // SAFETY: the caller's contract.
            unsafe { _mm256_storeu_ps(target, self.0) }
        }
        #[inline(always)]
        unsafe fn store_first(self, target: *mut f32, count: usize) {
            // SAFETY: masked lanes are not written.
            unsafe { _mm256_maskstore_ps(target, first_lanes(count), self.0) }
        }
        methods! {
            fma(a, b, c) = _mm256_fmadd_ps(a.0, b.0, c.0);
        }
        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe {
                let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }
    }

    impl Vector for Avx2 {
        #[inline(always)]
        fn lookup(index: Self, table: &'static Table) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does; the table has twice eight numbers.
            unsafe {
                let index = _mm256_castps_si256(index.0);
                let half =
                    |at| _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(at).cast()), index);
                let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
                Self(_mm256_blendv_ps(half(0), half(8), upper))
            }
        }
        #[inline(always)]
        fn all(self, value: f32) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe { Self::splat(value) }
        }
        #[inline(always)]
        fn split(self) -> (Self, Self) {
            // SAFETY: as above.
            unsafe {
                // Subnormal numbers are scaled by 2²³ first.
                let small = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, _mm256_set1_ps(f32::MIN_POSITIVE));
                let up = _mm256_mul_ps(self.0, _mm256_set1_ps(8_388_608.0));
                let bits = _mm256_castps_si256(_mm256_blendv_ps(self.0, up, small));
                // The exponent field of x / √½ is floor(log2(x / √½)).
                let base = _mm256_set1_epi32(std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32);
                let e = _mm256_srai_epi32::<23>(_mm256_sub_epi32(bits, base));
                let m = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32::<23>(e)));
                let correction = _mm256_and_ps(small, _mm256_set1_ps(23.0));
                (Self(m), Self(_mm256_sub_ps(_mm256_cvtepi32_ps(e), correction)))
            }
        }
        methods! {
            fma(a, b, c) = _mm256_fmadd_ps(a.0, b.0, c.0);
            min(a, b) = _mm256_min_ps(a.0, b.0);
            max(a, b) = _mm256_max_ps(a.0, b.0);
            round(x) = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x.0);
            abs(x) = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x.0);
            with_sign(x, sign) = _mm256_or_ps(x.0, _mm256_and_ps(sign.0, _mm256_set1_ps(-0.0)));
            where_less(a, b, yes, no) = _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0));
            // In two steps, since 2ⁿ itself need not be a normal number.
            scale_unless_less(x, n, a, b) = {
                let less = _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0);
                let n = _mm256_cvtps_epi32(_mm256_andnot_ps(less, n.0));
                let half = _mm256_srai_epi32::<1>(n);
                let rest = _mm256_sub_epi32(n, half);
                _mm256_andnot_ps(less, _mm256_mul_ps(_mm256_mul_ps(x.0, power_of_two(half)), power_of_two(rest)))
            };
        }
    }
}
