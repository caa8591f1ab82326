//! The product of tensors.

use super::{Attributes, KernelEntry, Stanza, Vjp, arity, ensure};
use crate::evaluate::Array;
use crate::kernel::{Entered, Index, KernelWriter};
use crate::{DType, Result, TensorType, ValueId};
use serde::{Deserialize, Serialize};

/// Sums the products of two tensors over the contracted axes; the result's axes are the batch axes, the free
/// axes of the left operand, those of the right one.
///
/// `bf16` and `f16` accumulate in `f32` and round once; integers wrap.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DotGeneral {
    /// Batch axes of the left operand.
    pub lhs_batch: Vec<usize>,
    /// The batch axes of the right operand, in the same order.
    pub rhs_batch: Vec<usize>,
    /// Axes of the left operand that are summed.
    pub lhs_contract: Vec<usize>,
    /// Those of the right operand, in the same order.
    pub rhs_contract: Vec<usize>,
    /// The type of the result: that of the operands, or `f32` for operands of half precision.
    pub dtype: DType,
}

impl DotGeneral {
    /// The axes of a left operand of this rank that are neither batch nor contracted.
    pub fn lhs_free(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|axis| !self.lhs_batch.contains(axis) && !self.lhs_contract.contains(axis)).collect()
    }

    /// The same of the right operand.
    pub fn rhs_free(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|axis| !self.rhs_batch.contains(axis) && !self.rhs_contract.contains(axis)).collect()
    }

    fn swapped(&self) -> Self {
        DotGeneral {
            lhs_batch: self.rhs_batch.clone(),
            rhs_batch: self.lhs_batch.clone(),
            lhs_contract: self.rhs_contract.clone(),
            rhs_contract: self.lhs_contract.clone(),
            dtype: self.dtype,
        }
    }
}

impl Stanza for DotGeneral {
    fn name(&self) -> &'static str {
        "dot_general"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default()
            .list("lhs_batch", &self.lhs_batch)
            .list("rhs_batch", &self.rhs_batch)
            .list("lhs_contract", &self.lhs_contract)
            .list("rhs_contract", &self.rhs_contract)
            .word("dtype", self.dtype.name())
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        (name == "dot_general").then(|| {
            Ok(DotGeneral {
                lhs_batch: attributes.take_list("lhs_batch")?,
                rhs_batch: attributes.take_list("rhs_batch")?,
                lhs_contract: attributes.take_list("lhs_contract")?,
                rhs_contract: attributes.take_list("rhs_contract")?,
                dtype: attributes.take_dtype("dtype")?,
            })
        })
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [a, b] = arity(operands)?;
        ensure(a.dtype == b.dtype, || format!("operands have the dtypes {} and {}", a.dtype, b.dtype))?;
        ensure(a.dtype.is_number(), || format!("is not defined on {}", a.dtype))?;
        ensure(
            self.dtype == a.dtype || self.dtype == DType::F32 && matches!(a.dtype, DType::BF16 | DType::F16),
            || format!("a product of {} cannot be {}", a.dtype, self.dtype),
        )?;
        distinct("left", &self.lhs_batch, &self.lhs_contract, a)?;
        distinct("right", &self.rhs_batch, &self.rhs_contract, b)?;
        let agree = |left: &[usize], right: &[usize]| {
            left.len() == right.len() && left.iter().zip(right).all(|(&i, &j)| a.shape[i] == b.shape[j])
        };
        ensure(agree(&self.lhs_batch, &self.rhs_batch), || {
            let (left, right) = (&self.lhs_batch, &self.rhs_batch);
            format!("batch axes {left:?} of {:?} and {right:?} of {:?} differ", a.shape, b.shape)
        })?;
        ensure(agree(&self.lhs_contract, &self.rhs_contract), || {
            let (left, right) = (&self.lhs_contract, &self.rhs_contract);
            format!("contracted axes {left:?} of {:?} and {right:?} of {:?} differ", a.shape, b.shape)
        })?;
        let batch = self.lhs_batch.iter().map(|&axis| a.shape[axis]);
        let left = self.lhs_free(a.rank()).into_iter().map(|axis| a.shape[axis]);
        let right = self.rhs_free(b.rank()).into_iter().map(|axis| b.shape[axis]);
        Ok(TensorType::new(self.dtype, batch.chain(left).chain(right).collect::<Vec<_>>()))
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let [a, b] = [operands[0], operands[1]];
        // An element's offset is the sum of those of its batch, of its free axes and of its contracted ones.
        let (m, n) = (self.lhs_free(a.ty.rank()), self.rhs_free(b.ty.rank()));
        let [batch_a, m, k_a] = [&self.lhs_batch, &m, &self.lhs_contract].map(|axes| a.offsets(axes));
        let [batch_b, n, k_b] = [&self.rhs_batch, &n, &self.rhs_contract].map(|axes| b.offsets(axes));
        let entry = |x: usize, y: usize| {
            let products = k_a.iter().zip(&k_b).map(|(i, j)| (a.values[x + i], b.values[y + j]));
            if ty.dtype.is_integer() {
                let wrapped =
                    products.fold(0i64, |sum, (x, y)| sum.wrapping_add((x as i64).wrapping_mul(y as i64)));
                return f64::from(wrapped as u32 as i32);
            }
            products.map(|(x, y)| x * y).sum()
        };
        let rows = batch_a.iter().zip(&batch_b).flat_map(|(x, y)| m.iter().map(move |m| (x + m, *y)));
        rows.flat_map(|(x, y)| n.iter().map(move |n| (x, y + n))).map(|(x, y)| entry(x, y)).collect()
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Result<Vec<Option<ValueId>>> {
        let (a, b) = (v.operands[0], v.operands[1]);
        let left = operand_cotangent(v, self, a, b, false)?;
        let right = operand_cotangent(v, &self.swapped(), b, a, true)?;
        Ok(vec![Some(left), Some(right)])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Contraction
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        w.product(at)
    }
}

/// The cotangent of `x`, the left operand under `dot`, whose partner is `other`:
/// dX[b, m, k] = Σ_n dY[b, m, n] · B[b, n, k]. Its operands are ordered so that m and k are as X has them, and
/// no transposition follows. With `swapped`, x was the right operand, and dY's free axes stand in the order n, m.
fn operand_cotangent(
    v: &mut Vjp<'_, '_>,
    dot: &DotGeneral,
    x: ValueId,
    other: ValueId,
    swapped: bool,
) -> Result<ValueId> {
    let (rank, other_rank) = (v.b.ty(x).rank(), v.b.ty(other).rank());
    let (free, other_free) = (dot.lhs_free(rank), dot.rhs_free(other_rank));
    let batch = dot.lhs_batch.len();
    let first = batch + if swapped { 0 } else { free.len() };
    let dtype = v.b.ty(other).dtype;
    let dy = v.b.cast(v.dy, dtype)?;
    let product = DotGeneral {
        lhs_batch: (0..batch).collect(),
        rhs_batch: dot.rhs_batch.clone(),
        lhs_contract: (first..first + other_free.len()).collect(),
        rhs_contract: other_free,
        dtype,
    };
    // The partner's contracted axes stay in the partner's order.
    let mut contracted: Vec<_> = dot.rhs_contract.iter().zip(&dot.lhs_contract).collect();
    contracted.sort();
    let contracted: Vec<_> = contracted.into_iter().map(|(_, &axis)| axis).collect();
    let contracted_first = contracted.iter().min() < free.iter().min();
    let (dx, placed) = if contracted_first {
        (v.b.op(product.swapped(), &[other, dy])?, [&dot.lhs_batch[..], &contracted, &free].concat())
    } else {
        (v.b.op(product, &[dy, other])?, [&dot.lhs_batch[..], &free, &contracted].concat())
    };
    let axes: Vec<_> =
        (0..rank).map(|axis| placed.iter().position(|&p| p == axis).expect("every axis")).collect();
    v.b.permute(dx, &axes)
}

fn distinct(
    side: &str,
    batch: &[usize],
    contract: &[usize],
    ty: &TensorType,
) -> std::result::Result<(), String> {
    let mut axes = [batch, contract].concat();
    axes.sort_unstable();
    ensure(axes.is_sorted_by(|a, b| a < b) && axes.iter().all(|&axis| axis < ty.rank()), || {
        format!("axes {batch:?} and {contract:?} of the {side} operand of shape {:?}", ty.shape)
    })
}
