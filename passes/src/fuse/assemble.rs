//! The last step of fusion: order, names, buffers.

use super::loops;
use kernfusion_ir::kernel::{
    Buffer, BufferId, BufferRole, CoveredNode, Form, Kernel, KernelGraph, RefusedFusion,
};
use kernfusion_ir::{Graph, InputRole, Op, ValueId};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// `scope/op`, as messages name a value.
pub(super) fn describe(graph: &Graph, id: ValueId) -> String {
    let node = &graph[id];
    if let Op::Input(input) = &node.op {
        return input.name.clone();
    }
    match &*node.origin.scope {
        "" => format!("{}%{}", node.op.name(), id.index()),
        scope => format!("{scope}/{}%{}", node.op.name(), id.index()),
    }
}

/// A kernel graph from kernels whose buffers are numbered by value.
pub(super) fn assemble(graph: &Graph, kernels: Vec<Kernel>, refusals: Vec<RefusedFusion>) -> KernelGraph {
    let mut kernels = ordered(kernels);
    let node =
        |&id: &ValueId| (id, CoveredNode { op: graph[id].op.name(), origin: graph[id].origin.clone() });
    let mut nodes: BTreeMap<_, _> = kernels.iter().flat_map(|kernel| &kernel.covers).map(node).collect();
    nodes.extend(graph.inputs().map(|(id, ..)| node(&id)));
    let (mut buffers, numbers) = buffers(graph, &kernels);
    let values = numbers.iter().map(|(&value, &buffer)| (buffer, value)).collect();
    let mut names = BTreeMap::new();
    for kernel in &mut kernels {
        kernel.name = name(graph, kernel, &mut names);
        kernel.renumber(|buffer| numbers[&ValueId::from_index(buffer.0 as usize)]);
        match &mut kernel.form {
            Form::Loop(repeated) => loops::add_scratch(repeated, &kernel.name, &mut buffers),
            Form::Collective(call) => {
                let bytes = call.op.scratch_bytes(&buffers[usize::from(call.from)].ty);
                call.scratch = loops::scratch(bytes, &kernel.name, &mut buffers);
            }
            Form::Map | Form::Reduce | Form::Contraction(_) => {}
        }
    }
    let outputs = graph.outputs().iter().filter(|output| !output.updates_state);
    let updates = graph.outputs().iter().filter(|output| output.updates_state);
    let state = |name: &str| numbers[&graph.input(name).expect("the verifier checked updates")];
    KernelGraph {
        name: graph.name.clone(),
        outputs: outputs.map(|o| (o.name.clone(), numbers[&o.value], graph[o.value].ty.clone())).collect(),
        updates: updates.map(|output| (state(&output.name), numbers[&output.value])).collect(),
        buffers,
        kernels,
        refusals,
        nodes,
        values,
    }
}

fn ordered(kernels: Vec<Kernel>) -> Vec<Kernel> {
    let order = execution_order(&kernels.iter().collect::<Vec<_>>());
    let mut kernels: Vec<_> = kernels.into_iter().map(Some).collect();
    order.into_iter().map(|number| kernels[number].take().expect("each once")).collect()
}

/// The kernels' numbers in execution order: producers first, otherwise as in the graph.
pub(super) fn execution_order(kernels: &[&Kernel]) -> Vec<usize> {
    let mut writer = BTreeMap::new();
    for (number, kernel) in kernels.iter().enumerate() {
        kernel.writes().into_iter().for_each(|buffer| {
            writer.insert(buffer, number);
        });
    }
    let mut waits = vec![0; kernels.len()];
    let mut next: Vec<Vec<usize>> = vec![vec![]; kernels.len()];
    for (number, kernel) in kernels.iter().enumerate() {
        let before: BTreeSet<_> =
            kernel.reads().iter().filter_map(|buffer| writer.get(buffer).copied()).collect();
        for producer in before.into_iter().filter(|&producer| producer != number) {
            waits[number] += 1;
            next[producer].push(number);
        }
    }
    // By the first value that a kernel computes, so that an update of a parameter follows its gradient at once and
    // frees what the gradient was made from; the heap gives the largest first.
    let place = |number: usize| std::cmp::Reverse((kernels[number].covers.first().copied(), number));
    let mut ready: BinaryHeap<_> = (0..kernels.len()).filter(|&k| waits[k] == 0).map(place).collect();
    let mut order = Vec::new();
    while let Some(std::cmp::Reverse((_, number))) = ready.pop() {
        order.push(number);
        for &after in &next[number] {
            waits[after] -= 1;
            if waits[after] == 0 {
                ready.push(place(after));
            }
        }
    }
    assert_eq!(order.len(), kernels.len(), "kernels depend on each other in a circle");
    order
}

/// Buffers of all inputs and of all values that kernels store.
fn buffers(graph: &Graph, kernels: &[Kernel]) -> (Vec<Buffer>, BTreeMap<ValueId, BufferId>) {
    let stored =
        kernels.iter().flat_map(|kernel| kernel.writes()).map(|id| ValueId::from_index(id.0 as usize));
    let values: BTreeSet<_> = graph.inputs().map(|(id, ..)| id).chain(stored).collect();
    let numbers: BTreeMap<_, _> =
        values.iter().enumerate().map(|(number, &id)| (id, BufferId(number as u32))).collect();
    let buffer = |&id: &ValueId| {
        let role = match &graph[id].op {
            Op::Input(input) if input.role == InputRole::State => BufferRole::State,
            Op::Input(_) => BufferRole::Input,
            _ => BufferRole::Temporary,
        };
        let continues = super::continued_state(graph, id).map(|state| numbers[&state]);
        Buffer { name: describe(graph, id), ty: graph[id].ty.clone(), role, continues }
    };
    (values.iter().map(buffer).collect(), numbers)
}

/// `scope/first+second+…`, made unique with a number.
fn name(graph: &Graph, kernel: &Kernel, taken: &mut BTreeMap<String, usize>) -> String {
    let last = *kernel.covers.last().expect("a kernel computes something");
    let mut ops: Vec<_> = kernel.covers.iter().map(|&id| graph[id].op.name()).collect();
    ops.dedup();
    let shown = match ops.as_slice() {
        [a, b, .., z] if ops.len() > 4 => format!("{a}+{b}+…+{z}"),
        all => all.join("+"),
    };
    let scope = &graph[last].origin.scope;
    let plain = if scope.is_empty() { shown } else { format!("{scope}/{shown}") };
    let count = taken.entry(plain.clone()).or_insert(0);
    *count += 1;
    if *count == 1 { plain } else { format!("{plain}#{count}") }
}
