//! Files of ONNX: a graph of operators in protobuf.
//!
//! A file need not say of which types its values are. So it is traced once when it is read, node after node: that gives types, and finds
//! mistakes. What follows from numbers of the file alone, or from shapes, is computed there, as operators take shapes and axes as tensors:
//!
//! ```text
//! s = Shape(x)             [2, 6, 8]
//! b = Gather(s, 0)         2
//! r = Concat([b], [-1])    [2, -1]
//! y = Reshape(x, r)        onnx.Reshape(self = x, size = [2, -1])
//! ```
//!
//! Nodes become those of [the schema](crate::schema), with arguments by name; nodes that no result needs are left out.

mod folding;
mod half_bytes;
mod inputs;
mod lowering;
mod messages;
mod quantized;
mod tensors;
mod writing;

pub use writing::{LARGE, OnnxFile};

use crate::Result;
use crate::call::{Call, Fault, Values};
use crate::constants::closed_form;
use crate::error::{ImportError, UnknownOperator};
use crate::imported::{Imported, Source};
use crate::operators;
use crate::schema::{Argument, Name, Node};
use crate::sizes::Chosen;
use crate::state::{State, Value};
use half_bytes::Arranged;
use kernfusion::trace::{Tensor, Trace};
use kernfusion_ir::TensorType;
use messages::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use prost::Message;
use prost::bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use tensors::{Beside, Constant};

/// The versions of the operator set that are read.
const FIRST: i64 = 13;
const LAST: i64 = 28;

/// Reads a model from the bytes of its file.
///
/// # Errors
/// As [`Imported::open_sized`].
pub(crate) fn read(path: &Path, bytes: Vec<u8>, extents: &[Chosen<'_>]) -> Result<Imported> {
    let wrong = |reason: String| ImportError::Archive { path: path.into(), reason };
    let neither = "it is no whole archive of torch.export.save, and no whole ONNX model";
    let model = ModelProto::decode(Bytes::from(bytes)).map_err(|error| {
        // Its explanation may have several lines.
        wrong(format!("{neither}: {}", error.to_string().lines().next().unwrap_or_default()))
    })?;
    let (Some(graph), 1..) = (&model.graph, model.ir_version) else { return Err(wrong(neither.into())) };
    let is_standard = |domain: &str| matches!(domain, "" | "ai.onnx");
    match model.opset_import.iter().find(|set| is_standard(&set.domain)).map(|set| set.version) {
        Some(FIRST..=LAST) => {}
        Some(version) => {
            return Err(wrong(format!(
                "its operators have version {version}, and {FIRST} to {LAST} are read"
            )));
        }
        None => return Err(wrong("it does not say which version its operators have".into())),
    }
    check_names(graph).map_err(wrong)?;
    check_operators(path, graph)?;
    if !graph.sparse_initializer.is_empty() {
        return Err(wrong("it has sparse tensors".into()));
    }
    let mut reader = Reader::new(path, graph);
    reader.initializers().map_err(wrong)?;
    reader.inputs(extents).map_err(wrong)?;
    for node in &graph.node {
        reader.node(node)?;
    }
    reader.imported().map_err(wrong)
}

/// The name of a node's operator in the table.
fn operator_name(node: &NodeProto) -> String {
    match node.domain.as_str() {
        "" | "ai.onnx" => format!("onnx.{}", node.op_type),
        domain => format!("{domain}::{}", node.op_type),
    }
}

/// Whether the reader itself does what a node does.
fn is_of_reader(name: &str) -> bool {
    matches!(name, "onnx.Constant" | "onnx.SequenceAt")
}

/// Refuses names that would not stand in a line of a message.
fn check_names(graph: &GraphProto) -> std::result::Result<(), Fault> {
    let of_node = |node: &NodeProto| {
        let own = [&node.name, &node.op_type, &node.domain].into_iter();
        let attributes = node.attribute.iter().map(|attribute| &attribute.name);
        let mut names = own.chain(&node.input).chain(&node.output).chain(attributes);
        names.find(|name| name.contains(char::is_control)).cloned()
    };
    let of_tensor = |tensor: &TensorProto| {
        let external = tensor.external_data.iter().map(|entry| &entry.value);
        [&tensor.name].into_iter().chain(external).find(|name| name.contains(char::is_control)).cloned()
    };
    let of_value =
        |info: &ValueInfoProto| Some(info.name.clone()).filter(|name| name.contains(char::is_control));
    let nodes = graph.node.iter().filter_map(of_node);
    let tensors = graph.initializer.iter().filter_map(of_tensor);
    let values = graph.input.iter().chain(&graph.output).filter_map(of_value);
    match nodes.chain(tensors).chain(values).next() {
        None => Ok(()),
        Some(name) => Err(format!("the name {name:?} has a control character")),
    }
}

/// Lists all operators that are not known.
fn check_operators(path: &Path, graph: &GraphProto) -> Result<()> {
    let mut unknown: Vec<UnknownOperator> = vec![];
    for node in &graph.node {
        let name = operator_name(node);
        if is_of_reader(&name) || operators::find(&name).is_some() {
            continue;
        }
        match unknown.iter_mut().find(|operator| operator.name == name) {
            Some(operator) => operator.count += 1,
            None => unknown.push(UnknownOperator { name, count: 1, first: lowering::metadata(node).place() }),
        }
    }
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(ImportError::Operators { path: path.into(), operators: unknown }),
    }
}

/// What is known of a graph while its nodes are read one after another.
struct Reader<'m> {
    path: &'m Path,
    graph: &'m GraphProto,
    trace: Trace,
    /// Values on that trace.
    values: Values,
    /// Initializers and inputs in the order in which they are declared.
    sources: Vec<(String, Source)>,
    states: Vec<State>,
    beside: Beside<'m>,
    /// Values whose numbers are known.
    constants: HashMap<String, Constant>,
    /// For each sequence the values that it has.
    sequences: HashMap<String, Vec<String>>,
    /// Names that stand for other ones.
    aliases: HashMap<String, String>,
    nodes: Vec<Node>,
    types: BTreeMap<String, std::result::Result<TensorType, Fault>>,
    /// Bytes without a sign, which are kept less 128.
    without_sign: HashSet<String>,
    /// Initializers that are kept in another order.
    arranged: HashMap<&'m str, Arranged>,
    /// What the file says of the types of values.
    said: HashMap<&'m str, &'m ValueInfoProto>,
}

impl<'m> Reader<'m> {
    fn new(path: &'m Path, graph: &'m GraphProto) -> Self {
        let said = graph.value_info.iter().chain(&graph.output).map(|info| (info.name.as_str(), info));
        Reader {
            path,
            graph,
            trace: Trace::new(),
            values: Values::new(),
            sources: vec![],
            states: vec![],
            beside: Beside::new(path),
            constants: HashMap::new(),
            sequences: HashMap::new(),
            aliases: HashMap::new(),
            nodes: vec![],
            types: BTreeMap::new(),
            without_sign: HashSet::new(),
            arranged: half_bytes::arranged(graph),
            said: said.collect(),
        }
    }

    /// Whether a value of that name is there.
    fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
            || self.constants.contains_key(name)
            || self.sequences.contains_key(name)
            || self.aliases.contains_key(name)
    }

    /// The name of the value that a name stands for.
    fn resolved<'n>(&'n self, name: &'n str) -> &'n str {
        self.aliases.get(name).map_or(name, String::as_str)
    }

    /// Adds a constant.
    fn constant(&mut self, name: &str, constant: Constant) {
        if constant.has_no_sign {
            self.without_sign.insert(name.into());
        }
        self.constants.insert(name.into(), constant);
    }

    /// Puts a constant on the trace that a node reads as a tensor. One that is no tensor here, as its numbers are too large, has no source: it
    /// may be a bound of a slice in the end.
    fn use_constant(&mut self, name: &str) {
        let Some(constant) = self.constants.get(name).filter(|_| !self.values.contains_key(name)) else {
            return;
        };
        let ty = constant.ty.clone();
        if let Ok(value) = constant.tensor() {
            let source = match closed_form(&value) {
                Some(form) => Source::ClosedForm(ty.clone(), form),
                None => {
                    self.states.push(State::new(self.path.into(), name, Value::Held(value), false));
                    Source::State(self.states.len() - 1)
                }
            };
            self.sources.push((name.into(), source));
        }
        self.values.insert(name.into(), self.trace.input(name, ty.shape, ty.dtype));
    }

    fn node(&mut self, proto: &'m NodeProto) -> Result<()> {
        self.traced(proto).map_err(|reason| ImportError::Node {
            path: self.path.into(),
            operator: operator_name(proto),
            place: lowering::metadata(proto).place().into(),
            reason,
        })
    }

    fn traced(&mut self, proto: &'m NodeProto) -> std::result::Result<(), Fault> {
        proto.output.iter().filter(|name| !name.is_empty()).try_for_each(|name| self.ensure_new(name))?;
        let name = operator_name(proto);
        match name.as_str() {
            "onnx.Constant" => return self.constant_node(proto),
            "onnx.SequenceAt" => return self.picked(proto),
            _ => {}
        }
        let operator = operators::find(&name).expect("checked before");
        let mut node = self.lowered(proto, operator)?;
        node.tensors().for_each(|name| self.use_constant(&name.name));
        let onnx = operator.onnx.as_ref().expect("a row of ONNX");
        let unseen = Call { trace: &self.trace, node: &node, values: &self.values, results: &[] };
        let types = (onnx.types)(&unseen)?;
        if name == "onnx.SplitToSequence" {
            node.outputs = self.sequence(proto, types.len())?;
        }
        self.follow_bytes(proto, onnx.takes, &node)?;
        let call = Call { trace: &self.trace, node: &node, values: &self.values, results: &types };
        let built = (operator.build)(&call)?;
        if let Some(error) = self.trace.error() {
            return Err(error.to_string().lines().next().unwrap_or_default().into());
        }
        let folded = self.folded(operator, &node, &types, &built);
        self.keep_results(&node, built, folded)?;
        self.nodes.push(node);
        Ok(())
    }

    /// Refuses a name that is there already.
    fn ensure_new(&self, name: &str) -> std::result::Result<(), Fault> {
        match self.has(name) {
            true => Err(format!("it gives \"{name}\", which is there already")),
            false => Ok(()),
        }
    }

    /// The parts of the sequence that a node gives, as its results.
    fn sequence(&mut self, proto: &NodeProto, count: usize) -> std::result::Result<Vec<Argument>, Fault> {
        let sequence = proto.output.first().ok_or("it has no result")?;
        let parts: Vec<_> = (0..count).map(|at| format!("{sequence}.{at}")).collect();
        parts.iter().try_for_each(|part| self.ensure_new(part))?;
        let outputs = parts.iter().map(|part| tensor(part)).collect();
        self.sequences.insert(sequence.clone(), parts);
        Ok(outputs)
    }

    /// Makes what a node gives values of the graph.
    fn keep_results(
        &mut self,
        node: &Node,
        built: Vec<Tensor>,
        folded: Vec<Constant>,
    ) -> std::result::Result<(), Fault> {
        let names = node.results();
        if built.len() < names.len() {
            return Err(format!("it gives {} results, and the file has {}", built.len(), names.len()));
        }
        let mut folded = folded.into_iter();
        for (name, result) in names.into_iter().zip(built) {
            self.check_type(name, &result.ty())?;
            self.constants.extend(folded.next().map(|constant| (name.into(), constant)));
            self.types.insert(name.into(), Ok(result.ty()));
            self.values.insert(name.into(), result);
        }
        Ok(())
    }

    /// The model of the nodes that its results need.
    fn imported(mut self) -> std::result::Result<Imported, Fault> {
        let mut results = vec![];
        for output in &self.graph.output {
            let name = self.resolved(&output.name).to_string();
            self.use_constant(&name);
            let Some(value) = self.values.get(&name) else {
                return Err(format!("its result \"{}\" is nowhere, or no tensor", output.name));
            };
            if self.without_sign.contains(&name) {
                return Err(format!("its result \"{}\" is of uint8, and no tensor here is", output.name));
            }
            self.check_type(&output.name, &value.ty())?;
            results.push(name);
        }
        let mut needed: BTreeSet<String> = results.iter().cloned().collect();
        let mut nodes: Vec<Node> = vec![];
        for node in self.nodes.into_iter().rev() {
            if node.results().into_iter().any(|name| needed.contains(name)) {
                needed.extend(node.tensors().map(|name| name.name.clone()));
                nodes.push(node);
            }
        }
        nodes.reverse();
        for (name, constant) in self.constants.iter().filter(|(name, _)| needed.contains(*name)) {
            constant.tensor().map_err(|reason| format!("\"{name}\": {reason}"))?;
        }
        let (sources, states) = kept(self.sources, self.states, &needed);
        let path = self.path.into();
        Ok(Imported { path, nodes, types: self.types, sources, states, results, updates: vec![] })
    }
}

/// The inputs, and those of the other sources that nodes need, with their states.
fn kept(
    sources: Vec<(String, Source)>,
    states: Vec<State>,
    needed: &BTreeSet<String>,
) -> (Vec<(String, Source)>, Vec<State>) {
    let (mut states, mut kept): (Vec<_>, _) = (states.into_iter().map(Some).collect(), vec![]);
    let mut sources_kept = vec![];
    for (name, source) in sources {
        let source = match source {
            Source::Given(_) => source,
            _ if !needed.contains(&name) => continue,
            Source::State(at) => {
                kept.extend(states[at].take());
                Source::State(kept.len() - 1)
            }
            Source::ClosedForm(..) => source,
        };
        sources_kept.push((name, source));
    }
    (sources_kept, kept)
}

fn tensor(name: &str) -> Argument {
    Argument::Tensor(Name { name: name.into() })
}
