//! Kernels under suspicion: as fusion has made them, and as code.

use super::deviation::Deviation;
use super::{Culprit, Finding, Place, Search, Stage};
use crate::Result;
use kernfusion_codegen::CodegenError;
use kernfusion_ir::evaluate::{Array, Precision as Rounding};
use kernfusion_ir::kernel::{BufferId, Interpreter, KernelGraph, Plan};
use kernfusion_ir::{DType, Graph, InputRole, Tensor};
use std::collections::BTreeMap;
use std::time::Instant;

/// How far code may be from its interpretation: `f32` has seven digits, and sums lose some.
const CODE: f64 = 1e-4;

/// The same of bytes: what lies next to a half may be rounded to the neighbouring one, of 127 in a row.
const BYTES: f64 = 1e-2;

/// How much farther than the rounding of every instruction: code may sum in another order and compute `exp` otherwise.
const ROUNDING: f64 = 16.0;

/// What a kernel has written worst.
struct Worst {
    kernel: usize,
    buffer: Option<BufferId>,
    deviation: f64,
    rounding: f64,
}

impl Worst {
    const NONE: Worst = Worst { kernel: 0, buffer: None, deviation: 0.0, rounding: 0.0 };

    /// The name of what was written: of its kernel, or of a state.
    fn of(&self, graph: &KernelGraph) -> String {
        self.buffer.map_or(String::new(), |buffer| graph.buffer(buffer).name.clone())
    }
}

impl Search<'_> {
    /// Fuses a graph with these values, interprets its kernels, and runs their code.
    pub(super) fn kernels(
        &self,
        mut graph: Graph,
        values: &[Array],
        inputs: &BTreeMap<String, Tensor>,
        stages: &mut Vec<Stage>,
    ) -> Result<Option<Finding>> {
        graph.mark();
        let start = Instant::now();
        let plan = (self.pipeline.fuse)(&graph)?;
        let worst = self.interpret(&plan, values)?;
        stages.push(stage("fusion", &plan, &worst, start));
        if worst.deviation > self.tolerance {
            let culprit = Culprit::Fusion { kernel: plan.graph.kernels[worst.kernel].name.clone() };
            return Ok(Some(finding(culprit, &plan, &worst)));
        }
        let start = Instant::now();
        let (worst, wrong) = self.run(&plan, inputs)?;
        stages.push(stage("code", &plan, wrong.as_ref().unwrap_or(&worst), start));
        Ok(wrong.map(|wrong| {
            let kernel = plan.graph.kernels[wrong.kernel].name.clone();
            finding(Culprit::Code { kernel, rounding: wrong.rounding }, &plan, &wrong)
        }))
    }

    /// The first kernel that leaves the values of the graph's nodes, or the one that comes nearest to it.
    fn interpret(&self, plan: &Plan, values: &[Array]) -> Result<Worst> {
        let graph = &plan.graph;
        let mut interpreter = Interpreter::new(graph, &self.arrays, Rounding::Double)?;
        let mut worst = Worst::NONE;
        for (kernel, it) in graph.kernels.iter().enumerate() {
            interpreter.run(kernel)?;
            for buffer in it.writes() {
                let node = graph.values.get(&buffer).and_then(|value| graph.nodes.get(value));
                let origin = node.map(|node| &node.origin);
                let stands = origin
                    .and_then(|origin| origin.sources().iter().find(|source| origin.stands_for(**source)));
                let Some(expected) = stands.map(|source| &values[source.index()].values) else { continue };
                let deviation = Deviation::between(expected, interpreter.get(buffer));
                if deviation > worst.deviation {
                    worst = Worst { kernel, buffer: Some(buffer), deviation, rounding: 0.0 };
                }
            }
            if worst.deviation > self.tolerance {
                break;
            }
        }
        Ok(worst)
    }

    /// Runs the code, and each kernel's interpretation on what the code before it has written: the worst deviation, and the first
    /// one that is more than it may be.
    fn run(&self, plan: &Plan, inputs: &BTreeMap<String, Tensor>) -> Result<(Worst, Option<Worst>)> {
        let graph = &plan.graph;
        let states = (self.pipeline.states)();
        for (name, tensor) in inputs.iter().filter(|(name, _)| self.role(graph, name) == InputRole::State) {
            states.set(name, tensor)?;
        }
        let data = inputs.iter().filter(|(name, _)| self.role(graph, name) == InputRole::Data);
        let data: Vec<_> = data.map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut executable = (self.pipeline.generate)(plan, &states)?;
        let mut exact = Interpreter::new(graph, &self.arrays, Rounding::Double)?;
        let (mut worst, mut wrong, mut failed) = (Worst::NONE, None, None);
        executable.run_seen(&data, &mut |moment| {
            if wrong.is_some() || failed.is_some() {
                return Ok(());
            }
            let kernel = moment.kernel;
            failed = exact.run(kernel).err();
            // What a loop needs for itself is no value.
            let writes = graph.kernels[kernel].writes().into_iter();
            let writes: Vec<_> = writes.filter(|buffer| graph.values.contains_key(buffer)).collect();
            let found = writes.iter().map(|&buffer| Ok((moment.look)(buffer)?.to_f64()));
            let found = found.collect::<std::result::Result<Vec<_>, CodegenError>>()?;
            for (&buffer, found) in writes.iter().zip(&found) {
                let deviation = Deviation::between(exact.get(buffer), found);
                let mut here = Worst { kernel, buffer: Some(buffer), deviation, rounding: 0.0 };
                let is_bytes = graph.buffer(buffer).ty.dtype == DType::I8;
                if deviation > if is_bytes { BYTES } else { CODE } {
                    match self.rounding(graph, &exact, kernel, buffer) {
                        Ok(rounding) => here.rounding = rounding,
                        Err(error) => failed = Some(error),
                    }
                    if deviation > ROUNDING * here.rounding {
                        wrong = Some(here);
                        return Ok(());
                    }
                }
                if deviation > worst.deviation {
                    worst = here;
                }
            }
            writes.into_iter().zip(found).for_each(|(buffer, found)| exact.set(buffer, found));
            Ok(())
        })?;
        match failed {
            Some(error) => Err(error.into()),
            None => Ok((worst, wrong)),
        }
    }

    /// How far what a kernel writes to a buffer is from what it would be if every instruction were rounded. `exact` has run the
    /// kernel, and still has what it has read.
    fn rounding(
        &self,
        graph: &KernelGraph,
        exact: &Interpreter<'_>,
        kernel: usize,
        buffer: BufferId,
    ) -> kernfusion_ir::Result<f64> {
        let mut rounded = Interpreter::new(graph, &self.arrays, Rounding::Declared)?;
        let all = (0..graph.buffers.len() as u32).map(BufferId);
        all.for_each(|buffer| rounded.set(buffer, exact.get(buffer).to_vec()));
        rounded.run(kernel)?;
        Ok(Deviation::between(exact.get(buffer), rounded.get(buffer)))
    }

    fn role(&self, graph: &KernelGraph, name: &str) -> InputRole {
        use kernfusion_ir::kernel::BufferRole;
        let state =
            graph.buffers.iter().any(|buffer| buffer.role == BufferRole::State && buffer.name == name);
        if state { InputRole::State } else { InputRole::Data }
    }
}

fn stage(name: &'static str, plan: &Plan, worst: &Worst, start: Instant) -> Stage {
    let (size, of) = (plan.graph.kernels.len(), worst.of(&plan.graph));
    Stage { name, size, deviation: worst.deviation, of, time: start.elapsed() }
}

fn finding(culprit: Culprit, plan: &Plan, worst: &Worst) -> Finding {
    let graph = &plan.graph;
    let ty = worst.buffer.map_or(String::new(), |buffer| graph.buffer(buffer).ty.to_string());
    let place = Place::of_kernel(graph, &graph.kernels[worst.kernel], ty, worst.deviation);
    let worst = Deviation { size: worst.deviation, of: worst.of(graph) };
    Finding { culprit, place: Some(place), worst }
}
