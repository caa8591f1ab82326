//! Launches of a program with their times.

use super::access::SECTOR;
use super::card::{Card, LAUNCH_GAP, MEMORY_SHARE};
use super::occupancy::{Resources, WARP, resident_blocks};
use super::warp::{Memory, Position, Trace, run};
use super::{Bound, ModelError, Sass, Work, cubin, disassembler};
use crate::launches::{Function, Launch, Launches, StreamOp};
use crate::{Cache, in_parallel};
use kernfusion_ir::kernel::Transfer;
use std::collections::HashMap;

/// Warps of a launch that are executed, each of another block. Along each axis of the grid they are spread evenly, so that blocks with more
/// and with less to do, as under a causal mask, are met as often as there are.
pub const SAMPLES: usize = 4;

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
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Estimate {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: usize,
    /// What the function takes of a multiprocessor.
    pub resources: Resources,
    /// Blocks that a multiprocessor holds at a time.
    pub resident: usize,
    /// How often all multiprocessors are filled with blocks.
    pub waves: f64,
    /// Bytes that it reads and writes at least.
    pub bytes: usize,
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
    /// Branches that a warp takes or not for reasons that are in memory, which the model does not know.
    pub assumed: f64,
    /// Whether its warps were followed to their ends. If not, the time is a lower bound.
    pub is_whole: bool,
    /// Seconds until the next launch.
    pub seconds: f64,
    /// What they come from.
    pub bound: Option<Bound>,
    /// Seconds that each part of the card needs.
    pub bounds: Vec<(Bound, f64)>,
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
        let chosen: Vec<&Function> = used.iter().map(|at| &functions[*at]).collect();
        let cubins = self.cache.cubins(&chosen, self.card.architecture)?;
        let codes =
            in_parallel(cubins.len(), |at| code(&cubins[at])).into_iter().collect::<Result<Vec<_>, _>>()?;
        let codes: HashMap<usize, Code> = used.into_iter().zip(codes).collect();
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
            StreamOp::Copy(Transfer { bytes, .. }) => Ok(self.moved(2 * bytes)),
            StreamOp::Product(_) => Err(ModelError::Unknown { what: "products of a library" }),
            StreamOp::Exchange { .. } | StreamOp::Gather { .. } => {
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
        Ok(estimate(self.card, &code(cubin)?, Shape { threads, grid, bytes }))
    }

    /// A copy or a fill of the device's own.
    fn moved(&self, bytes: usize) -> Step {
        let seconds = bytes as f64 / (self.card.bandwidth * MEMORY_SHARE);
        let estimate = Estimate {
            bytes,
            seconds: seconds + LAUNCH_GAP,
            bound: Some(Bound::Memory),
            bounds: vec![(Bound::Memory, seconds)],
            is_whole: true,
            ..Estimate::default()
        };
        Step { kernels: vec![], function: None, estimate }
    }
}

/// The code of a cubin, and what it takes.
fn code(cubin: &[u8]) -> Result<Code, ModelError> {
    let resources = cubin::resources(cubin)?;
    Ok(Code { sass: Sass::parse(&disassembler::disassemble(cubin)?)?, resources })
}

fn launches(program: &Launches) -> impl Iterator<Item = &Launch> {
    program.steps.iter().filter_map(|step| match step {
        StreamOp::Launch(launch) => Some(launch),
        _ => None,
    })
}

/// Whether two launches take the same time.
fn is_same(a: &Launch, b: &Launch) -> bool {
    (a.function, a.grid, a.bytes) == (b.function, b.grid, b.bytes)
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
    };
    let (bound, seconds) = work.time(card);
    let banks = [mean(|trace| trace.banks[0]), mean(|trace| trace.banks[1])];
    let all = (blocks * warps) as f64;
    Estimate {
        grid: shape.grid,
        threads: shape.threads,
        resources: *resources,
        resident,
        waves: work.waves(card),
        bytes: shape.bytes.iter().sum(),
        products: mean(|trace| trace.products as f64) * all,
        operations: mean(|trace| trace.operations as f64) * all,
        beside: traces.iter().find_map(|trace| beside(sass, trace)),
        in_flight: traces.iter().map(|trace| trace.in_flight).max().unwrap_or(0),
        conflicts: (banks[1] > 0.0).then(|| banks[0] / banks[1]),
        assumed: mean(|trace| trace.assumed as f64),
        is_whole: traces.iter().all(|trace| trace.is_whole),
        seconds,
        bound: Some(bound),
        bounds: work.bounds(card),
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
    (0..SAMPLES).map(sample).collect()
}

fn mean(traces: &[Trace], of: fn(&Trace) -> f64) -> f64 {
    traces.iter().map(of).sum::<f64>() / traces.len() as f64
}

/// Instructions beside each product on tensor cores, in the innermost loop that has most of them.
fn beside(sass: &Sass, trace: &Trace) -> Option<f64> {
    let is_product = |at: &usize| sass.instructions[*at].name() == "HMMA";
    let count = |loop_: &(usize, usize)| -> [u64; 2] {
        let all = (loop_.0..=loop_.1).map(|at| trace.counts[at]).sum();
        [(loop_.0..=loop_.1).filter(is_product).map(|at| trace.counts[at]).sum(), all]
    };
    let main =
        trace.returns.keys().max_by_key(|loop_| (count(loop_)[0], std::cmp::Reverse(loop_.1 - loop_.0)))?;
    let [products, all] = count(main);
    (products > 0).then(|| (all - products) as f64 / products as f64)
}
