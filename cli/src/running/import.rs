//! `kernfusion import`: writes a model in the layout of Hugging Face as a checkpoint, and an archive of PyTorch or an ONNX file as a program.

use crate::Outcome;
use crate::common::destination::{Destination, write_derived};
use crate::common::error::CliError;
use crate::common::imported::{self, ExtentArgs};
use crate::common::screen::{Screen, grouped};
use crate::common::source::published;
use kernfusion::models::ModelConfig;
use kernfusion_lm::checkpoint::CHECKPOINT_FILE;
use std::path::PathBuf;
use std::process::ExitCode;

/// Make a checkpoint of a model in the layout of Hugging Face, or a program of an archive of PyTorch or an ONNX file
///
/// A directory: GPT-2, Llama, Mistral, Qwen, Gemma, Mixtral, BERT, T5 and others (docs/models.md lists them). The checkpoint can be tuned; to train the model further, give `train` the shape
/// (--config DIR/shape.json), the tokenizer (--tokenizer) and the parameters (--init DIR/checkpoint.safetensors). `generate` and
/// `score` take a model as it is, too (--model).
///
/// A file: an archive of torch.export.save, or of ONNX. The folder gets program.kir, weights.safetensors and signature.json, which says what the
/// program takes and gives; `run`, `dump` and `opt` take the folder where they take a program. Extents that the export left open
/// (dynamic_shapes) are chosen by --dim.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion import gpt2 -o runs/gpt2
  kernfusion import model.pt2 -o model
  kernfusion import model.onnx -o model
  kernfusion import model.pt2 -o model --dim input_ids.0=8 --dim input_ids.1=64")]
pub(crate) struct Args {
    /// Directory of the model (config.json, model.safetensors or shards, tokenizer.json), or a file of a model
    #[arg(value_name = "DIR|FILE.pt2|FILE.onnx")]
    model: PathBuf,
    /// Directory of the checkpoint, or folder of the program
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    extents: ExtentArgs,
    #[command(flatten)]
    destination: Destination,
}

/// The file of the model's shape.
const SHAPE: &str = "shape.json";

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let is_named = args.model.extension().is_some_and(|extension| extension == "pt2" || extension == "onnx");
    if args.model.is_file() || is_named {
        import_archive(&args, screen)
    } else {
        import_published(&args, screen)
    }
}

fn import_archive(args: &Args, screen: &mut Screen) -> Outcome {
    let imported = args.extents.open(&args.model)?;
    let program = imported.program()?;
    let states = imported.states().iter().map(|state| (state.name(), state));
    imported::write(imported::claim(&args.out, args.destination.overwrite)?, states, &program)?;
    let (nodes, parameters) = (program.graph.len(), program.parameter_count());
    screen.line(format!(
        "a program of {nodes} ops with {} parameters in {}",
        grouped(parameters as u64),
        args.out.display()
    ));
    Ok(ExitCode::SUCCESS)
}

fn import_published(args: &Args, screen: &mut Screen) -> Outcome {
    args.extents.only_if(false)?;
    let model = published(&args.model)?;
    let claimed = args.destination.of_run(Some(&args.out), &args.out, &[], screen);
    let directory = claimed.map_err(CliError::without_resume)?;
    model.import(&args.out)?;
    let shape = serde_json::json!(model.config());
    write_derived(&args.out.join(SHAPE), &format!("{shape:#}\n"), &[])?;
    directory.clear(&[CHECKPOINT_FILE, SHAPE])?;
    let kind = match model.config() {
        ModelConfig::Gpt(_) => "a decoder",
        ModelConfig::Recurrent(_) => "a recurrent model",
        ModelConfig::Bert(_) => "a BERT",
        ModelConfig::EncoderDecoder(_) => "an encoder-decoder",
    };
    screen.line(format!("{kind} of {} parameters in {}", model.config().parameters(), args.out.display()));
    Ok(ExitCode::SUCCESS)
}
