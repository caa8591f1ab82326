//! Words and conditions of the 32 lanes of a warp, of which some may be unknown, since they depend on what is in memory.

/// Lanes of a warp.
pub(super) const LANES: usize = 32;
/// Every lane.
pub(super) const ALL: u32 = u32::MAX;

/// A word of each lane; a bit of `known` says whether a lane's is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    pub(super) bits: [u32; LANES],
    pub(super) known: u32,
}

/// A condition of each lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) bits: u32,
    pub(super) known: u32,
}

impl Word {
    /// The same in every lane.
    pub(super) fn of(bits: u32) -> Self {
        Word { bits: [bits; LANES], known: ALL }
    }

    pub(super) fn unknown() -> Self {
        Word { bits: [0; LANES], known: 0 }
    }

    pub(super) fn lanes(lane: impl Fn(usize) -> u32) -> Self {
        Word { bits: std::array::from_fn(lane), known: ALL }
    }

    pub(super) fn map(self, f: impl Fn(u32) -> u32) -> Self {
        Word { bits: self.bits.map(f), known: self.known }
    }

    /// A function of three words, known where these are.
    pub(super) fn of_three([a, b, c]: [Word; 3], f: impl Fn(u32, u32, u32) -> u32) -> Self {
        let bits = std::array::from_fn(|lane| f(a.bits[lane], b.bits[lane], c.bits[lane]));
        Word { bits, known: a.known & b.known & c.known }
    }

    /// Takes the lanes of a mask from another word.
    pub(super) fn merge(&mut self, other: Word, mask: u32) {
        if mask == ALL {
            *self = other;
            return;
        }
        for lane in lanes_of(mask) {
            self.bits[lane] = other.bits[lane];
        }
        self.known = self.known & !mask | other.known & mask;
    }

    pub(super) fn condition(self, f: impl Fn(u32) -> bool) -> Condition {
        let bits = (0..LANES).fold(0, |bits, lane| bits | u32::from(f(self.bits[lane])) << lane);
        Condition { bits, known: self.known }
    }

    /// With every lane having the first lane of a mask's word.
    pub(super) fn shared(self, mask: u32) -> Self {
        let lane = mask.trailing_zeros() as usize % LANES;
        match self.known >> lane & 1 {
            0 => Word::unknown(),
            _ => Word::of(self.bits[lane]),
        }
    }
}

impl Condition {
    /// The same in every lane.
    pub(super) fn of(holds: bool) -> Self {
        Condition { bits: if holds { ALL } else { 0 }, known: ALL }
    }

    pub(super) fn unknown() -> Self {
        Condition { bits: 0, known: 0 }
    }

    pub(super) fn not(self) -> Self {
        Condition { bits: !self.bits, known: self.known }
    }

    /// Lanes in which it holds, or may hold.
    pub(super) fn possible(self) -> u32 {
        self.bits | !self.known
    }

    pub(super) fn merge(&mut self, other: Condition, mask: u32) {
        self.bits = self.bits & !mask | other.bits & mask;
        self.known = self.known & !mask | other.known & mask;
    }

    /// A function of three conditions, as the eight bits of a table say, the first one the highest bit of its index.
    pub(super) fn table(table: u32, [a, b, c]: [Condition; 3]) -> Self {
        let bits = (0..8).filter(|index| table >> index & 1 == 1).fold(0, |bits, index| {
            let of = |condition: Condition, bit: u32| match index >> bit & 1 {
                1 => condition.bits,
                _ => !condition.bits,
            };
            bits | of(a, 2) & of(b, 1) & of(c, 0)
        });
        // What a condition is does not matter where the table does not depend on it.
        let depends = |bit: u32| (0..8).any(|index| (table >> index ^ table >> (index ^ 1 << bit)) & 1 == 1);
        let known = [(a, 2), (b, 1), (c, 0)];
        let known = known.iter().fold(
            ALL,
            |known, (condition, bit)| {
                if depends(*bit) { known & condition.known } else { known }
            },
        );
        Condition { bits, known }
    }
}

/// The numbers of a mask's lanes.
pub(super) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}
