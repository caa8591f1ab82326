//! Tensors without elements, and what is made of nothing, as numbers: so every sum that a kernel computes has terms.
//!
//! ```text
//! %1 = reduce sum %0 [0] : f32[3], of %0 : f32[0,3]   →   %1 = full 0 : f32[3]
//! ```

use crate::Rebuild;
use kernfusion_ir::{DynamicUpdate, Graph, Op, Result, ValueId};

/// The graph with numbers in place of what has no elements or is computed from none; `None` if it has no such value.
pub(super) fn without_empty(graph: &Graph) -> Option<Graph> {
    let is_empty = |id: ValueId| graph[id].ty.elements() == 0;
    graph.ids().any(is_empty).then(|| rewritten(graph).expect("numbers have the types that they replace"))
}

fn rewritten(graph: &Graph) -> Result<Graph> {
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        match replacement(graph, id) {
            Some(Replacement::Number(number)) => {
                let full = rebuild.builder(id).full(number, &graph[id].ty)?;
                rebuild.replace(id, full);
            }
            Some(Replacement::Operand(operand)) => {
                let operand = rebuild.place(operand);
                rebuild.replace(id, operand);
            }
            Some(Replacement::Parts(parts)) => {
                let node = &graph[id];
                let parts: Vec<_> = parts.into_iter().map(|part| rebuild.place(part)).collect();
                let new = rebuild.new.add(node.op.clone(), &parts, node.origin.clone())?;
                rebuild.replace(id, new);
            }
            None => {
                rebuild.copy(id)?;
            }
        }
    }
    Ok(rebuild.finish())
}

/// What a value is, if it is empty or an operand is.
enum Replacement {
    /// This number everywhere.
    Number(f64),
    /// This operand.
    Operand(ValueId),
    /// The same op of these operands.
    Parts(Vec<ValueId>),
}

fn replacement(graph: &Graph, id: ValueId) -> Option<Replacement> {
    let node = &graph[id];
    let is_empty = |id: &ValueId| graph[*id].ty.elements() == 0;
    if matches!(node.op, Op::Input(_)) {
        return None;
    }
    if is_empty(&id) {
        return Some(Replacement::Number(0.0));
    }
    if !node.operands.iter().any(is_empty) {
        return None;
    }
    match &node.op {
        Op::Reduce(reduce) => Some(Replacement::Number(reduce.op.identity(node.ty.dtype))),
        Op::DotGeneral(_) | Op::ScatterAdd(_) => Some(Replacement::Number(0.0)),
        Op::Pad(pad) => Some(Replacement::Number(pad.value.value())),
        Op::DynamicUpdate(DynamicUpdate) => Some(Replacement::Operand(node.operands[0])),
        Op::Concat(_) => {
            Some(Replacement::Parts(node.operands.iter().copied().filter(|id| !is_empty(id)).collect()))
        }
        // A loop may carry nothing beside what it carries; its body is a graph of its own.
        _ => None,
    }
}
