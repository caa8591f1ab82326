//! Work on all cores.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The results of a function of the numbers below `count`, in order; computed on all cores, or on as many as threads can be started.
pub(super) fn in_parallel<R: Send>(count: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let some = || {
        let mut found = vec![];
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return found;
            }
            found.push((at, work(at)));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, some).ok();
        let threads: Vec<_> = (1..cores.min(count)).map_while(start).collect();
        let mut all = some();
        let others = threads.into_iter().map(|thread| thread.join().expect("work does not panic"));
        others.for_each(|found| all.extend(found));
        all
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::in_parallel;

    #[test]
    fn results_are_in_order() {
        assert_eq!(in_parallel(100, |at| at * at), (0..100).map(|at| at * at).collect::<Vec<_>>());
        assert!(in_parallel(0, |at| at).is_empty());
    }
}
