//! Tensors as views of the bytes of a storage, which several may share.

use crate::storage::Storage;
use kernfusion::HostTensor;
use kernfusion_ir::{DType, TensorType, strides};
use std::io::{self, Write};

/// Where the elements of a tensor lie in a storage. That none lies elsewhere is known before one is read.
pub(crate) struct View {
    storage: Storage,
    ty: TensorType,
    /// Bytes of an element in the storage: `int64`, which becomes `i32`, has 8.
    size: usize,
    /// Elements of the storage from one index of an axis to the next.
    strides: Vec<usize>,
    /// Elements of the storage before the first.
    offset: usize,
}

impl View {
    /// A view with elements of `size` bytes from `offset` on, row-major unless `strides` say otherwise.
    ///
    /// # Errors
    /// It reaches out of the storage, or there is no such tensor.
    pub(crate) fn new(
        storage: Storage,
        ty: TensorType,
        size: usize,
        strides: Option<Vec<usize>>,
        offset: usize,
    ) -> Result<Self, String> {
        ty.fault().map_or(Ok(()), Err)?;
        let strides = strides.unwrap_or_else(|| kernfusion_ir::strides(&ty.shape));
        let view = View { storage, ty, size, strides, offset };
        let is_inside = |elements: Option<usize>| {
            let bytes = elements.and_then(|elements| elements.checked_mul(size));
            bytes.is_some_and(|bytes| bytes <= view.storage.length())
        };
        let elements = Some(view.ty.elements());
        match view.ty.rank() == view.strides.len() && is_inside(elements) && is_inside(view.end()) {
            true => Ok(view),
            false => {
                let (shape, length) = (&view.ty.shape, view.storage.length());
                Err(format!("shape {shape:?} reaches out of its file of {length} bytes"))
            }
        }
    }

    /// The tensor's type.
    pub(crate) fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The tensor.
    ///
    /// # Errors
    /// The storage cannot be read, is not as it was written, or has a number that is no `i32`; there is no memory for it.
    pub(crate) fn read(&self) -> io::Result<HostTensor> {
        if self.is_storage() {
            return HostTensor::filled(&self.ty, |bytes| self.storage.fill(bytes));
        }
        match self.ty.elements() * self.size < self.storage.length() {
            true => self.gathered(&self.storage.kept()?),
            false => self.gathered(&self.storage.read()?),
        }
    }

    /// Writes what the bytes of the tensor are in memory, without its being there if the storage has just these.
    ///
    /// # Errors
    /// As [`View::read`]; those of `to`.
    pub(crate) fn write_to(&self, to: &mut dyn Write) -> io::Result<()> {
        // Truth values are 0 or 1 here.
        match self.is_storage() && self.ty.dtype != DType::Bool {
            true => self.storage.copy_to(to),
            false => to.write_all(self.read()?.bytes()),
        }
    }

    /// One behind the last element, if the storage has any.
    fn end(&self) -> Option<usize> {
        if self.ty.elements() == 0 {
            return Some(self.offset);
        }
        let mut axes = self.ty.shape.iter().zip(&self.strides);
        axes.try_fold(self.offset.checked_add(1)?, |end, (extent, stride)| {
            end.checked_add(stride.checked_mul(extent - 1)?)
        })
    }

    /// Whether the bytes of the storage are those of the tensor.
    fn is_storage(&self) -> bool {
        let bytes = self.ty.bytes();
        self.size == self.ty.dtype.size() && self.storage.length() == bytes && self.is_row_major()
    }

    fn is_row_major(&self) -> bool {
        let dense = strides(&self.ty.shape);
        let mut axes = self.ty.shape.iter().zip(self.strides.iter().zip(&dense));
        self.ty.elements() == 0 || axes.all(|(&extent, (stride, dense))| extent == 1 || stride == dense)
    }

    /// The elements among the bytes of the storage.
    fn gathered(&self, storage: &[u8]) -> io::Result<HostTensor> {
        let View { ty, size, .. } = self;
        if self.is_row_major() {
            return self.converted(&storage[self.offset * size..][..ty.elements() * size]);
        }
        let mut gathered = Vec::with_capacity(ty.elements() * size);
        let mut at = vec![0; ty.rank()];
        for _ in 0..ty.elements() {
            let place: usize = at.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum();
            gathered.extend_from_slice(&storage[(self.offset + place) * size..][..*size]);
            advance(&mut at, &ty.shape);
        }
        self.converted(&gathered)
    }

    fn converted(&self, bytes: &[u8]) -> io::Result<HostTensor> {
        if self.size == self.ty.dtype.size() {
            return Ok(HostTensor::from_bytes(&self.ty, bytes).expect("as many bytes as the type has"));
        }
        let wide =
            bytes.chunks_exact(8).map(|word| i64::from_le_bytes(word.try_into().expect("eight bytes")));
        let narrow = |x: i64| {
            let wrong = |_| self.storage.wrong(format!("{x} is no i32, which int64 is read as"));
            i32::try_from(x).map_err(wrong)
        };
        Ok(HostTensor::new(self.ty.shape.clone(), wide.map(narrow).collect::<io::Result<Vec<i32>>>()?))
    }
}

/// The next coordinates, row-major.
fn advance(at: &mut [usize], shape: &[usize]) {
    for (coordinate, &extent) in at.iter_mut().zip(shape).rev() {
        *coordinate += 1;
        if *coordinate < extent {
            return;
        }
        *coordinate = 0;
    }
}
