//! The flags that say which model a command works on, and on which program of it.

use crate::common::error::{CliError, in_file, read_text};
use clap::ValueEnum;
use kernfusion::Result;
use kernfusion::WeightType;
use kernfusion::compile::{Bf16Products, Candidates, F32Products, Mode, Precision, Target};
use kernfusion::models::{Chunk, ModelConfig, preset};
use kernfusion::optim::Optimizer;
use kernfusion::trace::{Program, Trace};
use std::path::PathBuf;

/// Which model.
#[derive(clap::Args)]
pub(crate) struct ModelArgs {
    /// Model shape by name [default: tiny]; `kernfusion presets` lists them
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Any other model shape: a JSON object with fields as `kernfusion presets --json` shows them; fields left out come
    /// from the preset
    #[arg(long, value_name = "FILE.json")]
    pub(crate) config: Option<PathBuf>,
    /// Windows in a batch [default: the preset's]
    #[arg(long, value_name = "B")]
    pub(crate) batch_size: Option<usize>,
    /// Dropout probability [default: the preset's]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) dropout: Option<f64>,
}

/// The model that the flags describe.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) preset: &'static str,
    /// What reports call it: the file with its shape, or the preset.
    pub(crate) name: String,
    pub(crate) config: ModelConfig,
    pub(crate) batch: usize,
    /// What matrices are kept as by programs that only read them, if it is not what products take.
    pub(crate) weights: Option<WeightType>,
    /// The fields that the user's file has.
    fields: serde_json::Value,
}

impl Model {
    /// With matrices kept as these flags say, for a work that only reads them.
    pub(crate) fn keeping(self, flags: &WeightsArgs, work: Work) -> std::result::Result<Self, CliError> {
        let weights = flags.weights.map(WeightsArg::kept);
        if weights.is_some() && matches!(work, Work::Train | Work::Forward) {
            return Err(CliError::Usage("--weights is for --work prefill and --work decode".into()));
        }
        Ok(Model { weights, ..self })
    }

    /// Whether the user's file says what this field is, rather than the preset.
    pub(crate) fn fixes(&self, field: &str) -> bool {
        self.fields.get(field).is_some()
    }
}

/// A number above was mistyped, and products of extents would overflow.
const LARGEST_BATCH: usize = 1 << 24;

impl ModelArgs {
    /// The model, with everything that is not given taken from the preset.
    pub(crate) fn resolve(&self) -> std::result::Result<Model, CliError> {
        let preset = preset(self.preset.as_deref().unwrap_or("tiny"))?;
        let (mut config, mut fields) = (preset.config, serde_json::Value::Null);
        if let Some(path) = &self.config {
            let json = read_text(path)?;
            config = config.with_json(&json).map_err(|error| in_file(path, error))?;
            fields = serde_json::from_str(&json).unwrap_or_default();
        }
        config.set_dropout(self.dropout.unwrap_or(config.dropout()));
        config.validate()?;
        let batch = self.batch_size.unwrap_or(preset.batch);
        if batch == 0 {
            return Err(CliError::Usage("--batch-size must be at least 1".into()));
        }
        if batch > LARGEST_BATCH {
            let reason = format!("batch size {batch} is above the largest possible, {LARGEST_BATCH}");
            return Err(CliError::Usage(reason));
        }
        let file = self.config.as_ref().map(|path| path.display().to_string());
        let name = file.unwrap_or_else(|| preset.name.into());
        Ok(Model { preset: preset.name, name, config, batch, weights: None, fields })
    }

    /// Whether a shape was given, by name or by file.
    pub(crate) fn names_a_shape(&self) -> bool {
        self.preset.is_some() || self.config.is_some()
    }
}

/// Tokens of a prompt in the work `prefill`.
const PROMPT: usize = 128;

/// Which program of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// A whole training step: loss, gradients, update
    Train,
    /// The loss of an evaluating model
    Forward,
    /// The first 128 tokens of a prompt at once, into empty caches
    Prefill,
    /// One token with caches of the whole context, half of which is read before
    Decode,
}

impl Work {
    /// The name, as the flag takes it.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }

    /// The program, with the number type of its products. A training step is one of AdamW without clipping; matrices of a
    /// model that reads chunk by chunk are kept as what products take.
    pub(crate) fn program(
        self,
        model: &Model,
        precision: Precision,
    ) -> std::result::Result<Program, CliError> {
        let program: Result<Program> = match self {
            Work::Train => {
                model.config.train_step(model.batch, &benchmark_optimizer(), None).map(|step| step.program)
            }
            Work::Forward => model.config.evaluation(model.batch),
            Work::Prefill | Work::Decode => {
                let trace = Trace::new();
                trace.store_matrices(model.weights.unwrap_or(precision.weights()));
                self.continuation(model, &trace)
            }
        };
        Ok(program?)
    }

    /// Tokens of each row that a step reads.
    pub(crate) fn length(self, model: &Model) -> usize {
        match self {
            Work::Train | Work::Forward => model.config.context(),
            Work::Prefill => model.config.context().min(PROMPT),
            Work::Decode => 1,
        }
    }

    fn continuation(self, model: &Model, trace: &Trace) -> Result<Program> {
        let (length, capacity) = (self.length(model), model.config.context());
        let visible = if self == Work::Decode { capacity } else { length };
        let chunk = Chunk { length, visible, capacity };
        let unfit =
            || kernfusion::Error::Configuration(format!("only a decoder has the work {}", self.name()));
        model.config.continuation(trace, model.batch, chunk)?.ok_or_else(unfit)
    }
}

/// The update rule of programs that are not trained for their own sake.
pub(crate) fn benchmark_optimizer() -> Optimizer {
    Optimizer::adamw(3e-4)
}

/// How much memory programs may take.
#[derive(clap::Args)]
pub(crate) struct MemoryArgs {
    /// Memory that the whole process may take, such as 700MiB, 1.5GiB, 512MB, or in bytes; the batch is then computed in
    /// as many microbatches, one after another, as that needs
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory_limit: Option<usize>,
    /// Microbatches in which the batch is computed, one after another [default: the fewest that fit the limit; without one, as
    /// many as keep temporaries within 256 MiB]
    #[arg(long, alias = "slices", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    microbatches: Option<u32>,
    /// Computes products that backward needs again instead of keeping them: far less memory, about a tenth more time; a
    /// memory limit asks for it where microbatches do not suffice
    #[arg(long)]
    recompute: bool,
}

impl MemoryArgs {
    /// The target with the limits that the flags set.
    pub(crate) fn limit(&self, target: Target) -> Target {
        let target =
            self.memory_limit.into_iter().fold(target, Target::memory_limit).recompute(self.recompute);
        self.microbatches().into_iter().fold(target, Target::microbatches)
    }

    /// The whole batch at once, unless the flags say otherwise: for looking at programs.
    pub(crate) fn or_whole(self) -> Self {
        let microbatches = self.microbatches.or_else(|| self.memory_limit.is_none().then_some(1));
        MemoryArgs { microbatches, ..self }
    }

    /// The number of microbatches, if the user has chosen it.
    pub(crate) fn microbatches(&self) -> Option<usize> {
        self.microbatches.map(|microbatches| microbatches as usize)
    }
}

/// A number of bytes: `700MiB`, `1.5GiB`, `512MB`, `734003200`.
fn size(text: &str) -> std::result::Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let units = [
        ("", 1u64),
        ("B", 1),
        ("KB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
    ];
    let unknown =
        || format!("no size: write bytes, or a number with one of KiB, MiB, GiB, KB, MB, GB (\"{text}\")");
    let unit = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim())).ok_or_else(unknown)?.1;
    let bytes = number.parse::<f64>().map_err(|_| unknown())? * unit as f64;
    if bytes < 1.0 || bytes >= (1u64 << 62) as f64 {
        return Err("no size of any memory".into());
    }
    Ok(bytes as usize)
}

/// The number type of matrix products.
#[derive(clap::Args)]
pub(crate) struct PrecisionArgs {
    /// Number type of matrix products; parameters and optimizer stay f32. With int8, for models that are only read on a CPU, matrices and what
    /// they multiply are rounded to it, row by row
    #[arg(long, value_enum, value_name = "DTYPE", default_value = "f32")]
    dtype: DtypeArg,
}

impl PrecisionArgs {
    pub(crate) fn precision(&self) -> Precision {
        match self.dtype {
            DtypeArg::F32 => Precision::F32,
            DtypeArg::Bf16 => Precision::Bf16,
            DtypeArg::Int8 => Precision::Int8,
        }
    }
}

/// What a model that is only read takes in memory.
#[derive(clap::Args)]
pub(crate) struct WeightsArgs {
    /// What matrices are kept as; int8 has a scale for each row, int4 for each 32 numbers of one [default: what products take, see --dtype]
    #[arg(long, value_enum, value_name = "DTYPE")]
    weights: Option<WeightsArg>,
}

impl WeightsArgs {
    /// Whether the user has said anything.
    pub(crate) fn is_given(&self) -> bool {
        self.weights.is_some()
    }

    /// The target with what the flag says.
    pub(crate) fn of(&self, target: Target) -> Target {
        self.weights.map(WeightsArg::kept).into_iter().fold(target, Target::weights)
    }
}

/// How a trained model is executed.
#[derive(clap::Args)]
pub(crate) struct ExecutionArgs {
    /// How the model is executed
    #[arg(long, value_name = "MODE", default_value = "compiled")]
    mode: Mode,
    #[command(flatten)]
    pub(crate) weights: WeightsArgs,
    #[command(flatten)]
    target: TargetArgs,
}

impl ExecutionArgs {
    /// What to compile for.
    pub(crate) fn target(&self) -> std::result::Result<Target, CliError> {
        Ok(self.weights.of(self.target.target(self.mode)?))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WeightsArg {
    F32,
    Bf16,
    Int8,
    Int4,
}

impl WeightsArg {
    fn kept(self) -> WeightType {
        match self {
            WeightsArg::F32 => WeightType::F32,
            WeightsArg::Bf16 => WeightType::BF16,
            WeightsArg::Int8 => WeightType::Int8,
            WeightsArg::Int4 => WeightType::Int4,
        }
    }
}

/// Where and how programs run.
#[derive(clap::Args)]
pub(crate) struct TargetArgs {
    #[command(flatten)]
    products: PrecisionArgs,
    /// Where programs run: cpu, cuda (the first GPU; of several processes on a machine, each takes the next) or cuda:N (GPU N, from 0)
    #[arg(long, value_name = "cpu|cuda|cuda:N", default_value = "cpu")]
    device: DeviceArg,
    /// How products of f32 are computed
    #[arg(long, value_enum, value_name = "HOW", default_value = "exact")]
    f32_products: F32ProductsArg,
    /// How products of bf16 are computed
    #[arg(long, value_enum, value_name = "HOW", default_value = "exact")]
    bf16_products: Bf16ProductsArg,
    /// The same as --f32-products tf32
    #[arg(long, conflicts_with = "f32_products")]
    tf32: bool,
    /// On a GPU: measure who does each product best, and keep the choice on disk
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "tiles")]
    tune: Option<TuneArg>,
    /// End with an error that names the op, the module and the line if a step gives a NaN or an infinity; takes a copy of all
    /// states for each step
    #[arg(long)]
    check_finite: bool,
    /// Threads; results do not depend on it [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DtypeArg {
    F32,
    Bf16,
    Int8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bf16ProductsArg {
    /// By multiplications of bf16, or of f32 where the processor has nothing for bf16 that is faster
    Exact,
    /// As --f32-products fixed, where the processor has nothing for bf16 that is faster than f32; elsewhere exact
    Fixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum F32ProductsArg {
    /// By multiplications and additions of f32
    Exact,
    /// On a GPU: on tensor cores, with operands rounded to 10 bits of fraction
    Tf32,
    /// On a CPU with tiles (AMX): by six products of bf16 each, as exact as f32; elsewhere exact
    X6,
    /// On a CPU with tiles (AMX): by three products of bf16 each, errors about ten times those of f32; elsewhere exact
    X3,
    /// On a CPU without tiles but with AVX-512 VNNI or AVX-VNNI: in fixed point, whole numbers of 13 bits with a scale for each 128, about as exact as
    /// TF32; elsewhere exact
    Fixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TuneArg {
    /// Our own tiles; results stay the same
    Tiles,
    /// Our own tiles and, for plain products, cublasLt; results may change in their last digits
    Library,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceArg {
    Cpu,
    /// A GPU by its number; without one, the first, or of several processes to each its own.
    Cuda(Option<usize>),
}

impl std::str::FromStr for DeviceArg {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        match (text, text.strip_prefix("cuda:").map(str::parse)) {
            ("cpu", _) => Ok(DeviceArg::Cpu),
            ("cuda", _) => Ok(DeviceArg::Cuda(None)),
            (_, Some(Ok(number))) => Ok(DeviceArg::Cuda(Some(number))),
            _ => Err("it is cpu, cuda or cuda:N with the number of a GPU, such as cuda:0"),
        }
    }
}

/// Why a GPU refuses what is for CPUs.
const INT8_ON_GPU: &str = "--dtype int8 multiplies bytes on CPUs, not on --device cuda";
const F32_ON_GPU: &str = "--f32-products x6, x3 and fixed are for CPUs, not for --device cuda";
const FIXED_ON_GPU: &str = "--bf16-products fixed is for CPUs, not for --device cuda";

impl TargetArgs {
    /// The target in a mode: the CPU, or the first GPU.
    pub(crate) fn target(&self, mode: Mode) -> std::result::Result<Target, CliError> {
        self.target_of(mode, 0)
    }

    /// The target of one of several ranks on this machine: the CPU, or a GPU, which are dealt out to them in turn.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "CPUs are shared"))]
    pub(crate) fn target_of(&self, mode: Mode, local_rank: usize) -> std::result::Result<Target, CliError> {
        let candidates = match self.tune {
            None => Candidates::None,
            Some(TuneArg::Tiles) => Candidates::Tiles,
            Some(TuneArg::Library) => Candidates::Library,
        };
        let target = self.with_threads().mode(mode).precision(self.precision());
        let target = target.f32_products(self.f32_products()).bf16_products(self.bf16_products());
        let target = target.tune(candidates).check_finite(self.check_finite);
        let is_fixed = self.bf16_products() == Bf16Products::Fixed;
        match self.device {
            _ if is_fixed && self.precision() != Precision::Bf16 => Err(CliError::Usage(
                "--bf16-products fixed is for products of bf16: it needs --dtype bf16".into(),
            )),
            DeviceArg::Cuda(_) if is_fixed => Err(CliError::Usage(FIXED_ON_GPU.into())),
            DeviceArg::Cpu if self.f32_products() == F32Products::Tf32 => {
                Err(CliError::Usage("TF32 is a number type of GPUs: it needs --device cuda".into()))
            }
            DeviceArg::Cuda(_)
                if matches!(self.f32_products(), F32Products::X6 | F32Products::X3 | F32Products::Fixed) =>
            {
                Err(CliError::Usage(F32_ON_GPU.into()))
            }
            DeviceArg::Cuda(_) if self.precision() == Precision::Int8 => {
                Err(CliError::Usage(INT8_ON_GPU.into()))
            }
            DeviceArg::Cpu if self.tune.is_some() => {
                Err(CliError::Usage("--tune measures products on GPUs: it needs --device cuda".into()))
            }
            DeviceArg::Cpu => Ok(target),
            #[cfg(feature = "cuda")]
            DeviceArg::Cuda(number) => {
                let devices = kernfusion_cuda::Device::count()?.max(1);
                Ok(target.on(kernfusion_cuda::Device::open(number.unwrap_or(local_rank % devices))?))
            }
            #[cfg(not(feature = "cuda"))]
            DeviceArg::Cuda(_) => Err(kernfusion_cuda::CudaError::NotBuilt.into()),
        }
    }

    /// For a model of a card that is not here: whether products of `f32` run in TF32.
    #[cfg(feature = "cuda")]
    pub(crate) fn of_modelled_card(&self) -> std::result::Result<bool, CliError> {
        let usage = |reason: &str| Err(CliError::Usage(reason.into()));
        match (self.device, self.f32_products()) {
            (DeviceArg::Cpu, _) => usage("--model is of a GPU: it needs --device cuda"),
            _ if self.tune.is_some() => usage("--tune measures products on a GPU, and --model has none"),
            _ if self.check_finite => usage("--check-finite looks at results, and --model has none"),
            _ if self.precision() == Precision::Int8 => usage(INT8_ON_GPU),
            _ if self.bf16_products() == Bf16Products::Fixed => usage(FIXED_ON_GPU),
            (_, F32Products::X6 | F32Products::X3 | F32Products::Fixed) => usage(F32_ON_GPU),
            (DeviceArg::Cuda(_), products) => Ok(products == F32Products::Tf32),
        }
    }

    /// Refuses `--check-finite`, for this reason.
    pub(crate) fn refuse_check_finite(&self, reason: &str) -> std::result::Result<(), CliError> {
        match self.check_finite {
            true => Err(CliError::Usage(format!("--check-finite is for runs: {reason}"))),
            false => Ok(()),
        }
    }

    /// Whether the flags ask for nothing but f32 on this CPU; threads and how they are used change no result.
    pub(crate) fn is_default(&self) -> bool {
        let is_exact =
            self.f32_products() == F32Products::Exact && self.bf16_products() == Bf16Products::Exact;
        let is_plain = is_exact && self.precision() == Precision::F32;
        is_plain && self.device == DeviceArg::Cpu && self.tune.is_none() && !self.check_finite
    }

    /// The name of the device.
    pub(crate) fn device_name(&self) -> &'static str {
        match self.device {
            DeviceArg::Cpu => "cpu",
            DeviceArg::Cuda(_) => "cuda",
        }
    }

    /// The number type of matrix products.
    pub(crate) fn precision(&self) -> Precision {
        self.products.precision()
    }

    fn bf16_products(&self) -> Bf16Products {
        match self.bf16_products {
            Bf16ProductsArg::Exact => Bf16Products::Exact,
            Bf16ProductsArg::Fixed => Bf16Products::Fixed,
        }
    }

    fn f32_products(&self) -> F32Products {
        match self.f32_products {
            _ if self.tf32 => F32Products::Tf32,
            F32ProductsArg::Exact => F32Products::Exact,
            F32ProductsArg::Tf32 => F32Products::Tf32,
            F32ProductsArg::X6 => F32Products::X6,
            F32ProductsArg::X3 => F32Products::X3,
            F32ProductsArg::Fixed => F32Products::Fixed,
        }
    }

    /// What products multiply, in a word or two.
    pub(crate) fn products(&self) -> String {
        let target = self.with_threads().precision(self.precision());
        let target = target.f32_products(self.f32_products()).bf16_products(self.bf16_products());
        // Where the instruction set cannot be had, compiling says so.
        target.products().unwrap_or_else(|_| self.precision().to_string())
    }

    /// Whether the flags say how many threads there are.
    pub(crate) fn chooses_threads(&self) -> bool {
        self.threads.is_some()
    }

    /// How many threads are used.
    pub(crate) fn thread_count(&self) -> usize {
        self.with_threads().thread_count()
    }

    fn with_threads(&self) -> Target {
        let target = Target::cpu();
        match self.threads {
            Some(threads) => target.threads(threads.into()),
            None => target,
        }
    }
}
