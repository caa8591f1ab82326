//! Chains: products, a region that may reduce along their rows, and second products of its values.
//!
//! A block owns some rows and goes over their columns, tile by tile, as often as the region asks for: one sweep for each
//! level of reductions over columns, whose entries are computed again in the next one, and a last sweep in which values
//! go through shared memory into the second products. So nothing over the entries is in memory, and no value needs to be
//! corrected later. Tiles outside of the band are left out.
//!
//! Second products across the rows are those of the transposed kernel, in a launch of its own, where results of
//! reductions come from memory. Every sum is one block's, so that results do not depend on the order of blocks.
//!
//! ```text
//! first launch, for each block of rows       second launch, for each block of columns
//! sweep 1: max over columns                  the only sweep: over rows
//! sweep 2: sum over columns                    values from entries, max and sum
//! sweep 3: values, O += values · W             O' += valuesᵀ · D
//! store max and sum
//! ```

use super::body::{Body, operands, sweeps};
use super::contraction::{OperandAxes, define_entries, operand_type};
use super::lower::{Block, Lowering};
use super::rewrite::{dense, transposed};
use super::rows::reduction;
use super::source::{
    Axes, Code, Slot, combiner, constant, coordinates, is_narrow, memory_type, narrowed, register_type,
    sum_type, value_name,
};
use super::strength;
use super::strip_layout::Strips;
use super::tiles::{THREADS, Tiles, element_type, tile_type};
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::axes;
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{
    BufferId, Consumer, Contraction, Direction, Domain, Form, Index, InstrKind, Kernel, Scalar, Store,
    StoreMode,
};
use std::collections::{BTreeMap, BTreeSet};

/// Rows and columns of a tile.
const SIZE: usize = 64;
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
        let (reduced, factors) = strength::reduced(kernel);
        let strips = Strips::of(&reduced, self.slots(), self.options.warpgroups);
        let (kernel, factors) = match strips {
            Some(_) => (&reduced, factors),
            None => (kernel, vec![1.0; kernel.consumers().len()]),
        };
        let size = strips.as_ref().map_or([SIZE, SIZE], Strips::tile_size);
        let mut code = Code::default();
        code.line(format!("const int first_row = blockIdx.x * {};", size[0]));
        let names = self.batch(&mut code, &kernel.domain);
        if strips.is_none() {
            tiles.declare_launched(&mut code, SIZE, SIZE);
        }
        let tf32 = self.options.tf32;
        let stream = Stream { kernel, factors, tiles, size, tf32, outer: names.clone(), slots: self.slots() };
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
        match strips {
            Some(strips) => {
                body.approximates = true;
                stream.emit_strips(&mut body, &strips);
                let block = strips.block();
                let text = body.code.finish();
                let header = if strips.by_warpgroups { "warpgroup_chain.cuh" } else { "chain.cuh" };
                self.launch_blocks_with(header, "", block, grid, text)?;
            }
            None => {
                stream.emit(&mut body);
                let shared_bytes = stream.place_of_values(None);
                let block = Block { threads: THREADS, shared_bytes, blocks: 2 };
                let text = body.code.finish();
                self.launch_blocks("", block, grid, text)?;
            }
        }
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
    factors: Vec<f64>,
    tiles: Tiles,
    /// Rows and columns of a tile.
    size: [usize; 2],
    tf32: bool,
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

    fn emit(&self, body: &mut Body<'_>) {
        let Kernel { region, stores, .. } = self.kernel;
        let consumers = self.kernel.consumers();
        let roots = stores.iter().flat_map(operands).chain(consumers.iter().map(|consumer| consumer.value));
        let live = region.needed(roots, |_| false);
        self.band(body, stores.iter().any(|store| self.is_in_loop(store)));
        let mut reduced = vec![];
        for sweep in sweeps(region, &live) {
            self.sweep(body, &sweep, &reduced);
            reduced.extend(sweep);
        }
        self.last_sweep(body, &reduced);
        for number in 0..consumers.len() {
            self.store_consumer(body, number);
        }
        self.stores_of_rows(body, &reduced);
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

    /// A loop over tiles of columns, with those products that these values need.
    fn each_tile(&self, body: &mut Body<'_>, needed: &BTreeSet<Scalar>, inside: impl FnOnce(&mut Body<'_>)) {
        let head = format!("for (int first_column = begin; first_column < end; first_column += {SIZE})");
        body.block(head, |body| {
            let kinds = needed.iter().map(|value| &self.kernel.region.instr(*value).kind);
            let products: BTreeSet<_> = kinds
                .filter_map(|kind| match kind {
                    InstrKind::Producer(number) => Some(*number),
                    _ => None,
                })
                .collect();
            for number in products {
                self.tiles.multiply(&mut body.code, self.kernel, number);
            }
            inside(body);
        });
    }

    /// A loop over this thread's entries of a tile. Where some may be beyond the last row or column, `before` comes first, for all of them.
    fn each_entry(
        &self,
        body: &mut Body<'_>,
        needed: &BTreeSet<Scalar>,
        reduced: &[Scalar],
        before: Option<&str>,
        inside: impl FnOnce(&mut Body<'_>),
    ) {
        let (rows, columns) = self.row_and_column_extents();
        let (domain, tile) = (&self.kernel.domain, self.tiles.name(0));
        body.code.line("UNROLL");
        body.block(format!("for (int at = 0; at < {tile}::COUNT; at++)"), |body| {
            let at = format!("row = first_row + {tile}::row(at), column = first_column + {tile}::column(at)");
            body.code.line(format!("const int {at};"));
            // Without branches between them, entries are computed side by side.
            let beyond = [("row", rows), ("column", columns)]
                .into_iter()
                .filter(|(_, extent)| !extent.is_multiple_of(SIZE))
                .map(|(name, extent)| format!("{name} >= {extent}"))
                .collect::<Vec<_>>();
            if !beyond.is_empty() {
                before.into_iter().for_each(|line| body.code.line(line));
                body.code.line(format!("if ({}) continue;", beyond.join(" || ")));
            }
            let outside = body.axes.names.len();
            let row = coordinates(&mut body.code, "row", 'r', &domain.axes[domain.row_axes()]);
            let column = coordinates(&mut body.code, "column", 'c', &domain.axes[domain.column_axes()]);
            body.axes.names.extend(row.into_iter().chain(column));
            for &value in reduced.iter().filter(|value| needed.contains(value)) {
                body.define(value, format!("sum_{}[{tile}::slot(at)]", value_name(value)));
            }
            define_entries(body, self.kernel, Some(needed));
            inside(body);
            body.axes.names.truncate(outside);
        });
    }

    /// One level of reductions.
    fn sweep(&self, body: &mut Body<'_>, reductions: &[Scalar], reduced: &[Scalar]) {
        let (region, tile) = (&self.kernel.region, self.tiles.name(0));
        let parts: Vec<_> = reductions.iter().map(|&value| (value, reduction(region, value))).collect();
        let needed = self.needed(parts.iter().map(|(_, (_, x))| *x), reduced);
        for (value, (op, _)) in &parts {
            let dtype = sum_type(region.instr(*value).dtype);
            let (ty, name) = (register_type(dtype), value_name(*value));
            let identity = constant(op.identity(dtype), dtype);
            body.code.line(format!("{ty} sum_{name}[{tile}::SLOTS];"));
            body.code.line("UNROLL");
            body.code.line(format!(
                "for (int slot = 0; slot < {tile}::SLOTS; slot++) sum_{name}[slot] = {identity};"
            ));
        }
        self.each_tile(body, &needed, |body| {
            self.each_entry(body, &needed, reduced, None, |body| {
                body.need(parts.iter().map(|(_, (_, x))| *x));
                for (value, (op, x)) in &parts {
                    let sum = format!("sum_{}[{tile}::slot(at)]", value_name(*value));
                    body.code.line(format!("{sum} = {}::combine({sum}, {});", combiner(*op), value_name(*x)));
                }
            });
        });
        for (value, (op, _)) in &parts {
            let (dtype, name) = (region.instr(*value).dtype, value_name(*value));
            body.code.line(format!("{tile}::combine<{}>(sum_{name});", combiner(*op)));
            if is_narrow(dtype) {
                let rounded =
                    format!("sum_{name}[slot] = round_to<{}>(sum_{name}[slot]);", memory_type(dtype));
                body.code.line(format!("for (int slot = 0; slot < {tile}::SLOTS; slot++) {rounded}"));
            }
        }
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

    /// Stores at each entry, and second products.
    fn last_sweep(&self, body: &mut Body<'_>, reduced: &[Scalar]) {
        let in_loop: Vec<_> = self.kernel.stores.iter().filter(|store| self.is_in_loop(store)).collect();
        let consumers = self.kernel.consumers();
        if in_loop.is_empty() && consumers.is_empty() {
            return;
        }
        for (number, consumer) in consumers.iter().enumerate() {
            let (dtype, width) = (operand_type(&consumer.with), width(consumer));
            body.code.line(format!("using Out{number} = {};", tile_type(dtype, self.tf32, SIZE, width)));
            body.code.line(format!("Out{number} out{number};"));
        }
        for dtype in self.types_of_values() {
            let (values, element, place) =
                (values_name(dtype), element_type(dtype), self.place_of_values(Some(dtype)));
            let count = SIZE * values_stride(dtype);
            body.code.line(format!("LAUNCHED_SHARED({element}, {values}, {place}, {count});"));
        }
        let roots = in_loop.iter().flat_map(|store| operands(store));
        let all = self.needed(roots.chain(consumers.iter().map(|consumer| consumer.value)), reduced);
        self.each_tile(body, &all, |body| {
            if !in_loop.is_empty() {
                let needed = self.needed(in_loop.iter().flat_map(|store| operands(store)), reduced);
                let stores = in_loop.iter().copied();
                self.each_entry(body, &needed, reduced, None, |body| body.stores(stores));
            }
            let values: BTreeSet<_> = consumers.iter().map(|consumer| consumer.value).collect();
            for value in values {
                self.second_products(body, value, reduced);
            }
        });
    }

    fn types_of_values(&self) -> BTreeSet<DType> {
        self.kernel.consumers().iter().map(|consumer| operand_type(&consumer.with)).collect()
    }

    /// Where in shared memory values of a type are, behind panels and values of other types; of none, where all of them end.
    fn place_of_values(&self, dtype: Option<DType>) -> usize {
        let before = self.types_of_values().into_iter().take_while(|other| Some(*other) != dtype);
        let bytes = |dtype: DType| SIZE * values_stride(dtype) * dtype.size();
        self.tiles.shared_bytes(SIZE, SIZE) + before.map(bytes).sum::<usize>()
    }

    /// Puts a value of the tile into shared memory and multiplies it with the operands of its consumers.
    fn second_products(&self, body: &mut Body<'_>, value: Scalar, reduced: &[Scalar]) {
        let dtype = self.kernel.region.instr(value).dtype;
        let (tile, values, stride) = (self.tiles.name(0), values_name(dtype), values_stride(dtype));
        let element = format!("{values}[{tile}::row(at) * {stride} + {tile}::column(at)]");
        let needed = self.needed([value], reduced);
        let zero = format!("{element} = {}{{}};", element_type(dtype));
        let (_, columns) = self.row_and_column_extents();
        let panels = format!("({}*){}", element_type(dtype), self.tiles.panels(0));
        let bytes = self.tiles.panel_bytes(SIZE, SIZE);
        let fill = |number: usize, consumer: &Consumer| {
            let p: usize = consumer.p.iter().product();
            format!(
                "fill_for_values<Out{number}, {bytes}, {SIZE}>({panels}, {p}, with{number}, first_column, {columns});"
            )
        };
        let of_value = self.kernel.consumers().iter().enumerate();
        let mut of_value = of_value.filter(|(_, consumer)| consumer.value == value).peekable();
        // The first operand comes while values are computed.
        if let Some((number, consumer)) = of_value.peek() {
            body.code.line(fill(*number, consumer));
        }
        self.each_entry(body, &needed, reduced, Some(&zero), |body| {
            body.need([value]);
            body.code.line(format!("{element} = {};", narrowed(&value_name(value), dtype)));
        });
        for (at, (number, consumer)) in of_value.enumerate() {
            if at > 0 {
                body.code.line(fill(number, consumer));
            }
            body.code.line(format!(
                "multiply_values<{SIZE}, {stride}>(out{number}, {values}, {panels}, with{number});"
            ));
        }
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
        let (domain, tile) = (&self.kernel.domain, self.tiles.name(0));
        let (rows, _) = self.row_and_column_extents();
        let needed = self.needed(of_rows.iter().flat_map(|store| operands(store)), reduced);
        body.code.line("__syncthreads();");
        body.code.line("UNROLL");
        body.block(format!("for (int slot = 0; slot < {tile}::SLOTS; slot++)"), |body| {
            body.code.line(format!("const int row = first_row + {tile}::slot_row(slot);"));
            body.code.line(format!("if (row >= {rows} || !{tile}::owns_rows()) continue;"));
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

/// Columns of the tile of a second product: two warps share them, each of which takes 16 at a time.
fn width(consumer: &Consumer) -> usize {
    consumer.p.iter().product::<usize>().next_multiple_of(32).max(32)
}

fn values_name(dtype: DType) -> String {
    format!("values_{}", dtype.name())
}

/// Distance of rows of values in shared memory.
fn values_stride(dtype: DType) -> usize {
    SIZE + 16 / dtype.size()
}
