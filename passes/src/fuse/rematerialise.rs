//! Which values are computed again where they are read much later, instead of being kept: what backward needs of
//! forward, mostly.
//!
//! ```text
//! kernel 7    z = x·w + b;  h = gelu(z), keeping z·½ and 1 + erf(z/√2) for backward
//! kernel 90   uses both
//!        →
//! kernel 7    z = x·w + b;  h = gelu(z)
//! kernel 90   computes both from z
//! ```
//!
//! For each kernel the values that it stores for far readers are candidates. Computing them again needs a *frontier*:
//! the nearest values above them that are no elementwise results of this kernel. The trade is made if the frontier
//! keeps less memory alive than the candidates do, all of them together or one alone; the choice that saves more is made. The
//! rewrite happens on the graph: far readers get clones, which fusion then merges into them.

use super::{Planner, assemble, cost};
use kernfusion_ir::{Graph, KernelEntry, Op, Result, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A reader this many kernels later is far.
const FAR: usize = 10;
/// A kernel this many kernels before or after a reader may compute a value for it, beside its own.
const NEAR: usize = 2;
/// How many times the memory traffic that is saved computing again may cost.
const PATIENCE: f64 = 6.0;
/// Bytes of memory that a second of computing again is worth.
const PRICE: f64 = 1e9;
/// The same for products, where memory is short. A product over k gives 4 bytes for k multiplications, so this is a limit
/// to k.
const THRIFT: f64 = 0.25e9;
/// Tensors of fewer bytes are not worth a decision.
pub(super) const SMALL: usize = 1 << 18;

/// The rewritten graph's memory of where its nodes come from.
#[derive(Default)]
pub(super) struct Clones {
    originals: BTreeMap<ValueId, ValueId>,
    /// The kernel, before rewriting, of each member that is no clone.
    kernel: BTreeMap<ValueId, usize>,
    /// The kernels, before rewriting, that read each clone.
    readers: BTreeMap<ValueId, BTreeSet<usize>>,
}

impl Clones {
    /// Whether a value is computed again.
    pub(super) fn contains(&self, value: ValueId) -> bool {
        self.originals.contains_key(&value)
    }

    /// Whether a kernel may have these members: no clone beside its original, and none far from the kernel that it was
    /// made for, where fusion would compute it as early as the original.
    pub(super) fn allow(&self, members: &BTreeSet<ValueId>) -> bool {
        let mut clones =
            members.iter().filter_map(|member| Some((self.originals.get(member)?, &self.readers[member])));
        let others: BTreeSet<_> = members.iter().filter_map(|m| self.kernel.get(m).copied()).collect();
        let is_near =
            |reader: &usize| others.range(reader.saturating_sub(NEAR)..=reader + NEAR).next().is_some();
        clones.all(|(original, readers)| {
            !members.contains(original) && (others.is_empty() || readers.iter().any(is_near))
        })
    }
}

/// What is computed again.
pub(super) struct Recomputation {
    /// Values of which far readers get clones, with all values between them and the frontier.
    recomputed: BTreeSet<ValueId>,
    /// Those that every kernel but their own computes again: what lies in a chain, and what is cheaper to compute than to
    /// load.
    near: BTreeSet<ValueId>,
    /// Those with one clone for all readers, since it takes a product: what lies in a chain, and products.
    shared: BTreeSet<ValueId>,
    /// The position of each member's kernel in execution order.
    position: BTreeMap<ValueId, usize>,
}

impl Recomputation {
    /// Whether a kernel computes the value again, if any does.
    fn is_far(&self, value: ValueId, reader: usize) -> bool {
        let distance = if self.near.contains(&value) { 0 } else { FAR };
        self.position.get(&value).is_some_and(|home| reader > home + distance)
    }
}

/// A set of candidates with its frontier.
struct Trade {
    recomputed: BTreeSet<ValueId>,
    /// What must stay in memory for it, and would not otherwise.
    frontier: BTreeSet<ValueId>,
    /// Bytes of what is read to compute again, and of what is not read any more.
    reads: usize,
    replaced: usize,
    /// Bytes of long-lived memory saved, less those added.
    gain: isize,
    seconds: f64,
}

/// The trades worth making, if any. To be thrifty, products are computed again, too.
pub(super) fn choose(planner: &Planner<'_>, is_thrifty: bool) -> Option<Recomputation> {
    let groups: Vec<_> = planner.groups.iter().flatten().collect();
    let order = assemble::execution_order(&groups.iter().map(|group| &group.kernel).collect::<Vec<_>>());
    let kernels: Vec<_> = order.into_iter().map(|number| groups[number]).collect();
    let position: BTreeMap<ValueId, usize> = kernels
        .iter()
        .enumerate()
        .flat_map(|(number, group)| group.members.iter().map(move |&member| (member, number)))
        .collect();
    let choice = Recomputation {
        recomputed: BTreeSet::new(),
        near: BTreeSet::new(),
        shared: BTreeSet::new(),
        position,
    };
    let mut chooser = Chooser { planner, choice, kept: BTreeSet::new(), is_thrifty };
    for group in kernels {
        chooser.consider(group);
    }
    Some(chooser.choice).filter(|choice| !choice.recomputed.is_empty())
}

struct Chooser<'p, 'a> {
    planner: &'p Planner<'a>,
    choice: Recomputation,
    /// What stays in memory so that other values of the kernel at hand can be computed again.
    kept: BTreeSet<ValueId>,
    is_thrifty: bool,
}

impl Chooser<'_, '_> {
    fn graph(&self) -> &Graph {
        self.planner.graph
    }

    /// The kernel that reads a value last.
    fn last_read(&self, value: ValueId) -> usize {
        let readers = self.planner.readers.get(&value).into_iter().flatten();
        readers.filter_map(|reader| self.choice.position.get(reader)).max().copied().unwrap_or(0)
    }

    /// Makes the best trade for the values that one kernel stores.
    fn consider(&mut self, group: &super::Group) {
        let has_product = group.members.iter().any(|&value| self.planner.is_contraction(value));
        if !group.kernel.consumers().is_empty() {
            self.consider_chain(&group.members);
        } else if !(self.is_thrifty && has_product && self.consider_product(&group.members)) {
            self.consider_elementwise(&group.members);
        }
    }

    /// The entries of a chain's products are computed again with what follows from them: a product of two small operands,
    /// where a kernel like this one will read it. They grow with the square of what it reads, and are not kept at any price
    /// that a chain has.
    fn consider_chain(&mut self, members: &BTreeSet<ValueId>) {
        let stored = self.stored(members, 0, |value| self.is_cheap_to_repeat(value));
        if let Some(trade) = self.best_trade(&stored, members, true, 0.0, |_| true) {
            self.choice.near.extend(&trade.recomputed);
            self.choice.shared.extend(&trade.recomputed);
            self.choice.recomputed.extend(trade.recomputed);
        }
    }

    /// What a product gives is computed again for far readers, if it is larger than its operands and that saves enough;
    /// tells whether it is.
    fn consider_product(&mut self, members: &BTreeSet<ValueId>) -> bool {
        let bytes = |value: ValueId| self.graph()[value].ty.bytes();
        let is_computed = |value: &&ValueId| !matches!(self.graph()[**value].op, Op::Input(_));
        let grows = |value: ValueId| {
            let operands = self.graph()[value].operands.iter().filter(is_computed);
            bytes(value) > operands.map(|&operand| bytes(operand)).sum()
        };
        if !members.iter().all(|&value| !self.planner.is_contraction(value) || grows(value)) {
            return false;
        }
        let repeatable = |value| self.is_cheap_to_repeat(value) || self.planner.is_contraction(value);
        let far = self.stored(members, FAR, repeatable);
        let pays = |trade: &Trade| trade.gain as f64 > THRIFT * trade.seconds;
        let Some(trade) = self.best_trade(&far, members, true, 0.0, pays) else { return false };
        self.choice.shared.extend(&trade.recomputed);
        self.choice.recomputed.extend(trade.recomputed);
        true
    }

    /// Elementwise results are computed again for far readers, which saves memory, or for all, if that saves time. What products can
    /// compute while they pack it is then not written at all.
    fn consider_elementwise(&mut self, members: &BTreeSet<ValueId>) {
        let saved = |trade: &Trade| cost::moving(2 * trade.gain as usize);
        let far = self.stored(members, FAR, |value| self.is_cheap_to_repeat(value));
        let patient = |trade: &Trade| trade.seconds < PATIENCE * saved(trade);
        if let Some(trade) = self.best_trade(&far, members, false, PRICE, patient) {
            self.kept = trade.frontier;
            self.choice.recomputed.extend(trade.recomputed);
        } else {
            let by_readers = |value| self.is_cheap_to_repeat(value) && self.can_be_computed_by_readers(value);
            let near = self.stored(members, 0, by_readers);
            let saves = |trade: &Trade| trade.seconds < saved(trade);
            self.make_near(self.best_trade(&near, members, false, PRICE, saves));
        }
        let by_products =
            |value| self.is_cheap_to_repeat(value) && self.can_be_packed_by_readers(value, members);
        let packed = self.stored(members, 0, by_products);
        // Every reader reads what the values are made of instead of them.
        let readers = packed.iter().flat_map(|value| self.planner.readers.get(value)).flatten();
        let kernels: BTreeSet<_> = readers.filter_map(|reader| self.choice.position.get(reader)).collect();
        let longer = |trade: &Trade| cost::moving(kernels.len() * trade.reads.saturating_sub(trade.replaced));
        let saves = |trade: &Trade| trade.seconds + longer(trade) < saved(trade);
        self.make_near(self.best_trade(&packed, members, false, PRICE, saves));
        self.kept.clear();
    }

    fn make_near(&mut self, trade: Option<Trade>) {
        if let Some(trade) = trade {
            self.kept.extend(trade.frontier);
            self.choice.near.extend(&trade.recomputed);
            self.choice.recomputed.extend(trade.recomputed);
        }
    }

    /// The members that are stored for readers more than this many kernels later, of those that can be repeated.
    fn stored(
        &self,
        members: &BTreeSet<ValueId>,
        distance: usize,
        can_be_repeated: impl Fn(ValueId) -> bool,
    ) -> BTreeSet<ValueId> {
        let is_stored = |&value: &ValueId| {
            can_be_repeated(value)
                && !self.planner.outputs.contains(&value)
                && self.graph()[value].ty.bytes() >= SMALL
                && self.last_read(value) > self.choice.position[&value] + distance
        };
        members.iter().copied().filter(is_stored).collect()
    }

    /// The best trade that is worth it for some of the candidates, all of them together or one alone, at a price in bytes
    /// for a second. `products` tells whether products may be computed again.
    fn best_trade(
        &self,
        candidates: &BTreeSet<ValueId>,
        members: &BTreeSet<ValueId>,
        products: bool,
        price: f64,
        is_worth_it: impl Fn(&Trade) -> bool,
    ) -> Option<Trade> {
        let singles = candidates.iter().map(|&value| BTreeSet::from([value]));
        let trades = singles.chain([candidates.clone()]).filter(|set| !set.is_empty());
        let trades = trades.map(|set| self.trade(&set, members, products));
        let trades = trades.filter(|trade| trade.gain > 0 && is_worth_it(trade));
        let score = |trade: &Trade| trade.gain as f64 - trade.seconds * price;
        trades.max_by(|a, b| score(a).total_cmp(&score(b)))
    }

    /// Whether products read the value, and all of them can compute it while they pack it.
    fn can_be_packed_by_readers(&self, value: ValueId, members: &BTreeSet<ValueId>) -> bool {
        let readers: Vec<_> = self.planner.readers.get(&value).into_iter().flatten().copied().collect();
        let products = || readers.iter().filter(|&&reader| self.planner.is_contraction(reader));
        let mut computed = BTreeSet::new();
        let mut open = vec![value];
        while let Some(next) = open.pop() {
            let is_inside = members.contains(&next) && self.is_cheap_to_repeat(next);
            let is_computed = next == value || is_inside && !self.stays(next, members);
            if self.planner.free[next.index()] || is_computed && computed.insert(next) {
                open.extend(&self.graph()[next].operands);
            }
        }
        products().next().is_some() && products().all(|&product| self.planner.can_pack(product, &computed))
    }

    /// Whether all kernels that read the value can compute it where they read it: products cannot.
    fn can_be_computed_by_readers(&self, value: ValueId) -> bool {
        let readers = self.planner.readers.get(&value).into_iter().flatten();
        readers.into_iter().all(|&reader| !self.planner.is_contraction(reader))
    }

    fn is_cheap_to_repeat(&self, value: ValueId) -> bool {
        let node = &self.graph()[value];
        // A converted input is kept: the conversion is all there is, and the input is there for all of the run.
        let of_input = |operand: &ValueId| matches!(self.graph()[*operand].op, Op::Input(_));
        let converts_input = matches!(node.op, Op::Cast(_)) && node.operands.iter().all(of_input);
        node.op.entry() == KernelEntry::Scalar && !converts_input
    }

    /// What computing `set` again takes: everything up to the frontier.
    fn trade(&self, set: &BTreeSet<ValueId>, members: &BTreeSet<ValueId>, products: bool) -> Trade {
        let latest = set.iter().map(|&value| self.last_read(value)).max().unwrap_or(0);
        let (recomputed, frontier) = (BTreeSet::new(), BTreeSet::new());
        let mut trade = Trade { recomputed, frontier, reads: 0, replaced: 0, gain: 0, seconds: 0.0 };
        let mut seen = BTreeSet::new();
        let mut stack: Vec<_> = set.iter().copied().collect();
        while let Some(value) = stack.pop() {
            if !seen.insert(value) {
                continue;
            }
            let node = &self.graph()[value];
            let bytes = node.ty.bytes() as isize;
            let kept = || {
                let long =
                    self.last_read(value) + FAR / 2 >= latest && self.planner.readers.contains_key(&value);
                let stays = !self.choice.recomputed.contains(&value);
                self.kept.contains(&value) || long && stays && self.is_stored(value, members)
            };
            if self.planner.free[value.index()] {
                stack.extend(&node.operands);
            } else if set.contains(&value) {
                trade.gain += bytes;
                trade.replaced += node.ty.bytes();
                self.repeat(value, &mut trade, &mut stack);
            } else if products && self.choice.recomputed.contains(&value) {
                // Its far readers compute it again, this one among them.
            } else if matches!(node.op, Op::Input(_)) || node.ty.bytes() < SMALL || kept() {
                // In memory until then anyway, or too small to matter.
                trade.reads += node.ty.bytes();
            } else if members.contains(&value)
                && (self.is_cheap_to_repeat(value) || products && self.planner.is_contraction(value))
                && !self.stays(value, members)
            {
                self.repeat(value, &mut trade, &mut stack);
            } else {
                trade.gain -= bytes;
                trade.reads += node.ty.bytes();
                trade.frontier.insert(value);
            }
        }
        trade
    }

    /// Whether a value will be in memory when its kernel is done.
    fn is_stored(&self, value: ValueId, members: &BTreeSet<ValueId>) -> bool {
        let readers = self.planner.readers.get(&value).into_iter().flatten();
        !members.contains(&value) || readers.into_iter().any(|reader| !members.contains(reader))
    }

    /// Whether a value will be in memory for all of its readers, as far as is decided.
    fn stays(&self, value: ValueId, members: &BTreeSet<ValueId>) -> bool {
        self.is_stored(value, members) && !self.choice.recomputed.contains(&value)
    }

    fn repeat(&self, value: ValueId, trade: &mut Trade, stack: &mut Vec<ValueId>) {
        let node = &self.graph()[value];
        trade.recomputed.insert(value);
        trade.seconds += match &node.op {
            Op::DotGeneral(dot) => {
                let shape = &self.graph()[node.operands[0]].ty.shape;
                let k: usize = dot.lhs_contract.iter().map(|&axis| shape[axis]).product();
                cost::multiplying(node.ty.elements() * k)
            }
            op => {
                let costly = matches!(op, Op::Unary(op) if cost::is_costly_unary(*op));
                cost::recomputing(node.ty.elements(), costly)
            }
        };
        stack.extend(&node.operands);
    }
}

/// The graph in which far readers read clones, and the clones.
///
/// # Errors
/// Never for a valid graph: clones have the types of their originals.
pub(super) fn rewrite(graph: &Graph, free: &[bool], choice: &Recomputation) -> Result<(Graph, Clones)> {
    let mut rewriter = Rewriter {
        graph,
        free,
        choice,
        new: Graph::new(graph.name.clone()),
        places: vec![],
        clones: BTreeMap::new(),
        readers: BTreeMap::new(),
    };
    for id in graph.ids() {
        let node = &graph[id];
        let reader = choice.position.get(&id).copied();
        let operands = node.operands.iter().map(|&operand| rewriter.operand(operand, reader));
        let operands = operands.collect::<Result<Vec<_>>>()?;
        let place = rewriter.new.add(node.op.clone(), &operands, node.origin.clone())?;
        rewriter.places.push(place);
    }
    for output in graph.outputs() {
        let value = rewriter.places[output.value.index()];
        match output.updates_state {
            true => rewriter.new.update(output.name.clone(), value),
            false => rewriter.new.output(output.name.clone(), value),
        }
    }
    let mut clones = Clones::default();
    for (&member, &kernel) in &choice.position {
        clones.kernel.insert(rewriter.places[member.index()], kernel);
    }
    for (&(reader, original), &clone) in &rewriter.clones {
        clones.originals.insert(clone, rewriter.places[original.index()]);
        let shared = (reader == ANY).then(|| rewriter.readers[&choice.position[&original]].clone());
        clones.readers.insert(clone, shared.unwrap_or_else(|| BTreeSet::from([reader])));
    }
    Ok((rewriter.new, clones))
}

struct Rewriter<'a> {
    graph: &'a Graph,
    free: &'a [bool],
    choice: &'a Recomputation,
    new: Graph,
    places: Vec<ValueId>,
    /// By reading kernel and original.
    clones: BTreeMap<(usize, ValueId), ValueId>,
    /// For each chain, the kernels that read clones of its values.
    readers: BTreeMap<usize, BTreeSet<usize>>,
}

/// Stands for all kernels that read clones of chained values.
const ANY: usize = usize::MAX;

impl Rewriter<'_> {
    /// What the kernel at position `reader` reads for an operand.
    fn operand(&mut self, value: ValueId, reader: Option<usize>) -> Result<ValueId> {
        let place = self.places[value.index()];
        let Some(reader) = reader else { return Ok(place) };
        let node = &self.graph[value];
        let home = self.choice.position.get(&value).copied();
        let far = self.choice.is_far(value, reader);
        let key = if far && self.choice.shared.contains(&value) { ANY } else { reader };
        let recomputed = far && self.choice.recomputed.contains(&value);
        if !recomputed && (!self.free[value.index()] || node.operands.is_empty()) {
            return Ok(place);
        }
        if let Some(home) = home.filter(|_| key == ANY) {
            self.readers.entry(home).or_default().insert(reader);
        }
        if let Some(&clone) = self.clones.get(&(key, value)) {
            return Ok(clone);
        }
        let operands = node.operands.iter().map(|&operand| self.operand(operand, Some(reader)));
        let operands = operands.collect::<Result<Vec<_>>>()?;
        let same = operands.iter().zip(&node.operands).all(|(new, old)| *new == self.places[old.index()]);
        if !recomputed && same {
            return Ok(place);
        }
        let clone = self.new.add(node.op.clone(), &operands, node.origin.clone())?;
        self.clones.insert((key, value), clone);
        Ok(clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values 1 and 2 of kernels 4 and 5, 3 of kernel 21; value 9 is value 1, computed again for kernel 20.
    #[test]
    fn clones_are_computed_beside_their_reader_or_near_it() {
        let id = ValueId::from_index;
        let clones = Clones {
            originals: BTreeMap::from([(id(9), id(1))]),
            kernel: BTreeMap::from([(id(1), 4), (id(2), 5), (id(3), 21)]),
            readers: BTreeMap::from([(id(9), BTreeSet::from([20]))]),
        };
        let allows = |members: &[usize]| clones.allow(&members.iter().map(|&member| id(member)).collect());
        assert!(allows(&[9]) && allows(&[9, 3]) && allows(&[1, 2]));
        assert!(!allows(&[9, 2]) && !allows(&[9, 1]));
    }
}
