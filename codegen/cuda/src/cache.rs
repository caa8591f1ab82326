//! Cubins, and choices of tiles and algorithms, on disk, so that a program compiles once on a machine. A file's name is all that
//! its content depends on: the hash of the whole source, the options and the architecture, and NVRTC's version. Files appear whole or
//! not at all, so that processes may share a folder.
//!
//! If the variable `KERNFUSION_CUBINS` names a folder of cubins, those are taken whatever version of NVRTC made them, without
//! asking for NVRTC: a machine with a GPU need not spend its time on what another one has compiled.

use super::nvrtc::{Form, OPTIONS, compile, version, whole_source};
use super::parallel::in_parallel;
use super::{CudaError, Function};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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

    /// The cubin of each function; those that are not there are compiled on all cores. A folder that cannot be written to keeps
    /// nothing, which is no error.
    ///
    /// # Errors
    /// As [`compile`], of the first function that cannot be compiled.
    pub fn cubins(&self, functions: &[&Function], architecture: &str) -> Result<Vec<Vec<u8>>, CudaError> {
        Ok(self.files(functions, architecture)?.into_iter().map(|(_, code)| code).collect())
    }

    /// As [`Cache::cubins`], each with the name that its file has in a folder for `KERNFUSION_CUBINS`.
    ///
    /// # Errors
    /// As [`Cache::cubins`].
    pub fn files(
        &self,
        functions: &[&Function],
        architecture: &str,
    ) -> Result<Vec<(String, Vec<u8>)>, CudaError> {
        in_parallel(functions.len(), |at| self.cubin(functions[at], architecture)).into_iter().collect()
    }

    fn cubin(&self, function: &Function, architecture: &str) -> Result<(String, Vec<u8>), CudaError> {
        let identity = identity(function, architecture);
        if let Some((name, code)) = made_elsewhere().get(&identity).and_then(|file| named(file)) {
            return Ok((name, code));
        }
        let (major, minor) = version()?;
        let name = format!("{identity}-{major}.{minor}.cubin");
        let file = self.folder.as_ref().map(|folder| folder.join(&name));
        let code =
            self.file_or(file.as_deref(), || Ok(compile(function, architecture, Form::Cubin)?.code))?;
        Ok((name, code))
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
        if let Some(code) = file.and_then(read) {
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

/// What a cubin depends on but for NVRTC's version.
fn identity(function: &Function, architecture: &str) -> String {
    hash([whole_source(function).as_str(), &OPTIONS.join(" "), architecture])
}

/// The files of the folder that the environment names, by the identity of their functions.
fn made_elsewhere() -> &'static HashMap<String, PathBuf> {
    static FILES: OnceLock<HashMap<String, PathBuf>> = OnceLock::new();
    FILES.get_or_init(|| {
        let folder = std::env::var_os("KERNFUSION_CUBINS").filter(|folder| !folder.is_empty());
        let files = folder.map(std::fs::read_dir).into_iter().flatten().flatten().flatten();
        let named = files.filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            Some((name.strip_suffix(".cubin")?.split_once('-')?.0.to_owned(), file.path()))
        });
        named.collect()
    })
}

/// A file's name, and what it has, if anything.
fn named(file: &Path) -> Option<(String, Vec<u8>)> {
    Some((file.file_name()?.to_str()?.to_owned(), read(file)?))
}

/// What a file has, if anything.
fn read(file: &Path) -> Option<Vec<u8>> {
    std::fs::read(file).ok().filter(|code| !code.is_empty())
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
        Function {
            name: "f".into(),
            text: text.into(),
            parameters: vec![],
            threads: 32,
            shared_bytes: 0,
            blocks: 1,
            is_packed: false,
        }
    }

    #[test]
    fn names_tell_everything_apart_that_matters() {
        let first = identity(&function("a"), "sm_80");
        assert_eq!(first, identity(&function("a"), "sm_80"));
        for other in [identity(&function("b"), "sm_80"), identity(&function("a"), "sm_90")] {
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
