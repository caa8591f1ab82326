//! What ranks exchange: a communicator moves the parts, and sums are taken here.

use kernfusion_codegen::{CodegenError, Communicator, part_of};
use kernfusion_ir::kernel::{CollectiveCall, Kernel, KernelGraph};
use kernfusion_ir::{DType, Exchange, TensorType};
use kernfusion_runtime::launch::Pointers;
use kernfusion_runtime::parts::{sum_bf16, sum_f32};
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::Arc;

/// A kernel that exchanges.
#[derive(Debug)]
pub(super) struct ExchangeCode {
    call: CollectiveCall,
    /// The type of what each rank gives.
    ty: TensorType,
    /// The way to the others; a rank that is alone needs none.
    communicator: Option<Arc<dyn Communicator>>,
}

impl ExchangeCode {
    /// # Errors
    /// The communicator does not have as many ranks as the program.
    pub(super) fn new(
        graph: &KernelGraph,
        kernel: &Kernel,
        call: CollectiveCall,
        communicator: Option<&Arc<dyn Communicator>>,
    ) -> Result<Self, CodegenError> {
        let there = communicator.map_or(1, |it| it.ranks());
        if there != call.op.ranks {
            let what = format!("an exchange among {} ranks where there are {there}", call.op.ranks);
            return Err(CodegenError::Unsupported { kernel: kernel.name.clone(), what });
        }
        let ty = graph.buffer(call.from).ty.clone();
        Ok(ExchangeCode { call, ty, communicator: communicator.cloned() })
    }

    /// Exchanges with all ranks.
    ///
    /// # Safety
    /// The buffers that the kernel touches have memory of their sizes.
    pub(super) unsafe fn run(&self, pointers: &Pointers) -> Result<(), CodegenError> {
        let CollectiveCall { op, from, to, .. } = self.call;
        let (bytes, size) = (self.ty.bytes(), self.ty.dtype.size());
        if bytes == 0 {
            return Ok(());
        }
        let rank = self.communicator.as_ref().map_or(0, |it| it.rank());
        let part = op.part(&self.ty) * size;
        let own = part_of(rank, part, bytes);
        let (from, to) = (pointers.get(from), pointers.get(to));
        // SAFETY: the caller's contract; the plan gives the buffers memory that does not overlap.
        unsafe {
            match op.exchange {
                Exchange::AllReduce => {
                    self.sum(from, part, pointers, to.add(own.start), own.len())?;
                    self.gather(from_raw_parts_mut(to, bytes), part)
                }
                Exchange::ReduceScatter => self.sum(from, part, pointers, to, own.len()),
                Exchange::AllGather => {
                    to.add(rank * bytes).copy_from_nonoverlapping(from, bytes);
                    self.gather(from_raw_parts_mut(to, bytes * op.ranks), bytes)
                }
            }
        }
    }

    /// The sum of this rank's part of what each of them gives: `own` bytes, in ascending order of ranks.
    ///
    /// # Safety
    /// As [`ExchangeCode::run`].
    unsafe fn sum(
        &self,
        from: *const u8,
        part: usize,
        pointers: &Pointers,
        sum: *mut u8,
        own: usize,
    ) -> Result<(), CodegenError> {
        let CollectiveCall { op, scratch, .. } = self.call;
        let scratch = pointers.get(scratch.expect("the plan gives sums room for parts"));
        let stride = op.scratch_bytes(&self.ty) / op.ranks;
        let count = own / self.ty.dtype.size();
        // SAFETY: the caller's contract.
        unsafe {
            let (given, parts) =
                (from_raw_parts(from, self.ty.bytes()), from_raw_parts_mut(scratch, stride * op.ranks));
            match &self.communicator {
                Some(communicator) => communicator.exchange(given, part, parts, stride)?,
                None => parts[..given.len()].copy_from_slice(given),
            }
            match self.ty.dtype {
                DType::BF16 => sum_bf16(scratch, stride, op.ranks, sum, count),
                _ => sum_f32(scratch, stride, op.ranks, sum, count),
            }
        }
        Ok(())
    }

    fn gather(&self, all: &mut [u8], part: usize) -> Result<(), CodegenError> {
        Ok(self.communicator.as_ref().map_or(Ok(()), |communicator| communicator.gather(all, part))?)
    }
}
