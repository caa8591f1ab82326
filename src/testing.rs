//! Evaluating traced programs in tests, by the reference evaluator in `f64`.

use crate::trace::{Program, Tensor, Trace};
use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
use kernfusion_ir::random::element_bits;
use kernfusion_ir::{DType, InputRole};
use std::collections::BTreeMap;

/// An input's shape and elements.
pub(crate) type Given<'a> = (&'a [usize], Vec<f64>);

/// Outputs and new states by name. Inputs are row-major; states that are not among them start as in a run with seed 1.
pub(crate) fn evaluate(program: &Program, inputs: &[(&str, Vec<f64>)]) -> BTreeMap<String, Vec<f64>> {
    let graph = &program.graph;
    let mut arrays = BTreeMap::new();
    for (id, name, role) in graph.inputs() {
        let ty = graph[id].ty.clone();
        let given = inputs.iter().find(|(other, _)| *other == name).map(|(_, values)| values.clone());
        let values = match (given, role) {
            (Some(values), _) => values,
            (None, InputRole::State) => vec![0.0; ty.elements()],
            (None, InputRole::Data) => panic!("the test gives no {name}"),
        };
        assert_eq!(values.len(), ty.elements(), "elements of {name}: {ty}");
        arrays.insert(name.to_string(), Array { ty, values });
    }
    for (name, tensor) in program.initial_parameters(1) {
        if !inputs.iter().any(|(other, _)| *other == name) {
            arrays.get_mut(&name).expect("parameters are inputs").values = tensor.to_f64();
        }
    }
    let results = evaluate_arrays(graph, arrays, Precision::Double).expect("all inputs are given");
    results.into_iter().map(|(name, array)| (name, array.values)).collect()
}

/// The value of a function of `f64` inputs.
pub(crate) fn value(inputs: &[Given<'_>], build: impl Fn(&Trace, &[Tensor]) -> Tensor) -> Vec<f64> {
    let (program, names) = traced(inputs, |trace, tensors| vec![build(trace, tensors)]);
    evaluate(&program, &named(&names, inputs)).remove("0").expect("the one output")
}

/// Compares the gradients of a scalar function by all its `f64` inputs with central differences.
pub(crate) fn check_gradients(inputs: &[Given<'_>], build: impl Fn(&Trace, &[Tensor]) -> Tensor) {
    let (program, names) = traced(inputs, |trace, tensors| {
        let y = build(trace, tensors);
        let gradients = y.grad(&tensors.iter().collect::<Vec<_>>());
        [vec![y], gradients].concat()
    });
    let results = evaluate(&program, &named(&names, inputs));
    let step = 1e-6;
    for i in 0..inputs.len() {
        for (element, &got) in results[&(i + 1).to_string()].iter().enumerate() {
            let [below, above] = [-step, step].map(|step| {
                let mut moved = inputs.to_vec();
                moved[i].1[element] += step;
                evaluate(&program, &named(&names, &moved))["0"][0]
            });
            let expected = (above - below) / (2.0 * step);
            let close = (got - expected).abs() <= 1e-7 + 1e-6 * expected.abs().max(got.abs());
            assert!(close, "input {i}, element {element}: gradient {got}, difference {expected}");
        }
    }
}

/// Random numbers between two bounds.
pub(crate) fn random(seed: u32, count: usize, low: f64, high: f64) -> Vec<f64> {
    let uniform = |i| f64::from(element_bits(seed, 0, 0, i as u64)) * (-32f64).exp2();
    (0..count).map(|i| low + (high - low) * uniform(i)).collect()
}

/// Panics unless both are equal up to a relative and absolute difference.
#[track_caller]
pub(crate) fn assert_close(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let near = (got - expected).abs() <= tolerance * (1.0 + expected.abs());
        assert!(near || got == expected || got.is_nan() && expected.is_nan(), "{i}: {got} is not {expected}");
    }
}

fn traced(inputs: &[Given<'_>], build: impl Fn(&Trace, &[Tensor]) -> Vec<Tensor>) -> (Program, Vec<String>) {
    let trace = Trace::training();
    let names: Vec<_> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let declare = |(name, (shape, _)): (&String, &Given<'_>)| trace.input(name, *shape, DType::F64);
    let tensors: Vec<_> = names.iter().zip(inputs).map(declare).collect();
    let outputs = build(&trace, &tensors);
    let numbers: Vec<_> = (0..outputs.len()).map(|i| i.to_string()).collect();
    let outputs: Vec<_> = numbers.iter().map(String::as_str).zip(&outputs).collect();
    (trace.finish(&outputs).expect("a correct program"), names)
}

fn named<'a>(names: &'a [String], inputs: &[Given<'_>]) -> Vec<(&'a str, Vec<f64>)> {
    names.iter().map(String::as_str).zip(inputs.iter().map(|(_, values)| values.clone())).collect()
}
