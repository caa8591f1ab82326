//! A GPU and the programs that run on it.
//!
//! All memory of a program is one allocation, made when it is compiled: the plan's arena, scratch, inputs and states.
//! Batches go through pinned memory. The first run captures all launches as one graph of the driver's, which later runs
//! replay; there is one stream, and its order is the program's.

use super::cache::Cache;
use super::error::CudaError;
use super::program::{Argument, Program, Step};
use super::{Options, Renderer};
use crate::cpu::executable::check_inputs;
use crate::{CodegenError, Outputs};
use cudarc::driver::result::memset_d8_async;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaSlice, CudaStream, DevicePtr, DriverError, LaunchConfig,
    PinnedHostSlice, PushKernelArg, result, sys,
};
use cudarc::nvrtc::Ptx;
use kernfusion_ir::kernel::{BufferId, BufferRole, Place, Plan};
use kernfusion_ir::{Tensor, TensorType};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Alignment of every piece of memory in bytes.
const ALIGNMENT: usize = 256;

/// A GPU.
#[derive(Debug, Clone)]
pub struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
}

impl Device {
    /// The GPU of that number.
    ///
    /// # Errors
    /// There is no driver, or no such device.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        // SAFETY: looks for the driver's library, whose start does nothing but prepare itself.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let count = CudaContext::device_count().map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => CudaError::NoDevice { ordinal, count: 0 },
            _ => failed("looking for devices")(error),
        })?;
        let count = usize::try_from(count).unwrap_or(0);
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(failed("opening the device"))?;
        // SAFETY: everything runs on one stream, whose order needs no events.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(failed("making a stream"))?;
        Ok(Device { context, stream })
    }

    /// What NVRTC calls its architecture, such as `sm_90`.
    ///
    /// # Errors
    /// The driver does not tell, or the device lacks what generated code uses.
    pub fn architecture(&self) -> Result<String, CudaError> {
        let (major, minor) =
            self.context.compute_capability().map_err(failed("asking for the architecture"))?;
        let architecture = format!("sm_{major}{minor}");
        // The first with asynchronous copies and tensor cores for bf16.
        if major < 8 { Err(CudaError::TooOld { architecture }) } else { Ok(architecture) }
    }

    /// Lets this thread use the device.
    fn enter(&self) -> Result<(), CudaError> {
        self.context.bind_to_thread().map_err(failed("entering the device's context"))
    }

    fn allocate(&self, bytes: usize) -> Result<CudaSlice<u8>, CudaError> {
        let (free, _) = self.context.mem_get_info().map_err(failed("asking for free memory"))?;
        if bytes > free {
            return Err(CudaError::Memory { needed: bytes, free });
        }
        self.stream.alloc_zeros(bytes).map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaError::Memory { needed: bytes, free },
            _ => failed("allocating memory")(error),
        })
    }
}

/// The driver's error as ours.
fn failed(what: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |error| {
        let message = error.error_string().ok().map(|text| text.to_string_lossy().into_owned());
        CudaError::Driver { what, message: message.unwrap_or_else(|| format!("{:?}", error.0)) }
    }
}

/// Where everything lies in a program's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Layout {
    scratch: usize,
    /// Inputs and states.
    own: BTreeMap<BufferId, usize>,
    /// For new values of states on their way to where they belong.
    aside: usize,
    bytes: usize,
}

impl Layout {
    fn new(plan: &Plan, program: &Program) -> Self {
        let mut end = 0;
        let mut piece = |bytes: usize| {
            let start = end;
            end += bytes.next_multiple_of(ALIGNMENT);
            start
        };
        piece(plan.arena_bytes);
        let scratch = piece(program.scratch_bytes);
        let buffers = (0..plan.graph.buffers.len() as u32).map(BufferId);
        let own = buffers.filter(|&id| plan.place(id) == Place::Own);
        let own = own.map(|id| (id, piece(plan.graph.buffer(id).ty.bytes()))).collect();
        let aside = piece(
            moves(plan)
                .map(|(state, _)| plan.graph.buffer(state).ty.bytes().next_multiple_of(ALIGNMENT))
                .sum(),
        );
        Layout { scratch, own, aside, bytes: end.max(ALIGNMENT) }
    }

    fn offset(&self, plan: &Plan, buffer: BufferId) -> usize {
        let memory = plan.memory_of(buffer);
        match plan.place(memory) {
            Place::Arena { offset } => offset,
            Place::Own => self.own[&memory],
            Place::Alias(_) | Place::Unused => 0,
        }
    }
}

/// States whose new values lie elsewhere when all kernels have run.
fn moves(plan: &Plan) -> impl Iterator<Item = (BufferId, BufferId)> {
    plan.graph
        .updates
        .iter()
        .copied()
        .filter(|&(state, value)| plan.memory_of(state) != plan.memory_of(value))
}

/// A plan that was compiled for a GPU, with its memory there. States stay on the device from run to run.
pub struct CudaExecutable {
    device: Device,
    plan: Plan,
    program: Program,
    /// For each function of the renderer, its block size and code.
    functions: Vec<(u32, CudaFunction)>,
    layout: Layout,
    memory: CudaSlice<u8>,
    staging: PinnedHostSlice<u8>,
    graph: Option<CudaGraph>,
}

impl CudaExecutable {
    /// Compiles a plan, with cubins from the cache where they are there. States begin as zeros.
    ///
    /// # Errors
    /// A kernel cannot be rendered, NVRTC is missing, or the device's memory is too small.
    pub fn compile(
        plan: Plan,
        device: &Device,
        options: Options,
        cache: &Cache,
    ) -> Result<Self, CodegenError> {
        let mut renderer = Renderer::new(options);
        let program = renderer.program(&plan)?;
        let layout = Layout::new(&plan, &program);
        let memory = device.allocate(layout.bytes)?;
        let architecture = device.architecture()?;
        let mut functions = vec![];
        for function in renderer.functions() {
            let cubin = cache.cubin(function, &architecture)?;
            let module =
                device.context.load_module(Ptx::from_binary(cubin)).map_err(failed("loading code"))?;
            let code = module.load_function(&function.name).map_err(failed("looking for a function"))?;
            functions.push((function.threads as u32, code));
        }
        let inputs = plan.graph.buffers.iter().filter(|buffer| buffer.role == BufferRole::Input);
        let staged =
            inputs.map(|buffer| buffer.ty.bytes().next_multiple_of(ALIGNMENT)).sum::<usize>().max(ALIGNMENT);
        // SAFETY: its bytes are written before anything reads them.
        let staging =
            unsafe { device.context.alloc_pinned(staged) }.map_err(failed("allocating pinned memory"))?;
        Ok(CudaExecutable {
            device: device.clone(),
            plan,
            program,
            functions,
            layout,
            memory,
            staging,
            graph: None,
        })
    }

    /// Runs the plan once: outputs by name.
    ///
    /// # Errors
    /// An input is missing, unknown or not of its type, or the driver reports an error.
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Outputs, CodegenError> {
        let declared = self.plan.graph.buffers.iter().filter(|buffer| buffer.role == BufferRole::Input);
        let declared: Vec<_> = declared.map(|buffer| (buffer.name.as_str(), &buffer.ty)).collect();
        check_inputs(&declared, inputs)?;
        self.device.enter()?;
        self.copy_inputs(inputs)?;
        if self.graph.is_none() {
            self.graph = self.capture()?;
        }
        if let Some(graph) = &self.graph {
            graph.launch().map_err(failed("running the program"))?;
        }
        let outputs = &self.plan.graph.outputs;
        let read = |(name, buffer, ty): &(String, BufferId, TensorType)| {
            Ok((name.clone(), self.read(self.layout.offset(&self.plan, *buffer), ty)?))
        };
        Ok(Outputs::new(outputs.iter().map(read).collect::<Result<_, CudaError>>()?))
    }

    /// Gives a state a value.
    ///
    /// # Errors
    /// The program has no such state of that type.
    pub fn set_state(&mut self, name: &str, value: &Tensor) -> Result<(), CodegenError> {
        let (id, ty) = self.state(name)?;
        if *ty != value.ty() {
            let (expected, found) = (ty.clone(), value.ty());
            return Err(CodegenError::State { name: name.into(), expected, found });
        }
        self.device.enter()?;
        let at = self.address(self.layout.own[&id]);
        // SAFETY: the state has that many bytes at its address; the copy is over when this returns.
        unsafe { result::memcpy_htod_sync(at, &value.to_bytes()) }.map_err(failed("writing a state"))?;
        Ok(())
    }

    /// A copy of a state's value.
    ///
    /// # Errors
    /// The program has no such state, or the driver reports an error.
    pub fn get_state(&self, name: &str) -> Result<Tensor, CodegenError> {
        let (id, ty) = self.state(name)?;
        Ok(self.read(self.layout.own[&id], ty)?)
    }

    fn state(&self, name: &str) -> Result<(BufferId, &TensorType), CodegenError> {
        let mut buffers = self.plan.graph.buffers.iter().enumerate();
        let found = buffers.find(|(_, buffer)| buffer.role == BufferRole::State && buffer.name == name);
        let unknown = || CodegenError::Input { name: name.into(), reason: "there is no such state".into() };
        found.map(|(at, buffer)| (BufferId(at as u32), &buffer.ty)).ok_or_else(unknown)
    }

    fn address(&self, offset: usize) -> sys::CUdeviceptr {
        self.memory.device_ptr(&self.device.stream).0 + offset as u64
    }

    fn read(&self, offset: usize, ty: &TensorType) -> Result<Tensor, CudaError> {
        let mut bytes = vec![0u8; ty.bytes()];
        self.device.enter()?;
        self.device.stream.synchronize().map_err(failed("running the program"))?;
        if !bytes.is_empty() {
            // SAFETY: a buffer of that type lies there, and nothing runs.
            unsafe { result::memcpy_dtoh_sync(&mut bytes, self.address(offset)) }
                .map_err(failed("reading a result"))?;
        }
        Ok(Tensor::from_bytes(ty, &bytes).expect("the type's bytes"))
    }

    /// Copies the batch to the device, behind whatever runs there.
    fn copy_inputs(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(), CudaError> {
        let staging = self.staging.as_mut_slice().map_err(failed("waiting for a batch"))?;
        let mut start = 0;
        for (at, buffer) in self.plan.graph.buffers.iter().enumerate() {
            if buffer.role != BufferRole::Input {
                continue;
            }
            let (_, tensor) = inputs.iter().find(|(name, _)| *name == buffer.name).expect("checked before");
            let bytes = tensor.to_bytes();
            staging[start..start + bytes.len()].copy_from_slice(&bytes);
            let to =
                self.memory.device_ptr(&self.device.stream).0 + self.layout.own[&BufferId(at as u32)] as u64;
            // SAFETY: the staging memory stays as it is until the run is over, since reading its results waits for that.
            let copied = unsafe {
                result::memcpy_htod_async(
                    to,
                    &staging[start..start + bytes.len()],
                    self.device.stream.cu_stream(),
                )
            };
            copied.map_err(failed("copying a batch"))?;
            start += bytes.len().next_multiple_of(ALIGNMENT);
        }
        Ok(())
    }

    /// All launches as a graph.
    fn capture(&self) -> Result<Option<CudaGraph>, CudaError> {
        let stream = &self.device.stream;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(failed("capturing the program"))?;
        let launched = self.launch_all();
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        launched?;
        graph.map_err(failed("capturing the program"))
    }

    fn launch_all(&self) -> Result<(), CudaError> {
        let stream = &self.device.stream;
        for step in &self.program.steps {
            match step {
                Step::Clear { buffer, bytes } => {
                    let at = self.address(self.layout.offset(&self.plan, *buffer));
                    // SAFETY: the buffer has that many bytes at its address.
                    unsafe { memset_d8_async(at, 0, *bytes, stream.cu_stream()) }
                        .map_err(failed("clearing a buffer"))?;
                }
                Step::Launch(launch) => {
                    let (threads, function) = &self.functions[launch.function];
                    let addresses: Vec<u64> =
                        launch.arguments.iter().map(|argument| self.argument(*argument)).collect();
                    let [x, y, z] = launch.grid;
                    let config = LaunchConfig {
                        grid_dim: (x, y, z),
                        block_dim: (*threads, 1, 1),
                        shared_mem_bytes: 0,
                    };
                    let mut builder = stream.launch_builder(function);
                    addresses.iter().for_each(|address| {
                        builder.arg(address);
                    });
                    // SAFETY: the function takes as many pointers, to memory of the sizes that it was rendered for.
                    unsafe { builder.launch(config) }.map_err(failed("launching a kernel"))?;
                }
            }
        }
        self.move_states()
    }

    fn argument(&self, argument: Argument) -> u64 {
        self.address(match argument {
            Argument::Buffer(buffer) => self.layout.offset(&self.plan, buffer),
            Argument::Scratch { offset } => self.layout.scratch + offset,
        })
    }

    /// Copies what was not updated in place, through memory aside, since states may swap their values.
    fn move_states(&self) -> Result<(), CudaError> {
        let mut aside = self.layout.aside;
        let mut copies = vec![];
        for (state, value) in moves(&self.plan) {
            let bytes = self.plan.graph.buffer(state).ty.bytes();
            copies.push((
                self.layout.offset(&self.plan, value),
                aside,
                self.layout.offset(&self.plan, state),
                bytes,
            ));
            aside += bytes.next_multiple_of(ALIGNMENT);
        }
        let there = copies.iter().map(|&(value, aside, _, bytes)| (aside, value, bytes));
        let back = copies.iter().map(|&(_, aside, state, bytes)| (state, aside, bytes));
        for (to, from, bytes) in there.chain(back) {
            let (to, from) = (self.address(to), self.address(from));
            // SAFETY: both have that many bytes.
            unsafe { result::memcpy_dtod_async(to, from, bytes, self.device.stream.cu_stream()) }
                .map_err(failed("updating a state"))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for CudaExecutable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaExecutable").field("plan", &self.plan.graph.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::DType;
    use kernfusion_ir::kernel::{Buffer, KernelGraph};

    #[test]
    fn a_machine_without_a_gpu_gives_an_error() {
        match Device::open(0) {
            Ok(device) => assert!(device.architecture().is_ok_and(|name| name.starts_with("sm_"))),
            Err(CudaError::NoDriver | CudaError::NoDevice { .. } | CudaError::Driver { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn pieces_of_memory_are_apart() {
        let buffer =
            |name: &str, role| Buffer { name: name.into(), ty: TensorType::new(DType::F32, [3]), role };
        let buffers = vec![
            buffer("x", BufferRole::Input),
            buffer("w", BufferRole::State),
            buffer("new", BufferRole::Temporary),
        ];
        let updates = vec![(BufferId(1), BufferId(2))];
        let graph = KernelGraph { buffers, updates, ..KernelGraph::default() };
        let places = vec![Place::Own, Place::Own, Place::Arena { offset: 64 }];
        let plan = Plan { graph, places, arena_bytes: 300 };
        let layout = Layout::new(&plan, &Program { steps: vec![], scratch_bytes: 10 });
        assert_eq!((layout.scratch, layout.aside, layout.bytes), (512, 1280, 1536));
        assert_eq!(layout.own, BTreeMap::from([(BufferId(0), 768), (BufferId(1), 1024)]));
        assert_eq!(layout.offset(&plan, BufferId(2)), 64);
    }
}
