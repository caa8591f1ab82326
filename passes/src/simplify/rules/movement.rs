//! Views, pads and concatenations. p(x) is a permutation, r(x) a reshape, b(x) a broadcast, s(x) a slice.

use super::Rounding::Exact;
use super::TermRow;
use crate::simplify::language::{Head, Term};
use crate::simplify::rewriter::{Rewriter, inverse};
use egg::Id;
use kernfusion_ir::{Binary, Broadcast, Concat, Gather, Iota, Literal, Op, Pad, Permute, Slice};

#[rustfmt::skip]
pub(super) const TERMS: &[TermRow] = &[
    ("reshape-reshape",      Exact, "r(r′(x)) = r(x)",                                          "reshape",   reshape_reshape),
    ("reshape-same",         Exact, "r(x) = x, for x of that shape",                            "reshape",   reshape_same),
    ("reshape-broadcast",    Exact, "r(b(x)) = b′(x), if r keeps the axes of x",                "reshape",   reshape_broadcast),
    ("permute-permute",      Exact, "p(q(x)) = (q∘p)(x)",                                       "permute",   permute_permute),
    ("permute-same",         Exact, "p(x) = x, for the identity",                               "permute",   permute_same),
    ("permute-units",        Exact, "p(x) = r(x), if only axes of extent 1 move",               "permute",   permute_units),
    ("permute-broadcast",    Exact, "p(b(x)) = b′(p′(x))",                                      "permute",   permute_broadcast),
    ("broadcast-broadcast",  Exact, "b(b′(x)) = b″(x)",                                         "broadcast", broadcast_broadcast),
    ("broadcast-same",       Exact, "b(x) = x, if no axis is new",                              "broadcast", broadcast_same),
    ("broadcast-units",      Exact, "b(r(x)) = b′(x), if r adds axes of extent 1",              "broadcast", broadcast_units),
    ("broadcast-neg",        Exact, "b(−x) = −b(x)",                                            "broadcast", broadcast_neg),
    ("broadcast-quotient",   Exact, "b(x/y) = b(x)/b(y), where b(y) is known",                  "broadcast", broadcast_quotient),
    ("slice-slice",          Exact, "s(s′(x)) = s″(x)",                                         "slice",     slice_slice),
    ("slice-same",           Exact, "s(x) = x, if all of x is meant",                           "slice",     slice_same),
    ("slice-broadcast",      Exact, "s(b(x)) = b(s(x))",                                        "slice",     slice_broadcast),
    ("slice-permute",        Exact, "s(p(x)) = p(s(x))",                                        "slice",     slice_permute),
    ("slice-pad",            Exact, "s(pad(x)) = s′(x), or the padding, if it lies there",      "slice",     slice_pad),
    ("slice-concat",         Exact, "s(x ⧺ y) = s′(x), if it lies there",                       "slice",     slice_concat),
    ("slice-iota",           Exact, "s(iota) = iota, if its axis is whole",                     "slice",     slice_iota),
    ("permute-iota",         Exact, "p(iota) = iota′",                                          "permute",   permute_iota),
    ("broadcast-iota",       Exact, "b(iota) = iota′",                                          "broadcast", broadcast_iota),
    ("gather-scaled",        Exact, "(x·b(y))[i] = x[i]·b′(y[i])",                              "gather",    gather_scaled),
    ("pad-pad",              Exact, "pad(pad(x)) = pad′(x), with one value",                    "pad",       pad_pad),
    ("pad-nothing",          Exact, "pad(x) = x, if nothing is added",                          "pad",       pad_nothing),
    ("concat-one",           Exact, "⧺(x) = x",                                                 "concat",    concat_one),
    ("concat-concat",        Exact, "(x ⧺ y) ⧺ z = x ⧺ y ⧺ z",                                  "concat",    concat_concat),
    ("concat-slices",        Exact, "x[a..b] ⧺ x[b..c] = x[a..c]",                              "concat",    concat_slices),
    ("sum-of-pads",          Exact, "pad(x) + pad(y) = x ⧺ y, for parts that do not overlap",   "add",       sum_of_pads),
];

/// Scales of a table's parts come with them, for products to take further.
fn gather_scaled(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(Op::Gather(Gather { axis })) = term.head else { return None };
    let (table, parts) = (term.operands[0], term.operands[1]);
    if r.ty(parts).rank() != 1 {
        return None;
    }
    for mul in r.forms(table, "mul") {
        for (x, scale) in [(0, 1), (1, 0)].map(|(i, j)| (mul.operands[i], mul.operands[j])) {
            for (spread, of) in r.broadcasts(scale) {
                let Some(own) = spread.axes.iter().position(|&other| other == axis) else { continue };
                let x = r.add(Gather { axis }, &[x, parts])?;
                let scale = r.add(Gather { axis: own }, &[of[0], parts])?;
                let shape = r.shape(x);
                let scale = r.broadcast(scale, &shape, &spread.axes)?;
                return r.binary(Binary::Mul, x, scale);
            }
        }
    }
    None
}

fn reshape_reshape(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let shape = reshape(term)?;
    let (_, of) = r.reshapes(term.operands[0]).into_iter().next()?;
    r.reshape(of[0], shape)
}

fn reshape_same(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    (r.ty(term.operands[0]).shape == *reshape(term)?).then_some(term.operands[0])
}

fn reshape_broadcast(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let shape = reshape(term)?.clone();
    let spreads = r.broadcasts(term.operands[0]);
    spreads.into_iter().find_map(|(spread, of)| reshaped_broadcast(r, &spread, of[0], &shape))
}

/// A broadcast of `x` in another shape, if the axes of x stay as they are: their place among the axes that are not 1
/// long counts from the front or from the back.
pub(super) fn reshaped_broadcast(
    r: &mut Rewriter<'_>,
    spread: &Broadcast,
    x: Id,
    shape: &[usize],
) -> Option<Id> {
    let long = |shape: &[usize]| (0..shape.len()).filter(|&axis| shape[axis] != 1).collect::<Vec<_>>();
    let (from, to) = (long(&spread.shape), long(shape));
    let equal = |(a, b): (&usize, &usize)| spread.shape[*a] == shape[*b];
    let front = from.iter().zip(&to).take_while(|&pair| equal(pair)).count();
    let back = from.iter().rev().zip(to.iter().rev()).take_while(|&pair| equal(pair)).count();
    let place = |axis: usize| {
        let place = from.iter().position(|&long| long == axis)?;
        if place < front {
            Some(to[place])
        } else if from.len() - place <= back {
            Some(to[to.len() - (from.len() - place)])
        } else {
            None
        }
    };
    let kept: Vec<_> = (0..spread.axes.len()).filter(|&i| spread.shape[spread.axes[i]] != 1).collect();
    let places: Vec<_> = kept.iter().map(|&i| place(spread.axes[i])).collect::<Option<_>>()?;
    if !places.is_sorted_by(|a, b| a < b) {
        return None;
    }
    let squeezed: Vec<_> = kept.iter().map(|&i| spread.shape[spread.axes[i]]).collect();
    let x = r.reshape(x, &squeezed)?;
    r.broadcast(x, shape, &places)
}

fn permute_permute(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let outer = permute(term)?;
    let (inner, of) = r.permutes(term.operands[0]).into_iter().next()?;
    r.permute(of[0], &outer.iter().map(|&axis| inner.axes[axis]).collect::<Vec<_>>())
}

fn permute_same(_: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    permute(term)?.iter().copied().eq(0..permute(term)?.len()).then_some(term.operands[0])
}

fn permute_units(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (axes, shape) = (permute(term)?, r.shape(term.operands[0]));
    let long = axes.iter().filter(|&&axis| shape[axis] != 1);
    let result: Vec<_> = axes.iter().map(|&axis| shape[axis]).collect();
    if long.is_sorted() { r.reshape(term.operands[0], &result) } else { None }
}

fn permute_broadcast(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let axes = permute(term)?;
    let (spread, of) = r.broadcasts(term.operands[0]).into_iter().next()?;
    let back = inverse(axes);
    let mut order: Vec<_> = (0..spread.axes.len()).collect();
    order.sort_by_key(|&axis| back[spread.axes[axis]]);
    let x = r.permute(of[0], &order)?;
    let places: Vec<_> = order.iter().map(|&axis| back[spread.axes[axis]]).collect();
    let shape: Vec<_> = axes.iter().map(|&axis| spread.shape[axis]).collect();
    r.broadcast(x, &shape, &places)
}

fn broadcast_broadcast(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let outer = broadcast(term)?;
    let (inner, of) = r.broadcasts(term.operands[0]).into_iter().next()?;
    r.broadcast(of[0], &outer.shape, &inner.axes.iter().map(|&axis| outer.axes[axis]).collect::<Vec<_>>())
}

fn broadcast_same(_: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let spread = broadcast(term)?;
    (spread.axes.len() == spread.shape.len()).then_some(term.operands[0])
}

fn broadcast_units(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let spread = broadcast(term)?;
    let (inner, of) = r.reshapes(term.operands[0]).into_iter().next()?;
    let kept: Vec<_> = (0..inner.shape.len()).filter(|&axis| inner.shape[axis] != 1).collect();
    if kept.len() == inner.shape.len() {
        return None;
    }
    let squeezed: Vec<_> = kept.iter().map(|&axis| inner.shape[axis]).collect();
    let x = r.reshape(of[0], &squeezed)?;
    r.broadcast(x, &spread.shape, &kept.iter().map(|&axis| spread.axes[axis]).collect::<Vec<_>>())
}

fn broadcast_neg(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let neg = r.form(term.operands[0], "neg")?;
    let spread = r.add(broadcast(term)?.clone(), &neg.operands)?;
    r.unary(kernfusion_ir::Unary::Neg, spread)
}

fn broadcast_quotient(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let spread = broadcast(term)?;
    for div in r.forms(term.operands[0], "div") {
        if let Some(divisor) = r.lookup(spread.clone(), &[div.operands[1]]) {
            let dividend = r.add(spread.clone(), &[div.operands[0]])?;
            return r.binary(kernfusion_ir::Binary::Div, dividend, divisor);
        }
    }
    None
}

fn slice_slice(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let outer = slice(term)?;
    let (inner, of) = r.slices(term.operands[0]).into_iter().next()?;
    let moved = |at: &[usize]| at.iter().zip(&inner.start).map(|(at, start)| at + start).collect::<Vec<_>>();
    r.slice(of[0], &moved(&outer.start), &moved(&outer.end))
}

fn slice_same(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let part = slice(term)?;
    (part.start.iter().all(|&start| start == 0) && part.end == r.ty(term.operands[0]).shape)
        .then_some(term.operands[0])
}

fn slice_broadcast(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let part = slice(term)?;
    let (spread, of) = r.broadcasts(term.operands[0]).into_iter().next()?;
    let at = |bounds: &[usize]| spread.axes.iter().map(|&axis| bounds[axis]).collect::<Vec<_>>();
    let x = r.slice(of[0], &at(&part.start), &at(&part.end))?;
    r.broadcast(x, &extents(part), &spread.axes)
}

fn slice_permute(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let part = slice(term)?;
    let (inner, of) = r.permutes(term.operands[0]).into_iter().next()?;
    let back = inverse(&inner.axes);
    let at = |bounds: &[usize]| back.iter().map(|&axis| bounds[axis]).collect::<Vec<_>>();
    let x = r.slice(of[0], &at(&part.start), &at(&part.end))?;
    r.permute(x, &inner.axes)
}

fn slice_pad(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let part = slice(term)?;
    let (pad, of) = r.pads(term.operands[0]).into_iter().next()?;
    let inner = r.shape(of[0]);
    let axes = || 0..inner.len();
    if axes().all(|axis| pad.low[axis] <= part.start[axis] && part.end[axis] <= pad.low[axis] + inner[axis]) {
        let moved = |at: &[usize]| at.iter().zip(&pad.low).map(|(at, low)| at - low).collect::<Vec<_>>();
        return r.slice(of[0], &moved(&part.start), &moved(&part.end));
    }
    let outside =
        |axis: usize| part.end[axis] <= pad.low[axis] || part.start[axis] >= pad.low[axis] + inner[axis];
    let ty = r.ty(of[0]).with_shape(extents(part));
    if axes().any(outside) { r.full(pad.value.value(), &ty) } else { None }
}

fn slice_concat(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let part = slice(term)?;
    let (Concat { axis }, parts) = r.concats(term.operands[0]).into_iter().next()?;
    let mut first = 0;
    for x in parts {
        let extent = r.ty(x).shape[axis];
        if first <= part.start[axis] && part.end[axis] <= first + extent {
            let (mut start, mut end) = (part.start.clone(), part.end.clone());
            start[axis] -= first;
            end[axis] -= first;
            return r.slice(x, &start, &end);
        }
        first += extent;
    }
    None
}

fn slice_iota(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let part = slice(term)?;
    let (iota, _) = r.iotas(term.operands[0]).into_iter().next()?;
    let whole = part.start[iota.axis] == 0;
    let ty = iota.ty.with_shape(extents(part));
    if whole { r.add(Iota { ty, axis: iota.axis }, &[]) } else { None }
}

fn permute_iota(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let axes = permute(term)?;
    let (iota, _) = r.iotas(term.operands[0]).into_iter().next()?;
    let shape: Vec<_> = axes.iter().map(|&axis| iota.ty.shape[axis]).collect();
    r.add(Iota { ty: iota.ty.with_shape(shape), axis: inverse(axes)[iota.axis] }, &[])
}

fn broadcast_iota(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let spread = broadcast(term)?;
    let (iota, _) = r.iotas(term.operands[0]).into_iter().next()?;
    r.add(Iota { ty: iota.ty.with_shape(spread.shape.clone()), axis: spread.axes[iota.axis] }, &[])
}

fn pad_pad(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let outer = pad(term)?;
    let pads = r.pads(term.operands[0]);
    let (inner, of) = pads.into_iter().find(|(inner, _)| inner.value == outer.value)?;
    let both = |a: &[usize], b: &[usize]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>();
    r.pad(of[0], &both(&outer.low, &inner.low), &both(&outer.high, &inner.high), outer.value)
}

fn pad_nothing(_: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let around = pad(term)?;
    around.low.iter().chain(&around.high).all(|&extent| extent == 0).then_some(term.operands[0])
}

fn concat_one(_: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let [only] = term.operands[..] else { return None };
    Some(only)
}

/// What has no elements along the axis is left out: it may be concatenated of itself any number of times.
fn concat_concat(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(Op::Concat(Concat { axis })) = &term.head else { return None };
    let mut parts = Vec::new();
    for &part in &term.operands {
        match r.concats(part).into_iter().find(|(inner, _)| inner.axis == *axis) {
            Some((_, inner)) => parts.extend(inner),
            None => parts.push(part),
        }
    }
    parts.retain(|&part| r.shape(part)[*axis] > 0);
    match parts[..] {
        [] => Some(term.operands[0]),
        _ if parts == term.operands => None,
        _ => r.concat(*axis, &parts),
    }
}

fn concat_slices(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(Op::Concat(Concat { axis })) = &term.head else { return None };
    for (first, of) in r.slices(term.operands[0]) {
        let mut end = first.end.clone();
        let joins = |r: &Rewriter<'_>, part: Id, end: &mut Vec<usize>| {
            let next = r.slices(part).into_iter().find(|(next, other)| {
                let beside = (0..end.len()).all(|i| {
                    if i == *axis {
                        next.start[i] == end[i]
                    } else {
                        next.start[i] == first.start[i] && next.end[i] == end[i]
                    }
                });
                beside && r.same(other[0], of[0])
            });
            next.map(|(next, _)| *end = next.end)
        };
        if term.operands[1..].iter().all(|&part| joins(r, part, &mut end).is_some()) {
            return r.slice(of[0], &first.start, &end);
        }
    }
    None
}

/// A part of a sum of pads: where it begins along the axis, how long it is, and what stands there.
struct Part {
    first: usize,
    extent: usize,
    value: Id,
}

/// Collects all pads of a tree of additions; with zeros in the gaps they are one concatenation.
fn sum_of_pads(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let mut pads = Vec::new();
    if !term.operands.iter().all(|&operand| collect_pads(r, operand, DEEPEST, &mut pads)) {
        return None;
    }
    let whole = r.ty(term.operands[0]).clone();
    let padded = |(pad, _): &(Pad, Id)| (0..whole.rank()).find(|&axis| pad.low[axis] + pad.high[axis] > 0);
    let axis = padded(&pads[0])?;
    let along = |(pad, _): &(Pad, Id)| {
        (0..whole.rank()).all(|other| other == axis || pad.low[other] + pad.high[other] == 0)
    };
    if !pads.iter().all(along) {
        return None;
    }
    let part = |(pad, value): &(Pad, Id)| Part {
        first: pad.low[axis],
        extent: whole.shape[axis] - pad.low[axis] - pad.high[axis],
        value: *value,
    };
    let mut parts: Vec<_> = pads.iter().map(part).collect();
    parts.sort_by_key(|part| part.first);
    let (mut operands, mut at) = (Vec::new(), 0);
    for part in parts {
        let gap = part.first.checked_sub(at)?;
        if gap > 0 {
            operands.push(zeros(r, &whole, axis, gap)?);
        }
        operands.push(part.value);
        at = part.first + part.extent;
    }
    if at < whole.shape[axis] {
        operands.push(zeros(r, &whole, axis, whole.shape[axis] - at)?);
    }
    r.concat(axis, &operands)
}

/// The deepest tree of additions that is looked at: a value may be among its own forms' operands.
const DEEPEST: usize = 12;

/// Adds the pads with zeros in a tree of additions to a list; whether there is nothing else in it.
fn collect_pads(r: &Rewriter<'_>, id: Id, depth: usize, pads: &mut Vec<(Pad, Id)>) -> bool {
    if let Some((pad, of)) = r.pads(id).into_iter().find(|(pad, _)| pad.value == Literal::new(0.0)) {
        pads.push((pad, of[0]));
        return true;
    }
    let add = if depth > 0 { r.form(id, "add") } else { None };
    add.is_some_and(|add| add.operands.iter().all(|&operand| collect_pads(r, operand, depth - 1, pads)))
}

fn zeros(r: &mut Rewriter<'_>, whole: &kernfusion_ir::TensorType, axis: usize, extent: usize) -> Option<Id> {
    let mut shape = whole.shape.clone();
    shape[axis] = extent;
    r.full(0.0, &whole.with_shape(shape))
}

fn extents(slice: &Slice) -> Vec<usize> {
    slice.start.iter().zip(&slice.end).map(|(start, end)| end - start).collect()
}

fn reshape(term: &Term) -> Option<&Vec<usize>> {
    if let Head::Op(Op::Reshape(op)) = &term.head { Some(&op.shape) } else { None }
}

fn permute(term: &Term) -> Option<&Vec<usize>> {
    if let Head::Op(Op::Permute(Permute { axes })) = &term.head { Some(axes) } else { None }
}

fn broadcast(term: &Term) -> Option<&Broadcast> {
    if let Head::Op(Op::Broadcast(op)) = &term.head { Some(op) } else { None }
}

fn slice(term: &Term) -> Option<&Slice> {
    if let Head::Op(Op::Slice(op)) = &term.head { Some(op) } else { None }
}

fn pad(term: &Term) -> Option<&Pad> {
    if let Head::Op(Op::Pad(op)) = &term.head { Some(op) } else { None }
}
