//! The kernels of each instruction set and precision.

use super::Precision;
use super::bytes::{self, Halves, Whole};
use super::gemv::{self, Gemv};
use super::line::Line;
use super::microkernel::{Arithmetic, KC, Kernels, LDA, Load, Step, Store, TILES_KC, TileOutput};
use super::pack::{self, Narrow};
#[cfg(target_arch = "x86_64")]
use super::tiles;
use crate::isa::{Bf16Unit, Isa};
use crate::math::element::{self, Bf16, Byte, F16, F32};
use crate::math::vector::{Lanes, Portable};

impl Kernels {
    /// The kernels to use. Where there is no bf16 arithmetic, bf16 precision rounds operands and multiplies
    /// them in f32; where there is no tile unit, parts are not taken apart; where nothing multiplies whole numbers of 16 bits, fixed point is bf16.
    pub(super) fn of(isa: Isa, precision: Precision) -> &'static Kernels {
        match (isa, precision) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 { bf16: Bf16Unit::None | Bf16Unit::Pairs }, Precision::Fixed) if x86::has_vnni() => {
                &x86::AVX512_FIXED
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, Precision::Fixed) if x86::has_avx_vnni() => &x86::AVX2_FIXED,
            (_, Precision::Fixed) => Kernels::of(isa, Precision::Bf16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 { bf16: Bf16Unit::Tiles }, Precision::Bf16) => &x86::AMX,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 { bf16: Bf16Unit::Tiles }, Precision::X3) => &x86::AMX_X3,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 { bf16: Bf16Unit::Tiles }, Precision::X6) => &x86::AMX_X6,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 { bf16: Bf16Unit::EmulatedTiles }, Precision::Bf16) => &x86::EMULATED_AMX,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 { bf16: Bf16Unit::EmulatedTiles }, Precision::X3) => &x86::EMULATED_AMX_X3,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 { bf16: Bf16Unit::EmulatedTiles }, Precision::X6) => &x86::EMULATED_AMX_X6,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 { bf16: Bf16Unit::Pairs }, Precision::Bf16) => &x86::AVX512_BF16,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 { bf16 }, Precision::Int8) => x86::of_bytes(bf16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 { .. }, _) => &x86::AVX512,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, Precision::Int8) if x86::has_avx_vnni() => &x86::AVX2_QUADS,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, Precision::Int8) => &x86::AVX2_BYTES,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, _) => &x86::AVX2,
            (_, Precision::Int8) => &PORTABLE_BYTES,
            _ => &PORTABLE,
        }
    }
}

/// The tiles of one arithmetic, by rows.
macro_rules! tiles {
    ($module:ident $attribute:tt $arithmetic:ty, [$($rows:literal)*]) => {
        mod $module {
            use super::*;
            #$attribute
            unsafe fn of<const R: usize, const V: usize>(
                words: usize,
                a: *const u32,
                b: *const u32,
                target: &TileOutput,
            ) {
                // SAFETY: the caller's contract.
                unsafe { <$arithmetic>::tile::<R, V>(words, a, (LDA, 1), b, target) }
            }
            #$attribute
            unsafe fn across_of<const R: usize, const V: usize>(
                words: usize,
                a: *const u32,
                stride: usize,
                b: *const u32,
                target: &TileOutput,
            ) {
                // SAFETY: the caller's contract.
                unsafe { <$arithmetic>::tile::<R, V>(words, a, (1, stride), b, target) }
            }
            /// One function per number of rows: a last strip of fewer rows wastes nothing.
            pub(super) unsafe fn rows<const V: usize>(
                rows: usize,
                words: usize,
                a: *const u32,
                b: *const u32,
                target: &TileOutput,
            ) {
                // SAFETY: the caller's contract.
                unsafe {
                    match rows {
                        $($rows => of::<$rows, V>(words, a, b, target),)*
                        _ => unreachable!("a tile has fewer rows"),
                    }
                }
            }
            #[allow(dead_code, reason = "words of two values are always packed")]
            pub(super) unsafe fn across<const V: usize>(
                rows: usize,
                words: usize,
                a: *const u32,
                stride: usize,
                b: *const u32,
                target: &TileOutput,
            ) {
                // SAFETY: the caller's contract.
                unsafe {
                    match rows {
                        $($rows => across_of::<$rows, V>(words, a, stride, b, target),)*
                        _ => unreachable!("a tile has fewer rows"),
                    }
                }
            }
        }
    };
}

/// The other functions of one instruction set: products of few rows, by rows, and conversions. Dot products of one or two rows with
/// lines of `f32` have lanes of their own.
macro_rules! lines {
    ($module:ident $attribute:tt $lanes:ty, dots of f32: $dots:ty) => {
        mod $module {
            use super::*;
            use crate::gemm::half_bytes::{self, HalfByte, Scale};
            #$attribute
            unsafe fn dot<L: Lanes, const R: usize, B: Line>(
                a: *const f32,
                lda: usize,
                b: &gemv::Lines,
                k: usize,
                c: *mut f32,
                ldc: usize,
                adds: bool,
            ) {
                // SAFETY: the caller's contract.
                unsafe { gemv::dot::<L, R, B>(a, lda, b, k, c, ldc, adds) }
            }
            #$attribute
            unsafe fn axpy<const R: usize, B: Line>(
                a: *const f32,
                lda: usize,
                b: &gemv::Lines,
                c: *mut f32,
                ldc: usize,
                n: usize,
            ) {
                // SAFETY: the caller's contract.
                unsafe { gemv::axpy::<$lanes, R, B>(a, lda, b, c, ldc, n) }
            }
            #$attribute
            unsafe fn unpack<S: Scale>(values: *const u8, scales: *const u8, count: usize, out: *mut f32) {
                // SAFETY: the caller's contract.
                unsafe { half_bytes::unpack::<$lanes, S>(values, scales, count, out) }
            }
            #$attribute
            unsafe fn arrange(row: *mut f32, count: usize) {
                // SAFETY: the caller's contract.
                unsafe { half_bytes::arrange::<$lanes>(row, count) }
            }
            pub(super) static GEMV: Gemv = Gemv {
                unpack: [unpack::<Bf16>, unpack::<F32>],
                arrange,
                pairs: None,
                dot: [
                    [
                        dot::<$dots, 1, F32>,
                        dot::<$dots, 2, F32>,
                        dot::<$lanes, 3, F32>,
                        dot::<$lanes, 4, F32>,
                        dot::<$lanes, 5, F32>,
                        dot::<$lanes, 6, F32>,
                    ],
                    [
                        dot::<$lanes, 1, Bf16>,
                        dot::<$lanes, 2, Bf16>,
                        dot::<$lanes, 3, Bf16>,
                        dot::<$lanes, 4, Bf16>,
                        dot::<$lanes, 5, Bf16>,
                        dot::<$lanes, 6, Bf16>,
                    ],
                    [
                        dot::<$lanes, 1, Byte>,
                        dot::<$lanes, 2, Byte>,
                        dot::<$lanes, 3, Byte>,
                        dot::<$lanes, 4, Byte>,
                        dot::<$lanes, 5, Byte>,
                        dot::<$lanes, 6, Byte>,
                    ],
                    [
                        dot::<$lanes, 1, HalfByte<Bf16>>,
                        dot::<$lanes, 2, HalfByte<Bf16>>,
                        dot::<$lanes, 3, HalfByte<Bf16>>,
                        dot::<$lanes, 4, HalfByte<Bf16>>,
                        dot::<$lanes, 5, HalfByte<Bf16>>,
                        dot::<$lanes, 6, HalfByte<Bf16>>,
                    ],
                    [
                        dot::<$lanes, 1, HalfByte<F32>>,
                        dot::<$lanes, 2, HalfByte<F32>>,
                        dot::<$lanes, 3, HalfByte<F32>>,
                        dot::<$lanes, 4, HalfByte<F32>>,
                        dot::<$lanes, 5, HalfByte<F32>>,
                        dot::<$lanes, 6, HalfByte<F32>>,
                    ],
                ],
                axpy: [
                    [axpy::<1, F32>, axpy::<2, F32>, axpy::<3, F32>, axpy::<4, F32>],
                    [axpy::<1, Bf16>, axpy::<2, Bf16>, axpy::<3, Bf16>, axpy::<4, Bf16>],
                    [axpy::<1, Byte>, axpy::<2, Byte>, axpy::<3, Byte>, axpy::<4, Byte>],
                ],
            };

            #$attribute
            unsafe fn load<E: element::Element<Lane = f32>>(
                dst: *mut f32,
                src: *const u8,
                stride: isize,
                n: usize,
            ) {
                // SAFETY: the caller's contract.
                unsafe { element::load::<E>(dst, src, stride, n) }
            }
            pub(super) static LOAD: [Load; 4] = [load::<F32>, load::<Bf16>, load::<F16>, load::<Byte>];

            #$attribute
            unsafe fn store<E: element::Element<Lane = f32>>(
                dst: *mut u8,
                stride: isize,
                src: *const f32,
                n: usize,
            ) {
                // SAFETY: the caller's contract.
                unsafe { element::store::<E>(dst, stride, src, n) }
            }
            pub(super) static STORE: [Store; 4] = [store::<F32>, store::<Bf16>, store::<F16>, store::<Byte>];

            #$attribute
            pub(super) unsafe fn round(dst: *mut f32, src: *const f32, n: usize) {
                // SAFETY: the caller's contract.
                unsafe { element::round::<Bf16>(dst, src, n) }
            }
        }
    };
}

tiles! { portable_f32 [inline(never)] Portable, [1 2 3 4] }
lines! { portable [inline(never)] Portable, dots of f32: Portable }

static PORTABLE: Kernels = Kernels {
    mr: 4,
    nr: 8,
    mc: 112,
    kc: KC,
    step: Step::F32,
    rows_ahead: 0,
    is_tiled: false,
    uses_tiles: false,
    tile: portable_f32::rows::<2>,
    half: Some(portable_f32::rows::<1>),
    across: Some([portable_f32::across::<2>, portable_f32::across::<1>]),
    pack_a: pack::pack_a,
    pack_a_f32: pack::pack_a,
    pack_b: pack::pack_b::<8>,
    narrow: None,
    bytes: None,
    gemv: &portable::GEMV,
    load: portable::LOAD,
    store: portable::STORE,
    round: portable::round,
};

#[cfg(test)]
thread_local! {
    /// As if the processor had no instructions for bytes and for whole numbers of 16 bits, in products that this thread computes.
    pub(super) static WITHOUT_VNNI: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

tiles! { portable_bytes [inline(never)] Whole<Halves, Portable>, [1 2 3 4] }
static PORTABLE_BYTES: Kernels = Kernels {
    step: Step::PAIR,
    tile: portable_bytes::rows::<2>,
    half: Some(portable_bytes::rows::<1>),
    across: None,
    bytes: Some(&bytes::portable::BYTES),
    ..PORTABLE
};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use crate::gemm::bytes::{Quads, QuadsOfAvx2};
    use crate::gemm::fixed::{self, Fixed};
    use crate::gemm::pairs;
    use crate::math::vector::x86::{Avx2, Avx512};
    use std::arch::x86_64::*;

    /// Pairs of bf16, multiplied and added two at a time.
    pub(super) struct Pairs;

    impl Arithmetic for Pairs {
        type Sum = Avx512;
        type Words = __m512bh;
        #[inline(always)]
        unsafe fn words(b: *const u32) -> __m512bh {
            // SAFETY: the caller's contract; the same 512 bits.
            unsafe { std::mem::transmute(_mm512_loadu_si512(b.cast())) }
        }
        #[inline(always)]
        unsafe fn broadcast(a: *const u32) -> __m512bh {
            // SAFETY: as above.
            unsafe { std::mem::transmute(_mm512_set1_epi32(a.read() as i32)) }
        }
        #[inline(always)]
        unsafe fn multiply_add(sum: Avx512, a: __m512bh, b: __m512bh) -> Avx512 {
            // SAFETY: the caller has AVX-512 with bf16.
            Avx512(unsafe { _mm512_dpbf16_ps(sum.0, a, b) })
        }
    }

    tiles! {
        avx512_f32 [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
        Avx512, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]
    }
    tiles! {
        avx512_bf16 [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]
        Pairs, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]
    }
    // Memory gives a thread more by 32 bytes at a time than by 64: on Zen 4 from a tenth where it is slow to a quarter where it
    // is fast. Lines of bf16 and of bytes are read by 32 and by 16 as it is.
    lines! {
        avx512 [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")] Avx512,
        dots of f32: Avx2
    }
    tiles! { avx2_f32 [target_feature(enable = "avx2,fma")] Avx2, [1 2 3 4 5 6] }
    lines! { avx2 [target_feature(enable = "avx2,fma")] Avx2, dots of f32: Avx2 }

    /// 14 · 2 accumulators, 2 registers of B and one of A are 31 of 32; an A block is 179 KB.
    pub(super) static AVX512: Kernels = Kernels {
        mr: 14,
        nr: 32,
        mc: 112,
        kc: KC,
        step: Step::F32,
        rows_ahead: 0,
        is_tiled: false,
        uses_tiles: false,
        tile: avx512_f32::rows::<2>,
        half: Some(avx512_f32::rows::<1>),
        across: Some([avx512_f32::across::<2>, avx512_f32::across::<1>]),
        pack_a: pack::x86::pack_a_f32,
        pack_a_f32: pack::x86::pack_a_f32,
        pack_b: pack::x86::pack_b_f32,
        narrow: Some(Narrow { a: pack::x86::pack_a_widened, b: pack::x86::pack_b_widened }),
        bytes: None,
        gemv: &avx512::GEMV,
        load: avx512::LOAD,
        store: avx512::STORE,
        round: avx512::round,
    };
    pub(super) static AVX512_BF16: Kernels = Kernels {
        step: Step::PAIR,
        tile: avx512_bf16::rows::<2>,
        half: Some(avx512_bf16::rows::<1>),
        across: None,
        pack_a: pack::x86::pack_a_bf16,
        pack_b: pack::x86::pack_b_bf16,
        narrow: Some(Narrow { a: pack::x86::pack_a_pairs, b: pack::x86::pack_b_pairs }),
        gemv: &Gemv { pairs: Some(pairs::x86::DOTS), ..avx512::GEMV },
        ..AVX512
    };
    /// A block of A and 384 columns of a block of B are 1 MB of L2.
    pub(super) static AMX: Kernels = Kernels {
        mr: tiles::SIDE,
        nr: tiles::SIDE,
        mc: 256,
        kc: TILES_KC,
        step: Step { values: 32, words: tiles::STEP },
        rows_ahead: 2,
        is_tiled: true,
        uses_tiles: true,
        tile: tiles::bf16,
        half: None,
        // The emulation, which must have the same bits, has no products of pairs.
        gemv: &avx512::GEMV,
        ..AVX512_BF16
    };
    pub(super) static AMX_X3: Kernels = Kernels {
        // A word is one value here: half as many would be added to C twice as often.
        kc: KC,
        step: Step { values: 32, words: 2 * tiles::STEP },
        mc: 128,
        tile: tiles::x3,
        pack_a: pack::x86::pack_a_two,
        pack_b: pack::x86::pack_b_two,
        narrow: None,
        ..AMX
    };
    pub(super) static AMX_X6: Kernels = Kernels {
        mc: 128,
        step: Step { values: 32, words: 3 * tiles::STEP },
        rows_ahead: 8,
        tile: tiles::x6,
        pack_a: pack::x86::pack_a_three,
        pack_b: pack::x86::pack_b_three,
        narrow: None,
        ..AMX
    };
    pub(super) static EMULATED_AMX: Kernels = Kernels {
        uses_tiles: false,
        tile: tiles::emulated_bf16,
        pack_a: pack::pairs::pack_a_bf16,
        pack_b: pack::pairs::pack_b_bf16,
        narrow: Some(Narrow { a: pack::pairs::pack_a_pairs, b: pack::pairs::pack_b_pairs }),
        ..AMX
    };
    pub(super) static EMULATED_AMX_X3: Kernels = Kernels {
        uses_tiles: false,
        tile: tiles::emulated_x3,
        pack_a: pack::pairs::pack_a_two,
        pack_b: pack::pairs::pack_b_two,
        ..AMX_X3
    };
    pub(super) static EMULATED_AMX_X6: Kernels = Kernels {
        uses_tiles: false,
        tile: tiles::emulated_x6,
        pack_a: pack::pairs::pack_a_three,
        pack_b: pack::pairs::pack_b_three,
        ..AMX_X6
    };
    /// 6 · 2 accumulators, 2 registers of B and one of A are 15 of 16.
    pub(super) static AVX2: Kernels = Kernels {
        mr: 6,
        nr: 16,
        mc: 120,
        kc: KC,
        step: Step::F32,
        rows_ahead: 0,
        is_tiled: false,
        uses_tiles: false,
        tile: avx2_f32::rows::<2>,
        half: Some(avx2_f32::rows::<1>),
        across: Some([avx2_f32::across::<2>, avx2_f32::across::<1>]),
        pack_a: pack::x86::pack_a_f32_of_8,
        pack_a_f32: pack::x86::pack_a_f32_of_8,
        pack_b: pack::x86::pack_b_f32_of_8,
        narrow: Some(Narrow { a: pack::x86::pack_a_widened_of_8, b: pack::x86::pack_b_widened_of_8 }),
        bytes: None,
        gemv: &avx2::GEMV,
        load: avx2::LOAD,
        store: avx2::STORE,
        round: avx2::round,
    };

    tiles! {
        avx512_halves [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
        Whole<Halves, Avx512>, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]
    }
    tiles! {
        avx512_quads [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
        Whole<Quads, Avx512>, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]
    }
    tiles! { avx2_halves [target_feature(enable = "avx2,fma")] Whole<Halves, Avx2>, [1 2 3 4 5 6] }

    tiles! {
        avx512_fixed [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
        Fixed<Avx512>, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]
    }
    pub(super) static AVX512_FIXED: Kernels = Kernels {
        kc: KC / fixed::WORDS * fixed::WORDS,
        step: Step::FIXED,
        tile: avx512_fixed::rows::<2>,
        half: Some(avx512_fixed::rows::<1>),
        across: None,
        pack_a: pack::x86::fixed::pack_a,
        pack_b: pack::x86::fixed::pack_b,
        narrow: Some(Narrow { a: pack::x86::fixed::pack_a_narrow, b: pack::x86::fixed::pack_b_narrow }),
        ..AVX512
    };

    tiles! { avx2_fixed [target_feature(enable = "avx2,fma,avxvnni")] Fixed<Avx2>, [1 2 3 4 5 6] }
    pub(super) static AVX2_FIXED: Kernels = Kernels {
        kc: AVX512_FIXED.kc,
        step: Step::FIXED,
        tile: avx2_fixed::rows::<2>,
        half: Some(avx2_fixed::rows::<1>),
        across: None,
        pack_a: pack::fixed::pack_a,
        pack_b: pack::fixed::pack_b,
        narrow: Some(Narrow { a: pack::fixed::pack_a_narrow, b: pack::fixed::pack_b_narrow }),
        ..AVX2
    };

    /// Whether pairs and fours of whole numbers are multiplied and added by one instruction, in registers of AVX-512.
    pub(super) fn has_vnni() -> bool {
        let has_vnni = is_x86_feature_detected!("avx512vnni");
        #[cfg(test)]
        let has_vnni = has_vnni && !WITHOUT_VNNI.get();
        has_vnni
    }

    /// The same in registers of AVX2.
    pub(super) fn has_avx_vnni() -> bool {
        let has_vnni = is_x86_feature_detected!("avxvnni");
        #[cfg(test)]
        let has_vnni = has_vnni && !WITHOUT_VNNI.get();
        has_vnni
    }

    /// The kernels of a processor with this unit: with instructions for bytes, where it has some. The bits are the same.
    pub(super) fn of_bytes(unit: Bf16Unit) -> &'static Kernels {
        let has_vnni = has_vnni();
        match unit {
            Bf16Unit::Tiles if has_vnni && crate::amx::multiplies_bytes() => &AMX_BYTES,
            Bf16Unit::EmulatedTiles => &EMULATED_AMX_BYTES,
            _ if has_vnni => &AVX512_QUADS,
            _ => &AVX512_HALVES,
        }
    }

    static AVX512_HALVES: Kernels = Kernels {
        step: Step::PAIR,
        tile: avx512_halves::rows::<2>,
        half: Some(avx512_halves::rows::<1>),
        across: None,
        bytes: Some(&bytes::avx512::BYTES),
        ..AVX512
    };
    static AVX512_QUADS: Kernels = Kernels {
        step: Step::QUAD,
        tile: avx512_quads::rows::<2>,
        half: Some(avx512_quads::rows::<1>),
        across: None,
        bytes: Some(&bytes::vnni::BYTES),
        ..AVX512
    };
    static AMX_BYTES: Kernels = Kernels {
        step: Step { values: 64, words: tiles::STEP },
        tile: tiles::bytes,
        narrow: None,
        bytes: Some(&bytes::tile_unit::BYTES),
        ..AMX
    };
    static EMULATED_AMX_BYTES: Kernels = Kernels {
        uses_tiles: false,
        tile: tiles::emulated_bytes,
        bytes: Some(&bytes::emulated_tiles::BYTES),
        ..AMX_BYTES
    };
    tiles! { avx2_quads [target_feature(enable = "avx2,fma,avxvnni")] Whole<QuadsOfAvx2, Avx2>, [1 2 3 4 5 6] }
    pub(super) static AVX2_QUADS: Kernels = Kernels {
        step: Step::QUAD,
        tile: avx2_quads::rows::<2>,
        half: Some(avx2_quads::rows::<1>),
        across: None,
        bytes: Some(&bytes::avx_vnni::BYTES),
        ..AVX2
    };
    pub(super) static AVX2_BYTES: Kernels = Kernels {
        step: Step::PAIR,
        tile: avx2_halves::rows::<2>,
        half: Some(avx2_halves::rows::<1>),
        across: None,
        bytes: Some(&bytes::avx2::BYTES),
        ..AVX2
    };
}
