//! A node as its operator sees it: arguments by name, and the types of results that the archive records.

use crate::schema::{Argument, Name, Node, OptionalTensor, SymInt};
use kernfusion::trace::{Tensor, Trace};
use kernfusion_ir::{DType, TensorType};
use std::collections::HashMap;

/// What is wrong with a node, to which its place is added.
pub(crate) type Fault = String;

/// The results of an operator, or what is wrong.
pub(crate) type Built = Result<Vec<Tensor>, Fault>;

/// Values by name.
pub(crate) type Values = HashMap<String, Tensor>;

/// A node that is about to be traced.
pub(crate) struct Call<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) node: &'a Node,
    pub(crate) values: &'a Values,
    /// The recorded types of the results.
    pub(crate) results: &'a [TensorType],
}

impl Call<'_> {
    /// The recorded type of the first result.
    pub(crate) fn result(&self) -> Result<&TensorType, Fault> {
        self.results.first().ok_or_else(|| "it has no result".into())
    }

    /// An argument, unless it is left out or None.
    fn argument(&self, name: &str) -> Option<&Argument> {
        let found = self.node.inputs.iter().find(|input| input.name == name)?;
        (!matches!(found.arg, Argument::None(_) | Argument::OptionalTensor(OptionalTensor::None(_))))
            .then_some(&found.arg)
    }

    fn value(&self, name: &Name) -> Result<Tensor, Fault> {
        let missing = || format!("it reads \"{}\", which nothing before it gives", name.name);
        self.values.get(name.name.as_str()).cloned().ok_or_else(missing)
    }

    /// A tensor.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor, Fault> {
        self.optional_tensor(name)?.ok_or_else(|| missing(name))
    }

    /// A tensor, or nothing.
    pub(crate) fn optional_tensor(&self, name: &str) -> Result<Option<Tensor>, Fault> {
        match self.argument(name) {
            None => Ok(None),
            Some(Argument::Tensor(value) | Argument::OptionalTensor(OptionalTensor::Tensor(value))) => {
                Ok(Some(self.value(value)?))
            }
            Some(_) => Err(format!("{name} is no tensor")),
        }
    }

    /// A tensor, or a number, as the dtype of the result.
    pub(crate) fn as_result(&self, name: &str) -> Result<Tensor, Fault> {
        self.operand(name, self.result()?.dtype)
    }

    /// A list of tensors.
    pub(crate) fn tensors(&self, name: &str) -> Result<Vec<Tensor>, Fault> {
        match self.argument(name) {
            Some(Argument::Tensors(values)) => values.iter().map(|value| self.value(value)).collect(),
            _ => Err(missing(name)),
        }
    }

    /// A list of tensors, some of them left out.
    pub(crate) fn optional_tensors(&self, name: &str) -> Result<Vec<Option<Tensor>>, Fault> {
        match self.argument(name) {
            Some(Argument::Tensors(values)) => {
                values.iter().map(|value| self.value(value).map(Some)).collect()
            }
            Some(Argument::OptionalTensors(values)) => {
                let each = values.iter().map(|value| match value {
                    OptionalTensor::Tensor(value) => self.value(value).map(Some),
                    OptionalTensor::None(_) => Ok(None),
                });
                each.collect()
            }
            _ => Err(missing(name)),
        }
    }

    /// A number.
    pub(crate) fn number(&self, name: &str) -> Result<f64, Fault> {
        self.optional_number(name)?.ok_or_else(|| missing(name))
    }

    /// A number, or this one if it is left out.
    pub(crate) fn number_or(&self, name: &str, default: f64) -> Result<f64, Fault> {
        Ok(self.optional_number(name)?.unwrap_or(default))
    }

    /// A number, or nothing.
    pub(crate) fn optional_number(&self, name: &str) -> Result<Option<f64>, Fault> {
        match self.argument(name) {
            None => Ok(None),
            Some(Argument::Float(number)) => {
                number.number().map(Some).ok_or_else(|| format!("{name} is no number"))
            }
            Some(Argument::Bool(flag)) => Ok(Some(f64::from(u8::from(*flag)))),
            Some(_) => Ok(Some(self.int(name)? as f64)),
        }
    }

    /// A whole number.
    pub(crate) fn int(&self, name: &str) -> Result<i64, Fault> {
        self.optional_int(name)?.ok_or_else(|| missing(name))
    }

    /// A whole number, or this one if it is left out.
    pub(crate) fn int_or(&self, name: &str, default: i64) -> Result<i64, Fault> {
        Ok(self.optional_int(name)?.unwrap_or(default))
    }

    /// A whole number, or nothing.
    pub(crate) fn optional_int(&self, name: &str) -> Result<Option<i64>, Fault> {
        match self.argument(name) {
            None => Ok(None),
            Some(Argument::Int(number)) => Ok(Some(*number)),
            Some(Argument::SymInt(number)) => self.size(number).map(Some),
            Some(_) => Err(format!("{name} is no whole number")),
        }
    }

    /// A list of whole numbers.
    pub(crate) fn ints(&self, name: &str) -> Result<Vec<i64>, Fault> {
        self.optional_ints(name)?.ok_or_else(|| missing(name))
    }

    /// A list of whole numbers, or nothing. One number alone is a list of one.
    pub(crate) fn optional_ints(&self, name: &str) -> Result<Option<Vec<i64>>, Fault> {
        match self.argument(name) {
            None => Ok(None),
            Some(Argument::Ints(numbers)) => Ok(Some(numbers.clone())),
            Some(Argument::SymInts(numbers)) => {
                numbers.iter().map(|number| self.size(number)).collect::<Result<_, _>>().map(Some)
            }
            Some(_) => Ok(Some(vec![self.int(name)?])),
        }
    }

    /// A list of numbers, or nothing.
    pub(crate) fn optional_numbers(&self, name: &str) -> Result<Option<Vec<f64>>, Fault> {
        let wrong = || format!("{name} is no list of numbers");
        match self.argument(name) {
            None => Ok(None),
            Some(Argument::Floats(numbers)) => numbers
                .iter()
                .map(|number| number.number().ok_or_else(wrong))
                .collect::<Result<_, _>>()
                .map(Some),
            Some(_) => Err(wrong()),
        }
    }

    fn size(&self, number: &SymInt) -> Result<i64, Fault> {
        match number {
            SymInt::Int(number) => Ok(*number),
            SymInt::Name(_) => Err("it takes an extent that is open".into()),
        }
    }

    /// Yes or no.
    pub(crate) fn flag_or(&self, name: &str, default: bool) -> Result<bool, Fault> {
        match self.argument(name) {
            None => Ok(default),
            Some(Argument::Bool(flag)) => Ok(*flag),
            Some(_) => Err(format!("{name} is neither true nor false")),
        }
    }

    /// The code of a dtype.
    pub(crate) fn scalar_type(&self, name: &str) -> Option<u64> {
        match self.argument(name) {
            Some(Argument::ScalarType(code)) => Some(*code),
            _ => None,
        }
    }

    /// A word.
    pub(crate) fn word_or(&self, name: &str, default: &'static str) -> Result<&str, Fault> {
        match self.argument(name) {
            None => Ok(default),
            Some(Argument::Text(text)) => Ok(text),
            Some(_) => Err(format!("{name} is no text")),
        }
    }

    /// Whether an argument is a word.
    pub(crate) fn is_word(&self, name: &str) -> bool {
        matches!(self.argument(name), Some(Argument::Text(_)))
    }

    /// A tensor or a number, as a tensor; a number is a scalar of `dtype`.
    pub(crate) fn operand(&self, name: &str, dtype: DType) -> Result<Tensor, Fault> {
        match self.argument(name) {
            Some(Argument::Tensor(_) | Argument::OptionalTensor(_)) => {
                Ok(as_dtype(&self.tensor(name)?, dtype))
            }
            _ => Ok(self.trace.full([], self.number(name)?, dtype)),
        }
    }

    /// Whether an argument is given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.argument(name).is_some()
    }

    /// Whether an argument is a tensor.
    pub(crate) fn is_tensor(&self, name: &str) -> bool {
        matches!(self.argument(name), Some(Argument::Tensor(_) | Argument::OptionalTensor(_)))
    }

    /// An axis of a tensor of that rank, which may be counted from the end.
    pub(crate) fn axis(&self, name: &str, default: i64, rank: usize) -> Result<isize, Fault> {
        axis(self.int_or(name, default)?, rank)
    }

    /// Axes of a tensor of that rank; all of them if none are named.
    pub(crate) fn axes(&self, name: &str, rank: usize) -> Result<Vec<isize>, Fault> {
        match self.optional_ints(name)? {
            Some(axes) if !axes.is_empty() => axes.into_iter().map(|at| axis(at, rank)).collect(),
            _ => Ok((0..rank as isize).collect()),
        }
    }

    /// A tensor in the recorded shape of the result: the same elements, row-major.
    pub(crate) fn in_shape(&self, x: &Tensor) -> Built {
        let shape = &self.result()?.shape;
        Ok(vec![if x.shape() == *shape { x.clone() } else { x.reshape(shape) }])
    }
}

/// A tensor as another dtype, if it is not of that already.
pub(crate) fn as_dtype(x: &Tensor, dtype: DType) -> Tensor {
    if x.dtype() == dtype { x.clone() } else { x.cast(dtype) }
}

/// An axis of a tensor of that rank, which may be counted from the end.
pub(crate) fn axis(at: i64, rank: usize) -> Result<isize, Fault> {
    let count = rank.max(1) as i64;
    match (-count..count).contains(&at) {
        true => Ok(at.rem_euclid(count) as isize),
        false => Err(format!("there is no axis {at} among {rank}")),
    }
}

fn missing(name: &str) -> Fault {
    format!("the argument {name} is missing, or of a kind that is not read")
}
