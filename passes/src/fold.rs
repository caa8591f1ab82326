//! Constant folding, on scalars, on tensors of one repeated number, and on what follows from coordinates ([`closed_form`](crate::closed_form)).
//!
//! ```text
//! %0 = constant 2                 %0 = constant 2
//! %1 = broadcast %0 : f32[8]  →   %1 = constant 4
//! %2 = mul %1 %1                  %2 = broadcast %1 : f32[8]
//! ```

use crate::Rebuild;
use crate::closed_form::{ClosedForm, closed_forms};
use kernfusion_ir::evaluate::Array;
use kernfusion_ir::{DType, Graph, KernelEntry, Op, Result, TensorType};

pub(crate) fn fold_constants(graph: &mut Graph) -> Result<()> {
    // The number of which a value's elements all are, if there is one.
    let mut uniform: Vec<Option<f64>> = vec![None; graph.len()];
    let forms = closed_forms(graph);
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        let node = &graph[id];
        if let Some(form) = forms.get(&id) {
            if let ClosedForm::Full(value) = form {
                uniform[id.index()] = Some(*value);
            }
            let new = form.build(&mut rebuild.builder(id), &node.ty)?;
            rebuild.replace(id, new);
            continue;
        }
        let operands: Option<Vec<f64>> =
            node.operands.iter().map(|operand| uniform[operand.index()]).collect();
        uniform[id.index()] = match (&node.op, operands) {
            (Op::Constant(constant), _) => Some(constant.value.value()),
            (op, Some(values)) if op.entry() == KernelEntry::View => Some(values[0]),
            (op, Some(values)) if op.entry() == KernelEntry::Scalar => {
                let dtypes = node.operands.iter().map(|&operand| graph[operand].ty.dtype);
                Some(apply(op, &dtypes.zip(values).collect::<Vec<_>>(), node.ty.dtype))
            }
            _ => None,
        };
        match uniform[id.index()] {
            Some(value) if !matches!(node.op, Op::Constant(_)) => {
                let new = rebuild.builder(id).full(value, &node.ty)?;
                rebuild.replace(id, new);
            }
            _ => {
                rebuild.copy(id)?;
            }
        }
    }
    *graph = rebuild.finish();
    Ok(())
}

/// An elementwise op on one element of each operand, rounded to the result's dtype.
pub(crate) fn apply(op: &Op, operands: &[(DType, f64)], result: DType) -> f64 {
    let array = |&(dtype, value): &(DType, f64)| Array { ty: TensorType::scalar(dtype), values: vec![value] };
    let arrays: Vec<_> = operands.iter().map(array).collect();
    let value = op.eval(&arrays.iter().collect::<Vec<_>>(), &TensorType::scalar(result))[0];
    result.round(value)
}
