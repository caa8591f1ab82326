//! `kernfusion tune`: what comes after pre-training.

use crate::Outcome;
use crate::common::destination::{Claim, Destination};
use crate::common::error::{CliError, in_file};
use crate::common::folder::{Kind, expect};
use crate::common::model::{MemoryArgs, TargetArgs};
use crate::common::screen::{Screen, progress};
use crate::training::adaptation::AdaptationArgs;
use crate::training::ranks::{self, ExchangeArgs, Rank, Ranks, agreed};
use crate::training::stop;
use clap::Subcommand;
use indicatif::ProgressBar;
use kernfusion::compile::{Mode, Target};
use kernfusion::optim::Optimizer;
use kernfusion_lm::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use kernfusion_lm::jsonl::JsonLines;
use kernfusion_lm::jsonl::read_rows;
use kernfusion_lm::train::Ending;
use kernfusion_lm::tune::{
    Demonstration, Ppo, PpoSettings, Preference, Pretrained, Prompt, RewardModel, Scorer, Supervised, Tuning,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Tune a trained model: on responses, on preferences, or by rewards
///
/// A model that answers is made in three steps (Ouyang et al., 2022): sft learns from responses to prompts, reward learns
/// which of two responses is better, ppo lets the model write and learn from its rewards. Rows are lines of JSON.
///
/// Ctrl-C ends a run early, with a checkpoint, and so does SIGTERM.
#[derive(clap::Args)]
#[command(
    arg_required_else_help = false,
    after_help = "Examples:
  kernfusion tune sft --checkpoint runs/tiny --data answers.jsonl --out runs/sft
  kernfusion tune reward --checkpoint runs/sft --data preferences.jsonl --out runs/reward
  kernfusion tune ppo --checkpoint runs/sft --reward runs/reward --data prompts.jsonl --out runs/ppo
  kernfusion generate --checkpoint runs/ppo --prompt \"The compiler\""
)]
pub(crate) struct Args {
    #[command(subcommand)]
    method: Method,
}

#[derive(Subcommand)]
enum Method {
    /// Learn responses: rows {"prompt": …, "response": …}; the loss is on the responses alone
    Sft(Box<StepsArgs>),
    /// Learn a reward: rows {"prompt": …, "chosen": …, "rejected": …}
    Reward(Box<StepsArgs>),
    /// Learn from rewards of own responses to prompts: rows {"prompt": …}
    Ppo(Box<PpoArgs>),
}

/// What all methods take.
#[derive(clap::Args)]
struct CommonArgs {
    /// Directory of the checkpoint to begin with
    #[arg(long, value_name = "DIR")]
    checkpoint: PathBuf,
    /// Rows
    #[arg(long, value_name = "FILE.jsonl")]
    data: PathBuf,
    /// Directory of the checkpoint to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    destination: Destination,
    /// Rows in a batch
    #[arg(long, value_name = "B", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    batch_size: u32,
    /// Learning rate
    #[arg(long, value_name = "X", default_value_t = 1e-4, allow_negative_numbers = true)]
    lr: f64,
    /// Largest norm of the gradient; 0: no clipping
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    clip: f64,
    /// Seed of the order of rows, of dropout, of new parameters and of responses
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    adaptation: AdaptationArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    exchange: ExchangeArgs,
    /// How programs are executed
    #[arg(long, value_name = "MODE", default_value = "compiled")]
    mode: Mode,
    /// Write a line of JSON for each step or iteration
    #[arg(long, value_name = "FILE.jsonl")]
    log: Option<PathBuf>,
}

#[derive(clap::Args)]
struct StepsArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Steps
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    #[command(flatten)]
    memory: MemoryArgs,
}

#[derive(clap::Args)]
struct PpoArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Directory of the reward model's checkpoint
    #[arg(long, value_name = "DIR")]
    reward: PathBuf,
    /// Iterations: responses to prompts, their rewards, steps
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,
    /// Responses in an iteration, a multiple of the batch size
    #[arg(long, value_name = "N", default_value_t = 32)]
    responses: usize,
    /// Tokens of a response at most
    #[arg(long, value_name = "N", default_value_t = 32)]
    length: usize,
    /// How often the responses of an iteration are learnt from
    #[arg(long, value_name = "N", default_value_t = 4)]
    epochs: usize,
    /// How far a token's probability may move in an iteration, as a ratio
    #[arg(long, value_name = "X", default_value_t = 0.2, allow_negative_numbers = true)]
    clip_ratio: f64,
    /// Price of a nat of divergence from the model in the beginning
    #[arg(long, value_name = "X", default_value_t = 0.05, allow_negative_numbers = true)]
    beta: f64,
}

impl Args {
    /// How ranks exchange.
    pub(crate) fn exchange(&self) -> &ExchangeArgs {
        match &self.method {
            Method::Sft(args) | Method::Reward(args) => &args.common.exchange,
            Method::Ppo(args) => &args.common.exchange,
        }
    }
}

pub(crate) fn run(args: &Args, ranks: &Ranks, screen: &mut Screen) -> Outcome {
    let of_ranks = args.exchange().refusal(false, false);
    if let (Ranks::Alone, Some(refusal)) = (ranks, of_ranks) {
        return Err(CliError::Usage(refusal));
    }
    match (&args.method, ranks) {
        (Method::Sft(args), _) => ranks.run(screen, |rank, screen| supervised(args, rank, screen)),
        (Method::Reward(args), _) => ranks.run(screen, |rank, screen| reward(args, rank, screen)),
        (Method::Ppo(args), Ranks::Alone) => ppo(args, screen),
        (Method::Ppo(_), _) => {
            let refuse = || CliError::Usage("of `tune`, several ranks run sft and reward alone".into());
            ranks.run(screen, |_, _| Err(refuse()))
        }
    }
}

fn supervised(args: &StepsArgs, rank: Option<&Rank>, screen: Option<&mut Screen>) -> Outcome {
    learn::<Supervised>(args, "responses", &|_, _| Ok(String::new()), rank, screen)
}

fn reward(args: &StepsArgs, rank: Option<&Rank>, screen: Option<&mut Screen>) -> Outcome {
    let ranked = |run: &RewardModel, target: &Target| {
        Ok(format!("{:.1} % of the rows are ranked as they are; ", 100.0 * run.accuracy(target)?))
    };
    learn::<RewardModel>(args, "preferences", &ranked, rank, screen)
}

/// A method that learns from rows, step by step.
trait Learning: Sized {
    /// What a row says.
    type Row: DeserializeOwned + Serialize;
    fn begin(
        model: Pretrained,
        rows: &[Self::Row],
        tuning: Tuning,
        target: &Target,
    ) -> kernfusion_lm::Result<Self>;
    fn step(&mut self) -> kernfusion_lm::Result<f32>;
    fn save(&self, directory: &Path) -> kernfusion_lm::Result<()>;
    /// The model and the settings, which are the same on every rank.
    fn facts(&self) -> [Value; 2];
}

macro_rules! learning {
    ($method:ty, $row:ty) => {
        impl Learning for $method {
            type Row = $row;
            fn begin(
                model: Pretrained,
                rows: &[$row],
                tuning: Tuning,
                target: &Target,
            ) -> kernfusion_lm::Result<Self> {
                <$method>::new(model, rows, tuning, target)
            }
            fn step(&mut self) -> kernfusion_lm::Result<f32> {
                <$method>::step(self)
            }
            fn save(&self, directory: &Path) -> kernfusion_lm::Result<()> {
                <$method>::save(self, directory)
            }
            fn facts(&self) -> [Value; 2] {
                [self.model(), self.record()]
            }
        }
    };
}
learning!(Supervised, Demonstration);
learning!(RewardModel, Preference);

/// Learns from rows of one kind, and ends with what the learner reports. Of several ranks, the one that has the
/// screen writes.
fn learn<L: Learning>(
    args: &StepsArgs,
    kind: &str,
    last_words: &dyn Fn(&L, &Target) -> kernfusion_lm::Result<String>,
    rank: Option<&Rank>,
    mut screen: Option<&mut Screen>,
) -> Outcome {
    let StepsArgs { common, steps, memory } = args;
    let mut begun = || -> Result<_, CliError> {
        let directory = screen.as_mut().map(|screen| common.claim(&[], screen)).transpose()?;
        let (model, target) = common.begin(ranks::number_here(rank))?;
        let target = ranks::target(memory.limit(target), rank, common.target.chooses_threads());
        let rows: Vec<L::Row> = rows(&common.data)?;
        let tuning = Tuning { microbatches: memory.microbatches().unwrap_or(0), ..common.tuning(*steps) };
        Ok((L::begin(model, &rows, tuning, &target)?, rows, target, directory))
    };
    let begun = begun();
    let (mut run, rows, target, directory) = agreed(rank, begun, |(run, rows, target, _)| {
        let isa = target.instruction_set().map(|isa| isa.to_string()).ok();
        let [model, record] = run.facts();
        vec![
            ("another instruction set", json!(isa)),
            ("other rows", json!(rows)),
            ("another model", model),
            ("other settings", record),
            common.exchange.fact(),
        ]
    })?;
    let (Some(screen), Some(directory)) = (screen, directory) else {
        let stop = stop::upon_signals()?;
        for _ in 0..*steps {
            run.step()?;
            if ranks::any(rank, stop.load(Ordering::Relaxed))? {
                return Ok(exit(Ending::Stopped));
            }
        }
        return Ok(exit(Ending::Finished));
    };
    screen.line(format!("rows:  {} {kind}", rows.len()));
    let ending = common.repeat(screen, *steps, rank, &mut |step| {
        let loss = run.step()?;
        Ok((format!("loss {loss:.4}"), json!({"step": step, "loss": loss})))
    })?;
    run.save(directory.path())?;
    directory.clear(&[CHECKPOINT_FILE])?;
    let words = last_words(&run, &target)?;
    screen.line(format!("{words}checkpoint in {}", common.out.display()));
    Ok(exit(ending))
}

fn ppo(args: &PpoArgs, screen: &mut Screen) -> Outcome {
    let directory = args.common.claim(&[&args.reward], screen)?;
    let (model, target) = args.common.begin(0)?;
    let checkpoint = Checkpoint::load(&args.reward).map_err(kernfusion_lm::Error::from)?;
    let scorer = Scorer::from_checkpoint(checkpoint, &target);
    let mut scorer = scorer.map_err(|error| in_file(&args.reward, error))?;
    if *scorer.tokenizer() != model.tokenizer {
        let reason = "the reward model has other tokens than the model to be tuned".into();
        return Err(CliError::Content { path: args.reward.clone(), reason });
    }
    let prompts: Vec<Prompt> = rows(&args.common.data)?;
    let prompts: Vec<_> = prompts.into_iter().map(|row| row.prompt).collect();
    let settings = PpoSettings {
        tuning: args.common.tuning(args.iterations),
        responses: args.responses,
        length: args.length,
        epochs: args.epochs,
        clip_ratio: args.clip_ratio,
        beta: args.beta,
        ..PpoSettings::default()
    };
    let mut run = Ppo::new(model, &prompts, settings, &target)?;
    screen.line(format!("rows:  {} prompts", prompts.len()));
    let ending = args.common.repeat(screen, args.iterations, None, &mut |_| {
        let done = run.iterate(&mut |tokens, _| scorer.score(tokens))?;
        let message = format!("reward {:.4}, divergence {:.3} nats", done.reward, done.divergence);
        Ok((message, json!(done)))
    })?;
    run.save(directory.path())?;
    directory.clear(&[CHECKPOINT_FILE])?;
    screen.line(format!("checkpoint in {}", args.common.out.display()));
    Ok(exit(ending))
}

impl CommonArgs {
    /// The directory of the run and its log, found out now, and not after the last step.
    fn claim(&self, sources: &[&Path], screen: &mut Screen) -> Result<Claim, CliError> {
        let sources = [&[self.checkpoint.as_path(), &self.data], sources].concat();
        let claimed = self.destination.of_run(Some(&self.out), &self.out, &sources, screen);
        let directory = claimed.map_err(CliError::without_resume)?;
        self.log.as_deref().map(|log| self.destination.log(log, None)).transpose()?;
        Ok(directory)
    }

    /// The model to begin with, and where programs of the rank of this number on this machine run.
    fn begin(&self, local_rank: usize) -> Result<(Pretrained, Target), CliError> {
        let target = self.target.target_of(self.mode, local_rank)?.start();
        let target = target.collectives(self.exchange.collectives());
        expect(&self.checkpoint, Kind::Checkpoint)?;
        let checkpoint = Checkpoint::load(&self.checkpoint).map_err(kernfusion_lm::Error::from)?;
        let model = Pretrained::new(checkpoint).map_err(|error| in_file(&self.checkpoint, error))?;
        Ok((model, target))
    }

    fn tuning(&self, steps: u64) -> Tuning {
        Tuning {
            steps,
            batch: self.batch_size as usize,
            seed: self.seed,
            optimizer: Optimizer::adamw(self.lr),
            clip: Some(self.clip).filter(|&clip| clip != 0.0),
            adaptation: self.adaptation.adaptation().unwrap_or_default(),
            exchange: self.exchange.exchange().unwrap_or_default(),
            ..Tuning::default()
        }
    }

    /// Does steps until all are done or Ctrl-C is pressed (on any rank), and shows and logs what each one says.
    fn repeat(
        &self,
        screen: &mut Screen,
        steps: u64,
        rank: Option<&Rank>,
        step: &mut dyn FnMut(u64) -> kernfusion_lm::Result<(String, serde_json::Value)>,
    ) -> Result<Ending, CliError> {
        let stop = stop::upon_signals()?;
        let mut log =
            self.log.as_deref().map(JsonLines::create).transpose().map_err(kernfusion_lm::Error::from)?;
        let bar: ProgressBar = progress(steps, "{pos}/{len}, {eta} left, {msg}");
        let every = (steps / LINES).max(1);
        for number in 1..=steps {
            let (message, row) = step(number)?;
            if let Some(log) = &mut log {
                log.write(&row).map_err(kernfusion_lm::Error::from)?;
            }
            bar.set_message(message.clone());
            bar.set_position(number);
            if bar.is_hidden() && (number == 1 || number == steps || number.is_multiple_of(every)) {
                screen.line(format!("{number:>6}  {message}"));
            }
            if ranks::any(rank, stop.load(Ordering::Relaxed))? {
                bar.finish_and_clear();
                screen.line(format!("stopped after {number} of {steps}"));
                return Ok(Ending::Stopped);
            }
        }
        bar.finish_and_clear();
        Ok(Ending::Finished)
    }
}

/// Lines of a run in a pipe, about.
const LINES: u64 = 10;

fn exit(ending: Ending) -> ExitCode {
    match ending {
        Ending::Finished => ExitCode::SUCCESS,
        Ending::Stopped => ExitCode::from(stop::exit_code()),
    }
}

fn rows<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, CliError> {
    Ok(read_rows(path).map_err(kernfusion_lm::Error::from)?)
}
