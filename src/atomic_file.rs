//! Files that are there whole or not at all.
//!
//! The new content goes to a temporary file in the same directory, which takes the place of the old file in one
//! step. A reader sees the old file or the new one, never a part, even if the writer is killed or the machine
//! loses power; a writer that fails leaves the old file and nothing else behind.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file that is being written and takes its place with [`AtomicFile::commit`]; dropped before, it vanishes.
#[derive(Debug)]
pub(crate) struct AtomicFile {
    path: PathBuf,
    directory: PathBuf,
    temporary: BufWriter<NamedTempFile>,
}

impl AtomicFile {
    /// Starts to write the file at `path`, creates its directory where it is missing, and removes what killed
    /// writers of the same file have left there. A file has one writer at a time.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        std::fs::create_dir_all(&directory)?;
        let prefix = temporary_prefix(path)?;
        remove_stale(&directory, &prefix)?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(SUFFIX);
        // A temporary file is private by default; this one becomes an ordinary file, as open to others as the
        // user's umask says.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let temporary = BufWriter::with_capacity(1 << 18, builder.tempfile_in(&directory)?);
        Ok(Self { path: path.into(), directory, temporary })
    }

    /// Puts the finished file into its place. The order matters: first the content reaches the disk, then the
    /// name changes hands, then the directory that holds the name reaches the disk.
    pub(crate) fn commit(self) -> io::Result<()> {
        let temporary = self.temporary.into_inner().map_err(|error| error.into_error())?;
        temporary.as_file().sync_all()?;
        temporary.persist(&self.path).map_err(|error| error.error)?;
        // Only Unix lets a directory be opened and synchronised.
        if cfg!(unix) { File::open(&self.directory)?.sync_all() } else { Ok(()) }
    }
}

/// Writes a file of these bytes.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes)?;
    file.commit()
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.temporary.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temporary.flush()
    }
}

/// How the names of temporary files end.
const SUFFIX: &str = ".tmp";

/// How the names of a file's temporary files begin: hidden, and with the name of the file.
fn temporary_prefix(path: &Path) -> io::Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "this is not a file's name"))?;
    Ok(format!(".{name}."))
}

fn remove_stale(directory: &Path, prefix: &str) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let is_stale =
            entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(SUFFIX));
        if is_stale {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_old_file_stays_until_the_commit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/down/notes.txt");
        for content in ["first", "the second, longer one", "3rd"] {
            let before = std::fs::read(&path).ok();
            let mut file = AtomicFile::create(&path).unwrap();
            file.write_all(content.as_bytes()).unwrap();
            file.flush().unwrap();
            assert_eq!(std::fs::read(&path).ok(), before);
            file.commit().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(names(path.parent().unwrap()), ["notes.txt"]);
    }

    #[test]
    fn a_writer_that_gives_up_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes.txt");
        std::fs::write(&path, "old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"half of the n").unwrap();
        drop(file);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(directory.path()), ["notes.txt"]);
    }

    #[test]
    fn only_stale_files_of_the_same_name_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let others = [".notes.txt.keep", ".other.txt.Ab12.tmp", "notes.txt.tmp"];
        for name in others.iter().chain(&[".notes.txt.Cd34.tmp"]) {
            std::fs::write(directory.path().join(name), "x").unwrap();
        }
        AtomicFile::create(&directory.path().join("notes.txt")).unwrap().commit().unwrap();
        assert_eq!(names(directory.path()), [others[0], others[1], "notes.txt", others[2]]);
    }

    #[cfg(unix)]
    #[test]
    fn the_file_is_as_open_as_one_created_plainly() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let (plain, atomic) = (directory.path().join("plain"), directory.path().join("atomic"));
        std::fs::write(&plain, "x").unwrap();
        AtomicFile::create(&atomic).unwrap().commit().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&atomic), mode(&plain));
    }

    #[test]
    fn a_name_that_cannot_be_taken_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(AtomicFile::create(&directory.path().join("..")).is_err());
        let occupied = directory.path().join("occupied");
        std::fs::create_dir(&occupied).unwrap();
        assert!(AtomicFile::create(&occupied).unwrap().commit().is_err());
        assert_eq!(names(directory.path()), ["occupied"]);
        let inside_file = directory.path().join("file");
        std::fs::write(&inside_file, "x").unwrap();
        assert!(AtomicFile::create(&inside_file.join("notes.txt")).is_err());
    }
}
