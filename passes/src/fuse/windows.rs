//! Windows: a kernel that reads one tensor from many places around each point, as convolutions of single channels and pooling do.

use super::both_ways::Walk;
use kernfusion_ir::kernel::{BufferId, Form, Index, InstrKind, Kernel};
use std::collections::BTreeMap;

/// Places from which on they are a window. The rotation of positions reads up to four.
const PLACES: usize = 5;

/// Whether a merged kernel reads in windows what a map in it reads once.
pub(super) fn are_in(merged: &Kernel, map: &Kernel) -> bool {
    let (before, after) = (places(map, |_| true), places(merged, |_| true));
    before.iter().any(|(buffer, count)| after.get(buffer).is_some_and(|places| *places >= PLACES * count))
}

/// Whether a map or a reduction reads a window across its innermost axis, so that a copy in its own order takes less.
pub(super) fn read_across(kernel: &Kernel) -> bool {
    let is_window =
        |walk: Walk| places(kernel, |index| walk.across(index)).values().any(|&places| places >= PLACES);
    matches!(kernel.form, Form::Map | Form::Reduce) && Walk::of(kernel).is_some_and(is_window)
}

/// For each buffer the number of such loads from it.
fn places(kernel: &Kernel, such: impl Fn(&Index) -> bool) -> BTreeMap<BufferId, usize> {
    let mut places = BTreeMap::new();
    for instr in &kernel.region.instrs {
        if let InstrKind::Load { buffer, index, .. } = &instr.kind
            && such(index)
        {
            *places.entry(*buffer).or_default() += 1;
        }
    }
    places
}
