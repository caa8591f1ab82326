//! Programs lowered for some numbers of microbatches, and what that says about the others.

use crate::compile::{Lowered, Stages, Target, lower};
use crate::error::Result;
use kernfusion_ir::Graph;
use kernfusion_ir::kernel::Kernel;
use kernfusion_passes::MemoryStrategy;
use kernfusion_passes::microbatch::{RESERVED, rough_bytes};
use std::collections::BTreeMap;

/// By how much of it an estimate may be wrong: what is decided by size, such as what is computed again, may differ between numbers of
/// microbatches.
const MARGIN: f64 = 0.06;

/// What the arena of a program is to its rough size, more or less: it has room for what does not live to the end of forward.
const ROUGH: f64 = 0.7;

/// What a program takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Size {
    /// Bytes of the arena.
    pub(super) arena: usize,
    /// Those and the bytes of all states, accumulators among them.
    pub(super) own: usize,
}

/// Everything that was lowered on the way to a choice.
pub(super) struct Trials<'a> {
    pub(super) graph: &'a Graph,
    pub(super) target: &'a Target,
    /// Whether one number of microbatches says anything about another: on a GPU there is more than plans tell.
    estimates: bool,
    /// By recomputing and microbatches.
    lowered: BTreeMap<(bool, usize), Lowered>,
    /// What the program takes roughly, of values that have the batch and of others, once that was asked for.
    rough: Option<Option<(usize, usize)>>,
}

impl<'a> Trials<'a> {
    pub(super) fn new(graph: &'a Graph, target: &'a Target) -> Self {
        let estimates = !target.is_on_gpu();
        Trials { graph, target, estimates, lowered: BTreeMap::new(), rough: None }
    }

    /// Trials that lower whatever is asked about.
    #[cfg(test)]
    pub(super) fn exhaustive(graph: &'a Graph, target: &'a Target) -> Self {
        Trials { estimates: false, ..Trials::new(graph, target) }
    }

    /// How many programs were lowered.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lowered.len()
    }

    /// The program lowered like this.
    pub(super) fn lowered(&mut self, memory: MemoryStrategy) -> Result<&Lowered> {
        let key = (memory.recompute, memory.microbatches);
        if !self.lowered.contains_key(&key) {
            let lowered = lower(self.graph, self.target, memory)?;
            self.lowered.insert(key, lowered);
        }
        Ok(&self.lowered[&key])
    }

    /// As `lowered`, at the end.
    pub(super) fn take(&mut self, memory: MemoryStrategy) -> Result<Lowered> {
        match self.lowered.remove(&(memory.recompute, memory.microbatches)) {
            Some(lowered) => Ok(lowered),
            None => lower(self.graph, self.target, memory),
        }
    }

    /// Whether the batch can be divided so; much quicker than to lower the program.
    pub(super) fn divides(&self, memory: MemoryStrategy) -> Result<()> {
        Stages::new(self.target, memory).divide(self.graph).map(|_| ())
    }

    /// Lowers the first of the candidates, ascending, whose arena is likely to be within the budget, or the last one, unless it is known
    /// already what such candidates need. A batch that cannot be divided is no error here.
    pub(super) fn guess(&mut self, candidates: &[MemoryStrategy], budget: usize) -> Result<()> {
        let Some(&first) = candidates.first().filter(|_| self.estimates && candidates.len() > 1) else {
            return Ok(());
        };
        if self.reference(first).is_some()
            || self.lowered.contains_key(&(first.recompute, first.microbatches))
        {
            return Ok(());
        }
        let Some((sliced, others)) = *self.rough.get_or_insert_with(|| rough_bytes(self.graph)) else {
            return Ok(());
        };
        let ranks = self.target.rank_count();
        // What the whole batch takes says how rough it is.
        let whole = self.lowered.get(&(first.recompute, 1)).map(|whole| whole.program.arena_bytes() as f64);
        let correction = whole.map_or(ROUGH, |whole| whole / (sliced / ranks + others).max(1) as f64);
        let rough = |memory: &MemoryStrategy| {
            correction * (others as f64 + sliced as f64 / (ranks * memory.microbatches) as f64)
        };
        let likely = candidates.iter().find(|memory| rough(memory) <= budget as f64);
        match self.lowered(*likely.unwrap_or(&candidates[candidates.len() - 1])) {
            Err(crate::Error::Microbatch(_)) => Ok(()),
            lowered => lowered.map(|_| ()),
        }
    }

    /// A program that was lowered in other microbatches, the most similar one.
    fn reference(&self, memory: MemoryStrategy) -> Option<&Lowered> {
        let lowered = self
            .lowered
            .range((memory.recompute, 2)..=(memory.recompute, usize::MAX))
            .map(|(_, lowered)| lowered);
        let distance = |other: &&Lowered| other.memory.microbatches.abs_diff(memory.microbatches);
        lowered.filter(|lowered| self.estimates && lowered.batch_types.is_some()).min_by_key(distance)
    }

    /// What a program takes, at least and at most.
    fn bounds(&self, memory: MemoryStrategy) -> (Size, Size) {
        let key = (memory.recompute, memory.microbatches);
        if let Some(lowered) = self.lowered.get(&key) {
            let size = size(lowered);
            return (size, size);
        }
        let unknown = (Size { arena: 0, own: 0 }, Size { arena: usize::MAX, own: usize::MAX });
        let estimated = |reference| estimate(reference, memory.microbatches, self.target.rank_count());
        self.reference(memory).map_or(unknown, estimated)
    }

    /// What it takes by a measure that grows as [`Size::own`] does, at least. `None` if nothing is known.
    pub(super) fn at_least(
        &self,
        memory: MemoryStrategy,
        measure: impl Fn(&Lowered) -> Result<usize>,
    ) -> Result<Option<usize>> {
        // An arena that is shared is not counted, if it is large enough.
        let Some(reference) = self.reference(memory).filter(|_| self.target.arena.is_none()) else {
            return Ok(None);
        };
        let (least, of) = (self.bounds(memory).0.own, size(reference).own);
        Ok(Some((measure(reference)? + least).saturating_sub(of)))
    }

    /// Whether a program's arena is within a budget. If it is, the program has been lowered.
    pub(super) fn fits(&mut self, memory: MemoryStrategy, budget: usize) -> Result<bool> {
        if self.bounds(memory).0.arena > budget {
            return self.divides(memory).map(|()| false);
        }
        self.lowered(memory).map(|lowered| size(lowered).arena <= budget)
    }

    /// As `fits`, without lowering the program where an estimate says it.
    pub(super) fn is_within(&mut self, memory: MemoryStrategy, budget: usize) -> Result<bool> {
        let (least, most) = self.bounds(memory);
        match least.arena <= budget && most.arena > budget {
            true => self.fits(memory, budget),
            false => Ok(most.arena <= budget),
        }
    }

    /// Whether one program takes less than another.
    pub(super) fn is_smaller(&mut self, one: MemoryStrategy, other: MemoryStrategy) -> Result<bool> {
        if self.bounds(one).0.own < self.bounds(other).1.own
            && self.bounds(one).1.own >= self.bounds(other).0.own
        {
            self.lowered(one)?;
            self.lowered(other)?;
        }
        self.divides(one).map(|()| self.bounds(one).1.own < self.bounds(other).0.own)
    }
}

fn size(lowered: &Lowered) -> Size {
    let arena = lowered.program.arena_bytes();
    Size { arena, own: arena + lowered.program.state_bytes() }
}

/// What a program would take in another number of microbatches, at least and at most.
fn estimate(reference: &Lowered, microbatches: usize, ranks: usize) -> (Size, Size) {
    let types = reference.batch_types.as_ref().expect("a reference has them");
    let divided = reference.program.microbatches.as_ref().expect("a reference is divided");
    let rows = (reference.memory.microbatches, microbatches);
    let (least, most) = types.arena_bytes(&reference.program.body, rows);
    let (least, most) = ((least as f64 * (1.0 - MARGIN)) as usize, (most as f64 * (1.0 + MARGIN)) as usize);
    let states = reference.program.states();
    let sums: usize =
        states.iter().filter(|(name, _)| name.starts_with(RESERVED)).map(|(_, bytes)| bytes).sum();
    let all: usize = states.values().sum();
    let tail = divided.tail.arena_bytes;
    if microbatches * ranks > 1 {
        let with = |arena: usize| Size { arena, own: arena.saturating_add(all) };
        return (with(least.max(tail)), with(most.max(tail)));
    }
    // The whole has no accumulators, but what the tail reads of them more than once is kept by it.
    let reads = |name: &str| {
        let graph = &divided.tail.graph;
        let is_read =
            |kernel: &&Kernel| kernel.reads().iter().any(|&buffer| graph.buffer(buffer).name == name);
        graph.kernels.iter().filter(is_read).count()
    };
    let kept = states.iter().filter(|(name, _)| name.starts_with(RESERVED) && reads(name) > 1);
    let kept: usize = kept.map(|(_, bytes)| bytes).sum();
    let with = |arena: usize| Size { arena, own: arena.saturating_add(all - sums) };
    (with(least), with(most.saturating_add(kept + tail)))
}
