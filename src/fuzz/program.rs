//! Random programs: all ops and dtypes, extents beside every boundary that generated code has, idioms of real models, and
//! their gradients.
//!
//! A program is written and evaluated at once ([`running_error`]): an op whose result is not finite, or of which too little would be
//! known, is not taken and another one is drawn. So inputs need not be adjusted afterwards, and every program has results that can
//! be judged.

use super::idiom;
use kernfusion_ir::evaluate::{Array, Precision};
use kernfusion_ir::running_error::{Approximate, running_error};
use kernfusion_ir::samples::Draws;
use kernfusion_ir::{
    Binary, Broadcast, Cast, Compare, Concat, Constant, DType, DotGeneral, DynamicSlice, DynamicUpdate,
    Gather, Graph, Input, InputRole, Iota, KernelEntry, Literal, Op, Origin, Pad, Permute, RandomBits,
    Reduce, ReduceOp, Reshape, ScatterAdd, Select, Slice, Tensor, TensorType, Unary, ValueId,
};
use kernfusion_passes::grad;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A program with inputs, and what is known of its values.
#[derive(Debug, Clone)]
pub struct Case {
    /// The program.
    pub graph: Graph,
    /// A tensor for each input and each state.
    pub inputs: BTreeMap<String, Tensor>,
}

/// Extents on both sides of what code is made for: vectors of 4, 8 and 16 lanes, register tiles of 14 and 6 rows or 32 and 64
/// columns, pairs and blocks of k, runs of tile primitives (512), cache blocks, tiles of AMX (16 × 64 bytes).
const EXTENTS: [usize; 46] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 23, 24, 28, 31, 32, 33, 42, 47, 48, 49, 63, 64, 65,
    95, 96, 97, 127, 128, 129, 160, 161, 255, 256, 257, 383, 384, 385, 511, 512, 513, 1025,
];

/// How large a program is.
#[derive(Debug, Clone, Copy)]
struct Size {
    /// Nodes, before gradients.
    nodes: usize,
    /// Elements of a tensor.
    elements: usize,
    /// Steps of the evaluator.
    work: usize,
}

/// Most programs are small; one in 2000 has tensors of a million elements.
fn size(draws: &mut Draws) -> Size {
    match draws.below(2000) {
        0 => Size { nodes: 8, elements: 1 << 20, work: 12 << 20 },
        1..=40 => Size { nodes: 16, elements: 1 << 16, work: 2 << 20 },
        41..=300 => Size { nodes: 20, elements: 1 << 13, work: 1 << 18 },
        _ => Size { nodes: 4 + draws.below(13), elements: 1 << 10, work: 1 << 16 },
    }
}

/// The program of a seed.
pub fn program(seed: u64) -> Case {
    let Author { graph, inputs, .. } = written(seed);
    Case { graph, inputs }
}

fn written(seed: u64) -> Author {
    let mut draws = Draws::new(seed);
    let size = size(&mut draws);
    let count = 2 + draws.below(3);
    let mut extents: Vec<_> = (0..count).map(|_| *draws.choose(&EXTENTS)).collect();
    extents.retain(|&extent| extent <= size.elements);
    if extents.is_empty() {
        extents.push(1);
    }
    // One in fifty has an axis without elements.
    if draws.below(50) == 0 {
        extents.push(0);
    }
    let dtypes = [DType::F32, DType::F32, DType::F32, DType::F32, DType::BF16, DType::F16, DType::F64];
    let dtype = *draws.choose(&dtypes);
    let graph = Graph::new(format!("random {seed}"));
    let (inputs, values, idioms) = (BTreeMap::new(), vec![], BTreeSet::new());
    let mut author = Author { graph, draws, size, extents, dtype, inputs, values, work: 0, idioms };
    author.write();
    author
}

/// Inputs of any program: floats between −2 and 2, whole numbers from −2 to 20.
pub fn inputs(graph: &Graph, seed: u64) -> BTreeMap<String, Tensor> {
    let mut draws = Draws::new(seed);
    let mut tensor = |ty: &TensorType| {
        let range = if ty.dtype.is_float() { -2.0..2.0 } else { -2.0..21.0 };
        let values: Vec<_> = (0..ty.elements()).map(|_| number(&mut draws, ty.dtype, &range)).collect();
        Tensor::from_f64(ty, &values)
    };
    graph.inputs().map(|(id, name, _)| (name.to_string(), tensor(&graph[id].ty))).collect()
}

/// A number of a range as a dtype has it.
fn number(draws: &mut Draws, dtype: DType, range: &Range<f64>) -> f64 {
    match dtype {
        DType::Bool => draws.below(2) as f64,
        dtype if dtype.is_float() => draws.between(range.start, range.end),
        DType::U32 => draws.between(range.start.max(0.0), range.end).floor(),
        DType::I32 | DType::I8 => draws.between(range.start, range.end).floor(),
        _ => unreachable!("floats were seen"),
    }
}

/// Writes a program.
pub(super) struct Author {
    pub(super) graph: Graph,
    pub(super) draws: Draws,
    size: Size,
    /// What axes are made of, so that tensors fit together.
    extents: Vec<usize>,
    /// What most floats are.
    pub(super) dtype: DType,
    inputs: BTreeMap<String, Tensor>,
    values: Vec<Approximate>,
    work: usize,
    /// Idioms that were written to their end.
    idioms: BTreeSet<&'static str>,
}

/// An op and its operands; `None` if the draw does not fit.
type Drawn = Option<(Op, Vec<ValueId>)>;

/// Magnitudes beyond this are not computed further.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1e3,
        DType::F32 | DType::BF16 | DType::F64 => 1e5,
        DType::I32 | DType::U32 | DType::I8 | DType::Bool => f64::INFINITY,
    }
}

impl Author {
    fn write(&mut self) {
        // One in 8 begins with an attention of several blocks of rows and columns, one in 32 with rows enough that choose matrices to be multiplied
        // together, which the others have no room for; mostly little follows that reads what lies within.
        let first = match self.draws.below(32) {
            0..=3 => Some(idiom::attention as fn(&mut Author) -> Option<ValueId>),
            4 => Some(idiom::many_rows_of_experts as _),
            _ => None,
        };
        if let Some(write) = first {
            self.size = Size { nodes: usize::MAX, elements: 1 << 15, work: 2 << 20 };
            write(self);
            self.size.nodes = self.graph.len() + self.draws.below(8);
        }
        for number in 0..2 + self.draws.below(3) {
            let shape = self.shape();
            let role = if self.draws.below(3) == 0 { InputRole::State } else { InputRole::Data };
            self.input(&format!("x{number}"), role, TensorType::new(self.dtype, shape), -2.0..2.0);
        }
        let last = self.size.nodes * 12;
        for _ in 0..last {
            if self.graph.len() >= self.size.nodes || self.work >= self.size.work {
                break;
            }
            self.step();
        }
        if self.draws.below(3) == 0 {
            self.gradients();
        }
        self.results();
    }

    /// Elements that a tensor may have.
    pub(super) fn room(&self) -> usize {
        self.size.elements
    }

    fn shape(&mut self) -> Vec<usize> {
        let rank = self.draws.below(4);
        let mut shape: Vec<usize> = vec![];
        for _ in 0..rank {
            let extents = self.extents.clone();
            let extent = *self.draws.choose(&extents);
            if shape.iter().product::<usize>() * extent <= self.size.elements {
                shape.push(extent);
            }
        }
        shape
    }

    /// A new input with numbers of a range.
    pub(super) fn input(
        &mut self,
        name: &str,
        role: InputRole,
        ty: TensorType,
        range: Range<f64>,
    ) -> ValueId {
        let values: Vec<_> = (0..ty.elements()).map(|_| number(&mut self.draws, ty.dtype, &range)).collect();
        let tensor = Tensor::from_f64(&ty, &values);
        let array = Array { ty: ty.clone(), values: tensor.to_f64() };
        self.inputs.insert(name.into(), tensor);
        self.values.push(Approximate::exact(array));
        let op = Input { name: name.into(), role, ty };
        self.graph.add(op, &[], Origin::default()).expect("an input is well typed")
    }

    /// A new data input that has no name yet.
    pub(super) fn data(&mut self, dtype: DType, shape: &[usize], range: Range<f64>) -> ValueId {
        let name = format!("in{}", self.graph.len());
        self.input(&name, InputRole::Data, TensorType::new(dtype, shape), range)
    }

    /// A new parameter.
    pub(super) fn parameter(&mut self, dtype: DType, shape: &[usize], range: Range<f64>) -> ValueId {
        let name = format!("parameter{}", self.graph.len());
        self.input(&name, InputRole::State, TensorType::new(dtype, shape), range)
    }

    /// Appends an op if its result is worth it.
    pub(super) fn add(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Option<ValueId> {
        let op = op.into();
        let types: Vec<_> = operands.iter().map(|operand| &self.graph[*operand].ty).collect();
        let ty = op.infer(&types).ok()?;
        let work = work(&op, &types, &ty);
        if ty.elements() > self.size.elements || ty.rank() > 6 || self.work + work > 2 * self.size.work {
            return None;
        }
        let value = self.evaluated(&op, operands, &ty);
        if !is_worth_it(&value) {
            return None;
        }
        self.work += work;
        self.values.push(value);
        let scope = format!("layer.{}", self.graph.len() / 8);
        Some(self.graph.add(op, operands, Origin::new(None, scope)).expect("its type was inferred"))
    }

    fn evaluated(&self, op: &Op, operands: &[ValueId], ty: &TensorType) -> Approximate {
        let operands: Vec<_> = operands.iter().map(|operand| &self.values[operand.index()]).collect();
        running_error(op, &operands, ty, Precision::Declared).expect("bodies are valid")
    }

    pub(super) fn ty(&self, value: ValueId) -> TensorType {
        self.graph[value].ty.clone()
    }

    pub(super) fn any(&mut self) -> ValueId {
        ValueId::from_index(self.draws.below(self.graph.len()))
    }

    /// A value of which this holds, if there is one.
    pub(super) fn one_where(&mut self, holds: impl Fn(&TensorType) -> bool) -> Option<ValueId> {
        let fitting: Vec<_> = self.graph.ids().filter(|id| holds(&self.graph[*id].ty)).collect();
        if fitting.is_empty() { None } else { Some(*self.draws.choose(&fitting)) }
    }

    /// A value of this type: one that is there, else a new input.
    pub(super) fn like(&mut self, ty: &TensorType) -> ValueId {
        let found = if self.draws.below(4) == 0 { None } else { self.one_where(|other| other == ty) };
        found.unwrap_or_else(|| {
            let range = if ty.dtype.is_float() { -1.5..1.5 } else { -4.0..20.0 };
            self.data(ty.dtype, &ty.shape, range)
        })
    }

    /// A tensor of one number, as the dtype has it.
    pub(super) fn full(&mut self, value: f64, ty: &TensorType) -> Option<ValueId> {
        let constant = Constant { value: Literal::new(ty.dtype.round(value)), dtype: ty.dtype };
        let scalar = self.add(constant, &[])?;
        if ty.rank() == 0 { Some(scalar) } else { self.broadcast(scalar, &ty.shape, &[]) }
    }

    pub(super) fn broadcast(&mut self, x: ValueId, shape: &[usize], axes: &[usize]) -> Option<ValueId> {
        self.add(Broadcast { shape: shape.to_vec(), axes: axes.to_vec() }, &[x])
    }

    pub(super) fn scale(&mut self, x: ValueId, factor: f64) -> Option<ValueId> {
        let factor = self.full(factor, &self.ty(x))?;
        self.add(Binary::Mul, &[x, factor])
    }

    fn step(&mut self) {
        let x = self.any();
        let drawn = match self.draws.below(26) {
            0 | 1 => self.unary(x),
            2..=4 => self.binary(x),
            5 => self.compare(x),
            6 => self.select(x),
            7 => self.cast(x),
            8 | 9 => self.reduce(x),
            10 => self.reshape(x),
            11 => self.permute(x),
            12 => self.spread(x),
            13 => self.slice(x),
            14 => self.pad(x),
            15 => self.concat(x),
            16 | 17 => self.product(x),
            18 => self.gather(x),
            19 => self.scatter(x),
            20 => self.dynamic(x),
            21 => self.generated(),
            _ => {
                let written = idiom::write(self, x);
                self.idioms.extend(written);
                None
            }
        };
        if let Some((op, operands)) = drawn {
            self.add(op, &operands);
        }
    }

    fn unary(&mut self, x: ValueId) -> Drawn {
        Some(((*self.draws.choose(&Unary::ALL)).into(), vec![x]))
    }

    fn binary(&mut self, x: ValueId) -> Drawn {
        let y = self.like(&self.ty(x));
        Some(((*self.draws.choose(&Binary::ALL)).into(), vec![x, y]))
    }

    fn compare(&mut self, x: ValueId) -> Drawn {
        let y = self.like(&self.ty(x));
        Some(((*self.draws.choose(&Compare::ALL)).into(), vec![x, y]))
    }

    fn select(&mut self, x: ValueId) -> Drawn {
        let ty = self.ty(x);
        let condition = self.like(&ty.with_dtype(DType::Bool));
        let y = self.like(&ty);
        Some((Select.into(), vec![condition, x, y]))
    }

    fn cast(&mut self, x: ValueId) -> Drawn {
        Some((Cast { dtype: *self.draws.choose(&DType::ALL) }.into(), vec![x]))
    }

    fn reduce(&mut self, x: ValueId) -> Drawn {
        let rank = self.ty(x).rank();
        let axes = (0..rank).filter(|_| self.draws.below(2) == 1).collect();
        Some((Reduce { op: *self.draws.choose(&ReduceOp::ALL), axes }.into(), vec![x]))
    }

    fn reshape(&mut self, x: ValueId) -> Drawn {
        let mut rest = self.ty(x).elements();
        let mut shape = vec![];
        while rest > 1 && shape.len() < 4 {
            let divisors: Vec<_> =
                (1..=rest.min(512)).filter(|divisor| rest.is_multiple_of(*divisor)).collect();
            let extent = *self.draws.choose(&divisors);
            shape.push(extent);
            rest /= extent;
        }
        shape.push(rest);
        Some((Reshape { shape }.into(), vec![x]))
    }

    fn permute(&mut self, x: ValueId) -> Drawn {
        let mut axes: Vec<_> = (0..self.ty(x).rank()).collect();
        for last in (1..axes.len()).rev() {
            axes.swap(last, self.draws.below(last + 1));
        }
        Some((Permute { axes }.into(), vec![x]))
    }

    fn spread(&mut self, x: ValueId) -> Drawn {
        let (mut shape, mut axes) = (vec![], vec![]);
        let extents = self.extents.clone();
        for extent in self.ty(x).shape {
            if self.draws.below(3) == 0 {
                shape.push(*self.draws.choose(&extents));
            }
            axes.push(shape.len());
            shape.push(extent);
        }
        if self.draws.below(2) == 0 {
            shape.push(*self.draws.choose(&extents));
        }
        Some((Broadcast { shape, axes }.into(), vec![x]))
    }

    fn slice(&mut self, x: ValueId) -> Drawn {
        let shape = self.ty(x).shape;
        let start: Vec<_> = shape.iter().map(|&extent| self.draws.below(extent.max(1))).collect();
        let mut size = |(start, extent): (&usize, &usize)| self.draws.below(extent - start.min(extent) + 1);
        let end = start.iter().zip(&shape).map(|part| part.0 + size(part)).collect::<Vec<_>>();
        // Parts without elements are rare.
        let is_empty = start.iter().zip(&end).any(|(start, end)| start == end);
        (!is_empty || self.draws.below(16) == 0).then(|| (Slice { start, end }.into(), vec![x]))
    }

    fn pad(&mut self, x: ValueId) -> Drawn {
        let rank = self.ty(x).rank();
        let mut around = || (0..rank).map(|_| [0, 0, 1, 3, 4, 17][self.draws.below(6)]).collect::<Vec<_>>();
        let (low, high) = (around(), around());
        let value = Literal::new(self.draws.below(2) as f64);
        Some((Pad { low, high, value }.into(), vec![x]))
    }

    fn concat(&mut self, x: ValueId) -> Drawn {
        let ty = self.ty(x);
        let axis = self.draws.below(ty.rank().max(1));
        let fits = |other: &TensorType| {
            let alike = || (0..ty.rank()).all(|i| i == axis || other.shape[i] == ty.shape[i]);
            other.dtype == ty.dtype && other.rank() == ty.rank() && alike()
        };
        let mut operands = vec![x];
        for _ in 0..1 + self.draws.below(3) {
            operands.push(self.one_where(fits)?);
        }
        Some((Concat { axis }.into(), operands))
    }

    /// A product over one or two axes of each operand, perhaps with a batch axis.
    fn product(&mut self, x: ValueId) -> Drawn {
        let ty = self.ty(x);
        let y = self.one_where(|other| {
            other.dtype == ty.dtype && other.shape.iter().any(|extent| ty.shape.contains(extent))
        })?;
        let other = self.ty(y);
        let mut pairs: Vec<_> = (0..ty.rank())
            .flat_map(|i| (0..other.rank()).map(move |j| (i, j)))
            .filter(|&(i, j)| ty.shape[i] == other.shape[j])
            .collect();
        let (mut contract, mut batch) = (vec![], vec![]);
        for number in 0..3 {
            if pairs.is_empty() || number > 0 && self.draws.below(2) == 0 {
                break;
            }
            let (i, j) = *self.draws.choose(&pairs);
            pairs.retain(|&(k, l)| k != i && l != j);
            if number > 0 && self.draws.below(3) > 0 { &mut batch } else { &mut contract }.push((i, j));
        }
        let [left, right] = [|pair: &(usize, usize)| pair.0, |pair: &(usize, usize)| pair.1];
        let wide = matches!(ty.dtype, DType::BF16 | DType::F16) && self.draws.below(2) == 0;
        let dot = DotGeneral {
            lhs_batch: batch.iter().map(left).collect(),
            rhs_batch: batch.iter().map(right).collect(),
            lhs_contract: contract.iter().map(left).collect(),
            rhs_contract: contract.iter().map(right).collect(),
            dtype: if wide { DType::F32 } else { ty.dtype },
        };
        Some((dot.into(), vec![x, y]))
    }

    /// Whole numbers as indices, some of them outside of a table.
    pub(super) fn indices(&mut self, shape: &[usize], extent: usize) -> ValueId {
        self.data(DType::I32, shape, -2.0..extent as f64 + 2.0)
    }

    fn gather(&mut self, x: ValueId) -> Drawn {
        let ty = self.ty(x);
        let axis = self.draws.below(ty.rank().max(1));
        let extent = *ty.shape.get(axis)?;
        let known = self.one_where(|other| other.dtype == DType::I32 && other.rank() <= 2);
        let shape: Vec<_> = self.shape().into_iter().take(2).collect();
        let indices =
            known.filter(|_| self.draws.below(2) == 0).unwrap_or_else(|| self.indices(&shape, extent));
        Some((Gather { axis }.into(), vec![x, indices]))
    }

    fn scatter(&mut self, x: ValueId) -> Drawn {
        let ty = self.ty(x);
        let axis = self.draws.below(ty.rank() + 1);
        let rank = self.draws.below(ty.rank() - axis + 1).min(2);
        let extents = self.extents.clone();
        let extent = *self.draws.choose(&extents);
        let indices = self.indices(&ty.shape[axis..axis + rank], extent);
        Some((ScatterAdd { axis, extent }.into(), vec![indices, x]))
    }

    /// A dynamic slice, or a dynamic update, perhaps of a state that takes the result.
    fn dynamic(&mut self, x: ValueId) -> Drawn {
        let ty = self.ty(x);
        let sizes: Vec<_> =
            ty.shape.iter().map(|&extent| extent.min(1 + self.draws.below(extent.max(1)))).collect();
        let mut operands = vec![x];
        let update = self.draws.below(2) == 0;
        if update {
            let part = self.like(&ty.with_shape(sizes.clone()));
            operands.push(part);
        }
        for axis in 0..ty.rank() {
            let range = -2.0..ty.shape[axis] as f64 + 2.0;
            let start = self.one_where(|other| *other == TensorType::scalar(DType::I32));
            let start = start.filter(|_| self.draws.below(2) == 0);
            let start = start.unwrap_or_else(|| self.data(DType::I32, &[], range));
            operands.push(start);
        }
        let op: Op = if update { DynamicUpdate.into() } else { DynamicSlice { sizes }.into() };
        Some((op, operands))
    }

    fn generated(&mut self) -> Drawn {
        let shape = self.shape();
        if self.draws.below(2) == 0 {
            let dtype = *self.draws.choose(&[DType::I32, DType::F32, DType::U32]);
            let axis = self.draws.below(shape.len().max(1));
            return Some((Iota { ty: TensorType::new(dtype, shape), axis }.into(), vec![]));
        }
        self.random_bits(&shape).map(|_| ())?;
        None
    }

    /// Random bits under a seed and a step that are constants or inputs.
    pub(super) fn random_bits(&mut self, shape: &[usize]) -> Option<ValueId> {
        let scalar = TensorType::scalar(DType::U32);
        let word = |this: &mut Self| match this.draws.below(2) {
            0 => {
                let value = this.draws.below(9) as f64;
                this.full(value, &scalar)
            }
            _ => Some(this.data(DType::U32, &[], 0.0..100.0)),
        };
        let (seed, step) = (word(self)?, word(self)?);
        let op = RandomBits { node: self.draws.word(), shape: shape.to_vec(), parts: 1 };
        self.add(op, &[seed, step])
    }

    /// The gradients of a sum of some values by all inputs of floats.
    fn gradients(&mut self) {
        let mut loss: Option<ValueId> = None;
        for id in self.graph.ids().collect::<Vec<_>>() {
            let ty = self.ty(id);
            if ty.dtype != DType::F32 || !self.graph.users(id).is_empty() || self.draws.below(4) == 0 {
                continue;
            }
            let axes = (0..ty.rank()).collect();
            let sum = self.add(Reduce { op: ReduceOp::Sum, axes }, &[id]);
            loss = match (loss, sum) {
                (Some(loss), Some(sum)) => self.add(Binary::Add, &[loss, sum]),
                (loss, sum) => loss.or(sum),
            };
        }
        let Some(loss) = loss else { return };
        let wrt: Vec<_> = self.graph.inputs().map(|(id, ..)| id).collect();
        let wrt: Vec<_> = wrt.into_iter().filter(|&id| self.graph[id].ty.dtype.is_float()).collect();
        let Ok(gradients) = grad(&mut self.graph, loss, &wrt, &BTreeSet::new()) else { return };
        for (number, &gradient) in gradients.iter().enumerate() {
            self.graph.output(format!("gradient{number}"), gradient);
        }
    }

    /// Unused values become outputs; in half of the programs, some others do as well. Some of them are new values of states of
    /// their type.
    fn results(&mut self) {
        let hides = self.draws.below(2) == 0;
        let updated = |name: &str| self.graph.outputs().iter().any(|it| it.updates_state && it.name == name);
        let states =
            self.graph.inputs().filter(|(_, name, role)| *role == InputRole::State && !updated(name));
        let mut states: Vec<_> = states.map(|(id, name, _)| (id, name.to_string())).collect();
        for id in self.graph.ids().collect::<Vec<_>>() {
            let is_result = self.graph.outputs().iter().any(|output| output.value == id);
            let used = is_result || !self.graph.users(id).is_empty();
            if used && (hides || self.draws.below(12) > 0)
                || is_result && matches!(self.graph[id].op, Op::Input(_))
            {
                continue;
            }
            let fits =
                |(state, _): &(ValueId, String)| *state != id && self.graph[*state].ty == self.graph[id].ty;
            match states.iter().position(fits) {
                Some(at) if self.draws.below(2) == 0 => self.graph.update(states.remove(at).1, id),
                _ => self.graph.output(format!("y{}", id.index()), id),
            }
        }
    }
}

/// Steps that the evaluator takes for an op.
fn work(op: &Op, operands: &[&TensorType], ty: &TensorType) -> usize {
    let moved = operands.iter().map(|ty| ty.elements()).sum::<usize>() + ty.elements();
    match op {
        Op::DotGeneral(dot) => {
            let terms: usize = dot.lhs_contract.iter().map(|&axis| operands[0].shape[axis]).product();
            moved + ty.elements() * terms
        }
        Op::Scan(scan) => {
            moved
                + scan.length
                    * scan.body.graph().ids().map(|id| scan.body.graph()[id].ty.elements()).sum::<usize>()
                    * 4
        }
        op if op.entry() == KernelEntry::Scalar => ty.elements(),
        _ => moved,
    }
}

/// Whether numbers are of a size to go on with, and nearly all known to some digits.
fn is_worth_it(value: &Approximate) -> bool {
    let dtype = value.array.ty.dtype;
    let numbers = value.array.values.iter().zip(&value.error);
    let is_known = |(x, error): (&f64, &f64)| {
        // An infinity is one of a mask; what is added to it does not change it.
        let is_masked = x.is_infinite() && error.is_finite();
        *error == 0.0 || is_masked || x.abs() <= largest(dtype) && *error <= 0.02 * (x.abs() + 0.1)
    };
    let unknown = numbers.clone().filter(|&(x, error)| !is_known((x, error))).count();
    let nan = value.array.values.iter().any(|x| x.is_nan());
    !nan && unknown * 16 <= value.error.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_idiom_is_written_to_its_end() {
        let mut times: BTreeMap<_, usize> = idiom::IDIOMS.iter().map(|(name, _)| (*name, 0)).collect();
        for seed in 0..2000 {
            written(seed).idioms.iter().for_each(|name| *times.get_mut(name).expect("a name") += 1);
        }
        assert!(times.values().all(|times| *times > 4), "{times:?}");
    }
}
