//! Choosing how a program is kept small: the fewest microbatches within a budget, then products computed again as well; without a
//! budget the fewest microbatches that are not wasteful.
//!
//! What a program needs is known from its plans before any code exists. What the process has already is measured. Lowering takes most of
//! the time of compiling, so a program is lowered for one number of microbatches that looks right, its plan says within some percent what
//! the others would need ([`Trials`]), and they are lowered only where that leaves a doubt. The choice is what it would be if all were
//! lowered.

#[cfg(test)]
mod tests;
mod trials;

use super::{Lowered, Mode, Target};
use crate::error::{Error, LimitError, Result};
use kernfusion_codegen::{Backend, States};
use kernfusion_ir::Graph;
use kernfusion_passes::MemoryStrategy;
use kernfusion_passes::microbatch::batch_extent;
use trials::Trials;

/// An arena in the memory of the CPU that is larger is computed in microbatches where nothing else is asked for: microbatches of this size
/// take no longer than the whole batch, since their products still fill all threads.
const ROOMY: usize = 256 << 20;

/// A program lowered as the target asks for, in a process that has `in_use` bytes already.
///
/// # Errors
/// A limit cannot be met: by how much the best possibility misses it. Or as [`lower`](super::lower).
pub(super) fn choose(
    graph: &Graph,
    states: &States,
    target: &Target,
    backend: &dyn Backend,
    in_use: usize,
) -> Result<Lowered> {
    let mut trials = Trials::new(graph, target);
    let chosen = match (within_arena(&mut trials)?, target.memory_limit) {
        (Some(memory), _) => memory,
        (None, None) => unlimited(&mut trials, ROOMY)?,
        (None, Some(limit)) => within((limit, in_use), &mut trials, states, backend)?,
    };
    trials.take(chosen)
}

/// Whether the number of microbatches is to be chosen without a limit: on the CPU, and not in eager mode, which has no arena.
fn is_free(target: &Target) -> bool {
    target.microbatches.is_none() && target.mode == Mode::Compiled && !target.is_on_gpu()
}

/// The fewest microbatches that fit into the arena that the target shares, if any do. What else the process holds plays no part, so that
/// the choice is the same every time.
fn within_arena(trials: &mut Trials<'_>) -> Result<Option<MemoryStrategy>> {
    let Some(arena) = trials.target.arena.as_ref().filter(|_| is_free(trials.target)) else {
        return Ok(None);
    };
    let bytes = arena.len();
    let candidates = candidates(trials.graph, trials.target);
    for (tried, &memory) in candidates.iter().enumerate() {
        trials.guess(&candidates[tried..], bytes)?;
        match trials.fits(memory, bytes) {
            Err(Error::Microbatch(_)) => return Ok(None),
            Err(error) => return Err(error),
            Ok(true) => return Ok(Some(memory)),
            Ok(false) => {}
        }
    }
    Ok(None)
}

/// As many microbatches as the target says, else the fewest whose arena is at most `roomy`, if there are such and accumulators take
/// less than microbatches save. On a GPU, one.
fn unlimited(trials: &mut Trials<'_>, roomy: usize) -> Result<MemoryStrategy> {
    let target = trials.target;
    let whole =
        MemoryStrategy { microbatches: target.microbatches.unwrap_or(1), recompute: target.recompute };
    if !is_free(target) {
        return Ok(whole);
    }
    let candidates = candidates(trials.graph, target);
    trials.guess(&candidates, roomy)?;
    if trials.fits(whole, roomy)? {
        return Ok(whole);
    }
    trials.guess(&candidates[1..], roomy)?;
    let mut best = whole;
    for &memory in &candidates[1..] {
        // A microbatch takes its share of the arena at least, so fewer microbatches need no trial.
        if !trials.is_within(whole, roomy.saturating_mul(memory.microbatches))? {
            continue;
        }
        match trials.is_smaller(memory, best) {
            Err(Error::Microbatch(_)) => break,
            Err(error) => return Err(error),
            Ok(true) => best = memory,
            Ok(false) => break,
        }
        if trials.fits(best, roomy)? {
            break;
        }
    }
    Ok(best)
}

/// The fewest microbatches whose memory is within the limit, or as many as the target says; products are computed again if that is not
/// enough.
fn within(
    (limit, in_use): (usize, usize),
    trials: &mut Trials<'_>,
    states: &States,
    backend: &dyn Backend,
) -> Result<MemoryStrategy> {
    let target = trials.target;
    let kept = candidates(trials.graph, target);
    let again = kept.iter().map(|&memory| MemoryStrategy { recompute: true, ..memory });
    let again: Vec<_> = again.filter(|_| !target.recompute).collect();
    let needed = |lowered: &Lowered| Ok::<_, Error>(in_use + backend.bytes_needed(&lowered.program, states)?);
    let (mut least, mut uncut): (Option<(usize, MemoryStrategy)>, _) = (None, None);
    let mut doubtful: Vec<MemoryStrategy> = vec![];
    for candidates in [kept, again] {
        for (tried, &memory) in candidates.iter().enumerate() {
            if uncut.is_some() && memory.microbatches > 1 {
                continue;
            }
            trials.guess(&candidates[tried..], limit.saturating_sub(in_use))?;
            let bound = trials.at_least(memory, needed)?;
            let lowered = match bound.is_some_and(|bound| bound > limit) {
                true => trials.divides(memory).map(|()| None),
                false => trials.lowered(memory).map(Some),
            };
            let lowered = match lowered {
                Err(Error::Microbatch(cause)) if target.microbatches.is_none() => {
                    uncut = Some(cause);
                    continue;
                }
                lowered => lowered?,
            };
            let Some(lowered) = lowered else {
                doubtful.push(memory);
                continue;
            };
            let needed = needed(lowered)?;
            if needed <= limit {
                return Ok(memory);
            }
            if least.is_none_or(|(before, _)| needed < before) {
                least = Some((needed, memory));
            }
        }
    }
    // Nothing fits. What comes closest is told exactly.
    let key = |(needed, memory): (usize, MemoryStrategy)| (needed, memory.recompute, memory.microbatches);
    for memory in doubtful {
        let bound = trials.at_least(memory, needed)?;
        if least.is_none_or(|(least, _)| bound.is_none_or(|bound| bound <= least)) {
            let one = (needed(trials.lowered(memory)?)?, memory);
            least = least.filter(|&least| key(least) <= key(one)).or(Some(one));
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
    let extent = (batch_extent(graph).unwrap_or(1) / target.rank_count()).max(1);
    let divisors = (1..=extent).filter(|microbatches| extent.is_multiple_of(*microbatches));
    divisors.map(|microbatches| MemoryStrategy { microbatches, recompute }).collect()
}
