//! Matrices that a program only reads are kept as `bf16`, `f16`, bytes with a scale for each row, or half bytes with one for 32 numbers.
//!
//! ```text
//! %0 = state "w" : f32[5,64]   →   %0 = state "w" : i8[5,64]
//! %1 = use %0                      %1 = state "w.scale" : f32[5]
//!                                  %2 = cast %0 : f32[5,64]
//!                                  %3 = broadcast %1 {axes = [0]} : f32[5,64]
//!                                  %4 = mul %2, %3
//!                                  %5 = use %4
//! ```
//!
//! The program then takes other states, so the caller that runs this pass must make them: the row of a matrix is its scale times
//! whole numbers from −127 to 127. It stands before all others: widening and scaling a state is part of whatever reads it
//! (fusion's `widened_states`), and simplification takes the scales of rows behind products, whose operands are then bytes.
//!
//! *Half bytes.* A row is divided into groups of 32 numbers, each of which is a whole number from −8 to 7 times the group's scale. Byte j of a
//! group holds number j, plus 8, in its lower half and number 16 + j in its upper half, so that vectors of sixteen numbers lie side by side:
//!
//! ```text
//! %0 = state "w" : i8[5,2,16]                     half bytes
//! %1 = state "w.scale" : bf16[5,2]
//! %2 = cast %0 : i32, broadcast to [5,2,2,16]
//! %3 = 0 or 4 along axis 2
//! %4 = and (shr %2, %3), 15                       numbers plus 8
//! %5 = reshape (mul (cast (sub %4, 8)), %1) : f32[5,64]
//! ```
//!
//! A product of a number and its scale is exact in `f32`. Scales are `bf16`, a ninth of what is read; those of `f32`, which files of others have and products
//! read as well ([`scaled_groups`]), are a fifth. The layout is that
//! of `Q4_0` of GGML, with half bytes and scales in matrices of their own.
//!
//! Invariant: with states that stand for the same numbers, the program computes what it did; what it changes, and what has
//! fewer than two axes, keeps its type.

use crate::{Rebuild, parameters};
use kernfusion_ir::{
    Binary, Builder, DType, Graph, Input, InputRole, Iota, IrError, Op, Result, TensorType, ValueId,
};
use std::fmt;

/// Numbers that share a scale where they are kept as half bytes.
pub const GROUP: usize = 32;
/// What is added to a number where it is kept as half a byte.
pub const HALF_BYTE_OFFSET: i32 = 8;

/// What matrices that a program only reads are kept as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// As they are: 32 bits a number.
    #[default]
    F32,
    /// 16 bits.
    BF16,
    /// 16 bits.
    F16,
    /// 8 bits: whole numbers from −127 to 127, and an `f32` scale for each row.
    Int8,
    /// 4.5 bits: whole numbers from −8 to 7, and a `bf16` scale for each [`GROUP`]; [`Int8`](Self::Int8) where rows are no multiple of it.
    Int4,
}

impl WeightType {
    /// Every type.
    pub const ALL: [WeightType; 5] =
        [WeightType::F32, WeightType::BF16, WeightType::F16, WeightType::Int8, WeightType::Int4];

    /// The name: `f32`, `bf16`, `f16`, `int8`, `int4`.
    pub fn name(self) -> &'static str {
        match self {
            WeightType::F32 => "f32",
            WeightType::BF16 => "bf16",
            WeightType::F16 => "f16",
            WeightType::Int8 => "int8",
            WeightType::Int4 => "int4",
        }
    }

    /// The float that numbers are kept as by themselves, without scales.
    pub fn float(self) -> Option<DType> {
        match self {
            WeightType::F32 => Some(DType::F32),
            WeightType::BF16 => Some(DType::BF16),
            WeightType::F16 => Some(DType::F16),
            WeightType::Int8 | WeightType::Int4 => None,
        }
    }

    /// What a matrix of this shape is kept as.
    pub fn of(self, shape: &[usize]) -> WeightType {
        match self {
            _ if shape.len() < 2 => WeightType::F32,
            WeightType::Int4 if !shape[shape.len() - 1].is_multiple_of(GROUP) => WeightType::Int8,
            kept => kept,
        }
    }

    /// The types of the state that a matrix of this shape is kept in, and of its scales.
    ///
    /// # Panics
    /// The type is not [that of the shape](Self::of).
    pub fn states(self, shape: &[usize]) -> (TensorType, Option<TensorType>) {
        assert_eq!(self, self.of(shape), "{shape:?}");
        let (rows, width) = shape.split_at(shape.len().saturating_sub(1));
        match self {
            WeightType::F32 => (TensorType::new(DType::F32, shape), None),
            WeightType::BF16 => (TensorType::new(DType::BF16, shape), None),
            WeightType::F16 => (TensorType::new(DType::F16, shape), None),
            WeightType::Int8 => (TensorType::new(DType::I8, shape), Some(TensorType::new(DType::F32, rows))),
            WeightType::Int4 => {
                let groups = [rows, &[width[0] / GROUP]].concat();
                let bytes = [&groups[..], &[GROUP / 2]].concat();
                (TensorType::new(DType::I8, bytes), Some(TensorType::new(DType::BF16, groups)))
            }
        }
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of the state with the scales of a matrix.
pub fn scale_of(name: &str) -> String {
    format!("{name}.scale")
}

/// Keeps the `f32` matrices that a program only reads as `kept` says, if `chosen` takes their names; what became of those that it changed, by
/// name. Axes before a matrix's last two are a batch's.
///
/// # Errors
/// If a scale's name is another input's already.
pub fn quantize_weights(
    graph: &mut Graph,
    kept: WeightType,
    chosen: impl Fn(&str) -> bool,
) -> Result<Vec<(String, WeightType)>> {
    if kept == WeightType::F32 {
        return Ok(vec![]);
    }
    let changed = parameters::written(graph);
    let mut names = vec![];
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        let node = &graph[id];
        let name = match &node.op {
            Op::Input(Input { name, role: InputRole::State, ty })
                if ty.dtype == DType::F32
                    && ty.rank() > 1
                    && !changed.contains(name.as_str())
                    && chosen(name) =>
            {
                name
            }
            _ => {
                rebuild.copy(id)?;
                continue;
            }
        };
        let (shape, kept) = (&node.ty.shape, kept.of(&node.ty.shape));
        let (ty, scales) = kept.states(shape);
        let state = Input { name: name.clone(), role: InputRole::State, ty };
        let state = rebuild.new.add(state, &[], node.origin.clone())?;
        let mut b = rebuild.builder(id);
        let scales = match scales {
            Some(_) if graph.input(&scale_of(name)).is_some() => {
                return Err(IrError::Input {
                    name: scale_of(name),
                    reason: format!("the scales of \"{name}\" need this name"),
                });
            }
            Some(ty) => Some(b.input(&scale_of(name), InputRole::State, ty)?),
            None => None,
        };
        let wide = match scales {
            None => b.cast(state, DType::F32)?,
            Some(scales) if kept == WeightType::Int8 => scaled_rows(&mut b, state, scales)?,
            Some(scales) => scaled_groups(&mut b, state, scales)?,
        };
        rebuild.replace(id, wide);
        names.push((name.clone(), kept));
    }
    *graph = rebuild.finish();
    Ok(names)
}

/// Bytes times the scale of their row.
fn scaled_rows(b: &mut Builder<'_>, bytes: ValueId, scales: ValueId) -> Result<ValueId> {
    let shape = b.ty(bytes).shape.clone();
    let rows: Vec<usize> = (0..shape.len() - 1).collect();
    let wide = b.cast(bytes, DType::F32)?;
    let scales = b.broadcast(scales, &shape, &rows)?;
    b.mul(wide, scales)
}

/// Half bytes `[.., groups, 16]`, as above, times the scales of their groups `[.., groups]`: a matrix `[.., 32 · groups]`. Products read both as
/// they are where scales are `bf16` or `f32`.
///
/// # Errors
/// Types do not fit each other.
pub fn scaled_groups(b: &mut Builder<'_>, bytes: ValueId, scales: ValueId) -> Result<ValueId> {
    let groups = b.ty(scales).shape.clone();
    let shape = match &groups[..] {
        [rows @ .., last] => [rows, &[last * GROUP]].concat(),
        [] => vec![GROUP],
    };
    let (half, apart) = (groups.len(), [&groups[..], &[2, GROUP / 2]].concat());
    let of_groups: Vec<usize> = (0..half).collect();
    let whole = |b: &mut Builder<'_>, value: usize| {
        b.full(value as f64, &TensorType::new(DType::I32, apart.as_slice()))
    };
    let bytes = b.cast(bytes, DType::I32)?;
    let bytes = b.broadcast(bytes, &apart, &[&of_groups[..], &[half + 1]].concat())?;
    let halves = b.op(Iota { ty: TensorType::new(DType::I32, [2]), axis: 0 }, &[])?;
    let bits = b.full(4.0, &TensorType::new(DType::I32, [2]))?;
    let lowest = b.mul(halves, bits)?;
    let lowest = b.broadcast(lowest, &apart, &[half])?;
    let shifted = b.binary(Binary::Shr, bytes, lowest)?;
    let mask = whole(b, 15)?;
    let above = b.binary(Binary::And, shifted, mask)?;
    let offset = whole(b, HALF_BYTE_OFFSET as usize)?;
    let number = b.sub(above, offset)?;
    let number = b.cast(number, DType::F32)?;
    let scales = if b.ty(scales).dtype == DType::F32 { scales } else { b.cast(scales, DType::F32)? };
    let scales = b.broadcast(scales, &apart, &of_groups)?;
    let scaled = b.mul(number, scales)?;
    b.reshape(scaled, &shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_scales_need_is_taken() {
        let text = "graph \"g\" {\n%0 = state {name = \"w\", dtype = f32, shape = [5, 4]}\n\
                    %1 = input {name = \"w.scale\", dtype = f32, shape = []}\noutput \"w\" = %0\n}";
        let graph = Graph::parse(text).unwrap();
        let error = quantize_weights(&mut graph.clone(), WeightType::Int8, |_| true).unwrap_err();
        assert_eq!(error.to_string(), "input \"w.scale\": the scales of \"w\" need this name");
        // Of other types they have none, and what is not chosen stays.
        assert_eq!(
            quantize_weights(&mut graph.clone(), WeightType::F16, |_| true),
            Ok(vec![("w".to_string(), WeightType::F16)])
        );
        let mut same = graph.clone();
        assert_eq!(quantize_weights(&mut same, WeightType::Int8, |_| false), Ok(vec![]));
        assert_eq!(same, graph);
    }
}
