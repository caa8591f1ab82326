//! Simplification in e-graphs (with the crate `egg`): all rules are applied wherever they fit, nothing is thrown away, and the
//! cheapest program among all that were found is taken.
//!
//! ```text
//! %2 = permute %w {axes = [1, 0]}
//! %3 = dot_general %x, %2 {.., rhs_contract = [0]}   →   %2 = dot_general %x, %w {.., rhs_contract = [1]}
//! ```
//!
//! * `language`: e-nodes are ops over e-classes; a class knows its type, whether it is one number, and whether its numbers are whole (`whole`).
//! * `pattern`, `rewriter`, `rules`: what is equal to what.
//! * `cost`, `extract`: which of it to take; never a program that costs more than the original.
//! * `region`, `solution`: one e-graph for each region; equal regions (layers) are simplified once.
//!
//! Limits count nodes and iterations, never time, and all orders are fixed, so the same graph gives the same result.
//! Locations and scopes stay with the values; a value that no original node computes takes those of its first reader.

mod cost;
mod extract;
mod language;
mod pattern;
mod region;
mod rewriter;
mod rules;
mod solution;
#[cfg(test)]
mod tests;
mod whole;

pub use extract::Pick;
pub use rules::{Rounding, RuleSet};

use crate::dce;
use kernfusion_ir::{Graph, Literal, Op, Result, ValueId};
use region::{Place, Region, Shape};
use rustc_hash::FxHashMap;
use solution::{Solution, solve};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How far simplification goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The most that a rule may change; rules that change more are left out.
    pub rounding: Rounding,
    /// How often all rules are applied to an e-graph at most.
    pub iterations: usize,
    /// An e-graph of more nodes than this takes no more rules.
    pub nodes: usize,
    /// Which of all programs that have been found equal.
    pub pick: Pick,
}

impl Default for Options {
    /// All rules.
    fn default() -> Self {
        Options { rounding: Rounding::Finite, iterations: 12, nodes: 8000, pick: Pick::Cheapest }
    }
}

/// A rule as users may see it: its name, what it may change, and its mathematics.
pub fn rules() -> Vec<(&'static str, Rounding, String)> {
    rules::ALL.as_slice().iter().map(|rule| (rule.name, rule.rounding, rule.formula.clone())).collect()
}

/// What simplification did.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// How often each rule found something new, in the order of the rules; rules that found nothing are left out. What
    /// equal regions share counts once for each.
    pub fired: Vec<(&'static str, usize)>,
    /// The estimated cost in seconds of the nominal machine, before and after.
    pub cost: (f64, f64),
    /// Regions, and how many different ones.
    pub regions: (usize, usize),
}

impl Report {
    /// The report in lines.
    pub fn lines(&self) -> Vec<String> {
        let (regions, different) = self.regions;
        let (before, after) = (self.cost.0 * 1e3, self.cost.1 * 1e3);
        let saved = if before > 0.0 { 100.0 * (1.0 - after / before) } else { 0.0 };
        let summary = format!(
            "simplify: estimated cost {before:.3} ms -> {after:.3} ms ({saved:.1} % less), {regions} regions, {different} different"
        );
        let rules = self.fired.iter().map(|(name, count)| format!("simplify: {count:>6} × {name}"));
        std::iter::once(summary).chain(rules).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Of each value that is made of whole numbers: what no magnitude of these is larger than.
pub(crate) fn largest_whole(graph: &Graph) -> Vec<Option<f64>> {
    region::facts(graph).into_iter().map(|facts| facts.whole.map(Literal::value)).collect()
}

/// Simplifies a graph. Values that no output needs are dropped; inputs stay.
///
/// # Errors
/// If an op does not accept its operands, which a verified graph's do.
pub fn simplify(graph: &mut Graph, options: &Options) -> Result<Report> {
    simplify_by(&rules::ALL, graph, options)
}

/// As [`simplify`], by these rules alone.
///
/// # Errors
/// As [`simplify`]; a wrong rule may make of the graph what no op accepts.
pub fn simplify_by(rules: &RuleSet, graph: &mut Graph, options: &Options) -> Result<Report> {
    dce::remove_dead_code(graph)?;
    let rules = rules.as_slice();
    let regions = region::regions(graph);
    let mut numbers: FxHashMap<&Shape, usize> = FxHashMap::default();
    let mut shapes: Vec<&Shape> = vec![];
    for region in &regions {
        numbers.entry(&region.shape).or_insert_with(|| {
            shapes.push(&region.shape);
            shapes.len() - 1
        });
    }
    let solutions = solve_all(&shapes, |shape| solve(shape, rules, options));
    let mut fired = vec![0; rules.len()];
    let mut cost = (0.0, 0.0);
    let mut writer = Writer::new(graph);
    for region in &regions {
        let solution = &solutions[numbers[&region.shape]];
        writer.write(region, solution)?;
        fired.iter_mut().zip(&solution.fired).for_each(|(sum, fired)| *sum += fired);
        cost = (cost.0 + solution.cost.0, cost.1 + solution.cost.1);
    }
    let new = writer.finish();
    *graph = new;
    dce::remove_dead_code(graph)?;
    let fired =
        rules.iter().zip(fired).filter(|(_, fired)| *fired > 0).map(|(rule, fired)| (rule.name, fired));
    Ok(Report { fired: fired.collect(), cost, regions: (regions.len(), shapes.len()) })
}

/// The solutions of shapes, each found by itself, on all cores.
fn solve_all(shapes: &[&Shape], solve: impl Fn(&Shape) -> Solution + Sync) -> Vec<Solution> {
    /// What the main thread of a program has.
    const STACK: usize = 8 << 20;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let solutions: Vec<OnceLock<Solution>> = shapes.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        for at in numbers.take_while(|&at| at < shapes.len()) {
            solutions[at].get_or_init(|| solve(shapes[at]));
        }
    };
    std::thread::scope(|scope| {
        let helper = || std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        // Where there is no further thread, those that there are do its part.
        let helpers: Vec<_> = (1..cores.min(shapes.len())).map_while(|_| helper().ok()).collect();
        work();
        for helper in helpers {
            helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    solutions.into_iter().map(|solution| solution.into_inner().expect("all were solved")).collect()
}

/// Writes the simplified graph, region by region.
struct Writer<'g> {
    old: &'g Graph,
    new: Graph,
    places: Vec<Option<ValueId>>,
}

impl<'g> Writer<'g> {
    /// Begins with the inputs.
    fn new(old: &'g Graph) -> Self {
        let mut writer = Writer { old, new: Graph::new(old.name.clone()), places: vec![None; old.len()] };
        for id in old.ids().filter(|&id| matches!(old[id].op, Op::Input(_))) {
            writer.places[id.index()] = Some(writer.new.add_unchecked(old[id].clone()));
        }
        writer
    }

    fn place(&self, old: ValueId) -> ValueId {
        self.places[old.index()].expect("a region reads only inputs and outputs of earlier regions")
    }

    fn write(&mut self, region: &Region, solution: &Solution) -> Result<()> {
        let mut steps: Vec<ValueId> = Vec::with_capacity(solution.steps.len());
        for step in &solution.steps {
            let operands: Vec<_> =
                step.operands.iter().map(|&place| self.value(region, &steps, place)).collect();
            let op = match &step.op {
                Op::RandomBits(bits) => {
                    let mut bits = bits.clone();
                    bits.node = region.random[bits.node as usize];
                    bits.into()
                }
                op => op.clone(),
            };
            let origin = self.old[region.nodes[step.origin]].origin.helping();
            let origin = step.rule.map_or_else(|| origin.clone(), |rule| origin.found_by(rule));
            let new = self.new.add(op, &operands, origin)?;
            let computed = step.computes.iter().map(|&node| &self.old[region.nodes[node]].origin);
            computed.for_each(|origin| self.new.absorb(new, origin));
            steps.push(new);
        }
        for (&output, &place) in region.shape.outputs.iter().zip(&solution.outputs) {
            let (old, new) = (region.nodes[output], self.value(region, &steps, place));
            self.new.absorb(new, &self.old[old].origin);
            self.places[old.index()] = Some(new);
        }
        Ok(())
    }

    fn value(&self, region: &Region, steps: &[ValueId], place: Place) -> ValueId {
        match place {
            Place::Leaf(leaf) => self.place(region.leaves[leaf]),
            Place::Local(step) => steps[step],
        }
    }

    fn finish(mut self) -> Graph {
        for output in self.old.outputs() {
            let value = self.place(output.value);
            match output.updates_state {
                true => self.new.update(output.name.clone(), value),
                false => self.new.output(output.name.clone(), value),
            }
        }
        self.new
    }
}
