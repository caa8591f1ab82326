//! Renders programs, compiles the functions of all of them together, and compares what they compute.

use kernfusion_cuda::emulator::{self, Emulator, EmulatorError, Job, ThreadSchedule};
use kernfusion_cuda::{Launches, Options, Renderer};
use kernfusion_ir::evaluate::Array;
use kernfusion_ir::kernel::{KernelGraph, Plan, verify};
use kernfusion_ir::samples::difference;
use kernfusion_ir::{Graph, Tensor};
use kernfusion_passes::fuse::{Fusion, any_kernel, fuse};
use kernfusion_passes::plan::plan;
use std::collections::BTreeMap;

/// A program with its inputs, and what it should compute.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) plan: Plan,
    pub(crate) inputs: BTreeMap<String, Tensor>,
    pub(crate) expected: BTreeMap<String, Array>,
    pub(crate) tolerance: f64,
}

/// The plan of a graph.
pub(crate) fn planned(graph: &Graph, fusion: Fusion) -> Plan {
    let kernels: KernelGraph = fuse(graph, fusion, any_kernel).expect("fuses");
    verify(&kernels).expect("valid kernels");
    plan(kernels)
}

/// Whether there is no C++ compiler, which the emulator needs; says so.
pub(crate) fn is_skipped() -> bool {
    let is_skipped = !emulator::is_present();
    if is_skipped {
        println!("skipped: there is no C++ compiler (g++, or what CXX names)");
    }
    is_skipped
}

/// Checks all cases under every schedule; shows those that fail.
pub(crate) fn check(cases: &[Case], options: &Options) {
    if is_skipped() {
        return;
    }
    let mut renderer = Renderer::new(options.clone());
    let programs: Vec<_> = cases.iter().map(|case| renderer.program(&case.plan).expect(&case.name)).collect();
    let emulator = Emulator::build(renderer.functions()).unwrap_or_else(|error| panic!("{error}"));
    let failures: Vec<_> = ThreadSchedule::ALL
        .iter()
        .flat_map(|schedule| failures(&emulator, cases, &programs, *schedule))
        .collect();
    let shown = failures.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {} runs fail:\n{shown}", failures.len(), 4 * cases.len());
}

/// What is wrong with each case that fails.
pub(crate) fn failures(
    emulator: &Emulator,
    cases: &[Case],
    programs: &[Launches],
    schedule: ThreadSchedule,
) -> Vec<String> {
    let pairs = cases.iter().zip(programs);
    let jobs: Vec<_> =
        pairs.map(|(case, program)| Job { plan: &case.plan, program, inputs: &case.inputs }).collect();
    let results = match emulator.run(&jobs, schedule) {
        Ok(results) => results,
        Err(EmulatorError::Run(text)) => return vec![format!("{schedule:?}: {text}")],
        Err(error) => panic!("{error}"),
    };
    let wrong = |(case, found): (&Case, &BTreeMap<String, Tensor>)| {
        let reason = case.expected.iter().find_map(|(name, expected)| {
            let tolerance = if expected.ty.dtype.is_float() { case.tolerance } else { 0.0 };
            difference(&expected.values, &found[name].to_f64(), tolerance)
                .map(|reason| format!("{name}: {reason}"))
        });
        reason.map(|reason| format!("{} under {schedule:?}: {reason}", case.name))
    };
    cases.iter().zip(&results).filter_map(wrong).collect()
}
