//! Reductions over rows whose memory lies along the rows, turned: rows become columns, which are reduced where they lie.
//!
//! ```text
//! reduce.rows sum over rows [n, h, w], columns [c] of x[n, c, h, w]   →   reduce.columns sum over rows [c], columns [n, h, w]
//! ```
//!
//! Along the channels of images, each of many loads would be of single elements.

use super::normalise::{point_cost, regroup};
use kernfusion_codegen::analysis::{reduces, scatters};
use kernfusion_ir::kernel::{Direction, Form, InstrKind, Kernel};

/// Rows of the turned kernel at least, which threads divide among themselves.
const ROWS: usize = 32;
/// Elements of such a row at least.
const LENGTH: usize = 128;
/// How many times as much a point costs along columns at least: rows are reduced by calls, and written in strides.
const WORTH: f64 = 3.0;

/// The kernel turned, if that pays.
pub(super) fn turned(kernel: &Kernel) -> Option<Kernel> {
    let domain = &kernel.domain;
    let (rows, columns) = (domain.row_axes(), domain.column_axes());
    let suits = kernel.form == Form::Reduce
        && reduces(&kernel.region, Direction::Rows)
        && !reduces(&kernel.region, Direction::Columns)
        && !scatters(kernel)
        && domain.extent(columns.clone()) >= ROWS
        && domain.extent(rows.clone()) >= LENGTH;
    if !suits {
        return None;
    }
    let groups = |[rows, columns]: [std::ops::Range<usize>; 2]| {
        regroup(kernel, [domain.outer_axes().collect(), rows.collect(), columns.collect()])
    };
    let least = |kernel: &Kernel| {
        let costs = kernel.domain.column_axes().map(|axis| point_cost(kernel, axis));
        costs.fold(f64::INFINITY, f64::min)
    };
    let (as_it_is, mut turned) = (groups([rows.clone(), columns.clone()]), groups([columns, rows]));
    if least(&as_it_is) < WORTH * least(&turned) {
        return None;
    }
    for instr in &mut turned.region.instrs {
        if let InstrKind::Reduce(_, direction, _) = &mut instr.kind {
            *direction = Direction::Columns;
        }
    }
    Some(turned)
}
