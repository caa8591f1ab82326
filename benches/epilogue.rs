//! What an epilogue costs: products of the `thesis` model with bias, GELU and residual, compiled, beside the bare products of
//! the crate `gemm`, which store the entries and nothing more.
//!
//! `cargo bench --bench epilogue`. Both use two threads.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kernfusion::compile::Target;
use kernfusion::init::Init;
use kernfusion::trace::{Tensor, Trace};
use kernfusion_benches::random;
use std::time::Duration;

const THREADS: usize = 2;
/// Tokens, inputs and outputs of the two products of a feed-forward block.
const SHAPES: [(&str, [usize; 3]); 2] = [("up", [16384, 384, 1536]), ("down", [16384, 1536, 384])];

/// What follows a product: it gets the entries, a bias and a residual.
type Epilogue = fn(Tensor, &Tensor, &Tensor) -> Tensor;

const EPILOGUES: [(&str, Epilogue); 4] = [
    ("nothing", |y, _, _| y),
    ("bias and residual", |y, b, r| y + b + r),
    ("bias and GELU", |y, b, _| (y + b).gelu()),
    ("bias, GELU and residual", |y, b, r| (y + b).gelu() + r),
];

/// `c = a · bᵀ`, by the crate `gemm`.
fn bare([m, k, n]: [usize; 3], a: &[f32], b: &[f32], c: &mut [f32]) {
    let threads = gemm::Parallelism::Rayon(THREADS);
    let ld = |columns: usize| columns as isize;
    let (to, left, right) = (c.as_mut_ptr(), a.as_ptr(), b.as_ptr());
    // SAFETY: the slices cover their matrices. Strides come as (column, row).
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            to,
            1,
            ld(n),
            false,
            left,
            1,
            ld(k),
            right,
            ld(k),
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            threads,
        );
    }
}

fn epilogues(c: &mut Criterion) {
    for (name, shape) in SHAPES {
        let [tokens, inputs, outputs] = shape;
        let mut group = c.benchmark_group(name);
        group.sample_size(20).warm_up_time(Duration::from_millis(500));
        // One element is one operation, so that elements per second are FLOP/s.
        group.throughput(Throughput::Elements((2 * tokens * inputs * outputs) as u64));
        let (a, b) = (random(tokens * inputs, 1), random(outputs * inputs, 2));
        let mut to = vec![0.0; tokens * outputs];
        group.bench_function("gemm", |bencher| bencher.iter(|| bare(shape, &a, &b, &mut to)));
        for (what, epilogue) in EPILOGUES {
            let trace = Trace::training();
            let draw = |name: &str, shape: &[usize]| trace.parameter(name, shape, Init::Normal { std: 0.1 });
            let (x, w) = (draw("x", &[tokens, inputs]), draw("w", &[outputs, inputs]));
            let (bias, residual) = (draw("b", &[outputs]), draw("r", &[tokens, outputs]));
            let y = epilogue(x.linear(&w), &bias, &residual);
            let state = trace.state("y", y.shape(), y.dtype());
            trace.update(&state, &y);
            let program = trace.finish(&[]).expect("a correct program");
            let states = program.initial_states(7).expect("memory for the states");
            let mut compiled = program.compile(&states, &Target::cpu()).expect("the program compiles");
            group.bench_function(what, |bencher| bencher.iter(|| compiled.run(&[]).expect("runs")));
        }
        group.finish();
    }
}

criterion_group!(benches, epilogues);
criterion_main!(benches);
