//! What a graph begins with: its initializers and its inputs.

use super::messages::{Dimension, Extent, GraphProto, NodeProto, TensorTypeProto, ValueInfoProto};
use super::quantized::{self, UINT8, kept_type};
use super::tensors::described;
use super::{Reader, operator_name};
use crate::call::Fault;
use crate::imported::Source;
use crate::operators;
use crate::operators::onnx::element_type;
use crate::operators::onnx::signature::{self, Kind};
use crate::sizes::{CHOOSE_EACH, Chosen, listed};
use crate::state::{State, Value};
use kernfusion_ir::{DType, TensorType};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What files of safetensors have beside tensors.
const OF_FORMAT: &str = "__metadata__";
/// What PyTorch's exporter says of an initializer.
pub(super) const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";

impl<'m> Reader<'m> {
    /// Reads the initializers: floats with axes are states, unless a node must know them; all else are constants.
    pub(super) fn initializers(&mut self) -> Result<(), Fault> {
        let graph: &'m GraphProto = self.graph;
        let (kinds, statistics, numbers) = (kinds(graph), running_statistics(graph), read_as_numbers(graph));
        let scales = quantized::scales(known(graph));
        for proto in &graph.initializer {
            let name = proto.name.as_str();
            let fault = |reason| format!("tensor \"{name}\": {reason}");
            if name.is_empty() || self.has(name) {
                return Err(fault("it has no name, or one that is there already".into()));
            }
            if name == OF_FORMAT {
                return Err(fault("its name is one that safetensors files keep for themselves".into()));
            }
            let (ty, _) = described(proto).map_err(fault)?;
            let may_be_state = ty.rank() > 0 || kinds.get(name) == Some(&"PARAMETER");
            let is_matrix_of_bytes = ty.dtype == DType::I8 && ty.rank() > 1;
            let is_state =
                (ty.dtype.is_float() && may_be_state || is_matrix_of_bytes) && !numbers.contains(name);
            if !is_state {
                let constant = self.beside.read(proto).map_err(fault)?;
                self.constant(name, constant);
                continue;
            }
            // Without a word of the exporter it is a parameter, unless a normalisation follows it.
            let is_trained = match kinds.is_empty() {
                true => !statistics.contains(name) && !scales.contains(name),
                false => kinds.get(name) == Some(&"PARAMETER"),
            };
            let arranged = self.arranged.get(name);
            let is_trained = is_trained && ty.dtype.is_float() && arranged.is_none();
            if proto.data_type == UINT8 && arranged.is_none() {
                self.without_sign.insert(name.into());
            }
            let value = match arranged {
                Some(arranged) => {
                    let neighbours =
                        self.beside.read(proto).and_then(|constant| constant.tensor()).map_err(fault)?;
                    Value::Held(arranged.of(&neighbours))
                }
                None => self.beside.value(proto).map_err(fault)?,
            };
            let ty = value.ty();
            self.states.push(State::new(self.path.into(), name, value, is_trained));
            self.sources.push((name.into(), Source::State(self.states.len() - 1)));
            self.values.insert(name.into(), self.trace.input(name, ty.shape.clone(), ty.dtype));
        }
        Ok(())
    }

    /// Reads the inputs, with these extents for those that are open.
    pub(super) fn inputs(&mut self, chosen: &[Chosen<'_>]) -> Result<(), Fault> {
        let mut open = vec![];
        let mut inputs = vec![];
        for input in self.graph.input.iter().filter(|input| !self.has(&input.name)) {
            let ty = input.ty.as_ref().and_then(|ty| ty.tensor_type.as_ref());
            let shape = ty.and_then(|ty| Some((ty, ty.shape.as_ref()?)));
            let Some((ty, shape)) = shape else {
                return Err(format!("input \"{}\" is no tensor whose axes are known", input.name));
            };
            for (axis, dimension) in shape.dim.iter().enumerate() {
                let place = format!("{}.{axis}", input.name);
                match &dimension.value {
                    Some(Extent::Number(_)) => {}
                    Some(Extent::Symbol(symbol)) if symbol.contains(char::is_control) => {
                        return Err(format!("the extent {symbol:?} has a control character"));
                    }
                    Some(Extent::Symbol(symbol)) if !symbol.is_empty() => open.push((symbol.clone(), place)),
                    Some(Extent::Symbol(_)) | None => open.push((place.clone(), place)),
                }
            }
            inputs.push((input.name.as_str(), ty));
        }
        let sizes = sizes(&open, chosen)?;
        for (name, ty) in inputs {
            if self.has(name) {
                return Err(format!("two inputs are \"{name}\""));
            }
            if name == OF_FORMAT {
                return Err(format!(
                    "an input is \"{name}\", a name that safetensors files keep for themselves"
                ));
            }
            let ty = input_type(name, ty, &sizes).map_err(|reason| format!("input \"{name}\": {reason}"))?;
            self.values.insert(name.into(), self.trace.input(name, ty.shape.clone(), ty.dtype));
            self.sources.push((name.into(), Source::Given(ty)));
        }
        Ok(())
    }

    /// Refuses a value of another type than the file says.
    pub(super) fn check_type(&self, name: &str, found: &TensorType) -> Result<(), Fault> {
        let said = self.said.get(name).and_then(|info| info.ty.as_ref()?.tensor_type.as_ref());
        let Some(said) = said.filter(|said| said.elem_type != 0) else { return Ok(()) };
        let (dtype, _) = kept_type(said.elem_type).map_err(|reason| format!("\"{name}\": {reason}"))?;
        let fits = said.shape.as_ref().is_none_or(|shape| {
            let mut pairs = shape.dim.iter().zip(&found.shape);
            shape.dim.len() == found.rank()
                && pairs.all(|(said, &extent)| match said.value {
                    Some(Extent::Number(number)) => usize::try_from(number) == Ok(extent),
                    _ => true,
                })
        });
        let has_sign = said.elem_type != UINT8;
        match dtype == found.dtype && fits && has_sign != self.without_sign.contains(name) {
            true => Ok(()),
            false => Err(format!("\"{name}\" is {found}, and the file says another type")),
        }
    }
}

/// For each initializer that it speaks of, what the exporter says it is.
fn kinds(graph: &GraphProto) -> HashMap<&str, &str> {
    let said = graph.value_info.iter().chain(&graph.input);
    let kind = |info: &ValueInfoProto| info.metadata_props.iter().position(|entry| entry.key == KIND);
    let all =
        said.filter_map(|info| Some((info.name.as_str(), info.metadata_props[kind(info)?].value.as_str())));
    all.filter(|(_, kind)| *kind != "USER_INPUT").collect()
}

/// The initializers that are the running mean or variance of a batch norm.
fn running_statistics(graph: &GraphProto) -> HashSet<&str> {
    let norms = graph.node.iter().filter(|node| node.op_type == "BatchNormalization");
    norms.flat_map(|node| node.input.iter().skip(3)).map(String::as_str).collect()
}

/// The nodes whose operators are known, each with what that takes.
fn known(graph: &GraphProto) -> impl Iterator<Item = (&'static str, &NodeProto)> {
    graph.node.iter().filter_map(|node| {
        let onnx = operators::find(&operator_name(node))?.onnx.as_ref()?;
        Some((onnx.takes, node))
    })
}

/// The values that nodes must know before they run, such as factors of a `Resize`.
fn read_as_numbers(graph: &GraphProto) -> HashSet<&str> {
    let mut names = HashSet::new();
    for (takes, node) in known(graph) {
        let numbers = signature::inputs(takes)
            .zip(&node.input)
            .filter(|((_, kind), _)| matches!(kind, Kind::Number | Kind::Numbers));
        names.extend(numbers.map(|(_, name)| name.as_str()));
    }
    names
}

/// A number for each extent that is open, by its symbol.
fn sizes(open: &[(String, String)], chosen: &[Chosen<'_>]) -> Result<BTreeMap<String, usize>, Fault> {
    let mut sizes = BTreeMap::new();
    for &(name, size) in chosen {
        let Some((symbol, _)) = open.iter().find(|(symbol, place)| symbol == name || place == name) else {
            return Err(format!("it has no open extent \"{name}\", but {}", listed(open)));
        };
        if size == 0 {
            return Err(format!("the extent \"{symbol}\" is 0"));
        }
        if sizes.insert(symbol.clone(), size).is_some_and(|other| other != size) {
            return Err(format!("the extent \"{symbol}\" is chosen twice"));
        }
    }
    let mut left: Vec<(String, String)> = vec![];
    for extent in open.iter().filter(|(symbol, _)| !sizes.contains_key(symbol)) {
        if left.iter().all(|(symbol, _)| *symbol != extent.0) {
            left.push(extent.clone());
        }
    }
    match left.is_empty() {
        true => Ok(sizes),
        false => Err(format!("extents of its inputs are open, {}: {CHOOSE_EACH}", listed(&left))),
    }
}

fn input_type(
    name: &str,
    said: &TensorTypeProto,
    sizes: &BTreeMap<String, usize>,
) -> Result<TensorType, Fault> {
    let dimensions = said.shape.iter().flat_map(|shape| &shape.dim).enumerate();
    let extent = |(axis, dimension): (usize, &Dimension)| match &dimension.value {
        Some(Extent::Number(number)) => {
            usize::try_from(*number).map_err(|_| format!("there is no extent of {number}"))
        }
        Some(Extent::Symbol(symbol)) if !symbol.is_empty() => Ok(sizes[symbol]),
        Some(Extent::Symbol(_)) | None => Ok(sizes[&format!("{name}.{axis}")]),
    };
    let shape = dimensions.map(extent).collect::<Result<Vec<_>, _>>()?;
    let ty = TensorType::new(element_type(said.elem_type.into())?.0, shape);
    ty.fault().map_or(Ok(ty.clone()), Err)
}
