//! Products with few rows, or few columns, as of a model that reads one token (matrix times vector, GEMV). Such a product takes as long as its
//! matrix takes to come from memory, so no tile is filled with rows that are not there: threads read the matrix in pieces of 16 bytes, each once.
//!
//! ```text
//! 1×3072, sums of 768 terms in bf16: a warp has two columns, a lane 3 pieces of 8 terms of each; lanes are added up by halves
//! ```
//!
//! Numbers are multiplied as `f32`, which is exact for narrow types, and `f32` itself is not rounded to TF32. Who has which terms follows from shapes and types alone, so that a sum has the same order on every card, and tuning has nothing to choose.

use super::body::{Body, operands};
use super::contraction::{OperandAxes, define_entries_from, operand_type};
use super::lower::{Block, Lowering};
use super::rewrite::transposed;
use super::source::{Axes, Code, coordinates, memory_type};
use super::tiles::THREADS;
use kernfusion_codegen::analysis::common_stride;
use kernfusion_codegen::{CodegenError, HalfBytes, half_bytes};
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{Domain, Index, InstrKind, Kernel, Operand, Product, Scalar};

/// Rows of such a product at most. More are worth a tile.
const MOST_ROWS: usize = 8;
/// Half bytes in an access of memory: a group, which begins at a multiple of 16 bytes.
const OF_HALF_BYTES: usize = 32;
/// Threads that share a column at least.
const LEAST_TEAM: usize = 8;
const WARP: usize = 32;
/// Blocks that a large GPU should have at least, one for each multiprocessor.
const LEAST_BLOCKS: usize = 132;
/// Columns of a team at most.
const MOST_COLUMNS: usize = 4;
/// Pieces that a thread has under way at most: 256 threads then have 32 KiB, and a multiprocessor's share of the bandwidth of an H200 is 25 KiB in the
/// 700 ns that memory may take.
const MOST_PIECES: usize = 8;

/// A product with few rows, and who computes what of it.
pub(super) struct FewRows {
    kernel: Kernel,
    /// Rows and columns.
    extents: [usize; 2],
    /// Whether neighbours of the matrix lie along columns instead of along the terms of sums.
    along_columns: bool,
    /// Numbers of the matrix in an access of memory; 1 where 16 bytes are not aligned.
    piece: usize,
    /// Threads that share columns, and how many they share.
    team: usize,
    columns: usize,
    /// From a thread of a team to the next.
    step: usize,
}

impl FewRows {
    /// A kernel without consumers that is such a product, with rows and columns exchanged if columns are few.
    pub(super) fn of(lowering: &Lowering<'_>, kernel: &Kernel) -> Option<Self> {
        let rows = kernel.domain.extent(kernel.domain.row_axes());
        let kernel = if rows <= MOST_ROWS { kernel.clone() } else { transposed(kernel) };
        let domain = &kernel.domain;
        let [outer, rows, columns] =
            [domain.outer_axes(), domain.row_axes(), domain.column_axes()].map(|group| domain.extent(group));
        let is_summed = |product: &Product| is_summed_in_f32(domain, product);
        if rows > MOST_ROWS || rows >= columns || !kernel.products().iter().all(is_summed) {
            return None;
        }
        let mut layouts = (0..kernel.products().len()).map(|number| layout(lowering, &kernel, number));
        let (along_columns, piece) = layouts.next()??;
        if layouts.any(|other| other != Some((along_columns, piece))) {
            return None;
        }
        let depth = kernel.products().iter().map(depth).max().unwrap_or(0);
        let work = Work { outer, rows, columns, depth, piece };
        let (team, of_team, step) = if along_columns { work.along_columns() } else { work.along_terms() };
        let fits = rows * of_team <= team;
        let extents = [rows, columns];
        fits.then_some(FewRows { kernel, extents, along_columns, piece, team, columns: of_team, step })
    }
}

/// The terms of a product's sums.
fn depth(product: &Product) -> usize {
    product.k.iter().product()
}

/// How a matrix is unpacked from half bytes, if it is, and lies where it is known before.
fn packed<'o>(operand: &'o Operand, domain: &Domain, product: &Product) -> Option<HalfBytes<'o>> {
    half_bytes(operand, domain, &product.k).filter(|found| found.bytes.1.indirect.is_empty())
}

/// Whether a product of a kernel unpacks its matrix from half bytes here.
pub(super) fn unpacks(domain: &Domain, product: &Product) -> bool {
    let [rows, columns] = [domain.row_axes(), domain.column_axes()].map(|group| domain.extent(group));
    rows <= MOST_ROWS && rows < columns && packed(&product.b, domain, product).is_some()
}

/// Whether a product's operands come from memory as they are, or converted, or from half bytes, and are summed in `f32`.
fn is_summed_in_f32(domain: &Domain, product: &Product) -> bool {
    let is_float = |dtype: DType| matches!(dtype, DType::F32 | DType::BF16 | DType::F16);
    let is_known = |operand: &Operand| {
        load(operand).is_some_and(|(.., dtype)| is_float(dtype) || dtype == DType::I8)
            && is_float(operand_type(operand))
    };
    let is_matrix = || is_known(&product.b) || packed(&product.b, domain, product).is_some();
    is_float(product.dtype) && is_known(&product.a) && is_matrix()
}

/// The load of an operand, if there is nothing else but a conversion: its index map, its slot, and the type in memory.
fn load(operand: &Operand) -> Option<(&Index, usize, DType)> {
    let instr = operand.plain()?;
    match &instr.kind {
        InstrKind::Load { buffer, index, guard } if guard.is_empty() && index.indirect.is_empty() => {
            Some((index, buffer.0 as usize, instr.dtype))
        }
        _ => None,
    }
}

/// Whether the matrix of a product has neighbours along columns, and how many of them an access takes.
fn layout(lowering: &Lowering<'_>, kernel: &Kernel, number: usize) -> Option<(bool, usize)> {
    let (domain, product) = (&kernel.domain, &kernel.products()[number]);
    if packed(&product.b, domain, product).is_some() {
        return Some((false, OF_HALF_BYTES));
    }
    let axes = OperandAxes::new(domain, &product.k, &[], domain.column_axes());
    let (_, _, dtype) = load(&product.b)?;
    let along_columns = axes.is_along_rows(&product.b);
    let piece = 16 / dtype.size();
    let group = if along_columns { &axes.rows } else { &axes.depth };
    let is_whole = axes.innermost(group).is_some_and(|axis| axes.extents[axis].is_multiple_of(piece));
    let is_aligned = is_whole && is_aligned(lowering, &product.b, &axes, along_columns);
    Some((along_columns, if is_aligned { piece } else { 1 }))
}

/// Whether an operand's pieces of 16 bytes are aligned.
fn is_aligned(lowering: &Lowering<'_>, operand: &Operand, axes: &OperandAxes<'_>, along_rows: bool) -> bool {
    // The slices of a loop begin at multiples of their size.
    load(operand).is_some_and(|(index, slot, dtype)| {
        axes.is_aligned(index, dtype, along_rows) && lowering.slots()[slot].bytes.is_multiple_of(16)
    })
}

/// What has to be shared out among threads.
struct Work {
    outer: usize,
    rows: usize,
    columns: usize,
    depth: usize,
    piece: usize,
}

impl Work {
    /// How many blocks there are if a team has this many columns.
    fn blocks(&self, team: usize, columns: usize) -> usize {
        self.outer * self.columns.div_ceil(THREADS / team * columns)
    }

    /// Threads of a team, its columns and the distance of its threads, where pieces are terms of a column: a warp, or less of it where sums are
    /// short; several where there are few columns. Where there are many, a team has some, for which it reads the rows once.
    fn along_terms(&self) -> (usize, usize, usize) {
        let pieces = self.depth / self.piece;
        let mut team = pieces.next_power_of_two().clamp(LEAST_TEAM, WARP);
        let mut columns = 1;
        while columns < MOST_COLUMNS
            && 2 * columns * self.rows <= team
            && self.blocks(team, 2 * columns) >= LEAST_BLOCKS
        {
            columns *= 2;
        }
        while team < THREADS && self.blocks(team, columns) < LEAST_BLOCKS && pieces >= 4 * team {
            team *= 2;
        }
        (team, columns, 1)
    }

    /// As there, where a piece is one term of neighbouring columns: neighbouring threads have neighbouring pieces, up to 128 bytes of a row, and less where
    /// there are few columns.
    fn along_columns(&self) -> (usize, usize, usize) {
        let [least, most] = if self.piece > 1 { [2, 8] } else { [8, WARP] };
        let mut step = most;
        while step > least && self.blocks(THREADS / step, self.piece) < LEAST_BLOCKS {
            step /= 2;
        }
        while step > 1 && self.rows * self.piece > THREADS / step {
            step /= 2;
        }
        while step < WARP
            && THREADS / step > LEAST_TEAM.max(self.depth)
            && 2 * step * self.rows * self.piece <= THREADS
        {
            step *= 2;
        }
        (THREADS / step, self.piece, step)
    }
}

impl Lowering<'_> {
    /// A product with few rows: a block for some columns, all of whose threads read the matrix. What the region loads beside sums is loaded before, so that it is
    /// under way with the matrix.
    pub(super) fn few_rows(&mut self, few: &FewRows) -> Result<(), CodegenError> {
        let FewRows { kernel, extents: [rows, columns], team, columns: of_team, step, .. } = few;
        let domain = &kernel.domain;
        let [outer, ..] = self.extents(domain)?;
        let blocks = columns.div_ceil(THREADS / team * of_team);
        self.moves(kernel);
        let mut code = Code::default();
        let most = (MOST_PIECES / if few.along_columns { 1 } else { *of_team }).max(1);
        code.line(format!("using Few = FewRows<{rows}, {of_team}, {team}, {step}, {most}>;"));
        code.line(format!("const int first_column = (blockIdx.x * Few::TEAMS + Few::team()) * {of_team};"));
        // Nobody leaves before sums are added up; who speaks for no column looks at the last one.
        code.line("const int wanted = first_column + Few::column(), row = Few::row();");
        code.line(format!("const int column = smaller(wanted, {});", columns - 1));
        let mut names = self.batch(&mut code, domain);
        let outer_names = names.clone();
        names.extend(coordinates(&mut code, "row", 'r', &domain.axes[domain.row_axes()]));
        names.extend(coordinates(&mut code, "column", 'c', &domain.axes[domain.column_axes()]));
        let mut body = Body::new(&kernel.region, Axes { names, extents: domain.axes.clone() }, self.slots());
        body.code = code;
        body.need(loads_beside_sums(kernel));
        for (number, product) in kernel.products().iter().enumerate() {
            for (name, operand, own) in
                [("a", &product.a, domain.row_axes()), ("b", &product.b, domain.column_axes())]
            {
                let axes = OperandAxes::new(domain, &product.k, &outer_names, own);
                let (name, is_matrix) = (format!("{name}{number}"), name == "b");
                match packed(operand, domain, product).filter(|_| is_matrix) {
                    Some(found) => self.half_bytes(&mut body.code, &found, operand, &axes, &name),
                    None => self.in_memory(&mut body.code, few, operand, &axes, &name),
                }
            }
            let (piece, depth) = (few.piece, depth(product));
            body.code.line(format!("Few few{number};"));
            body.code.line(format!(
                "few{number}.add<{piece}, {depth}>(a{number}, first_column, {columns}, b{number});"
            ));
            body.code.line(format!("const float sum{number} = few{number}.sum();"));
        }
        body.code.line(format!("if (!Few::speaks() || wanted >= {columns}) return;"));
        define_entries_from(&mut body, kernel, None, |product| format!("sum{product}"));
        body.stores(&kernel.stores);
        let text = body.code.finish();
        let block = Block { threads: THREADS, shared_bytes: 0, blocks: 2 };
        self.launch_blocks_with("gemv.cuh", "", block, [blocks, 1, outer], text)?;
        Ok(())
    }

    /// A matrix of half bytes as addresses of its groups and their scales.
    fn half_bytes(
        &self,
        code: &mut Code,
        found: &HalfBytes<'_>,
        operand: &Operand,
        axes: &OperandAxes<'_>,
        name: &str,
    ) {
        let mut inner = Code::default();
        let names = axes.named(&mut inner);
        let [bytes, scales] = [found.bytes, found.scales].map(|(buffer, index)| {
            format!("{} + {}", self.slots()[buffer.0 as usize].read(), names.affine(index))
        });
        let scale = memory_type(found.scale);
        inner.line(format!("return HalfBytes<{scale}>{{{bytes}, {scales}}};"));
        let ty = memory_type(operand_type(operand));
        code.open(format!("const auto {name} = in_memory<{ty}, false, true>([&](int row, int k)"));
        inner.finish().lines().for_each(|line| code.line(line));
        code.close(");");
    }

    /// An operand as addresses of its numbers, by row and number in the sum.
    fn in_memory(
        &self,
        code: &mut Code,
        few: &FewRows,
        operand: &Operand,
        axes: &OperandAxes<'_>,
        name: &str,
    ) {
        let (index, slot, dtype) = load(operand).expect("operands are loads");
        let is_matrix = axes.rows == few.kernel.domain.column_axes();
        let along_rows = is_matrix && few.along_columns;
        // Of half bytes, pieces go over two axes.
        let (halves, strides) = (axes.depth.end.saturating_sub(2)..axes.depth.end, &index.strides);
        // As many bytes are more than an access.
        let is_whole = few.piece < OF_HALF_BYTES
            || dtype != DType::I8
                && common_stride(&axes.extents[halves.clone()], &strides[halves]) == Some(1);
        let is_aligned = few.piece > 1
            && (is_matrix || !few.along_columns && is_whole && is_aligned(self, operand, axes, false));
        let mut inner = Code::default();
        let place = axes.named(&mut inner).affine(index);
        inner.line(format!("return {} + {place};", self.slots()[slot].read()));
        let ty = memory_type(operand_type(operand));
        code.open(format!(
            "const auto {name} = in_memory<{ty}, {along_rows}, {is_aligned}>([&](int row, int k)"
        ));
        inner.finish().lines().for_each(|line| code.line(line));
        code.close(");");
    }
}

/// Loads that stores need and that no sum decides about.
fn loads_beside_sums(kernel: &Kernel) -> Vec<Scalar> {
    let region = &kernel.region;
    let needs_sum = |value: Scalar| {
        let all = region.needed([value], |_| false);
        all.into_iter().any(|value| matches!(region.instr(value).kind, InstrKind::Producer(_)))
    };
    let live = region.needed(kernel.stores.iter().flat_map(operands), |_| false);
    let is_load = |value: &Scalar| matches!(region.instr(*value).kind, InstrKind::Load { .. });
    live.into_iter().filter(is_load).filter(|value| !needs_sum(*value)).collect()
}
