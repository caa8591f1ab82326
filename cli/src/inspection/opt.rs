//! `kernfusion opt`: passes on a program in text form.

use crate::Outcome;
use crate::common::error::CliError;
use crate::common::imported::read_graph;
use crate::common::screen::{Screen, note};
use kernfusion_ir::Graph;
use kernfusion_passes::{
    INT8_PRODUCTS, MIXED_PRECISION, OF_CPUS, OF_GPUS, OTHERS, PIPELINE, Pass, PassReport, all, find,
    run as run_passes,
};
use std::path::PathBuf;
use std::process::ExitCode;

/// Run passes on a program in text form; the result goes to standard output in the same form
#[derive(clap::Args)]
#[command(after_help = "Example: kernfusion opt step.kir --passes fold,cse,dce")]
pub(crate) struct Args {
    /// Program in text form, or the folder of an imported model
    #[arg(value_name = "FILE.kir|DIR", required_unless_present = "list")]
    file: Option<PathBuf>,
    /// Passes in the order in which they run [default: all, as compiling runs them]
    #[arg(long, value_name = "A,B,C", value_delimiter = ',')]
    passes: Option<Vec<String>>,
    /// Stop after the first N passes
    #[arg(long, value_name = "N")]
    stop_after: Option<usize>,
    /// Say on standard error what each pass did
    #[arg(long)]
    timings: bool,
    /// List the passes
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let Some(file) = args.file.filter(|_| !args.list) else {
        for (number, pass) in PIPELINE.iter().enumerate() {
            screen.line(format!("{} {:<18} {}", number + 1, pass.name, pass.about));
        }
        for (dtype, passes) in [("bf16", MIXED_PRECISION), ("int8", INT8_PRODUCTS)] {
            screen.line(format!("with --dtype {dtype} also:"));
            for (number, pass) in passes.iter().enumerate() {
                screen.line(format!("{} {:<18} {}", PIPELINE.len() + number + 1, pass.name, pass.about));
            }
        }
        let rest = [
            ("on a CPU also, after them:", OF_CPUS),
            ("on a GPU also, after them:", OF_GPUS),
            ("only when they are named:", OTHERS),
        ];
        for (heading, passes) in rest {
            screen.line(heading);
            for pass in passes {
                screen.line(format!("- {:<18} {}", pass.name, pass.about));
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    let passes = chosen(args.passes.as_deref())?;
    let mut graph = read_graph(&file)?;
    let mut show = |report: &PassReport, _: &Graph| {
        if args.timings {
            note(&pass_line(report));
            report.notes.iter().for_each(|line| note(line));
        }
    };
    run_passes(&mut graph, &passes, args.stop_after, &mut show)
        .map_err(|error| CliError::Content { path: file, reason: error.to_string() })?;
    screen.text(&graph.to_string());
    Ok(ExitCode::SUCCESS)
}

/// The passes of these names; the whole pipeline if none are given.
fn chosen(names: Option<&[String]>) -> Result<Vec<Pass>, CliError> {
    let Some(names) = names else { return Ok(PIPELINE.to_vec()) };
    let pass = |name: &String| find(name).ok_or_else(|| unknown_pass(name));
    names.iter().filter(|name| !name.is_empty()).map(pass).collect()
}

/// The error of a name that is no pass.
pub(crate) fn unknown_pass(name: &str) -> CliError {
    let mut known: Vec<_> = all().map(|pass| pass.name).collect();
    known.sort_unstable();
    known.dedup();
    CliError::Usage(format!("there is no pass \"{name}\"; there are {}", known.join(", ")))
}

/// What a pass did, in one line.
pub(crate) fn pass_line(report: &PassReport) -> String {
    let (before, after) = report.nodes;
    format!("{:<18} {before:>6} -> {after:>6} nodes {:>8.2} ms", report.pass, report.time.as_secs_f64() * 1e3)
}
