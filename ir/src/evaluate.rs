//! The reference evaluator: slow, obvious, and the judge of every other execution.
//!
//! Every element is an `f64`, which holds the values of all dtypes exactly. Under [`Precision::Declared`] each
//! op's result is rounded to its dtype; under [`Precision::Double`] floats are not rounded at all, so that the
//! rounding of an execution in `f32` can be measured.

use crate::{Graph, IrError, Op, Result, Scan, Tensor, TensorType, ValueId};
use std::collections::BTreeMap;

/// How results are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// To the declared dtype, after each op.
    Declared,
    /// Floats stay in `f64`.
    Double,
}

impl Precision {
    /// A result of this dtype as this precision keeps it; integers and truth values are always their dtype's.
    pub fn round(self, dtype: crate::DType, x: f64) -> f64 {
        if self == Precision::Declared || !dtype.is_float() { dtype.round(x) } else { x }
    }
}

/// A tensor under evaluation: elements row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// The declared type.
    pub ty: TensorType,
    /// The elements.
    pub values: Vec<f64>,
}

impl Array {
    /// A tensor of zeros.
    pub fn zeros(ty: &TensorType) -> Self {
        Array { ty: ty.clone(), values: vec![0.0; ty.elements()] }
    }

    /// The offset of the element at `at`.
    pub fn offset(&self, at: &[usize]) -> usize {
        at.iter().zip(&self.ty.shape).fold(0, |offset, (i, extent)| offset * extent + i)
    }

    /// The element at `at`.
    pub fn at(&self, at: &[usize]) -> f64 {
        self.values[self.offset(at)]
    }

    /// The offsets of all positions along these axes, the last one fastest, with 0 along the others.
    pub fn offsets(&self, axes: &[usize]) -> Vec<usize> {
        let strides = crate::strides(&self.ty.shape);
        axes.iter().fold(vec![0], |offsets, &axis| {
            let along = |offset: usize| (0..self.ty.shape[axis]).map(move |at| (offset, at));
            offsets.into_iter().flat_map(along).map(|(offset, at)| offset + at * strides[axis]).collect()
        })
    }

    /// The coordinates of all elements, row-major.
    pub fn positions(&self) -> impl Iterator<Item = Vec<usize>> + use<> {
        let shape = self.ty.shape.clone();
        let strides = crate::strides(&shape);
        let position = move |offset: usize| {
            strides.iter().zip(&shape).map(|(stride, extent)| offset / stride % extent).collect()
        };
        (0..self.values.len()).map(position)
    }
}

/// Evaluates a graph: outputs by name, then for each updated state its new value under the state's name.
///
/// # Errors
/// If an input is missing, unknown, or not of its declared type.
pub fn evaluate(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    precision: Precision,
) -> Result<BTreeMap<String, Array>> {
    let mut arrays = BTreeMap::new();
    for (name, tensor) in inputs {
        let declared = graph.input(name).ok_or_else(|| unfit(name, "there is no such input".into()))?;
        let ty = &graph[declared].ty;
        if tensor.ty() != *ty {
            return Err(unfit(name, format!("expects {ty}, got {}", tensor.ty())));
        }
        arrays.insert(name.clone(), Array { ty: ty.clone(), values: tensor.to_f64() });
    }
    evaluate_arrays(graph, arrays, precision)
}

/// As [`evaluate`], from arrays, whose floats need not be values of the declared dtypes.
///
/// # Errors
/// If an input is missing.
pub fn evaluate_arrays(
    graph: &Graph,
    inputs: BTreeMap<String, Array>,
    precision: Precision,
) -> Result<BTreeMap<String, Array>> {
    let values = evaluate_all(graph, inputs, precision)?;
    let take = |id: ValueId| values[id.index()].clone();
    let outputs = graph.outputs().iter().map(|output| (output.name.clone(), take(output.value)));
    Ok(outputs.collect())
}

/// The value of every node, by its number.
///
/// # Errors
/// If an input is missing.
pub fn evaluate_all(
    graph: &Graph,
    mut inputs: BTreeMap<String, Array>,
    precision: Precision,
) -> Result<Vec<Array>> {
    let mut values: Vec<Array> = Vec::with_capacity(graph.len());
    // All results of each loop, which has a node for every one of them.
    let mut loops: BTreeMap<(Scan, &[ValueId]), Vec<Array>> = BTreeMap::new();
    for id in graph.ids() {
        let node = &graph[id];
        values.push(match &node.op {
            Op::Input(input) => {
                inputs.remove(&input.name).ok_or_else(|| unfit(&input.name, "is missing".into()))?
            }
            op => {
                let operands: Vec<_> = node.operands.iter().map(|operand| &values[operand.index()]).collect();
                if let Op::Scan(scan) = op {
                    let key = (scan.with_result(0), &node.operands[..]);
                    if !loops.contains_key(&key) {
                        loops.insert(key.clone(), scan.run(&operands, precision)?);
                    }
                    values.push(loops[&key][scan.result].clone());
                    continue;
                }
                let mut results = op.eval(&operands, &node.ty);
                results.iter_mut().for_each(|x| *x = precision.round(node.ty.dtype, *x));
                Array { ty: node.ty.clone(), values: results }
            }
        });
    }
    Ok(values)
}

fn unfit(name: &str, reason: String) -> IrError {
    IrError::Input { name: name.into(), reason }
}
