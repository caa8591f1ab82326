//! What runs once, after the last microbatch: everything that completed sums lead to.

use super::batch_dependence::Classes;
use super::{MicrobatchError, accumulator, accumulator_type, refused};
use kernfusion_ir::{Builder, Graph, InputRole};
use std::collections::BTreeMap;

/// The graph from accumulators, and from what has nothing to do with the batch, to all outputs that are not sliced.
pub(super) fn tail(graph: &Graph, dependences: &Classes) -> Result<Graph, MicrobatchError> {
    let numbers: BTreeMap<_, _> =
        dependences.accumulated.iter().enumerate().map(|(n, &id)| (id, n)).collect();
    let sliced = dependences.sliced_outputs(graph);
    let outputs = || graph.outputs().iter().filter(|output| sliced.iter().all(|(other, _)| other != output));
    let mut wanted = graph.needed(outputs().map(|output| output.value), |id| numbers.contains_key(&id));
    // A state that is updated is an input of the program, whether or not its old value counts.
    for output in outputs().filter(|output| output.updates_state) {
        let state = graph.input(&output.name).expect("the verifier checked updates");
        wanted[state.index()] = true;
    }
    if let Some(state) = dependences.states_with_rows(graph).into_keys().find(|state| wanted[state.index()]) {
        return Err(refused(graph, state, "its rows are read after microbatches have updated them"));
    }
    let mut new = Graph::new(format!("{}.tail", graph.name));
    let mut places = BTreeMap::new();
    for id in graph.ids().filter(|id| wanted[id.index()]) {
        let node = &graph[id];
        let value = match numbers.get(&id) {
            Some(&number) => {
                let ty = accumulator_type(&node.ty);
                let mut b = Builder::new(&mut new, node.origin.clone());
                let sum = b.input(&accumulator(number, &ty), InputRole::State, ty)?;
                b.cast(sum, node.ty.dtype)?
            }
            None => {
                let operands: Vec<_> = node.operands.iter().map(|operand| places[operand]).collect();
                new.add(node.op.clone(), &operands, node.origin.clone())?
            }
        };
        places.insert(id, value);
    }
    for output in outputs() {
        match output.updates_state {
            true => new.update(&output.name, places[&output.value]),
            false => new.output(&output.name, places[&output.value]),
        }
    }
    Ok(new)
}
