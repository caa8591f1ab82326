//! Products of matrices.

use super::{Built, Reason, Tensor};
use kernfusion_ir::build::broadcast_shape;
use kernfusion_ir::{Builder, DType, DotGeneral, TensorType, ValueId};

impl Tensor {
    /// The matrix product `[.., m, k] · [.., k, n]` as `[.., m, n]`; leading axes broadcast. Both sides need two axes;
    /// [`Tensor::linear`] applies a weight to vectors.
    #[track_caller]
    pub fn matmul(&self, right: &Tensor) -> Tensor {
        self.product("matmul", right, false)
    }

    /// The product x · yᵀ of `[.., m, k]` and `[.., n, k]` as `[.., m, n]`; leading axes broadcast. It contracts the last
    /// axes where they lie, so that no transposition stands in the graph, nor in the gradients.
    #[track_caller]
    pub fn matmul_transposed(&self, right: &Tensor) -> Tensor {
        self.product("matmul_transposed", right, true)
    }

    #[track_caller]
    fn product(&self, name: &'static str, right: &Tensor, transposed: bool) -> Tensor {
        let dtype = self.trace().inner.borrow().product_dtype;
        // Where the right operand's contracted axis lies, counted from the end, and where its other one.
        let (contracted, free) = if transposed { (1, 2) } else { (2, 1) };
        let product = self.trace().attempt(name, [self, right], |b, [x, y]| {
            let (left, right) = (&b.ty(x).shape, &b.ty(y).shape);
            if left.len() < 2 || right.len() < 2 {
                return Err("both operands must be matrices or stacks of them, with two axes or more".into());
            }
            let (k, other) = (left[left.len() - 1], right[right.len() - contracted]);
            if k != other {
                return Err(format!("the contracted axes differ: {k} and {other}").into());
            }
            // One matrix on the right multiplies all rows on the left, in one product without a batch.
            let [x, y] = if right.len() == 2 { [x, y] } else { with_equal_stacks(b, x, y)? };
            let (left, right) = (b.ty(x).rank(), b.ty(y).rank());
            let batch: Vec<_> = (0..right - 2).collect();
            dot(b, [x, y], [&batch, &[left - 1], &[right - contracted]], dtype)
        });
        product.unwrap_or_else(|| {
            let (mut shape, right) = (self.shape(), right.shape());
            let columns = right.len().checked_sub(free).map(|axis| right[axis]);
            if let (Some(last), Some(columns)) = (shape.last_mut(), columns) {
                *last = columns;
            }
            self.trace().placeholder(&TensorType::new(self.dtype(), shape))
        })
    }

    /// x · Wᵀ: a weight `[outputs, inputs]` applied to the last axis of `[.., inputs]`, as `[.., outputs]`.
    #[track_caller]
    pub fn linear(&self, weight: &Tensor) -> Tensor {
        let dtype = self.trace().inner.borrow().product_dtype;
        let product = self.trace().attempt("linear", [self, weight], |b, [x, w]| {
            let (rank, weight) = (b.ty(x).rank(), b.ty(w));
            if rank == 0 || weight.rank() != 2 {
                return Err("takes [.., inputs] and a weight [outputs, inputs]".into());
            }
            let (inputs, expected) = (b.ty(x).shape[rank - 1], weight.shape[1]);
            if inputs != expected {
                return Err(format!("the weight takes {expected} inputs, the last axis has {inputs}").into());
            }
            dot(b, [x, w], [&[], &[rank - 1], &[1]], dtype)
        });
        product.unwrap_or_else(|| {
            let mut shape = self.shape();
            if let (Some(last), Some(&outputs)) = (shape.last_mut(), weight.shape().first()) {
                *last = outputs;
            }
            self.trace().placeholder(&TensorType::new(self.dtype(), shape))
        })
    }
}

/// Both stacks of matrices with equal leading axes.
fn with_equal_stacks(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<[ValueId; 2], Reason> {
    let [left, right] = [x, y].map(|value| {
        let shape = &b.ty(value).shape;
        shape.split_at(shape.len() - 2)
    });
    let stack = broadcast_shape(left.0, right.0)
        .ok_or_else(|| format!("the leading axes {:?} and {:?} do not broadcast", left.0, right.0))?;
    let (left, right) = ([&stack, left.1].concat(), [&stack, right.1].concat());
    Ok([b.broadcast_to(x, &left)?, b.broadcast_to(y, &right)?])
}

/// A product with the batch axes in front on both sides. In mixed precision, `f32` operands are read as `dtype`.
fn dot(
    b: &mut Builder<'_>,
    [x, y]: [ValueId; 2],
    [batch, lhs_contract, rhs_contract]: [&[usize]; 3],
    dtype: Option<DType>,
) -> Built {
    let result = b.ty(x).dtype;
    let [x, y] = match dtype.filter(|_| [x, y].iter().all(|&value| b.ty(value).dtype == DType::F32)) {
        Some(dtype) => [b.cast(x, dtype)?, b.cast(y, dtype)?],
        None => [x, y],
    };
    let dot = DotGeneral {
        lhs_batch: batch.to_vec(),
        rhs_batch: batch.to_vec(),
        lhs_contract: lhs_contract.to_vec(),
        rhs_contract: rhs_contract.to_vec(),
        dtype: result,
    };
    Ok(b.op(dot, &[x, y])?)
}
