//! Bytes that lie in a file one after another, such as a storage of an archive: they are found when the file is opened, and read when they are
//! asked for. So at most one storage is in memory, however large the file is.

use crate::error::ImportError;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are read at once: their checksum is taken, and they are written, while they are in the processor's cache.
const CHUNK: usize = 1 << 18;

/// A part of a file that stays open, as long as something may be read of it.
#[derive(Clone)]
pub(crate) struct Section {
    file: Arc<Mutex<Shared>>,
    start: u64,
    length: u64,
    /// Where it is read on, from its start.
    at: u64,
}

/// A file, and what was read last of it for several tensors.
struct Shared {
    file: File,
    kept: Option<(u64, Arc<Vec<u8>>)>,
}

impl Section {
    /// All of a file.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn of(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Section { file: Arc::new(Mutex::new(Shared { file, kept: None })), start: 0, length, at: 0 })
    }

    /// How many bytes there are.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// A part of it, if it is not longer.
    pub(crate) fn part(&self, start: u64, length: u64) -> Option<Self> {
        let fits = start.checked_add(length).is_some_and(|end| end <= self.length);
        fits.then(|| Section { file: self.file.clone(), start: self.start + start, length, at: 0 })
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Read for Section {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.length.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let most = bytes.len().min(left);
        if most == 0 {
            // It may stand anywhere behind the end.
            return Ok(0);
        }
        let count = {
            let file = &mut self.shared().file;
            file.seek(SeekFrom::Start(self.start + self.at))?;
            file.read(&mut bytes[..most])?
        };
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Section {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Bytes with a name, and the checksum that they must have.
pub(crate) struct Storage {
    path: Arc<Path>,
    name: String,
    section: Section,
    length: usize,
    checksum: Option<u32>,
}

impl Storage {
    /// The bytes of a section, if they may be in memory; without a checksum they are taken as they are.
    pub(crate) fn new(path: &Path, name: &str, section: Section, checksum: Option<u32>) -> Option<Self> {
        let length = usize::try_from(section.length).ok()?;
        Some(Storage { path: path.into(), name: name.into(), section, length, checksum })
    }

    /// As it is, with another name in messages.
    pub(crate) fn named(self, name: String) -> Self {
        Storage { name, ..self }
    }

    /// How many bytes there are.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Where they are.
    pub(crate) fn section(&self) -> &Section {
        &self.section
    }

    /// The error that the bytes are not as they must be.
    pub(crate) fn wrong(&self, reason: impl std::fmt::Display) -> io::Error {
        let reason = format!("{}: {reason}", self.name);
        io::Error::other(ImportError::Archive { path: self.path.to_path_buf(), reason })
    }

    /// Reads all of it into as many bytes.
    ///
    /// # Errors
    /// It cannot be read, or its checksum is another one.
    pub(crate) fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut reading = self.reading();
        bytes.chunks_mut(CHUNK).try_for_each(|chunk| reading.next(chunk))
    }

    /// Copies all of it, in parts: where the checksum is another one, this comes to light when they are written.
    ///
    /// # Errors
    /// As [`Storage::fill`]; those of `to`.
    pub(crate) fn copy_to(&self, to: &mut dyn Write) -> io::Result<()> {
        let (mut reading, mut bytes) = (self.reading(), vec![0; CHUNK.min(self.length)]);
        for start in (0..self.length).step_by(CHUNK) {
            let chunk = &mut bytes[..CHUNK.min(self.length - start)];
            reading.next(chunk)?;
            to.write_all(chunk)?;
        }
        Ok(())
    }

    /// All of it.
    ///
    /// # Errors
    /// As [`Storage::fill`]; there is no memory for it.
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![];
        bytes.try_reserve_exact(self.length).map_err(|error| self.wrong(error))?;
        bytes.resize(self.length, 0);
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// All of it, kept until something else of the file is read: the next tensor may lie in it, too.
    ///
    /// # Errors
    /// As [`Storage::read`].
    pub(crate) fn kept(&self) -> io::Result<Arc<Vec<u8>>> {
        let start = self.section.start;
        let kept = self.section.shared().kept.clone();
        if let Some((_, bytes)) = kept.filter(|(other, bytes)| (*other, bytes.len()) == (start, self.length))
        {
            return Ok(bytes);
        }
        let bytes = Arc::new(self.read()?);
        self.section.shared().kept = Some((start, bytes.clone()));
        Ok(bytes)
    }

    /// Begins to read it, which ends the time of what was kept.
    fn reading(&self) -> Reading<'_> {
        self.section.shared().kept = None;
        let section = Section { at: 0, ..self.section.clone() };
        Reading { storage: self, section, sum: crc32fast::Hasher::new() }
    }
}

/// A storage that is being read.
struct Reading<'s> {
    storage: &'s Storage,
    section: Section,
    sum: crc32fast::Hasher,
}

impl Reading<'_> {
    /// Reads the next bytes. With the last ones the checksum is compared.
    fn next(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let storage = self.storage;
        let unread = |cause| storage.wrong(format!("it cannot be read whole: {cause}"));
        self.section.read_exact(bytes).map_err(unread)?;
        let Some(checksum) = storage.checksum else { return Ok(()) };
        self.sum.update(bytes);
        match self.section.at == self.section.length && self.sum.clone().finalize() != checksum {
            true => Err(storage.wrong("its checksum is another one, so it is not as it was written")),
            false => Ok(()),
        }
    }
}
