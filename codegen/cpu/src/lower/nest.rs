//! The function of a map or a reduction: a loop over independent units, rows in order inside, each row by the
//! row program.
//!
//! A unit is one coordinate of every outer axis, times one piece of the inner axis if rows are cut into pieces. All
//! of it depends on the shape alone, so results do not depend on how units are divided among threads.

use super::builder::{Code, flags};
use super::emit::{At, Count, Emitter, Memory};
use super::jit::Functions;
use super::row::{Row, WriteMode};
use super::schedule::RowSchedule;
use cranelift::prelude::*;
use kernfusion_codegen::CodegenError;

/// Bytes of scratch rows that a piece of a row may need: half of L1.
const SCRATCH: usize = 16 << 10;
/// The largest piece of a row.
const PIECE: usize = 4096;
/// The length of a piece of a row where an access runs along the last outer axis, so that its cache lines stay near while that axis is walked.
/// Loops over whole vectors are called once a piece, which is therefore as long as their longest iteration. Of lines that lie a power of two
/// apart, L1 keeps fewer; L2 has them.
const BLOCK: usize = RUNNING_LANES;

/// The loops around a row.
#[derive(Debug)]
pub(super) struct Nest {
    /// How many axes are outer ones.
    pub(super) outer: usize,
    /// How many axes after them are walked in order.
    pub(super) rows: usize,
    /// If the last outer axis counts chunks of rows: rows in a chunk.
    pub(super) chunk: Option<usize>,
    /// Points of a piece of the inner axis.
    pub(super) piece: usize,
    /// Whether a piece is done for all of the last outer axis before the next piece.
    pub(super) blocked: bool,
}

impl Nest {
    /// The nest of a row; `whole` forbids to cut rows into pieces.
    pub(super) fn new(
        row: &Row,
        schedule: &RowSchedule,
        outer: usize,
        chunk: Option<usize>,
        whole: bool,
    ) -> Self {
        let lane = if row.is_double() { 8 } else { 4 };
        let fitting = SCRATCH / lane / schedule.rows.max(1) / 64 * 64;
        let blocked = !whole && outer > 0 && row.fixed == outer && row.is_transposed(outer - 1);
        let piece = match () {
            () if whole => row.axes[row.inner()],
            () if blocked => BLOCK,
            () => fitting.clamp(256, PIECE),
        };
        Nest { outer, rows: row.fixed - outer, chunk, piece, blocked }
    }

    fn pieces(&self, row: &Row) -> usize {
        row.axes[row.inner()].div_ceil(self.piece.max(1))
    }

    /// The number of units.
    pub(super) fn units(&self, row: &Row) -> usize {
        row.axes[..self.outer].iter().product::<usize>() * self.pieces(row).max(1)
    }

    /// Points that a scratch row holds.
    pub(super) fn capacity(&self, row: &Row) -> usize {
        let runs: usize = row.axes[row.runs()].iter().product();
        (runs * self.piece.min(row.axes[row.inner()])).next_multiple_of(16)
    }
}

/// Lanes of a loop's [running result](super::schedule::Loop::running): those of as many vectors as it computes together at most.
pub(super) const RUNNING_LANES: usize = 64;

/// Bytes of scratch that a row needs: scratch rows, and after them running results.
pub(super) fn scratch_bytes(row: &Row, schedule: &RowSchedule, capacity: usize) -> usize {
    match schedule.running.len() {
        0 => row_bytes(row, capacity) * schedule.rows,
        count => running_offset(row, schedule.rows, capacity, count),
    }
}

/// Bytes of a scratch row.
pub(super) fn row_bytes(row: &Row, capacity: usize) -> usize {
    capacity * if row.is_double() { 8 } else { 4 }
}

/// Where the lanes of a running result begin in scratch. Vectors do not lie across cache lines.
pub(super) fn running_offset(row: &Row, rows: usize, capacity: usize, number: usize) -> usize {
    (rows * row_bytes(row, capacity)).next_multiple_of(RUNNING_LANES * 4) + number * RUNNING_LANES * 4
}

/// Builds the function of a nest; the table has a pointer to zeros, then `slots` pointers.
pub(super) fn build(
    functions: &mut Functions,
    name: &str,
    row: &Row,
    schedule: &RowSchedule,
    nest: &Nest,
    slots: usize,
) -> Result<usize, CodegenError> {
    functions.define(name, (row, schedule), &[types::I64; 4], |mut code, parameters| {
        let [table, begin, end, scratch] = *parameters else { unreachable!("four parameters") };
        let (slots, zeros) = read_table(&mut code, table, slots);
        let memory = Memory { slots, zeros, scratch, capacity: nest.capacity(row) };
        let mut emitter = Emitter::new(code, row, schedule, memory);
        emitter.units(nest, begin, end);
        emitter.code
    })
}

/// The pointers of a kernel's table: its slots, and the zeros before them.
pub(super) fn read_table(code: &mut Code<'_, '_>, table: Value, slots: usize) -> (Vec<Value>, Value) {
    let mut read = |at: usize| {
        let flags = flags().with_readonly().with_can_move();
        code.b.ins().load(types::I64, flags, table, (at * 8) as i32)
    };
    let zeros = read(0);
    ((1..=slots).map(read).collect(), zeros)
}

impl Emitter<'_, '_, '_> {
    fn units(&mut self, nest: &Nest, begin: Value, end: Value) {
        let pieces = nest.pieces(self.row);
        let mut extents = self.row.axes[..nest.outer].to_vec();
        let piece_digit = if nest.blocked { nest.outer - 1 } else { nest.outer };
        if pieces > 1 {
            extents.insert(piece_digit, pieces);
        }
        self.each_point(begin, end, &extents, |this, _, digits| {
            let mut digits = digits.to_vec();
            let inner = this.row.axes[this.row.inner()];
            let zero = this.code.int(0);
            let (start, count) = if pieces > 1 {
                let start = this.code.times(digits.remove(piece_digit), nest.piece as i64);
                (start, this.piece(nest, start, inner))
            } else {
                (zero, Count::Fixed(inner))
            };
            let mut coordinates = vec![zero; this.row.axes.len()];
            coordinates[..nest.outer].copy_from_slice(&digits);
            coordinates[this.row.inner()] = start;
            this.unit(nest, At { coordinates, count, tile: None, inside: None });
        });
    }

    /// The number of points of the piece from `start` on.
    fn piece(&mut self, nest: &Nest, start: Value, inner: usize) -> Count {
        if inner.is_multiple_of(nest.piece) {
            return Count::Fixed(nest.piece);
        }
        let extent = self.code.int(inner as i64);
        let left = self.code.b.ins().isub(extent, start);
        let whole = self.code.int(nest.piece as i64);
        Count::Dynamic(self.code.b.ins().umin(left, whole))
    }

    /// The rows of a unit, in order.
    fn unit(&mut self, nest: &Nest, at: At) {
        if self.row.writes.iter().any(|write| matches!(write.mode, WriteMode::Accumulate(_))) {
            self.clear_accumulators(at.clone());
        }
        if nest.rows == 0 {
            return self.emit(at);
        }
        let extents = self.row.axes[nest.outer..nest.outer + nest.rows].to_vec();
        let all = self.code.int(extents.iter().product::<usize>() as i64);
        let (first, last) = match nest.chunk {
            Some(chunk) => {
                let first = self.code.times(at.coordinates[nest.outer - 1], chunk as i64);
                let last = self.code.b.ins().iadd_imm_s(first, chunk as i64);
                (first, self.code.b.ins().umin(last, all))
            }
            None => (self.code.int(0), all),
        };
        self.each_point(first, last, &extents, |this, _, digits| {
            let mut at = at.clone();
            at.coordinates[nest.outer..nest.outer + nest.rows].copy_from_slice(digits);
            this.emit(at);
        });
    }

    /// Walks the points `begin..end` of a box of these extents, counted row-major; coordinates are counted up like
    /// the digits of a number, which costs no division but at the start.
    pub(super) fn each_point(
        &mut self,
        begin: Value,
        end: Value,
        extents: &[usize],
        body: impl FnOnce(&mut Self, Value, &[Value]),
    ) {
        let digits = self.digits(begin, extents);
        let open = self.code.enter(begin, end, &digits);
        body(self, open.i, &open.carried);
        let mut next = open.carried.clone();
        let mut carry = self.code.int(1);
        for (digit, &extent) in next.iter_mut().zip(extents).skip(1).rev() {
            let more = self.code.b.ins().iadd(*digit, carry);
            let full = self.code.b.ins().icmp_imm_s(IntCC::Equal, more, extent as i64);
            let zero = self.code.int(0);
            *digit = self.code.b.ins().select(full, zero, more);
            carry = self.code.b.ins().uextend(types::I64, full);
        }
        if let Some(first) = next.first_mut() {
            *first = self.code.b.ins().iadd(*first, carry);
        }
        self.code.leave(&open, 1, &next);
    }

    /// The coordinates of a point of a box, counted row-major.
    pub(super) fn digits(&mut self, point: Value, extents: &[usize]) -> Vec<Value> {
        let mut digits = vec![point; extents.len()];
        let mut rest = point;
        for (digit, &extent) in digits.iter_mut().zip(extents).skip(1).rev() {
            let extent = self.code.int(extent.max(1) as i64);
            *digit = self.code.b.ins().urem(rest, extent);
            rest = self.code.b.ins().udiv(rest, extent);
        }
        if let Some(first) = digits.first_mut() {
            *first = rest;
        }
        digits
    }
}
