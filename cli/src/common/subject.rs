//! What a command works on: a program of a model, or one that a file has, such as that of an imported model.

use crate::common::error::CliError;
use crate::common::imported::{ExtentArgs, program_file, read_graph, weights_file};
use crate::common::model::{Model, ModelArgs, WeightsArgs, Work, benchmark_optimizer};
use crate::common::objective::Loss;
use kernfusion::compile::{Precision, Tensors};
use kernfusion::optim::TrainStep;
use kernfusion::tensor_file;
use kernfusion_ir::Graph;
use std::path::{Path, PathBuf};

/// Flags of a model's program. A flag that needs a program that is there conflicts with them, too: beside a flag with which the program conflicts
/// clap does not ask for it.
pub(crate) const OF_MODELS: [&str; 6] = ["preset", "config", "batch_size", "dropout", "work", "weights"];

/// A program that is there already.
#[derive(clap::Args)]
pub(crate) struct ProgramArgs {
    /// A program in text form, or the folder of an imported model, instead of a program of a preset
    #[arg(long, value_name = "FILE.kir|DIR", conflicts_with_all = OF_MODELS)]
    program: Option<PathBuf>,
    /// With the folder of an imported model: its training step with AdamW instead of its outputs, by the cross-entropy or the mean square of the
    /// first output and an input "target", or output N, a scalar
    #[arg(long, value_name = "cross-entropy|mse|output:N", requires = "program", conflicts_with_all = OF_MODELS)]
    loss: Option<Loss>,
}

impl ProgramArgs {
    /// Whether there is one.
    pub(crate) fn is_given(&self) -> bool {
        self.program.is_some()
    }

    /// The files of it, which no result may replace.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let path = self.program.as_deref();
        path.map(|path| program_file(path).into_owned())
            .into_iter()
            .chain(path.and_then(weights_file))
            .collect()
    }

    /// What the flags say.
    pub(crate) fn subject(
        &self,
        model: &ModelArgs,
        weights: &WeightsArgs,
        work: Work,
    ) -> Result<Subject, CliError> {
        Subject::new((self.program.as_deref(), self.loss), model, weights, work)
    }
}

/// Whose program it is.
pub(crate) enum Subject {
    /// A model's, by the flag `--work`.
    Model(Model),
    /// One that was read.
    Given(Given),
}

/// A program that was read.
pub(crate) struct Given {
    path: PathBuf,
    pub(crate) graph: Graph,
    /// Of a training step.
    pub(crate) step: Option<TrainStep>,
}

impl Given {
    /// The training step of an imported model.
    fn step(path: &Path, loss: Loss) -> Result<Self, CliError> {
        // What is not there at all is said as the commands without a loss do.
        let kind = std::fs::metadata(path).map_err(|cause| CliError::Read { path: path.into(), cause })?;
        if !kind.is_dir() {
            let reason =
                "--loss: what is trained is said by the folder of an imported model, not by a program alone";
            return Err(CliError::Usage(reason.into()));
        }
        let model = ExtentArgs::default().model(path)?;
        let step = loss.training_step(&model, None, (&benchmark_optimizer(), None), None)?;
        Ok(Given { path: path.into(), graph: step.program.graph.clone(), step: Some(step) })
    }

    /// The values of states that are known: those of an imported model.
    pub(crate) fn weights(&self) -> Result<Tensors, CliError> {
        weights_file(&self.path).map_or_else(|| Ok(Tensors::new()), |path| Ok(tensor_file::read(&path)?))
    }
}

impl Subject {
    /// The program of a file or, with a loss, the training step of an imported model; or that of the model that the flags describe.
    pub(crate) fn new(
        (file, loss): (Option<&Path>, Option<Loss>),
        model: &ModelArgs,
        weights: &WeightsArgs,
        work: Work,
    ) -> Result<Self, CliError> {
        match (file, loss) {
            (Some(path), Some(loss)) => Ok(Subject::Given(Given::step(path, loss)?)),
            (Some(path), None) => {
                let given = Given { path: path.into(), graph: read_graph(path)?, step: None };
                Ok(Subject::Given(given))
            }
            (None, _) => Ok(Subject::Model(model.resolve()?.keeping(weights, work)?)),
        }
    }

    /// What reports call it: the preset, or the file of its shape or of itself.
    pub(crate) fn name(&self) -> String {
        match self {
            Subject::Model(model) => model.name.clone(),
            Subject::Given(given) => given.path.display().to_string(),
        }
    }

    /// What reports call the work.
    pub(crate) fn work(&self, work: Work) -> String {
        match self {
            Subject::Model(_) => work.name(),
            Subject::Given(given) if given.step.is_some() => Work::Train.name(),
            Subject::Given(_) => "program".into(),
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
            Subject::Given(given) => Ok(given.graph.clone()),
        }
    }

    /// The model, if it is one's.
    pub(crate) fn model(&self) -> Option<&Model> {
        match self {
            Subject::Model(model) => Some(model),
            Subject::Given(_) => None,
        }
    }
}
