//! What can go wrong for a user of the library, in one type, so that `?` works from the model to the run.

mod limit;
mod non_finite;

pub use limit::LimitError;
pub use non_finite::{Maker, NonFinite};

#[cfg(feature = "files")]
use crate::tensor_file::TensorFileError;
use kernfusion_codegen::CodegenError;
use kernfusion_ir::IrError;
use kernfusion_passes::PassError;
use kernfusion_passes::fuse::FuseError;
use kernfusion_passes::microbatch::MicrobatchError;
use std::fmt;

/// Any failure that a user's program, data or machine can cause. `Debug` shows the message, too, so that a `main` that returns an
/// error says what a person can read.
#[derive(thiserror::Error)]
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
    /// A program whose batch cannot be computed in microbatches. Says op and line.
    #[error(transparent)]
    Microbatch(#[from] MicrobatchError),
    /// A memory limit that cannot be met. Says how much is missing.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A run with [`Target::check_finite`](crate::compile::Target::check_finite) that gave a NaN or an infinity. Says which op
    /// made it, and the user's line.
    #[error(transparent)]
    NonFinite(#[from] Box<NonFinite>),
    /// A program that cannot be compiled or run: memory, threads, inputs, outputs, states. The type is
    /// [`compile::CodegenError`](crate::compile::CodegenError).
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    /// A model, an optimizer, a schedule or a target that cannot exist.
    #[error("configuration: {0}")]
    Configuration(String),
    /// A program, states, a file or a name that do not belong together. Says what there is on either side.
    #[error("{0}")]
    Mismatch(String),
    /// A file of tensors that cannot be read or written.
    #[cfg(feature = "files")]
    #[error(transparent)]
    TensorFile(#[from] TensorFileError),
}

impl Error {
    /// The message for a place that says already what is configured, such as the name of a file.
    pub fn reason(&self) -> String {
        match self {
            Error::Configuration(reason) => reason.clone(),
            other => other.to_string(),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_with_an_error_shows_its_message() {
        let error = Error::from(CodegenError::NoState { name: "w".into(), others: "v".into() });
        assert_eq!(format!("{error:?}"), "there is no state \"w\" (there are: v)");
        let Error::Codegen(inner) = error else { unreachable!("of code generation") };
        assert_eq!(format!("{inner:?}"), inner.to_string());
        assert_eq!(format!("{:?}", Error::Mismatch("a and b".into())), "a and b");
    }
}
