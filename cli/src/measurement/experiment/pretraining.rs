//! `kernfusion experiment pretraining`: with dropout, and prompts continued while the model learns.

use super::{Choices, RunArgs, measured, publish};
use crate::Outcome;
use crate::common::destination::EXPERIMENT_LOG;
use crate::common::screen::Screen;
use crate::experiment::{
    Curve, PRETRAINING_DROPOUT, PRETRAINING_STEPS, pretraining_report, pretraining_settings, prompts,
};
use crate::training::stop;
use crate::training::train::{drive, introduce, stopped};
use kernfusion::compile::Mode;
use kernfusion_lm::train::{Ending, TrainingRun};
use std::process::ExitCode;

/// Train with dropout, and continue five prompts by 100 tokens every 500 steps, always with the likeliest token
///
/// The thesis does 2500 steps. Validation losses are of windows without dropout, every 100 steps.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion experiment pretraining --preset tiny --steps 1000
  kernfusion experiment pretraining --prompt ROMEO: --prompt JULIET:
  kernfusion experiment pretraining --resume runs/pretraining")]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,
    /// Dropout probability [default: 0.3]
    #[arg(long, value_name = "P", conflicts_with = "resume", allow_negative_numbers = true)]
    dropout: Option<f64>,
    /// What is continued; may be given several times [default: beginnings of five lines of the validation text]
    #[arg(long, value_name = "TEXT", conflicts_with = "resume")]
    prompt: Vec<String>,
}

pub(crate) fn run(args: &Args, screen: &mut Screen) -> Outcome {
    let settings = |choices: &Choices<'_>| {
        let Choices { steps, batch, seed, split, tokenizer } = *choices;
        let given = match args.prompt.is_empty() {
            true => prompts(split, tokenizer)?,
            false => args.prompt.clone(),
        };
        Ok(pretraining_settings(steps, batch, seed, given))
    };
    let dropout = args.dropout.unwrap_or(PRETRAINING_DROPOUT);
    let claim = args.run.claim("pretraining", None, screen)?;
    let prepared = args.run.prepare(claim.path(), dropout, PRETRAINING_STEPS, &settings)?;
    let (directory, target) = (prepared.directory.clone(), prepared.target.clone());
    let trainer = prepared.trainer()?;
    let stop = stop::upon_signals()?;
    introduce(&trainer, Mode::Compiled, screen);
    let before = trainer.steps_done();
    claim.clear(&[])?;
    let mut run = TrainingRun::new(trainer, &directory, Some(&directory.join(EXPERIMENT_LOG)))?;
    let ending = drive(&mut run, stop, screen)?;
    let trainer = run.trainer();
    let ours = measured(trainer, &args.run.target, &target, trainer.steps_done() > before);
    let curve = Curve::read(&directory.join(EXPERIMENT_LOG))?;
    // A run that was stopped has a report of what there is.
    publish(&pretraining_report(&ours, &curve), &directory, screen)?;
    Ok(match ending {
        Ending::Finished => ExitCode::SUCCESS,
        Ending::Stopped => {
            let command = format!("experiment pretraining --resume {}", directory.display());
            stopped(trainer, &command, screen)
        }
    })
}
