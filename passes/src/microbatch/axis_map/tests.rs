//! Each op sample cut along each of its axes: slices computed alone and put together are the whole.

use super::*;
use kernfusion_ir::evaluate::{Array, Precision, tabulate};
use kernfusion_ir::samples::{all, difference};
use kernfusion_ir::{Graph, ValueId, strides};
use std::collections::{BTreeMap, BTreeSet};

/// The part of an array along an axis.
fn part(array: &Array, axis: usize, slices: usize, number: usize) -> Array {
    let mut ty = array.ty.clone();
    ty.shape[axis] /= slices;
    let start = number * ty.shape[axis];
    let from = |(along, &i): (usize, &usize)| if along == axis { i + start } else { i };
    let values = tabulate(&ty, |at| array.at(at.iter().enumerate().map(from)));
    Array { ty, values }
}

/// Every value of a sample.
fn values(graph: &Graph, inputs: &BTreeMap<String, kernfusion_ir::Tensor>) -> Vec<Array> {
    let mut values: Vec<Array> = vec![];
    for id in graph.ids() {
        let node = &graph[id];
        let results = match &node.op {
            Op::Input(input) => inputs[&input.name].to_f64(),
            op => {
                evaluated(op, &node.operands.iter().map(|o| &values[o.index()]).collect::<Vec<_>>(), &node.ty)
            }
        };
        values.push(Array { ty: node.ty.clone(), values: results });
    }
    values
}

fn evaluated(op: &Op, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
    let results = op.eval(operands, ty).into_iter();
    results.map(|x| Precision::Double.round(ty.dtype, x)).collect()
}

/// What the slices' results make together.
fn joined(parts: &[Array], result: ResultAxis, whole: &TensorType) -> Vec<f64> {
    match result {
        ResultAxis::Axis(axis) => {
            let strides = strides(&whole.shape);
            let mut values = vec![f64::NAN; whole.elements()];
            for (number, part) in parts.iter().enumerate() {
                let start = number * part.ty.shape[axis] * strides[axis];
                part.for_each(|at, value| {
                    let offset: usize = at.iter().zip(&strides).map(|(i, stride)| i * stride).sum();
                    values[start + offset] = value;
                });
            }
            values
        }
        ResultAxis::Reduced(op) => {
            let combine = |x: f64, y: f64| match op {
                ReduceOp::Sum => x + y,
                _ if x.is_nan() || y.is_nan() => f64::NAN,
                ReduceOp::Max => x.max(y),
                ReduceOp::Min => x.min(y),
            };
            let element = |at: usize| {
                let sum = parts.iter().map(|part| part.values[at]).reduce(combine).expect("parts");
                Precision::Double.round(whole.dtype, sum)
            };
            (0..whole.elements()).map(element).collect()
        }
    }
}

/// Checks one axis of one operand; says whether it can be cut.
fn check(
    name: &str,
    graph: &Graph,
    values: &[Array],
    id: ValueId,
    slot: usize,
    axis: usize,
    slices: usize,
) -> bool {
    let node = &graph[id];
    let operands: Vec<_> = node.operands.iter().map(|operand| &values[operand.index()]).collect();
    let types: Vec<_> = operands.iter().map(|operand| &operand.ty).collect();
    let Ok(map) = axis_map(&node.op, &types, slot, axis, slices) else { return false };
    let context = || format!("{name}: {} operand {slot} axis {axis} in {slices}", node.op.name());
    assert_eq!(map.operands[slot], Some(axis), "{}", context());
    let op = narrowed(&node.op, map.result, slices);
    let computed = |number: usize| {
        let parts = operands.iter().zip(&map.operands).map(|(operand, axis)| match axis {
            Some(axis) => part(operand, *axis, slices, number),
            None => (*operand).clone(),
        });
        let parts: Vec<Array> = parts.collect();
        let types: Vec<_> = parts.iter().map(|part| &part.ty).collect();
        let ty = op.infer(&types).unwrap_or_else(|error| panic!("{}: {error}", context()));
        Array { values: evaluated(&op, &parts.iter().collect::<Vec<_>>(), &ty), ty }
    };
    let parts: Vec<_> = (0..slices).map(computed).collect();
    let together = joined(&parts, map.result, &node.ty);
    let tolerance = if matches!(map.result, ResultAxis::Axis(_)) { 0.0 } else { 1e-12 };
    if let Some(found) = difference(&values[id.index()].values, &together, tolerance) {
        panic!("{}: {found}", context());
    }
    true
}

#[test]
fn slices_of_every_op_make_the_whole() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for sample in all(71) {
        let values = values(&sample.graph, &sample.inputs);
        for id in sample.graph.ids() {
            let node = &sample.graph[id];
            for (slot, &operand) in node.operands.iter().enumerate() {
                for (axis, &extent) in sample.graph[operand].ty.shape.iter().enumerate() {
                    for slices in (2..=extent.min(7)).filter(|slices| extent % slices == 0) {
                        let found = check(&sample.name, &sample.graph, &values, id, slot, axis, slices);
                        *seen.entry(node.op.name()).or_default() += usize::from(found);
                    }
                }
            }
        }
    }
    let expected = [
        "add",
        "broadcast",
        "cast",
        "concat",
        "dot_general",
        "dynamic_slice",
        "dynamic_update",
        "eq",
        "exp",
        "gather",
        "pad",
        "permute",
        "reduce",
        "reshape",
        "scatter_add",
        "select",
        "slice",
    ];
    let missing: BTreeSet<_> =
        expected.into_iter().filter(|name| seen.get(name).is_none_or(|&n| n == 0)).collect();
    assert!(missing.is_empty(), "no axis was checked of {missing:?}; of {seen:?}");
}

#[test]
fn what_lies_outside_of_a_slice_is_refused() {
    let ty = |shape: &[usize]| TensorType::new(kernfusion_ir::DType::F32, shape);
    let refusal =
        |op: Op, shape: &[usize], axis| axis_map(&op, &[&ty(shape), &ty(shape)], 0, axis, 2).unwrap_err();
    assert_eq!(
        refusal(Reshape { shape: vec![6, 4] }.into(), &[4, 6], 1),
        "the reshape mixes the batch with other axes"
    );
    assert_eq!(
        refusal(Reshape { shape: vec![3, 8] }.into(), &[4, 6], 0),
        "the reshape mixes the batch with other axes"
    );
    assert_eq!(
        refusal(Slice { start: vec![0, 1], end: vec![4, 6] }.into(), &[4, 6], 1),
        "it takes a part of the batch"
    );
    assert_eq!(refusal(kernfusion_ir::Concat { axis: 0 }.into(), &[4, 6], 0), "it joins batches");
    assert_eq!(refusal(Gather { axis: 1 }.into(), &[4, 6], 1), "it looks up any place of the batch");
}
