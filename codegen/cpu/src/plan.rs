//! A plan as machine code with its memory, ready to run.
//!
//! Kernels run in order, each over a table of pointers to its buffers. Inputs are read where the caller has them;
//! states live in [`States`]; temporaries in one arena, or, as eager mode wants it, each in a fresh allocation
//! that is given back after its last reader. Executables may share an arena; they then run in turns.

use super::collective::{ExchangeCode, Exchanging, Worker};
use super::loops::{self, KernelCode};
use super::lower::{Compiler, Machine, Products, Text};
use super::preparation::Preparation;
use kernfusion_codegen::{
    CodegenError, Collectives, Communicator, Outputs, State, States, Temporaries, check_inputs,
};
use kernfusion_ir::kernel::{Bucket, Buffer, BufferId, BufferRole, Kernel, Place, Plan};
use kernfusion_ir::{Tensor, TensorType};
use kernfusion_runtime::guard;
use kernfusion_runtime::isa::{Isa, IsaError};
use kernfusion_runtime::launch::{Launcher, Pointers};
use kernfusion_runtime::memory::{Block, SharedArena};
use kernfusion_runtime::pool::Pool;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How to compile and run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Threads to run on; 0 for all that the machine has. Not used if there is a pool.
    pub threads: usize,
    /// Threads to share with other executables.
    pub pool: Option<Arc<Pool>>,
    /// The instruction set of tile primitives and products; the best that there is if not given.
    pub isa: Option<Isa>,
    /// How products are computed.
    pub products: Products,
    /// Where temporaries live.
    pub temporaries: Temporaries,
    /// An arena to use instead of one of its own, if it is large enough.
    pub arena: Option<SharedArena>,
    /// The way to the other ranks, where several run the program.
    pub communicator: Option<Arc<dyn Communicator>>,
    /// Who sums what they exchange.
    pub collectives: Collectives,
    /// Whether to keep the text of all code for [`PlanExecutable::clif`] and [`PlanExecutable::assembly`].
    pub keep_code: bool,
}

impl Options {
    /// The way to the other ranks, and who sums.
    fn exchanging(&self) -> Exchanging<'_> {
        (self.communicator.as_ref(), self.collectives)
    }

    /// The threads that are asked for, if there is no pool.
    pub fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, Into::into),
            threads => threads,
        }
    }
}

/// A compiled plan with its memory.
pub struct PlanExecutable {
    plan: Plan,
    kernels: Vec<Launch>,
    works: Vec<KernelCode>,
    machine: Machine,
    launcher: Launcher,
    states: States,
    /// This plan's states, which keep their memory.
    owned: BTreeMap<BufferId, State>,
    /// Those of them that it writes.
    written: Vec<State>,
    preparation: Preparation,
    /// For each buffer, where it is; null while it is nowhere.
    pointers: Pointers,
    /// For each buffer, its aliases, which are where it is.
    aliases: Vec<Vec<BufferId>>,
    memory: Temporaries,
    arena: SharedArena,
    /// Fresh allocations of this moment.
    blocks: Vec<Option<Block>>,
    /// Inputs that a kernel writes to, which must not be the caller's memory; all of them where memory is guarded.
    input_copies: Vec<(BufferId, Block)>,
    programs: usize,
    compile_time: Duration,
}

/// In fresh memory, the buffers to allocate before a kernel and those to free after it.
#[derive(Default)]
struct Launch {
    allocate: Vec<BufferId>,
    free: Vec<BufferId>,
}

/// Sees a run of a plan after each of its kernels, whose number it is given.
pub(super) type SeePlan<'a> = &'a mut dyn FnMut(&PlanExecutable, usize) -> Result<(), CodegenError>;

impl PlanExecutable {
    /// Compiles a plan. States that it names and that do not exist are made and filled with zeros.
    ///
    /// # Errors
    /// A kernel cannot be run on this back end, a state has another type, or memory is short.
    pub fn compile(plan: Plan, states: &States, options: &Options) -> Result<Self, CodegenError> {
        let start = Instant::now();
        let isa = options.isa.map_or_else(Isa::detect, Ok)?;
        if !isa.is_there() {
            return Err(IsaError::Unavailable(isa.to_string()).into());
        }
        let pool = options.pool.clone().unwrap_or_else(|| Arc::new(Pool::new(options.thread_count())));
        // In guarded memory every temporary has pages of its own.
        let memory = if guard::side().is_some() { Temporaries::Fresh } else { options.temporaries };
        let mut compiler = Compiler::new(isa, options.products, options.keep_code)?;
        let works = KernelCode::compile(&plan, memory, options.exchanging(), &mut compiler)?;
        let mut kernels: Vec<_> = works.iter().map(|_| Launch::default()).collect();
        let programs = compiler.programs();
        let machine = compiler.finish()?;
        if memory == Temporaries::Fresh {
            plan_lifetimes(&plan, &mut kernels);
        }
        let launcher = Launcher::new(pool, KernelCode::programs(&works).into_iter())?;
        let bytes = if memory == Temporaries::Arena { plan.arena_bytes } else { 0 };
        let arena = match options.arena.clone().filter(|arena| arena.len() >= bytes) {
            Some(arena) => arena,
            None => SharedArena::new(bytes)?,
        };
        let mut executable = PlanExecutable {
            machine,
            launcher,
            states: states.clone(),
            owned: BTreeMap::new(),
            written: vec![],
            preparation: Preparation::default(),
            pointers: Pointers::new(plan.graph.buffers.len()),
            aliases: aliases(&plan),
            memory,
            arena,
            blocks: plan.graph.buffers.iter().map(|_| None).collect(),
            input_copies: vec![],
            programs,
            compile_time: Duration::ZERO,
            kernels,
            works,
            plan,
        };
        executable.place()?;
        executable.compile_time = start.elapsed();
        Ok(executable)
    }

    /// Runs on these threads from now on, with the same results.
    ///
    /// # Errors
    /// There is no memory for what each thread needs beside buffers.
    pub fn set_pool(&mut self, pool: Arc<Pool>) -> Result<(), CodegenError> {
        self.launcher = Launcher::new(pool, KernelCode::programs(&self.works).into_iter())?;
        Ok(())
    }

    /// Finds the memory of every buffer that has one before a run.
    fn place(&mut self) -> Result<(), CodegenError> {
        let graph = &self.plan.graph;
        let memories = self.plan.memories();
        let written: BTreeSet<_> =
            graph.kernels.iter().flat_map(Kernel::writes).map(|buffer| memories[buffer.0 as usize]).collect();
        let mut found: Vec<(BufferId, *mut u8)> = vec![];
        for (at, buffer) in graph.buffers.iter().enumerate() {
            let id = BufferId(at as u32);
            match buffer.role {
                BufferRole::State => {
                    let state = self.states.ensure(&buffer.name, &buffer.ty)?;
                    let elsewhere =
                        || CodegenError::Elsewhere { name: buffer.name.clone(), place: "on a device" };
                    found.push((id, state.host().ok_or_else(elsewhere)?));
                    self.owned.insert(id, state);
                }
                BufferRole::Input if written.contains(&id) || guard::side().is_some() => {
                    let copy = match guard::side() {
                        // What a caller has is aligned to its elements.
                        Some(_) => Block::guarded(buffer.ty.bytes(), buffer.ty.dtype.size())?,
                        None => Block::new(buffer.ty.bytes())?,
                    };
                    found.push((id, copy.as_ptr()));
                    self.input_copies.push((id, copy));
                }
                BufferRole::Input => {}
                BufferRole::Temporary => {
                    if let (Temporaries::Arena, Place::Arena { offset }) = (self.memory, self.plan.place(id))
                    {
                        assert!(offset + buffer.ty.bytes() <= self.arena.len(), "places lie in the arena");
                        found.push((id, self.arena.as_ptr().wrapping_add(offset)));
                    }
                }
            }
        }
        let updated = graph.updates.iter().map(|(state, _)| *state);
        let written: BTreeSet<_> = written.into_iter().chain(updated).collect();
        self.written = written.iter().filter_map(|state| self.owned.get(state)).cloned().collect();
        self.preparation = Preparation::new(&self.plan, |state| &self.owned[&state])?;
        found.extend(self.preparation.places());
        found.into_iter().for_each(|(buffer, pointer)| self.point(buffer, pointer));
        Ok(())
    }

    /// Lets a worker make all exchanges.
    pub(super) fn employ(&mut self, worker: &Arc<Worker>) {
        for work in &mut self.works {
            if let KernelCode::Exchange(code) = work {
                code.employ(worker);
            }
        }
    }

    /// Lets the exchanges of a bucket begin, while the caller holds the states.
    pub(super) fn begin_exchanges(&mut self, bucket: &Bucket) {
        let mut codes: Vec<_> = self
            .works
            .iter_mut()
            .enumerate()
            .filter_map(|(at, work)| match work {
                KernelCode::Exchange(code) if bucket.kernels.contains(&at) => Some(code),
                _ => None,
            })
            .collect();
        // SAFETY: states have memory as long as this executable, which waits for what has begun.
        unsafe { ExchangeCode::begin(&mut codes, &self.pointers) };
    }

    /// Waits for all exchanges that have begun.
    pub(super) fn finish_exchanges(&mut self) {
        for work in &mut self.works {
            if let KernelCode::Exchange(code) = work {
                // Whoever ends early has an error of its own.
                drop(code.finish());
            }
        }
    }

    /// Fills states with zeros, while the caller holds them.
    pub(super) fn clear(&mut self, states: &[String]) {
        for (at, buffer) in self.plan.graph.buffers.iter().enumerate() {
            if buffer.role == BufferRole::State && states.contains(&buffer.name) {
                self.owned[&BufferId(at as u32)].touch();
                // SAFETY: a state has the bytes of its type, and nobody else touches it now.
                unsafe { self.pointers.get(BufferId(at as u32)).write_bytes(0, buffer.ty.bytes()) };
            }
        }
    }

    /// Says where a buffer is, and its aliases with it.
    fn point(&mut self, buffer: BufferId, pointer: *mut u8) {
        self.pointers.set(buffer, pointer);
        for &alias in &self.aliases[buffer.0 as usize] {
            self.pointers.set(alias, pointer);
        }
    }

    /// Runs the plan: inputs by name, outputs by name. States are updated.
    ///
    /// # Errors
    /// An input is missing, unknown or not of its type (nothing has happened then), fresh memory is short, or a
    /// thread panicked (states may be anything between before and after).
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Outputs, CodegenError> {
        self.run_with(inputs, &mut |_| {})
    }

    /// As [`run`](Self::run), with the time of every kernel.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_timed(
        &mut self,
        inputs: &[(&str, &Tensor)],
    ) -> Result<(Outputs, Vec<Duration>), CodegenError> {
        let mut times = Vec::with_capacity(self.kernels.len());
        let mut last = Instant::now();
        let mut tick = |at| {
            let now = Instant::now();
            if at > 0 {
                times.push(now - last);
            }
            last = now;
        };
        let outputs = self.run_with(inputs, &mut tick)?;
        Ok((outputs, times))
    }

    /// What a buffer holds at this moment of a run: after the kernel that wrote it, and before another one takes its place.
    ///
    /// # Panics
    /// If the buffer has no memory at this moment.
    pub(super) fn look(&self, buffer: BufferId) -> Tensor {
        let ty = &self.plan.graph.buffer(buffer).ty;
        Tensor::from_bytes(ty, self.bytes(buffer, ty)).expect("the type's bytes")
    }

    /// `tick(i)` is called before kernel i, and once after the last one.
    fn run_with(
        &mut self,
        inputs: &[(&str, &Tensor)],
        tick: &mut dyn FnMut(usize),
    ) -> Result<Outputs, CodegenError> {
        let declared: Vec<_> = self.plan.inputs().map(|buffer| (buffer.name.as_str(), &buffer.ty)).collect();
        check_inputs(&declared, inputs)?;
        let (states, arena) = (self.states.clone(), self.arena.clone());
        let (_held, _turn) = (states.hold(), arena.turn());
        let given = |name: &str| inputs.iter().find(|(other, _)| *other == name).expect("checked before").1;
        self.run_held(&|buffer| given(&buffer.name).data().as_ptr(), tick, &mut |_, _| Ok(()))
    }

    /// Runs all kernels while the caller holds the states and has the arena. `locate` says where the elements of an input
    /// are; they live as long as the run. `tick` is called as [`run_with`](Self::run_with) says.
    pub(super) fn run_held(
        &mut self,
        locate: &dyn Fn(&Buffer) -> *const u8,
        tick: &mut dyn FnMut(usize),
        see: SeePlan<'_>,
    ) -> Result<Outputs, CodegenError> {
        self.take_inputs(locate);
        self.written.iter().for_each(State::touch);
        let first = self.preparation.first_kernel();
        for at in 0..first {
            tick(at);
            see(self, at)?;
        }
        for at in first..self.kernels.len() {
            if at == self.plan.preparation {
                self.preparation.finish();
            }
            tick(at);
            self.allocate(at)?;
            self.launch(at)?;
            see(self, at)?;
            for buffer in &self.kernels[at].free {
                self.blocks[buffer.0 as usize] = None;
            }
        }
        tick(self.kernels.len());
        let outputs = self.outputs();
        self.update_states();
        self.blocks.iter_mut().for_each(|block| *block = None);
        Ok(outputs)
    }

    /// Points at the inputs where they are.
    fn take_inputs(&mut self, locate: &dyn Fn(&Buffer) -> *const u8) {
        let mut found: Vec<(BufferId, *mut u8)> = vec![];
        for (at, buffer) in self.plan.graph.buffers.iter().enumerate() {
            if buffer.role != BufferRole::Input {
                continue;
            }
            let (id, data) = (BufferId(at as u32), locate(buffer));
            match self.input_copies.iter().find(|(copied, _)| *copied == id) {
                // SAFETY: the copy has the type's bytes, and so has the tensor, whose type was checked.
                Some((_, copy)) => unsafe {
                    copy.as_ptr().copy_from_nonoverlapping(data, buffer.ty.bytes());
                },
                None => found.push((id, data.cast_mut())),
            }
        }
        found.into_iter().for_each(|(buffer, pointer)| self.point(buffer, pointer));
    }

    fn allocate(&mut self, at: usize) -> Result<(), CodegenError> {
        for number in 0..self.kernels[at].allocate.len() {
            let buffer = self.kernels[at].allocate[number];
            let block = Block::new(self.plan.graph.buffer(buffer).ty.bytes())?;
            self.point(buffer, block.as_ptr());
            self.blocks[buffer.0 as usize] = Some(block);
        }
        Ok(())
    }

    fn launch(&mut self, at: usize) -> Result<(), CodegenError> {
        let (kernel, work) = (&self.plan.graph.kernels[at], &mut self.works[at]);
        let (launcher, machine, pointers) = (&mut self.launcher, &self.machine, &self.pointers);
        // SAFETY: the plan gives every buffer that the kernel touches memory of its size.
        let ran = catch_unwind(AssertUnwindSafe(|| unsafe { work.run(kernel, launcher, machine, pointers) }));
        ran.unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            Err(CodegenError::Panic { kernel: kernel.name.clone(), message: text.into() })
        })
    }

    fn bytes(&self, buffer: BufferId, ty: &TensorType) -> &[u8] {
        let pointer = self.pointers.get(buffer);
        assert!(!pointer.is_null() || ty.bytes() == 0, "buffer {} is nowhere", buffer.0);
        if ty.bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer's memory has the bytes of its type, and no kernel runs.
        unsafe { std::slice::from_raw_parts(pointer, ty.bytes()) }
    }

    fn outputs(&self) -> Outputs {
        let read = |(name, buffer, ty): &(String, BufferId, TensorType)| {
            let tensor = Tensor::from_bytes(ty, self.bytes(*buffer, ty)).expect("the type's bytes");
            (name.clone(), tensor)
        };
        Outputs::new(self.plan.graph.outputs.iter().map(read).collect())
    }

    /// Copies what was not updated in place. A value that another update overwrites is put aside first.
    fn update_states(&mut self) {
        let graph = &self.plan.graph;
        let moved = |&&(state, value): &&(BufferId, BufferId)| {
            self.plan.memory_of(state) != self.plan.memory_of(value)
        };
        let moves: Vec<_> = graph.updates.iter().filter(moved).copied().collect();
        let overwritten = |value: BufferId| {
            let memory = self.plan.memory_of(value);
            moves.iter().any(|(state, _)| self.plan.memory_of(*state) == memory)
        };
        let aside: Vec<_> = moves
            .iter()
            .map(|&(_, value)| {
                overwritten(value).then(|| self.bytes(value, &graph.buffer(value).ty).to_vec())
            })
            .collect();
        for (&(state, value), aside) in moves.iter().zip(&aside) {
            let from = aside.as_deref().unwrap_or_else(|| self.bytes(value, &graph.buffer(value).ty));
            // SAFETY: a state has the type of its new value and other memory; the states are held.
            unsafe { self.pointers.get(state).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        }
    }

    /// The plan that runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The states that it works on.
    pub fn states(&self) -> &States {
        &self.states
    }

    /// The arena of its temporaries, which other executables may share.
    pub fn arena(&self) -> &SharedArena {
        &self.arena
    }

    /// How long compiling took.
    pub fn compile_time(&self) -> Duration {
        self.compile_time
    }

    /// The number of different programs: kernels that differ in nothing but their buffers share one.
    pub fn programs(&self) -> usize {
        self.programs
    }

    /// The threads that it runs on.
    pub fn pool(&self) -> &Arc<Pool> {
        self.launcher.pool()
    }

    /// The stages of a kernel's rows, if code is kept and there is such a kernel.
    pub fn schedule(&self, kernel: &str) -> Option<String> {
        self.texts(kernel, |text| &text.schedule)
    }

    /// Cranelift's IR of a kernel, if code is kept and there is such a kernel.
    pub fn clif(&self, kernel: &str) -> Option<String> {
        self.texts(kernel, |text| &text.clif)
    }

    /// The loops over whole vectors of a kernel, disassembled; `None` if it has none.
    pub fn lanes(&self, kernel: &str) -> Option<String> {
        self.texts(kernel, |text| &text.lanes)
    }

    /// The machine code of a kernel, disassembled, if code is kept and there is such a kernel.
    pub fn assembly(&self, kernel: &str) -> Option<String> {
        self.texts(kernel, |text| &text.assembly)
    }

    fn texts(&self, kernel: &str, text: fn(&Text) -> &String) -> Option<String> {
        let found = loops::text(&self.plan, &self.works, &self.machine, kernel, &text);
        found.filter(|text| !text.is_empty())
    }
}

impl std::fmt::Debug for PlanExecutable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("PlanExecutable");
        text.field("plan", &self.plan.graph.name).field("kernels", &self.kernels.len());
        text.finish_non_exhaustive()
    }
}

/// For each buffer, its aliases.
fn aliases(plan: &Plan) -> Vec<Vec<BufferId>> {
    let mut aliases = vec![vec![]; plan.places.len()];
    for (at, memory) in plan.memories().into_iter().enumerate() {
        let buffer = BufferId(at as u32);
        if memory != buffer {
            aliases[memory.0 as usize].push(buffer);
        }
    }
    aliases
}

/// Whether two buffers of a kernel may have bytes in common.
pub(super) fn share_memory(plan: &Plan, memory: Temporaries, a: BufferId, b: BufferId) -> bool {
    let (a, b) = (plan.memory_of(a), plan.memory_of(b));
    let range = |buffer: BufferId| match plan.place(buffer) {
        Place::Arena { offset } if memory == Temporaries::Arena => {
            Some(offset..offset + plan.graph.buffer(buffer).ty.bytes())
        }
        _ => None,
    };
    match (range(a), range(b)) {
        (Some(a), Some(b)) => a.start < b.end && b.start < a.end,
        _ => a == b,
    }
}

/// Lets the first kernel that touches a temporary allocate it and the last one free it; what is read after the run
/// stays.
fn plan_lifetimes(plan: &Plan, kernels: &mut [Launch]) {
    let (graph, memories) = (&plan.graph, plan.memories());
    let memory = |buffer: BufferId| memories[buffer.0 as usize];
    let mut lives: BTreeMap<BufferId, (usize, usize)> = BTreeMap::new();
    for (at, kernel) in graph.kernels.iter().enumerate() {
        for buffer in kernel.reads().into_iter().chain(kernel.writes()).map(memory) {
            if graph.buffer(buffer).role == BufferRole::Temporary && plan.place(buffer) != Place::Own {
                lives.entry(buffer).or_insert((at, at)).1 = at;
            }
        }
    }
    let read = graph.outputs.iter().map(|output| output.1);
    let stay: BTreeSet<_> = read.chain(graph.updates.iter().map(|update| update.1)).map(memory).collect();
    for (buffer, (first, last)) in lives {
        kernels[first].allocate.push(buffer);
        if !stay.contains(&buffer) {
            kernels[last].free.push(buffer);
        }
    }
}
