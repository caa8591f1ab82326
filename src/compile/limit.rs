//! How many slices: the fewest within a memory limit, or without a limit the fewest that are not wasteful.
//!
//! What a program needs is known from its plans before any code exists: new states, and the arena. What the process has
//! already is measured; for what code generation and running take beside, there is an allowance.

use super::process::resident_bytes;
use super::{Lowered, Mode, Target};
use crate::error::{Error, Result};
use kernfusion_codegen::States;
use kernfusion_ir::Graph;
use kernfusion_passes::tile::{TileError, batch_extent};

/// Memory beside plans: machine code and what its generation leaves behind, batches.
const ALLOWANCE: usize = 24 << 20;

/// An arena beyond this is computed in slices where nothing else is asked for: slices of this size take no longer than the
/// whole batch, since their products still fill all threads.
const ROOMY: usize = 512 << 20;

/// Memory of each thread: packed operands, rows, its stack.
const THREAD_ALLOWANCE: usize = 8 << 20;

/// A memory limit that cannot be met.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// No number of slices fits.
    #[error(
        "the memory limit of {} is {} too small: this program takes {} at least{}",
        mebibytes(*limit), mebibytes(needed - limit), mebibytes(*needed), in_slices(*slices)
    )]
    TooSmall {
        /// The limit in bytes.
        limit: usize,
        /// The least number of bytes that would do.
        needed: usize,
        /// The number of slices with which it would.
        slices: usize,
    },
    /// It does not fit at once, and not in slices for another reason.
    #[error("the memory limit of {} is {} too small, and the program {cause}", mebibytes(*limit), mebibytes(needed - limit))]
    Whole {
        /// The limit in bytes.
        limit: usize,
        /// Bytes that the program takes at once.
        needed: usize,
        /// Why it cannot be computed in slices.
        cause: TileError,
    },
}

/// The program in the fewest slices that fit into the arena that the target shares, if any do. What else the process holds
/// plays no part, so that the choice is the same every time.
pub(super) fn within_arena(
    graph: &Graph,
    target: &Target,
    lowered: impl Fn(usize) -> Result<Lowered>,
) -> Result<Option<Lowered>> {
    // Eager mode has no arena.
    let free = target.slices.is_none() && target.mode == Mode::Compiled;
    let Some(arena) = target.arena.as_ref().filter(|_| free) else { return Ok(None) };
    for slices in candidates(graph, target) {
        match lowered(slices) {
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
    lowered: impl Fn(usize) -> Result<Lowered>,
) -> Result<Lowered> {
    let whole = lowered(target.slices.unwrap_or(1))?;
    if target.slices.is_some() || target.mode == Mode::Eager || whole.arena_bytes() <= ROOMY {
        return Ok(whole);
    }
    // A slice takes its share of the arena at least, so fewer slices need no trial.
    let wanted = whole.arena_bytes().div_ceil(ROOMY);
    let mut best = whole;
    for slices in candidates(graph, target).into_iter().filter(|&slices| slices >= wanted) {
        let sliced = match lowered(slices) {
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

/// Compiles with the fewest slices whose memory is within the limit, or with as many as the target says.
///
/// # Errors
/// If that is not possible: by how much the best possibility misses the limit.
pub(super) fn within<T>(
    limit: usize,
    graph: &Graph,
    states: &States,
    target: &Target,
    lowered: impl Fn(usize) -> Result<Lowered>,
    compiled: impl Fn(Lowered) -> Result<T>,
) -> Result<T> {
    let mut least: Option<(usize, usize)> = None;
    for slices in candidates(graph, target) {
        let lowered = match (lowered(slices), least) {
            (Err(Error::Tile(cause)), Some((needed, _))) => {
                return Err(LimitError::Whole { limit, needed, cause }.into());
            }
            (lowered, _) => lowered?,
        };
        let needed = process_bytes(&lowered, states, target);
        if needed <= limit {
            return compiled(lowered);
        }
        if least.is_none_or(|(before, _)| needed < before) {
            least = Some((needed, slices));
        }
    }
    let (needed, slices) = least.expect("one slice is always a candidate");
    Err(LimitError::TooSmall { limit, needed, slices }.into())
}

/// The most bytes that the process will have when the program runs, apart from what is measured as 0 where the system does
/// not tell.
pub(super) fn process_bytes(lowered: &Lowered, states: &States, target: &Target) -> usize {
    let new = lowered.states().into_iter().filter(|(name, _)| states.ty(name).is_none());
    let arena = lowered.arena_bytes();
    let shares = target.arena.as_ref().is_some_and(|shared| shared.len() >= arena);
    let program = new.map(|(_, bytes)| bytes).sum::<usize>() + if shares { 0 } else { arena };
    resident_bytes() + program + ALLOWANCE + target.thread_count() * THREAD_ALLOWANCE
}

fn candidates(graph: &Graph, target: &Target) -> Vec<usize> {
    if let Some(slices) = target.slices {
        return vec![slices];
    }
    let extent = batch_extent(graph).unwrap_or(1).max(1);
    (1..=extent).filter(|slices| extent.is_multiple_of(*slices)).collect()
}

fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

fn in_slices(slices: usize) -> String {
    if slices == 1 { String::new() } else { format!(" (its batch in {slices} slices)") }
}
