//! `kernfusion run`: a program in text form, executed.

use crate::Outcome;
use crate::common::destination::check_derived;
use crate::common::error::{CliError, in_file};
use crate::common::folder::{Kind, expect};
use crate::common::imported::read_graph;
use crate::common::imported::{program_file, weights_file};
use crate::common::model::TargetArgs;
use crate::common::screen::Screen;
use clap::ValueEnum;
use kernfusion::HostTensor;
use kernfusion::compile::Mode;
use kernfusion::compile::{Tensors, execute};
use kernfusion::tensor_file;
use kernfusion_ir::Graph;
use kernfusion_ir::evaluate::{Array, Precision, evaluate};
use std::path::PathBuf;
use std::process::ExitCode;

/// Execute a program in text form once
///
/// The file of inputs has a tensor for each input and each state of the program, under their names; of an imported model, states that
/// are left out are those of the folder. The file of outputs gets a tensor for each output and, under its name, the new value of each
/// state that the program updates.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion run step.kir --inputs in.safetensors --outputs out.safetensors
  kernfusion run model --inputs in.safetensors --outputs out.safetensors")]
pub(crate) struct Args {
    /// Program in text form, or the folder of an imported model
    #[arg(value_name = "FILE.kir|DIR")]
    file: PathBuf,
    /// Inputs and states by name; dtypes f32, bf16, f16, f64, i32, u32, i8, bool
    #[arg(long, value_name = "FILE.safetensors")]
    inputs: Option<PathBuf>,
    /// Where to write the results; without it their types are shown
    #[arg(long, value_name = "FILE.safetensors")]
    outputs: Option<PathBuf>,
    /// How the program is executed
    #[arg(long, value_enum, default_value = "compiled")]
    mode: RunMode,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RunMode {
    /// The slow evaluator that judges every other execution
    Reference,
    /// One kernel for each op
    Eager,
    /// Simplified, fused, planned
    Compiled,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    if args.mode == RunMode::Reference && !args.target.is_default() {
        let reason =
            "--mode reference evaluates as the program says, on this CPU: leave out where and how it runs";
        return Err(CliError::Usage(reason.into()));
    }
    if args.file.is_dir() {
        expect(&args.file, Kind::Imported)?;
    }
    let weights = weights_file(&args.file);
    if let Some(path) = &args.outputs {
        let program = program_file(&args.file);
        let files = args.inputs.iter().chain(&weights).map(PathBuf::as_path);
        check_derived(path, &files.chain([&*program]).collect::<Vec<_>>())?;
    }
    let graph = read_graph(&args.file)?;
    let mut inputs = weights.as_deref().map_or_else(|| Ok(Tensors::new()), tensor_file::read)?;
    inputs.extend(args.inputs.as_deref().map_or_else(|| Ok(Tensors::new()), tensor_file::read)?);
    check(&graph, &inputs, args.inputs.as_ref().unwrap_or(&args.file))?;
    let native = |mode| {
        let results = execute(&graph, &inputs, &args.target.target(mode)?);
        results.map_err(|error| in_file(&args.file, error))
    };
    let results = match args.mode {
        RunMode::Reference => reference(&graph, &inputs).map_err(|error| in_file(&args.file, error))?,
        RunMode::Eager => native(Mode::Eager)?,
        RunMode::Compiled => native(Mode::Compiled)?,
    };
    match &args.outputs {
        Some(path) => tensor_file::write(path, &results)?,
        None => results.iter().for_each(|(name, tensor)| screen.line(format!("{name} : {}", tensor.ty()))),
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists whatever does not fit between a program's inputs and a file's tensors.
fn check(graph: &Graph, inputs: &Tensors, path: &std::path::Path) -> Result<(), CliError> {
    let mut problems = Vec::new();
    for (id, name, _) in graph.inputs() {
        let expected = &graph[id].ty;
        match inputs.get(name) {
            None => problems.push(format!("input \"{name}\" of type {expected} is missing")),
            Some(tensor) if tensor.ty() != *expected => {
                problems.push(format!("input \"{name}\" is {}, the program expects {expected}", tensor.ty()));
            }
            Some(_) => {}
        }
    }
    let superfluous = inputs.keys().filter(|name| graph.input(name).is_none());
    problems.extend(superfluous.map(|name| format!("the program has no input \"{name}\"")));
    if problems.is_empty() {
        return Ok(());
    }
    Err(CliError::Content { path: path.into(), reason: problems.join("; ") })
}

fn reference(graph: &Graph, inputs: &Tensors) -> kernfusion::Result<Tensors> {
    let results = evaluate(graph, inputs, Precision::Declared)?;
    let tensor = |(name, array): (String, Array)| (name, HostTensor::from_f64(&array.ty, &array.values));
    Ok(results.into_iter().map(tensor).collect())
}
