//! Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
//! as 1, 2, 3", SC 2011).
//!
//! The same (seed, node, step, element) gives the same bits everywhere: eager, compiled, on any back end and when
//! a dropout mask is drawn again for the backward pass.

/// One Philox block: four words for a 128-bit counter under a 64-bit key.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p0 = u64::from(counter[0]) * 0xD251_1F53;
        let p1 = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (p1 >> 32) as u32 ^ counter[1] ^ key[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ counter[3] ^ key[1],
            p0 as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// The random word of one element of a random node: key (seed, node), counter (element / 4, step), word
/// element mod 4.
pub fn element_bits(seed: u32, node: u32, step: u32, element: u64) -> u32 {
    let block = element / 4;
    philox4x32([block as u32, (block >> 32) as u32, step, 0], [seed, node])[(element % 4) as usize]
}

/// The identity of a random node: FNV-1a of its scope path and its number within it.
pub fn node_identity(scope: &str, ordinal: usize) -> u32 {
    let bytes = scope.bytes().chain((ordinal as u64).to_le_bytes());
    bytes.fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published known-answer vectors.
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let expected = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
        assert_eq!(philox4x32(counter, [0xa409_3822, 0x299f_31d0]), expected);
    }
}
