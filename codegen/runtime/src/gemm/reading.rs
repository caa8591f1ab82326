//! How lines of B are read from memory: one after another, or several side by side and fetched ahead of their use.
//!
//! Results are the same bits, but which one memory gives more bytes with depends on the processor (`docs/benchmarks.md`): on
//! one machine it was the first by half, on three others the second. So the first products of a process try both in turn.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// How many times both are tried: odd, so that one of them wins.
const ROUNDS: usize = 63;
/// Bytes that are read in one way, at least: they take microseconds.
const LEAST: usize = 64 << 10;

/// What this process found out. Threads that ask at the same time may try a few times more.
static READING: Reading = Reading::new();

/// Rounds in which both were tried.
struct Reading {
    rounds: AtomicUsize,
    /// Those in which lines side by side took less time.
    won: AtomicUsize,
}

#[cfg(test)]
thread_local! {
    /// Instead of what is found out, for products that this thread asks for.
    pub(super) static SIDE_BY_SIDE: std::cell::Cell<Option<Option<bool>>> = const { std::cell::Cell::new(None) };
}

/// Whether lines are read side by side, if that is known.
pub(super) fn side_by_side() -> Option<bool> {
    #[cfg(test)]
    if let Some(known) = SIDE_BY_SIDE.get() {
        return known;
    }
    READING.choice()
}

/// Reads `count` lines of `bytes` bytes by `read(first line, lines, whether side by side)`, in both ways if it is not `known` which to take.
pub(super) fn lines(
    known: Option<bool>,
    (count, bytes): (usize, usize),
    mut read: impl FnMut(usize, usize, bool),
) {
    let half = count / 2;
    match known {
        Some(choice) => read(0, count, choice),
        None if half * bytes < LEAST => read(0, count, false),
        None => {
            READING.round(|side_by_side, place| read(place * half, half, side_by_side));
            read(2 * half, count - 2 * half, false);
        }
    }
}

impl Reading {
    const fn new() -> Self {
        Reading { rounds: AtomicUsize::new(0), won: AtomicUsize::new(0) }
    }

    /// The way that won more rounds, once there were enough.
    fn choice(&self) -> Option<bool> {
        let rounds = self.rounds.load(Ordering::Relaxed);
        (rounds >= ROUNDS).then(|| 2 * self.won.load(Ordering::Relaxed) > rounds)
    }

    /// Reads either half by `read(whether side by side, which half)`, each in its own way; the second is side by side in every other round.
    fn round(&self, mut read: impl FnMut(bool, usize)) {
        let first = self.rounds.load(Ordering::Relaxed).is_multiple_of(2);
        let [a, b] = [(first, 0), (!first, 1)].map(|(side_by_side, half)| {
            let start = Instant::now();
            read(side_by_side, half);
            start.elapsed()
        });
        self.won.fetch_add(usize::from((a < b) == first), Ordering::Relaxed);
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Rounds with a way that takes longer, until one is chosen.
    fn chosen(slow: bool) -> bool {
        let reading = Reading::new();
        loop {
            match reading.choice() {
                Some(choice) => return choice,
                None => reading.round(|side_by_side, _| {
                    std::thread::sleep(Duration::from_micros(if side_by_side == slow { 400 } else { 0 }));
                }),
            }
        }
    }

    #[test]
    fn the_faster_way_is_chosen() {
        assert!(chosen(false), "reading one after another takes longer");
        assert!(!chosen(true), "reading side by side takes longer");
    }

    #[test]
    fn every_line_is_read_once_whatever_is_known() {
        for known in [None, Some(false), Some(true)] {
            for count in [0, 1, 7, 4096, 4097] {
                let mut read = vec![0; count];
                lines(known, (count, LEAST / 1024), |first, lines, _| {
                    read[first..first + lines].iter_mut().for_each(|times| *times += 1);
                });
                assert!(read.iter().all(|&times| times == 1), "{known:?}, {count} lines");
            }
        }
    }
}
