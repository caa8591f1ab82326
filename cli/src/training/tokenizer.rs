//! The flags that say what the tokens of a text are.

use crate::common::error::CliError;
use kernfusion_lm::text::{Tokenizer, TokenizerKind, aligned_vocabulary};
use std::path::Path;

/// Which tokenizer.
#[derive(clap::Args)]
pub(crate) struct TokenizerArgs {
    /// Tokens of the text: char, word, bpe (over bytes), bpe-words or wordpiece, learnt from it; or a tokenizer.json, BERT's
    /// vocab.txt, or a directory with GPT-2's vocab.json and merges.txt [default: char]
    #[arg(long, value_name = "KIND|FILE", conflicts_with = "resume")]
    tokenizer: Option<String>,
    /// Most entries of a vocabulary that is learnt; characters are always all [default: 5000]
    #[arg(long, value_name = "N", conflicts_with = "resume", value_parser = clap::value_parser!(u32).range(1..))]
    vocabulary: Option<u32>,
    /// Makes the model's vocabulary a multiple of N, so that its matrices are aligned [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "resume", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    align_vocabulary: Option<u32>,
}

impl TokenizerArgs {
    /// The tokenizer, learnt from `text` unless it is read from a file.
    pub(crate) fn tokenizer(&self, text: &str) -> Result<Tokenizer, CliError> {
        const ENTRIES: u32 = 5000;
        let size = self.vocabulary.unwrap_or(ENTRIES) as usize;
        let kind = match self.tokenizer.as_deref() {
            None | Some("char") => TokenizerKind::Char,
            Some("word") => TokenizerKind::Word,
            Some("bpe") => TokenizerKind::Bpe,
            Some("bpe-words") => TokenizerKind::BpeWords,
            Some("wordpiece") => TokenizerKind::WordPiece,
            Some(path) => return read(Path::new(path)),
        };
        Ok(Tokenizer::train(kind, text, size).map_err(kernfusion_lm::Error::from)?)
    }

    /// The size of a model's vocabulary for this many tokens.
    pub(crate) fn model_vocabulary(&self, tokens: usize) -> usize {
        aligned_vocabulary(tokens, self.align_vocabulary.unwrap_or(1) as usize)
    }
}

fn read(path: &Path) -> Result<Tokenizer, CliError> {
    if !path.exists() {
        let kinds = "char, word, bpe, bpe-words, wordpiece";
        return Err(CliError::Usage(format!(
            "--tokenizer {}: no such file, and none of {kinds}",
            path.display()
        )));
    }
    Ok(Tokenizer::read(path).map_err(kernfusion_lm::Error::from)?)
}
