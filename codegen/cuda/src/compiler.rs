//! NVRTC's library: which one is loaded, and its functions.
//!
//! If the variable `KERNFUSION_NVRTC` names a folder, the library there is taken, and no other; otherwise the system's search path
//! decides. It is loaded when it is first needed, so that nothing of CUDA is needed to build or to test.

use super::error::CudaError;
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use libloading::Library;
use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// How the system's libraries may be called.
const NAMES: [&str; 3] = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"];

/// What of a program can be asked for: how many bytes it has, and the bytes.
pub(super) type Contents = (
    unsafe extern "C" fn(nvrtcProgram, *mut usize) -> nvrtcResult,
    unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> nvrtcResult,
);

/// The functions of a library, as NVRTC's manual describes them.
pub(super) struct Compiler {
    pub(super) version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> nvrtcResult,
    pub(super) create: unsafe extern "C" fn(
        *mut nvrtcProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> nvrtcResult,
    pub(super) destroy: unsafe extern "C" fn(*mut nvrtcProgram) -> nvrtcResult,
    pub(super) compile: unsafe extern "C" fn(nvrtcProgram, c_int, *const *const c_char) -> nvrtcResult,
    pub(super) log: Contents,
    pub(super) ptx: Contents,
    pub(super) cubin: Contents,
}

/// The functions of the process's library.
///
/// # Errors
/// There is none, or not in the folder that the environment names.
pub(super) fn compiler() -> Result<&'static Compiler, CudaError> {
    static COMPILER: OnceLock<Result<Compiler, CudaError>> = OnceLock::new();
    let find = || match std::env::var_os("KERNFUSION_NVRTC").filter(|folder| !folder.is_empty()) {
        Some(folder) => in_folder(folder.as_ref()),
        None => NAMES.iter().find_map(|name| opened(name.as_ref()).ok()).ok_or(CudaError::NoCompiler),
    };
    COMPILER.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// The newest library of a folder. What it asks for itself is loaded before, since it is found by its name then.
fn in_folder(folder: &Path) -> Result<Compiler, CudaError> {
    for path in files(folder, "libnvrtc-builtins.so") {
        // SAFETY: a library of NVIDIA's, whose start does nothing but prepare itself; the folder is the user's choice.
        if let Ok(library) = unsafe { Library::new(path) } {
            // It stays loaded as long as the process.
            std::mem::forget(library);
        }
    }
    let missing = |cause: String| CudaError::NoCompilerThere { folder: folder.into(), cause };
    let newest = files(folder, "libnvrtc.so").pop().ok_or_else(|| missing("there is none".into()))?;
    opened(&newest).map_err(|error| missing(error.to_string()))
}

/// Files of a folder whose names begin like this, in order.
fn files(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|file| file.file_name().to_string_lossy().starts_with(start));
    let mut paths: Vec<_> = named.map(|file| file.path()).collect();
    paths.sort();
    paths
}

fn opened(path: &Path) -> Result<Compiler, libloading::Error> {
    // SAFETY: as above; the functions have these types in every version since CUDA 11.1.
    unsafe {
        let library = Library::new(path)?;
        let found = Compiler {
            version: *library.get(b"nvrtcVersion")?,
            create: *library.get(b"nvrtcCreateProgram")?,
            destroy: *library.get(b"nvrtcDestroyProgram")?,
            compile: *library.get(b"nvrtcCompileProgram")?,
            log: (*library.get(b"nvrtcGetProgramLogSize")?, *library.get(b"nvrtcGetProgramLog")?),
            ptx: (*library.get(b"nvrtcGetPTXSize")?, *library.get(b"nvrtcGetPTX")?),
            cubin: (*library.get(b"nvrtcGetCUBINSize")?, *library.get(b"nvrtcGetCUBIN")?),
        };
        // It stays loaded as long as the process.
        std::mem::forget(library);
        Ok(found)
    }
}
