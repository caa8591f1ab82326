//! `kernfusion bisect`: which step of compilation changes a result.

use crate::Outcome;
use crate::common::error::{CliError, in_file};
use crate::common::imported::read_graph;
use crate::common::imported::weights_file;
use crate::common::model::{ModelArgs, TargetArgs, WeightsArgs, Work, benchmark_optimizer};
use crate::common::screen::{Screen, progress};
use crate::common::subject::OF_MODELS;
use crate::common::workload::{fill, inputs, synthetic_tokens, windows};
use kernfusion::HostTensor;
use kernfusion::bisect::{Bisection, Pipeline, TOLERANCE, bisect};
use kernfusion::compile::{Mode, Tensors};
use kernfusion::tensor_file;
use kernfusion_ir::evaluate::ensure_memory;
use kernfusion_ir::{Graph, InputRole};
use kernfusion_lm::train::batches;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Find the pass, the rewrite rule, the fusion or the kernel that makes a result wrong
///
/// A program is evaluated in f64 as it was traced and after every pass; then its kernels are interpreted in f64, and their code is
/// run one kernel after another beside its interpretation, on the device that --device names. The first step whose results leave the tolerance is named, with the
/// op and the user's line. Evaluation is slow: models are taken with a batch of 1 unless --batch-size says otherwise.
///
/// Exit code 0: nothing deviates; 1: a step was found.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion bisect step.kir
  kernfusion bisect step.kir --inputs in.safetensors --tolerance 1e-9
  kernfusion bisect --preset tiny --work train --dtype bf16
  kernfusion bisect --preset tiny --device cuda")]
pub(crate) struct Args {
    /// Program in text form, or the folder of an imported model
    #[arg(value_name = "FILE.kir|DIR", conflicts_with_all = OF_MODELS)]
    file: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    /// Program of the model
    #[arg(long, value_enum, default_value = "train")]
    work: Work,
    #[command(flatten)]
    weights: WeightsArgs,
    #[command(flatten)]
    target: TargetArgs,
    /// Inputs and states by name; those that are left out are random
    #[arg(long, value_name = "FILE.safetensors")]
    inputs: Option<PathBuf>,
    /// Seed of random inputs and of a model's parameters
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// How far results in f64 may differ, as a share of the largest magnitude of their tensor
    #[arg(long, value_name = "X", default_value_t = TOLERANCE)]
    tolerance: f64,
}

pub(crate) fn run(mut args: Args, screen: &mut Screen) -> Outcome {
    if !(args.tolerance >= 0.0 && args.tolerance.is_finite()) {
        return Err(CliError::Usage("--tolerance must be a number, 0 or above".into()));
    }
    args.target.refuse_check_finite("bisect says by itself what is not finite")?;
    let (graph, mut given) = match &args.file {
        Some(file) => {
            let graph = read_graph(file)?;
            let weights =
                weights_file(file).map_or_else(|| Ok(Tensors::new()), |path| tensor_file::read(&path))?;
            (graph, weights)
        }
        None => args.of_model()?,
    };
    if let Some(file) = &args.inputs {
        let tensors = tensor_file::read(file)?;
        if let Some(name) = tensors.keys().find(|name| graph.input(name).is_none()) {
            let reason = format!("the program has no input \"{name}\"");
            return Err(CliError::Content { path: file.clone(), reason });
        }
        given.extend(tensors);
    }
    let named = |error: kernfusion::Error| match &args.file {
        Some(file) => in_file(file, error),
        None => error.into(),
    };
    ensure_memory(&graph).map_err(|error| named(error.into()))?;
    for role in [InputRole::Data, InputRole::State] {
        fill(&graph, &mut given, role, args.seed)?;
    }
    let pipeline = Pipeline::of(&args.target.target(Mode::Compiled)?);
    let bar = progress(0, "{elapsed} of evaluation");
    bar.enable_steady_tick(Duration::from_millis(200));
    let found = bisect(&graph, &given, &pipeline, args.tolerance);
    bar.finish_and_clear();
    let found = found.map_err(named)?;
    show(&found, screen);
    Ok(if found.finding.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(found: &Bisection, screen: &mut Screen) {
    let width = found.stages.iter().map(|stage| stage.name.len()).max().unwrap_or(0).max(18);
    screen.line(format!("{:<width$} {:>8} {:>10} {:>8}  of", "step", "size", "deviation", "s"));
    for stage in &found.stages {
        let seconds = stage.time.as_secs_f64();
        let line = format!(
            "{:<width$} {:>8} {:>10.1e} {seconds:>8.2}  {}",
            stage.name, stage.size, stage.deviation, stage.of
        );
        screen.line(line.trim_end());
    }
    if !found.not_finite.is_empty() {
        screen.line(format!("not finite as traced, and compared as such: {}", found.not_finite.join(", ")));
    }
    match &found.finding {
        Some(finding) => screen.line(format!("found: {finding}")),
        None => {
            screen.line("nothing deviates: every pass, fusion and kernel gives what the traced program gives")
        }
    }
}

impl Args {
    /// The program of a model with its first parameters and a batch of synthetic tokens.
    fn of_model(&mut self) -> Result<(Graph, Tensors), CliError> {
        self.model.batch_size.get_or_insert(1);
        let model = self.model.resolve()?.keeping(&self.weights, self.work)?;
        batches::check(&model.config)?;
        let mut given = Tensors::new();
        let mut add = |tensors: Vec<(&str, HostTensor)>| {
            given.extend(tensors.into_iter().map(|(name, tensor)| (name.to_string(), tensor)));
        };
        let program = match self.work {
            Work::Train => {
                let optimizer = benchmark_optimizer();
                let step = model.config.train_step(model.batch, &optimizer, None)?;
                add(step.scalars(0, optimizer.learning_rate(), self.seed));
                step.program
            }
            work => work.program(&model, self.target.precision())?,
        };
        let tokens = synthetic_tokens(&model)?;
        let size = (model.batch, self.work.length(&model));
        add(inputs(&model.config, self.work, size, 0, &windows(&model, &tokens)?));
        program.ensure_memory()?;
        given.extend(program.initial_parameters(self.seed));
        Ok((program.graph, given))
    }
}
