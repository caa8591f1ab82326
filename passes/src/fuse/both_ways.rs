//! Reductions that go through memory in strides by chance.
//!
//! Where a tensor has as many rows as columns, a vector with an element for each column could be one with an element for each row: a sum over rows
//! becomes one along columns, of memory that lies along the rows.

use kernfusion_ir::kernel::{BufferId, Direction, Index, InstrKind, Kernel, Scalar};
use std::collections::BTreeSet;
use std::ops::Range;

/// Whether something that is reduced along columns is loaded from memory that lies along rows, and the same memory along columns as well.
pub(super) fn reads_both_ways(kernel: &Kernel) -> bool {
    let instrs = &kernel.region.instrs;
    let reduced = instrs.iter().filter_map(|instr| match instr.kind {
        InstrKind::Reduce(_, Direction::Columns, x) => Some(x),
        _ => None,
    });
    let reduced: BTreeSet<Scalar> = reduced.collect();
    if reduced.is_empty() {
        return false;
    }
    let columns = kernel.domain.column_axes();
    let rows = 0..columns.start;
    let loads = instrs.iter().filter_map(|instr| match &instr.kind {
        InstrKind::Load { buffer, index, .. } => Some((buffer, index)),
        _ => None,
    });
    let along_columns: BTreeSet<BufferId> =
        loads.filter(|(_, index)| lies(kernel, index, &columns, &rows)).map(|(buffer, _)| *buffer).collect();
    let mut is_turned: Vec<bool> = vec![];
    for instr in instrs {
        is_turned.push(match &instr.kind {
            InstrKind::Load { buffer, index, .. } => {
                along_columns.contains(buffer) && lies(kernel, index, &rows, &columns)
            }
            InstrKind::Reduce(..) => false,
            kind => kind.operands().iter().any(|operand| is_turned[operand.0 as usize]),
        });
    }
    reduced.iter().any(|value| is_turned[value.0 as usize])
}

/// Whether an index moves by one element along some of these axes, and by more along the others.
fn lies(kernel: &Kernel, index: &Index, along: &Range<usize>, across: &Range<usize>) -> bool {
    let moves = |axes: &Range<usize>, by: fn(u64) -> bool| {
        axes.clone().any(|axis| kernel.domain.axes[axis] > 1 && by(index.strides[axis].unsigned_abs()))
    };
    moves(along, |stride| stride == 1)
        && moves(across, |stride| stride > 1)
        && !moves(across, |stride| stride == 1)
}
