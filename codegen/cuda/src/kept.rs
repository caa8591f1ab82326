//! Rows that are too long for registers, in shared memory: each thread copies there what it alone reads, so that sweeps after the first one
//! load nothing from memory.

use super::lower::Lowering;
use super::rewrite::PIECE;
use super::source::{Axes, Code, memory_type};
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{BufferId, Index, InstrKind, Kernel};

/// Bytes of shared memory that a block of cards with warpgroups may have, less those of arrays that it has anyway.
const KEPT_BYTES: usize = 224 << 10;
/// What a kernel loads of a row.
struct Row<'k> {
    /// The instruction.
    at: usize,
    buffer: BufferId,
    index: &'k Index,
    /// Whether it is loaded at every point.
    is_whole: bool,
    dtype: DType,
}

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
        let instrs = kernel.region.instrs.iter().enumerate();
        let rows: Vec<Row<'_>> = instrs
            .filter_map(|(at, instr)| match &instr.kind {
                InstrKind::Load { buffer, index, guard } if index.varies(columns.clone()) => {
                    let dtype = self.slots()[buffer.0 as usize].dtype;
                    Some(Row { at, buffer: *buffer, index, is_whole: guard.is_empty(), dtype })
                }
                _ => None,
            })
            .collect();
        let can_be_copied = |row: &Row<'_>| {
            let together = (PIECE / row.dtype.size()) as i64;
            let mut others = row.index.strides[..axis].iter().chain([&row.index.offset]);
            row.is_whole
                && row.index.indirect.is_empty()
                && row.index.strides[axis] == 1
                && others.all(|stride| stride % together == 0)
                && length * row.dtype.size() == PIECE
        };
        let bytes_of = |dtype: DType| (extent * dtype.size()).next_multiple_of(PIECE);
        let bytes = rows.iter().map(|row| bytes_of(row.dtype)).sum();
        let most = KEPT_BYTES.min(self.options.shared_bytes);
        let is_possible = self.options.warpgroups && columns.len() == 1 && bytes <= most;
        if !is_possible || rows.is_empty() || !rows.iter().all(can_be_copied) {
            return None;
        }
        let (mut kept, mut code, mut offset) = (kernel.clone(), Code::default(), 0);
        let locals = rows.len();
        for Row { at, buffer, index, dtype, .. } in &rows {
            let bytes = bytes_of(*dtype);
            let mut names = names.to_vec();
            names.push("0".into());
            let axes = Axes { names, extents: domain.axes.clone() };
            let from = format!("&{}[{}]", self.slots()[buffer.0 as usize].read(), axes.affine(index));
            let name = format!("kept{at}");
            let ty = memory_type(*dtype);
            code.line(format!("LAUNCHED_SHARED({ty}, {name}, {offset}, {});", bytes / dtype.size()));
            code.line(format!("copy_row<{extent}, {threads}>({name}, {from}, lane);"));
            let mut along = Index::constant(domain.axes.len(), 0);
            along.strides[axis] = 1;
            let local = self.add_local(name, *dtype, bytes);
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
