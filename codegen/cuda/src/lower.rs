//! From a kernel to functions and launches.
//!
//! Kernels that are equal but for their buffers share functions: a kernel is lowered over slots, and each use says which
//! buffers these are. Whatever no function does in one go is first rewritten to several kernels
//! ([`rewrite`](super::rewrite)), which hand values to each other in scratch memory.

use super::collective::PartSum;
use super::grid::arranged;
use super::group::FunctionBody;
use super::launches::{Argument, Function, Launch, Launches, LibraryProduct, Parameter, StreamOp};
use super::matrices::{Algorithm, MatrixProduct, Start, matrix_product};
use super::source::{Access, Code, Slot, buffer_name, function_name, memory_type};
use super::{Options, group, rows};
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::analysis::{number_slots, reduces, scatters};
use kernfusion_codegen::axes;
use kernfusion_ir::kernel::{
    BufferId, BufferOffset, Direction, Form, Kernel, KernelGraph, Loop, Place, Plan, StoreMode, Transfer,
};
use kernfusion_ir::{DType, Origin};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Alignment of pieces of scratch memory in bytes.
const ALIGNMENT: usize = 256;

/// Characters of a line of source.
const LINE: usize = 110;

/// Renders plans; equal kernels of all of them share functions.
#[derive(Debug, Default)]
pub struct Renderer {
    options: Options,
    pub(super) functions: Vec<Function>,
    pub(super) names: BTreeSet<String>,
    templates: HashMap<String, Arc<Template>>,
    /// What was chosen by measurement, by the key of its kernel.
    pub(super) choices: HashMap<String, ProductMethod>,
    /// Functions whose text may stand among others.
    pub(super) pieces: BTreeMap<usize, FunctionBody>,
    /// Functions of several kernels, by their bodies.
    pub(super) groups: HashMap<String, usize>,
    /// Functions that sum the parts of ranks, by what is constant in them.
    pub(super) sums: HashMap<PartSum, usize>,
}

/// Who does the product of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProductMethod {
    /// A generated kernel with tiles of these rows and columns.
    Tile([usize; 2]),
    /// A library.
    Library(Algorithm),
}

/// The launches of a kernel over slots: the kernel's buffers first, then pieces of scratch.
#[derive(Debug, Default)]
struct Template {
    steps: Vec<TemplateOp>,
    /// Offset of each piece of scratch.
    scratch: Vec<usize>,
    scratch_bytes: usize,
}

/// A kernel of a plan as functions, which are there once, however often they are launched.
enum Lowered<'p> {
    /// With the kernel's buffers, by slot.
    Kernel(Arc<Template>, Vec<BufferId>),
    /// With the kernels of its body.
    Loop(&'p Loop, Vec<Lowered<'p>>),
    /// An exchange, whose functions depend on the rank.
    Collective(&'p KernelGraph, &'p Kernel),
}

#[derive(Debug)]
enum TemplateOp {
    Clear { slot: usize, bytes: usize },
    Launch { function: usize, grid: [u32; 3], slots: Vec<usize>, bytes: [usize; 2] },
    Product { product: Box<MatrixProduct>, algorithm: Algorithm, starts: [Start; 3], workspace: usize },
}

impl Renderer {
    /// A renderer without functions.
    pub fn new(options: Options) -> Self {
        Renderer { options, ..Renderer::default() }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// What equal kernels have in common.
    #[cfg(feature = "driver")]
    pub(super) fn key(&self, plan: &Plan, kernel: &Kernel) -> String {
        let (numbered, buffers) = number_slots(kernel);
        key(&numbered, &slots(plan, kernel, &buffers))
    }

    /// A kernel as a product that a library may do.
    #[cfg(feature = "driver")]
    pub(super) fn matrix_product(&self, plan: &Plan, kernel: &Kernel) -> Option<MatrixProduct> {
        let (numbered, buffers) = number_slots(kernel);
        let slots = slots(plan, kernel, &buffers);
        Some(matrix_product(&axes::merged(&numbered), &slots, self.options.tf32)?.0)
    }

    /// The functions of all plans so far.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Renders the kernels of a plan.
    ///
    /// # Errors
    /// A kernel asks for something that this back end cannot do.
    pub fn program(&mut self, plan: &Plan) -> Result<Launches, CodegenError> {
        let mut program = Launches::default();
        for (number, kernel) in plan.graph.kernels.iter().enumerate() {
            let lowered = self.lowered(plan, kernel)?;
            self.steps(&mut program, number, &lowered, &|buffer| BufferOffset { buffer, offset: 0 })?;
        }
        if self.options.groups {
            program.steps = group::grouped(self, plan, program.steps);
        }
        Ok(program)
    }

    /// The functions of a kernel; those of a loop are its body's, whatever its iterations are.
    fn lowered<'p>(&mut self, plan: &'p Plan, kernel: &'p Kernel) -> Result<Lowered<'p>, CodegenError> {
        if let Some(repeated) = kernel.repeated() {
            let kernels = repeated.body.graph.kernels.iter();
            let body =
                kernels.map(|kernel| self.lowered(&repeated.body, kernel)).collect::<Result<_, _>>()?;
            return Ok(Lowered::Loop(repeated, body));
        }
        if kernel.collective().is_some() {
            return Ok(Lowered::Collective(&plan.graph, kernel));
        }
        let (template, buffers) = self.kernel(plan, kernel)?;
        Ok(Lowered::Kernel(template, buffers))
    }

    /// Appends the steps of a kernel, or of a body's kernel in one iteration; `spot` says where its buffers lie.
    fn steps(
        &mut self,
        program: &mut Launches,
        number: usize,
        lowered: &Lowered<'_>,
        spot: &dyn Fn(BufferId) -> BufferOffset,
    ) -> Result<(), CodegenError> {
        let (template, slots) = match lowered {
            Lowered::Loop(repeated, body) => return self.iterations(program, number, repeated, body, spot),
            Lowered::Collective(graph, kernel) => {
                return self.collective(program, number, graph, kernel, spot);
            }
            Lowered::Kernel(template, slots) => (template, slots),
        };
        let argument = |slot: &usize| match slots.get(*slot) {
            Some(buffer) => Argument::Buffer(spot(*buffer)),
            None => Argument::Scratch { offset: template.scratch[slot - slots.len()] },
        };
        let inside = |start: Start| {
            let BufferOffset { buffer, offset } = spot(slots[start.slot]);
            Argument::Buffer(BufferOffset { buffer, offset: offset + start.offset })
        };
        program.scratch_bytes = program.scratch_bytes.max(template.scratch_bytes);
        program.steps.extend(template.steps.iter().map(|step| match step {
            TemplateOp::Clear { slot, bytes } => {
                StreamOp::Clear { kernel: number, at: spot(slots[*slot]), bytes: *bytes }
            }
            TemplateOp::Launch { function, grid, slots, bytes } => StreamOp::Launch(Launch {
                kernels: vec![number],
                function: *function,
                grid: *grid,
                arguments: slots.iter().map(argument).collect(),
                bytes: *bytes,
            }),
            TemplateOp::Product { product, algorithm, starts, workspace } => {
                StreamOp::Product(Box::new(LibraryProduct {
                    kernel: number,
                    product: **product,
                    algorithm: *algorithm,
                    arguments: starts.map(inside),
                    workspace: argument(workspace),
                }))
            }
        }));
        Ok(())
    }

    /// Appends all iterations of a loop, one after another: they are launches of the same functions at other addresses.
    fn iterations(
        &mut self,
        program: &mut Launches,
        number: usize,
        repeated: &Loop,
        body: &[Lowered<'_>],
        spot: &dyn Fn(BufferId) -> BufferOffset,
    ) -> Result<(), CodegenError> {
        let plan = &repeated.body;
        let outer = |at: BufferOffset| {
            let start = spot(at.buffer);
            BufferOffset { buffer: start.buffer, offset: start.offset + at.offset }
        };
        let copy = |t: Transfer| {
            let transfer = Transfer { from: outer(t.from), to: outer(t.to), bytes: t.bytes };
            StreamOp::Copy { kernel: number, transfer }
        };
        for iteration in 0..repeated.iterations {
            let iteration = repeated.iteration(iteration);
            let inner = |buffer: BufferId| {
                let memory = plan.memory_of(buffer);
                let placed = iteration.places.iter().find(|(other, _)| *other == memory);
                let in_scratch = |offset| BufferOffset { buffer: repeated.scratch.unwrap_or(buffer), offset };
                match (placed, plan.place(memory)) {
                    (Some((_, spot)), _) => outer(*spot),
                    (None, Place::Arena { offset }) => outer(in_scratch(offset)),
                    (None, Place::Own | Place::Alias(_) | Place::Unused) => outer(in_scratch(0)),
                }
            };
            for lowered in body {
                self.steps(program, number, lowered, &inner)?;
            }
            program.steps.extend(iteration.copies.iter().copied().map(copy));
        }
        program.steps.extend(repeated.copies_at_the_end().into_iter().map(copy));
        Ok(())
    }

    fn kernel(
        &mut self,
        plan: &Plan,
        kernel: &Kernel,
    ) -> Result<(Arc<Template>, Vec<BufferId>), CodegenError> {
        let (numbered, buffers) = number_slots(kernel);
        let slots = slots(plan, kernel, &buffers);
        let key = key(&numbered, &slots);
        if let Some(template) = self.templates.get(&key) {
            return Ok((Arc::clone(template), buffers));
        }
        let numbered = Kernel { name: kernel.name.clone(), ..numbered };
        let mut lowering = Lowering {
            options: self.options.clone(),
            choice: self.choices.get(&key).copied().or(self.options.tile.map(ProductMethod::Tile)),
            functions: &mut self.functions,
            names: &mut self.names,
            pieces: &mut self.pieces,
            comment: comment(&plan.graph, kernel),
            name: function_name(&kernel.name),
            kernel_name: kernel.name.clone(),
            slots,
            bytes: [0; 2],
            template: Template::default(),
        };
        lowering.kernel(&numbered)?;
        let template = Arc::new(lowering.template);
        self.templates.insert(key, Arc::clone(&template));
        Ok((template, buffers))
    }
}

fn key(numbered: &Kernel, slots: &[Slot]) -> String {
    let kinds: Vec<_> = slots.iter().map(|slot| (slot.dtype, slot.bytes, slot.is_clobbered)).collect();
    format!("{numbered:?} {kinds:?}")
}

/// What a function's first lines say: the kernel, and the ops that it computes with the user's lines, in order.
pub(super) fn comment(graph: &KernelGraph, kernel: &Kernel) -> String {
    let text = graph.show(kernel).to_string();
    let mut lines = vec![text.lines().next().unwrap_or_default().to_owned()];
    let nodes: Vec<_> = kernel.covers.iter().filter_map(|id| graph.nodes.get(id)).collect();
    for group in nodes.chunk_by(|a, b| a.origin.is_beside(&b.origin)) {
        let mut ops: Vec<_> = group.iter().map(|node| node.op).collect();
        ops.dedup();
        let Origin { location, scope, .. } = &group[0].origin;
        let place = location.as_ref().map(|location| format!(" at {location}")).unwrap_or_default();
        let scope = if scope.is_empty() { String::new() } else { format!(" in {scope}") };
        lines.push(format!("  {}{place}{scope}", ops.join(", ")));
    }
    lines.join("\n")
}

fn slots(plan: &Plan, kernel: &Kernel, buffers: &[BufferId]) -> Vec<Slot> {
    let written: Vec<_> = kernel.writes().into_iter().map(|buffer| plan.memory_of(buffer)).collect();
    let mut names = BTreeSet::new();
    let mut slots: Vec<Slot> = vec![];
    for &id in buffers {
        let buffer = plan.graph.buffer(id);
        let name = unique(&mut names, &buffer_name(&buffer.name));
        let is_clobbered = written.contains(&plan.memory_of(id));
        slots.push(Slot::new(name, buffer.ty.dtype, buffer.ty.bytes(), is_clobbered));
    }
    slots
}

/// A name that is not taken, and now is.
pub(super) fn unique(names: &mut BTreeSet<String>, wanted: &str) -> String {
    let mut name = wanted.to_owned();
    for number in 2.. {
        if names.insert(name.clone()) {
            break;
        }
        name = format!("{wanted}_{number}");
    }
    name
}

/// What a block of a function takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) threads: usize,
    /// Bytes of shared memory beside that of its arrays.
    pub(super) shared_bytes: usize,
    /// How many of them should share a multiprocessor, which limits their registers.
    pub(super) blocks: usize,
}

/// The lowering of one kernel.
pub(super) struct Lowering<'r> {
    pub(super) options: Options,
    /// Who does its products, unless their size decides.
    pub(super) choice: Option<ProductMethod>,
    functions: &'r mut Vec<Function>,
    names: &'r mut BTreeSet<String>,
    pieces: &'r mut BTreeMap<usize, FunctionBody>,
    comment: String,
    /// The start of the functions' names.
    name: String,
    kernel_name: String,
    slots: Vec<Slot>,
    /// What the kernel at hand reads and writes.
    bytes: [usize; 2],
    template: Template,
}

impl Lowering<'_> {
    /// Clears what the kernel adds to, then lowers it.
    fn kernel(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        let added = kernel.stores.iter().filter(|store| store.mode == StoreMode::Add);
        let added: BTreeSet<_> = added.map(|store| store.buffer.0 as usize).collect();
        for slot in added {
            let bytes = self.slots[slot].bytes;
            self.template.steps.push(TemplateOp::Clear { slot, bytes });
        }
        self.form(kernel)
    }

    /// Lowers a kernel whose sums begin with what their buffers hold.
    pub(super) fn form(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        rows::check_reductions(self, kernel)?;
        self.moves(kernel);
        let across = reduces(&kernel.region, Direction::Rows);
        match &kernel.form {
            Form::Map => self.map(kernel),
            Form::Reduce | Form::Contraction(_) if scatters(kernel) => self.split_scatter(kernel),
            Form::Reduce if across => self.row_reduction(kernel),
            Form::Reduce => self.rows(kernel),
            Form::Contraction(_) if across => self.split_products(kernel),
            Form::Contraction(contraction)
                if contraction.consumers.is_empty() && !reduces(&kernel.region, Direction::Columns) =>
            {
                match self.choice {
                    Some(ProductMethod::Library(algorithm)) => self.library_product(kernel, algorithm),
                    Some(ProductMethod::Tile(_)) | None => self.contraction(kernel),
                }
            }
            Form::Contraction(_) => self.chain(kernel),
            Form::Loop(_) => unreachable!("the iterations of a loop are lowered one by one"),
            Form::Collective(_) => unreachable!("exchanges are steps of their own"),
        }
    }

    /// A product that was measured as a library's, which it therefore is.
    fn library_product(&mut self, kernel: &Kernel, algorithm: Algorithm) -> Result<(), CodegenError> {
        let Some((product, starts)) = matrix_product(&axes::merged(kernel), &self.slots, self.options.tf32)
        else {
            return self.contraction(kernel);
        };
        let workspace = self.scratch("workspace", DType::Bool, algorithm.workspace)?.0 as usize;
        let product = Box::new(product);
        self.template.steps.push(TemplateOp::Product { product, algorithm, starts, workspace });
        Ok(())
    }

    /// Launches from now on move what this kernel does.
    pub(super) fn moves(&mut self, kernel: &Kernel) {
        self.bytes = kernel.bytes_read_and_written(|buffer| {
            let slot = &self.slots[buffer.0 as usize];
            let size = slot.dtype.size();
            [slot.bytes / size, size]
        });
    }

    /// As `moves`, with the bytes that later launches read and write.
    pub(super) fn moves_bytes(&mut self, read: usize, written: usize) {
        self.bytes = [read, written];
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(super) fn unsupported(&self, what: &str) -> CodegenError {
        CodegenError::Unsupported { kernel: self.kernel_name.clone(), what: what.into() }
    }

    /// Memory that later functions of this kernel read.
    pub(super) fn scratch(
        &mut self,
        name: &str,
        dtype: DType,
        elements: usize,
    ) -> Result<BufferId, CodegenError> {
        let elements = count(self, elements)?;
        let mut names = self.slots.iter().map(|slot| slot.name().to_owned()).collect();
        let bytes = elements * dtype.size();
        self.template.scratch.push(self.template.scratch_bytes);
        self.template.scratch_bytes += bytes.next_multiple_of(ALIGNMENT);
        self.slots.push(Slot::new(unique(&mut names, &buffer_name(name)), dtype, bytes, true));
        Ok(BufferId(self.slots.len() as u32 - 1))
    }

    /// A buffer that stands for an array of the function at hand, until `remove_locals`.
    pub(super) fn add_local(&mut self, name: String, dtype: DType, bytes: usize) -> BufferId {
        self.slots.push(Slot::new(name, dtype, bytes, false));
        BufferId(self.slots.len() as u32 - 1)
    }

    /// Removes the last `count` of these buffers.
    pub(super) fn remove_locals(&mut self, count: usize) {
        self.slots.truncate(self.slots.len() - count);
    }

    /// Lowers something whose functions have a longer name.
    pub(super) fn named<R>(&mut self, suffix: &str, lower: impl FnOnce(&mut Self) -> R) -> R {
        let length = self.name.len();
        self.name = format!("{}_{suffix}", self.name);
        let result = lower(self);
        self.name.truncate(length);
        result
    }

    /// As `launch`, of a body that only knows the number of its block, and may stand among others.
    ///
    /// # Errors
    /// As `launch`.
    pub(super) fn launch_piece(
        &mut self,
        threads: usize,
        blocks: usize,
        body: &str,
    ) -> Result<(), CodegenError> {
        let head = format!("const int block = blockIdx.x;\n{body}");
        let declared = self.launch("", threads, [blocks, 1, 1], head)?;
        self.pieces.insert(self.functions.len() - 1, FunctionBody { declared, body: body.into() });
        Ok(())
    }

    /// As `launch_blocks`, of blocks that take nothing but threads.
    ///
    /// # Errors
    /// As `launch_blocks`.
    pub(super) fn launch(
        &mut self,
        suffix: &str,
        threads: usize,
        grid: [usize; 3],
        body: String,
    ) -> Result<Vec<String>, CodegenError> {
        self.launch_blocks(suffix, Block { threads, shared_bytes: 0, blocks: 1 }, grid, body)
    }

    /// Adds a function with this body, and a launch of it; gives the declarations of its parameters. There is at least one
    /// block along each axis of the grid.
    ///
    /// # Errors
    /// More blocks than a grid has on any card, or more shared memory than a block has.
    pub(super) fn launch_blocks(
        &mut self,
        suffix: &str,
        block: Block,
        grid: [usize; 3],
        body: String,
    ) -> Result<Vec<String>, CodegenError> {
        self.launch_blocks_with("tile.cuh", suffix, block, grid, body)
    }

    /// As `launch_blocks`, of a function that includes this header.
    ///
    /// # Errors
    /// As `launch_blocks`.
    pub(super) fn launch_blocks_with(
        &mut self,
        header: &str,
        suffix: &str,
        block: Block,
        grid: [usize; 3],
        body: String,
    ) -> Result<Vec<String>, CodegenError> {
        if block.shared_bytes > self.options.shared_bytes {
            let bytes = block.shared_bytes;
            return Err(self.unsupported(&format!("a block with {bytes} bytes of shared memory")));
        }
        let too_many = || self.unsupported(&format!("a grid of {grid:?} blocks"));
        let (grid, body) = arranged(grid, body).ok_or_else(too_many)?;
        let wanted = if suffix.is_empty() { self.name.clone() } else { format!("{}_{suffix}", self.name) };
        let name = unique(self.names, &wanted);
        let accesses = self.slots.iter().enumerate();
        let accesses: Vec<_> =
            accesses.filter_map(|(number, slot)| Some((number, slot, slot.take_access()?))).collect();
        let parameter = |&(_, slot, access): &(usize, &Slot, Access)| Parameter {
            name: slot.name().into(),
            dtype: slot.dtype,
            is_written: access == Access::Write,
        };
        let parameters: Vec<_> = accesses.iter().map(parameter).collect();
        let declared = accesses.iter().map(|(_, slot, access)| {
            let (ty, name) = (memory_type(slot.dtype), slot.name());
            match (access, slot.is_clobbered) {
                (Access::Write, _) => format!("{ty}* {name}"),
                (Access::Read, true) => format!("const {ty}* {name}"),
                (Access::Read, false) => format!("const {ty}* __restrict__ {name}"),
            }
        });
        let mut code = Code::default();
        self.comment.lines().for_each(|line| code.line(format!("// {line}").trim_end()));
        code.line(format!("#include \"{header}\""));
        code.line("");
        let declared: Vec<String> = declared.collect();
        let slots = accesses.iter().map(|(number, ..)| *number).collect();
        // With one block as the least, the compiler does not save registers for more blocks by spilling.
        let Block { threads, shared_bytes, blocks } = block;
        let together = if blocks > 1 { format!("BLOCKS({blocks})") } else { "1".into() };
        let head = format!("KERNEL __launch_bounds__({threads}, {together}) {name}(");
        let length = head.len() + declared.iter().map(|text| text.len() + 2).sum::<usize>();
        if length <= LINE {
            code.open(format!("{head}{})", declared.join(", ")));
        } else {
            code.line(&head);
            let commas = (1..=declared.len()).map(|at| if at < declared.len() { "," } else { ")" });
            declared.iter().zip(commas).for_each(|(text, comma)| code.line(format!("    {text}{comma}")));
            code.open("");
        }
        body.lines().for_each(|line| code.line(line));
        code.close("");
        let text = code.finish();
        self.functions.push(Function {
            name,
            text,
            parameters,
            threads,
            shared_bytes,
            blocks,
            is_packed: false,
        });
        let function = self.functions.len() - 1;
        self.template.steps.push(TemplateOp::Launch { function, grid, slots, bytes: self.bytes });
        Ok(declared)
    }
}

/// A number that indices of 32 bits reach.
pub(super) fn count(lowering: &Lowering<'_>, number: usize) -> Result<usize, CodegenError> {
    match i32::try_from(number) {
        Ok(_) => Ok(number),
        Err(_) => Err(lowering.unsupported(&format!("a kernel of {number} points, more than 2^31,"))),
    }
}
