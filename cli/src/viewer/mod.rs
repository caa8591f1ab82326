//! The IR viewer: all stages of a program's compilation in one page that needs nothing else.
//!
//! ```text
//! user's lines ── traced nodes ──(passes, rules)── simplified nodes ──(fusion)── kernels ── buffers ── code
//! ```
//!
//! [`View`] is the data, in columns, since a whole training step of GPT-2 has to be read by a browser in a moment: numbers refer to
//! other rows, texts that repeat are stored once. What became of a node is known from marks
//! ([`Graph::mark`](kernfusion_ir::Graph::mark)) that passes and fusion carry on with origins. The page (`page.html`, `style.css`,
//! `script/`) is written by hand and draws only what is on the screen.

mod code;
mod kernels;
mod nodes;
mod page;
#[cfg(test)]
mod tests;

pub use code::Code;
pub use kernels::{BufferRow, KernelRow, RefusalRow};
pub use nodes::{Line, Nodes, PassRow};

use kernfusion::compile::{MemoryStrategy, Mode, Precision, Stages, Target};
use kernfusion::roofline::NOMINAL;
use kernfusion_codegen::Peaks;
use kernfusion_ir::Graph;
use kernfusion_lm::Result;
use kernfusion_passes::simplify;
use nodes::Tables;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// How a program is lowered, and what is shown of it.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the page is called.
    pub title: String,
    /// The mode whose stages are shown.
    pub mode: Mode,
    /// The number type of products.
    pub precision: Precision,
    /// How much is computed again. Microbatches play no part: the program is shown as it is given.
    pub memory: MemoryStrategy,
    /// The rates that floors are computed from.
    pub peaks: Peaks,
    /// Measured seconds of kernels by name.
    pub times: BTreeMap<String, f64>,
    /// Which code is shown.
    pub code: Code,
    /// How a GPU's kernels become CUDA C++; none shows the program of this CPU.
    pub gpu: Option<kernfusion_cuda::Options>,
}

impl Default for Options {
    /// Compiled for this CPU, `f32`, with floors of a nominal machine and all code.
    fn default() -> Self {
        Options {
            title: "program".into(),
            mode: Mode::Compiled,
            precision: Precision::F32,
            memory: MemoryStrategy::NONE,
            peaks: NOMINAL,
            times: BTreeMap::new(),
            code: Code::All,
            gpu: None,
        }
    }
}

/// A program at every stage, and what became of each part from stage to stage.
#[derive(Debug, Clone, Serialize)]
pub struct View {
    /// What the page is called.
    pub title: String,
    /// Mode, number type and device, in a few words.
    pub how: String,
    /// Texts that rows refer to by number: ops, types, scopes, attributes.
    pub strings: Vec<String>,
    /// The places in the user's source that nodes come from.
    pub lines: Vec<Line>,
    /// The program as traced, gradients and updates included.
    pub traced: Nodes,
    /// The program after the passes; its nodes know their sources among the traced ones.
    pub simplified: Nodes,
    /// What each pass did.
    pub passes: Vec<PassRow>,
    /// The mathematics of each rewrite rule that found something.
    pub rules: BTreeMap<&'static str, String>,
    /// In execution order.
    pub kernels: Vec<KernelRow>,
    /// With their places in memory.
    pub buffers: Vec<BufferRow>,
    /// Edges that stayed memory accesses, the largest first.
    pub refusals: Vec<RefusalRow>,
    /// Code and kernel text; kernels that are alike share it.
    pub texts: Vec<String>,
    /// Size of the arena in bytes.
    pub arena: usize,
    /// What memory the program takes, named.
    pub memory: Vec<(&'static str, usize)>,
    /// Bytes a second, and operations a second of products, that floors are computed from.
    pub rates: [f64; 2],
    /// Whether kernels have measured times.
    pub timed: bool,
}

impl View {
    /// Lowers a program and keeps what happens.
    ///
    /// # Errors
    /// If a pass fails (it is named), an op has no kernel (its line is named), or memory for the code is short.
    pub fn new(program: &Graph, options: &Options) -> Result<Self> {
        let mut tables = Tables::default();
        let mut graph = program.clone();
        graph.mark();
        let traced = tables.nodes(&graph);
        let mut observed = nodes::PassLog::new(&graph);
        let target = Target::cpu().mode(options.mode).precision(options.precision);
        let stages = match options.gpu {
            Some(_) => Stages::of_gpu(&target, options.memory, kernfusion_cuda::accepts),
            None => Stages::new(&target, options.memory),
        };
        stages.simplify(&mut graph, None, &mut |report, graph| observed.add(report, graph))?;
        let simplified = tables.nodes(&graph);
        // From here on the sources are the simplified nodes.
        graph.mark();
        let plan = stages.plan(stages.fuse(&graph)?);
        let mut texts = code::Texts::default();
        let code = code::code(&plan, options, &mut texts)?;
        let found: BTreeSet<_> = simplified.rule.iter().flatten().copied().collect();
        let rules = simplify::rules().into_iter().filter(|(name, ..)| found.contains(name));
        Ok(View {
            title: options.title.clone(),
            how: format!(
                "{}, {} products, {}",
                options.mode,
                options.precision,
                if options.gpu.is_some() { "on a GPU" } else { "on this CPU" }
            ),
            traced,
            simplified,
            passes: observed.rows(stages.passes()),
            rules: rules.map(|(name, _, formula)| (name, formula)).collect(),
            kernels: kernels::kernels(&plan, &code, options, &mut texts),
            buffers: kernels::buffers(&plan),
            refusals: kernels::refusals(&plan.graph),
            texts: texts.finish(),
            arena: plan.arena_bytes,
            memory: vec![
                ("arena", plan.arena_bytes),
                ("prepared", plan.prepared_bytes()),
                ("state", plan.state_bytes()),
                ("inputs", plan.input_bytes()),
                ("bytes moved", plan.bytes_moved()),
            ],
            rates: [options.peaks.bandwidth, options.peaks.f32_products],
            timed: !options.times.is_empty(),
            lines: tables.lines(),
            strings: tables.strings(),
        })
    }

    /// The page: one file with everything in it.
    pub fn page(&self) -> String {
        page::page(&self.title, &serde_json::to_string(self).expect("a view is plain data"))
    }
}
