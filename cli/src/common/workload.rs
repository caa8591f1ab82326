//! A program under measurement: compiled, with parameters and synthetic batches.

use crate::common::error::CliError;
use crate::common::model::{MemoryArgs, Model, Work, benchmark_optimizer};
use crate::common::subject::{Given, Subject};
use kernfusion::compile::{Compiled, Target, Tensors, compile};
use kernfusion::models::ModelConfig;
use kernfusion::optim::TrainStep;
use kernfusion::{HostTensor, tensor_file};
use kernfusion_codegen::Outputs;
use kernfusion_ir::random::element_bits;
use kernfusion_ir::samples::Draws;
use kernfusion_ir::{Graph, InputRole, TensorType, ValueId};
use kernfusion_lm::text::{Order, Windows};
use kernfusion_lm::train::batches;
use std::path::Path;
use std::time::{Duration, Instant};

/// Seed of parameters and tokens.
const SEED: u64 = 1;

/// One program in one mode.
pub(crate) struct Workload {
    pub(crate) program: Compiled,
    /// For its scalar inputs, if it is a training step.
    step: Option<TrainStep>,
    done: u64,
}

/// What the steps of a program read.
pub(crate) enum Batches {
    /// Windows of random tokens, for a work of a model.
    OfModel { model: Box<Model>, work: Work, tokens: Vec<i32> },
    /// The same random inputs in each step.
    OfProgram(Tensors),
}

impl Batches {
    /// Those of a model's work, or of a program's inputs, of which a file may have some.
    pub(crate) fn new(subject: &Subject, work: Work, given: Option<&Path>) -> Result<Self, CliError> {
        match subject {
            Subject::Model(model) => {
                let tokens = synthetic_tokens(model)?;
                windows(model, &tokens)?;
                Ok(Batches::OfModel { model: Box::new(model.clone()), work, tokens })
            }
            Subject::Given(Given { graph, step, .. }) => {
                let mut inputs = given.map_or_else(|| Ok(Tensors::new()), tensor_file::read)?;
                fill(graph, &mut inputs, InputRole::Data, SEED)?;
                let scalars = step.as_ref().map(|step| step.scalars(0, 0.0, SEED)).unwrap_or_default();
                inputs.retain(|name, _| {
                    role(graph, name) == Some(InputRole::Data)
                        && scalars.iter().all(|(scalar, _)| scalar != name)
                });
                Ok(Batches::OfProgram(inputs))
            }
        }
    }

    /// The inputs of a step.
    fn step(&self, step: u64) -> Result<Vec<(String, HostTensor)>, CliError> {
        match self {
            Batches::OfModel { model, work, tokens } => {
                let sizes = (model.batch, work.length(model));
                let batch = inputs(&model.config, *work, sizes, step, &windows(model, tokens)?);
                Ok(batch.into_iter().map(|(name, tensor)| (name.to_string(), tensor)).collect())
            }
            Batches::OfProgram(inputs) => {
                Ok(inputs.iter().map(|(name, tensor)| (name.clone(), tensor.clone())).collect())
            }
        }
    }
}

/// What an input of a program is.
fn role(graph: &Graph, name: &str) -> Option<InputRole> {
    graph.inputs().find(|(_, other, _)| *other == name).map(|(.., role)| role)
}

/// Random tokens, long enough that windows differ.
pub(crate) fn synthetic_tokens(model: &Model) -> Result<Vec<i32>, CliError> {
    let length = 8 * model.batch * model.config.context() + 1;
    let mut tokens = Vec::new();
    let cause = |_| std::io::ErrorKind::OutOfMemory.into();
    tokens
        .try_reserve_exact(length)
        .map_err(cause)
        .map_err(|cause| CliError::System { what: "tokens to measure with", cause })?;
    let words = model.config.vocabulary() - model.config.marks();
    let token = |at: usize| element_bits(SEED as u32, 0, 0, at as u64) as usize % words.max(1);
    tokens.extend((0..length).map(|at| token(at) as i32));
    Ok(tokens)
}

/// Batches of these tokens.
pub(crate) fn windows<'t>(model: &Model, tokens: &'t [i32]) -> Result<Windows<'t>, CliError> {
    let windows = Windows::new(tokens, model.batch, model.config.context(), Order::Random, SEED);
    Ok(windows.map_err(kernfusion_lm::Error::from)?)
}

impl Workload {
    /// Compiles it, a model's with parameters as a run of training begins with.
    pub(crate) fn new(
        work: Work,
        target: Target,
        memory: Option<&MemoryArgs>,
        subject: &Subject,
    ) -> Result<Self, CliError> {
        // Without a word about memory the whole batch at once, whose kernels have one time and one floor each.
        let target = match memory {
            Some(memory) => memory.limit(target),
            None => target.microbatches(1),
        };
        let states = target.states();
        let (graph, step) = match subject {
            Subject::Model(model) => {
                batches::check(&model.config)?;
                let (program, step) = match work {
                    Work::Train => {
                        let step = model.config.train_step(model.batch, &benchmark_optimizer(), None)?;
                        (step.program.clone(), Some(step))
                    }
                    Work::Forward | Work::Prefill | Work::Decode => {
                        (work.program(model, target.product_type())?, None)
                    }
                };
                program.ensure_memory()?;
                for (name, tensor) in program.initial_parameters(SEED) {
                    states.set(&name, &tensor).map_err(kernfusion_lm::Error::from)?;
                }
                (program.graph, step)
            }
            Subject::Given(given) => {
                // One after another, so that a state is in memory twice only while it is set.
                let mut weights = given.weights()?;
                for (number, id, name) in inputs_of(&given.graph, InputRole::State) {
                    let value = match weights.remove(name) {
                        Some(value) => value,
                        // Those of an optimizer begin as zeros.
                        None if given.step.is_some() => continue,
                        None => random(&given.graph[id].ty, InputRole::State, SEED + number as u64)?,
                    };
                    states.set(name, &value).map_err(kernfusion_lm::Error::from)?;
                }
                (given.graph.clone(), given.step.clone())
            }
        };
        Ok(Workload { program: compile(&graph, &states, &target)?, step, done: 0 })
    }

    /// The next step on the next batch, with the time that it takes. Preparing inputs is not timed.
    pub(crate) fn step(&mut self, batches: &Batches) -> Result<(Outputs, Duration), CliError> {
        self.timed(batches, |program, inputs| program.run(inputs))
    }

    /// As `step`, with the time of each kernel.
    pub(crate) fn step_by_kernels(
        &mut self,
        batches: &Batches,
    ) -> Result<(Vec<Duration>, Duration), CliError> {
        let ((_, kernels), time) = self.timed(batches, |program, inputs| program.run_timed(inputs))?;
        Ok((kernels, time))
    }

    fn timed<R>(
        &mut self,
        batches: &Batches,
        run: impl FnOnce(&mut Compiled, &[(&str, &HostTensor)]) -> kernfusion::Result<R>,
    ) -> Result<(R, Duration), CliError> {
        let batch = batches.step(self.done)?;
        let rate = benchmark_optimizer().learning_rate();
        let scalars = self.step.as_ref().map(|step| step.scalars(self.done, rate, SEED));
        let scalars = scalars.unwrap_or_default();
        let batch = batch.iter().map(|(name, tensor)| (name.as_str(), tensor));
        let inputs: Vec<_> = batch.chain(scalars.iter().map(|(name, tensor)| (*name, tensor))).collect();
        let start = Instant::now();
        let result = run(&mut self.program, &inputs)?;
        let time = start.elapsed();
        self.done += 1;
        Ok((result, time))
    }
}

/// What step `step` reads: `batch` rows with `length` tokens each.
pub(crate) fn inputs(
    model: &ModelConfig,
    work: Work,
    (batch, length): (usize, usize),
    step: u64,
    windows: &Windows<'_>,
) -> batches::Inputs {
    let window = windows.batch(step);
    let context = model.context();
    let (position, last) = match work {
        Work::Train | Work::Forward => {
            return batches::inputs(model, window, batch, SEED, step * batch as u64);
        }
        Work::Prefill => (0, length - 1),
        Work::Decode => (context / 2 + step as usize % context.div_ceil(2), 0),
    };
    let rows: Vec<_> = window.0.chunks(context).flat_map(|row| &row[..length]).copied().collect();
    let scalar = |value: usize| HostTensor::new([], vec![value as i32]);
    let x = HostTensor::new([batch, length], rows);
    vec![("x", x), ("position", scalar(position)), ("last", scalar(last))]
}

/// The middle one, or the mean of the middle two.
pub(crate) fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// Random numbers for the inputs of a role that have none yet.
pub(crate) fn fill(graph: &Graph, given: &mut Tensors, role: InputRole, seed: u64) -> Result<(), CliError> {
    for (number, id, name) in inputs_of(graph, role) {
        if !given.contains_key(name) {
            given.insert(name.to_string(), random(&graph[id].ty, role, seed + number as u64)?);
        }
    }
    Ok(())
}

/// The inputs of a role, numbered among all.
fn inputs_of(graph: &Graph, role: InputRole) -> impl Iterator<Item = (usize, ValueId, &str)> {
    let of_role = graph.inputs().enumerate().filter(move |(_, (.., other))| *other == role);
    of_role.map(|(number, (id, name, _))| (number, id, name))
}

/// Random numbers. States get small positive ones, which second moments of an optimizer must be.
fn random(ty: &TensorType, role: InputRole, seed: u64) -> Result<HostTensor, CliError> {
    /// Elements that are drawn, as `f64`, before they are converted.
    const TOGETHER: usize = 1 << 16;
    let mut draws = Draws::new(seed);
    let mut element = || match () {
        // Most integers are places in a table, which may be short.
        () if !ty.dtype.is_float() => draws.below(2) as f64,
        () if role == InputRole::State => draws.between(1e-4, 1e-2),
        () => draws.between(-1.0, 1.0),
    };
    let drawn = HostTensor::filled(ty, |bytes| {
        let size = ty.dtype.size();
        for part in bytes.chunks_mut(TOGETHER * size) {
            let values: Vec<_> = (0..part.len() / size).map(|_| element()).collect();
            part.copy_from_slice(HostTensor::from_f64(&ty.with_shape([values.len()]), &values).bytes());
        }
        Ok(())
    });
    drawn.map_err(|cause| CliError::System { what: "numbers to measure with", cause })
}
