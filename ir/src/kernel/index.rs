//! Index maps: affine functions of the kernel's coordinates, with optional indirection.

use super::Scalar;
use serde::Serialize;

/// `offset + Σ strides[a]·coordinate[a] + Σ clamp(value, 0, limit − 1)·stride`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
pub struct Index {
    /// The constant part.
    pub offset: i64,
    /// One factor for each axis of the domain (for an operand of a product: and of k).
    pub strides: Vec<i64>,
    /// Terms read at run time: gathered rows, dynamic starts.
    pub indirect: Vec<Indirect>,
}

/// A term of an index map that is itself a value of the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Indirect {
    /// An `i32` or `u32` value.
    pub value: Scalar,
    /// The value is clamped to `0..limit`, so that memory is safe whatever the data.
    pub limit: usize,
    /// The factor.
    pub stride: i64,
}

/// A condition `0 ≤ coordinate < extent`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Bound {
    /// What must lie inside.
    pub coordinate: Index,
    /// The upper limit, exclusive.
    pub extent: usize,
}

impl Index {
    /// The same number at every point of a domain of `rank` axes.
    pub fn constant(rank: usize, offset: i64) -> Self {
        Index { offset, strides: vec![0; rank], indirect: vec![] }
    }

    /// The coordinate of one axis.
    pub fn axis(rank: usize, axis: usize) -> Self {
        let mut index = Index::constant(rank, 0);
        index.strides[axis] = 1;
        index
    }

    /// A run-time value, clamped to `0..limit`.
    pub fn indirect(rank: usize, value: Scalar, limit: usize) -> Self {
        Index { indirect: vec![Indirect { value, limit, stride: 1 }], ..Index::constant(rank, 0) }
    }

    /// `self + other·factor`.
    pub fn plus(mut self, other: &Index, factor: i64) -> Self {
        self.offset += other.offset * factor;
        for (mine, theirs) in self.strides.iter_mut().zip(&other.strides) {
            *mine += theirs * factor;
        }
        for term in &other.indirect {
            let same = |mine: &&mut Indirect| mine.value == term.value && mine.limit == term.limit;
            match self.indirect.iter_mut().find(same) {
                Some(mine) => mine.stride += term.stride * factor,
                None => self.indirect.push(Indirect { stride: term.stride * factor, ..*term }),
            }
        }
        self.indirect.retain(|term| term.stride != 0);
        self
    }

    /// `self + offset`.
    pub fn shifted(mut self, offset: i64) -> Self {
        self.offset += offset;
        self
    }

    /// The row-major offset of the element at `at` in a dense tensor of `shape`.
    pub fn linear(rank: usize, at: &[Index], shape: &[usize]) -> Self {
        let strides = crate::strides(shape);
        let zero = Index::constant(rank, 0);
        at.iter().zip(strides).fold(zero, |sum, (index, stride)| sum.plus(index, stride as i64))
    }

    /// The smallest and largest values over a domain of these extents. Indirect terms count with their limits.
    pub fn range(&self, axes: &[usize]) -> (i64, i64) {
        let strided = self.strides.iter().zip(axes).map(|(&stride, &extent)| (stride, extent));
        let indirect = self.indirect.iter().map(|term| (term.stride, term.limit));
        strided.chain(indirect).fold((self.offset, self.offset), |(low, high), (stride, extent)| {
            let reach = stride * (extent as i64 - 1).max(0);
            (low + reach.min(0), high + reach.max(0))
        })
    }

    /// Whether the index has a stride along one of these axes. What is looked up for it may vary there, too: see
    /// [`Region::varies`](super::Region::varies).
    pub fn varies(&self, axes: std::ops::Range<usize>) -> bool {
        self.strides[axes].iter().any(|&stride| stride != 0)
    }

    /// Whether distinct points of a domain of these extents have distinct values that fill `0..elements` exactly.
    pub fn fills(&self, axes: &[usize], elements: usize) -> bool {
        if elements == 0 {
            // Strides of an empty tensor say nothing: there is no point that could be at a wrong place.
            return axes.contains(&0);
        }
        let mut terms: Vec<_> = self
            .strides
            .iter()
            .zip(axes)
            .filter(|(_, extent)| **extent != 1)
            .map(|(&s, &e)| (s, e))
            .collect();
        terms.sort();
        let mut next = 1;
        let dense = terms.into_iter().all(|(stride, extent)| {
            let fits = stride == next;
            next *= extent as i64;
            fits
        });
        dense && next == elements as i64 && self.offset == 0 && self.indirect.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permuted_dense_index_fills_and_a_broadcast_or_a_part_does_not() {
        let index = |strides: &[i64]| Index { offset: 0, strides: strides.to_vec(), indirect: vec![] };
        assert!(index(&[1, 12, 3]).fills(&[3, 2, 4], 24));
        assert!(!index(&[0, 1]).fills(&[3, 4], 12));
        assert!(!index(&[4, 2]).fills(&[3, 2], 6));
        assert!(index(&[5]).fills(&[1], 1));
        assert!(!index(&[1]).fills(&[1], 2));
        assert!(!index(&[12, 1]).fills(&[3, 12], 48));
        assert!(index(&[0, 1]).fills(&[3, 0], 0));
        assert!(!index(&[0, 1]).fills(&[3, 2], 0));
    }

    #[test]
    fn ranges_cover_negative_strides_and_indirection() {
        let index = Index::axis(2, 0).plus(&Index::axis(2, 1), -3).shifted(2);
        assert_eq!(index.range(&[5, 4]), (2 - 9, 2 + 4));
        assert_eq!(Index::indirect(2, Scalar(0), 7).plus(&index, 1).range(&[5, 4]), (-7, 12));
    }
}
