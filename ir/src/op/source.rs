//! Values that come from nowhere: inputs, constants, coordinates, random bits.

use super::{Attributes, KernelEntry, Stanza, Vjp, arity, ensure};
use crate::evaluate::{Array, tabulate};
use crate::kernel::{Entered, Index, InstrKind, KernelWriter, Refusal};
use crate::{DType, Literal, Result, TensorType, ValueId, random};
use serde::{Deserialize, Serialize};

/// What an input holds over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputRole {
    /// Given for each run.
    Data,
    /// Kept from run to run: a parameter or a part of the optimizer's state.
    State,
}

/// A named input.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Input {
    /// Unique in its graph.
    pub name: String,
    /// What it holds over time.
    pub role: InputRole,
    /// The type.
    pub ty: TensorType,
}

impl Stanza for Input {
    fn name(&self) -> &'static str {
        match self.role {
            InputRole::Data => "input",
            InputRole::State => "state",
        }
    }
    fn attributes(&self) -> Attributes {
        let attributes = Attributes::default().text("name", &self.name);
        attributes.word("dtype", self.ty.dtype.name()).list("shape", &self.ty.shape)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        let role = match name {
            "input" => InputRole::Data,
            "state" => InputRole::State,
            _ => return None,
        };
        let parsed = attributes.take_text("name").and_then(|name| {
            let ty = TensorType::new(attributes.take_dtype("dtype")?, attributes.take_list("shape")?);
            Ok(Input { name, role, ty })
        });
        Some(parsed)
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [] = arity(operands)?;
        Ok(self.ty.clone())
    }
    fn eval(&self, _: &[&Array], _: &TensorType) -> Vec<f64> {
        unreachable!("the evaluator supplies inputs")
    }
    fn vjp(&self, _: &mut Vjp<'_, '_>) -> Result<Vec<Option<ValueId>>> {
        Ok(vec![])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Input
    }
    fn enter(&self, _: &mut dyn KernelWriter, _: &[Index]) -> Entered {
        Err(Refusal::Because("inputs are loaded, not computed"))
    }
}

/// A scalar constant; `broadcast` makes a tensor of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Constant {
    /// Its value; one of the dtype's.
    pub value: Literal,
    /// Its type.
    pub dtype: DType,
}

impl Stanza for Constant {
    fn name(&self) -> &'static str {
        "constant"
    }
    fn attributes(&self) -> Attributes {
        Attributes::default().number("value", self.value.value()).word("dtype", self.dtype.name())
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        (name == "constant").then(|| {
            let value = Literal::new(attributes.take_number("value")?);
            Ok(Constant { value, dtype: attributes.take_dtype("dtype")? })
        })
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [] = arity(operands)?;
        let value = self.value.value();
        let held = self.dtype.round(value);
        ensure(held == value || value.is_nan() && self.dtype.is_float(), || {
            format!("{value:?} is not a value of {}", self.dtype)
        })?;
        Ok(TensorType::scalar(self.dtype))
    }
    fn eval(&self, _: &[&Array], _: &TensorType) -> Vec<f64> {
        vec![self.value.value()]
    }
    fn vjp(&self, _: &mut Vjp<'_, '_>) -> Result<Vec<Option<ValueId>>> {
        Ok(vec![])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Generated
    }
    fn enter(&self, w: &mut dyn KernelWriter, _: &[Index]) -> Entered {
        Ok(w.push(InstrKind::Constant(self.value), self.dtype))
    }
}

/// The coordinate along one axis: `result[i₀, i₁, …] = i_axis`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Iota {
    /// The type of the result; not `bool`.
    pub ty: TensorType,
    /// Which axis.
    pub axis: usize,
}

impl Stanza for Iota {
    fn name(&self) -> &'static str {
        "iota"
    }
    fn attributes(&self) -> Attributes {
        let attributes = Attributes::default().word("dtype", self.ty.dtype.name());
        attributes.list("shape", &self.ty.shape).number("axis", self.axis as f64)
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        (name == "iota").then(|| {
            let ty = TensorType::new(attributes.take_dtype("dtype")?, attributes.take_list("shape")?);
            Ok(Iota { ty, axis: attributes.take_count("axis")? })
        })
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [] = arity(operands)?;
        ensure(self.axis < self.ty.rank(), || {
            format!("axis {} of the shape {:?}", self.axis, self.ty.shape)
        })?;
        ensure(self.ty.dtype.is_number(), || format!("is not defined on {}", self.ty.dtype))?;
        Ok(self.ty.clone())
    }
    fn eval(&self, _: &[&Array], ty: &TensorType) -> Vec<f64> {
        tabulate(ty, |at| at[self.axis] as f64)
    }
    fn vjp(&self, _: &mut Vjp<'_, '_>) -> Result<Vec<Option<ValueId>>> {
        Ok(vec![])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Generated
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let coordinate = w.push(InstrKind::Coordinate(at[self.axis].clone()), DType::I32);
        if self.ty.dtype == DType::I32 {
            return Ok(coordinate);
        }
        Ok(w.push(InstrKind::Cast(coordinate), self.ty.dtype))
    }
}

/// Uniform `u32` bits of operands (seed: `u32[]`, step: `u32[]`) for each element, by Philox4x32-10
/// ([`crate::random`]). With more than one part there is a third operand (part: `u32[]`, below `parts`): the result is
/// that part of a tensor of `parts` such results, one after another, and draws the numbers of its elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RandomBits {
    /// The identity of the node: equal identities draw equal numbers.
    pub node: u32,
    /// Extents of the result.
    pub shape: Vec<usize>,
    /// How many results of this shape make the whole; 1 if this is the whole.
    #[serde(default = "one")]
    pub parts: usize,
}

impl Stanza for RandomBits {
    fn name(&self) -> &'static str {
        "random_bits"
    }
    fn attributes(&self) -> Attributes {
        let attributes =
            Attributes::default().number("node", f64::from(self.node)).list("shape", &self.shape);
        if self.parts == 1 { attributes } else { attributes.number("parts", self.parts as f64) }
    }
    fn parse(name: &str, attributes: &mut Attributes) -> Option<std::result::Result<Self, String>> {
        (name == "random_bits").then(|| {
            let node = attributes.take_count("node")?;
            let node = u32::try_from(node).map_err(|_| format!("node {node} has more than 32 bits"))?;
            let shape = attributes.take_list("shape")?;
            let parts = if attributes.has("parts") { attributes.take_count("parts")? } else { 1 };
            Ok(RandomBits { node, shape, parts })
        })
    }
    fn infer(&self, operands: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let word = TensorType::scalar(DType::U32);
        if self.parts == 1 {
            let [seed, step] = arity(operands)?;
            ensure(*seed == word && *step == word, || "seed and step must be u32[]".into())?;
        } else {
            let [seed, step, part] = arity(operands)?;
            ensure(*seed == word && *step == word && *part == word, || {
                "seed, step and part must be u32[]".into()
            })?;
            ensure(self.parts > 0, || "there must be a part".into())?;
        }
        let whole = TensorType::new(DType::U32, [&[self.parts], &self.shape[..]].concat());
        if let Some(fault) = whole.fault() {
            return Err(format!("all parts: {fault}"));
        }
        Ok(TensorType::new(DType::U32, self.shape.clone()))
    }
    fn eval(&self, operands: &[&Array], ty: &TensorType) -> Vec<f64> {
        let [seed, step] = [0, 1].map(|i| operands[i].values[0] as u32);
        let part = operands.get(2).map_or(0, |part| part.values[0].min((self.parts - 1) as f64) as u64);
        let bits = |element| f64::from(random::element_bits(seed, self.node, step, element));
        let count = ty.elements() as u64;
        (part * count..(part + 1) * count).map(bits).collect()
    }
    fn vjp(&self, v: &mut Vjp<'_, '_>) -> Result<Vec<Option<ValueId>>> {
        Ok(vec![None; v.operands.len()])
    }
    fn entry(&self) -> KernelEntry {
        KernelEntry::Generated
    }
    fn enter(&self, w: &mut dyn KernelWriter, at: &[Index]) -> Entered {
        let seed = w.operand(0, vec![])?;
        let step = w.operand(1, vec![])?;
        let mut element = Index::linear(w.rank(), at, &self.shape);
        if self.parts > 1 {
            let part = w.operand(2, vec![])?;
            let count = self.shape.iter().product::<usize>();
            element = element.plus(&Index::indirect(w.rank(), part, self.parts), count as i64);
        }
        Ok(w.push(InstrKind::Random { seed, step, node: self.node, element }, DType::U32))
    }
}

/// Serde's default of `parts`.
fn one() -> usize {
    1
}
