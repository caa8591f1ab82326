//! Dead code: values that no output depends on. Inputs stay, they are the program's interface.
//!
//! ```text
//! %1 = exp %0   →   output %0
//! output %0
//! ```

use crate::Rebuild;
use kernfusion_ir::{Graph, Op, Result};

pub(crate) fn remove_dead_code(graph: &mut Graph) -> Result<()> {
    let mut live = vec![false; graph.len()];
    graph.outputs().iter().for_each(|output| live[output.value.index()] = true);
    for id in graph.ids().rev() {
        let node = &graph[id];
        live[id.index()] |= matches!(node.op, Op::Input(_));
        if live[id.index()] {
            node.operands.iter().for_each(|operand| live[operand.index()] = true);
        }
    }
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids().filter(|id| live[id.index()]) {
        rebuild.copy(id)?;
    }
    *graph = rebuild.finish();
    Ok(())
}
