//! Products that share an operand: separate projections of one input become one product with the joined weights. They are
//! not the forms of one value, so these rules look at the whole e-graph. Whether joining pays is for the cost to
//! say: it copies the weights in every run.

use super::Rounding::{self, Exact};
use super::contraction::swapped;
use crate::simplify::language::{Head, Term};
use crate::simplify::rewriter::Rewriter;
use egg::Id;
use kernfusion_ir::{Binary, DotGeneral, Op, Slice, TensorType};
use std::collections::BTreeMap;

/// A line of the table: name, class, formula, function.
type Row = (&'static str, Rounding, &'static str, fn(&mut Rewriter<'_>) -> Vec<(Id, Id)>);

#[rustfmt::skip]
pub(super) const RULES: &[Row] = &[
    ("sibling-dots-right", Exact, "x·W₁, x·W₂ = parts of x·(W₁ ⧺ W₂), for parameters W", right_siblings),
    ("sibling-dots-left",  Exact, "W₁·x, W₂·x = parts of (W₁ ⧺ W₂)·x, for parameters W", left_siblings),
    ("sibling-sums",       Exact, "x[a..b] + b(v₁), x[b..c] + b(v₂) = parts of x + b(v₁ ⧺ v₂), for parameters v", sibling_sums),
];

/// A sum of a part of a value and a vector along the axis that is cut.
struct PartSum {
    first: usize,
    end: usize,
    class: Id,
    vector: Id,
}

/// Biases of joined products. The parts must make up the whole.
fn sibling_sums(r: &mut Rewriter<'_>) -> Vec<(Id, Id)> {
    let mut families: BTreeMap<(Id, usize), Vec<PartSum>> = BTreeMap::new();
    for (class, add) in r.all("add") {
        for (part, bias) in [(0, 1), (1, 0)].map(|(i, j)| (add.operands[i], add.operands[j])) {
            if let Some((whole, axis, sum)) = part_sum(r, class, part, bias) {
                families.entry((whole, axis)).or_default().push(sum);
            }
        }
    }
    let mut found = Vec::new();
    for ((whole, axis), mut parts) in families {
        parts.sort_by_key(|part| (part.first, part.class));
        parts.dedup_by_key(|part| part.first);
        let ends = std::iter::once(0).chain(parts.iter().map(|part| part.end));
        let gapless = parts.iter().map(|part| part.first).chain([r.ty(whole).shape[axis]]).eq(ends);
        if gapless && parts.len() > 1 {
            found.extend(join_sums(r, whole, axis, &parts).unwrap_or_default());
        }
    }
    found
}

fn part_sum(r: &Rewriter<'_>, class: Id, part: Id, bias: Id) -> Option<(Id, usize, PartSum)> {
    let (spread, vector) = r.broadcasts(bias).into_iter().find(|(spread, _)| spread.axes.len() == 1)?;
    let axis = spread.axes[0];
    let only = |(slice, of): &(Slice, Vec<Id>)| {
        let shape = r.shape(of[0]);
        (0..shape.len()).all(|other| other == axis || slice.end[other] - slice.start[other] == shape[other])
    };
    let (slice, of) = r.slices(part).into_iter().find(only)?;
    let sum = PartSum { first: slice.start[axis], end: slice.end[axis], class, vector: vector[0] };
    r.is_weight(vector[0]).then_some((r.find(of[0]), axis, sum))
}

fn join_sums(r: &mut Rewriter<'_>, whole: Id, axis: usize, parts: &[PartSum]) -> Option<Vec<(Id, Id)>> {
    let vector = r.concat(0, &parts.iter().map(|part| part.vector).collect::<Vec<_>>())?;
    let shape = r.shape(whole);
    let bias = r.broadcast(vector, &shape, &[axis])?;
    let sum = r.add(Binary::Add, &[whole, bias])?;
    let (mut start, mut end) = (vec![0; shape.len()], shape);
    let mut found = Vec::new();
    for part in parts {
        (start[axis], end[axis]) = (part.first, part.end);
        found.push((part.class, r.slice(sum, &start, &end)?));
    }
    Some(found)
}

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
