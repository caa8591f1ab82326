//! How thrifty: the fewest slices within a memory limit, then products computed again as well; without a limit the fewest
//! slices that are not wasteful.
//!
//! What a program needs is known from its plans before any code exists: new states, and the arena. What the process has
//! already is measured; for what code generation and running take beside, there is an allowance.

use super::process::resident_bytes;
use super::{Lowered, Mode, Target};
use crate::error::{Error, LimitError, Result};
use kernfusion_codegen::States;
use kernfusion_ir::Graph;
use kernfusion_passes::MemoryStrategy;
use kernfusion_passes::tile::batch_extent;

/// Memory beside plans: machine code and what its generation leaves behind, batches.
const ALLOWANCE: usize = 24 << 20;

/// An arena beyond this is computed in slices where nothing else is asked for: slices of this size take no longer than the
/// whole batch, since their products still fill all threads.
const ROOMY: usize = 512 << 20;

/// Memory of each thread: packed operands, rows, its stack.
const THREAD_ALLOWANCE: usize = 8 << 20;

/// The program in the fewest slices that fit into the arena that the target shares, if any do. What else the process holds
/// plays no part, so that the choice is the same every time.
pub(super) fn within_arena(
    graph: &Graph,
    target: &Target,
    lowered: impl Fn(MemoryStrategy) -> Result<Lowered>,
) -> Result<Option<Lowered>> {
    // Eager mode has no arena.
    let free = target.slices.is_none() && target.mode == Mode::Compiled;
    let Some(arena) = target.arena.as_ref().filter(|_| free) else { return Ok(None) };
    for memory in candidates(graph, target) {
        match lowered(memory) {
            Err(Error::Tile(_)) => return Ok(None),
            lowered => {
                let lowered = lowered?;
                if lowered.arena_bytes() <= arena.len() {
                    return Ok(Some(lowered));
                }
            }
        }
    }
    Ok(None)
}

/// The program in as many slices as the target says, else in the fewest whose arena is not larger than [`ROOMY`], as far as
/// that can be had and as accumulators take less than what slices save.
pub(super) fn unlimited(
    graph: &Graph,
    target: &Target,
    lowered: impl Fn(MemoryStrategy) -> Result<Lowered>,
) -> Result<Lowered> {
    let whole =
        lowered(MemoryStrategy { slices: target.slices.unwrap_or(1), recomputes: target.recomputes })?;
    if target.slices.is_some() || target.mode == Mode::Eager || whole.arena_bytes() <= ROOMY {
        return Ok(whole);
    }
    // A slice takes its share of the arena at least, so fewer slices need no trial.
    let wanted = whole.arena_bytes().div_ceil(ROOMY);
    let mut best = whole;
    for memory in candidates(graph, target).into_iter().filter(|memory| memory.slices >= wanted) {
        let sliced = match lowered(memory) {
            Err(Error::Tile(_)) => break,
            lowered => lowered?,
        };
        if own_bytes(&sliced) >= own_bytes(&best) {
            break;
        }
        best = sliced;
        if best.arena_bytes() <= ROOMY {
            break;
        }
    }
    Ok(best)
}

/// The arena and the states of a program, accumulators among them.
fn own_bytes(lowered: &Lowered) -> usize {
    lowered.arena_bytes() + lowered.state_bytes()
}

/// Compiles with the fewest slices whose memory is within the limit, or with as many as the target says; products are
/// computed again if that is not enough.
///
/// # Errors
/// If that is not possible: by how much the best possibility misses the limit.
pub(super) fn within<T>(
    limit: usize,
    graph: &Graph,
    states: &States,
    target: &Target,
    lowered: impl Fn(MemoryStrategy) -> Result<Lowered>,
    compiled: impl Fn(Lowered) -> Result<T>,
) -> Result<T> {
    // Read once, so that possibilities are compared by what they take, whatever else the process does meanwhile.
    let resident = resident_bytes();
    let mut least: Option<(usize, MemoryStrategy)> = None;
    let mut uncut = None;
    let whole = candidates(graph, target);
    let again = whole.iter().map(|&memory| MemoryStrategy { recomputes: true, ..memory });
    let again: Vec<_> = again.filter(|_| !target.recomputes).collect();
    for memory in whole.into_iter().chain(again) {
        if uncut.is_some() && memory.slices > 1 {
            continue;
        }
        let lowered = match (lowered(memory), least) {
            (Err(Error::Tile(cause)), Some(_)) => {
                uncut = Some(cause);
                continue;
            }
            (lowered, _) => lowered?,
        };
        let needed = resident + more_bytes(&lowered, states, target);
        if needed <= limit {
            return compiled(lowered);
        }
        if least.is_none_or(|(before, _)| needed < before) {
            least = Some((needed, memory));
        }
    }
    let (needed, memory) = least.expect("one slice is always a candidate");
    Err(match uncut {
        Some(cause) => LimitError::Whole { limit, needed, cause: Box::new(cause) },
        None => LimitError::TooSmall { limit, needed, memory },
    }
    .into())
}

/// The most bytes that the process will have when the program runs, apart from what is measured as 0 where the system does
/// not tell.
pub(super) fn process_bytes(lowered: &Lowered, states: &States, target: &Target) -> usize {
    resident_bytes() + more_bytes(lowered, states, target)
}

/// What a program takes beside what the process has.
fn more_bytes(lowered: &Lowered, states: &States, target: &Target) -> usize {
    let new = lowered.states().into_iter().filter(|(name, _)| states.ty(name).is_none());
    let arena = lowered.arena_bytes();
    let shares = target.arena.as_ref().is_some_and(|shared| shared.len() >= arena);
    let program = new.map(|(_, bytes)| bytes).sum::<usize>() + if shares { 0 } else { arena };
    program + ALLOWANCE + target.thread_count() * THREAD_ALLOWANCE
}

/// All numbers of slices, the fewest first.
fn candidates(graph: &Graph, target: &Target) -> Vec<MemoryStrategy> {
    let recomputes = target.recomputes;
    if let Some(slices) = target.slices {
        return vec![MemoryStrategy { slices, recomputes }];
    }
    let extent = batch_extent(graph).unwrap_or(1).max(1);
    let divisors = (1..=extent).filter(|slices| extent.is_multiple_of(*slices));
    divisors.map(|slices| MemoryStrategy { slices, recomputes }).collect()
}
