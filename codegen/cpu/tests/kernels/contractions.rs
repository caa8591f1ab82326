//! Contractions: layouts, epilogues, several products, every dtype.

use crate::support::{Bench, Program, Random, at};
use kernfusion_ir::kernel::{
    BufferId, Direction, Domain, Form, Index, InstrKind, Operand, Product, Region, Scalar,
};
use kernfusion_ir::{Binary, DType, ReduceOp, TensorType, Unary};

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
