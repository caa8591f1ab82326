//! `kernfusion train`: a run from its first step, or from a checkpoint.

use super::train_report::Reporter;
use crate::Outcome;
use crate::common::destination::{Claim, Destination, is_same};
use crate::common::error::{CliError, in_file};
use crate::common::machine;
use crate::common::model::{MemoryArgs, ModelArgs, TargetArgs};
use crate::common::screen::{Screen, counted, grouped, mib, progress};
use crate::training::adaptation::AdaptationArgs;
use crate::training::live::{self, State};
use crate::training::program::{ArchiveArgs, Run};
use crate::training::ranks::{self, ExchangeArgs, Facts, Rank, Ranks, agreed};
use crate::training::stop;
use crate::training::tokenizer::TokenizerArgs;
use crate::training::watch::WatchArgs;
use clap::ValueEnum;
use kernfusion::compile::{Mode, Target};
use kernfusion::models::ModelConfig;
use kernfusion::optim::{Optimizer, Schedule};
use kernfusion_lm::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use kernfusion_lm::record::{Adaptation, Record, Settings, TextRecord};
use kernfusion_lm::text::{Corpus, Order, Tokenizer};
use kernfusion_lm::train::{Ending, Trainer, TrainingRun};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

/// Steps of a run when the user names no number: a minute of the preset `tiny` on two cores.
const DEFAULT_STEPS: u64 = 1500;

/// Train a model; with no flag at all: a small one on the embedded text, in about a minute
///
/// A resumed run goes on exactly as if it had not stopped: in the same mode and on the same kind of processor, its
/// losses are the same bit for bit. So everything that its numbers depend on stays as it is in the checkpoint; --steps
/// and the intervals may change.
///
/// Ctrl-C ends a run with a checkpoint, and so does a terminal that is closed or a system that shuts down (SIGHUP, SIGTERM); a second
/// Ctrl-C ends it at once.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion train
  kernfusion train --preset thesis --data book.txt --steps 5000 --schedule cosine --log loss.jsonl
  kernfusion train --preset thesis --memory-limit 700MiB
  kernfusion train --data book.txt --tokenizer bpe --vocabulary 2000 --align-vocabulary 64
  kernfusion train --data verse.txt --init runs/tiny/checkpoint.safetensors --lora 8 --out runs/verse
  kernfusion train --preset thesis --tensorboard --sample-every 500     # then: tensorboard --logdir runs
  kernfusion train --preset thesis --ui
  kernfusion train --resume runs/thesis --steps 10000
  kernfusion train --program model.pt2 --data batches.safetensors --loss cross-entropy --out trained")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to train on (UTF-8) [default: Tiny Shakespeare if it was fetched, else the embedded text]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    #[command(flatten)]
    tokens: TokenizerArgs,
    /// Steps in all [default: a minute's worth of tiny]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Seed of parameters, windows, dropout and samples [default: 1]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Learning rate [default: 0.001]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    lr: Option<f64>,
    /// Learning rate over the steps [default: constant]
    #[arg(long, value_enum)]
    schedule: Option<ScheduleArg>,
    /// Steps over which the learning rate grows to its full value [default: 0]
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// Largest norm of the gradient; 0: no clipping [default: 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    clip: Option<f64>,
    /// Update rule [default: adamw]
    #[arg(long, value_enum)]
    optimizer: Option<OptimizerArg>,
    /// Step from which on the optimizer asgd averages parameters [default: 0]
    #[arg(long, value_name = "N")]
    average_from: Option<u64>,
    /// Computes N batches for each step and adds up their gradients: the step is that of a batch N times as large, in the
    /// memory of one [default: 1]
    #[arg(long, value_name = "N", conflicts_with_all = ["microbatches", "memory_limit", "resume"], value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    accumulate: Option<u32>,
    /// Which windows of the text a step takes [default: random]
    #[arg(long, value_enum)]
    order: Option<OrderArg>,
    /// Steps between measurements of the validation loss; 0: only at the end [default: 100]
    #[arg(long, value_name = "N")]
    validate_every: Option<u64>,
    /// Batches in a measurement of the validation loss; 0: none at all [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 16))]
    validation_batches: Option<u32>,
    /// Steps between samples; 0: only at the end [default: 0]
    #[arg(long, value_name = "N")]
    sample_every: Option<u64>,
    /// Tokens in a sample; 0: no samples [default: 300]
    #[arg(long, value_name = "N")]
    sample_tokens: Option<usize>,
    /// What a decoder's samples go on from; may be given several times, for a sample each [default: a line break]
    #[arg(long, value_name = "TEXT")]
    sample_prompt: Vec<String>,
    /// Samples pick among the K likeliest tokens only; 1: always the likeliest
    #[arg(long, value_name = "K")]
    sample_top_k: Option<usize>,
    /// Steps between checkpoints; 0: only at the end [default: 100]
    #[arg(long, value_name = "N")]
    checkpoint_every: Option<u64>,
    #[command(flatten)]
    adaptation: AdaptationArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Of several ranks (mpirun), each keeps and updates its part alone of the optimizer's state
    #[arg(long)]
    shard_optimizer: bool,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
    /// How the step is executed
    #[arg(long, value_name = "MODE", default_value = "compiled")]
    mode: Mode,
    /// Start from these parameters (f32, by module path) instead of random ones
    #[arg(long, value_name = "FILE.safetensors", conflicts_with = "resume")]
    init: Option<PathBuf>,
    /// Directory of the checkpoint [default: runs/PRESET, or the next of runs/PRESET-2, … that has no run]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    destination: Destination,
    /// Go on with the run whose checkpoint is in this directory
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    #[command(flatten)]
    watch: WatchArgs,
    #[command(flatten)]
    archive: ArchiveArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ScheduleArg {
    /// Always the full rate
    Constant,
    /// Down to a tenth over all steps, along half a cosine
    Cosine,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OptimizerArg {
    Sgd,
    Adam,
    Adamw,
    /// SGD whose parameters are averaged; generate --averaged uses the average
    Asgd,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OrderArg {
    /// Drawn anew for each step
    Random,
    /// One after another from the start of the text
    Sequential,
    /// Each row of a batch goes on where that of the last one ended; recurrent models always do so
    Streams,
}

pub(crate) fn run(args: &Args, ranks: &Ranks, screen: &mut Screen) -> Outcome {
    if let Some(refusal) = args.refusal(matches!(ranks, Ranks::Alone)) {
        return ranks.run(screen, |_, _| Err(CliError::Usage(refusal.clone())));
    }
    if let Some(archive) = args.archive.archive()? {
        return match ranks {
            Ranks::Alone => args.archive.train(archive, &args.of_archive()?, screen),
            _ => Err(CliError::Usage("--program is trained by one process".into())),
        };
    }
    ranks.run(screen, |rank, screen| match screen {
        Some(screen) => speaking(args, rank, screen),
        None => beside(args, rank),
    })
}

/// The run that the flags ask for, where it begins or goes on.
pub(crate) fn prepared(
    args: &Args,
    target: Target,
    note: &mut dyn FnMut(String),
) -> Result<Trainer, CliError> {
    match &args.resume {
        Some(from) => resumed(args, from, target, note),
        None => fresh(args, target),
    }
}

/// What has to be the same on every rank.
fn facts(args: &Args, trainer: &Trainer) -> Facts {
    let Record { config, settings, text, products, .. } = trainer.record();
    vec![
        ("another instruction set", json!(trainer.instruction_set())),
        ("another text", json!(text.sha256)),
        ("another model", json!(config)),
        ("other settings", json!([settings, products, trainer.steps_done()])),
        args.exchange.fact(),
    ]
}

/// Does the steps of a rank that is not the first.
fn beside(args: &Args, rank: Option<&Rank>) -> Outcome {
    let made = args.target(rank).and_then(|target| prepared(args, target, &mut |_| {}));
    let trainer = agreed(rank, made, |trainer| facts(args, trainer))?;
    if trainer.steps_done() >= trainer.record().settings.steps {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(match TrainingRun::beside(trainer).run(stop::upon_signals()?, &mut |_| {})? {
        Ending::Finished => ExitCode::SUCCESS,
        Ending::Stopped => ExitCode::from(stop::exit_code()),
    })
}

/// A run that speaks and writes, of a process alone or of the first of several ranks.
fn speaking(args: &Args, rank: Option<&Rank>, screen: &mut Screen) -> Outcome {
    let mut claimed = || -> Result<_, CliError> {
        let target = args.target(rank)?;
        let claim = args.claim(screen)?;
        let watched = args.watch.claim(args.destination, claim.path(), args.resume.as_deref())?;
        let trainer = prepared(args, target.clone(), &mut |note| screen.line(note))?;
        Ok((trainer, (target, claim, watched)))
    };
    let (trainer, rest) = match claimed() {
        Ok((trainer, rest)) => (Ok(trainer), Some(rest)),
        Err(error) => (Err(error), None),
    };
    let trainer = agreed(rank, trainer, |trainer| facts(args, trainer))?;
    let (target, claim, watched) = rest.expect("there is a trainer");
    let directory = claim.path();
    let stop = stop::upon_signals()?;
    introduce(&trainer, args.mode, screen);
    let steps = trainer.record().settings.steps;
    let done = trainer.steps_done();
    if done >= steps {
        let all = if done == 1 { "the one step is".into() } else { format!("all {done} steps are") };
        screen.line(format!("{all} done; --steps {} would go on", done + 1000));
        return Ok(ExitCode::SUCCESS);
    }
    let about = machine::describe_run(&trainer, &args.target, &target);
    claim.clear(&[])?;
    let mut run = TrainingRun::new(trainer, directory, None)?;
    args.watch.attach(&mut run, directory, &about, &watched)?;
    let place = directory.display();
    let ending = match args.watch.has_view() {
        true => view(&mut run, stop, State::new(&about, directory, done), screen)?,
        false => drive(&mut run, stop, screen)?,
    };
    match ending {
        Ending::Finished => {
            let prompt = example(&run.trainer().record().config);
            screen.line(format!("checkpoint in {place}: kernfusion generate --checkpoint {place}{prompt}"));
            Ok(ExitCode::SUCCESS)
        }
        Ending::Stopped => Ok(stopped(run.trainer(), &format!("train --resume {place}"), screen)),
    }
}

/// What `generate` needs besides a checkpoint: a prompt, of models that do not go on from nothing.
fn example(model: &ModelConfig) -> &'static str {
    match model {
        ModelConfig::Gpt(_) | ModelConfig::Recurrent(_) => "",
        ModelConfig::Bert(_) => " --prompt \"TEXT WITH GAPS _\"",
        ModelConfig::EncoderDecoder(_) => " --prompt \"TEXT\"",
    }
}

/// Does the steps that are left under a view of the whole terminal, and says afterwards what it has shown last.
fn view(
    run: &mut TrainingRun,
    stop: &'static AtomicBool,
    state: State,
    screen: &mut Screen,
) -> Result<Ending, CliError> {
    let (ending, state) = live::drive(run, stop, state)?;
    state.summary().iter().for_each(|line| screen.line(line));
    Ok(ending)
}

/// Does the steps that are left, with a bar or lines.
pub(crate) fn drive(
    run: &mut TrainingRun,
    stop: &AtomicBool,
    screen: &mut Screen,
) -> Result<Ending, CliError> {
    let bar = progress(run.trainer().record().settings.steps, "{pos}/{len} steps, {eta} left, {msg}");
    let mut reporter = Reporter::new(screen, bar, run.trainer());
    let ending = run.run(stop, &mut |event| reporter.show(event));
    reporter.finish();
    Ok(ending?)
}

/// Says how a run that was stopped goes on.
pub(crate) fn stopped(trainer: &Trainer, command: &str, screen: &mut Screen) -> ExitCode {
    let step = trainer.steps_done();
    screen.line(format!("stopped after step {step}; to go on: kernfusion {command}"));
    ExitCode::from(stop::exit_code())
}

/// A run from its first step.
fn fresh(args: &Args, target: Target) -> Result<Trainer, CliError> {
    let model = args.model.resolve()?;
    let corpus = corpus(args.data.as_deref(), &model.config)?;
    let mut config = model.config.clone();
    let tokenizer = args.tokens.tokenizer(corpus.text())?;
    if !model.fixes("vocabulary") {
        config.set_vocabulary(args.tokens.model_vocabulary(tokenizer.vocabulary_size() + config.marks()));
    }
    let defaults = Settings { steps: DEFAULT_STEPS, batch: model.batch, ..Settings::default() };
    let file = args.data.as_deref().map(absolute);
    let mut trainer =
        Trainer::with_tokenizer(tokenizer, config, args.settings(defaults), &corpus, file, target)?;
    if let Some(file) = &args.init {
        trainer.initialize(file)?;
    }
    Ok(trainer)
}

/// The run of a checkpoint, if what the flags ask for is that run.
fn resumed(
    args: &Args,
    from: &Path,
    target: Target,
    note: &mut dyn FnMut(String),
) -> Result<Trainer, CliError> {
    let checkpoint = Checkpoint::load(from).map_err(kernfusion_lm::Error::from)?;
    if let Some(method) = checkpoint.meta.training["method"].as_str() {
        let made = if method == "import" { "that was imported".into() } else { format!("of tune {method}") };
        let reason = format!(
            "this is a model {made}, not a run of train: begin a run with its parameters (--init {}), or tune it (--checkpoint)",
            from.join(CHECKPOINT_FILE).display()
        );
        return Err(CliError::Content { path: from.into(), reason });
    }
    let stored = Record::read(&checkpoint.meta).map_err(|error| in_file(from, error))?;
    let file = args.data.clone().or_else(|| stored.text.file.as_ref().map(PathBuf::from));
    let corpus = corpus(file.as_deref(), &stored.config)?;
    let mut asked = Record { settings: args.settings(stored.settings.clone()), ..stored.clone() };
    asked.text = TextRecord::new(&corpus, file.as_deref().map(absolute));
    if args.model.names_a_shape() {
        let model = args.model.resolve()?;
        asked.config = model.config.clone();
        // What a shape leaves open is as it was.
        if !model.fixes("vocabulary") {
            asked.config.set_vocabulary(stored.config.vocabulary());
        }
        if !model.fixes("dropout") {
            asked.config.set_dropout(stored.config.dropout());
        }
    }
    asked.config.set_dropout(args.model.dropout.unwrap_or(asked.config.dropout()));
    stored.allows(&asked).map_err(|error| in_file(from, error))?;
    let trainer =
        Trainer::resume(checkpoint, asked, &corpus, target).map_err(|error| in_file(from, error))?;
    if let (Some(before), Some(now)) = (&stored.products, &trainer.record().products)
        && before != now
    {
        note(format!(
            "note:  until now products were of {before}, from here on they are of {now}; losses differ by rounding"
        ));
    }
    Ok(trainer)
}

/// The text of a file, or one that suits the model.
pub(crate) fn corpus(file: Option<&Path>, model: &ModelConfig) -> Result<Corpus, CliError> {
    let corpus = match (file, model) {
        (Some(file), _) => Corpus::read(file),
        (None, ModelConfig::Gpt(_) | ModelConfig::Recurrent(_) | ModelConfig::Bert(_)) => {
            Corpus::default_text()
        }
        // To reverse a text that can be guessed takes no reading.
        (None, ModelConfig::EncoderDecoder(_)) => Ok(Corpus::random_letters()),
    };
    Ok(corpus.map_err(kernfusion_lm::Error::from)?)
}

fn with_rate(mut rule: Optimizer, rate: f64) -> Optimizer {
    match &mut rule {
        Optimizer::Sgd { learning_rate, .. } => *learning_rate = rate,
        Optimizer::Adam(moments) | Optimizer::AdamW(moments) => moments.learning_rate = rate,
        Optimizer::Asgd(averaging) => averaging.learning_rate = rate,
    }
    rule
}

/// The path from the root, so that a resumed run finds the text from anywhere.
pub(crate) fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.into()).display().to_string()
}

impl Args {
    /// What to compile for, by a process alone or by one of several ranks, which share the cores of a machine.
    pub(crate) fn target(&self, rank: Option<&Rank>) -> Result<Target, CliError> {
        let target = self.target.target_of(self.mode, ranks::number_here(rank))?;
        let target = self.memory.limit(target).shard_optimizer(self.shard_optimizer);
        let target = target.collectives(self.exchange.collectives());
        Ok(ranks::target(target, rank, self.target.chooses_threads()))
    }

    /// What would mean nothing here.
    fn refusal(&self, is_alone: bool) -> Option<String> {
        let is_averaged = matches!(self.optimizer, Some(OptimizerArg::Asgd));
        if self.average_from.is_some() && !is_averaged {
            return Some("--average-from is for --optimizer asgd".into());
        }
        let of_ranks = || self.exchange.refusal(self.shard_optimizer, self.resume.is_some());
        if is_alone { of_ranks() } else { None }
    }

    /// The run of a model that PyTorch exported.
    fn of_archive(&self) -> Result<Run<'_>, CliError> {
        let defaults = Settings::default();
        let given = "the flag is asked for beside --program";
        let steps = self.steps.unwrap_or(DEFAULT_STEPS);
        Ok(Run {
            data: self.data.as_deref().expect(given),
            out: self.out.as_deref().expect(given),
            overwrite: self.destination.overwrite,
            steps,
            optimizer: self.optimizer(&defaults.optimizer),
            schedule: self.schedule(defaults.schedule, steps),
            clip: self.clip.map_or(defaults.clip, |clip| Some(clip).filter(|&clip| clip != 0.0)),
            seed: self.seed.unwrap_or(defaults.seed),
            lora: self.adaptation.of_matrices()?,
            target: self.target(None)?,
        })
    }

    /// The directory of the run.
    fn claim(&self, screen: &mut Screen) -> Result<Claim, CliError> {
        match (&self.resume, &self.out) {
            (Some(from), None) => Destination::of_resumed(from),
            (Some(from), Some(out)) if is_same(from, out) => Destination::of_resumed(from),
            _ => {
                let model = self.model.resolve()?;
                let sources = [&self.resume, &self.init, &self.data, &self.model.config];
                let sources: Vec<_> = sources.into_iter().flatten().map(PathBuf::as_path).collect();
                let default = Path::new("runs").join(model.preset);
                self.destination.of_run(self.out.as_deref(), &default, &sources, screen)
            }
        }
    }

    /// `settings` with what the flags say put in.
    fn settings(&self, settings: Settings) -> Settings {
        let steps = self.steps.unwrap_or(settings.steps);
        Settings {
            steps,
            batch: self.model.batch_size.unwrap_or(settings.batch) * self.accumulated().unwrap_or(1),
            microbatches: self.accumulated().or(self.memory.microbatches()).unwrap_or(settings.microbatches),
            seed: self.seed.unwrap_or(settings.seed),
            optimizer: self.optimizer(&settings.optimizer),
            schedule: self.schedule(settings.schedule, steps),
            clip: self.clip.map_or(settings.clip, |clip| Some(clip).filter(|&clip| clip != 0.0)),
            adaptation: self.adaptation.adaptation().unwrap_or(settings.adaptation),
            exchange: self.exchange.exchange().unwrap_or(settings.exchange),
            order: self.order.map_or(settings.order, |order| match order {
                OrderArg::Random => Order::Random,
                OrderArg::Sequential => Order::Sequential,
                OrderArg::Streams => Order::Streams,
            }),
            validate_every: self.validate_every.unwrap_or(settings.validate_every),
            validation_batches: self.validation_batches.map_or(settings.validation_batches, |n| n as usize),
            sample_every: self.sample_every.unwrap_or(settings.sample_every),
            sample_tokens: self.sample_tokens.unwrap_or(settings.sample_tokens),
            sample_prompts: match self.sample_prompt.is_empty() {
                true => settings.sample_prompts,
                false => self.sample_prompt.clone(),
            },
            sample_top_k: self.sample_top_k.or(settings.sample_top_k),
            checkpoint_every: self.checkpoint_every.unwrap_or(settings.checkpoint_every),
        }
    }

    /// Batches in a step: the compiler's microbatches are exactly that.
    fn accumulated(&self) -> Option<usize> {
        self.accumulate.map(|batches| batches as usize)
    }

    fn optimizer(&self, default: &Optimizer) -> Optimizer {
        let rate = self.lr.unwrap_or(default.learning_rate());
        let rule = match self.optimizer {
            Some(OptimizerArg::Sgd) => Optimizer::sgd(rate),
            Some(OptimizerArg::Adam) => Optimizer::adam(rate),
            Some(OptimizerArg::Adamw) => Optimizer::adamw(rate),
            Some(OptimizerArg::Asgd) => Optimizer::asgd(rate, self.average_from.unwrap_or(0)),
            None => default.clone(),
        };
        with_rate(rule, rate)
    }

    /// A cosine ends at the number of steps with which the run began, also when it is resumed for more.
    fn schedule(&self, default: Schedule, steps: u64) -> Schedule {
        match (self.schedule, self.warmup) {
            (None, None) => default,
            (Some(ScheduleArg::Cosine), warm_up) => {
                Schedule::Cosine { warm_up: warm_up.unwrap_or(0), steps, floor: 0.1 }
            }
            (_, Some(steps)) if steps > 0 => Schedule::WarmUp { steps },
            _ => Schedule::Constant,
        }
    }
}

fn vocabulary(tokenizer: &Tokenizer) -> String {
    let size = grouped(tokenizer.vocabulary_size() as u64);
    match tokenizer {
        Tokenizer::Characters(_) => format!("{size} distinct characters"),
        Tokenizer::Words(_) | Tokenizer::Pieces(_) | Tokenizer::Marked(_) => {
            format!("a vocabulary of {size} {}", tokenizer.unit())
        }
    }
}

/// How many parameters are trained, if not all.
fn trained_part(trainer: &Trainer) -> String {
    match trainer.record().settings.adaptation == Adaptation::default() {
        true => String::new(),
        false => format!(", {} of them trained", grouped(trainer.trained_parameters() as u64)),
    }
}

/// The model, the text, the compiled step and what is to be done.
pub(crate) fn introduce(trainer: &Trainer, mode: Mode, screen: &mut Screen) {
    let Record { config: c, settings, tokenizer, text, .. } = trainer.record();
    screen.line(format!(
        "model: {} parameters{} ({}, width {}{}, context {}, vocabulary {})",
        grouped(c.parameters() as u64),
        trained_part(trainer),
        counted(c.layers(), "layer"),
        c.width(),
        c.heads().map_or(String::new(), |heads| format!(", {}", counted(heads, "head"))),
        c.context(),
        c.vocabulary()
    ));
    screen.line(format!("text:  {}, {}", text.name, vocabulary(tokenizer)));
    let report = trainer.program().report();
    screen.line(format!(
        "step:  {} in {:.2} s: {} kernels, {:.1} MiB moved, arena {:.1} MiB, state {:.1} MiB",
        mode,
        trainer.compile_time().as_secs_f64(),
        report.kernels,
        mib(report.bytes_moved),
        mib(report.arena_bytes),
        mib(report.state_bytes)
    ));
    if let Some(library) = &report.library {
        screen.line(format!("tuned: {library}"));
    }
    if report.memory.microbatches > 1 || report.memory.recompute {
        let most = mib(report.process_bytes);
        screen.line(format!("memory: {}, {most:.0} MiB expected at most", report.memory));
    }
    let done = trainer.steps_done();
    let begin = if done > 0 { format!("resumed after step {done}; ") } else { String::new() };
    let tokens = grouped((settings.batch * c.context()) as u64);
    screen.line(format!(
        "run:   {begin}{} of {tokens} tokens, seed {}",
        counted(settings.steps as usize, "step"),
        settings.seed
    ));
}
