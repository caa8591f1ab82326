//! A sum of one value at many places, weighed, as windows of the value, which is padded once.
//!
//! ```text
//! Σₜ padₜ(x · b(wₜ))  →  Σₜ sliceₜ(p) · b(wₜ), with p = pad(x)
//! ```
//!
//! Such is the gradient of a sum over what a window sees (a depthwise convolution), as differentiation leaves it: each product would be in memory
//! before it is padded. In windows it is the same kind of sum as forward. Padding is multiplied, too, so that a weight that is not finite shows
//! beside the edge.

use crate::Rebuild;
use kernfusion_ir::{Binary, Broadcast, Builder, Graph, Op, Result, ValueId};
use std::collections::BTreeMap;
use std::ops::Range;

/// Places from which on padding once pays.
const PLACES: usize = 4;

pub(crate) fn sum_windows(graph: &mut Graph) -> Result<()> {
    let sums = sums(graph);
    if sums.is_empty() {
        return Ok(());
    }
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        match sums.get(&id) {
            Some(sum) => {
                let new = sum.emit(graph, id, &mut rebuild)?;
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

/// What a tensor shows of a value: its element `i` is the value's element `i + offset` where `i` is valid, else 0.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) offset: Vec<i64>,
    valid: Vec<Range<i64>>,
}

impl View {
    /// All of a value of this shape.
    fn whole(shape: &[usize]) -> Self {
        View { offset: vec![0; shape.len()], valid: shape.iter().map(|&extent| 0..extent as i64).collect() }
    }

    /// The view of what surrounds a value of this shape with zeros, as one of the value.
    fn of_padded(mut self, low: &[usize], shape: &[usize]) -> Self {
        for (axis, (&low, &extent)) in low.iter().zip(shape).enumerate() {
            self.offset[axis] -= low as i64;
            let (first, end) = (-self.offset[axis], extent as i64 - self.offset[axis]);
            let valid = &mut self.valid[axis];
            *valid = valid.start.max(first)..valid.end.min(end).max(valid.start.max(first));
        }
        self
    }

    /// The view of a part, as one of the whole.
    fn of_part(mut self, start: &[usize]) -> Self {
        self.offset.iter_mut().zip(start).for_each(|(offset, &start)| *offset += start as i64);
        self
    }

    /// Whether a tensor of the shape `seen` shows something else along an axis than all of a value of that shape.
    fn moves(&self, axis: usize, seen: &[usize], shape: &[usize]) -> bool {
        self.offset[axis] != 0 || seen[axis] != shape[axis] || self.valid[axis] != (0..seen[axis] as i64)
    }

    /// Whether zeros stand where the value has no element, and nowhere else.
    pub(crate) fn is_window(&self, seen: &[usize], shape: &[usize]) -> bool {
        (0..seen.len()).all(|axis| {
            let (first, end) = (-self.offset[axis], shape[axis] as i64 - self.offset[axis]);
            self.valid[axis] == (first.max(0)..end.min(seen[axis] as i64))
        })
    }
}

/// A term of a sum: a value as a view shows it, perhaps weighed.
pub(crate) struct Term {
    pub(crate) value: ValueId,
    pub(crate) view: View,
    /// What is weighed, and by what: a broadcast along all axes that move.
    factors: Option<(ValueId, ValueId)>,
}

impl Term {
    fn new(graph: &Graph, seen: &[usize], value: ValueId, view: View) -> Self {
        let is_weight = |id: ValueId| match &graph[id].op {
            Op::Broadcast(Broadcast { axes, shape }) => {
                axes.iter().all(|&axis| !view.moves(axis, seen, shape))
            }
            _ => false,
        };
        let factors = match (&graph[value].op, graph[value].operands.as_slice()) {
            (Op::Binary(Binary::Mul), &[x, w]) if is_weight(w) => Some((x, w)),
            (Op::Binary(Binary::Mul), &[w, x]) if is_weight(w) => Some((x, w)),
            _ => None,
        };
        Term { value, view, factors }
    }

    /// Whether the value is a product with weights.
    pub(crate) fn is_weighed(&self) -> bool {
        self.factors.is_some()
    }

    /// The value that others may show, too.
    fn base(&self) -> ValueId {
        self.factors.map_or(self.value, |(x, _)| x)
    }
}

/// A tree of additions, pads and slices, nothing of which is read elsewhere.
pub(crate) struct Sum {
    pub(crate) terms: Vec<Term>,
    /// The values that several terms show, with the padding before and after that all of these need.
    padded: BTreeMap<ValueId, Vec<[usize; 2]>>,
}

/// Sums that read a value at many places, by their last addition.
fn sums(graph: &Graph) -> BTreeMap<ValueId, Sum> {
    let mut sums = all_sums(graph);
    sums.retain(|_, sum| !sum.padded.is_empty());
    sums
}

/// All sums of a graph, by their last addition.
pub(crate) fn all_sums(graph: &Graph) -> BTreeMap<ValueId, Sum> {
    let mut readers = vec![0usize; graph.len()];
    let read = graph.ids().flat_map(|id| graph[id].operands.iter().copied());
    read.chain(graph.outputs().iter().map(|output| output.value)).for_each(|id| readers[id.index()] += 1);
    let mut inner = vec![false; graph.len()];
    let mut sums = BTreeMap::new();
    let is_sum =
        |id: ValueId| matches!(graph[id].op, Op::Binary(Binary::Add)) && graph[id].ty.dtype.is_float();
    for root in graph.ids().collect::<Vec<_>>().into_iter().rev() {
        if is_sum(root) && !inner[root.index()] {
            sums.insert(root, Sum::new(graph, root, &readers, &mut inner));
        }
    }
    sums
}

impl Sum {
    /// The sum whose last addition is `root`; notes what is inside of it.
    fn new(graph: &Graph, root: ValueId, readers: &[usize], inner: &mut [bool]) -> Self {
        let seen = &graph[root].ty.shape;
        let mut terms = vec![];
        let mut open = vec![(root, View::whole(seen))];
        while let Some((id, view)) = open.pop() {
            let node = &graph[id];
            let shape = |at: usize| &graph[node.operands[at]].ty.shape;
            match &node.op {
                _ if readers[id.index()] > 1 && id != root => {}
                Op::Binary(Binary::Add) => {
                    inner[id.index()] = true;
                    open.extend(node.operands.iter().rev().map(|&operand| (operand, view.clone())));
                    continue;
                }
                Op::Pad(pad) if pad.value.value() == 0.0 => {
                    open.push((node.operands[0], view.of_padded(&pad.low, shape(0))));
                    continue;
                }
                Op::Slice(part) => {
                    open.push((node.operands[0], view.of_part(&part.start)));
                    continue;
                }
                _ => {}
            }
            terms.push(Term::new(graph, seen, id, view));
        }
        let padded = padded(graph, seen, &terms);
        Sum { terms, padded }
    }

    fn emit(&self, graph: &Graph, root: ValueId, rebuild: &mut Rebuild<'_>) -> Result<ValueId> {
        let seen = &graph[root].ty.shape;
        let mut padded = BTreeMap::new();
        for (&base, around) in &self.padded {
            let x = rebuild.place(base);
            let [low, high] = [0, 1].map(|side| around.iter().map(|around| around[side]).collect::<Vec<_>>());
            padded.insert(base, rebuild.builder(root).pad(x, &low, &high, 0.0)?);
        }
        let mut terms = vec![];
        for term in &self.terms {
            let base = term.base();
            terms.push(match padded.get(&base) {
                Some(&whole) => term.in_padded(graph, seen, (whole, &self.padded[&base]), rebuild)?,
                None => term.shown(graph, seen, rebuild)?,
            });
        }
        sum_by_halves(&mut rebuild.builder(root), &terms)
    }
}

/// The sum of its first half and of its second one, of at least one term: no addition waits for more than a few others.
fn sum_by_halves(b: &mut Builder<'_>, terms: &[ValueId]) -> Result<ValueId> {
    match terms {
        &[term] => Ok(term),
        _ => {
            let (first, second) = terms.split_at(terms.len().div_ceil(2));
            let halves = [sum_by_halves(b, first)?, sum_by_halves(b, second)?];
            b.add(halves[0], halves[1])
        }
    }
}

impl Term {
    /// What it adds, as a window of its value, which has that padding.
    fn in_padded(
        &self,
        graph: &Graph,
        seen: &[usize],
        (whole, around): (ValueId, &[[usize; 2]]),
        rebuild: &mut Rebuild<'_>,
    ) -> Result<ValueId> {
        let start = self.view.offset.iter().zip(around).map(|(offset, [low, _])| offset + *low as i64);
        let start: Vec<_> = start.map(|start| start as usize).collect();
        let end: Vec<_> = start.iter().zip(seen).map(|(start, extent)| start + extent).collect();
        let window = rebuild.builder(self.value).slice(whole, &start, &end)?;
        let Some((_, weight)) = self.factors else { return Ok(window) };
        let Op::Broadcast(spread) = &graph[weight].op else { unreachable!("weights are broadcasts") };
        let weight = rebuild.place(graph[weight].operands[0]);
        let mut b = rebuild.builder(self.value);
        let weight = b.broadcast(weight, seen, &spread.axes)?;
        b.mul(window, weight)
    }

    /// What it adds, made for itself.
    pub(crate) fn shown(&self, graph: &Graph, seen: &[usize], rebuild: &mut Rebuild<'_>) -> Result<ValueId> {
        let (view, shape) = (&self.view, &graph[self.value].ty.shape);
        let x = rebuild.place(self.value);
        if view.valid.iter().any(|valid| valid.is_empty()) {
            return rebuild.builder(self.value).full(0.0, &graph[self.value].ty.with_shape(seen.to_vec()));
        }
        if !(0..seen.len()).any(|axis| view.moves(axis, seen, shape)) {
            return Ok(x);
        }
        let mut b = rebuild.builder(self.value);
        let bounds = |of: fn(&Range<i64>) -> i64| {
            let ends = view.valid.iter().zip(&view.offset).map(|(valid, offset)| of(valid) + offset);
            ends.map(|end| end as usize).collect::<Vec<_>>()
        };
        let part = b.slice(x, &bounds(|valid| valid.start), &bounds(|valid| valid.end))?;
        let low: Vec<_> = view.valid.iter().map(|valid| valid.start as usize).collect();
        let high: Vec<_> =
            view.valid.iter().zip(seen).map(|(valid, &extent)| extent - valid.end as usize).collect();
        b.pad(part, &low, &high, 0.0)
    }
}

/// The values that several terms show by windows, some of them beyond the edge, with the padding that these need.
fn padded(graph: &Graph, seen: &[usize], terms: &[Term]) -> BTreeMap<ValueId, Vec<[usize; 2]>> {
    let mut windows: BTreeMap<ValueId, Vec<&View>> = BTreeMap::new();
    for term in terms {
        windows.entry(term.base()).or_default().push(&term.view);
    }
    windows.retain(|&base, views| {
        let shape = &graph[base].ty.shape;
        let is_clipped =
            |view: &&&View| (0..seen.len()).any(|axis| view.valid[axis] != (0..seen[axis] as i64));
        views.len() >= PLACES
            && views.iter().all(|view| view.is_window(seen, shape))
            && views.iter().filter(is_clipped).count() >= PLACES
    });
    let around = |base: ValueId, views: Vec<&View>| {
        let axis = |axis: usize| {
            let offsets = || views.iter().map(|view| view.offset[axis]);
            let (least, most) = (offsets().min().unwrap_or(0), offsets().max().unwrap_or(0));
            let beyond = most + seen[axis] as i64 - graph[base].ty.shape[axis] as i64;
            [-least, beyond].map(|extent| extent.max(0) as usize)
        };
        (0..seen.len()).map(axis).collect()
    };
    windows.into_iter().map(|(base, views)| (base, around(base, views))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
    use kernfusion_ir::samples::difference;
    use kernfusion_ir::{DType, InputRole, Origin, TensorType};

    /// The gradient of a sum over a window of 3 × 2 places, cut as padding leaves it, and of one more value; every product is read elsewhere if
    /// `is_read`, and each place has a value of its own if there are `several`.
    fn gradient(is_read: bool, several: bool) -> Graph {
        let mut graph = Graph::new("gradient");
        let mut b = Builder::new(&mut graph, Origin::default());
        let float = |b: &mut Builder<'_>, name: &str, shape: &[usize]| {
            b.input(name, InputRole::Data, TensorType::new(DType::F32, shape)).expect("input")
        };
        let (x, w, y) =
            (float(&mut b, "x", &[2, 5, 6]), float(&mut b, "w", &[2, 6]), float(&mut b, "y", &[2, 5, 5]));
        let (mut sum, mut products) = (None, vec![]);
        for (place, (i, j)) in (0..3).flat_map(|i| (0..2).map(move |j| (i, j))).enumerate() {
            let weight = b.slice(w, &[0, place], &[2, place + 1]).unwrap();
            let weight = b.reshape(weight, &[2]).unwrap();
            let weight = b.broadcast(weight, &[2, 5, 6], &[0]).unwrap();
            let x = if several { b.scale(x, place as f64 + 2.0).unwrap() } else { x };
            let product = b.mul(x, weight).unwrap();
            products.push(product);
            let term = b.pad(product, &[0, i, j], &[0, 2 - i, 1 - j], 0.0).unwrap();
            sum = Some(sum.map_or(term, |sum| b.add(sum, term).unwrap()));
        }
        let part = b.slice(sum.unwrap(), &[0, 1, 1], &[2, 6, 6]).unwrap();
        let result = b.add(y, part).unwrap();
        graph.output("result", result);
        products
            .into_iter()
            .filter(|_| is_read)
            .enumerate()
            .for_each(|(i, id)| graph.output(format!("product{i}"), id));
        graph
    }

    fn results(graph: &Graph) -> Vec<f64> {
        let array = |ty: &TensorType| Array {
            values: (0..ty.elements()).map(|at| (at % 11) as f64 - 4.5).collect(),
            ty: ty.clone(),
        };
        let inputs = graph.inputs().map(|(id, name, _)| (name.to_string(), array(&graph[id].ty))).collect();
        let found = evaluate_arrays(graph, inputs, Precision::Double).expect("evaluates");
        found.into_values().flat_map(|array| array.values).collect()
    }

    /// Pads after the pass, with what nothing reads removed.
    fn pads(before: &Graph) -> usize {
        let mut after = before.clone();
        sum_windows(&mut after).expect("rebuilds");
        crate::dce::remove_dead_code(&mut after).expect("rebuilds");
        let wrong = difference(&results(before), &results(&after), 1e-12);
        assert!(wrong.is_none(), "{wrong:?}\n{after}");
        after.ids().filter(|&id| matches!(after[id].op, Op::Pad(_))).count()
    }

    #[test]
    fn one_value_is_padded_once() {
        assert_eq!(pads(&gradient(false, false)), 1);
        assert_eq!(pads(&gradient(true, false)), 1, "products are made from the value again");
    }

    #[test]
    fn several_values_stay_padded_each() {
        assert_eq!(pads(&gradient(false, true)), 6);
    }

    #[test]
    fn a_weight_along_what_moves_is_no_weight() {
        let mut graph = Graph::new("rows");
        let mut b = Builder::new(&mut graph, Origin::default());
        let float = |b: &mut Builder<'_>, name: &str, shape: &[usize]| {
            b.input(name, InputRole::Data, TensorType::new(DType::F32, shape)).expect("input")
        };
        let (x, w) = (float(&mut b, "x", &[4, 5]), float(&mut b, "w", &[5, 5]));
        let mut sum = None;
        for place in 0..5 {
            let weight = b.slice(w, &[place, 0], &[place + 1, 5]).unwrap();
            let weight = b.reshape(weight, &[5]).unwrap();
            let weight = b.broadcast(weight, &[4, 5], &[1]).unwrap();
            let product = b.mul(x, weight).unwrap();
            let term = b.pad(product, &[0, place], &[0, 4 - place], 0.0).unwrap();
            sum = Some(sum.map_or(term, |sum| b.add(sum, term).unwrap()));
        }
        graph.output("sum", sum.unwrap());
        assert_eq!(pads(&graph), 5);
    }
}
