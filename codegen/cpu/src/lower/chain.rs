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
    Contraction, Direction, Domain, Form, Index, Instr, InstrKind, Kernel, Region, Scalar, Store,
};
use kernfusion_runtime::chain::{
    Along, Band, Block, ChainConsumer, ChainProduct, ChainStep, Destination, Placed,
};
use kernfusion_runtime::gemm::{self, Element, Operand, Precision};

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
    /// For each consumer its value as the elements of the block that takes it, and which block that is.
    values: Vec<(Scalar, usize)>,
    blocks: Vec<Block>,
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
        let mut consumers = vec![];
        for consumer in &contraction.consumers {
            consumers.push(self.consumer(kernel, consumer)?);
        }
        let precisions: Vec<_> = consumers.iter().map(|consumer| consumer.precision).collect();
        let InBlocks { region, stores, inside, values, blocks } =
            self.in_blocks(kernel, contraction, &precisions);
        for (consumer, &(_, block)) in consumers.iter_mut().zip(&values) {
            consumer.block = block;
        }
        let form = Form::Contraction(Contraction { inside, ..Contraction::default() });
        let chained = Kernel { region, form, stores, ..kernel.clone() };
        let (function, scratch) = self.rows_of_block(&chained, &values, &blocks)?;
        let [batch, rows, columns] =
            [domain.outer_axes(), domain.row_axes(), domain.column_axes()].map(|axes| domain.extent(axes));
        let own = batch >= OWN_MATRICES;
        let row_bytes = blocks.iter().map(|block| block.row_bytes(columns)).sum();
        let mut height = match own {
            true => self.own_height(contraction.band.is_some(), rows, &products, row_bytes),
            false => (SHARED_SCRATCH / row_bytes / 32 * 32).clamp(32, 512),
        };
        height = height.min(rows).max(1);
        if !own {
            let buffers = self.buffers();
            for block in &blocks {
                self.program.temporaries[block.slot - buffers] = height * block.row_bytes(columns);
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

    /// Rows of a block of one thread: a multiple of the register tile's. `row_bytes` are those of one row in all blocks.
    fn own_height(&self, banded: bool, rows: usize, products: &[ChainProduct], row_bytes: usize) -> usize {
        let unit = products.iter().map(|product| gemm::register_rows(self.isa, product.precision)).max();
        let unit = unit.expect("a chain has products");
        let whole = |rows: usize| rows / unit * unit;
        let fitting = whole((OWN_SCRATCH / row_bytes).clamp(unit, 128));
        // Without a band larger blocks only save packing; with one, smaller blocks skip more.
        if banded { fitting.min(whole(MOST_ROWS.max(rows / 16))).max(unit) } else { fitting }
    }

    /// The region with products loaded from blocks; consumers multiply with these precisions.
    fn in_blocks(
        &mut self,
        kernel: &Kernel,
        contraction: &Contraction,
        precisions: &[Precision],
    ) -> InBlocks {
        let mut rest = kernel.clone();
        let mut blocks = vec![];
        let domain = &kernel.domain;
        for number in 0..contraction.products.len() {
            let block = self.block(Element::F32);
            blocks.push(block);
            let index = block_index(domain, block);
            super::contraction::replace_producer(&mut rest, number, block.slot, DType::F32, index);
        }
        let moved = rest.consumers().iter().map(|consumer| consumer.value).collect::<Vec<_>>();
        let Form::Contraction(chained) = &rest.form else { unreachable!("a chain is a contraction") };
        let inside = chained.inside.clone();
        let (mut region, stores) = (rest.region, rest.stores);
        let mut values: Vec<(Scalar, usize)> = vec![];
        // Values of `f32` take the place of entries.
        let mut free = 0..blocks.len();
        for (value, precision) in moved.into_iter().zip(precisions) {
            let element =
                if *precision == Precision::Bf16 { gemm::packed_bf16(self.isa) } else { Element::F32 };
            let value = match element {
                Element::F32 => widened(&mut region, value),
                _ => value,
            };
            let known = values.iter().find(|(known, _)| *known == value).map(|&(_, block)| block);
            let taken = || if element == Element::F32 { free.next() } else { None };
            let block = known.or_else(taken).unwrap_or_else(|| {
                blocks.push(self.block(element));
                blocks.len() - 1
            });
            values.push((value, block));
        }
        InBlocks { region, stores, inside, values, blocks }
    }

    /// A block; its rows are read before they are written again.
    fn block(&mut self, element: Element) -> Block {
        let dtype = if element == Element::Bf16 { DType::BF16 } else { DType::F32 };
        let slot = self.temporary(dtype, 0);
        self.facts.clobbered[slot] = true;
        Block { slot, element }
    }

    /// A consumer; which block has its value is not known yet.
    fn consumer(
        &mut self,
        kernel: &Kernel,
        consumer: &kernfusion_ir::kernel::Consumer,
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
            block: 0,
            with,
            p: consumer.p.iter().product(),
            out,
        })
    }

    /// The row program: a function on rows of a block, and its scratch.
    fn rows_of_block(
        &mut self,
        kernel: &Kernel,
        values: &[(Scalar, usize)],
        blocks: &[Block],
    ) -> Result<(usize, (usize, usize)), CodegenError> {
        let domain = &kernel.domain;
        let mut written = vec![];
        let inside = match &kernel.form {
            Form::Contraction(contraction) => contraction.inside.clone(),
            Form::Map | Form::Reduce | Form::Loop(_) | Form::Collective(_) => vec![],
        };
        let mut kernel = Kernel { form: Form::Reduce, ..kernel.clone() };
        // Values travel as stores, so that regrouping the axes moves their index maps, too.
        for &(value, block) in values {
            if !written.contains(&block) {
                written.push(block);
                let block = blocks[block];
                kernel.stores.push(Store {
                    value,
                    buffer: kernfusion_ir::kernel::BufferId(block.slot as u32),
                    index: block_index(domain, block),
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

/// A value as `f32`; a conversion that is there already is used again.
fn widened(region: &mut Region, value: Scalar) -> Scalar {
    if region.instr(value).dtype == DType::F32 {
        return value;
    }
    let cast = InstrKind::Cast(value);
    let is_it = |instr: &Instr| instr.kind == cast && instr.dtype == DType::F32;
    let known = region.instrs.iter().position(is_it).map(|at| Scalar(at as u32));
    known.unwrap_or_else(|| region.push(cast, DType::F32))
}

/// A place in a block: the block's pointer stands where row 0 of the matrix would be.
fn block_index(domain: &Domain, block: Block) -> Index {
    let mut index = Index::constant(domain.axes.len(), 0);
    let mut next = 1;
    for axis in domain.column_axes().rev() {
        index.strides[axis] = next;
        next *= domain.axes[axis] as i64;
    }
    let mut next = block.stride(next as usize) as i64;
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
