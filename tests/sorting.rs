//! Sorting, the largest elements and running sums, compiled and in eager mode, against Rust's own sort and sums; gradients
//! against where elements came from.

use kernfusion::HostTensor;
use kernfusion::compile::{Mode, Target};
use kernfusion::trace::{Sorted, Tensor, Trace};
use kernfusion_codegen::{Outputs, States};
use kernfusion_ir::DType;
use kernfusion_ir::random::element_bits;
use std::cmp::Ordering;

const ROWS: usize = 3;

/// Rows with equal elements, infinities and NaN.
fn rows(extent: usize) -> Vec<f32> {
    let value = |at: u64| match element_bits(5, extent as u32, 0, at) % 23 {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => f32::NEG_INFINITY,
        number => (number as f32 - 12.0) / 4.0,
    };
    (0..(ROWS * extent) as u64).map(value).collect()
}

fn run(
    x: &HostTensor,
    mode: Mode,
    build: impl Fn(&Trace, &Tensor) -> Vec<(&'static str, Tensor)>,
) -> Outputs {
    let trace = Trace::new();
    let input = trace.input("x", x.shape().to_vec(), DType::F32);
    let outputs = build(&trace, &input);
    let named: Vec<_> = outputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let program = trace.finish(&named).expect("a correct program");
    let target = Target::cpu().threads(2).mode(mode);
    program.compile(&States::new(), &target).expect("compiles").run(&[("x", x)]).expect("runs")
}

/// NaN is the largest number.
fn compare(a: f32, b: f32) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn expected(row: &[f32], order: Sorted) -> Vec<usize> {
    let mut indices: Vec<_> = (0..row.len()).collect();
    indices.sort_by(|&a, &b| match order {
        Sorted::Ascending => compare(row[a], row[b]),
        Sorted::Descending => compare(row[b], row[a]),
    });
    indices
}

#[test]
fn rows_of_any_length_are_sorted_and_stable() {
    for extent in [1, 2, 5, 64, 65, 200] {
        let values = rows(extent);
        let x = HostTensor::new([ROWS, extent], values.clone());
        for (order, mode) in [(Sorted::Ascending, Mode::Compiled), (Sorted::Descending, Mode::Eager)] {
            let result = run(&x, mode, |_, x| vec![("i", x.argsort(-1, order)), ("y", x.sort(-1, order))]);
            let (indices, sorted) = (result.get("i").unwrap().to_f64(), result.get("y").unwrap().to_f64());
            for (number, row) in values.chunks(extent).enumerate() {
                for (place, index) in expected(row, order).into_iter().enumerate() {
                    let at = number * extent + place;
                    assert_eq!(indices[at], index as f64, "{extent}, {order:?}, row {number}, place {place}");
                    assert!(
                        sorted[at] == f64::from(row[index]) || sorted[at].is_nan() && row[index].is_nan()
                    );
                }
            }
        }
    }
}

#[test]
fn the_largest_elements_pass_their_gradients_back() {
    for (extent, k) in [(8, 2), (8, 8), (100, 3)] {
        let value = |at: u64| element_bits(1, 2, 3, at) as f32 / 2f32.powi(32);
        let values: Vec<f32> = (0..(ROWS * extent) as u64).map(value).collect();
        let x = HostTensor::new([ROWS, extent], values.clone());
        let result = run(&x, Mode::Compiled, |trace, x| {
            let (largest, indices) = x.top_k(k);
            let weights = trace.iota([ROWS, k], 1, DType::F32) + 1.0;
            let gradient = (&largest * weights).sum_all().grad(&[x]).remove(0);
            vec![("y", largest), ("i", indices), ("dx", gradient)]
        });
        let mut gradient = vec![0.0; ROWS * extent];
        for (number, row) in values.chunks(extent).enumerate() {
            for (place, index) in expected(row, Sorted::Descending).into_iter().take(k).enumerate() {
                assert_eq!(result.get("i").unwrap().to_f64()[number * k + place], index as f64);
                assert_eq!(result.get("y").unwrap().to_f64()[number * k + place], f64::from(row[index]));
                gradient[number * extent + index] = place as f64 + 1.0;
            }
        }
        assert_eq!(result.get("dx").unwrap().to_f64(), gradient);
    }
}

#[test]
fn running_sums_along_any_axis() {
    for (shape, axis) in [([3, 5, 2], 1), ([2, 300, 1], 1), ([1, 2, 400], 2), ([20, 1, 3], 0)] {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|at| (at * 7 % 11) as f32 - 3.0).collect();
        let x = HostTensor::new(shape, values.clone());
        let result = run(&x, Mode::Compiled, |_, x| vec![("y", x.running_sum(axis as isize))]);
        let inner: usize = shape[axis + 1..].iter().product();
        let mut sums = values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        for at in 0..count {
            if !(at / inner).is_multiple_of(shape[axis]) {
                sums[at] += sums[at - inner];
            }
        }
        assert_eq!(result.get("y").unwrap().to_f64(), sums);
    }
}

#[test]
fn mistakes_name_the_line() {
    let trace = Trace::new();
    let x = trace.input("x", [2, 3], DType::F32);
    let (line, _) = (line!(), x.top_k(4));
    let error = trace.finish(&[]).expect_err("too many").to_string();
    assert!(error.contains("a row of 3 has no 4 largest elements"), "{error}");
    assert!(error.contains(&format!("tests/sorting.rs:{line}")), "{error}");
}
