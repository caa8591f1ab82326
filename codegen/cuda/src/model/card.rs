//! The cards that the model knows, and everything that it assumes of them. `docs/sources.md` says where each figure is from.

/// A card, with what the model assumes of it. Rates are for all warps of a multiprocessor's quarter, each of which has a scheduler;
/// cycles of a pipe are those that one instruction of a warp keeps it busy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Card {
    /// As `--model` takes it.
    pub name: &'static str,
    /// The architecture that it is compiled for.
    pub architecture: &'static str,
    /// The product.
    pub title: &'static str,
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Cycles a second: those by which the maker states the card's peaks. A card may run faster, and slower where its power is limited.
    pub clock: f64,
    /// Bytes a second of its memory, as stated.
    pub bandwidth: f64,
    /// Bytes of a cycle from the second cache to all multiprocessors.
    pub l2_bytes: f64,
    /// Lanes of an access of memory that a multiprocessor takes in a cycle: its load and store units.
    pub lanes: f64,
    /// Where the first argument of a launch lies in the first constant bank.
    pub arguments: u32,
    /// What a multiprocessor holds.
    pub limits: Limits,
    /// Cycles until a result is there.
    pub latency: Latency,
    /// Cycles that an instruction keeps its pipe busy.
    pub busy: Busy,
}

/// What a multiprocessor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Resident warps.
    pub warps: usize,
    /// Resident blocks.
    pub blocks: usize,
    /// Bytes of shared memory, of which each block takes a KiB beside its own.
    pub shared: usize,
    /// Bytes of the first cache and of shared memory together.
    pub l1: usize,
}

/// Cycles from an instruction to its result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// A load from shared memory.
    pub shared: f64,
    /// A load from the first cache.
    pub l1: f64,
    /// A load from the second cache.
    pub l2: f64,
    /// A load from memory.
    pub memory: f64,
    /// A product on tensor cores.
    pub tensor: f64,
    /// A special function or a conversion.
    pub special: f64,
}

/// Cycles that an instruction of a warp keeps a pipe of its quarter busy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Busy {
    /// Additions and multiplications of `f32`.
    pub f32: f64,
    /// Whole numbers, logic, comparisons.
    pub integer: f64,
    /// Special functions and conversions of other widths.
    pub special: f64,
    /// Additions and multiplications of `f64`.
    pub f64: f64,
    /// 16×8×16 multiplications and additions of 16-bit floats with sums in `f32`; 16×8×8 in TF32 take as long.
    pub tensor: f64,
    /// As many of them in products of warpgroups, on cards that have them.
    pub warpgroup: f64,
}

/// The share of the stated bandwidth that long copies reach: reading alone 97 % on an H100 (3,240 of 3,350 GB/s), and 90 to 92 % in
/// published measurements of A100, H100 and RTX 4090.
pub const MEMORY_SHARE: f64 = 0.92;
/// Seconds from the end of a kernel to the beginning of the next one in a graph.
pub const LAUNCH_GAP: f64 = 1.3e-6;
/// Schedulers of a multiprocessor, each with its quarter of the warps and one instruction a cycle.
pub(super) const SCHEDULERS: usize = 4;
/// 32-bit registers of a multiprocessor.
pub(super) const REGISTERS: usize = 65_536;
/// Bytes of a cycle between a multiprocessor's registers and its shared memory or first cache.
pub(super) const L1_BYTES: f64 = 128.0;
/// Cycles of a barrier of a block, from its last warp to the first instruction after it.
pub(super) const BARRIER: f64 = 20.0;

const HOPPER: Card = Card {
    name: "h100",
    architecture: "sm_90a",
    title: "NVIDIA H100 SXM",
    multiprocessors: 132,
    clock: 1.83e9,
    bandwidth: 3.35e12,
    l2_bytes: 4472.0,
    lanes: 32.0,
    arguments: 0x210,
    limits: Limits { warps: 64, blocks: 32, shared: 228 << 10, l1: 256 << 10 },
    latency: Latency { shared: 29.0, l1: 40.7, l2: 263.0, memory: 478.8, tensor: 24.1, special: 23.0 },
    // `mma.sync` takes 6 cycles instead of the 4 of the peak, and the fastest published kernel with `wgmma` has 808 of 989 TFLOP/s.
    busy: Busy { f32: 1.0, integer: 2.0, special: 8.0, f64: 2.0, tensor: 6.0, warpgroup: 4.0 / 0.817 },
};

/// All cards.
pub const CARDS: [Card; 4] = [
    Card { name: "h200", title: "NVIDIA H200 SXM", bandwidth: 4.8e12, ..HOPPER },
    HOPPER,
    Card {
        name: "a100",
        architecture: "sm_80",
        title: "NVIDIA A100 SXM 80 GB",
        multiprocessors: 108,
        clock: 1.41e9,
        bandwidth: 2.039e12,
        l2_bytes: 1853.7,
        lanes: 32.0,
        arguments: 0x160,
        limits: Limits { warps: 64, blocks: 32, shared: 164 << 10, l1: 192 << 10 },
        latency: Latency { shared: 29.0, l1: 37.9, l2: 261.5, memory: 466.3, tensor: 33.0, special: 23.0 },
        busy: Busy { f32: 2.0, integer: 2.0, special: 8.0, f64: 4.0, tensor: 8.0, warpgroup: 8.0 },
    },
    Card {
        name: "rtx4090",
        architecture: "sm_89",
        title: "NVIDIA GeForce RTX 4090",
        multiprocessors: 128,
        clock: 2.52e9,
        bandwidth: 1.008e12,
        l2_bytes: 1622.2,
        lanes: 16.0,
        arguments: 0x160,
        limits: Limits { warps: 48, blocks: 24, shared: 100 << 10, l1: 128 << 10 },
        latency: Latency { shared: 30.1, l1: 43.4, l2: 273.0, memory: 541.5, tensor: 33.0, special: 23.0 },
        busy: Busy { f32: 1.0, integer: 2.0, special: 8.0, f64: 64.0, tensor: 32.0, warpgroup: 32.0 },
    },
];

impl Card {
    /// The card of a name.
    pub fn named(name: &str) -> Option<&'static Card> {
        CARDS.iter().find(|card| card.name == name)
    }
}
