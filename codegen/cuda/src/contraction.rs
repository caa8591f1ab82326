//! Products without consumers: a block for each tile of rows × columns, whose region runs on sums in registers; those with few rows or columns are
//! in [`gemv`](super::gemv). Where there are few
//! tiles, and sums are long, each of several blocks has a part of a tile's sums, and a second function adds the parts up
//! (split-k).
//!
//! ```text
//! gradient of a weight, 768×768, sums of 16,384 terms: 36 tiles × 7 parts of 2,368 terms, then a thread for each entry
//! ```

use super::body::{Body, Runs, operands};
use super::gemv::FewRows;
use super::lower::{Block, Lowering, ProductMethod, count};
use super::rewrite::dense;
use super::source::{Axes, Code, coordinates, memory_type, narrowed, register_type, value_name};
use super::tiles::{LARGE, MANY_TILES, SMALL, THREADS, Tiles, WIDE, element_type, parts, place};
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::analysis::indices_mut;
use kernfusion_codegen::axes;
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{
    BufferId, Domain, Index, InstrKind, Kernel, Operand, Region, Scalar, Store, StoreMode,
};
use std::collections::BTreeSet;
use std::ops::Range;

/// The kernel that stores the parts of sums instead of running its region on them. Parts are its first axis.
fn of_parts(kernel: &Kernel, parts: usize, partial: BufferId) -> Kernel {
    let mut result = kernel.clone();
    result.domain.axes.insert(0, parts);
    result.domain.outer += 1;
    for operand in result.operands_mut() {
        let indices = operand.region.instrs.iter_mut().flat_map(|instr| indices_mut(&mut instr.kind));
        indices.for_each(|index| index.strides.insert(0, 0));
    }
    result.region = Region::default();
    let value = result.region.push(InstrKind::Producer(0), DType::F32);
    let index = dense(&result.domain);
    result.stores = vec![Store { value, buffer: partial, index, mode: StoreMode::Set }];
    result
}

/// Whether the region loads something else for each row and column.
fn loads_entries(kernel: &Kernel) -> bool {
    let domain = &kernel.domain;
    let moves = |index: &Index, axes: Range<usize>| index.strides[axes].iter().any(|stride| *stride != 0);
    kernel.region.instrs.iter().any(|instr| match &instr.kind {
        InstrKind::Load { index, .. } => {
            moves(index, domain.row_axes()) && moves(index, domain.column_axes())
        }
        _ => false,
    })
}

/// Whether computing a tile takes much longer than what becomes of it.
fn has_long_sums(kernel: &Kernel) -> bool {
    kernel.products().iter().all(|product| product.k.iter().product::<usize>() >= LONG_SUM)
}

/// Terms of a long sum.
const LONG_SUM: usize = 1024;

impl Lowering<'_> {
    /// Products and an elementwise region.
    pub(super) fn contraction(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        let kernel = &axes::merged(kernel);
        let [outer, rows, columns] = self.extents(&kernel.domain)?;
        if outer * rows * columns == 0 {
            return Ok(());
        }
        if let Some(few_rows) = FewRows::of(self, kernel) {
            return self.few_rows(&few_rows);
        }
        let kernel = &self.with_converted_operands(kernel)?;
        let Some(tiles) = Tiles::of(self, kernel) else { return self.split_products(kernel) };
        let count = |[down, along]: [usize; 2]| outer * rows.div_ceil(down) * columns.div_ceil(along);
        let [parts, terms] = tiles.divisible_terms(kernel).map_or([1, 0], |terms| parts(terms, count(LARGE)));
        let may_be_wide = self.options.warpgroups && tiles.are_narrow();
        // What is beyond the last column costs more than width saves; and where sums are short, no other block works while one waits for what
        // its region loads.
        let is_filled = 40 * count(WIDE) <= 21 * count(LARGE);
        let is_wide = may_be_wide && is_filled && (has_long_sums(kernel) || !loads_entries(kernel));
        let usual = match count(LARGE) * parts {
            tiles if tiles >= 2 * MANY_TILES && is_wide => WIDE,
            tiles if tiles >= MANY_TILES => LARGE,
            _ => SMALL,
        };
        let tile = match self.choice {
            _ if !tiles.may_be_large => SMALL,
            Some(ProductMethod::Tile(WIDE)) if !may_be_wide => LARGE,
            Some(ProductMethod::Tile(tile)) => tile,
            Some(ProductMethod::Library(_)) | None => usual,
        };
        let tiles = tiles.deepened(&self.options, tile);
        if tiles.launched_bytes(tile[0], tile[1]) > self.options.shared_bytes {
            return self.split_products(kernel);
        }
        if parts < 2 {
            return self.tiles(kernel, &tiles, tile, None);
        }
        let partial = self.scratch("partial", DType::F32, parts * kernel.domain.points())?;
        let of_parts = of_parts(kernel, parts, partial);
        self.named("parts", |lowering| lowering.tiles(&of_parts, &tiles, tile, Some(terms)))?;
        self.sum_parts(kernel, partial, parts)
    }

    /// One block per tile. Where sums are split, the first axis numbers their parts, of `terms_of_part` terms each.
    fn tiles(
        &mut self,
        kernel: &Kernel,
        tiles: &Tiles,
        [down, along]: [usize; 2],
        terms_of_part: Option<usize>,
    ) -> Result<(), CodegenError> {
        let domain = &kernel.domain;
        let [outer, rows, columns] = self.extents(domain)?;
        let mut code = Code::default();
        place(&mut code, [columns.div_ceil(along), rows.div_ceil(down)], [down, along]);
        let names = self.batch(&mut code, domain);
        tiles.declare_launched(&mut code, down, along);
        for number in 0..kernel.products().len() {
            self.product_operands(&mut code, kernel, number, &names);
            match terms_of_part {
                None => tiles.multiply(&mut code, kernel, number),
                Some(terms) => {
                    let (part, all) = (&names[0], kernel.products()[number].k.iter().product::<usize>());
                    code.line(format!("const int begin = {part} * {terms}, rest = {all} - begin;"));
                    let range = format!("begin, begin + (rest < {terms} ? rest : {terms})");
                    tiles.multiply_terms(&mut code, kernel, number, &range);
                }
            }
        }
        let axes = Axes { names, extents: domain.axes.clone() };
        let mut body = Body::new(&kernel.region, axes, self.slots());
        body.code = code;
        let stores: Vec<_> = kernel.stores.iter().collect();
        let runs = Runs::of_columns(kernel, &stores, self.slots(), |length| length <= MOST_TOGETHER);
        let entries = EntriesOfTile { kernel, runs, tile: [down, along] };
        tiles.entries(&mut body.code, down, along, entries.runs.length);
        entries.write(&mut body);
        let text = body.code.finish();
        let grid = [columns.div_ceil(along), rows.div_ceil(down), outer];
        let block = Block {
            threads: THREADS,
            shared_bytes: tiles.launched_bytes(down, along),
            blocks: if tiles.shares(down, along) { 2 } else { 1 },
        };
        let header = if tiles.by_warpgroups { "warpgroup.cuh" } else { "tile.cuh" };
        self.launch_blocks_with(header, "", block, grid, text)?;
        Ok(())
    }

    /// Adds up the parts of sums, in ascending order, and runs the region on them.
    fn sum_parts(&mut self, kernel: &Kernel, partial: BufferId, parts: usize) -> Result<(), CodegenError> {
        let (domain, points) = (&kernel.domain, kernel.domain.points());
        let stores: Vec<_> = kernel.stores.iter().collect();
        let most = |length: usize| length <= MOST_TOGETHER;
        let runs = Runs::of_columns(kernel, &stores, self.slots(), most);
        let (runs, length) = match runs.alone {
            // Points are numbered without regard to rows.
            Some(_) => (Runs::SINGLE, 1),
            None => (runs.clone(), runs.length),
        };
        let mut code = Code::default();
        code.line(format!("const int point = (block * {THREADS} + threadIdx.x) * {length};"));
        code.line(format!("if (point >= {points}) return;"));
        let name = self.slots()[partial.0 as usize].read();
        code.line(format!("using Part = Run<float, {length}>::Numbers;"));
        code.line(format!("Part sum = *(const Part*)&{name}[point];"));
        code.line("UNROLL");
        code.open(format!("for (int part = 1; part < {parts}; part++)"));
        code.line(format!("const Part next = *(const Part*)&{name}[part * {points} + point];"));
        code.line("UNROLL");
        code.line(format!("for (int at = 0; at < {length}; at++) sum.at[at] += next.at[at];"));
        code.close("");
        let mut names = coordinates(&mut code, "point", 'i', &domain.axes);
        let first = names.pop();
        names.extend(first.iter().map(|_| "along".to_string()));
        let mut body = Body::new(&kernel.region, Axes { names, extents: domain.axes.clone() }, self.slots());
        body.code = code;
        body.in_runs(runs, [], &kernel.stores, |body| {
            first.iter().for_each(|first| body.code.line(format!("const int along = {first} + at;")));
            define_entries_from(body, kernel, None, |_| "sum.at[at]".into());
            body.stores(&kernel.stores);
        });
        self.launch_piece(THREADS, (points / length).div_ceil(THREADS), &body.code.finish())
    }

    /// Outer points, rows and columns.
    pub(super) fn extents(&self, domain: &Domain) -> Result<[usize; 3], CodegenError> {
        let groups = [domain.outer_axes(), domain.row_axes(), domain.column_axes()];
        let [outer, rows, columns] = groups.map(|group| domain.extent(group));
        Ok([count(self, outer)?, count(self, rows)?, count(self, columns)?])
    }

    /// The coordinates of the block's outer point.
    pub(super) fn batch(&self, code: &mut Code, domain: &Domain) -> Vec<String> {
        let outer = &domain.axes[domain.outer_axes()];
        if !outer.is_empty() {
            code.line("const int batch = blockIdx.z;");
        }
        coordinates(code, "batch", 'o', outer)
    }

    /// The operands `a<number>` and `b<number>` of a product.
    pub(super) fn product_operands(&self, code: &mut Code, kernel: &Kernel, number: usize, outer: &[String]) {
        let product = &kernel.products()[number];
        let domain = &kernel.domain;
        for (name, operand, own) in
            [("a", &product.a, domain.row_axes()), ("b", &product.b, domain.column_axes())]
        {
            let axes = OperandAxes::new(domain, &product.k, outer, own);
            self.operand(code, operand, &axes, &format!("{name}{number}"));
        }
    }

    /// An operand as a function of its row and of the number in the sum.
    pub(super) fn operand(&self, code: &mut Code, operand: &Operand, axes: &OperandAxes<'_>, name: &str) {
        let mut inner = Code::default();
        let mut body = Body::new(&operand.region, axes.named(&mut inner), self.slots());
        body.code = inner;
        let dtype = operand_type(operand);
        let load = plain_load(operand);
        let along_rows = axes.is_along_rows(operand);
        // The slices of a loop begin at multiples of their size.
        let is_copied = load.as_ref().is_some_and(|(index, slot)| {
            axes.is_aligned(index, dtype, along_rows) && self.slots()[*slot].bytes.is_multiple_of(16)
        });
        let ty = element_type(dtype);
        let wrap = match load.filter(|_| is_copied) {
            Some((index, _)) => {
                let [row, term] = axes.strides(&index);
                format!("copied<{along_rows}, {row}, {term}>")
            }
            None => format!("computed<{along_rows}>"),
        };
        let returned = match plain_load(operand) {
            Some((index, slot)) => {
                let name = self.slots()[slot].read();
                let at = body.axes.affine(&index);
                match (is_copied, ty == memory_type(dtype)) {
                    (true, _) => format!("{name} + {at}"),
                    (false, true) => format!("{name}[{at}]"),
                    (false, false) => format!("({ty}){name}[{at}]"),
                }
            }
            None => {
                body.need([operand.value]);
                let value = value_name(operand.value);
                if ty == memory_type(dtype) { narrowed(&value, dtype) } else { format!("({ty}){value}") }
            }
        };
        body.code.line(format!("return {returned};"));
        code.open(format!("const auto {name} = {wrap}([&](int row, int k)"));
        body.code.finish().lines().for_each(|line| code.line(line));
        code.close(");");
    }
}

/// What becomes of a tile's sums: the region runs on entries, which threads take from shared memory in runs of neighbours along a row.
struct EntriesOfTile<'a> {
    kernel: &'a Kernel,
    runs: Runs,
    /// Rows and columns of a tile.
    tile: [usize; 2],
}

/// Entries of a run at most: sums have four bytes.
const MOST_TOGETHER: usize = 4;
/// Entries that a thread has at a time: all that they load is under way at once.
const ENTRIES_AT_A_TIME: usize = 16;

impl EntriesOfTile<'_> {
    fn write(&self, body: &mut Body<'_>) {
        let [down, along] = self.tile;
        let runs = ENTRIES_AT_A_TIME / self.runs.length;
        let all = down * along / THREADS / self.runs.length;
        body.code.line("ROLLED");
        body.block(format!("for (int done = 0; done < {all}; done += {runs})"), |body| {
            // A load that follows a store would wait for memory alone, where what it loads may be what is stored.
            let early = body.loads(self.kernel.stores.iter().flat_map(operands), |slot| slot.is_clobbered);
            for value in &early {
                let ty = register_type(body.region.instr(*value).dtype);
                body.code.line(format!("{ty} early_{}[{ENTRIES_AT_A_TIME}];", value_name(*value)));
            }
            let at = format!("i * {} + at", self.runs.length);
            if !early.is_empty() {
                self.each(body, runs, [&early, &[]], &[], |body| {
                    body.need(early.iter().copied());
                    for name in early.iter().copied().map(value_name) {
                        body.code.line(format!("early_{name}[{at}] = {name};"));
                    }
                });
            }
            self.each(body, runs, [&[], &early], &self.kernel.stores, |body| {
                for value in &early {
                    body.define(*value, format!("early_{}[{at}]", value_name(*value)));
                }
                define_entries_from(body, self.kernel, None, |product| {
                    format!("run_of_sums{product}.at[at]")
                });
                body.stores(&self.kernel.stores);
            });
        });
    }

    /// Loops over a thread's next entries, for these loads or, with others that are known, for these stores.
    fn each<'b>(
        &self,
        body: &mut Body<'b>,
        runs: usize,
        [loads, known]: [&[Scalar]; 2],
        stores: &[Store],
        inside: impl FnOnce(&mut Body<'b>),
    ) {
        let domain = &self.kernel.domain;
        let [rows, columns] = [domain.row_axes(), domain.column_axes()].map(|group| domain.extent(group));
        let [down, along] = self.tile;
        body.code.line("UNROLL");
        body.block(format!("for (int i = 0; i < {runs}; i++)"), |body| {
            body.code.line(
                "const int row = first_row + Entries0::row(done + i), first = first_column + Entries0::column(done + i);",
            );
            let is_ragged = |extent: usize, of_tile: usize| !extent.is_multiple_of(of_tile);
            let beyond = [("first", columns, along), ("row", rows, down)].into_iter();
            let beyond = beyond.filter(|(_, extent, of_tile)| is_ragged(*extent, *of_tile));
            let beyond: Vec<_> = beyond.map(|(name, extent, _)| format!("{name} >= {extent}")).collect();
            if !beyond.is_empty() {
                body.code.line(format!("if ({}) continue;", beyond.join(" || ")));
            }
            let outside = body.axes.names.len();
            let names = coordinates(&mut body.code, "row", 'r', &domain.axes[domain.row_axes()]);
            body.axes.names.extend(names);
            let mut names = coordinates(&mut body.code, "first", 'c', &domain.axes[domain.column_axes()]);
            let first = names.pop();
            body.axes.names.extend(names);
            body.axes.names.extend(first.iter().map(|_| "column".to_string()));
            if !stores.is_empty() {
                for product in 0..self.kernel.products().len() {
                    let run = format!("Run<Entries{product}::Sum, {}>::Numbers", self.runs.length);
                    body.code.line(format!("const auto run_of_sums{product} = *(const {run}*)entries{product}.at(done + i);"));
                }
            }
            body.promise(known);
            body.in_runs(self.runs.clone(), loads.iter().copied(), stores, |body| {
                if let Some(first) = &first {
                    body.code.line(format!("const int column = {first} + at;"));
                }
                if self.runs.alone.is_some() {
                    body.code.line(format!("if (column >= {columns}) continue;"));
                }
                inside(body);
            });
            body.axes.names.truncate(outside);
        });
    }
}

/// Panels begin at multiples of their rows and of their terms, all of which divide this number.
const PANEL: usize = 256;

/// The axes over which an operand is defined.
pub(super) struct OperandAxes<'a> {
    pub(super) extents: Vec<usize>,
    /// Names of the first axes.
    pub(super) outer: &'a [String],
    /// Those of its rows.
    pub(super) rows: Range<usize>,
    /// Those of the sum.
    pub(super) depth: Range<usize>,
}

impl<'a> OperandAxes<'a> {
    /// Those of an operand of a product with sums over `depth`, whose rows are these axes of the domain.
    pub(super) fn new(domain: &Domain, depth: &[usize], outer: &'a [String], rows: Range<usize>) -> Self {
        let extents = [&domain.axes[..], depth].concat();
        OperandAxes { outer, rows, depth: domain.axes.len()..extents.len(), extents }
    }

    /// The axes where `row` and `k` number the rows and the sum, with the lines that find their coordinates.
    pub(super) fn named(&self, code: &mut Code) -> Axes {
        let row_names = coordinates(code, "row", 'r', &self.extents[self.rows.clone()]);
        let depth_names = coordinates(code, "k", 'k', &self.extents[self.depth.clone()]);
        let mut names = vec!["0".to_string(); self.extents.len()];
        names[..self.outer.len()].clone_from_slice(self.outer);
        names[self.rows.clone()].clone_from_slice(&row_names);
        names[self.depth.clone()].clone_from_slice(&depth_names);
        Axes { names, extents: self.extents.clone() }
    }

    /// Whether 16 bytes at a time along rows, or along the sum, are one aligned piece of memory, of which the last one may have fewer.
    pub(super) fn is_aligned(&self, index: &Index, dtype: DType, along_rows: bool) -> bool {
        let together = 16 / dtype.size() as i64;
        let group = if along_rows { &self.rows } else { &self.depth };
        let Some(inner) = self.innermost(group) else { return false };
        let others = || (0..self.extents.len()).filter(|&axis| axis != inner && self.extents[axis] > 1);
        // Pieces are counted from the start of the group.
        let is_alone = !others().any(|axis| group.contains(&axis));
        dtype != DType::Bool
            && index.indirect.is_empty()
            && index.strides[inner] == 1
            && (is_alone || self.extents[inner] as i64 % together == 0)
            && index.offset % together == 0
            && others().all(|axis| index.strides[axis] % together == 0)
    }

    /// How far the rows of a panel lie apart in memory, and the terms; 0 where that is not one distance.
    fn strides(&self, index: &Index) -> [i64; 2] {
        [&self.rows, &self.depth].map(|group| match self.innermost(group) {
            Some(axis) if self.is_alone(group, axis) || self.extents[axis].is_multiple_of(PANEL) => {
                index.strides[axis]
            }
            _ => 0,
        })
    }

    /// Whether no other axis of a group has more than one point.
    fn is_alone(&self, group: &Range<usize>, axis: usize) -> bool {
        !group.clone().any(|other| other != axis && self.extents[other] > 1)
    }

    /// The last axis of a group that has more than one point.
    pub(super) fn innermost(&self, group: &Range<usize>) -> Option<usize> {
        group.clone().rev().find(|&axis| self.extents[axis] > 1)
    }

    /// Whether neighbouring rows are neighbours in memory, and not neighbours in the sum.
    pub(super) fn is_along_rows(&self, operand: &Operand) -> bool {
        let contiguous = |axes: &Range<usize>| {
            let last = self.innermost(axes);
            let loads = operand.region.instrs.iter().filter_map(|instr| match &instr.kind {
                InstrKind::Load { index, .. } => Some(index),
                _ => None,
            });
            loads.filter(|index| last.is_some_and(|axis| index.strides[axis] == 1)).count()
        };
        contiguous(&self.rows) > contiguous(&self.depth)
    }
}

/// The only load of an operand that is nothing else: its index map and slot.
fn plain_load(operand: &Operand) -> Option<(Index, usize)> {
    match &operand.region.instr(operand.value).kind {
        InstrKind::Load { buffer, index, guard } if guard.is_empty() && index.indirect.is_empty() => {
            Some((index.clone(), buffer.0 as usize))
        }
        _ => None,
    }
}

/// The type of an operand's numbers.
pub(super) fn operand_type(operand: &Operand) -> DType {
    operand.region.instr(operand.value).dtype
}

/// Defines the region's entries of products, or only those that are wanted, from the sums at `at`.
pub(super) fn define_entries(body: &mut Body<'_>, kernel: &Kernel, wanted: Option<&BTreeSet<Scalar>>) {
    define_entries_from(body, kernel, wanted, |product| format!("product{product}.sums[at]"));
}

/// As `define_entries`, from the sum of each product that `sum_of` writes.
pub(super) fn define_entries_from(
    body: &mut Body<'_>,
    kernel: &Kernel,
    wanted: Option<&BTreeSet<Scalar>>,
    sum_of: impl Fn(usize) -> String,
) {
    for (number, instr) in kernel.region.instrs.iter().enumerate() {
        let is_wanted = wanted.is_none_or(|wanted| wanted.contains(&Scalar(number as u32)));
        if let (InstrKind::Producer(product), true) = (&instr.kind, is_wanted) {
            let sum = sum_of(*product);
            let (ty, of) = (register_type(instr.dtype), operand_type(&kernel.products()[*product].a));
            let is_used = kernel
                .region
                .instrs
                .iter()
                .any(|other| other.kind.operands().contains(&Scalar(number as u32)));
            let entry = match instr.dtype {
                // A store rounds it anyway.
                DType::BF16 | DType::F16 if !is_used && kernel.consumers().is_empty() => {
                    format!("(float){sum}")
                }
                DType::BF16 | DType::F16 => format!("round_to<{}>((float){sum})", memory_type(instr.dtype)),
                DType::F32 if of != DType::F64 => sum,
                _ => format!("({ty}){sum}"),
            };
            body.define(Scalar(number as u32), entry);
        }
    }
}
