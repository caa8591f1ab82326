//! Samples of several ops, in the combinations in which models have them: views of views, operands that are views,
//! reductions between maps, products of reductions.

use super::{Operand, Table, Values, summation};
use crate::{
    Binary, Builder, Compare, DType, DotGeneral, Gather, Iota, ReduceOp, Result, ScatterAdd, TensorType,
    Unary, ValueId, Windows,
};

pub(super) fn add(table: &mut Table) {
    views(table);
    view_operands(table);
    window_operands(table);
    rows(table);
    guarded(table);
    attention(table);
    several_uses(table);
    signs(table);
    chosen(table);
    added_again(table);
}

fn tame(shape: &[usize]) -> Operand {
    Operand::tame(DType::F32, shape)
}

fn views(table: &mut Table) {
    let nested = |b: &mut Builder<'_>, x: &[ValueId]| {
        let split = b.reshape(x[0], &[2, 3, 4, 5])?;
        let turned = b.permute(split, &[2, 0, 3, 1])?;
        b.reshape(turned, &[8, 15])
    };
    table.graph("views.reshape_permute_reshape", &[tame(&[6, 20])], nested).tolerance = 0.0;
    let unaligned = |b: &mut Builder<'_>, x: &[ValueId]| {
        let turned = b.permute(x[0], &[1, 0])?;
        b.reshape(turned, &[4, 6])
    };
    table.graph("views.unaligned", &[tame(&[3, 8])], unaligned).tolerance = 0.0;
    let cut = |b: &mut Builder<'_>, x: &[ValueId]| {
        let part = b.slice(x[0], &[1, 2], &[5, 8])?;
        let flat = b.reshape(part, &[24])?;
        let padded = b.pad(flat, &[3], &[3], 1.0)?;
        let square = b.reshape(padded, &[5, 6])?;
        b.permute(square, &[1, 0])
    };
    table.graph("views.slice_pad", &[tame(&[7, 9])], cut).tolerance = 0.0;
    let heads = |b: &mut Builder<'_>, x: &[ValueId]| {
        let split = b.reshape(x[0], &[2, 5, 3, 4, 2])?;
        let first = b.permute(split, &[2, 0, 3, 1, 4])?;
        let keys = b.slice(first, &[1, 0, 0, 0, 0], &[2, 2, 4, 5, 2])?;
        b.reshape(keys, &[2, 4, 5, 2])
    };
    table.graph("views.split_heads", &[tame(&[2, 5, 24])], heads).tolerance = 0.0;
}

fn view_operands(table: &mut Table) {
    let sum = |b: &mut Builder<'_>, x: &[ValueId]| {
        let turned = b.permute(x[0], &[1, 0])?;
        let row = b.broadcast(x[1], &[7, 13], &[1])?;
        let column = b.broadcast(x[2], &[7, 13], &[0])?;
        let sum = b.add(turned, row)?;
        b.mul(sum, column)
    };
    table.graph("operands.permuted_and_broadcast", &[tame(&[13, 7]), tame(&[13]), tame(&[7])], sum);
    let product = |b: &mut Builder<'_>, x: &[ValueId]| {
        let left = b.permute(x[0], &[1, 0])?;
        let rows = b.broadcast(x[1], &[5, 3], &[1])?;
        b.matmul(left, rows)
    };
    table.graph("operands.of_a_product", &[tame(&[5, 4]), tame(&[3])], product).tolerance = 2e-5;
    let bf16 = |b: &mut Builder<'_>, x: &[ValueId]| {
        let [left, right] = [b.cast(x[0], DType::BF16)?, b.cast(x[1], DType::BF16)?];
        let product = b.matmul(left, right)?;
        b.cast(product, DType::F32)
    };
    let rounded = table.graph("operands.rounded", &[tame(&[7, 9]), tame(&[9, 5])], bf16);
    rounded.tolerance = summation(DType::BF16);
}

/// Products with what a window sees of two images, which lies in runs as long as their rows: in columns, as in a convolution, in rows, and
/// summed over, as in the gradient of a weight.
fn window_operands(table: &mut Table) {
    for step in [1, 2] {
        let size = 16 / step + 1;
        let seen = |b: &mut Builder<'_>, x: ValueId| {
            let padded = b.pad(x, &[0, 0, 1, 1], &[0, 0, 1, 1], 0.0)?;
            let windows = Windows { places: vec![3; 2], stride: vec![step; 2], dilation: vec![1; 2] };
            let seen = b.op(windows, &[padded])?;
            let places = b.permute(seen, &[1, 4, 5, 0, 2, 3])?;
            b.reshape(places, &[27, 2 * size * size])
        };
        let columns = |b: &mut Builder<'_>, x: &[ValueId]| {
            let seen = seen(b, x[0])?;
            b.matmul(x[1], seen)
        };
        let rows = |b: &mut Builder<'_>, x: &[ValueId]| {
            let seen = seen(b, x[0])?;
            let seen = b.permute(seen, &[1, 0])?;
            b.matmul(seen, x[1])
        };
        let image = tame(&[2, 3, 17, 17]);
        let name = |product: &str| format!("operands.windows.{product}.{step}");
        table.graph(&name("columns"), &[image.clone(), tame(&[5, 27])], columns).tolerance = 2e-5;
        table.graph(&name("rows"), &[image.clone(), tame(&[27, 5])], rows).tolerance = 2e-5;
        let summed = [image, tame(&[5, 2 * size * size])];
        let sums = |b: &mut Builder<'_>, x: &[ValueId]| {
            let seen = seen(b, x[0])?;
            let seen = b.permute(seen, &[1, 0])?;
            b.matmul(x[1], seen)
        };
        table.graph(&name("sums"), &summed, sums).tolerance = 5e-5;
    }
}

fn softmax(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let shape = b.ty(x).shape.clone();
    let last = shape.len() - 1;
    let kept: Vec<_> = (0..last).collect();
    let highest = b.reduce(ReduceOp::Max, &[last], x)?;
    let highest = b.broadcast(highest, &shape, &kept)?;
    let below = b.sub(x, highest)?;
    let grown = b.unary(Unary::Exp, below)?;
    let total = b.reduce(ReduceOp::Sum, &[last], grown)?;
    let total = b.broadcast(total, &shape, &kept)?;
    b.div(grown, total)
}

fn rows(table: &mut Table) {
    for shape in [&[7, 13][..], &[2, 3, 70]] {
        table.graph(&format!("rows.softmax.{shape:?}"), &[tame(shape)], |b, x| softmax(b, x[0]));
    }
    let norm = |b: &mut Builder<'_>, x: &[ValueId]| {
        let mean = |b: &mut Builder<'_>, x: ValueId| {
            let sum = b.reduce(ReduceOp::Sum, &[1], x)?;
            let mean = b.scale(sum, 1.0 / 37.0)?;
            b.broadcast(mean, &[6, 37], &[0])
        };
        let center = mean(b, x[0])?;
        let centered = b.sub(x[0], center)?;
        let squares = b.mul(centered, centered)?;
        let variance = mean(b, squares)?;
        let floor = b.full_like(1e-5, variance)?;
        let variance = b.add(variance, floor)?;
        let deviation = b.unary(Unary::Sqrt, variance)?;
        let scaled = b.div(centered, deviation)?;
        let gain = b.broadcast(x[1], &[6, 37], &[1])?;
        b.mul(scaled, gain)
    };
    table.graph("rows.layer_norm", &[tame(&[6, 37]), tame(&[37])], norm).tolerance = 2e-5;
    let columns = |b: &mut Builder<'_>, x: &[ValueId]| {
        let curved = b.unary(Unary::Tanh, x[0])?;
        let squares = b.mul(curved, curved)?;
        b.reduce(ReduceOp::Sum, &[0, 1], squares)
    };
    table.graph("rows.bias_gradient", &[tame(&[3, 50, 17])], columns).tolerance = 2e-5;
    // One sum in two buffers.
    let twice = |b: &mut Builder<'_>, x: &[ValueId]| {
        let [left, right] = [b.reduce(ReduceOp::Sum, &[0], x[0])?, b.reduce(ReduceOp::Sum, &[0], x[0])?];
        let [left, right] = [b.reshape(left, &[1, 17])?, b.reshape(right, &[17, 1])?];
        b.matmul(left, right)
    };
    table.graph("rows.summed_twice", &[tame(&[100, 17])], twice).tolerance = 1e-4;
}

/// Pads and concatenations that are computed on, and a table that is.
fn guarded(table: &mut Table) {
    let shifted = |b: &mut Builder<'_>, x: &[ValueId]| {
        let before = b.pad(x[0], &[0, 1], &[0, 0], 0.0)?;
        let after = b.pad(x[0], &[0, 0], &[0, 1], 0.0)?;
        let difference = b.sub(before, after)?;
        b.unary(Unary::Exp, difference)
    };
    table.graph("guarded.differences", &[tame(&[5, 7])], shifted).tolerance = 1e-5;
    let rows = |b: &mut Builder<'_>, x: &[ValueId]| {
        let squares = b.mul(x[0], x[0])?;
        let picked = b.op(Gather { axis: 0 }, &[squares, x[1]])?;
        b.reduce(ReduceOp::Sum, &[0], picked)
    };
    let indices = Operand::new(DType::I32, &[8], Values::Between(-2.0, 8.0));
    table.graph("guarded.computed_table", &[tame(&[6, 5]), indices], rows).tolerance = 2e-5;
}

/// Causal attention of one head group, from plain ops.
fn attention(table: &mut Table) {
    let attend = |b: &mut Builder<'_>, x: &[ValueId]| {
        let dot = |lhs: usize, rhs: usize| DotGeneral {
            lhs_batch: vec![0],
            rhs_batch: vec![0],
            lhs_contract: vec![lhs],
            rhs_contract: vec![rhs],
            dtype: DType::F32,
        };
        let scores = b.op(dot(2, 2), &[x[0], x[1]])?;
        let scores = b.scale(scores, 0.5)?;
        let coordinates = TensorType::new(DType::I32, [2, 9, 9]);
        let query = b.op(Iota { ty: coordinates.clone(), axis: 1 }, &[])?;
        let key = b.op(Iota { ty: coordinates, axis: 2 }, &[])?;
        let visible = b.compare(Compare::Ge, query, key)?;
        let hidden = b.full_like(f64::NEG_INFINITY, scores)?;
        let masked = b.select(visible, scores, hidden)?;
        let weights = softmax(b, masked)?;
        b.op(dot(2, 1), &[weights, x[2]])
    };
    let operand = tame(&[2, 9, 4]);
    let operands = [operand.clone(), operand.clone(), operand];
    table.graph("attention.causal", &operands, attend).tolerance = 2e-5;
}

/// A batch of products with matrices of a table, and one that is added up to them: experts and their gradients.
fn chosen(table: &mut Table) {
    let numbers = Operand::new(DType::I32, &[5], Values::Between(-2.0, 5.0));
    let dot = |lhs: usize, rhs: usize| DotGeneral {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contract: vec![lhs],
        rhs_contract: vec![rhs],
        dtype: DType::F32,
    };
    for along in [1, 2] {
        let matrices = tame(if along == 1 { &[3, 9, 20] } else { &[3, 20, 9] });
        let chosen = |b: &mut Builder<'_>, x: &[ValueId]| {
            let matrices = b.op(Gather { axis: 0 }, &[x[1], x[2]])?;
            let product = b.op(dot(2, along), &[x[0], matrices])?;
            b.unary(Unary::Tanh, product)
        };
        let operands = [tame(&[5, 6, 9]), matrices, numbers.clone()];
        table.graph(&format!("chosen.matrices.{along}"), &operands, chosen).tolerance = 2e-5;
    }
    let added = |b: &mut Builder<'_>, x: &[ValueId]| {
        let products = b.op(dot(1, 1), &[x[0], x[1]])?;
        b.op(ScatterAdd { axis: 0, extent: 3 }, &[x[2], products])
    };
    let operands = [tame(&[5, 6, 9]), tame(&[5, 6, 40]), numbers];
    table.graph("chosen.added", &operands, added).tolerance = 2e-5;
}

/// One value added to one element many times: neither the value nor the place varies along the axis.
fn added_again(table: &mut Table) {
    let number = Operand::new(DType::I32, &[], Values::Between(-1.0, 4.0));
    let rows = Operand::new(DType::I32, &[4], Values::Between(-1.0, 4.0));
    let times = |b: &mut Builder<'_>, x: &[ValueId]| {
        let places = b.broadcast(x[0], &[37], &[])?;
        let values = b.broadcast(x[1], &[37], &[])?;
        b.op(ScatterAdd { axis: 0, extent: 3 }, &[places, values])
    };
    let along = |b: &mut Builder<'_>, x: &[ValueId]| {
        let places = b.broadcast(x[0], &[4, 11], &[0])?;
        let values = b.broadcast(x[1], &[4, 11, 5], &[2])?;
        b.op(ScatterAdd { axis: 0, extent: 3 }, &[places, values])
    };
    table.graph("added.number", &[number, tame(&[])], times).tolerance = 2e-5;
    table.graph("added.rows", &[rows, tame(&[5])], along).tolerance = 2e-5;
}

/// A value with users in different kernels, and one that is its own partner.
fn several_uses(table: &mut Table) {
    let shared = |b: &mut Builder<'_>, x: &[ValueId]| {
        let curved = b.unary(Unary::Tanh, x[0])?;
        let sums = b.reduce(ReduceOp::Sum, &[1], curved)?;
        let turned = b.permute(curved, &[1, 0])?;
        let product = b.matmul(curved, turned)?;
        let sums = b.broadcast(sums, &[7, 7], &[0])?;
        b.binary(Binary::Max, product, sums)
    };
    table.graph("shared.square", &[tame(&[7, 13])], shared).tolerance = 2e-5;
}

/// Truth values of a product with rows of 14: a GPU stores them two at a time, since four do not divide 14.
fn signs(table: &mut Table) {
    let signs = |b: &mut Builder<'_>, x: &[ValueId]| {
        let product = b.matmul(x[0], x[1])?;
        let zero = b.full_like(0.0, product)?;
        b.compare(Compare::Gt, product, zero)
    };
    table.graph("product.signs", &[tame(&[33, 24]), tame(&[24, 14])], signs).tolerance = 0.0;
}
