//! What can go wrong for a user of the library, in one type, so that `?` works from the model to the run.

use crate::checkpoint::CheckpointError;
use crate::compile::{LimitError, NonFinite};
use crate::experiment::{ReferenceError, SaveError};
use crate::fetch::FetchError;
use crate::folder::FolderError;
use crate::hugging_face::HuggingFaceError;
use crate::jsonl::JsonLinesError;
use crate::sample::SampleError;
use crate::tensor_file::TensorFileError;
use crate::tensorboard::EventFileError;
use crate::text::TextError;
use crate::tune::RowsError;
use kernfusion_codegen::CodegenError;
use kernfusion_ir::IrError;
use kernfusion_passes::PassError;
use kernfusion_passes::fuse::FuseError;
use kernfusion_passes::tile::TileError;

/// Any failure that a user's program, data or machine can cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A mistake in a traced program. Says op, operand types, the user's line and the module path.
    #[error(transparent)]
    Graph(#[from] IrError),
    /// A pass that failed. Names the pass.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// An operation that no kernel computes. Says op and line.
    #[error(transparent)]
    Fuse(#[from] FuseError),
    /// A program whose batch cannot be computed in slices. Says op and line.
    #[error(transparent)]
    Tile(#[from] TileError),
    /// A memory limit that cannot be met. Says how much is missing.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A run with [`Target::check_finite`](crate::compile::Target::check_finite) that gave a NaN or an infinity. Says which op
    /// made it, and the user's line.
    #[error(transparent)]
    NonFinite(#[from] Box<NonFinite>),
    /// A program that cannot be compiled or run: memory, threads, inputs.
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    /// A model, an optimizer or a schedule that cannot exist.
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
    /// A download that failed.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A file of rows that cannot be read.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// A file of tensors that cannot be read or written.
    #[error(transparent)]
    TensorFile(#[from] TensorFileError),
    /// Losses to compare with that cannot be used.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A folder of a model compiled ahead of time that cannot be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file of an experiment that cannot be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// An event file for TensorBoard that cannot be written.
    #[error(transparent)]
    EventFile(#[from] EventFileError),
    /// A log that cannot be written.
    #[error(transparent)]
    Log(#[from] JsonLinesError),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
