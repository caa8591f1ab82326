//! What to compile for: where, in which mode, on how many threads, within how much memory.

use super::Compiled;
use crate::error::{Error, Result};
use kernfusion_codegen::{
    Backend, Candidates, CodegenError, Collectives, Communicator, Peaks, SharedArena, States, Temporaries,
};
use kernfusion_cpu::Meter;
use kernfusion_cpu::isa::Isa;
use kernfusion_cpu::pool::Pool;
use kernfusion_cpu::{CpuBackend, Options, Products, gemm};
#[cfg(feature = "cuda")]
use kernfusion_cuda::{CudaBackend, Device};
use kernfusion_ir::kernel::Accepts;
use kernfusion_ir::{DType, Graph};
use kernfusion_passes::{WeightType, has_int8_products};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// How a program is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Simplified, fused, and planned ahead into one arena.
    Compiled,
    /// The honest baseline: the traced graph as it is, one kernel for each op, every result in fresh memory that is
    /// freed after its last use; the same threads and the same matrix micro-kernels.
    Eager,
}

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "compiled" => Ok(Mode::Compiled),
            "eager" => Ok(Mode::Eager),
            _ => Err(format!("unknown mode `{text}`: compiled or eager")),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Compiled => "compiled",
            Mode::Eager => "eager",
        })
    }
}

/// The number type of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// `f32`.
    #[default]
    F32,
    /// Products take `bf16` operands and sum in `f32`; compiled programs also keep activations for backward as `bf16`.
    /// Parameters, statistics, losses and the optimizer stay `f32`.
    Bf16,
    /// Matrices that are only read, and what they are multiplied with, are rounded to bytes with a scale for each row, and their products are sums of
    /// whole numbers. All other products are of `f32`. Matrices that are kept as [`WeightType::Int8`] are bytes already; a program that writes no state
    /// rounds others once, one that does, such as a decoder, in each run, and only for products of 32 rows or more. On CPUs.
    Int8,
}

impl Precision {
    /// What matrices are kept as by default.
    pub fn weights(self) -> WeightType {
        match self {
            Precision::F32 => WeightType::F32,
            Precision::Bf16 => WeightType::BF16,
            Precision::Int8 => WeightType::Int8,
        }
    }

    /// The number type of products of two computed operands, such as those of attention.
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 | Precision::Int8 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Int8 => "int8",
        })
    }
}

/// How products of `f32` are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum F32Products {
    /// By multiplications and additions of `f32`.
    #[default]
    Exact,
    /// On a GPU: on tensor cores, with operands rounded to 10 bits of fraction (TF32).
    Tf32,
    /// On a CPU: by six products of `bf16` on its tile unit (AMX), for which each operand is taken apart into three numbers. As exact as
    /// [`F32Products::Exact`], but for operands below 2⁻¹¹⁰, whose last digits count as zero, and infinities, which become NaN. Without a
    /// tile unit, products are exact.
    X6,
    /// On a CPU: by three products of `bf16` on its tile unit (AMX), with operands of two numbers: errors about ten times those of `f32`,
    /// a five-hundredth of those of `bf16`. Without a tile unit, products are exact.
    X3,
    /// On a CPU that has no tiles, but multiplies whole numbers of 16 bits (AVX-512 VNNI, AVX-VNNI): in fixed point, twice as fast. 128 values of a row
    /// of either operand, from a multiple of 128 on, are whole numbers up to 4,095 times a scale, so that each is off by at most 1/8,190 of the
    /// largest of them. Where the largest values of two blocks multiply to less than 2⁻¹⁰², digits are lost, and above 2¹⁵¹ sums are not finite.
    /// Products with fewer than 32 rows or columns, short sums, windows of convolutions and attention are exact, and elsewhere all are.
    Fixed,
}

impl fmt::Display for F32Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            F32Products::Exact => "f32",
            F32Products::Tf32 => "tf32",
            F32Products::X6 => "f32 x6",
            F32Products::X3 => "f32 x3",
            F32Products::Fixed => "f32 fixed",
        })
    }
}

/// How products of `bf16` are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bf16Products {
    /// By multiplications of `bf16` with sums in `f32`, or of `f32` where the processor has nothing for `bf16`, or nothing faster.
    #[default]
    Exact,
    /// As [`F32Products::Fixed`], where the processor has nothing for `bf16` that is faster than `f32`. As `bf16` is off by up to 1/256 of each value, this
    /// is less exact only for values of less than a sixteenth of the largest beside them.
    Fixed,
}

/// What to compile for: the CPU, how many threads, which mode. Executables of one target share its threads.
#[derive(Clone)]
pub struct Target {
    pub(super) mode: Mode,
    pub(super) precision: Precision,
    pub(super) stored: Option<WeightType>,
    pub(super) threads: usize,
    pub(super) isa: Option<Isa>,
    pub(super) keep_code: bool,
    pub(super) check_finite: bool,
    pub(super) pool: Option<Arc<Pool>>,
    pub(super) microbatches: Option<usize>,
    pub(super) recompute: bool,
    pub(super) memory_limit: Option<usize>,
    pub(super) f32_products: F32Products,
    pub(super) bf16_products: Bf16Products,
    pub(super) candidates: Candidates,
    pub(super) arena: Option<SharedArena>,
    pub(super) communicator: Option<Arc<dyn Communicator>>,
    pub(super) shards_optimizer: bool,
    pub(super) bf16_exchange: bool,
    pub(super) collectives: Collectives,
    #[cfg(feature = "cuda")]
    pub(super) device: Option<Device>,
}

impl Target {
    /// This machine's CPU with a thread for each core, compiled mode.
    pub fn cpu() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Target {
            mode: Mode::Compiled,
            precision: Precision::F32,
            stored: None,
            threads,
            isa: None,
            keep_code: false,
            check_finite: false,
            pool: None,
            microbatches: None,
            recompute: false,
            memory_limit: None,
            f32_products: F32Products::Exact,
            bf16_products: Bf16Products::Exact,
            candidates: Candidates::None,
            arena: None,
            communicator: None,
            shards_optimizer: false,
            bf16_exchange: false,
            collectives: Collectives::Ordered,
            #[cfg(feature = "cuda")]
            device: None,
        }
    }

    /// Sets the number of threads, at least one. Results do not depend on it.
    pub fn threads(self, threads: usize) -> Self {
        Target { threads: threads.max(1), pool: None, ..self }
    }

    /// In this mode.
    pub fn mode(self, mode: Mode) -> Self {
        Target { mode, ..self }
    }

    /// With matrix products of this number type.
    pub fn precision(self, precision: Precision) -> Self {
        Target { precision, ..self }
    }

    /// With the matrices of models that are only read (generators and scorers from checkpoints) kept as this type, see
    /// [`Trace::store_matrices`](crate::trace::Trace::store_matrices). The default is the number type of products.
    pub fn weights(self, stored: WeightType) -> Self {
        Target { stored: Some(stored), ..self }
    }

    /// With products of `f32` computed this way. Compiling refuses a way of CPUs on a GPU, and one of GPUs on a CPU.
    pub fn f32_products(self, f32_products: F32Products) -> Self {
        Target { f32_products, ..self }
    }

    /// With products of `bf16` computed this way. Compiling refuses fixed point on a GPU.
    pub fn bf16_products(self, bf16_products: Bf16Products) -> Self {
        Target { bf16_products, ..self }
    }

    /// On a GPU: measures who does each product best when a program is compiled, and keeps the choice on disk. On the CPU
    /// there is nothing to choose, and compiling refuses it.
    pub fn tune(self, candidates: Candidates) -> Self {
        Target { candidates, ..self }
    }

    /// With the tile primitives of this instruction set instead of the best that the CPU has.
    pub fn isa(self, isa: Isa) -> Self {
        Target { isa: Some(isa), ..self }
    }

    /// The instruction set of tile primitives and products.
    ///
    /// # Errors
    /// The one that the environment asks for is not there.
    pub fn instruction_set(&self) -> Result<Isa> {
        Ok(self.isa.map_or_else(Isa::detect, Ok).map_err(CodegenError::from)?)
    }

    /// Keeps Cranelift IR and disassembly of each kernel, for dumps.
    pub fn keep_code(self, keep_code: bool) -> Self {
        Target { keep_code, ..self }
    }

    /// Lets every run end with an error that names the operation and the line if a result or a new state has a NaN or an
    /// infinity ([`NonFinite`](super::NonFinite)). It takes a copy of all states before each run, and for a run that fails the memory of eager
    /// mode, on the CPU.
    pub fn check_finite(self, check_finite: bool) -> Self {
        Target { check_finite, ..self }
    }

    /// Computes the batch in this many microbatches, one after another; 1 is all at once. Without it, a batch whose
    /// temporaries would take more than a quarter of a gibibyte of the CPU's memory is computed in microbatches. Results differ by the rounding of sums
    /// over the batch only.
    pub fn microbatches(self, microbatches: usize) -> Self {
        Target { microbatches: Some(microbatches), ..self }
    }

    /// Computes products that backward needs again instead of keeping them, where their results are larger than what they
    /// are computed from: in a Transformer those before attention and those before an activation. That takes far less
    /// memory and about a tenth more time.
    pub fn recompute(self, recompute: bool) -> Self {
        Target { recompute, ..self }
    }

    /// Limits the memory of the process, in bytes, to this much while the program runs, including what it holds already;
    /// on a GPU, the device's memory. Without [`Target::microbatches`] the batch is computed in the fewest microbatches that fit; if
    /// none do, products are computed again, too ([`Target::recompute`]).
    pub fn memory_limit(self, bytes: usize) -> Self {
        Target { memory_limit: Some(bytes), ..self }
    }

    /// As one of several ranks, which run the same program side by side on the same inputs, each on its rows of the batch. Every rank has to run it
    /// every time. Results and new states are those of the whole batch, the same on every rank; of a result that has the batch itself, each
    /// rank gets its rows. [`Target::microbatches`] are those of each rank. With one of them, everything has the bits that one process gives
    /// in as many microbatches as there are ranks; with more, sums over the batch are rounded otherwise. On GPUs each rank needs one of its own,
    /// and NCCL, which is loaded when a program is compiled.
    pub fn ranks(self, communicator: Arc<dyn Communicator>) -> Self {
        Target { communicator: Some(communicator), ..self }
    }

    /// With each of several ranks keeping and updating its part alone of the optimizer's state: of whatever only the update reads and
    /// writes, element by element (ZeRO, stage 1: Rajbhandari, Rasley, Ruwase, He, "ZeRO: memory optimizations toward training trillion parameter
    /// models", 2020). Nothing has other bits. Where gradients are clipped, half as many bytes more are exchanged.
    pub fn shard_optimizer(self, shards_optimizer: bool) -> Self {
        Target { shards_optimizer, ..self }
    }

    /// Whether each of several ranks keeps its part alone of the optimizer's state.
    pub fn shards_optimizer(&self) -> bool {
        self.shards_optimizer && self.rank_count() > 1
    }

    /// With ranks exchanging sums over the batch as `bf16`, in half as many bytes: what each has is rounded, added in `f32` in ascending order of ranks, and
    /// rounded once more. Single numbers, as a loss is, stay `f32`, and so do parameters that ranks have updated in parts.
    pub fn bf16_exchange(self, bf16_exchange: bool) -> Self {
        Target { bf16_exchange, ..self }
    }

    /// With what ranks exchange summed so. [`Collectives::Library`] may be quicker, and results have bits that depend on the library and on the machines
    /// that it connects. Ranks that are threads have no library, unless they run on GPUs.
    pub fn collectives(self, collectives: Collectives) -> Self {
        Target { collectives, ..self }
    }

    /// Without other ranks.
    pub fn alone(self) -> Self {
        Target { communicator: None, ..self }
    }

    /// The way to the other ranks, if there are some.
    pub fn communicator(&self) -> Option<&Arc<dyn Communicator>> {
        self.communicator.as_ref()
    }

    /// How many ranks run a program side by side.
    pub fn rank_count(&self) -> usize {
        self.communicator.as_ref().map_or(1, |communicator| communicator.ranks())
    }

    /// Runs programs in the arena of one that is compiled already, in the fewest microbatches that fit into it if any do. They
    /// run in turns. On a GPU every program has memory of its own.
    pub fn share_arena(self, with: &Compiled) -> Self {
        Target { arena: with.arena().cloned(), microbatches: None, ..self }
    }

    /// On a GPU. Threads and the instruction set are the CPU's and play no part there.
    #[cfg(feature = "cuda")]
    pub fn on(self, device: Device) -> Self {
        Target { device: Some(device), ..self }
    }

    /// The back end, with how programs are compiled for it.
    pub fn backend(&self) -> Box<dyn Backend> {
        #[cfg(feature = "cuda")]
        if let Some(device) = &self.device {
            let options = kernfusion_cuda::Options {
                tf32: self.f32_products == F32Products::Tf32,
                candidates: self.candidates,
                communicator: self.communicator.clone(),
                collectives: self.collectives,
                ..Default::default()
            };
            return Box::new(CudaBackend { device: device.clone(), options });
        }
        Box::new(CpuBackend { options: self.cpu_options(Temporaries::Arena) })
    }

    /// How products are computed on the CPU.
    fn cpu_products(&self) -> Products {
        Products {
            f32: match self.f32_products {
                F32Products::Exact | F32Products::Tf32 => gemm::Precision::F32,
                F32Products::X6 => gemm::Precision::X6,
                F32Products::X3 => gemm::Precision::X3,
                F32Products::Fixed => gemm::Precision::Fixed,
            },
            bf16: match self.bf16_products {
                Bf16Products::Exact => gemm::Precision::Bf16,
                Bf16Products::Fixed => gemm::Precision::Fixed,
            },
        }
    }

    /// How programs run on the CPU.
    pub(crate) fn cpu_options(&self, temporaries: Temporaries) -> Options {
        Options {
            threads: self.threads,
            isa: self.isa,
            products: self.cpu_products(),
            temporaries,
            keep_code: self.keep_code,
            pool: self.pool.clone(),
            arena: self.arena.clone(),
            communicator: self.communicator.clone(),
            collectives: self.collectives,
        }
    }

    /// No states, for programs of this target: where they are made is where it runs.
    pub fn states(&self) -> States {
        self.backend().states()
    }

    /// What it can do at most, measured in less than a second.
    ///
    /// # Errors
    /// The CPU's instruction set is not usable; NVRTC or the driver reports an error; memory is short.
    pub fn peaks(&self) -> Result<Peaks> {
        Ok(self.backend().peaks()?)
    }

    /// Measures what it can do in turn with programs that move `bytes` bytes, on their threads; `None` on a GPU.
    ///
    /// # Errors
    /// The CPU's instruction set is not usable, or memory is short.
    pub fn meter(&self, bytes: usize) -> Result<Option<Meter>> {
        let pool = || self.pool.clone().unwrap_or_else(|| Arc::new(Pool::new(self.threads)));
        let meter = (!self.is_on_gpu()).then(|| Meter::new(pool(), bytes));
        Ok(meter.transpose()?.map(|meter| meter.of(self.cpu_products())))
    }

    /// Whether programs can still run: a GPU on which one has gone wrong may fail until the process ends.
    ///
    /// # Errors
    /// The one that the GPU reports.
    pub fn check(&self) -> Result<()> {
        Ok(self.backend().check()?)
    }

    /// The name of the GPU, if programs run on one.
    pub fn gpu_name(&self) -> Option<String> {
        self.backend().device_name()
    }

    /// Whether programs run on a GPU.
    pub(super) fn is_on_gpu(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.device.is_some();
        #[cfg(not(feature = "cuda"))]
        false
    }

    /// Starts the threads now, so that all clones of the result share them.
    pub fn start(mut self) -> Self {
        self.pool.get_or_insert_with(|| Arc::new(Pool::new(self.threads)));
        self
    }

    /// The number type of products.
    pub fn product_type(&self) -> Precision {
        self.precision
    }

    /// What matrices of models that are only read are kept as.
    pub fn stored(&self) -> WeightType {
        self.stored.unwrap_or(self.precision.weights())
    }

    /// How products of `f32` are computed here: exactly, where the CPU has nothing for what was asked for.
    ///
    /// # Errors
    /// The instruction set that the environment asks for is not there.
    pub fn f32_product_kind(&self) -> Result<F32Products> {
        let can = match self.f32_products {
            F32Products::Exact | F32Products::Tf32 => true,
            F32Products::X6 | F32Products::X3 => self.instruction_set()?.has_tiles(),
            F32Products::Fixed => gemm::Precision::F32.gains_by_fixed_point(self.instruction_set()?),
        };
        Ok(if can { self.f32_products } else { F32Products::Exact })
    }

    /// How products of `bf16` are computed here.
    ///
    /// # Errors
    /// As [`Target::f32_product_kind`].
    pub fn bf16_product_kind(&self) -> Result<Bf16Products> {
        let can = match self.bf16_products {
            Bf16Products::Exact => true,
            Bf16Products::Fixed => gemm::Precision::Bf16.gains_by_fixed_point(self.instruction_set()?),
        };
        Ok(if can { self.bf16_products } else { Bf16Products::Exact })
    }

    /// What products of matrices multiply here, in a word or two: `f32`, `f32 x6`, `f32 x3`, `f32 fixed`, `tf32`, `bf16`, `bf16 fixed` or `int8`.
    ///
    /// # Errors
    /// As [`Target::f32_product_kind`].
    pub fn products(&self) -> Result<String> {
        Ok(match self.precision {
            Precision::F32 => self.f32_product_kind()?.to_string(),
            Precision::Bf16 if self.bf16_product_kind()? == Bf16Products::Fixed => "bf16 fixed".to_owned(),
            Precision::Bf16 | Precision::Int8 => self.precision.to_string(),
        })
    }

    /// Whether there are products of this number type in a program.
    ///
    /// # Errors
    /// Products of int8, in a program without matrices that it only reads, or on a GPU.
    pub fn check_products(&self, graph: &Graph) -> Result<()> {
        let reason = match self.precision {
            Precision::Int8 if self.is_on_gpu() => "products of int8 are for CPUs",
            Precision::Int8 if !has_int8_products(graph) => {
                "products of int8 multiply matrices that a program only reads, and this one has none, or none that is large enough: \
                 multiply in f32 or bf16"
            }
            _ => return Ok(()),
        };
        Err(Error::Configuration(reason.into()))
    }

    /// Which kernels the back end has code for.
    pub fn accepts(&self) -> Accepts {
        self.backend().accepts()
    }

    /// The number of threads.
    pub fn thread_count(&self) -> usize {
        self.threads
    }
}
