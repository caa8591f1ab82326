//! The command line: one file for each command, and what they share.
//!
//! * A command takes its parsed flags and a `Screen`, and returns an exit code or an error.
//! * Whatever a user can cause ends as one line `error: …` on standard error and an exit code other than 0 (2 for flags
//!   that cannot be understood); mistakes in a program's text may take more lines. A reader of standard output that
//!   goes away is no error.

mod common;
pub mod experiment;
pub mod fetch;
mod inspection;
mod launch;
mod measurement;
pub mod report;
mod running;
pub mod tensorboard;
mod text_file;
mod training;
pub mod viewer;

use clap::{Parser, Subcommand, error::ErrorKind};
use common::error::CliError;
use common::screen::{Screen, note};
use kernfusion_mpi::{Watch, launched_rank};
use std::process::ExitCode;
use training::ranks::Ranks;

/// What every command returns.
type Outcome = Result<ExitCode, CliError>;

/// A compiler for Transformers: trains, measures and explains.
#[derive(Parser)]
#[command(
    name = "kernfusion",
    version,
    arg_required_else_help = false,
    after_help = "Example: kernfusion train"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Each command's description stands at its flags.
#[derive(Subcommand)]
enum Command {
    Train(Box<training::train::Args>),
    Tune(training::tune::Args),
    Launch(launch::Args),
    Generate(running::generate::Args),
    Chat(running::chat::Args),
    Score(running::score::Args),
    Import(running::import::Args),
    Export(running::export::Args),
    Report(measurement::report::Args),
    Experiment(measurement::experiment::Args),
    Bench(measurement::bench::Args),
    Compile(running::compile::Args),
    Dump(inspection::dump::Args),
    Bisect(inspection::bisect::Args),
    Opt(inspection::opt::Args),
    Run(running::run::Args),
    Explain(inspection::explain::Args),
    Profile(measurement::profile::Args),
    Selftest(measurement::selftest::Args),
    Data(training::data::Args),
    Presets(inspection::presets::Args),
}

/// Parses the arguments and runs the command.
pub fn main() -> ExitCode {
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        std::panic::set_hook(Box::new(|info| {
            let message = info.to_string().replace('\n', " ");
            note(&format!("error: this is a mistake in kernfusion itself, please report it: {message}"));
        }));
    }
    let mut screen = Screen::new();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error, screen),
    };
    let outcome = match cli.command {
        Command::Train(args) => {
            let ranks = Ranks::launched(args.exchange.watch());
            ranks.and_then(|ranks| training::train::run(&args, &ranks, &mut screen))
        }
        Command::Tune(args) => {
            let ranks = Ranks::launched(args.exchange().watch());
            ranks.and_then(|ranks| training::tune::run(&args, &ranks, &mut screen))
        }
        Command::Profile(args) => {
            let ranks = Ranks::launched(args.exchange.watch());
            ranks.and_then(|ranks| measurement::profile::run(&args, &ranks, &mut screen))
        }
        _ if launched_rank().is_some() => {
            let what =
                "several processes run `kernfusion train`, `tune` and `profile` together, and nothing else";
            refused(what, &mut screen)
        }
        Command::Launch(args) => launch::run(&args, &mut screen),
        Command::Generate(args) => running::generate::run(args, &mut screen),
        Command::Chat(args) => running::chat::run(args, &mut screen),
        Command::Report(args) => measurement::report::run(args, &mut screen),
        Command::Experiment(args) => measurement::experiment::run(args, &mut screen),
        Command::Score(args) => running::score::run(args, &mut screen),
        Command::Import(args) => running::import::run(args, &mut screen),
        Command::Export(args) => running::export::run(args, &mut screen),
        Command::Bench(args) => measurement::bench::run(args, &mut screen),
        Command::Compile(args) => running::compile::run(args, &mut screen),
        Command::Dump(args) => inspection::dump::run(args, &mut screen),
        Command::Bisect(args) => inspection::bisect::run(args, &mut screen),
        Command::Opt(args) => inspection::opt::run(args, &mut screen),
        Command::Run(args) => running::run::run(args, &mut screen),
        Command::Explain(args) => inspection::explain::run(args, &mut screen),
        Command::Selftest(args) => measurement::selftest::run(args, &mut screen),
        Command::Data(args) => training::data::run(args, &mut screen),
        Command::Presets(args) => inspection::presets::run(args, &mut screen),
    };
    let outcome = outcome.and_then(|code| screen.finish().map(|()| code));
    outcome.unwrap_or_else(|error| {
        note(&format!("error: {error}"));
        ExitCode::from(error.exit_code())
    })
}

/// A mistake in how this process was started. Of several processes one says it and ends all, whether or not the others were started alike.
fn refused(what: &str, screen: &mut Screen) -> Outcome {
    Ranks::launched(Watch::default())?.run(screen, |_, _| Err(CliError::Usage(what.into())))
}

/// Help and version go to standard output; anything else is a mistake, shown in one line.
fn usage(error: &clap::Error, mut screen: Screen) -> ExitCode {
    let text = error.to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        if launched_rank().is_none_or(|rank| rank == 0) {
            screen.text(&text);
        }
        return screen.finish().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    // What follows the usage line repeats what `--help` says.
    let paragraphs =
        text.split("\n\n").take_while(|text| !text.starts_with("Usage:") && !text.starts_with("For more"));
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let message = paragraphs.map(line).collect::<Vec<_>>().join("; ");
    if let Err(error) = refused(message.trim_start_matches("error: "), &mut screen) {
        note(&format!("error: {error}"));
    }
    ExitCode::from(2)
}
