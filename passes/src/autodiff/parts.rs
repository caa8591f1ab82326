//! Gradients of parts of a value, which slices leave as pads: where parts do not overlap, their sum is one concatenation.
//!
//! ```text
//! pad(a) + pad(b) + pad(c)   →   a ⧺ b ⧺ c
//! ```
//!
//! Simplification knows that, too, but looks at a region of the program at a time: the steps of a loop that was unrolled before it was traced lie in many.

use kernfusion_ir::{Builder, Concat, Literal, Op, Pad, Result, ValueId};

/// The same sum, with pads that do not overlap joined. Its first value is the join, if there is one.
pub(super) fn joined(b: &mut Builder<'_>, flows: &[ValueId]) -> Result<Vec<ValueId>> {
    let graph = b.graph();
    let part = |&flow: &ValueId| match &graph[flow].op {
        Op::Pad(pad) if pad.value == Literal::new(0.0) => Part::of(pad, graph[flow].operands[0]),
        _ => None,
    };
    let mut parts: Vec<_> = flows.iter().filter_map(part).collect();
    let others: Vec<_> = flows.iter().copied().filter(|flow| part(flow).is_none()).collect();
    parts.sort_by_key(|part| part.first);
    let [first, _, ..] = parts[..] else { return Ok(flows.to_vec()) };
    let ends = |part: &Part| part.first + b.ty(part.value).shape[part.axis];
    let apart = parts.windows(2).all(|pair| pair[0].axis == pair[1].axis && ends(&pair[0]) <= pair[1].first);
    if !apart {
        return Ok(flows.to_vec());
    }
    let whole = b.ty(flows[0]).clone();
    let (axis, mut at, mut operands) = (first.axis, 0, vec![]);
    let fill = |b: &mut Builder<'_>, operands: &mut Vec<ValueId>, from: usize, to: usize| -> Result<()> {
        if from < to {
            let mut shape = whole.shape.clone();
            shape[axis] = to - from;
            operands.push(b.full(0.0, &whole.with_shape(shape))?);
        }
        Ok(())
    };
    for part in &parts {
        fill(b, &mut operands, at, part.first)?;
        operands.push(part.value);
        at = part.first + b.ty(part.value).shape[axis];
    }
    fill(b, &mut operands, at, whole.shape[axis])?;
    let join = b.op(Concat { axis }, &operands)?;
    Ok(std::iter::once(join).chain(others).collect())
}

/// What a pad along one axis has of a value.
#[derive(Clone, Copy)]
struct Part {
    axis: usize,
    /// Where it begins.
    first: usize,
    value: ValueId,
}

impl Part {
    fn of(pad: &Pad, value: ValueId) -> Option<Part> {
        let mut padded = (0..pad.low.len()).filter(|&axis| pad.low[axis] + pad.high[axis] > 0);
        let (axis, None) = (padded.next()?, padded.next()) else { return None };
        Some(Part { axis, first: pad.low[axis], value })
    }
}
