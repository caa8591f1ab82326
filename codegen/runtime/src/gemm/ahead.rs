//! What a register tile prefetches while it multiplies.

use super::STREAMS;
use super::microkernel::prefetch;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Rows of memory that are about to be read or written: tiles prefetch them while they multiply.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    pub ptr: *const u8,
    /// Bytes from row to row.
    pub stride: usize,
    /// Bytes of an element of a row.
    pub size: usize,
}

impl Ahead {
    /// From another row and element on.
    pub(super) fn at(self, row: usize, column: usize) -> Self {
        let offset = row.wrapping_mul(self.stride).wrapping_add(column * self.size);
        Ahead { ptr: self.ptr.wrapping_add(offset), ..self }
    }
}

/// How much a tile prefetches of what is packed later: `bytes` of each of `rows`.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    pub rows: usize,
    pub bytes: usize,
}

/// What is prefetched with one tile: as many rows of each as the tile has.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    all: [Ahead; STREAMS],
    pub(super) count: usize,
}

impl Streams {
    /// The first [`STREAMS`] of these. The tile unit, which always prefetches one, takes `otherwise` if there is none.
    pub(super) fn new(ahead: impl IntoIterator<Item = Ahead>, otherwise: Ahead) -> Self {
        let mut streams = Streams { all: [otherwise; STREAMS], count: 0 };
        for it in ahead {
            streams.push(it);
        }
        streams
    }

    pub(super) fn push(&mut self, ahead: Ahead) {
        if let Some(free) = self.all.get_mut(self.count) {
            *free = ahead;
            self.count += 1;
        }
    }

    /// The first `count` of them.
    pub(super) fn truncate(&mut self, count: usize) {
        self.count = self.count.min(count);
    }

    /// So many elements further on.
    pub(super) fn advance(&mut self, columns: usize) {
        for ahead in &mut self.all {
            *ahead = ahead.at(0, columns);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == self.all.len()
    }

    pub(super) fn first(&self) -> Ahead {
        self.all[0]
    }

    pub(super) fn first_mut(&mut self) -> &mut Ahead {
        &mut self.all[0]
    }
}

/// The lines that a tile of R rows prefetches, one after the other.
pub(super) struct Fetched<'t, const R: usize> {
    writes: &'t Streams,
    reads: &'t Streams,
    /// The stream, of all that are written and then of all that are read, and lines of it that are left.
    stream: usize,
    left: usize,
    ptr: *const u8,
    stride: usize,
    /// Lines of a row: one or two.
    lines: usize,
}

impl<'t, const R: usize> Fetched<'t, R> {
    #[inline(always)]
    pub(super) fn new([writes, reads]: [&'t Streams; 2], lines: usize) -> Self {
        let mut new = Fetched { writes, reads, stream: 0, left: 0, ptr: std::ptr::null(), stride: 0, lines };
        new.start();
        new
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.writes.count + self.reads.count
    }

    #[inline(always)]
    pub(super) fn is_done(&self) -> bool {
        self.stream == self.count()
    }

    /// Words from one line to the next: one or two.
    #[inline(always)]
    pub(super) fn pace(&self, words: usize) -> usize {
        if 2 * self.count() * R * self.lines <= words { 2 } else { 1 }
    }

    /// Starts with a stream.
    #[inline(always)]
    fn start(&mut self) {
        let of = match self.stream.checked_sub(self.writes.count) {
            None => self.writes.all[self.stream],
            Some(number) => self.reads.all[number % STREAMS],
        };
        (self.ptr, self.stride, self.left) = (of.ptr, of.stride, R * self.lines);
    }

    /// Fetches the next line.
    #[inline(always)]
    pub(super) fn line(&mut self) {
        prefetch(self.ptr);
        let is_last_of_row = (self.left - 1).is_multiple_of(self.lines);
        let back = (self.lines - 1) * LINE;
        let step = if is_last_of_row { self.stride.wrapping_sub(back) } else { LINE };
        self.ptr = self.ptr.wrapping_add(step);
        self.left -= 1;
        if self.left == 0 {
            self.stream += 1;
            self.start();
        }
    }
}
