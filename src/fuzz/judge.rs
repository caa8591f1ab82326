//! What must hold of every program.

use super::program::Case;
use crate::compile::{Isa, MemoryStrategy, Mode, Precision, Stages, Target, Tensors, execute_on};
use kernfusion_cpu::guard::{Side, guarded};
use kernfusion_ir::dual::{Dual, duals};
use kernfusion_ir::evaluate::{Array, Precision as Evaluation};
use kernfusion_ir::kernel::interpret;
use kernfusion_ir::running_error::{Approximate, Excess, SLACK, excess, running_errors};
use kernfusion_ir::samples::Draws;
use kernfusion_ir::{
    Builder, Cast, DType, Graph, Input, InputRole, Op, Origin, ReduceOp, Tensor, TensorType, ValueId,
};
use kernfusion_passes::grad;
use kernfusion_passes::microbatch::{Division, batch_extent, divide};
use kernfusion_passes::simplify::{Options, Pick, Rounding, simplify};
use kernfusion_passes::{OTHERS, PIPELINE, Pass, run as run_passes};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
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
    /// Within the bounds where each buffer lies beside a protected page, and memory that was not written is NaN.
    Guarded(Mode, Side),
    /// As eager or compiled with products of `bf16`, and bounds of the program with its conversions.
    Bf16(Mode),
    /// The same in parts of the batch.
    Microbatches(usize),
    /// Products that are computed again have the same bits as those that are kept.
    Recompute,
    /// These passes, one after another, keep the meaning.
    Passes(Vec<&'static str>),
    /// The kernels of the plan mean what the graph means.
    Kernels,
    /// Whichever program is taken out of the e-graph means the same: by exact rules the same number, by all rules within the bounds.
    Forms(Rounding, Pick),
    /// Gradients, along a direction of this seed, are what forward mode gives.
    Gradient(u64),
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Check::Text => f.write_str("text"),
            Check::Eager => f.write_str("eager"),
            Check::Compiled(isa) => write!(f, "compiled, {isa}"),
            Check::Guarded(mode, side) => write!(f, "guarded, {mode}, {side}"),
            Check::Bf16(mode) => write!(f, "bf16, {mode}"),
            Check::Microbatches(count) => write!(f, "microbatches, {count}"),
            Check::Recompute => f.write_str("recompute"),
            Check::Passes(names) => write!(f, "passes {}", names.join(",")),
            Check::Kernels => f.write_str("kernels"),
            Check::Gradient(seed) => write!(f, "gradient, direction {seed}"),
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

/// The checks of a program: compiled, half of the time for the best instruction set, and one other by chance, since a check takes longer
/// than a program.
pub fn checks(draws: &mut Draws) -> Vec<Check> {
    let isas = Isa::available();
    let isa = if draws.below(2) == 0 { isas[0] } else { *draws.choose(&isas) };
    let mode = *draws.choose(&[Mode::Compiled, Mode::Eager]);
    let rounding = *draws.choose(&[Rounding::Exact, Rounding::Finite]);
    let other = match draws.below(13) {
        0 => Check::Text,
        1 => Check::Eager,
        2 => Check::Kernels,
        3 => Check::Guarded(mode, Side::Before),
        4 => Check::Guarded(mode, Side::Behind),
        5 => Check::Bf16(mode),
        6 => Check::Recompute,
        7 => Check::Microbatches(2 + draws.below(3)),
        8 => Check::Passes(random_passes(draws)),
        9 => Check::Gradient(u64::from(draws.word())),
        10 => Check::Forms(rounding, Pick::Dearest),
        _ => Check::Forms(rounding, Pick::Random(u64::from(draws.word()))),
    };
    vec![Check::Compiled(isa), other]
}

/// Some of all passes that keep the meaning, in any order.
fn random_passes(draws: &mut Draws) -> Vec<&'static str> {
    let all: Vec<_> = PIPELINE.iter().chain(&OTHERS[..1]).map(|pass| pass.name).collect();
    (0..1 + draws.below(5)).map(|_| *draws.choose(&all)).collect()
}

/// The first check that does not hold.
pub fn judge(program: &Case, checks: &[Check]) -> Option<Violation> {
    let judge = Judge::new(program);
    checks.iter().find_map(|check| judge.violation(check))
}

/// A program, and what is known of it already.
#[derive(Debug)]
pub struct Judge<'a> {
    program: &'a Case,
    /// What it gives under the number types that it declares.
    declared: OnceCell<Result<Expected, String>>,
}

/// Results by name, with how far they may be off.
type Expected = BTreeMap<String, Approximate>;

impl<'a> Judge<'a> {
    /// Of this program.
    pub fn new(program: &'a Case) -> Self {
        Judge { program, declared: OnceCell::new() }
    }

    /// What does not hold, if this does not; a panic does not.
    pub fn violation(&self, check: &Check) -> Option<Violation> {
        let what = match catch_unwind(AssertUnwindSafe(|| self.held(check))) {
            Ok(found) => found.err()?,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                format!("panics: {}", text.unwrap_or("without a message"))
            }
        };
        Some(Violation { check: check.clone(), what })
    }

    fn held(&self, check: &Check) -> Result<(), String> {
        match check {
            Check::Text => self.text(),
            Check::Eager => self.runs(&Target::cpu().mode(Mode::Eager), self.declared()?),
            Check::Compiled(isa) => self.runs(&Target::cpu().isa(*isa), self.declared()?),
            Check::Guarded(mode, side) => self.guarded(*mode, *side),
            Check::Bf16(mode) => self.narrow(*mode),
            Check::Microbatches(count) => self.microbatches(*count),
            Check::Recompute => self.recompute(),
            Check::Passes(names) => self.passes(names),
            Check::Kernels => self.kernels(),
            Check::Forms(rules, pick) => self.forms(*rules, *pick),
            Check::Gradient(seed) => self.gradient(*seed),
        }
    }

    fn declared(&self) -> Result<&Expected, String> {
        let new = || self.expected(&self.program.graph, Evaluation::Declared);
        self.declared.get_or_init(new).as_ref().map_err(Clone::clone)
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
    fn runs(&self, target: &Target, expected: &Expected) -> Result<(), String> {
        let threads = [2, 1, 3];
        let results = self.execute(target, &threads)?;
        within(expected, &results[0])?;
        for (other, threads) in results.iter().zip(threads).skip(1) {
            same_bits(&results[0], other)
                .map_err(|name| format!("{name} has other bits on {threads} threads than on 2"))?;
        }
        Ok(())
    }

    /// The results on each of these numbers of threads.
    fn execute(&self, target: &Target, threads: &[usize]) -> Result<Vec<Tensors>, String> {
        let target = target.clone().threads(threads[0]);
        execute_on(&self.program.graph, &self.program.inputs, &target, threads)
            .map_err(|error| error.to_string().replace('\n', " "))
    }

    fn guarded(&self, mode: Mode, side: Side) -> Result<(), String> {
        let results = guarded(side, || self.execute(&Target::cpu().mode(mode), &[2]))?;
        within(self.declared()?, &results[0])
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
        let (graph, _) = self.simplified(&target)?;
        self.runs(&target, &self.expected(&graph, Evaluation::Declared)?)
    }

    /// The program after the passes of a target, and the stages that follow.
    fn simplified(&self, target: &Target) -> Result<(Graph, Stages), String> {
        let stages = Stages::new(target, MemoryStrategy::NONE);
        let mut graph = self.program.graph.clone();
        stages.simplify(&mut graph, None, &mut |_, _| {}).map_err(|error| error.to_string())?;
        Ok((graph, stages))
    }

    fn microbatches(&self, count: usize) -> Result<(), String> {
        let fits = batch_extent(&self.program.graph)
            .is_some_and(|extent| extent >= count && extent.is_multiple_of(count));
        let target = Target::cpu().microbatches(count);
        // What cannot be cut says so.
        if !fits || divide(&self.program.graph, Division::microbatches(count)).is_err() {
            return Ok(());
        }
        self.runs(&target, self.declared()?)
    }

    fn recompute(&self) -> Result<(), String> {
        let kept = self.execute(&Target::cpu(), &[2])?;
        let again = self.execute(&Target::cpu().recompute(true), &[2])?;
        same_bits(&kept[0], &again[0])
            .map_err(|name| format!("{name} has other bits where products are computed again"))
    }

    fn passes(&self, names: &[&'static str]) -> Result<(), String> {
        // Constants that passes make are rounded to their dtype.
        let expected = self.declared()?;
        let mut graph = self.program.graph.clone();
        for name in names {
            let pass: Pass = kernfusion_passes::find(name).expect("they are passes");
            run_passes(&mut graph, &[pass], None, &mut |_, _| {}).map_err(|error| error.to_string())?;
            self.means(expected, &graph).map_err(|what| format!("after {name}: {what}"))?;
        }
        Ok(())
    }

    /// Another way to compute the same, not rounded to its dtypes. What it cancels leaves a rest of its own, where that is known.
    fn means(&self, expected: &Expected, graph: &Graph) -> Result<(), String> {
        let found = self.expected(graph, Evaluation::Double)?;
        let mut expected = expected.clone();
        for (name, Approximate { error, .. }) in &mut expected {
            let rests = found.get(name).into_iter().flat_map(|found| &found.error);
            error
                .iter_mut()
                .zip(rests)
                .filter(|(_, rest)| rest.is_finite())
                .for_each(|(error, rest)| *error += rest);
        }
        within(&expected, &found)
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
            return self.means(self.declared()?, &picked);
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

    /// L = Σ w·y over all results of floats, with random w, changes along a random direction v by Σ ∂L/∂x·v.
    fn gradient(&self, seed: u64) -> Result<(), String> {
        let mut draws = Draws::new(seed);
        let mut graph = self.program.graph.clone();
        let exact = self.program.inputs.iter();
        let mut arrays: BTreeMap<_, _> =
            exact.map(|(name, it)| (name.clone(), Array { ty: it.ty(), values: it.to_f64() })).collect();
        let wrt: Vec<_> = graph.inputs().map(|(id, name, _)| (id, name.to_string())).collect();
        let wrt: Vec<_> = wrt.into_iter().filter(|(id, _)| graph[*id].ty.dtype.is_float()).collect();
        let mut random = |ty: &TensorType| {
            let values = (0..ty.elements()).map(|_| draws.between(-1.0, 1.0)).collect();
            Array { ty: ty.clone(), values }
        };
        let error = |error: kernfusion_ir::IrError| error.to_string();
        let Some(loss) = weighted_sum(&mut graph, |name, ty| {
            arrays.insert(name, random(ty));
        })
        .map_err(error)?
        else {
            return Ok(());
        };
        let ids: Vec<_> = wrt.iter().map(|(id, _)| *id).collect();
        let gradients = grad(&mut graph, loss, &ids, &BTreeSet::new()).map_err(error)?;
        let direction: BTreeMap<_, _> =
            wrt.iter().map(|(id, name)| (name.clone(), random(&graph[*id].ty).values)).collect();
        let dual = |(name, array): (&String, &Array)| {
            let fixed = Dual::fixed(array.clone());
            let change = direction.get(name).cloned().unwrap_or_else(|| fixed.change.clone());
            (name.clone(), Dual { change, ..fixed })
        };
        let forward = duals(&graph, arrays.iter().map(dual).collect()).map_err(error)?;
        let forward = forward[loss.index()].change[0];
        let exact = arrays.into_iter().map(|(name, array)| (name, Approximate::exact(array))).collect();
        // Constants of derivatives are rounded to their dtype, and nothing else is here.
        let values = running_errors(&graph, exact, Evaluation::Declared).map_err(error)?;
        let (mut reverse, mut bound) = (0.0, 0.0);
        for (gradient, (_, name)) in gradients.iter().zip(&wrt) {
            let Approximate { array, error } = &values[gradient.index()];
            for ((g, e), v) in array.values.iter().zip(error).zip(&direction[name]) {
                reverse += g * v;
                // The sum's rounding, and as much again for the other side.
                bound += SLACK * e * v.abs() + 1e-9 * (g * v).abs();
            }
        }
        // At a kink, or where nothing is known, there is nothing to compare.
        let unknown = !forward.is_finite() || !reverse.is_finite() || !bound.is_finite();
        let distance = (forward - reverse).abs();
        match unknown || distance <= bound + 1e-9 * forward.abs() {
            true => Ok(()),
            false => Err(format!(
                "the loss changes by {forward:e} along a direction, by its gradients {reverse:e}, give or take {bound:.1e}"
            )),
        }
    }

    fn kernels(&self) -> Result<(), String> {
        let (graph, stages) = self.simplified(&Target::cpu())?;
        let expected = self.expected(&graph, Evaluation::Double)?;
        let kernels = stages.fuse(&graph).map_err(|error| error.to_string())?;
        kernfusion_ir::kernel::verify(&kernels)?;
        let arrays = self.program.inputs.iter();
        let arrays =
            arrays.map(|(name, it)| (name.clone(), Array { ty: it.ty(), values: it.to_f64() })).collect();
        let results = interpret(&kernels, &arrays, Evaluation::Double).map_err(|error| error.to_string())?;
        within(&expected, &results)
    }
}

/// Σ w·y over all results of floats, with an input for each w, which `weight` is told of; `None` if there are none.
fn weighted_sum(
    graph: &mut Graph,
    mut weight: impl FnMut(String, &TensorType),
) -> kernfusion_ir::Result<Option<ValueId>> {
    let results: Vec<_> = graph.outputs().iter().map(|output| output.value).collect();
    let mut sums = vec![];
    for (number, y) in results.into_iter().enumerate() {
        let ty = graph[y].ty.clone();
        if !ty.dtype.is_float() {
            continue;
        }
        let name = format!("weight {number}");
        weight(name.clone(), &ty);
        let mut b = Builder::new(graph, Origin::default());
        let w = b.op(Input { name, role: InputRole::Data, ty: ty.clone() }, &[])?;
        let product = b.mul(y, w)?;
        let sum = b.reduce(ReduceOp::Sum, &(0..ty.rank()).collect::<Vec<_>>(), product)?;
        sums.push(b.op(Cast { dtype: DType::F64 }, &[sum])?);
    }
    let mut b = Builder::new(graph, Origin::default());
    let mut sums = sums.into_iter();
    let Some(first) = sums.next() else { return Ok(None) };
    sums.try_fold(first, |total, sum| b.add(total, sum)).map(Some)
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

impl Numbers for Approximate {
    fn numbers(&self) -> Vec<f64> {
        self.array.values.clone()
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
    let differs = a.iter().find(|(name, tensor)| b.get(*name).map(Tensor::bytes) != Some(tensor.bytes()));
    differs.map_or(Ok(()), |(name, _)| Err(name.clone()))
}
