//! From a node of ONNX to one of the schema: arguments by name, numbers where they are known.

use super::messages::{AttributeProto, NodeProto, kind};
use super::tensors::Constant;
use super::{Reader, tensor};
use crate::call::Fault;
use crate::operators::Operator;
use crate::operators::onnx::quantization::IN_GROUPS;
use crate::operators::onnx::signature::{self, Kind, Use};
use crate::schema::{Argument, Float, Metadata, Name, NamedArgument, Node};
use kernfusion::HostTensor;

impl Reader<'_> {
    /// The node with its arguments by name.
    pub(super) fn lowered(&mut self, proto: &NodeProto, operator: &Operator) -> Result<Node, Fault> {
        let takes = operator.onnx.as_ref().map_or("", |onnx| onnx.takes);
        let mut inputs = self.inputs_by_name(proto, takes)?;
        inputs.extend(self.zeros_left_out(proto, takes, &inputs));
        let is_arranged = proto.input.iter().any(|value| self.arranged.contains_key(value.as_str()));
        inputs
            .extend(is_arranged.then(|| NamedArgument { name: IN_GROUPS.into(), arg: Argument::Bool(true) }));
        inputs.extend(self.attributes_by_name(proto, takes, &inputs)?);
        let first = proto.output.iter().find(|name| !name.is_empty()).ok_or("it has no result")?;
        let output = |(at, name): (usize, &String)| match name.is_empty() {
            // Left out, but others may follow.
            true => tensor(&format!("{first}.unused.{at}")),
            false => tensor(name),
        };
        let outputs = proto.output.iter().enumerate().map(output).collect();
        Ok(Node { target: operator.name.into(), inputs, outputs, metadata: metadata(proto) })
    }

    fn inputs_by_name(&self, proto: &NodeProto, takes: &str) -> Result<Vec<NamedArgument>, Fault> {
        let mut inputs = vec![];
        let mut given = proto.input.iter();
        for (name, kind) in signature::inputs(takes) {
            if kind == Kind::All {
                let all = given.by_ref().map(|value| Ok(Name { name: self.read(value)?.into() }));
                let arg = Argument::Tensors(all.collect::<Result<_, Fault>>()?);
                inputs.push(NamedArgument { name: name.into(), arg });
                continue;
            }
            let Some(value) = given.next() else { break };
            if !value.is_empty() {
                inputs.push(NamedArgument { name: name.into(), arg: self.argument(name, kind, value)? });
            }
        }
        match given.find(|value| !value.is_empty()) {
            None => Ok(inputs),
            Some(value) => Err(format!("it takes \"{value}\", which is more than is known")),
        }
    }

    /// The value of a name, which is there.
    fn read<'n>(&'n self, value: &'n str) -> Result<&'n str, Fault> {
        let name = self.resolved(value);
        match self.values.contains_key(name) || self.constants.contains_key(name) {
            true => Ok(name),
            false => {
                Err(format!("it reads \"{value}\", which nothing before it gives, or which is no tensor"))
            }
        }
    }

    fn argument(&self, name: &str, kind: Kind, value: &str) -> Result<Argument, Fault> {
        let value = self.read(value)?;
        let known = self.constants.get(value);
        match (kind, known) {
            (Kind::Tensor | Kind::Type | Kind::All, _) | (Kind::NumberOrTensor | Kind::Zero, None) => {
                Ok(tensor(value))
            }
            (Kind::Zero, Some(constant)) => Ok(constant.everywhere().map_or(tensor(value), Argument::Int)),
            (Kind::NumberOrTensor, Some(constant)) if constant.ty.elements() != 1 => Ok(tensor(value)),
            (Kind::Number | Kind::NumberOrTensor, Some(constant)) => {
                number(constant).ok_or_else(|| format!("{name} is {}, and not one number", constant.ty))
            }
            (Kind::Numbers, Some(constant)) => Ok(numbers(constant)),
            (Kind::Number | Kind::Numbers, None) => Err(format!(
                "{name} is not known before it runs, as \"{value}\" follows from inputs or parameters"
            )),
        }
    }

    fn attributes_by_name(
        &mut self,
        proto: &NodeProto,
        takes: &str,
        inputs: &[NamedArgument],
    ) -> Result<Vec<NamedArgument>, Fault> {
        let known: Vec<_> = signature::attributes(takes).collect();
        let is_known = |given: &&AttributeProto| !known.iter().any(|known| known.attribute == given.name);
        if let Some(other) = proto.attribute.iter().find(is_known) {
            return Err(format!("its attribute {} is not known", other.name));
        }
        let mut arguments = vec![];
        for known in known {
            let given = proto.attribute.iter().find(|given| given.name == known.attribute);
            let (name, is_flag, default) = match (known.use_, given) {
                (Use::Argument { name, is_flag, default }, _) => (name, is_flag, default),
                (Use::Fixed(number), Some(given)) if given.kind != kind::INT || given.i != number => {
                    return Err(format!(
                        "its attribute {} is not {number}, which alone is known",
                        given.name
                    ));
                }
                (Use::Fixed(_) | Use::None, _) => continue,
            };
            // As an input in newer versions, as an attribute in older ones.
            if inputs.iter().any(|input| input.name == name) {
                continue;
            }
            let arg = match (given, default) {
                (Some(given), _) => Some(self.attribute(proto, given, is_flag)?),
                (None, Some(number)) if is_flag => Some(Argument::Bool(number != 0.0)),
                (None, Some(number)) if number.fract() == 0.0 => Some(Argument::Int(number as i64)),
                (None, number) => number.map(|number| Argument::Float(Float::Number(number))),
            };
            arguments.extend(arg.map(|arg| NamedArgument { name: name.into(), arg }));
        }
        Ok(arguments)
    }

    fn attribute(
        &mut self,
        proto: &NodeProto,
        given: &AttributeProto,
        is_flag: bool,
    ) -> Result<Argument, Fault> {
        Ok(match given.kind {
            kind::INT if is_flag => Argument::Bool(given.i != 0),
            kind::INT => Argument::Int(given.i),
            kind::FLOAT => Argument::Float(Float::Number(given.f.into())),
            kind::INTS => Argument::Ints(given.ints.clone()),
            kind::FLOATS => Argument::Floats(given.floats.iter().map(|&x| Float::Number(x.into())).collect()),
            kind::STRING => Argument::Text(text(given)?),
            kind::TENSOR => {
                let output = proto.output.first().map_or("", String::as_str);
                let name = format!("{output}.{}", given.name);
                self.ensure_new(&name)?;
                let value = self.attribute_tensor(given)?;
                self.constant(&name, value);
                tensor(&name)
            }
            other => {
                return Err(format!(
                    "its attribute {} is of the kind {other}, which is not read",
                    given.name
                ));
            }
        })
    }

    fn attribute_tensor(&mut self, given: &AttributeProto) -> Result<Constant, Fault> {
        let proto = given.t.as_ref().ok_or_else(|| format!("its attribute {} has no tensor", given.name))?;
        self.beside.read(proto)
    }

    /// The value of a `Constant`.
    pub(super) fn constant_node(&mut self, proto: &NodeProto) -> Result<(), Fault> {
        let ([given], [output]) = (&proto.attribute[..], &proto.output[..]) else {
            return Err("it has one value".into());
        };
        let value = match given.name.as_str() {
            "value" => self.attribute_tensor(given)?,
            "value_int" => Constant::scalar(given.i),
            "value_ints" => Constant::vector(given.ints.clone()),
            "value_float" => HostTensor::new([], [given.f]).into(),
            "value_floats" => HostTensor::new([given.floats.len()], given.floats.clone()).into(),
            other => return Err(format!("its {other} is not read")),
        };
        self.constant(output, value);
        Ok(())
    }

    /// One of a sequence, by its place.
    pub(super) fn picked(&mut self, proto: &NodeProto) -> Result<(), Fault> {
        let ([sequence, place], [output]) = (&proto.input[..], &proto.output[..]) else {
            return Err("it takes a sequence and a place".into());
        };
        let parts = self.sequences.get(sequence).ok_or_else(|| format!("\"{sequence}\" is no sequence"))?;
        let place = match self.constants.get(self.resolved(place)).and_then(Constant::whole).as_deref() {
            Some(&[place]) => {
                if place < 0 {
                    place.saturating_add(parts.len() as i64)
                } else {
                    place
                }
            }
            _ => return Err(format!("its place \"{place}\" is not known before it runs")),
        };
        let part = usize::try_from(place).ok().and_then(|place| parts.get(place));
        let part = part.ok_or_else(|| format!("there is no place {place} among {}", parts.len()))?.clone();
        self.aliases.insert(output.clone(), part);
        Ok(())
    }
}

/// The only number of a constant.
fn number(constant: &Constant) -> Option<Argument> {
    match (constant.whole().as_deref(), &constant.numbers()[..]) {
        (Some(&[number]), _) => Some(Argument::Int(number)),
        (None, &[number]) => Some(Argument::Float(Float::Number(number))),
        _ => None,
    }
}

/// All numbers of a constant; of a scalar, a number.
fn numbers(constant: &Constant) -> Argument {
    match (constant.ty.rank(), number(constant)) {
        (0, Some(number)) => number,
        _ => match constant.whole() {
            Some(numbers) => Argument::Ints(numbers),
            None => Argument::Floats(constant.numbers().into_iter().map(Float::Number).collect()),
        },
    }
}

fn text(given: &AttributeProto) -> Result<String, Fault> {
    let text = String::from_utf8(given.s.to_vec()).ok().filter(|text| !text.contains(char::is_control));
    text.ok_or_else(|| format!("its attribute {} is no text", given.name))
}

/// What PyTorch's exporter calls the open modules of a node.
pub(super) const SCOPES: &str = "pkg.torch.onnx.name_scopes";
/// What it calls the traceback.
pub(super) const STACK: &str = "pkg.torch.onnx.stack_trace";

/// Where a node comes from: PyTorch's exporter writes module and traceback; others write paths as names, such as `/h.0/attn/MatMul`.
pub(super) fn metadata(proto: &NodeProto) -> Metadata {
    let entry = |key: &str| proto.metadata_props.iter().find(|entry| entry.key == key);
    let module = match entry(SCOPES) {
        // A list in Python's spelling, of which the last is the operator.
        Some(scopes) => {
            let mut scopes = scopes.value.trim_matches(['[', ']']).rsplit(", ").skip(1);
            let module = scopes.next().unwrap_or_default().trim_matches('\'');
            module.replace(char::is_control, " ")
        }
        None => match proto.name.strip_prefix('/').and_then(|path| path.rsplit_once('/')) {
            Some((module, _)) => module.replace('/', "."),
            None => String::new(),
        },
    };
    let innermost = entry(STACK).and_then(|entry| {
        let (_, last) = entry.value.rsplit_once("File \"")?;
        Some(format!("File \"{}", last.lines().next()?.replace(char::is_control, " ")))
    });
    Metadata { stack_trace: innermost.unwrap_or_default(), nn_module_stack: format!(",{module},") }
}
