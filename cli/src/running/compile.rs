//! `kernfusion compile`: a model as an object file for programs in C and Rust, or the kernels that a GPU needs for it.

use crate::Outcome;
use crate::common::error::{CliError, in_file};
use crate::common::folder::{Kind, expect};
use crate::common::imported::ExtentArgs;
use crate::common::machine::architecture;
use crate::common::model::{ModelArgs, PrecisionArgs, WeightsArgs, Work};
use crate::common::screen::Screen;
use crate::common::source::published;
use clap::ValueEnum;
#[cfg(feature = "cuda")]
use kernfusion::atomic_file;
use kernfusion::compile::{Isa, Target};
#[cfg(feature = "cuda")]
use kernfusion::compile::{MemoryStrategy, Stages};
#[cfg(feature = "cuda")]
use kernfusion_cuda::{Cache, Options, Renderer, accepts};
use kernfusion_lm::ahead_of_time::{AheadOfTime, FunctionAheadOfTime, RUNTIME, Report};
use kernfusion_lm::checkpoint::Checkpoint;
#[cfg(feature = "cuda")]
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Compile a decoder, or a model from elsewhere, to an object file that a program in C or Rust runs without the compiler
///
/// The folder gets NAME.o, NAME.h, NAME.rs, the parameters as NAME.safetensors and, if it stands beside this program, the
/// runtime for C as libkernfusion_runtime.a. It is there whole or not at all.
///
/// With --program, the object file is the model as a function: its inputs and outputs are those of the program.
///
/// With --arch, the folder gets the kernels with which generate continues a text on a GPU (cubins). Where KERNFUSION_CUBINS names the folder,
/// that takes no NVRTC.
#[derive(clap::Args)]
#[command(after_help = "Example: kernfusion compile --checkpoint runs/tiny --work decode -o artefact\n\
                        Example: kernfusion compile --program gpt2 -o artefact\n\
                        Example: kernfusion compile --checkpoint runs/tiny --arch sm_90a -o kernels\n\
                        With decode each token takes a step; with prefill prompts are read up to 128 tokens at a time, too.")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Directory of a checkpoint, in place of a shape with new parameters
    #[arg(long, value_name = "DIR", conflicts_with_all = ["preset", "config", "dropout"])]
    checkpoint: Option<PathBuf>,
    /// Directory of a model in the layout of Hugging Face
    #[arg(long = "model", value_name = "DIR", conflicts_with_all = ["checkpoint", "preset", "config", "dropout"])]
    published: Option<PathBuf>,
    /// A model from elsewhere: the folder of an imported one, an archive of torch.export.save, or an ONNX file
    #[arg(long = "program", value_name = "DIR|FILE.pt2|FILE.onnx", conflicts_with_all = OF_DECODERS)]
    imported: Option<PathBuf>,
    #[command(flatten)]
    extents: ExtentArgs,
    /// What the object file can do: decode, or prefill, which can both
    #[arg(long, value_enum, value_name = "WORK", default_value = "decode")]
    work: Work,
    #[command(flatten)]
    products: PrecisionArgs,
    #[command(flatten)]
    weights: WeightsArgs,
    /// Processors that it is for
    #[arg(long, value_enum, value_name = "CPU", default_value = "host")]
    cpu: Cpu,
    /// Instead of an object file, the kernels for GPUs of this architecture, such as sm_80 (A100) or sm_90a (H100, H200)
    #[arg(long, value_name = "ARCH", value_parser = architecture, conflicts_with_all = ["work", "cpu", "name", "overwrite", "runtime"])]
    arch: Option<String>,
    /// Seed of new parameters
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Name in files and functions [default: the preset's or the checkpoint's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Folder to write
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Replace a folder that has such files and nothing else
    #[arg(long, alias = "force")]
    overwrite: bool,
    /// The runtime for C [default: libkernfusion_runtime.a beside this program]
    #[arg(long, value_name = "FILE.a")]
    runtime: Option<PathBuf>,
}

/// Flags of models that read a text.
const OF_DECODERS: [&str; 10] = [
    "preset",
    "config",
    "batch_size",
    "dropout",
    "checkpoint",
    "published",
    "work",
    "weights",
    "arch",
    "seed",
];

/// Kinds of processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Cpu {
    /// This one and those that can do as much
    Host,
    /// All with AVX2, FMA and F16C
    Avx2,
    /// All of this architecture
    Baseline,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    args.extents.only_if(args.imported.is_some())?;
    if !matches!(args.work, Work::Decode | Work::Prefill) {
        return Err(CliError::Usage("--work: only decode and prefill are compiled ahead of time".into()));
    }
    let target = args.weights.of(Target::cpu().precision(args.products.precision()));
    let target = match args.cpu {
        Cpu::Host => target,
        Cpu::Avx2 => target.isa(Isa::Avx2),
        Cpu::Baseline => target.isa(Isa::Portable),
    };
    let runtime = args.runtime.clone().or_else(beside);
    if let Some(path) = &args.imported {
        let model = args.extents.model(path)?;
        let name = args.name.clone().unwrap_or_else(|| match path.is_dir() {
            true => name_of(path),
            false => name_of(&path.with_extension("")),
        });
        let model = FunctionAheadOfTime::new(model.program, &model.states, &target)?.named(&name);
        let model = model.map_err(|error| in_flag("--name", error))?;
        let report = model.write(&args.output, runtime.as_deref(), args.overwrite)?;
        say(&args, &name, "a function", &report, runtime.is_some(), screen);
        return Ok(ExitCode::SUCCESS);
    }
    let (model, default) = model(&args, &target)?;
    if let Some(architecture) = &args.arch {
        return cubins(&model.batch(1).prompts(true), &target, architecture, &args.output, screen);
    }
    let name = args.name.as_deref().unwrap_or(&default);
    let model = model.named(name).map_err(|error| in_flag("--name", error))?;
    let model = model.batch(args.model.batch_size.unwrap_or(1)).prompts(args.work == Work::Prefill);
    let report = model.write(&args.output, runtime.as_deref(), args.overwrite)?;
    let chunks = match report.chunks {
        1 => "one kind of chunk".into(),
        chunks => format!("{chunks} kinds of chunks"),
    };
    say(&args, name, &chunks, &report, runtime.is_some(), screen);
    Ok(ExitCode::SUCCESS)
}

/// Says what was written, and how a program links it.
fn say(args: &Args, name: &str, what: &str, report: &Report, has_runtime: bool, screen: &mut Screen) {
    screen.line(format!(
        "{name}: {} different kernels for {what}, compiled in {:.2} s",
        report.programs,
        report.compile.as_secs_f64()
    ));
    screen.line(format!(
        "{}: {} ({:.1} KiB of code and launches, {:.1} MiB of parameters)",
        args.output.display(),
        report.files.join(", "),
        report.object_bytes as f64 / 1024.0,
        report.parameter_bytes as f64 / (1 << 20) as f64
    ));
    let runtime = if has_runtime { RUNTIME.into() } else { format!("path/to/{RUNTIME}") };
    screen.line(format!("cc program.c {name}.o {runtime} -lm -lpthread -ldl"));
    if !report.files.iter().any(|file| file == RUNTIME) {
        screen.line("the runtime: cargo build --release -p kernfusion-runtime in Kernfusion's source");
    }
}

/// Writes the cubins of all kernels that read a text, each under the name by which it is looked up; what else is there stays. Nothing is written
/// before all are compiled.
#[cfg(feature = "cuda")]
fn cubins(
    model: &AheadOfTime,
    target: &Target,
    architecture: &str,
    folder: &Path,
    screen: &mut Screen,
) -> Outcome {
    let stages = Stages::of_gpu(target, MemoryStrategy::NONE, accepts);
    let cache = Cache::of_user();
    let mut files = BTreeMap::new();
    let programs = model.programs()?;
    for program in &programs {
        let mut graph = program.graph.clone();
        stages.simplify(&mut graph, None, &mut |_, _| {})?;
        let plan = stages.plan(stages.fuse(&graph)?);
        // A program's functions have names of their own, as where it runs.
        let mut renderer = Renderer::new(Options::of(architecture));
        let launched = renderer.program(&plan).map_err(kernfusion_lm::Error::from)?.functions();
        let functions: Vec<_> = launched.into_iter().map(|at| &renderer.functions()[at]).collect();
        files.extend(cache.files(&functions, architecture)?);
    }
    for (name, code) in &files {
        let path = folder.join(name);
        atomic_file::write(&path, code).map_err(|cause| CliError::Write { path, cause })?;
    }
    screen.line(format!(
        "{}: {} kernels for {architecture}, of {} kinds of chunks",
        folder.display(),
        files.len(),
        programs.len()
    ));
    screen.line(format!("KERNFUSION_CUBINS={} kernfusion generate --device cuda …", folder.display()));
    Ok(ExitCode::SUCCESS)
}

/// This program was built without GPUs.
#[cfg(not(feature = "cuda"))]
fn cubins(_: &AheadOfTime, _: &Target, _: &str, _: &Path, _: &mut Screen) -> Outcome {
    Err(kernfusion_cuda::CudaError::NotBuilt.into())
}

/// The model, and a name for it.
fn model(args: &Args, target: &Target) -> Result<(AheadOfTime, String), CliError> {
    let (model, folder) = match (&args.checkpoint, &args.published) {
        (Some(folder), _) => {
            expect(folder, Kind::Checkpoint)?;
            let checkpoint = Checkpoint::load(folder).map_err(kernfusion_lm::Error::from)?;
            (AheadOfTime::from_checkpoint(checkpoint, target), folder)
        }
        (_, Some(folder)) => (AheadOfTime::from_published(&published(folder)?, target), folder),
        (None, None) => {
            let model = args.model.resolve()?;
            let name =
                if args.model.config.is_some() { "model".into() } else { model.preset.replace('-', "_") };
            return Ok((AheadOfTime::untrained(&model.config, args.seed, target)?, name));
        }
    };
    let model = model.map_err(|error| in_file(folder, error))?;
    Ok((model, name_of(folder)))
}

/// A name in C after that of a folder or a file.
fn name_of(path: &Path) -> String {
    let last = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name: String = last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if is_name { name } else { "model".into() }
}

/// The runtime where Cargo puts it: beside the program or, the newest, among what the program was built from.
fn beside() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    let installed = Some(folder.join(RUNTIME)).filter(|path| path.is_file());
    installed.or_else(|| {
        let entries = std::fs::read_dir(folder.join("deps")).ok()?.filter_map(Result::ok);
        let (stem, ending) = RUNTIME.rsplit_once('.')?;
        let is_runtime = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(stem) && name.ends_with(&format!(".{ending}"))
        };
        let built = entries.map(|entry| entry.path()).filter(is_runtime);
        built.max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok())
    })
}

fn in_flag(flag: &str, error: kernfusion_lm::Error) -> CliError {
    match error {
        kernfusion_lm::Error::Configuration(reason) => CliError::Usage(format!("{flag}: {reason}")),
        other => other.into(),
    }
}
