//! From a graph to plans: slices, simplification, fusion, memory.

use super::Target;
use crate::error::Result;
use kernfusion_ir::Graph;
use kernfusion_ir::kernel::Plan;
use kernfusion_passes::fuse::{Fusion, fuse};
use kernfusion_passes::plan::plan;
use kernfusion_passes::tile::tile;
use kernfusion_passes::{MemoryStrategy, PassReport, run};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A program with its memory, before code.
#[derive(Debug, Clone)]
pub struct Lowered {
    /// How it is kept small.
    pub memory: MemoryStrategy,
    /// What runs for each slice; the whole program if there is one.
    pub body: Plan,
    /// What runs after the last slice, if there are several.
    pub tail: Option<Plan>,
    /// The results of the body, with the axis along which its slices are joined.
    pub joined: Vec<(String, usize)>,
    /// The graph passes, those of the body first.
    pub passes: Vec<PassReport>,
    /// How long fusion took.
    pub fuse: Duration,
    /// How long memory planning took.
    pub plan: Duration,
}

/// Lowers a program to plans that are as thrifty.
///
/// # Errors
/// If the batch cannot be cut so, a pass fails, or an op has no kernel.
pub fn lower(graph: &Graph, target: &Target, memory: MemoryStrategy) -> Result<Lowered> {
    let mut half = Half {
        target,
        fusion: target.mode.fusion(memory),
        passes: vec![],
        fuse: Duration::ZERO,
        plan: Duration::ZERO,
    };
    let (body, tail, joined) = match memory.slices {
        1 => (half.lower(graph.clone())?, None, vec![]),
        slices => {
            let tiled = tile(graph, slices)?;
            let body = half.lower(tiled.body)?;
            (body, Some(half.lower(tiled.tail)?), tiled.joined)
        }
    };
    let Half { passes, fuse, plan, .. } = half;
    Ok(Lowered { memory, body, tail, joined, passes, fuse, plan })
}

/// What was done so far.
struct Half<'a> {
    target: &'a Target,
    fusion: Fusion,
    passes: Vec<PassReport>,
    fuse: Duration,
    plan: Duration,
}

impl Half<'_> {
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

impl Lowered {
    fn plans(&self) -> impl Iterator<Item = (&Plan, usize)> {
        [(&self.body, self.memory.slices)].into_iter().chain(self.tail.iter().map(|tail| (tail, 1)))
    }

    /// Kernels launched in a run.
    pub fn kernels(&self) -> usize {
        self.plans().map(|(plan, times)| times * plan.graph.kernels.len()).sum()
    }

    /// Bytes that they move at least.
    pub fn bytes_moved(&self) -> usize {
        self.plans().map(|(plan, times)| times * plan.bytes_moved()).sum()
    }

    /// Size of the arena that body and tail share.
    pub fn arena_bytes(&self) -> usize {
        self.plans().map(|(plan, _)| plan.arena_bytes).max().unwrap_or(0)
    }

    /// Size of all states by name, those that sums of slices are kept in among them.
    pub fn states(&self) -> BTreeMap<&str, usize> {
        let buffers = self.plans().flat_map(|(plan, _)| &plan.graph.buffers);
        let states = buffers.filter(|buffer| buffer.role == kernfusion_ir::kernel::BufferRole::State);
        states.map(|buffer| (buffer.name.as_str(), buffer.ty.bytes())).collect()
    }

    /// Size of all states together.
    pub fn state_bytes(&self) -> usize {
        self.states().values().sum()
    }
}
