//! What can go wrong for a program that uses language models, in one type, so that `?` works from the text to the run.

mod hugging_face;

pub use hugging_face::HuggingFaceError;

use crate::checkpoint::CheckpointError;
use crate::folder::FolderError;
use crate::jsonl::{JsonLinesError, RowsError};
use crate::sample::SampleError;
use crate::text::TextError;
use kernfusion::tensor_file::TensorFileError;
use kernfusion_codegen::CodegenError;
use kernfusion_ir::IrError;
use kernfusion_passes::PassError;
use kernfusion_passes::fuse::FuseError;
use std::fmt;
use std::path::PathBuf;

/// Any failure that a user's model, text, files or machine can cause. `Debug` shows the message, too, so that a `main` that returns an
/// error says what a person can read.
#[derive(thiserror::Error)]
pub enum Error {
    /// A program that cannot be traced, compiled or run.
    #[error(transparent)]
    Library(#[from] kernfusion::Error),
    /// A run, or settings of one, that cannot exist.
    #[error("configuration: {0}")]
    Configuration(String),
    /// A text that is no training text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Sampling settings or logits that make no distribution.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A checkpoint that cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A model in the layout of Hugging Face that cannot be loaded or saved.
    #[error(transparent)]
    HuggingFace(#[from] HuggingFaceError),
    /// A file of rows that cannot be read.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// A folder that cannot be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A log that cannot be written.
    #[error(transparent)]
    Log(#[from] JsonLinesError),
    /// A file that cannot be written.
    #[error("cannot write {}: {cause}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// A conversation that the model cannot read whole: see [`Conversation`](crate::chat::Conversation).
    #[error("the conversation has {tokens} tokens, and the model sees {context}: begin a new one")]
    LongConversation {
        /// Tokens of what has been said, with the last message.
        tokens: usize,
        /// Tokens that the model can read.
        context: usize,
    },
    /// The watcher of a run cannot go on: see [`Watcher`](crate::train::Watcher).
    #[error(transparent)]
    Watcher(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// The message for a place that says already what is configured, such as the name of a file.
    pub fn reason(&self) -> String {
        match self {
            Error::Configuration(reason) => reason.clone(),
            Error::Library(error) => error.reason(),
            other => other.to_string(),
        }
    }
}

/// Errors of the layers below are those of the library.
macro_rules! of_the_library {
    ($($error:ty),+) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Error::Library(error.into())
            }
        })+
    };
}

of_the_library!(IrError, PassError, FuseError, CodegenError, TensorFileError);

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
