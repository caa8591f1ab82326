//! Simplifying one region: from its shape to the steps that replace it.

use super::Options;
use super::extract::{Choice, Extraction};
use super::language::{Head, Knowledge, Term, Terms};
use super::region::{Local, Place, Shape};
use super::rewriter::Rewriter;
use super::rules::{Rule, Snapshot};
use egg::Id;
use kernfusion_ir::Op;
use std::collections::BTreeMap;

/// An op of the simplified region, and the original node whose origin it takes.
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) operands: Vec<Place>,
    pub(super) origin: usize,
}

/// What replaces a region.
pub(super) struct Solution {
    /// The ops, operands first; places of nodes count steps.
    pub(super) steps: Vec<Step>,
    /// Where each output of the region stands.
    pub(super) outputs: Vec<Place>,
    /// How often each rule found something new, by its place in the list.
    pub(super) fired: Vec<usize>,
    /// The estimated cost in seconds, before and after.
    pub(super) cost: (f64, f64),
}

/// Simplifies a region.
pub(super) fn solve(shape: &Shape, rules: &[Rule], options: &Options) -> Solution {
    let mut terms = Terms::new(Knowledge { leaves: shape.leaves.clone() });
    let leaves: Vec<_> = (0..shape.leaves.len()).map(|leaf| terms.add(Term::leaf(leaf))).collect();
    let mut program: Vec<_> = leaves.iter().enumerate().map(|(leaf, &id)| (id, Term::leaf(leaf))).collect();
    let mut nodes: Vec<Id> = Vec::new();
    let add = |terms: &mut Terms, nodes: &[Id], (op, operands): &Local| {
        let id = |place: &Place| match *place {
            Place::Leaf(leaf) => leaves[leaf],
            Place::Local(local) => nodes[local],
        };
        let term = Term::op(op.clone(), &operands.iter().map(id).collect::<Vec<_>>());
        let id = terms.add(term.clone());
        (id, term)
    };
    for local in &shape.locals {
        let (id, term) = add(&mut terms, &nodes, local);
        nodes.push(id);
        program.push((id, term));
    }
    terms.rebuild();
    let roots: Vec<_> = shape.outputs.iter().map(|&output| nodes[output]).collect();
    let before = Extraction::new(&terms, &roots);
    let before = before.cost(&before.original(&terms, &program)).expect("a program has no cycle");
    for (leaf, local) in &shape.definitions {
        let (id, _) = add(&mut terms, &nodes, local);
        terms.union(leaves[*leaf], id);
    }
    terms.rebuild();
    let fired = saturate(&mut terms, rules, options);
    let extraction = Extraction::new(&terms, &roots);
    let (choice, after) = extraction.best(extraction.original(&terms, &program));
    let (steps, outputs) = Steps::of(&terms, &extraction, &choice, &nodes, &roots);
    Solution { steps, outputs, fired, cost: (before, after) }
}

/// Applies all rules until nothing is new or a limit is met; how often each was news. This is not egg's own runner: that
/// one stops by the clock and drops rules that match often, while here the same graph must give the same result, and
/// matches need attributes.
fn saturate(terms: &mut Terms, rules: &[Rule], options: &Options) -> Vec<usize> {
    let mut fired = vec![0; rules.len()];
    for _ in 0..options.iterations {
        let snapshot = Snapshot::new(terms);
        let mut news = 0;
        for (rule, fired) in rules.iter().zip(&mut fired) {
            if rule.rounding > options.rounding || terms.total_size() > options.nodes {
                continue;
            }
            let found = rule.apply(&mut Rewriter::new(terms, options.nodes), &snapshot);
            *fired += found;
            news += found;
        }
        terms.rebuild();
        eprintln!("DEBUG iteration: {} nodes, {news} news", terms.total_number_of_nodes());
        if news == 0 {
            break;
        }
    }
    fired
}

/// Writes steps.
struct Steps<'a> {
    extraction: &'a Extraction,
    choice: &'a Choice,
    /// The first original node of each class that has one.
    originals: BTreeMap<usize, usize>,
    places: BTreeMap<usize, Place>,
    steps: Vec<Step>,
}

impl<'a> Steps<'a> {
    fn of(
        terms: &Terms,
        extraction: &'a Extraction,
        choice: &'a Choice,
        nodes: &[Id],
        roots: &[Id],
    ) -> (Vec<Step>, Vec<Place>) {
        let mut originals = BTreeMap::new();
        for (number, &id) in nodes.iter().enumerate() {
            originals.entry(extraction.number(terms, id)).or_insert(number);
        }
        let mut steps = Steps { extraction, choice, originals, places: BTreeMap::new(), steps: vec![] };
        let number = |&root: &Id| extraction.number(terms, root);
        let outputs = roots.iter().map(number).map(|root| steps.place(root, 0)).collect();
        (steps.steps, outputs)
    }

    /// Where a class stands, after writing it if need be. A class without an original node has the origin of its first
    /// reader.
    fn place(&mut self, class: usize, reader: usize) -> Place {
        if let Some(&place) = self.places.get(&class) {
            return place;
        }
        let origin = self.originals.get(&class).copied().unwrap_or(reader);
        let (term, operands) = self.extraction.chosen(self.choice, class);
        let place = match &term.head {
            Head::Leaf(leaf) => Place::Leaf(*leaf),
            Head::Op(op) => {
                let operands = operands.iter().map(|&operand| self.place(operand, origin)).collect();
                self.steps.push(Step { op: op.clone(), operands, origin });
                Place::Local(self.steps.len() - 1)
            }
        };
        self.places.insert(class, place);
        place
    }
}
