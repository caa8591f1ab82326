//! A program at each stage of compilation, without running it.

use crate::common::error::CliError;
use crate::common::model::{MemoryArgs, Model, Work};
use crate::inspection::opt::unknown_pass;
use crate::training::ranks::ExchangeArg;
use kernfusion::compile::{Mode, Precision, Stages, Target, planned_memory, planned_ranks};
use kernfusion::trace::Trace;
use kernfusion_codegen::States;
use kernfusion_ir::kernel::Plan;
use kernfusion_ir::{DType, Graph};
use kernfusion_lm::train::own_microbatches;
use kernfusion_passes::microbatch::batch_extent;
use kernfusion_passes::{GraphDiff, Pass, find, run as run_passes};

/// How far simplification goes.
#[derive(clap::Args)]
pub(crate) struct PassArgs {
    /// Stop after the first pass of this name
    #[arg(long, value_name = "PASS", conflicts_with = "stop_after")]
    after: Option<String>,
    /// Stop after the first N passes
    #[arg(long, value_name = "N")]
    stop_after: Option<usize>,
}

impl PassArgs {
    /// Whether simplification is to stop early.
    pub(crate) fn stops_early(&self) -> bool {
        self.after.is_some() || self.stop_after.is_some()
    }

    fn count(&self, passes: &[Pass]) -> Result<Option<usize>, CliError> {
        let Some(name) = &self.after else { return Ok(self.stop_after) };
        let place = passes.iter().position(|pass| pass.name == name);
        place.map(|place| Some(place + 1)).ok_or_else(|| unknown_pass(name))
    }
}

/// How many ranks run a training step.
#[derive(clap::Args)]
pub(crate) struct RankArgs {
    /// Ranks that run the step together, as `mpirun -n N kernfusion train` does: what the first of them runs is shown. Microbatches are
    /// those of all ranks together, a memory limit is that of each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ranks: Option<u32>,
    /// Each rank keeps and updates its part alone of the optimizer's state
    #[arg(long, requires = "ranks")]
    shard_optimizer: bool,
    /// As what ranks exchange gradients
    #[arg(long, value_enum, value_name = "TYPE", requires = "ranks", default_value = "f32")]
    exchange: ExchangeArg,
}

impl RankArgs {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.ranks.map_or(1, |ranks| ranks as usize)
    }

    /// As what they exchange gradients.
    pub(crate) fn exchange(&self) -> DType {
        if self.exchange == ExchangeArg::Bf16 { DType::BF16 } else { DType::F32 }
    }

    /// Whether each keeps a part of the optimizer's state.
    pub(crate) fn shards_optimizer(&self) -> bool {
        self.shard_optimizer
    }

    /// Refuses programs that several ranks do not run.
    pub(crate) fn check(&self, work: Work) -> Result<(), CliError> {
        match (self.ranks, work) {
            (None, _) | (_, Work::Train) => Ok(()),
            _ => Err(CliError::Usage(format!(
                "--ranks is for --work train: one process runs --work {}",
                work.name()
            ))),
        }
    }
}

/// The loss as it is traced, before anything is derived from it.
pub(crate) fn traced(model: &Model, work: Work, precision: Precision) -> Result<Graph, CliError> {
    let trace = match work {
        Work::Train => Trace::training(),
        Work::Forward | Work::Prefill | Work::Decode => return Ok(work.program(model, precision)?.graph),
    };
    let loss = model.config.loss(&trace, model.batch)?;
    Ok(trace.finish(&[("loss", &loss)])?.graph)
}

/// The CPU, or the first of several ranks on CPUs, for a program in the microbatches that the flags ask for.
pub(crate) fn target(
    graph: &Graph,
    (mode, precision): (Mode, Precision),
    memory: &MemoryArgs,
    ranks: &RankArgs,
) -> Result<Target, CliError> {
    let target = memory.limit(Target::cpu().mode(mode).precision(precision));
    target.check_products(graph)?;
    let count = ranks.count();
    if count == 1 {
        return Ok(target);
    }
    let target = target.ranks(planned_ranks(count)).shard_optimizer(ranks.shard_optimizer);
    let target = target.bf16_exchange(ranks.exchange() == DType::BF16);
    let (batch, all) = (batch_extent(graph).unwrap_or(0), memory.microbatches().unwrap_or(0));
    Ok(match own_microbatches(batch, all, count)? {
        0 => target,
        own => target.microbatches(own),
    })
}

/// The stages of a program for a target.
pub(crate) fn stages(graph: &Graph, target: &Target) -> Result<Stages, CliError> {
    let memory = planned_memory(graph, &States::new(), target)?;
    Ok(Stages::new(target, memory))
}

/// A program's plans: one, or that of each microbatch and that of what follows the last one.
pub(crate) struct Planned {
    pub(crate) plans: Vec<Plan>,
    pub(crate) microbatches: usize,
}

impl Planned {
    /// Plans a program for a target.
    pub(crate) fn new(graph: &Graph, target: &Target, passes: &PassArgs) -> Result<Self, CliError> {
        let stages = stages(graph, target)?;
        let parts = simplified(&stages, graph, passes)?;
        let plans = parts.iter().map(|part| Ok(stages.plan(stages.fuse(&part.graph)?)));
        let plans = plans.collect::<Result<Vec<_>, CliError>>()?;
        Ok(Planned { plans, microbatches: stages.memory().microbatches })
    }

    /// Each plan, with how often it runs.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&Plan, usize)> {
        let times = [self.microbatches, 1];
        self.plans.iter().zip(times)
    }
}

/// A part of a program after the passes, with what it exchanges if it is that of several ranks.
pub(crate) struct Simplified {
    /// The part.
    pub(crate) graph: Graph,
    /// What the passes had to say, in lines.
    pub(crate) notes: Vec<String>,
}

/// Each part of a program after the passes.
pub(crate) fn simplified(
    stages: &Stages,
    program: &Graph,
    flags: &PassArgs,
) -> Result<Vec<Simplified>, CliError> {
    let count = flags.count(stages.passes())?;
    let mut graphs = stages.divide(program)?.graphs;
    let simplify = |graph: &mut Graph| -> Result<Vec<String>, CliError> {
        let reports = stages.simplify(graph, count, &mut |_, _| {})?;
        Ok(reports.into_iter().flat_map(|report| report.notes).collect())
    };
    let notes = graphs.iter_mut().map(simplify).collect::<Result<Vec<_>, _>>()?;
    stages.exchange(program, &mut graphs)?;
    Ok(graphs.into_iter().zip(notes).map(|(graph, notes)| Simplified { graph, notes }).collect())
}

/// What one pass of a mode changes in a graph: the first of this name, or that of this number in the list. A pass that the mode
/// does not have is shown on the graph as it is.
pub(crate) fn difference(graph: &Graph, list: &[Pass], pass: &str) -> Result<String, CliError> {
    let number = pass.parse::<usize>().ok().filter(|number| (1..=list.len()).contains(number));
    let named = || list.iter().position(|other| other.name == pass);
    let place = number.map(|number| number - 1).or_else(named);
    let (earlier, pass, name) = match place {
        Some(at) => (&list[..at], list[at], format!("pass {}: {}", at + 1, list[at].name)),
        None => (&list[..0], find(pass).ok_or_else(|| unknown_pass(pass))?, format!("pass {pass}")),
    };
    let failed = kernfusion::Error::from;
    let mut before = graph.clone();
    run_passes(&mut before, earlier, None, &mut |_, _| {}).map_err(failed)?;
    before.mark();
    let mut after = before.clone();
    let reports = run_passes(&mut after, &[pass], None, &mut |_, _| {}).map_err(failed)?;
    let about = format!("# {name} ({})\n", pass.about);
    let notes = reports.iter().flat_map(|report| &report.notes).map(|note| format!("# {note}\n"));
    Ok([about].into_iter().chain(notes).chain([GraphDiff::new(&before, &after).to_string()]).collect())
}
