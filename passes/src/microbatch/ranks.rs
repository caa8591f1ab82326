//! What ranks exchange: the sums that each has of its part of the batch; and, where each keeps a part of the optimizer's state, what each has updated.
//!
//! ```text
//! every rank the same                           each rank its part
//! g = all_reduce own gradient                   g = reduce_scatter own gradient
//! m ← 0.9 m + 0.1 g                             m ← 0.9 m + 0.1 g                    m: f32[n / ranks]
//! w ← w − 0.1 m                                 w ← all_gather(part of w − 0.1 m)
//! ```
//!
//! It is done to a simplified tail, so that simplification, which may round otherwise where an operand is another one, does the same with ranks
//! and without: each element is computed by the same operations, whoever computes it.

use super::batch_dependence::Classes;
use super::shard::{Form, Recipe, Sharded};
use super::{Division, INDEX, MicrobatchError, RESERVED, accumulator_type, refused};
use kernfusion_ir::kernel::Shard;
use kernfusion_ir::{
    Builder, Collective, DType, DynamicSlice, Exchange, Graph, InputRole, Node, Op, ReduceOp, Result,
    TensorType, ValueId,
};
use std::collections::BTreeMap;

/// Whether ranks can combine everything that is accumulated.
pub(super) fn check(graph: &Graph, dependences: &Classes) -> std::result::Result<(), MicrobatchError> {
    for &id in &dependences.accumulated {
        let (combination, dtype) = (dependences.combination(id), accumulator_type(&graph[id].ty).dtype);
        if (combination, dtype) != (ReduceOp::Sum, DType::F32) {
            let what = combination.name();
            let reason = format!("ranks add up sums of f32, and this is a {what} of {dtype} over the batch");
            return Err(refused(graph, id, reason));
        }
    }
    for (output, axis) in dependences.sliced_outputs(graph) {
        let ty = &graph[output.value].ty;
        if output.updates_state && (axis, ty.dtype) != (0, DType::F32) {
            let reason = format!(
                "ranks exchange rows of states of f32, and \"{}\" has the batch as axis {axis} of {ty}",
                output.name
            );
            return Err(refused(graph, output.value, reason));
        }
    }
    Ok(())
}

/// Lets a simplified tail begin with the sums of all ranks, instead of one process' own. If `shard`, each rank keeps and updates its part of the
/// states that are the tail's alone and of which every element is updated by itself, as an optimizer's moments are; these are returned. If
/// `in_bf16`, sums are exchanged as `bf16`, but for single numbers, as a loss is.
///
/// # Errors
/// If a node breaks a type rule.
pub fn exchange(
    body: &Graph,
    tail: &mut Graph,
    Division { microbatches, ranks }: Division,
    (shard, in_bf16): (bool, bool),
) -> Result<Vec<Shard>> {
    if ranks == 1 {
        return Ok(vec![]);
    }
    let sharded = if shard { Sharded::of(body, tail, ranks) } else { Sharded::default() };
    let wanted = sharded.wanted(tail);
    let mut new = Graph::new(tail.name.clone());
    // The states of which each microbatch has updated its rows.
    let rows =
        body.outputs().iter().filter(|output| output.updates_state && !output.name.starts_with(RESERVED));
    let rows: Vec<_> = rows.collect();
    let cuts = !(sharded.states.is_empty() && rows.is_empty());
    let rank = cuts.then(|| rank(&mut new, microbatches)).transpose()?;
    let mut writer = Writer { ranks, rank, in_bf16, new, places: BTreeMap::new() };
    for (&id, forms) in &wanted {
        for &form in forms {
            let value = writer.value(id, &tail[id], sharded.recipe(tail, id, form, forms))?;
            writer.new.absorb(value, &tail[id].origin);
            writer.places.insert((id, form), value);
        }
    }
    for output in tail.outputs() {
        let value = writer.places[&(output.value, sharded.form(tail, output))];
        match output.updates_state {
            true => writer.new.update(&output.name, value),
            false => writer.new.output(&output.name, value),
        }
    }
    // Nobody needs the sum of this rank alone any more, so that of all ranks takes its place.
    for (&id, forms) in &wanted {
        if forms.iter().any(|&form| sharded.recipe(tail, id, form, forms) == Recipe::AllReduce) {
            let Op::Input(own) = &tail[id].op else { unreachable!("an accumulator is an input") };
            writer.new.update(&own.name, writer.places[&(id, Form::Whole)]);
        }
    }
    for output in rows {
        writer.gather_rows(&output.name, &body[output.value])?;
    }
    let shards = sharded.shards(tail, ranks);
    *tail = writer.new;
    Ok(shards)
}

/// The number of this rank, as `i32[]`, from that of its first microbatch.
fn rank(graph: &mut Graph, microbatches: usize) -> Result<ValueId> {
    let mut b = Builder::new(graph, Default::default());
    let first = b.input(INDEX, InputRole::Data, TensorType::scalar(DType::U32))?;
    let (first, count) = (b.cast(first, DType::F32)?, b.constant(microbatches as f64, DType::F32)?);
    let rank = b.div(first, count)?;
    b.cast(rank, DType::I32)
}

struct Writer {
    ranks: usize,
    /// Its number, where parts are cut.
    rank: Option<ValueId>,
    in_bf16: bool,
    new: Graph,
    places: BTreeMap<(ValueId, Form), ValueId>,
}

impl Writer {
    /// Gives every rank the rows of a state that the others have updated.
    fn gather_rows(&mut self, name: &str, updated: &Node) -> Result<()> {
        let (ranks, rank) = (self.ranks, self.rank.expect("rows are cut"));
        let mut b = Builder::new(&mut self.new, updated.origin.helping());
        let state = b.input(name, InputRole::State, updated.ty.clone())?;
        let mut sizes = updated.ty.shape.clone();
        sizes[0] /= ranks;
        let own = rows(&mut b, state, rank, sizes)?;
        let all = b.op(Collective::new(Exchange::AllGather, ranks), &[own])?;
        self.new.update(name, all);
        Ok(())
    }

    fn value(&mut self, id: ValueId, node: &Node, recipe: Recipe) -> Result<ValueId> {
        let (ranks, rank) = (self.ranks, self.rank);
        let part = Shard::part_of(&node.ty, ranks);
        let of = |exchange| Collective::new(exchange, ranks);
        let sum = |exchange| Collective { in_bf16: self.in_bf16 && node.ty.rank() > 0, ..of(exchange) };
        let place = |id: ValueId, form: Form| self.places[&(id, form)];
        let operands = |form| node.operands.iter().map(|&operand| place(operand, form)).collect::<Vec<_>>();
        let mut b = Builder::new(&mut self.new, node.origin.helping());
        match recipe {
            Recipe::Whole => b.op(node.op.clone(), &operands(Form::Whole)),
            Recipe::Elementwise => b.op(node.op.clone(), &operands(Form::Part)),
            Recipe::View => b.reshape(place(node.operands[0], Form::Part), &part.shape),
            Recipe::Filled => {
                let number = b.reshape(place(node.operands[0], Form::Whole), &[])?;
                b.broadcast(number, &part.shape, &[])
            }
            Recipe::State => {
                let Op::Input(state) = &node.op else { unreachable!("a state is an input") };
                b.input(&state.name, InputRole::State, part)
            }
            Recipe::AllReduce => {
                let own = b.op(node.op.clone(), &[])?;
                b.op(sum(Exchange::AllReduce), &[own])
            }
            Recipe::ReduceScatter => {
                let own = b.op(node.op.clone(), &[])?;
                let own = divisible(&mut b, own, &part, ranks)?;
                b.op(sum(Exchange::ReduceScatter), &[own])
            }
            Recipe::Cut => {
                let whole = divisible(&mut b, place(id, Form::Whole), &part, ranks)?;
                rows(&mut b, whole, rank.expect("something is cut"), part.shape)
            }
            Recipe::AllGather => {
                let all = b.op(of(Exchange::AllGather), &[place(id, Form::Part)])?;
                if *b.ty(all) == node.ty {
                    return Ok(all);
                }
                let all = b.slice(all, &[0], &[node.ty.elements()])?;
                b.reshape(all, &node.ty.shape)
            }
        }
    }
}

/// A value whose first axis is divisible among ranks: as it is, or its elements as one axis with zeros after them.
fn divisible(b: &mut Builder<'_>, x: ValueId, part: &TensorType, ranks: usize) -> Result<ValueId> {
    let elements = b.ty(x).elements();
    if b.ty(x).shape.first() == Some(&(part.shape[0] * ranks)) {
        return Ok(x);
    }
    let flat = b.reshape(x, &[elements])?;
    match part.elements() * ranks - elements {
        0 => Ok(flat),
        rest => b.pad(flat, &[0], &[rest], 0.0),
    }
}

/// A rank's rows of a value.
fn rows(b: &mut Builder<'_>, x: ValueId, rank: ValueId, sizes: Vec<usize>) -> Result<ValueId> {
    let (start, zero) = (b.scale(rank, sizes[0] as f64)?, b.constant(0.0, DType::I32)?);
    let starts = (0..sizes.len()).map(|axis| if axis == 0 { start } else { zero });
    let operands: Vec<_> = [x].into_iter().chain(starts).collect();
    b.op(DynamicSlice { sizes }, &operands)
}
