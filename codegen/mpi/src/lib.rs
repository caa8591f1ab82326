//! Ranks as processes of MPI. The library is loaded at run time: Open MPI, MPICH (and what has its binary interface: Intel MPI, MVAPICH), or one
//! with that of MPI 5, whichever has started this process.
//!
//! ```text
//! mpirun -n 4 program          Mpi::launched() ──► Some(rank r of 4), a Communicator
//! program                      Mpi::launched() ──► None
//! ```
//!
//! Of MPI it takes `MPI_Isend` and `MPI_Irecv` to move bytes: in step s of N − 1, a rank sends to the one that is s after it, and receives from
//! the one that is s before it. That is what MPI does itself for large messages, it takes no more memory, and no sum is MPI's, unless somebody asks
//! for that (`MPI_Iallreduce`, `MPI_Ireduce_scatter_block`, `MPI_Iallgather`).

mod heartbeat;
mod library;

pub use heartbeat::{Hang, Watch};

use heartbeat::{Heart, within};
use kernfusion_codegen::{CommunicationError, Communicator, LibraryCollectives, part_of};
use library::{Family, Library};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many times the longest silence MPI may take to start: the processes of a launcher do not begin at the same time.
const START: u32 = 12;

/// Bytes of a message at most; a longer one is sent in pieces, since counts of MPI are `int`.
const PIECE: usize = 1 << 30;

/// Why this process cannot be a rank.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    /// There is no library.
    #[error(
        "{launcher} has started {ranks} processes, but no MPI library can be loaded: {reason}. KERNFUSION_MPI=FILE names the one to load"
    )]
    Missing {
        /// What has started this process.
        launcher: &'static str,
        /// How many it has started.
        ranks: usize,
        /// What was tried.
        reason: String,
    },
    /// The library is not the launcher's.
    #[error(
        "{launcher} has started {ranks} processes, but {library} sees {found}: it is the library of another MPI. KERNFUSION_MPI=FILE names the one to load"
    )]
    Other {
        /// What has started this process.
        launcher: &'static str,
        /// How many it has started.
        ranks: usize,
        /// What the library calls itself.
        library: String,
        /// How many it sees.
        found: usize,
    },
    /// MPI reports an error.
    #[error("MPI: {0}")]
    Call(String),
}

/// What has started this process as one of several.
struct Launcher {
    name: &'static str,
    ranks: usize,
    rank: usize,
    family: Family,
}

/// Variables with the number of processes and with this one's, and whose they are.
const LAUNCHERS: [([&str; 2], &str, Family); 3] = [
    (["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"], "Open MPI's mpirun", Family::OpenMpi),
    (["PMI_SIZE", "PMI_RANK"], "MPICH's mpiexec", Family::Mpich),
    (["SLURM_STEP_NUM_TASKS", "SLURM_PROCID"], "srun", Family::OpenMpi),
];

/// The number of this process, from 0, if a launcher of MPI says by its variables that it has started several; MPI itself need not be there.
pub fn launched_rank() -> Option<usize> {
    Launcher::new(|name| std::env::var(name).ok()).map(|launcher| launcher.rank)
}

impl Launcher {
    /// From the environment, if it says that there is more than one process.
    fn new(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        LAUNCHERS.into_iter().find_map(|([size, number], launcher, family)| {
            let value = |name: &str| variable(name)?.trim().parse::<usize>().ok();
            let (ranks, rank) = (value(size)?, value(number).unwrap_or(0));
            // Slurm starts what was built for MPICH by its own interface, and all else by PMIx.
            let of_mpich =
                family == Family::OpenMpi && variable("PMIX_RANK").is_none() && size.starts_with("SLURM");
            let family = if of_mpich { Family::Mpich } else { family };
            (ranks > 1).then_some(Launcher { name: launcher, ranks, rank, family })
        })
    }
}

/// How many of the ranks are on this machine, as far as a launcher says it; else 1.
pub fn local_ranks() -> usize {
    let ranks = said(["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_TASKS_PER_NODE"]);
    ranks.filter(|&ranks| ranks > 0).unwrap_or(1)
}

/// The number of this rank among those on this machine, from 0, as far as a launcher says it; else 0.
pub fn local_rank() -> usize {
    said(["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"]).unwrap_or(0)
}

/// A number that a variable has.
fn said(names: [&str; 3]) -> Option<usize> {
    names.iter().find_map(|name| std::env::var(name).ok()?.trim().parse().ok())
}

/// This process as a rank among those that MPI has started.
#[derive(Debug)]
pub struct Mpi {
    library: Library,
    rank: usize,
    ranks: usize,
    watch: Watch,
    /// Exchanges come from one thread at a time.
    turn: Mutex<()>,
    /// How many exchanges this rank has come to.
    begun: AtomicU64,
    /// Whether it is in one now.
    is_waiting: AtomicBool,
    heart: Mutex<Option<Heart>>,
}

impl Mpi {
    /// The rank that this process is, if a launcher of MPI has started more than one. From now on a thread gives signs of life to the next rank and
    /// listens to the one before.
    ///
    /// # Errors
    /// The library cannot be loaded, is not the launcher's, or fails.
    pub fn launched(watch: Watch) -> Result<Option<Arc<Mpi>>, MpiError> {
        let Some(launcher) = Launcher::new(|name| std::env::var(name).ok()) else { return Ok(None) };
        let Launcher { name, ranks, family, .. } = launcher;
        let missing = |reason| MpiError::Missing { launcher: name, ranks, reason };
        let library = Library::load(family).map_err(missing)?;
        let longest = watch.silence.map(|silence| START * silence);
        let in_vain = |time: Duration| (watch.tell)(None, Hang::Start { seconds: time.as_secs() });
        within(longest, in_vain, || library.start())?;
        let (rank, found) = (library.rank()?, library.ranks()?);
        if found != ranks {
            return Err(MpiError::Other { launcher: name, ranks, library: library.version(), found });
        }
        let mpi = Arc::new(Mpi {
            library,
            rank,
            ranks,
            watch,
            turn: Mutex::default(),
            begun: AtomicU64::default(),
            is_waiting: AtomicBool::default(),
            heart: Mutex::default(),
        });
        *mpi.heart() = Some(Heart::start(&mpi)?);
        Ok(Some(mpi))
    }

    /// What the library calls itself, such as `Open MPI v4.1.4`.
    pub fn version(&self) -> String {
        self.library.version()
    }

    /// Ends MPI in this process; all ranks have to, and nothing can be exchanged after it.
    ///
    /// # Errors
    /// MPI reports one.
    pub fn finish(&self) -> Result<(), MpiError> {
        let _turn = self.turn();
        let heart = self.heart().take();
        heart.map_or(Ok(()), Heart::stop)?;
        let in_vain = |time: Duration| (self.watch.tell)(None, Hang::End { seconds: time.as_secs() });
        within(self.watch.silence, in_vain, || self.library.finish())
    }

    /// Ends all ranks, as after an error that one of them has.
    pub fn abort(&self) -> ! {
        self.library.abort();
        std::process::exit(1)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heart(&self) -> MutexGuard<'_, Option<Heart>> {
        self.heart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes to an exchange, which goes on until the result is dropped.
    fn come(&self) -> Coming<'_> {
        let turn = self.turn();
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.is_waiting.store(true, Ordering::Relaxed);
        Coming { is_waiting: &self.is_waiting, _turn: turn }
    }

    /// For each other rank, in an order in which all ranks work in pairs: the one to send to, and the one to receive from.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let (rank, ranks) = (self.rank, self.ranks);
        (1..ranks).map(move |step| ((rank + step) % ranks, (rank + ranks - step) % ranks))
    }

    /// Sends `sent` to one rank while it receives `received` from another one. All ranks have parts of `part` bytes at most, so that they send as
    /// many messages.
    fn swap(
        &self,
        part: usize,
        (to, sent): (usize, &[u8]),
        (from, received): (usize, &mut [u8]),
    ) -> Result<(), CommunicationError> {
        for start in (0..part).step_by(PIECE) {
            let piece = |length: usize| start.min(length)..(start + PIECE).min(length);
            let (sent, place) = (&sent[piece(sent.len())], piece(received.len()));
            let received = &mut received[place];
            let swapped = self.library.send_and_receive((to, sent), (from, received));
            swapped.map_err(failed)?;
        }
        Ok(())
    }
}

fn failed(error: MpiError) -> CommunicationError {
    CommunicationError::Library { what: error.to_string() }
}

impl LibraryCollectives for Mpi {
    fn all_reduce(&self, given: &[f32], sum: &mut [f32]) -> Result<(), CommunicationError> {
        assert_eq!(given.len(), sum.len(), "every number has a sum");
        let _coming = self.come();
        self.library.all_reduce(given, sum).map_err(failed)
    }

    fn reduce_scatter(&self, given: &[f32], sum: &mut [f32]) -> Result<(), CommunicationError> {
        assert_eq!(given.len(), self.ranks * sum.len(), "every rank has as many numbers");
        let _coming = self.come();
        self.library.reduce_scatter(given, sum).map_err(failed)
    }

    fn all_gather(&self, own: &[u8], all: &mut [u8]) -> Result<(), CommunicationError> {
        assert_eq!(all.len(), self.ranks * own.len(), "every rank has as many bytes");
        let _coming = self.come();
        self.library.all_gather(own, all).map_err(failed)
    }
}

/// A rank in an exchange.
struct Coming<'m> {
    is_waiting: &'m AtomicBool,
    _turn: MutexGuard<'m, ()>,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.is_waiting.store(false, Ordering::Relaxed);
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn library(&self) -> Option<&dyn LibraryCollectives> {
        Some(self)
    }

    fn exchange(
        &self,
        sent: &[u8],
        part: usize,
        received: &mut [u8],
        stride: usize,
    ) -> Result<(), CommunicationError> {
        let _coming = self.come();
        let range = |rank| part_of(rank, part, sent.len());
        let own = range(self.rank);
        received[self.rank * stride..][..own.len()].copy_from_slice(&sent[own.clone()]);
        for (to, from) in self.pairs() {
            self.swap(part, (to, &sent[range(to)]), (from, &mut received[from * stride..][..own.len()]))?;
        }
        Ok(())
    }

    fn gather(&self, all: &mut [u8], part: usize) -> Result<(), CommunicationError> {
        let _coming = self.come();
        let length = all.len();
        let range = |rank| part_of(rank, part, length);
        for (to, from) in self.pairs() {
            let (own, others) = (range(self.rank), range(from));
            // Two parts of one slice.
            let (sent, received) = if own.start <= others.start {
                let (first, last) = all.split_at_mut(others.start);
                (&first[own], &mut last[..others.len()])
            } else {
                let (first, last) = all.split_at_mut(own.start);
                (&last[..own.len()], &mut first[others])
            };
            self.swap(part, (to, sent), (from, received))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_is_known_by_its_variables() {
        let launcher = |variables: &'static [(&str, &str)]| {
            let value = |name: &str| {
                variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.to_string())
            };
            Launcher::new(value).map(|launcher| (launcher.ranks, launcher.rank, launcher.family))
        };
        assert_eq!(launcher(&[]), None);
        assert_eq!(launcher(&[("OMPI_COMM_WORLD_SIZE", "1")]), None);
        assert_eq!(launcher(&[("OMPI_COMM_WORLD_SIZE", "4")]), Some((4, 0, Family::OpenMpi)));
        assert_eq!(launcher(&[("PMI_SIZE", "2"), ("PMI_RANK", "1")]), Some((2, 1, Family::Mpich)));
        assert_eq!(
            launcher(&[("SLURM_STEP_NUM_TASKS", "8"), ("PMIX_RANK", "3")]),
            Some((8, 0, Family::OpenMpi))
        );
        assert_eq!(launcher(&[("SLURM_STEP_NUM_TASKS", "8")]), Some((8, 0, Family::Mpich)));
    }
}
