//! Choices and masks. c ? x : y is a select; a mask is one-hot along an axis if it holds where the coordinate is an index.

use super::Rounding::{Exact, Finite};
use super::contraction::{in_range, one_hot};
use super::{PatternRow, TermRow};
use crate::simplify::language::{Head, Term};
use crate::simplify::rewriter::Rewriter;
use egg::Id;
use kernfusion_ir::{Binary, DType, Op, Reduce, ReduceOp, Select};

const ANY: fn(DType) -> bool = |_| true;
const FLOAT: fn(DType) -> bool = DType::is_float;
const WHOLE: fn(DType) -> bool = |dtype| !dtype.is_float();

#[rustfmt::skip]
pub(super) const PATTERNS: &[PatternRow] = &[
    ("select-true",         Exact,  "(select 1 ?x ?y)",                            "?x",                          ANY),
    ("select-false",        Exact,  "(select 0 ?x ?y)",                            "?y",                          ANY),
    ("select-same",         Exact,  "(select ?c ?x ?x)",                           "?x",                          ANY),
    ("select-not",          Exact,  "(select (not ?c) ?x ?y)",                     "(select ?c ?y ?x)",           ANY),
    ("select-select-true",  Exact,  "(select ?c (select ?c ?x ?y) ?z)",            "(select ?c ?x ?z)",           ANY),
    ("select-select-false", Exact,  "(select ?c ?x (select ?c ?y ?z))",            "(select ?c ?x ?z)",           ANY),
    ("select-neg",          Exact,  "(neg (select ?c ?x 0))",                      "(select ?c (neg ?x) 0)",      ANY),
    ("select-times-select", Finite, "(mul (select ?c ?x 0) (select ?c ?y 0))",     "(select ?c (mul ?x ?y) 0)",   FLOAT),
    ("select-scaled",       Finite, "(mul (select ?c ?x 0) #a)",                   "(select ?c (mul ?x #a) 0)",   FLOAT),
    ("add-selects",         Exact,  "(add (select ?c ?x 0) (select ?c 0 ?y))",     "(select ?c ?x ?y)",           ANY),
    // A comparison with itself; of floats, NaN does not equal itself.
    ("eq-self",             Exact,  "(eq ?x ?x)",                                  "1",                           WHOLE),
    ("le-self",             Exact,  "(le ?x ?x)",                                  "1",                           WHOLE),
    ("ge-self",             Exact,  "(ge ?x ?x)",                                  "1",                           WHOLE),
    ("ne-self",             Exact,  "(ne ?x ?x)",                                  "0",                           WHOLE),
    ("lt-self",             Exact,  "(lt ?x ?x)",                                  "0",                           ANY),
    ("gt-self",             Exact,  "(gt ?x ?x)",                                  "0",                           ANY),
];

#[rustfmt::skip]
pub(super) const TERMS: &[TermRow] = &[
    ("mask-product",        Finite, "x · cast c = c ? x : 0",                                                "mul",    mask_product),
    ("picked-sum",          Exact,  "Σ (c ? x ± y : 0) = Σ (c ? x : 0) ± Σ (c ? y : 0), for c one-hot",      "reduce", picked_sum),
    ("picked-row",          Exact,  "Σ (c ? b(x) : 0) = i is a class ? x : 0, for c one-hot of i",           "reduce", picked_row),
    ("picked-neg",          Exact,  "Σ (c ? −x : 0) = −Σ (c ? x : 0)",                                       "reduce", picked_neg),
    ("picked-scale",        Exact,  "Σ (c ? x·b(w) : 0) = Σ (c ? x : 0) · w, for c one-hot",                 "reduce", picked_scale),
];

fn mask_product(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    for (x, mask) in [(0, 1), (1, 0)].map(|(i, j)| (term.operands[i], term.operands[j])) {
        let from_truth = |r: &Rewriter<'_>, of: &[Id]| r.ty(of[0]).dtype == DType::Bool;
        if let Some((_, of)) = r.casts(mask).into_iter().find(|(_, of)| from_truth(r, of)) {
            let zeros = r.full(0.0, &r.ty(x).clone())?;
            return r.add(Select, &[of[0], x, zeros]);
        }
    }
    None
}

/// A sum over one axis of a choice between values and 0: the sum, the mask, the values.
fn picked(r: &Rewriter<'_>, term: &Term) -> Vec<(Reduce, Id, Id)> {
    let Head::Op(Op::Reduce(reduce)) = &term.head else { return vec![] };
    if reduce.op != ReduceOp::Sum || reduce.axes.len() != 1 {
        return vec![];
    }
    let selects = r.forms(term.operands[0], "select").into_iter();
    let or_zero = selects.filter(|select| r.constant(select.operands[2]) == Some(0.0));
    or_zero.map(|select| (reduce.clone(), select.operands[0], select.operands[1])).collect()
}

/// The sum of the chosen ones among other values.
fn pick(r: &mut Rewriter<'_>, reduce: &Reduce, mask: Id, x: Id) -> Option<Id> {
    let zeros = r.full(0.0, &r.ty(x).clone())?;
    let chosen = r.add(Select, &[mask, x, zeros])?;
    r.add(reduce.clone(), &[chosen])
}

fn picked_sum(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    for (reduce, mask, values) in picked(r, term) {
        if one_hot(r, mask).is_none_or(|(axis, _)| axis != reduce.axes[0]) {
            continue;
        }
        for (name, op) in [("sub", Binary::Sub), ("add", Binary::Add)] {
            if let Some(form) = r.form(values, name) {
                let left = pick(r, &reduce, mask, form.operands[0])?;
                let right = pick(r, &reduce, mask, form.operands[1])?;
                return r.binary(op, left, right);
            }
        }
    }
    None
}

fn picked_row(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    for (reduce, mask, values) in picked(r, term) {
        let Some((axis, indices)) = one_hot(r, mask) else { continue };
        if axis != reduce.axes[0] {
            continue;
        }
        if let Some(row) = r.without_axes(values, &[axis]) {
            let inside = in_range(r, indices, r.ty(values).shape[axis])?;
            let zeros = r.full(0.0, &r.ty(row).clone())?;
            return r.add(Select, &[inside, row, zeros]);
        }
    }
    None
}

fn picked_neg(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    for (reduce, mask, values) in picked(r, term) {
        if let Some(neg) = r.form(values, "neg") {
            let sum = pick(r, &reduce, mask, neg.operands[0])?;
            return r.unary(kernfusion_ir::Unary::Neg, sum);
        }
    }
    None
}

fn picked_scale(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    for (reduce, mask, values) in picked(r, term) {
        if one_hot(r, mask).is_none_or(|(axis, _)| axis != reduce.axes[0]) {
            continue;
        }
        for mul in r.forms(values, "mul") {
            for (value, scale) in [(0, 1), (1, 0)].map(|(i, j)| (mul.operands[i], mul.operands[j])) {
                if let Some(scale) = r.without_axes(scale, &reduce.axes) {
                    let sum = pick(r, &reduce, mask, value)?;
                    return r.binary(Binary::Mul, sum, scale);
                }
            }
        }
    }
    None
}
