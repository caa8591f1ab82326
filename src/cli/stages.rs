//! A program at each stage of compilation, without running it.

use super::error::CliError;
use super::model::{Model, Work};
use super::opt::unknown_pass;
use kernfusion::compile::Mode;
use kernfusion::loss::cross_entropy;
use kernfusion::models::Gpt;
use kernfusion::trace::Trace;
use kernfusion_ir::kernel::KernelGraph;
use kernfusion_ir::{DType, Graph};
use kernfusion_passes::fuse::{Fusion, fuse};
use kernfusion_passes::{PIPELINE, run as run_passes};

/// How far simplification goes.
#[derive(clap::Args)]
pub(super) struct PassArgs {
    /// Stop after the first pass of this name
    #[arg(long, value_name = "PASS", conflicts_with = "stop_after")]
    after: Option<String>,
    /// Stop after the first N passes
    #[arg(long, value_name = "N")]
    stop_after: Option<usize>,
}

impl PassArgs {
    /// Whether simplification is to stop early.
    pub(super) fn stops_early(&self) -> bool {
        self.after.is_some() || self.stop_after.is_some()
    }

    fn count(&self) -> Result<Option<usize>, CliError> {
        let Some(name) = &self.after else { return Ok(self.stop_after) };
        let place = PIPELINE.iter().position(|pass| pass.name == name);
        place.map(|place| Some(place + 1)).ok_or_else(|| unknown_pass(name))
    }
}

/// The loss as it is traced, before anything is derived from it.
pub(super) fn traced(model: &Model, work: Work) -> Result<Graph, CliError> {
    let trace = match work {
        Work::Train => Trace::training(),
        Work::Forward | Work::Prefill | Work::Decode => return Ok(work.program(model)?.graph),
    };
    let shape = [model.batch, model.config.context];
    let (x, y) = (trace.input("x", shape, DType::I32), trace.input("y", shape, DType::I32));
    let logits = Gpt::new(&trace, &model.config)?.forward(&x);
    let loss = cross_entropy(&logits, &y);
    Ok(trace.finish(&[("loss", &loss)])?.graph)
}

/// The program after the passes: of eager mode, which has none, as it is.
pub(super) fn simplified(
    model: &Model,
    work: Work,
    mode: Mode,
    passes: &PassArgs,
) -> Result<Graph, CliError> {
    simplified_with_notes(model, work, mode, passes).map(|(graph, _)| graph)
}

/// The same, with what the passes have to say, in lines.
pub(super) fn simplified_with_notes(
    model: &Model,
    work: Work,
    mode: Mode,
    passes: &PassArgs,
) -> Result<(Graph, Vec<String>), CliError> {
    let mut graph = work.program(model)?.graph;
    let list = match mode {
        Mode::Compiled => PIPELINE,
        Mode::Eager => &[],
    };
    let reports =
        run_passes(&mut graph, list, passes.count()?, &mut |_, _| {}).map_err(kernfusion::Error::from)?;
    Ok((graph, reports.into_iter().flat_map(|report| report.notes).collect()))
}

/// The kernels of a simplified program.
pub(super) fn fused(graph: &Graph, mode: Mode) -> Result<KernelGraph, CliError> {
    let fusion = match mode {
        Mode::Compiled => Fusion::Full,
        Mode::Eager => Fusion::None,
    };
    Ok(fuse(graph, fusion).map_err(kernfusion::Error::from)?)
}
