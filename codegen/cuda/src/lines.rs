//! What is the same along a row or a column of a chain's domain, such as a row's statistics: it is loaded and computed once for each of a
//! thread's rows or columns, not at each entry.

use super::body::Body;
use super::chain::Stream;
use super::source::{coordinates, register_type, value_name};
use kernfusion_ir::kernel::{Domain, InstrKind, Kernel, Scalar};
use std::collections::BTreeSet;
use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Row,
    Column,
}

impl Line {
    pub(super) fn name(self) -> &'static str {
        match self {
            Line::Row => "row",
            Line::Column => "column",
        }
    }

    /// How many of them a thread has.
    fn slots(self) -> &'static str {
        match self {
            Line::Row => "Tile::SLOTS",
            Line::Column => "Tile::COLUMN_SLOTS",
        }
    }

    /// The axes that tell one from another, and those along it.
    fn axes(self, domain: &Domain) -> [Range<usize>; 2] {
        match self {
            Line::Row => [domain.row_axes(), domain.column_axes()],
            Line::Column => [domain.column_axes(), domain.row_axes()],
        }
    }

    /// Values that are loaded, or follow from such alone, are the same along a line, and are taken by others that are not.
    pub(super) fn values(self, kernel: &Kernel) -> BTreeSet<Scalar> {
        let Kernel { region, domain, .. } = kernel;
        let [_, along] = self.axes(domain);
        let is_of_line = |value: Scalar| {
            let all = region.needed([value], |_| false);
            let has = |is: fn(&InstrKind) -> bool| all.iter().any(|value| is(&region.instr(*value).kind));
            !region.varies(value, along.clone(), domain)
                && has(|kind| matches!(kind, InstrKind::Load { .. }))
                && !has(|kind| matches!(kind, InstrKind::Reduce(..)))
        };
        let all: Vec<_> = (0..region.instrs.len() as u32).map(Scalar).collect();
        let of_line: BTreeSet<_> = all.iter().copied().filter(|value| is_of_line(*value)).collect();
        let others = all.iter().filter(|value| !of_line.contains(value));
        let used: BTreeSet<_> = others.flat_map(|value| region.instr(*value).kind.operands()).collect();
        of_line.intersection(&used).copied().collect()
    }
}

impl Stream<'_> {
    /// Computes values of lines for each of a thread's slots: `row_<value>[slot]`, or `column_<value>[slot]`.
    pub(super) fn values_of_lines(&self, body: &mut Body<'_>, line: Line, values: &BTreeSet<Scalar>) {
        if values.is_empty() {
            return;
        }
        let Kernel { region, domain, .. } = self.kernel;
        let (name, slots) = (line.name(), line.slots());
        let [axes, _] = line.axes(domain);
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
