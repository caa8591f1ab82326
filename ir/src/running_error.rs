//! How far an execution may be off: running error analysis (N. J. Higham: Accuracy and Stability of Numerical Algorithms,
//! second edition, section 3.3).
//!
//! Each element has its value in `f64` and a bound on the distance of what an execution gives, which follows from the
//! distances of its operands and from the rounding of the op. So results that cancel, or that a kink is near, have large bounds,
//! and well conditioned ones have small bounds. Where a decision could fall either way (a comparison of numbers that may be equal,
//! an index that may be another one) or a number leaves the range of its dtype, the bound is infinite: nothing is known.
//!
//! ```text
//! z = x·y     δz = |x|·δy + |y|·δx + δx·δy + u·|z|
//! z = x < y   δz = 0 if |x − y| > δx + δy, else ∞
//! ```
//!
//! The rules are written from the mathematics of each op, not from any execution of it. An execution may order sums as it likes.

use crate::evaluate::{Array, Precision};
use crate::iterations::{Annotated, iterations};
use crate::{
    Binary, Collective, DType, DotGeneral, Graph, IrError, Literal, Op, Pad, Reduce, ReduceOp, Result,
    ScatterAdd, TensorType, Unary,
};
use std::collections::BTreeMap;

/// A tensor and how far an execution may be off, for each element.
#[derive(Debug, Clone, PartialEq)]
pub struct Approximate {
    /// What it is.
    pub array: Array,
    /// The largest distance; infinite where nothing is known.
    pub error: Vec<f64>,
}

impl Approximate {
    /// A tensor of which every execution has the same numbers.
    pub fn exact(array: Array) -> Self {
        Approximate { error: vec![0.0; array.values.len()], array }
    }

    /// The distances as a tensor of the same shape, to be moved or added up by an op.
    fn errors(&self) -> Array {
        Array { ty: self.array.ty.with_dtype(DType::F64), values: self.error.clone() }
    }

    /// The magnitudes.
    fn magnitudes(&self) -> Array {
        let values = self.array.values.iter().map(|x| x.abs()).collect();
        Array { ty: self.array.ty.with_dtype(DType::F64), values }
    }
}

impl Annotated for Approximate {
    fn new(array: Array, notes: Vec<f64>) -> Self {
        Approximate { array, error: notes }
    }

    fn parts(&self) -> (&Array, &[f64]) {
        (&self.array, &self.error)
    }
}

/// The value of every node with how far an execution of that precision may be off: under [`Precision::Double`] everything is
/// rounded as `f64`.
///
/// # Errors
/// If an input is missing, or the program is for several ranks.
pub fn running_errors(
    graph: &Graph,
    inputs: BTreeMap<String, Approximate>,
    precision: Precision,
) -> Result<Vec<Approximate>> {
    graph.one_rank()?;
    let mut inputs = inputs;
    let mut values: Vec<Approximate> = Vec::with_capacity(graph.len());
    for id in graph.ids() {
        let node = &graph[id];
        let operands = node.operands.iter().map(|operand| &values[operand.index()]);
        let value = match &node.op {
            Op::Input(input) => inputs.remove(&input.name).ok_or_else(|| missing(&input.name))?,
            op => running_error(op, &operands.collect::<Vec<_>>(), &node.ty, precision)?,
        };
        values.push(value);
    }
    Ok(values)
}

/// The result of an op, of this type, with how far an execution may be off.
///
/// # Errors
/// If the body of a loop is no valid graph.
pub fn running_error(
    op: &Op,
    operands: &[&Approximate],
    ty: &TensorType,
    precision: Precision,
) -> Result<Approximate> {
    match op {
        Op::Scan(scan) => {
            let run = |graph: &Graph, inputs| running_errors(graph, inputs, precision);
            Ok(iterations(scan, operands, run)?.swap_remove(scan.result))
        }
        op => Ok(OpCall { op, operands, ty, precision }.result()),
    }
}

fn missing(name: &str) -> IrError {
    IrError::Input { name: name.into(), reason: "is missing".into() }
}

/// The share of a number that rounding it to a dtype changes at most. Of the narrow types it is doubled, since they may be rounded
/// twice.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::powi(2.0, -24),
        DType::BF16 => f64::powi(2.0, -8),
        DType::F16 => f64::powi(2.0, -10),
        DType::F64 => f64::powi(2.0, -53),
        DType::I32 | DType::U32 | DType::I8 | DType::Bool => 0.0,
    }
}

/// The type that sums of a dtype are kept in.
fn summed(dtype: DType) -> DType {
    if matches!(dtype, DType::BF16 | DType::F16) { DType::F32 } else { dtype }
}

/// The largest finite number.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F32 | DType::BF16 => f64::from(f32::MAX) * (1.0 - f64::powi(2.0, -8)),
        DType::F16 => 65504.0,
        _ => f64::INFINITY,
    }
}

/// Units in the last place that functions without a correctly rounded result may be off.
const FUNCTION: f64 = 4.0;

/// One op.
struct OpCall<'a> {
    op: &'a Op,
    operands: &'a [&'a Approximate],
    ty: &'a TensorType,
    precision: Precision,
}

impl OpCall<'_> {
    fn result(&self) -> Approximate {
        let arrays: Vec<_> = self.operands.iter().map(|it| &it.array).collect();
        let mut values = self.op.eval(&arrays, self.ty);
        values.iter_mut().for_each(|x| *x = Precision::Double.round(self.ty.dtype, *x));
        let mut error = self.error(&values);
        for (value, error) in values.iter().zip(&mut error) {
            // An infinity that was put in stays; one that came of finite numbers may come elsewhere, or not at all.
            let leaves = value.is_finite() && value.abs() + *error > largest(self.dtype());
            if error.is_nan() || value.is_nan() || leaves {
                *error = f64::INFINITY;
            }
        }
        Approximate { array: Array { ty: self.ty.clone(), values }, error }
    }

    /// The dtype that floats are rounded to.
    fn dtype(&self) -> DType {
        self.rounded(self.ty.dtype)
    }

    fn rounded(&self, dtype: DType) -> DType {
        if self.precision == Precision::Double && dtype.is_float() { DType::F64 } else { dtype }
    }

    /// What rounding adds to a number.
    fn rounding(&self, dtype: DType, value: f64) -> f64 {
        let dtype = self.rounded(dtype);
        if !value.is_finite() || value == 0.0 || !dtype.is_float() {
            return 0.0;
        }
        let is_small = value.abs() < dtype.smallest_normal() * 2.0;
        value.abs() * unit(dtype) + if is_small { self.lost(dtype) } else { 0.0 }
    }

    /// What rounding changes below the normal numbers, where digits are lost, or all of it.
    fn lost(&self, dtype: DType) -> f64 {
        let dtype = self.rounded(dtype);
        if dtype == DType::F16 { f64::powi(2.0, -24) } else { dtype.smallest_normal() }
    }

    /// What rounding adds to a result of numbers that do not give 0: it may be 0 because `f64` has none that is as small.
    fn rounding_of_nonzero(&self, value: f64) -> f64 {
        if value == 0.0 { self.lost(self.ty.dtype) } else { self.rounding(self.ty.dtype, value) }
    }

    /// What rounding adds to a number that is known: nothing if the dtype has it.
    fn converted(&self, dtype: DType, value: f64) -> f64 {
        if self.rounded(dtype).round(value) == value { 0.0 } else { self.rounding(dtype, value) }
    }

    fn error(&self, values: &[f64]) -> Vec<f64> {
        match self.op {
            Op::Input(_) | Op::Iota(_) => vec![0.0; values.len()],
            Op::Constant(_) => values.iter().map(|&x| self.converted(self.ty.dtype, x)).collect(),
            Op::RandomBits(_) => {
                let known = self.operands.iter().all(|it| it.error.iter().all(|&error| error == 0.0));
                vec![if known { 0.0 } else { f64::INFINITY }; values.len()]
            }
            Op::Unary(op) => self.each(values, |step, i, value| step.unary(*op, i, value)),
            Op::Binary(op) => self.each(values, |step, i, value| step.binary(*op, i, value)),
            Op::Compare(_) => self.each(values, |step, i, _| step.compare(i)),
            Op::Select(_) => self.each(values, |step, i, _| step.select(i)),
            Op::Cast(_) => self.each(values, |step, i, value| step.cast(i, value)),
            Op::Reduce(reduce) => self.reduce(reduce, values),
            Op::DotGeneral(dot) => self.dot(dot, values),
            Op::ScatterAdd(scatter) => self.scatter(scatter, values),
            Op::Reshape(_)
            | Op::Permute(_)
            | Op::Broadcast(_)
            | Op::Slice(_)
            | Op::Windows(_)
            | Op::Concat(_) => self.moved(self.op),
            Op::Collective(op) => {
                let exact = Collective { in_bf16: false, ..*op };
                let rounding = |x: f64| if op.in_bf16 { 2.0 * self.rounding(DType::BF16, x) } else { 0.0 };
                let errors = self.moved(&exact.into());
                errors.into_iter().zip(values).map(|(error, &x)| error + rounding(x)).collect()
            }
            Op::Pad(pad) => {
                let zeros = Pad { value: Literal::new(0.0), ..pad.clone() };
                let padding = self.rounding(self.ty.dtype, pad.value.value());
                self.moved(&zeros.into()).into_iter().map(|error| error.max(padding)).collect()
            }
            Op::Gather(_) => self.looked_up(1, 1, values.len()),
            Op::DynamicSlice(_) => self.looked_up(1, 1, values.len()),
            Op::DynamicUpdate(_) => self.looked_up(2, 2, values.len()),
            Op::Scan(_) => unreachable!("a loop is evaluated iteration by iteration"),
        }
    }

    fn each(&self, values: &[f64], rule: impl Fn(&Self, usize, f64) -> f64) -> Vec<f64> {
        values.iter().enumerate().map(|(i, &value)| rule(self, i, value)).collect()
    }

    /// An operand's element and its error.
    fn of(&self, slot: usize, i: usize) -> (f64, f64) {
        (self.operands[slot].array.values[i], self.operands[slot].error[i])
    }

    /// The errors of operands, moved as the op moves their elements.
    fn moved(&self, op: &Op) -> Vec<f64> {
        let errors: Vec<_> = self.operands.iter().map(|it| it.errors()).collect();
        op.eval(&errors.iter().collect::<Vec<_>>(), &self.ty.with_dtype(DType::F64))
    }

    /// As `moved`, where the operands from `first` on say where from; `data` of them are moved.
    fn looked_up(&self, first: usize, data: usize, elements: usize) -> Vec<f64> {
        if self.operands[first..].iter().any(|it| it.error.iter().any(|&error| error != 0.0)) {
            return vec![f64::INFINITY; elements];
        }
        let errors: Vec<_> = self.operands[..data].iter().map(|it| it.errors()).collect();
        let places = self.operands[data..].iter().map(|it| &it.array);
        let operands: Vec<_> = errors.iter().chain(places).collect();
        self.op.eval(&operands, &self.ty.with_dtype(DType::F64))
    }

    fn unary(&self, op: Unary, i: usize, value: f64) -> f64 {
        let (x, e) = self.of(0, i);
        let function = FUNCTION * self.rounding(self.ty.dtype, value);
        let unknown = f64::INFINITY;
        if !self.ty.dtype.is_float() {
            return e;
        }
        match op {
            Unary::Neg | Unary::Abs => e,
            Unary::Sign => {
                if e > 0.0 && x.abs() <= e {
                    unknown
                } else {
                    0.0
                }
            }
            Unary::Floor | Unary::Round => {
                let whole = if op == Unary::Floor { f64::floor } else { f64::round_ties_even };
                if e > 0.0 && whole(x - e) != whole(x + e) { unknown } else { 0.0 }
            }
            Unary::Not => e,
            Unary::Exp => {
                if value.is_infinite() && x.is_finite() {
                    unknown
                } else {
                    let function =
                        if x.is_finite() { FUNCTION * self.rounding_of_nonzero(value) } else { 0.0 };
                    value * e.exp_m1() + function
                }
            }
            Unary::Log if x <= e => {
                if e == 0.0 && x == 0.0 {
                    0.0
                } else {
                    unknown
                }
            }
            // Near 1 the logarithm cancels.
            Unary::Log => e / (x - e) + function + self.rounding(self.ty.dtype, 1.0),
            Unary::Sqrt if x <= e => {
                if x < -e {
                    unknown
                } else {
                    (x.abs() + e).sqrt() + function
                }
            }
            Unary::Sqrt => e / (x - e).sqrt() + function,
            Unary::Tanh => e + function,
            // Where e⁻ˣ is infinite, it is 0.
            Unary::Sigmoid => {
                (0.25 * e).min(times(value, e.exp_m1())) + function + f64::from(f32::MIN_POSITIVE)
            }
            Unary::Erf => 1.2 * e + function,
            // The argument is reduced by multiples of π that are rounded.
            Unary::Sin | Unary::Cos => e + function + self.rounding(self.ty.dtype, x.abs().max(1.0)),
        }
    }

    fn binary(&self, op: Binary, i: usize, value: f64) -> f64 {
        let ((x, dx), (y, dy)) = (self.of(0, i), self.of(1, i));
        let is_zero = match op {
            Binary::Mul => x == 0.0 || y == 0.0,
            Binary::Div | Binary::Pow => x == 0.0 || x.is_infinite() || y.is_infinite(),
            _ => true,
        };
        let rounding =
            if is_zero { self.rounding(self.ty.dtype, value) } else { self.rounding_of_nonzero(value) };
        if !self.ty.dtype.is_float() {
            return if dx == 0.0 && dy == 0.0 { 0.0 } else { f64::INFINITY };
        }
        match op {
            Binary::Add | Binary::Sub => dx + dy + rounding,
            Binary::Mul => times(x.abs(), dy) + times(y.abs(), dx) + times(dx, dy) + rounding,
            Binary::Div if y.abs() <= dy || y == 0.0 => f64::INFINITY,
            Binary::Div => (dx + times(value.abs(), dy)) / (y.abs() - dy) + rounding,
            Binary::Max | Binary::Min => dx.max(dy),
            Binary::Pow if x <= dx => {
                if dx == 0.0 && dy == 0.0 {
                    rounding * FUNCTION
                } else {
                    f64::INFINITY
                }
            }
            Binary::Pow => {
                let log = x.ln();
                let share = (times(y.abs(), dx) / (x - dx) + times(log.abs(), dy) + times(dx / (x - dx), dy))
                    .exp_m1();
                value.abs() * share + rounding * FUNCTION * (1.0 + (y * log).abs())
            }
            Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => f64::INFINITY,
        }
    }

    fn compare(&self, i: usize) -> f64 {
        let ((x, dx), (y, dy)) = (self.of(0, i), self.of(1, i));
        let is_known = dx + dy == 0.0 || x == y && x.is_infinite() || (x - y).abs() > dx + dy;
        if is_known { 0.0 } else { f64::INFINITY }
    }

    fn select(&self, i: usize) -> f64 {
        let ((c, unknown), (x, dx), (y, dy)) = (self.of(0, i), self.of(1, i), self.of(2, i));
        match (unknown == 0.0, c != 0.0) {
            (true, true) => dx,
            (true, false) => dy,
            (false, _) if x == y => dx.max(dy),
            (false, _) => (x - y).abs() + dx.max(dy),
        }
    }

    fn cast(&self, i: usize, value: f64) -> f64 {
        let (x, e) = self.of(0, i);
        let (from, to) = (self.operands[0].array.ty.dtype, self.ty.dtype);
        match (from.is_float(), to.is_float()) {
            (_, true) if e == 0.0 => self.converted(to, value),
            (_, true) => e + self.rounding(to, value),
            (false, false) => e,
            (true, false) if e == 0.0 => 0.0,
            (true, false) if to == DType::Bool => {
                if x.abs() > e {
                    0.0
                } else {
                    f64::INFINITY
                }
            }
            (true, false) => {
                if (x - e).trunc() == (x + e).trunc() {
                    0.0
                } else {
                    f64::INFINITY
                }
            }
        }
    }

    fn reduce(&self, reduce: &Reduce, values: &[f64]) -> Vec<f64> {
        let x = self.operands[0];
        let wide = self.ty.with_dtype(DType::F64);
        let over =
            |op, array: &Array| Op::from(Reduce { op, axes: reduce.axes.clone() }).eval(&[array], &wide);
        if reduce.op != ReduceOp::Sum || !self.ty.dtype.is_float() {
            let worst = over(ReduceOp::Max, &x.errors());
            return worst.into_iter().map(|error| error.max(0.0)).collect();
        }
        let terms: usize = reduce.axes.iter().map(|&axis| x.array.ty.shape[axis]).product();
        let (errors, magnitudes) = (over(ReduceOp::Sum, &x.errors()), over(ReduceOp::Sum, &x.magnitudes()));
        let sums = values.iter().zip(errors.into_iter().zip(magnitudes));
        sums.map(|(&value, (error, magnitude))| error + self.accumulated(terms, magnitude, value)).collect()
    }

    /// What summing `terms` terms adds, where `magnitude` is the sum of their magnitudes, and what rounding the sum adds.
    fn accumulated(&self, terms: usize, magnitude: f64, value: f64) -> f64 {
        let within = summed(self.rounded(self.ty.dtype));
        let overflows = magnitude > largest(within) && magnitude.is_finite();
        // γₙ = n·u / (1 − n·u), for terms in any order, each of which may be rounded itself.
        let share = (terms as f64 + 1.0) * unit(within);
        let of_sum = if share < 0.5 { share / (1.0 - share) * magnitude } else { f64::INFINITY };
        let tiny = if magnitude == 0.0 { 0.0 } else { terms as f64 * within.smallest_normal() };
        match () {
            () if overflows => f64::INFINITY,
            () if !magnitude.is_finite() => 0.0,
            () => of_sum + tiny + self.rounding(self.ty.dtype, value),
        }
    }

    fn dot(&self, dot: &DotGeneral, values: &[f64]) -> Vec<f64> {
        let [a, b] = [self.operands[0], self.operands[1]];
        let known = |it: &Approximate| it.error.iter().all(|&error| error == 0.0);
        let wide = self.ty.with_dtype(DType::F64);
        let product = |x: &Array, y: &Array| {
            Op::from(DotGeneral { dtype: DType::F64, ..dot.clone() }).eval(&[x, y], &wide)
        };
        if !self.ty.dtype.is_float() {
            let known = known(a) && known(b);
            return vec![if known { 0.0 } else { f64::INFINITY }; values.len()];
        }
        let terms: usize = dot.lhs_contract.iter().map(|&axis| a.array.ty.shape[axis]).product();
        let (x, y) = (a.magnitudes(), b.magnitudes());
        let magnitudes = product(&x, &y);
        let mut errors = vec![0.0; values.len()];
        // |x|·δy + δx·(|y| + δy)
        if !known(b) {
            add(&mut errors, &product(&x, &b.errors()));
        }
        if !known(a) {
            let both = Array {
                values: y.values.iter().zip(&b.error).map(|(y, e)| y + e).collect(),
                ty: y.ty.clone(),
            };
            add(&mut errors, &product(&a.errors(), &both));
        }
        let sums = values.iter().zip(magnitudes).zip(errors);
        sums.map(|((&value, magnitude), error)| error + self.accumulated(terms, magnitude, value)).collect()
    }

    fn scatter(&self, scatter: &ScatterAdd, values: &[f64]) -> Vec<f64> {
        let [indices, updates] = [self.operands[0], self.operands[1]];
        if indices.error.iter().any(|&error| error != 0.0) {
            return vec![f64::INFINITY; values.len()];
        }
        let wide = self.ty.with_dtype(DType::F64);
        let over = |array: &Array| Op::from(scatter.clone()).eval(&[&indices.array, array], &wide);
        let errors = over(&updates.errors());
        if !self.ty.dtype.is_float() {
            return errors;
        }
        let (terms, magnitudes) = (indices.error.len(), over(&updates.magnitudes()));
        // Sums in memory are rounded to their dtype after each term.
        let each = terms as f64 * unit(self.dtype());
        let sums = values.iter().zip(errors.into_iter().zip(magnitudes));
        let sum = |(&value, (error, magnitude)): (&f64, (f64, f64))| {
            error + times(each, magnitude) + self.accumulated(terms, magnitude, value)
        };
        sums.map(sum).collect()
    }
}

/// A magnitude times an error: nothing where there is no error, whatever the magnitude. 0 times a number of which nothing is known is
/// not known, either (this gives NaN, which is read as that): it may be an infinity, and 0 · ∞ is no number.
fn times(magnitude: f64, error: f64) -> f64 {
    if error == 0.0 { 0.0 } else { magnitude * error }
}

fn add(sums: &mut [f64], terms: &[f64]) {
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
}

/// An element that is farther off than it may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Excess {
    /// Which element, row-major.
    pub element: usize,
    /// What it should be.
    pub expected: f64,
    /// What it is.
    pub found: f64,
    /// How far it may be off.
    pub bound: f64,
}

/// Rewriting may replace an expression by an equal one whose bound is another; this is how much larger it may be.
pub const SLACK: f64 = 8.0;

/// The element that is farthest off, measured by its bound, if one is beyond its bound. Elements of which nothing is known fit.
pub fn excess(expected: &Approximate, found: &[f64]) -> Option<Excess> {
    let pairs = expected.array.values.iter().zip(&expected.error).zip(found).enumerate();
    let beyond = pairs.filter_map(|(element, ((&expected, &bound), &found))| {
        let bound = bound * SLACK;
        let fits = bound == f64::INFINITY || expected == found || (expected - found).abs() <= bound;
        (!fits).then_some(Excess { element, expected, found, bound })
    });
    let size = |it: &Excess| {
        let distance = (it.expected - it.found).abs() / it.bound;
        if distance.is_nan() { f64::INFINITY } else { distance }
    };
    beyond.max_by(|a, b| size(a).total_cmp(&size(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values and errors of the outputs of a program over one vector of `f32`.
    fn evaluated(text: &str, x: &[f64]) -> Vec<(f64, f64)> {
        let graph = Graph::parse_verified(text).unwrap();
        let array = Array { ty: TensorType::new(DType::F32, [x.len()]), values: x.to_vec() };
        let inputs = BTreeMap::from([("x".to_string(), Approximate::exact(array))]);
        let values = running_errors(&graph, inputs, Precision::Declared).unwrap();
        let of = |value: &Approximate| -> Vec<_> {
            value.array.values.iter().copied().zip(value.error.iter().copied()).collect()
        };
        graph.outputs().iter().flat_map(|output| of(&values[output.value.index()])).collect()
    }

    #[test]
    fn what_vanishes_is_not_known_to_be_0() {
        let text = r#"graph "vanishing" {
  %x = input {name = "x", dtype = f32, shape = [2]} : f32[2]
  %e = exp %x : f32[2]
  %l = log %e : f32[2]
  %s = mul %e, %e : f32[2]
  %r = div %s, %x : f32[2]
  %z = sub %x, %x : f32[2]
  %p = mul %z, %x : f32[2]
  output "e" = %e
  output "l" = %l
  output "s" = %s
  output "r" = %r
  output "p" = %p
}
"#;
        // e^-500 is a number of `f64` whose square is none.
        let found = evaluated(text, &[-1e4, -500.0]);
        let [e, l, s, r, p] = [0, 1, 2, 3, 4].map(|at| &found[2 * at..2 * at + 2]);
        assert!(e[0].0 == 0.0 && e.iter().all(|(_, error)| (1e-38..1e-36).contains(error)), "{e:?}");
        assert!(l.iter().all(|(_, error)| error.is_infinite()), "{l:?}");
        assert!(s.iter().chain(r).all(|(value, error)| *value == 0.0 && *error > 0.0), "{s:?} {r:?}");
        // A product with 0 is 0.
        assert_eq!(p, [(-0.0, 0.0), (-0.0, 0.0)]);
    }

    #[test]
    fn zero_times_what_may_overflow_is_not_known() {
        let text = r#"graph "overflowing" {
  %x = input {name = "x", dtype = f32, shape = [2]} : f32[2]
  %z = sub %x, %x : f32[2]
  %e = exp %x : f32[2]
  %p = mul %z, %e : f32[2]
  %q = mul %e, %z : f32[2]
  output "p" = %p
  output "q" = %q
}
"#;
        // e^491 is a number of `f64`, and an infinity of `f32`; e^2 is a number of both.
        let found = evaluated(text, &[491.0, 2.0]);
        for product in [&found[..2], &found[2..]] {
            assert_eq!(product[0].1, f64::INFINITY);
            assert_eq!(product[1], (0.0, 0.0));
        }
    }
}
