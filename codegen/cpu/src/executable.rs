//! Programs: a body once for each microbatch, then a tail once.

use crate::collective::{Worker, bucket_bytes};
use crate::pool::Pool;
use crate::{Options, PlanExecutable, SharedArena};
use kernfusion_codegen::States;
use kernfusion_codegen::{
    CodegenError, Executable, Listing, Moment, Outputs, See, Temporaries, check_inputs,
};
use kernfusion_ir::Tensor;
use kernfusion_ir::kernel::{Bucket, Buffer, ProgramPlan};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A compiled program with its memory.
#[derive(Debug)]
pub struct CpuExecutable {
    program: ProgramPlan,
    body: PlanExecutable,
    tail: Option<PlanExecutable>,
    /// The number of this rank, where several run the program.
    rank: usize,
    ahead: Option<Ahead>,
}

/// What the tail exchanges while the body computes the last microbatch.
#[derive(Debug)]
struct Ahead(Vec<Bucket>);

impl Ahead {
    /// Lets a thread of its own make all exchanges of the tail, if there are some.
    ///
    /// # Errors
    /// Memory is short, or there is no thread.
    fn new(program: &ProgramPlan, tail: &mut PlanExecutable) -> Result<Option<Self>, CodegenError> {
        let buckets = program.buckets();
        if buckets.is_empty() {
            return Ok(None);
        }
        tail.employ(&Arc::new(Worker::new(bucket_bytes(program))?));
        Ok(Some(Ahead(buckets)))
    }

    /// Begins what can after a kernel of the body.
    fn begin(&self, kernel: usize, tail: &mut PlanExecutable) {
        let ready = self.0.iter().filter(|bucket| bucket.after == kernel);
        ready.for_each(|bucket| tail.begin_exchanges(bucket));
    }
}

impl CpuExecutable {
    /// Compiles all plans of a program over `states`. Their temporaries live in one arena.
    ///
    /// # Errors
    /// As [`PlanExecutable::compile`].
    pub fn compile(program: ProgramPlan, states: &States, options: &Options) -> Result<Self, CodegenError> {
        let bytes = program.arena_bytes();
        let mut options = options.clone();
        options.arena = options.arena.filter(|arena| arena.len() >= bytes);
        if program.microbatches.is_some() {
            options.temporaries = Temporaries::Arena;
            options.arena = Some(options.arena.map_or_else(|| SharedArena::new(bytes), Ok)?);
        }
        let body = PlanExecutable::compile(program.body.clone(), states, &options)?;
        options.pool = Some(body.pool().clone());
        let tail = program.microbatches.as_ref().map(|microbatches| microbatches.tail.clone());
        let mut tail = tail.map(|tail| PlanExecutable::compile(tail, states, &options)).transpose()?;
        let rank = options.communicator.as_ref().map_or(0, |communicator| communicator.rank());
        let ahead = tail.as_mut().map(|tail| Ahead::new(&program, tail)).transpose()?.flatten();
        Ok(CpuExecutable { program, body, tail, rank, ahead })
    }

    /// The executables: that of the body, and that of the tail if there is one.
    pub fn plans(&self) -> impl Iterator<Item = &PlanExecutable> {
        [&self.body].into_iter().chain(&self.tail)
    }

    /// `tick` is called as that of a plan's executable, with whether it is the tail's, and so is `see`, with the plan's number.
    fn run_with(
        &mut self,
        inputs: &[(&str, &Tensor)],
        tick: &mut dyn FnMut(bool, usize),
        see: See<'_>,
    ) -> Result<Outputs, CodegenError> {
        check_inputs(&self.program.inputs(), inputs)?;
        let (states, arena) = (self.body.states().clone(), self.body.arena().clone());
        let (_held, _turn) = (states.hold(), arena.turn());
        let given = |name: &str| inputs.iter().find(|(other, _)| *other == name).expect("checked before").1;
        let mut see = |plan: usize, executable: &PlanExecutable, kernel: usize| {
            see(&Moment { plan, kernel, look: &|buffer| Ok(executable.look(buffer)) })
        };
        let (Some(microbatches), Some(tail)) = (&self.program.microbatches, &mut self.tail) else {
            let locate = |buffer: &Buffer| given(&buffer.name).data().as_ptr();
            return self.body.run_held(&locate, &mut |at| tick(false, at), &mut |it, at| see(0, it, at));
        };
        // Of the parts of all ranks, ours begin here.
        let first = (self.rank * microbatches.count) as u32;
        let locate = |buffer: &Buffer, part: &u32| -> *const u8 {
            if buffer.name == microbatches.index {
                return std::ptr::from_ref(part).cast();
            }
            let (given, bytes) = (given(&buffer.name), buffer.ty.bytes());
            let start = if given.ty() == buffer.ty { 0 } else { *part as usize * bytes };
            assert!(start + bytes <= given.ty().bytes(), "microbatches lie in their input");
            given.data().as_ptr().wrapping_add(start)
        };
        if first > 0 {
            self.body.clear(&microbatches.sums);
        }
        let mut parts = vec![];
        for number in 0..microbatches.count as u32 {
            let part = first + number;
            let locate = |buffer: &Buffer| locate(buffer, &part);
            let tick = &mut |at| tick(false, at);
            let ahead = self.ahead.as_ref().filter(|_| number + 1 == microbatches.count as u32);
            let Some(ahead) = ahead else {
                parts.push(self.body.run_held(&locate, tick, &mut |it, at| see(0, it, at))?);
                continue;
            };
            let last = self.body.run_held(&locate, tick, &mut |it, at| {
                ahead.begin(at, tail);
                see(0, it, at)
            });
            if last.is_err() {
                tail.finish_exchanges();
            }
            parts.push(last?);
            ahead.begin(self.body.plan().graph.kernels.len(), tail);
        }
        let tick = &mut |at| tick(true, at);
        let last = tail.run_held(&|buffer| locate(buffer, &first), tick, &mut |it, at| see(1, it, at))?;
        Ok(Outputs::joined(microbatches, &parts, &last))
    }
}

impl Executable for CpuExecutable {
    fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Outputs, CodegenError> {
        self.run_with(inputs, &mut |_, _| {}, &mut |_| Ok(()))
    }

    fn run_timed(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(Outputs, Vec<Duration>), CodegenError> {
        let kernels = |plan: &PlanExecutable| plan.plan().graph.kernels.len();
        let body = kernels(&self.body);
        let mut times = vec![Duration::ZERO; self.plans().map(kernels).sum()];
        let mut last = Instant::now();
        let mut tick = |in_tail: bool, at: usize| {
            let now = Instant::now();
            if at > 0 {
                times[if in_tail { body } else { 0 } + at - 1] += now - last;
            }
            last = now;
        };
        let outputs = self.run_with(inputs, &mut tick, &mut |_| Ok(()))?;
        Ok((outputs, times))
    }

    fn run_seen(&mut self, inputs: &[(&str, &Tensor)], see: See<'_>) -> Result<Outputs, CodegenError> {
        self.run_with(inputs, &mut |_, _| {}, see)
    }

    fn program(&self) -> &ProgramPlan {
        &self.program
    }

    fn set_threads(&mut self, threads: usize) -> Result<(), CodegenError> {
        let pool = Arc::new(Pool::new(threads));
        self.tail.iter_mut().try_for_each(|tail| tail.set_pool(pool.clone()))?;
        self.body.set_pool(pool)
    }

    fn arena(&self) -> Option<&SharedArena> {
        Some(self.body.arena())
    }

    fn listing(&self, plan: usize, kernel: &str) -> Option<Listing> {
        let executable = self.plans().nth(plan)?;
        Some(Listing {
            schedule: executable.schedule(kernel)?,
            ir: executable.clif(kernel)?,
            assembly: executable.assembly(kernel)?,
        })
    }
}
