//! Reductions, and what is written with them: moments, softmax, argmax.
//!
//! Axes may be counted from the end. The plain forms drop the reduced axes, the `…_keep` forms leave them with
//! extent 1, so that the result broadcasts against the operand.

use super::Tensor;
use kernfusion_ir::{DType, ReduceOp};

impl Tensor {
    /// The sum over some axes.
    #[track_caller]
    pub fn sum(&self, axes: &[isize]) -> Tensor {
        self.reduce("sum", ReduceOp::Sum, axes)
    }

    /// The sum over some axes, which stay with extent 1.
    #[track_caller]
    pub fn sum_keep(&self, axes: &[isize]) -> Tensor {
        self.sum(axes).kept(self, axes)
    }

    /// The sum of all elements, a scalar.
    #[track_caller]
    pub fn sum_all(&self) -> Tensor {
        self.sum(&self.all_axes())
    }

    /// The largest over some axes; NaN if one is. Equal ones share the gradient.
    #[track_caller]
    pub fn max(&self, axes: &[isize]) -> Tensor {
        self.reduce("max", ReduceOp::Max, axes)
    }

    /// The largest over some axes, which stay with extent 1.
    #[track_caller]
    pub fn max_keep(&self, axes: &[isize]) -> Tensor {
        self.max(axes).kept(self, axes)
    }

    /// The smallest over some axes; NaN if one is. Equal ones share the gradient.
    #[track_caller]
    pub fn min(&self, axes: &[isize]) -> Tensor {
        self.reduce("min", ReduceOp::Min, axes)
    }

    /// The smallest over some axes, which stay with extent 1.
    #[track_caller]
    pub fn min_keep(&self, axes: &[isize]) -> Tensor {
        self.min(axes).kept(self, axes)
    }

    /// The mean over some axes.
    #[track_caller]
    pub fn mean(&self, axes: &[isize]) -> Tensor {
        let sum = self.reduce("mean", ReduceOp::Sum, axes);
        // An empty reduction gives 0 · ∞ = NaN.
        let count = self.axes("mean", axes).map_or(1, |axes| {
            let shape = self.shape();
            axes.into_iter().map(|axis| shape[axis]).product::<usize>()
        });
        sum * (1.0 / count as f64)
    }

    /// The mean over some axes, which stay with extent 1.
    #[track_caller]
    pub fn mean_keep(&self, axes: &[isize]) -> Tensor {
        self.mean(axes).kept(self, axes)
    }

    /// The mean of all elements, a scalar.
    #[track_caller]
    pub fn mean_all(&self) -> Tensor {
        self.mean(&self.all_axes())
    }

    /// The biased variance over some axes: the mean squared distance from the mean (divided by n, not n − 1).
    #[track_caller]
    pub fn var(&self, axes: &[isize]) -> Tensor {
        let centred = self - self.mean(axes).spread(self, axes);
        centred.square().mean(axes)
    }

    /// The biased variance over some axes, which stay with extent 1.
    #[track_caller]
    pub fn var_keep(&self, axes: &[isize]) -> Tensor {
        self.var(axes).kept(self, axes)
    }

    /// The root of the biased variance.
    #[track_caller]
    pub fn std(&self, axes: &[isize]) -> Tensor {
        self.var(axes).sqrt()
    }

    /// The root of the biased variance over some axes, which stay with extent 1.
    #[track_caller]
    pub fn std_keep(&self, axes: &[isize]) -> Tensor {
        self.std(axes).kept(self, axes)
    }

    /// (x − mean) / √(var + epsilon) along some axes: the biased variance, epsilon inside the root.
    #[track_caller]
    pub fn normalize(&self, axes: &[isize], epsilon: f64) -> Tensor {
        let centred = self - self.mean(axes).spread(self, axes);
        let variance = centred.square().mean(axes);
        // One root and one division for each row.
        let scale = (variance + epsilon).sqrt().recip();
        &centred * scale.spread(self, axes)
    }

    /// eˣ / Σ eˣ along an axis.
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Tensor {
        let (shifted, _) = self.shifted(axis);
        let weights = shifted.exp();
        &weights / weights.sum(&[axis]).spread(self, &[axis])
    }

    /// ln softmax, without the rounding of taking both in turn.
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Tensor {
        let (shifted, _) = self.shifted(axis);
        let total = shifted.exp().sum(&[axis]).log();
        &shifted - total.spread(self, &[axis])
    }

    /// ln Σ eˣ over an axis.
    #[track_caller]
    pub fn logsumexp(&self, axis: isize) -> Tensor {
        let (shifted, largest) = self.shifted(axis);
        shifted.exp().sum(&[axis]).log() + largest
    }

    /// The index of the largest element along an axis, as `i32`: the first of equal ones, the first NaN if there is
    /// one.
    #[track_caller]
    pub fn argmax(&self, axis: isize) -> Tensor {
        let largest = self.max(&[axis]).spread(self, &[axis]);
        let hit = self.eq(&largest).or(self.ne(self));
        let (shape, extent) = (self.shape(), self.dim(axis));
        let place = self.axis("argmax", axis).unwrap_or(0);
        let coordinate = self.trace().iota(shape, place, DType::I32);
        hit.select(coordinate, extent as f64).min(&[axis])
    }

    /// The elements less the largest along an axis, and that largest. Any shift leaves softmax as it is; this one keeps
    /// eˣ from overflowing, and no gradient needs to flow through it.
    #[track_caller]
    fn shifted(&self, axis: isize) -> (Tensor, Tensor) {
        let largest = self.max(&[axis]).stopped();
        (self - largest.spread(self, &[axis]), largest)
    }

    #[track_caller]
    fn reduce(&self, name: &'static str, op: ReduceOp, axes: &[isize]) -> Tensor {
        let Some(axes) = self.axes(name, axes) else { return self.clone() };
        let result = self.trace().attempt(name, [self], |b, [x]| Ok(b.reduce(op, &axes, x)?));
        result.unwrap_or_else(|| self.clone())
    }

    /// Puts the axes back that a reduction of `from` dropped, with extent 1.
    #[track_caller]
    fn kept(&self, from: &Tensor, axes: &[isize]) -> Tensor {
        let mut shape = from.shape();
        from.axes("reshape", axes).into_iter().flatten().for_each(|axis| shape[axis] = 1);
        self.reshape(shape)
    }

    fn all_axes(&self) -> Vec<isize> {
        (0..self.rank() as isize).collect()
    }
}
