//! Files that are there whole or not at all.
//!
//! The new content goes to a temporary file in the same directory, which takes the place of the old file in one
//! step. A reader sees the old file or the new one, never a part, even if the writer is killed or the machine
//! loses power; a writer that fails leaves the old file and nothing else behind.
//!
//! A link stays, and the file that it names is replaced. What is no file, such as `/dev/null` or a pipe, is written to as it is.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file that is being written and takes its place with [`AtomicFile::commit`]; dropped before, it vanishes.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    content: BufWriter<Content>,
}

/// Where the bytes go.
#[derive(Debug)]
enum Content {
    Temporary(NamedTempFile),
    /// What is no file cannot be replaced.
    Device(File),
}

impl AtomicFile {
    /// Starts to write the file at `path`, creates its directory where it is missing, and removes what killed
    /// writers of the same file have left there. Of several writers the last one to commit has the file.
    ///
    /// # Errors
    /// What the file system said.
    pub fn create(path: &Path) -> io::Result<Self> {
        let path = target(path)?;
        let content = match std::fs::metadata(&path) {
            Ok(data) if !data.is_file() && !data.is_dir() => {
                Content::Device(OpenOptions::new().write(true).open(&path)?)
            }
            _ => Content::Temporary(temporary(&path)?),
        };
        Ok(Self { path, content: BufWriter::with_capacity(1 << 18, content) })
    }

    /// Puts the finished file into its place. The order matters: first the content reaches the disk, then the
    /// name changes hands, then the directory that holds the name reaches the disk.
    ///
    /// # Errors
    /// What the file system said.
    pub fn commit(self) -> io::Result<()> {
        let temporary = match self.content.into_inner().map_err(|error| error.into_error())? {
            Content::Temporary(temporary) => temporary,
            Content::Device(_) => return Ok(()),
        };
        temporary.as_file().sync_all()?;
        let (_locked, temporary) = temporary.into_parts();
        std::fs::rename(&temporary, &self.path)?;
        // The name is taken: nothing is left to be removed.
        let _ = temporary.keep();
        sync_directory(directory_of(&self.path))
    }
}

/// Writes a file of these bytes.
///
/// # Errors
/// What the file system said.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes)?;
    file.commit()
}

/// Brings the names in a directory to the disk. Only Unix lets a directory be opened and synchronised.
///
/// # Errors
/// What the file system said.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

/// The directory that holds the name of a file.
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Removes with `remove` those of the entries of a directory that killed writers have left, by the beginning and the end of
/// their names. A writer that is at work holds a lock.
///
/// # Errors
/// What the file system said.
pub fn remove_stale(directory: &Path, prefix: &str, remove: fn(&Path) -> io::Result<()>) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let has_name =
            entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(SUFFIX));
        if has_name && !is_locked(&entry.path()) {
            match remove(&entry.path()) {
                // Another writer has removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
    }
    Ok(())
}

/// Marks a temporary file or folder as that of a writer at work, as long as it is open. Where a file system has no locks, none is
/// needed: there [`remove_stale`] takes everything to be in use.
pub fn lock_temporary(file: &File) {
    let _ = file.try_lock();
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.content.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.content.flush()
    }
}

impl Write for Content {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Content::Temporary(file) => file.write(bytes),
            Content::Device(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Content::Temporary(file) => file.flush(),
            Content::Device(file) => file.flush(),
        }
    }
}

/// How the names of temporary files and folders end.
pub const SUFFIX: &str = ".tmp";

/// The file behind a link.
fn target(path: &Path) -> io::Result<PathBuf> {
    match std::fs::symlink_metadata(path) {
        Ok(data) if data.is_symlink() => std::fs::canonicalize(path),
        _ => Ok(path.into()),
    }
}

fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    let directory = directory_of(path);
    std::fs::create_dir_all(directory)?;
    let prefix = temporary_prefix(path)?;
    remove_stale(directory, &prefix, |path| std::fs::remove_file(path))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(SUFFIX);
    // A temporary file is private by default; this one becomes an ordinary file, as open to others as the
    // user's umask says.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let temporary = builder.tempfile_in(directory)?;
    lock_temporary(temporary.as_file());
    Ok(temporary)
}

/// How the names of a file's temporary files begin: hidden, and with the name of the file.
///
/// # Errors
/// If the path has no file name, or one that is not UTF-8.
pub fn temporary_prefix(path: &Path) -> io::Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "this is no name of a file"))?;
    Ok(format!(".{name}."))
}

fn is_locked(path: &Path) -> bool {
    match File::open(path) {
        Ok(file) => file.try_lock().is_err(),
        // It is gone, or another process still uses it.
        Err(_) => true,
    }
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

    #[test]
    fn writers_at_the_same_time_leave_each_other_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes.txt");
        let mut first = AtomicFile::create(&path).unwrap();
        let mut second = AtomicFile::create(&path).unwrap();
        first.write_all(b"first").unwrap();
        second.write_all(b"second").unwrap();
        second.commit().unwrap();
        first.commit().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
        assert_eq!(names(directory.path()), ["notes.txt"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_devices_are_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| directory.path().join(name));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        let null = directory.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &null).unwrap();
        write(&null, b"nowhere").unwrap();
        assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
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
