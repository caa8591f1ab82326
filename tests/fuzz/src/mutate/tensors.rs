//! Changes of safetensors files: a header that lies about itself or about the numbers behind it.

use super::{NUMBERS, bytes, json};
use fastrand::Rng;
use serde_json::{Value, json};

/// The dtypes of the format, and others.
const DTYPES: [&str; 12] = ["F32", "BF16", "F16", "F64", "I32", "U32", "I8", "BOOL", "I64", "F4", "f32", ""];

/// Changes the header, its length or the numbers.
pub(super) fn change(rng: &mut Rng, content: &mut Vec<u8>) {
    let Some((mut header, numbers)) = split(content) else { return bytes::change(rng, content, &[]) };
    let mut numbers = numbers.to_vec();
    match rng.u32(..10) {
        0 => drop(numbers.drain(numbers.len() - rng.usize(..=numbers.len().min(64))..)),
        1 => numbers.extend([0; 64].iter().take(rng.usize(..64))),
        2 => json::change_value(rng, &mut header),
        3 => entry(rng, &mut header),
        _ => tensor(rng, &mut header),
    }
    let text = header.to_string();
    let length = match rng.u32(..12) {
        0 => NUMBERS[rng.usize(..NUMBERS.len())],
        1 => (text.len() as u64).wrapping_add_signed(rng.i64(-9..9)),
        _ => text.len() as u64,
    };
    *content = [&length.to_le_bytes()[..], text.as_bytes(), &numbers].concat();
}

/// The header of a whole file, and what follows it.
fn split(content: &[u8]) -> Option<(Value, &[u8])> {
    let (length, rest) = content.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let header = serde_json::from_slice(rest.get(..length)?).ok()?;
    Some((header, &rest[length..]))
}

/// The name of a tensor.
fn name(rng: &mut Rng, header: &Value) -> Option<String> {
    let names: Vec<_> = header.as_object()?.keys().filter(|name| *name != "__metadata__").collect();
    names.get(rng.usize(..names.len().max(1))).map(|name| (*name).clone())
}

/// Changes what the header says of one tensor.
fn tensor(rng: &mut Rng, header: &mut Value) {
    let Some(name) = name(rng, header) else { return };
    let other = self::name(rng, header).map(|name| header[name].clone()).unwrap_or_default();
    let tensor = &mut header[&name];
    let number = json!(NUMBERS[rng.usize(..NUMBERS.len())]);
    if !tensor.is_object() {
        return json::change_value(rng, tensor);
    }
    match rng.u32(..9) {
        0 => tensor["dtype"] = json!(DTYPES[rng.usize(..DTYPES.len())]),
        1 => {
            tensor["shape"] =
                (0..rng.usize(..5)).map(|_| json!(NUMBERS[rng.usize(..NUMBERS.len())])).collect()
        }
        2 => tensor["shape"] = vec![1; 1 << rng.u32(..12)].into(),
        3 => tensor["data_offsets"] = other["data_offsets"].clone(),
        4 => tensor["shape"] = other["shape"].clone(),
        5 => tensor["data_offsets"] = json!([number, tensor["data_offsets"][1].clone()]),
        6 => tensor["data_offsets"] = json!([tensor["data_offsets"][0].clone(), number]),
        7 => {
            tensor["data_offsets"] =
                json!([tensor["data_offsets"][1].clone(), tensor["data_offsets"][0].clone()])
        }
        _ => json::change_value(rng, tensor),
    }
}

/// Takes away, adds or renames a tensor, or changes the metadata.
fn entry(rng: &mut Rng, header: &mut Value) {
    let (Some(name), Some(fields)) = (name(rng, header), header.as_object_mut()) else { return };
    match rng.u32(..5) {
        0 => drop(fields.remove(&name)),
        1 => {
            let tensor = fields.remove(&name).unwrap_or_default();
            fields.insert(["", "w", "\u{0}", "../x"][rng.usize(..4)].into(), tensor);
        }
        2 => {
            let copy = fields[&name].clone();
            fields.insert(format!("{name}.copy"), copy);
        }
        3 => {
            let empty = json!({"dtype": "F32", "shape": [0, 1u64 << 62, 8], "data_offsets": [0, 0]});
            fields.insert("empty".into(), empty);
        }
        _ => metadata(rng, fields.entry("__metadata__").or_insert_with(|| json!({}))),
    }
}

/// Entries of the metadata are documents in strings.
fn metadata(rng: &mut Rng, metadata: &mut Value) {
    let Some(entries) = metadata.as_object_mut().filter(|entries| !entries.is_empty()) else { return };
    let at = rng.usize(..entries.len());
    let Some((_, Value::String(text))) = entries.iter_mut().nth(at) else { return };
    let mut content = std::mem::take(text).into_bytes();
    json::change(rng, &mut content);
    *text = String::from_utf8_lossy(&content).into_owned();
}
