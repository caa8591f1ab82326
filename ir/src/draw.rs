//! Pictures of graphs (DOT for Graphviz, Mermaid for Markdown) and their JSON.
//!
//! A graph is grouped by scope: `blocks.0.attn` is a box in `blocks.0` in `blocks`. A kernel graph has kernels as
//! boxes and buffers as edges from the kernel that wrote them to those that read them.

use crate::kernel::{BufferId, BufferRole, KernelGraph};
use crate::{Graph, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Why a JSON text is no graph.
#[derive(Debug, thiserror::Error)]
#[error("not a graph in JSON: {0}")]
pub struct JsonError(#[from] serde_json::Error);

impl Graph {
    /// The graph for Graphviz' `dot`.
    pub fn to_dot(&self) -> String {
        picture(self).dot()
    }

    /// The graph as a Mermaid flowchart.
    pub fn to_mermaid(&self) -> String {
        picture(self).mermaid()
    }

    /// The graph as indented JSON, which [`Graph::from_json`] reads back.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a graph has no keys that JSON lacks")
    }

    /// Reads what [`Graph::to_json`] wrote. As after [`Graph::parse`], the graph is not verified.
    ///
    /// # Errors
    /// If the text is not JSON of that form.
    pub fn from_json(text: &str) -> Result<Graph, JsonError> {
        Ok(serde_json::from_str(text)?)
    }
}

impl KernelGraph {
    /// The kernels for Graphviz' `dot`.
    pub fn to_dot(&self) -> String {
        kernel_picture(self).dot()
    }

    /// The kernels as a Mermaid flowchart.
    pub fn to_mermaid(&self) -> String {
        kernel_picture(self).mermaid()
    }

    /// The kernels as indented JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("kernels have no keys that JSON lacks")
    }
}

/// A node of a picture.
struct Shape {
    id: String,
    /// One or more lines.
    label: String,
    outline: Outline,
}

#[derive(Clone, Copy)]
enum Outline {
    /// Something that computes.
    Box,
    /// An input or a state.
    Round,
    /// A result.
    Flag,
}

/// Boxes in nested groups, with edges.
struct Picture {
    name: String,
    root: Group,
    /// From, to, label.
    edges: Vec<(String, String, String)>,
}

#[derive(Default)]
struct Group {
    shapes: Vec<Shape>,
    inner: BTreeMap<String, Group>,
}

impl Group {
    /// The group of a scope, made if it is new.
    fn of(&mut self, scope: &str) -> &mut Group {
        let parts = scope.split('.').filter(|part| !part.is_empty());
        parts.fold(self, |group, part| group.inner.entry(part.into()).or_default())
    }
}

fn picture(graph: &Graph) -> Picture {
    let mut picture = Picture { name: graph.name.clone(), root: Group::default(), edges: vec![] };
    let id = |value: ValueId| format!("v{}", value.index());
    let inputs: BTreeMap<_, _> = graph.inputs().map(|(id, name, _)| (id, name)).collect();
    for value in graph.ids() {
        let node = &graph[value];
        let (label, outline) = match inputs.get(&value) {
            Some(name) => (format!("{name}\n{}", node.ty), Outline::Round),
            None => {
                (format!("{}{}\n{}", node.op.name(), node.op.attributes().brief(), node.ty), Outline::Box)
            }
        };
        picture.root.of(&node.origin.scope).shapes.push(Shape { id: id(value), label, outline });
        for (slot, operand) in node.operands.iter().enumerate() {
            let label = if node.operands.len() > 1 { slot.to_string() } else { String::new() };
            picture.edges.push((id(*operand), id(value), label));
        }
    }
    for (number, output) in graph.outputs().iter().enumerate() {
        let label =
            if output.updates_state { format!("update {}", output.name) } else { output.name.clone() };
        let flag = format!("out{number}");
        picture.root.shapes.push(Shape { id: flag.clone(), label, outline: Outline::Flag });
        picture.edges.push((id(output.value), flag, String::new()));
    }
    picture
}

fn kernel_picture(graph: &KernelGraph) -> Picture {
    let mut picture = Picture { name: graph.name.clone(), root: Group::default(), edges: vec![] };
    let shapes = &mut picture.root.shapes;
    let label = |id: BufferId| format!("{}\n{}", graph.buffer(id).name, graph.buffer(id).ty);
    let read: BTreeSet<_> = graph.kernels.iter().flat_map(|kernel| kernel.reads()).collect();
    // The shape that has the data of each buffer at present.
    let mut holder: BTreeMap<BufferId, String> = BTreeMap::new();
    for (number, buffer) in graph.buffers.iter().enumerate() {
        let id = BufferId(number as u32);
        if buffer.role != BufferRole::Temporary && read.contains(&id) {
            let shape = format!("b{number}");
            holder.insert(id, shape.clone());
            shapes.push(Shape { id: shape, label: label(id), outline: Outline::Round });
        }
    }
    for (number, kernel) in graph.kernels.iter().enumerate() {
        let shape = format!("k{number}");
        let text = format!("{}\n{} operations", kernel.name, kernel.operations());
        shapes.push(Shape { id: shape.clone(), label: text, outline: Outline::Box });
        for buffer in kernel.reads() {
            let Some(from) = holder.get(&buffer) else { continue };
            // The shape of an input says what it is.
            let label = if from.starts_with('k') { label(buffer) } else { String::new() };
            picture.edges.push((from.clone(), shape.clone(), label));
        }
        kernel.writes().into_iter().for_each(|buffer| drop(holder.insert(buffer, shape.clone())));
    }
    let outputs = graph.outputs.iter().map(|(name, buffer, _)| (name.clone(), *buffer));
    let updates =
        graph.updates.iter().map(|(state, value)| (format!("update {}", graph.buffer(*state).name), *value));
    for (number, (name, buffer)) in outputs.chain(updates).enumerate() {
        let flag = format!("out{number}");
        shapes.push(Shape { id: flag.clone(), label: name, outline: Outline::Flag });
        if let Some(from) = holder.get(&buffer) {
            picture.edges.push((from.clone(), flag, label(buffer)));
        }
    }
    picture
}

impl Picture {
    fn dot(&self) -> String {
        let mut text =
            format!("digraph {} {{\n  rankdir=TB;\n  node [fontname=\"monospace\"];\n", quoted(&self.name));
        dot_group(&mut text, &self.root, "", 1);
        for (from, to, label) in &self.edges {
            let label = if label.is_empty() { String::new() } else { format!(" [label={}]", quoted(label)) };
            line(&mut text, 1, &format!("{from} -> {to}{label};"));
        }
        text + "}\n"
    }

    fn mermaid(&self) -> String {
        let mut text = format!("---\ntitle: {}\n---\nflowchart TB\n", quoted(&self.name));
        mermaid_group(&mut text, &self.root, "", 1);
        for (from, to, label) in &self.edges {
            let label = if label.is_empty() { String::new() } else { format!("|{}|", entities(label)) };
            line(&mut text, 1, &format!("{from} -->{label} {to}"));
        }
        text
    }
}

fn line(text: &mut String, depth: usize, content: &str) {
    writeln!(text, "{}{content}", "  ".repeat(depth)).expect("a string can be written to");
}

fn dot_group(text: &mut String, group: &Group, path: &str, depth: usize) {
    for shape in &group.shapes {
        let style = match shape.outline {
            Outline::Box => "shape=box",
            Outline::Round => "shape=ellipse",
            Outline::Flag => "shape=cds",
        };
        line(text, depth, &format!("{} [label={}, {style}];", shape.id, quoted(&shape.label)));
    }
    for (name, inner) in &group.inner {
        let path = joined(path, name);
        line(text, depth, &format!("subgraph {} {{", quoted(&format!("cluster_{path}"))));
        line(text, depth + 1, &format!("label={};", quoted(name)));
        dot_group(text, inner, &path, depth + 1);
        line(text, depth, "}");
    }
}

fn mermaid_group(text: &mut String, group: &Group, path: &str, depth: usize) {
    for shape in &group.shapes {
        let (open, close) = match shape.outline {
            Outline::Box => ("[", "]"),
            Outline::Round => ("([", "])"),
            Outline::Flag => (">", "]"),
        };
        line(text, depth, &format!("{}{open}{}{close}", shape.id, entities(&shape.label)));
    }
    for (number, (name, inner)) in group.inner.iter().enumerate() {
        // Identifiers of groups are words, so scopes are numbered.
        let path = format!("{path}_{number}");
        line(text, depth, &format!("subgraph g{path} [{}]", entities(name)));
        mermaid_group(text, inner, &path, depth + 1);
        line(text, depth, "end");
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}

/// A string of DOT, which is one of YAML as well.
fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' => "\\\"".into(),
        '\\' => "\\\\".into(),
        '\n' => "\\n".into(),
        c if c.is_control() => " ".into(),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

/// A string of Mermaid: what has a meaning there, or in HTML, is written as a number.
fn entities(text: &str) -> String {
    let escape = |c: char| match c {
        '\n' => "<br/>".into(),
        '"' | '#' | '&' | '<' | '>' | '`' | '\\' | ';' => format!("#{};", c as u32),
        c if c.is_control() => " ".into(),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}
