//! A program under measurement: compiled, with parameters and synthetic batches.

use crate::common::error::CliError;
use crate::common::model::{MemoryArgs, Model, Work, benchmark_optimizer};
use kernfusion::HostTensor;
use kernfusion::compile::{Compiled, Target, compile};
use kernfusion::models::ModelConfig;
use kernfusion::optim::TrainStep;
use kernfusion_codegen::Outputs;
use kernfusion_ir::random::element_bits;
use kernfusion_lm::text::{Order, Windows};
use kernfusion_lm::train::batches;
use std::time::{Duration, Instant};

/// Seed of parameters and tokens.
const SEED: u64 = 1;

/// One work of a model in one mode.
pub(crate) struct Workload {
    pub(crate) program: Compiled,
    /// For its scalar inputs, if it is a training step.
    step: Option<TrainStep>,
    model: ModelConfig,
    work: Work,
    batch: usize,
    /// Tokens of each row that a step reads.
    length: usize,
    done: u64,
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
    /// Compiles it with parameters as a run of training begins with.
    pub(crate) fn new(
        work: Work,
        target: Target,
        memory: Option<&MemoryArgs>,
        model: &Model,
    ) -> Result<Self, CliError> {
        batches::check(&model.config)?;
        // Without a word about memory the whole batch at once, whose kernels have one time and one floor each.
        let target = match memory {
            Some(memory) => memory.limit(target),
            None => target.microbatches(1),
        };
        let (program, step) = match work {
            Work::Train => {
                let step = model.config.train_step(model.batch, &benchmark_optimizer(), None)?;
                (step.program.clone(), Some(step))
            }
            Work::Forward | Work::Prefill | Work::Decode => {
                (work.program(model, target.product_type())?, None)
            }
        };
        let states = target.states();
        program.ensure_memory()?;
        for (name, tensor) in program.initial_parameters(SEED) {
            states.set(&name, &tensor).map_err(kernfusion_lm::Error::from)?;
        }
        let program = compile(&program.graph, &states, &target)?;
        let (batch, length) = (model.batch, work.length(model));
        Ok(Workload { program, step, model: model.config.clone(), work, batch, length, done: 0 })
    }

    /// The next step on the next batch, with the time that it takes. Preparing inputs is not timed.
    pub(crate) fn step(&mut self, windows: &Windows<'_>) -> Result<(Outputs, Duration), CliError> {
        self.timed(windows, |program, inputs| program.run(inputs))
    }

    /// As `step`, with the time of each kernel.
    pub(crate) fn step_by_kernels(
        &mut self,
        windows: &Windows<'_>,
    ) -> Result<(Vec<Duration>, Duration), CliError> {
        let ((_, kernels), time) = self.timed(windows, |program, inputs| program.run_timed(inputs))?;
        Ok((kernels, time))
    }

    /// The next batch.
    fn inputs(&self, windows: &Windows<'_>) -> batches::Inputs {
        inputs(&self.model, self.work, (self.batch, self.length), self.done, windows)
    }

    fn timed<R>(
        &mut self,
        windows: &Windows<'_>,
        run: impl FnOnce(&mut Compiled, &[(&str, &HostTensor)]) -> kernfusion::Result<R>,
    ) -> Result<(R, Duration), CliError> {
        let batch = self.inputs(windows);
        let rate = benchmark_optimizer().learning_rate();
        let scalars = self.step.as_ref().map(|step| step.scalars(self.done, rate, SEED));
        let scalars = scalars.unwrap_or_default();
        let inputs: Vec<_> = batch.iter().chain(&scalars).map(|(name, tensor)| (*name, tensor)).collect();
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
