//! Windows on images with short rows, which become one row each.

use crate::support::{Bench, Program, Random, at};
use kernfusion_cpu::guard::{Side, guarded};
use kernfusion_ir::kernel::{Bound, BufferId, BufferRole, Direction, Domain, Form, Index, InstrKind, Scalar};
use kernfusion_ir::{Binary, DType, ReduceOp, TensorType};

const PLANES: usize = 33;
/// Rows and columns of an image, and the side of its window. One image is smaller than a vector, one has too many points for patterns.
const IMAGES: [([usize; 2], i64); 6] =
    [([2, 5], 3), ([7, 7], 5), ([14, 14], 3), ([9, 31], 3), ([28, 27], 5), ([70, 62], 3)];

/// A window of 3 × 3 or 5 × 5 places of x, each times a weight of the plane, where it is within the image. Windows are `step` points apart.
fn window(
    p: &mut Program,
    [x, weights]: [BufferId; 2],
    dtype: DType,
    (size, step): (i64, i64),
    [h, w]: [usize; 2],
) -> Scalar {
    let (plane, width) = ((h * w) as i64, w as i64);
    let bound = |axis: usize, offset, extent| {
        let mut coordinate = Index::constant(3, offset);
        coordinate.strides[axis] = step;
        Bound { coordinate, extent }
    };
    let mut sum: Option<Scalar> = None;
    for place in 0..size * size {
        let [down, right] = [place / size - size / 2, place % size - size / 2];
        let guard = vec![bound(1, down, h), bound(2, right, w)];
        let index = at(&[plane, step * width, step]).shifted(down * width + right);
        let x = p.push(InstrKind::Load { buffer: x, index, guard }, dtype);
        let weight = p.load(weights, dtype, at(&[size * size, 0, 0]).shifted(place));
        let term = p.push(InstrKind::Binary(Binary::Mul, x, weight), dtype);
        sum = Some(sum.map_or(term, |sum| p.push(InstrKind::Binary(Binary::Add, sum, term), dtype)));
    }
    sum.expect("a window has places")
}

/// The window of each point, where it is inside of the image's frame, else the plane's number; and the mean of all of an image, with the memory of
/// the image between protected pages.
#[test]
fn windows_of_images() {
    for dtype in [DType::F32, DType::BF16] {
        for (image, size) in IMAGES {
            let ([h, w], mut random) = (image, Random(7));
            let mut bench = Bench::default();
            let tensor = random.tensor(&TensorType::new(dtype, [PLANES, h, w]), -1.0, 1.0);
            let x = bench.buffer("x", tensor.ty(), BufferRole::State);
            bench.inputs.insert("x".into(), tensor);
            let of_plane = TensorType::new(dtype, [PLANES, (size * size) as usize]);
            let weights = bench.input("weights", random.tensor(&of_plane, -1.0, 1.0));
            let [framed, all] = ["framed", "all"].map(|name| bench.output(name, dtype, &[PLANES, h, w]));
            let means = bench.output("means", DType::F32, &[PLANES]);
            let of_image = at(&[(h * w) as i64, w as i64, 1]);

            let mut p = Program::default();
            let value = window(&mut p, [x, weights], dtype, (size, 1), image);
            let number = p.push(InstrKind::Coordinate(at(&[1, 0, 0])), DType::I32);
            let number = p.push(InstrKind::Cast(number), dtype);
            let inside = [(1, h), (2, w)].map(|(axis, extent)| Bound {
                coordinate: Index::axis(3, axis).shifted(-1),
                extent: extent - 2,
            });
            let is_inside = p.push(InstrKind::InRange(inside.to_vec()), DType::Bool);
            let value = p.push(InstrKind::Select(is_inside, value, number), dtype);
            p.store(value, framed, of_image.clone());
            bench.kernel(Form::Map, Domain::flat([PLANES, h, w]), p.region, p.stores);

            let mut p = Program::default();
            let value = window(&mut p, [x, weights], dtype, (size, 1), image);
            let wide = p.push(InstrKind::Cast(value), DType::F32);
            let share = p.constant(1.0 / (h * w) as f64, DType::F32);
            let part = p.push(InstrKind::Binary(Binary::Mul, wide, share), DType::F32);
            let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, part), DType::F32);
            p.store(value, all, of_image);
            p.store(sum, means, at(&[1, 0, 0]));
            let domain = Domain { axes: vec![PLANES, h, w], outer: 0, rows: 1 };
            bench.kernel(Form::Reduce, domain, p.region, p.stores);

            // Windows two steps apart, as a map and with their means.
            let half = [h.div_ceil(2), w.div_ceil(2)];
            let halves =
                ["halves", "others"].map(|name| bench.output(name, dtype, &[PLANES, half[0], half[1]]));
            let means_of_halves = bench.output("means of halves", DType::F32, &[PLANES]);
            let of_half = at(&[(half[0] * half[1]) as i64, half[1] as i64, 1]);
            for (is_reduced, to) in [false, true].into_iter().zip(halves) {
                let mut p = Program::default();
                let value = window(&mut p, [x, weights], dtype, (size, 2), image);
                p.store(value, to, of_half.clone());
                if is_reduced {
                    let wide = p.push(InstrKind::Cast(value), DType::F32);
                    let share = p.constant(1.0 / (half[0] * half[1]) as f64, DType::F32);
                    let part = p.push(InstrKind::Binary(Binary::Mul, wide, share), DType::F32);
                    let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, part), DType::F32);
                    p.store(sum, means_of_halves, at(&[1, 0, 0]));
                    let domain = Domain { axes: vec![PLANES, half[0], half[1]], outer: 0, rows: 1 };
                    bench.kernel(Form::Reduce, domain, p.region, p.stores);
                } else {
                    bench.kernel(Form::Map, Domain::flat([PLANES, half[0], half[1]]), p.region, p.stores);
                }
            }
            for side in [Side::Before, Side::Behind] {
                guarded(side, || bench.check(if dtype == DType::BF16 { 0.05 } else { 1e-5 }));
            }
        }
    }
}
