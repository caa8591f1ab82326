//! Cubins, and choices of tiles and algorithms, on disk, so that a program compiles once on a machine. A file's name is the
//! hash of all that its content depends on: the whole source, the options, the architecture and NVRTC's version. Files appear whole or not at all, so
//! that processes may share a folder.

use super::nvrtc::{Form, OPTIONS, compile, version, whole_source};
use super::{CudaError, Function};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A folder of cubins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// `None` where there is no place for one.
    folder: Option<PathBuf>,
}

impl Cache {
    /// The user's: the folder that `KERNFUSION_CACHE` names, else `kernfusion` in the system's folder for caches.
    pub fn of_user() -> Self {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let system = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let folder = variable("KERNFUSION_CACHE").or_else(|| Some(system?.join("kernfusion")));
        Cache { folder: folder.map(|folder| folder.join("cubin")) }
    }

    /// In this folder, which is made when it is first needed.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Cache { folder: Some(folder.into()) }
    }

    /// The cubin of a function, compiled if it is not there. A folder that cannot be written to keeps nothing, which is no
    /// error.
    ///
    /// # Errors
    /// As [`compile`].
    pub fn cubin(&self, function: &Function, architecture: &str) -> Result<Vec<u8>, CudaError> {
        let version = version()?;
        let file = self.folder.as_ref().map(|folder| folder.join(name(function, architecture, version)));
        self.file_or(file.as_deref(), || Ok(compile(function, architecture, Form::Cubin)?.code))
    }

    /// What was chosen among things with this identity on this architecture, chosen by `make` if that is not known.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn choice(
        &self,
        identity: &[String],
        architecture: &str,
        make: impl FnOnce() -> Result<Vec<u8>, CudaError>,
    ) -> Result<Vec<u8>, CudaError> {
        let (major, minor) = version()?;
        let version = format!("{major}.{minor}");
        let parts = identity.iter().map(String::as_str).chain([architecture, &version]);
        let name = format!("{}.choice", hash(parts));
        self.file_or(self.folder.as_ref().map(|folder| folder.join(name)).as_deref(), make)
    }

    fn file_or(
        &self,
        file: Option<&Path>,
        make: impl FnOnce() -> Result<Vec<u8>, CudaError>,
    ) -> Result<Vec<u8>, CudaError> {
        if let Some(code) = file.and_then(|file| std::fs::read(file).ok()).filter(|code| !code.is_empty()) {
            return Ok(code);
        }
        let code = make()?;
        if let Some(file) = file {
            // Without a copy on disk, the next process compiles again; nothing is wrong.
            let _ = keep(file, &code);
        }
        Ok(code)
    }
}

/// The file of a function.
fn name(function: &Function, architecture: &str, (major, minor): (i32, i32)) -> String {
    let (source, options, version) = (whole_source(function), OPTIONS.join(" "), format!("{major}.{minor}"));
    format!("{}.cubin", hash([source.as_str(), &options, architecture, &version]))
}

/// The SHA-256 of some texts, in hexadecimal.
fn hash<'t>(parts: impl IntoIterator<Item = &'t str>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file that appears whole.
fn keep(file: &Path, code: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().expect("the file is in a folder");
    std::fs::create_dir_all(folder)?;
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    temporary.write_all(code)?;
    temporary.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(text: &str) -> Function {
        Function { name: "f".into(), text: text.into(), parameters: vec![], threads: 32, is_packed: false }
    }

    #[test]
    fn names_tell_everything_apart_that_matters() {
        let first = name(&function("a"), "sm_80", (12, 9));
        assert_eq!(first, name(&function("a"), "sm_80", (12, 9)));
        for other in [
            name(&function("b"), "sm_80", (12, 9)),
            name(&function("a"), "sm_90", (12, 9)),
            name(&function("a"), "sm_80", (13, 0)),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn what_is_kept_is_not_made_again_and_an_unusable_folder_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("new"));
        let file = folder.path().join("new").join("x.cubin");
        assert_eq!(cache.file_or(Some(&file), || Ok(vec![1, 2, 3])), Ok(vec![1, 2, 3]));
        assert_eq!(cache.file_or(Some(&file), || panic!("it is there")), Ok(vec![1, 2, 3]));
        let unusable = file.join("below_a_file.cubin");
        assert_eq!(cache.file_or(Some(&unusable), || Ok(vec![4])), Ok(vec![4]));
        let failed = cache.file_or(Some(&folder.path().join("y")), || Err(CudaError::NoCompiler));
        assert_eq!(failed, Err(CudaError::NoCompiler));
    }
}
