//! The loop around the steps: validation, samples, checkpoints, the log, and an end at any moment.

use super::{Sample, StartedStep, StepReport, Trainer, log};
use crate::jsonl::JsonLines;
use crate::{Error, Result};
use serde_json::json;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// What happens during a session, in order.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step was done.
    Step(&'a StepReport),
    /// The validation loss was measured after so many steps.
    Validation {
        /// Steps done.
        step: u64,
        /// Mean loss in nats per token.
        loss: f64,
    },
    /// The model has written a text after so many steps.
    Sample {
        /// Steps done.
        step: u64,
        /// What it was given to go on from.
        prompt: &'a str,
        /// The text.
        text: &'a str,
    },
    /// A checkpoint was written.
    Saved {
        /// Steps done.
        step: u64,
    },
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All steps are done.
    Finished,
    /// It was asked to stop, and has written a checkpoint.
    Stopped,
}

/// A run with a place for its checkpoint and, if wanted, a log.
pub struct Session {
    trainer: Trainer,
    directory: PathBuf,
    log: Option<JsonLines>,
}

impl Session {
    /// Opens the log, which goes on where the trainer stands, and checks that the directory can be written, so that
    /// this is not found out at the first checkpoint.
    ///
    /// # Errors
    /// If log or directory cannot be written.
    pub fn new(trainer: Trainer, directory: &Path, log: Option<&Path>) -> Result<Self> {
        std::fs::create_dir_all(directory)
            .and_then(|()| tempfile::tempfile_in(directory))
            .map_err(|cause| Error::Checkpoint(super::unwritable(directory, cause)))?;
        let log = match log {
            Some(path) if trainer.steps_done() == 0 => Some(JsonLines::create(path)?),
            Some(path) => Some(log::open_after(path, trainer.steps_done())?),
            None => None,
        };
        Ok(Session { trainer, directory: directory.into(), log })
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
            let stopped = !last && stop.load(Ordering::Relaxed);
            let samples = due(settings.sample_every) && settings.sample_tokens > 0;
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
            if due(settings.checkpoint_every) || stopped {
                self.trainer.save(&self.directory)?;
                observe(Event::Saved { step });
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
        self.write(&report)?;
        observe(Event::Step(&report));
        Ok(())
    }

    fn validate(&mut self, observe: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        let step = self.trainer.steps_done();
        if let Some(loss) = self.trainer.validation_loss()? {
            self.write(&json!({"step": step, "val_loss": loss}))?;
            observe(Event::Validation { step, loss });
        }
        Ok(())
    }

    fn sample(&mut self, observe: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        let step = self.trainer.steps_done();
        for Sample { prompt, text } in self.trainer.samples()? {
            self.write(&json!({"step": step, "prompt": prompt, "sample": text}))?;
            observe(Event::Sample { step, prompt: &prompt, text: &text });
        }
        Ok(())
    }

    fn write(&mut self, row: &impl serde::Serialize) -> Result<()> {
        self.log.as_mut().map_or(Ok(()), |log| log.write(row))?;
        Ok(())
    }

    /// A run that has diverged ends here: its parameters must not replace those of the last checkpoint.
    fn finite(&self, report: &StepReport) -> Result<()> {
        if report.loss.is_finite() {
            return Ok(());
        }
        let (loss, step) = (report.loss, report.step);
        let place = self.directory.display();
        let advice = format!("a lower learning rate may help; what was in {place} before is kept");
        Err(Error::Configuration(format!("the loss is {loss} in step {step}: {advice}")))
    }
}
