//! The stages between a traced program and code, in their order: divide, simplify, fuse, plan.
//!
//! ```text
//!  Graph ──divide──► body, tail ──simplify──► Graph ──fuse──► KernelGraph ──plan──► Plan
//! ```
//!
//! Between simplify and fuse, the tail of several ranks gets their exchanges.
//!
//! The sequence is written once, here. [`lower`](super::lower) runs all of it; dumps, the viewer, `bisect` and the judges of random
//! programs stop where they like.

use super::{Mode, Precision, Target};
use crate::error::Result;
use kernfusion_cpu::gemm;
use kernfusion_ir::Graph;
use kernfusion_ir::kernel::{Accepts, KernelGraph, Plan, Shard};
use kernfusion_passes::fuse::{Fusion, fuse};
use kernfusion_passes::microbatch::{BatchTypes, Divided, Division, divide, exchange};
use kernfusion_passes::plan::{plan, plan_prepared};
use kernfusion_passes::{
    DEQUANTIZED_PRODUCTS, INT8_PRODUCTS, MIXED_PRECISION, MemoryStrategy, OF_CPUS, OF_CPUS_OF_F32, OF_GPUS,
    Observer, PIPELINE, Pass, PassReport, run,
};

/// The stages for one target and one way to keep the program small.
#[derive(Debug, Clone)]
pub struct Stages {
    memory: MemoryStrategy,
    ranks: usize,
    shards_optimizer: bool,
    bf16_exchange: bool,
    passes: Vec<Pass>,
    fusion: Fusion,
    accepts: Accepts,
    /// Whether what depends on states alone is computed once, where a program only reads them.
    prepares: bool,
}

/// A program as it is simplified, fused and planned: whole, or in two parts.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The program alone, or the body of its microbatches and the tail that follows the last one.
    pub graphs: Vec<Graph>,
    /// The body's results, each with the axis along which those of microbatches are joined.
    pub joined: Vec<(String, usize)>,
    /// The types of the body's values by whether they have the batch, if there is a body.
    pub(super) batch_types: Option<BatchTypes>,
}

impl Stages {
    /// The stages that compile a program for a target. The target's own limits and microbatches are not looked at: `memory` says how the
    /// program is kept small.
    pub fn new(target: &Target, memory: MemoryStrategy) -> Self {
        Stages::with(target, memory, target.is_on_gpu(), target.accepts())
    }

    /// As [`Stages::new`], of a GPU in place of where the target's programs run, making kernels that its back end has code for.
    pub fn of_gpu(target: &Target, memory: MemoryStrategy, accepts: Accepts) -> Self {
        Stages::with(target, memory, true, accepts)
    }

    fn with(target: &Target, memory: MemoryStrategy, is_on_gpu: bool, accepts: Accepts) -> Self {
        let fusion = match target.mode {
            Mode::Compiled if memory.recompute => Fusion::Thrifty,
            Mode::Compiled => Fusion::Full,
            Mode::Eager => Fusion::None,
        };
        let ranks = target.rank_count();
        Stages {
            memory,
            ranks,
            shards_optimizer: target.shards_optimizer(),
            bf16_exchange: target.bf16_exchange,
            passes: passes(target, is_on_gpu),
            fusion,
            accepts,
            // The tail of a divided program writes states that the body reads.
            prepares: target.mode == Mode::Compiled && !is_on_gpu && memory.microbatches == 1 && ranks == 1,
        }
    }

    /// How the program is kept small.
    pub fn memory(&self) -> MemoryStrategy {
        self.memory
    }

    /// The graph passes of `simplify`, in order.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// How a program's batch is divided. One that exchanges something by itself is what each rank runs.
    pub(super) fn division(&self, graph: &Graph) -> Division {
        let ranks = if graph.ranks() == 1 { self.ranks } else { 1 };
        Division { microbatches: self.memory.microbatches, ranks }
    }

    /// Divides a program into body and tail, if its batch is computed in microbatches or by several ranks.
    ///
    /// # Errors
    /// If the batch cannot be divided so.
    pub fn divide(&self, graph: &Graph) -> Result<Parts> {
        if self.division(graph).parts() == 1 {
            let graphs = vec![graph.clone()];
            return Ok(Parts { graphs, joined: vec![], batch_types: None });
        }
        let Divided { body, tail, joined, types, .. } = divide(graph, self.division(graph))?;
        Ok(Parts { graphs: vec![body, tail], joined, batch_types: Some(types) })
    }

    /// Runs the passes, the first `count` of them if given.
    ///
    /// # Errors
    /// The pass that fails, or whose result breaks an invariant.
    pub fn simplify(
        &self,
        graph: &mut Graph,
        count: Option<usize>,
        observer: Observer<'_>,
    ) -> Result<Vec<PassReport>> {
        Ok(run(graph, &self.passes, count, observer)?)
    }

    /// Lets the simplified parts of `program` exchange what several ranks have. Returns the states of which each keeps a part.
    ///
    /// # Errors
    /// If a node breaks a type rule.
    pub fn exchange(&self, program: &Graph, parts: &mut [Graph]) -> Result<Vec<Shard>> {
        match parts {
            [body, tail] => {
                let how = (self.shards_optimizer, self.bf16_exchange);
                Ok(exchange(body, tail, self.division(program), how)?)
            }
            _ => Ok(vec![]),
        }
    }

    /// Makes kernels of a simplified graph.
    ///
    /// # Errors
    /// If no kernel computes some op; names it and the user's line.
    pub fn fuse(&self, graph: &Graph) -> Result<KernelGraph> {
        Ok(fuse(graph, self.fusion, self.accepts)?)
    }

    /// Gives each buffer its place in memory.
    pub fn plan(&self, kernels: KernelGraph) -> Plan {
        if self.prepares { plan_prepared(kernels) } else { plan(kernels) }
    }
}

/// The graph passes for a target, in order. Eager mode only has the conversions that mixed precision needs.
fn passes(target: &Target, is_on_gpu: bool) -> Vec<Pass> {
    let simplify = target.mode == Mode::Compiled;
    let eager = |pass: &&Pass| simplify || pass.name != "narrow-kept";
    let pipeline = PIPELINE.iter().filter(|_| simplify);
    let narrow = match target.precision {
        Precision::F32 => &[],
        Precision::Bf16 => MIXED_PRECISION,
        Precision::Int8 => INT8_PRODUCTS,
    };
    let narrow = narrow.iter().filter(eager);
    let of_device = match is_on_gpu {
        true => OF_GPUS,
        // An instruction set that is not there is an error of the back end.
        false if target.instruction_set().is_ok_and(gemm::multiplies_bf16_in_f32) => OF_CPUS_OF_F32,
        false => OF_CPUS,
    };
    let of_device = of_device.iter().filter(|_| simplify);
    let of_bytes = DEQUANTIZED_PRODUCTS.iter().filter(|_| simplify && !is_on_gpu);
    of_bytes.chain(pipeline).chain(narrow).chain(of_device).copied().collect()
}
