//! Whole numbers of 32 bits in lanes of `f32`: sums of products of bytes, which are exact.

use super::Portable;
use crate::math::array;

/// Lanes that may hold whole numbers instead of floats.
pub(crate) trait WholeNumbers: Copy {
    /// Two neighbouring bytes for each lane, as `i16`; the first one has the lower half.
    ///
    /// # Safety
    /// The instruction set is there, and twice `LANES` bytes at `source`.
    unsafe fn widen_two_bytes(source: *const i8) -> Self;

    /// `sum`, a whole number, with the products of both `i16` in each lane added.
    fn add_halves(a: Self, b: Self, sum: Self) -> Self;

    /// The same by one instruction.
    ///
    /// # Safety
    /// The processor has one.
    unsafe fn add_halves_at_once(_: Self, _: Self, _: Self) -> Self {
        unreachable!("these lanes have no such instruction")
    }

    /// 128 more in each of the four bytes of a lane: signed ones become unsigned.
    fn raised(self) -> Self;

    /// `sum`, a whole number, with the products of four bytes in each lane added: unsigned ones of `a` and signed ones of `b`.
    ///
    /// # Safety
    /// The processor has an instruction for it.
    unsafe fn add_quads(_: Self, _: Self, _: Self) -> Self {
        unreachable!("these lanes have no instruction for bytes")
    }

    /// The sum of lanes that hold whole numbers.
    fn add_whole(self, other: Self) -> Self;

    /// Whole numbers as floats.
    fn whole_to_float(self) -> Self;

    /// The sum of all lanes, which hold whole numbers.
    fn total(self) -> i32;

    /// The same of several registers.
    #[inline(always)]
    fn totals<const N: usize>(registers: [Self; N]) -> [i32; N] {
        let mut totals = [0; N];
        for (total, register) in totals.iter_mut().zip(registers) {
            *total = register.total();
        }
        totals
    }
}

impl WholeNumbers for Portable {
    #[inline(always)]
    unsafe fn widen_two_bytes(source: *const i8) -> Self {
        // SAFETY: the caller's contract.
        let bytes = unsafe { source.cast::<[i8; 8]>().read_unaligned() };
        let half = |byte: i8| u32::from(i16::from(byte) as u16);
        Self(array(|i| f32::from_bits(half(bytes[2 * i]) | half(bytes[2 * i + 1]) << 16)))
    }

    #[inline(always)]
    fn add_halves(a: Self, b: Self, sum: Self) -> Self {
        let product = |x: u32, y: u32| i32::from(x as i16) * i32::from(y as i16);
        Self(array(|i| {
            let (x, y, sum) = (a.0[i].to_bits(), b.0[i].to_bits(), sum.0[i].to_bits() as i32);
            let both = product(x, y).wrapping_add(product(x >> 16, y >> 16));
            f32::from_bits(sum.wrapping_add(both) as u32)
        }))
    }

    #[inline(always)]
    fn raised(self) -> Self {
        Self(array(|i| f32::from_bits(self.0[i].to_bits() ^ 0x8080_8080)))
    }

    #[inline(always)]
    fn add_whole(self, other: Self) -> Self {
        Self(array(|i| f32::from_bits(self.0[i].to_bits().wrapping_add(other.0[i].to_bits()))))
    }

    #[inline(always)]
    fn whole_to_float(self) -> Self {
        Self(array(|i| self.0[i].to_bits() as i32 as f32))
    }

    #[inline(always)]
    fn total(self) -> i32 {
        let mut total = 0_i32;
        for lane in self.0 {
            total = total.wrapping_add(lane.to_bits() as i32);
        }
        total
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::WholeNumbers;
    use crate::math::vector::x86::{Avx2, Avx512};
    use std::arch::x86_64::*;

    macro_rules! whole {
        ($lanes:ident $whole:ident $to:ident $from:ident) => {
            impl $lanes {
                /// Lanes that hold whole numbers.
                #[inline(always)]
                fn whole(bits: $whole) -> Self {
                    // SAFETY: the instruction set is there where such a register is; the same bits.
                    Self(unsafe { $to(bits) })
                }
                /// The whole numbers that the lanes hold.
                #[inline(always)]
                fn bits(self) -> $whole {
                    // SAFETY: a value of this type exists, so its instruction set does; the same bits.
                    unsafe { $from(self.0) }
                }
            }
        };
    }
    whole!(Avx512 __m512i _mm512_castsi512_ps _mm512_castps_si512);
    whole!(Avx2 __m256i _mm256_castsi256_ps _mm256_castps_si256);

    impl WholeNumbers for Avx512 {
        #[inline(always)]
        unsafe fn widen_two_bytes(source: *const i8) -> Self {
            // SAFETY: the caller's contract.
            unsafe { Self::whole(_mm512_cvtepi8_epi16(_mm256_loadu_si256(source.cast()))) }
        }

        #[inline(always)]
        fn add_halves(a: Self, b: Self, sum: Self) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe {
                let both = _mm512_madd_epi16(a.bits(), b.bits());
                Self::whole(_mm512_add_epi32(sum.bits(), both))
            }
        }

        #[inline(always)]
        unsafe fn add_halves_at_once(a: Self, b: Self, sum: Self) -> Self {
            // SAFETY: the caller has AVX-512 VNNI.
            unsafe { Self::whole(_mm512_dpwssd_epi32(sum.bits(), a.bits(), b.bits())) }
        }

        #[inline(always)]
        fn raised(self) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe { Self::whole(_mm512_xor_si512(self.bits(), _mm512_set1_epi8(i8::MIN))) }
        }

        #[inline(always)]
        unsafe fn add_quads(a: Self, b: Self, sum: Self) -> Self {
            // SAFETY: the caller has AVX-512 with VNNI.
            unsafe { Self::whole(_mm512_dpbusd_epi32(sum.bits(), a.bits(), b.bits())) }
        }

        #[inline(always)]
        fn add_whole(self, other: Self) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe { Self::whole(_mm512_add_epi32(self.bits(), other.bits())) }
        }

        #[inline(always)]
        fn whole_to_float(self) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe { Self(_mm512_cvtepi32_ps(self.bits())) }
        }

        #[inline(always)]
        fn total(self) -> i32 {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe {
                let all = self.bits();
                let (low, high) = (_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
                Avx2::whole(_mm256_add_epi32(low, high)).total()
            }
        }

        /// Of four registers, neighbours are added side by side, and then quarters.
        #[inline(always)]
        fn totals<const N: usize>(registers: [Self; N]) -> [i32; N] {
            let mut totals = [0; N];
            let (fours, rest) = registers.as_chunks::<4>();
            for (place, four) in fours.iter().enumerate() {
                // SAFETY: a value of this type exists, so its instruction set does.
                unsafe {
                    let [a, b, c, d] = [four[0].bits(), four[1].bits(), four[2].bits(), four[3].bits()];
                    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
                    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
                    // A sum of each of the four registers in each quarter.
                    let all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
                    let two =
                        _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
                    let one = _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256::<1>(two));
                    _mm_storeu_si128(totals.as_mut_ptr().add(4 * place).cast(), one);
                }
            }
            for (total, register) in totals[N - rest.len()..].iter_mut().zip(rest) {
                *total = register.total();
            }
            totals
        }
    }

    impl WholeNumbers for Avx2 {
        #[inline(always)]
        unsafe fn widen_two_bytes(source: *const i8) -> Self {
            // SAFETY: the caller's contract.
            unsafe { Self::whole(_mm256_cvtepi8_epi16(_mm_loadu_si128(source.cast()))) }
        }

        #[inline(always)]
        fn add_halves(a: Self, b: Self, sum: Self) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe {
                let both = _mm256_madd_epi16(a.bits(), b.bits());
                Self::whole(_mm256_add_epi32(sum.bits(), both))
            }
        }

        #[inline(always)]
        unsafe fn add_halves_at_once(a: Self, b: Self, sum: Self) -> Self {
            // SAFETY: the caller has AVX-VNNI.
            unsafe { Self::whole(_mm256_dpwssd_avx_epi32(sum.bits(), a.bits(), b.bits())) }
        }

        #[inline(always)]
        fn raised(self) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe { Self::whole(_mm256_xor_si256(self.bits(), _mm256_set1_epi8(i8::MIN))) }
        }

        #[inline(always)]
        unsafe fn add_quads(a: Self, b: Self, sum: Self) -> Self {
            // SAFETY: the caller has AVX-VNNI.
            unsafe { Self::whole(_mm256_dpbusd_avx_epi32(sum.bits(), a.bits(), b.bits())) }
        }

        #[inline(always)]
        fn add_whole(self, other: Self) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe { Self::whole(_mm256_add_epi32(self.bits(), other.bits())) }
        }

        #[inline(always)]
        fn whole_to_float(self) -> Self {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe { Self(_mm256_cvtepi32_ps(self.bits())) }
        }

        #[inline(always)]
        fn total(self) -> i32 {
            // SAFETY: a value of this type exists, so its instruction set does.
            unsafe {
                let all = self.bits();
                let four = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
                let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
                _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
            }
        }
    }
}
