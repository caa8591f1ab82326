//! Philox4x32-10, the counter-based generator behind every random number of a program.
//!
//! J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel random numbers: as easy as 1, 2, 3. SC 2011.

use super::array;

/// Blocks that are drawn side by side: two registers of AVX-512 per word.
const BLOCKS: usize = 16;

const MULTIPLIERS: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
/// The low half of a 64-bit lane.
const LOW: u64 = 0xffff_ffff;

/// Ten rounds on N counters, lane by lane: word w of counter l is `words[w][l]`. Words lie in 64-bit lanes,
/// so that their 64-bit products are single instructions and need no shuffling.
#[inline(always)]
fn rounds<const N: usize>(mut words: [[u64; N]; 4], mut key: [u32; 2]) -> [[u64; N]; 4] {
    for _ in 0..10 {
        let [mut a, mut b, mut c, mut d] = words;
        for l in 0..N {
            let first = a[l] * MULTIPLIERS[0];
            let second = c[l] * MULTIPLIERS[1];
            a[l] = (second >> 32) ^ b[l] ^ u64::from(key[0]);
            b[l] = second & LOW;
            c[l] = (first >> 32) ^ d[l] ^ u64::from(key[1]);
            d[l] = first & LOW;
        }
        words = [a, b, c, d];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    words
}

/// The counters of N blocks from `block` on.
#[inline(always)]
fn counters<const N: usize>(block: u64, step: u32) -> [[u64; N]; 4] {
    let at = |l: usize| block.wrapping_add(l as u64);
    let (low, high) = (array(|l| at(l) & LOW), array(|l| at(l) >> 32));
    [low, high, [u64::from(step); N], [0; N]]
}

/// The block of an element. A row may begin before the first element, where nothing reads what is drawn; its blocks are
/// negative numbers, so that the next ones are those from 0 on.
#[inline(always)]
fn block(element: u64) -> u64 {
    (element.cast_signed() >> 2).cast_unsigned()
}

/// Element `element` of the stream.
#[inline(always)]
fn word(element: u64, step: u32, key: [u32; 2]) -> u32 {
    rounds(counters::<1>(block(element), step), key)[(element % 4) as usize][0] as u32
}

/// `dst[i]` = element `start + i · stride` (wrapping) of the stream with key (seed, node) at `step`. Element
/// e is word e % 4 of the block with counter (e / 4 low, e / 4 high, step, 0).
///
/// # Safety
/// `dst` covers n words.
#[inline(always)]
pub(super) unsafe fn philox(
    dst: *mut u32,
    n: usize,
    seed: u32,
    node: u32,
    step: u32,
    start: u64,
    stride: u64,
) {
    let key = [seed, node];
    // SAFETY: every index is below n; memory of any alignment.
    let write = |i: usize, value: u32| unsafe { dst.add(i).write_unaligned(value) };
    let element = |i: usize| start.wrapping_add((i as u64).wrapping_mul(stride));
    let mut i = 0;
    if stride == 1 {
        // Single elements to the first whole block, then blocks side by side.
        let head = n.min((start.wrapping_neg() % 4) as usize);
        for i in 0..head {
            write(i, word(element(i), step, key));
        }
        i = head;
        while n - i >= 4 * BLOCKS {
            let [a, b, c, d] = rounds(counters::<BLOCKS>(block(element(i)), step), key);
            // Two words as one number: that takes a shift within a lane, where narrowing each word would move it to another lane.
            let blocks: [[u64; 2]; BLOCKS] = array(|l| [a[l] | b[l] << 32, c[l] | d[l] << 32]);
            // SAFETY: as many words are left; memory of any alignment.
            unsafe { dst.add(i).cast::<[[u64; 2]; BLOCKS]>().write_unaligned(blocks) };
            i += 4 * BLOCKS;
        }
        while n - i >= 4 {
            let words = rounds(counters::<1>(block(element(i)), step), key);
            for (w, word) in words.iter().enumerate() {
                write(i + w, word[0] as u32);
            }
            i += 4;
        }
    }
    for i in i..n {
        write(i, word(element(i), step, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // `kat_vectors` of the authors' library Random123, philox4x32 with 10 rounds.
        let pi = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        for ((counter, key), expected) in [
            (([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            (([LOW; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
        ] {
            assert_eq!(rounds(counter.map(|word| [word]), key), expected.map(|word| [word]));
            assert_eq!(rounds(counter.map(|word| [word; 16]), key), expected.map(|word| [word; 16]));
        }
    }
}
