//! The verifier of kernel graphs: the invariants at the head of the kernel module, and what the fields of its types
//! promise about each other. Back ends rely on it for the safety of every memory access.

use super::{
    Bound, BufferId, BufferRole, CollectiveCall, Consumer, Direction, Domain, Form, Index, InstrKind, Kernel,
    KernelGraph, Loop, Operand, Product, Region, Scalar, Store, StoreMode,
};
use crate::{DType, Op, TensorType};
use std::collections::HashSet;
use std::ops::Range;

type Checked = Result<(), String>;

/// Checks every invariant of a kernel graph.
///
/// # Errors
/// The first that does not hold, naming the kernel and the instruction.
pub fn verify(graph: &KernelGraph) -> Result<(), String> {
    let mut names = HashSet::new();
    let mut written: Vec<_> = graph.buffers.iter().map(|b| b.role != BufferRole::Temporary).collect();
    for kernel in &graph.kernels {
        let checked = unique(&mut names, &kernel.name).and_then(|()| Checker { graph, kernel }.kernel());
        let checked = checked.and_then(|()| follow(graph, kernel, &mut written));
        checked.map_err(|reason| format!("kernel `{}`: {reason}", kernel.name))?;
    }
    results(graph, &written)
}

fn unique<'a>(names: &mut HashSet<&'a str>, name: &'a str) -> Checked {
    ensure(names.insert(name), || "its name is taken".into())
}

/// A temporary is written before it is read, and all of it by the first kernel that writes it.
fn follow(graph: &KernelGraph, kernel: &Kernel, written: &mut [bool]) -> Checked {
    for id in kernel.reads() {
        ensure(holds_data(graph, id, written), || {
            format!("reads `{}` before a kernel has written it", graph.buffer(id).name)
        })?;
    }
    for id in kernel.writes() {
        let slot = &mut written[id.0 as usize];
        ensure(*slot || may_fill(graph, kernel, id), || {
            format!("writes only a part of `{}`", graph.buffer(id).name)
        })?;
        *slot = true;
    }
    Ok(())
}

/// Whether a kernel stores into a buffer at least as often as it has elements. True where that is not known: a buffer that a kernel
/// adds to is cleared before, and run-time indices may lead anywhere.
fn may_fill(graph: &KernelGraph, kernel: &Kernel, id: BufferId) -> bool {
    let stores = || kernel.stores.iter().filter(|store| store.buffer == id);
    let known = stores().all(|store| store.mode == StoreMode::Set && store.index.indirect.is_empty());
    let points = |store: &Store| -> usize {
        let axes = store.index.strides.iter().zip(&kernel.domain.axes);
        axes.filter(|(stride, _)| **stride != 0).map(|(_, extent)| extent).product()
    };
    let only_stores =
        stores().next().is_some() && kernel.consumers().iter().all(|consumer| consumer.buffer != id);
    !(known && only_stores) || stores().map(points).sum::<usize>() >= graph.buffer(id).ty.elements()
}

fn holds_data(graph: &KernelGraph, id: BufferId, written: &[bool]) -> bool {
    written[id.0 as usize] || graph.buffer(id).ty.elements() == 0
}

fn results(graph: &KernelGraph, written: &[bool]) -> Checked {
    let known = |id: BufferId, what: &dyn Fn() -> String| {
        ensure((id.0 as usize) < graph.buffers.len(), || format!("{}: there is no buffer {}", what(), id.0))?;
        ensure(holds_data(graph, id, written), || {
            format!("{}: no kernel writes `{}`", what(), graph.buffer(id).name)
        })
    };
    for (name, buffer, ty) in &graph.outputs {
        let what = || format!("output {name:?}");
        known(*buffer, &what)?;
        let held = &graph.buffer(*buffer).ty;
        ensure(held.dtype == ty.dtype && held.elements() == ty.elements(), || {
            format!("{}: shows `{}`, {held}, as {ty}", what(), graph.buffer(*buffer).name)
        })?;
    }
    for (state, value) in &graph.updates {
        known(*state, &|| "update".into())?;
        let what = || format!("update of `{}`", graph.buffer(*state).name);
        known(*value, &what)?;
        let (state, value) = (graph.buffer(*state), graph.buffer(*value));
        ensure(state.role == BufferRole::State, || format!("{}: it is no state", what()))?;
        ensure(state.ty.dtype == value.ty.dtype && state.ty.elements() == value.ty.elements(), || {
            format!("{}: its type is {}, that of `{}` {}", what(), state.ty, value.name, value.ty)
        })?;
    }
    Ok(())
}

/// Which instructions a region may have.
#[derive(Clone, Copy, PartialEq)]
enum Place<'a> {
    /// The kernel's own region.
    Kernel,
    /// An operand of a product, by its name; it does not vary along the range of axes.
    Operand(&'a str, &'a Range<usize>),
}

struct Checker<'a> {
    graph: &'a KernelGraph,
    kernel: &'a Kernel,
}

impl Checker<'_> {
    fn kernel(&self) -> Checked {
        if let Some(repeated) = self.kernel.repeated() {
            return self.repeated(repeated);
        }
        if let Some(call) = self.kernel.collective() {
            return self.collective(call);
        }
        let Domain { axes, outer, rows } = &self.kernel.domain;
        ensure(outer + rows <= axes.len(), || {
            format!("has {outer} outer axes and {rows} row axes of {}", axes.len())
        })?;
        for (number, product) in self.kernel.products().iter().enumerate() {
            self.product(product).map_err(|reason| format!("product {number}: {reason}"))?;
        }
        self.region(&self.kernel.region, axes, Place::Kernel)?;
        for (number, consumer) in self.kernel.consumers().iter().enumerate() {
            self.consumer(consumer).map_err(|reason| format!("consumer {number}: {reason}"))?;
        }
        if let Form::Contraction(contraction) = &self.kernel.form {
            contraction
                .inside
                .iter()
                .try_for_each(|condition| defined(*condition, self.kernel.region.instrs.len()))?;
            let plain = *rows == 1 && self.kernel.domain.column_axes().len() == 1;
            ensure(contraction.band.is_none() || plain, || {
                "a band needs one row axis and one column axis".into()
            })?;
        }
        self.kernel.stores.iter().try_for_each(|store| {
            self.store(store).map_err(|reason| format!("store of %{}: {reason}", store.value.0))
        })
    }

    /// Buffers have the types of its op's operand and result, and there is room for the parts.
    fn collective(&self, call: &CollectiveCall) -> Checked {
        let [from, to] = [call.from, call.to].map(|buffer| &self.graph.buffer(buffer).ty);
        let result = Op::from(call.op).infer(&[from])?;
        ensure(result == *to, || format!("gives {result} to a buffer of {to}"))?;
        ensure(call.from != call.to, || "gives and gets the same buffer".into())?;
        let room = call.scratch.map_or(0, |scratch| self.graph.buffer(scratch).ty.bytes());
        ensure(room >= call.op.scratch_bytes(from), || format!("has no room for its parts in {room} bytes"))
    }

    /// The body is right by itself, and its buffers are slices of those that they stand for, or as large.
    fn repeated(&self, repeated: &Loop) -> Checked {
        let Loop { iterations, body, carried, slices, constants, results, .. } = repeated;
        ensure(*iterations > 0, || "has no iterations".into())?;
        verify(&body.graph).map_err(|reason| format!("its body: {reason}"))?;
        let outputs = &body.graph.outputs;
        ensure(outputs.len() == carried.len() + results.len(), || {
            format!("hands on {} of {} outputs", carried.len() + results.len(), outputs.len())
        })?;
        let stands = |outer: BufferId, ty: &TensorType, times: usize| {
            self.buffer(outer, ty.dtype)?;
            let held = &self.graph.buffer(outer).ty;
            ensure(held.elements() == times * ty.elements(), || {
                format!("{ty} stands for {times} part of `{}`, {held}", self.graph.buffer(outer).name)
            })
        };
        let inner = |inner: BufferId| {
            let buffer = body.graph.buffers.get(inner.0 as usize);
            let input = buffer.filter(|buffer| buffer.role == BufferRole::Input);
            input.map(|buffer| &buffer.ty).ok_or_else(|| format!("its body has no input {}", inner.0))
        };
        let given = carried.len() + slices.len() + constants.len();
        let inputs = body.graph.buffers.iter().filter(|buffer| buffer.role != BufferRole::Temporary).count();
        ensure(given == inputs, || format!("gives {given} values to a body of {inputs} inputs"))?;
        for (carried, (_, _, ty)) in carried.iter().zip(outputs) {
            ensure(inner(carried.inner)? == ty, || format!("carries {ty} to another type"))?;
            stands(carried.first, ty, 1)?;
            carried.last.map_or(Ok(()), |last| stands(last, ty, 1))?;
        }
        slices.iter().try_for_each(|window| stands(window.outer, inner(window.inner)?, *iterations))?;
        constants.iter().try_for_each(|window| stands(window.outer, inner(window.inner)?, 1))?;
        let results = results.iter().zip(&outputs[carried.len()..]);
        results.into_iter().try_for_each(|(outer, (_, _, ty))| stands(*outer, ty, *iterations))
    }

    fn product(&self, product: &Product) -> Checked {
        let axes = [&self.kernel.domain.axes[..], &product.k].concat();
        let (columns, rows) = (self.kernel.domain.column_axes(), self.kernel.domain.row_axes());
        for (side, operand, never) in [("a", &product.a, columns), ("b", &product.b, rows)] {
            let Operand { region, value } = operand;
            let checked = self.region(region, &axes, Place::Operand(side, &never));
            let checked = checked.and_then(|()| defined(*value, region.instrs.len()));
            checked.map_err(|reason| format!("operand {side}: {reason}"))?;
        }
        let dtypes = [&product.a, &product.b].map(|operand| operand.region.instr(operand.value).dtype);
        ensure(dtypes[0] == dtypes[1], || format!("its operands are {} and {}", dtypes[0], dtypes[1]))
    }

    fn consumer(&self, consumer: &Consumer) -> Checked {
        let Kernel { region, domain, .. } = self.kernel;
        let axes = [&domain.axes[..], &consumer.p].concat();
        defined(consumer.value, region.instrs.len())?;
        // Named by the side of a product that must not depend on the same axes.
        let (side, never, summed) = match consumer.along {
            Direction::Columns => ("b", domain.row_axes(), domain.column_axes()),
            Direction::Rows => ("a", domain.column_axes(), domain.row_axes()),
        };
        let Operand { region: with, value } = &consumer.with;
        self.region(with, &axes, Place::Operand(side, &never))?;
        defined(*value, with.instrs.len())?;
        let dtypes = [region.instr(consumer.value).dtype, with.instr(*value).dtype];
        ensure(dtypes[0] == dtypes[1], || format!("multiplies {} by {}", dtypes[0], dtypes[1]))?;
        ensure(consumer.index.strides.len() == axes.len(), || "its index map has another rank".into())?;
        ensure(consumer.index.indirect.is_empty(), || "it is stored through an index".into())?;
        ensure(!varies(&consumer.index, &axes, &summed), || "its result depends on what is summed".into())?;
        only_stored(region, &[consumer.value])?;
        self.buffer(consumer.buffer, consumer.dtype)?;
        self.inside(consumer.buffer, &consumer.index, &axes)
    }

    fn region(&self, region: &Region, axes: &[usize], place: Place<'_>) -> Checked {
        for (number, instr) in region.instrs.iter().enumerate() {
            let operands = instr.kind.operands();
            let checked = operands.iter().try_for_each(|operand| defined(*operand, number));
            let checked = checked.and_then(|()| self.placed(&instr.kind, instr.dtype, place));
            let checked = checked.and_then(|()| self.accesses(region, &instr.kind, instr.dtype, axes, place));
            let checked = checked.and_then(|()| typed(region, &instr.kind, instr.dtype));
            let checked = checked.and_then(|()| only_stored(region, &operands));
            checked.map_err(|reason| format!("%{number}: {reason}"))?;
        }
        Ok(())
    }

    /// Whether the form of the kernel, and the place of the region in it, know such an instruction.
    fn placed(&self, kind: &InstrKind, dtype: DType, place: Place<'_>) -> Checked {
        let own = place == Place::Kernel;
        match kind {
            InstrKind::Producer(number) => {
                let product = self.kernel.products().get(*number).filter(|_| own);
                let product = product.ok_or_else(|| format!("there is no product {number} here"))?;
                ensure(product.dtype == dtype, || format!("is {dtype}, the product {}", product.dtype))
            }
            InstrKind::Reduce(..) => {
                ensure(own && self.kernel.form != Form::Map, || "there are no reductions here".into())
            }
            InstrKind::Constant(_)
            | InstrKind::Coordinate(_)
            | InstrKind::Load { .. }
            | InstrKind::Random { .. }
            | InstrKind::Unary(..)
            | InstrKind::Binary(..)
            | InstrKind::Compare(..)
            | InstrKind::Select(..)
            | InstrKind::Cast(_)
            | InstrKind::InRange(_) => Ok(()),
        }
    }

    /// The index maps of an instruction, and the memory that it reads.
    fn accesses(
        &self,
        region: &Region,
        kind: &InstrKind,
        dtype: DType,
        axes: &[usize],
        place: Place<'_>,
    ) -> Checked {
        let map = |index: &Index| {
            mapped(region, index, axes)?;
            match place {
                Place::Operand(side, never) => ensure(!varies(index, axes, never), || {
                    let group = if side == "a" { "columns" } else { "rows" };
                    format!("operand {side} depends on {group}")
                }),
                Place::Kernel => Ok(()),
            }
        };
        let all = |bounds: &[Bound]| bounds.iter().try_for_each(|bound| map(&bound.coordinate));
        match kind {
            InstrKind::Load { buffer, index, guard } => {
                map(index)?;
                all(guard)?;
                self.buffer(*buffer, dtype)?;
                if guard.is_empty() { self.inside(*buffer, index, axes) } else { Ok(()) }
            }
            InstrKind::Coordinate(index) | InstrKind::Random { element: index, .. } => map(index),
            InstrKind::InRange(bounds) => all(bounds),
            InstrKind::Constant(_)
            | InstrKind::Producer(_)
            | InstrKind::Unary(..)
            | InstrKind::Binary(..)
            | InstrKind::Compare(..)
            | InstrKind::Select(..)
            | InstrKind::Cast(_)
            | InstrKind::Reduce(..) => Ok(()),
        }
    }

    fn store(&self, store: &Store) -> Checked {
        let Kernel { region, domain, .. } = self.kernel;
        defined(store.value, region.instrs.len())?;
        for term in &store.index.indirect {
            defined(term.value, region.instrs.len())?;
        }
        mapped(region, &store.index, &domain.axes)?;
        self.buffer(store.buffer, region.instr(store.value).dtype)?;
        self.inside(store.buffer, &store.index, &domain.axes)?;
        let InstrKind::Reduce(_, direction, _) = region.instr(store.value).kind else { return Ok(()) };
        ensure(store.mode == StoreMode::Set, || "a reduced value is added, once for each point".into())?;
        // The value of a row may be spread along it; a reduction over rows is known only after the last row.
        let late = direction == Direction::Rows && varies(&store.index, &domain.axes, &domain.row_axes());
        ensure(!late, || "a reduction over rows is written along the rows".into())
    }

    fn buffer(&self, id: BufferId, dtype: DType) -> Checked {
        let buffer = self.graph.buffers.get(id.0 as usize);
        let buffer = buffer.ok_or_else(|| format!("there is no buffer {}", id.0))?;
        ensure(buffer.ty.dtype == dtype, || format!("{dtype} in `{}`, which is {}", buffer.name, buffer.ty))
    }

    /// Indirect terms are clamped, so that their range is known as well.
    fn inside(&self, id: BufferId, index: &Index, axes: &[usize]) -> Checked {
        let buffer = self.graph.buffer(id);
        let (low, high) = index.range(axes);
        let empty = axes.contains(&0);
        ensure(empty || low >= 0 && high < buffer.ty.elements() as i64, || {
            format!("reaches {low}..={high} of `{}`, which is {}", buffer.name, buffer.ty)
        })
    }
}

/// An index map has one stride for each axis, and integers as run-time terms.
fn mapped(region: &Region, index: &Index, axes: &[usize]) -> Checked {
    ensure(index.strides.len() == axes.len(), || {
        format!("an index map has {} strides for {} axes", index.strides.len(), axes.len())
    })?;
    index.indirect.iter().try_for_each(|term| {
        let dtype = region.instr(term.value).dtype;
        ensure(dtype.is_integer(), || format!("the index %{} is {dtype}", term.value.0))?;
        ensure(term.limit > 0, || format!("the index %{} is clamped to nothing", term.value.0))
    })
}

/// Whether an index takes several values along these axes; along an axis of one point it cannot.
fn varies(index: &Index, axes: &[usize], along: &Range<usize>) -> bool {
    along.clone().any(|axis| index.strides[axis] != 0 && axes[axis] > 1)
}

/// The operands of an instruction have the types that it works on.
fn typed(region: &Region, kind: &InstrKind, dtype: DType) -> Checked {
    let is = |scalar: Scalar, expected: DType| {
        let found = region.instr(scalar).dtype;
        ensure(found == expected, || format!("takes {expected}, but %{} is {found}", scalar.0))
    };
    match kind {
        InstrKind::Unary(_, x) | InstrKind::Reduce(_, _, x) => is(*x, dtype),
        InstrKind::Binary(_, x, y) => is(*x, dtype).and_then(|()| is(*y, dtype)),
        InstrKind::Compare(_, x, y) => {
            is(*y, region.instr(*x).dtype)?;
            ensure(dtype == DType::Bool, || format!("a comparison is bool, not {dtype}"))
        }
        InstrKind::Select(condition, x, y) => {
            is(*condition, DType::Bool)?;
            is(*x, dtype)?;
            is(*y, dtype)
        }
        InstrKind::Random { seed, step, .. } => {
            is(*seed, DType::U32)?;
            is(*step, DType::U32)?;
            ensure(dtype == DType::U32, || format!("random bits are u32, not {dtype}"))
        }
        InstrKind::InRange(_) => ensure(dtype == DType::Bool, || format!("a condition is bool, not {dtype}")),
        InstrKind::Constant(_)
        | InstrKind::Coordinate(_)
        | InstrKind::Load { .. }
        | InstrKind::Producer(_)
        | InstrKind::Cast(_) => Ok(()),
    }
}

/// A reduction across the rows is complete only after the last row, too late for other instructions.
fn only_stored(region: &Region, operands: &[Scalar]) -> Checked {
    let early = operands
        .iter()
        .find(|operand| matches!(region.instr(**operand).kind, InstrKind::Reduce(_, Direction::Rows, _)));
    early.map_or(Ok(()), |operand| Err(format!("uses %{}, a reduction over rows", operand.0)))
}

fn defined(scalar: Scalar, before: usize) -> Checked {
    ensure((scalar.0 as usize) < before, || format!("%{} does not come before its user", scalar.0))
}

fn ensure(ok: bool, reason: impl FnOnce() -> String) -> Checked {
    if ok { Ok(()) } else { Err(reason()) }
}
