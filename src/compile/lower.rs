//! From a graph to plans: all stages before code.

use super::{Parts, Stages, Target};
use crate::error::Result;
use kernfusion_ir::kernel::{BufferRole, Microbatches, Plan, ProgramPlan};
use kernfusion_ir::{Graph, InputRole};
use kernfusion_passes::microbatch::{BatchTypes, Division, INDEX, RESERVED};
use kernfusion_passes::{MemoryStrategy, PassReport};
use std::time::{Duration, Instant};

/// A program with its memory, before code.
#[derive(Debug, Clone)]
pub struct Lowered {
    /// How it is kept small.
    pub memory: MemoryStrategy,
    /// What runs.
    pub program: ProgramPlan,
    /// The graph passes, those of the body first.
    pub passes: Vec<PassReport>,
    /// How long fusion took.
    pub fuse: Duration,
    /// How long memory planning took.
    pub plan: Duration,
    /// The types of a body's values by whether they have the batch, to estimate what other numbers of microbatches take.
    pub(super) batch_types: Option<BatchTypes>,
}

/// Lowers a program to plans, through all [`Stages`].
///
/// # Errors
/// If the batch cannot be divided so, a pass fails, or an op has no kernel.
pub fn lower(graph: &Graph, target: &Target, memory: MemoryStrategy) -> Result<Lowered> {
    let stages = Stages::new(target, memory);
    let Parts { mut graphs, joined, batch_types } = stages.divide(graph)?;
    let mut passes = vec![];
    for part in &mut graphs {
        passes.extend(stages.simplify(part, None, &mut |_, _| {})?);
    }
    let shards = stages.exchange(graph, &mut graphs)?;
    let (mut fuse, mut plan) = (Duration::ZERO, Duration::ZERO);
    let mut planned = |graph: &Graph| -> Result<Plan> {
        let start = Instant::now();
        let kernels = stages.fuse(graph)?;
        fuse += start.elapsed();
        let start = Instant::now();
        let planned = stages.plan(kernels);
        plan += start.elapsed();
        Ok(planned)
    };
    let plans = graphs.iter().map(&mut planned).collect::<Result<Vec<_>>>()?;
    let mut plans = plans.into_iter();
    let body = plans.next().expect("a program has one part at least");
    let program = match plans.next() {
        None => ProgramPlan::whole(body),
        Some(tail) => {
            let parts = parts(graph, stages.division(graph), &body, tail, &joined);
            ProgramPlan::divided(body, Microbatches { shards, ..parts })
        }
    };
    Ok(Lowered { memory, program, passes, fuse, plan, batch_types })
}

/// How inputs go to body and tail, and where results come from.
fn parts(
    graph: &Graph,
    Division { microbatches: count, ranks }: Division,
    body: &Plan,
    tail: Plan,
    joined: &[(String, usize)],
) -> Microbatches {
    let states = body.graph.buffers.iter().filter(|buffer| buffer.role == BufferRole::State);
    let sums = states.map(|state| state.name.clone()).filter(|name| name.starts_with(RESERVED)).collect();
    let data = graph.inputs().filter(|(_, _, role)| *role == InputRole::Data);
    let inputs = data.map(|(id, name, _)| (name.to_string(), graph[id].ty.clone())).collect();
    let axis = |name: &str| joined.iter().find(|(other, _)| other == name).map(|(_, axis)| *axis);
    let results = graph.outputs().iter().filter(|output| !output.updates_state);
    let outputs = results.map(|output| (output.name.clone(), axis(&output.name))).collect();
    Microbatches { count, ranks, index: INDEX.into(), sums, inputs, outputs, shards: vec![], tail }
}
