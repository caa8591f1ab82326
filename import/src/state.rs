//! Parameters and buffers of a model that was read.

use crate::Result;
use crate::error::ImportError;
use crate::view::View;
use kernfusion::HostTensor;
use kernfusion::tensor_file::Writable;
use kernfusion_ir::{DType, TensorType};
use std::io::{self, Write};
use std::path::PathBuf;

/// A parameter or a buffer. Its value stays in the file until it is read.
pub struct State {
    pub(crate) name: String,
    /// That of its value here: parameters that are trained are kept as `f32`.
    ty: TensorType,
    /// What the graph computes with.
    pub(crate) dtype: DType,
    pub(crate) trained: bool,
    value: Value,
    path: PathBuf,
}

/// Where a value is.
pub(crate) enum Value {
    /// It came with the file.
    Held(HostTensor),
    /// In a file.
    Stored(View),
}

impl State {
    pub(crate) fn new(path: PathBuf, name: &str, value: Value, trained: bool) -> Self {
        let stored = value.ty();
        let dtype = stored.dtype;
        let ty = if trained { stored.with_dtype(DType::F32) } else { stored };
        State { name: name.into(), ty, dtype, trained, value, path }
    }

    /// Its name: that of the first, if several parameters are one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its value. Parameters are `f32`.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Reads its value from the file.
    ///
    /// # Errors
    /// It cannot be read, is not as it was written (its checksum is another one), or has an `int64` that is no `i32`; there is no memory for it.
    pub fn read(&self) -> Result<HostTensor> {
        let value = match &self.value {
            Value::Held(value) => value.clone(),
            Value::Stored(view) => view.read().map_err(|error| ImportError::of_reading(&self.path, error))?,
        };
        Ok(value.to_dtype(self.ty.dtype))
    }
}

/// Where a value lies in the file as it is written, it is copied in small parts. What is wrong with it is an [`ImportError`] in the error.
impl Writable for State {
    fn ty(&self) -> TensorType {
        self.ty.clone()
    }

    fn write_to(&self, file: &mut dyn Write) -> io::Result<()> {
        match &self.value {
            Value::Stored(view) if self.ty.dtype == self.dtype => view.write_to(file),
            _ => file.write_all(self.read().map_err(io::Error::other)?.bytes()),
        }
    }
}

impl Value {
    /// The type of the tensor.
    pub(crate) fn ty(&self) -> TensorType {
        match self {
            Value::Held(value) => value.ty(),
            Value::Stored(view) => view.ty().clone(),
        }
    }
}
