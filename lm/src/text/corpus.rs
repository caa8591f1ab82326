//! A text to train on: where it comes from, and how it is divided.
//!
//! The last tenth of the tokens is for validation, the rest for training; neither is shorter than one window.

use std::path::Path;

use super::TextError;
use super::data_directory::{TINY_SHAKESPEARE_FILE, data_directory};
use kernfusion_ir::random::philox4x32;

/// The project's own text, so that the first command works on a machine without a network.
const EMBEDDED: &str = include_str!("embedded.txt");

/// How many random letters there are.
const RANDOM_LETTERS: u32 = 400_000;

/// Keeps the numbers drawn here apart from all others: the last word of the Philox counter, which is 0 inside programs, 1 for
/// windows, 2 for sampling, 3 for first values and 4 for hidden tokens.
const STREAM: u32 = 5;

/// A text that is not empty, and a name for it to show to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    name: String,
    text: String,
}

/// The tokens of a corpus in their order, divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// The first `N - floor(N / 10)` tokens.
    pub training: Vec<i32>,
    /// The last `floor(N / 10)` tokens.
    pub validation: Vec<i32>,
}

impl Corpus {
    /// Reads a UTF-8 file; its path is the corpus's name.
    ///
    /// # Errors
    /// [`TextError::Read`], [`TextError::NotUtf8`] or [`TextError::Empty`].
    pub fn read(path: &Path) -> Result<Self, TextError> {
        let bytes = kernfusion::input_file::read(path)
            .map_err(|cause| TextError::Read { path: path.into(), cause })?;
        let text = String::from_utf8(bytes).map_err(|error| TextError::NotUtf8 {
            path: path.into(),
            offset: error.utf8_error().valid_up_to(),
        })?;
        Self::from_text(path.display().to_string(), text)
    }

    /// A corpus from a text in memory.
    ///
    /// # Errors
    /// [`TextError::Empty`].
    pub fn from_text(name: impl Into<String>, text: impl Into<String>) -> Result<Self, TextError> {
        let (name, text) = (name.into(), text.into());
        if text.is_empty() { Err(TextError::Empty { name }) } else { Ok(Self { name, text }) }
    }

    /// What is trained on when the user names no file: Tiny Shakespeare if it is in the
    /// [data directory](data_directory), else the text embedded in the program. The corpus's name
    /// says which.
    ///
    /// # Errors
    /// Those of [`Corpus::read`], for a Tiny Shakespeare that is there but cannot be used.
    pub fn default_text() -> Result<Self, TextError> {
        Self::default_text_in(data_directory().as_deref())
    }

    fn default_text_in(directory: Option<&Path>) -> Result<Self, TextError> {
        match directory.map(|directory| directory.join(TINY_SHAKESPEARE_FILE)) {
            Some(path) if path.exists() => {
                let corpus = Self::read(&path)?;
                Ok(Self { name: format!("tiny-shakespeare ({})", corpus.name), ..corpus })
            }
            _ => Self::from_text("the embedded text", EMBEDDED),
        }
    }

    /// A text of random letters from a to z, always the same: no window of it says anything about another one.
    pub fn random_letters() -> Self {
        let letters = (0..RANDOM_LETTERS / 4).flat_map(|block| {
            let words = philox4x32([block, 0, 0, STREAM], [0, 0]);
            words.map(|word| char::from(b'a' + ((u64::from(word) * 26) >> 32) as u8))
        });
        Self { name: "random letters".into(), text: letters.collect() }
    }

    /// What to call the corpus in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Divides the tokens of this corpus into training and validation.
    ///
    /// # Errors
    /// [`TextError::TooShort`] when either part has fewer than `context + 1` tokens.
    pub fn split(&self, mut tokens: Vec<i32>, context: usize) -> Result<Split, TextError> {
        let validation = tokens.split_off(tokens.len() - tokens.len() / 10);
        for (part, has) in [("training", tokens.len()), ("validation", validation.len())] {
            if has <= context {
                return Err(TextError::TooShort {
                    part: format!("the {part} part of {}", self.name),
                    has,
                    context,
                });
            }
        }
        Ok(Split { training: tokens, validation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::CharTokenizer;
    use std::collections::{BTreeSet, HashSet};

    fn file_with(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn reads_a_file_and_takes_its_path_as_name() {
        let file = file_with("Straße\n".as_bytes());
        let corpus = Corpus::read(file.path()).unwrap();
        assert_eq!(corpus.text(), "Straße\n");
        assert_eq!(corpus.name(), file.path().display().to_string());
    }

    #[test]
    fn a_missing_file_an_empty_file_and_no_text_are_told_apart() {
        let error = Corpus::read(Path::new("no/such/file.txt")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read no/such/file.txt: "), "{error}");
        let file = file_with(b"");
        let error = Corpus::read(file.path()).unwrap_err().to_string();
        assert_eq!(error, format!("{} is empty", file.path().display()));
        let file = file_with(b"plain \xff\xfe text");
        let error = Corpus::read(file.path()).unwrap_err().to_string();
        assert!(error.contains("not UTF-8") && error.contains("offset 6 "), "{error}");
        // A character that is cut in half at the end of the file.
        let file = file_with(b"caf\xc3");
        assert!(matches!(Corpus::read(file.path()), Err(TextError::NotUtf8 { offset: 3, .. })));
    }

    #[test]
    fn validation_is_the_last_tenth_rounded_down() {
        let corpus = Corpus::from_text("counting", "unused").unwrap();
        let split = corpus.split((0..109).collect(), 4).unwrap();
        assert_eq!(split.training, (0..99).collect::<Vec<i32>>());
        assert_eq!(split.validation, (99..109).collect::<Vec<i32>>());
    }

    #[test]
    fn parts_must_hold_one_window() {
        let corpus = Corpus::from_text("a short text", "unused").unwrap();
        assert!(corpus.split(vec![3; 90], 8).is_ok(), "nine tokens hold one window of eight");
        let error = corpus.split(vec![3; 89], 8).unwrap_err().to_string();
        assert!(
            error
                .starts_with("the validation part of a short text has 8 tokens, but one window of 8 needs 9"),
            "{error}"
        );
        let error = corpus.split(vec![3; 8], 8).unwrap_err().to_string();
        assert!(error.starts_with("the training part of a short text has 8 tokens"), "{error}");
    }

    #[test]
    fn the_default_is_tiny_shakespeare_where_it_is_and_the_embedded_text_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let embedded = Corpus::default_text_in(Some(directory.path())).unwrap();
        assert_eq!((embedded.name(), embedded.text()), ("the embedded text", EMBEDDED));
        assert_eq!(Corpus::default_text_in(None).unwrap(), embedded);

        let path = directory.path().join(TINY_SHAKESPEARE_FILE);
        std::fs::write(&path, "First Citizen:\n").unwrap();
        let shakespeare = Corpus::default_text_in(Some(directory.path())).unwrap();
        assert_eq!(shakespeare.text(), "First Citizen:\n");
        assert_eq!(shakespeare.name(), format!("tiny-shakespeare ({})", path.display()));

        std::fs::write(&path, "").unwrap();
        assert!(matches!(Corpus::default_text_in(Some(directory.path())), Err(TextError::Empty { .. })));
    }

    /// A small character model learns from it within a minute, so it must stay plain, even and free of repetition.
    #[test]
    fn the_embedded_text_is_plain_and_large_enough() {
        assert!((45_000..60_000).contains(&EMBEDDED.len()), "{} bytes", EMBEDDED.len());
        let characters: BTreeSet<char> = EMBEDDED.chars().collect();
        assert!(characters.iter().all(|&c| c == '\n' || (' '..='~').contains(&c)), "{characters:?}");
        assert!((60..=75).contains(&characters.len()), "{} characters: {characters:?}", characters.len());
        let mut seen = HashSet::new();
        for line in EMBEDDED.lines() {
            assert!(line.len() <= 80 && line.trim_end() == line, "{line:?}");
            assert!(line.len() < 30 || seen.insert(line), "twice: {line:?}");
        }
        assert!(EMBEDDED.ends_with('\n') && !EMBEDDED.contains("\n\n\n"));

        let corpus = Corpus::from_text("embedded", EMBEDDED).unwrap();
        let tokens = CharTokenizer::from_text(EMBEDDED).encode(EMBEDDED).unwrap();
        assert!(corpus.split(tokens, 256).is_ok());
    }
}
