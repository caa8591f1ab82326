//! Programs that run on a GPU.
//!
//! The memory of a program is one allocation, made when it is compiled: the plan's arena, scratch and inputs. States live in
//! [`States`], which programs of one model share. The first run captures all launches as one graph of the driver's, which
//! later runs replay. Inputs and outputs pass through a [`Slot`], so that a batch is copied while the run before it is under
//! way, and nobody has to wait for a run's outputs before the next one begins.

use super::cache::Cache;
use super::cublaslt::{Library, LibraryUse};
use super::device::{Device, DeviceMemory, failed};
use super::error::CudaError;
use super::loaded::Loaded;
use super::pending::{Pending, Results, Slot};
use super::program::{Argument, Program, Step};
use super::{Candidates, Options, Renderer, tune};
use crate::cpu::executable::check_inputs;
use crate::states::{State, States};
use crate::{CodegenError, Outputs};
use cudarc::driver::{CudaGraph, sys};
use kernfusion_ir::Tensor;
use kernfusion_ir::kernel::{BufferId, BufferRole, Place, Plan, Spot, Transfer};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Alignment of every piece of memory in bytes.
pub(super) const ALIGNMENT: usize = 256;

/// Where everything lies in a program's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Layout {
    scratch: usize,
    /// Inputs, one behind another.
    own: BTreeMap<BufferId, usize>,
    inputs: Range<usize>,
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
        let own = buffers.filter(|&id| plan.graph.buffer(id).role == BufferRole::Input);
        let inputs_start = piece(0);
        let own = own.map(|id| (id, piece(plan.graph.buffer(id).ty.bytes()))).collect();
        let inputs = inputs_start..piece(0);
        let aside = piece(
            moves(plan)
                .map(|(state, _)| plan.graph.buffer(state).ty.bytes().next_multiple_of(ALIGNMENT))
                .sum(),
        );
        Layout { scratch, own, inputs, aside, bytes: end.max(ALIGNMENT) }
    }

    /// Where a buffer lies, unless it is a state.
    fn offset(&self, plan: &Plan, memory: BufferId) -> usize {
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
    /// Goes before the code that it needs.
    graph: Option<CudaGraph>,
    code: Loaded,
    library: Option<LibraryUse>,
    layout: Layout,
    memory: DeviceMemory,
    states: States,
    /// Keeps the memory of this plan's states.
    owned: BTreeMap<BufferId, State>,
    /// Those of runs under way, and others to use again.
    slots: Vec<Arc<Slot>>,
    results: Arc<Results>,
}

impl CudaExecutable {
    /// Compiles a plan, with cubins from the cache where they are there. States that it names and that do not exist are made
    /// and filled with zeros.
    ///
    /// # Errors
    /// A kernel cannot be rendered, NVRTC is missing, or the device's memory is too small.
    pub fn compile(
        plan: Plan,
        states: &States,
        device: &Device,
        options: Options,
        cache: &Cache,
    ) -> Result<Self, CodegenError> {
        let mut owned = BTreeMap::new();
        for (at, buffer) in plan.graph.buffers.iter().enumerate() {
            if buffer.role == BufferRole::State {
                let state = states.ensure(&buffer.name, &buffer.ty)?;
                if state.device().is_none() {
                    let place = "in the memory of the CPU";
                    return Err(CodegenError::Elsewhere { name: buffer.name.clone(), place });
                }
                owned.insert(BufferId(at as u32), state);
            }
        }
        let candidates = options.candidates;
        let library = (candidates == Candidates::Library).then(|| Library::open(device));
        let opened = library.as_ref().and_then(|library| library.as_ref().ok());
        let mut renderer = Renderer::new(options);
        if candidates != Candidates::None {
            tune::choose(&mut renderer, &plan, device, cache, opened)?;
        }
        let program = renderer.program(&plan)?;
        let layout = Layout::new(&plan, &program);
        let memory = device.memory(layout.bytes)?;
        let code = Loaded::new(&program, &renderer, device, cache, opened)?;
        let library = library.map(|library| LibraryUse {
            version: library.map(|library| library.version()),
            products: program.library_products(),
        });
        let results = Arc::new(Results::new(&plan));
        let slots = vec![Arc::new(Slot::new(device, layout.inputs.len(), results.bytes)?)];
        Ok(CudaExecutable {
            device: device.clone(),
            plan,
            program,
            code,
            library,
            layout,
            memory,
            states: states.clone(),
            owned,
            slots,
            results,
            graph: None,
        })
    }

    /// Runs the plan once: outputs by name.
    ///
    /// # Errors
    /// An input is missing, unknown or not of its type, or the driver reports an error.
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Outputs, CodegenError> {
        self.enqueue(inputs)?.wait()
    }

    /// Starts a run behind those that were started before, and does not wait for it.
    ///
    /// # Errors
    /// As `run`; what goes wrong on the device is reported by [`Pending::wait`], or by whatever is done next.
    pub fn enqueue(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Pending, CodegenError> {
        self.check(inputs)?;
        let states = self.states.clone();
        let _held = states.hold();
        let slot = self.begin(inputs)?;
        self.start()?;
        Ok(self.end(slot)?)
    }

    /// As `run`, with the time that each kernel of the plan takes, one launch after another instead of as one graph.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_timed(
        &mut self,
        inputs: &[(&str, &Tensor)],
    ) -> Result<(Outputs, Vec<Duration>), CodegenError> {
        self.check(inputs)?;
        let states = self.states.clone();
        let _held = states.hold();
        let slot = self.begin(inputs)?;
        let mut launches = vec![];
        let mut events = vec![self.device.event()?];
        for step in &self.program.steps {
            self.step(step)?;
            // What is cleared is cleared for the next launch.
            let kernels = match step {
                Step::Clear { .. } | Step::Copy(_) => continue,
                Step::Launch(launch) => launch.kernels.clone(),
                Step::Product(product) => vec![product.kernel],
            };
            launches.push(kernels);
            events.push(self.device.event()?);
        }
        let outputs = self.end(slot)?.wait()?;
        let mut times = vec![Duration::ZERO; self.plan.graph.kernels.len()];
        for (kernels, pair) in launches.iter().zip(events.windows(2)) {
            let seconds = f64::from(self.device.milliseconds(&pair[0], &pair[1])?) / 1e3;
            // Kernels of one launch share its time by what they move.
            let moved =
                |kernel: &usize| self.plan.graph.bytes_moved(&self.plan.graph.kernels[*kernel]) as f64;
            let all: f64 = kernels.iter().map(moved).sum();
            for kernel in kernels {
                let share = if kernels.len() == 1 { 1.0 } else { moved(kernel) / all.max(1.0) };
                times[*kernel] += Duration::from_secs_f64(seconds * share);
            }
        }
        Ok((outputs, times))
    }

    fn check(&self, inputs: &[(&str, &Tensor)]) -> Result<(), CodegenError> {
        let declared = self.plan.graph.buffers.iter().filter(|buffer| buffer.role == BufferRole::Input);
        let declared: Vec<_> = declared.map(|buffer| (buffer.name.as_str(), &buffer.ty)).collect();
        check_inputs(&declared, inputs)?;
        Ok(self.device.enter()?)
    }

    /// The plan that runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What became of cublasLt, if tuning was allowed to try it.
    pub fn library(&self) -> Option<&LibraryUse> {
        self.library.as_ref()
    }

    /// Bytes of the device's memory that it takes, states included.
    pub fn memory_bytes(&self) -> usize {
        let buffers = self.plan.graph.buffers.iter();
        let states = buffers.filter(|buffer| buffer.role == BufferRole::State);
        self.layout.bytes + states.map(|buffer| buffer.ty.bytes()).sum::<usize>()
    }

    /// The memory that a buffer lies in, and where in it.
    fn locate(&self, buffer: BufferId) -> (&DeviceMemory, usize) {
        let memory = self.plan.memory_of(buffer);
        match self.owned.get(&memory).and_then(State::device) {
            Some(state) => (state, 0),
            None => (&self.memory, self.layout.offset(&self.plan, memory)),
        }
    }

    fn address_of(&self, buffer: BufferId) -> sys::CUdeviceptr {
        let (memory, offset) = self.locate(buffer);
        memory.address(offset)
    }

    /// Starts all launches: as a graph, unless each of them is waited for.
    fn start(&mut self) -> Result<(), CudaError> {
        if self.device.waits_for_each {
            return self.launch_all();
        }
        if self.graph.is_none() {
            self.graph = self.capture()?;
        }
        match &self.graph {
            Some(graph) => graph.launch().map_err(failed("running the program")),
            None => Ok(()),
        }
    }

    /// Copies a batch to where the kernels find it, behind the runs before.
    fn begin(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Arc<Slot>, CudaError> {
        let mut slot = match self.slots.iter().position(|slot| Arc::strong_count(slot) == 1) {
            Some(free) => self.slots.swap_remove(free),
            None => Arc::new(Slot::new(&self.device, self.layout.inputs.len(), self.results.bytes)?),
        };
        let own = Arc::get_mut(&mut slot).expect("no run has it");
        let bytes = own.batch()?;
        for (id, at) in &self.layout.own {
            let name = &self.plan.graph.buffer(*id).name;
            let (_, tensor) = inputs.iter().find(|(other, _)| other == name).expect("checked before");
            let (start, tensor) = (at - self.layout.inputs.start, tensor.to_bytes());
            bytes[start..start + tensor.len()].copy_from_slice(&tensor);
        }
        // SAFETY: the program's memory has its inputs there, of which the slot has as many bytes.
        unsafe { slot.send(self.memory.address(self.layout.inputs.start)) }?;
        Ok(slot)
    }

    /// Copies the outputs to the slot; then states take their new values, which an output may show the old ones of.
    fn end(&mut self, slot: Arc<Slot>) -> Result<Pending, CudaError> {
        for (_, buffer, ty, start) in &self.results.outputs {
            // SAFETY: the buffer has its type's bytes.
            unsafe { slot.receive(*start, self.address_of(*buffer), ty.bytes()) }?;
        }
        self.move_states()?;
        slot.finish()?;
        self.slots.push(Arc::clone(&slot));
        Ok(Pending { slot, results: Arc::clone(&self.results) })
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
        self.program.steps.iter().try_for_each(|step| self.step(step))
    }

    fn step(&self, step: &Step) -> Result<(), CudaError> {
        match step {
            // SAFETY: the buffer has that many bytes at its address.
            Step::Clear { at, bytes } => unsafe { self.device.clear(self.spot(*at), *bytes) },
            Step::Copy(Transfer { from, to, bytes }) => {
                // SAFETY: both have that many bytes and do not overlap.
                unsafe { self.device.copy(self.spot(*to), self.spot(*from), *bytes) }
            }
            // SAFETY: the function was rendered for these arguments, whose memory the plan has laid out.
            Step::Launch(launch) => unsafe { self.code.launch(launch, &|argument| self.argument(argument)) },
            // SAFETY: the product describes these arguments, and the scratch has the workspace.
            Step::Product(product) => unsafe {
                self.code.multiply(product, &|argument| self.argument(argument))
            },
        }
    }

    fn spot(&self, spot: Spot) -> u64 {
        self.address_of(spot.buffer) + spot.offset as u64
    }

    fn argument(&self, argument: Argument) -> u64 {
        match argument {
            Argument::Buffer(spot) => self.spot(spot),
            Argument::Scratch { offset } => self.memory.address(self.layout.scratch + offset),
        }
    }

    /// Copies what was not updated in place, through memory aside, since states may swap their values.
    fn move_states(&self) -> Result<(), CudaError> {
        let mut aside = self.layout.aside;
        let mut copies = vec![];
        for (state, value) in moves(&self.plan) {
            let bytes = self.plan.graph.buffer(state).ty.bytes();
            copies.push((self.address_of(value), self.memory.address(aside), self.address_of(state), bytes));
            aside += bytes.next_multiple_of(ALIGNMENT);
        }
        let there = copies.iter().map(|&(value, aside, _, bytes)| (aside, value, bytes));
        let back = copies.iter().map(|&(_, aside, state, bytes)| (state, aside, bytes));
        for (to, from, bytes) in there.chain(back) {
            // SAFETY: both have that many bytes.
            unsafe { self.device.copy(to, from, bytes) }?;
        }
        Ok(())
    }
}

impl Drop for CudaExecutable {
    /// Runs under way need its code and its graph.
    fn drop(&mut self) {
        // An error stays with the device, and is reported by whoever uses it next.
        let _ = self.device.wait("running the program");
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
    use kernfusion_ir::kernel::{Buffer, KernelGraph};
    use kernfusion_ir::{DType, TensorType};

    #[test]
    fn pieces_of_memory_are_apart() {
        let buffer = |name: &str, role| Buffer {
            name: name.into(),
            ty: TensorType::new(DType::F32, [3]),
            role,
            continues: None,
        };
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
        assert_eq!(layout.offset(&plan, BufferId(2)), 64);
        assert_eq!((layout.scratch, layout.aside, layout.bytes), (512, 1024, 1280));
        assert_eq!((layout.own, layout.inputs), (BTreeMap::from([(BufferId(0), 768)]), 768..1024));
    }
}
