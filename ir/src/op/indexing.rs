//! Reads and writes at positions known only at run time. Positions outside are clamped, so that memory is safe
//! whatever the data.

use super::{Attributes, KernelEntry, Stanza, Vjp, arity, ensure};
use crate::evaluate::{Array, tabulate};
use crate::kernel::{Bound, Entered, Index, InstrKind, KernelWriter, Refusal};
use crate::{DType, Result, TensorType, ValueId};
use serde::{Deserialize, Serialize};

type Cotangents = Result<Vec<Option<ValueId>>>;
type Parsed<T> = Option<std::result::Result<T, String>>;

/// Rows of a table: operands (table, indices: i32), `result[a.., i.., c..] = table[a.., indices[i..], c..]`, where
/// `a` has `axis` axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Gather {
    /// The table's axis that is indexed.
    pub axis: usize,
}

impl Stanza for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default().number("axis", self.axis as f64)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Parsed<Self> {
        (name == "gather").then(|| Ok(Gather { axis: attributes.take_count("axis")? }))
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [table, indices] = arity(operands)?;
        ensure(indices.dtype == DType::I32, || format!("indices are {}, not i32", indices.dtype))?;
        ensure(self.axis < table.rank(), || {
            format!("axis {} of a table of shape {:?}", self.axis, table.shape)
        })?;
        ensure(table.shape[self.axis] > 0, || "the table is empty".into())?;
        let (before, after) = (&table.shape[..self.axis], &table.shape[self.axis + 1..]);
        Ok(table.with_shape([before, &indices.shape, after].concat()))
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let [table, indices] = [operands[0], operands[1]];
        tabulate(ty, |at| table.at(self.source(at, table, indices)))
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        let extent = v.b.ty(v.operands[0]).shape[self.axis];
        let scatter = ScatterAdd { axis: self.axis, extent };
        Ok(vec![Some(v.b.op(scatter, &[v.operands[1], v.dy])?), None])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Movement
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let (extent, rank) = (w.operand_type(0).shape[self.axis], w.operand_type(1).rank());
        let row = w.operand(1, at[self.axis..self.axis + rank].to_vec())?;
        let row = Index::indirect(w.rank(), row, extent);
        let (before, after) = (&at[..self.axis], &at[self.axis + rank..]);
        w.operand(0, [before, &[row], after].concat())
    }
}

impl Gather {
    fn source<'a>(
        &self,
        at: &'a [usize],
        table: &Array,
        indices: &Array,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let (before, rest) = at.split_at(self.axis);
        let (index, after) = rest.split_at(indices.ty.rank());
        let row = clamp(indices.at(index.iter().copied()), table.ty.shape[self.axis]);
        before.iter().copied().chain([row]).chain(after.iter().copied())
    }
}

/// The opposite: operands (indices: i32, updates); a tensor of zeros to which each row of updates is added at its
/// index: `result[a.., indices[i..], c..] += updates[a.., i.., c..]`, in the order of `i`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ScatterAdd {
    /// The result's axis that is indexed.
    pub axis: usize,
    /// Its extent.
    pub extent: usize,
}

impl Stanza for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default().number("axis", self.axis as f64).number("extent", self.extent as f64)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Parsed<Self> {
        (name == "scatter_add").then(|| {
            let axis = attributes.take_count("axis")?;
            Ok(ScatterAdd { axis, extent: attributes.take_count("extent")? })
        })
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [indices, updates] = arity(operands)?;
        ensure(indices.dtype == DType::I32, || format!("indices are {}, not i32", indices.dtype))?;
        ensure(updates.dtype.is_number(), || format!("is not defined on {}", updates.dtype))?;
        let end = self.axis.saturating_add(indices.rank());
        let fits = end <= updates.rank() && updates.shape[self.axis..end] == indices.shape;
        ensure(fits, || {
            format!("indices {:?} at axis {} of updates {:?}", indices.shape, self.axis, updates.shape)
        })?;
        ensure(self.extent > 0, || "the result is empty".into())?;
        Ok(updates.with_shape([&updates.shape[..self.axis], &[self.extent], &updates.shape[end..]].concat()))
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let [indices, updates] = [operands[0], operands[1]];
        let (gather, mut result) = (Gather { axis: self.axis }, Array::zeros(ty));
        updates.for_each(|at, value| {
            let offset = result.offset(gather.source(at, &result, indices));
            result.values[offset] += value;
        });
        result.values
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        Ok(vec![None, Some(v.b.op(Gather { axis: self.axis }, &[v.dy, v.operands[0]])?)])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Scatter
    }
    fn enter(&self, _: &mut dyn KernelWriter, _: &[Index]) -> Entered {
        Err(Refusal::Because("a scatter writes through an index and roots its own kernel"))
    }
}

/// A part of fixed extents that starts at run-time positions: operands (x, one `i32[]` start for each axis). Starts
/// are clamped so that the part lies inside.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DynamicSlice {
    /// Extents of the part.
    pub sizes: Vec<usize>,
}

impl Stanza for DynamicSlice {
    fn name(&self) -> &'static str {
        "dynamic_slice"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default().list("sizes", &self.sizes)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Parsed<Self> {
        (name == "dynamic_slice").then(|| Ok(DynamicSlice { sizes: attributes.take_list("sizes")? }))
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let (x, starts) = operands.split_first().ok_or("takes an operand")?;
        part_fits(x, &self.sizes, starts)?;
        Ok(x.with_shape(self.sizes.clone()))
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let start = starts(&operands[1..], &operands[0].ty.shape, &self.sizes);
        tabulate(ty, |at| operands[0].at(at.iter().zip(&start).map(|(i, start)| i + start)))
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        let ty = v.b.ty(v.operands[0]).clone();
        let zeros = v.b.full(0.0, &ty)?;
        let operands = [&[zeros, v.dy], &v.operands[1..]].concat();
        let dx = v.b.op(DynamicUpdate, &operands)?;
        Ok([vec![Some(dx)], vec![None; self.sizes.len()]].concat())
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Movement
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let shape = w.operand_type(0).shape;
        let start = entered_starts(w, 1, &shape, &self.sizes)?;
        w.operand(0, at.iter().zip(&start).map(|(index, start)| index.clone().plus(start, 1)).collect())
    }
}

/// The operand with a part replaced: operands (x, part, one `i32[]` start for each axis). Starts are clamped so
/// that the part lies inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DynamicUpdate;

impl Stanza for DynamicUpdate {
    fn name(&self) -> &'static str {
        "dynamic_update"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default()
    }
    fn parse(name: &str, _: &mut Attributes) -> Parsed<Self> {
        (name == "dynamic_update").then_some(Ok(DynamicUpdate))
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x, part, starts @ ..] = operands else { return Err("takes at least two operands".into()) };
        ensure(x.dtype == part.dtype, || format!("operands have the dtypes {} and {}", x.dtype, part.dtype))?;
        part_fits(x, &part.shape, starts)?;
        Ok((*x).clone())
    }
    fn eval(&self, operands: &[&Array], _: &TensorType) -> Vec<f64> {
        let (x, part) = (operands[0], operands[1]);
        let start = starts(&operands[2..], &x.ty.shape, &part.ty.shape);
        let mut values = x.values.clone();
        part.for_each(|at, value| {
            values[x.offset(at.iter().zip(&start).map(|(i, start)| i + start))] = value;
        });
        values
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Cotangents {
        let part = v.b.ty(v.operands[1]).clone();
        let zeros = v.b.full(0.0, &part)?;
        let dx = v.b.op(DynamicUpdate, &[&[v.dy, zeros], &v.operands[2..]].concat())?;
        let slice = DynamicSlice { sizes: part.shape };
        let dpart = v.b.op(slice, &[&[v.dy], &v.operands[2..]].concat())?;
        Ok([vec![Some(dx), Some(dpart)], vec![None; v.operands.len() - 2]].concat())
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Movement
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let (x, part) = (w.operand_type(0), w.operand_type(1));
        let start = entered_starts(w, 2, &x.shape, &part.shape)?;
        let moved: Vec<_> =
            at.iter().zip(&start).map(|(index, start)| index.clone().plus(start, -1)).collect();
        let bound = |axis: usize| Bound { coordinate: moved[axis].clone(), extent: part.shape[axis] };
        let bounds: Vec<_> = (0..part.rank()).filter(|&a| part.shape[a] < x.shape[a]).map(bound).collect();
        let new = w.guarded(1, moved.clone(), &bounds)?;
        if bounds.is_empty() {
            return Ok(new);
        }
        let old = w.operand(0, at.to_vec())?;
        let inside = w.push(InstrKind::InRange(bounds), DType::Bool);
        Ok(w.push(InstrKind::Select(inside, new, old), x.dtype))
    }
}

fn clamp(index: f64, extent: usize) -> usize {
    index.clamp(0.0, (extent - 1) as f64) as usize
}

fn part_fits(x: &TensorType, sizes: &[usize], starts: &[&TensorType]) -> std::result::Result<(), String> {
    let fits = sizes.len() == x.rank() && sizes.iter().zip(&x.shape).all(|(size, extent)| size <= extent);
    ensure(fits, || format!("{sizes:?} is no part of the shape {:?}", x.shape))?;
    let start = TensorType::scalar(DType::I32);
    ensure(starts.len() == x.rank() && starts.iter().all(|ty| **ty == start), || {
        format!("needs {} starts of type i32[]", x.rank())
    })
}

fn starts(operands: &[&Array], shape: &[usize], sizes: &[usize]) -> Vec<usize> {
    let limits = shape.iter().zip(sizes).map(|(extent, size)| extent - size + 1);
    operands.iter().zip(limits).map(|(start, limit)| clamp(start.values[0], limit)).collect()
}

fn entered_starts(
    w: &mut dyn KernelWriter,
    slot: usize,
    shape: &[usize],
    sizes: &[usize],
) -> std::result::Result<Vec<Index>, Refusal> {
    let mut starts = Vec::new();
    for (axis, (extent, size)) in shape.iter().zip(sizes).enumerate() {
        let value = w.operand(slot + axis, vec![])?;
        starts.push(Index::indirect(w.rank(), value, extent - size + 1));
    }
    Ok(starts)
}
