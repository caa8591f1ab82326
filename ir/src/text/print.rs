//! Writing the text form.

use crate::{Graph, Node, Origin};
use std::fmt;

impl fmt::Display for Graph {
    /// The text form, which [`Graph::parse`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {:?} {{", self.name)?;
        for id in self.ids() {
            write!(f, "  %{} = ", id.index())?;
            node(f, &self[id])?;
            f.write_str("\n")?;
        }
        for output in self.outputs() {
            let keyword = if output.updates_state { "update" } else { "output" };
            writeln!(f, "  {keyword} {:?} = %{}", output.name, output.value.index())?;
        }
        f.write_str("}\n")
    }
}

fn node(f: &mut fmt::Formatter<'_>, node: &Node) -> fmt::Result {
    f.write_str(node.op.name())?;
    for (slot, operand) in node.operands.iter().enumerate() {
        write!(f, "{}%{}", if slot == 0 { " " } else { ", " }, operand.index())?;
    }
    write!(f, "{} : {}", node.op.attributes(), node.ty)?;
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
