//! Reductions. Σ is a sum over axes, ⌈·⌉ a maximum.

use super::Rounding::{Exact, Reassociating};
use super::TermRow;
use crate::simplify::language::{Head, Term};
use crate::simplify::rewriter::Rewriter;
use egg::Id;
use kernfusion_ir::{Binary, Broadcast, DotGeneral, Op, Reduce, ReduceOp, Unary};

#[rustfmt::skip]
pub(super) const TERMS: &[TermRow] = &[
    ("reduce-nothing",        Exact,         "Σ over no axis or axes of extent 1 is a reshape",        "reduce", reduce_units),
    ("sum-neg",               Exact,         "Σ −x = −Σ x",                                            "reduce", sum_neg),
    ("max-neg",               Exact,         "⌈−x⌉ = −⌊x⌋",                                            "reduce", max_neg),
    ("max-max-axes",          Exact,         "⌈⌈x⌉⌉ over some axes, then others, is one maximum",      "reduce", extremum_of_extremum),
    ("sum-sum-axes",          Reassociating, "Σ Σ x over some axes, then others, is one sum",          "reduce", sum_of_sum),
    ("max-permute",           Exact,         "⌈p(x)⌉ = p′(⌈x⌉)",                                       "reduce", extremum_of_permute),
    ("sum-permute",           Reassociating, "Σ p(x) = p′(Σ x)",                                       "reduce", sum_of_permute),
    ("max-broadcast",         Exact,         "⌈b(x)⌉ = b′(⌈x⌉)",                                       "reduce", extremum_of_broadcast),
    ("sum-broadcast",         Reassociating, "Σ b(x) = n · Σ b′(x), for n copies",                     "reduce", sum_of_broadcast),
    ("sum-scale",             Reassociating, "Σ x·b(w) = (Σ x)·w, for w constant along the axes",      "reduce", sum_of_scaled),
    ("sum-quotient",          Reassociating, "Σ x/b(w) = (Σ x)/w, for w constant along the axes",      "reduce", sum_of_quotient),
    ("sum-of-products",       Reassociating, "Σₖ a[m,k]·b[k,n] written with broadcasts is a product",  "reduce", sum_of_products),
    ("sum-of-windowed-dot",   Reassociating, "Σ x·y over its batch is one x·y, where y is windows",    "reduce", sum_of_windowed_dot),
];

/// The reduction, its operand and that operand's shape.
fn reduction<'t>(r: &Rewriter<'_>, term: &'t Term) -> Option<(&'t Reduce, Id, Vec<usize>)> {
    let Head::Op(Op::Reduce(reduce)) = &term.head else { return None };
    Some((reduce, term.operands[0], r.shape(term.operands[0])))
}

/// As `reduction`, of a sum.
fn sum<'t>(r: &Rewriter<'_>, term: &'t Term) -> Option<(&'t Reduce, Id, Vec<usize>)> {
    reduction(r, term).filter(|(reduce, ..)| reduce.op == ReduceOp::Sum)
}

/// As `reduction`, of a maximum or minimum.
fn extremum<'t>(r: &Rewriter<'_>, term: &'t Term) -> Option<(&'t Reduce, Id, Vec<usize>)> {
    reduction(r, term).filter(|(reduce, ..)| reduce.op != ReduceOp::Sum)
}

fn reduce_units(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (reduce, x, shape) = reduction(r, term)?;
    let (long, units): (Vec<usize>, Vec<usize>) = reduce.axes.iter().partition(|&&axis| shape[axis] != 1);
    if units.is_empty() && !reduce.axes.is_empty() {
        return None;
    }
    let kept: Vec<_> = (0..shape.len()).filter(|axis| !units.contains(axis)).collect();
    let x = r.reshape(x, &kept.iter().map(|&axis| shape[axis]).collect::<Vec<_>>())?;
    let place = |axis: &usize| kept.iter().position(|kept| kept == axis).expect("a long axis stays");
    r.reduce(reduce.op, &long.iter().map(place).collect::<Vec<_>>(), x)
}

fn sum_neg(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (reduce, x, _) = sum(r, term)?;
    let neg = r.form(x, "neg")?;
    let sum = r.add(reduce.clone(), &neg.operands)?;
    r.unary(Unary::Neg, sum)
}

/// Of floats: the negative of the smallest integer is no integer.
fn max_neg(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (reduce, x, _) = extremum(r, term)?;
    let neg = r.form(x, "neg").filter(|_| r.ty(x).dtype.is_float())?;
    let op = if reduce.op == ReduceOp::Max { ReduceOp::Min } else { ReduceOp::Max };
    let other = r.reduce(op, &reduce.axes, neg.operands[0])?;
    r.unary(Unary::Neg, other)
}

fn extremum_of_extremum(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    extremum(r, term).and_then(|_| reduce_of_reduce(r, term))
}

fn sum_of_sum(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    sum(r, term).and_then(|_| reduce_of_reduce(r, term))
}

fn reduce_of_reduce(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (outer, x, _) = reduction(r, term)?;
    let (inner, of) = r.reduces(x).into_iter().find(|(inner, _)| inner.op == outer.op)?;
    let kept = inner.kept(r.ty(of[0]).rank());
    let mut axes: Vec<_> = outer.axes.iter().map(|&axis| kept[axis]).chain(inner.axes).collect();
    axes.sort_unstable();
    r.reduce(outer.op, &axes, of[0])
}

fn extremum_of_permute(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    extremum(r, term).and_then(|_| reduce_of_permute(r, term))
}

fn sum_of_permute(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    sum(r, term).and_then(|_| reduce_of_permute(r, term))
}

fn reduce_of_permute(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (reduce, x, _) = reduction(r, term)?;
    let (permute, of) = r.permutes(x).into_iter().next()?;
    let mut axes: Vec<_> = reduce.axes.iter().map(|&axis| permute.axes[axis]).collect();
    axes.sort_unstable();
    let rest = r.reduce(reduce.op, &axes, of[0])?;
    // The axes that stay, in the order of x and in that of the result.
    let from: Vec<_> = (0..permute.axes.len()).filter(|axis| !axes.contains(axis)).collect();
    let to = permute.axes.iter().filter(|axis| !axes.contains(axis));
    let place = |axis: &usize| from.iter().position(|from| from == axis).expect("the axis stays");
    r.permute(rest, &to.map(place).collect::<Vec<_>>())
}

/// The reduction of what a broadcast repeats, and how often it repeats along the reduced axes.
fn reduce_of_broadcast(r: &mut Rewriter<'_>, term: &Term) -> Option<(Id, usize)> {
    let (reduce, x, shape) = reduction(r, term)?;
    let (spread, of) = r.broadcasts(x).into_iter().next()?;
    let new: Vec<_> = reduce.axes.iter().copied().filter(|axis| !spread.axes.contains(axis)).collect();
    let copies: usize = new.iter().map(|&axis| shape[axis]).product();
    if new.is_empty() || copies == 0 {
        return None;
    }
    let inner: Vec<_> =
        (0..spread.axes.len()).filter(|&axis| reduce.axes.contains(&spread.axes[axis])).collect();
    let rest = r.reduce(reduce.op, &inner, of[0])?;
    let kept = reduce.kept(shape.len());
    let stays = spread.axes.iter().filter(|axis| !reduce.axes.contains(axis));
    let place = |axis: &usize| kept.iter().position(|kept| kept == axis).expect("the axis stays");
    let places: Vec<_> = stays.map(place).collect();
    let extents: Vec<_> = kept.iter().map(|&axis| shape[axis]).collect();
    Some((r.broadcast(rest, &extents, &places)?, copies))
}

fn extremum_of_broadcast(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    extremum(r, term)?;
    reduce_of_broadcast(r, term).map(|(value, _)| value)
}

fn sum_of_broadcast(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    sum(r, term)?;
    let (value, copies) = reduce_of_broadcast(r, term)?;
    let ty = r.ty(value).clone();
    let copies = ty.dtype.round(copies as f64);
    let copies = r.full(copies, &ty)?;
    r.binary(Binary::Mul, value, copies)
}

fn sum_of_scaled(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (reduce, x, _) = sum(r, term)?;
    for mul in r.forms(x, "mul") {
        for (value, scale) in [(0, 1), (1, 0)].map(|(i, j)| (mul.operands[i], mul.operands[j])) {
            if let Some(scale) = r.without_axes(scale, &reduce.axes) {
                let sum = r.add(reduce.clone(), &[value])?;
                return r.binary(Binary::Mul, sum, scale);
            }
        }
    }
    None
}

fn sum_of_quotient(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (reduce, x, _) = sum(r, term)?;
    for div in r.forms(x, "div") {
        if let Some(divisor) = r.without_axes(div.operands[1], &reduce.axes) {
            let sum = r.add(reduce.clone(), &div.operands[..1])?;
            return r.binary(Binary::Div, sum, divisor);
        }
    }
    None
}

/// If both factors are broadcasts, each along an axis that the other has and the sum keeps.
fn sum_of_products(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (reduce, x, shape) = sum(r, term)?;
    for mul in r.forms(x, "mul") {
        let (left, right) = (mul.operands[0], mul.operands[1]);
        if r.constant(left).is_some() || r.constant(right).is_some() {
            continue;
        }
        let spreads = (r.broadcasts(left).into_iter().next(), r.broadcasts(right).into_iter().next());
        if let (Some((a, x)), Some((b, y))) = spreads {
            return product(r, reduce, shape.len(), (&a, x[0]), (&b, y[0]));
        }
    }
    None
}

fn product(
    r: &mut Rewriter<'_>,
    reduce: &Reduce,
    rank: usize,
    (a, x): (&Broadcast, Id),
    (b, y): (&Broadcast, Id),
) -> Option<Id> {
    let place = |spread: &Broadcast, axis: usize| spread.axes.iter().position(|&other| other == axis);
    let mut dot = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![],
        rhs_contract: vec![],
        dtype: r.ty(x).dtype,
    };
    let (mut batch, mut left, mut right) = (vec![], vec![], vec![]);
    for axis in 0..rank {
        match (place(a, axis), place(b, axis), reduce.axes.contains(&axis)) {
            (Some(i), Some(j), true) => {
                dot.lhs_contract.push(i);
                dot.rhs_contract.push(j);
            }
            (Some(i), Some(j), false) => {
                dot.lhs_batch.push(i);
                dot.rhs_batch.push(j);
                batch.push(axis);
            }
            (Some(_), None, false) => left.push(axis),
            (None, Some(_), false) => right.push(axis),
            _ => return None,
        }
    }
    if left.is_empty() || right.is_empty() || dot.lhs_contract.is_empty() {
        return None;
    }
    let placed = [batch, left, right].concat();
    let kept = reduce.kept(rank);
    let order: Vec<_> =
        kept.iter().map(|axis| placed.iter().position(|other| other == axis).expect("it stays")).collect();
    r.dot(dot, x, y, &order)
}

/// How many views windows are looked for behind.
const VIEWS: usize = 3;

/// Whether a value is what windows see, perhaps with its axes in another order.
fn is_windows(r: &Rewriter<'_>, x: Id) -> bool {
    let mut values = vec![x];
    for _ in 0..=VIEWS {
        if values.iter().any(|&value| !r.windows(value).is_empty()) {
            return true;
        }
        let views = |&value: &Id| {
            let permutes = r.permutes(value).into_iter().map(|(_, of)| of[0]);
            r.reshapes(value).into_iter().map(|(_, of)| of[0]).chain(permutes)
        };
        values = values.iter().flat_map(views).collect();
    }
    false
}

/// The gradient of a convolution's weight, which all images share: a product for each of them would be in memory before they are added up. Not
/// that of what heads of attention share: their scores would be in memory for it.
fn sum_of_windowed_dot(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let (reduce, x, shape) = sum(r, term)?;
    let (dot, of) = r.dots(x).into_iter().find(|(_, of)| of.iter().any(|&operand| is_windows(r, operand)))?;
    let (summed, rest): (Vec<usize>, Vec<usize>) =
        reduce.axes.iter().partition(|&&axis| axis < dot.lhs_batch.len());
    if summed.is_empty() {
        return None;
    }
    let split = |batch: &[usize], contract: &[usize]| {
        let (of_sum, of_batch): (Vec<usize>, Vec<usize>) =
            (0..batch.len()).partition(|at| summed.contains(at));
        let axes = |places: &[usize]| places.iter().map(|&at| batch[at]).collect::<Vec<_>>();
        (axes(&of_batch), [&axes(&of_sum)[..], contract].concat())
    };
    let (lhs_batch, lhs_contract) = split(&dot.lhs_batch, &dot.lhs_contract);
    let (rhs_batch, rhs_contract) = split(&dot.rhs_batch, &dot.rhs_contract);
    let whole = DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract, dtype: dot.dtype };
    let product = r.add(whole, &of)?;
    let kept: Vec<_> = (0..shape.len()).filter(|axis| !summed.contains(axis)).collect();
    let place = |axis: &usize| kept.iter().position(|kept| kept == axis).expect("the axis stays");
    r.reduce(ReduceOp::Sum, &rest.iter().map(place).collect::<Vec<_>>(), product)
}
