//! Operands of products that are unpacked from half bytes, as `quantize_weights` keeps weights.
//!
//! ```text
//! %1 = cast (load w[.. + 16·k0 + k2] : i8) : i32
//! %2 = sub (and (shr %1, 4·coordinate k1), 15), 8
//! operand = mul (cast %2 : f32), (cast (load s[.. + k0] : bf16) : f32)        k0 groups, k1 < 2, k2 < 16
//! ```
//!
//! Scales may be `f32`, too. Back ends read what is kept instead, in which a byte j of 16 has numbers j and 16 + j of its group.

use crate::analysis::common_stride;
use kernfusion_ir::kernel::{BufferId, Domain, Index, Indirect, InstrKind, Operand, Region, Scalar};
use kernfusion_ir::{Binary, DType};

/// Numbers of a group in one half of its bytes.
const HALF: i64 = 16;
/// What is added to a number in half a byte.
const OFFSET: f64 = 8.0;

/// Where half bytes and their scales lie, over the domain's axes and those of k.
pub struct HalfBytes<'o> {
    /// Buffer and place of a number's byte.
    pub bytes: (BufferId, &'o Index),
    /// Those of its scale.
    pub scales: (BufferId, &'o Index),
    /// `bf16` or `f32`.
    pub scale: DType,
}

/// How an operand over the domain's axes and those of k is unpacked from half bytes, if it is, and groups lie one after another along k.
pub fn half_bytes<'o>(operand: &'o Operand, domain: &Domain, k: &[usize]) -> Option<HalfBytes<'o>> {
    let region = &operand.region;
    // It may be rounded in the end.
    let value = match region.instr(operand.value).kind {
        InstrKind::Cast(x) if region.instr(operand.value).dtype == DType::BF16 => x,
        _ => operand.value,
    };
    let (number, scale) = factors(region, value)?;
    let above = with_number(region, number, Binary::Sub, OFFSET)?;
    let shifted = with_number(region, above, Binary::And, 15.0)?;
    let InstrKind::Binary(Binary::Shr, byte, lowest) = region.instr(shifted).kind else { return None };
    let half = with_number(region, lowest, Binary::Mul, 4.0)?;
    let InstrKind::Coordinate(half) = &region.instr(half).kind else { return None };
    let (bytes, scales) = (loaded(region, cast_from(region, byte, DType::I8)?)?, loaded(region, scale)?);
    let places = Places { half, bytes: bytes.1, scales: scales.1 };
    let scale = region.instr(scale).dtype;
    places.fit(domain.axes.len(), k).then_some(HalfBytes { bytes, scales, scale })
}

/// Where what is unpacked lies, over the axes of the domain and of k.
struct Places<'o> {
    /// Which half of a byte.
    half: &'o Index,
    bytes: &'o Index,
    scales: &'o Index,
}

impl Places<'_> {
    /// Whether the last two axes of k are the halves of bytes and the bytes of a group, and all others are those of groups, in order along k.
    fn fit(&self, axes: usize, k: &[usize]) -> bool {
        let [groups @ .., 2, bytes_of_group] = k else { return false };
        let of_half = axes + groups.len();
        let all = [self.half, self.bytes, self.scales];
        let strides = |axis: usize| all.map(|index| index.strides[axis]);
        let of_group = |axis: usize| strides(axis)[0] == 0 && strides(axis)[1] == HALF * strides(axis)[2];
        let along_k = common_stride(groups, &self.bytes.strides[axes..of_half]);
        *bytes_of_group as i64 == HALF
            && strides(of_half) == [1, 0, 0]
            && strides(of_half + 1) == [0, 1, 0]
            && (0..of_half).all(of_group)
            && self.half.offset == 0
            && self.bytes.offset == HALF * self.scales.offset
            && self.are_chosen_alike()
            && (along_k == Some(HALF) || groups.iter().product::<usize>() == 1)
    }

    /// Whether what is known at run time only chooses scales with their bytes.
    fn are_chosen_alike(&self) -> bool {
        let (bytes, scales) = (&self.bytes.indirect, &self.scales.indirect);
        let is_alike = |(byte, scale): (&Indirect, &Indirect)| {
            *byte == Indirect { stride: HALF * scale.stride, ..*scale }
        };
        bytes.len() == scales.len() && bytes.iter().zip(scales).all(is_alike)
    }
}

/// The whole number and the scale whose product a value is, before they were widened.
fn factors(region: &Region, value: Scalar) -> Option<(Scalar, Scalar)> {
    let InstrKind::Binary(Binary::Mul, x, y) = region.instr(value).kind else { return None };
    let scale = |value: Scalar| {
        let is_f32 = region.instr(value).dtype == DType::F32;
        cast_from(region, value, DType::BF16).or_else(|| is_f32.then_some(value))
    };
    let pair = |x, y| cast_from(region, x, DType::I32).zip(scale(y));
    pair(x, y).or_else(|| pair(y, x))
}

/// What a load without conditions reads, and where.
fn loaded(region: &Region, load: Scalar) -> Option<(BufferId, &Index)> {
    match &region.instr(load).kind {
        InstrKind::Load { buffer, index, guard } if guard.is_empty() => Some((*buffer, index)),
        _ => None,
    }
}

/// What a value of that type was before it was cast.
fn cast_from(region: &Region, value: Scalar, from: DType) -> Option<Scalar> {
    match region.instr(value).kind {
        InstrKind::Cast(x) if region.instr(x).dtype == from => Some(x),
        _ => None,
    }
}

/// The operand of an op that it has beside a number; of a difference, the number is taken from it.
fn with_number(region: &Region, value: Scalar, op: Binary, number: f64) -> Option<Scalar> {
    let InstrKind::Binary(own, x, y) = region.instr(value).kind else { return None };
    let is_number =
        |x: Scalar| matches!(region.instr(x).kind, InstrKind::Constant(value) if value.value() == number);
    match own == op {
        true if is_number(y) => Some(x),
        true if is_number(x) && op != Binary::Sub => Some(y),
        _ => None,
    }
}
