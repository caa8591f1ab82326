//! Products that share an operand: separate projections of one input become one product with the joined weights. They are
//! not the forms of one value, so these rules look at the whole e-graph. Whether joining pays is for the cost to
//! say: it copies the weights in every run.

use super::Rounding::{self, Exact};
use super::contraction::swapped;
use crate::simplify::language::{Head, Term};
use crate::simplify::rewriter::Rewriter;
use egg::Id;
use kernfusion_ir::{DotGeneral, Op, TensorType};
use std::collections::BTreeMap;

/// A line of the table: name, class, formula, function.
type Row = (&'static str, Rounding, &'static str, fn(&mut Rewriter<'_>) -> Vec<(Id, Id)>);

#[rustfmt::skip]
pub(super) const RULES: &[Row] = &[
    ("sibling-dots-right", Exact, "x·W₁, x·W₂ = parts of x·(W₁ ⧺ W₂), for parameters W", right_siblings),
    ("sibling-dots-left",  Exact, "W₁·x, W₂·x = parts of (W₁ ⧺ W₂)·x, for parameters W", left_siblings),
];

/// A product of a family: its class and its weight.
struct Sibling {
    class: Id,
    weight: Id,
}

/// What siblings have in common: the shared operand, the product, the weight's type but for its free axis, and that axis.
type Family = (Id, DotGeneral, TensorType, usize);

fn right_siblings(r: &mut Rewriter<'_>) -> Vec<(Id, Id)> {
    joined(r, false)
}

fn left_siblings(r: &mut Rewriter<'_>) -> Vec<(Id, Id)> {
    joined(r, true)
}

fn joined(r: &mut Rewriter<'_>, mirrored: bool) -> Vec<(Id, Id)> {
    let mut found = Vec::new();
    for ((x, dot, _, axis), siblings) in families(r, mirrored) {
        if siblings.len() > 1 {
            found.extend(join(r, (x, &dot, axis), &siblings, mirrored).unwrap_or_default());
        }
    }
    found
}

fn families(r: &Rewriter<'_>, mirrored: bool) -> BTreeMap<Family, Vec<Sibling>> {
    let mut families: BTreeMap<Family, Vec<Sibling>> = BTreeMap::new();
    for (class, Term { head, operands }) in r.all("dot_general") {
        let Head::Op(Op::DotGeneral(dot)) = head else { continue };
        let (x, weight, seen) = match mirrored {
            false => (operands[0], operands[1], dot.clone()),
            true => (operands[1], operands[0], swapped(&dot)),
        };
        let mut ty = r.ty(weight).clone();
        let [axis] = seen.rhs_free(ty.rank())[..] else { continue };
        // A joined weight is not joined again, nor are parts of one weight put together.
        let whole = r.concats(weight).is_empty() && r.slices(weight).is_empty();
        if !r.is_weight(weight) || !whole || r.is_weight(x) || !seen.rhs_batch.is_empty() {
            continue;
        }
        ty.shape[axis] = 0;
        let family = families.entry((r.find(x), seen, ty, axis)).or_default();
        if family.iter().all(|other| !r.same(other.weight, weight)) {
            family.push(Sibling { class, weight });
        }
    }
    families
}

fn join(
    r: &mut Rewriter<'_>,
    (x, dot, axis): (Id, &DotGeneral, usize),
    siblings: &[Sibling],
    mirrored: bool,
) -> Option<Vec<(Id, Id)>> {
    let weights: Vec<_> = siblings.iter().map(|sibling| sibling.weight).collect();
    let weight = r.concat(axis, &weights)?;
    let (product, place) = match mirrored {
        false => (r.add(dot.clone(), &[x, weight])?, r.ty(siblings[0].class).rank() - 1),
        true => (r.add(swapped(dot), &[weight, x])?, 0),
    };
    let (mut start, mut end) = (vec![0; r.ty(product).rank()], r.shape(product));
    let mut found = Vec::new();
    for sibling in siblings {
        end[place] = start[place] + r.ty(sibling.weight).shape[axis];
        found.push((sibling.class, r.slice(product, &start, &end)?));
        start[place] = end[place];
    }
    Some(found)
}
