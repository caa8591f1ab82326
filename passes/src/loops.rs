//! Loops: a node for each result that anything reads, and a body that computes no more than these.
//!
//! ```text
//! %3 = scan %0, %1 {result = 0, body: h, z, gates}     %3 = scan %0, %1 {result = 0, body: h, gates}
//! %4 = scan %0, %1 {result = 2, body: h, z, gates}  →  %4 = scan %0, %1 {result = 1, body: h, gates}
//! ```
//!
//! Tracing lets a body hand out whatever backward might want, so this is also where the rest goes.

use crate::Rebuild;
use kernfusion_ir::{Graph, Op, Result, Scan, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The loops of a graph: for each its nodes, which have the same operands and differ in the result.
pub(crate) fn loops(graph: &Graph) -> Vec<Vec<ValueId>> {
    let mut loops: BTreeMap<(Scan, &[ValueId]), Vec<ValueId>> = BTreeMap::new();
    for id in graph.ids() {
        if let Op::Scan(scan) = &graph[id].op {
            loops.entry((scan.with_result(0), &graph[id].operands)).or_default().push(id);
        }
    }
    loops.into_values().collect()
}

/// The loop of a node.
///
/// # Panics
/// If it is none.
pub(crate) fn scan(graph: &Graph, id: ValueId) -> &Scan {
    match &graph[id].op {
        Op::Scan(scan) => scan,
        op => unreachable!("{} is no loop", op.name()),
    }
}

/// Whether two nodes are results of one loop.
pub(crate) fn same(graph: &Graph, a: ValueId, b: ValueId) -> bool {
    match (&graph[a].op, &graph[b].op) {
        (Op::Scan(x), Op::Scan(y)) => {
            graph[a].operands == graph[b].operands && x.with_result(0) == y.with_result(0)
        }
        _ => false,
    }
}

/// The loop with these results besides what it carries, and the new number of each result that is left.
pub(crate) fn with_results(scan: &Scan, wanted: &BTreeSet<usize>) -> Result<(Scan, BTreeMap<usize, usize>)> {
    let old = scan.body.graph();
    let kept: Vec<_> =
        (0..old.outputs().len()).filter(|at| *at < scan.carried || wanted.contains(at)).collect();
    let mut rebuild = Rebuild::new(old);
    for id in old.ids() {
        rebuild.copy(id)?;
    }
    let mut body = rebuild.new.clone();
    for (number, at) in kept.iter().enumerate() {
        body.output(number.to_string(), rebuild.place(old.outputs()[*at].value));
    }
    crate::dce::remove_dead_code(&mut body)?;
    let numbers = kept.into_iter().enumerate().map(|(new, old)| (old, new)).collect();
    Ok((Scan { body: body.into(), ..scan.clone() }, numbers))
}

/// Puts other bodies into loops, each by `change`.
pub(crate) fn change_bodies(graph: &mut Graph, change: impl Fn(&mut Graph) -> Result<()>) -> Result<()> {
    let mut changed = BTreeMap::new();
    for id in graph.ids() {
        if let Op::Scan(scan) = &graph[id].op {
            let mut body = scan.body.graph().clone();
            change(&mut body)?;
            changed.insert(id, Scan { body: body.into(), ..scan.clone() });
        }
    }
    replace(graph, &changed)
}

/// Puts other loops in the place of nodes.
///
/// # Errors
/// A loop has another type than the node in whose place it is put.
pub(crate) fn replace(graph: &mut Graph, by: &BTreeMap<ValueId, Scan>) -> Result<()> {
    if by.is_empty() {
        return Ok(());
    }
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        match by.get(&id) {
            Some(scan) => {
                let operands = rebuild.operands(&graph[id]);
                let new = rebuild.builder(id).op(scan.clone(), &operands)?;
                rebuild.replace(id, new);
            }
            None => {
                rebuild.copy(id)?;
            }
        }
    }
    *graph = rebuild.finish();
    Ok(())
}
