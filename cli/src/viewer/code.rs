//! The code of kernels: assembly of this CPU, or CUDA C++.

use super::Options;
use super::nodes::Numbers;
use kernfusion::compile::Mode;
use kernfusion_codegen::{States, Temporaries};
use kernfusion_cpu::PlanExecutable;
use kernfusion_cuda::{self, Renderer, StreamOp};
use kernfusion_ir::kernel::Plan;
use kernfusion_lm::Result;
use serde::Serialize;

/// Which code is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Assembly of this machine's CPU, or a GPU's CUDA C++.
    All,
    /// None: kernels as text alone.
    Nothing,
}

/// The code of one kernel, as numbers of texts.
#[derive(Debug, Clone, Default, Serialize)]
pub struct KernelCode {
    /// Assembly of the CPU; none of kernels without code of their own.
    pub assembly: Option<usize>,
    /// CUDA C++, one text for each function.
    pub cuda: Vec<usize>,
}

/// Texts, each once.
#[derive(Default)]
pub(super) struct Texts(Numbers<String>);

impl Texts {
    /// The number of a text.
    pub(super) fn add(&mut self, text: String) -> usize {
        self.0.of(text)
    }

    /// All of them.
    pub(super) fn finish(self) -> Vec<String> {
        self.0.values()
    }
}

/// The code of each kernel of a plan.
pub(super) fn code(plan: &Plan, options: &Options, texts: &mut Texts) -> Result<Vec<KernelCode>> {
    let mut code = vec![KernelCode::default(); plan.graph.kernels.len()];
    match (&options.gpu, options.code) {
        (_, Code::Nothing) => {}
        (Some(cuda), Code::All) => add_cuda(&mut code, plan, cuda, texts)?,
        (None, Code::All) => add_assembly(&mut code, plan, options.mode, texts)?,
    }
    Ok(code)
}

fn add_assembly(code: &mut [KernelCode], plan: &Plan, mode: Mode, texts: &mut Texts) -> Result<()> {
    let temporaries = if mode == Mode::Eager { Temporaries::Fresh } else { Temporaries::Arena };
    let keep = kernfusion_cpu::Options { threads: 1, temporaries, keep_code: true, ..Default::default() };
    let executable = PlanExecutable::compile(plan.clone(), &States::new(), &keep)?;
    for (kernel, code) in plan.graph.kernels.iter().zip(code) {
        code.assembly = executable.assembly(&kernel.name).map(|text| texts.add(text));
    }
    Ok(())
}

fn add_cuda(
    code: &mut [KernelCode],
    plan: &Plan,
    options: &kernfusion_cuda::Options,
    texts: &mut Texts,
) -> Result<()> {
    let mut renderer = Renderer::new(options.clone());
    for step in &renderer.program(plan)?.steps {
        let StreamOp::Launch(launch) = step else { continue };
        let text = texts.add(renderer.functions()[launch.function].text.clone());
        for &kernel in &launch.kernels {
            if !code[kernel].cuda.contains(&text) {
                code[kernel].cuda.push(text);
            }
        }
    }
    Ok(())
}
