//! Chains: products, what happens to their entries, and products of that again, as one kernel.
//!
//! ```text
//! %s = q·kᵀ;  %p = softmax(mask(%s));  %o = %p·v      →   contraction: product 0 = q·kᵀ, region softmax,
//!                                                         contract.columns %p · v → %o
//! ```
//!
//! Every product of a chain is over one domain, and what lies between the products has that domain or is one value a
//! row. Then no tensor over the domain is in memory. Attention and a classifier with its loss are such chains,
//! forward and backward; nothing here knows them by name.

use super::lower::{Attempt, Candidate, Stop};
use super::space::{Role, Space};
use super::writer::{Fault, Writer};
use super::{Group, Planner, band};
use kernfusion_ir::kernel::{
    BufferId, Consumer, Contraction, Direction, Form, Index, InstrKind, Kernel, Operand, Product, reshaped,
};
use kernfusion_ir::{Binary, DType, DotGeneral, Graph, KernelEntry, Literal, Op, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Sums of at most this many products are short.
const SHORT: usize = 160;
/// Bytes of a tensor that had better not exist.
pub(super) const LARGE: usize = 128 << 20;

/// The contractions of a candidate that is a chain.
pub(super) struct Chain {
    producers: Vec<ValueId>,
    consumers: Vec<ValueId>,
}

/// The attributes of a node that is a contraction.
pub(super) fn dot(graph: &Graph, node: ValueId) -> &DotGeneral {
    let Op::DotGeneral(dot) = &graph[node].op else { unreachable!("a contraction") };
    dot
}

impl Chain {
    /// Divides contractions into those that others depend on and those that depend on them.
    pub(super) fn new(candidate: &Candidate<'_>, contractions: &[ValueId]) -> Result<Self, Fault> {
        let graph = candidate.graph;
        let mut after: BTreeSet<ValueId> = contractions.iter().copied().collect();
        let mut chain = Chain { producers: vec![], consumers: vec![] };
        let last = candidate.members.last().map_or(0, |member| member.index());
        for id in (0..=last).map(ValueId::from_index).filter(|&id| candidate.is_inside(id)) {
            let follows = graph[id].operands.iter().any(|operand| after.contains(operand));
            if !contractions.contains(&id) {
                after.extend(follows.then_some(id));
            } else if !follows {
                chain.producers.push(id);
            } else if graph[id].operands.iter().all(|operand| after.contains(operand)) {
                return Err(Fault { node: id, reason: "a product of two values of one kernel" });
            } else {
                chain.consumers.push(id);
                // What follows a consumer is over another domain.
                after.remove(&id);
            }
        }
        if chain.consumers.is_empty() {
            let node = *contractions.first().expect("a chain has products");
            return Err(Fault { node, reason: "a reduction of a product's rows needs all its tiles" });
        }
        let same = |&node: &ValueId| graph[node].ty.shape == graph[chain.producers[0]].ty.shape;
        match chain.producers.iter().find(|node| !same(node)) {
            Some(&node) => Err(Fault { node, reason: "products over different domains" }),
            None => Ok(chain),
        }
    }

    /// The first product, which gives the domain.
    pub(super) fn first(&self) -> ValueId {
        self.producers[0]
    }

    /// The kernel over a space.
    pub(super) fn emit(&self, candidate: &Candidate<'_>, space: &Space) -> Attempt<Kernel> {
        let graph = candidate.graph;
        let domain = space.domain();
        let fault = |reason| Stop::Fault(Fault { node: self.first(), reason });
        if domain.column_axes().len() != 1 || domain.row_axes().is_empty() {
            return Err(fault("the columns of a chain are one axis"));
        }
        let at: Vec<_> = (0..graph[self.first()].ty.rank())
            .map(|axis| space.coordinate(axis, space.rank(false)))
            .collect();
        let mut writer = Writer::new(graph, candidate, space, false);
        let mut contraction = Contraction::default();
        for &node in &self.producers {
            contraction.products.push(self.product(candidate, node, space)?);
            writer = writer.with_producer(node, at.clone());
        }
        if contraction.products.iter().flat_map(|p| [&p.a, &p.b]).any(|operand| operand.plain().is_none()) {
            return Err(fault("a chain reads its operands from memory"));
        }
        if contraction.products.iter().flat_map(|p| [&p.a, &p.b]).any(is_chosen) {
            return Err(fault("a matrix that is chosen at run time is read by one product"));
        }
        let base = self.first();
        let places = candidate.forward(&self.producers, &at, &writer);
        let (mut stored, mut parts) = (BTreeSet::new(), BTreeSet::new());
        for &node in &self.consumers {
            let (consumer, part) = self.consumer(candidate, node, &places, &mut writer, space)?;
            parts.extend(part);
            if consumer.with.plain().is_none() {
                return Err(fault("a chain reads its operands from memory"));
            }
            if is_chosen(&consumer.with) {
                return Err(fault("a matrix that is chosen at run time is read by one product"));
            }
            stored.insert(ValueId::from_index(consumer.buffer.0 as usize));
            contraction.consumers.push(consumer);
        }
        let is_whole =
            |concat: ValueId| (0..graph[concat].operands.len()).all(|at| parts.contains(&(concat, at)));
        if !parts.iter().all(|&(concat, _)| is_whole(concat)) {
            return Err(fault("a tensor of which the kernel has not all parts"));
        }
        let mut stores = vec![];
        for &node in candidate.needed.iter().rev().filter(|node| !stored.contains(node)) {
            stores.push(candidate.store(node, true, base, &at, &places, &mut writer, space)?);
        }
        let region = writer.region;
        let across = |kind: &InstrKind| matches!(kind, InstrKind::Reduce(_, Direction::Rows, _));
        if region.instrs.iter().any(|instr| across(&instr.kind)) {
            return Err(fault("a chain reduces along its rows only"));
        }
        if let Some((band, inside)) = band::find(&region, &domain, &contraction.consumers, &stores) {
            (contraction.band, contraction.inside) = (Some(band), inside);
        }
        let covers = candidate.members.iter().copied().collect();
        Ok(Kernel {
            name: String::new(),
            form: Form::Contraction(contraction),
            domain,
            region,
            stores,
            covers,
        })
    }

    fn product(&self, candidate: &Candidate<'_>, node: ValueId, space: &Space) -> Attempt<Product> {
        let dot = dot(candidate.graph, node);
        let left = &candidate.graph[candidate.graph[node].operands[0]].ty;
        let summed: Vec<_> = dot.lhs_contract.iter().map(|&axis| left.shape[axis]).collect();
        whole(candidate.product(node, dot, &space.extended(&summed)), space)
    }

    fn consumer(
        &self,
        candidate: &Candidate<'_>,
        node: ValueId,
        places: &BTreeMap<ValueId, Vec<Index>>,
        writer: &mut Writer<'_>,
        space: &Space,
    ) -> Attempt<(Consumer, Option<(ValueId, usize)>)> {
        let graph = candidate.graph;
        let fault = |reason| Stop::Fault(Fault { node, reason });
        let [a, b] = graph[node].operands[..] else { unreachable!("a product has two operands") };
        let sides = Sides::new(dot(graph, node), [graph[a].ty.rank(), graph[b].ty.rank()]);
        let ((x, mine), (w, other), first) = match (places.get(&a), places.get(&b)) {
            (Some(_), None) => ((a, sides.a), (b, sides.b), true),
            (None, Some(_)) => ((b, sides.b), (a, sides.a), false),
            _ => return Err(fault("a product of other than one value of the kernel's domain")),
        };
        let at = places[&x].clone();
        let along =
            direction(writer, &at, &mine).ok_or_else(|| fault("a product over other axes of the kernel"))?;
        let mut value = candidate.scalar(x, at.clone(), writer)?;

        // Beside the kernel's axes, those of the other operand that the result keeps.
        let shape = &graph[w].ty.shape;
        let p: Vec<_> = other.free.iter().map(|&axis| shape[axis]).collect();
        let extended = space.extended(&p);
        let rank = extended.rank(true);
        let lift = |index: &Index| {
            let mut index = index.clone();
            index.strides.resize(rank, 0);
            index
        };
        let mut at_other = vec![Index::constant(rank, 0); shape.len()];
        for (from, to) in mine.batch.iter().zip(&other.batch).chain(mine.contract.iter().zip(&other.contract))
        {
            at_other[*to] = lift(&at[*from]);
        }
        let own = space.originals();
        for (place, &axis) in other.free.iter().enumerate() {
            at_other[axis] = extended.coordinate(own + place, rank);
        }
        let batch = mine.batch.iter().map(|&axis| lift(&at[axis]));
        let kept: Vec<_> = mine.free.iter().map(|&axis| lift(&at[axis])).collect();
        let new: Vec<_> = other.free.iter().map(|&axis| at_other[axis].clone()).collect();
        let result = batch.chain(if first { [kept, new].concat() } else { [new, kept].concat() }).collect();
        let with = whole(candidate.operand(w, at_other, &extended), space)?;
        let (stored, View { at: result, factor, part, .. }) =
            self.result(candidate, node, result, &extended)?;
        if let Some(factor) = factor {
            let dtype = writer.region.instr(value).dtype;
            let factor = writer.region.push(InstrKind::Constant(factor), dtype);
            value = writer.region.push(InstrKind::Binary(Binary::Mul, value, factor), dtype);
        }
        let index = Index::linear(rank, &result, &graph[stored].ty.shape);
        let summed = match along {
            Direction::Columns => space.domain().column_axes(),
            Direction::Rows => space.domain().row_axes(),
        };
        let mut extents = extended.extents();
        extents[summed.clone()].fill(1);
        let fills = match &part {
            Some(Part { of, slot, place }) => {
                place.fills(&extents, graph[graph[*of].operands[*slot]].ty.elements())
            }
            None => index.fills(&extents, graph[stored].ty.elements()),
        };
        if index.varies(summed) || !fills {
            return Err(fault("a result that is not stored once for each element"));
        }
        let buffer = BufferId(stored.index() as u32);
        Ok((
            Consumer { value, along, p, with, dtype: graph[stored].ty.dtype, buffer, index },
            part.map(|part| (part.of, part.slot)),
        ))
    }

    /// Which value of the consumer is stored, and where: its result, a view of it, or a tensor of which it is a part.
    fn result(
        &self,
        candidate: &Candidate<'_>,
        node: ValueId,
        at: Vec<Index>,
        space: &Space,
    ) -> Attempt<(ValueId, View)> {
        let graph = candidate.graph;
        let writer = Writer::new(graph, candidate, space, true);
        let rounded = graph[node].ty.dtype;
        let mut views = BTreeMap::from([(node, View { at, factor: None, part: None, rounded })]);
        let last = candidate.members.last().map_or(0, |member| member.index());
        for id in (node.index() + 1..=last).map(ValueId::from_index).filter(|&id| candidate.is_inside(id)) {
            let view = View::through(graph, id, &views, &writer);
            views.extend(view.map(|view| (id, view)));
        }
        let mut needed = views.into_iter().filter(|(id, _)| candidate.needed.contains(id));
        match (needed.next(), needed.next()) {
            (Some(stored), None) if graph[stored.0].ty.dtype == stored.1.rounded => Ok(stored),
            _ => {
                let reason = "the result of a second product is needed in other than one form";
                Err(Stop::Fault(Fault { node, reason }))
            }
        }
    }
}

/// An operand of a node that joins tensors.
#[derive(Clone)]
struct Part {
    of: ValueId,
    slot: usize,
    /// Where an element is in the operand.
    place: Index,
}

/// Where the result of a consumer is in a value that follows from it.
struct View {
    at: Vec<Index>,
    /// The number that it was multiplied by.
    factor: Option<Literal>,
    /// Which part of the value it is, if not all.
    part: Option<Part>,
    /// To which type it has been rounded. It may have been widened since.
    rounded: DType,
}

impl View {
    /// In the value of a node that moves the result, multiplies it by a number, rounds it or puts it beside others, if it is one.
    fn through(
        graph: &Graph,
        id: ValueId,
        views: &BTreeMap<ValueId, View>,
        writer: &Writer<'_>,
    ) -> Option<View> {
        let operands = &graph[id].operands;
        let mut known =
            operands.iter().enumerate().filter_map(|(slot, value)| Some((slot, views.get(value)?)));
        let (slot, &View { ref at, factor, ref part, rounded }) = known.next()?;
        if known.next().is_some() {
            return None;
        }
        let (at, part) = (at.clone(), part.clone());
        match &graph[id].op {
            Op::Permute(permute) => {
                let at = permute.axes.iter().map(|&axis| at[axis].clone()).collect();
                Some(View { at, factor, part, rounded })
            }
            Op::Reshape(reshape) => {
                let from = &graph[operands[0]].ty.shape;
                let at = reshaped(writer, &at, from, &reshape.shape).ok()?;
                Some(View { at, factor, part, rounded })
            }
            Op::Binary(Binary::Mul) if factor.is_none() => {
                let number = number(graph, operands[1 - slot])?;
                may_come_first(number, rounded).then_some(View { at, factor: Some(number), part, rounded })
            }
            // A wider type on the way changes nothing of a result that is rounded before and after.
            Op::Cast(cast) if rounded == DType::BF16 && [DType::F32, DType::BF16].contains(&cast.dtype) => {
                Some(View { at, factor, part, rounded })
            }
            Op::Cast(cast) if rounded == DType::F32 && cast.dtype == DType::BF16 => {
                Some(View { at, factor, part, rounded: DType::BF16 })
            }
            Op::Concat(concat) if part.is_none() => {
                let shape = &graph[operands[slot]].ty.shape;
                let lengths = operands.iter().map(|&other| graph[other].ty.shape[concat.axis] as i64);
                let mut shifted = at.clone();
                shifted[concat.axis] = at[concat.axis].clone().shifted(lengths.take(slot).sum());
                let part = Part { of: id, slot, place: Index::linear(at[0].strides.len(), &at, shape) };
                Some(View { at: shifted, factor, part: Some(part), rounded })
            }
            _ => None,
        }
    }
}

/// Whether a sum that is `rounded` may be multiplied by the number before it is summed: what is rounded to fewer bits by a power of two alone,
/// and by none that makes it infinite or zero.
fn may_come_first(number: Literal, rounded: DType) -> bool {
    let exponent = number.value().abs().log2();
    let keeps_digits = rounded == DType::F32 || rounded == DType::BF16 && exponent.fract() == 0.0;
    keeps_digits && exponent.abs() <= 16.0
}

/// The number that all elements of a value are, if that is a constant.
pub(crate) fn number(graph: &Graph, value: ValueId) -> Option<Literal> {
    let node = &graph[value];
    match &node.op {
        Op::Constant(constant) => Some(constant.value),
        op if op.entry() == KernelEntry::View && node.operands.len() == 1 => number(graph, node.operands[0]),
        _ => None,
    }
}

/// The axes of a contraction's operands.
struct Sides {
    a: Side,
    b: Side,
}

/// The axes of one operand.
struct Side {
    batch: Vec<usize>,
    free: Vec<usize>,
    contract: Vec<usize>,
}

impl Sides {
    fn new(dot: &DotGeneral, [a, b]: [usize; 2]) -> Self {
        let side = |batch: &[usize], free, contract: &[usize]| Side {
            batch: batch.to_vec(),
            free,
            contract: contract.to_vec(),
        };
        Sides {
            a: side(&dot.lhs_batch, dot.lhs_free(a), &dot.lhs_contract),
            b: side(&dot.rhs_batch, dot.rhs_free(b), &dot.rhs_contract),
        }
    }
}

/// What a product of a value at `at` sums over, if that is the columns or the rows of the space.
fn direction(writer: &Writer<'_>, at: &[Index], side: &Side) -> Option<Direction> {
    let varies = |axes: &[usize], role| axes.iter().any(|&axis| writer.varies(&at[axis], role));
    let only = |axes: &[usize], role: Role| {
        let others = [Role::Outer, Role::Row, Role::Column].into_iter().filter(move |&other| other != role);
        others.into_iter().all(|other| !varies(axes, other))
    };
    // What the result keeps may be an axis of the batch: heads that share the other operand.
    let is = |summed| {
        only(&side.batch, Role::Outer) && only(&side.contract, summed) && !varies(&side.free, summed)
    };
    match () {
        () if is(Role::Column) => Some(Direction::Columns),
        () if is(Role::Row) => Some(Direction::Rows),
        () => None,
    }
}

/// Forbids to split axes that a product or consumer adds to the space.
fn whole<T>(attempt: Attempt<T>, space: &Space) -> Attempt<T> {
    match attempt {
        Err(Stop::Split { axis, .. }) if axis >= space.rank(false) => {
            let reason = "an operand that is no matrix with one contiguous axis";
            Err(Stop::Fault(Fault { node: ValueId::from_index(0), reason }))
        }
        other => other,
    }
}

impl Planner<'_> {
    /// Merges kernels that lie between products with these products, where what they exchange is larger than what the
    /// products are made of.
    pub(super) fn merge_chains(&mut self) {
        for number in 0..self.groups.len() {
            let Some(group) = &self.groups[number] else { continue };
            if matches!(group.kernel.form, Form::Contraction(_)) {
                continue;
            }
            let Some((before, after)) = self.chain_around(number) else { continue };
            let mut numbers: Vec<_> = [number].into_iter().chain(before).collect();
            let fixed = numbers.len();
            for consumer in after {
                numbers.push(consumer);
                if self.order.leaves_and_returns(&numbers) {
                    numbers.pop();
                }
            }
            // What cannot be multiplied in the kernel is stored for those that multiply it elsewhere.
            while numbers.len() > fixed {
                match self.merge_all(&numbers) {
                    Ok(()) => break,
                    Err((edge, reason)) => self.chain_refusals.insert(edge, reason),
                };
                numbers.pop();
            }
        }
    }

    /// The groups of the products before and after a group, if there are both.
    fn chain_around(&self, number: usize) -> Option<(BTreeSet<usize>, BTreeSet<usize>)> {
        let members = &self.group(number).members;
        let is_bare = |other: usize| {
            self.group(other).members.iter().all(|m| self.graph[*m].op.entry() == KernelEntry::Contraction)
        };
        let is_score = |value: ValueId| {
            let node = &self.graph[value];
            let operands = node.operands.iter().map(|&operand| self.graph[operand].ty.elements());
            node.ty.elements() > operands.max().unwrap_or(0)
        };
        let reads = members.iter().filter_map(|member| self.reads.get(member)).flatten().copied();
        let before: BTreeSet<_> = reads
            .filter(|read| {
                self.group_of.get(read).is_some_and(|&g| g != number && is_bare(g)) && is_score(*read)
            })
            .collect();
        let points = before.iter().map(|&value| self.graph[value].ty.elements()).max()?;
        let wide = members.iter().filter(|&&member| self.graph[member].ty.elements() == points);
        let readers = wide.filter_map(|member| self.readers.get(member)).flatten().copied();
        let after: BTreeSet<_> = readers
            .filter(|reader| self.group_of.get(reader).is_some_and(|&g| g != number && is_bare(g)))
            .collect();
        let groups = |values: BTreeSet<ValueId>| values.into_iter().map(|value| self.group_of[&value]);
        (!after.is_empty()).then(|| (groups(before).collect(), groups(after).collect()))
    }

    /// Merges groups into one if that is legal.
    fn merge_all(&mut self, numbers: &[usize]) -> Result<(), ((ValueId, ValueId), &'static str)> {
        let members: BTreeSet<_> =
            numbers.iter().flat_map(|&number| self.group(number).members.iter().copied()).collect();
        let edge = || {
            let inside = |read: &&ValueId| members.contains(read);
            let pair = |&member: &ValueId| Some((*self.reads.get(&member)?.iter().find(inside)?, member));
            members.iter().find_map(pair).expect("the groups of a chain read each other")
        };
        if self.order.leaves_and_returns(numbers) {
            return Err((edge(), "another kernel lies between the two"));
        }
        if !self.clones.allow(&members) {
            return Err((edge(), "it is computed again there on purpose"));
        }
        let kernel = self.lower(&members).map_err(|fault| (edge(), fault.reason))?;
        if !self.pays(&kernel) {
            return Err((edge(), "its products take longer than what memory they would save"));
        }
        self.replace(numbers, Group { members, kernel });
        Ok(())
    }

    /// Whether a chain is worth it: where products are short sums, reading and writing their entries is a good part of
    /// their time; where they are long, packing operands again for each block costs as much, so only a large
    /// tensor without other readers is worth avoiding.
    fn pays(&self, kernel: &Kernel) -> bool {
        let depth = kernel.products().iter().map(|product| product.k.iter().product::<usize>()).max();
        let domain = &kernel.domain;
        let is_wide = |value| kernel.region.varies(value, domain.column_axes(), domain);
        let is_kept = kernel.stores.iter().any(|store| is_wide(store.value));
        depth.is_some_and(|depth| depth <= SHORT) || !is_kept && domain.points() * 4 >= LARGE
    }
}

/// Whether an operand is one of several matrices, known at run time.
fn is_chosen(operand: &Operand) -> bool {
    let load = |kind: &InstrKind| matches!(kind, InstrKind::Load { index, .. } if !index.indirect.is_empty());
    operand.region.instrs.iter().any(|instr| load(&instr.kind))
}
