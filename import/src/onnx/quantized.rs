//! Bytes without a sign (`uint8`), which are kept less 128: which values they are, and which operators take them.

use super::Reader;
use super::messages::NodeProto;
use crate::call::Fault;
use crate::operators::onnx::quantization::{PACKED, PACKED_ZEROS, SCALE, TRIPLES, ZERO};
use crate::operators::onnx::{element_type, signature};
use crate::schema::{Argument, NamedArgument, Node};
use kernfusion_ir::DType;
use std::collections::HashSet;

/// The code of `uint8`.
pub(super) const UINT8: i32 = 2;
/// What `uint8` is kept less.
const SHIFT: i64 = 128;

/// Operators that give bytes of their first operand as they are.
const MOVES: [&str; 14] = [
    "onnx.Concat",
    "onnx.DepthToSpace",
    "onnx.Expand",
    "onnx.Flatten",
    "onnx.Gather",
    "onnx.Identity",
    "onnx.MaxPool",
    "onnx.Reshape",
    "onnx.Slice",
    "onnx.Split",
    "onnx.Squeeze",
    "onnx.Tile",
    "onnx.Transpose",
    "onnx.Unsqueeze",
];

/// As [`element_type`], with `uint8` among the types.
pub(super) fn kept_type(code: i32) -> Result<(DType, usize), Fault> {
    if code == UINT8 { Ok((DType::I8, 1)) } else { element_type(code.into()) }
}

/// Makes bytes without a sign those that are kept.
pub(super) fn shift(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte ^= SHIFT as u8);
}

/// The values that nodes, of which each is given with what its operator takes, read as scales.
pub(super) fn scales<'m>(nodes: impl Iterator<Item = (&'static str, &'m NodeProto)>) -> HashSet<&'m str> {
    let of_node = |(takes, node): (&'static str, &'m NodeProto)| {
        let named = signature::inputs(takes).zip(&node.input);
        named.filter(|((name, _), _)| name.ends_with(SCALE)).map(|(_, value)| value.as_str())
    };
    nodes.flat_map(of_node).collect()
}

impl Reader<'_> {
    /// The zero points that a node leaves out: 0, which is kept as −128 for bytes without a sign.
    pub(super) fn zeros_left_out(
        &self,
        proto: &NodeProto,
        takes: &str,
        inputs: &[NamedArgument],
    ) -> Vec<NamedArgument> {
        let given = |name: &str| inputs.iter().find(|input| input.name == name);
        let left_out = |(zero, _): (&str, _)| {
            let bytes = zero.strip_suffix(ZERO).filter(|_| given(zero).is_none())?;
            let has_no_sign = match given(bytes) {
                Some(bytes) => bytes.arg.tensors().iter().any(|name| self.without_sign.contains(&name.name)),
                None => gives_no_sign(proto),
            };
            let arg = Argument::Int(if has_no_sign { -SHIFT } else { 0 });
            Some(NamedArgument { name: zero.into(), arg })
        };
        signature::inputs(takes).filter_map(left_out).collect()
    }

    /// Keeps in mind which results of a node are bytes without a sign.
    ///
    /// # Errors
    /// The operator takes none.
    pub(super) fn follow_bytes(&mut self, proto: &NodeProto, takes: &str, node: &Node) -> Result<(), Fault> {
        let inputs: Vec<_> = signature::inputs(takes).map(|(name, _)| name).collect();
        let value = |name: &str| {
            let at = inputs.iter().position(|input| *input == name)?;
            proto.input.get(at).filter(|value| !value.is_empty())
        };
        let has_no_sign =
            |name: &str| value(name).is_some_and(|value| self.without_sign.contains(self.resolved(value)));
        let is_moved = MOVES.contains(&node.target.as_str()) || resizes_to_nearest(proto);
        let has_zero = |name: &str| inputs.iter().any(|input| input.strip_suffix(ZERO) == Some(name));
        let is_own = |name: &str| [PACKED, PACKED_ZEROS, TRIPLES].contains(&name);
        let is_taken = |name: &str| is_moved || is_own(name) || name.ends_with(ZERO) || has_zero(name);
        if let Some(name) = inputs.iter().find(|name| has_no_sign(name) && !is_taken(name)) {
            return Err(format!("{name} is of uint8, which it does not take here"));
        }
        let is_given = match value("y_zero") {
            _ if node.target == "onnx.DynamicQuantizeLinear" => true,
            Some(_) => has_no_sign("y_zero"),
            None => has_zero("y") && value("y_scale").is_some() && gives_no_sign(proto),
        };
        let results = node.results();
        let bytes = results.iter().enumerate().filter(|(at, _)| match is_moved {
            true => has_no_sign(inputs[0]),
            // The second one is a scale.
            false => is_given && *at != 1,
        });
        let bytes: Vec<_> = bytes.map(|(_, name)| name.to_string()).collect();
        self.without_sign.extend(bytes);
        Ok(())
    }
}

/// Whether a node repeats its operand's elements.
fn resizes_to_nearest(proto: &NodeProto) -> bool {
    let mode = proto.attribute.iter().find(|given| given.name == "mode");
    proto.op_type == "Resize" && mode.is_none_or(|mode| *mode.s == *b"nearest")
}

/// Whether bytes that a node gives have no sign where nothing but its attributes says so.
fn gives_no_sign(proto: &NodeProto) -> bool {
    let said = proto.attribute.iter().find(|given| given.name == "output_dtype");
    said.is_none_or(|given| given.i == 0 || given.i == i64::from(UINT8))
}

#[cfg(test)]
mod tests {
    use super::super::messages::{
        AttributeProto, Dimension, Extent, GraphProto, ModelProto, OperatorSetIdProto, TensorProto,
        TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto, kind,
    };
    use super::super::read;
    use super::*;
    use kernfusion::HostTensor;
    use kernfusion_ir::TensorType;
    use prost::Message;
    use std::path::Path;

    fn node(operator: &str, inputs: &[&str], output: &str) -> NodeProto {
        let input = inputs.iter().map(|name| name.to_string()).collect();
        NodeProto { op_type: operator.into(), input, output: vec![output.into()], ..Default::default() }
    }

    fn tensor(name: &str, data_type: i32, dims: &[i64], bytes: &[u8]) -> TensorProto {
        let raw_data = bytes.to_vec().into();
        TensorProto { name: name.into(), data_type, dims: dims.to_vec(), raw_data, ..Default::default() }
    }

    /// The states of a model of these nodes, whose input is `x : f32[2]` and whose result is `y`; or the error.
    fn states(
        nodes: Vec<NodeProto>,
        tensors: Vec<TensorProto>,
    ) -> std::result::Result<Vec<HostTensor>, String> {
        let dim = vec![Dimension { value: Some(Extent::Number(2)) }];
        let ty = TensorTypeProto { elem_type: 1, shape: Some(TensorShapeProto { dim }) };
        let info = |name: &str, ty| ValueInfoProto { name: name.into(), ty, ..Default::default() };
        let graph = GraphProto {
            node: nodes,
            initializer: tensors,
            input: vec![info("x", Some(TypeProto { tensor_type: Some(ty) }))],
            output: vec![info("y", None)],
            ..Default::default()
        };
        let set = OperatorSetIdProto { version: 21, ..Default::default() };
        let model = ModelProto { ir_version: 10, opset_import: vec![set], graph: Some(graph) };
        let model =
            read(Path::new("model.onnx"), model.encode_to_vec(), &[]).map_err(|error| error.to_string())?;
        Ok(model.states().iter().map(|state| state.read().unwrap()).collect())
    }

    #[test]
    fn bytes_without_a_sign_are_kept_less_128() {
        let scale = || tensor("scale", 1, &[], &0.5f32.to_le_bytes());
        let matrix = || tensor("w", UINT8, &[1, 2], &[0, 255]);
        let dequantized = || node("DequantizeLinear", &["w", "scale"], "real");
        let sum = node("Add", &["x", "real"], "y");
        let found = states(vec![dequantized(), sum], vec![matrix(), scale()]).unwrap();
        let kept = HostTensor::from_f64(&TensorType::new(DType::I8, [1, 2]), &[-128.0, 127.0]);
        assert_eq!(found, [kept]);
    }

    #[test]
    fn bytes_without_a_sign_go_from_one_operator_of_quantization_to_another() {
        let scale = || tensor("scale", 1, &[], &0.5f32.to_le_bytes());
        let quantized = || node("QuantizeLinear", &["x", "scale"], "bytes");
        let refused = |nodes: Vec<NodeProto>| states(nodes, vec![scale()]).unwrap_err();
        let message = refused(vec![quantized(), node("Add", &["bytes", "bytes"], "y")]);
        assert!(message.contains("self is of uint8, which it does not take here"), "{message}");
        let message = refused(vec![node("QuantizeLinear", &["x", "scale"], "y")]);
        assert!(message.contains("its result \"y\" is of uint8, and no tensor here is"), "{message}");
        let message = refused(vec![quantized(), node("Cast", &["bytes"], "y")]);
        assert!(message.contains("Cast"), "{message}");
        let moved = vec![
            quantized(),
            node("Unsqueeze", &["bytes", "axes"], "moved"),
            node("DequantizeLinear", &["moved", "scale"], "y"),
        ];
        let axes = tensor("axes", 7, &[1], &0i64.to_le_bytes());
        assert_eq!(states(moved, vec![scale(), axes]), Ok(vec![]));
        let mut by_rows = node("QuantizeLinear", &["x", "scales"], "bytes");
        by_rows.attribute.push(AttributeProto { name: "axis".into(), kind: kind::INT, ..Default::default() });
        let message = states(vec![by_rows], vec![tensor("scales", 1, &[3], &[0; 12])]).unwrap_err();
        assert!(message.contains("y_scale of shape [3] is not along axis"), "{message}");
    }
}
