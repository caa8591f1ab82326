//! Runs under way: what they take with them and what they bring back.

use super::device::{Device, DeviceMemory, failed};
use super::error::CudaError;
use super::layout::{ALIGNMENT, Delivery};
use super::nccl::Nccl;
use cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice, result, sys};
use kernfusion_codegen::{CodegenError, Outputs, Running};
use kernfusion_ir::kernel::{BufferId, Plan, ProgramPlan};
use kernfusion_ir::{Tensor, TensorType};
use std::sync::Arc;

/// A run that was started. It goes on whether somebody waits for it or not.
#[derive(Debug)]
pub(super) struct PendingRun {
    pub(super) slot: Arc<Slot>,
    pub(super) results: Arc<Results>,
}

impl Running for PendingRun {
    fn is_ready(&self) -> Result<bool, CodegenError> {
        self.slot.device.enter()?;
        Ok(self.slot.is_done()?)
    }

    fn wait(self: Box<Self>) -> Result<Outputs, CodegenError> {
        self.slot.wait()?;
        let bytes = self.slot.outputs.as_slice().map_err(failed("reading outputs"))?;
        Ok(self.results.read(bytes))
    }
}

/// Where the outputs of a program lie in a slot: those of the body for each microbatch, one behind another, then those of the
/// tail.
#[derive(Debug)]
pub(super) struct Results {
    pub(super) program: ProgramPlan,
    /// Of each plan.
    outputs: Vec<PlanOutputs>,
    pub(super) bytes: usize,
}

/// The outputs of a run of a plan.
#[derive(Debug)]
pub(super) struct PlanOutputs {
    /// Name, buffer, type, first byte.
    pub(super) tensors: Vec<(String, BufferId, TensorType, usize)>,
    pub(super) bytes: usize,
}

impl PlanOutputs {
    fn new(plan: &Plan) -> Self {
        let mut bytes = 0;
        let place = |(name, buffer, ty): &(String, BufferId, TensorType)| {
            let start = bytes;
            bytes += ty.bytes().next_multiple_of(ALIGNMENT);
            (name.clone(), *buffer, ty.clone(), start)
        };
        let tensors = plan.graph.outputs.iter().map(place).collect();
        PlanOutputs { tensors, bytes }
    }

    fn read(&self, bytes: &[u8]) -> Outputs {
        let output = |(name, _, ty, start): &(String, BufferId, TensorType, usize)| {
            let tensor = Tensor::from_bytes(ty, &bytes[*start..start + ty.bytes()]);
            (name.clone(), tensor.expect("the type's bytes"))
        };
        Outputs::new(self.tensors.iter().map(output).collect())
    }
}

impl Results {
    pub(super) fn new(program: ProgramPlan) -> Self {
        let outputs: Vec<_> = program.plans().map(|(plan, _)| PlanOutputs::new(plan)).collect();
        let bytes = program.plans().zip(&outputs).map(|((_, times), outputs)| times * outputs.bytes).sum();
        Results { program, outputs, bytes }
    }

    /// The plan of this number.
    pub(super) fn plan(&self, part: usize) -> &Plan {
        self.program.plans().nth(part).expect("one for each part").0
    }

    /// The outputs of the plan of this number.
    pub(super) fn outputs(&self, part: usize) -> &PlanOutputs {
        &self.outputs[part]
    }

    fn read(&self, bytes: &[u8]) -> Outputs {
        let body = &self.outputs[0];
        let Some(microbatches) = &self.program.microbatches else { return body.read(bytes) };
        let of_body = |index: usize| body.read(&bytes[index * body.bytes..]);
        let parts: Vec<_> = (0..microbatches.count).map(of_body).collect();
        let tail = self.outputs[1].read(&bytes[microbatches.count * body.bytes..]);
        Outputs::joined(microbatches, &parts, &tail)
    }
}

/// What one run takes with it, so that another may be started meanwhile.
///
/// ```text
/// copies:  batch ──► staging ─┐ (copied)
/// program:                    └─► inputs ──► kernels ──► outputs (done)
/// ```
///
/// `batch` and `outputs` are pinned memory of the CPU, `staging` is memory of the device: the batch waits there while the
/// kernels of the run before still read their inputs.
#[derive(Debug)]
pub(super) struct Slot {
    device: Device,
    batch: PinnedHostSlice<u8>,
    staging: DeviceMemory,
    /// Of the inputs: no memory is smaller than a byte, but a program may have none.
    input_bytes: usize,
    outputs: PinnedHostSlice<u8>,
    copied: CudaEvent,
    done: CudaEvent,
    /// Where the program exchanges with other ranks.
    nccl: Option<Arc<Nccl>>,
}

impl Slot {
    pub(super) fn new(
        device: &Device,
        nccl: Option<&Arc<Nccl>>,
        input_bytes: usize,
        output_bytes: usize,
    ) -> Result<Self, CudaError> {
        let staging = device.memory(input_bytes)?;
        // Its zeros are written by the stream of the programs, its batches by the other one.
        device.wait("allocating memory")?;
        let pinned = |bytes: usize, flags| {
            // SAFETY: its bytes are written before anything reads them.
            unsafe { device.context.alloc_pinned_with_flags(bytes.max(1), flags) }
                .map_err(failed("allocating pinned memory"))
        };
        let event = || device.context.new_event(None).map_err(failed("making an event"));
        Ok(Slot {
            // The CPU only writes batches, and only reads outputs.
            batch: pinned(input_bytes, sys::CU_MEMHOSTALLOC_WRITECOMBINED)?,
            outputs: pinned(output_bytes, 0)?,
            staging,
            input_bytes,
            copied: event()?,
            done: event()?,
            nccl: nccl.cloned(),
            device: device.clone(),
        })
    }

    fn is_done(&self) -> Result<bool, CudaError> {
        self.done.try_is_complete().map_err(failed("running the program"))
    }

    /// Waits until the run is over.
    fn wait(&self) -> Result<(), CudaError> {
        self.device.enter()?;
        if let Some(nccl) = &self.nccl {
            return nccl.wait_until(&|| self.is_done());
        }
        self.done.synchronize().map_err(failed("running the program"))
    }

    /// The memory for a batch, when the run before does not need it any more.
    pub(super) fn batch(&mut self) -> Result<&mut [u8], CudaError> {
        self.wait()?;
        let batch = self.batch.as_mut_slice().map_err(failed("waiting for a batch"))?;
        Ok(&mut batch[..self.input_bytes])
    }

    /// Copies the batch at once to the staging memory, for what is started from now on.
    pub(super) fn send(&self) -> Result<(), CudaError> {
        if self.input_bytes == 0 {
            return Ok(());
        }
        let Device { stream, copies, .. } = &self.device;
        let batch = self.batch.as_slice().map_err(failed("copying a batch"))?;
        let batch = &batch[..self.input_bytes];
        // SAFETY: the staging memory is as large; both stay as they are until the run is over, which `batch` and dropping
        // wait for.
        unsafe { result::memcpy_htod_async(self.staging.address(0), batch, copies.cu_stream()) }
            .map_err(failed("copying a batch"))?;
        self.record(&self.copied, copies)?;
        stream.wait(&self.copied).map_err(failed("copying a batch"))
    }

    /// Copies from the staging memory to the inputs of a program, when the programs before are done with them.
    ///
    /// # Safety
    /// There are as many bytes at `to`.
    pub(super) unsafe fn deliver(&self, delivery: Delivery, to: sys::CUdeviceptr) -> Result<(), CudaError> {
        assert!(delivery.from + delivery.bytes <= self.input_bytes, "the batch was laid out");
        // SAFETY: checked, and the caller's promise.
        unsafe { self.device.copy(to, self.staging.address(delivery.from), delivery.bytes) }
    }

    /// Copies an output from the device, behind what runs there.
    ///
    /// # Safety
    /// The device's memory has that many bytes there.
    pub(super) unsafe fn receive(
        &self,
        start: usize,
        from: sys::CUdeviceptr,
        bytes: usize,
    ) -> Result<(), CudaError> {
        assert!(start + bytes <= self.outputs.len(), "the outputs were laid out together");
        if bytes == 0 {
            return Ok(());
        }
        let first = self.outputs.as_ptr().map_err(failed("reading outputs"))?;
        let stream = self.device.stream.cu_stream();
        // SAFETY: checked, and the caller's promise; these bytes are not read before `done`.
        unsafe { sys::cuMemcpyDtoHAsync_v2(first.add(start).cast_mut().cast(), from, bytes, stream) }
            .result()
            .map_err(failed("reading outputs"))
    }

    /// All of the run was started.
    pub(super) fn finish(&self) -> Result<(), CudaError> {
        self.record(&self.done, &self.device.stream)
    }

    fn record(&self, event: &CudaEvent, stream: &CudaStream) -> Result<(), CudaError> {
        event.record(stream).map_err(failed("recording an event"))
    }
}

impl Drop for Slot {
    /// The device may still copy from and to its memory, also if a run failed half-way.
    fn drop(&mut self) {
        // An error stays with the device; its next use reports it.
        let _ = self.device.wait("running the program");
        let _ = self.device.copies.synchronize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::DType;
    use kernfusion_ir::kernel::KernelGraph;

    #[test]
    fn outputs_lie_apart() {
        let ty = |length: usize| TensorType::new(DType::F32, [length]);
        let outputs = vec![("a".to_string(), BufferId(3), ty(65)), ("b".to_string(), BufferId(1), ty(1))];
        let graph = KernelGraph { outputs, ..KernelGraph::default() };
        let results = PlanOutputs::new(&Plan { graph, places: vec![], arena_bytes: 0, preparation: 0 });
        let starts: Vec<_> =
            results.tensors.iter().map(|(name, buffer, _, start)| (name.as_str(), *buffer, *start)).collect();
        assert_eq!(starts, [("a", BufferId(3), 0), ("b", BufferId(1), 512)]);
        assert_eq!(results.bytes, 768);
    }
}
