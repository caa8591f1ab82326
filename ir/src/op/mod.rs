//! The closed set of primitives.
//!
//! Each op has one stanza: its implementation of [`Stanza`] in its family's file, which says name, attributes, type
//! rule, reference evaluation, VJP and how it enters a kernel. To add an op: write the stanza, add a row to
//! [`for_each_op!`] and to the sample table in `samples`; the compiler names every `match` that must
//! know it.

mod attributes;
mod collective;
mod contraction;
mod elementwise;
mod indexing;
mod movement;
mod reduction;
mod scan;
mod source;
mod windows;

pub use attributes::{Attribute, Attributes};
pub use collective::{Collective, Exchange};
pub use contraction::DotGeneral;
pub use elementwise::{Binary, Cast, Compare, Select, Unary};
pub use indexing::{DynamicSlice, DynamicUpdate, Gather, ScatterAdd};
pub use movement::{Broadcast, Concat, Pad, Permute, Reshape, Slice};
pub use reduction::{Reduce, ReduceOp};
pub use scan::{Body, Scan};
pub use source::{Constant, Input, InputRole, Iota, RandomBits};
pub use windows::Windows;

use crate::evaluate::Array;
use crate::kernel::{Entered, Index, KernelWriter};
use crate::{Builder, Result, TensorType, ValueId};
use serde::{Deserialize, Serialize};

/// Everything the compiler must know about one op.
pub(crate) trait Stanza: Sized {
    /// The name in text form.
    fn name(&self) -> &'static str;

    /// The attributes, as text form shows them.
    fn attributes(&self) -> Attributes;

    /// The op of this name with these attributes, if the name is of this family. Takes every attribute it knows.
    fn parse(name: &str, attributes: &mut Attributes) -> Option<std::result::Result<Self, String>>;

    /// The type rule: the result's type, or what is wrong with the operands.
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String>;

    /// The obvious evaluation, row-major, in `f64`; the evaluator rounds the result to `ty`.
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64>;

    /// The cotangent of each operand, as new nodes; `None` where nothing flows.
    fn vjp(&self, vjp: &mut Vjp<'_, '_>) -> Result<Vec<Option<ValueId>>>;

    /// Which part it can play in a kernel.
    fn entry(&self) -> KernelEntry;

    /// Its scalar at coordinates `at` of its result.
    fn enter(&self, writer: &mut dyn KernelWriter, at: &[Index]) -> Entered;
}

/// What a stanza's `vjp` works with.
pub struct Vjp<'a, 'g> {
    /// Appends nodes.
    pub b: &'a mut Builder<'g>,
    /// The op's operands.
    pub operands: &'a [ValueId],
    /// The op's result.
    pub result: ValueId,
    /// The cotangent of the result; has its type.
    pub dy: ValueId,
}

/// Which part an op plays in a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelEntry {
    /// It is a buffer.
    Input,
    /// Costs no memory access and little work: computed again wherever it is read.
    Generated,
    /// A change of coordinates.
    View,
    /// One instruction.
    Scalar,
    /// Reads one operand at computed coordinates (pad, concat, gather, dynamic slice and update).
    Movement,
    /// A reduction.
    Reduction,
    /// A product.
    Contraction,
    /// A store that adds through an index; roots a kernel of its own.
    Scatter,
    /// A loop, whose body is a graph; a kernel of its own.
    Loop,
    /// An exchange between ranks; a kernel of its own.
    Collective,
}

macro_rules! for_each_op {
    ($($op:ident,)*) => {
        /// A primitive with its attributes.
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Op {
            $(#[doc = concat!("See [`", stringify!($op), "`](crate::", stringify!($op), ").")] $op($op),)*
        }

        $(impl From<$op> for Op {
            fn from(op: $op) -> Op {
                Op::$op(op)
            }
        })*

        /// Calls a method of the op's stanza.
        macro_rules! stanza {
            ($self:expr, $stanza:ident => $call:expr) => {
                match $self {
                    $(Op::$op($stanza) => $call,)*
                }
            };
        }

        impl Op {
            /// The op of this name with these attributes; an attribute that it does not know is an error.
            pub fn parse(name: &str, mut attributes: Attributes) -> std::result::Result<Op, String> {
                $(if let Some(parsed) = <$op as Stanza>::parse(name, &mut attributes) {
                    let op = parsed?;
                    attributes.finish(name)?;
                    return Ok(op.into());
                })*
                Err(format!("unknown op `{name}`"))
            }
        }
    };
}

for_each_op! {
    Input, Constant, Iota, RandomBits,
    Unary, Binary, Compare, Select, Cast,
    Reduce,
    Reshape, Permute, Broadcast, Slice, Windows, Pad, Concat,
    DotGeneral,
    Gather, ScatterAdd, DynamicSlice, DynamicUpdate,
    Scan,
    Collective,
}

impl Op {
    /// The name in text form.
    pub fn name(&self) -> &'static str {
        stanza!(self, s => s.name())
    }

    /// The attributes, as text form shows them.
    pub fn attributes(&self) -> Attributes {
        stanza!(self, s => s.attributes())
    }

    /// The only type rule: builder, verifier and rewriting call it.
    ///
    /// # Errors
    /// What is wrong with the operands, in words.
    pub fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let ty = stanza!(self, s => s.infer(operands))?;
        ty.fault().map_or(Ok(ty), Err)
    }

    /// The obvious evaluation; the caller rounds the result to `ty`.
    pub fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        stanza!(self, s => s.eval(operands, ty))
    }

    /// The cotangents of the operands.
    ///
    /// # Errors
    /// If the op has no derivative.
    pub fn vjp(&self, vjp: &mut Vjp<'_, '_>) -> Result<Vec<Option<ValueId>>> {
        stanza!(self, s => s.vjp(vjp))
    }

    /// Which part it plays in a kernel.
    pub fn entry(&self) -> KernelEntry {
        stanza!(self, s => s.entry())
    }

    /// Its scalar at coordinates `at` of its result.
    ///
    /// # Errors
    /// A refusal, if the kernel cannot express it.
    pub fn enter(&self, writer: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        stanza!(self, s => s.enter(writer, at))
    }
}

/// Checks the number of operands.
fn arity<'a, const N: usize>(
    operands: &[&'a TensorType],
) -> std::result::Result<[&'a TensorType; N], String> {
    operands.try_into().map_err(|_| format!("takes {N} operand(s), not {}", operands.len()))
}

/// Checks that `ok` holds, else explains.
fn ensure(ok: bool, reason: impl FnOnce() -> String) -> std::result::Result<(), String> {
    if ok { Ok(()) } else { Err(reason()) }
}
