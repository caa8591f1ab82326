//! `kernfusion import`: writes a model in the layout of Hugging Face as a checkpoint.

use crate::Outcome;
use crate::common::destination::{Destination, write_derived};
use crate::common::screen::Screen;
use crate::common::source::published;
use kernfusion::models::ModelConfig;
use kernfusion_lm::checkpoint::CHECKPOINT_FILE;
use std::path::PathBuf;
use std::process::ExitCode;

/// Make a checkpoint of a model in the layout of Hugging Face
///
/// For GPT-2, Llama, Mistral, Mixtral, BERT and T5. The checkpoint can be tuned; to train the model further, give `train` the shape
/// (--config DIR/shape.json), the tokenizer (--tokenizer) and the parameters (--init DIR/checkpoint.safetensors). `generate` and
/// `score` take a model as it is, too (--model).
#[derive(clap::Args)]
#[command(after_help = "Example: kernfusion import gpt2 -o runs/gpt2")]
pub(crate) struct Args {
    /// Directory of the model: config.json, model.safetensors or shards, tokenizer.json
    #[arg(value_name = "DIR")]
    model: PathBuf,
    /// Directory of the checkpoint
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    destination: Destination,
}

/// The file of the model's shape.
const SHAPE: &str = "shape.json";

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let model = published(&args.model)?;
    let directory = args.destination.of_run(Some(&args.out), &args.out, &[], screen)?;
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
