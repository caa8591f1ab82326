//! Convolution and pooling in any number of dimensions: a window slides over positions. A convolution is one product with what the window sees
//! everywhere, a view that is never written to memory; pooling takes shifted views, one for each place in the window.
//!
//! What PyTorch calls convolution is meant, which is a cross-correlation: y[o] = Σ w[o, c, j] · x[c, stride·i + dilation·j −
//! padding] over channels c and places j.

use crate::init::Init;
use crate::trace::{Tensor, Trace};
use std::collections::BTreeMap;
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

    /// The input with padding, if the window fits on it. The mistake of one that does not is put down to `op`.
    #[track_caller]
    fn padded(&self, op: &'static str, x: &Tensor, fill: f64) -> Option<Tensor> {
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
        Some(if self.padding == [0; N] { x.clone() } else { x.pad(&around, fill) })
    }

    /// What it sees everywhere, as `[batch, channels, results.., places..]`.
    #[track_caller]
    fn seen(&self, op: &'static str, x: &Tensor) -> Option<Tensor> {
        Some(self.padded(op, x, 0.0)?.windows(&self.kernel, &self.stride, &self.dilation))
    }

    /// For each place in the window, row-major, what it sees from everywhere: `[batch, channels, results..]` each. Padding is filled with
    /// `fill`.
    #[track_caller]
    fn views(&self, op: &'static str, x: &Tensor, fill: f64) -> Option<Vec<Tensor>> {
        let padded = self.padded(op, x, fill)?;
        let mut phases = BTreeMap::new();
        Some((0..self.places()).map(|place| self.view(&padded, place, &mut phases)).collect())
    }

    /// Whether each position is seen from one place.
    fn is_tiling(&self, shape: &[usize]) -> bool {
        let whole = |axis: usize| self.kernel[axis] > 0 && shape[axis + 2].is_multiple_of(self.kernel[axis]);
        self.kernel == self.stride && self.padding == [0; N] && self.dilation == [1; N] && (0..N).all(whole)
    }

    /// As [`patches`] of its views, without taking them apart first, where it [tiles](Self::is_tiling); and the shape `[batch, channels,
    /// results..]`.
    #[track_caller]
    fn tiles(&self, x: &Tensor) -> (Tensor, Vec<usize>) {
        let shape = x.shape();
        let results: Vec<_> = (0..N).map(|axis| shape[axis + 2] / self.kernel[axis]).collect();
        let apart: Vec<_> = (0..N).flat_map(|axis| [results[axis], self.kernel[axis]]).collect();
        let result_axes = (0..N).map(|axis| 2 + 2 * axis);
        let place_axes = (0..N).map(|axis| 3 + 2 * axis);
        let order: Vec<_> = [0].into_iter().chain(result_axes).chain([1]).chain(place_axes).collect();
        let tiles = x.reshape([&shape[..2], &apart].concat()).permute(&order);
        let patches = tiles.reshape([shape[0], results.iter().product(), shape[1] * self.places()]);
        (patches, [&shape[..2], &results].concat())
    }

    /// The weight `[outputs, inputs / groups · places]` times what it sees, plus the bias.
    #[track_caller]
    fn over(
        &self,
        op: &'static str,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        groups: usize,
    ) -> Tensor {
        let y = match groups > 1 && weight.dim(1) == self.places() {
            true => self.views(op, x, 0.0).map(|views| depthwise(&views, weight, bias)),
            false => self.seen(op, x).map(|seen| product::<N>(&seen, weight, bias, groups)),
        };
        y.unwrap_or_else(|| x.clone())
    }

    /// What one place sees. Places a stride apart see parts of one phase: every `stride`-th position along each axis.
    #[track_caller]
    fn view(&self, padded: &Tensor, place: usize, phases: &mut BTreeMap<[usize; N], Tensor>) -> Tensor {
        let (shape, mut rest) = (padded.shape(), place);
        let (mut phase, mut further) = ([0; N], [0; N]);
        for axis in (0..N).rev() {
            let at = rest % self.kernel[axis] * self.dilation[axis];
            rest /= self.kernel[axis];
            (phase[axis], further[axis]) = (at % self.stride[axis], at / self.stride[axis]);
        }
        let of_phase = phases.entry(phase).or_insert_with(|| {
            let mut positions = padded.clone();
            for axis in 0..N {
                positions = positions.narrow(axis as isize + 2, phase[axis], shape[axis + 2] - phase[axis]);
            }
            if self.stride == [1; N] {
                return positions;
            }
            let every = positions.windows(&[1; N], &self.stride, &[1; N]);
            let seen = every.shape();
            every.reshape(&seen[..N + 2])
        });
        let mut view = of_phase.clone();
        for axis in 0..N {
            let results = (shape[axis + 2] - self.reach(axis)) / self.stride[axis] + 1;
            view = view.narrow(axis as isize + 2, further[axis], results);
        }
        view
    }
}

/// `step − 1` zeros between neighbours along an axis.
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
        x.convolution(&self.weight, Some(&self.bias), self.window, 1)
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
        x.transposed_convolution(&self.weight, Some(&self.bias), self.window, [0; N], 1)
    }
}

/// The weight `[outputs, inputs / groups · places]` times patches `[batch, results, inputs · places]`, plus the bias, as
/// `[batch, outputs, results..]`; `shape` is `[batch, inputs, results..]`.
#[track_caller]
fn of_patches(patches: &Tensor, shape: &[usize], weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let y = patches.linear(weight);
    let y = bias.map_or(y.clone(), |bias| y + bias);
    y.transpose(1, 2).reshape([&[shape[0], weight.dim(0)], &shape[2..]].concat())
}

/// The weight `[outputs, inputs / groups · places]` times what a window with as many places [sees](Window::seen), plus the bias.
#[track_caller]
fn product<const N: usize>(seen: &Tensor, weight: &Tensor, bias: Option<&Tensor>, groups: usize) -> Tensor {
    let shape = seen.shape();
    let (outputs, results) = (weight.dim(0), &shape[2..2 + N]);
    let order: Vec<_> = [0, 1].into_iter().chain(2 + N..2 + 2 * N).chain(2..2 + N).collect();
    let columns = seen.permute(&order).reshape([shape[0], groups, weight.dim(1), results.iter().product()]);
    let y = weight.reshape([groups, outputs / groups, weight.dim(1)]).matmul(&columns);
    let y = y.reshape([&[shape[0], outputs], results].concat());
    bias.map_or(y.clone(), |bias| y + bias.reshape([vec![outputs], vec![1; N]].concat()))
}

/// A convolution whose outputs each see one input alone: a sum over places, without a product of matrices. The weight is
/// `[outputs, places]`.
#[track_caller]
fn depthwise(views: &[Tensor], weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let [inputs, outputs] = [views[0].dim(1), weight.dim(0)];
    let channels = [vec![outputs], vec![1; views[0].rank() - 2]].concat();
    let mut terms: Vec<_> = bias.map(|bias| bias.reshape(&channels)).into_iter().collect();
    for (place, view) in views.iter().enumerate() {
        let mut view = view.clone();
        if outputs != inputs {
            let shape = view.shape();
            let wide = [&shape[..2], &[outputs / inputs], &shape[2..]].concat();
            view = view.unsqueeze(2).broadcast_to(wide).reshape([&[shape[0], outputs], &shape[2..]].concat());
        }
        terms.push(view * weight.index(1, place).reshape(&channels));
    }
    sum_by_halves(&terms)
}

/// The sum of its first half and of its second one, of at least one term: no addition waits for more than a few others, and errors are those of a few.
#[track_caller]
fn sum_by_halves(terms: &[Tensor]) -> Tensor {
    match terms {
        [term] => term.clone(),
        _ => {
            let (first, second) = terms.split_at(terms.len().div_ceil(2));
            sum_by_halves(first) + sum_by_halves(second)
        }
    }
}

impl Tensor {
    /// The convolution of `[batch, inputs, positions..]` with a weight `[outputs, inputs / groups, kernel..]`, plus a bias `[outputs]`, as
    /// `[batch, outputs, results..]`; results are as many as [`Convolution::forward`] says. Inputs and outputs are divided into groups,
    /// each of which sees its own alone.
    #[track_caller]
    pub fn convolution<const N: usize>(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        window: Window<N>,
        groups: usize,
    ) -> Tensor {
        let mut fits = false;
        self.expect_of([self, weight], "convolution", |[x, weight]| {
            fits = x.rank() == N + 2
                && weight.rank() == N + 2
                && weight.shape[2..] == window.kernel
                && groups > 0
                && weight.shape[0].is_multiple_of(groups)
                && x.shape[1] == weight.shape[1] * groups;
            let reason = || {
                format!(
                    "takes [batch, inputs], {N} axes and a weight [outputs, inputs / {groups}, {:?}]",
                    window.kernel
                )
            };
            (!fits).then(reason)
        });
        if !fits {
            return self.clone();
        }
        let flat = weight.reshape([weight.dim(0), weight.dim(1) * window.places()]);
        // A window of one place multiplies channels where they lie; of one position these are a row.
        let is_of_one = window.places() == 1 && self.shape()[2..].iter().product::<usize>() > 1;
        if groups == 1 && !is_of_one && window.is_tiling(&self.shape()) {
            let (patches, shape) = window.tiles(self);
            return of_patches(&patches, &shape, &flat, bias);
        }
        window.over("convolution", self, &flat, bias, groups)
    }

    /// The transpose of a convolution with the window: of `[batch, inputs, positions..]` with a weight `[inputs, outputs / groups, kernel..]`,
    /// plus a bias `[outputs]`, as `[batch, outputs, results..]`. Results are as many as [`TransposedConvolution::forward`] says, and `added`
    /// ones more at the end of each axis, fewer than the stride.
    #[track_caller]
    pub fn transposed_convolution<const N: usize>(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        window: Window<N>,
        added: [usize; N],
        groups: usize,
    ) -> Tensor {
        const OP: &str = "transposed convolution";
        // A window that moves by one over the stretched input and looks backward.
        let reach: [usize; N] = std::array::from_fn(|axis| window.reach(axis).saturating_sub(1));
        let mut fits = false;
        self.expect_of([self, weight], OP, |[x, weight]| {
            fits = x.rank() == N + 2
                && weight.rank() == N + 2
                && weight.shape[2..] == window.kernel
                && window.kernel.iter().chain(&window.stride).all(|&extent| extent > 0)
                && (0..N).all(|axis| window.padding[axis] <= reach[axis] && x.shape[axis + 2] > 0)
                && groups > 0
                && weight.shape[0].is_multiple_of(groups)
                && x.shape[1] == weight.shape[0];
            let reason = || {
                format!(
                    "takes [batch, inputs], {N} axes, a weight [inputs, outputs / {groups}, {:?}], and no more padding than {reach:?}",
                    window.kernel
                )
            };
            (!fits).then(reason)
        });
        if !fits {
            return self.clone();
        }
        let padding = std::array::from_fn(|axis| reach[axis] - window.padding[axis]);
        let backward = Window { stride: [1; N], padding, ..window };
        let mut stretched = self.clone();
        for axis in 0..N {
            stretched = apart(&stretched, axis + 2, window.stride[axis]);
        }
        if added != [0; N] {
            let around: Vec<_> = [(0, 0); 2].into_iter().chain(added.map(|count| (0, count))).collect();
            stretched = stretched.pad(&around, 0.0);
        }
        let [inputs, outputs, places] = [weight.dim(0) / groups, weight.dim(1), window.places()];
        let apart = weight.reshape([groups, inputs, outputs, places]).permute(&[0, 2, 1, 3]);
        let backward_places: Vec<_> = (0..places).rev().map(|place| apart.narrow(3, place, 1)).collect();
        let reversed = self.trace().concat(&backward_places.iter().collect::<Vec<_>>(), 3);
        let flat = reversed.reshape([groups * outputs, inputs * places]);
        backward.over(OP, &stretched, &flat, bias, groups)
    }

    /// The mean in a window that slides over the last N axes of `[batch, channels, positions..]`, as `[batch, channels, results..]`; padding
    /// is 0 and counts.
    #[track_caller]
    pub fn mean_pool<const N: usize>(&self, window: Window<N>) -> Tensor {
        let views = window.views("mean_pool", self, 0.0).unwrap_or_default();
        match views.is_empty() {
            true => self.clone(),
            false => sum_by_halves(&views) * (1.0 / window.places() as f64),
        }
    }

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
