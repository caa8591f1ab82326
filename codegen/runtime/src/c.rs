//! The runtime as a C program sees it. The header that the compiler writes beside an object file says what each function does.

use crate::artefact::{Artefact, TensorDescription, Work};
use crate::error::ModelError;
use crate::function::TensorFunction;
use crate::loaded::{describe, message};
use crate::model::Model;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// A model, and what went wrong last.
#[derive(Debug)]
pub struct Handle {
    opened: Opened,
    error: CString,
}

/// What an object file has.
#[derive(Debug)]
enum Opened {
    Model(Model),
    Function(TensorFunction),
}

impl Opened {
    fn open(artefact: &Artefact, weights: &Path, threads: usize) -> Result<Self, ModelError> {
        Ok(match describe(artefact)?.1 {
            Work::Reading(_) => Opened::Model(Model::open(artefact, weights, threads)?),
            Work::Function(_) => Opened::Function(TensorFunction::open(artefact, weights, threads)?),
        })
    }
}

/// Opens a model; a null pointer if that is not possible, and then why in `error`, of `error_size` bytes.
///
/// # Safety
/// The artefact is one that the compiler wrote, `weights` ends with a zero byte, and `error` is null or has this many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernfusion_open(
    artefact: *const Artefact,
    weights: *const c_char,
    threads: c_int,
    error: *mut c_char,
    error_size: usize,
) -> *mut Handle {
    let open = || {
        if artefact.is_null() || weights.is_null() {
            return Err("there is no object file or no file of weights".to_string());
        }
        // SAFETY: the caller's contract.
        let (artefact, weights) = unsafe { (&*artefact, path(CStr::from_ptr(weights))) };
        let threads = usize::try_from(threads).unwrap_or(0);
        Opened::open(artefact, weights?, threads).map_err(|error| error.to_string())
    };
    match caught(open) {
        Ok(opened) => Box::into_raw(Box::new(Handle { opened, error: CString::default() })),
        Err(reason) => {
            // SAFETY: the caller's contract.
            unsafe { write(&reason, error, error_size) };
            std::ptr::null_mut()
        }
    }
}

/// As [`Model::read`]; 0 if all went well.
///
/// # Safety
/// The model is open, there are `count` tokens for each row, and place for the logits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernfusion_read(
    handle: *mut Handle,
    tokens: *const i32,
    count: usize,
    position: usize,
    logits: *mut f32,
) -> c_int {
    // SAFETY: the caller's contract.
    let Some(handle) = (unsafe { handle.as_mut() }) else { return 1 };
    let Handle { opened, error } = handle;
    let read = || {
        let Opened::Model(model) = opened else { return Err("it reads no text".to_string()) };
        if tokens.is_null() || logits.is_null() {
            return Err("there are no tokens, or no place for logits".to_string());
        }
        let (tokens_length, logits_length) = (count * model.batch(), model.batch() * model.vocabulary());
        // SAFETY: the caller's contract.
        let (tokens, logits) = unsafe {
            (
                std::slice::from_raw_parts(tokens, tokens_length),
                std::slice::from_raw_parts_mut(logits, logits_length),
            )
        };
        model.read(tokens, position, logits).map_err(|error| error.to_string())
    };
    ended(caught(read), error)
}

/// As [`TensorFunction::call`]; 0 if all went well.
///
/// # Safety
/// The function is open, and there is a pointer for each of its tensors, to as many bytes as the tensor has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernfusion_call(
    handle: *mut Handle,
    inputs: *const *const c_void,
    outputs: *const *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    let Some(handle) = (unsafe { handle.as_mut() }) else { return 1 };
    let Handle { opened, error } = handle;
    let call = || {
        let Opened::Function(function) = opened else { return Err("it reads a text".to_string()) };
        // SAFETY: the caller's contract.
        let inputs = unsafe { pointers(inputs, function.inputs()) }?;
        // SAFETY: the caller's contract.
        let outputs = unsafe { pointers(outputs.cast(), function.outputs()) }?;
        let inputs = inputs.into_iter().map(|(at, bytes)| {
            // SAFETY: the caller's contract.
            unsafe { std::slice::from_raw_parts(at.cast::<u8>(), bytes) }
        });
        let outputs = outputs.into_iter().map(|(at, bytes)| {
            // SAFETY: the caller's contract.
            unsafe { std::slice::from_raw_parts_mut(at.cast_mut().cast::<u8>(), bytes) }
        });
        let (inputs, mut outputs): (Vec<_>, Vec<_>) = (inputs.collect(), outputs.collect());
        function.call(&inputs, &mut outputs).map_err(|error| error.to_string())
    };
    ended(caught(call), error)
}

/// The pointers to tensors, and how many bytes each has.
///
/// # Safety
/// If `at` is not null, there are as many pointers as tensors.
unsafe fn pointers<'t>(
    at: *const *const c_void,
    tensors: impl ExactSizeIterator<Item = &'t TensorDescription>,
) -> Result<Vec<(*const c_void, usize)>, String> {
    let missing = |name: &str| format!("there is no memory for \"{name}\"");
    let mut found = vec![];
    for (number, tensor) in tensors.enumerate() {
        // SAFETY: the caller's contract.
        let pointer = (!at.is_null()).then(|| unsafe { *at.add(number) });
        let pointer = pointer.filter(|pointer| !pointer.is_null()).ok_or_else(|| missing(&tensor.name))?;
        found.push((pointer, tensor.bytes));
    }
    Ok(found)
}

/// What C gets: 0 if all went well, or 1 and the reason in `error`.
fn ended(result: Result<(), String>, error: &mut CString) -> c_int {
    match result {
        Ok(()) => 0,
        Err(reason) => {
            *error = CString::new(reason.replace('\0', " ")).unwrap_or_default();
            1
        }
    }
}

/// What went wrong last; it lives until the next call.
///
/// # Safety
/// The model is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernfusion_error(handle: *const Handle) -> *const c_char {
    // SAFETY: the caller's contract.
    unsafe { handle.as_ref() }.map_or(c"there is no model".as_ptr(), |handle| handle.error.as_ptr())
}

/// Closes a model; nothing happens to a null pointer.
///
/// # Safety
/// The model is open, or the pointer null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernfusion_close(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: made by `kernfusion_open`, and closed once.
        let handle = unsafe { Box::from_raw(handle) };
        // Nothing unwinds into C.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(handle)));
    }
}

/// What `work` gives; a panic as an error.
fn caught<R>(work: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(message(&*payload)))
}

#[cfg(unix)]
fn path(text: &CStr) -> Result<&Path, String> {
    use std::os::unix::ffi::OsStrExt;
    Ok(Path::new(std::ffi::OsStr::from_bytes(text.to_bytes())))
}

#[cfg(not(unix))]
fn path(text: &CStr) -> Result<&Path, String> {
    text.to_str().map(Path::new).map_err(|_| "the file's name is not UTF-8".to_string())
}

/// Writes a text and a zero byte, as much of it as there is place.
unsafe fn write(text: &str, to: *mut c_char, size: usize) {
    if to.is_null() || size == 0 {
        return;
    }
    let length = text.len().min(size - 1);
    // SAFETY: the caller's contract.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
        to.add(length).write(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_and_cut_to_size() {
        let mut error = [1 as c_char; 16];
        let (none, weights) = (std::ptr::null(), c"weights".as_ptr());
        // SAFETY: a text, and place for sixteen bytes.
        let handle = unsafe { kernfusion_open(none, weights, 1, error.as_mut_ptr(), error.len()) };
        assert!(handle.is_null());
        // SAFETY: a text was written, with a zero byte.
        let text = unsafe { CStr::from_ptr(error.as_ptr()) };
        assert_eq!(text.to_str(), Ok("there is no obj"));
        // SAFETY: null pointers are allowed.
        unsafe {
            assert_eq!(kernfusion_read(std::ptr::null_mut(), &0, 1, 0, &mut 0.0), 1);
            assert_eq!(kernfusion_call(std::ptr::null_mut(), std::ptr::null(), std::ptr::null()), 1);
            assert_eq!(CStr::from_ptr(kernfusion_error(std::ptr::null())), c"there is no model");
            kernfusion_close(std::ptr::null_mut());
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        let result: Result<(), _> = caught(|| panic!("{} gave up", "a kernel"));
        assert_eq!(result, Err("a kernel gave up".to_string()));
    }
}
