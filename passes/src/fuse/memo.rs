//! Equal candidates are lowered once. Layers repeat, and so do the merges that are tried in each of them.
//!
//! A kernel is a function of its members, of the values that are computed with them, and of the types of what it loads. So a candidate's
//! key lists these in ascending order and names each one by its place in the list; the kernel is kept with places for buffers, and each
//! candidate with that key gets it with its own values. Identities of random draws are places in the same way. Places ascend as values do,
//! so whatever fusion decides by the order of values, it decides the same.
//!
//! ```text
//! {%10 add, %11 exp} of loads %4, %7   and   {%30 add, %31 exp} of loads %4, %27:   both are {2 add 0 1, 3 exp 2} of loads 0, 1
//! ```

use super::lower::Candidate;
use super::writer::{Fault, Inside};
use kernfusion_ir::kernel::{BufferId, InstrKind, Kernel};
use kernfusion_ir::{Graph, KernelEntry, Op, RandomBits, TensorType, ValueId};
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Kernels of candidates, and why there is none.
#[derive(Default)]
pub(super) struct Memo {
    ops: FxHashMap<Op, u32>,
    types: FxHashMap<TensorType, u32>,
    kernels: FxHashMap<Vec<u32>, Result<Kernel, Fault>>,
}

/// Numbers that stand for op and type of each value of a graph.
pub(super) type Symbols = Vec<(u32, u32)>;

/// What a candidate is but for the numbers of its values.
struct Key {
    words: Vec<u32>,
    /// The value in each place, ascending.
    values: Vec<ValueId>,
    /// The identities of random draws in the order of their first appearance.
    draws: Vec<u32>,
}

/// How a candidate has a value: bits of a word of its key.
const MEMBER: u32 = 1;
const NEEDED: u32 = 2;
const INSIDE: u32 = 4;
const FREE: u32 = 8;

impl Memo {
    /// The symbols of a graph's values; equal ones in all graphs of this memo.
    pub(super) fn symbols(&mut self, graph: &Graph) -> Symbols {
        let symbol = |id: ValueId| {
            let node = &graph[id];
            let op = match &node.op {
                // Inputs are loads, of which the type alone matters, and loops are not remembered.
                Op::Input(_) | Op::Scan(_) => 0,
                Op::RandomBits(bits) => number(&mut self.ops, &RandomBits { node: 0, ..bits.clone() }.into()),
                op => number(&mut self.ops, op),
            };
            (op, number(&mut self.types, &node.ty))
        };
        graph.ids().map(symbol).collect()
    }

    /// The kernel of a candidate, lowered by `lower` if no equal one was.
    pub(super) fn lowered(
        &mut self,
        candidate: &Candidate<'_>,
        symbols: &Symbols,
        lower: impl Fn() -> Result<Kernel, Fault>,
    ) -> Result<Kernel, Fault> {
        let Some(key) = Key::of(candidate, symbols) else { return lower() };
        if let Some(known) = self.kernels.get(&key.words) {
            let known = key.with_values(known);
            debug_assert_eq!(
                known.as_ref().map_err(|fault| fault.reason),
                lower().as_ref().map_err(|fault| fault.reason)
            );
            return known;
        }
        let lowered = lower();
        if let Some(kept) = key.with_places(&lowered) {
            self.kernels.insert(key.words, kept);
        }
        lowered
    }
}

/// The number of a thing, a new one if it was not seen before.
fn number<T: Hash + Eq + Clone>(numbers: &mut FxHashMap<T, u32>, thing: &T) -> u32 {
    if let Some(&number) = numbers.get(thing) {
        return number;
    }
    let number = numbers.len() as u32 + 1;
    numbers.insert(thing.clone(), number);
    number
}

impl Key {
    /// The key of a candidate. `None` for what is lowered with an eye on the rest of the graph: updates of parts of states, and loops.
    fn of(candidate: &Candidate<'_>, symbols: &Symbols) -> Option<Key> {
        let graph = candidate.graph;
        let mut values: Vec<_> = candidate.members.iter().copied().collect();
        let mut seen: rustc_hash::FxHashSet<_> = values.iter().copied().collect();
        let mut next = 0;
        while let Some(&value) = values.get(next) {
            next += 1;
            if candidate.contains(value) {
                values.extend(graph[value].operands.iter().filter(|operand| seen.insert(**operand)));
            }
        }
        values.sort_unstable();
        let mut key = Key { words: Vec::with_capacity(5 * values.len()), values, draws: vec![] };
        for &value in &key.values {
            let (op, ty) = symbols[value.index()];
            let bit = |is: bool, bit: u32| if is { bit } else { 0 };
            let is_inside = candidate.contains(value);
            let how = bit(candidate.members.contains(&value), MEMBER)
                | bit(candidate.needed.contains(&value), NEEDED)
                | bit(is_inside, INSIDE)
                | bit(candidate.free[value.index()], FREE);
            key.words.extend([how, ty]);
            if !is_inside {
                // A number may become a factor although it lies in memory.
                if is_number(graph, value) {
                    return None;
                }
                continue;
            }
            let node = &graph[value];
            key.words.extend([op, node.operands.len() as u32]);
            key.words.extend(node.operands.iter().map(|operand| place(&key.values, *operand)));
            match &node.op {
                Op::DynamicUpdate(_) | Op::Scan(_) | Op::Collective(_) => return None,
                Op::RandomBits(bits) => {
                    let known = key.draws.iter().position(|&draw| draw == bits.node);
                    key.words.push(known.unwrap_or(key.draws.len()) as u32);
                    key.draws.extend(known.is_none().then_some(bits.node));
                }
                _ => {}
            }
        }
        Some(key)
    }

    /// A kernel with places in the place of values. `None` for a fault that blames no value of the candidate.
    fn with_places(&self, lowered: &Result<Kernel, Fault>) -> Option<Result<Kernel, Fault>> {
        let mut kernel = match lowered {
            Ok(kernel) => kernel.clone(),
            // The first value stands for none.
            Err(fault) if fault.node.index() == 0 => return None,
            Err(fault) => {
                let node = ValueId::from_index(self.values.binary_search(&fault.node).ok()?);
                return Some(Err(Fault { node, reason: fault.reason }));
            }
        };
        kernel.renumber(|buffer| BufferId(place(&self.values, ValueId::from_index(buffer.0 as usize))));
        kernel
            .covers
            .iter_mut()
            .for_each(|value| *value = ValueId::from_index(place(&self.values, *value) as usize));
        let draw =
            |node: u32| self.draws.iter().position(|&draw| draw == node).expect("a draw of the candidate");
        renumber_draws(&mut kernel, |node| draw(node) as u32);
        Some(Ok(kernel))
    }

    /// A kernel with the candidate's values in their places.
    fn with_values(&self, known: &Result<Kernel, Fault>) -> Result<Kernel, Fault> {
        let value = |place: usize| self.values[place];
        let mut kernel = match known {
            Ok(kernel) => kernel.clone(),
            Err(fault) => return Err(Fault { node: value(fault.node.index()), reason: fault.reason }),
        };
        kernel.renumber(|buffer| BufferId(value(buffer.0 as usize).index() as u32));
        kernel.covers.iter_mut().for_each(|place| *place = value(place.index()));
        renumber_draws(&mut kernel, |draw| self.draws[draw as usize]);
        Ok(kernel)
    }
}

/// Whether all elements of a value are a number that the graph knows.
fn is_number(graph: &Graph, value: ValueId) -> bool {
    let node = &graph[value];
    match node.op.entry() {
        KernelEntry::View => is_number(graph, node.operands[0]),
        _ => matches!(node.op, Op::Constant(_)),
    }
}

/// Where a value is in the list.
fn place(values: &[ValueId], value: ValueId) -> u32 {
    values.binary_search(&value).expect("a kernel touches values of its candidate alone") as u32
}

fn renumber_draws(kernel: &mut Kernel, number: impl Fn(u32) -> u32) {
    for instr in kernel.regions_mut().flat_map(|region| &mut region.instrs) {
        if let InstrKind::Random { node, .. } = &mut instr.kind {
            *node = number(*node);
        }
    }
}
