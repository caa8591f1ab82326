//! Fusion: from a graph to kernels.
//!
//! Every op starts as a kernel of its own; views and generated values (constants, coordinates, random bits and what
//! follows from them alone) belong to their readers. Then kernels are merged along the edges between them,
//! those of the largest tensors first. A merge is made if the result is one kernel (`lower`) that the back end accepts, if no other
//! kernel lies between the two, and if it computes nothing so often that the saving is lost (`merged`, with the prices of `cost`).
//! Every other edge is a memory access, recorded with the reason.
//!
//! ```text
//! %2 = add %0 %1
//! %3 = exp %2            →   map add+exp: load %0, load %1, store %3
//! ```
//!
//! Invariants: every value that is read from memory is stored by exactly one kernel; the order of kernels respects
//! their reads; the result is a function of the graph alone.

mod assemble;
mod band;
mod both_ways;
pub(crate) mod chain;
pub(crate) mod cost;
mod empty;
mod loops;
mod lower;
mod memo;
mod order;
mod rematerialise;
mod space;
mod widened;
mod windows;
mod writer;

pub use kernfusion_ir::kernel::any_kernel;
use kernfusion_ir::kernel::{
    Accepts, BufferId, CollectiveCall, Domain, Form, Kernel, KernelGraph, RefusedFusion, Region,
};
use kernfusion_ir::{Binary, Collective, DType, Graph, KernelEntry, Op, Output, TensorType, ValueId};
use lower::Candidate;
use memo::{Memo, Symbols};
use order::GroupOrder;
use rematerialise::Clones;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
pub(crate) use widened::widened_states;
use writer::Fault;

/// How much to fuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fusion {
    /// Everything that pays.
    Full,
    /// As much, and products that backward needs are computed again instead of kept, where that saves much memory.
    Thrifty,
    /// Nothing: one kernel an op, as in eager execution. Views stay free, as they are in any library.
    None,
}

/// Readers of a transposed view from which on it is in memory.
const TRANSPOSED: usize = 4;
/// Nodes in one kernel at most: a bound on registers and code size.
const LARGEST: usize = 64;
/// Nodes in one kernel at most if a tensor that is no [small map](SMALL_MAP) does not go to memory for it, and the region has few instructions.
const LARGEST_OF_FEW: usize = 128;
/// How many instructions are few. A node is many of them if it is read in many places, as windows read it.
const FEW_INSTRUCTIONS: usize = 160;
/// Nodes in one kernel at most where they are small maps side by side, which need registers one after the other.
const LARGEST_ROW: usize = 1024;
/// Elements of maps that are launched together: their launch takes longer than they do.
const SMALL_MAP: usize = 1 << 14;

/// Why nothing is merged with a collective.
const EXCHANGE: &str = "what ranks exchange is a kernel of its own";
/// Why nothing more is merged with a kernel.
const TOO_LARGE: &str = "the kernel would be too large";
/// A refusal that may not hold any more when other kernels are merged.
const BETWEEN: &str = "another kernel lies between the two";

/// Whether fusion decides the same about tensors of these sizes, as far as it looks at sizes alone and not at what they are to others.
pub(crate) fn decides_alike(bytes: usize, others: usize) -> bool {
    [rematerialise::SMALL, chain::LARGE].iter().all(|&limit| (bytes < limit) == (others < limit))
}

/// A graph that cannot be cut into kernels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no kernel computes {op}: {reason}{origin}")]
pub struct FuseError {
    op: &'static str,
    reason: String,
    origin: kernfusion_ir::Origin,
}

/// Cuts a graph into kernels that a back end accepts: what it has no code for as one kernel is several.
///
/// # Errors
/// If no kernel computes some op; names it and the user's line.
pub fn fuse(graph: &Graph, fusion: Fusion, accepts: Accepts) -> Result<KernelGraph, FuseError> {
    let (none, memo) = (Clones::default(), RefCell::default());
    let without_empty = empty::without_empty(graph);
    let graph = without_empty.as_ref().unwrap_or(graph);
    if fusion == Fusion::None {
        return Ok(Planner::new(graph, (fusion, accepts), &none, &memo)?.finish());
    }
    let mut planner = Planner::new(graph, (fusion, accepts), &none, &memo)?;
    planner.merge();
    let Some(choice) = rematerialise::choose(&planner, fusion == Fusion::Thrifty) else {
        return Ok(planner.finish());
    };
    let (graph, clones) =
        rematerialise::rewrite(graph, &planner.free, &choice).expect("clones are well typed");
    let mut planner = Planner::new(&graph, (fusion, accepts), &clones, &memo)?;
    planner.merge();
    Ok(planner.finish())
}

/// A kernel of the plan in the making.
struct Group {
    members: BTreeSet<ValueId>,
    kernel: Kernel,
}

struct Planner<'a> {
    graph: &'a Graph,
    fusion: Fusion,
    accepts: Accepts,
    /// Values computed wherever they are read.
    free: Vec<bool>,
    /// The members that read each member, through free values.
    readers: BTreeMap<ValueId, BTreeSet<ValueId>>,
    /// The members and inputs that each member reads.
    reads: BTreeMap<ValueId, BTreeSet<ValueId>>,
    outputs: BTreeSet<ValueId>,
    /// Values computed again for the kernels that read them, with their originals.
    clones: &'a Clones,
    /// What was lowered already, for all graphs that fusion cuts on its way.
    memo: &'a RefCell<Memo>,
    symbols: Rc<Symbols>,
    /// By number; `None` where a group was merged into another.
    groups: Vec<Option<Group>>,
    group_of: BTreeMap<ValueId, usize>,
    order: GroupOrder,
    /// For each group by number, a number that no other group had, and the last such number.
    versions: Vec<usize>,
    latest: usize,
    /// Why a producer's group and another one are not one kernel, by the versions of both, where nothing that happens to other groups
    /// changes that.
    settled: FxHashMap<(ValueId, usize, usize), &'static str>,
    refusals: BTreeMap<(ValueId, ValueId), &'static str>,
    /// Why edges between products are no chain, which says more than why the two kernels are not one.
    chain_refusals: BTreeMap<(ValueId, ValueId), &'static str>,
}

impl<'a> Planner<'a> {
    /// One group for each op, after materialising what no kernel can read in place.
    fn new(
        graph: &'a Graph,
        (fusion, accepts): (Fusion, Accepts),
        clones: &'a Clones,
        memo: &'a RefCell<Memo>,
    ) -> Result<Self, FuseError> {
        let outputs: BTreeSet<_> = graph.outputs().iter().map(|output| output.value).collect();
        let symbols = Rc::new(memo.borrow_mut().symbols(graph));
        let mut forced = outputs.clone();
        if fusion != Fusion::None {
            forced.extend(graph.ids().filter(|&id| is_transposed_often(graph, id)));
            forced.extend(graph.ids().filter(|&id| is_byte_table(graph, id)));
        }
        loop {
            let free = free_values(graph, &forced, fusion);
            let (reads, readers) = edges(graph, &free, &outputs);
            let mut planner = Planner {
                graph,
                fusion,
                accepts,
                free,
                readers,
                reads,
                outputs: outputs.clone(),
                clones,
                memo,
                symbols: symbols.clone(),
                groups: vec![],
                group_of: BTreeMap::new(),
                order: GroupOrder::default(),
                versions: vec![],
                latest: 0,
                settled: FxHashMap::default(),
                refusals: BTreeMap::new(),
                chain_refusals: BTreeMap::new(),
            };
            let faults = planner.start();
            if faults.is_empty() {
                planner.order = planner.first_order();
                planner.versions = (0..planner.groups.len()).collect();
                planner.latest = planner.groups.len();
                return Ok(planner);
            }
            let before = forced.len();
            for (_, fault) in &faults {
                // Widened bytes are stored as bytes.
                let bytes = is_widened_byte(graph, fault.node).then(|| graph[fault.node].operands[0]);
                forced.insert(bytes.filter(|bytes| !forced.contains(bytes)).unwrap_or(fault.node));
            }
            if let Some((node, fault)) = faults.into_iter().next().filter(|_| forced.len() == before) {
                let (op, origin) = (graph[node].op.name(), graph[node].origin.clone());
                return Err(FuseError { op, reason: fault.reason.into(), origin });
            }
        }
    }

    /// Makes a group of every op; returns those that are no kernel yet.
    fn start(&mut self) -> Vec<(ValueId, Fault)> {
        let mut faults = Vec::new();
        for node in self.reads.keys().copied().collect::<Vec<_>>() {
            if self.group_of.contains_key(&node) {
                continue;
            }
            let members = loops::results(self.graph, node, self.reads.keys().copied());
            match self.lower(&members) {
                Ok(kernel) => {
                    self.group_of.extend(members.iter().map(|&member| (member, self.groups.len())));
                    self.groups.push(Some(Group { members, kernel }));
                }
                Err(fault) => faults.push((node, fault)),
            }
        }
        faults
    }

    /// The order of the groups, each of which is an op.
    fn first_order(&self) -> GroupOrder {
        let edges = self.readers.iter().flat_map(|(read, readers)| {
            let from = self.group_of.get(read).copied();
            let groups = readers.iter().filter_map(|reader| self.group_of.get(reader).copied());
            groups.filter_map(move |to| from.filter(|&from| from != to).map(|from| (from, to)))
        });
        GroupOrder::new(self.groups.len(), edges)
    }

    /// Puts a group in the place of several, of which the first number stays.
    fn replace(&mut self, numbers: &[usize], group: Group) {
        self.order.merge(numbers);
        group.members.iter().for_each(|&member| {
            self.group_of.insert(member, numbers[0]);
        });
        self.latest += 1;
        self.versions[numbers[0]] = self.latest;
        numbers.iter().for_each(|&number| self.groups[number] = None);
        self.groups[numbers[0]] = Some(group);
    }

    fn lower(&self, members: &BTreeSet<ValueId>) -> Result<Kernel, Fault> {
        if let Some(scan) = loops::of(self.graph, members) {
            return loops::lower(self.graph, &self.free, members, scan, (self.fusion, self.accepts));
        }
        let collective = |&member: &ValueId| match &self.graph[member].op {
            Op::Collective(op) => Some((member, *op)),
            _ => None,
        };
        if let Some((node, op)) = members.iter().find_map(collective) {
            return self.collective(node, op, members);
        }
        self.lower_for(members, &self.needed(members))
    }

    /// The kernel of an exchange between ranks, with the number of each value as its buffer's.
    fn collective(
        &self,
        node: ValueId,
        op: Collective,
        members: &BTreeSet<ValueId>,
    ) -> Result<Kernel, Fault> {
        if members.len() > 1 {
            return Err(Fault { node, reason: EXCHANGE });
        }
        let operand = self.graph[node].operands[0];
        if self.free[operand.index()] && !matches!(self.graph[operand].op, Op::Input(_)) {
            return Err(Fault { node: operand, reason: "ranks exchange what is in memory" });
        }
        let buffer = |id: ValueId| BufferId(id.index() as u32);
        let call = CollectiveCall { op, from: buffer(operand), to: buffer(node), scratch: None };
        Ok(Kernel {
            name: String::new(),
            domain: Domain::flat(self.graph[operand].ty.shape.clone()),
            form: Form::Collective(call),
            region: Region::default(),
            stores: vec![],
            covers: vec![node],
        })
    }

    /// The kernel of members of which these are needed outside, if the back end accepts it.
    fn lower_for(&self, members: &BTreeSet<ValueId>, needed: &BTreeSet<ValueId>) -> Result<Kernel, Fault> {
        let candidate = Candidate { graph: self.graph, members, free: &self.free, needed };
        let last = *members.last().expect("a group has members");
        self.memo.borrow_mut().lowered(&candidate, &self.symbols, || {
            let kernel = candidate.lower()?;
            (self.accepts)(&kernel).map_err(|reason| Fault {
                node: candidate.refused_operand(&kernel).unwrap_or(last),
                reason,
            })?;
            Ok(kernel)
        })
    }

    /// Whether a product, which is alone in its kernel, can compute these values while it packs one of them.
    fn can_pack(&self, product: ValueId, values: &BTreeSet<ValueId>) -> bool {
        let home = &self.group(self.group_of[&product]).kernel;
        let members = values.iter().copied().chain([product]).collect();
        let needed = BTreeSet::from([product]);
        home.products().len() == 1 && home.consumers().is_empty() && self.lower_for(&members, &needed).is_ok()
    }

    /// The members that something outside reads, or that are outputs.
    fn needed(&self, members: &BTreeSet<ValueId>) -> BTreeSet<ValueId> {
        members.iter().copied().filter(|&member| self.is_read_outside(member, members)).collect()
    }

    /// Whether something outside reads a member, or it is an output.
    fn is_read_outside(&self, member: ValueId, members: &BTreeSet<ValueId>) -> bool {
        let readers = self.readers.get(&member);
        self.outputs.contains(&member)
            || readers.is_some_and(|readers| readers.iter().any(|reader| !members.contains(reader)))
    }

    /// All merges. Clones go to their readers first, else they would return to where their originals are. Products come
    /// last: an elementwise op between a product and a reduction belongs to the reduction, and what lies between two products
    /// may be a chain with them.
    fn merge(&mut self) {
        let clones = self.clones;
        self.merge_along_edges(|planner, producer, _| {
            clones.contains(producer) && !planner.is_product(producer)
        });
        // Padding goes to its readers, windows mostly, rather than to what is padded, which may go to a product.
        for is_padded in [false, true] {
            self.merge_along_edges(|planner, producer, consumer| {
                !planner.is_product(producer)
                    && !planner.is_product(consumer)
                    && !planner.is_joined_operand(producer)
                    && (is_padded || !matches!(planner.graph[consumer].op, Op::Pad(_)))
            });
        }
        self.merge_chains();
        self.merge_along_edges(|planner, producer, _| !planner.is_joined_operand(producer));
        self.merge_along_edges(|_, _, _| true);
        self.merge_siblings();
        self.merge_small_maps();
    }

    /// Whether a value puts results of products together, and a product reads it: a chain may write them there, and others read it from memory.
    fn is_joined_operand(&self, value: ValueId) -> bool {
        let is_read = |readers: &BTreeSet<ValueId>| readers.iter().any(|&reader| self.is_contraction(reader));
        self.readers.get(&value).is_some_and(is_read) && joins_products(self.graph, value, false)
    }

    /// Merges producers into consumers, the largest tensors first, until nothing changes.
    fn merge_along_edges(&mut self, wanted: impl Fn(&Self, ValueId, ValueId) -> bool) {
        let mut edges: Vec<(ValueId, ValueId)> = Vec::new();
        for (&consumer, reads) in self.reads.iter().filter(|(id, _)| self.group_of.contains_key(id)) {
            let members = reads.iter().filter(|read| self.group_of.contains_key(read));
            edges.extend(members.map(|&producer| (producer, consumer)));
        }
        edges.sort_by_key(|&(p, c)| (std::cmp::Reverse(self.graph[p].ty.bytes()), p, c));
        loop {
            let mut merged = false;
            for &(producer, consumer) in &edges {
                merged |= wanted(self, producer, consumer) && self.try_merge(producer, consumer);
            }
            if !merged {
                return;
            }
        }
    }

    /// Whether a value is the result of a contraction.
    fn is_contraction(&self, value: ValueId) -> bool {
        self.graph[value].op.entry() == KernelEntry::Contraction
    }

    /// Whether a member's kernel is a contraction.
    fn is_product(&self, member: ValueId) -> bool {
        matches!(self.group(self.group_of[&member]).kernel.form, Form::Contraction(_))
    }

    /// Merges kernels that read the same tensor and do not depend on each other; no products, which read it in blocks of their own.
    fn merge_siblings(&mut self) {
        let mut readers: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
        for (&id, reads) in self.reads.iter().filter(|(id, _)| self.group_of.contains_key(id)) {
            for &read in reads.iter().filter(|read| self.graph[**read].ty.elements() > 1024) {
                readers.entry(read).or_default().push(id);
            }
        }
        let mut shared: Vec<_> = readers.into_iter().collect();
        shared.sort_by_key(|(read, _)| (std::cmp::Reverse(self.graph[*read].ty.bytes()), *read));
        for (_, readers) in shared {
            for pair in readers.windows(2) {
                let is_product = pair.iter().any(|&reader| self.is_product(reader));
                if !is_product && (self.is_reducing(pair[0]) || self.is_reducing(pair[1])) {
                    self.try_merge(pair[0], pair[1]);
                }
            }
        }
    }

    /// Merges small maps of one shape that do not depend on each other: the updates of biases and gains, mostly.
    fn merge_small_maps(&mut self) {
        let mut shapes: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        for (number, group) in self.groups.iter().enumerate() {
            let Some(Group { members, kernel }) = group else { continue };
            let shape = |member: &ValueId| self.graph[*member].ty.shape.clone();
            let alike = members.iter().all(|member| shape(member) == kernel.domain.axes);
            if kernel.form == Form::Map && alike && kernel.domain.points() <= SMALL_MAP {
                shapes.entry(kernel.domain.axes.clone()).or_default().push(number);
            }
        }
        for numbers in shapes.into_values() {
            let mut rest = &numbers[..];
            while let [first, others @ ..] = rest {
                let merged = self.merge_row(*first, others);
                rest = &others[merged..];
            }
        }
    }

    /// Merges a small map with those that follow it in the list, up to the first one that does not go with them; returns how many
    /// there are. They are lowered together where that succeeds, which takes as long as one of them after the other does for the last.
    fn merge_row(&mut self, first: usize, others: &[usize]) -> usize {
        let mut members = self.group(first).members.clone();
        let mut row = vec![first];
        for &number in others {
            let group = self.group(number);
            let together: BTreeSet<_> = members.union(&group.members).copied().collect();
            row.push(number);
            let apart = !self.order.leaves_and_returns(&row);
            if together.len() > LARGEST_ROW || !apart || !self.clones.allow(&together) {
                row.pop();
                break;
            }
            members = together;
        }
        while row.len() > 1 {
            let members = row.iter().flat_map(|&number| &self.group(number).members).copied().collect();
            if let Ok(kernel) = self.lower(&members) {
                self.replace(&row, Group { members, kernel });
                break;
            }
            row.pop();
        }
        row.len() - 1
    }

    /// Whether a member's kernel is a reduction, where reading a tensor once instead of twice pays.
    fn is_reducing(&self, member: ValueId) -> bool {
        self.group(self.group_of[&member]).kernel.form == Form::Reduce
    }

    fn group(&self, number: usize) -> &Group {
        self.groups[number].as_ref().expect("a live group")
    }

    /// Merges the kernels of two members if that is legal and pays; records the refusal otherwise.
    fn try_merge(&mut self, producer: ValueId, consumer: ValueId) -> bool {
        let (first, second) = (self.group_of[&producer], self.group_of[&consumer]);
        if first == second {
            return false;
        }
        let pair = (producer, self.versions[first], self.versions[second]);
        match self.merged(first, second, producer) {
            Ok(group) => {
                self.replace(&[first, second], group);
                true
            }
            Err(reason) => {
                if reason != BETWEEN {
                    self.settled.insert(pair, reason);
                }
                self.refusals.insert((producer, consumer), reason);
                false
            }
        }
    }

    fn merged(&self, first: usize, second: usize, producer: ValueId) -> Result<Group, &'static str> {
        let (a, b) = (self.group(first), self.group(second));
        let (nodes, is_small) =
            (a.members.len() + b.members.len(), self.graph[producer].ty.elements() <= SMALL_MAP);
        if nodes > if is_small { LARGEST } else { LARGEST_OF_FEW } {
            return Err(TOO_LARGE);
        }
        let is_prologue = matches!(b.kernel.form, Form::Contraction(_));
        if is_prologue && a.kernel.form != Form::Map {
            return Err("a contraction reads its operands from memory");
        }
        if a.members.iter().any(|&member| is_byte_table(self.graph, member)) {
            return Err("a table is computed once, and looked up often");
        }
        if a.members.iter().any(|&member| continued_state(self.graph, member).is_some()) {
            return Err("it changes a part of a state");
        }
        if a.kernel.repeated().or(b.kernel.repeated()).is_some() {
            return Err("a loop is a kernel of its own");
        }
        if a.kernel.collective().or(b.kernel.collective()).is_some() {
            return Err(EXCHANGE);
        }
        if self.order.leaves_and_returns(&[first, second]) {
            return Err(BETWEEN);
        }
        if let Some(reason) = self.settled.get(&(producer, self.versions[first], self.versions[second])) {
            return Err(reason);
        }
        let members: BTreeSet<_> = a.members.union(&b.members).copied().collect();
        if !self.clones.allow(&members) {
            return Err("it is computed again there on purpose");
        }
        if is_prologue && a.members.iter().any(|&member| self.is_read_outside(member, &members)) {
            return Err("another kernel reads it as well");
        }
        let kernel = self.lower(&members).map_err(|fault| fault.reason)?;
        if nodes > LARGEST && kernel.region.instrs.len() > FEW_INSTRUCTIONS {
            return Err(TOO_LARGE);
        }
        if both_ways::reads_both_ways(&kernel)
            && ![a, b].iter().any(|group| both_ways::reads_both_ways(&group.kernel))
        {
            return Err("they go through memory in different orders");
        }
        if windows::read_across(&kernel) && !windows::read_across(&b.kernel) {
            return Err("a copy in the order of the reader takes less");
        }
        if is_prologue {
            return Ok(Group { members, kernel });
        }
        if a.kernel.form == Form::Map && computed_again(a, b, &kernel) > self.saved(producer, a, &kernel) {
            return Err("computing it again for every element costs more than reading it");
        }
        Ok(Group { members, kernel })
    }

    /// Seconds that a merge of a map saves: those of a tensor to memory and back. Windows on a map behind a product save nothing, since the product
    /// stores what the map makes of its result as it would store the result; nor do padding and pooling, if the product would store more bytes.
    fn saved(&self, producer: ValueId, map: &Group, merged: &Kernel) -> f64 {
        let bytes = self.graph[producer].ty.bytes();
        let is_seen_by_windows = windows::are_in(merged, &map.kernel);
        let points = map.kernel.domain.points();
        let is_moved = merged.form == Form::Map && merged.domain.points() != points;
        let is_stored_by = |&read: &ValueId| {
            let product = &self.graph[read].ty;
            let is_narrowed = product.bytes() > bytes && product.elements() == points;
            self.is_contraction(read)
                && (is_moved && is_narrowed || is_seen_by_windows && product.bytes() == bytes)
                && !self.is_read_outside(read, &map.members)
        };
        let is_behind_product =
            || map.members.iter().flat_map(|member| &self.reads[member]).any(is_stored_by);
        if (is_moved || is_seen_by_windows) && is_behind_product() { 0.0 } else { cost::moving(2 * bytes) }
    }

    fn finish(self) -> KernelGraph {
        let mut refusals = Vec::new();
        let mut reasons = self.refusals.clone();
        reasons.extend(&self.chain_refusals);
        for (&(producer, consumer), reason) in &reasons {
            if self.group_of[&producer] != self.group_of[&consumer] {
                let bytes = self.graph[producer].ty.bytes();
                let name = |id| assemble::describe(self.graph, id);
                refusals.push(RefusedFusion {
                    producer: name(producer),
                    consumer: name(consumer),
                    bytes,
                    reason: (*reason).into(),
                    edge: (producer, consumer),
                });
            }
        }
        refusals.sort_by_key(|refusal| std::cmp::Reverse(refusal.bytes));
        let kernels = self.groups.into_iter().flatten().map(|group| group.kernel).collect();
        assemble::assemble(self.graph, kernels, refusals)
    }
}

/// Seconds that a merged kernel takes for what a map computed once: for every point that reads it, and every place from which a window does.
fn computed_again(map: &Group, reader: &Group, merged: &Kernel) -> f64 {
    let points = |kernel: &Kernel| kernel.domain.points();
    let rows = merged.domain.extent(0..merged.domain.outer + merged.domain.rows);
    if merged.form == Form::Reduce && points(&map.kernel) == rows {
        // A value for each row is computed once a row.
        return 0.0;
    }
    let computing = |kernel: &Kernel| cost::computing(&kernel.region, points(kernel));
    let more_points = points(merged).saturating_sub(points(&map.kernel));
    let for_points = cost::computing(&map.kernel.region, more_points);
    for_points.max(computing(merged) - computing(&map.kernel) - computing(&reader.kernel))
}

/// Which values are computed wherever they are read.
fn free_values(graph: &Graph, forced: &BTreeSet<ValueId>, fusion: Fusion) -> Vec<bool> {
    let mut generated = vec![false; graph.len()];
    let mut free = vec![false; graph.len()];
    let widened = if fusion == Fusion::None { vec![] } else { widened_states(graph) };
    for id in graph.ids() {
        let forced = forced.contains(&id);
        generated[id.index()] =
            !forced && writer::is_generated(graph, &generated, id, fusion == Fusion::None);
        let view = graph[id].op.entry() == KernelEntry::View;
        let chosen = fusion != Fusion::None && chooses_matrices(graph, id);
        let is_widened = widened.get(id.index()).is_some_and(|&is_widened| is_widened)
            || fusion != Fusion::None && is_widened_byte(graph, id);
        free[id.index()] = !forced && (view || chosen || is_widened || generated[id.index()]);
    }
    free
}

/// Whether a value is bytes that were widened, which stay bytes in memory.
fn is_widened_byte(graph: &Graph, id: ValueId) -> bool {
    let node = &graph[id];
    matches!(node.op, Op::Cast(_)) && graph[node.operands[0]].ty.dtype == DType::I8
}

/// Whether a value has a byte for each byte, to be looked up: its entries are computed once.
fn is_byte_table(graph: &Graph, id: ValueId) -> bool {
    let looks_up = |&(user, place): &(ValueId, usize)| matches!(graph[user].op, Op::Gather(_)) && place == 0;
    graph[id].ty == TensorType::new(DType::I8, [256]) && graph.users(id).iter().any(looks_up)
}

/// Whether a permutation has another innermost axis than what it shows, and many readers that would all go through memory in strides; products
/// pack any layout.
fn is_transposed_often(graph: &Graph, id: ValueId) -> bool {
    let Op::Permute(permute) = &graph[id].op else { return false };
    let shape = &graph[graph[id].operands[0]].ty.shape;
    let long = |axis: &usize| shape[*axis] > 1;
    let innermost = (0..shape.len()).rfind(long);
    let shown = permute.axes.iter().copied().rfind(long);
    let reads = |(user, _): &(ValueId, usize)| {
        !matches!(graph[*user].op.entry(), KernelEntry::Contraction | KernelEntry::View)
    };
    innermost != shown && graph.users(id).iter().filter(|user| reads(user)).count() >= TRANSPOSED
}

/// Whether a value is results of products side by side, which at most were moved, rounded and multiplied by numbers.
fn joins_products(graph: &Graph, value: ValueId, is_joined: bool) -> bool {
    let node = &graph[value];
    let all = |is_joined: bool| node.operands.iter().all(|&x| joins_products(graph, x, is_joined));
    match node.op {
        Op::Concat(_) => all(true),
        Op::Cast(_) | Op::Permute(_) | Op::Reshape(_) => all(is_joined),
        Op::Binary(Binary::Mul) => {
            let [x, y] = node.operands[..] else { return false };
            let is_product = |x, y| chain::number(graph, y).is_some() && joins_products(graph, x, is_joined);
            is_product(x, y) || is_product(y, x)
        }
        Op::DotGeneral(_) => is_joined,
        _ => false,
    }
}

/// Whether a gather does nothing but say which matrix of a table each product of a batch reads.
fn chooses_matrices(graph: &Graph, id: ValueId) -> bool {
    let Op::Gather(gather) = &graph[id].op else { return false };
    let one_axis = graph[graph[id].operands[1]].ty.rank() == 1;
    one_axis && is_batch_of_products(graph, id, gather.axis)
}

/// Whether a value is read by products alone, perhaps in slices, and this axis of it is one of their batch.
fn is_batch_of_products(graph: &Graph, id: ValueId, axis: usize) -> bool {
    let extent = graph[id].ty.shape[axis];
    graph.users(id).into_iter().all(|(user, slot)| match (&graph[user].op, slot) {
        (Op::DotGeneral(dot), 0) => dot.lhs_batch.contains(&axis),
        (Op::DotGeneral(dot), _) => dot.rhs_batch.contains(&axis),
        (Op::Slice(slice), _) if (slice.start[axis], slice.end[axis]) == (0, extent) => {
            is_batch_of_products(graph, user, axis)
        }
        _ => false,
    })
}

/// The state whose next value this is, if that differs from it in a part alone and nothing else reads the state: then the part
/// is written where the state lies.
pub(crate) fn continued_state(graph: &Graph, id: ValueId) -> Option<ValueId> {
    let Op::DynamicUpdate(_) = graph[id].op else { return None };
    let state = graph[id].operands[0];
    let Op::Input(input) = &graph[state].op else { return None };
    let updates = |output: &Output| output.updates_state && output.name == input.name && output.value == id;
    let alone = graph.users(state).len() == 1 && !graph.outputs().iter().any(|output| output.value == state);
    (alone && graph.outputs().iter().any(updates)).then_some(state)
}

type Edges = BTreeMap<ValueId, BTreeSet<ValueId>>;

/// What each member that outputs depend on reads (members and inputs), through free values; and the reverse.
fn edges(graph: &Graph, free: &[bool], outputs: &BTreeSet<ValueId>) -> (Edges, Edges) {
    // What a free value stands for.
    let mut behind: Vec<BTreeSet<ValueId>> = Vec::with_capacity(graph.len());
    let mut reads = Edges::new();
    for id in graph.ids() {
        let node = &graph[id];
        let sources: BTreeSet<_> =
            node.operands.iter().flat_map(|operand| behind[operand.index()].iter().copied()).collect();
        if matches!(node.op, Op::Input(_)) {
            behind.push(BTreeSet::from([id]));
        } else if free[id.index()] {
            behind.push(sources);
        } else {
            reads.insert(id, sources);
            behind.push(BTreeSet::from([id]));
        }
    }
    let mut live = outputs.clone();
    for (id, sources) in reads.iter().rev() {
        if live.contains(id) {
            live.extend(sources);
        }
    }
    reads.retain(|id, _| live.contains(id));
    let mut readers = Edges::new();
    for (&id, sources) in &reads {
        for &source in sources {
            readers.entry(source).or_default().insert(id);
        }
    }
    (reads, readers)
}
