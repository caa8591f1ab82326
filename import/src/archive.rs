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
use crate::storage::{Section, Storage};
use kernfusion::input_file;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

/// An open archive.
pub(crate) struct Archive {
    path: PathBuf,
    zip: ZipArchive<BufReader<Section>>,
    /// The file, or the entry of one.
    section: Section,
    /// The name of the folder that has everything.
    root: String,
}

impl Archive {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, is no zip, or has no exported program in it.
    pub(crate) fn open(path: &Path) -> Result<Self, ImportError> {
        let read = |cause| ImportError::Read { path: path.into(), cause };
        let file = input_file::open(path).map_err(read)?;
        let section = Section::of(file).map_err(read)?;
        let mut archive = Archive::of(path, section, ("archive_format", "torch.export.save"))?;
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
        let section = self.storage(entry)?.section().clone();
        let mut saved = Archive::of(&self.path, section, ("data.pkl", "torch.save"))?;
        match saved.has("byteorder") && saved.read("byteorder")? != b"little" {
            true => Err(saved.wrong(format!("{entry}: its numbers are not little-endian"))),
            false => Ok(saved),
        }
    }

    /// An archive that has an entry of this name in its folder, and what it is called.
    fn of(path: &Path, section: Section, (entry, kind): (&str, &str)) -> Result<Archive, ImportError> {
        let wrong = |reason: String| ImportError::Archive { path: path.into(), reason };
        // The directory is where the file says: nothing stands in front of an archive. Where this is found out, the zip64 record that
        // PyTorch writes behind a directory is taken for its first entry, if that has the same length.
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let zip = ZipArchive::with_config(config, BufReader::new(section.clone()))
            .map_err(|error| wrong(format!("it is no whole archive of {kind}: {error}")))?;
        let mut names = zip.file_names().filter_map(Result::ok);
        let root = names.find_map(|name| Some(name.strip_suffix(entry)?.strip_suffix('/')?.to_string()));
        drop(names);
        let root =
            root.ok_or_else(|| wrong(format!("it is a zip, but not of {kind}: {entry} is missing")))?;
        Ok(Archive { path: path.into(), zip, section, root })
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

    /// Where the bytes of an entry are.
    ///
    /// # Errors
    /// It is missing, compressed, or reaches out of the file.
    pub(crate) fn storage(&mut self, name: &str) -> Result<Storage, ImportError> {
        let path = &self.path;
        let wrong =
            |reason: String| ImportError::Archive { path: path.clone(), reason: format!("{name}: {reason}") };
        let entry = self.zip.by_name(&format!("{}/{name}", self.root));
        let entry = entry.map_err(|error| wrong(error.to_string()))?;
        if entry.compression() != CompressionMethod::Stored || entry.compressed_size() != entry.size() {
            return Err(wrong("it is compressed, which torch.export.save does not do".into()));
        }
        let start = entry.data_start().expect("known where an entry is open");
        let section = self.section.part(start, entry.size());
        let storage = section.and_then(|section| Storage::new(path, name, section, Some(entry.crc32())));
        let length = self.section.length();
        storage.ok_or_else(|| wrong(format!("its {} bytes reach out of a file of {length}", entry.size())))
    }

    /// The bytes of an entry.
    ///
    /// # Errors
    /// As [`Archive::storage`]; it cannot be read, or its checksum is another one.
    pub(crate) fn read(&mut self, name: &str) -> Result<Vec<u8>, ImportError> {
        self.storage(name)?.read().map_err(|error| ImportError::of_reading(&self.path, error))
    }
}
