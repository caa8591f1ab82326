//! From a graph to plans: microbatches, simplification, fusion, memory.

use super::Target;
use crate::error::Result;
use kernfusion_ir::kernel::{Microbatches, Plan, ProgramPlan};
use kernfusion_ir::{Graph, InputRole};
use kernfusion_passes::fuse::{Fusion, fuse};
use kernfusion_passes::microbatch::{Divided, INDEX, divide};
use kernfusion_passes::plan::plan;
use kernfusion_passes::{MemoryStrategy, PassReport, run};
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
}

/// Lowers a program to plans that take as little memory.
///
/// # Errors
/// If the batch cannot be cut so, a pass fails, or an op has no kernel.
pub fn lower(graph: &Graph, target: &Target, memory: MemoryStrategy) -> Result<Lowered> {
    let mut half = GraphLowering {
        target,
        fusion: target.mode.fusion(memory),
        passes: vec![],
        fuse: Duration::ZERO,
        plan: Duration::ZERO,
    };
    let program = match memory.microbatches {
        1 => ProgramPlan::whole(half.lower(graph.clone())?),
        microbatches => {
            let Divided { body, tail, joined, .. } = divide(graph, microbatches)?;
            let body = half.lower(body)?;
            ProgramPlan::divided(body, division(graph, microbatches, half.lower(tail)?, &joined))
        }
    };
    let GraphLowering { passes, fuse, plan, .. } = half;
    Ok(Lowered { memory, program, passes, fuse, plan })
}

/// How inputs go to body and tail, and where results come from.
fn division(graph: &Graph, count: usize, tail: Plan, joined: &[(String, usize)]) -> Microbatches {
    let data = graph.inputs().filter(|(_, _, role)| *role == InputRole::Data);
    let inputs = data.map(|(id, name, _)| (name.to_string(), graph[id].ty.clone())).collect();
    let axis = |name: &str| joined.iter().find(|(other, _)| other == name).map(|(_, axis)| *axis);
    let results = graph.outputs().iter().filter(|output| !output.updates_state);
    let outputs = results.map(|output| (output.name.clone(), axis(&output.name))).collect();
    Microbatches { count, index: INDEX.into(), inputs, outputs, tail }
}

/// What was done so far.
struct GraphLowering<'a> {
    target: &'a Target,
    fusion: Fusion,
    passes: Vec<PassReport>,
    fuse: Duration,
    plan: Duration,
}

impl GraphLowering<'_> {
    fn lower(&mut self, mut graph: Graph) -> Result<Plan> {
        self.passes.extend(run(&mut graph, &self.target.passes(), None, &mut |_, _| {})?);
        let start = Instant::now();
        let kernels = fuse(&graph, self.fusion, self.target.accepts())?;
        self.fuse += start.elapsed();
        let start = Instant::now();
        let plan = plan(kernels);
        self.plan += start.elapsed();
        Ok(plan)
    }
}
