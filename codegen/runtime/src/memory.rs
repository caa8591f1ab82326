//! Memory that kernels work in: one large arena per plan, and the plain blocks of eager mode.
//!
//! Fresh pages are what costs most beside a matrix product, so an arena asks for huge pages and is kept; a
//! block is what a library without a plan would get. Neither aborts when memory is short.

use crate::guard;
use std::alloc::{Layout, alloc, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The system refused memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system has no {bytes} bytes ({} MiB) of memory to give", bytes >> 20)]
pub struct OutOfMemory {
    /// How many bytes were asked for.
    pub bytes: usize,
}

/// Zeroed memory, aligned to a page at least (to a huge page from 2 MiB on), with huge pages asked for.
#[derive(Debug)]
pub struct Arena {
    start: NonNull<u8>,
    bytes: usize,
    mapping: Mapping,
}

// SAFETY: an arena only owns memory; code that writes through `as_ptr` answers for data races.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes` zeroed bytes. Pages become resident when first touched.
    ///
    /// # Errors
    /// The system refuses that much memory.
    pub fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        let arena = Self::undefined(bytes)?;
        if guard::side().is_some() {
            // SAFETY: the arena owns these bytes.
            unsafe { arena.as_ptr().write_bytes(0, bytes) };
        }
        Ok(arena)
    }

    /// As [`new`](Self::new), for what is written before it is read: in guarded memory it holds NaNs at first.
    ///
    /// # Errors
    /// The system refuses that much memory.
    pub fn undefined(bytes: usize) -> Result<Self, OutOfMemory> {
        let mapping = if guard::side().is_some() {
            Mapping::guarded(bytes, Allocation::ALIGNMENT)
        } else {
            Mapping::new(bytes)
        };
        let (mapping, start) = mapping.ok_or(OutOfMemory { bytes })?;
        Ok(Arena { start, bytes, mapping })
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Size in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the arena was asked to hold nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: made by `Mapping::new`, and dropped once.
        unsafe { self.mapping.release() };
    }
}

/// Where many values that live equally long are taken from: arenas, one value behind the other, so that values smaller than a huge
/// page lie in huge pages, too, and large ones to their last byte.
#[derive(Debug, Default)]
pub struct BumpAllocator {
    /// The arena that is being filled, and how much of it is taken.
    open: Option<(Arc<Arena>, usize)>,
}

impl BumpAllocator {
    /// Bytes of an arena: address space, which becomes memory where it is written.
    const ARENA: usize = 32 << 20;

    /// Zeroed memory of `bytes` bytes.
    ///
    /// # Errors
    /// The system refuses that much memory.
    pub fn take(&mut self, bytes: usize) -> Result<Allocation, OutOfMemory> {
        let room = |(arena, taken): &(Arc<Arena>, usize)| arena.len() - taken >= bytes;
        if bytes > Self::ARENA / 2 || guard::side().is_some() {
            return Ok(Allocation { arena: Arc::new(Arena::new(bytes)?), start: 0 });
        }
        let (arena, start) = match self.open.take().filter(room) {
            Some(open) => open,
            None => (Arc::new(Arena::new(Self::ARENA)?), 0),
        };
        self.open = Some((
            Arc::clone(&arena),
            (start + bytes).next_multiple_of(Allocation::ALIGNMENT).min(arena.len()),
        ));
        Ok(Allocation { arena, start })
    }
}

/// A part of an arena, which lives as long as any of its parts. Clones are handles of the same memory.
#[derive(Debug, Clone)]
pub struct Allocation {
    arena: Arc<Arena>,
    start: usize,
}

impl Allocation {
    /// Alignment of every allocation, in bytes: one cache line, one AVX-512 register.
    pub const ALIGNMENT: usize = 64;

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.arena.as_ptr().wrapping_add(self.start)
    }
}

/// An arena in which several executables run, one at a time. Clones are handles of the same memory.
#[derive(Debug, Clone)]
pub struct SharedArena(Arc<(Arena, Mutex<()>)>);

impl SharedArena {
    /// An arena of `bytes` bytes.
    ///
    /// # Errors
    /// The system refuses that much memory.
    pub fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        Ok(SharedArena(Arc::new((Arena::undefined(bytes)?, Mutex::new(())))))
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.0.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first byte; to be written only by the holder of the turn.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.0.as_ptr()
    }

    /// Waits until no other executable runs in the arena. A run that panicked left no broken memory.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.0.1.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What has to be given back to the system.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// The unused bytes in the pages of guarded memory: before the first byte, and after the last.
    around: [Range<usize>; 2],
}

/// Nothing around.
const NOTHING: [Range<usize>; 2] = [0..0, 0..0];

#[cfg(unix)]
impl Mapping {
    const HUGE_PAGE: usize = 2 << 20;

    fn new(bytes: usize) -> Option<(Self, NonNull<u8>)> {
        // Room to start at a huge page; the pages before and after are never touched.
        let slack = if bytes >= Self::HUGE_PAGE { Self::HUGE_PAGE } else { 0 };
        let length = bytes.max(1).checked_add(slack)?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh private mapping touches no memory in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = NonNull::new(base.cast::<u8>())?;
        let offset = if slack > 0 { base.align_offset(Self::HUGE_PAGE) } else { 0 };
        // SAFETY: `offset` is below `slack`, so `bytes` bytes follow it inside the mapping.
        let start = unsafe { base.add(offset) };
        #[cfg(target_os = "linux")]
        if slack > 0 {
            // SAFETY: pages inside the mapping. A refusal costs speed only, so its result does not matter.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Some((Mapping { base, bytes: length, around: NOTHING }, start))
    }

    /// Memory between two protected pages, against the one of the [side](guard::side) that was asked for.
    fn guarded(bytes: usize, alignment: usize) -> Option<(Self, NonNull<u8>)> {
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        let inside = bytes.max(1).checked_next_multiple_of(page)?;
        let length = inside.checked_add(2 * page)?;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh private mapping touches no memory in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = NonNull::new(base.cast::<u8>())?;
        let offset = match guard::side()? {
            guard::Side::Before => 0,
            guard::Side::Behind => inside - bytes.max(1).next_multiple_of(alignment),
        };
        let mapping = Mapping {
            base,
            bytes: length,
            around: [page..page + offset, page + offset + bytes..page + inside],
        };
        // SAFETY: these pages lie inside the mapping, which is ours.
        unsafe {
            let middle = base.add(page);
            if libc::mprotect(middle.as_ptr().cast(), inside, libc::PROT_READ | libc::PROT_WRITE) != 0 {
                libc::munmap(base.as_ptr().cast(), length);
                return None;
            }
            middle.write_bytes(guard::FILL, inside);
            Some((mapping, middle.add(offset)))
        }
    }

    /// Whether the bytes around guarded memory are still what they were.
    fn is_whole(&self) -> bool {
        // SAFETY: these ranges lie inside the pages that may be read.
        let byte = |at: usize| unsafe { self.base.add(at).read() };
        self.around.iter().flat_map(Range::clone).all(|at| byte(at) == guard::FILL)
    }

    unsafe fn release(&self) {
        let whole = self.is_whole();
        // SAFETY: exactly what `mmap` returned.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        assert!(whole || std::thread::panicking(), "something was written around guarded memory");
    }
}

#[cfg(not(unix))]
impl Mapping {
    const PAGE: usize = 4096;

    fn new(bytes: usize) -> Option<(Self, NonNull<u8>)> {
        let bytes = bytes.max(1);
        let layout = Layout::from_size_align(bytes, Self::PAGE).ok()?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some((Mapping { base, bytes, around: NOTHING }, base))
    }

    fn guarded(bytes: usize, _: usize) -> Option<(Self, NonNull<u8>)> {
        Self::new(bytes)
    }

    unsafe fn release(&self) {
        let layout = Layout::from_size_align(self.bytes, Self::PAGE).expect("this layout was allocated");
        // SAFETY: exactly what `alloc_zeroed` returned.
        unsafe { dealloc(self.base.as_ptr(), layout) };
    }
}

/// A plain fresh allocation, as eager mode makes one per result: uninitialised, 64-byte aligned.
#[derive(Debug)]
pub struct Block {
    start: NonNull<u8>,
    bytes: usize,
    /// What it lies in, if that is not the allocator's.
    guarded: Option<Mapping>,
}

// SAFETY: a block only owns memory; code that writes through `as_ptr` answers for data races.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Alignment of every block, in bytes: one cache line, one AVX-512 register.
    pub const ALIGNMENT: usize = 64;

    /// Allocates `bytes` bytes, which hold no defined values.
    ///
    /// # Errors
    /// The allocator refuses that much memory.
    pub fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        if guard::side().is_some() {
            return Self::guarded(bytes, Self::ALIGNMENT);
        }
        let layout = Self::layout(bytes).ok_or(OutOfMemory { bytes })?;
        // SAFETY: the layout's size is at least one.
        let start = NonNull::new(unsafe { alloc(layout) }).ok_or(OutOfMemory { bytes })?;
        Ok(Block { start, bytes, guarded: None })
    }

    /// As [`new`](Self::new) in [guarded](guard) memory, with a smaller alignment in bytes, so that the page behind it is
    /// closer.
    ///
    /// # Errors
    /// As `new`.
    pub fn guarded(bytes: usize, alignment: usize) -> Result<Self, OutOfMemory> {
        let (mapping, start) = Mapping::guarded(bytes, alignment).ok_or(OutOfMemory { bytes })?;
        Ok(Block { start, bytes, guarded: Some(mapping) })
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Size in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the block was asked to hold nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.max(1), Self::ALIGNMENT).ok()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(mapping) = &self.guarded {
            // SAFETY: made by `guarded`, and dropped once.
            return unsafe { mapping.release() };
        }
        let layout = Self::layout(self.bytes).expect("this layout was allocated");
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start.as_ptr(), layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_are_zeroed_aligned_and_writable_to_the_last_byte() {
        for bytes in [0, 1, 4096, 5000, (2 << 20) - 1, 2 << 20, (9 << 20) + 17] {
            let arena = Arena::new(bytes).unwrap();
            assert_eq!(arena.len(), bytes);
            assert_eq!(arena.is_empty(), bytes == 0);
            let alignment = if bytes >= 2 << 20 && cfg!(unix) { 2 << 20 } else { 4096 };
            assert_eq!(arena.as_ptr() as usize % alignment, 0);
            // SAFETY: the arena owns these bytes, which start as zeros.
            let slice = unsafe { std::slice::from_raw_parts_mut(arena.as_ptr(), bytes) };
            assert!(slice.iter().all(|&byte| byte == 0));
            slice.fill(7);
        }
    }

    #[test]
    fn allocations_are_zeroed_aligned_and_apart() {
        let mut allocator = BumpAllocator::default();
        let sizes = [1, 64, 0, 5000, 20 << 20, 17, (11 << 20) + 3, 16 << 20, 9, 16 << 20];
        let allocations: Vec<_> = sizes.iter().map(|&bytes| allocator.take(bytes).unwrap()).collect();
        drop(allocator);
        for (number, (allocation, &bytes)) in allocations.iter().zip(&sizes).enumerate() {
            assert_eq!(allocation.as_ptr() as usize % Allocation::ALIGNMENT, 0);
            // SAFETY: the allocation owns these bytes, and starts as zeros.
            let slice = unsafe { std::slice::from_raw_parts_mut(allocation.as_ptr(), bytes) };
            assert!(slice.iter().all(|&byte| byte == 0), "allocation {number}");
            slice.fill(number as u8 + 1);
        }
        for (number, (allocation, &bytes)) in allocations.iter().zip(&sizes).enumerate() {
            // SAFETY: as above.
            let slice = unsafe { std::slice::from_raw_parts(allocation.as_ptr(), bytes) };
            assert!(slice.iter().all(|&byte| byte == number as u8 + 1), "allocation {number}");
        }
        assert_eq!(BumpAllocator::default().take(1 << 60).unwrap_err(), OutOfMemory { bytes: 1 << 60 });
    }

    #[test]
    fn too_much_memory_is_an_error_that_says_how_much() {
        for bytes in [1 << 60, usize::MAX, usize::MAX - 4096] {
            assert_eq!(Arena::new(bytes).unwrap_err(), OutOfMemory { bytes });
            assert_eq!(Block::new(bytes).unwrap_err(), OutOfMemory { bytes });
        }
        let text = OutOfMemory { bytes: 1 << 60 }.to_string();
        assert!(text.contains("1152921504606846976") && text.contains("1099511627776 MiB"), "{text}");
    }

    #[test]
    fn blocks_are_aligned_and_writable() {
        for bytes in [0, 1, 63, 100_000] {
            let block = Block::new(bytes).unwrap();
            assert_eq!((block.len(), block.as_ptr() as usize % 64), (bytes, 0));
            // SAFETY: the block owns these bytes.
            unsafe { block.as_ptr().write_bytes(1, bytes) };
        }
    }
}
