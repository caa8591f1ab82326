//! A training run of several ranks: the processes that `mpirun` has started. The first one speaks and writes; the others compute beside it.

use super::train::{Args, prepared};
use crate::Outcome;
use crate::common::error::CliError;
use crate::common::screen::note;
use kernfusion::compile::Communicator;
use kernfusion_lm::record::Record;
use kernfusion_lm::train::{Ending, Trainer, TrainingRun};
use kernfusion_mpi::Mpi;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// How long a launcher may take to pass on what a process says before all are ended.
const FORWARDED: Duration = Duration::from_millis(200);

/// How long a rank waits to be ended by another one that has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The rank that this process is, if it is one of several.
pub(crate) fn launched() -> Result<Option<Arc<Mpi>>, CliError> {
    Mpi::launched().map_err(|error| CliError::Ranks(error.to_string()))
}

/// Lets the first rank run as a process alone does, and the others beside it. When one fails, all end, and one of them says why.
pub(crate) fn run(
    mpi: &Arc<Mpi>,
    first: impl FnOnce() -> Outcome,
    beside: impl FnOnce() -> Outcome,
) -> Outcome {
    let outcome = if mpi.rank() == 0 { first() } else { beside() };
    match outcome {
        Ok(code) => {
            mpi.finish().map_err(|error| CliError::Ranks(error.to_string()))?;
            Ok(code)
        }
        // Who has said it ends all; a launcher that sees this one end before may drop what was said.
        Err(CliError::Said) => {
            std::thread::sleep(PATIENCE);
            Ok(ExitCode::FAILURE)
        }
        Err(error) => {
            let rank = mpi.rank();
            // What fails on all ranks, such as a loss that is not finite, the first one says, and ends all.
            if rank > 0 {
                std::thread::sleep(PATIENCE);
            }
            let who = if rank == 0 { String::new() } else { format!("rank {rank}: ") };
            note(&format!("error: {who}{error}"));
            std::thread::sleep(FORWARDED);
            mpi.abort()
        }
    }
}

/// Does the steps of a rank that is not the first.
pub(crate) fn beside(args: &Args, mpi: &Arc<Mpi>) -> Outcome {
    let made = args.target(Some(mpi)).and_then(|target| prepared(args, target, &mut |_| {}));
    let trainer = agreed(mpi, made)?;
    let (done, steps) = (trainer.steps_done(), trainer.record().settings.steps);
    if done >= steps {
        return Ok(ExitCode::SUCCESS);
    }
    let stop = super::stop::upon_signals()?;
    Ok(match TrainingRun::beside(trainer).run(stop, &mut |_| {})? {
        Ending::Finished => ExitCode::SUCCESS,
        Ending::Stopped => ExitCode::from(super::stop::exit_code()),
    })
}

/// A trainer that every rank has made alike.
///
/// # Errors
/// Some rank could not make it: the first one that could not has its error, and all others end in silence. Or ranks have made others,
/// which the first one says.
pub(crate) fn agreed(mpi: &Arc<Mpi>, prepared: Result<Trainer, CliError>) -> Result<Trainer, CliError> {
    let lost = |error: kernfusion::compile::CommunicationError| CliError::Ranks(error.to_string());
    let ready = mpi.numbers(prepared.is_ok().into()).map_err(lost)?;
    if let Some(rank) = ready.iter().position(|&ready| ready == 0) {
        return match prepared {
            Err(error) if rank == mpi.rank() => Err(error),
            _ => Err(CliError::Said),
        };
    }
    let trainer = prepared?;
    for (what, value) in facts(&trainer) {
        let numbers = mpi.numbers(identity(&value)).map_err(lost)?;
        if let Some(other) = numbers.iter().position(|&number| number != numbers[0]) {
            return match mpi.rank() {
                0 => {
                    let own = value.as_str().map(|own| format!(", which has {own}")).unwrap_or_default();
                    Err(CliError::Ranks(format!("rank {other} has {what} than rank 0{own}")))
                }
                _ => Err(CliError::Said),
            };
        }
    }
    Ok(trainer)
}

/// What has to be the same on every rank, by what it is if it is not.
fn facts(trainer: &Trainer) -> [(&'static str, Value); 5] {
    let Record { config, settings, text, products, .. } = trainer.record();
    [
        ("another version of this program", json!(env!("CARGO_PKG_VERSION"))),
        ("another instruction set", json!(trainer.instruction_set())),
        ("another text", json!(text.sha256)),
        ("another model", json!(config)),
        ("other settings", json!([settings, products, trainer.steps_done()])),
    ]
}

/// The cores of this machine that are this rank's, where nobody says how many threads it has: those that it is bound to, or its share of all.
pub(crate) fn own_cores() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let online = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let online = online.lines().filter(|line| line.starts_with("processor")).count();
    if cores < online { cores } else { (cores / kernfusion_mpi::local_ranks()).max(1) }
}

/// A number that other values do not have.
fn identity(value: &Value) -> u64 {
    let hash = Sha256::digest(value.to_string());
    u64::from_le_bytes(hash[..8].try_into().expect("eight bytes"))
}
