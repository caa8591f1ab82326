//! Changes that make bad input of good. Each format has its own, which know what a reader looks at; bytes are changed in all.

mod bytes;
mod json;
mod tensors;
mod tokens;

use fastrand::Rng;
use std::collections::BTreeMap;

/// Files by name. The ending of a name says what its format is.
pub type Folder = BTreeMap<String, Vec<u8>>;

/// Lengths, counts and positions at which something ends.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    3,
    63,
    65,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    9_000_000_000_000_000,
    1 << 53,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];

/// Changes a file or two, once or several times; `others` is another folder of the same reader, to take parts from.
pub(crate) fn mutate(rng: &mut Rng, folder: &mut Folder, others: &Folder) {
    // Most input should get past the first check of a reader.
    let changes = [1, 1, 1, 2, 2, 3, 5][rng.usize(..7)];
    for _ in 0..changes {
        let name = folder.keys().nth(rng.usize(..folder.len())).expect("a folder has files").clone();
        let other = others.get(&name).map_or(&[][..], Vec::as_slice);
        let content = folder.get_mut(&name).expect("a file of this name");
        change(rng, &name, content, other);
    }
    if rng.u32(..200) == 0 {
        let name = folder.keys().nth(rng.usize(..folder.len())).expect("a folder has files").clone();
        folder.remove(&name);
    }
}

fn change(rng: &mut Rng, name: &str, content: &mut Vec<u8>, other: &[u8]) {
    if rng.u32(..8) == 0 {
        return bytes::change(rng, content, other);
    }
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "kir" => tokens::change(rng, content, other),
        "json" => json::change(rng, content),
        "jsonl" => json::change_line(rng, content, other),
        "safetensors" => tensors::change(rng, content),
        _ => bytes::change(rng, content, other),
    }
}

/// A part of something of this length: where it begins, and how long it is.
fn part(rng: &mut Rng, length: usize, longest: usize) -> std::ops::Range<usize> {
    let start = rng.usize(..=length);
    let end = start + rng.usize(..=longest.min(length - start));
    start..end
}
