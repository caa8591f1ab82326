//! Values that come from no other: constants, coordinates, random numbers.
//!
//! Random numbers are Philox4x32-10 of (seed, identity of the node, step, element). The identity is the hash of the
//! module path and the number of the draw under it; seed and step are scalar inputs of these names. So a mask is the
//! same wherever and however often it is computed, and another at every step.

use super::elementwise::constant;
use super::{Tensor, Trace};
use kernfusion_ir::{DType, InputRole, Iota, TensorType, random};
use kernfusion_passes::ClosedForm;
use std::f64::consts::TAU;

impl Trace {
    /// A tensor of one number.
    #[track_caller]
    pub fn full(&self, shape: impl Into<Vec<usize>>, number: f64, dtype: DType) -> Tensor {
        let ty = TensorType::new(dtype, shape);
        let full = self.attempt("full", [], |b, []| {
            let scalar = constant(b, number, dtype)?;
            Ok(b.broadcast(scalar, &ty.shape, &[])?)
        });
        full.unwrap_or_else(|| self.placeholder(&ty))
    }

    /// A tensor of `f32` zeros.
    #[track_caller]
    pub fn zeros(&self, shape: impl Into<Vec<usize>>) -> Tensor {
        self.full(shape, 0.0, DType::F32)
    }

    /// A tensor of `f32` ones.
    #[track_caller]
    pub fn ones(&self, shape: impl Into<Vec<usize>>) -> Tensor {
        self.full(shape, 1.0, DType::F32)
    }

    /// Each element's coordinate along an axis.
    #[track_caller]
    pub fn iota(&self, shape: impl Into<Vec<usize>>, axis: usize, dtype: DType) -> Tensor {
        let ty = TensorType::new(dtype, shape);
        let iota = self.attempt("iota", [], |b, []| Ok(b.op(Iota { ty: ty.clone(), axis }, &[])?));
        iota.unwrap_or_else(|| self.placeholder(&ty))
    }

    /// A value that [follows from coordinates](ClosedForm).
    #[track_caller]
    pub fn closed_form(&self, form: ClosedForm, ty: &TensorType) -> Tensor {
        let value = self.attempt("closed_form", [], |b, []| Ok(form.build(b, ty)?));
        value.unwrap_or_else(|| self.placeholder(ty))
    }

    /// 0, 1, …, count − 1.
    #[track_caller]
    pub fn arange(&self, count: usize, dtype: DType) -> Tensor {
        self.iota([count], 0, dtype)
    }

    /// The identity matrix, of `f32`.
    #[track_caller]
    pub fn eye(&self, extent: usize) -> Tensor {
        self.columns_less_rows(extent, extent).eq(0).cast(DType::F32)
    }

    /// `bool[rows, columns]`: whether the position of a row may look at that of a column, which is at or before it. The
    /// last row is the position of the last column.
    #[track_caller]
    pub fn causal_mask(&self, rows: usize, columns: usize) -> Tensor {
        let ahead = i32::try_from(columns as i64 - rows as i64).unwrap_or(i32::MAX);
        self.columns_less_rows(rows, columns).le(ahead)
    }

    /// `bool[rows, columns]`: as [`Trace::causal_mask`], of the last `width` positions that it allows.
    #[track_caller]
    pub fn window_mask(&self, rows: usize, columns: usize, width: usize) -> Tensor {
        let clamped = |ahead: i64| ahead.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        let ahead = columns as i64 - rows as i64;
        let first = ahead.saturating_sub(i64::try_from(width).unwrap_or(i64::MAX));
        let distance = self.columns_less_rows(rows, columns);
        distance.le(clamped(ahead)).and(distance.gt(clamped(first)))
    }

    /// `column − row`, as `i32[rows, columns]`.
    #[track_caller]
    pub(crate) fn columns_less_rows(&self, rows: usize, columns: usize) -> Tensor {
        let shape = [rows, columns];
        self.iota(shape, 1, DType::I32) - self.iota(shape, 0, DType::I32)
    }

    /// The scalar input `seed`, of `u32`.
    #[track_caller]
    pub fn seed(&self) -> Tensor {
        self.random_key("seed")
    }

    /// The scalar input `step`, of `u32`.
    #[track_caller]
    pub fn step(&self) -> Tensor {
        self.random_key("step")
    }

    #[track_caller]
    pub(super) fn random_key(&self, name: &str) -> Tensor {
        let declared = self.inner.borrow().frames[0].graph.input(name);
        let ty = TensorType::scalar(DType::U32);
        declared.map_or_else(
            || self.declare("input", name.into(), InputRole::Data, ty.clone()),
            |id| Tensor::new(self.clone(), 0, id, ty.clone()),
        )
    }

    /// Uniform random `u32` words, a draw of its own each time this is called.
    #[track_caller]
    pub fn random_bits(&self, shape: impl Into<Vec<usize>>) -> Tensor {
        let path = self.path();
        let ordinal = {
            let mut inner = self.inner.borrow_mut();
            let drawn = inner.draws.entry(path.clone()).or_default();
            *drawn += 1;
            *drawn - 1
        };
        self.bits_at(self.depth(), random::node_identity(&path, ordinal), shape.into())
    }

    /// Uniform random numbers of [0, 1), as `f32`: the upper 24 bits of a word times 2⁻²⁴, which is exact.
    #[track_caller]
    pub fn random_uniform(&self, shape: impl Into<Vec<usize>>) -> Tensor {
        self.random_bits(shape).shift_right(8).cast(DType::F32) * (-24f64).exp2()
    }

    /// Normal random numbers of mean 0 and variance 1, as `f32`: √(−2 ln u₁) · cos 2πu₂ (Box and Muller, 1958).
    #[track_caller]
    pub fn random_normal(&self, shape: impl Into<Vec<usize>>) -> Tensor {
        let shape = shape.into();
        // 1 − u lies in (0, 1], where the logarithm is finite.
        let radius = ((1.0 - self.random_uniform(shape.clone())).log() * -2.0).sqrt();
        radius * (self.random_uniform(shape) * TAU).cos()
    }

    /// Random truth values that hold with a probability.
    #[track_caller]
    pub fn random_bernoulli(&self, probability: f64, shape: impl Into<Vec<usize>>) -> Tensor {
        self.random_uniform(shape).lt(probability)
    }
}
