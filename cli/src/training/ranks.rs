//! Several ranks of one training run: processes that `mpirun` has started, or threads of this one. The first one speaks and writes; the others
//! compute beside it.

use crate::Outcome;
use crate::common::error::CliError;
use crate::common::screen::{Screen, note};
use crate::training::live;
use clap::ValueEnum;
use kernfusion::compile::{Collectives, CommunicationError, Communicator, Target, thread_ranks_within};
use kernfusion_lm::record::ExchangeType;
use kernfusion_mpi::{Hang, Mpi, Watch, launched_rank};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a launcher may take to pass on what a process says before all are ended.
const FORWARDED: Duration = Duration::from_millis(200);

/// How long a rank waits to be ended by another one that has failed, or that may know better why.
const PATIENCE: Duration = Duration::from_secs(5);

/// A rank's way to the others.
pub(crate) type Rank = Arc<dyn Communicator>;

/// What has to be the same on every rank, by what a rank has where it is not.
pub(crate) type Facts = Vec<(&'static str, Value)>;

/// How several ranks exchange, and how long they wait for one of them.
#[derive(clap::Args)]
pub(crate) struct ExchangeArgs {
    /// Of several ranks (mpirun): as what they exchange gradients; bf16 sends half as many bytes, and rounds them [default: f32]
    #[arg(long, value_enum, value_name = "TYPE")]
    exchange: Option<ExchangeArg>,
    /// Of several ranks: who sums what they exchange [default: ordered]
    #[arg(long, value_enum, value_name = "WHO")]
    collectives: Option<CollectivesArg>,
    /// Of several ranks: seconds without a sign of life from one after which all end; 0: never [default: 5]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=86_400))]
    heartbeat_timeout: Option<u32>,
    /// Of several ranks: seconds that one which lives may keep others waiting in an exchange until all end; 0: for ever [default: 600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=86_400))]
    exchange_timeout: Option<u32>,
}

/// As what ranks exchange gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExchangeArg {
    F32,
    Bf16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CollectivesArg {
    /// Our own code, in order of ranks: the bits are those of one process
    Ordered,
    /// MPI or NCCL, perhaps quicker; the last bits depend on the library and the machines
    Library,
}

impl ExchangeArgs {
    /// As what gradients are exchanged, if that is said.
    pub(crate) fn exchange(&self) -> Option<ExchangeType> {
        self.exchange.map(|exchange| match exchange {
            ExchangeArg::F32 => ExchangeType::F32,
            ExchangeArg::Bf16 => ExchangeType::Bf16,
        })
    }

    /// Who sums.
    pub(crate) fn collectives(&self) -> Collectives {
        match self.collectives {
            None | Some(CollectivesArg::Ordered) => Collectives::Ordered,
            Some(CollectivesArg::Library) => Collectives::Library,
        }
    }

    /// That, as ranks tell each other.
    pub(crate) fn fact(&self) -> (&'static str, Value) {
        ("other --collectives", (self.collectives() == Collectives::Library).into())
    }

    /// What ranks that are processes do about a wait in vain.
    pub(crate) fn watch(&self) -> Watch {
        Watch { silence: seconds(self.heartbeat_timeout.unwrap_or(5)), wait: self.wait(), tell: in_vain }
    }

    fn wait(&self) -> Option<Duration> {
        seconds(self.exchange_timeout.unwrap_or(600))
    }

    /// What one process has no use for. A run that goes on compares `--exchange` with that of its checkpoint.
    pub(crate) fn refusal(&self, shards: bool, resumes: bool) -> Option<String> {
        let flags = [
            ("--shard-optimizer", shards),
            ("--exchange", self.exchange.is_some() && !resumes),
            ("--collectives", self.collectives.is_some()),
            ("--heartbeat-timeout", self.heartbeat_timeout.is_some()),
            ("--exchange-timeout", self.exchange_timeout.is_some()),
        ];
        let (flag, _) = flags.into_iter().find(|(_, is_given)| *is_given)?;
        Some(format!("{flag} is for several ranks (mpirun, kernfusion launch), and this is one process"))
    }
}

fn seconds(number: u32) -> Option<Duration> {
    (number > 0).then(|| Duration::from_secs(number.into()))
}

/// Who runs a command.
pub(crate) enum Ranks {
    /// This process alone.
    Alone,
    /// Processes that a launcher of MPI has started, of which this is one.
    Processes(Arc<Mpi>),
    /// As many threads of this process, which wait for each other as long as this says.
    Threads(usize, Option<Duration>),
}

impl Ranks {
    /// As many threads of this process.
    pub(crate) fn threads(count: usize, args: &ExchangeArgs) -> Self {
        Ranks::Threads(count, args.wait())
    }

    /// This process alone, or those that a launcher has started.
    pub(crate) fn launched(watch: Watch) -> Result<Self, CliError> {
        let mpi = Mpi::launched(watch).map_err(|error| CliError::Ranks(error.to_string()))?;
        Ok(mpi.map_or(Ranks::Alone, Ranks::Processes))
    }

    /// Lets each rank that is here run. The first one of all has the screen; so has a process alone, which is no rank. When one fails, all end,
    /// and one of them says why.
    pub(crate) fn run(
        &self,
        screen: &mut Screen,
        run: impl Fn(Option<&Rank>, Option<&mut Screen>) -> Outcome + Sync,
    ) -> Outcome {
        match self {
            Ranks::Alone => run(None, Some(screen)),
            Ranks::Processes(mpi) => {
                let screen = Some(screen).filter(|_| mpi.rank() == 0);
                let rank: Rank = mpi.clone();
                in_process(mpi, run(Some(&rank), screen))
            }
            Ranks::Threads(count, wait) => in_threads(thread_ranks_within(*count, *wait), screen, run),
        }
    }
}

/// Ends a rank that is a process.
fn in_process(mpi: &Mpi, outcome: Outcome) -> Outcome {
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
            note(&format!("error: {}", of_rank(rank, error)));
            std::thread::sleep(FORWARDED);
            mpi.abort()
        }
    }
}

/// Ends all ranks that are processes, since one of them does not go on.
fn in_vain(mpi: Option<&Mpi>, hang: Hang) {
    match hang {
        // One rank alone says so.
        Hang::Silent { .. } | Hang::Late { .. } => {}
        // So do several, or none where one can name who is late.
        Hang::Start { .. } | Hang::Stuck { .. } | Hang::End { .. } => {
            std::thread::sleep(if launched_rank() == Some(0) { PATIENCE / 2 } else { PATIENCE });
        }
    }
    live::leave();
    note(&format!("error: {hang}"));
    std::thread::sleep(FORWARDED);
    match mpi {
        Some(mpi) => mpi.abort(),
        None => std::process::exit(1),
    }
}

/// Runs ranks as threads. A rank that fails ends the exchanges of the others, so the first failure is the cause of all.
fn in_threads(
    ranks: Vec<Rank>,
    screen: &mut Screen,
    run: impl Fn(Option<&Rank>, Option<&mut Screen>) -> Outcome + Sync,
) -> Outcome {
    let failures: Mutex<Vec<CliError>> = Mutex::default();
    let turn = |rank: Rank, screen: Option<&mut Screen>, fails: Sender<()>| {
        let outcome = run(Some(&rank), screen);
        let said = |error| {
            if !matches!(error, CliError::Said) {
                lock(&failures).push(of_rank(rank.rank(), error));
            }
            let _ = fails.send(());
        };
        outcome.map_err(said).ok()
    };
    let code = std::thread::scope(|scope| {
        let (turn, failures) = (&turn, &failures);
        let (fails, failing) = channel();
        scope.spawn(move || end_with_the_first(&failing, failures));
        let mut ranks = ranks.into_iter();
        let first = ranks.next().expect("there is one rank at least");
        let other = |rank| {
            let fails = fails.clone();
            scope.spawn(move || turn(rank, None, fails))
        };
        let others: Vec<_> = ranks.map(other).collect();
        let code = turn(first, Some(screen), fails);
        // What a thread that panics has to say it has said.
        let all_ended =
            others.into_iter().map(|other| other.join().ok().flatten().is_some()).fold(true, |a, b| a & b);
        code.filter(|_| all_ended)
    });
    match (code, lock(&failures).drain(..).next()) {
        (_, Some(error)) => Err(error),
        (code, None) => Ok(code.unwrap_or(ExitCode::FAILURE)),
    }
}

/// Ends the process if a rank has failed and another one does not end, either. `failing` is closed when all have ended.
fn end_with_the_first(failing: &Receiver<()>, failures: &Mutex<Vec<CliError>>) {
    let mut ended = failing.recv().map_err(|_| RecvTimeoutError::Disconnected);
    while ended.is_ok() {
        ended = failing.recv_timeout(PATIENCE);
    }
    if ended == Err(RecvTimeoutError::Timeout) {
        live::leave();
        let first = lock(failures).drain(..).next();
        first.iter().for_each(|error| note(&format!("error: {error}")));
        std::process::exit(1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says whose error it is, if not the first rank's.
fn of_rank(rank: usize, error: CliError) -> CliError {
    if rank == 0 { error } else { CliError::Ranks(format!("rank {rank}: {error}")) }
}

fn lost(error: CommunicationError) -> CliError {
    CliError::Ranks(error.to_string())
}

/// What every rank has made alike; what a process alone has made.
///
/// # Errors
/// Some rank could not make it: the first one that could not has its error, and all others end in silence. Or ranks have made others,
/// which the first one says.
pub(crate) fn agreed<T>(
    rank: Option<&Rank>,
    made: Result<T, CliError>,
    facts: impl Fn(&T) -> Facts,
) -> Result<T, CliError> {
    let Some(rank) = rank else { return made };
    let ready = rank.numbers(made.is_ok().into()).map_err(lost)?;
    if let Some(number) = ready.iter().position(|&ready| ready == 0) {
        return match made {
            Err(error) if number == rank.rank() => Err(error),
            _ => Err(CliError::Said),
        };
    }
    let made = made?;
    let version = ("another version of this program", env!("CARGO_PKG_VERSION").into());
    for (what, value) in [version].into_iter().chain(facts(&made)) {
        let numbers = rank.numbers(identity(&value)).map_err(lost)?;
        if let Some(other) = numbers.iter().position(|&number| number != numbers[0]) {
            return match rank.rank() {
                0 => {
                    let own = value.as_str().map(|own| format!(", which has {own}")).unwrap_or_default();
                    Err(CliError::Ranks(format!("rank {other} has {what} than rank 0{own}")))
                }
                _ => Err(CliError::Said),
            };
        }
    }
    Ok(made)
}

/// Whether any rank says so; a process alone says it for itself.
pub(crate) fn any(rank: Option<&Rank>, own: bool) -> Result<bool, CliError> {
    match rank {
        Some(rank) => Ok(rank.numbers(own.into()).map_err(lost)?.contains(&1)),
        None => Ok(own),
    }
}

/// A target for one of several ranks. Where nobody says how many threads it has, it has the cores that it is bound to, or its share of this
/// machine's.
pub(crate) fn target(target: Target, rank: Option<&Rank>, chooses_threads: bool) -> Target {
    match rank {
        None => target,
        Some(rank) if chooses_threads => target.ranks(rank.clone()),
        Some(rank) => target.threads(own_cores(rank.ranks())).ranks(rank.clone()),
    }
}

/// The number of a rank among those of this machine.
pub(crate) fn number_here(rank: Option<&Rank>) -> usize {
    match launched_rank() {
        Some(_) => kernfusion_mpi::local_rank(),
        None => rank.map_or(0, |rank| rank.rank()),
    }
}

fn own_cores(ranks: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let online = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let online = online.lines().filter(|line| line.starts_with("processor")).count();
    let here = if launched_rank().is_some() { kernfusion_mpi::local_ranks() } else { ranks };
    if launched_rank().is_some() && cores < online { cores } else { (cores / here).max(1) }
}

/// A number that other values do not have.
fn identity(value: &Value) -> u64 {
    let hash = Sha256::digest(value.to_string());
    u64::from_le_bytes(hash[..8].try_into().expect("eight bytes"))
}
