//! Products without consumers: a block for each tile of rows × columns, whose region runs on sums in registers. Where there are few
//! tiles, and sums are long, each of several blocks has a part of a tile's sums, and a second function adds the parts up
//! (split-k).
//!
//! ```text
//! gradient of a weight, 768×768, sums of 16,384 terms: 36 tiles × 7 parts of 2,368 terms, then a thread for each entry
//! ```

use super::body::{Body, Pairs};
use super::lower::{Block, Lowering, ProductMethod, count};
use super::rewrite::dense;
use super::source::{Axes, Code, coordinates, memory_type, narrowed, register_type, value_name};
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::analysis::indices_mut;
use kernfusion_codegen::axes;
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{
    BufferId, Domain, Index, InstrKind, Kernel, Operand, Region, Scalar, Store, StoreMode,
};
use std::collections::BTreeSet;
use std::ops::Range;

/// Rows and columns of tiles, the small one first. The widest one is for warpgroups alone: it takes all registers of a multiprocessor, and
/// fewest bytes for a product.
pub(super) const TILES: [[usize; 2]; 5] = [[64, 64], [128, 64], [64, 128], [128, 128], [128, 256]];
const SMALL: [usize; 2] = TILES[0];
const LARGE: [usize; 2] = TILES[3];
const WIDE: [usize; 2] = TILES[4];
/// Threads of a tile, as the headers have them.
pub(super) const THREADS: usize = 256;
/// Bytes of a row of a panel, with its padding, as the headers have them, and of one for warpgroups.
const PANEL_ROW: [usize; 2] = [80, 128];
/// Stages of panels, one of which is read while the others are filled: at least, as in chains, whose values take shared memory, too,
/// and at most.
const STAGES: [usize; 2] = [2, 4];
/// Bytes of shared memory for panels: cards give a block at least 99 KiB, and 164 KiB to two that share a multiprocessor of an A100.
const SHARED_BYTES: usize = 80 << 10;
/// Those of cards with warpgroups, for each of two blocks.
const SHARED_BYTES_OF_WARPGROUPS: usize = 113 << 10;
/// With this many large tiles, a large GPU is occupied.
const MANY_TILES: usize = 120;
/// Blocks that a large GPU runs at once, two on each multiprocessor.
const MANY_BLOCKS: usize = 264;
/// Terms of a part of a sum at least: less work would not be worth the memory that parts go through.
const LEAST_TERMS: usize = 1024;
/// What writing and reading a part of a tile costs, in terms that are multiplied meanwhile: 8 bytes an entry at 4.8 TB/s beside 2 operations at
/// 600 TFLOP/s.
const TERMS_OF_PART: usize = 500;
const MOST_PARTS: usize = 16;

/// The types of the tiles of a kernel's products, and the shared memory of their panels.
pub(super) struct Tiles {
    /// The type of each product's operands.
    types: Vec<DType>,
    /// Those without repetition: products of one type use one panel in turns.
    distinct: Vec<DType>,
    tf32: bool,
    /// Whether tiles of up to 128×128 fit into registers and shared memory.
    may_be_large: bool,
    /// Whether warpgroups compute them.
    by_warpgroups: bool,
    stages: usize,
}

impl Tiles {
    /// `None` if the products' tiles lay out their sums in different ways.
    pub(super) fn of(lowering: &Lowering<'_>, kernel: &Kernel) -> Option<Self> {
        let types: Vec<_> = kernel.products().iter().map(|product| operand_type(&product.a)).collect();
        let tf32 = lowering.options.tf32;
        let is_tensor = |dtype: &DType| is_tensor(*dtype, tf32);
        let is_mixed = types.iter().any(is_tensor) && !types.iter().all(is_tensor);
        let mut distinct = types.clone();
        distinct.sort();
        distinct.dedup();
        let may_be_large = types.len() == 1 && types[0] != DType::F64;
        let stages = STAGES[0];
        (!is_mixed).then_some(Tiles { types, distinct, tf32, may_be_large, by_warpgroups: false, stages })
    }

    /// The name of the tile type of a product.
    pub(super) fn name(&self, number: usize) -> String {
        format!("Tile{}", self.suffix(number))
    }

    fn suffix(&self, number: usize) -> String {
        let at = self.distinct.iter().position(|dtype| *dtype == self.types[number]);
        if self.distinct.len() == 1 { String::new() } else { format!("{}", at.expect("a type of a product")) }
    }

    /// The name of the panels of a product.
    pub(super) fn panels(&self, number: usize) -> String {
        format!("panels{}", self.suffix(number))
    }

    /// Computed by warpgroups, if there are any and they multiply such tiles, and with as many stages as there is memory for.
    fn deepened(self, has_warpgroups: bool, [rows, columns]: [usize; 2]) -> Self {
        let by_warpgroups = has_warpgroups && self.are_narrow() && [rows, columns] != SMALL;
        let one = Tiles { by_warpgroups, stages: 1, ..self };
        let memory = match by_warpgroups {
            true if one.shares(rows, columns) => SHARED_BYTES_OF_WARPGROUPS,
            true => 2 * SHARED_BYTES_OF_WARPGROUPS,
            false => SHARED_BYTES,
        };
        let stages = (memory / one.shared_bytes(rows, columns)).clamp(STAGES[0], STAGES[1]);
        Tiles { stages, ..one }
    }

    /// Whether all operands have 16 bits, as those that warpgroups multiply.
    fn are_narrow(&self) -> bool {
        self.types.iter().all(|dtype| matches!(dtype, DType::BF16 | DType::F16))
    }

    /// Tile types, and panels in memory that launches ask for.
    fn declare_launched(&self, code: &mut Code, rows: usize, columns: usize) {
        self.declare_with(code, [rows, columns], |at, element, panels, count| {
            let offset = at * self.shared_bytes(rows, columns) / self.distinct.len();
            format!("LAUNCHED_SHARED({element}, {panels}, {offset}, {count});")
        });
    }

    /// Bytes of shared memory of all panels.
    fn shared_bytes(&self, rows: usize, columns: usize) -> usize {
        self.distinct.len() * self.stages * (rows + columns) * PANEL_ROW[usize::from(self.by_warpgroups)]
    }

    /// Tile types and panels.
    pub(super) fn declare(&self, code: &mut Code, rows: usize, columns: usize) {
        self.declare_with(code, [rows, columns], |_, element, panels, count| {
            format!("SHARED({element}, {panels}, {count});")
        });
    }

    /// `memory` writes the line that declares the panels of the type of this number.
    fn declare_with(
        &self,
        code: &mut Code,
        [rows, columns]: [usize; 2],
        memory: impl Fn(usize, &str, &str, &str) -> String,
    ) {
        for (at, dtype) in self.distinct.iter().enumerate() {
            let number = self.types.iter().position(|other| other == dtype).expect("a type of a product");
            let (name, panels) = (self.name(number), self.panels(number));
            let ty = match self.by_warpgroups {
                true => format!("WarpgroupTile<{}, {rows}, {columns}>", memory_type(*dtype)),
                false => tile_type(*dtype, self.tf32, rows, columns),
            };
            code.line(format!("using {name} = {ty};"));
            let count = format!("panel_count<{name}>({})", self.stages);
            code.line(memory(at, element_type(*dtype), &panels, &count));
        }
    }

    /// The terms of the kernel's sums, if there is one product, which is summed in `f32`; sums of other types are not divided.
    fn divisible_terms(&self, kernel: &Kernel) -> Option<usize> {
        let is_summed_in_f32 = |dtype: DType| matches!(dtype, DType::F32 | DType::BF16 | DType::F16);
        let [product] = kernel.products() else { return None };
        (is_summed_in_f32(self.types[0]) && is_summed_in_f32(product.dtype))
            .then(|| product.k.iter().product())
    }

    /// Whether two blocks share a multiprocessor: one waits for memory while the other multiplies. Large tiles of plain arithmetic and the
    /// widest ones take too many registers.
    fn shares(&self, rows: usize, columns: usize) -> bool {
        let is_tensor = self.types.iter().any(|dtype| is_tensor(*dtype, self.tf32));
        let most = if is_tensor { LARGE } else { SMALL };
        rows * columns <= most[0] * most[1]
    }

    /// The last axis of columns, if each thread has its entries in pairs of neighbours along it, and whether the last column is alone.
    fn pairs(&self, domain: &Domain) -> Option<Pairs> {
        let axis = domain.column_axes().next_back()?;
        let are_pairs = self.types.iter().all(|dtype| is_tensor(*dtype, self.tf32));
        let is_even = domain.axes[axis].is_multiple_of(2);
        let alone = (!is_even).then(|| format!("column == {}", domain.axes[axis] - 1));
        (are_pairs && (is_even || domain.column_axes().len() == 1)).then_some(Pairs { axis, alone })
    }

    /// The tile `product<number>`.
    pub(super) fn multiply(&self, code: &mut Code, kernel: &Kernel, number: usize) {
        let terms: usize = kernel.products()[number].k.iter().product();
        self.multiply_terms(code, kernel, number, &format!("0, {terms}"));
    }

    /// As `multiply`, over the terms from a first one to a last one.
    fn multiply_terms(&self, code: &mut Code, kernel: &Kernel, number: usize, range: &str) {
        let domain = &kernel.domain;
        let [rows, columns] = [domain.row_axes(), domain.column_axes()].map(|group| domain.extent(group));
        let (panels, stages) = (self.panels(number), self.stages);
        code.line(format!("{} product{number};", self.name(number)));
        code.line(format!(
            "multiply<{stages}>(product{number}, {panels}, first_row, {rows}, a{number}, first_column, {columns}, \
             b{number}, {range});"
        ));
    }
}

/// Splits a sum of `terms` terms: the number of parts, and the terms of each part but the last. Both depend on shapes alone, so that
/// a sum has the same order on every card and in every tile.
///
/// Blocks come in waves of as many as a GPU runs at once, and the last wave takes as long as the others: 144 tiles are half a wave, five
/// parts of each are three whole ones. A part more costs a tile that is written and read once more.
fn parts(terms: usize, large_tiles: usize) -> [usize; 2] {
    // Steps of all types end where a part does.
    let of_part = |parts: usize| terms.div_ceil(parts).max(1).next_multiple_of(64);
    let most = (terms / LEAST_TERMS).clamp(1, MOST_PARTS);
    let cost = |parts: &usize| {
        let blocks = large_tiles * parts;
        let memory = if *parts > 1 { blocks * TERMS_OF_PART } else { 0 };
        blocks.next_multiple_of(MANY_BLOCKS) * of_part(*parts) + memory
    };
    let of_part = of_part((1..=most).min_by_key(cost).unwrap_or(1));
    [terms.div_ceil(of_part), of_part]
}

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

/// Whether tensor cores multiply a type.
fn is_tensor(dtype: DType, tf32: bool) -> bool {
    matches!(dtype, DType::BF16 | DType::F16) || dtype == DType::F32 && tf32
}

/// The type of a tile in the source.
pub(super) fn tile_type(dtype: DType, tf32: bool, rows: usize, columns: usize) -> String {
    match dtype {
        DType::F32 if tf32 => format!("TensorTile<tf32, {rows}, {columns}>"),
        dtype if is_tensor(dtype, tf32) => format!("TensorTile<{}, {rows}, {columns}>", memory_type(dtype)),
        dtype => format!("PlainTile<{}, {rows}, {columns}>", element_type(dtype)),
    }
}

/// The type of the elements that a tile multiplies. Signed integers wrap as unsigned ones do.
pub(super) fn element_type(dtype: DType) -> &'static str {
    match dtype {
        DType::I32 | DType::Bool => "u32",
        dtype => memory_type(dtype),
    }
}

impl Lowering<'_> {
    /// Products and an elementwise region.
    pub(super) fn contraction(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        let kernel = &axes::merged(kernel);
        let [outer, rows, columns] = self.extents(&kernel.domain)?;
        if outer * rows * columns == 0 {
            return Ok(());
        }
        let kernel = &self.with_converted_operands(kernel)?;
        let Some(tiles) = Tiles::of(self, kernel) else { return self.split_products(kernel) };
        let count = |[down, along]: [usize; 2]| outer * rows.div_ceil(down) * columns.div_ceil(along);
        let [parts, terms] = tiles.divisible_terms(kernel).map_or([1, 0], |terms| parts(terms, count(LARGE)));
        let may_be_wide = self.options.warpgroups && tiles.are_narrow();
        // What is beyond the last column costs more than width saves, and no other block works while one waits for what its region loads.
        let is_filled = 40 * count(WIDE) <= 21 * count(LARGE);
        let is_wide = may_be_wide && is_filled && (parts > 1 || !loads_entries(kernel));
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
        let tiles = tiles.deepened(self.options.warpgroups, tile);
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
        code.line(format!("const int first_row = blockIdx.y * {down}, first_column = blockIdx.x * {along};"));
        let mut names = self.batch(&mut code, domain);
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
        let axes = Axes { names: vec![], extents: domain.axes.clone() };
        let mut body = Body::new(&kernel.region, axes, self.slots());
        body.code = code;
        if let Some(pairs) = tiles.pairs(domain) {
            body.pair_up(pairs, &kernel.stores);
        }
        let code = &mut body.code;
        code.line("UNROLL");
        code.open(format!("for (int at = 0; at < {}::COUNT; at++)", tiles.name(0)));
        code.line(
            "const int row = first_row + product0.row(at), column = first_column + product0.column(at);",
        );
        // Without branches between them, entries are computed side by side.
        let beyond = [("column", columns, along), ("row", rows, down)]
            .into_iter()
            .filter(|(_, extent, of_tile)| !extent.is_multiple_of(*of_tile))
            .map(|(name, extent, _)| format!("{name} >= {extent}"))
            .collect::<Vec<_>>();
        if !beyond.is_empty() {
            code.line(format!("if ({}) continue;", beyond.join(" || ")));
        }
        names.extend(coordinates(code, "row", 'r', &domain.axes[domain.row_axes()]));
        names.extend(coordinates(code, "column", 'c', &domain.axes[domain.column_axes()]));
        body.axes.names = names;
        define_entries(&mut body, kernel, None);
        body.stores(&kernel.stores);
        body.code.close("");
        let text = body.code.finish();
        let grid = [columns.div_ceil(along), rows.div_ceil(down), outer];
        let block = Block {
            threads: THREADS,
            shared_bytes: tiles.shared_bytes(down, along),
            shares: tiles.shares(down, along),
        };
        let header = if tiles.by_warpgroups { "warpgroup.cuh" } else { "tile.cuh" };
        self.launch_blocks_with(header, "", block, grid, text)?;
        Ok(())
    }

    /// Adds up the parts of sums, in ascending order, and runs the region on them.
    fn sum_parts(&mut self, kernel: &Kernel, partial: BufferId, parts: usize) -> Result<(), CodegenError> {
        let (domain, points) = (&kernel.domain, kernel.domain.points());
        let mut code = Code::default();
        code.line(format!("const int point = block * {THREADS} + threadIdx.x;"));
        code.line(format!("if (point >= {points}) return;"));
        let name = self.slots()[partial.0 as usize].read();
        code.line(format!("float sum = {name}[point];"));
        code.line("UNROLL");
        code.line(format!(
            "for (int part = 1; part < {parts}; part++) sum += {name}[part * {points} + point];"
        ));
        let names = coordinates(&mut code, "point", 'i', &domain.axes);
        let mut body = Body::new(&kernel.region, Axes { names, extents: domain.axes.clone() }, self.slots());
        body.code = code;
        define_entries_from(&mut body, kernel, None, |_| "sum".into());
        body.stores(&kernel.stores);
        self.launch_piece(THREADS, points.div_ceil(THREADS), &body.code.finish())
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
            let axes = OperandAxes {
                extents: [&domain.axes[..], &product.k].concat(),
                outer,
                rows: own,
                depth: domain.axes.len()..domain.axes.len() + product.k.len(),
            };
            self.operand(code, operand, &axes, &format!("{name}{number}"));
        }
    }

    /// An operand as a function of its row and of the number in the sum.
    pub(super) fn operand(&self, code: &mut Code, operand: &Operand, axes: &OperandAxes<'_>, name: &str) {
        let mut inner = Code::default();
        let row_names = coordinates(&mut inner, "row", 'r', &axes.extents[axes.rows.clone()]);
        let depth_names = coordinates(&mut inner, "k", 'k', &axes.extents[axes.depth.clone()]);
        let mut names = vec!["0".to_string(); axes.extents.len()];
        names[..axes.outer.len()].clone_from_slice(axes.outer);
        names[axes.rows.clone()].clone_from_slice(&row_names);
        names[axes.depth.clone()].clone_from_slice(&depth_names);
        let all = Axes { names, extents: axes.extents.clone() };
        let mut body = Body::new(&operand.region, all, self.slots());
        body.code = inner;
        let dtype = operand_type(operand);
        let load = plain_load(operand);
        let along_rows = axes.is_along_rows(operand);
        // The slices of a loop begin at multiples of their size.
        let is_copied = load.is_some_and(|(index, slot)| {
            axes.is_aligned(&index, dtype, along_rows) && self.slots()[slot].bytes.is_multiple_of(16)
        });
        let ty = element_type(dtype);
        let wrap = if is_copied { "copied" } else { "computed" };
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
        code.open(format!("const auto {name} = {wrap}<{along_rows}>([&](int row, int k)"));
        body.code.finish().lines().for_each(|line| code.line(line));
        code.close(");");
    }
}

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

impl OperandAxes<'_> {
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

    /// The last axis of a group that has more than one point.
    fn innermost(&self, group: &Range<usize>) -> Option<usize> {
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
fn define_entries_from(
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
            let entry = match instr.dtype {
                DType::BF16 | DType::F16 => format!("round_to<{}>((float){sum})", memory_type(instr.dtype)),
                DType::F32 if of != DType::F64 => sum,
                _ => format!("({ty}){sum}"),
            };
            body.define(Scalar(number as u32), entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sums_of_few_tiles_are_divided() {
        assert_eq!(parts(16_384, 36), [7, 2368]);
        assert_eq!(parts(50_257, 48), [11, 4608]);
        assert_eq!(parts(1 << 20, 1), [16, 65_536]);
        // Enough tiles, too few terms, none.
        assert_eq!((parts(16_384, 792)[0], parts(2047, 1)[0], parts(0, 1)[0]), (1, 1, 0));
        // Whole waves.
        assert_eq!((parts(16_384, 144), parts(3072, 768)[0]), ([5, 3328], 1));
    }
}
