//! The tensors of one or several safetensors files, mapped into memory: what is not asked for is not read.

use crate::checkpoint::{CheckpointError, read_header};
use crate::error::HuggingFaceError;
use kernfusion_ir::{DType, Tensor, TensorType};
use memmap2::Mmap;
use safetensors::Dtype;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The one file of a small model.
pub(super) const SINGLE: &str = "model.safetensors";

/// What says in which file each tensor of a large model is.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// All tensors of a folder, by name.
#[derive(Debug)]
pub(super) struct Files {
    maps: Vec<Mmap>,
    tensors: BTreeMap<String, Stored>,
}

/// Where a tensor is.
#[derive(Debug)]
struct Stored {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

impl Stored {
    /// The tensor under its name, or its halves under theirs. One with an odd number of rows stays whole, and is listed as unexpected later.
    fn taken_apart(self, name: String, halves: &[(&str, [&str; 2])]) -> Vec<(String, Stored)> {
        let divided = halves.iter().find_map(|(end, names)| Some((name.strip_suffix(end)?, names)));
        let rows = self.shape.first().filter(|rows| rows.is_multiple_of(2));
        let (Some((before, names)), Some(rows)) = (divided, rows) else { return vec![(name, self)] };
        let shape = [&[rows / 2], &self.shape[1..]].concat();
        let middle = self.bytes.start + self.bytes.len() / 2;
        let half = |(name, bytes): (&&str, Range<usize>)| {
            let stored = Stored { file: self.file, dtype: self.dtype, shape: shape.clone(), bytes };
            (format!("{before}{name}"), stored)
        };
        names.iter().zip([self.bytes.start..middle, middle..self.bytes.end]).map(half).collect()
    }
}

/// The part of the index that matters.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Files {
    /// Maps the files of a folder; `rename` turns old names of tensors into those of today. Tensors whose names end as one of `halves` does
    /// are two, of the upper rows and of the lower ones.
    pub(super) fn open(
        directory: &Path,
        rename: fn(String) -> String,
        halves: &[(&str, [&str; 2])],
    ) -> Result<Self, HuggingFaceError> {
        let mut files = Files { maps: vec![], tensors: BTreeMap::new() };
        let single = directory.join(SINGLE);
        let index = directory.join(INDEX);
        if single.exists() {
            files.add(&single)?;
        } else if index.exists() {
            files.add_shards(directory, &index)?;
        } else {
            let torch = directory.join("pytorch_model.bin").exists();
            let hint = if torch { " (pytorch_model.bin is not read)" } else { "" };
            return Err(HuggingFaceError::NoTensors { directory: directory.into(), hint });
        }
        let renamed = files.tensors.into_iter().map(|(name, stored)| (rename(name), stored));
        files.tensors = renamed.flat_map(|(name, stored)| stored.taken_apart(name, halves)).collect();
        Ok(files)
    }

    /// The names of all tensors.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The shape of a tensor, if it is there.
    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|stored| stored.shape.as_slice())
    }

    /// The name of a tensor's number type, unless it is one that is read.
    pub(super) fn unreadable(&self, name: &str) -> Option<String> {
        let dtype = self.tensors.get(name)?.dtype;
        read_as(dtype).is_none().then(|| dtype.to_string())
    }

    /// Whether two tensors are there and equal, number for number.
    pub(super) fn equal(&self, one: &str, other: &str) -> bool {
        let [Some(one), Some(other)] = [one, other].map(|name| self.tensors.get(name)) else { return false };
        (one.dtype, &one.shape) == (other.dtype, &other.shape) && self.bytes(one) == self.bytes(other)
    }

    /// Appends the numbers of a tensor as `f32`, row-major; none if it is not there or of a number type that is not read.
    pub(super) fn append(&self, name: &str, numbers: &mut Vec<f32>) -> Option<()> {
        let stored = self.tensors.get(name)?;
        let bytes = self.bytes(stored);
        match read_as(stored.dtype)? {
            DType::F32 => numbers.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
            narrow => {
                let tensor = Tensor::from_bytes(&TensorType::new(narrow, stored.shape.clone()), bytes)?;
                numbers.extend_from_slice(tensor.to_dtype(DType::F32).as_f32()?);
            }
        }
        Some(())
    }

    fn bytes(&self, stored: &Stored) -> &[u8] {
        &self.maps[stored.file][stored.bytes.clone()]
    }

    fn add_shards(&mut self, directory: &Path, index: &Path) -> Result<(), HuggingFaceError> {
        let content = |reason: String| HuggingFaceError::Content { path: index.into(), reason };
        let text = kernfusion::input_file::read_text(index)
            .map_err(|cause| HuggingFaceError::Read { path: index.into(), cause })?;
        let Index { weight_map } = serde_json::from_str(&text).map_err(|error| content(error.to_string()))?;
        let shards: BTreeSet<&String> = weight_map.values().collect();
        // A name with a folder in it could lead anywhere.
        let plain = |name: &str| Path::new(name).file_name().is_some_and(|file| file == name);
        if let Some(name) = shards.iter().find(|name| !plain(name)) {
            return Err(content(format!("\"{name}\" is not the name of a file in the same folder")));
        }
        let absent: Vec<_> = shards.iter().filter(|name| !directory.join(name).exists()).collect();
        if !absent.is_empty() {
            let absent: Vec<_> = absent.into_iter().map(|name| name.as_str()).collect();
            return Err(content(format!("missing files: {}", absent.join(", "))));
        }
        let mut misplaced = Vec::new();
        for shard in shards {
            for name in self.add(&directory.join(shard))? {
                if weight_map.get(&name) != Some(shard) {
                    misplaced.push(format!("{name} is in {shard}, where the index does not have it"));
                }
            }
        }
        let lost = weight_map.iter().filter(|(name, _)| !self.tensors.contains_key(*name));
        misplaced.extend(lost.map(|(name, shard)| format!("{name} is not in {shard}")));
        match misplaced.is_empty() {
            true => Ok(()),
            false => Err(content(misplaced.join("; "))),
        }
    }

    /// Maps one more file and returns the names of its tensors.
    fn add(&mut self, path: &Path) -> Result<Vec<String>, HuggingFaceError> {
        let map = map(path)?;
        let (header, start) = read_header(path, &mut &map[..], map.len() as u64)?;
        let names = header.offset_keys();
        for name in &names {
            let info = header.info(name).expect("the header has the names it listed");
            let bytes = start + info.data_offsets.0..start + info.data_offsets.1;
            let stored =
                Stored { file: self.maps.len(), dtype: info.dtype, shape: info.shape.clone(), bytes };
            self.tensors.insert(name.clone(), stored);
        }
        self.maps.push(map);
        Ok(names)
    }
}

fn map(path: &Path) -> Result<Mmap, CheckpointError> {
    let read_error = |cause| CheckpointError::Read { path: path.into(), cause };
    let file = kernfusion::input_file::open(path).map_err(|cause| match cause.kind() {
        ErrorKind::NotFound => CheckpointError::Missing { path: PathBuf::from(path) },
        _ => read_error(cause),
    })?;
    // SAFETY: the map is only read, as bytes, for which every value is valid. A program that cuts the file short meanwhile would
    // end this one with a signal, as for every reader of mapped files; files of published models are not written in place.
    unsafe { Mmap::map(&file) }.map_err(read_error)
}

/// The number types that are read.
fn read_as(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::BF16 => Some(DType::BF16),
        Dtype::F16 => Some(DType::F16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_of_two_parameters_is_two() {
        let halves = [("both.weight", ["one.weight", "other.weight"])];
        let parts = |name: &str, shape: &[usize]| {
            let bytes = 8..8 + 4 * shape.iter().product::<usize>();
            let stored = Stored { file: 3, dtype: Dtype::F32, shape: shape.to_vec(), bytes };
            let parts = stored.taken_apart(name.into(), &halves).into_iter();
            parts.map(|(name, part)| (name, part.file, part.shape, part.bytes)).collect::<Vec<_>>()
        };
        let expected =
            [("a.one.weight".into(), 3, vec![3, 2], 8..32), ("a.other.weight".into(), 3, vec![3, 2], 32..56)];
        assert_eq!(parts("a.both.weight", &[6, 2]), expected);
        for (name, shape) in [("a.both.weight", &[5, 2][..]), ("a.both.weight", &[]), ("a.both.bias", &[6])] {
            assert_eq!(parts(name, shape).len(), 1, "{name} {shape:?}");
            assert_eq!(parts(name, shape)[0].0, name);
        }
    }
}
