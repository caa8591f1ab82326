//! What an access of a warp asks of memory, by calculation: the pieces of 32 bytes that it touches, and how often it needs the banks of
//! shared memory.

use super::lanes::{LANES, lanes_of};
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of a piece of memory that is fetched as one.
pub(super) const SECTOR: u64 = 32;
/// Bytes of a line of the first cache.
const LINE: u64 = 128;
/// Banks of shared memory, each with words of four bytes.
const BANKS: u64 = 32;

/// The addresses of a warp's lanes.
pub(super) type Addresses = [u64; LANES];

/// The 32-byte sectors that the lanes of a mask touch, each with `width` bytes.
pub(super) fn sectors(addresses: &Addresses, mask: u32, width: u32) -> BTreeSet<u64> {
    let of = |lane: usize| {
        let first = addresses[lane];
        first / SECTOR..=(first + u64::from(width) - 1) / SECTOR
    };
    lanes_of(mask).flat_map(of).collect()
}

/// Lines of the first cache in which these pieces lie.
pub(super) fn lines(sectors: &BTreeSet<u64>) -> usize {
    sectors.iter().map(|sector| sector * SECTOR / LINE).collect::<BTreeSet<_>>().len()
}

/// How often an access needs the banks: lanes with up to four bytes all together, with eight bytes by halves of the warp, with sixteen by
/// quarters; each group takes as often as the most different words of one bank. Two groups are one where neighbours, or neighbours of
/// neighbours, all have the same address; the halves of the warp never are with sixteen bytes.
pub(super) fn wavefronts(addresses: &Addresses, mask: u32, width: u32) -> usize {
    match width {
        0..=4 => group_wavefronts(addresses, mask, width, 0..LANES),
        5..=8 => joined_wavefronts(addresses, mask, width, 0, LANES),
        _ => [0, LANES / 2]
            .map(|first| joined_wavefronts(addresses, mask, width, first, LANES / 2))
            .iter()
            .sum(),
    }
}

/// Two groups of lanes from `first` on, together if their addresses repeat.
fn joined_wavefronts(addresses: &Addresses, mask: u32, width: u32, first: usize, count: usize) -> usize {
    let repeats = |bit: usize| {
        let is_same = |lane: usize| mask >> (lane ^ bit) & 1 == 0 || addresses[lane] == addresses[lane ^ bit];
        lanes_of(mask).filter(|lane| (first..first + count).contains(lane)).all(is_same)
    };
    let middle = first + count / 2;
    if repeats(1) || repeats(2) {
        return group_wavefronts(addresses, mask, width, first..first + count);
    }
    group_wavefronts(addresses, mask, width, first..middle)
        + group_wavefronts(addresses, mask, width, middle..first + count)
}

/// The most different words of one bank; none if no lane is active.
fn group_wavefronts(addresses: &Addresses, mask: u32, width: u32, group: Range<usize>) -> usize {
    let lanes = lanes_of(mask).filter(|lane| group.contains(lane));
    let words: BTreeSet<u64> =
        lanes.flat_map(|lane| addresses[lane] / 4..=(addresses[lane] + u64::from(width) - 1) / 4).collect();
    let mut banks = [0usize; BANKS as usize];
    words.iter().for_each(|word| banks[(word % BANKS) as usize] += 1);
    banks.into_iter().max().unwrap_or(0)
}

/// How often an access without conflicts needs the banks.
pub(super) fn least_wavefronts(mask: u32, width: u32) -> usize {
    (mask.count_ones() as usize * width as usize).div_ceil(BANKS as usize * 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::lanes::ALL;

    fn addresses(of: impl Fn(u64) -> u64) -> Addresses {
        std::array::from_fn(|lane| of(lane as u64))
    }

    #[test]
    fn lanes_beside_each_other_touch_few_pieces() {
        let count = |of: fn(u64) -> u64, width| {
            let found = sectors(&addresses(of), ALL, width);
            (found.len(), lines(&found))
        };
        assert_eq!(count(|lane| 4 * lane, 4), (4, 1));
        assert_eq!(count(|lane| 16 * lane, 16), (16, 4));
        assert_eq!(count(|lane| 4 * lane + 4, 4), (5, 2));
        assert_eq!(count(|lane| 3072 * lane, 2), (32, 32));
        assert_eq!(count(|_| 40, 4), (1, 1));
    }

    #[test]
    fn different_words_of_a_bank_come_one_after_another() {
        let count = |of: fn(u64) -> u64, width| wavefronts(&addresses(of), ALL, width);
        assert_eq!(count(|lane| 4 * lane, 4), 1);
        assert_eq!(count(|_| 0, 4), 1);
        assert_eq!(count(|lane| 8 * lane, 4), 2);
        assert_eq!(count(|lane| 128 * lane, 4), 32);
        // Two lanes of 16 bits share a word.
        assert_eq!(count(|lane| 2 * lane, 2), 1);
        assert_eq!(count(|lane| 16 * lane, 16), 4);
        assert_eq!(count(|lane| 8 * lane, 8), 2);
        // The same for all, or for neighbours.
        assert_eq!((count(|_| 16, 8), count(|_| 16, 16), count(|lane| 16 * (lane / 16), 16)), (1, 2, 2));
        assert_eq!(
            (count(|lane| lane / 2 * 8, 8), count(|lane| lane / 4 * 8, 8), count(|lane| lane / 2 * 16, 16)),
            (1, 1, 2)
        );
        // Rows of 64 bytes, eight lanes of 16 bytes each: every other row has the same banks.
        assert_eq!(count(|lane| 64 * lane, 16), 16);
        // Rows of 80 bytes, as panels of tiles have them.
        assert_eq!(count(|lane| 80 * lane, 16), 4);
        assert_eq!(
            (least_wavefronts(ALL, 4), least_wavefronts(ALL, 16), least_wavefronts(0xff, 16)),
            (1, 4, 1)
        );
    }
}
