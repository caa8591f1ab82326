//! What the batch has to do with each value, and which sums are accumulated.

use super::axis_map::{ResultAxis, axis_map};
use super::lookup::LocalLookup;
use super::loops::Loop;
use super::{MicrobatchError, refused};
use kernfusion_ir::{Binary, Graph, Op, Output, ReduceOp, Unary, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// What the batch has to do with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BatchDependence {
    /// Nothing: it is the same in every microbatch.
    Whole,
    /// It has the batch along this axis; a microbatch computes its part.
    Sliced(usize),
    /// It is the combination of what the microbatches compute.
    Partial(ReduceOp),
    /// It depends on a completed combination.
    Complete,
}

/// The dependences of all values that outputs need.
pub(super) struct Classes {
    /// `None` for dead values.
    dependences: Vec<Option<BatchDependence>>,
    /// The partial values that are accumulated over the microbatches, ascending.
    pub(super) accumulated: BTreeSet<ValueId>,
}

impl Classes {
    /// Classifies. A sum stays partial through linear ops as long as every reader can take it so: all of what flows to one
    /// weight is then one accumulator. Where one reader needs it completed, it is accumulated, and complete for all.
    pub(super) fn of(
        graph: &Graph,
        batched: &[ValueId],
        microbatches: usize,
    ) -> Result<Self, MicrobatchError> {
        let given = batched.iter().map(|&id| (id, BatchDependence::Sliced(0))).collect();
        let mut accumulated = BTreeSet::new();
        // Each round accumulates one sum more at least, so this ends.
        loop {
            let dependences = classify(graph, &given, microbatches, &accumulated);
            let dependences = dependences.map_err(|(id, reason)| refused(graph, id, reason))?;
            let found = to_accumulate(graph, &dependences);
            let before = accumulated.len();
            accumulated.extend(found);
            if accumulated.len() == before {
                // A sum whose partner was accumulated in a later round may no longer be partial itself.
                accumulated.retain(|id| matches!(dependences[id.index()], Some(BatchDependence::Partial(_))));
                return Ok(Classes { dependences, accumulated });
            }
        }
    }

    /// Classifies the body of a loop from what the batch has to do with its inputs. Nothing is accumulated in it.
    ///
    /// # Errors
    /// Why the batch does not pass through it.
    pub(super) fn of_body(
        body: &Graph,
        given: &BTreeMap<ValueId, BatchDependence>,
        microbatches: usize,
    ) -> Result<Self, &'static str> {
        let accumulated = BTreeSet::new();
        let dependences = classify(body, given, microbatches, &accumulated).map_err(|(_, reason)| reason)?;
        Ok(Classes { dependences, accumulated })
    }

    /// What the batch has to do with a live value.
    pub(super) fn get(&self, id: ValueId) -> BatchDependence {
        self.dependences[id.index()].expect("only what outputs need is computed")
    }

    /// The results and new states that microbatches compute parts of, with the axis along which these are joined.
    pub(super) fn sliced_outputs<'g>(&self, graph: &'g Graph) -> Vec<(&'g Output, usize)> {
        let outputs = graph.outputs().iter().filter_map(|output| match self.get(output.value) {
            BatchDependence::Sliced(axis) => Some((output, axis)),
            BatchDependence::Whole | BatchDependence::Partial(_) | BatchDependence::Complete => None,
        });
        outputs.collect()
    }

    /// The states of which each microbatch updates its rows, as the values that recurrent layers hand from step to step, with the axis of these rows.
    pub(super) fn states_with_rows(&self, graph: &Graph) -> BTreeMap<ValueId, usize> {
        let outputs = self.sliced_outputs(graph).into_iter().filter(|(output, _)| output.updates_state);
        let state = |output: &Output| graph.input(&output.name).expect("the verifier checked updates");
        outputs.map(|(output, axis)| (state(output), axis)).collect()
    }

    /// How the microbatches of an accumulated value are combined.
    pub(super) fn combination(&self, id: ValueId) -> ReduceOp {
        match self.get(id) {
            BatchDependence::Partial(op) => op,
            other => unreachable!("{other:?} is not accumulated"),
        }
    }
}

/// The dependences of all live values, from those that some inputs are given; or what stands in the way, and where.
fn classify(
    graph: &Graph,
    given: &BTreeMap<ValueId, BatchDependence>,
    microbatches: usize,
    accumulated: &BTreeSet<ValueId>,
) -> Result<Vec<Option<BatchDependence>>, (ValueId, &'static str)> {
    // A state that is updated is live even if nothing reads it.
    let outputs = graph.outputs().iter();
    let updated =
        outputs.filter(|output| output.updates_state).filter_map(|output| graph.input(&output.name));
    let live = graph.needed(graph.outputs().iter().map(|output| output.value).chain(updated), |_| false);
    let mut dependences: Vec<Option<BatchDependence>> = Vec::with_capacity(graph.len());
    for id in graph.ids() {
        if !live[id.index()] {
            dependences.push(None);
            continue;
        }
        if let Some(&dependence) = given.get(&id) {
            dependences.push(Some(dependence));
            continue;
        }
        let operand = |operand: &ValueId| match accumulated.contains(operand) {
            true => BatchDependence::Complete,
            false => dependences[operand.index()].expect("operands of what lives live"),
        };
        let operands: Vec<_> = graph[id].operands.iter().map(operand).collect();
        let dependence = dependence(graph, id, &operands, microbatches).map_err(|reason| (id, reason))?;
        dependences.push(Some(dependence));
    }
    Ok(dependences)
}

/// What the batch has to do with a value from those of its operands.
fn dependence(
    graph: &Graph,
    id: ValueId,
    operands: &[BatchDependence],
    microbatches: usize,
) -> Result<BatchDependence, &'static str> {
    let node = &graph[id];
    let sliced = operands.iter().enumerate().find_map(|(slot, dependence)| match dependence {
        BatchDependence::Sliced(axis) => Some((slot, *axis)),
        _ => None,
    });
    let Some((slot, axis)) = sliced else {
        return Ok(unsliced(&node.op, operands, node.ty.dtype.is_float()));
    };
    if let Op::Scan(scan) = &node.op {
        return Loop::new(scan, operands, microbatches)?.result();
    }
    if let Some(lookup) = LocalLookup::new(graph, id, operands) {
        return Ok(BatchDependence::Sliced(lookup.axis));
    }
    let types: Vec<_> = node.operands.iter().map(|&operand| &graph[operand].ty).collect();
    let map = axis_map(&node.op, &types, slot, axis, microbatches)?;
    for (dependence, axis) in operands.iter().zip(&map.operands) {
        match dependence {
            BatchDependence::Partial(_) | BatchDependence::Complete => {
                return Err("a microbatch needs a sum over the whole batch");
            }
            BatchDependence::Sliced(own) if Some(*own) != *axis => {
                return Err("the batch meets itself on another axis");
            }
            BatchDependence::Sliced(_) | BatchDependence::Whole => {}
        }
    }
    Ok(match map.result {
        ResultAxis::Axis(axis) => BatchDependence::Sliced(axis),
        ResultAxis::Reduced(op) => BatchDependence::Partial(op),
    })
}

/// What the batch has to do with a value none of whose operands has the batch as an axis.
fn unsliced(op: &Op, operands: &[BatchDependence], is_float: bool) -> BatchDependence {
    if operands.iter().all(|dependence| *dependence == BatchDependence::Whole) {
        return BatchDependence::Whole;
    }
    let kept = if operands.contains(&BatchDependence::Complete) {
        None
    } else {
        still_partial(op, operands, is_float)
    };
    kept.map_or(BatchDependence::Complete, BatchDependence::Partial)
}

/// How the microbatches' results of an op combine to its result on the combination, if they do: the op is linear in its partial
/// operands, or for extrema moves elements only. Ops that make a value larger are left to the tail.
fn still_partial(op: &Op, operands: &[BatchDependence], is_float: bool) -> Option<ReduceOp> {
    use BatchDependence::{Partial, Whole};
    const SUM: BatchDependence = Partial(ReduceOp::Sum);
    let same = || match operands[0] {
        Partial(op) => Some(op),
        _ => None,
    };
    match op {
        Op::Unary(Unary::Neg) => same().filter(|op| *op == ReduceOp::Sum),
        Op::Binary(Binary::Add | Binary::Sub) => (operands == [SUM, SUM]).then_some(ReduceOp::Sum),
        Op::Binary(Binary::Mul) => {
            (operands == [SUM, Whole] || operands == [Whole, SUM]).then_some(ReduceOp::Sum)
        }
        Op::Binary(Binary::Div) => (is_float && operands == [SUM, Whole]).then_some(ReduceOp::Sum),
        Op::Reduce(reduce) => same().filter(|op| *op == reduce.op),
        Op::Reshape(_) | Op::Permute(_) | Op::Slice(_) | Op::Windows(_) => same(),
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Input(_)
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::RandomBits(_)
        | Op::Compare(_)
        | Op::Select(_)
        | Op::Cast(_)
        | Op::Broadcast(_)
        | Op::Pad(_)
        | Op::Concat(_)
        | Op::DotGeneral(_)
        | Op::Gather(_)
        | Op::ScatterAdd(_)
        | Op::DynamicSlice(_)
        | Op::DynamicUpdate(_)
        | Op::Scan(_)
        | Op::Collective(_) => None,
    }
}

/// The partial values that are outputs or have a reader that is not partial itself.
fn to_accumulate(graph: &Graph, dependences: &[Option<BatchDependence>]) -> BTreeSet<ValueId> {
    let is_partial = |id: ValueId| matches!(dependences[id.index()], Some(BatchDependence::Partial(_)));
    let mut found: BTreeSet<_> = graph.outputs().iter().map(|output| output.value).collect();
    for id in graph.ids().filter(|&id| dependences[id.index()].is_some() && !is_partial(id)) {
        found.extend(&graph[id].operands);
    }
    found.retain(|&id| is_partial(id));
    found
}
