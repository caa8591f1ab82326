//! Characters as tokens.
//!
//! The vocabulary is the sorted set of characters of the text that was trained on; a character's id is its index
//! in it. The vocabulary is strictly ascending always, also after reading it back from a checkpoint.
//!
//! `"banana"` → vocabulary `abn` → ids `[1, 0, 2, 0, 2, 0]`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::TextError;

/// A tokenizer whose tokens are single characters. In JSON it is a string of them, checked when it is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CharTokenizer {
    characters: Vec<char>,
}

impl CharTokenizer {
    /// A tokenizer that knows exactly the characters of `text`.
    pub fn from_text(text: &str) -> Self {
        let characters: BTreeSet<char> = text.chars().collect();
        Self { characters: characters.into_iter().collect() }
    }

    /// Number of different tokens; ids are `0..vocabulary_size()`.
    pub fn vocabulary_size(&self) -> usize {
        self.characters.len()
    }

    /// The ids of a text, one per character.
    ///
    /// # Errors
    /// [`TextError::UnknownCharacter`] for the first character that the vocabulary does not have.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, TextError> {
        text.chars().enumerate().map(|(position, character)| self.id(character, position)).collect()
    }

    /// The text of some ids, one character each.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`] for the first id outside the vocabulary.
    pub fn decode(&self, tokens: &[i32]) -> Result<String, TextError> {
        tokens.iter().enumerate().map(|(position, &token)| self.character(token, position)).collect()
    }

    fn id(&self, character: char, position: usize) -> Result<i32, TextError> {
        // There are fewer than 2^21 characters in Unicode, so an index always fits into i32.
        self.characters.binary_search(&character).map(|index| index as i32).map_err(|_| {
            TextError::UnknownCharacter { character, position, vocabulary_size: self.vocabulary_size() }
        })
    }

    fn character(&self, token: i32, position: usize) -> Result<char, TextError> {
        let index = usize::try_from(token).ok();
        index.and_then(|index| self.characters.get(index)).copied().ok_or(TextError::UnknownToken {
            token,
            position,
            vocabulary_size: self.vocabulary_size(),
        })
    }
}

impl From<CharTokenizer> for String {
    fn from(tokenizer: CharTokenizer) -> Self {
        tokenizer.characters.into_iter().collect()
    }
}

impl TryFrom<String> for CharTokenizer {
    type Error = TextError;

    fn try_from(stored: String) -> Result<Self, TextError> {
        let characters: Vec<char> = stored.chars().collect();
        // `encode` searches by halving, which is wrong on anything but a strictly ascending list.
        match characters.windows(2).position(|pair| pair[0] >= pair[1]) {
            Some(before) => {
                Err(TextError::Vocabulary { character: characters[before + 1], position: before + 1 })
            }
            None => Ok(Self { characters }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_the_order_of_characters() {
        let tokenizer = CharTokenizer::from_text("banana");
        assert_eq!(tokenizer.vocabulary_size(), 3);
        assert_eq!(tokenizer.encode("banana").unwrap(), [1, 0, 2, 0, 2, 0]);
        assert_eq!(tokenizer.decode(&[2, 0, 1]).unwrap(), "nab");
    }

    #[test]
    fn every_text_survives_the_round_trip() {
        let text = "Grüße, 世界! \n\tA line, and \u{1F600}.";
        let tokenizer = CharTokenizer::from_text(text);
        let tokens = tokenizer.encode(text).unwrap();
        assert_eq!(tokens.len(), text.chars().count());
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    }

    #[test]
    fn unknown_character_is_named_with_its_position_in_characters() {
        let error = CharTokenizer::from_text("aé ").encode("éa xa").unwrap_err().to_string();
        assert!(error.contains("'x' at position 3"), "{error}");
        assert!(error.contains("3 characters"), "{error}");
    }

    #[test]
    fn unknown_tokens_are_refused_on_both_sides() {
        let tokenizer = CharTokenizer::from_text("abc");
        let error = tokenizer.decode(&[0, 3]).unwrap_err().to_string();
        assert_eq!(error, "unknown token 3 at position 1: ids run from 0 to 2");
        let error = tokenizer.decode(&[-1]).unwrap_err().to_string();
        assert!(error.contains("unknown token -1 at position 0"), "{error}");
    }

    #[test]
    fn json_round_trip_and_a_damaged_vocabulary() {
        let tokenizer = CharTokenizer::from_text("to be, or\nnot \"to\" be");
        let json = serde_json::to_string(&tokenizer).unwrap();
        assert_eq!(serde_json::from_str::<CharTokenizer>(&json).unwrap(), tokenizer);
        for damaged in [r#""acb""#, r#""abb""#] {
            let error = serde_json::from_str::<CharTokenizer>(damaged).unwrap_err().to_string();
            assert!(error.contains("not sorted and unique at character 'b' (position 2)"), "{error}");
        }
    }
}
