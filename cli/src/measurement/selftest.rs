//! `kernfusion selftest`: this machine's results against the reference evaluator's.

use super::fuzz;
use crate::Outcome;
use crate::common::error::CliError;
use crate::common::machine;
use crate::common::model::TargetArgs;
use crate::common::screen::{Screen, progress};
use indicatif::ProgressBar;
use kernfusion::WeightType;
use kernfusion::compile::{
    Bf16Products, F32Products, MemoryStrategy, Mode, Precision as ProductType, Stages, Target, Tensors,
    execute,
};
use kernfusion::models::{self, Chunk, ModelConfig};
use kernfusion::optim::Optimizer;
use kernfusion::trace::Trace;
use kernfusion::{Error, HostTensor, Result};
use kernfusion_ir::evaluate::{Array, Precision, evaluate};
use kernfusion_ir::random::element_bits;
use kernfusion_ir::samples::{self, Sample, difference};
use kernfusion_ir::{Builder, DType, DotGeneral, Graph, InputRole, Origin, TensorType};
use kernfusion_lm::train::batches;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How far a random program may be off: it has tens of operations in a row.
const RANDOM_TOLERANCE: f64 = 1e-4;

/// How far the numbers of a training step may be off, whose sums have thousands of terms.
const STEP_TOLERANCE: f64 = 2e-4;

/// Of anything with products of `bf16` or TF32: a value near the middle between two may be rounded either way, and sums follow.
const NARROW_TOLERANCE: f64 = 1e-2;

/// Of sums in fixed point, by the root of their terms: six standard deviations of what rounding both factors of each term, of numbers up to 1, to
/// multiples of 1/4,095 adds.
const FIXED_TOLERANCE: f64 = 3.5e-4;

/// The same of products of `bf16`: the evaluator rounds factors to it, which fixed point does not, where the conversion is fused.
const FIXED_BF16_TOLERANCE: f64 = 4.2e-3;

/// Compare this machine's results with the reference evaluator: every op on every dtype, random programs, and a small
/// training step of each kind of model, a part of a text after another one, in eager and in compiled mode
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion selftest
  kernfusion selftest --programs 10000 --seed 1 --keep findings")]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Random programs
    #[arg(long, value_name = "N", default_value_t = 50)]
    random: u64,
    /// Seed of all numbers; of programs, the first one
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Instead of all that: N random programs at scale with everything that must hold of them, on the CPU. Each has a seed of its own,
    /// the numbers from --seed on
    #[arg(long, value_name = "N", conflicts_with_all = OF_CASES)]
    programs: Option<u64>,
    /// Stop after T seconds, even if programs are left
    #[arg(long, value_name = "T", requires = "programs", conflicts_with_all = OF_CASES)]
    seconds: Option<u64>,
    /// Write the findings and the counts of --programs to this file
    #[arg(long, value_name = "FILE.json", requires = "programs", conflicts_with_all = OF_CASES)]
    json: Option<PathBuf>,
    /// Directory for what is found: for each, the smallest program that shows it
    #[arg(long, value_name = "DIR", requires = "programs", conflicts_with_all = OF_CASES)]
    keep: Option<PathBuf>,
    /// Processes that judge programs at a time [default: one for each core]
    #[arg(long, value_name = "N", requires = "programs", conflicts_with_all = OF_CASES, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Judge the programs of the seeds that come in
    #[arg(long, hide = true, requires = "programs")]
    worker: bool,
    /// Leave out products that no cache holds, or that fill a GPU: an emulator takes minutes for them
    #[arg(long)]
    small: bool,
    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only a part of the cases, such as 2/4: every fourth from the second on, so that processes may share them
    #[arg(long, value_name = "I/N", value_parser = share)]
    share: Option<(usize, usize)>,
    /// Show every case that fails, not only the first of a group
    #[arg(long)]
    verbose: bool,
}

/// Flags of cases that are there; with them clap does not ask for --programs.
const OF_CASES: [&str; 6] = ["random", "small", "filter", "share", "verbose", "device"];

/// A program with its inputs, and how far an execution may be off.
struct Case {
    group: String,
    name: String,
    graph: Graph,
    inputs: Tensors,
    tolerance: f64,
    /// Terms of its longest sum, of a large product.
    terms: usize,
}

/// Which part of how many.
fn share(text: &str) -> std::result::Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
    let is_part = |&(part, of): &(usize, usize)| (1..=of).contains(&part);
    numbers.filter(is_part).ok_or_else(|| "two numbers such as 2/4, the first from 1 to the second".into())
}

/// What became of a group.
#[derive(Default)]
struct Verdict {
    /// Cases that were run, in all modes.
    run: usize,
    failures: Vec<String>,
    /// Why nothing can be run any more.
    lost: Option<Error>,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    if args.worker {
        return fuzz::work(args.keep.as_deref());
    }
    if let Some(count) = args.programs {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = args.jobs.map_or_else(cores, usize::from);
        let limit = args.seconds.map(Duration::from_secs);
        let Args { seed: first, json, keep, .. } = args;
        return fuzz::run(&fuzz::Request { first, count, limit, jobs, json, keep }, screen);
    }
    let targets = [args.target.target(Mode::Eager)?.start(), args.target.target(Mode::Compiled)?.start()];
    let mut cases = cases(&args)?;
    if let Some(filter) = &args.filter {
        cases.retain(|case| case.name.contains(filter));
        if cases.is_empty() {
            return Err(CliError::Usage(format!("no case has a name that contains {filter:?}")));
        }
    }
    // What multiplies no bytes was judged with products of f32.
    cases.retain(|case| targets[1].check_products(&case.graph).is_ok());
    if let Some((part, of)) = args.share {
        let mut number = 0..;
        cases.retain(|_| number.next().is_some_and(|number| number % of == part - 1));
    }
    let all = cases.len() * targets.len();
    screen.line(format!(
        "{} cases on {}, with {} products",
        cases.len(),
        machine::place(&targets[1]),
        args.target.products()
    ));
    let bar = progress(cases.len() as u64, "{pos}/{len} {msg}");
    let (mut passed, mut failed, mut lost) = (0, 0, None);
    for group in cases.chunk_by(|a, b| a.group == b.group) {
        let verdict = judge(group, &targets, &bar);
        passed += verdict.run - verdict.failures.len();
        failed += verdict.failures.len();
        bar.suspend(|| show(&group[0].group, &verdict, args.verbose, screen));
        lost = verdict.lost;
        if lost.is_some() {
            break;
        }
    }
    bar.finish_and_clear();
    if let Some(error) = lost {
        let left = all - passed - failed;
        screen.line(format!("the device is lost ({error}), and {left} cases were not run"));
    }
    screen.line(format!("{passed} passed, {failed} failed"));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(group: &str, verdict: &Verdict, is_verbose: bool, screen: &mut Screen) {
    let Verdict { run, failures, .. } = verdict;
    let result = if failures.is_empty() { "ok".into() } else { format!("{} FAILED", failures.len()) };
    screen.line(format!("{group:<24} {run:>5} cases  {result}"));
    let shown = if is_verbose { failures.len() } else { 1 };
    failures.iter().take(shown).for_each(|failure| screen.line(format!("    {failure}")));
}

/// Runs a group, up to a case after which nothing can be run any more.
fn judge(group: &[Case], targets: &[Target], bar: &ProgressBar) -> Verdict {
    let mut verdict = Verdict::default();
    for case in group {
        bar.set_message(case.name.clone());
        for (target, mode) in targets.iter().zip([Mode::Eager, Mode::Compiled]) {
            let found = failure(case, target);
            verdict.run += 1;
            let Some(reason) = found else { continue };
            verdict.failures.push(format!("{} ({mode}): {}", case.name, reason.replace('\n', " ")));
            if let Err(error) = target.check() {
                return Verdict { lost: Some(error), ..verdict };
            }
        }
        bar.inc(1);
    }
    verdict
}

/// Everything that is compared, groups together.
fn cases(args: &Args) -> Result<Vec<Case>> {
    let sample = |Sample { name, graph, inputs, tolerance, .. }| {
        let group = name.split('.').next().unwrap_or_default().to_string();
        Case { group, name, graph, inputs, tolerance, terms: 0 }
    };
    let mut cases: Vec<_> = samples::all(args.seed).into_iter().map(sample).collect();
    for number in 0..args.random {
        let (graph, inputs) = samples::random_graph(args.seed.wrapping_add(number), 24);
        let name = format!("random program {number}");
        cases.push(Case {
            group: "random programs".into(),
            name,
            graph,
            inputs,
            tolerance: RANDOM_TOLERANCE,
            terms: 0,
        });
    }
    for (name, config) in models::samples() {
        cases.push(training_step(args.seed, name, &config)?);
        for stored in [WeightType::F32, WeightType::BF16, WeightType::Int8] {
            cases.extend(continuation(args.seed, name, &config, stored)?);
        }
    }
    for (name, config) in models::wide_samples() {
        for stored in WeightType::ALL {
            cases.extend(continuation(args.seed, name, &config, stored)?);
        }
    }
    let large = match args.target.device_name() {
        _ if args.small => &[][..],
        "cpu" => &LARGE_PRODUCTS,
        _ => &LARGE_PRODUCTS_OF_GPUS,
    };
    for product in large {
        cases.push(large_product(args.seed, *product)?);
    }
    cases.sort_by(|a, b| a.group.cmp(&b.group));
    Ok(cases)
}

/// Rows, columns, length of the sums, and the axis that is summed in both factors: products too large for a cache. How they are divided into
/// blocks depends on the machine.
const LARGE_PRODUCTS: [(usize, usize, usize, usize); 3] =
    [(110, 600, 6_000, 1), (40, 18, 30_000, 0), (96, 1_024, 160, 1)];

/// The same for GPUs, with enough tiles that the lowering chooses large ones, which warpgroups compute where the card has them: both operands
/// contiguous along the sum, both along their rows, a sum that ends within a step, a sum in parts.
const LARGE_PRODUCTS_OF_GPUS: [(usize, usize, usize, usize); 4] =
    [(2_048, 2_048, 96, 1), (2_048, 2_048, 96, 0), (1_300, 1_500, 104, 1), (512, 1_024, 4_096, 0)];

/// One of the large products.
fn large_product(seed: u64, (rows, columns, k, summed): (usize, usize, usize, usize)) -> Result<Case> {
    let mut graph = Graph::default();
    let mut builder = Builder::new(&mut graph, Origin::default());
    let mut factor = |name: &str, outer: usize| {
        let shape = if summed == 0 { [k, outer] } else { [outer, k] };
        builder.input(name, InputRole::State, TensorType::new(DType::F32, shape))
    };
    let factors = [factor("a", rows)?, factor("b", columns)?];
    let dot = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![summed],
        rhs_contract: vec![summed],
        dtype: DType::F32,
    };
    let product = builder.op(dot, &factors)?;
    graph.output("product", product);
    let mut inputs = Tensors::new();
    for (number, (id, name, _)) in (1..).zip(graph.inputs()) {
        let number =
            |at: u64| f64::from(element_bits(seed as u32, number, 0, at)) / f64::from(1_u32 << 31) - 1.0;
        let values: Vec<_> = (0..graph[id].ty.elements() as u64).map(number).collect();
        inputs.insert(name.into(), HostTensor::from_f64(&graph[id].ty, &values));
    }
    let name = format!("large product: {rows} x {k} x {columns}");
    Ok(Case { group: "large product".into(), name, graph, inputs, tolerance: STEP_TOLERANCE, terms: k })
}

/// A step of AdamW on a small model: loss, norm of the gradient, and every new parameter and moment.
fn training_step(seed: u64, name: &str, config: &ModelConfig) -> Result<Case> {
    let step = config.train_step(3, &Optimizer::adamw(1e-2), Some(1.0))?;
    let (count, words) = (3 * config.context() as u64, config.vocabulary() - config.marks());
    let token = |at: u64| (element_bits(seed as u32, 0, 0, at) as usize % words) as i32;
    let windows = ((0..count).map(token).collect(), (count..2 * count).map(token).collect());
    let data = batches::inputs(config, windows, 3, seed, 0).into_iter();
    let mut inputs: BTreeMap<_, _> = data.map(|(name, tensor)| (name.to_string(), tensor)).collect();
    inputs.extend(step.scalars(3, 1e-2, seed).into_iter().map(|(name, scalar)| (name.into(), scalar)));
    inputs.extend(step.program.initial_parameters(seed));
    let graph = step.program.graph;
    // Moments as after some steps: Adam divides by the root of the second one.
    add_states(&graph, &mut inputs, 1e-3..2e-3, seed);
    let name = format!("training step: {name}");
    Ok(Case { group: "training step".into(), name, graph, inputs, tolerance: STEP_TOLERANCE, terms: 0 })
}

/// A chunk of two tokens after three that caches hold: logits, and what is in the caches then. None of models without them.
/// Matrices and caches are kept as `stored`.
fn continuation(seed: u64, name: &str, config: &ModelConfig, stored: WeightType) -> Result<Option<Case>> {
    let chunk = Chunk { length: 2, visible: config.context(), capacity: config.context() };
    let trace = Trace::new();
    trace.store_matrices(stored);
    let Some(program) = config.continuation(&trace, 3, chunk)? else { return Ok(None) };
    let words = config.vocabulary() as u32;
    let tokens: Vec<_> = (0..6).map(|at| (element_bits(seed as u32, 0, 0, at) % words) as i32).collect();
    let scalar = |value: i32| HostTensor::new([], vec![value]);
    let data = [("x", HostTensor::new([3, 2], tokens)), ("position", scalar(3)), ("last", scalar(1))];
    let mut inputs: BTreeMap<_, _> = data.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect();
    inputs.extend(program.initial_parameters(seed));
    add_states(&program.graph, &mut inputs, -1.0..1.0, seed);
    let (group, name) = ("continuation".into(), format!("continuation: {name}, kept as {stored}"));
    let tolerance = if stored == WeightType::F32 { STEP_TOLERANCE } else { NARROW_TOLERANCE };
    Ok(Some(Case { group, name, graph: program.graph, inputs, tolerance, terms: 0 }))
}

/// Numbers of a range for every state that has none.
fn add_states(graph: &Graph, inputs: &mut Tensors, range: Range<f64>, seed: u64) {
    for (id, name, role) in graph.inputs() {
        if role == InputRole::State && !inputs.contains_key(name) {
            let share = |at: u64| f64::from(element_bits(seed as u32, 1, 0, at)) / f64::from(u32::MAX);
            let number = |at: u64| range.start + (range.end - range.start) * share(at);
            let values: Vec<_> = (0..graph[id].ty.elements() as u64).map(number).collect();
            inputs.insert(name.into(), HostTensor::from_f64(&graph[id].ty, &values));
        }
    }
}

/// What is wrong with a case on a target, if anything. With products of bf16 or of int8, the evaluator is given the program with
/// its conversions.
fn failure(case: &Case, target: &Target) -> Option<String> {
    let is_narrow = target.product_type() != ProductType::F32;
    let mut graph = case.graph.clone();
    let stages = Stages::new(target, MemoryStrategy::NONE);
    let count = if is_narrow { None } else { Some(0) };
    if let Err(error) = stages.simplify(&mut graph, count, &mut |_, _| {}) {
        return Some(error.to_string());
    }
    let expected = match evaluate(&graph, &case.inputs, Precision::Declared) {
        Ok(expected) => expected,
        Err(error) => return Some(format!("the reference evaluator: {error}")),
    };
    let kind = target.f32_product_kind().unwrap_or_default();
    let rounds = is_narrow || matches!(kind, F32Products::Tf32 | F32Products::X3 | F32Products::Fixed);
    let of_term = match (kind, target.bf16_product_kind().unwrap_or_default()) {
        (_, Bf16Products::Fixed) => FIXED_BF16_TOLERANCE,
        (F32Products::Fixed, _) => FIXED_TOLERANCE,
        _ => 0.0,
    };
    let of_sums = of_term * (case.terms as f64).sqrt();
    let tolerance = if rounds { case.tolerance.max(NARROW_TOLERANCE).max(of_sums) } else { case.tolerance };
    match execute(&case.graph, &case.inputs, target) {
        Ok(results) => expected.iter().find_map(|(name, array)| compare(name, array, &results, tolerance)),
        Err(error) => Some(error.to_string()),
    }
}

fn compare(name: &str, expected: &Array, results: &Tensors, tolerance: f64) -> Option<String> {
    let found = results.get(name).filter(|tensor| tensor.ty() == expected.ty);
    let Some(found) = found else { return Some(format!("output {name} is missing or of another type")) };
    // Whole numbers and truth values are never nearly right.
    let tolerance = if matches!(expected.ty.dtype, DType::I32 | DType::U32 | DType::I8 | DType::Bool) {
        0.0
    } else {
        tolerance
    };
    difference(&expected.values, &found.to_f64(), tolerance).map(|reason| format!("output {name}, {reason}"))
}
