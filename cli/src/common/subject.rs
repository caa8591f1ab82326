//! What a command works on: a program of a model, or one that a file has, such as that of an imported model.

use crate::common::error::{CliError, read_text};
use crate::common::imported::program_file;
use crate::common::model::{Model, ModelArgs, WeightsArgs, Work};
use kernfusion::compile::Precision;
use kernfusion_ir::Graph;
use std::path::{Path, PathBuf};

/// A program that is there already.
#[derive(clap::Args)]
pub(crate) struct ProgramArgs {
    /// A program in text form, or the folder of an imported model, instead of a program of a preset
    #[arg(long, value_name = "FILE.kir|DIR", conflicts_with_all = ["preset", "config", "batch_size", "dropout", "work", "weights"])]
    program: Option<PathBuf>,
}

impl ProgramArgs {
    /// Whether there is one.
    pub(crate) fn is_given(&self) -> bool {
        self.program.is_some()
    }

    /// What the flags say.
    pub(crate) fn subject(
        &self,
        model: &ModelArgs,
        weights: &WeightsArgs,
        work: Work,
    ) -> Result<Subject, CliError> {
        Subject::new(self.program.as_deref(), model, weights, work)
    }
}

/// Whose program it is.
pub(crate) enum Subject {
    /// A model's, by the flag `--work`.
    Model(Model),
    /// One that was read from here.
    File(PathBuf, Graph),
}

impl Subject {
    /// The program of a file, or that of the model that the flags describe.
    pub(crate) fn new(
        file: Option<&Path>,
        model: &ModelArgs,
        weights: &WeightsArgs,
        work: Work,
    ) -> Result<Self, CliError> {
        match file {
            Some(path) => Ok(Subject::File(path.into(), read_graph(path)?)),
            None => Ok(Subject::Model(model.resolve()?.keeping(weights, work)?)),
        }
    }

    /// What reports call it: the preset, or the file.
    pub(crate) fn name(&self) -> String {
        match self {
            Subject::Model(model) => model.preset.into(),
            Subject::File(path, _) => path.display().to_string(),
        }
    }

    /// What reports call the work.
    pub(crate) fn work(&self, work: Work) -> String {
        match self {
            Subject::Model(_) => work.name(),
            Subject::File(..) => "program".into(),
        }
    }

    /// Windows in a batch, which a file does not say.
    pub(crate) fn batch(&self) -> Option<usize> {
        self.model().map(|model| model.batch)
    }

    /// Tokens that a step reads, which a file does not say.
    pub(crate) fn tokens(&self, work: Work) -> Option<usize> {
        self.model().map(|model| model.batch * work.length(model))
    }

    /// The program, before any pass.
    pub(crate) fn program(&self, work: Work, precision: Precision) -> Result<Graph, CliError> {
        match self {
            Subject::Model(model) => Ok(work.program(model, precision)?.graph),
            Subject::File(_, graph) => Ok(graph.clone()),
        }
    }

    /// The model, if it is one's.
    pub(crate) fn model(&self) -> Option<&Model> {
        match self {
            Subject::Model(model) => Some(model),
            Subject::File(..) => None,
        }
    }
}

/// Reads and verifies a program: a file, or that of an imported model in its folder.
pub(crate) fn read_graph(path: &Path) -> Result<Graph, CliError> {
    let path = program_file(path);
    let text = read_text(&path)?;
    let content = |reason: String| CliError::Content { path: path.to_path_buf(), reason };
    Graph::parse_verified(&text).map_err(|error| content(error.to_string()))
}
