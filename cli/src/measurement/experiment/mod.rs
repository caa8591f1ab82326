//! `kernfusion experiment`: the two experiments of the thesis, each as one command with a report.

mod peer;
mod pretraining;
mod verification;

use crate::Outcome;
use crate::common::destination::{Claim, Destination};
use crate::common::error::{CliError, in_file};
use crate::common::machine;
use crate::common::model::{MemoryArgs, ModelArgs, TargetArgs};
use crate::common::screen::{Screen, mib};
use crate::experiment::{Measured, Report};
use crate::training::train::{absolute, corpus};
use clap::Subcommand;
use kernfusion::compile::{Mode, Target};
use kernfusion_lm::checkpoint::Checkpoint;
use kernfusion_lm::record::{Record, Settings, TextRecord};
use kernfusion_lm::text::{CharTokenizer, Corpus, Split, Tokenizer};
use kernfusion_lm::train::Trainer;
use std::path::{Path, PathBuf};

/// Repeat an experiment of the thesis: verification against PyTorch, or pre-training
///
/// Each writes a page, report.html, with plots and tables, and all of its figures as JSON. The model is the one of the thesis
/// unless flags say otherwise, on characters of Tiny Shakespeare if it was fetched, with AdamW at a rate of 0.0003 and
/// without clipping.
///
/// Ctrl-C leaves a checkpoint; --resume goes on from it as if nothing had happened.
#[derive(clap::Args)]
#[command(
    arg_required_else_help = false,
    after_help = "Examples:
  kernfusion experiment verification --preset tiny --steps 200 --python python3
  kernfusion experiment verification --reference reference.jsonl
  kernfusion experiment pretraining --data book.txt
  kernfusion experiment pretraining --resume runs/pretraining"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    Verification(Box<verification::Args>),
    Pretraining(Box<pretraining::Args>),
}

/// What both experiments take.
#[derive(clap::Args)]
struct RunArgs {
    /// Model shape by name
    #[arg(long, value_name = "NAME", default_value = "thesis", conflicts_with = "resume")]
    preset: String,
    /// Any other model shape: a JSON object; fields left out come from the preset
    #[arg(long, value_name = "FILE.json", conflicts_with = "resume")]
    config: Option<PathBuf>,
    /// Windows in a batch [default: the preset's]
    #[arg(long, value_name = "B", conflicts_with = "resume")]
    batch_size: Option<usize>,
    /// Text to train on (UTF-8) [default: Tiny Shakespeare if it was fetched, else the embedded text]
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    data: Option<PathBuf>,
    /// Seed of parameters, windows and dropout [default: 1]
    #[arg(long, value_name = "S", conflicts_with = "resume")]
    seed: Option<u64>,
    /// Steps in all [default: as in the thesis]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Directory of the report and the checkpoint [default: runs/NAME-OF-THE-EXPERIMENT, or the next of
    /// runs/NAME-OF-THE-EXPERIMENT-2, … that has no run]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    out: Option<PathBuf>,
    #[command(flatten)]
    destination: Destination,
    /// Go on with the run in this directory
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
}

/// What a fresh run's settings are made from.
struct Choices<'a> {
    steps: u64,
    batch: usize,
    seed: u64,
    split: &'a Split,
    tokenizer: &'a Tokenizer,
}

/// A run before anything is compiled.
struct PreparedRun {
    record: Record,
    corpus: Corpus,
    split: Split,
    checkpoint: Option<Checkpoint>,
    directory: PathBuf,
    target: Target,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    match args.experiment {
        Experiment::Verification(args) => verification::run(&args, screen),
        Experiment::Pretraining(args) => pretraining::run(&args, screen),
    }
}

impl RunArgs {
    /// The directory of an experiment. `reference` is what it reads beside what all experiments do.
    fn claim(&self, name: &str, reference: Option<&Path>, screen: &mut Screen) -> Result<Claim, CliError> {
        let Some(from) = &self.resume else {
            let sources = self.config.as_deref().into_iter().chain(self.data.as_deref()).chain(reference);
            let default = Path::new("runs").join(name);
            let sources: Vec<_> = sources.collect();
            return self.destination.of_run(self.out.as_deref(), &default, &sources, screen);
        };
        Destination::of_resumed(from)
    }

    /// The run that the flags describe, or that of a checkpoint.
    fn prepare(
        &self,
        directory: &Path,
        dropout: f64,
        steps: u64,
        settings: &dyn Fn(&Choices<'_>) -> kernfusion_lm::Result<Settings>,
    ) -> Result<PreparedRun, CliError> {
        let target = self.memory.limit(self.target.target(Mode::Compiled)?);
        match &self.resume {
            Some(from) => self.resumed(from, target),
            None => self.fresh(directory, dropout, steps, settings, target),
        }
    }

    fn fresh(
        &self,
        directory: &Path,
        dropout: f64,
        steps: u64,
        settings: &dyn Fn(&Choices<'_>) -> kernfusion_lm::Result<Settings>,
        target: Target,
    ) -> Result<PreparedRun, CliError> {
        let model = ModelArgs {
            preset: Some(self.preset.clone()),
            config: self.config.clone(),
            batch_size: self.batch_size,
            dropout: Some(dropout),
        };
        let model = model.resolve()?;
        let mut config = model.config.clone();
        let corpus = corpus(self.data.as_deref(), &config)?;
        let tokenizer = Tokenizer::Characters(CharTokenizer::from_text(corpus.text()));
        if !model.fixes("vocabulary") {
            config.set_vocabulary(tokenizer.vocabulary_size() + config.marks());
        }
        let split = divided(&corpus, &tokenizer, config.context())?;
        let settings = settings(&Choices {
            steps: self.steps.unwrap_or(steps),
            batch: model.batch,
            seed: self.seed.unwrap_or(1),
            split: &split,
            tokenizer: &tokenizer,
        })?;
        let settings = Settings {
            microbatches: self.memory.microbatches().unwrap_or(settings.microbatches),
            ..settings
        };
        let text = TextRecord::new(&corpus, self.data.as_deref().map(absolute));
        let record = Record { config, settings, tokenizer, text, products: None };
        Ok(PreparedRun { record, corpus, split, checkpoint: None, directory: directory.into(), target })
    }

    /// Only the number of steps may change.
    fn resumed(&self, from: &Path, target: Target) -> Result<PreparedRun, CliError> {
        let checkpoint = Checkpoint::load(from).map_err(kernfusion_lm::Error::from)?;
        let mut record = Record::read(&checkpoint.meta).map_err(|error| in_file(from, error))?;
        record.settings.steps = self.steps.unwrap_or(record.settings.steps);
        let corpus = corpus(record.text.file.as_ref().map(Path::new), &record.config)?;
        let split = divided(&corpus, &record.tokenizer, record.config.context())?;
        Ok(PreparedRun {
            record,
            corpus,
            split,
            checkpoint: Some(checkpoint),
            directory: from.into(),
            target,
        })
    }
}

fn divided(corpus: &Corpus, tokenizer: &Tokenizer, context: usize) -> kernfusion_lm::Result<Split> {
    Ok(corpus.split(tokenizer.encode(corpus.text())?, context)?)
}

impl PreparedRun {
    /// Compiles the step and puts everything where the run begins or goes on.
    fn trainer(self) -> Result<Trainer, CliError> {
        let PreparedRun { record, corpus, checkpoint, directory, target, .. } = self;
        match checkpoint {
            Some(checkpoint) => {
                let resumed = Trainer::resume(checkpoint, record, &corpus, target);
                resumed.map_err(|error| in_file(&directory, error))
            }
            None => {
                let Record { config, settings, tokenizer, text, .. } = record;
                Ok(Trainer::with_tokenizer(tokenizer, config, settings, &corpus, text.file, target)?)
            }
        }
    }
}

/// What is known of our side beside its losses; `trained` says whether this process has done steps.
fn measured(trainer: &Trainer, args: &TargetArgs, target: &Target, trained: bool) -> Measured {
    let report = trainer.program().report();
    let peak = match report.device_bytes {
        0 => machine::peak_memory(),
        bytes => Some(bytes),
    };
    let about = machine::describe_run(trainer, args, target);
    Measured { about, peak_mib: peak.filter(|_| trained).map(mib) }
}

/// Writes the report and says where it is.
fn publish(report: &Report, directory: &Path, screen: &mut Screen) -> Result<(), CliError> {
    report.write(directory)?;
    screen.line(format!("report in {}", directory.join("report.html").display()));
    Ok(())
}
