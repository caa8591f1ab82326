//! Reductions of long rows: loops keep running results, and rows are turned to where memory lies.

use crate::support::{Bench, Program, Random, at};
use kernfusion_codegen::States;
use kernfusion_cpu::isa::Isa;
use kernfusion_cpu::{Options, PlanExecutable};
use kernfusion_ir::kernel::{Direction, Domain, Form, InstrKind, Scalar};
use kernfusion_ir::{Binary, DType, ReduceOp, Tensor, TensorType};

/// The schedule of the first kernel for the best instruction set that loops over whole vectors are made for, if there is one.
fn wide_schedule(bench: &Bench) -> Option<String> {
    let isa = Isa::available().into_iter().find(|isa| *isa != Isa::Portable)?;
    let options = Options { isa: Some(isa), keep_code: true, ..Options::default() };
    let executable = PlanExecutable::compile(bench.plan(), &States::new(), &options).expect("compiles");
    Some(executable.schedule("kernel0").expect("it has rows"))
}

fn reduce(p: &mut Program, op: ReduceOp, direction: Direction, x: Scalar, dtype: DType) -> Scalar {
    p.push(InstrKind::Reduce(op, direction, x), dtype)
}

/// Sums, maxima and minima of products of a tensor with what three windows see of another one, which the next stage subtracts: rows of short runs,
/// of long ones, and of one; the first row has a number that is none.
#[test]
fn loops_keep_running_results_of_long_rows() {
    const ROWS: usize = 5;
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::I32, DType::U32] {
        for (runs, n) in [(500, 6), (400, 7), (200, 16), (120, 33), (60, 62), (20, 257), (1, 4099)] {
            let (mut bench, mut random) = (Bench::default(), Random(7));
            let (low, high) = if dtype == DType::U32 { (0.0, 9.0) } else { (-3.0, 3.0) };
            let wide = TensorType::new(dtype, [ROWS, runs, n + 2]);
            let mut numbers = random.tensor(&wide, low, high).to_f64();
            if dtype.is_float() {
                numbers[runs * (n + 2) / 2] = f64::NAN;
            }
            let x = bench.input("x", Tensor::from_f64(&wide, &numbers));
            let y = random.tensor(&TensorType::new(dtype, [ROWS, runs, n]), low, high);
            let y = bench.input("y", y);
            let mut p = Program::default();
            let strides = |width: usize| at(&[(runs * width) as i64, width as i64, 1]);
            let factor = p.load(y, dtype, strides(n));
            let mut all = factor;
            for (shift, op) in (0..).zip(ReduceOp::ALL) {
                let seen = p.load(x, dtype, strides(n + 2).shifted(shift));
                let product = p.push(InstrKind::Binary(Binary::Mul, seen, factor), dtype);
                let result = reduce(&mut p, op, Direction::Columns, product, dtype);
                let to = bench.output(op.name(), dtype, &[ROWS]);
                p.store(result, to, at(&[1, 0, 0]));
                all = p.push(InstrKind::Binary(Binary::Sub, all, result), dtype);
            }
            let to = bench.output("all", dtype, &[ROWS, runs, n]);
            p.store(all, to, strides(n));
            let domain = Domain { axes: vec![ROWS, runs, n], outer: 0, rows: 1 };
            bench.kernel(Form::Reduce, domain, p.region, p.stores);
            if let Some(schedule) = wide_schedule(&bench) {
                assert_eq!(schedule.matches("running").count(), 3, "{schedule}");
            }
            bench.check(match dtype {
                DType::BF16 => 0.02,
                DType::F16 => 4e-3,
                DType::F32 => 1e-4,
                _ => 0.0,
            });
        }
    }
}

/// What windows of images see, weighed for each channel, its sums over all positions of all images, and itself with the channels last.
#[test]
fn sums_over_images_run_along_them() {
    let [images, channels, height, width] = [3, 40, 9, 11];
    for dtype in [DType::F32, DType::BF16] {
        let (mut bench, mut random) = (Bench::default(), Random(12));
        let mut input = |name: &str, shape: &[usize]| {
            let tensor = random.tensor(&TensorType::new(dtype, shape), -1.0, 1.0);
            bench.input(name, tensor)
        };
        let framed = input("framed", &[images, channels, height + 2, width + 2]);
        let weights = input("weights", &[channels, 9]);
        let other = input("other", &[channels, images, height, width]);
        let [i, c, h, w] = [images, channels, height, width].map(|extent| extent as i64);
        let mut p = Program::default();
        let mut all = p.load(other, dtype, at(&[h * w, w, 1, i * h * w]));
        for place in 0..9 {
            let index = at(&[c * (h + 2) * (w + 2), w + 2, 1, (h + 2) * (w + 2)]);
            let seen = p.load(framed, dtype, index.shifted(place / 3 * (w + 2) + place % 3));
            let weight = p.load(weights, dtype, at(&[0, 0, 0, 9]).shifted(place));
            let product = p.push(InstrKind::Binary(Binary::Mul, seen, weight), dtype);
            all = p.push(InstrKind::Binary(Binary::Add, all, product), dtype);
        }
        for op in ReduceOp::ALL {
            let result = reduce(&mut p, op, Direction::Rows, all, dtype);
            let to = bench.output(op.name(), dtype, &[channels]);
            p.store(result, to, at(&[0, 0, 0, 1]));
        }
        let last = bench.output("last", dtype, &[images, height, width, channels]);
        p.store(all, last, at(&[h * w * c, w * c, c, 1]));
        let domain = Domain { axes: vec![images, height, width, channels], outer: 0, rows: 3 };
        bench.kernel(Form::Reduce, domain, p.region, p.stores);
        if let Some(schedule) = wide_schedule(&bench) {
            assert!(!schedule.contains("accumulate"), "{schedule}");
        }
        bench.check(if dtype == DType::BF16 { 0.1 } else { 1e-5 });
    }
}
