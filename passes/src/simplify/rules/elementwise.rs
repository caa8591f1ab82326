//! Elementwise ops and views: ops move under broadcasts and slices, where there are fewer elements, and permutations and
//! reshapes move outward over ops, toward the product that absorbs them.

use super::Rounding::{self, Exact};
use super::TermRow;
use super::movement::reshaped_broadcast;
use crate::simplify::language::{Head, Term};
use crate::simplify::rewriter::{Rewriter, inverse};
use egg::Id;
use kernfusion_ir::{Broadcast, KernelEntry, Op};

/// A line of the table: name, class, formula, function.
type Row = (&'static str, Rounding, &'static str, fn(&mut Rewriter<'_>, &Op, &[Id]) -> Option<Id>);

#[rustfmt::skip]
pub(super) const RULES: &[Row] = &[
    ("elementwise-of-broadcasts", Exact, "f(b(x), b(y)) = b(f(x, y))", of_broadcasts),
    ("elementwise-of-permutes",   Exact, "f(p(x), p(y)) = p(f(x, y))", of_permutes),
    ("elementwise-of-reshapes",   Exact, "f(r(x), r(y)) = r(f(x, y))", of_reshapes),
];

#[rustfmt::skip]
pub(super) const TERMS: &[TermRow] = &[
    ("slice-of-elementwise",      Exact, "s(f(x, y)) = f(s(x), s(y))", "slice", slice_of_elementwise),
];

/// Over all axes along which no operand changes. Operands may change along different ones.
fn of_broadcasts(r: &mut Rewriter<'_>, op: &Op, operands: &[Id]) -> Option<Id> {
    let shape = r.shape(operands[0]);
    let mut spreads = Vec::new();
    for &operand in operands {
        let constant = r.constant(operand).is_some();
        let spread = if constant { None } else { Some(r.broadcasts(operand).into_iter().next()?) };
        spreads.push(spread);
    }
    let changes = |axis: &usize| {
        spreads.iter().flatten().any(|(spread, _): &(Broadcast, _)| spread.axes.contains(axis))
    };
    let axes: Vec<_> = (0..shape.len()).filter(changes).collect();
    if axes.len() == shape.len() || spreads.iter().all(Option::is_none) {
        return None;
    }
    let small: Vec<_> = axes.iter().map(|&axis| shape[axis]).collect();
    let mut parts = Vec::new();
    for (spread, &operand) in spreads.iter().zip(operands) {
        parts.push(match spread {
            None => r.constant_as(operand, &small)?,
            Some((spread, of)) => {
                let place = |axis: &usize| axes.iter().position(|other| other == axis).expect("it changes");
                r.broadcast(of[0], &small, &spread.axes.iter().map(place).collect::<Vec<_>>())?
            }
        });
    }
    let result = r.add(op.clone(), &parts)?;
    r.broadcast(result, &shape, &axes)
}

/// Numbers and broadcasts are permuted along with the others.
fn of_permutes(r: &mut Rewriter<'_>, op: &Op, operands: &[Id]) -> Option<Id> {
    let (permute, _) = operands.iter().find_map(|&operand| r.permutes(operand).into_iter().next())?;
    let back = inverse(&permute.axes);
    let shape: Vec<_> = back.iter().map(|&axis| r.ty(operands[0]).shape[axis]).collect();
    let mut parts = Vec::new();
    for &operand in operands {
        let same = r.permutes(operand).into_iter().find(|(other, _)| *other == permute);
        parts.push(match same {
            Some((_, of)) => of[0],
            None if r.constant(operand).is_some() => r.constant_as(operand, &shape)?,
            None if !r.broadcasts(operand).is_empty() => r.permute(operand, &back)?,
            None => return None,
        });
    }
    let result = r.add(op.clone(), &parts)?;
    r.permute(result, &permute.axes)
}

/// Numbers, and broadcasts along the axes that the reshape joins, are reshaped along with the others.
fn of_reshapes(r: &mut Rewriter<'_>, op: &Op, operands: &[Id]) -> Option<Id> {
    let (_, of) = operands.iter().find_map(|&operand| r.reshapes(operand).into_iter().next())?;
    let (shape, inner) = (r.shape(operands[0]), r.shape(of[0]));
    if shape == inner {
        return None;
    }
    let mut parts = Vec::new();
    for &operand in operands {
        let same = r.reshapes(operand).into_iter().find(|(_, of)| r.ty(of[0]).shape == inner);
        let spreads = r.broadcasts(operand);
        parts.push(match same {
            Some((_, of)) => of[0],
            None if r.constant(operand).is_some() => r.constant_as(operand, &inner)?,
            None => {
                spreads.into_iter().find_map(|(spread, of)| reshaped_broadcast(r, &spread, of[0], &inner))?
            }
        });
    }
    let result = r.add(op.clone(), &parts)?;
    r.reshape(result, &shape)
}

fn slice_of_elementwise(r: &mut Rewriter<'_>, term: &Term) -> Option<Id> {
    let Head::Op(Op::Slice(slice)) = &term.head else { return None };
    let (op, operands) = r.elementwise(term.operands[0])?;
    let mut parts = Vec::new();
    for operand in operands {
        parts.push(r.slice(operand, &slice.start, &slice.end)?);
    }
    debug_assert_eq!(op.entry(), KernelEntry::Scalar);
    r.add(op, &parts)
}
