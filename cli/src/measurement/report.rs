//! `kernfusion report`: a page about a training run.

use crate::Outcome;
use crate::common::destination::{EXPERIMENT_LOG, LOG};
use crate::common::destination::{check_derived, write_derived};
use crate::common::error::CliError;
use crate::common::screen::Screen;
use crate::report::{Description, run_page};
use kernfusion_lm::train::Row;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Draw the curves of a training run into a page, with its samples, its settings and the machine
///
/// The page is one file that needs no network and no scripts. The run may be under way, have been resumed, or have ended
/// anywhere.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion report runs/tiny
  kernfusion report loss.jsonl -o loss.html")]
pub(crate) struct Args {
    /// Directory of a run, or a log that train --log has written
    #[arg(value_name = "DIR|LOG.jsonl")]
    run: PathBuf,
    /// Where to write the page [default: run.html in the directory, or beside the log]
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
}

/// Logs in the directories of runs: of training and of experiments.
const LOGS: [&str; 2] = [LOG, EXPERIMENT_LOG];

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let (log, directory, page) = match args.run.is_dir() {
        true => (log_in(&args.run)?, args.run.clone(), args.run.join("run.html")),
        false => {
            let directory = args.run.parent().unwrap_or(Path::new("")).to_path_buf();
            (args.run.clone(), directory, args.run.with_extension("html"))
        }
    };
    let page = args.output.unwrap_or(page);
    check_derived(&page, &[&log])?;
    let description = directory.join(Description::FILE);
    let about = description.exists().then(|| Description::read(&description)).transpose()?;
    let rows = Row::read_all(&log)?;
    write_derived(&page, &run_page(&name(&args.run), about.as_ref(), &rows), &[&log])?;
    screen.line(format!("report in {}", page.display()));
    Ok(ExitCode::SUCCESS)
}

/// What a run is called: as its directory or its log.
fn name(run: &Path) -> String {
    let whole = std::fs::canonicalize(run).unwrap_or_else(|_| run.into());
    whole.file_stem().map_or_else(|| run.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// The log in the directory of a run.
fn log_in(directory: &Path) -> Result<PathBuf, CliError> {
    let found = LOGS.iter().map(|name| directory.join(name)).find(|path| path.exists());
    let reason = || format!("there is no log of a run: neither {} nor {}", LOGS[0], LOGS[1]);
    found.ok_or_else(|| CliError::Content { path: directory.into(), reason: reason() })
}
