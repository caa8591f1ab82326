//! Kernels that are rendered as several functions: scatter-add beside other work and in every form, reductions across the
//! rows of products; and scatter-add into tables, of sorted and of walked points.

use crate::judge::{Case, check};
use crate::products::{case, operand};
use crate::support::{Bench, Program, Random, at, term};
use kernfusion_cuda::Options;
use kernfusion_ir::kernel::{
    BufferId, Direction, Domain, Form, Index, InstrKind, Product, Scalar, Store, StoreMode,
};
use kernfusion_ir::{Binary, DType, ReduceOp, Tensor, TensorType, Unary};

/// Indices some of which lie outside of `0..limit`.
fn indices(bench: &mut Bench, count: usize, limit: usize) -> BufferId {
    let mut random = Random(7);
    let draw = |_| (random.unit() * (limit as f64 + 2.0)).trunc();
    let values: Vec<f64> = (0..count).map(draw).collect();
    bench.input("i", Tensor::from_f64(&TensorType::new(DType::I32, [count]), &values))
}

fn random(bench: &mut Bench, name: &str, shape: &[usize]) -> BufferId {
    bench.input(name, Random(name.len() as u64 + 5).tensor(&TensorType::new(DType::F32, shape), -1.0, 1.0))
}

/// `table[i[row], column] += value`, of rows of `columns` columns.
fn add(program: &mut Program, value: Scalar, index: Scalar, table: BufferId, [limit, columns]: [usize; 2]) {
    let index = Index { indirect: vec![term(index, limit, columns as i64)], ..at(&[0, 1]) };
    program.stores.push(Store { value, buffer: table, index, mode: StoreMode::Add });
}

/// A map that adds to a table, and perhaps stores what it adds.
fn map(limit: usize, stores: bool) -> Case {
    let [rows, columns] = [40, 37];
    let mut bench = Bench::default();
    let (x, i) = (random(&mut bench, "x", &[rows, columns]), indices(&mut bench, rows, limit));
    let table = bench.output("table", DType::F32, &[limit, columns]);
    let mut p = Program::default();
    let value = p.load(x, DType::F32, at(&[columns as i64, 1]));
    let value = p.push(InstrKind::Unary(Unary::Tanh, value), DType::F32);
    let index = p.load(i, DType::I32, at(&[1, 0]));
    add(&mut p, value, index, table, [limit, columns]);
    if stores {
        let y = bench.output("y", DType::F32, &[rows, columns]);
        p.store(value, y, at(&[columns as i64, 1]));
    }
    bench.kernel(Form::Map, Domain::flat([rows, columns]), p.region, p.stores);
    case(format!("map into {limit} rows, stores {stores}"), bench, 2e-5)
}

/// Rows that are normalised, then added to a table.
fn rows() -> Case {
    let [rows, columns, limit] = [21, 50, 6];
    let mut bench = Bench::default();
    let (x, i) = (random(&mut bench, "x", &[rows, columns]), indices(&mut bench, rows, limit));
    let table = bench.output("table", DType::F32, &[limit, columns]);
    let mut p = Program::default();
    let value = p.load(x, DType::F32, at(&[columns as i64, 1]));
    let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, value), DType::F32);
    let value = p.push(InstrKind::Binary(Binary::Sub, value, sum), DType::F32);
    let index = p.load(i, DType::I32, at(&[1, 0]));
    add(&mut p, value, index, table, [limit, columns]);
    let domain = Domain { axes: vec![rows, columns], outer: 0, rows: 1 };
    bench.kernel(Form::Reduce, domain, p.region, p.stores);
    case("rows into a table".into(), bench, 1e-4)
}

/// A product whose entries are added to a table, or summed across the rows beside being stored.
fn product(scatters: bool) -> Case {
    let [m, n, k, limit] = [70, 20, 16, 6];
    let mut bench = Bench::default();
    let (a, b) = (random(&mut bench, "a", &[m, k]), random(&mut bench, "bb", &[n, k]));
    let a = operand(a, DType::F32, DType::F32, at(&[k as i64, 0, 1]));
    let b = operand(b, DType::F32, DType::F32, at(&[0, k as i64, 1]));
    let mut p = Program::default();
    let entry = p.push(InstrKind::Producer(0), DType::F32);
    let value = p.push(InstrKind::Unary(Unary::Tanh, entry), DType::F32);
    if scatters {
        let i = indices(&mut bench, m, limit);
        let table = bench.output("table", DType::F32, &[limit, n]);
        let index = p.load(i, DType::I32, at(&[1, 0]));
        add(&mut p, value, index, table, [limit, n]);
    } else {
        let (y, sums) = (bench.output("y", DType::F32, &[m, n]), bench.output("sums", DType::F32, &[n]));
        p.store(value, y, at(&[n as i64, 1]));
        let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Rows, value), DType::F32);
        p.store(sum, sums, at(&[0, 1]));
    }
    let form = Form::Contraction(vec![Product { k: vec![k], a, b, dtype: DType::F32 }].into());
    bench.kernel(form, Domain { axes: vec![m, n], outer: 0, rows: 1 }, p.region, p.stores);
    case(format!("product, scatters {scatters}"), bench, 1e-4)
}

/// Long columns and wide rows: several chunks, rows of a block, columns that blocks share.
fn across([rows, columns]: [usize; 2], normalises: bool) -> Case {
    let mut bench = Bench::default();
    let x = random(&mut bench, "x", &[rows, columns]);
    let sums = bench.output("sums", DType::F32, &[columns]);
    let mut p = Program::default();
    let mut value = p.load(x, DType::F32, at(&[columns as i64, 1]));
    if normalises {
        let largest = p.push(InstrKind::Reduce(ReduceOp::Max, Direction::Columns, value), DType::F32);
        value = p.push(InstrKind::Binary(Binary::Sub, value, largest), DType::F32);
        let of_row = bench.output("largest", DType::F32, &[rows]);
        p.store(largest, of_row, at(&[1, 0]));
    }
    let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Rows, value), DType::F32);
    p.store(sum, sums, at(&[0, 1]));
    bench.kernel(Form::Reduce, Domain { axes: vec![rows, columns], outer: 0, rows: 1 }, p.region, p.stores);
    case(format!("across {rows}×{columns}, normalises {normalises}"), bench, 1e-4)
}

/// Sums across rows beside a store at each point: of wide rows, blocks have some columns each.
fn beside([rows, columns]: [usize; 2]) -> Case {
    let mut bench = Bench::default();
    let x = random(&mut bench, "x", &[rows, columns]);
    let (sums, y) =
        (bench.output("sums", DType::F32, &[columns]), bench.output("y", DType::F32, &[rows, columns]));
    let mut p = Program::default();
    let value = p.load(x, DType::F32, at(&[columns as i64, 1]));
    let value = p.push(InstrKind::Unary(Unary::Tanh, value), DType::F32);
    p.store(value, y, at(&[columns as i64, 1]));
    let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Rows, value), DType::F32);
    p.store(sum, sums, at(&[0, 1]));
    bench.kernel(Form::Reduce, Domain { axes: vec![rows, columns], outer: 0, rows: 1 }, p.region, p.stores);
    case(format!("across {rows}×{columns}, stores beside"), bench, 1e-4)
}

/// Each column has indices of its own, so that points are not sorted but walked.
fn columns_with_indices() -> Case {
    let [rows, columns, limit] = [40, 37, 9];
    let mut bench = Bench::default();
    let (x, i) = (random(&mut bench, "x", &[rows, columns]), indices(&mut bench, rows * columns, limit));
    let table = bench.output("table", DType::F32, &[limit, columns]);
    let mut p = Program::default();
    let value = p.load(x, DType::F32, at(&[columns as i64, 1]));
    let index = p.load(i, DType::I32, at(&[columns as i64, 1]));
    add(&mut p, value, index, table, [limit, columns]);
    bench.kernel(Form::Map, Domain::flat([rows, columns]), p.region, p.stores);
    case("columns with indices of their own".into(), bench, 2e-5)
}

#[test]
fn kernels_of_several_functions() {
    let mut cases = vec![rows(), product(false), product(true), columns_with_indices()];
    for limit in [5, 5000] {
        cases.extend([map(limit, false), map(limit, true)]);
    }
    for shape in [[37, 300], [1100, 5], [3, 1500], [2, 9000]] {
        cases.extend([across(shape, false), across(shape, true), beside(shape)]);
    }
    check(&cases, &Options::default());
}
