//! Runs rendered programs on the CPU: a C++ compiler builds their functions with the seam's host body, and a process of
//! its own runs their launches. For tests, on machines without a GPU.
//!
//! Threads of a block run in turns under a [`ThreadSchedule`]; kernels that lack a barrier or a wait give wrong numbers or a
//! deadlock under one of them. Shared memory and buffers begin with NaNs, and every buffer has fences.

use super::launches::{Argument, Function, Launches, StreamOp};
use super::source::memory_type;
use super::{EMULATOR, HEADERS};
use kernfusion_ir::kernel::{BufferId, BufferOffset, BufferRole, Place, Plan, Transfer};
use kernfusion_ir::{Tensor, TensorType};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// There is no C++ compiler.
    #[error("cannot run the C++ compiler `{compiler}`: {cause}")]
    NoCompiler {
        /// Its name; the environment variable `CXX` chooses another one.
        compiler: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The compiler does not accept the source.
    #[error("the C++ compiler refuses the source: {0}")]
    Compile(String),
    /// The process failed: a deadlock, or memory of others was touched.
    #[error("{0}")]
    Run(String),
    /// Files of the emulator.
    #[error("the emulator's files: {0}")]
    File(#[from] std::io::Error),
}

/// In which order things happen that may happen in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadSchedule {
    /// Asynchronous copies happen when they start; otherwise when they are waited for.
    pub eager_copies: bool,
    /// Each warp runs until it must wait, the last one first unless they are shuffled, and products of warpgroups happen when they start;
    /// otherwise all threads advance in turns, and such products happen when they are waited for.
    pub warp_greedy: bool,
    /// Which block comes after which.
    pub order: Order,
}

/// In which order the blocks of a launch run, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By their numbers.
    Ascending,
    /// The last one first.
    Descending,
    /// Shuffled, as are the warps of a block and the lanes of a warp; the seed is 2 or more.
    Shuffled(u64),
}

impl ThreadSchedule {
    /// Every schedule.
    pub const ALL: [ThreadSchedule; 4] = [
        ThreadSchedule { eager_copies: false, warp_greedy: false, order: Order::Ascending },
        ThreadSchedule { eager_copies: false, warp_greedy: true, order: Order::Descending },
        ThreadSchedule { eager_copies: true, warp_greedy: false, order: Order::Shuffled(2) },
        ThreadSchedule { eager_copies: true, warp_greedy: true, order: Order::Shuffled(3) },
    ];
}

/// One run of a program: inputs and states by name.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The memory.
    pub plan: &'a Plan,
    /// The launches.
    pub program: &'a Launches,
    /// A tensor for each input and state.
    pub inputs: &'a BTreeMap<String, Tensor>,
}

/// Whether there is a C++ compiler.
pub fn is_present() -> bool {
    let mut command = Command::new(compiler_name());
    let found = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// Functions that were compiled for the CPU.
#[derive(Debug)]
pub struct Emulator {
    folder: Folder,
}

/// A folder for the time being.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kernfusion-emulator-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed now is in the system's folder for such files anyway.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Functions of one source file at most.
const FUNCTIONS_OF_A_FILE: usize = 96;
/// Up to this many functions are one source file: the headers of a second one would take longer to compile than they do.
const FEW_FUNCTIONS: usize = 16;

impl Emulator {
    /// Compiles functions.
    ///
    /// # Errors
    /// There is no C++ compiler, or it refuses the source.
    pub fn build(functions: &[Function]) -> Result<Self, EmulatorError> {
        Self::build_with(functions, &|_, text| text.into())
    }

    /// As `build`, with each header changed by `change(name, text)`, to see whether tests notice.
    ///
    /// # Errors
    /// As `build`.
    pub fn build_with(
        functions: &[Function],
        change: &dyn Fn(&str, &str) -> String,
    ) -> Result<Self, EmulatorError> {
        let folder = Folder::new()?;
        for (name, text) in HEADERS {
            std::fs::write(folder.0.join(name), change(name, text))?;
        }
        for (name, text) in [EMULATOR, MAIN] {
            std::fs::write(folder.0.join(name), text)?;
        }
        let least = if functions.len() <= FEW_FUNCTIONS { 1 } else { cores() };
        let count = functions.len().div_ceil(FUNCTIONS_OF_A_FILE).max(1).next_multiple_of(least);
        let size = functions.len().div_ceil(count).max(1);
        let mut sources: Vec<_> =
            functions.chunks(size).zip(0..).map(|(some, at)| source(some, at * size)).collect();
        let main = table(functions) + &sources.first().cloned().unwrap_or_default();
        sources.splice(..sources.len().min(1), [main]);
        let mut files = vec![];
        for (number, text) in sources.iter().enumerate() {
            let file = format!("functions{number}.cpp");
            std::fs::write(folder.0.join(&file), text)?;
            files.push(file);
        }
        compile_all(&folder.0, &files)?;
        let objects = files.iter().map(|file| object(file));
        compiler(&folder.0, objects.chain(["-o".into(), "emulate".into()]).collect())?.wait_well()?;
        Ok(Emulator { folder })
    }

    /// Runs jobs one after another: for each, outputs by name, then the new value of each updated state under the state's
    /// name.
    ///
    /// # Errors
    /// The threads of a block wait for each other forever, or something is written outside of its buffer.
    pub fn run(
        &self,
        jobs: &[Job<'_>],
        schedule: ThreadSchedule,
    ) -> Result<Vec<BTreeMap<String, Tensor>>, EmulatorError> {
        let mut commands = Commands::default();
        jobs.iter().enumerate().for_each(|(number, job)| commands.job(number, job, schedule));
        commands.word(END);
        let folder = &self.folder.0;
        std::fs::write(folder.join("commands"), &commands.bytes)?;
        let result = Command::new(folder.join("emulate"))
            .current_dir(folder)
            .args(["commands", "results"])
            .output()?;
        if !result.status.success() {
            let text = String::from_utf8_lossy(&result.stderr).trim().to_string();
            let text = if text.is_empty() { format!("the emulator failed: {}", result.status) } else { text };
            return Err(EmulatorError::Run(text));
        }
        let bytes = std::fs::read(folder.join("results"))?;
        let mut rest = &bytes[..];
        let mut all = vec![BTreeMap::new(); jobs.len()];
        for (job, name, ty) in commands.reads {
            let (own, others) = rest.split_at(ty.bytes());
            rest = others;
            all[job].insert(name, Tensor::from_bytes(&ty, own).expect("the type's bytes"));
        }
        Ok(all)
    }
}

const MAIN: (&str, &str) = ("main.hpp", include_str!("headers/main.hpp"));

/// The commands of `main.hpp`.
const END: u64 = 0;
const SCHEDULE: u64 = 1;
const ALLOCATE: u64 = 2;
const WRITE: u64 = 3;
const CLEAR: u64 = 4;
const LAUNCH: u64 = 5;
const READ: u64 = 6;
const CHECK: u64 = 7;
const COPY: u64 = 8;

/// A file of commands in the making.
#[derive(Default)]
struct Commands {
    bytes: Vec<u8>,
    /// Job, name and type of whatever is read, in order.
    reads: Vec<(usize, String, TensorType)>,
}

/// The arena is the first allocation, scratch the second; then come inputs and states.
struct Places<'a> {
    plan: &'a Plan,
    /// The allocation of each buffer that has one of its own.
    own: BTreeMap<BufferId, u64>,
}

impl Places<'_> {
    fn address(&self, spot: BufferOffset) -> [u64; 2] {
        let memory = self.plan.memory_of(spot.buffer);
        let [allocation, offset] = match self.plan.place(memory) {
            Place::Arena { offset } => [0, offset as u64],
            Place::Own => [self.own[&memory], 0],
            Place::Alias(_) | Place::Unused => [0, 0],
        };
        [allocation, offset + spot.offset as u64]
    }
}

impl Commands {
    fn word(&mut self, word: u64) {
        self.bytes.extend(word.to_le_bytes());
    }

    fn words(&mut self, words: impl IntoIterator<Item = u64>) {
        words.into_iter().for_each(|word| self.word(word));
    }

    fn job(&mut self, number: usize, job: &Job<'_>, schedule: ThreadSchedule) {
        let Job { plan, program, inputs } = *job;
        let order = match schedule.order {
            Order::Ascending => 0,
            Order::Descending => 1,
            Order::Shuffled(seed) => seed.max(2),
        };
        self.words([SCHEDULE, schedule.eager_copies.into(), schedule.warp_greedy.into(), order]);
        self.words([ALLOCATE, plan.arena_bytes as u64, ALLOCATE, program.scratch_bytes as u64]);
        let places = self.inputs(plan, inputs);
        for step in &program.steps {
            match step {
                StreamOp::Clear { at, bytes, .. } => {
                    self.word(CLEAR);
                    self.words(places.address(*at));
                    self.word(*bytes as u64);
                }
                StreamOp::Copy { transfer: Transfer { from, to, bytes }, .. } => {
                    self.word(COPY);
                    self.words(places.address(*to));
                    self.words(places.address(*from));
                    self.word(*bytes as u64);
                }
                StreamOp::Product(_) => unreachable!("a library is only chosen on a device"),
                StreamOp::Exchange { .. } | StreamOp::Gather { .. } | StreamOp::Sum { .. } => {
                    unreachable!("the emulator runs programs of one rank")
                }
                StreamOp::Launch(launch) => {
                    self.words([LAUNCH, launch.function as u64]);
                    self.words(launch.grid.map(u64::from));
                    self.word(launch.arguments.len() as u64);
                    for argument in &launch.arguments {
                        self.words(match *argument {
                            Argument::Buffer(spot) => places.address(spot),
                            Argument::Scratch { offset } => [1, offset as u64],
                        });
                    }
                }
            }
        }
        let outputs = plan.graph.outputs.iter().map(|(name, buffer, ty)| (name.clone(), *buffer, ty.clone()));
        let updates = plan.graph.updates.iter().map(|(state, value)| {
            let state = plan.graph.buffer(*state);
            (state.name.clone(), *value, state.ty.clone())
        });
        for (name, buffer, ty) in outputs.chain(updates) {
            self.word(READ);
            self.words(places.address(BufferOffset { buffer, offset: 0 }));
            self.word(ty.bytes() as u64);
            self.reads.push((number, name, ty));
        }
        self.words([CHECK, number as u64]);
    }

    /// Allocates inputs and states with their values.
    fn inputs<'a>(&mut self, plan: &'a Plan, inputs: &BTreeMap<String, Tensor>) -> Places<'a> {
        let mut own = BTreeMap::new();
        for (at, buffer) in plan.graph.buffers.iter().enumerate() {
            let id = BufferId(at as u32);
            if buffer.role == BufferRole::Temporary || plan.place(id) != Place::Own {
                continue;
            }
            let allocation = 2 + own.len() as u64;
            own.insert(id, allocation);
            let bytes = inputs[&buffer.name].bytes();
            self.words([ALLOCATE, bytes.len() as u64, WRITE, allocation, 0, bytes.len() as u64]);
            self.bytes.extend(bytes);
        }
        Places { plan, own }
    }
}

/// The file with the table of functions.
fn table(functions: &[Function]) -> String {
    let mut text = String::from("#include \"main.hpp\"\n");
    for number in 0..functions.len() {
        writeln!(text, "void launch{number}(dim3, void**);").expect("a string can be written");
    }
    let names: Vec<_> = (0..functions.len()).map(|number| format!("launch{number}")).collect();
    writeln!(text, "const Launch launches[] = {{{}, nullptr}};", names.join(", "))
        .expect("a string can be written");
    // A constant of this file alone, if nothing said otherwise, since it is `const`.
    text.replace("const Launch launches", "extern const Launch launches[];\nconst Launch launches")
}

/// A file with some functions, the first of which has this number.
fn source(functions: &[Function], first: usize) -> String {
    let mut text = String::new();
    for (number, function) in functions.iter().enumerate() {
        let arguments = function.parameters.iter().enumerate();
        let arguments =
            arguments.map(|(at, parameter)| format!("({}*)p[{at}]", memory_type(parameter.dtype)));
        let (number, name) = (first + number, &function.name);
        let (threads, shared) = (function.threads, function.shared_bytes);
        let arguments = match function.is_packed {
            true => format!("*(Pointers<{}>*)p", function.parameters.len()),
            false => arguments.collect::<Vec<_>>().join(", "),
        };
        write!(
            text,
            "{}\nvoid launch{number}(dim3 grid, void** p) {{\n  emulator::launch(grid, {threads}, {shared}, [&] {{ {name}({arguments}); \
             }});\n}}\n\n",
            function.text
        )
        .expect("a string can be written");
    }
    text
}

fn object(file: &str) -> String {
    file.replace(".cpp", ".o")
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Compiles files, as many at a time as there are cores.
fn compile_all(folder: &Path, files: &[String]) -> Result<(), EmulatorError> {
    let mut running = std::collections::VecDeque::new();
    for file in files {
        if running.len() == cores() {
            let first: Compiling = running.pop_front().expect("there is one");
            first.wait_well()?;
        }
        let arguments = ["-c".into(), file.clone(), "-o".into(), object(file)];
        running.push_back(compiler(folder, arguments.into())?);
    }
    running.into_iter().try_for_each(Compiling::wait_well)
}

/// A running compiler.
struct Compiling(std::process::Child);

impl Compiling {
    fn wait_well(self) -> Result<(), EmulatorError> {
        let output = self.0.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(EmulatorError::Compile(text.lines().take(40).collect::<Vec<_>>().join("\n")))
    }
}

fn compiler_name() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "g++".into())
}

fn compiler(folder: &Path, arguments: Vec<String>) -> Result<Compiling, EmulatorError> {
    let name = compiler_name();
    let mut command = Command::new(&name);
    command
        .current_dir(folder)
        // Most kernels run a few times only: `-O1` takes twice as long as they do.
        .args(["-std=c++17", "-Og", "-fwrapv", "-ffp-contract=off", "-w"])
        // An access that is not aligned is no error on this machine, but is one on a GPU.
        .args(["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"])
        .args(arguments);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    child.map(Compiling).map_err(|cause| EmulatorError::NoCompiler { compiler: name, cause })
}
