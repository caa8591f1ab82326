//! Tensors of every dtype in safetensors files: what programs read and write by name. Needs the feature `files`.
//!
//! `bool` is the format's `BOOL`, one byte each. Dtypes that no tensor here has (`I64`, `U8`, …) are refused.
//! Checkpoints of training runs have a reader of their own, for `f32` alone and in pieces.

use crate::atomic_file::AtomicFile;
use kernfusion_ir::{DType, Tensor, TensorType};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What can go wrong with a file of tensors.
#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The file is not in the safetensors format, or not whole.
    #[error("{} is not a whole safetensors file: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where it departs from the format.
        reason: String,
    },
    /// A tensor has a dtype that programs do not know.
    #[error("tensor \"{name}\" in {} has dtype {dtype}, which no program takes", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
        /// The tensor's dtype, as the format spells it.
        dtype: String,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {cause}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
}

/// Larger headers are refused, as the format itself has it; this also keeps an arbitrary file's first eight bytes from being taken for a
/// length.
const LARGEST_HEADER: u64 = 100_000_000;

/// Reads all tensors of a file, by name, one after another: beside them it takes no memory.
///
/// # Errors
/// [`TensorFileError`] for a file that is missing, in another format, or has a dtype that no tensor here has.
pub fn read(path: &Path) -> Result<BTreeMap<String, Tensor>, TensorFileError> {
    let unreadable = |cause| TensorFileError::Read { path: path.into(), cause };
    let mut file = crate::input_file::open(path).map_err(unreadable)?;
    let has = file.metadata().map_err(unreadable)?.len();
    let (header, _) = read_header(&mut file, has).map_err(|error| match error {
        HeaderError::Read(cause) => unreadable(cause),
        error => TensorFileError::Format { path: path.into(), reason: error.to_string() },
    })?;
    let mut tensors = BTreeMap::new();
    for name in header.offset_keys() {
        let info = header.info(&name).expect("a name of the header");
        let dtype = from_stored(info.dtype).ok_or_else(|| TensorFileError::Dtype {
            path: path.into(),
            name: name.clone(),
            dtype: info.dtype.to_string(),
        })?;
        let ty = TensorType::new(dtype, info.shape.as_slice());
        let tensor = Tensor::filled(&ty, |bytes| file.read_exact(bytes)).map_err(unreadable)?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// Why a header is none.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// What the operating system said.
    #[error("{0}")]
    Read(io::Error),
    /// The file ends too early.
    #[error("it has {has} bytes of {needs}")]
    Truncated {
        /// Its length in bytes.
        has: u64,
        /// The least length in bytes that it needs.
        needs: u64,
    },
    /// Where it departs from the format.
    #[error("{0}")]
    Format(String),
}

/// Reads the header of a file of `has` bytes, compares the length that it implies with this one, and says where the first tensor is.
///
/// # Errors
/// [`HeaderError`].
pub fn read_header(file: &mut impl Read, has: u64) -> Result<(Metadata, usize), HeaderError> {
    let need = |needs| if has < needs { Err(HeaderError::Truncated { has, needs }) } else { Ok(()) };
    need(8)?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(HeaderError::Read)?;
    let length = u64::from_le_bytes(length);
    if length > LARGEST_HEADER {
        return Err(HeaderError::Format(format!("its header would have {length} bytes")));
    }
    need(8 + length)?;
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(HeaderError::Read)?;
    let header: Metadata =
        serde_json::from_slice(&header).map_err(|error| HeaderError::Format(error.to_string()))?;
    let needs = 8 + length + header.data_len() as u64;
    need(needs)?;
    if has > needs {
        return Err(HeaderError::Format(format!("{} bytes follow the last tensor", has - needs)));
    }
    Ok((header, 8 + length as usize))
}

/// Writes tensors under their names; the file is there whole or not at all.
///
/// # Errors
/// [`TensorFileError::Write`]; a file that was there before is then untouched.
pub fn write(path: &Path, tensors: &BTreeMap<String, Tensor>) -> Result<(), TensorFileError> {
    let put = || {
        let mut file = AtomicFile::create(path)?;
        write_to(&mut file, tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
        file.commit()
    };
    put().map_err(|cause| TensorFileError::Write { path: path.into(), cause })
}

/// What is written under a name: a tensor, or what knows where the bytes of one are.
pub trait Writable {
    /// The tensor's type.
    fn ty(&self) -> TensorType;

    /// Writes as many bytes as the type has: the elements in memory order (little-endian).
    ///
    /// # Errors
    /// Those of `file`, or why there are no bytes.
    fn write_to(&self, file: &mut dyn Write) -> io::Result<()>;
}

impl Writable for Tensor {
    fn ty(&self) -> TensorType {
        self.ty()
    }

    fn write_to(&self, file: &mut dyn Write) -> io::Result<()> {
        file.write_all(self.bytes())
    }
}

/// Writes what a file of tensors under these names has in it, one tensor after another: they are asked for their types first, and each for
/// its bytes when the one before it is written.
///
/// # Errors
/// Those of `file`, and of what is written.
pub fn write_to<'t, T: Writable + 't>(
    file: &mut dyn Write,
    tensors: impl IntoIterator<Item = (&'t str, &'t T)>,
) -> io::Result<()> {
    let described = |(name, tensor): (&'t str, &'t T)| (name, tensor.ty(), tensor);
    let mut tensors: Vec<_> = tensors.into_iter().map(described).collect();
    // As the format's own writer has it: larger elements stand first, so that all lie at multiples of their size.
    tensors.sort_by_cached_key(|(name, ty, _)| (Reverse(to_stored(ty.dtype)), *name));
    let mut end = 0;
    let info = |(name, ty, _): &(&str, TensorType, &T)| {
        let data_offsets = (end, end + ty.bytes());
        end = data_offsets.1;
        (name.to_string(), TensorInfo { dtype: to_stored(ty.dtype), shape: ty.shape.clone(), data_offsets })
    };
    let header = Metadata::new(None, tensors.iter().map(info).collect());
    let mut header = serde_json::to_vec(&header.expect("tensors of whole bytes lie one after another"))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    tensors.iter().try_for_each(|(_, _, tensor)| tensor.write_to(file))
}

/// What the format calls a dtype.
pub fn to_stored(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::BF16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::F64 => Dtype::F64,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::I8 => Dtype::I8,
        DType::Bool => Dtype::BOOL,
    }
}

fn from_stored(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|candidate| to_stored(*candidate) == dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;

    #[test]
    fn every_dtype_and_rank_survives_the_round_trip() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tensors.safetensors");
        let numbers = [-2.5, 0.0, 1.0, 3.0, 250.0, -7.0];
        let mut tensors = BTreeMap::new();
        for dtype in DType::ALL {
            tensors.insert(
                format!("{dtype}.matrix"),
                Tensor::from_f64(&TensorType::new(dtype, [2, 3]), &numbers),
            );
            tensors.insert(
                format!("{dtype}.scalar"),
                Tensor::from_f64(&TensorType::scalar(dtype), &numbers[3..4]),
            );
            tensors.insert(format!("{dtype}.empty"), Tensor::from_f64(&TensorType::new(dtype, [0, 3]), &[]));
        }
        write(&path, &tensors).unwrap();
        assert_eq!(read(&path).unwrap(), tensors);
        // The format's own writer has the same bytes.
        let bytes: Vec<_> = tensors.values().map(Tensor::bytes).collect();
        let views = tensors.iter().zip(&bytes).map(|((name, tensor), bytes)| {
            (name, TensorView::new(to_stored(tensor.ty().dtype), tensor.shape().to_vec(), bytes).unwrap())
        });
        assert!(std::fs::read(&path).unwrap() == safetensors::serialize(views, None).unwrap());
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.safetensors");
        let message = || read(&path).unwrap_err().to_string();
        assert!(
            message().starts_with("cannot read ") && message().contains("x.safetensors: "),
            "{}",
            message()
        );
        std::fs::write(&path, "no tensors here at all").unwrap();
        assert!(message().contains("x.safetensors is not a whole safetensors file"), "{}", message());
        let view = TensorView::new(Dtype::I64, vec![1], &[0; 8]).unwrap();
        std::fs::write(&path, safetensors::serialize([("n", view)], None).unwrap()).unwrap();
        assert!(message().starts_with("tensor \"n\" in ") && message().contains("I64"), "{}", message());
    }
}
