//! A log of JSON objects, one a line, that only grows.
//!
//! Every line is complete as soon as it is written, so the log can be followed while a run goes on. What a crash
//! may have left, the beginning of a line, is cut off before anything is appended.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What can go wrong with a log.
#[derive(Debug, thiserror::Error)]
pub enum JsonLinesError {
    /// The file cannot be created, read or written.
    #[error("cannot write the log {}: {cause}", path.display())]
    Io {
        /// The log.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The file to append to ends in something that is not the beginning of a JSON object, so it is probably no log,
    /// and nothing of it is cut off.
    #[error("{} is not a log of JSON lines: its last line does not begin with a brace", path.display())]
    NotALog {
        /// The file.
        path: PathBuf,
    },
    /// Another process writes to the log.
    #[error("the log {} is in use: another process writes to it", path.display())]
    InUse {
        /// The log.
        path: PathBuf,
    },
    /// A row is not a JSON object, or cannot be written as JSON.
    #[error("a row of the log {} {reason}", path.display())]
    Row {
        /// The log.
        path: PathBuf,
        /// What is wrong with the row.
        reason: String,
    },
}

/// A log that is open for writing.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
    /// Bytes up to the end of the last complete line.
    length: u64,
}

impl JsonLines {
    /// Starts a new log; a file of that name loses its content.
    ///
    /// # Errors
    /// [`JsonLinesError::Io`].
    pub fn create(path: &Path) -> Result<Self, JsonLinesError> {
        let mut options = OpenOptions::new();
        let file = open(path, options.write(true))?;
        let is_file = file.metadata().is_ok_and(|data| data.is_file());
        // A pipe or a device has no length to be cut.
        let emptied = if is_file { file.set_len(0) } else { Ok(()) };
        emptied.map_err(|cause| JsonLinesError::Io { path: path.into(), cause })?;
        Ok(Self { path: path.into(), file, length: 0 })
    }

    /// Continues a log, or starts it where there is none. A last line without its end is completed if it is a
    /// whole object, and cut off otherwise.
    ///
    /// # Errors
    /// [`JsonLinesError::Io`]; [`JsonLinesError::NotALog`] for a file that holds something else.
    pub fn append(path: &Path) -> Result<Self, JsonLinesError> {
        let io_error = |cause| JsonLinesError::Io { path: path.into(), cause };
        let mut options = OpenOptions::new();
        let mut file = open(path, options.read(true).write(true))?;
        let (complete, tail) = last_line(&mut file).map_err(io_error)?;
        let mut log = Self { path: path.into(), file, length: complete };
        if tail.first().is_some_and(|byte| *byte != b'{') {
            return Err(JsonLinesError::NotALog { path: log.path });
        }
        log.file.set_len(complete).and_then(|()| log.file.seek(SeekFrom::End(0))).map_err(io_error)?;
        if serde_json::from_slice::<serde_json::Value>(&tail).is_ok() {
            log.write_line(tail)?;
        }
        Ok(log)
    }

    /// Writes one row. It is in the file, with the end of its line, when this returns. JSON has no NaN and no
    /// infinity; they become `null`.
    ///
    /// # Errors
    /// [`JsonLinesError::Row`] if `row` is not a JSON object; [`JsonLinesError::Io`] if it cannot be written, and
    /// then nothing of it stays in the file.
    pub fn write(&mut self, row: &impl Serialize) -> Result<(), JsonLinesError> {
        let line = serde_json::to_vec(row);
        let line = line.map_err(|error| self.bad_row(format!("cannot be written as JSON: {error}")))?;
        if line.first() != Some(&b'{') {
            return Err(self.bad_row("is not an object".into()));
        }
        self.write_line(line)
    }

    fn bad_row(&self, reason: String) -> JsonLinesError {
        JsonLinesError::Row { path: self.path.clone(), reason }
    }

    /// One call for the whole line, so that a crash leaves at most one incomplete line, the last.
    fn write_line(&mut self, mut line: Vec<u8>) -> Result<(), JsonLinesError> {
        line.push(b'\n');
        let written = self.file.write_all(&line).and_then(|()| self.file.flush());
        match written {
            Ok(()) => self.length += line.len() as u64,
            Err(cause) => {
                // The disk may be full: take back what part of the line was written. If that fails too, the next
                // `append` does it.
                let _ = self.file.set_len(self.length).and_then(|()| self.file.seek(SeekFrom::End(0)));
                return Err(JsonLinesError::Io { path: self.path.clone(), cause });
            }
        }
        Ok(())
    }
}

/// Opens a log for this process alone. Pipes and devices may have several writers, and so may file systems without locks.
fn open(path: &Path, options: &mut OpenOptions) -> Result<File, JsonLinesError> {
    let failed = |cause| JsonLinesError::Io { path: path.into(), cause };
    let file = options.create(true).truncate(false).open(path).map_err(failed)?;
    let is_file = file.metadata().map_err(failed)?.is_file();
    match file.try_lock() {
        Err(TryLockError::WouldBlock) if is_file => Err(JsonLinesError::InUse { path: path.into() }),
        _ => Ok(file),
    }
}

/// The length up to the end of the last complete line, and what follows it. Reads backwards, for logs grow long.
fn last_line(file: &mut File) -> io::Result<(u64, Vec<u8>)> {
    let mut start = file.metadata()?.len();
    let mut tail = Vec::new();
    while start > 0 {
        let size = start.min(1 << 14);
        start -= size;
        let mut block = vec![0; size as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        if let Some(newline) = block.iter().rposition(|byte| *byte == b'\n') {
            tail.splice(..0, block.drain(newline + 1..));
            return Ok((start + newline as u64 + 1, tail));
        }
        tail.splice(..0, block);
    }
    Ok((0, tail))
}

/// What can be wrong with a file of rows.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// The file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// A line is no row.
    #[error("{}, line {line}: {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// There are no rows.
    #[error("{} has no rows", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// All rows of a file with one JSON object in a line; blank lines count for nothing.
///
/// # Errors
/// [`RowsError`], with the number of the line that is no row.
pub fn read_rows<T: DeserializeOwned>(path: &Path) -> std::result::Result<Vec<T>, RowsError> {
    let read = kernfusion::input_file::read_text(path);
    let text = read.map_err(|cause| RowsError::Read { path: path.into(), cause })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let row = |(number, line): (usize, &str)| {
        let invalid = |error: serde_json::Error| RowsError::Row {
            path: path.into(),
            line: number + 1,
            reason: error.to_string(),
        };
        serde_json::from_str(line).map_err(invalid)
    };
    let rows = lines.map(row).collect::<std::result::Result<Vec<T>, _>>()?;
    if rows.is_empty() { Err(RowsError::Empty { path: path.into() }) } else { Ok(rows) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn content(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn rows_are_lines_and_are_there_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.jsonl");
        let mut log = JsonLines::create(&path).unwrap();
        log.write(&json!({"step": 1, "loss": 4.25})).unwrap();
        assert_eq!(content(&path), "{\"loss\":4.25,\"step\":1}\n");
        log.write(&json!({"note": "two\nlines", "loss": f32::NAN})).unwrap();
        assert_eq!(content(&path).lines().nth(1), Some(r#"{"loss":null,"note":"two\nlines"}"#));
        // One process, one writer at a time.
        assert!(matches!(JsonLines::create(&path), Err(JsonLinesError::InUse { .. })));
        drop(log);
        drop(JsonLines::create(&path).unwrap());
        assert_eq!(content(&path), "");
    }

    #[test]
    fn append_continues_creates_and_repairs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.jsonl");
        // A long half line crosses several blocks of the backward search.
        let long_half = format!("{{\"step\":1}}\n{{\"text\":\"{}", "x".repeat(40_000));
        let long_first = format!("{{\"text\":\"{}", "x".repeat(40_000));
        let cases = [
            (None, "{\"step\":2}\n"),
            (Some(""), "{\"step\":2}\n"),
            (Some("{\"step\":1}\n"), "{\"step\":1}\n{\"step\":2}\n"),
            (Some("{\"step\":1}\n{\"st"), "{\"step\":1}\n{\"step\":2}\n"),
            (Some("{\"step\":1}\n{\"step\":7}"), "{\"step\":1}\n{\"step\":7}\n{\"step\":2}\n"),
            (Some("{"), "{\"step\":2}\n"),
            (Some(long_half.as_str()), "{\"step\":1}\n{\"step\":2}\n"),
            (Some(long_first.as_str()), "{\"step\":2}\n"),
        ];
        for (before, after) in cases {
            match before {
                Some(before) => std::fs::write(&path, before).unwrap(),
                None => assert!(!path.exists()),
            }
            JsonLines::append(&path).unwrap().write(&json!({"step": 2})).unwrap();
            assert_eq!(content(&path), after, "after {before:?}");
        }
    }

    #[test]
    fn a_crash_at_any_byte_costs_no_complete_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.jsonl");
        let whole = "{\"step\":1,\"loss\":4.5}\n{\"step\":2,\"loss\":3.75}\n";
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            JsonLines::append(&path).unwrap().write(&json!({"step": 9})).unwrap();
            let rows: Vec<serde_json::Value> =
                content(&path).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let complete = whole[..length].matches('}').count();
            assert_eq!(rows.len(), complete + 1, "cut at {length}");
            assert_eq!(rows[complete], json!({"step": 9}));
        }
    }

    #[test]
    fn a_file_that_is_no_log_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("letter.txt");
        std::fs::write(&path, "Dear reader,\nyours").unwrap();
        let error = JsonLines::append(&path).unwrap_err().to_string();
        assert!(error.contains("letter.txt is not a log of JSON lines"), "{error}");
        assert_eq!(content(&path), "Dear reader,\nyours");
    }

    #[test]
    fn rows_that_are_no_objects_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.jsonl");
        let mut log = JsonLines::create(&path).unwrap();
        let error = log.write(&[1, 2]).unwrap_err().to_string();
        assert!(error.ends_with("log.jsonl is not an object"), "{error}");
        let no_json = std::collections::BTreeMap::from([((1, 2), 3)]);
        let error = log.write(&no_json).unwrap_err().to_string();
        assert!(error.contains("cannot be written as JSON"), "{error}");
        assert_eq!(content(&path), "");
    }

    #[test]
    fn a_log_that_cannot_be_opened_is_an_error_with_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing/log.jsonl");
        for error in [JsonLines::create(&path).unwrap_err(), JsonLines::append(&path).unwrap_err()] {
            let error = error.to_string();
            assert!(
                error.starts_with("cannot write the log ") && error.contains("missing/log.jsonl"),
                "{error}"
            );
        }
    }

    /// `/dev/full` takes no byte, as a full disk does.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error() {
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut log = JsonLines { path: "/dev/full".into(), file, length: 0 };
        let error = log.write(&json!({"step": 1})).unwrap_err().to_string();
        assert!(error.starts_with("cannot write the log /dev/full: "), "{error}");
    }
}
