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
//! keeps less memory alive than the candidates do, all of them together or one alone, whichever saves more. The
//! rewrite happens on the graph: far readers get clones, which fusion then merges into them.

use super::{Planner, assemble, cost};
use kernfusion_ir::{Graph, KernelEntry, Op, Result, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A reader this many kernels later is far.
const FAR: usize = 10;
/// How many times the memory traffic that is saved computing again may cost.
const PATIENCE: f64 = 6.0;
/// Tensors of fewer bytes are not worth a decision.
const SMALL: usize = 1 << 18;

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

    /// Whether a kernel may have these members: no clone beside its original, and none away from the kernel that it was
    /// made for, where fusion would compute it as early as the original.
    pub(super) fn allow(&self, members: &BTreeSet<ValueId>) -> bool {
        let mut clones =
            members.iter().filter_map(|member| Some((self.originals.get(member)?, &self.readers[member])));
        let others: BTreeSet<_> = members.iter().filter_map(|m| self.kernel.get(m).copied()).collect();
        clones.all(|(original, readers)| {
            !members.contains(original) && (others.is_empty() || !others.is_disjoint(readers))
        })
    }
}

/// What is computed again.
pub(super) struct Choice {
    /// Values of which far readers get clones, with all values between them and the frontier.
    recomputed: BTreeSet<ValueId>,
    /// Those of them that lie in a chain: every kernel but their own counts as far, and all share one clone, since they
    /// will be one chain.
    chained: BTreeSet<ValueId>,
    /// The position of each member's kernel in execution order.
    position: BTreeMap<ValueId, usize>,
}

/// A set of candidates with its frontier.
struct Trade {
    recomputed: BTreeSet<ValueId>,
    /// Bytes of long-lived memory saved, less those added.
    gain: isize,
    seconds: f64,
}

/// The trades worth making, if any.
pub(super) fn choose(planner: &Planner<'_>) -> Option<Choice> {
    let groups: Vec<_> = planner.groups.iter().flatten().collect();
    let order = assemble::execution_order(&groups.iter().map(|group| &group.kernel).collect::<Vec<_>>());
    let kernels: Vec<_> = order.into_iter().map(|number| groups[number]).collect();
    let position: BTreeMap<ValueId, usize> = kernels
        .iter()
        .enumerate()
        .flat_map(|(number, group)| group.members.iter().map(move |&member| (member, number)))
        .collect();
    let (recomputed, chained) = (BTreeSet::new(), BTreeSet::new());
    let mut chooser = Chooser { planner, position, recomputed, chained };
    for group in kernels {
        chooser.consider(group);
    }
    let Chooser { position, recomputed, chained, .. } = chooser;
    (!recomputed.is_empty()).then_some(Choice { recomputed, chained, position })
}

struct Chooser<'p, 'a> {
    planner: &'p Planner<'a>,
    position: BTreeMap<ValueId, usize>,
    recomputed: BTreeSet<ValueId>,
    chained: BTreeSet<ValueId>,
}

impl Chooser<'_, '_> {
    fn graph(&self) -> &Graph {
        self.planner.graph
    }

    /// The kernel that reads a value last.
    fn last_read(&self, value: ValueId) -> usize {
        let readers = self.planner.readers.get(&value).into_iter().flatten();
        readers.filter_map(|reader| self.position.get(reader)).max().copied().unwrap_or(0)
    }

    /// Makes the best trade for the values that one kernel stores.
    fn consider(&mut self, group: &super::Group) {
        let members = &group.members;
        // The entries of a chain's products are computed again with what follows from them: a product of two small
        // operands, where a kernel like this one will read it.
        let chain = !group.kernel.consumers().is_empty();
        let far = |&value: &ValueId| {
            self.is_cheap_to_repeat(value)
                && !self.planner.outputs.contains(&value)
                && self.graph()[value].ty.bytes() >= SMALL
                && self.last_read(value) > self.position[&value] + if chain { 0 } else { FAR }
        };
        let candidates: BTreeSet<_> = members.iter().copied().filter(far).collect();
        let singles = candidates.iter().map(|&value| BTreeSet::from([value]));
        let trades = singles.chain([candidates.clone()]).filter(|set| !set.is_empty());
        let trades = trades.map(|set| self.trade(&set, members, chain)).filter(|trade| {
            let saved = cost::moving(2 * trade.gain.max(0) as usize);
            trade.gain > 0 && (chain || trade.seconds < PATIENCE * saved)
        });
        // A chain's entries grow with the square of what it reads; they are not kept at any price that a chain has.
        let price = if chain { 0.0 } else { 1e9 };
        let score = |trade: &Trade| trade.gain as f64 - trade.seconds * price;
        let best = trades.max_by(|a, b| score(a).total_cmp(&score(b)));
        if let Some(trade) = best {
            self.chained.extend(trade.recomputed.iter().filter(|_| chain));
            self.recomputed.extend(trade.recomputed);
        }
    }

    fn is_cheap_to_repeat(&self, value: ValueId) -> bool {
        let node = &self.graph()[value];
        // A converted input is kept: the conversion is all there is, and the input is there for all of the run.
        let of_input = |operand: &ValueId| matches!(self.graph()[*operand].op, Op::Input(_));
        let converts_input = matches!(node.op, Op::Cast(_)) && node.operands.iter().all(of_input);
        node.op.entry() == KernelEntry::Scalar && !converts_input
    }

    /// What computing `set` again takes: everything up to the frontier.
    fn trade(&self, set: &BTreeSet<ValueId>, members: &BTreeSet<ValueId>, chain: bool) -> Trade {
        let latest = set.iter().map(|&value| self.last_read(value)).max().unwrap_or(0);
        let mut trade = Trade { recomputed: BTreeSet::new(), gain: 0, seconds: 0.0 };
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
                long && !self.recomputed.contains(&value) && self.is_stored(value, members)
            };
            if self.planner.free[value.index()] {
                stack.extend(&node.operands);
            } else if set.contains(&value) {
                trade.gain += bytes;
                self.repeat(value, &mut trade, &mut stack);
            } else if matches!(node.op, Op::Input(_)) || node.ty.bytes() < SMALL || kept() {
                // In memory until then anyway, or too small to matter.
            } else if members.contains(&value)
                && (self.is_cheap_to_repeat(value) || chain && self.planner.is_contraction(value))
                && !self.is_stored(value, members)
            {
                self.repeat(value, &mut trade, &mut stack);
            } else {
                trade.gain -= bytes;
            }
        }
        trade
    }

    /// Whether a value will be in memory when its kernel is done.
    fn is_stored(&self, value: ValueId, members: &BTreeSet<ValueId>) -> bool {
        let readers = self.planner.readers.get(&value).into_iter().flatten();
        !members.contains(&value) || readers.into_iter().any(|reader| !members.contains(reader))
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
                cost::repeating(node.ty.elements(), costly)
            }
        };
        stack.extend(&node.operands);
    }
}

/// The graph in which far readers read clones, and the clones.
///
/// # Errors
/// Never for a valid graph: clones have the types of their originals.
pub(super) fn rewrite(graph: &Graph, free: &[bool], choice: &Choice) -> Result<(Graph, Clones)> {
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
    choice: &'a Choice,
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
        let chained = self.choice.chained.contains(&value);
        let far = home.is_some_and(|home| reader > home + if chained { 0 } else { FAR });
        let key = if chained && far { ANY } else { reader };
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
