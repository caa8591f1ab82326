//! Instruction sets that the tile primitives and matrix kernels are written for, and which one to use.
//!
//! Detection happens once. `KERNFUSION_ISA` may lower the choice, so that every path can be run and tested
//! on one machine; it can never raise it above what the processor has.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::OnceLock;

/// The environment variable that lowers the choice: `amx`, `avx512`, `amx-emulated`, `avx2` or `portable`.
pub const ISA_VARIABLE: &str = "KERNFUSION_ISA";

/// An instruction set that primitives are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Isa {
    /// AVX-512 F, BW, VL and DQ.
    Avx512 {
        /// What multiplies matrices of `bf16`.
        bf16: Bf16Unit,
    },
    /// AVX2 with FMA and F16C, as all processors with AVX2 have.
    Avx2,
    /// What the compiler's baseline target has; correct everywhere.
    Portable,
}

/// What multiplies matrices of `bf16`, beside AVX-512.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Bf16Unit {
    /// Tiles (AMX), 16 × 16 sums and 32 values of k at a time.
    Tiles,
    /// Dot products of pairs (`vdpbf16ps`) and its conversions (AVX-512 BF16).
    Pairs,
    /// Nothing: operands are rounded and multiplied as `f32`.
    None,
    /// Tiles in portable code, slow, with the bits of the processor's.
    EmulatedTiles,
}

/// Why no instruction set could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// `KERNFUSION_ISA` names no instruction set.
    #[error("{ISA_VARIABLE}={0}: expected amx, avx512, amx-emulated, avx2 or portable")]
    Unknown(String),
    /// `KERNFUSION_ISA` names one that this machine lacks.
    #[error("{ISA_VARIABLE}={0}: this machine does not have it")]
    Unavailable(String),
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Avx512 { bf16: Bf16Unit::Tiles } => "avx512+amx",
            Isa::Avx512 { bf16: Bf16Unit::Pairs } => "avx512+bf16",
            Isa::Avx512 { bf16: Bf16Unit::None } => "avx512",
            Isa::Avx512 { bf16: Bf16Unit::EmulatedTiles } => "avx512+amx-emulated",
            Isa::Avx2 => "avx2",
            Isa::Portable => "portable",
        })
    }
}

impl Isa {
    /// The instruction set to use: the best that the machine has, or what `KERNFUSION_ISA` lowers it to.
    /// The variable is read once.
    ///
    /// # Errors
    /// The variable holds an unknown name, or one that this machine lacks.
    pub fn detect() -> Result<Isa, IsaError> {
        static CHOICE: OnceLock<Result<Isa, IsaError>> = OnceLock::new();
        CHOICE
            .get_or_init(|| match std::env::var_os(ISA_VARIABLE) {
                Some(name) => Self::lowered(&name.to_string_lossy()),
                None => Ok(Self::best()),
            })
            .clone()
    }

    /// Whether products of `bf16` run on tiles, of the processor or emulated.
    pub fn has_tiles(self) -> bool {
        matches!(self, Isa::Avx512 { bf16: Bf16Unit::Tiles | Bf16Unit::EmulatedTiles })
    }

    /// Every instruction set that is worth using on this machine, best first, whatever `KERNFUSION_ISA` says.
    pub fn available() -> Vec<Isa> {
        let units = [Bf16Unit::Tiles, Bf16Unit::Pairs, Bf16Unit::None, Bf16Unit::EmulatedTiles];
        let all = units.map(|bf16| Isa::Avx512 { bf16 }).into_iter().chain([Isa::Avx2, Isa::Portable]);
        all.filter(|isa| isa.is_there() && !isa.is_slow()).collect()
    }

    /// Whether this machine can run it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_there(self) -> bool {
        let avx2 = || {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
        };
        let avx512 = || {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
        };
        let bf16 = || is_x86_feature_detected!("avx512bf16");
        match self {
            Isa::Portable => true,
            Isa::Avx2 => avx2(),
            Isa::Avx512 { bf16: Bf16Unit::None | Bf16Unit::EmulatedTiles } => avx2() && avx512(),
            Isa::Avx512 { bf16: Bf16Unit::Pairs } => avx2() && avx512() && bf16(),
            Isa::Avx512 { bf16: Bf16Unit::Tiles } => {
                avx2() && avx512() && bf16() && crate::amx::is_available()
            }
        }
    }

    /// Whether this machine can run it.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_there(self) -> bool {
        self == Isa::Portable
    }

    /// Where there is FP16, pairs of bf16 are multiplied half as fast as `f32` (Sapphire Rapids and its successors).
    #[cfg(target_arch = "x86_64")]
    fn is_slow(self) -> bool {
        self == Isa::Avx512 { bf16: Bf16Unit::Pairs } && is_x86_feature_detected!("avx512fp16")
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_slow(self) -> bool {
        false
    }

    fn best() -> Isa {
        Self::available()[0]
    }

    /// The best available instruction set of that name.
    fn lowered(name: &str) -> Result<Isa, IsaError> {
        let wanted: fn(&Isa) -> bool = match name {
            "amx" => |isa| *isa == Isa::Avx512 { bf16: Bf16Unit::Tiles },
            "avx512" => |isa| matches!(isa, Isa::Avx512 { bf16: Bf16Unit::Pairs | Bf16Unit::None }),
            "amx-emulated" => |isa| *isa == Isa::Avx512 { bf16: Bf16Unit::EmulatedTiles },
            "avx2" => |isa| *isa == Isa::Avx2,
            "portable" => |isa| *isa == Isa::Portable,
            _ => return Err(IsaError::Unknown(name.to_owned())),
        };
        Self::available().into_iter().find(wanted).ok_or_else(|| IsaError::Unavailable(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lower_the_choice_and_unknown_ones_are_errors() {
        assert_eq!(Isa::lowered("portable"), Ok(Isa::Portable));
        assert_eq!(Isa::lowered("avx1024"), Err(IsaError::Unknown("avx1024".into())));
        assert!(Isa::lowered("").unwrap_err().to_string().contains("expected amx, avx512, "));
        let short = |isa: &Isa| isa.to_string().replace("avx512+amx", "amx").replace("+bf16", "");
        for isa in Isa::available() {
            assert_eq!(short(&Isa::lowered(&short(&isa)).unwrap()), short(&isa));
        }
    }

    #[test]
    fn the_portable_path_is_always_the_last_choice() {
        assert_eq!(Isa::available().last(), Some(&Isa::Portable));
    }
}
