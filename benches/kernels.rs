//! Compiled kernels: bandwidth of maps, rows with reductions, fused epilogues, launches, compile time.

#[path = "../codegen/cpu/tests/kernels/support.rs"]
#[allow(dead_code, reason = "the tests need more of it")]
mod support;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kernfusion_codegen::States;
use kernfusion_cpu::{Options, PlanExecutable};
use kernfusion_ir::kernel::{BufferRole, Direction, Domain, Form, InstrKind, Operand, Product, Scalar};
use kernfusion_ir::{Binary, DType, ReduceOp, TensorType, Unary};
use support::{Bench, Program, Random, at};

const F32: DType = DType::F32;

fn binary(p: &mut Program, op: Binary, x: Scalar, y: Scalar) -> Scalar {
    p.push(InstrKind::Binary(op, x, y), F32)
}

fn unary(p: &mut Program, op: Unary, x: Scalar) -> Scalar {
    p.push(InstrKind::Unary(op, x), F32)
}

fn constant_times(p: &mut Program, x: Scalar, factor: f64) -> Scalar {
    let factor = p.constant(factor, F32);
    binary(p, Binary::Mul, x, factor)
}

/// A state `x` and a result `y` of this shape; results stay in the arena, so that runs measure kernels only.
fn xy(shape: &[usize]) -> (Bench, [kernfusion_ir::kernel::BufferId; 2]) {
    let mut bench = Bench::default();
    let ty = TensorType::new(F32, shape);
    let x = bench.buffer("x", ty.clone(), BufferRole::State);
    let y = bench.buffer("y", ty, BufferRole::Temporary);
    (bench, [x, y])
}

fn measure(c: &mut Criterion, name: &str, bench: &Bench, work: Throughput) {
    let mut group = c.benchmark_group(name);
    group.sample_size(10).throughput(work);
    for threads in [1, 2] {
        let states = States::new();
        for buffer in bench.graph.buffers.iter().filter(|buffer| buffer.role == BufferRole::State) {
            states.set(&buffer.name, &Random(1).tensor(&buffer.ty, -2.0, 2.0)).expect("memory");
        }
        let options = Options { threads, ..Options::default() };
        let mut executable = PlanExecutable::compile(bench.plan(), &states, &options).expect("compiles");
        group.bench_function(threads.to_string(), |b| b.iter(|| executable.run(&[]).expect("runs")));
    }
    group.finish();
}

fn maps(c: &mut Criterion) {
    let n = 32 << 20;
    let (mut bench, [x, y]) = xy(&[n]);
    let mut p = Program::default();
    let value = p.load(x, F32, at(&[1]));
    let value = constant_times(&mut p, value, 1.5);
    let one = p.constant(1.0, F32);
    let value = binary(&mut p, Binary::Add, value, one);
    p.store(value, y, at(&[1]));
    bench.kernel(Form::Map, Domain::flat([n]), p.region, p.stores);
    measure(c, "a·x + b from memory", &bench, Throughput::Bytes(8 * n as u64));

    for (name, op) in [("tanh from memory", Unary::Tanh), ("exp from memory", Unary::Exp)] {
        let (mut bench, [x, y]) = xy(&[n]);
        let mut p = Program::default();
        let value = p.load(x, F32, at(&[1]));
        let half = constant_times(&mut p, value, 0.5);
        let t = unary(&mut p, op, half);
        let value = binary(&mut p, Binary::Mul, t, value);
        p.store(value, y, at(&[1]));
        bench.kernel(Form::Map, Domain::flat([n]), p.region, p.stores);
        measure(c, name, &bench, Throughput::Elements(n as u64));
    }

    // [batch, tokens, heads, width] → [batch, heads, tokens, width]
    let [b, t, h, d] = [64, 256, 6, 64];
    let (mut bench, [x, y]) = xy(&[b * t * h * d]);
    let mut p = Program::default();
    let [t_, h_, d_] = [t, h, d].map(|x| x as i64);
    let value = p.load(x, F32, at(&[t_ * h_ * d_, h_ * d_, d_, 1]));
    p.store(value, y, at(&[t_ * h_ * d_, d_, t_ * d_, 1]));
    bench.kernel(Form::Map, Domain::flat([b, t, h, d]), p.region, p.stores);
    measure(c, "heads moved out", &bench, Throughput::Bytes(8 * (b * t * h * d) as u64));

    let (m, n) = (4096, 2048);
    let (mut bench, [x, y]) = xy(&[m * n]);
    let mut p = Program::default();
    let value = p.load(x, F32, at(&[1, m as i64]));
    p.store(value, y, at(&[n as i64, 1]));
    bench.kernel(Form::Map, Domain::flat([m, n]), p.region, p.stores);
    measure(c, "transpose", &bench, Throughput::Bytes(8 * (m * n) as u64));
}

fn reductions(c: &mut Criterion) {
    let (r, n) = (98304, 256);
    let (mut bench, [x, y]) = xy(&[r, n]);
    let mut p = Program::default();
    let x = p.load(x, F32, at(&[n as i64, 1]));
    let max = p.push(InstrKind::Reduce(ReduceOp::Max, Direction::Columns, x), F32);
    let d = binary(&mut p, Binary::Sub, x, max);
    let e = unary(&mut p, Unary::Exp, d);
    let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, e), F32);
    let out = binary(&mut p, Binary::Div, e, sum);
    p.store(out, y, at(&[n as i64, 1]));
    let domain = Domain { axes: vec![r, n], outer: 0, rows: 1 };
    bench.kernel(Form::Reduce, domain, p.region, p.stores);
    measure(c, "softmax of 256", &bench, Throughput::Elements((r * n) as u64));

    let (r, n) = (16384, 1536);
    let (mut bench, [x, y]) = xy(&[r, n]);
    let mut p = Program::default();
    let x = p.load(x, F32, at(&[n as i64, 1]));
    let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Rows, x), F32);
    p.store(sum, y, at(&[0, 1]));
    let domain = Domain { axes: vec![r, n], outer: 0, rows: 1 };
    bench.kernel(Form::Reduce, domain, p.region, p.stores);
    measure(c, "bias gradient", &bench, Throughput::Bytes((4 * r * n) as u64));
}

/// gelu(x·W + b) + residual.
fn epilogue(c: &mut Criterion) {
    let [m, n, k] = [16384, 1536, 384];
    let mut bench = Bench::default();
    let mut state =
        |name: &str, shape: &[usize]| bench.buffer(name, TensorType::new(F32, shape), BufferRole::State);
    let [x, w, bias] = [state("x", &[m, k]), state("w", &[n, k]), state("bias", &[n])];
    let residual = state("residual", &[m, n]);
    let y = bench.buffer("y", TensorType::new(F32, [m, n]), BufferRole::Temporary);
    let operand = |buffer, index| {
        let mut p = Program::default();
        let value = p.load(buffer, F32, index);
        Operand { region: p.region, value }
    };
    let (ni, ki) = (n as i64, k as i64);
    let product =
        Product { k: vec![k], a: operand(x, at(&[ki, 0, 1])), b: operand(w, at(&[0, ki, 1])), dtype: F32 };
    let domain = Domain { axes: vec![m, n], outer: 0, rows: 1 };
    let mut plain = Program::default();
    let s = plain.push(InstrKind::Producer(0), F32);
    plain.store(s, y, at(&[ni, 1]));
    let mut p = Program::default();
    let s = p.push(InstrKind::Producer(0), F32);
    let bias = p.load(bias, F32, at(&[0, 1]));
    let z = binary(&mut p, Binary::Add, s, bias);
    let z2 = binary(&mut p, Binary::Mul, z, z);
    let z3 = binary(&mut p, Binary::Mul, z2, z);
    let z3 = constant_times(&mut p, z3, 0.044715);
    let inner = binary(&mut p, Binary::Add, z, z3);
    let inner = constant_times(&mut p, inner, 0.797_884_560_8);
    let t = unary(&mut p, Unary::Tanh, inner);
    let one = p.constant(1.0, F32);
    let t = binary(&mut p, Binary::Add, t, one);
    let half = constant_times(&mut p, z, 0.5);
    let gelu = binary(&mut p, Binary::Mul, half, t);
    let residual = p.load(residual, F32, at(&[ni, 1]));
    let out = binary(&mut p, Binary::Add, gelu, residual);
    p.store(out, y, at(&[ni, 1]));
    for (name, p) in [("product", plain), ("product with bias, gelu, residual", p)] {
        bench.graph.kernels.clear();
        bench.kernel(Form::Contraction(vec![product.clone()].into()), domain.clone(), p.region, p.stores);
        measure(c, name, &bench, Throughput::Elements((2 * m * n * k) as u64));
    }
}

/// A hundred tiny kernels, and as many different ones to compile.
fn launches(c: &mut Criterion) {
    let mut bench = Bench::default();
    let x = bench.buffer("x", TensorType::new(F32, [64]), BufferRole::State);
    let y = bench.buffer("y", TensorType::new(F32, [64]), BufferRole::Temporary);
    for i in 0..100 {
        let mut p = Program::default();
        let value = p.load(x, F32, at(&[1]));
        let scaled = constant_times(&mut p, value, f64::from(i) + 0.5);
        let e = unary(&mut p, Unary::Exp, scaled);
        let value = binary(&mut p, Binary::Div, e, value);
        p.store(value, y, at(&[1]));
        bench.kernel(Form::Map, Domain::flat([64]), p.region, p.stores);
    }
    measure(c, "a hundred launches", &bench, Throughput::Elements(100));
    c.bench_function("a hundred kernels compiled", |b| {
        let options = Options { threads: 1, ..Options::default() };
        b.iter(|| PlanExecutable::compile(bench.plan(), &States::new(), &options).expect("compiles"));
    });
}

criterion_group!(benches, maps, reductions, epilogue, launches);
criterion_main!(benches);
