//! Products with few rows (decoding a token): B is read once, in its own order, and never packed.
//!
//! Where B is contiguous along k, an element of C is a dot product in the lanes of a few registers. On Zen 4 memory gives a thread almost
//! twice as much along one row of B as along four. On Intel's processors it gives most along four that lie far from each other
//! and are fetched ahead. Which it is here is tried (`trial.rs`). From five rows on, several lines are always multiplied side by side, since
//! a line that is used for one row of A and one of B is loaded as often as it is multiplied: six rows and four lines take ten loads for
//! 24 products, so that up to some thirty rows read B as fast as memory gives it, or multiply as fast as the processor can. Where B is
//! contiguous along n, rows of B are added up. Which of the two, and so the order of summation, depends on the layout of B only.

use super::blocking::{GemmCall, Space, chunks};
use super::bytes::Bytes;
use super::half_bytes::{ScaleType, Unpack};
use super::line::{Line, at};
use super::microkernel::{Kernels, prefetch};
use super::pack::{Offsets, Source};
use super::{Contraction, Element, Output, TILE_COLUMNS, half_bytes};
use crate::math::vector::Lanes;
use crate::pool::share;
use std::ops::Range;

/// The most rows, where B is contiguous along n, or its lines are staged: beyond, packing B pays.
const MOST_ROWS: usize = 8;
/// The most rows of dot products with lines as they lie; with a tile unit, whose products of bf16 are several times as fast, fewer.
const MOST_ROWS_OF_DOTS: usize = 32;
const MOST_ROWS_BESIDE_TILES: usize = 16;
/// Rows of C that one kernel call computes: of dot products, and where rows of B are added up.
pub(super) const DOT_ROWS: usize = 6;
const AXPY_ROWS: usize = 4;
/// Bytes of the lines of B that are multiplied with one group of rows after another.
const SHARED: usize = 128 << 10;
/// Bytes of B that a thread takes at a time at least.
const STEP: usize = 128 << 10;
/// Terms of dot products that are added up between two visits of C, with several groups of rows.
const DEPTH_OF_DOTS: usize = 1024;
/// Bytes of a group of rows of bytes, if that is more than [`DOT_ROWS`] rows.
const ROWS: usize = 24 << 10;
/// Rows of B that are added up between two visits of C.
const DEPTH: usize = 32;
/// Bytes of a row of C up to which all rows of B are added up in one visit.
const NARROW: usize = 512;

/// `(a, lda, b, k, c, ldc, adds)`: c[i · ldc + j] = Σ_p a[i · lda + p] · b[j][p] for the rows of A and the lines of B, or that is added.
pub(super) type Dot = unsafe fn(*const f32, usize, &Lines, usize, *mut f32, usize, bool);
/// `(a, lda, b, c, ldc, n)`: c[i · ldc + j] += Σ_p a[i · lda + p] · b[p][j] for j < n.
pub(super) type Axpy = unsafe fn(*const f32, usize, &Lines, *mut f32, usize, usize);

/// Lines of B, one after another.
pub(super) struct Lines {
    first: *const u8,
    /// Scales of the first line's groups, where lines are [half bytes](super::half_bytes).
    scales: *const u8,
    /// In bytes.
    stride: isize,
    count: usize,
    /// What is read after them, if lines are fetched ahead of their use.
    next: Option<*const u8>,
    /// Which of several groups of rows they are multiplied with, and of how many. Each fetches its share of the next lines.
    turn: (usize, usize),
}

/// What is fetched while lines are multiplied.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    /// How many bytes ahead of what is multiplied.
    pub(super) ahead: isize,
    /// The first cache line to be fetched, and the distance from one to the next: each group of rows fetches others.
    pub(super) turn: (usize, usize),
}

/// Where a line of B begins, and the scales of its groups.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) values: *const u8,
    pub(super) scales: *const u8,
}

impl Start {
    /// What begins that many bytes further on, with scales of a size.
    #[inline(always)]
    pub(super) fn after(self, bytes: usize, size: usize) -> Self {
        let scales = self.scales.wrapping_offset(half_bytes::of_scales(bytes as isize, size));
        Start { values: self.values.wrapping_add(bytes), scales }
    }
}

impl Lines {
    #[inline(always)]
    fn line(&self, i: usize) -> *const u8 {
        self.first.wrapping_offset(i as isize * self.stride)
    }

    #[inline(always)]
    fn start<B: Line>(&self, i: usize) -> Start {
        let scales = self.scales.wrapping_offset(half_bytes::of_scales(i as isize * self.stride, B::SCALE));
        Start { values: self.line(i), scales }
    }

    /// As [`line`](Self::line); beyond the last one, a line of what is read next.
    #[inline(always)]
    fn line_ahead(&self, i: usize, next: *const u8) -> *const u8 {
        let (first, i) = if i < self.count { (self.first, i) } else { (next, i - self.count) };
        first.wrapping_offset(i as isize * self.stride)
    }
}

/// The kernels of one instruction set, by rows: for lines of B of `f32`, of `bf16`, of `i8` and (dot products alone) of half bytes, with scales of
/// each [type](ScaleType).
pub(super) struct Gemv {
    pub dot: [[Dot; DOT_ROWS]; 5],
    /// For lines and rows of bf16 in [words of two](super::pairs), where the processor multiplies these.
    pub pairs: Option<[Dot; DOT_ROWS]>,
    /// For scales of each type.
    pub unpack: [Unpack; 2],
    /// `(row, count)`: reorders a row of A to match the order of half bytes.
    pub arrange: unsafe fn(*mut f32, usize),
    pub axpy: [[Axpy; AXPY_ROWS]; 3],
}

// No closures in the kernels below: compiled without the instruction set's features, they would be calls.

/// Sums that are under way at once for each row of A and line of B: an addition waits for the one before it.
const fn chains(rows: usize) -> usize {
    match rows {
        1 | 2 => 4,
        3 => 2,
        _ => 1,
    }
}

/// Bytes of a line of a cache, and how far ahead of their use they are fetched.
pub(super) const CACHE_LINE: usize = 64;
const AHEAD: usize = 32 * CACHE_LINE;
/// Bytes of a line of B up to which two are read side by side. Of longer ones four are, for one row, whose sums fit into registers. Both
/// were fastest on an Intel Xeon with tiles (`docs/benchmarks/xeon-tiles.md`).
const SHORT: usize = 512;

/// Several lines are read side by side where they are fetched ahead, or multiplied with many rows; the bits are the same.
///
/// # Safety
/// As `Dot`; the instruction set is there.
#[inline(always)]
pub(super) unsafe fn dot<L: Lanes, const R: usize, B: Line>(
    a: *const f32,
    lda: usize,
    lines: &Lines,
    k: usize,
    c: *mut f32,
    ldc: usize,
    adds: bool,
) {
    let is_short = B::bytes(k) <= SHORT;
    // SAFETY: the caller's contract.
    unsafe {
        // Sums of six rows and four lines, or twelve and two, fill the registers of AVX-512, of six and two those of AVX2. A row and a line of half bytes have
        // two sums, that of a group and that of groups.
        let is_wide = L::LANES == 16;
        let is_shared = lines.turn.1 > 1;
        let done = match lines.next {
            _ if R > 2 && B::SCALE > 0 && is_shared => abreast::<L, R, B, 1>(a, lda, lines, k, c, ldc, adds),
            _ if R > 2 && B::SCALE > 0 => far_apart::<L, R, B, 1>(a, lda, lines, k, c, ldc, adds),
            _ if R > DOT_ROWS && is_shared => abreast::<L, R, B, 2>(a, lda, lines, k, c, ldc, adds),
            _ if R > DOT_ROWS => far_apart::<L, R, B, 2>(a, lda, lines, k, c, ldc, adds),
            _ if R > 2 && is_shared && is_wide => abreast::<L, R, B, 4>(a, lda, lines, k, c, ldc, adds),
            _ if R > 2 && is_shared => abreast::<L, R, B, 2>(a, lda, lines, k, c, ldc, adds),
            None if R <= 4 => 0,
            _ if R == 1 && !is_short || R > 2 && is_wide => {
                far_apart::<L, R, B, 4>(a, lda, lines, k, c, ldc, adds)
            }
            _ => far_apart::<L, R, B, 2>(a, lda, lines, k, c, ldc, adds),
        };
        for j in done..lines.count {
            let mut sums = [L::splat(0.0); R];
            for (sum, [of_line]) in
                sums.iter_mut().zip(B::dots::<L, R, 1>(a, lda, [lines.start::<B>(j)], k, None))
            {
                *sum = of_line;
            }
            for (i, sum) in B::totals(sums).into_iter().enumerate() {
                put(c.add(i * ldc + j), [sum], adds);
            }
        }
    }
}

/// S lines at a time that lie far from each other, as many as fill every one of S streams; returns how many.
///
/// # Safety
/// As `Dot`; the instruction set is there.
#[inline(always)]
unsafe fn far_apart<L: Lanes, const R: usize, B: Line, const S: usize>(
    a: *const f32,
    lda: usize,
    lines: &Lines,
    k: usize,
    c: *mut f32,
    ldc: usize,
    adds: bool,
) -> usize {
    let length = lines.count / S;
    let fetch = Fetch { ahead: AHEAD as isize, turn: (0, 1) };
    let fetch = if lines.next.is_some() { Some(fetch) } else { None };
    for j in 0..length {
        let mut b = [lines.start::<B>(0); S];
        for (s, b) in b.iter_mut().enumerate() {
            *b = lines.start::<B>(s * length + j);
        }
        // SAFETY: the caller's contract.
        unsafe {
            for (i, sums) in B::dots::<L, R, S>(a, lda, b, k, fetch).into_iter().enumerate() {
                for (s, sum) in sums.into_iter().enumerate() {
                    put(c.add(i * ldc + s * length + j), B::totals([sum]), adds);
                }
            }
        }
    }
    S * length
}

/// S lines at a time that follow each other, as they are multiplied with one group of rows after another; returns how many. Meanwhile
/// each group fetches its share of the lines that all of them are multiplied with next, if lines are fetched ahead.
///
/// # Safety
/// As `Dot`; the instruction set is there.
#[inline(always)]
unsafe fn abreast<L: Lanes, const R: usize, B: Line, const S: usize>(
    a: *const f32,
    lda: usize,
    lines: &Lines,
    k: usize,
    c: *mut f32,
    ldc: usize,
    adds: bool,
) -> usize {
    let fetch = Fetch { ahead: lines.count as isize * lines.stride, turn: lines.turn };
    let fetch = if lines.next.is_some() { Some(fetch) } else { None };
    let all = lines.count - lines.count % S;
    for j in (0..all).step_by(S) {
        let mut b = [lines.start::<B>(0); S];
        for (s, b) in b.iter_mut().enumerate() {
            *b = lines.start::<B>(j + s);
        }
        // SAFETY: the caller's contract.
        unsafe {
            for (i, sums) in B::dots::<L, R, S>(a, lda, b, k, fetch).into_iter().enumerate() {
                put(c.add(i * ldc + j), B::totals(sums), adds);
            }
        }
    }
    all
}

/// Stores sums next to each other, or adds them to what is there.
///
/// # Safety
/// C has these elements, of any alignment.
#[inline(always)]
unsafe fn put<const S: usize>(c: *mut f32, mut sums: [f32; S], adds: bool) {
    let c = c.cast::<[f32; S]>();
    // SAFETY: the caller's contract.
    unsafe {
        if adds {
            for (sum, before) in sums.iter_mut().zip(c.read_unaligned()) {
                *sum += before;
            }
        }
        c.write_unaligned(sums);
    }
}

/// [`Line::dots`] of lines that hold values one after another.
///
/// # Safety
/// As `Dot`; the instruction set is there.
#[inline(always)]
pub(super) unsafe fn dots<L: Lanes, const R: usize, B: Line + ?Sized, const S: usize>(
    a: *const f32,
    lda: usize,
    b: [Start; S],
    k: usize,
    fetch: Option<Fetch>,
) -> [[L; S]; R] {
    let (blocks, whole) = (k - k % (chains(R) * L::LANES), k - k % L::LANES);
    // SAFETY: rows of A and B have k values.
    unsafe {
        let mut results = [[L::splat(0.0); S]; R];
        let mut sums = [[[L::splat(0.0); chains(1)]; S]; R];
        for (i, sums) in sums.iter_mut().enumerate() {
            let start = B::start(a.add(i * lda), lda);
            for sums in sums {
                sums[0] = start;
            }
        }
        let mut wait = match fetch {
            Some(fetch) => fetch.turn.0,
            None => 0,
        };
        for p in (0..blocks).step_by(chains(R) * L::LANES) {
            for chain in 0..chains(R) {
                let p = p + chain * L::LANES;
                let byte = p * size_of::<B::Stored>();
                if let Some(Fetch { ahead, turn: (_, turns) }) = fetch
                    && byte.is_multiple_of(CACHE_LINE)
                {
                    if wait == 0 {
                        for b in b {
                            prefetch(b.values.wrapping_offset(byte as isize + ahead));
                        }
                        wait = turns;
                    }
                    wait -= 1;
                }
                add::<L, R, B, S>(&mut sums, chain, (a.add(p), lda), b, p, L::LANES);
            }
        }
        for p in (blocks..whole).step_by(L::LANES) {
            add::<L, R, B, S>(&mut sums, 0, (a.add(p), lda), b, p, L::LANES);
        }
        if whole < k {
            add::<L, R, B, S>(&mut sums, 1 % chains(R), (a.add(whole), lda), b, whole, k - whole);
        }
        for (results, sums) in results.iter_mut().zip(sums) {
            for (result, sums) in results.iter_mut().zip(sums) {
                *result = match chains(R) {
                    1 => sums[0],
                    2 => B::join(sums[0], sums[1]),
                    _ => B::join(B::join(sums[0], sums[1]), B::join(sums[2], sums[3])),
                };
            }
        }
        results
    }
}

/// Adds the products of some lanes, those of the lines from value p on.
///
/// # Safety
/// As `Dot`; the instruction set is there, and rows and lines have these lanes.
#[inline(always)]
unsafe fn add<L: Lanes, const R: usize, B: Line + ?Sized, const S: usize>(
    sums: &mut [[[L; chains(1)]; S]; R],
    chain: usize,
    (a, lda): (*const f32, usize),
    b: [Start; S],
    p: usize,
    lanes: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut lines = [L::splat(0.0); S];
        for (line, b) in lines.iter_mut().zip(b) {
            *line = at::<L, B>(b.values, p, lanes);
        }
        for (i, sums) in sums.iter_mut().enumerate() {
            let row = load::<L>(a.add(i * lda), lanes);
            for (sums, line) in sums.iter_mut().zip(lines) {
                sums[chain] = B::multiply_add(row, line, sums[chain]);
            }
        }
    }
}

/// Registers of each row of C that are summed at once.
const fn vectors(rows: usize) -> usize {
    if rows <= 2 { 4 } else { 2 }
}

/// # Safety
/// As `Axpy`; the instruction set is there, C has R rows.
#[inline(always)]
pub(super) unsafe fn axpy<L: Lanes, const R: usize, B: Line>(
    a: *const f32,
    lda: usize,
    b: &Lines,
    c: *mut f32,
    ldc: usize,
    n: usize,
) {
    let (blocks, whole) = (n - n % (vectors(R) * L::LANES), n - n % L::LANES);
    let size = size_of::<B::Stored>();
    let lines_ahead = AHEAD / (vectors(R) * L::LANES * size);
    // SAFETY: rows of B and C have n values.
    unsafe {
        for j in (0..blocks).step_by(vectors(R) * L::LANES) {
            let mut sums = [[L::splat(0.0); vectors(1)]; R];
            for (i, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums[..vectors(R)].iter_mut().enumerate() {
                    *sum = L::load(c.add(i * ldc + j + v * L::LANES));
                }
            }
            for p in 0..b.count {
                if let Some(next) = b.next {
                    let ahead = b.line_ahead(p + lines_ahead, next).wrapping_add(j * size);
                    for line in (0..vectors(R) * L::LANES * size).step_by(CACHE_LINE) {
                        prefetch(ahead.wrapping_add(line));
                    }
                }
                for v in 0..vectors(R) {
                    let line: L = at::<L, B>(b.line(p), j + v * L::LANES, L::LANES);
                    for (i, sums) in sums.iter_mut().enumerate() {
                        sums[v] = L::fma(L::splat(*a.add(i * lda + p)), line, sums[v]);
                    }
                }
            }
            for (i, sums) in sums.into_iter().enumerate() {
                for (v, sum) in sums[..vectors(R)].iter().enumerate() {
                    sum.store(c.add(i * ldc + j + v * L::LANES));
                }
            }
        }
        for j in (blocks..n).step_by(L::LANES) {
            // The last one may have fewer lanes.
            let lanes = if j < whole { L::LANES } else { n - whole };
            let mut sums = [L::splat(0.0); R];
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = load(c.add(i * ldc + j), lanes);
            }
            for p in 0..b.count {
                let line: L = at::<L, B>(b.line(p), j, lanes);
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = L::fma(L::splat(*a.add(i * lda + p)), line, *sum);
                }
            }
            for (i, sum) in sums.into_iter().enumerate() {
                match lanes == L::LANES {
                    true => sum.store(c.add(i * ldc + j)),
                    false => sum.store_first(c.add(i * ldc + j), lanes),
                }
            }
        }
    }
}

/// # Safety
/// The instruction set is there, and `lanes` values at `source`.
#[inline(always)]
unsafe fn load<L: Lanes>(source: *const f32, lanes: usize) -> L {
    // SAFETY: the caller's contract.
    unsafe { if lanes == L::LANES { L::load(source) } else { L::load_first(source, lanes) } }
}

/// Whether a contraction is computed here.
pub(super) fn suits(job: &Contraction) -> bool {
    let kernels = Kernels::of(job.isa, job.precision);
    // What is packed nowhere has no scales.
    if kernels.is_fixed() {
        return false;
    }
    let adds = matches!(job.output, Output::Direct { adds: true, .. });
    let (k, outer) = (job.b.k.offsets(), job.b.outer.offsets());
    let is_strided = matches!(outer, Offsets::Strided(_));
    let most = match k.unit() && is_strided && lies_ready(job) {
        true if kernels.is_tiled => MOST_ROWS_BESIDE_TILES,
        true => MOST_ROWS_OF_DOTS,
        false => MOST_ROWS,
    };
    if bytes(job).is_some_and(|bytes| !k.unit() || !is_strided || !job.k.is_multiple_of(bytes.values)) {
        return false;
    }
    job.m <= most && !adds && job.is_plain() && (k.unit() || outer.unit())
}

/// Columns of C that are not divided among threads: of lines along n, a piece that is worth beginning.
pub(super) fn unit(job: &Contraction) -> usize {
    if job.b.k.offsets().unit() { 8 } else { job.n.min(128) }
}

/// How many units a thread takes at a time once it has done its share: few, so that no thread waits long for
/// another, but enough to read for some microseconds.
pub(super) fn step(job: &Contraction, units: usize) -> usize {
    let bytes = unit(job) * job.b.element.bytes(job.k.max(1));
    (STEP / bytes).max(units / 256).max(1)
}

/// The kernels for pairs of bf16, if both A and B are multiplied as such.
fn pairs(job: &Contraction) -> Option<[Dot; DOT_ROWS]> {
    let are_pairs = job.precision.rounds_to_bf16()
        && job.b.element == Element::Bf16
        && job.b.k.offsets().unit()
        && job.k.is_multiple_of(2);
    are_pairs.then_some(Kernels::of(job.isa, job.precision).gemv.pairs).flatten()
}

/// How bytes are multiplied, if both A and B are these.
fn bytes(job: &Contraction) -> Option<&'static Bytes> {
    Kernels::of(job.isa, job.precision).bytes
}

/// How many values are one word of a staged row.
fn values_of_word(job: &Contraction) -> usize {
    bytes(job).map_or(if pairs(job).is_some() { 2 } else { 1 }, |bytes| bytes.values)
}

/// Row stride of A as it is staged, in words.
fn stride(job: &Contraction) -> usize {
    match job.b.element {
        Element::HalfByte(_) => job.k.next_multiple_of(half_bytes::WIDEST_BLOCK) + 16,
        _ => (job.k / values_of_word(job)).next_multiple_of(16) + 16,
    }
}

/// Buffers that are needed: A, a stage of B, tiles of C; in words.
pub(super) fn words(job: &Contraction) -> (usize, usize, usize) {
    let stage = (job.k.next_multiple_of(16) + 16).max(DEPTH * TILE_COLUMNS);
    (job.m * stride(job), stage, job.m * TILE_COLUMNS)
}

/// Computes some columns of one matrix of C. Which matrix of A is staged is known before and after.
///
/// # Safety
/// As `Contraction::run`; the space is as large as `words` says, and holds A of the matrix that is `staged`.
pub(super) unsafe fn piece(
    gemm: &GemmCall<'_>,
    batch: usize,
    columns: Range<usize>,
    space: &Space,
    staged: &mut Option<usize>,
) {
    let (job, b) = (gemm.job, gemm.source(&gemm.job.b, gemm.buffers.b, batch));
    // SAFETY: as promised; a tile is finished before the epilogue sees it.
    unsafe {
        if staged.replace(batch) != Some(batch) {
            stage_a(gemm, batch, space);
        }
        for n in chunks(columns, TILE_COLUMNS) {
            let (c, ldc) = match &job.output {
                Output::Direct { batch: matrices, ldc, .. } => {
                    (gemm.buffers.c.wrapping_offset(matrices.at(batch)).wrapping_add(n.start), *ldc)
                }
                Output::Tile => (space.sums, TILE_COLUMNS),
            };
            if b.k.unit() {
                columns_by_dots(gemm, &b, n.clone(), c, ldc, space);
            } else {
                columns_by_lines(gemm, batch, n.clone(), c, ldc, space);
            }
            if let Some(hook) = job.epilogue {
                gemm.call(hook, c, ldc, (0, n.start), (job.m, n.len()), batch);
            }
        }
    }
}

/// A as rows of `f32`, rounded, in the order of half bytes where lines are these; or of pairs of bf16.
unsafe fn stage_a(gemm: &GemmCall<'_>, batch: usize, space: &Space) {
    let (job, ld, out) = (gemm.job, stride(gemm.job), space.a.cast::<f32>());
    let a = gemm.source(&job.a, gemm.buffers.a, batch);
    // SAFETY: the buffer has m rows of `ld` words, and the stage k values.
    unsafe {
        if let Some(bytes) = bytes(job) {
            for i in 0..job.m {
                let mut row = a.at(i, 0).cast::<i8>();
                if !a.k.unit() {
                    let gathered = space.stage.cast::<i8>();
                    (0..job.k).for_each(|p| *gathered.add(p) = *a.at(i, p).cast());
                    row = gathered;
                }
                (bytes.stage)(row, job.k, out.add(i * ld).cast(), ld);
            }
            return;
        }
        if pairs(job).is_some() {
            for i in 0..job.m {
                a.row(i, job.k, space.stage);
                gemm.kernels.store(Element::Bf16)(out.add(i * ld).cast(), 1, space.stage, job.k);
            }
            return;
        }
        (0..job.m).for_each(|i| a.row(i, job.k, out.add(i * ld)));
        if job.precision.rounds_to_bf16() {
            (0..job.m).for_each(|i| (gemm.kernels.round)(out.add(i * ld), out.add(i * ld), job.k));
        }
        if let Element::HalfByte(_) = job.b.element {
            (0..job.m).for_each(|i| (gemm.kernels.gemv.arrange)(out.add(i * ld), job.k));
        }
    }
}

/// Which of the kernels multiplies lines of B: those that are no `f32` are widened in registers.
fn lines(job: &Contraction) -> usize {
    match job.b.element {
        Element::F32 | Element::F16 => 0,
        Element::Bf16 => 1,
        Element::I8 => 2,
        Element::HalfByte(ScaleType::Bf16) => 3,
        Element::HalfByte(ScaleType::F32) => 4,
    }
}

/// Whether lines of B are multiplied as they lie in memory.
fn lies_ready(job: &Contraction) -> bool {
    lines(job) > 0 || job.b.element == Element::F32 && !job.precision.rounds_to_bf16()
}

/// A line of B in memory, or widened and rounded in `stage`.
unsafe fn line(gemm: &GemmCall<'_>, at: *const u8, count: usize, stage: *mut f32) -> *const u8 {
    let job = gemm.job;
    let rounds = job.precision.rounds_to_bf16();
    if lies_ready(job) {
        return at;
    }
    // SAFETY: `count` elements of unit stride lie there, and the stage holds as many.
    unsafe {
        gemm.kernels.load(job.b.element)(stage, at, 1, count);
        if rounds {
            (gemm.kernels.round)(stage, stage, count);
        }
    }
    stage.cast()
}

unsafe fn columns_by_dots(
    gemm: &GemmCall<'_>,
    b: &Source<'_>,
    columns: Range<usize>,
    c: *mut f32,
    ldc: usize,
    space: &Space,
) {
    let (job, ld) = (gemm.job, stride(gemm.job));
    let (bytes, pairs) = (bytes(job), pairs(job));
    let dots: &[Dot] = match (bytes, &pairs) {
        (Some(bytes), _) => bytes.dots,
        (None, Some(pairs)) => pairs,
        (None, None) => &gemm.kernels.gemv.dot[lines(job)],
    };
    // Whole rows of bytes stay in the first-level cache; of others, terms do.
    let fitting = (ROWS / job.k.max(1)).max(DOT_ROWS);
    let groups = job.m.div_ceil(if bytes.is_some() { dots.len().min(fitting) } else { dots.len() });
    let words = |values: usize| values / values_of_word(job);
    // Lines that are not multiplied as they lie are staged as `f32`.
    let element = if lies_ready(job) { job.b.element } else { Element::F32 };
    // Lines that are read for several groups of rows stay in cache in between.
    let together = match b.outer {
        Offsets::Strided(_) if lies_ready(job) && groups == 1 => columns.len(),
        Offsets::Strided(_) if lies_ready(job) => {
            (SHARED / job.b.element.bytes(job.k.max(1))).max(1).next_multiple_of(8)
        }
        _ => 1,
    };
    for part in chunks(columns.clone(), together.max(1)) {
        // SAFETY: the stage holds k values.
        let first = unsafe { line(gemm, b.at(part.start, 0), job.k, space.stage) };
        let stride = match b.outer {
            Offsets::Strided(stride) => stride * b.size as isize,
            Offsets::Table(_) => 0,
        };
        let end = first.wrapping_offset(part.len() as isize * stride);
        let packed = b.packed.map(|packed| packed.after(b.outer.at(part.start)));
        let part_lines = Lines {
            first,
            scales: std::ptr::null(),
            stride,
            count: part.len(),
            next: gemm.reads_ahead().then_some(end),
            turn: (0, groups),
        };
        // Of several groups, each goes through the lines with terms that stay in the first-level cache.
        let depth = if groups == 1 || bytes.is_some() { job.k.max(1) } else { DEPTH_OF_DOTS };
        let terms = (0..job.k.max(1)).step_by(depth).map(|first| first..job.k.min(first + depth));
        for (k, group) in terms.flat_map(|k| (0..groups).map(move |group| (k.clone(), group))) {
            let rows = share(job.m, groups, group);
            let a = space.a.cast::<f32>().wrapping_add(rows.start * ld + words(k.start));
            let c = c.wrapping_add(rows.start * ldc + part.start - columns.start);
            let ahead = element.bytes(k.start);
            let first = first.wrapping_add(ahead);
            let scales = packed.map_or(std::ptr::null(), |packed| packed.after(ahead as isize).scales);
            let part_lines = Lines { first, scales, turn: (group, groups), ..part_lines };
            let dot = dots[rows.len() - 1];
            // SAFETY: `stage_a` made the rows; C has these rows and columns.
            unsafe { dot(a, ld, &part_lines, words(k.len()), c, ldc, k.start > 0) };
        }
    }
}

/// The terms between the first and the last in which a row of A is not zero: a text that is shorter than its cache has weights of
/// zero for the rest, of which nothing needs to be read. Zero times what is no finite number is taken for zero here, as some rules of
/// rewriting do.
///
/// # Safety
/// `stage_a` made the rows of A.
unsafe fn terms(job: &Contraction, a: *const f32) -> Range<usize> {
    // SAFETY: rows have `k` values.
    let row = |i: usize| unsafe { std::slice::from_raw_parts(a.add(i * stride(job)), job.k) };
    let counts = |x: &f32| *x != 0.0;
    let first = (0..job.m).filter_map(|i| row(i).iter().position(counts)).min();
    let last = (0..job.m).filter_map(|i| row(i).iter().rposition(counts)).max();
    first.zip(last).map_or(0..0, |(first, last)| first..last + 1)
}

unsafe fn columns_by_lines(
    gemm: &GemmCall<'_>,
    batch: usize,
    columns: Range<usize>,
    c: *mut f32,
    ldc: usize,
    space: &Space,
) {
    let (job, ld, n) = (gemm.job, stride(gemm.job), columns.len());
    let b = gemm.source(&job.b, gemm.buffers.b, batch);
    let depth = match b.k {
        // All that C needs stays in registers.
        Offsets::Strided(_) if lies_ready(job) && n * size_of::<f32>() <= NARROW => job.k.max(1),
        Offsets::Table(_) if lies_ready(job) => 1,
        _ => DEPTH,
    };
    // SAFETY: `stage_a` made the rows of A.
    let terms = unsafe { terms(job, space.a.cast()) };
    // If there is another matrix, most likely as many lines of it.
    let next = (depth > DEPTH && gemm.reads_ahead()).then(|| {
        let next = gemm.source(&job.b, gemm.buffers.b, (batch + 1).min(job.batch - 1));
        next.at(columns.start, terms.start)
    });
    // SAFETY: C has these rows and columns; `stage_a` made the rows of A; the stage holds `DEPTH` lines.
    unsafe {
        (0..job.m).for_each(|i| c.add(i * ldc).cast::<u8>().write_bytes(0, n * 4));
        for k in chunks(terms, depth) {
            let first = b.at(columns.start, k.start);
            let one =
                Lines { first, scales: std::ptr::null(), stride: 0, count: 1, next: None, turn: (0, 1) };
            let b_lines = match b.k {
                Offsets::Strided(stride) if lies_ready(job) => {
                    Lines { stride: stride * b.size as isize, count: k.len(), next, ..one }
                }
                Offsets::Table(_) if lies_ready(job) => one,
                _ => {
                    for p in k.clone() {
                        let stage = space.stage.add((p - k.start) * TILE_COLUMNS);
                        line(gemm, b.at(columns.start, p), n, stage);
                    }
                    let stride = (TILE_COLUMNS * size_of::<f32>()) as isize;
                    Lines { first: space.stage.cast(), stride, count: k.len(), ..one }
                }
            };
            for rows in chunks(0..job.m, AXPY_ROWS) {
                let a = space.a.cast::<f32>().wrapping_add(rows.start * ld + k.start);
                let c = c.add(rows.start * ldc);
                gemm.kernels.gemv.axpy[lines(job)][rows.len() - 1](a, ld, &b_lines, c, ldc, n);
            }
        }
    }
}
