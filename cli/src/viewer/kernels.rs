//! Kernels, their memory and the fusions that were refused.

use super::Options;
use super::code::{KernelCode, Texts};
use kernfusion::roofline::{Floor, floor};
use kernfusion_ir::ValueId;
use kernfusion_ir::kernel::{BufferId, BufferRole, KernelGraph, Place, Plan};
use serde::Serialize;
use std::collections::BTreeMap;

/// A kernel.
#[derive(Debug, Clone, Serialize)]
pub struct KernelRow {
    /// Unique.
    pub name: String,
    /// Its loop structure.
    pub form: &'static str,
    /// The simplified nodes that it computes.
    pub covers: Vec<usize>,
    /// The buffers that it reads.
    pub reads: Vec<usize>,
    /// The buffers that it writes.
    pub writes: Vec<usize>,
    /// Bytes moved at least.
    pub bytes: usize,
    /// Operations.
    pub operations: usize,
    /// The least seconds, and what bounds them.
    pub floor: (f64, &'static str),
    /// Measured seconds, if there are any.
    pub seconds: Option<f64>,
    /// Number of its text.
    pub text: usize,
    /// Numbers of the texts of its code.
    #[serde(flatten)]
    pub code: KernelCode,
}

/// A buffer.
#[derive(Debug, Clone, Serialize)]
pub struct BufferRow {
    /// Name of the input, or one made from scope and op.
    pub name: String,
    /// Element type and shape.
    pub ty: String,
    /// `input`, `state` or `temporary`.
    pub role: &'static str,
    /// Size.
    pub bytes: usize,
    /// The simplified node whose value it holds.
    pub node: Option<usize>,
    /// Where it lies in the arena, itself or what it is an alias of.
    pub offset: Option<usize>,
    /// The buffer whose memory it takes over.
    pub alias: Option<usize>,
    /// The first and the last kernel that touch it; results live one kernel longer than there are.
    pub life: Option<(usize, usize)>,
}

/// A fusion that was not made.
#[derive(Debug, Clone, Serialize)]
pub struct RefusalRow {
    /// The simplified node that is written to memory.
    pub from: Option<usize>,
    /// The simplified node that reads it back.
    pub to: Option<usize>,
    /// Their kernels.
    pub kernels: (Option<usize>, Option<usize>),
    /// Bytes that fusing would have saved.
    pub bytes: usize,
    /// The planner's reason.
    pub reason: String,
}

/// The rows of a plan's kernels.
pub(super) fn kernels(
    plan: &Plan,
    code: &[KernelCode],
    options: &Options,
    texts: &mut Texts,
) -> Vec<KernelRow> {
    let graph = &plan.graph;
    let numbers = |ids: Vec<BufferId>| ids.into_iter().map(|id| id.0 as usize).collect();
    let row = |(kernel, code): (&kernfusion_ir::kernel::Kernel, &KernelCode)| {
        let Floor { seconds, bound } = floor(graph, kernel, &options.peaks, "f32");
        let mut covers: Vec<_> = kernel.covers.iter().flat_map(|&id| sources(graph, id)).collect();
        covers.sort_unstable();
        covers.dedup();
        KernelRow {
            name: kernel.name.clone(),
            form: kernel.form.name(),
            covers,
            reads: numbers(kernel.reads()),
            writes: numbers(kernel.writes()),
            bytes: graph.bytes_moved(kernel),
            operations: kernel.operations(),
            floor: (seconds, bound),
            seconds: options.times.get(&kernel.name).copied(),
            text: texts.add(shown(&graph.show(kernel).to_string())),
            code: code.clone(),
        }
    };
    graph.kernels.iter().zip(code).map(row).collect()
}

/// The text of a kernel without the numbers of nodes of the graph that fusion cut, which are nowhere else in the page.
fn shown(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("  # covers ")).map(|line| format!("{line}\n")).collect()
}

/// The simplified nodes that a node of the graph that fusion cut stands for.
fn sources(graph: &KernelGraph, id: ValueId) -> Vec<usize> {
    let sources = graph.nodes.get(&id).map_or(&[][..], |node| node.origin.sources());
    sources.iter().map(|source| source.index()).collect()
}

/// The rows of a plan's buffers.
pub(super) fn buffers(plan: &Plan) -> Vec<BufferRow> {
    let graph = &plan.graph;
    let lives = lives(graph);
    let row = |(number, buffer): (usize, &kernfusion_ir::kernel::Buffer)| {
        let id = BufferId(number as u32);
        let offset = match plan.place(plan.memory_of(id)) {
            Place::Arena { offset } => Some(offset),
            Place::Own | Place::Unused | Place::Alias(_) => None,
        };
        let alias = match plan.place(id) {
            Place::Alias(target) => Some(target.0 as usize),
            Place::Arena { .. } | Place::Own | Place::Unused => None,
        };
        BufferRow {
            name: buffer.name.clone(),
            ty: buffer.ty.to_string(),
            role: match buffer.role {
                BufferRole::Input => "input",
                BufferRole::State => "state",
                BufferRole::Temporary => "temporary",
            },
            bytes: buffer.ty.bytes(),
            node: graph.values.get(&id).and_then(|value| sources(graph, *value).first().copied()),
            offset,
            alias,
            life: lives.get(&id).copied(),
        }
    };
    graph.buffers.iter().enumerate().map(row).collect()
}

/// First and last use of every buffer that is used.
fn lives(graph: &KernelGraph) -> BTreeMap<BufferId, (usize, usize)> {
    let mut lives: BTreeMap<BufferId, (usize, usize)> = BTreeMap::new();
    for (number, kernel) in graph.kernels.iter().enumerate() {
        for buffer in [kernel.writes(), kernel.reads()].concat() {
            lives.entry(buffer).or_insert((number, number)).1 = number;
        }
    }
    let results = graph.outputs.iter().map(|(_, buffer, _)| *buffer);
    for buffer in results.chain(graph.updates.iter().map(|(_, value)| *value)) {
        if let Some(life) = lives.get_mut(&buffer) {
            life.1 = graph.kernels.len();
        }
    }
    lives
}

/// The rows of the refusals.
pub(super) fn refusals(graph: &KernelGraph) -> Vec<RefusalRow> {
    let covering = |id: &ValueId| graph.kernels.iter().position(|kernel| kernel.covers.contains(id));
    let source = |id: ValueId| sources(graph, id).first().copied();
    let row = |refusal: &kernfusion_ir::kernel::RefusedFusion| {
        let (from, to) = refusal.edge;
        RefusalRow {
            from: source(from),
            to: source(to),
            kernels: (covering(&from), covering(&to)),
            bytes: refusal.bytes,
            reason: refusal.reason.clone(),
        }
    };
    graph.refusals.iter().map(row).collect()
}
