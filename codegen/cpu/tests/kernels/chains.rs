//! Chains of products: whole matrices for each thread and matrices that threads share, bands, every direction.

use crate::support::{Bench, Program, Random, at};
use kernfusion_cpu::Options;
use kernfusion_cpu::guard::{Side, guarded};
use kernfusion_cpu::isa::Isa;
use kernfusion_ir::kernel::{
    Band, BufferId, Consumer, Contraction, Direction, Domain, Form, Index, InstrKind, Operand, Product,
    Region, Scalar,
};
use kernfusion_ir::{Binary, Compare, DType, ReduceOp, Tensor, TensorType, Unary};

/// Sizes of a chain.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    rows: usize,
    columns: usize,
    /// Of the products' sums.
    k: usize,
    /// Columns of the second products.
    p: usize,
}

fn operand(buffer: BufferId, dtype: DType, index: Index) -> Operand {
    let mut region = Region::default();
    let value = region.push(InstrKind::Load { buffer, index, guard: vec![] }, dtype);
    Operand { region, value }
}

/// Softmax of the first product inside of a band, times the second product, multiplied along the columns and across
/// the rows; the largest score of each row is stored.
fn check(shape: Shape, band: Option<Band>, dtype: DType, is_transposed: bool, tolerance: f64) {
    bench(shape, band, dtype, is_transposed).check(tolerance);
}

fn bench(shape: Shape, band: Option<Band>, dtype: DType, is_transposed: bool) -> Bench {
    let Shape { batch, rows, columns, k, p } = shape;
    let (mut bench, mut random) = (Bench::default(), Random(11));
    let mut input = |bench: &mut Bench, name: &str, a: usize, b: usize| {
        bench.input(name, random.tensor(&TensorType::new(dtype, [batch, a, b]), -1.0, 1.0))
    };
    let [q, u] = ["q", "u"].map(|name| input(&mut bench, name, rows, k));
    let [key, v] = ["key", "v"].map(|name| input(&mut bench, name, columns, k));
    let (w, d) = (input(&mut bench, "w", columns, p), input(&mut bench, "d", rows, p));
    let [ri, ci, ki, pi] = [rows, columns, k, p].map(|x| x as i64);

    // Axes: batch, row, column; then k or p.
    let left = |buffer| operand(buffer, dtype, at(&[ri * ki, ki, 0, 1]));
    let right = |buffer| operand(buffer, dtype, at(&[ci * ki, 0, ki, 1]));
    let product = |a, b| Product { k: vec![k], a: left(a), b: right(b), dtype: DType::F32 };
    let mut program = Program::default();
    let value = program_of(&mut program, band);
    let largest = row_maximum(&program);
    let statistics = bench.output("largest", DType::F32, &[batch, rows]);
    program.store(largest, statistics, at(&[ri, 1, 0]));
    let value = match dtype {
        DType::F32 => value,
        dtype => program.push(InstrKind::Cast(value), dtype),
    };
    let along = bench.output("along", dtype, &[batch, rows, p]);
    let across = bench.output("across", DType::F32, &[batch, columns, p]);
    let across_index = if is_transposed { at(&[ci * pi, 0, 1, ci]) } else { at(&[ci * pi, 0, pi, 1]) };
    let consumer =
        |along, with, dtype, buffer, index| Consumer { value, along, p: vec![p], with, dtype, buffer, index };
    let w = operand(w, dtype, at(&[ci * pi, 0, pi, 1]));
    let d = operand(d, dtype, at(&[ri * pi, pi, 0, 1]));
    let consumers = vec![
        consumer(Direction::Columns, w, dtype, along, at(&[ri * pi, pi, 0, 1])),
        consumer(Direction::Rows, d, DType::F32, across, across_index),
    ];
    let products = vec![product(q, key), product(u, v)];
    let is_upper = |kind: &InstrKind| matches!(kind, InstrKind::Compare(Compare::Le, ..));
    let instrs = program.region.instrs.iter().enumerate();
    let inside = instrs.filter(|(_, instr)| is_upper(&instr.kind)).map(|(at, _)| Scalar(at as u32)).collect();
    let form = Form::Contraction(Contraction { products, consumers, band, inside });
    let domain = Domain { axes: vec![batch, rows, columns], outer: 1, rows: 1 };
    bench.kernel(form, domain, program.region, program.stores);
    bench
}

/// softmax(S₀ inside of the band, else −∞) · S₁.
fn program_of(program: &mut Program, band: Option<Band>) -> Scalar {
    let [row, column] =
        [1, 2].map(|axis| program.push(InstrKind::Coordinate(Index::axis(3, axis)), DType::I32));
    let distance = program.push(InstrKind::Binary(Binary::Sub, column, row), DType::I32);
    let mut score = program.push(InstrKind::Producer(0), DType::F32);
    let outside = program.constant(f64::NEG_INFINITY, DType::F32);
    let bounds = band.map_or([None, None], |band| [band.lower, band.upper]);
    for (bound, compare) in bounds.into_iter().zip([Compare::Ge, Compare::Le]) {
        if let Some(bound) = bound {
            let bound = program.constant(bound as f64, DType::I32);
            let inside = program.push(InstrKind::Compare(compare, distance, bound), DType::Bool);
            score = program.push(InstrKind::Select(inside, score, outside), DType::F32);
        }
    }
    let largest = program.push(InstrKind::Reduce(ReduceOp::Max, Direction::Columns, score), DType::F32);
    let shifted = program.push(InstrKind::Binary(Binary::Sub, score, largest), DType::F32);
    let e = program.push(InstrKind::Unary(Unary::Exp, shifted), DType::F32);
    let sum = program.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, e), DType::F32);
    let weight = program.push(InstrKind::Binary(Binary::Div, e, sum), DType::F32);
    let other = program.push(InstrKind::Producer(1), DType::F32);
    program.push(InstrKind::Binary(Binary::Mul, weight, other), DType::F32)
}

fn row_maximum(program: &Program) -> Scalar {
    let is_maximum = |kind: &InstrKind| matches!(kind, InstrKind::Reduce(ReduceOp::Max, ..));
    let at = program.region.instrs.iter().position(|instr| is_maximum(&instr.kind)).unwrap();
    Scalar(at as u32)
}

/// Few matrices, which threads share, and many, of which each thread has its own; sizes that fill no tile.
const SHAPES: [Shape; 4] = [
    Shape { batch: 2, rows: 37, columns: 45, k: 9, p: 11 },
    Shape { batch: 9, rows: 37, columns: 45, k: 9, p: 33 },
    Shape { batch: 8, rows: 130, columns: 130, k: 16, p: 20 },
    Shape { batch: 1, rows: 70, columns: 401, k: 24, p: 16 },
];

#[test]
fn chains_without_a_band() {
    for shape in SHAPES {
        check(shape, None, DType::F32, false, 2e-5);
    }
}

#[test]
fn chains_inside_of_a_band() {
    let bands =
        [(None, Some(0)), (None, Some(1)), (Some(0), None), (Some(-20), Some(3)), (Some(-3), Some(40))];
    for (lower, upper) in bands {
        // The last one has tiles of 32 rows and columns that lie wholly beyond the diagonal.
        for shape in SHAPES[..3].iter().chain([&Shape { batch: 9, rows: 64, columns: 96, k: 9, p: 33 }]) {
            // Every row has a column: rows beyond the last column would be empty.
            let rows = shape.rows.min(shape.columns);
            let shape = Shape { rows, ..*shape };
            // Scratch starts as NaNs, so that a read of what was never written shows.
            for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::BF16, 0.03)] {
                guarded(Side::Behind, || check(shape, Some(Band { lower, upper }), dtype, false, tolerance));
            }
        }
    }
}

#[test]
fn results_that_are_stored_otherwise_than_computed() {
    for shape in SHAPES {
        check(shape, None, DType::F32, true, 2e-5);
        check(shape, None, DType::BF16, true, 0.03);
    }
}

/// More columns than one packed block of k has values, under a band that begins inside of one.
#[test]
fn long_rows() {
    let shape = Shape { batch: 1, rows: 420, columns: 900, k: 5, p: 7 };
    check(shape, Some(Band { lower: Some(300), upper: Some(450) }), DType::F32, false, 2e-5);
}

/// Products that sum nothing are zero, whatever the scratch held before.
#[test]
fn sums_of_nothing() {
    for batch in [1, 9] {
        check(Shape { batch, rows: 20, columns: 40, k: 0, p: 6 }, None, DType::F32, false, 2e-5);
    }
}

/// A thread's own matrices have the bits of a matrix that threads share: in bf16 the one multiplies values as they lie, the other
/// packs them. Too few rows and columns for a second block, which would add sums up otherwise, and too many
/// for dot products, which do so, too.
#[test]
fn own_and_shared_matrices_have_the_same_bits() {
    let many = Shape { batch: 9, rows: 40, columns: 45, k: 9, p: 33 };
    for dtype in [DType::F32, DType::BF16] {
        let own = bench(many, None, dtype, false);
        let mut shared = bench(Shape { batch: 1, ..many }, None, dtype, false);
        for (name, first) in &mut shared.inputs {
            let ty = first.ty();
            *first = Tensor::from_bytes(&ty, &own.inputs[name].bytes()[..ty.bytes()]).unwrap();
        }
        for isa in Isa::available() {
            let options = Options { threads: 2, isa: Some(isa), ..Options::default() };
            let (own, shared) = (own.run(&options), shared.run(&options));
            for (name, first) in &shared {
                let bytes = first.bytes();
                assert_eq!(&own[name].bytes()[..bytes.len()], bytes, "{name} of {dtype:?} on {isa}");
            }
        }
    }
}
