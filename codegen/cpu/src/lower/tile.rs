//! The function that runs a contraction's region on a finished tile: rows of the tile, cut where the innermost
//! column axis starts anew, each by the row program.

use super::emit::{At, Count, Emitter, Memory};
use super::jit::Functions;
use super::nest::{read_table, scratch_bytes};
use super::row::Row;
use super::schedule::RowSchedule;
use cranelift::prelude::*;
use kernfusion_codegen::CodegenError;
use kernfusion_ir::kernel::Domain;
use kernfusion_runtime::gemm::TILE_COLUMNS;

/// Points that a scratch row holds.
pub(super) fn capacity(row: &Row) -> usize {
    TILE_COLUMNS.min(row.axes[row.inner()]).next_multiple_of(16)
}

/// What a function on tiles needs to know of its surroundings.
pub(super) struct Place {
    /// The slot that points to scratch rows; without one they are on the stack, since the driver calls the function from many
    /// threads.
    pub(super) scratch: Option<usize>,
    /// Points that a scratch row holds.
    pub(super) capacity: usize,
    /// Rows of a strip, if the last outer axis counts strips.
    pub(super) strip: Option<usize>,
}

/// Builds a [`TileFn`](kernfusion_runtime::gemm::TileFn) whose context is the kernel's table.
pub(super) fn build(
    functions: &mut Functions,
    name: &str,
    row: &Row,
    schedule: &RowSchedule,
    domain: &Domain,
    slots: usize,
    place: &Place,
) -> Result<usize, CodegenError> {
    functions.define(name, (row, schedule), &[types::I64; 8], |mut code, parameters| {
        let [tile, ld, row0, column0, rows, columns, batch, table] = *parameters else {
            unreachable!("eight parameters")
        };
        let (slots, zeros) = read_table(&mut code, table, slots);
        let scratch = place.scratch.map(|slot| slots[slot]).unwrap_or_else(|| {
            let bytes = scratch_bytes(row, schedule, place.capacity);
            let data = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes as u32, 4);
            let stack = code.b.create_sized_stack_slot(data);
            code.b.ins().stack_addr(types::I64, stack, 0)
        });
        let memory = Memory { slots, zeros, scratch, capacity: place.capacity };
        let mut emitter = Emitter::new(code, row, schedule, memory);
        let tile = Tile { start: tile, ld, row0, column0, rows, columns };
        emitter.tile(&tile, batch, domain, place.strip);
        emitter.code
    })
}

/// A tile, as the driver describes it.
struct Tile {
    start: Value,
    /// From row to row, in elements.
    ld: Value,
    row0: Value,
    column0: Value,
    rows: Value,
    columns: Value,
}

impl Emitter<'_, '_, '_> {
    fn tile(&mut self, tile: &Tile, batch: Value, domain: &Domain, strip: Option<usize>) {
        let zero = self.code.int(0);
        let mut coordinates = vec![zero; domain.axes.len()];
        let matrices = 0..domain.outer - usize::from(strip.is_some());
        let outer = self.digits(batch, &domain.axes[matrices.clone()]);
        coordinates[matrices].copy_from_slice(&outer);
        if let Some(rows) = strip {
            let rows = self.code.int(rows as i64);
            coordinates[domain.outer - 1] = self.code.b.ins().udiv(tile.row0, rows);
            let mut first = coordinates.clone();
            first[self.row.inner()] = tile.column0;
            let count = Count::Dynamic(tile.columns);
            self.clear_accumulators(At { coordinates: first, count, tile: None, inside: None });
        }
        let end = self.code.b.ins().iadd(tile.row0, tile.rows);
        self.each_point(tile.row0, end, &domain.axes[domain.row_axes()], |this, i, digits| {
            coordinates[domain.row_axes()].copy_from_slice(digits);
            let down = this.code.b.ins().isub(i, tile.row0);
            let down = this.code.b.ins().imul(down, tile.ld);
            let down = this.code.times(down, 4);
            let start = this.code.b.ins().iadd(tile.start, down);
            this.tile_row(tile, start, coordinates, domain);
        });
    }

    /// One row of the tile, whose first element is at `start`.
    fn tile_row(&mut self, tile: &Tile, start: Value, mut coordinates: Vec<Value>, domain: &Domain) {
        let columns = domain.column_axes();
        let inner = self.row.inner();
        let extent = self.row.axes[inner];
        if columns.len() == 1 {
            coordinates[inner] = tile.column0;
            let count = Count::Dynamic(tile.columns);
            // Without a tile its row stride says how many columns lie inside.
            let inside = (!self.row.inside.is_empty()).then_some(tile.ld);
            return self.emit(At { coordinates, count, tile: Some(start), inside });
        }
        let end = self.code.b.ins().iadd(tile.column0, tile.columns);
        let length = self.code.int(extent as i64);
        let first = self.code.b.ins().udiv(tile.column0, length);
        let beyond = self.code.b.ins().iadd_imm_s(end, extent as i64 - 1);
        let beyond = self.code.b.ins().udiv(beyond, length);
        let runs = columns.start..inner;
        self.each_point(first, beyond, &domain.axes[runs.clone()], |this, run, digits| {
            coordinates[runs].copy_from_slice(digits);
            let begin = this.code.times(run, extent as i64);
            let next = this.code.b.ins().iadd_imm_s(begin, extent as i64);
            let from = this.code.b.ins().umax(begin, tile.column0);
            let to = this.code.b.ins().umin(next, end);
            coordinates[inner] = this.code.b.ins().isub(from, begin);
            let count = Count::Dynamic(this.code.b.ins().isub(to, from));
            let right = this.code.b.ins().isub(from, tile.column0);
            let right = this.code.times(right, 4);
            let start = this.code.b.ins().iadd(start, right);
            this.emit(At { coordinates, count, tile: Some(start), inside: None });
        });
    }
}
