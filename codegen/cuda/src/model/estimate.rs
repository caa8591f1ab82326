//! Launches of a program with their times.

use super::access::SECTOR;
use super::card::Card;
use super::occupancy::{Resources, WARP, resident_blocks};
use super::pipe::is_of_registers;
use super::warp::{Memory, Position, Trace, run};
use super::{Bound, ModelError, Sass, Work, cubin, disassembler};
use crate::launches::{Function, Launch, Launches, StreamOp};
use crate::{Cache, in_parallel};
use kernfusion_ir::kernel::Transfer;
use std::collections::HashMap;

/// Warps of a launch that are executed, each of another block. Along each axis of the grid they are spread evenly, so that blocks with more
/// and with less to do, as under a causal mask, are met as often as there are.
pub const SAMPLES: usize = 4;

/// Of a launch whose first warp issues more instructions than this, that warp stands for all.
const LONG: u64 = 400_000;

/// A model of a card.
#[derive(Debug, Clone)]
pub struct Model {
    /// The card.
    pub card: &'static Card,
    /// Where cubins are kept.
    pub cache: Cache,
}

/// One piece of work of a program, with its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The kernels of the plan that it does work of.
    pub kernels: Vec<usize>,
    /// The function that is launched; none for the device's own copies and fills.
    pub function: Option<usize>,
    /// What it takes.
    pub estimate: Estimate,
}

/// What a launch takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// What the function takes of a multiprocessor.
    pub resources: Resources,
    /// What the launch asks of the card.
    pub work: Work,
    /// Products on tensor cores, of all warps.
    pub products: f64,
    /// Their multiplications and additions.
    pub operations: f64,
    /// Instructions beside each product in the loop that has most of them.
    pub beside: Option<f64>,
    /// The most loads from memory that a warp has under way at once.
    pub in_flight: usize,
    /// How often accesses of shared memory need its banks, against what they would without conflicts.
    pub conflicts: Option<f64>,
    /// Branches of a warp that depend on what is in memory, which the model does not know.
    pub assumed: f64,
    /// Whether its warps were followed to their ends. If not, the time is a lower bound.
    pub is_whole: bool,
    /// Seconds until the next launch.
    pub seconds: f64,
    /// What they come from.
    pub bound: Bound,
}

/// A function as it is on the card.
struct Code {
    sass: Sass,
    resources: Resources,
}

impl Model {
    /// The steps of a program, in order, of functions as a [`Renderer`](crate::Renderer) has them.
    ///
    /// # Errors
    /// NVRTC or the disassembler is missing or refuses a function; or the program has exchanges among ranks, or products of a library.
    pub fn steps(&self, program: &Launches, functions: &[Function]) -> Result<Vec<Step>, ModelError> {
        let used: Vec<usize> = program.functions().into_iter().collect();
        if !used.is_empty() {
            // Before minutes of compiling.
            disassembler::check()?;
        }
        let chosen: Vec<&Function> = used.iter().map(|at| &functions[*at]).collect();
        let cubins = self.cache.cubins(&chosen, self.card.architecture)?;
        let codes = in_parallel(cubins.len(), |at| code(&cubins[at], chosen[at].shared_bytes))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        let codes: HashMap<usize, Code> = used.into_iter().zip(codes).collect();
        let is_same = |a: &Launch, b: &Launch| {
            (a.grid, a.bytes) == (b.grid, b.bytes)
                && (a.function == b.function || codes[&a.function].is_like(&codes[&b.function]))
        };
        let mut distinct: Vec<&Launch> = vec![];
        for launch in launches(program) {
            if !distinct.iter().any(|other| is_same(other, launch)) {
                distinct.push(launch);
            }
        }
        let estimates = in_parallel(distinct.len(), |at| {
            let launch = distinct[at];
            let threads = functions[launch.function].threads;
            let shape = Shape { threads, grid: launch.grid, bytes: launch.bytes };
            estimate(self.card, &codes[&launch.function], shape)
        });
        let of = |launch: &Launch| {
            let at = distinct
                .iter()
                .position(|other| is_same(other, launch))
                .expect("every launch has an estimate");
            estimates[at].clone()
        };
        let step = |step: &StreamOp| match step {
            StreamOp::Launch(launch) => Ok(Step {
                kernels: launch.kernels.clone(),
                function: Some(launch.function),
                estimate: of(launch),
            }),
            StreamOp::Clear { bytes, .. } => Ok(self.moved(*bytes)),
            StreamOp::Copy { transfer: Transfer { bytes, .. }, .. } => Ok(self.moved(2 * bytes)),
            StreamOp::Product(_) => Err(ModelError::Unknown { what: "products of a library" }),
            StreamOp::Exchange { .. } | StreamOp::Gather { .. } | StreamOp::Sum { .. } => {
                Err(ModelError::Unknown { what: "exchanges among ranks" })
            }
        };
        program.steps.iter().map(step).collect()
    }

    /// A launch of a cubin's only function, whose arguments are all addresses: threads of a block, blocks, bytes read and written at least.
    ///
    /// # Errors
    /// The disassembler is missing, or it is no cubin.
    pub fn cubin(
        &self,
        cubin: &[u8],
        threads: usize,
        grid: [u32; 3],
        bytes: [usize; 2],
    ) -> Result<Estimate, ModelError> {
        Ok(estimate(self.card, &code(cubin, 0)?, Shape { threads, grid, bytes }))
    }

    /// A copy or a fill of the device's own.
    fn moved(&self, bytes: usize) -> Step {
        let work = Work { bytes: bytes as f64, ..Work::default() };
        Step {
            kernels: vec![],
            function: None,
            estimate: Estimate::new(self.card, Resources::default(), work, &[]),
        }
    }
}

/// The code of a cubin, and what it takes if a launch asks for as much shared memory.
fn code(cubin: &[u8], dynamic_shared: usize) -> Result<Code, ModelError> {
    let resources = Resources { dynamic_shared, ..cubin::resources(cubin)? };
    Ok(Code { sass: Sass::parse(&disassembler::disassemble(cubin)?)?, resources })
}

fn launches(program: &Launches) -> impl Iterator<Item = &Launch> {
    program.steps.iter().filter_map(|step| match step {
        StreamOp::Launch(launch) => Some(launch),
        _ => None,
    })
}

impl Code {
    /// Whether launches with as many blocks and bytes take the same time: the code differs in numbers alone, and not in what it takes.
    fn is_like(&self, other: &Code) -> bool {
        self.resources == other.resources && self.sass.is_like(&other.sass)
    }
}

/// A launch without its arguments.
#[derive(Debug, Clone, Copy)]
struct Shape {
    threads: usize,
    grid: [u32; 3],
    /// Bytes read and written at least.
    bytes: [usize; 2],
}

/// The time of a launch of this code.
fn estimate(card: &Card, Code { sass, resources }: &Code, shape: Shape) -> Estimate {
    let resident = resident_blocks(resources, shape.threads, &card.limits);
    let warps = shape.threads.div_ceil(WARP);
    let blocks: usize = shape.grid.iter().map(|blocks| *blocks as usize).product();
    // The first cache is what shared memory leaves, for all warps together.
    let shared = resident * (resources.static_shared + resources.dynamic_shared);
    let kept = card.limits.l1.saturating_sub(shared) / (resident * warps).max(1) / SECTOR as usize;
    let traces = |latency| samples(sass, card, shape, Memory { latency, kept });
    // How many of the pieces that are asked for come from memory is known when they have been counted.
    let asked =
        mean(&traces(card.latency.l2), |trace| trace.sectors[0]) * (SECTOR * (blocks * warps) as u64) as f64;
    let missing = if asked > 0.0 { (shape.bytes[0] as f64 / asked).min(1.0) } else { 0.0 };
    let traces = traces(card.latency.l2 + missing * (card.latency.memory - card.latency.l2));
    let mean = |of: fn(&Trace) -> f64| mean(&traces, of);
    let work = Work {
        blocks,
        threads: shape.threads,
        resident,
        bytes: (shape.bytes[0] + shape.bytes[1]) as f64,
        sectors: mean(|trace| trace.sectors[0] + trace.sectors[1]),
        instructions: mean(|trace| trace.instructions as f64),
        busy: std::array::from_fn(|pipe| {
            traces.iter().map(|trace| trace.busy[pipe]).sum::<f64>() / traces.len() as f64
        }),
        l1: mean(|trace| trace.l1),
        alone: mean(|trace| trace.alone),
        goes_on: goes_on(sass),
    };
    let beside = traces.iter().find_map(|trace| beside(sass, trace));
    Estimate { beside, ..Estimate::new(card, *resources, work, &traces) }
}

impl Estimate {
    /// From what is asked for, and what some of its warps did.
    fn new(card: &Card, resources: Resources, work: Work, traces: &[Trace]) -> Self {
        let (bound, seconds) = work.time(card);
        let mean = |of: fn(&Trace) -> f64| if traces.is_empty() { 0.0 } else { mean(traces, of) };
        let banks = [mean(|trace| trace.banks[0]), mean(|trace| trace.banks[1])];
        let warps = (work.blocks * work.threads.div_ceil(WARP)) as f64;
        Estimate {
            resources,
            work,
            products: mean(|trace| trace.products as f64) * warps,
            operations: mean(|trace| trace.operations as f64) * warps,
            beside: None,
            in_flight: traces.iter().map(|trace| trace.in_flight).max().unwrap_or(0),
            conflicts: (banks[1] > 0.0).then(|| banks[0] / banks[1]),
            assumed: mean(|trace| trace.assumed as f64),
            is_whole: traces.iter().all(|trace| trace.is_whole),
            seconds,
            bound,
        }
    }
}

/// Some warps of a launch.
fn samples(sass: &Sass, card: &Card, shape: Shape, memory: Memory) -> Vec<Trace> {
    let warps = shape.threads.div_ceil(WARP);
    let sample = |at: usize| {
        // Each axis in steps of its own, by fractions that are far from each other.
        let spread = |offset: f64, extent: u32| {
            let at = (at as f64 + 0.5) / SAMPLES as f64 + at as f64 * offset;
            ((at - at.floor()) * f64::from(extent)) as u32
        };
        let [x, y, z] = shape.grid;
        let block = [spread(0.0, x), spread(0.381_966, y), spread(0.618_034, z)];
        run(
            sass,
            card,
            Position { threads: shape.threads, grid: shape.grid, block, warp: at % warps },
            memory,
        )
    };
    let first = sample(0);
    // Those that run for long differ little.
    let count = if first.instructions > LONG { 1 } else { SAMPLES };
    std::iter::once(first).chain((1..count).map(sample)).collect()
}

/// Whether code has products of warpgroups, and none that waits for what a warp has computed for it.
fn goes_on(sass: &Sass) -> bool {
    let mut products =
        sass.instructions.iter().filter(|instruction| instruction.name() == "HGMMA").peekable();
    products.peek().is_some() && !products.any(is_of_registers)
}

fn mean(traces: &[Trace], of: fn(&Trace) -> f64) -> f64 {
    traces.iter().map(of).sum::<f64>() / traces.len() as f64
}

/// Instructions beside each product on tensor cores, in the innermost loop that has most of them.
fn beside(sass: &Sass, trace: &Trace) -> Option<f64> {
    let is_product = |at: &usize| matches!(sass.instructions[*at].name(), "HMMA" | "HGMMA");
    let count = |loop_: &(usize, usize)| -> [u64; 2] {
        let all = (loop_.0..=loop_.1).map(|at| trace.counts[at]).sum();
        [(loop_.0..=loop_.1).filter(is_product).map(|at| trace.counts[at]).sum(), all]
    };
    let main =
        trace.returns.keys().max_by_key(|loop_| (count(loop_)[0], std::cmp::Reverse(loop_.1 - loop_.0)))?;
    let [products, all] = count(main);
    (products > 0).then(|| (all - products) as f64 / products as f64)
}

#[cfg(test)]
mod tests {
    use super::super::lanes::LANES;
    use super::super::warp::argument_address;
    use super::*;
    use crate::launches::Argument;
    use crate::{Options, Renderer, model, nvrtc};
    use kernfusion_ir::kernel::{BufferOffset, Plan};
    use kernfusion_ir::samples::all;
    use kernfusion_passes::fuse::{Fusion, any_kernel, fuse};
    use kernfusion_passes::plan::plan;

    /// Samples with functions of each kind.
    const SAMPLES_OF_KINDS: [&str; 7] = [
        "tanh.[7, 13].f32",
        "rows.softmax.",
        "rows.layer_norm",
        "rows.bias_gradient",
        "scatter_add.",
        "attention.causal",
        "dot_general.",
    ];

    fn is_skipped() -> bool {
        let reason = match (nvrtc::is_present(), model::is_present()) {
            (false, _) => "NVRTC is not installed",
            (_, false) => "nvdisasm is not installed (pip install nvidia-cuda-nvdisasm, KERNFUSION_NVDISASM)",
            (true, true) => return false,
        };
        println!("skipped: {reason}");
        true
    }

    fn plans() -> Vec<(String, Plan)> {
        let samples = all(1);
        let of = |name: &&str| {
            let sample = samples.iter().find(|sample| sample.name.starts_with(name));
            let sample = sample.unwrap_or_else(|| panic!("no sample {name}"));
            (sample.name.clone(), plan(fuse(&sample.graph, Fusion::Full, any_kernel).expect("fuses")))
        };
        SAMPLES_OF_KINDS.iter().map(of).collect()
    }

    /// The bytes behind each argument's address.
    fn lengths(plan: &Plan, program: &Launches, launch: &Launch) -> Vec<u64> {
        let length = |argument: &Argument| match *argument {
            Argument::Buffer(BufferOffset { buffer, offset }) => {
                plan.graph.buffer(buffer).ty.bytes() - offset
            }
            Argument::Scratch { offset } => program.scratch_bytes - offset,
        };
        launch.arguments.iter().map(|argument| length(argument) as u64).collect()
    }

    /// The judge of whole numbers: whatever address a warp computes lies in the memory of an argument, and nothing in these functions but
    /// numbers from memory is unknown. All warps of all blocks of small functions, on two architectures.
    #[test]
    fn every_address_lies_in_an_argument() {
        if is_skipped() {
            return;
        }
        let mut touched = 0;
        for tf32 in [false, true] {
            let card = Card::named(if tf32 { "a100" } else { "h200" }).expect("a card");
            let mut renderer = Renderer::new(Options { tf32, ..Options::default() });
            for (name, plan) in plans() {
                let program = renderer.program(&plan).expect(&name);
                for launch in launches(&program) {
                    let function = &renderer.functions()[launch.function];
                    let cubin = nvrtc::compile(function, card.architecture, nvrtc::Form::Cubin).expect(&name);
                    let code = code(&cubin.code, function.shared_bytes).expect(&name);
                    assert_eq!(code.resources.registers, cubin.resources().registers, "{name}");
                    assert_eq!(code.resources.local, 0, "{name}: {}", function.name);
                    let lengths = lengths(&plan, &program, launch);
                    let [x, y, z] = launch.grid;
                    for number in 0..x * y * z {
                        let block = [number % x, number / x % y, number / x / y];
                        for warp in 0..function.threads.div_ceil(LANES) {
                            let position =
                                Position { threads: function.threads, grid: launch.grid, block, warp };
                            let trace = run(&code.sass, card, position, Memory { latency: 100.0, kept: 64 });
                            assert!(trace.is_whole, "{name}");
                            for (address, width) in &trace.touched {
                                let argument = lengths.iter().enumerate().find(|(at, length)| {
                                    let start = argument_address(*at as u32);
                                    *address >= start && address + width <= start + **length
                                });
                                assert!(
                                    argument.is_some(),
                                    "{name}: {} at {address:#x} of {lengths:?}",
                                    function.name
                                );
                            }
                            touched += trace.touched.len();
                        }
                    }
                }
            }
        }
        assert!(touched > 10_000, "{touched}");
    }

    #[test]
    fn a_program_that_the_model_does_not_know_is_an_error() {
        let model = Model { card: Card::named("h200").expect("a card"), cache: Cache::at("/nowhere") };
        let at = BufferOffset { buffer: kernfusion_ir::kernel::BufferId(0), offset: 0 };
        let program =
            Launches { steps: vec![StreamOp::Gather { kernel: 0, at, bytes: 8, part: 4 }], scratch_bytes: 0 };
        assert_eq!(model.steps(&program, &[]), Err(ModelError::Unknown { what: "exchanges among ranks" }));
        let program =
            Launches { steps: vec![StreamOp::Clear { kernel: 0, at, bytes: 4_800_000 }], scratch_bytes: 0 };
        let steps = model.steps(&program, &[]).expect("a fill");
        assert_eq!(steps[0].estimate.bound, Bound::Memory);
        assert!((steps[0].estimate.seconds - 1.3e-6 - 1e-6 / 0.92).abs() < 1e-12);
    }
}
