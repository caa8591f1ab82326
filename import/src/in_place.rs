//! Operators that change a tensor in place, such as `relu_`: the archive of a model that was not decomposed has them.
//!
//! ```text
//! y = add_(x, b)                y = add(x, b)
//! z = mul(x, 2)          →      z = mul(y, 2)
//! ```
//!
//! Nodes become those that give a value of its own, and whoever reads the changed tensor afterwards reads that. Views of a changed tensor
//! change with it, which this does not follow: where one is read afterwards, the archive is refused.

use crate::error::Place;
use crate::operators;
use crate::schema::{Argument, Graph, Name, Node, OptionalTensor, operator_name};
use std::collections::{HashMap, HashSet};

/// What became of a graph's values.
#[derive(Default)]
pub(crate) struct Renamed {
    /// For each changed value the one that it is in the end.
    last: HashMap<String, String>,
}

impl Renamed {
    /// The value that this one is in the end.
    pub(crate) fn last<'n>(&'n self, name: &'n str) -> &'n str {
        self.last.get(name).map_or(name, String::as_str)
    }
}

/// Whether an operator is in the table, or gives in place what one of the table gives.
pub(crate) fn is_known(target: &str) -> bool {
    operators::find(operator_name(target)).is_some() || functional(target).is_some()
}

/// Writes the nodes of a graph without changes in place. `results` are read when all nodes have run.
///
/// # Errors
/// The operator and the place of a node that changes a tensor of which a view is read afterwards, and why.
pub(crate) fn without_changes(
    graph: &mut Graph,
    results: &[&str],
) -> Result<Renamed, (String, Place, String)> {
    let last_reads = last_reads(graph, results);
    let mut aliases = Aliases::default();
    let mut renamed = Renamed::default();
    for at in 0..graph.nodes.len() {
        let follows = give_statistics(graph, at);
        let node = &mut graph.nodes[at];
        let own: Vec<String> = node.tensors().map(|name| name.name.clone()).collect();
        for name in node.tensors_mut() {
            name.name = renamed.last(&name.name).to_string();
        }
        for (changed, result) in changes(node, &own, follows) {
            if let Some(stale) =
                aliases.views(&changed, &renamed).find(|view| last_reads.get(*view) > Some(&at))
            {
                let reason = format!(
                    "it changes \"{changed}\" in place, and \"{stale}\", which shares its memory, is read afterwards: call `run_decompositions()`"
                );
                return Err((operator_name(&node.target).into(), node.metadata.place(), reason));
            }
            aliases.add(&result, &changed);
            let current = renamed.last(&changed).to_string();
            let same = renamed.last.iter_mut().filter(|(_, last)| **last == current);
            same.for_each(|(_, last)| last.clone_from(&result));
            renamed.last.insert(current, result.clone());
            renamed.last.insert(changed, result);
        }
        if let Some(name) = functional(&node.target) {
            node.target = name;
        }
        let is_view = operators::find(operator_name(&node.target)).is_some_and(|operator| operator.is_view);
        for viewed in own.iter().filter(|_| is_view) {
            node.results().into_iter().for_each(|result| aliases.add(result, viewed));
        }
    }
    Ok(renamed)
}

/// The name of an operator that gives what this one puts into its first operand, if it is such.
fn functional(target: &str) -> Option<String> {
    if operators::find(operator_name(target)).is_some() {
        return None;
    }
    let (name, overload) = target.rsplit_once('.')?;
    let functional = format!("{}.{overload}", name.strip_suffix('_')?);
    operators::find(operator_name(&functional)).map(|_| functional)
}

/// The operands that a node changes, each with the result that has the value. `own` are its operands as they were named; `follows`: whether
/// running statistics are among them.
fn changes(node: &Node, own: &[String], follows: bool) -> Vec<(String, String)> {
    let results = node.results();
    if follows {
        let changed = ["running_mean", "running_var"].map(|name| node.position(name));
        let pair = |(at, result): (Option<usize>, &str)| Some((own.get(at?)?.clone(), result.to_string()));
        return changed.into_iter().zip(results.into_iter().skip(3)).filter_map(pair).collect();
    }
    let is_changed = functional(&node.target).is_some();
    let first = own.first().cloned().zip(results.first().map(ToString::to_string));
    first.filter(|_| is_changed).into_iter().collect()
}

/// Batch norm of training becomes the operator that gives what running statistics become; whether the node is such.
fn give_statistics(graph: &mut Graph, at: usize) -> bool {
    let node = &mut graph.nodes[at];
    let is_training = |name: &str| {
        node.inputs.iter().any(|input| input.name == name && matches!(input.arg, Argument::Bool(true)))
    };
    let [Argument::Tensor(result)] = node.outputs.as_slice() else { return false };
    if operator_name(&node.target) != "aten.batch_norm.default" || !is_training("training") {
        return false;
    }
    let result = result.name.clone();
    // The batch's own are of the types of the running ones.
    let like = ["running_mean", "running_var", "running_mean", "running_var"];
    let meta = like.map(|name| graph.tensor_values.get(&node.tensor(name)?.name).cloned());
    if meta.contains(&None) {
        return false;
    }
    for meta in meta.into_iter().flatten() {
        let name = format!("{result}.{}", node.outputs.len());
        node.outputs.push(Argument::Tensor(Name { name: name.clone() }));
        graph.tensor_values.insert(name, meta);
    }
    node.target = "torch.ops.aten._native_batch_norm_legit_functional.default".into();
    true
}

/// For each value the last node that reads it; results are read after all.
fn last_reads(graph: &Graph, results: &[&str]) -> HashMap<String, usize> {
    let reads = graph.nodes.iter().enumerate();
    let reads = reads.flat_map(|(at, node)| node.tensors().map(move |name| (name.name.clone(), at)));
    let results = results.iter().map(|name| (name.to_string(), usize::MAX));
    reads.chain(results).collect()
}

/// Values that may share memory.
#[derive(Default)]
struct Aliases {
    /// The first of those that share.
    first: HashMap<String, String>,
    all: HashMap<String, HashSet<String>>,
}

impl Aliases {
    fn first<'n>(&'n self, name: &'n str) -> &'n str {
        self.first.get(name).map_or(name, String::as_str)
    }

    /// Says that two values may share memory, and with them all that may share it with either.
    fn add(&mut self, name: &str, other: &str) {
        let [first, joined] = [other, name].map(|name| self.first(name).to_string());
        let mut all = self.all.remove(&joined).unwrap_or_default();
        all.extend([name.to_string(), joined]);
        for name in all.iter().filter(|name| **name != first) {
            self.first.insert(name.clone(), first.clone());
        }
        let sharing = self.all.entry(first.clone()).or_default();
        sharing.extend(all);
        sharing.insert(first);
    }

    /// What may share memory with a value, but is not the same tensor.
    fn views<'s>(&'s self, name: &'s str, renamed: &'s Renamed) -> impl Iterator<Item = &'s String> {
        let sharing = self.all.get(self.first(name)).into_iter().flatten();
        sharing.filter(move |other| renamed.last(other) != renamed.last(name))
    }
}

impl Argument {
    pub(crate) fn tensors(&self) -> Vec<&Name> {
        match self {
            Argument::Tensor(name) | Argument::OptionalTensor(OptionalTensor::Tensor(name)) => vec![name],
            Argument::Tensors(names) => names.iter().collect(),
            Argument::OptionalTensors(names) => {
                let given = names.iter().filter_map(|name| match name {
                    OptionalTensor::Tensor(name) => Some(name),
                    OptionalTensor::None(_) => None,
                });
                given.collect()
            }
            _ => vec![],
        }
    }

    fn tensors_mut(&mut self) -> Vec<&mut Name> {
        match self {
            Argument::Tensor(name) | Argument::OptionalTensor(OptionalTensor::Tensor(name)) => vec![name],
            Argument::Tensors(names) => names.iter_mut().collect(),
            Argument::OptionalTensors(names) => {
                let given = names.iter_mut().filter_map(|name| match name {
                    OptionalTensor::Tensor(name) => Some(name),
                    OptionalTensor::None(_) => None,
                });
                given.collect()
            }
            _ => vec![],
        }
    }
}

impl Node {
    /// The names of the tensors that it reads.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Name> {
        self.inputs.iter().flat_map(|input| input.arg.tensors())
    }

    fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Name> {
        self.inputs.iter_mut().flat_map(|input| input.arg.tensors_mut())
    }

    /// The tensor of an argument.
    fn tensor(&self, name: &str) -> Option<&Name> {
        let found = self.inputs.iter().find(|input| input.name == name)?;
        found.arg.tensors().first().copied()
    }

    /// The place of an argument's tensor among those that it reads.
    fn position(&self, name: &str) -> Option<usize> {
        let found = self.inputs.iter().position(|input| input.name == name)?;
        Some(self.inputs[..found].iter().map(|input| input.arg.tensors().len()).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A graph of nodes `[operator, operand, .., result]`.
    fn graph(nodes: &[&[&str]]) -> Graph {
        let tensor = |name: &str| json!({"as_tensor": {"name": name}});
        let node = |words: &&[&str]| {
            let (target, rest) = words.split_first().unwrap();
            let (result, operands) = rest.split_last().unwrap();
            let named = |(at, name): (usize, &&str)| json!({"name": if at == 0 { "self" } else { "other" }, "arg": tensor(name)});
            let inputs: Vec<Value> = operands.iter().enumerate().map(named).collect();
            json!({"target": format!("torch.ops.aten.{target}"), "inputs": inputs, "outputs": [tensor(result)]})
        };
        let nodes: Vec<Value> = nodes.iter().map(node).collect();
        serde_json::from_value(json!({"nodes": nodes, "tensor_values": {}})).unwrap()
    }

    /// The nodes, as they were given.
    fn shown(graph: &Graph) -> Vec<String> {
        let words = |node: &Node| {
            let operands: Vec<_> = node.tensors().map(|name| name.name.as_str()).collect();
            let target = node.target.trim_start_matches("torch.ops.aten.");
            format!("{} = {target}({})", node.results().join(", "), operands.join(", "))
        };
        graph.nodes.iter().map(words).collect()
    }

    #[test]
    fn who_reads_a_changed_tensor_gets_what_it_has_become() {
        let mut graph = graph(&[
            &["add_.Tensor", "x", "b", "y"],
            &["mul_.Tensor", "y", "x", "z"],
            &["mul.Tensor", "x", "y", "u"],
            &["sub.Tensor", "z", "b", "v"],
        ]);
        let renamed = without_changes(&mut graph, &["x"]).unwrap();
        let expected =
            ["y = add.Tensor(x, b)", "z = mul.Tensor(y, y)", "u = mul.Tensor(z, z)", "v = sub.Tensor(z, b)"];
        assert_eq!(shown(&graph), expected);
        assert_eq!(["x", "y", "z", "b"].map(|name| renamed.last(name)), ["z", "z", "z", "b"]);
    }

    #[test]
    fn a_view_that_is_read_after_a_change_is_refused() {
        let viewed = |after: &[&'static str]| {
            graph(&[
                &["view.default", "x", "v"],
                &["relu_.default", "x", "y"],
                &["mul.Tensor", after[0], after[1], "z"],
            ])
        };
        assert!(without_changes(&mut viewed(&["x", "y"]), &["z"]).is_ok());
        for (mut graph, results) in [(viewed(&["x", "v"]), ["z"]), (viewed(&["x", "y"]), ["v"])] {
            let Err((operator, _, reason)) = without_changes(&mut graph, &results) else { panic!() };
            assert_eq!(operator, "aten.relu_.default");
            assert!(
                reason.contains("changes \"x\" in place, and \"v\", which shares its memory"),
                "{reason}"
            );
        }
        // A change of a view, which alone is read.
        let mut of_view =
            graph(&[&["view.default", "x", "v"], &["relu_.default", "v", "y"], &["neg.default", "v", "z"]]);
        assert!(without_changes(&mut of_view, &["z"]).is_ok());
        assert_eq!(shown(&of_view)[2], "z = neg.default(y)");
        let mut base =
            graph(&[&["view.default", "x", "v"], &["relu_.default", "v", "y"], &["neg.default", "x", "z"]]);
        assert!(without_changes(&mut base, &["z"]).is_err());
        // A copy is no view.
        let mut copied =
            graph(&[&["clone.default", "x", "c"], &["relu_.default", "x", "y"], &["neg.default", "c", "z"]]);
        assert!(without_changes(&mut copied, &["z"]).is_ok());
    }
}
