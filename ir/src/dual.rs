//! Forward-mode differentiation by dual numbers: how every element changes when the inputs move along a direction.
//!
//! ```text
//! (x, ẋ) + (y, ẏ) = (x + y, ẋ + ẏ)        (x, ẋ) · (y, ẏ) = (x·y, ẋ·y + x·ẏ)
//! ```
//!
//! This judges symbolic reverse-mode differentiation, with which it has nothing in common: no VJP, no graph of gradients. At kinks (equal
//! operands of a maximum, 0 of an absolute value) a derivative is one of several, and the change is NaN.

use crate::evaluate::{Array, Precision};
use crate::iterations::{Annotated, iterations};
use crate::{
    Binary, DType, DotGeneral, Graph, IrError, Literal, Op, Pad, Reduce, ReduceOp, Result, TensorType, Unary,
};
use std::collections::BTreeMap;

/// A tensor and how each element changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Dual {
    /// What it is.
    pub array: Array,
    /// The change of each element, NaN where it is not known.
    pub change: Vec<f64>,
}

impl Dual {
    /// A tensor that does not change.
    pub fn fixed(array: Array) -> Self {
        Dual { change: vec![0.0; array.values.len()], array }
    }

    fn changes(&self) -> Array {
        Array { ty: self.array.ty.with_dtype(DType::F64), values: self.change.clone() }
    }
}

impl Annotated for Dual {
    fn new(array: Array, notes: Vec<f64>) -> Self {
        Dual { array, change: notes }
    }

    fn parts(&self) -> (&Array, &[f64]) {
        (&self.array, &self.change)
    }
}

/// The value of every node with its change, in `f64`, from inputs with theirs.
///
/// # Errors
/// If an input is missing, or the program is for several ranks.
pub fn duals(graph: &Graph, inputs: BTreeMap<String, Dual>) -> Result<Vec<Dual>> {
    graph.one_rank()?;
    let mut inputs = inputs;
    let mut values: Vec<Dual> = Vec::with_capacity(graph.len());
    for id in graph.ids() {
        let node = &graph[id];
        let operands: Vec<_> = node.operands.iter().map(|operand| &values[operand.index()]).collect();
        let value = match &node.op {
            Op::Input(input) => inputs
                .remove(&input.name)
                .ok_or_else(|| IrError::Input { name: input.name.clone(), reason: "is missing".into() })?,
            Op::Scan(scan) => iterations(scan, &operands, duals)?.swap_remove(scan.result),
            op => dual(op, &operands, &node.ty),
        };
        values.push(value);
    }
    Ok(values)
}

fn dual(op: &Op, operands: &[&Dual], ty: &TensorType) -> Dual {
    let arrays: Vec<_> = operands.iter().map(|it| &it.array).collect();
    let mut values = op.eval(&arrays, ty);
    values.iter_mut().for_each(|x| *x = Precision::Double.round(ty.dtype, *x));
    let change = match ty.dtype.is_float() {
        true => OpCall { op, operands, ty, values: &values }.change(),
        false => vec![0.0; values.len()],
    };
    Dual { array: Array { ty: ty.clone(), values }, change }
}

/// One op with a result of floats.
struct OpCall<'a> {
    op: &'a Op,
    operands: &'a [&'a Dual],
    ty: &'a TensorType,
    values: &'a [f64],
}

impl OpCall<'_> {
    fn change(&self) -> Vec<f64> {
        let each = |rule: &dyn Fn(usize) -> f64| (0..self.values.len()).map(rule).collect::<Vec<_>>();
        let of = |slot: usize, i: usize| (self.operands[slot].array.values[i], self.operands[slot].change[i]);
        match self.op {
            Op::Input(_) | Op::Iota(_) | Op::Constant(_) | Op::RandomBits(_) | Op::Compare(_) => {
                vec![0.0; self.values.len()]
            }
            Op::Unary(op) => each(&|i| unary(*op, of(0, i), self.values[i])),
            Op::Binary(op) => each(&|i| binary(*op, of(0, i), of(1, i), self.values[i])),
            Op::Select(_) => each(&|i| if of(0, i).0 != 0.0 { of(1, i).1 } else { of(2, i).1 }),
            Op::Cast(_) => match self.operands[0].array.ty.dtype.is_float() {
                true => self.operands[0].change.clone(),
                false => vec![0.0; self.values.len()],
            },
            Op::Reduce(reduce) if reduce.op != ReduceOp::Sum => self.extreme(reduce),
            Op::Pad(pad) => self.moved(&Pad { value: Literal::new(0.0), ..pad.clone() }.into(), 1),
            Op::DotGeneral(dot) => self.dot(dot),
            Op::ScatterAdd(_) => {
                let updates = self.operands[1].changes();
                self.op.eval(&[&self.operands[0].array, &updates], &self.wide())
            }
            Op::DynamicUpdate(_) => self.moved(self.op, 2),
            Op::Gather(_) | Op::DynamicSlice(_) => self.moved(self.op, 1),
            Op::Reduce(_)
            | Op::Reshape(_)
            | Op::Permute(_)
            | Op::Broadcast(_)
            | Op::Slice(_)
            | Op::Windows(_)
            | Op::Concat(_)
            | Op::Collective(_) => self.moved(self.op, self.operands.len()),
            Op::Scan(_) => unreachable!("a loop is evaluated iteration by iteration"),
        }
    }

    fn wide(&self) -> TensorType {
        self.ty.with_dtype(DType::F64)
    }

    /// The changes of the first operands, moved as the op moves their elements; the others say where.
    fn moved(&self, op: &Op, data: usize) -> Vec<f64> {
        let changes: Vec<_> = self.operands[..data].iter().map(|it| it.changes()).collect();
        let places = self.operands[data..].iter().map(|it| &it.array);
        op.eval(&changes.iter().chain(places).collect::<Vec<_>>(), &self.wide())
    }

    /// The change of the element that is the largest or smallest; where several are, it is known if none of them changes.
    fn extreme(&self, reduce: &Reduce) -> Vec<f64> {
        let x = self.operands[0];
        let rank = x.array.ty.rank();
        let kept: Vec<_> = (0..rank).filter(|axis| !reduce.axes.contains(axis)).collect();
        let inner = x.array.offsets(&reduce.axes);
        let change = |(start, value): (usize, &f64)| {
            let found: Vec<_> =
                inner.iter().map(|at| start + at).filter(|&at| x.array.values[at] == *value).collect();
            match found[..] {
                [one] => x.change[one],
                _ if found.iter().all(|&at| x.change[at] == 0.0) => 0.0,
                _ => f64::NAN,
            }
        };
        x.array.offsets(&kept).into_iter().zip(self.values).map(change).collect()
    }

    fn dot(&self, dot: &DotGeneral) -> Vec<f64> {
        let [a, b] = [self.operands[0], self.operands[1]];
        let product = |x: &Array, y: &Array| {
            Op::from(DotGeneral { dtype: DType::F64, ..dot.clone() }).eval(&[x, y], &self.wide())
        };
        let (left, right) = (product(&a.changes(), &b.array), product(&a.array, &b.changes()));
        left.iter().zip(&right).map(|(left, right)| left + right).collect()
    }
}

/// A factor times a change; nothing where nothing changes, whatever the factor.
fn times(factor: f64, change: f64) -> f64 {
    if change == 0.0 { 0.0 } else { factor * change }
}

/// From (x, ẋ) and op(x).
fn unary(op: Unary, (x, dx): (f64, f64), value: f64) -> f64 {
    let factor = match op {
        Unary::Neg => -1.0,
        Unary::Abs if x == 0.0 => f64::NAN,
        Unary::Abs => x.signum(),
        Unary::Sign | Unary::Floor | Unary::Round | Unary::Not => 0.0,
        Unary::Exp => value,
        Unary::Log => 1.0 / x,
        Unary::Sqrt => 0.5 / value,
        Unary::Tanh => 1.0 - value * value,
        Unary::Sigmoid => value * (1.0 - value),
        Unary::Erf => std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp(),
        Unary::Sin => x.cos(),
        Unary::Cos => -x.sin(),
    };
    times(factor, dx)
}

/// From (x, ẋ), (y, ẏ) and op(x, y).
fn binary(op: Binary, (x, dx): (f64, f64), (y, dy): (f64, f64), value: f64) -> f64 {
    let picked = |left: bool| match (dx == 0.0 && dy == 0.0, x == y) {
        (true, _) => 0.0,
        (_, true) => f64::NAN,
        _ if left => dx,
        _ => dy,
    };
    match op {
        Binary::Add => dx + dy,
        Binary::Sub => dx - dy,
        Binary::Mul => times(y, dx) + times(x, dy),
        Binary::Div => times(1.0 / y, dx) - times(value / y, dy),
        Binary::Max => picked(x > y),
        Binary::Min => picked(x < y),
        Binary::Pow => times(y * x.powf(y - 1.0), dx) + times(value * x.ln(), dy),
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::evaluate_all;
    use crate::samples;

    /// Of every op on every dtype: (f(x + h·v) − f(x − h·v)) / 2h.
    #[test]
    fn changes_are_differences() {
        let mut judged = 0;
        for sample in samples::all(3).into_iter().filter(|sample| sample.gradient) {
            let graph = &sample.graph;
            let arrays: BTreeMap<_, _> = sample
                .inputs
                .iter()
                .map(|(name, it)| (name.clone(), Array { ty: it.ty(), values: it.to_f64() }))
                .collect();
            let mut draws = samples::Draws::new(7);
            let directions: BTreeMap<_, Vec<f64>> = arrays
                .iter()
                .map(|(name, array)| {
                    let float = array.ty.dtype.is_float();
                    let mut one = || if float { draws.between(-1.0, 1.0) } else { 0.0 };
                    (name.clone(), array.values.iter().map(|_| one()).collect())
                })
                .collect();
            let moved = |by: f64| {
                let mut arrays = arrays.clone();
                for (name, array) in &mut arrays {
                    array.values.iter_mut().zip(&directions[name]).for_each(|(x, v)| *x += by * v);
                }
                evaluate_all(graph, arrays, Precision::Double).unwrap()
            };
            let h = 1e-6;
            let (up, down) = (moved(h), moved(-h));
            let inputs = arrays.iter().map(|(name, array)| {
                (name.clone(), Dual { array: array.clone(), change: directions[name].clone() })
            });
            let duals = duals(graph, inputs.collect()).unwrap();
            for output in graph.outputs() {
                let at = output.value.index();
                for (i, &change) in duals[at].change.iter().enumerate() {
                    let difference = (up[at].values[i] - down[at].values[i]) / (2.0 * h);
                    let steep = difference.abs() > 1e4 || !difference.is_finite();
                    if change.is_nan() || steep || !duals[at].array.ty.dtype.is_float() {
                        continue;
                    }
                    let size = 1.0 + change.abs() + duals[at].array.values[i].abs();
                    assert!(
                        (change - difference).abs() < 1e-4 * size,
                        "{} [{i}]: {change}, {difference}",
                        graph.name
                    );
                    judged += 1;
                }
            }
        }
        assert!(judged > 1000, "{judged}");
    }
}
