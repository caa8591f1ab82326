//! The command line: one file for each command, and what they share.
//!
//! * A command takes its parsed flags and a [`Screen`], and returns an exit code or an error.
//! * Whatever a user can cause ends as one line `error: …` on standard error and an exit code other than 0 (2 for flags
//!   that cannot be understood); mistakes in a program's text may take more lines. A reader of standard output that
//!   goes away is no error.

mod adaptation;
mod bench;
mod bisect;
mod compile;
mod data;
mod destination;
mod dump;
mod error;
mod experiment;
mod explain;
mod export;
mod fuzz;
mod generate;
mod import;
mod live;
mod machine;
mod model;
mod opt;
mod presets;
mod profile;
mod profile_table;
mod report;
mod run;
mod score;
mod screen;
mod selftest;
mod source;
mod stages;
mod stop;
mod tokenizer;
mod train;
mod train_report;
mod tune;
mod view;
mod watch;
mod workload;

use clap::{Parser, Subcommand, error::ErrorKind};
use error::CliError;
use screen::{Screen, note};
use std::process::ExitCode;

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
    Train(Box<train::Args>),
    Tune(tune::Args),
    Generate(generate::Args),
    Score(score::Args),
    Import(import::Args),
    Export(export::Args),
    Report(report::Args),
    Experiment(experiment::Args),
    Bench(bench::Args),
    Compile(compile::Args),
    Dump(dump::Args),
    Bisect(bisect::Args),
    Opt(opt::Args),
    Run(run::Args),
    Explain(explain::Args),
    Profile(profile::Args),
    Selftest(selftest::Args),
    Data(data::Args),
    Presets(presets::Args),
}

/// Parses the arguments and runs the command.
pub(crate) fn main() -> ExitCode {
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        std::panic::set_hook(Box::new(|info| {
            let message = info.to_string().replace('\n', " ");
            note(&format!("error: this is a mistake in kernfusion itself, please report it: {message}"));
        }));
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let mut screen = Screen::new();
    let outcome = match cli.command {
        Command::Train(args) => train::run(*args, &mut screen),
        Command::Tune(args) => tune::run(args, &mut screen),
        Command::Generate(args) => generate::run(args, &mut screen),
        Command::Report(args) => report::run(args, &mut screen),
        Command::Experiment(args) => experiment::run(args, &mut screen),
        Command::Score(args) => score::run(args, &mut screen),
        Command::Import(args) => import::run(args, &mut screen),
        Command::Export(args) => export::run(args, &mut screen),
        Command::Bench(args) => bench::run(args, &mut screen),
        Command::Compile(args) => compile::run(args, &mut screen),
        Command::Dump(args) => dump::run(args, &mut screen),
        Command::Bisect(args) => bisect::run(args, &mut screen),
        Command::Opt(args) => opt::run(args, &mut screen),
        Command::Run(args) => run::run(args, &mut screen),
        Command::Explain(args) => explain::run(args, &mut screen),
        Command::Profile(args) => profile::run(args, &mut screen),
        Command::Selftest(args) => selftest::run(args, &mut screen),
        Command::Data(args) => data::run(args, &mut screen),
        Command::Presets(args) => presets::run(args, &mut screen),
    };
    let outcome = outcome.and_then(|code| screen.finish().map(|()| code));
    outcome.unwrap_or_else(|error| {
        note(&format!("error: {error}"));
        ExitCode::from(error.exit_code())
    })
}

/// Help and version go to standard output; anything else is a mistake, shown in one line.
fn usage(error: &clap::Error) -> ExitCode {
    let text = error.to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let mut screen = Screen::new();
        screen.text(&text);
        return screen.finish().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    // What follows the usage line repeats what `--help` says.
    let paragraphs =
        text.split("\n\n").take_while(|text| !text.starts_with("Usage:") && !text.starts_with("For more"));
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let message = paragraphs.map(line).collect::<Vec<_>>().join("; ");
    note(&message);
    ExitCode::from(2)
}
