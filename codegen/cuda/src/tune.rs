//! Products by measurement. Which tile suits a product depends on the card, and no rule knows all of them: each tile that
//! fits is timed on the device, in memory of its own, and the choice is kept on disk beside the cubins. Where a user allows it,
//! cublasLt is a further candidate for kernels that are nothing but a product of matrices.
//!
//! A tile decides which thread computes an entry, not how: every sum has the same order. So results have the same bits with every
//! tile. A library sums in another order, so once one of its algorithms is chosen, it stays chosen.

use super::cublaslt::Library;
use super::device::{Device, DeviceMemory};
use super::error::CudaError;
use super::launches::{Argument, Launches, StreamOp};
use super::loaded::Loaded;
use super::lower::ProductMethod;
use super::matrices::{Algorithm, MatrixProduct};
use super::nvrtc::whole_source;
use super::{Cache, Renderer, tiles::TILES};
use kernfusion_codegen::CodegenError;
use kernfusion_ir::kernel::{BufferId, BufferOffset, Form, Kernel, KernelGraph, Plan};
use kernfusion_ir::{DType, Tensor, TensorType};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Times that each candidate is measured; the best counts.
const TIMES: usize = 5;

/// Elements of the random numbers that memory is filled with, again and again.
const PATTERN: usize = 1 << 16;

/// A choice and what its kernel is rendered to.
struct Candidate {
    choice: ProductMethod,
    renderer: Renderer,
    program: Launches,
}

/// A kernel alone, on a device.
struct Tuner<'t> {
    alone: Plan,
    device: &'t Device,
    cache: &'t Cache,
    library: Option<&'t Arc<Library>>,
}

/// Chooses for each kind of kernel with products who does them, before the renderer renders the plan.
///
/// # Errors
/// NVRTC is missing, or the driver reports an error.
pub(super) fn choose(
    renderer: &mut Renderer,
    plan: &Plan,
    device: &Device,
    cache: &Cache,
    library: Option<&Arc<Library>>,
) -> Result<(), CodegenError> {
    for kernel in plan.graph.kernels.iter().filter(|kernel| matches!(kernel.form, Form::Contraction(_))) {
        let key = renderer.key(plan, kernel);
        if renderer.choices.contains_key(&key) {
            continue;
        }
        let graph = KernelGraph { kernels: vec![kernel.clone()], ..plan.graph.clone() };
        let tuner = Tuner { alone: Plan { graph, ..plan.clone() }, device, cache, library };
        if let Some(choice) = tuner.chosen(renderer, kernel)? {
            renderer.choices.insert(key, choice);
        }
    }
    Ok(())
}

impl Tuner<'_> {
    /// The best of what can do the kernel, from the disk if it is there; `None` if there is nothing to choose, or no memory to
    /// measure in.
    fn chosen(&self, whole: &Renderer, kernel: &Kernel) -> Result<Option<ProductMethod>, CodegenError> {
        let tiles = self.tiles(whole)?;
        let product =
            self.library.and_then(|library| Some((library, whole.matrix_product(&self.alone, kernel)?)));
        if tiles.len() < 2 && product.is_none() {
            return Ok(None);
        }
        let architecture = self.device.architecture()?;
        let identity = self.identity(&tiles, product.as_ref().map(|(_, product)| product))?;
        let measured = || {
            let mut candidates = tiles;
            for algorithm in product.iter().flat_map(|(library, product)| library.algorithms(product)) {
                candidates.extend(self.candidate(whole, ProductMethod::Library(algorithm)));
            }
            Ok(text(self.best(&candidates)?).into_bytes())
        };
        let choice = match self.cache.choice(&identity, &architecture, measured) {
            Ok(choice) => choice,
            // The program may still fit: it is smaller than what it is measured beside.
            Err(CudaError::Memory { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let choice = std::str::from_utf8(&choice).ok().and_then(parse);
        Ok(choice.filter(|choice| match (choice, &product) {
            (ProductMethod::Tile(tile), _) => TILES.contains(tile),
            (ProductMethod::Library(algorithm), Some((library, product))) => {
                library.prepare(product, *algorithm).is_ok()
            }
            (ProductMethod::Library(_), None) => false,
        }))
    }

    /// The tiles that make a difference, or the one that was asked for.
    fn tiles(&self, whole: &Renderer) -> Result<Vec<Candidate>, CodegenError> {
        let mut found: Vec<Candidate> = vec![];
        let tiles = whole.options().tile.map_or(TILES.to_vec(), |tile| vec![tile]);
        for tile in tiles {
            let candidate = self.candidate(whole, ProductMethod::Tile(tile))?;
            if found.iter().all(|other| other.renderer.functions() != candidate.renderer.functions()) {
                found.push(candidate);
            }
        }
        Ok(found)
    }

    /// The kernel alone, as this choice makes it.
    fn candidate(&self, whole: &Renderer, choice: ProductMethod) -> Result<Candidate, CodegenError> {
        let mut renderer = Renderer::new(whole.options().clone());
        let key = renderer.key(&self.alone, &self.alone.graph.kernels[0]);
        renderer.choices.insert(key, choice);
        let program = renderer.program(&self.alone)?;
        Ok(Candidate { choice, renderer, program })
    }

    /// All that a choice depends on beside the architecture and NVRTC.
    fn identity(
        &self,
        tiles: &[Candidate],
        product: Option<&MatrixProduct>,
    ) -> Result<Vec<String>, CudaError> {
        let mut identity = vec![self.device.name()?, self.device.driver_version()?.to_string()];
        if let (Some(library), Some(product)) = (self.library, product) {
            identity.push(format!("cublasLt {} {product:?}", library.version()));
        }
        identity.extend(tiles.iter().flat_map(|tile| tile.renderer.functions()).map(whole_source));
        Ok(identity)
    }

    /// The choice that takes the least time.
    fn best(&self, candidates: &[Candidate]) -> Result<ProductMethod, CudaError> {
        let mut loaded = vec![];
        for candidate in candidates {
            let Candidate { choice, renderer, program } = candidate;
            match (Loaded::new(program, renderer, self.device, self.cache, self.library), choice) {
                (Ok(code), _) => loaded.push((candidate, code)),
                // What a library will not do is no candidate.
                (Err(CudaError::Library { .. }), ProductMethod::Library(_)) => {}
                (Err(error), _) => return Err(error),
            }
        }
        let memory = Memory::new(&self.alone, candidates.iter().map(|other| &other.program), self.device)?;
        let mut best = (f64::INFINITY, candidates[0].choice);
        for (candidate, code) in &loaded {
            let time = match (self.time(&candidate.program, code, &memory), candidate.choice) {
                (Err(CudaError::Library { .. }), ProductMethod::Library(_)) => continue,
                (time, _) => time?,
            };
            if time < best.0 {
                best = (time, candidate.choice);
            }
        }
        Ok(best.1)
    }

    /// Seconds that the kernel takes at best.
    fn time(&self, program: &Launches, code: &Loaded, memory: &Memory) -> Result<f64, CudaError> {
        let address = |argument| memory.address(argument);
        let run = || {
            program.steps.iter().try_for_each(|step| match step {
                StreamOp::Clear { .. }
                | StreamOp::Copy { .. }
                | StreamOp::Exchange { .. }
                | StreamOp::Gather { .. }
                | StreamOp::Sum { .. } => Ok(()),
                // SAFETY: the function was rendered for buffers of these sizes.
                StreamOp::Launch(launch) => unsafe { code.launch(self.device, launch, &address) },
                // SAFETY: the product is one of buffers of these sizes.
                StreamOp::Product(product) => unsafe { code.multiply(self.device, product, &address) },
            })
        };
        let mut best = f64::INFINITY;
        for _ in 0..=TIMES {
            best = best.min(self.device.seconds(&run)?);
        }
        Ok(best)
    }
}

/// A choice as it is on the disk.
fn text(choice: ProductMethod) -> String {
    match choice {
        ProductMethod::Tile([rows, columns]) => format!("tile {rows} {columns}"),
        ProductMethod::Library(Algorithm { words, workspace }) => {
            format!("library {} {workspace}", words.map(|word| word.to_string()).join(" "))
        }
    }
}

fn parse(text: &str) -> Option<ProductMethod> {
    let (who, numbers) = text.split_once(' ')?;
    let numbers = numbers.split(' ').map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?;
    match (who, &numbers[..]) {
        ("tile", &[rows, columns]) => Some(ProductMethod::Tile([rows as usize, columns as usize])),
        ("library", [words @ .., workspace]) => {
            let words = words.try_into().ok()?;
            Some(ProductMethod::Library(Algorithm { words, workspace: *workspace as usize }))
        }
        _ => None,
    }
}

/// Memory for one kernel alone, with random numbers: how much power a product takes, and so how fast it is, depends on them.
struct Memory {
    buffers: BTreeMap<BufferId, DeviceMemory>,
    scratch: DeviceMemory,
}

impl Memory {
    /// Memory for any of these programs.
    fn new<'p>(
        alone: &Plan,
        programs: impl Iterator<Item = &'p Launches> + Clone,
        device: &Device,
    ) -> Result<Self, CudaError> {
        let steps = programs.clone().flat_map(|program| &program.steps);
        let arguments = steps.flat_map(|step| match step {
            StreamOp::Clear { .. }
            | StreamOp::Copy { .. }
            | StreamOp::Exchange { .. }
            | StreamOp::Gather { .. }
            | StreamOp::Sum { .. } => &[],
            StreamOp::Launch(launch) => &launch.arguments[..],
            StreamOp::Product(product) => &product.arguments[..],
        });
        let used: BTreeSet<_> = arguments
            .filter_map(|argument| match argument {
                Argument::Buffer(BufferOffset { buffer, .. }) => Some(*buffer),
                Argument::Scratch { .. } => None,
            })
            .collect();
        let filled = |buffer: BufferId| Ok((buffer, filled(&alone.graph.buffer(buffer).ty, device)?));
        let buffers = used.into_iter().map(filled).collect::<Result<_, CudaError>>()?;
        let scratch = programs.map(|program| program.scratch_bytes).max().unwrap_or(0);
        Ok(Memory { buffers, scratch: device.memory(scratch)? })
    }

    fn address(&self, argument: Argument) -> u64 {
        match argument {
            Argument::Buffer(BufferOffset { buffer, offset }) => self.buffers[&buffer].address(offset),
            Argument::Scratch { offset } => self.scratch.address(offset),
        }
    }
}

/// Memory of random numbers, always the same: a short pattern is written, and then copied on the device.
fn filled(ty: &TensorType, device: &Device) -> Result<DeviceMemory, CudaError> {
    let memory = device.memory(ty.bytes())?;
    let elements = ty.elements().min(PATTERN);
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let unit = (state >> 11) as f64 / (1u64 << 53) as f64;
        // Integers are indices, which kernels clamp; small ones are inside of most tables.
        if ty.dtype.is_float() { 2.0 * unit - 1.0 } else { (64.0 * unit).floor() }
    };
    let values: Vec<f64> = (0..elements).map(|_| draw()).collect();
    let pattern = match ty.dtype {
        // The bytes of a truth are 0 and 1.
        DType::Bool => values.iter().map(|value| *value as u8 % 2).collect(),
        dtype => Tensor::from_f64(&TensorType::new(dtype, [elements]), &values).bytes().to_vec(),
    };
    memory.write(0, &pattern)?;
    let mut done = pattern.len();
    while done < ty.bytes() {
        let bytes = done.min(ty.bytes() - done);
        // SAFETY: the memory has the type's bytes, of which `done` are written.
        unsafe { device.copy(memory.address(done), memory.address(0), bytes) }?;
        done += bytes;
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_were_written() {
        let algorithm = Algorithm { words: [u64::MAX, 1, 2, 3, 4, 5, 6, 7], workspace: 1 << 20 };
        for choice in [ProductMethod::Tile([64, 128]), ProductMethod::Library(algorithm)] {
            assert_eq!(parse(&text(choice)), Some(choice));
        }
        for broken in ["", "2", "tile 64", "library 1 2", "tile a b"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }
}
