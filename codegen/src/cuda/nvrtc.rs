//! NVRTC: from a function's source to PTX or to a cubin.
//!
//! The library is loaded when it is first needed, so that nothing of CUDA is needed to build or to test. If the variable
//! `KERNFUSION_NVRTC` names a folder, its libraries are taken; otherwise the system's search path decides.

use super::error::CudaError;
use super::{Function, HEADERS};
use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;
use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

/// What to compile to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The intermediate language, as text.
    Ptx,
    /// Machine code of one architecture.
    Cubin,
}

/// A compiled function.
#[derive(Debug, Clone, PartialEq)]
pub struct Binary {
    /// PTX or a cubin.
    pub code: Vec<u8>,
    /// What the assembler says about registers and memory; empty if it did not run.
    pub log: String,
}

/// What a compiled function takes of a multiprocessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: usize,
    /// Bytes that a thread writes to memory for want of registers, and reads back.
    pub spills: usize,
}

/// The whole source of a function: the headers, then the function.
pub fn whole_source(function: &Function) -> String {
    let mut source = String::new();
    for (_, text) in HEADERS {
        // The seam's other body is not for NVRTC.
        let kept = text.lines().filter(|line| !line.starts_with("#include") && *line != "#pragma once");
        kept.for_each(|line| {
            source.push_str(line);
            source.push('\n');
        });
    }
    source + &function.text.replace("#include \"tile.cuh\"\n", "")
}

/// Options that every function is compiled with, beside its architecture.
pub const OPTIONS: [&str; 4] =
    ["--std=c++17", "-default-device", "-Xptxas=-v", "--extra-device-vectorization"];

/// Compiles a function for an architecture such as `sm_90`.
///
/// # Errors
/// NVRTC is not installed, or refuses the source or the architecture.
pub fn compile(function: &Function, architecture: &str, form: Form) -> Result<Binary, CudaError> {
    load()?;
    let refused = |message: String| CudaError::Compile {
        function: function.name.clone(),
        architecture: architecture.into(),
        message,
    };
    let source = CString::new(whole_source(function)).expect("source has no zeros");
    let name = CString::new(format!("{}.cu", function.name)).expect("names have no zeros");
    let program = result::create_program(&source, Some(&name)).map_err(|error| refused(error.to_string()))?;
    let program = Program(program);
    let mut options: Vec<String> = OPTIONS.map(String::from).to_vec();
    options.push(format!("--gpu-architecture={architecture}"));
    // SAFETY: the program was made above and lives as long as `program`.
    let compiled = unsafe { result::compile_program(program.0, &options) };
    let log = program.log();
    compiled.map_err(|error| {
        refused(format!("{error}: {}", log.lines().take(12).collect::<Vec<_>>().join("; ")))
    })?;
    let code = match form {
        Form::Ptx => program.ptx(),
        Form::Cubin => program.cubin(),
    };
    Ok(Binary { code: code.map_err(|error| refused(error.to_string()))?, log })
}

impl Binary {
    /// What the assembler says about the function.
    pub fn resources(&self) -> Resources {
        let number_before = |what: &str| {
            let numbers = self.log.match_indices(what).filter_map(|(at, _)| {
                self.log[..at].trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok()
            });
            numbers.max().unwrap_or(0)
        };
        let spills = number_before("bytes spill stores") + number_before("bytes spill loads");
        Resources { registers: number_before("registers"), spills }
    }
}

/// The version of NVRTC, such as 12.9.
///
/// # Errors
/// NVRTC is not installed.
pub fn version() -> Result<(i32, i32), CudaError> {
    load()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both point to numbers of ours.
    let found = unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result();
    found.map(|()| (major, minor)).map_err(|_| CudaError::NoCompiler)
}

/// Whether functions can be compiled here.
pub fn is_present() -> bool {
    load().is_ok()
}

/// Finds the library; calling it while it is missing would panic.
fn load() -> Result<(), CudaError> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    let is_present = PRESENT.get_or_init(|| {
        if let Some(folder) = std::env::var_os("KERNFUSION_NVRTC") {
            load_from(folder.as_ref());
        }
        // SAFETY: looks for a library of NVIDIA's, whose start does nothing but prepare itself.
        unsafe { sys::is_culib_present() }
    });
    is_present.then_some(()).ok_or(CudaError::NoCompiler)
}

/// Loads the libraries of a folder, the one that the other asks for first; later they are found by their names.
fn load_from(folder: &std::path::Path) {
    for start in ["libnvrtc-builtins.so", "libnvrtc.so"] {
        let Ok(files) = std::fs::read_dir(folder) else { return };
        for file in files.flatten().filter(|file| file.file_name().to_string_lossy().starts_with(start)) {
            // SAFETY: as above; the folder is the user's choice.
            if let Ok(library) = unsafe { libloading::Library::new(file.path()) } {
                // It stays loaded as long as the process.
                std::mem::forget(library);
            }
        }
    }
}

/// A program of NVRTC's.
struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program lives.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        text(&log)
    }

    fn ptx(&self) -> Result<Vec<u8>, NvrtcError> {
        // SAFETY: the program lives and was compiled.
        let ptx = unsafe { result::get_ptx(self.0) }?;
        Ok(text(&ptx).into_bytes())
    }

    fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut size = 0;
        // SAFETY: the program lives and was compiled; the buffer has as many bytes as NVRTC says.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut size).result()?;
            let mut code = vec![0u8; size];
            sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast()).result()?;
            Ok(code)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program lives, and nobody uses it any more. An error would leave a little memory behind.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// A text of C, up to its zero.
fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&c| c as u8).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
