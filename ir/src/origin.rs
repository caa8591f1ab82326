//! Where a value comes from: the user's line, and the module path under which it was traced.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A place in the user's source.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Location {
    /// The file's path, as the compiler of that file knew it.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl From<&std::panic::Location<'_>> for Location {
    fn from(place: &std::panic::Location<'_>) -> Self {
        Location { file: place.file().into(), line: place.line(), column: place.column() }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Location and scope of a value. Autodiff, simplification and fusion carry it on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Origin {
    /// The user's line, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    /// Module path such as `blocks.3.attn.qkv`; empty at the top.
    pub scope: Arc<str>,
}

impl Origin {
    /// An origin from its parts.
    pub fn new(location: Option<Location>, scope: impl Into<Arc<str>>) -> Self {
        Origin { location, scope: scope.into() }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "\n  at {location}")?;
        }
        if !self.scope.is_empty() {
            write!(f, "\n  in {}", self.scope)?;
        }
        Ok(())
    }
}
