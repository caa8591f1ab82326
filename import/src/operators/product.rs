//! Products of matrices.

use super::{Operator, one, row};
use crate::call::{Built, Call};
use kernfusion::trace::Tensor;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.mm.default",      "self · mat2",                            |call| one(call.tensor("self")?.matmul(&call.tensor("mat2")?))),
    row("aten.bmm.default",     "self · mat2 for each matrix of the stacks", |call| one(call.tensor("self")?.matmul(&call.tensor("mat2")?))),
    row("aten.addmm.default",   "beta · self + alpha · mat1 · mat2",       |call| sum(call, "mat1", "mat2")),
    row("aten.baddbmm.default", "beta · self + alpha · batch1 · batch2",   |call| sum(call, "batch1", "batch2")),
    row("aten.linear.default",  "input · weightᵀ + bias",                  linear),
    row("aten.mv.default",      "self · vec",                              |call| call.in_shape(&call.tensor("self")?.matmul(&call.tensor("vec")?.unsqueeze(1)))),
    row("aten.addmv.default",   "beta · self + alpha · mat · vec",         |call| { let column = call.tensor("vec")?.unsqueeze(1); scaled_sum(call, call.tensor("mat")?.matmul(&column).squeeze(-1)) }),
    row("aten.linalg_vecdot.default", "Σ x · y along dim",                 |call| { let product = call.as_result("x")? * call.as_result("y")?; let axis = call.axis("dim", -1, product.rank())?; one(product.sum(&[axis])) }),
    row("aten.cosine_similarity.default", "Σ x1 · x2 along dim, each divided by its length, which is at least eps", cosine),
    row("aten.dot.default",     "Σ self · tensor",                         |call| one((call.tensor("self")? * call.tensor("tensor")?).sum(&[0]))),
    row("aten.outer.default",   "each of self times each of vec2",         |call| one(call.tensor("self")?.unsqueeze(1) * call.tensor("vec2")?)),
    row("aten.matmul.default",  "self · other, of vectors, matrices or stacks", |call| one(multiplied(&call.tensor("self")?, &call.tensor("other")?))),
];

fn sum(call: &Call<'_>, left: &str, right: &str) -> Built {
    scaled_sum(call, call.tensor(left)?.matmul(&call.tensor(right)?))
}

fn cosine(call: &Call<'_>) -> Built {
    let (x, y) = (call.as_result("x1")?, call.as_result("x2")?);
    let axis = call.axis("dim", 1, x.rank().max(y.rank()))?;
    let from_end = axis - x.rank().max(y.rank()) as isize;
    let least = call.number_or("eps", 1e-8)?;
    let direction = |x: &Tensor| x / x.square().sum_keep(&[from_end]).sqrt().maximum(least);
    one((direction(&x) * direction(&y)).sum(&[from_end]))
}

fn scaled_sum(call: &Call<'_>, product: Tensor) -> Built {
    let scaled = |x: Tensor, factor: f64| if factor == 1.0 { x } else { x * factor };
    let product = scaled(product, call.number_or("alpha", 1.0)?);
    let beta = call.number_or("beta", 1.0)?;
    // With 0 even NaN is ignored.
    one(if beta == 0.0 { product } else { product + scaled(call.tensor("self")?, beta) })
}

fn linear(call: &Call<'_>) -> Built {
    let product = call.tensor("input")?.linear(&call.tensor("weight")?);
    one(match call.optional_tensor("bias")? {
        Some(bias) => product + bias,
        None => product,
    })
}

/// Vectors are rows on the left and columns on the right.
pub(super) fn multiplied(x: &Tensor, y: &Tensor) -> Tensor {
    let (is_row, is_column) = (x.rank() == 1, y.rank() == 1);
    let left = if is_row { x.unsqueeze(0) } else { x.clone() };
    let right = if is_column { y.unsqueeze(1) } else { y.clone() };
    let product = left.matmul(&right);
    let product = if is_column { product.squeeze(-1) } else { product };
    match is_row {
        true => product.squeeze(if is_column { -1 } else { -2 }),
        false => product,
    }
}
