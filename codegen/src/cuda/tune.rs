//! Tiles of products by measurement. Which tile suits a product depends on the card, and no rule of ours knows all of them:
//! each tile that fits is timed on the device, in memory of its own, and the choice is kept on disk beside the cubins.
//!
//! A tile decides who computes an entry, not how: every sum has the same order. So results are the same bits whatever is
//! chosen, and tuning costs nothing but time.

use super::contraction::TILES;
use super::device::{Code, Device, DeviceMemory};
use super::error::CudaError;
use super::nvrtc::whole_source;
use super::program::{Argument, Program, Step};
use super::{Cache, Options, Renderer};
use crate::CodegenError;
use kernfusion_ir::kernel::{BufferId, Form, KernelGraph, Plan, Spot};
use std::collections::BTreeMap;

/// Times that each tile is measured; the best counts.
const TIMES: usize = 5;

/// A tile and what its kernel is rendered to.
struct Candidate {
    tile: [usize; 2],
    renderer: Renderer,
    program: Program,
}

/// Chooses a tile for each kind of kernel with products, before the renderer renders the plan.
///
/// # Errors
/// NVRTC is missing, or the driver reports an error.
pub(super) fn choose(
    renderer: &mut Renderer,
    plan: &Plan,
    device: &Device,
    cache: &Cache,
) -> Result<(), CodegenError> {
    for kernel in plan.graph.kernels.iter().filter(|kernel| matches!(kernel.form, Form::Contraction(_))) {
        let key = renderer.key(plan, kernel);
        if renderer.tiles.contains_key(&key) {
            continue;
        }
        let graph = KernelGraph { kernels: vec![kernel.clone()], ..plan.graph.clone() };
        let alone = Plan { graph, ..plan.clone() };
        let candidates = candidates(&alone, renderer.options())?;
        if let Some(tile) = chosen(&alone, &candidates, device, cache)? {
            renderer.tiles.insert(key, tile);
        }
    }
    Ok(())
}

/// The tiles that make a difference.
fn candidates(alone: &Plan, options: &Options) -> Result<Vec<Candidate>, CodegenError> {
    let mut found: Vec<Candidate> = vec![];
    for tile in TILES {
        let mut renderer = Renderer::new(Options { tile: Some(tile), ..options.clone() });
        let program = renderer.program(alone)?;
        if found.iter().all(|other| other.renderer.functions() != renderer.functions()) {
            found.push(Candidate { tile, renderer, program });
        }
    }
    Ok(found)
}

/// The best of some tiles, from the disk if it is there; `None` if there is nothing to choose, or no memory to measure in.
fn chosen(
    alone: &Plan,
    candidates: &[Candidate],
    device: &Device,
    cache: &Cache,
) -> Result<Option<[usize; 2]>, CodegenError> {
    if candidates.len() < 2 {
        return Ok(None);
    }
    let mut identity = vec![device.name()?, device.driver_version()?.to_string()];
    let functions = candidates.iter().flat_map(|candidate| candidate.renderer.functions());
    identity.extend(functions.map(whole_source));
    let architecture = device.architecture()?;
    let measured = || {
        let loaded = |candidate: &Candidate| {
            let load = |at| Ok((at, device.load(&candidate.renderer.functions()[at], &architecture, cache)?));
            candidate.program.functions().into_iter().map(load).collect()
        };
        let codes = candidates.iter().map(loaded).collect::<Result<Vec<_>, CudaError>>()?;
        let mut best = (f64::INFINITY, 0);
        for (number, (candidate, code)) in candidates.iter().zip(&codes).enumerate() {
            let time = time(alone, &candidate.program, device, code)?;
            if time < best.0 {
                best = (time, number);
            }
        }
        Ok(best.1.to_string().into_bytes())
    };
    let choice = match cache.choice(&identity, &architecture, measured) {
        Ok(choice) => choice,
        // The program may still fit: it is smaller than what it is measured beside.
        Err(CudaError::Memory { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let number = std::str::from_utf8(&choice).ok().and_then(|text| text.parse::<usize>().ok());
    Ok(number.and_then(|number| candidates.get(number)).map(|candidate| candidate.tile))
}

/// Seconds that a kernel takes at best.
fn time(
    alone: &Plan,
    program: &Program,
    device: &Device,
    functions: &BTreeMap<usize, Code>,
) -> Result<f64, CudaError> {
    let memory = Memory::new(alone, program, device)?;
    let run = || {
        program.steps.iter().try_for_each(|step| match step {
            Step::Clear { .. } | Step::Copy(_) => Ok(()),
            Step::Launch(launch) => {
                let addresses: Vec<_> =
                    launch.arguments.iter().map(|argument| memory.address(*argument)).collect();
                // SAFETY: the function was rendered for buffers of these sizes.
                unsafe { device.launch(&functions[&launch.function], launch.grid, &addresses) }
            }
        })
    };
    let mut best = f64::INFINITY;
    for _ in 0..=TIMES {
        best = best.min(device.seconds(&run)?);
    }
    Ok(best)
}

/// Memory for one kernel alone: zeros, which any index may be.
struct Memory {
    buffers: BTreeMap<BufferId, DeviceMemory>,
    scratch: DeviceMemory,
}

impl Memory {
    fn new(alone: &Plan, program: &Program, device: &Device) -> Result<Self, CudaError> {
        let mut buffers = BTreeMap::new();
        for step in &program.steps {
            let Step::Launch(launch) = step else { continue };
            for argument in &launch.arguments {
                if let Argument::Buffer(Spot { buffer, .. }) = argument
                    && !buffers.contains_key(buffer)
                {
                    buffers.insert(*buffer, device.memory(alone.graph.buffer(*buffer).ty.bytes())?);
                }
            }
        }
        Ok(Memory { buffers, scratch: device.memory(program.scratch_bytes)? })
    }

    fn address(&self, argument: Argument) -> u64 {
        match argument {
            Argument::Buffer(Spot { buffer, offset }) => self.buffers[&buffer].address(offset),
            Argument::Scratch { offset } => self.scratch.address(offset),
        }
    }
}
