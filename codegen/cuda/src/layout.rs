//! Where everything of a program lies in the memory of a device.

use super::launches::Launches;
use kernfusion_codegen::Temporaries;
use kernfusion_ir::kernel::{BufferId, BufferRole, Microbatches, Place, Plan, ProgramPlan};
use std::collections::BTreeMap;

/// Alignment of every piece of memory in bytes.
pub(super) const ALIGNMENT: usize = 256;

/// Hands out places one behind another.
#[derive(Default)]
struct Pieces {
    end: usize,
}

impl Pieces {
    fn take(&mut self, bytes: usize) -> usize {
        let start = self.end;
        self.end += bytes.next_multiple_of(ALIGNMENT);
        start
    }
}

/// The memory of one plan. Plans of a program take turns with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) scratch: usize,
    /// Inputs, one behind another.
    pub(super) inputs: BTreeMap<BufferId, usize>,
    /// For new values of states on their way to where they belong.
    pub(super) aside: usize,
    pub(super) bytes: usize,
}

impl Layout {
    pub(super) fn new(plan: &Plan, program: &Launches, temporaries: Temporaries) -> Self {
        let mut pieces = Pieces::default();
        pieces.take(if temporaries == Temporaries::Arena { plan.arena_bytes } else { 0 });
        let scratch = pieces.take(program.scratch_bytes);
        let buffers = (0..plan.graph.buffers.len() as u32).map(BufferId);
        let inputs = buffers.filter(|&id| plan.graph.buffer(id).role == BufferRole::Input);
        let inputs = inputs.map(|id| (id, pieces.take(plan.graph.buffer(id).ty.bytes()))).collect();
        let moved = moves(plan).map(|(state, _)| plan.graph.buffer(state).ty.bytes());
        let aside = pieces.take(moved.map(|bytes| bytes.next_multiple_of(ALIGNMENT)).sum());
        Layout { scratch, inputs, aside, bytes: pieces.end.max(ALIGNMENT) }
    }

    /// Where a buffer lies, unless it is a state.
    pub(super) fn offset(&self, plan: &Plan, memory: BufferId) -> usize {
        match plan.place(memory) {
            Place::Arena { offset } => offset,
            Place::Own => self.inputs[&memory],
            Place::Alias(_) | Place::Unused => 0,
        }
    }
}

/// States whose new values lie elsewhere when all kernels have run.
pub(super) fn moves(plan: &Plan) -> impl Iterator<Item = (BufferId, BufferId)> {
    let updates = plan.graph.updates.iter().copied();
    updates.filter(|&(state, value)| plan.memory_of(state) != plan.memory_of(value))
}

/// The batch of a run: all inputs of the program, one behind another, then the index of each microbatch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// Name, first byte.
    pub(super) inputs: Vec<(String, usize)>,
    /// Where the indices begin, and how many there are.
    pub(super) indices: Option<(usize, usize)>,
    /// The first index: those of the ranks before this one come before.
    pub(super) first: usize,
    pub(super) bytes: usize,
}

/// A copy from the batch to an input of a plan: both first bytes, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) bytes: usize,
}

impl Batch {
    /// That of a rank.
    pub(super) fn new(program: &ProgramPlan, rank: usize) -> Self {
        let mut pieces = Pieces::default();
        let place =
            |(name, ty): (&str, &kernfusion_ir::TensorType)| (name.to_string(), pieces.take(ty.bytes()));
        let inputs = program.inputs().into_iter().map(place).collect();
        let indices = program.microbatches.as_ref().map(|all| (pieces.take(4 * all.count), all.count));
        let first = rank * program.microbatches.as_ref().map_or(0, |all| all.count);
        Batch { inputs, indices, first, bytes: pieces.end }
    }

    /// What a plan of the program needs of the batch for the rank's microbatch of this number, from 0. Neighbours are one copy.
    pub(super) fn deliveries(
        &self,
        program: &ProgramPlan,
        plan: &Plan,
        layout: &Layout,
        index: usize,
    ) -> Vec<Delivery> {
        let inputs = program.inputs();
        let is_index = |microbatches: &Microbatches, name: &str| microbatches.index == name;
        let delivery = |(&id, &to): (&BufferId, &usize)| {
            let buffer = plan.graph.buffer(id);
            let bytes = buffer.ty.bytes();
            let from = match (&program.microbatches, self.indices) {
                (Some(all), Some((start, _))) if is_index(all, &buffer.name) => start + 4 * index,
                _ => {
                    let at =
                        inputs.iter().position(|(name, _)| *name == buffer.name).expect("checked before");
                    let is_whole = *inputs[at].1 == buffer.ty;
                    self.inputs[at].1 + if is_whole { 0 } else { (self.first + index) * bytes }
                }
            };
            Delivery { from, to, bytes }
        };
        let mut joined: Vec<Delivery> = vec![];
        for next in layout.inputs.iter().map(delivery) {
            match joined.last_mut() {
                // The gap between two pieces of memory is unused.
                Some(last)
                    if is_next(last.from, last.bytes, next.from) && is_next(last.to, last.bytes, next.to) =>
                {
                    last.bytes = next.from - last.from + next.bytes;
                }
                _ => joined.push(next),
            }
        }
        joined.retain(|delivery| delivery.bytes > 0);
        joined
    }
}

/// Whether a piece of memory begins where this one's alignment ends.
fn is_next(start: usize, bytes: usize, next: usize) -> bool {
    start.is_multiple_of(ALIGNMENT) && next == (start + bytes).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::kernel::{Buffer, KernelGraph};
    use kernfusion_ir::{DType, TensorType};

    fn buffer(name: &str, role: BufferRole, ty: TensorType) -> Buffer {
        Buffer { name: name.into(), ty, role, continues: None }
    }

    fn plan(buffers: Vec<Buffer>, updates: Vec<(BufferId, BufferId)>, places: Vec<Place>) -> Plan {
        Plan {
            graph: KernelGraph { buffers, updates, ..KernelGraph::default() },
            places,
            arena_bytes: 300,
            preparation: 0,
        }
    }

    #[test]
    fn pieces_of_memory_are_apart() {
        let ty = || TensorType::new(DType::F32, [3]);
        let buffers = vec![
            buffer("x", BufferRole::Input, ty()),
            buffer("w", BufferRole::State, ty()),
            buffer("new", BufferRole::Temporary, ty()),
        ];
        let places = vec![Place::Own, Place::Own, Place::Arena { offset: 64 }];
        let plan = plan(buffers, vec![(BufferId(1), BufferId(2))], places);
        let program = Launches { steps: vec![], scratch_bytes: 10 };
        let layout = Layout::new(&plan, &program, Temporaries::Arena);
        assert_eq!(layout.offset(&plan, BufferId(2)), 64);
        assert_eq!((layout.scratch, layout.aside, layout.bytes), (512, 1024, 1280));
        assert_eq!(layout.inputs, BTreeMap::from([(BufferId(0), 768)]));
        let fresh = Layout::new(&plan, &program, Temporaries::Fresh);
        assert_eq!((fresh.scratch, fresh.bytes), (0, 768));
    }

    #[test]
    fn microbatches_get_their_part_of_what_has_a_batch() {
        let f32 = |shape: &[usize]| TensorType::new(DType::F32, shape.to_vec());
        let input = |name: &str, ty| buffer(name, BufferRole::Input, ty);
        let index = TensorType::new(DType::U32, []);
        let body = vec![input("x", f32(&[2, 100])), input("rate", f32(&[])), input("part", index)];
        let body = plan(body, vec![], vec![Place::Own; 3]);
        let tail = plan(vec![input("rate", f32(&[]))], vec![], vec![Place::Own]);
        let microbatches = Microbatches {
            count: 3,
            index: "part".into(),
            ranks: 1,
            sums: vec![],
            inputs: vec![("x".into(), f32(&[6, 100])), ("rate".into(), f32(&[]))],
            outputs: vec![],
            shards: vec![],
            tail: tail.clone(),
        };
        let program = ProgramPlan::divided(body.clone(), microbatches);
        let batch = Batch::new(&program, 0);
        assert_eq!(batch.inputs, [("x".to_string(), 0), ("rate".to_string(), 2560)]);
        assert_eq!((batch.indices, batch.bytes), (Some((2816, 3)), 3072));
        let layout = Layout::new(&body, &Launches::default(), Temporaries::Arena);
        let delivery = |from, to, bytes| Delivery { from, to, bytes };
        let of_body = |index| batch.deliveries(&program, &body, &layout, index);
        // The last two are neighbours in the batch as in the plan's memory when the index is the first.
        assert_eq!(of_body(0), [delivery(0, 512, 800), delivery(2560, 1536, 260)]);
        assert_eq!(of_body(2), [delivery(1600, 512, 800), delivery(2560, 1536, 4), delivery(2824, 1792, 4)]);
        // Of a second rank, the first microbatch comes after all of the first one.
        let second = Batch { first: 2, ..Batch::new(&program, 0) };
        assert_eq!(
            second.deliveries(&program, &body, &layout, 0),
            [delivery(1600, 512, 800), delivery(2560, 1536, 260)]
        );
        assert_eq!((Batch::new(&program, 0).first, Batch::new(&program, 2).first), (0, 6));
        let layout = Layout::new(&tail, &Launches::default(), Temporaries::Arena);
        assert_eq!(batch.deliveries(&program, &tail, &layout, 0), [delivery(2560, 512, 4)]);
        // A program that is not divided takes its whole batch in one copy.
        let whole = ProgramPlan::whole(body.clone());
        let layout = Layout::new(&body, &Launches::default(), Temporaries::Arena);
        assert_eq!(Batch::new(&whole, 0).deliveries(&whole, &body, &layout, 0).len(), 1);
    }
}
