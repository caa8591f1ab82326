//! Saving a model of ours in the layout of Hugging Face: the whole folder, or nothing.

use super::architecture::{self, Architecture};
use super::error::HuggingFaceError;
use super::files::{INDEX, SINGLE};
use super::layout::{Parameter, Part};
use super::special::SpecialTokens;
use super::{CONFIG, TOKENIZER};
use crate::checkpoint::{Checkpoint, Tensor32};
use crate::models::ModelConfig;
use crate::text::Tokenizer;
use crate::train::{Record, parameters};
use crate::{HostTensor, Result};
use kernfusion_ir::DType;
use safetensors::Dtype;
use safetensors::tensor::View;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::Path;
use tempfile::TempDir;

/// The number type of saved tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Storage {
    /// As checkpoints have them.
    #[default]
    F32,
    /// Rounded to 8 bits of precision.
    Bf16,
    /// Rounded to 11 bits of precision; numbers from 65,520 on have no place.
    F16,
}

/// What was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// `model_type` of the configuration.
    pub model_type: &'static str,
    /// The files with tensors.
    pub files: Vec<String>,
    /// What was left out.
    pub notes: Vec<String>,
}

/// Saves the model of a checkpoint, with its adapters merged and without the state of its optimizer, in a new folder. Files have at
/// most `shard` bytes of tensors, unless one alone has more; without it there is one file.
///
/// # Errors
/// [`HuggingFaceError`] if the layout cannot express the model, the folder is not empty, or it cannot be written; then there is no
/// folder. If the checkpoint is none of the model that it describes.
pub fn export(
    checkpoint: Checkpoint,
    directory: &Path,
    storage: Storage,
    shard: Option<u64>,
) -> Result<Exported> {
    let config: ModelConfig = Record::entry("config", &checkpoint.meta.config)?;
    config.validate()?;
    let tokenizer: Option<Tokenizer> = Record::entry("tokenizer", &checkpoint.meta.tokenizer)?;
    let special = SpecialTokens::of_checkpoint(&checkpoint.meta, tokenizer.as_ref());
    let (architecture, fields) = architecture::of(&config).map_err(HuggingFaceError::Inexpressible)?;
    let layout = super::parameters(architecture, &config).map_err(HuggingFaceError::Inexpressible)?;
    let tensors = parameters::merged(checkpoint)?;
    let shapes = layout.iter().map(|(name, parameter)| (name.clone(), parameter.shape.clone()));
    parameters::check(&shapes.collect(), &tensors, "the checkpoint")?;
    let pieces = pieces(&layout, &tensors, storage).map_err(HuggingFaceError::Inexpressible)?;

    let folder = Folder::create(directory)?;
    let config = described(architecture, fields, &special, storage);
    folder.write(CONFIG, &format!("{config:#}\n"))?;
    let mut notes = Vec::new();
    match tokenizer {
        Some(Tokenizer::Pieces(tokenizer) | Tokenizer::Marked(tokenizer)) => {
            folder.write(TOKENIZER, &Value::from(tokenizer).to_string())?;
        }
        Some(other) => {
            notes.push(format!("a tokenizer of {} has no {TOKENIZER}: it is left out", other.unit()))
        }
        None => notes.push(format!("the checkpoint has no tokenizer, so there is no {TOKENIZER}")),
    }
    let files = folder.write_tensors(pieces, shard)?;
    folder.commit()?;
    Ok(Exported { model_type: architecture.model_type, files, notes })
}

impl Storage {
    pub(super) fn dtype(self) -> DType {
        match self {
            Storage::F32 => DType::F32,
            Storage::Bf16 => DType::BF16,
            Storage::F16 => DType::F16,
        }
    }

    fn stored(self) -> Dtype {
        match self {
            Storage::F32 => Dtype::F32,
            Storage::Bf16 => Dtype::BF16,
            Storage::F16 => Dtype::F16,
        }
    }

    /// As PyTorch calls it.
    pub(super) fn torch(self) -> &'static str {
        match self {
            Storage::F32 => "float32",
            Storage::Bf16 => "bfloat16",
            Storage::F16 => "float16",
        }
    }
}

/// All of `config.json`.
fn described(
    architecture: &Architecture,
    mut fields: Map<String, Value>,
    special: &SpecialTokens,
    storage: Storage,
) -> Value {
    let ends = match special.ends[..] {
        [] => Value::Null,
        [one] => json!(one),
        _ => json!(special.ends),
    };
    let more = [
        ("architectures", json!([architecture.class])),
        ("model_type", json!(architecture.model_type)),
        // Newer versions read the first, older ones the second.
        ("dtype", json!(storage.torch())),
        ("torch_dtype", json!(storage.torch())),
        // Without a word, transformers would take those of the class' first model.
        ("bos_token_id", json!(special.beginning)),
        ("eos_token_id", ends),
        ("pad_token_id", json!(special.padding)),
    ];
    for (name, value) in more {
        fields.entry(name).or_insert(value);
    }
    Value::Object(fields)
}

/// A tensor to be saved: consecutive numbers of a parameter.
#[derive(Clone, Copy)]
struct Piece<'a> {
    part: &'a Part,
    parameter: &'a Parameter,
    numbers: &'a [f32],
    storage: Storage,
}

fn pieces<'a>(
    layout: &'a BTreeMap<String, Parameter>,
    tensors: &'a BTreeMap<String, Tensor32>,
    storage: Storage,
) -> std::result::Result<Vec<Piece<'a>>, String> {
    // Half of the distance from the largest number to the next one that there would be.
    const BEYOND_F16: f32 = 65_520.0;
    let mut pieces = Vec::new();
    for (name, parameter) in layout {
        let mut numbers = &tensors[name].data[..];
        let too_large = |number: &&f32| number.is_finite() && number.abs() >= BEYOND_F16;
        if let Some(number) = numbers.iter().find(too_large).filter(|_| storage == Storage::F16) {
            return Err(format!("{name} has the number {number}, which is too large for f16"));
        }
        for part in &parameter.parts {
            let (own, rest) = numbers.split_at(part.elements());
            pieces.push(Piece { part, parameter, numbers: own, storage });
            numbers = rest;
        }
    }
    Ok(pieces)
}

impl View for Piece<'_> {
    fn dtype(&self) -> Dtype {
        self.storage.stored()
    }

    fn shape(&self) -> &[usize] {
        &self.part.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let numbers = self.parameter.take_apart(self.numbers.to_vec());
        let tensor = HostTensor::new(self.part.shape.clone(), numbers);
        tensor.to_dtype(self.storage.dtype()).to_bytes().into()
    }

    fn data_len(&self) -> usize {
        self.part.elements() * self.storage.dtype().size()
    }
}

/// A folder that takes its place when it is whole; dropped before, it vanishes.
struct Folder<'a> {
    place: &'a Path,
    temporary: TempDir,
}

impl<'a> Folder<'a> {
    /// Starts a folder beside its place.
    fn create(place: &'a Path) -> std::result::Result<Self, HuggingFaceError> {
        let failed = |cause| HuggingFaceError::Write { path: place.into(), cause };
        // What is no folder shows when it is to be replaced, and so does one that cannot be listed.
        if std::fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(HuggingFaceError::Occupied { path: place.into() });
        }
        let name = place.file_name().and_then(|name| name.to_str());
        let name = name
            .ok_or_else(|| failed(io::Error::new(io::ErrorKind::InvalidInput, "this is no folder's name")))?;
        let parent = match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        std::fs::create_dir_all(parent).map_err(failed)?;
        let prefix = format!(".{name}.");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp");
        // As open to others as the user's umask says.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
        Ok(Folder { place, temporary: builder.tempdir_in(parent).map_err(failed)? })
    }

    fn failed(&self, file: &str) -> impl Fn(io::Error) -> HuggingFaceError {
        let path = self.place.join(file);
        move |cause| HuggingFaceError::Write { path: path.clone(), cause }
    }

    fn write(&self, file: &str, text: &str) -> std::result::Result<(), HuggingFaceError> {
        std::fs::write(self.temporary.path().join(file), text).map_err(self.failed(file))
    }

    /// Writes the tensors, in one file or in several with an index, and returns the files' names.
    fn write_tensors(
        &self,
        pieces: Vec<Piece<'_>>,
        shard: Option<u64>,
    ) -> std::result::Result<Vec<String>, HuggingFaceError> {
        let total: usize = pieces.iter().map(|piece| piece.data_len()).sum();
        let shards = shards(&pieces, shard);
        let names: Vec<_> = match shards.len() {
            1 => vec![SINGLE.to_string()],
            count => (1..=count).map(|n| format!("model-{n:05}-of-{count:05}.safetensors")).collect(),
        };
        let mut map = Map::new();
        for (file, pieces) in names.iter().zip(&shards) {
            let named = pieces.iter().map(|piece| (piece.part.name.as_str(), *piece));
            let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
            let path = self.temporary.path().join(file);
            let written = safetensors::serialize_to_file(named, Some(metadata), &path);
            written.map_err(|error| self.failed(file)(io::Error::other(error.to_string())))?;
            self.open_to_others(&path).map_err(self.failed(file))?;
            map.extend(pieces.iter().map(|piece| (piece.part.name.clone(), json!(file))));
        }
        if shards.len() > 1 {
            let index = json!({"metadata": {"total_size": total}, "weight_map": map});
            self.write(INDEX, &format!("{index:#}\n"))?;
        }
        Ok(names)
    }

    /// Gives a file, which safetensors keeps to its owner, the permissions that files have here.
    fn open_to_others(&self, path: &Path) -> io::Result<()> {
        let usual = self.temporary.path().join(".usual");
        let permissions = File::create(&usual)?.metadata()?.permissions();
        std::fs::remove_file(usual)?;
        std::fs::set_permissions(path, permissions)
    }

    /// First all content reaches the disk, then the folder takes its place.
    fn commit(self) -> std::result::Result<(), HuggingFaceError> {
        let place = self.place;
        let put = || {
            for entry in std::fs::read_dir(self.temporary.path())? {
                File::open(entry?.path())?.sync_all()?;
            }
            // An empty folder that is there gives way.
            std::fs::rename(self.temporary.path(), place)
        };
        put().map_err(|cause| HuggingFaceError::Write { path: place.into(), cause })?;
        // It has moved: nothing is left to be removed.
        let _ = self.temporary.keep();
        Ok(())
    }
}

/// Tensors in their order, as many in a file as fit.
fn shards<'a>(pieces: &[Piece<'a>], limit: Option<u64>) -> Vec<Vec<Piece<'a>>> {
    let mut shards = vec![vec![]];
    let mut bytes = 0;
    for piece in pieces {
        let own = piece.data_len() as u64;
        if bytes > 0 && limit.is_some_and(|limit| bytes + own > limit) {
            shards.push(vec![]);
            bytes = 0;
        }
        shards.last_mut().expect("there is always one").push(*piece);
        bytes += own;
    }
    shards
}
