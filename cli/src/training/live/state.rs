//! What a view shows of a run.

use super::curve::Curve;
use crate::common::screen::{counted, grouped};
use crate::report::Description;
use kernfusion_lm::train::{Event, Row, StepReport};
use std::path::Path;

/// How much a step counts in the time that is left: about as much as the last twenty.
const WEIGHT: f64 = 0.05;

/// All that is drawn.
#[derive(Debug, Clone)]
pub(crate) struct State {
    /// Where the checkpoint goes.
    pub(crate) directory: String,
    /// The model in a line.
    pub(crate) model: String,
    /// Where it runs.
    pub(crate) place: String,
    /// How the step was compiled.
    pub(crate) step: String,
    /// Steps in all.
    pub(crate) steps: u64,
    /// The last step that was done, once one was.
    pub(crate) last: Option<StepReport>,
    /// Steps that were done before the run was resumed.
    pub(crate) begun: u64,
    /// Steps done.
    pub(crate) done: u64,
    /// Seconds of a step, the last ones counting most.
    pub(crate) seconds: Option<f64>,
    pub(crate) losses: Curve,
    pub(crate) validation: Curve,
    /// The last validation loss, and its step.
    pub(crate) validated: Option<(u64, f64)>,
    /// Tokens per second.
    pub(crate) rates: Curve,
    /// The last sample: steps done, prompt and text.
    pub(crate) sample: Option<(u64, String, String)>,
    /// Steps in the last checkpoint.
    pub(crate) saved: Option<u64>,
    pub(crate) paused: bool,
    pub(crate) stopping: bool,
    pub(crate) log_scale: bool,
}

impl State {
    /// The state of a run that has done `done` steps.
    pub(crate) fn new(about: &Description, directory: &Path, done: u64) -> Self {
        let config = &about.config;
        State {
            directory: directory.display().to_string(),
            model: format!(
                "{} parameters, {}, width {}, context {}, batch {}",
                grouped(config.parameters() as u64),
                counted(config.layers(), "layer"),
                config.width(),
                config.context(),
                about.settings.batch,
            ),
            place: about.place.clone(),
            step: about.step.clone(),
            steps: about.settings.steps,
            last: None,
            begun: done,
            done,
            seconds: None,
            losses: Curve::default(),
            validation: Curve::default(),
            validated: None,
            rates: Curve::default(),
            sample: None,
            saved: (done > 0).then_some(done),
            paused: false,
            stopping: false,
            log_scale: false,
        }
    }

    /// Takes what has happened.
    pub(crate) fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Row(Row::Step(report)) => self.take_step(report),
            Event::Row(Row::Validation { step, val_loss }) => {
                self.validated = Some((*step, *val_loss));
                self.validation.push(*step as f64, *val_loss);
            }
            Event::Row(Row::Sample { step, prompt, sample }) => {
                self.sample = Some((*step, prompt.clone(), sample.clone()));
            }
            Event::Saved { step } => self.saved = Some(step),
        }
    }

    /// The run in lines, for a terminal from which the view has gone.
    pub(crate) fn summary(&self) -> Vec<String> {
        let step = self.last.map(|it| format!("step {:>6}  loss {:.4}", it.step, it.loss));
        let validated =
            self.validated.map(|(step, loss)| format!("step {step:>6}  validation loss {loss:.4}"));
        step.into_iter().chain(validated).collect()
    }

    /// The seconds that are left.
    pub(crate) fn left(&self) -> Option<f64> {
        Some(self.seconds? * self.steps.saturating_sub(self.done) as f64)
    }

    fn take_step(&mut self, report: &StepReport) {
        let step = report.step as f64;
        self.losses.push(step, report.loss.into());
        self.rates.push(step, report.tokens_per_s);
        let before = self.seconds.unwrap_or(report.seconds);
        self.seconds = Some(before + WEIGHT * (report.seconds - before));
        self.done = report.step;
        self.last = Some(*report);
    }
}
