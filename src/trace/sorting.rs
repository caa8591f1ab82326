//! Sorting, the largest elements, running sums: made of comparisons, sums and products, so every back end has them.
//!
//! A row of few elements is sorted by counting: an element's place is the number of elements that come before it. Longer
//! rows go through a bitonic network (Batcher, "Sorting networks and their applications", 1968), log²n exchanges of which each
//! is elementwise. Both are stable: equal elements keep their order. NaN counts as the largest number, as in PyTorch.

use super::Tensor;
use kernfusion_ir::DType;

/// Rows of at most this many elements are sorted by counting.
const FEW: usize = 64;
/// Elements that one product sums up.
const BLOCK: usize = 128;

/// The order of sorted elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sorted {
    /// The smallest first.
    Ascending,
    /// The largest first.
    Descending,
}

impl Tensor {
    /// For each place of the sorted row, the index of its element, as `i32` of this shape; along an axis.
    #[track_caller]
    pub fn argsort(&self, axis: isize, order: Sorted) -> Tensor {
        self.along_rows(axis, |rows| rows.first_in_order(rows.dim(-1), order))
    }

    /// The elements in order, along an axis. Gradients go to where the elements came from.
    #[track_caller]
    pub fn sort(&self, axis: isize, order: Sorted) -> Tensor {
        self.along_rows(axis, |rows| rows.pick_in_rows(&rows.first_in_order(rows.dim(-1), order)))
    }

    /// The k largest elements along the last axis and their indices (`i32`), `[.., k]`, the largest first.
    #[track_caller]
    pub fn top_k(&self, k: usize) -> (Tensor, Tensor) {
        let extent = self.dim(-1);
        self.expect("top_k", |_| {
            (k > extent).then(|| format!("a row of {extent} has no {k} largest elements"))
        });
        let indices = self.first_in_order(k.min(extent), Sorted::Descending);
        (self.pick_in_rows(&indices), indices)
    }

    /// `result[.., j] = self[.., indices[.., j]]`, of `i32` indices with the same leading axes.
    #[track_caller]
    pub fn pick_in_rows(&self, indices: &Tensor) -> Tensor {
        let (own, shape) = (self.shape(), indices.shape());
        let fits = own.len() == shape.len() && own[..own.len() - 1] == shape[..shape.len() - 1];
        self.expect("pick_in_rows", |_| (!fits).then(|| format!("indices {shape:?} for rows of {own:?}")));
        if !fits || own.is_empty() {
            return self.clone();
        }
        let (extent, picked) = (own[own.len() - 1], shape[shape.len() - 1]);
        let rows: usize = own[..own.len() - 1].iter().product();
        let start = self.trace().iota([rows, picked], 0, DType::I32) * extent as f64;
        let places = indices.reshape([rows, picked]).maximum(0).minimum(extent as f64 - 1.0) + start;
        self.reshape([rows * extent]).gather(0, &places).reshape(shape)
    }

    /// The sums of all elements up to each one, along an axis: of `f32` products, so exact for integers below 2²⁴.
    #[track_caller]
    pub fn running_sum(&self, axis: isize) -> Tensor {
        self.along_rows(axis, |rows| {
            let shape = rows.shape();
            let (extent, count) = (rows.dim(-1), shape[..shape.len() - 1].iter().product());
            rows.reshape([count, extent]).sums_of_rows().reshape(shape)
        })
    }

    /// Running sums of `[rows, n]`.
    #[track_caller]
    fn sums_of_rows(&self) -> Tensor {
        let (rows, extent) = (self.dim(0), self.dim(1));
        let up_to = |n: usize| self.trace().columns_less_rows(n, n).ge(0).cast(self.dtype());
        if extent <= BLOCK {
            return self.matmul(&up_to(extent));
        }
        let blocks = extent.div_ceil(BLOCK);
        let padded = self.pad(&[(0, 0), (0, blocks * BLOCK - extent)], 0.0);
        let inside =
            padded.reshape([rows * blocks, BLOCK]).matmul(&up_to(BLOCK)).reshape([rows, blocks, BLOCK]);
        let totals = inside.index(2, BLOCK - 1);
        let before = totals.sums_of_rows() - &totals;
        (inside + before.unsqueeze(-1)).reshape([rows, blocks * BLOCK]).slice(1, 0..extent)
    }

    /// Works on an axis as if it were the last one.
    #[track_caller]
    fn along_rows(&self, axis: isize, work: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        match self.axis("sort", axis) {
            Some(axis) if axis + 1 == self.rank() => work(self),
            Some(_) => work(&self.transpose(axis, -1)).transpose(axis, -1),
            None => self.clone(),
        }
    }

    /// The indices of the first k elements of each sorted row.
    #[track_caller]
    fn first_in_order(&self, k: usize, order: Sorted) -> Tensor {
        let shape = [&self.shape()[..self.rank() - 1], &[k]].concat();
        let (extent, rows) = (self.dim(-1), shape[..shape.len() - 1].iter().product());
        let rows = self.reshape([rows, extent]);
        let indices = if extent <= FEW { rows.by_counting(k, order) } else { rows.by_exchanges(k, order) };
        indices.reshape(shape)
    }

    /// Of `[rows, n]`.
    #[track_caller]
    fn by_counting(&self, k: usize, order: Sorted) -> Tensor {
        let (rows, extent) = (self.dim(0), self.dim(1));
        let cube = [rows, extent, extent];
        let index = |axis| self.trace().iota(cube, axis, DType::I32);
        let (one, other) = (self.unsqueeze(2).broadcast_to(cube), self.unsqueeze(1).broadcast_to(cube));
        // Element 1 is looked at, element 2 compared with it.
        let before = comes_before(&other, &index(2), &one, &index(1), order);
        let place = before.cast(DType::I32).sum(&[2]);
        let held = place.class_mask(k);
        held.select(self.trace().iota([rows, extent, k], 1, DType::I32), 0).sum(&[1])
    }

    /// Of `[rows, n]`.
    #[track_caller]
    fn by_exchanges(&self, k: usize, order: Sorted) -> Tensor {
        let (rows, extent) = (self.dim(0), self.dim(1));
        let padded = extent.next_power_of_two();
        let mut keys = self.pad(&[(0, 0), (0, padded - extent)], 0.0);
        let mut indices = self.trace().iota([rows, padded], 1, DType::I32);
        let exchanges = (1..=padded.ilog2()).flat_map(|run| (0..run).rev().map(move |reach| (run, reach)));
        for (run, reach) in exchanges {
            // Runs of 2^run elements are sorted up and down in turns; elements 2^reach apart are compared.
            let (run, reach) = (1 << run, 1 << reach);
            let pairs = padded / run;
            let split = [rows, pairs.div_ceil(2), pairs.min(2), run / (2 * reach), 2, reach];
            let (k, i) = (keys.reshape(split), indices.reshape(split));
            let (low, high) = ((k.index(4, 0), i.index(4, 0)), (k.index(4, 1), i.index(4, 1)));
            let real = |i: &Tensor| i.lt(extent as f64);
            let by_key = comes_before(&high.0, &high.1, &low.0, &low.1, order);
            // What was padded comes last.
            let wrong =
                real(&high.1).and(real(&low.1)).select(&by_key, real(&high.1).and(real(&low.1).not()));
            let down = self.trace().iota(low.0.shape(), 2, DType::I32).eq(1);
            let swap = wrong.xor(&down);
            let exchanged = |low: &Tensor, high: &Tensor| {
                let pair = [swap.select(high, low), swap.select(low, high)];
                self.trace().stack(&[&pair[0], &pair[1]], 4).reshape([rows, padded])
            };
            (keys, indices) = (exchanged(&low.0, &high.0), exchanged(&low.1, &high.1));
        }
        indices.slice(1, 0..k)
    }
}

/// Whether element a comes before element b, elementwise; of equal ones that of the lower index.
#[track_caller]
fn comes_before(a: &Tensor, a_index: &Tensor, b: &Tensor, b_index: &Tensor, order: Sorted) -> Tensor {
    let larger = |a: &Tensor, b: &Tensor| a.gt(b).or(a.ne(a).and(b.eq(b)));
    let (first, second) = match order {
        Sorted::Ascending => (larger(b, a), larger(a, b)),
        Sorted::Descending => (larger(a, b), larger(b, a)),
    };
    first.or(second.not().and(a_index.lt(b_index)))
}
