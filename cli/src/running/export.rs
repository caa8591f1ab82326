//! `kernfusion export`: writes a checkpoint as a model in the layout of Hugging Face, and a model from elsewhere as ONNX.

use crate::Outcome;
use crate::common::error::{CliError, in_file};
use crate::common::folder::{Kind, expect};
use crate::common::imported::ExtentArgs;
use crate::common::screen::{Screen, note};
use clap::ValueEnum;
use kernfusion_import::OnnxFile;
use kernfusion_lm::NewFolder;
use kernfusion_lm::checkpoint::Checkpoint;
use kernfusion_lm::hugging_face::{Storage, export};
use std::path::PathBuf;
use std::process::ExitCode;

/// Save the model of a checkpoint in the layout of Hugging Face, or a model from elsewhere as ONNX
///
/// Models whose shape is that of a family that `import` reads, too (docs/models.md lists them), such as GPT-2, Llama, Mistral, Qwen, Gemma,
/// Mixtral, BERT and T5; adapters are merged. The folder is there whole or not at all.
#[derive(clap::Args)]
#[command(after_help = "Example: kernfusion export runs/book -o book --dtype bf16")]
pub(crate) struct Args {
    /// Directory of the checkpoint; for ONNX the folder of an imported model, an archive of torch.export.save, or an ONNX file
    #[arg(value_name = "DIR")]
    source: PathBuf,
    /// What is written
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "hugging-face")]
    format: Format,
    #[command(flatten)]
    extents: ExtentArgs,
    /// Directory of the model, new or empty
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// Replace a folder that has a saved model and nothing else
    #[arg(long)]
    overwrite: bool,
    /// Number type of the tensors; of Hugging Face [default: f32]
    #[arg(long, value_enum, value_name = "DTYPE")]
    dtype: Option<StorageArg>,
    /// The most MiB of tensors in one file; of Hugging Face [default: all in one]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    shard_size: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The layout of Hugging Face
    HuggingFace,
    /// A file of ONNX
    Onnx,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StorageArg {
    F32,
    Bf16,
    F16,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    args.extents.only_if(args.format == Format::Onnx)?;
    match args.format {
        Format::HuggingFace => export_checkpoint(&args, screen),
        Format::Onnx => export_onnx(&args, screen),
    }
}

const MODEL: &str = "model.onnx";
const DATA: &str = "model.onnx.data";

fn export_onnx(args: &Args, screen: &mut Screen) -> Outcome {
    if args.dtype.is_some() || args.shard_size.is_some() {
        return Err(CliError::Usage("--dtype and --shard-size are of --format hugging-face".into()));
    }
    let model = args.extents.model(&args.source)?;
    let file = OnnxFile::new(&model.program, &model.states, DATA)?;
    let is_ours = |name: &str| [MODEL, DATA].contains(&name);
    let put = || {
        let folder = NewFolder::create(&args.out, if args.overwrite { Some(&is_ours) } else { None })?;
        folder.write(MODEL, file.message())?;
        if file.has_data() {
            folder.write_with(DATA, &mut |to| file.write_data(to))?;
        }
        folder.commit()
    };
    let files = put().map_err(kernfusion_lm::Error::from)?;
    screen.line(format!("{}: {}", args.out.display(), files.join(", ")));
    Ok(ExitCode::SUCCESS)
}

fn export_checkpoint(args: &Args, screen: &mut Screen) -> Outcome {
    let is_file = args.source.extension().is_some_and(|ending| ending == "pt2" || ending == "onnx");
    if is_file {
        let reason = "this is a model from elsewhere: say --format onnx".into();
        return Err(CliError::Content { path: args.source.clone(), reason });
    }
    expect(&args.source, Kind::Checkpoint)?;
    let storage = match args.dtype {
        None | Some(StorageArg::F32) => Storage::F32,
        Some(StorageArg::Bf16) => Storage::Bf16,
        Some(StorageArg::F16) => Storage::F16,
    };
    let checkpoint = Checkpoint::load(&args.source).map_err(kernfusion_lm::Error::from)?;
    let saved =
        export(checkpoint, &args.out, storage, args.shard_size.map(|size| size << 20), args.overwrite);
    let saved = saved.map_err(|error| match error {
        // These are about the checkpoint; the others name their file.
        kernfusion_lm::Error::Configuration(_) => in_file(&args.source, error),
        other => other.into(),
    })?;
    saved.notes.iter().for_each(|text| note(&format!("note: {text}")));
    let files = saved.files.len();
    let files = if files == 1 { "one file".into() } else { format!("{files} files") };
    screen.line(format!("{} with tensors in {files} in {}", saved.model_type, args.out.display()));
    Ok(ExitCode::SUCCESS)
}
