//! Collectives: what ranks exchange, as a kernel of its own.

use super::BufferId;
use crate::{Collective, Exchange, TensorType};
use serde::Serialize;

/// Alignment of what each rank sends, in bytes.
const ALIGNMENT: usize = 64;

/// An exchange of a whole buffer.
///
/// ```text
/// collective all_reduce among 4 ranks
///   grad → sum        (each sends 3 parts of grad, gets 3 of its own part, sums them, sends the sum 3 times)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CollectiveCall {
    /// What is exchanged.
    pub op: Collective,
    /// What this rank gives.
    pub from: BufferId,
    /// What it gets.
    pub to: BufferId,
    /// Memory for the parts that are summed here, one of each rank. It is a buffer of its own, unless nothing is summed.
    pub scratch: Option<BufferId>,
}

impl CollectiveCall {
    /// The buffers that it writes.
    pub fn writes(&self) -> impl Iterator<Item = BufferId> + use<> {
        [self.to].into_iter().chain(self.scratch)
    }

    /// Every number of a buffer, to be changed.
    pub fn buffers_mut(&mut self) -> impl Iterator<Item = &mut BufferId> {
        [&mut self.from, &mut self.to].into_iter().chain(&mut self.scratch)
    }
}

impl Collective {
    /// The elements of one operand's sum that a rank computes; without a sum, none. Those of the last ranks may be fewer.
    pub fn part(self, operand: &TensorType) -> usize {
        match self.exchange {
            Exchange::AllReduce | Exchange::ReduceScatter => operand.elements().div_ceil(self.ranks),
            Exchange::AllGather => 0,
        }
    }

    /// Bytes of memory for the parts of all ranks that a rank sums.
    pub fn scratch_bytes(self, operand: &TensorType) -> usize {
        self.ranks * (self.part(operand) * operand.dtype.size()).next_multiple_of(ALIGNMENT)
    }

    /// Messages that a rank sends: each other one gets its part of what is summed, and the sum of what is gathered.
    pub fn messages(self) -> usize {
        let others = self.ranks - 1;
        match self.exchange {
            Exchange::AllReduce => 2 * others,
            Exchange::ReduceScatter | Exchange::AllGather => others,
        }
    }

    /// Bytes that a rank sends to others.
    pub fn bytes_sent(self, operand: &TensorType) -> usize {
        let (bytes, others) = (operand.bytes(), self.ranks - 1);
        match self.exchange {
            Exchange::AllReduce => 2 * bytes / self.ranks * others,
            Exchange::ReduceScatter => bytes / self.ranks * others,
            Exchange::AllGather => bytes * others,
        }
    }
}
