//! The table of op samples, and random programs.

use crate::judge::{Case, check, planned};
use kernfusion_cuda::Options;
use kernfusion_ir::evaluate::{Precision, evaluate};
use kernfusion_ir::samples::{Sample, all, random_graph};
use kernfusion_passes::fuse::Fusion;

/// How far a random program may be off: it has tens of operations in a row.
const RANDOM_TOLERANCE: f64 = 1e-4;

#[test]
fn every_op_on_every_dtype() {
    let case = |sample: Sample| Case {
        plan: planned(&sample.graph, Fusion::Full),
        expected: sample.expected(),
        name: sample.name,
        inputs: sample.inputs,
        tolerance: sample.tolerance,
    };
    let cases: Vec<_> = all(1).into_iter().map(case).collect();
    check(&cases, &Options::default());
}

#[test]
fn random_programs() {
    let case = |seed: u64| {
        let (graph, inputs) = random_graph(seed, 24);
        let fusion = if seed.is_multiple_of(4) { Fusion::None } else { Fusion::Full };
        Case {
            name: format!("random program {seed}"),
            plan: planned(&graph, fusion),
            expected: evaluate(&graph, &inputs, Precision::Declared).expect("evaluates"),
            inputs,
            tolerance: RANDOM_TOLERANCE,
        }
    };
    let cases: Vec<_> = (0..40).map(case).collect();
    check(&cases, &Options::default());
}
