//! Products with few rows or columns: every layout and type of the matrix, aligned and not, teams of all sizes.

use crate::judge::{Case, check};
use crate::products::{case, operand};
use crate::support::{Bench, Program, Random, at};
use kernfusion_cuda::{Options, Renderer};
#[cfg(feature = "driver")]
use kernfusion_ir::kernel::Plan;
use kernfusion_ir::kernel::{BufferId, Domain, Form, InstrKind, Operand, Product};
use kernfusion_ir::{Binary, DType, Tensor, TensorType, Unary};

const F32: DType = DType::F32;
const BF16: DType = DType::BF16;
const F16: DType = DType::F16;
const I8: DType = DType::I8;

/// What is multiplied: the types of both operands in memory and the one that they are converted to, and the last axis of the second one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) a: DType,
    pub(crate) b: DType,
    pub(crate) multiplied: DType,
    /// Whether neighbours of `b` lie along columns.
    pub(crate) along_columns: bool,
}

/// `c[o, m, n] = tanh(Σ a[o, m, k]·b[o, n, k] + bias[n]) · factor[o, m, n]`, of one product or of the sum of two.
pub(crate) fn bench(operands: Operands, [outer, m, n, k]: [usize; 4], products: usize) -> Bench {
    let (mut bench, mut random) = (Bench::default(), Random(13));
    let mut p = Program::default();
    let [mi, ni, ki] = [m, n, k].map(|extent| extent as i64);
    let Operands { a, b, multiplied, along_columns } = operands;
    let b_index = if along_columns { at(&[ni * ki, 0, 1, ni]) } else { at(&[ni * ki, 0, ki, 1]) };
    let of_products = (0..products).map(|number| {
        let mut input = |name: &str, dtype: DType, rows: usize| {
            let most = if dtype == I8 { 127.0 } else { 1.0 };
            let ty = TensorType::new(dtype, [outer, rows, k]);
            let values = random.tensor(&TensorType::new(DType::F64, ty.shape.clone()), -most, most).to_f64();
            bench.input(&format!("{name}{number}"), Tensor::from_f64(&ty, &values))
        };
        let (left, right) = (input("a", a, m), input("b", b, n));
        let left = operand(left, a, multiplied, at(&[mi * ki, ki, 0, 1]));
        let right = operand(right, b, multiplied, b_index.clone());
        Product { k: vec![k], a: left, b: right, dtype: F32 }
    });
    let of_products: Vec<_> = of_products.collect();
    let bias = bench.input("bias", random.tensor(&TensorType::new(F32, [n]), -1.0, 1.0));
    let factor = bench.input("factor", random.tensor(&TensorType::new(F32, [outer, m, n]), -1.0, 1.0));
    let sums: Vec<_> = (0..products).map(|number| p.push(InstrKind::Producer(number), F32)).collect();
    let sum = sums[1..].iter().fold(sums[0], |x, &y| p.push(InstrKind::Binary(Binary::Add, x, y), F32));
    // Bytes are large.
    let scale = p.constant(if b == I8 { 1.0 / 256.0 } else { 1.0 }, F32);
    let sum = p.push(InstrKind::Binary(Binary::Mul, sum, scale), F32);
    let of_column = p.load(bias, F32, at(&[0, 0, 1]));
    let shifted = p.push(InstrKind::Binary(Binary::Add, sum, of_column), F32);
    let value = p.push(InstrKind::Unary(Unary::Tanh, shifted), F32);
    let of_entry = p.load(factor, F32, at(&[mi * ni, ni, 1]));
    let value = p.push(InstrKind::Binary(Binary::Mul, value, of_entry), F32);
    let c = bench.output("c", F32, &[outer, m, n]);
    p.store(value, c, at(&[mi * ni, ni, 1]));
    let domain = Domain { axes: vec![outer, m, n], outer: 1, rows: 1 };
    bench.kernel(Form::Contraction(of_products.into()), domain, p.region, p.stores);
    bench
}

fn product(operands: Operands, shape: [usize; 4], products: usize) -> Case {
    case(format!("{operands:?} {shape:?}, {products} products"), bench(operands, shape, products), 1e-4)
}

/// All types along sums, and along columns.
fn all_operands() -> Vec<Operands> {
    let types = [
        [F32, F32, F32],
        [BF16, BF16, BF16],
        [F16, F16, F16],
        [F32, I8, F32],
        [BF16, I8, BF16],
        [F32, F32, BF16],
    ];
    let of = |[a, b, multiplied]: [DType; 3]| {
        [false, true].map(|along_columns| Operands { a, b, multiplied, along_columns })
    };
    types.into_iter().flat_map(of).collect()
}

/// One row and as many as there may be, of few and of many columns, of every type and layout.
#[cfg(feature = "driver")]
pub(crate) fn every_type() -> Vec<Plan> {
    let shapes = [[1, 1, 768, 768], [1, 1, 4300, 128], [1, 8, 4300, 128], [23, 8, 172, 128]];
    let of = |operands| shapes.into_iter().map(move |shape| bench(operands, shape, 1).plan());
    all_operands().into_iter().flat_map(of).collect()
}

/// Two products of teams of several warps; and a team of half a warp with three rows.
pub(crate) fn few_small() -> Vec<Case> {
    let of = |along_columns| Operands { a: F32, b: F32, multiplied: F32, along_columns };
    vec![
        product(of(false), [1, 1, 20, 1100], 2),
        product(of(true), [1, 1, 20, 300], 2),
        product(of(false), [2, 3, 40, 60], 1),
    ]
}

#[test]
fn few_rows_of_every_layout_and_type() {
    let mut cases = vec![];
    for operands in all_operands() {
        // Whole pieces, pieces that are left, sums of several steps, nothing aligned, sums of nothing.
        for shape in
            [[1, 1, 304, 96], [2, 1, 72, 1008], [1, 3, 64, 48], [1, 8, 33, 19], [1, 2, 9, 0], [3, 5, 12, 208]]
        {
            cases.push(product(operands, shape, 1));
        }
    }
    cases.extend(few_small());
    // A team of a whole block; teams of several columns.
    cases.push(product(all_operands()[0], [1, 1, 5, 8200], 1));
    cases.push(product(all_operands()[0], [600, 1, 60, 128], 1));
    let mut renderer = Renderer::new(Options::default());
    for case in &cases {
        renderer.program(&case.plan).expect(&case.name);
    }
    let texts = renderer.functions().iter().map(|function| function.text.as_str());
    let teams = |text: &str| {
        text.contains("using Few = FewRows<").then(|| text.split("FewRows<").nth(1).unwrap().to_string())
    };
    let found: Vec<_> = texts.map(|text| teams(text).unwrap_or_else(|| panic!("{text}"))).collect();
    for team in ["1, 1, 256, 1, 8>", "1, 4, 32, 1, 2>", "3, 1, 8, 1, 8>", "1, 1, 128, 1, 8>"] {
        assert!(found.iter().any(|found| found.starts_with(team)), "{team}: {found:?}");
    }
    check(&cases, &Options::default());
}

/// An operand `[n, k]` of half bytes, as a pass on graphs keeps weights: `[n, k / 32, 16]` bytes in one buffer, scales in the other.
fn unpacked(bytes: BufferId, (scales, kept): (BufferId, DType), k: usize, multiplied: DType) -> Operand {
    let groups = (k / 32) as i64;
    let mut p = Program::default();
    let byte = p.load(bytes, I8, at(&[0, 16 * groups, 16, 0, 1]));
    let byte = p.push(InstrKind::Cast(byte), DType::I32);
    let half = p.push(InstrKind::Coordinate(at(&[0, 0, 0, 1, 0])), DType::I32);
    let four = p.constant(4.0, DType::I32);
    let lowest = p.push(InstrKind::Binary(Binary::Mul, half, four), DType::I32);
    let shifted = p.push(InstrKind::Binary(Binary::Shr, byte, lowest), DType::I32);
    let mask = p.constant(15.0, DType::I32);
    let above = p.push(InstrKind::Binary(Binary::And, shifted, mask), DType::I32);
    let offset = p.constant(8.0, DType::I32);
    let number = p.push(InstrKind::Binary(Binary::Sub, above, offset), DType::I32);
    let number = p.push(InstrKind::Cast(number), F32);
    let mut scale = p.load(scales, kept, at(&[0, groups, 1, 0, 0]));
    if kept != F32 {
        scale = p.push(InstrKind::Cast(scale), F32);
    }
    let mut value = p.push(InstrKind::Binary(Binary::Mul, number, scale), F32);
    if multiplied != F32 {
        value = p.push(InstrKind::Cast(value), multiplied);
    }
    Operand { region: p.region, value }
}

/// With rows whose numbers lie in order, and every second one, rows of bytes, and scales of both types.
pub(crate) fn of_half_bytes() -> Vec<Case> {
    let shapes = [
        ([F32, F32], BF16, [1, 300, 1024], 1),
        ([F32, F32], F32, [1, 300, 1024], 1),
        ([F32, F32], BF16, [3, 40, 96], 1),
        ([F32, F32], F32, [8, 33, 32], 2),
        ([BF16, BF16], BF16, [1, 64, 2080], 1),
        ([BF16, BF16], F32, [4, 21, 64], 1),
        ([I8, F32], F32, [1, 64, 1024], 1),
        ([I8, F32], BF16, [3, 40, 96], 1),
    ];
    let of = |([kept_rows, dtype], kept, [m, n, k], apart): ([DType; 2], DType, [usize; 3], usize)| {
        let (mut bench, mut random) = (Bench::default(), Random(7));
        let mut bytes = |ty: &TensorType, [least, most]: [f64; 2]| {
            let values = random.tensor(&TensorType::new(DType::F64, ty.shape.clone()), least, most).to_f64();
            Tensor::from_f64(ty, &values)
        };
        let most = if kept_rows == I8 { 127.0 } else { 1.0 };
        let a = bench.input("a", bytes(&TensorType::new(kept_rows, [m, k * apart]), [-most, most]));
        let b = bench.input("b", bytes(&TensorType::new(I8, [n, k / 32, 16]), [-128.0, 127.0]));
        let scales = bench.input("s", random.tensor(&TensorType::new(kept, [n, k / 32]), -0.05, 0.05));
        let mut p = Program::default();
        let sum = p.push(InstrKind::Producer(0), F32);
        let c = bench.output("c", F32, &[m, n]);
        p.store(sum, c, at(&[n as i64, 1]));
        let (step, row) = (apart as i64, (k * apart) as i64);
        let left = operand(a, kept_rows, dtype, at(&[row, 0, 32 * step, 16 * step, step]));
        let right = unpacked(b, (scales, kept), k, dtype);
        let form =
            Form::Contraction(vec![Product { k: vec![k / 32, 2, 16], a: left, b: right, dtype: F32 }].into());
        bench.kernel(form, Domain { axes: vec![m, n], outer: 0, rows: 1 }, p.region, p.stores);
        // In bf16, what is unpacked is not rounded again.
        let tolerance = if dtype == F32 { 1e-5 } else { 3e-2 };
        case(format!("half bytes, {dtype} from {kept_rows}, scales {kept} {m}x{k}x{n}"), bench, tolerance)
    };
    shapes.into_iter().map(of).collect()
}

#[test]
fn half_bytes_are_unpacked_in_registers() {
    let cases = of_half_bytes();
    let mut renderer = Renderer::new(Options::default());
    for case in &cases {
        renderer.program(&case.plan).expect(&case.name);
    }
    for function in renderer.functions() {
        assert!(function.text.contains("return HalfBytes<"), "{}", function.text);
    }
    check(&cases, &Options::default());
}

/// Where columns are few, they are the rows.
#[test]
fn few_columns_are_rows() {
    let (mut bench, mut random) = (Bench::default(), Random(3));
    let [m, n, k] = [70, 2, 64];
    let a = bench.input("a", random.tensor(&TensorType::new(BF16, [m, k]), -1.0, 1.0));
    let b = bench.input("b", random.tensor(&TensorType::new(F32, [n, k]), -1.0, 1.0));
    let mut p = Program::default();
    let sum = p.push(InstrKind::Producer(0), F32);
    let c = bench.output("c", F32, &[m, n]);
    p.store(sum, c, at(&[n as i64, 1]));
    let a = operand(a, BF16, F32, at(&[k as i64, 0, 1]));
    let b = operand(b, F32, F32, at(&[0, k as i64, 1]));
    let form = Form::Contraction(vec![Product { k: vec![k], a, b, dtype: F32 }].into());
    bench.kernel(form, Domain { axes: vec![m, n], outer: 0, rows: 1 }, p.region, p.stores);
    let case = case("few columns".into(), bench, 1e-5);
    let mut renderer = Renderer::new(Options::default());
    renderer.program(&case.plan).expect("renders");
    assert!(renderer.functions()[0].text.contains("FewRows<2, "), "{}", renderer.functions()[0].text);
    check(&[case], &Options::default());
}
