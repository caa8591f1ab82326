//! Loops: a node for each result that anything reads, and a body that computes no more than these.
//!
//! ```text
//! %3 = scan %0, %1 {result = 0, body: h, z, gates}     %3 = scan %0, %1 {result = 0, body: h, gates}
//! %4 = scan %0, %1 {result = 2, body: h, z, gates}  →  %4 = scan %0, %1 {result = 1, body: h, gates}
//! ```
//!
//! Tracing lets a body hand out whatever backward might want, so this is also where the rest goes.

use crate::Rebuild;
use crate::runner::{self, PIPELINE, PassError};
use kernfusion_ir::{Body, Graph, IrError, Op, Result, Scan, ValueId};
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

/// Simplifies the bodies of all loops.
pub(crate) fn simplify_bodies(graph: &mut Graph) -> Result<()> {
    let mut simple: BTreeMap<ValueId, Scan> = BTreeMap::new();
    for nodes in loops(graph) {
        let wanted = nodes.iter().map(|&id| scan(graph, id).result).collect();
        let (mut whole, numbers) = with_results(scan(graph, nodes[0]), &wanted)?;
        let mut body = whole.body.graph().clone();
        runner::run(&mut body, PIPELINE, None, &mut |_, _| {})
            .map_err(|error| broken(graph, nodes[0], &error))?;
        whole.body = Body::from(body);
        for id in nodes {
            simple.insert(id, whole.with_result(numbers[&scan(graph, id).result]));
        }
    }
    replace(graph, &simple)
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

fn replace(graph: &mut Graph, by: &BTreeMap<ValueId, Scan>) -> Result<()> {
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

fn broken(graph: &Graph, id: ValueId, error: &PassError) -> IrError {
    let origin = graph[id].origin.clone();
    IrError::Type { op: "scan", operands: String::new(), reason: format!("its body: {error}"), origin }
}
