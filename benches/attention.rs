//! Causal attention alone, at the shapes of `peers/bench_attention.py`: forward, and forward with backward.
//!
//! `cargo bench --bench attention`. The gradient of the result depends on the result, as in a model, so that backward cannot
//! be computed together with forward.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernfusion::compile::Target;
use kernfusion::init::Init;
use kernfusion::trace::{Program, Tensor, Trace};

/// Heads of all sequences together, positions, width of a head.
const SHAPES: [[usize; 3]; 2] = [[384, 256, 64], [24, 2048, 64]];

/// The program whose results become states, so that nothing but kernels is timed.
fn program([heads, length, width]: [usize; 3], is_backward: bool) -> Program {
    let trace = Trace::training();
    let draw = |name| trace.parameter(name, vec![1, heads, length, width], Init::Normal { std: 1.0 });
    let [q, k, v, weight]: [Tensor; 4] = ["q", "k", "v", "weight"].map(draw);
    let scores = q.matmul_transposed(&k) * (1.0 / (width as f64).sqrt());
    let seen = trace.causal_mask(length, length);
    let y = seen.select(scores, f64::NEG_INFINITY).softmax(-1).matmul(&v);
    let results = match is_backward {
        true => (&y * &y * weight).sum_all().grad(&[&q, &k, &v]),
        false => vec![y],
    };
    for (number, result) in results.iter().enumerate() {
        let state = trace.state(&format!("result.{number}"), result.shape(), result.dtype());
        trace.update(&state, result);
    }
    trace.finish(&[]).expect("a correct program")
}

fn attention(c: &mut Criterion) {
    for (name, is_backward, products) in [("forward", false, 2), ("forward and backward", true, 7)] {
        let mut group = c.benchmark_group(format!("attention {name}"));
        group.sample_size(10);
        for shape in SHAPES {
            let [heads, length, width] = shape;
            let program = program(shape, is_backward);
            let states = program.initial_states(7).expect("memory for the states");
            let mut compiled = program.compile(&states, &Target::cpu()).expect("the program compiles");
            // Operations below the diagonal.
            let product = heads * width * length * (length + 1);
            group.throughput(Throughput::Elements((products * product) as u64));
            let id = BenchmarkId::from_parameter(format!("{heads}x{length}x{width}"));
            group.bench_function(id, |b| b.iter(|| compiled.run(&[]).expect("runs")));
        }
        group.finish();
    }
}

criterion_group!(benches, attention);
criterion_main!(benches);
