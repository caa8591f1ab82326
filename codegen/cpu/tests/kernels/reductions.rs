//! Reductions: rows in several stages, reductions over rows, both at once, column groups that do not merge.

use crate::support::{Bench, Program, Random, at};
use kernfusion_ir::kernel::{Direction, Domain, Form, InstrKind, Scalar};
use kernfusion_ir::{Binary, DType, ReduceOp, Tensor, TensorType, Unary};

fn binary(program: &mut Program, op: Binary, x: Scalar, y: Scalar, dtype: DType) -> Scalar {
    program.push(InstrKind::Binary(op, x, y), dtype)
}

fn reduce(program: &mut Program, op: ReduceOp, direction: Direction, x: Scalar, dtype: DType) -> Scalar {
    program.push(InstrKind::Reduce(op, direction, x), dtype)
}

fn rows(outer: &[usize], rows: &[usize], columns: &[usize]) -> Domain {
    Domain { axes: [outer, rows, columns].concat(), outer: outer.len(), rows: rows.len() }
}

#[test]
fn softmax_of_every_float_and_odd_lengths() {
    for (dtype, tolerance) in
        [(DType::F32, 2e-6), (DType::BF16, 0.02), (DType::F16, 2e-3), (DType::F64, 1e-13)]
    {
        for (r, c) in [(1, 1), (5, 7), (40, 64), (33, 101), (2, 3000)] {
            let mut bench = Bench::default();
            let x = bench.input("x", Random(5).tensor(&TensorType::new(dtype, [r, c]), -6.0, 6.0));
            let y = bench.output("y", dtype, &[r, c]);
            let lse = bench.output("lse", dtype, &[r]);
            let mut p = Program::default();
            let ci = c as i64;
            let x = p.load(x, dtype, at(&[ci, 1]));
            let max = reduce(&mut p, ReduceOp::Max, Direction::Columns, x, dtype);
            let d = binary(&mut p, Binary::Sub, x, max, dtype);
            let e = p.push(InstrKind::Unary(Unary::Exp, d), dtype);
            let sum = reduce(&mut p, ReduceOp::Sum, Direction::Columns, e, dtype);
            let out = binary(&mut p, Binary::Div, e, sum, dtype);
            let log = p.push(InstrKind::Unary(Unary::Log, sum), dtype);
            let total = binary(&mut p, Binary::Add, log, max, dtype);
            p.store(out, y, at(&[ci, 1]));
            p.store(total, lse, at(&[1, 0]));
            bench.kernel(Form::Reduce, rows(&[], &[r], &[c]), p.region, p.stores);
            bench.check(tolerance);
        }
    }
}

/// Layer norm, forward and the gradients of gain and bias, in one kernel: both directions of reduction.
#[test]
fn layer_norm_with_gradients_over_rows() {
    for (r, c) in [(3, 5), (70, 48), (100, 33)] {
        let (mut bench, mut random, dtype) = (Bench::default(), Random(6), DType::F32);
        let ty = TensorType::new(dtype, [r, c]);
        let (x, dy) = (random.tensor(&ty, -2.0, 3.0), random.tensor(&ty, -1.0, 1.0));
        let (x, dy) = (bench.input("x", x), bench.input("dy", dy));
        let outputs = ["y", "gain", "bias", "most"].map(|name| {
            let shape: &[usize] = if name == "y" { &[r, c] } else { &[c] };
            bench.output(name, dtype, shape)
        });
        let mut p = Program::default();
        let ci = c as i64;
        let x = p.load(x, dtype, at(&[ci, 1]));
        let dy = p.load(dy, dtype, at(&[ci, 1]));
        let n = p.constant(c as f64, dtype);
        let sum = reduce(&mut p, ReduceOp::Sum, Direction::Columns, x, dtype);
        let mean = binary(&mut p, Binary::Div, sum, n, dtype);
        let centred = binary(&mut p, Binary::Sub, x, mean, dtype);
        let square = binary(&mut p, Binary::Mul, centred, centred, dtype);
        let total = reduce(&mut p, ReduceOp::Sum, Direction::Columns, square, dtype);
        let variance = binary(&mut p, Binary::Div, total, n, dtype);
        let epsilon = p.constant(1e-5, dtype);
        let variance = binary(&mut p, Binary::Add, variance, epsilon, dtype);
        let root = p.push(InstrKind::Unary(Unary::Sqrt, variance), dtype);
        let normal = binary(&mut p, Binary::Div, centred, root, dtype);
        let product = binary(&mut p, Binary::Mul, normal, dy, dtype);
        let gain = reduce(&mut p, ReduceOp::Sum, Direction::Rows, product, dtype);
        let bias = reduce(&mut p, ReduceOp::Sum, Direction::Rows, dy, dtype);
        let most = reduce(&mut p, ReduceOp::Max, Direction::Rows, normal, dtype);
        p.store(normal, outputs[0], at(&[ci, 1]));
        for (value, output) in [(gain, outputs[1]), (bias, outputs[2]), (most, outputs[3])] {
            p.store(value, output, at(&[0, 1]));
        }
        bench.kernel(Form::Reduce, rows(&[], &[r], &[c]), p.region, p.stores);
        bench.check(1e-5);
    }
}

/// Reductions over rows only: several outer, row and column axes, stored permuted, in every dtype.
#[test]
fn row_reductions_of_every_dtype() {
    let [a, r1, r2, c1, c2] = [2, 9, 11, 3, 30];
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32, DType::U32] {
        for op in ReduceOp::ALL {
            let (mut bench, mut random) = (Bench::default(), Random(7));
            let (low, high) = if dtype.is_integer() { (0.0, 9.0) } else { (-1.0, 1.0) };
            // x[r1, a, c1, r2, c2]: rows and columns do not merge.
            let x = random.tensor(&TensorType::new(dtype, [r1, a, c1, r2, c2]), low, high);
            let x = bench.input("x", x);
            let y = bench.output("y", dtype, &[c1, c2, a]);
            let mut p = Program::default();
            let [ai, r2i, c1i, c2i] = [a, r2, c1, c2].map(|x| x as i64);
            let inner = r2i * c2i;
            let x = p.load(x, dtype, at(&[c1i * inner, ai * c1i * inner, c2i, inner, 1]));
            let result = reduce(&mut p, op, Direction::Rows, x, dtype);
            p.store(result, y, at(&[1, 0, 0, c2i * ai, ai]));
            bench.kernel(Form::Reduce, rows(&[a], &[r1, r2], &[c1, c2]), p.region, p.stores);
            let tolerance = match dtype {
                DType::BF16 => 0.01,
                DType::F16 => 2e-3,
                _ => 1e-5,
            };
            bench.check(tolerance);
        }
    }
}

/// Columns that do not merge are walked run by run; values that vary from run to run only.
#[test]
fn column_groups_run_by_run() {
    let [r, c1, c2] = [6, 5, 19];
    let (mut bench, mut random, dtype) = (Bench::default(), Random(8), DType::F32);
    // x[c1, r, c2]
    let x = bench.input("x", random.tensor(&TensorType::new(dtype, [c1, r, c2]), -2.0, 2.0));
    let scale = bench.input("scale", random.tensor(&TensorType::new(dtype, [c1]), 0.5, 2.0));
    let y = bench.output("y", dtype, &[r, c1, c2]);
    let sums = bench.output("sums", dtype, &[c1, c2]);
    let mut p = Program::default();
    let [ri, c1i, c2i] = [r, c1, c2].map(|x| x as i64);
    let x = p.load(x, dtype, at(&[c2i, ri * c2i, 1]));
    let scale = p.load(scale, dtype, at(&[0, 1, 0]));
    let scaled = binary(&mut p, Binary::Mul, x, scale, dtype);
    let max = reduce(&mut p, ReduceOp::Max, Direction::Columns, scaled, dtype);
    let plain = reduce(&mut p, ReduceOp::Min, Direction::Columns, x, dtype);
    let d = binary(&mut p, Binary::Sub, scaled, max, dtype);
    let e = p.push(InstrKind::Unary(Unary::Exp, d), dtype);
    let sum = reduce(&mut p, ReduceOp::Sum, Direction::Columns, e, dtype);
    let q = binary(&mut p, Binary::Div, e, sum, dtype);
    let q = binary(&mut p, Binary::Add, q, plain, dtype);
    let down = reduce(&mut p, ReduceOp::Sum, Direction::Rows, q, dtype);
    p.store(q, y, at(&[c1i * c2i, c2i, 1]));
    p.store(down, sums, at(&[0, c2i, 1]));
    bench.kernel(Form::Reduce, rows(&[], &[r], &[c1, c2]), p.region, p.stores);
    bench.check(1e-5);
}

/// Rows of a few columns, one or two axes of them, with what comes before and after their reductions; some stores are of points, some of
/// rows.
#[test]
fn rows_of_a_few_columns() {
    for (c1, c2) in [(1, 2), (3, 1), (2, 2), (5, 1), (2, 3)] {
        let (mut bench, mut random, dtype) = (Bench::default(), Random(11), DType::F32);
        let [r1, r2] = [7, 37];
        let x = bench.input("x", random.tensor(&TensorType::new(dtype, [r1, c1, r2, c2]), -2.0, 2.0));
        let shift = bench.input("shift", random.tensor(&TensorType::new(dtype, [r2]), -1.0, 1.0));
        let y = bench.output("y", dtype, &[r1, r2, c1, c2]);
        let sums = bench.output("sums", dtype, &[r1, r2]);
        let mut p = Program::default();
        let [r2i, c1i, c2i] = [r2, c1, c2].map(|x| x as i64);
        let x = p.load(x, dtype, at(&[c1i * r2i * c2i, c2i, r2i * c2i, 1]));
        let shift = p.load(shift, dtype, at(&[0, 1, 0, 0]));
        let column = p.push(InstrKind::Coordinate(at(&[0, 0, c2i, 1])), dtype);
        let x = binary(&mut p, Binary::Add, x, shift, dtype);
        let x = binary(&mut p, Binary::Mul, x, column, dtype);
        let max = reduce(&mut p, ReduceOp::Max, Direction::Columns, x, dtype);
        let d = binary(&mut p, Binary::Sub, x, max, dtype);
        let e = p.push(InstrKind::Unary(Unary::Exp, d), dtype);
        let sum = reduce(&mut p, ReduceOp::Sum, Direction::Columns, e, dtype);
        let q = binary(&mut p, Binary::Div, e, sum, dtype);
        let shifted = binary(&mut p, Binary::Add, sum, shift, dtype);
        p.store(q, y, at(&[r2i * c1i * c2i, c1i * c2i, c2i, 1]));
        p.store(shifted, sums, at(&[r2i, 1, 0, 0]));
        bench.kernel(Form::Reduce, rows(&[], &[r1, r2], &[c1, c2]), p.region, p.stores);
        bench.check(1e-5);
    }
}

/// Reductions of nothing, of one element, and of values that do not vary.
#[test]
fn reductions_at_the_edges() {
    for (r, c) in [(4, 0), (3, 1), (1, 9)] {
        let (mut bench, dtype) = (Bench::default(), DType::F32);
        let x = bench.input("x", Random(3).tensor(&TensorType::new(dtype, [r, c]), -1.0, 1.0));
        let outputs = ReduceOp::ALL.map(|op| bench.output(op.name(), dtype, &[r]));
        let counts = bench.output("count", DType::I32, &[r]);
        let mut p = Program::default();
        let x = p.load(x, dtype, at(&[c as i64, 1]));
        for (op, output) in ReduceOp::ALL.into_iter().zip(outputs) {
            let result = reduce(&mut p, op, Direction::Columns, x, dtype);
            p.store(result, output, at(&[1, 0]));
        }
        let one = p.constant(1.0, DType::I32);
        let count = reduce(&mut p, ReduceOp::Sum, Direction::Columns, one, DType::I32);
        p.store(count, counts, at(&[1, 0]));
        bench.kernel(Form::Reduce, rows(&[], &[r], &[c]), p.region, p.stores);
        bench.check(1e-6);
    }
    // No rows at all under a row reduction.
    for op in ReduceOp::ALL {
        let mut bench = Bench::default();
        let x = bench.input("x", Tensor::from_f64(&TensorType::new(DType::F32, [0, 5]), &[]));
        let y = bench.output("y", DType::F32, &[5]);
        let mut p = Program::default();
        let x = p.load(x, DType::F32, at(&[5, 1]));
        let result = reduce(&mut p, op, Direction::Rows, x, DType::F32);
        p.store(result, y, at(&[0, 1]));
        bench.kernel(Form::Reduce, rows(&[], &[0], &[5]), p.region, p.stores);
        bench.check(0.0);
    }
}
