//! Changes of JSON: values of other types, numbers out of range, fields too many, too few and twice, and depth.

use super::{NUMBERS, bytes};
use fastrand::Rng;
use serde_json::{Map, Value, json};

/// Changes a document; its bytes, if it is none.
pub(super) fn change(rng: &mut Rng, content: &mut Vec<u8>) {
    let Ok(mut document) = serde_json::from_slice::<Value>(content) else {
        return bytes::change(rng, content, &[]);
    };
    if rng.u32(..6) > 0 {
        change_value(rng, &mut document);
        *content = document.to_string().into_bytes();
        return;
    }
    // What no value can say.
    let text = document.to_string();
    let places: Vec<_> = text.match_indices([':', ',', '[', '{']).map(|(at, _)| at + 1).collect();
    let Some(&at) = places.get(rng.usize(..places.len().max(1))) else { return };
    let piece = match rng.u32(..5) {
        0 => "[".repeat(1 << rng.u32(..18)),
        1 => "{\"a\":".repeat(1 << rng.u32(..16)),
        2 => ["NaN", "Infinity", "-0", "1e999", "1e-999", "01", "+1", "0x10", "'a'"][rng.usize(..9)].into(),
        3 => twice(rng, &document),
        _ => "9".repeat(1 << rng.u32(..12)),
    };
    *content = [&text[..at], &piece, &text[at..]].concat().into_bytes();
}

/// A field that the document has already.
fn twice(rng: &mut Rng, document: &Value) -> String {
    let fields: Vec<_> = document.as_object().into_iter().flatten().collect();
    match fields.get(rng.usize(..fields.len().max(1))) {
        Some((name, value)) => format!("{}:{value},", json!(name)),
        None => "\"a\":1,\"a\":2,".into(),
    }
}

/// Changes a line or two of a file with a document in each.
pub(super) fn change_line(rng: &mut Rng, content: &mut Vec<u8>, other: &[u8]) {
    let mut lines: Vec<Vec<u8>> = content.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    let at = rng.usize(..lines.len());
    match rng.u32(..8) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(at, lines[at].clone()),
        2 => {
            let to = rng.usize(..lines.len());
            lines.swap(at, to);
        }
        3 => {
            let theirs: Vec<_> = other.split(|&byte| byte == b'\n').collect();
            lines.insert(at, theirs[rng.usize(..theirs.len())].to_vec());
        }
        _ => change(rng, &mut lines[at]),
    }
    *content = lines.join(&b'\n');
}

/// Changes one value somewhere in this one.
pub(super) fn change_value(rng: &mut Rng, value: &mut Value) {
    // The deeper a value lies, the more there are; each level is as likely to be left.
    match value {
        Value::Object(fields) if !fields.is_empty() && rng.u32(..5) > 0 => {
            let name = fields.keys().nth(rng.usize(..fields.len())).expect("a field of this number").clone();
            match rng.u32(..12) {
                0 => drop(fields.remove(&name)),
                1 => rename(rng, fields, &name),
                2 => drop(fields.insert(any_name(rng), any_value(rng))),
                3 => swap(rng, fields, &name),
                _ => change_value(rng, &mut fields[&name]),
            }
        }
        Value::Array(values) if !values.is_empty() && rng.u32(..5) > 0 => {
            let at = rng.usize(..values.len());
            match rng.u32(..8) {
                0 => drop(values.remove(at)),
                1 => values.insert(at, values[at].clone()),
                2 => values.insert(at, any_value(rng)),
                3 => {
                    let to = rng.usize(..values.len());
                    values.swap(at, to);
                }
                _ => change_value(rng, &mut values[at]),
            }
        }
        Value::Number(_) if rng.u32(..4) > 0 => *value = any_number(rng),
        Value::String(text) if rng.bool() => {
            let mut content = std::mem::take(text).into_bytes();
            bytes::change(rng, &mut content, b"");
            *text = String::from_utf8_lossy(&content).into_owned();
        }
        Value::Bool(flag) if rng.bool() => *flag = !*flag,
        other => *other = any_value(rng),
    }
}

fn rename(rng: &mut Rng, fields: &mut Map<String, Value>, name: &str) {
    let value = fields.remove(name).unwrap_or_default();
    let to = if rng.bool() { any_name(rng) } else { format!("{name}s") };
    fields.insert(to, value);
}

/// Two fields take each other's values.
fn swap(rng: &mut Rng, fields: &mut Map<String, Value>, name: &str) {
    let other = fields.keys().nth(rng.usize(..fields.len())).expect("a field of this number").clone();
    let value = fields[name].clone();
    let theirs = std::mem::replace(&mut fields[&other], value);
    fields[name] = theirs;
}

fn any_name(rng: &mut Rng) -> String {
    ["", "a", "model", "layers", "__metadata__", "type", "dtype", "\u{0}", "blocks.0.attn.qkv.weight"]
        [rng.usize(..9)]
    .into()
}

fn any_number(rng: &mut Rng) -> Value {
    match rng.u32(..4) {
        0 => json!(NUMBERS[rng.usize(..NUMBERS.len())]),
        1 => json!(-(NUMBERS[rng.usize(..NUMBERS.len())] as i64)),
        2 => json!([0.5, -0.0, 1e-300, 1e300, -1e300, 1e-8, 0.999_999_9, 1e19][rng.usize(..8)]),
        _ => json!(rng.u32(..300)),
    }
}

fn any_value(rng: &mut Rng) -> Value {
    match rng.u32(..9) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 => json!(""),
        3 => json!("x".repeat(1 << rng.u32(..10))),
        4 => json!([]),
        5 => json!({}),
        6 => (0..rng.u32(..100)).fold(json!(1), |inner, _| json!([inner])),
        7 => json!({"a": [1, "b", null]}),
        _ => any_number(rng),
    }
}
