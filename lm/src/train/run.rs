//! The loop around the steps: validation, samples, checkpoints, the log, and an end at any moment.

use super::{Row, Sample, StartedStep, StepReport, Trainer, Watcher, log};
use crate::jsonl::JsonLines;
use crate::{Error, Result};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// What happens during a run, in order.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step was done, a loss was measured, or a text was written.
    Row(&'a Row),
    /// A checkpoint was written.
    Saved {
        /// Steps done.
        step: u64,
    },
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All steps are done.
    Finished,
    /// It was asked to stop, and has written a checkpoint.
    Stopped,
}

/// A run with a place for its checkpoint, and all who watch it. Of several ranks each has one, and all of them run.
pub struct TrainingRun {
    trainer: Trainer,
    /// Where checkpoints go; of several ranks, the first one writes them.
    directory: Option<PathBuf>,
    watchers: Vec<Box<dyn Watcher>>,
}

impl TrainingRun {
    /// Opens the log, which goes on where the trainer stands, and checks that the directory can be written, so that
    /// this is not found out at the first checkpoint.
    ///
    /// # Errors
    /// If log or directory cannot be written.
    pub fn new(trainer: Trainer, directory: &Path, log: Option<&Path>) -> Result<Self> {
        std::fs::create_dir_all(directory)
            .and_then(|()| tempfile::tempfile_in(directory))
            .map_err(|cause| Error::Checkpoint(super::unwritable(directory, cause)))?;
        let mut run = TrainingRun { trainer, directory: Some(directory.into()), watchers: vec![] };
        log.map_or(Ok(()), |path| run.log(path))?;
        Ok(run)
    }

    /// A run of another rank than the first: it does the same steps, and writes nothing.
    pub fn beside(trainer: Trainer) -> Self {
        TrainingRun { trainer, directory: None, watchers: vec![] }
    }

    /// Opens one more log, which goes on where the trainer stands.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn log(&mut self, path: &Path) -> Result<()> {
        let log = match self.trainer.steps_done() {
            0 => JsonLines::create(path)?,
            done => log::open_after(path, done)?,
        };
        self.watch(Box::new(log));
        Ok(())
    }

    /// From now on this one takes all rows, too.
    pub fn watch(&mut self, watcher: Box<dyn Watcher>) {
        self.watchers.push(watcher);
    }

    /// Does all steps that are left, or until `stop` is set; ends with a validation and a sample, or when stopped with
    /// a checkpoint only.
    ///
    /// The row of a step is in the log before the checkpoint that contains the step, so a log has no gaps whenever the
    /// process may be killed.
    ///
    /// # Errors
    /// If a file cannot be written; if a loss is not finite, and then the last checkpoint is kept.
    pub fn run(&mut self, stop: &AtomicBool, observe: &mut dyn FnMut(Event<'_>)) -> Result<Ending> {
        let settings = self.trainer.record().settings.clone();
        let mut under_way = VecDeque::new();
        while self.trainer.steps_done() < settings.steps {
            under_way.push_back(self.trainer.start_step()?);
            let step = self.trainer.steps_done();
            let last = step == settings.steps;
            let due = |every: u64| last || (every > 0 && step.is_multiple_of(every));
            // A signal may reach ranks at different steps.
            let stopped = !last && self.trainer.any_rank(stop.load(Ordering::Relaxed))?;
            let samples =
                due(settings.sample_every) && settings.sample_tokens > 0 && self.directory.is_some();
            let pauses = due(settings.validate_every) || samples || due(settings.checkpoint_every) || stopped;
            // On a GPU one step is under way while the next is prepared; all are done before anything else happens.
            while let Some(oldest) = under_way.pop_front() {
                if !pauses && under_way.is_empty() && !oldest.is_ready()? {
                    under_way.push_front(oldest);
                    break;
                }
                self.finish(oldest, observe)?;
            }
            if due(settings.validate_every) {
                self.validate(observe)?;
            }
            if samples {
                self.sample(observe)?;
            }
            match &self.directory {
                _ if !(due(settings.checkpoint_every) || stopped) => {}
                Some(directory) => {
                    self.trainer.save(directory)?;
                    observe(Event::Saved { step });
                }
                None => self.trainer.save_beside()?,
            }
            if stopped {
                return Ok(Ending::Stopped);
            }
        }
        Ok(Ending::Finished)
    }

    /// The run.
    pub fn trainer(&mut self) -> &mut Trainer {
        &mut self.trainer
    }

    /// Waits for a step and reports it.
    fn finish(&mut self, step: StartedStep, observe: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        let report = self.trainer.finish_step(step)?;
        self.finite(&report)?;
        self.write(Row::Step(report), observe)
    }

    fn validate(&mut self, observe: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        let step = self.trainer.steps_done();
        match self.trainer.validation_loss()? {
            Some(val_loss) => self.write(Row::Validation { step, val_loss }, observe),
            None => Ok(()),
        }
    }

    fn sample(&mut self, observe: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        let step = self.trainer.steps_done();
        let samples = self.trainer.samples()?.into_iter();
        let mut rows = samples.map(|Sample { prompt, text }| Row::Sample { step, prompt, sample: text });
        rows.try_for_each(|row| self.write(row, observe))
    }

    fn write(&mut self, row: Row, observe: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        self.watchers.iter_mut().try_for_each(|watcher| watcher.row(&row))?;
        observe(Event::Row(&row));
        Ok(())
    }

    /// A run that has diverged ends here: its parameters must not replace those of the last checkpoint.
    fn finite(&self, report: &StepReport) -> Result<()> {
        if report.loss.is_finite() {
            return Ok(());
        }
        let (loss, step) = (report.loss, report.step);
        let place = self.directory.iter().map(|place| format!(" in {}", place.display())).collect::<String>();
        let advice = format!("a lower learning rate may help; the last checkpoint{place}, if any, is kept");
        Err(Error::Configuration(format!("the loss is {loss} in step {step}: {advice}")))
    }
}
