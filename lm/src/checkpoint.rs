//! Checkpoints: one file, `checkpoint.safetensors`, with all that a run needs to continue.
//!
//! Tensors are f32 under their module paths (`blocks.0.attn.qkv.weight`), optimizer state among them
//! (`optimizer.m.blocks.0.attn.qkv.weight`). The rest is in the file's metadata, each entry a string of JSON:
//!
//! ```text
//! kernfusion  1                       the version of this format
//! config      {"layers": 4, ...}      the model's shape
//! step, seed  1200, 42                steps done, seed of the run
//! tokenizer   {"characters": "..."}   null where there is none
//! training    {"settings": {...}, ...} settings of the run, its text, and what products multiplied ("f32", "f32 x6", "bf16", ...)
//! ```
//!
//! The file is there whole or not at all (see [`Checkpoint::save_with`]), and the same content gives the same bytes.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value};

use kernfusion::atomic_file::AtomicFile;
use kernfusion::tensor_file::{self, HeaderError};

/// The name of the file in a checkpoint's directory.
pub const CHECKPOINT_FILE: &str = "checkpoint.safetensors";

/// The format that is written, and the only one that is read.
const VERSION: u64 = 1;

/// The metadata entry that holds the version, and tells our files from others.
const VERSION_ENTRY: &str = "kernfusion";

/// What can go wrong while checkpoints are written and read. Each names the file.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The checkpoint could not be written. The one before it, if any, is untouched.
    #[error("cannot write {}: {cause}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// A tensor to save does not have as many numbers as its shape says, or has a name that is taken.
    #[error("cannot save tensor \"{name}\" of shape {shape:?}: {reason}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory has no checkpoint, or there is no such file.
    #[error("there is no checkpoint at {}", path.display())]
    Missing {
        /// The file that was looked for.
        path: PathBuf,
    },
    /// The file is there, but cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The file ends too early.
    #[error("{} is truncated: it has {has} bytes of {needs}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        has: u64,
        /// The least length in bytes that it needs.
        needs: u64,
    },
    /// The file is not in the safetensors format.
    #[error("{} is not a safetensors file: {reason}", path.display())]
    NotSafetensors {
        /// The file.
        path: PathBuf,
        /// Where it departs from the format.
        reason: String,
    },
    /// The file is a safetensors file, but not a checkpoint of Kernfusion.
    #[error("{} is not a checkpoint of Kernfusion: its metadata has no entry \"{VERSION_ENTRY}\"", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The checkpoint has another version of the format.
    #[error("{} has checkpoint format {found}, but this program reads format {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version that the file states.
        found: String,
    },
    /// A tensor holds other numbers than f32.
    #[error("tensor \"{name}\" in {} has dtype {dtype}, but only F32 can be read", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
        /// The tensor's dtype, as the format spells it.
        dtype: String,
    },
    /// An entry of the metadata is missing or cannot be understood.
    #[error("the metadata entry \"{entry}\" of {} {reason}", path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// The entry's name.
        entry: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// A tensor of f32 in row-major order; `data` has as many numbers as the product of `shape`.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor32 {
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// The numbers, last axis fastest.
    pub data: Vec<f32>,
}

/// Takes all numbers of a tensor.
pub type Take<'a> = dyn FnMut(&[f32]) -> io::Result<()> + 'a;

/// What a checkpoint holds besides tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Meta {
    /// The model's shape.
    pub config: Value,
    /// Training steps done.
    pub step: u64,
    /// The run's seed.
    pub seed: u64,
    /// The tokenizer, or null.
    pub tokenizer: Value,
    /// The run's settings.
    pub training: Value,
}

/// The state of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Parameters and optimizer state, by name.
    pub tensors: BTreeMap<String, Tensor32>,
    /// All the rest.
    pub meta: Meta,
}

impl Checkpoint {
    /// Writes this checkpoint into `directory`; see [`Checkpoint::save_with`].
    ///
    /// # Errors
    /// Those of [`Checkpoint::save_with`].
    pub fn save(&self, directory: &Path) -> Result<(), CheckpointError> {
        let tensors = self.tensors.iter();
        let views =
            tensors.map(|(name, tensor)| (name.as_str(), tensor.shape.as_slice(), tensor.data.as_slice()));
        Self::save_with(directory, &self.meta, views)
    }

    /// Writes a checkpoint of borrowed tensors (name, shape, numbers) into `directory`, which is created where it is
    /// missing. The numbers go to the file in small pieces, with no second copy of them in memory.
    ///
    /// The new file replaces the old one in one step after it has reached the disk: at any moment, whatever happens,
    /// there is the whole old checkpoint or the whole new one. A directory has one writer at a time.
    ///
    /// # Errors
    /// [`CheckpointError::Tensor`] for a tensor whose shape and length disagree or whose name is taken;
    /// [`CheckpointError::Write`] when the file cannot be written. Then the old checkpoint stays as it was.
    pub fn save_with<'a>(
        directory: &Path,
        meta: &Meta,
        tensors: impl IntoIterator<Item = (&'a str, &'a [usize], &'a [f32])>,
    ) -> Result<(), CheckpointError> {
        let tensors: Vec<_> = tensors.into_iter().collect();
        for (name, shape, data) in &tensors {
            if shape.iter().try_fold(1_usize, |count, axis| count.checked_mul(*axis)) != Some(data.len()) {
                let reason = format!("it has {} numbers", data.len());
                return Err(CheckpointError::Tensor { name: (*name).into(), shape: (*shape).into(), reason });
            }
        }
        let shapes: Vec<_> = tensors.iter().map(|(name, shape, _)| (*name, *shape)).collect();
        let mut data = tensors.iter().map(|(_, _, data)| data);
        Self::save_from(directory, meta, &shapes, &mut |_, write| write(data.next().expect("one for each")))
    }

    /// As [`Checkpoint::save_with`], of tensors that are somewhere else: `visit` is called with the name of each in turn,
    /// and hands all of its numbers over, so that no two of them need to be in memory for this.
    ///
    /// # Errors
    /// As [`Checkpoint::save_with`].
    pub fn save_from(
        directory: &Path,
        meta: &Meta,
        tensors: &[(&str, &[usize])],
        visit: &mut dyn FnMut(&str, &mut Take<'_>) -> io::Result<()>,
    ) -> Result<(), CheckpointError> {
        let header = header(meta, tensors)?;
        let path = directory.join(CHECKPOINT_FILE);
        let mut write = || {
            let mut file = AtomicFile::create(&path)?;
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(&header)?;
            for (name, _) in tensors {
                visit(name, &mut |data| write_numbers(&mut file, data))?;
            }
            file.commit()
        };
        write().map_err(|cause| CheckpointError::Write { path: path.clone(), cause })
    }

    /// Reads the checkpoint in `directory`.
    ///
    /// # Errors
    /// [`CheckpointError`], with a variant of its own for each way in which a checkpoint can be missing, broken or
    /// not ours.
    pub fn load(directory: &Path) -> Result<Self, CheckpointError> {
        let mut reader = Reader::open(&directory.join(CHECKPOINT_FILE))?;
        // Judge the metadata first: a foreign file should be called that, and not be blamed for its tensors.
        let meta = reader.meta()?;
        Ok(Self { tensors: reader.tensors()?, meta })
    }
}

/// All tensors of any safetensors file of f32, by name. What its metadata says does not matter.
///
/// # Errors
/// [`CheckpointError`] for a file that is missing, truncated, in another format or of another dtype.
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, Tensor32>, CheckpointError> {
    Reader::open(path)?.tensors()
}

/// The header of the file: JSON, padded with spaces so that the numbers begin at a multiple of eight bytes. The map
/// is sorted, so equal checkpoints are equal files.
fn header(meta: &Meta, tensors: &[(&str, &[usize])]) -> Result<Vec<u8>, CheckpointError> {
    let mut entries = Map::new();
    let metadata = [
        (VERSION_ENTRY, VERSION.into()),
        ("config", meta.config.clone()),
        ("step", meta.step.into()),
        ("seed", meta.seed.into()),
        ("tokenizer", meta.tokenizer.clone()),
        ("training", meta.training.clone()),
    ];
    let metadata: Map<String, Value> =
        metadata.into_iter().map(|(name, value)| (name.into(), value.to_string().into())).collect();
    entries.insert("__metadata__".into(), metadata.into());
    let mut offset = 0;
    for &(name, shape) in tensors {
        let data_offsets = (offset, offset + size_of::<f32>() * shape.iter().product::<usize>());
        offset = data_offsets.1;
        let info = TensorInfo { dtype: Dtype::F32, shape: shape.into(), data_offsets };
        let info = serde_json::to_value(info).expect("an offset table has only strings and integers");
        if entries.insert(name.into(), info).is_some() {
            let reason = "its name is taken".into();
            return Err(CheckpointError::Tensor { name: name.into(), shape: shape.into(), reason });
        }
    }
    let mut header = Value::Object(entries).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

/// Numbers that are converted at once.
const PIECE: usize = 1 << 14;

fn write_numbers(file: &mut impl Write, data: &[f32]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 * PIECE.min(data.len()));
    for piece in data.chunks(PIECE) {
        bytes.clear();
        bytes.extend(piece.iter().flat_map(|number| number.to_le_bytes()));
        file.write_all(&bytes)?;
    }
    Ok(())
}

fn read_numbers(file: &mut impl Read, count: usize) -> io::Result<Vec<f32>> {
    let mut data = Vec::with_capacity(count);
    let mut bytes = vec![0; 4 * PIECE.min(count)];
    while data.len() < count {
        let piece = &mut bytes[..4 * PIECE.min(count - data.len())];
        file.read_exact(piece)?;
        let numbers = piece.as_chunks::<4>().0.iter();
        data.extend(numbers.map(|number| f32::from_le_bytes(*number)));
    }
    Ok(data)
}

/// A safetensors file of the right length, open at its first number.
struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    header: Metadata,
}

impl Reader {
    /// Reads the header and compares the length it implies with the length of the file, so that what comes later
    /// finds what it needs.
    fn open(path: &Path) -> Result<Self, CheckpointError> {
        let read_error = |cause| CheckpointError::Read { path: path.into(), cause };
        let file = kernfusion::input_file::open(path).map_err(|cause| match cause.kind() {
            ErrorKind::NotFound => CheckpointError::Missing { path: path.into() },
            _ => read_error(cause),
        })?;
        let has = file.metadata().map_err(read_error)?.len();
        let mut file = BufReader::with_capacity(1 << 18, file);
        let (header, _) = read_header(path, &mut file, has)?;
        Ok(Self { path: path.into(), file, header })
    }

    fn meta(&self) -> Result<Meta, CheckpointError> {
        let nothing = HashMap::new();
        let entries = self.header.metadata().as_ref().unwrap_or(&nothing);
        match entries.get(VERSION_ENTRY) {
            None => return Err(CheckpointError::Foreign { path: self.path.clone() }),
            Some(found) if *found != VERSION.to_string() => {
                return Err(CheckpointError::Version { path: self.path.clone(), found: found.clone() });
            }
            Some(_) => {}
        }
        let refuse = |entry, reason| CheckpointError::Entry { path: self.path.clone(), entry, reason };
        let json = |entry| {
            let text: &String = entries.get(entry).ok_or_else(|| refuse(entry, "is missing".into()))?;
            serde_json::from_str::<Value>(text)
                .map_err(|error| refuse(entry, format!("is not JSON: {error}")))
        };
        let number = |entry| {
            let value = json(entry)?;
            value.as_u64().ok_or_else(|| refuse(entry, format!("is {value}, not a count")))
        };
        Ok(Meta {
            config: json("config")?,
            step: number("step")?,
            seed: number("seed")?,
            tokenizer: json("tokenizer")?,
            training: json("training")?,
        })
    }

    /// Reads all tensors, in the order in which they are in the file.
    fn tensors(&mut self) -> Result<BTreeMap<String, Tensor32>, CheckpointError> {
        let names = self.header.offset_keys();
        let mut tensors = BTreeMap::new();
        for name in names {
            let info = self.header.info(&name).expect("the header has the names it listed");
            if info.dtype != Dtype::F32 {
                let dtype = info.dtype.to_string();
                return Err(CheckpointError::Dtype { path: self.path.clone(), name, dtype });
            }
            let count = (info.data_offsets.1 - info.data_offsets.0) / 4;
            let data = read_numbers(&mut self.file, count)
                .map_err(|cause| CheckpointError::Read { path: self.path.clone(), cause })?;
            tensors.insert(name, Tensor32 { shape: info.shape.clone(), data });
        }
        Ok(tensors)
    }
}

/// Reads the header of a safetensors file of `has` bytes, and says where the first number is.
pub(crate) fn read_header(
    path: &Path,
    file: &mut impl Read,
    has: u64,
) -> Result<(Metadata, usize), CheckpointError> {
    tensor_file::read_header(file, has).map_err(|error| match error {
        HeaderError::Read(cause) => CheckpointError::Read { path: path.into(), cause },
        HeaderError::Truncated { has, needs } => CheckpointError::Truncated { path: path.into(), has, needs },
        HeaderError::Format(reason) => CheckpointError::NotSafetensors { path: path.into(), reason },
    })
}

#[cfg(test)]
mod tests;
