//! What can go wrong with an imported model.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Any failure of a file, or of what it is used for. `Debug` shows the message, too, so that a `main` that returns an error says what a
/// person can read.
#[derive(thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The file is no archive of an exported program, or not whole.
    #[error("{}: {reason}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// Where it departs from the format.
        reason: String,
    },
    /// The program has operators that [`operators`](crate::operators) does not list: all of them.
    #[error("{}: {}", path.display(), unknown(operators))]
    Operators {
        /// The file.
        path: PathBuf,
        /// Each one once, in the order in which they occur first.
        operators: Vec<UnknownOperator>,
    },
    /// A node that cannot be traced.
    #[error("{}: {operator} ({place}): {reason}", path.display())]
    Node {
        /// The file.
        path: PathBuf,
        /// Its operator.
        operator: String,
        /// Its module and its line of Python.
        place: Box<Place>,
        /// What is wrong.
        reason: String,
    },
    /// Tensors that the program does not take.
    #[error("{0}")]
    Inputs(String),
    /// A program whose forward pass ONNX cannot have.
    #[error("it cannot be exported as ONNX: {0}")]
    Export(String),
    /// A program with ops that ONNX has no counterpart for: all of them.
    #[error("it cannot be exported as ONNX, which has no counterpart of {}", each(.0))]
    ExportOps(Vec<UnknownOperator>),
    /// A program that cannot be traced, compiled or run, or states that it does not have.
    #[error(transparent)]
    Library(#[from] kernfusion::Error),
}

impl ImportError {
    /// What a reader of this crate said, or the system.
    pub(crate) fn of_reading(path: &Path, error: io::Error) -> Self {
        error.downcast().unwrap_or_else(|cause| ImportError::Read { path: path.into(), cause })
    }
}

impl fmt::Debug for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An operator that is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownOperator {
    /// Its name, such as `aten.fft_fft.default`.
    pub name: String,
    /// How many nodes have it.
    pub count: usize,
    /// Where the first of them is.
    pub first: Place,
}

/// Where a node comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Place {
    /// The path of its module, such as `transformer.h.0.attn`; empty for the outermost.
    pub module: String,
    /// File and line of the Python that called it; empty if the archive does not say.
    pub line: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module = if self.module.is_empty() { "the outermost module" } else { &self.module };
        match self.line.as_str() {
            "" => write!(f, "in {module}"),
            line => write!(f, "in {module}, {line}"),
        }
    }
}

/// Each operator with its count and its first place.
fn each(operators: &[UnknownOperator]) -> String {
    let each = operators.iter().map(|UnknownOperator { name, count, first }| match count {
        1 => format!("{name} ({first})"),
        _ => format!("{name} ({count} times, first {first})"),
    });
    each.collect::<Vec<_>>().join("; ")
}

fn unknown(operators: &[UnknownOperator]) -> String {
    let (count, list) = (operators.len(), each(operators));
    let is_of_pytorch = operators.iter().any(|operator| operator.name.starts_with("aten."));
    let hint =
        if is_of_pytorch { "; `run_decompositions()` before `torch.export.save` leaves fewer" } else { "" };
    let noun = if count == 1 { "operator is" } else { "operators are" };
    format!("{count} {noun} not known: {list}{hint}")
}
