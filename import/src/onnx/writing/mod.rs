//! The forward pass of a program as a file of ONNX, which other programs run, and which [is read](crate::Imported::open) here, too.
//!
//! Ops become nodes by one [table](ops). States are initializers under their own names; the file says which are trained, in the words of
//! PyTorch's exporter, so that a program that is read from it trains the same parameters.
//!
//! A broadcast is written only where its whole tensor is needed, since the nodes of ONNX that work on each element broadcast by themselves:
//!
//! ```text
//! %b = broadcast %bias {shape = [2, 6, 8], axes = [2]}
//! %y = add %x, %b                                          Add(x, bias)
//! ```

mod ops;

use super::inputs::KIND;
use super::lowering::{SCOPES, STACK};
use super::messages::{
    AttributeProto, Dimension, Extent, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto, kind,
};
use crate::error::{ImportError, Place, UnknownOperator};
use kernfusion::HostTensor;
use kernfusion::compile::Tensors;
use kernfusion::trace::Program;
use kernfusion_ir::{DType, Graph, InputRole, Op, Origin, TensorType, ValueId};
use prost::Message;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};

/// The version of the operator set: the first one in which all operators of the table take what they are given here.
const OPERATORS: i64 = 18;
/// The version of the format: the first one in which nodes and values have metadata.
const FORMAT: i64 = 10;
/// Bytes of states from which on they are kept in a file of their own: a message of protobuf ends at 2 GiB, and those who read one keep all of
/// it in memory. Below it is more convenient that a model is one file.
pub const LARGE: usize = 256 << 20;
/// Tensors of fewer bytes stay in the message in any case: their entry in it would take as much.
const SMALL: usize = 1 << 10;
/// Tensors in their own file begin at pages, so that it can be mapped.
const PAGE: usize = 4096;

/// A program as a file of ONNX.
pub struct OnnxFile<'s> {
    message: Vec<u8>,
    /// What lies in a file of its own, one after another, each at the next page.
    external: Vec<&'s HostTensor>,
}

impl<'s> OnnxFile<'s> {
    /// The forward pass of a program with these values of its states. If they have [`LARGE`] bytes or more, they lie in a file of the name
    /// `data` beside the message.
    ///
    /// # Errors
    /// The program has ops that ONNX has no counterpart for: all of them are listed. It updates states, lacks one, or one is of another type.
    pub fn new(program: &Program, states: &'s Tensors, data: &str) -> crate::Result<Self> {
        OnnxFile::with_limit(program, states, data, LARGE)
    }

    /// As [`OnnxFile::new`], with another limit than [`LARGE`].
    ///
    /// # Errors
    /// As there.
    pub fn with_limit(
        program: &Program,
        states: &'s Tensors,
        data: &str,
        limit: usize,
    ) -> crate::Result<Self> {
        let graph = &program.graph;
        check(graph)?;
        let mut writer = Writer::new(graph);
        let kept = states_of(program, states)?;
        let bytes: usize = kept.iter().map(|(_, value, _)| value.ty().bytes()).sum();
        let (mut external, mut offset) = (vec![], 0);
        for (name, value, is_trained) in kept {
            let mut proto = described(name, &value.ty());
            if bytes >= limit && value.ty().bytes() >= SMALL {
                proto.data_location = 1;
                let entries = [
                    ("location", data.to_string()),
                    ("offset", offset.to_string()),
                    ("length", value.ty().bytes().to_string()),
                ];
                proto.external_data = entries.map(|(key, value)| entry(key, value)).into();
                offset += value.ty().bytes().next_multiple_of(PAGE);
                external.push(value);
            } else {
                proto.raw_data = value.bytes().to_vec().into();
            }
            writer.proto.initializer.push(proto);
            let kind = if is_trained { "PARAMETER" } else { "BUFFER" };
            let info = ValueInfoProto {
                metadata_props: vec![entry(KIND, kind.into())],
                ..value_info(name, &value.ty())
            };
            writer.proto.value_info.push(info);
        }
        let model = ModelProto {
            ir_version: FORMAT,
            graph: Some(writer.finished()?),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPERATORS }],
        };
        Ok(OnnxFile { message: model.encode_to_vec(), external })
    }

    /// The content of the file.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Whether there is a file of tensors beside it.
    pub fn has_data(&self) -> bool {
        !self.external.is_empty()
    }

    /// Writes the content of the file of tensors.
    ///
    /// # Errors
    /// Those of `file`.
    pub fn write_data(&self, file: &mut dyn Write) -> io::Result<()> {
        let mut at = 0usize;
        for tensor in &self.external {
            let start = at.next_multiple_of(PAGE);
            file.write_all(&vec![0; start - at])?;
            file.write_all(tensor.bytes())?;
            at = start + tensor.ty().bytes();
        }
        Ok(())
    }
}

/// Refuses what ONNX cannot have.
fn check(graph: &Graph) -> crate::Result<()> {
    let updated: Vec<_> = graph.outputs().iter().filter(|output| output.updates_state).collect();
    if let Some(output) = updated.first() {
        let reason = format!(
            "it updates {} states, such as \"{}\": export a model that is evaluated, not trained",
            updated.len(),
            output.name
        );
        return Err(ImportError::Export(reason));
    }
    let mut unknown: BTreeMap<&str, UnknownOperator> = BTreeMap::new();
    let needed = needed(graph);
    for id in graph.ids().filter(|id| needed[id.index()]) {
        let node = &graph[id];
        if ops::is_known(&node.op, &node.ty) {
            continue;
        }
        let first = || {
            let line = node.origin.location.as_ref().map(|at| format!("{}:{}", at.file, at.line));
            let place = Place { module: node.origin.scope.to_string(), line: line.unwrap_or_default() };
            UnknownOperator { name: node.op.name().into(), count: 0, first: place }
        };
        unknown.entry(node.op.name()).or_insert_with(first).count += 1;
    }
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(ImportError::ExportOps(unknown.into_values().collect())),
    }
}

/// What results need.
fn needed(graph: &Graph) -> Vec<bool> {
    graph.needed(graph.outputs().iter().map(|output| output.value), |_| false)
}

/// The states that results need, by name, with their values and whether they are trained.
fn states_of<'a, 's>(
    program: &'a Program,
    states: &'s Tensors,
) -> crate::Result<Vec<(&'a str, &'s HostTensor, bool)>> {
    let (graph, needed) = (&program.graph, needed(&program.graph));
    let trained: HashSet<_> =
        program.parameters.iter().filter(|it| it.trained).map(|it| it.name.as_str()).collect();
    let kept = graph.inputs().filter(|(id, _, role)| needed[id.index()] && *role == InputRole::State);
    let value = |(id, name, _): (ValueId, &'a str, _)| {
        let value = states.get(name).filter(|value| value.ty() == graph[id].ty);
        let missing =
            || ImportError::Export(format!("there is no value of {} for the state \"{name}\"", graph[id].ty));
        Ok((name, value.ok_or_else(missing)?, trained.contains(name)))
    };
    kept.map(value).collect()
}

/// A value as nodes of ONNX have it.
#[derive(Clone)]
enum Written {
    /// Under this name.
    Whole(String),
    /// What is broadcast to it, by itself.
    Broadcast(String),
}

/// Writes nodes in the order of a graph.
struct Writer<'g> {
    graph: &'g Graph,
    proto: GraphProto,
    /// The values so far.
    values: HashMap<ValueId, Written>,
    /// Constants by type, shape and bytes.
    constants: HashMap<(i32, Vec<i64>, Vec<u8>), String>,
    /// What names of values begin with that the graph does not have.
    prefix: String,
    /// How many values have such names.
    count: usize,
    /// Where nodes come from.
    origin: Origin,
}

impl<'g> Writer<'g> {
    fn new(graph: &'g Graph) -> Self {
        let mut prefix = "v".to_string();
        let given = graph.inputs().map(|(_, name, _)| name);
        let given: Vec<_> = given.chain(graph.outputs().iter().map(|it| it.name.as_str())).collect();
        while given.iter().any(|name| name.starts_with(&prefix)) {
            prefix.push('_');
        }
        let (values, constants) = (HashMap::new(), HashMap::new());
        let proto = GraphProto { name: "forward".into(), ..GraphProto::default() };
        Writer { graph, proto, values, constants, prefix, count: 0, origin: Origin::default() }
    }

    /// The graph with all nodes, inputs and outputs.
    fn finished(mut self) -> crate::Result<GraphProto> {
        let (graph, needed) = (self.graph, needed(self.graph));
        for id in graph.ids() {
            let node = &graph[id];
            if let Op::Input(input) = &node.op {
                self.values.insert(id, Written::Whole(input.name.clone()));
                if input.role == InputRole::Data {
                    self.proto.input.push(value_info(&input.name, &node.ty));
                }
            } else if needed[id.index()] {
                self.origin = node.origin.clone();
                let written = ops::write(&mut self, id);
                self.values.insert(id, written);
            }
        }
        self.origin = Origin::default();
        for output in graph.outputs() {
            // A result may be an input, or there twice.
            let value = self.whole(output.value);
            let node = self.node_of("Identity", vec![value], vec![], output.name.clone());
            self.proto.node.push(node);
            self.proto.output.push(value_info(&output.name, &graph[output.value].ty));
        }
        Ok(self.proto)
    }

    fn ty(&self, id: ValueId) -> &'g TensorType {
        &self.graph[id].ty
    }

    /// A value with all its elements.
    fn whole(&mut self, id: ValueId) -> String {
        match self.values[&id].clone() {
            Written::Whole(name) => name,
            Written::Broadcast(small) => {
                let shape = self.extents(&self.ty(id).shape);
                let name = self.node("Expand", vec![small, shape], vec![]);
                self.values.insert(id, Written::Whole(name.clone()));
                name
            }
        }
    }

    /// Operands of a node that works on each element: those that are broadcast are written so, if another one has all elements.
    fn elementwise(&mut self, ids: &[ValueId]) -> Vec<String> {
        let is_whole = |writer: &Self, id: &ValueId| matches!(writer.values[id], Written::Whole(_));
        if !ids.iter().any(|id| is_whole(self, id)) {
            self.whole(ids[0]);
        }
        ids.iter()
            .map(|id| match &self.values[id] {
                Written::Whole(name) | Written::Broadcast(name) => name.clone(),
            })
            .collect()
    }

    /// Adds a node; gives the name of its result.
    fn node(&mut self, operator: &str, inputs: Vec<String>, attributes: Vec<AttributeProto>) -> String {
        let name = self.fresh();
        let node = self.node_of(operator, inputs, attributes, name.clone());
        self.proto.node.push(node);
        name
    }

    fn node_of(
        &self,
        operator: &str,
        input: Vec<String>,
        attribute: Vec<AttributeProto>,
        output: String,
    ) -> NodeProto {
        let mut metadata = vec![];
        if let Some(at) = &self.origin.location {
            metadata.push(entry(STACK, format!("File \"{}\", line {}, in forward", at.file, at.line)));
        }
        if !self.origin.scope.is_empty() {
            metadata.push(entry(SCOPES, format!("['{}', '{operator}']", self.origin.scope)));
        }
        NodeProto {
            input,
            name: format!("{operator}_{output}"),
            output: vec![output],
            op_type: operator.into(),
            attribute,
            domain: String::new(),
            metadata_props: metadata,
        }
    }

    fn fresh(&mut self) -> String {
        self.count += 1;
        format!("{}{}", self.prefix, self.count)
    }

    /// A constant tensor.
    fn constant(&mut self, value: &HostTensor) -> String {
        let ty = value.ty();
        self.constant_of(element_code(ty.dtype), &ty.shape, value.bytes().to_vec())
    }

    /// Extents, axes or bounds, as nodes take them.
    fn extents(&mut self, numbers: &[usize]) -> String {
        let bytes = numbers.iter().flat_map(|&number| (number as i64).to_le_bytes()).collect();
        self.constant_of(INT64, &[numbers.len()], bytes)
    }

    fn constant_of(&mut self, code: i32, shape: &[usize], bytes: Vec<u8>) -> String {
        let dims: Vec<_> = shape.iter().map(|&extent| extent as i64).collect();
        let key = (code, dims, bytes);
        if let Some(name) = self.constants.get(&key) {
            return name.clone();
        }
        let name = self.fresh();
        let (data_type, dims, raw_data) = (key.0, key.1.clone(), key.2.clone().into());
        self.proto.initializer.push(TensorProto {
            name: name.clone(),
            data_type,
            dims,
            raw_data,
            ..TensorProto::default()
        });
        self.constants.insert(key, name.clone());
        name
    }
}

const INT64: i32 = 7;

/// The number of a type in ONNX (`TensorProto.DataType`).
fn element_code(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::I8 => 3,
        DType::I32 => 6,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::BF16 => 16,
    }
}

fn described(name: &str, ty: &TensorType) -> TensorProto {
    let dims = ty.shape.iter().map(|&extent| extent as i64).collect();
    TensorProto { name: name.into(), data_type: element_code(ty.dtype), dims, ..TensorProto::default() }
}

fn value_info(name: &str, ty: &TensorType) -> ValueInfoProto {
    let extent = |&extent: &usize| Dimension { value: Some(Extent::Number(extent as i64)) };
    let shape = TensorShapeProto { dim: ty.shape.iter().map(extent).collect() };
    let tensor = TensorTypeProto { elem_type: element_code(ty.dtype), shape: Some(shape) };
    let ty = Some(TypeProto { tensor_type: Some(tensor) });
    ValueInfoProto { name: name.into(), ty, metadata_props: vec![] }
}

fn entry(key: &str, value: String) -> StringStringEntryProto {
    StringStringEntryProto { key: key.into(), value }
}

fn whole_number(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i, kind: kind::INT, ..AttributeProto::default() }
}

fn whole_numbers(name: &str, numbers: &[usize]) -> AttributeProto {
    let ints = numbers.iter().map(|&number| number as i64).collect();
    AttributeProto { name: name.into(), ints, kind: kind::INTS, ..AttributeProto::default() }
}
