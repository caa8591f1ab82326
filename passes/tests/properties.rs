//! On every op sample and on random graphs: passes keep what a graph computes, and so do its kernels, fused and unfused.

use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
use kernfusion_ir::kernel::{interpret, verify};
use kernfusion_ir::samples::{all, difference, random_graph};
use kernfusion_ir::{Graph, Op, Tensor};
use kernfusion_passes::fuse::{Fusion, any_kernel, fuse};
use kernfusion_passes::plan::plan;
use kernfusion_passes::{MIXED_PRECISION, OF_GPUS, PIPELINE, run};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Compares evaluation, the passes' result, and the interpretation of kernels, all in `f64`.
fn check(name: &str, graph: &Graph, inputs: &BTreeMap<String, Tensor>, tolerance: f64) {
    let array = |tensor: &Tensor| Array { ty: tensor.ty(), values: tensor.to_f64() };
    let arrays: BTreeMap<_, _> = inputs.iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect();
    let evaluated =
        |graph: &Graph| evaluate_arrays(graph, arrays.clone(), Precision::Double).expect("evaluates");
    let expected = evaluated(graph);
    let mut simplified = graph.clone();
    run(&mut simplified, PIPELINE, None, &mut |_, _| {}).unwrap_or_else(|error| panic!("{name}: {error}"));
    // Numbers that are folded are rounded to their dtype, `f32` in random graphs.
    let folds = !numbers(&simplified).is_subset(&numbers(graph));
    let tolerance = if folds { tolerance.max(1e-6) } else { tolerance };
    compare(&format!("{name} after the passes"), &evaluated(&simplified), &expected, tolerance);
    // Without rounding, mixed precision changes nothing.
    let mut mixed = simplified.clone();
    run(&mut mixed, MIXED_PRECISION, None, &mut |_, _| {}).unwrap_or_else(|error| panic!("{name}: {error}"));
    compare(&format!("{name} in mixed precision\n{mixed}"), &evaluated(&mixed), &expected, tolerance);
    for before in [&simplified, &mixed] {
        let mut of_gpu = before.clone();
        run(&mut of_gpu, OF_GPUS, None, &mut |_, _| {}).unwrap_or_else(|error| panic!("{name}: {error}"));
        compare(&format!("{name} after the passes for GPUs"), &evaluated(&of_gpu), &expected, tolerance);
    }
    let programs = [(graph, Fusion::None), (&simplified, Fusion::Full), (&mixed, Fusion::Full)];
    for (graph, fusion) in programs {
        let kernels =
            fuse(graph, fusion, any_kernel).unwrap_or_else(|error| panic!("{name} {fusion:?}: {error}"));
        verify(&kernels).unwrap_or_else(|error| panic!("{name} {fusion:?}: {error}\n{kernels}"));
        let results = interpret(&kernels, &arrays, Precision::Double).expect("interprets");
        compare(&format!("{name} {fusion:?}\n{kernels}"), &results, &expected, tolerance);
        assert!(plan(kernels.clone()).places.len() == kernels.buffers.len());
    }
}

/// The constants of a graph, by their bits.
fn numbers(graph: &Graph) -> BTreeSet<u64> {
    let number = |id| match &graph[id].op {
        Op::Constant(constant) => Some(constant.value.value().to_bits()),
        _ => None,
    };
    graph.ids().filter_map(number).collect()
}

fn compare(what: &str, got: &BTreeMap<String, Array>, expected: &BTreeMap<String, Array>, tolerance: f64) {
    for (name, expected) in expected {
        let worst = difference(&expected.values, &got[name].values, tolerance);
        assert!(worst.is_none(), "{what}: output {name}: {worst:?}");
    }
}

#[test]
fn every_op_sample() {
    for sample in all(3) {
        check(&sample.name, &sample.graph, &sample.inputs, 1e-9);
    }
}

/// Random graphs that were wrong once: values of which only a part was computed, and a reduction over what was no row.
#[test]
fn graphs_of_old_mistakes() {
    for (seed, size) in [(85_091, 18), (65_132, 23), (71_917, 31), (384_868, 37)] {
        let (graph, inputs) = random_graph(seed, size);
        check(&format!("seed {seed}, size {size}"), &graph, &inputs, 1e-9);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_graphs(seed in 0u64..1_000_000, size in 4usize..40) {
        let (graph, inputs) = random_graph(seed, size);
        check(&format!("seed {seed}, size {size}"), &graph, &inputs, 1e-9);
    }
}
