//! Words as tokens.
//!
//! [`apply_rules`] says what is lost in lower case by marks; then a token is a word (letters, digits and apostrophes inside of
//! it), a line break, or any other character that is no blank. Ids: the marks first, then the words from the most frequent
//! one down. A word outside the vocabulary is [`UNKNOWN`].

use super::TextError;
use super::marks::{
    BEGIN, CAPITAL, END, FIELD, MARKS, PAD, REPEATED, REPEATED_WORD, UNKNOWN, UPPER, apply_rules,
};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A tokenizer whose tokens are words. In JSON it is the list of them, marks first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct WordTokenizer {
    words: Vec<String>,
    ids: HashMap<String, i32>,
}

impl WordTokenizer {
    /// A tokenizer with the most frequent words of a text, `size` entries in all with the nine marks. Among equally frequent
    /// words the first to occur comes first. A text with fewer words gives a smaller vocabulary.
    ///
    /// # Errors
    /// [`TextError::SmallVocabulary`] if `size` leaves no place for a word.
    pub fn from_text(text: &str, size: usize) -> Result<Self, TextError> {
        if size <= MARKS.len() {
            return Err(TextError::SmallVocabulary { asked: size, least: MARKS.len() + 1 });
        }
        let ruled = apply_rules(text);
        let mut counts: HashMap<&str, (usize, usize)> = HashMap::new();
        for (place, word) in split(&ruled).enumerate() {
            counts.entry(word).or_insert((0, place)).0 += 1;
        }
        counts.retain(|word, _| !MARKS.contains(word));
        let mut ranked: Vec<_> = counts.into_iter().collect();
        ranked.sort_unstable_by_key(|(_, (count, first))| (std::cmp::Reverse(*count), *first));
        let words = ranked.into_iter().map(|(word, _)| word).take(size - MARKS.len());
        Self::try_from(MARKS.into_iter().chain(words).map(String::from).collect::<Vec<_>>())
    }

    /// Number of different tokens; ids are `0..vocabulary_size()`.
    pub fn vocabulary_size(&self) -> usize {
        self.words.len()
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str) -> Vec<i32> {
        split(&apply_rules(text)).map(|word| self.id(word)).collect()
    }

    /// The ids of a document: [`BEGIN`], its text, [`END`].
    pub fn encode_document(&self, text: &str) -> Vec<i32> {
        [vec![self.id(BEGIN)], self.encode(text), vec![self.id(END)]].concat()
    }

    /// The ids of a document of several fields, each with [`FIELD`] and its number, from 1, before it.
    pub fn encode_fields(&self, fields: &[&str]) -> Vec<i32> {
        let mut ids = vec![self.id(BEGIN)];
        for (number, field) in fields.iter().enumerate() {
            ids.extend([self.id(FIELD), self.id(&(number + 1).to_string())]);
            ids.extend(self.encode(field));
        }
        ids.push(self.id(END));
        ids
    }

    /// The id of a token as it is stored, a mark for one.
    pub fn id(&self, word: &str) -> i32 {
        self.ids.get(word).copied().unwrap_or(self.ids[UNKNOWN])
    }

    /// The text of some ids: capitals and repetitions as the marks say, blanks where they usually stand.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`] for the first id outside the vocabulary.
    pub fn decode(&self, tokens: &[i32]) -> Result<String, TextError> {
        let mut words = tokens.iter().enumerate().map(|(position, &token)| self.word(token, position));
        let (mut text, mut case) = (String::new(), "");
        while let Some(word) = words.next() {
            match word? {
                PAD | BEGIN | END => {}
                FIELD => {
                    words.next().transpose()?;
                }
                mark @ (UPPER | CAPITAL) => case = mark,
                mark @ (REPEATED | REPEATED_WORD) => {
                    let (Some(times), Some(word)) = (words.next().transpose()?, words.next().transpose()?)
                    else {
                        break;
                    };
                    let blank = if mark == REPEATED { "" } else { " " };
                    append(&mut text, &repeated(times, word, blank));
                }
                word => append(&mut text, &in_case(word, std::mem::take(&mut case))),
            }
        }
        Ok(text)
    }

    fn word(&self, token: i32, position: usize) -> Result<&str, TextError> {
        let word = usize::try_from(token).ok().and_then(|index| self.words.get(index));
        let vocabulary_size = self.vocabulary_size();
        word.map(String::as_str).ok_or(TextError::UnknownToken { token, position, vocabulary_size })
    }
}

impl From<WordTokenizer> for Vec<String> {
    fn from(tokenizer: WordTokenizer) -> Self {
        tokenizer.words
    }
}

impl TryFrom<Vec<String>> for WordTokenizer {
    type Error = TextError;

    fn try_from(words: Vec<String>) -> Result<Self, TextError> {
        if !words.iter().take(MARKS.len()).eq(MARKS.iter()) {
            return Err(TextError::Words { reason: "it does not begin with the marks".into() });
        }
        let mut ids = HashMap::with_capacity(words.len());
        for (id, word) in words.iter().enumerate() {
            if ids.insert(word.clone(), id as i32).is_some() {
                return Err(TextError::Words { reason: format!("it has {word:?} twice") });
            }
        }
        Ok(Self { words, ids })
    }
}

/// The tokens of a text to which the rules were applied.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() && c != '\n');
        let length = word_length(rest).or_else(|| rest.chars().next().map(char::len_utf8))?;
        let (token, after) = rest.split_at(length);
        rest = after;
        Some(token)
    })
}

/// Bytes of the word that a text begins with. An apostrophe belongs to it if a letter or digit follows.
fn word_length(text: &str) -> Option<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut characters = text.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        let inner =
            at > 0 && (c == '\'' || c == '’') && characters.peek().is_some_and(|next| is_word(next.1));
        if !is_word(c) && !inner {
            return (at > 0).then_some(at);
        }
    }
    (!text.is_empty()).then_some(text.len())
}

/// What a count and a word stand for; a count that a model has made up may be anything.
fn repeated(times: &str, word: &str, blank: &str) -> String {
    const MOST: usize = 100;
    match times.parse::<usize>() {
        Ok(times) => vec![word; times.min(MOST)].join(blank),
        Err(_) => format!("{times} {word}"),
    }
}

fn in_case(word: &str, mark: &str) -> String {
    let mut characters = word.chars();
    match (mark, characters.next()) {
        (UPPER, _) => word.to_uppercase(),
        (CAPITAL, Some(first)) => first.to_uppercase().chain(characters).collect(),
        _ => word.into(),
    }
}

/// Appends a token, after a blank unless it closes something or follows what opens something.
fn append(text: &mut String, token: &str) {
    const CLOSING: &str = ".,;:!?)]}%\n";
    let closes = token.chars().next().is_none_or(|c| CLOSING.contains(c));
    let opened = text.chars().last().is_none_or(|c| "([{\n".contains(c));
    if !closes && !opened {
        text.push(' ');
    }
    text.push_str(token);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "The cat saw the DOG; the dog didn't see the cat.\nNooooo no no no, said Tom (once).";

    fn tokenizer() -> WordTokenizer {
        WordTokenizer::from_text(TEXT, 100).unwrap()
    }

    #[test]
    fn the_most_frequent_words_come_first_and_the_rest_is_unknown() {
        let words = Vec::from(WordTokenizer::from_text("b a a c b a d", 12).unwrap());
        assert_eq!(words[..9], MARKS);
        assert_eq!(words[9..], ["a", "b", "c"]);
        let tokenizer = WordTokenizer::from_text("b a a c b a d", 12).unwrap();
        assert_eq!(tokenizer.encode("a d b e"), [9, 0, 10, 0]);
        assert_eq!(tokenizer.decode(&[9, 0, 10]).unwrap(), "a xxunk b");
        let error = WordTokenizer::from_text("a", 9).unwrap_err().to_string();
        assert_eq!(error, "a vocabulary of 9 is too small: this tokenizer needs 10 at least");
    }

    #[test]
    fn documents_and_fields_are_marked() {
        let tokenizer = WordTokenizer::from_text("one two 1 2", 100).unwrap();
        let id = |word| tokenizer.id(word);
        assert_eq!(tokenizer.encode_document("One"), [id(BEGIN), id(CAPITAL), id("one"), id(END)]);
        let expected = [BEGIN, FIELD, "1", "one", FIELD, "2", "two", END].map(id);
        assert_eq!(tokenizer.encode_fields(&["one", "two"]), expected);
        assert_eq!(tokenizer.decode(&expected).unwrap(), "one two");
    }

    #[test]
    fn a_text_keeps_its_capitals_and_repetitions() {
        let tokenizer = tokenizer();
        let text = tokenizer.decode(&tokenizer.encode(TEXT)).unwrap();
        assert_eq!(
            text,
            "The cat saw the DOG; the dog didn't see the cat.\nn ooooo no no no, said Tom (once)."
        );
    }

    #[test]
    fn what_a_model_makes_up_is_shown_somehow() {
        let tokenizer = tokenizer();
        let show = |words: &[&str]| {
            tokenizer.decode(&words.iter().map(|word| tokenizer.id(word)).collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(show(&[REPEATED, "cat", "dog"]), "cat dog");
        assert_eq!(show(&["cat", REPEATED, "5"]), "cat");
        assert_eq!(show(&[CAPITAL, UPPER]), "");
        let error = tokenizer.decode(&[0, -1]).unwrap_err().to_string();
        assert!(error.starts_with("unknown token -1 at position 1"), "{error}");
    }

    #[test]
    fn damaged_lists_are_refused() {
        let error = WordTokenizer::try_from(vec!["a".to_string()]).unwrap_err().to_string();
        assert_eq!(error, "the stored list of words is damaged: it does not begin with the marks");
        let words = MARKS.iter().chain(&["a", "a"]).map(|word| word.to_string());
        let error = WordTokenizer::try_from(words.collect::<Vec<_>>()).unwrap_err().to_string();
        assert!(error.ends_with("it has \"a\" twice"), "{error}");
    }

    proptest! {
        /// What was decoded is encoded as it was.
        #[test]
        fn decoded_texts_have_the_tokens_they_came_from(
            words in prop::collection::vec(prop::sample::select(&["cat", "The", "DOG", "dog,", "didn't", "no\n", "Tom", "(once)"][..]), 0..12)
        ) {
            let tokenizer = tokenizer();
            // Repetitions have numbers, which are words that this vocabulary does not have.
            let mut words = words;
            words.dedup();
            let tokens = tokenizer.encode(&words.join(" "));
            prop_assert_eq!(tokenizer.encode(&tokenizer.decode(&tokens).unwrap()), tokens);
        }

        /// No text makes encoding or decoding fail.
        #[test]
        fn any_text_is_encoded(text in any::<String>()) {
            let tokenizer = tokenizer();
            tokenizer.decode(&tokenizer.encode(&text)).unwrap();
        }
    }
}
