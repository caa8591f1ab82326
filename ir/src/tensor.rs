//! Tensors in host memory: what users hand in and get back.

use crate::types::rounded_to_odd;
use crate::{DType, TensorType};
use bytemuck::allocation::try_zeroed_slice_box;
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::{bf16, f16};
use std::io;

#[cfg(target_endian = "big")]
compile_error!("files and kernels have little-endian numbers, as memory must have them");

/// The elements of a tensor, row-major.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Single precision.
    F32(Vec<f32>),
    /// Upper halves of single precision.
    BF16(Vec<bf16>),
    /// Half precision.
    F16(Vec<f16>),
    /// Double precision.
    F64(Vec<f64>),
    /// Signed integers.
    I32(Vec<i32>),
    /// Unsigned integers.
    U32(Vec<u32>),
    /// Signed bytes.
    I8(Vec<i8>),
    /// Truth values, each 0 or 1.
    Bool(Vec<u8>),
}

/// Applies `$body` to the vector inside a [`Data`], whatever its type.
macro_rules! with_vector {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            Data::F32($v) => $body,
            Data::BF16($v) => $body,
            Data::F16($v) => $body,
            Data::F64($v) => $body,
            Data::I32($v) => $body,
            Data::U32($v) => $body,
            Data::I8($v) => $body,
            Data::Bool($v) => $body,
        }
    };
}

/// A dense tensor in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    data: Data,
}

impl Tensor {
    /// A tensor from its shape and elements: a vector, an array, a slice, or an iterator over numbers or references to them. Its dtype is
    /// that of the numbers: `1.0` alone is an `f64`, `1.0f32` is not.
    ///
    /// # Panics
    /// If the number of elements is not the product of the extents.
    #[track_caller]
    pub fn new(shape: impl Into<Vec<usize>>, data: impl Into<Data>) -> Self {
        let (shape, data) = (shape.into(), data.into());
        let elements: usize = shape.iter().product();
        assert_eq!(elements, data.len(), "a tensor of shape {shape:?} has {elements} elements");
        Tensor { shape, data }
    }

    /// A tensor of `ty` whose elements are the nearest values to `values`.
    pub fn from_f64(ty: &TensorType, values: &[f64]) -> Self {
        let data = match ty.dtype {
            DType::F32 => Data::F32(values.iter().map(|&x| x as f32).collect()),
            DType::BF16 => Data::BF16(values.iter().map(|&x| bf16::from_f32(rounded_to_odd(x))).collect()),
            DType::F16 => Data::F16(values.iter().map(|&x| f16::from_f32(rounded_to_odd(x))).collect()),
            DType::F64 => Data::F64(values.to_vec()),
            DType::I32 => Data::I32(values.iter().map(|&x| x as i64 as i32).collect()),
            DType::U32 => Data::U32(values.iter().map(|&x| x as i64 as u32).collect()),
            DType::I8 => Data::I8(values.iter().map(|&x| x as i8).collect()),
            DType::Bool => Data::Bool(values.iter().map(|&x| u8::from(x != 0.0)).collect()),
        };
        Tensor::new(ty.shape.clone(), data)
    }

    /// The same numbers as `dtype`, rounded to the nearest.
    pub fn to_dtype(self, dtype: DType) -> Self {
        let data = match (&self.data, dtype) {
            (data, dtype) if data.dtype() == dtype => return self,
            // Parameters of a model: without a detour.
            (Data::F32(values), DType::BF16) => {
                Data::BF16(values.iter().map(|&x| bf16::from_f32(x)).collect())
            }
            (Data::F32(values), DType::F16) => Data::F16(values.iter().map(|&x| f16::from_f32(x)).collect()),
            _ => return Tensor::from_f64(&TensorType::new(dtype, self.shape.clone()), &self.to_f64()),
        };
        Tensor { shape: self.shape, data }
    }

    /// A tensor of `ty` from its bytes in memory order (little-endian), or `None` if their number does not fit.
    pub fn from_bytes(ty: &TensorType, bytes: &[u8]) -> Option<Self> {
        if bytes.len() != ty.bytes() {
            return None;
        }
        let copy = Tensor::filled(ty, |to| {
            to.copy_from_slice(bytes);
            Ok(())
        });
        Some(copy.expect("memory for a tensor"))
    }

    /// A tensor of `ty` whose bytes in memory order (little-endian) `fill` gives, such as those of a file, which need no memory beside it.
    ///
    /// # Errors
    /// Those of `fill`; [`io::ErrorKind::OutOfMemory`] if there is no memory for it.
    pub fn filled(ty: &TensorType, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<Self> {
        let elements = ty.elements();
        let data = match ty.dtype {
            DType::F32 => Data::F32(filled(elements, fill)?),
            DType::BF16 => Data::BF16(filled(elements, fill)?),
            DType::F16 => Data::F16(filled(elements, fill)?),
            DType::F64 => Data::F64(filled(elements, fill)?),
            DType::I32 => Data::I32(filled(elements, fill)?),
            DType::U32 => Data::U32(filled(elements, fill)?),
            DType::I8 => Data::I8(filled(elements, fill)?),
            DType::Bool => {
                let mut values: Vec<u8> = filled(elements, fill)?;
                values.iter_mut().for_each(|x| *x = u8::from(*x != 0));
                Data::Bool(values)
            }
        };
        Ok(Tensor { shape: ty.shape.clone(), data })
    }

    /// The elements as bytes in memory order (little-endian).
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::F32(v) => cast_slice(v),
            Data::BF16(v) => cast_slice(v),
            Data::F16(v) => cast_slice(v),
            Data::F64(v) => cast_slice(v),
            Data::I32(v) => cast_slice(v),
            Data::U32(v) => cast_slice(v),
            Data::I8(v) => cast_slice(v),
            Data::Bool(v) => v,
        }
    }

    /// The type.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.data.dtype(), self.shape.clone())
    }

    /// The extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The elements as `f64`, exact for every dtype.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::F32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Data::BF16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Data::F16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Data::F64(v) => v.clone(),
            Data::I32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Data::U32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Data::I8(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Data::Bool(v) => v.iter().map(|&x| f64::from(x)).collect(),
        }
    }

    /// The elements, if they are `f32`.
    pub fn as_f32(&self) -> Option<&[f32]> {
        if let Data::F32(values) = &self.data { Some(values) } else { None }
    }

    /// The elements, if they are `i32`.
    pub fn as_i32(&self) -> Option<&[i32]> {
        if let Data::I32(values) = &self.data { Some(values) } else { None }
    }

    /// The elements, if they are `u32`.
    pub fn as_u32(&self) -> Option<&[u32]> {
        if let Data::U32(values) = &self.data { Some(values) } else { None }
    }
}

/// Numbers whose bytes `fill` gives. Their memory comes zeroed from the system, which takes no time.
fn filled<T: Pod>(elements: usize, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<Vec<T>> {
    let mut values = try_zeroed_slice_box::<T>(elements).map_err(|()| io::ErrorKind::OutOfMemory)?;
    fill(cast_slice_mut(&mut values))?;
    Ok(values.into_vec())
}

impl Data {
    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Data::F32(_) => DType::F32,
            Data::BF16(_) => DType::BF16,
            Data::F16(_) => DType::F16,
            Data::F64(_) => DType::F64,
            Data::I32(_) => DType::I32,
            Data::U32(_) => DType::U32,
            Data::I8(_) => DType::I8,
            Data::Bool(_) => DType::Bool,
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        with_vector!(self, v => v.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the first element, for copies into device memory.
    pub fn as_ptr(&self) -> *const u8 {
        with_vector!(self, v => v.as_ptr().cast())
    }
}

/// A number that tensors are made of, or a reference to one.
#[diagnostic::on_unimplemented(
    message = "tensors are not made of `{Self}`",
    label = "not the type of a tensor's elements",
    note = "there are `f32`, `f64`, `i32`, `u32`, `i8` and `bool` (and `f16` and `bf16`): convert whole numbers such as `i64` and `usize` to `i32`"
)]
pub trait Element: Copy {
    /// These numbers as the elements of a tensor.
    fn data(values: impl Iterator<Item = Self>) -> Data;
}

macro_rules! element {
    ($($number:ty => $variant:ident),+) => {
        $(impl Element for $number {
            fn data(values: impl Iterator<Item = Self>) -> Data {
                Data::$variant(values.collect())
            }
        })+
    };
}

element!(f32 => F32, bf16 => BF16, f16 => F16, f64 => F64, i32 => I32, u32 => U32, i8 => I8);

impl Element for bool {
    fn data(values: impl Iterator<Item = Self>) -> Data {
        Data::Bool(values.map(u8::from).collect())
    }
}

impl<T: Element> Element for &T {
    fn data(values: impl Iterator<Item = Self>) -> Data {
        T::data(values.copied())
    }
}

/// Vectors, arrays, slices, and whatever else gives numbers one after another. A vector is taken over without a copy.
impl<I: IntoIterator> From<I> for Data
where
    I::Item: Element,
{
    fn from(values: I) -> Self {
        I::Item::data(values.into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_make_the_tensor_that_has_them() {
        for dtype in DType::ALL {
            let ty = TensorType::new(dtype, [2, 2]);
            let expected = Tensor::from_f64(&ty, &[0.0, 1.0, 3.0, 100.0]);
            let filled = Tensor::filled(&ty, |bytes| {
                bytes.copy_from_slice(expected.bytes());
                Ok(())
            });
            assert_eq!(filled.unwrap(), expected);
            assert_eq!(Tensor::from_bytes(&ty, expected.bytes()).unwrap(), expected);
            assert_eq!(Tensor::from_bytes(&ty, &expected.bytes()[1..]), None);
        }
        let truth = TensorType::new(DType::Bool, [2]);
        assert_eq!(Tensor::from_bytes(&truth, &[0, 7]).unwrap(), Tensor::new([2], [false, true]));
    }

    #[test]
    fn what_does_not_fill_it_is_the_error() {
        let kind = |extent, fill: fn(&mut [u8]) -> io::Result<()>| {
            Tensor::filled(&TensorType::new(DType::F32, [extent]), fill).unwrap_err().kind()
        };
        assert_eq!(kind(1, |_| Err(io::ErrorKind::UnexpectedEof.into())), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(usize::MAX / 8, |_| Ok(())), io::ErrorKind::OutOfMemory);
    }
}
