//! What must hold of a program, whoever wrote it.

use super::program::Program;
use crate::compile::{Isa, Mode, Precision, Target};
use crate::compile::{Tensors, execute};
use kernfusion_ir::evaluate::{Array, Precision as Evaluation};
use kernfusion_ir::kernel::interpret;
use kernfusion_ir::running_error::{Approximate, Excess, excess, running_errors};
use kernfusion_ir::samples::Draws;
use kernfusion_ir::{Graph, Op, Tensor};
use kernfusion_passes::fuse::{Fusion, fuse};
use kernfusion_passes::simplify::{Options, Pick, Rounding, simplify};
use kernfusion_passes::tile::batch_extent;
use kernfusion_passes::{OTHERS, PIPELINE, Pass, run as run_passes};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One thing that must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// The text form parses back to itself, and means the same.
    Text,
    /// One kernel for each op is within the bounds.
    Eager,
    /// The fused program is within the bounds, on each instruction set, with the same bits for every number of threads.
    Compiled(Isa),
    /// The same with products of `bf16`, and bounds of the program with its conversions.
    Bf16(Mode),
    /// The same in parts of the batch.
    Slices(usize),
    /// Products that are computed again have the same bits as those that are kept.
    Recompute,
    /// These passes, one after another, keep the meaning.
    Passes(Vec<&'static str>),
    /// The kernels of the plan mean what the graph means.
    Kernels,
    /// Whichever program is taken out of the e-graph means the same: by exact rules the same number, by all rules within the bounds.
    Forms(Rounding, Pick),
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Check::Text => f.write_str("text"),
            Check::Eager => f.write_str("eager"),
            Check::Compiled(isa) => write!(f, "compiled, {isa}"),
            Check::Bf16(mode) => write!(f, "bf16, {mode}"),
            Check::Slices(count) => write!(f, "{count} slices"),
            Check::Recompute => f.write_str("recompute"),
            Check::Passes(names) => write!(f, "passes {}", names.join(",")),
            Check::Kernels => f.write_str("kernels"),
            Check::Forms(rules, pick) => write!(f, "forms by rules {rules:?}, {pick:?}"),
        }
    }
}

/// Something that does not hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    /// What should.
    pub check: Check,
    /// What was seen instead.
    pub what: String,
}

/// The checks of a program: the modes always, two others by chance, since there are more of them than programs take time.
pub fn checks(draws: &mut Draws) -> Vec<Check> {
    let isas = Isa::available();
    let best = isas[0];
    let others = [
        Check::Text,
        Check::Kernels,
        Check::Compiled(*draws.choose(&isas)),
        Check::Bf16(Mode::Compiled),
        Check::Bf16(Mode::Eager),
        Check::Recompute,
        Check::Slices(2 + draws.below(3)),
        Check::Passes(random_passes(draws)),
        Check::Forms(Rounding::Exact, Pick::Random(u64::from(draws.word()))),
        Check::Forms(Rounding::Finite, Pick::Random(u64::from(draws.word()))),
        Check::Forms(*draws.choose(&[Rounding::Exact, Rounding::Finite]), Pick::Dearest),
    ];
    let mut checks = vec![Check::Eager, Check::Compiled(best)];
    checks.extend((0..2).map(|_| draws.choose(&others).clone()));
    checks
}

/// Some of all passes that keep the meaning, in any order.
fn random_passes(draws: &mut Draws) -> Vec<&'static str> {
    let all: Vec<_> = PIPELINE.iter().chain(&OTHERS[..1]).map(|pass| pass.name).collect();
    (0..1 + draws.below(5)).map(|_| *draws.choose(&all)).collect()
}

/// The first check that does not hold.
pub fn judge(program: &Program, checks: &[Check]) -> Option<Violation> {
    let judge = Judge { program };
    checks
        .iter()
        .find_map(|check| judge.violation(check).map(|what| Violation { check: check.clone(), what }))
}

struct Judge<'a> {
    program: &'a Program,
}

/// Results by name, with how far they may be off.
type Expected = BTreeMap<String, Approximate>;

impl Judge<'_> {
    /// What is wrong, if anything is; a panic is.
    fn violation(&self, check: &Check) -> Option<String> {
        match catch_unwind(AssertUnwindSafe(|| self.held(check))) {
            Ok(found) => found.err(),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                Some(format!("panics: {}", text.unwrap_or("without a message")))
            }
        }
    }

    fn held(&self, check: &Check) -> Result<(), String> {
        match check {
            Check::Text => self.text(),
            Check::Eager => self.runs(
                Target::cpu().mode(Mode::Eager),
                &self.expected(&self.program.graph, Evaluation::Declared)?,
            ),
            Check::Compiled(isa) => {
                self.runs(Target::cpu().isa(*isa), &self.expected(&self.program.graph, Evaluation::Declared)?)
            }
            Check::Bf16(mode) => self.narrow(*mode),
            Check::Slices(count) => self.slices(*count),
            Check::Recompute => self.recompute(),
            Check::Passes(names) => self.passes(names),
            Check::Kernels => self.kernels(),
            Check::Forms(rules, pick) => self.forms(*rules, *pick),
        }
    }

    fn expected(&self, graph: &Graph, precision: Evaluation) -> Result<Expected, String> {
        let inputs = self.program.inputs.iter();
        let exact = |(name, tensor): (&String, &Tensor)| {
            let array = Array { ty: tensor.ty(), values: tensor.to_f64() };
            (name.clone(), Approximate::exact(array))
        };
        let values =
            running_errors(graph, inputs.map(exact).collect(), precision).map_err(|it| it.to_string())?;
        let results = graph.outputs().iter();
        Ok(results.map(|it| (it.name.clone(), values[it.value.index()].clone())).collect())
    }

    /// On two threads within the bounds, and on one and three with the same bits.
    fn runs(&self, target: Target, expected: &Expected) -> Result<(), String> {
        let results = self.execute(&target.clone().threads(2))?;
        within(expected, &results)?;
        for threads in [1, 3] {
            let others = self.execute(&target.clone().threads(threads))?;
            same_bits(&results, &others)
                .map_err(|name| format!("{name} has other bits on {threads} threads than on 2"))?;
        }
        Ok(())
    }

    fn execute(&self, target: &Target) -> Result<Tensors, String> {
        execute(&self.program.graph, &self.program.inputs, target)
            .map_err(|error| error.to_string().replace('\n', " "))
    }

    fn text(&self) -> Result<(), String> {
        let graph = &self.program.graph;
        let text = graph.to_string();
        let parsed = Graph::parse(&text).map_err(|error| format!("the text form does not parse: {error}"))?;
        parsed.verify().map_err(|error| format!("the text form is not valid: {error}"))?;
        match parsed.to_string() == text {
            true => Ok(()),
            false => Err("the text form of what it parses to is another one".into()),
        }
    }

    fn narrow(&self, mode: Mode) -> Result<(), String> {
        let target = Target::cpu().mode(mode).precision(Precision::Bf16);
        let mut graph = self.program.graph.clone();
        run_passes(&mut graph, &target.passes(), None, &mut |_, _| {}).map_err(|error| error.to_string())?;
        self.runs(target, &self.expected(&graph, Evaluation::Declared)?)
    }

    fn slices(&self, count: usize) -> Result<(), String> {
        let fits = batch_extent(&self.program.graph)
            .is_some_and(|extent| extent >= count && extent.is_multiple_of(count));
        let target = Target::cpu().slices(count);
        // What cannot be cut says so.
        if !fits || kernfusion_passes::tile::tile(&self.program.graph, count).is_err() {
            return Ok(());
        }
        self.runs(target, &self.expected(&self.program.graph, Evaluation::Declared)?)
    }

    fn recompute(&self) -> Result<(), String> {
        let kept = self.execute(&Target::cpu())?;
        let again = self.execute(&Target::cpu().recompute(true))?;
        same_bits(&kept, &again)
            .map_err(|name| format!("{name} has other bits where products are computed again"))
    }

    fn passes(&self, names: &[&'static str]) -> Result<(), String> {
        let expected = self.expected(&self.program.graph, Evaluation::Double)?;
        let mut graph = self.program.graph.clone();
        for name in names {
            let pass: Pass = kernfusion_passes::find(name).expect("they are passes");
            run_passes(&mut graph, &[pass], None, &mut |_, _| {}).map_err(|error| error.to_string())?;
            within(&expected, &self.evaluated(&graph, Evaluation::Double)?)
                .map_err(|what| format!("after {name}: {what}"))?;
        }
        Ok(())
    }

    /// Results of the reference evaluator.
    fn evaluated(&self, graph: &Graph, precision: Evaluation) -> Result<BTreeMap<String, Array>, String> {
        kernfusion_ir::evaluate::evaluate(graph, &self.program.inputs, precision).map_err(|it| it.to_string())
    }

    fn forms(&self, rounding: Rounding, pick: Pick) -> Result<(), String> {
        let graph = &self.program.graph;
        let mut picked = graph.clone();
        let options = Options { rounding, pick, ..Options::default() };
        simplify(&mut picked, &options).map_err(|error| error.to_string())?;
        picked.verify().map_err(|error| error.to_string())?;
        // The order of sums is a product's own affair.
        let sums = graph.ids().any(|id| matches!(graph[id].op, Op::DotGeneral(_) | Op::Scan(_)));
        if rounding != Rounding::Exact || sums {
            return within(
                &self.expected(graph, Evaluation::Double)?,
                &self.evaluated(&picked, Evaluation::Double)?,
            );
        }
        let (as_written, found) =
            (self.evaluated(graph, Evaluation::Declared)?, self.evaluated(&picked, Evaluation::Declared)?);
        for (name, array) in &as_written {
            let pairs = array.values.iter().zip(&found[name].values);
            let differs = |&(a, b): &(&f64, &f64)| a != b && !(a.is_nan() && b.is_nan());
            if let Some((expected, found)) = pairs.clone().find(differs) {
                return Err(format!("{name} is {found:e} in one place, and was {expected:e}"));
            }
        }
        Ok(())
    }

    fn kernels(&self) -> Result<(), String> {
        let expected = self.expected(&self.program.graph, Evaluation::Double)?;
        let mut graph = self.program.graph.clone();
        let target = Target::cpu();
        run_passes(&mut graph, &target.passes(), None, &mut |_, _| {}).map_err(|error| error.to_string())?;
        let kernels = fuse(&graph, Fusion::Full, target.accepts()).map_err(|error| error.to_string())?;
        kernfusion_ir::kernel::verify(&kernels)?;
        let arrays = self.program.inputs.iter();
        let arrays =
            arrays.map(|(name, it)| (name.clone(), Array { ty: it.ty(), values: it.to_f64() })).collect();
        let results = interpret(&kernels, &arrays, Evaluation::Double).map_err(|error| error.to_string())?;
        within(&expected, &results)
    }
}

/// Results as numbers.
trait Numbers {
    fn numbers(&self) -> Vec<f64>;
}

impl Numbers for Array {
    fn numbers(&self) -> Vec<f64> {
        self.values.clone()
    }
}

impl Numbers for Tensor {
    fn numbers(&self) -> Vec<f64> {
        self.to_f64()
    }
}

fn within<N: Numbers>(expected: &Expected, found: &BTreeMap<String, N>) -> Result<(), String> {
    for (name, expected) in expected {
        let found = found.get(name).ok_or_else(|| format!("{name} is missing"))?.numbers();
        if found.len() != expected.error.len() {
            return Err(format!("{name} has {} elements, not {}", found.len(), expected.error.len()));
        }
        if let Some(Excess { element, expected, found, bound }) = excess(expected, &found) {
            return Err(format!(
                "{name}[{element}] is {found:e}, should be {expected:e}, give or take {bound:.1e}"
            ));
        }
    }
    Ok(())
}

/// The name of a result that differs, if one does.
fn same_bits(a: &Tensors, b: &Tensors) -> Result<(), String> {
    let differs =
        a.iter().find(|(name, tensor)| b.get(*name).map(Tensor::to_bytes) != Some(tensor.to_bytes()));
    differs.map_or(Ok(()), |(name, _)| Err(name.clone()))
}
