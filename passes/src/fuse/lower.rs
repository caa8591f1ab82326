//! From a set of nodes to a kernel: the form, the space, the region, the stores.
//!
//! The form follows from what the set contains: a contraction, else reductions, else a map. The set's anchor (the
//! contraction's result, the main reduction's operand, the map's result) gives the space; nodes after it get
//! coordinates by following elementwise ops and views forward, nodes before it are computed where they are read.

use super::chain::{self, Chain};
use super::space::{Role, Space};
use super::writer::{Fault, Inside, Writer};
use kernfusion_ir::kernel::{
    BufferId, Domain, Form, Index, Instr, InstrKind, Kernel, Operand, Product, Refusal, Region, Scalar,
    Store, StoreMode, reshaped,
};
use kernfusion_ir::{DType, DotGeneral, Graph, KernelEntry, Op, Reduce, ScatterAdd, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A set of nodes that may become a kernel.
pub(super) struct Candidate<'a> {
    pub(super) graph: &'a Graph,
    /// Nodes that only this kernel computes.
    pub(super) members: &'a BTreeSet<ValueId>,
    /// Values computed wherever they are read.
    pub(super) free: &'a [bool],
    /// Members that something outside reads.
    pub(super) needed: &'a BTreeSet<ValueId>,
}

impl Inside for Candidate<'_> {
    fn contains(&self, value: ValueId) -> bool {
        self.members.contains(&value)
            || self.free[value.index()] && !matches!(self.graph[value].op, Op::Input(_))
    }
}

/// What gives a kernel its space.
enum Anchor {
    /// The coordinates are those of this value.
    Result(ValueId),
    /// The coordinates are those of this reduction's operand.
    Reduced(ValueId, Reduce),
    /// The coordinates are those of this contraction's result and its summed axes.
    Contracted(ValueId, DotGeneral),
    /// As of a contraction, whose results this scatter adds up.
    Accumulated(ValueId, DotGeneral, ValueId),
    /// The coordinates are those of the first contraction's result.
    Chained(Chain),
    /// The coordinates are those of this scatter's updates.
    Scattered(ValueId),
    /// The coordinates are those of the part that this update writes to a state.
    Continued(ValueId),
}

/// What emission yields when it does not yield a kernel.
pub(super) enum Stop {
    Split { axis: usize, inner: usize },
    Fault(Fault),
}

pub(super) type Attempt<T> = Result<T, Stop>;

impl Candidate<'_> {
    /// The kernel, with the number of each value as its buffer's, or why there is none.
    pub(super) fn lower(&self) -> Result<Kernel, Fault> {
        let anchor = self.anchor()?;
        let space = self.space(&anchor);
        let kernel = self.settled(&anchor, space.clone());
        if !matches!(anchor, Anchor::Chained(_)) {
            return kernel;
        }
        // Heads that share keys are rows of one product. Where a consumer takes them apart, or a mask looks at positions
        // alone, they are matrices of a batch instead.
        let is_banded = |kernel: &Kernel| matches!(&kernel.form, Form::Contraction(c) if c.band.is_some());
        match kernel {
            Ok(kernel) if is_banded(&kernel) => Ok(kernel),
            kernel => match space.with_one_row_axis().map(|space| self.settled(&anchor, space)) {
                Some(Ok(apart)) if kernel.is_err() || is_banded(&apart) => Ok(apart),
                _ => kernel,
            },
        }
    }

    /// The kernel over a space whose axes are split as often as needed.
    fn settled(&self, anchor: &Anchor, mut space: Space) -> Result<Kernel, Fault> {
        // Every split makes an axis smaller, so this ends.
        loop {
            match self.emit(anchor, &space) {
                Ok(kernel) => return Ok(kernel),
                Err(Stop::Split { axis, inner }) => space.split(axis, inner),
                Err(Stop::Fault(fault)) => return Err(fault),
            }
        }
    }

    fn anchor(&self) -> Result<Anchor, Fault> {
        let of = |entry: KernelEntry| {
            self.members.iter().copied().filter(move |&m| self.graph[m].op.entry() == entry)
        };
        let contractions: Vec<_> = of(KernelEntry::Contraction).collect();
        if let [first, rest @ ..] = contractions.as_slice() {
            if let Some(scatter) = of(KernelEntry::Scatter).next() {
                return self.accumulation(*first, scatter);
            }
            if !rest.is_empty() {
                return Chain::new(self, &contractions).map(Anchor::Chained);
            }
            return Ok(Anchor::Contracted(*first, chain::dot(self.graph, *first).clone()));
        }
        if let Some(scatter) = of(KernelEntry::Scatter).next() {
            if let Some(node) = of(KernelEntry::Reduction).next() {
                return Err(Fault { node, reason: "a scatter is a map" });
            }
            return Ok(Anchor::Scattered(scatter));
        }
        if let Some(&update) = self.members.iter().find(|&&m| super::continued_state(self.graph, m).is_some())
        {
            if let Some(node) = of(KernelEntry::Reduction).next() {
                return Err(Fault { node, reason: "an update of a state is a map" });
            }
            return Ok(Anchor::Continued(update));
        }
        // Rows before columns: a row kernel also reduces columns, not the other way round.
        let main = of(KernelEntry::Reduction).max_by_key(|&node| {
            let operand = &self.graph[self.graph[node].operands[0]].ty;
            (self.along_rows(node), operand.elements(), std::cmp::Reverse(node))
        });
        if let Some(node) = main {
            let Op::Reduce(reduce) = &self.graph[node].op else { unreachable!("a reduction") };
            return Ok(Anchor::Reduced(node, reduce.clone()));
        }
        let widest = self.needed.iter().max_by_key(|&&m| (self.graph[m].ty.elements(), m));
        Ok(Anchor::Result(*widest.expect("a kernel stores something")))
    }

    /// A batch of products that are added up to the matrices of a table.
    fn accumulation(&self, product: ValueId, scatter: ValueId) -> Result<Anchor, Fault> {
        let dot = chain::dot(self.graph, product);
        let Op::ScatterAdd(attributes) = &self.graph[scatter].op else { unreachable!("a scatter") };
        let [indices, updates] = self.graph[scatter].operands[..] else { unreachable!("of two operands") };
        let alone = self.members.len() == 2 && updates == product && !self.needed.contains(&product);
        let of_batch = attributes.axis < dot.lhs_batch.len() && self.graph[indices].ty.rank() == 1;
        match alone && of_batch {
            true => Ok(Anchor::Accumulated(product, dot.clone(), scatter)),
            false => Err(Fault { node: product, reason: "a scatter is a map" }),
        }
    }

    /// Whether a reduction goes along the innermost axis, so that a row is contiguous.
    fn along_rows(&self, node: ValueId) -> bool {
        let Op::Reduce(reduce) = &self.graph[node].op else { return false };
        let shape = &self.graph[self.graph[node].operands[0]].ty.shape;
        let innermost = (0..shape.len()).rev().find(|&axis| shape[axis] > 1);
        innermost.is_none_or(|axis| reduce.axes.contains(&axis))
    }

    fn space(&self, anchor: &Anchor) -> Space {
        let all = |shape: &[usize], role| shape.iter().map(|&extent| (extent, role)).collect::<Vec<_>>();
        match anchor {
            Anchor::Result(node) => Space::new(&all(&self.graph[*node].ty.shape, Role::Column)),
            Anchor::Scattered(node) | Anchor::Continued(node) => {
                Space::new(&all(&self.graph[self.graph[*node].operands[1]].ty.shape, Role::Column))
            }
            Anchor::Reduced(node, reduce) => {
                let shape = &self.graph[self.graph[*node].operands[0]].ty.shape;
                let rows = self.along_rows(*node);
                // Across rows, the columns are the trailing axes that stay.
                let trailing = (0..shape.len()).rev().take_while(|axis| !reduce.axes.contains(axis)).count();
                let role = |axis: usize| match (rows, reduce.axes.contains(&axis)) {
                    (true, true) => Role::Column,
                    (true, false) | (false, true) => Role::Row,
                    (false, false) if axis + trailing >= shape.len() => Role::Column,
                    (false, false) => Role::Outer,
                };
                let originals: Vec<_> = shape.iter().enumerate().map(|(axis, &e)| (e, role(axis))).collect();
                Space::new(&originals)
            }
            Anchor::Contracted(node, dot) | Anchor::Accumulated(node, dot, _) => {
                let left = &self.graph[self.graph[*node].operands[0]].ty;
                let summed: Vec<_> = dot.lhs_contract.iter().map(|&axis| left.shape[axis]).collect();
                self.result_space(*node, dot).extended(&summed)
            }
            Anchor::Chained(chain) => self.result_space(chain.first(), chain::dot(self.graph, chain.first())),
        }
    }

    /// The space of a contraction's result.
    fn result_space(&self, node: ValueId, dot: &DotGeneral) -> Space {
        let left = &self.graph[self.graph[node].operands[0]].ty;
        let (batch, free) = (dot.lhs_batch.len(), dot.lhs_free(left.rank()).len());
        let role = |axis: usize| match axis {
            axis if axis < batch => Role::Outer,
            axis if axis < batch + free => Role::Row,
            _ => Role::Column,
        };
        let result = self.graph[node].ty.shape.iter().enumerate();
        Space::new(&result.map(|(axis, &extent)| (extent, role(axis))).collect::<Vec<_>>())
    }

    /// Whether a value is computed here rather than loaded.
    pub(super) fn is_inside(&self, value: ValueId) -> bool {
        self.contains(value)
    }

    fn emit(&self, anchor: &Anchor, space: &Space) -> Attempt<Kernel> {
        if let Anchor::Chained(chain) = anchor {
            return chain.emit(self, space);
        }
        let mut writer = Writer::new(self.graph, self, space, false);
        let rank = space.rank(false);
        let original = |count: usize| (0..count).map(|axis| space.coordinate(axis, rank)).collect::<Vec<_>>();
        let (base, form) = match anchor {
            Anchor::Result(node) => (*node, Form::Map),
            Anchor::Scattered(node) | Anchor::Continued(node) => (self.graph[*node].operands[1], Form::Map),
            Anchor::Reduced(node, _) => (self.graph[*node].operands[0], Form::Reduce),
            Anchor::Contracted(node, dot) | Anchor::Accumulated(node, dot, _) => {
                let at = original(self.graph[*node].ty.rank());
                writer = writer.with_producer(*node, at);
                (*node, Form::Contraction(vec![self.product(*node, dot, space)?].into()))
            }
            Anchor::Chained(_) => unreachable!("emitted above"),
        };
        let at = original(self.graph[base].ty.rank());
        let mut stores = Vec::new();
        let indirect = match anchor {
            Anchor::Scattered(node) | Anchor::Accumulated(_, _, node) => {
                stores.push(self.scatter(*node, &at, &mut writer)?);
                Some(*node)
            }
            Anchor::Continued(node) => {
                stores.push(self.update(*node, &at, &mut writer)?);
                Some(*node)
            }
            _ => None,
        };
        let places = self.forward(&[base], &at, &writer);
        let has_rows = !matches!(anchor, Anchor::Result(_) | Anchor::Scattered(_) | Anchor::Continued(_));
        for &node in self.needed.iter().rev() {
            if indirect != Some(node) {
                stores.push(self.store(node, has_rows, base, &at, &places, &mut writer, space)?);
            }
        }
        let covers = self.members.iter().copied().collect();
        let domain = space.domain();
        Ok(Kernel { name: String::new(), form, domain, region: writer.region, stores, covers })
    }

    /// Coordinates of the values after the bases, which all have the coordinates `at`, where elementwise ops and views
    /// lead forward from them.
    pub(super) fn forward(
        &self,
        bases: &[ValueId],
        at: &[Index],
        writer: &Writer<'_>,
    ) -> BTreeMap<ValueId, Vec<Index>> {
        let mut places: BTreeMap<_, _> = bases.iter().map(|&base| (base, at.to_vec())).collect();
        let Some(&base) = bases.iter().min() else { return places };
        let Some(&last) = self.members.last() else { return places };
        for id in (base.index() + 1..=last.index()).map(ValueId::from_index).filter(|&id| self.contains(id)) {
            let node = &self.graph[id];
            let Some((operand, known)) = node.operands.iter().find_map(|o| Some((o, places.get(o)?))) else {
                continue;
            };
            let place = match &node.op {
                Op::Permute(permute) => Some(permute.axes.iter().map(|&axis| known[axis].clone()).collect()),
                Op::Reshape(reshape) => {
                    reshaped(writer, known, &self.graph[*operand].ty.shape, &reshape.shape).ok()
                }
                op if op.entry() == KernelEntry::Scalar => Some(known.clone()),
                _ => None,
            };
            places.extend(place.map(|place| (id, place)));
        }
        places
    }

    /// The store of one member.
    #[allow(clippy::too_many_arguments, reason = "the emission state")]
    pub(super) fn store(
        &self,
        node: ValueId,
        has_rows: bool,
        base: ValueId,
        base_at: &[Index],
        places: &BTreeMap<ValueId, Vec<Index>>,
        writer: &mut Writer<'_>,
        space: &Space,
    ) -> Attempt<Store> {
        let shape = &self.graph[node].ty.shape;
        let base_shape = &self.graph[base].ty.shape;
        let fault = |reason| Stop::Fault(Fault { node, reason });
        let (at, value) = if let Some((at, scalar)) = writer.visited.get(&node) {
            (at.clone(), *scalar)
        } else if let Op::Reduce(reduce) = &self.graph[node].op {
            self.reduction(node, reduce, base, base_at, places, writer)?
        } else if let Some(at) = places.get(&node) {
            (at.clone(), self.scalar(node, at.clone(), writer)?)
        } else if shape.iter().product::<usize>() == base_shape.iter().product::<usize>() {
            let at = reshaped(writer, base_at, base_shape, shape).map_err(|refusal| stop(refusal, node))?;
            (at.clone(), self.scalar(node, at, writer)?)
        } else {
            let at = self.row_place(shape, space, writer).ok_or_else(|| fault("another iteration domain"))?;
            let at = at.map_err(|refusal| stop(refusal, node))?;
            (at.clone(), self.scalar(node, at, writer)?)
        };
        let index = Index::linear(space.rank(false), &at, shape);
        let elements = shape.iter().product();
        if !covers(&index, elements, value, &writer.region, space, has_rows) {
            return Err(fault("a value that is stored must be computed exactly once for each element"));
        }
        Ok(Store { value, buffer: BufferId(node.index() as u32), index, mode: StoreMode::Set })
    }

    /// Coordinates of a tensor that has one element a row, if `shape` has as many.
    fn row_place(
        &self,
        shape: &[usize],
        space: &Space,
        writer: &Writer<'_>,
    ) -> Option<Result<Vec<Index>, Refusal>> {
        let domain = space.domain();
        let rows = 0..domain.outer + domain.rows;
        // Where rows are reduced and columns are not, nothing belongs to a row.
        let is_reduction = |member: &&ValueId| self.graph[**member].op.entry() == KernelEntry::Reduction;
        let mut reductions = self.members.iter().filter(is_reduction).peekable();
        if reductions.peek().is_some() && !reductions.any(|&member| self.along_rows(member)) {
            return None;
        }
        if domain.column_axes().is_empty() || domain.extent(rows.clone()) != shape.iter().product::<usize>() {
            return None;
        }
        let rank = domain.axes.len();
        let at: Vec<_> = rows.clone().map(|axis| Index::axis(rank, axis)).collect();
        Some(reshaped(writer, &at, &domain.axes[rows], shape))
    }

    /// A stored reduction that nothing else in the kernel reads: along the row or across the rows, as the
    /// coordinates of its operand say.
    fn reduction(
        &self,
        node: ValueId,
        reduce: &Reduce,
        base: ValueId,
        base_at: &[Index],
        places: &BTreeMap<ValueId, Vec<Index>>,
        writer: &mut Writer<'_>,
    ) -> Attempt<(Vec<Index>, Scalar)> {
        let operand = self.graph[node].operands[0];
        let shape = &self.graph[operand].ty.shape;
        let known =
            writer.visited.get(&operand).map(|(at, _)| at.clone()).or_else(|| places.get(&operand).cloned());
        let at = match known {
            Some(at) => at,
            None => reshaped(writer, base_at, &self.graph[base].ty.shape, shape)
                .map_err(|refusal| stop(refusal, node))?,
        };
        let varies = |axes: &[usize], role| axes.iter().any(|&axis| writer.varies(&at[axis], role));
        let kept = reduce.kept(shape.len());
        let result: Vec<_> = kept.iter().map(|&axis| at[axis].clone()).collect();
        let aligned = |summed, others: [Role; 2]| {
            !varies(&kept, summed) && others.iter().all(|&role| !varies(&reduce.axes, role))
        };
        let along_columns = aligned(Role::Column, [Role::Outer, Role::Row]);
        let across_rows = aligned(Role::Row, [Role::Outer, Role::Column]);
        if along_columns {
            let scalar = self.scalar(node, result.clone(), writer)?;
            Ok((result, scalar))
        } else if across_rows {
            let entered = writer.reduce_rows(node, reduce, at);
            Ok((result, entered.map_err(|refusal| stop(refusal, writer.fault()))?))
        } else {
            Err(Stop::Fault(Fault { node, reason: "a reduction over other axes" }))
        }
    }

    pub(super) fn scalar(&self, node: ValueId, at: Vec<Index>, writer: &mut Writer<'_>) -> Attempt<Scalar> {
        let entered = writer.value(node, at);
        entered.map_err(|refusal| stop(refusal, writer.fault()))
    }

    fn scatter(&self, node: ValueId, at: &[Index], writer: &mut Writer<'_>) -> Attempt<Store> {
        let Op::ScatterAdd(ScatterAdd { axis, .. }) = self.graph[node].op else { unreachable!("a scatter") };
        let [indices, updates] = self.graph[node].operands[..] else {
            unreachable!("a scatter has two operands")
        };
        let (rank, shape) = (self.graph[indices].ty.rank(), &self.graph[node].ty.shape);
        let row = self.scalar(indices, at[axis..axis + rank].to_vec(), writer)?;
        let value = self.scalar(updates, at.to_vec(), writer)?;
        let space_rank = at.first().map_or(0, |index| index.strides.len());
        let row = Index::indirect(space_rank, row, shape[axis]);
        let at = [&at[..axis], &[row], &at[axis + rank..]].concat();
        let index = Index::linear(space_rank, &at, shape);
        Ok(Store { value, buffer: BufferId(node.index() as u32), index, mode: StoreMode::Add })
    }

    /// The part that an update puts into its state.
    fn update(&self, node: ValueId, at: &[Index], writer: &mut Writer<'_>) -> Attempt<Store> {
        let [_, part, starts @ ..] = &self.graph[node].operands[..] else {
            unreachable!("an update of a part")
        };
        let (shape, sizes) = (&self.graph[node].ty.shape, &self.graph[*part].ty.shape);
        let mut place = Vec::new();
        for (axis, start) in starts.iter().enumerate() {
            let start = self.scalar(*start, vec![], writer)?;
            let start = Index::indirect(at[axis].strides.len(), start, shape[axis] - sizes[axis] + 1);
            place.push(at[axis].clone().plus(&start, 1));
        }
        let value = self.scalar(*part, at.to_vec(), writer)?;
        let index = Index::linear(at.first().map_or(0, |index| index.strides.len()), &place, shape);
        Ok(Store { value, buffer: BufferId(node.index() as u32), index, mode: StoreMode::Set })
    }

    /// The operands of a contraction: loads, or prologues.
    pub(super) fn product(&self, node: ValueId, dot: &DotGeneral, space: &Space) -> Attempt<Product> {
        let [a, b] = self.graph[node].operands[..] else { unreachable!("a product has two operands") };
        let (a_rank, b_rank) = (self.graph[a].ty.rank(), self.graph[b].ty.rank());
        let (rows, batch) = (dot.lhs_free(a_rank), dot.lhs_batch.len());
        let result = self.graph[node].ty.rank();
        let lhs = [&dot.lhs_batch[..], &rows, &dot.lhs_contract].concat();
        let rhs = [&dot.rhs_batch[..], &dot.rhs_free(b_rank), &dot.rhs_contract].concat();
        // Original axes of the space: batch, rows, columns, summed.
        let lhs_axes: Vec<_> = (0..batch + rows.len()).chain(result..).take(a_rank).collect();
        let rhs_axes: Vec<_> =
            (0..batch).chain(batch + rows.len()..result).chain(result..).take(b_rank).collect();
        let operand = |value: ValueId, axes: &[usize], places: &[usize]| {
            let rank = space.rank(true);
            let mut at = vec![Index::constant(rank, 0); axes.len()];
            axes.iter().zip(places).for_each(|(&axis, &place)| at[axis] = space.coordinate(place, rank));
            self.operand(value, at, space)
        };
        let (a, b) = (operand(a, &lhs, &lhs_axes)?, operand(b, &rhs, &rhs_axes)?);
        Ok(Product { k: space.summed(), a, b, dtype: self.graph[node].ty.dtype })
    }

    /// The members that compute an operand, perhaps behind views; none if it lies in memory.
    fn computing(&self, operand: ValueId) -> BTreeSet<ValueId> {
        let mut members = BTreeSet::new();
        let mut open = vec![operand];
        while let Some(value) = open.pop() {
            let is_member = self.members.contains(&value);
            if self.free[value.index()] || is_member && members.insert(value) {
                open.extend(&self.graph[value].operands);
            }
        }
        members
    }

    /// Whether an operand is computed from a state that is kept in fewer bits.
    fn is_unpacked(&self, value: ValueId, region: &Region) -> bool {
        let kept = |instr: &Instr| matches!(instr.kind, InstrKind::Load { .. }).then(|| instr.dtype.size());
        let narrowest = region.instrs.iter().filter_map(kept).min();
        self.free[value.index()] && narrowest.is_some_and(|size| size < self.graph[value].ty.dtype.size())
    }

    /// The operand of a contraction that the back end does not compute from a state that is kept in fewer bits.
    pub(super) fn refused_operand(&self, kernel: &Kernel) -> Option<ValueId> {
        let ([product], [node]) = (kernel.products(), &self.members.iter().collect::<Vec<_>>()[..]) else {
            return None;
        };
        let operands = self.graph[**node].operands.iter().zip([&product.a, &product.b]);
        let mut refused = operands.filter(|(_, operand)| operand.plain().is_none());
        refused.next().map(|(&value, _)| value)
    }

    pub(super) fn operand(&self, value: ValueId, at: Vec<Index>, space: &Space) -> Attempt<Operand> {
        let mut writer = Writer::new(self.graph, self, space, true);
        let scalar = self.scalar(value, at, &mut writer)?;
        let materialise = |reason| Err(Stop::Fault(Fault { node: value, reason }));
        let region = writer.region;
        let computing = self.computing(value);
        let is_prologue = |member: &ValueId| {
            self.graph[*member].op.entry() == KernelEntry::Scalar && !self.needed.contains(member)
        };
        if !computing.is_empty() && computing.iter().all(is_prologue) {
            return Ok(Operand { region, value: scalar });
        }
        // Packing widens what is kept in fewer bits.
        let packed = match region.instr(scalar).kind {
            InstrKind::Cast(kept) if self.free[value.index()] => kept,
            _ => scalar,
        };
        match &region.instr(packed).kind {
            InstrKind::Load { index, guard, .. }
                if guard.is_empty() && chooses_matrix(index, &region, space) =>
            {
                // Bytes stay bytes: in another order they would be stored as what products see.
                let has_order = || !rearranges(index, space) || region.instr(packed).dtype == DType::I8;
                let is_packed_fast = match self.free[value.index()] {
                    true => is_matrix(index, space) || has_order() && lies_in_runs(index, space),
                    false => computing.is_empty() || is_matrix(index, space) || !overlaps(index, space),
                };
                if !is_packed_fast {
                    return materialise("an operand that is no matrix with one contiguous axis");
                }
            }
            _ if computing.is_empty() && self.is_unpacked(value, &region) => {}
            _ => return materialise("a contraction reads its operands from memory"),
        }
        Ok(Operand { region, value: scalar })
    }
}

/// Whether all that is known at run time only is which matrix of a batch it is.
fn chooses_matrix(index: &Index, region: &Region, space: &Space) -> bool {
    let extents = Domain { axes: space.extents(), outer: 0, rows: 0 };
    let within = space.domain().outer..extents.axes.len();
    index.indirect.iter().all(|term| !region.varies(term.value, within.clone(), &extents))
}

/// Elements in a run from which on an operand is packed as it lies.
const RUN: usize = 7;
/// How far apart columns of a run may lie: windows go one or two steps.
const MOST_APART: i64 = 2;

/// Whether an operand's rows (or columns), or what is summed of it, lie in runs that are long enough to be packed as they lie.
fn lies_in_runs(index: &Index, space: &Space) -> bool {
    let (extents, domain) = (space.extents(), space.domain());
    let is_run = |axes: std::ops::Range<usize>, apart: i64| {
        let inner = axes.rev().find(|&axis| extents[axis] > 1 && index.strides[axis] != 0);
        inner.is_some_and(|axis| (1..=apart).contains(&index.strides[axis]) && extents[axis] >= RUN)
    };
    is_run(domain.axes.len()..extents.len(), 1)
        || match space.strides_along(index, Role::Column) {
            true => is_run(domain.column_axes(), MOST_APART),
            false => is_run(domain.row_axes(), 1),
        }
}

/// Whether an operand's rows (or columns) and summed axes each have one stride, one of them 1, so that packing it
/// is fast.
fn is_matrix(index: &Index, space: &Space) -> bool {
    let extents = space.extents();
    let domain = space.domain();
    let one = |axes: std::ops::Range<usize>| {
        let parts: Vec<_> = axes.filter(|&a| extents[a] > 1 && index.strides[a] != 0).collect();
        let joined =
            parts.windows(2).all(|w| index.strides[w[0]] == index.strides[w[1]] * extents[w[1]] as i64);
        joined.then(|| parts.last().map_or(1, |&a| index.strides[a]))
    };
    let rows =
        if space.strides_along(index, Role::Column) { domain.column_axes() } else { domain.row_axes() };
    let summed = domain.axes.len()..extents.len();
    matches!((one(rows), one(summed)), (Some(1), Some(_)) | (Some(_), Some(1)))
}

/// Whether an operand reads elements several times, as a window does that slides.
fn overlaps(index: &Index, space: &Space) -> bool {
    let (points, span) = reach(index, space);
    points > span
}

/// Whether an operand reads all elements of a piece of memory once each, perhaps in another order, as when heads are joined. The kernel that
/// computes them can write them in this order at no cost.
fn rearranges(index: &Index, space: &Space) -> bool {
    let (points, span) = reach(index, space);
    points == span
}

/// How many points an operand has, and how many elements there are from the first that it reads to the last.
fn reach(index: &Index, space: &Space) -> (usize, usize) {
    let moving = || index.strides.iter().zip(space.extents()).filter(|(stride, _)| **stride != 0);
    let points = moving().map(|(_, extent)| extent).product();
    let span =
        moving().map(|(stride, extent)| stride.unsigned_abs() as usize * (extent - 1)).sum::<usize>() + 1;
    (points, span)
}

/// Whether a store writes every element of its buffer exactly once. Where the kernel has rows (there may be one, without
/// an axis), a value of the row is stored once a row.
fn covers(
    index: &Index,
    elements: usize,
    value: Scalar,
    region: &Region,
    space: &Space,
    has_rows: bool,
) -> bool {
    let domain = space.domain();
    let without = |axes: std::ops::Range<usize>| {
        let mut extents = domain.axes.clone();
        extents[axes.clone()].fill(1);
        !index.varies(axes) && index.fills(&extents, elements)
    };
    match &region.instr(value).kind {
        InstrKind::Reduce(_, kernfusion_ir::kernel::Direction::Rows, _) => without(domain.row_axes()),
        _ => {
            index.fills(&domain.axes, elements)
                || has_rows
                    && !region.varies(value, domain.column_axes(), &domain)
                    && without(domain.column_axes())
        }
    }
}

fn stop(refusal: Refusal, node: ValueId) -> Stop {
    match refusal {
        Refusal::Split { axis, inner } => Stop::Split { axis, inner },
        Refusal::Because(reason) => Stop::Fault(Fault { node, reason }),
    }
}
