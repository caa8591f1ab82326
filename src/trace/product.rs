//! Products of matrices.

use super::{Built, Reason, Tensor};
use kernfusion_ir::build::broadcast_shape;
use kernfusion_ir::{Builder, DType, DotGeneral, Op, TensorType, ValueId};

impl Tensor {
    /// The matrix product `[.., m, k] · [.., k, n]` as `[.., m, n]`; leading axes broadcast. Both sides need two axes;
    /// [`Tensor::linear`] applies a weight to vectors.
    #[track_caller]
    pub fn matmul(&self, right: &Tensor) -> Tensor {
        let dtype = self.trace().inner.borrow().product_dtype;
        let product = self.trace().attempt("matmul", [self, right], |b, [x, y]| {
            let (left, right) = (b.ty(x).clone(), b.ty(y).clone());
            if left.rank() < 2 || right.rank() < 2 {
                return Err("both operands must be matrices or stacks of them, with two axes or more".into());
            }
            let (rows, columns) = (left.rank() - 2, right.rank() - 2);
            if left.shape[rows + 1] != right.shape[columns] {
                let (k, other) = (left.shape[rows + 1], right.shape[columns]);
                return Err(format!("the contracted axes differ: {k} columns times {other} rows").into());
            }
            // One matrix on the right multiplies all rows on the left, in one product without a batch.
            let [x, y] = if columns == 0 { [x, y] } else { with_equal_stacks(b, x, y)? };
            let batch: Vec<_> = (0..b.ty(y).rank() - 2).collect();
            let k = b.ty(x).rank() - 1;
            dot(b, [x, y], [&batch, &[k], &[batch.len()]], dtype)
        });
        product.unwrap_or_else(|| {
            let (mut shape, right) = (self.shape(), right.shape());
            if let (Some(last), Some(&columns)) = (shape.last_mut(), right.last()) {
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
    let (x, [lhs_batch, lhs_contract]) = without_transposition(b, x, [batch.to_vec(), lhs_contract.to_vec()]);
    let (y, [rhs_batch, rhs_contract]) = without_transposition(b, y, [batch.to_vec(), rhs_contract.to_vec()]);
    Ok(b.op(DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract, dtype: result }, &[x, y])?)
}

/// An operand before it was transposed, and its batch and contracted axes there: the product names axes freely, so a
/// transposition of its operand needs no place in the graph, nor in the gradient.
fn without_transposition(b: &Builder<'_>, value: ValueId, axes: [Vec<usize>; 2]) -> (ValueId, [Vec<usize>; 2]) {
    let node = &b.graph()[value];
    let Op::Permute(permute) = &node.op else { return (value, axes) };
    let free = (0..node.ty.rank()).filter(|axis| !axes.iter().any(|named| named.contains(axis)));
    if !free.map(|axis| permute.axes[axis]).is_sorted() {
        return (value, axes);
    }
    let moved = axes.map(|named| named.iter().map(|&axis| permute.axes[axis]).collect());
    without_transposition(b, node.operands[0], moved)
}
