//! What ranks exchange: a communicator moves the parts, and sums are taken here.
//!
//! Sums that a body accumulates are exchanged beside it: as soon as its last microbatch has added to one, a thread of its own begins
//! ([`Worker`]), in the memory of the sum. The tail's kernel then waits for what is left. All that the tail exchanges goes through that thread, since
//! ranks have to make the same exchanges in the same order.

use kernfusion_codegen::{
    CodegenError, Collectives, CommunicationError, Communicator, LibraryCollectives, part_of,
};
use kernfusion_ir::kernel::{Bucket, CollectiveCall, Form, Kernel, KernelGraph, Microbatches, ProgramPlan};
use kernfusion_ir::{Collective, DType, Exchange, TensorType};
use kernfusion_runtime::launch::Pointers;
use kernfusion_runtime::memory::Block;
use kernfusion_runtime::parts::{narrow_f32, sum_bf16, sum_bf16_to_f32, sum_f32};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Alignment of each sum's part in what a rank sends.
const ALIGNMENT: usize = 64;

/// The way to the other ranks, and who sums what they exchange.
pub(super) type Exchanging<'a> = (Option<&'a Arc<dyn Communicator>>, Collectives);

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
        (communicator, collectives): Exchanging<'_>,
    ) -> Result<Self, CodegenError> {
        let there = communicator.map_or(1, |it| it.ranks());
        if there != call.op.ranks {
            let what = format!("an exchange among {} ranks where there are {there}", call.op.ranks);
            return Err(CodegenError::Unsupported { kernel: kernel.name.clone(), what });
        }
        let ty = graph.buffer(call.from).ty.clone();
        let transfer = Transfer { op: call.op, ty, communicator: communicator.cloned(), collectives };
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
    /// Who sums.
    collectives: Collectives,
}

impl Transfer {
    /// Bytes of what each rank sums.
    fn part(&self) -> usize {
        self.op.part(&self.ty) * self.ty.dtype.size()
    }

    /// Bytes of that as it is sent.
    fn sent_part(&self) -> usize {
        self.op.part(&self.ty) * self.op.sent_dtype(&self.ty).size()
    }

    /// The elements of the sum that a rank computes.
    fn elements(&self, rank: usize) -> std::ops::Range<usize> {
        part_of(rank, self.op.part(&self.ty), self.ty.elements())
    }

    /// The library that sums what this one gives, if one does: MPI knows no `bf16`.
    fn library(&self) -> Option<&dyn LibraryCollectives> {
        let sums = self.op.sent_dtype(&self.ty) == DType::F32;
        let communicator = self.communicator.as_ref().filter(|_| self.collectives == Collectives::Library);
        communicator.filter(|_| sums || self.op.exchange == Exchange::AllGather)?.library()
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
        if let Some(library) = self.library() {
            // SAFETY: the caller's contract.
            return unsafe { self.run_by(library, from, scratch, to) };
        }
        if self.op.in_bf16 {
            let sum = Sum { transfer: self.clone(), from: Address(from), to: Address(to) };
            // SAFETY: the caller's contract; the plan has room for what is rounded as well.
            return unsafe { together(&[sum], scratch) };
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

    /// As [`Transfer::run`], by a library's sums.
    ///
    /// # Safety
    /// As [`Transfer::run`].
    unsafe fn run_by(
        &self,
        library: &dyn LibraryCollectives,
        from: *const u8,
        scratch: *mut u8,
        to: *mut u8,
    ) -> Result<(), CommunicationError> {
        let (bytes, count, ranks) = (self.ty.bytes(), self.ty.elements(), self.op.ranks);
        // SAFETY: the caller's contract. A sum may take the place of its operand, so that is put aside.
        unsafe {
            if self.op.exchange == Exchange::AllGather {
                return library
                    .all_gather(from_raw_parts(from, bytes), from_raw_parts_mut(to, ranks * bytes));
            }
            scratch.copy_from_nonoverlapping(from, bytes);
            let (given, sum) = (from_raw_parts(scratch.cast(), count), to.cast());
            match self.op.exchange {
                Exchange::AllReduce => library.all_reduce(given, from_raw_parts_mut(sum, count)),
                _ => library.reduce_scatter(given, from_raw_parts_mut(sum, count / ranks)),
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
        let stride = self.op.stride(&self.ty);
        // SAFETY: the caller's contract.
        unsafe {
            let given = from_raw_parts(from, self.ty.bytes());
            let parts = from_raw_parts_mut(scratch, stride * self.op.ranks);
            self.exchange(given, self.part(), parts, stride)?;
            self.add(scratch, stride, sum, own / self.ty.dtype.size(), self.ty.dtype);
        }
        Ok(())
    }

    /// Adds up the parts of all ranks, which begin `stride` bytes after each other, to a sum of this type.
    ///
    /// # Safety
    /// The parts and the sum have `count` elements.
    unsafe fn add(&self, parts: *const u8, stride: usize, sum: *mut u8, count: usize, dtype: DType) {
        let ranks = self.op.ranks;
        // SAFETY: the caller's contract.
        unsafe {
            match (self.op.sent_dtype(&self.ty), dtype) {
                (DType::BF16, DType::F32) => sum_bf16_to_f32(parts, stride, ranks, sum, count),
                (DType::BF16, _) => sum_bf16(parts, stride, ranks, sum, count),
                _ => sum_f32(parts, stride, ranks, sum, count),
            }
        }
    }

    /// Writes elements as they are sent.
    ///
    /// # Safety
    /// Both have `count` elements, and do not overlap.
    unsafe fn give(&self, from: *const u8, to: *mut u8, count: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.op.in_bf16 {
                true => narrow_f32(from, to, count),
                false => to.copy_from_nonoverlapping(from, count * self.ty.dtype.size()),
            }
        }
    }

    /// Reads elements as they were sent.
    ///
    /// # Safety
    /// As [`Transfer::give`].
    unsafe fn take(&self, from: *const u8, to: *mut u8, count: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.op.in_bf16 {
                true => sum_bf16_to_f32(from, 0, 1, to, count),
                false => to.copy_from_nonoverlapping(from, count * self.ty.dtype.size()),
            }
        }
    }

    fn exchange(
        &self,
        sent: &[u8],
        part: usize,
        received: &mut [u8],
        stride: usize,
    ) -> Result<(), CommunicationError> {
        match &self.communicator {
            Some(communicator) => communicator.exchange(sent, part, received, stride),
            None => {
                received[..sent.len()].copy_from_slice(sent);
                Ok(())
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
                sums => match sums.iter().map(|sum| sum.transfer.library()).collect::<Option<Vec<_>>>() {
                    Some(libraries) => together_by(libraries[0], sums, scratch),
                    None => together(sums, scratch),
                },
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
/// As [`Transfer::run`] of each; `scratch` has the bytes of a [`Packing`], twice for each rank.
unsafe fn together(sums: &[Sum], scratch: *mut u8) -> Result<(), CommunicationError> {
    let first = &sums[0].transfer;
    let (ranks, rank, packing) = (first.op.ranks, first.rank(), Packing::new(sums));
    // SAFETY: the caller's contract; the scratch is as long as what is sent and what is received.
    unsafe {
        let (sent, received) = (scratch, scratch.add(ranks * packing.part));
        packing.pack(sums, sent);
        let all = from_raw_parts_mut(sent, ranks * packing.part);
        let parts = from_raw_parts_mut(received, ranks * packing.part);
        first.exchange(all, packing.part, parts, packing.part)?;
        // What was sent is not needed any more: the sums that every rank gets take its place.
        let gathered = of(sums, Exchange::AllReduce);
        let gathering = Packing::new(gathered.iter().copied());
        let mut places = gathering.starts.iter();
        for (Sum { transfer, to, .. }, &at) in sums.iter().zip(&packing.starts) {
            let (count, own_type) = (transfer.elements(rank).len(), transfer.ty.dtype);
            let (sum, dtype) = match transfer.op.exchange {
                Exchange::AllReduce => {
                    let place = rank * gathering.part + places.next().expect("one for each");
                    (sent.add(place), transfer.op.sent_dtype(&transfer.ty))
                }
                Exchange::ReduceScatter | Exchange::AllGather => (to.0, own_type),
            };
            transfer.add(received.add(at), packing.part, sum, count, dtype);
        }
        if gathering.part > 0 {
            first.gather(from_raw_parts_mut(sent, ranks * gathering.part), gathering.part)?;
            gathering.unpack(&gathered, sent);
        }
    }
    Ok(())
}

/// As [`together`], by a library's sums: one for each kind of them.
///
/// # Safety
/// As [`together`].
unsafe fn together_by(
    library: &dyn LibraryCollectives,
    sums: &[Sum],
    scratch: *mut u8,
) -> Result<(), CommunicationError> {
    let (ranks, rank) = (sums[0].transfer.op.ranks, sums[0].transfer.rank());
    for exchange in [Exchange::AllReduce, Exchange::ReduceScatter] {
        let sums = of(sums, exchange);
        let packing = Packing::new(sums.iter().copied());
        let count = packing.part / size_of::<f32>();
        if count == 0 {
            continue;
        }
        // SAFETY: the caller's contract; what lies between the parts is summed, too, and counts for nothing.
        unsafe {
            let (sent, received) = (scratch, scratch.add(ranks * packing.part));
            packing.pack(sums.iter().copied(), sent);
            let given = from_raw_parts(sent.cast(), ranks * count);
            if exchange == Exchange::AllReduce {
                library.all_reduce(given, from_raw_parts_mut(received.cast(), ranks * count))?;
                packing.unpack(&sums, received);
                continue;
            }
            library.reduce_scatter(given, from_raw_parts_mut(received.cast(), count))?;
            for (Sum { transfer, to, .. }, &at) in sums.iter().zip(&packing.starts) {
                transfer.take(received.add(at), to.0, transfer.elements(rank).len());
            }
        }
    }
    Ok(())
}

/// The sums of one kind.
fn of(sums: &[Sum], exchange: Exchange) -> Vec<&Sum> {
    sums.iter().filter(|sum| sum.transfer.op.exchange == exchange).collect()
}

/// How parts of several sums lie side by side, for each rank.
struct Packing {
    /// Where the part of each begins.
    starts: Vec<usize>,
    /// Bytes of all of them.
    part: usize,
}

impl Packing {
    fn new<'a>(sums: impl IntoIterator<Item = &'a Sum>) -> Self {
        Packing::of(sums.into_iter().map(|sum| &sum.transfer))
    }

    fn of<'a>(transfers: impl Iterator<Item = &'a Transfer>) -> Self {
        let mut part = 0;
        let mut place = |transfer: &Transfer| {
            let start = part;
            part += transfer.sent_part().next_multiple_of(ALIGNMENT);
            start
        };
        Packing { starts: transfers.map(&mut place).collect(), part }
    }

    /// Writes what each rank gets of these sums.
    ///
    /// # Safety
    /// As [`Transfer::run`] of each; there is room for all ranks.
    unsafe fn pack<'a>(&self, sums: impl IntoIterator<Item = &'a Sum>, packed: *mut u8) {
        for (Sum { transfer, from, .. }, &at) in sums.into_iter().zip(&self.starts) {
            for rank in 0..transfer.op.ranks {
                let own = transfer.elements(rank);
                let from = from.0.wrapping_add(own.start * transfer.ty.dtype.size());
                // SAFETY: the caller's contract.
                unsafe { transfer.give(from, packed.add(rank * self.part + at), own.len()) };
            }
        }
    }

    /// Reads these sums, of which each rank has its part.
    ///
    /// # Safety
    /// As [`Packing::pack`].
    unsafe fn unpack(&self, sums: &[&Sum], packed: *const u8) {
        for (Sum { transfer, to, .. }, &at) in sums.iter().zip(&self.starts) {
            for rank in 0..transfer.op.ranks {
                let own = transfer.elements(rank);
                let to = to.0.wrapping_add(own.start * transfer.ty.dtype.size());
                // SAFETY: the caller's contract.
                unsafe { transfer.take(packed.add(rank * self.part + at), to, own.len()) };
            }
        }
    }
}

/// Bytes that a [`Worker`] needs for the buckets of a program.
pub(super) fn bucket_bytes(program: &ProgramPlan) -> usize {
    let Some(Microbatches { tail, ranks, .. }) = &program.microbatches else { return 0 };
    let bytes = |bucket: Bucket| {
        let transfers = bucket.kernels.iter().filter_map(|&kernel| match &tail.graph.kernels[kernel].form {
            Form::Collective(call) => {
                let ty = tail.graph.buffer(call.from).ty.clone();
                Some(Transfer { op: call.op, ty, communicator: None, collectives: Collectives::Ordered })
            }
            Form::Map | Form::Reduce | Form::Contraction(_) | Form::Loop(_) => None,
        });
        let transfers: Vec<_> = transfers.collect();
        match &transfers[..] {
            [one] => one.op.scratch_bytes(&one.ty),
            several => 2 * ranks * Packing::of(several.iter()).part,
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
