//! What a plan prepares of states that it never writes: kept as long as none of them changes.

use kernfusion_codegen::{CodegenError, State};
use kernfusion_ir::kernel::{BufferId, BufferRole, Kernel, Place, Plan};
use kernfusion_runtime::memory::{Allocation, BumpAllocator};
use std::collections::BTreeSet;

/// The memory of what a plan has prepared, and of which values of states.
#[derive(Debug, Default)]
pub(super) struct Preparation {
    kernels: usize,
    /// The states that it reads.
    states: Vec<State>,
    /// How often each had been written when the kernels ran.
    of: Option<Vec<u64>>,
    memory: Vec<(BufferId, Allocation)>,
}

impl Preparation {
    /// Memory for what a plan prepares; `state` gives the states.
    ///
    /// # Errors
    /// Memory is short.
    pub(super) fn new<'s>(plan: &Plan, state: impl Fn(BufferId) -> &'s State) -> Result<Self, CodegenError> {
        let graph = &plan.graph;
        let kernels = &graph.kernels[..plan.preparation];
        let read: BTreeSet<_> = kernels.iter().flat_map(Kernel::reads).collect();
        let states = read.into_iter().filter(|&buffer| graph.buffer(buffer).role == BufferRole::State);
        let states = states.map(|buffer| state(buffer).clone()).collect();
        let mut allocator = BumpAllocator::default();
        let mut memory = vec![];
        for buffer in kernels.iter().flat_map(Kernel::writes) {
            debug_assert_eq!(plan.place(buffer), Place::Own);
            memory.push((buffer, allocator.take(graph.buffer(buffer).ty.bytes())?));
        }
        Ok(Preparation { kernels: kernels.len(), states, of: None, memory })
    }

    /// Where each buffer is that it writes.
    pub(super) fn places(&self) -> impl Iterator<Item = (BufferId, *mut u8)> {
        self.memory.iter().map(|(buffer, memory)| (*buffer, memory.as_ptr()))
    }

    /// The first kernel of the plan that has to run, while the caller holds the states.
    pub(super) fn first_kernel(&mut self) -> usize {
        self.of = self.of.take().filter(|of| *of == self.versions());
        if self.of.is_some() { self.kernels } else { 0 }
    }

    /// Says that its kernels have run.
    pub(super) fn finish(&mut self) {
        self.of = Some(self.versions());
    }

    fn versions(&self) -> Vec<u64> {
        self.states.iter().map(State::version).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_codegen::States;
    use kernfusion_ir::kernel::KernelGraph;
    use kernfusion_ir::{DType, Tensor, TensorType};

    #[test]
    fn it_is_left_out_until_a_state_is_written() {
        let states = States::new();
        let ty = TensorType::new(DType::F32, [2]);
        let read = ["a", "b"].map(|name| states.ensure(name, &ty).unwrap());
        let other = states.ensure("other", &ty).unwrap();
        let plan = Plan { graph: KernelGraph::default(), places: vec![], arena_bytes: 0, preparation: 0 };
        let nothing = Preparation::new(&plan, |_| &other).unwrap();
        let mut preparation = Preparation { kernels: 3, states: read.to_vec(), ..nothing };
        assert_eq!(preparation.first_kernel(), 0);
        // Its kernels failed.
        assert_eq!(preparation.first_kernel(), 0);
        preparation.finish();
        assert_eq!([preparation.first_kernel(), preparation.first_kernel()], [3, 3]);
        other.touch();
        assert_eq!(preparation.first_kernel(), 3);
        states.set("b", &Tensor::new([2], vec![1.0f32, 2.0])).unwrap();
        assert_eq!([preparation.first_kernel(), preparation.first_kernel()], [0, 0]);
        preparation.finish();
        assert_eq!(preparation.first_kernel(), 3);
    }
}
