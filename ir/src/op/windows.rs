//! What a window sees that slides over the last axes: the view from which convolutions and pooling are made.

use super::{Attributes, KernelEntry, Stanza, Vjp, arity, ensure};
use crate::evaluate::{Array, tabulate};
use crate::kernel::{Entered, Index, KernelWriter};
use crate::{Result, TensorType, ValueId};
use serde::{Deserialize, Serialize};

/// The operand as a window sees it that slides over its last N axes: of `[batch.., positions..]` the view `[batch.., results.., places..]`, whose
/// element at result i and place j is that at position `stride · i + dilation · j`. Results are as many as fit,
/// ⌊(positions − dilation · (places − 1) − 1) / stride⌋ + 1 along each axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Windows {
    /// Places of the window along each of the last axes; the lists are as long as there are such axes.
    pub places: Vec<usize>,
    /// How far it moves from one result to the next.
    pub stride: Vec<usize>,
    /// The distance between neighbouring places.
    pub dilation: Vec<usize>,
}

impl Windows {
    /// How many axes the window does not slide over, of an operand of this rank.
    fn batch(&self, rank: usize) -> usize {
        rank - self.places.len()
    }

    /// Results along an axis of that extent, if the window fits.
    fn results(&self, axis: usize, extent: usize) -> Option<usize> {
        let [places, stride] = [self.places[axis], self.stride[axis]];
        let reach = self.dilation[axis].checked_mul(places.checked_sub(1)?)?.checked_add(1)?;
        Some(extent.checked_sub(reach)?.checked_div(stride)? + 1)
    }

    /// The coordinates of every place, row-major.
    fn all_places(&self) -> impl Iterator<Item = Vec<usize>> + '_ {
        (0..self.places.iter().product()).map(|mut at| {
            let mut place = vec![0; self.places.len()];
            for (coordinate, &extent) in place.iter_mut().zip(&self.places).rev() {
                (*coordinate, at) = (at % extent, at / extent);
            }
            place
        })
    }

    /// The gradient of what is seen from one place, at the positions where that is.
    fn spread(&self, v: &mut Vjp<'_, '_>, place: &[usize]) -> Result<ValueId> {
        let (whole, seen) = (v.b.ty(v.operands[0]).shape.clone(), v.b.ty(v.dy).shape.clone());
        let (batch, rank) = (self.batch(whole.len()), whole.len());
        let start = [&vec![0; rank], place].concat();
        let ends = place.iter().map(|at| at + 1);
        let end: Vec<_> = seen[..rank].iter().copied().chain(ends).collect();
        let part = v.b.slice(v.dy, &start, &end)?;
        let mut part = v.b.reshape(part, &seen[..rank])?;
        let mut shape = seen[..rank].to_vec();
        for (axis, &stride) in self.stride.iter().enumerate().filter(|(_, stride)| **stride > 1) {
            // Zeros between neighbours.
            let axis = batch + axis;
            let apart = [&shape[..=axis], &[1], &shape[axis + 1..]].concat();
            part = v.b.reshape(part, &apart)?;
            let (low, mut high) = (vec![0; rank + 1], vec![0; rank + 1]);
            high[axis + 1] = stride - 1;
            part = v.b.pad(part, &low, &high, 0.0)?;
            shape[axis] *= stride;
            part = v.b.reshape(part, &shape)?;
            shape[axis] -= stride - 1;
            part = v.b.slice(part, &vec![0; rank], &shape)?;
        }
        let offsets = place.iter().zip(&self.dilation).map(|(at, dilation)| at * dilation);
        let low: Vec<_> = std::iter::repeat_n(0, batch).chain(offsets).collect();
        let high: Vec<_> = (0..rank).map(|axis| whole[axis] - low[axis] - shape[axis]).collect();
        v.b.pad(part, &low, &high, 0.0)
    }
}

impl Stanza for Windows {
    fn name(&self) -> &'static str {
        "windows"
    }
    fn attributes(&self) -> Attributes {
        let lists = Attributes::default().list("places", &self.places).list("stride", &self.stride);
        lists.list("dilation", &self.dilation)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        (name == "windows").then(|| {
            let [places, stride] = [attributes.take_list("places")?, attributes.take_list("stride")?];
            Ok(Windows { places, stride, dilation: attributes.take_list("dilation")? })
        })
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x] = arity(operands)?;
        let count = self.places.len();
        let is_whole = self.stride.len() == count && self.dilation.len() == count && count <= x.rank();
        ensure(is_whole, || {
            format!(
                "places {:?}, stride {:?} and dilation {:?} do not tell of the same axes of {x}",
                self.places, self.stride, self.dilation
            )
        })?;
        let batch = self.batch(x.rank());
        let results: Option<Vec<_>> =
            (0..count).map(|axis| self.results(axis, x.shape[batch + axis])).collect();
        let results = results.ok_or_else(|| {
            format!(
                "a window of places {:?} by stride {:?} with dilation {:?} does not fit the last axes of shape {:?}",
                self.places, self.stride, self.dilation, x.shape
            )
        })?;
        Ok(x.with_shape([&x.shape[..batch], &results, &self.places].concat()))
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let count = self.places.len();
        let batch = ty.rank() - 2 * count;
        tabulate(ty, |at| {
            let position = |axis: usize| {
                at[batch + axis] * self.stride[axis] + at[batch + count + axis] * self.dilation[axis]
            };
            operands[0].at(at[..batch].iter().copied().chain((0..count).map(position)))
        })
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Result<Vec<Option<ValueId>>> {
        let mut sum = None;
        for place in self.all_places().collect::<Vec<_>>() {
            let spread = self.spread(v, &place)?;
            sum = Some(match sum {
                Some(sum) => v.b.add(sum, spread)?,
                None => spread,
            });
        }
        Ok(vec![sum])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::View
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let count = self.places.len();
        let (batch, windows) = at.split_at(at.len() - 2 * count);
        let (results, places) = windows.split_at(count);
        let mut from = batch.to_vec();
        for axis in 0..count {
            let still = Index::constant(w.rank(), 0);
            let result = still.plus(&results[axis], self.stride[axis] as i64);
            from.push(result.plus(&places[axis], self.dilation[axis] as i64));
        }
        w.operand(0, from)
    }
}
