//! Signs of life. Each rank sends one to the next rank of a ring, four times a second, by a thread of its own that goes on whatever others compute,
//! and listens to the rank before it. So a rank that is slow is told from one that was stopped or cannot be reached.
//!
//! ```text
//! rank 0 ──► rank 1 ──► rank 2 ──► rank 3 ──► rank 0        how many exchanges the sender has come to
//! ```
//!
//! One rank alone listens to each, so one alone tells that it is silent. Ranks make the same exchanges in the same order: who has come to fewer
//! than the next one, which waits, keeps it waiting.

use super::library::Tag;
use super::{Mpi, MpiError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between signs of life.
const INTERVAL: Duration = Duration::from_millis(250);

/// Time between looks for the last one.
const BRIEF: Duration = Duration::from_millis(2);

/// The last sign of life.
const GOODBYE: u64 = u64::MAX;

/// How long ranks wait for each other, and what happens when that was in vain.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    /// How long a rank may give no sign of life; without it, for ever.
    pub silence: Option<Duration>,
    /// How long an exchange may take to which a rank has come; without it, for ever.
    pub wait: Option<Duration>,
    /// Called once, by a thread of its own. Exchanges go on waiting, since their memory may still be written to; so it should end the process, by
    /// [`Mpi::abort`] unless MPI is just starting or ending.
    pub tell: fn(Option<&Mpi>, Hang),
}

impl Default for Watch {
    /// Waits for ever.
    fn default() -> Self {
        Watch { silence: None, wait: None, tell: |_, _| {} }
    }
}

/// In what a rank waits in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Hang {
    /// Not all ranks have started.
    #[error("MPI has not started on all ranks for {seconds} s")]
    Start {
        /// How long this one has waited.
        seconds: u64,
    },
    /// A rank was stopped, or cannot be reached.
    #[error(
        "rank {rank} has given no sign of life for {seconds} s: it was stopped, or nothing comes through from it"
    )]
    Silent {
        /// Which.
        rank: usize,
        /// For how long.
        seconds: u64,
    },
    /// A rank lives, but does not come to an exchange.
    #[error("rank {rank} lives, but has kept the others waiting in an exchange for {seconds} s")]
    Late {
        /// Which.
        rank: usize,
        /// For how long.
        seconds: u64,
    },
    /// An exchange does not end, though the rank before this one has come to it. A third one may be late, which the rank after that tells.
    #[error("an exchange has not ended for {seconds} s")]
    Stuck {
        /// How long it has taken.
        seconds: u64,
    },
    /// Not all ranks have ended.
    #[error("MPI has not ended on all ranks for {seconds} s")]
    End {
        /// How long this one has waited.
        seconds: u64,
    },
}

/// Makes a call, and says by a thread of its own that it has taken `longest`, if it does.
pub(super) fn within<T>(
    longest: Option<Duration>,
    in_vain: impl Fn(Duration) + Send,
    call: impl FnOnce() -> T,
) -> T {
    let Some(longest) = longest else { return call() };
    let (over, is_over) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_over.recv_timeout(longest) == Err(RecvTimeoutError::Timeout) {
                in_vain(longest);
            }
        });
        let result = call();
        drop(over);
        result
    })
}

/// The thread that gives signs of life.
#[derive(Debug)]
pub(super) struct Heart {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Heart {
    /// # Errors
    /// There is no thread.
    pub(super) fn start(mpi: &Arc<Mpi>) -> Result<Self, MpiError> {
        let (mpi, ends) = (mpi.clone(), Arc::<AtomicBool>::default());
        let beats = ends.clone();
        let thread = std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
            // An error of the library is one of the next exchange, too.
            if let Ok(Some(hang)) = beat(&mpi, &beats) {
                (mpi.watch.tell)(Some(&mpi), hang);
            }
        });
        let thread = thread.map_err(|cause| MpiError::Call(format!("there is no thread: {cause}")))?;
        Ok(Heart { ends, thread })
    }

    /// Ends it, when the rank before this one ends its own.
    pub(super) fn stop(self) -> Result<(), MpiError> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread
            .join()
            .map_err(|_| MpiError::Call("the thread that gives signs of life has panicked".into()))
    }
}

/// Sends and hears signs of life until both sides have said goodbye, or a wait is in vain.
fn beat(mpi: &Mpi, ends: &AtomicBool) -> Result<Option<Hang>, MpiError> {
    let library = &mpi.library;
    let (next, previous) = mpi.pairs().next().expect("there are others");
    // They are under way when this ends in vain.
    let [sent, heard] = [(); 2].map(|()| Box::leak(Box::new([0; size_of::<u64>()])));
    // SAFETY: the memory stays, and is looked at when the request is over.
    let listen = |heard: &mut [u8]| unsafe { library.begin_receive(previous, Tag::Heartbeat, heard) };
    let mut receiving = listen(heard)?;
    let (mut sending, mut has_ended, mut previous_has_ended) = (None, false, false);
    let (mut pulse, mut last) = (Pulse::default(), Instant::now());
    loop {
        if let Some(request) = &mut sending
            && library.is_over(request)?
        {
            sending = None;
        }
        let begun = mpi.begun.load(Ordering::Relaxed);
        if sending.is_none() && !has_ended {
            has_ended = ends.load(Ordering::Relaxed);
            *sent = (if has_ended { GOODBYE } else { begun }).to_le_bytes();
            // SAFETY: the memory stays, and is written when the request is over.
            sending = Some(unsafe { library.begin_send(next, Tag::Heartbeat, sent) }?);
        }
        let mut news = None;
        while !previous_has_ended && library.is_over(&mut receiving)? {
            let number = u64::from_le_bytes(*heard);
            (news, previous_has_ended) = (Some(number), number == GOODBYE);
            if !previous_has_ended {
                receiving = listen(heard)?;
            }
        }
        if sending.is_none() && has_ended && previous_has_ended {
            return Ok(None);
        }
        let now = Instant::now();
        let waits = mpi.is_waiting.load(Ordering::Relaxed).then_some(begun);
        let hang = pulse.hang(now - last, news, waits, (previous, &mpi.watch));
        if hang.is_some() && !previous_has_ended {
            return Ok(hang);
        }
        last = now;
        std::thread::park_timeout(if has_ended { BRIEF } else { INTERVAL });
    }
}

/// What is known of the rank before this one, and of the exchange in which this one waits.
#[derive(Debug, Default)]
struct Pulse {
    /// Since its last sign of life.
    silent: Duration,
    /// How many exchanges it had come to by then.
    heard: u64,
    /// In which exchange this rank waits.
    exchange: Option<u64>,
    /// Since when.
    waited: Duration,
}

impl Pulse {
    /// Whether a wait is in vain now that so much time has passed, with what was heard in it.
    fn hang(
        &mut self,
        passed: Duration,
        news: Option<u64>,
        exchange: Option<u64>,
        (previous, watch): (usize, &Watch),
    ) -> Option<Hang> {
        // A pause of this process says nothing about others.
        let passed = passed.min(2 * INTERVAL);
        self.silent = if news.is_some() { Duration::ZERO } else { self.silent + passed };
        self.heard = news.unwrap_or(self.heard);
        let goes_on = exchange.is_some() && exchange == self.exchange;
        self.waited = if goes_on { self.waited + passed } else { Duration::ZERO };
        self.exchange = exchange;
        if watch.silence.is_some_and(|longest| self.silent >= longest) {
            return Some(Hang::Silent { rank: previous, seconds: self.silent.as_secs() });
        }
        let exchange = exchange.filter(|_| watch.wait.is_some_and(|longest| self.waited >= longest))?;
        let seconds = self.waited.as_secs();
        Some(match self.heard < exchange {
            true => Hang::Late { rank: previous, seconds },
            false => Hang::Stuck { seconds },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The first hang in these looks, each with the time since the one before, what was heard, and the exchange in which this rank waits.
    fn first(looks: impl IntoIterator<Item = (Duration, Option<u64>, Option<u64>)>) -> Option<Hang> {
        let watch = Watch { silence: Some(5 * SECOND), wait: Some(60 * SECOND), ..Watch::default() };
        let mut pulse = Pulse::default();
        looks.into_iter().find_map(|(passed, news, exchange)| pulse.hang(passed, news, exchange, (3, &watch)))
    }

    fn looks<T: Clone>(seconds: usize, look: T) -> impl Iterator<Item = T> {
        std::iter::repeat_n(look, seconds * 4)
    }

    #[test]
    fn a_rank_is_silent_after_five_seconds() {
        let alive = (INTERVAL, Some(1), None);
        let quiet = (INTERVAL, None, None);
        assert_eq!(first(looks(1000, alive)), None);
        assert_eq!(first(looks(4, quiet).chain(looks(1, alive)).chain(looks(4, quiet))), None);
        assert_eq!(first(looks(1, alive).chain(looks(5, quiet))), Some(Hang::Silent { rank: 3, seconds: 5 }));
    }

    #[test]
    fn an_own_pause_is_no_silence() {
        assert_eq!(first([(3600 * SECOND, None, Some(1))]), None);
    }

    #[test]
    fn a_rank_that_comes_to_fewer_exchanges_is_late() {
        let waits = |heard| (INTERVAL, Some(heard), Some(8));
        assert_eq!(first(looks(59, waits(7))), None);
        assert_eq!(first(looks(61, waits(7))), Some(Hang::Late { rank: 3, seconds: 60 }));
        assert_eq!(first(looks(61, waits(8))), Some(Hang::Stuck { seconds: 60 }));
        // Exchanges that end take as long as they like together.
        let one = |number| looks(50, (INTERVAL, Some(1), Some(number)));
        assert_eq!(first((2..9).flat_map(one)), None);
    }
}
