//! `kernfusion chat`: a conversation with a model that was trained to answer.

use crate::Outcome;
use crate::common::error::CliError;
use crate::common::model::ExecutionArgs;
use crate::common::sampling::SamplingArgs;
use crate::common::screen::Screen;
use crate::common::source::published;
use kernfusion_lm::chat::Conversation;
use kernfusion_lm::sample::Sampler;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Talk with a model that was trained to answer
///
/// Each line of standard input is a message, and the model answers it; the end of input ends the conversation. The model's own chat
/// template says how messages are written for it.
///
/// The same messages, settings and seed give the same answers, unless the template asks for the date.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion chat --model Qwen3-0.6B --weights int8
  kernfusion chat --model Qwen3-0.6B --message \"What is a compiler?\" --tokens 500")]
pub(crate) struct Args {
    /// Directory of a model in the layout of Hugging Face, with its chat template
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// System message: instructions that come before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// A message, in place of standard input; may be given several times, one after another
    #[arg(long, value_name = "TEXT")]
    message: Vec<String>,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    execution: ExecutionArgs,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let sampler = args.sampling.sampler()?;
    let target = args.execution.target()?;
    let model = published(&args.model)?;
    let mut conversation = Conversation::new(&model, &target)?;
    if let Some(system) = &args.system {
        conversation.begin(system);
    }
    let mut talk = Talk { conversation, sampler, tokens: args.tokens };
    if !args.message.is_empty() {
        for message in &args.message {
            talk.say(message, screen)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    // A person sees where to write, and goes on after a message that was refused.
    let is_person = io::stdin().is_terminal();
    let ask = || {
        if is_person {
            let _ = write!(io::stderr(), "> ");
        }
    };
    ask();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|cause| CliError::System { what: "cannot read standard input", cause })?;
        let outcome = if line.trim().is_empty() { Ok(()) } else { talk.say(&line, screen) };
        match outcome {
            Err(error) if is_person => _ = writeln!(io::stderr(), "error: {error}"),
            other => other?,
        }
        ask();
    }
    if is_person {
        let _ = writeln!(io::stderr());
    }
    Ok(ExitCode::SUCCESS)
}

struct Talk {
    conversation: Conversation,
    sampler: Sampler,
    tokens: usize,
}

impl Talk {
    fn say(&mut self, message: &str, screen: &mut Screen) -> Result<(), CliError> {
        self.conversation.say(message, self.tokens, &self.sampler, &mut |piece| screen.text(piece))?;
        screen.line("");
        Ok(())
    }
}
