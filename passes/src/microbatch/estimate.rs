//! What a program would take in another number of microbatches, from what it takes in one, and roughly what it takes at all, before
//! anything is simplified or fused.
//!
//! A plan of `n` microbatches is one of `m` microbatches but for the extents of values that have the batch: these grow with its rows, and
//! all others stay. Decisions of simplification and fusion depend on extents, too, so the estimate may be wrong by a little.

use super::batch_dependence::{BatchDependence, Classes};
use super::batched;
use crate::fuse::{continued_state, decides_alike, widened_states};
use kernfusion_ir::kernel::{Place, Plan};
use kernfusion_ir::{Graph, KernelEntry, Op, TensorType, ValueId};
use std::collections::HashSet;

/// A sum of at most this many products is computed within a chain, and not stored where it is larger than its operands.
const SHORT: usize = 160;

/// The types of values that a body computes: of those that have the batch, and of those that do not.
#[derive(Debug, Clone, Default)]
pub struct BatchTypes {
    sliced: HashSet<TensorType>,
    others: HashSet<TensorType>,
}

impl BatchTypes {
    /// Those of a program whose batch is divided. Views and what is generated are never stored, whatever their types.
    pub(super) fn of(graph: &Graph, classes: &Classes, microbatches: usize) -> Self {
        let live = graph.needed(graph.outputs().iter().map(|output| output.value), |_| false);
        let mut types = BatchTypes::default();
        for id in graph.ids().filter(|id| live[id.index()]) {
            let mut ty = graph[id].ty.clone();
            match (classes.get(id), graph[id].op.entry()) {
                (BatchDependence::Sliced(axis), _) => {
                    ty.shape[axis] /= microbatches;
                    types.sliced.insert(ty);
                }
                (_, KernelEntry::View | KernelEntry::Generated) => {}
                _ => {
                    types.others.insert(ty);
                }
            }
        }
        types
    }

    /// Whether a buffer has the batch, if that can be said: by its type, else by its size, since simplification reshapes.
    fn has_batch(&self, ty: &TensorType) -> Option<bool> {
        let alike = |other: &TensorType| other.dtype == ty.dtype && other.elements() == ty.elements();
        let of = |types: &HashSet<TensorType>| (types.contains(ty), types.iter().any(alike));
        let (sliced, others) = (of(&self.sliced), of(&self.others));
        match (sliced.0, others.0) {
            (true, true) => None,
            (false, false) => (sliced.1 != others.1).then_some(sliced.1),
            (is_sliced, _) => Some(is_sliced),
        }
    }

    /// Bytes of the arena of a body with these types, at least and at most, if it had `rows.0` rows of the batch for each `rows.1`. Where
    /// fusion may decide otherwise about what is so much larger or smaller, that says little.
    pub fn arena_bytes(&self, body: &Plan, rows: (usize, usize)) -> (usize, usize) {
        let buffers = &body.graph.buffers;
        let kinds: Vec<_> = buffers.iter().map(|buffer| self.has_batch(&buffer.ty)).collect();
        let scaled = |bytes: usize| (bytes as u128 * rows.0 as u128).div_ceil(rows.1 as u128) as usize;
        let (fewer, more) = (rows.0 < rows.1, rows.0 > rows.1);
        let is_unsure = |buffer: usize| {
            let bytes = buffers[buffer].ty.bytes();
            kinds[buffer] != Some(false) && !decides_alike(bytes, scaled(bytes))
        };
        let in_arena = |buffer: &usize| matches!(body.places[*buffer], Place::Arena { .. });
        let is_open = fewer && (0..buffers.len()).filter(in_arena).any(is_unsure);
        let bound = |is_least: bool| {
            crate::plan::arena_bytes(body, |buffer| {
                let (buffer, bytes) = (usize::from(buffer), body.graph.buffer(buffer).ty.bytes());
                match kinds[buffer] {
                    // What is larger may be computed again or not be stored at all.
                    _ if is_least && more && is_unsure(buffer) => 0,
                    Some(true) => scaled(bytes),
                    Some(false) => bytes,
                    None if is_least => bytes.min(scaled(bytes)),
                    None => bytes.max(scaled(bytes)),
                }
            })
        };
        (bound(true), if is_open { usize::MAX } else { bound(false) })
    }
}

/// Roughly, bytes that a program keeps at its fullest moment: of values that have the batch, and of all others. It counts what products
/// read and give; nothing else is stored for long. `None` if the batch cannot be followed through it.
pub fn rough_bytes(graph: &Graph) -> Option<(usize, usize)> {
    let classes = Classes::of(graph, &batched(graph), 1).ok()?;
    let live = graph.needed(graph.outputs().iter().map(|output| output.value), |_| false);
    let stored = stored(graph);
    // The last reader of each value, through what is computed where it is read.
    let mut last: Vec<usize> = graph.ids().map(|id| id.index()).collect();
    for id in graph.ids().rev().filter(|id| live[id.index()]) {
        let end = if stored[id.index()] { id.index() } else { last[id.index()] };
        graph[id].operands.iter().for_each(|operand| last[operand.index()] = last[operand.index()].max(end));
    }
    // What begins and ends its life at each value.
    let mut changes = vec![(0isize, 0isize); graph.len() + 1];
    for id in graph.ids().filter(|id| live[id.index()] && stored[id.index()]) {
        let bytes = graph[id].ty.bytes() as isize;
        let (begin, end) = (id.index(), last[id.index()] + 1);
        let is_sliced = is_sliced(&classes, id);
        for (place, bytes) in [(begin, bytes), (end, -bytes)] {
            let change = &mut changes[place];
            if is_sliced { change.0 += bytes } else { change.1 += bytes }
        }
    }
    let (mut now, mut most) = ((0, 0), (0, 0));
    for change in changes {
        now = (now.0 + change.0, now.1 + change.1);
        if now.0 + now.1 > most.0 + most.1 {
            most = now;
        }
    }
    Some((most.0 as usize, most.1 as usize))
}

/// Whether each value is taken for one that is stored: results of products and their operands, and what moves elements, but not what
/// lies between the products of a chain.
fn stored(graph: &Graph) -> Vec<bool> {
    let (mut stored, widened) = (vec![false; graph.len()], widened_states(graph));
    let mut chained = vec![false; graph.len()];
    for id in graph.ids() {
        let node = &graph[id];
        let elements = |id: &ValueId| graph[*id].ty.elements();
        match (&node.op, node.op.entry()) {
            (Op::DotGeneral(dot), _) => {
                let shape = &graph[node.operands[0]].ty.shape;
                let depth: usize = dot.lhs_contract.iter().map(|&axis| shape[axis]).product();
                let grows = node.operands.iter().all(|operand| elements(operand) < node.ty.elements());
                chained[id.index()] = depth <= SHORT && grows;
                stored[id.index()] = !chained[id.index()];
                for &operand in &node.operands {
                    let base = base(graph, operand);
                    let is_computed = !matches!(graph[base].op, Op::Input(_))
                        && graph[base].op.entry() != KernelEntry::Generated
                        && !widened[base.index()]
                        && continued_state(graph, base).is_none();
                    stored[base.index()] |= is_computed && !chained[base.index()];
                }
            }
            // Zeros around a value are where it is read.
            (Op::Pad(_), _) => {}
            // What changes a part of a state is written where the state lies.
            (Op::DynamicUpdate(_), _) if continued_state(graph, id).is_some() => {}
            (
                _,
                KernelEntry::Movement | KernelEntry::Scatter | KernelEntry::Loop | KernelEntry::Collective,
            ) => stored[id.index()] = true,
            (_, KernelEntry::Scalar | KernelEntry::View) => {
                let same = |operand: &&ValueId| elements(operand) == node.ty.elements();
                chained[id.index()] =
                    node.operands.iter().filter(same).any(|operand| chained[operand.index()]);
            }
            _ => {}
        }
    }
    stored
}

/// What a value is a view of.
fn base(graph: &Graph, id: ValueId) -> ValueId {
    match graph[id].op.entry() {
        KernelEntry::View => base(graph, graph[id].operands[0]),
        _ => id,
    }
}

fn is_sliced(classes: &Classes, id: ValueId) -> bool {
    matches!(classes.get(id), BatchDependence::Sliced(_))
}
