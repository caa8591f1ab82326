//! Dead code: values that no output depends on. Inputs stay, they are the program's interface.
//!
//! ```text
//! %1 = exp %0   →   output %0
//! output %0
//! ```

use crate::Rebuild;
use kernfusion_ir::{Graph, Op, Result, ValueId};

pub(crate) fn remove_dead_code(graph: &mut Graph) -> Result<()> {
    let needed = graph.needed(graph.outputs().iter().map(|output| output.value), |_| false);
    let stays = |id: &ValueId| needed[id.index()] || matches!(graph[*id].op, Op::Input(_));
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids().filter(stays) {
        rebuild.copy(id)?;
    }
    *graph = rebuild.finish();
    Ok(())
}
