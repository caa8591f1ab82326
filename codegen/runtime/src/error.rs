//! What can go wrong with a compiled model.

use crate::memory::OutOfMemory;
use std::io;
use std::path::PathBuf;

/// What can go wrong with a model that was compiled ahead of time.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The object file and the runtime do not belong together.
    #[error("the object file is not one that this runtime runs: {0}")]
    Artefact(String),
    /// The object file is for another processor.
    #[error(
        "the object file \"{name}\" was compiled for a processor with {feature}, which this one does not have"
    )]
    Processor {
        /// The model.
        name: String,
        /// What is missing.
        feature: String,
    },
    /// The file of parameters cannot be opened.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// It is in another format.
    #[error("{} is not a whole safetensors file: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where it departs from the format.
        reason: String,
    },
    /// It has not the parameters of the model.
    #[error("parameter \"{name}\" in {}: {reason}", path.display())]
    Parameter {
        /// The file.
        path: PathBuf,
        /// The parameter.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The system refused memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// What is asked for is not possible.
    #[error("{0}")]
    Request(String),
    /// A kernel panicked: a mistake of this project.
    #[error("a kernel failed: {0}")]
    Panic(String),
}
