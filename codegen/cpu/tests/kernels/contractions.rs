//! Contractions: layouts, epilogues, several products, every dtype.

use crate::support::{Bench, Program, Random, at};
use kernfusion_cpu::guard::{Side, guarded};
use kernfusion_ir::kernel::{
    BufferId, BufferRole, Direction, Domain, Form, Index, InstrKind, Operand, Product, Region, Scalar,
};
use kernfusion_ir::{Binary, DType, ReduceOp, TensorType, Unary, strides};

/// An operand that is a load, converted if the buffer has another type.
fn operand(buffer: BufferId, from: DType, to: DType, index: Index) -> Operand {
    let mut region = Region::default();
    let mut value = region.push(InstrKind::Load { buffer, index, guard: vec![] }, from);
    if from != to {
        value = region.push(InstrKind::Cast(value), to);
    }
    Operand { region, value }
}

fn domain(batch: &[usize], rows: &[usize], columns: &[usize]) -> Domain {
    Domain { axes: [batch, rows, columns].concat(), outer: batch.len(), rows: rows.len() }
}

fn producer(program: &mut Program, dtype: DType) -> Scalar {
    program.push(InstrKind::Producer(0), dtype)
}

/// A bench with two random operands of these shapes.
fn factors(dtype: DType, a: &[usize], b: &[usize]) -> (Bench, BufferId, BufferId) {
    let (mut bench, mut random) = (Bench::default(), Random(9));
    let (low, high) = if dtype.is_integer() { (0.0, 40.0) } else { (-1.0, 1.0) };
    let a = bench.input("a", random.tensor(&TensorType::new(dtype, a), low, high));
    let b = bench.input("b", random.tensor(&TensorType::new(dtype, b), low, high));
    (bench, a, b)
}

/// `c[m, n] = Σ a[m, k]·b[k, n]` in every layout and dtype, with the given epilogue.
fn check_product(
    dtype: DType,
    [m, n, k]: [usize; 3],
    transposed: [bool; 2],
    epilogue: impl Fn(&mut Program, Scalar) -> Scalar,
    tolerance: f64,
) {
    let (mut bench, a, b) = factors(dtype, &[m * k], &[k * n]);
    let [m_, n_, k_] = [m, n, k].map(|x| x as i64);
    let a_index = if transposed[0] { at(&[1, 0, m_]) } else { at(&[k_, 0, 1]) };
    let b_index = if transposed[1] { at(&[0, k_, 1]) } else { at(&[0, 1, n_]) };
    let (a, b) = (operand(a, dtype, dtype, a_index), operand(b, dtype, dtype, b_index));
    let mut program = Program::default();
    let product = producer(&mut program, dtype);
    let value = epilogue(&mut program, product);
    let c = bench.output("c", dtype, &[m, n]);
    program.store(value, c, at(&[n_, 1]));
    let form = Form::Contraction(vec![Product { k: vec![k], a, b, dtype }].into());
    bench.kernel(form, domain(&[], &[m], &[n]), program.region, program.stores);
    bench.check(tolerance);
}

#[test]
fn plain_products_of_every_layout_and_dtype() {
    let dtypes = [
        (DType::F32, 1e-5),
        (DType::BF16, 0.02),
        (DType::F16, 2e-3),
        (DType::F64, 1e-12),
        (DType::I32, 0.0),
        (DType::U32, 0.0),
    ];
    for (dtype, tolerance) in dtypes {
        for layout in [[false, false], [false, true], [true, false], [true, true]] {
            for shape in [[1, 1, 1], [7, 13, 5], [33, 40, 129], [3, 50, 0]] {
                check_product(dtype, shape, layout, |_, x| x, tolerance);
            }
        }
    }
}

#[test]
fn epilogues_with_calls_run_on_every_tile() {
    // gelu(x + 1)·x: two stages, more columns than a tile has, k in several blocks.
    let epilogue = |program: &mut Program, x: Scalar| {
        let one = program.constant(1.0, DType::F32);
        let sum = program.push(InstrKind::Binary(Binary::Add, x, one), DType::F32);
        let erf = program.push(InstrKind::Unary(Unary::Erf, sum), DType::F32);
        program.push(InstrKind::Binary(Binary::Mul, erf, x), DType::F32)
    };
    for shape in [[20, 401, 30], [37, 19, 800], [1, 100, 64]] {
        check_product(DType::F32, shape, [false, true], epilogue, 2e-5);
    }
}

/// The heads of an attention: batch of two axes, a bias by column, a residual, stored permuted and twice.
#[test]
fn batches_permutations_and_several_stores() {
    let [b, t, h, d, c] = [2, 9, 3, 20, 17];
    let (mut bench, x, w) = factors(DType::F32, &[b * t * c], &[h * d * c]);
    let mut random = Random(4);
    let bias = bench.input("bias", random.tensor(&TensorType::new(DType::F32, [h, d]), -1.0, 1.0));
    let residual =
        bench.input("residual", random.tensor(&TensorType::new(DType::F32, [b, t, h, d]), -1.0, 1.0));
    let [bi, ti, hi, di, ci] = [b, t, h, d, c].map(|x| x as i64);
    let _ = bi;
    // Axes: rows b, t; columns h, d; then k.
    let a = operand(x, DType::F32, DType::F32, at(&[ti * ci, ci, 0, 0, 1]));
    let w = operand(w, DType::F32, DType::F32, at(&[0, 0, di * ci, ci, 1]));
    let mut program = Program::default();
    let product = producer(&mut program, DType::F32);
    let bias = program.load(bias, DType::F32, at(&[0, 0, di, 1]));
    let sum = program.push(InstrKind::Binary(Binary::Add, product, bias), DType::F32);
    let residual = program.load(residual, DType::F32, at(&[ti * hi * di, hi * di, di, 1]));
    let total = program.push(InstrKind::Binary(Binary::Add, sum, residual), DType::F32);
    let heads = bench.output("heads", DType::F32, &[b, h, t, d]);
    let transposed = bench.output("transposed", DType::F32, &[h, d, b, t]);
    let halves = bench.output("halves", DType::BF16, &[b, t, h, d]);
    program.store(sum, heads, at(&[hi * ti * di, di, ti * di, 1]));
    program.store(total, transposed, at(&[ti, 1, di * 18, 18]));
    let half = program.push(InstrKind::Cast(total), DType::BF16);
    program.store(half, halves, at(&[ti * hi * di, hi * di, di, 1]));
    let form = Form::Contraction(vec![Product { k: vec![c], a, b: w, dtype: DType::F32 }].into());
    bench.kernel(form, domain(&[], &[b, t], &[h, d]), program.region, program.stores);
    bench.check(1e-2);
}

/// Batched products whose operands are permuted views, and whose k is made of two axes that do not merge.
#[test]
fn batches_and_axes_that_do_not_merge() {
    let [b, h, m, n, k1, k2] = [2, 3, 10, 11, 4, 5];
    let (mut bench, x, y) = factors(DType::F32, &[b * m * h * k1 * k2], &[b * h * n * k1 * k2]);
    let [_, hi, mi, ni, p, q] = [b, h, m, n, k1, k2].map(|x| x as i64);
    // a[b, m, h, k2, k1], b[b, h, n, k1, k2]
    let a = operand(x, DType::F32, DType::F32, at(&[mi * hi * p * q, p * q, hi * p * q, 0, 1, p]));
    let y = operand(y, DType::F32, DType::F32, at(&[hi * ni * p * q, ni * p * q, 0, p * q, q, 1]));
    let mut program = Program::default();
    let product = producer(&mut program, DType::F32);
    let c = bench.output("c", DType::F32, &[b, h, m, n]);
    program.store(product, c, at(&[hi * mi * ni, mi * ni, ni, 1]));
    let form = Form::Contraction(vec![Product { k: vec![k1, k2], a, b: y, dtype: DType::F32 }].into());
    bench.kernel(form, domain(&[b, h], &[m], &[n]), program.region, program.stores);
    bench.check(1e-5);
}

/// A region that reduces two products over columns, and an operand that is computed.
/// Columns of images whose channels lie side by side: rows `[n, c, w]` and k over h of `x[n, h, w, c]`, as it is and with a bias by channel.
#[test]
fn rows_whose_memory_lies_along_another_axis_than_the_last() {
    let [n, c, w, h, m] = [2, 37, 5, 11, 19];
    let [ci, wi, hi, mi] = [c, w, h, m].map(|x| x as i64);
    let dtypes =
        [(DType::F32, DType::F32, 1e-5), (DType::BF16, DType::BF16, 0.02), (DType::F32, DType::BF16, 0.02)];
    for (from, dtype, tolerance) in dtypes {
        for with_bias in [false, true] {
            let (mut bench, x, y) = factors(from, &[n * h * w * c], &[h * m]);
            let a = operand(x, from, dtype, at(&[hi * wi * ci, 1, ci, 0, wi * ci]));
            let b = operand(y, from, dtype, at(&[0, 0, 0, 1, mi]));
            let mut program = Program::default();
            let mut value = producer(&mut program, dtype);
            if with_bias {
                let bias = Random(3).tensor(&TensorType::new(dtype, [c]), -1.0, 1.0);
                let bias = bench.input("bias", bias);
                let bias = program.load(bias, dtype, at(&[0, 1, 0, 0]));
                value = program.push(InstrKind::Binary(Binary::Add, value, bias), dtype);
            }
            let out = bench.output("out", dtype, &[n, c, w, m]);
            program.store(value, out, at(&[ci * wi * mi, wi * mi, mi, 1]));
            let form = Form::Contraction(vec![Product { k: vec![h], a, b, dtype }].into());
            bench.kernel(form, domain(&[], &[n, c, w], &[m]), program.region, program.stores);
            bench.check(tolerance);
        }
    }
}

/// A convolution whose window moves by one or two places, and what the gradient of its weights sums. The image lies against protected pages, so that
/// nothing beside it is read.
#[test]
fn windows_of_an_image() {
    let (features, channels, [height, width]) = (19, 6, [7, 21]);
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 0.02), (DType::F16, 2e-3), (DType::I8, 0.0)]
    {
        for (step, with_positions) in [(1, false), (2, false), (1, true), (2, true)] {
            let (rows, columns) = (step * (height - 1) + 3, step * (width - 1) + 3);
            let [all, line, step] = [rows * columns, columns, step].map(|x| x as i64);
            let (mut bench, mut random) = (Bench::default(), Random(17));
            let (low, high) = if dtype == DType::I8 { (-9.0, 9.0) } else { (-1.0, 1.0) };
            let image = random.tensor(&TensorType::new(dtype, [channels, rows, columns]), low, high);
            let x = bench.buffer("x", image.ty(), BufferRole::State);
            bench.inputs.insert("x".into(), image);
            let (sizes, shown) = ([channels, 3, 3], [height, width]);
            let summed = if with_positions { height * width } else { channels * 9 };
            let w = random.tensor(&TensorType::new(dtype, [features, summed]), low, high);
            let w = bench.input("w", w);
            // Features, what the columns of the product are, and what it sums over.
            let (image, others, (columns, k)) = match with_positions {
                false => (
                    [0, step * line, step, all, line, 1],
                    [summed as i64, 0, 0, 9, 3, 1],
                    (shown.to_vec(), sizes.to_vec()),
                ),
                true => (
                    [0, all, line, 1, step * line, step],
                    [summed as i64, 0, 0, 0, width as i64, 1],
                    (sizes.to_vec(), shown.to_vec()),
                ),
            };
            let wide = if dtype == DType::I8 { DType::F32 } else { dtype };
            let a = operand(w, dtype, wide, at(&others));
            let b = operand(x, dtype, wide, at(&image));
            let mut program = Program::default();
            let value = producer(&mut program, DType::F32);
            let shape = [&[features][..], &columns].concat();
            let out = bench.output("out", DType::F32, &shape);
            let along: Vec<_> = strides(&shape).into_iter().map(|stride| stride as i64).collect();
            program.store(value, out, at(&along));
            let form = Form::Contraction(vec![Product { k, a, b, dtype: DType::F32 }].into());
            bench.kernel(form, domain(&[], &[features], &columns), program.region, program.stores);
            for side in [Side::Before, Side::Behind] {
                guarded(side, || bench.check(tolerance));
            }
        }
    }
}

#[test]
fn several_products_reductions_and_computed_operands() {
    let [m, n, k] = [12, 21, 8];
    let (mut bench, a, b) = factors(DType::F32, &[m, k], &[n, k]);
    let [ni, ki] = [n as i64, k as i64];
    let mut computed = operand(a, DType::F32, DType::F32, at(&[ki, 0, 1]));
    computed.value = computed.region.push(InstrKind::Unary(Unary::Tanh, computed.value), DType::F32);
    let plain = operand(a, DType::F32, DType::F32, at(&[ki, 0, 1]));
    let right = operand(b, DType::F32, DType::F32, at(&[0, ki, 1]));
    let product = |a: Operand| Product { k: vec![k], a, b: right.clone(), dtype: DType::F32 };
    let mut program = Program::default();
    let s = program.push(InstrKind::Producer(0), DType::F32);
    let p = program.push(InstrKind::Producer(1), DType::F32);
    let largest = program.push(InstrKind::Reduce(ReduceOp::Max, Direction::Columns, s), DType::F32);
    let d = program.push(InstrKind::Binary(Binary::Sub, s, largest), DType::F32);
    let e = program.push(InstrKind::Binary(Binary::Mul, d, p), DType::F32);
    let c = bench.output("c", DType::F32, &[m, n]);
    program.store(e, c, at(&[ni, 1]));
    let form = Form::Contraction(vec![product(plain), product(computed)].into());
    bench.kernel(form, domain(&[], &[m], &[n]), program.region, program.stores);
    bench.check(2e-5);
}

/// `f32` operands multiplied as `bf16`, and `bf16` operands with an `f32` result.
#[test]
fn mixed_precision() {
    let [m, n, k] = [20, 33, 48];
    for (from, to) in [(DType::F32, DType::BF16), (DType::BF16, DType::F32), (DType::F16, DType::F32)] {
        let (mut bench, a, b) = factors(from, &[m, k], &[n, k]);
        let a = operand(a, from, to, at(&[k as i64, 0, 1]));
        let b = operand(b, from, to, at(&[0, k as i64, 1]));
        let mut program = Program::default();
        let product = producer(&mut program, DType::F32);
        let c = bench.output("c", DType::F32, &[m, n]);
        program.store(product, c, at(&[n as i64, 1]));
        let form = Form::Contraction(vec![Product { k: vec![k], a, b, dtype: DType::F32 }].into());
        bench.kernel(form, domain(&[], &[m], &[n]), program.region, program.stores);
        bench.check(1e-5);
    }
}

/// Operands that are computed while they are packed: a normalisation by rows of one operand, an activation of the other, along k and
/// across it, with k of two axes, in `f32` and rounded to `bf16`.
#[test]
fn operands_are_computed_while_they_are_packed() {
    for (number, [m, n, k1, k2]) in
        [[40, 33, 3, 20], [13, 401, 1, 390], [21, 50, 2, 400], [10, 12, 5, 7]].into_iter().enumerate()
    {
        for (along_k, dtype) in
            [(true, DType::F32), (false, DType::F32), (true, DType::BF16), (false, DType::BF16)]
        {
            let (batch, k) = (2, k1 * k2);
            let (mut bench, x, y) = factors(DType::F32, &[batch, m, k], &[batch, n, k]);
            let mut random = Random(7);
            let mean =
                bench.input("mean", random.tensor(&TensorType::new(DType::F32, [batch, m]), -1.0, 1.0));
            let gain = bench.input("gain", random.tensor(&TensorType::new(DType::F32, [k]), 0.5, 1.5));
            let [mi, ni, ki, k2i] = [m, n, k, k2].map(|x| x as i64);
            // Axes: batch, row, column, k1, k2.
            let place = |outer: usize, extent: i64| {
                let mut strides = [extent * ki, 0, 0, k2i, 1];
                strides[outer] = ki;
                if !along_k {
                    (strides[outer], strides[3], strides[4]) = (1, k2i * extent, extent);
                }
                at(&strides)
            };
            let round = |mut operand: Operand| {
                if dtype == DType::BF16 {
                    operand.value = operand.region.push(InstrKind::Cast(operand.value), dtype);
                }
                operand
            };
            let mut a = operand(x, DType::F32, DType::F32, place(1, mi));
            let load = |buffer, index| InstrKind::Load { buffer, index, guard: vec![] };
            let mean = a.region.push(load(mean, at(&[mi, 1, 0, 0, 0])), DType::F32);
            let gain = a.region.push(load(gain, at(&[0, 0, 0, k2i, 1])), DType::F32);
            let centred = a.region.push(InstrKind::Binary(Binary::Sub, a.value, mean), DType::F32);
            a.value = a.region.push(InstrKind::Binary(Binary::Mul, centred, gain), DType::F32);
            let mut b = operand(y, DType::F32, DType::F32, place(2, ni));
            b.value = b.region.push(InstrKind::Unary(Unary::Erf, b.value), DType::F32);
            // One of them, or both.
            let plain = |buffer, index| operand(buffer, DType::F32, DType::F32, index);
            match number % 3 {
                0 => {}
                1 => a = plain(x, place(1, mi)),
                _ => b = plain(y, place(2, ni)),
            }
            let mut program = Program::default();
            let product = producer(&mut program, DType::F32);
            let c = bench.output("c", DType::F32, &[batch, m, n]);
            program.store(product, c, at(&[mi * ni, ni, 1]));
            let product = Product { k: vec![k1, k2], a: round(a), b: round(b), dtype: DType::F32 };
            let form = Form::Contraction(vec![product].into());
            bench.kernel(form, domain(&[batch], &[m], &[n]), program.region, program.stores);
            // A value beside a tie is rounded to the one or the other side.
            bench.check(if dtype == DType::BF16 { 5e-3 } else { 5e-5 });
        }
    }
}

/// Rows of a product are normalised and its columns are summed in tiles: of several strips and blocks of k, wider than a tile, wider than
/// high.
#[test]
fn rows_and_columns_are_reduced_in_tiles() {
    for [m, n, k] in [[40, 401, 30], [131, 70, 800], [9, 900, 390], [1, 5, 7], [500, 16, 20], [24, 1, 33]] {
        for (columns, rows) in [(true, false), (false, true), (true, true)] {
            let batch = 2;
            let (mut bench, a, b) = factors(DType::F32, &[batch, m, k], &[n, k]);
            let [mi, ni, ki] = [m, n, k].map(|x| x as i64);
            let a = operand(a, DType::F32, DType::F32, at(&[mi * ki, ki, 0, 1]));
            let b = operand(b, DType::F32, DType::F32, at(&[0, 0, ki, 1]));
            let mut program = Program::default();
            let mut value = producer(&mut program, DType::F32);
            let index = at(&[mi * ni, ni, 1]);
            if columns {
                let reduce = |op, x| InstrKind::Reduce(op, Direction::Columns, x);
                let largest = program.push(reduce(ReduceOp::Max, value), DType::F32);
                let centred = program.push(InstrKind::Binary(Binary::Sub, value, largest), DType::F32);
                let weight = program.push(InstrKind::Unary(Unary::Exp, centred), DType::F32);
                let sum = program.push(reduce(ReduceOp::Sum, weight), DType::F32);
                value = program.push(InstrKind::Binary(Binary::Div, weight, sum), DType::F32);
                let of_rows = bench.output("sum", DType::F32, &[batch, m]);
                program.store(sum, of_rows, at(&[mi, 1, 0]));
            }
            if rows {
                let total =
                    program.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Rows, value), DType::F32);
                let totals = bench.output("total", DType::F32, &[batch, n]);
                program.store(total, totals, at(&[ni, 0, 1]));
                let half = program.push(InstrKind::Cast(value), DType::BF16);
                let least =
                    program.push(InstrKind::Reduce(ReduceOp::Min, Direction::Rows, half), DType::BF16);
                let leasts = bench.output("least", DType::BF16, &[batch, n]);
                program.store(least, leasts, at(&[ni, 0, 1]));
            }
            let c = bench.output("c", DType::F32, &[batch, m, n]);
            program.store(value, c, index);
            let form = Form::Contraction(vec![Product { k: vec![k], a, b, dtype: DType::F32 }].into());
            bench.kernel(form, domain(&[batch], &[m], &[n]), program.region, program.stores);
            bench.check(1e-2);
        }
    }
}
