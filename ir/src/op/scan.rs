//! Loops: a body graph that runs a fixed number of times and hands values from iteration to iteration.

use super::{Attribute, Attributes, KernelEntry, Stanza, Vjp, ensure};
use crate::evaluate::{Array, Precision, evaluate_arrays, room};
use crate::kernel::{Entered, Index, KernelWriter, Refusal};
use crate::{Graph, IrError, Result, TensorType, ValueId, VerifyError};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

/// One result of a loop. Operands: first values of what is carried, tensors whose slices along the first axis are given to
/// the iterations, and constants of the loop; they are the inputs of the body, in the order of their declaration. Outputs of the
/// body, in their order: the next values of what is carried, then values of which every iteration gives one.
///
/// ```text
/// for t in 0 .. length (downwards if reversed):
///     carried, each = body(carried, slices[t], constants)
/// ```
///
/// Result i is what is carried last for i < `carried`, else the values of all iterations along a new first axis, each at the
/// place of its iteration. A loop with several results is several nodes with equal operands and bodies; they become one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Scan {
    /// What an iteration does.
    pub body: Body,
    /// The number of iterations, 1 or more.
    pub length: usize,
    /// How many operands are carried.
    pub carried: usize,
    /// How many operands are given slice by slice.
    pub sliced: usize,
    /// Whether the last slice comes first.
    pub reverse: bool,
    /// Which output of the body.
    pub result: usize,
}

/// The body of a loop: a graph that is shared, never changes, and is compared by its text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Graph", into = "Graph")]
pub struct Body(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    graph: Graph,
    text: OnceLock<String>,
    /// What the verifier says of it. Each loop around it asks again, so without this memory verifying would take as many iterations as
    /// there are pairs of loops inside of each other.
    verified: OnceLock<std::result::Result<(), VerifyError>>,
}

impl Body {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.0.graph
    }

    /// Its text form.
    pub fn text(&self) -> &str {
        self.0.text.get_or_init(|| self.0.graph.to_string())
    }

    /// What [`Graph::verify`] says of it.
    ///
    /// # Errors
    /// Those of [`Graph::verify`].
    pub fn verify(&self) -> std::result::Result<(), VerifyError> {
        self.0.verified.get_or_init(|| self.0.graph.verify()).clone()
    }
}

impl From<Graph> for Body {
    fn from(graph: Graph) -> Self {
        Body(Arc::new(Shared { graph, text: OnceLock::new(), verified: OnceLock::new() }))
    }
}

impl From<Body> for Graph {
    fn from(body: Body) -> Self {
        body.graph().clone()
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Body {}

impl PartialOrd for Body {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Body {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.text().cmp(other.text()) }
    }
}

impl Hash for Body {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text().hash(state);
    }
}

impl Scan {
    /// The same loop, with another result.
    pub fn with_result(&self, result: usize) -> Self {
        Scan { result, ..self.clone() }
    }

    /// Adds to the outputs of a body what backward wants of forward: the values that are carried, before each iteration, and
    /// products. What no node picks as its result is not computed for it.
    pub fn hand_out(body: &mut Graph, carried: usize) {
        let inputs: Vec<_> = body.inputs().take(carried).map(|(id, ..)| id).collect();
        let costly =
            |id: &ValueId| matches!(body[*id].op.entry(), KernelEntry::Contraction | KernelEntry::Loop);
        let kept: Vec<_> = inputs.into_iter().chain(body.ids().filter(costly)).collect();
        for id in kept {
            let is_there = body.outputs()[carried..].iter().any(|output| output.value == id);
            if !is_there {
                body.output(format!("kept.{}", id.index()), id);
            }
        }
    }

    /// The place of an iteration's slice.
    pub fn place(&self, iteration: usize) -> usize {
        if self.reverse { self.length - 1 - iteration } else { iteration }
    }

    /// All results.
    ///
    /// # Errors
    /// If the body is no valid graph, or memory is short.
    pub fn run(&self, operands: &[&Array], precision: Precision) -> Result<Vec<Array>> {
        let graph = self.body.graph();
        let names: Vec<_> = graph.inputs().map(|(_, name, _)| name.to_string()).collect();
        let mut carried: Vec<Array> = operands[..self.carried].iter().map(|array| (*array).clone()).collect();
        let types =
            |result| self.with_result(result).infer(&operands.iter().map(|a| &a.ty).collect::<Vec<_>>());
        let results = (self.carried..graph.outputs().len()).map(types);
        let results = results.collect::<std::result::Result<Vec<_>, _>>();
        let results = results.map_err(|reason| self.broken(reason))?;
        room(results.iter().map(TensorType::elements).fold(0, usize::saturating_add))?;
        let mut each: Vec<_> = results.iter().map(Array::zeros).collect();
        for place in (0..self.length).map(|iteration| self.place(iteration)) {
            let slice = |array: &&Array| {
                let ty = array.ty.with_shape(&array.ty.shape[1..]);
                let part = place * ty.elements()..(place + 1) * ty.elements();
                Array { values: array.values[part].to_vec(), ty }
            };
            let slices = operands[self.carried..][..self.sliced].iter().map(slice);
            let constants = operands[self.carried + self.sliced..].iter().map(|array| (*array).clone());
            let values = carried.into_iter().chain(slices).chain(constants);
            let inputs: BTreeMap<_, _> = names.iter().cloned().zip(values).collect();
            let mut outputs = evaluate_arrays(graph, inputs, precision)?;
            let mut results = graph
                .outputs()
                .iter()
                .map(|output| outputs.remove(&output.name).expect("names of outputs are unique"));
            carried = results.by_ref().take(self.carried).collect();
            for (all, one) in each.iter_mut().zip(results) {
                let start = place * one.values.len();
                all.values[start..start + one.values.len()].copy_from_slice(&one.values);
            }
        }
        Ok(carried.into_iter().chain(each).collect())
    }

    fn broken(&self, reason: String) -> IrError {
        IrError::Type { op: "scan", operands: String::new(), reason, origin: Default::default() }
    }
}

impl Stanza for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }
    fn attributes(&self) -> Attributes {
        let attributes = Attributes::default()
            .number("length", self.length as f64)
            .number("carried", self.carried as f64)
            .number("sliced", self.sliced as f64)
            .word("order", if self.reverse { "backward" } else { "forward" })
            .number("result", self.result as f64);
        attributes.with("body", Attribute::Body(self.body.clone()))
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        (name == "scan").then(|| {
            let reverse = match attributes.take_word("order")?.as_str() {
                "forward" => false,
                "backward" => true,
                other => return Err(format!("attribute `order` must be forward or backward, not {other}")),
            };
            Ok(Scan {
                body: attributes.take_body("body")?,
                length: attributes.take_count("length")?,
                carried: attributes.take_count("carried")?,
                sliced: attributes.take_count("sliced")?,
                reverse,
                result: attributes.take_count("result")?,
            })
        })
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let graph = self.body.graph();
        self.body.verify().map_err(|error| format!("its body: {error}"))?;
        ensure(self.length > 0, || "has no iterations".into())?;
        let inputs: Vec<_> = graph.inputs().map(|(id, name, _)| (name, &graph[id].ty)).collect();
        let sliced = self.carried..self.carried.saturating_add(self.sliced);
        ensure(inputs.len() == operands.len() && sliced.end <= operands.len(), || {
            format!("gives {} operands to a body of {} inputs", operands.len(), inputs.len())
        })?;
        for (at, ((name, ty), operand)) in inputs.iter().zip(operands).enumerate() {
            let fits = match sliced.contains(&at) {
                true => **operand == stacked(self.length, ty),
                false => operand == ty,
            };
            ensure(fits, || {
                format!("gives {operand} for the body's {name}: {ty} in {} iterations", self.length)
            })?;
        }
        ensure(graph.ids().all(|id| graph[id].op.entry() != KernelEntry::Collective), || {
            "its body exchanges something between ranks".into()
        })?;
        let outputs: Vec<_> = graph.outputs().iter().map(|output| &graph[output.value].ty).collect();
        ensure(graph.outputs().iter().all(|output| !output.updates_state), || {
            "its body updates a state".into()
        })?;
        ensure(self.carried <= outputs.len() && self.result < outputs.len(), || {
            format!("has no result {} of a body of {} outputs", self.result, outputs.len())
        })?;
        let kept = inputs.iter().zip(&outputs).take(self.carried).find(|((_, from), to)| from != *to);
        ensure(kept.is_none(), || {
            kept.map_or(String::new(), |((name, from), to)| {
                format!("carries {name}: {from}, which becomes {to}")
            })
        })?;
        let ty = outputs[self.result];
        Ok(if self.result < self.carried { ty.clone() } else { stacked(self.length, ty) })
    }
    fn eval(&self, operands: &[&Array], _: &TensorType) -> Vec<f64> {
        let mut results = self.run(operands, Precision::Declared).expect("the verifier accepted its body");
        results.swap_remove(self.result).values
    }
    fn vjp(&self, _: &mut Vjp<'_, '_>) -> Result<Vec<Option<ValueId>>> {
        Err(self.broken("is differentiated with all of its results at once".into()))
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Loop
    }
    fn enter(&self, _: &mut dyn KernelWriter, _: &[Index]) -> Entered {
        Err(Refusal::Because("a loop is a kernel of its own"))
    }
}

/// The type of one such tensor for every iteration.
fn stacked(length: usize, ty: &TensorType) -> TensorType {
    ty.with_shape([&[length], &ty.shape[..]].concat())
}
