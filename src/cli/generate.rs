//! `kernfusion generate`: a trained model continues a text.

use super::Outcome;
use super::error::CliError;
use super::model::TargetArgs;
use super::screen::Screen;
use kernfusion::checkpoint::Checkpoint;
use kernfusion::compile::Mode;
use kernfusion::generate::Generator;
use kernfusion::sample::Sampler;
use kernfusion::train::{attach, use_averages};
use std::path::PathBuf;
use std::process::ExitCode;

/// Continue a text with a trained model
///
/// The same checkpoint, prompt, settings and seed give the same text. The prompt of a model of characters
/// may only have those of the text that it was trained on.
#[derive(clap::Args)]
#[command(
    after_help = "Example: kernfusion generate --checkpoint runs/tiny --prompt \"The compiler\" --tokens 300"
)]
pub(super) struct Args {
    /// Directory of the checkpoint
    #[arg(long, value_name = "DIR")]
    checkpoint: PathBuf,
    /// Text to continue [default: a line break]
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prompt: String,
    /// Tokens to write
    #[arg(long, value_name = "N", default_value_t = 300)]
    tokens: usize,
    /// Pick among the K likeliest only; 1: always the likeliest
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Pick among the fewest that have this probability together
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Below 1: safer, above: bolder; 0: always the likeliest
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f64,
    /// Directory of adapters (the one named adapter in that of a run with --lora) to put into the model
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Write with the averages that the optimizer asgd has kept, in place of the last parameters
    #[arg(long)]
    averaged: bool,
    /// Seed of the picks
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// How the model is executed
    #[arg(long, value_name = "MODE", default_value = "compiled")]
    mode: Mode,
    #[command(flatten)]
    target: TargetArgs,
}

pub(super) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let sampler =
        Sampler::new(args.temperature, args.top_k, args.top_p, args.seed).map_err(kernfusion::Error::from)?;
    let target = args.target.target(args.mode)?;
    let mut checkpoint = Checkpoint::load(&args.checkpoint).map_err(kernfusion::Error::from)?;
    let in_checkpoint = |error| super::error::in_file(&args.checkpoint, error);
    if args.averaged {
        use_averages(&mut checkpoint).map_err(in_checkpoint)?;
    }
    if let Some(adapter) = &args.adapter {
        let adapters = Checkpoint::load(adapter).map_err(kernfusion::Error::from)?;
        attach(&mut checkpoint, adapters).map_err(|error| super::error::in_file(adapter, error))?;
    }
    let mut generator = Generator::from_checkpoint(checkpoint, &target).map_err(in_checkpoint)?;
    // Nothing of the prompt is shown before it is known to be possible.
    generator.check(&args.prompt).map_err(|error| CliError::Usage(format!("--prompt: {error}")))?;
    screen.text(&args.prompt);
    generator.generate(&args.prompt, args.tokens, &sampler, &mut |piece| screen.text(piece))?;
    screen.line("");
    Ok(ExitCode::SUCCESS)
}
