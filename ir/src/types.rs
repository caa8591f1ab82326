//! Element types, literals and tensor types.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// The upper half of an `F32`.
    BF16,
    /// IEEE 754 half precision.
    F16,
    /// IEEE 754 double precision.
    F64,
    /// Signed, wrapping.
    I32,
    /// Unsigned, wrapping.
    U32,
    /// Signed, saturating: what quantised weights are kept as. It is moved and converted, not computed with.
    I8,
    /// One byte in memory, 0 or 1.
    Bool,
}

impl DType {
    /// Every dtype.
    pub const ALL: [DType; 8] =
        [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32, DType::U32, DType::I8, DType::Bool];

    /// The name in text form: `f32`, `bf16`, …
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I8 => "i8",
            DType::Bool => "bool",
        }
    }

    /// Bytes of one element in memory.
    pub fn size(self) -> usize {
        match self {
            DType::I8 | DType::Bool => 1,
            DType::BF16 | DType::F16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 => 8,
        }
    }

    /// Whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::BF16 | DType::F16 | DType::F64)
    }

    /// Whether this is `I32` or `U32`.
    pub fn is_integer(self) -> bool {
        matches!(self, DType::I32 | DType::U32)
    }

    /// Whether arithmetic is defined on this type: on all but `I8` and `Bool`.
    pub fn is_number(self) -> bool {
        self.is_float() || self.is_integer()
    }

    /// The value nearest to `x` that this type holds, as `f64`: floats round to nearest even, `i8` saturates, other integers
    /// wrap, anything but zero is true.
    pub fn round(self, x: f64) -> f64 {
        match self {
            DType::F64 => x,
            DType::F32 => f64::from(x as f32),
            DType::BF16 => half::bf16::from_f32(rounded_to_odd(x)).to_f64(),
            DType::F16 => half::f16::from_f32(rounded_to_odd(x)).to_f64(),
            DType::I32 => f64::from(x as i64 as i32),
            DType::U32 => f64::from(x as i64 as u32),
            DType::I8 => f64::from(x as i8),
            DType::Bool => f64::from(u8::from(x != 0.0)),
        }
    }

    /// The smallest value, where a maximum starts: −∞ for floats.
    pub fn lowest(self) -> f64 {
        match self {
            DType::F32 | DType::BF16 | DType::F16 | DType::F64 => f64::NEG_INFINITY,
            DType::I32 => f64::from(i32::MIN),
            DType::I8 => f64::from(i8::MIN),
            DType::U32 | DType::Bool => 0.0,
        }
    }

    /// The largest number up to which the type has all whole ones.
    pub fn largest_whole(self) -> f64 {
        match self {
            DType::F32 => f64::from(1 << f32::MANTISSA_DIGITS),
            DType::BF16 => f64::from(1 << half::bf16::MANTISSA_DIGITS),
            DType::F16 => f64::from(1 << half::f16::MANTISSA_DIGITS),
            DType::F64 => (1_u64 << f64::MANTISSA_DIGITS) as f64,
            DType::I32 | DType::U32 | DType::I8 | DType::Bool => self.highest(),
        }
    }

    /// The smallest positive number with all digits that the type has: 1 for integers.
    pub fn smallest_normal(self) -> f64 {
        match self {
            DType::F32 | DType::BF16 => f64::from(f32::MIN_POSITIVE),
            DType::F16 => f64::powi(2.0, -14),
            DType::F64 => f64::MIN_POSITIVE,
            DType::I32 | DType::U32 | DType::I8 | DType::Bool => 1.0,
        }
    }

    /// The largest value, where a minimum starts: +∞ for floats.
    pub fn highest(self) -> f64 {
        match self {
            DType::F32 | DType::BF16 | DType::F16 | DType::F64 => f64::INFINITY,
            DType::I32 => f64::from(i32::MAX),
            DType::U32 => f64::from(u32::MAX),
            DType::I8 => f64::from(i8::MAX),
            DType::Bool => 1.0,
        }
    }
}

/// `x` as `f32`; where it lies between two of these, the one whose last bit is 1. Rounded to a narrower type, the result
/// is the value of that type nearest to `x`, which an `f32` nearest to `x` would not always give, nor a conversion that
/// looks at the upper half of `x` only.
pub(crate) fn rounded_to_odd(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) == x || !near.is_finite() {
        return near;
    }
    let is_outside = f64::from(near).abs() > x.abs();
    f32::from_bits((near.to_bits() - u32::from(is_outside)) | 1)
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = DType::ALL.into_iter().find(|dtype| dtype.name() == text);
        found.ok_or_else(|| format!("unknown dtype `{text}`"))
    }
}

/// A number with a total equality, so that ops can be compared and hashed. Every dtype's values are exact in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Literal(u64);

impl Literal {
    /// Wraps `x`; all NaNs become one.
    pub fn new(x: f64) -> Self {
        Literal(if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() })
    }

    /// The number.
    pub fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.value())
    }
}

impl Serialize for Literal {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Literal {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map(Literal::new).map_err(serde::de::Error::custom)
    }
}

/// Element type and extents of a tensor, outermost axis first. Rank 0 is a scalar.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The extent of each axis.
    pub shape: Vec<usize>,
}

impl TensorType {
    /// The most axes of a tensor.
    pub const MOST_AXES: usize = 64;

    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        TensorType { dtype, shape: shape.into() }
    }

    /// A type of rank 0.
    pub fn scalar(dtype: DType) -> Self {
        TensorType { dtype, shape: vec![] }
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements; `usize::MAX` if there are more, as a file may claim.
    pub fn elements(&self) -> usize {
        self.shape.iter().fold(1, |elements, &extent| elements.saturating_mul(extent))
    }

    /// Bytes of the dense tensor.
    pub fn bytes(&self) -> usize {
        self.elements().saturating_mul(self.dtype.size())
    }

    /// Why there can be no such tensor: it has more than [`MOST_AXES`](Self::MOST_AXES), or more bytes than any memory. Products of the
    /// extents of any other tensor, empty ones left out, fit a word, so that strides and offsets need no checks.
    pub fn fault(&self) -> Option<String> {
        if self.rank() > Self::MOST_AXES {
            return Some(format!("{} axes are more than the {} of a tensor", self.rank(), Self::MOST_AXES));
        }
        let extents = self.shape.iter().filter(|&&extent| extent > 0);
        let bytes = extents.copied().try_fold(self.dtype.size(), usize::checked_mul);
        let fits = bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok());
        (!fits).then(|| format!("{self} is larger than any memory"))
    }

    /// The same shape with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        TensorType { dtype, shape: self.shape.clone() }
    }

    /// The same element type with another shape.
    pub fn with_shape(&self, shape: impl Into<Vec<usize>>) -> Self {
        TensorType { dtype: self.dtype, shape: shape.into() }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, extent) in self.shape.iter().enumerate() {
            write!(f, "{}{extent}", if i > 0 { "," } else { "" })?;
        }
        f.write_str("]")
    }
}

/// Row-major strides, in elements, of a dense tensor of this shape.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bit far below the last one that is kept decides between two neighbours.
    #[test]
    fn narrow_floats_round_to_nearest() {
        let tie = 1.0 + 1.0 / 256.0;
        assert_eq!(DType::BF16.round(tie), 1.0);
        assert_eq!(DType::BF16.round(tie + 1.0 / f64::from(1 << 22)), 1.0 + 1.0 / 128.0);
        assert_eq!(DType::BF16.round(tie - 1e-15), 1.0);
        assert_eq!(DType::BF16.round(-(tie + 1e-15)), -(1.0 + 1.0 / 128.0));
        let tie = 1.0 + 1.0 / 2048.0;
        assert_eq!(DType::F16.round(tie), 1.0);
        assert_eq!(DType::F16.round(tie + 1e-15), 1.0 + 1.0 / 1024.0);
        assert_eq!(DType::F16.round(1e-300), 0.0);
        assert_eq!(DType::BF16.round(f64::NEG_INFINITY), f64::NEG_INFINITY);
    }
}
