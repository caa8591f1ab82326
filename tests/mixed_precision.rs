//! Training with `bf16` products against the reference evaluator and against `f32`, on small GPTs.

use kernfusion::HostTensor;
use kernfusion::compile::{Compiled, MemoryStrategy, Mode, Precision, Stages, Target, compile};
use kernfusion::loss::cross_entropy;
use kernfusion::models::{Gpt, GptConfig};
use kernfusion::optim::Optimizer;
use kernfusion::trace::{Program, Trace};
use kernfusion_codegen::States;
use kernfusion_ir::evaluate::{self, evaluate};
use kernfusion_ir::kernel::BufferRole;
use kernfusion_ir::samples::Draws;
use kernfusion_ir::{DType, Graph, InputRole};
use std::collections::BTreeMap;

type Tensors = BTreeMap<String, HostTensor>;

const BATCH: usize = 3;

fn config() -> GptConfig {
    GptConfig { vocabulary: 23, context: 12, layers: 2, heads: 2, width: 24, ..GptConfig::default() }
}

/// What makes a Llama of a decoder.
const LLAMA: &str = r#"{"kv_heads": 1, "bias": false, "feed_forward": "swiglu", "normalization": "rms", "positions": {"rope": {}},
    "window": 7}"#;

/// What makes a DeepSeek of it.
const DEEPSEEK: &str = r#"{"bias": false, "feed_forward": "swiglu", "normalization": "rms", "positions": {"rope": {}},
    "latent": {"kv_rank": 12, "head_width": 12, "rope_width": 8, "value_width": 12}}"#;

/// Windows of a text in which each token mostly follows from the one before it.
fn batch(config: &GptConfig, windows: usize, seed: u64) -> [HostTensor; 2] {
    let mut draws = Draws::new(seed);
    let (mut x, mut y) = (vec![], vec![]);
    for _ in 0..windows {
        let mut token = draws.below(config.vocabulary);
        for _ in 0..config.context {
            x.push(token as i32);
            let next = (token * 5 + 3) % config.vocabulary;
            token = if draws.below(10) == 0 { draws.below(config.vocabulary) } else { next };
            y.push(token as i32);
        }
    }
    [x, y].map(|tokens| HostTensor::new([windows, config.context], tokens))
}

/// The loss and its gradient by every parameter as outputs.
fn gradients(config: &GptConfig) -> Program {
    let trace = Trace::training();
    let shape = [BATCH, config.context];
    let (x, y) = (trace.input("x", shape, DType::I32), trace.input("y", shape, DType::I32));
    let loss = cross_entropy(&Gpt::new(&trace, config).unwrap().forward(&x), &y);
    let (parameters, tensors): (Vec<_>, Vec<_>) = trace.parameters().into_iter().unzip();
    let gradients = loss.grad(&tensors.iter().collect::<Vec<_>>());
    let named = parameters.iter().map(|parameter| parameter.name.as_str()).zip(&gradients);
    trace.finish(&[("loss", &loss)].into_iter().chain(named).collect::<Vec<_>>()).unwrap()
}

/// Parameters and one batch.
fn inputs(program: &Program, config: &GptConfig) -> Tensors {
    let [x, y] = batch(config, BATCH, 7);
    let parameters = program.initial_parameters(3).map(|(name, tensor)| (name.to_string(), tensor));
    parameters.chain([("x".into(), x), ("y".into(), y)]).collect()
}

fn run_once(program: &Program, inputs: &Tensors, target: &Target) -> Tensors {
    let states = States::new();
    let mut data = vec![];
    for (_, name, role) in program.graph.inputs() {
        match role {
            InputRole::State => states.set(name, &inputs[name]).unwrap(),
            InputRole::Data => data.push((name, &inputs[name])),
        }
    }
    let outputs = compile(&program.graph, &states, target).unwrap().run(&data).unwrap();
    outputs.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect()
}

/// The graph as a target compiles it, without fusion.
fn passed(graph: &Graph, precision: Precision) -> Graph {
    let mut graph = graph.clone();
    let stages = Stages::new(&Target::cpu().precision(precision), MemoryStrategy::NONE);
    stages.simplify(&mut graph, None, &mut |_, _| {}).unwrap();
    graph
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn bf16() -> Target {
    Target::cpu().precision(Precision::Bf16)
}

/// The largest distance of two tensors, in units of the largest element.
fn distance(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(f64::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
    got.iter().zip(expected).fold(0.0, |worst: f64, (x, y)| worst.max((x - y).abs())) / largest
}

/// The largest of rows is found again by backward, which reads the rows rounded.
#[test]
fn gradients_of_extrema_go_where_the_extremum_is() {
    let trace = Trace::training();
    let (rows, width) = (5, 12);
    let x = trace.input("x", [rows, width], DType::F32);
    let (a, b) = (trace.input("a", [width, width], DType::F32), trace.input("b", [width, width], DType::F32));
    let hidden = x.matmul(&a);
    let loss = hidden.max(&[1]).square().sum_all() + hidden.matmul(&b).min(&[0]).sum_all();
    let gradients = loss.grad(&[&a, &b]);
    let program = trace.finish(&[("loss", &loss), ("a'", &gradients[0]), ("b'", &gradients[1])]).unwrap();
    let mut draws = Draws::new(5);
    let mut random = |shape: [usize; 2]| {
        HostTensor::new(
            shape,
            (0..shape[0] * shape[1]).map(|_| draws.between(-1.0, 1.0) as f32).collect::<Vec<_>>(),
        )
    };
    let square = [width, width];
    let inputs = Tensors::from([
        ("x".into(), random([rows, width])),
        ("a".into(), random(square)),
        ("b".into(), random(square)),
    ]);
    let (exact, narrow) = (run_once(&program, &inputs, &Target::cpu()), run_once(&program, &inputs, &bf16()));
    for (name, exact) in &exact {
        let cosine = cosine(&narrow[name].to_f64(), &exact.to_f64());
        assert!(cosine > 0.99, "{name}: {cosine}");
    }
}

#[test]
fn gradients_point_where_those_of_f32_do() {
    for config in [
        config(),
        GptConfig { tied: true, qkv_bias: true, dropout: 0.0, layers: 1, ..config() },
        GptConfig { norm: serde_json::from_str("\"post\"").unwrap(), width: 32, heads: 4, ..config() },
        config().with_json(LLAMA).unwrap(),
        config().with_json(DEEPSEEK).unwrap(),
    ] {
        let program = gradients(&config);
        let inputs = inputs(&program, &config);
        let exact = evaluate(&program.graph, &inputs, evaluate::Precision::Double).unwrap();
        for mode in [Mode::Compiled, Mode::Eager] {
            let got = run_once(&program, &inputs, &bf16().mode(mode));
            for (name, exact) in &exact {
                let (got, exact) = (got[name].to_f64(), &exact.values);
                let cosine = cosine(&got, exact);
                assert!(cosine > 0.999, "{mode} {name}: cosine {cosine}");
                let distance = distance(&got, exact);
                assert!(distance < 0.04, "{mode} {name}: {distance}");
            }
        }
    }
}

/// The evaluator rounds wherever the graph says. A value near the middle between two of `bf16` may go either way, and
/// what follows from it with it, so the two stay closer to each other than to `f64`, but not the same.
#[test]
fn compiled_gradients_are_those_of_the_evaluator_with_rounding() {
    let config = config();
    let program = gradients(&config);
    let inputs = inputs(&program, &config);
    let graph = passed(&program.graph, Precision::Bf16);
    let expected = evaluate(&graph, &inputs, evaluate::Precision::Declared).unwrap();
    let exact = evaluate(&program.graph, &inputs, evaluate::Precision::Double).unwrap();
    let got = run_once(&program, &inputs, &bf16());
    let (mut near, mut far) = (0.0, 0.0);
    for (name, expected) in &expected {
        let here = norm_of_difference(&got[name].to_f64(), &expected.values);
        assert!(here < 5e-3, "{name}: {here}");
        near += here;
        far += norm_of_difference(&exact[name].values, &expected.values);
    }
    assert!(near < 0.7 * far, "rounding is not where the graph has it: {near} {far}");
}

/// |got − expected| / |expected|, Euclidean.
fn norm_of_difference(got: &[f64], expected: &[f64]) -> f64 {
    let difference: f64 = got.iter().zip(expected).map(|(x, y)| (x - y) * (x - y)).sum();
    (difference / expected.iter().map(|x| x * x).sum::<f64>()).sqrt()
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let config = config();
    let program = gradients(&config);
    let inputs = inputs(&program, &config);
    let expected = run_once(&program, &inputs, &bf16().threads(1));
    assert!(expected.len() > 20);
    for threads in [2, 3] {
        assert_eq!(run_once(&program, &inputs, &bf16().threads(threads)), expected, "{threads} threads");
    }
}

/// The losses of a training run.
fn losses(config: &GptConfig, steps: u64, target: &Target) -> (Vec<f64>, Compiled) {
    let step = config.train_step(4, &Optimizer::adamw(3e-3), None).unwrap();
    let states = step.program.initial_states(5).unwrap();
    let mut program = step.program.compile(&states, target).unwrap();
    let mut losses = vec![];
    for t in 0..steps {
        let [x, y] = batch(config, 4, 1000 + t);
        let scalars = step.scalars(t, 3e-3, 5);
        let data = [("x", &x), ("y", &y)].into_iter().chain(scalars.iter().map(|(name, x)| (*name, x)));
        let outputs = program.run(&data.collect::<Vec<_>>()).unwrap();
        losses.push(f64::from(outputs.scalar("loss").unwrap()));
    }
    (losses, program)
}

#[test]
fn training_follows_that_of_f32() {
    let config = GptConfig { dropout: 0.1, ..config() };
    let (f32_losses, _) = losses(&config, 80, &Target::cpu());
    let (bf16_losses, _) = losses(&config, 80, &bf16());
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    for (from, to) in [(0, 10), (10, 40), (40, 80)] {
        let (a, b) = (mean(&f32_losses[from..to]), mean(&bf16_losses[from..to]));
        assert!((a - b).abs() < 0.03 * a, "steps {from} to {to}: {a} {b}");
    }
    assert!(mean(&bf16_losses[60..]) < 0.8 * bf16_losses[0], "{bf16_losses:?}");
    assert_ne!(f32_losses, bf16_losses);
}

#[test]
fn what_is_kept_for_backward_is_bf16_and_the_arena_shrinks() {
    let config =
        GptConfig { vocabulary: 31, context: 128, layers: 4, heads: 4, width: 192, ..GptConfig::default() };
    let (_, wide) = losses(&config, 0, &Target::cpu());
    let (_, narrow) = losses(&config, 0, &bf16());
    let (wide_bytes, narrow_bytes) = (wide.report().arena_bytes, narrow.report().arena_bytes);
    assert!(narrow_bytes < wide_bytes * 17 / 20, "{narrow_bytes} of {wide_bytes}");
    // Of what lies over the longest time, nothing large is f32.
    let kernels = narrow.kernels();
    let tokens = 4 * config.context;
    for (number, kernel) in kernels.kernels.iter().enumerate() {
        for written in kernel.writes() {
            let buffer = kernels.buffer(written);
            let last = kernels.kernels.iter().rposition(|kernel| kernel.reads().contains(&written));
            let long = last.is_some_and(|last| last > number + 40);
            let large = buffer.ty.elements() >= tokens * config.width;
            if long && large && buffer.role == BufferRole::Temporary {
                assert_eq!(buffer.ty.dtype, DType::BF16, "{} {}", buffer.name, buffer.ty);
            }
        }
    }
}
