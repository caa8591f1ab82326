//! From a graph to plans: slices, simplification, fusion, memory.

use super::{Mode, Target};
use crate::error::Result;
use kernfusion_ir::Graph;
use kernfusion_ir::kernel::Plan;
use kernfusion_passes::fuse::{Fusion, fuse};
use kernfusion_passes::plan::plan;
use kernfusion_passes::tile::tile;
use kernfusion_passes::{PassReport, run};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How a program is kept small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thrift {
    /// Slices of the batch, computed one after another; 1 is all at once.
    pub slices: usize,
    /// Whether products that backward needs are computed again instead of kept.
    pub recomputes: bool,
}

impl Thrift {
    /// The whole batch at once, and nothing twice.
    pub const NONE: Thrift = Thrift { slices: 1, recomputes: false };

    /// How to fuse in this mode.
    pub fn fusion(self, mode: Mode) -> Fusion {
        match mode {
            Mode::Compiled if self.recomputes => Fusion::Thrifty,
            Mode::Compiled => Fusion::Full,
            Mode::Eager => Fusion::None,
        }
    }
}

impl std::fmt::Display for Thrift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let again = if self.recomputes { ", products computed again" } else { "" };
        match self.slices {
            1 => write!(f, "the whole batch at once{again}"),
            slices => write!(f, "the batch in {slices} slices{again}"),
        }
    }
}

/// A program with its memory, before code.
#[derive(Debug, Clone)]
pub struct Lowered {
    /// How it is kept small.
    pub thrift: Thrift,
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
pub fn lower(graph: &Graph, target: &Target, thrift: Thrift) -> Result<Lowered> {
    let mut half = Half {
        target,
        fusion: thrift.fusion(target.mode),
        passes: vec![],
        fuse: Duration::ZERO,
        plan: Duration::ZERO,
    };
    let (body, tail, joined) = match thrift.slices {
        1 => (half.lower(graph.clone())?, None, vec![]),
        slices => {
            let tiled = tile(graph, slices)?;
            let body = half.lower(tiled.body)?;
            (body, Some(half.lower(tiled.tail)?), tiled.joined)
        }
    };
    let Half { passes, fuse, plan, .. } = half;
    Ok(Lowered { thrift, body, tail, joined, passes, fuse, plan })
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
        [(&self.body, self.thrift.slices)].into_iter().chain(self.tail.iter().map(|tail| (tail, 1)))
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
