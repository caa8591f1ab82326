//! What choosing costs: a mixture of 8 experts of which 2 work on a token, beside the dense network of the size that works on
//! a token, forward and backward, compiled.
//!
//! `cargo bench --bench mixture`.

use criterion::{Criterion, criterion_group, criterion_main};
use kernfusion::compile::Target;
use kernfusion::init::Init;
use kernfusion::nn::{Activation, FeedForward, FeedForwardConfig, Mixture, MixtureConfig};
use kernfusion::trace::{Tensor, Trace};
use std::time::Duration;

const TOKENS: usize = 16_384;
const WIDTH: usize = 384;
/// The width inside an expert.
const HIDDEN: usize = 768;
const ACTIVE: usize = 2;

fn mixture(trace: &Trace, x: &Tensor) -> Tensor {
    let (noise, balance, std, residual_std) = (0.0, 0.01, 0.02, 0.02);
    let (width, hidden, experts, active) = (WIDTH, HIDDEN, 8, ACTIVE);
    let config = MixtureConfig { width, hidden, experts, active, noise, balance, std, residual_std };
    Mixture::new(trace, "layer", &config).forward(x)
}

fn dense(trace: &Trace, x: &Tensor) -> Tensor {
    let (activation, gated, bias, std, residual_std) = (Activation::Swish, true, false, 0.02, 0.02);
    let (width, hidden) = (WIDTH, ACTIVE * HIDDEN);
    let config = FeedForwardConfig { width, hidden, activation, gated, bias, std, residual_std };
    FeedForward::new(trace, "layer", &config).forward(x)
}

/// A layer that declares its parameters and works on `[tokens, width]`.
type Layer = fn(&Trace, &Tensor) -> Tensor;

/// Values and all gradients are states, so that nothing is left out.
fn layers(c: &mut Criterion) {
    let mut group = c.benchmark_group("forward and backward");
    group.sample_size(10).warm_up_time(Duration::from_secs(1));
    let kinds: [(&str, Layer); 2] = [("dense", dense), ("mixture", mixture)];
    for (name, layer) in kinds {
        let trace = Trace::training();
        let [x, weight] =
            ["x", "weight"].map(|name| trace.parameter(name, [TOKENS, WIDTH], Init::Normal { std: 1.0 }));
        let y = layer(&trace, &x);
        let loss = (&y * &weight).sum_all();
        let loss = trace.penalty().map_or(loss.clone(), |penalty| loss + penalty);
        let wrt: Vec<_> = trace.parameters().into_iter().filter(|(p, _)| p.name != "weight").collect();
        let gradients = loss.grad(&wrt.iter().map(|(_, tensor)| tensor).collect::<Vec<_>>());
        let of = wrt.iter().map(|(parameter, _)| format!("gradient.{}", parameter.name));
        let results: Vec<_> = of.zip(gradients).chain([("y".to_string(), y)]).collect();
        for (name, tensor) in &results {
            let state = trace.state(name, tensor.shape(), tensor.dtype());
            trace.update(&state, tensor);
        }
        let program = trace.finish(&[]).expect("a correct program");
        let states = program.initial_states(7).expect("memory for the states");
        let mut compiled = program.compile(&states, &Target::cpu()).expect("the program compiles");
        group.bench_function(name, |bencher| bencher.iter(|| compiled.run(&[]).expect("runs")));
    }
    group.finish();
}

criterion_group!(benches, layers);
criterion_main!(benches);
