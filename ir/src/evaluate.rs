//! The reference evaluator: slow, obvious, and the judge of every other execution.
//!
//! Every element is an `f64`, which holds the values of all dtypes exactly. Under [`Precision::Declared`] each
//! op's result is rounded to its dtype; under [`Precision::Double`] floats are not rounded at all, so that the
//! rounding of an execution in `f32` can be measured.

use crate::{Collective, Graph, IrError, Op, Result, Scan, Tensor, TensorType, ValueId};
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

    /// The offset of the element at these coordinates.
    pub fn offset(&self, at: impl IntoIterator<Item = usize>) -> usize {
        at.into_iter().zip(&self.ty.shape).fold(0, |offset, (i, extent)| offset * extent + i)
    }

    /// The element at these coordinates.
    pub fn at(&self, at: impl IntoIterator<Item = usize>) -> f64 {
        self.values[self.offset(at)]
    }

    /// Visits all elements with their coordinates, row-major.
    pub fn for_each(&self, mut visit: impl FnMut(&[usize], f64)) {
        let mut values = self.values.iter();
        for_each_position(&self.ty.shape, |at| visit(at, *values.next().expect("one for each position")));
    }

    /// The offsets of all positions along these axes, the last one fastest, with 0 along the others.
    pub fn offsets(&self, axes: &[usize]) -> Vec<usize> {
        let strides = crate::strides(&self.ty.shape);
        axes.iter().fold(vec![0], |offsets, &axis| {
            let along = |offset: usize| (0..self.ty.shape[axis]).map(move |at| (offset, at));
            offsets.into_iter().flat_map(along).map(|(offset, at)| offset + at * strides[axis]).collect()
        })
    }
}

/// Visits the coordinates of all elements of a shape, row-major.
pub fn for_each_position(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut at = vec![0; shape.len()];
    for _ in 0..shape.iter().product() {
        visit(&at);
        for (i, &extent) in at.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < extent {
                break;
            }
            *i = 0;
        }
    }
}

/// The elements of a tensor of this type by their coordinates.
pub fn tabulate(ty: &TensorType, mut element: impl FnMut(&[usize]) -> f64) -> Vec<f64> {
    let mut values = Vec::with_capacity(ty.elements());
    for_each_position(&ty.shape, |at| values.push(element(at)));
    values
}

/// Evaluates a graph: outputs by name, then for each updated state its new value under the state's name.
///
/// # Errors
/// If an input is missing, unknown, or not of its declared type, or memory is short.
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
/// If an input is missing, or memory is short.
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

/// Asks the system for as much memory as the values of all nodes take at once, and gives it back: an evaluation that it does not have
/// memory for should fail before it begins, as allocating ends the process.
///
/// # Errors
/// [`IrError::Memory`] with the number of bytes.
pub fn ensure_memory(graph: &Graph) -> Result<()> {
    let elements = || graph.ids().map(|id| graph[id].ty.elements());
    let values = elements().fold(0, usize::saturating_add);
    // Beside its result, an op has coordinates and offsets of its own.
    let beside = elements().max().unwrap_or(0).saturating_mul(4);
    room(values.saturating_add(beside))
}

/// Whether the system has memory for this number of elements of `f64`.
pub(crate) fn room(elements: usize) -> Result<()> {
    let bytes = elements.saturating_mul(size_of::<f64>());
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| IrError::Memory { bytes })
}

/// The value of every node, by its number.
///
/// # Errors
/// If an input is missing, memory is short, or the program is for several ranks.
pub fn evaluate_all(
    graph: &Graph,
    inputs: BTreeMap<String, Array>,
    precision: Precision,
) -> Result<Vec<Array>> {
    Ok(evaluate_ranks(graph, vec![inputs], precision)?.swap_remove(0))
}

/// The value of every node on every rank, from the inputs of each: the ranks of a program, side by side.
///
/// # Errors
/// If an input is missing, memory is short, or the program is for another number of ranks.
pub fn evaluate_ranks(
    graph: &Graph,
    inputs: Vec<BTreeMap<String, Array>>,
    precision: Precision,
) -> Result<Vec<Vec<Array>>> {
    for id in graph.ids() {
        if let Op::Collective(Collective { ranks, .. }) = graph[id].op
            && ranks != inputs.len()
        {
            return Err(IrError::Ranks { ranks, given: inputs.len() });
        }
    }
    ensure_memory(graph)?;
    let mut ranks: Vec<_> =
        inputs.into_iter().map(|inputs| Evaluation::new(graph, inputs, precision)).collect();
    for id in graph.ids() {
        let node = &graph[id];
        if let Op::Collective(collective) = &node.op {
            let operands: Vec<_> = ranks.iter().map(|rank| &rank.values[node.operands[0].index()]).collect();
            let results = collective.exchanged(&operands);
            ranks.iter_mut().zip(results).for_each(|(rank, result)| rank.push(id, result));
        } else {
            ranks.iter_mut().try_for_each(|rank| rank.next(id))?;
        }
    }
    Ok(ranks.into_iter().map(|rank| rank.values).collect())
}

/// The evaluation of a program on one rank, node by node.
struct Evaluation<'g> {
    graph: &'g Graph,
    inputs: BTreeMap<String, Array>,
    precision: Precision,
    values: Vec<Array>,
    /// All results of each loop, which has a node for every one of them.
    loops: BTreeMap<(Scan, &'g [ValueId]), Vec<Array>>,
}

impl<'g> Evaluation<'g> {
    fn new(graph: &'g Graph, inputs: BTreeMap<String, Array>, precision: Precision) -> Self {
        Evaluation {
            graph,
            inputs,
            precision,
            values: Vec::with_capacity(graph.len()),
            loops: BTreeMap::new(),
        }
    }

    /// Evaluates the next node, from those before it.
    fn next(&mut self, id: ValueId) -> Result<()> {
        let node = &self.graph[id];
        let operands: Vec<_> = node.operands.iter().map(|operand| &self.values[operand.index()]).collect();
        match &node.op {
            Op::Input(input) => {
                let given = self.inputs.remove(&input.name);
                self.values.push(given.ok_or_else(|| unfit(&input.name, "is missing".into()))?);
            }
            Op::Scan(scan) => {
                let key = (scan.with_result(0), &node.operands[..]);
                if !self.loops.contains_key(&key) {
                    self.loops.insert(key.clone(), scan.run(&operands, self.precision)?);
                }
                self.values.push(self.loops[&key][scan.result].clone());
            }
            op => {
                let results = op.eval(&operands, &node.ty);
                self.push(id, results);
            }
        }
        Ok(())
    }

    /// Rounds the results of a node, and keeps them.
    fn push(&mut self, id: ValueId, mut results: Vec<f64>) {
        let ty = &self.graph[id].ty;
        results.iter_mut().for_each(|x| *x = self.precision.round(ty.dtype, *x));
        self.values.push(Array { ty: ty.clone(), values: results });
    }
}

fn unfit(name: &str, reason: String) -> IrError {
    IrError::Input { name: name.into(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluated(statements: &str) -> Result<BTreeMap<String, Array>> {
        let graph = Graph::parse_verified(&format!("graph \"g\" {{{statements}}}")).unwrap();
        evaluate(&graph, &BTreeMap::new(), Precision::Declared)
    }

    /// 2⁵⁰ numbers of eight bytes: more than address space.
    #[test]
    fn what_no_memory_holds_is_an_error() {
        let large = "shape = [1048576, 1073741824]";
        let iota = format!("%0 = iota {{dtype = i32, {large}, axis = 0}} output \"y\" = %0");
        assert_eq!(evaluated(&iota), Err(IrError::Memory { bytes: 5 << 53 }));
        let wide = "%0 = constant {value = 0, dtype = f32} %1 = scan %0 {length = 1048576, carried = 1, sliced = 0, order = forward, \
             result = 0, body = graph \"b\" {%0 = input {name = \"c\", dtype = f32, shape = []} \
             %1 = broadcast %0 {shape = [1073741824], axes = []} output \"c\" = %0 output \"wide\" = %1}} output \"y\" = %1";
        assert_eq!(evaluated(wide), Err(IrError::Memory { bytes: 1 << 53 }));
    }
}
