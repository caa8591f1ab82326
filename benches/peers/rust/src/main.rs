//! The work of `kernfusion bench` in other libraries of Rust: a GPT of the same shape and the same parameter names, and models as ONNX files.
//!
//! ```text
//! kernfusion-peers check candle ../../../tests/fixtures/gpt_replay.safetensors    losses beside PyTorch's, before anything is timed
//! kernfusion-peers bench candle --preset thesis --work train --steps 3 --json row.json
//! kernfusion-peers onnx model.onnx --inputs inputs.safetensors --outputs outputs.safetensors --json row.json
//! ```

mod gpt;
mod gpt_in_burn;
mod gpt_in_candle;
mod measure;
mod onnx_in_tract;

use anyhow::{Result, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use gpt::{Peer, Preset, Reader, Shape, Windows};
use measure::{Row, Timing};
use std::path::PathBuf;

#[derive(Parser)]
#[command(about = "Times other libraries of Rust beside `kernfusion bench`")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Threads of the library
    #[arg(long, global = true, default_value_t = 2)]
    threads: usize,
}

#[derive(Subcommand)]
enum Command {
    /// Trains the GPT of a fixture, and compares each loss with PyTorch's
    Check { by: By, fixture: PathBuf },
    /// Times steps of a preset
    Bench {
        by: By,
        #[arg(long, value_enum, default_value_t = Preset::Tiny)]
        preset: Preset,
        #[arg(long, value_enum, default_value_t = Work::Train)]
        work: Work,
        /// What matrices are kept as: int8 and int4 in blocks of 32 with a scale each (candle, reading)
        #[arg(long, value_enum, default_value_t = Weights::F32)]
        weights: Weights,
        #[command(flatten)]
        timing: Timing,
    },
    /// Times tract on an ONNX file, and writes its first output
    Onnx {
        file: PathBuf,
        #[arg(long)]
        inputs: PathBuf,
        #[arg(long)]
        outputs: PathBuf,
        #[command(flatten)]
        timing: Timing,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    Burn,
    Candle,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Burn => "burn",
            By::Candle => "candle",
        }
    }

    fn peer(self, shape: &Shape, parameters: &gpt::Parameters, training: bool) -> Result<Box<dyn Peer>> {
        Ok(match self {
            By::Burn => Box::new(gpt_in_burn::Trained::new(shape, parameters, training)?),
            By::Candle => Box::new(gpt_in_candle::Trained::new(shape, parameters, training)?),
        })
    }

    fn reader(self, shape: &Shape, parameters: &gpt::Parameters, weights: Weights) -> Result<Box<dyn Reader>> {
        ensure!(weights == Weights::F32 || matches!(self, By::Candle), "only candle reads with 8 or 4 bits here");
        Ok(match self {
            By::Burn => Box::new(gpt_in_burn::Cached::new(shape, parameters)?),
            By::Candle => Box::new(gpt_in_candle::Cached::new(shape, parameters, weights)?),
        })
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Weights {
    F32,
    Int8,
    Int4,
}

impl Weights {
    fn name(self) -> &'static str {
        match self {
            Weights::F32 => "f32",
            Weights::Int8 => "int8",
            Weights::Int4 => "int4",
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Work {
    /// Loss, gradients, AdamW
    Train,
    /// The loss alone
    Forward,
    /// The first 128 tokens of a text
    Prefill,
    /// One token behind 512 others
    Decode,
}

fn main() -> Result<()> {
    let Arguments { command, threads } = Arguments::parse();
    for name in ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"] {
        // SAFETY: no other thread is there yet.
        unsafe { std::env::set_var(name, threads.to_string()) };
    }
    match command {
        Command::Check { by, fixture } => check(by, &fixture),
        Command::Bench { by, preset, work, weights, timing } => {
            ensure!(
                weights == Weights::F32 || matches!(work, Work::Prefill | Work::Decode),
                "fewer bits are for reading: --work prefill or decode"
            );
            let row = Row {
                mode: by.name(),
                preset: preset.name(),
                dtype: weights.name(),
                threads,
                ..Row::on_cpu()
            };
            bench(by, preset, work, weights, &timing, row)
        }
        Command::Onnx { file, inputs, outputs, timing } => {
            let row = Row {
                mode: "tract",
                preset: "onnx",
                work: "forward",
                dtype: "f32",
                threads,
                ..Row::on_cpu()
            };
            timing.write(onnx_in_tract::measure(&file, &inputs, &outputs, &timing, row)?)
        }
    }
}

/// Losses must be PyTorch's before updates and after them.
fn check(by: By, fixture: &std::path::Path) -> Result<()> {
    let replay = gpt::Replay::read(fixture)?;
    let mut trained = by.peer(&replay.shape, &replay.parameters, true)?;
    // A step that only evaluates takes other functions.
    let evaluated = by.peer(&replay.shape, &replay.parameters, false)?.step(&replay.windows(0))?;
    let mut worst = (evaluated - replay.losses[0]).abs();
    for (step, expected) in replay.losses.iter().enumerate() {
        worst = worst.max((trained.step(&replay.windows(step))? - expected).abs());
    }
    println!("{}: {} losses, at most {worst:.1e} from PyTorch's", by.name(), replay.losses.len());
    if worst > 1e-4 {
        bail!("the losses are not PyTorch's");
    }
    read_alike(by, &replay)
}

/// A text that is read token by token ends in the same next token as when it is read at once.
fn read_alike(by: By, replay: &gpt::Replay) -> Result<()> {
    let tokens = &replay.windows(0).x[..replay.shape.context];
    let mut reader = by.reader(&replay.shape, &replay.parameters, Weights::F32)?;
    let at_once = reader.read(tokens)?;
    reader.restart()?;
    reader.read(&tokens[..3])?;
    let mut last = Vec::new();
    for &token in &tokens[3..] {
        last = reader.read(&[token])?;
    }
    let worst = at_once.iter().zip(&last).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{}: token by token {worst:.1e} from all at once", by.name());
    ensure!(at_once.len() == replay.shape.vocabulary && worst < 1e-4, "the cache is wrong");
    Ok(())
}

fn bench(by: By, preset: Preset, work: Work, weights: Weights, timing: &Timing, mut row: Row) -> Result<()> {
    let (shape, batch) = preset.shape();
    let parameters = gpt::random_parameters(&shape);
    let mut random = gpt::Tokens::new(shape.vocabulary);
    match work {
        Work::Train | Work::Forward => {
            row.work = if work == Work::Train { "train" } else { "forward" };
            row.tokens = batch * shape.context;
            let mut peer = by.peer(&shape, &parameters, work == Work::Train)?;
            let windows: Vec<_> =
                (0..timing.all_steps()).map(|_| Windows::drawn(&mut random, batch, shape.context)).collect();
            timing.write(timing.measure(row, |step| peer.step(&windows[step]))?)
        }
        Work::Prefill => {
            (row.work, row.tokens) = ("prefill", 128);
            let mut reader = by.reader(&shape, &parameters, weights)?;
            let prompt = random.take(row.tokens);
            timing.write(timing.measure(row, |_| {
                reader.restart()?;
                Ok(reader.read(&prompt)?[0])
            })?)
        }
        Work::Decode => {
            (row.work, row.tokens) = ("decode", 1);
            let mut reader = by.reader(&shape, &parameters, weights)?;
            reader.read(&random.take(512))?;
            timing.write(timing.measure(row, |_| Ok(reader.read(&random.take(1))?[0]))?)
        }
    }
}
