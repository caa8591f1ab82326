//! Archives as PyTorch 2.8 and older write them: all weights are one archive of `torch.save`, and so are all constants.

use crate::architectures::{Fixture, check};
use crate::corrupt::{mutate, outcomes};
use crate::fixture;
use kernfusion_import::Imported;
use serde_json::Value;
use std::io::{Cursor, Read, Write};
use zip::write::SimpleFileOptions;
use zip::{ZipArchive, ZipWriter};

/// Entries by name.
pub(crate) type Entries = Vec<(String, Vec<u8>)>;

pub(crate) fn entries(archive: Vec<u8>) -> Entries {
    let mut zip = ZipArchive::new(Cursor::new(archive)).unwrap();
    let count = zip.len();
    let read = |at| {
        let mut entry = zip.by_index(at).unwrap();
        let mut content = vec![];
        entry.read_to_end(&mut content).unwrap();
        (entry.name().unwrap().to_string(), content)
    };
    (0..count).map(read).collect()
}

pub(crate) fn zipped(entries: &Entries) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(vec![]));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, content) in entries {
        zip.start_file(name, stored).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

/// A tuple of whole numbers.
fn numbers(numbers: &Value) -> Vec<u8> {
    let number = |size: &Value| {
        let number = size["as_int"].as_i64().unwrap() as i32;
        [&b"J"[..], &number.to_le_bytes()].concat()
    };
    let all: Vec<u8> = numbers.as_array().unwrap().iter().flat_map(number).collect();
    [b"(", &all[..], b"t"].concat()
}

/// What `torch.save` makes of a tensor that a configuration of weights describes.
fn pickled(meta: &Value, file: &str) -> Vec<u8> {
    let class: &[u8] = match meta["dtype"].as_u64().unwrap() {
        5 => b"ctorch\nLongStorage\n",
        7 => b"ctorch\nFloatStorage\n",
        other => panic!("dtype {other}"),
    };
    let offset = numbers(&Value::Array(vec![meta["storage_offset"].clone()]));
    // Without the tuple around it.
    let offset = &offset[1..offset.len() - 1];
    let requires_grad: &[u8] = if meta["requires_grad"].as_bool().unwrap() { b"\x88" } else { b"\x89" };
    let place = [b"(", &text("storage")[..], class, &text(file), &text("cpu"), b"K\x01tQ"].concat();
    let hooks = b"ccollections\nOrderedDict\n)R";
    let (sizes, strides) = (numbers(&meta["sizes"]), numbers(&meta["strides"]));
    let tensor = [
        &b"ctorch._utils\n_rebuild_tensor_v2\n("[..],
        &place,
        offset,
        &sizes,
        &strides,
        b"\x89",
        hooks,
        b"tR",
    ];
    [&b"ctorch._utils\n_rebuild_parameter\n"[..], &tensor.concat(), requires_grad, hooks, b"\x87R"].concat()
}

/// An archive of today in the older layout.
fn older(archive: Vec<u8>) -> Entries {
    let (weights, mut others): (Entries, Entries) = entries(archive)
        .into_iter()
        .partition(|(name, _)| name.contains("/data/weights/") || name.contains("/data/constants/"));
    let root = others[0].0.split('/').next().unwrap().to_string();
    for (folder, kind) in [("weights", "weights"), ("constants", "constants")] {
        let content = |file: &str| {
            let name = format!("{root}/data/{folder}/{file}");
            weights.iter().find(|(other, _)| *other == name).map(|(_, content)| content.clone()).unwrap()
        };
        let config: Value = serde_json::from_slice(&content(&format!("model_{kind}_config.json"))).unwrap();
        let (mut saved, mut program): (Entries, _) = (vec![], b"\x80\x02}(".to_vec());
        for (name, payload) in config["config"].as_object().unwrap() {
            let file = payload["path_name"].as_str().unwrap();
            let entry = format!("archive/data/{file}");
            if saved.iter().all(|(other, _)| *other != entry) {
                saved.push((entry, content(file)));
            }
            program.extend([text(name), pickled(&payload["tensor_meta"], file)].concat());
        }
        saved.push(("archive/data.pkl".into(), [&program[..], b"u."].concat()));
        saved.push(("archive/byteorder".into(), b"little".into()));
        others.push((format!("{root}/data/{folder}/model.pt"), zipped(&saved)));
    }
    others
}

fn opened(entries: &Entries) -> kernfusion_import::Result<Imported> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pt2");
    std::fs::write(&path, zipped(entries)).unwrap();
    Imported::open(path)
}

#[test]
fn weights_of_torch_save_are_those_of_plain_files() {
    // Tied parameters, and buffers that are updated.
    for name in ["gpt2", "batch_norm"] {
        let imported = opened(&older(fixture::content(&format!("{name}.pt2")))).unwrap();
        let names = |imported: &Imported| {
            imported.states().iter().map(|state| state.name().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(&imported), names(&fixture::archive(name)));
        check(name, &Fixture { imported, tensors: fixture::tensors(name) });
    }
}

#[test]
fn random_mutations_end_in_a_program_or_one_error() {
    let whole = zipped(&older(fixture::content("linear.pt2")));
    let (read, refused) = outcomes(&whole, 1000, |whole, random| {
        let mut bytes = whole.to_vec();
        (0..random.usize(1..4)).for_each(|_| mutate(&mut bytes, random));
        bytes
    });
    assert!(read > 10 && refused > 500, "{read} read, {refused} refused");
}

#[test]
fn what_is_wrong_with_them_is_said() {
    let whole = older(fixture::content("linear.pt2"));
    let weights = |change: &dyn Fn(&mut Entries)| {
        let mut entries = whole.clone();
        let (_, content) =
            entries.iter_mut().find(|(name, _)| name.ends_with("/data/weights/model.pt")).unwrap();
        let mut saved = self::entries(content.clone());
        change(&mut saved);
        *content = zipped(&saved);
        opened(&entries).err().unwrap().to_string()
    };
    let at = |name: &'static str| {
        move |entries: &Entries| entries.iter().position(|(other, _)| other.ends_with(name)).unwrap()
    };
    let (program, order) = (at("data.pkl"), at("byteorder"));
    for (message, expected) in [
        (
            weights(&|saved| {
                let at = program(saved);
                saved.remove(at);
            }),
            "data.pkl is missing",
        ),
        (
            weights(&|saved| {
                let at = program(saved);
                saved[at].1.truncate(40);
            }),
            "its pickle is not of tensors: it ends early",
        ),
        (
            weights(&|saved| {
                let at = order(saved);
                saved[at].1 = b"big".into();
            }),
            "its numbers are not little-endian",
        ),
        (
            weights(&|saved| {
                let at = program(saved);
                saved[at].1 = b"cos\nsystem\n)R.".into();
            }),
            "it calls os.system",
        ),
        (weights(&|saved| saved.retain(|(name, _)| !name.contains("/data/"))), "specified file not found"),
    ] {
        assert!(message.contains(expected) && message.lines().count() == 1, "{message}");
    }
}
