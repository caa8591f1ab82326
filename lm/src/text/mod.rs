//! From a text to batches of token ids: tokenizers, corpora, windows and streams.
//!
//! ```text
//! Corpus ──Tokenizer──► tokens ──Corpus::split──► training │ validation ──Windows──► x, y [batch, context]
//! ```
//!
//! Everything is a pure function of the text and the seed, so a resumed run needs no state from here.

mod bytes;
mod characters;
mod corpus;
mod data_directory;
pub mod marks;
mod padding;
mod pieces;
mod streams;
mod tokenizer;
mod windows;
mod words;

pub use characters::CharTokenizer;
pub use corpus::{Corpus, Split};
pub use data_directory::{TINY_SHAKESPEARE_FILE, data_directory};
pub use padding::{Padded, Side, pad, truncated};
pub use pieces::PieceTokenizer;
pub use streams::{Streams, shuffled};
pub use tokenizer::{Tokenizer, TokenizerKind, Unfolding, aligned_vocabulary};
pub use windows::{Batch, Order, Windows, validation_windows};
pub use words::WordTokenizer;

use std::path::PathBuf;

/// What can be wrong with a text, with its tokens, or with the windows asked of it.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// The file's bytes are no UTF-8 text.
    #[error("{} is not UTF-8 text: the byte at offset {offset} cannot be decoded", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset in bytes, from 0, of the first byte that is not part of a valid character.
        offset: usize,
    },
    /// The text has no characters at all.
    #[error("{name} is empty")]
    Empty {
        /// The corpus's name.
        name: String,
    },
    /// A part of a text is shorter than one window: `context` tokens and the one that follows.
    #[error("{part} has {has} tokens, but one window of {context} needs {}: take more text or a shorter context", context + 1)]
    TooShort {
        /// Which tokens: a corpus's training part, its validation part, or simply the text.
        part: String,
        /// How many tokens there are.
        has: usize,
        /// Tokens of context in a window.
        context: usize,
    },
    /// A batch of no windows, or windows of no tokens.
    #[error("a batch of {batch} windows of {context} tokens holds nothing: both must be at least 1")]
    NoTokensAsked {
        /// Windows in a batch.
        batch: usize,
        /// Tokens of context in a window.
        context: usize,
    },
    /// A text to encode has a character that the tokenizer was not built with.
    #[error(
        "unknown character {character:?} at position {position}: the vocabulary of {vocabulary_size} characters does not have it"
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Its position in the text, counted in characters from 0.
        position: usize,
        /// Number of characters in the vocabulary.
        vocabulary_size: usize,
    },
    /// A token id to decode is outside the vocabulary.
    #[error("unknown token {token} at position {position}: ids run from 0 to {}", *vocabulary_size as i64 - 1)]
    UnknownToken {
        /// The id.
        token: i32,
        /// Its position among the tokens, from 0.
        position: usize,
        /// Number of tokens in the vocabulary.
        vocabulary_size: usize,
    },
    /// A vocabulary has no place for what it must have.
    #[error("a vocabulary of {asked} is too small: this tokenizer needs {least} at least")]
    SmallVocabulary {
        /// The entries that were asked for.
        asked: usize,
        /// The fewest that are possible.
        least: usize,
    },
    /// A stored list of words is no vocabulary.
    #[error("the stored list of words is damaged: {reason}")]
    Words {
        /// What is wrong with it.
        reason: String,
    },
    /// A tokenizer cannot be read, learnt or applied.
    #[error("tokenizer: {name}: {reason}")]
    Tokenizer {
        /// The file, or what was done.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A stored vocabulary is not a strictly ascending list of characters.
    #[error(
        "the stored vocabulary is not sorted and unique at character {character:?} (position {position})"
    )]
    Vocabulary {
        /// The first character that is not greater than the one before it.
        character: char,
        /// Its position in the vocabulary, from 0.
        position: usize,
    },
}
