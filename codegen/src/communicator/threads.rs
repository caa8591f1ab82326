//! Ranks in one process, each on a thread of its own: for tests, and to see what a program of several ranks does.

use super::{CommunicationError, Communicator, part_of};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One communicator for each of `ranks` ranks in this process. Each is used by one thread at a time. Dropping one ends the exchanges of all
/// ranks.
pub fn threads(ranks: usize) -> Vec<Arc<dyn Communicator>> {
    threads_within(ranks, None)
}

/// As [`threads`], with exchanges of all ranks ending in an error if one of them keeps the others waiting for so long.
pub fn threads_within(ranks: usize, wait: Option<Duration>) -> Vec<Arc<dyn Communicator>> {
    let table = Table { shown: vec![None; ranks], is_here: vec![false; ranks], round: 0, lost: None };
    let meeting = Arc::new(Meeting { table: Mutex::new(table), changed: Condvar::new(), wait });
    let of = |rank| Arc::new(Thread { rank, meeting: meeting.clone() }) as Arc<dyn Communicator>;
    (0..ranks).map(of).collect()
}

/// Memory that a rank shows to others between two meetings.
#[derive(Debug, Clone, Copy)]
struct Shown {
    start: *const u8,
    bytes: usize,
}

// SAFETY: it is read only while its owner waits for all readers.
unsafe impl Send for Shown {}

/// Where ranks meet.
#[derive(Debug)]
struct Meeting {
    table: Mutex<Table>,
    changed: Condvar,
    /// How long ranks wait for one that does not come.
    wait: Option<Duration>,
}

#[derive(Debug)]
struct Table {
    /// What each rank shows.
    shown: Vec<Option<Shown>>,
    /// Whether each rank has come to this meeting.
    is_here: Vec<bool>,
    /// The number of this meeting.
    round: u64,
    /// Why there is no meeting any more.
    lost: Option<CommunicationError>,
}

impl Meeting {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A rank that panicked has dropped its communicator, which everybody is told.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all ranks; what is shown now is seen by all of them until the meeting after the next one.
    fn meet(&self, rank: usize, shown: Option<Shown>) -> Result<Vec<Option<Shown>>, CommunicationError> {
        let (mut table, since) = (self.table(), Instant::now());
        // Who has given up looks at nothing, and shows nothing, any more.
        if let Some(error) = &table.lost {
            return Err(error.clone());
        }
        // Others may still look at what was shown before.
        table.shown[rank] = shown.or(table.shown[rank]);
        table.is_here[rank] = true;
        let round = table.round;
        if table.is_here.iter().all(|&is_here| is_here) {
            table.is_here.fill(false);
            table.round = round + 1;
            self.changed.notify_all();
        }
        // While memory is looked at, nobody gives up.
        let wait = self.wait.filter(|_| shown.is_some());
        while table.round == round {
            if let Some(error) = &table.lost {
                return Err(error.clone());
            }
            let left = wait.map_or(Duration::MAX, |wait| wait.saturating_sub(since.elapsed()));
            if left.is_zero() {
                let rank = table.is_here.iter().position(|&is_here| !is_here).expect("one is missing");
                table.lost = Some(CommunicationError::Late { rank, seconds: since.elapsed().as_secs() });
                self.changed.notify_all();
                continue;
            }
            table = self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(table.shown.clone())
    }
}

#[derive(Debug)]
struct Thread {
    rank: usize,
    meeting: Arc<Meeting>,
}

impl Thread {
    /// Shows memory to all ranks while each of them reads from the memory of all.
    fn show(&self, own: Shown, mut read: impl FnMut(usize, Shown)) -> Result<(), CommunicationError> {
        for (rank, shown) in self.meeting.meet(self.rank, Some(own))?.into_iter().enumerate() {
            read(rank, shown.expect("every rank shows something"));
        }
        self.meeting.meet(self.rank, None).map(drop)
    }
}

impl Communicator for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.meeting.table().shown.len()
    }

    fn exchange(
        &self,
        sent: &[u8],
        part: usize,
        received: &mut [u8],
        stride: usize,
    ) -> Result<(), CommunicationError> {
        let own = part_of(self.rank, part, sent.len());
        self.show(Shown { start: sent.as_ptr(), bytes: sent.len() }, |rank, shown| {
            assert_eq!(shown.bytes, sent.len(), "ranks exchange the same");
            let to = &mut received[rank * stride..][..own.len()];
            // SAFETY: the other rank lends its memory until all have met again, and its range is ours.
            unsafe { to.as_mut_ptr().copy_from_nonoverlapping(shown.start.add(own.start), own.len()) };
        })
    }

    fn gather(&self, all: &mut [u8], part: usize) -> Result<(), CommunicationError> {
        let (start, bytes) = (all.as_mut_ptr(), all.len());
        self.show(Shown { start, bytes }, |rank, shown| {
            assert_eq!(shown.bytes, bytes, "ranks exchange the same");
            let from = part_of(rank, part, bytes);
            if rank != self.rank {
                // SAFETY: each rank writes to its own memory what others have in places that they do not write.
                unsafe {
                    start.add(from.start).copy_from_nonoverlapping(shown.start.add(from.start), from.len())
                };
            }
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // The first to go is the cause.
        self.meeting.table().lost.get_or_insert(CommunicationError::Gone { rank: self.rank });
        self.meeting.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each rank gets from `run`.
    fn all<T: Send>(ranks: usize, run: impl Fn(&dyn Communicator) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let run = &run;
            let handles: Vec<_> =
                threads(ranks).into_iter().map(|one| scope.spawn(move || run(&*one))).collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_gets_its_part_of_all() {
        // Seven bytes in parts of three: the last rank has one of them.
        let got = all(3, |one| {
            let sent: Vec<_> = (0..7).map(|i| 10 * one.rank() as u8 + i).collect();
            let mut received = [255; 12];
            one.exchange(&sent, 3, &mut received, 4).unwrap();
            received
        });
        assert_eq!(got[0], [0, 1, 2, 255, 10, 11, 12, 255, 20, 21, 22, 255]);
        assert_eq!(got[1], [3, 4, 5, 255, 13, 14, 15, 255, 23, 24, 25, 255]);
        assert_eq!(got[2], [6, 255, 255, 255, 16, 255, 255, 255, 26, 255, 255, 255]);
    }

    #[test]
    fn parts_are_gathered_again_and_again() {
        let got = all(4, |one| {
            (0..100u8)
                .map(|round| {
                    let mut bytes = [0; 6];
                    part_of(one.rank(), 2, 6).for_each(|i| bytes[i] = round + i as u8);
                    one.gather(&mut bytes, 2).unwrap();
                    bytes
                })
                .collect::<Vec<_>>()
        });
        for rounds in got {
            for (round, bytes) in rounds.into_iter().enumerate() {
                assert_eq!(bytes, std::array::from_fn(|i| (round + i) as u8));
            }
        }
    }

    #[test]
    fn who_waits_for_a_rank_that_has_ended_is_told() {
        let got = all(3, |one| match one.rank() {
            1 => Ok(()),
            _ => one.gather(&mut [0; 3], 1),
        });
        assert_eq!(got[0], Err(CommunicationError::Gone { rank: 1 }));
        assert_eq!(got[2], got[0]);
    }

    #[test]
    fn who_waits_too_long_is_told_and_so_is_who_comes_late() {
        let wait = Duration::from_millis(50);
        let late = Err(CommunicationError::Late { rank: 1, seconds: 0 });
        let ranks = threads_within(3, Some(wait));
        std::thread::scope(|scope| {
            let [first, third] = [0, 2].map(|rank| {
                let one = ranks[rank].clone();
                scope.spawn(move || one.gather(&mut [0; 3], 1))
            });
            assert_eq!(first.join().unwrap(), late);
            assert_eq!(third.join().unwrap(), late);
            assert_eq!(ranks[1].gather(&mut [0; 3], 1), late);
        });
    }
}
