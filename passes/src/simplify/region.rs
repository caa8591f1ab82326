//! Cutting a graph into regions, each of which gets an e-graph of its own.
//!
//! A region is a contiguous piece of the execution order, so whatever replaces it can stand in its place. Pieces are runs of
//! nodes of one *repeated module*: the scope up to its first number (`blocks.3`), or none. A layer's forward pass is one
//! region and its backward pass another, and equal layers have regions of equal [`Shape`], which is what results are
//! remembered by. A long run is cut where only scalars cross, so the update of each parameter is a region of its own,
//! else after [`LARGEST`] nodes.
//!
//! What costs nothing to compute again (constants, coordinates, views, and states that are kept in fewer bits than they are read
//! in) is part of each region that reads it, so that rules see through borders. Beside that a region knows how its leaves were computed from other leaves: a backward pass
//! that reads both e and e/s knows their relation.

use super::language::Facts;
use crate::fuse::widened_states;
use kernfusion_ir::{Graph, KernelEntry, Op, RandomBits, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A run of at most this many nodes is never cut.
const WHOLE: usize = 200;
/// The fewest nodes of a piece of a longer run.
const SMALLEST: usize = 12;
/// The most nodes of a piece.
const LARGEST: usize = 400;

/// An operand within a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Place {
    /// The leaf of this number.
    Leaf(usize),
    /// The node of this number.
    Local(usize),
}

/// An op within a region.
pub(super) type Local = (Op, Vec<Place>);

/// All that simplification sees of a region.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Shape {
    /// Type and kind of each leaf.
    pub(super) leaves: Vec<Facts>,
    /// The nodes, operands first. Identities of random numbers are numbered in order of appearance.
    pub(super) locals: Vec<Local>,
    /// Leaves that were computed from leaves: the leaf, and how.
    pub(super) definitions: Vec<(usize, Local)>,
    /// The nodes whose values are needed.
    pub(super) outputs: Vec<usize>,
}

/// A region with its place in the graph.
#[derive(Debug, Default)]
pub(super) struct Region {
    pub(super) shape: Shape,
    /// The values behind the leaves.
    pub(super) leaves: Vec<ValueId>,
    /// The values behind the nodes.
    pub(super) nodes: Vec<ValueId>,
    /// The identities behind the numbers of random draws.
    pub(super) random: Vec<u32>,
}

/// Cuts a graph into regions in execution order. Inputs belong to none.
pub(super) fn regions(graph: &Graph) -> Vec<Region> {
    let pieces = pieces(graph);
    let (widened, facts) = (widened_states(graph), facts(graph));
    let mut regions: Vec<_> =
        pieces.iter().map(|piece| Collector::region(graph, &widened, &facts, piece)).collect();
    // What other regions or the caller read is an output.
    let mut needed: BTreeSet<_> = graph.outputs().iter().map(|output| output.value).collect();
    needed.extend(regions.iter().flat_map(|region| region.leaves.iter().copied()));
    for (region, piece) in regions.iter_mut().zip(&pieces) {
        let own: BTreeSet<_> = piece.iter().copied().collect();
        let outputs = 0..region.nodes.len();
        let wanted =
            |local: &usize| own.contains(&region.nodes[*local]) && needed.contains(&region.nodes[*local]);
        region.shape.outputs = outputs.filter(wanted).collect();
    }
    regions
}

/// What is known of each value from all that it is computed of.
pub(super) fn facts(graph: &Graph) -> Vec<Facts> {
    let mut known: Vec<Facts> = Vec::with_capacity(graph.len());
    for id in graph.ids() {
        let operands: Vec<_> = graph[id].operands.iter().map(|operand| &known[operand.index()]).collect();
        let facts = Facts::of(&graph[id].op, &operands);
        known.push(facts);
    }
    known
}

/// The repeated module that a node belongs to.
fn module(graph: &Graph, id: ValueId) -> &str {
    let scope: &str = &graph[id].origin.scope;
    let mut end = 0;
    for part in scope.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return &scope[..end];
        }
        end += 1;
    }
    ""
}

fn pieces(graph: &Graph) -> Vec<Vec<ValueId>> {
    let mut runs: Vec<Vec<ValueId>> = Vec::new();
    for id in graph.ids().filter(|&id| !matches!(graph[id].op, Op::Input(_))) {
        let generated = graph[id].op.entry() == KernelEntry::Generated;
        match runs.last_mut() {
            Some(run) if generated || module(graph, run[0]) == module(graph, id) => run.push(id),
            _ => runs.push(vec![id]),
        }
    }
    runs.into_iter().flat_map(|run| cut(graph, run)).collect()
}

/// Cuts a long run where nothing but scalars and what is free crosses.
fn cut(graph: &Graph, run: Vec<ValueId>) -> Vec<Vec<ValueId>> {
    if run.len() <= WHOLE {
        return vec![run];
    }
    let place: BTreeMap<_, _> = run.iter().enumerate().map(|(place, &id)| (id, place)).collect();
    let mut last_use: Vec<_> = (0..run.len()).collect();
    for (user, &id) in run.iter().enumerate() {
        for operand in &graph[id].operands {
            if let Some(&place) = place.get(operand) {
                last_use[place] = user;
            }
        }
    }
    let (mut pieces, mut piece, mut reach) = (vec![], vec![], 0);
    for (at, &id) in run.iter().enumerate() {
        piece.push(id);
        if graph[id].ty.elements() != 1 && !is_free(graph, id) {
            reach = reach.max(last_use[at]);
        }
        if reach <= at && piece.len() >= SMALLEST || piece.len() == LARGEST {
            pieces.push(std::mem::take(&mut piece));
        }
    }
    pieces.push(piece);
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// Whether a value is an input or generated, or a view of such.
fn is_free(graph: &Graph, id: ValueId) -> bool {
    match graph[id].op.entry() {
        KernelEntry::View => is_free(graph, graph[id].operands[0]),
        KernelEntry::Input => true,
        KernelEntry::Generated => graph[id].operands.is_empty(),
        _ => false,
    }
}

/// Builds a region.
struct Collector<'g> {
    graph: &'g Graph,
    /// Which values are states, widened.
    widened: &'g [bool],
    facts: &'g [Facts],
    region: Region,
    places: BTreeMap<ValueId, Place>,
}

impl<'g> Collector<'g> {
    fn region(graph: &'g Graph, widened: &'g [bool], facts: &'g [Facts], piece: &[ValueId]) -> Region {
        let (region, places) = (Region::default(), BTreeMap::new());
        let mut collector = Collector { graph, widened, facts, region, places };
        for &id in piece {
            collector.local(id);
        }
        collector.definitions();
        collector.region
    }

    /// Makes a value a node of the region.
    fn local(&mut self, id: ValueId) -> Place {
        if let Some(&place) = self.places.get(&id) {
            return place;
        }
        let operands = self.graph[id].operands.iter().map(|&operand| self.place(operand)).collect();
        let op = self.numbered(&self.graph[id].op);
        self.region.shape.locals.push((op, operands));
        self.region.nodes.push(id);
        let place = Place::Local(self.region.nodes.len() - 1);
        self.places.insert(id, place);
        place
    }

    /// Where an operand stands. What costs nothing becomes a node, everything else a leaf.
    fn place(&mut self, id: ValueId) -> Place {
        if let Some(&place) = self.places.get(&id) {
            return place;
        }
        let node = &self.graph[id];
        let constant = node.op.entry() == KernelEntry::Generated && node.operands.is_empty();
        if constant || node.op.entry() == KernelEntry::View || self.widened[id.index()] {
            return self.local(id);
        }
        self.region.leaves.push(id);
        self.region.shape.leaves.push(self.facts[id.index()].clone());
        let place = Place::Leaf(self.region.leaves.len() - 1);
        self.places.insert(id, place);
        place
    }

    /// The op, with the identity of its random numbers replaced by a number.
    fn numbered(&mut self, op: &Op) -> Op {
        let Op::RandomBits(bits) = op else { return op.clone() };
        let known = self.region.random.iter().position(|&node| node == bits.node);
        let number = known.unwrap_or_else(|| {
            self.region.random.push(bits.node);
            self.region.random.len() - 1
        });
        let node = u32::try_from(number).expect("fewer draws than nodes");
        RandomBits { node, ..bits.clone() }.into()
    }

    /// Notes how leaves were computed, where that needs nothing but leaves and what is free.
    fn definitions(&mut self) {
        for leaf in 0..self.region.leaves.len() {
            let node = &self.graph[self.region.leaves[leaf]];
            if !matches!(node.op.entry(), KernelEntry::Scalar | KernelEntry::Reduction) {
                continue;
            }
            if node.operands.iter().all(|&operand| self.is_known(operand)) {
                let operands = node.operands.iter().map(|&operand| self.place(operand)).collect();
                self.region.shape.definitions.push((leaf, (node.op.clone(), operands)));
            }
        }
    }

    /// Whether a value can be had without a new leaf.
    fn is_known(&self, id: ValueId) -> bool {
        let node = &self.graph[id];
        let generated = node.op.entry() == KernelEntry::Generated && node.operands.is_empty();
        let view = node.op.entry() == KernelEntry::View;
        self.places.contains_key(&id) || generated || view && self.is_known(node.operands[0])
    }
}
