//! Idioms of real models: what fusion makes one kernel of, or a chain, or a loop. Each begins at a value and gives up where something
//! does not fit.

use super::program::Author;
use kernfusion_ir::{
    Binary, Builder, Cast, Compare, Concat, DType, DotGeneral, Gather, Graph, Input, InputRole, Iota,
    Literal, Op, Origin, Pad, Permute, Reduce, ReduceOp, Reshape, Scan, ScatterAdd, Select, Slice,
    TensorType, Unary, ValueId, Windows,
};

type Written = Option<ValueId>;

/// Something to write, beginning at a value.
type Idiom = (&'static str, fn(&mut Author, ValueId) -> Written);

/// All of them; what is there twice is written twice as often.
pub(super) const IDIOMS: [Idiom; 23] = [
    ("softmax", softmax),
    ("layer norm", layer_norm),
    ("RMS norm", rms_norm),
    ("GELU", gelu),
    ("attention", |author, _| attention(author)),
    ("attention", |author, _| attention(author)),
    ("linear", linear),
    ("linear", linear),
    ("bytes", |author, _| bytes(author)),
    ("function of bytes", |author, _| function_of_bytes(author)),
    ("windows", |author, _| windows(author)),
    ("cross entropy", cross_entropy),
    ("embedding", embedding),
    ("dropout", dropout),
    ("recurrence", recurrence),
    ("momentum", momentum),
    ("halves", halves),
    ("column statistic", column_statistic),
    ("running sum", running_sum),
    ("experts", experts),
    ("joined masks", joined_masks),
    ("total", total),
    ("total", total),
];

/// Writes one of them; its name, if it could be written to its end.
pub(super) fn write(author: &mut Author, x: ValueId) -> Option<&'static str> {
    let (name, idiom) = *author.draws.choose(&IDIOMS);
    idiom(author, x).map(|_| name)
}

/// A reduction along the last axis, given back to each element.
fn of_rows(a: &mut Author, op: ReduceOp, x: ValueId) -> Written {
    let ty = a.ty(x);
    let last = ty.rank().checked_sub(1)?;
    let rows = a.add(Reduce { op, axes: vec![last] }, &[x])?;
    a.broadcast(rows, &ty.shape, &(0..last).collect::<Vec<_>>())
}

fn mean_of_rows(a: &mut Author, x: ValueId) -> Written {
    let extent = *a.ty(x).shape.last()?;
    let scaled = a.scale(x, 1.0 / extent.max(1) as f64)?;
    of_rows(a, ReduceOp::Sum, scaled)
}

fn softmax(a: &mut Author, x: ValueId) -> Written {
    let largest = of_rows(a, ReduceOp::Max, x)?;
    let shifted = a.add(Binary::Sub, &[x, largest])?;
    let exp = a.add(Unary::Exp, &[shifted])?;
    let sum = of_rows(a, ReduceOp::Sum, exp)?;
    a.add(Binary::Div, &[exp, sum])
}

fn layer_norm(a: &mut Author, x: ValueId) -> Written {
    let mean = mean_of_rows(a, x)?;
    let centered = a.add(Binary::Sub, &[x, mean])?;
    let normed = rms_norm(a, centered)?;
    let ty = a.ty(x);
    let width = *ty.shape.last()?;
    let gain = a.data(ty.dtype, &[width], 0.5..1.5);
    let gain = a.broadcast(gain, &ty.shape, &[ty.rank() - 1])?;
    a.add(Binary::Mul, &[normed, gain])
}

fn rms_norm(a: &mut Author, x: ValueId) -> Written {
    let square = a.add(Binary::Mul, &[x, x])?;
    let mean = mean_of_rows(a, square)?;
    let ty = a.ty(x);
    let epsilon = a.full(0.125, &ty)?;
    let sum = a.add(Binary::Add, &[mean, epsilon])?;
    let root = a.add(Unary::Sqrt, &[sum])?;
    a.add(Binary::Div, &[x, root])
}

/// x · (1 + erf(x / √2)) / 2
fn gelu(a: &mut Author, x: ValueId) -> Written {
    let scaled = a.scale(x, std::f64::consts::FRAC_1_SQRT_2)?;
    let erf = a.add(Unary::Erf, &[scaled])?;
    let ty = a.ty(x);
    let one = a.full(1.0, &ty)?;
    let sum = a.add(Binary::Add, &[erf, one])?;
    let product = a.add(Binary::Mul, &[x, sum])?;
    a.scale(product, 0.5)
}

/// What bytes stand for: without a zero point, or one for each index of an axis, times a scale or one for each of these.
fn dequantized(a: &mut Author, bytes: ValueId, axis: Option<usize>) -> Written {
    let shape = a.ty(bytes).shape;
    let ty = TensorType::new(DType::F32, shape.clone());
    let common = |a: &mut Author, [least, most, step]: [f64; 3]| {
        let axis = axis.filter(|_| a.draws.below(2) == 0);
        let Some(axis) = axis else {
            let number = (a.draws.between(least, most) / step).round() * step;
            return a.full(number, &ty);
        };
        let dtype = if step == 1.0 { DType::I8 } else { DType::F32 };
        let each = a.data(dtype, &[shape[axis]], least..most);
        let each = if step == 1.0 { a.add(Cast { dtype: DType::F32 }, &[each])? } else { each };
        a.broadcast(each, &shape, &[axis])
    };
    let wide = a.add(Cast { dtype: DType::F32 }, &[bytes])?;
    let centred = match a.draws.below(3) {
        0 => wide,
        _ => {
            let zero = common(a, [-128.0, 127.0, 1.0])?;
            a.add(Binary::Sub, &[wide, zero])?
        }
    };
    let scale = common(a, [0.001, 0.01, 0.001])?;
    a.add(Binary::Mul, &[centred, scale])
}

/// A costly function of bytes, rounded to bytes: of enough of them that they are looked up.
fn function_of_bytes(a: &mut Author) -> Written {
    let shape = *a.draws.choose(&[[4096, 1], [65, 64], [31, 150], [1, 5000]]);
    let bytes = a.data(DType::I8, &shape, -128.0..128.0);
    let x = dequantized(a, bytes, None)?;
    let function = *a.draws.choose(&[Unary::Tanh, Unary::Erf, Unary::Sigmoid, Unary::Exp]);
    let y = a.add(function, &[x])?;
    let product = a.add(Binary::Mul, &[x, y])?;
    let activated = *a.draws.choose(&[y, product]);
    let scaled = a.scale(activated, 40.0)?;
    let rounded = a.add(Unary::Round, &[scaled])?;
    let narrow = a.add(Cast { dtype: DType::I8 }, &[rounded])?;
    a.add(Cast { dtype: DType::F32 }, &[narrow])
}

/// A product of bytes, k last or first in either of them, with a scale for each column; or of what bytes stand for, of which one is a parameter.
fn bytes(a: &mut Author) -> Written {
    let [rows, columns] =
        [0; 2].map(|_| *a.draws.choose(&[1, 2, 5, 8, 9, 14, 15, 16, 17, 31, 32, 33, 40, 64, 65]));
    let k = *a.draws.choose(&[1, 2, 3, 4, 7, 12, 16, 31, 64, 68, 127, 256, 1540]);
    let wide = Cast { dtype: if a.draws.below(4) == 0 { DType::BF16 } else { DType::F32 } };
    let are_dequantized = a.draws.below(2) == 0;
    let mut factor = |outer: usize, is_parameter: bool| {
        let k_first = a.draws.below(4) == 0;
        let shape = if k_first { [k, outer] } else { [outer, k] };
        let range = -128.0..128.0;
        let bytes = match is_parameter {
            true => a.parameter(DType::I8, &shape, range),
            false => a.data(DType::I8, &shape, range),
        };
        let of_outer = usize::from(k_first);
        let factor = match are_dequantized {
            true => dequantized(a, bytes, Some(of_outer))?,
            false => a.add(wide, &[bytes])?,
        };
        Some((factor, 1 - of_outer))
    };
    let ((x, of_x), (y, of_y)) = (factor(rows, false)?, factor(columns, true)?);
    let dot = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![of_x],
        rhs_contract: vec![of_y],
        dtype: DType::F32,
    };
    let product = a.add(dot, &[x, y])?;
    let scales = a.data(DType::F32, &[columns], 0.001..0.01);
    let scales = a.broadcast(scales, &[rows, columns], &[1])?;
    a.add(Binary::Mul, &[product, scales])
}

/// Weights times what windows see of images, all of floats, all of bytes, or all of what bytes stand for, with zeros around the images.
fn windows(a: &mut Author) -> Written {
    let (are_bytes, are_dequantized) = (a.draws.below(3) > 0, a.draws.below(2) == 0);
    let (dtype, range) = if are_bytes { (DType::I8, -128.0..128.0) } else { (DType::F32, -1.0..1.0) };
    let images = 1 + a.draws.below(3);
    let channels = *a.draws.choose(&[1, 2, 3, 4, 8]);
    let features = *a.draws.choose(&[1, 5, 16, 33, 64]);
    let size = [0; 2].map(|_| *a.draws.choose(&[3, 4, 7, 9, 14, 17, 33]));
    let mut two = |most: usize| [0; 2].map(|_| 1 + a.draws.below(most)).to_vec();
    let (places, stride, dilation) = (two(3), two(2), two(2));
    let summed = channels * places[0] * places[1];
    let image = a.data(dtype, &[images, channels, size[0], size[1]], range.clone());
    let weights = a.parameter(dtype, &[features, summed], range);
    let mut factor = |kept: ValueId, axis: Option<usize>| match (are_bytes, are_dequantized) {
        (true, true) => dequantized(a, kept, axis),
        (true, false) => a.add(Cast { dtype: DType::F32 }, &[kept]),
        (false, _) => Some(kept),
    };
    let (mut image, weights) = (factor(image, None)?, factor(weights, Some(0))?);
    if a.draws.below(2) == 0 {
        let around = vec![0, 0, 1, 1];
        image = a.add(Pad { low: around.clone(), high: around, value: Literal::new(0.0) }, &[image])?;
    }
    let seen = a.add(Windows { places, stride, dilation }, &[image])?;
    let of_one = a.ty(seen).shape[2..4].iter().product();
    let turned = a.add(Permute { axes: vec![0, 1, 4, 5, 2, 3] }, &[seen])?;
    let columns = a.add(Reshape { shape: vec![images, summed, of_one] }, &[turned])?;
    let dot = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![1],
        rhs_contract: vec![1],
        dtype: DType::F32,
    };
    a.add(dot, &[weights, columns])
}

/// x·Wᵀ + b, W with outputs first or last, perhaps an activation.
fn linear(a: &mut Author, x: ValueId) -> Written {
    let ty = a.ty(x);
    let width = *ty.shape.last()?;
    let outputs = *a.draws.choose(&[1, 3, 8, 15, 16, 17, 32, 33, 64, 65]);
    let turned = a.draws.below(2) == 0;
    let shape = if turned { [width, outputs] } else { [outputs, width] };
    let weight = a.data(ty.dtype, &shape, -0.5..0.5);
    let dot = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![ty.rank() - 1],
        rhs_contract: vec![usize::from(!turned)],
        dtype: ty.dtype,
    };
    let product = a.add(dot, &[x, weight])?;
    let result = a.ty(product);
    let bias = a.data(ty.dtype, &[outputs], -1.0..1.0);
    let bias = a.broadcast(bias, &result.shape, &[result.rank() - 1])?;
    let sum = a.add(Binary::Add, &[product, bias])?;
    match a.draws.below(4) {
        0 => gelu(a, sum),
        1 => a.add(Unary::Tanh, &[sum]),
        2 => softmax(a, sum),
        _ => Some(sum),
    }
}

/// Coordinates along one axis.
fn coordinates(a: &mut Author, shape: &[usize], axis: usize) -> Written {
    a.add(Iota { ty: TensorType::new(DType::I32, shape), axis }, &[])
}

/// One of the masks that models have over [.., rows, columns].
fn mask(a: &mut Author, shape: &[usize]) -> Written {
    let rank = shape.len();
    let (mut row, mut column) = (coordinates(a, shape, rank - 2)?, coordinates(a, shape, rank - 1)?);
    // Most masks are made of i32; in other types differences wrap, or large coordinates are rounded.
    let dtype = *a.draws.choose(&[
        DType::I32,
        DType::I32,
        DType::I32,
        DType::U32,
        DType::I8,
        DType::F32,
        DType::BF16,
        DType::F16,
    ]);
    if dtype != DType::I32 {
        let cast = Cast { dtype };
        (row, column) = (a.add(cast, &[row])?, a.add(cast, &[column])?);
    }
    let whole = TensorType::new(dtype, shape);
    let causal = |a: &mut Author| a.add(Compare::Le, &[column, row]);
    match a.draws.below(5) {
        0 | 1 => causal(a),
        2 => {
            // Columns near the row or far from it, before it or on both sides: the last W columns up to the row's, and others.
            let width = 1 + a.draws.below(shape[rank - 1].max(1));
            let width = a.full(width as f64, &whole)?;
            let ends = if a.draws.below(2) == 0 { [row, column] } else { [column, row] };
            let distance = a.add(Binary::Sub, &ends)?;
            let compare = *a.draws.choose(&[Compare::Lt, Compare::Le, Compare::Gt, Compare::Ge]);
            let chosen = a.add(compare, &[distance, width])?;
            if a.draws.below(2) == 0 {
                return Some(chosen);
            }
            let causal = causal(a)?;
            a.add(Binary::And, &[chosen, causal])
        }
        3 => {
            // Padding: each row of the batch has a number of valid columns.
            let lengths = a.data(dtype, &[shape[0]], 1.0..(shape[rank - 1] as f64 + 1.0).min(127.0));
            let lengths = a.broadcast(lengths, shape, &[0])?;
            a.add(Compare::Lt, &[column, lengths])
        }
        _ => Some(a.data(DType::Bool, shape, 0.0..1.0)),
    }
}

/// softmax(mask(q·kᵀ · s))·v over heads, of which several may share keys and values.
pub(super) fn attention(a: &mut Author) -> Written {
    let dtype = a.dtype;
    let extents = [1, 5, 13, 14, 15, 16, 17, 28, 29, 31, 33, 56, 57, 63, 64, 65, 95, 129, 160];
    let rows = *a.draws.choose(&extents);
    let columns = if a.draws.below(3) > 0 { rows } else { *a.draws.choose(&[1, 7, 16, 17, 63, 64, 65, 128]) };
    // From 8 matrices on, each thread has its own.
    let heads = (*a.draws.choose(&[1, 2, 3, 4, 8, 9])).min(a.room() / (rows * columns)).max(1);
    // Scores that are larger than what they are made of are worth a kernel of their own.
    let width = *a.draws.choose(&[1, 3, 4, 4, 8, 8, 15, 16, 17, 33, 64]);
    let shared = a.draws.below(3) == 0;
    let q = a.data(dtype, &[heads, rows, width], -1.0..1.0);
    let group: &[usize] = if shared { &[] } else { &[heads] };
    let kv = [group, &[columns, width]].concat();
    let (k, v) = (a.data(dtype, &kv, -1.0..1.0), a.data(dtype, &kv, -1.0..1.0));
    let batch: Vec<usize> = if shared { vec![] } else { vec![0] };
    let first = batch.len();
    let dot = |lhs: usize, rhs: usize| DotGeneral {
        lhs_batch: batch.clone(),
        rhs_batch: batch.clone(),
        lhs_contract: vec![lhs],
        rhs_contract: vec![rhs],
        dtype,
    };
    let scores = a.add(dot(2, first + 1), &[q, k])?;
    let scores = a.scale(scores, 1.0 / (width as f64).sqrt())?;
    let ty = a.ty(scores);
    let mask = mask(a, &ty.shape)?;
    let least = *a.draws.choose(&[f64::NEG_INFINITY, f64::NEG_INFINITY, -1e4, -30.0]);
    let least = a.full(if dtype == DType::F16 { least.max(-900.0) } else { least }, &ty)?;
    let masked = a.add(Select, &[mask, scores, least])?;
    let mut weights = softmax(a, masked)?;
    if a.draws.below(3) == 0 {
        weights = dropout(a, weights)?;
    }
    a.add(dot(2, first), &[weights, v])
}

/// The mean of −log softmax(x)[i].
fn cross_entropy(a: &mut Author, x: ValueId) -> Written {
    let ty = a.ty(x);
    let last = ty.rank().checked_sub(1)?;
    let largest = of_rows(a, ReduceOp::Max, x)?;
    let shifted = a.add(Binary::Sub, &[x, largest])?;
    let exp = a.add(Unary::Exp, &[shifted])?;
    let sum = a.add(Reduce { op: ReduceOp::Sum, axes: vec![last] }, &[exp])?;
    let log = a.add(Unary::Log, &[sum])?;
    let classes = a.data(DType::I32, &ty.shape[..last], 0.0..ty.shape[last] as f64);
    let spread = a.broadcast(classes, &ty.shape, &(0..last).collect::<Vec<_>>())?;
    let column = coordinates(a, &ty.shape, last)?;
    let hot = a.add(Compare::Eq, &[spread, column])?;
    let zeros = a.full(0.0, &ty)?;
    let picked = a.add(Select, &[hot, shifted, zeros])?;
    let picked = a.add(Reduce { op: ReduceOp::Sum, axes: vec![last] }, &[picked])?;
    let losses = a.add(Binary::Sub, &[log, picked])?;
    let rows = a.ty(losses);
    let scaled = a.scale(losses, 1.0 / rows.elements().max(1) as f64)?;
    a.add(Reduce { op: ReduceOp::Sum, axes: (0..rows.rank()).collect() }, &[scaled])
}

/// Rows of a table, and its gradient.
fn embedding(a: &mut Author, x: ValueId) -> Written {
    let ty = a.ty(x);
    let extent = *ty.shape.first()?;
    let tokens = *a.draws.choose(&[1, 5, 16, 33, 64]);
    let indices = a.indices(&[tokens], extent);
    let rows = a.add(Gather { axis: 0 }, &[x, indices])?;
    if a.draws.below(2) == 0 {
        return Some(rows);
    }
    let square = a.add(Binary::Mul, &[rows, rows])?;
    a.add(ScatterAdd { axis: 0, extent }, &[indices, square])
}

/// u ≥ p ? x / (1 − p) : 0
fn dropout(a: &mut Author, x: ValueId) -> Written {
    let ty = a.ty(x);
    if !ty.dtype.is_float() {
        return None;
    }
    let bits = a.random_bits(&ty.shape)?;
    let shift = a.full(8.0, &ty.with_dtype(DType::U32))?;
    let bits = a.add(Binary::Shr, &[bits, shift])?;
    let u = a.add(Cast { dtype: DType::F32 }, &[bits])?;
    let limit = a.full(f64::from(1 << 22), &ty.with_dtype(DType::F32))?;
    let kept = a.add(Compare::Ge, &[u, limit])?;
    let (scaled, zeros) = (a.scale(x, 1.0 / 0.75)?, a.full(0.0, &ty)?);
    a.add(Select, &[kept, scaled, zeros])
}

/// Two draws side by side, or one shifted: rows of random numbers that begin before their first element.
fn joined_masks(a: &mut Author, x: ValueId) -> Written {
    let rank = a.ty(x).rank();
    let axis = rank.checked_sub(1)?;
    let (left, right) = (dropout(a, x)?, dropout(a, x)?);
    match a.draws.below(2) {
        0 => a.add(Concat { axis }, &[left, right]),
        _ => {
            let mut low = vec![0; rank];
            low[axis] = *a.draws.choose(&[1, 4, 5, 80]);
            a.add(Pad { low, high: vec![0; rank], value: Literal::new(0.0) }, &[left])
        }
    }
}

/// h ← tanh(h ∘ w + x[t]) over the first axis.
fn recurrence(a: &mut Author, x: ValueId) -> Written {
    let ty = a.ty(x);
    let length = *ty.shape.first().filter(|&&length| (1..=64).contains(&length))?;
    let part = ty.with_shape(&ty.shape[1..]);
    let product = part.rank() == 2 && a.draws.below(2) == 0;
    let weight = match product {
        true => ty.with_shape([part.shape[1], part.shape[1]]),
        false => part.clone(),
    };
    let body = recurrent_body(&part, &weight, product).ok()?;
    let first = a.data(ty.dtype, &part.shape, -1.0..1.0);
    let weight = a.data(ty.dtype, &weight.shape, -0.5..0.5);
    let reverse = a.draws.below(2) == 0;
    let scan = Scan { body: body.into(), length, carried: 1, sliced: 1, reverse, result: 0 };
    a.add(scan.with_result(1), &[first, x, weight]);
    a.add(scan, &[first, x, weight])
}

fn recurrent_body(part: &TensorType, weight: &TensorType, product: bool) -> kernfusion_ir::Result<Graph> {
    let mut graph = Graph::new("body");
    let mut b = Builder::new(&mut graph, Origin::default());
    let mut input = |name: &str, ty: &TensorType| {
        b.op(Input { name: name.into(), role: InputRole::Data, ty: ty.clone() }, &[])
    };
    let (h, x, w) = (input("h", part)?, input("x", part)?, input("w", weight)?);
    let turned = if product { b.matmul(h, w)? } else { b.mul(h, w)? };
    let sum = b.add(turned, x)?;
    let next = b.unary(Unary::Tanh, sum)?;
    let square = b.mul(next, next)?;
    graph.output("h", next);
    graph.output("square", square);
    Scan::hand_out(&mut graph, 1);
    Ok(graph)
}

/// m ← 0.9·m + 0.1·x; w ← w − m / (√(x² + 1))
fn momentum(a: &mut Author, x: ValueId) -> Written {
    let ty = a.ty(x);
    let name = format!("m{}", a.graph.len());
    let state = a.input(&name, InputRole::State, ty.clone(), -1.0..1.0);
    let (old, new) = (a.scale(state, 0.9)?, a.scale(x, 0.1)?);
    let moment = a.add(Binary::Add, &[old, new])?;
    a.graph.update(name, moment);
    let square = a.add(Binary::Mul, &[x, x])?;
    let one = a.full(1.0, &ty)?;
    let sum = a.add(Binary::Add, &[square, one])?;
    let root = a.add(Unary::Sqrt, &[sum])?;
    let step = a.add(Binary::Div, &[moment, root])?;
    a.add(Binary::Sub, &[x, step])
}

/// Rotary positions: halves of the last axis, turned and joined.
fn halves(a: &mut Author, x: ValueId) -> Written {
    let ty = a.ty(x);
    let axis = ty.rank().checked_sub(1)?;
    let middle = ty.shape[axis] / 2;
    let mut cut = |from: usize, to: usize| {
        let (mut start, mut end) = (vec![0; ty.rank()], ty.shape.clone());
        (start[axis], end[axis]) = (from, to);
        a.add(Slice { start, end }, &[x])
    };
    let (left, right) = (cut(0, middle)?, cut(middle, ty.shape[axis])?);
    let turned = a.add(Unary::Neg, &[right])?;
    let joined = a.add(Concat { axis }, &[turned, left])?;
    let cosine = a.add(Unary::Cos, &[x])?;
    a.add(Binary::Mul, &[joined, cosine])
}

/// A statistic of each column, given back to it; then columns are looked up, or rows are moved.
fn column_statistic(a: &mut Author, x: ValueId) -> Written {
    let ty = a.ty(x);
    let rank = ty.rank();
    if rank == 0 {
        return None;
    }
    let axis = a.draws.below(rank);
    let op = *a.draws.choose(&ReduceOp::ALL);
    let kept: Vec<_> = (0..rank).filter(|&other| other != axis).collect();
    let statistic = a.add(Reduce { op, axes: vec![axis] }, &[x])?;
    let spread = a.broadcast(statistic, &ty.shape, &kept)?;
    let centered = a.add(Binary::Sub, &[x, spread])?;
    let along = a.draws.below(rank);
    match a.draws.below(3) {
        0 => {
            let indices = a.indices(&[ty.shape[along]], ty.shape[along]);
            a.add(Gather { axis: along }, &[centered, indices])
        }
        1 => {
            let mut axes: Vec<_> = (0..rank).collect();
            axes.rotate_left(1);
            a.add(Permute { axes }, &[centered])
        }
        _ => {
            let shape = vec![ty.elements()];
            let flat = a.add(Reshape { shape }, &[centered])?;
            let start = a.draws.below(ty.elements().max(1));
            a.add(Slice { start: vec![start], end: vec![ty.elements()] }, &[flat])
        }
    }
}

/// The sum of all elements, or of all that belong to each of the first axis, of half precision; mostly of a new tensor, of which
/// nothing is known but its numbers.
fn total(a: &mut Author, x: ValueId) -> Written {
    let ty = a.ty(x);
    if ty.rank() < 2 {
        return None;
    }
    let dtype = *a.draws.choose(&[DType::BF16, DType::F16]);
    let narrow = if ty.dtype == dtype { x } else { a.data(dtype, &ty.shape, -2.0..2.0) };
    let first = usize::from(ty.rank() > 2 && a.draws.below(2) == 0);
    a.add(Reduce { op: ReduceOp::Sum, axes: (first..ty.rank()).collect() }, &[narrow])
}

/// Sums of all elements up to each: a product with a triangle.
fn running_sum(a: &mut Author, x: ValueId) -> Written {
    let ty = a.ty(x);
    let axis = ty.rank().checked_sub(1)?;
    let square = [ty.shape[axis], ty.shape[axis]];
    let (row, column) = (coordinates(a, &square, 0)?, coordinates(a, &square, 1)?);
    let up_to = a.add(Compare::Le, &[row, column])?;
    let triangle = a.add(Cast { dtype: ty.dtype }, &[up_to])?;
    let dot = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![axis],
        rhs_contract: vec![0],
        dtype: ty.dtype,
    };
    a.add(dot, &[x, triangle])
}

/// Each row is multiplied with the matrix that it chooses of a table.
fn experts(a: &mut Author, x: ValueId) -> Written {
    let (count, outputs) = (2 + a.draws.below(3), *a.draws.choose(&[1, 8, 16, 17]));
    rows_of_experts(a, x, count, outputs)
}

/// So many rows, and matrices so large, that rows which choose the same matrix are multiplied together.
pub(super) fn many_rows_of_experts(a: &mut Author) -> Written {
    let (rows, count, outputs) = (10 + a.draws.below(18), 2 + a.draws.below(3), *a.draws.choose(&[32, 33]));
    let x = a.data(a.dtype, &[rows, 32], -2.0..2.0);
    rows_of_experts(a, x, count, outputs)
}

fn rows_of_experts(a: &mut Author, x: ValueId, count: usize, outputs: usize) -> Written {
    let ty = a.ty(x);
    let (&rows, &width) = (ty.shape.first()?, ty.shape.last()?);
    if ty.rank() != 2 {
        return None;
    }
    let table = a.data(ty.dtype, &[count, outputs, width], -0.5..0.5);
    let chosen = a.indices(&[rows], count);
    let matrices = a.add(Gather { axis: 0 }, &[table, chosen])?;
    let tokens = a.add(Reshape { shape: vec![rows, 1, width] }, &[x])?;
    let dot = DotGeneral {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contract: vec![2],
        rhs_contract: vec![2],
        dtype: ty.dtype,
    };
    a.add(Op::from(dot), &[tokens, matrices])
}
