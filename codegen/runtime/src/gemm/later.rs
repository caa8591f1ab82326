//! What is packed later: register tiles prefetch it meanwhile, a few lines with every step of k, so that it comes from
//! memory while something else is multiplied. More of it at once would occupy the miss buffers that the tile needs.

use super::Matrix;
use super::ahead::{Ahead, Reach};
use super::pack::Offsets;
use crate::cache;

/// What tiles of one product after the other prefetch.
#[derive(Debug, Default)]
pub(crate) struct Later<'a> {
    matrices: Vec<Lines<'a>>,
    /// How many tiles there will be, about, and how many there were.
    tiles: usize,
    seen: usize,
    /// Bytes of all matrices, and those that were prefetched.
    bytes: usize,
    done: usize,
}

/// A matrix that lies in lines.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    start: *const u8,
    /// Where lines start, in elements of `size` bytes.
    offsets: Offsets<'a>,
    size: usize,
    /// How many lines there are, and bytes of each.
    count: usize,
    bytes: usize,
    /// The line and the byte in it that come next.
    line: usize,
    at: usize,
}

impl<'a> Later<'a> {
    /// Spreads the prefetching of these matrices over about `tiles` tiles, if they take at most a quarter of the second-level cache. Those
    /// that do not lie in lines are left out.
    pub(crate) fn of(matrices: &[Matrix<'a>], tiles: usize) -> Self {
        let all = Later::lines(matrices.iter().filter_map(Lines::of).collect(), tiles);
        if all.bytes > cache::second_level() / 4 { Later::default() } else { all }
    }

    /// Of matrices that lie in lines.
    pub(super) fn lines(matrices: Vec<Lines<'a>>, tiles: usize) -> Self {
        let bytes = matrices.iter().map(|matrix| matrix.count * matrix.bytes).sum::<usize>();
        Later { matrices, tiles, seen: 0, bytes, done: 0 }
    }

    /// Another tile multiplies.
    pub(super) fn next_tile(&mut self) {
        self.seen += 1;
    }

    /// Whether this tile shall prefetch something.
    pub(super) fn is_due(&self) -> bool {
        self.done * self.tiles < self.bytes * self.seen
    }

    /// A piece that this tile shall prefetch, if one is due.
    #[inline]
    pub(super) fn piece(&mut self, reach: Reach) -> Option<Ahead> {
        if !self.is_due() || reach.rows == 0 {
            return None;
        }
        let matrix = self.matrices.last_mut()?;
        let piece = matrix.piece(reach);
        self.done += reach.rows * reach.bytes;
        if matrix.line >= matrix.count {
            self.matrices.pop();
        }
        Some(piece)
    }
}

impl<'a> Lines<'a> {
    /// `count` lines, each `bytes` long; their offsets are multiples of `size` bytes.
    pub(super) fn new(
        start: *const u8,
        offsets: Offsets<'a>,
        size: usize,
        (count, bytes): (usize, usize),
    ) -> Self {
        Lines { start, offsets, size, count, bytes, line: 0, at: 0 }
    }

    fn of(matrix: &Matrix<'a>) -> Option<Self> {
        let (outer, k) = (matrix.outer, matrix.k);
        let (along, across) = if k.offsets().unit() { (k, outer) } else { (outer, k) };
        let lies_in_lines = along.offsets().unit() && matches!(across.offsets(), Offsets::Strided(_));
        let size = (across.len(), matrix.element.bytes(along.len()));
        lies_in_lines.then(|| Lines::new(matrix.start, across.offsets(), matrix.element.size(), size))
    }

    /// The next piece: the same part of several lines if these are equally far apart, else a longer part of one line.
    #[inline]
    fn piece(&mut self, Reach { rows, bytes }: Reach) -> Ahead {
        let offset = self.offsets.at(self.line).wrapping_mul(self.size as isize);
        let ptr = self.start.wrapping_offset(offset).wrapping_add(self.at);
        let (stride, lines, parts) = match self.offsets {
            Offsets::Strided(stride) => ((stride as usize).wrapping_mul(self.size), rows, 1),
            Offsets::Table(_) => (bytes, 1, rows),
        };
        self.at += parts * bytes;
        if self.at >= self.bytes {
            (self.line, self.at) = (self.line + lines, 0);
        }
        Ahead { ptr, stride, size: self.size }
    }
}
