//! Functions of a byte, looked up.
//!
//! ```text
//! %b : i8[n]                             %t = f of all bytes : i8[256]
//! %1 = cast %b : f32[n]                  %1 = cast %b : i32[n]
//! %2 = …, %y = cast (f %1) : i8[n]   →   %2 = and %1, 255
//!                                        %y = gather %t, %2
//! ```
//!
//! A quantized model takes bytes apart, applies an activation, and makes bytes of the result, which is a function that has 256 values. Computing
//! them once takes less than computing one for each element, where the function is costly. The table has the bytes in the order of their bits, so that
//! these are the place.
//!
//! Invariant: results are the same to the bit.

use crate::fuse::cost;
use crate::{Rebuild, loops};
use kernfusion_ir::{Binary, DType, Gather, Graph, Iota, KernelEntry, Op, Result, TensorType, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// How many bytes there are.
const BYTES: usize = 256;
/// How many cheap operations a function takes at least, which a look-up takes fewer than.
const LEAST_COST: f64 = 16.0;
/// Functions of fewer bytes than this many tables are computed.
const LEAST_TABLES: usize = 16;

pub(crate) fn look_up(graph: &mut Graph) -> Result<()> {
    loops::change_bodies(graph, look_up)?;
    let functions = Functions::of(graph);
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        match functions.argument(id) {
            Some(byte) => functions.write_look_up(&mut rebuild, id, byte)?,
            None => {
                rebuild.copy(id)?;
            }
        }
    }
    *graph = rebuild.finish();
    Ok(())
}

/// What each element of a value is computed of.
#[derive(Clone, Copy, PartialEq)]
enum Argument {
    /// Numbers that all elements have in common.
    Numbers,
    /// The element of these bytes at the same place in row-major order, and such numbers.
    Byte(ValueId),
}

impl Argument {
    /// What a function of both is computed of.
    fn and(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Argument::Numbers, argument) | (argument, Argument::Numbers) => Some(argument),
            (argument, other) => (argument == other).then_some(argument),
        }
    }
}

/// The arguments of all values that have one.
struct Functions<'a> {
    graph: &'a Graph,
    arguments: Vec<Option<Argument>>,
}

impl<'a> Functions<'a> {
    fn of(graph: &'a Graph) -> Self {
        let mut arguments: Vec<Option<Argument>> = Vec::with_capacity(graph.len());
        for id in graph.ids() {
            let node = &graph[id];
            let mut of_operands = node.operands.iter().map(|operand| arguments[operand.index()]);
            let is_elementwise = node.op.entry() == KernelEntry::Scalar || is_reshape(graph, id);
            let argument = match is_number(graph, id) {
                true => Some(Argument::Numbers),
                false if is_elementwise => {
                    of_operands.try_fold(Argument::Numbers, |all, argument| all.and(argument?))
                }
                false => None,
            };
            let bytes = (node.ty.dtype == DType::I8).then_some(Argument::Byte(id));
            arguments.push(argument.or(bytes));
        }
        Functions { graph, arguments }
    }

    /// The bytes that a value is a costly function of.
    fn argument(&self, id: ValueId) -> Option<ValueId> {
        let ty = &self.graph[id].ty;
        let is_worth_it = ty.dtype == DType::I8 && ty.elements() >= LEAST_TABLES * BYTES;
        match self.arguments[id.index()] {
            Some(Argument::Byte(byte)) if is_worth_it && byte != id => {
                let cost = |step: ValueId| cost::operations(&self.graph[step].op);
                (self.steps(id, byte).into_iter().map(cost).sum::<f64>() >= LEAST_COST).then_some(byte)
            }
            _ => None,
        }
    }

    /// What computes a function of bytes, operands first.
    fn steps(&self, function: ValueId, byte: ValueId) -> BTreeSet<ValueId> {
        let (mut steps, mut open) = (BTreeSet::new(), vec![function]);
        while let Some(step) = open.pop() {
            if step != byte && steps.insert(step) && !is_number(self.graph, step) {
                open.extend(&self.graph[step].operands);
            }
        }
        steps
    }

    fn write_look_up(&self, rebuild: &mut Rebuild<'_>, id: ValueId, byte: ValueId) -> Result<()> {
        let table = self.write_table(rebuild, id, byte)?;
        let byte = rebuild.place(byte);
        let mut b = rebuild.builder(id);
        let shape = &self.graph[id].ty.shape;
        let byte = if b.ty(byte).shape == *shape { byte } else { b.reshape(byte, shape)? };
        let bits = b.cast(byte, DType::I32)?;
        let mask = b.full_like(BYTES as f64 - 1.0, bits)?;
        let place = b.binary(Binary::And, bits, mask)?;
        let found = b.op(Gather { axis: 0 }, &[table, place])?;
        rebuild.replace(id, found);
        Ok(())
    }

    /// The function of all bytes, in the order of their bits: of 0 to 127 and of −128 to −1.
    fn write_table(&self, rebuild: &mut Rebuild<'_>, function: ValueId, byte: ValueId) -> Result<ValueId> {
        let mut b = rebuild.builder(function);
        let bits = b.op(Iota { ty: TensorType::new(DType::I32, [BYTES]), axis: 0 }, &[])?;
        let sign = b.full_like(BYTES as f64 / 2.0, bits)?;
        let above = b.binary(Binary::Xor, bits, sign)?;
        let signed = b.sub(above, sign)?;
        let mut places = BTreeMap::from([(byte, b.cast(signed, DType::I8)?)]);
        for step in self.steps(function, byte) {
            let node = &self.graph[step];
            let place = if is_number(self.graph, step) {
                let number = rebuild.place(node.operands[0]);
                rebuild.builder(step).broadcast(number, &[BYTES], &[])?
            } else {
                let operands: Vec<_> = node.operands.iter().map(|operand| places[operand]).collect();
                match is_reshape(self.graph, step) {
                    true => operands[0],
                    false => rebuild.builder(step).op(node.op.clone(), &operands)?,
                }
            };
            places.insert(step, place);
        }
        Ok(places[&function])
    }
}

fn is_reshape(graph: &Graph, id: ValueId) -> bool {
    matches!(graph[id].op, Op::Reshape(_))
}

/// Whether all elements of a value are one number.
fn is_number(graph: &Graph, id: ValueId) -> bool {
    matches!(graph[id].op, Op::Broadcast(_)) && graph[graph[id].operands[0]].ty.rank() == 0
}
