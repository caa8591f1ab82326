//! How a chain on tensor cores lies in registers and shared memory: tiles, held rows, and panels of what columns need.

use super::Options;
use super::contraction::{OperandAxes, operand_type};
use super::lower::Block;
use super::source::{Slot, is_narrow, memory_type};
use kernfusion_ir::kernel::{Consumer, Instr, InstrKind, Kernel, Operand, Product, Scalar};
use kernfusion_ir::{DType, Unary};
use std::ops::Range;

/// Warps of a block.
const WARPS: usize = 4;
/// Rows of a warp, by 16, columns of a tile, and whether fragments of rows are held in registers. More rows need fewer loads of fragments
/// from shared memory, more columns fewer barriers. The first of these that fits into registers and shared memory is taken.
const SIZES: [(usize, usize, bool); 6] =
    [(2, 64, true), (2, 32, true), (2, 32, false), (1, 64, true), (1, 64, false), (1, 32, false)];
/// Rows of a warpgroup, by 64, and columns of a tile. Rows of first operands lie in shared memory, where products read them.
const SIZES_OF_WARPGROUPS: [(usize, usize); 2] = [(2, 64), (1, 64)];
/// Columns of second products that warpgroups compute.
const WIDTHS_OF_WARPGROUPS: [usize; 2] = [64, 128];
/// Numbers of a thread in products, sums, held fragments and those under way, at most.
const MOST_NUMBERS: usize = 208;
/// Numbers of a thread beside these where entries take a polynomial with many coefficients.
const OF_POLYNOMIALS: usize = 24;
/// Registers of a multiprocessor, bytes of its shared memory that are counted on at most (compute capability 8.0), and bytes of each block's
/// that the system takes.
const REGISTERS: usize = 65_536;
const SHARED_BYTES: usize = 164 << 10;
const OF_SYSTEM: usize = 1 << 10;
/// Entries of a thread, at most, where random bits are drawn for each: that takes many instructions and registers.
const MOST_RANDOM_ENTRIES: usize = 16;
/// Numbers of eight lines of a swizzled panel, at whose multiples panels of warpgroups begin.
const PATTERN: usize = 8 * 64;
/// Stages of panels.
pub(super) const STAGES: usize = 2;
/// The longest sums of first products, and the widest second products: fragments and sums stay in registers.
const DEEPEST: usize = 128;

/// How a chain lies in registers and shared memory.
pub(super) struct Strips {
    pub(super) dtype: DType,
    /// Numbers of a thread in registers, beside addresses and what entries take.
    numbers: usize,
    /// Bytes of shared memory of a multiprocessor.
    shared_bytes_of_all: usize,
    /// Whether a warpgroup computes products, with panels as it wants them.
    pub(super) by_warpgroups: bool,
    /// Rows of a warp, by 16.
    pub(super) down: usize,
    /// Columns of a tile.
    pub(super) columns: usize,
    /// Whether fragments of rows are held in registers; otherwise the rows are in shared memory.
    pub(super) is_held: bool,
    /// Terms of each product's sums, as they lie.
    pub(super) depths: Vec<usize>,
    /// Columns of each second product, as they lie.
    pub(super) widths: Vec<usize>,
    pub(super) panels: Vec<Panel>,
    /// The panel of each product's second operand.
    pub(super) of_product: Vec<usize>,
    /// The panel of each second product's operand.
    pub(super) of_consumer: Vec<usize>,
    /// Loads of a number for each column, such as statistics of rows in a transposed kernel.
    pub(super) vectors: Vec<Scalar>,
}

/// Numbers that a tile's columns need.
pub(super) struct Panel {
    /// The operand that fills it.
    pub(super) operand: String,
    /// Rows and terms of it as they lie: those of the operand, and the tile's columns.
    pub(super) size: [usize; 2],
    /// The line of source that says which rows and terms these are, after the panel's own place.
    pub(super) range: String,
    /// Where it is in a stage.
    pub(super) offset: usize,
}

impl Panel {
    fn numbers(&self, by_warpgroups: bool) -> usize {
        numbers(self.size, by_warpgroups)
    }
}

/// Numbers of a panel, whichever way it lies: with padded lines, or in lines of 64.
fn numbers([rows, depth]: [usize; 2], by_warpgroups: bool) -> usize {
    let of_lines = |lines: usize, length: usize| match by_warpgroups {
        true => lines * length.next_multiple_of(64),
        false => lines * (length + 8),
    };
    of_lines(rows, depth).max(of_lines(depth, rows))
}

impl Strips {
    /// `None` if tensor cores do not multiply these, if sums are too long or too many for registers, if panels are too many for shared memory, or
    /// if no value is multiplied again.
    pub(super) fn of(kernel: &Kernel, slots: &[Slot], options: &Options) -> Option<Strips> {
        let dtype = operand_type(&kernel.products().first()?.a);
        let consumers = kernel.consumers();
        let terms: Vec<usize> = kernel.products().iter().map(|product| product.k.iter().product()).collect();
        let p: Vec<usize> = consumers.iter().map(|consumer| consumer.p.iter().product()).collect();
        let lie = |extents: &[usize]| extents.iter().map(|extent| extent.next_multiple_of(16)).collect();
        let (depths, widths): (Vec<usize>, Vec<usize>) = (lie(&terms), lie(&p));
        let fits = terms.iter().chain(&p).all(|extent| (1..=DEEPEST).contains(extent));
        let values = consumers.iter().map(|consumer| kernel.region.instr(consumer.value).dtype);
        let types = kernel.operands().map(|(operand, _)| operand_type(operand)).chain(values);
        if consumers.is_empty()
            || !fits
            || !is_narrow(dtype)
            || !types.into_iter().all(|other| other == dtype)
        {
            return None;
        }
        let of_products = |(down, columns): (usize, usize)| {
            down * (depths.len() * columns / 2 + widths.iter().map(|width| width / 2).sum::<usize>())
        };
        let is_polynomial =
            |instr: &Instr| matches!(instr.kind, InstrKind::Unary(Unary::Erf | Unary::Tanh, _));
        let beside = if kernel.region.instrs.iter().any(is_polynomial) { OF_POLYNOMIALS } else { 0 };
        let of_thread = |(down, columns, is_held): (usize, usize, bool)| {
            let held = if is_held { down * depths.iter().map(|depth| depth / 4).sum::<usize>() } else { 0 };
            let under_way = depths.iter().max().map_or(0, |depth| depth / 4);
            held + of_products((down, columns)) + under_way + beside
        };
        let is_random = |instr: &Instr| matches!(instr.kind, InstrKind::Random { .. });
        let draws = kernel.region.instrs.iter().any(is_random);
        let is_short = |down, columns| !draws || down * columns / 2 <= MOST_RANDOM_ENTRIES;
        let may_be_wide =
            options.warpgroups && widths.iter().all(|width| WIDTHS_OF_WARPGROUPS.contains(width));
        let is_reduction = |instr: &&Instr| matches!(instr.kind, InstrKind::Reduce(..));
        let reductions = kernel.region.instrs.iter().filter(is_reduction).count();
        // Of each row, what is reduced so far and in a tile.
        let of_warpgroup = |(down, columns)| of_products((down, columns)) + 4 * down * reductions + beside;
        let of_warpgroups = SIZES_OF_WARPGROUPS.into_iter().filter(|_| may_be_wide);
        let of_warpgroups = of_warpgroups.map(|size| ((size.0, size.1, false), true, of_warpgroup(size)));
        let sizes = SIZES.into_iter().map(|size| (size, false, of_thread(size)));
        let fits_registers = |&((down, columns, _), _, numbers): &((usize, usize, bool), bool, usize)| {
            is_short(down, columns) && numbers <= MOST_NUMBERS
        };
        let vectors = vectors(kernel, slots);
        let mut all =
            of_warpgroups.chain(sizes).filter(fits_registers).map(|(size, by_warpgroups, numbers)| {
                let (down, columns, is_held) = size;
                let mut strips = Strips {
                    dtype,
                    numbers,
                    // A block has all of it but what the system takes, and as much for arrays.
                    shared_bytes_of_all: SHARED_BYTES.min(options.shared_bytes + 2 * OF_SYSTEM),
                    by_warpgroups,
                    down,
                    columns,
                    is_held,
                    depths: depths.clone(),
                    widths: widths.clone(),
                    panels: vec![],
                    of_product: vec![],
                    of_consumer: vec![],
                    vectors: vectors.clone(),
                };
                strips.add_panels(kernel, &terms, &p);
                strips
            });
        all.find(|strips| strips.shared_bytes() <= options.shared_bytes)
    }

    fn add_panels(&mut self, kernel: &Kernel, terms: &[usize], p: &[usize]) {
        let columns = kernel.domain.extent(kernel.domain.column_axes());
        let (of_tile, by_warpgroups) = (self.columns, self.by_warpgroups);
        let mut add = |operand: String, size, range| {
            let offset = self.panels.iter().map(|panel| panel.numbers(by_warpgroups)).sum();
            self.panels.push(Panel { operand, size, range, offset });
            self.panels.len() - 1
        };
        for (number, depth) in self.depths.iter().enumerate() {
            let range = format!("first_column, {columns}, 0, {}", terms[number]);
            self.of_product.push(add(format!("b{number}"), [of_tile, *depth], range));
        }
        for (number, width) in self.widths.iter().enumerate() {
            let consumer = &kernel.consumers()[number];
            let product = kernel.products().iter().position(|product| is_same(kernel, product, consumer));
            let place = match product {
                Some(product) => self.of_product[product],
                None => {
                    let range = format!("0, {}, first_column, {columns}", p[number]);
                    add(format!("with{number}"), [*width, of_tile], range)
                }
            };
            self.of_consumer.push(place);
        }
    }

    /// Rows of a block.
    pub(super) fn rows(&self) -> usize {
        16 * self.down * WARPS
    }

    /// Rows and columns of a tile.
    pub(super) fn tile_size(&self) -> [usize; 2] {
        [self.rows(), self.columns]
    }

    /// What a block takes. As many share a multiprocessor as its shared memory holds and as leave each thread more registers than its numbers:
    /// two or three.
    pub(super) fn block(&self) -> Block {
        let (threads, shared_bytes) = (32 * WARPS, self.shared_bytes());
        let in_memory = self.shared_bytes_of_all / (shared_bytes + OF_SYSTEM);
        let in_registers = REGISTERS / threads / (self.numbers + 1);
        Block { threads, shared_bytes, blocks: in_memory.min(in_registers).clamp(2, 3) }
    }

    /// Numbers of a stage of panels and vectors.
    pub(super) fn stage(&self) -> usize {
        let end = self.vector(self.vectors.len());
        if self.by_warpgroups { end.next_multiple_of(PATTERN) } else { end }
    }

    /// Where a vector is in a stage.
    pub(super) fn vector(&self, number: usize) -> usize {
        let panels: usize = self.panels.iter().map(|panel| panel.numbers(self.by_warpgroups)).sum();
        panels + number * self.columns * DType::F32.size() / self.dtype.size()
    }

    /// Numbers of rows of a product's first operand in shared memory.
    pub(super) fn of_rows(&self, product: usize) -> usize {
        numbers([self.rows(), self.depths[product]], self.by_warpgroups)
    }

    /// Where the rows of a product's first operand are.
    pub(super) fn place_of_rows(&self, product: usize) -> usize {
        match self.is_held {
            true => 0,
            false => STAGES * self.stage() + (0..product).map(|before| self.of_rows(before)).sum::<usize>(),
        }
    }

    /// Numbers of shared memory: all stages, and the rows; those that are held go through it before.
    pub(super) fn memory(&self) -> usize {
        let ends = (0..self.depths.len()).map(|product| self.place_of_rows(product) + self.of_rows(product));
        ends.max().unwrap_or(0).max(STAGES * self.stage())
    }

    fn shared_bytes(&self) -> usize {
        self.memory() * self.dtype.size()
    }

    /// A type of tiles with these columns.
    pub(super) fn tile(&self, columns: usize) -> String {
        let (ty, down) = (memory_type(self.dtype), self.down);
        match self.by_warpgroups {
            true => format!("WarpgroupStrip<{ty}, {down}, {columns}>"),
            false => format!("StripTile<{ty}, {WARPS}, {down}, {columns}>"),
        }
    }
}

/// Whether the second operand of a product and that of a second product are the same numbers, one's terms along the other's rows.
fn is_same(kernel: &Kernel, product: &Product, consumer: &Consumer) -> bool {
    let load = |operand: &Operand| match &operand.region.instr(operand.value).kind {
        InstrKind::Load { buffer, index, guard } if guard.is_empty() => Some((*buffer, index.clone())),
        _ => None,
    };
    let rank = kernel.domain.axes.len();
    let columns = kernel.domain.column_axes();
    let others = rank..rank + consumer.p.len();
    let lies_along_rows = |operand: &Operand, rows: &Range<usize>, depth: &Range<usize>| {
        let extents = [&kernel.domain.axes[..], &consumer.p].concat();
        OperandAxes { extents, outer: &[], rows: rows.clone(), depth: depth.clone() }.is_along_rows(operand)
    };
    product.k == consumer.p
        && load(&product.b).is_some_and(|b| Some(b) == load(&consumer.with))
        && lies_along_rows(&product.b, &columns, &others)
            != lies_along_rows(&consumer.with, &others, &columns)
}

/// Loads that lie as columns do, in aligned pieces, and are the same for all rows.
fn vectors(kernel: &Kernel, slots: &[Slot]) -> Vec<Scalar> {
    let Kernel { domain, region, .. } = kernel;
    let axes =
        OperandAxes { extents: domain.axes.clone(), outer: &[], rows: domain.column_axes(), depth: 0..0 };
    let is_one_axis = domain.column_axes().len() == 1;
    let is_vector = |instr: &Instr| match &instr.kind {
        InstrKind::Load { buffer, index, guard } => {
            let slot = &slots[buffer.0 as usize];
            is_one_axis
                && guard.is_empty()
                && slot.dtype == DType::F32
                && slot.bytes.is_multiple_of(16)
                && !index.varies(domain.row_axes())
                && axes.is_aligned(index, DType::F32, true)
        }
        _ => false,
    };
    let numbers = (0..).map(Scalar);
    numbers.zip(&region.instrs).filter(|(_, instr)| is_vector(instr)).map(|(value, _)| value).collect()
}
