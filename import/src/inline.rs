//! Graphs within nodes: what was exported under `torch.no_grad()` is a graph of its own, which a node runs.
//!
//! ```text
//! r = wrap_with_set_grad_enabled(False, g, x)          g.y = neg(x)
//!     g(a): y = neg(a), return y                 →     r = detach(g.y)
//! ```

use crate::schema::{Argument, Graph, InnerGraph, Name, NamedArgument, Node, operator_name};
use std::collections::HashMap;

/// Replaces nodes that run a graph by its nodes.
pub(crate) fn inline(graph: &mut Graph) {
    let mut nodes = vec![];
    for node in std::mem::take(&mut graph.nodes) {
        match called(&node) {
            Some(called) => {
                let mut inner = called.inner.clone();
                inline(&mut inner.graph);
                called.put_into(graph, &node, inner, &mut nodes);
            }
            None => nodes.push(node),
        }
    }
    graph.nodes = nodes;
}

/// A node that runs a graph.
struct Called<'n> {
    inner: &'n InnerGraph,
    /// The values of the inner graph's inputs.
    given: Vec<&'n Name>,
    /// What gives the results of those of the inner graph.
    target: &'static str,
}

/// What a node runs, if it takes tensors alone beside that, and runs as nodes outside do.
fn called(node: &Node) -> Option<Called<'_>> {
    let is_on = |at: usize| match node.inputs.get(at)?.arg {
        Argument::Bool(flag) => Some(flag),
        _ => None,
    };
    let target = match operator_name(&node.target) {
        "higher_order.wrap_with_set_grad_enabled" if is_on(0)? => "torch.ops.aten.alias.default",
        "higher_order.wrap_with_set_grad_enabled" => "torch.ops.aten.detach.default",
        // The kind of device, the dtype, whether it is on.
        "higher_order.wrap_with_autocast" if !is_on(2)? => "torch.ops.aten.alias.default",
        _ => return None,
    };
    let at = node.inputs.iter().position(|input| matches!(input.arg, Argument::Graph(_)))?;
    let Argument::Graph(inner) = &node.inputs[at].arg else { return None };
    let given: Option<Vec<_>> = node.inputs[at + 1..].iter().map(|input| lone(&input.arg)).collect();
    let given = given.filter(|given| given.len() == inner.graph.inputs.len())?;
    (inner.graph.inputs.iter().all(|input| lone(input).is_some())
        && inner.graph.outputs.iter().all(|output| lone(output).is_some())
        && inner.graph.outputs.len() == node.results().len())
    .then_some(Called { inner, given, target })
}

/// The name of an argument that is one tensor.
fn lone(argument: &Argument) -> Option<&Name> {
    match argument {
        Argument::Tensor(name) => Some(name),
        _ => None,
    }
}

impl Called<'_> {
    fn put_into(&self, graph: &mut Graph, node: &Node, inner: InnerGraph, nodes: &mut Vec<Node>) {
        let InnerGraph { name: prefix, graph: inner } = inner;
        let inputs = inner.inputs.iter().filter_map(lone);
        let outside: HashMap<_, _> =
            inputs.zip(&self.given).map(|(name, given)| (name.name.clone(), given.name.clone())).collect();
        // Names inside may be those of values outside; with the name of a result in front there is each but once.
        let result = node.results().first().map_or(String::new(), ToString::to_string);
        let named = |name: &str| match outside.get(name) {
            Some(given) => given.clone(),
            None => format!("{prefix}.{result}.{name}"),
        };
        for (name, meta) in inner.tensor_values {
            graph.tensor_values.entry(named(&name)).or_insert(meta);
        }
        graph.sym_int_values.extend(inner.sym_int_values);
        for mut node in inner.nodes {
            for name in node.tensors_mut() {
                name.name = named(&name.name);
            }
            for name in node.results_mut() {
                name.name = named(&name.name);
            }
            nodes.push(node);
        }
        for (result, value) in node.results().into_iter().zip(inner.outputs.iter().filter_map(lone)) {
            let arg = Argument::Tensor(Name { name: named(&value.name) });
            nodes.push(Node {
                target: self.target.into(),
                inputs: vec![NamedArgument { name: "self".into(), arg }],
                outputs: vec![Argument::Tensor(Name { name: result.into() })],
                metadata: node.metadata.clone(),
            });
        }
    }
}
