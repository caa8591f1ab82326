//! Changes of programs in text form, token by token and statement by statement.

use super::{NUMBERS, bytes, part};
use fastrand::Rng;

/// Changes a program.
pub(super) fn change(rng: &mut Rng, content: &mut Vec<u8>, other: &[u8]) {
    let Ok(text) = std::str::from_utf8(content) else { return bytes::change(rng, content, other) };
    let other = std::str::from_utf8(other).unwrap_or_default();
    let mut tokens = split(text);
    if tokens.is_empty() {
        tokens.push("graph");
    }
    let at = rng.usize(..tokens.len());
    let new = match rng.u32(..14) {
        0 => {
            tokens.remove(at);
            tokens.concat()
        }
        1 => {
            tokens.insert(at, tokens[at]);
            tokens.concat()
        }
        2 => {
            let to = rng.usize(..tokens.len());
            tokens.swap(at, to);
            tokens.concat()
        }
        3 => {
            let copy = tokens[part(rng, tokens.len(), 12)].to_vec();
            tokens.splice(at..at, copy);
            tokens.concat()
        }
        4 | 5 => replaced(rng, &tokens, is_number, number),
        6 => replaced(rng, &tokens, |token| token.starts_with('%'), |rng| format!("%{}", rng.u32(..12))),
        7 => replaced(
            rng,
            &tokens,
            |token| TYPES.contains(&token),
            |rng| TYPES[rng.usize(..TYPES.len())].into(),
        ),
        8 => replaced(rng, &tokens, |token| OPS.contains(&token), |rng| OPS[rng.usize(..OPS.len())].into()),
        9 => without_attribute(rng, &tokens),
        10 => {
            let piece = PIECES[rng.usize(..PIECES.len())];
            tokens.insert(at, piece);
            tokens.concat()
        }
        11 => lines(rng, text, other),
        12 => without_types(rng, text),
        _ => nested(rng, text),
    };
    *content = new.into_bytes();
}

const TYPES: [&str; 9] = ["f32", "bf16", "f16", "f64", "i32", "u32", "i8", "bool", "f8"];

const OPS: [&str; 26] = [
    "input",
    "state",
    "constant",
    "iota",
    "random_bits",
    "exp",
    "not",
    "add",
    "and",
    "shl",
    "eq",
    "select",
    "cast",
    "reduce",
    "reshape",
    "permute",
    "broadcast",
    "slice",
    "pad",
    "concat",
    "dot_general",
    "gather",
    "scatter_add",
    "dynamic_slice",
    "dynamic_update",
    "scan",
];

const PIECES: [&str; 22] = [
    "{",
    "}",
    "[",
    "]",
    "=",
    ",",
    ":",
    "\"",
    "\\",
    "%",
    "%0 ",
    "#",
    "\n",
    "graph \"g\" {",
    "output \"y\" = %0",
    "update \"x\" = %0",
    "NaN",
    "-inf",
    "1e400",
    " in \"a\\u{110000}\"",
    " at \"f\":4294967296:0",
    "é",
];

/// Words, marks, strings and blanks, which together are the text.
fn split(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || "_.+-%".contains(c);
        let length = match first {
            '"' => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            c if c.is_whitespace() => rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after;
    }
    tokens
}

fn is_number(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_digit() || c == '-')
}

fn number(rng: &mut Rng) -> String {
    match rng.u32(..6) {
        0 => NUMBERS[rng.usize(..NUMBERS.len())].to_string(),
        1 => format!("-{}", NUMBERS[rng.usize(..NUMBERS.len())]),
        2 => ["NaN", "inf", "-inf", "0.5", "1e300", "-0", "18446744073709551616", "1e-320"][rng.usize(..8)]
            .into(),
        _ => rng.u32(..9).to_string(),
    }
}

/// The text with another token in place of one of a kind.
fn replaced(
    rng: &mut Rng,
    tokens: &[&str],
    is_one: impl Fn(&str) -> bool,
    new: impl FnOnce(&mut Rng) -> String,
) -> String {
    let ones: Vec<_> = (0..tokens.len()).filter(|&at| is_one(tokens[at])).collect();
    let Some(&at) = ones.get(rng.usize(..ones.len().max(1))) else { return tokens.concat() };
    let new = new(rng);
    let mut tokens = tokens.to_vec();
    tokens[at] = &new;
    tokens.concat()
}

/// The text without one `name = value`.
fn without_attribute(rng: &mut Rng, tokens: &[&str]) -> String {
    let starts: Vec<_> = (0..tokens.len()).filter(|&at| tokens.get(at + 2) == Some(&"=")).collect();
    let Some(&start) = starts.get(rng.usize(..starts.len().max(1))) else { return tokens.concat() };
    let end = tokens[start..]
        .iter()
        .position(|token| [",", "}"].contains(token))
        .map_or(tokens.len(), |at| start + at + 1);
    [&tokens[..start], &tokens[end..]].concat().concat()
}

/// The text with a line taken away, twice, moved, or from another text.
fn lines(rng: &mut Rng, text: &str, other: &str) -> String {
    let mut lines: Vec<_> = text.split_inclusive('\n').collect();
    let theirs: Vec<_> = other.split_inclusive('\n').collect();
    let at = rng.usize(..lines.len().max(1));
    match rng.u32(..4) {
        0 if !lines.is_empty() => drop(lines.remove(at)),
        1 if !lines.is_empty() => lines.insert(at, lines[at]),
        2 if !lines.is_empty() => {
            let to = rng.usize(..lines.len());
            lines.swap(at, to);
        }
        _ if !theirs.is_empty() => lines.insert(at.min(lines.len()), theirs[rng.usize(..theirs.len())]),
        _ => {}
    }
    lines.concat()
}

/// The text with types left out, so that they are inferred.
fn without_types(rng: &mut Rng, text: &str) -> String {
    let all = rng.bool();
    let line = |line: &str| match line.rfind(" : ").filter(|_| all || rng.bool()) {
        Some(at) if !line.contains('"') => format!("{}\n", &line[..at]),
        _ => line.to_string(),
    };
    text.split_inclusive('\n').map(line).collect()
}

/// The text as the body of loops inside of each other.
fn nested(rng: &mut Rng, text: &str) -> String {
    let depth = match rng.u32(..6) {
        0 => 1 << rng.u32(..15),
        _ => rng.usize(1..5),
    };
    let begin =
        "graph \"b\" {%0 = scan {length = 1, carried = 0, sliced = 0, order = forward, result = 0, body = ";
    [&begin.repeat(depth), text, &"} output \"y\" = %0 }".repeat(depth)].concat()
}
