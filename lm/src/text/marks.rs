//! The text rules of fastai (Howard, Gugger, "fastai: a layered API for deep learning", 2020), which keep a vocabulary of words
//! small: what is lost in lower case and in repetitions is said by marks.
//!
//! `"I said NO, nooooo no no no Tom"` → `"xxbos i said xxup no, n xxrep 5 o  xxwrep 3 no xxmaj tom"`
//!
//! The rules and their order are those of `fastai.text.core`, without the one that repairs HTML. Where one match has used
//! up the blank that the next one would begin with, the next one is not found, here as there.

/// A word that the vocabulary does not have.
pub const UNKNOWN: &str = "xxunk";
/// What fills up a short row.
pub const PAD: &str = "xxpad";
/// The begin of a document.
pub const BEGIN: &str = "xxbos";
/// The end of a document.
pub const END: &str = "xxeos";
/// The begin of a field of a document; its number follows.
pub const FIELD: &str = "xxfld";
/// A character that is repeated; how often and which follow.
pub const REPEATED: &str = "xxrep";
/// A word that is repeated; how often and which follow.
pub const REPEATED_WORD: &str = "xxwrep";
/// The next word was in capitals.
pub const UPPER: &str = "xxup";
/// The next word began with a capital.
pub const CAPITAL: &str = "xxmaj";

/// All marks; as tokens they have the ids from 0 on in this order.
pub const MARKS: [&str; 9] = [UNKNOWN, PAD, BEGIN, END, FIELD, REPEATED, REPEATED_WORD, UPPER, CAPITAL];

/// The least number of equal characters, or words, in a row that a mark stands for.
const FEWEST: usize = 3;

/// Applies all rules, in lower case, without [`BEGIN`].
pub fn apply_rules(text: &str) -> String {
    let text = mark_repeated_words(&mark_repeated_characters(text));
    let text = mark_case(&single_blanks(&apart(&text)), is_capitals, UPPER);
    mark_case(&text, is_capitalized, CAPITAL).to_lowercase().trim().to_string()
}

/// `"cccc"` → `" xxrep 4 c "`
fn mark_repeated_characters(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut marked = String::new();
    for run in characters.chunk_by(|a, b| a == b) {
        if run.len() >= FEWEST && !run[0].is_whitespace() {
            marked.push_str(&format!(" {REPEATED} {} {} ", run.len(), run[0]));
        } else {
            marked.extend(run);
        }
    }
    marked
}

/// `" word word word "` → `" xxwrep 3 word  "`
fn mark_repeated_words(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let (mut marked, mut at) = (String::new(), 0);
    while at < characters.len() {
        // A word is only recognised after a blank, or at the very start.
        let word_at = if characters[at].is_whitespace() { at + 1 } else { at };
        let found = if word_at > at || at == 0 { repeated_word(&characters, word_at) } else { None };
        let Some((word, times, end)) = found else {
            marked.push(characters[at]);
            at += 1;
            continue;
        };
        let word: String = word.iter().collect();
        marked.push_str(&format!(" {REPEATED_WORD} {times} {word} "));
        marked.extend(characters.get(end));
        at = end + 1;
    }
    marked
}

/// The word at `start`, how often it stands there in a row, and where the last one ends.
fn repeated_word(characters: &[char], start: usize) -> Option<(&[char], usize, usize)> {
    let is_word = |c: &&char| c.is_alphanumeric() || **c == '_';
    let word = &characters[start..start + characters[start..].iter().take_while(is_word).count()];
    let (mut times, mut end) = (1, start + word.len());
    loop {
        let blanks = characters[end..].iter().take_while(|c| c.is_whitespace()).count();
        let next = &characters[end + blanks..];
        let ends = next.get(word.len()).is_none_or(|c| !is_word(&c));
        if word.is_empty() || blanks == 0 || !next.starts_with(word) || !ends {
            break;
        }
        (times, end) = (times + 1, end + blanks + word.len());
    }
    (times >= FEWEST).then_some((word, times, end))
}

/// Blanks around `/`, `#` and `\`.
fn apart(text: &str) -> String {
    text.chars().fold(String::new(), |mut spaced, c| {
        match c {
            '/' | '#' | '\\' => spaced.extend([' ', c, ' ']),
            c => spaced.push(c),
        }
        spaced
    })
}

/// One blank in place of several.
fn single_blanks(text: &str) -> String {
    let mut single = String::with_capacity(text.len());
    for c in text.chars() {
        if c != ' ' || !single.ends_with(' ') {
            single.push(c);
        }
    }
    single
}

/// Puts words for which `is_case` holds into lower case, with `mark` before those of more than one character.
fn mark_case(text: &str, is_case: fn(&str) -> bool, mark: &str) -> String {
    let mut marked = String::with_capacity(text.len());
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end_matches(char::is_whitespace);
        if !is_case(word) {
            marked.push_str(piece);
            continue;
        }
        if word.chars().nth(1).is_some() {
            marked.push_str(mark);
            marked.push(' ');
        }
        marked.push_str(&word.to_lowercase());
        marked.push_str(&piece[word.len()..]);
    }
    marked
}

fn is_capitals(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase()) && !word.contains(|c: char| c.is_ascii_lowercase())
}

fn is_capitalized(word: &str) -> bool {
    let rest = word.strip_prefix(|c: char| c.is_ascii_uppercase());
    rest.is_some_and(|rest| !rest.contains(|c: char| c.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `fastai.text.core`'s rules make of these, run in Python.
    const JUDGED: &str = include_str!("../../../tests/fixtures/word_rules.json");

    #[test]
    fn rules_are_those_of_fastai() {
        let cases: Vec<(String, String)> = serde_json::from_str(JUDGED).unwrap();
        assert!(cases.len() > 20);
        for (text, expected) in cases {
            assert_eq!(apply_rules(&text), expected, "{text:?}");
        }
    }
}
