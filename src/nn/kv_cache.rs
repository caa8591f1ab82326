//! The key/value cache: what attention keeps of the part of a text that a model has read. A decoder reads a text chunk by chunk, a
//! prompt in a few parts and then one token after another, and keys and values of earlier parts are not computed again.

use super::AttentionMask;
use crate::trace::{Tensor, Trace};
use kernfusion_ir::DType;

/// The key/value cache of attention, as a layer sees it: where a part of a text begins, and how much of what was read before is
/// at hand.
///
/// Layers that read it declare caches, which are states: `[.., capacity, width]`, of which a run replaces the rows of its part.
#[derive(Debug, Clone)]
pub struct KvCache {
    /// `i32[]`: the position of the part's first token, which is the number of tokens read before. At most the capacity
    /// less the part's length.
    pub position: Tensor,
    /// Positions that the caches have room for.
    pub capacity: usize,
    /// The most positions that the part attends to, its own included. A run takes longer with more of them.
    pub visible: usize,
    /// `i32[batch]`: the position of each row's first token, where texts of several lengths end together; what stands before it is
    /// padding. None: all rows begin at 0.
    pub begins: Option<Tensor>,
}

impl KvCache {
    /// The positions of a part of `length` tokens in their texts, `i32[length]`, or `i32[batch, length]` where rows begin at
    /// several places; 0 of padding.
    #[track_caller]
    pub fn positions(&self, length: usize) -> Tensor {
        let positions = self.position.trace().arange(length, DType::I32) + &self.position;
        match &self.begins {
            Some(begins) => (positions - begins.unsqueeze(-1)).maximum(0),
            None => positions,
        }
    }

    /// Takes the rows `[.., length, width]` of a part into the cache `name` under the open module path, and returns the
    /// visible rows `[.., visible, width]`, those of the part among them. What lies behind the part is not yet known.
    #[track_caller]
    pub(super) fn with(&self, name: &str, part: &Tensor) -> Tensor {
        let trace = part.trace();
        let (mut shape, rows) = (part.shape(), part.rank() - 2);
        shape[rows] = self.capacity;
        // What products read is kept as they read it.
        let part = &part.cast(trace.stored_activations());
        let cache = trace.state(name, shape, part.dtype());
        let zero = trace.full([], 0.0, DType::I32);
        let starts: Vec<_> =
            (0..part.rank()).map(|axis| if axis == rows { &self.position } else { &zero }).collect();
        let next = cache.dynamic_update(part, &starts);
        trace.update(&cache, &next);
        next.slice(rows as isize, 0..self.visible).cast(DType::F32)
    }

    /// Which positions the queries of a part see: `bool[queries, visible]`, or `bool[batch, 1, queries, visible]` where rows begin
    /// at several places.
    #[track_caller]
    pub(super) fn mask(&self, mask: AttentionMask, queries: usize) -> Tensor {
        let seen = self.seen(mask, queries);
        let Some(begins) = &self.begins else { return seen };
        let (trace, begins) = (self.position.trace(), begins.reshape([-1, 1, 1, 1]));
        let is_text = trace.arange(self.visible, DType::I32).ge(&begins);
        // Nobody looks at what padding sees, but it must see something, or its values would be no numbers.
        let row = trace.arange(queries, DType::I32).unsqueeze(-1) + &self.position;
        seen.and(is_text.or(row.lt(&begins)))
    }

    #[track_caller]
    fn seen(&self, mask: AttentionMask, queries: usize) -> Tensor {
        let distance = self.position.trace().columns_less_rows(queries, self.visible) - &self.position;
        match mask {
            // What is known, which is all up to the part's end.
            AttentionMask::Full => self.known(queries),
            AttentionMask::Causal => distance.le(0),
            AttentionMask::Window(width) => {
                let width = i32::try_from(width).unwrap_or(i32::MAX);
                distance.le(0).and(distance.gt(-width))
            }
        }
    }

    #[track_caller]
    fn known(&self, queries: usize) -> Tensor {
        let trace: &Trace = self.position.trace();
        let column = trace.iota([queries, self.visible], 1, DType::I32);
        column.lt(&self.position + queries as f64)
    }
}
