//! Reductions over axes.

use super::{Attributes, KernelEntry, Stanza, Vjp, arity, ensure};
use crate::evaluate::Array;
use crate::kernel::{Entered, Index, KernelWriter};
use crate::{Compare, DType, Result, TensorType, ValueId};
use serde::{Deserialize, Serialize};

/// How elements are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceOp {
    /// Their sum; 0 of none.
    Sum,
    /// The largest; NaN if one is; the lowest value of the type of none.
    Max,
    /// The smallest; NaN if one is; the highest value of the type of none.
    Min,
}

impl ReduceOp {
    /// Every reduction.
    pub const ALL: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min];

    /// The name in text form.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
        }
    }

    /// Where a reduction starts.
    pub fn identity(self, dtype: DType) -> f64 {
        match self {
            ReduceOp::Sum => 0.0,
            ReduceOp::Max => dtype.lowest(),
            ReduceOp::Min => dtype.highest(),
        }
    }

    fn combine(self, x: f64, y: f64) -> f64 {
        match self {
            ReduceOp::Sum => x + y,
            ReduceOp::Max | ReduceOp::Min if x.is_nan() || y.is_nan() => f64::NAN,
            ReduceOp::Max => x.max(y),
            ReduceOp::Min => x.min(y),
        }
    }
}

/// Combines the elements along some axes, which vanish.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reduce {
    /// How.
    pub op: ReduceOp,
    /// Which axes, ascending.
    pub axes: Vec<usize>,
}

impl Reduce {
    /// The axes that stay.
    pub fn kept(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|axis| !self.axes.contains(axis)).collect()
    }
}

impl Stanza for Reduce {
    fn name(&self) -> &'static str {
        "reduce"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default().word("op", self.op.name()).list("axes", &self.axes)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        (name == "reduce").then(|| {
            let word = attributes.take_word("op")?;
            let op = ReduceOp::ALL.into_iter().find(|op| op.name() == word);
            let op = op.ok_or_else(|| format!("unknown reduction `{word}`"))?;
            Ok(Reduce { op, axes: attributes.take_list("axes")? })
        })
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x] = arity(operands)?;
        ensure(x.dtype.is_number(), || format!("is not defined on {}", x.dtype))?;
        ensure(self.axes.is_sorted_by(|a, b| a < b), || format!("axes {:?} must ascend", self.axes))?;
        ensure(self.axes.iter().all(|&axis| axis < x.rank()), || {
            format!("axes {:?} of an operand of shape {:?}", self.axes, x.shape)
        })?;
        Ok(x.with_shape(self.kept(x.rank()).iter().map(|&axis| x.shape[axis]).collect::<Vec<_>>()))
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let x = operands[0];
        let kept = self.kept(x.ty.rank());
        let mut results = Array { ty: ty.clone(), values: vec![self.op.identity(ty.dtype); ty.elements()] };
        x.for_each(|at, value| {
            let to = results.offset(kept.iter().map(|&axis| at[axis]));
            results.values[to] = self.op.combine(results.values[to], value);
        });
        results.values
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Result<Vec<Option<ValueId>>> {
        let x = v.operands[0];
        let shape = v.b.ty(x).shape.clone();
        let kept = self.kept(shape.len());
        let dy = v.b.broadcast(v.dy, &shape, &kept)?;
        if self.op == ReduceOp::Sum {
            return Ok(vec![Some(dy)]);
        }
        // The elements that equal the extremum share dy evenly, as PyTorch's amax does.
        let y = v.b.broadcast(v.result, &shape, &kept)?;
        let chosen = v.b.compare(Compare::Eq, x, y)?;
        let ones = v.b.cast(chosen, v.b.ty(x).dtype)?;
        let count = v.b.reduce(ReduceOp::Sum, &self.axes, ones)?;
        let count = v.b.broadcast(count, &shape, &kept)?;
        let share = v.b.div(ones, count)?;
        Ok(vec![Some(v.b.mul(dy, share)?)])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Reduction
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        w.reduce(self, at)
    }
}
