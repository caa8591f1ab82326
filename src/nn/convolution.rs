//! Convolution and pooling in any number of dimensions: a window slides over positions. Both are made of shifted views of
//! the input, one for each place in the window; a convolution is then one product with all of them.
//!
//! What PyTorch calls convolution is meant, which is a cross-correlation: y[o] = Σ w[o, c, j] · x[c, stride·i + dilation·j −
//! padding] over channels c and places j.

use crate::init::Init;
use crate::trace::{Tensor, Trace};
use std::sync::Arc;

/// A window that slides over N axes of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window<const N: usize> {
    /// Its places along each axis.
    pub kernel: [usize; N],
    /// How far it moves from one result to the next.
    pub stride: [usize; N],
    /// Positions added on each side.
    pub padding: [usize; N],
    /// The distance between neighbouring places.
    pub dilation: [usize; N],
}

impl<const N: usize> Window<N> {
    /// A window that moves by one, without padding or gaps.
    pub fn new(kernel: [usize; N]) -> Self {
        Window { kernel, stride: [1; N], padding: [0; N], dilation: [1; N] }
    }

    /// The number of places.
    fn places(&self) -> usize {
        self.kernel.iter().product()
    }

    /// From its first place to its last one along an axis.
    fn reach(&self, axis: usize) -> usize {
        self.dilation[axis] * self.kernel[axis].saturating_sub(1) + 1
    }

    /// For each place in the window, row-major, what it sees from everywhere: `[batch, channels, results..]` each. Padding
    /// is filled with `fill`. The mistake of a window that does not fit is put down to `op`.
    #[track_caller]
    fn views(&self, op: &'static str, x: &Tensor, fill: f64) -> Option<Vec<Tensor>> {
        let shape = x.shape();
        let positive = |extents: [usize; N]| extents.iter().all(|&extent| extent > 0);
        let fits = shape.len() == N + 2
            && [self.kernel, self.stride, self.dilation].into_iter().all(positive)
            && (0..N).all(|axis| shape[axis + 2] + 2 * self.padding[axis] >= self.reach(axis));
        if !fits {
            x.expect(op, |_| Some(format!("no place for {self:?} on [batch, channels] and {N} axes")));
            return None;
        }
        let around: Vec<_> = [(0, 0); 2].into_iter().chain(self.padding.map(|p| (p, p))).collect();
        let padded = if self.padding == [0; N] { x.clone() } else { x.pad(&around, fill) };
        let mut views = Vec::with_capacity(self.places());
        for place in 0..self.places() {
            views.push(self.view(&padded, place));
        }
        Some(views)
    }

    /// What one place sees.
    #[track_caller]
    fn view(&self, padded: &Tensor, place: usize) -> Tensor {
        let (mut view, mut rest) = (padded.clone(), place);
        for axis in (0..N).rev() {
            let (at, stride) = (rest % self.kernel[axis] * self.dilation[axis], self.stride[axis]);
            rest /= self.kernel[axis];
            let results = (padded.shape()[axis + 2] - self.reach(axis)) / stride + 1;
            view = every(&view.narrow(axis as isize + 2, at, (results - 1) * stride + 1), axis + 2, stride);
        }
        view
    }
}

/// The indices 0, step, 2·step, … of an axis whose last index is one of them.
#[track_caller]
fn every(x: &Tensor, axis: usize, step: usize) -> Tensor {
    if step == 1 {
        return x.clone();
    }
    let mut shape = x.shape();
    let mut around = vec![(0, 0); shape.len()];
    around[axis].1 = step - 1;
    shape[axis] = shape[axis].div_ceil(step);
    shape.insert(axis + 1, step);
    x.pad(&around, 0.0).reshape(shape).index(axis as isize + 1, 0)
}

/// The inverse of [`every`]: `step − 1` zeros between neighbours along an axis.
#[track_caller]
fn apart(x: &Tensor, axis: usize, step: usize) -> Tensor {
    if step == 1 {
        return x.clone();
    }
    let mut shape = x.shape();
    let mut around = vec![(0, 0); shape.len() + 1];
    around[axis + 1].1 = step - 1;
    let spread = x.unsqueeze(axis as isize + 1).pad(&around, 0.0);
    shape[axis] *= step;
    let whole = shape[axis];
    spread.reshape(shape).slice(axis as isize, 0..whole + 1 - step)
}

/// A convolution over N axes, N = 1 for sequences, 2 for images.
pub struct Convolution<const N: usize> {
    path: Arc<str>,
    window: Window<N>,
    /// `[outputs, inputs, kernel..]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Tensor,
}

impl<const N: usize> Convolution<N> {
    /// Declares `name.weight` and `name.bias`; the bias starts from zero.
    #[track_caller]
    pub fn new(
        trace: &Trace,
        name: &str,
        [inputs, outputs]: [usize; 2],
        window: Window<N>,
        init: Init,
    ) -> Self {
        let _scope = trace.scope(name);
        let shape = [&[outputs, inputs], window.kernel.as_slice()].concat();
        let weight = trace.parameter("weight", shape, init);
        Convolution {
            path: trace.path(),
            window,
            weight,
            bias: trace.parameter("bias", [outputs], Init::Zeros),
        }
    }

    /// `[batch, inputs, positions..]` to `[batch, outputs, results..]`, with
    /// results = ⌊(positions + 2·padding − dilation·(kernel − 1) − 1) / stride⌋ + 1 along each axis.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        match self.window.views("convolution", x, 0.0) {
            Some(views) => product(&views, &self.weight.reshape([self.bias.dim(0) as isize, -1]), &self.bias),
            None => x.clone(),
        }
    }
}

/// The transpose of a convolution: each position adds its window to the result, so that results are `stride` times as
/// many as positions.
pub struct TransposedConvolution<const N: usize> {
    path: Arc<str>,
    window: Window<N>,
    /// `[inputs, outputs, kernel..]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Tensor,
}

impl<const N: usize> TransposedConvolution<N> {
    /// Declares `name.weight` and `name.bias`; the bias starts from zero.
    #[track_caller]
    pub fn new(
        trace: &Trace,
        name: &str,
        [inputs, outputs]: [usize; 2],
        window: Window<N>,
        init: Init,
    ) -> Self {
        let _scope = trace.scope(name);
        let shape = [&[inputs, outputs], window.kernel.as_slice()].concat();
        let weight = trace.parameter("weight", shape, init);
        let bias = trace.parameter("bias", [outputs], Init::Zeros);
        TransposedConvolution { path: trace.path(), window, weight, bias }
    }

    /// `[batch, inputs, positions..]` to `[batch, outputs, results..]`, with
    /// results = (positions − 1)·stride − 2·padding + dilation·(kernel − 1) + 1 along each axis.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        // A window that moves by one over the stretched input and looks backward.
        let reach: [usize; N] = std::array::from_fn(|axis| self.window.reach(axis) - 1);
        if x.rank() != N + 2 || (0..N).any(|axis| self.window.padding[axis] > reach[axis]) {
            let reason = format!("takes [batch, channels], {N} axes, and no more padding than {reach:?}");
            x.expect("transposed convolution", |_| Some(reason));
            return x.clone();
        }
        let padding = std::array::from_fn(|axis| reach[axis] - self.window.padding[axis]);
        let backward = Window { stride: [1; N], padding, ..self.window };
        let mut stretched = x.clone();
        for axis in 0..N {
            stretched = apart(&stretched, axis + 2, self.window.stride[axis]);
        }
        let Some(mut views) = backward.views("transposed convolution", &stretched, 0.0) else {
            return x.clone();
        };
        views.reverse();
        let [inputs, outputs] = [self.weight.dim(0), self.bias.dim(0)];
        let weight = self.weight.reshape([inputs, outputs, self.window.places()]).permute(&[1, 0, 2]);
        product(&views, &weight.reshape([outputs as isize, -1]), &self.bias)
    }
}

/// The weight `[outputs, inputs · places]` times what the places see, plus the bias.
#[track_caller]
fn product(views: &[Tensor], weight: &Tensor, bias: &Tensor) -> Tensor {
    let trace = weight.trace();
    let [batch, inputs] = [views[0].dim(0), views[0].dim(1)];
    let results = views[0].shape()[2..].to_vec();
    // [batch, results, inputs, places]
    let patches = trace.stack(&views.iter().collect::<Vec<_>>(), 2);
    let patches = patches.reshape([batch as isize, (inputs * views.len()) as isize, -1]).transpose(1, 2);
    let y = patches.linear(weight) + bias;
    y.transpose(1, 2).reshape([&[batch, bias.dim(0)], results.as_slice()].concat())
}

impl Tensor {
    /// The largest in a window that slides over the last N axes of `[batch, channels, positions..]`, as
    /// `[batch, channels, results..]`; padding is −∞. Equal ones share the gradient.
    #[track_caller]
    pub fn max_pool<const N: usize>(&self, window: Window<N>) -> Tensor {
        let views = window.views("max_pool", self, f64::NEG_INFINITY).unwrap_or_default();
        let mut largest: Option<Tensor> = None;
        for view in views {
            largest = Some(match largest {
                None => view,
                Some(largest) => view.maximum(largest),
            });
        }
        largest.unwrap_or_else(|| self.clone())
    }
}
