//! `kernfusion experiment verification`: the same run by Kernfusion and by PyTorch, and how far the two are apart.

use super::{Choices, PreparedRun, RunArgs, measured, peer, publish};
use crate::Outcome;
use crate::common::destination::Claim;
use crate::common::destination::EXPERIMENT_LOG;
use crate::common::error::{CliError, read_text};
use crate::common::screen::Screen;
use crate::experiment::{
    Curve, Deviation, Handover, Reference, VERIFICATION_STEPS, verification_report, verification_settings,
};
use crate::text_file::save;
use crate::training::stop;
use crate::training::train::{drive, introduce, stopped};
use kernfusion::compile::Mode;
use kernfusion_lm::train::{Ending, TrainingRun};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

/// Train the same model by Kernfusion and by PyTorch, from the same parameters, and compare the losses
///
/// Dropout is off, and both take the same windows in the same order. PyTorch trains first, in a process of its own; the two
/// never run at once. What it needs is written into the folder pytorch of the output directory, which can also be copied to
/// another machine: `python verification.py > reference.jsonl` there, and then --reference here.
///
/// The exit code is 1 if some step's losses are farther apart than --bound.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion experiment verification --preset tiny --steps 200 --python python3
  kernfusion experiment verification --reference reference.jsonl
  kernfusion experiment verification --resume runs/verification")]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,
    /// A Python that has PyTorch
    #[arg(long, value_name = "PYTHON", default_value = "python3", conflicts_with = "reference")]
    python: PathBuf,
    /// PyTorch's losses of this very run, made elsewhere
    #[arg(long, value_name = "FILE.jsonl")]
    reference: Option<PathBuf>,
    /// How far losses may be apart, in nats per token
    #[arg(long, value_name = "X", default_value_t = 1e-3, value_parser = bound)]
    bound: f64,
}

/// The reference of a run, in its directory.
const REFERENCE: &str = "reference.jsonl";

/// The folder that PyTorch's side is written into.
const FOLDER: &str = "pytorch";

pub(crate) fn run(args: &Args, screen: &mut Screen) -> Outcome {
    let settings =
        |choices: &Choices<'_>| Ok(verification_settings(choices.steps, choices.batch, choices.seed));
    let claim = args.run.claim("verification", args.reference.as_deref(), screen)?;
    let prepared = args.run.prepare(claim.path(), 0.0, VERIFICATION_STEPS, &settings)?;
    let stop = stop::upon_signals()?;
    let Some(reference) = reference(args, &prepared, &claim, stop, screen)? else {
        screen.line("stopped before PyTorch had done all steps: nothing is kept");
        return Ok(ExitCode::from(stop::exit_code()));
    };
    let (directory, target) = (prepared.directory.clone(), prepared.target.clone());
    let trainer = prepared.trainer()?;
    introduce(&trainer, Mode::Compiled, screen);
    let before = trainer.steps_done();
    let log = directory.join(EXPERIMENT_LOG);
    let mut run = TrainingRun::new(trainer, &directory, Some(&log))?;
    let ending = drive(&mut run, stop, screen)?;
    let trainer = run.trainer();
    if ending == Ending::Stopped {
        let command = format!("experiment verification --resume {}", directory.display());
        return Ok(stopped(trainer, &command, screen));
    }
    let ours = measured(trainer, &args.run.target, &target, trainer.steps_done() > before);
    let mut curve = Curve::read(&log)?;
    // A run that was resumed for fewer steps than it has done.
    curve.losses.truncate(reference.losses.len());
    curve.seconds.truncate(reference.losses.len());
    let deviation = Deviation::new(&curve.losses, &reference.losses, args.bound);
    publish(&verification_report(&ours, &curve, &reference, &deviation), &directory, screen)?;
    judge(&deviation, screen)
}

/// PyTorch's losses: given, kept from before the run was interrupted, or made now. None if that was interrupted.
fn reference(
    args: &Args,
    prepared: &PreparedRun,
    claim: &Claim,
    stop: &AtomicBool,
    screen: &mut Screen,
) -> Result<Option<Reference>, CliError> {
    let PreparedRun { record, split, directory, .. } = prepared;
    let handover = Handover::new(record, &split.training)?;
    let (steps, kept) = (record.settings.steps as usize, directory.join(REFERENCE));
    let read = |path: &Path| Reference::read(path, handover.run(), steps);
    if let Some(file) = &args.reference {
        let reference = read(file)?;
        claim.clear(&[])?;
        save(&kept, &read_text(file)?)?;
        return Ok(Some(reference));
    }
    if args.run.resume.is_some() && kept.exists() {
        return Ok(Some(read(&kept)?));
    }
    claim.clear(&[])?;
    let folder = directory.join(FOLDER);
    handover.write(&folder)?;
    let target = &args.run.target;
    let peer = peer::Peer {
        python: &args.python,
        folder: &folder,
        threads: target.thread_count(),
        device: target.device_name(),
        steps: record.settings.steps,
    };
    match peer.train(stop, screen)? {
        Some(rows) => {
            save(&kept, &rows)?;
            Ok(Some(read(&kept)?))
        }
        None => Ok(None),
    }
}

fn judge(deviation: &Deviation, screen: &mut Screen) -> Outcome {
    let Deviation { max, step, bound, .. } = deviation;
    let found = format!("losses are {max:.2e} nats apart at most (step {step})");
    match deviation.is_within_bound() {
        true => {
            screen.line(format!("{found}, within {bound:e}"));
            Ok(ExitCode::SUCCESS)
        }
        false => Err(CliError::Peer(format!("{found}, more than {bound:e}"))),
    }
}

/// A distance: a number above 0.
fn bound(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().map_err(|error| error.to_string())?;
    match number.is_finite() && number > 0.0 {
        true => Ok(number),
        false => Err("no distance: it must be a number above 0".into()),
    }
}
