//! Loops: a group of nodes that are the results of one, and its body as a plan.

use super::writer::Fault;
use super::{Fusion, fuse};
use crate::loops::{same, scan, with_results};
use crate::plan::plan_beside;
use kernfusion_ir::kernel::Accepts;
use kernfusion_ir::kernel::{
    Buffer, BufferId, BufferRole, Carried, Domain, Form, Kernel, Loop, Region, Window,
};
use kernfusion_ir::{DType, Graph, Op, Scan, TensorType, ValueId};
use std::collections::BTreeSet;

/// A node, with one for each other result of its loop if it is one.
pub(super) fn results(
    graph: &Graph,
    node: ValueId,
    among: impl Iterator<Item = ValueId>,
) -> BTreeSet<ValueId> {
    let others = among.filter(|&other| same(graph, node, other));
    let Op::Scan(own) = &graph[node].op else { return BTreeSet::from([node]) };
    let mut numbers = BTreeSet::from([own.result]);
    [node].into_iter().chain(others.filter(|&id| numbers.insert(scan(graph, id).result))).collect()
}

/// The loop that members are results of, if there is one among them.
pub(super) fn of<'a>(graph: &'a Graph, members: &BTreeSet<ValueId>) -> Option<&'a Scan> {
    members.iter().find_map(|&member| match &graph[member].op {
        Op::Scan(scan) => Some(scan),
        _ => None,
    })
}

/// The kernel of a loop, with the number of each value as its buffer's.
pub(super) fn lower(
    graph: &Graph,
    free: &[bool],
    members: &BTreeSet<ValueId>,
    of: &Scan,
    (fusion, accepts): (Fusion, Accepts),
) -> Result<Kernel, Fault> {
    let refuse = |node, reason| Err(Fault { node, reason });
    let first = *members.first().expect("a group has members");
    if members.iter().any(|&member| !matches!(graph[member].op, Op::Scan(_))) {
        return refuse(first, "a loop is a kernel of its own");
    }
    let operands = &graph[first].operands;
    let in_memory = |id: ValueId| !free[id.index()] || matches!(graph[id].op, Op::Input(_));
    if let Some(&operand) = operands.iter().find(|operand| !in_memory(**operand)) {
        return refuse(operand, "a loop reads its operands from memory");
    }
    let wanted = members.iter().map(|&member| scan(graph, member).result).collect();
    let (of, numbers) = with_results(of, &wanted).expect("a part of a valid body is valid");
    let Ok(body) = fuse(of.body.graph(), fusion, accepts) else {
        return refuse(first, "no kernels compute its body");
    };
    let handed_out = Loop::handed_out(&body).collect();
    let body = Box::new(plan_beside(body, &handed_out));
    let outer = |id: ValueId| BufferId(id.index() as u32);
    let result = |number: usize| {
        let member = members.iter().find(|&&member| numbers[&scan(graph, member).result] == number);
        member.map(|&member| outer(member))
    };
    // Inputs are numbered in the order of their declaration.
    let inputs: Vec<_> = (0..body.graph.buffers.len() as u32).map(BufferId).collect();
    let inputs = inputs.into_iter().filter(|&id| body.graph.buffer(id).role == BufferRole::Input);
    let windows: Vec<_> = operands
        .iter()
        .zip(inputs)
        .map(|(&operand, inner)| Window { outer: outer(operand), inner })
        .collect();
    let (carried, windows) = windows.split_at(of.carried);
    let (slices, constants) = windows.split_at(of.sliced);
    let carried = carried.iter().enumerate();
    let carried = carried.map(|(number, &Window { outer: first, inner })| Carried {
        first,
        inner,
        last: result(number),
    });
    let repeated = Loop {
        iterations: of.length,
        reverse: of.reverse,
        carried: carried.collect(),
        slices: slices.to_vec(),
        constants: constants.to_vec(),
        results: (of.carried..body.graph.outputs.len())
            .map(|number| result(number).expect("unwanted results were left out"))
            .collect(),
        body,
        scratch: None,
    };
    Ok(Kernel {
        name: String::new(),
        domain: Domain::flat([of.length]),
        form: Form::Loop(repeated),
        region: Region::default(),
        stores: vec![],
        covers: members.iter().copied().collect(),
    })
}

/// Gives a loop memory for its body.
pub(super) fn add_scratch(repeated: &mut Loop, kernel: &str, buffers: &mut Vec<Buffer>) {
    // What is carried has a place even where it has no elements.
    let bytes = repeated.scratch_bytes().max(usize::from(!repeated.carried.is_empty()));
    repeated.scratch = scratch(bytes, kernel, buffers);
}

/// A scratch buffer of `bytes` bytes for a kernel, if it needs any.
pub(super) fn scratch(bytes: usize, kernel: &str, buffers: &mut Vec<Buffer>) -> Option<BufferId> {
    let number = BufferId(buffers.len() as u32);
    let ty = TensorType::new(DType::I32, [bytes.div_ceil(DType::I32.size())]);
    let name = format!("{kernel}.scratch");
    buffers.extend((bytes > 0).then_some(Buffer { name, ty, role: BufferRole::Temporary, continues: None }));
    (bytes > 0).then_some(number)
}
