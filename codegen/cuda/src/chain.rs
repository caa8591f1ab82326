//! Chains: products, a region that may reduce along their rows, and second products of its values.
//!
//! A block owns some rows and goes over their columns, tile by tile, as often as the region asks for ([`sweeps`](super::sweeps)): reductions
//! that need no others' results are found in one sweep, in which values are multiplied again, too, if they need nothing else. So nothing over
//! the entries is in memory. Tiles outside of the band are left out.
//!
//! Second products across the rows are those of the transposed kernel, in a launch of its own, where results of
//! reductions come from memory. Every sum is one block's, so that results do not depend on the order of blocks.
//!
//! ```text
//! first launch, for each block of rows       second launch, for each block of columns
//! sweeps along the columns: max, sum,        the only sweep, over rows: values from entries, max and sum,
//!   O += values · W                            O' += valuesᵀ · D
//! store max and sum
//! ```

use super::body::{Body, operands, sweeps};
use super::contraction::{OperandAxes, operand_type};
use super::lower::{Block, Lowering};
use super::rewrite::{dense, transposed};
use super::source::{Axes, Code, Slot, constant, coordinates, narrowed, value_name};
use super::strength;
use super::strip_layout::Strips;
use super::through_memory::ThroughMemory;
use super::tiles::{THREADS, Tiles};
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::axes;
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{
    BufferId, Consumer, Contraction, Direction, Domain, Form, Index, InstrKind, Kernel, Scalar, Store,
    StoreMode,
};
use std::collections::{BTreeMap, BTreeSet};

/// Rows and columns of a tile.
pub(super) const SIZE: usize = 64;
/// Second products are at most so wide: their sums stay in registers.
const WIDEST: usize = 128;

impl Lowering<'_> {
    /// A contraction whose region reduces columns, or whose values are multiplied again.
    pub(super) fn chain(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        let kernel = &axes::merged(kernel);
        let Form::Contraction(contraction) = &kernel.form else { unreachable!("chains are contractions") };
        if !self.fits(kernel, contraction) {
            return self.split_products(kernel);
        }
        let of =
            |along| contraction.consumers.iter().filter(move |consumer| consumer.along == along).cloned();
        let (along, across): (Vec<_>, Vec<_>) =
            (of(Direction::Columns).collect(), of(Direction::Rows).collect());
        let with = |consumers| Form::Contraction(Contraction { consumers, ..contraction.clone() });
        let mut first = Kernel { form: with(along.clone()), ..kernel.clone() };
        let mut second = Kernel { form: with(across.clone()), stores: vec![], ..kernel.clone() };
        for (value, buffer) in self.statistics(kernel, &across)? {
            let index = of_rows(&kernel.domain);
            first.stores.push(Store { value, buffer, index: index.clone(), mode: StoreMode::Set });
            second.region.instrs[value.0 as usize].kind = InstrKind::Load { buffer, index, guard: vec![] };
        }
        if !along.is_empty() || !first.stores.is_empty() {
            self.stream(&first)?;
        }
        if !across.is_empty() {
            self.named("across", |lowering| lowering.stream(&transposed(&second)))?;
        }
        Ok(())
    }

    /// Whether sums and values fit into registers and shared memory, and no launch overwrites what a later one reads.
    fn fits(&self, kernel: &Kernel, contraction: &Contraction) -> bool {
        let is_float = |dtype| matches!(dtype, DType::F32 | DType::BF16 | DType::F16);
        let narrow_enough = |consumer: &Consumer| consumer.p.iter().product::<usize>() <= WIDEST;
        let has_across = contraction.consumers.iter().any(|consumer| consumer.along == Direction::Rows);
        let overwritten = |instr: &kernfusion_ir::kernel::Instr| match &instr.kind {
            InstrKind::Load { buffer, .. } => self.slots()[buffer.0 as usize].is_clobbered,
            _ => false,
        };
        let is_overwritten = has_across && kernel.region.instrs.iter().any(overwritten);
        Tiles::of(self, kernel).is_some()
            && kernel.operands().all(|(operand, _)| is_float(operand_type(operand)))
            && contraction.consumers.iter().all(narrow_enough)
            && !is_overwritten
    }

    /// Memory for the results of reductions that consumers across the rows need.
    fn statistics(
        &mut self,
        kernel: &Kernel,
        across: &[Consumer],
    ) -> Result<BTreeMap<Scalar, BufferId>, CodegenError> {
        let rows = kernel.domain.extent(0..kernel.domain.outer + kernel.domain.rows);
        let live = kernel.region.needed(across.iter().map(|consumer| consumer.value), |_| false);
        let mut found = BTreeMap::new();
        for value in sweeps(&kernel.region, &live).into_iter().flatten() {
            found.insert(value, self.scratch("statistic", kernel.region.instr(value).dtype, rows)?);
        }
        Ok(found)
    }

    /// A chain whose consumers all go along the columns.
    fn stream(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        self.moves(kernel);
        let [outer, rows, _] = self.extents(&kernel.domain)?;
        if outer * rows == 0 {
            return Ok(());
        }
        let tiles = Tiles::of(self, kernel).expect("checked before").deepened_in_chain();
        let (kernel, factors) = &strength::reduced(kernel);
        let strips = Strips::of(kernel, self.slots(), &self.options);
        let size = strips.as_ref().map_or([SIZE, SIZE], Strips::tile_size);
        let mut code = Code::default();
        code.line(format!("const int first_row = blockIdx.x * {};", size[0]));
        let names = self.batch(&mut code, &kernel.domain);
        if strips.is_none() {
            tiles.declare_launched(&mut code, SIZE, SIZE);
        }
        let stream = Stream { kernel, factors, size, outer: names.clone(), slots: self.slots() };
        for number in 0..kernel.products().len() {
            self.product_operands(&mut code, kernel, number, &names);
        }
        for (number, consumer) in kernel.consumers().iter().enumerate() {
            let operand = stream.with_axes(consumer);
            self.operand(&mut code, &consumer.with, &operand, &format!("with{number}"));
        }
        let axes = Axes { names, extents: kernel.domain.axes.clone() };
        let mut body = Body::new(&kernel.region, axes, self.slots());
        body.code = code;
        let grid = [rows.div_ceil(size[0]), 1, outer];
        body.exponentials = strength::exponentials(kernel);
        let (header, block) = match strips {
            Some(strips) => {
                body.approximates = true;
                stream.emit(&mut body, &strips);
                let header = if strips.by_warpgroups { "warpgroup_chain.cuh" } else { "chain.cuh" };
                (header, strips.block())
            }
            None => {
                let layout = ThroughMemory::new(&stream, tiles, self.options.tf32);
                stream.emit(&mut body, &layout);
                ("chain.cuh", Block { threads: THREADS, shared_bytes: layout.shared_bytes(), blocks: 2 })
            }
        };
        let text = body.code.finish();
        self.launch_blocks_with(header, "", block, grid, text)?;
        Ok(())
    }
}

/// An index map to one element for each outer point and row.
fn of_rows(domain: &Domain) -> Index {
    let rows = Domain { axes: domain.axes[..domain.outer + domain.rows].to_vec(), ..domain.clone() };
    let mut index = dense(&rows);
    index.strides.resize(domain.axes.len(), 0);
    index
}

/// The function of a block of rows.
pub(super) struct Stream<'a> {
    pub(super) kernel: &'a Kernel,
    /// By what the sums of each second product are multiplied in the end.
    factors: &'a [f64],
    /// Rows and columns of a tile.
    pub(super) size: [usize; 2],
    /// Names of outer coordinates.
    pub(super) outer: Vec<String>,
    pub(super) slots: &'a [Slot],
}

impl Stream<'_> {
    /// The axes of a consumer's operand: its rows are the points of p, its sum goes over columns.
    fn with_axes(&self, consumer: &Consumer) -> OperandAxes<'_> {
        let domain = &self.kernel.domain;
        let rank = domain.axes.len();
        OperandAxes {
            extents: [&domain.axes[..], &consumer.p].concat(),
            outer: &self.outer,
            rows: rank..rank + consumer.p.len(),
            depth: domain.column_axes(),
        }
    }

    /// The columns that the block's rows need; all of them in the last sweep if something is stored at each.
    pub(super) fn band(&self, body: &mut Body<'_>, stores_all: bool) {
        let (rows, columns) = self.row_and_column_extents();
        let [height, width] = self.size;
        let band = match &self.kernel.form {
            Form::Contraction(Contraction { band, .. }) => *band,
            Form::Map | Form::Reduce | Form::Loop(_) | Form::Collective(_) => None,
        };
        let band = band.filter(|_| !stores_all);
        let clamped = |from: &str, by: i64| {
            let sign = if by < 0 { '-' } else { '+' };
            format!("clamped({from} {sign} {}, {columns} + 1)", by.abs())
        };
        let begin = band.and_then(|band| band.lower).map(|by| clamped("first_row", by));
        let begin = begin.map_or("0".into(), |begin| format!("{begin} / {width} * {width}"));
        let end_row = format!("(first_row + {height} < {rows} ? first_row + {height} : {rows})");
        let end = band.and_then(|band| band.upper).map(|by| clamped(&end_row, by));
        let end = end.unwrap_or_else(|| columns.to_string());
        body.code.line(format!("const int begin = {begin}, end = {end};"));
    }

    pub(super) fn row_and_column_extents(&self) -> (usize, usize) {
        let domain = &self.kernel.domain;
        (domain.extent(domain.row_axes()), domain.extent(domain.column_axes()))
    }

    /// What values are made of, down to results of earlier reductions.
    pub(super) fn needed(
        &self,
        roots: impl IntoIterator<Item = Scalar>,
        reduced: &[Scalar],
    ) -> BTreeSet<Scalar> {
        let region = &self.kernel.region;
        let roots: Vec<_> = roots.into_iter().collect();
        let inner = region.needed(roots.iter().copied(), |value| reduced.contains(&value));
        let operands = inner.iter().flat_map(|value| region.instr(*value).kind.operands());
        let results: Vec<_> = operands.chain(roots).filter(|value| reduced.contains(value)).collect();
        inner.iter().copied().chain(results).collect()
    }

    /// Writes the sums of a second product.
    pub(super) fn store_consumer(&self, body: &mut Body<'_>, number: usize) {
        let consumer = &self.kernel.consumers()[number];
        let (domain, (rows, _)) = (&self.kernel.domain, self.row_and_column_extents());
        let p: usize = consumer.p.iter().product();
        // The slices of a loop begin at multiples of their size.
        let is_aligned = self.slots[consumer.buffer.0 as usize].bytes.is_multiple_of(8);
        let is_paired = is_aligned && is_paired(domain, consumer);
        let step = if is_paired { "at += 2" } else { "at++" };
        body.code.line("UNROLL");
        body.block(format!("for (int at = 0; at < Out{number}::COUNT; {step})"), |body| {
            body.code.line(format!(
                "const int row = first_row + Out{number}::row(at), column = Out{number}::column(at);"
            ));
            body.code.line(format!("if (row >= {rows} || column >= {p}) continue;"));
            let mut names = self.outer.clone();
            names.extend(coordinates(&mut body.code, "row", 'r', &domain.axes[domain.row_axes()]));
            names.resize(domain.axes.len(), "0".into());
            names.extend(coordinates(&mut body.code, "column", 'p', &consumer.p));
            let axes = Axes { names, extents: [&domain.axes[..], &consumer.p].concat() };
            let name = self.slots[consumer.buffer.0 as usize].write();
            let place = axes.affine(&consumer.index);
            let factor = self.factors[number];
            let factor =
                if factor == 1.0 { String::new() } else { format!(" * {}", constant(factor, DType::F32)) };
            let [sum, next] = ["at", "at + 1"].map(|at| format!("out{number}.sums[{at}]{factor}"));
            body.code.line(match is_paired {
                true => format!("store_pair({name} + {place}, {sum}, {next});"),
                false => format!("{name}[{place}] = {};", narrowed(&sum, consumer.dtype)),
            });
        });
    }

    pub(super) fn is_in_loop(&self, store: &Store) -> bool {
        let Kernel { region, domain, .. } = self.kernel;
        let columns = domain.column_axes();
        store.index.varies(columns.clone())
            || operands(store).iter().any(|value| region.varies(*value, columns.clone(), domain))
    }

    /// Stores that happen once a row, by one thread of the row, after everyone has read what they may overwrite.
    pub(super) fn stores_of_rows(&self, body: &mut Body<'_>, reduced: &[Scalar]) {
        let of_rows: Vec<_> = self.kernel.stores.iter().filter(|store| !self.is_in_loop(store)).collect();
        if of_rows.is_empty() {
            return;
        }
        let domain = &self.kernel.domain;
        let (rows, _) = self.row_and_column_extents();
        let needed = self.needed(of_rows.iter().flat_map(|store| operands(store)), reduced);
        body.code.line("__syncthreads();");
        body.code.line("UNROLL");
        body.block("for (int slot = 0; slot < Tile::SLOTS; slot++)", |body| {
            body.code.line("const int row = first_row + Tile::slot_row(slot);");
            body.code.line(format!("if (row >= {rows} || !Tile::owns_rows()) continue;"));
            let outside = body.axes.names.len();
            body.axes.names.extend(coordinates(&mut body.code, "row", 'r', &domain.axes[domain.row_axes()]));
            body.axes.names.resize(domain.axes.len(), "0".into());
            for &value in reduced.iter().filter(|value| needed.contains(value)) {
                body.define(value, format!("sum_{}[slot]", value_name(value)));
            }
            body.stores(of_rows.iter().copied());
            body.axes.names.truncate(outside);
        });
    }
}

/// Whether the results of a consumer at columns 2i and 2i + 1 are neighbours in memory, from an even place on.
fn is_paired(domain: &Domain, consumer: &Consumer) -> bool {
    let Some(last) = (0..consumer.p.len()).rev().find(|&axis| consumer.p[axis] > 1) else { return false };
    let axes = Axes { names: vec![], extents: [&domain.axes[..], &consumer.p].concat() };
    let is_float = matches!(consumer.dtype, DType::F32 | DType::BF16 | DType::F16);
    let is_even = consumer.p[last].is_multiple_of(2);
    is_float && is_even && axes.has_runs(&consumer.index, domain.axes.len() + last, 2)
}
