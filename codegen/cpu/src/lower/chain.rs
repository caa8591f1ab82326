//! Lowering of [chains](kernfusion_runtime::chain): what is multiplied lies in memory or is computed there first, the region
//! becomes a function on rows of blocks. The size of blocks depends on shapes alone.

use super::contraction::{Factor, axis, element};
use super::normalise::regroup;
use super::row::{Row, WriteMode};
use super::wide::Vectors;
use super::{Lowering, schedule, tile};
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::analysis::reduces;
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{
    Contraction, Direction, Domain, Form, Index, InstrKind, Kernel, Region, Scalar, Store,
};
use kernfusion_runtime::chain::{
    Along, Band, ChainConsumer, ChainProduct, ChainStep, Destination, Placed, stride,
};
use kernfusion_runtime::gemm::{self, Operand};

/// With this many matrices or more, each is one thread's.
const OWN_MATRICES: usize = 8;
/// Bytes of scratch for the entries of one thread's block: three quarters of an L2 cache.
const OWN_SCRATCH: usize = 768 << 10;
/// Bytes of scratch for the entries of a block that threads share.
const SHARED_SCRATCH: usize = 64 << 20;
/// The most rows in a block of one thread, so that a band's edge is not too coarse.
const MOST_ROWS: usize = 64;
/// The region of a chain on blocks.
struct InBlocks {
    region: Region,
    stores: Vec<Store>,
    /// Conditions that hold left of the band's upper edge.
    inside: Vec<Scalar>,
    /// For each consumer its value as `f32`, and the block that takes it.
    values: Vec<(Scalar, usize)>,
    /// The slots of all blocks.
    blocks: Vec<usize>,
}

/// Whether a chain may have products of a dtype: blocks of entries are `f32`.
pub(super) fn is_possible(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
}

impl Lowering<'_> {
    /// A contraction with consumers.
    pub(super) fn chain(&mut self, kernel: &Kernel, contraction: &Contraction) -> Result<(), CodegenError> {
        let domain = &kernel.domain;
        let dtypes = contraction.products.iter().map(|p| p.dtype);
        if !dtypes.chain(contraction.consumers.iter().map(|c| c.dtype)).all(is_possible) {
            return Err(self.unsupported("a chain of products of other than f32 and narrower"));
        }
        if reduces(&kernel.region, Direction::Rows) {
            return Err(self.unsupported("a reduction across the rows of a chain"));
        }
        let mut products = vec![];
        for product in &contraction.products {
            let dtype_of =
                |operand: &kernfusion_ir::kernel::Operand| operand.region.instr(operand.value).dtype;
            let a = self.factor(domain, &product.k, &product.a, dtype_of(&product.b))?;
            let b = self.factor(domain, &product.k, &product.b, dtype_of(&product.a))?;
            let precision = self.precision(a.is_bf16 && b.is_bf16);
            let [rows, columns, k] = [domain.row_axes(), domain.column_axes(), further(domain, &product.k)];
            let a = placed(&a, domain, &product.k, rows, k.clone());
            let b = placed(&b, domain, &product.k, columns, k);
            let block = products.len();
            products.push(ChainProduct { precision, k: product.k.iter().product(), a, b, block });
        }
        let InBlocks { region, stores, inside, values, blocks } = self.in_blocks(kernel, contraction);
        let mut consumers = vec![];
        for (consumer, &(_, block)) in contraction.consumers.iter().zip(&values) {
            consumers.push(self.consumer(kernel, consumer, block)?);
        }
        let form = Form::Contraction(Contraction { inside, ..Contraction::default() });
        let chained = Kernel { region, form, stores, ..kernel.clone() };
        let writes = contraction.consumers.iter().zip(&values).map(|(_, &(value, block))| (value, block));
        let (function, scratch) = self.rows_of_block(&chained, writes.collect(), &blocks)?;
        let [batch, rows, columns] =
            [domain.outer_axes(), domain.row_axes(), domain.column_axes()].map(|axes| domain.extent(axes));
        let own = batch >= OWN_MATRICES;
        let mut height = match own {
            true => self.own_height(contraction.band.is_some(), (rows, columns), &products, blocks.len()),
            false => (SHARED_SCRATCH / (stride(columns) * 4 * blocks.len()) / 32 * 32).clamp(32, 512),
        };
        height = height.min(rows).max(1);
        if !own {
            let buffers = self.buffers();
            for &slot in &blocks {
                self.program.temporaries[slot - buffers] = height * stride(columns) * 4;
            }
            for consumer in &consumers {
                let rows = consumer.rows_aside(height, columns);
                self.program.temporaries[consumer.aside - buffers] = rows * consumer.p * 4;
            }
        }
        self.program.scratch = self.program.scratch.max(scratch.1);
        let band = contraction.band.map(|band| Band { lower: band.lower, upper: band.upper });
        let isa = self.isa;
        let step = ChainStep {
            isa,
            batch,
            rows,
            columns,
            band,
            products,
            consumers,
            function,
            scratch: scratch.0,
            blocks,
            height,
            own,
        };
        self.program.steps.push(super::LaunchKind::Chain(Box::new(step)));
        Ok(())
    }

    /// The slots of the kernel's own buffers, before those of temporaries.
    fn buffers(&self) -> usize {
        self.facts.dtypes.len() - self.program.temporaries.len()
    }

    /// Rows of a block of one thread: a multiple of the register tile's.
    fn own_height(
        &self,
        banded: bool,
        (rows, columns): (usize, usize),
        products: &[ChainProduct],
        blocks: usize,
    ) -> usize {
        let unit = products.iter().map(|product| gemm::register_rows(self.isa, product.precision)).max();
        let unit = unit.expect("a chain has products");
        let whole = |rows: usize| rows / unit * unit;
        let fitting = whole((OWN_SCRATCH / (stride(columns) * 4 * blocks)).clamp(unit, 128));
        // Without a band larger blocks only save packing; with one, smaller blocks skip more.
        if banded { fitting.min(whole(MOST_ROWS.max(rows / 16))).max(unit) } else { fitting }
    }

    /// The region with products loaded from blocks.
    fn in_blocks(&mut self, kernel: &Kernel, contraction: &Contraction) -> InBlocks {
        let mut rest = kernel.clone();
        let mut blocks = vec![];
        let domain = &kernel.domain;
        for number in 0..contraction.products.len() {
            let slot = self.block();
            blocks.push(slot);
            super::contraction::replace_producer(&mut rest, number, slot, DType::F32, block_index(domain));
        }
        let moved = rest.consumers().iter().map(|consumer| consumer.value).collect::<Vec<_>>();
        let Form::Contraction(chained) = &rest.form else { unreachable!("a chain is a contraction") };
        let inside = chained.inside.clone();
        let (mut region, stores) = (rest.region, rest.stores);
        let mut values: Vec<(Scalar, usize)> = vec![];
        let mut of: Vec<Scalar> = vec![];
        for value in moved {
            let instr = region.instr(value).clone();
            // The runtime rounds to bf16 itself.
            let lanes = match instr.kind {
                InstrKind::Cast(x) if region.instr(x).dtype == DType::F32 => x,
                _ if instr.dtype == DType::F32 => value,
                _ => region.push(InstrKind::Cast(value), DType::F32),
            };
            let block = of.iter().position(|&known| known == lanes).unwrap_or_else(|| {
                of.push(lanes);
                of.len() - 1
            });
            if block >= blocks.len() {
                let slot = self.block();
                blocks.push(slot);
            }
            values.push((lanes, block));
        }
        InBlocks { region, stores, inside, values, blocks }
    }

    /// A slot for a block; its rows are read before they are written again.
    fn block(&mut self) -> usize {
        let slot = self.temporary(DType::F32, 0);
        self.facts.clobbered[slot] = true;
        slot
    }

    fn consumer(
        &mut self,
        kernel: &Kernel,
        consumer: &kernfusion_ir::kernel::Consumer,
        block: usize,
    ) -> Result<ChainConsumer, CodegenError> {
        let domain = &kernel.domain;
        let dtype = kernel.region.instr(consumer.value).dtype;
        let with = self.factor(domain, &consumer.p, &consumer.with, dtype)?;
        let precision = self.precision(with.is_bf16 && dtype == DType::BF16);
        let (summed, kept) = match consumer.along {
            Direction::Columns => (domain.column_axes(), domain.row_axes()),
            Direction::Rows => (domain.row_axes(), domain.column_axes()),
        };
        let p = further(domain, &consumer.p);
        let with = placed(&with, domain, &consumer.p, p.clone(), summed);
        let extents = [&domain.axes[..], &consumer.p].concat();
        let group =
            |axes: std::ops::Range<usize>| axis(&extents[axes.clone()], &consumer.index.strides[axes]);
        let slot = consumer.buffer.0 as usize;
        let dtype = self.facts.dtypes[slot];
        let out = Destination {
            slot,
            offset: consumer.index.offset * dtype.size() as i64,
            element: element(dtype),
            batch: group(domain.outer_axes()),
            outer: group(kept),
            p: group(p),
        };
        let aside = self.temporary(DType::F32, 0);
        Ok(ChainConsumer {
            aside,
            precision,
            along: match consumer.along {
                Direction::Columns => Along::Columns,
                Direction::Rows => Along::Rows,
            },
            block,
            with,
            p: consumer.p.iter().product(),
            out,
        })
    }

    /// The row program: a function on rows of a block, and its scratch.
    fn rows_of_block(
        &mut self,
        kernel: &Kernel,
        values: Vec<(Scalar, usize)>,
        blocks: &[usize],
    ) -> Result<(usize, (usize, usize)), CodegenError> {
        let domain = &kernel.domain;
        let mut written = vec![];
        let inside = match &kernel.form {
            Form::Contraction(contraction) => contraction.inside.clone(),
            Form::Map | Form::Reduce | Form::Loop(_) | Form::Collective(_) => vec![],
        };
        let mut kernel = Kernel { form: Form::Reduce, ..kernel.clone() };
        // Values travel as stores, so that regrouping the axes moves their index maps, too.
        for (value, block) in values {
            if !written.contains(&block) {
                written.push(block);
                kernel.stores.push(Store {
                    value,
                    buffer: kernfusion_ir::kernel::BufferId(blocks[block] as u32),
                    index: block_index(domain),
                    mode: kernfusion_ir::kernel::StoreMode::Set,
                });
            }
        }
        let groups = [domain.outer_axes(), domain.row_axes(), domain.column_axes()];
        let merged = regroup(&kernel, groups.map(Iterator::collect));
        let writes = self.writes(&merged);
        debug_assert!(writes.iter().all(|write| write.mode == WriteMode::Set));
        let axes = merged.domain.axes.clone();
        let fixed = axes.len() - 1;
        let mut row = Row::new(merged.region.clone(), writes, axes, fixed, self.facts.clobbered.clone());
        row.inside = inside;
        self.check_row(&row)?;
        let schedule = schedule::schedule(&row, Vectors::of(self.isa));
        let capacity = row.axes[row.inner()].next_multiple_of(16);
        self.needs_zeros(&row, capacity);
        let scratch = self.temporary(DType::F32, 0);
        let slots = self.facts.dtypes.len();
        let name = self.facts.name.clone();
        let place = tile::Place { capacity, scratch: Some(scratch), strip: None };
        let function = tile::build(self.functions, &name, &row, &schedule, &merged.domain, slots, &place)?;
        Ok((function, (scratch, super::nest::scratch_bytes(&row, &schedule, capacity))))
    }
}

/// A place in a block: the block's pointer stands where row 0 of the matrix would be.
fn block_index(domain: &Domain) -> Index {
    let mut index = Index::constant(domain.axes.len(), 0);
    let mut next = 1;
    for axis in domain.column_axes().rev() {
        index.strides[axis] = next;
        next *= domain.axes[axis] as i64;
    }
    let mut next = stride(next as usize) as i64;
    for axis in domain.row_axes().rev() {
        index.strides[axis] = next;
        next *= domain.axes[axis] as i64;
    }
    index
}

/// The axes that a product or consumer adds to the domain.
fn further(domain: &Domain, extents: &[usize]) -> std::ops::Range<usize> {
    domain.axes.len()..domain.axes.len() + extents.len()
}

/// A factor whose outer axis and summed axis are these of the domain and the further axes.
fn placed(
    factor: &Factor,
    domain: &Domain,
    further: &[usize],
    outer: std::ops::Range<usize>,
    k: std::ops::Range<usize>,
) -> Placed {
    let extents = [&domain.axes[..], further].concat();
    let group = |axes: std::ops::Range<usize>| axis(&extents[axes.clone()], &factor.index.strides[axes]);
    let operand = Operand {
        element: element(factor.dtype),
        outer: group(outer),
        k: group(k),
        batch: group(domain.outer_axes()),
    };
    Placed { slot: factor.slot, offset: factor.index.offset * factor.dtype.size() as i64, operand }
}
