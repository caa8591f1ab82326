//! `kernfusion generate`: a trained model continues a text, fills its gaps, or turns it into another one.

use super::Outcome;
use super::error::{CliError, in_file};
use super::model::TargetArgs;
use super::screen::Screen;
use kernfusion::checkpoint::Checkpoint;
use kernfusion::compile::{Mode, Target};
use kernfusion::fill::{Filler, GAP};
use kernfusion::generate::Generator;
use kernfusion::models::ModelConfig;
use kernfusion::sample::Sampler;
use kernfusion::train::{Record, attach, use_averages};
use kernfusion::translate::Translator;
use std::path::PathBuf;
use std::process::ExitCode;

/// Continue a text with a trained model
///
/// A decoder continues the prompt. A BERT fills the gaps of the prompt, which are written `_`. An encoder-decoder turns the
/// prompt into another text.
///
/// The same checkpoint, prompt, settings and seed give the same text. The prompt of a model of characters may only have
/// those of the text that it was trained on.
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
    /// Hypotheses that an encoder-decoder keeps; 1: always the likeliest token
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    beams: u16,
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
    if args.averaged {
        use_averages(&mut checkpoint).map_err(|error| in_file(&args.checkpoint, error))?;
    }
    if let Some(adapter) = &args.adapter {
        let adapters = Checkpoint::load(adapter).map_err(kernfusion::Error::from)?;
        attach(&mut checkpoint, adapters).map_err(|error| in_file(adapter, error))?;
    }
    let (config, _) = Record::model(&checkpoint.meta).map_err(|error| in_file(&args.checkpoint, error))?;
    match config {
        ModelConfig::Gpt(_) | ModelConfig::Recurrent(_) => {
            continued(&args, checkpoint, &sampler, &target, screen)
        }
        ModelConfig::Bert(_) => filled(&args, checkpoint, &target, screen),
        ModelConfig::EncoderDecoder(_) => turned(&args, checkpoint, &target, screen),
    }
}

fn continued(
    args: &Args,
    checkpoint: Checkpoint,
    sampler: &Sampler,
    target: &Target,
    screen: &mut Screen,
) -> Outcome {
    let generator = Generator::from_checkpoint(checkpoint, target);
    let mut generator = generator.map_err(|error| in_file(&args.checkpoint, error))?;
    // Nothing of the prompt is shown before it is known to be possible.
    generator.check(&args.prompt).map_err(in_prompt)?;
    screen.text(&args.prompt);
    generator.generate(&args.prompt, args.tokens, sampler, &mut |piece| screen.text(piece))?;
    screen.line("");
    Ok(ExitCode::SUCCESS)
}

fn filled(args: &Args, checkpoint: Checkpoint, target: &Target, screen: &mut Screen) -> Outcome {
    let filler = Filler::from_checkpoint(checkpoint, target);
    let (mut filler, tokenizer) = filler.map_err(|error| in_file(&args.checkpoint, error))?;
    let mut tokens = Vec::new();
    for part in args.prompt.split_inclusive(GAP) {
        let known = part.trim_end_matches(GAP);
        tokens.extend(tokenizer.encode(known).map_err(|error| in_prompt(error.into()))?);
        tokens.extend((known.len() < part.len()).then_some(filler.mask()));
    }
    let filled = filler.fill(&tokens).map_err(in_prompt)?;
    screen.line(tokenizer.decode(&filled).map_err(kernfusion::Error::from)?);
    Ok(ExitCode::SUCCESS)
}

fn turned(args: &Args, checkpoint: Checkpoint, target: &Target, screen: &mut Screen) -> Outcome {
    let translator = Translator::from_checkpoint(checkpoint, target, args.beams.into());
    let (mut translator, tokenizer) = translator.map_err(|error| in_file(&args.checkpoint, error))?;
    let source = tokenizer.encode(&args.prompt).map_err(|error| in_prompt(error.into()))?;
    let mut written = translator.translate(&[source]).map_err(in_prompt)?.remove(0);
    // A vocabulary may be padded; what is no character is not shown.
    written.retain(|&token| (token as usize) < tokenizer.vocabulary_size());
    screen.line(tokenizer.decode(&written).map_err(kernfusion::Error::from)?);
    Ok(ExitCode::SUCCESS)
}

fn in_prompt(error: kernfusion::Error) -> CliError {
    CliError::Usage(format!("--prompt: {error}"))
}
