//! Exports a model to the layout of Hugging Face: the whole folder, or nothing.

use super::architecture::{self, Architecture, Expressed};
use super::files::{INDEX, SINGLE};
use super::layout::{Parameter, StoredTensor};
use super::special::SpecialTokens;
use super::{CONFIG, TOKENIZER};
use crate::Result;
use crate::checkpoint::{Checkpoint, Tensor32};
use crate::error::HuggingFaceError;
use crate::folder::NewFolder;
use crate::record::{Record, parameters};
use crate::text::Tokenizer;
use kernfusion::HostTensor;
use kernfusion::models::ModelConfig;
use kernfusion_ir::DType;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

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
/// most `shard` bytes of tensors, unless one alone has more; without it there is one file. A folder that has a model is replaced in
/// one step if `replaces` says so, and if it has nothing else.
///
/// # Errors
/// [`HuggingFaceError`] if the layout cannot express the model; [`FolderError`](crate::FolderError) if the folder is not empty, or
/// cannot be written; then what was there is untouched. If the checkpoint is none of the model that it describes.
pub fn export(
    checkpoint: Checkpoint,
    directory: &Path,
    storage: Storage,
    shard: Option<u64>,
    replaces: bool,
) -> Result<Exported> {
    let config: ModelConfig = Record::entry("config", &checkpoint.meta.config)?;
    config.validate()?;
    let tokenizer: Option<Tokenizer> = Record::entry("tokenizer", &checkpoint.meta.tokenizer)?;
    let special = SpecialTokens::of_checkpoint(&checkpoint.meta, tokenizer.as_ref());
    let Expressed { architecture, fields, config: expressed } =
        architecture::of(&config).map_err(HuggingFaceError::Inexpressible)?;
    let layout = super::parameters(architecture, &expressed).map_err(HuggingFaceError::Inexpressible)?;
    let own: BTreeSet<_> = config.parameter_list()?.into_iter().map(|parameter| parameter.name).collect();
    let mut tensors = parameters::merged(checkpoint)?;
    // Biases that the layout has and the model has not.
    for (name, Parameter { shape, .. }) in layout.iter().filter(|(name, _)| !own.contains(*name)) {
        let data = vec![0.0; shape.iter().product()];
        tensors.insert(name.clone(), Tensor32 { shape: shape.clone(), data });
    }
    let shapes = layout.iter().map(|(name, parameter)| (name.clone(), parameter.shape.clone()));
    parameters::check(&shapes.collect(), &tensors, "the checkpoint")?;
    let pieces = pieces(&layout, &tensors, storage).map_err(HuggingFaceError::Inexpressible)?;

    let folder = NewFolder::create(directory, replaces.then_some(&is_of_a_model))?;
    let config = described(architecture, fields, &special, storage);
    folder.write(CONFIG, format!("{config:#}\n").as_bytes())?;
    let mut notes = Vec::new();
    match tokenizer {
        Some(Tokenizer::Pieces(tokenizer) | Tokenizer::Marked(tokenizer)) => {
            folder.write(TOKENIZER, Value::from(tokenizer).to_string().as_bytes())?;
        }
        Some(other) => {
            notes.push(format!("a tokenizer of {} has no {TOKENIZER}: it is left out", other.unit()))
        }
        None => notes.push(format!("the checkpoint has no tokenizer, so there is no {TOKENIZER}")),
    }
    let files = write_tensors(&folder, pieces, shard)?;
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
struct SavedTensor<'a> {
    part: &'a StoredTensor,
    parameter: &'a Parameter,
    numbers: &'a [f32],
    storage: Storage,
}

fn pieces<'a>(
    layout: &'a BTreeMap<String, Parameter>,
    tensors: &'a BTreeMap<String, Tensor32>,
    storage: Storage,
) -> std::result::Result<Vec<SavedTensor<'a>>, String> {
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
            pieces.push(SavedTensor { part, parameter, numbers: own, storage });
            numbers = rest;
        }
    }
    Ok(pieces)
}

impl SavedTensor<'_> {
    fn info(&self, start: usize) -> TensorInfo {
        let data_offsets = (start, start + self.bytes());
        TensorInfo { dtype: self.storage.stored(), shape: self.part.shape.clone(), data_offsets }
    }

    fn data(&self) -> Vec<u8> {
        let numbers = self.parameter.take_apart(self.numbers.to_vec());
        let tensor = HostTensor::new(self.part.shape.clone(), numbers);
        tensor.to_dtype(self.storage.dtype()).bytes().to_vec()
    }

    fn bytes(&self) -> usize {
        self.part.elements() * self.storage.dtype().size()
    }
}

/// Whether a file of a folder is one of a saved model.
fn is_of_a_model(name: &str) -> bool {
    let is_shard = name.starts_with("model-") && name.ends_with(".safetensors");
    [CONFIG, TOKENIZER, INDEX, SINGLE].contains(&name) || is_shard
}

/// Writes the tensors, in one file or in several with an index, and returns the files' names.
fn write_tensors(
    folder: &NewFolder,
    pieces: Vec<SavedTensor<'_>>,
    shard: Option<u64>,
) -> Result<Vec<String>> {
    let total: usize = pieces.iter().map(SavedTensor::bytes).sum();
    let shards = shards(&pieces, shard);
    let names: Vec<_> = match shards.len() {
        1 => vec![SINGLE.to_string()],
        count => (1..=count).map(|n| format!("model-{n:05}-of-{count:05}.safetensors")).collect(),
    };
    let mut map = Map::new();
    for (file, pieces) in names.iter().zip(shards) {
        map.extend(pieces.iter().map(|piece| (piece.part.name.clone(), json!(file))));
        write_shard(folder, file, pieces)?;
    }
    if names.len() > 1 {
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        folder.write(INDEX, format!("{index:#}\n").as_bytes())?;
    }
    Ok(names)
}

/// Writes tensors into one file, in the order of their names.
fn write_shard(folder: &NewFolder, file: &str, mut pieces: Vec<SavedTensor<'_>>) -> Result<()> {
    pieces.sort_by(|a, b| a.part.name.cmp(&b.part.name));
    let mut end = 0;
    let infos = pieces.iter().map(|piece| {
        let info = piece.info(end);
        end = info.data_offsets.1;
        (piece.part.name.clone(), info)
    });
    let format = HashMap::from([("format".to_string(), "pt".to_string())]);
    let header = Metadata::new(Some(format), infos.collect()).expect("tensors lie one behind the other");
    let mut header = serde_json::to_vec(&header).expect("names, shapes and offsets are JSON");
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(folder.write_with(file, &mut |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        pieces.iter().try_for_each(|piece| out.write_all(&piece.data()))
    })?)
}

/// Tensors in their order, as many in a file as fit.
fn shards<'a>(pieces: &[SavedTensor<'a>], limit: Option<u64>) -> Vec<Vec<SavedTensor<'a>>> {
    let mut shards = vec![vec![]];
    let mut bytes = 0;
    for piece in pieces {
        let own = piece.bytes() as u64;
        if bytes > 0 && limit.is_some_and(|limit| bytes + own > limit) {
            shards.push(vec![]);
            bytes = 0;
        }
        shards.last_mut().expect("there is always one").push(*piece);
        bytes += own;
    }
    shards
}
