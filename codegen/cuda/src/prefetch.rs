//! The row that a team takes next, asked of the second cache while it reduces the one at hand: memory then works on, and the loads of the next
//! row wait less. Between its reductions, a team has nothing else under way.

use super::body::{Body, operands};
use super::source::{coordinates, memory_type};
use kernfusion_ir::kernel::{BufferId, Index, InstrKind, Kernel};
use std::ops::Range;

/// The loads of a kernel that differ along these axes, and whose columns lie side by side.
fn loads_of_rows(kernel: &Kernel, rows: Range<usize>) -> Vec<(BufferId, &Index)> {
    let columns = kernel.domain.column_axes();
    let dense = kernfusion_ir::strides(&kernel.domain.axes[columns.clone()]);
    let needed = kernel.region.needed(kernel.stores.iter().flat_map(operands), |_| false);
    let mut found = vec![];
    for value in needed {
        let InstrKind::Load { buffer, index, guard } = &kernel.region.instr(value).kind else { continue };
        let strides = &index.strides[columns.clone()];
        let is_line = strides.iter().zip(&dense).all(|(stride, dense)| *stride == *dense as i64);
        let is_plain = guard.is_empty() && index.indirect.is_empty();
        if is_line && is_plain && index.varies(rows.clone()) && !found.contains(&(*buffer, index)) {
            found.push((*buffer, index));
        }
    }
    found
}

impl Body<'_> {
    /// Asks for what row `next` of the kernel will load, if that is less than `end`. Rows are numbered along the kernel's axes of rows, the last
    /// ones that have names; `lane` is one of `team` threads.
    pub(super) fn prefetch_row(&mut self, kernel: &Kernel, [next, end]: [&str; 2], lane: &str, team: usize) {
        let domain = &kernel.domain;
        let (rows, columns) = (domain.row_axes(), domain.extent(domain.column_axes()));
        let loads = loads_of_rows(kernel, rows.clone());
        if loads.is_empty() {
            return;
        }
        let before = self.axes.names.clone();
        self.block(format!("if ({next} < {end})"), |body| {
            body.code.line(format!("const int next_row = {next};"));
            body.axes.names.truncate(rows.start);
            let names = coordinates(&mut body.code, "next_row", 'n', &domain.axes[rows]);
            body.axes.names.extend(names);
            body.axes.names.resize(domain.axes.len(), "0".into());
            for (buffer, index) in loads {
                let slot = &body.slots[buffer.0 as usize];
                let (ty, from) = (memory_type(slot.dtype), body.axes.affine(index));
                let call =
                    format!("prefetch_row<{ty}, {columns}, {team}>({lane}, &{}[{from}]);", slot.read());
                body.code.line(call);
            }
        });
        self.axes.names = before;
    }
}
