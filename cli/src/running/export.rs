//! `kernfusion export`: writes a checkpoint as a model in the layout of Hugging Face.

use crate::Outcome;
use crate::common::error::in_file;
use crate::common::screen::{Screen, note};
use clap::ValueEnum;
use kernfusion_lm::checkpoint::Checkpoint;
use kernfusion_lm::hugging_face::{Storage, export};
use std::path::PathBuf;
use std::process::ExitCode;

/// Save the model of a checkpoint in the layout of Hugging Face
///
/// Models that are a GPT-2, a Llama, a Mistral, a Mixtral, a BERT or a T5 by their shape; adapters are merged. The folder is there
/// whole or not at all.
#[derive(clap::Args)]
#[command(after_help = "Example: kernfusion export runs/book -o book --dtype bf16")]
pub(crate) struct Args {
    /// Directory of the checkpoint
    #[arg(value_name = "CHECKPOINT_DIR")]
    checkpoint: PathBuf,
    /// Directory of the model, new or empty
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// Replace a folder that has a saved model and nothing else
    #[arg(long)]
    overwrite: bool,
    /// Number type of the tensors
    #[arg(long, value_enum, value_name = "DTYPE", default_value = "f32")]
    dtype: StorageArg,
    /// The most MiB of tensors in one file [default: all in one]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    shard_size: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StorageArg {
    F32,
    Bf16,
    F16,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let storage = match args.dtype {
        StorageArg::F32 => Storage::F32,
        StorageArg::Bf16 => Storage::Bf16,
        StorageArg::F16 => Storage::F16,
    };
    let checkpoint = Checkpoint::load(&args.checkpoint).map_err(kernfusion_lm::Error::from)?;
    let saved =
        export(checkpoint, &args.out, storage, args.shard_size.map(|size| size << 20), args.overwrite);
    let saved = saved.map_err(|error| match error {
        // These are about the checkpoint; the others name their file.
        kernfusion_lm::Error::Configuration(_) => in_file(&args.checkpoint, error),
        other => other.into(),
    })?;
    saved.notes.iter().for_each(|text| note(&format!("note: {text}")));
    let files = saved.files.len();
    let files = if files == 1 { "one file".into() } else { format!("{files} files") };
    screen.line(format!("{} with tensors in {files} in {}", saved.model_type, args.out.display()));
    Ok(ExitCode::SUCCESS)
}
