//! A program at each stage of compilation, without running it.

use crate::common::error::CliError;
use crate::common::model::{MemoryArgs, Model, Work};
use crate::inspection::opt::unknown_pass;
use kernfusion::compile::{Mode, Precision, Stages, Target, planned_memory};
use kernfusion::trace::Trace;
use kernfusion_codegen::States;
use kernfusion_ir::Graph;
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

/// The loss as it is traced, before anything is derived from it.
pub(crate) fn traced(model: &Model, work: Work, precision: Precision) -> Result<Graph, CliError> {
    let trace = match work {
        Work::Train => Trace::training(),
        Work::Forward | Work::Prefill | Work::Decode => return Ok(work.program(model, precision)?.graph),
    };
    let loss = model.config.loss(&trace, model.batch)?;
    Ok(trace.finish(&[("loss", &loss)])?.graph)
}

/// The stages of a program on the CPU, in the microbatches that the flags ask for.
pub(crate) fn stages(
    graph: &Graph,
    (mode, precision): (Mode, Precision),
    memory: &MemoryArgs,
) -> Result<Stages, CliError> {
    let target = memory.limit(Target::cpu().mode(mode).precision(precision));
    let memory = planned_memory(graph, &States::new(), &target)?;
    Ok(Stages::new(&target, memory))
}

/// A part of a program after the passes.
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
    let simplified = |mut graph: Graph| {
        let reports = stages.simplify(&mut graph, count, &mut |_, _| {})?;
        Ok(Simplified { graph, notes: reports.into_iter().flat_map(|report| report.notes).collect() })
    };
    stages.divide(program)?.graphs.into_iter().map(simplified).collect()
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
