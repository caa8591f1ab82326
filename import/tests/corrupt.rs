//! Archives that are not as they must be: one clear error each, and never a panic.

use crate::fixture;
use kernfusion_import::{Imported, Result};
use std::path::PathBuf;
use tempfile::TempDir;

fn linear() -> Vec<u8> {
    fixture::content("linear.pt2")
}

/// A place for one archive.
struct Place {
    folder: TempDir,
    /// What is chosen of open extents.
    extents: &'static [(&'static str, usize)],
}

impl Place {
    fn new() -> Self {
        Place { folder: tempfile::tempdir().unwrap(), extents: &[] }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("model.pt2")
    }

    /// The program of these bytes, or the error in one line.
    fn read(&self, bytes: &[u8]) -> std::result::Result<(), String> {
        std::fs::write(self.path(), bytes).unwrap();
        let imported = Imported::open_sized(self.path(), self.extents);
        let message = imported.and_then(|imported| used(&imported)).map_err(|error| error.to_string());
        if let Err(message) = &message {
            assert!(!message.is_empty() && !message.contains('\n'), "{message}");
        }
        message
    }

    /// The error of these bytes.
    fn refused(&self, bytes: &[u8]) -> String {
        self.read(bytes).unwrap_err()
    }
}

/// Does with a model what the command `import` does.
pub(crate) fn used(imported: &Imported) -> Result<()> {
    imported.program()?;
    imported.states().iter().try_for_each(|state| state.read().map(drop))
}

/// Where a text stands in an archive, whose entries are stored as they are.
fn find(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap_or_else(|| panic!("{text}"))
}

/// The archive with a text in place of another one of the same length, and the checksums of its entries as they then are.
fn with(bytes: &[u8], text: &str, other: &str) -> Vec<u8> {
    assert_eq!(text.len(), other.len());
    let at = find(bytes, text);
    let mut changed = bytes.to_vec();
    changed[at..at + text.len()].copy_from_slice(other.as_bytes());
    with_checksums(changed)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<usize> {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(bytes.get(at..at + N)?);
    Some(u64::from_le_bytes(wide) as usize)
}

/// For each entry of the directory: where that is, where its header is, and where its bytes are.
fn entries(bytes: &[u8]) -> Option<Vec<(usize, usize, std::ops::Range<usize>)>> {
    let end = bytes.windows(4).rposition(|window| window == b"PK\x05\x06")?;
    let (count, mut at) = (number::<2>(bytes, end + 10)?, number::<4>(bytes, end + 16)?);
    let mut entries = vec![];
    for _ in 0..count {
        let (size, header) = (number::<4>(bytes, at + 20)?, number::<4>(bytes, at + 42)?);
        let start = header + 30 + number::<2>(bytes, header + 26)? + number::<2>(bytes, header + 28)?;
        bytes.get(start..start + size)?;
        entries.push((at, header, start..start + size));
        at +=
            46 + [28, 30, 32].map(|place| number::<2>(bytes, at + place).unwrap_or(0)).iter().sum::<usize>();
    }
    Some(entries)
}

/// CRC-32 as in zip (ISO 3309), bit by bit.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
}

/// The archive with the checksums that its entries have, if it has entries.
fn with_checksums(mut bytes: Vec<u8>) -> Vec<u8> {
    for (directory, _, content) in entries(&bytes).unwrap_or_default() {
        let sum = checksum(&bytes[content]).to_le_bytes();
        bytes[directory + 16..directory + 20].copy_from_slice(&sum);
    }
    bytes
}

/// Where the bytes of an entry are.
pub(crate) fn content_of(bytes: &[u8], name: &str) -> std::ops::Range<usize> {
    let is_named = |at: usize| bytes[at + 46..].starts_with(name.as_bytes());
    entries(bytes).unwrap().into_iter().find(|(at, ..)| is_named(*at)).unwrap().2
}

/// The archive with other bytes in an entry, as many as there are.
fn with_entry(bytes: &[u8], name: &str, content: &str) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    changed[content_of(bytes, name)].copy_from_slice(content.as_bytes());
    with_checksums(changed)
}

#[test]
fn what_is_no_archive_is_refused() {
    let place = Place::new();
    let whole = linear();
    place.read(&whole).unwrap();
    place.read(&with_checksums(whole.clone())).unwrap();
    for bytes in [&[][..], b"PK", b"no archive at all", &whole[..whole.len() / 2], &whole[..whole.len() - 30]]
    {
        let message = place.refused(bytes);
        assert!(message.contains("of torch.export.save"), "{message}");
    }
    let message = Imported::open(place.path().with_file_name("none")).map(|_| ()).unwrap_err().to_string();
    assert!(message.starts_with("cannot read ") && message.contains("none"), "{message}");
    // In its header and in the directory.
    let rename = |bytes: &[u8]| with(bytes, "linear/archive_format", "linear/archive_formal");
    let renamed = rename(&rename(&whole));
    let message = place.refused(&renamed);
    assert!(message.contains("archive_format"), "{message}");
    assert!(
        place
            .refused(&with_entry(&whole, "linear/archive_format", "pt3"))
            .contains("its archive_format is not pt2")
    );
    assert!(place.refused(&with_entry(&whole, "linear/byteorder", "bigger")).contains("not little-endian"));
}

#[test]
fn an_entry_that_is_not_as_it_was_written_is_named() {
    let place = Place::new();
    let whole = linear();
    let at = find(&whole, "\"nodes\"");
    let mut flipped = whole.clone();
    flipped[at] ^= 1;
    let message = place.refused(&flipped);
    assert!(message.contains("models/model.json: ") && message.contains("checksum"), "{message}");
    let model = entries(&whole).unwrap().into_iter().find(|(.., content)| content.contains(&at)).unwrap();
    // Compressed, as other programs write it.
    let mut deflated = whole.clone();
    deflated[model.0 + 10] = 8;
    deflated[model.1 + 8] = 8;
    let message = place.refused(&deflated);
    assert!(message.contains("models/model.json: "), "{message}");
    // Somewhere else.
    for (place_of, value) in [(42, 1u32 << 30), (42, 7), (20, 1 << 30), (24, 1 << 30)] {
        let mut moved = whole.clone();
        moved[model.0 + place_of..model.0 + place_of + 4].copy_from_slice(&value.to_le_bytes());
        place.refused(&moved);
    }
}

#[test]
fn a_graph_that_does_not_fit_is_refused_with_its_place() {
    let place = Place::new();
    let whole = linear();
    let refused = |text: &str, other: &str| place.refused(&with(&whole, text, other));
    let message = refused("\"torch.ops.aten.addmm.default\"", "\"torch.ops.aten.addmn.default\"");
    assert!(message.contains("1 operator is not known: aten.addmn.default (in up, "), "{message}");
    // A node that reads what follows from it.
    let reads = |name: &str| {
        format!("\"inputs\": [{{\"name\": \"self\", \"arg\": {{\"as_tensor\": {{\"name\": {name}}}")
    };
    let message = refused(&reads("\"p_up_weight\""), &reads("\"addmm\"      "));
    assert!(
        message.contains("aten.permute.default (in up, ")
            && message.contains("reads \"addmm\", which nothing before it gives"),
        "{message}"
    );
    let message = refused(
        "\"sizes\": [{\"as_int\": 5}, {\"as_int\": 3}]",
        "\"sizes\": [{\"as_int\": 5}, {\"as_int\": 4}]",
    );
    assert!(message.contains("tensor \"up.weight\": shape [5, 4] reaches out of its file"), "{message}");
    let message = refused("[{\"as_int\": 4}, {\"as_int\": 3}]", "[{\"as_expr\":{\"expr_str\":\"s\"}}]");
    assert!(message.contains("extents of its inputs are open, s (x.0): choose each"), "{message}");
    let message = refused("\"major\": 8", "\"major\": 9");
    assert!(message.contains("its schema has version 9, and 8 is read"), "{message}");
    let message = refused("\"path_name\": \"weight_0\"", "\"path_name\": \"weight_9\"");
    assert!(message.contains("data/weights/weight_9"), "{message}");
    assert!(refused("\"nodes\": [", "\"nodes\": {").contains("models/model.json"), "JSON");
}

#[test]
fn open_extents_are_chosen_one_by_one_and_within_their_range() {
    let refused = |extents: &[(&str, usize)]| {
        fixture::sized("llama_sized", extents).map(|_| ()).unwrap_err().to_string()
    };
    let message = refused(&[]);
    assert!(
        message.contains("(input_ids.0), ") && message.contains("(input_ids.1): choose each"),
        "{message}"
    );
    let message = refused(&[("input_ids.0", 2)]);
    assert!(!message.contains("input_ids.0") && message.contains("(input_ids.1): choose each"), "{message}");
    let message = refused(&[("batch", 2)]);
    assert!(message.contains("it has no open extent \"batch\", but s"), "{message}");
    let message = refused(&[("input_ids.0", 65), ("input_ids.1", 6)]);
    assert!(message.contains("to 64, not for 65"), "{message}");
    let message = refused(&[("input_ids.0", 2), ("input_ids.0", 3)]);
    assert!(message.contains("is chosen twice"), "{message}");
    assert!(fixture::sized("llama", &[("input_ids.0", 2)]).is_err(), "nothing is open");
    let other = fixture::sized("llama_sized", &[("input_ids.1", 16), ("input_ids.0", 1)]).unwrap();
    assert_eq!(other.inputs().next().unwrap().1.shape, [1, 16]);
    other.program().unwrap();
}

/// Bytes, words of JSON and numbers of the zip's directory are changed at random; whatever comes of it is a program or an error.
#[test]
fn random_mutations_end_in_a_program_or_one_error() {
    let mutated = |whole: &[u8], random: &mut fastrand::Rng| {
        let mut bytes = whole.to_vec();
        for _ in 0..random.usize(1..4) {
            mutate(&mut bytes, random);
        }
        // Half of them have valid checksums, so that what is behind them is met.
        if random.bool() { with_checksums(bytes) } else { bytes }
    };
    let (read, refused) = outcomes(&linear(), 1000, mutated);
    assert!(read > 10 && refused > 500, "{read} read, {refused} refused");
}

/// Numbers and words of one node are changed in an archive that has all operators.
#[test]
fn changed_arguments_of_operators_end_in_a_program_or_one_error() {
    let whole = fixture::content("operators.pt2");
    let nodes = find(&whole, "\"nodes\": [")..find(&whole, "\"tensor_values\"");
    let mutated = |whole: &[u8], random: &mut fastrand::Rng| {
        let mut bytes = whole.to_vec();
        let node = random.usize(nodes.clone());
        let node = &mut bytes[node..(node + 400).min(nodes.end)];
        for _ in 0..random.usize(1..4) {
            let digits: Vec<_> = (0..node.len()).filter(|&at| node[at].is_ascii_digit()).collect();
            match random.choice(digits) {
                Some(digit) if random.u8(0..4) > 0 => node[digit] = random.u8(b'0'..=b'9'),
                _ => {
                    let length = random.usize(1..30).min(node.len());
                    let [from, to] = [0; 2].map(|_| random.usize(0..=node.len() - length));
                    node.copy_within(from..from + length, to);
                }
            }
        }
        with_checksums(bytes)
    };
    let (read, refused) = outcomes(&whole, 100, mutated);
    assert!(read > 10 && refused > 10, "{read} read, {refused} refused");
}

/// The expressions of open extents are changed.
#[test]
fn changed_extents_end_in_a_program_or_one_error() {
    let whole = fixture::content("linear_sized.pt2");
    let mutated = |whole: &[u8], random: &mut fastrand::Rng| {
        let mut bytes = whole.to_vec();
        let places: Vec<_> =
            (0..whole.len()).filter(|&at| whole[at..].starts_with(b"\"expr_str\": ")).collect();
        let at = random.choice(places).unwrap() + 12;
        for _ in 0..random.usize(1..3) {
            bytes[at + random.usize(0..50)] = *random.choice(b"0123456789(),'\"SymbolMul Addx").unwrap();
        }
        with_checksums(bytes)
    };
    let place = Place { extents: &[("x.0", 4)], ..Place::new() };
    let (read, refused) = outcomes_at(&place, &whole, 300, mutated);
    assert!(read > 10 && refused > 10, "{read} read, {refused} refused");
}

/// How many of an archive's mutations are read, and how many are not.
pub(crate) fn outcomes(
    whole: &[u8],
    inputs: usize,
    mutated: impl Fn(&[u8], &mut fastrand::Rng) -> Vec<u8>,
) -> (usize, usize) {
    outcomes_at(&Place::new(), whole, inputs, mutated)
}

fn outcomes_at(
    place: &Place,
    whole: &[u8],
    inputs: usize,
    mutated: impl Fn(&[u8], &mut fastrand::Rng) -> Vec<u8>,
) -> (usize, usize) {
    let mut random = fastrand::Rng::with_seed(19);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..inputs {
        match place.read(&mutated(whole, &mut random)) {
            Ok(()) => read += 1,
            Err(_) => refused += 1,
        }
    }
    (read, refused)
}

pub(crate) fn mutate(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let [at, other] = [0; 2].map(|_| random.usize(0..bytes.len()));
    match random.u8(0..6) {
        0 => bytes[at] ^= 1 << random.u8(0..8),
        1 => bytes[at] = random.u8(..),
        2 => bytes.truncate(at.max(1)),
        3 => bytes.swap(at, other),
        // A digit of JSON becomes another one.
        4 => {
            let digits = (0..bytes.len()).filter(|&at| bytes[at].is_ascii_digit());
            let digit = random.choice(digits.collect::<Vec<_>>()).unwrap_or(at);
            bytes[digit] = random.u8(b'0'..=b'9');
        }
        // A part is copied over another one.
        _ => {
            let length = random.usize(1..40).min(bytes.len() - at);
            let part = bytes[at..at + length].to_vec();
            let to = random.usize(0..=bytes.len() - length);
            bytes[to..to + length].copy_from_slice(&part);
        }
    }
}
