//! Products that cublasLt does, where cublasLt is a simulation that multiplies what it is told to and nothing else: a wrong
//! transposition, distance or alignment is a wrong number or an error. It is quicker than our kernels on the emulator, so
//! tuning takes it wherever it may.

use super::device;
use super::support::{Bench, Program, Random, at};
use kernfusion_codegen::{Executable, Temporaries};
use kernfusion_cuda::{Cache, Candidates, CudaExecutable, Options};
use kernfusion_ir::evaluate::{Array, Precision};
use kernfusion_ir::kernel::{
    BufferId, Domain, Form, Index, InstrKind, Operand, Product, ProgramPlan, Region, Scalar, StoreMode,
    interpret,
};
use kernfusion_ir::{DType, Tensor, TensorType, Unary};
use tempfile::TempDir;

/// A kernel with one product: `d[o, m, n] = Σ a[o, m, k]·b[o, n, k]`, each with a layout of its own.
#[derive(Clone)]
pub(super) struct Case {
    operands: DType,
    result: DType,
    /// Outer points, rows, columns, terms of a sum.
    extents: [usize; 4],
    /// Elements from one outer point, row or column, term to the next; the result has no terms.
    a: [i64; 3],
    b: [i64; 3],
    d: [i64; 3],
    offset: i64,
}

impl Case {
    pub(super) fn new(operands: DType, result: DType, extents: [usize; 4], transposed: [bool; 3]) -> Self {
        let [_, m, n, k] = extents.map(|extent| extent as i64);
        let layout = |rows: i64, columns: i64, is_transposed: bool| match is_transposed {
            false => [rows * columns, columns, 1],
            true => [rows * columns, 1, rows],
        };
        let [a, b, d] = transposed;
        let (a, b, d) = (layout(m, k, a), layout(n, k, b), layout(m, n, d));
        Case { operands, result, extents, a, b, d, offset: 0 }
    }

    pub(super) fn bench(&self, change: impl FnOnce(&mut Program, &mut Product, Scalar)) -> Bench {
        let (mut bench, mut random) = (Bench::default(), Random(7));
        let [outer, m, n, k] = self.extents;
        let elements = |[o, r, c]: [i64; 3], rows: usize, columns: usize| {
            let last = |extent: usize, stride: i64| (extent.max(1) - 1) as i64 * stride;
            (self.offset + last(outer, o) + last(rows, r) + last(columns, c) + 1) as usize
        };
        let mut input = |name: &str, elements: usize| {
            bench.input(name, random.tensor(&TensorType::new(self.operands, [elements]), -1.0, 1.0))
        };
        let (a, b) = (input("a", elements(self.a, m, k)), input("b", elements(self.b, n, k)));
        let d = bench.output("d", self.result, &[elements(self.d, m, n)]);
        let index = |strides: &[i64]| Index { offset: self.offset, ..at(strides) };
        let mut product = Product {
            k: vec![k],
            a: operand(a, self.operands, index(&[self.a[0], self.a[1], 0, self.a[2]])),
            b: operand(b, self.operands, index(&[self.b[0], 0, self.b[1], self.b[2]])),
            dtype: DType::F32,
        };
        let mut program = Program::default();
        let mut value = program.push(InstrKind::Producer(0), DType::F32);
        if self.result != DType::F32 {
            value = program.push(InstrKind::Cast(value), self.result);
        }
        program.store(value, d, index(&self.d));
        change(&mut program, &mut product, value);
        let domain = Domain { axes: vec![outer, m, n], outer: 1, rows: 1 };
        bench.kernel(Form::Contraction(vec![product].into()), domain, program.region, program.stores);
        bench
    }
}

fn operand(buffer: BufferId, dtype: DType, index: Index) -> Operand {
    let mut region = Region::default();
    let value = region.push(InstrKind::Load { buffer, index, guard: vec![] }, dtype);
    Operand { region, value }
}

/// How many products the library does of a program, and the elements that it stores.
fn run(bench: &Bench, candidates: Candidates, tf32: bool, folder: &TempDir) -> Option<(usize, Tensor)> {
    let device = device()?;
    let (states, cache) = (device.states(), Cache::at(folder.path()));
    // One tile is enough to be compared with, and to be compiled for the emulator.
    let options = Options { candidates, tf32, tile: Some([64, 64]), ..Options::default() };
    let mut program = CudaExecutable::compile(
        ProgramPlan::whole(bench.plan()),
        &states,
        &device,
        options,
        Temporaries::Arena,
        &cache,
    )
    .expect("compiles");
    let inputs: Vec<_> = bench.inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let products = program.library().map_or(0, |library| library.products);
    // The second run is the graph again.
    let first = program.run(&inputs).expect("runs").get("d").expect("an output").clone();
    let (timed, times) = program.run_timed(&inputs).expect("runs");
    assert!(times.iter().all(|time| time.as_secs_f64() > 0.0));
    let again = program.run(&inputs).expect("runs").get("d").expect("an output").clone();
    let compared = |tensor: &Tensor| written(bench, tensor.bytes());
    assert_eq!(compared(&first), compared(timed.get("d").expect("an output")));
    assert_eq!(compared(&first), compared(&again));
    Some((products, first))
}

/// The bytes of the elements that the only kernel stores; between them may lie others.
fn written(bench: &Bench, bytes: &[u8]) -> Vec<u8> {
    let kernel = &bench.graph.kernels[0];
    let axes = &kernel.domain.axes;
    let store = &kernel.stores[0];
    let size = bench.graph.buffer(store.buffer).ty.dtype.size();
    let mut result = vec![];
    for point in 0..kernel.domain.points() {
        let (o, r, c) = (point / (axes[1] * axes[2]), point / axes[2] % axes[1], point % axes[2]);
        let strides = &store.index.strides;
        let place =
            store.index.offset + o as i64 * strides[0] + r as i64 * strides[1] + c as i64 * strides[2];
        result.extend(&bytes[place as usize * size..][..size]);
    }
    result
}

fn expected(bench: &Bench) -> Tensor {
    let array = |tensor: &Tensor| Array { ty: tensor.ty(), values: tensor.to_f64() };
    let inputs = bench.inputs.iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect();
    let found = interpret(&bench.graph, &inputs, Precision::Declared).expect("all inputs");
    Tensor::from_f64(&found["d"].ty, &found["d"].values)
}

/// The elements that the kernel stores, as numbers.
fn numbers(bench: &Bench, tensor: &Tensor) -> Vec<f64> {
    let bytes = written(bench, tensor.bytes());
    let elements = bench.graph.kernels[0].domain.points();
    let ty = TensorType::new(tensor.ty().dtype, [elements]);
    Tensor::from_bytes(&ty, &bytes).expect("the type's bytes").to_f64()
}

fn check(case: &Case, tf32: bool, tolerance: f64) -> Option<()> {
    let folder = TempDir::new().unwrap();
    let bench = case.bench(|_, _, _| ());
    let (products, found) = run(&bench, Candidates::Library, tf32, &folder)?;
    let name = format!(
        "{} {} {:?} {:?} {:?} {:?}",
        case.operands, case.result, case.extents, case.a, case.b, case.d
    );
    assert_eq!(products, 1, "{name}");
    for (found, expected) in numbers(&bench, &found).into_iter().zip(numbers(&bench, &expected(&bench))) {
        assert!(
            (found - expected).abs() <= tolerance * expected.abs().max(1.0),
            "{name}: {found}, not {expected}"
        );
    }
    Some(())
}

const FLAGS: [bool; 2] = [false, true];

/// The unit tests of the description know all layouts; here are those that the library is told differently.
#[test]
fn layouts_and_types() {
    let (f32, bf16, f16) = (DType::F32, DType::BF16, DType::F16);
    for (operands, result, extents, transposed, tolerance) in [
        (f32, f32, [1, 33, 7, 19], [false, false, false], 1e-5),
        (f32, f32, [3, 8, 16, 24], [true, false, false], 1e-5),
        (f32, f32, [3, 8, 16, 24], [false, true, true], 1e-5),
        (bf16, f32, [2, 5, 9, 12], [false, true, false], 1e-5),
        (bf16, bf16, [1, 16, 8, 20], [true, true, true], 1e-2),
        (f16, f16, [2, 1, 5, 3], [false, false, false], 2e-3),
    ] {
        let case = Case::new(operands, result, extents, transposed);
        let Some(()) = check(&case, false, tolerance) else { return };
    }
}

#[test]
fn stacks_that_lie_between_each_other_operands_that_are_shared_and_starts_inside_of_buffers() {
    let case = Case::new(DType::F32, DType::F32, [3, 10, 6, 8], [false; 3]);
    // Heads beside each other, as attention has them.
    let heads = Case { a: [8, 24, 1], b: [8, 24, 1], d: [6, 18, 1], ..case.clone() };
    let shared = Case { a: [0, 8, 1], ..case.clone() };
    let inside = Case { offset: 5, ..case.clone() };
    let loose = Case { a: [200, 11, 1], b: [90, 1, 9], d: [99, 1, 16], ..case };
    for case in [heads, shared, inside, loose] {
        let Some(()) = check(&case, false, 1e-5) else { return };
    }
}

#[test]
fn f32_is_f32_unless_tf32_is_asked_for() {
    let case = Case::new(DType::F32, DType::F32, [1, 9, 11, 40], [false; 3]);
    let Some(()) = check(&case, true, 1e-2) else { return };
    let bench = case.bench(|_, _, _| ());
    let folder = TempDir::new().unwrap();
    let [f32, tf32] = FLAGS.map(|tf32| run(&bench, Candidates::Library, tf32, &folder).unwrap());
    assert_eq!((f32.0, tf32.0), (1, 1));
    assert_ne!(numbers(&bench, &f32.1), numbers(&bench, &tf32.1), "TF32 does not round");
}

#[test]
fn only_plain_products_are_offered_and_only_if_that_is_allowed() {
    let case = |operands, result| Case::new(operands, result, [2, 6, 5, 7], [false; 3]);
    let plain = case(DType::F32, DType::F32);
    let others = [
        plain.bench(|program, _, value| {
            let tanh = program.push(InstrKind::Unary(Unary::Tanh, value), DType::F32);
            program.stores[0].value = tanh;
        }),
        plain.bench(|_, product, _| {
            let value = product.a.region.push(InstrKind::Unary(Unary::Exp, product.a.value), DType::F32);
            product.a.value = value;
        }),
        plain.bench(|program, _, _| program.stores[0].mode = StoreMode::Add),
        // Neither rows nor terms are neighbours in memory; columns overlap; a sum of nothing.
        Case { a: [120, 20, 2], ..plain.clone() }.bench(|_, _, _| ()),
        Case { a: [42, 3, 1], ..plain.clone() }.bench(|_, _, _| ()),
        Case { extents: [2, 6, 5, 0], ..plain.clone() }.bench(|_, _, _| ()),
        case(DType::F64, DType::F64).bench(|_, product, _| product.dtype = DType::F64),
    ];
    for (number, bench) in others.iter().enumerate() {
        let folder = TempDir::new().unwrap();
        let Some((products, found)) = run(bench, Candidates::Library, false, &folder) else { return };
        assert_eq!(products, 0, "{number}");
        for (found, expected) in numbers(bench, &found).into_iter().zip(numbers(bench, &expected(bench))) {
            assert!(
                (found - expected).abs() <= 1e-4 * expected.abs().max(1.0),
                "{number}: {found}, not {expected}"
            );
        }
    }
    let (bench, folder) = (plain.bench(|_, _, _| ()), TempDir::new().unwrap());
    let [none, tiles, library] = [Candidates::None, Candidates::Tiles, Candidates::Library]
        .map(|candidates| run(&bench, candidates, false, &folder).unwrap());
    assert_eq!([none.0, tiles.0, library.0], [0, 0, 1]);
    assert_eq!(none.1, tiles.1, "tiles change no bit");
}
