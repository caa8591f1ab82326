//! Emission: the scalars of a set of nodes, at coordinates of a kernel's space.

use super::space::{Role, Space};
use kernfusion_ir::kernel::{
    Bound, BufferId, Direction, Domain, Entered, Index, InstrKind, KernelWriter, Refusal, Region, Scalar,
};
use kernfusion_ir::{DType, Graph, KernelEntry, Op, Reduce, TensorType, ValueId};
use rustc_hash::FxHashMap;

/// Why a set of nodes is no kernel.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    /// Materialising this value would help.
    pub(super) node: ValueId,
    /// For `explain`.
    pub(super) reason: &'static str,
}

/// Values that are computed where they are read: those of the kernel, and views and generated values.
pub(super) trait Inside {
    /// Whether the value is computed here rather than loaded.
    fn contains(&self, value: ValueId) -> bool;
}

/// A region is at most this deep: a value that depends on more others, each computed where the next one is read, is stored instead.
/// Deeper regions gain nothing, and writing them takes as many nested calls.
const DEEPEST: usize = 200;

/// Writes a region over a space. Until all kernels are known, a value's buffer has the value's number.
pub(super) struct Writer<'a> {
    graph: &'a Graph,
    inside: &'a dyn Inside,
    space: &'a Space,
    rank: usize,
    /// The contractions whose results are the region's producers, and the coordinates of the results.
    producers: Vec<(ValueId, Vec<Index>)>,
    node: ValueId,
    guard: Vec<Bound>,
    memo: FxHashMap<(ValueId, Vec<Index>, Vec<Bound>), Scalar>,
    /// Where each node was computed first.
    pub(super) visited: FxHashMap<ValueId, (Vec<Index>, Scalar)>,
    pub(super) region: Region,
    /// How many values are being computed, each for the next one.
    depth: usize,
    /// The node at which a refusal arose.
    fault: Option<ValueId>,
}

impl<'a> Writer<'a> {
    /// A writer over the kernel's axes, or (for an operand of a product) over the summed ones too.
    pub(super) fn new(graph: &'a Graph, inside: &'a dyn Inside, space: &'a Space, with_summed: bool) -> Self {
        Writer {
            graph,
            inside,
            space,
            rank: space.rank(with_summed),
            producers: vec![],
            node: ValueId::from_index(0),
            guard: vec![],
            memo: FxHashMap::default(),
            visited: FxHashMap::default(),
            region: Region::default(),
            depth: 0,
            fault: None,
        }
    }

    /// Makes the result of a contraction, at these coordinates, the region's next producer.
    pub(super) fn with_producer(mut self, node: ValueId, at: Vec<Index>) -> Self {
        self.producers.push((node, at));
        self
    }

    /// The node to blame for the last refusal.
    pub(super) fn fault(&self) -> ValueId {
        self.fault.unwrap_or(self.node)
    }

    /// The scalar of a value at coordinates of its tensor.
    pub(super) fn value(&mut self, value: ValueId, at: Vec<Index>) -> Entered {
        let key = (value, at, self.guard.clone());
        if let Some(&scalar) = self.memo.get(&key) {
            return Ok(scalar);
        }
        let (_, at, _) = &key;
        let node = &self.graph[value];
        let scalar = if !self.inside.contains(value) {
            self.load(value, Index::linear(self.rank, at, &node.ty.shape), node.ty.dtype)
        } else if self.depth == DEEPEST {
            self.fault.get_or_insert(value);
            return Err(Refusal::Because("it would be computed from too many others in a row"));
        } else {
            let outer = std::mem::replace(&mut self.node, value);
            self.depth += 1;
            let entered = match self.stored_under_reshape(value) {
                // A reshape of what lies dense in memory is the same offset.
                Some(stored) => {
                    Ok(self.load(stored, Index::linear(self.rank, at, &node.ty.shape), node.ty.dtype))
                }
                None => node.op.enter(self, at),
            };
            self.depth -= 1;
            self.blame(&entered, value);
            self.node = outer;
            entered?
        };
        if self.guard.is_empty() {
            self.visited.entry(value).or_insert_with(|| (at.clone(), scalar));
        }
        self.memo.insert(key, scalar);
        Ok(scalar)
    }

    /// Bounds keep a load inside its tensor. One that does not move along the axes that they are about, and never leaves its tensor, needs
    /// none: so what a channel has in common is read without them, where its image is padded.
    fn load(&mut self, value: ValueId, index: Index, dtype: DType) -> Scalar {
        let buffer = BufferId(value.index() as u32);
        let moves = |bound: &Bound| {
            let mut strides = index.strides.iter().zip(&bound.coordinate.strides);
            strides.any(|(&own, &of_bound)| own != 0 && of_bound != 0)
        };
        let (low, high) = index.range(&self.space.extents());
        let is_inside = low >= 0 && high < self.graph[value].ty.elements() as i64;
        let guard = if is_inside && !self.guard.iter().any(moves) { vec![] } else { self.guard.clone() };
        self.region.push(InstrKind::Load { buffer, index, guard }, dtype)
    }

    /// The value in memory that a chain of reshapes shows.
    fn stored_under_reshape(&self, value: ValueId) -> Option<ValueId> {
        let mut value = value;
        while self.inside.contains(value) {
            let node = &self.graph[value];
            let Op::Reshape(_) = node.op else { return None };
            value = node.operands[0];
        }
        Some(value)
    }

    /// Whether an index takes several values along the axes of a role, by itself or by what is looked up for it.
    pub(super) fn varies(&self, index: &Index, role: Role) -> bool {
        let (axes, extents) = (self.space.axes_of(role), self.space.extents());
        let domain = Domain { axes: extents, ..self.space.domain() };
        let looked_up =
            || index.indirect.iter().any(|term| self.region.varies(term.value, axes.clone(), &domain));
        self.space.strides_along(index, role) || looked_up()
    }

    /// Notes where a refusal arose: the operand that had better be in memory.
    fn blame(&mut self, entered: &Entered, value: ValueId) {
        if entered.is_err() && self.fault.is_none() {
            let operand = self.graph[value].operands.iter().find(|operand| self.inside.contains(**operand));
            self.fault = Some(*operand.unwrap_or(&value));
        }
    }

    /// The coordinates of a reduction's operand, from those of its result and of the summed elements.
    fn reduced_coordinates(&self, reduce: &Reduce, kept: &[Index], summed: Vec<Index>) -> Vec<Index> {
        let rank = kept.len() + summed.len();
        let mut at = vec![Index::constant(self.rank, 0); rank];
        reduce.kept(rank).into_iter().zip(kept).for_each(|(axis, index)| at[axis] = index.clone());
        reduce.axes.iter().zip(summed).for_each(|(&axis, index)| at[axis] = index);
        at
    }

    /// The columns (or rows) of the domain, as coordinates of axes of these extents.
    fn spread(&self, axes: std::ops::Range<usize>, extents: &[usize]) -> Result<Vec<Index>, Refusal> {
        let all = self.space.extents();
        let at: Vec<_> = axes.clone().map(|axis| Index::axis(self.rank, axis)).collect();
        if all[axes.clone()].iter().product::<usize>() != extents.iter().product::<usize>() {
            return Err(Refusal::Because("a reduction over another number of elements"));
        }
        kernfusion_ir::kernel::reshaped(self, &at, &all[axes], extents)
    }

    /// A reduction across the rows, whose operand has coordinates `at`.
    pub(super) fn reduce_rows(&mut self, node: ValueId, reduce: &Reduce, at: Vec<Index>) -> Entered {
        let operand = self.graph[node].operands[0];
        if !self.are_rows(&reduce.axes, &at, &self.graph[operand].ty.shape) {
            return Err(Refusal::Because("a reduction over other elements than the rows"));
        }
        let value = self.value(operand, at)?;
        let kind = InstrKind::Reduce(reduce.op, Direction::Rows, value);
        Ok(self.region.push(kind, self.graph[node].ty.dtype))
    }

    /// Whether the coordinates of these axes of a tensor run over each of their elements once as the row does.
    fn are_rows(&self, axes: &[usize], at: &[Index], shape: &[usize]) -> bool {
        let places: Vec<_> = axes.iter().map(|&axis| at[axis].clone()).collect();
        let extents: Vec<_> = axes.iter().map(|&axis| shape[axis]).collect();
        let (rows, mut domain) = (self.space.domain().row_axes(), self.space.extents());
        domain
            .iter_mut()
            .enumerate()
            .filter(|(axis, _)| !rows.contains(axis))
            .for_each(|(_, extent)| *extent = 1);
        Index::linear(self.rank, &places, &extents).fills(&domain, extents.iter().product())
    }
}

impl KernelWriter for Writer<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn operand_type(&self, slot: usize) -> TensorType {
        self.graph[self.graph[self.node].operands[slot]].ty.clone()
    }

    fn result_type(&self) -> TensorType {
        self.graph[self.node].ty.clone()
    }

    fn operand(&mut self, slot: usize, at: Vec<Index>) -> Entered {
        self.value(self.graph[self.node].operands[slot], at)
    }

    fn guarded(&mut self, slot: usize, at: Vec<Index>, bounds: &[Bound]) -> Entered {
        let outside = self.guard.len();
        self.guard.extend_from_slice(bounds);
        let entered = self.operand(slot, at);
        self.guard.truncate(outside);
        entered
    }

    fn push(&mut self, kind: InstrKind, dtype: DType) -> Scalar {
        self.region.push(kind, dtype)
    }

    fn divide(&self, at: &Index, by: usize) -> Result<(Index, Index), Refusal> {
        self.space.divide(at, by)
    }

    fn reduce(&mut self, reduce: &Reduce, at: &[Index]) -> Entered {
        if !self.guard.is_empty() {
            return Err(Refusal::Because("a reduction inside a padded range"));
        }
        if at.iter().any(|index| self.varies(index, Role::Column)) {
            return Err(Refusal::Because("a reduction is read at another element of its own row"));
        }
        let domain = self.space.domain();
        let shape = self.operand_type(0).shape;
        let extents: Vec<_> = reduce.axes.iter().map(|&axis| shape[axis]).collect();
        let summed = self.spread(domain.column_axes(), &extents)?;
        let operand = self.reduced_coordinates(reduce, at, summed);
        let value = self.operand(0, operand)?;
        let dtype = self.result_type().dtype;
        Ok(self.region.push(InstrKind::Reduce(reduce.op, Direction::Columns, value), dtype))
    }

    fn product(&mut self, at: &[Index]) -> Entered {
        let Some(number) = self.producers.iter().position(|(node, _)| *node == self.node) else {
            return Err(Refusal::Because("a contraction feeds this kernel from memory only"));
        };
        let place = &self.producers[number].1;
        let is_there = place.iter().zip(at).all(|(place, at)| self.space.same(place, at));
        if !is_there || !self.guard.is_empty() {
            return Err(Refusal::Because("a product is read at other entries"));
        }
        Ok(self.region.push(InstrKind::Producer(number), self.graph[self.node].ty.dtype))
    }
}

/// Whether a value costs nothing to compute again wherever it is read, views aside: it depends on no tensor in
/// memory.
pub(super) fn is_generated(graph: &Graph, generated: &[bool], id: ValueId, eager: bool) -> bool {
    let node = &graph[id];
    let inputs = || node.operands.iter().all(|operand| generated[operand.index()]);
    let costly = match &node.op {
        Op::Unary(op) => super::cost::is_costly_unary(*op),
        Op::Binary(op) => *op == kernfusion_ir::Binary::Pow,
        _ => false,
    };
    match node.op.entry() {
        KernelEntry::Input => node.ty.elements() == 1,
        KernelEntry::Generated => (!eager || matches!(node.op, Op::Constant(_))) && inputs(),
        KernelEntry::View => inputs(),
        KernelEntry::Scalar => !eager && inputs() && (!costly || node.ty.elements() == 1),
        KernelEntry::Movement
        | KernelEntry::Reduction
        | KernelEntry::Contraction
        | KernelEntry::Scatter
        | KernelEntry::Loop
        | KernelEntry::Collective => false,
    }
}
