//! Attention that was not taken apart.

use super::elementwise::dropped;
use super::{Operator, row};
use crate::call::{Built, Call, Fault, as_dtype};
use kernfusion::trace::Tensor;
use kernfusion_ir::DType;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.scaled_dot_product_attention.default", "softmax(scale · query · keyᵀ + attn_mask) · value; heads share keys if enable_gqa", attention),
    row("aten._scaled_dot_product_flash_attention_for_cpu.default", "scaled_dot_product_attention", attention),
];

fn attention(call: &Call<'_>) -> Built {
    let [query, key, value] = ["query", "key", "value"].map(|name| call.tensor(name));
    attended(call, &query?, &key?, &value?, call.flag_or("enable_gqa", false)?)
}

/// Of stacks of matrices; heads of queries may share keys and values.
pub(super) fn attended(
    call: &Call<'_>,
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    is_shared: bool,
) -> Built {
    if query.rank() < 2 || key.rank() != query.rank() || value.rank() != query.rank() {
        return Err("query, key and value are not stacks of matrices of one rank".into());
    }
    let (key, value) = match is_shared {
        true => (for_all_heads(key, query)?, for_all_heads(value, query)?),
        false => (key.clone(), value.clone()),
    };
    let scale = call.number_or("scale", 1.0 / (query.dim(-1) as f64).sqrt())?;
    let mut scores = query.matmul_transposed(&key) * scale;
    let cap = call.number_or("softcap", 0.0)?;
    if cap != 0.0 {
        scores = (scores * (1.0 / cap)).tanh() * cap;
    }
    let causal = call.flag_or("is_causal", false)?.then(|| causal(&scores));
    let mask = match (call.optional_tensor("attn_mask")?, causal) {
        (Some(mask), Some(causal)) if mask.dtype() == DType::Bool => Some(causal.and(&mask)),
        (Some(mask), Some(causal)) => Some(causal.select(&mask, f64::NEG_INFINITY)),
        (Some(mask), None) => Some(mask),
        // A row sees a column at least.
        (None, Some(causal)) => {
            scores = causal.select(&scores, f64::NEG_INFINITY);
            None
        }
        (None, None) => None,
    };
    let is_masked = mask.is_some();
    if let Some(mask) = mask {
        scores = masked(&scores, &mask);
    }
    let shares = as_dtype(&scores.softmax(-1), value.dtype());
    let shares = dropped(call, &shares, call.number_or("dropout_p", 0.0)?)?;
    let mixed = shares.matmul(&value);
    Ok(vec![match is_masked {
        // Of a row that sees nothing.
        true => scores.max_keep(&[-1]).stop_gradient().eq(LOWEST).select(0.0, mixed),
        false => mixed,
    }])
}

/// So far below all scores that `exp` of the distance is 0, and that adding a score changes nothing. Masks have −∞ instead, the least number of a type, or
/// one like −10⁴.
const LOWEST: f64 = -1e38;

/// Scores, and [`LOWEST`] where the mask is false or −∞. That is finite, so that softmax of a row that sees nothing has no NaN, whose gradient would not vanish.
fn masked(scores: &Tensor, mask: &Tensor) -> Tensor {
    let scores = if scores.dtype() == DType::F16 { scores.cast(DType::F32) } else { scores.clone() };
    match mask.dtype() {
        DType::Bool => mask.select(&scores, LOWEST),
        _ => {
            let mask = as_dtype(mask, scores.dtype());
            &scores + mask.eq(f64::NEG_INFINITY).select(LOWEST, &mask)
        }
    }
}

/// `bool[queries, keys]`: whether a key is not behind its query, both counted from the first.
fn causal(scores: &Tensor) -> Tensor {
    let shape = [scores.dim(-2), scores.dim(-1)];
    let place = |axis| scores.trace().iota(shape, axis, DType::I32);
    place(1).le(place(0))
}

/// Each head of keys or values once for each head of queries in its group.
fn for_all_heads(x: &Tensor, query: &Tensor) -> Result<Tensor, Fault> {
    if x.rank() < 3 {
        return Err("heads are the third axis from the end".into());
    }
    let (mut shape, heads, own) = (x.shape(), query.dim(-3), x.dim(-3));
    if own == 0 || !heads.is_multiple_of(own) {
        return Err(format!("{heads} heads of queries do not share {own} of keys evenly"));
    }
    let axis = shape.len() - 3;
    let mut wide = shape.clone();
    wide.insert(axis + 1, heads / own);
    shape[axis] = heads;
    Ok(x.unsqueeze(axis as isize + 1).broadcast_to(wide).reshape(shape))
}
