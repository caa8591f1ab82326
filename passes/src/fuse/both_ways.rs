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
    let Some(walk) = Walk::of(kernel) else { return false };
    let buffers = |is: &dyn Fn(&Index) -> bool| -> BTreeSet<BufferId> {
        let loads = instrs.iter().filter_map(|instr| match &instr.kind {
            InstrKind::Load { buffer, index, .. } if is(index) => Some(*buffer),
            _ => None,
        });
        loads.collect()
    };
    !buffers(&|index| walk.along(index)).is_disjoint(&buffers(&|index| walk.across(index)))
}

/// How loads of a kernel go through memory as it walks its innermost axis.
pub(super) struct Walk<'k> {
    axes: &'k [usize],
    inner: usize,
}

impl<'k> Walk<'k> {
    /// `None` if all axes have one element.
    pub(super) fn of(kernel: &'k Kernel) -> Option<Walk<'k>> {
        let axes = &kernel.domain.axes;
        (0..axes.len()).rfind(|&axis| axes[axis] > 1).map(|inner| Walk { axes, inner })
    }

    fn moves_by_one(&self, index: &Index, axis: usize) -> bool {
        self.axes[axis] > 1 && index.strides[axis].unsigned_abs() == 1
    }

    /// One element after the other.
    fn along(&self, index: &Index) -> bool {
        self.moves_by_one(index, self.inner)
    }

    /// In strides, where another axis goes from one element to the next.
    pub(super) fn across(&self, index: &Index) -> bool {
        index.strides[self.inner].unsigned_abs() > 1
            && (0..self.inner).any(|axis| self.moves_by_one(index, axis))
    }
}
