//! `kernfusion bench`: modes measured against each other, in turn and in one run, so that a change of the machine's
//! speed meets all of them.

use crate::Outcome;
use crate::common::destination::{check_derived, write_derived};
use crate::common::error::CliError;
use crate::common::machine;
use crate::common::model::{MemoryArgs, ModelArgs, TargetArgs, WeightsArgs, Work};
use crate::common::screen::{Screen, counted, grouped, mib, progress};
use crate::common::subject::{OF_MODELS, ProgramArgs, Subject};
use crate::common::workload::{Batches, Workload, median};
use crate::report::{Measurements, bench_page};
use kernfusion::compile::{Mode, Target};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Measure modes against each other: a step of each in turn, medians
///
/// Tokens are synthetic and made before the clock starts. A training step is forward, backward and AdamW without
/// clipping; a forward step is the loss of an evaluating model; prefill reads the first 128 tokens of a prompt, and decode
/// one token behind half a context or more, with caches of keys and values.
///
/// The peak of resident memory belongs to a whole process, so with several modes each is measured in a process of its
/// own, which does --warmup steps and one more before the timed run begins.
///
/// Memory limits, microbatches and recomputing are those of mode compiled; eager computes every op once, on the whole batch.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion bench --preset thesis --mode compiled,eager --steps 5 --json bench.json
  kernfusion bench --preset thesis --mode compiled --memory-limit 700MiB
  kernfusion bench --program model --mode compiled
  kernfusion bench --preset tiny --html bench.html --peers torch.json")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    program: ProgramArgs,
    /// With a program: a file of tensors with values of its inputs, by name; those that it lacks are made up
    #[arg(long, value_name = "FILE.safetensors", requires = "program", conflicts_with_all = OF_MODELS)]
    inputs: Option<PathBuf>,
    /// What is measured
    #[arg(long, value_enum, default_value = "train")]
    work: Work,
    #[command(flatten)]
    weights: WeightsArgs,
    /// Modes, separated by commas
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "compiled,eager")]
    mode: Vec<Mode>,
    /// Timed steps of each mode
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Steps before them, not timed
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(..=1 << 32))]
    warmup: u64,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw time, memory and bytes of all modes into a page
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Others' measurements to draw beside them, as --json and the scripts of benches/peers write them; may be given several
    /// times, and rounds of one are taken together
    #[arg(long, value_name = "FILE.json", requires = "html")]
    peers: Vec<PathBuf>,
    /// Only do the warm-up and one step, and print this process's peak of memory in bytes
    #[arg(long, hide = true)]
    measure_memory: bool,
}

/// A mode's results, as they are in the JSON.
#[derive(Serialize)]
struct Row {
    mode: String,
    preset: String,
    work: String,
    dtype: String,
    device: &'static str,
    threads: usize,
    steps: u64,
    median_step_s: f64,
    fastest_step_s: f64,
    slowest_step_s: f64,
    /// A program of a file does not say what tokens are.
    tokens_per_s: Option<f64>,
    compile_s: f64,
    microbatches: usize,
    recompute: bool,
    kernels: usize,
    bytes_moved_mib: f64,
    arena_mib: f64,
    peak_rss_mib: Option<f64>,
    /// Of a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_device_mib: Option<f64>,
    /// What became of cublasLt, if it was allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    library: Option<String>,
    /// Works on parts of a text have no loss.
    loss_first: Option<f32>,
    loss_last: Option<f32>,
}

/// A mode under measurement.
struct Contender {
    mode: Mode,
    workload: Workload,
    seconds: Vec<f64>,
    losses: Vec<Option<f32>>,
}

pub(crate) fn run(mut args: Args, screen: &mut Screen) -> Outcome {
    let mut modes = Vec::new();
    args.mode.retain(|mode| {
        !modes.contains(mode) && {
            modes.push(*mode);
            true
        }
    });
    let files = args.program.files();
    let sources = args.peers.iter().chain(&args.model.config).chain(&args.inputs).chain(&files);
    let sources: Vec<_> = sources.map(PathBuf::as_path).collect();
    args.json.iter().chain(&args.html).try_for_each(|path| check_derived(path, &sources))?;
    let subject = args.program.subject(&args.model, &args.weights, args.work)?;
    // What cannot be read is better known before anything is measured.
    let peers = args.peers.iter().map(|file| Measurements::read(file)).collect::<Result<Vec<_>, _>>()?;
    // Before anything is compiled here, so that the two never need memory at once.
    let peaks = peaks_alone(&modes)?;
    let mut contenders =
        modes.iter().map(|&mode| Contender::new(mode, &args, &subject)).collect::<Result<Vec<_>, _>>()?;
    let batches = Batches::new(&subject, args.work, args.inputs.as_deref())?;
    if args.measure_memory {
        for _ in 0..=args.warmup {
            contenders.iter_mut().try_for_each(|contender| contender.step(&batches))?;
        }
        screen.line(machine::peak_memory().unwrap_or(0));
        return Ok(ExitCode::SUCCESS);
    }
    let total = args.warmup + args.steps;
    let bar = progress(total, "{pos}/{len} steps of each mode, {eta} left");
    for _ in 0..total {
        for contender in &mut contenders {
            contender.step(&batches)?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let rows = contenders.iter().zip(peaks).map(|(contender, peak)| contender.row(&args, &subject, peak));
    let rows: Vec<Row> = rows.collect();
    let target = args.target.target(modes[0])?;
    table(&rows, &target, screen);
    let document = json!({"machine": machine::describe(&target), "results": rows});
    if let Some(path) = &args.json {
        write_derived(path, &format!("{document:#}\n"), &sources)?;
    }
    if let Some(path) = &args.html {
        let ours = serde_json::from_value(document).expect("our rows are measurements");
        write_derived(path, &bench_page(&[vec![ours], peers].concat()), &sources)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Contender {
    fn new(mode: Mode, args: &Args, subject: &Subject) -> Result<Self, CliError> {
        // The baseline computes every op on the whole batch.
        let memory = (mode == Mode::Compiled).then_some(&args.memory);
        let workload = Workload::new(args.work, args.target.target(mode)?, memory, subject)?;
        Ok(Contender { mode, workload, seconds: vec![], losses: vec![] })
    }

    fn step(&mut self, batches: &Batches) -> Result<(), CliError> {
        let (outputs, time) = self.workload.step(batches)?;
        self.seconds.push(time.as_secs_f64());
        self.losses.push(outputs.scalar("loss").ok());
        Ok(())
    }

    fn row(&self, args: &Args, subject: &Subject, peak: Option<usize>) -> Row {
        let report = self.workload.program.report();
        let timed = &self.seconds[args.warmup as usize..];
        let median = median(timed);
        Row {
            mode: self.mode.to_string(),
            preset: subject.name(),
            work: subject.work(args.work),
            dtype: args.target.products(),
            device: args.target.device_name(),
            threads: args.target.thread_count(),
            steps: args.steps,
            median_step_s: median,
            fastest_step_s: timed.iter().copied().fold(f64::INFINITY, f64::min),
            slowest_step_s: timed.iter().copied().fold(0.0, f64::max),
            tokens_per_s: subject.tokens(args.work).map(|tokens| tokens as f64 / median),
            compile_s: report.total.as_secs_f64(),
            microbatches: report.memory.microbatches,
            recompute: report.memory.recompute,
            kernels: report.kernels,
            bytes_moved_mib: mib(report.bytes_moved),
            arena_mib: mib(report.arena_bytes),
            // Alone in this process, so its peak is this mode's.
            peak_rss_mib: peak.or_else(machine::peak_memory).map(mib),
            peak_device_mib: (report.device_bytes > 0).then(|| mib(report.device_bytes)),
            library: report.library.clone(),
            loss_first: self.losses[0],
            loss_last: self.losses.last().copied().flatten(),
        }
    }
}

/// The peak of memory of each mode in a process of its own: this program called again with the same flags. Nothing if there is only one
/// mode, which is alone anyway.
fn peaks_alone(modes: &[Mode]) -> Result<Vec<Option<usize>>, CliError> {
    let mut peaks = vec![None; modes.len()];
    if modes.len() == 1 {
        return Ok(peaks);
    }
    let failed = |cause| CliError::System { what: "cannot measure memory in a process of its own", cause };
    let program = std::env::current_exe().map_err(failed)?;
    let mut flags: Vec<_> = std::env::args_os().skip(1).collect();
    // A later --mode adds to the list, so the one that was given has to go.
    if let Some(place) = flags.iter().position(|flag| flag == "--mode") {
        flags.drain(place..place + 2);
    }
    flags.retain(|flag| !flag.to_string_lossy().starts_with("--mode="));
    for (mode, peak) in modes.iter().zip(&mut peaks) {
        let mut child = Command::new(&program);
        child.args(&flags).args(["--mode", &mode.to_string(), "--measure-memory"]).stdin(Stdio::null());
        let output = child.stderr(Stdio::null()).output().map_err(failed)?;
        // What goes wrong there goes wrong here again, and is then reported once; nobody waits for the other modes before that.
        if output.status.code().is_some_and(|code| code != 0) {
            break;
        }
        let bytes = String::from_utf8_lossy(&output.stdout).trim().parse::<usize>().ok();
        *peak = bytes.filter(|&bytes| bytes > 0);
    }
    Ok(peaks)
}

fn table(rows: &[Row], target: &Target, screen: &mut Screen) {
    let machine: Value = machine::describe(target);
    let Row { preset, work, dtype, steps, .. } = &rows[0];
    let (place, cpu) = (machine::place(target), machine["cpu"].as_str().unwrap_or("unknown processor"));
    screen.line(format!(
        "{preset} {work}, {dtype} products, medians of {}, {place}, {cpu}",
        counted(*steps as usize, "step")
    ));
    screen.line(format!(
        "{:<9} {:>10} {:>10} {:>9} {:>6} {:>9} {:>7} {:>10} {:>9} {:>9}  loss first, last",
        "mode",
        "ms/step",
        "tokens/s",
        "compile s",
        "microbatches",
        "recompute",
        "kernels",
        "moved MiB",
        "arena MiB",
        "peak MiB"
    ));
    let loss = |loss: Option<f32>| loss.map_or("-".into(), |loss| format!("{loss:.4}"));
    for row in rows {
        let peak = row.peak_device_mib.or(row.peak_rss_mib).map_or("-".into(), |peak| format!("{peak:.0}"));
        screen.line(format!(
            "{:<9} {:>10.3} {:>10} {:>9.2} {:>6} {:>9} {:>7} {:>10.1} {:>9.1} {peak:>9}  {}, {}",
            row.mode,
            1e3 * row.median_step_s,
            row.tokens_per_s.map_or("-".into(), |rate| grouped(rate as u64)),
            row.compile_s,
            row.microbatches,
            if row.recompute { "yes" } else { "no" },
            row.kernels,
            row.bytes_moved_mib,
            row.arena_mib,
            loss(row.loss_first),
            loss(row.loss_last)
        ));
        if let Some(library) = &row.library {
            screen.line(format!("{:<9} {library}", ""));
        }
    }
}
