//! A reduction to very few elements in two steps, first along the last axis, then the rest: so it runs on
//! all threads, and joins a kernel over the same rows.
//!
//! ```text
//! %1 = reduce sum %0 [0, 1] : f32[]   →   %1 = reduce sum %0 [1] : f32[1024]
//!                                         %2 = reduce sum %1 [0] : f32[]
//! ```
//!
//! Sums are rounded in another order; it depends on the shape alone. Sums of `bf16` and `f16` in between are `f32`, as they are within
//! one reduction: they neither lose digits nor leave the range.

use crate::Rebuild;
use kernfusion_ir::{DType, Graph, KernelEntry, Op, ReduceOp, Result};

/// A result of fewer elements than this is split.
const FEW: usize = 16;
/// An operand of fewer elements is reduced by one thread faster than by several; what follows a reduction has no rows to
/// join a kernel over.
const SMALL: usize = 1 << 16;

/// For each value, whether elementwise ops alone lead to it from a reduction.
fn follow_reductions(graph: &Graph) -> Vec<bool> {
    let mut follow: Vec<bool> = Vec::with_capacity(graph.len());
    for id in graph.ids() {
        let node = &graph[id];
        let follows = match node.op.entry() {
            KernelEntry::Reduction => true,
            KernelEntry::Scalar => node.operands.iter().any(|operand| follow[operand.index()]),
            KernelEntry::Input
            | KernelEntry::Generated
            | KernelEntry::View
            | KernelEntry::Movement
            | KernelEntry::Contraction
            | KernelEntry::Scatter
            | KernelEntry::Loop
            | KernelEntry::Collective => false,
        };
        follow.push(follows);
    }
    follow
}

pub(crate) fn split_reductions(graph: &mut Graph) -> Result<()> {
    let follow = follow_reductions(graph);
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        let node = &graph[id];
        match &node.op {
            Op::Reduce(reduce) if reduce.axes.len() > 1 && node.ty.elements() < FEW => {
                let operand = &graph[node.operands[0]].ty;
                if operand.elements() < SMALL && follow[node.operands[0].index()] {
                    rebuild.copy(id)?;
                    continue;
                }
                let (&last, others) = reduce.axes.split_last().expect("two axes");
                if last + 1 != operand.rank() {
                    rebuild.copy(id)?;
                    continue;
                }
                let dtype = match (reduce.op, operand.dtype) {
                    (ReduceOp::Sum, DType::BF16 | DType::F16) => DType::F32,
                    (_, dtype) => dtype,
                };
                let x = rebuild.place(node.operands[0]);
                let mut b = rebuild.builder(id);
                let x = b.cast(x, dtype)?;
                let rows = b.reduce(reduce.op, &[last], x)?;
                let sum = b.reduce(reduce.op, others, rows)?;
                let new = b.cast(sum, node.ty.dtype)?;
                rebuild.replace(id, new);
            }
            _ => {
                rebuild.copy(id)?;
            }
        }
    }
    *graph = rebuild.finish();
    Ok(())
}
