//! Choosing how a program is kept small: the fewest microbatches within a budget, then products computed again as well; without a
//! budget the fewest microbatches that are not wasteful.
//!
//! What a program needs is known from its plans before any code exists. What the process has already is measured.

use super::{Lowered, Mode, Target, lower};
use crate::error::{Error, LimitError, Result};
use kernfusion_codegen::{Backend, States};
use kernfusion_ir::Graph;
use kernfusion_passes::MemoryStrategy;
use kernfusion_passes::microbatch::batch_extent;

/// An arena in the memory of the CPU that is larger is computed in microbatches where nothing else is asked for: microbatches of this size
/// take no longer than the whole batch, since their products still fill all threads.
const ROOMY: usize = 256 << 20;

/// A program lowered as the target asks for, in a process that has `in_use` bytes already.
///
/// # Errors
/// A limit cannot be met: by how much the best possibility misses it. Or as [`lower`].
pub(super) fn choose(
    graph: &Graph,
    states: &States,
    target: &Target,
    backend: &dyn Backend,
    in_use: usize,
) -> Result<Lowered> {
    if let Some(lowered) = within_arena(graph, target)? {
        return Ok(lowered);
    }
    match target.memory_limit {
        None => unlimited(graph, target),
        Some(limit) => within((limit, in_use), graph, states, target, backend),
    }
}

/// The program in the fewest microbatches that fit into the arena that the target shares, if any do. What else the process holds
/// plays no part, so that the choice is the same every time.
fn within_arena(graph: &Graph, target: &Target) -> Result<Option<Lowered>> {
    // Eager mode has no arena.
    let free = target.microbatches.is_none() && target.mode == Mode::Compiled && !target.is_on_gpu();
    let Some(arena) = target.arena.as_ref().filter(|_| free) else { return Ok(None) };
    for memory in candidates(graph, target) {
        match lower(graph, target, memory) {
            Err(Error::Microbatch(_)) => return Ok(None),
            lowered => {
                let lowered = lowered?;
                if lowered.program.arena_bytes() <= arena.len() {
                    return Ok(Some(lowered));
                }
            }
        }
    }
    Ok(None)
}

/// The program in as many microbatches as the target says, else in the fewest whose arena is at most [`ROOMY`], if
/// there are such and accumulators take less than microbatches save. On a GPU, undivided.
fn unlimited(graph: &Graph, target: &Target) -> Result<Lowered> {
    let microbatches = target.microbatches.unwrap_or(1);
    let whole = lower(graph, target, MemoryStrategy { microbatches, recompute: target.recompute })?;
    let is_free = target.microbatches.is_none() && target.mode == Mode::Compiled && !target.is_on_gpu();
    if !is_free || whole.program.arena_bytes() <= ROOMY {
        return Ok(whole);
    }
    // A microbatch takes its share of the arena at least, so fewer microbatches need no trial.
    let wanted = whole.program.arena_bytes().div_ceil(ROOMY);
    let mut best = whole;
    for memory in candidates(graph, target).into_iter().filter(|memory| memory.microbatches >= wanted) {
        let sliced = match lower(graph, target, memory) {
            Err(Error::Microbatch(_)) => break,
            lowered => lowered?,
        };
        if own_bytes(&sliced) >= own_bytes(&best) {
            break;
        }
        best = sliced;
        if best.program.arena_bytes() <= ROOMY {
            break;
        }
    }
    Ok(best)
}

/// The arena and the states of a program, accumulators among them.
fn own_bytes(lowered: &Lowered) -> usize {
    lowered.program.arena_bytes() + lowered.program.state_bytes()
}

/// The program in the fewest microbatches whose memory is within the limit, or in as many as the target says; products are
/// computed again if that is not enough.
fn within(
    (limit, in_use): (usize, usize),
    graph: &Graph,
    states: &States,
    target: &Target,
    backend: &dyn Backend,
) -> Result<Lowered> {
    let mut least: Option<(usize, MemoryStrategy)> = None;
    let mut uncut = None;
    let kept = candidates(graph, target);
    let again = kept.iter().map(|&memory| MemoryStrategy { recompute: true, ..memory });
    let again: Vec<_> = again.filter(|_| !target.recompute).collect();
    for memory in kept.into_iter().chain(again) {
        if uncut.is_some() && memory.microbatches > 1 {
            continue;
        }
        let lowered = match (lower(graph, target, memory), least) {
            (Err(Error::Microbatch(cause)), Some(_)) => {
                uncut = Some(cause);
                continue;
            }
            (lowered, _) => lowered?,
        };
        let needed = in_use + backend.bytes_needed(&lowered.program, states)?;
        if needed <= limit {
            return Ok(lowered);
        }
        if least.is_none_or(|(before, _)| needed < before) {
            least = Some((needed, memory));
        }
    }
    let (needed, memory) = least.expect("one microbatch is always a candidate");
    Err(match uncut {
        Some(cause) => LimitError::Whole { limit, needed, cause: Box::new(cause) },
        None => LimitError::TooSmall { limit, needed, in_use, memory },
    }
    .into())
}

/// All numbers of microbatches, the fewest first: the divisors of the batch, so that all have the same number of rows.
fn candidates(graph: &Graph, target: &Target) -> Vec<MemoryStrategy> {
    let recompute = target.recompute;
    if let Some(microbatches) = target.microbatches {
        return vec![MemoryStrategy { microbatches, recompute }];
    }
    let extent = batch_extent(graph).unwrap_or(1).max(1);
    let divisors = (1..=extent).filter(|microbatches| extent.is_multiple_of(*microbatches));
    divisors.map(|microbatches| MemoryStrategy { microbatches, recompute }).collect()
}
