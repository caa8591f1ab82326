//! Archives that `torch.export.save` writes: a zip with stored entries in one folder.
//!
//! ```text
//! NAME/archive_format                             pt2
//! NAME/byteorder                                  little
//! NAME/models/model.json                          the graph
//! NAME/data/weights/model_weights_config.json     which file has a parameter or a buffer, and how it lies there
//! NAME/data/weights/weight_0                      the bytes of a storage
//! NAME/data/constants/model_constants_config.json
//! NAME/data/constants/tensor_0
//! ```
//!
//! PyTorch 2.8 and older write an archive of `torch.save` for all weights, `NAME/data/weights/model.pt`, and one for all constants:
//!
//! ```text
//! archive/data.pkl                                which file has a parameter or a buffer, as a pickle
//! archive/data/0                                  the bytes of a storage
//! ```

use crate::error::ImportError;
use kernfusion::input_file;
use std::io::{BufReader, Cursor, Read, Seek};
use std::path::{Path, PathBuf};
use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

/// An open archive.
pub(crate) struct Archive {
    path: PathBuf,
    zip: ZipArchive<Box<dyn Source>>,
    /// The name of the folder that has everything.
    root: String,
    /// Bytes of the file: no entry has more.
    length: u64,
}

/// A file, or an entry of one.
trait Source: Read + Seek {}

impl<S: Read + Seek> Source for S {}

impl Archive {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, is no zip, or has no exported program in it.
    pub(crate) fn open(path: &Path) -> Result<Self, ImportError> {
        let read = |cause| ImportError::Read { path: path.into(), cause };
        let file = input_file::open(path).map_err(read)?;
        let length = file.metadata().map_err(read)?.len();
        let kind = ("archive_format", "torch.export.save");
        let mut archive = Archive::of(path, Box::new(BufReader::new(file)), length, kind)?;
        let order = if archive.has("byteorder") { archive.read("byteorder")? } else { b"little".to_vec() };
        match (archive.read("archive_format")?.as_slice(), order.as_slice()) {
            (b"pt2", b"little") => Ok(archive),
            (b"pt2", _) => Err(archive.wrong("its numbers are not little-endian".into())),
            _ => Err(archive.wrong("its archive_format is not pt2".into())),
        }
    }

    /// Opens an entry that `torch.save` wrote.
    ///
    /// # Errors
    /// As of [`Archive::open`].
    pub(crate) fn open_saved(&mut self, entry: &str) -> Result<Archive, ImportError> {
        let bytes = self.read(entry)?;
        let (path, length) = (self.path.clone(), bytes.len() as u64);
        let saved = Archive::of(&path, Box::new(Cursor::new(bytes)), length, ("data.pkl", "torch.save"));
        let mut saved = saved?;
        match saved.has("byteorder") && saved.read("byteorder")? != b"little" {
            true => Err(saved.wrong(format!("{entry}: its numbers are not little-endian"))),
            false => Ok(saved),
        }
    }

    /// An archive that has an entry of this name in its folder, and what it is called.
    fn of(
        path: &Path,
        source: Box<dyn Source>,
        length: u64,
        (entry, kind): (&str, &str),
    ) -> Result<Archive, ImportError> {
        let wrong = |reason: String| ImportError::Archive { path: path.into(), reason };
        // The directory is where the file says: nothing stands in front of an archive. Where this is found out, the zip64 record that
        // PyTorch writes behind a directory is taken for its first entry, if that has the same length.
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let zip = ZipArchive::with_config(config, source)
            .map_err(|error| wrong(format!("it is no whole archive of {kind}: {error}")))?;
        let mut names = zip.file_names().filter_map(Result::ok);
        let root = names.find_map(|name| Some(name.strip_suffix(entry)?.strip_suffix('/')?.to_string()));
        drop(names);
        let root =
            root.ok_or_else(|| wrong(format!("it is a zip, but not of {kind}: {entry} is missing")))?;
        Ok(Archive { path: path.into(), zip, root, length })
    }

    /// The error that the archive is not as it must be.
    pub(crate) fn wrong(&self, reason: String) -> ImportError {
        ImportError::Archive { path: self.path.clone(), reason }
    }

    /// Whether there is an entry.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.zip.index_for_name(&format!("{}/{name}", self.root)).is_some()
    }

    /// The names in a folder, without its name.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let folder = format!("{}/{folder}/", self.root);
        let all = self.zip.file_names().filter_map(Result::ok);
        let mut names: Vec<_> =
            all.filter_map(|name| Some(name.strip_prefix(&folder)?.to_string())).collect();
        names.sort();
        names
    }

    /// The bytes of an entry.
    ///
    /// # Errors
    /// It is missing, compressed, cut off, or its checksum is another one.
    pub(crate) fn read(&mut self, name: &str) -> Result<Vec<u8>, ImportError> {
        let (path, length) = (self.path.clone(), self.length);
        let wrong =
            |reason: String| ImportError::Archive { path: path.clone(), reason: format!("{name}: {reason}") };
        let mut entry =
            self.zip.by_name(&format!("{}/{name}", self.root)).map_err(|error| wrong(error.to_string()))?;
        if entry.compression() != CompressionMethod::Stored {
            return Err(wrong("it is compressed, which torch.export.save does not do".into()));
        }
        if entry.size() > length {
            return Err(wrong(format!("it has {} bytes in a file of {length}", entry.size())));
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(entry.size() as usize).map_err(|error| wrong(error.to_string()))?;
        entry.read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
        Ok(bytes)
    }
}
