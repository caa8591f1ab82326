//! `kernfusion profile --device cuda --model CARD`: what kernels take on a card that is not here, by a model from their machine code.

use crate::Outcome;
use crate::common::destination::write_derived;
use crate::common::error::CliError;
use crate::common::screen::{Screen, grouped, mib};
use crate::common::subject::Subject;
use crate::measurement::profile::{Args, folded, shape};
use crate::measurement::profile_table::shortened;
use kernfusion::compile::{Stages, Target};
use kernfusion_cuda::model::{CARDS, Card, Estimate, LAUNCH_GAP, Model as CardModel, Step};
use kernfusion_cuda::{Cache, Function, Options, Renderer, accepts};
use kernfusion_ir::kernel::{Form, Kernel, KernelGraph, Plan};
use kernfusion_passes::MemoryStrategy;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Columns of the last column, the names.
const NAME: usize = 31;

/// Launches that are equal but for the layer; times, bytes and operations are their sums, everything else is of the one that takes most.
#[derive(Debug, Default, Serialize)]
struct Line {
    name: String,
    shape: String,
    function: String,
    family: &'static str,
    count: usize,
    seconds: f64,
    bound: &'static str,
    /// Seconds that each part of the card needs, of the launch that takes longest.
    bounds: BTreeMap<&'static str, f64>,
    registers: usize,
    static_shared_bytes: usize,
    dynamic_shared_bytes: usize,
    /// Bytes of a thread's memory: spilled registers, arrays that are no registers.
    local_bytes: usize,
    threads: usize,
    blocks: usize,
    blocks_per_multiprocessor: usize,
    waves: f64,
    bytes: usize,
    tensor_operations: f64,
    tensor_instructions: f64,
    instructions_beside_each: Option<f64>,
    loads_in_flight: usize,
    /// How often accesses of shared memory need its banks, against what they would without conflicts.
    bank_conflicts: Option<f64>,
    /// Branches of a warp that depend on what is in memory, for which the model assumes that the work is done.
    assumed_branches: f64,
    /// Whether all of a warp's instructions were counted; else times are lower bounds.
    is_whole: bool,
    #[serde(skip)]
    longest: f64,
}

pub(super) fn run(args: &Args, subject: &Subject, card: &str, screen: &mut Screen) -> Outcome {
    let tf32 = args.target.of_modelled_card()?;
    let names = || CARDS.map(|card| card.name).join(", ");
    let card = Card::named(card)
        .ok_or_else(|| CliError::Usage(format!("the model knows no card {card}, but {}", names())))?;
    let plan = planned(args, subject)?;
    let mut renderer = Renderer::new(Options { tf32, ..Options::of(card.architecture) });
    let program = renderer.program(&plan).map_err(kernfusion_lm::Error::from)?;
    let steps = CardModel { card, cache: Cache::of_user() }.steps(&program, renderer.functions())?;
    let lines = lines(card, &plan.graph, &steps, renderer.functions());
    let (work, dtype) = (subject.work(args.work), args.target.products());
    let step: f64 = lines.iter().map(|line| line.seconds).sum();
    screen.line(format!(
        "{} {work}, {}, {dtype} products, on paper: a model of {}, not a measurement",
        subject.name(),
        args.mode,
        card.title
    ));
    show(&lines, args.lines, screen);
    let rate = subject.tokens(args.work).map(|tokens| tokens as f64 / step);
    screen.line(format!(
        "\nstep {:.1} ms, of which {:.1} between {} launches{}",
        1e3 * step,
        1e3 * LAUNCH_GAP * steps.len() as f64,
        grouped(steps.len() as u64),
        rate.map_or(String::new(), |rate| format!("; {} tokens/s", grouped(rate as u64)))
    ));
    if let Some(path) = &args.json {
        let document = json!({
            "preset": subject.name(), "work": work, "mode": args.mode.to_string(), "dtype": dtype, "device": "cuda",
            "model": card.name, "title": card.title, "is_measured": false,
            "step_ms": 1e3 * step, "tokens_per_s": rate, "launches": steps.len(),
            "kernels": lines,
        });
        write_derived(path, &format!("{document:#}\n"), &[])?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The plan that a GPU would run, of the whole batch at once.
fn planned(args: &Args, subject: &Subject) -> Result<Plan, CliError> {
    let target = Target::cpu().mode(args.mode).precision(args.target.precision());
    let stages = Stages::of_gpu(&target, MemoryStrategy { microbatches: 1, recompute: false }, accepts);
    let mut graph = subject.program(args.work, args.target.precision())?;
    stages.simplify(&mut graph, None, &mut |_, _| {})?;
    Ok(stages.plan(stages.fuse(&graph)?))
}

/// What a kernel is in the sums by families.
fn family(kernel: Option<&Kernel>) -> &'static str {
    let Some(kernel) = kernel else { return "copy" };
    match &kernel.form {
        Form::Contraction(contraction) if !contraction.consumers.is_empty() => "chain",
        Form::Contraction(_) => "product",
        form => form.name(),
    }
}

/// Equal launches of several layers together, the most time first.
fn lines(card: &Card, graph: &KernelGraph, steps: &[Step], functions: &[Function]) -> Vec<Line> {
    let mut lines: BTreeMap<[String; 3], Line> = BTreeMap::new();
    for Step { kernels, function, estimate } in steps {
        let kernel = kernels.first().map(|kernel| &graph.kernels[*kernel]);
        let name = kernel.map_or("copies and fills".into(), |kernel| folded(&kernel.name));
        let more = kernels.len().saturating_sub(1);
        let name = if more > 0 { format!("{name} and {more} more") } else { name };
        let function =
            function.map_or(String::new(), |function| unnumbered(&functions[function].name).into());
        let shape = kernel.map_or(String::new(), shape);
        let key = [name.clone(), shape.clone(), function.clone()];
        let line = lines.entry(key).or_insert_with(|| Line {
            name,
            shape,
            function,
            family: family(kernel),
            is_whole: true,
            ..Line::default()
        });
        line.add(estimate, card);
    }
    let mut lines: Vec<_> = lines.into_values().collect();
    lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.function.cmp(&b.function)));
    lines
}

/// A function's name without the number that makes it unique.
fn unnumbered(name: &str) -> &str {
    let short = name.trim_end_matches(|c: char| c.is_ascii_digit());
    short.strip_suffix('_').unwrap_or(name)
}

impl Line {
    fn add(&mut self, estimate: &Estimate, card: &Card) {
        self.count += 1;
        self.seconds += estimate.seconds;
        self.bytes += estimate.work.bytes as usize;
        self.tensor_operations += estimate.operations;
        self.tensor_instructions += estimate.products;
        self.is_whole &= estimate.is_whole;
        self.local_bytes = self.local_bytes.max(estimate.resources.local);
        if estimate.seconds <= self.longest {
            return;
        }
        self.longest = estimate.seconds;
        self.bound = estimate.bound.name();
        self.bounds = BTreeMap::new();
        for (bound, seconds) in estimate.work.bounds(card) {
            let longest = self.bounds.entry(bound.name()).or_default();
            *longest = longest.max(seconds);
        }
        self.registers = estimate.resources.registers;
        self.static_shared_bytes = estimate.resources.static_shared;
        self.dynamic_shared_bytes = estimate.resources.dynamic_shared;
        self.threads = estimate.work.threads;
        self.blocks = estimate.work.blocks;
        self.blocks_per_multiprocessor = estimate.work.resident;
        self.waves = estimate.work.waves(card);
        self.instructions_beside_each = estimate.beside;
        self.loads_in_flight = estimate.in_flight;
        self.bank_conflicts = estimate.conflicts;
        self.assumed_branches = estimate.assumed;
    }
}

/// Writes the launches (at most `most`, if not 0) and the families.
fn show(lines: &[Line], most: usize, screen: &mut Screen) {
    let total: f64 = lines.iter().map(|line| line.seconds).sum();
    screen.line(format!(
        "\n{:>8} {:>5} {:<7} {:>4} {:>4} {:>3} {:>5} {:>5} {:>4} {:>4} {:>5} {:<3} {}",
        "ms",
        "share",
        "bound",
        "regs",
        "KiB",
        "blk",
        "waves",
        "/HMMA",
        "lds",
        "bank",
        "count",
        "",
        "launches, rows x k x columns"
    ));
    let shown = if most == 0 { lines.len() } else { most };
    for line in lines.iter().take(shown) {
        let name = shortened(&line.name, NAME.saturating_sub(line.shape.len() + 1));
        let optional = |number: Option<f64>| number.map_or(String::new(), |number| format!("{number:.1}"));
        let shared = (line.static_shared_bytes + line.dynamic_shared_bytes) as f64 / 1024.0;
        let marks = [(line.local_bytes > 0, 'L'), (line.assumed_branches > 0.0, 'A'), (!line.is_whole, 'C')];
        let marks: String = marks.into_iter().map(|(is, mark)| if is { mark } else { ' ' }).collect();
        screen.line(format!(
            "{:>8.3} {:>4.1}% {:<7} {:>4} {:>4.0} {:>3} {:>5.1} {:>5} {:>4} {:>4} {:>5} {marks} {name} {}",
            1e3 * line.seconds,
            100.0 * line.seconds / total,
            line.bound,
            line.registers,
            shared,
            line.blocks_per_multiprocessor,
            line.waves,
            optional(line.instructions_beside_each),
            line.loads_in_flight,
            optional(line.bank_conflicts),
            line.count,
            line.shape
        ));
    }
    if lines.len() > shown {
        let rest = &lines[shown..];
        let seconds: f64 = rest.iter().map(|line| line.seconds).sum();
        screen.line(format!(
            "{:>8.3} {:>4.1}% {} more lines (--lines 0 shows all)",
            1e3 * seconds,
            100.0 * seconds / total,
            rest.len()
        ));
    }
    screen.line(format!(
        "\n{:>8} {:>5} {:>8} {:>10} {:>8}  family",
        "ms", "share", "launches", "moved MiB", "TFLOP/s"
    ));
    for family in ["product", "chain", "reduce", "map", "loop", "copy"] {
        sums(family, &lines.iter().filter(|line| line.family == family).collect::<Vec<_>>(), total, screen);
    }
    sums("all", &lines.iter().collect::<Vec<_>>(), total, screen);
}

/// The sums of a family; TFLOP/s are those of tensor cores.
fn sums(name: &str, lines: &[&Line], total: f64, screen: &mut Screen) {
    let sum = |of: fn(&Line) -> f64| lines.iter().map(|line| of(line)).sum::<f64>();
    let count: usize = lines.iter().map(|line| line.count).sum();
    if count == 0 {
        return;
    }
    let (seconds, operations) = (sum(|line| line.seconds), sum(|line| line.tensor_operations));
    let rate = if operations > 0.0 { format!("{:.0}", operations / seconds / 1e12) } else { String::new() };
    let bytes = lines.iter().map(|line| line.bytes).sum();
    screen.line(format!(
        "{:>8.3} {:>4.1}% {:>8} {:>10.1} {rate:>8}  {name}",
        1e3 * seconds,
        100.0 * seconds / total,
        grouped(count as u64),
        mib(bytes)
    ));
}
