//! What loops compute with: sixteen lanes of AVX-512 or eight of AVX2, and what each operation is called there.

use iced_x86::{Code, Register};
use kernfusion_runtime::isa::{Bf16Unit, Isa};

/// The vectors that a loop computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in super::super) enum Vectors {
    /// Of sixteen lanes (AVX-512). Lanes are chosen by mask registers.
    Sixteen(Rounding),
    /// Of eight lanes (AVX2 with FMA and F16C). Lanes are chosen by vectors whose lanes are all ones or zeros.
    Eight,
}

/// How numbers are rounded to bf16: to the nearest, ties to even.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in super::super) enum Rounding {
    /// By integers.
    Exact,
    /// By an instruction, for which subnormal numbers are zeros.
    Instruction,
    /// By integers, with the bits of the instruction.
    Emulated,
}

impl Vectors {
    /// Those of an instruction set, if loops are made for it.
    pub(in super::super) fn of(isa: Isa) -> Option<Vectors> {
        match isa {
            Isa::Avx512 { bf16: Bf16Unit::Tiles | Bf16Unit::Pairs } => {
                Some(Vectors::Sixteen(Rounding::Instruction))
            }
            Isa::Avx512 { bf16: Bf16Unit::EmulatedTiles } => Some(Vectors::Sixteen(Rounding::Emulated)),
            Isa::Avx512 { bf16: Bf16Unit::None } => Some(Vectors::Sixteen(Rounding::Exact)),
            Isa::Avx2 => Some(Vectors::Eight),
            Isa::Portable => None,
        }
    }

    /// How many numbers of 32 bits a vector has.
    pub(super) fn lanes(self) -> u8 {
        match self {
            Vectors::Sixteen(_) => 16,
            Vectors::Eight => 8,
        }
    }

    /// Its bytes.
    pub(super) fn bytes(self) -> u32 {
        4 * u32::from(self.lanes())
    }

    /// In words, for people.
    pub(in super::super) fn name(self) -> &'static str {
        match self {
            Vectors::Sixteen(_) => "sixteen lanes",
            Vectors::Eight => "eight lanes",
        }
    }

    /// The first of its registers.
    pub(super) fn first_register(self) -> Register {
        match self {
            Vectors::Sixteen(_) => Register::ZMM0,
            Vectors::Eight => Register::YMM0,
        }
    }

    /// An operation's instruction.
    pub(super) fn code(self, operation: Operation) -> Code {
        match self {
            Vectors::Sixteen(_) => operation.sixteen,
            Vectors::Eight => operation.eight,
        }
    }
}

/// An instruction that both kinds of vectors have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    sixteen: Code,
    eight: Code,
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $sixteen:ident, $eight:ident;)*) => {$(
        $(#[$doc])*
        pub(super) const $name: Operation = Operation { sixteen: Code::$sixteen, eight: Code::$eight };
    )*};
}
operations! {
    /// A vector of memory.
    LOAD = EVEX_Vmovups_zmm_k1z_zmmm512, VEX_Vmovups_ymm_ymmm256;
    STORE = EVEX_Vmovups_zmmm512_k1z_zmm, VEX_Vmovups_ymmm256_ymm;
    COPY = EVEX_Vmovaps_zmm_k1z_zmmm512, VEX_Vmovaps_ymm_ymmm256;
    /// One number of memory in all lanes.
    BROADCAST = EVEX_Vbroadcastss_zmm_k1z_xmmm32, VEX_Vbroadcastss_ymm_m32;
    LOAD_16_BITS = EVEX_Vpmovzxwd_zmm_k1z_ymmm256, VEX_Vpmovzxwd_ymm_xmmm128;
    LOAD_F16 = EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae, VEX_Vcvtph2ps_ymm_xmmm128;
    /// From `f32`, rounded as an operand says.
    TO_F16 = EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae, VEX_Vcvtps2ph_xmmm128_ymm_imm8;
    LOAD_SIGNED_BYTES = EVEX_Vpmovsxbd_zmm_k1z_xmmm128, VEX_Vpmovsxbd_ymm_xmmm64;
    LOAD_BYTES = EVEX_Vpmovzxbd_zmm_k1z_xmmm128, VEX_Vpmovzxbd_ymm_xmmm64;

    XOR = EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32, VEX_Vpxor_ymm_ymm_ymmm256;
    AND = EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32, VEX_Vpand_ymm_ymm_ymmm256;
    OR = EVEX_Vpord_zmm_k1z_zmm_zmmm512b32, VEX_Vpor_ymm_ymm_ymmm256;
    SHIFT_RIGHT_BY = EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8, VEX_Vpsrld_ymm_ymm_imm8;
    SHIFT_LEFT_BY = EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8, VEX_Vpslld_ymm_ymm_imm8;
    /// The sign moves in.
    SHIFT_SIGNED_RIGHT_BY = EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8, VEX_Vpsrad_ymm_ymm_imm8;
    /// By lanes; these give 0 from 32 bits on.
    SHIFT_LEFT = EVEX_Vpsllvd_zmm_k1z_zmm_zmmm512b32, VEX_Vpsllvd_ymm_ymm_ymmm256;
    SHIFT_RIGHT = EVEX_Vpsrlvd_zmm_k1z_zmm_zmmm512b32, VEX_Vpsrlvd_ymm_ymm_ymmm256;

    ADD_INTEGERS = EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, VEX_Vpaddd_ymm_ymm_ymmm256;
    SUB_INTEGERS = EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32, VEX_Vpsubd_ymm_ymm_ymmm256;
    MUL_INTEGERS = EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32, VEX_Vpmulld_ymm_ymm_ymmm256;
    ABS_INTEGERS = EVEX_Vpabsd_zmm_k1z_zmmm512b32, VEX_Vpabsd_ymm_ymmm256;
    MAX_SIGNED = EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32, VEX_Vpmaxsd_ymm_ymm_ymmm256;
    MIN_SIGNED = EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32, VEX_Vpminsd_ymm_ymm_ymmm256;
    MAX_UNSIGNED = EVEX_Vpmaxud_zmm_k1z_zmm_zmmm512b32, VEX_Vpmaxud_ymm_ymm_ymmm256;
    MIN_UNSIGNED = EVEX_Vpminud_zmm_k1z_zmm_zmmm512b32, VEX_Vpminud_ymm_ymm_ymmm256;

    ADD = EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er, VEX_Vaddps_ymm_ymm_ymmm256;
    SUB = EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er, VEX_Vsubps_ymm_ymm_ymmm256;
    MUL = EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er, VEX_Vmulps_ymm_ymm_ymmm256;
    DIV = EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er, VEX_Vdivps_ymm_ymm_ymmm256;
    MAX = EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae, VEX_Vmaxps_ymm_ymm_ymmm256;
    MIN = EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae, VEX_Vminps_ymm_ymm_ymmm256;
    SQRT = EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er, VEX_Vsqrtps_ymm_ymmm256;
    /// To an integer, in the way that an operand says.
    ROUND = EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae, VEX_Vroundps_ymm_ymmm256_imm8;
    /// `first · second + third`, into the first.
    FMA_213 = EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er, VEX_Vfmadd213ps_ymm_ymm_ymmm256;
    /// `first · third + second`, into the first.
    FMA_132 = EVEX_Vfmadd132ps_zmm_k1z_zmm_zmmm512b32_er, VEX_Vfmadd132ps_ymm_ymm_ymmm256;
    /// Towards zero; what no integer is near becomes the least one.
    FLOATS_TO_SIGNED = EVEX_Vcvttps2dq_zmm_k1z_zmmm512b32_sae, VEX_Vcvttps2dq_ymm_ymmm256;
    SIGNED_TO_FLOATS = EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er, VEX_Vcvtdq2ps_ymm_ymmm256;
    /// The numbers of the last operand that the lanes of the first one name.
    PERMUTE = EVEX_Vpermps_zmm_k1z_zmm_zmmm512b32, VEX_Vpermps_ymm_ymm_ymmm256;
    /// Elements that lie anywhere, of the lanes in a mask, which it clears.
    GATHER = EVEX_Vgatherdps_zmm_k1_vm32z, VEX_Vgatherdps_ymm_vm32y_ymm;
}
