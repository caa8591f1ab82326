//! What ranks exchange and how: the processes that run one program side by side, each on its part of the batch.
//!
//! A communicator moves bytes, and its caller does the summing, in ascending order of ranks, so results do not depend on a library's order of
//! sums. Who prefers that has the [library's sums](LibraryCollectives).

mod planned;
mod threads;

pub use planned::planned;
pub use threads::{threads, threads_within};

use std::fmt;

/// Who sums what ranks exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Collectives {
    /// Our own code, in ascending order of ranks: no bit depends on what connects them.
    #[default]
    Ordered,
    /// What connects them, MPI or NCCL, in an order of its own.
    Library,
}

/// Sums and gathers that a library takes by itself. All ranks make the same calls in the same order, those of [`Communicator`] among them.
pub trait LibraryCollectives {
    /// The sum of what all ranks give, on each of them.
    ///
    /// # Errors
    /// As [`Communicator::exchange`]; or there are more numbers than the library takes.
    fn all_reduce(&self, given: &[f32], sum: &mut [f32]) -> Result<(), CommunicationError>;

    /// This rank's part of the sum; `given` has as many numbers for each rank.
    ///
    /// # Errors
    /// As [`LibraryCollectives::all_reduce`].
    fn reduce_scatter(&self, given: &[f32], sum: &mut [f32]) -> Result<(), CommunicationError>;

    /// What each rank has, one after another.
    ///
    /// # Errors
    /// As [`LibraryCollectives::all_reduce`].
    fn all_gather(&self, own: &[u8], all: &mut [u8]) -> Result<(), CommunicationError>;
}

/// One rank's way to the others. All ranks make the same calls in the same order.
pub trait Communicator: Send + Sync + fmt::Debug {
    /// This rank's number, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn ranks(&self) -> usize;

    /// Sends to every rank its part of `sent`, `part` bytes for each (the last ones may get fewer, or none), and receives this rank's
    /// part of what each of them has, that of rank i from `i · stride` on.
    ///
    /// # Errors
    /// A rank has ended, or what connects them fails. Then no rank gets anything more.
    fn exchange(
        &self,
        sent: &[u8],
        part: usize,
        received: &mut [u8],
        stride: usize,
    ) -> Result<(), CommunicationError>;

    /// Completes `all`, of which each rank has its part, `part` bytes (the last ones may have fewer, or none), in its place.
    ///
    /// # Errors
    /// As [`Communicator::exchange`].
    fn gather(&self, all: &mut [u8], part: usize) -> Result<(), CommunicationError>;

    /// What the library that connects ranks does by itself, if there is one that does.
    fn library(&self) -> Option<&dyn LibraryCollectives> {
        None
    }

    /// The number that each rank has.
    ///
    /// # Errors
    /// As [`Communicator::exchange`].
    fn numbers(&self, own: u64) -> Result<Vec<u64>, CommunicationError> {
        const SIZE: usize = size_of::<u64>();
        let mut all = vec![0; SIZE * self.ranks()];
        all[SIZE * self.rank()..][..SIZE].copy_from_slice(&own.to_le_bytes());
        self.gather(&mut all, SIZE)?;
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("as many bytes"));
        Ok(all.chunks(SIZE).map(number).collect())
    }
}

/// Why ranks cannot go on together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommunicationError {
    /// A rank has ended before the others.
    #[error("rank {rank} has ended, and the others cannot go on without it")]
    Gone {
        /// Which.
        rank: usize,
    },
    /// A rank does not come.
    #[error("rank {rank} has kept the others waiting in an exchange for {seconds} s")]
    Late {
        /// Which.
        rank: usize,
        /// For how long.
        seconds: u64,
    },
    /// What connects them reports an error.
    #[error("{what}")]
    Library {
        /// In its words.
        what: String,
    },
    /// The program is that of a [`planned`] rank.
    #[error("a program that was planned for {ranks} ranks exchanges nothing: the other ranks are not there")]
    Planned {
        /// How many it was planned for.
        ranks: usize,
    },
}

/// The range of a rank's part in `bytes` bytes that are divided into parts of `part` bytes; the last ones may be shorter, or empty.
pub fn part_of(rank: usize, part: usize, bytes: usize) -> std::ops::Range<usize> {
    let at = |rank: usize| (rank * part).min(bytes);
    at(rank)..at(rank + 1)
}
