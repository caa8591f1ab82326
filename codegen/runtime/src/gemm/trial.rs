//! Two ways of computing a product, whose results are the same bits: which one is faster depends on what memory and caches give, and on some
//! machines one is by a third (`docs/benchmarks/xeon-tiles.md`). So the first runs of each product take both in turn.

use super::{Contraction, Element, Precision};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often each way is tried; the fastest run of each counts.
const TIMES: usize = 3;
/// How many products are known at a time: a process that compiles forever begins anew.
const MOST: usize = 1 << 12;

/// One of two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Lines of B one after another, in a product of few rows. In others, B packed whole where that takes up to 12 MiB.
    First,
    /// Several lines of B side by side and fetched ahead. B packed in smaller blocks.
    Second,
}

pub(super) const WAYS: [Way; 2] = [Way::First, Way::Second];

#[cfg(test)]
thread_local! {
    /// Instead of the one to be tried, for products that this thread asks for.
    pub(super) static WAY: std::cell::Cell<Option<Way>> = const { std::cell::Cell::new(None) };
}

/// What tells products apart, which is all but where their operands lie.
#[derive(PartialEq, Eq, Hash)]
struct Kind {
    size: [usize; 4],
    elements: [Element; 2],
    precision: Precision,
    /// Whether A and B lie in lines along k.
    along_k: [bool; 2],
    /// Addresses of the prologues and of the epilogue.
    hooks: [Option<usize>; 3],
    threads: usize,
}

/// Runs of a product so far, and the shortest time of either way.
struct Trial {
    runs: usize,
    best: [Duration; 2],
}

impl Default for Trial {
    fn default() -> Self {
        Trial { runs: 0, best: [Duration::MAX; 2] }
    }
}

impl Trial {
    /// The way to take now, and whether its time is of interest.
    fn way(&self) -> (Way, bool) {
        let [first, second] = self.best;
        match self.runs < 2 * TIMES {
            true => (WAYS[self.runs % 2], true),
            false => (if second < first { Way::Second } else { Way::First }, false),
        }
    }

    fn took(&mut self, way: Way, time: Duration) {
        let best = &mut self.best[way as usize];
        *best = time.min(*best);
        self.runs += 1;
    }
}

static TRIALS: LazyLock<Mutex<HashMap<Kind, Trial>>> = LazyLock::new(Mutex::default);

/// Runs a product in the way that is best for it, or that is to be tried.
pub(super) fn run<R>(job: &Contraction, threads: usize, run: impl FnOnce(Way) -> R) -> R {
    #[cfg(test)]
    if let Some(way) = WAY.get() {
        return run(way);
    }
    let trials = || TRIALS.lock().unwrap_or_else(PoisonError::into_inner);
    let kind = Kind::of(job, threads);
    let (way, is_timed) = trials().get(&kind).map_or((Way::First, true), Trial::way);
    let start = Instant::now();
    let result = run(way);
    if is_timed {
        let mut trials = trials();
        if trials.len() >= MOST {
            trials.clear();
        }
        trials.entry(kind).or_default().took(way, start.elapsed());
    }
    result
}

impl Kind {
    fn of(job: &Contraction, threads: usize) -> Self {
        let [a, b] = job.prologues.map(|prologue| prologue.map(|prologue| prologue.function));
        Kind {
            size: [job.batch, job.m, job.n, job.k],
            elements: [job.a.element, job.b.element],
            precision: job.precision,
            along_k: [&job.a, &job.b].map(|operand| operand.k.offsets().unit()),
            hooks: [a, b, job.epilogue].map(|hook| hook.map(|hook| hook as usize)),
            threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_way_is_taken_once_both_were_tried() {
        for faster in WAYS {
            let mut trial = Trial::default();
            let mut tried = [0; 2];
            while let (way, true) = trial.way() {
                tried[way as usize] += 1;
                // The first run of all is slow in either case.
                let slow = u64::from(way != faster) + 10 * u64::from(trial.runs == 0);
                trial.took(way, Duration::from_micros(5 + slow));
            }
            assert_eq!((tried, trial.way()), ([TIMES; 2], (faster, false)));
        }
    }
}
