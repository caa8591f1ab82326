//! Who watches a training run beside the screen: its logs and TensorBoard.

use crate::common::destination::LOG;
use crate::common::destination::{Claim, Destination, is_same};
use crate::common::error::CliError;
use crate::common::screen::note;
use crate::report::Description;
use crate::tensorboard::EventFile;
use crate::training::live;
use kernfusion_lm::jsonl::JsonLines;
use kernfusion_lm::train::TrainingRun;
use std::path::{Path, PathBuf};

/// What is written while a run goes on.
#[derive(clap::Args)]
pub(crate) struct WatchArgs {
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

/// Places outside of the directory of a run that belong to the run as long as this is there.
pub(crate) struct Watched {
    replaces_log: bool,
    events: Option<Claim>,
}

impl WatchArgs {
    /// Whether to open a view; says so if it was asked for and cannot be had.
    pub(crate) fn has_view(&self) -> bool {
        let possible = live::is_possible();
        if self.ui && !possible {
            note("no terminal to draw on: --ui shows lines instead");
        }
        self.ui && possible
    }

    /// Claims what a run in `directory` is to write elsewhere, before anything is written; `from` is the directory of the checkpoint
    /// that the run goes on from.
    pub(crate) fn claim(
        &self,
        destination: Destination,
        directory: &Path,
        from: Option<&Path>,
    ) -> Result<Watched, CliError> {
        let own = from.map(|from| from.join(LOG));
        let log = self.other_log(directory).map(|log| destination.log(log, own.as_deref())).transpose()?;
        let events = self.tensorboard.iter().flatten().find(|events| !is_same(events, directory));
        let events = events.map(|events| destination.events(events, from.is_some())).transpose()?;
        Ok(Watched { replaces_log: log == Some(true), events })
    }

    /// Lets all of them watch a run, whose checkpoint is in `directory`.
    pub(crate) fn attach(
        &self,
        run: &mut TrainingRun,
        directory: &Path,
        about: &Description,
        watched: &Watched,
    ) -> Result<(), CliError> {
        watched.events.as_ref().map_or(Ok(()), Claim::clear_events)?;
        about.write(directory)?;
        run.log(&directory.join(LOG))?;
        if let Some(log) = self.other_log(directory) {
            if watched.replaces_log {
                JsonLines::create(log).map_err(kernfusion_lm::Error::from)?;
            }
            run.log(log)?;
        }
        if let Some(given) = &self.tensorboard {
            let done = run.trainer().steps_done();
            let mut events = EventFile::create(given.as_deref().unwrap_or(directory), done)?;
            events.text(done, "run", &format!("{:#}", serde_json::json!(about)))?;
            run.watch(Box::new(events));
        }
        Ok(())
    }

    /// The log that is written beside the one in the directory of the run.
    fn other_log(&self, directory: &Path) -> Option<&Path> {
        self.log.as_deref().filter(|log| !is_same(log, &directory.join(LOG)))
    }
}
