//! Which step of compilation changes a result: a pass, a rule of the simplifier, a fusion, or the code of a kernel.
//!
//! ```text
//! traced graph ──pass──► … ──pass──► graph ──fusion, plan──► kernels ──code──► results
//!      └─ evaluated in f64 ─┴─ evaluated ─┘        interpreted in f64   run, and interpreted on the same numbers
//! ```
//!
//! * **A pass** keeps the numbers that a graph means, so in `f64`, where nothing is rounded to smaller types, results before
//!   and after differ by the order of sums alone. Of a pass that changes more, the first node is named whose value is not the one
//!   that it stands for ([`Graph::mark`]). One that rounds to whole numbers (`int8-products`) may change a tenth of the largest number;
//!   what follows is compared with what it gives.
//! * **The simplifier** is run again with the first half of its rules, then with a half of what is left, until one rule makes the
//!   difference. If it changes results without any rule, extraction is at fault.
//! * **A kernel of the plan**, interpreted in `f64`, writes what the graph's nodes are.
//! * **The code of a kernel** is given what the kernels before it have really written, and so is the interpreter. They may differ
//!   by the tolerance, or by a multiple of what rounding every instruction changes, so that a kernel which cancels large
//!   numbers is not taken for a wrong one.

mod deviation;
mod finding;
mod kernels;

pub use finding::{Culprit, Finding, Place};

use crate::compile::{MemoryStrategy, Stages, Target};
use crate::{Error, Result};
use deviation::{Deviation, worst};
use kernfusion_codegen::{CodegenError, Executable, States, Temporaries};
use kernfusion_ir::evaluate::{Array, Precision as Rounding, evaluate_all};
use kernfusion_ir::kernel::{Plan, ProgramPlan};
use kernfusion_ir::{Graph, Tensor};
use kernfusion_passes::simplify::{self, RuleSet, simplify_by};
use kernfusion_passes::{Pass, PassError, run as run_passes};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How far results in `f64` may differ, as a share of the largest magnitude of their tensor, if the caller does not say.
pub const TOLERANCE: f64 = 1e-6;

/// The pass that rounds to whole numbers, which `f64` does not hide, and how far it may change results.
const ROUNDING: (&str, f64) = ("int8-products", 0.1);

/// The pass whose rules can be bisected.
const SIMPLIFY: &str = "simplify";

/// From a graph to kernels with memory.
pub type FuseStep<'a> = Box<dyn Fn(&Graph) -> Result<Plan> + 'a>;

/// From kernels to code over states.
pub type GenerateStep<'a> = Box<dyn Fn(&Plan, &States) -> Result<Box<dyn Executable>> + 'a>;

/// The steps that are suspected, in the order in which they run.
pub struct Pipeline<'a> {
    /// The passes. The one called `simplify` applies `rules`.
    pub passes: Vec<Pass>,
    /// The rules of the simplifier.
    pub rules: Box<dyn Fn() -> RuleSet + 'a>,
    /// From a graph to kernels with memory.
    pub fuse: FuseStep<'a>,
    /// No states, and those to come where code finds them.
    pub states: Box<dyn Fn() -> States + 'a>,
    /// From kernels to code.
    pub generate: GenerateStep<'a>,
}

impl Pipeline<'_> {
    /// What compiling for a target does, with the whole batch at once.
    pub fn of(target: &Target) -> Self {
        let stages = Stages::new(target, MemoryStrategy::NONE);
        let (target, place) = (target.clone(), target.clone());
        Pipeline {
            passes: stages.passes().to_vec(),
            rules: Box::new(RuleSet::all),
            fuse: Box::new(move |graph| Ok(stages.plan(stages.fuse(graph)?))),
            states: Box::new(move || place.states()),
            generate: Box::new(move |plan, states| {
                let program = ProgramPlan::whole(plan.clone());
                Ok(target.backend().compile(program, states, Temporaries::Arena)?)
            }),
        }
    }

    fn run(&self, pass: Pass, graph: &mut Graph) -> Result<()> {
        match pass.name {
            SIMPLIFY => self.simplify(graph, &|_| true).map(|_| ()),
            _ => run_passes(graph, &[pass], None, &mut |_, _| {}).map(|_| ()).map_err(Error::from),
        }
    }

    /// Applies the rules whose names are wanted; the names of those that found something.
    fn simplify(&self, graph: &mut Graph, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<&'static str>> {
        let rules = (self.rules)().only(wanted);
        let report = simplify_by(&rules, graph, &simplify::Options::default())?;
        let number = self.passes.iter().position(|pass| pass.name == SIMPLIFY).map_or(0, |at| at + 1);
        graph.verify().map_err(|error| PassError { pass: SIMPLIFY, number, cause: error.to_string() })?;
        Ok(report.fired.into_iter().map(|(name, _)| name).collect())
    }
}

/// What a step did to the results.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// The pass, `fusion` or `code`.
    pub name: &'static str,
    /// Nodes of the graph, or kernels.
    pub size: usize,
    /// The largest distance of a result, or of what a kernel writes, as a share of the largest magnitude of its tensor.
    pub deviation: f64,
    /// The result, or the kernel, that has it.
    pub of: String,
    /// How long the step and its judgement took.
    pub time: Duration,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Bisection {
    /// The steps up to the one that is at fault, or all of them.
    pub stages: Vec<Stage>,
    /// What is at fault, if anything is.
    pub finding: Option<Finding>,
    /// Results that are not finite, of which no more can be said than where they are so.
    pub not_finite: Vec<String>,
}

/// Looks for the first step that changes a result by more than `tolerance`. There is a tensor for each input and each state.
///
/// # Errors
/// If an input is missing or of another type; if a step fails, which it then says itself.
pub fn bisect(
    traced: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    pipeline: &Pipeline<'_>,
    tolerance: f64,
) -> Result<Bisection> {
    let arrays = arrays(traced, inputs)?;
    let values = evaluate_all(traced, arrays.clone(), Rounding::Double)?;
    let mut search = Search { pipeline, expected: results(traced, &values), arrays, tolerance };
    let is_bad = |array: &Array| array.values.iter().any(|x| !x.is_finite());
    let not_finite = search.expected.iter().filter(|(_, array)| is_bad(array));
    let not_finite = not_finite.map(|(name, _)| name.clone()).collect();
    let mut stages = Vec::new();
    let (graph, values, finding) = match search.passes(traced.clone(), values, &mut stages)? {
        Ended::Found(finding) => return Ok(Bisection { stages, finding: Some(finding), not_finite }),
        Ended::Through(graph, values) => (graph, values, None),
    };
    let finding = match finding {
        None => search.kernels(graph, &values, inputs, &mut stages)?,
        found => found,
    };
    Ok(Bisection { stages, finding, not_finite })
}

/// How the passes ended.
enum Ended {
    Found(Finding),
    /// The graph after all of them, and its values.
    Through(Graph, Vec<Array>),
}

struct Search<'a> {
    pipeline: &'a Pipeline<'a>,
    /// The results of the traced graph.
    expected: BTreeMap<String, Array>,
    arrays: BTreeMap<String, Array>,
    tolerance: f64,
}

impl Search<'_> {
    fn passes(&mut self, mut graph: Graph, mut values: Vec<Array>, stages: &mut Vec<Stage>) -> Result<Ended> {
        for (index, &pass) in self.pipeline.passes.iter().enumerate() {
            let start = Instant::now();
            graph.mark();
            let mut after = graph.clone();
            self.pipeline.run(pass, &mut after)?;
            // Evaluation is slow, and many a pass finds nothing to do.
            let same = after.to_string() == graph.to_string();
            let new = if same { values.clone() } else { self.evaluate(&after)? };
            let found = results(&after, &new);
            let worst = worst(&self.expected, &found);
            let (name, size) = (pass.name, after.len());
            let rounds = name == ROUNDING.0;
            let tolerance = if rounds { self.tolerance.max(ROUNDING.1) } else { self.tolerance };
            let place = || self.changed((&graph, &values), (&after, &new));
            let finding = match worst.is_above(tolerance) {
                false => None,
                true if name == SIMPLIFY => Some(self.rule(&graph, &values, &worst)?),
                true => Some(Finding {
                    culprit: Culprit::Pass { name, number: index + 1 },
                    place: place(),
                    worst: worst.clone(),
                }),
            };
            stages.push(Stage { name, size, deviation: worst.size, of: worst.of, time: start.elapsed() });
            if let Some(finding) = finding {
                return Ok(Ended::Found(finding));
            }
            if rounds {
                self.expected = found;
            }
            (graph, values) = (after, new);
        }
        Ok(Ended::Through(graph, values))
    }

    /// The rule with which the results of simplification begin to differ.
    fn rule(&self, graph: &Graph, values: &[Array], whole: &Deviation) -> Result<Finding> {
        let fired = self.pipeline.simplify(&mut graph.clone(), &|_| true)?;
        // What a part of the rules makes may be no graph at all; that is a difference, too.
        let with = |count: usize| -> Result<Option<(Graph, Vec<Array>, Deviation)>> {
            let mut after = graph.clone();
            if self.pipeline.simplify(&mut after, &|name| fired[..count].contains(&name)).is_err() {
                return Ok(None);
            }
            let new = self.evaluate(&after)?;
            let worst = worst(&self.expected, &results(&after, &new));
            Ok(Some((after, new, worst)))
        };
        let differs = |count: usize| -> Result<bool> {
            Ok(with(count)?.is_none_or(|(.., worst)| worst.is_above(self.tolerance)))
        };
        let (mut right, mut wrong) = (0, fired.len());
        let culprit = match differs(0)? {
            true => {
                wrong = 0;
                Culprit::Extraction
            }
            false => {
                while wrong - right > 1 {
                    let middle = (right + wrong) / 2;
                    *if differs(middle)? { &mut wrong } else { &mut right } = middle;
                }
                let rules = (self.pipeline.rules)();
                let formula = rules.rules().find(|(name, _)| *name == fired[wrong - 1]);
                let formula = formula.map_or(String::new(), |(_, formula)| formula.to_string());
                Culprit::Rule { name: fired[wrong - 1], formula }
            }
        };
        let last = with(wrong)?;
        let place = last.as_ref().and_then(|(after, new, _)| self.changed((graph, values), (after, new)));
        Ok(Finding { culprit, place, worst: last.map_or_else(|| whole.clone(), |(.., worst)| worst) })
    }

    fn evaluate(&self, graph: &Graph) -> Result<Vec<Array>> {
        Ok(evaluate_all(graph, self.arrays.clone(), Rounding::Double)?)
    }

    /// The first node of a graph whose value is not that of the node it stands for.
    fn changed(&self, before: (&Graph, &[Array]), after: (&Graph, &[Array])) -> Option<Place> {
        after.0.ids().find_map(|id| {
            let (node, new) = (&after.0[id], &after.1[id.index()]);
            let sources = node.origin.sources().iter().filter(|source| node.origin.stands_for(**source));
            let differing = sources.filter_map(|source| {
                let old = &before.1[source.index()];
                let deviation = Deviation::between(&old.values, &new.values);
                (old.ty.shape == new.ty.shape && deviation > self.tolerance).then_some((*source, deviation))
            });
            let (source, deviation) = differing.into_iter().next()?;
            Some(Place::of_node(before.0, source, node, deviation))
        })
    }
}

/// What a graph gives, of the values of its nodes.
fn results(graph: &Graph, values: &[Array]) -> BTreeMap<String, Array> {
    let outputs = graph.outputs().iter();
    outputs.map(|output| (output.name.clone(), values[output.value.index()].clone())).collect()
}

/// Tensors as they are evaluated, if there is one for each input and nothing else.
fn arrays(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Array>> {
    let wrong = |name: &str, reason: String| Error::from(CodegenError::Input { name: name.into(), reason });
    let mut arrays = BTreeMap::new();
    for (id, name, _) in graph.inputs() {
        let ty = &graph[id].ty;
        let tensor = inputs.get(name).ok_or_else(|| wrong(name, format!("is missing; it is {ty}")))?;
        if tensor.ty() != *ty {
            return Err(wrong(name, format!("expects {ty}, got {}", tensor.ty())));
        }
        arrays.insert(name.to_string(), Array { ty: ty.clone(), values: tensor.to_f64() });
    }
    Ok(arrays)
}
