//! A file that was read: a graph, its states, and its signature.

use crate::archive::Archive;
use crate::constants::{closed_form, may_have_form};
use crate::error::{ImportError, UnknownOperator};
use crate::in_place::Renamed;
use crate::operators::quantization;
use crate::schema::{
    Argument, ExportedProgram, Graph, InputSpec, MAJOR, Node, OutputSpec, Signature, operator_name,
};
use crate::state::{State, Value};
use crate::weights::{Weight, Weights, tensor_type};
use crate::{Result, in_place, inline, sizes};
use kernfusion::compile::States;
use kernfusion::passes::ClosedForm;
use kernfusion_ir::TensorType;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// A model that was exported elsewhere.
pub struct Imported {
    pub(crate) path: PathBuf,
    /// In the order in which they run.
    pub(crate) nodes: Vec<Node>,
    /// The type of each value, or why it has none.
    pub(crate) types: BTreeMap<String, std::result::Result<TensorType, String>>,
    /// What each input of the graph is.
    pub(crate) sources: Vec<(String, Source)>,
    pub(crate) states: Vec<State>,
    /// The names of the graph's values that are results.
    pub(crate) results: Vec<String>,
    /// The values that buffers take: a value's name, the number of the state.
    pub(crate) updates: Vec<(String, usize)>,
}

/// What an input of the graph is.
pub(crate) enum Source {
    /// The next of the tensors that the model is called with.
    Given(TensorType),
    /// A state, by its number.
    State(usize),
    /// A tensor that is never another one, and follows from coordinates.
    ClosedForm(TensorType, ClosedForm),
}

impl Imported {
    /// Reads an archive of `torch.export.save`.
    pub(crate) fn open_archive(path: &Path, extents: &[(&str, usize)]) -> Result<Self> {
        let mut archive = Archive::open(path)?;
        let model = only_model(&archive)?;
        let file = format!("models/{model}.json");
        let bytes = archive.read(&file)?;
        let mut program: ExportedProgram =
            serde_json::from_slice(&bytes).map_err(|error| archive.wrong(format!("{file}: {error}")))?;
        if program.schema_version.major != MAJOR {
            let major = program.schema_version.major;
            return Err(archive.wrong(format!("its schema has version {major}, and {MAJOR} is read")));
        }
        inline::inline(&mut program.graph_module.graph);
        sizes::choose(&mut program, extents).map_err(|reason| archive.wrong(reason))?;
        let (mut graph, signature) = (program.graph_module.graph, program.graph_module.signature);
        check_operators(path, &graph)?;
        let results: Vec<_> = signature.output_specs.iter().filter_map(OutputSpec::value).collect();
        let renamed =
            in_place::without_changes(&mut graph, &results).map_err(|(operator, place, reason)| {
                ImportError::Node { path: path.into(), operator, place: place.into(), reason }
            })?;
        let weights = Weights::open(&mut archive, &model)?;
        Reader { archive, weights, renamed }.imported(path, graph, &signature)
    }

    /// The names and types of the inputs, in the order in which the model is called with them.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.sources.iter().filter_map(|(name, source)| match source {
            Source::Given(ty) => Some((name.as_str(), ty)),
            Source::State(_) | Source::ClosedForm(..) => None,
        })
    }

    /// The operators of the graph, and how many nodes have each.
    pub fn operators(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for node in &self.nodes {
            *counts.entry(operator_name(&node.target)).or_default() += 1;
        }
        counts
    }

    /// Parameters and buffers, whose values the archive has.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// Gives states the values that the archive has: those that a program or a [session](kernfusion::optim::Session::states) of this model
    /// is compiled over. They are read one after another.
    ///
    /// # Errors
    /// The states are closed and lack one, or one has another type; as [`State::read`].
    pub fn set(&self, states: &States) -> Result<()> {
        for state in self.states() {
            states.set(state.name(), &state.read()?).map_err(kernfusion::Error::from)?;
        }
        Ok(())
    }
}

/// The name of the model in an archive, which may have several.
fn only_model(archive: &Archive) -> Result<String> {
    let names = archive.names("models");
    let models: Vec<_> = names.iter().filter_map(|name| name.strip_suffix(".json")).collect();
    match models.as_slice() {
        [model] => Ok(model.to_string()),
        [] => Err(archive.wrong("it has no exported program: models/model.json is missing".into())),
        several => {
            Err(archive.wrong(format!("it has several models ({}), and one is read", several.join(", "))))
        }
    }
}

/// Lists all operators that are not known.
fn check_operators(path: &Path, graph: &Graph) -> Result<()> {
    let mut unknown: Vec<UnknownOperator> = vec![];
    let mut places: HashMap<&str, usize> = HashMap::new();
    for node in graph.nodes.iter() {
        let name = operator_name(&node.target);
        if in_place::is_known(&node.target) {
            continue;
        }
        let at = *places.entry(name).or_insert_with(|| {
            unknown.push(UnknownOperator { name: name.into(), count: 0, first: node.metadata.place() });
            unknown.len() - 1
        });
        unknown[at].count += 1;
    }
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(ImportError::Operators { path: path.into(), operators: unknown }),
    }
}

/// An input of a graph; the name of its state, and whether that is a parameter, unless it is given.
type Input<'s> = (String, Option<(&'s str, bool)>);

/// Brings the parts of an archive together.
struct Reader {
    archive: Archive,
    weights: Weights,
    renamed: Renamed,
}

impl Reader {
    fn imported(mut self, path: &Path, graph: Graph, signature: &Signature) -> Result<Imported> {
        let changed = self.changed_buffers(signature)?;
        let (mut states, mut sources) = (vec![], vec![]);
        let (mut by_identity, mut by_name) = (HashMap::new(), BTreeMap::new());
        for (value, state) in self.inputs(signature)? {
            let Some((name, is_parameter)) = state else {
                let ty = graph
                    .tensor_values
                    .get(&value)
                    .ok_or_else(|| "it has no type".to_string())
                    .and_then(tensor_type);
                let ty = ty.map_err(|reason| self.archive.wrong(format!("input \"{value}\": {reason}")))?;
                sources.push((value, Source::Given(ty)));
                continue;
            };
            let Weight { view, identity, requires_grad } = self.weights.find(&mut self.archive, name)?;
            let is_constant = !is_parameter && !changed.iter().any(|(_, changed)| *changed == name);
            if is_constant && may_have_form(view.ty()) {
                let constant = view.read().map_err(|error| ImportError::of_reading(path, error))?;
                if let Some(form) = closed_form(&constant) {
                    sources.push((value, Source::ClosedForm(constant.ty(), form)));
                    continue;
                }
            }
            let at = *by_identity.entry(identity).or_insert_with(|| {
                let trained = is_parameter && requires_grad && view.ty().dtype.is_float();
                states.push(State::new(path.into(), name, Value::Stored(view), trained));
                states.len() - 1
            });
            by_name.insert(name, at);
            sources.push((value, Source::State(at)));
        }
        let results = self.results(signature)?;
        let updates = changed.into_iter().map(|(value, name)| match by_name.get(name) {
            Some(&state) => Ok((value, state)),
            None => Err(self.archive.wrong(format!("it changes \"{name}\", which it does not have"))),
        });
        let updates = updates.collect::<Result<_>>()?;
        let path = path.into();
        let bytes = quantization::without_sign(&graph);
        let types = graph.tensor_values.iter().map(|(name, meta)| match bytes.contains(name.as_str()) {
            true => (name.clone(), tensor_type(&quantization::with_sign(meta))),
            false => (name.clone(), tensor_type(meta)),
        });
        let types = types.collect();
        Ok(Imported { path, nodes: graph.nodes, types, sources, states, results, updates })
    }

    /// What the signature says of the inputs.
    fn inputs<'s>(&self, signature: &'s Signature) -> Result<Vec<Input<'s>>> {
        let mut inputs = vec![];
        for spec in &signature.input_specs {
            let (value, state) = match spec {
                InputSpec::UserInput { arg: Argument::Tensor(value) } => (value, None),
                InputSpec::Parameter { arg, parameter_name } => (arg, Some((parameter_name.as_str(), true))),
                InputSpec::Buffer { arg, buffer_name } => (arg, Some((buffer_name.as_str(), false))),
                InputSpec::TensorConstant { arg, tensor_constant_name } => {
                    (arg, Some((tensor_constant_name.as_str(), false)))
                }
                // What was no tensor is a part of the graph.
                InputSpec::UserInput { .. } | InputSpec::ConstantInput(_) => continue,
                InputSpec::CustomObj(_) | InputSpec::Token(_) => {
                    return Err(self.archive.wrong("it takes an object that is no tensor".into()));
                }
            };
            inputs.push((value.name.clone(), state));
        }
        Ok(inputs)
    }

    /// The values that are results.
    fn results(&self, signature: &Signature) -> Result<Vec<String>> {
        let mut results = vec![];
        for spec in &signature.output_specs {
            match spec {
                OutputSpec::UserOutput { arg: Argument::Tensor(value) }
                | OutputSpec::LossOutput { arg: value } => {
                    results.push(self.renamed.last(&value.name).to_string());
                }
                OutputSpec::UserOutput { arg: Argument::None(_) } | OutputSpec::BufferMutation { .. } => {}
                OutputSpec::UserOutput { .. } => {
                    return Err(self.archive.wrong(format!("result {} is no tensor", results.len())));
                }
                OutputSpec::GradientToParameter(_)
                | OutputSpec::GradientToUserInput(_)
                | OutputSpec::UserInputMutation(_)
                | OutputSpec::ParameterMutation(_)
                | OutputSpec::Token(_) => return Err(self.archive.wrong(CHANGES.into())),
            }
        }
        Ok(results)
    }

    /// Buffers that the model changes, each with the value that it takes: those of which the signature says so, and those that nodes
    /// change in place.
    fn changed_buffers<'s>(&self, signature: &'s Signature) -> Result<Vec<(String, &'s str)>> {
        let said = signature.output_specs.iter().filter_map(|spec| match spec {
            OutputSpec::BufferMutation { arg, buffer_name } => {
                Some((self.renamed.last(&arg.name).to_string(), buffer_name.as_str()))
            }
            _ => None,
        });
        let mut changed: Vec<_> = said.collect();
        for spec in &signature.input_specs {
            let (value, buffer) = match spec {
                InputSpec::Buffer { arg, buffer_name } => (arg, Some(buffer_name)),
                InputSpec::TensorConstant { arg, tensor_constant_name } => (arg, Some(tensor_constant_name)),
                InputSpec::UserInput { arg: Argument::Tensor(value) } => (value, None),
                InputSpec::Parameter { arg, .. } => (arg, None),
                InputSpec::UserInput { .. }
                | InputSpec::ConstantInput(_)
                | InputSpec::CustomObj(_)
                | InputSpec::Token(_) => continue,
            };
            let last = self.renamed.last(&value.name);
            match buffer {
                _ if last == value.name => {}
                Some(name) => changed.push((last.into(), name)),
                None => return Err(self.archive.wrong(CHANGES.into())),
            }
        }
        Ok(changed)
    }
}

const CHANGES: &str =
    "it changes inputs or parameters, or has gradients in it: export the forward pass alone";

impl OutputSpec {
    /// The value that a result is, or that a buffer takes.
    fn value(&self) -> Option<&str> {
        match self {
            OutputSpec::UserOutput { arg: Argument::Tensor(value) }
            | OutputSpec::LossOutput { arg: value }
            | OutputSpec::BufferMutation { arg: value, .. } => Some(&value.name),
            _ => None,
        }
    }
}
