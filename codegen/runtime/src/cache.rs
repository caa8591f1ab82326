//! Sizes of the processor's caches.

use std::sync::OnceLock;

/// Bytes of a core's second-level cache; half a mebibyte where the processor does not tell.
pub(crate) fn second_level() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| described(2).unwrap_or(512 << 10))
}

/// Bytes of the cache for data of a level, by CPUID: leaf 4 of Intel's processors, 0x8000_001D of AMD's, which has the same form.
#[cfg(target_arch = "x86_64")]
fn described(level: u32) -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const INSTRUCTIONS: u32 = 2;
    let has = |leaf: u32| __cpuid(leaf & 0x8000_0000).eax >= leaf;
    let leaves = [4, 0x8000_001d].into_iter().filter(|&leaf| has(leaf));
    let mut caches = leaves.flat_map(|leaf| {
        let all = (0..16).map(move |number| __cpuid_count(leaf, number));
        all.take_while(|cache| cache.eax & 31 != 0)
    });
    let cache = caches.find(|cache| cache.eax & 31 != INSTRUCTIONS && cache.eax >> 5 & 7 == level)?;
    let field = |shift: u32, bits: u32| (cache.ebx >> shift & ((1 << bits) - 1)) as usize + 1;
    let (line, partitions, ways, sets) = (field(0, 12), field(12, 10), field(22, 10), cache.ecx as usize + 1);
    Some(line * partitions * ways * sets)
}

#[cfg(not(target_arch = "x86_64"))]
fn described(_: u32) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_second_level_has_a_plausible_size() {
        let bytes = super::second_level();
        assert!((128 << 10..=64 << 20).contains(&bytes), "{bytes}");
    }
}
