//! Brings a kernel's axes into the order and number that the row program wants.
//!
//! After normalisation, of maps and reductions:
//! * no axis has the extent 1, and neighbours that every index map walks as one axis are one axis;
//! * *columns* are what one row covers: the whole group if columns are reduced, otherwise one axis. The last one is
//!   the *inner* axis, chosen so that a point costs least: most accesses along it are contiguous;
//! * *rows* must be walked in order by one thread: rows under a row reduction, the axes that a scatter-add may
//!   hit twice; there are none otherwise;
//! * *outer* is all the rest: independent units of work.
//!
//! ```text
//! map [64, 256, 384] of contiguous tensors          → columns [6291456]
//! map [b, t, h, d], y[b, h, t, d] = x[b, t, h, d]   → outer [b, t, h], columns [d]
//! reduce over rows [r], columns [c1, c2] that merge → outer [r], columns [c1·c2]
//! ```

use kernfusion_codegen::analysis::{axes_without_collisions, indices, reduces, scatters};
use kernfusion_codegen::axes::{for_each_index, regrouped};
use kernfusion_ir::kernel::{Direction, Form, Index, InstrKind, Kernel, Region, Store};

/// The normal form of a map or a reduction.
pub(super) fn normalise(kernel: &Kernel) -> Kernel {
    let domain = &kernel.domain;
    let (outer, rows, columns) = match kernel.form {
        Form::Map if scatters(kernel) => {
            let safe = axes_without_collisions(kernel);
            let (safe, serial) = (0..domain.axes.len()).partition(|&axis| safe[axis]);
            (vec![], serial, safe)
        }
        Form::Map => (vec![], vec![], (0..domain.axes.len()).collect()),
        Form::Reduce | Form::Contraction(_) | Form::Loop(_) | Form::Collective(_) => {
            (domain.outer_axes().collect(), domain.row_axes().collect(), domain.column_axes().collect())
        }
    };
    let rows_in_order = scatters(kernel) || reduces(&kernel.region, Direction::Rows);
    let (mut outer, mut rows): (Vec<usize>, Vec<usize>) =
        if rows_in_order { (outer, rows) } else { ([outer, rows].concat(), vec![]) };
    let mut columns: Vec<usize> = columns;
    if columns.iter().all(|&axis| domain.axes[axis] == 1) && scatters(kernel) {
        // Every axis may collide: the last one is walked in order as the inner axis.
        columns.extend(rows.pop());
    }
    // The first pass merges what belongs together, so that the inner axis is chosen among merged axes.
    let merged = regroup(kernel, [outer, rows, columns]);
    let inner = inner_axis(&merged);
    outer = merged.domain.outer_axes().collect();
    rows = merged.domain.row_axes().collect();
    columns = merged.domain.column_axes().filter(|&axis| axis != inner).collect();
    if !reduces(&kernel.region, Direction::Columns) {
        outer.append(&mut columns);
    }
    if let Some(axis) = transposed_axis(&merged, inner).filter(|_| rows.is_empty() && columns.is_empty()) {
        outer.retain(|&other| other != axis);
        outer.push(axis);
    }
    columns.push(inner);
    regroup(&merged, [outer, rows, columns])
}

/// The axis along which an access is contiguous that strides along the inner axis: walked next to it, in blocks, such
/// an access uses whole cache lines.
fn transposed_axis(kernel: &Kernel, inner: usize) -> Option<usize> {
    let strided = |index: &&Index| index.indirect.is_empty() && index.strides[inner].unsigned_abs() > 1;
    let index = accesses(kernel).map(|(index, _)| index).find(strided)?;
    (0..kernel.domain.axes.len()).find(|&axis| index.strides[axis] == 1)
}

/// For each value of a region: which axes it depends on. A reduction over columns counts as what it reduces, which
/// is more than needed and does no harm where this is used.
pub(super) fn dependence(region: &Region, rank: usize) -> Vec<Vec<bool>> {
    let mut depends: Vec<Vec<bool>> = vec![];
    for instr in &region.instrs {
        let mut axes = vec![matches!(instr.kind, InstrKind::Producer(_)); rank];
        for operand in instr.kind.operands() {
            axes.iter_mut().zip(&depends[operand.0 as usize]).for_each(|(axis, depends)| *axis |= depends);
        }
        for index in indices(&instr.kind) {
            axes.iter_mut().zip(&index.strides).for_each(|(axis, stride)| *axis |= *stride != 0);
        }
        depends.push(axes);
    }
    depends
}

/// What a row costs beside its points, as elements that are read one by one.
const ROW: f64 = 12.0;

/// The axis of the columns along which a point costs least: a row's own cost is divided among its points, and an access costs a vector's
/// share where it is contiguous, three of them where it reads every other element, nothing where it stays, and a whole element elsewhere.
fn inner_axis(kernel: &Kernel) -> usize {
    let cost = |&axis: &usize| point_cost(kernel, axis);
    // The last of equals: usually the one that other kernels run along, too.
    let columns = kernel.domain.column_axes().rev();
    columns.min_by(|a, b| cost(a).total_cmp(&cost(b))).expect("there is always a column")
}

/// What a point costs in rows along an axis, in elements that are read one by one.
pub(super) fn point_cost(kernel: &Kernel, axis: usize) -> f64 {
    let extent = kernel.domain.axes[axis] as f64;
    let share = (extent / 16.0).ceil() / extent;
    let access = |(index, weight): (&Index, usize)| {
        let each = match index.strides[axis] {
            0 => 0.0,
            1 => share,
            2 if weight == LOAD => 3.0 * share,
            _ => 1.0,
        };
        each * weight as f64
    };
    ROW / extent + accesses(kernel).map(access).sum::<f64>()
}

/// The weights of accesses.
const LOAD: usize = 1;
const STORE: usize = 2;

/// The index maps of loads and of stores, with their weights.
fn accesses(kernel: &Kernel) -> impl Iterator<Item = (&Index, usize)> {
    let loads = kernel.region.instrs.iter().filter_map(|instr| match &instr.kind {
        InstrKind::Load { index, .. } => Some((index, LOAD)),
        _ => None,
    });
    loads.chain(kernel.stores.iter().map(|Store { index, .. }| (index, STORE)))
}

/// The kernel with its axes in these groups and this order, merged where that can be ([`regrouped`]). There is always a column.
pub(super) fn regroup(kernel: &Kernel, groups: [Vec<usize>; 3]) -> Kernel {
    let mut result = regrouped(kernel, groups);
    if result.domain.column_axes().is_empty() {
        let column = result.domain.axes.len();
        result.domain.axes.push(1);
        for_each_index(&mut result, |index| index.strides.insert(column, 0));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::kernel::{BufferId, Domain, StoreMode};
    use kernfusion_ir::{Binary, DType};

    /// `store[to] = load[from]` over a box.
    fn copy(extents: &[usize], from: &[i64], to: &[i64]) -> Kernel {
        sum(extents, &[from], to)
    }

    /// `store[to]` is the sum of loads from several buffers.
    fn sum(extents: &[usize], from: &[&[i64]], to: &[i64]) -> Kernel {
        let index = |strides: &[i64]| Index { strides: strides.to_vec(), ..Index::default() };
        let mut region = Region::default();
        let loads = from.iter().zip(1..).map(|(from, buffer)| {
            let load = InstrKind::Load { buffer: BufferId(buffer), index: index(from), guard: vec![] };
            region.push(load, DType::F32)
        });
        let loads: Vec<_> = loads.collect();
        let add = |x, y| region.push(InstrKind::Binary(Binary::Add, x, y), DType::F32);
        let value = loads.into_iter().reduce(add).expect("one at least");
        let store = Store { value, buffer: BufferId(0), index: index(to), mode: StoreMode::Set };
        Kernel {
            name: String::new(),
            form: Form::Map,
            domain: Domain::flat(extents),
            region,
            stores: vec![store],
            covers: vec![],
        }
    }

    fn check(kernel: &Kernel, axes: &[usize], stored: &[i64]) {
        let normal = normalise(kernel);
        assert_eq!((&normal.domain.axes[..], &normal.stores[0].index.strides[..]), (axes, stored));
        assert_eq!(normal.domain.outer + 1, axes.len());
    }

    #[test]
    fn contiguous_axes_merge_and_axes_of_one_vanish() {
        check(&copy(&[4, 1, 5, 6], &[30, 30, 6, 1], &[30, 30, 6, 1]), &[120], &[1]);
        check(&copy(&[1, 1], &[1, 1], &[1, 1]), &[1], &[0]);
    }

    #[test]
    fn the_inner_axis_is_where_most_is_contiguous() {
        // Heads of an attention, [b, t, h, d] → [b, h, t, d]: rows of d stay together.
        check(&copy(&[2, 9, 3, 8], &[216, 24, 8, 1], &[216, 8, 72, 1]), &[2, 9, 3, 8], &[216, 8, 72, 1]);
        // A transpose runs along what it stores, and the other axis comes next to it.
        check(&copy(&[50, 2, 40], &[1, 2000, 50], &[40, 2000, 1]), &[2, 50, 40], &[2000, 40, 1]);
    }

    #[test]
    fn vectors_over_channels_do_not_outweigh_images() {
        // [n, c, h, w] into another layout of rows: four vectors run along c, one image and the store along w.
        let (image, channel) = ([6400, 100, 10, 1], [0, 1, 0, 0]);
        let kernel =
            sum(&[2, 64, 10, 10], &[&image, &channel, &channel, &channel, &channel], &[7680, 120, 12, 1]);
        check(&kernel, &[2, 64, 10, 10], &[7680, 120, 12, 1]);
    }
}
