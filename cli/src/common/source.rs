//! Where a trained model is: a checkpoint of Kernfusion, or a folder in the layout of Hugging Face.

use crate::common::error::{CliError, in_file};
use crate::common::folder::{Kind, expect};
use crate::common::screen::note;
use kernfusion::models::ModelConfig;
use kernfusion_lm::checkpoint::Checkpoint;
use kernfusion_lm::hugging_face::Published;
use kernfusion_lm::record::{Record, attach, use_averages};
use std::path::{Path, PathBuf};

/// Which of them, and what is put into it.
#[derive(clap::Args)]
pub(crate) struct SourceArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Directory of adapters (the one named adapter in that of a run with --lora) to put into the model
    #[arg(long, value_name = "DIR", conflicts_with = "model")]
    adapter: Option<PathBuf>,
    /// Take the averages that the optimizer asgd has kept, in place of the last parameters
    #[arg(long, conflicts_with = "model")]
    averaged: bool,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct PlaceArgs {
    /// Directory of a checkpoint
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Directory of a model in the layout of Hugging Face: config.json, model.safetensors or shards, tokenizer.json
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
}

/// Files of a model in the layout of Hugging Face, but for its tensors.
const FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors.index.json",
];

/// What was there.
pub(crate) enum Source {
    Checkpoint(Box<Checkpoint>),
    Published(Box<Published>),
}

impl SourceArgs {
    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        // Clap sees to it that there is one.
        let PlaceArgs { checkpoint, model } = &self.place;
        checkpoint.as_deref().or(model.as_deref()).unwrap_or(Path::new(""))
    }

    /// The files of a model in the layout of Hugging Face, which no result may replace; those of a run no result replaces anyway.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let folder = self.place.model.as_deref();
        let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let named = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".safetensors") || FILES.iter().any(|file| *file == name)
        };
        paths.filter(named).collect()
    }

    /// Loads the checkpoint, and puts averages and adapters into it, or opens the model.
    pub(crate) fn open(&self) -> Result<Source, CliError> {
        if let Some(directory) = &self.place.model {
            return Ok(Source::Published(Box::new(published(directory)?)));
        }
        expect(self.path(), Kind::Checkpoint)?;
        let mut checkpoint = Checkpoint::load(self.path()).map_err(kernfusion_lm::Error::from)?;
        if self.averaged {
            use_averages(&mut checkpoint).map_err(|error| in_file(self.path(), error))?;
        }
        if let Some(adapter) = &self.adapter {
            let adapters = Checkpoint::load(adapter).map_err(kernfusion_lm::Error::from)?;
            attach(&mut checkpoint, adapters).map_err(|error| in_file(adapter, error))?;
        }
        Ok(Source::Checkpoint(Box::new(checkpoint)))
    }
}

impl Source {
    /// The model's shape.
    pub(crate) fn config(&self) -> kernfusion_lm::Result<ModelConfig> {
        match self {
            Source::Checkpoint(checkpoint) => Record::model(&checkpoint.meta).map(|(config, _)| config),
            Source::Published(model) => Ok(model.config().clone()),
        }
    }
}

/// Opens a model in the layout of Hugging Face and says what is to be known about it.
pub(crate) fn published(directory: &Path) -> Result<Published, CliError> {
    // A file in place of a folder would give one error for each file that is looked for in it.
    if !directory.is_dir() {
        let missing = kernfusion_lm::Error::Configuration("there is no such directory".into());
        return Err(in_file(directory, missing));
    }
    expect(directory, Kind::Published)?;
    let model = Published::open(directory).map_err(kernfusion_lm::Error::from)?;
    model.notes().iter().for_each(|text| note(&format!("note: {text}")));
    Ok(model)
}
