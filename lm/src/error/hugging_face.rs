//! What can go wrong with a model in the layout of Hugging Face. Each error names the file.

use crate::checkpoint::CheckpointError;
use crate::text::TextError;
use std::io;
use std::path::PathBuf;

/// A model that cannot be loaded from, or saved in, the layout of Hugging Face.
#[derive(Debug, thiserror::Error)]
pub enum HuggingFaceError {
    /// A file is missing or cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// A file of tensors is missing, truncated or in another format.
    #[error(transparent)]
    Tensors(#[from] CheckpointError),
    /// The folder has no tensors in a format that is read.
    #[error("{} has neither model.safetensors nor model.safetensors.index.json{hint}", directory.display())]
    NoTensors {
        /// The folder.
        directory: PathBuf,
        /// What it has in their place.
        hint: &'static str,
    },
    /// A JSON file cannot be understood, or says something impossible.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tensors are not those of the model that `config.json` describes.
    #[error("{} does not fit its config.json: {}", directory.display(), problems.join("; "))]
    Misfit {
        /// The folder.
        directory: PathBuf,
        /// All that are missing, superfluous, or of another shape or number type, by name.
        problems: Vec<String>,
    },
    /// The tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] TextError),
    /// What is asked for needs a tokenizer.
    #[error("{} has no tokenizer.json, which texts need", directory.display())]
    NoTokenizer {
        /// The folder.
        directory: PathBuf,
    },
    /// What is asked for needs a chat template.
    #[error("{} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): the model can only continue a text", directory.display())]
    NoChatTemplate {
        /// The folder.
        directory: PathBuf,
    },
    /// The model has parts that the layout has no place for.
    #[error("this model cannot be saved in the layout of Hugging Face: {0}")]
    Inexpressible(String),
}
