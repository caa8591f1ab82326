//! `kernfusion profile`: each kernel's time beside its floor.
//!
//! The floor is the time below which a kernel cannot fall on this CPU or GPU: its bytes over the measured bandwidth, its
//! products over the measured peak, or its other arithmetic over half of the peak of `f32`: the longest of the three. Bytes are
//! the fewest that have to move; a kernel that finds its operands in a cache can be faster than its floor.

use crate::common::destination::write_derived;
use crate::common::machine;
use crate::common::model::{ModelArgs, TargetArgs, WeightsArgs, Work};
use crate::common::screen::{Screen, progress};
use crate::common::workload::{Workload, median, synthetic_tokens, windows};
#[cfg(feature = "cuda")]
use crate::measurement::modelled;
use crate::measurement::profile_table::{self, Group};
use crate::{CliError, Outcome};
use kernfusion::compile::{F32Products, Mode, Target};
use kernfusion::roofline::{Floor, floor};
use kernfusion_codegen::Peaks;
use kernfusion_cpu::MemoryMeter;
use kernfusion_ir::kernel::{Form, Kernel, KernelGraph, Product};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show each kernel's time beside its floor
///
/// The floor is the longest of: bytes over bandwidth, products over the peak of the matrix kernels, other arithmetic over
/// half of that of f32; all measured on this machine first. Equal kernels stand in one line, with * for the layer's number.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion profile --preset tiny
  kernfusion profile --preset thesis --dtype bf16 --steps 3 --json profile.json
  kernfusion profile --preset thesis --device cuda
  kernfusion profile --preset gpt2-small --dtype bf16 --device cuda --model h200")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) model: ModelArgs,
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
    /// Lines shown at most; 0: all
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub(super) lines: usize,
    /// Write all of it as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let model = args.model.resolve()?.keeping(&args.weights, args.work)?;
    #[cfg(feature = "cuda")]
    if let Some(card) = &args.card {
        return modelled::run(&args, &model, card, screen);
    }
    #[cfg(not(feature = "cuda"))]
    if args.card.is_some() {
        return Err(kernfusion_cuda::CudaError::NotBuilt.into());
    }
    let target = args.target.target(args.mode)?;
    // Before the program takes its memory.
    let peaks = target.peaks()?;
    let mut workload = Workload::new(args.mode, args.work, &args.target, None, &model)?;
    let tokens = synthetic_tokens(&model)?;
    let windows = windows(&model, &tokens)?;
    let bar = progress(args.warmup + args.steps, "{pos}/{len} steps, {eta} left");
    let (mut steps, mut times, mut reads) = (vec![], vec![], vec![]);
    let meter = meter(&target, workload.program.kernels())?;
    for step in 0..args.warmup + args.steps {
        let (kernels, time) = workload.step_by_kernels(&windows)?;
        if step >= args.warmup {
            steps.push(time.as_secs_f64());
            times.push(kernels);
            reads.extend(meter.as_ref().map(MemoryMeter::reads));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let seconds =
        |kernel: usize| median(&times.iter().map(|times| times[kernel].as_secs_f64()).collect::<Vec<_>>());
    let groups = groups(workload.program.kernels(), seconds, (&peaks, wide(&target)));
    let (work, dtype, step) = (args.work.name(), args.target.products(), median(&steps));
    screen.line(format!(
        "{} {work}, {}, {dtype} products, medians of {} steps, {}",
        model.preset,
        args.mode,
        args.steps,
        machine::place(&target)
    ));
    profile_table::show(&groups, (&peaks, wide(&target)), step, args.lines, screen);
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
        let kernels = workload.program.kernels().kernels.iter().enumerate();
        let each: BTreeMap<_, _> = kernels.map(|(number, kernel)| (&kernel.name, seconds(number))).collect();
        let document = json!({
            "machine": machine::describe(&target),
            "preset": model.preset, "work": work, "mode": args.mode.to_string(), "dtype": dtype,
            "device": args.target.device_name(), "threads": target.thread_count(), "steps": args.steps, "step_s": step,
            "bandwidth_bytes_per_s": peaks.bandwidth,
            "reads_bytes_per_s": peaks.reads, "reads_in_turn_bytes_per_s": in_turn,
            "f32_products_per_s": peaks.f32_products,
            "bf16_products_per_s": peaks.bf16_products,
            "kernels": groups,
            "each": each,
        });
        let sources: Vec<_> = args.model.config.as_deref().into_iter().collect();
        write_derived(path, &format!("{document:#}\n"), &sources)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What a CPU's kernels are compared with: a loop that reads as many bytes as they move, but 96 MiB at least and 512 MiB at most.
fn meter(target: &Target, graph: &KernelGraph) -> Result<Option<MemoryMeter>, CliError> {
    const LEAST: usize = 96 << 20;
    const MOST: usize = 512 << 20;
    let moved: usize = graph.kernels.iter().map(|kernel| graph.bytes_moved(kernel)).sum();
    let meter = || MemoryMeter::new(target.thread_count(), moved.clamp(LEAST, MOST));
    Ok(target.gpu_name().is_none().then(meter).transpose().map_err(kernfusion_lm::Error::from)?)
}

/// Rates, and what products of `f32` are called.
pub(crate) type Rates<'a> = (&'a Peaks, &'static str);

fn wide(target: &Target) -> &'static str {
    if target.f32_product_kind().is_ok_and(|kind| kind == F32Products::Tf32) { "tf32" } else { "f32" }
}

/// Kernels that are equal but for the layer, the most time first.
fn groups(graph: &KernelGraph, seconds: impl Fn(usize) -> f64, rates: Rates<'_>) -> Vec<Group> {
    let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
    for (number, kernel) in graph.kernels.iter().enumerate() {
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
