//! Products. x·y is any `dot_general`; each rule on the left operand also holds mirrored.

use super::Rounding::{Exact, Finite, Reassociating};
use super::{SideRow, TermRow};
use crate::simplify::language::{Head, Term};
use crate::simplify::rewriter::Rewriter;
use egg::Id;
use kernfusion_ir::{Binary, Compare, DType, DotGeneral, Gather, Op, ReduceOp, Select, Slice, Unary};

#[rustfmt::skip]
pub(super) const SIDES: &[SideRow] = &[
    ("dot-of-permute",        Exact,         "p(x)·y = p′(x·y)",                                             of_permute),
    ("dot-of-reshape",        Exact,         "r(x)·y = r′(x·y), if r leaves the shared axes alone",          of_reshape),
    ("dot-of-broadcast",      Exact,         "b(x)·y = b′(x·y), for b along axes that are not summed",       of_broadcast),
    ("dot-of-repeated-terms", Reassociating, "b(x)·y = x·(Σ y), for b along summed axes",                    of_repeated_terms),
    ("dot-of-neg",            Exact,         "(−x)·y = −(x·y)",                                              of_neg),
    ("dot-of-dot",            Reassociating, "(u·v)·y = u·(v·y)",                                            of_dot),
    ("dot-of-one-hot",        Finite,        "onehot(i)·y = i is a class ? y[i] : 0",                        of_one_hot),
];

#[rustfmt::skip]
pub(super) const TERMS: &[TermRow] = &[
    ("dot-of-scaled",         Reassociating, "(x·b(w))·y = (x·y)·b′(w), for w constant along summed axes; and y·(x·b(w))",
     "dot_general", of_scaled),
    ("dot-of-quotient",       Reassociating, "(x/b(w))·y = (x·y)/b′(w), for w constant along summed axes; and y·(x/b(w))",
     "dot_general", of_quotient),
    ("permute-of-dot",        Exact,         "p(x·y) = y·x, if p swaps their axes",                          "permute", permute_of_dot),
    ("dot-mirrored",          Exact,         "x·y = p(y·x), if only y is summed along its rows",             "dot_general", dot_mirrored),
    ("slice-of-dot",          Exact,         "s(x·y) = s′(x)·s″(y)",                                         "slice",   slice_of_dot),
    ("scale-into-dot-left",   Reassociating, "(x·y)·c = (x·c)·y",                                            "mul",     scale_left),
    ("scale-into-dot-right",  Reassociating, "(x·y)·c = x·(y·c)",                                            "mul",     scale_right),
    ("sum-of-dots",           Reassociating, "x·y + x·z = x·(y + z), and mirrored",                          "add",     sum_of_dots),
];

/// The same product with its operands exchanged; its result has the axes in the order of [`swapped_order`].
pub(super) fn swapped(dot: &DotGeneral) -> DotGeneral {
    DotGeneral {
        lhs_batch: dot.rhs_batch.clone(),
        rhs_batch: dot.lhs_batch.clone(),
        lhs_contract: dot.rhs_contract.clone(),
        rhs_contract: dot.lhs_contract.clone(),
        dtype: dot.dtype,
    }
}

/// The permutation from the axes of y·x to those of x·y, for operands of these ranks.
pub(super) fn swapped_order(dot: &DotGeneral, lhs_rank: usize, rhs_rank: usize) -> Vec<usize> {
    let (batch, left, right) =
        (dot.lhs_batch.len(), dot.lhs_free(lhs_rank).len(), dot.rhs_free(rhs_rank).len());
    let lefts = batch + right..batch + right + left;
    (0..batch).chain(lefts).chain(batch..batch + right).collect()
}

/// Where axis `axis` of the left operand (`side` 0) or of the right one stands in the result, for operands of these ranks.
fn result_axis(dot: &DotGeneral, ranks: [usize; 2], side: usize, axis: usize) -> Option<usize> {
    let (batches, lefts, rights) = (&dot.lhs_batch, dot.lhs_free(ranks[0]), dot.rhs_free(ranks[1]));
    let (own, frees, before) = match side {
        0 => (batches, &lefts, batches.len()),
        _ => (&dot.rhs_batch, &rights, batches.len() + lefts.len()),
    };
    let batch = own.iter().position(|&batch| batch == axis);
    let free = frees.iter().position(|&free| free == axis);
    batch.or(free.map(|free| before + free))
}

fn of_permute(r: &mut Rewriter<'_>, dot: &DotGeneral, x: Id, y: Id) -> Option<Id> {
    let (permute, of) = r.permutes(x).into_iter().next()?;
    let rank = permute.axes.len();
    let through = |axes: &[usize]| axes.iter().map(|&axis| permute.axes[axis]).collect::<Vec<_>>();
    let inner = DotGeneral {
        lhs_batch: through(&dot.lhs_batch),
        lhs_contract: through(&dot.lhs_contract),
        ..dot.clone()
    };
    let (batch, free) = (dot.lhs_batch.len(), inner.lhs_free(rank));
    let place = |axis: usize| free.iter().position(|&free| free == axis).expect("a free axis stays free");
    let frees = through(&dot.lhs_free(rank)).into_iter().map(|axis| batch + place(axis));
    let rights = dot.rhs_free(r.ty(y).rank()).len();
    let first = batch + free.len();
    let order: Vec<_> = (0..batch).chain(frees).chain(first..first + rights).collect();
    r.dot(inner, of[0], y, &order)
}

/// Batch and contracted axes must be axes of the operand of the reshape too; free axes may be split and joined.
fn of_reshape(r: &mut Rewriter<'_>, dot: &DotGeneral, x: Id, y: Id) -> Option<Id> {
    let (_, of) = r.reshapes(x).into_iter().next()?;
    let (to, from) = (r.shape(x), r.shape(of[0]));
    let shared = axes_in_common(&from, &to)?;
    let through = |axes: &[usize]| axes.iter().map(|&axis| shared[axis]).collect::<Option<Vec<_>>>();
    let inner = DotGeneral {
        lhs_batch: through(&dot.lhs_batch)?,
        lhs_contract: through(&dot.lhs_contract)?,
        ..dot.clone()
    };
    let shape = dot.infer_shape(r, x, y)?;
    let product = r.add(inner, &[of[0], y])?;
    r.reshape(product, &shape)
}

/// For each axis of `to` the axis of `from` that it is, if it is one by itself; `None` for tensors without elements.
fn axes_in_common(from: &[usize], to: &[usize]) -> Option<Vec<Option<usize>>> {
    if from.contains(&0) {
        return None;
    }
    let before = |shape: &[usize], axis: usize| shape[..axis].iter().product::<usize>();
    let find = |axis: usize| {
        (0..from.len()).find(|&other| {
            from[other] == to[axis] && to[axis] != 1 && before(from, other) == before(to, axis)
        })
    };
    Some((0..to.len()).map(find).collect())
}

/// The shape of a product's result.
trait InferShape {
    fn infer_shape(&self, r: &Rewriter<'_>, x: Id, y: Id) -> Option<Vec<usize>>;
}

impl InferShape for DotGeneral {
    fn infer_shape(&self, r: &Rewriter<'_>, x: Id, y: Id) -> Option<Vec<usize>> {
        Op::from(self.clone()).infer(&[r.ty(x), r.ty(y)]).ok().map(|ty| ty.shape)
    }
}

/// An axis of a product's result.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Batch(usize),
    Left(usize),
    Right(usize),
}

/// A batch axis that only y has is a free axis of y. Not where it says which matrix of a table each product reads, which is read in place as it is.
fn of_broadcast(r: &mut Rewriter<'_>, dot: &DotGeneral, x: Id, y: Id) -> Option<Id> {
    let (spread, of) = r.broadcasts(x).into_iter().next()?;
    if dot.lhs_contract.iter().any(|axis| !spread.axes.contains(axis)) || r.constant(x).is_some() {
        return None;
    }
    let (rank, rhs_rank) = (spread.shape.len(), r.ty(y).rank());
    let inside = |axis: &usize| spread.axes.iter().position(|other| other == axis);
    let (kept, freed): (Vec<_>, Vec<_>) =
        (0..dot.lhs_batch.len()).partition(|&i| inside(&dot.lhs_batch[i]).is_some());
    if freed.iter().any(|&i| is_table(r, y, dot.rhs_batch[i])) {
        return None;
    }
    let inner = DotGeneral {
        lhs_batch: kept.iter().filter_map(|&i| inside(&dot.lhs_batch[i])).collect(),
        rhs_batch: kept.iter().map(|&i| dot.rhs_batch[i]).collect(),
        lhs_contract: dot.lhs_contract.iter().filter_map(inside).collect(),
        ..dot.clone()
    };
    let lefts = inner.lhs_free(spread.axes.len()).into_iter().map(|axis| Axis::Left(spread.axes[axis]));
    let right = |axis: usize| match dot.rhs_batch.iter().position(|&batch| batch == axis) {
        Some(batch) => Axis::Batch(batch),
        None => Axis::Right(axis),
    };
    let rights = inner.rhs_free(rhs_rank).into_iter().map(right);
    let has: Vec<_> = kept.iter().map(|&i| Axis::Batch(i)).chain(lefts).chain(rights).collect();
    let wants: Vec<_> = (0..dot.lhs_batch.len())
        .map(Axis::Batch)
        .chain(dot.lhs_free(rank).into_iter().map(Axis::Left))
        .chain(dot.rhs_free(rhs_rank).into_iter().map(Axis::Right))
        .collect();
    let shape = dot.infer_shape(r, x, y)?;
    let places: Vec<_> = (0..wants.len()).filter(|&axis| has.contains(&wants[axis])).collect();
    let order: Vec<_> =
        places.iter().filter_map(|&axis| has.iter().position(|other| *other == wants[axis])).collect();
    let product = r.dot(inner, of[0], y, &order)?;
    r.broadcast(product, &shape, &places)
}

/// Whether a value is a part of a table, or a slice of that, of which this axis says which one.
fn is_table(r: &Rewriter<'_>, y: Id, axis: usize) -> bool {
    let gathered = |term: &Term| matches!(&term.head, Head::Op(Op::Gather(gather)) if gather.axis == axis);
    r.forms(y, "gather").iter().any(gathered)
        || r.forms(y, "slice").iter().any(|slice| r.forms(slice.operands[0], "gather").iter().any(gathered))
}

fn of_repeated_terms(r: &mut Rewriter<'_>, dot: &DotGeneral, x: Id, y: Id) -> Option<Id> {
    let (spread, _) = r.broadcasts(x).into_iter().next()?;
    let dropped: Vec<_> =
        (0..dot.lhs_contract.len()).filter(|&i| !spread.axes.contains(&dot.lhs_contract[i])).collect();
    if dropped.is_empty() || dot.dtype != r.ty(y).dtype {
        return None;
    }
    let gone: Vec<_> = dropped.iter().map(|&i| dot.lhs_contract[i]).collect();
    let mut summed: Vec<_> = dropped.iter().map(|&i| dot.rhs_contract[i]).collect();
    summed.sort_unstable();
    let x = r.without_axes(x, &gone)?;
    let y = r.reduce(ReduceOp::Sum, &summed, y)?;
    let less = |axes: &[usize], gone: &[usize]| {
        let stays = axes.iter().filter(|axis| !gone.contains(axis));
        stays.map(|&axis| axis - gone.iter().filter(|&&gone| gone < axis).count()).collect::<Vec<_>>()
    };
    let inner = DotGeneral {
        lhs_batch: less(&dot.lhs_batch, &gone),
        rhs_batch: less(&dot.rhs_batch, &summed),
        lhs_contract: less(&dot.lhs_contract, &gone),
        rhs_contract: less(&dot.rhs_contract, &summed),
        dtype: dot.dtype,
    };
    r.add(inner, &[x, y])
}

fn of_neg(r: &mut Rewriter<'_>, dot: &DotGeneral, x: Id, y: Id) -> Option<Id> {
    let neg = r.form(x, "neg")?;
    let product = r.add(dot.clone(), &[neg.operands[0], y])?;
    r.unary(Unary::Neg, product)
}

/// Of either operand, without exchanging them: which one is on the left, and so how results lie, is as it was.
fn of_scaled(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(Op::DotGeneral(dot)) = &term.head else { return None };
    for side in [0, 1] {
        for mul in r.forms(term.operands[side], "mul") {
            for (value, scale) in [(0, 1), (1, 0)].map(|(i, j)| (mul.operands[i], mul.operands[j])) {
                if r.constant(value).is_some() {
                    continue;
                }
                if let Some(scale) = over_result(r, dot, &term.operands, side, scale) {
                    return scaled(r, dot, &term.operands, (side, value), (Binary::Mul, scale));
                }
            }
        }
    }
    None
}

fn of_quotient(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(Op::DotGeneral(dot)) = &term.head else { return None };
    for side in [0, 1] {
        for div in r.forms(term.operands[side], "div") {
            if let Some(divisor) = over_result(r, dot, &term.operands, side, div.operands[1]) {
                return scaled(r, dot, &term.operands, (side, div.operands[0]), (Binary::Div, divisor));
            }
        }
    }
    None
}

/// The product with another operand on one side, times or over a factor.
fn scaled(
    r: &mut Rewriter<'_>,
    dot: &DotGeneral,
    operands: &[Id],
    (side, value): (usize, Id),
    (by, factor): (Binary, Id),
) -> Option<Id> {
    let mut operands = operands.to_vec();
    operands[side] = value;
    let product = r.add(dot.clone(), &operands)?;
    r.binary(by, product, factor)
}

/// A factor of an operand that is constant along summed axes, as a factor of the result.
fn over_result(
    r: &mut Rewriter<'_>,
    dot: &DotGeneral,
    operands: &[Id],
    side: usize,
    factor: Id,
) -> Option<Id> {
    let shape = dot.infer_shape(r, operands[0], operands[1])?;
    if r.ty(factor).dtype != dot.dtype {
        return None;
    }
    if r.constant(factor).is_some() {
        return r.constant_as(factor, &shape);
    }
    let ranks = [0, 1].map(|side| r.ty(operands[side]).rank());
    for (spread, of) in r.broadcasts(factor) {
        let places: Option<Vec<_>> =
            spread.axes.iter().map(|&axis| result_axis(dot, ranks, side, axis)).collect();
        if let Some(places) = places.filter(|places| places.is_sorted()) {
            return r.broadcast(of[0], &shape, &places);
        }
    }
    None
}

/// Without batch axes, if the outer product sums exactly the free axes of u or of v.
fn of_dot(r: &mut Rewriter<'_>, outer: &DotGeneral, x: Id, y: Id) -> Option<Id> {
    if !outer.lhs_batch.is_empty() {
        return None;
    }
    for (inner, of) in r.dots(x) {
        if !inner.lhs_batch.is_empty() || inner.dtype != outer.dtype || r.ty(of[0]).dtype != outer.dtype {
            continue;
        }
        let (u, v) = (of[0], of[1]);
        let lefts = inner.lhs_free(r.ty(u).rank());
        let rights = inner.rhs_free(r.ty(v).rank());
        let summed = &outer.lhs_contract;
        let sums = |first: usize, count: usize| {
            summed.len() == count && summed.iter().all(|axis| (first..first + count).contains(axis))
        };
        if sums(lefts.len(), rights.len()) && !rights.is_empty() {
            return associate(r, (&inner, u, v), (outer, y), lefts.len());
        }
        if sums(0, lefts.len()) && !lefts.is_empty() {
            return associate(r, (&swapped(&inner), v, u), (outer, y), 0);
        }
    }
    None
}

/// u·(v·y), where v's free axes stand in the result of u·v from `first`, and y sums them all.
fn associate(
    r: &mut Rewriter<'_>,
    (inner, u, v): (&DotGeneral, Id, Id),
    (outer, y): (&DotGeneral, Id),
    first: usize,
) -> Option<Id> {
    let free = inner.rhs_free(r.ty(v).rank());
    let right = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: outer.lhs_contract.iter().map(|&axis| free[axis - first]).collect(),
        rhs_contract: outer.rhs_contract.clone(),
        dtype: outer.dtype,
    };
    // What is left of v, ascending, leads the result of v·y.
    let mut left_of_v = inner.rhs_contract.clone();
    left_of_v.sort_unstable();
    let place = |axis: &usize| left_of_v.iter().position(|other| other == axis).expect("it is left");
    let whole = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: inner.lhs_contract.clone(),
        rhs_contract: inner.rhs_contract.iter().map(place).collect(),
        dtype: outer.dtype,
    };
    let right = r.add(right, &[v, y])?;
    r.add(whole, &[u, right])
}

/// A product with the rows of a unit matrix picks rows. The axes of i lead, the one-hot axis comes last and is summed.
fn of_one_hot(r: &mut Rewriter<'_>, dot: &DotGeneral, x: Id, y: Id) -> Option<Id> {
    let [axis] = dot.lhs_contract[..] else { return None };
    let last = r.ty(x).rank().checked_sub(1)?;
    if !dot.lhs_batch.is_empty() || axis != last || dot.dtype != r.ty(y).dtype {
        return None;
    }
    for (_, of) in r.casts(x) {
        let Some((one_hot_axis, indices)) = one_hot(r, of[0]) else { continue };
        if one_hot_axis != axis || r.ty(y).shape[dot.rhs_contract[0]] == 0 {
            continue;
        }
        // [y's axes before, those of i, y's axes after] → [those of i, y's other axes]
        let row = dot.rhs_contract[0];
        let rows = r.add(Gather { axis: row }, &[y, indices])?;
        let order: Vec<_> = (row..row + last).chain(0..row).chain(row + last..r.ty(rows).rank()).collect();
        let rows = r.permute(rows, &order)?;
        let ty = r.ty(rows).clone();
        let inside = in_range(r, indices, r.ty(x).shape[axis])?;
        let inside = r.broadcast(inside, &ty.shape, &(0..last).collect::<Vec<_>>())?;
        let zeros = r.full(0.0, &ty)?;
        return r.add(Select, &[inside, rows, zeros]);
    }
    None
}

/// If a mask holds where the coordinate along an axis is an index: the axis and the indices, without it.
pub(super) fn one_hot(r: &mut Rewriter<'_>, mask: Id) -> Option<(usize, Id)> {
    for eq in r.forms(mask, "eq") {
        for (coordinate, index) in [(0, 1), (1, 0)].map(|(i, j)| (eq.operands[i], eq.operands[j])) {
            let iota = r.iotas(coordinate).into_iter().next().filter(|(iota, _)| iota.ty.dtype == DType::I32);
            let Some((iota, _)) = iota else { continue };
            if let Some(indices) = r.without_axes(index, &[iota.axis]) {
                return Some((iota.axis, indices));
            }
        }
    }
    None
}

/// Whether each index is one of `0..extent`.
pub(super) fn in_range(r: &mut Rewriter<'_>, indices: Id, extent: usize) -> Option<Id> {
    let ty = r.ty(indices).clone();
    let (zero, end) = (r.full(0.0, &ty)?, r.full(extent as f64, &ty)?);
    let (above, below) = (r.add(Compare::Ge, &[indices, zero])?, r.add(Compare::Lt, &[indices, end])?);
    r.add(Binary::And, &[above, below])
}

fn permute_of_dot(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(Op::Permute(permute)) = &term.head else { return None };
    for (dot, of) in r.dots(term.operands[0]) {
        let mirrored = swapped(&dot);
        let order = swapped_order(&mirrored, r.ty(of[1]).rank(), r.ty(of[0]).rank());
        if order == permute.axes {
            return r.add(mirrored, &[of[1], of[0]]);
        }
    }
    None
}

/// The operand that lies well for the sum goes to the left.
fn dot_mirrored(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(Op::DotGeneral(dot)) = &term.head else { return None };
    let (x, y) = (term.operands[0], term.operands[1]);
    let (left, right) = (r.ty(x).rank(), r.ty(y).rank());
    let along_rows = |axes: &[usize], rank: usize| axes.contains(&rank.wrapping_sub(1));
    if along_rows(&dot.lhs_contract, left) || !along_rows(&dot.rhs_contract, right) {
        return None;
    }
    r.dot(swapped(dot), y, x, &swapped_order(dot, left, right))
}

fn slice_of_dot(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(Op::Slice(slice)) = &term.head else { return None };
    let (dot, of) = r.dots(term.operands[0]).into_iter().next()?;
    let (x, y) = (of[0], of[1]);
    let batch = dot.lhs_batch.len();
    let lefts = dot.lhs_free(r.ty(x).rank());
    let rights = dot.rhs_free(r.ty(y).rank());
    let left = part(r, x, slice, [(&dot.lhs_batch, 0), (&lefts, batch)])?;
    let right = part(r, y, slice, [(&dot.rhs_batch, 0), (&rights, batch + lefts.len())])?;
    r.add(dot, &[left, right])
}

/// The part of an operand whose axes, in two groups, stand in the result from a place on.
fn part(r: &mut Rewriter<'_>, x: Id, slice: &Slice, groups: [(&Vec<usize>, usize); 2]) -> Option<Id> {
    let (mut start, mut end) = (vec![0; r.ty(x).rank()], r.shape(x));
    for (axes, first) in groups {
        for (i, &axis) in axes.iter().enumerate() {
            (start[axis], end[axis]) = (slice.start[first + i], slice.end[first + i]);
        }
    }
    r.slice(x, &start, &end)
}

fn scale_left(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    scale_into(r, term, 0)
}

fn scale_right(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    scale_into(r, term, 1)
}

fn scale_into(r: &mut Rewriter<'_>, term: &Term, side: usize) -> Option<Id> {
    for (product, number) in [(0, 1), (1, 0)].map(|(i, j)| (term.operands[i], term.operands[j])) {
        if r.constant(number).is_none() || r.constant(product).is_some() {
            continue;
        }
        let (dot, mut of) = r.dots(product).into_iter().find(|(dot, of)| r.ty(of[0]).dtype == dot.dtype)?;
        let scale = r.constant_as(number, &r.shape(of[side]))?;
        of[side] = r.binary(Binary::Mul, of[side], scale)?;
        return r.add(dot, &of);
    }
    None
}

fn sum_of_dots(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    for (left, a) in r.dots(term.operands[0]) {
        for (right, b) in r.dots(term.operands[1]) {
            for (shared, other) in [(0, 1), (1, 0)] {
                let fits = left == right
                    && r.same(a[shared], b[shared])
                    && r.ty(a[other]) == r.ty(b[other])
                    && r.ty(a[other]).dtype == left.dtype;
                if fits {
                    let mut operands = a.clone();
                    operands[other] = r.binary(Binary::Add, a[other], b[other])?;
                    return r.add(left, &operands);
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_of_axes() {
        let dot = DotGeneral {
            lhs_batch: vec![0],
            rhs_batch: vec![0],
            lhs_contract: vec![3],
            rhs_contract: vec![1],
            dtype: DType::F32,
        };
        // x [b, m, n, k], y [b, k, o]: y·x is [b, o, m, n], x·y is [b, m, n, o].
        assert_eq!(swapped_order(&dot, 4, 3), [0, 2, 3, 1]);
        assert_eq!([0, 2, 3].map(|axis| result_axis(&dot, [4, 3], 0, axis)), [Some(0), Some(2), None]);
        assert_eq!([0, 1, 2].map(|axis| result_axis(&dot, [4, 3], 1, axis)), [Some(0), None, Some(3)]);
        assert_eq!(axes_in_common(&[2, 3, 4], &[6, 4]), Some(vec![None, Some(2)]));
    }
}
