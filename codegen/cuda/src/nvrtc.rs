//! NVRTC: from a function's source to PTX or to a cubin.

use super::compiler::{Compiler, Contents, compiler};
use super::error::CudaError;
use super::{Function, HEADERS};
use cudarc::nvrtc::result::NvrtcError;
use cudarc::nvrtc::sys::nvrtcProgram;
use std::ffi::{CStr, CString, c_int};

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
    /// Bytes of a thread that lie in memory: spilled registers, and arrays whose numbers are not known when the function is compiled.
    pub local: usize,
}

/// The whole source of a function: the headers, then the function.
pub fn whole_source(function: &Function) -> String {
    let mut source = String::new();
    for text in HEADERS.iter().map(|(_, text)| *text).chain([function.text.as_str()]) {
        // The seam's other body is not for NVRTC.
        let kept = text.lines().filter(|line| !line.starts_with("#include") && *line != "#pragma once");
        kept.for_each(|line| {
            source.push_str(line);
            source.push('\n');
        });
    }
    source
}

/// Options that every function is compiled with, beside its architecture.
pub const OPTIONS: [&str; 4] =
    ["--std=c++17", "-default-device", "-Xptxas=-v", "--extra-device-vectorization"];

/// Compiles a function for an architecture such as `sm_90`. Where its launch bounds leave a thread too few registers, so that some are
/// spilled, it is compiled for fewer blocks of a multiprocessor: for the most with which none is, or for one.
///
/// # Errors
/// NVRTC is not installed, or refuses the source or the architecture.
pub fn compile(function: &Function, architecture: &str, form: Form) -> Result<Binary, CudaError> {
    let mut binary = compile_with(function, architecture, form, &[])?;
    for blocks in (1..function.blocks).rev() {
        if binary.resources().spills == 0 {
            break;
        }
        binary = compile_with(function, architecture, form, &[&format!("-DFEWER_BLOCKS={blocks}")])?;
    }
    Ok(binary)
}

fn compile_with(
    function: &Function,
    architecture: &str,
    form: Form,
    more: &[&str],
) -> Result<Binary, CudaError> {
    let compiler = compiler()?;
    let refused = |message: String| CudaError::Compile {
        function: function.name.clone(),
        architecture: architecture.into(),
        message,
    };
    let source = CString::new(whole_source(function)).expect("source has no zeros");
    let name = CString::new(format!("{}.cu", function.name)).expect("names have no zeros");
    let program = NvrtcProgram::new(compiler, &source, &name).map_err(|error| refused(error.to_string()))?;
    let architecture_option = format!("--gpu-architecture={architecture}");
    let options = OPTIONS.into_iter().chain([architecture_option.as_str()]).chain(more.iter().copied());
    let options: Vec<_> =
        options.map(|option| CString::new(option).expect("options have no zeros")).collect();
    let compiled = program.compile(&options);
    let log = program.log();
    compiled.map_err(|error| {
        refused(format!("{error}: {}", log.lines().take(12).collect::<Vec<_>>().join("; ")))
    })?;
    let code = program.code(form).map_err(|error| refused(error.to_string()))?;
    Ok(Binary { code, log })
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
        let local = number_before("bytes stack frame");
        Resources { registers: number_before("registers"), spills, local }
    }
}

/// The version of NVRTC, such as 12.9.
///
/// # Errors
/// NVRTC is not installed.
pub fn version() -> Result<(i32, i32), CudaError> {
    let compiler = compiler()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both point to live numbers.
    let found = unsafe { (compiler.version)(&mut major, &mut minor) }.result();
    found.map(|()| (major, minor)).map_err(|_| CudaError::NoCompiler)
}

/// Whether functions can be compiled here.
pub fn is_present() -> bool {
    compiler().is_ok()
}

/// A program of NVRTC's.
struct NvrtcProgram {
    compiler: &'static Compiler,
    handle: nvrtcProgram,
}

impl NvrtcProgram {
    fn new(compiler: &'static Compiler, source: &CStr, name: &CStr) -> Result<Self, NvrtcError> {
        let mut handle = std::ptr::null_mut();
        let (source, name, none) = (source.as_ptr(), name.as_ptr(), std::ptr::null());
        // SAFETY: both texts end with a zero; there are no headers.
        unsafe { (compiler.create)(&mut handle, source, name, 0, none, none) }.result()?;
        Ok(NvrtcProgram { compiler, handle })
    }

    fn compile(&self, options: &[CString]) -> Result<(), NvrtcError> {
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program lives; `pointers` has that many texts, each of which ends with a zero.
        unsafe { (self.compiler.compile)(self.handle, pointers.len() as c_int, pointers.as_ptr()) }.result()
    }

    fn log(&self) -> String {
        text(self.bytes(self.compiler.log).unwrap_or_default())
    }

    fn code(&self, form: Form) -> Result<Vec<u8>, NvrtcError> {
        match form {
            Form::Ptx => self.bytes(self.compiler.ptx).map(|bytes| text(bytes).into_bytes()),
            Form::Cubin => self.bytes(self.compiler.cubin),
        }
    }

    fn bytes(&self, (size, bytes): Contents) -> Result<Vec<u8>, NvrtcError> {
        let mut count = 0;
        // SAFETY: the program lives and was compiled; the buffer has as many bytes as NVRTC says.
        unsafe {
            size(self.handle, &mut count).result()?;
            let mut found = vec![0u8; count];
            bytes(self.handle, found.as_mut_ptr().cast()).result()?;
            Ok(found)
        }
    }
}

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: the program lives, and this is its last use. An error would leak a little memory.
        let _ = unsafe { (self.compiler.destroy)(&mut self.handle) };
    }
}

/// A text of C, up to its zero.
fn text(mut bytes: Vec<u8>) -> String {
    bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    String::from_utf8_lossy(&bytes).into_owned()
}
