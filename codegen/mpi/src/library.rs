//! A library of MPI: its functions by name, and the few constants in which libraries differ.

use super::MpiError;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Names of the library to load instead of those that are tried.
const NAMED: &str = "KERNFUSION_MPI";

/// How often a thread asks whether a message has come before it sleeps between.
const EAGER: u32 = 50;

/// How long it sleeps then. A library moves a large message piece by piece, whenever it is asked.
const NAP: Duration = Duration::from_micros(50);

/// How long an abort waits for a call that another thread is making.
const CALL: Duration = Duration::from_secs(1);

/// Characters that a library's version and an error's text take at most.
const LONGEST_TEXT: usize = 8192;

/// A binary interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Handles are addresses of objects in the library.
    OpenMpi,
    /// Handles are numbers of type `int`, also of Intel MPI and MVAPICH.
    Mpich,
}

impl Family {
    /// File names, those of the versions first with which it has this interface.
    fn names(self) -> &'static [&'static str] {
        match self {
            Family::OpenMpi => &["libmpi.so.40", "libmpi.so", "libmpi_abi.so.1"],
            Family::Mpich => {
                &["libmpich.so.12", "libmpi.so.12", "libmpich.so", "libmpi.so", "libmpi_abi.so.1"]
            }
        }
    }
}

/// In what constants are those of a library.
#[derive(Debug, Clone, Copy)]
enum Interface {
    /// Open MPI's: addresses of objects.
    OpenMpi,
    /// MPICH's: numbers of its own.
    Mpich,
    /// That of MPI 5: numbers that the standard gives (MPI Forum, "MPI: A message-passing interface standard", version 5.0, 2025, appendix A).
    Standard,
}

impl Interface {
    /// # Safety
    /// The library is one of MPI.
    #[cfg(unix)]
    unsafe fn of(loaded: &libloading::os::unix::Library) -> Self {
        type Ask = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
        // SAFETY: the type is that of the standard; the function may be called before MPI has started.
        unsafe {
            let mut version = [-1; 2];
            let [major, minor] = &mut version;
            let told = loaded.get::<Ask>(b"MPI_Abi_get_version\0").map(|ask| ask(major, minor));
            match told {
                Ok(0) if *major >= 1 => Interface::Standard,
                _ if loaded.get::<*mut c_void>(b"ompi_mpi_comm_world\0").is_ok() => Interface::OpenMpi,
                _ => Interface::Mpich,
            }
        }
    }

    /// `MPI_THREAD_SERIALIZED`: calls come from any thread, but one at a time.
    fn serialized(self) -> c_int {
        match self {
            Interface::OpenMpi | Interface::Mpich => 2,
            Interface::Standard => 2048,
        }
    }

    /// `MPI_STATUS_IGNORE`.
    fn no_status(self) -> *mut c_void {
        match self {
            Interface::OpenMpi | Interface::Standard => null_mut(),
            Interface::Mpich => std::ptr::without_provenance_mut(1),
        }
    }
}

/// An address, or a number as wide as one: a function that takes an `int` in its place reads the lower half.
type Handle = *mut c_void;

/// What a message is; those of different tags do not meet.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tag {
    /// A part of what is exchanged.
    Part = 0,
    /// A sign of life.
    Heartbeat = 1,
}

/// A message under way; none once it is over.
#[derive(Debug)]
pub(super) struct Request(Option<Handle>);

type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type Ask = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type SetHandler = unsafe extern "C" fn(Handle, Handle) -> c_int;
type BeginSend =
    unsafe extern "C" fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type BeginReceive =
    unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
/// `MPI_Iallreduce` and `MPI_Ireduce_scatter_block`.
type BeginSum =
    unsafe extern "C" fn(*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle) -> c_int;
type BeginGather = unsafe extern "C" fn(
    *const c_void,
    c_int,
    Handle,
    *mut c_void,
    c_int,
    Handle,
    Handle,
    *mut Handle,
) -> c_int;
type Test = unsafe extern "C" fn(*mut Handle, *mut c_int, *mut c_void) -> c_int;
type Cancel = unsafe extern "C" fn(*mut Handle) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;
type Abort = unsafe extern "C" fn(Handle, c_int) -> c_int;
type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;

/// The functions and constants of a loaded library.
#[derive(Debug)]
pub(super) struct Library {
    init: Init,
    rank: Ask,
    size: Ask,
    set_handler: SetHandler,
    send: BeginSend,
    receive: BeginReceive,
    all_reduce: BeginSum,
    reduce_scatter: BeginSum,
    all_gather: BeginGather,
    test: Test,
    cancel: Cancel,
    finalize: Finalize,
    abort: Abort,
    version: Version,
    error_text: ErrorText,
    /// All processes, as the library names them.
    world: Handle,
    byte: Handle,
    float: Handle,
    sum: Handle,
    errors_return: Handle,
    interface: Interface,
    /// Held during a call: calls are made one at a time.
    call: Mutex<()>,
}

// SAFETY: handles are constants of the library, and its functions are called from one thread at a time.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library that the environment names, or else one of this family.
    ///
    /// # Errors
    /// What was tried, in words.
    pub(super) fn load(family: Family) -> Result<Self, String> {
        if let Ok(name) = std::env::var(NAMED) {
            return Library::open(&name);
        }
        let mut tried = vec![];
        for name in family.names() {
            match Library::open(name) {
                Ok(library) => return Ok(library),
                Err(reason) => tried.push(reason),
            }
        }
        Err(tried.join("; "))
    }

    #[cfg(unix)]
    fn open(name: &str) -> Result<Self, String> {
        use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};
        use std::error::Error as _;
        // Open MPI's own parts, which it loads later, look for its symbols among those of the process.
        // SAFETY: a library of MPI does nothing but register itself when it is loaded.
        let loaded = unsafe { Loaded::open(Some(name), RTLD_NOW | RTLD_GLOBAL) };
        // The system's words, which name the file, are the cause.
        let words = |error: libloading::Error| error.source().map_or(error.to_string(), ToString::to_string);
        let loaded = loaded.map_err(words)?;
        // Its code has to stay.
        let loaded: &'static Loaded = Box::leak(Box::new(loaded));
        // SAFETY: the types are those of the MPI standard; of objects, only addresses are taken.
        unsafe {
            let object = |symbol: &[u8]| loaded.get::<*mut c_void>(symbol).map(|found| found.as_raw_ptr());
            let interface = Interface::of(loaded);
            let constant = |symbol: &[u8], mpich: usize, standard: usize| match interface {
                Interface::OpenMpi => object(symbol).map_err(|error| error.to_string()),
                Interface::Mpich => Ok(mpich as Handle),
                Interface::Standard => Ok(standard as Handle),
            };
            macro_rules! function {
                ($symbol:literal) => {
                    *loaded
                        .get(concat!($symbol, "\0").as_bytes())
                        .map_err(|error| format!("{name} is no MPI library: {error}"))?
                };
            }
            Ok(Library {
                init: function!("MPI_Init_thread"),
                rank: function!("MPI_Comm_rank"),
                size: function!("MPI_Comm_size"),
                set_handler: function!("MPI_Comm_set_errhandler"),
                send: function!("MPI_Isend"),
                receive: function!("MPI_Irecv"),
                all_reduce: function!("MPI_Iallreduce"),
                reduce_scatter: function!("MPI_Ireduce_scatter_block"),
                all_gather: function!("MPI_Iallgather"),
                test: function!("MPI_Test"),
                cancel: function!("MPI_Cancel"),
                finalize: function!("MPI_Finalize"),
                abort: function!("MPI_Abort"),
                version: function!("MPI_Get_library_version"),
                error_text: function!("MPI_Error_string"),
                world: constant(b"ompi_mpi_comm_world\0", 0x4400_0000, 0x101)?,
                byte: constant(b"ompi_mpi_byte\0", 0x4c00_010d, 0x247)?,
                float: constant(b"ompi_mpi_float\0", 0x4c00_040a, 0x210)?,
                sum: constant(b"ompi_mpi_op_sum\0", 0x5800_0003, 0x21)?,
                errors_return: constant(b"ompi_mpi_errors_return\0", 0x5400_0001, 0x143)?,
                interface,
                call: Mutex::default(),
            })
        }
    }

    #[cfg(not(unix))]
    fn open(name: &str) -> Result<Self, String> {
        Err(format!("{name} can be loaded on Unix alone"))
    }

    /// Starts MPI in this process.
    pub(super) fn start(&self) -> Result<(), MpiError> {
        let mut given = 0;
        // SAFETY: MPI takes no arguments for none; the handles are the library's.
        unsafe {
            self.done((self.init)(null_mut(), null_mut(), self.interface.serialized(), &mut given))?;
            self.done((self.set_handler)(self.world, self.errors_return))?;
        }
        match given >= self.interface.serialized() {
            true => Ok(()),
            false => {
                let reason = "the library takes calls from one thread only (MPI_THREAD_SERIALIZED is needed)";
                Err(MpiError::Call(reason.into()))
            }
        }
    }

    /// This process' number.
    pub(super) fn rank(&self) -> Result<usize, MpiError> {
        self.ask(self.rank)
    }

    /// How many processes there are.
    pub(super) fn ranks(&self) -> Result<usize, MpiError> {
        self.ask(self.size)
    }

    fn ask(&self, function: Ask) -> Result<usize, MpiError> {
        let mut number = 0;
        // SAFETY: MPI has been started.
        self.done(unsafe { function(self.world, &mut number) })?;
        Ok(number as usize)
    }

    /// Sends to one process while it receives from another one.
    pub(super) fn send_and_receive(
        &self,
        (to, sent): (usize, &[u8]),
        (from, received): (usize, &mut [u8]),
    ) -> Result<(), MpiError> {
        // SAFETY: the memory is lent until nothing is under way any more.
        let mut receiving = unsafe { self.begin_receive(from, Tag::Part, received) }?;
        // SAFETY: as above; it does not overlap with what is received.
        let mut sending =
            unsafe { self.begin_send(to, Tag::Part, sent) }.inspect_err(|_| self.give_up(&mut receiving))?;
        let over = self.sleep_until(&mut receiving).and_then(|()| self.sleep_until(&mut sending));
        over.inspect_err(|_| [&mut receiving, &mut sending].into_iter().for_each(|it| self.give_up(it)))
    }

    /// The sum of what all processes give.
    pub(super) fn all_reduce(&self, given: &[f32], sum: &mut [f32]) -> Result<(), MpiError> {
        let (from, to) = (given.as_ptr().cast(), sum.as_mut_ptr().cast());
        let count = count(sum.len())?;
        self.collective(|request| {
            // SAFETY: both have as many numbers, and are lent until the request is over.
            unsafe { (self.all_reduce)(from, to, count, self.float, self.sum, self.world, request) }
        })
    }

    /// This process' part of it.
    pub(super) fn reduce_scatter(&self, given: &[f32], sum: &mut [f32]) -> Result<(), MpiError> {
        let (from, to) = (given.as_ptr().cast(), sum.as_mut_ptr().cast());
        let count = count(sum.len())?;
        self.collective(|request| {
            // SAFETY: the sum has as many numbers, and what is given has them for each process; both are lent until the request is over.
            unsafe { (self.reduce_scatter)(from, to, count, self.float, self.sum, self.world, request) }
        })
    }

    /// What all processes have.
    pub(super) fn all_gather(&self, own: &[u8], all: &mut [u8]) -> Result<(), MpiError> {
        let (from, to) = (own.as_ptr().cast(), all.as_mut_ptr().cast());
        let (count, byte) = (count(own.len())?, self.byte);
        self.collective(|request| {
            // SAFETY: the first one has as many bytes, and the second one has them for each process; both are lent until the request is over.
            unsafe { (self.all_gather)(from, count, byte, to, count, byte, self.world, request) }
        })
    }

    /// Begins something and waits for it. It cannot be given up: after an error its memory is not touched any more, since the library has ended it.
    fn collective(&self, begin: impl FnOnce(&mut Handle) -> c_int) -> Result<(), MpiError> {
        let mut request = null_mut();
        let call = self.call();
        self.done(begin(&mut request))?;
        drop(call);
        self.sleep_until(&mut Request(Some(request)))
    }

    /// Begins to send to a process.
    ///
    /// # Safety
    /// The memory is there, and nobody writes to it, until the request is over.
    pub(super) unsafe fn begin_send(&self, to: usize, tag: Tag, sent: &[u8]) -> Result<Request, MpiError> {
        let mut request = null_mut();
        let (count, start, to, tag) = (sent.len() as c_int, sent.as_ptr().cast(), to as c_int, tag as c_int);
        let _call = self.call();
        // SAFETY: the caller's contract.
        self.done(unsafe { (self.send)(start, count, self.byte, to, tag, self.world, &mut request) })?;
        Ok(Request(Some(request)))
    }

    /// Begins to receive from a process.
    ///
    /// # Safety
    /// The memory is there, and nobody else touches it, until the request is over.
    pub(super) unsafe fn begin_receive(
        &self,
        from: usize,
        tag: Tag,
        received: &mut [u8],
    ) -> Result<Request, MpiError> {
        let mut request = null_mut();
        let (count, start) = (received.len() as c_int, received.as_mut_ptr().cast());
        let (from, tag) = (from as c_int, tag as c_int);
        let _call = self.call();
        // SAFETY: the caller's contract.
        self.done(unsafe { (self.receive)(start, count, self.byte, from, tag, self.world, &mut request) })?;
        Ok(Request(Some(request)))
    }

    /// Whether nothing is under way any more; a library moves bytes whenever it is asked.
    pub(super) fn is_over(&self, request: &mut Request) -> Result<bool, MpiError> {
        let Some(handle) = &mut request.0 else { return Ok(true) };
        let mut is_over = 0;
        let _call = self.call();
        // SAFETY: the request is under way.
        self.done(unsafe { (self.test)(handle, &mut is_over, self.interface.no_status()) })?;
        if is_over != 0 {
            request.0 = None;
        }
        Ok(is_over != 0)
    }

    /// Waits for what is under way. The thread sleeps between its questions: libraries wait by asking again and again, and a core that does so
    /// computes nothing.
    fn sleep_until(&self, request: &mut Request) -> Result<(), MpiError> {
        for tries in 0u32.. {
            if self.is_over(request)? {
                break;
            }
            match tries {
                0..EAGER => std::thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
        }
        Ok(())
    }

    /// Ends what is under way, so that nothing touches its memory any more.
    fn give_up(&self, request: &mut Request) {
        if let Some(handle) = &mut request.0 {
            let call = self.call();
            // SAFETY: the request is under way; what goes wrong has an error already.
            unsafe { (self.cancel)(handle) };
            drop(call);
            // As above.
            let _ = self.sleep_until(request);
        }
    }

    /// The right to make a call.
    fn call(&self) -> MutexGuard<'_, ()> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends MPI in this process.
    pub(super) fn finish(&self) -> Result<(), MpiError> {
        // SAFETY: MPI has been started.
        self.done(unsafe { (self.finalize)() })
    }

    /// Ends all processes.
    pub(super) fn abort(&self) {
        let since = Instant::now();
        // A call that hangs is no reason to hang as well.
        while matches!(self.call.try_lock(), Err(TryLockError::WouldBlock)) && since.elapsed() < CALL {
            std::thread::sleep(NAP);
        }
        // SAFETY: MPI has been started.
        unsafe { (self.abort)(self.world, 1) };
    }

    /// What the library calls itself: the first line, up to a comma.
    pub(super) fn version(&self) -> String {
        // SAFETY: the buffer has the most that MPI writes.
        let text = text(|buffer, length| unsafe { (self.version)(buffer, length) });
        text.lines()
            .next()
            .unwrap_or_default()
            .split(',')
            .next()
            .unwrap_or_default()
            .trim()
            .replace('\t', " ")
    }

    fn done(&self, code: c_int) -> Result<(), MpiError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: as in `version`.
        Err(MpiError::Call(text(|buffer, length| unsafe { (self.error_text)(code, buffer, length) })))
    }
}

/// A count of MPI's.
///
/// # Errors
/// It is more than an `int` can say.
fn count(length: usize) -> Result<c_int, MpiError> {
    let most =
        |_| MpiError::Call(format!("{length} elements are more than one collective of the library takes"));
    c_int::try_from(length).map_err(most)
}

/// A text that a function writes.
fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let (mut buffer, mut length) = (vec![0u8; LONGEST_TEXT], 0);
    write(buffer.as_mut_ptr().cast(), &mut length);
    buffer.truncate(length.max(0) as usize);
    String::from_utf8_lossy(&buffer).trim_end_matches('\0').to_string()
}
