//! The graph: tensor programs in SSA form over a petgraph stable graph.
//!
//! Invariants (checked by [`Graph::verify`](crate::Graph::verify)): ids ascend in execution order, so an operand's id is smaller than its
//! user's; every type is what the op's type rule says; edges mirror the operand lists; names are unique.
//! Passes do not edit a graph in place: they rebuild it, with fresh ids.

use crate::{Collective, InputRole, IrError, Lineage, Op, Origin, Result, TensorType};
use petgraph::Direction;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;
use serde::{Deserialize, Serialize};
use std::ops::Index;
use std::sync::Arc;

/// A node of a graph and its one result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(u32);

impl ValueId {
    /// The value's place in execution order, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The value at a place in execution order.
    pub fn from_index(index: usize) -> Self {
        ValueId(u32::try_from(index).expect("a graph has fewer than 2³² nodes"))
    }

    fn node(self) -> NodeIndex {
        NodeIndex::new(self.index())
    }
}

/// An op with its operands, type and origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The primitive.
    pub op: Op,
    /// Its operands, in order.
    pub operands: Vec<ValueId>,
    /// The type of its result.
    pub ty: TensorType,
    /// The user's line and scope.
    #[serde(default)]
    pub origin: Origin,
}

/// A named result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Unique among outputs. If `updates_state`, the name of the state input that takes the value after a run.
    pub name: String,
    /// The value.
    pub value: ValueId,
    /// Whether this is the new value of a state rather than a result for the caller.
    pub updates_state: bool,
}

/// A tensor program.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "Flat", into = "Flat")]
pub struct Graph {
    /// A name for dumps.
    pub name: String,
    /// An edge runs from an operand to its user; its weight is the operand's slot.
    nodes: StableDiGraph<Node, usize>,
    outputs: Vec<Output>,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// Appends an op, inferring its type.
    ///
    /// # Errors
    /// If the op does not accept the operands, with both shapes and the origin.
    pub fn add(&mut self, op: impl Into<Op>, operands: &[ValueId], origin: Origin) -> Result<ValueId> {
        let op = op.into();
        let types: Vec<_> = operands.iter().map(|&operand| &self[operand].ty).collect();
        let ty = op.infer(&types).map_err(|reason| IrError::Type {
            op: op.name(),
            operands: types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            reason,
            origin: origin.clone(),
        })?;
        Ok(self.add_unchecked(Node { op, operands: operands.to_vec(), ty, origin }))
    }

    /// Appends a node as it is; [`verify`](crate::Graph::verify) finds what is wrong with it. Edges to operands that
    /// do not exist are left out.
    pub fn add_unchecked(&mut self, node: Node) -> ValueId {
        let operands = node.operands.clone();
        let id = self.nodes.add_node(node);
        for (slot, operand) in operands.into_iter().enumerate() {
            if self.nodes.contains_node(operand.node()) {
                self.nodes.add_edge(operand.node(), id, slot);
            }
        }
        ValueId::from_index(id.index())
    }

    /// Gives every node itself as its source, so that passes, which carry origins on, tell what became of it:
    /// [`Origin::sources`] of a later graph are ids of this one. Marks of an earlier graph are forgotten.
    pub fn mark(&mut self) {
        for id in self.ids() {
            let lineage = Lineage { sources: vec![id], ..Lineage::default() };
            self.nodes[id.node()].origin.lineage = Some(Arc::new(lineage));
        }
    }

    /// Says that a value has that of another one of this origin, which it replaces. Only marks change.
    pub fn absorb(&mut self, value: ValueId, replaced: &Origin) {
        self.nodes[value.node()].origin.absorb(replaced);
    }

    /// Names a result.
    pub fn output(&mut self, name: impl Into<String>, value: ValueId) {
        self.outputs.push(Output { name: name.into(), value, updates_state: false });
    }

    /// Says which value a state takes after a run.
    pub fn update(&mut self, state: impl Into<String>, value: ValueId) {
        self.outputs.push(Output { name: state.into(), value, updates_state: true });
    }

    /// Results and state updates, in the order in which they were named.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.node_count()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values, in execution order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = ValueId> + use<> {
        (0..self.len()).map(ValueId::from_index)
    }

    /// How many ranks run this program side by side, as its collectives say it; 1 if there are none.
    pub fn ranks(&self) -> usize {
        let ranks = self.ids().filter_map(|id| match self[id].op {
            Op::Collective(Collective { ranks, .. }) => Some(ranks),
            _ => None,
        });
        ranks.max().unwrap_or(1)
    }

    /// Checks that no other rank is needed to evaluate it.
    pub(crate) fn one_rank(&self) -> Result<()> {
        match self.ranks() {
            1 => Ok(()),
            ranks => Err(IrError::Ranks { ranks, given: 1 }),
        }
    }

    /// Whether each value is one of `roots`, or is needed to compute one. Values that are known need none of their
    /// operands.
    pub fn needed(
        &self,
        roots: impl IntoIterator<Item = ValueId>,
        is_known: impl Fn(ValueId) -> bool,
    ) -> Vec<bool> {
        let mut needed = vec![false; self.len()];
        roots.into_iter().for_each(|root| needed[root.index()] = true);
        for id in self.ids().rev() {
            if needed[id.index()] && !is_known(id) {
                self[id].operands.iter().for_each(|operand| needed[operand.index()] = true);
            }
        }
        needed
    }

    /// The users of a value with the slot in which each reads it, by (user, slot).
    pub fn users(&self, value: ValueId) -> Vec<(ValueId, usize)> {
        let edges = self.nodes.edges_directed(value.node(), Direction::Outgoing);
        let mut users: Vec<_> =
            edges.map(|edge| (ValueId::from_index(edge.target().index()), *edge.weight())).collect();
        users.sort();
        users
    }

    /// The operands as the edges have them, for the verifier.
    pub(crate) fn edge_operands(&self, value: ValueId) -> Vec<(usize, ValueId)> {
        let edges = self.nodes.edges_directed(value.node(), Direction::Incoming);
        let mut operands: Vec<_> =
            edges.map(|edge| (*edge.weight(), ValueId::from_index(edge.source().index()))).collect();
        operands.sort();
        operands
    }

    /// Breaks the mirroring of operands by edges, to test the verifier.
    #[cfg(test)]
    pub(crate) fn drop_edges(&mut self, value: ValueId) {
        self.nodes.retain_edges(|nodes, edge| {
            nodes.edge_endpoints(edge).is_none_or(|(_, user)| user != value.node())
        });
    }

    /// Whether a value exists.
    pub fn contains(&self, value: ValueId) -> bool {
        value.index() < self.len()
    }

    /// All inputs with their names and roles, in order.
    pub fn inputs(&self) -> impl Iterator<Item = (ValueId, &str, InputRole)> {
        self.ids().filter_map(|id| match &self[id].op {
            Op::Input(input) => Some((id, input.name.as_str(), input.role)),
            _ => None,
        })
    }

    /// The input of this name.
    pub fn input(&self, name: &str) -> Option<ValueId> {
        self.inputs().find(|(_, other, _)| *other == name).map(|(id, ..)| id)
    }

    /// The value of the output of this name.
    pub fn output_value(&self, name: &str) -> Option<ValueId> {
        self.outputs.iter().find(|output| output.name == name).map(|output| output.value)
    }
}

impl Index<ValueId> for Graph {
    type Output = Node;
    fn index(&self, id: ValueId) -> &Node {
        &self.nodes[id.node()]
    }
}

impl PartialEq for Graph {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.outputs == other.outputs
            && self.len() == other.len()
            && self.ids().all(|id| self[id] == other[id])
    }
}

/// The JSON form: nodes in execution order.
#[derive(Serialize, Deserialize)]
struct Flat {
    name: String,
    nodes: Vec<Node>,
    outputs: Vec<Output>,
}

impl From<Graph> for Flat {
    fn from(graph: Graph) -> Flat {
        let nodes = graph.ids().map(|id| graph[id].clone()).collect();
        Flat { name: graph.name, nodes, outputs: graph.outputs }
    }
}

impl TryFrom<Flat> for Graph {
    type Error = String;
    fn try_from(flat: Flat) -> std::result::Result<Graph, String> {
        let mut graph = Graph::new(flat.name);
        for node in flat.nodes {
            if let Some(operand) = node.operands.iter().find(|operand| !graph.contains(**operand)) {
                return Err(format!("node {} uses node {}, which comes later", graph.len(), operand.index()));
            }
            graph.add_unchecked(node);
        }
        graph.outputs = flat.outputs;
        Ok(graph)
    }
}
