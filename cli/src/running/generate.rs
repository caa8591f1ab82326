//! `kernfusion generate`: a trained model continues a text, fills its gaps, or turns it into another one.

use crate::Outcome;
use crate::common::error::{CliError, in_file, read_text};
use crate::common::model::ExecutionArgs;
use crate::common::sampling::SamplingArgs;
use crate::common::screen::Screen;
use crate::common::source::{Source, SourceArgs};
use kernfusion::models::ModelConfig;
use kernfusion_lm::fill::{Filler, GAP};
use kernfusion_lm::generate::{Ending, Generator};
use kernfusion_lm::hugging_face::Published;
use kernfusion_lm::sample::Sampler;
use kernfusion_lm::text::{TextError, Tokenizer};
use kernfusion_lm::translate::Translator;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Continue a text with a trained model, fill its gaps, or turn it into another one
///
/// A decoder continues the prompt. A BERT fills the gaps of the prompt, which are written `_`. An encoder-decoder turns the
/// prompt into another text. These two need one.
///
/// The model is a checkpoint of Kernfusion, or a folder in the layout of Hugging Face.
///
/// The same checkpoint, prompt, settings and seed give the same text. The prompt of a model of characters may only have
/// those of the text that it was trained on.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion generate --checkpoint runs/tiny --prompt \"The compiler\" --tokens 300
  kernfusion generate --model gpt2 --prompt \"The compiler\" --tokens 40
  kernfusion generate --model bert --prompt \"A compiler _ programs.\"
  kernfusion generate --model t5 --prompt \"translate English to German: A tree.\" --beams 4")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Text to continue [default: a line break], to fill or to turn into another one
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prompt: String,
    /// Texts to continue instead, one for each line, all of them at once; what is written comes as a line of JSON for each
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompts: Option<PathBuf>,
    /// End in front of this text; may be given several times. A model in the layout of Hugging Face ends with its own tokens, too
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    stop: Vec<String>,
    /// Tokens to write at most [default: 300]
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Hypotheses that an encoder-decoder keeps; 1: always the likeliest token [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    beams: Option<u16>,
    #[command(flatten)]
    execution: ExecutionArgs,
}

impl Args {
    /// Tokens at most.
    fn length(&self) -> usize {
        self.tokens.unwrap_or(300)
    }
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let sampler = args.sampling.sampler()?;
    let target = args.execution.target()?;
    let source = args.source.open()?;
    let config = source.config().map_err(|error| in_file(args.source.path(), error))?;
    let named = |error| in_file(args.source.path(), error);
    check(&args, &config)?;
    if args.execution.weights.is_given() && !matches!(config, ModelConfig::Gpt(_)) {
        return Err(CliError::Usage("--weights is for decoders".into()));
    }
    let prompts = prompts(&args)?;
    match config {
        ModelConfig::Gpt(_) | ModelConfig::Recurrent(_) => {
            let generator = match source {
                Source::Checkpoint(checkpoint) => Generator::from_checkpoint(*checkpoint, &target),
                Source::Published(model) => {
                    prompts.iter().try_for_each(|prompt| check_length(prompt, &model))?;
                    Generator::from_published(&model, &target)
                }
            };
            let stop = Ending { tokens: vec![], texts: args.stop.clone() };
            let generator = generator.map_err(named)?.ending(stop);
            match &args.prompts {
                Some(path) => continued_all(&args, path, &prompts, generator, &sampler, screen),
                None => continued(&args, generator, &sampler, screen),
            }
        }
        ModelConfig::Bert(_) => {
            let filler = match source {
                Source::Checkpoint(checkpoint) => Filler::from_checkpoint(*checkpoint, &target),
                Source::Published(model) => Filler::from_published(&model, &target),
            };
            filled(&args, filler.map_err(named)?, screen)
        }
        ModelConfig::EncoderDecoder(_) => {
            let beams = args.beams.unwrap_or(1).into();
            let translator = match source {
                Source::Checkpoint(checkpoint) => Translator::from_checkpoint(*checkpoint, &target, beams),
                Source::Published(model) => Translator::from_published(&model, &target, beams),
            };
            turned(&args, translator.map_err(named)?, screen)
        }
    }
}

/// Refuses flags that mean nothing to a model of this kind, and asks for those that it needs.
fn check(args: &Args, model: &ModelConfig) -> Result<(), CliError> {
    let usage = |reason: &str| Err(CliError::Usage(reason.into()));
    let continues = matches!(model, ModelConfig::Gpt(_) | ModelConfig::Recurrent(_));
    if args.beams.is_some() && !matches!(model, ModelConfig::EncoderDecoder(_)) {
        return usage("--beams is for encoder-decoders");
    }
    if !continues && (args.prompts.is_some() || !args.stop.is_empty()) {
        return usage("--prompts and --stop are for models that continue a text");
    }
    if !continues && args.sampling.is_given() {
        return usage("--temperature, --top-k and --top-p are for models that continue a text");
    }
    let (is_bert, is_empty) = (matches!(model, ModelConfig::Bert(_)), args.prompt.is_empty());
    match continues {
        _ if is_bert && args.tokens.is_some() => {
            usage("--tokens is for models that write: a BERT fills gaps")
        }
        false if is_empty && is_bert => usage("--prompt is needed: a text with gaps, each written _"),
        false if is_empty => usage("--prompt is needed: the text that the model turns into another one"),
        _ => Ok(()),
    }
}

/// The texts to continue: the lines of a file, or the one prompt.
fn prompts(args: &Args) -> Result<Vec<String>, CliError> {
    let Some(path) = &args.prompts else { return Ok(vec![args.prompt.clone()]) };
    let lines: Vec<_> = read_text(path)?.lines().map(String::from).collect();
    match lines.is_empty() {
        true => Err(CliError::Usage(format!("{}: there is no line, and so no prompt", path.display()))),
        false => Ok(lines),
    }
}

/// Refuses a prompt of which a published model would see a part only.
fn check_length(prompt: &str, model: &Published) -> Result<(), CliError> {
    let tokens = model.needed_tokenizer().map_err(kernfusion_lm::Error::from)?.encode(prompt);
    let (length, context) =
        (tokens.map_err(|error| in_prompt(error.into()))?.len(), model.config().context());
    match length > context {
        true => {
            Err(CliError::Usage(format!("--prompt: it has {length} tokens, but the model sees {context}")))
        }
        false => Ok(()),
    }
}

fn continued(args: &Args, mut generator: Generator, sampler: &Sampler, screen: &mut Screen) -> Outcome {
    // Nothing of the prompt is shown before it is known to be possible.
    generator.check(&args.prompt).map_err(in_prompt)?;
    screen.text(&args.prompt);
    generator.generate(&args.prompt, args.length(), sampler, &mut |piece| screen.text(piece))?;
    screen.line("");
    Ok(ExitCode::SUCCESS)
}

fn continued_all(
    args: &Args,
    path: &Path,
    prompts: &[String],
    mut generator: Generator,
    sampler: &Sampler,
    screen: &mut Screen,
) -> Outcome {
    for (number, prompt) in prompts.iter().enumerate() {
        generator
            .check(prompt)
            .map_err(|error| CliError::Usage(format!("{}: line {}: {error}", path.display(), number + 1)))?;
    }
    let each: Vec<_> = prompts.iter().map(String::as_str).collect();
    let texts = generator.generate_all(&each, args.length(), sampler)?;
    for (prompt, text) in prompts.iter().zip(texts) {
        screen.line(json!({ "prompt": prompt, "text": text }));
    }
    Ok(ExitCode::SUCCESS)
}

fn filled(args: &Args, (mut filler, tokenizer): (Filler, Tokenizer), screen: &mut Screen) -> Outcome {
    let tokens =
        with_gaps(&args.prompt, &tokenizer, filler.mask()).map_err(|error| in_prompt(error.into()))?;
    let filled = filler.fill(&tokens).map_err(in_prompt)?;
    screen.line(tokenizer.decode(&filled).map_err(kernfusion_lm::Error::from)?);
    Ok(ExitCode::SUCCESS)
}

/// The tokens of a text with the mask for each gap.
fn with_gaps(text: &str, tokenizer: &Tokenizer, mask: i32) -> Result<Vec<i32>, TextError> {
    // A tokenizer that puts marks around a text takes it whole, and knows its mask by name.
    if let (Tokenizer::Marked(_), Some(name)) = (tokenizer, tokenizer.token(mask)) {
        return tokenizer.encode(&text.replace(GAP, &name));
    }
    let mut tokens = Vec::new();
    for part in text.split_inclusive(GAP) {
        let known = part.trim_end_matches(GAP);
        tokens.extend(tokenizer.encode(known)?);
        tokens.extend((known.len() < part.len()).then_some(mask));
    }
    Ok(tokens)
}

fn turned(args: &Args, (translator, tokenizer): (Translator, Tokenizer), screen: &mut Screen) -> Outcome {
    let source = tokenizer.encode(&args.prompt).map_err(|error| in_prompt(error.into()))?;
    let mut written = translator.at_most(args.length()).translate(&[source]).map_err(in_prompt)?.remove(0);
    // A vocabulary may be padded; what is no character is not shown.
    written.retain(|&token| (token as usize) < tokenizer.vocabulary_size());
    screen.line(tokenizer.decode(&written).map_err(kernfusion_lm::Error::from)?);
    Ok(ExitCode::SUCCESS)
}

fn in_prompt(error: kernfusion_lm::Error) -> CliError {
    CliError::Usage(format!("--prompt: {error}"))
}
