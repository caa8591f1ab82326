//! A folder that is there whole or not at all: it is filled beside its place and then moved there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Why a folder cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is something that would be lost.
    #[error("{} has files that would be replaced: name another folder, or ask for it (--force)", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
    },
    /// A file or the folder itself cannot be written.
    #[error("cannot write {}: {cause}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// A file that was to be copied cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
}

/// A folder in the making; dropped before [`NewFolder::commit`], it vanishes.
pub(super) struct NewFolder {
    path: PathBuf,
    temporary: TempDir,
}

impl NewFolder {
    /// Begins a folder that will stand at `path`, and makes its parent where that is missing.
    pub(super) fn create(path: &Path, replaces: bool) -> Result<Self, FolderError> {
        let failed = |cause| FolderError::Write { path: path.into(), cause };
        let is_occupied = match fs::read_dir(path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            // A file, or a folder that cannot be read.
            Err(cause) => return Err(failed(cause)),
        };
        if is_occupied && !replaces {
            return Err(FolderError::Occupied { path: path.into() });
        }
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent).map_err(failed)?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(".kernfusion.");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
        Ok(NewFolder { path: path.into(), temporary: builder.tempdir_in(parent).map_err(failed)? })
    }

    /// Writes a file.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), FolderError> {
        self.write_with(name, &mut |file| file.write_all(bytes))
    }

    /// Lets `fill` write a file.
    pub(super) fn write_with(
        &self,
        name: &str,
        fill: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), FolderError> {
        let mut write = || {
            let mut file =
                io::BufWriter::with_capacity(1 << 18, File::create(self.temporary.path().join(name))?);
            fill(&mut file)?;
            file.into_inner().map_err(|error| error.into_error())?.sync_all()
        };
        write().map_err(|cause| FolderError::Write { path: self.path.join(name), cause })
    }

    /// Copies a file.
    pub(super) fn copy(&self, from: &Path, name: &str) -> Result<(), FolderError> {
        let mut source =
            crate::input_file::open(from).map_err(|cause| FolderError::Read { path: from.into(), cause })?;
        self.write_with(name, &mut |file| io::copy(&mut source, file).map(|_| ()))
    }

    /// Moves the folder to its place, and gives the names of its files, sorted.
    pub(super) fn commit(self) -> Result<Vec<String>, FolderError> {
        let NewFolder { path, temporary } = self;
        let failed = |cause| FolderError::Write { path: path.clone(), cause };
        let entries = fs::read_dir(temporary.path()).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let names = entries.map_err(failed)?.into_iter().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        // What stood there goes away with the second temporary folder, after the new one has its place.
        let parent = temporary.path().parent().expect("made in a folder");
        let old = tempfile::Builder::new().prefix(".kernfusion.").tempdir_in(parent).map_err(failed)?;
        let aside = old.path().join("replaced");
        let had = path.exists();
        if had {
            fs::rename(&path, &aside).map_err(failed)?;
        }
        if let Err(cause) = fs::rename(temporary.path(), &path) {
            if had {
                fs::rename(&aside, &path).map_err(failed)?;
            }
            return Err(failed(cause));
        }
        // Nothing is left to be removed.
        let _ = temporary.keep();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_appears_whole_and_replaces_another_only_if_asked() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("deep/model");
        let new = NewFolder::create(&path, false).unwrap();
        new.write("a", b"1").unwrap();
        assert!(!path.exists());
        assert_eq!(new.commit().unwrap(), ["a"]);
        assert_eq!(fs::read(path.join("a")).unwrap(), b"1");
        let error = NewFolder::create(&path, false).err().unwrap().to_string();
        assert!(error.contains("deep/model has files that would be replaced"), "{error}");
        let new = NewFolder::create(&path, true).unwrap();
        new.write("b", b"2").unwrap();
        new.commit().unwrap();
        assert_eq!((names(&path), names(path.parent().unwrap())), (vec!["b".into()], vec!["model".into()]));
    }

    #[test]
    fn a_folder_that_is_given_up_leaves_nothing() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("model");
        let new = NewFolder::create(&path, false).unwrap();
        new.write("a", b"1").unwrap();
        let missing = new.copy(&work.path().join("none"), "b").unwrap_err().to_string();
        assert!(missing.starts_with("cannot read ") && missing.contains("none"), "{missing}");
        drop(new);
        assert_eq!(names(work.path()), Vec::<String>::new());
        fs::write(&path, "a file").unwrap();
        assert!(NewFolder::create(&path, true).is_err());
    }
}
