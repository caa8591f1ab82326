//! What a training run shows while it goes on: a bar on a terminal, lines in a pipe.

use crate::common::screen::{Screen, grouped};
use indicatif::ProgressBar;
use kernfusion_lm::train::{Event, Row, StepReport, Trainer};
use std::io::IsTerminal;

/// Lines of a run in a pipe, about.
const LINES: u64 = 20;

/// Shows the events of a run.
pub(crate) struct Reporter<'a> {
    screen: &'a mut Screen,
    bar: ProgressBar,
    /// Steps between lines; none on a terminal, where the bar says it all.
    every: Option<u64>,
    steps: u64,
    tokens_per_step: u64,
    /// Steps since the last line, and the seconds that they took.
    since: (u64, f64),
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(screen: &'a mut Screen, bar: ProgressBar, trainer: &Trainer) -> Self {
        let record = trainer.record();
        let (steps, done) = (record.settings.steps, trainer.steps_done());
        let has_bar = !bar.is_hidden() && std::io::stdout().is_terminal();
        let tokens_per_step = (record.settings.batch * record.config.context()) as u64;
        bar.set_position(done);
        bar.reset_eta();
        let every = (!has_bar).then(|| (steps / LINES).max(1));
        Reporter { screen, bar, every, steps, tokens_per_step, since: (0, 0.0) }
    }

    pub(crate) fn show(&mut self, event: Event<'_>) {
        match event {
            Event::Row(Row::Step(report)) => self.step(report),
            Event::Row(Row::Validation { step, val_loss }) => {
                self.line(format!("step {step:>6}  validation loss {val_loss:.4}"))
            }
            Event::Row(Row::Sample { step, prompt, sample }) => {
                let text = format!("{prompt}{sample}");
                self.line(format!("step {step:>6}  sample:\n{}", indented(&text)));
            }
            Event::Saved { .. } => {}
        }
    }

    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }

    fn step(&mut self, report: &StepReport) {
        let StepReport { step, loss, .. } = *report;
        let rate = || grouped(report.tokens_per_s as u64);
        self.bar.set_message(format!("loss {loss:.4}, {} tokens/s", rate()));
        self.bar.set_position(step);
        self.since = (self.since.0 + 1, self.since.1 + report.seconds);
        let due = |every: u64| step.is_multiple_of(every) || step == 1 || step == self.steps;
        if self.every.is_some_and(due) {
            // The mean since the last line says more than one step.
            let (steps, seconds) = std::mem::take(&mut self.since);
            let rate = (steps * self.tokens_per_step) as f64 / seconds;
            self.line(format!("step {step:>6}  loss {loss:.4}  {} tokens/s", grouped(rate as u64)));
        }
    }

    /// Writes above the bar.
    fn line(&mut self, line: String) {
        let screen = &mut *self.screen;
        self.bar.suspend(|| screen.line(line));
    }
}

fn indented(text: &str) -> String {
    let lines = text.trim_matches('\n').lines();
    lines.map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}
