//! The body of a function: which values of a region it computes where.
//!
//! A value is computed in the innermost block that first needs it and is known in all blocks inside of that one. A block
//! is a loop over the columns of a row, or over the entries of a tile.

use super::source::{Axes, Code, Slot, expression, memory_type, narrowed, register_type, value_name};
use kernfusion_ir::kernel::{Direction, Index, InstrKind, Region, Scalar, Store, StoreMode};
use kernfusion_ir::{Binary, DType, Unary};
use std::collections::BTreeSet;

/// A function's body in the making.
pub(super) struct Body<'a> {
    pub(super) code: Code,
    pub(super) region: &'a Region,
    pub(super) axes: Axes,
    pub(super) slots: &'a [Slot],
    /// Whether exponentials and quotients of `f32` may be off by some units of the last place.
    pub(super) approximates: bool,
    /// For each value of the region, whether it is known in the current block.
    known: Vec<bool>,
    pairs: Option<Pairs>,
}

/// Neighbours along an axis that come in pairs, as entries number `at`, an even one, and the next: both are one access of memory.
pub(super) struct Pairs {
    pub(super) axis: usize,
    /// Where the first one has no neighbour, if there is such a place.
    pub(super) alone: Option<String>,
}

impl Pairs {
    /// A call for the entry at hand.
    fn call(&self, pair: &str, method: &str, arguments: &str) -> String {
        let alone = self.alone.as_deref().unwrap_or("false");
        format!("pair_{pair}.{method}(at, {alone}, {arguments})")
    }
}

impl<'a> Body<'a> {
    pub(super) fn new(region: &'a Region, axes: Axes, slots: &'a [Slot]) -> Self {
        let known = vec![false; region.instrs.len()];
        Body { code: Code::default(), region, axes, slots, approximates: false, known, pairs: None }
    }

    /// The body goes on in a block that begins with this line.
    pub(super) fn block(&mut self, head: impl AsRef<str>, inside: impl FnOnce(&mut Self)) {
        self.block_with(head, "", inside);
    }

    /// As `block`, with something after the block's end.
    pub(super) fn block_with(&mut self, head: impl AsRef<str>, tail: &str, inside: impl FnOnce(&mut Self)) {
        let known = self.known.clone();
        self.code.open(head);
        inside(self);
        self.code.close(tail);
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
            let text = self.got(value).or_else(|| self.approximated(value));
            let text = text.unwrap_or_else(|| expression(self.region, value, &self.axes, self.slots));
            self.define(value, text);
        }
    }

    /// A cheaper expression of a value, where that is allowed and known.
    fn approximated(&self, value: Scalar) -> Option<String> {
        let instr = self.region.instr(value);
        match instr.kind {
            _ if !self.approximates || instr.dtype != DType::F32 => None,
            InstrKind::Unary(Unary::Exp, x) => Some(format!("fast_exp({})", value_name(x))),
            InstrKind::Binary(Binary::Div, x, y) => {
                Some(format!("{} * reciprocal({})", value_name(x), value_name(y)))
            }
            _ => None,
        }
    }

    /// Writes stores, after all values that they write.
    pub(super) fn stores<'s>(&mut self, stores: impl IntoIterator<Item = &'s Store> + Clone) {
        self.need(stores.clone().into_iter().flat_map(operands));
        for (number, store) in stores.into_iter().enumerate() {
            let slot = &self.slots[store.buffer.0 as usize];
            let element = format!("{}[{}]", slot.write(), self.axes.affine(&store.index));
            let value = value_name(store.value);
            if let Some(pairs) = self.paired_store(store) {
                let arguments = format!("&{element}, {}", narrowed(&value, slot.dtype));
                let call = pairs.call(&number.to_string(), "put", &arguments);
                self.code.line(format!("{call};"));
                continue;
            }
            let value = match store.mode {
                StoreMode::Set => value,
                StoreMode::Add => format!("widen({element}) + {value}"),
            };
            self.code.line(format!("{element} = {};", narrowed(&value, slot.dtype)));
        }
    }
}

impl<'a> Body<'a> {
    /// From now on, neighbours come in pairs, and loads and these stores are done for both at once where memory has them so.
    pub(super) fn pair_up(&mut self, pairs: Pairs, stores: &[Store]) {
        self.pairs = Some(pairs);
        let values = (0..self.region.instrs.len()).map(|at| Scalar(at as u32));
        let loads = values.filter_map(|value| {
            let (_, slot, _) = self.paired_load(value)?;
            Some(format!("Pair<{}> pair_{};", memory_type(slot.dtype), value_name(value)))
        });
        let stores = stores.iter().enumerate().filter(|(_, store)| self.paired_store(store).is_some());
        let stores = stores.map(|(number, store)| {
            let slot = &self.slots[store.buffer.0 as usize];
            format!("Pair<{}> pair_{number};", memory_type(slot.dtype))
        });
        let lines: Vec<_> = loads.chain(stores).collect();
        lines.iter().for_each(|line| self.code.line(line));
    }

    /// The load of one of a pair, if that is what a value is.
    fn got(&self, value: Scalar) -> Option<String> {
        let (pairs, slot, index) = self.paired_load(value)?;
        let element = format!("&{}[{}]", slot.read(), self.axes.affine(index));
        let got = pairs.call(&value_name(value), "get", &element);
        let is_same = memory_type(slot.dtype) == register_type(slot.dtype);
        Some(if is_same { got } else { format!("widen({got})") })
    }

    fn paired_load(&self, value: Scalar) -> Option<(&Pairs, &'a Slot, &'a Index)> {
        match &self.region.instr(value).kind {
            InstrKind::Load { buffer, index, guard } if guard.is_empty() => {
                let slot = &self.slots[buffer.0 as usize];
                Some((self.paired(slot, index)?, slot, index))
            }
            _ => None,
        }
    }

    fn paired_store(&self, store: &Store) -> Option<&Pairs> {
        let slot = &self.slots[store.buffer.0 as usize];
        self.paired(slot, &store.index).filter(|_| store.mode == StoreMode::Set)
    }

    /// The pairs, if each lies side by side, at a multiple of its size.
    fn paired(&self, slot: &Slot, index: &Index) -> Option<&Pairs> {
        let pairs = self.pairs.as_ref()?;
        let is_aligned = slot.bytes.is_multiple_of(2 * slot.dtype.size());
        (is_aligned && self.axes.has_pairs(index, pairs.axis)).then_some(pairs)
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
