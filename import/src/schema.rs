//! What the JSON of an archive says, as far as it is read. The names are those of schema 8 of `torch/_export/serde/schema.py`; fields that
//! are not read may come and go.

use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;

/// The major version of the schema that is read.
pub(crate) const MAJOR: u64 = 8;

/// `models/NAME.json`.
#[derive(Debug, Deserialize)]
pub(crate) struct ExportedProgram {
    pub(crate) graph_module: GraphModule,
    pub(crate) schema_version: SchemaVersion,
    /// For each symbol the extents that it may be.
    #[serde(default)]
    pub(crate) range_constraints: BTreeMap<String, Range>,
}

/// A range of whole numbers, with both ends.
#[derive(Debug, Deserialize)]
pub(crate) struct Range {
    pub(crate) min_val: Option<i64>,
    pub(crate) max_val: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct SchemaVersion {
    pub(crate) major: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct GraphModule {
    pub(crate) graph: Graph,
    pub(crate) signature: Signature,
}

/// Nodes in the order in which they run.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Graph {
    /// Of a graph within a node.
    #[serde(default)]
    pub(crate) inputs: Vec<Argument>,
    #[serde(default)]
    pub(crate) outputs: Vec<Argument>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) tensor_values: BTreeMap<String, TensorMeta>,
    /// Extents that nodes compute.
    #[serde(default)]
    pub(crate) sym_int_values: BTreeMap<String, Size>,
}

/// A graph that a node runs.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct InnerGraph {
    pub(crate) name: String,
    pub(crate) graph: Graph,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Node {
    /// Such as `torch.ops.aten.add.Tensor`.
    pub(crate) target: String,
    pub(crate) inputs: Vec<NamedArgument>,
    pub(crate) outputs: Vec<Argument>,
    #[serde(default)]
    pub(crate) metadata: Metadata,
}

/// The name of an operator in the table.
pub(crate) fn operator_name(target: &str) -> &str {
    target.strip_prefix("torch.ops.").unwrap_or(target)
}

/// Where a node comes from.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Metadata {
    /// A Python traceback, the innermost line last.
    #[serde(default)]
    pub(crate) stack_trace: String,
    /// `key,path,class` of each open module, the innermost last, separated by `;`.
    #[serde(default)]
    pub(crate) nn_module_stack: String,
}

impl Node {
    /// The names of the tensors that it gives.
    pub(crate) fn results(&self) -> Vec<&str> {
        let mut names = vec![];
        for output in &self.outputs {
            match output {
                Argument::Tensor(value) => names.push(value.name.as_str()),
                Argument::Tensors(values) => names.extend(values.iter().map(|value| value.name.as_str())),
                _ => {}
            }
        }
        names
    }

    /// The names of the tensors that it reads.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Name> {
        self.inputs.iter().flat_map(|input| input.arg.tensors())
    }

    pub(crate) fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Name> {
        self.inputs.iter_mut().flat_map(|input| input.arg.tensors_mut())
    }

    /// The names of the tensors that it gives.
    pub(crate) fn results_mut(&mut self) -> Vec<&mut Name> {
        self.outputs.iter_mut().flat_map(Argument::tensors_mut).collect()
    }

    /// The tensor of an argument.
    pub(crate) fn tensor(&self, name: &str) -> Option<&Name> {
        let found = self.inputs.iter().find(|input| input.name == name)?;
        found.arg.tensors().first().copied()
    }

    /// The place of an argument's tensor among those that it reads.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        let found = self.inputs.iter().position(|input| input.name == name)?;
        Some(self.inputs[..found].iter().map(|input| input.arg.tensors().len()).sum())
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct NamedArgument {
    pub(crate) name: String,
    pub(crate) arg: Argument,
}

/// The name of a value.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Name {
    pub(crate) name: String,
}

/// What a node is given, or gives. The variants that hold nothing are of no operator that is known.
#[derive(Debug, Clone, Deserialize)]
pub(crate) enum Argument {
    #[serde(rename = "as_none")]
    None(IgnoredAny),
    #[serde(rename = "as_tensor")]
    Tensor(Name),
    #[serde(rename = "as_tensors")]
    Tensors(Vec<Name>),
    #[serde(rename = "as_optional_tensor")]
    OptionalTensor(OptionalTensor),
    #[serde(rename = "as_optional_tensors")]
    OptionalTensors(Vec<OptionalTensor>),
    #[serde(rename = "as_int")]
    Int(i64),
    #[serde(rename = "as_ints")]
    Ints(Vec<i64>),
    #[serde(rename = "as_sym_int")]
    SymInt(SymInt),
    #[serde(rename = "as_sym_ints")]
    SymInts(Vec<SymInt>),
    #[serde(rename = "as_float")]
    Float(Float),
    #[serde(rename = "as_floats")]
    Floats(Vec<Float>),
    #[serde(rename = "as_bool")]
    Bool(bool),
    #[serde(rename = "as_bools")]
    Bools(IgnoredAny),
    #[serde(rename = "as_string")]
    Text(String),
    #[serde(rename = "as_strings")]
    Texts(IgnoredAny),
    #[serde(rename = "as_scalar_type")]
    ScalarType(u64),
    #[serde(rename = "as_memory_format")]
    MemoryFormat(IgnoredAny),
    #[serde(rename = "as_layout")]
    Layout(IgnoredAny),
    #[serde(rename = "as_device")]
    Device(IgnoredAny),
    #[serde(rename = "as_sym_bool")]
    SymBool(IgnoredAny),
    #[serde(rename = "as_sym_bools")]
    SymBools(IgnoredAny),
    #[serde(rename = "as_sym_float")]
    SymFloat(IgnoredAny),
    #[serde(rename = "as_sym_floats")]
    SymFloats(IgnoredAny),
    #[serde(rename = "as_graph")]
    Graph(Box<InnerGraph>),
    #[serde(rename = "as_custom_obj")]
    CustomObject(IgnoredAny),
    #[serde(rename = "as_operator")]
    Operator(IgnoredAny),
    #[serde(rename = "as_complex")]
    Complex(IgnoredAny),
    #[serde(rename = "as_nested_tensors")]
    NestedTensors(IgnoredAny),
    #[serde(rename = "as_int_lists")]
    IntLists(IgnoredAny),
    #[serde(rename = "as_float_lists")]
    FloatLists(IgnoredAny),
    #[serde(rename = "as_string_to_argument")]
    Named(IgnoredAny),
}

impl Argument {
    pub(crate) fn tensors(&self) -> Vec<&Name> {
        match self {
            Argument::Tensor(name) | Argument::OptionalTensor(OptionalTensor::Tensor(name)) => vec![name],
            Argument::Tensors(names) => names.iter().collect(),
            Argument::OptionalTensors(names) => {
                let given = names.iter().filter_map(|name| match name {
                    OptionalTensor::Tensor(name) => Some(name),
                    OptionalTensor::None(_) => None,
                });
                given.collect()
            }
            _ => vec![],
        }
    }

    fn tensors_mut(&mut self) -> Vec<&mut Name> {
        match self {
            Argument::Tensor(name) | Argument::OptionalTensor(OptionalTensor::Tensor(name)) => vec![name],
            Argument::Tensors(names) => names.iter_mut().collect(),
            Argument::OptionalTensors(names) => {
                let given = names.iter_mut().filter_map(|name| match name {
                    OptionalTensor::Tensor(name) => Some(name),
                    OptionalTensor::None(_) => None,
                });
                given.collect()
            }
            _ => vec![],
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) enum OptionalTensor {
    #[serde(rename = "as_tensor")]
    Tensor(Name),
    #[serde(rename = "as_none")]
    None(IgnoredAny),
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) enum SymInt {
    #[serde(rename = "as_name")]
    Name(String),
    #[serde(rename = "as_int")]
    Int(i64),
}

/// JSON has no infinities: they are words.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Float {
    Number(f64),
    Word(String),
}

impl Float {
    /// The number, if the word is one.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Float::Number(number) => Some(*number),
            Float::Word(word) => match word.as_str() {
                "Infinity" => Some(f64::INFINITY),
                "-Infinity" => Some(f64::NEG_INFINITY),
                "NaN" => Some(f64::NAN),
                _ => None,
            },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct TensorMeta {
    pub(crate) dtype: u64,
    pub(crate) sizes: Vec<Size>,
    pub(crate) strides: Vec<Size>,
    pub(crate) storage_offset: Size,
    pub(crate) requires_grad: bool,
}

/// An extent: a number, or an expression over sizes that each run chooses.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) enum Size {
    #[serde(rename = "as_int")]
    Int(i64),
    #[serde(rename = "as_expr")]
    Expression(Expression),
}

impl Size {
    pub(crate) fn number(&self) -> Option<i64> {
        match self {
            Size::Int(number) => Some(*number),
            Size::Expression(_) => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Expression {
    pub(crate) expr_str: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Signature {
    pub(crate) input_specs: Vec<InputSpec>,
    pub(crate) output_specs: Vec<OutputSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputSpec {
    UserInput {
        arg: Argument,
    },
    Parameter {
        arg: Name,
        parameter_name: String,
    },
    Buffer {
        arg: Name,
        buffer_name: String,
    },
    TensorConstant {
        arg: Name,
        tensor_constant_name: String,
    },
    /// A number or a text that was fixed when the model was exported.
    ConstantInput(IgnoredAny),
    CustomObj(IgnoredAny),
    Token(IgnoredAny),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputSpec {
    UserOutput { arg: Argument },
    LossOutput { arg: Name },
    BufferMutation { arg: Name, buffer_name: String },
    GradientToParameter(IgnoredAny),
    GradientToUserInput(IgnoredAny),
    UserInputMutation(IgnoredAny),
    ParameterMutation(IgnoredAny),
    Token(IgnoredAny),
}

/// `data/weights/NAME_weights_config.json` and the like.
#[derive(Debug, Deserialize)]
pub(crate) struct PayloadConfig {
    pub(crate) config: BTreeMap<String, Payload>,
}

/// Where a tensor of the archive lies.
#[derive(Debug, Deserialize)]
pub(crate) struct Payload {
    /// The file in the same folder.
    pub(crate) path_name: String,
    pub(crate) use_pickle: bool,
    pub(crate) tensor_meta: Option<TensorMeta>,
}
