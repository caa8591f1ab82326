//! What fusion gains, one bench for each family of kernels: the same program through the public pipeline, once with
//! everything fused and once with one kernel an op. Both have the same passes, the same arena, and all cores.
//!
//! `cargo bench --bench fusion -- attention` runs one family. Inputs are states, and results become states, so that
//! nothing but kernels is timed.

use criterion::{Criterion, criterion_group, criterion_main};
use kernfusion::HostTensor;
use kernfusion::init::Init;
use kernfusion::loss::cross_entropy;
use kernfusion::nn::LayerNorm;
use kernfusion::optim::{Optimizer, TrainStep};
use kernfusion::trace::{Program, Tensor, Trace};
use kernfusion_cpu::{Options, PlanExecutable};
use kernfusion_ir::{DType, InputRole};
use kernfusion_passes::fuse::{Fusion, any_kernel, fuse};
use kernfusion_passes::plan::plan;
use kernfusion_passes::{PIPELINE, run};
use std::time::Duration;

/// A program whose results become states.
fn program(build: impl FnOnce(&Trace) -> Vec<Tensor>) -> Program {
    let trace = Trace::training();
    for (number, result) in build(&trace).iter().enumerate() {
        let state = trace.state(&format!("result.{number}"), result.shape(), result.dtype());
        trace.update(&state, result);
    }
    trace.finish(&[]).expect("a correct program")
}

/// A random tensor.
fn random(trace: &Trace, name: &str, shape: impl Into<Vec<usize>>) -> Tensor {
    trace.parameter(name, shape, Init::Normal { std: 0.5 })
}

/// Times a program fused and unfused.
fn compare(c: &mut Criterion, name: &str, program: &Program, data: &[(&str, HostTensor)]) {
    let mut group = c.benchmark_group(name);
    for (label, fusion) in [("fused", Fusion::Full), ("unfused", Fusion::None)] {
        let mut graph = program.graph.clone();
        run(&mut graph, PIPELINE, None, &mut |_, _| {}).expect("the passes succeed");
        let states = program.initial_states(7).expect("memory for the states");
        let plan = plan(fuse(&graph, fusion, any_kernel).expect("every op has a kernel"));
        let mut executable =
            PlanExecutable::compile(plan, &states, &Options::default()).expect("the plan compiles");
        let data: Vec<_> = data.iter().map(|(name, tensor)| (*name, tensor)).collect();
        group.bench_function(label, |b| b.iter(|| executable.run(&data).expect("runs")));
    }
    group.finish();
}

/// gelu(x · s + t) · u + x: an elementwise chain.
fn maps(c: &mut Criterion) {
    let program = program(|trace| {
        let [x, s, t, u] = ["x", "s", "t", "u"].map(|name| random(trace, name, [2048, 1024]));
        vec![(&x * &s + &t).gelu_tanh() * &u + &x]
    });
    compare(c, "maps", &program, &[]);
}

/// Layer norm of rows, then softmax of what it gives.
fn rows(c: &mut Criterion) {
    let program = program(|trace| {
        let x = random(trace, "x", [8192, 256]);
        vec![LayerNorm::new(trace, "norm", 256).forward(&x).softmax(-1)]
    });
    compare(c, "rows", &program, &[]);
}

/// The gradients of a layer norm: sums along rows and across them.
fn columns(c: &mut Criterion) {
    let program = program(|trace| {
        let [x, dy] = ["x", "dy"].map(|name| random(trace, name, [8192, 384]));
        let norm = LayerNorm::new(trace, "norm", 384);
        let loss = (norm.forward(&x) * dy).sum_all();
        let parameters = trace.parameters();
        let of = |name: &str| parameters.iter().find(|(p, _)| p.name == name).expect("declared").1.clone();
        loss.grad(&[&x, &of("norm.weight"), &of("norm.bias")])
    });
    compare(c, "columns", &program, &[]);
}

/// gelu(x · Wᵀ + b) + r: a product with everything that follows it.
fn contraction_with_epilogue(c: &mut Criterion) {
    let program = program(|trace| {
        let [x, w] = [("x", [2048, 256]), ("w", [1024, 256])].map(|(name, shape)| random(trace, name, shape));
        let [b, r] = [random(trace, "b", [1024]), random(trace, "r", [2048, 1024])];
        vec![(x.linear(&w) + b).gelu() + r]
    });
    compare(c, "contraction with epilogue", &program, &[]);
}

/// Causal attention of 24 heads, forward and backward.
fn attention(c: &mut Criterion) {
    let program = program(|trace| {
        let (heads, length, width) = (24, 256, 64);
        let [q, k, v, dy] = ["q", "k", "v", "dy"].map(|name| random(trace, name, [1, heads, length, width]));
        let scores = q.matmul_transposed(&k) * (1.0 / (width as f64).sqrt());
        let seen = trace.causal_mask(length, length);
        let y = seen.select(scores, f64::NEG_INFINITY).softmax(-1).matmul(&v);
        let gradients = (&y * dy).sum_all().grad(&[&q, &k, &v]);
        [vec![y], gradients].concat()
    });
    compare(c, "attention forward and backward", &program, &[]);
}

/// A classifier with its loss, and the gradients of both its operands.
fn classifier(c: &mut Criterion) {
    let (tokens, width, vocabulary) = (512, 128, 4096);
    let program = program(|trace| {
        let [h, w] = [("h", [tokens, width]), ("w", [vocabulary, width])]
            .map(|(name, shape)| random(trace, name, shape));
        let loss = cross_entropy(&h.linear(&w), &trace.input("y", [tokens], DType::I32));
        [vec![loss.clone()], loss.grad(&[&h, &w])].concat()
    });
    let y = (0..tokens as i32).map(|i| i * 7919 % vocabulary as i32).collect::<Vec<_>>();
    compare(c, "classifier and cross-entropy", &program, &[("y", HostTensor::new([tokens], y))]);
}

/// AdamW over two million parameters, whose gradient is a tensor in memory.
fn optimizer(c: &mut Criterion) {
    let trace = Trace::training();
    let p = random(&trace, "p", [2048, 1024]);
    let gradient = trace.state("gradient", [2048, 1024], DType::F32);
    let step = TrainStep::new(&(p * gradient).sum_all(), &Optimizer::adamw(1e-3), None).expect("valid");
    let scalars = step.scalars(3, 1e-3, 1);
    let inputs = step.program.graph.inputs().filter(|(_, _, role)| *role == InputRole::Data);
    assert_eq!(inputs.count(), scalars.len(), "the step takes scalars alone");
    compare(c, "optimizer", &step.program, &scalars);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = maps, rows, columns, contraction_with_epilogue, attention, classifier, optimizer
}
criterion_main!(benches);
