//! Values of states stay in the file until they are read, which says then what is wrong with them.

use crate::saved::{Entries, entries, zipped};
use crate::{corrupt, fixture};
use kernfusion::HostTensor;
use kernfusion::tensor_file::Writable;
use kernfusion_import::{Imported, Result, State};
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;

const WEIGHT: &str = "linear/data/weights/weight_0";
const BIAS: &str = "linear/data/weights/weight_1";

/// The archive of a linear layer with something else about it, and its place.
fn changed(change: impl FnOnce(&mut Entries)) -> (TempDir, PathBuf) {
    let mut entries = entries(fixture::content("linear.pt2"));
    change(&mut entries);
    at_place(&zipped(&entries))
}

fn at_place(bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pt2");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn content<'e>(entries: &'e mut Entries, name: &str) -> &'e mut Vec<u8> {
    &mut entries.iter_mut().find(|(other, _)| other == name).unwrap().1
}

/// What the archive says of a tensor is changed.
fn describe(entries: &mut Entries, tensor: &str, fields: &Value) {
    let content = content(entries, "linear/data/weights/model_weights_config.json");
    let mut config: Value = serde_json::from_slice(content).unwrap();
    let described = &mut config["config"][tensor];
    for (field, value) in fields.as_object().unwrap() {
        let place = if field == "path_name" { &mut *described } else { &mut described["tensor_meta"] };
        place[field] = value.clone();
    }
    *content = serde_json::to_vec(&config).unwrap();
}

fn state<'i>(imported: &'i Imported, name: &str) -> &'i State {
    imported.states().iter().find(|state| state.name() == name).unwrap()
}

/// A value that is read, and that has these bytes when it is written.
fn read(state: &State) -> Result<HostTensor> {
    let mut written = vec![];
    let is_written = state.write_to(&mut written);
    let value = state.read();
    match &value {
        Ok(value) => {
            is_written.unwrap();
            assert_eq!((value.ty(), value.bytes()), (state.ty().clone(), &written[..]));
        }
        Err(error) => assert_eq!(is_written.unwrap_err().to_string(), error.to_string()),
    }
    value
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn a_value_is_read_wherever_its_elements_lie() {
    let numbers: Vec<f32> = (0..15).map(|x| x as f32).collect();
    // The weight is transposed, and the bias lies in the same file.
    let (_folder, path) = changed(|entries| {
        *content(entries, WEIGHT) = bytes(&numbers);
        describe(entries, "up.weight", &json!({"strides": [{"as_int": 1}, {"as_int": 5}]}));
        let offset = json!({"as_int": 4});
        let bias = json!({"path_name": "weight_0", "storage_offset": offset, "strides": [{"as_int": 2}]});
        describe(entries, "up.bias", &bias);
    });
    let imported = Imported::open(path).unwrap();
    let weight: Vec<_> = (0..5).flat_map(|i| [i as f32, (i + 5) as f32, (i + 10) as f32]).collect();
    for _ in 0..2 {
        assert_eq!(read(state(&imported, "up.weight")).unwrap(), HostTensor::new([5, 3], weight.clone()));
        let bias = HostTensor::new([5], [4.0f32, 6.0, 8.0, 10.0, 12.0]);
        assert_eq!(read(state(&imported, "up.bias")).unwrap(), bias);
    }
    // Of another type, which parameters do not keep; one number for all; and no numbers.
    let (_folder, path) = changed(|entries| {
        *content(entries, BIAS) = [0x80, 0x3f, 0, 0x40].repeat(3);
        let strides = json!({"dtype": 13, "strides": [{"as_int": 0}], "storage_offset": {"as_int": 1}});
        describe(entries, "up.bias", &strides);
        describe(entries, "up.weight", &json!({"sizes": [{"as_int": 0}, {"as_int": 3}]}));
    });
    let imported = Imported::open(path).unwrap();
    assert_eq!(read(state(&imported, "up.bias")).unwrap(), HostTensor::new([5], [2.0f32; 5]));
    assert_eq!(read(state(&imported, "up.weight")).unwrap().shape(), [0, 3]);
}

#[test]
fn what_is_wrong_with_a_value_is_said_when_it_is_read() {
    let whole = fixture::content("linear.pt2");
    let refused = |imported: &Imported, name: &str, expected: &str| {
        let message = read(state(imported, name)).unwrap_err().to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    };
    let mut damaged = whole.clone();
    let at = corrupt::content_of(&whole, WEIGHT);
    damaged[at.end - 1] ^= 1;
    let (_folder, path) = at_place(&damaged);
    let imported = Imported::open(path).unwrap();
    refused(&imported, "up.weight", "model.pt2: tensor \"up.weight\" (data/weights/weight_0): its checksum");
    read(state(&imported, "up.bias")).unwrap();

    let (_folder, path) = changed(|entries| {
        *content(entries, BIAS) =
            [1i64, 2, 3, 5_000_000_000, -1].into_iter().flat_map(i64::to_le_bytes).collect();
        describe(entries, "up.bias", &json!({"dtype": 5}));
    });
    refused(&Imported::open(path).unwrap(), "up.bias", "(data/weights/weight_1): 5000000000 is no i32");

    // The file is cut off while it is open.
    let (_folder, path) = at_place(&whole);
    let imported = Imported::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(at.start as u64 + 4).unwrap();
    refused(&imported, "up.weight", "it cannot be read whole");
}

/// A file that has another name by then, or none, is read all the same.
#[test]
fn the_file_stays_open() {
    let archive = fixture::archive("linear");
    let onnx = fixture::onnx(&fixture::folder(), "linear").unwrap();
    for state in archive.states() {
        assert_eq!(read(state).unwrap(), read(self::state(&onnx, state.name())).unwrap());
    }
}
