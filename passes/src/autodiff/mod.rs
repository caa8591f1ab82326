//! Reverse-mode differentiation as a graph transformation.
//!
//! ```text
//! %2 = exp %0                %2 = exp %0
//! %3 = reduce sum %2   →     %3 = reduce sum %2
//!                            %4 = constant 1
//!                            %5 = broadcast %4
//!                            %6 = mul %5 %2        (the gradient of %3 by %0)
//! ```
//!
//! Only the walk and the sum are here; each op's derivative is in its stanza. What flows back from parts of a value is
//! [joined](parts) to one concatenation. Gradients are ordinary nodes, so they have gradients themselves.

mod parts;
mod scan;

use crate::loops;
use kernfusion_ir::{Builder, Graph, IrError, Op, Result, Scan, ValueId, Vjp};
use std::collections::BTreeSet;

/// Appends the gradients of the scalar `of` by each of `wrt`, of their types. Nothing flows through the values in
/// `stopped`.
///
/// # Errors
/// If `of` is not a scalar of floating-point type, or a value of `wrt` is not a float.
pub fn grad(
    graph: &mut Graph,
    of: ValueId,
    wrt: &[ValueId],
    stopped: &BTreeSet<ValueId>,
) -> Result<Vec<ValueId>> {
    check(graph, of, "only a floating-point scalar has gradients", |ty| {
        ty.rank() == 0 && ty.dtype.is_float()
    })?;
    for &value in wrt {
        check(graph, value, "gradients exist by floating-point values only", |ty| ty.dtype.is_float())?;
    }
    let active = active(graph, of, wrt, stopped);
    let mut cotangents = Cotangents(vec![vec![]; of.index() + 1]);
    cotangents.0[of.index()].push(Builder::new(graph, graph[of].origin.clone()).full_like(1.0, of)?);
    for index in (0..=of.index()).rev().filter(|&index| active[index]) {
        let id = ValueId::from_index(index);
        let node = graph[id].clone();
        let mut builder = Builder::new(graph, node.origin);
        let Some(dy) = cotangents.total(&mut builder, index)? else { continue };
        let flows = match &node.op {
            Op::Scan(of) => {
                let all = take_results(&mut builder, of, id, &mut cotangents)?;
                scan::vjp(&mut builder, of, &node.operands, &all)?
            }
            op => op.vjp(&mut Vjp { b: &mut builder, operands: &node.operands, result: id, dy })?,
        };
        for (operand, flow) in node.operands.into_iter().zip(flows) {
            if let Some(flow) = flow.filter(|_| active[operand.index()]) {
                cotangents.0[operand.index()].push(flow);
            }
        }
    }
    let gradient = |&value: &ValueId| {
        let origin = graph[value].origin.clone();
        let mut builder = Builder::new(graph, origin);
        match cotangents.total(&mut builder, value.index())? {
            Some(gradient) => Ok(gradient),
            None => builder.zeros_like(value),
        }
    };
    wrt.iter().map(gradient).collect()
}

/// What flows back to each value.
struct Cotangents(Vec<Vec<ValueId>>);

impl Cotangents {
    /// All that has flowed to a value, as one value; `None` if nothing has.
    fn total(&mut self, builder: &mut Builder<'_>, value: usize) -> Result<Option<ValueId>> {
        let Some(flows) = self.0.get_mut(value).filter(|flows| !flows.is_empty()) else { return Ok(None) };
        let mut rest = parts::joined(builder, flows)?.into_iter();
        let mut sum = rest.next().expect("as much as flows");
        for flow in rest {
            sum = builder.add(sum, flow)?;
        }
        *flows = vec![sum];
        Ok(Some(sum))
    }
}

/// Takes the cotangents of all results of a loop, of which `last` is the one that comes last. Where a result has two nodes,
/// or its cotangent grows later, what is left is passed back by another loop.
fn take_results(
    builder: &mut Builder<'_>,
    scan: &Scan,
    last: ValueId,
    cotangents: &mut Cotangents,
) -> Result<Vec<Option<ValueId>>> {
    let mut all = vec![None; scan.body.graph().outputs().len()];
    for index in 0..=last.index() {
        let id = ValueId::from_index(index);
        if loops::same(builder.graph(), id, last) {
            let slot = &mut all[loops::scan(builder.graph(), id).result];
            if slot.is_none() {
                *slot = cotangents.total(builder, index)?;
                cotangents.0[index].clear();
            }
        }
    }
    Ok(all)
}

fn check(
    graph: &Graph,
    value: ValueId,
    reason: &str,
    accepts: impl Fn(&kernfusion_ir::TensorType) -> bool,
) -> Result<()> {
    let node = &graph[value];
    if accepts(&node.ty) {
        return Ok(());
    }
    let reason = format!("{reason}, not {}", node.ty);
    Err(IrError::Gradient { op: node.op.name(), reason, origin: node.origin.clone() })
}

/// Which values lie on a path from `wrt` to `of` that avoids `stopped`.
fn active(graph: &Graph, of: ValueId, wrt: &[ValueId], stopped: &BTreeSet<ValueId>) -> Vec<bool> {
    let mut from_wrt = vec![false; of.index() + 1];
    for index in 0..=of.index() {
        let id = ValueId::from_index(index);
        let node = &graph[id];
        let reached = node.operands.iter().any(|operand| from_wrt[operand.index()]);
        let source = wrt.contains(&id);
        from_wrt[index] = !stopped.contains(&id) && node.ty.dtype.is_float() && (reached || source);
    }
    let to_of = graph.needed([of], |id| !from_wrt[id.index()]);
    from_wrt.iter().zip(&to_of).map(|(from, to)| *from && *to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::evaluate::{Precision, evaluate};
    use kernfusion_ir::{Binary, DType, InputRole, Origin, ReduceOp, Tensor, TensorType, Unary};

    /// y = Σ sin(x)², y′ = 2·sin x·cos x, and by differentiating again y″ = 2·cos 2x.
    #[test]
    fn gradients_of_gradients() {
        let mut graph = Graph::new("twice");
        let mut b = Builder::new(&mut graph, Origin::default());
        let x = b.input("x", InputRole::Data, TensorType::new(DType::F64, [5])).expect("input");
        let s = b.unary(Unary::Sin, x).expect("sin");
        let square = b.binary(Binary::Mul, s, s).expect("mul");
        let y = b.reduce(ReduceOp::Sum, &[0], square).expect("sum");
        let first = grad(&mut graph, y, &[x], &BTreeSet::new()).expect("gradient")[0];
        let mut b = Builder::new(&mut graph, Origin::default());
        let total = b.reduce(ReduceOp::Sum, &[0], first).expect("sum");
        let second = grad(&mut graph, total, &[x], &BTreeSet::new()).expect("gradient")[0];
        graph.output("first", first);
        graph.output("second", second);
        let points: Vec<f64> = vec![-2.1, -0.4, 0.3, 1.7, 2.9];
        let inputs = [("x".to_string(), Tensor::new([5], points.clone()))].into();
        let results = evaluate(&graph, &inputs, Precision::Double).expect("evaluates");
        for (i, x) in points.into_iter().enumerate() {
            assert!((results["first"].values[i] - (2.0 * x).sin()).abs() < 1e-12);
            assert!((results["second"].values[i] - 2.0 * (2.0 * x).cos()).abs() < 1e-12);
        }
    }

    /// Slices, here with a gap and in any order, have one concatenation as their gradient; where they overlap, it is a sum of pads.
    #[test]
    fn gradients_of_slices_are_joined() {
        let gradient = |slices: &[(usize, usize)]| {
            let mut graph = Graph::new("slices");
            let mut b = Builder::new(&mut graph, Origin::default());
            let x = b.input("x", InputRole::Data, TensorType::new(DType::F64, [2, 7])).expect("input");
            let mut sum = b.reduce(ReduceOp::Sum, &[0, 1], x).expect("sum");
            for &(start, end) in slices {
                let part = b.slice(x, &[0, start], &[2, end]).expect("slice");
                let part = b.unary(Unary::Exp, part).expect("exp");
                let part = b.reduce(ReduceOp::Sum, &[0, 1], part).expect("sum");
                sum = b.add(sum, part).expect("add");
            }
            let dx = grad(&mut graph, sum, &[x], &BTreeSet::new()).expect("gradient")[0];
            graph.output("dx", dx);
            let needed = graph.needed([dx], |_| false);
            let count = |name: &str| {
                graph.ids().filter(|id| needed[id.index()] && graph[*id].op.name() == name).count()
            };
            let counts = [count("concat"), count("pad")];
            let values: Vec<f64> = (0..14).map(|at| f64::from(at) / 7.0).collect();
            let inputs = [("x".to_string(), Tensor::new([2, 7], values.clone()))].into();
            let found = evaluate(&graph, &inputs, Precision::Double).expect("evaluates");
            let expected = |at: usize| {
                let times = slices.iter().filter(|(start, end)| (*start..*end).contains(&(at % 7))).count();
                1.0 + times as f64 * values[at].exp()
            };
            for (at, found) in found["dx"].values.iter().enumerate() {
                assert!((found - expected(at)).abs() < 1e-12, "{slices:?} at {at}");
            }
            counts
        };
        assert_eq!(gradient(&[(5, 7), (0, 1), (2, 5)]), [1, 0]);
        assert_eq!(gradient(&[(0, 3), (2, 7)]), [0, 2]);
        assert_eq!(gradient(&[(1, 4)]), [0, 1]);
    }

    #[test]
    fn a_stopped_value_passes_nothing_and_an_unused_one_has_gradient_zero() {
        let mut graph = Graph::new("stopped");
        let mut b = Builder::new(&mut graph, Origin::default());
        let x = b.input("x", InputRole::Data, TensorType::new(DType::F64, [3])).expect("input");
        let z = b.input("z", InputRole::Data, TensorType::new(DType::F64, [3])).expect("input");
        let e = b.unary(Unary::Exp, x).expect("exp");
        let p = b.binary(Binary::Mul, x, e).expect("mul");
        let y = b.reduce(ReduceOp::Sum, &[0], p).expect("sum");
        let gradients = grad(&mut graph, y, &[x, z], &BTreeSet::from([e])).expect("gradient");
        graph.output("x", gradients[0]);
        graph.output("z", gradients[1]);
        let input = |values: [f64; 3]| Tensor::new([3], values.to_vec());
        let inputs =
            [("x".to_string(), input([0.5, -1.0, 2.0])), ("z".to_string(), input([1.0, 2.0, 3.0]))].into();
        let results = evaluate(&graph, &inputs, Precision::Double).expect("evaluates");
        let expected: Vec<f64> = [0.5f64, -1.0, 2.0].iter().map(|x| x.exp()).collect();
        assert_eq!(results["x"].values, expected);
        assert_eq!(results["z"].values, [0.0; 3]);
    }
}
