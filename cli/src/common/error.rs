//! What can go wrong on the command line.

use crate::experiment::ReferenceError;
use crate::fetch::FetchError;
use crate::tensorboard::EventFileError;
use kernfusion::tensor_file::TensorFileError;
use kernfusion_cuda::CudaError;
use kernfusion_import::ImportError;
use std::io;
use std::path::{Path, PathBuf};

/// An error of a command; prints as one line unless a program's text is at fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// Anything that the library reports.
    #[error(transparent)]
    Library(#[from] kernfusion_lm::Error),
    /// A model of another program.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// NVRTC or a GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A model of a GPU.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    CardModel(#[from] kernfusion_cuda::model::ModelError),
    /// A download.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// Losses to compare with.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// An event file for TensorBoard.
    #[error(transparent)]
    EventFile(#[from] EventFileError),
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read { path: PathBuf, cause: io::Error },
    /// A file cannot be written.
    #[error("cannot write {}: {cause}", path.display())]
    Write { path: PathBuf, cause: io::Error },
    /// A file was read, but says something impossible.
    #[error("{}: {reason}", path.display())]
    Content { path: PathBuf, reason: String },
    /// There is something that would be lost.
    #[error("{} has {what}: name another place, or ask for it to be replaced (--overwrite)", path.display())]
    Occupied { path: PathBuf, what: &'static str },
    /// There is a run that goes on with --resume.
    #[error("{0} has a run: name another directory, go on with it (--resume {0}) or replace it (--overwrite)", path.display())]
    HasRun { path: PathBuf },
    /// Another process writes there.
    #[error("{} is in use: another process writes there", path.display())]
    InUse { path: PathBuf },
    /// Flags that do not go together.
    #[error("{0}")]
    Usage(String),
    /// Another program that could not do its part, or did not confirm ours.
    #[error("{0}")]
    Peer(String),
    /// Ranks cannot run together.
    #[error("{0}")]
    Ranks(String),
    /// Another rank has said what is wrong.
    #[error("another rank has failed")]
    Said,
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    StandardOutput(io::Error),
    /// Something that the operating system refused.
    #[error("{what}: {cause}")]
    System { what: &'static str, cause: io::Error },
}

impl CliError {
    /// The error of a command that goes on with no run.
    pub(crate) fn without_resume(self) -> Self {
        match self {
            CliError::HasRun { path } => CliError::Occupied { path, what: "a run" },
            other => other,
        }
    }

    /// 2 for a command that was called wrongly, 1 for one that failed.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            CliError::Usage(_) => 2,
            #[cfg(feature = "cuda")]
            CliError::CardModel(_) => 1,
            CliError::Library(_)
            | CliError::Import(_)
            | CliError::Cuda(_)
            | CliError::Fetch(_)
            | CliError::Reference(_)
            | CliError::EventFile(_)
            | CliError::Read { .. }
            | CliError::Write { .. }
            | CliError::Content { .. }
            | CliError::Occupied { .. }
            | CliError::HasRun { .. }
            | CliError::InUse { .. }
            | CliError::Peer(_)
            | CliError::Ranks(_)
            | CliError::Said
            | CliError::StandardOutput(_)
            | CliError::System { .. } => 1,
        }
    }
}

/// Reads a text that a person writes: a file, or what comes out of a pipe.
pub(crate) fn read_text(path: &Path) -> Result<String, CliError> {
    kernfusion::input_file::read_piped_text(path).map_err(|cause| CliError::Read { path: path.into(), cause })
}

impl From<kernfusion::Error> for CliError {
    fn from(error: kernfusion::Error) -> Self {
        CliError::Library(error.into())
    }
}

impl From<TensorFileError> for CliError {
    fn from(error: TensorFileError) -> Self {
        CliError::Library(error.into())
    }
}

/// Gives an error the name of the file that it is about; a configuration error loses its own prefix.
pub(crate) fn in_file(path: &Path, error: impl Into<kernfusion_lm::Error>) -> CliError {
    CliError::Content { path: path.into(), reason: error.into().reason() }
}
