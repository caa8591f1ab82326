//! Short rows of planes, which loops over whole vectors walk one run after the other.

use crate::support::{Bench, Program, Random, at};
use kernfusion_cpu::guard::{Side, guarded};
use kernfusion_ir::kernel::{Bound, BufferRole, Direction, Domain, Form, Index, InstrKind};
use kernfusion_ir::{Binary, Compare, DType, ReduceOp, TensorType, Unary};

/// Enough for a map to leave rows to loops.
const PLANES: usize = 35;
/// Shorter than a vector, about as long as one, and longer.
const LENGTHS: [usize; 8] = [5, 7, 9, 14, 16, 17, 33, 62];

/// A coordinate of three, moved, below an extent.
fn bound(axis: usize, offset: i64, extent: usize) -> Bound {
    Bound { coordinate: Index::axis(3, axis).shifted(offset), extent }
}

/// `y[p, r, c] = (a·x[p, r−1, c−1] + v[r] + w[c]) · s[p]` inside of a frame and r + 2c on it, `z` = the larger of two neighbours in every other
/// column, and `u`, of bf16: with the memory of x between protected pages, more pointers than registers, and values of one element each.
#[test]
fn a_map_under_bounds_of_rows_and_columns() {
    for dtype in [DType::F32, DType::BF16] {
        for n in LENGTHS {
            let (rows, frame, width) = (4, n + 2, 2 * n + 1);
            let (mut bench, mut random) = (Bench::default(), Random(3));
            let mut tensor = |shape: &[usize]| random.tensor(&TensorType::new(dtype, shape), -3.0, 3.0);
            let x = tensor(&[PLANES, rows, width]);
            let inputs = [("v", vec![rows + 2]), ("w", vec![frame]), ("s", vec![PLANES]), ("a", vec![])];
            let [v, w, s, a] = inputs.map(|(name, shape)| bench.input(name, tensor(&shape)));
            let shape = [PLANES, rows + 2, frame];
            let [y, z] = ["y", "z"].map(|name| bench.output(name, dtype, &shape));
            let u = bench.output("u", DType::BF16, &shape);
            let place = bench.buffer("x", x.ty(), BufferRole::State);
            bench.inputs.insert("x".into(), x);
            let strides = |row: usize, column: i64| at(&[(rows * width) as i64, row as i64, column]);
            let of_y = at(&[((rows + 2) * frame) as i64, frame as i64, 1]);
            let guard = vec![bound(1, -1, rows), bound(2, -1, n)];
            let mut p = Program::default();
            let load = |p: &mut Program, index: Index| {
                let kind = InstrKind::Load { buffer: place, index, guard: guard.clone() };
                p.push(kind, dtype)
            };
            let binary = |p: &mut Program, op, x, y| p.push(InstrKind::Binary(op, x, y), dtype);
            let near = load(&mut p, strides(width, 1).shifted(-1 - width as i64));
            let [left, right] =
                [2, 1].map(|back| load(&mut p, strides(width, 2).shifted(-back - width as i64)));
            let scale = p.load(a, dtype, at(&[0, 0, 0]));
            let [of_row, of_column, of_plane] =
                [(v, [0, 1, 0]), (w, [0, 0, 1]), (s, [1, 0, 0])].map(|(x, axes)| p.load(x, dtype, at(&axes)));
            let scaled = binary(&mut p, Binary::Mul, near, scale);
            let sum = binary(&mut p, Binary::Add, scaled, of_row);
            let sum = binary(&mut p, Binary::Add, sum, of_column);
            let inner = binary(&mut p, Binary::Mul, sum, of_plane);
            let place = p.push(InstrKind::Coordinate(at(&[0, 1, 2])), DType::I32);
            let place = p.push(InstrKind::Cast(place), dtype);
            let is_inside = p.push(InstrKind::InRange(guard.clone()), DType::Bool);
            let framed = p.push(InstrKind::Select(is_inside, inner, place), dtype);
            let larger = binary(&mut p, Binary::Max, left, right);
            let is_larger = p.push(InstrKind::Compare(Compare::Lt, framed, larger), DType::Bool);
            let chosen = p.push(InstrKind::Select(is_larger, larger, framed), dtype);
            let narrow = p.push(InstrKind::Cast(chosen), DType::BF16);
            for (value, to) in [(framed, y), (larger, z), (narrow, u)] {
                p.store(value, to, of_y.clone());
            }
            bench.kernel(Form::Map, Domain::flat(shape), p.region, p.stores);
            for side in [Side::Before, Side::Behind] {
                guarded(side, || bench.check(if dtype == DType::BF16 { 0.02 } else { 1e-6 }));
            }
        }
    }
}

/// A softmax over all of a plane, whose rows lie apart: what one stage leaves in scratch rows, the next one reads there.
#[test]
fn a_reduction_over_rows_that_do_not_merge() {
    for n in LENGTHS {
        let (rows, width) = (6, n + 3);
        let mut bench = Bench::default();
        let x = bench
            .input("x", Random(9).tensor(&TensorType::new(DType::F32, [PLANES, rows, width]), -2.0, 2.0));
        let y = bench.output("y", DType::F32, &[PLANES, rows, n]);
        let sums = bench.output("sums", DType::F32, &[PLANES]);
        let mut p = Program::default();
        let x = p.load(x, DType::F32, at(&[(rows * width) as i64, width as i64, 1]));
        let reduce =
            |p: &mut Program, op, x| p.push(InstrKind::Reduce(op, Direction::Columns, x), DType::F32);
        let most = reduce(&mut p, ReduceOp::Max, x);
        let below = p.push(InstrKind::Binary(Binary::Sub, x, most), DType::F32);
        let powers = p.push(InstrKind::Unary(Unary::Exp, below), DType::F32);
        let sum = reduce(&mut p, ReduceOp::Sum, powers);
        let share = p.push(InstrKind::Binary(Binary::Div, powers, sum), DType::F32);
        p.store(share, y, at(&[(rows * n) as i64, n as i64, 1]));
        p.store(sum, sums, at(&[1, 0, 0]));
        let domain = Domain { axes: vec![PLANES, rows, n], outer: 0, rows: 1 };
        bench.kernel(Form::Reduce, domain, p.region, p.stores);
        bench.check(1e-5);
    }
}

/// Every third element and, backwards, every fifth one, under bounds along the row and of whole rows, and without: long rows and short ones of
/// memory between protected pages, so that nothing beside them is read.
#[test]
fn elements_that_lie_apart() {
    for dtype in [DType::F32, DType::I32] {
        for n in [3, 7, 16, 30, 64, 65, 150] {
            let (rows, frame) = (PLANES - 2, n + 2);
            let (mut bench, mut random) = (Bench::default(), Random(5));
            let mut state = |name: &str, width: usize| {
                let tensor = random.tensor(&TensorType::new(dtype, [rows, width]), -90.0, 90.0);
                let buffer = bench.buffer(name, tensor.ty(), BufferRole::State);
                bench.inputs.insert(name.into(), tensor);
                buffer
            };
            let [third, fifth] = [("third", 3 * n - 2), ("fifth", 5 * n - 4)]
                .map(|(name, width)| (state(name, width), width as i64));
            let framed = bench.output("framed", dtype, &[PLANES, frame]);
            let plain = bench.output("plain", dtype, &[rows, n]);
            let of_row = Bound { coordinate: Index::axis(2, 0).shifted(-1), extent: rows };
            let of_column = Bound { coordinate: Index::axis(2, 1).shifted(-1), extent: n };
            let add = |p: &mut Program, x, y| p.push(InstrKind::Binary(Binary::Add, x, y), dtype);
            let mut p = Program::default();
            let guard = vec![of_row, of_column];
            let index = at(&[third.1, 3]).shifted(-third.1 - 3);
            let x = p.push(InstrKind::Load { buffer: third.0, index, guard: guard.clone() }, dtype);
            let index = at(&[fifth.1, -5]).shifted(-fifth.1 + 5 * n as i64);
            let y = p.push(InstrKind::Load { buffer: fifth.0, index, guard }, dtype);
            let sum = add(&mut p, x, y);
            p.store(sum, framed, at(&[frame as i64, 1]));
            bench.kernel(Form::Map, Domain::flat([PLANES, frame]), p.region, p.stores);
            let mut p = Program::default();
            let x = p.load(third.0, dtype, at(&[third.1, 3]));
            let y = p.load(fifth.0, dtype, at(&[fifth.1, -5]).shifted(fifth.1 - 1));
            let sum = add(&mut p, x, y);
            p.store(sum, plain, at(&[n as i64, 1]));
            bench.kernel(Form::Map, Domain::flat([rows, n]), p.region, p.stores);
            for side in [Side::Before, Side::Behind] {
                guarded(side, || bench.check(0.0));
            }
        }
    }
}
