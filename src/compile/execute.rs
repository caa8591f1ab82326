//! One run of a program from tensors by name to tensors by name, on the CPU or on a GPU.

use super::{Target, compile};
use crate::{Error, HostTensor, Result};
use kernfusion_ir::{Graph, InputRole, Output};
use std::collections::BTreeMap;

/// Tensors by name.
pub type Tensors = BTreeMap<String, HostTensor>;

/// Compiles and runs a program once: its outputs, and the new value of each state that it updates. There is an input
/// for each input and state of the program.
///
/// # Errors
/// As [`compile`] and [`run`](super::Compiled::run).
///
/// # Panics
/// If the tensor of an input or a state is missing.
pub fn execute(graph: &Graph, inputs: &Tensors, target: &Target) -> Result<Tensors> {
    let results = execute_on(graph, inputs, target, &[target.threads])?;
    Ok(results.into_iter().next().expect("one for each number of threads"))
}

/// As [`execute`], from the same inputs and states on each of these numbers of threads: compiled once, with one result for each.
///
/// # Errors
/// As there.
///
/// # Panics
/// As there.
pub fn execute_on(
    graph: &Graph,
    inputs: &Tensors,
    target: &Target,
    threads: &[usize],
) -> Result<Vec<Tensors>> {
    let states = target.states();
    let (mut given, mut data) = (Vec::new(), Vec::new());
    for (_, name, role) in graph.inputs() {
        match role {
            InputRole::State => given.push((name, &inputs[name])),
            InputRole::Data => data.push((name, &inputs[name])),
        }
    }
    given.iter().try_for_each(|(name, value)| states.set(name, value))?;
    let is_updated = |name: &str| graph.outputs().iter().any(|it| it.updates_state && it.name == name);
    given.retain(|(name, _)| is_updated(name));
    let reset = || given.iter().try_for_each(|(name, value)| states.set(name, value));
    let mut compiled = compile(graph, &states, target)?;
    let mut run = |(number, &threads): (usize, &usize)| {
        if threads != target.threads || number > 0 {
            compiled.set_threads(threads)?;
            reset()?;
        }
        let outputs = compiled.run(&data)?;
        let result = |output: &Output| {
            let name = &output.name;
            // A run keeps every state; but a GPU may fail.
            let lost = || Error::Configuration(format!("the device does not give {name} back"));
            let found = match output.updates_state {
                true => states.get(name).ok_or_else(lost)?,
                false => outputs.get(name)?.clone(),
            };
            Ok((name.clone(), found))
        };
        graph.outputs().iter().map(result).collect()
    };
    threads.iter().enumerate().map(&mut run).collect()
}
