//! `kernfusion score`: how likely a model finds a text.

use crate::Outcome;
use crate::common::destination::{check_derived, write_derived};
use crate::common::error::{CliError, in_file};
use crate::common::model::ExecutionArgs;
use crate::common::screen::Screen;
use crate::common::source::{Source, SourceArgs};
use kernfusion_lm::score::{Score, TextScorer};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Say how likely each token of a text is, given those before it
///
/// For models that continue a text. A text longer than the context is read in windows that begin half a context after each
/// other, so that a token is judged given all before it or at least half a context; the first token is not judged.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion score --checkpoint runs/tiny --text \"The compiler reads\"
  kernfusion score --model gpt2 --ids 20,8,5 --json score.json")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// The text
    #[arg(long, value_name = "TEXT", required_unless_present = "ids", conflicts_with = "ids")]
    text: Option<String>,
    /// Its tokens, by their ids
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', allow_negative_numbers = true)]
    ids: Option<Vec<i32>>,
    /// Write all figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    execution: ExecutionArgs,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let files = args.source.files();
    let sources: Vec<_> = files.iter().map(PathBuf::as_path).collect();
    args.json.iter().try_for_each(|path| check_derived(path, &sources))?;
    let target = args.execution.target()?;
    let scorer = match args.source.open()? {
        Source::Checkpoint(checkpoint) => TextScorer::from_checkpoint(*checkpoint, &target),
        Source::Published(model) => TextScorer::from_published(&model, &target),
    };
    let mut scorer = scorer.map_err(|error| in_file(args.source.path(), error))?;
    if args.text.is_some() && scorer.tokenizer().is_none() {
        let reason =
            "--text: the model has no tokenizer.json, which texts need: give the tokens by their ids (--ids)";
        return Err(CliError::Usage(reason.into()));
    }
    let (flag, score) = match (&args.text, &args.ids) {
        (Some(text), _) => ("--text", scorer.score_text(text)),
        (None, ids) => ("--ids", scorer.score(ids.as_deref().unwrap_or_default())),
    };
    let score = score.map_err(|error| wrong(flag, error))?;
    // A vocabulary may be larger than that of the tokenizer, and a published model may have none; what is nothing in a text is
    // shown as it is stored.
    let piece = |token: i32| {
        let text = scorer.tokenizer()?.decode(&[token]).ok().filter(|text| !text.is_empty());
        text.or_else(|| scorer.tokenizer()?.token(token))
    };
    let pieces: Vec<_> = score.tokens.iter().map(|&token| piece(token).unwrap_or_default()).collect();
    table(&score, &pieces, screen);
    if let Some(path) = &args.json {
        write_derived(path, &format!("{:#}\n", figures(&score, &pieces)), &sources)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is wrong with a flag's value; a configuration error loses its own prefix.
fn wrong(flag: &str, error: kernfusion_lm::Error) -> CliError {
    match error {
        kernfusion_lm::Error::Configuration(reason) => CliError::Usage(format!("{flag}: {reason}")),
        other => CliError::Usage(format!("{flag}: {other}")),
    }
}

fn table(score: &Score, pieces: &[String], screen: &mut Screen) {
    screen.line(format!("{:>8} {:>7}  {:<16} {:>9}", "position", "id", "token", "ln p"));
    let judged = std::iter::once(None).chain(score.log_probabilities.iter().map(Some));
    for (place, ((token, piece), p)) in score.tokens.iter().zip(pieces).zip(judged).enumerate() {
        let p = p.map_or("-".into(), |p| format!("{p:.4}"));
        screen.line(format!("{place:>8} {token:>7}  {:<16} {p:>9}", format!("{piece:?}")));
    }
    screen.line(format!(
        "sum {:.4}, {:.4} nats per token, perplexity {:.3}",
        score.sum(),
        score.nats_per_token(),
        score.perplexity()
    ));
}

fn figures(score: &Score, pieces: &[String]) -> serde_json::Value {
    let judged = std::iter::once(None).chain(score.log_probabilities.iter().map(Some));
    let tokens = score.tokens.iter().zip(pieces).zip(judged);
    let tokens = tokens.map(|((id, text), p)| json!({"id": id, "text": text, "log_probability": p}));
    json!({
        "tokens": tokens.collect::<Vec<_>>(),
        "judged": score.log_probabilities.len(),
        "sum": score.sum(),
        "nats_per_token": score.nats_per_token(),
        "perplexity": score.perplexity(),
    })
}
