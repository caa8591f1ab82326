//! One run of a program from tensors by name to tensors by name, on the CPU or on a GPU.

use kernfusion::compile::{Target, compile};
use kernfusion::{HostTensor, Result};
use kernfusion_codegen::States;
use kernfusion_ir::{Graph, InputRole, Output};
use std::collections::BTreeMap;

/// Tensors by name.
pub(super) type Tensors = BTreeMap<String, HostTensor>;

/// What runs programs.
pub(super) struct Executor {
    /// How programs are compiled; on a GPU its mode and precision alone matter.
    pub(super) target: Target,
    /// The GPU, if not the CPU.
    #[cfg(feature = "cuda")]
    pub(super) device: Option<kernfusion_codegen::cuda::Device>,
}

impl Executor {
    /// Compiles and runs a program once: its outputs, and the new value of each state that it updates. There is an input
    /// for each input and state of the program.
    pub(super) fn execute(&self, graph: &Graph, inputs: &Tensors) -> Result<Tensors> {
        #[cfg(feature = "cuda")]
        if let Some(device) = &self.device {
            return on_gpu(device, graph, inputs, &self.target);
        }
        on_cpu(graph, inputs, &self.target)
    }
}

fn on_cpu(graph: &Graph, inputs: &Tensors, target: &Target) -> Result<Tensors> {
    let states = States::new();
    let mut data = Vec::new();
    for (_, name, role) in graph.inputs() {
        match role {
            InputRole::State => states.set(name, &inputs[name])?,
            InputRole::Data => data.push((name, &inputs[name])),
        }
    }
    let outputs = compile(graph, &states, target)?.run(&data)?;
    let result = |output: &Output| {
        let found =
            if output.updates_state { states.get(&output.name) } else { outputs.get(&output.name).cloned() };
        (output.name.clone(), found.expect("a run gives every output and keeps every state"))
    };
    Ok(graph.outputs().iter().map(result).collect())
}

#[cfg(feature = "cuda")]
fn on_gpu(
    device: &kernfusion_codegen::cuda::Device,
    graph: &Graph,
    inputs: &Tensors,
    target: &Target,
) -> Result<Tensors> {
    use kernfusion::compile::{Thrift, lower};
    use kernfusion_codegen::cuda::{Cache, CudaExecutable, Options};
    let plan = lower(graph, target, Thrift::NONE)?.body;
    let mut program = CudaExecutable::compile(plan, device, Options::default(), &Cache::of_user())?;
    let mut data = Vec::new();
    for (_, name, role) in graph.inputs() {
        match role {
            InputRole::State => program.set_state(name, &inputs[name])?,
            InputRole::Data => data.push((name, &inputs[name])),
        }
    }
    let outputs = program.run(&data)?;
    let result = |output: &Output| {
        let value = match output.updates_state {
            true => program.get_state(&output.name)?,
            false => outputs.get(&output.name).cloned().expect("a run gives every output"),
        };
        Ok((output.name.clone(), value))
    };
    graph.outputs().iter().map(result).collect()
}
