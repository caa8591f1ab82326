//! One row of a kernel, the unit that all three forms share: a region over some column axes, and what it writes.
//!
//! The axes before the columns have one coordinate per row. The last column is the inner axis, along which loops
//! are vectorised; columns before it (a reduction over axes that do not merge) are walked run by run.

use kernfusion_codegen::analysis::indices;
use kernfusion_ir::kernel::{Bound, Index, InstrKind, Region, Scalar};
use kernfusion_ir::{DType, ReduceOp};
use std::ops::Range;

/// A region over the columns of a row.
#[derive(Debug)]
pub(super) struct Row {
    /// What is computed.
    pub(super) region: Region,
    /// What is written.
    pub(super) writes: Vec<Write>,
    /// Extents of all axes; index maps have a stride for each.
    pub(super) axes: Vec<usize>,
    /// How many of them have one coordinate per row.
    pub(super) fixed: usize,
    /// For each of the kernel's buffers, whether a write may change what a load still has to read.
    pub(super) clobbered: Vec<bool>,
    /// Conditions that hold at a number of points which is known when a row runs.
    pub(super) inside: Vec<Scalar>,
    /// Whether loops over whole vectors walk the last axis of the runs themselves.
    pub(super) runs_within: bool,
    /// Whether loops may begin at the first point of a run alone, so that they know which point each is.
    pub(super) is_uncut: bool,
    varies: Vec<bool>,
}

/// A write to memory.
#[derive(Debug, Clone)]
pub(super) struct Write {
    /// What.
    pub(super) value: Scalar,
    /// Where.
    pub(super) target: Target,
    /// The element type in memory.
    pub(super) dtype: DType,
    /// Which element.
    pub(super) index: Index,
    /// How.
    pub(super) mode: WriteMode,
}

/// What a write goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A slot of the kernel's table.
    Slot(usize),
    /// The tile, whose elements along a row lie one after the other.
    Tile,
}

/// How a write treats what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteMode {
    /// Overwrites.
    Set,
    /// Adds, in the order of the points.
    Add,
    /// Combines with a running result, kept in lanes.
    Accumulate(ReduceOp),
}

/// How an index map walks the inner axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// One element after the other.
    Contiguous,
    /// One element after the other, of which only those within bounds that vary are read.
    Bounded,
    /// Every other element, of which only those within bounds that vary are read.
    Alternate,
    /// The same element throughout.
    Splat,
    /// Anything else, element by element.
    Scattered,
}

impl Row {
    pub(super) fn new(
        region: Region,
        writes: Vec<Write>,
        axes: Vec<usize>,
        fixed: usize,
        clobbered: Vec<bool>,
    ) -> Self {
        let mut row = Row {
            region,
            writes,
            axes,
            fixed,
            clobbered,
            inside: vec![],
            runs_within: false,
            is_uncut: false,
            varies: vec![],
        };
        for instr in &row.region.instrs {
            let varies = match &instr.kind {
                InstrKind::Producer(_) => true,
                InstrKind::Reduce(..) => false,
                kind => {
                    let along = |index: &&Index| index.varies(row.columns());
                    kind.operands().iter().any(|operand| row.varies[operand.0 as usize])
                        || indices(kind).iter().any(along)
                }
            };
            row.varies.push(varies);
        }
        row
    }

    /// The axes that a row covers.
    pub(super) fn columns(&self) -> Range<usize> {
        self.fixed..self.axes.len()
    }

    /// The columns that are walked run by run.
    pub(super) fn runs(&self) -> Range<usize> {
        self.fixed..self.inner()
    }

    /// The last axis of the runs, if loops over whole vectors walk it themselves.
    pub(super) fn run_within(&self) -> Option<usize> {
        self.runs_within.then(|| self.inner() - 1)
    }

    /// The innermost column.
    pub(super) fn inner(&self) -> usize {
        self.axes.len() - 1
    }

    /// Whether a value depends on a column.
    pub(super) fn varies(&self, value: Scalar) -> bool {
        self.varies[value.0 as usize]
    }

    /// Whether anything is computed in `f64`, which no vector is made of.
    pub(super) fn is_double(&self) -> bool {
        self.region.instrs.iter().any(|instr| instr.dtype == DType::F64)
    }

    /// Whether a bound is tested in loops: it varies along the inner axis, or loops walk the runs, so that no pointer to zeros could stand for memory
    /// that is not there.
    pub(super) fn moves(&self, bound: &Bound) -> bool {
        let coordinate = &bound.coordinate;
        self.runs_within || coordinate.strides[self.inner()] != 0 || self.is_looked_up(coordinate)
    }

    /// Whether a part of an index is a value that varies.
    fn is_looked_up(&self, index: &Index) -> bool {
        index.indirect.iter().any(|term| self.varies(term.value))
    }

    /// How an index under a guard walks the inner axis.
    pub(super) fn access(&self, index: &Index, guard: &[Bound]) -> Access {
        let moves = |bound: &Bound| self.moves(bound);
        match index.strides[self.inner()] {
            _ if self.is_looked_up(index) => Access::Scattered,
            1 if guard.iter().any(moves) => Access::Bounded,
            2 => Access::Alternate,
            _ if guard.iter().any(moves) => Access::Scattered,
            1 => Access::Contiguous,
            0 => Access::Splat,
            _ => Access::Scattered,
        }
    }

    /// Whether a value is a choice, the same throughout a run, between loads that are contiguous there: what a concatenation is along a run of one of its
    /// parts. It is one load, from an address that is chosen.
    pub(super) fn is_chosen_load(&self, value: Scalar) -> bool {
        let InstrKind::Select(condition, x, y) = self.region.instr(value).kind else { return false };
        let is_load = |value: Scalar| match &self.region.instr(value).kind {
            InstrKind::Load { index, guard, .. } => {
                self.access(index, guard) == Access::Contiguous && !self.is_clobbered(value)
            }
            _ => self.is_chosen_load(value),
        };
        !self.runs_within && self.varies(value) && !self.varies(condition) && is_load(x) && is_load(y)
    }

    /// The values that a loop needs for one that it computes.
    pub(super) fn operands(&self, value: Scalar) -> Vec<Scalar> {
        match self.is_chosen_load(value) {
            true => vec![],
            false => self.region.instr(value).kind.operands(),
        }
    }

    /// Whether an access that strides along the inner axis is contiguous along this one.
    pub(super) fn is_transposed(&self, axis: usize) -> bool {
        let transposed = |index: &Index| {
            index.strides[axis] == 1
                && index.strides[self.inner()].unsigned_abs() > 1
                && index.indirect.is_empty()
        };
        let loads = self.region.instrs.iter().any(|instr| match &instr.kind {
            InstrKind::Load { index, .. } => transposed(index),
            _ => false,
        });
        loads || self.writes.iter().any(|write| transposed(&write.index))
    }

    /// Whether a write happens for every point of a row, and not once a row: to add the same again is not the same.
    pub(super) fn is_in_loop(&self, write: &Write) -> bool {
        write.mode == WriteMode::Add
            || self.varies(write.value)
            || write.index.varies(self.columns())
            || write.index.indirect.iter().any(|term| self.varies(term.value))
    }

    /// Whether a value is the content of a piece of memory that a primitive can read where it is.
    pub(super) fn lies_in_memory(&self, value: Scalar) -> bool {
        let instr = self.region.instr(value);
        let InstrKind::Load { index, guard, .. } = &instr.kind else { return false };
        let as_lanes = matches!(instr.dtype, DType::F32 | DType::F64 | DType::I32 | DType::U32);
        as_lanes && self.runs().is_empty() && self.access(index, guard) == Access::Contiguous
    }

    /// Whether a value is loaded from memory that a write may change.
    pub(super) fn is_clobbered(&self, value: Scalar) -> bool {
        match &self.region.instr(value).kind {
            InstrKind::Load { buffer, .. } => self.clobbered[buffer.0 as usize],
            _ => false,
        }
    }

    /// The instructions that a varying load takes, if it may be done again in a later loop.
    pub(super) fn load_cost(&self, value: Scalar) -> Option<usize> {
        let instr = self.region.instr(value);
        let InstrKind::Load { index, guard, .. } = &instr.kind else { return None };
        let simple = matches!(self.access(index, guard), Access::Contiguous | Access::Splat);
        let cost = match instr.dtype {
            DType::F16 => 9,
            DType::BF16 | DType::I8 | DType::Bool => 2,
            DType::F32 | DType::F64 | DType::I32 | DType::U32 => 1,
        };
        simple.then_some(cost)
    }
}
