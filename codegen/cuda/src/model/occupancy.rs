//! How many blocks a multiprocessor holds at a time, by the rules of NVIDIA's occupancy calculator.

use super::card::{Limits, REGISTERS, SCHEDULERS};

/// Threads of a warp.
pub(super) const WARP: usize = 32;
/// Registers are given to warps in pieces of this many.
const REGISTER_UNIT: usize = 256;
/// Bytes in which shared memory is given to blocks.
const SHARED_UNIT: usize = 128;
/// Bytes that the system takes of each block's shared memory.
const SHARED_OF_SYSTEM: usize = 1024;

/// What a function takes of a multiprocessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: usize,
    /// Bytes of a block that the function declares.
    pub static_shared: usize,
    /// Bytes of a block that the launch asks for.
    pub dynamic_shared: usize,
    /// Bytes of a thread in memory: arrays that do not fit into registers, and spilled registers.
    pub local: usize,
}

/// How many blocks of `threads` threads a multiprocessor holds at a time.
pub fn resident_blocks(resources: &Resources, threads: usize, limits: &Limits) -> usize {
    let warps = threads.div_ceil(WARP).max(1);
    let of_warp = (resources.registers.max(1) * WARP).next_multiple_of(REGISTER_UNIT);
    // Each scheduler has its quarter of the registers.
    let by_registers = REGISTERS / of_warp / SCHEDULERS * SCHEDULERS / warps;
    let shared = resources.static_shared + resources.dynamic_shared + SHARED_OF_SYSTEM;
    let by_shared = limits.shared / shared.next_multiple_of(SHARED_UNIT);
    by_registers.min(by_shared).min(limits.warps / warps).min(limits.blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Card;

    /// A card, registers, static and dynamic shared memory, threads, and the blocks that are published for it.
    type Case = (&'static str, usize, usize, usize, usize, usize);

    #[test]
    fn blocks_are_those_that_nvidia_publishes() {
        let cases: [Case; 10] = [
            // CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers, 12 blocks of 128 threads (75 %), 4 of 320 (63 %).
            ("a100", 37, 0, 0, 128, 12),
            ("a100", 37, 0, 0, 320, 4),
            // An Nsight Compute report of an H100: limits of 2 by registers, 4 by warps, 32 by blocks; 49,152 bytes of dynamic memory.
            ("h100", 64, 0, 49_152, 512, 2),
            ("h100", 64, 0, 0, 512, 2),
            ("h100", 32, 0, 0, 512, 4),
            // Tuning guides: 64 warps and 32 blocks (A100, H100), 48 warps and 24 blocks (compute capability 8.9).
            ("h200", 16, 0, 0, 32, 32),
            ("rtx4090", 16, 0, 0, 32, 24),
            ("rtx4090", 32, 0, 0, 1024, 1),
            // The most shared memory of a block: 227 KiB (9.0), 163 KiB (8.0); a byte more does not fit.
            ("h100", 32, 0, 227 << 10, 256, 1),
            ("a100", 32, 163 << 10, 1, 256, 0),
        ];
        for (card, registers, static_shared, dynamic_shared, threads, blocks) in cases {
            let resources = Resources { registers, static_shared, dynamic_shared, local: 0 };
            let limits = Card::named(card).expect("a card").limits;
            assert_eq!(
                resident_blocks(&resources, threads, &limits),
                blocks,
                "{card} {resources:?} {threads}"
            );
        }
    }

    /// 65,536 registers for 256 threads: 255 of each leave room for one block, 128 for two, 129 for one.
    #[test]
    fn registers_are_given_to_warps_in_pieces() {
        let blocks = |registers| {
            let resources = Resources { registers, ..Resources::default() };
            resident_blocks(&resources, 256, &Card::named("h100").expect("a card").limits)
        };
        assert_eq!([255, 136, 129, 128, 80, 64].map(blocks), [1, 1, 1, 2, 3, 4]);
    }
}
