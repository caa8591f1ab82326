//! `kernfusion dump`: a program at a stage of compilation, as text or picture.

use super::view;
use crate::Outcome;
use crate::common::destination::{check_derived, write_derived};
use crate::common::error::CliError;
use crate::common::imported::program_file;
use crate::common::machine::architecture;
use crate::common::model::{MemoryArgs, ModelArgs, PrecisionArgs, WeightsArgs, Work};
use crate::common::objective::Loss;
use crate::common::screen::{Screen, note};
use crate::common::subject::{OF_MODELS, Subject};
use crate::inspection::stages::{
    PassArgs, RankArgs, Simplified, difference, simplified, stages, target, traced,
};
use crate::viewer::Options;
use clap::ValueEnum;
use kernfusion::compile::{Mode, Stages, Target, compile};
use kernfusion_codegen::{Listing, States};
use kernfusion_cuda::{self, Function, Renderer, StreamOp};
use kernfusion_ir::Graph;
use kernfusion_ir::kernel::{Kernel, KernelGraph, Plan};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

/// The architecture that CUDA C++ is for, unless one is named: every GPU that programs run on has it.
const ARCHITECTURE: &str = "compute_80";

/// Show a program at a stage of compilation
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kernfusion dump --stage simplify -o step.kir
  kernfusion dump --preset tiny --format html -o tiny.html
  kernfusion dump --preset tiny --format html --arch compute_90a -o h100.html
  kernfusion dump --diff simplify
  kernfusion dump --work decode --diff weights-int8
  kernfusion dump step.kir --stage asm --kernel attn
  kernfusion dump model --stage fuse
  kernfusion dump model --loss cross-entropy --stage fuse
  kernfusion dump --preset tiny --work forward --stage fuse --format dot | dot -Tsvg > kernels.svg")]
pub(crate) struct Args {
    /// A program in text form, or the folder of an imported model, instead of a program of a preset
    #[arg(value_name = "FILE.kir|DIR", conflicts_with_all = OF_MODELS)]
    file: Option<PathBuf>,
    /// With the folder of an imported model: its training step with AdamW instead of its outputs, by the cross-entropy or the mean square of the
    /// first output and an input "target", or output N, a scalar
    #[arg(long, value_name = "cross-entropy|mse|output:N", requires = "file", conflicts_with_all = OF_MODELS)]
    loss: Option<Loss>,
    #[command(flatten)]
    model: ModelArgs,
    /// Which program of the model
    #[arg(long, value_enum, default_value = "train")]
    work: Work,
    #[command(flatten)]
    weights: WeightsArgs,
    /// Stage; a page (html) shows all of them
    #[arg(long, value_enum, required_unless_present_any = ["format", "diff"])]
    stage: Option<Stage>,
    /// Form
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Mode whose stages are shown
    #[arg(long, value_name = "MODE", default_value = "compiled")]
    mode: Mode,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    ranks: RankArgs,
    /// Of a program in microbatches or of several ranks: what runs once after the last microbatch, instead of what runs for each
    #[arg(long)]
    tail: bool,
    #[command(flatten)]
    products: PrecisionArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// Of a GPU: products of f32 on tensor cores, with operands rounded to 10 bits of fraction
    #[arg(long)]
    tf32: bool,
    /// Show what a GPU of this architecture runs, such as compute_90a, instead of what this CPU runs; cuda and ptx are a GPU's anyway
    /// [default of these: compute_80]
    #[arg(long, value_name = "NAME", value_parser = architecture)]
    arch: Option<String>,
    /// Of fuse, schedule, clif, asm, cuda and ptx as text: only kernels whose name contains this
    #[arg(long, value_name = "TEXT")]
    kernel: Option<String>,
    /// What this pass changes, by its name (the first of it) or its number in `opt --list`, instead of a stage
    #[arg(long, value_name = "PASS", conflicts_with_all = ["stage", "format", "after", "stop_after", "kernel"])]
    diff: Option<String>,
    /// Of html: measured times, as `kernfusion profile --json FILE` writes them for the same program
    #[arg(long, value_name = "FILE.json")]
    times: Option<PathBuf>,
    /// File to write instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// The loss as traced
    Trace,
    /// The whole training step: with gradients and update
    Grad,
    /// After the passes
    Simplify,
    /// Kernels
    Fuse,
    /// Kernels and their memory
    Plan,
    /// What each stage of a kernel's rows computes on the CPU
    Schedule,
    /// Cranelift IR of each kernel
    Clif,
    /// Machine code of each kernel
    Asm,
    /// CUDA C++ of each kernel
    Cuda,
    /// PTX of each kernel, by NVRTC
    Ptx,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    /// For Graphviz
    Dot,
    /// For Markdown
    Mermaid,
    Json,
    /// A page with all stages side by side, and what became of each part of the program
    Html,
}

pub(crate) fn run(args: Args, screen: &mut Screen) -> Outcome {
    let args = Args { memory: args.memory.or_whole(), ..args };
    args.ranks.check(args.work)?;
    let program = args.file.as_deref().map(|file| program_file(file).into_owned());
    let sources = args.file.iter().chain(&program).chain(&args.times).chain(&args.model.config);
    let sources: Vec<_> = sources.map(PathBuf::as_path).collect();
    args.output.iter().try_for_each(|path| check_derived(path, &sources))?;
    let subject = Subject::new((args.file.as_deref(), args.loss), &args.model, &args.weights, args.work)?;
    let mut text = args.show(&subject)?;
    if let Some(part) = args.kernel.as_ref().filter(|_| text.is_empty()) {
        return Err(CliError::Usage(format!("no kernel has a name that contains {part:?}")));
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    match &args.output {
        Some(path) => {
            write_derived(path, &text, &sources)?;
        }
        None => screen.text(&text),
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The program, before any pass.
    fn program(&self, subject: &Subject) -> Result<Graph, CliError> {
        subject.program(self.work, self.products.precision())
    }

    /// What was traced of it, before gradients.
    fn traced(&self, subject: &Subject) -> Result<Graph, CliError> {
        match subject {
            Subject::Model(model) => traced(model, self.work, self.products.precision()),
            Subject::Given(_) => self.program(subject),
        }
    }

    fn show(&self, subject: &Subject) -> Result<String, CliError> {
        if self.format == Format::Html {
            return self.page(subject);
        }
        if let Some(pass) = &self.diff {
            let (stages, program) = self.stages(subject)?;
            let graph = self.part(stages.divide(&program)?.graphs)?;
            return difference(&graph, stages.passes(), pass);
        }
        if self.kernel.is_some() && !self.shows_kernels() {
            let reason = "--kernel is for --stage fuse, schedule, clif, asm, cuda and ptx, as text";
            return Err(CliError::Usage(reason.into()));
        }
        if self.times.is_some() {
            return Err(CliError::Usage("--times is for --format html".into()));
        }
        let fused = || -> Result<(Stages, KernelGraph), CliError> {
            let (stages, program) = self.stages(subject)?;
            let part = self.part(simplified(&stages, &program, &self.passes)?)?;
            let kernels = stages.fuse(&part.graph)?;
            Ok((stages, kernels))
        };
        let planned = || fused().map(|(stages, kernels)| stages.plan(kernels));
        match self.stage()? {
            Stage::Trace if self.loss.is_some() => Err(CliError::Usage(
                "--stage grad shows the whole training step, --stage trace without --loss the model".into(),
            )),
            Stage::Trace => self.graph(&self.traced(subject)?),
            Stage::Grad if self.file.is_some() && self.loss.is_none() => Err(CliError::Usage(
                "a file holds what was derived already; --stage trace shows all of it".into(),
            )),
            Stage::Grad if self.work == Work::Train => {
                let (stages, program) = self.stages(subject)?;
                self.graph(&self.part(stages.divide(&program)?.graphs)?)
            }
            Stage::Grad => {
                let work = self.work.name();
                Err(CliError::Usage(format!("--work {work} has no gradients; --stage trace shows all of it")))
            }
            Stage::Simplify => self.simplify(subject),
            Stage::Fuse => self.kernels(&fused()?.1),
            Stage::Plan => self.plan(&planned()?),
            Stage::Schedule => self.code(subject, |listing| listing.schedule),
            Stage::Clif => self.code(subject, |listing| listing.ir),
            Stage::Asm => self.code(subject, |listing| listing.assembly),
            Stage::Cuda => self.cuda(&planned()?, |function| Ok(function.text.clone())),
            Stage::Ptx => {
                let architecture = self.arch.as_deref().unwrap_or(ARCHITECTURE);
                self.cuda(&planned()?, |function| Ok(kernfusion_cuda::ptx(function, architecture)?))
            }
        }
    }

    /// The program, and the stages that it goes through: on a GPU, kernels are other ones.
    fn stages(&self, subject: &Subject) -> Result<(Stages, Graph), CliError> {
        let program = self.program(subject)?;
        let target = self.target(&program)?;
        let stages = stages(&program, &target)?;
        let stages = match self.is_of_gpu() {
            true => Stages::of_gpu(&target, stages.memory(), kernfusion_cuda::accepts),
            false => stages,
        };
        Ok((stages, program))
    }

    /// Whether a GPU's program is shown, instead of this CPU's.
    fn is_of_gpu(&self) -> bool {
        self.arch.is_some() || matches!(self.stage, Some(Stage::Cuda | Stage::Ptx))
    }

    /// Whether the stage and its form can be of some kernels alone.
    fn shows_kernels(&self) -> bool {
        let stages = [Stage::Trace, Stage::Grad, Stage::Simplify, Stage::Plan];
        self.format == Format::Text && self.stage.is_none_or(|stage| !stages.contains(&stage))
    }

    /// How kernels become CUDA C++.
    fn of_cuda(&self) -> kernfusion_cuda::Options {
        let architecture = self.arch.as_deref().unwrap_or(ARCHITECTURE);
        kernfusion_cuda::Options { tf32: self.tf32, ..kernfusion_cuda::Options::of(architecture) }
    }

    fn target(&self, program: &Graph) -> Result<Target, CliError> {
        target(program, (self.mode, self.products.precision()), &self.memory, &self.ranks)
    }

    fn stage(&self) -> Result<Stage, CliError> {
        self.stage.ok_or_else(|| CliError::Usage("say which --stage; only --format html shows all".into()))
    }

    /// All stages in one page.
    fn page(&self, subject: &Subject) -> Result<String, CliError> {
        if self.passes.stops_early() || self.kernel.is_some() {
            let reason = "a page shows the whole pipeline: leave out --after, --stop-after and --kernel";
            return Err(CliError::Usage(reason.into()));
        }
        if self.ranks.count() > 1 {
            return Err(CliError::Usage("a page shows the program of one process: leave out --ranks".into()));
        }
        let (stages, program) = self.stages(subject)?;
        let title = match subject {
            Subject::Model(model) => format!("{} {}", model.name, self.work.name()),
            Subject::Given(_) => subject.name(),
        };
        let part = self.part(stages.divide(&program)?.graphs)?;
        let options = Options {
            title,
            mode: self.mode,
            precision: self.products.precision(),
            memory: stages.memory(),
            gpu: self.is_of_gpu().then(|| self.of_cuda()),
            ..Options::default()
        };
        view::page(&part, options, self.times.as_deref())
    }

    /// Which of a program's parts is shown.
    fn part<T>(&self, mut parts: Vec<T>) -> Result<T, CliError> {
        if self.tail && parts.len() == 1 {
            return Err(CliError::Usage(
                "--tail is of a program in microbatches: say --microbatches, --memory-limit or --ranks"
                    .into(),
            ));
        }
        Ok(parts.swap_remove(usize::from(self.tail)))
    }

    fn graph(&self, graph: &Graph) -> Result<String, CliError> {
        match self.format {
            Format::Text => Ok(graph.to_string()),
            Format::Dot => Ok(graph.to_dot()),
            Format::Mermaid => Ok(graph.to_mermaid()),
            Format::Json => Ok(graph.to_json()),
            Format::Html => unreachable!("a page shows all stages"),
        }
    }

    /// The graph after the passes, and which rules fired: in text form as comments, else on standard error.
    fn simplify(&self, subject: &Subject) -> Result<String, CliError> {
        let (stages, program) = self.stages(subject)?;
        let Simplified { graph, notes } = self.part(simplified(&stages, &program, &self.passes)?)?;
        let text = self.graph(&graph)?;
        if matches!(self.format, Format::Text) {
            return Ok(notes.iter().map(|line| format!("# {line}\n")).chain([text]).collect());
        }
        notes.iter().for_each(|line| note(line));
        Ok(text)
    }

    fn kernels(&self, graph: &KernelGraph) -> Result<String, CliError> {
        match self.format {
            Format::Text if self.kernel.is_some() => {
                let texts = graph.kernels.iter().filter(|kernel| self.wants(kernel));
                Ok(texts.map(|kernel| graph.show(kernel).to_string()).collect::<Vec<_>>().join("\n"))
            }
            Format::Text => Ok(graph.to_string()),
            Format::Dot => Ok(graph.to_dot()),
            Format::Mermaid => Ok(graph.to_mermaid()),
            Format::Json => Ok(graph.to_json()),
            Format::Html => unreachable!("a page shows all stages"),
        }
    }

    fn plan(&self, plan: &Plan) -> Result<String, CliError> {
        match self.format {
            Format::Text => Ok(plan.to_string()),
            Format::Json => Ok(serde_json::to_string_pretty(plan).expect("a plan is plain data")),
            Format::Dot | Format::Mermaid => Err(self.only_text("text and json; --stage fuse has pictures")),
            Format::Html => unreachable!("a page shows all stages"),
        }
    }

    /// The code of each kernel, one after another. Equal kernels share one function and show it each time.
    fn code(&self, subject: &Subject, text: impl Fn(Listing) -> String) -> Result<String, CliError> {
        if self.format != Format::Text {
            return Err(self.only_text("text only"));
        }
        if self.is_of_gpu() {
            return Err(self.only_cpu());
        }
        if self.passes.stops_early() {
            return Err(CliError::Usage(
                "code is made of the whole pipeline: leave out --after and --stop-after".into(),
            ));
        }
        let program = self.program(subject)?;
        let program = compile(&program, &States::new(), &self.target(&program)?.keep_code(true))?;
        let mut parts = Vec::new();
        let (number, plan) = self.part(program.plans().into_iter().enumerate().collect())?;
        for kernel in plan.graph.kernels.iter().filter(|kernel| self.wants(kernel)) {
            let listing = program.listing(number, &kernel.name);
            let code = listing.map_or_else(|| "; no code of its own\n".into(), &text);
            parts.push(format!("; kernel {}\n{code}", kernel.name));
        }
        Ok(parts.join("\n"))
    }

    /// The functions of each kernel, one after another. Equal kernels share functions, which are shown once.
    fn cuda(
        &self,
        plan: &Plan,
        text: impl Fn(&Function) -> Result<String, CliError>,
    ) -> Result<String, CliError> {
        if self.format != Format::Text {
            return Err(self.only_text("text only"));
        }
        let mut renderer = Renderer::new(self.of_cuda());
        let program = renderer.program(plan).map_err(kernfusion_lm::Error::from)?;
        let mut shown = BTreeSet::new();
        let mut parts = Vec::new();
        for step in &program.steps {
            if let StreamOp::Launch(launch) = step
                && launch.kernels.iter().any(|kernel| self.wants(&plan.graph.kernels[*kernel]))
                && shown.insert(launch.function)
            {
                parts.push(text(&renderer.functions()[launch.function])?);
            }
        }
        Ok(parts.join("\n"))
    }

    fn wants(&self, kernel: &Kernel) -> bool {
        self.kernel.as_ref().is_none_or(|text| kernel.name.contains(text))
    }

    fn only_cpu(&self) -> CliError {
        let stage = self.stage.map(name).unwrap_or_default();
        CliError::Usage(format!("--stage {stage} is of a CPU: leave out --arch, or say --stage cuda or ptx"))
    }

    fn only_text(&self, forms: &str) -> CliError {
        let (stage, format) = (self.stage.map(name).unwrap_or_default(), name(self.format));
        CliError::Usage(format!("--stage {stage} has no {format} form, but {forms}"))
    }
}

/// A value as its flag takes it.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
}
