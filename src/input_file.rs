//! Files that a user names to be read.
//!
//! They must be regular files. Reading a whole pipe or device may never end, or may use up memory, and even opening one may wait; so
//! they are refused before they are opened. Only a program in text form may come from a pipe, since people write it there.

use std::fs::{File, metadata};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Opens a file.
///
/// # Errors
/// What the operating system says; [`ErrorKind::InvalidInput`] or [`ErrorKind::IsADirectory`] for what is no regular file.
pub fn open(path: &Path) -> Result<File> {
    let kind = metadata(path)?.file_type();
    match () {
        () if kind.is_file() => File::open(path),
        () if kind.is_dir() => Err(Error::new(ErrorKind::IsADirectory, "it is a directory")),
        () => Err(Error::new(ErrorKind::InvalidInput, "it is a pipe or a device, not a regular file")),
    }
}

/// All bytes of a file.
///
/// # Errors
/// As [`open`]; [`ErrorKind::OutOfMemory`] if there is no memory for them.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    open(path)?;
    std::fs::read(path)
}

/// All of a text.
///
/// # Errors
/// As [`read`]; [`ErrorKind::InvalidData`] if it is not UTF-8, with the place of the first byte that is not.
pub fn read_text(path: &Path) -> Result<String> {
    decoded(read(path)?)
}

/// All of a text that may come out of a pipe, such as `/dev/stdin`, until that ends.
///
/// # Errors
/// As [`read_text`]; [`ErrorKind::FileTooLarge`] if more comes than any text has that is meant to be read so.
pub fn read_piped_text(path: &Path) -> Result<String> {
    /// A device may never end.
    const MOST: u64 = 256 << 20;
    if metadata(path)?.is_file() || metadata(path)?.is_dir() {
        return read_text(path);
    }
    let mut bytes = vec![];
    File::open(path)?.take(MOST + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MOST {
        true => Err(Error::new(ErrorKind::FileTooLarge, "more than 256 MiB come out of it")),
        false => decoded(bytes),
    }
}

fn decoded(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let reason = format!("it is not UTF-8 text: the byte at offset {at} cannot be decoded");
        Error::new(ErrorKind::InvalidData, reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_are_read_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let message = |path: &Path| read_text(path).unwrap_err().to_string();
        assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::write(&path, "text").unwrap();
        assert_eq!(read_text(&path).unwrap(), "text");
        std::fs::write(&path, b"te\xffxt").unwrap();
        assert_eq!(message(&path), "it is not UTF-8 text: the byte at offset 2 cannot be decoded");
        assert_eq!(read(&path).unwrap(), b"te\xffxt");
        assert_eq!(message(directory.path()), "it is a directory");
    }

    #[cfg(unix)]
    #[test]
    fn a_program_may_come_out_of_a_pipe() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::write(pipe, "text").unwrap()
        });
        assert_eq!(read_piped_text(&pipe).unwrap(), "text");
        writer.join().unwrap();
        assert_eq!(read_piped_text(directory.path()).unwrap_err().kind(), ErrorKind::IsADirectory);
    }

    #[cfg(unix)]
    #[test]
    fn what_never_ends_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&pipe, Path::new("/dev/zero")] {
            let message = read(path).unwrap_err().to_string();
            assert_eq!(message, "it is a pipe or a device, not a regular file", "{}", path.display());
        }
        assert_eq!(read_piped_text(Path::new("/dev/zero")).unwrap_err().kind(), ErrorKind::FileTooLarge);
        let ring = directory.path().join("ring");
        std::os::unix::fs::symlink(&ring, &ring).unwrap();
        assert!(read(&ring).is_err());
    }
}
