//! Writing the text form.

use crate::{Graph, Node, Origin};
use std::fmt;

impl fmt::Display for Graph {
    /// The text form, which [`Graph::parse`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_graph(f, self, 0)?;
        f.write_str("\n")
    }
}

/// The text form without its last line break. All lines but the first are indented by `indent` blanks.
pub(crate) fn write_graph(f: &mut fmt::Formatter<'_>, graph: &Graph, indent: usize) -> fmt::Result {
    writeln!(f, "graph {:?} {{", graph.name)?;
    for id in graph.ids() {
        write!(f, "{:indent$}  %{} = ", "", id.index())?;
        node(f, &graph[id], indent)?;
        f.write_str("\n")?;
    }
    for output in graph.outputs() {
        let keyword = if output.updates_state { "update" } else { "output" };
        writeln!(f, "{:indent$}  {keyword} {:?} = %{}", "", output.name, output.value.index())?;
    }
    write!(f, "{:indent$}}}", "")
}

fn node(f: &mut fmt::Formatter<'_>, node: &Node, indent: usize) -> fmt::Result {
    f.write_str(node.op.name())?;
    for (slot, operand) in node.operands.iter().enumerate() {
        write!(f, "{}%{}", if slot == 0 { " " } else { ", " }, operand.index())?;
    }
    node.op.attributes().write(f, indent + 4)?;
    write!(f, " : {}", node.ty)?;
    origin(f, &node.origin)
}

fn origin(f: &mut fmt::Formatter<'_>, origin: &Origin) -> fmt::Result {
    if !origin.scope.is_empty() {
        write!(f, " in {:?}", origin.scope)?;
    }
    if let Some(location) = &origin.location {
        write!(f, " at {:?}:{}:{}", location.file, location.line, location.column)?;
    }
    Ok(())
}
