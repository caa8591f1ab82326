//! Rows that are too long for registers, in shared memory: each thread copies there what it alone reads, so that sweeps after the first one
//! load nothing from memory.

use super::lower::Lowering;
use super::source::{Axes, Code, memory_type};
use kernfusion_ir::kernel::{BufferId, Index, InstrKind, Kernel};

/// Bytes of shared memory that a block of cards with warpgroups may have, less those of arrays that it has anyway.
const KEPT_BYTES: usize = 224 << 10;
/// Bytes of a copy.
const PIECE: usize = 16;

/// A kernel whose rows are kept.
pub(super) struct Kept {
    /// With loads from shared memory.
    pub(super) kernel: Kernel,
    /// What copies rows there.
    pub(super) code: String,
    /// Of shared memory.
    pub(super) bytes: usize,
    /// How many buffers stand for it, for as long as the function is written.
    pub(super) locals: usize,
}

impl Lowering<'_> {
    /// Keeps the rows that a kernel loads, if there is room for all of them; `names` are those of a row's coordinates, `threads` work on it, and
    /// have runs of `length` neighbours.
    pub(super) fn kept_rows(
        &mut self,
        kernel: &Kernel,
        names: &[String],
        threads: usize,
        length: usize,
    ) -> Option<Kept> {
        let domain = &kernel.domain;
        let columns = domain.column_axes();
        let (axis, extent) = (columns.start, domain.extent(columns.clone()));
        let rows: Vec<(usize, BufferId, Index)> = kernel
            .region
            .instrs
            .iter()
            .enumerate()
            .filter_map(|(at, instr)| match &instr.kind {
                InstrKind::Load { buffer, index, .. } if index.varies(columns.clone()) => {
                    Some((at, *buffer, index.clone()))
                }
                _ => None,
            })
            .collect();
        let can_be_copied = |(at, buffer, index): &(usize, BufferId, Index)| {
            let size = self.slots()[buffer.0 as usize].dtype.size();
            let together = (PIECE / size) as i64;
            let InstrKind::Load { guard, .. } = &kernel.region.instrs[*at].kind else { return false };
            let mut others = index.strides[..axis].iter().chain([&index.offset]);
            guard.is_empty()
                && index.indirect.is_empty()
                && index.strides[axis] == 1
                && others.all(|stride| stride % together == 0)
                && length * size == PIECE
        };
        let size_of = |size: usize| (extent * size).next_multiple_of(PIECE);
        let bytes: usize =
            rows.iter().map(|(_, buffer, _)| size_of(self.slots()[buffer.0 as usize].dtype.size())).sum();
        let is_possible = self.options.warpgroups && columns.len() == 1 && bytes <= KEPT_BYTES;
        if !is_possible || rows.is_empty() || !rows.iter().all(can_be_copied) {
            return None;
        }
        let (mut kept, mut code, mut offset) = (kernel.clone(), Code::default(), 0);
        let locals = rows.len();
        for (at, buffer, index) in &rows {
            let slot = &self.slots()[buffer.0 as usize];
            let (dtype, bytes) = (slot.dtype, size_of(slot.dtype.size()));
            let mut names = names.to_vec();
            names.push("0".into());
            let axes = Axes { names, extents: domain.axes.clone() };
            let from = format!("&{}[{}]", slot.read(), axes.affine(index));
            let name = format!("kept{at}");
            let ty = memory_type(dtype);
            code.line(format!("LAUNCHED_SHARED({ty}, {name}, {offset}, {});", bytes / dtype.size()));
            code.line(format!("copy_row<{extent}, {threads}>({name}, {from}, lane);"));
            let mut along = Index::constant(domain.axes.len(), 0);
            along.strides[axis] = 1;
            let local = self.add_local(name, dtype, bytes);
            if let InstrKind::Load { buffer, index, .. } = &mut kept.region.instrs[*at].kind {
                (*buffer, *index) = (local, along);
            }
            offset += bytes;
        }
        code.line("copy_commit();");
        code.line("copy_wait<0>();");
        Some(Kept { kernel: kept, code: code.finish(), bytes, locals })
    }
}
