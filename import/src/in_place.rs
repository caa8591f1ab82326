//! Operators that change a tensor in place, such as `relu_`: the archive of a model that was not decomposed has them.
//!
//! ```text
//! y = add_(x, b)                y = add(x, b)
//! z = mul(x, 2)          →      z = mul(y, 2)
//! ```
//!
//! Nodes become those that give a new value, and later nodes that name the changed tensor read that value. Tensors that share its memory
//! change with it: where one of them is read afterwards, the base takes the values of the view that was changed, and views of the base are
//! taken again.
//!
//! ```text
//! v = select(x, 0, i)           v = select(x, 0, i)
//! w = copy_(v, b)        →      w = copy(v, b)
//! z = neg(x)                    x' = select_scatter(x, w, 0, i)
//!                               z = neg(x')
//! ```

use crate::error::Place;
use crate::memory::Memory;
use crate::operators::find;
use crate::schema::{Argument, Graph, Name, Node, operator_name};
use std::collections::{HashMap, HashSet};

/// What became of a graph's values.
pub(crate) struct Renamed {
    /// For each value whose memory is shared or changed the one that it is in the end.
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
    find(operator_name(target)).is_some() || functional(target).is_some()
}

/// Writes the nodes of a graph without changes in place. `results` are read when all nodes have run.
///
/// # Errors
/// The operator and the place of a node that changes a tensor in a way that does not reach all that share its memory, and why.
pub(crate) fn without_changes(
    graph: &mut Graph,
    results: &[&str],
) -> Result<Renamed, (String, Place, String)> {
    let mut memory = Memory::new(last_reads(graph, results));
    for at in 0..graph.nodes.len() {
        let follows = give_statistics(graph, at);
        let mut node = graph.nodes[at].clone();
        let own: Vec<String> = node.tensors().map(|name| name.name.clone()).collect();
        for name in node.tensors_mut() {
            name.name = memory.current(&name.name).to_string();
        }
        let changes = changes(&node, &own, follows);
        if let Some(name) = functional(&node.target) {
            node.target = name;
        }
        memory.nodes.push(node.clone());
        if changes.is_empty() {
            memory.view(&graph.tensor_values, &node, &own);
        }
        for (changed, result) in changes {
            memory.change(&mut graph.tensor_values, &changed, &result, at).map_err(|stale| {
                let reason = format!(
                    "it changes \"{changed}\" in place, and \"{stale}\", which shares its memory, is read afterwards: call `run_decompositions()`"
                );
                (operator_name(&graph.nodes[at].target).into(), node.metadata.place(), reason)
            })?;
        }
    }
    let last = memory.values();
    graph.nodes = memory.nodes;
    Ok(Renamed { last })
}

/// The name of an operator that gives what this one puts into its first operand, if it is such.
fn functional(target: &str) -> Option<String> {
    if find(operator_name(target)).is_some() {
        return None;
    }
    let (name, overload) = target.rsplit_once('.')?;
    let functional = format!("{}.{overload}", name.strip_suffix('_')?);
    find(operator_name(&functional)).map(|_| functional)
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

/// For each value the last node that reads it; results are read after all, and what no node gives: that is a state, or the caller's.
fn last_reads(graph: &Graph, results: &[&str]) -> HashMap<String, usize> {
    let given: HashSet<_> = graph.nodes.iter().flat_map(Node::results).collect();
    let last = |name: &Name, at| if given.contains(name.name.as_str()) { at } else { usize::MAX };
    let reads = graph.nodes.iter().enumerate();
    let reads = reads.flat_map(|(at, node)| node.tensors().map(move |name| (name, at)));
    let reads = reads.map(|(name, at)| (name.name.clone(), last(name, at)));
    let results = results.iter().map(|name| (name.to_string(), usize::MAX));
    reads.chain(results).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A graph of nodes `[operator, operand, .., result]` over matrices of one shape.
    fn graph(nodes: &[&[&str]]) -> Graph {
        let tensor = |name: &str| json!({"as_tensor": {"name": name}});
        let node = |words: &&[&str]| {
            let (target, rest) = words.split_first().unwrap();
            let (result, operands) = rest.split_last().unwrap();
            let named = |(at, name): (usize, &&str)| json!({"name": if at == 0 { "self" } else { "other" }, "arg": tensor(name)});
            let inputs: Vec<Value> = operands.iter().enumerate().map(named).collect();
            json!({"target": format!("torch.ops.aten.{target}"), "inputs": inputs, "outputs": [tensor(result)]})
        };
        let names = nodes.iter().flat_map(|words| &words[1..]).map(ToString::to_string);
        let int = |number: i64| json!({"as_int": number});
        let meta = json!({
            "dtype": 7, "sizes": [int(2), int(2)], "strides": [int(2), int(1)], "storage_offset": int(0), "requires_grad": false
        });
        let metas: serde_json::Map<_, _> = names.map(|name| (name, meta.clone())).collect();
        let nodes: Vec<Value> = nodes.iter().map(node).collect();
        serde_json::from_value(json!({"nodes": nodes, "tensor_values": metas})).unwrap()
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
    fn views_change_with_their_base_and_bases_with_their_views() {
        // What nothing reads after the change may be as it was.
        let mut unread = graph(&[
            &["view.default", "x", "v"],
            &["relu_.default", "x", "y"],
            &["mul.Tensor", "x", "y", "z"],
        ]);
        without_changes(&mut unread, &["z"]).unwrap();
        assert_eq!(shown(&unread), ["v = view.default(x)", "y = relu.default(x)", "z = mul.Tensor(y, y)"]);
        // A view of what has changed is taken again, be it read by a node or a result.
        let mut of_base = graph(&[
            &["neg.default", "a", "x"],
            &["view.default", "x", "v"],
            &["relu_.default", "x", "y"],
            &["mul.Tensor", "x", "v", "z"],
        ]);
        without_changes(&mut of_base, &["z"]).unwrap();
        assert_eq!(
            shown(&of_base)[2..],
            ["y = relu.default(x)", "v.3 = view.default(y)", "z = mul.Tensor(y, v.3)"]
        );
        let mut result = graph(&[&["view.default", "x", "v"], &["relu_.default", "x", "y"]]);
        assert_eq!(without_changes(&mut result, &["v"]).unwrap().last("v"), "v.2");
        // The base takes what a view of a view has become, and another view of it is taken again.
        let mut of_view = graph(&[
            &["view.default", "x", "v"],
            &["select.int", "v", "s"],
            &["t.default", "x", "w"],
            &["copy_.default", "s", "b", "c"],
            &["mul.Tensor", "w", "s", "z"],
        ]);
        let renamed = without_changes(&mut of_view, &["z"]).unwrap();
        let expected = [
            "c = copy.default(s, b)",
            "v.4 = select_scatter.default(v, c)",
            "x.5 = reshape.default(v.4)",
            "w.6 = t.default(x.5)",
            "z = mul.Tensor(w.6, c)",
        ];
        assert_eq!(shown(&of_view)[3..], expected);
        assert_eq!(renamed.last("x"), "x.5");
        // Names that a damaged file has twice.
        let mut cycle = graph(&[
            &["view.default", "x", "x"],
            &["view.default", "x", "v"],
            &["view.default", "v", "x"],
            &["relu_.default", "v", "y"],
        ]);
        without_changes(&mut cycle, &["x"]).unwrap();
        // A copy is no view.
        let mut copied =
            graph(&[&["clone.default", "x", "c"], &["relu_.default", "x", "y"], &["neg.default", "c", "z"]]);
        without_changes(&mut copied, &["z"]).unwrap();
        assert_eq!(shown(&copied)[2], "z = neg.default(c)");
    }

    #[test]
    fn changes_that_do_not_reach_what_is_read_afterwards_are_refused() {
        // Elements several times over, and another order of axes in place.
        let mut spread =
            graph(&[&["expand.default", "x", "v"], &["relu_.default", "v", "y"], &["neg.default", "x", "z"]]);
        let mut turned =
            graph(&[&["view.default", "x", "v"], &["t_.default", "x", "y"], &["neg.default", "v", "z"]]);
        turned.tensor_values.get_mut("y").unwrap().strides.reverse();
        for (graph, changed, stale) in [(&mut spread, "v", "x"), (&mut turned, "x", "v")] {
            let Err((_, _, reason)) = without_changes(graph, &["z"]) else { panic!() };
            let expected =
                format!("changes \"{changed}\" in place, and \"{stale}\", which shares its memory");
            assert!(reason.contains(&expected), "{reason}");
        }
    }
}
