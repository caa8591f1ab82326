//! Graphs in columns, the user's lines, and what passes did.

use kernfusion_ir::{Graph, Location, Op};
use kernfusion_passes::{Pass, PassReport};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::read_to_string;

/// The nodes of a graph; each column has one entry for each node.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Nodes {
    /// Names of ops, by number of the text.
    pub op: Vec<usize>,
    /// Attributes; of inputs their name.
    pub attributes: Vec<usize>,
    /// Types.
    pub ty: Vec<usize>,
    /// Module paths.
    pub scope: Vec<usize>,
    /// Numbers of the user's lines.
    pub line: Vec<Option<usize>>,
    /// The operands' numbers.
    pub operands: Vec<Vec<usize>>,
    /// Bytes of the results.
    pub bytes: Vec<usize>,
    /// 0 in forward, 1 in backward, 2 in updates.
    pub phase: Vec<u8>,
    /// The nodes of the traced graph that have this value, or for which it is computed.
    pub sources: Vec<Vec<usize>>,
    /// 1 if it only helps to compute its sources.
    pub helps: Vec<u8>,
    /// The rewrite rule that found it.
    pub rule: Vec<Option<&'static str>>,
    /// Name, node, and whether it is the new value of a state.
    pub outputs: Vec<(String, usize, bool)>,
}

/// A place in the user's source.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The file, as its compiler knew it.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
    /// The text of the line, where the file can be read from here.
    pub text: Option<String>,
}

/// What a pass did.
#[derive(Debug, Clone, Serialize)]
pub struct PassRow {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// Nodes before and after.
    pub nodes: (usize, usize),
    /// Each op whose number changed: before and after.
    pub ops: BTreeMap<&'static str, (usize, usize)>,
    /// What it had to say.
    pub notes: Vec<String>,
}

/// Texts and lines, each once.
#[derive(Default)]
pub(super) struct Tables {
    strings: Numbers<String>,
    lines: Numbers<Location>,
}

/// Values with their numbers in order of appearance.
pub(super) struct Numbers<T> {
    numbers: HashMap<T, usize>,
    values: Vec<T>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Numbers { numbers: HashMap::new(), values: vec![] }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Numbers<T> {
    /// The number of a value.
    pub(super) fn of(&mut self, value: T) -> usize {
        if let Some(&number) = self.numbers.get(&value) {
            return number;
        }
        self.values.push(value.clone());
        self.numbers.insert(value, self.values.len() - 1);
        self.values.len() - 1
    }

    /// All values in order.
    pub(super) fn values(self) -> Vec<T> {
        self.values
    }
}

impl Tables {
    /// A graph in columns.
    pub(super) fn nodes(&mut self, graph: &Graph) -> Nodes {
        let mut nodes = Nodes { phase: phases(graph), ..Nodes::default() };
        for id in graph.ids() {
            let node = &graph[id];
            let attributes = match &node.op {
                Op::Input(input) => input.name.clone(),
                op => op.attributes().brief().to_string(),
            };
            nodes.op.push(self.strings.of(node.op.name().into()));
            nodes.attributes.push(self.strings.of(attributes));
            nodes.ty.push(self.strings.of(node.ty.to_string()));
            nodes.scope.push(self.strings.of(node.origin.scope.to_string()));
            nodes.line.push(node.origin.location.clone().map(|location| self.lines.of(location)));
            nodes.operands.push(node.operands.iter().map(|operand| operand.index()).collect());
            nodes.bytes.push(node.ty.bytes());
            nodes.sources.push(node.origin.sources().iter().map(|source| source.index()).collect());
            let lineage = node.origin.lineage.as_ref();
            nodes.helps.push(u8::from(lineage.is_some_and(|lineage| lineage.helps)));
            nodes.rule.push(node.origin.rule());
        }
        let outputs = graph.outputs().iter();
        nodes.outputs =
            outputs.map(|output| (output.name.clone(), output.value.index(), output.updates_state)).collect();
        nodes
    }

    pub(super) fn strings(self) -> Vec<String> {
        self.strings.values()
    }

    /// The lines, with their text where it can be found.
    pub(super) fn lines(&mut self) -> Vec<Line> {
        let mut files: HashMap<String, Option<String>> = HashMap::new();
        let lines = std::mem::take(&mut self.lines).values().into_iter();
        let line = |Location { file, line, column }: Location| {
            let file = file.to_string();
            let text = files.entry(file.clone()).or_insert_with(|| source(&file));
            let text = text.as_ref().and_then(|text| text.lines().nth(line as usize - 1));
            Line { text: text.map(|text| text.trim().to_string()), file, line, column }
        };
        lines.map(line).collect()
    }
}

/// The text of a source file. Compilers name it from the root of the workspace, which may be above the current directory.
fn source(file: &str) -> Option<String> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().find_map(|folder| read_to_string(folder.join(file)).ok())
}

/// Forward is what the first result depends on and what stands before it; of the rest, gradients are nodes of a line that has
/// nodes in forward, since derivatives have the place of what they are derived from.
fn phases(graph: &Graph) -> Vec<u8> {
    let first = graph.outputs().iter().find(|output| !output.updates_state);
    let end = first.map_or(graph.len(), |output| output.value.index() + 1);
    let place = |id| {
        let origin: &kernfusion_ir::Origin = &graph[id].origin;
        (origin.location.clone(), origin.scope.clone())
    };
    let forward: HashSet<_> = graph.ids().take(end).map(place).collect();
    let phase = |id: kernfusion_ir::ValueId| match id.index() < end {
        true => 0,
        false if forward.contains(&place(id)) => 1,
        false => 2,
    };
    graph.ids().map(phase).collect()
}

/// Watches the passes.
pub(super) struct PassLog {
    last: BTreeMap<&'static str, usize>,
    rows: Vec<PassRow>,
}

impl PassLog {
    pub(super) fn new(graph: &Graph) -> Self {
        PassLog { last: counts(graph), rows: vec![] }
    }

    pub(super) fn add(&mut self, report: &PassReport, graph: &Graph) {
        let after = counts(graph);
        let names: HashSet<_> = self.last.keys().chain(after.keys()).copied().collect();
        let count = |counts: &BTreeMap<_, usize>, name| counts.get(name).copied().unwrap_or(0);
        let change = |name| (name, (count(&self.last, name), count(&after, name)));
        let ops = names.into_iter().map(change).filter(|(_, (before, after))| before != after).collect();
        let (name, notes) = (report.pass, report.notes.clone());
        self.rows.push(PassRow { name, about: "", nodes: report.nodes, ops, notes });
        self.last = after;
    }

    /// What the passes of this list did.
    pub(super) fn rows(mut self, list: &[Pass]) -> Vec<PassRow> {
        self.rows.iter_mut().zip(list).for_each(|(row, pass)| row.about = pass.about);
        self.rows
    }
}

/// How many nodes of each op there are.
fn counts(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    graph.ids().for_each(|id| *counts.entry(graph[id].op.name()).or_insert(0) += 1);
    counts
}
