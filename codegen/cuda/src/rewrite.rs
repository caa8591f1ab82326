//! Kernels as several kernels, where no function does all of one: values go through scratch memory in between.

use super::body::operands;
use super::lower::Lowering;
use super::tiles::LARGE;
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::analysis::{indices_mut, reduces};
use kernfusion_ir::kernel::{
    Band, BufferId, Consumer, Contraction, Direction, Domain, Form, Index, Indirect, InstrKind, Kernel,
    Operand, Product, Region, Scalar, Store, StoreMode,
};
use kernfusion_ir::{Binary, DType};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

impl Lowering<'_> {
    /// A kernel that adds to memory beside other work: it stores what is added and where, and a map adds it.
    pub(super) fn split_scatter(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        let (adds, mut others): (Vec<_>, Vec<_>) =
            kernel.stores.iter().cloned().partition(|store| store.mode == StoreMode::Add);
        let mut stored = BTreeMap::new();
        for value in adds.iter().flat_map(operands) {
            if let std::collections::btree_map::Entry::Vacant(entry) = stored.entry(value) {
                let (buffer, store) = self.materialised("added", kernel, value)?;
                entry.insert(buffer);
                others.push(store);
            }
        }
        self.form(&Kernel { stores: others, ..kernel.clone() })?;
        let dense = dense(&kernel.domain);
        let mut region = Region::default();
        let mut load = |value: Scalar| {
            let load = InstrKind::Load { buffer: stored[&value], index: dense.clone(), guard: vec![] };
            region.push(load, kernel.region.instr(value).dtype)
        };
        let stores = adds.iter().map(|add| {
            let indirect = add.index.indirect.iter();
            let indirect = indirect.map(|term| Indirect { value: load(term.value), ..*term }).collect();
            Store { value: load(add.value), index: Index { indirect, ..add.index.clone() }, ..add.clone() }
        });
        let stores = stores.collect();
        let adding = Kernel {
            form: Form::Map,
            domain: Domain::flat(kernel.domain.axes.clone()),
            region,
            stores,
            ..kernel.clone()
        };
        self.named("add", |lowering| lowering.form(&adding))
    }

    /// A store of a value into scratch memory at each point.
    fn materialised(
        &mut self,
        name: &str,
        kernel: &Kernel,
        value: Scalar,
    ) -> Result<(BufferId, Store), CodegenError> {
        let dtype = kernel.region.instr(value).dtype;
        let buffer = self.scratch(name, dtype, kernel.domain.points())?;
        Ok((buffer, Store { value, buffer, index: dense(&kernel.domain), mode: StoreMode::Set }))
    }

    /// A contraction whose operands are what memory holds: what many tiles would convert each for itself, from `f32` to 16 bits, is
    /// converted before, the whole buffer at once.
    pub(super) fn with_converted_operands(&mut self, kernel: &Kernel) -> Result<Kernel, CodegenError> {
        let domain = &kernel.domain;
        let mut result = kernel.clone();
        if domain.extent(domain.row_axes()).min(domain.extent(domain.column_axes())) < MANY_READERS {
            return Ok(result);
        }
        let mut converted: BTreeMap<(BufferId, DType), BufferId> = BTreeMap::new();
        for operand in result.operands_mut() {
            let Some((buffer, dtype)) = conversion(operand) else { continue };
            let known = converted.get(&(buffer, dtype)).copied();
            let copy = known.map_or_else(|| self.converted(kernel, buffer, dtype), Ok)?;
            converted.insert((buffer, dtype), copy);
            let loaded = operand.region.instrs.iter_mut().find_map(|instr| match &mut instr.kind {
                InstrKind::Load { buffer, .. } => Some((buffer, &mut instr.dtype)),
                _ => None,
            });
            let (loaded_buffer, loaded_dtype) = loaded.expect("a conversion of a load");
            (*loaded_buffer, *loaded_dtype) = (copy, dtype);
            operand.value = Scalar(0);
            operand.region.instrs.truncate(1);
        }
        self.moves(&result);
        Ok(result)
    }

    /// A buffer's numbers in another type, in scratch memory.
    fn converted(
        &mut self,
        kernel: &Kernel,
        buffer: BufferId,
        dtype: DType,
    ) -> Result<BufferId, CodegenError> {
        let slot = &self.slots()[buffer.0 as usize];
        let (from, elements) = (slot.dtype, slot.bytes / slot.dtype.size());
        let copy = self.scratch("converted", dtype, elements)?;
        let mut region = Region::default();
        let index = || Index { strides: vec![1], ..Index::default() };
        let load = region.push(InstrKind::Load { buffer, index: index(), guard: vec![] }, from);
        let value = region.push(InstrKind::Cast(load), dtype);
        let stores = vec![Store { value, buffer: copy, index: index(), mode: StoreMode::Set }];
        let map =
            Kernel { form: Form::Map, domain: Domain::flat([elements]), region, stores, ..kernel.clone() };
        self.named("converted", |lowering| lowering.form(&map))?;
        Ok(copy)
    }

    /// A contraction as its products, its region over their entries, and its consumers, slice of rows by slice of rows so
    /// that what lies between them stays small. Where values take less memory than entries, a slice's entries come in pieces: consumers
    /// have long sums, and fewer of them go through memory.
    pub(super) fn split_products(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        let kernel = &self.with_converted_operands(kernel)?;
        let Form::Contraction(contraction) = &kernel.form else {
            unreachable!("only contractions have products")
        };
        let [slices, pieces] = slices(kernel, contraction, self.options.slice_bytes);
        let axis = kernel.domain.outer;
        let rows = if slices == 1 { 0 } else { kernel.domain.axes[axis] };
        let height = rows.div_ceil(slices);
        let part = |first: usize| match slices {
            1 => kernel.clone(),
            _ => sliced(kernel, axis, first, height.min(rows - first)),
        };
        let slice = part(0);
        let largest = cuts(&slice.domain, pieces).swap_remove(0);
        let piece = cut(&slice, &largest).domain;
        let elements =
            |domain: &Domain, dtype| domain.points() / row_length(domain) * row_stride(domain, dtype);
        let mut between = Between::default();
        for product in &contraction.products {
            let elements = elements(&piece, product.dtype);
            between.entries.push(self.scratch("scores", product.dtype, elements)?);
        }
        // A value takes the place of entries, which are read where it is written and nowhere else.
        let mut free = if pieces == 1 { between.entries.clone() } else { vec![] };
        for Consumer { value, .. } in &contraction.consumers {
            if between.values.contains_key(value) {
                continue;
            }
            let dtype = kernel.region.instr(*value).dtype;
            let place = free.iter().position(|entry| self.slots()[entry.0 as usize].dtype == dtype);
            let buffer = match place {
                Some(at) => free.swap_remove(at),
                None => self.scratch("values", dtype, elements(&slice.domain, dtype))?,
            };
            between.values.insert(*value, buffer);
        }
        for first in (0..rows.max(1)).step_by(height.max(1)) {
            self.split_slice(&part(first), pieces, &between, first > 0)?;
        }
        Ok(())
    }

    /// One slice; `adds` if sums over rows have begun in an earlier one.
    fn split_slice(
        &mut self,
        kernel: &Kernel,
        pieces: usize,
        between: &Between,
        adds: bool,
    ) -> Result<(), CodegenError> {
        let mut middle = Kernel { form: Form::Reduce, ..kernel.clone() };
        middle.stores.extend(between.values.iter().map(|(&value, &buffer)| Store {
            value,
            buffer,
            index: aligned(&kernel.domain, kernel.region.instr(value).dtype),
            mode: StoreMode::Set,
        }));
        for ranges in cuts(&kernel.domain, pieces) {
            let piece = cut(kernel, &ranges);
            for (product, entry) in piece.products().iter().zip(&between.entries) {
                let alone = product_alone(&piece, product.clone(), *entry);
                self.named("scores", |lowering| lowering.form(&alone))?;
            }
            if middle.stores.is_empty() {
                continue;
            }
            let mut middle = cut(&middle, &ranges);
            for instr in &mut middle.region.instrs {
                if let InstrKind::Producer(number) = instr.kind {
                    let (buffer, index) = (between.entries[number], aligned(&piece.domain, instr.dtype));
                    instr.kind = InstrKind::Load { buffer, index, guard: vec![] };
                }
            }
            self.named("values", |lowering| lowering.form(&middle))?;
        }
        for consumer in kernel.consumers() {
            let adds = adds && consumer.along == Direction::Rows;
            let second = consumer_alone(kernel, consumer, between.values[&consumer.value], adds);
            self.named("consumer", |lowering| lowering.form(&second))?;
        }
        Ok(())
    }
}

/// With at least this many rows and columns, three tiles or more read each number of an operand.
const MANY_READERS: usize = 3 * 128;

/// The buffer that an operand reads and converts from `f32` to 16 bits, and their type.
fn conversion(operand: &Operand) -> Option<(BufferId, DType)> {
    let [load, cast] = &operand.region.instrs[..] else { return None };
    match (&load.kind, &cast.kind) {
        (InstrKind::Load { buffer, guard, .. }, InstrKind::Cast(Scalar(0)))
            if guard.is_empty()
                && load.dtype == DType::F32
                && matches!(cast.dtype, DType::BF16 | DType::F16) =>
        {
            (operand.value == Scalar(1)).then_some((*buffer, cast.dtype))
        }
        _ => None,
    }
}

/// Scratch memory between the functions of a contraction.
#[derive(Default)]
struct Between {
    /// Of each product.
    entries: Vec<BufferId>,
    /// Of each value that is multiplied again.
    values: BTreeMap<Scalar, BufferId>,
}

/// Each slice has functions of its own, and each piece of one.
const MOST_SLICES: usize = 16;
const MOST_PIECES: usize = 4;

/// How many slices of rows a contraction is computed in, and in how many pieces the entries of each. Sums over rows must be exact enough to be
/// added up.
fn slices(kernel: &Kernel, contraction: &Contraction, slice_bytes: usize) -> [usize; 2] {
    let domain = &kernel.domain;
    let exact = |consumer: &Consumer| consumer.along == Direction::Columns || consumer.dtype == DType::F32;
    let across = reduces(&kernel.region, Direction::Rows);
    if domain.rows == 0 || across || !contraction.consumers.iter().all(exact) {
        return [1, 1];
    }
    let parts = |bytes: usize| bytes.div_ceil(slice_bytes.max(1));
    let most_slices = domain.axes[domain.outer].max(1);
    // Of a point.
    let entries: usize = contraction.products.iter().map(|product| product.dtype.size()).sum();
    let distinct: BTreeSet<_> = contraction.consumers.iter().map(|consumer| consumer.value).collect();
    let values: usize = distinct.into_iter().map(|value| kernel.region.instr(value).dtype.size()).sum();
    if values >= entries || values == 0 {
        return [parts(entries * domain.points()).clamp(1, MOST_SLICES.min(most_slices)), 1];
    }
    let slices = parts(values * domain.points()).clamp(1, (MOST_SLICES / 2).min(most_slices));
    [slices, parts(entries * domain.points() / slices).clamp(1, MOST_PIECES)]
}

/// The rows of some of a domain's axes: for each, the first one, and how many.
type Ranges = Vec<(usize, Range<usize>)>;

/// A domain's rows in about this many pieces, the largest first: along the first axis or, where that has too few points, each of these in pieces of
/// the second one.
fn cuts(domain: &Domain, pieces: usize) -> Vec<Ranges> {
    let along = |axis: usize, pieces: usize| {
        let extent = domain.axes[axis];
        let height = extent.div_ceil(pieces).max(1);
        // Where a piece has several tiles, these are whole.
        let height = if height > LARGE[0] { height.next_multiple_of(LARGE[0]) } else { height };
        (0..extent.max(1)).step_by(height).map(move |first| (axis, first..(first + height).min(extent)))
    };
    let [first, rest @ ..] = &domain.axes[domain.row_axes()] else { return vec![vec![]] };
    let axis = domain.outer;
    if pieces == 1 {
        vec![vec![]]
    } else if *first >= pieces || rest.is_empty() {
        along(axis, pieces).map(|range| vec![range]).collect()
    } else {
        let inner = along(axis + 1, pieces.div_ceil((*first).max(1)));
        along(axis, *first)
            .flat_map(|outer| inner.clone().map(move |inner| vec![outer.clone(), inner]))
            .collect()
    }
}

/// The kernel on some of its rows.
fn cut(kernel: &Kernel, ranges: &Ranges) -> Kernel {
    ranges
        .iter()
        .fold(kernel.clone(), |kernel, (axis, range)| sliced(&kernel, *axis, range.start, range.len()))
}

/// The kernel on some points of one of its axes.
fn sliced(kernel: &Kernel, axis: usize, first: usize, count: usize) -> Kernel {
    let shift = |index: &mut Index| index.offset += index.strides[axis] * first as i64;
    let shift_region = |region: &mut Region| {
        region.instrs.iter_mut().flat_map(|instr| indices_mut(&mut instr.kind)).for_each(shift);
    };
    let mut result = kernel.clone();
    result.domain.axes[axis] = count;
    shift_region(&mut result.region);
    result.operands_mut().for_each(|operand| shift_region(&mut operand.region));
    result.stores.iter_mut().for_each(|store| shift(&mut store.index));
    if let Form::Contraction(contraction) = &mut result.form {
        contraction.consumers.iter_mut().for_each(|consumer| shift(&mut consumer.index));
        // Only functions that compute a whole chain know of bands.
        contraction.band = None;
    }
    result
}

/// The row-major offset of each point.
pub(super) fn dense(domain: &Domain) -> Index {
    let strides = kernfusion_ir::strides(&domain.axes).iter().map(|&stride| stride as i64).collect();
    Index { offset: 0, strides, indirect: vec![] }
}

/// Numbers of a row.
fn row_length(domain: &Domain) -> usize {
    domain.extent(domain.column_axes()).max(1)
}

/// Numbers from a row to the next: rows begin at multiples of 16 bytes, unless they are shorter than that, and long ones at a line of the caches.
fn row_stride(domain: &Domain, dtype: DType) -> usize {
    let length = row_length(domain);
    let multiple = if length < LONG_ROW { PIECE } else { CACHE_LINE } / dtype.size();
    if length < multiple { length } else { length.next_multiple_of(multiple) }
}

/// Bytes that products copy at a time, and those of a line of the caches.
pub(super) const PIECE: usize = 16;
const CACHE_LINE: usize = 128;
/// Numbers of a row that is so long that those up to the next line are few beside them.
const LONG_ROW: usize = 1024;

/// As `dense`, with rows `row_stride` apart: products copy them in pieces of 16 bytes.
fn aligned(domain: &Domain, dtype: DType) -> Index {
    let mut index = dense(domain);
    let (length, stride) = (row_length(domain) as i64, row_stride(domain, dtype) as i64);
    index.strides[..domain.column_axes().start]
        .iter_mut()
        .for_each(|outer| *outer = *outer / length * stride);
    index
}

/// A contraction that stores the entries of one product.
fn product_alone(kernel: &Kernel, product: Product, entry: BufferId) -> Kernel {
    let mut region = Region::default();
    let value = region.push(InstrKind::Producer(0), product.dtype);
    let index = aligned(&kernel.domain, product.dtype);
    let store = Store { value, buffer: entry, index, mode: StoreMode::Set };
    let form = Form::Contraction(vec![product].into());
    Kernel { form, region, stores: vec![store], ..kernel.clone() }
}

/// A consumer as a contraction of values in memory: its sum runs over columns (or rows) of the kernel, and its own columns
/// are the axes p. `adds` to what is there already.
fn consumer_alone(kernel: &Kernel, consumer: &Consumer, values: BufferId, adds: bool) -> Kernel {
    let domain = &kernel.domain;
    let rank = domain.axes.len();
    let (kept, summed) = match consumer.along {
        Direction::Columns => (domain.row_axes(), domain.column_axes()),
        Direction::Rows => (domain.column_axes(), domain.row_axes()),
    };
    let p = rank..rank + consumer.p.len();
    let order: Vec<usize> = domain.outer_axes().chain(kept).chain(p).collect();
    let with_k: Vec<usize> = order.iter().copied().chain(summed).collect();
    let extents = [&domain.axes[..], &consumer.p].concat();
    let reordered = |index: &Index, order: &[usize]| Index {
        strides: order.iter().map(|&axis| index.strides.get(axis).copied().unwrap_or(0)).collect(),
        ..index.clone()
    };
    let mut left = Region::default();
    let dtype = kernel.region.instr(consumer.value).dtype;
    let index = reordered(&aligned(domain, dtype), &with_k);
    let value = left.push(InstrKind::Load { buffer: values, index, guard: vec![] }, dtype);
    let mut b = consumer.with.clone();
    for index in b.region.instrs.iter_mut().flat_map(|instr| indices_mut(&mut instr.kind)) {
        *index = reordered(index, &with_k);
    }
    let k = with_k[order.len()..].iter().map(|&axis| extents[axis]).collect();
    let product = Product { k, a: Operand { region: left, value }, b, dtype: consumer.dtype };
    let mut region = Region::default();
    let mut value = region.push(InstrKind::Producer(0), consumer.dtype);
    let index = reordered(&consumer.index, &order);
    if adds {
        let load = InstrKind::Load { buffer: consumer.buffer, index: index.clone(), guard: vec![] };
        let before = region.push(load, consumer.dtype);
        value = region.push(InstrKind::Binary(Binary::Add, before, value), consumer.dtype);
    }
    let store = Store { value, buffer: consumer.buffer, index, mode: StoreMode::Set };
    let rows = order.len() - domain.outer - consumer.p.len();
    Kernel {
        form: Form::Contraction(vec![product].into()),
        domain: Domain { axes: order.iter().map(|&axis| extents[axis]).collect(), outer: domain.outer, rows },
        region,
        stores: vec![store],
        ..kernel.clone()
    }
}

/// A contraction with rows and columns, operands and directions exchanged.
pub(super) fn transposed(kernel: &Kernel) -> Kernel {
    let domain = &kernel.domain;
    let rank = domain.axes.len();
    let order: Vec<usize> =
        domain.outer_axes().chain(domain.column_axes()).chain(domain.row_axes()).collect();
    let reorder = |index: &mut Index| {
        let further = rank..index.strides.len();
        index.strides = order.iter().copied().chain(further).map(|axis| index.strides[axis]).collect();
    };
    let mut result = kernel.clone();
    result.domain = Domain {
        axes: order.iter().map(|&axis| domain.axes[axis]).collect(),
        rows: domain.column_axes().len(),
        outer: domain.outer,
    };
    let reorder_region = |region: &mut Region| {
        region.instrs.iter_mut().flat_map(|instr| indices_mut(&mut instr.kind)).for_each(reorder);
    };
    reorder_region(&mut result.region);
    result.operands_mut().for_each(|operand| reorder_region(&mut operand.region));
    result.stores.iter_mut().for_each(|store| reorder(&mut store.index));
    if let Form::Contraction(Contraction { products, consumers, band, .. }) = &mut result.form {
        products.iter_mut().for_each(|product| std::mem::swap(&mut product.a, &mut product.b));
        for consumer in consumers {
            reorder(&mut consumer.index);
            consumer.along = match consumer.along {
                Direction::Columns => Direction::Rows,
                Direction::Rows => Direction::Columns,
            };
        }
        // column ≤ row + upper is row ≥ column − upper.
        *band = band.map(|Band { lower, upper }| Band { lower: upper.map(|u| -u), upper: lower.map(|l| -l) });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::TensorType;
    use kernfusion_ir::evaluate::{Array, Precision};
    use kernfusion_ir::kernel::{Buffer, BufferRole, KernelGraph, interpret};

    /// Every row is in one piece.
    #[test]
    fn pieces_are_of_whole_tiles() {
        let pieces = |rows: &[usize], count| -> Vec<Vec<[usize; 2]>> {
            let domain = Domain { axes: [&[3], rows, &[50]].concat(), outer: 1, rows: rows.len() };
            let ends =
                |ranges: Ranges| ranges.into_iter().map(|(_, range)| [range.start, range.end]).collect();
            cuts(&domain, count).into_iter().map(ends).collect()
        };
        let of_two = [[[0, 1], [0, 512]], [[0, 1], [512, 1024]], [[1, 2], [0, 512]], [[1, 2], [512, 1024]]];
        assert_eq!(pieces(&[2, 1024], 4), of_two);
        assert_eq!(pieces(&[8, 20], 3), [[[0, 3]], [[3, 6]], [[6, 8]]]);
        assert_eq!(pieces(&[700], 4), [[[0, 256]], [[256, 512]], [[512, 700]]]);
        assert_eq!(pieces(&[7], 4), [[[0, 2]], [[2, 4]], [[4, 6]], [[6, 7]]]);
        assert_eq!((pieces(&[7], 1), pieces(&[], 4)), (vec![vec![]], vec![vec![]]));
    }

    /// Slices of rows add up to the whole: products along the columns and across the rows of x·yᵀ.
    #[test]
    fn slices_compute_what_the_whole_does() {
        let [m, n, k, p] = [7, 5, 3, 2];
        let index = |strides: [i64; 3]| Index { strides: strides.to_vec(), ..Index::default() };
        let operand = |buffer, strides| {
            let mut region = Region::default();
            let load = InstrKind::Load { buffer: BufferId(buffer), index: index(strides), guard: vec![] };
            let value = region.push(load, DType::F32);
            Operand { region, value }
        };
        let mut region = Region::default();
        let value = region.push(InstrKind::Producer(0), DType::F32);
        let consumer = |along, with, buffer, strides| Consumer {
            value,
            along,
            p: vec![p],
            with,
            dtype: DType::F32,
            buffer: BufferId(buffer),
            index: index(strides),
        };
        let a = operand(0, [k as i64, 0, 1]);
        let b = operand(1, [0, k as i64, 1]);
        let consumers = vec![
            consumer(Direction::Columns, operand(2, [0, p as i64, 1]), 4, [p as i64, 0, 1]),
            consumer(Direction::Rows, operand(3, [p as i64, 0, 1]), 5, [0, p as i64, 1]),
        ];
        let products = vec![Product { k: vec![k], a, b, dtype: DType::F32 }];
        let form = Form::Contraction(Contraction { products, consumers, ..Contraction::default() });
        let domain = Domain { axes: vec![m, n], outer: 0, rows: 1 };
        let kernel = Kernel { name: "whole".into(), form, domain, region, stores: vec![], covers: vec![] };
        let shapes = [[m, k], [n, k], [n, p], [m, p], [m, p], [n, p]];
        let run = |kernels: Vec<Kernel>, output: usize| {
            let buffers = shapes.iter().enumerate().map(|(at, shape)| Buffer {
                name: format!("b{at}"),
                ty: TensorType::new(DType::F32, *shape),
                role: if at < 4 { BufferRole::Input } else { BufferRole::Temporary },
                continues: None,
            });
            let outputs =
                vec![("y".to_string(), BufferId(output as u32), TensorType::new(DType::F32, shapes[output]))];
            let graph =
                KernelGraph { buffers: buffers.collect(), kernels, outputs, ..KernelGraph::default() };
            let numbers =
                |at: usize, count: usize| (0..count).map(|i| ((i * 7 + at) % 11) as f64 - 5.0).collect();
            let inputs = (0..4).map(|at| {
                let ty = TensorType::new(DType::F32, shapes[at]);
                (format!("b{at}"), Array { values: numbers(at, ty.elements()), ty })
            });
            interpret(&graph, &inputs.collect(), Precision::Declared).expect("all inputs")["y"].values.clone()
        };
        let parts = |first, count| sliced(&kernel, 0, first, count);
        assert_eq!(run(vec![parts(0, 4), parts(4, 3)], 4), run(vec![kernel.clone()], 4));
        let sums: Vec<Vec<f64>> =
            [(0, 4), (4, 3)].map(|(first, count)| run(vec![parts(first, count)], 5)).into();
        let added: Vec<f64> = sums[0].iter().zip(&sums[1]).map(|(x, y)| x + y).collect();
        assert_eq!(added, run(vec![kernel.clone()], 5));
    }
}
