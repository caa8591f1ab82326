//! `kernfusion explain`: what was fused, what was not, and why.

use crate::Outcome;
use crate::common::destination::{check_derived, write_derived};
use crate::common::error::CliError;
use crate::common::model::{MemoryArgs, Model, ModelArgs, PrecisionArgs, WeightsArgs, Work};
use crate::common::screen::{Screen, grouped};
use crate::common::subject::{ProgramArgs, Subject};
use crate::inspection::scaling::{Prediction, Scenario, ScenarioArgs};
use crate::inspection::stages::{PassArgs, Planned, RankArgs, target};
use kernfusion::compile::Mode;
use kernfusion_ir::kernel::{BufferRole, Kernel, KernelGraph, Plan, RefusedFusion};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Say what was fused, what was not, and why
///
/// Kernels are in the order in which they run, with the bytes that each moves at least. A refused fusion is an edge that
/// stayed a memory access, with the bytes that fusing would have saved. With A and B, parts of the names of two values
/// (as the refusals show them: module path, op and number), only what concerns both is shown.
///
/// With --ranks, the program is that of the first of several ranks, and exchanges are kernels. With --link, a prediction of the step of
/// all ranks follows: arithmetic, for which docs/scaling.md has the formulas.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion explain --preset tiny
  kernfusion explain --preset thesis --memory-limit 700MiB
  kernfusion explain --work forward blocks.0.attn ln1
  kernfusion explain --program model
  kernfusion explain --preset gpt2-small --batch-size 64 --ranks 8 --link 25GB/s,5us")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    program: ProgramArgs,
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
    ranks: RankArgs,
    #[command(flatten)]
    scenario: ScenarioArgs,
    #[command(flatten)]
    products: PrecisionArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// Write all of it as JSON
    #[arg(long, value_name = "FILE", conflicts_with = "a")]
    json: Option<PathBuf>,
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
    args.ranks.check(args.work)?;
    let files = args.program.files();
    let sources: Vec<_> = args.model.config.iter().chain(&files).map(PathBuf::as_path).collect();
    args.json.iter().try_for_each(|path| check_derived(path, &sources))?;
    let subject = args.program.subject(&args.model, &args.weights, args.work)?;
    let scenario = args.scenario.resolve(args.products.precision())?;
    if subject.model().is_none() && args.ranks.count() > 1 {
        return Err(CliError::Usage("--ranks is for training steps of a model, not for --program".into()));
    }
    let planned = args.planned(&subject)?;
    if let (Some(a), Some(b)) = (&args.a, &args.b) {
        between(&planned.plans[0].graph, a, b, screen)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (number, plan) in planned.plans.iter().enumerate() {
        let when = match (planned.plans.len(), number, planned.microbatches) {
            (1, ..) => "in execution order".to_string(),
            (_, 0, 1) => "for the rows of a rank, in execution order".into(),
            (_, 0, microbatches) => format!("for each of {microbatches} microbatches, in execution order"),
            _ => "after the last microbatch".into(),
        };
        show(plan, &when, args.refusals, screen);
    }
    let totals = Totals::new(&planned);
    totals.show(args.ranks.count(), screen);
    let prediction = match (scenario, subject.model()) {
        (Some(scenario), Some(model)) => Some(args.predict(model, &planned, scenario)?),
        _ => None,
    };
    prediction.iter().for_each(|prediction| prediction.show(screen));
    if let Some(path) = &args.json {
        let document = args.json(&subject, &planned, &totals, prediction.as_ref());
        write_derived(path, &format!("{document:#}\n"), &sources)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The plans of what one process or the first rank runs.
    fn planned(&self, subject: &Subject) -> Result<Planned, CliError> {
        let modes = (self.mode, self.products.precision());
        let graph = subject.program(self.work, modes.1)?;
        let target = target(&graph, modes, &self.memory, &self.ranks)?;
        Planned::new(&graph, &target, &self.passes)
    }

    /// The step of all ranks, beside those of one process with a rank's batch and with the whole one.
    fn predict(&self, model: &Model, planned: &Planned, scenario: Scenario) -> Result<Prediction, CliError> {
        let (ranks, modes) = (self.ranks.count(), (self.mode, self.products.precision()));
        let whole = self.work.program(model, modes.1)?.graph;
        let mut part = model.clone();
        part.batch /= ranks;
        let part = self.work.program(&part, modes.1)?.graph;
        let rank = target(&whole, modes, &self.memory, &self.ranks)?;
        let alone = |graph, target| Planned::new(graph, &target, &self.passes);
        let alone = [alone(&part, rank.clone().alone())?, alone(&whole, self.memory.limit(rank.alone()))?];
        let tokens = model.batch * self.work.length(model);
        Ok(Prediction::new(scenario, (ranks, tokens), planned, &alone))
    }

    /// Everything as `--json` writes it.
    fn json(
        &self,
        subject: &Subject,
        planned: &Planned,
        totals: &Totals,
        prediction: Option<&Prediction>,
    ) -> Value {
        let part = |(Plan { graph, preparation, .. }, runs): (&Plan, usize)| {
            let kernel = |kernel: &Kernel| {
                json!({
                    "name": kernel.name, "form": kernel.form.name(), "ops": kernel.covers.len(),
                    "bytes_moved": graph.bytes_moved(kernel), "bytes_sent": graph.bytes_sent(kernel),
                })
            };
            let kernels: Vec<_> = graph.kernels.iter().map(kernel).collect();
            json!({"runs": runs, "preparation": preparation, "kernels": kernels, "refusals": by_bytes(graph, |_| true)})
        };
        json!({
            "preset": subject.name(), "work": subject.work(self.work), "mode": self.mode.to_string(),
            "dtype": self.products.precision().to_string(), "batch": subject.batch(),
            "ranks": self.ranks.count(), "shard_optimizer": self.ranks.shards_optimizer(),
            "exchange": self.ranks.exchange().name(),
            "microbatches": planned.microbatches,
            "parts": planned.runs().map(part).collect::<Vec<_>>(),
            "plan": totals,
            "prediction": prediction.map(Prediction::json),
        })
    }
}

fn show(plan: &Plan, when: &str, limit: usize, screen: &mut Screen) {
    let graph = &plan.graph;
    let (prepared, each_run) = graph.kernels.split_at(plan.preparation);
    if !prepared.is_empty() {
        let (count, size) = (prepared.len(), bytes(plan.prepared_bytes()));
        screen.line(format!("{count} kernels before the first run, which make {size} of parameters:"));
        prepared.iter().for_each(|kernel| screen.line(kernel_line(graph, kernel)));
    }
    screen.line(format!("{} kernels {when}:", each_run.len()));
    each_run.iter().for_each(|kernel| screen.line(kernel_line(graph, kernel)));
    let refusals = by_bytes(graph, |_| true);
    screen.line(format!("\n{} fusions refused, the largest first:", refusals.len()));
    let shown = if limit == 0 { refusals.len() } else { limit };
    refusals.iter().take(shown).for_each(|refusal| screen.line(refusal_line(refusal)));
    if refusals.len() > shown {
        screen.line(format!("  … and {} more (--refusals 0 shows all)", refusals.len() - shown));
    }
    screen.line("");
}

/// The whole run: every microbatch, and what follows the last one. Body and tail share arena and states.
#[derive(Serialize)]
struct Totals {
    microbatches: usize,
    kernels: usize,
    bytes_moved: usize,
    bytes_sent: usize,
    arena_bytes: usize,
    prepared_bytes: usize,
    state_bytes: usize,
    input_bytes: usize,
    peak_bytes: usize,
}

impl Totals {
    fn new(planned: &Planned) -> Self {
        let total = |of: fn(&Plan) -> usize| planned.runs().map(|(plan, times)| times * of(plan)).sum();
        let buffers = planned.plans.iter().flat_map(|plan| &plan.graph.buffers);
        let states: BTreeMap<_, _> = buffers
            .filter(|buffer| buffer.role == BufferRole::State)
            .map(|buffer| (&buffer.name, buffer.ty.bytes()))
            .collect();
        let state_bytes = states.values().sum();
        let arena_bytes = planned.plans.iter().map(|plan| plan.arena_bytes).max().unwrap_or(0);
        let prepared_bytes = planned.plans.iter().map(Plan::prepared_bytes).sum();
        let input_bytes = planned.microbatches * planned.plans[0].input_bytes();
        Totals {
            microbatches: planned.microbatches,
            kernels: total(|plan| plan.each_run().len()),
            bytes_moved: total(Plan::bytes_moved),
            bytes_sent: total(Plan::bytes_sent),
            arena_bytes,
            prepared_bytes,
            state_bytes,
            input_bytes,
            peak_bytes: arena_bytes + prepared_bytes + state_bytes + input_bytes,
        }
    }

    fn show(&self, ranks: usize, screen: &mut Screen) {
        let lines = [
            ("microbatches", grouped(self.microbatches as u64)),
            ("kernels", grouped(self.kernels as u64)),
            ("bytes moved", bytes(self.bytes_moved)),
            ("bytes sent", bytes(self.bytes_sent)),
            ("arena", bytes(self.arena_bytes)),
            ("prepared", bytes(self.prepared_bytes)),
            ("state", bytes(self.state_bytes)),
            ("inputs", bytes(self.input_bytes)),
            ("peak", bytes(self.peak_bytes)),
        ];
        let of = if ranks > 1 { format!(" of each of {ranks} ranks") } else { String::new() };
        screen.line(format!("plan{of}:"));
        let is_shown = |name: &str| match name {
            "bytes sent" => ranks > 1,
            "prepared" => self.prepared_bytes > 0,
            _ => true,
        };
        let lines = lines.into_iter().filter(|(name, _)| is_shown(name));
        lines.for_each(|(name, value)| screen.line(format!("  {name:<12} {value:>16}")));
    }
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
    let sent = kernel.collective().map(|_| format!(", {} sent", bytes(graph.bytes_sent(kernel))));
    format!("  {form:<12} {moved:>16} {ops:>4} ops  {}{}", kernel.name, sent.unwrap_or_default())
}

fn refusal_line(refusal: &RefusedFusion) -> String {
    format!("  {:>16}  {refusal}", bytes(refusal.bytes))
}

fn bytes(bytes: usize) -> String {
    format!("{} B", grouped(bytes as u64))
}
