//! The body of a function: which values of a region it computes where.
//!
//! A value is computed in the innermost block that first needs it and is known in all blocks inside of that one. A block
//! is a loop over the columns of a row, or over the entries of a tile.

use super::source::{Axes, Code, Slot, expression, narrowed, register_type, value_name};
use kernfusion_ir::kernel::{Direction, InstrKind, Region, Scalar, Store, StoreMode};
use std::collections::BTreeSet;

/// A function's body in the making.
pub(super) struct Body<'a> {
    pub(super) code: Code,
    pub(super) region: &'a Region,
    pub(super) axes: Axes,
    pub(super) slots: &'a [Slot],
    /// For each value of the region, whether it is known in the current block.
    known: Vec<bool>,
}

impl<'a> Body<'a> {
    pub(super) fn new(region: &'a Region, axes: Axes, slots: &'a [Slot]) -> Self {
        Body { code: Code::default(), region, axes, slots, known: vec![false; region.instrs.len()] }
    }

    /// The body goes on in a block that begins with this line.
    pub(super) fn block(&mut self, head: impl AsRef<str>, inside: impl FnOnce(&mut Self)) {
        let known = self.known.clone();
        self.code.open(head);
        inside(self);
        self.code.close("");
        self.known = known;
    }

    /// Defines a value of the region that is not computed by its instruction alone.
    pub(super) fn define(&mut self, value: Scalar, expression: impl AsRef<str>) {
        self.known[value.0 as usize] = true;
        let dtype = register_type(self.region.instr(value).dtype);
        self.code.line(format!("const {dtype} {} = {};", value_name(value), expression.as_ref()));
    }

    /// Computes values and whatever they are made of, in the region's order.
    pub(super) fn need(&mut self, roots: impl IntoIterator<Item = Scalar>) {
        let known = self.known.clone();
        for value in self.region.needed(roots, |value| known[value.0 as usize]) {
            let text = expression(self.region, value, &self.axes, self.slots);
            self.define(value, text);
        }
    }

    /// Writes stores, after all values that they write.
    pub(super) fn stores<'s>(&mut self, stores: impl IntoIterator<Item = &'s Store> + Clone) {
        self.need(stores.clone().into_iter().flat_map(operands));
        for store in stores {
            let slot = &self.slots[store.buffer.0 as usize];
            let element = format!("{}[{}]", slot.write(), self.axes.affine(&store.index));
            let value = value_name(store.value);
            let value = match store.mode {
                StoreMode::Set => value,
                StoreMode::Add => format!("widen({element}) + {value}"),
            };
            self.code.line(format!("{element} = {};", narrowed(&value, slot.dtype)));
        }
    }
}

/// The values that a store needs: what it writes, and the terms of its index.
pub(super) fn operands(store: &Store) -> Vec<Scalar> {
    std::iter::once(store.value).chain(store.index.indirect.iter().map(|term| term.value)).collect()
}

/// The reductions over columns among these values, by sweep: those of a sweep need no results but of earlier ones.
pub(super) fn sweeps(region: &Region, live: &BTreeSet<Scalar>) -> Vec<Vec<Scalar>> {
    let mut stages: Vec<usize> = vec![];
    let mut sweeps: Vec<Vec<Scalar>> = vec![];
    for (at, instr) in region.instrs.iter().enumerate() {
        let operands = instr.kind.operands();
        let stage = operands.iter().map(|operand| stages[operand.0 as usize]).max().unwrap_or(0);
        let is_reduction = matches!(instr.kind, InstrKind::Reduce(_, Direction::Columns, _));
        stages.push(stage + usize::from(is_reduction));
        let value = Scalar(at as u32);
        if is_reduction && live.contains(&value) {
            sweeps.resize_with(sweeps.len().max(stage + 1), Vec::new);
            sweeps[stage].push(value);
        }
    }
    sweeps.retain(|sweep| !sweep.is_empty());
    sweeps
}
