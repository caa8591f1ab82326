//! What ranks exchange: the sums that each has of its part of the batch.

use super::batch_dependence::Classes;
use super::{MicrobatchError, RESERVED, accumulator_type, refused};
use crate::rebuild::Rebuild;
use kernfusion_ir::{Collective, DType, Exchange, Graph, InputRole, Op, ReduceOp, Result};

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
    Ok(())
}

/// Lets a tail begin with the sums of all ranks, instead of one process' own. It is done to a simplified tail, so that simplification, which
/// may round otherwise where an operand is another one, does the same with ranks and without. A program that exchanges something by itself stays
/// as it is.
///
/// # Errors
/// If a node breaks a type rule.
pub fn exchange_sums(graph: &mut Graph, ranks: usize) -> Result<()> {
    if ranks == 1 || graph.ranks() > 1 {
        return Ok(());
    }
    let is_updated =
        |name: &str| graph.outputs().iter().any(|output| output.updates_state && output.name == name);
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        let own = rebuild.copy(id)?;
        match &graph[id].op {
            // What is updated is the body's own.
            Op::Input(input)
                if input.role == InputRole::State
                    && input.name.starts_with(RESERVED)
                    && !is_updated(&input.name) =>
            {
                let all = Collective { exchange: Exchange::AllReduce, ranks };
                let sum = rebuild.builder(id).op(all, &[own])?;
                rebuild.replace(id, sum);
            }
            _ => {}
        }
    }
    *graph = rebuild.finish();
    Ok(())
}
