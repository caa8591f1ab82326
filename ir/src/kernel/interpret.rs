//! The reference for kernel IR: slow and obvious, in `f64`, one instruction after another over all points.
//!
//! It tells a wrong plan from a wrong back end: a plan is right if its interpretation equals the graph's evaluation, a
//! back end if its results equal the interpretation.

use super::{
    Bound, Direction, Domain, Form, Index, InstrKind, Kernel, KernelGraph, Product, Region, StoreMode,
};
use crate::evaluate::{Array, Precision};
use crate::op::Op;
use crate::{DType, IrError, Reduce, ReduceOp, Result, Select, TensorType, random};
use std::collections::BTreeMap;

/// Runs all kernels: outputs by name, then the new value of each updated state under the state's name.
///
/// # Errors
/// If an input is missing.
pub fn interpret(
    graph: &KernelGraph,
    inputs: &BTreeMap<String, Array>,
    precision: Precision,
) -> Result<BTreeMap<String, Array>> {
    let mut memory: Vec<Vec<f64>> = Vec::new();
    for buffer in &graph.buffers {
        memory.push(match (buffer.role, inputs.get(&buffer.name)) {
            (super::BufferRole::Temporary, _) => vec![f64::NAN; buffer.ty.elements()],
            (_, Some(array)) => array.values.clone(),
            (_, None) => {
                return Err(IrError::Input { name: buffer.name.clone(), reason: "is missing".into() });
            }
        });
    }
    for kernel in &graph.kernels {
        run(graph, kernel, &mut memory, precision);
    }
    let array = |buffer: super::BufferId, ty: &TensorType| Array {
        ty: ty.clone(),
        values: memory[buffer.0 as usize].clone(),
    };
    let outputs = graph.outputs.iter().map(|(name, buffer, ty)| (name.clone(), array(*buffer, ty)));
    let updates = graph.updates.iter().map(|&(state, value)| {
        let state = graph.buffer(state);
        (state.name.clone(), array(value, &state.ty))
    });
    Ok(outputs.chain(updates).collect())
}

fn run(graph: &KernelGraph, kernel: &Kernel, memory: &mut [Vec<f64>], precision: Precision) {
    let points = points(&kernel.domain.axes);
    let products: &[Product] = match &kernel.form {
        Form::Contraction(products) => products,
        Form::Map | Form::Reduce => &[],
    };
    let producer = |number: usize, at: &[usize]| product(&products[number], at, memory, precision);
    let values = evaluate(&kernel.region, &kernel.domain, &points, memory, &producer, precision);
    for store in &kernel.stores {
        let dtype = graph.buffer(store.buffer).ty.dtype;
        if store.mode == StoreMode::Add {
            memory[store.buffer.0 as usize].fill(0.0);
        }
        for (number, at) in points.iter().enumerate() {
            let place = offset(&store.index, at, number, &values) as usize;
            let slot = &mut memory[store.buffer.0 as usize][place];
            let value = values[store.value.0 as usize][number];
            *slot = match store.mode {
                StoreMode::Set => value,
                StoreMode::Add => *slot + value,
            };
        }
        if precision == Precision::Declared || !dtype.is_float() {
            memory[store.buffer.0 as usize].iter_mut().for_each(|x| *x = dtype.round(*x));
        }
    }
}

/// The value of each instruction at each point.
fn evaluate(
    region: &Region,
    domain: &Domain,
    points: &[Vec<usize>],
    memory: &[Vec<f64>],
    producer: &dyn Fn(usize, &[usize]) -> f64,
    precision: Precision,
) -> Vec<Vec<f64>> {
    let mut values: Vec<Vec<f64>> = Vec::new();
    for instr in &region.instrs {
        let ty = TensorType::new(instr.dtype, [points.len()]);
        let array = |scalar: super::Scalar| Array {
            ty: TensorType::new(region.instr(scalar).dtype, [points.len()]),
            values: values[scalar.0 as usize].clone(),
        };
        let apply = |op: Op, operands: &[super::Scalar]| {
            let arrays: Vec<_> = operands.iter().map(|&scalar| array(scalar)).collect();
            op.eval(&arrays.iter().collect::<Vec<_>>(), &ty)
        };
        let each = |f: &dyn Fn(usize, &[usize]) -> f64| {
            points.iter().enumerate().map(|(number, at)| f(number, at)).collect::<Vec<_>>()
        };
        let mut results = match &instr.kind {
            InstrKind::Constant(value) => vec![value.value(); points.len()],
            InstrKind::Coordinate(index) => each(&|number, at| offset(index, at, number, &values) as f64),
            InstrKind::Load { buffer, index, guard } => each(&|number, at| {
                let inside = guard.iter().all(|bound| holds(bound, at, number, &values));
                if inside {
                    memory[buffer.0 as usize][offset(index, at, number, &values) as usize]
                } else {
                    0.0
                }
            }),
            InstrKind::Random { seed, step, node, element } => each(&|number, at| {
                let word = |scalar: super::Scalar| values[scalar.0 as usize][number] as u32;
                let element = offset(element, at, number, &values) as u64;
                f64::from(random::element_bits(word(*seed), *node, word(*step), element))
            }),
            InstrKind::Producer(number) => each(&|_, at| producer(*number, at)),
            InstrKind::Unary(op, x) => apply((*op).into(), &[*x]),
            InstrKind::Binary(op, x, y) => apply((*op).into(), &[*x, *y]),
            InstrKind::Compare(op, x, y) => apply((*op).into(), &[*x, *y]),
            InstrKind::Select(c, x, y) => apply(Select.into(), &[*c, *x, *y]),
            InstrKind::Cast(x) => apply(crate::Cast { dtype: instr.dtype }.into(), &[*x]),
            InstrKind::InRange(bounds) => each(&|number, at| {
                f64::from(u8::from(bounds.iter().all(|bound| holds(bound, at, number, &values))))
            }),
            InstrKind::Reduce(op, direction, x) => {
                reduce(*op, *direction, domain, points, &values[x.0 as usize], instr.dtype)
            }
        };
        if precision == Precision::Declared || !instr.dtype.is_float() {
            results.iter_mut().for_each(|x| *x = instr.dtype.round(*x));
        }
        values.push(results);
    }
    values
}

/// Reduces over columns or rows; every point gets the result of its row or column.
fn reduce(
    op: ReduceOp,
    direction: Direction,
    domain: &Domain,
    points: &[Vec<usize>],
    values: &[f64],
    dtype: DType,
) -> Vec<f64> {
    let summed = match direction {
        Direction::Columns => domain.column_axes(),
        Direction::Rows => domain.row_axes(),
    };
    let key = |at: &[usize]| {
        let mut key = at.to_vec();
        key[summed.clone()].fill(0);
        key
    };
    let mut groups: BTreeMap<Vec<usize>, Vec<f64>> = BTreeMap::new();
    for (at, &value) in points.iter().zip(values) {
        groups.entry(key(at)).or_default().push(value);
    }
    let result = |group: &Vec<f64>| {
        let array = Array { ty: TensorType::new(dtype, [group.len()]), values: group.clone() };
        Op::from(Reduce { op, axes: vec![0] }).eval(&[&array], &TensorType::scalar(dtype))[0]
    };
    let results: BTreeMap<_, _> = groups.iter().map(|(key, group)| (key, result(group))).collect();
    points.iter().map(|at| results[&key(at)]).collect()
}

/// One entry of a product.
fn product(product: &Product, at: &[usize], memory: &[Vec<f64>], precision: Precision) -> f64 {
    let summed: Vec<_> = points(&product.k).into_iter().map(|k| [at, &k].concat()).collect();
    let domain = Domain::flat(vec![1; at.len() + product.k.len()]);
    let none = |_: usize, _: &[usize]| unreachable!("an operand of a product has no producer");
    let side = |operand: &super::Operand| {
        let values = evaluate(&operand.region, &domain, &summed, memory, &none, precision);
        values[operand.value.0 as usize].clone()
    };
    let (a, b) = (side(&product.a), side(&product.b));
    if product.dtype.is_integer() {
        let wrapped =
            a.iter().zip(&b).fold(0i64, |sum, (&x, &y)| sum.wrapping_add((x as i64).wrapping_mul(y as i64)));
        return f64::from(wrapped as u32 as i32);
    }
    a.iter().zip(&b).map(|(x, y)| x * y).sum()
}

fn offset(index: &Index, at: &[usize], point: usize, values: &[Vec<f64>]) -> i64 {
    let strided: i64 = index.strides.iter().zip(at).map(|(stride, &i)| stride * i as i64).sum();
    let clamped = |term: &super::Indirect| {
        (values[term.value.0 as usize][point] as i64).clamp(0, term.limit as i64 - 1)
    };
    index.offset + strided + index.indirect.iter().map(|term| clamped(term) * term.stride).sum::<i64>()
}

fn holds(bound: &Bound, at: &[usize], point: usize, values: &[Vec<f64>]) -> bool {
    (0..bound.extent as i64).contains(&offset(&bound.coordinate, at, point, values))
}

/// The coordinates of all points, row-major.
fn points(axes: &[usize]) -> Vec<Vec<usize>> {
    Array::zeros(&TensorType::new(DType::F64, axes)).positions().collect()
}
