//! `kernfusion explain`: what was fused, what was not, and why.

use crate::Outcome;
use crate::common::error::CliError;
use crate::common::model::{MemoryArgs, ModelArgs, PrecisionArgs, WeightsArgs, Work};
use crate::common::screen::{Screen, grouped};
use crate::inspection::stages::{PassArgs, simplified, stages};
use kernfusion::compile::Mode;
use kernfusion_ir::kernel::{BufferRole, Kernel, KernelGraph, Plan, RefusedFusion};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Say what was fused, what was not, and why
///
/// Kernels are in the order in which they run, with the bytes that each moves at least. A refused fusion is an edge that
/// stayed a memory access, with the bytes that fusing would have saved. With A and B, parts of the names of two values
/// (as the refusals show them: module path, op and number), only what concerns both is shown.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion explain --preset tiny
  kernfusion explain --preset thesis --memory-limit 700MiB
  kernfusion explain --work forward blocks.0.attn ln1")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Which program of the model
    #[arg(long, value_enum, default_value = "train")]
    work: Work,
    #[command(flatten)]
    weights: WeightsArgs,
    /// Mode
    #[arg(long, value_name = "MODE", default_value = "compiled")]
    mode: Mode,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    products: PrecisionArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// Refused fusions shown at most; 0: all
    #[arg(long, value_name = "N", default_value_t = 40)]
    refusals: usize,
    /// Part of a value's name
    #[arg(value_name = "A", requires = "b")]
    a: Option<String>,
    /// Part of another value's name
    #[arg(value_name = "B")]
    b: Option<String>,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let model = args.model.resolve()?.keeping(&args.weights, args.work)?;
    let modes = (args.mode, args.products.precision());
    let graph = args.work.program(&model, modes.1)?.graph;
    let stages = stages(&graph, modes, &args.memory)?;
    let parts = simplified(&stages, &graph, &args.passes)?;
    let planned = parts.iter().map(|part| Ok(stages.plan(stages.fuse(&part.graph)?)));
    let plans = planned.collect::<Result<Vec<_>, CliError>>()?;
    let microbatches = stages.memory().microbatches;
    if let (Some(a), Some(b)) = (&args.a, &args.b) {
        between(&plans[0].graph, a, b, screen)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (number, plan) in plans.iter().enumerate() {
        let when = match (microbatches, number) {
            (1, _) => "in execution order".to_string(),
            (microbatches, 0) => {
                format!("for each of {microbatches} microbatches, in execution order")
            }
            _ => "after the last microbatch".into(),
        };
        show(plan, &when, args.refusals, screen);
    }
    summary(&plans, microbatches, screen);
    Ok(ExitCode::SUCCESS)
}

fn show(plan: &Plan, when: &str, limit: usize, screen: &mut Screen) {
    let graph = &plan.graph;
    screen.line(format!("{} kernels {when}:", graph.kernels.len()));
    graph.kernels.iter().for_each(|kernel| screen.line(kernel_line(graph, kernel)));
    let refusals = by_bytes(graph, |_| true);
    screen.line(format!("\n{} fusions refused, the largest first:", refusals.len()));
    let shown = if limit == 0 { refusals.len() } else { limit };
    refusals.iter().take(shown).for_each(|refusal| screen.line(refusal_line(refusal)));
    if refusals.len() > shown {
        screen.line(format!("  … and {} more (--refusals 0 shows all)", refusals.len() - shown));
    }
    screen.line("");
}

/// The whole run: every slice, and what follows the last one. Body and tail share arena and states.
fn summary(plans: &[Plan], microbatches: usize, screen: &mut Screen) {
    let times = |number: usize| if number == 0 { microbatches } else { 1 };
    let total = |of: fn(&Plan) -> usize| -> usize {
        plans.iter().enumerate().map(|(number, plan)| times(number) * of(plan)).sum()
    };
    let buffers = plans.iter().flat_map(|plan| &plan.graph.buffers);
    let states: BTreeMap<_, _> = buffers
        .filter(|buffer| buffer.role == BufferRole::State)
        .map(|buffer| (&buffer.name, buffer.ty.bytes()))
        .collect();
    let state = states.values().sum::<usize>();
    let arena = plans.iter().map(|plan| plan.arena_bytes).max().unwrap_or(0);
    let inputs = microbatches * plans[0].input_bytes();
    let lines = [
        ("microbatches", grouped(microbatches as u64)),
        ("kernels", grouped(total(|plan| plan.graph.kernels.len()) as u64)),
        ("bytes moved", bytes(total(Plan::bytes_moved))),
        ("arena", bytes(arena)),
        ("state", bytes(state)),
        ("inputs", bytes(inputs)),
        ("peak", bytes(arena + state + inputs)),
    ];
    screen.line("plan:");
    lines.into_iter().for_each(|(name, value)| screen.line(format!("  {name:<12} {value:>16}")));
}

/// What became of two values: the kernels that touch both, and the refusals between them in either direction. A kernel
/// touches a value if its own name or that of a tensor that it reads or writes says so.
fn between(kernels: &KernelGraph, a: &str, b: &str, screen: &mut Screen) -> Result<(), CliError> {
    let touches = |kernel: &Kernel, part: &str| {
        let buffers = kernel.reads().into_iter().chain(kernel.writes());
        kernel.name.contains(part) || buffers.into_iter().any(|id| kernels.buffer(id).name.contains(part))
    };
    for part in [a, b] {
        let refused =
            |refusal: &RefusedFusion| refusal.producer.contains(part) || refusal.consumer.contains(part);
        if !kernels.kernels.iter().any(|kernel| touches(kernel, part))
            && !kernels.refusals.iter().any(refused)
        {
            return Err(CliError::Usage(format!(
                "no kernel and no tensor has a name that contains \"{part}\""
            )));
        }
    }
    let both: Vec<_> =
        kernels.kernels.iter().filter(|kernel| touches(kernel, a) && touches(kernel, b)).collect();
    screen.line(format!("{} kernels touch both:", both.len()));
    both.into_iter().for_each(|kernel| screen.line(kernel_line(kernels, kernel)));
    let refusals = by_bytes(kernels, |refusal| {
        let RefusedFusion { producer, consumer, .. } = refusal;
        producer.contains(a) && consumer.contains(b) || producer.contains(b) && consumer.contains(a)
    });
    screen.line(format!("\n{} fusions between the two refused:", refusals.len()));
    refusals.into_iter().for_each(|refusal| screen.line(refusal_line(refusal)));
    Ok(())
}

fn by_bytes(graph: &KernelGraph, wanted: impl Fn(&RefusedFusion) -> bool) -> Vec<&RefusedFusion> {
    let mut refusals: Vec<_> = graph.refusals.iter().filter(|refusal| wanted(refusal)).collect();
    refusals.sort_by_key(|refusal| std::cmp::Reverse(refusal.bytes));
    refusals
}

fn kernel_line(graph: &KernelGraph, kernel: &Kernel) -> String {
    let form = kernel.form.name();
    let (moved, ops) = (bytes(graph.bytes_moved(kernel)), kernel.covers.len());
    format!("  {form:<12} {moved:>16} {ops:>4} ops  {}", kernel.name)
}

fn refusal_line(refusal: &RefusedFusion) -> String {
    format!("  {:>16}  {refusal}", bytes(refusal.bytes))
}

fn bytes(bytes: usize) -> String {
    format!("{} B", grouped(bytes as u64))
}
