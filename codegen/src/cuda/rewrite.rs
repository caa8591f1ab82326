//! Kernels as several kernels, where no function does all of one: values go through scratch memory in between.

use super::body::operands;
use super::lower::Lowering;
use crate::CodegenError;
use crate::cpu::lower::normalise::indices_mut;
use kernfusion_ir::kernel::{
    Band, BufferId, Consumer, Contraction, Direction, Domain, Form, Index, Indirect, InstrKind, Kernel,
    Operand, Product, Region, Scalar, Store, StoreMode,
};
use std::collections::BTreeMap;

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

    /// A contraction as its products, its region over their entries, and its consumers.
    pub(super) fn split_products(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        let Form::Contraction(contraction) = &kernel.form else {
            unreachable!("only contractions have products")
        };
        let mut entries = vec![];
        for product in &contraction.products {
            let entry = self.scratch("scores", product.dtype, kernel.domain.points())?;
            entries.push(entry);
            let alone = product_alone(kernel, product.clone(), entry);
            self.named("scores", |lowering| lowering.form(&alone))?;
        }
        let mut region = kernel.region.clone();
        for instr in &mut region.instrs {
            if let InstrKind::Producer(number) = instr.kind {
                let (buffer, index) = (entries[number], dense(&kernel.domain));
                instr.kind = InstrKind::Load { buffer, index, guard: vec![] };
            }
        }
        let mut stores = kernel.stores.clone();
        let mut values: BTreeMap<Scalar, BufferId> = BTreeMap::new();
        for Consumer { value, .. } in &contraction.consumers {
            if !values.contains_key(value) {
                // A value takes the place of entries, which are read where it is written and nowhere else.
                let dtype = kernel.region.instr(*value).dtype;
                let place = entries.iter().position(|entry| self.slots()[entry.0 as usize].dtype == dtype);
                let buffer = match place {
                    Some(at) => entries.swap_remove(at),
                    None => self.scratch("values", dtype, kernel.domain.points())?,
                };
                values.insert(*value, buffer);
                let index = dense(&kernel.domain);
                stores.push(Store { value: *value, buffer, index, mode: StoreMode::Set });
            }
        }
        let middle = Kernel { form: Form::Reduce, region, stores, ..kernel.clone() };
        self.named("values", |lowering| lowering.form(&middle))?;
        for consumer in &contraction.consumers {
            let second = consumer_alone(kernel, consumer, values[&consumer.value]);
            self.named("consumer", |lowering| lowering.form(&second))?;
        }
        Ok(())
    }
}

/// The row-major offset of each point.
pub(super) fn dense(domain: &Domain) -> Index {
    let strides = kernfusion_ir::strides(&domain.axes).iter().map(|&stride| stride as i64).collect();
    Index { offset: 0, strides, indirect: vec![] }
}

/// A contraction that stores the entries of one product.
fn product_alone(kernel: &Kernel, product: Product, entry: BufferId) -> Kernel {
    let mut region = Region::default();
    let value = region.push(InstrKind::Producer(0), product.dtype);
    let store = Store { value, buffer: entry, index: dense(&kernel.domain), mode: StoreMode::Set };
    let form = Form::Contraction(vec![product].into());
    Kernel { form, region, stores: vec![store], ..kernel.clone() }
}

/// A consumer as a contraction of values in memory: its sum runs over columns (or rows) of the kernel, and its own columns
/// are the axes p.
fn consumer_alone(kernel: &Kernel, consumer: &Consumer, values: BufferId) -> Kernel {
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
    let index = reordered(&dense(domain), &with_k);
    let value = left.push(InstrKind::Load { buffer: values, index, guard: vec![] }, dtype);
    let mut b = consumer.with.clone();
    for index in b.region.instrs.iter_mut().flat_map(|instr| indices_mut(&mut instr.kind)) {
        *index = reordered(index, &with_k);
    }
    let k = with_k[order.len()..].iter().map(|&axis| extents[axis]).collect();
    let product = Product { k, a: Operand { region: left, value }, b, dtype: consumer.dtype };
    let mut region = Region::default();
    let value = region.push(InstrKind::Producer(0), consumer.dtype);
    let index = reordered(&consumer.index, &order);
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
