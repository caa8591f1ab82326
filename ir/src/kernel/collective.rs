//! Collectives: what ranks exchange, as a kernel of its own.

use super::BufferId;
use crate::{Collective, DType, Exchange, TensorType};
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
    /// Memory for the parts that are summed here, one of each rank, and for what is sent if that is rounded. It is a buffer of its own, unless
    /// nothing is summed.
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

    /// The type of what is sent.
    pub fn sent_dtype(self, operand: &TensorType) -> DType {
        if self.in_bf16 { DType::BF16 } else { operand.dtype }
    }

    /// Bytes from one rank's part to that of the next, of those that a rank sums.
    pub fn stride(self, operand: &TensorType) -> usize {
        (self.part(operand) * self.sent_dtype(operand).size()).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of memory for the parts of all ranks that a rank sums; before them, if it is rounded, for what it sends.
    pub fn scratch_bytes(self, operand: &TensorType) -> usize {
        let times = if self.in_bf16 { 2 } else { 1 };
        times * self.ranks * self.stride(operand)
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
        let (bytes, others) = (operand.elements() * self.sent_dtype(operand).size(), self.ranks - 1);
        match self.exchange {
            Exchange::AllReduce => 2 * bytes / self.ranks * others,
            Exchange::ReduceScatter => bytes / self.ranks * others,
            Exchange::AllGather => bytes * others,
        }
    }
}
