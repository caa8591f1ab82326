//! Tile primitives: the heavy inner pieces that compiled kernels call on data resident in L1.
//!
//! Generated code has 128-bit vectors only; these functions use what the processor has. There is one
//! `Tiles` per instruction set, a table of symbols by name that the code generator registers and calls by the
//! C signatures of `table.rs`. On every instruction set, reductions, conversions and random numbers agree bit
//! for bit; `exp`, `log`, `tanh` and `erf` agree within their error bounds.

pub(crate) mod element;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has vector forms so far"))]
pub mod elementary;
mod random;
mod reduce;
mod scalar;
mod table;
#[cfg(test)]
mod tests;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has vector forms so far"))]
pub mod vector;

use crate::isa::Isa;

/// `[of(0), of(1), …]`, always inlined. `std::array::from_fn` is not where a crate is compiled in several codegen units, as Cargo's default
/// profile does: there it remains a call for every element.
#[inline(always)]
pub(crate) fn array<T: Copy, const N: usize>(of: impl Fn(usize) -> T) -> [T; N] {
    let mut values = [of(0); N];
    for (i, value) in values.iter_mut().enumerate() {
        *value = of(i);
    }
    values
}

/// A primitive that compiled code may call.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// Its name, such as `exp_f32`; the same on every instruction set.
    pub name: &'static str,
    /// Where its code is.
    pub address: *const u8,
}

// SAFETY: the address of code, which is immutable and lives as long as the program.
unsafe impl Send for Symbol {}
// SAFETY: as above.
unsafe impl Sync for Symbol {}

/// The primitives of one instruction set.
#[derive(Debug)]
pub struct Tiles {
    symbols: &'static [Symbol],
}

impl Tiles {
    /// The primitives for `isa`, which the machine must have before any of them is called.
    pub fn of(isa: Isa) -> &'static Tiles {
        #[cfg(target_arch = "x86_64")]
        static AVX512: Tiles = Tiles { symbols: table::avx512::SYMBOLS };
        #[cfg(target_arch = "x86_64")]
        static AVX2: Tiles = Tiles { symbols: table::avx2::SYMBOLS };
        static PORTABLE: Tiles = Tiles { symbols: table::portable::SYMBOLS };
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 { .. } => &AVX512,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &AVX2,
            _ => &PORTABLE,
        }
    }

    /// How the names begin that a linker knows the primitives for `isa` by.
    pub fn prefix(isa: Isa) -> &'static str {
        match isa {
            Isa::Avx512 { .. } => "kernfusion_avx512_",
            Isa::Avx2 => "kernfusion_avx2_",
            Isa::Portable => "kernfusion_portable_",
        }
    }

    /// All primitives, to be registered with a linker.
    pub fn symbols(&self) -> &'static [Symbol] {
        self.symbols
    }

    /// The address of the primitive of that name.
    pub fn get(&self, name: &str) -> Option<*const u8> {
        self.symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address)
    }
}

/// Clears the upper halves of the vector registers, where the processor has any: code in 128-bit vectors
/// runs several times slower while they are in use. To be called before compiled code is entered.
#[inline]
pub fn zero_upper() {
    #[cfg(target_arch = "x86_64")]
    {
        #[inline]
        #[target_feature(enable = "avx")]
        fn clear() {
            std::arch::x86_64::_mm256_zeroupper();
        }
        if is_x86_feature_detected!("avx") {
            // SAFETY: AVX was just detected.
            unsafe { clear() };
        }
    }
}
