//! Packing buffers of the threads, kept from call to call: fresh memory would cost page faults.

use crate::memory::{Arena, OutOfMemory};
use std::sync::{Mutex, PoisonError};

/// One buffer per thread, which grows to what the largest product needs.
#[derive(Debug)]
pub struct Workspaces {
    threads: Vec<Mutex<Option<Arena>>>,
}

impl Workspaces {
    /// Empty buffers for a pool of that many threads.
    pub fn new(threads: usize) -> Self {
        Workspaces { threads: (0..threads).map(|_| Mutex::new(None)).collect() }
    }

    /// Grows the first `threads` buffers to `bytes` at least.
    pub(crate) fn reserve(&self, threads: usize, bytes: usize) -> Result<(), OutOfMemory> {
        assert!(threads <= self.threads.len(), "one workspace per thread");
        for buffer in &self.threads[..threads] {
            let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
            if buffer.as_ref().is_none_or(|arena| arena.len() < bytes) {
                // The old one first, so that both need not fit.
                *buffer = None;
                *buffer = Some(Arena::undefined(bytes)?);
            }
        }
        Ok(())
    }

    /// Works with thread `t`'s buffer.
    pub(crate) fn with<R>(&self, t: usize, work: impl FnOnce(&Arena) -> R) -> R {
        // A hook that panicked leaves nothing behind that the next run would read.
        let buffer = self.threads[t].lock().unwrap_or_else(PoisonError::into_inner);
        work(buffer.as_ref().expect("reserved before the threads started"))
    }
}
