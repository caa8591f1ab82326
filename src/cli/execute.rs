//! One run of a program from tensors by name to tensors by name, on the CPU or on a GPU.

use kernfusion::compile::{Target, compile};
use kernfusion::{HostTensor, Result};
use kernfusion_ir::{Graph, InputRole, Output};
use std::collections::BTreeMap;

/// Tensors by name.
pub(super) type Tensors = BTreeMap<String, HostTensor>;

/// Compiles and runs a program once: its outputs, and the new value of each state that it updates. There is an input
/// for each input and state of the program.
pub(super) fn execute(graph: &Graph, inputs: &Tensors, target: &Target) -> Result<Tensors> {
    let states = target.states();
    let mut data = Vec::new();
    for (_, name, role) in graph.inputs() {
        match role {
            InputRole::State => states.set(name, &inputs[name])?,
            InputRole::Data => data.push((name, &inputs[name])),
        }
    }
    let outputs = compile(graph, &states, target)?.run(&data)?;
    let result = |output: &Output| {
        let found =
            if output.updates_state { states.get(&output.name) } else { outputs.get(&output.name).cloned() };
        (output.name.clone(), found.expect("a run gives every output and keeps every state"))
    };
    Ok(graph.outputs().iter().map(result).collect())
}
