//! Chains whose tiles stay in the registers of warps: attention and its gradients as kernels have them, with masks of every kind, in one
//! sweep and in two.

use crate::judge::{Case, check};
use crate::products::{case, operand};
use crate::support::{Bench, Program, Random, at};
use kernfusion_cuda::{Options, Renderer};
use kernfusion_ir::kernel::{
    Band, Consumer, Contraction, Direction, Domain, Form, Index, InstrKind, Plan, Product, Scalar,
};
use kernfusion_ir::{Binary, Compare, DType, ReduceOp, Tensor, TensorType, Unary};

/// Sizes of attention: heads, queries, keys, the width of a head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) width: usize,
}

/// What hides keys from queries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mask {
    /// Nothing.
    None,
    /// Keys after the query, by a number in place of their scores.
    Causal(f64),
    /// All keys but the query's own and this many before it.
    Window(i64),
    /// A number for each key, this one for all but the last, and one for each query, of which one has it, too, if it is finite.
    Biases(f64),
    /// A number for each key that grows from key to key, so that maxima rise from tile to tile.
    Rising,
}

impl Mask {
    fn band(self) -> Option<Band> {
        match self {
            Mask::None | Mask::Biases(_) | Mask::Rising => None,
            Mask::Causal(_) => Some(Band { lower: None, upper: Some(0) }),
            Mask::Window(before) => Some(Band { lower: Some(-before), upper: Some(0) }),
        }
    }
}

/// What a kernel of attention computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Part {
    /// O = softmax(mask(Q·Kᵀ))·V, with the maximum and the sum of each row.
    Forward,
    /// The gradients of Q, K and V from dO, with the maximum and the sum of each row and the sum of P∘dP, all in one kernel, whose first launch
    /// is along the rows.
    Backward,
    /// The same gradients where memory has the maximum and the sums of each row.
    Gradients,
}

pub(crate) const PARTS: [Part; 3] = [Part::Forward, Part::Backward, Part::Gradients];

/// A kernel of attention, with what it should compute.
pub(crate) fn attention(shape: Shape, mask: Mask, dtype: DType, part: Part) -> Case {
    attention_within(shape, mask, dtype, part, 0.04)
}

fn attention_within(shape: Shape, mask: Mask, dtype: DType, part: Part, tolerance: f64) -> Case {
    let bench = kernel(shape, mask, dtype, part);
    case(format!("attention {dtype} {shape:?} {mask:?} {part:?}"), bench, tolerance)
}

/// Attention and its gradients over 1,024 tokens, causal and not, in heads of 64 and 128 numbers.
pub(crate) fn of_long_sequences() -> Vec<Plan> {
    let shapes = [64, 128].map(|width| Shape { heads: 1, queries: 1024, keys: 1024, width });
    let masks = [Mask::None, Mask::Causal(f64::NEG_INFINITY)];
    let kinds = shapes.into_iter().flat_map(|shape| masks.map(|mask| (shape, mask)));
    kinds.flat_map(|(shape, mask)| PARTS.map(|part| kernel(shape, mask, DType::BF16, part).plan())).collect()
}

fn kernel(shape: Shape, mask: Mask, dtype: DType, part: Part) -> Bench {
    let Shape { heads, queries, keys, width } = shape;
    let (mut bench, mut random) = (Bench::default(), Random(13));
    let mut input = |name: &str, rows: usize| {
        bench.input(name, random.tensor(&TensorType::new(dtype, [heads, rows, width]), -1.0, 1.0))
    };
    let [q, d] = ["q", "d"].map(|name| input(name, queries));
    let [k, v] = ["k", "v"].map(|name| input(name, keys));
    let [ri, ci, wi] = [queries, keys, width].map(|extent| extent as i64);
    let of_queries = at(&[ri * wi, wi, 0, 1]);
    let of_keys = at(&[ci * wi, 0, wi, 1]);
    let load = |buffer, index: &Index| operand(buffer, dtype, dtype, index.clone());
    let product = |a, b| {
        let (a, b) = (load(a, &of_queries), load(b, &of_keys));
        Product { k: vec![width], a, b, dtype: DType::F32 }
    };
    let mut program = Program::default();
    let score = program.push(InstrKind::Producer(0), DType::F32);
    let (score, inside) = masked(&mut program, &mut bench, &mut random, score, shape, mask);
    let binary = |program: &mut Program, op, x, y| program.push(InstrKind::Binary(op, x, y), DType::F32);
    let reduce =
        |program: &mut Program, op, x| program.push(InstrKind::Reduce(op, Direction::Columns, x), DType::F32);
    let mut given = |program: &mut Program, bench: &mut Bench, name: &str, range: [f64; 2]| {
        let numbers = random.tensor(&TensorType::new(DType::F32, [heads, queries]), range[0], range[1]);
        program.load(bench.input(name, numbers), DType::F32, at(&[ri, 1, 0]))
    };
    let is_given = part == Part::Gradients;
    let largest = match is_given {
        true => given(&mut program, &mut bench, "largest", [4.0, 5.0]),
        false => reduce(&mut program, ReduceOp::Max, score),
    };
    let shifted = binary(&mut program, Binary::Sub, score, largest);
    let e = program.push(InstrKind::Unary(Unary::Exp, shifted), DType::F32);
    let sum = match is_given {
        true => given(&mut program, &mut bench, "sum", [1.0, 2.0]),
        false => reduce(&mut program, ReduceOp::Sum, e),
    };
    let weight = binary(&mut program, Binary::Div, e, sum);
    let rounded = program.push(InstrKind::Cast(weight), dtype);
    for (name, value) in [("largest", largest), ("sum", sum)].into_iter().filter(|_| !is_given) {
        let buffer = bench.output(name, DType::F32, &[heads, queries]);
        program.store(value, buffer, at(&[ri, 1, 0]));
    }
    let of_weighed = is_given.then(|| given(&mut program, &mut bench, "of_weighed", [-1.0, 1.0]));
    let mut consumer = |name: &str, rows: usize, value, along, with, index: &Index, lies: &Index| {
        let buffer = bench.output(name, DType::F32, &[heads, rows, width]);
        let with = load(with, index);
        Consumer { value, along, p: vec![width], with, dtype: DType::F32, buffer, index: lies.clone() }
    };
    let (products, consumers) = if part != Part::Forward {
        let other = program.push(InstrKind::Producer(1), DType::F32);
        let weighed = binary(&mut program, Binary::Mul, weight, other);
        let all = of_weighed.unwrap_or_else(|| reduce(&mut program, ReduceOp::Sum, weighed));
        let rest = binary(&mut program, Binary::Sub, other, all);
        let gradient = binary(&mut program, Binary::Mul, weight, rest);
        let gradient = program.push(InstrKind::Cast(gradient), dtype);
        let consumers = vec![
            consumer("dq", queries, gradient, Direction::Columns, k, &of_keys, &of_queries),
            consumer("dk", keys, gradient, Direction::Rows, q, &of_queries, &of_keys),
            consumer("dv", keys, rounded, Direction::Rows, d, &of_queries, &of_keys),
        ];
        (vec![product(q, k), product(d, v)], consumers)
    } else {
        let consumers = vec![consumer("o", queries, rounded, Direction::Columns, v, &of_keys, &of_queries)];
        (vec![product(q, k)], consumers)
    };
    let form = Form::Contraction(Contraction { products, consumers, band: mask.band(), inside });
    let domain = Domain { axes: vec![heads, queries, keys], outer: 1, rows: 1 };
    bench.kernel(form, domain, program.region, program.stores);
    bench
}

/// A score with what a mask adds to it, or puts in its place, and what holds for all keys that are seen.
fn masked(
    program: &mut Program,
    bench: &mut Bench,
    random: &mut Random,
    score: Scalar,
    shape: Shape,
    mask: Mask,
) -> (Scalar, Vec<Scalar>) {
    let mut inside = vec![];
    let [row, column] =
        [1, 2].map(|axis| program.push(InstrKind::Coordinate(Index::axis(3, axis)), DType::I32));
    let mut hide = |score, compare, distance: i64, hidden: f64| {
        let bound = program.constant(distance as f64, DType::I32);
        let difference = program.push(InstrKind::Binary(Binary::Sub, column, row), DType::I32);
        let is_seen = program.push(InstrKind::Compare(compare, difference, bound), DType::Bool);
        inside.push(is_seen);
        let hidden = program.constant(hidden, DType::F32);
        program.push(InstrKind::Select(is_seen, score, hidden), DType::F32)
    };
    let score = match mask {
        Mask::None => score,
        Mask::Causal(hidden) => hide(score, Compare::Le, 0, hidden),
        Mask::Window(before) => {
            let score = hide(score, Compare::Le, 0, f64::NEG_INFINITY);
            hide(score, Compare::Ge, -before, f64::NEG_INFINITY)
        }
        Mask::Rising => {
            let of_keys: Vec<_> =
                (0..shape.keys).map(|key| 0.15 * (key as f64 - shape.keys as f64)).collect();
            let of_keys = Tensor::from_f64(&TensorType::new(DType::F32, [shape.keys]), &of_keys);
            let of_keys = bench.input("of_keys", of_keys);
            let of_key = program.load(of_keys, DType::F32, at(&[0, 0, 1]));
            program.push(InstrKind::Binary(Binary::Add, score, of_key), DType::F32)
        }
        Mask::Biases(hidden) => {
            let Shape { queries, keys, .. } = shape;
            let mut of_keys = random.tensor(&TensorType::new(DType::F32, [keys]), -1.0, 1.0).to_f64();
            of_keys[..keys - 3].fill(hidden);
            let of_keys = Tensor::from_f64(&TensorType::new(DType::F32, [keys]), &of_keys);
            let of_keys = bench.input("of_keys", of_keys);
            let mut of_queries = random.tensor(&TensorType::new(DType::F32, [queries]), -1.0, 1.0).to_f64();
            if hidden.is_finite() {
                of_queries[queries / 2] = hidden;
            }
            let of_queries = Tensor::from_f64(&TensorType::new(DType::F32, [queries]), &of_queries);
            let of_queries = bench.input("of_queries", of_queries);
            let of_key = program.load(of_keys, DType::F32, at(&[0, 0, 1]));
            let of_query = program.load(of_queries, DType::F32, at(&[0, 1, 0]));
            let score = program.push(InstrKind::Binary(Binary::Add, score, of_key), DType::F32);
            program.push(InstrKind::Binary(Binary::Add, score, of_query), DType::F32)
        }
    };
    (score, inside)
}

/// A small one in which every barrier matters: two operands that are held, two sweeps with several tiles each.
pub(crate) fn few_small() -> Case {
    let shape = Shape { heads: 1, queries: 70, keys: 200, width: 48 };
    attention(shape, Mask::None, DType::BF16, Part::Backward)
}

/// Heads of 64 and 128 numbers, forward and backward.
pub(crate) fn every_width() -> Vec<Case> {
    let shape = Shape { heads: 1, queries: 128, keys: 128, width: 64 };
    let mask = Mask::Causal(f64::NEG_INFINITY);
    let wide = Shape { width: 128, ..shape };
    let cases = [shape, wide].map(|shape| PARTS.map(|part| attention(shape, mask, DType::BF16, part)));
    cases.into_iter().flatten().collect()
}

const MASKS: [Mask; 7] = [
    Mask::None,
    Mask::Causal(f64::NEG_INFINITY),
    Mask::Causal(-1e30),
    Mask::Window(30),
    Mask::Biases(f64::NEG_INFINITY),
    Mask::Biases(-1e30),
    Mask::Rising,
];

/// Values go through shared memory: of `f32`, by ordinary arithmetic and on tensor cores.
#[test]
fn attention_in_f32_under_every_mask() {
    let shape = Shape { heads: 1, queries: 70, keys: 150, width: 24 };
    for (tf32, tolerance) in [(false, 1e-4), (true, 0.02)] {
        let of_mask = |mask| PARTS.map(|part| attention_within(shape, mask, DType::F32, part, tolerance));
        let cases: Vec<_> = MASKS.into_iter().flat_map(of_mask).collect();
        check(&cases, &Options { tf32, ..Options::default() });
    }
}

#[test]
fn attention_and_its_gradients_under_every_mask() {
    let shapes = [
        Shape { heads: 2, queries: 130, keys: 150, width: 64 },
        Shape { heads: 1, queries: 128, keys: 128, width: 16 },
        Shape { heads: 1, queries: 33, keys: 200, width: 20 },
        Shape { heads: 1, queries: 20, keys: 70, width: 128 },
    ];
    let mut cases = vec![];
    for (number, shape) in shapes.into_iter().enumerate() {
        for mask in MASKS {
            let dtype = if number == 2 { DType::F16 } else { DType::BF16 };
            cases.extend(PARTS.map(|part| attention(shape, mask, dtype, part)));
        }
    }
    check(&cases, &Options::default());
}

/// Sizes that warpgroups compute: one part of rows and two, ends of rows and columns, both types.
pub(crate) fn of_warpgroups() -> Vec<Case> {
    let (bf16, f16, infinity) = (DType::BF16, DType::F16, f64::NEG_INFINITY);
    let shape = Shape { heads: 2, queries: 130, keys: 150, width: 64 };
    let wide = Shape { heads: 1, queries: 70, keys: 136, width: 128 };
    let narrow = Shape { heads: 1, queries: 128, keys: 128, width: 52 };
    let cases = [
        (shape, Mask::Causal(infinity), bf16),
        (shape, Mask::Biases(f64::NEG_INFINITY), bf16),
        (shape, Mask::Biases(-1e30), bf16),
        (shape, Mask::Rising, f16),
        (shape, Mask::Window(30), bf16),
        (wide, Mask::None, f16),
        (narrow, Mask::Causal(-1e30), bf16),
    ];
    let parts = |(shape, mask, dtype)| PARTS.map(|part| attention(shape, mask, dtype, part));
    cases.into_iter().flat_map(parts).collect()
}

/// Small ones in which every wait matters: rows in two parts and in one, panels of several lengths, several tiles.
pub(crate) fn few_of_warpgroups() -> Vec<Case> {
    let shape = Shape { heads: 1, queries: 100, keys: 200, width: 128 };
    [Part::Forward, Part::Gradients].map(|part| attention(shape, Mask::None, DType::BF16, part)).into()
}

pub(crate) fn by_warpgroups() -> Options {
    Options::of("sm_90a")
}

#[test]
fn attention_and_its_gradients_by_warpgroups() {
    let cases = of_warpgroups();
    let mut renderer = Renderer::new(by_warpgroups());
    cases.iter().for_each(|case| drop(renderer.program(&case.plan).expect("renders")));
    assert!(renderer.functions().iter().all(|function| function.text.contains("WarpgroupStrip")));
    check(&cases, &by_warpgroups());
}

/// Two products whose values, and the products of these, are multiplied by matrices with 128 columns each.
fn three_wide_sums() -> Case {
    let (rows, columns, width) = (70, 90, 128);
    let (mut bench, mut random) = (Bench::default(), Random(17));
    let mut input = |name: &str, rows: usize| {
        bench.input(name, random.tensor(&TensorType::new(DType::BF16, [rows, width]), -0.3, 0.3))
    };
    let ([a, c], [b, d]) =
        (["a", "c"].map(|name| input(name, rows)), ["b", "d"].map(|name| input(name, columns)));
    let (of_rows, of_columns) = (at(&[width as i64, 0, 1]), at(&[0, width as i64, 1]));
    let load = |buffer, index: &Index| operand(buffer, DType::BF16, DType::BF16, index.clone());
    let product = |a, b| {
        let (a, b) = (load(a, &of_rows), load(b, &of_columns));
        Product { k: vec![width], a, b, dtype: DType::F32 }
    };
    let mut program = Program::default();
    let [x, y] = [0, 1].map(|number| program.push(InstrKind::Producer(number), DType::F32));
    let both = program.push(InstrKind::Binary(Binary::Mul, x, y), DType::F32);
    let values = [x, y, both].map(|value| program.push(InstrKind::Cast(value), DType::BF16));
    let consumers = values.into_iter().zip([("of_x", b), ("of_y", d), ("of_both", b)]);
    let consumers = consumers.map(|(value, (name, with))| {
        let buffer = bench.output(name, DType::F32, &[rows, width]);
        let (with, index) = (load(with, &of_columns), of_rows.clone());
        Consumer { value, along: Direction::Columns, p: vec![width], with, dtype: DType::F32, buffer, index }
    });
    let consumers = consumers.collect();
    let products = vec![product(a, b), product(c, d)];
    let form = Form::Contraction(Contraction { products, consumers, band: None, inside: vec![] });
    bench.kernel(
        form,
        Domain { axes: vec![rows, columns], outer: 0, rows: 1 },
        program.region,
        program.stores,
    );
    case("three wide sums".into(), bench, 0.04)
}

/// A thread's share of the sums would be 192 numbers, beside those of products: more than it has registers for.
#[test]
fn sums_that_do_not_fit_into_registers_take_other_tiles() {
    let cases = [three_wide_sums()];
    for options in [Options::default(), by_warpgroups()] {
        let mut renderer = Renderer::new(options.clone());
        renderer.program(&cases[0].plan).expect("renders");
        assert!(renderer.functions().iter().all(|function| !function.text.contains("Strip")));
        check(&cases, &options);
    }
}

/// Cards differ in the shared memory of a block: tiles are smaller where it has less, and values go through it where no tile fits.
#[test]
fn chains_fit_into_shared_memory() {
    let cases = every_width();
    let rendered = |options: &Options| {
        let mut renderer = Renderer::new(options.clone());
        cases.iter().for_each(|case| drop(renderer.program(&case.plan).expect("renders")));
        renderer.functions().to_vec()
    };
    let most = |architecture: &str| {
        let (options, strips) = (Options::of(architecture), rendered(&Options::of(architecture)));
        assert!(strips.iter().all(|function| function.text.contains("Strip")), "{architecture}");
        let bytes = strips.iter().map(|function| function.shared_bytes).max().expect("functions");
        assert!(bytes <= options.shared_bytes, "{architecture}: {bytes}");
        bytes >> 10
    };
    // Blocks have 163 and 227 KiB, and 99 KiB.
    assert!(["sm_80", "sm_100a"].into_iter().all(|architecture| most(architecture) > 99));
    assert!(["sm_86", "sm_89", "sm_120"].into_iter().all(|architecture| most(architecture) < 99));
    most("sm_90a");
    check(&cases[3..], &Options::of("sm_89"));
    let little = Options { shared_bytes: 56 << 10, ..Options::default() };
    assert!(rendered(&little).iter().any(|function| !function.text.contains("Strip")));
    check(&cases[3..], &little);
}

/// Quotients of whole numbers that are whole: a number that is a little less would be cut to another one.
#[test]
fn quotients_that_are_cut_are_exact() {
    let (rows, columns, width) = (70, 90, 16);
    let mut bench = Bench::default();
    let mut input = |name: &str, rows: usize, number: &dyn Fn(usize) -> usize| {
        let numbers =
            (0..rows * width).map(|at| if at % width == 0 { number(at / width) as f64 } else { 0.0 });
        let ty = TensorType::new(DType::BF16, [rows, width]);
        bench.input(name, Tensor::from_f64(&ty, &numbers.collect::<Vec<_>>()))
    };
    let (a, b) = (input("a", rows, &|row| row % 16), input("b", columns, &|column| column % 16 * 10));
    let (of_rows, of_columns) = (at(&[width as i64, 0, 1]), at(&[0, width as i64, 1]));
    let load = |buffer, index: &Index| operand(buffer, DType::BF16, DType::BF16, index.clone());
    let (left, right) = (load(a, &of_rows), load(b, &of_columns));
    let product = Product { k: vec![width], a: left, b: right, dtype: DType::F32 };
    let mut program = Program::default();
    let score = program.push(InstrKind::Producer(0), DType::F32);
    let of_row = program.load(bench.input("of_row", of_rows_of(rows)), DType::F32, at(&[1, 0]));
    let quotient = program.push(InstrKind::Binary(Binary::Div, score, of_row), DType::F32);
    let floor = program.push(InstrKind::Unary(Unary::Floor, quotient), DType::F32);
    let value = program.push(InstrKind::Cast(floor), DType::BF16);
    let buffer = bench.output("c", DType::F32, &[rows, width]);
    let consumer = Consumer {
        value,
        along: Direction::Columns,
        p: vec![width],
        with: load(b, &of_columns),
        dtype: DType::F32,
        buffer,
        index: of_rows,
    };
    let (products, consumers) = (vec![product], vec![consumer]);
    let form = Form::Contraction(Contraction { products, consumers, band: None, inside: vec![] });
    let domain = Domain { axes: vec![rows, columns], outer: 0, rows: 1 };
    bench.kernel(form, domain, program.region, program.stores);
    let cases = [case("quotients".into(), bench, 1e-5)];
    let mut renderer = Renderer::new(Options::default());
    renderer.program(&cases[0].plan).expect("renders");
    let text = &renderer.functions()[0].text;
    assert!(text.contains("Strip") && !text.contains("reciprocal("), "{text}");
    check(&cases, &Options::default());
}

/// Divisors of some of the scores.
fn of_rows_of(rows: usize) -> Tensor {
    let numbers: Vec<_> = (0..rows).map(|row| (row % 16).max(1) as f64 * 5.0).collect();
    Tensor::from_f64(&TensorType::new(DType::F32, [rows]), &numbers)
}

/// What a sweep computes again is what costs most: forward takes one sweep, the gradient of Q two, those of K and V one.
#[test]
fn forward_takes_one_sweep() {
    let shape = Shape { heads: 1, queries: 256, keys: 256, width: 64 };
    let mask = Mask::Causal(f64::NEG_INFINITY);
    let sweeps = |part| {
        let mut renderer = Renderer::new(Options::default());
        renderer.program(&attention(shape, mask, DType::BF16, part).plan).expect("renders");
        let count = |word: &str| {
            let texts = renderer.functions().iter().map(|function| function.text.as_str());
            texts.map(|text| text.matches(word).count()).collect::<Vec<_>>()
        };
        (count("for_each_tile<"), count(".multiply"))
    };
    assert_eq!(sweeps(Part::Forward), (vec![1], vec![2]));
    assert_eq!(sweeps(Part::Backward), (vec![2, 1], vec![2 + 3, 4]));
    assert_eq!(sweeps(Part::Gradients), (vec![1, 1], vec![3, 4]));
}
