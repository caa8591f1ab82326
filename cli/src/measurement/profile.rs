//! `kernfusion profile`: each kernel's time beside its floor.
//!
//! The floor is the time below which a kernel cannot fall on this CPU or GPU: its bytes over the measured bandwidth, its
//! products over the measured peak, or its other arithmetic over half of the peak of `f32`: the longest of the three. Bytes are
//! the fewest that have to move; a kernel that finds its operands in a cache can be faster than its floor.

use crate::common::destination::{check_derived, write_derived};
use crate::common::machine;
use crate::common::model::{ModelArgs, TargetArgs, WeightsArgs, Work};
use crate::common::screen::{Screen, counted, grouped, mib, progress};
use crate::common::subject::{OF_MODELS, ProgramArgs, Subject};
use crate::common::workload::{Batches, Workload, median};
use crate::inspection::scaling::link;
#[cfg(feature = "cuda")]
use crate::measurement::modelled;
use crate::measurement::profile_table::{self, Group};
use crate::training::ranks::{self, ExchangeArgs, Facts, Rank, Ranks, agreed};
use crate::{CliError, Outcome};
use indicatif::ProgressBar;
use kernfusion::compile::{F32Products, Mode, Target};
use kernfusion::roofline::{Floor, floor};
use kernfusion::scaling::{Link, Machine, StepTime};
use kernfusion_codegen::Peaks;
use kernfusion_cpu::Meter;
use kernfusion_ir::kernel::{Form, Kernel, KernelGraph, Plan, Product};
use kernfusion_lm::record::ExchangeType;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Show each kernel's time beside its floor
///
/// The floor is the longest of: bytes over bandwidth, products over the peak of the matrix kernels, other arithmetic over
/// half of that of f32; all measured on this machine first, and in turn with steps that take 0.1 s or more. Equal kernels stand in
/// one line, with * for the layer's number.
///
/// Several ranks (mpirun, or kernfusion launch) run a step of training together, and the first one shows its kernels. The time of a
/// collective is what nothing has hidden of an exchange, a wait for a slower rank included; with --link, what `explain` predicts of it stands beside that.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion profile --preset tiny
  kernfusion profile --preset thesis --dtype bf16 --steps 3 --json profile.json
  kernfusion profile --preset thesis --device cuda
  kernfusion profile --program model
  kernfusion profile --preset gpt2-small --dtype bf16 --device cuda --model h200
  mpirun -n 2 kernfusion profile --preset thesis --batch-size 8 --link 1GB/s,50us")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    program: ProgramArgs,
    /// With a program: a file of tensors with values of its inputs, by name; those that it lacks are made up
    #[arg(long, value_name = "FILE.safetensors", requires = "program", conflicts_with_all = OF_MODELS)]
    inputs: Option<PathBuf>,
    /// What is measured
    #[arg(long, value_enum, default_value = "train")]
    pub(super) work: Work,
    #[command(flatten)]
    weights: WeightsArgs,
    /// Mode
    #[arg(long, value_name = "MODE", default_value = "compiled")]
    pub(super) mode: Mode,
    /// Timed steps; each kernel's time is the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Steps before them, not timed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=1 << 32))]
    warmup: u64,
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// With --device cuda, but without a GPU: a model of what kernels take on this card, from their machine code; NVRTC and nvdisasm make
    /// and read it
    #[arg(long = "model", value_name = "CARD", num_args = 0..=1, default_missing_value = "h200")]
    card: Option<String>,
    /// Of several ranks, each keeps and updates its part alone of the optimizer's state
    #[arg(long)]
    shard_optimizer: bool,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
    /// Of several ranks: what connects them, to predict the exchange: bytes that each sends in a second, and what a message takes beside
    /// them, such as 25GB/s,5us
    #[arg(long, value_name = "RATE,TIME", value_parser = link)]
    link: Option<Link>,
    /// Lines shown at most; 0: all
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub(super) lines: usize,
    /// Write all of it as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, ranks: &Ranks, screen: &mut Screen) -> Outcome {
    let is_alone = matches!(ranks, Ranks::Alone);
    if let Some(refusal) = args.refusal(is_alone) {
        return ranks.run(screen, |_, _| Err(CliError::Usage(refusal.clone())));
    }
    #[cfg(feature = "cuda")]
    if let Some(card) = &args.card {
        args.check_json()?;
        return modelled::run(args, &args.subject()?, card, screen);
    }
    #[cfg(not(feature = "cuda"))]
    if args.card.is_some() {
        return Err(kernfusion_cuda::CudaError::NotBuilt.into());
    }
    ranks.run(screen, |rank, screen| measured(args, rank, screen))
}

impl Args {
    /// What does not go together with several ranks, or without.
    fn refusal(&self, is_alone: bool) -> Option<String> {
        let refusal = match is_alone {
            true if self.link.is_some() => "--link is what connects several ranks, and this is one process",
            true => return self.exchange.refusal(self.shard_optimizer, false),
            false if self.card.is_some() => "--model needs no card and no ranks: one process runs it",
            false if self.work != Work::Train => {
                "several ranks run --work train: one process runs other works"
            }
            false if self.program.is_given() => {
                "several ranks run a model's training step: one process runs --program"
            }
            false => return None,
        };
        Some(refusal.into())
    }

    /// Refuses a place for the results where they cannot be written, or that is one of the files that are read.
    fn check_json(&self) -> Result<(), CliError> {
        let files = self.program.files();
        let sources = self.model.config.iter().chain(&self.inputs).chain(&files);
        let sources: Vec<_> = sources.map(PathBuf::as_path).collect();
        self.json.iter().try_for_each(|path| check_derived(path, &sources))
    }

    fn subject(&self) -> Result<Subject, CliError> {
        self.program.subject(&self.model, &self.weights, self.work)
    }

    /// What to compile for, by a process alone or by one of several ranks.
    fn target(&self, rank: Option<&Rank>) -> Result<Target, CliError> {
        let target = self.target.target_of(self.mode, ranks::number_here(rank))?;
        let target = target.shard_optimizer(self.shard_optimizer).collectives(self.exchange.collectives());
        let target = target.bf16_exchange(self.exchange.exchange() == Some(ExchangeType::Bf16));
        Ok(ranks::target(target, rank, self.target.chooses_threads()))
    }

    /// What has to be the same on every rank.
    fn facts(&self, subject: &Subject, target: &Target) -> Facts {
        let is_bf16 = self.exchange.exchange() == Some(ExchangeType::Bf16);
        let isa = target.instruction_set().map(|isa| isa.to_string()).ok();
        let model = subject.model().map(|model| json!([json!(model.config), model.batch]));
        vec![
            ("another instruction set", json!(isa)),
            ("another model", json!(model)),
            ("other flags", json!([self.mode.to_string(), self.target.products(), self.steps, self.warmup])),
            ("another exchange", json!([self.shard_optimizer, is_bf16])),
            self.exchange.fact(),
        ]
    }
}

/// A process alone, or the first of several ranks, shows what it has measured.
fn measured(args: &Args, rank: Option<&Rank>, screen: Option<&mut Screen>) -> Outcome {
    let made = || -> Result<_, CliError> {
        // One of several ranks writes.
        if screen.is_some() {
            args.check_json()?;
        }
        let subject = args.subject()?;
        let target = args.target(rank)?.start();
        // Before the program takes its memory.
        let peaks = target.peaks()?;
        let workload = Workload::new(args.work, target.clone(), None, &subject)?;
        let batches = Batches::new(&subject, args.work, args.inputs.as_deref())?;
        Ok((subject, target, peaks, workload, batches))
    };
    let (subject, target, peaks, mut workload, batches) =
        agreed(rank, made(), |(subject, target, ..)| args.facts(subject, target))?;
    let bar = match &screen {
        Some(_) => progress(args.warmup + args.steps, "{pos}/{len} steps, {eta} left"),
        None => ProgressBar::hidden(),
    };
    let (mut steps, mut times, mut reads, mut turns) = (vec![], vec![], vec![], vec![]);
    // Ranks begin their steps together: none has anything else to do.
    let meter = match rank {
        None => meter(&target, workload.program.kernels())?,
        Some(_) => None,
    };
    for step in 0..args.warmup + args.steps {
        let (kernels, time) = workload.step_by_kernels(&batches)?;
        if step >= args.warmup {
            steps.push(time.as_secs_f64());
            times.push(kernels);
            reads.extend(meter.as_ref().map(Meter::reads));
            turns.extend(meter.as_ref().filter(|_| time >= LONG).map(|meter| meter.peaks(TURN)));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let Some(screen) = screen else { return Ok(ExitCode::SUCCESS) };
    let peaks = medians(&turns).unwrap_or(peaks);
    let plans = workload.program.plans();
    let seconds =
        |kernel: usize| median(&times.iter().map(|times| times[kernel].as_secs_f64()).collect::<Vec<_>>());
    let groups = groups(&plans, seconds, (&peaks, wide(&target)));
    let (work, dtype, step) = (subject.work(args.work), args.target.products(), median(&steps));
    screen.line(format!(
        "{} {work}, {}, {dtype} products, medians of {}, {}",
        subject.name(),
        args.mode,
        counted(args.steps as usize, "step"),
        machine::place(&target)
    ));
    profile_table::show(&groups, (&peaks, wide(&target)), step, args.lines, screen);
    let prepared: usize = plans.iter().map(|plan| plan.preparation).sum();
    if prepared > 0 {
        let bytes: usize = plans.iter().map(|plan| plan.prepared_bytes()).sum();
        screen.line(format!(
            "before the first step: {} for {:.1} MiB of parameters",
            counted(prepared, "kernel"),
            mib(bytes)
        ));
    }
    let exchanged = rank.map(|rank| Exchanged::new(&plans, rank, &peaks, args.link, &groups));
    exchanged.iter().for_each(|exchanged| exchanged.show(step, screen));
    let moved: usize = groups.iter().map(|group| group.bytes).sum();
    let in_turn = (!reads.is_empty()).then(|| median(&reads));
    if let Some(reads) = in_turn {
        let rate = moved as f64 / step;
        screen.line(format!(
            "read in turn with the steps: {:.1} GB/s; a step's bytes, caches whole: {:.1}, {:.0} % of it",
            reads / 1e9,
            rate / 1e9,
            100.0 * rate / reads
        ));
    }
    if let Some(path) = &args.json {
        let mut each: BTreeMap<_, f64> = BTreeMap::new();
        each_run(&plans)
            .for_each(|(number, _, kernel)| *each.entry(&kernel.name).or_default() += seconds(number));
        let document = json!({
            "machine": machine::describe(&target),
            "preset": subject.name(), "work": work, "mode": args.mode.to_string(), "dtype": dtype,
            "device": args.target.device_name(), "threads": target.thread_count(), "steps": args.steps, "step_s": step,
            "bandwidth_bytes_per_s": peaks.bandwidth,
            "reads_bytes_per_s": peaks.reads, "reads_in_turn_bytes_per_s": in_turn,
            "f32_products_per_s": peaks.f32_products,
            "bf16_products_per_s": peaks.bf16_products,
            "int8_products_per_s": peaks.int8_products,
            "scalars_per_s": peaks.scalars,
            "ranks": exchanged,
            "kernels": groups,
            "each": each,
        });
        write_derived(path, &format!("{document:#}\n"), &[])?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Steps that take at least this long are worth measuring all rates in turn with them.
const LONG: Duration = Duration::from_millis(100);
/// How long each rate is measured in turn.
const TURN: Duration = Duration::from_millis(25);

/// The median of each rate.
fn medians(turns: &[Peaks]) -> Option<Peaks> {
    let of = |rate: fn(&Peaks) -> f64| median(&turns.iter().map(rate).collect::<Vec<_>>());
    (!turns.is_empty()).then(|| Peaks {
        bandwidth: of(|peaks| peaks.bandwidth),
        reads: of(|peaks| peaks.reads),
        f32_products: of(|peaks| peaks.f32_products),
        bf16_products: of(|peaks| peaks.bf16_products),
        int8_products: of(|peaks| peaks.int8_products),
        scalars: of(|peaks| peaks.scalars),
    })
}

/// What a CPU's kernels are compared with: a loop that reads as many bytes as they move, but 96 MiB at least and 512 MiB at most.
fn meter(target: &Target, graph: &KernelGraph) -> Result<Option<Meter>, CliError> {
    const LEAST: usize = 96 << 20;
    const MOST: usize = 512 << 20;
    let moved: usize = graph.kernels.iter().map(|kernel| graph.bytes_moved(kernel)).sum();
    Ok(target.meter(moved.clamp(LEAST, MOST)).map_err(kernfusion_lm::Error::from)?)
}

/// Rates, and what products of `f32` are called.
pub(crate) type Rates<'a> = (&'a Peaks, &'static str);

fn wide(target: &Target) -> &'static str {
    if target.f32_product_kind().is_ok_and(|kind| kind == F32Products::Tf32) { "tf32" } else { "f32" }
}

/// The kernels of every run, with the number of each among all kernels of all plans.
fn each_run<'p>(plans: &'p [&Plan]) -> impl Iterator<Item = (usize, &'p KernelGraph, &'p Kernel)> {
    let kernels = plans.iter().flat_map(|plan| {
        let kernels = plan.graph.kernels.iter().enumerate();
        kernels.map(move |(at, kernel)| (at >= plan.preparation, &plan.graph, kernel))
    });
    let kernels = kernels.enumerate().filter(|(_, (runs, ..))| *runs);
    kernels.map(|(number, (_, graph, kernel))| (number, graph, kernel))
}

/// Kernels that are equal but for the layer, the most time first.
fn groups(plans: &[&Plan], seconds: impl Fn(usize) -> f64, rates: Rates<'_>) -> Vec<Group> {
    let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
    for (number, graph, kernel) in each_run(plans) {
        let (name, shape) = (folded(&kernel.name), shape(kernel));
        let (peaks, wide) = rates;
        let Floor { seconds: floor_s, bound } = floor(graph, kernel, peaks, wide);
        let bytes = graph.bytes_moved(kernel);
        let group = groups.entry((name.clone(), shape.clone())).or_insert_with(|| Group {
            name,
            shape,
            form: kernel.form.name(),
            bound,
            ..Group::default()
        });
        group.count += 1;
        group.seconds += seconds(number);
        group.floor_s += floor_s;
        group.bytes += bytes;
        group.operations += kernel.operations();
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.name.cmp(&b.name)));
    groups
}

/// What a rank exchanges in a step.
#[derive(Serialize)]
struct Exchanged {
    ranks: usize,
    collectives: usize,
    exchanges: usize,
    messages: usize,
    bytes_sent: usize,
    /// Seconds of collectives: what the step waits for exchanges, and adds up itself.
    not_hidden_s: f64,
    /// What `explain` says of a link, with floors at the share of this rank's time that was measured.
    predicted: Option<PredictedExchange>,
}

#[derive(Serialize)]
struct PredictedExchange {
    link_bytes_per_s: f64,
    link_latency_s: f64,
    communication_s: f64,
    not_hidden_s: f64,
    step_s: f64,
}

impl Exchanged {
    fn new(plans: &[&Plan], rank: &Rank, peaks: &Peaks, link: Option<Link>, groups: &[Group]) -> Self {
        let sum = |is_exchange: bool, of: fn(&Group) -> f64| -> f64 {
            groups.iter().filter(|group| (group.form == "collective") == is_exchange).map(of).sum()
        };
        let efficiency = sum(false, |group| group.floor_s) / sum(false, |group| group.seconds);
        let machine = Machine { peaks: *peaks, efficiency: efficiency.clamp(f64::MIN_POSITIVE, 1.0) };
        let plans: Vec<_> = plans.iter().map(|&plan| (plan, 1)).collect();
        let nothing = Link { bandwidth: f64::INFINITY, latency: 0.0 };
        let time = StepTime::new(&plans, &machine, &link.unwrap_or(nothing));
        let predicted = link.map(|link| PredictedExchange {
            link_bytes_per_s: link.bandwidth,
            link_latency_s: link.latency,
            communication_s: time.communication,
            not_hidden_s: (1.0 - time.hidden_share()) * time.communication,
            step_s: time.seconds(),
        });
        let StepTime { collectives, exchanges, messages, bytes_sent, .. } = time;
        let not_hidden_s = sum(true, |group| group.seconds);
        Exchanged {
            ranks: rank.ranks(),
            collectives,
            exchanges,
            messages,
            bytes_sent,
            not_hidden_s,
            predicted,
        }
    }

    fn show(&self, step: f64, screen: &mut Screen) {
        let Exchanged { ranks, collectives, exchanges, messages, bytes_sent, not_hidden_s, predicted } = self;
        let sent = grouped(*bytes_sent as u64);
        screen.line(format!(
            "rank 0 of {ranks}: {collectives} collectives in {exchanges} exchanges, {messages} messages, {sent} B sent"
        ));
        screen.line(format!(
            "exchange that nothing hid: {:.2} ms, {:.1} % of the step",
            1e3 * not_hidden_s,
            100.0 * not_hidden_s / step
        ));
        if let Some(PredictedExchange { communication_s, not_hidden_s, step_s, .. }) = predicted {
            screen.line(format!(
                "predicted of this link: {:.2} ms, of {:.2} ms of exchange; step {:.2} ms",
                1e3 * not_hidden_s,
                1e3 * communication_s,
                1e3 * step_s
            ));
        }
    }
}

/// A name with * for the numbers in its module path, without the number that makes it unique.
pub(super) fn folded(name: &str) -> String {
    let name = name.split('#').next().unwrap_or_default();
    let (path, ops) = name.rsplit_once('/').unwrap_or(("", name));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<_> = path.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    if path.is_empty() { ops.into() } else { format!("{}/{ops}", parts.join(".")) }
}

/// `batch x m x n, k` of a product, rows and columns of other kernels.
pub(super) fn shape(kernel: &Kernel) -> String {
    let domain = &kernel.domain;
    let [outer, rows, columns] = [domain.outer_axes(), domain.row_axes(), domain.column_axes()]
        .map(|axes| domain.axes[axes].iter().product::<usize>());
    let batch = if outer > 1 { format!("{outer}x") } else { String::new() };
    let length = |product: &Product| product.k.iter().product::<usize>();
    match kernel.products().first() {
        Some(product) => format!("{batch}{rows}x{}x{columns}", length(product)),
        None if kernel.form == Form::Map => format!("{}", outer * rows * columns),
        None => format!("{batch}{rows}x{columns}"),
    }
}

#[cfg(test)]
mod tests {
    use super::folded;

    #[test]
    fn layers_fold_into_one_name() {
        assert_eq!(folded("blocks.3.attn.qkv/dot_general+cast#2"), "blocks.*.attn.qkv/dot_general+cast");
        assert_eq!(folded("optimizer/mul#12"), "optimizer/mul");
        assert_eq!(folded("add+reduce"), "add+reduce");
    }
}
