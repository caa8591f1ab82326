//! Ops that move elements without computing: views (a change of coordinates), pad and concat.

use super::{Attributes, KernelEntry, Stanza, Vjp, arity, ensure};
use crate::evaluate::{Array, tabulate};
use crate::kernel::{Bound, Entered, Index, InstrKind, KernelWriter, Refusal, reshaped};
use crate::{DType, Literal, ReduceOp, Result, TensorType, ValueId};
use serde::{Deserialize, Serialize};

type Cotangents = Result<Vec<Option<ValueId>>>;
type Parsed<T> = Option<std::result::Result<T, String>>;

/// The same elements in row-major order under another shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reshape {
    /// The new extents.
    pub shape: Vec<usize>,
}

impl Stanza for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default().list("shape", &self.shape)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Parsed<Self> {
        (name == "reshape").then(|| Ok(Reshape { shape: attributes.take_list("shape")? }))
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x] = arity(operands)?;
        let result = x.with_shape(self.shape.clone());
        ensure(result.elements() == x.elements(), || {
            format!(
                "shape {:?} has {} elements, {:?} has {}",
                x.shape,
                x.elements(),
                self.shape,
                result.elements()
            )
        })?;
        Ok(result)
    }
    fn eval(&self, operands: &[&Array], _: &TensorType) -> Vec<f64> {
        operands[0].values.clone()
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        let shape = v.b.ty(v.operands[0]).shape.clone();
        Ok(vec![Some(v.b.reshape(v.dy, &shape)?)])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::View
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let from = w.operand_type(0).shape;
        let at = reshaped(w, at, &self.shape, &from)?;
        w.operand(0, at)
    }
}

/// Reorders axes: axis `i` of the result is axis `axes[i]` of the operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Permute {
    /// A permutation of the operand's axes.
    pub axes: Vec<usize>,
}

impl Stanza for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default().list("axes", &self.axes)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Parsed<Self> {
        (name == "permute").then(|| Ok(Permute { axes: attributes.take_list("axes")? }))
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x] = arity(operands)?;
        let mut sorted = self.axes.clone();
        sorted.sort_unstable();
        ensure(sorted.iter().copied().eq(0..x.rank()), || {
            format!("{:?} is no permutation of the axes of shape {:?}", self.axes, x.shape)
        })?;
        Ok(x.with_shape(self.axes.iter().map(|&axis| x.shape[axis]).collect::<Vec<_>>()))
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let mut from = vec![0; self.axes.len()];
        tabulate(ty, |to| {
            self.axes.iter().zip(to).for_each(|(&axis, &i)| from[axis] = i);
            operands[0].at(from.iter().copied())
        })
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        let mut inverse = vec![0; self.axes.len()];
        self.axes.iter().enumerate().for_each(|(i, &axis)| inverse[axis] = i);
        Ok(vec![Some(v.b.permute(v.dy, &inverse)?)])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::View
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let mut from = at.to_vec();
        self.axes.iter().zip(at).for_each(|(&axis, index)| from[axis] = index.clone());
        w.operand(0, from)
    }
}

/// Repeats the operand along new axes: its axis `i` is axis `axes[i]` of the result.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Broadcast {
    /// Extents of the result.
    pub shape: Vec<usize>,
    /// Where the operand's axes go, ascending.
    pub axes: Vec<usize>,
}

impl Stanza for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default().list("shape", &self.shape).list("axes", &self.axes)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Parsed<Self> {
        (name == "broadcast").then(|| {
            let shape = attributes.take_list("shape")?;
            Ok(Broadcast { shape, axes: attributes.take_list("axes")? })
        })
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x] = arity(operands)?;
        let ascending = self.axes.is_sorted_by(|a, b| a < b);
        let inside = self.axes.iter().all(|&axis| axis < self.shape.len());
        ensure(ascending && inside && self.axes.len() == x.rank(), || {
            format!("axes {:?} do not place the shape {:?} in {:?}", self.axes, x.shape, self.shape)
        })?;
        ensure(self.axes.iter().zip(&x.shape).all(|(&axis, &extent)| self.shape[axis] == extent), || {
            format!("shape {:?} does not fit the axes {:?} of {:?}", x.shape, self.axes, self.shape)
        })?;
        Ok(x.with_shape(self.shape.clone()))
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        tabulate(ty, |at| operands[0].at(self.axes.iter().map(|&axis| at[axis])))
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        let new: Vec<_> = (0..self.shape.len()).filter(|axis| !self.axes.contains(axis)).collect();
        Ok(vec![Some(v.b.reduce(ReduceOp::Sum, &new, v.dy)?)])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::View
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        w.operand(0, self.axes.iter().map(|&axis| at[axis].clone()).collect())
    }
}

/// The part from `start` (inclusive) to `end` (exclusive) along every axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slice {
    /// First index along each axis.
    pub start: Vec<usize>,
    /// One past the last.
    pub end: Vec<usize>,
}

impl Stanza for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default().list("start", &self.start).list("end", &self.end)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Parsed<Self> {
        (name == "slice").then(|| {
            let start = attributes.take_list("start")?;
            Ok(Slice { start, end: attributes.take_list("end")? })
        })
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x] = arity(operands)?;
        let parts = || self.start.iter().zip(&self.end);
        let fits = self.start.len() == x.rank()
            && self.end.len() == x.rank()
            && parts().zip(&x.shape).all(|((start, end), extent)| start <= end && end <= extent);
        ensure(fits, || format!("{:?}..{:?} is no part of the shape {:?}", self.start, self.end, x.shape))?;
        Ok(x.with_shape(parts().map(|(start, end)| end - start).collect::<Vec<_>>()))
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        tabulate(ty, |at| operands[0].at(at.iter().zip(&self.start).map(|(i, start)| i + start)))
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        let ty = v.b.ty(v.operands[0]).clone();
        let high: Vec<_> = ty.shape.iter().zip(&self.end).map(|(extent, end)| extent - end).collect();
        Ok(vec![Some(v.b.pad(v.dy, &self.start, &high, 0.0)?)])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::View
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let moved = at.iter().zip(&self.start).map(|(index, &start)| index.clone().shifted(start as i64));
        w.operand(0, moved.collect())
    }
}

/// Surrounds the operand with `value`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pad {
    /// How many before, along each axis.
    pub low: Vec<usize>,
    /// How many after.
    pub high: Vec<usize>,
    /// What is put there.
    pub value: Literal,
}

impl Stanza for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default()
            .list("low", &self.low)
            .list("high", &self.high)
            .number("value", self.value.value())
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Parsed<Self> {
        (name == "pad").then(|| {
            let low = attributes.take_list("low")?;
            let high = attributes.take_list("high")?;
            Ok(Pad { low, high, value: Literal::new(attributes.take_number("value")?) })
        })
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x] = arity(operands)?;
        ensure(self.low.len() == x.rank() && self.high.len() == x.rank(), || {
            format!("paddings {:?} and {:?} of the shape {:?}", self.low, self.high, x.shape)
        })?;
        let value = self.value.value();
        ensure(x.dtype.round(value) == value || value.is_nan() && x.dtype.is_float(), || {
            format!("{value:?} is not a value of {}", x.dtype)
        })?;
        let around = self.low.iter().zip(&self.high).zip(&x.shape);
        let padded =
            |((low, high), extent): ((&usize, &usize), &usize)| low.checked_add(*high)?.checked_add(*extent);
        let shape: Option<Vec<_>> = around.map(padded).collect();
        Ok(x.with_shape(shape.ok_or("the padded extent does not fit a word")?))
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let x = operands[0];
        // What lies before the operand wraps, and so lies outside as well.
        let moved = |at: &[usize], axis: usize| at[axis].wrapping_sub(self.low[axis]);
        tabulate(ty, |at| {
            let inside = (0..at.len()).all(|axis| moved(at, axis) < x.ty.shape[axis]);
            if inside { x.at((0..at.len()).map(|axis| moved(at, axis))) } else { self.value.value() }
        })
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        let shape = v.b.ty(v.operands[0]).shape.clone();
        let end: Vec<_> = self.low.iter().zip(shape).map(|(low, extent)| low + extent).collect();
        Ok(vec![Some(v.b.slice(v.dy, &self.low, &end)?)])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Movement
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let ty = w.operand_type(0);
        let moved: Vec<_> =
            at.iter().zip(&self.low).map(|(i, &low)| i.clone().shifted(-(low as i64))).collect();
        let padded = |axis: &usize| self.low[*axis] > 0 || self.high[*axis] > 0;
        let bound = |axis: usize| Bound { coordinate: moved[axis].clone(), extent: ty.shape[axis] };
        let bounds: Vec<_> = (0..ty.rank()).filter(padded).map(bound).collect();
        let x = w.guarded(0, moved, &bounds)?;
        if bounds.is_empty() {
            return Ok(x);
        }
        let inside = w.push(InstrKind::InRange(bounds), DType::Bool);
        let value = w.push(InstrKind::Constant(self.value), ty.dtype);
        Ok(w.push(InstrKind::Select(inside, x, value), ty.dtype))
    }
}

/// Joins operands one after another along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Concat {
    /// Which axis.
    pub axis: usize,
}

impl Stanza for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default().number("axis", self.axis as f64)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Parsed<Self> {
        (name == "concat").then(|| Ok(Concat { axis: attributes.take_count("axis")? }))
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let first = *operands.first().ok_or("takes at least one operand")?;
        ensure(self.axis < first.rank(), || format!("axis {} of the shape {:?}", self.axis, first.shape))?;
        let mut result = first.clone();
        for other in &operands[1..] {
            let mut expected = (*other).clone();
            ensure(other.rank() == first.rank(), || {
                format!("shapes {:?} and {:?}", first.shape, other.shape)
            })?;
            expected.shape[self.axis] = first.shape[self.axis];
            ensure(expected == *first, || format!("{first} and {other} differ beside axis {}", self.axis))?;
            let joined = result.shape[self.axis].checked_add(other.shape[self.axis]);
            result.shape[self.axis] = joined.ok_or("the joined extent does not fit a word")?;
        }
        Ok(result)
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        tabulate(ty, |at| {
            let (mut operand, mut along) = (0, at[self.axis]);
            while along >= operands[operand].ty.shape[self.axis] {
                along -= operands[operand].ty.shape[self.axis];
                operand += 1;
            }
            operands[operand].at((0..at.len()).map(|axis| if axis == self.axis { along } else { at[axis] }))
        })
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        let mut start = vec![0; v.b.ty(v.dy).rank()];
        let mut cotangents = Vec::new();
        for &operand in v.operands {
            let shape = v.b.ty(operand).shape.clone();
            let end: Vec<_> = start.iter().zip(&shape).map(|(start, extent)| start + extent).collect();
            cotangents.push(Some(v.b.slice(v.dy, &start, &end)?));
            start[self.axis] += shape[self.axis];
        }
        Ok(cotangents)
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Movement
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let (ty, mut start, mut slot) = (w.result_type(), 0, 0);
        let mut result = None;
        while start < ty.shape[self.axis] {
            let extent = w.operand_type(slot).shape[self.axis];
            let mut moved = at.to_vec();
            moved[self.axis] = moved[self.axis].clone().shifted(-(start as i64));
            let bounds = [Bound { coordinate: moved[self.axis].clone(), extent }];
            let x = w.guarded(slot, moved, &bounds)?;
            result = Some(match result {
                None => x,
                Some(others) => {
                    let here = w.push(InstrKind::InRange(bounds.to_vec()), DType::Bool);
                    w.push(InstrKind::Select(here, x, others), ty.dtype)
                }
            });
            start += extent;
            slot += 1;
        }
        result.ok_or(Refusal::Because("an empty concat has no elements"))
    }
}
