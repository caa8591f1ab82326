//! Who watches a training run beside the screen: its logs and TensorBoard.

use super::error::CliError;
use super::live;
use super::screen::note;
use kernfusion::report::Description;
use kernfusion::tensorboard::EventFile;
use kernfusion::train::Session;
use std::path::{Path, PathBuf};

/// The log of a run, in its directory.
pub(super) const LOG: &str = "log.jsonl";

/// What is written while a run goes on.
#[derive(clap::Args)]
pub(super) struct WatchArgs {
    /// Write a line of JSON for each step here, too; a resumed run continues the file [always: log.jsonl in the directory of
    /// the checkpoint]
    #[arg(long, value_name = "FILE.jsonl")]
    log: Option<PathBuf>,
    /// Write event files for TensorBoard: curves, texts, memory; without a value into the directory of the checkpoint, so that
    /// tensorboard --logdir runs shows all runs
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    tensorboard: Option<Option<PathBuf>>,
    /// Show curves, the last sample and the machine in the terminal; q stops with a checkpoint, p pauses. Without a terminal:
    /// lines, as without the flag
    #[arg(long)]
    ui: bool,
}

impl WatchArgs {
    /// Whether to open a view; says so if it was asked for and cannot be had.
    pub(super) fn has_view(&self) -> bool {
        let possible = live::is_possible();
        if self.ui && !possible {
            note("no terminal to draw on: --ui shows lines instead");
        }
        self.ui && possible
    }

    /// Lets all of them watch a session, whose checkpoint is in `directory`.
    pub(super) fn attach(
        &self,
        session: &mut Session,
        directory: &Path,
        about: &Description,
    ) -> Result<(), CliError> {
        about.write(directory)?;
        let own = directory.join(LOG);
        session.log(&own)?;
        if let Some(log) = self.log.as_deref().filter(|log| !is_same(log, &own)) {
            session.log(log)?;
        }
        if let Some(given) = &self.tensorboard {
            let done = session.trainer().steps_done();
            let mut events = EventFile::create(given.as_deref().unwrap_or(directory), done)?;
            events.text(done, "run", &format!("{:#}", serde_json::json!(about)))?;
            session.watch(Box::new(events));
        }
        Ok(())
    }
}

/// Whether two names are those of one file, which is there under the second one.
fn is_same(a: &Path, b: &Path) -> bool {
    std::fs::canonicalize(a).ok().is_some_and(|a| std::fs::canonicalize(b).ok() == Some(a))
}
