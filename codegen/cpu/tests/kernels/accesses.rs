//! Accesses: strides, guards, indirection, permutations, scatter-add, random bits, coordinates.

use crate::support::{Bench, Program, Random, at, term};
use kernfusion_cpu::guard::{Side, guarded};
use kernfusion_ir::kernel::{
    Bound, BufferRole, Direction, Domain, Form, Index, InstrKind, Scalar, Store, StoreMode,
};
use kernfusion_ir::{Binary, DType, ReduceOp, Tensor, TensorType, Unary};

fn integers(shape: &[usize], low: f64, high: f64, seed: u64) -> Tensor {
    Random(seed).tensor(&TensorType::new(DType::I32, shape), low, high)
}

fn add(p: &mut Program, x: Scalar, y: Scalar) -> Scalar {
    p.push(InstrKind::Binary(Binary::Add, x, y), DType::F32)
}

/// `y[i, j] = x[i, j] + xᵀ[j, i] + reversed row + every other element + row, column and scalar`; and `x`, transposed. Results lie against protected
/// pages, so that nothing beside them is written.
#[test]
fn strides_of_every_kind_and_dtype() {
    for dtype in DType::ALL {
        for (m, n) in [(7, 13), (40, 17), (1, 5), (5, 150)] {
            let (mut bench, mut random) = (Bench::default(), Random(2));
            let big = bench.input("big", random.tensor(&TensorType::new(dtype, [2 * m * n + 1]), 0.0, 2.0));
            let y = bench.output("y", DType::F32, &[m, n]);
            let same = bench.output("same", dtype, &[n, m]);
            let (mi, ni) = (m as i64, n as i64);
            let indices = [
                at(&[ni, 1]),
                at(&[1, mi]),
                at(&[ni, -1]).shifted(ni - 1),
                at(&[2 * ni, 2]).shifted(1),
                at(&[1, 0]),
                at(&[0, 1]).shifted(3),
                at(&[0, 0]).shifted(4),
            ];
            let mut p = Program::default();
            let mut sum = p.constant(0.0, DType::F32);
            for index in indices {
                let x = p.load(big, dtype, index);
                if p.stores.is_empty() {
                    p.store(x, same, at(&[1, mi]));
                }
                let x = p.push(InstrKind::Cast(x), DType::F32);
                sum = add(&mut p, sum, x);
            }
            p.store(sum, y, at(&[ni, 1]));
            bench.kernel(Form::Map, Domain::flat([m, n]), p.region, p.stores);
            for side in [Side::Before, Side::Behind] {
                guarded(side, || bench.check(1e-6));
            }
        }
    }
}

/// `y[i[t], c] += x[t, c]`, where neighbours along c lie apart, in either direction. Results lie against protected pages.
#[test]
fn sums_of_scattered_rows_whose_elements_lie_apart() {
    for (dtype, stride) in
        [DType::F32, DType::BF16, DType::I32].map(|dtype| [2, 3, -1].map(|s| (dtype, s))).concat()
    {
        for n in [5, 17, 150] {
            let (rows, width) = (4, n as i64 * i64::abs(stride));
            let (mut bench, mut random) = (Bench::default(), Random(41));
            // Whole numbers, whose sums are exact.
            let number = random.tensor(&TensorType::new(DType::I32, [7, n]), -9.0, 9.0);
            let x = bench.input("x", Tensor::from_f64(&TensorType::new(dtype, [7, n]), &number.to_f64()));
            let to = bench.input("to", integers(&[7], 0.0, rows as f64, 5));
            let y = bench.output("y", dtype, &[rows, width as usize]);
            let mut p = Program::default();
            let zero = p.constant(0.0, dtype);
            p.store(zero, y, at(&[width, 1]));
            bench.kernel(Form::Map, Domain::flat([rows, width as usize]), p.region, p.stores);
            let mut p = Program::default();
            let row = p.load(to, DType::I32, at(&[1, 0]));
            let value = p.load(x, dtype, at(&[n as i64, 1]));
            let first = if stride < 0 { n as i64 - 1 } else { 0 };
            let index = Index { indirect: vec![term(row, rows, width)], ..at(&[0, stride]).shifted(first) };
            p.stores.push(Store { value, buffer: y, index, mode: StoreMode::Add });
            bench.kernel(Form::Map, Domain::flat([7, n]), p.region, p.stores);
            for side in [Side::Before, Side::Behind] {
                guarded(side, || bench.check(0.0));
            }
        }
    }
}

/// A table of bytes, looked up by the bits of others, as bytes and widened; and, for which vectors have no code, by numbers that nothing bounds,
/// and a table for each row.
#[test]
fn tables_of_bytes() {
    for n in [1, 7, 8, 16, 17, 30, 64, 65, 150] {
        let (rows, width) = (3, n as i64);
        let (mut bench, mut random) = (Bench::default(), Random(31));
        let mut bytes = |shape: &[usize]| random.tensor(&TensorType::new(DType::I8, shape), -128.0, 128.0);
        let x = bench.input("x", bytes(&[rows, n]));
        let table = bench.input("table", bytes(&[256]));
        let tables = bench.input("tables", bytes(&[rows, 256]));
        for (name, table, of_row, is_bounded) in
            [("table", table, 0, true), ("clamped", table, 0, false), ("of rows", tables, 256, true)]
        {
            let found = bench.output(&format!("{name}: bytes"), DType::I8, &[rows, n]);
            let wide = bench.output(&format!("{name}: wide"), DType::F32, &[rows, n]);
            let mut p = Program::default();
            let byte = p.load(x, DType::I8, at(&[width, 1]));
            let number = p.push(InstrKind::Cast(byte), DType::I32);
            let mask = p.constant(255.0, DType::I32);
            let bits = p.push(InstrKind::Binary(Binary::And, number, mask), DType::I32);
            let place = term(if is_bounded { bits } else { number }, 256, 1);
            let entry = p.load(table, DType::I8, Index { indirect: vec![place], ..at(&[of_row, 0]) });
            let float = p.push(InstrKind::Cast(entry), DType::F32);
            p.store(entry, found, at(&[width, 1]));
            p.store(float, wide, at(&[width, 1]));
            bench.kernel(Form::Map, Domain::flat([rows, n]), p.region, p.stores);
        }
        bench.check(0.0);
    }
}

/// The largest of some neighbours of every other or every third element, padded at both ends and along the outer axis: a pooling. The elements lie
/// against protected pages, so that nothing beside them is read.
#[test]
fn elements_apart_under_bounds() {
    let dtypes = [DType::F32, DType::I32, DType::BF16, DType::F16, DType::I8, DType::Bool];
    for (dtype, stride) in dtypes.into_iter().flat_map(|dtype| [2, 3].map(|stride| (dtype, stride))) {
        let larger = if dtype == DType::Bool { Binary::Or } else { Binary::Max };
        for n in [1, 5, 8, 16, 17, 30, 58, 79, 150] {
            let rows = 3;
            let width = stride * n + 1;
            let places = at(&[width as i64, stride as i64]);
            let (mut bench, mut random) = (Bench::default(), Random(21));
            let tensor = random.tensor(&TensorType::new(dtype, [rows, width]), -9.0, 9.0);
            let x = bench.buffer("x", tensor.ty(), BufferRole::State);
            bench.inputs.insert("x".into(), tensor);
            let y = bench.output("y", dtype, &[rows + 1, n + 2]);
            let every = bench.output("every", dtype, &[rows, n]);
            let mut p = Program::default();
            let row = |offset: i64| Bound { coordinate: Index::axis(2, 0).shifted(offset), extent: rows };
            let column = Bound { coordinate: Index::axis(2, 1).shifted(-1), extent: n };
            let guard = vec![row(-1), column];
            let taken = (0..=stride).map(|tap| {
                let index = places.clone().shifted(tap as i64 - (stride + width) as i64);
                p.push(InstrKind::Load { buffer: x, index, guard: guard.clone() }, dtype)
            });
            let taken: Vec<_> = taken.collect();
            let max = |a, b| p.push(InstrKind::Binary(larger, a, b), dtype);
            let largest = taken.into_iter().reduce(max).expect("several");
            p.store(largest, y, at(&[n as i64 + 2, 1]));
            bench.kernel(Form::Map, Domain::flat([rows + 1, n + 2]), p.region, p.stores);
            let mut p = Program::default();
            let value = p.load(x, dtype, places.clone());
            p.store(value, every, at(&[n as i64, 1]));
            bench.kernel(Form::Map, Domain::flat([rows, n]), p.region, p.stores);
            // No element of another width is written here.
            let wide = bench.output("wide", DType::F32, &[rows, n]);
            let mut p = Program::default();
            let value = p.load(x, dtype, places);
            let value = p.push(InstrKind::Cast(value), DType::F32);
            p.store(value, wide, at(&[n as i64, 1]));
            bench.kernel(Form::Map, Domain::flat([rows, n]), p.region, p.stores);
            for side in [Side::Before, Side::Behind] {
                guarded(side, || bench.check(0.0));
            }
        }
    }
}

/// A concatenation along the inner axis and padding along the outer one: guards of both kinds.
#[test]
fn guards_along_both_axes() {
    let lengths = [[9, 10, 23], [9, 70, 103]];
    let dtypes = [DType::F32, DType::BF16, DType::I32, DType::Bool, DType::F64];
    for (dtype, [m, n1, n2]) in dtypes.into_iter().flat_map(|dtype| lengths.map(|lengths| (dtype, lengths))) {
        let n = n1 + n2;
        let (mut bench, mut random) = (Bench::default(), Random(12));
        let x = bench.input("x", random.tensor(&TensorType::new(dtype, [m, n1]), 0.0, 5.0));
        let z = bench.input("z", random.tensor(&TensorType::new(dtype, [m - 4, n2]), 0.0, 5.0));
        let y = bench.output("y", dtype, &[m, n]);
        let bound = |axis: usize, offset: i64, extent: usize| Bound {
            coordinate: Index::axis(2, axis).shifted(offset),
            extent,
        };
        let mut p = Program::default();
        let index = at(&[n1 as i64, 1]);
        let left = p.push(InstrKind::Load { buffer: x, index, guard: vec![bound(1, 0, n1)] }, dtype);
        let index = at(&[n2 as i64, 1]).shifted(-(n1 as i64) - 2 * n2 as i64);
        let guard = vec![bound(1, -(n1 as i64), n2), bound(0, -2, m - 4)];
        let right = p.push(InstrKind::Load { buffer: z, index, guard }, dtype);
        // The same rows again, padded along the outer axis only: whole rows in or out.
        let index = at(&[n1 as i64, 0]).shifted(-(n1 as i64));
        let column = p.push(InstrKind::Load { buffer: x, index, guard: vec![bound(0, -1, m - 1)] }, dtype);
        let is_left = p.push(InstrKind::InRange(vec![bound(1, 0, n1)]), DType::Bool);
        let is_high = p.push(InstrKind::InRange(vec![bound(0, -4, 3)]), DType::Bool);
        let value = p.push(InstrKind::Select(is_left, left, right), dtype);
        let value = p.push(InstrKind::Select(is_high, column, value), dtype);
        p.store(value, y, at(&[n as i64, 1]));
        bench.kernel(Form::Map, Domain::flat([m, n]), p.region, p.stores);
        bench.check(0.0);
    }
}

/// A concatenation along the rows, of parts of different lengths: a row is one load, from the part that it lies in. Elements lie against protected
/// pages, so that nothing beside it is read.
#[test]
fn rows_of_a_concatenation_are_loads_of_one_part() {
    const ROWS: [usize; 4] = [1, 5, 2, 1];
    for (dtype, n) in
        [(DType::F32, 16), (DType::F32, 77), (DType::BF16, 70), (DType::Bool, 67), (DType::F64, 66)]
    {
        let (mut bench, mut random) = (Bench::default(), Random(31));
        let all: usize = ROWS.iter().sum();
        let mut p = Program::default();
        let (mut first, mut chosen) = (0, None);
        for (number, rows) in ROWS.into_iter().enumerate() {
            let name = format!("x{number}");
            let tensor = random.tensor(&TensorType::new(dtype, [rows, n]), -3.0, 3.0);
            let buffer = bench.buffer(&name, tensor.ty(), BufferRole::State);
            bench.inputs.insert(name, tensor);
            let row = Index::axis(2, 0).shifted(-(first as i64));
            let guard = vec![Bound { coordinate: row, extent: rows }];
            let index = at(&[n as i64, 1]).shifted(-((first * n) as i64));
            let kind = InstrKind::Load { buffer, index: index.clone(), guard: guard.clone() };
            let part = p.push(kind, dtype);
            chosen = Some(match chosen {
                None => part,
                Some(before) => {
                    let is_here = p.push(InstrKind::InRange(guard), DType::Bool);
                    p.push(InstrKind::Select(is_here, part, before), dtype)
                }
            });
            first += rows;
        }
        let value = chosen.expect("there are parts");
        let y = bench.output("y", dtype, &[all, n]);
        p.store(value, y, at(&[n as i64, 1]));
        let wide = p.push(InstrKind::Cast(value), DType::F32);
        let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, wide), DType::F32);
        let sums = bench.output("sums", DType::F32, &[all]);
        p.store(sum, sums, at(&[1, 0]));
        let domain = Domain { axes: vec![all, n], outer: 0, rows: 1 };
        bench.kernel(Form::Reduce, domain, p.region, p.stores);
        for side in [Side::Before, Side::Behind] {
            guarded(side, || bench.check(1e-6));
        }
    }
}

/// Whole rows that a guard leaves out, contiguous inside.
#[test]
fn guarded_rows_are_zero() {
    let [m, n] = [11, 70];
    let mut bench = Bench::default();
    let x = bench.input("x", Random(5).tensor(&TensorType::new(DType::F32, [m - 3, n]), -1.0, 1.0));
    let y = bench.output("y", DType::F32, &[m, n]);
    let mut p = Program::default();
    let guard = vec![Bound { coordinate: Index::axis(2, 0).shifted(-2), extent: m - 3 }];
    let index = at(&[n as i64, 1]).shifted(-2 * n as i64);
    let x = p.push(InstrKind::Load { buffer: x, index, guard }, DType::F32);
    let e = p.push(InstrKind::Unary(Unary::Exp, x), DType::F32);
    p.store(e, y, at(&[n as i64, 1]));
    bench.kernel(Form::Map, Domain::flat([m, n]), p.region, p.stores);
    bench.check(1e-6);
}

/// Gathered rows and gathered elements, with indices outside, of both integer types.
#[test]
fn lookups_are_clamped() {
    for dtype in [DType::I32, DType::U32] {
        let [m, n, rows] = [14, 21, 6];
        let mut bench = Bench::default();
        let table =
            bench.input("table", Random(3).tensor(&TensorType::new(DType::F32, [rows, n]), -1.0, 1.0));
        let of_row = integers(&[m], if dtype == DType::I32 { -4.0 } else { 0.0 }, 9.0, 4);
        let of_row = Tensor::from_f64(&TensorType::new(dtype, [m]), &of_row.to_f64());
        let of_row = bench.input("of_row", of_row);
        let of_point = Random(8).tensor(&TensorType::new(dtype, [m, n]), 0.0, 30.0);
        let of_point = bench.input("of_point", of_point);
        let y = bench.output("y", DType::F32, &[m, n]);
        let ni = n as i64;
        let mut p = Program::default();
        let row = p.load(of_row, dtype, at(&[1, 0]));
        let point = p.load(of_point, dtype, at(&[ni, 1]));
        let first = p.load(table, DType::F32, Index { indirect: vec![term(row, rows, ni)], ..at(&[0, 1]) });
        let both = vec![term(row, rows, ni), term(point, n, 1)];
        let second = p.load(table, DType::F32, Index { indirect: both.clone(), ..at(&[0, 0]) });
        let third = p.push(InstrKind::Coordinate(Index { indirect: both, ..at(&[2, 3]) }), DType::I32);
        let third = p.push(InstrKind::Cast(third), DType::F32);
        let sum = add(&mut p, first, second);
        let sum = add(&mut p, sum, third);
        p.store(sum, y, at(&[ni, 1]));
        bench.kernel(Form::Map, Domain::flat([m, n]), p.region, p.stores);
        bench.check(1e-6);
    }
}

fn scatter(
    updates: &[usize],
    store: Index,
    index: Index,
    indices: &[usize],
    out: &[usize],
    axes: &[i64],
    dtype: DType,
) {
    let mut bench = Bench::default();
    let x = bench.input("x", Random(6).tensor(&TensorType::new(dtype, updates), 0.0, 4.0));
    let i = bench.input("i", integers(indices, -1.0, 5.0, 7));
    let y = bench.output("y", dtype, out);
    let mut p = Program::default();
    let i = p.load(i, DType::I32, index);
    let x = p.load(x, dtype, at(axes));
    let mut index = store;
    index.indirect.iter_mut().for_each(|term| term.value = i);
    p.stores.push(Store { value: x, buffer: y, index, mode: StoreMode::Add });
    bench.kernel(Form::Map, Domain::flat(updates), p.region, p.stores);
    bench.check(if dtype == DType::BF16 { 0.01 } else { 1e-5 });
}

#[test]
fn scatter_add_keeps_the_order_of_points() {
    let strided =
        |strides: &[i64], stride: i64| Index { indirect: vec![term(Scalar(0), 4, stride)], ..at(strides) };
    for dtype in [DType::F32, DType::BF16, DType::I32, DType::F64] {
        // Rows of an embedding: y[i[t], c] += x[t, c].
        scatter(&[300, 150], strided(&[0, 1], 150), at(&[1, 0]), &[300], &[4, 150], &[150, 1], dtype);
        // Elements: y[i[t]] += x[t].
        scatter(&[1000], strided(&[0], 1), at(&[1]), &[1000], &[4], &[1], dtype);
        // The last axis: y[r, i[t]] += x[r, t].
        scatter(&[90, 70], strided(&[4, 0], 1), at(&[0, 1]), &[70], &[90, 4], &[70, 1], dtype);
        // In the middle: y[a, i[t], c] += x[a, t, c].
        scatter(&[3, 50, 9], strided(&[36, 0, 1], 9), at(&[0, 1, 0]), &[50], &[3, 4, 9], &[450, 9, 1], dtype);
    }
    // Parts that overlap: y[i[t] + c] += x[t, c].
    scatter(&[12, 9000], strided(&[0, 1], 1), at(&[1, 0]), &[12], &[9003], &[9000, 1], DType::F32);
}

#[test]
fn random_bits_and_coordinates() {
    let [m, n] = [6, 1200];
    let mut bench = Bench::default();
    let word = |x: f64| Tensor::from_f64(&TensorType::scalar(DType::U32), &[x]);
    let (seed, step) = (bench.input("seed", word(3e9)), bench.input("step", word(17.0)));
    let lookup = bench.input("lookup", integers(&[n], 0.0, 5.0, 7));
    let names = ["plain", "strided", "of_row", "looked_up", "index"];
    let outputs = names.map(|name| bench.output(name, DType::U32, &[m, n]));
    let mut p = Program::default();
    let zero = at(&[0, 0]);
    let (seed, step) = (p.load(seed, DType::U32, zero.clone()), p.load(step, DType::U32, zero));
    let index = p.load(lookup, DType::I32, at(&[0, 1]));
    let ni = n as i64;
    let elements = [
        at(&[ni, 1]).shifted(3),
        at(&[1, 6]),
        at(&[1, 0]),
        Index { indirect: vec![term(index, 5, 11)], ..at(&[ni, 2]) },
    ];
    for (element, output) in elements.into_iter().zip(outputs) {
        let bits = p.push(InstrKind::Random { seed, step, node: 0xdead_beef, element }, DType::U32);
        p.store(bits, output, at(&[ni, 1]));
    }
    let coordinate = p.push(InstrKind::Coordinate(at(&[7, -2]).shifted(1)), DType::I32);
    let coordinate = p.push(InstrKind::Cast(coordinate), DType::U32);
    p.store(coordinate, outputs[4], at(&[ni, 1]));
    bench.kernel(Form::Map, Domain::flat([m, n]), p.region, p.stores);
    bench.check(0.0);
}
