//! A fixed pool of threads for kernels: `run` hands the same closure to every thread and waits for all.
//!
//! Work is divided statically (`share`), so results never depend on timing. Workers spin for some
//! microseconds after a kernel, since the next one usually follows at once, let others run for a millisecond, and then
//! sleep. A panic in the work reaches the caller of `run`; the pool stays usable.

use crate::sync::{self, Arc, AtomicBool, AtomicUsize, Mutex, thread};
use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a thread spins before it gives its core to others.
const SPIN: Duration = Duration::from_micros(20);
/// How long a worker lets others run before it sleeps: one that is done early with its share of a kernel need not be woken for the next.
const AWAKE: Duration = Duration::from_millis(1);

type Work<'a> = dyn Fn(usize) + Sync + 'a;
type Payload = Box<dyn Any + Send>;

#[cfg(not(loom))]
thread_local! {
    /// Set while this thread runs work of a pool, where another `run` cannot wait for its own workers.
    static WORKING: Cell<bool> = const { Cell::new(false) };
}
#[cfg(loom)]
loom::thread_local! {
    static WORKING: Cell<bool> = Cell::new(false);
}

/// Threads that run kernels together; the calling thread is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<thread::JoinHandle<()>>,
    /// Held during a launch: kernels of two callers take turns.
    launch: Mutex<()>,
}

/// One cache line, so that threads that spin on different fields do not disturb each other.
#[repr(align(64))]
struct Line<T>(T);

struct Shared {
    /// Counts launches: workers wait for it to change, and `work` is valid until they have all finished.
    epoch: Line<AtomicUsize>,
    /// Workers that have not finished the current launch.
    left: Line<AtomicUsize>,
    work: sync::Cell<Option<&'static Work<'static>>>,
    stop: AtomicBool,
    asleep: Vec<Line<AtomicBool>>,
    panic: Mutex<Option<Payload>>,
}

// SAFETY: `work` is written only while no worker runs (`left` is zero, and `epoch` not yet advanced), and
// read only after the release of `epoch`.
unsafe impl Sync for Shared {}

impl Pool {
    /// Starts `threads - 1` workers; the caller of `run` is the other thread. Zero counts as one. Where the system does not start
    /// that many, those that there are do all of the work, with the same results.
    pub fn new(threads: usize) -> Self {
        let workers = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            epoch: Line(AtomicUsize::new(0)),
            left: Line(AtomicUsize::new(0)),
            work: sync::Cell::new(None),
            stop: AtomicBool::new(false),
            asleep: (0..workers).map(|_| Line(AtomicBool::new(false))).collect(),
            panic: Mutex::new(None),
        });
        let start = |worker: usize| {
            let shared = Arc::clone(&shared);
            let thread = thread::Builder::new().name(format!("kernel-{}", worker + 1));
            thread.spawn(move || shared.serve(worker)).ok()
        };
        Pool { workers: (0..workers).map_while(start).collect(), launch: Mutex::new(()), shared }
    }

    /// How many threads take part in `run`, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work(t)` for each t in `0..threads()`, the caller as t = 0, and returns when all are done.
    /// Called from inside work, it runs every t on the calling thread.
    ///
    /// # Panics
    /// With the payload of the first panic in `work`, after all threads have finished.
    pub fn run(&self, work: &Work<'_>) {
        if self.workers.is_empty() || WORKING.with(Cell::get) {
            (0..self.threads()).for_each(work);
            return;
        }
        let turn = self.launch.lock().unwrap_or_else(PoisonError::into_inner);
        self.start(work);
        WORKING.with(|it| it.set(true));
        let mine = catch_unwind(AssertUnwindSafe(|| work(0)));
        WORKING.with(|it| it.set(false));
        self.wait();
        let theirs = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
        if let Some(payload) = mine.err().or(theirs) {
            resume_unwind(payload);
        }
    }

    fn start(&self, work: &Work<'_>) {
        let shared = &*self.shared;
        // SAFETY: `wait` returns only when no worker uses the reference any more, so its lifetime may be
        // hidden; and no worker reads the cell before `epoch` advances.
        unsafe { shared.work.set(Some(std::mem::transmute::<&Work, &'static Work<'static>>(work))) };
        shared.left.0.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes who sleeps. A worker announces its sleep before it looks at `epoch` for the last time, so it
    /// either sees the new epoch or is seen here (both sequentially consistent).
    fn wake(&self) {
        sync::sequential();
        for (worker, asleep) in self.workers.iter().zip(&self.shared.asleep) {
            if asleep.0.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }

    fn wait(&self) {
        let done = || self.shared.left.0.load(Ordering::Acquire) == 0;
        if !spin(done) {
            // Shares are even, so this is short unless the machine has fewer free cores than threads;
            // then the worker needs this core.
            while !done() {
                thread::yield_now();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        self.wake();
        for worker in self.workers.drain(..) {
            worker.join().expect("workers catch the panics of their work");
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Shared {
    /// A worker's life.
    fn serve(&self, worker: usize) {
        WORKING.with(|it| it.set(true));
        let mut seen = 0;
        loop {
            self.await_launch(worker, seen);
            seen = seen.wrapping_add(1);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: `epoch` advanced, so the cell was written and stays as it is until `left` is zero.
            let work = unsafe { self.work.get() }.expect("a launch brings work");
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(worker + 1))) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
            }
            self.left.0.fetch_sub(1, Ordering::Release);
        }
    }

    fn await_launch(&self, worker: usize, seen: usize) {
        let launched = || self.epoch.0.load(Ordering::SeqCst) != seen;
        if spin(launched) || yielding(launched) {
            return;
        }
        let asleep = &self.asleep[worker].0;
        asleep.store(true, Ordering::SeqCst);
        sync::sequential();
        while !launched() {
            thread::park();
        }
        asleep.store(false, Ordering::Relaxed);
    }
}

/// Whether `ready` came true within `SPIN`.
#[cfg(not(loom))]
fn spin(ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..64 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return false;
        }
    }
}

/// As `spin`, within `AWAKE`, for one who lets others run meanwhile.
#[cfg(not(loom))]
fn yielding(ready: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < AWAKE {
        if ready() {
            return true;
        }
        thread::yield_now();
    }
    false
}

/// There is no time where all orders are tried: looking once is one of them.
#[cfg(loom)]
fn spin(ready: impl Fn() -> bool) -> bool {
    let _: (Duration, fn() -> Instant) = (SPIN, Instant::now);
    ready()
}

#[cfg(loom)]
fn yielding(_: impl Fn() -> bool) -> bool {
    let _: Duration = AWAKE;
    false
}

/// Thread `t`'s part of `units` equal units among `threads`: contiguous, in order, sizes differ by one at
/// most.
pub fn share(units: usize, threads: usize, t: usize) -> Range<usize> {
    let (each, more) = (units / threads, units % threads);
    let start = t * each + t.min(more);
    start..start + each + usize::from(t < more)
}

/// In every order of its threads' steps: `RUSTFLAGS="--cfg loom" cargo test -p kernfusion-runtime --lib pool`.
#[cfg(all(test, loom))]
mod orders {
    use super::*;

    /// What workers write, the caller reads after each launch, and no launch begins before the last one is over.
    fn launches(threads: usize, count: usize) {
        let mut model = loom::model::Builder::new();
        // More of them are not seen to matter, and take hours.
        model.preemption_bound = Some(3);
        model.check(move || {
            let pool = Pool::new(threads);
            let cells: Vec<_> = (0..threads).map(|_| sync::Cell::new(0_usize)).collect();
            let cells = Cells(&cells);
            for launch in 1..=count {
                pool.run(&|t| cells.set(t, launch));
                (0..threads).for_each(|t| assert_eq!(cells.get(t), launch));
            }
        });
    }

    struct Cells<'a>(&'a [sync::Cell<usize>]);

    // SAFETY: `loom` watches who reads and who writes, and fails if two do at once.
    unsafe impl Sync for Cells<'_> {}

    impl Cells<'_> {
        fn set(&self, t: usize, value: usize) {
            // SAFETY: watched.
            unsafe { self.0[t].set(value) };
        }

        fn get(&self, t: usize) -> usize {
            // SAFETY: watched.
            unsafe { self.0[t].get() }
        }
    }

    #[test]
    fn two_threads_launch_twice() {
        launches(2, 2);
    }

    #[test]
    fn three_threads_launch_once() {
        launches(3, 1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once_and_evenly() {
        for (units, threads) in [(0, 3), (1, 4), (7, 2), (100, 7), (64, 64), (usize::MAX, 5)] {
            let mut next = 0;
            for t in 0..threads {
                let part = share(units, threads, t);
                assert_eq!(part.start, next);
                assert!(part.len() == units / threads || part.len() == units / threads + 1);
                next = part.end;
            }
            assert_eq!(next, units);
        }
    }

    #[test]
    fn every_thread_runs_once_per_launch() {
        for threads in 1..5 {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            let counts: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for launch in 0..2000 {
                pool.run(&|t| {
                    counts[t].fetch_add(1, Ordering::Relaxed);
                });
                if launch % 500 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == launch + 1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_stays_usable() {
        let pool = Pool::new(3);
        for guilty in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|t| assert!(t != guilty, "thread {t} gives up"));
            }));
            let message = *result.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("thread {guilty} gives up"));
            let ran = AtomicUsize::new(0);
            pool.run(&|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.into_inner(), 3);
        }
    }

    #[test]
    fn callers_take_turns_and_nested_runs_stay_on_their_thread() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(&|_| {
                            pool.run(&|inner| {
                                sum.fetch_add(inner + 1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * 200 * 2 * 3);
    }

    #[test]
    #[ignore = "a measurement, printed by `--ignored --nocapture`"]
    fn launch_cost() {
        let pool = Pool::new(2);
        let start = Instant::now();
        for _ in 0..100_000 {
            pool.run(&|t| {
                std::hint::black_box(t);
            });
        }
        println!("{} ns per launch", start.elapsed().as_nanos() / 100_000);
    }
}
