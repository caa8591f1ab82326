//! Reading and writing at positions known only at run time, and masks by position.

use super::Tensor;
use kernfusion_ir::{DType, DynamicSlice, DynamicUpdate, Gather, ScatterAdd};

impl Tensor {
    /// Rows of this table along an axis: `result[a.., i.., c..] = self[a.., indices[i..], c..]`, with `indices` of
    /// `i32`, clamped into the table. The gradient adds up where an index occurs more than once.
    #[track_caller]
    pub fn gather(&self, axis: isize, indices: &Tensor) -> Tensor {
        let Some(axis) = self.axis("gather", axis) else { return self.clone() };
        let rows = self.trace().attempt("gather", [self, indices], |b, ids| Ok(b.op(Gather { axis }, &ids)?));
        rows.unwrap_or_else(|| {
            let (own, indices) = (self.ty(), indices.shape());
            let shape = [&own.shape[..axis], &indices, &own.shape[axis + 1..]].concat();
            self.trace().placeholder(&own.with_shape(shape))
        })
    }

    /// A table of zeros with `extent` rows along an axis, to which these rows are added at `indices` (`i32`, clamped into the
    /// table): `result[a.., indices[i..], c..] += self[a.., i.., c..]`.
    #[track_caller]
    pub fn scatter_add(&self, axis: isize, extent: usize, indices: &Tensor) -> Tensor {
        let Some(axis) = self.axis("scatter_add", axis) else { return self.clone() };
        let op = ScatterAdd { axis, extent };
        let table = self.trace().attempt("scatter_add", [indices, self], |b, ids| Ok(b.op(op, &ids)?));
        table.unwrap_or_else(|| self.clone())
    }

    /// For each of these `i32` classes a row of `classes` numbers: 1 at the class, else 0.
    #[track_caller]
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Tensor {
        self.class_mask(classes).cast(dtype)
    }

    /// For each of these `i32` classes a row of `classes` truth values: whether the place is the class.
    #[track_caller]
    pub fn class_mask(&self, classes: usize) -> Tensor {
        let shape = [self.shape(), vec![classes]].concat();
        let coordinate = self.trace().iota(shape, self.rank(), DType::I32);
        coordinate.eq(self.spread(&coordinate, &[-1]))
    }

    /// The matrices of the last two axes with zeros above the diagonal `column − row = diagonal`.
    #[track_caller]
    pub fn tril(&self, diagonal: i32) -> Tensor {
        self.trace().columns_less_rows(self.dim(-2), self.dim(-1)).le(diagonal).select(self, 0.0)
    }

    /// The matrices of the last two axes with zeros below the diagonal `column − row = diagonal`.
    #[track_caller]
    pub fn triu(&self, diagonal: i32) -> Tensor {
        self.trace().columns_less_rows(self.dim(-2), self.dim(-1)).ge(diagonal).select(self, 0.0)
    }

    /// The part of extents `sizes` that starts at these `i32` scalars, one for each axis; starts are clamped so that
    /// the part lies inside.
    #[track_caller]
    pub fn dynamic_slice(&self, starts: &[&Tensor], sizes: impl Into<Vec<usize>>) -> Tensor {
        let op = DynamicSlice { sizes: sizes.into() };
        let operands = [&[self], starts].concat();
        let part = self.trace().attempt_all("dynamic_slice", &operands, |b, ids| Ok(b.op(op, ids)?));
        part.unwrap_or_else(|| self.clone())
    }

    /// This tensor with `part` put in at these `i32` scalars, one for each axis; starts are clamped so that the part
    /// lies inside.
    #[track_caller]
    pub fn dynamic_update(&self, part: &Tensor, starts: &[&Tensor]) -> Tensor {
        let operands = [&[self, part], starts].concat();
        let whole =
            self.trace().attempt_all("dynamic_update", &operands, |b, ids| Ok(b.op(DynamicUpdate, ids)?));
        whole.unwrap_or_else(|| self.clone())
    }
}
