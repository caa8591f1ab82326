//! Chains: products, a region on rows of their entries, and products of the region's values, block of rows by block of
//! rows.
//!
//! ```text
//! for each matrix of the batch, for each block of its rows:
//!   S_p = A_p · B_pᵀ for each product                         into scratch, this block's rows
//!   the row program on S_p, row by row                        values R into scratch, in place of an S where possible
//!   along columns: O[rows] = R · W      across rows: O' += Rᵀ · W[rows]
//! ```
//!
//! The scratch of a block stays in a core's cache, and columns outside the band are never visited: by products as far as their tiles
//! can leave them out, by the row program as far as registers can. Below a diagonal, blocks are computed from the last one on: where
//! it has all columns, sums across rows start with it and need no zeros. Where the batch is large, every thread computes whole matrices
//! by itself, with `B` and `W` packed once for all blocks, and fetches the factors of its next matrix meanwhile; where it is small,
//! threads share each product. Which of the two, and the size of blocks, depend on shapes alone, so that results do not depend on the
//! number of threads.

mod run;

pub(crate) use run::Scratch;

use crate::gemm::single_thread::{ALIGN, packed_stride};
use crate::gemm::{Axis, Element, Operand, Precision};
use crate::isa::Isa;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Bytes of a row of scratch beyond the columns, so that rows fall into different cache sets.
const PAD: usize = 64;

/// A chain as a step of a program.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChainStep {
    /// Which kernels to run.
    pub isa: Isa,
    /// How many matrices there are.
    pub batch: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns of each.
    pub columns: usize,
    /// Which columns a row needs; all, if there is none.
    pub band: Option<Band>,
    /// What the entries are made of.
    pub products: Vec<ChainProduct>,
    /// What is made of the region's values.
    pub consumers: Vec<ChainConsumer>,
    /// A [`TileFn`](crate::gemm::TileFn) on whole rows, which finds scratch through the table.
    pub function: usize,
    /// The slot that points to the row program's scratch rows.
    pub scratch: usize,
    /// What holds a block's entries and values.
    pub blocks: Vec<Block>,
    /// Rows of a block.
    pub height: usize,
    /// Whether each matrix is one thread's.
    pub own: bool,
}

/// Scratch for the entries of a product, or for values, in a block of rows.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Block {
    /// The slot that points to it.
    pub slot: usize,
    /// `F32`, or for values what [products read](crate::gemm::packed_bf16).
    pub element: Element,
}

impl Block {
    /// The distance between rows of this many columns, in elements: that of packed rows where possible, so that consumers need not pack them.
    pub fn stride(&self, columns: usize) -> usize {
        let padded = || columns.next_multiple_of(ALIGN) + PAD / self.element.size();
        packed_stride(columns, self.element).unwrap_or_else(padded)
    }

    /// The bytes from row to row.
    pub fn row_bytes(&self, columns: usize) -> usize {
        self.stride(columns) * self.element.size()
    }
}

/// The columns around the diagonal that a row needs: from `row + lower` to `row + upper`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Band {
    /// `None`: from the first column on.
    pub lower: Option<i64>,
    /// `None`: to the last column.
    pub upper: Option<i64>,
}

impl Band {
    /// The columns, of `columns`, that some of these rows need.
    fn columns(&self, rows: Range<usize>, columns: usize) -> Range<usize> {
        let clamp = |column: i64| column.clamp(0, columns as i64) as usize;
        let first = self.lower.map_or(0, |lower| clamp(rows.start as i64 + lower));
        let end = self.upper.map_or(columns, |upper| clamp(rows.end as i64 + upper));
        first.min(end)..end
    }
}

/// A factor in memory: its slot, where in it, how.
#[derive(Debug, Serialize, Deserialize)]
pub struct Placed {
    /// The slot.
    pub slot: usize,
    /// In bytes.
    pub offset: i64,
    /// How its elements lie.
    pub operand: Operand,
}

/// A product whose entries go into a block.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChainProduct {
    /// What is multiplied.
    pub precision: Precision,
    /// Length of its sums.
    pub k: usize,
    /// The factor with the rows.
    pub a: Placed,
    /// The factor with the columns.
    pub b: Placed,
    /// Which of the blocks.
    pub block: usize,
}

/// A product of a block's values with a matrix.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChainConsumer {
    /// What is multiplied.
    pub precision: Precision,
    /// What it sums over.
    pub along: Along,
    /// Which of the blocks.
    pub block: usize,
    /// The matrix.
    pub with: Placed,
    /// Columns of the result.
    pub p: usize,
    /// Where results go.
    pub out: Destination,
    /// The slot of results that are not written as they are computed, where threads share matrices.
    pub aside: usize,
}

/// What a consumer sums over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Along {
    /// A row's columns.
    Columns,
    /// The rows.
    Rows,
}

/// Where a consumer's results go.
#[derive(Debug, Serialize, Deserialize)]
pub struct Destination {
    /// The slot.
    pub slot: usize,
    /// In bytes.
    pub offset: i64,
    /// What its memory holds.
    pub element: Element,
    /// One matrix per element.
    pub batch: Axis,
    /// Rows of the result: the kernel's rows or columns.
    pub outer: Axis,
    /// Columns of the result.
    pub p: Axis,
}

impl Destination {
    /// The stride of its rows, if results can be written as they are computed.
    fn direct(&self) -> Option<usize> {
        let is_unit = matches!(self.p, Axis::Strided { stride: 1, .. }) || self.p.len() == 1;
        match self.outer {
            Axis::Strided { stride, .. } if is_unit && self.element == Element::F32 => {
                usize::try_from(stride).ok().filter(|&stride| stride >= self.p.len())
            }
            _ => None,
        }
    }
}

impl ChainConsumer {
    /// Rows of results that are computed aside before they are stored; a block has `height` rows, the chain `columns`.
    pub fn rows_aside(&self, height: usize, columns: usize) -> usize {
        match (self.out.direct(), self.along) {
            (Some(_), _) => 0,
            (None, Along::Columns) => height,
            (None, Along::Rows) => columns,
        }
    }
}
