//! What a window sees that slides over the last axes: the view from which convolutions and pooling are made.

use super::{Attributes, Concat, KernelEntry, Stanza, Vjp, arity, ensure};
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

    /// Which of `stride` neighbouring positions a place sees along an axis, and how many strides further.
    fn phase(&self, axis: usize, place: usize) -> (usize, usize) {
        let offset = place * self.dilation[axis];
        (offset % self.stride[axis], offset / self.stride[axis])
    }

    /// The gradient of every `stride`-th position along each axis, from those that are `phase` positions in: what is seen from all places that see
    /// them. `None` if none does.
    fn of_phase(&self, v: &mut Vjp<'_, '_>, phase: &[usize]) -> Result<Option<ValueId>> {
        let (whole, seen) = (v.b.ty(v.operands[0]).shape.clone(), v.b.ty(v.dy).shape.clone());
        let (rank, batch) = (whole.len(), self.batch(whole.len()));
        let mut sum = None;
        for place in self.all_places() {
            let phases: Vec<_> = place.iter().enumerate().map(|(axis, &at)| self.phase(axis, at)).collect();
            if phases.iter().map(|(phase, _)| phase).ne(phase) {
                continue;
            }
            let start = [&vec![0; rank], place.as_slice()].concat();
            let ends = place.iter().map(|at| at + 1);
            let end: Vec<_> = seen[..rank].iter().copied().chain(ends).collect();
            let part = v.b.slice(v.dy, &start, &end)?;
            let part = v.b.reshape(part, &seen[..rank])?;
            let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
            for (axis, (_, further)) in phases.into_iter().enumerate() {
                let positions = whole[batch + axis].div_ceil(self.stride[axis]);
                low[batch + axis] = further;
                high[batch + axis] = positions - further - seen[batch + axis];
            }
            let part = v.b.pad(part, &low, &high, 0.0)?;
            sum = Some(match sum {
                Some(sum) => v.b.add(sum, part)?,
                None => part,
            });
        }
        Ok(sum)
    }

    /// The gradient from axis `axis` on, of the phases before it that are given.
    fn interleaved(&self, v: &mut Vjp<'_, '_>, before: &[usize]) -> Result<Option<ValueId>> {
        let axis = before.len();
        let Some(&stride) = self.stride.get(axis) else { return self.of_phase(v, before) };
        let parts: Vec<_> = (0..stride)
            .map(|phase| self.interleaved(v, &[before, &[phase]].concat()))
            .collect::<Result<_>>()?;
        let Some(&any) = parts.iter().flatten().next().filter(|_| stride > 1) else { return Ok(parts[0]) };
        let (mut shape, at) = (v.b.ty(any).shape.clone(), self.batch(v.b.ty(any).rank()) + axis);
        let extent = v.b.ty(v.operands[0]).shape[at];
        let apart = [&shape[..=at], &[1], &shape[at + 1..]].concat();
        let there: Vec<_> =
            parts.iter().enumerate().filter_map(|(phase, part)| Some((phase, (*part)?))).collect();
        let together = if let [(phase, part)] = there[..] {
            let (mut low, mut high) = (vec![0; apart.len()], vec![0; apart.len()]);
            (low[at + 1], high[at + 1]) = (phase, stride - 1 - phase);
            let part = v.b.reshape(part, &apart)?;
            v.b.pad(part, &low, &high, 0.0)?
        } else {
            let mut all = vec![];
            for part in parts {
                all.push(match part {
                    Some(part) => v.b.reshape(part, &apart)?,
                    None => {
                        let ty = v.b.ty(any).with_shape(apart.clone());
                        v.b.full(0.0, &ty)?
                    }
                });
            }
            v.b.op(Concat { axis: at + 1 }, &all)?
        };
        shape[at] *= stride;
        let together = v.b.reshape(together, &shape)?;
        shape[at] = extent;
        v.b.slice(together, &vec![0; shape.len()], &shape).map(Some)
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
        Ok(vec![self.interleaved(v, &[])?])
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
