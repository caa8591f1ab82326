//! Plans and how often each runs: what a back end compiles.

use super::{Bucket, BufferRole, Kernel, Plan};
use crate::TensorType;
use std::collections::BTreeMap;

/// Says whether a back end has code for a kernel, or what it is without.
pub type Accepts = fn(&Kernel) -> Result<(), &'static str>;

/// A back end that has code for whatever kernel IR can say, as its interpreter has.
///
/// # Errors
/// None.
pub fn any_kernel(_: &Kernel) -> Result<(), &'static str> {
    Ok(())
}

/// A program: one plan, or one that runs for each microbatch and one that follows once.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramPlan {
    /// What runs for each microbatch; the whole program if the batch is not divided.
    pub body: Plan,
    /// How the batch is divided, if it is.
    pub microbatches: Option<Microbatches>,
}

/// A batch that is computed in parts, one after another.
///
/// Body and tail work on the same states, through which sums come from one microbatch to the next and to the tail, and in one
/// arena. Nothing else may touch the states between the first microbatch and the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Microbatches {
    /// How many a rank computes.
    pub count: usize,
    /// How many ranks there are; the parts of the first one are the first ones of the batch.
    pub ranks: usize,
    /// The body's scalar input of `u32` that gets the index of the microbatch, from 0, counted over all ranks.
    pub index: String,
    /// The states that sums are kept in. The body clears them with index 0; where a rank begins with another one, they have to be zero.
    pub sums: Vec<String>,
    /// The inputs of the program, with their types. Where the body declares one smaller, it gets a part of it: as many of
    /// its elements, one microbatch after another.
    pub inputs: Vec<(String, TensorType)>,
    /// The results of the program in order: those of the body with the axis along which microbatches are joined, those of the
    /// tail without.
    pub outputs: Vec<(String, Option<usize>)>,
    /// The states of which each rank has a part.
    pub shards: Vec<Shard>,
    /// What runs after the last microbatch.
    pub tail: Plan,
}

/// A state of which each rank keeps a part of the elements in row-major order, those of the first rank first: of the rows, if these can be
/// divided. What the parts have beyond the last element counts for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Its name.
    pub state: String,
    /// The type of the whole state.
    pub whole: TensorType,
    /// The type of what each rank keeps.
    pub part: TensorType,
}

impl Shard {
    /// How a state is divided among so many ranks.
    pub fn new(state: &str, whole: &TensorType, ranks: usize) -> Self {
        Shard { state: state.into(), whole: whole.clone(), part: Shard::part_of(whole, ranks) }
    }

    /// The type of each rank's part of a value.
    pub fn part_of(whole: &TensorType, ranks: usize) -> TensorType {
        match whole.shape.split_first() {
            Some((rows, inner)) if rows.is_multiple_of(ranks) => {
                whole.with_shape([&[rows / ranks], inner].concat())
            }
            _ => whole.with_shape(vec![whole.elements().div_ceil(ranks)]),
        }
    }

    /// The places of a rank's elements in the whole state.
    pub fn elements(&self, rank: usize) -> std::ops::Range<usize> {
        let at = |rank: usize| (rank * self.part.elements()).min(self.whole.elements());
        at(rank)..at(rank + 1)
    }
}

impl ProgramPlan {
    /// A program whose batch is not divided.
    pub fn whole(plan: Plan) -> Self {
        ProgramPlan { body: plan, microbatches: None }
    }

    /// A program of microbatches.
    ///
    /// # Panics
    /// If the body or the tail has an input that the program does not have, or that is no part of it.
    pub fn divided(body: Plan, microbatches: Microbatches) -> Self {
        let program = ProgramPlan { body, microbatches: Some(microbatches) };
        let Some(Microbatches { index, inputs, ranks, .. }) = &program.microbatches else {
            unreachable!("just made")
        };
        for (plan, count) in program.plans() {
            for input in plan.inputs().filter(|input| input.name != *index) {
                let whole = inputs.iter().find(|(name, _)| *name == input.name);
                let fits = whole.is_some_and(|(_, whole)| {
                    *whole == input.ty
                        || whole.dtype == input.ty.dtype
                            && whole.elements() == count * ranks * input.ty.elements()
                });
                assert!(fits, "\"{}\" is an input of the program or a part of one", input.name);
            }
        }
        program
    }

    /// Each plan, with how often it runs.
    pub fn plans(&self) -> impl Iterator<Item = (&Plan, usize)> {
        let count = self.microbatches.as_ref().map_or(1, |microbatches| microbatches.count);
        let tail = self.microbatches.as_ref().map(|microbatches| (&microbatches.tail, 1));
        [(&self.body, count)].into_iter().chain(tail)
    }

    /// The inputs that a run takes, with their types.
    pub fn inputs(&self) -> Vec<(&str, &TensorType)> {
        match &self.microbatches {
            None => self.body.inputs().map(|buffer| (buffer.name.as_str(), &buffer.ty)).collect(),
            Some(microbatches) => microbatches.inputs.iter().map(|(name, ty)| (name.as_str(), ty)).collect(),
        }
    }

    /// Kernels launched in a run.
    pub fn kernels(&self) -> usize {
        self.plans().map(|(plan, times)| times * plan.each_run().len()).sum()
    }

    /// Bytes that they move at least.
    pub fn bytes_moved(&self) -> usize {
        self.plans().map(|(plan, times)| times * plan.bytes_moved()).sum()
    }

    /// Size of the arena that all plans share.
    pub fn arena_bytes(&self) -> usize {
        self.plans().map(|(plan, _)| plan.arena_bytes).max().unwrap_or(0)
    }

    /// What ranks exchange while the body computes its last microbatch; nothing of a process alone.
    pub fn buckets(&self) -> Vec<Bucket> {
        match &self.microbatches {
            Some(Microbatches { ranks: 2.., tail, sums, .. }) => Bucket::all(&self.body, tail, sums),
            _ => vec![],
        }
    }

    /// Size of all states by name, those that sums of microbatches are kept in among them.
    pub fn states(&self) -> BTreeMap<&str, usize> {
        let buffers = self.plans().flat_map(|(plan, _)| &plan.graph.buffers);
        let states = buffers.filter(|buffer| buffer.role == BufferRole::State);
        states.map(|buffer| (buffer.name.as_str(), buffer.ty.bytes())).collect()
    }

    /// Size of all states together.
    pub fn state_bytes(&self) -> usize {
        self.states().values().sum()
    }
}
