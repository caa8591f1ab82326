//! The last stage before code: a kernel graph whose buffers have places in memory.
//!
//! Invariants: there is one place for each buffer; an arena place and its bytes lie inside the arena; an alias leads,
//! in one or more steps, to a buffer that is no alias and has at least its size; two buffers share bytes of the arena
//! only if no kernel runs between the first use of one and the last use of the other; kernels of the preparation read
//! only states and each other's results, and a plan that has one writes no state.

use super::{Buffer, BufferId, BufferRole, Kernel, KernelGraph};
use serde::Serialize;
use std::fmt;

/// Where a buffer lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In the arena that all temporaries of a run share.
    Arena {
        /// Bytes from the arena's start.
        offset: usize,
    },
    /// An allocation of its own: inputs, states, and what the preparation writes.
    Own,
    /// The same memory as that buffer: a state updated in place.
    Alias(BufferId),
    /// Nowhere: no kernel and no output touches the buffer.
    Unused,
}

/// A kernel graph with memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The kernels, in execution order.
    pub graph: KernelGraph,
    /// The place of each buffer, by [`BufferId`].
    pub places: Vec<Place>,
    /// Size of the arena in bytes.
    pub arena_bytes: usize,
    /// How many of the first kernels are the preparation: they read nothing but states, and the plan writes no state. A run may skip
    /// them if no state that they read has changed since they ran.
    pub preparation: usize,
}

impl Plan {
    /// Where a buffer lives.
    pub fn place(&self, buffer: BufferId) -> Place {
        self.places[buffer.0 as usize]
    }

    /// The buffer whose memory this one uses in the end: itself, unless it is an alias.
    pub fn memory_of(&self, buffer: BufferId) -> BufferId {
        let mut memory = buffer;
        // A chain without a cycle visits every buffer at most once.
        for _ in &self.places {
            match self.place(memory) {
                Place::Alias(target) => memory = target,
                Place::Arena { .. } | Place::Own | Place::Unused => return memory,
            }
        }
        panic!("the aliases of buffer {} form a cycle", buffer.0)
    }

    /// For each buffer the one whose memory it uses in the end, as [`memory_of`](Self::memory_of) says, in time that grows with
    /// their number.
    pub fn memories(&self) -> Vec<BufferId> {
        let mut known: Vec<Option<BufferId>> = vec![None; self.places.len()];
        for start in 0..self.places.len() as u32 {
            let (mut path, mut at) = (vec![], BufferId(start));
            let memory = loop {
                match (known[at.0 as usize], self.place(at)) {
                    (Some(memory), _) => break memory,
                    (None, Place::Alias(target)) if path.len() < self.places.len() => {
                        path.push(at);
                        at = target;
                    }
                    _ => break self.memory_of(at),
                }
            };
            path.push(at);
            path.into_iter().for_each(|buffer| known[buffer.0 as usize] = Some(memory));
        }
        known.into_iter().map(|memory| memory.expect("all were visited")).collect()
    }

    /// Whether a buffer is in the memory of the state of this name.
    fn is_in_state(&self, buffer: BufferId, state: &str) -> bool {
        let memory = self.graph.buffer(self.memory_of(buffer));
        memory.role == BufferRole::State && memory.name == state
    }

    /// The numbers of the kernels that read or write a state's memory.
    pub fn touches(&self, state: &str) -> impl DoubleEndedIterator<Item = usize> {
        let kernels = self.graph.kernels.iter().enumerate();
        let touched = kernels.filter(|(_, kernel)| {
            let buffers = kernel.reads().into_iter().chain(kernel.writes());
            buffers.into_iter().any(|buffer| self.is_in_state(buffer, state))
        });
        touched.map(|(at, _)| at)
    }

    /// The kernel after which a state has its new value: the last one that touches it, or, if it is copied at the end, their number.
    pub fn last_touch(&self, state: &str) -> usize {
        let mut updates = self.graph.updates.iter().filter(|(updated, _)| self.is_in_state(*updated, state));
        let is_copied = updates.any(|(_, value)| !self.is_in_state(*value, state));
        let last = self.touches(state).next_back().filter(|_| !is_copied);
        last.unwrap_or(self.graph.kernels.len())
    }

    /// The buffers that a run is given.
    pub fn inputs(&self) -> impl Iterator<Item = &Buffer> {
        self.graph.buffers.iter().filter(|buffer| buffer.role == BufferRole::Input)
    }

    /// Bytes of the states: what stays from run to run.
    pub fn state_bytes(&self) -> usize {
        self.own_bytes(BufferRole::State)
    }

    /// Bytes of the inputs' allocations.
    pub fn input_bytes(&self) -> usize {
        self.own_bytes(BufferRole::Input)
    }

    /// The kernels that every run launches.
    pub fn each_run(&self) -> &[Kernel] {
        &self.graph.kernels[self.preparation..]
    }

    /// Bytes of what the preparation writes, which stays from run to run.
    pub fn prepared_bytes(&self) -> usize {
        self.own_bytes(BufferRole::Temporary)
    }

    /// Bytes in use while the plan runs: the arena and every allocation of its own.
    pub fn peak_bytes(&self) -> usize {
        let own = self.buffers().filter(|(_, place)| *place == Place::Own);
        self.arena_bytes + own.map(|(buffer, _)| buffer.ty.bytes()).sum::<usize>()
    }

    /// Bytes that the kernels of every run together move at least.
    pub fn bytes_moved(&self) -> usize {
        self.each_run().iter().map(|kernel| self.graph.bytes_moved(kernel)).sum()
    }

    /// Bytes that all kernels together send to other ranks in one run.
    pub fn bytes_sent(&self) -> usize {
        self.graph.kernels.iter().map(|kernel| self.graph.bytes_sent(kernel)).sum()
    }

    fn own_bytes(&self, role: BufferRole) -> usize {
        let own = self.buffers().filter(|(buffer, place)| buffer.role == role && *place == Place::Own);
        own.map(|(buffer, _)| buffer.ty.bytes()).sum()
    }

    fn buffers(&self) -> impl Iterator<Item = (&super::Buffer, Place)> {
        self.graph.buffers.iter().zip(self.places.iter().copied())
    }
}

impl fmt::Display for Plan {
    /// The summary, then the place of every buffer that has one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan {:?}", self.graph.name)?;
        writeln!(f, "  kernels      {}", self.graph.launches() - self.preparation)?;
        writeln!(f, "  bytes moved  {}", Bytes(self.bytes_moved()))?;
        if self.preparation > 0 {
            writeln!(f, "  prepared     {}, by {} kernels", Bytes(self.prepared_bytes()), self.preparation)?;
        }
        writeln!(f, "  arena        {}", Bytes(self.arena_bytes))?;
        writeln!(f, "  state        {}", Bytes(self.state_bytes()))?;
        writeln!(f, "  peak         {}", Bytes(self.peak_bytes()))?;
        for (buffer, place) in self.buffers() {
            let at = match place {
                Place::Arena { offset } => format!("arena + {offset}"),
                Place::Own => "own".into(),
                Place::Alias(target) => format!("alias of {}", self.graph.buffer(target).name),
                Place::Unused => continue,
            };
            writeln!(f, "  {} : {} at {at}", buffer.name, buffer.ty)?;
        }
        Ok(())
    }
}

/// A number of bytes; prints with a binary unit.
pub(super) struct Bytes(pub(super) usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1usize << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.into_iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => write!(f, "{:.1} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Buffer;
    use super::*;
    use crate::{DType, TensorType};

    fn plan() -> Plan {
        let buffer = |name: &str, extent: usize, role| {
            let ty = TensorType::new(DType::F32, [extent]);
            Buffer { name: name.into(), ty, role, continues: None }
        };
        let buffers = vec![
            buffer("x", 3, BufferRole::Input),
            buffer("w", 512, BufferRole::State),
            buffer("w.new", 512, BufferRole::Temporary),
            buffer("hidden", 16, BufferRole::Temporary),
            buffer("dead", 99, BufferRole::Temporary),
        ];
        let places = vec![
            Place::Own,
            Place::Own,
            Place::Alias(BufferId(1)),
            Place::Arena { offset: 64 },
            Place::Unused,
        ];
        let graph = KernelGraph { name: "step".into(), buffers, ..KernelGraph::default() };
        Plan { graph, places, arena_bytes: 128, preparation: 0 }
    }

    #[test]
    fn an_alias_counts_no_bytes() {
        let plan = plan();
        assert_eq!((plan.input_bytes(), plan.state_bytes()), (12, 2048));
        assert_eq!(plan.peak_bytes(), 128 + 12 + 2048);
        assert_eq!(plan.memory_of(BufferId(2)), BufferId(1));
        assert_eq!(plan.memory_of(BufferId(3)), BufferId(3));
        let each = (0..plan.places.len() as u32).map(|at| plan.memory_of(BufferId(at)));
        assert_eq!(plan.memories(), each.collect::<Vec<_>>());
    }

    #[test]
    fn the_summary_comes_first_and_unused_buffers_are_left_out() {
        let expected = "plan \"step\"\n  kernels      0\n  bytes moved  0 B\n  arena        128 B\n  state        \
            2.0 KiB\n  peak         2.1 KiB\n  x : f32[3] at own\n  w : f32[512] at own\n  w.new : f32[512] at alias \
            of w\n  hidden : f32[16] at arena + 64\n";
        assert_eq!(plan().to_string(), expected);
    }
}
