//! Common subexpressions: of two nodes with the same op and operands, the first serves both.
//!
//! ```text
//! %1 = exp %0         %1 = exp %0
//! %2 = exp %0    →    %2 = add %1 %1
//! %3 = add %1 %2
//! ```

use crate::Rebuild;
use kernfusion_ir::{Graph, Op, Result, ValueId};
use rustc_hash::FxHashMap;

pub(crate) fn merge_common_subexpressions(graph: &mut Graph) -> Result<()> {
    let mut seen: FxHashMap<(Op, Vec<ValueId>), ValueId> = FxHashMap::default();
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        let node = &graph[id];
        let key = (node.op.clone(), rebuild.operands(node));
        match seen.get(&key) {
            Some(&first) => rebuild.replace(id, first),
            None => {
                let new = rebuild.copy(id)?;
                *seen.entry(key).or_insert(new)
            }
        };
    }
    *graph = rebuild.finish();
    Ok(())
}
