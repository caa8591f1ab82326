//! What is computed when a file is read: shapes, axes, and what they are made of.

use super::Reader;
use super::tensors::Constant;
use crate::call::{Call, Values};
use crate::operators::Operator;
use crate::operators::onnx::signature::{self, Kind};
use crate::schema::Node;
use kernfusion::HostTensor;
use kernfusion::trace::{Tensor, Trace};
use kernfusion_ir::evaluate::{Precision, evaluate};
use kernfusion_ir::{DType, TensorType};
use std::collections::BTreeMap;

/// The most elements of what is computed.
const MOST: usize = 1 << 10;

/// Operators that may move `int64` which are no `i32`, such as the end of a slice without end.
const MOVES: [&str; 5] = ["onnx.Cast", "onnx.Identity", "onnx.Reshape", "onnx.Squeeze", "onnx.Unsqueeze"];

impl Reader<'_> {
    /// The results of a node all of whose operands are known, if they are small; nothing, if they cannot be computed.
    pub(super) fn folded(
        &self,
        operator: &Operator,
        node: &Node,
        types: &[TensorType],
        built: &[Tensor],
    ) -> Vec<Constant> {
        let moved = self.moved(operator, node, built).map(|constant| vec![constant]);
        let is_small = built.iter().all(|result| result.ty().elements() <= MOST);
        let computed = || is_small.then(|| self.computed(operator, node, types)).flatten();
        let counted = || self.counted(operator, node, built).map(|constant| vec![constant]);
        moved.or_else(counted).or_else(computed).unwrap_or_default()
    }

    /// Sums, differences, products, quotients and bounds of whole numbers, which may be beyond `i32` on the way to a shape or a bound.
    fn counted(&self, operator: &Operator, node: &Node, built: &[Tensor]) -> Option<Constant> {
        let [result] = built else { return None };
        let ty = result.ty();
        let of_two: fn(i64, i64) -> i64 = match operator.name {
            "onnx.Add" => i64::wrapping_add,
            "onnx.Sub" => i64::wrapping_sub,
            "onnx.Mul" => i64::wrapping_mul,
            "onnx.Div" => i64::wrapping_div,
            "onnx.Min" => i64::min,
            "onnx.Max" => i64::max,
            _ => return None,
        };
        let operands: Option<Vec<Vec<i64>>> = node
            .tensors()
            .map(|name| {
                let constant = self.constants.get(&name.name)?;
                let fits = [1, ty.elements()].contains(&constant.ty.elements());
                constant.whole().filter(|_| constant.ty.dtype == DType::I32 && fits)
            })
            .collect();
        let mut operands = operands?.into_iter();
        let spread = |numbers: Vec<i64>| numbers.into_iter().cycle().take(ty.elements()).collect::<Vec<_>>();
        let mut numbers = spread(operands.next()?);
        for other in operands.map(spread) {
            if operator.name == "onnx.Div" && other.contains(&0) {
                return None;
            }
            numbers.iter_mut().zip(other).for_each(|(x, y)| *x = of_two(*x, y));
        }
        Some(Constant::wide(ty, numbers))
    }

    /// The numbers of `int64` in another shape.
    fn moved(&self, operator: &Operator, node: &Node, built: &[Tensor]) -> Option<Constant> {
        let [result] = built else { return None };
        let operand = node.tensors().next().filter(|_| MOVES.contains(&operator.name))?;
        self.constants.get(&operand.name)?.reshaped(&result.ty())
    }

    /// What the reference evaluator makes of the node's function.
    fn computed(&self, operator: &Operator, node: &Node, types: &[TensorType]) -> Option<Vec<Constant>> {
        let trace = Trace::new();
        let (values, known) = self.operands(operator, node, &trace)?;
        let call = Call { trace: &trace, node, values: &values, results: types };
        let built = (operator.build)(&call).ok()?;
        let names: Vec<_> = (0..built.len()).map(|at| at.to_string()).collect();
        let named: Vec<_> = names.iter().map(String::as_str).zip(&built).collect();
        let program = trace.finish(&named).ok()?;
        // What is random takes inputs of its own, and is not known.
        if program.graph.inputs().count() != known.len() {
            return None;
        }
        let mut results = evaluate(&program.graph, &known, Precision::Declared).ok()?;
        let constant = |name: &String| {
            let array = results.remove(name)?;
            Some(HostTensor::from_f64(&array.ty, &array.values).into())
        };
        names.iter().map(constant).collect()
    }

    /// The operands of a node on a trace of its own, and their values. Operands of which only the type counts are those of this trace.
    fn operands(
        &self,
        operator: &Operator,
        node: &Node,
        trace: &Trace,
    ) -> Option<(Values, BTreeMap<String, HostTensor>)> {
        let takes = operator.onnx.as_ref().map_or("", |onnx| onnx.takes);
        let is_type = |name: &str| signature::inputs(takes).any(|input| input == (name, Kind::Type));
        let (mut values, mut known) = (Values::new(), BTreeMap::new());
        for argument in &node.inputs {
            for name in argument.arg.tensors().into_iter().map(|name| &name.name) {
                if known.contains_key(name) {
                    continue;
                }
                if is_type(&argument.name) {
                    values.insert(name.clone(), self.values.get(name)?.clone());
                    continue;
                }
                let value = self.constants.get(name).filter(|constant| constant.ty.elements() <= MOST)?;
                let value = value.tensor().ok()?;
                let ty = value.ty();
                values.insert(name.clone(), trace.input(name, ty.shape, ty.dtype));
                known.insert(name.clone(), value);
            }
        }
        Some((values, known))
    }
}
