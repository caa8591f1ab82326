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
use kernfusion_ir::{DType, Graph, KernelEntry, Op, ReduceOp, Result, ValueId};

/// A result of fewer elements than this is split.
const FEW: usize = 16;
/// An operand of fewer elements is reduced by one thread faster than by several; what follows a reduction has no rows to
/// join a kernel over.
const SMALL: usize = 1 << 16;

/// Whether elementwise ops alone lead from a reduction to a value.
fn follows_reduction(graph: &Graph, value: ValueId) -> bool {
    let node = &graph[value];
    match node.op.entry() {
        KernelEntry::Reduction => true,
        KernelEntry::Scalar => node.operands.iter().any(|&operand| follows_reduction(graph, operand)),
        KernelEntry::Input
        | KernelEntry::Generated
        | KernelEntry::View
        | KernelEntry::Movement
        | KernelEntry::Contraction
        | KernelEntry::Scatter
        | KernelEntry::Loop
        | KernelEntry::Collective => false,
    }
}

pub(crate) fn split_reductions(graph: &mut Graph) -> Result<()> {
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        let node = &graph[id];
        match &node.op {
            Op::Reduce(reduce) if reduce.axes.len() > 1 && node.ty.elements() < FEW => {
                let operand = &graph[node.operands[0]].ty;
                if operand.elements() < SMALL && follows_reduction(graph, node.operands[0]) {
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
