//! The two halves of a training step: forward is whatever the first result (the loss) depends on; what follows
//! are gradients and updates. A program without gradients has no second half.

use kernfusion_ir::Graph;

/// Whether each value belongs to the first half.
pub(crate) fn forward(graph: &Graph) -> Vec<bool> {
    let Some(result) = graph.outputs().iter().find(|output| !output.updates_state) else {
        return vec![true; graph.len()];
    };
    graph.needed([result.value], |_| false)
}
