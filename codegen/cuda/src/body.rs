//! The body of a function: which values of a region it computes where.
//!
//! A value is computed in the innermost block that first needs it and is known in all blocks inside of that one. A block
//! is a loop over the columns of a row, or over the entries of a tile.

use super::source::{
    Axes, Code, Slot, constant, expression, is_narrow, memory_type, narrowed, register_type, value_name,
};
use super::strength::Exponential;
use kernfusion_ir::kernel::{Bound, Direction, Index, InstrKind, Kernel, Region, Scalar, Store, StoreMode};
use kernfusion_ir::{Binary, DType, Unary};
use std::collections::{BTreeMap, BTreeSet};

/// A function's body in the making.
pub(super) struct Body<'a> {
    pub(super) code: Code,
    pub(super) region: &'a Region,
    pub(super) axes: Axes,
    pub(super) slots: &'a [Slot],
    /// Whether exponentials and quotients of `f32` may be off by some units of the last place.
    pub(super) approximates: bool,
    /// Powers that may be, and what they are of.
    pub(super) exponentials: BTreeMap<Scalar, Exponential>,
    /// For each value of the region, whether it is known in the current block.
    known: Vec<bool>,
    runs: Option<Runs>,
}

/// Neighbours along an axis that one thread handles in a loop over `at`, from 0 to `length`, and that are one access of memory.
#[derive(Debug, Clone)]
pub(super) struct Runs {
    pub(super) axis: usize,
    pub(super) length: usize,
    /// When the one at hand belongs to a run that is not whole, if there is such a run.
    pub(super) alone: Option<String>,
}

impl Runs {
    /// Each number by itself.
    pub(super) const SINGLE: Runs = Runs { axis: 0, length: 1, alone: None };
    /// Bytes of an access of memory, at most.
    const BYTES: usize = 16;

    /// Runs along an axis that are as long as these loads and stores let them be: each lies side by side, or is the same number. One number
    /// is a run, too.
    pub(super) fn of(
        region: &Region,
        stores: &[&Store],
        axes: &Axes,
        slots: &[Slot],
        axis: usize,
        most: usize,
    ) -> Self {
        let loads = region.instrs.iter().filter_map(|instr| match &instr.kind {
            InstrKind::Load { buffer, index, guard } => Some((*buffer, index, is_of_run(guard, axis))),
            _ => None,
        });
        let stores = stores.iter().map(|store| (store.buffer, &store.index, store.mode == StoreMode::Set));
        let moving: Vec<_> = loads.chain(stores).filter(|(_, index, _)| index.strides[axis] != 0).collect();
        let is_whole = |length: usize| {
            moving.iter().all(|&(buffer, index, is_plain)| {
                let slot = &slots[buffer.0 as usize];
                let is_aligned = slot.bytes.is_multiple_of(length * slot.dtype.size());
                is_plain && is_aligned && axes.has_runs(index, axis, length)
            })
        };
        let widest = moving.iter().map(|(buffer, ..)| slots[buffer.0 as usize].dtype.size()).max();
        let most = widest.map_or(1, |size| most.min(Self::BYTES / size));
        let length = [8, 4, 2].into_iter().find(|&length| length <= most && is_whole(length));
        Runs { axis, length: length.unwrap_or(1), alone: None }
    }

    /// Runs of a kernel's columns, of the lengths that may be. Where the last one is not whole, its numbers, those of `column`, are alone.
    pub(super) fn of_columns(
        kernel: &Kernel,
        stores: &[&Store],
        slots: &[Slot],
        may_be: impl Fn(usize) -> bool,
    ) -> Self {
        let domain = &kernel.domain;
        let Some(axis) = domain.column_axes().next_back() else { return Runs::SINGLE };
        let (extent, is_single) = (domain.axes[axis], domain.column_axes().len() == 1);
        let is_whole = |length: &usize| is_single || extent.is_multiple_of(*length);
        let Some(most) = [8, 4, 2].into_iter().find(|length| is_whole(length) && may_be(*length)) else {
            return Runs { axis, ..Runs::SINGLE };
        };
        let axes = Axes { names: vec![], extents: domain.axes.clone() };
        let mut runs = Runs::of(&kernel.region, stores, &axes, slots, axis, most);
        let whole = extent / runs.length * runs.length;
        runs.alone = (whole < extent).then(|| format!("column >= {whole}"));
        runs
    }

    /// A call for the number at hand.
    fn call(&self, run: &str, method: &str, arguments: &str) -> String {
        let alone = self.alone.as_deref().unwrap_or("false");
        format!("run_{run}.{method}(at, {alone}, {arguments})")
    }

    /// The type of a run of numbers of this type.
    pub(super) fn of_type(&self, dtype: DType) -> String {
        format!("Run<{}, {}>", memory_type(dtype), self.length)
    }
}

impl<'a> Body<'a> {
    pub(super) fn new(region: &'a Region, axes: Axes, slots: &'a [Slot]) -> Self {
        let known = vec![false; region.instrs.len()];
        Body {
            code: Code::default(),
            region,
            axes,
            slots,
            approximates: false,
            exponentials: BTreeMap::new(),
            known,
            runs: None,
        }
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

    /// Values that the block inside will define.
    pub(super) fn promise(&mut self, values: &[Scalar]) {
        values.iter().for_each(|value| self.known[value.0 as usize] = true);
    }

    /// The loads from such memory, by no computed index, that these roots need.
    pub(super) fn loads(
        &self,
        roots: impl IntoIterator<Item = Scalar>,
        is_from: impl Fn(&Slot) -> bool,
    ) -> Vec<Scalar> {
        let is_load = |value: &Scalar| match &self.region.instr(*value).kind {
            InstrKind::Load { buffer, index, .. } => {
                index.indirect.is_empty() && is_from(&self.slots[buffer.0 as usize])
            }
            _ => false,
        };
        self.region.needed(roots, |_| false).into_iter().filter(is_load).collect()
    }

    /// Computes values and whatever they are made of, in the region's order.
    pub(super) fn need(&mut self, roots: impl IntoIterator<Item = Scalar>) {
        let mut needed = BTreeMap::new();
        let mut open: Vec<_> = roots.into_iter().collect();
        while let Some(value) = open.pop() {
            if self.known[value.0 as usize] || needed.contains_key(&value) {
                continue;
            }
            let (text, operands) = match self.cheaper(value) {
                Some((text, operands)) => (Some(text), operands),
                None => (None, self.region.instr(value).kind.operands()),
            };
            open.extend(operands);
            needed.insert(value, text);
        }
        for (value, cheaper) in needed {
            let text = self.got(value).or(cheaper);
            let text = text.unwrap_or_else(|| expression(self.region, value, &self.axes, self.slots));
            self.define(value, text);
        }
    }

    /// A cheaper expression of a value, where that is allowed and known, and the values that it takes.
    fn cheaper(&self, value: Scalar) -> Option<(String, Vec<Scalar>)> {
        let instr = self.region.instr(value);
        match instr.kind {
            _ if instr.dtype != DType::F32 => None,
            InstrKind::Unary(Unary::Tanh, x) if is_beside_one(self.region, value) => {
                Some((format!("tanh_beside_one({})", value_name(x)), vec![x]))
            }
            InstrKind::Unary(Unary::Exp, _) if self.exponentials.contains_key(&value) => {
                let Exponential { x, factor, b } = self.exponentials[&value];
                let [of_x, of_b, factor] = [value_name(x), value_name(b), constant(factor, DType::F32)];
                Some((format!("shifted_exp({of_x}, {factor}, {of_b})"), vec![x, b]))
            }
            // Where powers may be off, so may differences of products, and which of two products is fused is not left to the compiler.
            InstrKind::Binary(Binary::Sub, product, z) if !self.exponentials.is_empty() => {
                let InstrKind::Binary(Binary::Mul, x, y) = self.region.instr(product).kind else {
                    return None;
                };
                let [of_x, of_y, of_z] = [x, y, z].map(value_name);
                Some((format!("fmaf({of_x}, {of_y}, -{of_z})"), vec![x, y, z]))
            }
            // One sweep finds the maximum of products, which are rounded, and the next one the power of their differences from it: in one operation
            // with the difference, a product would not be rounded, and be larger than all of them.
            InstrKind::Binary(Binary::Sub, x, y)
                if !self.approximates
                    && [x, y].into_iter().any(|operand| is_product(self.region, operand))
                    && is_exponent(self.region, value) =>
            {
                Some((format!("difference({}, {})", value_name(x), value_name(y)), vec![x, y]))
            }
            _ if !self.approximates => None,
            InstrKind::Unary(Unary::Exp, x) => Some((format!("fast_exp({})", value_name(x)), vec![x])),
            InstrKind::Unary(Unary::Sigmoid, x) => {
                Some((format!("reciprocal(1.0f + fast_exp(-{}))", value_name(x)), vec![x]))
            }
            InstrKind::Binary(Binary::Div, x, y) if !is_cut(self.region, value) => {
                Some((format!("{} * reciprocal({})", value_name(x), value_name(y)), vec![x, y]))
            }
            _ => None,
        }
    }

    /// What a store writes or, where that is something rounded to 16 bits as the store does itself, that.
    fn unrounded(&self, store: &Store) -> Scalar {
        let instr = self.region.instr(store.value);
        match instr.kind {
            InstrKind::Cast(x)
                if is_narrow(instr.dtype)
                    && !self.known[store.value.0 as usize]
                    && self.region.instr(x).dtype == DType::F32 =>
            {
                x
            }
            _ => store.value,
        }
    }

    /// Writes stores, after all values that they write.
    pub(super) fn stores<'s>(&mut self, stores: impl IntoIterator<Item = &'s Store> + Clone) {
        let stored: Vec<_> = stores.clone().into_iter().map(|store| self.unrounded(store)).collect();
        let of_indices = stores.clone().into_iter().flat_map(|store| &store.index.indirect);
        self.need(of_indices.map(|term| term.value).chain(stored.iter().copied()));
        for (number, (store, value)) in stores.into_iter().zip(stored).enumerate() {
            let slot = &self.slots[store.buffer.0 as usize];
            let element = format!("{}[{}]", slot.write(), self.axes.affine(&store.index));
            let value = value_name(value);
            if let Some(runs) = self.run_of_store(store) {
                // Neighbours of 16 bits are rounded in pairs.
                let text = if is_narrow(slot.dtype) { value } else { narrowed(&value, slot.dtype) };
                let arguments = format!("&{element}, {text}");
                let call = runs.call(&number.to_string(), "put", &arguments);
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
    /// What is inside comes in runs: of these roots' loads and these stores, those that memory has so are done for a whole run at once. The
    /// loop over a run is inside of what declares them.
    pub(super) fn in_runs<'s>(
        &mut self,
        runs: Runs,
        roots: impl IntoIterator<Item = Scalar>,
        stores: impl IntoIterator<Item = &'s Store>,
        inside: impl FnOnce(&mut Self),
    ) {
        let length = runs.length;
        self.runs = Some(runs);
        let known = self.known.clone();
        let stores: Vec<_> = stores.into_iter().collect();
        let roots = roots.into_iter().chain(stores.iter().flat_map(|store| operands(store)));
        let loads = self.region.needed(roots, |value| known[value.0 as usize]);
        let loads = loads.into_iter().filter_map(|value| {
            let (runs, slot, _) = self.run_of_load(value)?;
            Some(format!("{} run_{};", runs.of_type(slot.dtype), value_name(value)))
        });
        let stores = stores.iter().enumerate().filter_map(|(number, store)| {
            let runs = self.run_of_store(store)?;
            let slot = &self.slots[store.buffer.0 as usize];
            Some(format!("{} run_{number};", runs.of_type(slot.dtype)))
        });
        let lines: Vec<_> = loads.chain(stores).collect();
        lines.iter().for_each(|line| self.code.line(line));
        self.code.line("UNROLL");
        self.block(format!("for (int at = 0; at < {length}; at++)"), inside);
        self.runs = None;
    }

    /// The load of one of a run, if that is what a value is.
    fn got(&self, value: Scalar) -> Option<String> {
        let (runs, slot, index) = self.run_of_load(value)?;
        let element = format!("&{}[{}]", slot.read(), self.axes.affine(index));
        let got = runs.call(&value_name(value), "get", &element);
        let is_same = memory_type(slot.dtype) == register_type(slot.dtype);
        let got = if is_same { got } else { format!("widen({got})") };
        let InstrKind::Load { guard, .. } = &self.region.instr(value).kind else { return None };
        Some(self.axes.guarded(got, guard, slot.dtype))
    }

    fn run_of_load(&self, value: Scalar) -> Option<(&Runs, &'a Slot, &'a Index)> {
        match &self.region.instr(value).kind {
            InstrKind::Load { buffer, index, guard } => {
                let slot = &self.slots[buffer.0 as usize];
                let runs = self.run_in_memory(slot, index)?;
                is_of_run(guard, runs.axis).then_some((runs, slot, index))
            }
            _ => None,
        }
    }

    fn run_of_store(&self, store: &Store) -> Option<&Runs> {
        let slot = &self.slots[store.buffer.0 as usize];
        self.run_in_memory(slot, &store.index).filter(|_| store.mode == StoreMode::Set)
    }

    /// The runs, if each lies side by side, at a multiple of its size.
    fn run_in_memory(&self, slot: &Slot, index: &Index) -> Option<&Runs> {
        let runs = self.runs.as_ref().filter(|runs| runs.length > 1)?;
        let is_aligned = slot.bytes.is_multiple_of(runs.length * slot.dtype.size());
        (is_aligned && self.axes.has_runs(index, runs.axis, runs.length)).then_some(runs)
    }
}

/// Whether a value of 1 at most is only added to constants of at least 1, itself or its square: then its absolute error matters, not the relative
/// one.
fn is_beside_one(region: &Region, value: Scalar) -> bool {
    let is_large = |x: Scalar| match region.instr(x).kind {
        InstrKind::Constant(constant) => constant.value().abs() >= 1.0,
        _ => false,
    };
    let users = region.instrs.iter().enumerate().filter(|(_, instr)| instr.kind.operands().contains(&value));
    let mut users = users.peekable();
    users.peek().is_some()
        && users.all(|(number, instr)| match instr.kind {
            InstrKind::Binary(Binary::Add | Binary::Sub, x, y) => is_large(x) || is_large(y),
            InstrKind::Binary(Binary::Mul, x, y) => x == y && is_beside_one(region, Scalar(number as u32)),
            _ => false,
        })
}

/// Whether something else comes out where a value is a little less: it is cut or rounded to a whole number, or compared, perhaps after its sign
/// has changed or another one was chosen.
fn is_cut(region: &Region, value: Scalar) -> bool {
    let mut has_it: Vec<bool> = (0..region.instrs.len()).map(|number| number == value.0 as usize).collect();
    for (number, instr) in region.instrs.iter().enumerate() {
        if !instr.kind.operands().iter().any(|operand| has_it[operand.0 as usize]) {
            continue;
        }
        match instr.kind {
            InstrKind::Unary(Unary::Floor | Unary::Round | Unary::Sign, _) | InstrKind::Compare(..) => {
                return true;
            }
            InstrKind::Cast(_) if !instr.dtype.is_float() => return true,
            InstrKind::Unary(Unary::Neg | Unary::Abs, _)
            | InstrKind::Binary(Binary::Max | Binary::Min, ..)
            | InstrKind::Select(..) => has_it[number] = true,
            _ => {}
        }
    }
    false
}

fn is_product(region: &Region, value: Scalar) -> bool {
    matches!(region.instr(value).kind, InstrKind::Binary(Binary::Mul, ..))
}

/// Whether a power of e is taken of a value.
fn is_exponent(region: &Region, value: Scalar) -> bool {
    region.instrs.iter().any(|instr| matches!(instr.kind, InstrKind::Unary(Unary::Exp, x) if x == value))
}

/// Whether all of a run along an axis are within these bounds, or none.
fn is_of_run(guard: &[Bound], axis: usize) -> bool {
    guard.iter().all(|bound| bound.coordinate.strides[axis] == 0 && bound.coordinate.indirect.is_empty())
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
