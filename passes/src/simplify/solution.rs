//! Simplifying one region: from its shape to the steps that replace it.

use super::Options;
use super::extract::{Extraction, Selection};
use super::language::{Head, Knowledge, Term, Terms};
use super::region::{Local, Place, Shape};
use super::rewriter::Rewriter;
use super::rules::{Rule, Snapshot};
use egg::Id;
use kernfusion_ir::Op;
use std::collections::{BTreeMap, BTreeSet};

/// An op of the simplified region, and the original node whose origin it takes.
pub(super) struct NewOp {
    pub(super) op: Op,
    pub(super) operands: Vec<Place>,
    pub(super) origin: usize,
    /// All original nodes that have its value.
    pub(super) computes: Vec<usize>,
    /// The rule that found it, if it is not what the region had.
    pub(super) rule: Option<&'static str>,
}

/// What replaces a region.
pub(super) struct Solution {
    /// The ops, operands first; places of nodes count steps.
    pub(super) steps: Vec<NewOp>,
    /// Where each output of the region stands.
    pub(super) outputs: Vec<Place>,
    /// How often each rule found something new, by its place in the list.
    pub(super) fired: Vec<usize>,
    /// The estimated cost in seconds, before and after.
    pub(super) cost: (f64, f64),
}

/// A region as an e-graph.
pub(super) struct Start {
    pub(super) terms: Terms,
    /// The class of each node.
    pub(super) nodes: Vec<Id>,
    /// The classes of the outputs.
    pub(super) roots: Vec<Id>,
    /// Leaves and nodes as they were written.
    program: Vec<(Id, Term)>,
    leaves: Vec<Id>,
    /// The leaves of which it is known how they were computed.
    defined: Vec<usize>,
}

impl Start {
    /// Each leaf and node in a class, equal ones in one.
    pub(super) fn new(shape: &Shape) -> Self {
        let mut terms = Terms::new(Knowledge { leaves: shape.leaves.clone() });
        let leaves: Vec<_> = (0..shape.leaves.len()).map(|leaf| terms.add(Term::leaf(leaf))).collect();
        let program = leaves.iter().enumerate().map(|(leaf, &id)| (id, Term::leaf(leaf))).collect();
        let mut start = Start { terms, nodes: vec![], roots: vec![], program, leaves, defined: vec![] };
        for local in &shape.locals {
            let term = start.term(local);
            let id = start.terms.add(term.clone());
            start.nodes.push(id);
            start.program.push((id, term));
        }
        start.terms.rebuild();
        start.roots = shape.outputs.iter().map(|&output| start.nodes[output]).collect();
        start
    }

    fn term(&self, (op, operands): &Local) -> Term {
        let id = |place: &Place| match *place {
            Place::Leaf(leaf) => self.leaves[leaf],
            Place::Local(local) => self.nodes[local],
        };
        Term::op(op.clone(), &operands.iter().map(id).collect::<Vec<_>>())
    }

    /// Says how leaves were computed.
    fn define(&mut self, shape: &Shape) {
        for (leaf, local) in &shape.definitions {
            self.defined.push(*leaf);
            let term = self.term(local);
            let id = self.terms.add(term);
            self.terms.union(self.leaves[*leaf], id);
        }
        self.terms.rebuild();
    }

    /// The tables to extract from, and the original program in them.
    pub(super) fn extraction(&self) -> (Extraction, Selection) {
        let extraction = Extraction::new(&self.terms, &self.roots, &self.defined);
        let original = extraction.original(&self.terms, &self.program);
        (extraction, original)
    }
}

/// Simplifies a region.
pub(super) fn solve(shape: &Shape, rules: &[Rule], options: &Options) -> Solution {
    let mut start = Start::new(shape);
    let (extraction, original) = start.extraction();
    let before = extraction.cost(&original).expect("a program has no cycle");
    start.define(shape);
    let Saturation { fired, mut finders } = saturate(&mut start.terms, rules, options);
    // What a rule found may be what the region had all along, seen later.
    for (_, term) in &start.program {
        finders.remove(&canonical(&start.terms, term));
    }
    let (extraction, original) = start.extraction();
    let (choice, after) = extraction.picked(original, options.pick);
    let (steps, outputs) = Rebuilding::of(&start, &extraction, &choice, &finders);
    Solution { steps, outputs, fired, cost: (before, after) }
}

/// What saturation did.
pub(super) struct Saturation {
    /// How often each rule was news.
    pub(super) fired: Vec<usize>,
    /// The rule that found each new term.
    pub(super) finders: Finders,
}

/// The name of the rule that found each term, by its canonical form.
pub(super) type Finders = BTreeMap<Term, &'static str>;

/// Applies all rules until nothing is new or a limit is met; how often each was news. This is not egg's own runner: that
/// one stops by the clock and drops rules that match often, while here the same graph must give the same result, and
/// matches need attributes.
pub(super) fn saturate(terms: &mut Terms, rules: &[Rule], options: &Options) -> Saturation {
    let mut fired = vec![0; rules.len()];
    let mut made = Vec::new();
    for _ in 0..options.iterations {
        let snapshot = Snapshot::new(terms);
        let mut news = 0;
        for (rule, fired) in rules.iter().zip(&mut fired) {
            if rule.rounding > options.rounding || terms.total_size() > options.nodes {
                continue;
            }
            let mut rewriter = Rewriter::new(terms, options.nodes);
            let found = rule.apply(&mut rewriter, &snapshot);
            made.extend(rewriter.into_made().into_iter().map(|term| (term, rule.name)));
            *fired += found;
            news += found;
        }
        terms.rebuild();
        if news == 0 {
            break;
        }
    }
    let mut finders = Finders::new();
    for (term, rule) in made {
        finders.entry(canonical(terms, &term)).or_insert(rule);
    }
    Saturation { fired, finders }
}

fn canonical(terms: &Terms, term: &Term) -> Term {
    let operands = term.operands.iter().map(|&operand| terms.find(operand)).collect();
    Term { head: term.head.clone(), operands }
}

/// Writes steps in the order of the original nodes where operands allow it, so that fusion and memory planning see an order that a
/// person chose. New nodes stand before their first reader.
pub(super) struct Rebuilding<'a> {
    extraction: &'a Extraction,
    choice: &'a Selection,
    finders: &'a Finders,
    /// The original node of each class whose place and origin its step takes.
    origins: BTreeMap<usize, usize>,
    /// All original nodes of each class.
    originals: BTreeMap<usize, Vec<usize>>,
    places: BTreeMap<usize, Place>,
    steps: Vec<NewOp>,
}

impl<'a> Rebuilding<'a> {
    /// The steps of a choice, and where the outputs stand.
    pub(super) fn of(
        start: &Start,
        extraction: &'a Extraction,
        choice: &'a Selection,
        finders: &'a Finders,
    ) -> (Vec<NewOp>, Vec<Place>) {
        let number = |&id: &Id| extraction.number(&start.terms, id);
        let mut originals: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, id) in start.nodes.iter().enumerate() {
            originals.entry(number(id)).or_default().push(place);
        }
        let mut origins: BTreeMap<_, _> =
            originals.iter().map(|(&class, places)| (class, places[0])).collect();
        let classes = extraction.order(choice).expect("a program has no cycle");
        // A class without an original node stands in for one with its first reader.
        for &class in classes.iter().rev() {
            let origin = origins.get(&class).copied().unwrap_or(usize::MAX);
            for &operand in extraction.chosen(choice, class).1 {
                if !originals.contains_key(&operand) {
                    let first = origins.entry(operand).or_insert(origin);
                    *first = origin.min(*first);
                }
            }
        }
        let (places, steps) = (BTreeMap::new(), vec![]);
        let mut steps = Rebuilding { extraction, choice, finders, origins, originals, places, steps };
        steps.write_all(&classes);
        let outputs = start.roots.iter().map(|root| steps.places[&number(root)]).collect();
        (steps.steps, outputs)
    }

    /// Writes whatever is ready and stands first in the original, again and again.
    fn write_all(&mut self, classes: &[usize]) {
        let mut readers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut missing: BTreeMap<usize, usize> = BTreeMap::new();
        let mut ready = BTreeSet::new();
        for &class in classes {
            let operands: BTreeSet<_> =
                self.extraction.chosen(self.choice, class).1.iter().copied().collect();
            missing.insert(class, operands.len());
            if operands.is_empty() {
                ready.insert((self.origin(class), class));
            }
            operands.into_iter().for_each(|operand| readers.entry(operand).or_default().push(class));
        }
        while let Some((_, class)) = ready.pop_first() {
            self.write(class);
            for &reader in readers.get(&class).into_iter().flatten() {
                let left = missing.get_mut(&reader).expect("a class of the program");
                *left -= 1;
                if *left == 0 {
                    ready.insert((self.origin(reader), reader));
                }
            }
        }
    }

    fn origin(&self, class: usize) -> usize {
        self.origins.get(&class).copied().unwrap_or(0)
    }

    fn write(&mut self, class: usize) {
        let (term, operands) = self.extraction.chosen(self.choice, class);
        let place = match &term.head {
            Head::Leaf(leaf) => Place::Leaf(*leaf),
            Head::Op(op) => {
                let operands = operands.iter().map(|operand| self.places[operand]).collect();
                let computes = self.originals.get(&class).cloned().unwrap_or_default();
                let rule = self.finders.get(term).copied();
                self.steps.push(NewOp {
                    op: op.clone(),
                    operands,
                    origin: self.origin(class),
                    computes,
                    rule,
                });
                Place::Local(self.steps.len() - 1)
            }
        };
        self.places.insert(class, place);
    }
}
