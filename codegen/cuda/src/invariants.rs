//! Invariants of a chain's rows and columns, such as a row's statistics: they are loaded and computed once for each of a thread's rows or
//! columns, not at each entry.

use super::body::Body;
use super::chain::Stream;
use super::source::{coordinates, register_type, value_name};
use kernfusion_ir::kernel::{Direction, Domain, InstrKind, Kernel, Region, Scalar};
use std::collections::BTreeSet;
use std::ops::Range;

/// Whether a value is the same for all rows, or for all columns.
pub(super) fn is_invariant(region: &Region, value: Scalar, domain: &Domain) -> bool {
    [Direction::Rows, Direction::Columns]
        .into_iter()
        .any(|along| !region.varies(value, axes(along, domain), domain))
}

/// Values that are loaded, or follow from such alone, are the same along this direction, and are taken by others that are not.
pub(super) fn invariants(kernel: &Kernel, along: Direction) -> BTreeSet<Scalar> {
    let Kernel { region, domain, .. } = kernel;
    let is_loaded = |value: Scalar| {
        let all = region.needed([value], |_| false);
        let has = |is: fn(&InstrKind) -> bool| all.iter().any(|value| is(&region.instr(*value).kind));
        has(|kind| matches!(kind, InstrKind::Load { .. }))
            && !has(|kind| matches!(kind, InstrKind::Reduce(..)))
    };
    let all: Vec<_> = (0..region.instrs.len() as u32).map(Scalar).collect();
    let is_same = |value: Scalar| !region.varies(value, axes(along, domain), domain);
    let invariant: BTreeSet<_> =
        all.iter().copied().filter(|&value| is_same(value) && is_loaded(value)).collect();
    let others = all.iter().filter(|value| !invariant.contains(value));
    let used: BTreeSet<_> = others.flat_map(|value| region.instr(*value).kind.operands()).collect();
    invariant.intersection(&used).copied().collect()
}

fn axes(along: Direction, domain: &Domain) -> Range<usize> {
    match along {
        Direction::Rows => domain.row_axes(),
        Direction::Columns => domain.column_axes(),
    }
}

impl Stream<'_> {
    /// Computes invariants for each of a thread's slots: `row_<value>[slot]` of what is the same along the columns, `column_<value>[slot]` of what
    /// is along the rows.
    pub(super) fn hoist(&self, body: &mut Body<'_>, values: &BTreeSet<Scalar>, along: Direction) {
        if values.is_empty() {
            return;
        }
        let Kernel { region, domain, .. } = self.kernel;
        let (name, slots, axes) = match along {
            Direction::Columns => ("row", "Tile::SLOTS", domain.row_axes()),
            Direction::Rows => ("column", "Tile::COLUMN_SLOTS", domain.column_axes()),
        };
        let extent = domain.extent(axes.clone());
        for value in values {
            let ty = register_type(region.instr(*value).dtype);
            body.code.line(format!("{ty} {name}_{}[{slots}];", value_name(*value)));
        }
        body.code.line("UNROLL");
        body.block(format!("for (int slot = 0; slot < {slots}; slot++)"), |body| {
            body.code.line(format!("const int any = first_{name} + Tile::slot_{name}(slot);"));
            body.code.line(format!("const int {name} = any < {extent} ? any : {extent} - 1;"));
            let outside = body.axes.names.len();
            body.axes.names.resize(axes.start, "0".into());
            let own = coordinates(&mut body.code, name, 'i', &domain.axes[axes.clone()]);
            body.axes.names.extend(own);
            body.axes.names.resize(domain.axes.len(), "0".into());
            body.need(values.iter().copied());
            for value in values.iter().map(|value| value_name(*value)) {
                body.code.line(format!("{name}_{value}[slot] = {value};"));
            }
            body.axes.names.truncate(outside);
        });
    }
}
