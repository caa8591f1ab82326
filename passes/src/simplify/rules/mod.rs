//! The rules, in tables by theme. Each is directional and says what it may change:
//!
//! * [`Rounding::Exact`]: both sides are the same number for every operand, infinities and NaNs included; only the sign of a zero may
//!   differ.
//! * [`Rounding::Reassociating`]: the same real number, rounded elsewhere. What lies in between may be larger or smaller than
//!   before, so a program whose values nearly fill the range of `f32` may leave it.
//! * [`Rounding::Finite`]: as before, where no value in between is infinite or NaN: the left side may make a NaN of 0 · ∞
//!   where the right side has the number.
//!
//! Ordinary numbers fill the range of `f16`: the mean of 3,000 sixties is scaled before it is summed. And terms of a sum that are rounded
//! to `bf16` or `f16` once more have lost digits that their sum had. So values of these two have exact rules only.
//!
//! There is no rule for commutativity as such (patterns of commutative ops match either way round), and none that
//! distributes.

mod arithmetic;
mod contraction;
mod elementwise;
mod movement;
mod reduction;
mod selection;
mod siblings;

use super::language::{Head, Term};
use super::pattern::Pattern;
use super::rewriter::Rewriter;
use egg::Id;
use kernfusion_ir::{DType, DotGeneral, KernelEntry, Op};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// What a rule may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rounding {
    /// Nothing but the sign of a zero.
    Exact,
    /// Where results are rounded.
    Reassociating,
    /// Where results are rounded, and results of which a part is infinite or NaN.
    Finite,
}

/// A rewrite rule.
pub(crate) struct Rule {
    /// Its name in reports.
    pub(crate) name: &'static str,
    /// What it may change.
    pub(crate) rounding: Rounding,
    /// Its mathematics.
    pub(crate) formula: String,
    how: How,
}

/// Every rule, whose patterns are read once.
pub(super) static ALL: LazyLock<RuleSet> = LazyLock::new(RuleSet::all);

/// Rules in the order in which they are applied.
pub struct RuleSet(Vec<Rule>);

impl RuleSet {
    /// Every rule.
    pub fn all() -> Self {
        RuleSet(all())
    }

    /// With one more: what the left pattern matches is said to equal the right one, whatever the dtype.
    ///
    /// # Panics
    /// If a pattern cannot be understood.
    pub fn with(mut self, name: &'static str, left: &'static str, right: &'static str) -> Self {
        self.0.push(pattern((name, Rounding::Exact, left, right, |_| true)));
        self
    }

    /// Those of names that `keep` wants.
    pub fn only(mut self, keep: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|rule| keep(rule.name));
        self
    }

    /// Name and mathematics of each.
    pub fn rules(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|rule| (rule.name, rule.formula.as_str()))
    }

    pub(super) fn as_slice(&self) -> &[Rule] {
        &self.0
    }
}

enum How {
    /// Left and right side, and the dtypes for which they are equal.
    Pattern(Box<(Pattern, Pattern)>, On),
    /// From a term of this name to an equal value.
    Term(&'static str, fn(&mut Rewriter<'_>, &Term) -> Option<Id>),
    /// From an elementwise op and its operands to an equal value.
    Elementwise(fn(&mut Rewriter<'_>, &Op, &[Id]) -> Option<Id>),
    /// From a product to an equal value, looking at the left operand; applied to the mirrored product as well.
    Side(fn(&mut Rewriter<'_>, &DotGeneral, Id, Id) -> Option<Id>),
    /// Looks at the whole e-graph: pairs of equal values.
    Whole(fn(&mut Rewriter<'_>) -> Vec<(Id, Id)>),
}

/// Which dtypes a pattern is for.
pub(super) type On = fn(DType) -> bool;

/// A line of a table of patterns: name, class, left side, right side, dtypes.
type PatternRow = (&'static str, Rounding, &'static str, &'static str, fn(DType) -> bool);
/// A line of a table of functions of a term: name, class, formula, name of the op, function.
type TermRow =
    (&'static str, Rounding, &'static str, &'static str, fn(&mut Rewriter<'_>, &Term) -> Option<Id>);
/// A line of a table of functions of a product: name, class, formula, function.
type SideRow =
    (&'static str, Rounding, &'static str, fn(&mut Rewriter<'_>, &DotGeneral, Id, Id) -> Option<Id>);

/// Every rule.
pub(crate) fn all() -> Vec<Rule> {
    let patterns = [arithmetic::PATTERNS, selection::PATTERNS].concat().into_iter().map(pattern);
    let terms = [
        arithmetic::TERMS,
        movement::TERMS,
        reduction::TERMS,
        contraction::TERMS,
        selection::TERMS,
        elementwise::TERMS,
    ];
    let term = |(name, rounding, formula, root, apply): TermRow| Rule {
        name,
        rounding,
        formula: formula.into(),
        how: How::Term(root, apply),
    };
    let side = |&(name, rounding, formula, apply): &SideRow| Rule {
        name,
        rounding,
        formula: formula.into(),
        how: How::Side(apply),
    };
    let elementwise = elementwise::RULES.iter().map(|&(name, rounding, formula, apply)| Rule {
        name,
        rounding,
        formula: formula.into(),
        how: How::Elementwise(apply),
    });
    let whole = siblings::RULES.iter().map(|&(name, rounding, formula, apply)| Rule {
        name,
        rounding,
        formula: formula.into(),
        how: How::Whole(apply),
    });
    let sides = contraction::SIDES.iter().map(side);
    patterns
        .chain(terms.concat().into_iter().map(term))
        .chain(sides)
        .chain(elementwise)
        .chain(whole)
        .collect()
}

fn pattern((name, rounding, left, right, on): PatternRow) -> Rule {
    let mut names = Vec::new();
    let sides = (Pattern::parse(left, &mut names), Pattern::parse(right, &mut names));
    let how = How::Pattern(Box::new(sides), on);
    Rule { name, rounding, formula: format!("{left} = {right}"), how }
}

/// The terms of an e-graph by the name of their op, each with its class, as they stood at one moment.
pub(crate) struct Snapshot {
    by_name: BTreeMap<&'static str, Vec<(Id, Term)>>,
}

impl Snapshot {
    pub(super) fn new(terms: &super::language::Terms) -> Self {
        let mut by_name: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for class in terms.classes() {
            for term in class.data.forms(&class.nodes) {
                by_name.entry(term.name()).or_default().push((class.id, term.clone()));
            }
        }
        by_name.values_mut().for_each(|terms| terms.sort());
        Snapshot { by_name }
    }

    fn of(&self, name: &str) -> &[(Id, Term)] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }
}

impl Rule {
    /// The left side and its dtypes, if the rule is a pattern.
    #[cfg(test)]
    pub(super) fn left(&self) -> Option<(&Pattern, On)> {
        match &self.how {
            How::Pattern(sides, on) => Some((&sides.0, *on)),
            _ => None,
        }
    }

    /// Whether the rule may be applied to a value with this term: if it changes what lies in between, not to values of half precision,
    /// and not to sums of nothing, which are 0 whatever their terms would have been divided by.
    fn is_for(&self, r: &Rewriter<'_>, id: Id, term: &Term) -> bool {
        let is_half = |id: Id| matches!(r.ty(id).dtype, DType::BF16 | DType::F16);
        let is_empty = |id: Id| r.ty(id).elements() == 0;
        let operands = || term.operands.iter().copied();
        self.rounding == Rounding::Exact
            || !is_half(id) && !operands().any(is_half) && (is_empty(id) || !operands().any(is_empty))
    }

    /// Applies the rule wherever it fits, as long as the e-graph is not full; how often that was news.
    pub(super) fn apply(&self, r: &mut Rewriter<'_>, snapshot: &Snapshot) -> usize {
        let mut news = 0;
        let mut found = |r: &mut Rewriter<'_>, id: Id, built: Option<Id>| {
            news += usize::from(built.is_some_and(|built| r.union(id, built)));
        };
        let is_open = |r: &Rewriter<'_>, id: Id, term: &Term| !r.is_full() && self.is_for(r, id, term);
        match &self.how {
            How::Pattern(sides, on) => {
                let (left, right) = &**sides;
                for (id, term) in snapshot.of(left.root()) {
                    let last = term.operands[term.operands.len() - 1];
                    if !is_open(r, *id, term) || !on(r.ty(last).dtype) {
                        continue;
                    }
                    let ty = r.ty(*id).clone();
                    for bound in left.matches(r, term) {
                        if r.is_full() {
                            break;
                        }
                        let built = right.build(r, &bound, &ty);
                        found(r, *id, built);
                    }
                }
            }
            How::Term(name, apply) => {
                for (id, term) in snapshot.of(name) {
                    let built = if is_open(r, *id, term) { apply(r, term) } else { None };
                    found(r, *id, built);
                }
            }
            How::Elementwise(apply) => {
                for (id, term) in snapshot.by_name.values().flatten() {
                    match &term.head {
                        Head::Op(op) if op.entry() == KernelEntry::Scalar && is_open(r, *id, term) => {
                            let built = apply(r, op, &term.operands);
                            found(r, *id, built);
                        }
                        _ => {}
                    }
                }
            }
            How::Side(apply) => {
                for (id, term) in snapshot.of("dot_general") {
                    let Head::Op(Op::DotGeneral(dot)) = &term.head else { continue };
                    if !is_open(r, *id, term) {
                        continue;
                    }
                    let (x, y) = (term.operands[0], term.operands[1]);
                    let built = apply(r, dot, x, y);
                    found(r, *id, built);
                    let order = contraction::swapped_order(dot, r.ty(x).rank(), r.ty(y).rank());
                    let built = apply(r, &contraction::swapped(dot), y, x);
                    let built = built.and_then(|built| r.permute(built, &order));
                    found(r, *id, built);
                }
            }
            How::Whole(apply) => {
                for (id, built) in apply(r) {
                    found(r, id, Some(built));
                }
            }
        }
        news
    }
}
