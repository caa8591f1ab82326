//! ONNX files that are not as they must be: one clear error each, and never a panic.

use crate::corrupt::{mutate, used};
use crate::fixture;
use kernfusion_import::Imported;
use tempfile::TempDir;

/// A folder with the archive that has the weights of one model.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("linear.pt2"), fixture::content("linear.pt2")).unwrap();
        Place(folder)
    }

    /// The program of these bytes, or the error in one line.
    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let path = self.0.path().join("model.onnx");
        std::fs::write(&path, bytes).unwrap();
        let message =
            Imported::open(path).and_then(|imported| used(&imported)).map_err(|error| error.to_string());
        if let Err(message) = &message {
            assert!(!message.is_empty() && !message.contains('\n'), "{message}");
        }
        message
    }

    fn refused(&self, bytes: &[u8]) -> String {
        self.read(bytes).unwrap_err()
    }
}

fn linear() -> Vec<u8> {
    fixture::content("linear.onnx")
}

/// The file with other bytes in place of some, as many as there are.
fn with(bytes: &[u8], part: &[u8], other: &[u8]) -> Vec<u8> {
    assert_eq!(part.len(), other.len());
    let at = bytes.windows(part.len()).position(|window| window == part).unwrap();
    let mut changed = bytes.to_vec();
    changed[at..at + part.len()].copy_from_slice(other);
    changed
}

#[test]
fn what_is_no_whole_file_is_refused() {
    let (place, whole) = (Place::new(), linear());
    place.read(&whole).unwrap();
    for bytes in [&[][..], b"ONNX", b"\x08\x0a", b"\xff\xff\xff\xff", &whole[..40], &whole[..whole.len() - 1]]
    {
        let message = place.refused(bytes);
        assert!(message.contains("no whole ONNX model"), "{message}");
    }
    // Groups in groups without end.
    place.refused(&[b"\x3a\x7f".repeat(100), b"\x0b".repeat(100_000)].concat());
    let message = place.refused(&with(&whole, b"\x10\x14", b"\x10\x0c"));
    assert!(message.contains("its operators have version 12, and 13 to 28 are read"), "{message}");
}

#[test]
fn a_graph_that_does_not_fit_is_refused_with_its_place() {
    let (place, whole) = (Place::new(), linear());
    let refused = |part: &str, other: &str| place.refused(&with(&whole, part.as_bytes(), other.as_bytes()));
    let message = refused("\"\x04Gemm", "\"\x04Gemn");
    assert!(
        message.ends_with("1 operator is not known: onnx.Gemn (in up, torch/nn/modules/linear.py:134)"),
        "{message}"
    );
    // A node that reads what follows from it.
    let message = refused("\n\tup.weight\x12\x07permute", "\n\x05addmm\x12\x0bpermute.xyz");
    assert!(
        message.contains("onnx.Transpose (in up, ")
            && message.contains("reads \"addmm\", which nothing before it gives"),
        "{message}"
    );
    let message = refused("\x12\x07permute\x1a", "\x12\x07up.bias\x1a");
    assert!(message.contains("gives \"up.bias\", which is there already"), "{message}");
    let message = refused("b\x58\n\x05addmm", "b\x58\n\x05addmn");
    assert!(message.contains("its result \"addmn\" is nowhere"), "{message}");
    let message = refused("\n\x06transB\x18", "\n\x06transC\x18");
    assert!(message.contains("its attribute transC is not known"), "{message}");
    let message = refused("\n\x02\x08\x04\n\x02\x08\x05", "\n\x02\x08\x04\n\x02\x08\x06");
    assert!(message.contains("\"addmm\" is f32[4,5], and the file says another type"), "{message}");
    let message = refused("\n\x02\x08\x04\n\x02\x08\x03", "\n\x02\x12\x00\n\x02\x08\x03");
    assert!(message.contains("extents of its inputs are open, x.0 (x.0): choose each"), "{message}");
    let message = refused("\n\x02\x08\x04\n\x02\x08\x03", "\n\x02\x08\x04\n\x02\x08\x04");
    assert!(message.contains("onnx.Gemm (in up, "), "{message}");
    let message = refused("\x08\x01\x12\x08\n\x02\x08\x04", "\x08\x08\x12\x08\n\x02\x08\x04");
    assert!(message.contains("input \"x\": no tensor here is of string"), "{message}");
}

#[test]
fn weights_that_are_not_where_they_must_be_are_named() {
    let (place, whole) = (Place::new(), linear());
    let refused = |part: &str, other: &str| place.refused(&with(&whole, part.as_bytes(), other.as_bytes()));
    let message = refused("\x08\x05\x08\x03", "\x08\x05\x08\x04");
    assert!(message.contains("tensor \"up.weight\": it takes 80 bytes, and its length"), "{message}");
    let message = refused("offset\x12\x03256", "offset\x12\x03xyz");
    assert!(message.contains("tensor \"up.bias\": its offset in another file is \"xyz\""), "{message}");
    let message = refused("offset\x12\x0264j\x0c\n\x06length", "offset\x12\x02-4j\x0c\n\x06length");
    assert!(message.contains("tensor \"up.weight\": its offset in another file is \"-4\""), "{message}");
    let message = refused("linear.pt2", "../any.pt2");
    assert!(message.contains("in \"../any.pt2\", which is not beside the model"), "{message}");
    let message = refused("linear.pt2", "/etc/hosts");
    assert!(message.contains("in \"/etc/hosts\", which is not beside the model"), "{message}");
    let message = refused("linear.pt2", "cinema.pt2");
    assert!(message.contains("cannot read cinema.pt2"), "{message}");
    let bytes = fixture::content("linear.pt2");
    std::fs::write(place.0.path().join("linear.pt2"), &bytes[..270]).unwrap();
    let message = place.refused(&whole);
    assert!(message.contains("its 20 bytes from 256 reach out of linear.pt2, which has 270"), "{message}");
}

#[test]
fn random_mutations_end_in_a_program_or_one_error() {
    let place = Place::new();
    let mut random = fastrand::Rng::with_seed(19);
    for (whole, inputs, most) in [
        (linear(), 2000, 4),
        (fixture::content("onnx_operators.onnx"), 200, 2),
        (fixture::content("contributed.onnx"), 400, 2),
    ] {
        let (mut read, mut refused) = (0, 0);
        for _ in 0..inputs {
            let mut bytes = whole.clone();
            for _ in 0..random.usize(1..most) {
                mutate(&mut bytes, &mut random);
            }
            match place.read(&bytes) {
                Ok(()) => read += 1,
                Err(_) => refused += 1,
            }
        }
        assert!(read > 5 && refused > inputs / 10, "{read} read, {refused} refused");
    }
}
