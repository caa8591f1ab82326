//! Op samples: the table that drives every back end. A new op adds its rows here, and every execution is compared
//! with the reference evaluator on them.
//!
//! [`all`] has every op on every dtype that it accepts, with scalars, axes of extent 1, odd extents, permuted and
//! broadcast operands, and indices outside of their tables. [`random_graph`] makes whole programs. Both are
//! functions of their seed alone.

mod composite;
mod contraction;
mod draws;
mod elementwise;
mod indexing;
mod movement;
mod random;
mod reduction;
mod scan;
mod source;

pub use draws::Draws;
pub use random::random_graph;

use crate::evaluate::{Array, Precision, evaluate};
use crate::{Builder, DType, Graph, InputRole, Op, Origin, Result, Tensor, TensorType, ValueId};
use draws::Values;
use std::collections::BTreeMap;

/// A small graph with inputs from its sensible domain.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Unique in the table: op, case and dtype.
    pub name: String,
    /// The program; its result is the output `y`.
    pub graph: Graph,
    /// A tensor for each input.
    pub inputs: BTreeMap<String, Tensor>,
    /// How far an execution may be off, as [`difference`] measures it; 0 where it must be exact.
    pub tolerance: f64,
    /// Whether central differences approximate the gradient: all floats are `f32` or `f64`, and the inputs keep away
    /// from steps and kinks.
    pub gradient: bool,
}

impl Sample {
    /// What the reference evaluator makes of it.
    pub fn expected(&self) -> BTreeMap<String, Array> {
        evaluate(&self.graph, &self.inputs, Precision::Declared).expect("a sample has all of its inputs")
    }
}

/// The whole table, a function of the seed.
pub fn all(seed: u64) -> Vec<Sample> {
    let mut table = Table { samples: vec![], draws: Draws::new(seed) };
    source::add(&mut table);
    elementwise::add(&mut table);
    reduction::add(&mut table);
    movement::add(&mut table);
    contraction::add(&mut table);
    indexing::add(&mut table);
    composite::add(&mut table);
    scan::add(&mut table);
    table.samples
}

/// The first element, if any, that is off: `|actual − expected| > tolerance · max(1, |expected|)`. Infinities and
/// NaNs must be met.
pub fn difference(expected: &[f64], actual: &[f64], tolerance: f64) -> Option<String> {
    if expected.len() != actual.len() {
        return Some(format!("{} elements instead of {}", actual.len(), expected.len()));
    }
    let agree = |&(_, (x, y)): &(usize, (&f64, &f64))| {
        x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= tolerance * x.abs().max(1.0) && x.is_finite()
    };
    let found = expected.iter().zip(actual).enumerate().find(|pair| !agree(pair));
    found.map(|(at, (x, y))| format!("element {at} is {y:?} instead of {x:?} (tolerance {tolerance:e})"))
}

/// An input of a sample.
#[derive(Clone)]
struct Operand {
    ty: TensorType,
    values: Values,
}

impl Operand {
    fn new(dtype: DType, shape: &[usize], values: Values) -> Self {
        Operand { ty: TensorType::new(dtype, shape), values }
    }

    /// Between −2 and 2.
    fn tame(dtype: DType, shape: &[usize]) -> Self {
        Operand::new(dtype, shape, Values::Between(-2.0, 2.0))
    }
}

/// The samples so far.
struct Table {
    samples: Vec<Sample>,
    draws: Draws,
}

impl Table {
    /// Adds one op on inputs.
    fn op(&mut self, case: &str, op: impl Into<Op>, operands: &[Operand]) -> &mut Sample {
        let op = op.into();
        let dtype = operands.first().map_or(String::new(), |operand| format!(".{}", operand.ty.dtype));
        let name = format!("{}.{case}{dtype}", op.name());
        self.graph(&name, operands, |b, inputs| b.op(op, inputs))
    }

    /// Adds a graph of inputs `x0`, `x1`, … with the result `y`.
    fn graph(
        &mut self,
        name: &str,
        operands: &[Operand],
        build: impl FnOnce(&mut Builder<'_>, &[ValueId]) -> Result<ValueId>,
    ) -> &mut Sample {
        let mut graph = Graph::new(name);
        let mut inputs = BTreeMap::new();
        let mut b = Builder::new(&mut graph, Origin::new(None, name));
        let mut ids = vec![];
        for (number, operand) in operands.iter().enumerate() {
            let name = format!("x{number}");
            let id = b.input(&name, InputRole::Data, operand.ty.clone());
            ids.push(id.expect("names of inputs are unique"));
            inputs.insert(name, self.draws.tensor(&operand.ty, operand.values));
        }
        let result = build(&mut b, &ids).unwrap_or_else(|error| panic!("sample {name}: {error}"));
        graph.output("y", result);
        let dtype = graph[result].ty.dtype;
        let smooth = |dtype: DType| dtype == DType::F32 || dtype == DType::F64;
        let gradient = graph.ids().all(|id| !graph[id].ty.dtype.is_float() || smooth(graph[id].ty.dtype))
            && smooth(dtype)
            && operands.iter().any(|operand| operand.ty.dtype.is_float());
        self.samples.push(Sample { name: name.into(), graph, inputs, tolerance: rounding(dtype), gradient });
        self.samples.last_mut().expect("a sample was added")
    }
}

/// The tolerance of one operation: a few units in the last place, of `f32` where arithmetic is done in it.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 2e-6,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        DType::I32 | DType::U32 | DType::I8 | DType::Bool => 0.0,
    }
}

/// The tolerance of a sum of tens to hundreds of terms, in whatever order.
fn summation(dtype: DType) -> f64 {
    if dtype == DType::F32 { 2e-5 } else { rounding(dtype) }
}
