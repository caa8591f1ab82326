//! The verifier of graphs. Every pass is followed by it; it trusts nothing that [`Graph::add`] would have ensured.
//!
//! Invariants, in the order in which they are checked ([`Invariant`] has one variant for each):
//!
//! 1. Every operand is a node of the graph.
//! 2. Operands come before their users.
//! 3. The type of a node is what the type rule of its op says.
//! 4. The edges of the graph mirror the operand lists, slot by slot.
//! 5. Input names are unique.
//! 6. The value of every output and update is a node of the graph.
//! 7. Output names are unique; an update counts under the name of its state.
//! 8. An update names a state input whose type is that of the value.

use crate::{Graph, InputRole, Op, Origin, TensorType, ValueId};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// What holds for every graph; numbered as at the head of `verify.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invariant {
    /// Every operand is a node of the graph.
    OperandExists = 1,
    /// Operands come before their users.
    OperandOrder,
    /// The type of a node is what the type rule of its op says.
    Type,
    /// The edges mirror the operand lists.
    Edges,
    /// Input names are unique.
    InputNames,
    /// The value of every output and update is a node of the graph.
    OutputExists,
    /// Output names are unique.
    OutputNames,
    /// An update names a state input whose type is that of the value.
    Update,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Invariant::OperandExists => "operand exists",
            Invariant::OperandOrder => "operand order",
            Invariant::Type => "type",
            Invariant::Edges => "edges",
            Invariant::InputNames => "input names",
            Invariant::OutputExists => "output exists",
            Invariant::OutputNames => "output names",
            Invariant::Update => "update",
        };
        write!(f, "invariant {} ({name})", *self as u8)
    }
}

/// What breaks an invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A node.
    Node(ValueId),
    /// The output or update of this number.
    Output(usize),
}

/// A graph that breaks an invariant.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{invariant}: {value}: {reason}{origin}")]
pub struct VerifyError {
    /// Which invariant.
    pub invariant: Invariant,
    /// Where.
    pub place: Place,
    /// The same in words: `%12 = add`, `output "loss"` or `update "wte.weight"`.
    pub value: String,
    /// How it is broken.
    pub reason: String,
    /// The origin of the node, or of the output's value.
    pub origin: Origin,
}

impl Graph {
    /// Checks every invariant, in time proportional to the number of nodes and edges.
    ///
    /// # Errors
    /// The first invariant that does not hold, at the first place.
    pub fn verify(&self) -> Result<(), VerifyError> {
        let mut states = HashMap::new();
        let mut names = HashSet::new();
        for id in self.ids() {
            self.verify_operands(id)?;
            self.verify_type(id)?;
            self.verify_edges(id)?;
            if let Op::Input(input) = &self[id].op {
                if !names.insert(input.name.as_str()) {
                    let reason = format!("the name {:?} is taken", input.name);
                    return Err(self.broken(Invariant::InputNames, id, reason));
                }
                if input.role == InputRole::State {
                    states.insert(input.name.as_str(), &self[id].ty);
                }
            }
        }
        self.verify_outputs(&states)
    }

    fn verify_operands(&self, id: ValueId) -> Result<(), VerifyError> {
        let operands = &self[id].operands;
        if let Some(operand) = operands.iter().find(|operand| !self.contains(**operand)) {
            let reason = format!("there is no %{}", operand.index());
            return Err(self.broken(Invariant::OperandExists, id, reason));
        }
        match operands.iter().find(|operand| **operand >= id) {
            Some(operand) => {
                let reason = format!("%{} does not come before its user", operand.index());
                Err(self.broken(Invariant::OperandOrder, id, reason))
            }
            None => Ok(()),
        }
    }

    fn verify_type(&self, id: ValueId) -> Result<(), VerifyError> {
        let node = &self[id];
        let types: Vec<_> = node.operands.iter().map(|operand| &self[*operand].ty).collect();
        let reason = match node.op.infer(&types) {
            Ok(ty) if ty == node.ty => return Ok(()),
            Ok(ty) => format!("has the type {}, should have {ty}", node.ty),
            Err(reason) => reason,
        };
        Err(self.broken(Invariant::Type, id, reason))
    }

    fn verify_edges(&self, id: ValueId) -> Result<(), VerifyError> {
        let edges = self.edge_operands(id);
        let operands = self[id].operands.iter().copied().enumerate();
        if operands.eq(edges.iter().copied()) {
            return Ok(());
        }
        let shown: Vec<_> =
            edges.iter().map(|(slot, operand)| format!("{slot} ← %{}", operand.index())).collect();
        let reason = format!("its edges [{}] are not its operands", shown.join(", "));
        Err(self.broken(Invariant::Edges, id, reason))
    }

    fn verify_outputs(&self, states: &HashMap<&str, &TensorType>) -> Result<(), VerifyError> {
        let mut names = HashSet::new();
        for (number, output) in self.outputs().iter().enumerate() {
            if !self.contains(output.value) {
                let reason = format!("there is no %{}", output.value.index());
                return Err(self.broken_output(Invariant::OutputExists, number, reason));
            }
            if !names.insert(output.name.as_str()) {
                return Err(self.broken_output(Invariant::OutputNames, number, "the name is taken".into()));
            }
            if output.updates_state {
                self.verify_update(number, states)?;
            }
        }
        Ok(())
    }

    fn verify_update(&self, number: usize, states: &HashMap<&str, &TensorType>) -> Result<(), VerifyError> {
        let output = &self.outputs()[number];
        let ty = &self[output.value].ty;
        let reason = match states.get(output.name.as_str()) {
            Some(state) if *state == ty => return Ok(()),
            Some(state) => format!("the state has the type {state}, %{} has {ty}", output.value.index()),
            None => "there is no state of this name".into(),
        };
        Err(self.broken_output(Invariant::Update, number, reason))
    }

    fn broken(&self, invariant: Invariant, id: ValueId, reason: String) -> VerifyError {
        let node = &self[id];
        let value = format!("%{} = {}", id.index(), node.op.name());
        VerifyError { invariant, place: Place::Node(id), value, reason, origin: node.origin.clone() }
    }

    fn broken_output(&self, invariant: Invariant, number: usize, reason: String) -> VerifyError {
        let output = &self.outputs()[number];
        let keyword = if output.updates_state { "update" } else { "output" };
        let known = self.contains(output.value);
        let origin = if known { self[output.value].origin.clone() } else { Origin::default() };
        let value = format!("{keyword} {:?}", output.name);
        VerifyError { invariant, place: Place::Output(number), value, reason, origin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, DType, Node, Unary};

    fn graph() -> (Graph, ValueId) {
        let mut graph = Graph::new("t");
        let ty = TensorType::new(DType::F32, [2, 3]);
        let mut b = Builder::new(&mut graph, Origin::new(None, "layer"));
        let x = b.input("x", InputRole::Data, ty).unwrap();
        let y = b.unary(Unary::Exp, x).unwrap();
        graph.output("y", y);
        (graph, y)
    }

    fn node(graph: &Graph, operands: Vec<ValueId>) -> Node {
        Node { operands, ..graph[ValueId::from_index(1)].clone() }
    }

    // What text cannot express is tested here; the rest by the files of `tests/verifier`.

    #[test]
    fn a_sound_graph_passes() {
        assert_eq!(graph().0.verify(), Ok(()));
    }

    #[test]
    fn an_operand_that_is_no_node_is_found() {
        let mut graph = graph().0;
        graph.add_unchecked(node(&graph, vec![ValueId::from_index(9)]));
        let message = "invariant 1 (operand exists): %2 = exp: there is no %9\n  in layer";
        assert_eq!(graph.verify().unwrap_err().to_string(), message);
    }

    #[test]
    fn a_lost_edge_is_found() {
        let (mut graph, y) = graph();
        graph.drop_edges(y);
        let message = "invariant 4 (edges): %1 = exp: its edges [] are not its operands\n  in layer";
        assert_eq!(graph.verify().unwrap_err().to_string(), message);
    }

    #[test]
    fn an_output_of_nothing_is_found() {
        let mut graph = graph().0;
        graph.output("z", ValueId::from_index(2));
        let message = "invariant 6 (output exists): output \"z\": there is no %2";
        assert_eq!(graph.verify().unwrap_err().to_string(), message);
    }
}
