//! Parameters, as a pass sees them: states that a program reads and never writes.

use kernfusion_ir::{Graph, InputRole, Op, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Whether a program writes no state. What it computes of parameters alone is then kept from run to run ([`plan_prepared`](crate::plan::plan_prepared)).
pub(crate) fn is_read_only(graph: &Graph) -> bool {
    written(graph).is_empty()
}

/// The states that a program writes.
pub(crate) fn written(graph: &Graph) -> BTreeSet<&str> {
    let updates = graph.outputs().iter().filter(|output| output.updates_state);
    updates.map(|output| output.name.as_str()).collect()
}

/// The values that are computed of parameters alone: of one at least, and of nothing else but numbers that the graph has.
pub(crate) fn computed_of(graph: &Graph) -> BTreeSet<ValueId> {
    let written = written(graph);
    // Of what depends on nothing else, whether it depends on a parameter.
    let mut known: BTreeMap<ValueId, bool> = BTreeMap::new();
    for id in graph.ids() {
        let node = &graph[id];
        let of_operands = || node.operands.iter().map(|operand| known.get(operand).copied());
        let depends = match &node.op {
            Op::Input(input) => {
                let is_parameter = input.role == InputRole::State && !written.contains(input.name.as_str());
                is_parameter.then_some(true)
            }
            _ => of_operands().try_fold(false, |any, depends| Some(any | depends?)),
        };
        known.extend(depends.map(|depends| (id, depends)));
    }
    known.into_iter().filter_map(|(id, depends)| depends.then_some(id)).collect()
}
