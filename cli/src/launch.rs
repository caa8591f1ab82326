//! `kernfusion launch`: several ranks on one machine, without MPI.

use crate::Outcome;
use crate::common::screen::Screen;
use crate::measurement::profile;
use crate::training::ranks::Ranks;
use crate::training::{train, tune};
use clap::Subcommand;

/// Train with several ranks on this machine, without MPI
///
/// Each rank is a thread with a model of its own, on its share of the batch and of the cores. It does what `mpirun -n N` does with processes, with
/// the same bits; on one machine, one process with as many threads is as fast and takes less memory. So it shows what a run of several ranks does
/// before there are several machines.
#[derive(clap::Args)]
#[command(
    arg_required_else_help = false,
    subcommand_required = true,
    after_help = "Examples:
  kernfusion launch -n 4 train --preset thesis --shard-optimizer
  kernfusion launch -n 2 profile --preset thesis --batch-size 8
  kernfusion launch -n 2 tune sft --checkpoint runs/tiny --data answers.jsonl --out runs/sft"
)]
pub(crate) struct Args {
    /// How many ranks there are
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    ranks: u16,
    #[command(subcommand)]
    command: Training,
}

#[derive(Subcommand)]
enum Training {
    Train(Box<train::Args>),
    Tune(tune::Args),
    Profile(Box<profile::Args>),
}

pub(crate) fn run(args: &Args, screen: &mut Screen) -> Outcome {
    let ranks = |exchange| Ranks::threads(args.ranks.into(), exchange);
    match &args.command {
        Training::Train(args) => train::run(args, &ranks(&args.exchange), screen),
        Training::Profile(args) => profile::run(args, &ranks(&args.exchange), screen),
        Training::Tune(args) => tune::run(args, &ranks(args.exchange()), screen),
    }
}
