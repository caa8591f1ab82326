//! Random programs for property tests.
//!
//! Each value carries a bound on its elements and a bound on what single precision may be off, both by interval
//! arithmetic. An op is taken only if neither grows too far, and one that jumps (comparisons, conversions to
//! integers) only if its operands are exact: so executions of the program that round differently still agree closely.

use super::{Draws, Values};
use crate::{
    Binary, Broadcast, Cast, Compare, Concat, DType, DotGeneral, DynamicSlice, DynamicUpdate, Gather, Graph,
    Input, InputRole, Iota, Literal, Op, Origin, Pad, Permute, Reduce, ReduceOp, Reshape, ScatterAdd, Select,
    Slice, Tensor, TensorType, Unary, ValueId, Windows,
};
use std::collections::BTreeMap;

/// Bounds of what a program may compute.
const LARGEST: f64 = 1e4;
const LARGEST_ERROR: f64 = 1e-4;
const MOST_ELEMENTS: usize = 512;
/// Half a unit in the last place of `f32`, relative, and some for functions that are not rounded correctly.
const UNIT: f64 = 3e-7;

/// A valid program of about `size` nodes over `f32`, `i32` and `bool`, with inputs for it. Every value that no other
/// uses is an output; a state may take a new value. An execution in `f32` is off by less than 1e-3.
pub fn random_graph(seed: u64, size: usize) -> (Graph, BTreeMap<String, Tensor>) {
    let draws = Draws::new(seed);
    let graph = Graph::new(format!("random {seed}"));
    let mut writer = Writer { graph, draws, inputs: BTreeMap::new(), known: vec![] };
    writer.inputs();
    // Refused ops are drawn again; the limit only bounds the time of an unlucky seed.
    for _ in 0..50 * size {
        if writer.graph.len() >= size {
            break;
        }
        writer.step();
    }
    writer.outputs();
    (writer.graph, writer.inputs)
}

/// What is known of a value.
#[derive(Clone, Copy)]
struct Known {
    /// No element's magnitude is larger.
    bound: f64,
    /// No element is off by more in single precision; 0 if all executions agree exactly.
    error: f64,
}

struct Writer {
    graph: Graph,
    draws: Draws,
    inputs: BTreeMap<String, Tensor>,
    known: Vec<Known>,
}

/// An op, its operands and what is known of its result; `None` if the draw does not fit.
type Drawn = Option<(Op, Vec<ValueId>, Known)>;

impl Writer {
    fn inputs(&mut self) {
        let extents = [1, 2, 3, 4, 5, 7, 8, 13];
        for number in 0..3 + self.draws.below(3) {
            let rank = self.draws.below(4);
            let shape: Vec<_> = (0..rank).map(|_| *self.draws.choose(&extents)).collect();
            self.input(number, DType::F32, shape, Values::Between(-2.0, 2.0), 2.0);
        }
        let shape = vec![*self.draws.choose(&extents)];
        self.input(10, DType::I32, shape, Values::Between(-4.0, 12.0), 12.0);
        self.input(11, DType::I32, vec![], Values::Between(-2.0, 6.0), 6.0);
        let mask = self.graph[ValueId::from_index(0)].ty.shape.clone();
        self.input(12, DType::Bool, mask, Values::Between(0.0, 2.0), 1.0);
    }

    fn input(&mut self, number: usize, dtype: DType, shape: Vec<usize>, values: Values, bound: f64) {
        let ty = TensorType::new(dtype, shape);
        let role = if number == 1 { InputRole::State } else { InputRole::Data };
        let name = format!("x{number}");
        self.inputs.insert(name.clone(), self.draws.tensor(&ty, values));
        let op = Input { name, role, ty }.into();
        self.add(op, vec![], Known { bound, error: 0.0 });
    }

    fn add(&mut self, op: Op, operands: Vec<ValueId>, known: Known) {
        let scope = format!("layer.{}", self.graph.len() / 8);
        let added = self.graph.add(op, &operands, Origin::new(None, scope));
        added.unwrap_or_else(|error| panic!("a random op does not fit: {error}"));
        self.known.push(known);
    }

    fn step(&mut self) {
        let x = self.any();
        let drawn = match self.draws.below(16) {
            0 | 1 => self.unary(x),
            2..=4 => self.binary(x),
            5 => self.compare(x),
            6 => self.select(x),
            7 => self.cast(x),
            8 => self.reduce(x),
            9 => self.reshape(x),
            10 => self.permute(x),
            11 => self.broadcast(x),
            12 => self.cut(x),
            13 => self.concat(x),
            14 => self.product(x),
            _ => self.indexed(x),
        };
        let Some((op, operands, known)) = drawn else { return };
        let types: Vec<_> = operands.iter().map(|operand| &self.graph[*operand].ty).collect();
        let Ok(ty) = op.infer(&types) else { return };
        let fits = ty.elements() <= MOST_ELEMENTS && ty.rank() <= 5;
        if fits && known.bound <= LARGEST && known.error <= LARGEST_ERROR {
            self.add(op, operands, known);
        }
    }

    /// Unused values become outputs; one of the state's type becomes its new value.
    fn outputs(&mut self) {
        let state = ValueId::from_index(1);
        let mut updated = false;
        for id in self.graph.ids() {
            if !self.graph.users(id).is_empty() {
                continue;
            }
            if !updated && id != state && self.graph[id].ty == self.graph[state].ty {
                self.graph.update("x1", id);
                updated = true;
            } else {
                self.graph.output(format!("y{}", id.index()), id);
            }
        }
    }

    fn any(&mut self) -> ValueId {
        ValueId::from_index(self.draws.below(self.graph.len()))
    }

    /// A value that is like `x` in some way; later ones are as likely as earlier ones.
    fn one_where(&mut self, holds: impl Fn(&TensorType) -> bool) -> Option<ValueId> {
        let fitting: Vec<_> = self.graph.ids().filter(|id| holds(&self.graph[*id].ty)).collect();
        if fitting.is_empty() { None } else { Some(*self.draws.choose(&fitting)) }
    }

    fn ty(&self, value: ValueId) -> TensorType {
        self.graph[value].ty.clone()
    }

    fn known(&self, value: ValueId) -> Known {
        self.known[value.index()]
    }

    /// The same elements elsewhere.
    fn moved(&self, op: impl Into<Op>, x: ValueId) -> Drawn {
        Some((op.into(), vec![x], self.known(x)))
    }

    fn unary(&mut self, x: ValueId) -> Drawn {
        let (ty, Known { bound, error }) = (self.ty(x), self.known(x));
        let ops = match ty.dtype {
            DType::F32 => {
                const NEAR_ONE: [Unary; 5] =
                    [Unary::Tanh, Unary::Sigmoid, Unary::Erf, Unary::Sin, Unary::Cos];
                &[&[Unary::Neg, Unary::Abs, Unary::Exp], &NEAR_ONE[..]].concat()[..]
            }
            DType::I32 => &[Unary::Neg, Unary::Abs, Unary::Sign],
            _ => &[Unary::Not],
        };
        let op = *self.draws.choose(ops);
        let known = match op {
            Unary::Exp if bound <= 5.0 => rounded(bound.exp(), error * bound.exp()),
            Unary::Exp => return None,
            Unary::Tanh | Unary::Sigmoid | Unary::Erf | Unary::Sin | Unary::Cos => rounded(1.0, error * 1.2),
            Unary::Sign => Known { bound: 1.0, error },
            _ => Known { bound, error },
        };
        Some((op.into(), vec![x], known))
    }

    fn binary(&mut self, x: ValueId) -> Drawn {
        let ty = self.ty(x);
        let y = self.one_where(|other| *other == ty)?;
        let ops = match ty.dtype {
            DType::Bool => &[Binary::And, Binary::Or, Binary::Xor][..],
            _ => &[Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min],
        };
        let op = *self.draws.choose(ops);
        let (a, b) = (self.known(x), self.known(y));
        let known = match op {
            Binary::Add | Binary::Sub => sum(ty.dtype, a.bound + b.bound, a.error + b.error),
            Binary::Mul => {
                let error = a.bound * b.error + b.bound * a.error + a.error * b.error;
                sum(ty.dtype, a.bound * b.bound, error)
            }
            _ => Known { bound: a.bound.max(b.bound), error: a.error.max(b.error) },
        };
        Some((op.into(), vec![x, y], known))
    }

    /// Comparisons jump, so both operands must be exact.
    fn compare(&mut self, x: ValueId) -> Drawn {
        let ty = self.ty(x);
        let y = self.one_where(|other| *other == ty)?;
        let exact = self.known(x).error == 0.0 && self.known(y).error == 0.0;
        let op = *self.draws.choose(&Compare::ALL);
        exact.then(|| (op.into(), vec![x, y], Known { bound: 1.0, error: 0.0 }))
    }

    fn select(&mut self, x: ValueId) -> Drawn {
        let ty = self.ty(x);
        let y = self.one_where(|other| *other == ty)?;
        let condition = self.one_where(|other| *other == ty.with_dtype(DType::Bool))?;
        let (a, b) = (self.known(x), self.known(y));
        let known = Known { bound: a.bound.max(b.bound), error: a.error.max(b.error) };
        Some((Select.into(), vec![condition, x, y], known))
    }

    /// Integers within the bound are exact in `f32`; the other way only exact floats go.
    fn cast(&mut self, x: ValueId) -> Drawn {
        let dtype = *self.draws.choose(&[DType::F32, DType::I32, DType::Bool]);
        let known = self.known(x);
        let bound = if dtype == DType::Bool { 1.0 } else { known.bound };
        let jumps = self.ty(x).dtype == DType::F32 && dtype != DType::F32;
        if jumps && known.error > 0.0 {
            return None;
        }
        Some((Cast { dtype }.into(), vec![x], Known { bound, ..known }))
    }

    fn reduce(&mut self, x: ValueId) -> Drawn {
        let (ty, known) = (self.ty(x), self.known(x));
        let axes: Vec<_> = (0..ty.rank()).filter(|_| self.draws.below(2) == 1).collect();
        let op = *self.draws.choose(&ReduceOp::ALL);
        let terms: usize = axes.iter().map(|&axis| ty.shape[axis]).product();
        let known = match op {
            ReduceOp::Sum => summed(ty.dtype, terms, known.bound, known.error),
            ReduceOp::Max | ReduceOp::Min => known,
        };
        ty.dtype.is_number().then(|| (Reduce { op, axes }.into(), vec![x], known))
    }

    fn reshape(&mut self, x: ValueId) -> Drawn {
        let mut rest = self.ty(x).elements();
        let mut shape = vec![];
        while rest > 1 && shape.len() < 4 {
            let divisors: Vec<_> = (1..=rest).filter(|divisor| rest.is_multiple_of(*divisor)).collect();
            let extent = *self.draws.choose(&divisors);
            shape.push(extent);
            rest /= extent;
        }
        shape.push(rest);
        self.moved(Reshape { shape }, x)
    }

    fn permute(&mut self, x: ValueId) -> Drawn {
        let mut axes: Vec<_> = (0..self.ty(x).rank()).collect();
        for last in (1..axes.len()).rev() {
            axes.swap(last, self.draws.below(last + 1));
        }
        self.moved(Permute { axes }, x)
    }

    fn broadcast(&mut self, x: ValueId) -> Drawn {
        let (mut shape, mut axes) = (vec![], vec![]);
        for extent in self.ty(x).shape {
            if self.draws.below(3) == 0 {
                shape.push(1 + self.draws.below(5));
            }
            axes.push(shape.len());
            shape.push(extent);
        }
        if shape.len() == axes.len() {
            shape.push(1 + self.draws.below(5));
        }
        self.moved(Broadcast { shape, axes }, x)
    }

    /// What a window sees that slides over some of the last axes.
    fn windows(&mut self, x: ValueId) -> Drawn {
        let shape = self.ty(x).shape;
        let axes = self.draws.below(shape.len().min(2) + 1);
        let extents = &shape[shape.len() - axes..];
        let places: Vec<_> = extents.iter().map(|&extent| 1 + self.draws.below(extent.min(3))).collect();
        let mut steps = || extents.iter().map(|_| 1 + self.draws.below(3)).collect::<Vec<_>>();
        let (stride, mut dilation) = (steps(), steps());
        for ((dilation, &places), &extent) in dilation.iter_mut().zip(&places).zip(extents) {
            *dilation = (*dilation).min((extent - 1).checked_div(places - 1).unwrap_or(1).max(1));
        }
        self.moved(Windows { places, stride, dilation }, x)
    }

    /// A slice, a view of windows or a pad.
    fn cut(&mut self, x: ValueId) -> Drawn {
        let shape = self.ty(x).shape;
        if self.draws.below(4) == 0 {
            return self.windows(x);
        }
        if self.draws.below(2) == 0 {
            let start: Vec<_> = shape.iter().map(|&extent| self.draws.below(extent)).collect();
            let mut size = |(start, extent): (&usize, &usize)| 1 + self.draws.below(extent - start);
            let end = start.iter().zip(&shape).map(|part| part.0 + size(part)).collect();
            return self.moved(Slice { start, end }, x);
        }
        let mut around = || shape.iter().map(|_| self.draws.below(3)).collect::<Vec<_>>();
        let (low, high) = (around(), around());
        let value = Literal::new(self.draws.below(2) as f64);
        self.moved(Pad { low, high, value }, x).map(at_least_one)
    }

    fn concat(&mut self, x: ValueId) -> Drawn {
        let ty = self.ty(x);
        if ty.rank() == 0 {
            return None;
        }
        let axis = self.draws.below(ty.rank());
        let fits = |other: &TensorType| {
            let mut other = other.clone();
            let ranks = other.rank() == ty.rank();
            ranks && {
                other.shape[axis] = ty.shape[axis];
                other == ty
            }
        };
        let mut operands = vec![x];
        for _ in 0..1 + self.draws.below(2) {
            operands.push(self.one_where(fits)?);
        }
        let known = operands.iter().map(|&operand| self.known(operand));
        let known = known.reduce(|a, b| Known { bound: a.bound.max(b.bound), error: a.error.max(b.error) });
        Some((Concat { axis }.into(), operands, known?))
    }

    /// A product over one axis of each operand, with a batch axis if the first axes allow it.
    fn product(&mut self, x: ValueId) -> Drawn {
        let ty = self.ty(x);
        let y = self.one_where(|other| {
            other.dtype == ty.dtype && other.shape.iter().any(|extent| ty.shape.contains(extent))
        })?;
        let other = self.ty(y);
        let pairs: Vec<_> = (0..ty.rank())
            .flat_map(|i| (0..other.rank()).map(move |j| (i, j)))
            .filter(|&(i, j)| ty.shape[i] == other.shape[j])
            .collect();
        let (i, j) = *self.draws.choose(&pairs);
        let batch = pairs.iter().find(|&&(k, l)| k != i && l != j && self.draws.below(2) == 0);
        let dot = DotGeneral {
            lhs_batch: batch.iter().map(|pair| pair.0).collect(),
            rhs_batch: batch.iter().map(|pair| pair.1).collect(),
            lhs_contract: vec![i],
            rhs_contract: vec![j],
            dtype: ty.dtype,
        };
        let (a, b) = (self.known(x), self.known(y));
        let error = a.bound * b.error + b.bound * a.error + a.error * b.error;
        Some((dot.into(), vec![x, y], summed(ty.dtype, ty.shape[i], a.bound * b.bound, error)))
    }

    /// A gather, a scatter-add, a dynamic slice or update, or coordinates.
    fn indexed(&mut self, x: ValueId) -> Drawn {
        let (ty, known) = (self.ty(x), self.known(x));
        if ty.rank() == 0 {
            return None;
        }
        let axis = self.draws.below(ty.rank());
        let part: Vec<_> = ty.shape.iter().map(|&extent| 1 + self.draws.below(extent)).collect();
        match self.draws.below(5) {
            0 => Some((
                Iota { ty: ty.with_dtype(DType::I32), axis }.into(),
                vec![],
                exact(MOST_ELEMENTS as f64),
            )),
            1 => {
                let indices = self.one_where(|other| other.dtype == DType::I32 && other.rank() <= 2)?;
                Some((Gather { axis }.into(), vec![x, indices], known))
            }
            2 => {
                let indices = self.one_where(|other| {
                    other.dtype == DType::I32 && ty.shape[axis..].starts_with(&other.shape)
                })?;
                let terms = self.ty(indices).elements();
                let scatter = ScatterAdd { axis, extent: 1 + self.draws.below(9) };
                Some((scatter.into(), vec![indices, x], summed(ty.dtype, terms, known.bound, known.error)))
            }
            3 => Some((DynamicSlice { sizes: part }.into(), self.with_starts(vec![x], ty.rank())?, known)),
            _ => {
                let y = self.one_where(|other| {
                    let pairs = || other.shape.iter().zip(&ty.shape);
                    other.dtype == ty.dtype && other.rank() == ty.rank() && pairs().all(|(a, b)| a <= b)
                })?;
                let part = self.known(y);
                let known = Known { bound: known.bound.max(part.bound), error: known.error.max(part.error) };
                Some((DynamicUpdate.into(), self.with_starts(vec![x, y], ty.rank())?, known))
            }
        }
    }

    fn with_starts(&mut self, mut operands: Vec<ValueId>, rank: usize) -> Option<Vec<ValueId>> {
        for _ in 0..rank {
            operands.push(self.one_where(|other| *other == TensorType::scalar(DType::I32))?);
        }
        Some(operands)
    }
}

fn exact(bound: f64) -> Known {
    Known { bound, error: 0.0 }
}

/// A float result that is rounded.
fn rounded(bound: f64, error: f64) -> Known {
    Known { bound, error: error + UNIT * bound }
}

/// A result of arithmetic: integers are exact, floats are rounded.
fn sum(dtype: DType, bound: f64, error: f64) -> Known {
    if dtype.is_float() { rounded(bound, error) } else { exact(bound) }
}

/// The sum of terms with these bounds, in whatever order.
fn summed(dtype: DType, terms: usize, bound: f64, error: f64) -> Known {
    let terms = terms as f64;
    sum(dtype, terms * bound, terms * (error + UNIT * bound * terms.sqrt()))
}

/// Where the padding is 0 or 1, the bound is 1 at least.
fn at_least_one((op, operands, known): (Op, Vec<ValueId>, Known)) -> (Op, Vec<ValueId>, Known) {
    (op, operands, Known { bound: known.bound.max(1.0), ..known })
}
