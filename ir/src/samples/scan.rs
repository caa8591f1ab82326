//! Samples of loops: carried values of several types, slices, constants, either order, bodies with products.

use super::{Operand, Table, summation};
use crate::{Builder, DType, Graph, Input, InputRole, Origin, Result, Scan, TensorType, Unary, ValueId};

pub(super) fn add(table: &mut Table) {
    let first = table.samples.len();
    for reverse in [false, true] {
        recurrent(table, reverse);
    }
    running_sums(table);
    places_change(table);
    // Autodiff takes all results of a loop together; its own tests compare it with the iterations one by one.
    table.samples[first..].iter_mut().for_each(|sample| sample.gradient = false);
}

fn tame(shape: &[usize]) -> Operand {
    Operand::tame(DType::F32, shape)
}

/// A body of inputs of these types; `build` gives its outputs.
fn body(
    types: &[TensorType],
    carried: usize,
    build: impl FnOnce(&mut Builder<'_>, &[ValueId]) -> Result<Vec<ValueId>>,
) -> Result<Graph> {
    let mut graph = Graph::new("body");
    let mut b = Builder::new(&mut graph, Origin::default());
    let input = |(number, ty): (usize, &TensorType)| {
        b.op(Input { name: format!("in{number}"), role: InputRole::Data, ty: ty.clone() }, &[])
    };
    let inputs = types.iter().enumerate().map(input).collect::<Result<Vec<_>>>()?;
    let outputs = build(&mut b, &inputs)?;
    for (number, value) in outputs.into_iter().enumerate() {
        graph.output(format!("out{number}"), value);
    }
    Scan::hand_out(&mut graph, carried);
    Ok(graph)
}

/// The sum of what is carried last and of the first result of every iteration.
fn last_and_each(b: &mut Builder<'_>, scan: Scan, operands: &[ValueId]) -> Result<ValueId> {
    let last = b.op(scan.with_result(0), operands)?;
    let each = b.op(scan.with_result(scan.carried), operands)?;
    let shape = b.ty(each).shape.clone();
    let last = b.broadcast_to(last, &shape)?;
    b.add(last, each)
}

/// h ← tanh(h·w + x).
fn recurrent(table: &mut Table, reverse: bool) {
    let name = if reverse { "scan.recurrent.backward" } else { "scan.recurrent" };
    let operands = [tame(&[4, 6]), tame(&[3, 4, 6]), tame(&[6, 6])];
    let build = |b: &mut Builder<'_>, x: &[ValueId]| {
        let types = [[4, 6], [4, 6], [6, 6]].map(|shape| TensorType::new(DType::F32, shape));
        let body = body(&types, 1, |b, x| {
            let product = b.matmul(x[0], x[2])?;
            let sum = b.add(product, x[1])?;
            let next = b.unary(Unary::Tanh, sum)?;
            Ok(vec![next, next])
        })?;
        let scan = Scan { body: body.into(), length: 3, carried: 1, sliced: 1, reverse, result: 0 };
        last_and_each(b, scan, x)
    };
    table.graph(name, &operands, build).tolerance = summation(DType::F32);
}

/// s ← s + x, of integers.
fn running_sums(table: &mut Table) {
    let operands = [Operand::tame(DType::I32, &[5]), Operand::tame(DType::I32, &[7, 5])];
    let build = |b: &mut Builder<'_>, x: &[ValueId]| {
        let types = [(); 2].map(|()| TensorType::new(DType::I32, [5]));
        let body = body(&types, 1, |b, x| {
            let next = b.add(x[0], x[1])?;
            Ok(vec![next, next])
        })?;
        let scan = Scan { body: body.into(), length: 7, carried: 1, sliced: 1, reverse: false, result: 0 };
        last_and_each(b, scan, x)
    };
    table.graph("scan.running_sums", &operands, build).tolerance = 0.0;
}

/// (a, b) ← (b, a + c), handing out a.
fn places_change(table: &mut Table) {
    let operands = [tame(&[3]), tame(&[3]), tame(&[3])];
    let build = |b: &mut Builder<'_>, x: &[ValueId]| {
        let types = [(); 3].map(|()| TensorType::new(DType::F32, [3]));
        let body = body(&types, 2, |b, x| {
            let next = b.add(x[0], x[2])?;
            Ok(vec![x[1], next, x[0]])
        })?;
        let scan = Scan { body: body.into(), length: 5, carried: 2, sliced: 0, reverse: false, result: 0 };
        last_and_each(b, scan, x)
    };
    table.graph("scan.places_change", &operands, build);
}
