//! Several kernels in one launch: maps that stand next to each other and do not touch each other's results, such as the
//! updates of all parameters by an optimizer.
//!
//! ```text
//! launch update(p0, g0) ┐
//! launch update(p1, g1) ├─► launch update_and_2_more(p0, p1, g0, g1, p2, g2): the blocks of each, one after another
//! launch other(p2, g2)  ┘
//! ```
//!
//! Every point is computed by the same text as alone, so results are the same bits. Pointers are passed as one structure,
//! which a block indexes by the number of its kernel: constant memory, with no table to keep.

use super::grid::MOST_BLOCKS;
use super::launches::{Argument, Function, Launch, Parameter, StreamOp};
use super::lower::{Renderer, unique};
use super::source::{Code, memory_type};
use kernfusion_ir::kernel::{BufferId, BufferOffset, Place, Plan};
use std::ops::Range;

/// The most pointers of a launch, which has no other parameters: drivers of before CUDA 12.1 take 4096 bytes of them.
const MOST_POINTERS: usize = 4096 / 8;

/// A function's text without its head, which may stand among others.
#[derive(Debug, Clone)]
pub(super) struct FunctionBody {
    /// Declarations of its parameters.
    pub(super) declared: Vec<String>,
    pub(super) body: String,
}

/// Steps with the same results, in which launches of pieces are grouped.
pub(super) fn grouped(renderer: &mut Renderer, plan: &Plan, steps: Vec<StreamOp>) -> Vec<StreamOp> {
    let mut result = vec![];
    let mut group = Group::default();
    for step in steps {
        match step {
            StreamOp::Launch(launch) if renderer.pieces.contains_key(&launch.function) => {
                let uses = uses(plan, &renderer.functions[launch.function], &launch);
                if !group.takes(renderer, &launch, &uses) {
                    result.extend(std::mem::take(&mut group).finish(renderer));
                }
                group.add(launch, uses);
            }
            other => {
                result.extend(std::mem::take(&mut group).finish(renderer));
                result.push(other);
            }
        }
    }
    result.extend(group.finish(renderer));
    result
}

/// A piece of memory that a launch reads or writes.
#[derive(Debug, Clone)]
struct Use {
    /// A buffer with memory of its own, or the arena or the scratch.
    memory: Memory,
    bytes: Range<usize>,
    is_written: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Memory {
    Own(BufferId),
    Arena,
    Scratch,
}

impl Use {
    fn disturbs(&self, other: &Use) -> bool {
        (self.is_written || other.is_written)
            && self.memory == other.memory
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

fn uses(plan: &Plan, function: &Function, launch: &Launch) -> Vec<Use> {
    let place = |argument: &Argument| match *argument {
        // Where a piece of scratch ends is not known here.
        Argument::Scratch { offset } => (Memory::Scratch, offset..usize::MAX),
        // All of it, wherever the launch begins: the parts of a body's memory are not known here.
        Argument::Buffer(BufferOffset { buffer, .. }) => {
            let memory = plan.memory_of(buffer);
            let bytes = [buffer, memory].map(|id| plan.graph.buffer(id).ty.bytes()).into_iter().max();
            let bytes = bytes.unwrap_or(0);
            match plan.place(memory) {
                Place::Arena { offset } => (Memory::Arena, offset..offset + bytes),
                Place::Own | Place::Alias(_) | Place::Unused => (Memory::Own(memory), 0..bytes),
            }
        }
    };
    let pairs = launch.arguments.iter().zip(&function.parameters);
    let used = pairs.map(|(argument, parameter)| {
        let (memory, bytes) = place(argument);
        Use { memory, bytes, is_written: parameter.is_written }
    });
    used.collect()
}

/// Launches that may happen at once.
#[derive(Default)]
struct Group {
    launches: Vec<Launch>,
    uses: Vec<Use>,
}

/// The launches of one function: where each of its parameters begins among the pointers, and whether all launches have the
/// same pointer there.
struct Family {
    function: usize,
    launches: Vec<Launch>,
    parameters: Vec<(usize, bool)>,
}

impl Group {
    fn takes(&self, renderer: &Renderer, launch: &Launch, uses: &[Use]) -> bool {
        let is_free = uses.iter().all(|own| self.uses.iter().all(|other| !own.disturbs(other)));
        let launches = self.launches.iter().chain([launch]).cloned().collect();
        let blocks =
            self.launches.iter().chain([launch]).map(|launch| launch.grid[0] as usize).sum::<usize>();
        let is_short = blocks <= MOST_BLOCKS[0];
        is_free && is_short && families(renderer, launches).1.len() <= MOST_POINTERS
    }

    fn add(&mut self, launch: Launch, uses: Vec<Use>) {
        self.launches.push(launch);
        self.uses.extend(uses);
    }

    /// One launch for all of them.
    fn finish(self, renderer: &mut Renderer) -> Vec<StreamOp> {
        if self.launches.len() < 2 {
            return self.launches.into_iter().map(StreamOp::Launch).collect();
        }
        let kernels = self.launches.iter().flat_map(|launch| launch.kernels.clone()).collect();
        let blocks = self.launches.iter().map(|launch| launch.grid[0]).sum();
        let bytes = [0, 1].map(|at| self.launches.iter().map(|launch| launch.bytes[at]).sum());
        let (families, pointers) = families(renderer, self.launches);
        let (arguments, parameters) = pointers.into_iter().unzip();
        let function = renderer.group(&families, parameters);
        vec![StreamOp::Launch(Launch { kernels, function, grid: [blocks, 1, 1], arguments, bytes })]
    }
}

/// Launches by function, and the pointers of all of them, with what they point to.
fn families(renderer: &Renderer, launches: Vec<Launch>) -> (Vec<Family>, Vec<(Argument, Parameter)>) {
    let mut families: Vec<Family> = vec![];
    for launch in launches {
        match families.iter_mut().find(|family| family.function == launch.function) {
            Some(family) => family.launches.push(launch),
            None => {
                let function = launch.function;
                families.push(Family { function, launches: vec![launch], parameters: vec![] });
            }
        }
    }
    let mut pointers: Vec<(Argument, Parameter)> = vec![];
    for family in &mut families {
        for (at, parameter) in renderer.functions[family.function].parameters.iter().enumerate() {
            let all: Vec<_> = family.launches.iter().map(|launch| launch.arguments[at]).collect();
            let is_shared = all.iter().all(|argument| *argument == all[0]);
            // A learning rate is a pointer that everybody has.
            let known = pointers.iter().position(|(pointer, _)| is_shared && *pointer == all[0]);
            family.parameters.push((known.unwrap_or(pointers.len()), is_shared));
            let new = match (known, is_shared) {
                (Some(_), _) => 0,
                (None, true) => 1,
                (None, false) => all.len(),
            };
            pointers.extend(all.into_iter().take(new).map(|pointer| (pointer, parameter.clone())));
        }
    }
    (families, pointers)
}

impl Renderer {
    /// The function that does the work of some families; those with the same text are one.
    fn group(&mut self, families: &[Family], parameters: Vec<Parameter>) -> usize {
        let body = self.group_body(families);
        if let Some(known) = self.groups.get(&body) {
            return *known;
        }
        let count: usize = families.iter().map(|family| family.launches.len()).sum();
        let Function { name, threads, .. } = &self.functions[families[0].function];
        let (threads, name) = (*threads, format!("{name}_and_{}_more", count - 1));
        let name = unique(&mut self.names, &name);
        let mut code = Code::default();
        code.line(format!("// {count} kernels at once"));
        for family in families {
            let text = self.functions[family.function].text.lines();
            text.take_while(|line| line.starts_with("//")).for_each(|line| code.line(line));
        }
        code.line("#include \"tile.cuh\"");
        code.line("");
        code.line(format!("KERNEL __launch_bounds__({threads}, 1) {name}("));
        code.line(format!("    const __grid_constant__ Pointers<{}> pointers)", parameters.len()));
        code.open("");
        body.lines().for_each(|line| code.line(line));
        code.close("");
        let text = code.finish();
        self.functions.push(Function {
            name,
            text,
            parameters,
            threads,
            shared_bytes: 0,
            blocks: 1,
            is_packed: true,
        });
        let function = self.functions.len() - 1;
        self.groups.insert(body, function);
        function
    }

    fn group_body(&self, families: &[Family]) -> String {
        let mut code = Code::default();
        code.line("int block = blockIdx.x;");
        for (number, family) in families.iter().enumerate() {
            let FunctionBody { declared, body } = &self.pieces[&family.function];
            code.open(format!("const auto kernel{number} = [&]({})", declared.join(", ")));
            body.lines().for_each(|line| code.line(line));
            code.close(";");
        }
        for (number, family) in families.iter().enumerate() {
            let (count, blocks) = (family.launches.len(), family.launches[0].grid[0]);
            let parameters = &self.functions[family.function].parameters;
            let at = |(first, is_shared): (usize, bool)| match is_shared || count == 1 {
                true => format!("{first}"),
                false => format!("{first} + at"),
            };
            let pointers = family.parameters.iter().zip(parameters).map(|(place, parameter)| {
                let constant = if parameter.is_written { "" } else { "const " };
                format!("({constant}{}*)pointers.at[{}]", memory_type(parameter.dtype), at(*place))
            });
            let pointers = pointers.collect::<Vec<_>>().join(", ");
            code.open(format!("if (block < {})", count as u32 * blocks));
            if count > 1 {
                code.line(format!("const int at = block / {blocks};"));
                code.line(format!("block %= {blocks};"));
            }
            code.line(format!("return kernel{number}({pointers});"));
            code.close("");
            if number + 1 < families.len() {
                code.line(format!("block -= {};", count as u32 * blocks));
            }
        }
        code.finish()
    }
}
