//! A file is opened: its first bytes tell which format it has.

use crate::error::ImportError;
use crate::imported::Imported;
use crate::{Result, onnx};
use kernfusion::input_file;
use std::io::Read;
use std::path::Path;

impl Imported {
    /// Reads an archive of `torch.export.save` or an ONNX file, which its first bytes tell, with all its parameters.
    ///
    /// # Errors
    /// It cannot be read; it is neither, not whole, or its parts do not fit; it has operators that [are not known](crate::operators), all of
    /// which are listed; or something else that is not read: pickled tensors, objects, dtypes without a counterpart, open extents.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Imported::open_sized(path, &[])
    }

    /// As [`Imported::open`], with an extent for each that was left open when the model was exported (`dynamic_shapes`). It is named by the
    /// file's symbol, such as `s72`, or by an input's axis, such as `input_ids.0`; an error lists those that lack one.
    ///
    /// # Errors
    /// As [`Imported::open`]; an extent is not chosen, chosen twice, out of the range for which the model was exported, or not there.
    pub fn open_sized(path: impl AsRef<Path>, extents: &[(&str, usize)]) -> Result<Self> {
        let path = path.as_ref();
        let read = |cause| ImportError::Read { path: path.into(), cause };
        let mut first = [0; 2];
        let length = input_file::open(path).map_err(read)?.read(&mut first).map_err(read)?;
        match &first[..length] {
            b"PK" => Imported::open_archive(path, extents),
            _ => onnx::read(path, input_file::read(path).map_err(read)?, extents),
        }
    }
}
