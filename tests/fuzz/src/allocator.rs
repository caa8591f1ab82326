//! Memory that is counted, so that a reader which takes more than its input justifies is found.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, counted.
pub struct Counted;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);

fn take(bytes: usize) {
    TAKEN.fetch_add(bytes, Relaxed);
    let held = HELD.fetch_add(bytes, Relaxed) + bytes;
    MOST.fetch_max(held, Relaxed);
}

// SAFETY: every call is the system allocator's, with the same arguments; counting touches atomics alone.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promised.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            take(layout.size());
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promised.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            take(layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller promised.
        let moved = unsafe { System.realloc(memory, layout, bytes) };
        if !moved.is_null() {
            take(bytes);
            HELD.fetch_sub(layout.size(), Relaxed);
        }
        moved
    }
}

/// What a piece of work has taken.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// The most bytes that it held at once, beside those that were held before it.
    pub most: usize,
    /// All bytes that it asked for, one after another: a measure of work that does not depend on the machine.
    pub taken: usize,
}

/// Runs something, and counts its memory. Other threads must be idle.
pub fn counted<R>(work: impl FnOnce() -> R) -> (R, Memory) {
    let (held, taken) = (HELD.load(Relaxed), TAKEN.load(Relaxed));
    MOST.store(held, Relaxed);
    let result = work();
    let most = MOST.load(Relaxed).saturating_sub(held);
    (result, Memory { most, taken: TAKEN.load(Relaxed).wrapping_sub(taken) })
}
