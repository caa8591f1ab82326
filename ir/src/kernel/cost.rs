//! What a kernel costs at least: bytes moved and operations, from its text alone. Planner, `explain` and profiles
//! count with these numbers.

use super::{BufferId, Contraction, Domain, Form, Index, InstrKind, Kernel, KernelGraph, Region};
use std::collections::BTreeMap;

impl Kernel {
    /// Arithmetic operations of one run: every scalar instruction that computes, once for each point (in an operand
    /// of a product: for each point of that operand), and 2·m·n·k for each product. Constants, coordinates, loads
    /// and conditions on coordinates are free.
    pub fn operations(&self) -> usize {
        let Domain { axes, .. } = &self.domain;
        if let Some(repeated) = self.repeated() {
            return repeated.iterations
                * repeated.graph().kernels.iter().map(Kernel::operations).sum::<usize>();
        }
        if let Some(call) = self.collective() {
            return self.domain.points() / call.op.ranks * (call.op.ranks - 1);
        }
        let mut operations = computing(&self.region).saturating_mul(self.domain.points());
        for product in self.products() {
            let k: usize = product.k.iter().product();
            let [rows, columns] = [self.domain.row_axes(), self.domain.column_axes()]
                .map(|group| axes[..self.domain.outer].iter().chain(&axes[group]).product::<usize>() * k);
            let prologues = computing(&product.a.region) * rows + computing(&product.b.region) * columns;
            operations = operations.saturating_add(2 * self.domain.points() * k + prologues);
        }
        for consumer in self.consumers() {
            let p: usize = consumer.p.iter().product();
            operations = operations.saturating_add(2 * self.domain.points() * p);
        }
        // What a band leaves out is never computed.
        let [outer, rows, columns] =
            [self.domain.outer_axes(), self.domain.row_axes(), self.domain.column_axes()]
                .map(|group| self.domain.extent(group));
        match &self.form {
            Form::Contraction(Contraction { band: Some(band), .. }) if outer * rows * columns > 0 => {
                let inside: usize = (0..rows).map(|row| band.columns(row..row + 1, columns).len()).sum();
                (operations as u128 * inside as u128 / (rows * columns) as u128) as usize
            }
            _ => operations,
        }
    }

    /// The fewest bytes that the kernel reads and writes; `size` gives the elements of a buffer and the bytes of each. Loops and collectives
    /// move other bytes.
    pub fn bytes_read_and_written(&self, size: impl Fn(BufferId) -> [usize; 2]) -> [usize; 2] {
        let (mut read, mut written) = (BTreeMap::new(), BTreeMap::new());
        for (region, axes) in self.regions() {
            for instr in &region.instrs {
                if let InstrKind::Load { buffer, index, .. } = &instr.kind {
                    *read.entry(*buffer).or_insert(0) += reached(region, index, &axes, &self.domain);
                }
            }
        }
        for store in &self.stores {
            *written.entry(store.buffer).or_insert(0) +=
                reached(&self.region, &store.index, &self.domain.axes, &self.domain);
        }
        for consumer in self.consumers() {
            let axes = [&self.domain.axes[..], &consumer.p].concat();
            *written.entry(consumer.buffer).or_insert(0) +=
                reached(&self.region, &consumer.index, &axes, &self.domain);
        }
        let bytes = |(id, reached): (BufferId, usize)| {
            let [elements, bytes] = size(id);
            reached.min(elements).saturating_mul(bytes)
        };
        [read, written].map(|buffers| buffers.into_iter().map(bytes).sum())
    }

    /// Every region, with the extents of the axes it runs over.
    fn regions(&self) -> Vec<(&Region, Vec<usize>)> {
        let mut regions = vec![(&self.region, self.domain.axes.clone())];
        regions.extend(
            self.operands()
                .map(|(operand, further)| (&operand.region, [&self.domain.axes[..], further].concat())),
        );
        regions
    }
}

impl KernelGraph {
    /// Bytes that a kernel moves at least: every element that its index maps reach, once read and once written.
    pub fn bytes_moved(&self, kernel: &Kernel) -> usize {
        match kernel.repeated() {
            Some(repeated) => repeated.iterations * repeated.body.bytes_moved(),
            None => self.bytes_read_and_written(kernel).iter().sum(),
        }
    }

    /// Bytes that a kernel sends to other ranks; only a collective does.
    pub fn bytes_sent(&self, kernel: &Kernel) -> usize {
        kernel.collective().map_or(0, |call| call.op.bytes_sent(&self.buffer(call.from).ty))
    }

    /// Bytes that a kernel, which is no loop, reads at least, and those that it writes.
    pub fn bytes_read_and_written(&self, kernel: &Kernel) -> [usize; 2] {
        if let Some(call) = kernel.collective() {
            return [call.from, call.to].map(|buffer| self.buffer(buffer).ty.bytes());
        }
        kernel.bytes_read_and_written(|id| {
            let ty = &self.buffer(id).ty;
            [ty.elements(), ty.dtype.size()]
        })
    }
}

/// How many elements an index map reaches at most: the points along the axes that move it, directly or through an
/// indirect term.
fn reached(region: &Region, index: &Index, axes: &[usize], domain: &Domain) -> usize {
    let moves = |axis: &usize| {
        index.strides[*axis] != 0
            || index.indirect.iter().any(|term| region.varies(term.value, *axis..axis + 1, domain))
    };
    (0..axes.len()).filter(moves).map(|axis| axes[axis]).product()
}

/// The number of instructions that compute.
fn computing(region: &Region) -> usize {
    let computes = |kind: &InstrKind| match kind {
        InstrKind::Constant(_)
        | InstrKind::Coordinate(_)
        | InstrKind::Load { .. }
        | InstrKind::Producer(_)
        | InstrKind::InRange(_) => false,
        InstrKind::Random { .. }
        | InstrKind::Unary(..)
        | InstrKind::Binary(..)
        | InstrKind::Compare(..)
        | InstrKind::Select(..)
        | InstrKind::Cast(_)
        | InstrKind::Reduce(..) => true,
    };
    region.instrs.iter().filter(|instr| computes(&instr.kind)).count()
}
