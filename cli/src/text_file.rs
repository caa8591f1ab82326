//! Texts that are written whole or not at all.

use kernfusion::atomic_file;
use kernfusion_lm::{Error, Result};
use std::path::Path;

/// Writes a text.
///
/// # Errors
/// If it cannot be written; what was there before is then untouched.
pub(crate) fn save(path: &Path, text: &str) -> Result<()> {
    let failed = |cause| Error::Write { path: path.into(), cause };
    atomic_file::write(path, text.as_bytes()).map_err(failed)
}
