//! The operators that are known, of PyTorch and of [ONNX](onnx): one table, each row a name, a formula and a function over traced tensors.
//!
//! Names are those of the namespace `aten` with their overload, as `torch.export` writes them: core ATen operators, which are left after
//! `run_decompositions()`, and some that are above them. What an operator computes is said in PyTorch's documentation of the function
//! of its name. A function reads its arguments from a [`Call`]; those that only say how something is computed or stored (`device`,
//! `layout`, `memory_format`) are not read.

mod activation;
mod attention;
mod convolution;
mod einsum;
mod elementwise;
mod indexing;
mod loss;
mod movement;
mod normalization;
pub(crate) mod onnx;
mod pooling;
mod product;
pub(crate) mod quantization;
mod recurrent;
mod reduction;
mod source;
pub(crate) mod views;
mod writing;

use crate::call::{Built, Call};
use kernfusion::trace::Tensor;
use std::collections::HashMap;
use std::sync::LazyLock;
use views::View;

/// An operator.
pub struct Operator {
    /// Its name, such as `aten.add.Tensor`.
    pub name: &'static str,
    /// What it gives, in the names of its arguments.
    pub gives: &'static str,
    pub(crate) build: fn(&Call<'_>) -> Built,
    /// Whether results share memory with an operand in PyTorch, and how.
    pub(crate) view: Option<View>,
    /// What an operator of ONNX takes.
    pub(crate) onnx: Option<onnx::Onnx>,
}

impl Operator {
    /// The version of the operator set of ONNX whose text the row follows; nothing of an operator of PyTorch.
    pub fn onnx_version(&self) -> Option<u32> {
        self.onnx.as_ref().map(|onnx| onnx.version)
    }
}

/// All operators that are known: those of PyTorch family by family, then those of ONNX.
pub fn operators() -> impl Iterator<Item = &'static Operator> {
    of_pytorch().chain(onnx::operators())
}

fn of_pytorch() -> impl Iterator<Item = &'static Operator> {
    let families: [&[Operator]; 16] = [
        elementwise::OPERATORS,
        activation::OPERATORS,
        source::OPERATORS,
        movement::OPERATORS,
        indexing::OPERATORS,
        writing::OPERATORS,
        reduction::OPERATORS,
        product::OPERATORS,
        einsum::OPERATORS,
        normalization::OPERATORS,
        attention::OPERATORS,
        convolution::OPERATORS,
        pooling::OPERATORS,
        recurrent::OPERATORS,
        loss::OPERATORS,
        quantization::OPERATORS,
    ];
    families.into_iter().flatten()
}

/// Other names of operators in PyTorch, each with that of the row. Without an overload it is another name of all overloads.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("absolute", "abs"),
    ("broadcast_to.default", "expand.default"),
    ("clip", "clamp"),
    ("concat", "cat"),
    ("concatenate", "cat"),
    ("divide", "div"),
    ("fix", "trunc"),
    ("greater", "gt"),
    ("greater_equal", "ge"),
    ("less", "lt"),
    ("less_equal", "le"),
    ("linalg_matmul", "matmul"),
    ("moveaxis", "movedim"),
    ("multiply", "mul"),
    ("negative", "neg"),
    ("not_equal", "ne"),
    ("ravel.default", "reshape.default"),
    ("reshape_as.default", "reshape.default"),
    ("row_stack", "vstack"),
    ("special_erf", "erf"),
    ("special_erfc", "erfc"),
    ("special_exp2", "exp2"),
    ("special_expit", "sigmoid"),
    ("special_expm1", "expm1"),
    ("special_log1p", "log1p"),
    ("special_log_softmax.default", "log_softmax.int"),
    ("special_logsumexp", "logsumexp"),
    ("special_softmax.default", "softmax.int"),
    ("split.sizes", "split_with_sizes.default"),
    ("subtract", "sub"),
    ("swapdims.default", "transpose.int"),
    ("tile.default", "repeat.default"),
    ("true_divide", "div"),
    ("unsafe_chunk", "chunk"),
    ("unsafe_split", "split"),
    ("unsafe_split_with_sizes", "split_with_sizes"),
];

/// The operator of a name.
pub(crate) fn find(name: &str) -> Option<&'static Operator> {
    named(name).or_else(|| {
        let (base, overload) = name.strip_prefix("aten.")?.split_once('.')?;
        OTHER_NAMES.iter().find_map(|(other, own)| match other.split_once('.') {
            Some(other) if other == (base, overload) => named(&format!("aten.{own}")),
            None if *other == base => named(&format!("aten.{own}.{overload}")),
            _ => None,
        })
    })
}

fn named(name: &str) -> Option<&'static Operator> {
    static BY_NAME: LazyLock<HashMap<&str, &Operator>> =
        LazyLock::new(|| operators().map(|operator| (operator.name, operator)).collect());
    BY_NAME.get(name).copied()
}

/// A row.
const fn row(name: &'static str, gives: &'static str, build: fn(&Call<'_>) -> Built) -> Operator {
    Operator { name, gives, build, view: None, onnx: None }
}

/// A row of an operator whose results share memory with its operand.
const fn view(
    name: &'static str,
    gives: &'static str,
    build: fn(&Call<'_>) -> Built,
    view: View,
) -> Operator {
    Operator { name, gives, build, view: Some(view), onnx: None }
}

/// One result.
fn one(result: Tensor) -> Built {
    Ok(vec![result])
}
