//! Parameters in a safetensors file, used where they lie: the file is mapped, not read.

use crate::artefact::TensorDescription;
use crate::error::ModelError;
use safetensors::SafeTensors;
use safetensors::tensor::Metadata;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A file of parameters in memory. Changing the file meanwhile changes results; shortening it ends the program.
#[derive(Debug)]
pub(crate) struct Weights {
    path: PathBuf,
    bytes: Mapped,
    /// Where the first number is.
    start: usize,
    metadata: Metadata,
}

impl Weights {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let bytes = check_file(path).and_then(|()| Mapped::open(path));
        let bytes = bytes.map_err(|cause| ModelError::Read { path: path.into(), cause })?;
        let header = SafeTensors::read_metadata(bytes.as_slice());
        let (length, metadata) =
            header.map_err(|error| ModelError::Format { path: path.into(), reason: error.to_string() })?;
        Ok(Weights { path: path.into(), bytes, start: 8 + length, metadata })
    }

    /// Where a parameter begins.
    pub(crate) fn find(&self, parameter: &TensorDescription) -> Result<*const u8, ModelError> {
        let unfit = |reason: String| {
            let (path, name) = (self.path.clone(), parameter.name.clone());
            Err(ModelError::Parameter { path, name, reason })
        };
        let Some(info) = self.metadata.info(&parameter.name) else { return unfit("is missing".into()) };
        let found = (info.dtype.to_string(), &info.shape);
        if (&found.0, found.1) != (&parameter.dtype, &parameter.shape) {
            let TensorDescription { dtype, shape, .. } = parameter;
            return unfit(format!("is {}{:?}, the model has {dtype}{shape:?}", found.0, found.1));
        }
        let (from, to) = info.data_offsets;
        let bytes = self.bytes.as_slice().get(self.start..).and_then(|data| data.get(from..to));
        match bytes.filter(|bytes| bytes.len() == parameter.bytes) {
            Some(bytes) => Ok(bytes.as_ptr()),
            None => unfit("lies outside of the file".into()),
        }
    }
}

/// Refuses what is not a regular file: opening a pipe may never end.
fn check_file(path: &Path) -> std::io::Result<()> {
    match std::fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// A file's bytes.
#[derive(Debug)]
struct Mapped {
    start: *const u8,
    bytes: usize,
    #[cfg(not(unix))]
    _owned: Vec<u64>,
}

// SAFETY: read-only memory.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory has `self.bytes` bytes, and nothing writes them.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

#[cfg(unix)]
impl Mapped {
    fn open(path: &Path) -> std::io::Result<Self> {
        use std::os::fd::AsRawFd;
        let file = File::open(path)?;
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let (access, kind) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a fresh private mapping touches no memory in use.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes.max(1), access, kind, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Mapped { start: start.cast(), bytes })
    }
}

#[cfg(unix)]
impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped.
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.bytes.max(1)) };
    }
}

#[cfg(not(unix))]
impl Mapped {
    fn open(path: &Path) -> std::io::Result<Self> {
        use std::io::Read;
        let mut file = File::open(path)?;
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let mut owned = vec![0u64; bytes.div_ceil(8)];
        // SAFETY: the words have at least `bytes` bytes.
        let target = unsafe { std::slice::from_raw_parts_mut(owned.as_mut_ptr().cast::<u8>(), bytes) };
        file.read_exact(target)?;
        Ok(Mapped { start: owned.as_ptr().cast(), bytes, _owned: owned })
    }
}
