//! Rows: a team of threads for each, a warp where rows are short and a block where they are long.
//!
//! The region is cut into sweeps over the row. A sweep computes what its reductions need, again if an earlier one has
//! computed it before, since a row lies in a near cache; results of reductions are known to the whole team. Everything
//! is stored in the last sweep, so that a kernel may write over what it reads.
//!
//! Reductions across rows take chunks of rows, whose sums another launch combines. Their number depends on the shape
//! alone. Where rows are short, each warp of a block takes every eighth row of a chunk.

use super::body::{Body, Runs, operands, sweeps};
use super::lower::{Block, Lowering, count};
use super::source::{
    Axes, Code, Slot, combiner, constant, coordinates, is_narrow, memory_type, register_type, sum_type,
    value_name,
};
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::axes;
use kernfusion_ir::kernel::{BufferId, Direction, Index, Instr, InstrKind, Kernel, Region, Scalar, Store};
use kernfusion_ir::{DType, ReduceOp};

/// Threads of a block of several teams.
const THREADS: usize = 256;
/// Longer rows are given a block.
const WARP_COLUMNS: usize = 1024;
/// Longer rows are given the largest block.
const BLOCK_COLUMNS: usize = 8192;
/// The most chunks of rows, about four blocks for each multiprocessor of a large card, and the fewest rows of one.
const CHUNKS: usize = 512;
const CHUNK_ROWS: usize = 8;
/// From this many chunks on, several warps combine those of a column.
const MANY_CHUNKS: usize = 64;
/// Columns of a row that a thread keeps in registers.
const MOST_UNROLLED: usize = 32;
/// Numbers that a thread loads before it computes with the first of them.
const MOST_EARLY: usize = 64;
/// Rows whose loads are under way together where nothing is reduced along them.
const ROWS_TOGETHER: usize = 4;
/// Sums across rows that a thread of a warp keeps in registers, if each warp of a block has rows of its own.
const MOST_SUMS: usize = 96;

/// The threads that work on a row.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Team {
    Warp,
    Block(usize),
}

impl Team {
    /// The team of the rows of a kernel. Where random bits are drawn for each column, a thread has half as many columns: the compiler draws
    /// those of all columns at once, which takes many registers.
    fn of(kernel: &Kernel, columns: usize) -> Self {
        let is_random = |instr: &Instr| matches!(instr.kind, InstrKind::Random { .. });
        let share = if kernel.region.instrs.iter().any(is_random) { 2 } else { 1 };
        match columns * share {
            0..=WARP_COLUMNS => Team::Warp,
            columns if columns <= BLOCK_COLUMNS => Team::Block(THREADS),
            _ => Team::Block(1024),
        }
    }

    fn size(self) -> usize {
        match self {
            Team::Warp => 32,
            Team::Block(size) => size,
        }
    }

    fn barrier(self) -> &'static str {
        match self {
            Team::Warp => "__syncwarp();",
            Team::Block(_) => "__syncthreads();",
        }
    }

    fn reduce(self, op: ReduceOp, value: &str) -> String {
        match self {
            Team::Warp => format!("reduce_warp<{}>({value})", combiner(op)),
            Team::Block(size) => format!("reduce_block<{}, {size}>({value})", combiner(op)),
        }
    }
}

/// A kernel on its rows.
struct Rows<'a> {
    kernel: &'a Kernel,
    team: Team,
    /// The name of a thread's number in its team, or among all teams that share the row.
    lane: &'static str,
    /// Extent of a row.
    columns: usize,
    /// Columns of a thread.
    each: usize,
    /// Neighbours that a thread has together.
    runs: Runs,
    /// Blocks that share a row.
    parts: usize,
    /// Loads that come before everything else, each with an array in registers, and the place in it of what is at hand.
    early: Vec<Scalar>,
    early_at: String,
}

/// How a reduction across rows is laid out.
struct Chunks {
    /// Who works on a row of a chunk.
    team: Team,
    /// Teams of a block, each with rows of its own.
    teams: usize,
    /// Whether blocks share out a row's columns, and how many.
    shares: bool,
    parts: usize,
    runs: Runs,
    /// Columns of a thread.
    each: usize,
    /// Rows of a chunk, and how many chunks there are.
    rows: usize,
    count: usize,
}

/// A reduction across rows and the store of its result.
#[derive(Clone, Copy)]
struct Across<'a> {
    op: ReduceOp,
    value: Scalar,
    store: &'a Store,
}

impl Lowering<'_> {
    /// A reduction over columns: one result of a row, or values of the row that depend on it.
    pub(super) fn rows(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        self.moves(kernel);
        let kernel = &axes::merged(kernel);
        let domain = &kernel.domain;
        let columns = count(self, domain.extent(domain.column_axes()))?;
        let rows = count(self, domain.extent(0..domain.outer + domain.rows))?;
        let team = Team::of(kernel, columns);
        if rows == 0 {
            return Ok(());
        }
        let mut code = Code::default();
        let (threads, blocks) = match team {
            Team::Warp => {
                let together = THREADS / 32;
                code.line(format!("const int row = blockIdx.x * {together} + threadIdx.x / WARP;"));
                code.line("const int lane = threadIdx.x % WARP;");
                code.line(format!("if (row >= {rows}) return;"));
                (THREADS, rows.div_ceil(together))
            }
            Team::Block(size) => {
                code.line("const int row = blockIdx.x, lane = threadIdx.x;");
                (size, rows)
            }
        };
        let names = coordinates(&mut code, "row", 'r', &domain.axes[..domain.outer + domain.rows]);
        let stores: Vec<_> = kernel.stores.iter().collect();
        let may_be = |length: usize| is_filled(columns, team.size() * length);
        let runs = Runs::of_columns(kernel, &stores, self.slots(), may_be);
        let each = columns.div_ceil(team.size() * runs.length) * runs.length;
        // Where every sweep but the first would load the row again.
        let may_be_kept = each > MOST_UNROLLED && !sweeps(&kernel.region, &live(kernel)).is_empty();
        let kept = if may_be_kept { self.kept_rows(kernel, &names, team.size(), runs.length) } else { None };
        let (shared_bytes, locals) = kept.as_ref().map_or((0, 0), |kept| (kept.bytes, kept.locals));
        kept.iter().flat_map(|kept| kept.code.lines()).for_each(|line| code.line(line));
        let kernel = kept.as_ref().map_or(kernel, |kept| &kept.kernel);
        let axes = Axes { names, extents: domain.axes.clone() };
        let mut body = Body::new(&kernel.region, axes, self.slots());
        body.code = code;
        let (early, early_at) = (vec![], "i".into());
        let mut this = Rows { kernel, team, lane: "lane", columns, each, runs, parts: 1, early, early_at };
        if this.loads_all_early(&body, 1) {
            this.load_early(&mut body, 1, |body, load| load(body));
        }
        this.reductions(&mut body);
        this.finish(&mut body, &[], &stores);
        let text = body.code.finish();
        self.remove_locals(locals);
        let block = Block { threads, shared_bytes, blocks: shared_by(threads) };
        self.launch_blocks("", block, [blocks, 1, 1], text)?;
        Ok(())
    }

    /// A kernel in which rows are reduced, perhaps beside columns.
    pub(super) fn row_reduction(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        let kernel = &axes::merged(kernel);
        let domain = &kernel.domain;
        let [outer, rows, columns] =
            [domain.outer_axes(), domain.row_axes(), domain.column_axes()].map(|group| domain.extent(group));
        let [outer, rows, columns] = [count(self, outer)?, count(self, rows)?, count(self, columns)?];
        let (across, others) = split(kernel);
        // What is stored in several places is summed up once.
        let mut distinct: Vec<Across<'_>> = vec![];
        for sum in &across {
            if distinct.iter().all(|other| other.value != sum.value) {
                distinct.push(*sum);
            }
        }
        let chunks = self.chunks_of(kernel, distinct.len(), &others, rows);
        let partials = distinct.iter().map(|sum| {
            let dtype = sum_type(kernel.region.instr(sum.value).dtype);
            self.scratch("partial", dtype, outer * chunks.count * columns)
        });
        let partials = partials.collect::<Result<Vec<_>, _>>()?;
        if outer * columns == 0 {
            return Ok(());
        }
        let count = chunks.count;
        self.chunks(kernel, &distinct, &partials, &others, chunks)?;
        let of_value = |value| distinct.iter().position(|other| other.value == value);
        let sums = across.iter().map(|sum| (*sum, partials[of_value(sum.value).expect("a partial sum")]));
        self.named("combine", |lowering| lowering.combine(kernel, &sums.collect::<Vec<_>>(), count))
    }

    /// How `sums` reductions across `rows` rows are laid out, beside other stores.
    fn chunks_of(&self, kernel: &Kernel, sums: usize, others: &[&Store], rows: usize) -> Chunks {
        let domain = &kernel.domain;
        let columns = domain.extent(domain.column_axes());
        let shares = self.shares_columns(kernel, others);
        let usual = match Team::of(kernel, columns) {
            Team::Warp if sums * columns.div_ceil(32) > MOST_SUMS => Team::Block(THREADS),
            team => team,
        };
        let may_be = |length: usize| match usual {
            Team::Warp => is_filled(columns, 32 * length),
            Team::Block(size) => is_filled(columns, if shares { 32 } else { size } * length),
        };
        let runs = Runs::of_columns(kernel, others, self.slots(), may_be);
        let runs_of_row = columns.div_ceil(runs.length);
        let parts = if shares { runs_of_row.div_ceil(THREADS).max(1) } else { 1 };
        let team = if shares { Team::Block(runs_of_row.div_ceil(parts).next_multiple_of(32)) } else { usual };
        let teams = if team == Team::Warp { THREADS / team.size() } else { 1 };
        let each = runs_of_row.div_ceil(team.size() * parts) * runs.length;
        let rows_of_chunk = rows.div_ceil(CHUNKS).max(CHUNK_ROWS);
        let count = rows.div_ceil(rows_of_chunk).max(1);
        Chunks { team, teams, parts, shares, runs, each, rows: rows_of_chunk, count }
    }

    /// The launch that reduces chunks of rows.
    fn chunks(
        &mut self,
        kernel: &Kernel,
        across: &[Across<'_>],
        partials: &[BufferId],
        others: &[&Store],
        chunks: Chunks,
    ) -> Result<(), CodegenError> {
        let domain = &kernel.domain;
        let [outer, rows, columns] =
            [domain.outer_axes(), domain.row_axes(), domain.column_axes()].map(|group| domain.extent(group));
        let Chunks { team, teams, parts, shares, runs, each, rows: chunk, count: chunks } = chunks;
        let size = team.size();
        let mut code = Code::default();
        code.line("const int unit = blockIdx.y, chunk = blockIdx.x;");
        let lane = if parts > 1 || teams > 1 { "lane" } else { "threadIdx.x" };
        if parts > 1 {
            code.line(format!("const int lane = blockIdx.z * {size} + threadIdx.x;"));
        }
        let mut first = format!("chunk * {chunk}");
        if teams > 1 {
            code.line("const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;");
            first += " + warp";
        }
        let names = coordinates(&mut code, "unit", 'o', &domain.axes[domain.outer_axes()]);
        for Across { op, value, .. } in across {
            let dtype = sum_type(kernel.region.instr(*value).dtype);
            let (ty, name) = (register_type(dtype), value_name(*value));
            code.line(format!("{ty} sum_{name}[{each}];"));
            let identity = constant(op.identity(dtype), dtype);
            code.line(unrolling_of_sums(each));
            code.line(format!("for (int i = 0; i < {each}; i++) sum_{name}[i] = {identity};"));
        }
        let last = format!(
            "const int end = chunk * {chunk} + {chunk} < {rows} ? chunk * {chunk} + {chunk} : {rows};"
        );
        code.line(last);
        let axes = Axes { names, extents: domain.axes.clone() };
        let mut body = Body::new(&kernel.region, axes, self.slots());
        body.code = code;
        let length = runs.length;
        let (early, early_at) = (vec![], "i".into());
        let mut this = Rows { kernel, team, lane, columns, each, runs, parts, early, early_at };
        let of_rows = &domain.axes[domain.row_axes()];
        if shares && this.loads_all_early(&body, ROWS_TOGETHER) {
            // What several rows load is under way together.
            let each_row = |body: &mut Body<'_>, inside: &mut dyn FnMut(&mut Body<'_>)| {
                body.code.line("UNROLL");
                body.block(format!("for (int next = 0; next < {ROWS_TOGETHER}; next++)"), |body| {
                    body.code.line("const int row = first_row + next;");
                    body.code.line("if (row >= end) continue;");
                    in_coordinates(body, "row", 'r', of_rows, inside);
                });
            };
            this.early_at = format!("next * {each} + i");
            let head =
                format!("for (int first_row = {first}; first_row < end; first_row += {ROWS_TOGETHER})");
            body.block(head, |body| {
                this.load_early(body, ROWS_TOGETHER, |body, load| each_row(body, load));
                each_row(body, &mut |body| this.finish(body, across, others));
            });
        } else {
            body.block(format!("for (int row = {first}; row < end; row += {teams})"), |body| {
                in_coordinates(body, "row", 'r', of_rows, &mut |body| {
                    body.prefetch_row(kernel, [&format!("row + {teams}"), "end"], lane, size);
                    this.reductions(body);
                    this.finish(body, across, others);
                });
            });
        }
        let sums = across.iter().zip(partials);
        for (Across { op, value, .. }, partial) in sums {
            let (slot, name) = (&self.slots()[partial.0 as usize], value_name(*value));
            if teams > 1 {
                let ty = memory_type(sum_type(kernel.region.instr(*value).dtype));
                let place = format!("{} + (unit * {chunks} + chunk) * {columns}", slot.write());
                let combine =
                    format!("combine_warps<{}, {ty}, {columns}, {length}, {THREADS}>", combiner(*op));
                body.code.line(format!("{combine}(sum_{name}, {place});"));
                continue;
            }
            let head = format!("for (int i = 0; i < {each}; i++)");
            body.code.line(unrolling_of_sums(each));
            body.block(head, |body| {
                body.code.line(match length {
                    1 => format!("const int column = {lane} + i * {size};"),
                    _ => format!(
                        "const int column = ({lane} + i / {length} * {size}) * {length} + i % {length};"
                    ),
                });
                let element = format!("{}[(unit * {chunks} + chunk) * {columns} + column]", slot.write());
                body.code.line(format!("if (column < {columns}) {element} = sum_{name}[i];"));
            });
        }
        let text = body.code.finish();
        let threads = size * teams;
        let block = Block { threads, shared_bytes: 0, blocks: shared_by(threads) };
        self.launch_blocks("chunks", block, [chunks, outer, parts], text)?;
        Ok(())
    }

    /// The launch that combines what chunks have of each column: a thread for each of them or, where there are many chunks, several warps of a block
    /// for 32.
    fn combine(
        &mut self,
        kernel: &Kernel,
        sums: &[(Across<'_>, BufferId)],
        chunks: usize,
    ) -> Result<(), CodegenError> {
        let domain = &kernel.domain;
        let [outer, columns] = [domain.outer_axes(), domain.column_axes()].map(|group| domain.extent(group));
        let mut code = Code::default();
        let warps = if chunks < MANY_CHUNKS { 1 } else { THREADS / 32 };
        let of_block = THREADS / warps;
        code.line(format!(
            "const int unit = blockIdx.y, column = blockIdx.x * {of_block} + threadIdx.x % {of_block};"
        ));
        let mut names = coordinates(&mut code, "unit", 'o', &domain.axes[domain.outer_axes()]);
        names.resize(domain.outer + domain.rows, "0".into());
        names.extend(coordinates(&mut code, "column", 'c', &domain.axes[domain.column_axes()]));
        for (number, (sum, partial)) in sums.iter().enumerate() {
            let Across { op, value, store } = sum;
            let dtype = sum_type(kernel.region.instr(*value).dtype);
            let axes = Axes { names: names.clone(), extents: domain.axes.clone() };
            let mut body = Body::new(&kernel.region, axes, self.slots());
            let name = body.slots[partial.0 as usize].read();
            let identity = constant(op.identity(dtype), dtype);
            let combined = format!(
                "combine_chunks<{}, {THREADS}, {warps}, {chunks}, {columns}>({name} + unit * {}, column, {identity})",
                combiner(*op),
                chunks * columns,
            );
            body.block(format!("if (blockIdx.z == {number})"), |body| {
                body.code.line(format!("const {} combined = {combined};", register_type(dtype)));
                body.block(format!("if (threadIdx.x < {of_block} && column < {columns})"), |body| {
                    let reduced = body.region.instr(store.value).dtype;
                    let is_rounded = is_narrow(reduced);
                    let rounded = format!("round_to<{}>(combined)", memory_type(reduced));
                    body.define(store.value, if is_rounded { rounded.as_str() } else { "combined" });
                    body.stores([*store]);
                });
            });
            body.code.finish().lines().for_each(|line| code.line(line));
        }
        let bytes_of = |partial: BufferId| self.slots()[partial.0 as usize].bytes;
        let read: usize = sums.iter().map(|(_, partial)| bytes_of(*partial)).sum();
        self.moves_bytes(read, read / chunks);
        let grid = [columns.div_ceil(of_block), outer, sums.len()];
        let block = Block { threads: THREADS, shared_bytes: 0, blocks: 2 };
        self.launch_blocks("", block, grid, code.finish())?;
        Ok(())
    }

    /// Whether blocks can share out the columns of a row: nothing is reduced along them or stored once a row, and no point reads what another one
    /// stores beside the sums.
    fn shares_columns(&self, kernel: &Kernel, others: &[&Store]) -> bool {
        let is_own = |index: &Index| others.iter().all(|store| store.index == *index);
        let reads_own = kernel.region.instrs.iter().all(|instr| match &instr.kind {
            InstrKind::Load { buffer, index, .. } => {
                !self.slots()[buffer.0 as usize].is_clobbered || is_own(index)
            }
            _ => true,
        });
        sweeps(&kernel.region, &live(kernel)).is_empty()
            && others.iter().all(|store| is_in_loop(kernel, store))
            && reads_own
    }
}

/// What is inside has the coordinates of these axes, by their number.
fn in_coordinates(
    body: &mut Body<'_>,
    number: &str,
    prefix: char,
    axes: &[usize],
    inside: &mut dyn FnMut(&mut Body<'_>),
) {
    let outside = body.axes.names.len();
    let names = coordinates(&mut body.code, number, prefix, axes);
    body.axes.names.extend(names);
    inside(body);
    body.axes.names.truncate(outside);
}

/// Whether few threads are left without a column, where all of them together take `at_once` columns at a time.
fn is_filled(columns: usize, at_once: usize) -> bool {
    8 * columns.next_multiple_of(at_once) <= 9 * columns
}

/// Blocks that share a multiprocessor at least, where registers suffice: while one waits for memory, another one computes.
fn shared_by(threads: usize) -> usize {
    if threads > THREADS { 1 } else { 2 }
}

/// Sums of a few columns stay in registers, which takes unrolled loops; more lie in local memory.
fn unrolling_of_sums(each: usize) -> &'static str {
    if each <= MOST_UNROLLED { "UNROLL" } else { "ROLLED" }
}

/// Values that some store needs.
fn live(kernel: &Kernel) -> std::collections::BTreeSet<Scalar> {
    kernel.region.needed(kernel.stores.iter().flat_map(operands), |_| false)
}

impl Rows<'_> {
    /// Whether a thread's registers hold all that it loads for `rows` rows and that differs between them; if so, that is loaded early.
    fn loads_all_early(&mut self, body: &Body<'_>, rows: usize) -> bool {
        self.early = self.loads(body, |_| true);
        if rows > 1 {
            let of_rows = self.kernel.domain.row_axes();
            self.early.retain(|value| match &body.region.instr(*value).kind {
                InstrKind::Load { index, .. } => index.varies(of_rows.clone()),
                _ => false,
            });
        }
        let is_early = self.each <= MOST_UNROLLED && rows * self.each * self.early.len() <= MOST_EARLY;
        if !is_early {
            self.early.clear();
        }
        is_early
    }

    fn varies(&self, value: Scalar) -> bool {
        varies(self.kernel, value)
    }

    /// All sweeps with reductions.
    fn reductions(&self, body: &mut Body<'_>) {
        for sweep in sweeps(body.region, &live(self.kernel)) {
            self.sweep(body, &sweep);
        }
    }

    fn sweep(&self, body: &mut Body<'_>, reductions: &[Scalar]) {
        let parts: Vec<_> = reductions.iter().map(|&value| reduction(body.region, value)).collect();
        self.need_of_row(body, parts.iter().map(|(_, x)| *x));
        for (&value, (op, x)) in reductions.iter().zip(&parts) {
            let dtype = sum_type(body.region.instr(*x).dtype);
            let identity = constant(op.identity(dtype), dtype);
            body.code.line(format!("{} sum_{} = {identity};", register_type(dtype), value_name(value)));
        }
        let roots: Vec<_> = parts.iter().map(|(_, x)| *x).collect();
        self.each_column(body, &roots, &[], |body| {
            body.need(parts.iter().map(|(_, x)| *x));
            for (&value, (op, x)) in reductions.iter().zip(&parts) {
                let (sum, x) = (format!("sum_{}", value_name(value)), value_name(*x));
                body.code.line(format!("{sum} = {}::combine({sum}, {x});", combiner(*op)));
            }
        });
        for (&value, (op, _)) in reductions.iter().zip(&parts) {
            let dtype = body.region.instr(value).dtype;
            let reduced = self.team.reduce(*op, &format!("sum_{}", value_name(value)));
            let rounded = format!("round_to<{}>({reduced})", memory_type(dtype));
            body.define(value, if is_narrow(dtype) { rounded } else { reduced });
        }
    }

    /// Computes those of the row's values that these are made of.
    fn need_of_row(&self, body: &mut Body<'_>, roots: impl IntoIterator<Item = Scalar>) {
        let all = body.region.needed(roots, |_| false);
        body.need(all.into_iter().filter(|value| !self.varies(*value) && !is_across(body.region, *value)));
    }

    /// A loop over a thread's columns, the `i`-th of which is `column`. Few are unrolled, so that their loads are under way together and the values
    /// of one sweep stay in registers for the next.
    fn each_column(
        &self,
        body: &mut Body<'_>,
        roots: &[Scalar],
        stores: &[&Store],
        inside: impl FnOnce(&mut Body<'_>),
    ) {
        let roots_of_all = roots.iter().copied().chain(stores.iter().flat_map(|store| operands(store)));
        let needed = body.region.needed(roots_of_all, |_| false);
        let early: Vec<_> = self.early.iter().copied().filter(|value| needed.contains(value)).collect();
        let inside = |body: &mut Body<'_>| {
            for value in &early {
                body.define(*value, format!("early_{}[{}]", value_name(*value), self.early_at));
            }
            inside(body);
        };
        let Rows { lane, columns, each, runs, parts, .. } = self;
        let (size, length) = (self.team.size(), runs.length);
        let axes = &self.kernel.domain.axes[self.kernel.domain.column_axes()];
        let (turns, whole) = (each / length, columns / (size * length * parts));
        let outside = body.axes.names.len();
        if *each <= MOST_UNROLLED && length == 1 {
            body.code.line("UNROLL");
            body.block(format!("for (int i = 0; i < {each}; i++)"), |body| {
                body.code.line(format!("const int column = {lane} + i * {size};"));
                if whole < turns {
                    body.code.line(format!("if (column >= {columns}) continue;"));
                }
                let names = coordinates(&mut body.code, "column", 'c', axes);
                body.axes.names.extend(names);
                inside(body);
            });
            body.axes.names.truncate(outside);
            return;
        }
        let turn = |body: &mut Body<'_>, [not_whole, leave]: [&str; 2]| {
            body.code.line(format!("const int first = ({lane} + run * {size}) * {length};"));
            if whole < turns {
                body.code.line(format!("if ({not_whole}first >= {columns}) {leave};"));
            }
            let mut names = coordinates(&mut body.code, "first", 'c', axes);
            let first = names.pop().expect("a run lies along an axis");
            names.push("column".into());
            body.axes.names.extend(names);
            let alone = runs.alone.as_ref().map(|alone| format!("{not_whole}{alone}"));
            body.promise(&early);
            body.in_runs(
                Runs { alone, ..runs.clone() },
                roots.iter().copied(),
                stores.iter().copied(),
                |body| {
                    body.code.line(format!("const int i = run * {length} + at, column = {first} + at;"));
                    if runs.alone.is_some() {
                        body.code.line(format!("if ({not_whole}column >= {columns}) continue;"));
                    }
                    inside(body);
                },
            );
        };
        if *each <= MOST_UNROLLED {
            body.code.line("UNROLL");
            body.block(format!("for (int run = 0; run < {turns}; run++)"), |body| {
                turn(body, ["", "continue"])
            });
        } else {
            // Without branches between them, the loads of several turns are under way together.
            body.block("", |body| {
                body.block_with("const auto turn = [&](int run, bool is_whole)", ";", |body| {
                    turn(body, ["!is_whole && ", "return"]);
                });
                body.code.line("UNROLL_SOME");
                body.code.line(format!("for (int run = 0; run < {whole}; run++) turn(run, true);"));
                (whole..turns).for_each(|run| body.code.line(format!("turn({run}, false);")));
            });
        }
        body.axes.names.truncate(outside);
    }

    /// The last sweep: sums across rows, and all stores.
    fn finish(&mut self, body: &mut Body<'_>, across: &[Across<'_>], stores: &[&Store]) {
        let (in_loop, of_row): (Vec<&Store>, Vec<&Store>) =
            stores.iter().partition(|store| is_in_loop(self.kernel, store));
        let values: Vec<_> = across.iter().map(|across| across.value).collect();
        self.stores_of_row(body, &of_row, &in_loop);
        self.need_of_row(body, values.iter().copied());
        if in_loop.is_empty() && across.is_empty() {
            return;
        }
        if self.early.is_empty() && self.each <= MOST_UNROLLED && !in_loop.is_empty() {
            self.early = self.loads(body, |slot| slot.is_clobbered);
            self.load_early(body, 1, |body, load| load(body));
        }
        self.each_column(body, &values, &in_loop, |body| {
            body.need(values.iter().copied());
            for Across { op, value, .. } in across {
                let sum = format!("sum_{}[i]", value_name(*value));
                let combined = format!("{}::combine({sum}, {})", combiner(*op), value_name(*value));
                body.code.line(format!("{sum} = {combined};"));
            }
            body.stores(in_loop.iter().copied());
        });
    }

    /// The loads from such memory that differ along a row.
    fn loads(&self, body: &Body<'_>, is_from: impl Fn(&Slot) -> bool) -> Vec<Scalar> {
        let loads = body.loads(self.kernel.stores.iter().flat_map(operands), is_from);
        loads.into_iter().filter(|value| self.varies(*value)).collect()
    }

    /// Loads before anything else, and before the first store, where a load that follows one would wait for memory alone. `each_row` does it for
    /// each of `rows` rows.
    fn load_early(
        &mut self,
        body: &mut Body<'_>,
        rows: usize,
        each_row: impl FnOnce(&mut Body<'_>, &mut dyn FnMut(&mut Body<'_>)),
    ) {
        let early = std::mem::take(&mut self.early);
        for value in &early {
            let ty = register_type(body.region.instr(*value).dtype);
            body.code.line(format!("{ty} early_{}[{}];", value_name(*value), rows * self.each));
        }
        if !early.is_empty() {
            each_row(body, &mut |body| {
                self.each_column(body, &early, &[], |body| {
                    body.need(early.iter().copied());
                    for name in early.iter().copied().map(value_name) {
                        body.code.line(format!("early_{name}[{}] = {name};", self.early_at));
                    }
                });
            });
        }
        self.early = early;
    }

    /// Stores that happen once a row, after every thread of the team has read what they may overwrite.
    fn stores_of_row(&self, body: &mut Body<'_>, of_row: &[&Store], in_loop: &[&Store]) {
        self.need_of_row(body, of_row.iter().chain(in_loop).flat_map(|store| operands(store)));
        if of_row.is_empty() {
            return;
        }
        body.code.line(self.team.barrier());
        body.block(format!("if ({} == 0)", self.lane), |body| {
            let domain = &self.kernel.domain;
            let outside = body.axes.names.len();
            body.axes.names.resize(domain.axes.len(), "0".into());
            body.stores(of_row.iter().copied());
            body.axes.names.truncate(outside);
        });
    }
}

/// What a reduction reduces, and how.
pub(super) fn reduction(region: &Region, value: Scalar) -> (ReduceOp, Scalar) {
    match region.instr(value).kind {
        InstrKind::Reduce(op, _, x) => (op, x),
        ref kind => unreachable!("{kind:?} is no reduction"),
    }
}

/// Whether a value differs along a row.
fn varies(kernel: &Kernel, value: Scalar) -> bool {
    let Kernel { region, domain, .. } = kernel;
    region.varies(value, domain.column_axes(), domain)
}

/// Whether a store happens at every point of a row, and not once a row.
fn is_in_loop(kernel: &Kernel, store: &Store) -> bool {
    store.index.varies(kernel.domain.column_axes())
        || operands(store).iter().any(|value| varies(kernel, *value))
}

fn is_across(region: &Region, value: Scalar) -> bool {
    matches!(region.instr(value).kind, InstrKind::Reduce(_, Direction::Rows, _))
}

/// The stores of reductions across rows, and the others.
fn split(kernel: &Kernel) -> (Vec<Across<'_>>, Vec<&Store>) {
    let (across, others): (Vec<&Store>, Vec<&Store>) =
        kernel.stores.iter().partition(|store| is_across(&kernel.region, store.value));
    let across = across.into_iter().map(|store| {
        let (op, value) = reduction(&kernel.region, store.value);
        Across { op, value, store }
    });
    (across.collect(), others)
}

/// Whether a type can be reduced.
pub(super) fn check_reductions(lowering: &Lowering<'_>, kernel: &Kernel) -> Result<(), CodegenError> {
    let is_bool = |instr: &Instr| matches!(instr.kind, InstrKind::Reduce(..)) && instr.dtype == DType::Bool;
    match kernel.region.instrs.iter().any(is_bool) {
        true => Err(lowering.unsupported("a reduction of bool")),
        false => Ok(()),
    }
}
