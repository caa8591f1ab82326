//! Operators that give values without reading any: constants and coordinates.

use super::{Operator, one, row};
use crate::call::{Built, Call, as_dtype};
use kernfusion_ir::DType;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.full.default",         "fill_value everywhere",             |call| filled(call, call.number("fill_value")?)),
    row("aten.full_like.default",    "fill_value everywhere",             |call| filled(call, call.number("fill_value")?)),
    row("aten.new_full.default",     "fill_value everywhere",             |call| filled(call, call.number("fill_value")?)),
    row("aten.scalar_tensor.default", "s as a scalar",                    |call| filled(call, call.number("s")?)),
    row("aten.fill.Tensor",          "value everywhere",                  |call| { let ty = call.result()?; one(call.operand("value", ty.dtype)?.broadcast_to(ty.shape.clone())) }),
    row("aten.fill.Scalar",          "value everywhere",                  |call| filled(call, call.number("value")?)),
    row("aten.zero.default",         "0 everywhere",                      |call| filled(call, 0.0)),
    row("aten.empty.memory_format",  "0 everywhere, which is as good as anything", |call| filled(call, 0.0)),
    row("aten.empty_like.default",   "0 everywhere, which is as good as anything", |call| filled(call, 0.0)),
    row("aten.new_empty.default",    "0 everywhere, which is as good as anything", |call| filled(call, 0.0)),
    row("aten.zeros.default",        "0 everywhere",                      |call| filled(call, 0.0)),
    row("aten.zeros_like.default",   "0 everywhere",                      |call| filled(call, 0.0)),
    row("aten.new_zeros.default",    "0 everywhere",                      |call| filled(call, 0.0)),
    row("aten.ones.default",         "1 everywhere",                      |call| filled(call, 1.0)),
    row("aten.ones_like.default",    "1 everywhere",                      |call| filled(call, 1.0)),
    row("aten.new_ones.default",     "1 everywhere",                      |call| filled(call, 1.0)),
    row("aten.arange.default",       "0, 1, … below end",                 |call| steps(call, 0.0, 1.0)),
    row("aten.arange.start",         "start, start + 1, … below end",     |call| steps(call, call.number("start")?, 1.0)),
    row("aten.arange.start_step",    "start, start + step, … before end", |call| steps(call, call.number("start")?, call.number_or("step", 1.0)?)),
    row("aten.eye.default",          "1 on the diagonal, else 0",         diagonal),
    row("aten._assert_tensor_metadata.default", "nothing: what it checks is checked of each node", |_| Ok(vec![])),
];

fn diagonal(call: &Call<'_>) -> Built {
    let ty = call.result()?;
    if ty.rank() != 2 {
        return Err("it is a matrix".into());
    }
    let place = |axis| call.trace.iota(ty.shape.clone(), axis, DType::I32);
    one(as_dtype(&place(0).eq(place(1)), ty.dtype))
}

fn filled(call: &Call<'_>, number: f64) -> Built {
    let ty = call.result()?;
    one(call.trace.full(ty.shape.clone(), number, ty.dtype))
}

fn steps(call: &Call<'_>, start: f64, step: f64) -> Built {
    let ty = call.result()?;
    if ty.dtype == DType::Bool {
        return Err("truth values are not counted".into());
    }
    let mut steps = call.trace.iota(ty.shape.clone(), 0, ty.dtype);
    if step != 1.0 {
        steps = steps * step;
    }
    one(if start == 0.0 { steps } else { steps + start })
}
