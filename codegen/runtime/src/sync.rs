//! What threads are made of: the standard library's, or under `--cfg loom` that of the crate `loom`, which runs a test in every order in
//! which its threads may take turns.

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize},
    },
    thread,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize},
    },
    thread,
};

/// Stands between two sequentially consistent accesses of different places, which need nothing more. `loom` takes them for weaker ones, and
/// is told by a fence.
pub(crate) fn sequential() {
    #[cfg(loom)]
    loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Memory that one thread writes while no other one reads it.
#[derive(Debug)]
#[cfg(not(loom))]
pub(crate) struct Cell<T>(std::cell::UnsafeCell<T>);
/// As above, and watched.
#[derive(Debug)]
#[cfg(loom)]
pub(crate) struct Cell<T>(loom::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T: Copy> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        Cell(std::cell::UnsafeCell::new(value))
    }

    /// # Safety
    /// Nobody writes meanwhile.
    pub(crate) unsafe fn get(&self) -> T {
        // SAFETY: the caller's contract.
        unsafe { *self.0.get() }
    }

    /// # Safety
    /// Nobody reads or writes meanwhile.
    pub(crate) unsafe fn set(&self, value: T) {
        // SAFETY: the caller's contract.
        unsafe { *self.0.get() = value }
    }
}

#[cfg(loom)]
impl<T: Copy> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        Cell(loom::cell::UnsafeCell::new(value))
    }

    pub(crate) unsafe fn get(&self) -> T {
        // SAFETY: the caller's contract, which `loom` checks.
        self.0.with(|it| unsafe { *it })
    }

    pub(crate) unsafe fn set(&self, value: T) {
        // SAFETY: the caller's contract, which `loom` checks.
        self.0.with_mut(|it| unsafe { *it = value });
    }
}
