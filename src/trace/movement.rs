//! Shapes: reshape, permute, broadcast, slice, pad, join.

use super::{Built, Tensor, Trace};
use kernfusion_ir::{Builder, Concat, ValueId, Windows};
use std::ops::Range;

/// An extent of a new shape: a count, or −1 for "whatever is left".
pub trait Extent: Copy {
    /// The extent as a signed number.
    fn extent(self) -> isize;
}

impl Extent for usize {
    fn extent(self) -> isize {
        isize::try_from(self).unwrap_or(isize::MAX)
    }
}

impl Extent for isize {
    fn extent(self) -> isize {
        self
    }
}

impl Extent for i32 {
    fn extent(self) -> isize {
        self as isize
    }
}

/// A new shape: an array, slice or vector of extents.
pub trait Extents {
    /// The extents, outermost first.
    fn extents(&self) -> Vec<isize>;
}

impl<E: Extent, const N: usize> Extents for [E; N] {
    fn extents(&self) -> Vec<isize> {
        self.as_slice().extents()
    }
}

impl<E: Extent> Extents for [E] {
    fn extents(&self) -> Vec<isize> {
        self.iter().map(|extent| extent.extent()).collect()
    }
}

impl<E: Extent> Extents for Vec<E> {
    fn extents(&self) -> Vec<isize> {
        self.as_slice().extents()
    }
}

impl<E: Extents + ?Sized> Extents for &E {
    fn extents(&self) -> Vec<isize> {
        (*self).extents()
    }
}

impl Tensor {
    /// The same elements, row-major, under another shape; one extent may be −1.
    #[track_caller]
    pub fn reshape(&self, shape: impl Extents) -> Tensor {
        let extents = shape.extents();
        let elements = self.ty().elements();
        self.viewed("reshape", |b, x| {
            let known = extents.iter().filter(|&&extent| extent != -1);
            let product = known.copied().try_fold(1, |product: usize, extent| {
                usize::try_from(extent).ok().and_then(|extent| product.checked_mul(extent))
            });
            let inferred = product.filter(|&product| product > 0).map(|product| elements / product);
            let extent = |&extent: &isize| if extent == -1 { inferred } else { usize::try_from(extent).ok() };
            let shape: Option<Vec<usize>> = extents.iter().map(extent).collect();
            let one = extents.iter().filter(|&&extent| extent == -1).count() <= 1;
            match shape.filter(|_| one && product.is_some()) {
                Some(shape) if shape.iter().product::<usize>() == elements => Ok(b.reshape(x, &shape)?),
                _ => Err(format!("its {elements} elements have no shape {extents:?}").into()),
            }
        })
    }

    /// Axis `i` of the result is axis `axes[i]` of this.
    #[track_caller]
    pub fn permute(&self, axes: &[usize]) -> Tensor {
        self.viewed("permute", |b, x| Ok(b.permute(x, axes)?))
    }

    /// Swaps two axes.
    #[track_caller]
    pub fn transpose(&self, first: isize, second: isize) -> Tensor {
        let (Some(first), Some(second)) = (self.axis("transpose", first), self.axis("transpose", second))
        else {
            return self.clone();
        };
        let mut axes: Vec<_> = (0..self.rank()).collect();
        axes.swap(first, second);
        self.permute(&axes)
    }

    /// Stretches axes of extent 1 and adds axes in front, as NumPy does.
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl Into<Vec<usize>>) -> Tensor {
        let shape = shape.into();
        self.viewed("broadcast_to", |b, x| Ok(b.broadcast_to(x, &shape)?))
    }

    /// Drops an axis of extent 1.
    #[track_caller]
    pub fn squeeze(&self, axis: isize) -> Tensor {
        let Some(axis) = self.axis("squeeze", axis) else { return self.clone() };
        let mut shape = self.shape();
        let extent = shape.remove(axis);
        self.viewed("squeeze", |b, x| match extent {
            1 => Ok(b.reshape(x, &shape)?),
            _ => Err(format!("axis {axis} has the extent {extent}, not 1").into()),
        })
    }

    /// Inserts an axis of extent 1 at a place of the result.
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Tensor {
        let mut shape = self.shape();
        let place =
            if axis < 0 { (shape.len() + 1).checked_add_signed(axis) } else { Some(axis.unsigned_abs()) };
        self.viewed("unsqueeze", |b, x| match place.filter(|&place| place <= shape.len()) {
            Some(place) => {
                shape.insert(place, 1);
                Ok(b.reshape(x, &shape)?)
            }
            None => Err(format!("no place {axis} among {} axes", shape.len()).into()),
        })
    }

    /// The part with indices in `range` along an axis.
    #[track_caller]
    pub fn slice(&self, axis: isize, range: Range<usize>) -> Tensor {
        let Some(axis) = self.axis("slice", axis) else { return self.clone() };
        let end = self.shape();
        if range == (0..end[axis]) {
            return self.clone();
        }
        self.viewed("slice", |b, x| part(b, x, axis, range))
    }

    /// The part of `length` indices from `start` along an axis.
    #[track_caller]
    pub fn narrow(&self, axis: isize, start: usize, length: usize) -> Tensor {
        self.slice(axis, start..start.saturating_add(length))
    }

    /// The part at one index along an axis, which vanishes.
    #[track_caller]
    pub fn index(&self, axis: isize, index: usize) -> Tensor {
        let Some(axis) = self.axis("index", axis) else { return self.clone() };
        let mut shape = self.shape();
        shape.remove(axis);
        self.viewed("index", |b, x| {
            let row = part(b, x, axis, index..index.saturating_add(1))?;
            Ok(b.reshape(row, &shape)?)
        })
    }

    /// What a window sees that slides over the last axes, as many as the lists have entries: of `[batch.., positions..]` the view
    /// `[batch.., results.., places..]` with the element at position `stride · result + dilation · place`. Results are as many as fit.
    ///
    /// ```
    /// use kernfusion::prelude::*;
    /// let trace = Trace::new();
    /// let x = trace.input("x", [2, 10], DType::F32);
    /// let means = x.windows(&[4], &[2], &[1]).mean(&[-1]);
    /// assert_eq!(means.shape(), [2, 4]);
    /// # trace.finish(&[("means", &means)])?;
    /// # Ok::<(), kernfusion::Error>(())
    /// ```
    #[doc(alias = "unfold")]
    #[track_caller]
    pub fn windows(&self, places: &[usize], stride: &[usize], dilation: &[usize]) -> Tensor {
        let [places, stride, dilation] = [places, stride, dilation].map(<[usize]>::to_vec);
        self.viewed("windows", |b, x| Ok(b.op(Windows { places, stride, dilation }, &[x])?))
    }

    /// Equal parts along an axis.
    #[track_caller]
    pub fn split(&self, parts: usize, axis: isize) -> Vec<Tensor> {
        let extent = self.dim(axis);
        if parts == 0 || !extent.is_multiple_of(parts) {
            self.expect("split", |_| Some(format!("an extent of {extent} has no {parts} equal parts")));
            return vec![self.clone(); parts];
        }
        let length = extent / parts;
        let mut results = Vec::with_capacity(parts);
        for i in 0..parts {
            results.push(self.narrow(axis, i * length, length));
        }
        results
    }

    /// Surrounds the tensor with `value`: for each axis, how many before and after.
    #[track_caller]
    pub fn pad(&self, around: &[(usize, usize)], value: f64) -> Tensor {
        let (low, high): (Vec<_>, Vec<_>) = around.iter().copied().unzip();
        self.viewed("pad", |b, x| Ok(b.pad(x, &low, &high, b.ty(x).dtype.round(value))?))
    }

    /// Repeats a value that lacks some axes of `like` along them, in one node; `axes` are those of `like`.
    #[track_caller]
    pub(super) fn spread(&self, like: &Tensor, axes: &[isize]) -> Tensor {
        let Some(lacking) = like.axes("broadcast", axes) else { return self.clone() };
        let shape = like.shape();
        let kept: Vec<_> = (0..shape.len()).filter(|axis| !lacking.contains(axis)).collect();
        self.viewed("broadcast", |b, x| Ok(b.broadcast(x, &shape, &kept)?))
    }

    #[track_caller]
    fn viewed(&self, name: &'static str, build: impl FnOnce(&mut Builder<'_>, ValueId) -> Built) -> Tensor {
        self.trace().attempt(name, [self], |b, [x]| build(b, x)).unwrap_or_else(|| self.clone())
    }
}

impl Trace {
    /// The tensors one after another along an axis.
    #[doc(alias = "cat")]
    #[track_caller]
    pub fn concat(&self, tensors: &[&Tensor], axis: isize) -> Tensor {
        let Some(&first) = tensors.first() else { return self.nothing("concat") };
        let Some(axis) = first.axis("concat", axis) else { return first.clone() };
        let joined = self.attempt_all("concat", tensors, |b, ids| Ok(b.op(Concat { axis }, ids)?));
        joined.unwrap_or_else(|| first.clone())
    }

    /// Tensors of one shape side by side along a new axis, whose place in the result is `axis`.
    #[track_caller]
    pub fn stack(&self, tensors: &[&Tensor], axis: isize) -> Tensor {
        if tensors.is_empty() {
            return self.nothing("stack");
        }
        let mut rows = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            rows.push(tensor.unsqueeze(axis));
        }
        self.concat(&rows.iter().collect::<Vec<_>>(), axis)
    }

    #[track_caller]
    fn nothing(&self, op: &'static str) -> Tensor {
        self.attempt_all(op, &[], |_, _| Err("takes at least one tensor".into()));
        self.full([], 0.0, kernfusion_ir::DType::F32)
    }
}

/// The part with indices in `range` along one axis.
fn part(b: &mut Builder<'_>, x: ValueId, axis: usize, range: Range<usize>) -> Built {
    let mut end = b.ty(x).shape.clone();
    let mut start = vec![0; end.len()];
    if range.start > range.end || range.end > end[axis] {
        return Err(format!("{range:?} is no part of axis {axis}, whose extent is {}", end[axis]).into());
    }
    (start[axis], end[axis]) = (range.start, range.end);
    Ok(b.slice(x, &start, &end)?)
}
