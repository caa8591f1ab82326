//! A GPU, pieces of its memory, and code that was loaded there. Programs run on one stream, one after another.

use super::cache::Cache;
use super::error::CudaError;
use super::grid::launched_bytes;
use super::launches::Function;
use super::nccl::Nccl;
use super::nvrtc::version;
use super::{Options, has_warpgroups};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaSlice, CudaStream, DevicePtr, DriverError,
    LaunchConfig, PushKernelArg, result, sys,
};
use cudarc::nvrtc::Ptx;
use kernfusion_codegen::{CodegenError, Communicator, DeviceAllocator, States};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A GPU.
#[derive(Debug, Clone)]
pub struct Device {
    pub(super) context: Arc<CudaContext>,
    /// Where programs run.
    pub(super) stream: Arc<CudaStream>,
    /// Where batches are copied meanwhile.
    pub(super) copies: Arc<CudaStream>,
    /// Whether every piece of work is waited for, so that an error names it: `KERNFUSION_CUDA_SYNC=1`.
    pub(super) waits_for_each: bool,
    /// Bytes of its memory that this process has.
    pub(super) bytes_in_use: Arc<AtomicUsize>,
    /// Its ways to those of other ranks, kept as long as the device, by what connects the ranks otherwise.
    connections: Arc<Mutex<Vec<Connection>>>,
}

/// What connects ranks, and how their devices reach each other.
type Connection = (Weak<dyn Communicator>, Arc<Nccl>);

/// The most bytes of arguments before CUDA 12.1.
const ARGUMENT_BYTES: usize = 4096;

/// A function that was compiled and loaded.
#[derive(Debug, Clone)]
pub(super) struct Code {
    name: String,
    function: CudaFunction,
    /// Of a block.
    threads: u32,
    /// Of shared memory that a launch asks for.
    shared_bytes: u32,
}

impl Device {
    /// The GPU of that number.
    ///
    /// # Errors
    /// There is no driver, or no such device.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        let count = Device::count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(failed("opening the device"))?;
        // SAFETY: programs run on one stream, whose order needs no events; copies of batches on another record events themselves.
        unsafe { context.disable_event_tracking() };
        let stream = || context.new_stream().map_err(failed("making a stream"));
        let (stream, copies) = (stream()?, stream()?);
        let waits_for_each = std::env::var_os("KERNFUSION_CUDA_SYNC").is_some_and(|value| value == "1");
        let (bytes_in_use, connections) = Default::default();
        Ok(Device { context, stream, copies, waits_for_each, bytes_in_use, connections })
    }

    /// How many GPUs there are.
    ///
    /// # Errors
    /// There is no driver, or it reports an error.
    pub fn count() -> Result<usize, CudaError> {
        // SAFETY: looks for the driver's library, whose start does nothing but prepare itself.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        match CudaContext::device_count() {
            Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
            Err(error) => Err(failed("looking for devices")(error)),
        }
    }

    /// The same one, with a stream of its own: what other threads put into the device's stream meanwhile is no part of what it records.
    ///
    /// # Errors
    /// The driver reports one.
    pub(super) fn aside(&self) -> Result<Self, CudaError> {
        let stream = self.context.new_stream().map_err(failed("making a stream"))?;
        Ok(Device { stream, ..self.clone() })
    }

    /// Starts a graph behind what runs there.
    ///
    /// # Safety
    /// The graph's functions, and the memory of their arguments, are there until it is done.
    pub(super) unsafe fn start(&self, graph: &CudaGraph) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the graph lives, and the caller's promise.
        unsafe { result::graph::launch(graph.cu_graph_exec(), self.stream.cu_stream()) }
            .map_err(failed("running the program"))
    }

    /// Its way to the devices of the other ranks. All ranks have to ask for it in the same order, and the first time they find each other.
    ///
    /// # Errors
    /// As [`Nccl::connect`].
    pub(super) fn connection(&self, communicator: &Arc<dyn Communicator>) -> Result<Arc<Nccl>, CudaError> {
        // Not held while ranks find each other: two of them may have one device, which NCCL refuses.
        let connections = || self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections().retain(|(other, _)| other.strong_count() > 0);
        let is_it = |(other, _): &&Connection| std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(communicator));
        let known = connections().iter().find(is_it).map(|(_, nccl)| Arc::clone(nccl));
        if let Some(known) = known {
            return Ok(known);
        }
        let nccl = Arc::new(Nccl::connect(&self.context, &self.stream, &**communicator)?);
        connections().push((Arc::downgrade(communicator), Arc::clone(&nccl)));
        Ok(nccl)
    }

    /// What NVRTC calls its architecture, such as `sm_90`.
    ///
    /// # Errors
    /// The driver does not tell, or the device lacks what generated code uses.
    pub fn architecture(&self) -> Result<String, CudaError> {
        let (major, minor) =
            self.context.compute_capability().map_err(failed("asking for the architecture"))?;
        // Products of warpgroups are among what only this very architecture has.
        let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
        let architecture = format!("sm_{major}{minor}{suffix}");
        // The first with asynchronous copies and tensor cores for bf16.
        if major < 8 { Err(CudaError::TooOld { architecture }) } else { Ok(architecture) }
    }

    /// As these, for what it multiplies with and what shared memory it has.
    ///
    /// # Errors
    /// As [`architecture`](Self::architecture).
    pub(super) fn options(&self, options: Options) -> Result<Options, CudaError> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let of_block = self.context.attribute(attribute).map_err(failed("asking for shared memory"))?;
        let shared_bytes = launched_bytes(usize::try_from(of_block).unwrap_or(0));
        Ok(Options { warpgroups: has_warpgroups(&self.architecture()?), shared_bytes, ..options })
    }

    /// Lets this thread use the device.
    pub(super) fn enter(&self) -> Result<(), CudaError> {
        self.context.bind_to_thread().map_err(failed("entering the device's context"))
    }

    /// Whether it can still be used: after an access outside of allocated memory, everything fails until the process ends.
    ///
    /// # Errors
    /// The one that it reports.
    pub fn check(&self) -> Result<(), CudaError> {
        self.wait("using the device")
    }

    /// Zeros in its memory, at least one byte.
    ///
    /// # Errors
    /// It has not that much free.
    pub fn memory(&self, bytes: usize) -> Result<DeviceMemory, CudaError> {
        let memory = self.uninitialized(bytes)?;
        // SAFETY: it has that many bytes.
        unsafe { self.clear(memory.address(0), memory.bytes()) }?;
        Ok(memory)
    }

    /// As [`memory`](Self::memory), with whatever lies there.
    ///
    /// # Errors
    /// As there.
    pub(super) fn uninitialized(&self, bytes: usize) -> Result<DeviceMemory, CudaError> {
        self.enter()?;
        let memory = self.allocate(bytes.max(1))?;
        self.bytes_in_use.fetch_add(memory.len(), Ordering::Relaxed);
        Ok(DeviceMemory { memory, device: self.clone() })
    }

    /// No states, and those to come in its memory.
    pub fn states(&self) -> States {
        States::on(Arc::new(self.clone()))
    }

    /// What the driver calls it.
    ///
    /// # Errors
    /// The driver does not tell.
    pub fn name(&self) -> Result<String, CudaError> {
        self.context.name().map_err(failed("asking for the device's name"))
    }

    /// The version of CUDA that its driver knows, such as 12090.
    pub(super) fn driver_version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: points to a live number.
        let found = unsafe { sys::cuDriverGetVersion(&mut version) }.result();
        found.map(|()| version).map_err(failed("asking for the driver's version"))
    }

    /// How many multiprocessors it has.
    pub(super) fn multiprocessors(&self) -> Result<usize, CudaError> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let count = self.context.attribute(attribute).map_err(failed("counting multiprocessors"))?;
        Ok(usize::try_from(count).unwrap_or(1).max(1))
    }

    /// Bytes of free memory.
    pub(super) fn free_memory(&self) -> Result<usize, CudaError> {
        let (free, _) = self.context.mem_get_info().map_err(failed("asking for free memory"))?;
        Ok(free)
    }

    /// Code of functions on the device; what is not in the cache is compiled on all cores.
    pub(super) fn load(
        &self,
        functions: &[&Function],
        architecture: &str,
        cache: &Cache,
    ) -> Result<Vec<Code>, CudaError> {
        let cubins = cache.cubins(functions, architecture)?;
        functions.iter().zip(cubins).map(|(function, cubin)| self.load_one(function, cubin)).collect()
    }

    fn load_one(&self, function: &Function, cubin: Vec<u8>) -> Result<Code, CudaError> {
        self.check_arguments(function)?;
        let module = self.context.load_module(Ptx::from_binary(cubin)).map_err(|error| {
            match (self.driver_version(), version()) {
                (Ok(driver), Ok((nvrtc, _))) if driver / 1000 < nvrtc => {
                    CudaError::Versions { driver, nvrtc }
                }
                _ => failed("loading code")(error),
            }
        })?;
        let function_there =
            module.load_function(&function.name).map_err(failed("looking for a function"))?;
        // Without being asked, a block has 48 KiB, those of the function's own arrays among them.
        if function.shared_bytes > 0 {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let asked = function_there.set_attribute(most, function.shared_bytes as i32);
            asked.map_err(|error| failed_kernel(&function.name, error))?;
        }
        Ok(Code {
            name: function.name.clone(),
            function: function_there,
            threads: function.threads as u32,
            shared_bytes: function.shared_bytes as u32,
        })
    }

    /// Whether the driver takes that many.
    fn check_arguments(&self, function: &Function) -> Result<(), CudaError> {
        let pointers = function.parameters.len();
        if pointers * size_of::<u64>() <= ARGUMENT_BYTES {
            return Ok(());
        }
        match self.driver_version()? {
            driver if driver < 12_010 => {
                Err(CudaError::Arguments { function: function.name.clone(), pointers, driver })
            }
            _ => Ok(()),
        }
    }

    /// Runs code behind what runs there.
    ///
    /// # Safety
    /// The function takes as many pointers, to memory of the sizes that it was rendered for.
    pub(super) unsafe fn launch(
        &self,
        code: &Code,
        [x, y, z]: [u32; 3],
        addresses: &[u64],
    ) -> Result<(), CudaError> {
        let config = LaunchConfig {
            grid_dim: (x, y, z),
            block_dim: (code.threads, 1, 1),
            shared_mem_bytes: code.shared_bytes,
        };
        let mut builder = self.stream.launch_builder(&code.function);
        addresses.iter().for_each(|address| {
            builder.arg(address);
        });
        // SAFETY: the caller's promise.
        let launched = unsafe { builder.launch(config) }.map(drop);
        launched.map_err(|error| failed_kernel(&code.name, error))?;
        self.settle(&code.name)
    }

    /// Waits for what was started last, if all work is waited for.
    pub(super) fn settle(&self, name: &str) -> Result<(), CudaError> {
        if !self.waits_for_each {
            return Ok(());
        }
        self.stream.synchronize().map_err(|error| failed_kernel(name, error))
    }

    /// Sets memory to zeros, behind what runs there.
    ///
    /// # Safety
    /// It has that many bytes.
    pub(super) unsafe fn clear(&self, at: sys::CUdeviceptr, bytes: usize) -> Result<(), CudaError> {
        // A graph has no node for nothing.
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { result::memset_d8_async(at, 0, bytes, self.stream.cu_stream()) }
            .map_err(failed("clearing a buffer"))?;
        self.settle("clearing a buffer")
    }

    /// Copies within the device's memory, behind what runs there.
    ///
    /// # Safety
    /// Both places have that many bytes.
    pub(super) unsafe fn copy(
        &self,
        to: sys::CUdeviceptr,
        from: sys::CUdeviceptr,
        bytes: usize,
    ) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) }
            .map_err(failed("copying memory"))?;
        self.settle("copying memory")
    }

    /// A point in the stream whose time is kept.
    pub(super) fn event(&self) -> Result<CudaEvent, CudaError> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        self.stream.record_event(flags).map_err(failed("timing a kernel"))
    }

    /// The time between two points that were reached.
    pub(super) fn milliseconds(&self, start: &CudaEvent, end: &CudaEvent) -> Result<f32, CudaError> {
        let mut milliseconds = 0.0;
        let elapsed = elapsed_time().ok_or(CudaError::NoDriver)?;
        // SAFETY: the events live, and the time points to a live number.
        let found = unsafe { elapsed(&mut milliseconds, start.cu_event(), end.cu_event()) }.result();
        found.map(|()| milliseconds).map_err(failed("timing a kernel"))
    }

    /// How long something takes there; never nothing, so that rates are numbers.
    pub(super) fn seconds(&self, run: &dyn Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let start = self.event()?;
        run()?;
        let end = self.event()?;
        self.wait("measuring the device")?;
        Ok(f64::from(self.milliseconds(&start, &end)?).max(1e-6) / 1e3)
    }

    /// Waits for all that runs there.
    pub(super) fn wait(&self, what: &'static str) -> Result<(), CudaError> {
        self.enter()?;
        self.stream.synchronize().map_err(failed(what))
    }

    fn allocate(&self, bytes: usize) -> Result<CudaSlice<u8>, CudaError> {
        let mut free = self.free_memory()?;
        if bytes > free {
            // Memory that was given back is free when the programs that were started before are done.
            self.wait("asking for free memory")?;
            free = self.free_memory()?;
        }
        if bytes > free {
            return Err(CudaError::Memory { needed: bytes, free });
        }
        // SAFETY: bytes are written before they are read, or cleared at once.
        unsafe { self.stream.alloc(bytes) }.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaError::Memory { needed: bytes, free },
            _ => failed("allocating memory")(error),
        })
    }
}

/// A piece of a device's memory.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Device,
    memory: CudaSlice<u8>,
}

impl DeviceAllocator for Device {
    fn zeros(&self, bytes: usize) -> Result<Arc<dyn kernfusion_codegen::DeviceMemory>, CodegenError> {
        Ok(Arc::new(self.memory(bytes)?))
    }
}

impl kernfusion_codegen::DeviceMemory for DeviceMemory {
    fn read(&self, bytes: &mut [u8]) -> Result<(), CodegenError> {
        Ok(DeviceMemory::read(self, 0, bytes)?)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), CodegenError> {
        Ok(DeviceMemory::write(self, 0, bytes)?)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.device.bytes_in_use.fetch_sub(self.memory.len(), Ordering::Relaxed);
    }
}

impl DeviceMemory {
    /// How many bytes it has.
    pub(super) fn bytes(&self) -> usize {
        self.memory.len()
    }

    pub(super) fn address(&self, offset: usize) -> sys::CUdeviceptr {
        self.memory.device_ptr(&self.device.stream).0 + offset as u64
    }

    /// Copies bytes to it, after whatever runs there.
    ///
    /// # Errors
    /// The driver reports one.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.device.wait("writing memory")?;
        if bytes.is_empty() {
            return Ok(());
        }
        assert!(offset + bytes.len() <= self.memory.len(), "the bytes lie inside");
        // Not by the function that takes no stream: it may return before the bytes are there, and our stream does not wait
        // for the one that it uses.
        let stream = self.device.stream.cu_stream();
        // SAFETY: checked; the copy is over when this returns, and nothing else runs.
        unsafe { result::memcpy_htod_async(self.address(offset), bytes, stream) }
            .map_err(failed("writing memory"))?;
        self.device.wait("writing memory")
    }

    /// Copies bytes from it, after whatever runs there.
    ///
    /// # Errors
    /// The driver reports one.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.device.wait("running the program")?;
        if bytes.is_empty() {
            return Ok(());
        }
        assert!(offset + bytes.len() <= self.memory.len(), "the bytes lie inside");
        let stream = self.device.stream.cu_stream();
        // SAFETY: checked; the copy is over when this returns, and nothing else runs.
        unsafe { result::memcpy_dtoh_async(bytes, self.address(offset), stream) }
            .map_err(failed("reading memory"))?;
        self.device.wait("reading memory")
    }
}

/// The driver's function for the time between two events.
type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// It has had this name since CUDA 12.8, and an older one, which drivers still have, before. The bindings know the new one
/// only, and would panic with an old driver.
fn elapsed_time() -> Option<ElapsedTime> {
    // SAFETY: a device is open, so the library is there; both functions have this type.
    unsafe {
        let library = sys::culib();
        let named = |name: &[u8]| library.get::<ElapsedTime>(name).ok().map(|function| *function);
        named(b"cuEventElapsedTime_v2").or_else(|| named(b"cuEventElapsedTime"))
    }
}

/// The driver's error as ours.
pub(super) fn failed(what: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |error| CudaError::Driver { what, message: message(error) }
}

/// The driver's error about a kernel.
fn failed_kernel(name: &str, error: DriverError) -> CudaError {
    CudaError::Kernel { function: name.into(), message: message(error) }
}

fn message(error: DriverError) -> String {
    let text = error.error_string().ok().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|| format!("{:?}", error.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_gives_an_error() {
        match Device::open(0) {
            Ok(device) => assert!(device.architecture().is_ok_and(|name| name.starts_with("sm_"))),
            Err(CudaError::NoDriver | CudaError::NoDevice { .. } | CudaError::Driver { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
