//! Programs that run on a GPU.
//!
//! The memory of a program is one allocation, made when it is compiled: the arena, scratch and inputs of its plans, which take turns
//! with it. States live in [`States`], which programs of one model share. The first run captures the launches of a plan as one
//! graph of the driver's, which later runs replay, unless ranks exchange something in it. Inputs and outputs pass through a [`Slot`], so that a batch is copied while the run
//! before it is under way, and the next run begins without waiting for outputs of this one.
//!
//! As eager mode wants it, temporaries are allocated when they are first written and freed after their last reader, and nothing is
//! captured.

use super::cache::Cache;
use super::cublaslt::{Library, LibraryUse};
use super::device::{Device, DeviceMemory, failed};
use super::error::CudaError;
use super::launches::{Argument, Launches, StreamOp};
use super::layout::{Batch, Delivery, Layout, moves};
use super::loaded::Loaded;
use super::nccl::Nccl;
use super::pending::{PendingRun, Results, Slot};
use super::{Candidates, Options, Renderer, tune};
use cudarc::driver::{CudaGraph, sys};
use kernfusion_codegen::{
    CodegenError, Executable, Moment, Outputs, Pending, See, State, States, Temporaries, check_inputs,
};
use kernfusion_ir::Tensor;
use kernfusion_ir::kernel::{BufferId, BufferOffset, BufferRole, Plan, ProgramPlan, Transfer};
use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A program that was compiled for a GPU, with its memory there. States stay on the device from run to run.
pub struct CudaExecutable {
    device: Device,
    /// Of the body, and of the tail if there is one.
    plans: Vec<LoadedPlan>,
    library: Option<LibraryUse>,
    memory: DeviceMemory,
    states: States,
    batch: Batch,
    /// Those of runs under way, and others to use again.
    slots: Vec<Arc<Slot>>,
    results: Arc<Results>,
    /// Where the program exchanges with other ranks.
    nccl: Option<Arc<Nccl>>,
}

/// A plan of the program.
struct LoadedPlan {
    steps: Launches,
    /// Goes before the code that it needs.
    graph: Option<CapturedGraph>,
    code: Loaded,
    layout: Layout,
    /// What of the batch goes where, for each time that it runs.
    deliveries: Vec<Vec<Delivery>>,
    /// Keeps the memory of this plan's states.
    states: BTreeMap<BufferId, State>,
    /// Where eager mode has temporaries.
    fresh: Option<Fresh>,
}

/// The launches of a plan, to be started together.
struct CapturedGraph(CudaGraph);

// SAFETY: the driver wants calls about a graph one after another, from whichever threads, and nothing else has this one's handles. The
// context is bound to the thread before each call: `Device::start` does it, and where the graph ends, the executable's `drop` has.
unsafe impl Send for CapturedGraph {}

/// Temporaries in memory of their own.
struct Fresh {
    /// For each step, the buffers to allocate before it and those to free after it.
    lives: Vec<(Vec<BufferId>, Vec<BufferId>)>,
    memory: RefCell<BTreeMap<BufferId, DeviceMemory>>,
}

impl LoadedPlan {
    fn new(
        (program, batch): (&ProgramPlan, &Batch),
        (plan, times): (&Plan, usize),
        steps: Launches,
        code: Loaded,
        states: &States,
        temporaries: Temporaries,
    ) -> Result<Self, CodegenError> {
        let mut owned = BTreeMap::new();
        for (at, buffer) in plan.graph.buffers.iter().enumerate() {
            if buffer.role == BufferRole::State {
                let state = states.ensure(&buffer.name, &buffer.ty)?;
                if state.device::<DeviceMemory>().is_none() {
                    let place = "in the memory of the CPU";
                    return Err(CodegenError::Elsewhere { name: buffer.name.clone(), place });
                }
                owned.insert(BufferId(at as u32), state);
            }
        }
        let layout = Layout::new(plan, &steps, temporaries);
        let deliveries = (0..times).map(|index| batch.deliveries(program, plan, &layout, index)).collect();
        let fresh = (temporaries == Temporaries::Fresh).then(|| Fresh::new(plan, &steps));
        Ok(LoadedPlan { graph: None, code, layout, deliveries, states: owned, fresh, steps })
    }
}

impl Fresh {
    /// The first step that touches a temporary allocates it and the last one frees it; what is read after the run stays.
    fn new(plan: &Plan, program: &Launches) -> Self {
        let mut touched: BTreeMap<BufferId, (usize, usize)> = BTreeMap::new();
        for (at, step) in program.steps.iter().enumerate() {
            for buffer in step.buffers().into_iter().map(|buffer| plan.memory_of(buffer)) {
                if plan.graph.buffer(buffer).role == BufferRole::Temporary {
                    touched.entry(buffer).or_insert((at, at)).1 = at;
                }
            }
        }
        let read = plan.graph.outputs.iter().map(|output| output.1);
        let read = read.chain(plan.graph.updates.iter().map(|update| update.1));
        let stay: BTreeSet<_> = read.map(|buffer| plan.memory_of(buffer)).collect();
        let mut lives = vec![(vec![], vec![]); program.steps.len()];
        for (buffer, (first, last)) in touched {
            lives[first].0.push(buffer);
            if !stay.contains(&buffer) {
                lives[last].1.push(buffer);
            }
        }
        Fresh { lives, memory: RefCell::default() }
    }
}

impl CudaExecutable {
    /// Compiles a program, with cubins from the cache where they are there. States that it names and that do not exist are made
    /// and filled with zeros.
    ///
    /// # Errors
    /// A kernel cannot be rendered, NVRTC is missing, or the device's memory is too small.
    pub fn compile(
        program: ProgramPlan,
        states: &States,
        device: &Device,
        options: Options,
        temporaries: Temporaries,
        cache: &Cache,
    ) -> Result<Self, CodegenError> {
        let candidates = options.candidates;
        let library = (candidates == Candidates::Library).then(|| Library::open(device));
        let opened = library.as_ref().and_then(|library| library.as_ref().ok());
        // A kernel at a time is what eager mode promises.
        let groups = options.groups && temporaries == Temporaries::Arena;
        let communicator = options.communicator.clone();
        let mut renderer = Renderer::new(device.options(Options { groups, ..options })?);
        let batch = Batch::new(&program, communicator.as_ref().map_or(0, |communicator| communicator.rank()));
        let (mut plans, mut products, mut nccl) = (vec![], 0, None);
        for (plan, times) in program.plans() {
            if candidates != Candidates::None {
                tune::choose(&mut renderer, plan, device, cache, opened)?;
            }
            let steps = renderer.program(plan)?;
            products += steps.library_products();
            if let (true, Some(communicator)) = (steps.exchanges(), &communicator) {
                nccl = Some(device.connection(communicator)?);
            }
            let code = Loaded::new(&steps, &renderer, device, cache, opened)?;
            plans.push(LoadedPlan::new((&program, &batch), (plan, times), steps, code, states, temporaries)?);
        }
        let bytes = plans.iter().map(|part| part.layout.bytes).max().expect("a program has a body");
        let memory = device.memory(bytes)?;
        let library =
            library.map(|library| LibraryUse { version: library.map(|library| library.version()), products });
        let results = Arc::new(Results::new(program));
        let slots = vec![Arc::new(Slot::new(device, nccl.as_ref(), batch.bytes, results.bytes)?)];
        let (device, states) = (device.clone(), states.clone());
        Ok(CudaExecutable { device, plans, library, memory, states, batch, slots, results, nccl })
    }

    /// Bytes of the device's memory that a program takes when it is compiled, states that do not exist yet included.
    ///
    /// # Errors
    /// A kernel cannot be rendered, or the driver does not tell what the device has.
    pub fn bytes_needed(
        program: &ProgramPlan,
        states: &States,
        device: &Device,
        options: &Options,
        temporaries: Temporaries,
    ) -> Result<usize, CodegenError> {
        let mut renderer = Renderer::new(device.options(options.clone())?);
        let mut bytes = 0;
        for (plan, _) in program.plans() {
            bytes = bytes.max(Layout::new(plan, &renderer.program(plan)?, temporaries).bytes);
        }
        let new = program.states().into_iter().filter(|(name, _)| states.ty(name).is_none());
        Ok(bytes + Batch::new(program, 0).bytes + new.map(|(_, bytes)| bytes).sum::<usize>())
    }

    /// What became of cublasLt, if tuning was allowed to try it.
    pub fn library(&self) -> Option<&LibraryUse> {
        self.library.as_ref()
    }

    /// The plan of a part.
    fn plan(&self, part: usize) -> &Plan {
        self.results.plan(part)
    }

    /// Checks the inputs, holds the states and starts the runs of all plans; `start` starts the launches of one.
    fn enqueue_with(
        &mut self,
        inputs: &[(&str, &Tensor)],
        start: &mut dyn FnMut(&mut Self, usize) -> Result<(), CodegenError>,
    ) -> Result<PendingRun, CodegenError> {
        check_inputs(&self.results.program.inputs(), inputs)?;
        self.device.enter()?;
        let states = self.states.clone();
        let _held = states.hold();
        let slot = self.send(inputs)?;
        self.clear_sums()?;
        let mut bytes = 0;
        for part in 0..self.plans.len() {
            for index in 0..self.plans[part].deliveries.len() {
                self.deliver(&slot, part, index)?;
                start(self, part)?;
                bytes = self.collect(&slot, part, bytes)?;
            }
        }
        slot.finish()?;
        self.slots.push(Arc::clone(&slot));
        Ok(PendingRun { slot, results: Arc::clone(&self.results) })
    }

    /// Starts the launches of a part, and keeps a point in time after each, with its kernels.
    fn start_timed(&self, part: usize, times: &mut [Duration]) -> Result<(), CodegenError> {
        let mut launches = vec![];
        let mut events = vec![self.device.event()?];
        self.launch_each(&self.device, part, &mut |executable, at| {
            launches.push(executable.plans[part].steps.steps[at].kernels().to_vec());
            events.push(executable.device.event()?);
            Ok(())
        })?;
        self.device.wait("running the program")?;
        let plan = self.plan(part);
        for (kernels, pair) in launches.iter().zip(events.windows(2)) {
            let seconds = f64::from(self.device.milliseconds(&pair[0], &pair[1])?) / 1e3;
            // Kernels of one launch share its time by what they move.
            let moved = |kernel: &usize| plan.graph.bytes_moved(&plan.graph.kernels[*kernel]) as f64;
            let all: f64 = kernels.iter().map(moved).sum();
            for kernel in kernels {
                let share = if kernels.len() == 1 { 1.0 } else { moved(kernel) / all.max(1.0) };
                times[*kernel] += Duration::from_secs_f64(seconds * share);
            }
        }
        Ok(())
    }

    /// Starts the launches of a part, and lets `see` look at it after each kernel.
    fn start_seen(&self, part: usize, see: See<'_>) -> Result<(), CodegenError> {
        let (plan, steps) = (self.plan(part), &self.plans[part].steps);
        let ends = steps.ends(plan.graph.kernels.len());
        let look = |buffer: BufferId| {
            let ty = &plan.graph.buffer(buffer).ty;
            let mut bytes = vec![0; ty.bytes()];
            self.with_memory(part, buffer, |memory, start| memory.read(start, &mut bytes))?;
            Ok(Tensor::from_bytes(ty, &bytes).expect("the type's bytes"))
        };
        let mut see_those_that_end = |steps: usize| {
            let mut over = ends.iter().enumerate().filter(|(_, end)| **end == steps);
            over.try_for_each(|(kernel, _)| see(&Moment { plan: part, kernel, look: &look }))
        };
        see_those_that_end(0)?;
        self.launch_each(&self.device, part, &mut |_, at| see_those_that_end(at + 1))
    }

    /// The memory in which a buffer of a part lies, and its first byte there.
    fn with_memory<R>(
        &self,
        part: usize,
        buffer: BufferId,
        act: impl FnOnce(&DeviceMemory, usize) -> R,
    ) -> R {
        let (plan, of) = (self.plan(part), &self.plans[part]);
        let memory = plan.memory_of(buffer);
        if let Some(state) = of.states.get(&memory).and_then(State::device::<DeviceMemory>) {
            return act(state, 0);
        }
        if let Some(fresh) = of
            .fresh
            .as_ref()
            .and_then(|fresh| Ref::filter_map(fresh.memory.borrow(), |all| all.get(&memory)).ok())
        {
            return act(&fresh, 0);
        }
        act(&self.memory, of.layout.offset(plan, memory))
    }

    /// The address of a buffer of a part.
    fn address_of(&self, part: usize, buffer: BufferId) -> sys::CUdeviceptr {
        self.with_memory(part, buffer, |memory, start| memory.address(start))
    }

    /// Starts all launches of a part: as a graph, unless each of them is waited for, memory comes and goes, or ranks exchange something.
    fn start(&mut self, part: usize) -> Result<(), CodegenError> {
        let of = &self.plans[part];
        if self.device.waits_for_each || of.fresh.is_some() || of.steps.exchanges() {
            return self.launch_all(&self.device, part);
        }
        if self.plans[part].graph.is_none() {
            self.plans[part].graph = self.capture(part)?;
        }
        match &self.plans[part].graph {
            // SAFETY: the executable has the code and the memory, and waits for its runs before they go.
            Some(CapturedGraph(graph)) => Ok(unsafe { self.device.start(graph) }?),
            None => Ok(()),
        }
    }

    /// Copies a batch to the device, while the runs before are under way.
    fn send(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Arc<Slot>, CudaError> {
        let mut slot = match self.slots.iter().position(|slot| Arc::strong_count(slot) == 1) {
            Some(free) => self.slots.swap_remove(free),
            None => {
                Arc::new(Slot::new(&self.device, self.nccl.as_ref(), self.batch.bytes, self.results.bytes)?)
            }
        };
        let own = Arc::get_mut(&mut slot).expect("no run has it");
        let bytes = own.batch()?;
        for (name, start) in &self.batch.inputs {
            let (_, tensor) = inputs.iter().find(|(other, _)| other == name).expect("checked before");
            let tensor = tensor.bytes();
            bytes[*start..start + tensor.len()].copy_from_slice(tensor);
        }
        if let Some((start, count)) = self.batch.indices {
            let first = self.batch.first as u32;
            let indices = (first..first + count as u32).flat_map(u32::to_le_bytes);
            bytes[start..start + 4 * count].iter_mut().zip(indices).for_each(|(byte, index)| *byte = index);
        }
        slot.send()?;
        Ok(slot)
    }

    /// Clears the sums over the batch, where the first microbatch of this rank is not that of the batch, which does.
    fn clear_sums(&self) -> Result<(), CudaError> {
        let Some(all) = self.results.program.microbatches.as_ref().filter(|_| self.batch.first > 0) else {
            return Ok(());
        };
        let buffers = &self.plan(0).graph.buffers;
        for (&id, state) in &self.plans[0].states {
            let memory =
                state.device::<DeviceMemory>().filter(|_| all.sums.contains(&buffers[id.0 as usize].name));
            if let Some(memory) = memory {
                // SAFETY: it is all of the memory.
                unsafe { self.device.clear(memory.address(0), memory.bytes()) }?;
            }
        }
        Ok(())
    }

    /// Copies the part of a batch to where the kernels find it, behind the runs before.
    fn deliver(&self, slot: &Slot, part: usize, index: usize) -> Result<(), CudaError> {
        for &delivery in &self.plans[part].deliveries[index] {
            // SAFETY: the program's memory has its inputs there, and the batch has as many bytes.
            unsafe { slot.deliver(delivery, self.memory.address(delivery.to)) }?;
        }
        Ok(())
    }

    /// Copies the outputs of a part to the slot from this byte on; then states take their new values, which an output may
    /// show the old ones of. The byte behind them.
    fn collect(&self, slot: &Slot, part: usize, start: usize) -> Result<usize, CudaError> {
        let outputs = self.results.outputs(part);
        for (_, buffer, ty, offset) in &outputs.tensors {
            // SAFETY: the buffer has its type's bytes.
            unsafe { slot.receive(start + offset, self.address_of(part, *buffer), ty.bytes()) }?;
        }
        self.move_states(part)?;
        if let Some(fresh) = &self.plans[part].fresh {
            fresh.memory.borrow_mut().clear();
        }
        Ok(start + outputs.bytes)
    }

    /// All launches of a part as a graph, recorded aside, as other programs of the device may be under way in other threads.
    fn capture(&self, part: usize) -> Result<Option<CapturedGraph>, CodegenError> {
        let aside = self.device.aside()?;
        let stream = &aside.stream;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(failed("capturing the program"))?;
        let launched = self.launch_all(&aside, part);
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        launched?;
        Ok(graph.map_err(failed("capturing the program"))?.map(CapturedGraph))
    }

    fn launch_all(&self, device: &Device, part: usize) -> Result<(), CodegenError> {
        self.launch_each(device, part, &mut |_, _| Ok(()))
    }

    /// Starts the steps of a part on the device's stream, or on one aside, with what eager mode allocates before and frees after each; `then` is called in between.
    fn launch_each(
        &self,
        device: &Device,
        part: usize,
        then: &mut dyn FnMut(&Self, usize) -> Result<(), CodegenError>,
    ) -> Result<(), CodegenError> {
        let of = &self.plans[part];
        for at in 0..of.steps.steps.len() {
            if let Some(fresh) = &of.fresh {
                for &buffer in &fresh.lives[at].0 {
                    let memory =
                        self.device.uninitialized(self.plan(part).graph.buffer(buffer).ty.bytes())?;
                    fresh.memory.borrow_mut().insert(buffer, memory);
                }
            }
            self.step(device, part, at)?;
            then(self, at)?;
            if let Some(fresh) = &of.fresh {
                fresh.lives[at].1.iter().for_each(|buffer| _ = fresh.memory.borrow_mut().remove(buffer));
            }
        }
        Ok(())
    }

    fn step(&self, device: &Device, part: usize, at: usize) -> Result<(), CudaError> {
        let of = &self.plans[part];
        let spot = |spot: BufferOffset| self.address_of(part, spot.buffer) + spot.offset as u64;
        let argument = |argument: Argument| match argument {
            Argument::Buffer(at) => spot(at),
            Argument::Scratch { offset } => self.memory.address(of.layout.scratch + offset),
        };
        match &of.steps.steps[at] {
            // SAFETY: the buffer has that many bytes at its address.
            StreamOp::Clear { at, bytes, .. } => unsafe { device.clear(spot(*at), *bytes) },
            StreamOp::Copy { transfer: Transfer { from, to, bytes }, .. } => {
                // SAFETY: both have that many bytes and do not overlap.
                unsafe { device.copy(spot(*to), spot(*from), *bytes) }
            }
            // SAFETY: the function was rendered for these arguments, whose memory the plan has laid out.
            StreamOp::Launch(launch) => unsafe { of.code.launch(device, launch, &argument) },
            // SAFETY: the product describes these arguments, and the scratch has the workspace.
            StreamOp::Product(product) => unsafe { of.code.multiply(device, product, &argument) },
            &StreamOp::Exchange { from, bytes, part, to, stride, .. } => {
                // SAFETY: the plan has laid out the buffer and room for the parts.
                unsafe { self.nccl().exchange((spot(from), bytes), part, (spot(to), stride)) }?;
                device.settle("an exchange by NCCL")
            }
            &StreamOp::Gather { at, bytes, part, .. } => {
                // SAFETY: the plan has laid out the buffer.
                unsafe { self.nccl().gather(spot(at), bytes, part) }?;
                device.settle("an exchange by NCCL")
            }
            &StreamOp::Sum { from, to, count, dtype, is_whole, .. } => {
                // SAFETY: the plan has laid out both buffers.
                unsafe { self.nccl().sum(spot(from), spot(to), (count, dtype), is_whole) }?;
                device.settle("an exchange by NCCL")
            }
        }
    }

    fn nccl(&self) -> &Nccl {
        self.nccl.as_ref().expect("a program that exchanges was connected")
    }

    /// Copies what was not updated in place, through memory aside, since states may swap their values.
    fn move_states(&self, part: usize) -> Result<(), CudaError> {
        let plan = self.plan(part);
        let mut aside = self.plans[part].layout.aside;
        let mut copies = vec![];
        for (state, value) in moves(plan) {
            let bytes = plan.graph.buffer(state).ty.bytes();
            let (from, to) = (self.address_of(part, value), self.address_of(part, state));
            copies.push((from, self.memory.address(aside), to, bytes));
            aside += bytes.next_multiple_of(super::layout::ALIGNMENT);
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

impl Executable for CudaExecutable {
    fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Outputs, CodegenError> {
        self.enqueue(inputs)?.wait()
    }

    /// One launch after another instead of as one graph.
    fn run_timed(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(Outputs, Vec<Duration>), CodegenError> {
        let kernels: Vec<_> =
            self.results.program.plans().map(|(plan, _)| plan.graph.kernels.len()).collect();
        let mut times: Vec<_> = kernels.iter().map(|&kernels| vec![Duration::ZERO; kernels]).collect();
        let run = self
            .enqueue_with(inputs, &mut |executable, part| executable.start_timed(part, &mut times[part]))?;
        Ok((Pending::Running(Box::new(run)).wait()?, times.concat()))
    }

    /// As a timed run, waiting for each kernel that is looked at.
    fn run_seen(&mut self, inputs: &[(&str, &Tensor)], see: See<'_>) -> Result<Outputs, CodegenError> {
        let run = self.enqueue_with(inputs, &mut |executable, part| executable.start_seen(part, see))?;
        Pending::Running(Box::new(run)).wait()
    }

    fn enqueue(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Pending, CodegenError> {
        let run = self.enqueue_with(inputs, &mut |executable, part| executable.start(part))?;
        Ok(Pending::Running(Box::new(run)))
    }

    fn program(&self) -> &ProgramPlan {
        &self.results.program
    }

    /// Has no effect.
    fn set_threads(&mut self, _: usize) -> Result<(), CodegenError> {
        Ok(())
    }

    fn device_bytes(&self) -> usize {
        self.memory.bytes() + self.batch.bytes + self.results.program.state_bytes()
    }

    fn library(&self) -> Option<String> {
        self.library.as_ref().map(ToString::to_string)
    }
}

impl Drop for CudaExecutable {
    /// Runs under way need its code and its graph.
    fn drop(&mut self) {
        // An error stays with the device; its next use reports it.
        let _ = self.device.wait("running the program");
    }
}

impl std::fmt::Debug for CudaExecutable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaExecutable").field("plan", &self.plan(0).graph.name).finish_non_exhaustive()
    }
}
