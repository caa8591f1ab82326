//! The language of the e-graph: e-nodes are ops with their attributes over e-classes, leaves are values from outside the region.
//!
//! Each e-class knows the [`Facts`] that all of its nodes share. Types come from the op's own type rule and from nowhere
//! else; a rewrite that would equate values of two types is a broken rule and panics.

use super::whole;
use crate::fold;
use egg::{Analysis, DidMerge, EGraph, Id, Language};
use kernfusion_ir::{Broadcast, Constant, InputRole, KernelEntry, Literal, Op, TensorType};

/// What an e-node computes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Head {
    /// The value of this number among the region's leaves.
    Leaf(usize),
    /// An op.
    Op(Op),
}

/// An e-node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Term {
    /// What it computes.
    pub(super) head: Head,
    /// From what.
    pub(super) operands: Vec<Id>,
}

impl Term {
    /// An op over e-classes.
    pub(super) fn op(op: impl Into<Op>, operands: &[Id]) -> Self {
        Term { head: Head::Op(op.into()), operands: operands.to_vec() }
    }

    /// A value from outside.
    pub(super) fn leaf(number: usize) -> Self {
        Term { head: Head::Leaf(number), operands: vec![] }
    }

    /// Whether its two operands may be exchanged.
    pub(super) fn commutes(&self) -> bool {
        matches!(self.name(), "add" | "mul" | "max" | "min" | "and" | "or" | "xor" | "eq" | "ne")
    }

    /// The term with its operands in the opposite order.
    pub(super) fn mirrored(&self) -> Self {
        Term { head: self.head.clone(), operands: self.operands.iter().rev().copied().collect() }
    }

    /// The op's name in text form, by which rules find it.
    pub(super) fn name(&self) -> &'static str {
        match &self.head {
            Head::Leaf(_) => "leaf",
            Head::Op(op) => op.name(),
        }
    }
}

impl Language for Term {
    type Discriminant = &'static str;
    fn discriminant(&self) -> &'static str {
        self.name()
    }
    fn matches(&self, other: &Self) -> bool {
        self.head == other.head && self.operands.len() == other.operands.len()
    }
    fn children(&self) -> &[Id] {
        &self.operands
    }
    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.operands
    }
}

/// What is known of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Facts {
    /// Its type.
    pub(super) ty: TensorType,
    /// The number that each of its elements is, if it is one number everywhere.
    pub(super) constant: Option<Literal>,
    /// Whether it is a state, or parts of states moved or cast: small beside activations, and the same for a whole run.
    pub(super) weight: bool,
    /// If all elements are whole, no magnitude is larger than this; if it is ∞, they may be infinite or NaN.
    pub(super) whole: Option<Literal>,
}

impl Facts {
    /// What an op makes of values of which this is known.
    ///
    /// # Panics
    /// If the op does not take them.
    pub(super) fn of(op: &Op, operands: &[&Facts]) -> Facts {
        let types: Vec<_> = operands.iter().map(|facts| &facts.ty).collect();
        let ty = op.infer(&types).unwrap_or_else(|error| panic!("a rewrite built {}: {error}", op.name()));
        let constant = constant(op, operands, &ty);
        let moved = matches!(op.entry(), KernelEntry::View) || matches!(op, Op::Concat(_) | Op::Cast(_));
        let weight = match op {
            Op::Input(input) => input.role == InputRole::State,
            _ => moved && operands.iter().all(|facts| facts.weight),
        };
        let whole = constant.map_or_else(|| whole::bound(op, operands, &ty), whole::of_number);
        Facts { ty, constant, weight, whole }
    }

    /// The number that each element is, if the dtype has it. Such a value stands in the e-graph as that number, which is
    /// cheaper than all its other forms: no rule has anything to add.
    pub(super) fn number(&self) -> Option<Literal> {
        let has =
            |value: &Literal| value.value().is_nan() || self.ty.dtype.round(value.value()) == value.value();
        self.constant.filter(has)
    }

    /// The terms of a class that rules may look at: of a number, only itself.
    pub(super) fn forms<'a>(&self, terms: &'a [Term]) -> impl Iterator<Item = &'a Term> {
        let number = self.number().is_some();
        terms.iter().filter(move |term| !number || matches!(term.name(), "constant" | "broadcast"))
    }
}

/// The analysis: computes [`Facts`], folds constants.
#[derive(Debug, Clone, Default)]
pub(super) struct Knowledge {
    /// The facts of each leaf.
    pub(super) leaves: Vec<Facts>,
}

/// An e-graph over [`Term`]s.
pub(super) type Terms = EGraph<Term, Knowledge>;

impl Analysis<Term> for Knowledge {
    type Data = Facts;

    fn make(terms: &mut Terms, term: &Term, _: Id) -> Facts {
        match &term.head {
            Head::Leaf(number) => terms.analysis.leaves[*number].clone(),
            Head::Op(op) => {
                let operands: Vec<_> = term.operands.iter().map(|&operand| &terms[operand].data).collect();
                Facts::of(op, &operands)
            }
        }
    }

    fn merge(&mut self, into: &mut Facts, from: Facts) -> DidMerge {
        assert_eq!(into.ty, from.ty, "a rewrite equates values of two types");
        // Reassociation may round constants differently; the first stays, so that the result has one meaning.
        let constant = into.constant.or(from.constant);
        let weight = into.weight || from.weight;
        let whole = into.whole.into_iter().chain(from.whole).min_by(|x, y| x.value().total_cmp(&y.value()));
        let both = Facts { ty: from.ty.clone(), constant, weight, whole };
        let merged = DidMerge(*into != both, from != both);
        *into = both;
        merged
    }

    /// A value known to be one number also is that number.
    fn modify(terms: &mut Terms, id: Id) {
        let Some(value) = terms[id].data.number() else { return };
        let ty = terms[id].data.ty.clone();
        let mut number = terms.add(Term::op(Constant { value, dtype: ty.dtype }, &[]));
        if ty.rank() > 0 {
            number = terms.add(Term::op(Broadcast { shape: ty.shape, axes: vec![] }, &[number]));
        }
        terms.union(id, number);
    }
}

/// The number that an op makes of numbers, if its operands are such.
fn constant(op: &Op, operands: &[&Facts], ty: &TensorType) -> Option<Literal> {
    if let Op::Constant(constant) = op {
        return Some(constant.value);
    }
    let known: Option<Vec<_>> =
        operands.iter().map(|facts| Some((facts.ty.dtype, facts.constant?.value()))).collect();
    match op.entry() {
        KernelEntry::View => known.map(|operands| Literal::new(operands[0].1)),
        KernelEntry::Scalar => known.map(|operands| Literal::new(fold::apply(op, &operands, ty.dtype))),
        _ => None,
    }
}
