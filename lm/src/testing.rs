//! Judging what is computed in tests.

use kernfusion::HostTensor;
use kernfusion::trace::Program;
use kernfusion_ir::evaluate::{Precision, evaluate};
use std::collections::BTreeMap;

/// Outputs and new states by name, by the reference evaluator in `f64`, with first values of parameters from seed 1.
pub(crate) fn evaluated(program: &Program, inputs: &[(&str, &HostTensor)]) -> BTreeMap<String, Vec<f64>> {
    let given = inputs.iter().map(|(name, tensor)| (name.to_string(), (*tensor).clone()));
    let given: BTreeMap<_, _> = program.initial_parameters(1).chain(given).collect();
    let results = evaluate(&program.graph, &given, Precision::Double).expect("all inputs are given");
    results.into_iter().map(|(name, tensor)| (name, tensor.values)).collect()
}

/// Panics unless both are equal up to a relative and absolute difference.
#[track_caller]
pub(crate) fn assert_close(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= tolerance * (1.0 + expected.abs()), "{i}: {got} is not {expected}");
    }
}
