//! Collectives: what the ranks of a program exchange, the processes that run it side by side, each on its part of the batch.
//!
//! ```text
//! all_reduce      x₀ … x₃ : [n]      →  Σ x : [n]         on every rank
//! reduce_scatter  x₀ … x₃ : [n]      →  (Σ x)[own part] : [n/4]
//! all_gather      x₀ … x₃ : [n]      →  x₀ ⧺ … ⧺ x₃ : [4n]  on every rank
//! ```
//!
//! Sums are taken in ascending order of ranks, beginning with +0; those of `bf16` in `f32`, rounded once. So they do not depend on who computes them.
//! An exchange in `bf16` of numbers of `f32` rounds what each rank gives, and the sums.

use super::{Attributes, KernelEntry, Stanza, Vjp, arity, ensure};
use crate::evaluate::Array;
use crate::kernel::{Entered, Index, KernelWriter, Refusal};
use crate::{DType, Result, TensorType, ValueId};
use serde::{Deserialize, Serialize};

/// What is exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exchange {
    /// Every rank gets the sum.
    AllReduce,
    /// Every rank gets its part of the sum, along the first axis.
    ReduceScatter,
    /// Every rank gets what all have, one after another along the first axis.
    AllGather,
}

impl Exchange {
    /// Every exchange.
    pub const ALL: [Exchange; 3] = [Exchange::AllReduce, Exchange::ReduceScatter, Exchange::AllGather];

    /// The name in text form.
    pub fn name(self) -> &'static str {
        match self {
            Exchange::AllReduce => "all_reduce",
            Exchange::ReduceScatter => "reduce_scatter",
            Exchange::AllGather => "all_gather",
        }
    }
}

/// An exchange between all ranks; each gives one operand, of the same type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Collective {
    /// What is exchanged.
    pub exchange: Exchange,
    /// How many ranks there are; 1 exchanges nothing.
    pub ranks: usize,
    /// Whether sums of `f32` are exchanged as `bf16`.
    pub in_bf16: bool,
}

impl Collective {
    /// An exchange of numbers as they are.
    pub fn new(exchange: Exchange, ranks: usize) -> Self {
        Collective { exchange, ranks, in_bf16: false }
    }

    /// The result of every rank, from the operand of every rank.
    pub(crate) fn exchanged(self, operands: &[&Array]) -> Vec<Vec<f64>> {
        assert_eq!(operands.len(), self.ranks, "each rank gives one operand");
        let round = |x: f64| if self.in_bf16 { DType::BF16.round(x) } else { x };
        let sum = || {
            let elements = operands[0].values.len();
            let sum = |i: usize| operands.iter().fold(0.0, |sum, x| sum + round(x.values[i]));
            (0..elements).map(|i| round(sum(i))).collect::<Vec<f64>>()
        };
        match self.exchange {
            Exchange::AllReduce => vec![sum(); self.ranks],
            Exchange::ReduceScatter => {
                let (sum, part) = (sum(), operands[0].values.len() / self.ranks);
                (0..self.ranks).map(|rank| sum[rank * part..(rank + 1) * part].to_vec()).collect()
            }
            Exchange::AllGather => {
                vec![operands.iter().flat_map(|x| &x.values).copied().collect(); self.ranks]
            }
        }
    }
}

impl Stanza for Collective {
    fn name(&self) -> &'static str {
        self.exchange.name()
    }
    fn attributes(&self) -> Attributes {
        let attributes = Attributes::default().number("ranks", self.ranks as f64);
        if self.in_bf16 { attributes.word("as", DType::BF16.name()) } else { attributes }
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        let exchange = Exchange::ALL.into_iter().find(|exchange| exchange.name() == name)?;
        let mut parse = || {
            let ranks = attributes.take_count("ranks")?;
            let in_bf16 = attributes.has("as");
            if in_bf16 && attributes.take_word("as")? != DType::BF16.name() {
                return Err("sums of f32 are exchanged as bf16 or as they are".into());
            }
            Ok(Collective { exchange, ranks, in_bf16 })
        };
        Some(parse())
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [x] = arity(operands)?;
        ensure(self.ranks > 0, || "needs one rank at least".into())?;
        ensure(matches!(x.dtype, DType::F32 | DType::BF16), || {
            format!("exchanges f32 or bf16, not {}", x.dtype)
        })?;
        ensure(!self.in_bf16 || (x.dtype == DType::F32 && self.exchange != Exchange::AllGather), || {
            "exchanges as bf16 sums of f32 alone".into()
        })?;
        if self.exchange == Exchange::AllReduce {
            return Ok(x.clone());
        }
        let (&extent, inner) = x.shape.split_first().ok_or("has no first axis to go along")?;
        let extent = match self.exchange {
            Exchange::ReduceScatter => {
                ensure(extent.is_multiple_of(self.ranks), || {
                    format!("cannot divide an axis of {extent} among {} ranks", self.ranks)
                })?;
                extent / self.ranks
            }
            _ => extent.checked_mul(self.ranks).ok_or("gives an axis that is too long")?,
        };
        Ok(x.with_shape([&[extent], inner].concat()))
    }
    /// Of one rank alone. Whoever evaluates several runs them side by side.
    fn eval(&self, operands: &[&Array], _: &TensorType) -> Vec<f64> {
        self.exchanged(operands).swap_remove(0)
    }
    /// Of the sum of all ranks' losses: what a rank gives reaches every rank.
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Result<Vec<Option<ValueId>>> {
        let exchange = match self.exchange {
            Exchange::AllReduce => Exchange::AllReduce,
            Exchange::ReduceScatter => Exchange::AllGather,
            Exchange::AllGather => Exchange::ReduceScatter,
        };
        Ok(vec![Some(v.b.op(Collective::new(exchange, self.ranks), &[v.dy])?)])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Collective
    }
    fn enter(&self, _: &mut dyn KernelWriter, _: &[Index]) -> Entered {
        Err(Refusal::Because("what ranks exchange is a kernel of its own"))
    }
}
