//! Products and chains, built by hand: every layout and type of operands, tiles of both sizes, bands, every direction.

use crate::gemv::{Operands, bench};
use crate::judge::{Case, check, is_skipped};
use crate::support::{Bench, Program, Random, at};
use kernfusion_cuda::Options;
use kernfusion_cuda::Renderer;
use kernfusion_cuda::emulator::{Emulator, Job, ThreadSchedule};
use kernfusion_ir::evaluate::{Array, Precision};
use kernfusion_ir::kernel::{
    Band, BufferId, Consumer, Contraction, Direction, Domain, Form, Index, InstrKind, Operand, Product,
    Region, Scalar, interpret,
};
use kernfusion_ir::{Binary, Compare, DType, ReduceOp, TensorType, Unary};

pub(crate) fn case(name: String, bench: Bench, tolerance: f64) -> Case {
    let array = |tensor: &kernfusion_ir::Tensor| Array { ty: tensor.ty(), values: tensor.to_f64() };
    let inputs = bench.inputs.iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect();
    let expected = interpret(&bench.graph, &inputs, Precision::Declared).expect("all inputs");
    Case { name, plan: bench.plan(), inputs: bench.inputs, expected, tolerance }
}

/// An operand that is a load, converted if the buffer has another type.
pub(crate) fn operand(buffer: BufferId, from: DType, to: DType, index: Index) -> Operand {
    let mut region = Region::default();
    let mut value = region.push(InstrKind::Load { buffer, index, guard: vec![] }, from);
    if from != to {
        value = region.push(InstrKind::Cast(value), to);
    }
    Operand { region, value }
}

/// `c[b, m, n] = gelu(Σ a[b, m, k]·b[b, n, k])`, operands transposed or not, `from` in memory and multiplied as `to`.
fn product(
    [from, to]: [DType; 2],
    [batch, m, n, k]: [usize; 4],
    transposed: [bool; 2],
    tolerance: f64,
) -> Case {
    let (mut bench, mut random) = (Bench::default(), Random(9));
    let mut input =
        |name: &str, a| bench.input(name, random.tensor(&TensorType::new(from, [batch, a, k]), -1.0, 1.0));
    let (a, b) = (input("a", m), input("b", n));
    let [mi, ni, ki] = [m, n, k].map(|x| x as i64);
    let a_index = if transposed[0] { at(&[mi * ki, 1, 0, mi]) } else { at(&[mi * ki, ki, 0, 1]) };
    let b_index = if transposed[1] { at(&[ni * ki, 0, 1, ni]) } else { at(&[ni * ki, 0, ki, 1]) };
    let (a, b) = (operand(a, from, to, a_index), operand(b, from, to, b_index));
    let mut program = Program::default();
    let sum = program.push(InstrKind::Producer(0), DType::F32);
    let erf = program.push(InstrKind::Unary(Unary::Erf, sum), DType::F32);
    let value = program.push(InstrKind::Binary(Binary::Mul, erf, sum), DType::F32);
    let c = bench.output("c", DType::F32, &[batch, m, n]);
    program.store(value, c, at(&[mi * ni, ni, 1]));
    let form = Form::Contraction(vec![Product { k: vec![k], a, b, dtype: DType::F32 }].into());
    let domain = Domain { axes: vec![batch, m, n], outer: 1, rows: 1 };
    bench.kernel(form, domain, program.region, program.stores);
    case(format!("product {from} {to} {batch}×{m}×{n}×{k} {transposed:?}"), bench, tolerance)
}

#[test]
fn products_of_every_layout_and_type() {
    let mut cases = vec![];
    let types = [
        ([DType::F32, DType::F32], 2e-5),
        ([DType::BF16, DType::BF16], 2e-5),
        ([DType::F16, DType::F16], 2e-5),
        ([DType::F32, DType::BF16], 2e-5),
        ([DType::BF16, DType::F32], 2e-5),
    ];
    for (types, tolerance) in types {
        for layout in [[false, false], [false, true], [true, false], [true, true]] {
            // Aligned copies, nothing aligned, sums of nothing, more than one tile and step.
            for shape in [[2, 70, 65, 48], [1, 72, 136, 88], [1, 33, 9, 19], [1, 9, 10, 0]] {
                cases.push(product(types, shape, layout, tolerance));
            }
        }
        // Large tiles.
        cases.push(product(types, [120, 9, 130, 16], [false, false], tolerance));
    }
    check(&cases, &Options::default());
}

/// Tiles that warpgroups compute: operands that lie along sums or along rows, copied and computed, with several steps, a part of a last
/// one, and none, in both ways to share out a tile.
#[test]
fn products_of_warpgroups() {
    for tile in [[128, 128], [128, 64], [64, 128], [128, 256]] {
        check(&warpgroup_products(), &by_warpgroups(tile));
    }
}

pub(crate) fn by_warpgroups(tile: [usize; 2]) -> Options {
    Options { tile: Some(tile), ..Options::of("sm_90a") }
}

pub(crate) fn warpgroup_products() -> Vec<Case> {
    let (f32, bf16, f16) = (DType::F32, DType::BF16, DType::F16);
    let layouts = [[false, false], [false, true], [true, false], [true, true]];
    let mut cases: Vec<_> =
        layouts.iter().map(|layout| product([bf16, bf16], [1, 136, 72, 264], *layout, 2e-5)).collect();
    cases.extend([
        product([f16, f16], [2, 70, 65, 48], [false, true], 2e-5),
        product([f32, bf16], [1, 33, 9, 210], [true, false], 2e-5),
        product([bf16, bf16], [1, 9, 130, 16], [false, false], 2e-5),
        product([bf16, bf16], [1, 9, 10, 0], [false, false], 2e-5),
        in_parts(),
    ]);
    cases
}

/// The entries of five products take 100 KiB of shared memory together, which some cards do not have: there, each is a kernel.
#[test]
fn entries_fit_into_shared_memory() {
    let operands = Operands { a: DType::F32, b: DType::F32, multiplied: DType::F32, along_columns: false };
    let five = case("five products".into(), bench(operands, [1, 20, 33, 24], 5), 1e-4);
    for (architecture, functions) in [("sm_80", 1), ("sm_89", 6)] {
        let options = Options::of(architecture);
        let mut renderer = Renderer::new(options.clone());
        renderer.program(&five.plan).expect("renders");
        assert_eq!(renderer.functions().len(), functions, "{architecture}");
        check(std::slice::from_ref(&five), &options);
    }
}

/// What many tiles would convert is converted once.
#[test]
fn operands_that_many_tiles_read_are_converted_before() {
    let (f32, bf16) = (DType::F32, DType::BF16);
    let cases = [product([f32, bf16], [1, 390, 400, 24], [false, true], 2e-5)];
    let mut renderer = Renderer::new(Options::default());
    let program = renderer.program(&cases[0].plan).expect("renders");
    let texts: Vec<_> = renderer.functions().iter().map(|function| function.text.as_str()).collect();
    assert_eq!(program.steps.len(), 3, "{texts:?}");
    assert!(!texts.iter().any(|text| text.contains("= computed<")), "{texts:?}");
    check(&cases, &Options::default());
}

/// Few tiles and long sums: several blocks have a part of a tile's sums each, and another function adds these up. The last part is
/// shorter than the others.
#[test]
fn long_sums_in_parts() {
    let (f32, bf16) = (DType::F32, DType::BF16);
    let cases = [
        product([f32, f32], [1, 20, 33, 3000], [false, false], 1e-4),
        in_parts(),
        product([f32, bf16], [1, 7, 5, 2050], [true, false], 1e-4),
    ];
    let mut renderer = Renderer::new(Options::default());
    for case in &cases {
        let program = renderer.program(&case.plan).expect("renders");
        assert_eq!(program.steps.len(), 2, "{}", case.name);
    }
    check(&cases, &Options::default());
}

/// Operands of f32 on tensor cores: each is rounded to 10 bits of fraction.
#[test]
fn tf32_rounds_operands() {
    let cases: Vec<_> = [[2, 70, 65, 48], [1, 72, 136, 40], [1, 33, 9, 19]]
        .into_iter()
        .map(|shape| product([DType::F32, DType::F32], shape, [false, true], 1e-2))
        .collect();
    check(&cases, &Options { tf32: true, ..Options::default() });
}

/// A tile decides who computes an entry, not how.
#[test]
fn every_tile_gives_the_same_bits() {
    if is_skipped() {
        return;
    }
    let (f32, bf16) = (DType::F32, DType::BF16);
    let cases = [
        product([f32, f32], [1, 140, 150, 48], [false, true], 2e-5),
        product([bf16, bf16], [2, 70, 65, 48], [false, false], 2e-5),
        product([f32, f32], [1, 33, 9, 19], [true, false], 2e-5),
        product([f32, f32], [1, 72, 136, 40], [true, true], 2e-5),
        product([bf16, bf16], [1, 72, 136, 40], [true, true], 2e-5),
        product([bf16, bf16], [1, 20, 72, 2100], [false, true], 2e-5),
    ];
    for (tf32, warpgroups) in [(false, false), (true, false), (false, true)] {
        let mut results =
            [None, Some([64, 64]), Some([128, 64]), Some([64, 128]), Some([128, 128]), Some([128, 256])].map(
                |tile| {
                    let mut renderer =
                        Renderer::new(Options { tf32, warpgroups, tile, ..Options::default() });
                    let programs: Vec<_> =
                        cases.iter().map(|case| renderer.program(&case.plan).expect(&case.name)).collect();
                    let text = renderer
                        .functions()
                        .iter()
                        .map(|function| function.text.as_str())
                        .collect::<String>();
                    assert!(
                        tile.is_none_or(|[rows, columns]| {
                            let columns = if warpgroups { columns } else { columns.min(128) };
                            text.contains(&format!(", {rows}, {columns}>"))
                        }),
                        "{text}"
                    );
                    let emulator =
                        Emulator::build(renderer.functions()).unwrap_or_else(|error| panic!("{error}"));
                    let jobs: Vec<_> = cases
                        .iter()
                        .zip(&programs)
                        .map(|(case, program)| Job { plan: &case.plan, program, inputs: &case.inputs })
                        .collect();
                    emulator.run(&jobs, ThreadSchedule::ALL[0]).unwrap_or_else(|error| panic!("{error}"))
                },
            );
        let [first, others @ ..] = &mut results;
        assert!(others.iter().all(|other| other == first), "tf32 {tf32}, warpgroups {warpgroups}");
    }
}

/// Sizes of a chain.
#[derive(Debug, Clone, Copy)]
struct Shape {
    batch: usize,
    rows: usize,
    columns: usize,
    /// Of the products' sums.
    k: usize,
    /// Columns of the second products.
    p: usize,
}

/// Softmax of the first product inside of a band, times the second product, multiplied along the columns and across
/// the rows; the largest score of each row is stored, and every value if that is asked for.
fn chain(shape: Shape, band: Option<Band>, dtype: DType, stores_values: bool, tolerance: f64) -> Case {
    let Shape { batch, rows, columns, k, p } = shape;
    let (mut bench, mut random) = (Bench::default(), Random(11));
    let mut input = |bench: &mut Bench, name: &str, a: usize, b: usize| {
        bench.input(name, random.tensor(&TensorType::new(dtype, [batch, a, b]), -1.0, 1.0))
    };
    let [q, u] = ["q", "u"].map(|name| input(&mut bench, name, rows, k));
    let [key, v] = ["key", "v"].map(|name| input(&mut bench, name, columns, k));
    let (w, d) = (input(&mut bench, "w", columns, p), input(&mut bench, "d", rows, p));
    let [ri, ci, ki, pi] = [rows, columns, k, p].map(|x| x as i64);
    let load = |buffer, index| operand(buffer, dtype, dtype, index);
    let left = |buffer| load(buffer, at(&[ri * ki, ki, 0, 1]));
    let right = |buffer| load(buffer, at(&[ci * ki, 0, ki, 1]));
    let product = |a, b| Product { k: vec![k], a: left(a), b: right(b), dtype: DType::F32 };
    let mut program = Program::default();
    let (largest, value) = softmax(&mut program, band);
    let statistics = bench.output("largest", DType::F32, &[batch, rows]);
    program.store(largest, statistics, at(&[ri, 1, 0]));
    if stores_values {
        let values = bench.output("values", DType::F32, &[batch, rows, columns]);
        program.store(value, values, at(&[ri * ci, ci, 1]));
    }
    let value = if dtype == DType::F32 { value } else { program.push(InstrKind::Cast(value), dtype) };
    let along = bench.output("along", dtype, &[batch, rows, p]);
    let across = bench.output("across", DType::F32, &[batch, columns, p]);
    let consumer =
        |along, with, dtype, buffer, index| Consumer { value, along, p: vec![p], with, dtype, buffer, index };
    let w = load(w, at(&[ci * pi, 0, pi, 1]));
    let d = load(d, at(&[ri * pi, pi, 0, 1]));
    let consumers = vec![
        consumer(Direction::Columns, w, dtype, along, at(&[ri * pi, pi, 0, 1])),
        consumer(Direction::Rows, d, DType::F32, across, at(&[ci * pi, 0, 1, ci])),
    ];
    let products = vec![product(q, key), product(u, v)];
    let form = Form::Contraction(Contraction { products, consumers, band, inside: vec![] });
    bench.kernel(
        form,
        Domain { axes: vec![batch, rows, columns], outer: 1, rows: 1 },
        program.region,
        program.stores,
    );
    case(format!("chain {dtype} {shape:?} {band:?}"), bench, tolerance)
}

/// The largest score of the row, and softmax(S₀ inside of the band, else −∞) · S₁.
fn softmax(program: &mut Program, band: Option<Band>) -> (Scalar, Scalar) {
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
    (largest, program.push(InstrKind::Binary(Binary::Mul, weight, other), DType::F32))
}

#[test]
fn chains_of_every_shape_band_and_type() {
    let shapes = [
        Shape { batch: 2, rows: 37, columns: 45, k: 9, p: 11 },
        Shape { batch: 2, rows: 130, columns: 130, k: 16, p: 64 },
        // Sums of second products that end with a panel, but not with a tile.
        Shape { batch: 1, rows: 48, columns: 80, k: 8, p: 8 },
        // Wider than the registers of a block: the same through memory.
        Shape { batch: 1, rows: 40, columns: 70, k: 24, p: 130 },
        Shape { batch: 1, rows: 20, columns: 40, k: 0, p: 6 },
    ];
    let bands = [
        None,
        Some(Band { lower: None, upper: Some(0) }),
        Some(Band { lower: Some(0), upper: None }),
        Some(Band { lower: Some(-20), upper: Some(3) }),
    ];
    let mut cases = vec![];
    for shape in shapes {
        for band in bands {
            cases.push(chain(shape, band, DType::F32, false, 5e-5));
        }
        cases.push(chain(shape, bands[1], DType::F32, true, 5e-5));
        cases.push(chain(shape, bands[1], DType::BF16, false, 0.04));
        cases.push(chain(shape, None, DType::F16, false, 0.01));
    }
    check(&cases, &Options::default());
}

/// Chains that go through memory, in slices of rows.
#[test]
fn wide_chains_in_slices() {
    let shape = Shape { batch: 2, rows: 45, columns: 37, k: 9, p: 140 };
    let band = Some(Band { lower: None, upper: Some(0) });
    let cases = [
        chain(Shape { rows: 37, ..shape }, band, DType::F32, true, 5e-5),
        chain(shape, None, DType::F32, false, 5e-5),
        // Values of 16 bits, whose entries come in pieces of one slice, and of two.
        chain(shape, None, DType::BF16, false, 0.04),
        chain(Shape { rows: 90, ..shape }, None, DType::BF16, false, 0.04),
    ];
    check(&cases, &Options { slice_bytes: 9000, ..Options::default() });
}

/// One of each kind: both tiles of every type, and chains.
pub(crate) fn few() -> Vec<Case> {
    let (f32, bf16) = (DType::F32, DType::BF16);
    let band = Some(Band { lower: None, upper: Some(0) });
    let shape = Shape { batch: 2, rows: 130, columns: 130, k: 16, p: 64 };
    vec![
        product([f32, f32], [1, 33, 9, 19], [false, true], 0.0),
        product([f32, bf16], [1, 33, 9, 19], [false, true], 0.0),
        product([f32, f32], [120, 9, 130, 16], [false, false], 0.0),
        product([bf16, bf16], [120, 9, 130, 16], [false, false], 0.0),
        product([bf16, bf16], [120, 24, 136, 16], [true, true], 0.0),
        product([f32, bf16], [120, 9, 130, 16], [false, true], 0.0),
        product([f32, f32], [120, 5, 130, 17], [false, true], 0.0),
        chain(shape, band, f32, false, 0.0),
        chain(shape, band, bf16, false, 0.0),
        chain(Shape { p: 128, ..shape }, band, f32, false, 0.0),
        chain(Shape { p: 128, ..shape }, band, bf16, false, 0.0),
    ]
}

/// Small ones in which every barrier of the headers matters: several steps and tiles, two products, operands that are
/// copied, second products, and two reductions of one sweep, in plain tiles and in those of tensor cores; operands that are copied
/// as they lie, with neighbours along rows.
pub(crate) fn few_small() -> Vec<Case> {
    let shape = Shape { batch: 1, rows: 70, columns: 140, k: 48, p: 24 };
    let band = Some(Band { lower: None, upper: Some(100) });
    let (f32, bf16) = (DType::F32, DType::BF16);
    vec![
        product([f32, f32], [1, 33, 20, 112], [false, false], 2e-5),
        chain(shape, band, f32, false, 5e-5),
        chain(shape, band, bf16, false, 0.04),
        sums_and_product(bf16, 16),
        product([bf16, bf16], [1, 40, 72, 48], [true, true], 2e-5),
        product([bf16, bf16], [1, 40, 72, 48], [false, false], 2e-5),
        // Too long sums for registers.
        chain(Shape { k: 136, ..shape }, band, bf16, false, 0.04),
        sums_and_product(bf16, 136),
        product_and_residual(),
    ]
}

/// A product in `bf16` and a number of memory for each entry.
fn product_and_residual() -> Case {
    let (bf16, [m, n, k]) = (DType::BF16, [20, 72, 32]);
    let (mut bench, mut random) = (Bench::default(), Random(15));
    let mut input = |name: &str, shape: [usize; 2]| {
        bench.input(name, random.tensor(&TensorType::new(bf16, shape), -1.0, 1.0))
    };
    let (a, b, residual) = (input("a", [m, k]), input("b", [n, k]), input("residual", [m, n]));
    let a = operand(a, bf16, bf16, at(&[k as i64, 0, 1]));
    let b = operand(b, bf16, bf16, at(&[0, k as i64, 1]));
    let mut program = Program::default();
    let sum = program.push(InstrKind::Producer(0), DType::F32);
    let kept = program.load(residual, bf16, at(&[n as i64, 1]));
    let kept = program.push(InstrKind::Cast(kept), DType::F32);
    let value = program.push(InstrKind::Binary(Binary::Add, sum, kept), DType::F32);
    let c = bench.output("c", DType::F32, &[m, n]);
    program.store(value, c, at(&[n as i64, 1]));
    let form = Form::Contraction(vec![Product { k: vec![k], a, b, dtype: DType::F32 }].into());
    bench.kernel(form, Domain { axes: vec![m, n], outer: 0, rows: 1 }, program.region, program.stores);
    case("product and residual".into(), bench, 2e-5)
}

/// A product whose sums are divided into parts.
pub(crate) fn in_parts() -> Case {
    product([DType::BF16, DType::BF16], [2, 24, 40, 2100], [true, true], 1e-4)
}

/// The sums of the entries and of their squares, along the rows, and the entries times a matrix whose sums lie together.
fn sums_and_product(dtype: DType, k: usize) -> Case {
    let [m, n, p] = [20, 72, 8];
    let (mut bench, mut random) = (Bench::default(), Random(13));
    let mut input =
        |name: &str, a| bench.input(name, random.tensor(&TensorType::new(dtype, [a, k]), -1.0, 1.0));
    let (a, b) = (input("a", m), input("b", n));
    let w = bench.input("w", random.tensor(&TensorType::new(dtype, [p, n]), -1.0, 1.0));
    let a = operand(a, dtype, dtype, at(&[k as i64, 0, 1]));
    let b = operand(b, dtype, dtype, at(&[0, k as i64, 1]));
    let with = operand(w, dtype, dtype, at(&[0, 1, n as i64]));
    let mut program = Program::default();
    let entry = program.push(InstrKind::Producer(0), DType::F32);
    let value = program.push(InstrKind::Cast(entry), dtype);
    let square = program.push(InstrKind::Binary(Binary::Mul, entry, entry), DType::F32);
    for (name, value) in [("sum", entry), ("squares", square)] {
        let sum = program.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, value), DType::F32);
        let output = bench.output(name, DType::F32, &[m]);
        program.store(sum, output, at(&[1, 0]));
    }
    let buffer = bench.output("product", DType::F32, &[m, p]);
    let index = at(&[p as i64, 0, 1]);
    let along = Direction::Columns;
    let consumers = vec![Consumer { value, along, p: vec![p], with, dtype: DType::F32, buffer, index }];
    let products = vec![Product { k: vec![k], a, b, dtype: DType::F32 }];
    let form = Form::Contraction(Contraction { products, consumers, ..Contraction::default() });
    bench.kernel(form, Domain { axes: vec![m, n], outer: 0, rows: 1 }, program.region, program.stores);
    // Entries near the middle between two values of the narrow type may be rounded either way.
    case(format!("sums and product {dtype} {k}"), bench, 0.02)
}
