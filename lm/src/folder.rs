//! A folder that is there whole or not at all: it is filled beside its place and then moved there.

use kernfusion::atomic_file::{
    SUFFIX, directory_of, lock_temporary, remove_stale, sync_directory, temporary_prefix,
};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Why a folder cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is something that would be lost.
    #[error(
        "{} is not empty; nothing was written: name another folder, or ask for it to be replaced (--overwrite)", path.display()
    )]
    Occupied {
        /// The folder.
        path: PathBuf,
    },
    /// A folder that is to be replaced has more than what is written into it.
    #[error("{} is not replaced: it has {name}, which is no file of what is written there", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// One of the others.
        name: String,
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

/// Whether a name in a folder is one of those that are written there, so that it may go with the folder that it is in.
pub type IsOurs<'a> = dyn Fn(&str) -> bool + 'a;

/// A folder in the making; dropped before [`NewFolder::commit`], it vanishes.
pub struct NewFolder {
    path: PathBuf,
    replaces: bool,
    temporary: TempDir,
    /// Open and locked as long as the folder is being written.
    _lock: Option<File>,
}

impl NewFolder {
    /// Begins a folder that will stand at `path`, and makes its parent where that is missing. A folder that has files is replaced
    /// if `replaces` is there and knows all of them.
    ///
    /// # Errors
    /// It has files and is not to be replaced, or has others than `replaces` knows; or the system refuses.
    pub fn create(path: &Path, replaces: Option<&IsOurs<'_>>) -> Result<Self, FolderError> {
        let failed = |cause| FolderError::Write { path: path.into(), cause };
        match (names(path).map_err(failed)?, replaces) {
            (names, _) if names.is_empty() => {}
            (_, None) => return Err(FolderError::Occupied { path: path.into() }),
            (names, Some(is_ours)) => {
                if let Some(name) = names.into_iter().find(|name| !is_ours(name)) {
                    return Err(FolderError::Foreign { path: path.into(), name });
                }
            }
        }
        let temporary = temporary(path).map_err(failed)?;
        // Only Unix opens folders.
        let lock = File::open(temporary.path()).ok();
        lock.iter().for_each(lock_temporary);
        Ok(NewFolder { path: path.into(), replaces: replaces.is_some(), temporary, _lock: lock })
    }

    /// Writes a file.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), FolderError> {
        self.write_with(name, &mut |file| file.write_all(bytes))
    }

    /// Lets `fill` write a file.
    ///
    /// # Errors
    /// What `fill` or the system says.
    pub fn write_with(
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
    ///
    /// # Errors
    /// It cannot be read, or the copy not be written.
    pub fn copy(&self, from: &Path, name: &str) -> Result<(), FolderError> {
        let mut source = kernfusion::input_file::open(from)
            .map_err(|cause| FolderError::Read { path: from.into(), cause })?;
        self.write_with(name, &mut |file| io::copy(&mut source, file).map(|_| ()))
    }

    /// Moves the folder to its place, and gives the names of its files, sorted.
    ///
    /// # Errors
    /// Another writer was faster, or the system refuses.
    pub fn commit(self) -> Result<Vec<String>, FolderError> {
        let NewFolder { path, replaces, temporary, _lock } = self;
        let failed = |cause| FolderError::Write { path: path.clone(), cause };
        let mut names = names(temporary.path()).map_err(failed)?;
        names.sort();
        sync_directory(temporary.path()).map_err(failed)?;
        // An empty folder that is there gives way.
        let is_moved = match fs::rename(temporary.path(), &path) {
            Ok(()) => true,
            Err(error) if is_occupied(&error) && replaces => {
                exchange(temporary.path(), &path).map_err(failed)?;
                false
            }
            // Another writer was faster.
            Err(error) if is_occupied(&error) => return Err(FolderError::Occupied { path }),
            Err(cause) => return Err(failed(cause)),
        };
        let aside = temporary.keep();
        if !is_moved {
            // The old folder is in nobody's way; if removing it fails twice, the next writer removes it.
            let _ = fs::remove_dir_all(&aside).or_else(|_| fs::remove_dir_all(&aside));
        }
        sync_directory(directory_of(&path)).map_err(failed)?;
        Ok(names)
    }
}

/// Whether a folder has no place because of another one.
fn is_occupied(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists)
}

/// The names in a folder; none if it is not there.
fn names(path: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn temporary(path: &Path) -> io::Result<TempDir> {
    let (parent, prefix) = (directory_of(path), temporary_prefix(path)?);
    fs::create_dir_all(parent)?;
    remove_stale(parent, &prefix, |path| fs::remove_dir_all(path))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(SUFFIX);
    // As open to others as the user's umask says.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    builder.tempdir_in(parent)
}

/// Two folders change places in one step.
#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE) {
        // Some file systems cannot.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => exchange_in_steps(a, b),
        done => Ok(done?),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    exchange_in_steps(a, b)
}

/// Between the first two steps there is nothing at `b`.
fn exchange_in_steps(a: &Path, b: &Path) -> io::Result<()> {
    let aside = a.with_extension("replaced.tmp");
    fs::rename(b, &aside)?;
    fs::rename(a, b).inspect_err(|_| _ = fs::rename(&aside, b))?;
    fs::rename(&aside, a)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: &IsOurs<'static> = &|_| true;

    #[test]
    fn a_folder_appears_whole_and_replaces_another_only_if_asked() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("deep/model");
        let new = NewFolder::create(&path, None).unwrap();
        new.write("a", b"1").unwrap();
        assert!(!path.exists());
        assert_eq!(new.commit().unwrap(), ["a"]);
        assert_eq!(fs::read(path.join("a")).unwrap(), b"1");
        let error = NewFolder::create(&path, None).err().unwrap().to_string();
        assert!(error.contains("deep/model is not empty; nothing was written"), "{error}");
        let new = NewFolder::create(&path, Some(ANY)).unwrap();
        new.write("b", b"2").unwrap();
        new.commit().unwrap();
        assert_eq!(
            (names(&path).unwrap(), names(path.parent().unwrap()).unwrap()),
            (vec!["b".into()], vec!["model".into()])
        );
    }

    #[test]
    fn what_is_not_ours_stays() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("model");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("letter.txt"), "Dear reader").unwrap();
        let error = NewFolder::create(&path, Some(&|name| name == "a")).err().unwrap().to_string();
        assert!(error.contains("it has letter.txt, which is no file of what is written there"), "{error}");
        assert_eq!(names(work.path()).unwrap(), ["model"]);
    }

    #[test]
    fn folders_change_places_also_in_steps() {
        let work = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| work.path().join(name));
        for (folder, name) in [(&a, "one"), (&b, "two")] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join(name), name).unwrap();
        }
        exchange_in_steps(&a, &b).unwrap();
        assert_eq!((names(&a).unwrap(), names(&b).unwrap()), (vec!["two".into()], vec!["one".into()]));
        exchange(&a, &b).unwrap();
        assert_eq!((names(&a).unwrap(), names(&b).unwrap()), (vec!["one".into()], vec!["two".into()]));
        assert_eq!(names(work.path()).unwrap().len(), 2);
    }

    #[test]
    fn what_a_killed_writer_has_left_is_removed_and_what_another_is_writing_stays() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("model");
        fs::create_dir(work.path().join(".model.Ab12.tmp")).unwrap();
        let first = NewFolder::create(&path, None).unwrap();
        let second = NewFolder::create(&path, None).unwrap();
        assert_eq!(names(work.path()).unwrap().len(), 2);
        second.write("a", b"2").unwrap();
        second.commit().unwrap();
        // The one that comes second does not replace what it did not see.
        let error = first.commit().unwrap_err().to_string();
        assert!(error.contains("is not empty; nothing was written"), "{error}");
        assert_eq!(names(work.path()).unwrap(), ["model"]);
    }

    #[test]
    fn a_folder_that_is_given_up_leaves_nothing() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("model");
        let new = NewFolder::create(&path, None).unwrap();
        new.write("a", b"1").unwrap();
        let missing = new.copy(&work.path().join("none"), "b").unwrap_err().to_string();
        assert!(missing.starts_with("cannot read ") && missing.contains("none"), "{missing}");
        drop(new);
        assert_eq!(names(work.path()).unwrap(), Vec::<String>::new());
        fs::write(&path, "a file").unwrap();
        assert!(NewFolder::create(&path, Some(ANY)).is_err());
    }
}
