//! The fixtures of the crate that imports models, as files.

use std::path::{Path, PathBuf};

/// A fixture as a file. One that is packed by zlib is unpacked first.
pub(crate) fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures");
    let Ok(packed) = std::fs::read(folder.join(format!("{name}.z"))) else { return folder.join(name) };
    let content = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).unwrap();
    // Tests that run at the same time see a whole file.
    let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = tempfile::NamedTempFile::new_in(unpacked).unwrap();
    std::fs::write(&file, content).unwrap();
    let path = unpacked.join(name);
    file.persist(&path).unwrap();
    path
}
