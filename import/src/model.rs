//! An imported model on a trace.

use crate::Result;
use crate::call::{Call, Values, as_dtype};
use crate::error::ImportError;
use crate::imported::{Imported, Source};
use crate::operators;
use crate::schema::{Node, operator_name};
use kernfusion::init::Init;
use kernfusion::trace::{Program, Tensor, Trace};
use kernfusion_ir::TensorType;

/// An imported model whose parameters and buffers are declared on a trace.
pub struct Model<'a> {
    imported: &'a Imported,
    trace: Trace,
    /// Those of the archive's states, in this order.
    states: Vec<Tensor>,
}

impl Imported {
    /// Declares the parameters and buffers on a trace, under the open module path.
    ///
    /// # Errors
    /// The first mistake on the trace, such as a name that is there already.
    #[track_caller]
    pub fn declare(&self, trace: &Trace) -> Result<Model<'_>> {
        Model::new(self, trace)
    }

    /// The model's results for these inputs: declares the parameters and buffers, and calls the [model](Model::call).
    ///
    /// # Errors
    /// As [`Imported::declare`] and [`Model::call`].
    #[track_caller]
    pub fn call(&self, trace: &Trace, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        self.declare(trace)?.call(inputs)
    }

    /// The model as a program of its own, in evaluating mode: its inputs under their names, its results as `output.0`, `output.1`, ….
    ///
    /// # Errors
    /// As [`Imported::call`].
    pub fn program(&self) -> Result<Program> {
        let trace = Trace::new();
        let mut inputs = vec![];
        for (name, ty) in self.inputs() {
            inputs.push(trace.input(name, ty.shape.clone(), ty.dtype));
        }
        let outputs = self.call(&trace, &inputs.iter().collect::<Vec<_>>())?;
        let names: Vec<_> = (0..outputs.len()).map(|at| format!("output.{at}")).collect();
        let named: Vec<_> = names.iter().map(String::as_str).zip(&outputs).collect();
        Ok(trace.finish(&named)?)
    }
}

impl<'a> Model<'a> {
    #[track_caller]
    pub(crate) fn new(imported: &'a Imported, trace: &Trace) -> Result<Self> {
        let mut states = vec![];
        for state in &imported.states {
            let (name, TensorType { dtype, shape }) = (state.name(), state.ty().clone());
            states.push(match state.trained {
                true => trace.adapted(name, &trace.parameter(name, shape, Init::Zeros)),
                false => trace.state(name, shape, dtype),
            });
        }
        checked(trace)?;
        Ok(Model { imported, trace: trace.clone(), states })
    }

    /// The model's results for these inputs, in the archive's order. Buffers that the model changes are [updated](Trace::update).
    ///
    /// # Errors
    /// The inputs are not those that the model takes; an operator is used in a way that is not known, which names its module and its line
    /// of Python; or the first mistake on the trace.
    pub fn call(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let mut values = self.given(inputs)?;
        for node in &self.imported.nodes {
            self.trace_node(node, &mut values)?;
        }
        let value = |name: &String| {
            let missing = || self.wrong(format!("a result is \"{name}\", which no node gives"));
            values.get(name.as_str()).cloned().ok_or_else(missing)
        };
        for (name, state) in &self.imported.updates {
            self.trace.update(&self.states[*state], &value(name)?);
        }
        checked(&self.trace)?;
        self.imported.results.iter().map(value).collect()
    }

    /// The inputs of the graph by name.
    fn given(&self, inputs: &[&Tensor]) -> Result<Values> {
        let imported = self.imported;
        let names: Vec<_> = imported.inputs().map(|(name, _)| name).collect();
        if names.len() != inputs.len() {
            let reason = format!(
                "the model takes {} inputs ({}), not {}",
                names.len(),
                names.join(", "),
                inputs.len()
            );
            return Err(ImportError::Inputs(reason));
        }
        let (mut values, mut inputs) = (Values::new(), inputs.iter());
        for (name, source) in &imported.sources {
            let value = match source {
                Source::Given(expected) => {
                    let input = inputs.next().expect("as many as names");
                    if input.ty() != *expected {
                        let reason =
                            format!("input \"{name}\" is {}, the model takes {expected}", input.ty());
                        return Err(ImportError::Inputs(reason));
                    }
                    (*input).clone()
                }
                Source::State(at) => as_dtype(&self.states[*at], imported.states[*at].dtype),
                Source::ClosedForm(ty, form) => self.trace.closed_form(*form, ty),
            };
            values.insert(name.clone(), value);
        }
        Ok(values)
    }

    fn trace_node(&self, node: &'a Node, values: &mut Values) -> Result<()> {
        let fault = |reason: String| ImportError::Node {
            path: self.imported.path.clone(),
            operator: operator_name(&node.target).into(),
            place: node.metadata.place().into(),
            reason,
        };
        let operator = operators::find(operator_name(&node.target)).expect("checked when the file was read");
        let names = node.results();
        let types = names.iter().map(|name| self.recorded(name)).collect::<std::result::Result<Vec<_>, _>>();
        let types = types.map_err(fault)?;
        let _line = node.metadata.line().map(|line| self.trace.at_line(line));
        let module = node.metadata.module();
        let _scope = (!module.is_empty()).then(|| self.trace.scope(&module));
        let call = Call { trace: &self.trace, node, values, results: &types };
        let built = (operator.build)(&call).map_err(fault)?;
        if let Some(error) = self.trace.error() {
            // The lines after the first say the place, too.
            return Err(fault(error.to_string().lines().next().unwrap_or_default().into()));
        }
        for ((name, ty), result) in names.into_iter().zip(&types).zip(built) {
            // Exporters record the states of an LSTM as a kernel of theirs gives them, in another shape.
            if result.ty() != *ty && self.is_read(name) {
                return Err(fault(format!("it gives {}, and the file says {ty}", result.ty())));
            }
            values.insert(name.into(), result);
        }
        Ok(())
    }

    /// Whether a node reads a value, or it is a result or what a buffer takes.
    fn is_read(&self, name: &str) -> bool {
        let Imported { nodes, results, updates, .. } = self.imported;
        let mut inputs = nodes.iter().flat_map(|node| &node.inputs);
        inputs.any(|input| input.arg.tensors().iter().any(|value| value.name == name))
            || results.iter().chain(updates.iter().map(|(value, _)| value)).any(|value| value == name)
    }

    /// The type that the file records for a value.
    fn recorded(&self, name: &str) -> std::result::Result<TensorType, String> {
        self.imported.types.get(name).cloned().unwrap_or_else(|| Err(format!("\"{name}\" has no type")))
    }

    fn wrong(&self, reason: String) -> ImportError {
        ImportError::Archive { path: self.imported.path.clone(), reason }
    }
}

/// The first mistake on a trace.
fn checked(trace: &Trace) -> Result<()> {
    trace.error().map_or(Ok(()), |error| Err(kernfusion::Error::from(error).into()))
}
