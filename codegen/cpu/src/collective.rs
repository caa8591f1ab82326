//! What ranks exchange: a communicator moves the parts, and sums are taken here.
//!
//! Sums that a body accumulates are exchanged beside it: as soon as its last microbatch has added to one, a thread of its own begins
//! ([`Worker`]), in the memory of the sum. The tail's kernel then waits for what is left. All that the tail exchanges goes through that thread, since
//! ranks have to make the same exchanges in the same order.

use kernfusion_codegen::{CodegenError, CommunicationError, Communicator, part_of};
use kernfusion_ir::kernel::{BufferId, CollectiveCall, Kernel, KernelGraph};
use kernfusion_ir::{Collective, DType, Exchange, TensorType};
use kernfusion_runtime::launch::Pointers;
use kernfusion_runtime::memory::Block;
use kernfusion_runtime::parts::{sum_bf16, sum_f32};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A kernel that exchanges.
#[derive(Debug)]
pub(super) struct ExchangeCode {
    call: CollectiveCall,
    transfer: Transfer,
    /// Who exchanges, if not the thread that runs the program.
    worker: Option<Arc<Worker>>,
    /// If it has begun already.
    begun: Option<Arc<Begun>>,
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
        let transfer = Transfer { op: call.op, ty, communicator: communicator.cloned() };
        Ok(ExchangeCode { call, transfer, worker: None, begun: None })
    }

    /// The buffer of what is summed, if something is.
    pub(super) fn summed(&self) -> Option<BufferId> {
        (self.call.op.exchange != Exchange::AllGather).then_some(self.call.from)
    }

    /// Bytes of memory that the parts of all ranks need.
    pub(super) fn scratch_bytes(&self) -> usize {
        self.call.op.scratch_bytes(&self.transfer.ty)
    }

    /// Lets a worker exchange.
    pub(super) fn employ(&mut self, worker: &Arc<Worker>) {
        self.worker = Some(worker.clone());
    }

    /// Lets the worker begin to sum up in the memory of what this rank gives, which nothing else may touch until [`ExchangeCode::run`] is over.
    ///
    /// # Safety
    /// The buffer of what is summed has memory of its size until then.
    pub(super) unsafe fn begin(&mut self, pointers: &Pointers) {
        let from = pointers.get(self.call.from);
        let to = match self.call.op.exchange {
            Exchange::ReduceScatter => from.wrapping_add(self.transfer.own().start),
            Exchange::AllReduce | Exchange::AllGather => from,
        };
        // SAFETY: the caller's contract.
        self.begun =
            self.worker.as_ref().map(|worker| unsafe { worker.begin(&self.transfer, from, None, to) });
    }

    /// Waits for what has begun.
    pub(super) fn finish(&mut self) -> Option<Result<(), CommunicationError>> {
        self.begun.take().map(|begun| begun.wait())
    }

    /// Exchanges with all ranks.
    ///
    /// # Safety
    /// The buffers that the kernel touches have memory of their sizes.
    pub(super) unsafe fn run(&mut self, pointers: &Pointers) -> Result<(), CodegenError> {
        let (from, to) = (pointers.get(self.call.from), pointers.get(self.call.to));
        let Some(done) = self.finish() else {
            let scratch = self.call.scratch.map_or(std::ptr::null_mut(), |scratch| pointers.get(scratch));
            // SAFETY: the caller's contract; the plan gives the buffers memory that does not overlap, but for a sum that every rank gets.
            return Ok(unsafe {
                match &self.worker {
                    Some(worker) => worker.begin(&self.transfer, from, Some(scratch), to).wait(),
                    None => self.transfer.run(from, scratch, to),
                }
            }?);
        };
        done?;
        let found = match self.call.op.exchange {
            Exchange::ReduceScatter => self.transfer.own(),
            Exchange::AllReduce | Exchange::AllGather => 0..self.transfer.ty.bytes(),
        };
        if from != to {
            // SAFETY: as above.
            unsafe { to.copy_from_nonoverlapping(from.add(found.start), found.len()) };
        }
        Ok(())
    }
}

/// What is exchanged, and with whom.
#[derive(Debug, Clone)]
struct Transfer {
    op: Collective,
    /// The type of what each rank gives.
    ty: TensorType,
    /// The way to the others; a rank that is alone needs none.
    communicator: Option<Arc<dyn Communicator>>,
}

impl Transfer {
    /// Bytes of what each rank sums.
    fn part(&self) -> usize {
        self.op.part(&self.ty) * self.ty.dtype.size()
    }

    fn rank(&self) -> usize {
        self.communicator.as_ref().map_or(0, |communicator| communicator.rank())
    }

    /// The place of this rank's part.
    fn own(&self) -> std::ops::Range<usize> {
        part_of(self.rank(), self.part(), self.ty.bytes())
    }

    /// Exchanges what is at `from`.
    ///
    /// # Safety
    /// All have memory of their sizes. A sum may be written where the operand is, its own part where that is; else nothing overlaps.
    unsafe fn run(&self, from: *mut u8, scratch: *mut u8, to: *mut u8) -> Result<(), CommunicationError> {
        let (bytes, own) = (self.ty.bytes(), self.own());
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's contract.
        unsafe {
            match self.op.exchange {
                Exchange::AllReduce => {
                    self.sum(from, scratch, to.add(own.start), own.len())?;
                    self.gather(from_raw_parts_mut(to, bytes), self.part())
                }
                Exchange::ReduceScatter => self.sum(from, scratch, to, own.len()),
                Exchange::AllGather => {
                    to.add(self.rank() * bytes).copy_from_nonoverlapping(from, bytes);
                    self.gather(from_raw_parts_mut(to, bytes * self.op.ranks), bytes)
                }
            }
        }
    }

    /// The sum of this rank's part of what each of them gives: `own` bytes, in ascending order of ranks.
    ///
    /// # Safety
    /// As [`Transfer::run`].
    unsafe fn sum(
        &self,
        from: *const u8,
        scratch: *mut u8,
        sum: *mut u8,
        own: usize,
    ) -> Result<(), CommunicationError> {
        let stride = self.op.scratch_bytes(&self.ty) / self.op.ranks;
        let count = own / self.ty.dtype.size();
        // SAFETY: the caller's contract.
        unsafe {
            let given = from_raw_parts(from, self.ty.bytes());
            let parts = from_raw_parts_mut(scratch, stride * self.op.ranks);
            match &self.communicator {
                Some(communicator) => communicator.exchange(given, self.part(), parts, stride)?,
                None => parts[..given.len()].copy_from_slice(given),
            }
            match self.ty.dtype {
                DType::BF16 => sum_bf16(scratch, stride, self.op.ranks, sum, count),
                _ => sum_f32(scratch, stride, self.op.ranks, sum, count),
            }
        }
        Ok(())
    }

    fn gather(&self, all: &mut [u8], part: usize) -> Result<(), CommunicationError> {
        self.communicator.as_ref().map_or(Ok(()), |communicator| communicator.gather(all, part))
    }
}

/// A thread that makes exchanges one after another, while others compute.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Job {
    transfer: Transfer,
    from: Address,
    /// For the parts of all ranks; the worker has some of its own.
    scratch: Option<Address>,
    to: Address,
    begun: Arc<Begun>,
}

#[derive(Debug)]
struct Address(*mut u8);

// SAFETY: whoever makes a job lends its memory until the job is done.
unsafe impl Send for Address {}

/// An exchange under way.
#[derive(Debug, Default)]
struct Begun {
    done: Mutex<Option<Result<(), CommunicationError>>>,
    changed: Condvar,
}

impl Begun {
    fn wait(&self) -> Result<(), CommunicationError> {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match done.take() {
                Some(result) => return result,
                None => done = self.changed.wait(done).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Worker {
    /// With memory for the parts of all ranks of one sum.
    ///
    /// # Errors
    /// Memory is short, or there is no thread.
    pub(super) fn new(scratch_bytes: usize) -> Result<Self, CodegenError> {
        let scratch = Block::new(scratch_bytes)?;
        let (jobs, queue) = channel();
        let thread = std::thread::Builder::new().name("ranks".into());
        let thread =
            thread.spawn(move || work(&queue, &scratch)).map_err(|cause| CommunicationError::Library {
                what: format!("there is no thread to exchange beside the others: {cause}"),
            })?;
        Ok(Worker { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Begins an exchange after those that have begun before.
    ///
    /// # Safety
    /// As [`Transfer::run`], until the exchange is done; without memory for parts, those are not larger than what the worker was made with.
    unsafe fn begin(
        &self,
        transfer: &Transfer,
        from: *mut u8,
        scratch: Option<*mut u8>,
        to: *mut u8,
    ) -> Arc<Begun> {
        let (transfer, begun) = (transfer.clone(), Arc::<Begun>::default());
        let (from, scratch, to) = (Address(from), scratch.map(Address), Address(to));
        let job = Job { transfer, from, scratch, to, begun: begun.clone() };
        let jobs = self.jobs.as_ref().expect("a worker works until it is dropped");
        jobs.send(job).expect("its thread ends after the last job");
        begun
    }
}

fn work(queue: &Receiver<Job>, own: &Block) {
    for Job { transfer, from, scratch, to, begun } in queue {
        let scratch = scratch.map_or(own.as_ptr(), |Address(scratch)| scratch);
        // SAFETY: whoever began it lends its memory until it is done.
        let exchange = || unsafe { transfer.run(from.0, scratch, to.0) };
        // Somebody waits for it, whatever happens.
        let result = catch_unwind(AssertUnwindSafe(exchange)).unwrap_or_else(|_| {
            Err(CommunicationError::Library { what: "the thread that exchanges has panicked".into() })
        });
        *begun.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        begun.changed.notify_all();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        // It has nothing left to say.
        self.thread.take().map(JoinHandle::join);
    }
}
