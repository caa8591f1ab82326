//! Convolutions three rows high, four rows of the result at a time, with half of the multiplications.
//!
//! ```text
//! y[4i + p] = Σₜ w[t] · x[4i + p + t]   →   V[ξ] = Σᵣ B[ξ, r] · x[4i + r]     six of six rows of x
//! p = 0 … 3, t = 0 … 2                      U[ξ] = Σₜ G[ξ, t] · w[t]          six of three rows of w
//! 12 products of rows                       M[ξ] = U[ξ] · V[ξ]                6 products of rows
//!                                           y[4i + p] = Σ_ξ A[p, ξ] · M[ξ]
//! ```
//!
//! A product of rows here is one of matrices: over channels, and over places of the window along the width. This is F(4, 3) of Lavin and Gray, "Fast
//! algorithms for convolutional neural networks", 2016, after Winograd, at the points 0, 1, −1, 1/2, −2 and ∞, which Barabasz and others, "Error analysis and
//! improving the accuracy of Winograd convolution for deep neural networks", 2020, found the best six: in `f32` the error is about three times that of the sum itself.
//! It is done along the height alone: `V` and `M` have one and a half times the elements of the image and of the result there, where both dimensions would
//! take two and a quarter for a quarter of the multiplications, and loops run along the width, as everything lies.
//!
//! The gradient by the image is a convolution of this kind. That by the weights goes back through the same steps: `dM = Aᵀ dy`, `dU = dM · V`, `dw = Gᵀ dU`.
//!
//! A number that is not finite shows in all of four rows.

mod convolution;

use crate::fuse::cost;
use crate::{Rebuild, parameters, window_sums};
use convolution::{Convolution, Form, Image};
use kernfusion_ir::{
    Builder, Compare, DType, DotGeneral, Gather, Graph, Iota, Result, TensorType, ValueId, Windows,
};
use std::collections::{BTreeMap, BTreeSet};

/// Rows of a result that are computed together.
const ROWS: usize = 4;
/// Rows of a window.
const TAPS: usize = 3;
/// Rows of an image that these see, and products that are made of them.
const PRODUCTS: usize = ROWS + TAPS - 1;

/// What is multiplied of an image's rows.
const B: [[f64; PRODUCTS]; PRODUCTS] = [
    [1.0, -1.5, -2.0, 1.5, 1.0, 0.0],
    [0.0, -1.0, 0.5, 2.5, 1.0, 0.0],
    [0.0, 1.0, -2.5, 0.5, 1.0, 0.0],
    [0.0, -2.0, -1.0, 2.0, 1.0, 0.0],
    [0.0, 0.5, -1.0, -0.5, 1.0, 0.0],
    [0.0, 1.0, -1.5, -2.0, 1.5, 1.0],
];
/// Of the weights' rows.
const G: [[f64; TAPS]; PRODUCTS] = [
    [1.0, 0.0, 0.0],
    [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0],
    [-1.0 / 3.0, 1.0 / 3.0, -1.0 / 3.0],
    [-16.0 / 15.0, -8.0 / 15.0, -4.0 / 15.0],
    [1.0 / 15.0, -2.0 / 15.0, 4.0 / 15.0],
    [0.0, 0.0, 1.0],
];
/// What the products are to the result's rows.
const A: [[f64; PRODUCTS]; ROWS] = [
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.0],
    [0.0, 1.0, -1.0, 0.5, -2.0, 0.0],
    [0.0, 1.0, 1.0, 0.25, 4.0, 0.0],
    [0.0, 1.0, -1.0, 0.125, -8.0, 1.0],
];

/// Computes convolutions of these types so, in `f32`.
pub(crate) fn multiply_less(graph: &mut Graph, types: &[DType]) -> Result<()> {
    let prepared =
        if parameters::is_read_only(graph) { parameters::computed_of(graph) } else { BTreeSet::new() };
    multiply_less_where(graph, types, |convolution| convolution.is_worth_it(&prepared))
}

fn multiply_less_where(
    graph: &mut Graph,
    types: &[DType],
    is_chosen: impl Fn(&Convolution) -> bool,
) -> Result<()> {
    // What is made of an image in bf16 would be kept from forward for its weights' gradient, in three times the bytes of the image.
    let of_product = |id| {
        Convolution::of(graph, types, id).or_else(|| Convolution::weight_gradient(graph, &[DType::F32], id))
    };
    let mut convolutions: BTreeMap<_, _> = graph.ids().filter_map(|id| Some((id, of_product(id)?))).collect();
    let sums = window_sums::all_sums(graph).into_iter();
    convolutions
        .extend(sums.filter_map(|(id, sum)| Some((id, Convolution::image_gradient(graph, types, id, sum)?))));
    convolutions.retain(|_, convolution| is_chosen(convolution));
    if convolutions.is_empty() {
        return Ok(());
    }
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        match convolutions.get(&id) {
            Some(convolution) => {
                let new = convolution.emit(graph, id, &mut rebuild)?;
                rebuild.replace(id, new);
            }
            None => {
                rebuild.copy(id)?;
            }
        }
    }
    *graph = rebuild.finish();
    Ok(())
}

impl Convolution {
    /// Whether the multiplications that are left out take longer than what is written and read instead. Weights are read where they lie apart,
    /// which takes twice as long; if nothing writes what they depend on, it is done once ([`plan_prepared`](crate::plan::plan_prepared)), and what
    /// is read is more. A gradient by the image is no longer written for each place of the window.
    fn is_worth_it(&self, never_written: &BTreeSet<ValueId>) -> bool {
        let (channels, features, [height, width]) = (self.image.channels, self.features, self.size);
        let each = features * channels * self.places;
        let (rows, written) = match self.form {
            Form::ImageGradient { .. } => {
                let places = self.images * self.image.size.iter().product::<usize>();
                (TAPS * places, TAPS * places * features * self.places)
            }
            Form::Result { .. } | Form::WeightGradient { .. } => (TAPS * self.images * height * width, 0),
        };
        let sixes = PRODUCTS * self.images * self.fours();
        let of_weights = match &self.form {
            Form::Result { weights, .. } if never_written.contains(weights) => (PRODUCTS - TAPS) * each,
            _ => 2 * PRODUCTS * each,
        };
        let made = sixes * (channels * self.padded_width() + features * width) + of_weights;
        let moved = |elements: usize| cost::moving(2 * 4 * elements);
        let before = cost::multiplying(each * rows) + moved(written);
        before > cost::multiplying(each * sixes * width) + moved(made)
    }

    /// Adds the nodes that compute it; the last one is to replace the node `id`.
    fn emit(&self, graph: &Graph, id: ValueId, rebuild: &mut Rebuild<'_>) -> Result<ValueId> {
        let shape = &graph[id].ty.shape;
        let image = rebuild.place(self.image.value);
        let result = graph[id].ty.dtype;
        let other = match &self.form {
            Form::Result { weights, .. } | Form::ImageGradient { weights, .. } => *weights,
            Form::WeightGradient { gradient } => gradient.value,
        };
        let other = rebuild.place(other);
        let b = &mut rebuild.builder(id);
        let (image, other) = (b.cast(image, DType::F32)?, b.cast(other, DType::F32)?);
        let v = self.of_image(b, image)?;
        let new = match &self.form {
            Form::WeightGradient { gradient } => self.of_gradient(b, v, gradient, other)?,
            Form::Result { .. } | Form::ImageGradient { .. } => self.of_weights(b, v, other)?,
        };
        let new = b.reshape(new, shape)?;
        let mut new = b.cast(new, result)?;
        if let Form::ImageGradient { rest, .. } = &self.form {
            for term in rest {
                let shown = term.shown(graph, shape, rebuild)?;
                new = rebuild.builder(id).add(new, shown)?;
            }
        }
        Ok(new)
    }

    /// `V` as windows along the width see it: `[images, channels, 6, fours, width, places]`.
    fn of_image(&self, b: &mut Builder<'_>, image: ValueId) -> Result<ValueId> {
        let [[above, below], [left, right]] = self.padding;
        let below = below + self.fours() * ROWS - self.size[0];
        let image = self.image.with_images_first(b, image, self.images)?;
        let padded = b.pad(image, &[0, 0, above, left], &[0, 0, below, right], 0.0)?;
        let sixes = Windows { places: vec![PRODUCTS, 1], stride: vec![ROWS, 1], dilation: vec![1, 1] };
        let sixes = b.op(sixes, &[padded])?;
        let sixes = b.permute(sixes, &[4, 0, 1, 2, 3, 5])?;
        let sizes = [self.images, self.image.channels, self.fours()];
        let sixes = b.reshape(sixes, &[&[PRODUCTS], &sizes[..], &[self.padded_width()]].concat())?;
        // Six rows of one channel after the other, so that what they are made of stays near.
        let v = combined(b, &B, sixes, 2)?;
        let (stride, dilation) = (vec![1, self.stride], vec![1, self.dilation]);
        let v = b.op(Windows { places: vec![1, self.places], stride, dilation }, &[v])?;
        let [images, channels, fours] = sizes;
        b.reshape(v, &[images, channels, PRODUCTS, fours, self.size[1], self.places])
    }

    /// The result of a convolution, or a gradient that is one.
    fn of_weights(&self, b: &mut Builder<'_>, v: ValueId, weights: ValueId) -> Result<ValueId> {
        let Convolution { images, features, size: [height, width], places, .. } = *self;
        let (fours, channels) = (self.fours(), self.image.channels);
        let is_gradient = matches!(self.form, Form::ImageGradient { .. });
        let [first, second] = if is_gradient { [channels, features] } else { [features, channels] };
        let taps = b.reshape(weights, &[first, second, TAPS, places])?;
        // The second axis last: it is long, and so loops over it are, though its elements lie apart.
        let taps = b.permute(taps, &[2, 0, 3, 1])?;
        let u = match is_gradient {
            false => combined(b, &G, taps, 1)?,
            true => {
                let taps = reversed(b, taps, 2)?;
                combined(b, &G.map(|[first, second, third]| [third, second, first]), taps, 1)?
            }
        };
        let product = DotGeneral {
            lhs_batch: vec![1],
            rhs_batch: vec![2],
            lhs_contract: vec![2, if is_gradient { 0 } else { 3 }],
            rhs_contract: vec![5, 1],
            dtype: DType::F32,
        };
        // [6, features, images, fours, width]
        let m = b.op(product, &[u, v])?;
        let y = combined(b, &A, m, 3)?;
        let y = b.reshape(y, &[features, images, fours * ROWS, width])?;
        let y = b.slice(y, &[0; 4], &[features, images, height, width])?;
        match self.form {
            Form::Result { images_first: false, .. } => Ok(y),
            _ => b.permute(y, &[1, 0, 2, 3]),
        }
    }

    /// The gradient by the weights, from that of the result: each step is linear, and its gradient goes back by the same table.
    fn of_gradient(
        &self,
        b: &mut Builder<'_>,
        v: ValueId,
        gradient: &Image,
        value: ValueId,
    ) -> Result<ValueId> {
        let Convolution { images, features, size: [height, width], .. } = *self;
        let fours = self.fours();
        let dy = gradient.with_images_first(b, value, images)?;
        let dy = b.pad(dy, &[0; 4], &[0, 0, fours * ROWS - height, 0], 0.0)?;
        let dy = b.reshape(dy, &[images, features, fours, ROWS, width])?;
        let dy = b.permute(dy, &[3, 0, 1, 2, 4])?;
        let dm = combined(b, &transposed(&A), dy, 2)?;
        let product = DotGeneral {
            lhs_batch: vec![2],
            rhs_batch: vec![2],
            lhs_contract: vec![0, 3, 4],
            rhs_contract: vec![0, 3, 4],
            dtype: DType::F32,
        };
        // [6, features, channels, places]
        let du = b.op(product, &[dm, v])?;
        combined(b, &transposed(&G), du, 2)
    }
}

/// `x` with the elements of an axis in the opposite order.
fn reversed(b: &mut Builder<'_>, x: ValueId, axis: usize) -> Result<ValueId> {
    let extent = b.ty(x).shape[axis];
    let places = TensorType::new(DType::I32, [extent]);
    let place = b.op(Iota { ty: places.clone(), axis: 0 }, &[])?;
    let last = b.full(extent as f64 - 1.0, &places)?;
    let place = b.sub(last, place)?;
    b.op(Gather { axis }, &[x, place])
}

fn transposed<const N: usize, const M: usize>(table: &[[f64; M]; N]) -> [[f64; N]; M] {
    std::array::from_fn(|i| table.map(|row| row[i]))
}

/// Sums of the parts that `x` has along its first axis, each times a number of the table, whose rows become axis `at` of the result.
fn combined<const N: usize, const M: usize>(
    b: &mut Builder<'_>,
    table: &[[f64; M]; N],
    x: ValueId,
    at: usize,
) -> Result<ValueId> {
    let part = b.ty(x).shape[1..].to_vec();
    let (mut start, mut end) = (vec![0; part.len() + 1], [&[0], &part[..]].concat());
    let mut shape = part.clone();
    shape.insert(at, N);
    let axes: Vec<_> = (0..shape.len()).filter(|&axis| axis != at).collect();
    let mut sum = None;
    for number in 0..M {
        (start[0], end[0]) = (number, number + 1);
        let term = b.slice(x, &start, &end)?;
        let term = b.reshape(term, &part)?;
        let term = b.broadcast(term, &shape, &axes)?;
        let times = column(b, &table.map(|row| row[number]))?;
        let times = b.broadcast(times, &shape, &[at])?;
        let term = b.mul(times, term)?;
        sum = Some(match sum {
            Some(sum) => b.add(sum, term)?,
            None => term,
        });
    }
    Ok(sum.expect("a table has columns"))
}

/// Numbers as a vector: the graph has no constants of several, but a row of a kernel chooses its own once.
fn column(b: &mut Builder<'_>, numbers: &[f64]) -> Result<ValueId> {
    let [floats, places] = [DType::F32, DType::I32].map(|dtype| TensorType::new(dtype, [numbers.len()]));
    let place = b.op(Iota { ty: places.clone(), axis: 0 }, &[])?;
    let mut chosen = b.full(DType::F32.round(numbers[numbers.len() - 1]), &floats)?;
    for (at, &number) in numbers.iter().enumerate().rev().skip(1) {
        let here = b.full(at as f64, &places)?;
        let here = b.compare(Compare::Eq, place, here)?;
        let number = b.full(DType::F32.round(number), &floats)?;
        chosen = b.select(here, number, chosen)?;
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MIXED_PRECISION, PIPELINE, grad, run};
    use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
    use kernfusion_ir::samples::difference;
    use kernfusion_ir::{InputRole, Op, Origin, ReduceOp};
    use proptest::prelude::*;

    /// A convolution of an image with weights, and its padding; the sizes beside, and along the width places, steps and their distance.
    #[derive(Clone, Copy)]
    struct Case {
        images: usize,
        channels: usize,
        features: usize,
        size: [usize; 2],
        padding: [[usize; 2]; 2],
        window: [usize; 3],
    }

    const CASE: Case = Case {
        images: 2,
        channels: 4,
        features: 5,
        size: [10, 7],
        padding: [[1, 1], [1, 1]],
        window: [3, 1, 1],
    };

    /// Weights along an image's channels: windows with three rows and `places` columns, in the form in which convolutions are traced.
    fn convolved(b: &mut Builder<'_>, case: Case, x: ValueId, w: ValueId) -> ValueId {
        let Case { images, channels, features, padding: [[above, below], [left, right]], .. } = case;
        let [places, stride, dilation] = case.window;
        let padded = b.pad(x, &[0, 0, above, left], &[0, 0, below, right], 0.0).unwrap();
        let windows =
            Windows { places: vec![TAPS, places], stride: vec![1, stride], dilation: vec![1, dilation] };
        let windows = b.op(windows, &[padded]).unwrap();
        let &[_, _, height, width, ..] = &b.ty(windows).shape[..] else { unreachable!("six axes") };
        let columns = b.permute(windows, &[0, 1, 4, 5, 2, 3]).unwrap();
        let summed = channels * TAPS * places;
        let columns = b.reshape(columns, &[images, 1, summed, height * width]).unwrap();
        let kernel = b.reshape(w, &[1, features, summed]).unwrap();
        let kernel = b.broadcast(kernel, &[images, 1, features, summed], &[1, 2, 3]).unwrap();
        let product = DotGeneral {
            lhs_batch: vec![0, 1],
            rhs_batch: vec![0, 1],
            lhs_contract: vec![3],
            rhs_contract: vec![2],
            dtype: DType::F32,
        };
        let y = b.op(product, &[kernel, columns]).unwrap();
        b.reshape(y, &[images, features, height, width]).unwrap()
    }

    /// The result of a convolution and, if it is asked for, the gradients of the sum of its squares and of the image itself.
    fn program(case: Case, with_gradients: bool) -> Graph {
        program_of(case, InputRole::Data, with_gradients)
    }

    /// As [`program`], whose weights are an input or a state.
    fn program_of(case: Case, weights: InputRole, with_gradients: bool) -> Graph {
        let mut graph = Graph::new("convolution");
        let mut b = Builder::new(&mut graph, Origin::default());
        let mut float = |name: &str, role: InputRole, shape: &[usize]| {
            b.input(name, role, TensorType::new(DType::F32, shape)).expect("input")
        };
        let x = float("x", InputRole::Data, &[case.images, case.channels, case.size[0], case.size[1]]);
        let w = float("w", weights, &[case.features, case.channels, TAPS, case.window[0]]);
        let y = convolved(&mut b, case, x, w);
        let (squares, itself) = (b.mul(y, y).unwrap(), b.reduce(ReduceOp::Sum, &[0, 1, 2, 3], x).unwrap());
        let loss = b.reduce(ReduceOp::Sum, &[0, 1, 2, 3], squares).unwrap();
        let loss = b.add(loss, itself).unwrap();
        graph.output("y", y);
        if with_gradients {
            let gradients = grad(&mut graph, loss, &[x, w], &BTreeSet::new()).expect("differentiates");
            for (name, gradient) in ["dx", "dw"].into_iter().zip(gradients) {
                graph.output(name, gradient);
            }
        }
        run(&mut graph, PIPELINE, None, &mut |_, _| {}).expect("simplifies");
        graph
    }

    fn results(graph: &Graph) -> Vec<f64> {
        let array = |ty: &TensorType| Array {
            values: (0..ty.elements()).map(|at| ((at * 7919) % 101) as f64 / 50.0 - 1.0).collect(),
            ty: ty.clone(),
        };
        let inputs = graph.inputs().map(|(id, name, _)| (name.to_string(), array(&graph[id].ty))).collect();
        let found = evaluate_arrays(graph, inputs, Precision::Double).expect("evaluates");
        found.into_values().flat_map(|array| array.values).collect()
    }

    /// How many convolutions are computed otherwise, of all that can be; results stay the same.
    fn computed_otherwise(before: &Graph) -> usize {
        let mut after = before.clone();
        multiply_less_where(&mut after, &[DType::F32, DType::BF16], |_| true).expect("rebuilds");
        crate::dce::remove_dead_code(&mut after).expect("rebuilds");
        // Thirds and fifteenths are rounded to f32, and results are sums of much larger numbers.
        let wrong = difference(&results(before), &results(&after), 1e-4);
        assert!(wrong.is_none(), "{wrong:?}\n{after}");
        sixes(&after)
    }

    fn sixes(graph: &Graph) -> usize {
        let is_six =
            |id: &ValueId| matches!(&graph[*id].op, Op::Windows(windows) if windows.places[0] == PRODUCTS);
        graph.ids().filter(is_six).count()
    }

    #[test]
    fn convolutions_of_any_size_and_window_along_the_width() {
        for size in [[8, 7], [9, 5], [11, 16]] {
            assert_eq!(computed_otherwise(&program(Case { size, ..CASE }, false)), 1, "{size:?}");
        }
        for window in [[1, 1, 1], [5, 1, 1], [3, 2, 1], [3, 1, 2]] {
            let case = Case { size: [8, 12], window, ..CASE };
            assert_eq!(computed_otherwise(&program(case, false)), 1, "{window:?}");
        }
        for padding in [[[0, 0], [0, 0]], [[2, 1], [0, 3]]] {
            assert_eq!(computed_otherwise(&program(Case { padding, ..CASE }, false)), 1, "{padding:?}");
        }
        assert_eq!(computed_otherwise(&program(Case { images: 1, size: [16, 12], ..CASE }, false)), 1);
    }

    #[test]
    fn gradients_of_images_are_convolutions_too() {
        for (padding, window) in
            [([[1, 1], [1, 1]], [3, 1, 1]), ([[0, 2], [1, 0]], [3, 1, 1]), ([[1, 1], [0, 0]], [1, 1, 1])]
        {
            let case = Case { size: [11, 9], padding, window, ..CASE };
            assert_eq!(computed_otherwise(&program(case, true)), 3, "{padding:?} {window:?}");
        }
    }

    /// In bf16, by products of `f32`: of the same numbers, which are never rounded once more. Gradients of weights stay.
    #[test]
    fn convolutions_of_bf16() {
        for (padding, window) in [([[1, 1], [1, 1]], [3, 1, 1]), ([[0, 2], [1, 0]], [3, 1, 2])] {
            let mut graph = program(Case { size: [11, 9], padding, window, ..CASE }, window[2] == 1);
            run(&mut graph, MIXED_PRECISION, None, &mut |_, _| {}).expect("narrows");
            let products = |graph: &Graph| {
                let types = graph.ids().filter_map(|id| match &graph[id].op {
                    Op::DotGeneral(_) => Some(graph[graph[id].operands[0]].ty.dtype),
                    _ => None,
                });
                types.collect::<BTreeSet<_>>()
            };
            assert_eq!(products(&graph), BTreeSet::from([DType::BF16]));
            let mut narrow = graph.clone();
            multiply_less_where(&mut narrow, &[DType::F32], |_| true).expect("rebuilds");
            assert_eq!(sixes(&narrow), 0, "processors that multiply bf16 are left alone");
            let count = if window[2] == 1 { 2 } else { 1 };
            assert_eq!(computed_otherwise(&graph), count, "{padding:?} {window:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn convolutions_of_random_shapes(
            (images, channels, features) in (1usize..4, 1usize..5, 1usize..5),
            size in [3usize..13, 5usize..10],
            padding in [[0usize..4, 0usize..4], [0usize..3, 0usize..3]],
            window in [1usize..4, 1usize..3, 1usize..3],
            with_gradients: bool,
        ) {
            let case = Case { images, channels, features, size, padding, window };
            computed_otherwise(&program(case, with_gradients));
        }
    }

    #[test]
    fn what_takes_longer_stays() {
        let worth = |case: Case, with_gradients: bool| {
            let mut graph = program(case, with_gradients);
            multiply_less(&mut graph, &[DType::F32]).expect("rebuilds");
            sixes(&graph)
        };
        let large = Case { images: 4, size: [24, 24], channels: 64, features: 64, ..CASE };
        assert_eq!((worth(large, false), worth(large, true)), (1, 3));
        assert_eq!(worth(Case { channels: 3, ..large }, false), 0, "more is written than multiplied");
        assert_eq!(worth(Case { images: 1, size: [6, 6], ..large }, true), 0, "the weights are most of it");
        // Made anew in each run, they would take too long; once, they do not.
        let low = Case { size: [7, 7], channels: 512, features: 512, ..large };
        assert_eq!(worth(low, false), 0);
        let mut graph = program_of(low, InputRole::State, false);
        multiply_less(&mut graph, &[DType::F32]).expect("rebuilds");
        assert_eq!(sixes(&graph), 1, "nothing writes the weights");
        let mut graph = program_of(low, InputRole::State, false);
        let written = graph.ids().find(|id| matches!(&graph[*id].op, Op::Input(input) if input.name == "w"));
        graph.update("w", written.expect("the weights"));
        multiply_less(&mut graph, &[DType::F32]).expect("rebuilds");
        assert_eq!(sixes(&graph), 0, "the program writes them");
    }

    #[test]
    fn a_product_of_vectors_stays() {
        let mut graph = Graph::new("vectors");
        let mut b = Builder::new(&mut graph, Origin::default());
        let x = b.input("x", InputRole::Data, TensorType::new(DType::F32, [5])).unwrap();
        let (lhs_contract, rhs_contract) = (vec![0], vec![0]);
        let product = DotGeneral {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract,
            rhs_contract,
            dtype: DType::F32,
        };
        let y = b.op(product, &[x, x]).unwrap();
        graph.output("y", y);
        assert_eq!(computed_otherwise(&graph), 0);
    }

    #[test]
    fn other_numbers_than_zero_around_an_image_are_part_of_it() {
        let mut graph = program(CASE, false);
        let mut rebuild = Rebuild::new(&graph);
        for id in graph.ids() {
            let Op::Pad(pad) = &graph[id].op else {
                rebuild.copy(id).unwrap();
                continue;
            };
            let x = rebuild.place(graph[id].operands[0]);
            let ones = rebuild.builder(id).pad(x, &pad.low, &pad.high, 1.0).unwrap();
            rebuild.replace(id, ones);
        }
        graph = rebuild.finish();
        assert_eq!(computed_otherwise(&graph), 1);
    }
}
