//! Tensors of a file and states of a program, brought together by name.

use super::{Record, merge};
use crate::checkpoint::{Checkpoint, Meta, Tensor32};
use crate::{Error, Result};
use kernfusion::HostTensor;
use kernfusion::compile::{Shards, Target};
use kernfusion::trace::{Parameter, Program};
use kernfusion_codegen::States;
use kernfusion_ir::{Graph, InputRole};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// How the names of optimizer state begin.
pub(crate) const OPTIMIZER: &str = "optimizer.";

/// How the names begin of what a recurrent model hands from step to step in training.
const CARRIED: &str = "carried.";

/// How the names of ASGD's averages begin.
const AVERAGES: &str = "optimizer.a.";

/// Puts the averages that [`Optimizer::Asgd`](kernfusion::optim::Optimizer) has kept in place of the parameters.
///
/// # Errors
/// If the checkpoint has none.
pub fn use_averages(checkpoint: &mut Checkpoint) -> Result<()> {
    let names = checkpoint.tensors.keys().filter_map(|name| name.strip_prefix(AVERAGES));
    let names: Vec<_> = names.map(String::from).collect();
    if names.is_empty() {
        return Err(Error::Configuration("there are no averages: it was not trained with asgd".into()));
    }
    for name in names {
        if let Some(average) = checkpoint.tensors.remove(&format!("{AVERAGES}{name}")) {
            checkpoint.tensors.insert(name, average);
        }
    }
    Ok(())
}

/// Names and shapes of the tensors that a program keeps from run to run, by name.
pub(crate) type Shapes = BTreeMap<String, Vec<usize>>;

/// The states of a program.
pub(crate) fn states_of(graph: &Graph) -> Shapes {
    let states = graph.inputs().filter(|(_, _, role)| *role == InputRole::State);
    states.map(|(id, name, _)| (name.to_string(), graph[id].ty.shape.clone())).collect()
}

/// Puts tensors into the states that `shapes` names.
///
/// # Errors
/// Lists all that are missing, superfluous or of another shape; then no state has changed.
pub(crate) fn put(
    states: &States,
    shapes: &Shapes,
    tensors: BTreeMap<String, Tensor32>,
    source: &str,
) -> Result<()> {
    check(shapes, &tensors, source)?;
    put_all(states, &Shards::default(), tensors)
}

/// Puts tensors into states, of each of which a rank may keep a part.
pub(crate) fn put_all(states: &States, shards: &Shards, tensors: BTreeMap<String, Tensor32>) -> Result<()> {
    for (name, Tensor32 { shape, data }) in tensors {
        states.set(&name, &shards.part(&name, &HostTensor::new(shape, data))?)?;
    }
    Ok(())
}

/// The parameters of a checkpoint, with its adapters merged.
///
/// # Errors
/// If the adapters do not fit.
pub(crate) fn merged(checkpoint: Checkpoint) -> Result<BTreeMap<String, Tensor32>> {
    let Checkpoint { mut tensors, meta } = checkpoint;
    tensors.retain(|name, _| !name.starts_with(OPTIMIZER) && !name.starts_with(CARRIED));
    let lora = &meta.training["settings"]["adaptation"]["lora"];
    if !lora.is_null() {
        merge(&mut tensors, &Record::entry("training", lora)?)?;
    }
    Ok(tensors)
}

/// The parameters of a checkpoint, for a program that has all of them.
///
/// # Errors
/// If the checkpoint's tensors are not those of the program.
pub(crate) fn restored(checkpoint: Checkpoint, program: &Program, target: &Target) -> Result<States> {
    let (states, mut tensors) = (target.states(), merged(checkpoint)?);
    let mut shapes = states_of(&program.graph);
    let companions = program.parameters.iter().filter_map(Parameter::companion);
    companions.for_each(|name| _ = shapes.remove(&name));
    // Numbers that are packed have another shape in the program.
    shapes
        .extend(program.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.shape.clone())));
    check(&shapes, &tensors, "the checkpoint")?;
    for parameter in &program.parameters {
        let values = tensors.remove(&parameter.name).map(|tensor| parameter.kept(tensor.data));
        for (name, value) in values.into_iter().flatten() {
            states.set(&name, &value)?;
        }
    }
    put_all(&states, &Shards::default(), tensors)?;
    Ok(states)
}

/// # Errors
/// Lists all tensors that are missing, superfluous or of another shape.
pub(crate) fn check(shapes: &Shapes, tensors: &BTreeMap<String, Tensor32>, source: &str) -> Result<()> {
    let found = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape.as_slice()));
    let problems = misfits(shapes, &found.collect());
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::Configuration(format!("{source} does not fit the model: {}", problems.join("; "))))
}

/// All tensors that are missing, superfluous or of another shape, by name and shape.
pub(crate) fn misfits(shapes: &Shapes, found: &BTreeMap<String, &[usize]>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut list = |what: &str, names: Vec<String>| {
        if !names.is_empty() {
            problems.push(format!("{what} {}", names.join(", ")));
        }
    };
    let named = |(name, shape): (&String, &[usize])| format!("{name} {shape:?}");
    let absent = shapes.iter().filter(|(name, _)| !found.contains_key(*name));
    list("missing", absent.map(|(name, shape)| named((name, shape))).collect());
    let superfluous = found.iter().filter(|(name, _)| !shapes.contains_key(*name));
    list("not of this model", superfluous.map(|(name, shape)| named((name, shape))).collect());
    let misshaped = shapes.iter().filter_map(|(name, shape)| {
        let found = *found.get(name)?;
        (found != shape).then(|| format!("{name} has shape {found:?}, not {shape:?}"))
    });
    problems.extend(misshaped);
    problems
}

/// What a rank does while the first one [saves](save).
pub(crate) fn give_parts(states: &States, shards: &Shards, shapes: &Shapes) -> Result<()> {
    shapes
        .keys()
        .filter(|name| shards.has(name))
        .try_for_each(|name| shards.whole(name, states).map(drop))?;
    Ok(())
}

/// Writes a checkpoint of all states that `shapes` names. Where ranks keep parts of some, the others [give theirs](give_parts) meanwhile.
pub(crate) fn save(
    directory: &Path,
    meta: &Meta,
    (states, shards): (&States, &Shards),
    shapes: &Shapes,
) -> Result<()> {
    let tensors: Vec<_> = shapes.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    // Straight from where they are: a copy would need memory that the step was not given.
    let saved = Checkpoint::save_from(directory, meta, &tensors, &mut |name, write| {
        if shards.has(name) {
            let whole = shards.whole(name, states).map_err(io::Error::other)?;
            let elements = whole.as_ref().and_then(HostTensor::as_f32);
            return write(elements.expect("ranks keep parts of f32 states that there are"));
        }
        // Compiling has made all states of the program, which are f32; but a GPU may fail.
        let lost = || Err(io::Error::other(format!("the device does not give {name} back")));
        states.with_f32(name, write).unwrap_or_else(lost)
    });
    Ok(saved?)
}
