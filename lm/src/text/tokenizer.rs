//! Any tokenizer: what a model reads and writes, as a run's settings ask for it and its checkpoint keeps it.

use super::{CharTokenizer, PieceTokenizer, TextError, WordTokenizer};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A tokenizer of any kind. In JSON it is an object with one field, named by the kind: `{"characters": "abn"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tokenizer {
    /// Single characters.
    Characters(CharTokenizer),
    /// Words.
    Words(WordTokenizer),
    /// Pieces of words.
    Pieces(PieceTokenizer),
    /// Pieces of words, with the marks around a text that the tokenizer's own rules put there, as published models expect them:
    /// `[CLS] a text [SEP]`.
    Marked(PieceTokenizer),
}

/// Tokenizers that are learnt from the text that is trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenizerKind {
    /// All characters of the text.
    Char,
    /// The most frequent words: [`WordTokenizer::from_text`].
    Word,
    /// Byte-pair encoding over bytes: [`PieceTokenizer::train_bytes`].
    Bpe,
    /// Byte-pair encoding over words in lower case: [`PieceTokenizer::train_words`].
    BpeWords,
    /// WordPiece: [`PieceTokenizer::train_word_pieces`].
    WordPiece,
}

impl Tokenizer {
    /// Learns a tokenizer from a text, with `size` entries at most; characters are always all.
    ///
    /// # Errors
    /// [`TextError::SmallVocabulary`] if `size` is too small for the kind.
    pub fn train(kind: TokenizerKind, text: &str, size: usize) -> Result<Self, TextError> {
        Ok(match kind {
            TokenizerKind::Char => Tokenizer::Characters(CharTokenizer::from_text(text)),
            TokenizerKind::Word => Tokenizer::Words(WordTokenizer::from_text(text, size)?),
            TokenizerKind::Bpe => Tokenizer::Pieces(PieceTokenizer::train_bytes(text, size)?),
            TokenizerKind::BpeWords => Tokenizer::Pieces(PieceTokenizer::train_words(text, size)?),
            TokenizerKind::WordPiece => Tokenizer::Pieces(PieceTokenizer::train_word_pieces(text, size)?),
        })
    }

    /// Reads a tokenizer: a `tokenizer.json`, BERT's `vocab.txt`, or a directory with a `tokenizer.json` or with GPT-2's
    /// `vocab.json` and `merges.txt`.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] if there is none, or it cannot be understood.
    pub fn read(path: &Path) -> Result<Self, TextError> {
        let whole = path.join("tokenizer.json");
        let [vocabulary, merges] = ["vocab.json", "merges.txt"].map(|name| path.join(name));
        Ok(Tokenizer::Pieces(match path.is_dir() {
            true if whole.exists() => PieceTokenizer::read(&whole)?,
            true if vocabulary.exists() && merges.exists() => PieceTokenizer::gpt2(&vocabulary, &merges)?,
            true => {
                let reason = "the directory has no tokenizer.json, and not both vocab.json and merges.txt";
                return Err(TextError::Tokenizer { name: path.display().to_string(), reason: reason.into() });
            }
            false if path.extension().is_some_and(|extension| extension == "txt") => {
                PieceTokenizer::bert(path)?
            }
            false => PieceTokenizer::read(path)?,
        }))
    }

    /// Reads the `tokenizer.json` of a published model, whose texts stand between its marks.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] if it cannot be read or understood.
    pub fn read_marked(path: &Path) -> Result<Self, TextError> {
        PieceTokenizer::read(path).map(Tokenizer::Marked)
    }

    /// The id of a token as it is stored; none if there is no such piece, or tokens are no pieces.
    pub fn id(&self, token: &str) -> Option<i32> {
        match self {
            Tokenizer::Characters(_) | Tokenizer::Words(_) => None,
            Tokenizer::Pieces(tokenizer) | Tokenizer::Marked(tokenizer) => tokenizer.id(token),
        }
    }

    /// A token as it is stored; none if tokens are no pieces, or there is no such id.
    pub fn token(&self, id: i32) -> Option<String> {
        match self {
            Tokenizer::Characters(_) | Tokenizer::Words(_) => None,
            Tokenizer::Pieces(tokenizer) | Tokenizer::Marked(tokenizer) => tokenizer.token(id),
        }
    }

    /// Number of different tokens; ids are `0..vocabulary_size()`.
    pub fn vocabulary_size(&self) -> usize {
        match self {
            Tokenizer::Characters(tokenizer) => tokenizer.vocabulary_size(),
            Tokenizer::Words(tokenizer) => tokenizer.vocabulary_size(),
            Tokenizer::Pieces(tokenizer) | Tokenizer::Marked(tokenizer) => tokenizer.vocabulary_size(),
        }
    }

    /// What its tokens are called.
    pub fn unit(&self) -> &'static str {
        match self {
            Tokenizer::Characters(_) => "characters",
            Tokenizer::Words(_) => "words",
            Tokenizer::Pieces(_) | Tokenizer::Marked(_) => "pieces",
        }
    }

    /// The ids of a text.
    ///
    /// # Errors
    /// [`TextError::UnknownCharacter`] for the first character that a vocabulary of characters does not have.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, TextError> {
        match self {
            Tokenizer::Characters(tokenizer) => tokenizer.encode(text),
            Tokenizer::Words(tokenizer) => Ok(tokenizer.encode(text)),
            Tokenizer::Pieces(tokenizer) => tokenizer.encode(text),
            Tokenizer::Marked(tokenizer) => tokenizer.encode_marked(text, None).map(|[tokens, _]| tokens),
        }
    }

    /// The ids of a text to which no marks are added, since a chat template has written them.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_unmarked(&self, text: &str) -> Result<Vec<i32>, TextError> {
        match self {
            Tokenizer::Marked(tokenizer) => tokenizer.encode(text),
            other => other.encode(text),
        }
    }

    /// The text of some ids, without the marks that a tokenizer puts around a text.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`] for the first id outside the vocabulary.
    pub fn decode(&self, tokens: &[i32]) -> Result<String, TextError> {
        match self {
            Tokenizer::Characters(tokenizer) => tokenizer.decode(tokens),
            Tokenizer::Words(tokenizer) => tokenizer.decode(tokens),
            Tokenizer::Pieces(tokenizer) => tokenizer.decode(tokens),
            Tokenizer::Marked(tokenizer) => tokenizer.decode(&tokenizer.without_marks(tokens)),
        }
    }

    /// The token that ends a text, if the vocabulary has one.
    pub fn end(&self) -> Option<i32> {
        match self {
            Tokenizer::Characters(_) => None,
            Tokenizer::Words(tokenizer) => Some(tokenizer.id(super::marks::END)),
            Tokenizer::Pieces(tokenizer) | Tokenizer::Marked(tokenizer) => {
                ["<|endoftext|>", "[SEP]", "</s>"].iter().find_map(|end| tokenizer.id(end))
            }
        }
    }
}

/// The next multiple: a vocabulary of 50,257 entries becomes 50,304 for 64. Rows of a matrix are then aligned; no text has the
/// tokens at the end, and none is ever picked.
pub fn aligned_vocabulary(size: usize, multiple: usize) -> usize {
    size.next_multiple_of(multiple.max(1))
}

/// A text that grows token by token, shown in pieces that never change again.
///
/// A token may be part of a character, or a mark that only says how the next word is written. So what can still change is
/// held back, and each piece is what the text of all tokens from the last complete one has gained.
#[derive(Debug, Clone)]
pub struct Unfolding {
    tokens: Vec<i32>,
    /// Where the part begins that is decoded again, and where what was shown of it ends.
    from: usize,
    shown: usize,
}

impl Unfolding {
    /// After the tokens of a prompt.
    pub fn new(prompt: &[i32]) -> Self {
        Self { tokens: prompt.to_vec(), from: 0, shown: prompt.len() }
    }

    /// The tokens, those of the prompt included.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Appends a token and returns what can be shown now.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, tokenizer: &Tokenizer, token: i32) -> Result<String, TextError> {
        self.tokens.push(token);
        let gained = self.gained(tokenizer)?;
        let cut = match tokenizer {
            Tokenizer::Pieces(pieces) | Tokenizer::Marked(pieces) => {
                pieces.ends_inside_character(&self.tokens[self.shown..])?
            }
            Tokenizer::Characters(_) | Tokenizer::Words(_) => false,
        };
        if gained.is_empty() || cut {
            return Ok(String::new());
        }
        (self.from, self.shown) = (self.shown, self.tokens.len());
        Ok(gained)
    }

    /// What was held back at the end.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, TextError> {
        let gained = self.gained(tokenizer);
        self.shown = self.tokens.len();
        gained
    }

    fn gained(&self, tokenizer: &Tokenizer) -> Result<String, TextError> {
        let before = tokenizer.decode(&self.tokens[self.from..self.shown])?;
        let after = tokenizer.decode(&self.tokens[self.from..])?;
        // Where the cut was inside of a character the beginning differs, too.
        let common =
            before.chars().zip(after.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        Ok(after[common..].into())
    }
}

#[cfg(test)]
mod tests;
