//! The reference for kernel IR: slow and obvious, in `f64`, one instruction after another over all points.
//!
//! It tells a wrong plan from a wrong back end: a plan is right if its interpretation equals the graph's evaluation, a
//! back end if its results equal the interpretation.

use super::{
    Bound, Buffer, BufferId, BufferRole, CollectiveCall, Consumer, Contraction, Direction, Domain, Form,
    Index, Instr, InstrKind, Kernel, KernelGraph, Loop, Operand, Product, Region, Scalar, StoreMode, Window,
};
use crate::evaluate::{Array, Precision, for_each_position, room};
use crate::{Cast, DType, IrError, Op, ReduceOp, Result, Select, TensorType, random};
use std::collections::{BTreeMap, HashMap};

/// The values of buffers by number.
type Memory = Vec<Vec<f64>>;

/// Runs all kernels: outputs by name, then the new value of each updated state under the state's name.
///
/// # Errors
/// If an input is missing, or memory is short.
///
/// # Panics
/// If the graph breaks an invariant of kernel IR, such as an index outside its buffer.
pub fn interpret(
    graph: &KernelGraph,
    inputs: &BTreeMap<String, Array>,
    precision: Precision,
) -> Result<BTreeMap<String, Array>> {
    let mut interpreter = Interpreter::new(graph, inputs, precision)?;
    (0..graph.kernels.len()).try_for_each(|kernel| interpreter.run(kernel))?;
    Ok(interpreter.results())
}

/// An interpretation that can be looked at, and changed, between two kernels.
pub struct Interpreter<'g> {
    graph: &'g KernelGraph,
    memory: Memory,
    precision: Precision,
}

impl<'g> Interpreter<'g> {
    /// Before the first kernel; inputs and states by name.
    ///
    /// # Errors
    /// If one is missing, or memory is short for the buffers and what the largest kernel computes.
    pub fn new(
        graph: &'g KernelGraph,
        inputs: &BTreeMap<String, Array>,
        precision: Precision,
    ) -> Result<Self> {
        let buffers = graph.buffers.iter().map(|buffer| buffer.ty.elements());
        let kernels =
            graph.kernels.iter().filter(|kernel| writes(graph, kernel)).map(words).max().unwrap_or(0);
        room(buffers.fold(kernels, usize::saturating_add))?;
        let first = |buffer: &Buffer| match (buffer.role, inputs.get(&buffer.name)) {
            (BufferRole::Temporary, _) => Ok(vec![f64::NAN; buffer.ty.elements()]),
            (_, Some(array)) => Ok(array.values.clone()),
            (_, None) => Err(IrError::Input { name: buffer.name.clone(), reason: "is missing".into() }),
        };
        let memory = graph.buffers.iter().map(first).collect::<Result<Memory>>()?;
        Ok(Interpreter { graph, memory, precision })
    }

    /// Runs the kernel of this number.
    ///
    /// # Errors
    /// If the body of a loop is not given what it reads.
    ///
    /// # Panics
    /// As [`interpret`].
    pub fn run(&mut self, kernel: usize) -> Result<()> {
        let kernel = &self.graph.kernels[kernel];
        match &kernel.form {
            Form::Loop(repeated) => iterations(repeated, &mut self.memory, self.precision),
            Form::Collective(call) => exchange(self.graph, call, &mut self.memory, self.precision),
            Form::Map | Form::Reduce | Form::Contraction(_) => {
                run(self.graph, kernel, &mut self.memory, self.precision);
                Ok(())
            }
        }
    }

    /// What a buffer holds now.
    pub fn get(&self, buffer: BufferId) -> &[f64] {
        &self.memory[buffer.0 as usize]
    }

    /// Lets a buffer hold these values, as many as it has elements.
    pub fn set(&mut self, buffer: BufferId, values: Vec<f64>) {
        self.memory[buffer.0 as usize] = values;
    }

    fn results(&self) -> BTreeMap<String, Array> {
        let value =
            |buffer: BufferId, ty: &TensorType| Array { ty: ty.clone(), values: self.get(buffer).to_vec() };
        let outputs = self.graph.outputs.iter().map(|(name, buffer, ty)| (name.clone(), value(*buffer, ty)));
        let updates = self.graph.updates.iter().map(|(state, new)| {
            let state = self.graph.buffer(*state);
            (state.name.clone(), value(*new, &state.ty))
        });
        outputs.chain(updates).collect()
    }
}

/// What a rank exchanges that is alone.
fn exchange(
    graph: &KernelGraph,
    call: &CollectiveCall,
    memory: &mut Memory,
    precision: Precision,
) -> Result<()> {
    if call.op.ranks != 1 {
        return Err(IrError::Ranks { ranks: call.op.ranks, given: 1 });
    }
    let operand =
        Array { ty: graph.buffer(call.from).ty.clone(), values: memory[call.from.0 as usize].clone() };
    let mut result = call.op.exchanged(&[&operand]).swap_remove(0);
    result.iter_mut().for_each(|x| *x = precision.round(operand.ty.dtype, *x));
    memory[call.to.0 as usize] = result;
    Ok(())
}

/// The words that interpreting a kernel takes: the coordinates of all points, and the values of all instructions there.
fn words(kernel: &Kernel) -> usize {
    let axes = &kernel.domain.axes;
    let points = axes.iter().fold(1usize, |points, &extent| points.saturating_mul(extent.max(1)));
    points.saturating_mul(3 + axes.len() + kernel.region.instrs.len())
}

/// Runs a loop: its body is given what it reads by name.
fn iterations(repeated: &Loop, memory: &mut Memory, precision: Precision) -> Result<()> {
    let body = repeated.graph();
    let array = |inner: BufferId, values: &[f64]| {
        let buffer = body.buffer(inner);
        (buffer.name.clone(), Array { ty: buffer.ty.clone(), values: values.to_vec() })
    };
    let mut carried: Vec<_> = repeated.carried.iter().map(|c| memory[c.first.0 as usize].clone()).collect();
    for iteration in 0..repeated.iterations {
        let place = if repeated.reverse { repeated.iterations - 1 - iteration } else { iteration };
        let slice = |window: &Window| {
            let elements = body.buffer(window.inner).ty.elements();
            array(window.inner, &memory[window.outer.0 as usize][place * elements..][..elements])
        };
        let whole = |window: &Window| array(window.inner, &memory[window.outer.0 as usize]);
        let handed = repeated.carried.iter().zip(&carried).map(|(c, values)| array(c.inner, values));
        let slices = repeated.slices.iter().map(slice);
        let inputs = handed.chain(slices).chain(repeated.constants.iter().map(whole)).collect();
        let mut outputs = interpret(body, &inputs, precision)?;
        let mut values = body
            .outputs
            .iter()
            .map(|(name, ..)| outputs.remove(name).expect("an output of each name").values);
        carried = values.by_ref().take(carried.len()).collect();
        for (result, values) in repeated.results.iter().zip(values) {
            memory[result.0 as usize][place * values.len()..][..values.len()].copy_from_slice(&values);
        }
    }
    for (c, values) in repeated.carried.iter().zip(carried) {
        if let Some(last) = c.last {
            memory[last.0 as usize] = values;
        }
    }
    Ok(())
}

/// Whether a kernel writes any element. One that does not may have as many points as it likes along the axes that are not empty.
fn writes(graph: &KernelGraph, kernel: &Kernel) -> bool {
    kernel.writes().into_iter().any(|buffer| graph.buffer(buffer).ty.elements() > 0)
}

/// Computes every instruction at every point, then stores.
fn run(graph: &KernelGraph, kernel: &Kernel, memory: &mut Memory, precision: Precision) {
    if !writes(graph, kernel) {
        return;
    }
    let domain = &kernel.domain;
    for buffer in kernel.writes() {
        if let Some(state) = graph.buffer(buffer).continues {
            memory[buffer.0 as usize] = memory[state.0 as usize].clone();
        }
    }
    // Empty axes get one point that is not there, so that reductions of nothing still have a place.
    let padded: Vec<_> = domain.axes.iter().map(|&extent| extent.max(1)).collect();
    let points = Points::of(&[], &padded);
    let is_there = |point: &[usize]| point.iter().zip(&domain.axes).all(|(at, extent)| at < extent);
    let mut values: Vec<Vec<f64>> = vec![];
    for instr in &kernel.region.instrs {
        let mut column = match &instr.kind {
            InstrKind::Reduce(op, direction, x) => {
                reduce(*op, *direction, instr.dtype, kernel, &points, &values[x.0 as usize])
            }
            InstrKind::Producer(i) => product(&kernel.products()[*i], domain, memory, &points, precision),
            _ => column(instr, &kernel.region, memory, &points, &values, &is_there),
        };
        column.iter_mut().for_each(|x| *x = precision.round(instr.dtype, *x));
        values.push(column);
    }
    for consumer in kernel.consumers() {
        consume(kernel, consumer, &points, &values[consumer.value.0 as usize], memory, precision);
    }
    for store in kernel.stores.iter().filter(|store| store.mode == StoreMode::Add) {
        memory[store.buffer.0 as usize].fill(0.0);
    }
    // A tensor without elements is stored at no point, whatever its strides say.
    for store in kernel.stores.iter().filter(|store| graph.buffer(store.buffer).ty.elements() > 0) {
        let dtype = graph.buffer(store.buffer).ty.dtype;
        let depends = |axis: usize| {
            let varies = |value| kernel.region.varies(value, axis..axis + 1, domain);
            store.index.strides[axis] != 0 || varies(store.value)
        };
        let is_written =
            |point: &[usize]| (0..point.len()).all(|axis| point[axis] < domain.axes[axis] || !depends(axis));
        for (at, point) in points.iter().enumerate().filter(|(_, point)| is_written(point)) {
            let value = |x: Scalar| values[x.0 as usize][at];
            let element = position(&store.index, point, &value);
            let element = &mut memory[store.buffer.0 as usize][element as usize];
            *element = match store.mode {
                StoreMode::Set => value(store.value),
                StoreMode::Add => precision.round(dtype, *element + value(store.value)),
            };
        }
    }
}

/// Coordinates of points with as many axes.
struct Points {
    axes: usize,
    count: usize,
    coordinates: Vec<usize>,
}

impl Points {
    /// All of a box, row-major, each behind `prefix`.
    fn of(prefix: &[usize], extents: &[usize]) -> Self {
        let (mut coordinates, mut count) = (vec![], 0);
        for_each_position(extents, |at| {
            coordinates.extend(prefix.iter().chain(at));
            count += 1;
        });
        Points { axes: prefix.len() + extents.len(), count, coordinates }
    }

    fn get(&self, point: usize) -> &[usize] {
        &self.coordinates[point * self.axes..][..self.axes]
    }

    fn iter(&self) -> impl Iterator<Item = &[usize]> {
        (0..self.count).map(|point| self.get(point))
    }

    /// The same behind another prefix, as long as the one before.
    fn begin_with(&mut self, prefix: &[usize]) {
        for point in 0..self.count {
            self.coordinates[point * self.axes..][..prefix.len()].copy_from_slice(prefix);
        }
    }
}

fn position(index: &Index, point: &[usize], value: &dyn Fn(Scalar) -> f64) -> i64 {
    let direct = index.strides.iter().zip(point).map(|(stride, &at)| stride * at as i64);
    let indirect = index.indirect.iter().map(|term| {
        let at = value(term.value).clamp(0.0, (term.limit - 1) as f64);
        at as i64 * term.stride
    });
    index.offset + direct.chain(indirect).sum::<i64>()
}

fn hold(bounds: &[Bound], point: &[usize], value: &dyn Fn(Scalar) -> f64) -> bool {
    bounds.iter().all(|bound| (0..bound.extent as i64).contains(&position(&bound.coordinate, point, value)))
}

/// One instruction at all points, not rounded; `values` are those of the instructions before. Loads where nothing is are NaN.
fn column(
    instr: &Instr,
    region: &Region,
    memory: &Memory,
    points: &Points,
    values: &[Vec<f64>],
    is_there: &dyn Fn(&[usize]) -> bool,
) -> Vec<f64> {
    let compute = |at: usize| {
        let (point, value) = (points.get(at), |x: Scalar| values[x.0 as usize][at]);
        match &instr.kind {
            InstrKind::Coordinate(index) => position(index, point, &value) as f64,
            InstrKind::Load { .. } if !is_there(point) => f64::NAN,
            InstrKind::Load { guard, .. } if !hold(guard, point, &value) => 0.0,
            InstrKind::Load { buffer, index, .. } => {
                memory[buffer.0 as usize][position(index, point, &value) as usize]
            }
            InstrKind::Random { seed, step, node, element } => {
                let element = position(element, point, &value) as u64;
                f64::from(random::element_bits(value(*seed) as u32, *node, value(*step) as u32, element))
            }
            InstrKind::InRange(bounds) => f64::from(u8::from(hold(bounds, point, &value))),
            kind => unreachable!("{kind:?} is computed for all points at once"),
        }
    };
    let op: Op = match &instr.kind {
        InstrKind::Constant(literal) => return vec![literal.value(); points.count],
        InstrKind::Unary(op, _) => Op::Unary(*op),
        InstrKind::Binary(op, ..) => Op::Binary(*op),
        InstrKind::Compare(op, ..) => Op::Compare(*op),
        InstrKind::Select(..) => Op::Select(Select),
        InstrKind::Cast(_) => Op::Cast(Cast { dtype: instr.dtype }),
        _ => return (0..points.count).map(compute).collect(),
    };
    // By the evaluator of the op.
    let ty = |dtype: DType| TensorType::new(dtype, [points.count]);
    let array = |x: Scalar| Array { ty: ty(region.instr(x).dtype), values: values[x.0 as usize].clone() };
    let operands: Vec<_> = instr.kind.operands().into_iter().map(array).collect();
    op.eval(&operands.iter().collect::<Vec<_>>(), &ty(instr.dtype))
}

/// The result of a reduction, at every point.
fn reduce(
    op: ReduceOp,
    direction: Direction,
    dtype: DType,
    kernel: &Kernel,
    points: &Points,
    values: &[f64],
) -> Vec<f64> {
    let domain = &kernel.domain;
    let reduced = match direction {
        Direction::Columns => domain.column_axes(),
        Direction::Rows => domain.row_axes(),
    };
    // Of all points that are reduced together.
    let first = |point: &[usize]| first_of(point, &domain.axes, |axis| !reduced.contains(&axis));
    let mut results = vec![op.identity(dtype); points.count];
    for (point, &value) in points.iter().zip(values).filter(|(point, _)| counts(kernel, point)) {
        let result = &mut results[first(point)];
        *result = match op {
            ReduceOp::Sum => *result + value,
            ReduceOp::Max | ReduceOp::Min if result.is_nan() || value.is_nan() => f64::NAN,
            ReduceOp::Max => result.max(value),
            ReduceOp::Min => result.min(value),
        };
    }
    points.iter().map(|point| results[first(point)]).collect()
}

/// Whether reductions and consumers see a point: it is there, and inside the band. So a band that leaves out what
/// matters gives a wrong result here, too.
fn counts(kernel: &Kernel, point: &[usize]) -> bool {
    let is_there = point.iter().zip(&kernel.domain.axes).all(|(at, extent)| at < extent);
    let Form::Contraction(Contraction { band: Some(band), .. }) = &kernel.form else { return is_there };
    let (row, column) = (kernel.domain.outer, kernel.domain.outer + kernel.domain.rows);
    let columns = band.columns(point[row]..point[row] + 1, kernel.domain.axes[column]);
    is_there && columns.contains(&point[column])
}

/// A second product, of the values `r` of the region.
fn consume(
    kernel: &Kernel,
    consumer: &Consumer,
    all: &Points,
    r: &[f64],
    memory: &mut Memory,
    precision: Precision,
) {
    let result = consumer.buffer.0 as usize;
    // Elements that no point adds to stay as they are.
    let mut sums: Vec<Option<f64>> = vec![None; memory[result].len()];
    let mut columns = Points::of(&vec![0; all.axes], &consumer.p);
    let mut sides = Sides::new(&consumer.with, &kernel.domain, &consumer.p, precision);
    for (point, r) in all.iter().zip(r) {
        columns.begin_with(point);
        let factors = counts(kernel, point).then(|| sides.at(point, memory));
        for (at, column) in columns.iter().enumerate() {
            let place = position(&consumer.index, column, &|_| unreachable!("checked by the verifier"));
            *sums[place as usize].get_or_insert(0.0) += factors.map_or(0.0, |factors| r * factors[at]);
        }
    }
    for (element, sum) in memory[result].iter_mut().zip(sums) {
        *element = sum.map_or(*element, |sum| precision.round(consumer.dtype, sum));
    }
}

/// The elements of an operand at all points of some axes, behind a point of the domain. They are computed once for points between which
/// nothing differs that the operand depends on.
struct Sides<'a> {
    operand: &'a Operand,
    domain: &'a Domain,
    /// Whether the operand depends on each axis of the domain.
    depends: Vec<bool>,
    points: Points,
    /// By the number, row-major, of the first point with these elements.
    known: HashMap<usize, Vec<f64>>,
    precision: Precision,
}

/// The most numbers of an operand that are kept: 64 MiB.
const KEPT: usize = 1 << 23;

impl<'a> Sides<'a> {
    fn new(operand: &'a Operand, domain: &'a Domain, extents: &[usize], precision: Precision) -> Self {
        let axes = domain.axes.len();
        let depends = |axis| operand.region.varies(operand.value, axis..axis + 1, domain);
        Sides {
            operand,
            domain,
            depends: (0..axes).map(depends).collect(),
            points: Points::of(&vec![0; axes], extents),
            known: HashMap::new(),
            precision,
        }
    }

    fn at(&mut self, point: &[usize], memory: &Memory) -> &[f64] {
        let first = first_of(point, &self.domain.axes, |axis| self.depends[axis]);
        if (self.known.len() + 1).saturating_mul(self.points.count) > KEPT {
            self.known.clear();
        }
        let (points, operand, precision) = (&mut self.points, self.operand, self.precision);
        self.known.entry(first).or_insert_with(|| {
            points.begin_with(point);
            side(operand, memory, points, precision)
        })
    }
}

/// The number, row-major, of the point that is where this one is along some axes, and first along the others.
fn first_of(point: &[usize], extents: &[usize], is_kept: impl Fn(usize) -> bool) -> usize {
    let axes = point.iter().zip(extents).enumerate();
    axes.fold(0, |first, (axis, (&at, &extent))| first * extent.max(1) + if is_kept(axis) { at } else { 0 })
}

/// The elements of an operand at these points.
fn side(operand: &Operand, memory: &Memory, points: &Points, precision: Precision) -> Vec<f64> {
    let mut values: Vec<Vec<f64>> = Vec::with_capacity(operand.region.instrs.len());
    for instr in &operand.region.instrs {
        let mut column = column(instr, &operand.region, memory, points, &values, &|_| true);
        column.iter_mut().for_each(|x| *x = precision.round(instr.dtype, *x));
        values.push(column);
    }
    values.swap_remove(operand.value.0 as usize)
}

/// The entries of a product.
fn product(
    product: &Product,
    domain: &Domain,
    memory: &Memory,
    points: &Points,
    precision: Precision,
) -> Vec<f64> {
    let sides = |operand| Sides::new(operand, domain, &product.k, precision);
    let (mut a, mut b) = (sides(&product.a), sides(&product.b));
    let entry = |point: &[usize]| {
        let factors = a.at(point, memory).iter().zip(b.at(point, memory));
        if product.dtype.is_integer() {
            let sum = factors.fold(0i64, |sum, (&a, &b)| sum.wrapping_add((a as i64).wrapping_mul(b as i64)));
            return product.dtype.round(f64::from(sum as u32));
        }
        precision.round(product.dtype, factors.map(|(a, b)| a * b).sum())
    };
    points.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Store;
    use crate::{Binary, Unary};

    /// Softmax of two rows, written by hand.
    #[test]
    fn reductions_see_their_own_row_only() {
        let ty = TensorType::new(DType::F32, [2, 3]);
        let buffer = |name: &str, role| Buffer { name: name.into(), ty: ty.clone(), role, continues: None };
        let mut region = Region::default();
        let index = Index { offset: 0, strides: vec![3, 1], indirect: vec![] };
        let load = InstrKind::Load { buffer: BufferId(0), index: index.clone(), guard: vec![] };
        let x = region.push(load, DType::F32);
        let e = region.push(InstrKind::Unary(Unary::Exp, x), DType::F32);
        let s = region.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, e), DType::F32);
        let y = region.push(InstrKind::Binary(Binary::Div, e, s), DType::F32);
        let kernel = Kernel {
            name: "softmax".into(),
            form: Form::Reduce,
            domain: Domain { axes: vec![2, 3], outer: 0, rows: 1 },
            region,
            stores: vec![Store { value: y, buffer: BufferId(1), index, mode: StoreMode::Set }],
            covers: vec![],
        };
        let graph = KernelGraph {
            buffers: vec![buffer("x", BufferRole::Input), buffer("y", BufferRole::Temporary)],
            kernels: vec![kernel],
            outputs: vec![("y".into(), BufferId(1), ty.clone())],
            ..KernelGraph::default()
        };
        let x = Array { ty: ty.clone(), values: vec![0.0, 1.0, 2.0, 5.0, 5.0, 5.0] };
        let inputs = BTreeMap::from([("x".to_owned(), x)]);
        let y = &interpret(&graph, &inputs, Precision::Declared).unwrap()["y"];
        let total = 1.0 + 1f64.exp() + 2f64.exp();
        let expected = [1.0 / total, 1f64.exp() / total, 2f64.exp() / total, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0];
        for (y, expected) in y.values.iter().zip(expected) {
            assert!((y - expected).abs() < 1e-7, "{y} {expected}");
        }
    }
}
