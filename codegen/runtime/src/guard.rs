//! Guarded memory, for tests of generated code: every allocation lies against a protected page, before it or behind it,
//! and holds NaNs at first. So code that reaches outside ends the process where it does, and a value that is read
//! before it is written shows.
//!
//! ```text
//! Behind:  | no access | ÿÿÿÿÿÿÿÿÿÿ allocation | no access |
//! Before:  | no access | allocation ÿÿÿÿÿÿÿÿÿÿ | no access |
//! ```
//!
//! What is left of the allocation's own pages (ÿ), alignment included, is looked at when it is freed.

use std::cell::Cell;

/// Where the protected page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Before the first byte.
    Before,
    /// Behind the last byte; where the allocation's size is no multiple of its alignment, behind what that leaves.
    Behind,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Before => "before",
            Side::Behind => "behind",
        })
    }
}

/// The first content of guarded memory: a NaN of each float, −1 of each whole number.
pub(crate) const FILL: u8 = 0xff;

thread_local! {
    static SIDE: Cell<Option<Side>> = const { Cell::new(None) };
}

/// Does the work with guarded memory: what this thread allocates meanwhile for buffers, states and scratch, for as long as that lives.
/// Without effect where there is no `mmap`.
///
/// # Panics
/// When an allocation is freed around which something was written.
pub fn guarded<R>(side: Side, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Side>);
    impl Drop for Restore {
        fn drop(&mut self) {
            SIDE.set(self.0);
        }
    }
    let _restore = Restore(SIDE.replace(Some(side)));
    work()
}

/// Where allocations of this thread are guarded at the moment, if they are.
pub fn side() -> Option<Side> {
    SIDE.get().filter(|_| cfg!(unix))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::memory::{Arena, Block, BumpAllocator};
    use std::panic::catch_unwind;

    /// What a child process does with the byte at a place relative to a buffer; whether it lives.
    fn survives(side: Side, bytes: usize, place: isize) -> bool {
        guarded(side, || {
            let block = Block::new(bytes).unwrap();
            let at = block.as_ptr().wrapping_offset(place);
            // SAFETY: the child does nothing but read one byte and end.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    std::ptr::read_volatile(at);
                    libc::_exit(0);
                }
                let mut status = 0;
                libc::waitpid(child, &mut status, 0);
                libc::WIFEXITED(status)
            }
        })
    }

    #[test]
    fn pages_on_the_guarded_side_cannot_be_read() {
        for bytes in [64, 4096, 6400] {
            assert!(survives(Side::Before, bytes, 0) && survives(Side::Behind, bytes, bytes as isize - 1));
            assert!(!survives(Side::Before, bytes, -1), "{bytes}");
            assert!(!survives(Side::Behind, bytes, bytes as isize), "{bytes}");
        }
    }

    #[test]
    fn what_is_not_written_is_nan_and_arenas_are_zeroed() {
        for side in [Side::Before, Side::Behind] {
            guarded(side, || {
                let block = Block::new(40).unwrap();
                assert_eq!(block.as_ptr() as usize % Block::ALIGNMENT, 0);
                // SAFETY: the block owns these bytes.
                assert!(unsafe { block.as_ptr().cast::<f32>().add(9).read() }.is_nan());
                let (arena, mut allocator) = (Arena::new(5000).unwrap(), BumpAllocator::default());
                let allocation = allocator.take(100).unwrap();
                // SAFETY: both own these bytes.
                unsafe {
                    assert!(arena.as_ptr().add(4999).read() == 0 && allocation.as_ptr().add(99).read() == 0)
                };
            });
        }
    }

    #[test]
    fn what_is_written_around_an_allocation_is_seen_when_it_is_freed() {
        for place in [-1_isize, 40, 63] {
            let block = guarded(Side::Behind, || Block::new(40).unwrap());
            // SAFETY: the bytes around it, in the allocation's pages, are not in use.
            unsafe { block.as_ptr().offset(place).write(0) };
            assert!(catch_unwind(|| drop(block)).is_err(), "{place}");
        }
        drop(guarded(Side::Behind, || Block::new(40).unwrap()));
    }
}
