//! Packing buffers of the threads, kept from call to call: fresh memory would cost page faults.

use super::macrokernel::Packed;
use crate::memory::{Arena, OutOfMemory};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One buffer per thread, which grows to what the largest product needs.
#[derive(Debug)]
pub struct Workspaces {
    threads: Vec<Mutex<Workspace>>,
    keeps: bool,
}

/// A thread's buffer, and which B is packed in it, if any.
#[derive(Debug, Default)]
struct Workspace {
    memory: Option<Arena>,
    packed: Option<Packed>,
}

impl Workspaces {
    /// Empty buffers for a pool of that many threads.
    pub fn new(threads: usize) -> Self {
        let threads = (0..threads).map(|_| Mutex::default()).collect();
        Workspaces { threads, keeps: false }
    }

    /// For one product that runs again and again with the same B: each thread packs its part of it once. To be told of a pool by
    /// [`forget`](Self::forget) first.
    pub fn keeping() -> Self {
        Workspaces { threads: vec![], keeps: true }
    }

    /// Says that B may have changed, and how many threads the pool has now.
    pub fn forget(&mut self, threads: usize) {
        self.threads.resize_with(threads, Mutex::default);
        self.threads.iter().for_each(|workspace| locked(workspace).packed = None);
    }

    /// Whether what is packed of B is used again by the next run.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    /// Grows the first `threads` buffers to `bytes` at least.
    pub(crate) fn reserve(&self, threads: usize, bytes: usize) -> Result<(), OutOfMemory> {
        assert!(threads <= self.threads.len(), "one workspace per thread");
        for workspace in &self.threads[..threads] {
            let mut workspace = locked(workspace);
            if workspace.memory.as_ref().is_none_or(|arena| arena.len() < bytes) {
                // The old one first, so that both need not fit.
                *workspace = Workspace::default();
                workspace.memory = Some(Arena::undefined(bytes)?);
            }
        }
        Ok(())
    }

    /// Works with thread `t`'s buffer, and with what it says of B.
    pub(super) fn packing<R>(&self, t: usize, work: impl FnOnce(&Arena, &mut Option<Packed>) -> R) -> R {
        let mut workspace = locked(&self.threads[t]);
        let Workspace { memory, packed } = &mut *workspace;
        // While it is packed, nothing is said of it: a hook that panicked leaves nothing behind that the next run would read.
        let mut known = packed.take().filter(|_| self.keeps);
        let result = work(memory.as_ref().expect("reserved before the threads started"), &mut known);
        *packed = known;
        result
    }

    /// Works with thread `t`'s buffer.
    pub(crate) fn with<R>(&self, t: usize, work: impl FnOnce(&Arena) -> R) -> R {
        self.packing(t, |memory, packed| {
            *packed = None;
            work(memory)
        })
    }
}

fn locked(workspace: &Mutex<Workspace>) -> MutexGuard<'_, Workspace> {
    workspace.lock().unwrap_or_else(PoisonError::into_inner)
}
