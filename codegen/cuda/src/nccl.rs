//! NCCL, NVIDIA's library that moves bytes between GPUs: loaded when a program of several ranks is compiled, since a rank alone needs none.
//! It moves parts and, unless its own sums are asked for, nothing else; sums are taken by a function of our own (`collective`).
//!
//! ```text
//! rank 0: id ──Communicator::gather──► all ranks ──ncclCommInitRank──► a Nccl for each, on its device and stream
//! ```
//!
//! The first call that fails aborts what this rank has started, so that nothing waits for it, and every later one gives the same error.

use super::error::CudaError;
use cudarc::driver::{CudaContext, CudaStream};
use kernfusion_codegen::{Communicator, part_of};
use kernfusion_ir::DType;
use libloading::Library as Loaded;
use std::error::Error;
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Names the library to load instead of those that are tried.
const NAMED: &str = "KERNFUSION_NCCL";

/// How the system's library may be called: what is installed to run programs has the first name only.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The oldest version, that of CUDA 12.1: 2.18.1.
const OLDEST: c_int = 21_801;

/// `ncclSuccess`.
const SUCCESS: c_int = 0;

/// `ncclUint8`: parts are bytes.
const BYTE: c_int = 1;

/// `ncclFloat32` and `ncclBfloat16`.
const FLOAT: c_int = 7;
const BFLOAT: c_int = 9;

/// `ncclSum`.
const SUM: c_int = 0;

/// How long a rank waits until it asks again whether a run is over, or another rank has failed.
const PAUSE: Duration = Duration::from_micros(50);

/// What ranks add to the version that they tell each other: other numbers are no versions.
const MARK: u64 = 0x6e63_636c << 32;

/// Bytes of what ranks find each other by.
const ID_BYTES: usize = 128;

/// What ranks find each other by, as `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; ID_BYTES]);

/// The library's communicator, `ncclComm_t`.
type Handle = *mut c_void;
/// The driver's stream, `cudaStream_t`.
type Stream = *mut c_void;

/// The functions of the library, as NCCL's manual describes them.
#[derive(Debug)]
struct Library {
    version: c_int,
    unique_id: unsafe extern "C" fn(*mut Id) -> c_int,
    init: unsafe extern "C" fn(*mut Handle, c_int, Id, c_int) -> c_int,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    abort: unsafe extern "C" fn(Handle) -> c_int,
    async_error: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    error_text: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: unsafe extern "C" fn(Handle) -> *const c_char,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, Stream) -> c_int,
    receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, Stream) -> c_int,
    all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, Stream) -> c_int,
    all_reduce: Reduce,
    reduce_scatter: Reduce,
}

type Reduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> c_int;

/// The process's library.
///
/// # Errors
/// There is none, or it is too old.
fn library() -> Result<&'static Library, CudaError> {
    static LIBRARY: OnceLock<Result<Library, CudaError>> = OnceLock::new();
    let open = || {
        let named = std::env::var_os(NAMED).filter(|name| !name.is_empty());
        let names = named.map_or_else(|| NAMES.map(OsString::from).into(), |name| vec![name]);
        let mut causes = vec![];
        for name in names {
            match Library::load(&name) {
                Ok(library) if library.version < OLDEST => {
                    return Err(CudaError::OldNccl { version: shown(library.version) });
                }
                Ok(library) => return Ok(library),
                Err(cause) => {
                    causes.push(cause.source().map_or_else(|| cause.to_string(), ToString::to_string))
                }
            }
        }
        Err(CudaError::NoNccl { cause: causes.join("; ") })
    };
    LIBRARY.get_or_init(open).as_ref().map_err(Clone::clone)
}

impl Library {
    fn load(name: &OsString) -> Result<Self, libloading::Error> {
        // SAFETY: a library of NVIDIA's, whose start does nothing but prepare itself; its functions have these types since version 2.13.
        unsafe {
            let library = Loaded::new(name)?;
            let ask = library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"ncclGetVersion")?;
            let mut version = 0;
            // A library that cannot even tell its version is too old.
            let _ = ask(&mut version);
            let found = Library {
                version,
                unique_id: *library.get(b"ncclGetUniqueId")?,
                init: *library.get(b"ncclCommInitRank")?,
                destroy: *library.get(b"ncclCommDestroy")?,
                abort: *library.get(b"ncclCommAbort")?,
                async_error: *library.get(b"ncclCommGetAsyncError")?,
                error_text: *library.get(b"ncclGetErrorString")?,
                last_error: *library.get(b"ncclGetLastError")?,
                group_start: *library.get(b"ncclGroupStart")?,
                group_end: *library.get(b"ncclGroupEnd")?,
                send: *library.get(b"ncclSend")?,
                receive: *library.get(b"ncclRecv")?,
                all_gather: *library.get(b"ncclAllGather")?,
                all_reduce: *library.get(b"ncclAllReduce")?,
                reduce_scatter: *library.get(b"ncclReduceScatter")?,
            };
            // It stays loaded as long as the process.
            std::mem::forget(library);
            Ok(found)
        }
    }

    /// The library's result as ours.
    fn result(&self, what: &'static str, handle: Handle, result: c_int) -> Result<(), CudaError> {
        if result == SUCCESS {
            return Ok(());
        }
        // SAFETY: both texts end with a zero, and stay until the next error; the handle is null or alive.
        let [error, last] = unsafe { [(self.error_text)(result), (self.last_error)(handle)] }.map(|text| {
            match text.is_null() {
                true => String::new(),
                // SAFETY: as above.
                false => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned(),
            }
        });
        let message = if last.is_empty() { error } else { format!("{error} ({last})") };
        Err(CudaError::Nccl { what, message })
    }
}

/// A version as people write it: 22703 is 2.27.3.
fn shown(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}

/// The library, of which every rank has the same version.
fn same_library(communicator: &dyn Communicator) -> Result<&'static Library, CudaError> {
    let library = library();
    let own = library.as_ref().map_or(0, |library| MARK | library.version as u64);
    let versions = communicator.numbers(own).map_err(|cause| CudaError::Ranks { cause })?;
    let library = library?;
    // A rank that has failed before, or runs on a CPU, tells something else.
    if let Some(rank) = versions.iter().position(|&version| version >> 32 != MARK >> 32) {
        return Err(CudaError::NoNcclThere { rank });
    }
    if let Some(other) = versions.iter().position(|&other| other != versions[0]) {
        let [first, own] = [0, other].map(|rank| shown((versions[rank] - MARK) as c_int));
        return Err(CudaError::OtherNccl { rank: other, own, first });
    }
    Ok(library)
}

/// An id that rank 0 makes and gives to all; zeros say that it has none.
fn shared_id(library: &Library, communicator: &dyn Communicator) -> Result<Id, CudaError> {
    let mut id = Id([0; ID_BYTES]);
    let result = match communicator.rank() {
        // SAFETY: points to a live id.
        0 => unsafe { (library.unique_id)(&mut id) },
        _ => SUCCESS,
    };
    let made = library.result("making an id", std::ptr::null_mut(), result);
    let own = if made.is_ok() { id.0 } else { [0; ID_BYTES] };
    let mut ids = vec![0; ID_BYTES * communicator.ranks()];
    ids[ID_BYTES * communicator.rank()..][..ID_BYTES].copy_from_slice(&own);
    communicator.gather(&mut ids, ID_BYTES).map_err(|cause| CudaError::Ranks { cause })?;
    made?;
    id.0.copy_from_slice(&ids[..ID_BYTES]);
    if id.0 == [0; ID_BYTES] { Err(CudaError::NoNcclThere { rank: 0 }) } else { Ok(id) }
}

/// One rank's way to the others, from its device to theirs.
#[derive(Debug)]
pub(super) struct Nccl {
    library: &'static Library,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    rank: usize,
    ranks: usize,
    handle: Mutex<Result<Communication, CudaError>>,
}

/// A handle of the library's; without one, its error.
#[derive(Debug, Clone, Copy)]
struct Communication(Handle);

// SAFETY: the library's calls may be made by any thread, about one handle by one at a time.
unsafe impl Send for Communication {}

impl Nccl {
    /// Finds the other ranks, over what connects them already. All ranks have to do it together.
    ///
    /// # Errors
    /// The library is missing or too old on some rank, or they have several versions; or it fails, as where two ranks have one device.
    pub(super) fn connect(
        context: &Arc<CudaContext>,
        stream: &Arc<CudaStream>,
        communicator: &dyn Communicator,
    ) -> Result<Self, CudaError> {
        // Before anything is told, so that no rank waits in vain.
        context.bind_to_thread().map_err(|error| CudaError::Nccl {
            what: "entering the device's context",
            message: format!("{:?}", error.0),
        })?;
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let library = same_library(communicator)?;
        let id = shared_id(library, communicator)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the handle is live; all ranks call it, with numbers of their own.
        let connected = unsafe { (library.init)(&mut handle, ranks as c_int, id, rank as c_int) };
        library.result("connecting the ranks", std::ptr::null_mut(), connected)?;
        let handle = Mutex::new(Ok(Communication(handle)));
        Ok(Nccl { library, context: context.clone(), stream: stream.clone(), rank, ranks, handle })
    }

    /// Starts, behind what runs on the device, what [`Communicator::exchange`] does, of `bytes` bytes of its memory.
    ///
    /// # Safety
    /// The memory is there until it is over: `bytes` at `from`, a part of this rank for each rank at every `stride` from `to` on.
    pub(super) unsafe fn exchange(
        &self,
        (from, bytes): (u64, usize),
        part: usize,
        (to, stride): (u64, usize),
    ) -> Result<(), CudaError> {
        let own = part_of(self.rank, part, bytes).len();
        let ranks = (0..self.ranks).flat_map(|rank| {
            let theirs = part_of(rank, part, bytes);
            let send = Message { at: from + theirs.start as u64, bytes: theirs.len(), rank, is_sent: true };
            [send, Message { at: to + (rank * stride) as u64, bytes: own, rank, is_sent: false }]
        });
        // SAFETY: the caller's promise.
        unsafe { self.send("exchanging parts", ranks) }
    }

    /// Starts, behind what runs on the device, what [`Communicator::gather`] does, of `bytes` bytes of its memory.
    ///
    /// # Safety
    /// The memory is there until it is over.
    pub(super) unsafe fn gather(&self, at: u64, bytes: usize, part: usize) -> Result<(), CudaError> {
        const WHAT: &str = "gathering parts";
        let own = part_of(self.rank, part, bytes);
        let start = at + own.start as u64;
        if part * self.ranks == bytes {
            return self.call(WHAT, |library, handle| {
                // SAFETY: the caller's promise; this rank's part lies in its place.
                unsafe { (library.all_gather)(start as _, at as _, part, BYTE, handle, self.cu_stream()) }
            });
        }
        let others = (0..self.ranks).filter(|&rank| rank != self.rank).flat_map(|rank| {
            let theirs = part_of(rank, part, bytes);
            let send = Message { at: start, bytes: own.len(), rank, is_sent: true };
            [send, Message { at: at + theirs.start as u64, bytes: theirs.len(), rank, is_sent: false }]
        });
        // SAFETY: the caller's promise.
        unsafe { self.send(WHAT, others) }
    }

    /// Starts, behind what runs on the device, the library's own sum of what all ranks have at `from`, in an order of its own: all of it for every rank, or for
    /// each its part, `count` elements.
    ///
    /// # Safety
    /// The memory is there until it is over: `count` elements at `to`, and at `from`, there for each rank if each gets its part.
    pub(super) unsafe fn sum(
        &self,
        from: u64,
        to: u64,
        (count, dtype): (usize, DType),
        is_whole: bool,
    ) -> Result<(), CudaError> {
        let dtype = if dtype == DType::BF16 { BFLOAT } else { FLOAT };
        self.call("summing", |library, handle| {
            let sum = if is_whole { library.all_reduce } else { library.reduce_scatter };
            // SAFETY: the caller's promise.
            unsafe { sum(from as _, to as _, count, dtype, SUM, handle, self.cu_stream()) }
        })
    }

    /// Starts all messages at once; those without bytes are none.
    ///
    /// # Safety
    /// Their memory is there until they have arrived.
    unsafe fn send(
        &self,
        what: &'static str,
        messages: impl Iterator<Item = Message>,
    ) -> Result<(), CudaError> {
        self.call(what, |library, handle| {
            let one = |Message { at, bytes, rank, is_sent }: Message| match is_sent {
                // SAFETY: the caller's promise.
                true => unsafe {
                    (library.send)(at as _, bytes, BYTE, rank as c_int, handle, self.cu_stream())
                },
                // SAFETY: as above.
                false => unsafe {
                    (library.receive)(at as _, bytes, BYTE, rank as c_int, handle, self.cu_stream())
                },
            };
            // SAFETY: what begins here ends below.
            let begun = unsafe { (library.group_start)() };
            let mut messages = messages.filter(|message| message.bytes > 0).map(one);
            let failed = messages.find(|&result| result != SUCCESS).unwrap_or(SUCCESS);
            // SAFETY: it began above.
            let ended = unsafe { (library.group_end)() };
            [begun, failed, ended].into_iter().find(|&result| result != SUCCESS).unwrap_or(SUCCESS)
        })
    }

    /// Waits for something on the device, or until another rank has failed, which would let it wait for ever.
    ///
    /// # Errors
    /// Something has failed here or on another rank.
    pub(super) fn wait_until(&self, is_over: &dyn Fn() -> Result<bool, CudaError>) -> Result<(), CudaError> {
        loop {
            let is_over = is_over()?;
            self.call("exchanging with other ranks", |_, _| SUCCESS)?;
            if is_over {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Makes a call, unless an earlier one has failed, or what it started.
    fn call(
        &self,
        what: &'static str,
        call: impl FnOnce(&Library, Handle) -> c_int,
    ) -> Result<(), CudaError> {
        let mut guard = self.handle();
        let Communication(handle) = guard.clone()?;
        let mut earlier = SUCCESS;
        // SAFETY: the handle lives, and the result, too.
        let asked = unsafe { (self.library.async_error)(handle, &mut earlier) };
        let result = [asked, earlier].into_iter().find(|&result| result != SUCCESS);
        let result = result.unwrap_or_else(|| call(self.library, handle));
        self.library.result(what, handle, result).inspect_err(|error| {
            *guard = Err(error.clone());
            // SAFETY: the handle lives, and is not used again. There is an error already.
            let _ = unsafe { (self.library.abort)(handle) };
        })
    }

    fn handle(&self) -> MutexGuard<'_, Result<Communication, CudaError>> {
        self.handle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn cu_stream(&self) -> Stream {
        self.stream.cu_stream().cast()
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let Ok(Communication(handle)) = *self.handle() else { return };
        // What fails here leaves memory behind; the device's next use reports what is wrong with it.
        let _ = self.context.bind_to_thread();
        // Who waits for a rank that panics may be told.
        let end = if std::thread::panicking() { self.library.abort } else { self.library.destroy };
        // SAFETY: the handle lives, and is not used again; who has started something has waited for it.
        let _ = unsafe { end(handle) };
    }
}

/// Bytes to or from another rank.
struct Message {
    at: u64,
    bytes: usize,
    rank: usize,
    is_sent: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!([OLDEST, 22_703].map(shown), ["2.18.1", "2.27.3"]);
    }
}
