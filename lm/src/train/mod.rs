//! Training: a model, a text and settings become a run that can stop at any step and go on later as if it had not.
//!
//! ```no_run
//! use kernfusion::prelude::*;
//! use kernfusion_lm::text::Corpus;
//! use kernfusion_lm::train::{Settings, Trainer};
//!
//! let corpus = Corpus::default_text()?;
//! let mut trainer = Trainer::new(GptConfig::default(), Settings::default(), &corpus, None, Target::cpu())?;
//! for _ in 0..100 {
//!     println!("{}", trainer.step()?.loss);
//! }
//! trainer.save("runs/example".as_ref())?;
//! # Ok::<(), kernfusion_lm::Error>(())
//! ```
//!
//! Every number of a step is a function of the settings, the text, and the step. So a run that is resumed from a
//! checkpoint has the very losses, bit for bit, of one that was never interrupted; the number of threads changes
//! nothing either.

pub mod batches;
mod log;
mod row;
mod run;
#[cfg(test)]
mod tests;
mod usage;
mod writer;

pub use crate::record::Settings;
pub use row::{Row, Watcher};
pub use run::{Ending, Event, TrainingRun};
pub use usage::Usage;
pub use writer::Sample;

use crate::checkpoint::{CHECKPOINT_FILE, Checkpoint, CheckpointError, read_tensors};
use crate::record::parameters::{self, OPTIMIZER, Shapes};
use crate::record::{ExchangeType, Record, TextRecord};
use crate::sample::SampleError;
use crate::text::{CharTokenizer, Corpus, Order, Split, Tokenizer, Windows, validation_windows};
use crate::{Error, Result};
use kernfusion::compile::{Compiled, Pending, Shards, Target, compile};
use kernfusion::models::ModelConfig;
use kernfusion::nn::is_adapter;
use kernfusion::optim::TrainStep;
use kernfusion::trace::Program;
use kernfusion_codegen::{CodegenError, States};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use usage::Meter;
use writer::Writer;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Steps done, this one included.
    pub step: u64,
    /// Mean loss of the batch in nats per token, before the update.
    #[serde(deserialize_with = "row::number")]
    pub loss: f32,
    /// Norm of all gradients together before clipping, if they are clipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f32>,
    /// The learning rate.
    #[serde(default = "row::unknown")]
    pub learning_rate: f64,
    /// Duration of the step.
    #[serde(default = "row::unknown")]
    pub seconds: f64,
    /// Tokens of the batch by the duration.
    #[serde(default = "row::unknown")]
    pub tokens_per_s: f64,
    /// What it took of the machine.
    #[serde(flatten)]
    pub usage: Usage,
}

/// A run: the programs, the states they share, and the number of steps done.
pub struct Trainer {
    record: Record,
    split: Split,
    target: Target,
    states: States,
    shapes: Shapes,
    step: TrainStep,
    training: Compiled,
    evaluation: Option<Compiled>,
    writer: Option<Writer>,
    compile_time: Duration,
    /// Steps started.
    done: u64,
    /// When the last step was finished.
    last_end: Option<Instant>,
    meter: Meter,
}

/// A step that was started, and may be under way.
#[derive(Debug)]
pub struct StartedStep {
    step: u64,
    learning_rate: f64,
    start: Instant,
    run: Pending,
}

impl StartedStep {
    /// Whether it is over.
    ///
    /// # Errors
    /// If a GPU fails.
    pub fn is_ready(&self) -> Result<bool> {
        Ok(self.run.is_ready()?)
    }
}

impl Trainer {
    /// A new run from random parameters, on characters. The vocabulary of `config` may be larger than that of the text with
    /// the model's own marks, never smaller; `file` is where the corpus was read from, for the record.
    ///
    /// # Errors
    /// If the model, the settings or the text cannot be used, or the step cannot be compiled.
    pub fn new(
        config: impl Into<ModelConfig>,
        settings: Settings,
        corpus: &Corpus,
        file: Option<String>,
        target: Target,
    ) -> Result<Self> {
        let tokenizer = Tokenizer::Characters(CharTokenizer::from_text(corpus.text()));
        Trainer::with_tokenizer(tokenizer, config, settings, corpus, file, target)
    }

    /// As [`Trainer::new`], with other tokens.
    ///
    /// # Errors
    /// As [`Trainer::new`].
    pub fn with_tokenizer(
        tokenizer: Tokenizer,
        config: impl Into<ModelConfig>,
        settings: Settings,
        corpus: &Corpus,
        file: Option<String>,
        target: Target,
    ) -> Result<Self> {
        let seed = settings.seed;
        let text = TextRecord::new(corpus, file);
        let record = Record { config: config.into(), settings, tokenizer, text, products: None };
        Trainer::build(record, corpus, target, |states, step| {
            step.program.ensure_memory()?;
            for (name, tensor) in step.program.initial_parameters(seed) {
                states.set(&name, &tensor)?;
            }
            Ok(())
        })
    }

    /// The run of a checkpoint, which goes on with the settings of `record`: those of the checkpoint, or others that
    /// [`Record::allows`].
    ///
    /// # Errors
    /// As [`Trainer::new`]; if the tensors are not those of the model, or the text is not that of the record.
    pub fn resume(checkpoint: Checkpoint, record: Record, corpus: &Corpus, target: Target) -> Result<Self> {
        let text = TextRecord::new(corpus, record.text.file.clone());
        Record::read(&checkpoint.meta)?.allows(&Record { text, ..record.clone() })?;
        let Checkpoint { mut tensors, meta } = checkpoint;
        // Of which of the optimizer's states this rank keeps a part is known when the step is compiled.
        let (mut optimizers, is_sharded) = (BTreeMap::new(), target.shards_optimizer());
        let mut trainer = Trainer::build(record, corpus, target, |states, step| {
            let shapes = parameters::states_of(&step.program.graph);
            parameters::check(&shapes, &tensors, "the checkpoint")?;
            if is_sharded {
                optimizers.extend(tensors.extract_if(.., |name, _| name.starts_with(OPTIMIZER)));
            }
            parameters::put_all(states, &Shards::default(), tensors)
        })?;
        parameters::put_all(&trainer.states, trainer.training.shards(), optimizers)?;
        trainer.done = meta.step;
        Ok(trainer)
    }

    /// `fill` gives the states their values, before the step is compiled: so what the step may take beside is known.
    fn build(
        mut record: Record,
        corpus: &Corpus,
        target: Target,
        fill: impl FnOnce(&States, &TrainStep) -> Result<()>,
    ) -> Result<Self> {
        let (config, settings) = (&record.config, &record.settings);
        batches::check(config)?;
        let (tokens, marks) = (record.tokenizer.vocabulary_size(), config.marks());
        if config.vocabulary() < tokens + marks {
            let given = config.vocabulary();
            let marks = if marks > 0 { format!(", and the model needs {marks} more") } else { String::new() };
            let reason = format!(
                "vocabulary {given} is too small: {} has {tokens} {}{marks}",
                corpus.name(),
                record.tokenizer.unit()
            );
            return Err(Error::Configuration(reason));
        }
        check_prompts(&record)?;
        let split = corpus.split(record.tokenizer.encode(corpus.text())?, config.context())?;
        // Refuses an empty batch before anything is compiled for it.
        let order = order(config, settings);
        Windows::new(&split.training, settings.batch, config.context(), order, settings.seed)?;
        let trace = settings.adaptation.training();
        trace.set_groups(groups(settings, &target));
        let loss = config.loss(&trace, settings.batch)?;
        settings.adaptation.check(&trace)?;
        if settings.adaptation.lora.is_some() && !matches!(config, ModelConfig::Gpt(_)) {
            return Err(Error::Configuration("only decoders have adapters".into()));
        }
        let step = TrainStep::new(&loss, &settings.optimizer, settings.clip)?;
        let target = target.bf16_exchange(settings.exchange == ExchangeType::Bf16);
        let (states, target) = (target.states(), target.start());
        fill(&states, &step)?;
        let start = Instant::now();
        let sliced = match own_microbatches(settings.batch, settings.microbatches, target.rank_count())? {
            0 => target.clone(),
            microbatches => target.clone().microbatches(microbatches),
        };
        let training = compile(&step.program.graph, &states, &sliced)?;
        record.settings.microbatches = training.report().memory.microbatches * target.rank_count();
        record.products = Some(target.products()?);
        let target = target.share_arena(&training);
        let shapes = parameters::states_of(&step.program.graph);
        let compile_time = start.elapsed();
        Ok(Trainer {
            record,
            split,
            target,
            states,
            shapes,
            step,
            training,
            evaluation: None,
            writer: None,
            compile_time,
            done: 0,
            last_end: None,
            meter: Meter::new(),
        })
    }

    /// Replaces the parameters by those of a safetensors file. Optimizer state in it, as checkpoints have, is left.
    ///
    /// # Errors
    /// If the file cannot be read; lists all parameters that are missing, superfluous or of another shape.
    pub fn initialize(&mut self, file: &Path) -> Result<()> {
        let mut tensors = read_tensors(file)?;
        tensors.retain(|name, _| !name.starts_with(OPTIMIZER));
        // A model that is to be adapted has no adapters yet.
        let mut shapes = self.parameter_shapes();
        shapes.retain(|name, _| !is_adapter(name) || tensors.contains_key(name));
        parameters::put(&self.states, &shapes, tensors, &file.display().to_string())
    }

    /// Does the next step.
    ///
    /// # Errors
    /// If memory is short, or a GPU fails.
    pub fn step(&mut self) -> Result<StepReport> {
        let step = self.start_step()?;
        self.finish_step(step)
    }

    /// Starts the next step and, on a GPU, does not wait for it: the batch of the next one is made and copied while a step
    /// is under way. Whatever looks at parameters, such as [`Trainer::save`], waits for all steps.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn start_step(&mut self) -> Result<StartedStep> {
        let Settings { batch, seed, optimizer, schedule, .. } = &self.record.settings;
        let config = &self.record.config;
        let order = order(config, &self.record.settings);
        let windows = Windows::new(&self.split.training, *batch, config.context(), order, *seed)?;
        let first = self.done.wrapping_mul(*batch as u64);
        let batch_inputs = batches::inputs(config, windows.batch(self.done), *batch, *seed, first);
        let learning_rate = schedule.rate(optimizer.learning_rate(), self.done);
        let scalars = self.step.scalars(self.done, learning_rate, *seed);
        let inputs: Vec<_> =
            batch_inputs.iter().chain(&scalars).map(|(name, tensor)| (*name, tensor)).collect();
        let start = Instant::now();
        let run = self.training.enqueue(&inputs)?;
        self.done += 1;
        Ok(StartedStep { step: self.done, learning_rate, start, run })
    }

    /// Waits for a step. Steps are finished in the order in which they were started.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn finish_step(&mut self, started: StartedStep) -> Result<StepReport> {
        let StartedStep { step, learning_rate, start, run } = started;
        let outputs = run.wait()?;
        // A step that was started early has waited for the one before.
        let start = self.last_end.map_or(start, |end| start.max(end));
        // A clock may stand still, and a rate is a number for all that.
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        self.last_end = Some(Instant::now());
        let tokens = self.record.settings.batch * self.record.config.context();
        Ok(StepReport {
            step,
            loss: outputs.scalar("loss").expect("a step has a loss"),
            // There is one if gradients are clipped.
            gradient_norm: outputs.scalar("grad_norm").ok(),
            learning_rate,
            seconds,
            tokens_per_s: tokens as f64 / seconds,
            usage: self.meter.read(),
        })
    }

    /// Mean loss over the validation windows in nats per token, without dropout; none if the settings ask for no
    /// windows.
    ///
    /// # Errors
    /// If the evaluation cannot be compiled.
    pub fn validation_loss(&mut self) -> Result<Option<f64>> {
        let Settings { batch, validation_batches: count, .. } = self.record.settings;
        let config = &self.record.config;
        let batches = validation_windows(&self.split.validation, batch, config.context(), count)?;
        if batches.is_empty() {
            return Ok(None);
        }
        let mut evaluation = match self.evaluation.take() {
            Some(evaluation) => evaluation,
            None => {
                let trace = self.record.settings.adaptation.evaluating();
                trace.set_groups(groups(&self.record.settings, &self.target));
                let loss = self.record.config.loss(&trace, batch)?;
                self.compile(&trace.finish(&[("loss", &loss)])?)?
            }
        };
        let mut sum = 0.0;
        for (number, windows) in batches.into_iter().enumerate() {
            let first = (number * batch) as u64;
            // Whatever the run's seed, tokens hidden for validation are always the same.
            let inputs = batches::inputs(&self.record.config, windows, batch, 0, first);
            let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
            let outputs = evaluation.run(&inputs)?;
            sum += f64::from(outputs.scalar("loss").expect("an evaluation has a loss"));
        }
        self.evaluation = Some(evaluation);
        Ok(Some(sum / count as f64))
    }

    /// Texts that show what the model can do now: a decoder continues each prompt of the settings, a BERT fills gaps and an
    /// encoder-decoder reverses windows of the validation text. A function of seed and step.
    ///
    /// # Errors
    /// If the program for it cannot be compiled, or the model's numbers have overflowed.
    pub fn samples(&mut self) -> Result<Vec<Sample>> {
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => Writer::new(&self.record, &self.states, &self.target.clone().alone())?,
        };
        let samples = writer.samples(&self.record, &self.split.validation, self.done);
        self.writer = Some(writer);
        samples
    }

    /// Whether any rank says so; this process' own word where it is alone.
    pub(super) fn any_rank(&self, own: bool) -> Result<bool> {
        let Some(communicator) = self.target.communicator() else { return Ok(own) };
        let said =
            communicator.numbers(own.into()).map_err(CodegenError::from).map_err(kernfusion::Error::from)?;
        Ok(said.contains(&1))
    }

    /// Writes a checkpoint into a directory. Of several ranks one saves, and the others [save beside it](Trainer::save_beside).
    ///
    /// # Errors
    /// If it cannot be written; the one before it is then untouched.
    pub fn save(&self, directory: &Path) -> Result<()> {
        let meta = self.record.meta(self.done);
        parameters::save(directory, &meta, (&self.states, self.training.shards()), &self.shapes)?;
        if self.record.settings.adaptation.lora.is_none() {
            return Ok(());
        }
        // Beside it, what is small enough to be passed on: it goes with any copy of the model that was adapted.
        let adapter = |name: &String| is_adapter(name) && !name.starts_with(OPTIMIZER);
        let shapes = self.shapes.iter().filter(|(name, _)| adapter(name));
        let shapes = shapes.map(|(name, shape)| (name.clone(), shape.clone())).collect();
        parameters::save(&directory.join(ADAPTER), &meta, (&self.states, &Shards::default()), &shapes)
    }

    /// What a rank does while another one saves: it gives its parts of the optimizer's state, if each keeps a part.
    ///
    /// # Errors
    /// If a rank has ended, or what connects them fails.
    pub fn save_beside(&self) -> Result<()> {
        parameters::give_parts(&self.states, self.training.shards(), &self.shapes)
    }

    /// The instruction set that its programs run on, if they run on a CPU.
    pub fn instruction_set(&self) -> Option<String> {
        self.target.instruction_set().ok().map(|isa| isa.to_string())
    }

    /// The model, the settings and the text.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Steps done, those under way included.
    pub fn steps_done(&self) -> u64 {
        self.done
    }

    /// The compiled training step.
    pub fn program(&self) -> &Compiled {
        &self.training
    }

    /// The number of trained numbers: those of all parameters that are not frozen, adapters included.
    pub fn trained_parameters(&self) -> usize {
        self.step.program.parameter_count()
    }

    /// How long compiling has taken so far.
    pub fn compile_time(&self) -> Duration {
        self.compile_time
    }

    /// Compiles a program over the run's states, in as many microbatches as the step, so that its sums are rounded the same whether they are of one
    /// process or of several ranks.
    fn compile(&mut self, program: &Program) -> Result<Compiled> {
        let start = Instant::now();
        let microbatches = self.record.settings.microbatches / self.target.rank_count();
        let target = self.target.clone().microbatches(microbatches);
        let compiled = compile(&program.graph, &self.states, &target)?;
        self.compile_time += start.elapsed();
        Ok(compiled)
    }

    fn parameter_shapes(&self) -> Shapes {
        let parameters = self.step.program.parameters.iter();
        parameters.map(|parameter| (parameter.name.clone(), parameter.shape.clone())).collect()
    }
}

/// The order of windows: that of the settings, unless the model needs one.
fn order(config: &ModelConfig, settings: &Settings) -> Order {
    if config.carries_states() { Order::Streams } else { settings.order }
}

/// Refuses prompts that the model could not continue when their time has come.
fn check_prompts(record: &Record) -> Result<()> {
    let Settings { sample_prompts, sample_tokens, sample_top_k, .. } = &record.settings;
    if *sample_tokens == 0 || !matches!(record.config, ModelConfig::Gpt(_) | ModelConfig::Recurrent(_)) {
        return Ok(());
    }
    if *sample_top_k == Some(0) {
        return Err(SampleError::TopK.into());
    }
    for prompt in sample_prompts.iter().filter(|prompt| !prompt.is_empty()) {
        record.tokenizer.encode(prompt).map_err(|error| {
            Error::Configuration(format!("the sample prompt {prompt:?} cannot be continued: {error}"))
        })?;
    }
    Ok(())
}

/// The directory, in that of a checkpoint, of the adapters alone.
pub const ADAPTER: &str = "adapter";

/// The error of a directory that takes no checkpoint.
fn unwritable(directory: &Path, cause: std::io::Error) -> CheckpointError {
    CheckpointError::Write { path: directory.join(CHECKPOINT_FILE), cause }
}

/// In how many groups layers look at the rows of a batch: one for each microbatch of the settings, or for each rank.
fn groups(settings: &Settings, target: &Target) -> usize {
    settings.microbatches.max(target.rank_count())
}

/// In how many microbatches a rank computes its part of the batch, of those that all have together; 0: as few as memory allows.
///
/// # Errors
/// The batch or the microbatches cannot be divided among so many ranks.
pub fn own_microbatches(batch: usize, microbatches: usize, ranks: usize) -> Result<usize> {
    let refuse = |reason| Err(Error::Configuration(reason));
    match () {
        () if !batch.is_multiple_of(ranks) => {
            refuse(format!("a batch of {batch} rows cannot be divided among {ranks} ranks"))
        }
        // A rank computes one at least, as where a run goes on with more ranks than it has had.
        () if (1..=ranks).contains(&microbatches) => Ok(1),
        () if !microbatches.is_multiple_of(ranks) => {
            refuse(format!("{microbatches} microbatches of a batch cannot be divided among {ranks} ranks"))
        }
        () => Ok(microbatches / ranks),
    }
}
