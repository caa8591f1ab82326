//! Memory planning: a place for every buffer, before anything runs.
//!
//! A temporary lives from the kernel that writes it to the last one that reads it. A kernel may write over an operand
//! that dies with it, if each of its points reads the operand at the very element that it writes; so a state takes its new value in
//! place. All other temporaries share one arena: the largest first, each at the lowest offset that is free for its
//! whole life.

use kernfusion_ir::Exchange;
use kernfusion_ir::kernel::{
    BufferId, BufferRole, Form, InstrKind, Kernel, KernelGraph, Place, Plan, StoreMode,
};
use std::collections::{BTreeMap, BTreeSet};

/// Alignment of arena offsets in bytes: a cache line, so that no two threads share one across buffers.
const ALIGNMENT: usize = 64;

/// Gives every buffer a place.
pub fn plan(graph: KernelGraph) -> Plan {
    plan_beside(graph, &BTreeSet::new())
}

/// As [`plan`], for a program that runs often: what depends on nothing but states is computed first, and kept from run to run. Nothing is kept of
/// a program that writes states, or whose results depend on nothing else.
pub fn plan_prepared(mut graph: KernelGraph) -> Plan {
    let has_inputs = graph.buffers.iter().any(|buffer| buffer.role == BufferRole::Input);
    if !has_inputs || !graph.updates.is_empty() {
        return plan(graph);
    }
    let prepared = of_states_alone(&graph);
    let is_prepared = |kernel: &Kernel| kernel.writes().iter().any(|buffer| prepared.contains(buffer));
    let (first, rest): (Vec<_>, Vec<_>) =
        std::mem::take(&mut graph.kernels).into_iter().partition(is_prepared);
    if rest.is_empty() {
        graph.kernels = first;
        return plan(graph);
    }
    let preparation = first.len();
    graph.kernels = first.into_iter().chain(rest).collect();
    Plan { preparation, ..plan_beside(graph, &prepared) }
}

/// What kernels compute of states. What is computed of nothing is left where it is: it is large for what it says, and quick.
fn of_states_alone(graph: &KernelGraph) -> BTreeSet<BufferId> {
    let mut found = BTreeSet::new();
    for kernel in &graph.kernels {
        let is_known =
            |buffer: &BufferId| found.contains(buffer) || graph.buffer(*buffer).role == BufferRole::State;
        let reads = kernel.reads();
        let is_simple = !matches!(kernel.form, Form::Loop(_) | Form::Collective(_));
        if is_simple && !reads.is_empty() && reads.iter().all(is_known) {
            found.extend(kernel.writes());
        }
    }
    found
}

/// As [`plan`]; these temporaries get memory from elsewhere, and stay.
pub(crate) fn plan_beside(graph: KernelGraph, elsewhere: &BTreeSet<BufferId>) -> Plan {
    let mut places: Vec<Place> = graph
        .buffers
        .iter()
        .map(|buffer| match buffer.role {
            BufferRole::Input | BufferRole::State => Place::Own,
            BufferRole::Temporary => Place::Unused,
        })
        .collect();
    let mut lives = Lives::of(&graph);
    lives.last_read.extend(elsewhere.iter().map(|&buffer| (buffer, graph.kernels.len())));
    let mut memory = lives.spans.clone();
    for (number, buffer) in graph.buffers.iter().enumerate() {
        if let Some(state) = buffer.continues {
            places[number] = Place::Alias(state);
            memory.remove(&BufferId(number as u32));
        }
    }
    for &buffer in elsewhere {
        places[buffer.0 as usize] = Place::Own;
        memory.remove(&buffer);
    }
    alias_in_place(&graph, &lives, &mut places, &mut memory);
    let arena_bytes = share_arena(|buffer| graph.buffer(buffer).ty.bytes(), &memory, &mut places);
    Plan { graph, places, arena_bytes, preparation: 0 }
}

/// The size of a plan's arena if its buffers had these sizes; what writes over what stays.
pub(crate) fn arena_bytes(plan: &Plan, bytes: impl Fn(BufferId) -> usize) -> usize {
    let graph = &plan.graph;
    let in_arena = |buffer: BufferId| matches!(plan.place(buffer), Place::Arena { .. });
    let mut memory: BTreeMap<BufferId, (usize, usize)> = BTreeMap::new();
    let memories = plan.memories();
    for (buffer, life) in Lives::of(graph).spans {
        let owner = memories[usize::from(buffer)];
        if in_arena(owner) {
            let known = memory.entry(owner).or_insert(life);
            *known = (known.0.min(life.0), known.1.max(life.1));
        }
    }
    let mut places = plan.places.clone();
    share_arena(bytes, &memory, &mut places)
}

/// First and last kernel of each temporary's life.
struct Lives {
    spans: BTreeMap<BufferId, (usize, usize)>,
    /// The last kernel that reads each buffer, of any role; the number of kernels if it is an output.
    last_read: BTreeMap<BufferId, usize>,
}

impl Lives {
    fn of(graph: &KernelGraph) -> Self {
        let mut last_read = BTreeMap::new();
        let mut spans = BTreeMap::new();
        for (number, kernel) in graph.kernels.iter().enumerate() {
            for buffer in kernel.writes() {
                spans.insert(buffer, (number, number));
            }
            for buffer in kernel.reads() {
                last_read.insert(buffer, number);
            }
        }
        let end = graph.kernels.len();
        let results = graph.outputs.iter().map(|(_, buffer, _)| *buffer);
        for buffer in results.chain(graph.updates.iter().map(|(_, value)| *value)) {
            last_read.insert(buffer, end);
        }
        for (buffer, span) in &mut spans {
            span.1 = last_read.get(buffer).copied().unwrap_or(span.0);
        }
        Lives { spans, last_read }
    }
}

/// Lets kernels write over operands that die with them. `memory` holds the lives of what needs a place of its own.
fn alias_in_place(
    graph: &KernelGraph,
    lives: &Lives,
    places: &mut [Place],
    memory: &mut BTreeMap<BufferId, (usize, usize)>,
) {
    // Whose memory a buffer has, after aliasing.
    let mut root: BTreeMap<BufferId, BufferId> = BTreeMap::new();
    for (number, kernel) in graph.kernels.iter().enumerate() {
        let mut taken = BTreeSet::new();
        for buffer in kernel.writes() {
            if !memory.contains_key(&buffer) {
                continue;
            }
            let state = graph.updates.iter().find(|(_, value)| *value == buffer).map(|(state, _)| *state);
            let dying = |candidate: &BufferId| lives.last_read.get(candidate) == Some(&number);
            let fits =
                |candidate: &BufferId| dying(candidate) && overwrites(graph, kernel, *candidate, buffer);
            let temporary = |candidate: &BufferId| graph.buffer(*candidate).role == BufferRole::Temporary;
            // A state that is not read any more, or never was, takes its new value wherever that comes from.
            let read_before = |state: &BufferId| lives.last_read.get(state).is_none_or(|&last| last < number);
            let operand = state.filter(|state| read_before(state) || fits(state)).or_else(|| {
                kernel.reads().into_iter().find(|r| temporary(r) && !taken.contains(r) && fits(r))
            });
            let Some(operand) = operand else { continue };
            taken.insert(operand);
            places[buffer.0 as usize] = Place::Alias(operand);
            let owner = root.get(&operand).copied().unwrap_or(operand);
            root.insert(buffer, owner);
            let (_, last) = memory.remove(&buffer).expect("a written buffer has a life");
            if let Some(life) = memory.get_mut(&owner) {
                life.1 = life.1.max(last);
            }
        }
    }
}

/// Whether a kernel may write `to` where `from` lies: each of its points reads `from` only at the element that it writes, which is its own,
/// or it has given `from` to all ranks before. What several points share is computed again for each block of them, and would be made of
/// what the block before wrote.
fn overwrites(graph: &KernelGraph, kernel: &Kernel, from: BufferId, to: BufferId) -> bool {
    if let Form::Collective(call) = &kernel.form {
        return call.op.exchange == Exchange::AllReduce && (call.from, call.to) == (from, to);
    }
    let (a, b) = (&graph.buffer(from).ty, &graph.buffer(to).ty);
    if a.bytes() != b.bytes() || a.dtype.size() != b.dtype.size() {
        return false;
    }
    let [store] = kernel.stores.iter().filter(|store| store.buffer == to).collect::<Vec<_>>()[..] else {
        return false;
    };
    let in_product = kernel.operands().flat_map(|(operand, _)| &operand.region.instrs);
    let reads = |kind: &InstrKind| matches!(kind, InstrKind::Load { buffer, .. } if *buffer == from);
    let here = |kind: &InstrKind| match kind {
        InstrKind::Load { buffer, index: read, guard } if *buffer == from => {
            *read == store.index && guard.is_empty()
        }
        _ => true,
    };
    store.mode == StoreMode::Set
        && store.index.fills(&kernel.domain.axes, a.elements())
        && !in_product.into_iter().any(|instr| reads(&instr.kind))
        && kernel.region.instrs.iter().all(|instr| here(&instr.kind))
}

/// Places what needs memory of its own in the arena; returns the arena's size.
fn share_arena(
    size: impl Fn(BufferId) -> usize,
    memory: &BTreeMap<BufferId, (usize, usize)>,
    places: &mut [Place],
) -> usize {
    let mut order: Vec<_> = memory.iter().map(|(&buffer, &life)| (size(buffer), buffer, life)).collect();
    order.sort_by_key(|&(bytes, buffer, _)| (std::cmp::Reverse(bytes), buffer));
    let mut placed: Vec<(usize, usize, (usize, usize))> = Vec::new();
    let mut arena = 0;
    for (bytes, buffer, life) in order {
        let overlaps = |other: &&(usize, usize, (usize, usize))| other.2.0 <= life.1 && life.0 <= other.2.1;
        let mut busy: Vec<_> = placed.iter().filter(overlaps).map(|&(start, end, _)| (start, end)).collect();
        busy.sort_unstable();
        let mut offset = 0;
        for (start, end) in busy {
            if offset + bytes <= start {
                break;
            }
            offset = offset.max(end);
        }
        let end = offset + bytes.next_multiple_of(ALIGNMENT);
        placed.push((offset, end, life));
        places[buffer.0 as usize] = Place::Arena { offset };
        arena = arena.max(end);
    }
    arena
}
