//! What ranks exchange: a communicator moves the parts, and sums are taken here.
//!
//! Sums that a body accumulates are exchanged beside it: as soon as its last microbatch has added to one, a thread of its own begins
//! ([`Worker`]), in the memory of the sum. The tail's kernel then waits for what is left. All that the tail exchanges goes through that thread, since
//! ranks have to make the same exchanges in the same order.

use kernfusion_codegen::{CodegenError, CommunicationError, Communicator, part_of};
use kernfusion_ir::kernel::{Bucket, CollectiveCall, Form, Kernel, KernelGraph, Microbatches, ProgramPlan};
use kernfusion_ir::{Collective, DType, Exchange, TensorType};
use kernfusion_runtime::launch::Pointers;
use kernfusion_runtime::memory::Block;
use kernfusion_runtime::parts::{sum_bf16, sum_f32};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Alignment of each sum's part in what a rank sends.
const ALIGNMENT: usize = 64;

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

    /// Lets a worker exchange.
    pub(super) fn employ(&mut self, worker: &Arc<Worker>) {
        self.worker = Some(worker.clone());
    }

    /// Lets the worker begin to sum up together what these give, where it lies; nothing else may touch that until [`ExchangeCode::run`] of each is over.
    ///
    /// # Safety
    /// The buffers of what is summed have memory of their sizes until then.
    pub(super) unsafe fn begin(codes: &mut [&mut ExchangeCode], pointers: &Pointers) {
        let Some(worker) = codes.first().and_then(|code| code.worker.clone()) else { return };
        let sums = codes.iter().map(|code| {
            let from = pointers.get(code.call.from);
            let own =
                if code.call.op.exchange == Exchange::ReduceScatter { code.transfer.own().start } else { 0 };
            Sum { transfer: code.transfer.clone(), from: Address(from), to: Address(from.wrapping_add(own)) }
        });
        // SAFETY: the caller's contract.
        let begun = unsafe { worker.begin(sums.collect(), None) };
        codes.iter_mut().for_each(|code| code.begun = Some(begun.clone()));
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
                    Some(worker) => {
                        let sum =
                            Sum { transfer: self.transfer.clone(), from: Address(from), to: Address(to) };
                        worker.begin(vec![sum], Some(scratch)).wait()
                    }
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
        // SAFETY: the caller's contract.
        unsafe {
            let given = from_raw_parts(from, self.ty.bytes());
            let parts = from_raw_parts_mut(scratch, stride * self.op.ranks);
            match &self.communicator {
                Some(communicator) => communicator.exchange(given, self.part(), parts, stride)?,
                None => parts[..given.len()].copy_from_slice(given),
            }
            self.add(scratch, stride, sum, own);
        }
        Ok(())
    }

    /// Adds up the parts of all ranks, which begin `stride` bytes after each other.
    ///
    /// # Safety
    /// The parts and the sum have `bytes` bytes.
    unsafe fn add(&self, parts: *const u8, stride: usize, sum: *mut u8, bytes: usize) {
        let count = bytes / self.ty.dtype.size();
        // SAFETY: the caller's contract.
        unsafe {
            match self.ty.dtype {
                DType::BF16 => sum_bf16(parts, stride, self.op.ranks, sum, count),
                _ => sum_f32(parts, stride, self.op.ranks, sum, count),
            }
        }
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

/// An exchange in some memory.
#[derive(Debug)]
struct Sum {
    transfer: Transfer,
    from: Address,
    to: Address,
}

#[derive(Debug)]
struct Job {
    /// What is exchanged together.
    sums: Vec<Sum>,
    /// For the parts of all ranks; the worker has some of its own.
    scratch: Option<Address>,
    begun: Arc<Begun>,
}

#[derive(Debug)]
struct Address(*mut u8);

// SAFETY: the memory of a job is lent until the job is done.
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
            match &*done {
                Some(result) => return result.clone(),
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
    /// As [`Transfer::run`] of each, until the exchange is done. Without memory for parts, it is one for which the worker was made.
    unsafe fn begin(&self, sums: Vec<Sum>, scratch: Option<*mut u8>) -> Arc<Begun> {
        let begun = Arc::<Begun>::default();
        let job = Job { sums, scratch: scratch.map(Address), begun: begun.clone() };
        let jobs = self.jobs.as_ref().expect("a worker works until it is dropped");
        jobs.send(job).expect("its thread ends after the last job");
        begun
    }
}

fn work(queue: &Receiver<Job>, own: &Block) {
    for Job { sums, scratch, begun } in queue {
        let scratch = scratch.map_or(own.as_ptr(), |Address(scratch)| scratch);
        // SAFETY: its memory is lent until it is done.
        let exchange = || unsafe {
            match &sums[..] {
                [sum] => sum.transfer.run(sum.from.0, scratch, sum.to.0),
                sums => together(sums, scratch),
            }
        };
        // Somebody waits for it, whatever happens.
        let result = catch_unwind(AssertUnwindSafe(exchange)).unwrap_or_else(|_| {
            Err(CommunicationError::Library { what: "the thread that exchanges has panicked".into() })
        });
        *begun.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        begun.changed.notify_all();
    }
}

/// Exchanges sums as one: what each rank gets of all of them lies side by side.
///
/// ```text
/// given    a₀ a₁ | b₀ b₁        sent     a₀ b₀ | a₁ b₁        received by rank 0    a₀ b₀ of rank 0 | a₀ b₀ of rank 1
/// ```
///
/// # Safety
/// As [`Transfer::run`] of each; `scratch` has the bytes of a [`Packing`].
unsafe fn together(sums: &[Sum], scratch: *mut u8) -> Result<(), CommunicationError> {
    let transfers = || sums.iter().map(|sum| &sum.transfer);
    let Some(communicator) = transfers().next().and_then(|first| first.communicator.clone()) else {
        unreachable!("a rank that is alone begins nothing early")
    };
    let (ranks, rank) = (communicator.ranks(), communicator.rank());
    let packing = Packing::new(transfers());
    let part = |sum: &Sum, rank: usize| part_of(rank, sum.transfer.part(), sum.transfer.ty.bytes());
    // SAFETY: the caller's contract; the scratch is as long as what is sent and what is received.
    unsafe {
        let (sent, received) = (scratch, scratch.add(ranks * packing.part));
        for (sum, &at) in sums.iter().zip(&packing.starts) {
            for rank in 0..ranks {
                let (own, to) = (part(sum, rank), sent.add(rank * packing.part + at));
                to.copy_from_nonoverlapping(sum.from.0.add(own.start), own.len());
            }
        }
        let all = from_raw_parts_mut(sent, ranks * packing.part);
        let parts = from_raw_parts_mut(received, ranks * packing.part);
        communicator.exchange(all, packing.part, parts, packing.part)?;
        // What was sent is not needed any more: the sums that every rank gets take its place.
        let gathered = sums.iter().filter(|sum| sum.transfer.op.exchange == Exchange::AllReduce);
        let gathering = Packing::new(gathered.clone().map(|sum| &sum.transfer));
        let mut places = gathering.starts.iter();
        for (sum, &at) in sums.iter().zip(&packing.starts) {
            let to = match sum.transfer.op.exchange {
                Exchange::AllReduce => sent.add(rank * gathering.part + places.next().expect("one for each")),
                Exchange::ReduceScatter | Exchange::AllGather => sum.to.0,
            };
            sum.transfer.add(received.add(at), packing.part, to, part(sum, rank).len());
        }
        if gathering.part == 0 {
            return Ok(());
        }
        communicator.gather(from_raw_parts_mut(sent, ranks * gathering.part), gathering.part)?;
        for (sum, &at) in gathered.zip(&gathering.starts) {
            for rank in 0..ranks {
                let (own, from) = (part(sum, rank), sent.add(rank * gathering.part + at));
                sum.to.0.add(own.start).copy_from_nonoverlapping(from, own.len());
            }
        }
    }
    Ok(())
}

/// How parts of several sums lie side by side, for each rank.
struct Packing {
    /// Where the part of each begins.
    starts: Vec<usize>,
    /// Bytes of all of them.
    part: usize,
}

impl Packing {
    fn new<'a>(transfers: impl Iterator<Item = &'a Transfer>) -> Self {
        let mut part = 0;
        let mut place = |transfer: &Transfer| {
            let start = part;
            part += transfer.part().next_multiple_of(ALIGNMENT);
            start
        };
        Packing { starts: transfers.map(&mut place).collect(), part }
    }
}

/// Bytes that a [`Worker`] needs for the buckets of a program.
pub(super) fn bucket_bytes(program: &ProgramPlan) -> usize {
    let Some(Microbatches { tail, ranks, .. }) = &program.microbatches else { return 0 };
    let bytes = |bucket: Bucket| {
        let transfers = bucket.kernels.iter().filter_map(|&kernel| match &tail.graph.kernels[kernel].form {
            Form::Collective(call) => {
                let ty = tail.graph.buffer(call.from).ty.clone();
                Some(Transfer { op: call.op, ty, communicator: None })
            }
            Form::Map | Form::Reduce | Form::Contraction(_) | Form::Loop(_) => None,
        });
        let transfers: Vec<_> = transfers.collect();
        match &transfers[..] {
            [one] => one.op.scratch_bytes(&one.ty),
            several => 2 * ranks * Packing::new(several.iter()).part,
        }
    };
    program.buckets().into_iter().map(bytes).max().unwrap_or(0)
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        // It has nothing left to say.
        self.thread.take().map(JoinHandle::join);
    }
}
