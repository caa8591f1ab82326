//! Loops: where a body's buffers lie in each iteration.

use super::{BufferId, BufferRole, KernelGraph, Plan};
use crate::TensorType;
use serde::Serialize;

/// Alignment of what is carried, in bytes.
const ALIGNMENT: usize = 64;

/// A plan that runs several times. What it reads and hands out lies in buffers of the graph around it: of a tensor with a
/// slice for every iteration, the body sees the slice of its iteration.
///
/// ```text
/// loop lstm, 64 iterations
///   h = h0 … h'          (carried)
///   z = xw[t]            (a slice)
///   w = w                (a constant)
///   hs[t] = h'           (a result)
///   kernels of the body
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Loop {
    /// How often the body runs, once or more.
    pub iterations: usize,
    /// Whether the first iteration has the last slices.
    pub reverse: bool,
    /// The body. Its outputs are the next values of what is carried, then the results.
    pub body: Box<Plan>,
    /// What is handed from iteration to iteration, in the order of the body's outputs.
    pub carried: Vec<Carried>,
    /// Tensors of which the body reads a slice along the first axis.
    pub slices: Vec<Window>,
    /// Tensors that the body reads whole.
    pub constants: Vec<Window>,
    /// Tensors of which every iteration writes a slice, in the order of the body's outputs that are not carried.
    pub results: Vec<BufferId>,
    /// Memory for the body's arena and for what is carried. It is a buffer of its own, unless it is empty.
    pub scratch: Option<BufferId>,
}

/// A buffer of the body and the one around it that it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Window {
    /// In the graph around the loop.
    pub outer: BufferId,
    /// In the body.
    pub inner: BufferId,
}

/// A value that an iteration takes from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Carried {
    /// What the first iteration reads, in the graph around the loop.
    pub first: BufferId,
    /// What the body reads.
    pub inner: BufferId,
    /// Where the last value goes, in the graph around the loop, if anything reads it there.
    pub last: Option<BufferId>,
}

/// A place in a buffer of the graph around a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferOffset {
    /// The buffer.
    pub buffer: BufferId,
    /// Bytes from its start.
    pub offset: usize,
}

/// A copy between buffers of the graph around a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// From where.
    pub from: BufferOffset,
    /// To where.
    pub to: BufferOffset,
    /// How many bytes.
    pub bytes: usize,
}

/// Where the buffers of a body lie in one iteration, and what is copied when it is over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Iteration {
    /// Every buffer of the body that is not in its arena.
    pub places: Vec<(BufferId, BufferOffset)>,
    /// After its kernels.
    pub copies: Vec<Transfer>,
}

impl Loop {
    /// The buffers that it reads, of the graph around it.
    pub fn reads(&self) -> impl Iterator<Item = BufferId> {
        let windows = self.slices.iter().chain(&self.constants).map(|window| window.outer);
        self.carried.iter().map(|carried| carried.first).chain(windows)
    }

    /// The buffers that it writes, of the graph around it.
    pub fn writes(&self) -> impl Iterator<Item = BufferId> {
        let last = self.carried.iter().filter_map(|carried| carried.last);
        last.chain(self.results.iter().copied()).chain(self.scratch)
    }

    /// Every number of a buffer of the graph around it, to be changed.
    pub fn outer_mut(&mut self) -> impl Iterator<Item = &mut BufferId> {
        let carried = self.carried.iter_mut().flat_map(|c| std::iter::once(&mut c.first).chain(&mut c.last));
        let windows = self.slices.iter_mut().chain(&mut self.constants).map(|window| &mut window.outer);
        carried.chain(windows).chain(&mut self.results).chain(&mut self.scratch)
    }

    /// Buffers that a body with these outputs writes where the loop wants them rather than in its arena.
    pub fn handed_out(body: &KernelGraph) -> impl Iterator<Item = BufferId> {
        let outputs = body.outputs.iter().map(|(_, buffer, _)| *buffer);
        outputs.filter(|&buffer| body.buffer(buffer).role == BufferRole::Temporary)
    }

    /// The kernels of the body.
    pub fn graph(&self) -> &KernelGraph {
        &self.body.graph
    }

    /// Bytes of scratch: the body's arena, then two places for each value that is carried.
    pub fn scratch_bytes(&self) -> usize {
        self.carried_at(self.carried.len(), 0)
    }

    /// Where the loop keeps what is carried in turns of that parity.
    fn carried_at(&self, number: usize, parity: usize) -> usize {
        let bytes = |at: usize| self.output(at).1.bytes().next_multiple_of(ALIGNMENT);
        let before: usize = (0..number).map(|at| 2 * bytes(at)).sum();
        let own = if parity == 1 { bytes(number) } else { 0 };
        self.body.arena_bytes.next_multiple_of(ALIGNMENT) + before + own
    }

    /// An output of the body.
    fn output(&self, number: usize) -> (BufferId, &TensorType) {
        let (_, buffer, ty) = &self.body.graph.outputs[number];
        (*buffer, ty)
    }

    /// Where a result's slice of an iteration lies.
    fn slice_of(&self, result: usize, iteration: usize) -> BufferOffset {
        let bytes = self.output(self.carried.len() + result).1.bytes();
        BufferOffset { buffer: self.results[result], offset: self.place(iteration) * bytes }
    }

    fn place(&self, iteration: usize) -> usize {
        if self.reverse { self.iterations - 1 - iteration } else { iteration }
    }

    /// Where a value that is carried on lies after an iteration.
    fn next_at(&self, number: usize, iteration: usize) -> BufferOffset {
        let buffer = self.output(number).0;
        match self.written_at(buffer, iteration) {
            Some(spot) => spot,
            None => self.kept_at(number, iteration),
        }
    }

    fn kept_at(&self, number: usize, iteration: usize) -> BufferOffset {
        let buffer = self.scratch.expect("a loop that carries has scratch");
        BufferOffset { buffer, offset: self.carried_at(number, iteration % 2) }
    }

    /// Where a body writes a buffer that it hands out: to the slice of a result, else to where it is carried. `None` of
    /// an input.
    fn written_at(&self, buffer: BufferId, iteration: usize) -> Option<BufferOffset> {
        if self.graph().buffer(buffer).role != BufferRole::Temporary {
            return None;
        }
        // Results come last.
        match (0..self.graph().outputs.len()).rfind(|&number| self.output(number).0 == buffer)? {
            at if at >= self.carried.len() => Some(self.slice_of(at - self.carried.len(), iteration)),
            at => Some(self.kept_at(at, iteration)),
        }
    }

    /// Where an input of the body lies in an iteration.
    fn inputs_at(&self, iteration: usize) -> impl Iterator<Item = (BufferId, BufferOffset)> {
        let carried = self.carried.iter().enumerate().map(move |(number, carried)| {
            let first = BufferOffset { buffer: carried.first, offset: 0 };
            (carried.inner, if iteration == 0 { first } else { self.next_at(number, iteration - 1) })
        });
        let slices = self.slices.iter().map(move |window| {
            let bytes = self.graph().buffer(window.inner).ty.bytes();
            (window.inner, BufferOffset { buffer: window.outer, offset: self.place(iteration) * bytes })
        });
        let whole = |window: &Window| (window.inner, BufferOffset { buffer: window.outer, offset: 0 });
        carried.chain(slices).chain(self.constants.iter().map(whole))
    }

    /// Where everything lies in an iteration.
    pub fn iteration(&self, iteration: usize) -> Iteration {
        let mut places: Vec<_> = self.inputs_at(iteration).collect();
        for buffer in Self::handed_out(self.graph()) {
            if !places.iter().any(|(other, _)| *other == buffer) {
                let spot = self.written_at(buffer, iteration).expect("it is a temporary that is an output");
                places.push((buffer, spot));
            }
        }
        let at = |buffer: BufferId| {
            let place = places.iter().find(|(other, _)| *other == buffer);
            place.expect("every input and output has a place").1
        };
        let mut copies = vec![];
        for number in 0..self.graph().outputs.len() {
            let (buffer, ty) = self.output(number);
            let from = at(buffer);
            let to = match number.checked_sub(self.carried.len()) {
                Some(result) => self.slice_of(result, iteration),
                None => self.next_at(number, iteration),
            };
            copies.extend((from != to).then_some(Transfer { from, to, bytes: ty.bytes() }));
        }
        Iteration { places, copies }
    }

    /// What is copied after the last iteration.
    pub fn copies_at_the_end(&self) -> Vec<Transfer> {
        let last = self.carried.iter().enumerate().filter_map(|(number, carried)| {
            let to = BufferOffset { buffer: carried.last?, offset: 0 };
            Some(Transfer {
                from: self.next_at(number, self.iterations - 1),
                to,
                bytes: self.output(number).1.bytes(),
            })
        });
        last.collect()
    }
}
