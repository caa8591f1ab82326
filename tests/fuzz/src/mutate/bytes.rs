//! Changes of any file.

use super::{NUMBERS, part};
use fastrand::Rng;

/// Changes some bytes.
pub(super) fn change(rng: &mut Rng, content: &mut Vec<u8>, other: &[u8]) {
    let length = content.len();
    match rng.u32(..9) {
        0 if length > 0 => content[rng.usize(..length)] ^= 1 << rng.u32(..8),
        1 if length > 0 => content[rng.usize(..length)] = rng.u8(..),
        2 => content.truncate(rng.usize(..=length)),
        3 => drop(content.drain(part(rng, length, 16))),
        4 => {
            let copy = content[part(rng, length, 64)].to_vec();
            insert(content, rng.usize(..=length), &copy);
        }
        5 => {
            let copy = other[part(rng, other.len(), 256)].to_vec();
            insert(content, rng.usize(..=length), &copy);
        }
        6 if length >= 8 => {
            let number = NUMBERS[rng.usize(..NUMBERS.len())];
            let at = rng.usize(..=length - 8);
            content[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        7 => {
            let piece = PIECES[rng.usize(..PIECES.len())];
            insert(content, rng.usize(..=length), piece);
        }
        _ => {
            let new: Vec<u8> = (0..rng.usize(..8)).map(|_| rng.u8(..)).collect();
            insert(content, rng.usize(..=length), &new);
        }
    }
}

/// What text may have and readers may not expect.
const PIECES: [&[u8]; 12] = [
    b"\0",
    b"\n",
    b"\r\n",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    "\u{2028}".as_bytes(),
    "é\u{301}".as_bytes(),
    "𝔘".as_bytes(),
    b"\"",
    b"\\",
    b" ",
];

fn insert(content: &mut Vec<u8>, at: usize, piece: &[u8]) {
    content.splice(at..at, piece.iter().copied());
}
