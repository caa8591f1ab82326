//! Matrices that are packed later: register tiles prefetch them meanwhile, a few lines with every step of k, so that they come from
//! memory while others are multiplied. More of them at once would occupy the miss buffers that the tile needs.

use super::microkernel::{Ahead, Reach};
use super::pack::Offsets;
use super::{Matrix, STREAMS};
use crate::cache;

/// What tiles of one product after the other prefetch.
#[derive(Debug, Default)]
pub(crate) struct Later {
    matrices: Vec<Rows>,
    /// How many tiles there will be, about, and how many there were.
    tiles: usize,
    seen: usize,
    /// Bytes of all matrices, and those that were prefetched.
    bytes: usize,
    done: usize,
}

/// A matrix that lies in rows.
#[derive(Debug)]
struct Rows {
    start: *const u8,
    /// Bytes from row to row, and of a row.
    stride: usize,
    bytes: usize,
    rows: usize,
    /// The row and the byte in it that come next.
    row: usize,
    at: usize,
}

impl Later {
    /// Spreads the prefetching of these matrices over about `tiles` tiles, if they take at most a quarter of the second-level cache. Those
    /// that do not lie in rows are left out.
    pub(crate) fn of(matrices: &[Matrix<'_>], tiles: usize) -> Self {
        let matrices: Vec<Rows> = matrices.iter().filter_map(Rows::of).collect();
        let bytes = matrices.iter().map(|matrix| matrix.rows * matrix.bytes).sum::<usize>();
        if bytes > cache::second_level() / 4 {
            return Later::default();
        }
        Later { matrices, tiles, seen: 0, bytes, done: 0 }
    }

    /// Puts what the next tile shall prefetch into its streams, if something is due.
    pub(super) fn stream(&mut self, reach: Reach, streams: &mut [Ahead; STREAMS]) {
        self.seen += 1;
        if self.done * self.tiles >= self.bytes * self.seen || reach.rows == 0 {
            return;
        }
        for stream in &mut streams[..reach.streams] {
            let Some(ahead) = self.piece(reach) else { return };
            *stream = ahead;
        }
    }

    /// The next piece of some rows.
    fn piece(&mut self, reach: Reach) -> Option<Ahead> {
        let matrix = self.matrices.last_mut()?;
        let ahead = Ahead { ptr: matrix.start, stride: matrix.stride }.at(matrix.row, matrix.at);
        self.done += reach.rows * reach.bytes;
        matrix.at += reach.bytes;
        if matrix.at >= matrix.bytes {
            (matrix.row, matrix.at) = (matrix.row + reach.rows, 0);
        }
        if matrix.row >= matrix.rows {
            self.matrices.pop();
        }
        Some(ahead)
    }
}

impl Rows {
    fn of(matrix: &Matrix<'_>) -> Option<Self> {
        let (outer, k) = (matrix.outer, matrix.k);
        let (along, across) = if k.offsets().unit() { (k, outer) } else { (outer, k) };
        let (true, Offsets::Strided(stride)) = (along.offsets().unit(), across.offsets()) else {
            return None;
        };
        let size = matrix.element.size();
        let stride = usize::try_from(stride).ok()? * size;
        Some(Rows {
            start: matrix.start,
            stride,
            bytes: along.len() * size,
            rows: across.len(),
            row: 0,
            at: 0,
        })
    }
}
