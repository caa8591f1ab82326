//! Reductions that read the same memory in two orders.
//!
//! A tensor can be as large as another one whose axes are others. Where it has as many rows as columns, a vector with an element for each column could
//! be one with an element for each row: a sum over rows becomes one along columns, of memory that lies along the rows. Or a copy in another order of
//! axes, for the next product, has as many elements as what is reduced.

use kernfusion_ir::kernel::{BufferId, Index, InstrKind, Kernel};
use std::collections::BTreeSet;

/// Whether a kernel that reduces loads the same buffer along its innermost axis, and across that.
pub(super) fn reads_both_ways(kernel: &Kernel) -> bool {
    let instrs = &kernel.region.instrs;
    if !instrs.iter().any(|instr| matches!(instr.kind, InstrKind::Reduce(..))) {
        return false;
    }
    let axes = &kernel.domain.axes;
    let Some(inner) = (0..axes.len()).rfind(|&axis| axes[axis] > 1) else { return false };
    let moves_by_one = |index: &Index, axis: usize| axes[axis] > 1 && index.strides[axis].unsigned_abs() == 1;
    let along = |index: &Index| moves_by_one(index, inner);
    let across = |index: &Index| {
        index.strides[inner].unsigned_abs() > 1 && (0..inner).any(|axis| moves_by_one(index, axis))
    };
    let buffers = |is: &dyn Fn(&Index) -> bool| -> BTreeSet<BufferId> {
        let loads = instrs.iter().filter_map(|instr| match &instr.kind {
            InstrKind::Load { buffer, index, .. } if is(index) => Some(*buffer),
            _ => None,
        });
        loads.collect()
    };
    !buffers(&along).is_disjoint(&buffers(&across))
}
